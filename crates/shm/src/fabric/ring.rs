//! The inbound ring: it carries messages from one queue pair to another.
//!
//! A ring has one producer: the sending queue pair, under its send queue's lock. It has one consumer: the
//! thread that makes progress for the receiving queue pair, under its receive CQ's lock. A ring is an array
//! of 16-byte slots. A record is one header slot and the payload behind it, rounded up to slots, never
//! wrapped.
//!
//! # How a record becomes visible
//!
//! A header's first word has a bit that changes with each lap of the ring. A slot has no record if its first
//! word is zero, or is a header of the previous lap. The producer writes a whole postlist, and last the first
//! word of the first header with `Release` (SYNC POINT P). The consumer reads that word with `Acquire` (SYNC
//! POINT P) and so sees the whole postlist.
//!
//! The slot behind the postlist must have no record either. It may hold payload of the previous lap, which
//! can look like a header. The producer therefore writes zero there (the *terminator*) before it publishes.
//!
//! No terminator is needed if all records of the last lap had the same size and none was abandoned
//! half written. Headers are then at the same slots in each lap. A terminator is expensive if each
//! record is published alone: the consumer reads the terminator's cache line next, and the producer
//! writes that line twice. The consumer learns of new records from their headers alone, and reads
//! no producer index from a second cache line.
//!
//! The consumer frees slots by publishing its position in `head` with `Release` (SYNC POINT C). The
//! producer reads `head` with `Acquire` (SYNC POINT C) before it overwrites freed slots.
//!
//! # Inlining
//!
//! Functions that run once per record are `inline(always)`. Passing a header between two functions through
//! memory costs more than the record itself (a failed store forwarding, 4 ns).
//!
//! # Trust
//!
//! The process at the other end of a ring may write anything. The producer keeps its own position,
//! and accepts a `head` only between the last `head` and its own position. The consumer keeps its
//! own position too, and checks that each record ends inside the ring. Violations are reported as
//! [`InvalidRingValue`].

mod consumer;
mod consumer_distance;
mod producer;
mod record_writer;

use std::marker::PhantomData;

use crate::sync::{AtomicU64, Ordering};

pub use consumer::{Consumer, ConsumerRun};
pub use producer::{Producer, ProducerRun};
pub use record_writer::{RecordWriter, WriteInPlace, WriteTogether};

/// Bytes of a slot.
pub const SLOT_BYTES: usize = 16;
/// Number of slots in a cache line.
const SLOTS_PER_LINE: u64 = 4;
/// Number of cache lines that a producer claims ahead when it publishes records one by one.
const CLAIMED_AHEAD_LINES: u64 = 8;

/// `kind` of a wrap record, which fills the ring up to its end. The next record then starts at slot
/// 0.
const KIND_WRAP: u8 = 0x7f;

/// Lap bit of a header's first word, beside the seven bits of `kind`.
const LAP_BIT: u64 = 0x80;

/// The fields of a record's header: 16 bytes in the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct RecordHeader {
    /// Kind of the record: 1 to 0x7e. 0 means no record; 0x7f is a record that fills the rest of the ring.
    pub kind: u8,
    /// Flag bits, whose meaning depends on `kind`.
    pub flags: u8,
    /// Immediate data, in the byte order of the work request.
    pub imm: u32,
    /// A 32-bit value whose meaning depends on `kind`, such as the message length.
    pub len_or_value: u32,
    /// A second 32-bit value whose meaning depends on `kind`, such as the Q_Key.
    pub extra_value: u32,
}

impl RecordHeader {
    #[inline(always)]
    fn to_words(self, slots: u16) -> (u64, u64) {
        (
            u64::from(self.kind)
                | u64::from(self.flags) << 8
                | u64::from(slots) << 16
                | u64::from(self.imm) << 32,
            u64::from(self.len_or_value) | u64::from(self.extra_value) << 32,
        )
    }

    #[inline(always)]
    #[allow(clippy::cast_possible_truncation)] // extracts the fields of a word
    fn from_words(w0: u64, w1: u64) -> (Self, u16) {
        (
            Self {
                kind: w0 as u8,
                flags: (w0 >> 8) as u8,
                imm: (w0 >> 32) as u32,
                len_or_value: w1 as u32,
                extra_value: (w1 >> 32) as u32,
            },
            (w0 >> 16) as u16,
        )
    }
}

