//! The inbound ring: how a message travels from one queue pair to another.
//!
//! A ring has one producer (the sending queue pair, under its send queue's lock) and one consumer (whoever
//! makes progress for the receiving queue pair, under its receive CQ's lock). It is an array of 16-byte
//! slots; a record is one header slot and the payload behind it, rounded up to slots, never wrapped.
//!
//! # How a record becomes visible
//!
//! The first word of the header is zero where there is no record. The producer writes a whole postlist,
//! then a zero word behind it (the *terminator*), and at last the first word of the postlist's first header
//! with `Release` (SYNC POINT P). The consumer reads that word with `Acquire` (SYNC POINT P) and so sees the
//! whole postlist and the terminator. Because the slot at which the consumer waits was zeroed before the
//! record in front of it was published, stale bytes of an earlier lap are never looked at: no lap number
//! is needed, and no index has to be read from a second cache line.
//!
//! The consumer gives slots back by publishing its position in `head` with `Release` (SYNC POINT C), which
//! the producer reads with `Acquire` (SYNC POINT C) before it overwrites them.
//!
//! # Inlining
//!
//! What runs once a record is `inline(always)`: a header that travels through memory between two functions
//! costs more (a failed store forwarding, 4 ns) than the record itself.
//!
//! # Trust
//!
//! The other side may write anything. The producer keeps its own position and believes a `head` only if it
//! lies between the last one and its own position; the consumer keeps its own position too and bounds each
//! record by the ring. What does not fit is reported as [`Garbage`].

use std::marker::PhantomData;

use crate::sync::{AtomicU64, Ordering};

/// Bytes of a slot.
pub const SLOT_BYTES: usize = 16;
/// Slots of a cache line.
const SLOTS_PER_LINE: u64 = 4;
/// How many cache lines are claimed ahead when records are published one by one.
const CLAIM_LINES: u64 = 8;

/// `kind` of the record that fills the rest of the ring, so that the next one starts at slot 0.
const KIND_WRAP: u8 = 0xff;

/// What a header says: 16 bytes in the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Header {
    /// What the record is; never 0 (which means no record) and never 0xff (wrap).
    pub kind: u8,
    /// Bits that `kind` gives a meaning to.
    pub flags: u8,
    /// Immediate data, as it lies in the work request.
    pub imm: u32,
    /// A 32-bit value that `kind` gives a meaning to (the message length).
    pub len: u32,
    /// A second one (the Q_Key).
    pub extra: u32,
}

impl Header {
    #[inline(always)]
    fn words(self, slots: u16) -> (u64, u64) {
        (
            u64::from(self.kind)
                | u64::from(self.flags) << 8
                | u64::from(slots) << 16
                | u64::from(self.imm) << 32,
            u64::from(self.len) | u64::from(self.extra) << 32,
        )
    }

    #[inline(always)]
    #[allow(clippy::cast_possible_truncation)] // taking the fields of a word apart
    fn from_words(w0: u64, w1: u64) -> (Self, u16) {
        (
            Self {
                kind: w0 as u8,
                flags: (w0 >> 8) as u8,
                imm: (w0 >> 32) as u32,
                len: w1 as u32,
                extra: (w1 >> 32) as u32,
            },
            (w0 >> 16) as u16,
        )
    }
}

/// The other side wrote something that no correct peer writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Garbage;

/// The memory of a ring: `slots` 16-byte slots and the word with the consumer's position.
///
/// Shared by a [`Producer`] and a [`Consumer`], usually in two processes.
#[derive(Clone, Copy)]
pub struct RingMemory {
    words: *const AtomicU64,
    head: *const AtomicU64,
    slots: u64,
}

impl RingMemory {
    /// Describes a ring of `slots` slots (a power of two from 16 to 32768).
    ///
    /// # Safety
    /// `words` points to `2 * slots` words and `head` to one; they stay mapped as long as any producer or
    /// consumer made from this value lives, and other processes access them only atomically.
    pub unsafe fn new(words: *const AtomicU64, head: *const AtomicU64, slots: u64) -> Self {
        assert!(slots.is_power_of_two() && (16..=32768).contains(&slots));
        Self { words, head, slots }
    }

    #[inline(always)]
    fn word(&self, pos: u64, i: usize) -> &AtomicU64 {
        let index = 2 * (pos & (self.slots - 1)) as usize + i;
        // SAFETY: `pos & (slots - 1)` is below `slots`, and `i` is 0 or 1, so the index is below `2 * slots`
        // (contract of `new`).
        unsafe { &*self.words.add(index) }
    }

