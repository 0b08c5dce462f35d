//! Flows: which raw packets a queue pair gets (`ibv_create_flow(3)`).

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use verbs_abi::*;

use super::*;
use crate::device;
use crate::qp::Qp;
use crate::qp_state::QpType;
use crate::steering::headers::{field, layer};
use crate::steering::{Flow, Pattern};

/// A flow; the program's handle points to its first field.
#[repr(C)]
struct FlowHandle {
    abi: UnsafeCell<ibv_flow>,
    qp: Arc<Qp>,
    place: usize,
}

pub(super) unsafe extern "C" fn create_flow(
    qp: *mut ibv_qp,
    attr: *mut ibv_flow_attr,
) -> *mut ibv_flow {
    let _hold_off = cancellation::HoldOff::new();
    // SAFETY: a handle of ours; NULL or attributes with their specifications behind them.
    or_null(unsafe { create(qp, attr) })
}

/// # Safety
/// As for `ibv_create_flow`.
unsafe fn create(handle: *mut ibv_qp, attr: *const ibv_flow_attr) -> Result<*mut ibv_flow, c_int> {
    // SAFETY: contract of this function.
    let (qp, first) = unsafe {
        // Programs pack the attributes with what follows, so they need not be aligned.
        let first = (!attr.is_null()).then(|| attr.read_unaligned());
        (share::<Qp, _>(handle), first)
    };
    let (qp, first) = qp.zip(first).ok_or(libc::EINVAL)?;
    match qp.qp_type {
        QpType::RawPacket => {}
        // The man page allows it; this NIC has no datagrams that are steered.
        QpType::Ud => return Err(libc::EOPNOTSUPP),
        _ => return Err(libc::EINVAL),
    }
    if first.comp_mask != 0 || first.port != device::PORT_NUM {
        return Err(libc::EINVAL);
    }
    if first.flags & !IBV_FLOW_ATTR_FLAGS_DONT_TRAP != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    let dont_trap = first.flags & IBV_FLOW_ATTR_FLAGS_DONT_TRAP != 0;
    let normal = first.r#type == IBV_FLOW_ATTR_NORMAL;
    // "Only rule type IBV_FLOW_ATTR_NORMAL supports IBV_FLOW_ATTR_FLAGS_DONT_TRAP flag", and the others look at no
    // headers.
    if first.r#type > IBV_FLOW_ATTR_SNIFFER || (!normal && (dont_trap || first.num_of_specs != 0)) {
        return Err(libc::EINVAL);
    }
    let mut flow = Flow {
        qp: qp.index,
        kind: first.r#type,
        priority: first.priority,
        dont_trap,
        drop: false,
        tag: 0,
        spread: qp.spread.as_ref().map(|spread| spread.place),
        pattern: Pattern::any(),
    };
    // SAFETY: the specifications follow the attributes.
    unsafe {
        add_specs(
            &mut flow,
            attr.cast::<u8>().add(size_of::<ibv_flow_attr>()),
            first.num_of_specs,
        )?
    };
    let nic = qp.nic;
    let place = nic.flows.add(&nic.fabric, &flow)?;
    qp.attached.fetch_add(1, Ordering::Relaxed);
    let mut abi = ibv_flow::zeroed();
    // SAFETY: a handle of ours.
    abi.context = unsafe { (*handle).context };
    abi.handle = u32::try_from(place).map_err(|_| libc::ENOMEM)?;
    Ok(live::hand_out_box(Box::new(FlowHandle {
        abi: UnsafeCell::new(abi),
        qp,
        place,
    })))
}

/// Adds the `count` specifications from `spec` on.
///
/// # Safety
/// Each starts with its type and its size in bytes, and is as long as it says.
unsafe fn add_specs(flow: &mut Flow, mut spec: *const u8, count: u8) -> Result<(), c_int> {
    let mut seen = Vec::new();
    for _ in 0..count {
        // SAFETY: contract of this function; they need not be aligned either.
        let header = unsafe { spec.cast::<ibv_flow_spec_spec_hdr>().read_unaligned() };
        let size = usize::from(header.size);
        // At most one for each layer: the innermost kinds (of tunnels) are not supported.
        let layer = header.r#type & 0xfff0;
        if size < size_of::<ibv_flow_spec_spec_hdr>() || seen.contains(&layer) {
            return Err(libc::EINVAL);
        }
        // What is done with a packet (from 0x1000 on) may be several things.
        if header.r#type < IBV_FLOW_SPEC_ACTION_TAG {
            seen.push(layer);
        }
        // SAFETY: contract of this function.
        unsafe { add_spec(flow, header, spec)? };
        spec = spec.wrapping_add(size);
    }
    Ok(())
}

