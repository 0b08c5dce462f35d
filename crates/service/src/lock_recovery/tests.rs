use super::*;
use verbs::{Access, PortAndGidIndex, Provider};

/// Objects of one word each. A redo entry holds the object, the lock word and the new value.
#[derive(Debug, Default)]
struct Words {
    locks: Vec<AtomicU64>,
    values: Vec<AtomicU64>,
}

impl Words {
    fn new(n: usize) -> Arc<Self> {
        let zeros = || (0..n).map(|_| AtomicU64::new(0)).collect();
        Arc::new(Self {
            locks: zeros(),
            values: zeros(),
        })
    }

    fn lock(&self, object: usize, word: u64) {
        self.locks[object].store(word, Ordering::Release);
    }

    /// Returns the lock word and the value of an object.
    fn get(&self, object: usize) -> (u64, u64) {
        let of = |words: &[AtomicU64]| words[object].load(Ordering::Acquire);
        (of(&self.locks), of(&self.values))
    }
}

fn entry_word(entry: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(entry.get(at..at + 8)?.try_into().ok()?))
}

impl LockTable for Words {
    fn lock_word_of(&self, object: u64) -> Option<&AtomicU64> {
        self.locks.get(usize::try_from(object).ok()?)
    }

    fn redo_entry_bytes(&self) -> usize {
        24
    }

    fn table_index_of_redo_entry(_entry: &[u8]) -> Option<usize> {
        Some(0)
    }

