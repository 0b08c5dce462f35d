//! Postlists: work requests that are built once, linked once, and posted with one doorbell.
//!
//! A list owns an array of `ibv_send_wr`, linked when the list is made, and room for the SGEs and
//! the inline payload of each WR. Building writes into that array; posting passes its head to
//! `ibv_post_send`. Nothing is copied in between. A list can be posted repeatedly, without
//! rewriting unchanged fields. Everything that a header-only or one-SGE WR needs lies in one
//! 64-byte cache line.

#![allow(unsafe_code)]

use std::fmt;
use std::marker::PhantomData;
use std::ops::RangeBounds;
use std::sync::Arc;

use verbs_abi as abi;

use crate::ah::{AhInner, UdDestination};
use crate::context::ContextRef;
use crate::error::{PostError, PostErrorKind};
use crate::mr_slice::{MrSlice, RemoteMemory};
use crate::payload::sealed::WrSpace;
use crate::payload::{Payload, ScatterDestination};
use crate::transport::{Connected, Rc, Transport, Ud};
use crate::wr_array::{StableArray, clipped_bounds, post_error};

/// A send WR, aligned to a cache line: the fields of a SEND or WRITE are in the first 64 bytes.
#[repr(C, align(64))]
struct SendSlot(abi::ibv_send_wr);

/// A list of send WRs for queue pairs of transport `T`, posted with one doorbell.
///
/// Make it with [`QueuePair::postlist`](crate::QueuePair::postlist), fill it and post it. Then fill
/// it again, or post it unchanged.
///
/// ```
/// # fn go(qp: &verbs::QueuePair<verbs::Rc>) -> Result<(), Box<dyn std::error::Error>> {
/// use verbs::{HeaderOnly, Inline};
/// let mut list = qp.postlist(16);
/// for i in 0..15 {
///     list.send_with_imm(HeaderOnly, i);
/// }
/// list.send(Inline(b"and some bytes")).signaled().wr_id(7);
/// qp.post_send(&mut list)?; // 16 WRs, one doorbell
///
/// list.set_imm(3, 99); // only what changes
/// qp.post_send(&mut list)?;
/// # Ok(()) }
/// ```
///
/// An operation that a transport lacks (Table 1 of the paper) does not compile:
///
/// ```compile_fail,E0599
/// fn uc_has_no_read(list: &mut verbs::Postlist<verbs::Uc>, mr: verbs::MrSlice, remote: verbs::RemoteMemory) {
///     list.rdma_read(mr, remote);
/// }
/// ```
/// ```compile_fail,E0599
/// fn uc_has_no_atomics(list: &mut verbs::Postlist<verbs::Uc>, mr: verbs::MrSlice, remote: verbs::RemoteMemory) {
///     list.atomic_fetch_and_add(mr, remote, 1);
/// }
/// ```
/// ```compile_fail,E0599
/// fn ud_has_no_memory_verbs(list: &mut verbs::Postlist<verbs::Ud>, mr: verbs::MrSlice, remote: verbs::RemoteMemory) {
///     list.rdma_write(mr, remote);
/// }
/// ```
/// ```compile_fail,E0061
/// fn ud_needs_a_destination(list: &mut verbs::Postlist<verbs::Ud>) {
///     list.send(verbs::HeaderOnly);
/// }
/// ```
///
/// # Panics
/// Building panics if the list is full, or if a WR exceeds the SGEs or inline bytes for which the
/// list was made.
pub struct Postlist<T: Transport> {
    wrs: StableArray<SendSlot>,
    sges: StableArray<abi::ibv_sge>,
    inline_bytes: StableArray<u8>,
    /// The address handle of each WR, kept alive while the WR can be posted.
    address_handles: Vec<Option<Arc<AhInner>>>,
    context: ContextRef,
    len: usize,
    /// The number of WRs ever filled; never decreases.
    max_filled: usize,
    /// The index of the WR whose `next` is NULL (besides the last slot).
    chain_end_index: usize,
    max_sge: usize,
    max_inline: usize,
    transport: PhantomData<T>,
}

// SAFETY: the pointers lead into arrays that the list owns, and to address handles that it keeps
// alive.
unsafe impl<T: Transport> Send for Postlist<T> {}

