//! The send queue: work requests turned into records, copies and atomics.
//!
//! One-sided verbs are executed when they are posted, by the posting thread. Two-sided verbs become records
//! in a ring that the receiver reads; on reliable and connected transports they complete when the receiver
//! has consumed them. What cannot be done yet (the peer is not ready, its ring is full, the queue is being
//! drained) is kept and tried again whenever somebody polls.

mod burst;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use verbs_abi::*;

use crate::ah::Ah;
use crate::cq::WcSink;
use crate::fabric::Peer;
use crate::fabric::layout::*;
use crate::fabric::ring::{Producer, SLOT_BYTES, record_slots};
use crate::mem::AtomicOp;
use crate::nic::Nic;
use crate::qp::Qp;
use crate::qp_state::{QpState, QpType, ack_timeout_ns};
use crate::recv::{call_if_armed, checked_sge, failed, header};
use crate::region_cache::{KeyError, RegionCache};

/// `flags` of a record: the receiver's CQ may be armed for solicited completions only.
pub(crate) const FLAG_SOLICITED: u8 = 1;
/// `flags` of a record: the payload is a list of SGEs in the sender's memory.
pub(crate) const FLAG_BY_REFERENCE: u8 = 2;

/// Largest UD payload: the path MTU (`ibv_post_send(3)`).
pub(crate) const UD_MAX_PAYLOAD: usize = 4096;
/// Payloads of connected transports up to this size travel in the record; longer ones are copied once, by the
/// receiver. Two short copies cost less than two looks at another process's memory region.
const COPY_MAX: usize = 1024;
/// The same for memory that its peers can reach only by system call (1.5 µs for a call).
const COPY_MAX_PRIVATE: usize = 8192;
/// How long an unreliable message waits for room at a live receiver until it is dropped.
const UNRELIABLE_WAIT_NS: u64 = 1_000_000_000;
/// Slots of the ring from one UD queue pair to another: 16 KiB, so that several fit in the L1 cache.
const UD_RING_SLOTS: u64 = 1024;

/// `kind` of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Send = 1,
    SendWithImm = 2,
    WriteWithImm = 3,
}

impl Kind {
    #[inline]
    pub(crate) fn from_header(kind: u8) -> Option<Self> {
        match kind {
            1 => Some(Self::Send),
            2 => Some(Self::SendWithImm),
            3 => Some(Self::WriteWithImm),
            _ => None,
        }
    }
}

/// Monotonic time.
pub(crate) fn now_ns() -> u64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    t.tv_sec.cast_unsigned() * 1_000_000_000 + t.tv_nsec.cast_unsigned()
}

/// What a send queue has for the poll of its CQ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum SendWork {
    /// Nothing.
    None = 0,
    /// Only unsignaled WRs that are not acknowledged yet. A poll need not look for them each time: that would
    /// fetch a line that the receiver is writing to.
    Unsignaled = 1,
    /// Completions, or what will become some.
    Completions = 2,
}

/// A fixed-size queue.
struct Fifo<T> {
    items: Box<[T]>,
    head: usize,
    tail: usize,
}

impl<T: Copy + Default> Fifo<T> {
    fn new(capacity: usize) -> Self {
        Self {
            items: vec![T::default(); capacity.next_power_of_two()].into(),
            head: 0,
            tail: 0,
        }
    }
    #[inline]
    fn is_empty(&self) -> bool {
        self.head == self.tail
    }
    #[inline]
    fn push(&mut self, item: T) {
        debug_assert!(self.tail - self.head < self.items.len());
        let mask = self.items.len() - 1;
        self.items[self.tail & mask] = item;
        self.tail += 1;
    }
    #[inline]
    fn front(&self) -> Option<&T> {
        (!self.is_empty()).then(|| &self.items[self.head & (self.items.len() - 1)])
    }
    #[inline]
    fn pop(&mut self) -> Option<T> {
        let item = *self.front()?;
        self.head += 1;
        Some(item)
    }
    fn clear(&mut self) {
        self.head = self.tail;
    }
}

/// A send WR whose fate is (Ready) or will be (Pending) known.
#[derive(Clone, Copy, Default)]
struct SendWqe {
    wr_id: u64,
    /// Position of the ring up to which the receiver must have consumed; 0: done already.
    end: u64,
    /// Number of the WR in the order of posting.
    seq: u64,
    byte_len: u32,
    opcode: u32,
    status: u32,
    signaled: bool,
}

impl SendWqe {
    #[inline]
    fn is_send_on_its_way(&self) -> bool {
        self.end != 0 && self.opcode == IBV_WC_SEND
    }
}

/// The WRs that are not done, in order.
struct Pending {
    wqes: Fifo<SendWqe>,
    /// How many of them are signaled.
    signaled: usize,
    /// How many of them are SENDs that the receiver has not taken yet.
    sends: usize,
}

impl Pending {
    #[inline]
    fn is_empty(&self) -> bool {
        self.wqes.is_empty()
    }
    #[inline]
    fn front(&self) -> Option<&SendWqe> {
        self.wqes.front()
    }
    #[inline]
    fn push(&mut self, wqe: SendWqe) {
        self.signaled += usize::from(wqe.signaled);
        self.sends += usize::from(wqe.is_send_on_its_way());
        self.wqes.push(wqe);
    }
    #[inline]
    fn pop(&mut self) -> Option<SendWqe> {
        let wqe = self.wqes.pop()?;
        self.signaled -= usize::from(wqe.signaled);
        self.sends -= usize::from(wqe.is_send_on_its_way());
        Some(wqe)
    }
}

/// A WR that waits for its turn, with everything that it points to.
struct Deferred {
    wr: ibv_send_wr,
    sges: Vec<ibv_sge>,
    inline: Vec<u8>,
    seq: u64,
    since: Option<u64>,
    ah: Option<Arc<Ah>>,
}

// SAFETY: the raw pointers in `wr` are not followed: `sges`, `inline` and `ah` stand for them.
unsafe impl Send for Deferred {}

/// A WR in the shape in which it is executed.
struct WrView<'a> {
    wr: &'a ibv_send_wr,
    sges: &'a [ibv_sge],
    /// The inline payload, if it has been gathered already.
    inline: Option<&'a [u8]>,
    ah: Option<&'a Ah>,
}

/// What became of a WR.
enum Outcome {
    /// Executed; the completion says so many bytes.
    Done(u32),
    /// In a ring up to this position.
    InRing(u64),
    /// Not yet possible.
    Later,
    /// Failed.
    Failed(ibv_wc_status),
}

/// A ring into which a queue pair of this process sends.
struct OutRing {
    producer: Producer,
    peer: Arc<Peer>,
    /// The receiving queue pair within its process.
    dest_index: usize,
    dest_epoch: u32,
    dest_cq: usize,
    offset: usize,
    bytes: usize,
    announced: bool,
    /// The open postlist has a solicited message.
    solicited: bool,
}

