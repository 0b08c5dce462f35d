//! The locks of this library at a `fork(2)`.
//!
//! A child has no thread but the one that forked, so a lock that another thread of the parent holds is never released
//! there. The locks of the table and of the epoll instances are held for moments, so [`before_fork`] takes them. A
//! thread may hold the locks of a connection for as long as a WRITE to another host takes. Such a connection gets a new
//! object in the child ([`after_fork_in_child`]).

use std::cell::RefCell;
use std::sync::MutexGuard;
use std::time::Duration;

use crate::descriptor_table::{self, PoolGuards};
use crate::epoll::{Epoll, WatchedGuard};
use crate::{connection_page, nic, peer_lookup};

/// The pause between two attempts to take the locks, and the number of attempts. A thread that forks in a handler of a
/// signal may itself hold one of them: then the child does without.
const PAUSE: Duration = Duration::from_millis(1);
const ATTEMPTS: u32 = 200;

/// The locks that a thread holds while it forks.
struct HeldLocks {
    _epolls: Vec<WatchedGuard>,
    _pools: PoolGuards,
    _nic: MutexGuard<'static, ()>,
}

thread_local! {
    static HELD: RefCell<Option<HeldLocks>> = const { RefCell::new(None) };
}

/// Takes the locks that a child needs.
pub fn before_fork() {
    let locks = (0..ATTEMPTS).find_map(|attempt| {
        if attempt > 0 {
            std::thread::sleep(PAUSE);
        }
        // Two instances may watch each other, so their locks have no order: all are released before the next attempt.
        Some(HeldLocks {
            _epolls: try_lock_epolls()?,
            _pools: descriptor_table::try_lock_pools()?,
            _nic: nic::try_lock_creation()?,
        })
    });
    let _ = HELD.try_with(|held| held.try_borrow_mut().map(|mut held| *held = locks));
}

fn try_lock_epolls() -> Option<Vec<WatchedGuard>> {
    let mut epolls: Vec<&'static Epoll> = Vec::new();
    for epoll in descriptor_table::all_epolls() {
        // Several descriptors may be of one instance.
        if !epolls.iter().any(|known| std::ptr::eq(*known, epoll)) {
            epolls.push(epoll);
        }
    }
    epolls.into_iter().map(Epoll::try_lock_watched).collect()
}

fn release_locks() {
    let _ = HELD.try_with(|held| held.try_borrow_mut().map(|mut held| held.take()));
}

/// Releases the locks, and marks all connections as shared; called in the parent.
pub fn after_fork_in_parent() {
    release_locks();
    for (_, conn) in descriptor_table::all_conns() {
        conn.mark_shared();
    }
}

/// Releases the locks, and resets the state of this process; called in a forked child.
pub fn after_fork_in_child() {
    release_locks();
    nic::forget_parent_nic();
    peer_lookup::reset_datagram_receiver_in_child();
    connection_page::forget_cached_pid();
    crate::program_calls::own_table();
    let mut renewed = Vec::new();
    for (fd, conn) in descriptor_table::all_conns() {
        if !conn.after_fork_in_child()
            && let Some(new) = descriptor_table::renew_conn(fd, conn)
        {
            // Its first call looks for the connection's page, as that of a process that got the descriptor in a
            // message.
            new.mark_shared();
            renewed.push((conn, new));
        }
    }
    for epoll in descriptor_table::all_epolls() {
        epoll.after_fork_in_child(&renewed);
    }
}
