//! Shared receive queues for tag matching: the operations of `verbs_context`.

use verbs_abi::*;

use crate::objects::{Context, Cq, Pd, Srq};
use crate::xrc::extended_ops;

/// Operation of a tag matching header (`enum ibv_tmh_op` of `infiniband/tm_types.h`): message without a tag.
pub const TMH_OP_NO_TAG: u8 = 0;
/// Operation of a tag matching header: the message carries the address of its payload (rendezvous).
pub const TMH_OP_RNDV: u8 = 1;
/// Operation of a tag matching header: the payload of a rendezvous message was read.
pub const TMH_OP_FIN: u8 = 2;
/// Operation of a tag matching header: the payload follows.
pub const TMH_OP_EAGER: u8 = 3;

/// Returns a tag matching header: `struct ibv_tmh`.
#[must_use]
pub fn tmh_header(operation: u8, app: u32, tag: u64) -> Vec<u8> {
    let mut bytes = vec![operation, 0, 0, 0];
    bytes.extend(app.to_be_bytes());
    bytes.extend(tag.to_be_bytes());
    bytes
}

/// A shared receive queue of 16 WRs for tag matching. The fields are dropped in the order of declaration.
pub struct TagSrq {
    /// The shared receive queue.
    pub srq: Srq,
    /// Completion queue of the tag operations.
    pub cq: Cq,
    ctx: Context,
}

impl TagSrq {
    /// Calls `ibv_create_srq_ex` for a queue with `max_num_tags` tags, whose completions go to `cq`.
    ///
    /// # Errors
    /// Returns the errno of the call.
    pub fn new(pd: &Pd, cq: &Cq, max_num_tags: u32) -> Result<Self, i32> {
        let mut attr = ibv_srq_init_attr_ex::zeroed();
        attr.attr.max_wr = 16;
        attr.attr.max_sge = 2;
        attr.comp_mask = IBV_SRQ_INIT_ATTR_TYPE
            | IBV_SRQ_INIT_ATTR_PD
            | IBV_SRQ_INIT_ATTR_CQ
            | IBV_SRQ_INIT_ATTR_TM;
        attr.srq_type = IBV_SRQT_TM;
        attr.pd = pd.raw();
        attr.cq = cq.raw();
        attr.tm_cap = ibv_tm_cap {
            max_num_tags,
            max_ops: 16,
        };
        let ctx = pd.ctx().clone();
        let create = extended_ops(&ctx).create_srq_ex.ok_or(libc::EOPNOTSUPP)?;
        // SAFETY: live objects, readable attributes.
        let raw = unsafe { create(ctx.raw(), &raw mut attr) };
        Ok(Self {
            srq: Srq::adopt(raw, pd)?,
            cq: cq.clone(),
            ctx,
        })
    }

    /// Calls `ibv_post_srq_ops` for one operation, and returns the handle, which only an addition sets.
    ///
    /// # Errors
    /// Returns the errno of the call, after checking that `bad_wr` points at the work request.
    pub fn post_tag_operation(&self, mut wr: ibv_ops_wr) -> Result<u32, i32> {
        post_srq_ops(&self.ctx, &self.srq, &mut wr).map(|()| wr.tm.handle)
    }

    /// Adds a receive for messages whose tag equals `tag` in the bits of `mask`. The operation and its
    /// receive both have `wr_id`.
    ///
    /// # Errors
    /// Returns the errors of [`post_tag_operation`](Self::post_tag_operation).
    pub fn post_tag_add(
        &self,
        wr_id: u64,
        (tag, mask): (u64, u64),
        sges: &[ibv_sge],
    ) -> Result<u32, i32> {
        let mut wr = signaled_tag_operation_wr(IBV_WR_TAG_ADD, wr_id);
        wr.tm.add = ibv_ops_wr_tm_add {
            recv_wr_id: wr_id,
            sg_list: sges.as_ptr().cast_mut(),
            num_sge: i32::try_from(sges.len()).expect("few"),
            tag,
            mask,
        };
        self.post_tag_operation(wr)
    }

    /// Removes a receive that [`add`](Self::post_tag_add) has added.
    ///
    /// # Errors
    /// Returns the errors of [`post_tag_operation`](Self::post_tag_operation).
    pub fn post_tag_delete(&self, wr_id: u64, handle: u32) -> Result<(), i32> {
        let mut wr = signaled_tag_operation_wr(IBV_WR_TAG_DEL, wr_id);
        wr.tm.handle = handle;
        self.post_tag_operation(wr).map(|_| ())
    }

    /// Reports that the program has handled `handled` unexpected messages.
    ///
    /// # Errors
    /// Returns the errors of [`post_tag_operation`](Self::post_tag_operation).
    pub fn post_tag_sync(&self, wr_id: u64, handled: u32) -> Result<(), i32> {
        let mut wr = signaled_tag_operation_wr(IBV_WR_TAG_SYNC, wr_id);
        wr.flags |= IBV_OPS_TM_SYNC.cast_signed();
        wr.tm.unexpected_cnt = handled;
        self.post_tag_operation(wr).map(|_| ())
    }
}

/// Calls `ibv_post_srq_ops` for one operation.
///
/// # Errors
/// Returns the errno of the call, after checking that `bad_wr` points at the work request.
pub fn post_srq_ops(ctx: &Context, srq: &Srq, wr: &mut ibv_ops_wr) -> Result<(), i32> {
    let post = extended_ops(ctx).post_srq_ops.ok_or(libc::EOPNOTSUPP)?;
    let mut bad = std::ptr::null_mut();
    // SAFETY: a live queue, and a list with one element.
    let errno = unsafe { post(srq.raw(), wr, &raw mut bad) };
    if errno == 0 {
        return Ok(());
    }
    assert!(std::ptr::eq(bad, wr), "the bad work request is named");
    Err(errno)
}

/// Returns a signaled tag matching operation without operands.
#[must_use]
pub fn signaled_tag_operation_wr(opcode: ibv_ops_wr_opcode, wr_id: u64) -> ibv_ops_wr {
    let mut wr = ibv_ops_wr::zeroed();
    wr.wr_id = wr_id;
    wr.opcode = opcode;
    wr.flags = IBV_OPS_SIGNALED.cast_signed();
    wr
}
