//! The event queue: the events of virtual time in order.
//!
//! The queue is a calendar. The next 8 to 17 µs are in buckets of 4 ns, which are found by a bitmap of non-empty
//! buckets. Later events wait in bins of 8 µs, in the order of their insertion, until their bin is near. Events beyond
//! half a millisecond of bins are in a heap. Events are a few nanoseconds apart, so a bucket has one or two. Pushing
//! and popping take the same time however many events are queued. This matters because a waiting thread is usually
//! woken long before its timeout, and each wait leaves an event for that timeout.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Virtual time in picoseconds, so that costs of fractions of a nanosecond add up without rounding drift.
pub(crate) type Ps = u64;

/// Logarithm of a bucket's length: 2^12 ps.
const SHIFT: u32 = 12;
/// Number of buckets: the summary has a bit for each word of 64 buckets.
const BUCKETS: usize = 64 * 64;
/// Logarithm of a bin's length, half the calendar: all buckets of a bin are free when the bin before it begins.
const BIN_SHIFT: u32 = SHIFT + 11;
/// Number of bins: one bit of a word for each.
const BINS: usize = 64;
const NONE: u32 = u32::MAX;

/// A queue of events in the order of their times; events of equal time keep the order of their insertion. So the order
/// is the same in every run.
#[derive(Debug)]
pub(crate) struct EventQueue<E> {
    nodes: Vec<EventNode<E>>,
    free: u32,
    /// First node of each bucket; valid only if the bucket's bit is set.
    buckets: Box<[u32; BUCKETS]>,
    /// Bitmap of non-empty buckets; `summary`: bitmap of the words that are not zero.
    words: Box<[u64; 64]>,
    summary: u64,
    /// Bucket of the event that was popped last, counted from time 0; all earlier buckets are empty.
    base: u64,
    /// Bin after that of the base, counted from time 0: the last bin whose events are in buckets.
    bucketed_until: u64,
    /// Last node of each bin, whose nodes form a ring; valid only if the bin's bit is set.
    bins: [u32; BINS],
    /// Bitmap of non-empty bins.
    binned: u64,
    /// Events after the last bin.
    later: BinaryHeap<Reverse<LaterEvents<E>>>,
    later_inserted: u64,
}

#[derive(Clone, Copy, Debug)]
struct EventNode<E> {
    at: Ps,
    event: E,
    next: u32,
    /// Last node of the bucket; valid in the bucket's first node.
    tail: u32,
}

#[derive(Clone, Copy, Debug)]
struct LaterEvents<E> {
    at: Ps,
    order: u64,
    event: E,
}

impl<E> PartialEq for LaterEvents<E> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl<E> Eq for LaterEvents<E> {}

impl<E> PartialOrd for LaterEvents<E> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for LaterEvents<E> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

/// Rotates a word so that bit `bit` becomes bit 0.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "a bit of a word")]
fn from_bit(word: u64, bit: usize) -> u64 {
    word.rotate_right(bit as u32)
}

/// Returns the index, modulo `PLACES`, of the slot of the event queue.
#[inline(always)]
#[expect(
    clippy::cast_possible_truncation,
    reason = "below the number of places"
)]
fn place<const PLACES: usize>(counted: u64) -> usize {
    (counted % PLACES as u64) as usize
}

impl<E: Copy> EventQueue<E> {
    pub(crate) fn new() -> Self {
        Self {
            nodes: Vec::new(),
            free: NONE,
            buckets: Box::new([NONE; BUCKETS]),
            words: Box::new([0; 64]),
            summary: 0,
            base: 0,
            bucketed_until: 1,
            bins: [NONE; BINS],
            binned: 0,
            later: BinaryHeap::new(),
            later_inserted: 0,
        }
    }

    /// Adds an event at a time; an event in the past becomes the next one.
    #[inline]
    pub(crate) fn push(&mut self, at: Ps, event: E) {
        let bin = at >> BIN_SHIFT;
        if bin <= self.bucketed_until {
            let new = self.node(at, event);
            self.insert((at >> SHIFT).max(self.base), at, new);
        } else {
            self.add_to_bin(bin, at, event);
        }
    }

