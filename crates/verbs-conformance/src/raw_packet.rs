//! Raw packet queue pairs, flows and work queues: the operations of `verbs_context`.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr::NonNull;

use verbs_abi::*;

use crate::objects::{Buf, Context, Cq, Pd, Qp, QpInitAttr};
use crate::test_env::TestEnv;
use crate::wr::{RecvWr, RefusedPostlist, link_recv, recv};
use crate::xrc::{errno, extended_ops};

/// A raw packet queue pair with its own context. The fields are dropped in the order of declaration.
pub struct RawPacketQp {
    /// Flows that steer packets to the queue pair.
    pub flows: Vec<InstalledFlow>,
    /// The queue pair.
    pub qp: Qp,
    /// Completion queue of both queues.
    pub cq: Cq,
    /// Protection domain.
    pub pd: Pd,
    /// Context of the device.
    pub ctx: Context,
}

impl RawPacketQp {
    /// Creates a raw packet queue pair in RTS on a new context.
    #[must_use]
    #[track_caller]
    pub fn new(env: &TestEnv) -> Self {
        Self::create_in_rts_on_context(&Context::open(env))
    }

    /// Creates a raw packet queue pair in RTS on `ctx`.
    #[must_use]
    #[track_caller]
    pub fn create_in_rts_on_context(ctx: &Context) -> Self {
        let (pd, cq) = (ctx.alloc_pd(), ctx.create_cq(64));
        let qp = pd.create_qp(&mut QpInitAttr::new(IBV_QPT_RAW_PACKET, &cq, &cq));
        let raw = Self {
            flows: Vec::new(),
            qp,
            cq,
            pd,
            ctx: ctx.clone(),
        };
        raw.to_rts();
        raw
    }

    /// Moves the queue pair from RESET to RTS; only the transition to INIT takes attributes.
    #[track_caller]
    pub fn to_rts(&self) {
        let mut attr = ibv_qp_attr::zeroed();
        attr.qp_state = IBV_QPS_INIT;
        attr.port_num = self.ctx.env().settings.port;
        self.qp
            .modify(&attr, IBV_QP_STATE | IBV_QP_PORT)
            .expect("to INIT");
        self.qp.move_to_state(IBV_QPS_RTR);
        self.qp.move_to_state(IBV_QPS_RTS);
    }

    /// Creates a flow that steers packets matching `rule` to the queue pair.
    #[track_caller]
    pub fn add_flow(&mut self, rule: &FlowAttr) {
        let flow = InstalledFlow::new(&self.ctx, &self.qp, rule).expect("ibv_create_flow");
        self.flows.push(flow);
    }
}

/// Returns the flow specification that matches the destination address `to`.
#[must_use]
pub fn eth_destination_spec(to: [u8; 6]) -> ibv_flow_spec_eth {
    let mut spec = ibv_flow_spec_eth::zeroed();
    spec.r#type = IBV_FLOW_SPEC_ETH;
    spec.size = u16::try_from(size_of::<ibv_flow_spec_eth>()).expect("short");
    spec.val.dst_mac = to;
    spec.mask.dst_mac = [0xff; 6];
    spec
}

/// The argument of `ibv_create_flow`.
#[derive(Clone)]
pub struct FlowAttr {
    /// The attributes of the flow; `unaligned_attr_and_specs` fills in `size` and `num_of_specs`.
    pub attr: ibv_flow_attr,
    /// The specifications as bytes; some bytes are padding.
    spec_bytes: Vec<MaybeUninit<u8>>,
    spec_count: u8,
}

impl FlowAttr {
    /// Returns a rule of the given flow type with priority 0 and without specifications.
    #[must_use]
    pub fn new(env: &TestEnv, kind: ibv_flow_attr_type) -> Self {
        let mut attr = ibv_flow_attr::zeroed();
        attr.r#type = kind;
        attr.port = env.settings.port;
        Self {
            attr,
            spec_bytes: Vec::new(),
            spec_count: 0,
        }
    }

