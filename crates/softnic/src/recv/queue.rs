//! Receive queues, of one queue pair or shared.

use super::*;

/// A receive WR in its queue: half a cache line. It holds the first SGE. If there are several, all of them are in
/// `RecvQueue::sges`.
#[derive(Clone, Copy)]
pub(super) struct RecvWqe {
    pub(super) wr_id: u64,
    pub(super) sge: ibv_sge,
    pub(super) num_sge: u32,
}

impl RecvWqe {
    const EMPTY: Self = Self {
        wr_id: 0,
        sge: ibv_sge {
            addr: 0,
            length: 0,
            lkey: 0,
        },
        num_sge: 0,
    };
}

/// A receive queue, of one queue pair or shared.
pub(crate) struct RecvQueue {
    pub(super) wqes: Box<[RecvWqe]>,
    /// The SGEs of WRs with several, `max_sge` places for each WR; empty if `max_sge` is at most 1.
    sges_of_multi_sge_wrs: Box<[ibv_sge]>,
    pub(super) max_sge: usize,
    pub(super) max_wr: u64,
    /// The protection domain of the buffers. A shared queue has its own (IBTA vol. 1, 10.2.9.1).
    pub(super) buffer_pd_number: u32,
    /// Number of WRs taken.
    pub(super) taken_wr_count: u64,
    /// Number of WRs posted.
    pub(super) posted_wr_count: u64,
    /// Limit of a shared receive queue below which an event is raised; 0 means none.
    pub(crate) srq_limit: u32,
    /// True if a message waits for a receive WR.
    pub(super) is_message_waiting: bool,
    /// The tag matching list, if the queue has one.
    pub(super) tag_list: Option<Box<TagList>>,
}

/// A receive WR that was taken from its queue.
pub(crate) struct TakenRecv<'a> {
    pub(crate) wr_id: u64,
    pub(super) sges: &'a [ibv_sge],
}

impl RecvQueue {
    /// Returns an empty queue, or `None` if there is no memory for it.
    pub(crate) fn new(max_wr: u32, max_sge: u32, pd: u32) -> Option<Self> {
        let slots = max_wr.max(1).next_power_of_two() as usize;
        let max_sge = max_sge as usize;
        let beside = if max_sge > 1 { slots * max_sge } else { 0 };
        Some(Self {
            wqes: crate::fallible_alloc::try_boxed_slice(RecvWqe::EMPTY, slots)?,
            sges_of_multi_sge_wrs: crate::fallible_alloc::try_boxed_slice(
                ibv_sge::zeroed(),
                beside,
            )?,
            max_sge,
            max_wr: u64::from(max_wr),
            buffer_pd_number: pd,
            taken_wr_count: 0,
            posted_wr_count: 0,
            srq_limit: 0,
            is_message_waiting: false,
            tag_list: None,
        })
    }

    /// Gives the queue a tag matching list with at most `max_entries` entries.
    pub(crate) fn enable_tag_matching(&mut self, max_entries: u32) {
        self.tag_list = Some(Box::new(TagList::new(max_entries)));
    }

    /// Returns the tag matching list.
    pub(crate) fn tag_list_mut(&mut self) -> Option<&mut TagList> {
        self.tag_list.as_deref_mut()
    }

    /// Returns true if a message finds a WR here, whatever its tag.
    pub(crate) fn has_wr_for_any_tag(&self) -> bool {
        self.len() != 0 && self.tag_list.is_none()
    }

    /// Returns the number of WRs in the queue.
    pub(crate) fn len(&self) -> u64 {
        self.posted_wr_count - self.taken_wr_count
    }

    pub(crate) fn max_wr(&self) -> u64 {
        self.max_wr
    }

    pub(crate) fn max_sge(&self) -> usize {
        self.max_sge
    }

    pub(crate) fn clear(&mut self) {
        self.taken_wr_count = self.posted_wr_count;
    }

    /// Adds a WR.
    ///
    /// # Errors
    /// `ENOMEM`: full; `EINVAL`: too many SGEs.
    #[inline(always)]
    pub(crate) fn post(&mut self, wr_id: u64, sges: &[ibv_sge]) -> Result<(), i32> {
        if sges.len() > self.max_sge {
            return Err(libc::EINVAL);
        }
        if self.len() >= self.max_wr {
            return Err(libc::ENOMEM);
        }
        let slot = self.posted_wr_count as usize & (self.wqes.len() - 1);
        let Some(wqe) = self.wqes.get_mut(slot) else {
            return Err(libc::ENOMEM);
        };
        wqe.wr_id = wr_id;
        #[allow(clippy::cast_possible_truncation)] // at most `max_sge`, a `u32`
        let num_sge = sges.len() as u32;
        wqe.num_sge = num_sge;
        if let [first, ..] = sges {
            // Copied field by field. A program has often just stored these fields one by one, and a wider load waits
            // until the stores have reached the cache.
            wqe.sge.addr = first.addr;
            wqe.sge.length = first.length;
            wqe.sge.lkey = first.lkey;
        }
        if sges.len() > 1 {
            self.sges_of_multi_sge_wrs[slot * self.max_sge..][..sges.len()].copy_from_slice(sges);
        }
        self.posted_wr_count += 1;
        Ok(())
    }

    /// Puts the WR that was taken last back to the front. No WR may have been posted since.
    pub(super) fn put_back_last_taken(&mut self) {
        self.taken_wr_count -= 1;
    }

    /// Returns true, once, if a message has been waiting for the WRs that were posted.
    #[inline]
    pub(crate) fn take_message_waiting_flag(&mut self) -> bool {
        std::mem::take(&mut self.is_message_waiting)
    }

    /// Takes the oldest WR.
    #[inline(always)]
    pub(crate) fn take_oldest(&mut self) -> Option<TakenRecv<'_>> {
        if self.taken_wr_count == self.posted_wr_count {
            return None;
        }
        let slot = self.taken_wr_count as usize & (self.wqes.len() - 1);
        let wqe = self.wqes.get(slot)?;
        self.taken_wr_count += 1;
        let sges = match wqe.num_sge {
            0 => &[],
            1 => std::slice::from_ref(&wqe.sge),
            several => &self.sges_of_multi_sge_wrs[slot * self.max_sge..][..several as usize],
        };
        Some(TakenRecv {
            wr_id: wqe.wr_id,
            sges,
        })
    }
}
