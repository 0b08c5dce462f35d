//! The regions that a queue used last, so that a key is looked up once and not for each work request.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::fabric::Peer;
use crate::keys::{self, Pin};
use crate::mem::{Fault, Region};
use crate::nic::Nic;

const ENTRIES: usize = 8;

/// Regions of one process, by key.
pub(crate) struct RegionCache {
    entries: [Option<Region>; ENTRIES],
}

/// Why a key gives no access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeyError {
    /// There is no such key (any more).
    Unknown,
    /// The bytes cannot be reached.
    Fault,
}

impl RegionCache {
    pub(crate) const fn new() -> Self {
        Self {
            entries: [const { None }; ENTRIES],
        }
    }

    /// Forgets everything; the mappings of a peer are given up with it.
    pub(crate) fn clear(&mut self) {
        self.entries = [const { None }; ENTRIES];
    }

    /// The region of `peer` with `key`, which stays registered while the pin lives.
    ///
    /// Every call on one cache names the same peer.
    #[inline]
    pub(crate) fn get(
        &mut self,
        nic: &'static Nic,
        peer: &Arc<Peer>,
        key: u32,
    ) -> Result<(&Region, Pin), KeyError> {
        let at = key as usize % ENTRIES;
        if let Some(region) = &self.entries[at]
            && keys::key_of(region.entry) == key
            && let Some(pin) = nic.keys.pin(&nic.fabric, peer, region.index, region.entry)
        {
            // Borrowed anew, because the compiler cannot see that the branch below is not taken.
            match &self.entries[at] {
                Some(region) => return Ok((region, pin)),
                None => unreachable!("it was there a line ago"),
            }
        }
        self.miss(nic, peer, key)
    }

    #[cold]
    fn miss(
        &mut self,
        nic: &'static Nic,
        peer: &Arc<Peer>,
        key: u32,
    ) -> Result<(&Region, Pin), KeyError> {
        let entry = &mut self.entries[key as usize % ENTRIES];
        *entry = None;
        let (index, mr) = keys::find(peer, key).ok_or(KeyError::Unknown)?;
        let seen = mr.entry.load(Ordering::Acquire);
        let pin = (keys::key_of(seen) == key)
            .then(|| nic.keys.pin(&nic.fabric, peer, index, seen))
            .flatten()
            .ok_or(KeyError::Unknown)?;
        let region =
            Region::reach(&nic.maps, peer, (index, seen), mr).map_err(|Fault| KeyError::Fault)?;
        Ok((entry.insert(region), pin))
    }
}
