//! XRC domains, their shared receive queues, and XRC queue pairs of both kinds: the operations of
//! `verbs_context`.

use std::ffi::c_int;
use std::ptr::NonNull;

use verbs_abi::*;

use crate::objects::{Context, Cq, Pd, Qp, Srq};
use crate::wr::SendWr;

/// Returns the extended operations of a context.
pub(crate) fn extended_ops(ctx: &Context) -> &'static verbs_context {
    let before = std::mem::offset_of!(verbs_context, context);
    // SAFETY: a live context whose `abi_compat` has this value (asserted) lies in a `verbs_context`
    // (`verbs_get_ctx` of verbs.h). Both live equally long, and tests do not use the result longer.
    unsafe {
        assert_eq!((*ctx.raw()).abi_compat, __VERBS_ABI_IS_EXTENDED);
        &*ctx.raw().byte_sub(before).cast::<verbs_context>()
    }
}

pub(crate) fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// An XRC domain of `ibv_open_xrcd(3)`, closed when dropped.
pub struct XrcDomain {
    raw: NonNull<ibv_xrcd>,
    ctx: Context,
}

impl XrcDomain {
    /// Calls `ibv_open_xrcd` for a file; -1 means no file.
    ///
    /// # Errors
    /// Returns the errno of the call.
    pub fn open(ctx: &Context, fd: c_int, oflags: c_int) -> Result<Self, i32> {
        let mut attr = ibv_xrcd_init_attr {
            comp_mask: IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
            fd,
            oflags,
        };
        let open = extended_ops(ctx).open_xrcd.ok_or(libc::EOPNOTSUPP)?;
        // SAFETY: a live context, readable attributes.
        let raw = unsafe { open(ctx.raw(), &raw mut attr) };
        Ok(Self {
            raw: NonNull::new(raw).ok_or_else(errno)?,
            ctx: ctx.clone(),
        })
    }

    /// Calls `ibv_close_xrcd` although the domain may be in use, and returns the call's result. After a 0
    /// the domain must not be used.
    #[must_use]
    pub fn try_close(&self) -> i32 {
        // SAFETY: a live domain.
        unsafe { extended_ops(&self.ctx).close_xrcd.expect("it was opened")(self.raw.as_ptr()) }
    }

    /// Creates a shared receive queue of 16 WRs whose completions go to `cq`. Also returns the number of the
    /// queue.
    ///
    /// # Errors
    /// Returns the errno of `ibv_create_srq_ex`.
    pub fn create_srq(&self, pd: &Pd, cq: &Cq) -> Result<(Srq, u32), i32> {
        let mut attr = ibv_srq_init_attr_ex::zeroed();
        attr.attr.max_wr = 16;
        attr.attr.max_sge = 2;
        attr.comp_mask = IBV_SRQ_INIT_ATTR_TYPE
            | IBV_SRQ_INIT_ATTR_PD
            | IBV_SRQ_INIT_ATTR_XRCD
            | IBV_SRQ_INIT_ATTR_CQ;
        attr.srq_type = IBV_SRQT_XRC;
        attr.pd = pd.raw();
        attr.xrcd = self.raw.as_ptr();
        attr.cq = cq.raw();
        let ops = extended_ops(&self.ctx);
        let mut number = 0;
        // SAFETY: live objects; `number` is writable.
        unsafe {
            let raw = ops.create_srq_ex.ok_or(libc::EOPNOTSUPP)?(self.ctx.raw(), &raw mut attr);
            let srq = Srq::adopt(raw, pd)?;
            let errno = ops.get_srq_num.expect("there are XRC SRQs")(raw, &raw mut number);
            assert_eq!(errno, 0, "ibv_get_srq_num");
            Ok((srq, number))
        }
    }

    /// Creates a queue pair that receives for the domain. PD and CQ are only kept alive with the queue pair.
    ///
    /// # Errors
    /// Returns the errno of `ibv_create_qp_ex`.
    pub fn create_recv_qp(&self, pd: &Pd, cq: &Cq) -> Result<Qp, i32> {
        let mut attr = ibv_qp_init_attr_ex::zeroed();
        attr.qp_type = IBV_QPT_XRC_RECV;
        attr.comp_mask = IBV_QP_INIT_ATTR_XRCD;
        attr.xrcd = self.raw.as_ptr();
        let create = extended_ops(&self.ctx)
            .create_qp_ex
            .ok_or(libc::EOPNOTSUPP)?;
        // SAFETY: live objects.
        let raw = unsafe { create(self.ctx.raw(), &raw mut attr) };
        Qp::adopt(raw, pd, cq)
    }

    /// Calls `ibv_open_qp` for a receiving queue pair.
    ///
    /// # Errors
    /// Returns the errno of the call.
    pub fn open_recv_qp_by_number(&self, qpn: u32, pd: &Pd, cq: &Cq) -> Result<Qp, i32> {
        let mut attr = ibv_qp_open_attr::zeroed();
        attr.comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
        attr.qp_num = qpn;
        attr.xrcd = self.raw.as_ptr();
        attr.qp_type = IBV_QPT_XRC_RECV;
        let open = extended_ops(&self.ctx).open_qp.ok_or(libc::EOPNOTSUPP)?;
        // SAFETY: live objects.
        let raw = unsafe { open(self.ctx.raw(), &raw mut attr) };
        Qp::adopt(raw, pd, cq)
    }
}