impl OutRing {
    fn header<'n>(&self, nic: &'n Nic) -> Option<&'n RingHeader> {
        nic.me().segment.ring_header(self.offset)
    }

    /// Makes the open postlist visible and wakes the receiver if it sleeps.
    #[inline]
    fn publish(&mut self, nic: &Nic) {
        self.producer.publish();
        if !self.announced {
            self.announce(nic);
        }
        if let Some(cq) = self.peer.segment.cq(self.dest_cq) {
            call_if_armed(&cq.armed, &self.peer, self.solicited);
        }
        self.solicited = false;
    }

    #[cold]
    fn announce(&mut self, nic: &Nic) {
        let letter = (nic.me().slot as u64) << 32 | (self.offset / 64) as u64;
        self.announced = self.peer.segment.mailbox().put(letter).is_ok();
        if !self.announced {
            self.peer.wake();
        }
    }

    /// Closes the ring: the receiver reads what is in it and lets go.
    fn close(mut self, nic: &Nic) {
        self.producer.publish();
        if let Some(header) = self.header(nic) {
            header.closed.store(1, Ordering::Release);
        }
        nic.retire_ring(
            self.offset,
            self.bytes,
            self.announced.then(|| Arc::clone(&self.peer)),
        );
    }
}

/// What a new ring is for.
struct RingUse {
    slots: u64,
    dest_index: usize,
    rnr_retry: u32,
    grh: Option<[u8; 40]>,
    path: u64,
}

/// The send queue of a queue pair.
pub(crate) struct SendQueue {
    /// WRs posted and WRs whose places are free again: a place is freed when a completion of its WR or of a
    /// later one has been polled (`ibv_post_send(3)`).
    posted: u64,
    freed: u64,
    max_wr: u64,
    max_sge: usize,
    max_inline: usize,
    sq_sig_all: bool,
    pending: Pending,
    ready: Fifo<SendWqe>,
    deferred: VecDeque<Deferred>,
    /// RC and UC: the ring to the peer.
    out: Option<OutRing>,
    /// UD: rings by destination.
    ud: UdRings,
    local: RegionCache,
    remote: RegionCache,
    /// When the peer of a reliable queue pair was first found not to answer.
    silent_since: Option<u64>,
    stopped: bool,
}

/// Rings of a UD queue pair.
#[derive(Default)]
struct UdRings {
    rings: Vec<Option<OutRing>>,
    by_destination: HashMap<(Vec<u8>, u32), usize>,
    /// Direct-mapped, by address handle and QP number.
    recent: Vec<(u64, u32, usize)>,
    /// The ring with an open postlist.
    open: Option<usize>,
}

const RECENT: usize = 64;

impl SendQueue {
    pub(crate) fn new(cap: &ibv_qp_cap, sq_sig_all: bool) -> Self {
        let depth = cap.max_send_wr.max(1) as usize;
        Self {
            posted: 0,
            freed: 0,
            max_wr: u64::from(cap.max_send_wr),
            max_sge: cap.max_send_sge as usize,
            max_inline: cap.max_inline_data as usize,
            sq_sig_all,
            pending: Pending {
                wqes: Fifo::new(depth),
                signaled: 0,
                sends: 0,
            },
            ready: Fifo::new(depth),
            deferred: VecDeque::new(),
            out: None,
            ud: UdRings::default(),
            local: RegionCache::new(),
            remote: RegionCache::new(),
            silent_since: None,
            stopped: false,
        }
    }

    /// Is anything posted whose end is not known?
    pub(crate) fn is_drained(&self) -> bool {
        self.pending.is_empty()
    }

    /// Does anything wait here for a poll?
    #[inline]
    fn work(&self) -> SendWork {
        if self.pending.signaled != 0 || !self.ready.is_empty() || !self.deferred.is_empty() {
            SendWork::Completions
        } else if self.pending.is_empty() {
            SendWork::None
        } else {
            SendWork::Unsignaled
        }
    }

    /// Makes the ring to the peer of a connected queue pair (INIT to RTR).
    pub(crate) fn connect(&mut self, qp: &Qp, peer: Arc<Peer>, dest_qpn: u32) -> Result<(), i32> {
        // Room for as many of the smallest records that any WR can be put into as WRs can be posted.
        let record = record_slots(self.max_inline.max(self.max_sge * SLOT_BYTES).max(16));
        let slots = (self.max_wr * record + 2 * record + 2)
            .next_power_of_two()
            .clamp(64, 32768);
        let ring = RingUse {
            slots,
            dest_index: dest_qpn as usize % MAX_QPS,
            rnr_retry: 0,
            grh: None,
            path: 0,
        };
        let mut out = new_ring(qp, peer, &ring).ok_or(libc::ENOMEM)?;
        out.announce(qp.nic);
        self.out = Some(out);
        Ok(())
    }

    /// Sets the RNR retry count that the receiver of the ring applies.
    pub(crate) fn set_rnr_retry(&self, nic: &Nic, rnr_retry: u8) {
        if let Some(header) = self.out.as_ref().and_then(|out| out.header(nic)) {
            header
                .rnr_retry
                .store(u32::from(rnr_retry), Ordering::Relaxed);
        }
    }

    /// Back to RESET: forgets all WRs and closes all rings.
    pub(crate) fn reset(&mut self, nic: &Nic) {
        self.pending.wqes.clear();
        self.pending.signaled = 0;
        self.pending.sends = 0;
        self.ready.clear();
        self.deferred.clear();
        self.freed = self.posted;
        for ring in self
            .out
            .take()
            .into_iter()
            .chain(self.ud.rings.drain(..).flatten())
        {
            ring.close(nic);
        }
        self.ud = UdRings::default();
        self.local.clear();
        self.remote.clear();
        self.silent_since = None;
        self.stopped = false;
    }

    /// Ends every WR that is not done: with `first` the oldest one, if given, and with a flush error all
    /// others.
    pub(crate) fn flush(&mut self, first: Option<ibv_wc_status>) {
        let mut status = first.unwrap_or(IBV_WC_WR_FLUSH_ERR);
        while let Some(wqe) = self.pending.pop() {
            if wqe.end == 0 && wqe.status == IBV_WC_SUCCESS {
                // Executed behind one that was not acknowledged.
                status = IBV_WC_WR_FLUSH_ERR;
            }
            self.ready.push(SendWqe {
                status,
                signaled: true,
                ..wqe
            });
            status = IBV_WC_WR_FLUSH_ERR;
        }
        while let Some(d) = self.deferred.pop_front() {
            self.ready.push(SendWqe {
                wr_id: d.wr.wr_id,
                seq: d.seq,
                status,
                signaled: true,
                ..SendWqe::default()
            });
            status = IBV_WC_WR_FLUSH_ERR;
        }
        self.stopped = true;
    }

    /// Ready again after the send queue had failed (SQE to RTS).
    pub(crate) fn resume(&mut self) {
        self.stopped = false;
    }
}

