//! Clients that reach the server's memory by themselves, and what they leave behind.
//!
//! With the atomics-based design a client may die, stop or become slow while it has a lock. Others that wait for longer
//! than half of the lease complain ([`Guests::release`]). The server then does, in this order:
//!
//! 1. If the owner is connected, it waits until the same acquisition has lasted for a lease since the first complaint.
//! 2. It takes the owner's access away: its queue pair goes to ERR, and the registration of the memory that was its alone
//!    is undone. When that has returned, no WRITE or atomic of the owner can land any more, however late it wakes up.
//! 3. It finishes what the owner has written down as its changes (redo entries, each written before its record), as far as
//!    the owner still has those locks. A record with no such entry was not touched.
//! 4. It frees the lock.
//!
//! An owner that is still alive finds its queue pair broken and connects anew. When a connection ends, 2 and 3 happen at
//! once.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use service::worker::lock;
use verbs::{MemoryRegion, QueuePair, Rc};

use super::table::Table;
use crate::store::record::{self, redo};

#[derive(Debug)]
pub(crate) struct Guests {
    tables: Vec<Arc<Table>>,
    lease: Duration,
    /// Whether it may start threads: not on a simulated NIC, where nothing waits either.
    threads: bool,
    /// By the owner's name in locks.
    guests: Mutex<HashMap<u32, Guest>>,
    owners: AtomicU32,
    /// Locks that somebody complained about: the acquisition, and since when.
    suspects: Mutex<HashMap<(usize, u64), (u64, Instant)>>,
    recovered: AtomicU64,
    expelled: AtomicU64,
}

#[derive(Debug)]
struct Guest {
    /// Of the client at the server.
    index: u32,
    /// `None` while it is taken away.
    access: Option<Access>,
}

/// What a client reaches the memory by.
#[derive(Debug)]
pub(crate) struct Access {
    pub(crate) qp: QueuePair<Rc>,
    /// Its own registrations of the tables.
    pub(crate) memory: Vec<MemoryRegion>,
    /// Where it writes its changes down before it makes them.
    pub(crate) redo: Option<MemoryRegion>,
}

impl Guests {
    pub(crate) fn new(tables: Vec<Arc<Table>>, lease: Duration, threads: bool) -> Self {
        Self {
            tables,
            lease,
            threads,
            guests: Mutex::default(),
            owners: AtomicU32::new(0),
            suspects: Mutex::default(),
            recovered: AtomicU64::new(0),
            expelled: AtomicU64::new(0),
        }
    }

    /// The name of a new connection in lock words: one of 24 bits, neither none nor the server's.
    pub(crate) fn next_owner(&self) -> u32 {
        let guests = lock(&self.guests);
        loop {
            let owner = self.owners.fetch_add(1, Ordering::Relaxed) % 0xff_fffe + 1;
            // Names come again, and one may be in use ever since.
            if !guests.contains_key(&owner) {
                return owner;
            }
        }
    }

    pub(crate) fn add(&self, index: u32, owner: u32, access: Access) {
        let guest = Guest {
            index,
            access: Some(access),
        };
        lock(&self.guests).insert(owner, guest);
    }

    /// Locks that were freed for clients that had them, and clients whose access was taken away for that.
    pub(crate) fn counts(&self) -> (u64, u64) {
        let of = |n: &AtomicU64| n.load(Ordering::Relaxed);
        (of(&self.recovered), of(&self.expelled))
    }

    /// A client is gone: takes its access away, and finishes its changes.
    pub(crate) fn remove(&self, index: u32) {
        let owner = lock(&self.guests)
            .iter()
            .find(|(_, guest)| guest.index == index && guest.access.is_some())
            .map(|(owner, _)| *owner);
        if let Some((owner, access)) = owner.and_then(|owner| Some((owner, self.take(owner)?))) {
            self.expel(owner, access);
        }
    }

    /// An owner has a lock for too long.
    fn expel_slow(&self, owner: u32) {
        if let Some(access) = self.take(owner) {
            tracing::warn!("a client holds a lock beyond its lease: its access is taken away");
            self.expelled.fetch_add(1, Ordering::Relaxed);
            self.expel(owner, access);
        }
    }

