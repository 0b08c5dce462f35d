//! Flows: the raw packets that a queue pair gets (`ibv_create_flow(3)`).

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use verbs_abi::*;

use crate::abi_cell::AbiCell;
use crate::live_handles;
use crate::qp::Qp;
use crate::qp_attributes::QpType;
use crate::steering::SteeringFlow;
use nic_core::flows::{FlowKind, FlowRule, HeaderMatch, field, layer};

/// A flow; the program's handle points to its first field.
#[repr(C)]
struct FlowHandle {
    abi: AbiCell<ibv_flow>,
    qp: Arc<Qp>,
    flow_slot: usize,
}

live_handles::object!(FlowHandle, ibv_flow);

pub(super) fn create_flow(
    qp: *mut ibv_qp,
    attr: *mut ibv_flow_attr,
) -> Result<*mut ibv_flow, c_int> {
    let _hold_off = cancellation::HoldOff::new();
    let qp = live_handles::find_object::<Qp>(qp).ok_or(libc::EINVAL)?;
    let flow = parse_flow_attr(&qp, attr)?;
    let nic = qp.nic;
    let place = nic.flows.add_flow(&nic.fabric, &flow)?;
    qp.multicast_group_or_flow_count
        .fetch_add(1, Ordering::Relaxed);
    let mut abi = ibv_flow::zeroed();
    abi.context = qp.context.handle();
    abi.handle = u32::try_from(place).map_err(|_| libc::ENOMEM)?;
    Ok(live_handles::make_handle(Arc::new(FlowHandle {
        abi: AbiCell::new(abi),
        qp,
        flow_slot: place,
    })))
}

