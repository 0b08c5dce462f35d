//! The receive side of a queue pair: receive queues, and what becomes of the records in inbound rings.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use verbs_abi::*;

use crate::cq::WcSink;
use crate::fabric::Peer;
use crate::fabric::layout::*;
use crate::fabric::ring::{Consumer, Header, Record};
use crate::nic::Nic;
use crate::qp::Qp;
use crate::qp_state::{QpState, QpType, rnr_timer_ns};
use crate::region_cache::{KeyError, RegionCache};
use crate::send::{FLAG_BY_REFERENCE, FLAG_SOLICITED, Kind, now_ns};

/// Bytes that precede the payload in a UD receive buffer: `ibv_post_recv(3)`.
pub(crate) const GRH_BYTES: usize = 40;
/// `rnr_retry` that means for ever: IBTA vol. 1, 9.7.5.2.8.
const RNR_RETRY_FOREVER: u32 = 7;

/// A receive WR in its queue; its SGEs lie beside it.
#[derive(Clone, Copy, Default)]
struct RecvWqe {
    wr_id: u64,
    num_sge: u32,
}

/// A receive queue: of a queue pair, or shared.
pub(crate) struct RecvQueue {
    wqes: Box<[RecvWqe]>,
    sges: Box<[ibv_sge]>,
    max_sge: usize,
    max_wr: u64,
    /// WRs taken.
    head: u64,
    /// WRs posted.
    tail: u64,
    /// Limit of a shared receive queue below which an event is raised; 0: none.
    pub(crate) limit: u32,
    /// A message waits for a receive WR.
    wanted: bool,
}

/// A receive WR that was taken from its queue.
pub(crate) struct TakenRecv<'a> {
    pub(crate) wr_id: u64,
    sges: &'a [ibv_sge],
}

impl RecvQueue {
    pub(crate) fn new(max_wr: u32, max_sge: u32) -> Self {
        let slots = max_wr.max(1).next_power_of_two() as usize;
        let max_sge = max_sge as usize;
        Self {
            wqes: vec![RecvWqe::default(); slots].into(),
            sges: vec![ibv_sge::zeroed(); slots * max_sge].into(),
            max_sge,
            max_wr: u64::from(max_wr),
            head: 0,
            tail: 0,
            limit: 0,
            wanted: false,
        }
    }

    /// WRs in the queue.
    pub(crate) fn len(&self) -> u64 {
        self.tail - self.head
    }

    pub(crate) fn max_wr(&self) -> u64 {
        self.max_wr
    }

    pub(crate) fn max_sge(&self) -> usize {
        self.max_sge
    }

    pub(crate) fn clear(&mut self) {
        self.head = self.tail;
    }

    /// Adds a WR.
    ///
    /// # Errors
    /// `ENOMEM`: full; `EINVAL`: too many SGEs.
    #[inline]
    pub(crate) fn post(&mut self, wr_id: u64, sges: &[ibv_sge]) -> Result<(), i32> {
        if sges.len() > self.max_sge {
            return Err(libc::EINVAL);
        }
        if self.len() >= self.max_wr {
            return Err(libc::ENOMEM);
        }
        let slot = self.tail as usize & (self.wqes.len() - 1);
        #[allow(clippy::cast_possible_truncation)] // at most `max_sge`, a `u32`
        let num_sge = sges.len() as u32;
        self.wqes[slot] = RecvWqe { wr_id, num_sge };
        match sges {
            [] => {}
            [sge] => self.sges[slot * self.max_sge] = *sge,
            _ => self.sges[slot * self.max_sge..][..sges.len()].copy_from_slice(sges),
        }
        self.tail += 1;
        Ok(())
    }

    /// Puts the WR that was taken last back to the front; nothing has been posted since.
    fn put_back(&mut self) {
        self.head -= 1;
    }

    /// Has a message been waiting for the WRs that were posted? Says so once.
    #[inline]
    pub(crate) fn was_wanted(&mut self) -> bool {
        std::mem::take(&mut self.wanted)
    }

