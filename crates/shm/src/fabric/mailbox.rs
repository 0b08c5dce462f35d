//! The mailbox: through it a process learns of a ring that a peer made for one of its queue pairs.
//!
//! A mailbox has many producers (any thread of any process of the fabric) and one consumer (the
//! owner, under a lock). A producer may be killed between any two instructions. A single
//! compare-and-swap therefore publishes a connection notice (a *notice* in this code), and the
//! producer makes no further store that the consumer needs.
//!
//! A slot holds a lap number and a notice (0: empty). A producer looks for the first slot that is
//! empty *in the lap of its position*. The consumer empties a slot by writing the empty value of
//! the next lap. A producer that was delayed has an old position, so its compare-and-swap fails. No
//! notice can therefore be put at a position that the consumer has passed.

use crate::sync::{AtomicU64, Ordering};

/// Capacity of a mailbox in notices. Peers are unlikely to announce so many rings to a process
/// between two polls.
pub const MAILBOX_SLOTS: usize = 8192;
/// Bits of a notice.
const NOTICE_BITS: u32 = 48;
const NOTICE_MASK: u64 = (1 << NOTICE_BITS) - 1;

fn empty_slot_value(pos: u64, slots: u64) -> u64 {
    (pos / slots) << NOTICE_BITS
}

/// A mailbox in shared memory: the slots and the positions of producers and consumer.
#[derive(Clone, Copy)]
pub struct Mailbox<'a> {
    /// The slots, a power of two; zeroed at first.
    pub slots: &'a [AtomicU64],
    /// A position at or before the first empty slot; a hint for producers.
    pub tail_hint: &'a AtomicU64,
    /// Position of the consumer: the consumer has [acknowledged](Self::acknowledge) all earlier
    /// notices. A producer reads `head` to detect a full mailbox, and to wait for acknowledgement
    /// before it exits.
    pub acknowledged_head: &'a AtomicU64,
}

/// Error: the mailbox is full until its owner has read notices.
#[derive(Debug, PartialEq, Eq)]
pub struct MailboxFull;

impl Mailbox<'_> {
    /// Puts the notice `notice` (1 to 2^48 - 1) into the mailbox.
    pub fn put_notice(&self, notice: u64) -> Result<(), MailboxFull> {
        debug_assert!(notice != 0 && notice <= NOTICE_MASK);
        let n = self.slots.len() as u64;
        let mut pos = self.tail_hint.load(Ordering::Relaxed);
        loop {
            let head = self.acknowledged_head.load(Ordering::Acquire);
            pos = pos.max(head);
            if pos >= head.saturating_add(n) {
                return Err(MailboxFull);
            }
            let slot = &self.slots[(pos & (n - 1)) as usize];
            let free = empty_slot_value(pos, n);
            // SYNC POINT M: the sender has written the ring's header before it puts the notice.
            if slot
                .compare_exchange(free, free | notice, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
            {
                self.tail_hint.fetch_max(pos + 1, Ordering::Relaxed);
                return Ok(());
            }
            pos += 1;
        }
    }

    /// Returns true if the slot at `pos` holds a notice.
    #[inline]
    pub fn has_notice(&self, pos: u64) -> bool {
        let n = self.slots.len() as u64;
        self.slots[(pos & (n - 1)) as usize].load(Ordering::Relaxed) & NOTICE_MASK != 0
    }

    /// Takes the notice at `*pos`, the owner's position, and advances `*pos`.
    pub fn take_notice(&self, pos: &mut u64) -> Option<u64> {
        let n = self.slots.len() as u64;
        let slot = &self.slots[(*pos & (n - 1)) as usize];
        // SYNC POINT M
        let value = slot.load(Ordering::Acquire);
        if value & NOTICE_MASK == 0 {
            return None;
        }
        slot.store(empty_slot_value(*pos + n, n), Ordering::Release);
        *pos += 1;
        Some(value & NOTICE_MASK)
    }

    /// Publishes that the owner no longer needs the senders of the notices before `pos`. Until then, an
    /// exiting sender must keep the ring that its notice announces.
    pub fn acknowledge(&self, pos: u64) {
        self.acknowledged_head.store(pos, Ordering::Release);
    }

    /// Returns the number of notices put so far; never fewer than the caller has put.
    pub fn put_notice_count(&self) -> u64 {
        self.tail_hint.load(Ordering::Acquire)
    }

    /// Returns true if the owner has dealt with the first `count` notices.
    pub fn has_owner_acknowledged(&self, count: u64) -> bool {
        self.acknowledged_head.load(Ordering::Acquire) >= count
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
                tail_hint: &self.tail,
                acknowledged_head: &self.head,
            }
        }
    }

    #[cfg(loom)]
    #[test]
    fn loom_two_senders_lose_no_notice() {
        use std::sync::Arc;
        loom::model(|| {
            let owned = Arc::new(Owned::new(2));
            let senders: Vec<_> = (1..=2u64)
                .map(|n| {
                    let owned = Arc::clone(&owned);
                    loom::thread::spawn(move || {
                        while owned.mailbox().put_notice(n) == Err(MailboxFull) {
                            loom::thread::yield_now();
                        }
                    })
                })
                .collect();
            let (mut pos, mut sum, mut count) = (0, 0, 0);
            while count < 2 {
                match owned.mailbox().take_notice(&mut pos) {
                    Some(n) => {
                        owned.mailbox().acknowledge(pos);
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
            owned.mailbox().put_notice(n).unwrap();
            // The producer died after it put its notice and before it advanced the hint `tail`.
            owned.tail.store(0, Ordering::Relaxed);
            assert_eq!(owned.mailbox().take_notice(&mut pos), Some(n));
            owned.mailbox().acknowledge(pos);
            assert_eq!(owned.mailbox().take_notice(&mut pos), None);
        }
    }

    /// An exiting sender waits until its notices have been acknowledged: after taking a notice, the
    /// owner still has to open the ring.
    #[cfg(not(loom))]
    #[test]
    fn a_notice_that_was_taken_is_not_acknowledged_yet() {
        let owned = Owned::new(4);
        owned.mailbox().put_notice(7).unwrap();
        let count = owned.mailbox().put_notice_count();
        let mut pos = 0;
        assert_eq!(owned.mailbox().take_notice(&mut pos), Some(7));
        assert!(!owned.mailbox().has_owner_acknowledged(count));
        owned.mailbox().acknowledge(pos);
        assert!(owned.mailbox().has_owner_acknowledged(count));
    }

    #[cfg(not(loom))]
    #[test]
    fn full_is_said() {
        let owned = Owned::new(4);
        for n in 1..=4 {
            owned.mailbox().put_notice(n).unwrap();
        }
        assert_eq!(owned.mailbox().put_notice(5), Err(MailboxFull));
        let mut pos = 0;
        assert_eq!(owned.mailbox().take_notice(&mut pos), Some(1));
        owned.mailbox().acknowledge(pos);
        owned.mailbox().put_notice(5).unwrap();
    }
}