fn new_ring(qp: &Qp, peer: Arc<Peer>, ring: &RingUse) -> Option<OutRing> {
    let nic = qp.nic;
    let bytes = size_of::<RingHeader>() + ring.slots as usize * SLOT_BYTES;
    let offset = nic
        .alloc_ring(bytes)
        .inspect_err(|e| tracing::warn!("no shared memory for a ring: {e}"))
        .ok()?;
    let dest = peer.segment.qp(ring.dest_index)?;
    let header = nic.me().segment.ring_header(offset)?;
    let slots = u32::try_from(ring.slots).ok()?;
    header.slots.store(slots, Ordering::Relaxed);
    header.src_qpn.store(qp.qpn, Ordering::Relaxed);
    #[allow(clippy::cast_possible_truncation)] // 24 bits
    let dest_qpn = (peer.slot << QP_BITS | ring.dest_index) as u32;
    header.dest_qpn.store(dest_qpn, Ordering::Relaxed);
    header
        .src_epoch
        .store(qp.shared().epoch.load(Ordering::Relaxed), Ordering::Relaxed);
    #[allow(clippy::cast_possible_truncation)] // 14 bits
    header
        .src_cq
        .store(qp.send_cq.index as u32, Ordering::Relaxed);
    header.rnr_retry.store(ring.rnr_retry, Ordering::Relaxed);
    header
        .dest_incarnation
        .store(peer.incarnation, Ordering::Relaxed);
    if let Some(grh) = ring.grh {
        for (word, bytes) in header.grh.iter().zip(grh.chunks_exact(8)) {
            let mut b = [0; 8];
            b.copy_from_slice(bytes);
            word.store(u64::from_ne_bytes(b), Ordering::Relaxed);
        }
    }
    header.path.store(ring.path, Ordering::Relaxed);
    header.magic.store(RING_MAGIC, Ordering::Release);
    // SAFETY: the own segment is mapped as long as the process lives.
    let memory = unsafe { nic.me().segment.ring(offset, slots)? };
    Some(OutRing {
        producer: Producer::new(memory),
        dest_index: ring.dest_index,
        dest_epoch: dest.epoch.load(Ordering::Acquire),
        dest_cq: dest.recv_cq.load(Ordering::Relaxed) as usize,
        peer,
        offset,
        bytes,
        announced: false,
        solicited: false,
    })
}