    /// Takes the oldest WR.
    #[inline(always)]
    pub(crate) fn take(&mut self) -> Option<TakenRecv<'_>> {
        if self.head == self.tail {
            return None;
        }
        let slot = self.head as usize & (self.wqes.len() - 1);
        self.head += 1;
        let wqe = self.wqes[slot];
        Some(TakenRecv {
            wr_id: wqe.wr_id,
            sges: &self.sges[slot * self.max_sge..][..wqe.num_sge as usize],
        })
    }
}

/// A ring through which a peer's queue pair sends to one of ours.
pub(crate) struct Inbound {
    consumer: Consumer,
    peer: Arc<Peer>,
    offset: usize,
    src_qpn: u32,
    src_cq: usize,
    /// When the record at the front was first found to have no receive WR.
    rnr_since: Option<u64>,
    /// Nothing more is taken from it: its sender was refused, or wrote garbage.
    stopped: bool,
    remote: RegionCache,
    /// UD: what every message of this ring says of its way.
    path: Path,
}

/// The way of the messages of a ring, read once: it does not change.
struct Path {
    slid: u16,
    sl: u8,
    dlid_path_bits: u8,
    wc_flags: u32,
    grh: [u8; GRH_BYTES],
    /// Payload length and immediate for which the lengths in `grh` are right.
    grh_for: (u32, bool),
}

impl Path {
    #[allow(clippy::cast_possible_truncation)] // taking the fields of a word apart
    fn of(header: &RingHeader) -> Self {
        let path = header.path.load(Ordering::Relaxed);
        let mut grh = [0; GRH_BYTES];
        for (bytes, word) in grh.chunks_exact_mut(8).zip(&header.grh) {
            bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
        }
        Self {
            slid: path as u16,
            sl: (path >> 16) as u8,
            dlid_path_bits: (path >> 24) as u8,
            wc_flags: if path >> 32 & 1 != 0 { IBV_WC_GRH } else { 0 },
            grh,
            grh_for: (u32::MAX, false),
        }
    }

    /// The GRH of a message, if messages of this ring have one.
    #[inline]
    fn grh(&mut self, payload: u32, with_imm: bool) -> Option<&[u8; GRH_BYTES]> {
        if self.wc_flags == 0 {
            return None;
        }
        if self.grh_for != (payload, with_imm) {
            self.grh_for = (payload, with_imm);
            let payload = u16::try_from(payload).unwrap_or(u16::MAX);
            let bytes = crate::device::ud_packet_bytes(payload, with_imm);
            crate::device::set_grh_length(&mut self.grh, bytes);
        }
        Some(&self.grh)
    }
}

impl Inbound {
    /// The ring at `offset` of `peer`'s segment, if one is there.
    pub(crate) fn open(peer: Arc<Peer>, offset: usize) -> Option<Self> {
        let header = peer.segment.ring_header(offset)?;
        let slots = header.slots.load(Ordering::Relaxed);
        // SAFETY: `peer` keeps the segment mapped and lives in the same value.
        let memory = unsafe { peer.segment.ring(offset, slots)? };
        Some(Self {
            consumer: Consumer::new(memory),
            src_qpn: header.src_qpn.load(Ordering::Relaxed),
            src_cq: header.src_cq.load(Ordering::Relaxed) as usize,
            rnr_since: None,
            stopped: false,
            remote: RegionCache::new(),
            path: Path::of(header),
            peer,
            offset,
        })
    }

    pub(crate) fn peer(&self) -> &Arc<Peer> {
        &self.peer
    }

    pub(crate) fn src_qpn(&self) -> u32 {
        self.src_qpn
    }

    #[inline]
    fn header(&self) -> Option<&RingHeader> {
        self.peer.segment.ring_header(self.offset)
    }

    /// Tells the sender that nobody reads this ring any more.
    pub(crate) fn detach(&self) {
        if let Some(header) = self.header() {
            header.detached.store(1, Ordering::Release);
        }
    }

    /// Refuses the record at the front with the status that the requester gets.
    fn refuse(&mut self, status: ibv_wc_status) {
        self.stopped = true;
        self.consumer.release();
        if let Some(header) = self.header() {
            header.nak.store(status, Ordering::Release);
        }
        self.call_sender();
    }