    #[inline]
    fn head(&self) -> &AtomicU64 {
        // SAFETY: contract of `new`.
        unsafe { &*self.head }
    }
}

/// Slots of a record with `payload` bytes behind its header.
#[inline(always)]
pub const fn record_slots(payload: usize) -> u64 {
    1 + (payload.div_ceil(SLOT_BYTES)) as u64
}

/// The sending side of a ring.
pub struct Producer {
    ring: RingMemory,
    /// Where the next record goes.
    pos: u64,
    /// First header of the open postlist, not yet visible.
    first: Option<(u64, u64)>,
    /// Records in the open postlist.
    staged: u32,
    /// A consumer position that was true at some time.
    head_seen: u64,
    /// Lines up to this position have been written to ahead of use.
    claimed: u64,
}

// SAFETY: the memory behind the raw pointers is only accessed through atomics, or (payload) in slots that
// the protocol gives to this side alone; nothing is tied to a thread.
unsafe impl Send for Producer {}

impl Producer {
    /// A producer at the start of a fresh (zeroed) ring.
    pub fn new(ring: RingMemory) -> Self {
        Self {
            ring,
            pos: 0,
            first: None,
            staged: 0,
            head_seen: 0,
            claimed: 0,
        }
    }

    /// Position behind the last record pushed; a record is consumed when the consumer's head reaches the
    /// position returned by the push that wrote it.
    #[inline]
    pub fn pos(&self) -> u64 {
        self.pos
    }

    /// The largest payload a record of this ring can carry.
    pub fn max_payload(&self) -> usize {
        (self.ring.slots as usize / 2 - 1) * SLOT_BYTES
    }

    /// Slots that can still be written, as far as this side knows without looking at the consumer.
    #[inline(always)]
    fn free(&self) -> u64 {
        // One slot stays free for the terminator.
        self.ring.slots - 1 - (self.pos - self.head_seen)
    }

    /// Slots in the ring.
    pub fn slots(&self) -> u64 {
        self.ring.slots
    }

    /// The consumer's position: everything before it has been consumed.
    #[inline]
    pub fn consumed(&mut self) -> Result<u64, Garbage> {
        // SYNC POINT C
        let head = self.ring.head().load(Ordering::Acquire);
        if head == self.head_seen {
            return Ok(head);
        }
        if head < self.head_seen || head > self.pos {
            return Err(Garbage);
        }
        self.head_seen = head;
        Ok(head)
    }

    /// Is there room for a record with `payload` bytes?
    #[inline(always)]
    pub fn has_room(&mut self, payload: usize) -> Result<bool, Garbage> {
        let slots = record_slots(payload);
        let need = self.with_wrap(slots);
        if need <= self.free() {
            return Ok(true);
        }
        self.consumed()?;
        Ok(need <= self.free())
    }

    #[inline(always)]
    fn with_wrap(&self, slots: u64) -> u64 {
        let to_end = self.ring.slots - (self.pos & (self.ring.slots - 1));
        if slots > to_end {
            to_end + slots
        } else {
            slots
        }
    }

