//! Clients that change objects in the server's memory by themselves, and the recovery of what dead or slow ones leave.
//!
//! Such a client locks an object by a compare-and-swap of its lock word, WRITEs the object and unlocks it. It may die, stop
//! or become slow while it has the lock. Other clients that wait for longer than half of the lease complain
//! ([`Guests::release`]). The server then does, in this order:
//!
//! 1. If the owner is connected, it waits until the same acquisition has lasted for a lease since the first complaint.
//! 2. It takes the owner's access away: the owner's queue pair goes to ERR, and the registrations of the memory that were
//!    the owner's alone are undone. When that has returned, no WRITE or atomic of the owner can land any more, however late
//!    the owner wakes up.
//! 3. It finishes what the owner has written down as its changes, as far as the owner still has those locks. Each client
//!    has redo entries at the server, and WRITEs an entry before it WRITEs the object. An object without an entry was not
//!    touched.
//! 4. It frees the lock.
//!
//! An owner that is still alive finds its queue pair broken and connects anew. When a connection ends, steps 2 and 3 happen
//! at once.
//!
//! A system implements [`LockTable`]: where its lock words are, and how a redo entry is carried out. A lock word of 0 is
//! free. Every acquisition has a different word ([`lock_word`]), so that the server can tell a long one from many.

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use verbs::{MemoryRegion, QueuePair, Rc};

use crate::worker::lock;

#[cfg(test)]
mod tests;

/// The owner that is the server itself: [`Guests::next_owner`] gives it to no client.
pub const SERVER_OWNER: u32 = 0xff_ffff;

/// The lock word of an owner's acquisition: the owner in the upper 24 bits, then 16 bits of the lease in milliseconds, then
/// 24 bits of the acquisition's number.
pub fn lock_word(owner: u32, lease_ms: u16, number: u32) -> u64 {
    u64::from(owner & 0xff_ffff) << 40 | u64::from(lease_ms) << 24 | u64::from(number & 0xff_ffff)
}

/// Who has a lock, by its [word](lock_word).
pub fn owner_of(word: u64) -> u32 {
    (word >> 40) as u32
}

/// A part of the objects that clients lock, for example a partition of a store.
pub trait LockTable: Debug + Send + Sync + 'static {
    /// The lock word of an object, or `None` if there is no such object. Numbers come from clients.
    fn lock_of(&self, object: u64) -> Option<&AtomicU64>;

    /// Who has a lock, by its word, which is not 0.
    fn owner_of(&self, word: u64) -> u32 {
        owner_of(word)
    }

    /// Bytes of a redo entry, the same for all parts.
    fn redo_bytes(&self) -> usize;

    /// The part that a redo entry is about, as an index. The entry may hold any bytes.
    fn part_of(entry: &[u8]) -> Option<usize>;

    /// Carries out a redo entry and frees the lock, if the entry is whole and the object's lock word is the one that the
    /// entry names, of this owner. Returns whether it did. The entry may hold any bytes.
    fn redo(&self, entry: &[u8], owner: u32) -> bool;
}

/// The clients of a server that reach its memory, and their locks.
#[derive(Debug)]
pub struct Guests<T> {
    tables: Vec<Arc<T>>,
    lease: Duration,
    threads: bool,
    /// By owner.
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
    access: Option<ClientAccess>,
}

/// What a client reaches the server's memory by.
#[derive(Debug)]
pub struct ClientAccess {
    /// The server's end of the client's queue pair.
    pub qp: QueuePair<Rc>,
    /// Registrations of the server's memory that are this client's alone.
    pub memory: Vec<MemoryRegion>,
    /// Redo entries, one after the other, which the client WRITEs before it changes objects.
    pub redo: Option<MemoryRegion>,
}