    /// Wakes the sender's engine if its send CQ is armed.
    fn call_sender(&self) {
        if let Some(cq) = self.peer.segment.cq(self.src_cq) {
            call_if_armed(&cq.armed, &self.peer, true);
        }
    }

    /// Gives consumed records back; for reliable transports that is the acknowledgement.
    #[inline]
    fn release(&mut self, acknowledge: bool) {
        let unreleased = self.consumer.unreleased();
        if unreleased == 0 {
            return;
        }
        if acknowledge {
            self.consumer.release();
            self.call_sender();
        } else if unreleased >= self.consumer.slots() / 8 {
            self.consumer.release();
        }
    }
}

/// Wakes `peer`'s engine if `armed` waits for what has just happened, unless somebody has done so already.
#[inline]
pub(crate) fn call_if_armed(armed: &std::sync::atomic::AtomicU32, peer: &Peer, solicited: bool) {
    // SYNC POINT A: the arming side passes a barrier on every core between its store and its next look into
    // the ring, so this load needs no fence behind the publishing store.
    std::sync::atomic::compiler_fence(Ordering::SeqCst);
    let value = armed.load(Ordering::Relaxed);
    if value == ARMED_ANY || (value == ARMED_SOLICITED && solicited) {
        call(armed, value, peer);
    }
}

#[cold]
fn call(armed: &std::sync::atomic::AtomicU32, value: u32, peer: &Peer) {
    if armed
        .compare_exchange(
            value,
            value | ARMED_CALLED,
            Ordering::AcqRel,
            Ordering::Relaxed,
        )
        .is_ok()
    {
        peer.wake();
    }
}

/// The receive side of a queue pair, in the hands of its receive CQ.
pub(crate) struct RecvSide {
    qp: Arc<Qp>,
    rings: Vec<Inbound>,
    cursor: usize,
    local: RegionCache,
}

/// The memory region that the last receive WR named, kept pinned while a run of records is placed: a run
/// usually goes to one region, and looking it up for each record would cost as much as the record.
struct Window {
    lkey: u32,
    addr: u64,
    len: u64,
    first: *mut u8,
    pin: Option<crate::keys::Pin>,
}

impl Window {
    const fn none() -> Self {
        Self {
            lkey: 0,
            addr: 0,
            len: 0,
            first: std::ptr::null_mut(),
            pin: None,
        }
    }

    /// The own address of a buffer to be written, valid until the window moves.
    #[inline(always)]
    fn buffer(
        &mut self,
        qp: &Qp,
        cache: &mut RegionCache,
        sge: &ibv_sge,
    ) -> Result<*mut u8, PlaceError> {
        let offset = sge.addr.wrapping_sub(self.addr);
        // `len` is 0 where there is no window, and lengths are below 2^63.
        if sge.lkey == self.lkey && offset < self.len && u64::from(sge.length) <= self.len - offset
        {
            return Ok(self.first.wrapping_add(offset as usize));
        }
        self.move_to(qp, cache, sge)
    }

    #[cold]
    fn move_to(
        &mut self,
        qp: &Qp,
        cache: &mut RegionCache,
        sge: &ibv_sge,
    ) -> Result<*mut u8, PlaceError> {
        self.close();
        let (region, pin) = local_region(qp.nic, cache, qp.pd, sge, true)?;
        let first = region.direct(region.addr).ok_or(PlaceError::Local)?;
        *self = Self {
            lkey: sge.lkey,
            addr: region.addr,
            len: region.len,
            first,
            pin: Some(pin),
        };
        Ok(first.wrapping_add((sge.addr - self.addr) as usize))
    }

    /// Lets go of the region: a thread has two pins, and what follows needs them.
    fn close(&mut self) {
        self.pin = None;
        self.len = 0;
    }
}

/// What handling a record asks for.
enum Handled {
    /// It is done; go on.
    Done,
    /// There is no receive WR for it yet.
    NotReady,
    /// The queue pair went into the error state; the requester gets this status.
    Failed(ibv_wc_status),
    /// The sender is gone, and with it what the record speaks of.
    Lost,
}

impl RecvSide {
    pub(crate) fn new(qp: Arc<Qp>) -> Self {
        Self {
            qp,
            rings: Vec::new(),
            cursor: 0,
            local: RegionCache::new(),
        }
    }

