//! A client's way to one worker: numbers its requests and its changes, finds answers.

use std::collections::VecDeque;
use std::time::Instant;

use rpc::{RpcError, herd};
use verbs::time;

use super::request::{ClientStats, Pending};
use crate::wire::{self, MAX_MESSAGES, Op, SCAN_HEADER};

/// No request.
const NONE: u32 = u32::MAX;

#[derive(Debug)]
pub(super) struct Lane {
    client: herd::Client,
    /// Requests of one doorbell.
    batch: usize,
    /// Number, request, and RECVs kept for it, of each slot of the window.
    by_slot: Box<[(u32, u32, u32)]>,
    /// The oldest number that is not answered.
    oldest: u32,
    /// Prepared, and not sent.
    ready: usize,
    /// RECVs that no request keeps: a message that finds none is lost.
    recvs: u32,
    /// The longest message.
    answer_bytes: usize,
    /// Number of the last change.
    seq: u32,
    /// Changes under way, in order.
    changes: VecDeque<u32>,
    /// How far apart these may be.
    span: u32,
    pub(super) doorbells: u64,
    pub(super) broken: Option<RpcError>,
    /// When something came last, or was sent into silence.
    pub(super) alive: Instant,
    /// An answer, copied out of the NIC's reach.
    message: Vec<u8>,
}

/// An answer to a request that is whole now.
pub(super) struct Ended<'a> {
    pub(super) answer: wire::Answer<'a>,
}

impl Lane {
    /// Over a connected client with so many RECVs of so many bytes.
    pub(super) fn new(
        client: herd::Client,
        batch: usize,
        span: u32,
        (recvs, answer_bytes): (u32, usize),
    ) -> Self {
        let window = client.layout().window;
        Self {
            oldest: client.next_number(),
            client,
            batch,
            by_slot: vec![(0, NONE, 0); window as usize].into(),
            ready: 0,
            recvs,
            answer_bytes,
            seq: 0,
            changes: VecDeque::new(),
            span,
            doorbells: 0,
            broken: None,
            alive: time::now(),
            message: vec![0; answer_bytes],
        }
    }

    /// Messages that an answer to a request takes at the most.
    #[inline]
    fn messages(&self, op: &Op, kept: usize) -> u32 {
        match op {
            Op::Scan { limit, .. } => {
                let each = (self.answer_bytes - SCAN_HEADER) / wire::ENTRY;
                let left = (*limit as usize).saturating_sub(kept);
                let messages = left.div_ceil(each.max(1)).max(1);
                u32::try_from(messages).map_or(MAX_MESSAGES, |m| m.min(MAX_MESSAGES))
            }
            _ => 1,
        }
    }

    /// Whether a request may be taken on.
    #[inline]
    pub(super) fn has_room(&self, op: &Op, kept: usize) -> bool {
        let apart = |&oldest: &u32| self.seq.wrapping_add(2).wrapping_sub(oldest) < self.span;
        self.slot_is_free()
            && self.recvs >= self.messages(op, kept)
            && (!op.is_change() || self.changes.front().is_none_or(apart))
    }

    /// Whether nothing is under way.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.oldest == self.client.next_number()
    }

    #[inline]
    fn slot_is_free(&self) -> bool {
        let under_way = self.client.next_number().wrapping_sub(self.oldest);
        (under_way as usize) < self.by_slot.len()
    }

    /// The number of a new change; it is under way from now on. There is no number 0.
    #[inline]
    pub(super) fn next_seq(&mut self) -> u32 {
        self.seq = self.seq.wrapping_add(1).max(1);
        self.changes.push_back(self.seq);
        self.seq
    }

    /// A change is sent again.
    pub(super) fn resume(&mut self, seq: u32) {
        if seq != 0 {
            self.changes.push_back(seq);
        }
    }

    pub(super) fn last_seq(&self) -> u32 {
        self.seq
    }

    /// Changes go on behind this one.
    pub(super) fn go_on_from(&mut self, seq: u32) {
        self.seq = seq;
    }

    /// Prepares a request, and sends when there are enough.
    #[inline]
    pub(super) fn take_on(&mut self, slot: u32, pending: &Pending) -> Result<(), RpcError> {
        let messages = self.messages(&pending.op, pending.kept);
        let mut op = pending.op;
        let mut number = pending.seq;
        if let Op::Scan { limit, .. } = &mut op {
            *limit = limit.saturating_sub(u32::try_from(pending.kept).unwrap_or(0));
            number = messages;
        }
        let (bytes, length) = op.encode(pending.tree, number);
        let number = self.client.push(&bytes[..length])?;
        let place = number as usize & (self.by_slot.len() - 1);
        self.by_slot[place] = (number, slot, messages);
        self.recvs -= messages;
        self.ready += 1;
        if self.ready >= self.batch {
            return self.flush();
        }
        Ok(())
    }

    #[inline]
    fn flush(&mut self) -> Result<(), RpcError> {
        self.ready = 0;
        self.doorbells += 1;
        self.client.flush()
    }

    /// Sends what is prepared, and takes answers: calls `done` for each request that was answered. Returns how many
    /// messages came.
    #[inline]
    pub(super) fn poll(
        &mut self,
        pending: &mut [Pending],
        stats: &mut ClientStats,
        mut done: impl FnMut(&mut Pending, u32, Ended<'_>),
    ) -> Result<usize, RpcError> {
        if let Some(e) = self.broken.take() {
            return Err(e);
        }
        if self.ready > 0 {
            self.flush()?;
        }
        let Self {
            client,
            by_slot,
            changes,
            message,
            recvs,
            ..
        } = self;
        let came = client.poll(|r| {
            let place = r.imm as usize & (by_slot.len() - 1);
            let (number, slot, kept) = by_slot[place];
            let n = r.copy_to(message);
            let Some((pending, answer)) = pending
                .get_mut(slot as usize)
                .filter(|_| number == r.imm)
                .zip(wire::Answer::decode(&message[..n]))
            else {
                stats.discarded += 1;
                return;
            };
            if matches!(pending.op, Op::Scan { .. } | Op::Load)
                && answer.status == wire::Status::Ok
                && !gather(pending, &answer)
            {
                return;
            }
            by_slot[place].1 = NONE;
            *recvs += kept;
            if pending.seq != 0
                && let Some(at) = changes.iter().position(|&seq| seq == pending.seq)
            {
                changes.remove(at);
            }
            done(pending, slot, Ended { answer });
        })?;
        if came > 0 {
            let next = self.client.next_number();
            let mask = self.by_slot.len() - 1;
            while self.oldest != next && self.by_slot[self.oldest as usize & mask].1 == NONE {
                self.oldest = self.oldest.wrapping_add(1);
            }
        }
        Ok(came)
    }
}

/// A message of a SCAN came; whether all of its answer are there now.
fn gather(pending: &mut Pending, answer: &wire::Answer<'_>) -> bool {
    let kept = pending.kept;
    // A server that says more than it was asked for is not believed.
    if pending.came == 0 {
        pending.entries.resize(kept + answer.count, (0, 0));
    }
    let from = kept + answer.first;
    if let Some(places) = pending.entries.get_mut(from..) {
        for (place, entry) in places.iter_mut().zip(answer.entries()) {
            *place = entry;
            pending.came += 1;
        }
    }
    pending.came >= answer.count
}
