//! A client's way to one partition: numbers its requests and its changes, finds answers.

use std::collections::VecDeque;
use std::time::Instant;

use rpc::{RpcError, herd};
use verbs::time;

use super::request::{ClientStats, Pending};
use crate::wire::{self, PART_HEADER, Status};

/// No request.
const NONE: u32 = u32::MAX;

#[derive(Debug)]
pub(super) struct Lane {
    client: herd::Client,
    /// Requests of one doorbell.
    batch: usize,
    /// Number and request of each slot of the window.
    by_slot: Box<[(u32, u32)]>,
    /// The oldest number that is not answered.
    oldest: u32,
    /// Prepared, and not sent.
    ready: usize,
    /// Requests longer than a slot, and how far they have been sent.
    long: VecDeque<(u32, usize)>,
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
    answer: Vec<u8>,
}

/// An answer that ends a request.
pub(super) struct Ended<'a> {
    pub(super) status: Status,
    pub(super) version: u64,
    pub(super) value: &'a [u8],
}

impl Lane {
    pub(super) fn new(client: herd::Client, batch: usize, span: u32) -> Self {
        let window = client.layout().window;
        Self {
            oldest: client.next_number(),
            client,
            batch,
            by_slot: vec![(0, NONE); window as usize].into(),
            ready: 0,
            long: VecDeque::new(),
            seq: 0,
            changes: VecDeque::new(),
            span,
            doorbells: 0,
            broken: None,
            alive: time::now(),
            answer: vec![0; 4096],
        }
    }

    /// Whether a request may be taken on.
    #[inline]
    pub(super) fn has_room(&self, is_change: bool) -> bool {
        let apart = |&oldest: &u32| self.seq.wrapping_add(2).wrapping_sub(oldest) < self.span;
        self.slot_is_free()
            && self.long.is_empty()
            && (!is_change || self.changes.front().is_none_or(apart))
    }

    /// Whether nothing is under way.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.oldest == self.client.next_number() && self.long.is_empty()
    }

    #[inline]
    fn slot_is_free(&self) -> bool {
        let under_way = self.client.next_number().wrapping_sub(self.oldest);
        (under_way as usize) < self.by_slot.len()
    }

    /// The number of a new change; it is under way from now on.
    #[inline]
    pub(super) fn next_seq(&mut self) -> u32 {
        let seq = self.issue();
        self.changes.push_back(seq);
        seq
    }

    /// The number of a new change that is not under way yet. There is no number 0.
    pub(super) fn issue(&mut self) -> u32 {
        self.seq = self.seq.wrapping_add(1).max(1);
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
    pub(super) fn take_on(&mut self, slot: u32, bytes: &[u8]) -> Result<(), RpcError> {
        if bytes.len() > self.client.layout().payload as usize || !self.slot_is_free() {
            self.long.push_back((slot, 0));
            return Ok(());
        }
        self.push(slot, bytes)
    }

    #[inline]
    fn push(&mut self, slot: u32, bytes: &[u8]) -> Result<(), RpcError> {
        let number = self.client.push(bytes)?;
        let place = number as usize & (self.by_slot.len() - 1);
        self.by_slot[place] = (number, slot);
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

    /// Sends parts of long requests, as many as there are slots.
    #[cold]
    fn send_parts(&mut self, pending: &[Pending]) -> Result<(), RpcError> {
        let most = self.client.layout().payload as usize;
        while let Some(&(slot, from)) = self.long.front()
            && self.slot_is_free()
        {
            let bytes = &pending[slot as usize].bytes;
            if bytes.len() <= most {
                self.long.pop_front();
                self.push(slot, bytes)?;
                continue;
            }
            let to = bytes.len().min(from + most - PART_HEADER);
            let mut part = wire::part_header(from, bytes.len(), to - from).to_vec();
            part.extend_from_slice(&bytes[from..to]);
            if to == bytes.len() {
                self.long.pop_front();
            } else if let Some(front) = self.long.front_mut() {
                front.1 = to;
            }
            self.push(slot, &part)?;
        }
        Ok(())
    }

    /// Sends what is prepared, and takes answers: calls `done` for each request that has ended. Returns how many messages
    /// came, those about parts of a request among them.
    #[inline]
    pub(super) fn poll(
        &mut self,
        pending: &mut [Pending],
        stats: &mut ClientStats,
        buffer: &mut Vec<u8>,
        mut done: impl FnMut(&mut Pending, u32, Ended<'_>),
    ) -> Result<usize, RpcError> {
        if let Some(e) = self.broken.take() {
            return Err(e);
        }
        if !self.long.is_empty() {
            self.send_parts(pending)?;
        }
        if self.ready > 0 {
            self.flush()?;
        }
        let Self {
            client,
            by_slot,
            changes,
            answer,
            ..
        } = self;
        let came = client.poll(|r| {
            let place = r.imm as usize & (by_slot.len() - 1);
            let (number, slot) = by_slot[place];
            let n = r.copy_to(answer);
            let Some((pending, reply)) = pending
                .get_mut(slot as usize)
                .filter(|_| number == r.imm)
                .zip(wire::decode_answer(&answer[..n]))
            else {
                stats.discarded += 1;
                return;
            };
            let mut ended = Ended {
                status: reply.status,
                version: reply.version,
                value: reply.value,
            };
            if let Some((total, offset)) = reply.chunk {
                if !chunk(pending, total, offset, reply.value) {
                    return;
                }
                std::mem::swap(buffer, &mut pending.chunks);
                ended.value = buffer;
            }
            by_slot[place].1 = NONE;
            // All parts but the last one only say that they came.
            if reply.status == Status::Part {
                return;
            }
            if pending.seq != 0
                && let Some(at) = changes.iter().position(|&seq| seq == pending.seq)
            {
                changes.remove(at);
            }
            done(pending, slot, ended);
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

/// A chunk of a value came; whether it was the last that was missing.
#[cold]
fn chunk(pending: &mut Pending, total: usize, offset: usize, bytes: &[u8]) -> bool {
    if total > crate::store::MAX_VALUE_BYTES || pending.came == 0 {
        pending.chunks.clear();
        pending
            .chunks
            .resize(total.min(crate::store::MAX_VALUE_BYTES), 0);
    }
    let end = offset.saturating_add(bytes.len());
    if let Some(into) = pending.chunks.get_mut(offset..end) {
        into.copy_from_slice(bytes);
        pending.came += bytes.len();
    }
    pending.came >= total
}