    #[inline]
    pub(crate) fn qp(&self) -> &Arc<Qp> {
        &self.qp
    }

    pub(crate) fn attach(&mut self, ring: Inbound) {
        self.rings.push(ring);
    }

    /// Lets go of all rings.
    pub(crate) fn detach_all(&mut self) {
        for ring in self.rings.drain(..) {
            ring.detach();
        }
        self.local.clear();
    }

    /// Makes completions of what has arrived, from at most `2 * scan` rings. True if a record waits for a
    /// deadline.
    #[inline]
    pub(crate) fn receive(&mut self, sink: &mut WcSink<'_>, scan: usize) -> bool {
        let state = self.qp.state();
        if state == QpState::Rtr || state == QpState::Rts {
            // The usual case, first.
        } else if state == QpState::Err {
            self.flush(sink);
            return false;
        } else if !matches!(state, QpState::Sqd | QpState::Sqe) {
            return false;
        }
        if self.qp.shared().remote_error.load(Ordering::Relaxed) != 0 {
            self.take_remote_error();
            return false;
        }
        let mut waiting = false;
        let n = self.rings.len();
        for i in 0..n.min(scan) {
            if sink.is_full() {
                return waiting;
            }
            waiting |= self.receive_from(i, sink);
        }
        if n > scan {
            for _ in 0..scan {
                if sink.is_full() {
                    return waiting;
                }
                self.cursor = if self.cursor + 1 >= n || self.cursor < scan {
                    scan
                } else {
                    self.cursor + 1
                };
                let i = self.cursor;
                let before = sink.len();
                waiting |= self.receive_from(i, sink);
                if sink.len() > before {
                    self.rings.swap(i, i % scan);
                }
            }
        }
        if self.rings.iter().any(|r| r.stopped) {
            self.remove_finished();
        }
        waiting
    }

    /// Completes what is posted after the queue pair has failed.
    #[cold]
    fn flush(&mut self, sink: &mut WcSink<'_>) {
        if self.qp.srq.is_some() {
            return;
        }
        let mut rq = self.qp.rq.lock();
        while !sink.is_full() {
            let Some(wqe) = rq.take() else { return };
            sink.push(failed(&self.qp, wqe.wr_id, IBV_WC_WR_FLUSH_ERR));
        }
    }

    /// A requester has told us that its request was a violation.
    #[cold]
    fn take_remote_error(&mut self) {
        let event = self.qp.shared().remote_error.swap(0, Ordering::AcqRel);
        if self.qp.qp_type == QpType::Rc && event != 0 {
            self.qp.fail();
            self.qp.raise(event - 1);
        }
    }

    #[cold]
    fn remove_finished(&mut self) {
        let qp = Arc::clone(&self.qp);
        self.rings.retain_mut(|ring| {
            let over = ring.stopped
                && (qp.qp_type == QpType::Ud
                    || ring.peer.is_dead()
                    || ring
                        .header()
                        .is_none_or(|h| h.closed.load(Ordering::Acquire) != 0));
            if over {
                ring.detach();
            }
            !over
        });
    }

    #[inline]
    fn receive_from(&mut self, i: usize, sink: &mut WcSink<'_>) -> bool {
        let Some(ring) = self.rings.get_mut(i) else {
            return false;
        };
        if ring.stopped {
            return false;
        }
        let qp = &*self.qp;
        let reliable = qp.qp_type != QpType::Ud;
        let mut rq = None;
        let mut window = Window::none();
        let mut waiting = false;
        while !sink.is_full() {
            let record = match ring.consumer.peek() {
                Ok(Some(record)) => record,
                Ok(None) => {
                    if rq.is_none() {
                        Self::idle(ring);
                    }
                    break;
                }
                Err(_) => {
                    tracing::warn!(
                        "queue pair {:#x} got garbage from {:#x}",
                        qp.qpn,
                        ring.src_qpn
                    );
                    if qp.qp_type == QpType::Rc {
                        Self::refuse(qp, ring, IBV_WC_REM_OP_ERR);
                    }
                    ring.stopped = true;
                    break;
                }
            };
            let rq = rq.get_or_insert_with(|| qp.recv_queue().lock());
            let slots = record.slots();
            let handled = handle(
                qp,
                rq,
                &record,
                &ring.peer,
                ring.src_qpn,
                &mut ring.path,
                &mut window,
                &mut self.local,
                &mut ring.remote,
                sink,
            );
            match handled {
                Handled::Done => {
                    ring.consumer.advance(slots);
                    ring.rnr_since = None;
                }
                Handled::NotReady => {
                    waiting |= Self::not_ready(qp, ring);
                    break;
                }
                Handled::Failed(status) => {
                    Self::refuse(qp, ring, status);
                    break;
                }
                Handled::Lost => {
                    ring.stopped = true;
                    break;
                }
            }
        }
        if let Some(srq) = &qp.srq
            && let Some(rq) = &mut rq
        {
            srq.check_limit(rq);
        }
        drop(rq);
        ring.release(reliable);
        waiting
    }