/// `ibv_post_send` on a locked queue.
///
/// # Safety
/// `wr` is null or the first of a list of work requests as `ibv_post_send(3)` describes it.
pub(crate) unsafe fn post_send(
    qp: &Qp,
    mut wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> i32 {
    let mut sq = qp.sq.lock();
    let sq = &mut *sq;
    let state = qp.state();
    let mut result = 0;
    let held_back = !sq.deferred.is_empty();
    if !matches!(
        state,
        QpState::Rts | QpState::Sqd | QpState::Sqe | QpState::Err
    ) {
        result = libc::EINVAL;
    } else {
        // SAFETY: contract of this function.
        while !wr.is_null() {
            if state == QpState::Rts && !sq.stopped && sq.deferred.is_empty() {
                // SAFETY: as above; not null.
                wr = unsafe { burst::run(qp, sq, wr) };
            }
            // SAFETY: as above.
            let Some(this) = (unsafe { wr.as_ref() }) else {
                break;
            };
            // SAFETY: as above.
            if let Err(errno) = unsafe { post_one(qp, sq, this, state) } {
                result = errno;
                break;
            }
            wr = this.next;
        }
    }
    if result != 0 && !bad_wr.is_null() {
        // SAFETY: a place for the failed WR (contract of `ibv_post_send`).
        unsafe { *bad_wr = wr };
    }
    publish(qp, sq);
    let work = sq.work();
    qp.send_work.store(work as u8, Ordering::Relaxed);
    if work != SendWork::None && qp.send_cq.is_armed() {
        asleep(qp, sq);
    }
    if !held_back && !sq.deferred.is_empty() {
        // The engine tries it again even if nobody polls.
        qp.nic.me().wake();
    }
    result
}

/// Something was posted while the send CQ is armed: the poster is about to sleep.
#[cold]
fn asleep(qp: &Qp, sq: &SendQueue) {
    if !sq.ready.is_empty() {
        qp.send_cq.nudge();
    }
    if let Some(out) = &sq.out
        && !sq.pending.is_empty()
    {
        out.peer.wake();
    }
}

#[inline]
fn publish(qp: &Qp, sq: &mut SendQueue) {
    if let Some(i) = sq.ud.open.take() {
        if let Some(Some(ring)) = sq.ud.rings.get_mut(i) {
            ring.publish(qp.nic);
        }
    } else if let Some(out) = &mut sq.out {
        out.publish(qp.nic);
    }
}

/// Accepts one WR.
///
/// # Safety
/// As for [`post_send`].
#[inline]
unsafe fn post_one(
    qp: &Qp,
    sq: &mut SendQueue,
    wr: &ibv_send_wr,
    state: QpState,
) -> Result<(), i32> {
    if sq.posted - sq.freed >= sq.max_wr {
        return Err(libc::ENOMEM);
    }
    if !allowed(qp.qp_type, wr.opcode) {
        return Err(libc::EINVAL);
    }
    let count = usize::try_from(wr.num_sge).map_err(|_| libc::EINVAL)?;
    if count > sq.max_sge {
        return Err(libc::EINVAL);
    }
    let sges = if count == 0 {
        &[]
    } else if wr.sg_list.is_null() {
        return Err(libc::EINVAL);
    } else {
        // SAFETY: `sg_list` has `num_sge` entries (contract).
        unsafe { std::slice::from_raw_parts(wr.sg_list, count) }
    };
    let inline = wr.send_flags & IBV_SEND_INLINE != 0;
    if inline {
        let total: u64 = sges.iter().map(|s| u64::from(s.length)).sum();
        if total > sq.max_inline as u64 || !carries_payload(wr.opcode) {
            return Err(libc::EINVAL);
        }
    }
    let ah = if qp.qp_type == QpType::Ud {
        // SAFETY: the handle of an address handle that the program has not destroyed (contract).
        let ah = unsafe { Ah::from_handle(wr.wr.ud.ah) }.ok_or(libc::EINVAL)?;
        if ah.pd != qp.pd {
            return Err(libc::EINVAL);
        }
        Some(ah)
    } else {
        None
    };
    let seq = sq.posted;
    sq.posted += 1;
    let signaled = sq.sq_sig_all || wr.send_flags & IBV_SEND_SIGNALED != 0;
    if sq.stopped || state == QpState::Err {
        sq.stopped = true;
        let flushed = SendWqe {
            wr_id: wr.wr_id,
            seq,
            status: IBV_WC_WR_FLUSH_ERR,
            signaled: true,
            ..SendWqe::default()
        };
        // Completions keep the order of the WRs: what failed may wait behind a SEND that is on its way.
        if !sq.deferred.is_empty() {
            // SAFETY: as above.
            unsafe { defer(sq, wr, sges, inline, ah.is_some(), seq) };
        } else if sq.pending.is_empty() {
            sq.ready.push(flushed);
        } else {
            sq.pending.push(flushed);
        }
        return Ok(());
    }
    if !sq.deferred.is_empty() || state == QpState::Sqd {
        // SAFETY: as above.
        unsafe { defer(sq, wr, sges, inline, ah.is_some(), seq) };
        return Ok(());
    }
    let view = WrView {
        wr,
        sges,
        inline: None,
        ah,
    };
    match execute(qp, sq, &view) {
        Outcome::Later => {
            // SAFETY: as above.
            unsafe { defer(sq, wr, sges, inline, ah.is_some(), seq) };
        }
        outcome => settle(qp, sq, wr, seq, signaled, &outcome),
    }
    Ok(())
}

/// Is `opcode` a verb of this transport? Table 1 of the paper; IBTA vol. 1, table 44.
#[inline]
fn allowed(qp_type: QpType, opcode: ibv_wr_opcode) -> bool {
    match opcode {
        IBV_WR_SEND | IBV_WR_SEND_WITH_IMM => true,
        IBV_WR_RDMA_WRITE | IBV_WR_RDMA_WRITE_WITH_IMM => qp_type != QpType::Ud,
        IBV_WR_RDMA_READ | IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD => {
            qp_type == QpType::Rc
        }
        _ => false,
    }
}

#[inline]
fn carries_payload(opcode: ibv_wr_opcode) -> bool {
    matches!(
        opcode,
        IBV_WR_SEND | IBV_WR_SEND_WITH_IMM | IBV_WR_RDMA_WRITE | IBV_WR_RDMA_WRITE_WITH_IMM
    )
}

fn wc_opcode(opcode: ibv_wr_opcode) -> u32 {
    match opcode {
        IBV_WR_RDMA_WRITE | IBV_WR_RDMA_WRITE_WITH_IMM => IBV_WC_RDMA_WRITE,
        IBV_WR_RDMA_READ => IBV_WC_RDMA_READ,
        IBV_WR_ATOMIC_CMP_AND_SWP => IBV_WC_COMP_SWAP,
        IBV_WR_ATOMIC_FETCH_AND_ADD => IBV_WC_FETCH_ADD,
        _ => IBV_WC_SEND,
    }
}

/// Keeps a WR for later, with copies of all that it points to.
///
/// # Safety
/// As for [`post_send`]; `sges` are the WR's.
#[cold]
unsafe fn defer(
    sq: &mut SendQueue,
    wr: &ibv_send_wr,
    sges: &[ibv_sge],
    inline: bool,
    ud: bool,
    seq: u64,
) {
    let mut bytes = Vec::new();
    if inline {
        for sge in sges {
            let src: *const u8 = std::ptr::with_exposed_provenance(sge.addr as usize);
            let old = bytes.len();
            bytes.resize(old + sge.length as usize, 0);
            // SAFETY: inline data is readable while the WR is posted (`ibv_post_send(3)`).
            unsafe { crate::mem::copy(bytes[old..].as_mut_ptr(), src, sge.length as usize) };
        }
    }
    // SAFETY: `post_one` has looked at the handle.
    let ah = unsafe { Ah::retain(wr, ud) };
    sq.deferred.push_back(Deferred {
        wr: *wr,
        sges: sges.to_vec(),
        inline: bytes,
        seq,
        since: None,
        ah,
    });
}

/// Notes what became of a WR.
#[inline]
fn settle(
    qp: &Qp,
    sq: &mut SendQueue,
    wr: &ibv_send_wr,
    seq: u64,
    signaled: bool,
    outcome: &Outcome,
) {
    let mut wqe = SendWqe {
        wr_id: wr.wr_id,
        end: 0,
        seq,
        byte_len: 0,
        opcode: 0,
        status: IBV_WC_SUCCESS,
        signaled,
    };
    match *outcome {
        Outcome::Done(byte_len) => {
            if sq.pending.is_empty() {
                if signaled {
                    wqe.opcode = wc_opcode(wr.opcode);
                    wqe.byte_len = byte_len;
                    sq.ready.push(wqe);
                }
            } else {
                wqe.opcode = wc_opcode(wr.opcode);
                wqe.byte_len = byte_len;
                sq.pending.push(wqe);
            }
        }
        Outcome::InRing(end) => {
            wqe.opcode = wc_opcode(wr.opcode);
            wqe.end = end;
            sq.pending.push(wqe);
        }
        Outcome::Failed(status) => {
            // It completes behind what was posted before it, which may still be on its way.
            wqe.status = status;
            wqe.signaled = true;
            sq.pending.push(wqe);
            fail_sends(qp, sq);
        }
        Outcome::Later => {}
    }
}

/// A WR at the end of `pending` has failed: nothing behind it is executed any more. If nothing is in front
/// of it, the queue pair fails now, else when that is done.
#[cold]
fn fail_sends(qp: &Qp, sq: &mut SendQueue) {
    sq.stopped = true;
    if let Some(front) = sq.pending.front()
        && front.status != IBV_WC_SUCCESS
    {
        let status = front.status;
        fail_now(qp, sq, status);
    }
}

/// The oldest WR has failed with `status`.
#[cold]
fn fail_now(qp: &Qp, sq: &mut SendQueue, status: ibv_wc_status) {
    publish(qp, sq);
    sq.flush(Some(status));
    // "Completion in error of a send WR of UD or UC: Send Queue Error state" (IBTA vol. 1, 10.3.1.6).
    if qp.qp_type == QpType::Rc {
        qp.enter_error();
    } else {
        qp.set_state(QpState::Sqe);
    }
}

#[inline]
fn execute(qp: &Qp, sq: &mut SendQueue, view: &WrView<'_>) -> Outcome {
    if qp.qp_type == QpType::Ud {
        return ud_send(qp, sq, view);
    }
    let Some(out) = &mut sq.out else {
        // RTS without a peer: its process was not there when it was connected.
        return silence(qp, sq, view);
    };
    if out.peer.is_dead() {
        return dead(qp);
    }
    let Some(dest) = out.peer.segment.qp(out.dest_index) else {
        return Outcome::Failed(IBV_WC_LOC_QP_OP_ERR);
    };
    if !answers(dest, qp.qpn) {
        return silence(qp, sq, view);
    }
    sq.silent_since = None;
    match view.wr.opcode {
        IBV_WR_SEND => connected_send(qp, sq, view, Kind::Send),
        IBV_WR_SEND_WITH_IMM => connected_send(qp, sq, view, Kind::SendWithImm),
        // A responder executes requests in order (IBTA vol. 1, 9.5): what touches memory waits until the
        // SENDs in front of it have reached theirs.
        _ if sends_on_their_way(sq) => Outcome::Later,
        IBV_WR_RDMA_WRITE => write(qp, sq, view).unwrap_or_else(|o| o),
        IBV_WR_RDMA_WRITE_WITH_IMM => write_with_imm(qp, sq, view),
        IBV_WR_RDMA_READ => read(qp, sq, view).unwrap_or_else(|o| o),
        _ => atomic(qp, sq, view).unwrap_or_else(|o| o),
    }
}

/// Is a SEND on its way, as far as the receiver's position tells?
#[inline]
fn sends_on_their_way(sq: &mut SendQueue) -> bool {
    if sq.pending.sends == 0 {
        return false;
    }
    let Some(Ok(consumed)) = sq.out.as_mut().map(|out| out.producer.consumed()) else {
        return true;
    };
    take_consumed(sq, consumed);
    sq.pending.sends != 0
}

/// Is the peer's queue pair ready to receive from us?
#[inline]
fn answers(dest: &QpShared, qpn: u32) -> bool {
    const READY: [u32; 4] = [
        1 + IBV_QPS_RTR,
        1 + IBV_QPS_RTS,
        1 + IBV_QPS_SQD,
        1 + IBV_QPS_SQE,
    ];
    READY.contains(&dest.state.load(Ordering::Acquire))
        && dest.dest_qpn.load(Ordering::Relaxed) == qpn
}

/// The peer's process has ended: what becomes of a WR.
#[cold]
fn dead(qp: &Qp) -> Outcome {
    if qp.qp_type == QpType::Rc {
        Outcome::Failed(IBV_WC_RETRY_EXC_ERR)
    } else {
        Outcome::Done(0)
    }
}

/// The peer's queue pair does not answer: a reliable WR is tried again until the timeout has passed
/// `retry_cnt + 1` times (IBTA vol. 1, 9.7.6.1.3); an unreliable one is lost.
#[cold]
fn silence(qp: &Qp, sq: &mut SendQueue, view: &WrView<'_>) -> Outcome {
    if qp.qp_type != QpType::Rc {
        return Outcome::Done(
            view.sges
                .iter()
                .map(|s| s.length)
                .fold(0, u32::wrapping_add),
        );
    }
    if silent_too_long(qp, sq) {
        return Outcome::Failed(IBV_WC_RETRY_EXC_ERR);
    }
    Outcome::Later
}

#[cold]
fn silent_too_long(qp: &Qp, sq: &mut SendQueue) -> bool {
    let now = now_ns();
    let since = *sq.silent_since.get_or_insert(now);
    let (timeout, retry_cnt) = qp.timeout();
    ack_timeout_ns(timeout).is_some_and(|t| now - since >= t * (u64::from(retry_cnt) + 1))
}

/// SEND on RC and UC.
#[inline]
fn connected_send(qp: &Qp, sq: &mut SendQueue, view: &WrView<'_>, kind: Kind) -> Outcome {
    let Some(out) = &mut sq.out else {
        return Outcome::Later;
    };
    let total: u64 = view.sges.iter().map(|s| u64::from(s.length)).sum();
    if total > u64::from(crate::device::MAX_MSG_SZ) {
        return Outcome::Failed(IBV_WC_LOC_LEN_ERR);
    }
    #[allow(clippy::cast_possible_truncation)] // at most 2^30
    let (len, total) = (total as u32, total as usize);
    let inline = view.inline.is_some() || view.wr.send_flags & IBV_SEND_INLINE != 0;
    let mut flags = 0;
    if view.wr.send_flags & IBV_SEND_SOLICITED != 0 {
        flags |= FLAG_SOLICITED;
        out.solicited = true;
    }
    // SAFETY: reads the immediate of the union, which is plain bytes.
    let imm = unsafe { view.wr.imm.imm_data };
    let by_value = inline
        || total <= COPY_MAX
        || (total <= COPY_MAX_PRIVATE
            && total <= out.producer.max_payload()
            && is_private(qp, &mut sq.local, view.sges));
    if by_value && total <= out.producer.max_payload() {
        match out.producer.has_room(total) {
            Ok(true) => {
                if let Err(status) = gather(qp, &mut sq.local, view, &mut out.producer, total) {
                    return Outcome::Failed(status);
                }
                out.producer.commit(header(kind, flags, imm, len, 0), total);
                return Outcome::InRing(out.producer.pos());
            }
            // Inline data cannot be sent by reference: its memory is the program's again.
            Ok(false) if inline => return Outcome::Later,
            Ok(false) => {}
            Err(_) => return Outcome::Failed(IBV_WC_REM_OP_ERR),
        }
    }
    let bytes = size_of_val(view.sges);
    match out.producer.has_room(bytes) {
        Ok(true) => {}
        Ok(false) => return Outcome::Later,
        Err(_) => return Outcome::Failed(IBV_WC_REM_OP_ERR),
    }
    for sge in view.sges.iter().filter(|s| s.length != 0) {
        if checked_sge(qp.nic, &mut sq.local, qp.pd, sge, false).is_none() {
            return Outcome::Failed(IBV_WC_LOC_PROT_ERR);
        }
    }
    let place = out.producer.place(bytes);
    // SAFETY: the place has `bytes` bytes, the size of the list.
    unsafe { crate::mem::copy(place.as_mut_ptr(), view.sges.as_ptr().cast(), bytes) };
    out.producer
        .commit(header(kind, flags | FLAG_BY_REFERENCE, imm, len, 0), bytes);
    Outcome::InRing(out.producer.pos())
}

/// Is the memory of the first SGE out of reach for the peer but by system call?
#[cold]
fn is_private(qp: &Qp, local: &mut RegionCache, sges: &[ibv_sge]) -> bool {
    let Some(sge) = sges.iter().find(|s| s.length != 0) else {
        return false;
    };
    match local.get(qp.nic, qp.nic.me(), sge.lkey) {
        Ok((region, _pin)) => qp
            .nic
            .me()
            .segment
            .mr(region.index)
            .is_some_and(|mr| mr.backing.load(Ordering::Relaxed) == BACKING_PRIVATE),
        Err(_) => false,
    }
}

/// Copies the payload of a WR behind the next header of a ring.
#[inline]
fn gather(
    qp: &Qp,
    local: &mut RegionCache,
    view: &WrView<'_>,
    producer: &mut Producer,
    total: usize,
) -> Result<(), ibv_wc_status> {
    let place = producer.place(total);
    if total == 0 {
        return Ok(());
    }
    let mut dst = place.as_mut_ptr();
    for_each_part(qp, local, view, |src, len| {
        // SAFETY: the parts add up to `total` bytes, which the place has; `src` is readable for `len` bytes.
        unsafe { crate::mem::copy(dst, src, len) };
        dst = dst.wrapping_add(len);
        Ok(())
    })
}

/// Calls `f` for each run of bytes of the payload of a WR; they are readable during the call.
#[inline]
fn for_each_part(
    qp: &Qp,
    local: &mut RegionCache,
    view: &WrView<'_>,
    mut f: impl FnMut(*const u8, usize) -> Result<(), ibv_wc_status>,
) -> Result<(), ibv_wc_status> {
    if let Some(bytes) = view.inline {
        return f(bytes.as_ptr(), bytes.len());
    }
    if view.wr.send_flags & IBV_SEND_INLINE != 0 {
        // Inline data needs no registration (`ibv_post_send(3)`).
        for sge in view.sges.iter().filter(|s| s.length != 0) {
            f(
                std::ptr::with_exposed_provenance(sge.addr as usize),
                sge.length as usize,
            )?;
        }
        return Ok(());
    }
    for sge in view.sges.iter().filter(|s| s.length != 0) {
        let (region, _pin) =
            checked_sge(qp.nic, local, qp.pd, sge, false).ok_or(IBV_WC_LOC_PROT_ERR)?;
        let src = region.direct(sge.addr).ok_or(IBV_WC_LOC_PROT_ERR)?;
        f(src, sge.length as usize)?;
    }
    Ok(())
}

/// The remote side of a one-sided WR, checked.
#[inline]
fn remote_region<'c>(
    qp: &Qp,
    out: &OutRing,
    remote: &'c mut RegionCache,
    (addr, rkey): (u64, u32),
    len: u64,
    access: ibv_access_flags,
) -> Result<(&'c crate::mem::Region, crate::keys::Pin), Outcome> {
    let access = access.cast_unsigned();
    let dest = out
        .peer
        .segment
        .qp(out.dest_index)
        .ok_or(Outcome::Failed(IBV_WC_LOC_QP_OP_ERR))?;
    if dest.access.load(Ordering::Relaxed) & access == 0 {
        return Err(refused(qp, out, IBV_WC_REM_ACCESS_ERR));
    }
    let found = remote.get(qp.nic, &out.peer, rkey);
    let (region, pin) = match found {
        Ok(found) => found,
        Err(KeyError::Fault) if out.peer.has_ended() => return Err(dead(qp)),
        Err(_) => return Err(refused(qp, out, IBV_WC_REM_ACCESS_ERR)),
    };
    if region.access & access == 0
        || region.pd != dest.pd.load(Ordering::Relaxed)
        || !region.contains(addr, len)
    {
        return Err(refused(qp, out, IBV_WC_REM_ACCESS_ERR));
    }
    Ok((region, pin))
}