    /// Returns a rule that matches frames to an Ethernet address.
    #[must_use]
    pub fn matching_ethernet_destination(env: &TestEnv, mac: [u8; 6]) -> Self {
        Self::new(env, IBV_FLOW_ATTR_NORMAL).with_spec(eth_destination_spec(mac))
    }

    /// Sets the priority.
    #[must_use]
    pub fn with_priority(mut self, priority: u16) -> Self {
        self.attr.priority = priority;
        self
    }

    /// Adds a specification.
    #[must_use]
    pub fn with_spec<T: Copy>(mut self, spec: T) -> Self {
        self.spec_bytes.extend(bytes_of(&spec));
        self.spec_count += 1;
        self
    }

    /// Returns attributes and specifications at an odd address, because programs pack these structures.
    fn unaligned_attr_and_specs(&self) -> Vec<MaybeUninit<u8>> {
        let mut attr = self.attr;
        attr.num_of_specs = self.spec_count;
        attr.size =
            u16::try_from(size_of::<ibv_flow_attr>() + self.spec_bytes.len()).expect("short");
        let mut bytes = vec![MaybeUninit::new(0)];
        bytes.extend(bytes_of(&attr));
        bytes.extend(&self.spec_bytes);
        bytes
    }
}

fn bytes_of<T: Copy>(value: &T) -> &[MaybeUninit<u8>] {
    // SAFETY: the slice covers exactly the bytes of `value`; some may be padding, which `MaybeUninit`
    // permits.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast(), size_of::<T>()) }
}

/// A flow, destroyed when dropped.
pub struct InstalledFlow {
    raw: NonNull<ibv_flow>,
    ctx: Context,
    _qp: Qp,
}

impl InstalledFlow {
    /// Calls `ibv_create_flow`.
    ///
    /// # Errors
    /// Returns the errno of the call.
    pub fn new(ctx: &Context, qp: &Qp, rule: &FlowAttr) -> Result<Self, i32> {
        let mut bytes = rule.unaligned_attr_and_specs();
        let create = extended_ops(ctx).ibv_create_flow.ok_or(libc::EOPNOTSUPP)?;
        // SAFETY: a live queue pair; the attributes and their specifications begin at the second byte.
        let raw = unsafe { create(qp.raw(), bytes.as_mut_ptr().add(1).cast()) };
        Ok(Self {
            raw: NonNull::new(raw).ok_or_else(errno)?,
            ctx: ctx.clone(),
            _qp: qp.clone(),
        })
    }
}

impl Drop for InstalledFlow {
    fn drop(&mut self) {
        let destroy = extended_ops(&self.ctx).ibv_destroy_flow;
        // SAFETY: a live flow, destroyed once.
        let errno = unsafe { destroy.expect("it was created")(self.raw.as_ptr()) };
        assert!(
            errno == 0 || std::thread::panicking(),
            "ibv_destroy_flow: {errno}"
        );
    }
}

/// A work queue of 16 WRs, destroyed when dropped.
pub struct Wq {
    raw: NonNull<ibv_wq>,
    is_destroyed: bool,
    pd: Pd,
    /// Completion queue of the receives.
    pub cq: Cq,
}

impl Wq {
    /// Calls `ibv_create_wq`.
    ///
    /// # Errors
    /// Returns the errno of the call.
    pub fn new(pd: &Pd, cq: &Cq) -> Result<Self, i32> {
        let mut attr = ibv_wq_init_attr::zeroed();
        attr.wq_type = IBV_WQT_RQ;
        attr.max_wr = 16;
        attr.max_sge = 2;
        attr.pd = pd.raw();
        attr.cq = cq.raw();
        let create = extended_ops(pd.ctx()).create_wq.ok_or(libc::EOPNOTSUPP)?;
        // SAFETY: live objects, readable attributes.
        let raw = unsafe { create(pd.ctx().raw(), &raw mut attr) };
        Ok(Self {
            raw: NonNull::new(raw).ok_or_else(errno)?,
            is_destroyed: false,
            pd: pd.clone(),
            cq: cq.clone(),
        })
    }

