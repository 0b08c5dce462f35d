//! The sending side of a ring.

use std::marker::PhantomData;

use super::consumer_distance::ConsumerDistance;
use super::record_writer::Lap;
use super::*;

/// The sending side of a ring.
pub struct Producer {
    cursor: ProducerCursor,
    /// Position up to which the producer has touched cache lines ahead of use.
    cache_lines_claimed_until: u64,
}

/// The state of a producer that changes with each record; a run of records keeps it in registers.
#[derive(Clone, Copy)]
struct ProducerCursor {
    ring: RingMemory,
    /// Position of the next record.
    write_position: u64,
    /// Position and first word of the open postlist's first header, which is not yet visible.
    unpublished_first: Option<(u64, u64)>,
    /// Position of the consumer when the producer last read `head`.
    last_read_consumer_head: u64,
    consumer_distance: ConsumerDistance,
    equal_size_records: EqualSizeRun,
    /// End position of the place that [`Producer::place_for_payload`] returned last. An abandoned record may
    /// have left payload up to this position.
    max_payload_place_end: u64,
}

/// The run of latest committed records that all have `slots_per_record` slots.
#[derive(Clone, Copy)]
struct EqualSizeRun {
    slots_per_record: u64,
    first_position: u64,
}

impl EqualSizeRun {
    /// Adds a committed record of `slots` slots at `pos` to the run; starts a new run if the size differs.
    #[inline(always)]
    fn continue_or_restart(&mut self, pos: u64, slots: u64) {
        if slots != self.slots_per_record {
            *self = Self {
                slots_per_record: slots,
                first_position: pos,
            };
        }
    }

    /// Returns true if a consumer finds no record at `pos`, the end of these records, in a ring of
    /// `ring_slots` slots.
    ///
    /// In the first lap all slots are zero. In later laps slot `pos` holds a header of the previous
    /// lap if all records of a whole lap had the same size.
    #[inline(always)]
    fn certainly_holds_no_record(&self, pos: u64, ring_slots: u64) -> bool {
        pos < ring_slots
            || (self.first_position + ring_slots <= pos
                && self.slots_per_record & (self.slots_per_record - 1) == 0)
    }
}

// SAFETY: the memory behind the raw pointers is only accessed through atomics, or (payload) in slots that the
// protocol assigns to this side alone. No state is tied to a thread.
unsafe impl Send for Producer {}

impl ProducerCursor {
    /// Returns the number of free slots, computed from the last `head` that the producer has read.
    #[inline(always)]
    fn free_slot_count(&self) -> u64 {
        // One slot stays free for the terminator.
        self.ring.slot_count - 1 - (self.write_position - self.last_read_consumer_head)
    }

    /// Implements [`Producer::refresh_consumer_head`].
    #[inline(always)]
    fn refresh_consumer_head(&mut self) -> Result<u64, InvalidRingValue> {
        let ring = self.ring;
        let head = self
            .consumer_distance
            .timed(self.last_read_consumer_head, || {
                // SYNC POINT C
                ring.consumer_head().load(Ordering::Acquire)
            });
        if head == self.last_read_consumer_head {
            return Ok(head);
        }
        if head < self.last_read_consumer_head || head > self.write_position {
            return Err(InvalidRingValue);
        }
        self.last_read_consumer_head = head;
        Ok(head)
    }

    /// Implements [`Producer::has_room`].
    #[inline(always)]
    fn has_room(&mut self, payload: usize) -> Result<bool, InvalidRingValue> {
        let need = self.slots_with_wrap(slots_for_payload(payload));
        if need <= self.free_slot_count() {
            return Ok(true);
        }
        self.refresh_consumer_head()?;
        Ok(need <= self.free_slot_count())
    }

    /// Returns the number of slots from the producer's position to the end of the ring.
    #[inline(always)]
    fn slots_to_end(&self) -> u64 {
        self.ring.slot_count - self.slot_index(self.write_position)
    }

    #[inline(always)]
    fn slot_index(&self, pos: u64) -> u64 {
        pos & (self.ring.slot_count - 1)
    }

    #[inline(always)]
    fn slots_with_wrap(&self, slots: u64) -> u64 {
        let slots_to_end = self.slots_to_end();
        if slots > slots_to_end {
            slots_to_end + slots
        } else {
            slots
        }
    }