/// The responder refuses a request: both sides hear of it (RC), or it is dropped (UC, IBTA vol. 1, 9.9.3).
#[cold]
fn refused(qp: &Qp, out: &OutRing, status: ibv_wc_status) -> Outcome {
    if qp.qp_type != QpType::Rc {
        return Outcome::Done(0);
    }
    let event = if status == IBV_WC_REM_ACCESS_ERR {
        IBV_EVENT_QP_ACCESS_ERR
    } else {
        IBV_EVENT_QP_REQ_ERR
    };
    if let Some(dest) = out.peer.segment.qp(out.dest_index) {
        dest.remote_error.store(1 + event, Ordering::Release);
        out.peer.wake();
    }
    Outcome::Failed(status)
}

/// A copy to or from a peer's memory failed.
#[cold]
fn unreachable_memory(qp: &Qp, out: &OutRing) -> Outcome {
    if out.peer.has_ended() {
        dead(qp)
    } else {
        refused(qp, out, IBV_WC_REM_ACCESS_ERR)
    }
}

/// RDMA WRITE.
#[inline]
fn write(qp: &Qp, sq: &mut SendQueue, view: &WrView<'_>) -> Result<Outcome, Outcome> {
    let total: u64 = view.sges.iter().map(|s| u64::from(s.length)).sum();
    if total > u64::from(crate::device::MAX_MSG_SZ) {
        return Err(Outcome::Failed(IBV_WC_LOC_LEN_ERR));
    }
    if total == 0 {
        // "An RDMA WRITE of zero length needs no valid R_Key" (IBTA vol. 1, C9-88).
        return Ok(Outcome::Done(0));
    }
    let Some(out) = &sq.out else {
        return Ok(Outcome::Later);
    };
    // SAFETY: the union's member for this opcode; plain integers.
    let (mut addr, rkey) = unsafe { (view.wr.wr.rdma.remote_addr, view.wr.wr.rdma.rkey) };
    let (region, _pin) = remote_region(
        qp,
        out,
        &mut sq.remote,
        (addr, rkey),
        total,
        IBV_ACCESS_REMOTE_WRITE,
    )?;
    let mut fault = false;
    let copied = for_each_part(qp, &mut sq.local, view, |src, len| {
        // SAFETY: `src` is readable; the parts add up to `total`, which the pinned region has at `addr`.
        fault |= unsafe { region.write(addr, src, len) }.is_err();
        addr += len as u64;
        if fault {
            Err(IBV_WC_REM_ACCESS_ERR)
        } else {
            Ok(())
        }
    });
    if fault {
        return Err(unreachable_memory(qp, out));
    }
    copied.map_err(Outcome::Failed)?;
    #[allow(clippy::cast_possible_truncation)] // at most 2^30
    Ok(Outcome::Done(total as u32))
}