    fn execute_redo_entry(&self, entry: &[u8], owner: u32) -> bool {
        let word = |at| entry_word(entry, at).unwrap_or(0);
        let (object, held, value) = (word(0), word(8), word(16));
        let Some(lock) = self.lock_word_of(object) else {
            return false;
        };
        if held == 0 || lock_word_owner(held) != owner || lock.load(Ordering::Acquire) != held {
            return false;
        }
        self.values[usize::try_from(object).expect("checked")].store(value, Ordering::Release);
        lock.compare_exchange(held, 0, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }
}

/// Makes a client's access, with redo entries.
fn access(entries: &[[u64; 3]]) -> ClientAccess {
    let device = Provider::softnic().device(None).expect("a device");
    let context = device.open().expect("opens");
    let pd = context.alloc_pd().expect("a domain");
    let cq = context.create_cq(1).expect("a queue");
    let port = PortAndGidIndex {
        port_num: 1,
        gid_index: 0,
    };
    let qp = |access| {
        pd.qp_builder::<Rc>(&cq, &cq)
            .port_num(port.port_num)
            .gid_index(port.gid_index)
            .access(access)
            .build()
            .expect("a queue pair")
    };
    let (server, client) = (qp(Access::ALL), qp(Access::REMOTE_READ));
    let redo = pd.alloc(24 * entries.len().max(1), Access::LOCAL_WRITE);
    let redo = redo.expect("memory");
    for (i, word) in entries.iter().flatten().enumerate() {
        redo.write_at(8 * i, &word.to_ne_bytes()).expect("inside");
    }
    ClientAccess {
        qp: server.connect(&client.endpoint()).expect("connects"),
        client_registrations: Vec::new(),
        redo_entries: Some(redo),
    }
}

fn recovery(table: &Arc<Words>, lease: Duration) -> Arc<LockRecovery<Words>> {
    Arc::new(LockRecovery::new(vec![Arc::clone(table)], lease, false))
}

#[test]
fn an_owner_that_is_in_use_is_not_given_again() {
    let recovery = LockRecovery::<Words>::new(Vec::new(), Duration::ZERO, false);
    assert_eq!(recovery.assign_owner_number(), 1);
    let client = Client {
        index_at_server: 0,
        access: None,
    };
    lock(&recovery.clients).insert(1, client);
    recovery
        .next_owner_number
        .store(SERVER_OWNER - 2, Ordering::Relaxed);
    // The last owner number is followed by the first free one; 0 and the server's number are
    // skipped.
    let next = [
        recovery.assign_owner_number(),
        recovery.assign_owner_number(),
    ];
    assert_eq!(next, [SERVER_OWNER - 1, 2]);
}

#[test]
fn a_lock_word_names_its_owner() {
    for owner in [1, 77, SERVER_OWNER] {
        assert_eq!(lock_word_owner(lock_word(owner, u16::MAX, u32::MAX)), owner);
    }
    assert_ne!(lock_word(7, 100, 1), lock_word(7, 100, 2));
}

#[test]
fn a_connected_owner_keeps_its_lock_for_a_lease() {
    let table = Words::new(2);
    let recovery = recovery(&table, Duration::from_secs(3600));
    let owner = recovery.assign_owner_number();
    recovery.add(0, owner, access(&[]));
    table.lock(1, lock_word(owner, 9, 1));
    assert!(recovery.try_free_lock_on_complaint(0, 0), "it is free");
    assert!(
        recovery.try_free_lock_on_complaint(0, 2) && recovery.try_free_lock_on_complaint(1, 0),
        "there is none"
    );
    assert!(
        !recovery.try_free_lock_on_complaint(0, 1) && !recovery.try_free_lock_on_complaint(0, 1)
    );
    assert_eq!(recovery.recovered_lock_and_revoked_client_counts(), (0, 0));
    // No client with this owner number is connected.
    table.lock(0, lock_word(owner + 1, 9, 1));
    assert!(recovery.try_free_lock_on_complaint(0, 0));
    assert_eq!(
        (
            table.get(0),
            recovery.recovered_lock_and_revoked_client_counts()
        ),
        ((0, 0), (1, 0))
    );
}

#[test]
fn the_server_keeps_its_lock() {
    let table = Words::new(1);
    let recovery = recovery(&table, Duration::ZERO);
    let word = lock_word(SERVER_OWNER, 0, 0);
    table.lock(0, word);
    assert!(!recovery.try_free_lock_on_complaint(0, 0));
    assert_eq!(table.get(0), (word, 0));
    assert_eq!(recovery.recovered_lock_and_revoked_client_counts(), (0, 0));
}

#[test]
fn a_slow_owner_loses_its_access_and_what_it_wrote_down_is_finished() {
    let table = Words::new(3);
    let recovery = recovery(&table, Duration::ZERO);
    let owner = recovery.assign_owner_number();
    let words = [1, 2, 3].map(|number| lock_word(owner, 9, number));
    // Object 0 has an entry, 1 was unlocked and locked again since its entry, 2 has no entry, and 9
    // does not exist.
    let entries = [[0, words[0], 55], [1, words[1] + 10, 66], [9, words[2], 77]];
    recovery.add(0, owner, access(&entries));
    (0..3).for_each(|object| table.lock(object, words[object]));
    assert!(
        recovery.try_free_lock_on_complaint(0, 2),
        "with a lease of 0 it is over at once"
    );
    let seen = [table.get(0), table.get(1), table.get(2)];
    assert_eq!(seen, [(0, 55), (words[1], 0), (0, 0)]);
    assert_eq!(recovery.recovered_lock_and_revoked_client_counts(), (2, 1));
    // The owner is gone, so its other lock is freed at the first complaint.
    assert!(recovery.try_free_lock_on_complaint(0, 1));
    assert_eq!(
        (
            table.get(1),
            recovery.recovered_lock_and_revoked_client_counts()
        ),
        ((0, 0), (3, 1))
    );
    assert!(lock(&recovery.clients).is_empty());
}

#[test]
fn a_client_that_ends_leaves_finished_changes() {
    let table = Words::new(1);
    let recovery = recovery(&table, Duration::from_secs(3600));
    let owner = recovery.assign_owner_number();
    let word = lock_word(owner, 9, 1);
    table.lock(0, word);
    recovery.add(5, owner, access(&[[0, word, 44]]));
    recovery.revoke_and_remove_client(4);
    assert_eq!(table.get(0), (word, 0));
    recovery.revoke_and_remove_client(5);
    assert_eq!(
        (
            table.get(0),
            recovery.recovered_lock_and_revoked_client_counts()
        ),
        ((0, 44), (1, 0))
    );
}
