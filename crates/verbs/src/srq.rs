//! Shared receive queues.

#![allow(unsafe_code)]

use std::fmt;
use std::sync::Arc;

use verbs_abi as abi;

use crate::cq_srq_ids::{context_from_id, next_cq_or_srq_id};
use crate::error::{CreateError, ModifySrqError, PostError, check_returned_errno, last_error};
use crate::pd::{PdInner, ProtectionDomain};
use crate::recv_list::RecvList;

/// A receive queue from which several queue pairs take RECVs. Clones are the same queue.
#[derive(Clone)]
pub struct SharedReceiveQueue {
    pub(crate) inner: Arc<SrqInner>,
}

pub(crate) struct SrqInner {
    pub(crate) pd: Arc<PdInner>,
    pub(crate) raw: *mut abi::ibv_srq,
    id: u64,
    max_wr: u32,
    max_sge: u32,
}

// SAFETY: verbs on an SRQ are thread-safe, see `ContextInner`.
unsafe impl Send for SrqInner {}
// SAFETY: as for Send.
unsafe impl Sync for SrqInner {}

impl Drop for SrqInner {
    fn drop(&mut self) {
        // SAFETY: made by ibv_create_srq of this table; every QP on it held an Arc of this and is
        // gone.
        unsafe { (self.pd.context.symbols.ibv_destroy_srq)(self.raw) };
    }
}

impl ProtectionDomain {
    /// Creates a shared receive queue for at least `max_wr` RECVs of at most `max_sge` SGEs.
    ///
    /// # Errors
    /// - [`CreateError::LimitExceeded`] (`EINVAL`): a size is beyond `max_srq_wr` or `max_srq_sge` of the device.
    /// - [`CreateError::NoResources`] (`ENOMEM`): the device has no more queues.
    /// - [`CreateError::Refused`] (any other errno).
    pub fn create_srq(&self, max_wr: u32, max_sge: u32) -> Result<SharedReceiveQueue, CreateError> {
        let id = next_cq_or_srq_id();
        let mut init = abi::ibv_srq_init_attr {
            srq_context: context_from_id(id),
            attr: abi::ibv_srq_attr {
                max_wr,
                max_sge,
                srq_limit: 0,
            },
        };
        // SAFETY: live PD, valid attributes.
        let raw = unsafe { (self.inner.context.symbols.ibv_create_srq)(self.inner.raw, &mut init) };
        if raw.is_null() {
            let source = last_error();
            let limits = self.context().query_device();
            let (most_wr, most_sge) = limits.map_or((u32::MAX, u32::MAX), |device| {
                (device.max_srq_wr, device.max_srq_sge)
            });
            let sizes = [("max_wr", max_wr, most_wr), ("max_sge", max_sge, most_sge)];
            return Err(CreateError::of_sizes("ibv_create_srq", source, &sizes));
        }
        let (max_wr, max_sge) = (init.attr.max_wr, init.attr.max_sge);
        Ok(SharedReceiveQueue {
            inner: Arc::new(SrqInner {
                pd: Arc::clone(&self.inner),
                raw,
                id,
                max_wr,
                max_sge,
            }),
        })
    }
}

impl SharedReceiveQueue {
    /// Returns a number that identifies this SRQ in async events; never reused in this process.
    pub fn id(&self) -> u64 {
        self.inner.id
    }

    /// Returns the number of RECVs that the queue can hold.
    pub fn max_wr(&self) -> u32 {
        self.inner.max_wr
    }

    /// Makes a list of up to `capacity` RECVs for this queue.
    pub fn recv_list(&self, capacity: usize) -> RecvList {
        RecvList::new(
            &self.inner.pd.context,
            capacity,
            self.inner.max_sge.max(1) as usize,
        )
    }

    /// Posts a list of RECVs.
    ///
    /// # Errors
    /// As [`QueuePair::post_recv`](crate::QueuePair::post_recv).
    pub fn post_recv(&self, list: &mut RecvList) -> Result<(), PostError> {
        list.post(
            ..,
            &self.inner.pd.context,
            "ibv_post_srq_recv",
            |wr, bad| {
                // SAFETY: live SRQ; the list is linked and its SGE arrays live (`RecvList::post`).
                unsafe { abi::ibv_post_srq_recv(self.inner.raw, wr, bad) }
            },
        )
    }

    /// Requests an async event for the time when fewer than `limit` RECVs are left.
    ///
    /// # Errors
    /// - [`ModifySrqError::LimitExceeded`] (`EINVAL`): the limit is beyond the size of the queue.
    /// - [`ModifySrqError::Refused`] (any other errno).
    pub fn set_limit(&self, limit: u32) -> Result<(), ModifySrqError> {
        let mut attr = abi::ibv_srq_attr {
            max_wr: 0,
            max_sge: 0,
            srq_limit: limit,
        };
        // SAFETY: live SRQ, valid attributes.
        let ret = unsafe {
            (self.inner.pd.context.symbols.ibv_modify_srq)(
                self.inner.raw,
                &mut attr,
                abi::IBV_SRQ_LIMIT,
            )
        };
        check_returned_errno(ret)
            .map_err(|e| ModifySrqError::of("ibv_modify_srq", e, limit, self.inner.max_wr))
    }
}

impl fmt::Debug for SharedReceiveQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedReceiveQueue({})", self.inner.id)
    }
}
