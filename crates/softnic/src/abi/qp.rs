//! Queue pairs: `ibv_create_qp(3)`, `ibv_create_qp_ex(3)`, `ibv_modify_qp(3)`.

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use verbs_abi::*;

use super::context::context_of;
use super::edge::{In, InOut, Out};
use super::require_unused::require_unused;
use super::xrc::XrcdHandle;
use super::{qp_ex, wq};
use crate::capabilities::{Limits, OptionalFeature};
use crate::comp_cntr;
use crate::context::Context;
use crate::cq::Cq;
use crate::device::LinkLayer;
use crate::live_handles;
use crate::pd::Pd;
use crate::qp::{NewQp, Qp};
use crate::qp_attributes::QpType;
use crate::registry;
use crate::send::WrBuilder;
use crate::srq::Srq;
use crate::why;
use crate::xrc::XrcRole;
use nic_core::rights::OwningPdOrQp;

/// Bytes of a scatter/gather element in a WQE: `struct ibv_sge`.
const SGE_BYTES: u32 = 16;

pub(super) fn create_qp(
    pd: *mut ibv_pd,
    init: InOut<'_, ibv_qp_init_attr>,
) -> Result<*mut ibv_qp, c_int> {
    let pd = Pd::find_usable(pd).ok_or(libc::EINVAL)?;
    new_qp(pd, init.get()?, None).map(live_handles::make_handle)
}

pub(super) fn create_qp_ex(
    context: *mut ibv_context,
    init: InOut<'_, ibv_qp_init_attr_ex>,
) -> Result<*mut ibv_qp, c_int> {
    let _hold_off = cancellation::HoldOff::new();
    const KNOWN_INIT_ATTR_FLAGS: u32 =
        IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    const SPREADING_QP_FLAGS: u32 = IBV_QP_INIT_ATTR_IND_TABLE | IBV_QP_INIT_ATTR_RX_HASH;
    let attr = init.get()?;
    let mask = attr.comp_mask;
    if attr.qp_type == IBV_QPT_XRC_RECV {
        if mask & !(KNOWN_INIT_ATTR_FLAGS | IBV_QP_INIT_ATTR_XRCD) != 0 {
            return Err(libc::EOPNOTSUPP);
        }
        if mask & IBV_QP_INIT_ATTR_XRCD == 0 {
            return Err(libc::EINVAL);
        }
        return create_xrc_recv(context, attr);
    }
    if mask & SPREADING_QP_FLAGS == SPREADING_QP_FLAGS
        && mask & !(KNOWN_INIT_ATTR_FLAGS | SPREADING_QP_FLAGS) == 0
    {
        let flags = mask & IBV_QP_INIT_ATTR_CREATE_FLAGS != 0 && attr.create_flags != 0;
        if flags || mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS != 0 {
            return Err(libc::EOPNOTSUPP);
        }
        return wq::create_rss_qp(context, attr);
    }
    if mask & !KNOWN_INIT_ATTR_FLAGS != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    if mask & IBV_QP_INIT_ATTR_PD == 0 {
        return Err(libc::EINVAL);
    }
    create_ordinary_qp_ex(attr)
}

/// Executes `ibv_create_qp_ex` for a queue pair that `ibv_create_qp` could make, except for flags and operations.
fn create_ordinary_qp_ex(attr: &mut ibv_qp_init_attr_ex) -> Result<*mut ibv_qp, c_int> {
    let flags = if attr.comp_mask & IBV_QP_INIT_ATTR_CREATE_FLAGS != 0 {
        attr.create_flags
    } else {
        0
    };
    let block_self = flags == IBV_QP_CREATE_BLOCK_SELF_MCAST_LB && attr.qp_type == IBV_QPT_UD;
    if flags != 0 && !block_self {
        return Err(libc::EOPNOTSUPP);
    }
    let ops =
        (attr.comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS != 0).then_some(attr.send_ops_flags);
    let pd = Pd::find_usable(attr.pd).ok_or(libc::EINVAL)?;
    let can = &pd.context.nic.capabilities;
    let supported = qp_ex::supported_send_ops(attr.qp_type) & !can.unsupported_qp_ex_send_ops();
    if ops.is_some_and(|ops| ops & !supported != 0) {
        return Err(libc::EOPNOTSUPP);
    }
    let mut init = ibv_qp_init_attr {
        qp_context: attr.qp_context,
        send_cq: attr.send_cq,
        recv_cq: attr.recv_cq,
        srq: attr.srq,
        cap: attr.cap,
        qp_type: attr.qp_type,
        sq_sig_all: attr.sq_sig_all,
    };
    let made = new_qp(pd, &mut init, ops.map(|_| WrBuilder::new()));
    attr.cap = init.cap;
    let qp = made?;
    if block_self {
        qp.blocks_multicast_loopback.store(true, Ordering::Relaxed);
    }
    if let Some(ops) = ops {
        qp_ex::install_wr_functions(&qp, ops);
    }
    Ok(live_handles::make_handle(qp))
}

