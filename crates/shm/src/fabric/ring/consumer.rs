//! The receiving side of a ring.

use std::marker::PhantomData;

use super::*;

/// The receiving side of a ring.
pub struct Consumer {
    ring: RingMemory,
    /// Position of the next record, in slots since the start of the first lap.
    read_position: u64,
    /// Position up to which slots are free for the producer.
    released_position: u64,
}

// SAFETY: as for `Producer`.
unsafe impl Send for Consumer {}

impl Consumer {
    /// Returns a consumer at the start of a ring.
    pub fn new(ring: RingMemory) -> Self {
        Self {
            ring,
            read_position: 0,
            released_position: 0,
        }
    }

    /// Returns true if the ring had no record at the time of the call.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        let word = self
            .ring
            .atomic_word_of_slot(self.read_position, 0)
            .load(Ordering::Relaxed);
        self.ring
            .without_lap_bit(word, self.read_position)
            .is_none()
    }

    /// Returns the next record, or `None` if the ring has no record.
    ///
    /// # Errors
    /// Returns [`InvalidRingValue`] if the record would pass the ring's end.
    #[inline(always)]
    pub fn peek(&mut self) -> Result<Option<RingRecord<'_>>, InvalidRingValue> {
        loop {
            // SYNC POINT P
            let w0 = self
                .ring
                .atomic_word_of_slot(self.read_position, 0)
                .load(Ordering::Acquire);
            let Some(w0) = self.ring.without_lap_bit(w0, self.read_position) else {
                return Ok(None);
            };
            let w1 = self
                .ring
                .atomic_word_of_slot(self.read_position, 1)
                .load(Ordering::Relaxed);
            let (header, slots) = RecordHeader::from_words(w0, w1);
            let slots = u64::from(slots);
            let to_end = self.ring.slot_count - (self.read_position & (self.ring.slot_count - 1));
            if slots == 0 || slots > to_end {
                return Err(InvalidRingValue);
            }
            if header.kind == KIND_WRAP {
                // A wrap record at slot 0 would skip the whole ring, so it is invalid.
                if slots != to_end || slots == self.ring.slot_count {
                    return Err(InvalidRingValue);
                }
                self.read_position += slots;
                continue;
            }
            let room = (slots as usize - 1) * SLOT_BYTES;
            return Ok(Some(RingRecord {
                header,
                payload: Payload::at_slot(&self.ring, self.read_position + 1, room),
                slot_count: slots,
            }));
        }
    }

    /// Begins a run of records of the current lap.
    #[inline(always)]
    pub fn begin_run(&self) -> ConsumerRun<'_> {
        ConsumerRun {
            lap_slots: LapSlots::of_lap_containing(&self.ring, self.read_position),
            read_position: self.read_position,
            lap_end_position: (self.read_position | (self.ring.slot_count - 1)) + 1,
            ring: PhantomData,
        }
    }

    /// Advances past a record of `slots` slots.
    #[inline(always)]
    pub fn advance(&mut self, slots: u64) {
        self.read_position += slots;
    }

    /// Advances to the position of a [begin_run](Self::begin_run).
    #[inline(always)]
    pub fn advance_to(&mut self, pos: u64) {
        debug_assert!(pos >= self.read_position);
        self.read_position = pos;
    }

    /// Returns the position of the next record, in slots since the start of the ring's first lap.
    #[inline]
    pub fn read_position(&self) -> u64 {
        self.read_position
    }

    /// Returns the number of consumed slots that have not been released to the producer.
    #[inline]
    pub fn unreleased_slot_count(&self) -> u64 {
        self.read_position - self.released_position
    }

    /// Returns the number of slots in the ring.
    #[inline]
    pub fn ring_slot_count(&self) -> u64 {
        self.ring.slot_count
    }

    /// Frees all slots before the current position for the producer.
    #[inline(always)]
    pub fn release_slots(&mut self) {
        if self.read_position != self.released_position {
            self.released_position = self.read_position;
            // SYNC POINT C
            self.ring
                .consumer_head()
                .store(self.read_position, Ordering::Release);
        }
    }
}

/// A run of records of a [`Consumer`]; its position stays in registers instead of memory.
pub struct ConsumerRun<'c> {
    lap_slots: LapSlots,
    read_position: u64,
    /// Position at which the lap ends.
    lap_end_position: u64,
    ring: PhantomData<&'c Consumer>,
}

impl ConsumerRun<'_> {
    /// Returns the next record if its slot count matches a payload of [`RecordHeader::len_or_value`] bytes.
    #[inline(always)]
    pub fn peek_if_len_matches_slots(&self) -> Option<RingRecord<'_>> {
        if self.read_position >= self.lap_end_position {
            return None;
        }
        // SAFETY: the position is in the lap (just checked) of a ring that stays mapped (`RingMemory::new`).
        let (w0, w1) = unsafe {
            // SYNC POINT P
            let w0 = self
                .lap_slots
                .atomic_word_of_slot(self.read_position, 0)
                .load(Ordering::Acquire);
            (
                w0,
                self.lap_slots
                    .atomic_word_of_slot(self.read_position, 1)
                    .load(Ordering::Relaxed),
            )
        };
        let (header, slots) = RecordHeader::from_words(w0 ^ self.lap_slots.lap_bit, w1);
        let (slots, payload) = (u64::from(slots), header.len_or_value as usize);
        // The first word of a slot without a record yields a `kind` that the caller does not know.
        if slots != slots_for_payload(payload) || slots > self.lap_end_position - self.read_position
        {
            return None;
        }
        Some(RingRecord {
            header,
            payload: Payload {
                first_word: self.lap_slots.slot_address(self.read_position + 1),
                len: payload,
                ring: PhantomData,
            },
            slot_count: slots,
        })
    }

    /// Advances past a record of `slots` slots.
    #[inline(always)]
    pub fn advance(&mut self, slots: u64) {
        self.read_position += slots;
    }

    /// Returns the position of the run.
    #[inline(always)]
    pub fn read_position(&self) -> u64 {
        self.read_position
    }
}
