//! Counting: what a call on the data path adds to the cells.

use std::sync::atomic::Ordering::Relaxed;

use verbs_abi::*;

use crate::control;
use crate::layout::*;
use crate::objects::{Context, Cq, QPS, Qp, QpUse, place_of, qp_key};
use crate::session::{add, raise};

/// A work request of a send queue, as far as it is counted.
pub(crate) trait Request {
    fn opcode(&self) -> ibv_wr_opcode;
    fn flags(&self) -> u32;
    /// Scatter/gather elements, and the bytes in them.
    fn payload(&self) -> (u32, u32);
    /// Remote address of RDMA and atomics.
    fn remote(&self) -> u64;
    /// Address handle and QP number of a datagram.
    fn destination(&self) -> (*mut ibv_ah, u32);
}

/// The time is read once in so many work requests or completions, a power of two, and for the first few of them.
const TOUCH_EVERY: u64 = 256;
const TOUCH_FIRST: u64 = 64;
/// Look-ups of destinations after which no more are made.
const MAX_LOOKUPS: u64 = 1 << 16;

/// Equal work requests in a row.
#[derive(Clone, Copy)]
struct Run {
    key: Key,
    count: u64,
    signaled: u64,
}

/// Counts a postlist that was accepted.
#[inline(always)]
pub(crate) fn posted(qp: &Qp, requests: impl Iterator<Item = impl Request>) {
    let mine = qp.mine();
    let before = qp.posted.load(Relaxed);
    let signaled_before = qp.signaled.load(Relaxed);
    let (mut count, mut signaled) = (0u64, 0u64);
    let mut run = Run {
        key: Key(0),
        count: 0,
        signaled: 0,
    };
    let datagram = qp.qp_type == IBV_QPT_UD;
    for request in requests {
        count += 1;
        let flags = request.flags() | qp.forced;
        let (num_sge, bytes) = request.payload();
        let opcode = request.opcode();
        let key = Key::new(opcode, num_sge, bytes).inline(flags & IBV_SEND_INLINE != 0);
        if key != run.key {
            mine.add_sent(run);
            run = Run {
                key,
                count: 0,
                signaled: 0,
            };
        }
        run.count += 1;
        if flags & IBV_SEND_SIGNALED != 0 {
            let mark = (signaled_before + signaled) as usize & (qp.marks.len() - 1);
            qp.marks[mark].store(before + count, Relaxed);
            run.signaled += 1;
            signaled += 1;
        }
        if datagram {
            mine.add_destination(qp.context, request.destination());
        } else if opcode >= IBV_WR_RDMA_READ {
            mine.add_fetch(opcode, request.remote(), bytes);
        }
    }
    if count == 0 {
        return;
    }
    mine.add_sent(run);
    qp.advance(&qp.posted, count);
    qp.advance(&qp.signaled, signaled);
    let cell = mine.cell;
    add(&cell.lists[class_of(count, LIST_CLASSES)], 1);
    let outstanding = before
        .saturating_sub(qp.retired())
        .min(qp.max_outstanding().saturating_sub(count));
    add(
        &cell.outstanding_sum,
        count * outstanding + count * (count + 1) / 2,
    );
    raise(&cell.outstanding_max, outstanding + count);
    let found = mine.thread.found.load(Relaxed);
    if mine.found.load(Relaxed) != found {
        mine.found.store(found, Relaxed);
        add(&cell.runs, 1);
    }
    if is_time(before, count) {
        qp.context.session.touch();
    }
}

/// Whether the time is read when so many are added to so many.
#[inline(always)]
fn is_time(before: u64, more: u64) -> bool {
    before < TOUCH_FIRST || (before ^ (before + more)) >= TOUCH_EVERY
}

impl QpUse {
    #[inline(always)]
    fn add_sent(&self, run: Run) {
        if run.count == 0 {
            return;
        }
        let place = if self.sent_key.load(Relaxed) == run.key.0 {
            self.sent_place.load(Relaxed) as usize
        } else {
            self.find_sent(run.key)
        };
        let Some(kind) = self.cell.sent.get(place) else {
            return add(&self.cell.unitemised_sent, run.count);
        };
        add(&kind.count, run.count);
        add(&kind.bytes, run.count * u64::from(run.key.bytes()));
        add(&kind.signaled, run.signaled);
    }

    /// The place of a kind; behind the last one if there is none for it.
    #[inline(never)]
    fn find_sent(&self, key: Key) -> usize {
        let kinds = &self.cell.sent;
        let place = place_of(key, kinds.len(), |place| &kinds[place].key);
        let place = place.unwrap_or(usize::MAX);
        self.sent_key.store(key.0, Relaxed);
        self.sent_place.store(place as u64, Relaxed);
        place
    }

    #[inline(always)]
    fn add_received(&self, run: Run) {
        let place = if self.received_key.load(Relaxed) == run.key.0 {
            self.received_place.load(Relaxed) as usize
        } else {
            self.find_received(run.key)
        };
        let Some(kind) = self.cell.received.get(place) else {
            return add(&self.cell.unitemised_received, run.count);
        };
        add(&kind.count, run.count);
        add(&kind.bytes, run.count * u64::from(run.key.bytes()));
    }

