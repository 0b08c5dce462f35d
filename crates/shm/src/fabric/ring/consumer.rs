//! The receiving side of a ring.

use std::marker::PhantomData;

use super::*;

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
        let word = self.ring.word(self.pos, 0).load(Ordering::Relaxed);
        self.ring.in_lap(word, self.pos).is_none()
    }

    /// The next record, if one is there.
    ///
    /// # Errors
    /// [`Garbage`] where a record leaves the ring.
    #[inline(always)]
    pub fn peek(&mut self) -> Result<Option<Record<'_>>, Garbage> {
        loop {
            // SYNC POINT P
            let w0 = self.ring.word(self.pos, 0).load(Ordering::Acquire);
            let Some(w0) = self.ring.in_lap(w0, self.pos) else {
                return Ok(None);
            };
            let w1 = self.ring.word(self.pos, 1).load(Ordering::Relaxed);
            let (header, slots) = Header::from_words(w0, w1);
            let slots = u64::from(slots);
            let to_end = self.ring.slots - (self.pos & (self.ring.slots - 1));
            if slots == 0 || slots > to_end {
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
            let room = (slots as usize - 1) * SLOT_BYTES;
            return Ok(Some(Record {
                header,
                payload: Payload::of_ring(&self.ring, self.pos + 1, room),
                slots,
            }));
        }
    }

    /// Begins a run of records of this lap.
    #[inline(always)]
    pub fn run(&self) -> Records<'_> {
        Records {
            at: Lap::of(&self.ring, self.pos),
            pos: self.pos,
            end: (self.pos | (self.ring.slots - 1)) + 1,
            ring: PhantomData,
        }
    }

    /// Goes past a record of `slots` slots.
    #[inline(always)]
    pub fn advance(&mut self, slots: u64) {
        self.pos += slots;
    }

    /// Goes to where a [run](Self::run) has come.
    #[inline(always)]
    pub fn advance_to(&mut self, pos: u64) {
        debug_assert!(pos >= self.pos);
        self.pos = pos;
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

/// A run of records of a [`Consumer`], whose state stays in registers.
pub struct Records<'c> {
    at: Lap,
    pos: u64,
    /// Of the lap.
    end: u64,
    ring: PhantomData<&'c Consumer>,
}

impl Records<'_> {
    /// The next record, if it has just the slots that a payload of [`Header::len`] bytes takes.
    #[inline(always)]
    pub fn peek(&self) -> Option<Record<'_>> {
        if self.pos >= self.end {
            return None;
        }
        // SAFETY: in the lap (just checked) of a ring that stays mapped (`RingMemory::new`).
        let (w0, w1) = unsafe {
            // SYNC POINT P
            let w0 = self.at.word(self.pos, 0).load(Ordering::Acquire);
            (w0, self.at.word(self.pos, 1).load(Ordering::Relaxed))
        };
        let (header, slots) = Header::from_words(w0 ^ self.at.bit, w1);
        let (slots, payload) = (u64::from(slots), header.len as usize);
        // A slot without a record has a `kind` that the caller does not know.
        if slots != record_slots(payload) || slots > self.end - self.pos {
            return None;
        }
        Some(Record {
            header,
            payload: Payload {
                first: self.at.payload(self.pos + 1),
                len: payload,
                ring: PhantomData,
            },
            slots,
        })
    }

    /// Goes past a record of `slots` slots.
    #[inline(always)]
    pub fn advance(&mut self, slots: u64) {
        self.pos += slots;
    }

    /// Where the run is.
    #[inline(always)]
    pub fn pos(&self) -> u64 {
        self.pos
    }
}