    /// Implements [`Producer::place_for_payload`].
    #[inline(always)]
    fn place_for_payload<'a>(&'a mut self, payload: usize) -> Payload<'a> {
        let slots = slots_for_payload(payload);
        if slots > self.slots_to_end() {
            self.write_wrap_record();
        }
        debug_assert!(slots <= self.free_slot_count());
        self.max_payload_place_end = self.max_payload_place_end.max(self.write_position + slots);
        Payload::at_slot(&self.ring, self.write_position + 1, payload)
    }

    /// Writes a record that fills the rest of the ring.
    #[inline(never)]
    fn write_wrap_record(&mut self) {
        let kind = KIND_WRAP;
        let header = RecordHeader {
            kind,
            ..RecordHeader::default()
        };
        self.write_header_and_advance(header, self.slots_to_end());
    }

    /// Implements [`Producer::add_to_postlist`].
    #[inline(always)]
    fn add_to_postlist(&mut self, header: RecordHeader, payload: usize) {
        self.write_header_and_advance(header, slots_for_payload(payload));
    }

    #[inline(always)]
    fn write_header_and_advance(&mut self, header: RecordHeader, slots: u64) {
        #[allow(clippy::cast_possible_truncation)] // a ring has at most 32768 slots
        let (w0, w1) = header.to_words(slots as u16);
        let w0 = w0 | self.ring.lap_bit_at(self.write_position);
        self.ring
            .atomic_word_of_slot(self.write_position, 1)
            .store(w1, Ordering::Relaxed);
        match self.unpublished_first {
            None => self.unpublished_first = Some((self.write_position, w0)),
            // Relaxed: the first header's store at SYNC POINT P orders this store.
            Some(_) => self
                .ring
                .atomic_word_of_slot(self.write_position, 0)
                .store(w0, Ordering::Relaxed),
        }
        self.equal_size_records
            .continue_or_restart(self.write_position, slots);
        self.write_position += slots;
    }
}

impl Producer {
    /// Returns a producer at the start of a fresh (zeroed) ring.
    pub fn new(ring: RingMemory) -> Self {
        Self {
            cursor: ProducerCursor {
                ring,
                write_position: 0,
                unpublished_first: None,
                last_read_consumer_head: 0,
                consumer_distance: ConsumerDistance::new(),
                equal_size_records: EqualSizeRun {
                    slots_per_record: 1,
                    first_position: 0,
                },
                max_payload_place_end: 0,
            },
            cache_lines_claimed_until: 0,
        }
    }

    /// Returns the position behind the last committed record.
    /// A record is consumed once the consumer's position reaches the value that `write_position` returned
    /// right after the record's commit.
    #[inline]
    pub fn write_position(&self) -> u64 {
        self.cursor.write_position
    }

    /// Returns the consumer's position that the producer accepted last.
    #[cfg(all(any(test, fuzzing), not(loom)))]
    pub(super) fn accepted_consumer_head(&self) -> u64 {
        self.cursor.last_read_consumer_head
    }

    /// Returns the largest payload that a record of this ring can carry.
    pub fn max_payload_bytes(&self) -> usize {
        (self.ring_slot_count() as usize / 2 - 1) * SLOT_BYTES
    }

    /// Returns the number of slots in the ring.
    pub fn ring_slot_count(&self) -> u64 {
        self.cursor.ring.slot_count
    }

    /// Returns the consumer's position: all records before it have been consumed.
    ///
    /// # Errors
    /// Returns [`InvalidRingValue`] if the value of `head` is not a position that the consumer can have.
    #[inline]
    pub fn refresh_consumer_head(&mut self) -> Result<u64, InvalidRingValue> {
        self.cursor.refresh_consumer_head()
    }

    /// Returns true if the ring has room for a record with `payload` bytes.
    ///
    /// # Errors
    /// Returns the errors of [`refresh_consumer_head`](Self::refresh_consumer_head).
    #[inline(always)]
    pub fn has_room(&mut self, payload: usize) -> Result<bool, InvalidRingValue> {
        self.cursor.has_room(payload)
    }

