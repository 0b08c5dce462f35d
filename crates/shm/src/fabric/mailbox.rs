//! The mailbox: how a process learns of a ring that a peer made for one of its queue pairs.
//!
//! Many producers (any thread of any process of the fabric), one consumer (the owner, under a lock). A
//! producer may be killed between any two instructions, so a letter is published by a single
//! compare-and-swap and nothing else has to happen for it to be found.
//!
//! A slot holds a lap number and a letter (0: empty). Producers look for the first slot that is empty *in
//! the lap of its position*; the consumer empties a slot by writing the next lap's empty value. A producer
//! that slept with an old position in its hands therefore fails its compare-and-swap, and no letter can
//! land behind the consumer.

use crate::sync::{AtomicU64, Ordering};

/// Letters that fit: more rings than a process is likely to be told of between two polls.
pub const MAILBOX_SLOTS: usize = 8192;
/// Bits of a letter.
const LETTER_BITS: u32 = 48;
const LETTER_MASK: u64 = (1 << LETTER_BITS) - 1;

fn empty(pos: u64, slots: u64) -> u64 {
    (pos / slots) << LETTER_BITS
}

/// The producers' side: the slots and a position from which to search.
#[derive(Clone, Copy)]
pub struct Mailbox<'a> {
    /// The slots, a power of two; zeroed at first.
    pub slots: &'a [AtomicU64],
    /// At or behind the first empty slot; a hint for producers.
    pub tail: &'a AtomicU64,
    /// The consumer's position: the letters before it have been taken and [dealt with](Self::dealt_with). Producers
    /// that find the mailbox full look at it, and those that end.
    pub head: &'a AtomicU64,
}

/// There is no room; try again when the owner has read its letters.
#[derive(Debug, PartialEq, Eq)]
pub struct MailboxFull;

impl Mailbox<'_> {
    /// Puts `letter` (1 to 2^48 - 1) in.
    pub fn put(&self, letter: u64) -> Result<(), MailboxFull> {
        debug_assert!(letter != 0 && letter <= LETTER_MASK);
        let n = self.slots.len() as u64;
        let mut pos = self.tail.load(Ordering::Relaxed);
        loop {
            let head = self.head.load(Ordering::Acquire);
            pos = pos.max(head);
            if pos >= head.saturating_add(n) {
                return Err(MailboxFull);
            }
            let slot = &self.slots[(pos & (n - 1)) as usize];
            let free = empty(pos, n);
            // SYNC POINT M: what the letter speaks of was written before.
            if slot
                .compare_exchange(free, free | letter, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
            {
                self.tail.fetch_max(pos + 1, Ordering::Relaxed);
                return Ok(());
            }
            pos += 1;
        }
    }

    /// Is there a letter at `pos`?
    #[inline]
    pub fn has_letter(&self, pos: u64) -> bool {
        let n = self.slots.len() as u64;
        self.slots[(pos & (n - 1)) as usize].load(Ordering::Relaxed) & LETTER_MASK != 0
    }

    /// Takes the letter at `*pos`, the owner's position, and steps over it.
    pub fn take(&self, pos: &mut u64) -> Option<u64> {
        let n = self.slots.len() as u64;
        let slot = &self.slots[(*pos & (n - 1)) as usize];
        // SYNC POINT M
        let value = slot.load(Ordering::Acquire);
        if value & LETTER_MASK == 0 {
            return None;
        }
        slot.store(empty(*pos + n, n), Ordering::Release);
        *pos += 1;
        Some(value & LETTER_MASK)
    }

    /// Says that the owner needs the senders of the letters before `pos` no more: until then, what a letter speaks of
    /// may be gone with its sender.
    pub fn dealt_with(&self, pos: u64) {
        self.head.store(pos, Ordering::Release);
    }

    /// How many letters there were up to now. Never fewer than the caller has put in.
    pub fn count(&self) -> u64 {
        self.tail.load(Ordering::Acquire)
    }

    /// Has the owner dealt with the first `count` letters?
    pub fn has_dealt_with(&self, count: u64) -> bool {
        self.head.load(Ordering::Acquire) >= count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Owned {
        slots: Vec<AtomicU64>,
        tail: AtomicU64,
        head: AtomicU64,
    }

    impl Owned {
        fn new(n: usize) -> Self {
            Self {
                slots: (0..n).map(|_| AtomicU64::new(0)).collect(),
                tail: AtomicU64::new(0),
                head: AtomicU64::new(0),
            }
        }
        fn mailbox(&self) -> Mailbox<'_> {
            Mailbox {
                slots: &self.slots,
                tail: &self.tail,
                head: &self.head,
            }
        }
    }

    #[cfg(loom)]
    #[test]
    fn loom_two_senders_lose_no_letter() {
        use std::sync::Arc;
        loom::model(|| {
            let owned = Arc::new(Owned::new(2));
            let senders: Vec<_> = (1..=2u64)
                .map(|n| {
                    let owned = Arc::clone(&owned);
                    loom::thread::spawn(move || {
                        while owned.mailbox().put(n) == Err(MailboxFull) {
                            loom::thread::yield_now();
                        }
                    })
                })
                .collect();
            let (mut pos, mut sum, mut count) = (0, 0, 0);
            while count < 2 {
                match owned.mailbox().take(&mut pos) {
                    Some(n) => {
                        owned.mailbox().dealt_with(pos);
                        sum += n;
                        count += 1;
                    }
                    None => loom::thread::yield_now(),
                }
            }
            assert_eq!(sum, 3);
            for s in senders {
                s.join().unwrap();
            }
        });
    }

    #[cfg(not(loom))]
    #[test]
    fn a_stale_hint_after_a_crash_loses_nothing() {
        let owned = Owned::new(4);
        let mut pos = 0;
        for n in 1..100 {
            owned.mailbox().put(n).unwrap();
            // The producer died before it moved the hint.
            owned.tail.store(0, Ordering::Relaxed);
            assert_eq!(owned.mailbox().take(&mut pos), Some(n));
            owned.mailbox().dealt_with(pos);
            assert_eq!(owned.mailbox().take(&mut pos), None);
        }
    }

    /// A sender that ends waits until its letters have been dealt with: one that was only taken speaks of memory that
    /// is yet to be opened.
    #[cfg(not(loom))]
    #[test]
    fn a_letter_that_was_taken_is_not_dealt_with_yet() {
        let owned = Owned::new(4);
        owned.mailbox().put(7).unwrap();
        let count = owned.mailbox().count();
        let mut pos = 0;
        assert_eq!(owned.mailbox().take(&mut pos), Some(7));
        assert!(!owned.mailbox().has_dealt_with(count));
        owned.mailbox().dealt_with(pos);
        assert!(owned.mailbox().has_dealt_with(count));
    }

    #[cfg(not(loom))]
    #[test]
    fn full_is_said() {
        let owned = Owned::new(4);
        for n in 1..=4 {
            owned.mailbox().put(n).unwrap();
        }
        assert_eq!(owned.mailbox().put(5), Err(MailboxFull));
        let mut pos = 0;
        assert_eq!(owned.mailbox().take(&mut pos), Some(1));
        owned.mailbox().dealt_with(pos);
        owned.mailbox().put(5).unwrap();
    }
}
