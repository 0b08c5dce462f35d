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
const BUCKET_SHIFT: u32 = 12;
/// Number of buckets: the summary has a bit for each word of 64 buckets.
const BUCKET_COUNT: usize = 64 * 64;
/// Logarithm of a bin's length, half the calendar: all buckets of a bin are free when the bin before it begins.
const BIN_SHIFT: u32 = BUCKET_SHIFT + 11;
/// Number of bins: one bit of a word for each.
const BIN_COUNT: usize = 64;
const NO_NODE: u32 = u32::MAX;

/// A queue of events in the order of their times; events of equal time keep the order of their insertion. So the order
/// is the same in every run.
#[derive(Debug)]
pub(crate) struct EventQueue<E> {
    nodes: Vec<EventNode<E>>,
    first_free_node: u32,
    /// First node of each bucket; valid only if the bucket's bit is set.
    buckets: Box<[u32; BUCKET_COUNT]>,
    /// Bitmap of non-empty buckets; `nonempty_word_bits`: bitmap of the words that are not zero.
    nonempty_bucket_bits: Box<[u64; 64]>,
    nonempty_word_bits: u64,
    /// Bucket of the event that was popped last, counted from time 0; all earlier buckets are empty.
    base_bucket: u64,
    /// Bin after that of the base, counted from time 0: the last bin whose events are in buckets.
    last_bucketed_bin: u64,
    /// Last node of each bin, whose nodes form a ring; valid only if the bin's bit is set.
    last_node_of_bin: [u32; BIN_COUNT],
    /// Bitmap of non-empty bins.
    nonempty_bin_bits: u64,
    /// Events after the last bin.
    events_after_bins: BinaryHeap<Reverse<LaterEvent<E>>>,
    next_insertion_order: u64,
}

#[derive(Clone, Copy, Debug)]
struct EventNode<E> {
    at: Ps,
    event: E,
    next_node: u32,
    /// Last node of the bucket; valid in the bucket's first node.
    bucket_tail: u32,
}

#[derive(Clone, Copy, Debug)]
struct LaterEvent<E> {
    at: Ps,
    insertion_order: u64,
    event: E,
}

impl<E> PartialEq for LaterEvent<E> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl<E> Eq for LaterEvent<E> {}

impl<E> PartialOrd for LaterEvent<E> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for LaterEvent<E> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.insertion_order).cmp(&(other.at, other.insertion_order))
    }
}

/// Rotates a word so that bit `bit` becomes bit 0.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "a bit of a word")]
fn rotate_to_bit(word: u64, bit: usize) -> u64 {
    word.rotate_right(bit as u32)
}

/// Returns the index, modulo `PLACES`, of the slot of the event queue.
#[inline(always)]
#[expect(
    clippy::cast_possible_truncation,
    reason = "below the number of places"
)]
fn ring_index<const PLACES: usize>(counted: u64) -> usize {
    (counted % PLACES as u64) as usize
}

impl<E: Copy> EventQueue<E> {
    pub(crate) fn new() -> Self {
        Self {
            nodes: Vec::new(),
            first_free_node: NO_NODE,
            buckets: Box::new([NO_NODE; BUCKET_COUNT]),
            nonempty_bucket_bits: Box::new([0; 64]),
            nonempty_word_bits: 0,
            base_bucket: 0,
            last_bucketed_bin: 1,
            last_node_of_bin: [NO_NODE; BIN_COUNT],
            nonempty_bin_bits: 0,
            events_after_bins: BinaryHeap::new(),
            next_insertion_order: 0,
        }
    }

    /// Adds an event at a time; an event in the past becomes the next one.
    #[inline]
    pub(crate) fn push(&mut self, at: Ps, event: E) {
        let bin = at >> BIN_SHIFT;
        if bin <= self.last_bucketed_bin {
            let new = self.new_node(at, event);
            self.insert_into_bucket((at >> BUCKET_SHIFT).max(self.base_bucket), at, new);
        } else {
            self.add_to_bin_or_heap(bin, at, event);
        }
    }

