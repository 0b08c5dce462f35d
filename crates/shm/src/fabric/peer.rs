//! A process of the fabric, as its peers see it.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::process::{PidfdFlags, pidfd_open};

use super::channel::{Doorbell, PeerChannels};
use super::name::Name;
use super::segment::Segment;
use crate::process_memory::ProcessMemory;

/// How long after a process has ended its peers' reliable queue pairs give up.
const GIVE_UP_NS: u64 = 50_000_000;

/// A process of the fabric as its peers see it.
pub struct Peer {
    /// Its slot in the directory: the upper ten bits of its QP numbers.
    pub slot: usize,
    /// Random name of this run of the process, never 0.
    pub incarnation: u64,
    /// Its process id.
    pub pid: u64,
    pub(super) start_time: u64,
    /// Its segment, mapped here.
    pub segment: Segment,
    /// Its memory, for what cannot be mapped; `None` where its number is no process's.
    pub(crate) memory: Option<Arc<ProcessMemory>>,
    /// It is this process.
    pub is_self: bool,
    pub(super) dead: AtomicBool,
    /// When this process noticed that; 0 before.
    pub(super) died_ns: AtomicU64,
    pub(super) wake: File,
    pub(super) channels: PeerChannels,
    /// Becomes readable when the process ends; not there where the system has no such descriptors (Linux before 5.3,
    /// programs under valgrind, seccomp filters).
    pub pidfd: Option<OwnedFd>,
}

impl Peer {
    /// What tells it from every other process of the fabric, before and after.
    pub fn name(&self) -> Name {
        Name {
            slot: self.slot,
            incarnation: self.incarnation,
        }
    }

    /// Has the process ended?
    #[inline]
    pub fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire)
    }

    /// Has the process ended, or is it being taken down? Asks the system, so that the answer is newer than
    /// the engine's: for when its memory could not be reached.
    #[cold]
    pub fn has_ended(&self) -> bool {
        if self.is_self {
            return false;
        }
        if !self.is_dead() && !liveness::is_alive(self.pid, self.start_time) {
            self.mark_dead();
        }
        self.is_dead()
    }

    /// Is it dead for long enough that who sends to it gives up?
    ///
    /// On a wire that takes the timeout of the sender, at least. Two programs that end together count on it: each may have
    /// sent what the other does not wait for any more (`ibv_srq_pingpong -q 4`), and goes by its own completions.
    #[cold]
    pub fn is_given_up(&self) -> bool {
        let since = self.died_ns.load(Ordering::Relaxed);
        self.is_dead() && crate::clock::now_ns().saturating_sub(since) >= GIVE_UP_NS
    }

    /// Notes that the process has ended (its pidfd became readable).
    pub fn mark_dead(&self) {
        let now = crate::clock::now_ns();
        let _ = self
            .died_ns
            .compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed);
        self.dead.store(true, Ordering::Release);
    }

    /// The own FIFO's descriptor, for the engine to wait on.
    pub fn wake_fd(&self) -> &File {
        &self.wake
    }

    /// Empties the own FIFO.
    pub fn drain_calls(&self) {
        let mut calls = [0; 512];
        while rustix::io::read(&self.wake, &mut calls).is_ok_and(|n| n == calls.len()) {}
    }

    /// Its completion channel of that number; `None` where this process cannot reach it.
    pub fn channel(&self, number: u32) -> Option<Doorbell> {
        self.channels.get(self.incarnation, number)
    }

    /// Wakes its engine.
    #[cold]
    pub fn wake(&self) {
        if self.pidfd.is_none() {
            // The engine may not get to look: valgrind runs one thread at a time, and mostly one that polls.
            self.has_ended();
        }
        // A full FIFO means that the engine has been called already; a closed one, that it is gone.
        let _ = rustix::io::write(&self.wake, &[0]);
    }
}

pub(super) fn open_pidfd(pid: u64) -> io::Result<Option<OwnedFd>> {
    let pid = liveness::to_pid(pid).ok_or(io::ErrorKind::NotFound)?;
    match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(pidfd) => Ok(Some(pidfd)),
        Err(rustix::io::Errno::NOSYS | rustix::io::Errno::PERM) => Ok(None),
        Err(e) => Err(e.into()),
    }
}
