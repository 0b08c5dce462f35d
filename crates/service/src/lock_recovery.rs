//! Recovery of locks that dead or slow clients leave, for clients that change objects in the
//! server's memory directly.
//!
//! Such a client locks an object by a compare-and-swap of its lock word, WRITEs the object, and
//! unlocks it. The client may die, stop or become slow while it holds the lock. Other clients
//! complain if they wait longer than half of the lease ([`LockRecovery::try_free_lock_on_complaint`]). The server then
//! proceeds in this order:
//!
//! 1. If the owner is connected, the server waits until the same acquisition has lasted for a lease
//!    since the first complaint.
//! 2. The server revokes the owner's access: the owner's queue pair goes to ERR, and the owner's
//!    private registrations of the memory are removed. After that, no WRITE or atomic of the owner
//!    can take effect, however late the owner resumes.
//! 3. The server finishes those recorded changes of the owner whose locks the owner still holds.
//!    Each client has redo entries at the server, and WRITEs an entry before it WRITEs the object.
//!    An object without an entry is unchanged.
//! 4. The server frees the lock.
//!
//! An owner that is still alive finds its queue pair broken and connects again. When a connection
//! ends, steps 2 and 3 follow immediately.
//!
//! A system implements [`LockTable`]: the location of its lock words, and the execution of a redo
//! entry. A lock word of 0 means free. Every acquisition has a different word ([`lock_word`]), so
//! that the server distinguishes one long acquisition from several short ones.

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use verbs::{MemoryRegion, QueuePair, Rc};

use crate::worker::lock;

#[cfg(test)]
mod tests;

/// Owner number of the server itself; [`LockRecovery::assign_owner_number`] assigns it to no client.
pub const SERVER_OWNER: u32 = 0xff_ffff;

/// Returns the lock word of an acquisition: 24 bits of owner, 16 bits of lease in milliseconds, 24
/// bits of acquisition number, from the upper bits down.
pub fn lock_word(owner: u32, lease_ms: u16, number: u32) -> u64 {
    u64::from(owner & 0xff_ffff) << 40 | u64::from(lease_ms) << 24 | u64::from(number & 0xff_ffff)
}

/// Returns the owner in a [lock word](lock_word).
pub fn lock_word_owner(word: u64) -> u32 {
    (word >> 40) as u32
}

/// A part of the objects that clients lock, for example a partition of a store.
pub trait LockTable: Debug + Send + Sync + 'static {
    /// Returns the lock word of an object, or `None` if the object does not exist. Object numbers
    /// are untrusted input from clients.
    fn lock_word_of(&self, object: u64) -> Option<&AtomicU64>;

    /// Returns the owner in a lock word, which is not 0.
    fn owner_of(&self, word: u64) -> u32 {
        lock_word_owner(word)
    }

    /// Returns the bytes of a redo entry, which are the same for all parts.
    fn redo_entry_bytes(&self) -> usize;

    /// Returns the index of the part that a redo entry refers to. The entry may hold arbitrary
    /// bytes.
    fn table_index_of_redo_entry(entry: &[u8]) -> Option<usize>;

    /// Executes a redo entry and frees its lock. This requires a complete entry whose lock word
    /// belongs to `owner` and equals the object's. Returns true if the entry was executed. The
    /// entry may hold arbitrary bytes.
    fn execute_redo_entry(&self, entry: &[u8], owner: u32) -> bool;
}

/// Recovery of the locks of clients that access a server's memory: the clients, their access and their locks.
#[derive(Debug)]
pub struct LockRecovery<T> {
    tables: Vec<Arc<T>>,
    lease: Duration,
    revokes_in_thread: bool,
    /// Clients by owner number.
    clients: Mutex<HashMap<u32, Client>>,
    next_owner_number: AtomicU32,
    /// Locks with complaints: the acquisition, and the time of its first complaint.
    first_complaints: Mutex<HashMap<(usize, u64), (u64, Instant)>>,
    recovered_locks: AtomicU64,
    revoked_clients: AtomicU64,
}

#[derive(Debug)]
struct Client {
    /// Index of the client at the server.
    index_at_server: u32,
    /// Access of the client; `None` while it is being revoked.
    access: Option<ClientAccess>,
}

/// Resources through which a client accesses the server's memory.
#[derive(Debug)]
pub struct ClientAccess {
    /// Server's end of the client's queue pair.
    pub qp: QueuePair<Rc>,
    /// Registrations of the server's memory for this client alone.
    pub client_registrations: Vec<MemoryRegion>,
    /// Redo entries, one after the other, which the client WRITEs before it changes objects.
    pub redo_entries: Option<MemoryRegion>,
}

impl<T: LockTable> LockRecovery<T> {
    /// Creates a set without clients. `tables` are the parts of the objects, empty if clients only
    /// READ. With `threads`, a separate thread revokes a client's access, so that no worker waits.
    /// Without, as on a simulated NIC, the caller of [`try_free_lock_on_complaint`](Self::try_free_lock_on_complaint)
    /// revokes it.
    pub fn new(tables: Vec<Arc<T>>, lease: Duration, threads: bool) -> Self {
        Self {
            tables,
            lease,
            revokes_in_thread: threads,
            clients: Mutex::default(),
            next_owner_number: AtomicU32::new(0),
            first_complaints: Mutex::default(),
            recovered_locks: AtomicU64::new(0),
            revoked_clients: AtomicU64::new(0),
        }
    }

    /// Returns an owner number for a new connection's lock words: 24 bits, neither 0 nor
    /// [`SERVER_OWNER`].
    pub fn assign_owner_number(&self) -> u32 {
        let clients = lock(&self.clients);
        loop {
            let owner =
                self.next_owner_number.fetch_add(1, Ordering::Relaxed) % (SERVER_OWNER - 1) + 1;
            // Numbers are reused; skip a number that a client still has.
            if !clients.contains_key(&owner) {
                return owner;
            }
        }
    }