/// RDMA WRITE with immediate: the WRITE, and a record for the immediate.
fn write_with_imm(qp: &Qp, sq: &mut SendQueue, view: &WrView<'_>) -> Outcome {
    match sq.out.as_mut().map(|out| out.producer.has_room(0)) {
        Some(Ok(true)) => {}
        Some(Ok(false)) | None => return Outcome::Later,
        Some(Err(_)) => return Outcome::Failed(IBV_WC_REM_OP_ERR),
    }
    let len = match write(qp, sq, view) {
        Ok(Outcome::Done(len)) => len,
        Ok(other) | Err(other) => return other,
    };
    let Some(out) = &mut sq.out else {
        return Outcome::Later;
    };
    let mut flags = 0;
    if view.wr.send_flags & IBV_SEND_SOLICITED != 0 {
        flags |= FLAG_SOLICITED;
        out.solicited = true;
    }
    // SAFETY: reads the immediate of the union, which is plain bytes.
    let imm = unsafe { view.wr.imm.imm_data };
    let _ = out.producer.place(0);
    out.producer
        .commit(header(Kind::WriteWithImm, flags, imm, len, 0), 0);
    Outcome::InRing(out.producer.pos())
}

/// RDMA READ.
fn read(qp: &Qp, sq: &mut SendQueue, view: &WrView<'_>) -> Result<Outcome, Outcome> {
    let total: u64 = view.sges.iter().map(|s| u64::from(s.length)).sum();
    if total > u64::from(crate::device::MAX_MSG_SZ) {
        return Err(Outcome::Failed(IBV_WC_LOC_LEN_ERR));
    }
    let Some(out) = &sq.out else {
        return Ok(Outcome::Later);
    };
    check_read_resources(qp, out)?;
    if total == 0 {
        return Ok(Outcome::Done(0));
    }
    // SAFETY: the union's member for this opcode; plain integers.
    let (mut addr, rkey) = unsafe { (view.wr.wr.rdma.remote_addr, view.wr.wr.rdma.rkey) };
    let (region, _pin) = remote_region(
        qp,
        out,
        &mut sq.remote,
        (addr, rkey),
        total,
        IBV_ACCESS_REMOTE_READ,
    )?;
    for sge in view.sges.iter().filter(|s| s.length != 0) {
        let Some((local, _pin)) = checked_sge(qp.nic, &mut sq.local, qp.pd, sge, true) else {
            return Err(Outcome::Failed(IBV_WC_LOC_PROT_ERR));
        };
        let Some(dst) = local.direct(sge.addr) else {
            return Err(Outcome::Failed(IBV_WC_LOC_PROT_ERR));
        };
        // SAFETY: both ranges are checked and pinned.
        if unsafe { region.read(addr, dst, sge.length as usize) }.is_err() {
            return Err(unreachable_memory(qp, out));
        }
        addr += u64::from(sge.length);
    }
    #[allow(clippy::cast_possible_truncation)] // at most 2^30
    Ok(Outcome::Done(total as u32))
}

/// READs and atomics need initiator depth here and responder resources there.
#[inline]
fn check_read_resources(qp: &Qp, out: &OutRing) -> Result<(), Outcome> {
    if qp.max_rd_atomic.load(Ordering::Relaxed) == 0 {
        return Err(Outcome::Failed(IBV_WC_LOC_QP_OP_ERR));
    }
    let dest = out.peer.segment.qp(out.dest_index);
    if dest.is_none_or(|d| d.max_dest_rd_atomic.load(Ordering::Relaxed) == 0) {
        return Err(refused(qp, out, IBV_WC_REM_INV_REQ_ERR));
    }
    Ok(())
}

