//! A cache of the regions that a queue used last, so that a key is not looked up for each work request.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::imports::find_key_in_shared_pd;
use crate::nic::Nic;
use crate::why::{FailureCause, MemorySide, NamedMemoryRange};
use nic_core::rights::OwningPdOrQp;
use shm::fabric::Peer;
use shm::keys::{self, RegionPin};
use shm::mem::{AccessibleRegion, MemoryFault};

const MAX_CACHED_REGIONS: usize = 8;

/// Regions of one process, by key, and regions of others that share a protection domain with it.
pub(crate) struct RegionCache {
    entries: [Option<AccessibleRegion>; MAX_CACHED_REGIONS],
    /// Regions of other processes, with the domain's number in the process that was asked.
    shared_pd_regions: Vec<(u32, AccessibleRegion)>,
}

/// The reason why a key gives no access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeyError {
    /// The key does not exist, or no longer.
    Unknown,
    /// The memory cannot be reached.
    MemoryUnreachable,
}

impl KeyError {
    /// Returns the cause of a work request that fails with this error.
    #[cold]
    pub(crate) fn failure_cause(self, side: MemorySide, bytes: NamedMemoryRange) -> FailureCause {
        match self {
            Self::Unknown => FailureCause::UnknownKey { side, bytes },
            Self::MemoryUnreachable => FailureCause::MemoryInaccessible { side },
        }
    }
}

impl RegionCache {
    pub(crate) const fn new() -> Self {
        Self {
            entries: [const { None }; MAX_CACHED_REGIONS],
            shared_pd_regions: Vec::new(),
        }
    }

    /// Drops all regions, and with them the mappings of a peer.
    pub(crate) fn clear(&mut self) {
        self.entries = [const { None }; MAX_CACHED_REGIONS];
        self.shared_pd_regions.clear();
    }

    /// Returns the region of `peer` with `key`, which stays registered while the pin lives. If `peer` has none in its
    /// protection domain `pd`, a region of a process that shares the domain serves as well.
    ///
    /// Every call on one cache names the same peer.
    #[inline(always)]
    pub(crate) fn get_pinned(
        &mut self,
        nic: &'static Nic,
        peer: &Arc<Peer>,
        key: u32,
        pd: impl FnOnce() -> u32,
    ) -> Result<(&AccessibleRegion, RegionPin), KeyError> {
        let at = key as usize % MAX_CACHED_REGIONS;
        if let Some(region) = &self.entries[at]
            && keys::key_of_generation_and_key(region.generation_and_key) == key
            && let Some(pin) = nic.key_table.pin_region(
                &nic.fabric,
                peer,
                region.key_table_index,
                region.generation_and_key,
            )
        {
            // Borrowed again, because the compiler cannot see that the branch below is not taken.
            match &self.entries[at] {
                Some(region) => return Ok((region, pin)),
                None => unreachable!("it was there a line ago"),
            }
        }
        self.look_up_uncached(nic, peer, key, pd())
    }

    /// Returns the cached region with `key`. Its facts are true if its entry can be pinned.
    #[inline(always)]
    pub(crate) fn cached_region(&self, key: u32) -> Option<&AccessibleRegion> {
        let region = self.entries[key as usize % MAX_CACHED_REGIONS].as_ref();
        region.filter(|region| keys::key_of_generation_and_key(region.generation_and_key) == key)
    }

    #[cold]
    fn look_up_uncached(
        &mut self,
        nic: &'static Nic,
        peer: &Arc<Peer>,
        key: u32,
        pd: u32,
    ) -> Result<(&AccessibleRegion, RegionPin), KeyError> {
        let known = |(of, region): &(u32, AccessibleRegion)| {
            *of == pd && keys::key_of_generation_and_key(region.generation_and_key) == key
        };
        if let Some(at) = self.shared_pd_regions.iter().position(known) {
            let region = &self.shared_pd_regions[at].1;
            let owner = region
                .owner_if_not_key_table_peer
                .as_ref()
                .filter(|owner| !owner.is_dead());
            let pin = owner.and_then(|owner| {
                nic.key_table.pin_region(
                    &nic.fabric,
                    owner,
                    region.key_table_index,
                    region.generation_and_key,
                )
            });
            if let Some(pin) = pin {
                return Ok((&self.shared_pd_regions[at].1, pin));
            }
            self.shared_pd_regions.swap_remove(at);
        }
        let own = keys::find_slot_of_key(peer, key);
        let strange = own.is_none_or(|(_, mr)| {
            OwningPdOrQp::from_word(mr.owner_pd_or_qp.load(Ordering::Relaxed))
                .pd_number()
                .is_some_and(|its| its != pd)
        });
        if strange && let Some(found) = find_key_in_shared_pd(nic, peer, pd, key) {
            let (mut region, pin) = open_region(nic, &found.owner, found.key_table_index, key)?;
            region.rights.owner = region.rights.owner.with_pd_number(pd);
            region.owner_if_not_key_table_peer = Some(found.owner);
            if self.shared_pd_regions.len() == MAX_CACHED_REGIONS {
                self.shared_pd_regions.swap_remove(0);
            }
            self.shared_pd_regions.push((pd, region));
            let last = self.shared_pd_regions.len() - 1;
            return Ok((&self.shared_pd_regions[last].1, pin));
        }
        let entry = &mut self.entries[key as usize % MAX_CACHED_REGIONS];
        *entry = None;
        let (index, _) = own.ok_or(KeyError::Unknown)?;
        let (region, pin) = open_region(nic, peer, index, key)?;
        Ok((entry.insert(region), pin))
    }
}

/// Makes the region of `owner` at `index` accessible, if it still has `key`.
fn open_region(
    nic: &'static Nic,
    owner: &Arc<Peer>,
    index: usize,
    key: u32,
) -> Result<(AccessibleRegion, RegionPin), KeyError> {
    let mr = owner.segment.mr(index).ok_or(KeyError::Unknown)?;
    let seen = mr.generation_and_key.load(Ordering::Acquire);
    let pin = (keys::key_of_generation_and_key(seen) == key)
        .then(|| nic.key_table.pin_region(&nic.fabric, owner, index, seen))
        .flatten()
        .ok_or(KeyError::Unknown)?;
    let region = AccessibleRegion::open(&nic.peer_mappings, owner, (index, seen), mr);
    region
        .map(|region| (region, pin))
        .map_err(|MemoryFault| KeyError::MemoryUnreachable)
}