    /// Calls `ibv_modify_wq` for a state transition; returns the call's result.
    #[must_use]
    pub fn move_to_state(&self, state: ibv_wq_state) -> i32 {
        let mut attr = ibv_wq_attr::zeroed();
        attr.attr_mask = IBV_WQ_ATTR_STATE;
        attr.wq_state = state;
        let modify = extended_ops(self.pd.ctx())
            .modify_wq
            .expect("it was created");
        // SAFETY: a live work queue, readable attributes.
        unsafe { modify(self.raw.as_ptr(), &raw mut attr) }
    }

    /// Returns the state that the library has recorded.
    #[must_use]
    pub fn cached_state(&self) -> ibv_wq_state {
        // SAFETY: the work queue is live; the field is a plain number.
        unsafe { (*self.raw.as_ptr()).state }
    }

    /// Returns the number of the work queue, which its completions carry.
    #[must_use]
    pub fn number(&self) -> u32 {
        // SAFETY: the work queue is live.
        unsafe { (*self.raw.as_ptr()).wq_num }
    }

    /// Calls `ibv_post_wq_recv` for one WR.
    ///
    /// # Errors
    /// Returns the errno of the call, and the WR at which it stopped.
    pub fn post_recv(&self, wr_id: u64, to: &Buf) -> Result<(), RefusedPostlist> {
        let mut wrs: Vec<RecvWr> = vec![recv(wr_id, [to.whole_sge()])];
        let head = link_recv(&mut wrs);
        let mut bad = std::ptr::null_mut();
        // SAFETY: a live work queue; the list lives until the call returns.
        let errno = unsafe {
            let post = (*self.raw.as_ptr()).post_recv.expect("every one has it");
            post(self.raw.as_ptr(), head, &raw mut bad)
        };
        if errno == 0 {
            return Ok(());
        }
        let bad = std::ptr::eq(bad, head).then_some(0);
        Err(RefusedPostlist {
            errno,
            bad_wr_index: bad,
        })
    }

    /// Calls `ibv_destroy_wq` although the work queue may be in use; returns the call's result.
    #[must_use]
    pub fn try_destroy(&mut self) -> i32 {
        let destroy = extended_ops(self.pd.ctx())
            .destroy_wq
            .expect("it was created");
        // SAFETY: a live work queue.
        let errno = unsafe { destroy(self.raw.as_ptr()) };
        self.is_destroyed = errno == 0;
        errno
    }
}

impl Drop for Wq {
    fn drop(&mut self) {
        if !self.is_destroyed {
            let errno = self.try_destroy();
            assert!(
                errno == 0 || std::thread::panicking(),
                "ibv_destroy_wq: {errno}"
            );
        }
    }
}

/// An indirection table of work queues, destroyed when dropped.
pub struct IndTable {
    raw: NonNull<ibv_rwq_ind_table>,
    is_destroyed: bool,
    pd: Pd,
}

impl IndTable {
    /// Calls `ibv_create_rwq_ind_table` for 2 to the power of `log_size` entries, which repeat the work
    /// queues in turn.
    ///
    /// # Errors
    /// Returns the errno of the call.
    pub fn new(pd: &Pd, wqs: &[Wq], log_size: u32) -> Result<Self, i32> {
        let entries = 1_usize.checked_shl(log_size).unwrap_or(0).min(1 << 16);
        let mut table: Vec<*mut ibv_wq> = wqs
            .iter()
            .map(|wq| wq.raw.as_ptr())
            .cycle()
            .take(entries)
            .collect();
        let mut attr = ibv_rwq_ind_table_init_attr {
            log_ind_tbl_size: log_size,
            ind_tbl: table.as_mut_ptr(),
            comp_mask: 0,
        };
        let create = extended_ops(pd.ctx()).create_rwq_ind_table;
        // SAFETY: a live context; the table has as many live work queues as `log_size` says.
        let raw = unsafe { create.ok_or(libc::EOPNOTSUPP)?(pd.ctx().raw(), &raw mut attr) };
        Ok(Self {
            raw: NonNull::new(raw).ok_or_else(errno)?,
            is_destroyed: false,
            pd: pd.clone(),
        })
    }

