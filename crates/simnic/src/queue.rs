//! The event queue: what happens next in virtual time.
//!
//! A calendar: the next 8 to 17 µs lie in buckets of 4 ns, found through a bitmap of those that are not empty. What is
//! later waits in a bin of 8 µs, one behind the other as it came, until the bin's time is near, and what is behind half
//! a millisecond of bins in a heap. Events are a few nanoseconds apart, so a bucket has one or two, and pushing and
//! popping cost the same however many there are: threads that wait are woken long before their time is over, but
//! leave an event for it.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Virtual time in picoseconds: costs of fractions of a nanosecond add up without rounding drift.
pub(crate) type Ps = u64;

/// A bucket is 2^12 ps.
const SHIFT: u32 = 12;
/// Buckets: a bit of the summary for each word of 64.
const BUCKETS: usize = 64 * 64;
/// A bin is half the calendar: its buckets are all there when the bin before it begins.
const BIN_SHIFT: u32 = SHIFT + 11;
/// Bins: a bit for each.
const BINS: usize = 64;
const NONE: u32 = u32::MAX;

/// Events in the order of their time, and of their insertion where times are equal: the order is
/// the same in every run.
#[derive(Debug)]
pub(crate) struct EventQueue<E> {
    nodes: Vec<Node<E>>,
    free: u32,
    /// First node of each bucket; what it holds is not of use if its bit is not set.
    buckets: Box<[u32; BUCKETS]>,
    /// Buckets that are not empty, and words of this that are not zero.
    words: Box<[u64; 64]>,
    summary: u64,
    /// The bucket of the event that was popped last, counted from time 0: those before it are empty.
    base: u64,
    /// The bin after that of the base, counted from time 0: it is the last whose events are in buckets.
    near: u64,
    /// Last node of each bin, which is a ring; what it holds is not of use if its bit is not set.
    bins: [u32; BINS],
    /// Bins that are not empty.
    binned: u64,
    /// Events behind the last bin.
    later: BinaryHeap<Reverse<Later<E>>>,
    inserted: u64,
}

#[derive(Clone, Copy, Debug)]
struct Node<E> {
    at: Ps,
    event: E,
    next: u32,
    /// Of the first node of a bucket, the last one.
    tail: u32,
}

#[derive(Clone, Copy, Debug)]
struct Later<E> {
    at: Ps,
    order: u64,
    event: E,
}

impl<E> PartialEq for Later<E> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl<E> Eq for Later<E> {}

impl<E> PartialOrd for Later<E> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Later<E> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

/// A word whose first bit is this one, and whose last is the one before it.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "a bit of a word")]
fn from_bit(word: u64, bit: usize) -> u64 {
    word.rotate_right(bit as u32)
}

/// The place of a bucket, or of a bin, among so many.
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
            near: 1,
            bins: [NONE; BINS],
            binned: 0,
            later: BinaryHeap::new(),
            inserted: 0,
        }
    }

    /// An event at a time; one in the past is the next.
    #[inline]
    pub(crate) fn push(&mut self, at: Ps, event: E) {
        let bin = at >> BIN_SHIFT;
        if bin <= self.near {
            let new = self.node(at, event);
            self.insert((at >> SHIFT).max(self.base), at, new);
        } else {
            self.put_off(bin, at, event);
        }
    }

    /// Takes the next event, if it is not after `until`.
    #[inline(always)]
    pub(crate) fn pop_until(&mut self, until: Ps) -> Option<(Ps, E)> {
        let Some(index) = self.first() else {
            return self.pop_later(until);
        };
        let head = self.buckets[index];
        let Node {
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
        if at >> BIN_SHIFT >= self.near {
            self.move_to(at >> BIN_SHIFT);
        }
        Some((at, event))
    }

    /// When the next event is.
    #[inline]
    pub(crate) fn next_at(&self) -> Option<Ps> {
        match self.first() {
            Some(index) => Some(self.nodes[self.buckets[index] as usize].at),
            None => self.next_later(),
        }
    }

    /// The first bucket that is not empty, from the base on and round.
    #[inline]
    fn first(&self) -> Option<usize> {
        let from = place::<BUCKETS>(self.base);
        let (word, bit) = (from / 64, from % 64);
        let here = self.words[word] >> bit;
        if here != 0 {
            return Some(from + here.trailing_zeros() as usize);
        }
        // The words behind this one come first; this one last, for what is before the base in it.
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

    /// A node that is in no list yet.
    #[inline]
    fn node(&mut self, at: Ps, event: E) -> u32 {
        let node = Node {
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

    /// Into its bucket, behind all that are as early or earlier.
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
            // It ends at the tail, which is later.
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

    /// Into its bin, behind all that came before it, or into the heap.
    #[inline(never)]
    fn put_off(&mut self, bin: u64, at: Ps, event: E) {
        if bin - self.near >= BINS as u64 {
            let order = self.inserted;
            self.inserted += 1;
            self.later.push(Reverse(Later { at, order, event }));
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

    /// The base is in another bin: events of the one after it get their buckets, and bins those that were behind the
    /// last one and are not any more. In each bin and bucket these are the first: what is pushed later comes behind.
    #[cold]
    #[inline(never)]
    fn move_to(&mut self, bin: u64) {
        while self.near <= bin {
            if self.binned == 0 {
                // Whatever is later is not before this one either.
                self.near = bin;
            }
            self.near += 1;
            self.unbin(self.near);
            let last = self.near + (BINS as u64 - 1);
            while let Some(Reverse(later)) = self.later.peek()
                && later.at >> BIN_SHIFT <= last
            {
                let Later { at, event, .. } = *later;
                self.later.pop();
                self.push(at, event);
            }
        }
    }

    /// Events of a bin get their buckets.
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
            let Node {
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

    /// The first bin that is not empty, counted from time 0, with nothing in buckets.
    fn first_bin(&self) -> Option<u64> {
        let next = self.near + 1;
        let ahead = from_bit(self.binned, place::<BINS>(next));
        (ahead != 0).then(|| next + u64::from(ahead.trailing_zeros()))
    }

    /// When the next event is that is in no bucket.
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

    /// Takes the next event when there is none in a bucket.
    #[cold]
    #[inline(never)]
    fn pop_later(&mut self, until: Ps) -> Option<(Ps, E)> {
        let first = self.next_later()?;
        if first > until {
            return None;
        }
        self.base = first >> SHIFT;
        self.move_to(first >> BIN_SHIFT);
        // Now there is one in a bucket.
        self.pop_until(until)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Times that meet in a bucket, in the calendar, and behind it.
    fn delay() -> impl Strategy<Value = u64> {
        prop_oneof![
            4 => 0u64..50,
            4 => 0u64..1 << 16,
            2 => 0u64..1 << 26,
            1 => 0u64..1 << 40,
        ]
    }

    proptest! {
        /// Pushed and popped in any order, it is a stable sort of what is in it.
        #[test]
        fn agrees_with_a_sorted_list(steps in prop::collection::vec(prop::option::weighted(0.6, delay()), 0..600)) {
            let mut queue = EventQueue::new();
            let mut model: Vec<(Ps, usize)> = Vec::new();
            let mut now = 0;
            for (name, step) in steps.into_iter().enumerate() {
                if let Some(delay) = step {
                    let at = now + delay;
                    queue.push(at, name);
                    // Behind all that are as early or earlier.
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
