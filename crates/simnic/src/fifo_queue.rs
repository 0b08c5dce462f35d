//! A queue that restarts at its first place whenever it is empty.
//!
//! A ring buffer would cycle through all the memory that it ever needed. With thousands of queues that are usually
//! short, this memory would fill most of a processor's caches.

/// A first-in first-out queue.
#[derive(Debug)]
pub(crate) struct FifoQueue<T> {
    items: Vec<T>,
    /// Index of the first item; less than the number of items, unless it is 0.
    head: usize,
}

impl<T> Default for FifoQueue<T> {
    fn default() -> Self {
        Self {
            items: Vec::new(),
            head: 0,
        }
    }
}

impl<T: Copy> FifoQueue<T> {
    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        self.items.len() - self.head
    }

    #[inline(always)]
    pub(crate) fn front(&self) -> Option<&T> {
        self.items.get(self.head)
    }

    /// Returns the address of the first item, for a prefetch.
    #[inline(always)]
    pub(crate) fn front_address(&self) -> *const T {
        self.items.as_ptr().wrapping_add(self.head)
    }

    /// Returns the address of the next item to be pushed, for a prefetch.
    #[inline(always)]
    pub(crate) fn next_push_address(&self) -> *const T {
        self.items.as_ptr().wrapping_add(self.items.len())
    }

    /// Returns the second item.
    #[inline(always)]
    pub(crate) fn second(&self) -> Option<&T> {
        self.items.get(self.head + 1)
    }

    #[inline(always)]
    pub(crate) fn front_mut(&mut self) -> Option<&mut T> {
        self.items.get_mut(self.head)
    }

    #[inline(always)]
    pub(crate) fn back_mut(&mut self) -> Option<&mut T> {
        self.items.last_mut()
    }

    /// Returns all items, first item first.
    #[inline(always)]
    pub(crate) fn as_slice(&self) -> &[T] {
        &self.items[self.head..]
    }

    #[inline(always)]
    pub(crate) fn push(&mut self, item: T) {
        if self.items.len() == self.items.capacity() {
            self.compact_or_grow();
        }
        self.items.push(item);
    }

    /// Inserts items before the first one.
    pub(crate) fn prepend(&mut self, items: impl IntoIterator<Item = T>) {
        self.items.splice(self.head..self.head, items);
    }

    /// Moves all items to the front if they fill less than half of the memory; otherwise the memory grows.
    #[cold]
    #[inline(never)]
    fn compact_or_grow(&mut self) {
        if self.head > self.items.len() / 2 {
            self.items.drain(..self.head);
            self.head = 0;
        } else {
            self.items.reserve(1);
        }
    }

    #[inline(always)]
    pub(crate) fn pop(&mut self) -> Option<T> {
        let item = *self.items.get(self.head)?;
        self.skip_front();
        Some(item)
    }

    #[inline(always)]
    pub(crate) fn pop_if(&mut self, wanted: impl FnOnce(&T) -> bool) -> Option<T> {
        let item = *self.items.get(self.head)?;
        if !wanted(&item) {
            return None;
        }
        self.skip_front();
        Some(item)
    }

    #[inline(always)]
    fn skip_front(&mut self) {
        self.drop_front(1);
    }

    /// Removes the first `count` items, which must exist.
    #[inline(always)]
    pub(crate) fn drop_front(&mut self, count: usize) {
        self.head += count;
        if self.head >= self.items.len() {
            self.items.clear();
            self.head = 0;
        }
    }

    /// Inserts an item by time, after items of equal time.
    #[inline(always)]
    pub(crate) fn insert_by_time(&mut self, item: T, at: impl Fn(&T) -> u64) {
        let time = at(&item);
        let last = self.items.last().map_or(0, &at);
        self.push(item);
        if last > time {
            self.move_last_to_its_time(time, at);
        }
    }

    /// Moves the last item to its place by time, usually a short way.
    #[inline]
    fn move_last_to_its_time(&mut self, time: u64, at: impl Fn(&T) -> u64) {
        let queued = &mut self.items[self.head..];
        let mut place = queued.len() - 1;
        let item = queued[place];
        while place > 0 && at(&queued[place - 1]) > time {
            queued[place] = queued[place - 1];
            place -= 1;
        }
        queued[place] = item;
    }

    /// Removes and returns the items after the first `keep`.
    pub(crate) fn split_off(&mut self, keep: usize) -> Vec<T> {
        let from = self.head + keep.min(self.len());
        let rest = self.items.split_off(from);
        if self.head == self.items.len() {
            self.items.clear();
            self.head = 0;
        }
        rest
    }

    pub(crate) fn retain(&mut self, wanted: impl Fn(&T) -> bool) {
        self.items.drain(..self.head);
        self.head = 0;
        self.items.retain(wanted);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone)]
    enum Step {
        Push(u64),
        Insert(u64),
        Pop,
        PopIf(u64),
        DropFront(usize),
        Keep(usize),
        Retain(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            8 => (0u64..50).prop_map(Step::Push),
            8 => (0u64..50).prop_map(Step::Insert),
            12 => Just(Step::Pop),
            6 => (0u64..50).prop_map(Step::PopIf),
            2 => (0usize..5).prop_map(Step::DropFront),
            1 => (0usize..10).prop_map(Step::Keep),
            1 => (1u64..5).prop_map(Step::Retain),
        ]
    }

    proptest! {
        #[test]
        fn is_a_queue(steps in prop::collection::vec(step(), 0..400)) {
            let (mut line, mut model) = (FifoQueue::default(), VecDeque::new());
            for (name, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Push(at) => {
                        line.push((at, name));
                        model.push_back((at, name));
                    }
                    Step::Insert(at) => {
                        line.insert_by_time((at, name), |&(at, _)| at);
                        let before = model.iter().rposition(|&(other, _)| other <= at);
                        model.insert(before.map_or(0, |before| before + 1), (at, name));
                    }
                    Step::Pop => prop_assert_eq!(line.pop(), model.pop_front()),
                    Step::PopIf(most) => {
                        let expected = model.pop_front_if(|&mut (at, _)| at <= most);
                        prop_assert_eq!(line.pop_if(|&(at, _)| at <= most), expected);
                    }
                    Step::DropFront(count) => {
                        let count = count.min(model.len());
                        prop_assert!(line.as_slice()[..count].iter().eq(model.drain(..count).collect::<Vec<_>>().iter()));
                        line.drop_front(count);
                    }
                    Step::Keep(keep) => {
                        let rest = model.split_off(keep.min(model.len()));
                        prop_assert_eq!(line.split_off(keep), Vec::from(rest));
                    }
                    Step::Retain(every) => {
                        line.retain(|&(at, _)| at % every == 0);
                        model.retain(|&(at, _)| at % every == 0);
                    }
                }
                prop_assert_eq!(line.front(), model.front());
                prop_assert_eq!(line.back_mut(), model.back_mut());
                prop_assert_eq!(line.len(), model.len());
                prop_assert!(line.as_slice().iter().eq(model.iter()));
            }
        }
    }
}