    /// A ring with nothing in it: is it over?
    #[inline]
    fn idle(ring: &mut Inbound) {
        let over = ring.peer.is_dead()
            || ring
                .header()
                .is_some_and(|h| h.closed.load(Ordering::Acquire) != 0);
        if over && matches!(ring.consumer.peek(), Ok(None)) {
            ring.stopped = true;
        }
        if ring.consumer.unreleased() != 0 {
            ring.consumer.release();
        }
    }

    #[cold]
    fn refuse(qp: &Qp, ring: &mut Inbound, status: ibv_wc_status) {
        ring.refuse(status);
        qp.fail();
    }

    /// No receive WR for the record at the front of a reliable ring. True if a deadline is running.
    #[cold]
    fn not_ready(qp: &Qp, ring: &mut Inbound) -> bool {
        // Read now: a ring may be opened before its sender has come to RTS and knows the count.
        let rnr_retry = ring
            .header()
            .map_or(RNR_RETRY_FOREVER, |h| h.rnr_retry.load(Ordering::Relaxed));
        if rnr_retry >= RNR_RETRY_FOREVER {
            return false;
        }
        let now = now_ns();
        let since = *ring.rnr_since.get_or_insert(now);
        let timer = qp.shared().min_rnr_timer.load(Ordering::Relaxed);
        let timer = rnr_timer_ns(u8::try_from(timer & 31).unwrap_or(0));
        if now - since >= u64::from(rnr_retry) * timer {
            // The requester gives up; this queue pair goes on waiting (IBTA vol. 1, 9.7.5.2.8).
            ring.refuse(IBV_WC_RNR_RETRY_EXC_ERR);
            return false;
        }
        true
    }
}

/// A completion that failed: of it only these fields are valid (`ibv_poll_cq(3)`).
#[cold]
pub(crate) fn failed(qp: &Qp, wr_id: u64, status: ibv_wc_status) -> ibv_wc {
    let mut wc = ibv_wc::zeroed();
    wc.wr_id = wr_id;
    wc.status = status;
    wc.qp_num = qp.qpn;
    wc
}