    /// Adds a connected client: `index` at the server, `owner` in lock words.
    pub fn add(&self, index: u32, owner: u32, access: ClientAccess) {
        let client = Client {
            index_at_server: index,
            access: Some(access),
        };
        lock(&self.clients).insert(owner, client);
    }

    /// Returns the number of locks freed for their owners, and the number of clients whose access
    /// was revoked for that.
    pub fn recovered_lock_and_revoked_client_counts(&self) -> (u64, u64) {
        let of = |n: &AtomicU64| n.load(Ordering::Relaxed);
        (of(&self.recovered_locks), of(&self.revoked_clients))
    }

    /// Removes the client with this index: revokes its access and finishes its changes.
    pub fn revoke_and_remove_client(&self, index: u32) {
        let owner = lock(&self.clients)
            .iter()
            .find(|(_, client)| client.index_at_server == index && client.access.is_some())
            .map(|(owner, _)| *owner);
        if let Some((owner, access)) =
            owner.and_then(|owner| Some((owner, self.take_access(owner)?)))
        {
            self.revoke_access(owner, access);
        }
    }

    /// Revokes the access of an owner that has held a lock for too long.
    fn revoke_late_lock_owner(&self, owner: u32) {
        if let Some(access) = self.take_access(owner) {
            tracing::warn!("a client holds a lock beyond its lease: its access is taken away");
            self.revoked_clients.fetch_add(1, Ordering::Relaxed);
            self.revoke_access(owner, access);
        }
    }

    /// Returns an owner's access to the first caller, and `None` to later callers.
    fn take_access(&self, owner: u32) -> Option<ClientAccess> {
        lock(&self.clients).get_mut(&owner)?.access.take()
    }

    /// Revokes an owner's access and finishes its changes. On the software NIC, this waits for a
    /// process that was stopped in the middle of a WRITE.
    fn revoke_access(&self, owner: u32, access: ClientAccess) {
        let ClientAccess {
            qp,
            client_registrations: memory,
            redo_entries: redo,
        } = access;
        if let Err(e) = qp.move_to_error_state() {
            tracing::warn!("a client's queue pair does not go to ERR: {e}");
        }
        drop((qp, memory));
        if let Some(redo) = redo {
            self.execute_redo_entries(owner, &redo);
        }
        lock(&self.clients).remove(&owner);
    }

    /// Executes the redo entries of a client whose locks it still holds.
    fn execute_redo_entries(&self, owner: u32, memory: &MemoryRegion) {
        let bytes = self
            .tables
            .first()
            .map_or(0, |table| table.redo_entry_bytes());
        if bytes == 0 {
            return;
        }
        let mut entry = vec![0; bytes];
        for i in 0..memory.len() / bytes {
            if memory.read_at(i * bytes, &mut entry).is_err() {
                continue;
            }
            let table =
                T::table_index_of_redo_entry(&entry).and_then(|index| self.tables.get(index));
            if table.is_some_and(|table| table.execute_redo_entry(&entry, owner)) {
                self.recovered_locks.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Handles the complaint of a client that waits too long for an object's lock. Frees the lock
    /// once its lease is over. Returns true if the lock is free now or does not exist; otherwise
    /// the client must complain again later.
    pub fn try_free_lock_on_complaint(self: &Arc<Self>, part: usize, object: u64) -> bool {
        let Some(table) = self.tables.get(part) else {
            return true;
        };
        let Some(lock_of) = table.lock_word_of(object) else {
            return true;
        };
        let word = lock_of.load(Ordering::Acquire);
        if word == 0 {
            return true;
        }
        let owner = table.owner_of(word);
        // The server's threads always release their locks.
        if owner == SERVER_OWNER {
            return false;
        }
        let connected = lock(&self.clients)
            .get(&owner)
            .map(|client| client.access.is_some());
        match connected {
            Some(false) => return false,
            Some(true) => {
                if !self.is_lease_past_complaint(part, object, word) {
                    return false;
                }
                if self.revokes_in_thread {
                    // A worker must not wait here. The client complains again.
                    let recovery = Arc::clone(self);
                    let thread = std::thread::Builder::new().name("expel".to_owned());
                    if let Err(e) = thread.spawn(move || recovery.revoke_late_lock_owner(owner)) {
                        tracing::error!("no thread to take a client's access away: {e}");
                    }
                    return false;
                }
                self.revoke_late_lock_owner(owner);
            }
            None => {}
        }
        // No client can change this word any more: its owner is gone, and all others wait for 0.
        if lock_of
            .compare_exchange(word, 0, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
        {
            self.recovered_locks.fetch_add(1, Ordering::Relaxed);
        }
        true
    }

    /// Returns true if the first complaint about the same acquisition was a lease ago.
    fn is_lease_past_complaint(&self, part: usize, object: u64, word: u64) -> bool {
        /// Maximum number of watched locks; beyond it all are dropped, and clients complain again.
        const MAX_WATCHED_LOCKS: usize = 4096;
        let now = verbs::time::now();
        let mut complaints = lock(&self.first_complaints);
        // Old entries are meaningless, because numbers of acquisitions repeat.
        complaints.retain(|_, (_, since)| now.duration_since(*since) < 8 * self.lease);
        if complaints.len() >= MAX_WATCHED_LOCKS {
            complaints.clear();
        }
        let entry = complaints.entry((part, object)).or_insert((word, now));
        if entry.0 != word {
            *entry = (word, now);
        }
        let over = now.duration_since(entry.1) >= self.lease;
        if over {
            complaints.remove(&(part, object));
        }
        over
    }
}