    /// Calls `ibv_create_qp_ex` for a queue pair that distributes packets over the table, by a hash of
    /// the header fields `fields`. The call does not use `cq`.
    ///
    /// # Errors
    /// Returns the errno of the call.
    pub fn try_create_rss_qp(&self, key: &mut [u8], fields: u64, cq: &Cq) -> Result<Qp, i32> {
        let mut attr = ibv_qp_init_attr_ex::zeroed();
        attr.qp_type = IBV_QPT_RAW_PACKET;
        attr.comp_mask =
            IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_RX_HASH | IBV_QP_INIT_ATTR_IND_TABLE;
        attr.pd = self.pd.raw();
        attr.rwq_ind_tbl = self.raw.as_ptr();
        attr.rx_hash_conf = ibv_rx_hash_conf {
            rx_hash_function: IBV_RX_HASH_FUNC_TOEPLITZ,
            rx_hash_key_len: u8::try_from(key.len()).expect("short"),
            rx_hash_key: key.as_mut_ptr(),
            rx_hash_fields_mask: fields,
        };
        let create = extended_ops(self.pd.ctx())
            .create_qp_ex
            .ok_or(libc::EOPNOTSUPP)?;
        // SAFETY: live objects, readable attributes.
        let raw = unsafe { create(self.pd.ctx().raw(), &raw mut attr) };
        Qp::adopt(raw, &self.pd, cq)
    }

    /// Calls `ibv_destroy_rwq_ind_table` although the table may be in use; returns the call's result.
    #[must_use]
    pub fn try_destroy(&mut self) -> i32 {
        let destroy = extended_ops(self.pd.ctx()).destroy_rwq_ind_table;
        // SAFETY: a live table.
        let errno = unsafe { destroy.expect("it was created")(self.raw.as_ptr()) };
        self.is_destroyed = errno == 0;
        errno
    }
}

impl Drop for IndTable {
    fn drop(&mut self) {
        if !self.is_destroyed {
            let errno = self.try_destroy();
            assert!(
                errno == 0 || std::thread::panicking(),
                "ibv_destroy_rwq_ind_table: {errno}"
            );
        }
    }
}

/// Calls `ibv_create_cq_ex` for a queue whose completions carry flow tags.
///
/// # Errors
/// Returns the errno of the call.
pub fn try_create_flow_tag_cq(ctx: &Context, cqe: u32) -> Result<Cq, i32> {
    let mut attr = ibv_cq_init_attr_ex::zeroed();
    attr.cqe = cqe;
    attr.wc_flags = IBV_WC_EX_WITH_FLOW_TAG;
    Cq::try_create_extended(ctx, &mut attr)
}

/// Polls a [`try_create_flow_tag_cq`], and returns the flow tag of the next completion; `None` if the queue is empty.
#[must_use]
pub fn poll_one_and_read_flow_tag(cq: &Cq) -> Option<u32> {
    let raw: *mut ibv_cq_ex = cq.raw().cast();
    let mut attr = ibv_poll_cq_attr::zeroed();
    // SAFETY: a live extended queue with these operations; readable attributes.
    unsafe {
        let (start, end, read) = ((*raw).start_poll?, (*raw).end_poll?, (*raw).read_flow_tag?);
        let result: c_int = start(raw, &raw mut attr);
        if result != 0 {
            return None;
        }
        let tag = read(raw);
        end(raw);
        Some(tag)
    }
}