/// Gives a record to the receive WR at the front.
#[inline(always)]
#[allow(clippy::too_many_arguments)] // the parts of three borrowed structures
fn handle(
    qp: &Qp,
    rq: &mut RecvQueue,
    record: &Record<'_>,
    peer: &Arc<Peer>,
    src_qpn: u32,
    path: &mut Path,
    window: &mut Window,
    local: &mut RegionCache,
    remote: &mut RegionCache,
    sink: &mut WcSink<'_>,
) -> Handled {
    let header = record.header;
    let ud = qp.qp_type == QpType::Ud;
    if ud && header.extra != qp.qkey.load(Ordering::Relaxed) {
        // IBTA vol. 1, 10.2.5: a packet with the wrong Q_Key is silently dropped.
        return Handled::Done;
    }
    let (opcode, flags) = match Kind::from_header(header.kind) {
        Some(Kind::Send) => (IBV_WC_RECV, 0),
        Some(Kind::SendWithImm) => (IBV_WC_RECV, IBV_WC_WITH_IMM),
        Some(Kind::WriteWithImm) => (IBV_WC_RECV_RDMA_WITH_IMM, IBV_WC_WITH_IMM),
        None => return Handled::Failed(IBV_WC_REM_INV_REQ_ERR),
    };
    let Some(wqe) = rq.take() else {
        return if qp.qp_type == QpType::Rc {
            rq.wanted = true;
            Handled::NotReady
        } else {
            // IBTA vol. 1, 9.8.3.2 and 9.9.3: unreliable services drop it.
            Handled::Done
        };
    };
    let wr_id = wqe.wr_id;
    let mut wc = ibv_wc {
        wr_id,
        status: IBV_WC_SUCCESS,
        opcode,
        vendor_err: 0,
        byte_len: header.len,
        imm: ibv_wc_imm {
            imm_data: header.imm,
        },
        qp_num: qp.qpn,
        src_qp: src_qpn,
        wc_flags: flags,
        pkey_index: 0,
        slid: 0,
        sl: 0,
        dlid_path_bits: 0,
    };
    let mut place_len = header.len as usize;
    if opcode == IBV_WC_RECV_RDMA_WITH_IMM {
        place_len = 0;
    }
    let mut placed = Ok(());
    if ud {
        #[allow(clippy::cast_possible_truncation)] // 40
        let grh_bytes = GRH_BYTES as u32;
        wc.byte_len = header.len.saturating_add(grh_bytes);
        wc.wc_flags |= path.wc_flags;
        wc.slid = path.slid;
        wc.sl = path.sl;
        wc.dlid_path_bits = path.dlid_path_bits;
        if place_len != 0 || !wqe.sges.is_empty() {
            let grh = path.grh(header.len, flags != 0);
            placed = place_ud(qp, wqe.sges, record, grh, window, local);
        }
    } else if place_len != 0 {
        placed = place(qp, wqe.sges, record, peer, window, local, remote);
    }
    if let Err(e) = placed {
        return not_placed(qp, rq, wr_id, &e, sink);
    }
    sink.solicited |= header.flags & FLAG_SOLICITED != 0;
    sink.push(wc);
    Handled::Done
}

/// The payload could not be placed: the completion of the receive WR, and what the requester gets.
#[cold]
fn not_placed(
    qp: &Qp,
    rq: &mut RecvQueue,
    wr_id: u64,
    e: &PlaceError,
    sink: &mut WcSink<'_>,
) -> Handled {
    let (status, handled) = match e {
        // The message never came whole: its receive WR waits for another.
        PlaceError::SenderGone => {
            rq.put_back();
            return Handled::Lost;
        }
        PlaceError::TooLong => (IBV_WC_LOC_LEN_ERR, Handled::Failed(IBV_WC_REM_INV_REQ_ERR)),
        PlaceError::Local => (IBV_WC_LOC_PROT_ERR, Handled::Failed(IBV_WC_REM_OP_ERR)),
        PlaceError::Sender => (IBV_WC_WR_FLUSH_ERR, Handled::Failed(IBV_WC_LOC_PROT_ERR)),
    };
    sink.push(failed(qp, wr_id, status));
    handled
}

enum PlaceError {
    /// The message is longer than the receive WR.
    TooLong,
    /// The receive WR's memory cannot be written.
    Local,
    /// The sender's memory, by its own L_Keys, cannot be read.
    Sender,
    /// The sender has ended.
    SenderGone,
}

/// Scatters a UD message and its GRH over the SGEs of a receive WR.
#[inline(always)]
fn place_ud(
    qp: &Qp,
    sges: &[ibv_sge],
    record: &Record<'_>,
    grh: Option<&[u8; GRH_BYTES]>,
    window: &mut Window,
    local: &mut RegionCache,
) -> Result<(), PlaceError> {
    let len = record.header.len as usize;
    let room: u64 = sges.iter().map(|s| u64::from(s.length)).sum();
    if (len + GRH_BYTES) as u64 > room {
        return Err(PlaceError::TooLong);
    }
    if len > record.payload.len() {
        return Err(PlaceError::Sender);
    }
    let payload = record.payload.as_mut_ptr();
    if let [sge] = sges {
        // Both parts go into one buffer, which is looked up once.
        let dst = window.buffer(qp, local, sge)?;
        // SAFETY: the SGE lies in the pinned region and has room for both (just checked); the ring has `len`
        // bytes behind the header.
        unsafe {
            if let Some(grh) = grh {
                crate::mem::copy(dst, grh.as_ptr(), GRH_BYTES);
            }
            crate::mem::copy(dst.add(GRH_BYTES), payload, len);
        }
        return Ok(());
    }
    window.close();
    let mut to = Scatter {
        nic: qp.nic,
        pd: qp.pd,
        sges,
        offset: 0,
        cache: local,
    };
    match grh {
        // SAFETY: the array is 40 bytes long.
        Some(grh) => unsafe { to.put(grh.as_ptr(), GRH_BYTES)? },
        None => to.skip(GRH_BYTES),
    }
    // SAFETY: the ring has `len` bytes behind the header (checked).
    unsafe { to.put(payload, len) }
}

