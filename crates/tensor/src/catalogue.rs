//! The tensors that a process has for others, by name, and who waits for one; pure.
//!
//! Tensors that the process has published itself stay until they are withdrawn. Tensors that others have stored stay
//! until they are removed, or until the capacity is exceeded. Then the least recently used ones go first.

use std::collections::{BTreeMap, HashMap};

use crate::message::TensorName;

/// Tensors `T` by name, and requests `W` that wait for one.
#[derive(Debug)]
pub struct TensorCatalogue<T, W> {
    entries: HashMap<TensorName, CatalogueEntry<T>>,
    waiters_by_name: HashMap<TensorName, Vec<W>>,
    /// The stored tensors by the time of their last use.
    names_by_last_use: BTreeMap<u64, TensorName>,
    use_clock: u64,
    stored_bytes: u64,
    capacity_bytes: u64,
    evicted_tensors: u64,
}

#[derive(Debug)]
struct CatalogueEntry<T> {
    tensor: T,
    /// Of a stored tensor: its bytes, and when it was used last.
    stored_bytes_and_last_use: Option<(u64, u64)>,
}

/// The process has published a tensor of this name itself, so a peer can neither replace nor remove it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PublishedHereError;

/// Statistics of the contents of a store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StoreStatistics {
    /// Tensors, published and stored.
    pub published_and_stored_tensors: u64,
    /// Bytes of those that were stored.
    pub stored_bytes: u64,
    /// Stored tensors that had to go for others.
    pub evicted_tensors: u64,
}

impl<T: Clone, W> TensorCatalogue<T, W> {
    /// An empty one, for so many bytes of stored tensors.
    pub fn new(capacity_bytes: u64) -> Self {
        Self {
            entries: HashMap::new(),
            waiters_by_name: HashMap::new(),
            names_by_last_use: BTreeMap::new(),
            use_clock: 0,
            stored_bytes: 0,
            capacity_bytes,
            evicted_tensors: 0,
        }
    }

    /// Returns true if a tensor of `bytes` bytes can be stored. A catalogue without capacity stores none, not even an
    /// empty one.
    pub fn fits_total_capacity(&self, bytes: u64) -> bool {
        self.capacity_bytes > 0 && bytes <= self.capacity_bytes
    }

    /// Returns true if this process has published a tensor of this name.
    pub fn is_published(&self, name: &TensorName) -> bool {
        let entry = self.entries.get(name);
        entry.is_some_and(|entry| entry.stored_bytes_and_last_use.is_none())
    }

    /// Publishes a tensor in place of any other of that name, and returns the requests that waited for it.
    #[must_use]
    pub fn publish(&mut self, name: TensorName, tensor: T) -> Vec<W> {
        self.insert(name, tensor, None)
    }

    /// Stores a tensor in place of another stored one of that name, and returns the requests that waited for it. Other
    /// tensors go if the capacity requires it.
    ///
    /// # Errors
    /// [`PublishedHereError`].
    pub fn store(
        &mut self,
        name: TensorName,
        tensor: T,
        bytes: u64,
    ) -> Result<Vec<W>, PublishedHereError> {
        if self.is_published(&name) {
            return Err(PublishedHereError);
        }
        self.use_clock += 1;
        let waiting = self.insert(name.clone(), tensor, Some((bytes, self.use_clock)));
        self.names_by_last_use.insert(self.use_clock, name);
        self.stored_bytes += bytes;
        while self.stored_bytes > self.capacity_bytes {
            let Some((_, name)) = self.names_by_last_use.pop_first() else {
                break;
            };
            self.evicted_tensors += 1;
            self.remove(&name);
        }
        Ok(waiting)
    }

    fn insert(&mut self, name: TensorName, tensor: T, stored: Option<(u64, u64)>) -> Vec<W> {
        self.remove(&name);
        let waiting = self.waiters_by_name.remove(&name).unwrap_or_default();
        self.entries.insert(
            name,
            CatalogueEntry {
                tensor,
                stored_bytes_and_last_use: stored,
            },
        );
        waiting
    }

    /// The tensor of this name, which is used hereby.
    pub fn find_and_mark_used(&mut self, name: &TensorName) -> Option<T> {
        let entry = self.entries.get_mut(name)?;
        if let Some((_, used)) = &mut entry.stored_bytes_and_last_use {
            self.use_clock += 1;
            self.names_by_last_use.remove(used);
            *used = self.use_clock;
            self.names_by_last_use.insert(self.use_clock, name.clone());
        }
        Some(entry.tensor.clone())
    }

    /// The tensor of this name; if there is none, `waiter` is told once there is one.
    ///
    /// # Errors
    /// Nothing yet: somebody waits.
    pub fn find_or_register_waiter(&mut self, name: &TensorName, waiter: W) -> Option<T> {
        let found = self.find_and_mark_used(name);
        if found.is_none() {
            self.waiters_by_name
                .entry(name.clone())
                .or_default()
                .push(waiter);
        }
        found
    }