    /// Takes the next event, if its time is not after `until`.
    #[inline(always)]
    pub(crate) fn pop_until(&mut self, until: Ps) -> Option<(Ps, E)> {
        let Some(index) = self.first_nonempty_bucket() else {
            return self.pop_outside_buckets(until);
        };
        let head = self.buckets[index];
        let EventNode {
            at,
            event,
            next_node: next,
            bucket_tail: tail,
        } = self.nodes[head as usize];
        if at > until {
            return None;
        }
        self.nodes[head as usize].next_node = self.first_free_node;
        self.first_free_node = head;
        if next == NO_NODE {
            let word = &mut self.nonempty_bucket_bits[index / 64];
            *word &= !(1 << (index % 64));
            if *word == 0 {
                self.nonempty_word_bits &= !(1 << (index / 64));
            }
        } else {
            self.buckets[index] = next;
            self.nodes[next as usize].bucket_tail = tail;
        }
        self.base_bucket = self.base_bucket.max(at >> BUCKET_SHIFT);
        if at >> BIN_SHIFT >= self.last_bucketed_bin {
            self.move_base_to_bin(at >> BIN_SHIFT);
        }
        Some((at, event))
    }

    /// Returns the time of the next event.
    #[inline]
    pub(crate) fn next_at(&self) -> Option<Ps> {
        match self.first_nonempty_bucket() {
            Some(index) => Some(self.nodes[self.buckets[index] as usize].at),
            None => self.next_time_outside_buckets(),
        }
    }

    /// Returns the first non-empty bucket, in ring order from the base.
    #[inline]
    fn first_nonempty_bucket(&self) -> Option<usize> {
        let from = ring_index::<BUCKET_COUNT>(self.base_bucket);
        let (word, bit) = (from / 64, from % 64);
        let here = self.nonempty_bucket_bits[word] >> bit;
        if here != 0 {
            return Some(from + here.trailing_zeros() as usize);
        }
        // The words after this one come first; this word comes last, with its buckets in front of the base.
        let behind = rotate_to_bit(self.nonempty_word_bits, word) & !1;
        let behind = if behind == 0 {
            if self.nonempty_word_bits == 0 {
                return None;
            }
            0
        } else {
            behind.trailing_zeros() as usize
        };
        let word = (word + behind) % 64;
        Some(word * 64 + self.nonempty_bucket_bits[word].trailing_zeros() as usize)
    }

    /// Makes a node that is in no list yet.
    #[inline]
    fn new_node(&mut self, at: Ps, event: E) -> u32 {
        let node = EventNode {
            at,
            event,
            next_node: NO_NODE,
            bucket_tail: NO_NODE,
        };
        let free = self.first_free_node;
        if let Some(unused) = self.nodes.get_mut(free as usize) {
            self.first_free_node = unused.next_node;
            *unused = node;
            return free;
        }
        self.nodes.push(node);
        u32::try_from(self.nodes.len() - 1).expect("fewer events than 2^32")
    }

    /// Adds a node to its bucket, after all nodes that are not later.
    #[inline]
    fn insert_into_bucket(&mut self, bucket: u64, at: Ps, new: u32) {
        let index = ring_index::<BUCKET_COUNT>(bucket);
        let bit = 1 << (index % 64);
        let word = &mut self.nonempty_bucket_bits[index / 64];
        if *word & bit == 0 {
            *word |= bit;
            self.nonempty_word_bits |= 1 << (index / 64);
            self.buckets[index] = new;
            self.nodes[new as usize].bucket_tail = new;
            return;
        }
        let head = self.buckets[index];
        let tail = self.nodes[head as usize].bucket_tail;
        if self.nodes[tail as usize].at <= at {
            self.nodes[tail as usize].next_node = new;
            self.nodes[head as usize].bucket_tail = new;
        } else if self.nodes[head as usize].at > at {
            self.nodes[new as usize].next_node = head;
            self.nodes[new as usize].bucket_tail = tail;
            self.buckets[index] = new;
        } else {
            let mut before = head;
            // The loop ends at the tail at the latest, which is later.
            loop {
                let next = self.nodes[before as usize].next_node;
                if self.nodes[next as usize].at > at {
                    self.nodes[new as usize].next_node = next;
                    self.nodes[before as usize].next_node = new;
                    break;
                }
                before = next;
            }
        }
    }

