//! The engine: a thread that sleeps until a peer calls or dies, and then makes the progress that nobody polls
//! for.
//!
//! It is called through the process's FIFO, by a peer that has sent to an armed completion queue or that
//! waits for this process; it watches a pidfd of every peer, or where there are none looks ten times a second whether
//! they are there. While a deadline runs (a receiver that is not ready, a peer that does not answer), and shortly after,
//! it looks every millisecond; otherwise it sleeps without limit.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::barrier;
use crate::fabric::Peer;
use crate::nic::Nic;
use crate::xrc;

/// How often the engine looks while a deadline runs.
const TICK: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 1_000_000,
};

/// How often it looks whether a peer is still there that no descriptor tells of.
const WATCH: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 100_000_000,
};

/// Ticks in a row without a deadline until it sleeps without limit. What is kept back under load comes and goes,
/// and calling a sleeping engine is a system call.
const LINGER_TICKS: u32 = 16;

/// Starts the engine's thread. Signals are left to the program's own threads.
pub(crate) fn start(nic: &'static Nic) -> io::Result<()> {
    let blocked = BlockedSignals::all();
    let started = std::thread::Builder::new()
        .name("verbatim-engine".into())
        .stack_size(256 << 10)
        .spawn(move || run(nic));
    drop(blocked);
    started.map(drop)
}

fn run(nic: &'static Nic) {
    crate::mem::this_thread_is_the_engine();
    let mut idle_ticks = 0;
    loop {
        let peers = nic.fabric.opened_peers();
        let mut fds = vec![PollFd::new(nic.me().wake_fd(), PollFlags::IN)];
        let watched = peers.iter().filter_map(|peer| peer.pidfd.as_ref());
        fds.extend(watched.map(|pidfd| PollFd::new(pidfd, PollFlags::IN)));
        let timeout = if nic.engine_ticks.load(Ordering::Relaxed) {
            Some(&TICK)
        } else {
            peers
                .iter()
                .any(|peer| peer.pidfd.is_none())
                .then_some(&WATCH)
        };
        match poll(&mut fds, timeout) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => {
                tracing::error!("the engine cannot wait: {e}");
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
        }
        let called = fds.first().is_some_and(|f| !f.revents().is_empty());
        let mut signs = fds.iter().skip(1).map(|f| !f.revents().is_empty());
        let has_ended = |peer: &&Arc<Peer>| match peer.pidfd {
            Some(_) => signs.next() == Some(true),
            None => peer.has_ended(),
        };
        let ended: Vec<_> = peers.iter().filter(has_ended).collect();
        drop(fds);
        if called {
            nic.me().drain_calls();
        }
        for peer in ended {
            tracing::debug!("process {} of the fabric has ended", peer.pid);
            peer.mark_dead();
            nic.fabric.forget(peer);
            nic.maps
                .drop_unused(|incarnation| incarnation == peer.incarnation);
        }
        nic.tell_imported_contexts();
        nic.check_mail();
        if progress(nic) {
            idle_ticks = 0;
            nic.engine_ticks.store(true, Ordering::Relaxed);
        } else if nic.engine_ticks.load(Ordering::Relaxed) {
            idle_ticks += 1;
            if idle_ticks >= LINGER_TICKS {
                nic.engine_ticks.store(false, Ordering::Relaxed);
                // SYNC POINT T: whoever kept a WR back and did not call because of the ticks did so before this,
                // and it is found now; whoever does so later calls.
                barrier::everywhere();
                nic.engine_ticks.store(progress(nic), Ordering::Relaxed);
                idle_ticks = 0;
            }
        }
        nic.free_retired();
    }
}

/// Looks after every completion queue. True if a deadline runs.
fn progress(nic: &'static Nic) -> bool {
    let mut waiting = false;
    for cq in nic.all_cqs() {
        waiting |= cq.engine_progress();
    }
    if xrc::in_use() {
        waiting |= xrc::engine_progress(nic);
    }
    waiting
}

/// Calls `f` when the process exits normally.
#[allow(unsafe_code)]
pub(crate) fn at_exit(f: extern "C" fn()) {
    // SAFETY: a function that lives as long as the program.
    unsafe { libc::atexit(f) };
}

/// All signals of others are blocked in this thread, and in threads that it starts, until this is dropped. What a thread
/// brings upon itself is not: it ends the process if it is blocked, where [`mem`](crate::mem) gets over it.
struct BlockedSignals(libc::sigset_t);

#[allow(unsafe_code)]
impl BlockedSignals {
    fn all() -> Self {
        // SAFETY: signal sets are plain data that the calls fill.
        unsafe {
            let mut all: libc::sigset_t = std::mem::zeroed();
            let mut old: libc::sigset_t = std::mem::zeroed();
            libc::sigfillset(&raw mut all);
            libc::sigdelset(&raw mut all, libc::SIGSEGV);
            libc::sigdelset(&raw mut all, libc::SIGBUS);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut old);
            Self(old)
        }
    }
}

#[allow(unsafe_code)]
impl Drop for BlockedSignals {
    fn drop(&mut self) {
        // SAFETY: the set came from `pthread_sigmask`.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut())
        };
    }
}