    /// Takes the next event, if its time is not after `until`.
    #[inline(always)]
    pub(crate) fn pop_until(&mut self, until: Ps) -> Option<(Ps, E)> {
        let Some(index) = self.first() else {
            return self.pop_later(until);
        };
        let head = self.buckets[index];
        let EventNode {
            at,
            event,
            next,
            tail,
        } = self.nodes[head as usize];
        if at > until {
            return None;
        }
        self.nodes[head as usize].next = self.free;
        self.free = head;
        if next == NONE {
            let word = &mut self.words[index / 64];
            *word &= !(1 << (index % 64));
            if *word == 0 {
                self.summary &= !(1 << (index / 64));
            }
        } else {
            self.buckets[index] = next;
            self.nodes[next as usize].tail = tail;
        }
        self.base = self.base.max(at >> SHIFT);
        if at >> BIN_SHIFT >= self.bucketed_until {
            self.move_to(at >> BIN_SHIFT);
        }
        Some((at, event))
    }

    /// Returns the time of the next event.
    #[inline]
    pub(crate) fn next_at(&self) -> Option<Ps> {
        match self.first() {
            Some(index) => Some(self.nodes[self.buckets[index] as usize].at),
            None => self.next_later(),
        }
    }

    /// Returns the first non-empty bucket, in ring order from the base.
    #[inline]
    fn first(&self) -> Option<usize> {
        let from = place::<BUCKETS>(self.base);
        let (word, bit) = (from / 64, from % 64);
        let here = self.words[word] >> bit;
        if here != 0 {
            return Some(from + here.trailing_zeros() as usize);
        }
        // The words after this one come first; this word comes last, with its buckets in front of the base.
        let behind = from_bit(self.summary, word) & !1;
        let behind = if behind == 0 {
            if self.summary == 0 {
                return None;
            }
            0
        } else {
            behind.trailing_zeros() as usize
        };
        let word = (word + behind) % 64;
        Some(word * 64 + self.words[word].trailing_zeros() as usize)
    }

    /// Makes a node that is in no list yet.
    #[inline]
    fn node(&mut self, at: Ps, event: E) -> u32 {
        let node = EventNode {
            at,
            event,
            next: NONE,
            tail: NONE,
        };
        let free = self.free;
        if let Some(unused) = self.nodes.get_mut(free as usize) {
            self.free = unused.next;
            *unused = node;
            return free;
        }
        self.nodes.push(node);
        u32::try_from(self.nodes.len() - 1).expect("fewer events than 2^32")
    }

    /// Adds a node to its bucket, after all nodes that are not later.
    #[inline]
    fn insert(&mut self, bucket: u64, at: Ps, new: u32) {
        let index = place::<BUCKETS>(bucket);
        let bit = 1 << (index % 64);
        let word = &mut self.words[index / 64];
        if *word & bit == 0 {
            *word |= bit;
            self.summary |= 1 << (index / 64);
            self.buckets[index] = new;
            self.nodes[new as usize].tail = new;
            return;
        }
        let head = self.buckets[index];
        let tail = self.nodes[head as usize].tail;
        if self.nodes[tail as usize].at <= at {
            self.nodes[tail as usize].next = new;
            self.nodes[head as usize].tail = new;
        } else if self.nodes[head as usize].at > at {
            self.nodes[new as usize].next = head;
            self.nodes[new as usize].tail = tail;
            self.buckets[index] = new;
        } else {
            let mut before = head;
            // The loop ends at the tail at the latest, which is later.
            loop {
                let next = self.nodes[before as usize].next;
                if self.nodes[next as usize].at > at {
                    self.nodes[new as usize].next = next;
                    self.nodes[before as usize].next = new;
                    break;
                }
                before = next;
            }
        }
    }

    /// Adds an event to the end of its bin, or to the heap.
    #[inline(never)]
    fn add_to_bin(&mut self, bin: u64, at: Ps, event: E) {
        if bin - self.bucketed_until >= BINS as u64 {
            let order = self.later_inserted;
            self.later_inserted += 1;
            self.later.push(Reverse(LaterEvents { at, order, event }));
            return;
        }
        let new = self.node(at, event);
        let index = place::<BINS>(bin);
        if self.binned & 1 << index == 0 {
            self.binned |= 1 << index;
            self.nodes[new as usize].next = new;
        } else {
            let last = self.bins[index] as usize;
            self.nodes[new as usize].next = self.nodes[last].next;
            self.nodes[last].next = new;
        }
        self.bins[index] = new;
    }