impl<T: Transport> Postlist<T> {
    /// Makes a list for up to `capacity` WRs of at most `max_sge` SGEs or `max_inline` bytes of
    /// inline payload each.
    pub(crate) fn new(
        context: &ContextRef,
        capacity: usize,
        max_sge: usize,
        max_inline: usize,
    ) -> Self {
        assert!(capacity > 0, "a postlist has room for one WR at least");
        let max_sge = max_sge.max(1);
        let wrs = StableArray::new(capacity, |_| SendSlot(abi::ibv_send_wr::zeroed()));
        let sges = StableArray::new(capacity * max_sge, |_| abi::ibv_sge {
            addr: 0,
            length: 0,
            lkey: 0,
        });
        let inline = StableArray::new(capacity * max_inline, |_| 0u8);
        for i in 0..capacity {
            // SAFETY: in bounds; `next` of the last stays NULL.
            unsafe {
                let wr = &mut wrs.at(i).0;
                wr.sg_list = sges.ptr.add(i * max_sge);
                if i + 1 < capacity {
                    wr.next = wrs.ptr.add(i + 1).cast();
                }
            }
        }
        Self {
            wrs,
            sges,
            inline_bytes: inline,
            address_handles: (0..capacity).map(|_| None).collect(),
            context: Arc::clone(context),
            len: 0,
            max_filled: 0,
            chain_end_index: capacity - 1,
            max_sge,
            max_inline,
            transport: PhantomData,
        }
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

    /// Returns true if the list has no room for another WR.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.len == self.wrs.len
    }

    /// Empties the list in constant time.
    #[inline]
    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// Sets the list to the first `len` WRs ever built in it, unchanged. With
    /// [`set_imm`](Self::set_imm), this is the cheapest way to post the same kind of WR again.
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

    /// Changes the immediate of a WR, which must have one; `imm` is in host order.
    #[inline]
    pub fn set_imm(&mut self, index: usize, imm: u32) {
        self.filled_wr(index).imm.imm_data = imm.to_be();
    }

    /// Changes the id of a WR.
    #[inline]
    pub fn set_wr_id(&mut self, index: usize, wr_id: u64) {
        self.filled_wr(index).wr_id = wr_id;
    }

    /// Makes a WR signaled or not.
    #[inline]
    pub fn set_signaled(&mut self, index: usize, signaled: bool) {
        let wr = self.filled_wr(index);
        if signaled {
            wr.send_flags |= abi::IBV_SEND_SIGNALED;
        } else {
            wr.send_flags &= !abi::IBV_SEND_SIGNALED;
        }
    }

    #[inline]
    fn filled_wr(&mut self, index: usize) -> &mut abi::ibv_send_wr {
        assert!(index < self.max_filled, "WR {index} of {}", self.max_filled);
        // SAFETY: in bounds (`max_filled` is at most the capacity); `&mut self` is exclusive.
        unsafe { &mut self.wrs.at(index).0 }
    }

    /// Returns the space for the SGEs and inline bytes of a WR.
    #[inline]
    fn wr_space(&mut self, i: usize) -> WrSpace<'_> {
        // SAFETY: `i` is below the capacity; the arrays hold `max_sge` and `max_inline` for each WR.
        unsafe {
            WrSpace {
                sges: self.sges.part(i * self.max_sge, self.max_sge),
                inline: self.inline_bytes.part(i * self.max_inline, self.max_inline),
            }
        }
    }

    /// Writes the next WR except for its remote address.
    #[inline]
    fn push_without_remote_address(
        &mut self,
        opcode: u32,
        payload: impl Payload,
        imm: u32,
    ) -> &mut abi::ibv_send_wr {
        let i = self.len;
        assert!(
            i < self.wrs.len,
            "the postlist is full: it was made for {} WRs",
            self.wrs.len
        );
        let (num_sge, flags) = payload.fill_wr_space(self.wr_space(i));
        self.len = i + 1;
        self.max_filled = self.max_filled.max(self.len);
        // SAFETY: in bounds, `&mut self`.
        let wr = unsafe { &mut self.wrs.at(i).0 };
        wr.wr_id = 0;
        wr.num_sge = num_sge;
        wr.opcode = opcode;
        wr.send_flags = flags;
        wr.imm.imm_data = imm.to_be();
        wr
    }

    /// Cuts the list after the range and calls `post` with its head.
    #[inline]
    pub(crate) fn post(
        &mut self,
        range: impl RangeBounds<usize>,
        context: &ContextRef,
        post: impl FnOnce(*mut abi::ibv_send_wr, *mut *mut abi::ibv_send_wr) -> i32,
    ) -> Result<(), PostError> {
        let verb = "ibv_post_send";
        let (start, stop) = clipped_bounds(&range, self.len);
        // Objects of one table must not be passed to another, and a list may hold address handles.
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
            // SAFETY: both indices are below the capacity; the successor of `chain_end_index` exists unless
            // `chain_end_index` is the last slot.
            unsafe {
                if self.chain_end_index + 1 < self.wrs.len {
                    self.wrs.at(self.chain_end_index).0.next =
                        self.wrs.ptr.add(self.chain_end_index + 1).cast();
                }
                self.wrs.at(last).0.next = std::ptr::null_mut();
            }
            self.chain_end_index = last;
        }
        let mut bad: *mut abi::ibv_send_wr = std::ptr::null_mut();
        // SAFETY: `start` is below the capacity.
        let head = unsafe { self.wrs.ptr.add(start) };
        let ret = post(head.cast(), &mut bad);
        if ret == 0 {
            Ok(())
        } else {
            Err(post_error(
                verb,
                ret,
                bad.addr(),
                self.wrs.ptr.addr(),
                size_of::<SendSlot>(),
                start,
            ))
        }
    }
}