    /// Returns the place for the payload of the next record.
    ///
    /// Call [`Self::has_room`] before, and [`Self::add_to_postlist`] after. Without a add_to_postlist the next call
    /// returns the same place.
    #[inline(always)]
    pub fn place_for_payload(&mut self, payload: usize) -> Payload<'_> {
        self.cursor.place_for_payload(payload)
    }

    /// Adds the record whose payload was [placed](Self::place_for_payload) to the open postlist. The consumer sees
    /// nothing before [`Self::publish_postlist`].
    #[inline(always)]
    pub fn add_to_postlist(&mut self, header: RecordHeader, payload: usize) {
        self.cursor.add_to_postlist(header, payload);
    }

    /// Returns true if the consumer seems to run on a core from which cache lines take long to cross. A run is then
    /// faster with [`WriteTogether`].
    #[inline(always)]
    pub fn is_consumer_far(&self) -> bool {
        self.cursor.consumer_distance.is_far()
    }

    /// Sets whether the consumer seems to run on a far core.
    #[cfg(all(test, not(loom)))]
    pub(super) fn set_consumer_far(&mut self, is_far: bool) {
        self.cursor.consumer_distance.set_far(is_far);
    }

    /// Begins a run of records for the open postlist.
    #[inline(always)]
    pub fn begin_run<W: RecordWriter>(&mut self) -> ProducerRun<'_, W> {
        ProducerRun {
            writer: W::new(self.cursor.write_position),
            lap_slots: LapSlots::of_lap_containing(&self.cursor.ring, self.cursor.write_position),
            room_end: self.cursor.max_record_end(),
            write_position: self.cursor.write_position,
            first_position: self.cursor.first_position_if_empty(),
            first_header_word: 0,
            equal_size_records: self.cursor.equal_size_records,
            max_payload_place_end: self.cursor.max_payload_place_end,
            producer: self,
        }
    }

    /// Makes the whole open postlist visible at once. Returns false if the postlist is empty.
    #[inline(always)]
    pub fn publish_postlist(&mut self) -> bool {
        let Some((pos, w0)) = self.cursor.unpublished_first.take() else {
            return false;
        };
        self.write_terminator();
        // SYNC POINT P
        self.cursor
            .ring
            .atomic_word_of_slot(pos, 0)
            .store(w0, Ordering::Release);
        if pos + self.cursor.equal_size_records.slots_per_record == self.cursor.write_position {
            self.claim_ahead();
        }
        true
    }

    /// [Adds](Self::add_to_postlist) the record whose payload was [placed](Self::place_for_payload), and
    /// [publishes](Self::publish_postlist).
    #[inline(always)]
    pub fn add_and_publish(&mut self, header: RecordHeader, payload: usize) {
        if self.cursor.unpublished_first.is_some() {
            // The postlist is open, or the lap has ended and a wrap record must be published first.
            self.add_to_postlist(header, payload);
            self.publish_postlist();
            return;
        }
        let ProducerCursor {
            ring,
            write_position: pos,
            ..
        } = self.cursor;
        let slots = slots_for_payload(payload);
        #[allow(clippy::cast_possible_truncation)] // at most half of 32768
        let (w0, w1) = header.to_words(slots as u16);
        self.cursor
            .equal_size_records
            .continue_or_restart(pos, slots);
        self.cursor.write_position = pos + slots;
        ring.atomic_word_of_slot(pos, 1)
            .store(w1, Ordering::Relaxed);
        self.write_terminator();
        // SYNC POINT P
        ring.atomic_word_of_slot(pos, 0)
            .store(w0 | ring.lap_bit_at(pos), Ordering::Release);
        self.claim_ahead();
    }

    /// Ensures that the slot behind the last record holds no record.
    #[inline(always)]
    fn write_terminator(&self) {
        let ProducerCursor {
            ring,
            write_position: pos,
            equal_size_records: equal_size,
            max_payload_place_end: placed,
            ..
        } = self.cursor;
        if placed > pos || !equal_size.certainly_holds_no_record(pos, ring.slot_count) {
            ring.atomic_word_of_slot(pos, 0).store(0, Ordering::Relaxed);
        }
    }

    /// Moves the next lines of the ring into this core's cache ahead of use.
    ///
    /// Without this, a producer that publishes one record at a time waits for the ownership of each
    /// line in turn. The stores to the claimed lines overlap these transfers. They write zero, and
    /// only to free slots.
    #[inline(always)]
    fn claim_ahead(&mut self) {
        if self.cursor.write_position >= self.cache_lines_claimed_until {
            self.claim_lines();
        }
    }

    #[inline(never)]
    fn claim_lines(&mut self) {
        let ProducerCursor {
            ring,
            write_position: pos,
            last_read_consumer_head: head_seen,
            ..
        } = self.cursor;
        let line = (pos / SLOTS_PER_LINE + 1) * SLOTS_PER_LINE;
        // Position `head_seen + slots` is the first position that is not free.
        let limit = head_seen + ring.slot_count;
        for i in 0..CLAIMED_AHEAD_LINES {
            let pos = line + i * SLOTS_PER_LINE;
            if pos >= limit {
                break;
            }
            ring.atomic_word_of_slot(pos, 0).store(0, Ordering::Relaxed);
        }
        self.cache_lines_claimed_until = line + (CLAIMED_AHEAD_LINES - 1) * SLOTS_PER_LINE;
    }
}