/// The queues in which a queue pair completes and from which it receives.
struct QpQueues {
    send_cq: Arc<Cq>,
    recv_cq: Arc<Cq>,
    srq: Option<Arc<Srq>>,
}

impl QpQueues {
    fn from_init_attr(qp_type: QpType, init: &ibv_qp_init_attr) -> Result<Self, c_int> {
        let no_cq =
            |name| why::einval_because(|| format!("{name} is no completion queue of this process"));
        let send_cq =
            live_handles::find_object::<Cq>(init.send_cq).ok_or_else(|| no_cq("send_cq"))?;
        let (recv_cq, srq) = match qp_type {
            // Such a queue pair is made from a domain: `create_xrc_recv`.
            QpType::XrcRecv => return Err(libc::EINVAL),
            // Such a queue pair receives nothing.
            QpType::XrcSend => (Arc::clone(&send_cq), None),
            _ => (
                live_handles::find_object::<Cq>(init.recv_cq).ok_or_else(|| no_cq("recv_cq"))?,
                live_handles::find_object::<Srq>(init.srq),
            ),
        };
        if let Some(cq) = srq.as_ref().and_then(|srq| srq.tag_ops_cq.as_ref())
            && (qp_type != QpType::Rc || !Arc::ptr_eq(cq, &recv_cq))
        {
            // `ibv_tm_caps` of the device: RC alone. Receives of the queue complete in the CQ of its operations.
            return Err(libc::EINVAL);
        }
        Ok(Self {
            send_cq,
            recv_cq,
            srq,
        })
    }

    /// # Errors
    /// `EINVAL`: one of them is of another device than `context`.
    fn require_same_device(&self, context: &Context) -> Result<(), c_int> {
        context.require_same_device(self.send_cq.context)?;
        context.require_same_device(self.recv_cq.context)?;
        self.srq
            .as_ref()
            .map_or(Ok(()), |srq| context.require_same_device(srq.context))
    }
}

/// Makes a queue pair. On return, `init` has the sizes that it got.
fn new_qp(
    pd: Arc<Pd>,
    init: &mut ibv_qp_init_attr,
    builder: Option<WrBuilder>,
) -> Result<Arc<Qp>, c_int> {
    let qp_type = match QpType::try_from(init.qp_type) {
        Ok(t) => t,
        // Types that verbs.h knows and this NIC lacks.
        Err(_) if init.qp_type <= IBV_QPT_DRIVER => return Err(libc::EOPNOTSUPP),
        Err(_) => return Err(libc::EINVAL),
    };
    let context = pd.context;
    let nic = context.nic;
    let can = &nic.capabilities;
    let needs_ethernet = qp_type == QpType::RawPacket;
    if !can.supports_qp_type(qp_type)
        || (needs_ethernet && context.device.link_layer() != LinkLayer::Ethernet)
    {
        return Err(libc::EOPNOTSUPP);
    }
    if !init.srq.is_null() {
        can.require_feature(OptionalFeature::Srq)?;
    }
    let queues = QpQueues::from_init_attr(qp_type, init)?;
    queues.require_same_device(context)?;
    let sends_xrc = qp_type == QpType::XrcSend;
    set_granted_caps(&mut init.cap, sends_xrc, queues.srq.is_some(), &can.limits)?;
    let mut abi = ibv_qp::zeroed();
    abi.context = context.handle();
    abi.qp_context = init.qp_context;
    abi.pd = pd.handle();
    abi.send_cq = init.send_cq;
    abi.recv_cq = init.recv_cq;
    abi.srq = init.srq;
    abi.qp_type = init.qp_type;
    let (number, domain) = (pd.local_number, Some(Arc::clone(&pd)));
    let qp = registry::objects_of_nic(context.nic).add_qp(context.nic, |index| {
        abi.handle = u32::try_from(index).map_err(|_| libc::ENOMEM)?;
        let new = NewQp {
            context,
            abi,
            qp_type,
            pd_number: number,
            held_pd: domain,
            send_cq: queues.send_cq,
            recv_cq: queues.recv_cq,
            srq: queues.srq,
            init_attr: *init,
            builder,
            xrc_role: if sends_xrc {
                XrcRole::Send
            } else {
                XrcRole::NotXrc
            },
            rss_table: None,
        };
        Qp::new(index, new).map(Arc::new).ok_or(libc::ENOMEM)
    })?;
    qp.send_cq.add_users(1);
    qp.recv_cq.add_users(1);
    if let Some(srq) = &qp.srq {
        srq.qp_count.fetch_add(1, Ordering::Relaxed);
    }
    pd.add_user();
    qp.send_cq.add_sending_qp(&qp);
    if !sends_xrc {
        qp.recv_cq.add_receiving_qp(&qp);
    }
    Ok(qp)
}