/// A WR that was just built, for setting optional flags and the id.
#[derive(Debug)]
pub struct WrBuilder<'l> {
    flags: &'l mut u32,
    id: &'l mut u64,
}

impl<'l> WrBuilder<'l> {
    #[inline]
    fn of(wr: &'l mut abi::ibv_send_wr) -> Self {
        Self {
            flags: &mut wr.send_flags,
            id: &mut wr.wr_id,
        }
    }

    /// Requests a completion also if the WR succeeds.
    #[inline]
    pub fn signaled(self) -> Self {
        *self.flags |= abi::IBV_SEND_SIGNALED;
        self
    }

    /// Makes the receiver's completion solicited.
    #[inline]
    pub fn solicited(self) -> Self {
        *self.flags |= abi::IBV_SEND_SOLICITED;
        self
    }

    /// Makes the WR wait for earlier READs and atomics (RC).
    #[inline]
    pub fn fence(self) -> Self {
        *self.flags |= abi::IBV_SEND_FENCE;
        self
    }

    /// Sets the id in the WR's completion; default 0.
    #[inline]
    pub fn wr_id(self, wr_id: u64) -> Self {
        *self.id = wr_id;
        self
    }
}

impl<T: Connected> Postlist<T> {
    /// Adds a SEND.
    #[inline]
    pub fn send(&mut self, payload: impl Payload) -> WrBuilder<'_> {
        WrBuilder::of(self.push_without_remote_address(abi::IBV_WR_SEND, payload, 0))
    }

    /// Adds a SEND with an immediate (host order).
    #[inline]
    pub fn send_with_imm(&mut self, payload: impl Payload, imm: u32) -> WrBuilder<'_> {
        WrBuilder::of(self.push_without_remote_address(abi::IBV_WR_SEND_WITH_IMM, payload, imm))
    }

    /// Adds an RDMA WRITE of the payload to the start of `remote`.
    #[inline]
    pub fn rdma_write(&mut self, payload: impl Payload, remote: RemoteMemory) -> WrBuilder<'_> {
        let wr = self.push_without_remote_address(abi::IBV_WR_RDMA_WRITE, payload, 0);
        wr.wr.rdma = abi::ibv_send_wr_wr_rdma {
            remote_addr: remote.addr,
            rkey: remote.rkey.0,
        };
        WrBuilder::of(wr)
    }

    /// Adds an RDMA WRITE with an immediate (host order), which consumes a RECV of the peer.
    #[inline]
    pub fn rdma_write_with_imm(
        &mut self,
        payload: impl Payload,
        remote: RemoteMemory,
        imm: u32,
    ) -> WrBuilder<'_> {
        let wr = self.push_without_remote_address(abi::IBV_WR_RDMA_WRITE_WITH_IMM, payload, imm);
        wr.wr.rdma = abi::ibv_send_wr_wr_rdma {
            remote_addr: remote.addr,
            rkey: remote.rkey.0,
        };
        WrBuilder::of(wr)
    }
}

