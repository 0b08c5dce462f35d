//! A queue of late items, sorted by due time.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

/// A queue of late items in the order of their due times; items with equal times keep their
/// insertion order.
///
/// ```
/// let mut line = faults::Line::default();
/// line.push(20, 'b');
/// line.push(10, 'a');
/// assert_eq!(line.pop_due(9), None);
/// assert_eq!(line.pop_due(10), Some('a'));
/// assert_eq!(line.pop_due(10), None);
/// ```
#[derive(Debug)]
pub struct Line<T> {
    late: BinaryHeap<Reverse<Entry<T>>>,
    pushed: u64,
}

#[derive(Debug)]
struct Entry<T> {
    due_ns: u64,
    number: u64,
    what: T,
}

impl<T> Entry<T> {
    fn key(&self) -> (u64, u64) {
        (self.due_ns, self.number)
    }
}

impl<T> PartialEq for Entry<T> {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl<T> Eq for Entry<T> {}

impl<T> PartialOrd for Entry<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Entry<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}

impl<T> Default for Line<T> {
    fn default() -> Self {
        Self {
            late: BinaryHeap::new(),
            pushed: 0,
        }
    }
}

impl<T> Line<T> {
    /// Adds an item that is due at `due_ns`.
    pub fn push(&mut self, due_ns: u64, what: T) {
        let number = self.pushed;
        self.pushed += 1;
        self.late.push(Reverse(Entry {
            due_ns,
            number,
            what,
        }));
    }

    /// Removes the first item, if due by `now_ns`.
    pub fn pop_due(&mut self, now_ns: u64) -> Option<T> {
        let Reverse(first) = self.late.peek()?;
        if first.due_ns > now_ns {
            return None;
        }
        self.late.pop().map(|Reverse(entry)| entry.what)
    }

    /// Returns true if the queue has no items.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.late.is_empty()
    }
}