/// Returns the flow that the program describes: attributes with specifications behind them.
#[allow(unsafe_code)]
fn parse_flow_attr(qp: &Qp, attr: *const ibv_flow_attr) -> Result<SteeringFlow, c_int> {
    if attr.is_null() {
        return Err(libc::EINVAL);
    }
    // SAFETY: not NULL (above), so the program's attributes (`ibv_create_flow(3)`). Programs pack them with what follows:
    // they need not be aligned.
    let first = unsafe { attr.read_unaligned() };
    match qp.qp_type {
        QpType::RawPacket => {}
        // The man page allows it, but this NIC does not steer datagrams.
        QpType::Ud => return Err(libc::EOPNOTSUPP),
        _ => return Err(libc::EINVAL),
    }
    qp.context.device.port(first.port)?;
    if first.comp_mask != 0 {
        return Err(libc::EINVAL);
    }
    if first.flags & !IBV_FLOW_ATTR_FLAGS_DONT_TRAP != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    let dont_trap = first.flags & IBV_FLOW_ATTR_FLAGS_DONT_TRAP != 0;
    let normal = first.r#type == IBV_FLOW_ATTR_NORMAL;
    // "Only rule type IBV_FLOW_ATTR_NORMAL supports IBV_FLOW_ATTR_FLAGS_DONT_TRAP flag", and the other types match no
    // headers.
    if !normal && (dont_trap || first.num_of_specs != 0) {
        return Err(libc::EINVAL);
    }
    let kind = FlowKind::from_code(first.r#type).ok_or(libc::EINVAL)?;
    let mut flow = SteeringFlow {
        qp_index: qp.index,
        rule: FlowRule {
            kind,
            priority: first.priority,
            dont_trap,
            drop: false,
            pattern: HeaderMatch::any(),
        },
        flow_tag: 0,
        rss_config_slot: qp.rss_table.as_ref().map(|spread| spread.segment_slot),
    };
    add_flow_specs(&mut flow, attr.wrapping_add(1).cast(), first.num_of_specs)?;
    Ok(flow)
}

/// Adds the `count` specifications from `spec` on, which lie behind the program's attributes.
#[allow(unsafe_code)]
fn add_flow_specs(flow: &mut SteeringFlow, mut spec: *const u8, count: u8) -> Result<(), c_int> {
    let mut seen = Vec::new();
    for _ in 0..count {
        // SAFETY: each of the `count` specifications starts with its type and its size (`ibv_create_flow(3)`); they need
        // not be aligned either.
        let header = unsafe { spec.cast::<ibv_flow_spec_spec_hdr>().read_unaligned() };
        let size = usize::from(header.size);
        // At most one for each layer: the innermost kinds (of tunnels) are not supported.
        let layer = header.r#type & 0xfff0;
        if size < size_of::<ibv_flow_spec_spec_hdr>() || seen.contains(&layer) {
            return Err(libc::EINVAL);
        }
        // A packet may have several actions (types from 0x1000 on).
        if header.r#type < IBV_FLOW_SPEC_ACTION_TAG {
            seen.push(layer);
        }
        // SAFETY: a specification is as long as its header says (`ibv_create_flow(3)`).
        let bytes = unsafe { std::slice::from_raw_parts(spec, size) };
        add_flow_spec(flow, header.r#type, bytes)?;
        spec = spec.wrapping_add(size);
    }
    Ok(())
}

/// Adds one specification.
#[allow(unsafe_code)]
fn add_flow_spec(
    flow: &mut SteeringFlow,
    kind: ibv_flow_spec_type,
    spec: &[u8],
) -> Result<(), c_int> {
    /// Reads a specification that is long enough.
    macro_rules! read {
        ($type:ty) => {{
            if spec.len() < size_of::<$type>() {
                return Err(libc::EINVAL);
            }
            // SAFETY: long enough (above); integers only, of which any bytes are a value.
            unsafe { spec.as_ptr().cast::<$type>().read_unaligned() }
        }};
    }
    let pattern = &mut flow.rule.pattern;
    /// Requires fields to have the values that their masks select; integers are in network order.
    macro_rules! want {
        ($spec:ident: $($field:ident: $member:ident),+) => {
            $(pattern.require(field::$field, bytes(&$spec.val.$member), bytes(&$spec.mask.$member));)+
        };
    }
    match kind {
        IBV_FLOW_SPEC_ETH => {
            let spec = read!(ibv_flow_spec_eth);
            want!(spec: DST_MAC: dst_mac, SRC_MAC: src_mac, ETHER_TYPE: ether_type, VLAN_TAG: vlan_tag);
            if spec.mask.vlan_tag != 0 {
                pattern.required_layers |= layer::VLAN;
            }
        }
        IBV_FLOW_SPEC_IPV4 => {
            let spec = read!(ibv_flow_spec_ipv4);
            want!(spec: SRC_IP: src_ip, DST_IP: dst_ip);
            pattern.required_layers |= layer::IPV4;
        }
        IBV_FLOW_SPEC_IPV4_EXT => {
            let spec = read!(ibv_flow_spec_ipv4_ext);
            want!(spec: SRC_IP: src_ip, DST_IP: dst_ip, PROTOCOL: proto, TRAFFIC_CLASS: tos);
            want!(spec: HOP_LIMIT: ttl, IP_FLAGS: flags);
            pattern.required_layers |= layer::IPV4;
        }
        IBV_FLOW_SPEC_IPV6 => {
            let spec = read!(ibv_flow_spec_ipv6);
            want!(spec: SRC_IP: src_ip, DST_IP: dst_ip, FLOW_LABEL: flow_label);
            want!(spec: PROTOCOL: next_hdr, TRAFFIC_CLASS: traffic_class, HOP_LIMIT: hop_limit);
            pattern.required_layers |= layer::IPV6;
        }
        kind @ (IBV_FLOW_SPEC_TCP | IBV_FLOW_SPEC_UDP) => {
            let spec = read!(ibv_flow_spec_tcp_udp);
            want!(spec: SRC_PORT: src_port, DST_PORT: dst_port);
            pattern.required_layers |= if kind == IBV_FLOW_SPEC_TCP {
                layer::TCP
            } else {
                layer::UDP
            };
        }
        IBV_FLOW_SPEC_ACTION_TAG => flow.flow_tag = read!(ibv_flow_spec_action_tag).tag_id,
        IBV_FLOW_SPEC_ACTION_DROP => flow.rule.drop = true,
        _ => return Err(libc::EOPNOTSUPP),
    }
    Ok(())
}

/// An integer or an array of integers, as its bytes in memory.
trait FieldBytes {
    fn bytes(&self) -> &[u8];
}

macro_rules! fields {
    ($($type:ty),+) => {$(
        #[allow(unsafe_code)]
        impl FieldBytes for $type {
            fn bytes(&self) -> &[u8] {
                // SAFETY: an integer or an array of bytes: initialised, without padding.
                unsafe { std::slice::from_raw_parts((&raw const *self).cast(), size_of::<Self>()) }
            }
        }
    )+};
}

fields!(u8, u16, u32, [u8; 6], [u8; 16]);

fn bytes(field: &impl FieldBytes) -> &[u8] {
    field.bytes()
}

pub(super) fn destroy_flow(handle: *mut ibv_flow) -> Result<(), c_int> {
    let _hold_off = cancellation::HoldOff::new();
    let flow = live_handles::take_back_handle::<FlowHandle>(handle).ok_or(libc::EINVAL)?;
    let nic = flow.qp.nic;
    nic.flows.remove_flow(&nic.fabric, flow.flow_slot);
    flow.qp
        .multicast_group_or_flow_count
        .fetch_sub(1, Ordering::Relaxed);
    Ok(())
}