    /// Moves the base to another bin. Events of the bin after it go to their buckets, and events from the heap to bins
    /// that have come into range. These events come first in each bin and bucket, since later pushes are appended.
    #[cold]
    #[inline(never)]
    fn move_to(&mut self, bin: u64) {
        while self.bucketed_until <= bin {
            if self.binned == 0 {
                // All other events are not before this bin either.
                self.bucketed_until = bin;
            }
            self.bucketed_until += 1;
            self.unbin(self.bucketed_until);
            let last = self.bucketed_until + (BINS as u64 - 1);
            while let Some(Reverse(later)) = self.later.peek()
                && later.at >> BIN_SHIFT <= last
            {
                let LaterEvents { at, event, .. } = *later;
                self.later.pop();
                self.push(at, event);
            }
        }
    }

    /// Moves the events of a bin to their buckets.
    fn unbin(&mut self, bin: u64) {
        let index = place::<BINS>(bin);
        if self.binned & 1 << index == 0 {
            return;
        }
        self.binned &= !(1 << index);
        let last = self.bins[index];
        let mut next = self.nodes[last as usize].next;
        loop {
            let this = next;
            let EventNode {
                at, next: after, ..
            } = self.nodes[this as usize];
            self.nodes[this as usize].next = NONE;
            self.insert(at >> SHIFT, at, this);
            if this == last {
                break;
            }
            next = after;
        }
    }

    /// Returns the first non-empty bin, counted from time 0; the buckets must be empty.
    fn first_bin(&self) -> Option<u64> {
        let next = self.bucketed_until + 1;
        let ahead = from_bit(self.binned, place::<BINS>(next));
        (ahead != 0).then(|| next + u64::from(ahead.trailing_zeros()))
    }

    /// Returns the time of the next event if no bucket has one.
    #[cold]
    #[inline(never)]
    fn next_later(&self) -> Option<Ps> {
        let Some(bin) = self.first_bin() else {
            return self.later.peek().map(|Reverse(later)| later.at);
        };
        let last = self.bins[place::<BINS>(bin)];
        let (mut first, mut node) = (Ps::MAX, last);
        loop {
            node = self.nodes[node as usize].next;
            first = first.min(self.nodes[node as usize].at);
            if node == last {
                return Some(first);
            }
        }
    }

    /// Takes the next event if no bucket has one.
    #[cold]
    #[inline(never)]
    fn pop_later(&mut self, until: Ps) -> Option<(Ps, E)> {
        let first = self.next_later()?;
        if first > until {
            return None;
        }
        self.base = first >> SHIFT;
        self.move_to(first >> BIN_SHIFT);
        // The event is in a bucket now.
        self.pop_until(until)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Delays within a bucket, within the calendar, and beyond it.
    fn delay() -> impl Strategy<Value = u64> {
        prop_oneof![
            4 => 0u64..50,
            4 => 0u64..1 << 16,
            2 => 0u64..1 << 26,
            1 => 0u64..1 << 40,
        ]
    }

    proptest! {
        /// With pushes and pops in any order, the queue is a stable sort of its contents.
        #[test]
        fn agrees_with_a_sorted_list(steps in prop::collection::vec(prop::option::weighted(0.6, delay()), 0..600)) {
            let mut queue = EventQueue::new();
            let mut model: Vec<(Ps, usize)> = Vec::new();
            let mut now = 0;
            for (name, step) in steps.into_iter().enumerate() {
                if let Some(delay) = step {
                    let at = now + delay;
                    queue.push(at, name);
                    // After all events that are not later.
                    let place = model.partition_point(|&(other, _)| other <= at);
                    model.insert(place, (at, name));
                } else {
                    let expected = (!model.is_empty()).then(|| model.remove(0));
                    if let Some((at, _)) = expected {
                        if at > 0 {
                            prop_assert_eq!(queue.pop_until(at - 1), None);
                        }
                        now = at;
                    }
                    prop_assert_eq!(queue.pop_until(Ps::MAX), expected);
                }
                prop_assert_eq!(queue.next_at(), model.first().map(|&(at, _)| at));
            }
            while let Some(next) = queue.pop_until(Ps::MAX) {
                prop_assert_eq!(next, model.remove(0));
            }
            prop_assert!(model.is_empty());
        }
    }

    #[test]
    fn an_event_in_the_past_is_the_next() {
        let mut queue = EventQueue::new();
        queue.push(1 << 30, 'b');
        assert_eq!(queue.pop_until(Ps::MAX), Some((1 << 30, 'b')));
        queue.push((1 << 30) + 1, 'd');
        queue.push(7, 'c');
        assert_eq!(queue.pop_until(Ps::MAX), Some((7, 'c')));
        assert_eq!(queue.pop_until(Ps::MAX), Some(((1 << 30) + 1, 'd')));
    }
}
