//! A queue of delayed items, sorted by due time.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

/// A queue of delayed items in the order of their due times; items with equal due times keep their
/// insertion order.
///
/// ```
/// let mut queue = faults::DelayQueue::default();
/// queue.push(20, 'b');
/// queue.push(10, 'a');
/// assert_eq!(queue.pop_due(9), None);
/// assert_eq!(queue.pop_due(10), Some('a'));
/// assert_eq!(queue.pop_due(10), None);
/// ```
#[derive(Debug)]
pub struct DelayQueue<T> {
    items: BinaryHeap<Reverse<DelayedEntry<T>>>,
    pushed_count: u64,
}

#[derive(Debug)]
struct DelayedEntry<T> {
    due_ns: u64,
    push_number: u64,
    item: T,
}

impl<T> DelayedEntry<T> {
    fn ordering_key(&self) -> (u64, u64) {
        (self.due_ns, self.push_number)
    }
}

impl<T> PartialEq for DelayedEntry<T> {
    fn eq(&self, other: &Self) -> bool {
        self.ordering_key() == other.ordering_key()
    }
}

impl<T> Eq for DelayedEntry<T> {}

impl<T> PartialOrd for DelayedEntry<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for DelayedEntry<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.ordering_key().cmp(&other.ordering_key())
    }
}

impl<T> Default for DelayQueue<T> {
    fn default() -> Self {
        Self {
            items: BinaryHeap::new(),
            pushed_count: 0,
        }
    }
}

impl<T> DelayQueue<T> {
    /// Adds an item that is due at `due_ns`.
    pub fn push(&mut self, due_ns: u64, what: T) {
        let number = self.pushed_count;
        self.pushed_count += 1;
        self.items.push(Reverse(DelayedEntry {
            due_ns,
            push_number: number,
            item: what,
        }));
    }

    /// Removes and returns the first item if it is due at `now_ns`.
    pub fn pop_due(&mut self, now_ns: u64) -> Option<T> {
        let Reverse(first) = self.items.peek()?;
        if first.due_ns > now_ns {
            return None;
        }
        self.items.pop().map(|Reverse(entry)| entry.item)
    }

    /// Returns the due time of the first item.
    ///
    /// ```
    /// let mut queue = faults::DelayQueue::default();
    /// assert_eq!(queue.next_due_ns(), None);
    /// queue.push(20, 'b');
    /// queue.push(10, 'a');
    /// assert_eq!(queue.next_due_ns(), Some(10));
    /// ```
    #[must_use]
    pub fn next_due_ns(&self) -> Option<u64> {
        self.items.peek().map(|Reverse(first)| first.due_ns)
    }

    /// Returns true if the queue has no items.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }
}
