//! Lists of receive WRs.

#![allow(unsafe_code)]

use std::fmt;
use std::ops::RangeBounds;
use std::sync::Arc;

use verbs_abi as abi;

use crate::context::ContextRef;
use crate::error::{PostError, PostErrorKind};
use crate::payload::ScatterDestination;
use crate::payload::sealed::WrSpace;
use crate::wr_array::{StableArray, clipped_bounds, post_error};

/// A list of receive WRs, posted with one call.
///
/// ```
/// # let context = verbs::Provider::softnic().device(None)?.open()?;
/// # let (pd, cq) = (context.alloc_pd()?, context.create_cq(16)?);
/// # let qp = pd.qp_builder::<verbs::Rc>(&cq, &cq).build()?;
/// let mr = pd.alloc(16 * 64, verbs::Access::LOCAL_WRITE)?;
/// let mut recvs = qp.recv_list(16);
/// for i in 0..16 {
///     recvs.recv(mr.slice(i * 64..(i + 1) * 64)?, i as u64);
/// }
/// qp.post_recv(&mut recvs)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct RecvList {
    wrs: StableArray<RecvSlot>,
    /// The SGEs, for lists whose WRs have more than one.
    sges: StableArray<abi::ibv_sge>,
    context: ContextRef,
    len: usize,
    max_filled: usize,
    chain_end_index: usize,
    max_sge: usize,
}

/// A receive WR, and its SGE if WRs have at most one: a reader of the one also reads the other.
#[repr(C)]
struct RecvSlot {
    wr: abi::ibv_recv_wr,
    sge: abi::ibv_sge,
}

// SAFETY: the pointers lead into arrays that the list owns.
unsafe impl Send for RecvList {}

impl RecvList {
    pub(crate) fn new(context: &ContextRef, capacity: usize, max_sge: usize) -> Self {
        assert!(capacity > 0, "a list has room for one WR at least");
        let max_sge = max_sge.max(1);
        let sge = abi::ibv_sge {
            addr: 0,
            length: 0,
            lkey: 0,
        };
        let wrs = StableArray::new(capacity, |_| RecvSlot {
            wr: abi::ibv_recv_wr::zeroed(),
            sge,
        });
        let own = if max_sge > 1 { capacity * max_sge } else { 0 };
        let sges = StableArray::new(own, |_| sge);
        for i in 0..capacity {
            // SAFETY: in bounds; `next` of the last stays NULL.
            unsafe {
                let wr = &mut wrs.at(i).wr;
                wr.sg_list = if max_sge > 1 {
                    sges.ptr.add(i * max_sge)
                } else {
                    &raw mut (*wrs.ptr.add(i)).sge
                };
                if i + 1 < capacity {
                    wr.next = wrs.ptr.add(i + 1).cast();
                }
            }
        }
        Self {
            wrs,
            sges,
            context: Arc::clone(context),
            len: 0,
            max_filled: 0,
            chain_end_index: capacity - 1,
            max_sge,
        }
    }

    /// Adds a RECV into `buffer`. For UD, the buffer starts with 40 bytes for the GRH.
    ///
    /// # Panics
    /// The list is full, or was made for fewer SGEs.
    #[inline]
    pub fn recv(&mut self, buffer: impl ScatterDestination, wr_id: u64) {
        let i = self.len;
        assert!(
            i < self.wrs.len,
            "the list is full: it was made for {} WRs",
            self.wrs.len
        );
        // SAFETY: `i` is below the capacity; `&mut self` is exclusive; `max_sge` SGEs exist for
        // each WR, in the slot or in `sges`.
        let RecvSlot { wr, sge } = unsafe { self.wrs.at(i) };
        let sges = if self.max_sge > 1 {
            // SAFETY: as above.
            unsafe { self.sges.part(i * self.max_sge, self.max_sge) }
        } else {
            std::slice::from_mut(sge)
        };
        let (num_sge, _) = buffer.fill_wr_space(WrSpace {
            sges,
            inline: &mut [],
        });
        wr.wr_id = wr_id;
        wr.num_sge = num_sge;
        self.len = i + 1;
        self.max_filled = self.max_filled.max(self.len);
    }

    /// Returns the number of WRs for which the list has room.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.wrs.len
    }

    /// Returns the number of WRs in the list.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if the list is empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Empties the list in constant time.
    #[inline]
    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// Sets the list to the first `len` WRs ever built in it, unchanged.
    ///
    /// # Panics
    /// Fewer WRs than `len` have been built.
    #[inline]
    pub fn set_len(&mut self, len: usize) {
        assert!(
            len <= self.max_filled,
            "{len} WRs of {} that have been built",
            self.max_filled
        );
        self.len = len;
    }

    #[inline]
    pub(crate) fn post(
        &mut self,
        range: impl RangeBounds<usize>,
        context: &ContextRef,
        verb: &'static str,
        post: impl FnOnce(*mut abi::ibv_recv_wr, *mut *mut abi::ibv_recv_wr) -> i32,
    ) -> Result<(), PostError> {
        let (start, stop) = clipped_bounds(&range, self.len);
        if !Arc::ptr_eq(&self.context, context) {
            return Err(PostError {
                verb,
                kind: PostErrorKind::OtherContext,
                bad_wr: start,
            });
        }
        if start == stop {
            return Ok(());
        }
        let last = stop - 1;
        if self.chain_end_index != last {
            // SAFETY: as in `Postlist::post`.
            unsafe {
                if self.chain_end_index + 1 < self.wrs.len {
                    self.wrs.at(self.chain_end_index).wr.next =
                        self.wrs.ptr.add(self.chain_end_index + 1).cast();
                }
                self.wrs.at(last).wr.next = std::ptr::null_mut();
            }
            self.chain_end_index = last;
        }
        let mut bad: *mut abi::ibv_recv_wr = std::ptr::null_mut();
        // SAFETY: `start` is below the capacity.
        let ret = post(unsafe { self.wrs.ptr.add(start) }.cast(), &mut bad);
        let (bad, base) = (bad.addr(), self.wrs.ptr.addr());
        if ret == 0 {
            Ok(())
        } else {
            Err(post_error(
                verb,
                ret,
                bad,
                base,
                size_of::<RecvSlot>(),
                start,
            ))
        }
    }
}

impl fmt::Debug for RecvList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RecvList({} of {} WRs)", self.len, self.capacity())
    }
}