/// Compare-and-swap and fetch-and-add.
fn atomic(qp: &Qp, sq: &mut SendQueue, view: &WrView<'_>) -> Result<Outcome, Outcome> {
    let Some(out) = &sq.out else {
        return Ok(Outcome::Later);
    };
    check_read_resources(qp, out)?;
    // SAFETY: the union's member for these opcodes; plain integers.
    let a = unsafe { view.wr.wr.atomic };
    let total: u64 = view.sges.iter().map(|s| u64::from(s.length)).sum();
    if total != 8 {
        return Err(Outcome::Failed(IBV_WC_LOC_LEN_ERR));
    }
    if !a.remote_addr.is_multiple_of(8) {
        // IBTA vol. 1, C9-??: "the virtual address shall be naturally aligned"; NAK-Invalid Request.
        return Err(refused(qp, out, IBV_WC_REM_INV_REQ_ERR));
    }
    for sge in view.sges.iter().filter(|s| s.length != 0) {
        if checked_sge(qp.nic, &mut sq.local, qp.pd, sge, true).is_none() {
            return Err(Outcome::Failed(IBV_WC_LOC_PROT_ERR));
        }
    }
    let op = if view.wr.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD {
        AtomicOp::FetchAdd(a.compare_add)
    } else {
        AtomicOp::CompareSwap {
            expect: a.compare_add,
            swap: a.swap,
        }
    };
    let old = {
        let (region, _pin) = remote_region(
            qp,
            out,
            &mut sq.remote,
            (a.remote_addr, a.rkey),
            8,
            IBV_ACCESS_REMOTE_ATOMIC,
        )?;
        region.atomic(&out.peer, a.remote_addr, op)
    };
    let Ok(old) = old else {
        return Err(unreachable_memory(qp, out));
    };
    let bytes = old.to_ne_bytes();
    let mut done = 0;
    for sge in view.sges.iter().filter(|s| s.length != 0) {
        let n = sge.length as usize;
        let Some((local, _pin)) = checked_sge(qp.nic, &mut sq.local, qp.pd, sge, true) else {
            return Err(Outcome::Failed(IBV_WC_LOC_PROT_ERR));
        };
        // SAFETY: the SGEs add up to 8 bytes; the region is checked and pinned.
        if unsafe { local.write(sge.addr, bytes[done..].as_ptr(), n) }.is_err() {
            return Err(Outcome::Failed(IBV_WC_LOC_PROT_ERR));
        }
        done += n;
    }
    Ok(Outcome::Done(8))
}

/// SEND on UD.
#[inline]
fn ud_send(qp: &Qp, sq: &mut SendQueue, view: &WrView<'_>) -> Outcome {
    let Some(ah) = view.ah else {
        return Outcome::Failed(IBV_WC_LOC_QP_OP_ERR);
    };
    let mut total = 0usize;
    for sge in view.sges {
        total += sge.length as usize;
    }
    if total > UD_MAX_PAYLOAD {
        return Outcome::Failed(IBV_WC_LOC_LEN_ERR);
    }
    // SAFETY: the union's member for UD; plain integers.
    let (qpn, qkey) = unsafe { (view.wr.wr.ud.remote_qpn, view.wr.wr.ud.remote_qkey) };
    #[allow(clippy::cast_possible_truncation)] // at most 4096
    let len = total as u32;
    let Some(i) = ud_ring(qp, sq, ah, qpn) else {
        // Nobody there: the datagram is lost.
        return Outcome::Done(len);
    };
    if let Some(open) = sq.ud.open
        && open != i
        && let Some(Some(ring)) = sq.ud.rings.get_mut(open)
    {
        ring.publish(qp.nic);
    }
    let Some(Some(ring)) = sq.ud.rings.get_mut(i) else {
        return Outcome::Done(len);
    };
    sq.ud.open = Some(i);
    match ring.producer.has_room(total) {
        Ok(true) => {}
        Ok(false) => {
            ring.publish(qp.nic);
            ring.peer.wake();
            return Outcome::Later;
        }
        Err(_) => return Outcome::Done(len),
    }
    let mut flags = 0;
    if view.wr.send_flags & IBV_SEND_SOLICITED != 0 {
        flags |= FLAG_SOLICITED;
        ring.solicited = true;
    }
    let (kind, imm) = if view.wr.opcode == IBV_WR_SEND_WITH_IMM {
        // SAFETY: reads the immediate of the union, which is plain bytes.
        (Kind::SendWithImm, unsafe { view.wr.imm.imm_data })
    } else {
        (Kind::Send, 0)
    };
    if let Err(status) = gather(qp, &mut sq.local, view, &mut ring.producer, total) {
        return Outcome::Failed(status);
    }
    // "If the high-order bit of the Q_Key is set, the one of the queue pair is used" (IBTA 10.2.5).
    let qkey = if qkey >> 31 != 0 {
        qp.qkey.load(Ordering::Relaxed)
    } else {
        qkey
    };
    ring.producer
        .commit(header(kind, flags, imm, len, qkey), total);
    Outcome::Done(len)
}

/// The ring to `qpn` as `ah` addresses it.
#[inline]
fn ud_ring(qp: &Qp, sq: &mut SendQueue, ah: &Ah, qpn: u32) -> Option<usize> {
    recent_ud_ring(sq, ah, qpn).or_else(|| find_ud_ring(qp, sq, ah, qpn))
}

/// Place of a destination among the recent ones.
#[inline]
fn recent_place(ah: &Ah, qpn: u32) -> usize {
    #[allow(clippy::cast_possible_truncation)] // a hash
    let hash = ah.id as usize ^ qpn as usize ^ (qpn >> QP_BITS) as usize;
    hash % RECENT
}

/// The ring to `qpn`, if it was used recently and still leads there.
#[inline]
fn recent_ud_ring(sq: &SendQueue, ah: &Ah, qpn: u32) -> Option<usize> {
    let &(id, q, i) = sq.ud.recent.get(recent_place(ah, qpn))?;
    let ring = sq.ud.rings.get(i)?.as_ref()?;
    let dest = ring.peer.segment.qp(ring.dest_index)?;
    (id == ah.id
        && q == qpn
        && !ring.peer.is_dead()
        && dest.epoch.load(Ordering::Relaxed) == ring.dest_epoch)
        .then_some(i)
}

#[cold]
fn find_ud_ring(qp: &Qp, sq: &mut SendQueue, ah: &Ah, qpn: u32) -> Option<usize> {
    if !ah.reachable || qpn >> 24 != 0 {
        return None;
    }
    let peer = qp.nic.fabric.peer(qpn as usize >> QP_BITS)?;
    let index = qpn as usize % MAX_QPS;
    let dest = peer.segment.qp(index)?;
    let state = dest.state.load(Ordering::Acquire);
    let receives = state > 1 + IBV_QPS_INIT && state != 1 + IBV_QPS_ERR;
    if !receives || dest.qp_type.load(Ordering::Relaxed) != IBV_QPT_UD {
        return None;
    }
    let key = (ah.path_key(), qpn);
    let known = sq.ud.by_destination.get(&key).copied().filter(|&i| {
        matches!(sq.ud.rings.get(i), Some(Some(r)) if r.peer.incarnation == peer.incarnation
            && r.dest_epoch == dest.epoch.load(Ordering::Relaxed))
    });
    let i = match known {
        Some(i) => i,
        None => {
            sweep(qp.nic, sq);
            let ring = new_ring(
                qp,
                peer,
                &RingUse {
                    slots: UD_RING_SLOTS,
                    dest_index: index,
                    rnr_retry: 0,
                    grh: ah.grh,
                    path: ah.path,
                },
            )?;
            let i = match sq.ud.rings.iter().position(Option::is_none) {
                Some(free) => free,
                None => {
                    sq.ud.rings.push(None);
                    sq.ud.rings.len() - 1
                }
            };
            sq.ud.rings[i] = Some(ring);
            sq.ud.by_destination.insert(key, i);
            i
        }
    };
    if sq.ud.recent.is_empty() {
        sq.ud.recent = vec![(0, 0, 0); RECENT];
    }
    sq.ud.recent[recent_place(ah, qpn)] = (ah.id, qpn, i);
    Some(i)
}