/// Sets the sizes that a queue pair gets, from those that are asked for.
fn set_granted_caps(
    cap: &mut ibv_qp_cap,
    sends_xrc: bool,
    has_srq: bool,
    own: &Limits,
) -> Result<(), c_int> {
    if sends_xrc {
        cap.max_recv_wr = 0;
        cap.max_recv_sge = 0;
    }
    let limits = [
        ("max_send_wr", cap.max_send_wr, own.max_qp_wr),
        ("max_recv_wr", cap.max_recv_wr, own.max_qp_wr),
        ("max_send_sge", cap.max_send_sge, own.max_sge),
        ("max_recv_sge", cap.max_recv_sge, own.max_sge),
        ("max_inline_data", cap.max_inline_data, own.max_inline_data),
    ];
    for (name, value, max) in limits {
        if value > max {
            return Err(why::einval_because(|| {
                format!("cap.{name} is {value}, and the device has at most {max}")
            }));
        }
    }
    // A WQE has room for inline payload in place of its SGEs, as on other devices (rxe_qp_init_req of
    // linux:drivers/infiniband/sw/rxe/rxe_qp.c). Some programs send a few bytes inline and ask for none.
    let sges = cap.max_send_sge * SGE_BYTES;
    cap.max_inline_data = cap.max_inline_data.max(sges.min(own.max_inline_data));
    if has_srq {
        cap.max_recv_wr = 0;
        cap.max_recv_sge = 0;
    }
    Ok(())
}

/// Makes a queue pair that receives for an XRC domain. It has no CQs, and needs no protection domain. A protection
/// domain that the program names is only returned in the handle: rdma_cm takes it from the queue pair.
fn create_xrc_recv(
    context: *mut ibv_context,
    init: &ibv_qp_init_attr_ex,
) -> Result<*mut ibv_qp, c_int> {
    let c = context_of(context)?;
    if !c.nic.capabilities.supports_qp_type(QpType::XrcRecv) {
        return Err(libc::EOPNOTSUPP);
    }
    let handle = live_handles::find_object::<XrcdHandle>(init.xrcd).ok_or(libc::EINVAL)?;
    let domain = &handle.domain;
    c.require_same_device(domain.cq_seen_by_peers.context)?;
    let mut abi = ibv_qp::zeroed();
    abi.context = context;
    let mut named = None;
    if init.comp_mask & IBV_QP_INIT_ATTR_PD != 0 {
        named = Pd::find_usable(init.pd);
        abi.pd = init.pd;
    }
    abi.qp_context = init.qp_context;
    abi.qp_type = init.qp_type;
    let mut init_attr = ibv_qp_init_attr::zeroed();
    init_attr.qp_context = init.qp_context;
    init_attr.qp_type = init.qp_type;
    let qp = registry::objects_of_nic(c.nic).add_qp(c.nic, |index| {
        abi.handle = u32::try_from(index).map_err(|_| libc::ENOMEM)?;
        let new = NewQp {
            context: c,
            abi,
            qp_type: QpType::XrcRecv,
            pd_number: OwningPdOrQp::NO_DOMAIN,
            held_pd: named,
            send_cq: Arc::clone(&domain.cq_seen_by_peers),
            recv_cq: Arc::clone(&domain.cq_seen_by_peers),
            srq: None,
            init_attr,
            builder: None,
            xrc_role: XrcRole::Recv(Arc::clone(domain), Arc::clone(&handle.qp_and_srq_count)),
            rss_table: None,
        };
        Qp::new(index, new).map(Arc::new).ok_or(libc::ENOMEM)
    })?;
    if let Some(pd) = &qp.held_pd {
        pd.add_user();
    }
    domain.cq_seen_by_peers.add_users(2);
    handle.qp_and_srq_count.fetch_add(1, Ordering::Relaxed);
    domain.add_receiving_qp(&qp);
    Ok(live_handles::make_handle(qp))
}

