//! How a run of records reaches the memory of the ring: record by record, or many at once.

use super::{AtomicU64, LapSlots, Ordering};

/// Writes the records of a run to the ring.
pub trait RecordWriter {
    /// Returns a writer for a run whose first record begins at `position`.
    fn new(position: u64) -> Self;

    /// Returns the address for the payload of the record at `position`, which has `slots` slots with its header.
    ///
    /// # Safety
    /// The record and those since the last [`flush`](Self::flush) lie in this lap of the ring, which is mapped.
    #[doc(hidden)]
    unsafe fn payload_address(&mut self, lap: Lap, position: u64, slots: u64) -> *const AtomicU64;

    /// Writes the header of the record whose payload was placed last. The first word of a postlist's first header is
    /// `None`, because the consumer must not see it yet.
    ///
    /// # Safety
    /// The record lies in this lap of the ring, which is mapped.
    #[doc(hidden)]
    unsafe fn write_header(
        &mut self,
        lap: Lap,
        position: u64,
        slots: u64,
        words: (Option<u64>, u64),
    );

    /// Writes everything that is not in the ring yet. The next record begins at `next_position`.
    ///
    /// # Safety
    /// The records since the last call lie in this lap of the ring, which is mapped.
    #[doc(hidden)]
    unsafe fn flush(&mut self, lap: Lap, next_position: u64);
}

/// One lap of a ring.
#[derive(Clone, Copy)]
pub struct Lap(pub(super) LapSlots);

/// Writes each record to its place in the ring. It takes the fewest instructions, and is the faster writer if the
/// consumer runs on a near core.
pub struct WriteInPlace;

impl RecordWriter for WriteInPlace {
    #[inline(always)]
    fn new(_: u64) -> Self {
        Self
    }

    #[inline(always)]
    unsafe fn payload_address(&mut self, lap: Lap, position: u64, _: u64) -> *const AtomicU64 {
        lap.0.slot_address(position + 1)
    }

    #[inline(always)]
    unsafe fn write_header(
        &mut self,
        lap: Lap,
        position: u64,
        _: u64,
        (first, second): (Option<u64>, u64),
    ) {
        // SAFETY: contract of this function.
        unsafe {
            let header = |i| lap.0.atomic_word_of_slot(position, i);
            header(1).store(second, Ordering::Relaxed);
            if let Some(first) = first {
                // Relaxed: the store of the postlist's first header at SYNC POINT P orders this store.
                header(0).store(first, Ordering::Relaxed);
            }
        }
    }

    #[inline(always)]
    unsafe fn flush(&mut self, _: Lap, _: u64) {}
}

/// Number of slots that [`WriteTogether`] collects: eight cache lines.
const COLLECTED_SLOTS: usize = 32;
/// Slots of the largest record that is collected. A larger record fills lines of its own.
const LARGEST_COLLECTED_RECORD: u64 = 16;

/// Collects records, and then writes them to the ring by stores that directly follow each other. It is the faster writer
/// if the consumer runs on a far core.
///
/// A core writes its stores to its cache in order, and requests the lines of the stores that wait. Its store buffer has 40 to 70 of
/// them, or half as many if another thread runs on the core. A posted SEND takes some 20 stores, of which two go to the ring and the others
/// to the send queue and the stack. With such stores between them, the store buffer holds only one or two lines of the ring. Each
/// line then costs the time that it takes to cross.
pub struct WriteTogether {
    /// Two words a slot. They are atomic as those of the ring are, of which they are copies.
    words: [AtomicU64; 2 * COLLECTED_SLOTS],
    /// Position in the ring of the first collected slot.
    first_position: u64,
}

impl WriteTogether {
    #[inline(always)]
    fn index_of(&self, position: u64) -> usize {
        2 * (position - self.first_position) as usize
    }
}

impl RecordWriter for WriteTogether {
    #[inline(always)]
    fn new(position: u64) -> Self {
        Self {
            // Not the stack's contents: the rest of a payload's last slot is copied too, and the peer can read it. Later
            // the rest is of earlier records of this run.
            words: std::array::from_fn(|_| AtomicU64::new(0)),
            first_position: position,
        }
    }

    #[inline(always)]
    unsafe fn payload_address(&mut self, lap: Lap, position: u64, slots: u64) -> *const AtomicU64 {
        if slots > LARGEST_COLLECTED_RECORD
            || position + slots > self.first_position + COLLECTED_SLOTS as u64
        {
            // SAFETY: contract of this function.
            unsafe { self.flush(lap, position) };
        }
        if slots > LARGEST_COLLECTED_RECORD {
            return lap.0.slot_address(position + 1);
        }
        let payload = self.index_of(position + 1);
        self.words.as_ptr().wrapping_add(payload)
    }

    #[inline(always)]
    unsafe fn write_header(
        &mut self,
        lap: Lap,
        position: u64,
        slots: u64,
        words: (Option<u64>, u64),
    ) {
        if slots > LARGEST_COLLECTED_RECORD {
            // SAFETY: contract of this function.
            unsafe { WriteInPlace.write_header(lap, position, slots, words) };
            self.first_position = position + slots;
            return;
        }
        let at = self.index_of(position);
        let header = &self.words[at..at + 2];
        // Zero: no record.
        header[0].store(words.0.unwrap_or(0), Ordering::Relaxed);
        header[1].store(words.1, Ordering::Relaxed);
    }

    #[inline(always)]
    unsafe fn flush(&mut self, lap: Lap, next_position: u64) {
        let collected = self.index_of(next_position);
        let to = lap.0.slot_address(self.first_position);
        for (i, word) in self.words.iter().take(collected).enumerate() {
            // SAFETY: the slots lie in this lap of a mapped ring (contract of this function). Relaxed: the store of the
            // postlist's first header at SYNC POINT P orders these stores.
            unsafe { &*to.wrapping_add(i) }.store(word.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        self.first_position = next_position;
    }
}