/// A run of records that a [`Producer`] adds to its open postlist. Its positions stay in registers until
/// [`ProducerRun::store_back`], which ends the run.
pub struct ProducerRun<'p, W> {
    producer: &'p mut Producer,
    writer: W,
    lap_slots: LapSlots,
    write_position: u64,
    /// Position of the postlist's first record and the first word of its header, which is not yet visible.
    first_position: u64,
    first_header_word: u64,
    /// Position up to which a record has room and needs no wrap record.
    room_end: u64,
    equal_size_records: EqualSizeRun,
    max_payload_place_end: u64,
}

impl ProducerCursor {
    /// Returns the last position at which a record may end within this lap and the free space.
    #[inline(always)]
    fn max_record_end(&self) -> u64 {
        let end_of_lap = (self.write_position | (self.ring.slot_count - 1)) + 1;
        // One slot stays free for the terminator.
        end_of_lap.min(self.last_read_consumer_head + self.ring.slot_count - 1)
    }

    /// Returns the position of the open postlist's first record if the postlist is still empty,
    /// else `u64::MAX`.
    #[inline(always)]
    fn first_position_if_empty(&self) -> u64 {
        if self.unpublished_first.is_none() {
            self.write_position
        } else {
            u64::MAX
        }
    }
}

impl<W: RecordWriter> ProducerRun<'_, W> {
    /// Returns the position behind the last record.
    #[inline(always)]
    pub fn write_position(&self) -> u64 {
        self.write_position
    }

    /// Returns the place for the payload of the next record, to be [added](Self::add_to_postlist) next.
    ///
    /// Returns `None` if the ring is full, or if `head` is not a position that the consumer can
    /// have.
    #[inline(always)]
    pub fn place_for_payload_if_room(&mut self, payload: usize) -> Option<Payload<'_>> {
        if self.write_position + slots_for_payload(payload) > self.room_end
            && !self.find_room_in_ring(payload)
        {
            return None;
        }
        let slots = slots_for_payload(payload);
        self.max_payload_place_end = self.max_payload_place_end.max(self.write_position + slots);
        // SAFETY: the record has room in this lap, as those before it, and the ring stays mapped (`RingMemory::new`).
        let first_word = unsafe {
            self.writer
                .payload_address(Lap(self.lap_slots), self.write_position, slots)
        };
        Some(Payload {
            first_word,
            len: payload,
            ring: PhantomData,
        })
    }

    /// Reads the consumer's position, and begins the next lap if this lap has no room. Returns false if the
    /// ring has no room.
    #[inline(never)]
    fn find_room_in_ring(&mut self, payload: usize) -> bool {
        self.store_state();
        let cursor = &mut self.producer.cursor;
        if cursor.has_room(payload) != Ok(true) {
            return false;
        }
        cursor.place_for_payload(payload);
        self.lap_slots = LapSlots::of_lap_containing(&cursor.ring, cursor.write_position);
        self.write_position = cursor.write_position;
        self.writer = W::new(self.write_position);
        self.first_position = cursor.first_position_if_empty();
        self.room_end = cursor.max_record_end();
        self.equal_size_records = cursor.equal_size_records;
        self.max_payload_place_end = cursor.max_payload_place_end;
        true
    }

    /// Adds the record whose payload was [placed](Self::place_for_payload_if_room).
    #[inline(always)]
    pub fn add_to_postlist(&mut self, header: RecordHeader, payload: usize) {
        let slots = slots_for_payload(payload);
        #[allow(clippy::cast_possible_truncation)] // at most half of 32768
        let (w0, w1) = header.to_words(slots as u16);
        let w0 = w0 | self.lap_slots.lap_bit;
        let visible_w0 = if self.write_position == self.first_position {
            self.first_header_word = w0;
            None
        } else {
            Some(w0)
        };
        // SAFETY: `place` has found room for the record from `pos` on in this lap, and the ring stays mapped
        // (`RingMemory::new`).
        unsafe {
            self.writer.write_header(
                Lap(self.lap_slots),
                self.write_position,
                slots,
                (visible_w0, w1),
            );
        }
        self.equal_size_records
            .continue_or_restart(self.write_position, slots);
        self.write_position += slots;
    }

    /// Stores the run's state back into the producer.
    #[inline(always)]
    pub fn store_back(&mut self) {
        self.store_state();
    }

    #[inline(always)]
    fn store_state(&mut self) {
        // SAFETY: the records of this lap have room in it, and the ring stays mapped (`RingMemory::new`).
        unsafe { self.writer.flush(Lap(self.lap_slots), self.write_position) };
        let cursor = &mut self.producer.cursor;
        // The run has staged the postlist's first record.
        if self.first_position < self.write_position {
            cursor.unpublished_first = Some((self.first_position, self.first_header_word));
        }
        cursor.write_position = self.write_position;
        cursor.equal_size_records = self.equal_size_records;
        cursor.max_payload_place_end = self.max_payload_place_end;
    }
}
