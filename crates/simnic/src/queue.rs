//! The event queue: what happens next in virtual time.
//!
//! A calendar: the next 17 µs lie in buckets of 4 ns, found through a bitmap of those that are not empty; what is
//! later waits in a heap until its bucket comes. Events are a few nanoseconds apart, so a bucket has one or two, and
//! pushing and popping cost the same however many there are.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Virtual time in picoseconds: costs of fractions of a nanosecond add up without rounding drift.
pub(crate) type Ps = u64;

/// A bucket is 2^12 ps.
const SHIFT: u32 = 12;
/// Buckets: a bit of the summary for each word of 64.
const BUCKETS: usize = 64 * 64;
const NONE: u32 = u32::MAX;

/// Events in the order of their time, and of their insertion where times are equal: the order is
/// the same in every run.
#[derive(Debug)]
pub(crate) struct EventQueue<E> {
    nodes: Vec<Node<E>>,
    free: u32,
    /// First and last node of each bucket.
    buckets: Box<[(u32, u32)]>,
    /// Buckets that are not empty, and words of this that are not zero.
    words: Box<[u64; 64]>,
    summary: u64,
    /// The bucket of the event that was popped last, counted from time 0: those before it are empty.
    base: u64,
    /// Events behind the last bucket. None may be there whose bucket is among the next `BUCKETS`: what is pushed
    /// then would come before it.
    later: BinaryHeap<Reverse<Later<E>>>,
    inserted: u64,
}

#[derive(Clone, Copy, Debug)]
struct Node<E> {
    at: Ps,
    event: E,
    next: u32,
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

impl<E: Copy> EventQueue<E> {
    pub(crate) fn new() -> Self {
        Self {
            nodes: Vec::new(),
            free: NONE,
            buckets: vec![(NONE, NONE); BUCKETS].into_boxed_slice(),
            words: Box::new([0; 64]),
            summary: 0,
            base: 0,
            later: BinaryHeap::new(),
            inserted: 0,
        }
    }

    /// An event at a time; one in the past is the next.
    #[inline]
    pub(crate) fn push(&mut self, at: Ps, event: E) {
        let bucket = (at >> SHIFT).max(self.base);
        if bucket - self.base < BUCKETS as u64 {
            self.insert(bucket, at, event);
        } else {
            let order = self.inserted;
            self.inserted += 1;
            self.later.push(Reverse(Later { at, order, event }));
        }
    }

    /// Takes the next event, if it is not after `until`.
    #[inline]
    pub(crate) fn pop_until(&mut self, until: Ps) -> Option<(Ps, E)> {
        let Some(index) = self.first() else {
            return self.pop_later(until);
        };
        let head = self.buckets[index].0;
        let Node { at, event, next } = self.nodes[head as usize];
        if at > until {
            return None;
        }
        self.buckets[index].0 = next;
        if next == NONE {
            self.words[index / 64] &= !(1 << (index % 64));
            self.summary &= !(u64::from(self.words[index / 64] == 0) << (index / 64));
        }
        self.nodes[head as usize].next = self.free;
        self.free = head;
        self.move_to(at >> SHIFT);
        Some((at, event))
    }

    /// When the next event is.
    #[inline]
    pub(crate) fn next_at(&self) -> Option<Ps> {
        match self.first() {
            Some(index) => Some(self.nodes[self.buckets[index].0 as usize].at),
            None => self.later.peek().map(|Reverse(later)| later.at),
        }
    }

    /// The first bucket that is not empty, from the base on and round.
    #[inline]
    fn first(&self) -> Option<usize> {
        if self.summary == 0 {
            return None;
        }
        #[expect(clippy::cast_possible_truncation, reason = "below the buckets")]
        let from = (self.base % BUCKETS as u64) as usize;
        let (word, bit) = (from / 64, from % 64);
        let here = self.words[word] & (u64::MAX << bit);
        if here != 0 {
            return Some(word * 64 + here.trailing_zeros() as usize);
        }
        // The words behind this one come first; this one last, for what is before the base in it.
        let behind = (self.summary & (u64::MAX << word)) & !(1 << word);
        let word = if behind == 0 {
            self.summary.trailing_zeros()
        } else {
            behind.trailing_zeros()
        } as usize;
        Some(word * 64 + self.words[word].trailing_zeros() as usize)
    }

    /// Into its bucket, behind all that are as early or earlier.
    #[inline]
    fn insert(&mut self, bucket: u64, at: Ps, event: E) {
        let node = Node {
            at,
            event,
            next: NONE,
        };
        let new = if self.free == NONE {
            self.nodes.push(node);
            u32::try_from(self.nodes.len() - 1).expect("fewer events than 2^32")
        } else {
            let free = self.free;
            self.free = self.nodes[free as usize].next;
            self.nodes[free as usize] = node;
            free
        };
        #[expect(clippy::cast_possible_truncation, reason = "below the buckets")]
        let index = (bucket % BUCKETS as u64) as usize;
        let word = 1 << (index % 64);
        let (head, tail) = self.buckets[index];
        if self.words[index / 64] & word == 0 {
            self.words[index / 64] |= word;
            self.summary |= 1 << (index / 64);
            self.buckets[index] = (new, new);
        } else if self.nodes[tail as usize].at <= at {
            self.nodes[tail as usize].next = new;
            self.buckets[index].1 = new;
        } else if self.nodes[head as usize].at > at {
            self.nodes[new as usize].next = head;
            self.buckets[index].0 = new;
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

    /// Buckets before this one are done; what was behind the last one and is not any more gets its bucket.
    #[inline]
    fn move_to(&mut self, bucket: u64) {
        if bucket <= self.base {
            return;
        }
        self.base = bucket;
        while let Some(Reverse(later)) = self.later.peek()
            && (later.at >> SHIFT) - bucket < BUCKETS as u64
        {
            let Later { at, event, .. } = *later;
            self.later.pop();
            self.insert(at >> SHIFT, at, event);
        }
    }

    #[cold]
    fn pop_later(&mut self, until: Ps) -> Option<(Ps, E)> {
        let first = self.later.peek().map(|Reverse(later)| later.at)?;
        if first > until {
            return None;
        }
        self.move_to(first >> SHIFT);
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