    /// Adds an event to the end of its bin, or to the heap.
    #[inline(never)]
    fn add_to_bin_or_heap(&mut self, bin: u64, at: Ps, event: E) {
        if bin - self.last_bucketed_bin >= BIN_COUNT as u64 {
            let order = self.next_insertion_order;
            self.next_insertion_order += 1;
            self.events_after_bins.push(Reverse(LaterEvent {
                at,
                insertion_order: order,
                event,
            }));
            return;
        }
        let new = self.new_node(at, event);
        let index = ring_index::<BIN_COUNT>(bin);
        if self.nonempty_bin_bits & 1 << index == 0 {
            self.nonempty_bin_bits |= 1 << index;
            self.nodes[new as usize].next_node = new;
        } else {
            let last = self.last_node_of_bin[index] as usize;
            self.nodes[new as usize].next_node = self.nodes[last].next_node;
            self.nodes[last].next_node = new;
        }
        self.last_node_of_bin[index] = new;
    }

    /// Moves the base to another bin. Events of the bin after it go to their buckets, and events from the heap to bins
    /// that have come into range. These events come first in each bin and bucket, since later pushes are appended.
    #[cold]
    #[inline(never)]
    fn move_base_to_bin(&mut self, bin: u64) {
        while self.last_bucketed_bin <= bin {
            if self.nonempty_bin_bits == 0 {
                // All other events are not before this bin either.
                self.last_bucketed_bin = bin;
            }
            self.last_bucketed_bin += 1;
            self.move_bin_to_buckets(self.last_bucketed_bin);
            let last = self.last_bucketed_bin + (BIN_COUNT as u64 - 1);
            while let Some(Reverse(later)) = self.events_after_bins.peek()
                && later.at >> BIN_SHIFT <= last
            {
                let LaterEvent { at, event, .. } = *later;
                self.events_after_bins.pop();
                self.push(at, event);
            }
        }
    }

    /// Moves the events of a bin to their buckets.
    fn move_bin_to_buckets(&mut self, bin: u64) {
        let index = ring_index::<BIN_COUNT>(bin);
        if self.nonempty_bin_bits & 1 << index == 0 {
            return;
        }
        self.nonempty_bin_bits &= !(1 << index);
        let last = self.last_node_of_bin[index];
        let mut next = self.nodes[last as usize].next_node;
        loop {
            let this = next;
            let EventNode {
                at,
                next_node: after,
                ..
            } = self.nodes[this as usize];
            self.nodes[this as usize].next_node = NO_NODE;
            self.insert_into_bucket(at >> BUCKET_SHIFT, at, this);
            if this == last {
                break;
            }
            next = after;
        }
    }

    /// Returns the first non-empty bin, counted from time 0; the buckets must be empty.
    fn first_nonempty_bin(&self) -> Option<u64> {
        let next = self.last_bucketed_bin + 1;
        let ahead = rotate_to_bit(self.nonempty_bin_bits, ring_index::<BIN_COUNT>(next));
        (ahead != 0).then(|| next + u64::from(ahead.trailing_zeros()))
    }

    /// Returns the time of the next event if no bucket has one.
    #[cold]
    #[inline(never)]
    fn next_time_outside_buckets(&self) -> Option<Ps> {
        let Some(bin) = self.first_nonempty_bin() else {
            return self.events_after_bins.peek().map(|Reverse(later)| later.at);
        };
        let last = self.last_node_of_bin[ring_index::<BIN_COUNT>(bin)];
        let (mut first, mut node) = (Ps::MAX, last);
        loop {
            node = self.nodes[node as usize].next_node;
            first = first.min(self.nodes[node as usize].at);
            if node == last {
                return Some(first);
            }
        }
    }

    /// Takes the next event if no bucket has one.
    #[cold]
    #[inline(never)]
    fn pop_outside_buckets(&mut self, until: Ps) -> Option<(Ps, E)> {
        let first = self.next_time_outside_buckets()?;
        if first > until {
            return None;
        }
        self.base_bucket = first >> BUCKET_SHIFT;
        self.move_base_to_bin(first >> BIN_SHIFT);
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