/// Error: the process at the other end of a ring has written a value that no correct peer writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InvalidRingValue;

/// The memory of a ring: `slots` 16-byte slots, and the word with the consumer's position.
///
/// A [`Producer`] and a [`Consumer`] share this memory, usually from two processes.
#[derive(Clone, Copy)]
pub struct RingMemory {
    words: *const AtomicU64,
    consumer_head: *const AtomicU64,
    slot_count: u64,
}

impl RingMemory {
    /// Describes a ring of `slots` slots (a power of two from 16 to 32768).
    ///
    /// # Safety
    /// `words` points to `2 * slots` words and `head` to one. They stay mapped as long as any producer or
    /// consumer made from this value lives. Other processes access them only atomically.
    pub unsafe fn new(words: *const AtomicU64, head: *const AtomicU64, slots: u64) -> Self {
        assert!(slots.is_power_of_two() && (16..=32768).contains(&slots));
        Self {
            words,
            consumer_head: head,
            slot_count: slots,
        }
    }

    #[inline(always)]
    fn atomic_word_of_slot(&self, pos: u64, i: usize) -> &AtomicU64 {
        let index = 2 * (pos & (self.slot_count - 1)) as usize + i;
        // SAFETY: `pos & (slots - 1)` is below `slots`, and `i` is 0 or 1, so the index is below `2 * slots`
        // (contract of `new`).
        unsafe { &*self.words.add(index) }
    }

    /// Returns the lap bit of a header's first word for the lap of `pos`.
    #[inline(always)]
    fn lap_bit_at(&self, pos: u64) -> u64 {
        if pos & self.slot_count == 0 {
            0
        } else {
            LAP_BIT
        }
    }

    /// Returns the header word without its lap bit; `None` if `word` is not the header of a record
    /// of the lap of `pos`.
    #[inline(always)]
    fn without_lap_bit(&self, word: u64, pos: u64) -> Option<u64> {
        let word = word ^ self.lap_bit_at(pos);
        ((word & 0xff).wrapping_sub(1) < LAP_BIT - 1).then_some(word)
    }

    #[inline]
    fn consumer_head(&self) -> &AtomicU64 {
        // SAFETY: contract of `new`.
        unsafe { &*self.consumer_head }
    }
}

/// Returns the number of slots of a record with `payload` bytes.
#[inline(always)]
pub const fn slots_for_payload(payload: usize) -> u64 {
    1 + (payload.div_ceil(SLOT_BYTES)) as u64
}

/// One lap of a ring, in which positions need no mask.
#[derive(Clone, Copy)]
struct LapSlots {
    /// Address that slot 0 would have if earlier laps lay before this lap in memory, so that no
    /// position needs a mask.
    slot_0_address: *const AtomicU64,
    /// The lap bit of a header's first word.
    lap_bit: u64,
}

impl LapSlots {
    /// Returns the lap that contains `pos`.
    #[inline(always)]
    fn of_lap_containing(ring: &RingMemory, pos: u64) -> Self {
        let begin = pos & !(ring.slot_count - 1);
        Self {
            slot_0_address: ring.words.wrapping_sub(2 * begin as usize),
            lap_bit: ring.lap_bit_at(pos),
        }
    }

    /// Returns word `i` of the slot at `pos`.
    ///
    /// # Safety
    /// `pos` is in this lap of the ring, which is mapped, and `i` is 0 or 1.
    #[inline(always)]
    unsafe fn atomic_word_of_slot<'a>(self, pos: u64, i: usize) -> &'a AtomicU64 {
        // SAFETY: contract of this function.
        unsafe { &*self.slot_address(pos).wrapping_add(i) }
    }

    /// Returns the address of the slot at `pos`.
    #[inline(always)]
    fn slot_address(self, pos: u64) -> *const AtomicU64 {
        self.slot_0_address.wrapping_add(2 * pos as usize)
    }
}

/// Payload bytes of a record in the ring, for the producer or the consumer.
pub struct Payload<'a> {
    first_word: *const AtomicU64,
    len: usize,
    ring: PhantomData<&'a RingMemory>,
}

