//! The event queue: what happens next in virtual time.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

/// Virtual time in picoseconds: costs of fractions of a nanosecond add up without rounding drift.
pub(crate) type Ps = u64;

/// Events in the order of their time, and of their insertion where times are equal: the order is
/// the same in every run.
#[derive(Debug)]
pub(crate) struct EventQueue<E> {
    heap: BinaryHeap<Reverse<Entry<E>>>,
    inserted: u64,
}

#[derive(Clone, Copy, Debug)]
struct Entry<E> {
    at: Ps,
    order: u64,
    event: E,
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<E> Eq for Entry<E> {}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Entry<E> {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

impl<E> EventQueue<E> {
    pub(crate) fn new() -> Self {
        Self {
            heap: BinaryHeap::new(),
            inserted: 0,
        }
    }

    pub(crate) fn push(&mut self, at: Ps, event: E) {
        let order = self.inserted;
        self.inserted += 1;
        self.heap.push(Reverse(Entry { at, order, event }));
    }

    pub(crate) fn pop(&mut self) -> Option<(Ps, E)> {
        let Reverse(entry) = self.heap.pop()?;
        Some((entry.at, entry.event))
    }

    /// When the next event is.
    pub(crate) fn next_at(&self) -> Option<Ps> {
        self.heap.peek().map(|Reverse(entry)| entry.at)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Pushed and popped in any order, it is a stable sort of what is in it.
        #[test]
        fn agrees_with_a_sorted_list(steps in prop::collection::vec(prop::option::weighted(0.6, 0u64..50), 0..400)) {
            let mut queue = EventQueue::new();
            let mut model: Vec<(Ps, usize)> = Vec::new();
            for (name, step) in steps.into_iter().enumerate() {
                if let Some(at) = step {
                    queue.push(at, name);
                    // Behind all that are as early or earlier.
                    let place = model.partition_point(|&(other, _)| other <= at);
                    model.insert(place, (at, name));
                } else {
                    let expected = (!model.is_empty()).then(|| model.remove(0));
                    prop_assert_eq!(queue.pop(), expected);
                }
                prop_assert_eq!(queue.next_at(), model.first().map(|&(at, _)| at));
            }
            while let Some(next) = queue.pop() {
                prop_assert_eq!(next, model.remove(0));
            }
            prop_assert!(model.is_empty());
        }
    }
}