impl Drop for XrcDomain {
    fn drop(&mut self) {
        let errno = self.try_close();
        if errno != 0 && !std::thread::panicking() {
            panic!("ibv_close_xrcd returned {errno}");
        }
    }
}

/// Calls `ibv_modify_cq`: an event occurs after `count` completions, or `period_us` microseconds after the
/// first.
///
/// # Errors
/// Returns the errno of the call.
pub fn set_cq_event_moderation(
    ctx: &Context,
    cq: &Cq,
    count: u16,
    period_us: u16,
) -> Result<(), i32> {
    let mut attr = ibv_modify_cq_attr {
        attr_mask: IBV_CQ_ATTR_MODERATE,
        moderate: ibv_moderate_cq {
            cq_count: count,
            cq_period: period_us,
        },
    };
    let modify = extended_ops(ctx).modify_cq.ok_or(libc::EOPNOTSUPP)?;
    // SAFETY: live objects, readable attributes.
    match unsafe { modify(cq.raw(), &raw mut attr) } {
        0 => Ok(()),
        errno => Err(errno),
    }
}

/// Creates objects by the extended verbs, each with `bit` set in the `comp_mask` of its attributes.
///
/// Returns the errno of each refusal, and 0 if the verb accepts the bit.
#[must_use]
pub fn create_errnos_with_comp_mask_bit(
    ctx: &Context,
    pd: &Pd,
    cq: &Cq,
    bit: u32,
) -> [(&'static str, i32); 7] {
    let mut extended = ibv_cq_init_attr_ex::zeroed();
    extended.cqe = 8;
    extended.comp_mask = bit;
    let mut qp = ibv_qp_init_attr_ex::zeroed();
    (qp.send_cq, qp.recv_cq, qp.pd) = (cq.raw(), cq.raw(), pd.raw());
    qp.qp_type = IBV_QPT_RC;
    qp.comp_mask = IBV_QP_INIT_ATTR_PD | bit;
    let mut srq = ibv_srq_init_attr_ex::zeroed();
    srq.attr.max_wr = 8;
    srq.pd = pd.raw();
    srq.comp_mask = IBV_SRQ_INIT_ATTR_PD | bit;
    let mut domain = ibv_parent_domain_init_attr::zeroed();
    domain.pd = pd.raw();
    domain.comp_mask = bit;
    let mut xrcd = ibv_xrcd_init_attr {
        comp_mask: IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS | bit,
        fd: -1,
        oflags: libc::O_CREAT,
    };
    let mut open = ibv_qp_open_attr::zeroed();
    open.comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE | bit;
    open.qp_type = IBV_QPT_XRC_RECV;
    let mut table = ibv_rwq_ind_table_init_attr {
        log_ind_tbl_size: 0,
        ind_tbl: std::ptr::null_mut(),
        comp_mask: bit,
    };
    // Returns the errno of the preceding call; a missing operation counts as not supported.
    let errno = |refused: Option<bool>| match refused {
        Some(true) => std::io::Error::last_os_error().raw_os_error().unwrap_or(0),
        Some(false) => 0,
        None => libc::EOPNOTSUPP,
    };
    let (ops, raw) = (extended_ops(ctx), ctx.raw());
    // SAFETY: a live context, and readable attributes that contain live objects or none.
    let errnos = unsafe {
        [
            errno(
                ops.create_cq_ex
                    .map(|f| f(raw, &raw mut extended).is_null()),
            ),
            errno(ops.create_qp_ex.map(|f| f(raw, &raw mut qp).is_null())),
            errno(ops.create_srq_ex.map(|f| f(raw, &raw mut srq).is_null())),
            errno(
                ops.alloc_parent_domain
                    .map(|f| f(raw, &raw mut domain).is_null()),
            ),
            errno(ops.open_xrcd.map(|f| f(raw, &raw mut xrcd).is_null())),
            errno(ops.open_qp.map(|f| f(raw, &raw mut open).is_null())),
            errno(
                ops.create_rwq_ind_table
                    .map(|f| f(raw, &raw mut table).is_null()),
            ),
        ]
    };
    let verbs = [
        "ibv_create_cq_ex",
        "ibv_create_qp_ex",
        "ibv_create_srq_ex",
        "ibv_alloc_parent_domain",
        "ibv_open_xrcd",
        "ibv_open_qp",
        "ibv_create_rwq_ind_table",
    ];
    std::array::from_fn(|i| (verbs[i], errnos[i]))
}

/// Sets the remote shared receive queue of a work request.
#[must_use]
pub fn with_remote_srqn(mut wr: SendWr, srqn: u32) -> SendWr {
    wr.raw.qp_type.xrc = ibv_send_wr_qp_type_xrc { remote_srqn: srqn };
    wr
}