/// Scatters a message of a connected transport over the SGEs of a receive WR.
#[inline(always)]
fn place(
    qp: &Qp,
    sges: &[ibv_sge],
    record: &Record<'_>,
    peer: &Arc<Peer>,
    window: &mut Window,
    local: &mut RegionCache,
    remote: &mut RegionCache,
) -> Result<(), PlaceError> {
    let header = record.header;
    let len = header.len as usize;
    let room: u64 = sges.iter().map(|s| u64::from(s.length)).sum();
    if len as u64 > room {
        return Err(PlaceError::TooLong);
    }
    if header.flags & FLAG_BY_REFERENCE == 0 {
        if len > record.payload.len() {
            return Err(PlaceError::Sender);
        }
        let payload = record.payload.as_mut_ptr();
        if let [sge] = sges {
            let dst = window.buffer(qp, local, sge)?;
            // SAFETY: the SGE lies in the pinned region and has room (just checked); the ring has `len` bytes
            // behind the header.
            unsafe { crate::mem::copy(dst, payload, len) };
            return Ok(());
        }
        window.close();
        let mut to = Scatter {
            nic: qp.nic,
            pd: qp.pd,
            sges,
            offset: 0,
            cache: local,
        };
        // SAFETY: as above.
        return unsafe { to.put(payload, len) };
    }
    window.close();
    let mut to = Scatter {
        nic: qp.nic,
        pd: qp.pd,
        sges,
        offset: 0,
        cache: local,
    };
    gather_by_reference(qp, record, peer, remote, &mut to)
}

/// Copies a message that the record only describes: its payload is the sender's list of SGEs.
#[cold]
fn gather_by_reference(
    qp: &Qp,
    record: &Record<'_>,
    peer: &Arc<Peer>,
    remote: &mut RegionCache,
    to: &mut Scatter<'_>,
) -> Result<(), PlaceError> {
    let mut left = u64::from(record.header.len);
    let count = record.payload.len() / size_of::<ibv_sge>();
    for i in 0..count {
        if left == 0 {
            break;
        }
        // SAFETY: `count` SGEs fit in the record; any bytes are a valid `ibv_sge`, read once.
        let sge = unsafe {
            record
                .payload
                .as_mut_ptr()
                .cast::<ibv_sge>()
                .add(i)
                .read_volatile()
        };
        let len = u64::from(sge.length).min(left);
        left -= len;
        if len == 0 {
            continue;
        }
        let gone = || {
            if peer.has_ended() {
                PlaceError::SenderGone
            } else {
                PlaceError::Sender
            }
        };
        let (region, _pin) = match remote.get(qp.nic, peer, sge.lkey) {
            Ok(found) => found,
            Err(KeyError::Unknown | KeyError::Fault) => return Err(gone()),
        };
        if !region.contains(sge.addr, len) {
            return Err(gone());
        }
        match region.direct(sge.addr) {
            // SAFETY: in the pinned region.
            Some(src) => unsafe { to.put(src, len as usize)? },
            None => to
                .put_from(region, sge.addr, len as usize)
                .map_err(|e| match e {
                    PlaceError::Sender => gone(),
                    other => other,
                })?,
        }
    }
    if left > 0 {
        return Err(PlaceError::Sender);
    }
    Ok(())
}