    #[inline(never)]
    fn find_received(&self, key: Key) -> usize {
        let kinds = &self.cell.received;
        let place = place_of(key, kinds.len(), |place| &kinds[place].key);
        let place = place.unwrap_or(usize::MAX);
        self.received_key.store(key.0, Relaxed);
        self.received_place.store(place as u64, Relaxed);
        place
    }

    /// Notes whether a READ continues the one before, and where an atomic goes.
    #[inline]
    fn add_fetch(&self, opcode: ibv_wr_opcode, remote: u64, bytes: u32) {
        match opcode {
            IBV_WR_RDMA_READ => {
                if self.read_end.load(Relaxed) == remote {
                    add(&self.cell.adjacent_reads, 1);
                }
                let end = remote.wrapping_add(bytes.into());
                self.read_end.store(end, Relaxed);
            }
            IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD => {
                let slot = (remote as usize / 8) % ATOMIC_SLOTS;
                add(&self.cell.atomic_slots[slot], 1);
            }
            _ => {}
        }
    }

    /// Notes where a datagram goes.
    #[inline]
    fn add_destination(&self, context: &Context, (ah, qpn): (*mut ibv_ah, u32)) {
        let known = (ah.addr() as u64) << 24 | u64::from(qpn & 0xff_ffff);
        let place = (qpn as usize ^ ah.addr() >> 6) & (self.destinations.len() - 1);
        if self.destinations[place].load(Relaxed) != known {
            self.destinations[place].store(known, Relaxed);
            self.look_up(context, ah, qpn);
        }
    }

    #[cold]
    fn look_up(&self, context: &Context, ah: *mut ibv_ah, qpn: u32) {
        if self.destinations_missed.load(Relaxed) >= MAX_LOOKUPS {
            return add(&self.cell.unlisted_peers, 1);
        }
        add(&self.destinations_missed, 1);
        self.add_peer(control::machine_of_datagram(context, ah, qpn));
    }

    /// Notes a machine that it sends to.
    pub(crate) fn add_peer(&self, machine: u64) {
        let machine = machine.max(1);
        for peer in &self.cell.peers {
            match peer.load(Relaxed) {
                0 => return peer.store(machine, Relaxed),
                known if known == machine => return,
                _ => {}
            }
        }
        add(&self.cell.unlisted_peers, 1);
    }
}

/// A completion, as far as it is counted.
#[derive(Clone, Copy)]
pub(crate) struct Completion {
    pub(crate) qpn: u32,
    pub(crate) ok: bool,
    pub(crate) opcode: ibv_wc_opcode,
    pub(crate) bytes: u32,
    pub(crate) imm: bool,
}

impl Completion {
    #[inline(always)]
    pub(crate) fn of(wc: &ibv_wc) -> Self {
        Self {
            qpn: wc.qp_num,
            ok: wc.status == IBV_WC_SUCCESS,
            opcode: wc.opcode,
            bytes: wc.byte_len,
            imm: wc.wc_flags & IBV_WC_WITH_IMM != 0,
        }
    }

    /// What must be equal for completions to be counted together.
    #[inline(always)]
    fn key(self) -> Key {
        if !self.ok {
            Key(u64::MAX)
        } else if self.opcode & IBV_WC_RECV == 0 {
            Key(0)
        } else {
            Key::new(self.opcode, 0, self.bytes).imm(self.imm)
        }
    }
}

/// Counts a poll that found nothing.
#[inline(always)]
pub(crate) fn polled_empty(cq: &Cq) {
    let cell = cq.mine().cell;
    add(&cell.polls, 1);
    add(&cell.empty_polls, 1);
}

/// Counts a poll that found something.
#[inline(always)]
pub(crate) fn polled(cq: &Cq, count: u64) {
    let mine = cq.mine();
    let cell = mine.cell;
    let before = cell.completions.load(Relaxed);
    add(&mine.thread.found, 1);
    add(&cell.polls, 1);
    add(&cell.completions, count);
    add(&cell.found[class_of(count, POLL_CLASSES)], 1);
    if is_time(before, count) {
        cq.context.session.touch();
    }
}

/// Counts completions.
#[inline(always)]
pub(crate) fn completed(cq: &Cq, completions: impl Iterator<Item = Completion>) {
    let mut qpn = u32::MAX;
    let mut run = Run {
        key: Key(0),
        count: 0,
        signaled: 0,
    };
    for completion in completions {
        let key = completion.key();
        if key != run.key || completion.qpn != qpn {
            add_completed(cq, qpn, run);
            qpn = completion.qpn;
            run = Run {
                key,
                count: 0,
                signaled: 0,
            };
        }
        run.count += 1;
    }
    add_completed(cq, qpn, run);
}

#[inline(always)]
fn add_completed(cq: &Cq, qpn: u32, run: Run) {
    if run.count == 0 {
        return;
    }
    let Some(qp) = QPS.find(qp_key(cq.device, qpn)) else {
        return;
    };
    match run.key.0 {
        0 => qp.advance(&qp.completed, run.count),
        u64::MAX => add(&qp.mine().cell.failed, run.count),
        _ => qp.mine().add_received(run),
    }
}
