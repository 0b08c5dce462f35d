//! A table of objects by their handles, which every data path call searches without a lock.

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// Number of slots of a table; at most half of them are used.
const SLOT_COUNT: usize = 1 << 15;
/// Maximum number of slots that a search examines.
const MAX_PROBES: usize = 64;
/// Keys of empty slots: `FREE_KEY` for a slot that was never used, `DEVICE_GONE` for a slot whose object was removed.
const FREE_KEY: u64 = 0;
const TOMBSTONE_KEY: u64 = 1;

/// A hash table with open addressing. Values are never freed. The caller holds a lock while it adds or
/// removes keys.
///
/// A reader that searches while its object is being removed may find another object. The only harm is that a
/// call is counted for the wrong object.
pub(crate) struct OpenAddressingTable<T: 'static> {
    slots: [Slot<T>; SLOT_COUNT],
}

struct Slot<T> {
    key: AtomicU64,
    value: AtomicPtr<T>,
}

impl<T> Slot<T> {
    /// Returns the object if the slot has this key; otherwise returns the slot's key as an error.
    #[inline(always)]
    fn value_or_other_key(&self, key: u64) -> Result<Option<&'static T>, u64> {
        // Acquire: pairs with the Release of `insert`, so that the value is visible.
        let here = self.key.load(Ordering::Acquire);
        if here != key {
            return Err(here);
        }
        // SAFETY: only `insert` stores values, and they live for ever.
        Ok(unsafe { self.value.load(Ordering::Acquire).as_ref() })
    }
}

impl<T> OpenAddressingTable<T> {
    pub(crate) const fn new() -> Self {
        Self {
            slots: [const {
                Slot {
                    key: AtomicU64::new(FREE_KEY),
                    value: AtomicPtr::new(ptr::null_mut()),
                }
            }; SLOT_COUNT],
        }
    }

    #[inline(always)]
    fn first_probe_index(key: u64) -> usize {
        // Fibonacci hashing: use the upper 15 bits.
        (key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 49) as usize
    }

    /// Returns the object of a key if it is in the first slot of the search, which is almost always so.
    #[inline(always)]
    pub(crate) fn find_in_first_slot(&self, key: u64) -> Option<&'static T> {
        self.slots[Self::first_probe_index(key)]
            .value_or_other_key(key)
            .ok()?
    }

    /// Returns the object of a key.
    pub(crate) fn find(&self, key: u64) -> Option<&'static T> {
        let start = Self::first_probe_index(key);
        for step in 0..MAX_PROBES {
            match self.slots[(start + step) % SLOT_COUNT].value_or_other_key(key) {
                Ok(found) => return found,
                Err(FREE_KEY) => return None,
                Err(_) => {}
            }
        }
        None
    }

    /// Inserts an object; returns false if the table has no room. Only one thread may call this function at a
    /// time.
    pub(crate) fn insert_unless_full(&self, key: u64, value: &'static T) -> bool {
        let start = Self::first_probe_index(key);
        for step in 0..MAX_PROBES {
            let slot = &self.slots[(start + step) % SLOT_COUNT];
            if matches!(slot.key.load(Ordering::Relaxed), FREE_KEY | TOMBSTONE_KEY) {
                slot.value
                    .store(ptr::from_ref(value).cast_mut(), Ordering::Release);
                slot.key.store(key, Ordering::Release);
                return true;
            }
        }
        false
    }

    /// Removes a key. Only one thread may call this function at a time.
    pub(crate) fn remove(&self, key: u64) {
        let start = Self::first_probe_index(key);
        for step in 0..MAX_PROBES {
            let slot = &self.slots[(start + step) % SLOT_COUNT];
            match slot.key.load(Ordering::Relaxed) {
                found if found == key => return slot.key.store(TOMBSTONE_KEY, Ordering::Relaxed),
                FREE_KEY => return,
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_found_until_they_are_removed() {
        static TABLE: OpenAddressingTable<u64> = OpenAddressingTable::new();
        for key in 2..2000u64 {
            assert!(TABLE.insert_unless_full(key << 7, Box::leak(Box::new(key))));
        }
        for key in 2..2000u64 {
            assert_eq!(TABLE.find(key << 7).copied(), Some(key));
            TABLE.remove(key << 7);
            assert_eq!(TABLE.find(key << 7), None);
        }
        assert!(TABLE.insert_unless_full(42 << 7, Box::leak(Box::new(7))));
        assert_eq!(TABLE.find(42 << 7), Some(&7));
    }
}