/// Writes bytes one after the other into the SGEs of a receive WR.
struct Scatter<'a> {
    nic: &'static Nic,
    pd: u32,
    sges: &'a [ibv_sge],
    offset: u32,
    cache: &'a mut RegionCache,
}

impl Scatter<'_> {
    /// Leaves `len` bytes as they are.
    fn skip(&mut self, mut len: usize) {
        while len > 0 {
            let Some(sge) = self.sges.first() else { return };
            let n = ((sge.length - self.offset) as usize).min(len);
            self.step(n);
            len -= n;
        }
    }

    #[inline]
    fn step(&mut self, n: usize) {
        #[allow(clippy::cast_possible_truncation)] // at most the length of an SGE
        let n = n as u32;
        self.offset += n;
        if self.sges.first().is_some_and(|s| s.length == self.offset) {
            self.sges = &self.sges[1..];
            self.offset = 0;
        }
    }

    /// Writes `len` bytes at `src`.
    ///
    /// # Safety
    /// `src` is readable for `len` bytes.
    #[inline]
    unsafe fn put(&mut self, mut src: *const u8, mut len: usize) -> Result<(), PlaceError> {
        while len > 0 {
            let (sge, n) = self.next_part(len)?;
            if n > 0 {
                let addr = sge.addr + u64::from(self.offset);
                let (region, _pin) = local_region(self.nic, self.cache, self.pd, &sge, true)?;
                // SAFETY: `src` by contract; `local_region` has checked and pinned the SGE.
                unsafe { region.write(addr, src, n) }.map_err(|_| PlaceError::Local)?;
                src = src.wrapping_add(n);
            }
            self.step(n);
            len -= n;
        }
        Ok(())
    }

    /// Writes `len` bytes at `addr` of a region that is reached by system call.
    fn put_from(
        &mut self,
        from: &crate::mem::Region,
        mut addr: u64,
        mut len: usize,
    ) -> Result<(), PlaceError> {
        while len > 0 {
            let (sge, n) = self.next_part(len)?;
            if n > 0 {
                let to = sge.addr + u64::from(self.offset);
                let (region, _pin) = local_region(self.nic, self.cache, self.pd, &sge, true)?;
                let dst = region.direct(to).ok_or(PlaceError::Local)?;
                // SAFETY: `dst` lies in the pinned local region; the caller has pinned `from`.
                unsafe { from.read(addr, dst, n) }.map_err(|_| PlaceError::Sender)?;
                addr += n as u64;
            }
            self.step(n);
            len -= n;
        }
        Ok(())
    }

    #[inline]
    fn next_part(&self, len: usize) -> Result<(ibv_sge, usize), PlaceError> {
        let sge = *self.sges.first().ok_or(PlaceError::TooLong)?;
        Ok((sge, ((sge.length - self.offset) as usize).min(len)))
    }
}

/// The own region that an SGE names, checked: protection domain, range and, for `write`, local write access.
#[inline]
fn local_region<'c>(
    nic: &'static Nic,
    cache: &'c mut RegionCache,
    pd: u32,
    sge: &ibv_sge,
    write: bool,
) -> Result<(&'c crate::mem::Region, crate::keys::Pin), PlaceError> {
    let (region, pin) = cache
        .get(nic, nic.me(), sge.lkey)
        .map_err(|_| PlaceError::Local)?;
    let writable = region.access & IBV_ACCESS_LOCAL_WRITE.cast_unsigned() != 0;
    if region.pd != pd || !region.contains(sge.addr, u64::from(sge.length)) || (write && !writable)
    {
        return Err(PlaceError::Local);
    }
    Ok((region, pin))
}

/// Checks a local SGE and hands out its region.
#[inline]
pub(crate) fn checked_sge<'c>(
    nic: &'static Nic,
    cache: &'c mut RegionCache,
    pd: u32,
    sge: &ibv_sge,
    write: bool,
) -> Option<(&'c crate::mem::Region, crate::keys::Pin)> {
    local_region(nic, cache, pd, sge, write).ok()
}

/// A header of a record that this side would write.
#[inline(always)]
pub(crate) fn header(kind: Kind, flags: u8, imm: u32, len: u32, extra: u32) -> Header {
    Header {
        kind: kind as u8,
        flags,
        imm,
        len,
        extra,
    }
}