    /// The place for the payload of the next record; call [`Self::has_room`] first and [`Self::commit`]
    /// next, or leave it: a place that was not committed is given out again.
    #[inline(always)]
    pub fn place(&mut self, payload: usize) -> Payload<'_> {
        let slots = record_slots(payload);
        let to_end = self.ring.slots - (self.pos & (self.ring.slots - 1));
        if slots > to_end {
            #[allow(clippy::cast_possible_truncation)] // a ring has at most 32768 slots
            let (w0, w1) = Header {
                kind: KIND_WRAP,
                ..Header::default()
            }
            .words(to_end as u16);
            self.stage(w0, w1, to_end);
        }
        debug_assert!(slots <= self.free());
        Payload::of_ring(&self.ring, self.pos + 1, payload)
    }

    /// Adds the record whose payload was [placed](Self::place) to the open postlist. Nothing is visible to
    /// the consumer before [`Self::publish`].
    #[inline(always)]
    pub fn commit(&mut self, header: Header, payload: usize) {
        let slots = record_slots(payload);
        #[allow(clippy::cast_possible_truncation)] // at most half of 32768
        let (w0, w1) = header.words(slots as u16);
        self.stage(w0, w1, slots);
        self.staged += 1;
    }

    #[inline(always)]
    fn stage(&mut self, w0: u64, w1: u64, slots: u64) {
        self.ring.word(self.pos, 1).store(w1, Ordering::Relaxed);
        match self.first {
            None => self.first = Some((self.pos, w0)),
            // Relaxed: ordered by SYNC POINT P of the first header.
            Some(_) => self.ring.word(self.pos, 0).store(w0, Ordering::Relaxed),
        }
        self.pos += slots;
    }

    /// Makes the open postlist visible, all of it at once. False if nothing is in it.
    #[inline(always)]
    pub fn publish(&mut self) -> bool {
        let Some((pos, w0)) = self.first else {
            return false;
        };
        self.first = None;
        self.ring.word(self.pos, 0).store(0, Ordering::Relaxed);
        // SYNC POINT P
        self.ring.word(pos, 0).store(w0, Ordering::Release);
        if self.staged == 1 {
            self.claim_ahead();
        }
        self.staged = 0;
        true
    }

    /// Brings the next lines of the ring into this core's cache while there is nothing to wait for.
    ///
    /// A producer that publishes one record at a time otherwise waits for each line's ownership in turn;
    /// the stores below overlap those transfers. They write the zero that a free slot may hold anyway and
    /// stay inside the free space.
    #[inline]
    fn claim_ahead(&mut self) {
        if self.pos < self.claimed {
            return;
        }
        let line = (self.pos / SLOTS_PER_LINE + 1) * SLOTS_PER_LINE;
        // Position `head_seen + slots` is the first that is not free.
        let limit = self.head_seen + self.ring.slots;
        for i in 0..CLAIM_LINES {
            let pos = line + i * SLOTS_PER_LINE;
            if pos >= limit {
                break;
            }
            self.ring.word(pos, 0).store(0, Ordering::Relaxed);
        }
        self.claimed = line + (CLAIM_LINES - 1) * SLOTS_PER_LINE;
    }
}

/// Payload bytes of a record in the ring, at the producer or at the consumer.
pub struct Payload<'a> {
    first: *const AtomicU64,
    len: usize,
    ring: PhantomData<&'a RingMemory>,
}

impl<'a> Payload<'a> {
    /// The `len` bytes from slot `pos` on, none of which lie behind the ring's end.
    #[inline(always)]
    fn of_ring(ring: &'a RingMemory, pos: u64, len: usize) -> Self {
        Self {
            first: ring.word(pos, 0),
            len,
            ring: PhantomData,
        }
    }

    /// Where the bytes are. The other side of the ring may be a process that does not follow the protocol,
    /// so treat them as memory that changes at any time: copy by raw pointer, make no reference.
    #[cfg(not(loom))]
    #[inline]
    pub fn as_mut_ptr(&self) -> *mut u8 {
        self.first.cast_mut().cast()
    }

    /// Number of bytes.
    #[inline]
    #[allow(clippy::len_without_is_empty)] // bytes of a record
    pub fn len(&self) -> usize {
        self.len
    }

    /// Stores payload word `i`.
    #[cfg(any(test, loom))]
    pub fn set_word(&self, i: usize, value: u64) {
        self.word_at(i).store(value, Ordering::Relaxed);
    }

    /// Loads payload word `i`.
    #[cfg(any(test, loom))]
    pub fn word(&self, i: usize) -> u64 {
        self.word_at(i).load(Ordering::Relaxed)
    }

    #[cfg(any(test, loom))]
    fn word_at(&self, i: usize) -> &AtomicU64 {
        assert!(i * 8 < self.len);
        // SAFETY: a record's words follow each other (`of_ring`), and the assertion keeps `i` among them.
        unsafe { &*self.first.add(i) }
    }
}

/// A record as the consumer sees it.
pub struct Record<'a> {
    /// Its header.
    pub header: Header,
    /// The room behind the header, a multiple of 16 bytes: at least as long as the payload.
    pub payload: Payload<'a>,
    slots: u64,
}

impl<'a> Record<'a> {
    /// A record that did not come through a ring: `payload` lies behind its header.
    #[must_use]
    pub fn of_bytes(header: Header, payload: &'a mut [u8]) -> Self {
        Self {
            header,
            payload: Payload {
                first: payload.as_mut_ptr().cast_const().cast(),
                len: payload.len(),
                ring: PhantomData,
            },
            slots: 0,
        }
    }

    /// Slots of this record, to be given to [`Consumer::advance`].
    #[inline]
    pub fn slots(&self) -> u64 {
        self.slots
    }
}

