//! Requests that wait for their answers, by index; pure.

/// Requests of a connection that may be outstanding.
pub const REQUESTS_MAX: usize = 128;

/// Outstanding requests of one kind. An index names a slot and how often the slot was used before, so an answer that
/// comes late finds no other request.
#[derive(Debug)]
pub struct OutstandingRequests<T> {
    slots: Vec<RequestSlot<T>>,
    free_slots: Vec<usize>,
}

#[derive(Debug)]
struct RequestSlot<T> {
    generation: u32,
    request: Option<T>,
}

/// Bits of an index that are the slot.
const INDEX_SLOT_BITS: u32 = REQUESTS_MAX.ilog2();

impl<T> OutstandingRequests<T> {
    /// No requests.
    pub fn new() -> Self {
        Self {
            slots: Vec::new(),
            free_slots: Vec::new(),
        }
    }

    /// Adds a request.
    ///
    /// # Errors
    /// Gives it back when [`REQUESTS_MAX`] are outstanding.
    pub fn insert(&mut self, request: T) -> Result<u32, T> {
        let at = match self.free_slots.pop() {
            Some(at) => at,
            None if self.slots.len() < REQUESTS_MAX => {
                self.slots.push(RequestSlot {
                    generation: 0,
                    request: None,
                });
                self.slots.len() - 1
            }
            None => return Err(request),
        };
        let slot = &mut self.slots[at];
        slot.request = Some(request);
        Ok(slot.generation << INDEX_SLOT_BITS | u32::try_from(at).unwrap_or(0))
    }

    fn slot(&mut self, index: u32) -> Option<(usize, &mut RequestSlot<T>)> {
        let at = usize::try_from(index & ((1 << INDEX_SLOT_BITS) - 1)).ok()?;
        let slot = self.slots.get_mut(at)?;
        (slot.generation == index >> INDEX_SLOT_BITS).then_some((at, slot))
    }

    /// The outstanding request of this index.
    pub fn get(&mut self, index: u32) -> Option<&mut T> {
        self.slot(index)?.1.request.as_mut()
    }

    /// Takes it out: it has been answered.
    pub fn remove(&mut self, index: u32) -> Option<T> {
        let (at, slot) = self.slot(index)?;
        let request = slot.request.take()?;
        slot.generation = (slot.generation + 1) & (u32::MAX >> INDEX_SLOT_BITS);
        self.free_slots.push(at);
        Some(request)
    }

    /// Returns the number of outstanding requests.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free_slots.len()
    }

    /// Returns true if no request is outstanding.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes out all.
    pub fn drain(&mut self) -> impl Iterator<Item = T> {
        self.free_slots.clear();
        std::mem::take(&mut self.slots)
            .into_iter()
            .filter_map(|s| s.request)
    }
}

impl<T> Default for OutstandingRequests<T> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// As a map whose keys are never used twice.
        #[test]
        fn indices_name_one_request_each(steps in prop::collection::vec(any::<(bool, prop::sample::Index)>(), 0..600)) {
            let (mut requests, mut model) = (OutstandingRequests::new(), HashMap::new());
            let mut used: Vec<u32> = Vec::new();
            for (count, (insert, which)) in steps.into_iter().enumerate() {
                if insert {
                    let added = requests.insert(count);
                    prop_assert_eq!(added.is_ok(), model.len() < REQUESTS_MAX);
                    if let Ok(index) = added {
                        prop_assert!(!used.contains(&index));
                        used.push(index);
                        model.insert(index, count);
                    }
                } else if !used.is_empty() {
                    let index = used[which.index(used.len())];
                    prop_assert_eq!(requests.get(index).copied(), model.get(&index).copied());
                    prop_assert_eq!(requests.remove(index), model.remove(&index));
                }
                prop_assert_eq!(requests.len(), model.len());
            }
        }
    }
}