/// # Safety
/// As for [`add_specs`], of one.
unsafe fn add_spec(
    flow: &mut Flow,
    header: ibv_flow_spec_spec_hdr,
    spec: *const u8,
) -> Result<(), c_int> {
    /// Reads a specification that is long enough.
    macro_rules! read {
        ($type:ty) => {{
            if usize::from(header.size) < size_of::<$type>() {
                return Err(libc::EINVAL);
            }
            // SAFETY: as long as it says (contract), which is enough; integers only.
            unsafe { spec.cast::<$type>().read_unaligned() }
        }};
    }
    let pattern = &mut flow.pattern;
    /// Wants fields to have the values that their masks select; integers are in network order.
    macro_rules! want {
        ($spec:ident: $($field:ident: $member:ident),+) => {
            $(pattern.want(field::$field, bytes(&$spec.val.$member), bytes(&$spec.mask.$member));)+
        };
    }
    match header.r#type {
        IBV_FLOW_SPEC_ETH => {
            let spec = read!(ibv_flow_spec_eth);
            want!(spec: DST_MAC: dst_mac, SRC_MAC: src_mac, ETHER_TYPE: ether_type, VLAN_TAG: vlan_tag);
            if spec.mask.vlan_tag != 0 {
                pattern.layers |= layer::VLAN;
            }
        }
        IBV_FLOW_SPEC_IPV4 => {
            let spec = read!(ibv_flow_spec_ipv4);
            want!(spec: SRC_IP: src_ip, DST_IP: dst_ip);
            pattern.layers |= layer::IPV4;
        }
        IBV_FLOW_SPEC_IPV4_EXT => {
            let spec = read!(ibv_flow_spec_ipv4_ext);
            want!(spec: SRC_IP: src_ip, DST_IP: dst_ip, PROTOCOL: proto, TRAFFIC_CLASS: tos);
            want!(spec: HOP_LIMIT: ttl, IP_FLAGS: flags);
            pattern.layers |= layer::IPV4;
        }
        IBV_FLOW_SPEC_IPV6 => {
            let spec = read!(ibv_flow_spec_ipv6);
            want!(spec: SRC_IP: src_ip, DST_IP: dst_ip, FLOW_LABEL: flow_label);
            want!(spec: PROTOCOL: next_hdr, TRAFFIC_CLASS: traffic_class, HOP_LIMIT: hop_limit);
            pattern.layers |= layer::IPV6;
        }
        kind @ (IBV_FLOW_SPEC_TCP | IBV_FLOW_SPEC_UDP) => {
            let spec = read!(ibv_flow_spec_tcp_udp);
            want!(spec: SRC_PORT: src_port, DST_PORT: dst_port);
            pattern.layers |= if kind == IBV_FLOW_SPEC_TCP {
                layer::TCP
            } else {
                layer::UDP
            };
        }
        IBV_FLOW_SPEC_ACTION_TAG => flow.tag = read!(ibv_flow_spec_action_tag).tag_id,
        IBV_FLOW_SPEC_ACTION_DROP => flow.drop = true,
        _ => return Err(libc::EOPNOTSUPP),
    }
    Ok(())
}

/// Integers and arrays of them as they lie in memory.
trait Field {
    fn bytes(&self) -> &[u8];
}

macro_rules! fields {
    ($($type:ty),+) => {$(
        impl Field for $type {
            fn bytes(&self) -> &[u8] {
                // SAFETY: an integer or an array of bytes: initialised, without padding.
                unsafe { std::slice::from_raw_parts((&raw const *self).cast(), size_of::<Self>()) }
            }
        }
    )+};
}

fields!(u8, u16, u32, [u8; 6], [u8; 16]);

fn bytes(field: &impl Field) -> &[u8] {
    field.bytes()
}

pub(super) unsafe extern "C" fn destroy_flow(handle: *mut ibv_flow) -> c_int {
    let _hold_off = cancellation::HoldOff::new();
    let Some(flow) = live::take_back_box::<FlowHandle, _>(handle) else {
        return libc::EINVAL;
    };
    let nic = flow.qp.nic;
    nic.flows.remove(&nic.fabric, flow.place);
    flow.qp.attached.fetch_sub(1, Ordering::Relaxed);
    0
}