/// The receiving side of a ring.
pub struct Consumer {
    ring: RingMemory,
    pos: u64,
    released: u64,
}

// SAFETY: as for `Producer`.
unsafe impl Send for Consumer {}

impl Consumer {
    /// A consumer at the start of a ring.
    pub fn new(ring: RingMemory) -> Self {
        Self {
            ring,
            pos: 0,
            released: 0,
        }
    }

    /// Is there no record? Says nothing of what has come since.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.ring.word(self.pos, 0).load(Ordering::Relaxed) == 0
    }

    /// The next record, if one is there.
    #[inline(always)]
    pub fn peek(&mut self) -> Result<Option<Record<'_>>, Garbage> {
        loop {
            // SYNC POINT P
            let w0 = self.ring.word(self.pos, 0).load(Ordering::Acquire);
            if w0 == 0 {
                return Ok(None);
            }
            let w1 = self.ring.word(self.pos, 1).load(Ordering::Relaxed);
            let (header, slots) = Header::from_words(w0, w1);
            let slots = u64::from(slots);
            let to_end = self.ring.slots - (self.pos & (self.ring.slots - 1));
            if slots == 0 || slots > to_end || header.kind == 0 {
                return Err(Garbage);
            }
            if header.kind == KIND_WRAP {
                // At slot 0 there is nothing to wrap: all of the ring lies ahead.
                if slots != to_end || slots == self.ring.slots {
                    return Err(Garbage);
                }
                self.pos += slots;
                continue;
            }
            return Ok(Some(Record {
                header,
                payload: Payload::of_ring(
                    &self.ring,
                    self.pos + 1,
                    (slots as usize - 1) * SLOT_BYTES,
                ),
                slots,
            }));
        }
    }

    /// Goes past a record of `slots` slots.
    #[inline(always)]
    pub fn advance(&mut self, slots: u64) {
        self.pos += slots;
    }

    /// Has anything been consumed that the producer does not know of?
    #[inline]
    pub fn unreleased(&self) -> u64 {
        self.pos - self.released
    }

    /// Slots in the ring.
    #[inline]
    pub fn slots(&self) -> u64 {
        self.ring.slots
    }

    /// Gives everything before the current position back to the producer.
    #[inline(always)]
    pub fn release(&mut self) {
        if self.pos != self.released {
            self.released = self.pos;
            // SYNC POINT C
            self.ring.head().store(self.pos, Ordering::Release);
        }
    }
}

/// For [`crate::fuzz`]: both sides of a ring in which the other side writes any words, each eight of the bytes.
///
/// # Panics
/// If the consumer follows a record out of the ring, or the producer believes a position that it has not come to.
#[cfg(all(any(test, fuzzing), not(loom)))]
pub fn fuzz(bytes: &[u8]) {
    const SLOTS: u64 = 64;
    let (chunks, _) = bytes.as_chunks();
    let mut words: Vec<_> = chunks
        .iter()
        .map(|bytes| AtomicU64::new(u64::from_le_bytes(*bytes)))
        .collect();
    let head = words.pop().unwrap_or_default();
    words.resize_with(2 * SLOTS as usize, AtomicU64::default);
    // SAFETY: the vector has two words a slot, and outlives both sides.
    let memory = unsafe { RingMemory::new(words.as_ptr(), &raw const head, SLOTS) };
    let mut consumer = Consumer::new(memory);
    // What is there is read again and again, as by a peer that always writes the same.
    for _ in 0..4 * SLOTS {
        let Ok(Some(record)) = consumer.peek() else {
            break;
        };
        let slots = record.slots();
        assert_eq!(record.payload.len() as u64, (slots - 1) * SLOT_BYTES as u64);
        let bytes = record.payload.first.addr() - words.as_ptr().addr();
        assert!((bytes / SLOT_BYTES) as u64 + slots - 1 <= SLOTS);
        consumer.advance(slots);
    }
    let mut producer = Producer::new(memory);
    for _ in 0..4 * SLOTS {
        match producer.has_room(40) {
            Ok(true) => {
                producer.place(40);
                producer.commit(
                    Header {
                        kind: 1,
                        ..Header::default()
                    },
                    40,
                );
                producer.publish();
            }
            Ok(false) => break,
            Err(Garbage) => return,
        }
        assert!(producer.head_seen <= producer.pos());
    }
}

#[cfg(test)]
mod tests;