    /// An owner's access, for whoever takes it away: the first to come.
    fn take(&self, owner: u32) -> Option<Access> {
        lock(&self.guests).get_mut(&owner)?.access.take()
    }

    /// Takes an owner's access away, and finishes its changes. On the software NIC this waits for a process that was
    /// stopped in the very middle of a WRITE.
    fn expel(&self, owner: u32, access: Access) {
        let Access { qp, memory, redo } = access;
        if let Err(e) = qp.to_error() {
            tracing::warn!("a client's queue pair does not go to ERR: {e}");
        }
        drop((qp, memory));
        if let Some(redo) = redo {
            self.finish(owner, &redo);
        }
        lock(&self.guests).remove(&owner);
    }

    /// Makes the changes that a client has written down and still has the locks for.
    fn finish(&self, owner: u32, memory: &MemoryRegion) {
        let Some(bytes) = self.tables.first().map(|t| redo::bytes(t.shape())) else {
            return;
        };
        let mut entry = vec![0; bytes];
        for i in 0..memory.len() / bytes {
            if memory.read_at(i * bytes, &mut entry).is_err() {
                continue;
            }
            let table = redo::partition_of(&entry).and_then(|n| self.tables.get(n));
            if table.is_some_and(|table| table.redo(&entry, owner)) {
                self.recovered.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Somebody has waited long for a record's lock: frees it, if it is time. Whether it is free now.
    pub(crate) fn release(self: &Arc<Self>, partition: usize, record: u64) -> bool {
        let Some(lock_of) = self.tables.get(partition).and_then(|t| t.lock_of(record)) else {
            return true;
        };
        let word = lock_of.load(Ordering::Acquire);
        if word == 0 {
            return true;
        }
        let owner = record::owner_of(word);
        let connected = lock(&self.guests)
            .get(&owner)
            .map(|guest| guest.access.is_some());
        match connected {
            Some(false) => return false,
            Some(true) => {
                if !self.is_over(partition, record, word) {
                    return false;
                }
                if self.threads {
                    // A worker must not wait for anybody. Who complained comes again.
                    let guests = Arc::clone(self);
                    let thread = std::thread::Builder::new().name("expel".to_owned());
                    if let Err(e) = thread.spawn(move || guests.expel_slow(owner)) {
                        tracing::error!("no thread to take a client's access away: {e}");
                    }
                    return false;
                }
                self.expel_slow(owner);
            }
            None => {}
        }
        // Nobody can change this word any more: its owner is gone, and all others wait for 0.
        if lock_of
            .compare_exchange(word, 0, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
        {
            self.recovered.fetch_add(1, Ordering::Relaxed);
        }
        true
    }

    /// Whether the same acquisition was complained about a lease ago.
    fn is_over(&self, partition: usize, record: u64, word: u64) -> bool {
        /// Locks that are watched at the most; complaints come again.
        const MOST: usize = 4096;
        let now = verbs::time::now();
        let mut suspects = lock(&self.suspects);
        // An old entry says nothing: numbers of acquisitions come again.
        suspects.retain(|_, (_, since)| now.duration_since(*since) < 8 * self.lease);
        if suspects.len() >= MOST {
            suspects.clear();
        }
        let entry = suspects.entry((partition, record)).or_insert((word, now));
        if entry.0 != word {
            *entry = (word, now);
        }
        let over = now.duration_since(entry.1) >= self.lease;
        if over {
            suspects.remove(&(partition, record));
        }
        over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_in_use_is_not_given_again() {
        let guests = Guests::new(Vec::new(), Duration::ZERO, false);
        assert_eq!(guests.next_owner(), 1);
        let guest = Guest {
            index: 0,
            access: None,
        };
        lock(&guests.guests).insert(1, guest);
        guests.owners.store(0xff_fffd, Ordering::Relaxed);
        // The last one, and all over again: neither 0, nor the server's.
        assert_eq!([guests.next_owner(), guests.next_owner()], [0xff_fffe, 2]);
    }
}