/// Closes the rings to queue pairs that are no more.
fn sweep(nic: &Nic, sq: &mut SendQueue) {
    let UdRings {
        rings,
        by_destination,
        open,
        ..
    } = &mut sq.ud;
    for (i, place) in rings.iter_mut().enumerate() {
        let gone = *open != Some(i)
            && place.as_ref().is_some_and(|r| {
                r.peer.is_dead()
                    || r.peer
                        .segment
                        .qp(r.dest_index)
                        .is_none_or(|d| d.epoch.load(Ordering::Relaxed) != r.dest_epoch)
            });
        if gone && let Some(ring) = place.take() {
            by_destination.retain(|_, &mut v| v != i);
            ring.close(nic);
        }
    }
}

/// Makes completions of what has been done. True if something waits for a deadline.
pub(crate) fn poll_sends(qp: &Qp, sink: &mut WcSink<'_>) -> bool {
    let mut sq = qp.sq.lock();
    let sq = &mut *sq;
    let mut waiting = false;
    if !sq.pending.is_empty() {
        waiting |= progress(qp, sq);
    }
    if !sq.deferred.is_empty() {
        waiting |= retry_deferred(qp, sq);
    }
    while !sink.is_full() {
        let Some(wqe) = sq.ready.pop() else { break };
        sq.freed = wqe.seq + 1;
        if wqe.status == IBV_WC_SUCCESS {
            let mut wc = ibv_wc::zeroed();
            wc.wr_id = wqe.wr_id;
            wc.opcode = wqe.opcode;
            wc.byte_len = wqe.byte_len;
            wc.qp_num = qp.qpn;
            sink.push(wc);
        } else {
            sink.push(failed(qp, wqe.wr_id, wqe.status));
        }
    }
    qp.send_work.store(sq.work() as u8, Ordering::Relaxed);
    waiting
}

/// Moves what the receiver has consumed from pending to ready.
#[inline]
fn progress(qp: &Qp, sq: &mut SendQueue) -> bool {
    let Some(out) = &mut sq.out else {
        // UD: pending holds only what waits behind a failure.
        return settle_front(qp, sq, u64::MAX);
    };
    let before = sq.pending.wqes.head;
    let Ok(consumed) = out.producer.consumed() else {
        fail_now(qp, sq, IBV_WC_REM_OP_ERR);
        return false;
    };
    settle_front(qp, sq, consumed);
    if sq.pending.is_empty() {
        sq.silent_since = None;
        return false;
    }
    if sq.pending.wqes.head != before {
        sq.silent_since = None;
    }
    stuck(qp, sq)
}

/// Moves the WRs whose records lie before `consumed` to ready; a failed one behind them fails the queue.
#[inline]
fn settle_front(qp: &Qp, sq: &mut SendQueue, consumed: u64) -> bool {
    take_consumed(sq, consumed);
    if let Some(front) = sq.pending.front()
        && front.status != IBV_WC_SUCCESS
    {
        let status = front.status;
        fail_now(qp, sq, status);
    }
    false
}

/// Moves the WRs whose records lie before `consumed` to ready, up to one that has failed.
#[inline]
fn take_consumed(sq: &mut SendQueue, consumed: u64) {
    while let Some(&front) = sq.pending.front() {
        if front.status != IBV_WC_SUCCESS || front.end > consumed {
            return;
        }
        sq.pending.pop();
        if front.signaled {
            sq.ready.push(front);
        }
    }
}

/// The oldest WR is not done: refused, its receiver gone, or simply not there yet?
#[inline]
fn stuck(qp: &Qp, sq: &mut SendQueue) -> bool {
    let Some(out) = &mut sq.out else { return false };
    if !out.announced {
        out.announce(qp.nic);
    }
    let nak = out
        .header(qp.nic)
        .map_or(0, |h| h.nak.load(Ordering::Acquire));
    if nak != 0 {
        // What was consumed before the refusal comes first.
        if let Ok(consumed) = out.producer.consumed() {
            settle_front(qp, sq, consumed);
        }
        if qp.qp_type == QpType::Rc {
            fail_now(qp, sq, nak);
        } else {
            settle_front(qp, sq, u64::MAX);
        }
        return false;
    }
    let answering = out
        .peer
        .segment
        .qp(out.dest_index)
        .is_some_and(|d| answers(d, qp.qpn));
    if out.peer.is_dead() {
        if qp.qp_type == QpType::Rc {
            fail_now(qp, sq, IBV_WC_RETRY_EXC_ERR);
        } else {
            settle_front(qp, sq, u64::MAX);
        }
        return false;
    }
    if answering {
        sq.silent_since = None;
        return false;
    }
    if qp.qp_type != QpType::Rc {
        settle_front(qp, sq, u64::MAX);
        return false;
    }
    if silent_too_long(qp, sq) {
        fail_now(qp, sq, IBV_WC_RETRY_EXC_ERR);
        return false;
    }
    true
}

/// Tries the WRs that had to wait, in order.
#[cold]
fn retry_deferred(qp: &Qp, sq: &mut SendQueue) -> bool {
    // After a failure nothing more is executed: what is here is flushed as soon as the failed WR completes.
    if qp.state() == QpState::Sqd || sq.stopped {
        return false;
    }
    while let Some(mut d) = sq.deferred.pop_front() {
        let view = WrView {
            wr: &d.wr,
            sges: &d.sges,
            inline: (d.wr.send_flags & IBV_SEND_INLINE != 0).then_some(&d.inline[..]),
            ah: d.ah.as_deref(),
        };
        let mut outcome = execute(qp, sq, &view);
        if matches!(outcome, Outcome::Later) && qp.qp_type != QpType::Rc {
            let now = now_ns();
            if now - *d.since.get_or_insert(now) >= UNRELIABLE_WAIT_NS {
                outcome = Outcome::Done(0);
            }
        }
        if matches!(outcome, Outcome::Later) {
            sq.deferred.push_front(d);
            publish(qp, sq);
            return true;
        }
        let signaled = sq.sq_sig_all || d.wr.send_flags & IBV_SEND_SIGNALED != 0;
        settle(qp, sq, &d.wr, d.seq, signaled, &outcome);
        if sq.stopped {
            return false;
        }
    }
    publish(qp, sq);
    false
}

/// Wakes the engine of the peer on which the oldest WR waits.
#[cold]
pub(crate) fn wake_debtor(qp: &Qp) {
    if qp.send_work.load(Ordering::Relaxed) == SendWork::None as u8 {
        return;
    }
    let Some(sq) = qp.sq.try_lock() else { return };
    if let Some(out) = &sq.out {
        if !sq.pending.is_empty() || !sq.deferred.is_empty() {
            out.peer.wake();
        }
    } else if let Some(d) = sq.deferred.front() {
        // SAFETY: the union's member for UD; a plain integer.
        let qpn = unsafe { d.wr.wr.ud.remote_qpn };
        if let Some(peer) = qp.nic.fabric.peer(qpn as usize >> QP_BITS) {
            peer.wake();
        }
    }
}