impl Postlist<Rc> {
    /// Adds an RDMA READ from the start of `remote` into local memory.
    #[inline]
    pub fn rdma_read(
        &mut self,
        into: impl ScatterDestination,
        remote: RemoteMemory,
    ) -> WrBuilder<'_> {
        let wr = self.push_without_remote_address(abi::IBV_WR_RDMA_READ, into, 0);
        wr.wr.rdma = abi::ibv_send_wr_wr_rdma {
            remote_addr: remote.addr,
            rkey: remote.rkey.0,
        };
        WrBuilder::of(wr)
    }

    /// Adds a compare-and-swap of the aligned 8-byte word at the start of `remote`; the 8 bytes of
    /// `into` receive the old value.
    #[inline]
    pub fn atomic_cmp_and_swp(
        &mut self,
        into: MrSlice,
        remote: RemoteMemory,
        compare: u64,
        swap: u64,
    ) -> WrBuilder<'_> {
        let wr = self.push_without_remote_address(abi::IBV_WR_ATOMIC_CMP_AND_SWP, into, 0);
        wr.wr.atomic = abi::ibv_send_wr_wr_atomic {
            remote_addr: remote.addr,
            compare_add: compare,
            swap,
            rkey: remote.rkey.0,
        };
        WrBuilder::of(wr)
    }

    /// Adds a fetch-and-add to the aligned 8-byte word at the start of `remote`; the 8 bytes of
    /// `into` receive the old value. The word is in the host order of the machine that holds it.
    #[inline]
    pub fn atomic_fetch_and_add(
        &mut self,
        into: MrSlice,
        remote: RemoteMemory,
        add: u64,
    ) -> WrBuilder<'_> {
        let wr = self.push_without_remote_address(abi::IBV_WR_ATOMIC_FETCH_AND_ADD, into, 0);
        wr.wr.atomic = abi::ibv_send_wr_wr_atomic {
            remote_addr: remote.addr,
            compare_add: add,
            swap: 0,
            rkey: remote.rkey.0,
        };
        WrBuilder::of(wr)
    }
}

impl Postlist<Ud> {
    /// Adds a SEND to a destination.
    #[inline]
    pub fn send(&mut self, payload: impl Payload, to: &UdDestination) -> WrBuilder<'_> {
        self.push_without_remote_address(abi::IBV_WR_SEND, payload, 0);
        self.set_ud_address(self.len - 1, to)
    }

    /// Adds a SEND with an immediate (host order) to a destination.
    #[inline]
    pub fn send_with_imm(
        &mut self,
        payload: impl Payload,
        to: &UdDestination,
        imm: u32,
    ) -> WrBuilder<'_> {
        self.push_without_remote_address(abi::IBV_WR_SEND_WITH_IMM, payload, imm);
        self.set_ud_address(self.len - 1, to)
    }

    /// Changes the destination of a WR.
    ///
    /// # Panics
    /// The WR was never built, or the destination belongs to another device context.
    #[inline]
    pub fn set_destination(&mut self, index: usize, to: &UdDestination) {
        assert!(index < self.max_filled, "WR {index} of {}", self.max_filled);
        self.set_ud_address(index, to);
    }

    #[inline]
    fn set_ud_address(&mut self, index: usize, to: &UdDestination) -> WrBuilder<'_> {
        let held = &mut self.address_handles[index];
        // Most lists keep their destinations, and then hold the handle already.
        if !held.as_ref().is_some_and(|h| Arc::ptr_eq(h, &to.ah.inner)) {
            keep_address_handle(held, &self.context, &to.ah.inner);
        }
        // SAFETY: below the capacity; `&mut self` is exclusive.
        let wr = unsafe { &mut self.wrs.at(index).0 };
        wr.wr.ud = abi::ibv_send_wr_wr_ud {
            ah: to.ah.inner.raw,
            remote_qpn: to.qpn.0,
            remote_qkey: to.qkey.0,
        };
        WrBuilder::of(wr)
    }
}

#[inline(never)]
fn keep_address_handle(held: &mut Option<Arc<AhInner>>, context: &ContextRef, ah: &Arc<AhInner>) {
    assert!(
        Arc::ptr_eq(&ah.pd.context, context),
        "the destination belongs to another device context"
    );
    *held = Some(Arc::clone(ah));
}

impl<T: Transport> fmt::Debug for Postlist<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Postlist<{}>({} of {} WRs)",
            T::NAME,
            self.len,
            self.capacity()
        )
    }
}