impl<T: LockTable> Guests<T> {
    /// No clients yet. `tables` are the parts of the objects, none where clients only READ. With `threads` a client's access
    /// is taken away by a thread of its own, so that no worker waits; without, as on a simulated NIC, by the caller of
    /// [`release`](Self::release).
    pub fn new(tables: Vec<Arc<T>>, lease: Duration, threads: bool) -> Self {
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

    /// The owner that a new connection is in lock words: 24 bits, neither 0 nor [`SERVER_OWNER`].
    pub fn next_owner(&self) -> u32 {
        let guests = lock(&self.guests);
        loop {
            let owner = self.owners.fetch_add(1, Ordering::Relaxed) % (SERVER_OWNER - 1) + 1;
            // Numbers are reused, and a client may have had this one since then.
            if !guests.contains_key(&owner) {
                return owner;
            }
        }
    }

    /// A client has connected: the one of this index at the server, with this owner in lock words.
    pub fn add(&self, index: u32, owner: u32, access: ClientAccess) {
        let guest = Guest {
            index,
            access: Some(access),
        };
        lock(&self.guests).insert(owner, guest);
    }

    /// Locks that were freed for their owners, and clients whose access was taken away for that.
    pub fn counts(&self) -> (u64, u64) {
        let of = |n: &AtomicU64| n.load(Ordering::Relaxed);
        (of(&self.recovered), of(&self.expelled))
    }

    /// The client of this index is gone: takes its access away, and finishes its changes.
    pub fn remove(&self, index: u32) {
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

    /// An owner's access, for the first caller that takes it away.
    fn take(&self, owner: u32) -> Option<ClientAccess> {
        lock(&self.guests).get_mut(&owner)?.access.take()
    }

    /// Takes an owner's access away, and finishes its changes. On the software NIC this waits for a process that was
    /// stopped in the very middle of a WRITE.
    fn expel(&self, owner: u32, access: ClientAccess) {
        let ClientAccess { qp, memory, redo } = access;
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
        let bytes = self.tables.first().map_or(0, |table| table.redo_bytes());
        if bytes == 0 {
            return;
        }
        let mut entry = vec![0; bytes];
        for i in 0..memory.len() / bytes {
            if memory.read_at(i * bytes, &mut entry).is_err() {
                continue;
            }
            let table = T::part_of(&entry).and_then(|part| self.tables.get(part));
            if table.is_some_and(|table| table.redo(&entry, owner)) {
                self.recovered.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// A client has waited long for the lock of an object of a part: frees the lock, if it is time. Returns whether it is
    /// free now, or there is none; otherwise the client complains again later.
    pub fn release(self: &Arc<Self>, part: usize, object: u64) -> bool {
        let Some(table) = self.tables.get(part) else {
            return true;
        };
        let Some(lock_of) = table.lock_of(object) else {
            return true;
        };
        let word = lock_of.load(Ordering::Acquire);
        if word == 0 {
            return true;
        }
        let owner = table.owner_of(word);
        let connected = lock(&self.guests)
            .get(&owner)
            .map(|guest| guest.access.is_some());
        match connected {
            Some(false) => return false,
            Some(true) => {
                if !self.is_over(part, object, word) {
                    return false;
                }
                if self.threads {
                    // A worker must not wait. The client complains again.
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

    /// Whether the first complaint about the same acquisition is a lease ago.
    fn is_over(&self, part: usize, object: u64, word: u64) -> bool {
        /// Locks that are watched at the most; clients complain again.
        const MOST: usize = 4096;
        let now = verbs::time::now();
        let mut suspects = lock(&self.suspects);
        // An old entry says nothing: numbers of acquisitions come again.
        suspects.retain(|_, (_, since)| now.duration_since(*since) < 8 * self.lease);
        if suspects.len() >= MOST {
            suspects.clear();
        }
        let entry = suspects.entry((part, object)).or_insert((word, now));
        if entry.0 != word {
            *entry = (word, now);
        }
        let over = now.duration_since(entry.1) >= self.lease;
        if over {
            suspects.remove(&(part, object));
        }
        over
    }
}