/// Executes `ibv_open_qp(3)`: adds a use of an XRC receive queue pair. The queue pair ends when each of its users has
/// destroyed it.
pub(super) fn open_qp(
    context: *mut ibv_context,
    attr: In<'_, ibv_qp_open_attr>,
) -> Result<*mut ibv_qp, c_int> {
    let _hold_off = cancellation::HoldOff::new();
    const NEEDED_OPEN_ATTR_FLAGS: u32 =
        IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
    let context = context_of(context)?;
    let attr = attr.get()?;
    if attr.comp_mask & !(NEEDED_OPEN_ATTR_FLAGS | IBV_QP_OPEN_ATTR_CONTEXT) != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    if attr.comp_mask & NEEDED_OPEN_ATTR_FLAGS != NEEDED_OPEN_ATTR_FLAGS
        || attr.qp_type != IBV_QPT_XRC_RECV
    {
        return Err(libc::EINVAL);
    }
    let handle = live_handles::find_object::<XrcdHandle>(attr.xrcd).ok_or(libc::EINVAL)?;
    let qp = registry::objects_of_nic(context.nic)
        .qp_by_number(attr.qp_num)
        .ok_or(libc::EINVAL)?;
    let same =
        matches!(&qp.xrc_role, XrcRole::Recv(domain, _) if Arc::ptr_eq(domain, &handle.domain));
    if !same {
        return Err(libc::EINVAL);
    }
    qp.open_count.fetch_add(1, Ordering::Relaxed);
    Ok(live_handles::make_handle(qp))
}

pub(super) fn query_qp(
    qp: *mut ibv_qp,
    attr: Out<'_, ibv_qp_attr>,
    _mask: c_int,
    init: Out<'_, ibv_qp_init_attr>,
) -> Result<(), c_int> {
    let (now, at_creation) = live_handles::find_object::<Qp>(qp)
        .ok_or(libc::EINVAL)?
        .query();
    attr.put(now);
    init.put(at_creation);
    Ok(())
}

pub(super) fn modify_qp(
    qp: *mut ibv_qp,
    attr: In<'_, ibv_qp_attr>,
    mask: c_int,
) -> Result<(), c_int> {
    let qp = live_handles::find_object::<Qp>(qp).ok_or(libc::EINVAL)?;
    qp.modify(attr.get()?, mask)
}

pub(super) fn destroy_qp(handle: *mut ibv_qp) -> Result<(), c_int> {
    let qp = live_handles::find_object::<Qp>(handle).ok_or(libc::EINVAL)?;
    // "ibv_destroy_qp() fails if the QP is attached to a multicast group": the man page. So do flows
    // (`ib_destroy_qp_user` of linux:drivers/infiniband/core/verbs.c counts both).
    require_unused(&qp.multicast_group_or_flow_count)?;
    if qp.open_count.fetch_sub(1, Ordering::AcqRel) > 1 {
        live_handles::take_back_handle::<Qp>(handle);
        return Ok(());
    }
    if !live_handles::mark_being_destroyed::<Qp>(handle) {
        return Err(libc::EINVAL);
    }
    qp.destroy();
    comp_cntr::detach_all_counters_of_qp(qp.qpn);
    if let Some(pd) = &qp.held_pd {
        pd.remove_user();
    }
    live_handles::take_back_handle::<Qp>(handle);
    Ok(())
}