impl<'a> Payload<'a> {
    /// Returns the payload of `len` bytes that starts at slot `pos`; the bytes must not pass the
    /// ring's end.
    #[inline(always)]
    fn at_slot(ring: &'a RingMemory, pos: u64, len: usize) -> Self {
        Self {
            first_word: ring.atomic_word_of_slot(pos, 0),
            len,
            ring: PhantomData,
        }
    }

    /// Returns the address of the bytes.
    ///
    /// The other side of the ring may violate the protocol and change the bytes at any time: copy by raw
    /// pointer, and make no reference.
    #[cfg(not(loom))]
    #[inline]
    pub fn as_mut_ptr(&self) -> *mut u8 {
        self.first_word.cast_mut().cast()
    }

    /// Returns the number of bytes.
    #[inline]
    #[allow(clippy::len_without_is_empty)] // `is_empty` would have no caller
    pub fn len(&self) -> usize {
        self.len
    }

    /// Stores payload word `i`.
    #[cfg(any(test, loom))]
    pub fn store_word(&self, i: usize, value: u64) {
        self.atomic_word(i).store(value, Ordering::Relaxed);
    }

    /// Loads payload word `i`.
    #[cfg(any(test, loom))]
    pub fn load_word(&self, i: usize) -> u64 {
        self.atomic_word(i).load(Ordering::Relaxed)
    }

    #[cfg(any(test, loom))]
    fn atomic_word(&self, i: usize) -> &AtomicU64 {
        assert!(i * 8 < self.len);
        // SAFETY: a record's words are contiguous (`at_slot`), and the assertion keeps `i` among them.
        unsafe { &*self.first_word.add(i) }
    }
}

/// A record as the consumer sees it.
pub struct RingRecord<'a> {
    /// The record's header.
    pub header: RecordHeader,
    /// Space behind the header in bytes: a multiple of 16, and at least as long as the payload.
    pub payload: Payload<'a>,
    slot_count: u64,
}

impl<'a> RingRecord<'a> {
    /// Returns a record that did not come through a ring; `payload` is its payload.
    #[must_use]
    pub fn from_header_and_bytes(header: RecordHeader, payload: &'a mut [u8]) -> Self {
        Self {
            header,
            payload: Payload {
                first_word: payload.as_mut_ptr().cast_const().cast(),
                len: payload.len(),
                ring: PhantomData,
            },
            slot_count: 0,
        }
    }

    /// Returns the number of slots of this record, which the caller passes to
    /// [`Consumer::advance`].
    #[inline]
    pub fn slot_count(&self) -> u64 {
        self.slot_count
    }
}

/// Fuzz target for [`crate::fuzz`]: runs both sides of a ring in which the other side wrote the words in
/// `bytes`.
///
/// # Panics
/// Panics if the consumer follows a record out of the ring, or if the producer accepts a position that it has
/// not reached.
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
    // SAFETY: the vector has two words per slot, and outlives both sides.
    let memory = unsafe { RingMemory::new(words.as_ptr(), &raw const head, SLOTS) };
    let mut consumer = Consumer::new(memory);
    // The loop reads the same words repeatedly, as if a peer wrote the same words in each lap.
    for _ in 0..4 * SLOTS {
        let Ok(Some(record)) = consumer.peek() else {
            break;
        };
        let slots = record.slot_count();
        assert_eq!(record.payload.len() as u64, (slots - 1) * SLOT_BYTES as u64);
        let bytes = record.payload.first_word.addr() - words.as_ptr().addr();
        assert!((bytes / SLOT_BYTES) as u64 + slots - 1 <= SLOTS);
        consumer.advance(slots);
    }
    let mut producer = Producer::new(memory);
    for _ in 0..4 * SLOTS {
        match producer.has_room(40) {
            Ok(true) => {
                producer.place_for_payload(40);
                producer.add_to_postlist(
                    RecordHeader {
                        kind: 1,
                        ..RecordHeader::default()
                    },
                    40,
                );
                producer.publish_postlist();
            }
            Ok(false) => break,
            Err(InvalidRingValue) => return,
        }
        assert!(producer.accepted_consumer_head() <= producer.write_position());
    }
}

#[cfg(test)]
mod tests;