    /// Takes a tensor out.
    pub fn remove(&mut self, name: &TensorName) -> Option<T> {
        let entry = self.entries.remove(name)?;
        if let Some((bytes, used)) = entry.stored_bytes_and_last_use {
            self.stored_bytes -= bytes;
            self.names_by_last_use.remove(&used);
        }
        Some(entry.tensor)
    }

    /// Takes a stored tensor out.
    ///
    /// # Errors
    /// [`PublishedHereError`].
    pub fn remove_stored(&mut self, name: &TensorName) -> Result<Option<T>, PublishedHereError> {
        match self.is_published(name) {
            true => Err(PublishedHereError),
            false => Ok(self.remove(name)),
        }
    }

    /// Takes out waiters, by what `is_gone` says of them; how many.
    pub fn remove_waiters_if(&mut self, mut is_gone: impl FnMut(&W) -> bool) -> usize {
        let mut count = 0;
        self.waiters_by_name.retain(|_, waiters| {
            let before = waiters.len();
            waiters.retain(|w| !is_gone(w));
            count += before - waiters.len();
            !waiters.is_empty()
        });
        count
    }

    /// Returns the statistics of the contents.
    pub fn statistics(&self) -> StoreStatistics {
        StoreStatistics {
            published_and_stored_tensors: self.entries.len() as u64,
            stored_bytes: self.stored_bytes,
            evicted_tensors: self.evicted_tensors,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn name(step: u64) -> TensorName {
        TensorName {
            key: "k".to_owned(),
            step,
        }
    }

    #[test]
    fn the_one_used_longest_ago_goes_first() {
        let mut c = TensorCatalogue::<u64, ()>::new(100);
        for step in 0..3 {
            assert_eq!(c.store(name(step), step, 30), Ok(vec![]));
        }
        assert_eq!(c.find_and_mark_used(&name(0)), Some(0));
        assert_eq!(c.store(name(3), 3, 30), Ok(vec![]));
        let there = [0, 1, 2, 3].map(|step| c.find_and_mark_used(&name(step)).is_some());
        assert_eq!(there, [true, false, true, true]);
        assert_eq!(
            (c.statistics().evicted_tensors, c.statistics().stored_bytes),
            (1, 90)
        );
        assert!(c.fits_total_capacity(100) && !c.fits_total_capacity(101));
    }

    #[test]
    fn what_is_published_stays() {
        let mut c = TensorCatalogue::<u64, ()>::new(10);
        assert!(c.publish(name(0), 0).is_empty());
        for step in 1..4 {
            assert_eq!(c.store(name(step), step, 10), Ok(vec![]));
        }
        let there = [0, 1, 2, 3].map(|step| c.find_and_mark_used(&name(step)).is_some());
        assert_eq!(there, [true, false, false, true]);
        assert_eq!(c.store(name(0), 7, 10), Err(PublishedHereError));
        assert_eq!(c.remove_stored(&name(0)), Err(PublishedHereError));
        assert_eq!(c.find_and_mark_used(&name(0)), Some(0));
        assert_eq!(c.remove_stored(&name(3)), Ok(Some(3)));
        assert_eq!(c.remove_stored(&name(3)), Ok(None));
        assert!(!TensorCatalogue::<u64, ()>::new(0).fits_total_capacity(0));
    }

    #[test]
    fn waiters_are_told_once_or_forgotten() {
        let mut c = TensorCatalogue::<u64, &str>::new(10);
        assert_eq!(c.find_or_register_waiter(&name(0), "a"), None);
        assert_eq!(c.find_or_register_waiter(&name(0), "b"), None);
        assert_eq!(c.find_or_register_waiter(&name(1), "c"), None);
        assert_eq!(c.remove_waiters_if(|&w| w == "a"), 1);
        assert_eq!(c.publish(name(0), 7), ["b"]);
        assert_eq!(c.publish(name(0), 8), [""; 0]);
        assert_eq!(c.find_or_register_waiter(&name(0), "d"), Some(8));
    }

    proptest! {
        #[test]
        fn the_bytes_are_those_of_what_is_there(steps in prop::collection::vec((0..3u8, 0..8u64, 0..60u64), 0..200)) {
            let mut c = TensorCatalogue::<u64, ()>::new(100);
            for (action, step, bytes) in steps {
                match action {
                    0 => prop_assert_eq!(c.store(name(step), bytes, bytes), Ok(vec![])),
                    1 => drop(c.remove(&name(step))),
                    _ => drop(c.find_and_mark_used(&name(step))),
                }
                let bytes: u64 = (0..8).filter_map(|s| c.find_and_mark_used(&name(s))).sum();
                prop_assert_eq!(c.statistics().stored_bytes, bytes);
                prop_assert!(bytes <= 100);
                prop_assert_eq!(c.names_by_last_use.len(), c.entries.len());
            }
        }
    }
}
