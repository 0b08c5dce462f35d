//! A process of the fabric, as its peers see it.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::process::{PidfdFlags, pidfd_open};

use super::completion_channel::{PeerCompletionChannel, PeerCompletionChannels};
use super::process_id::FabricProcessId;
use super::segment::Segment;
use crate::process_memory::ProcessMemory;

/// Time in nanoseconds from a process's end until reliable queue pairs connected to that process
/// fail.
const DEATH_GRACE_NS: u64 = 50_000_000;

/// A process of the fabric as its peers see it.
pub struct Peer {
    /// Slot in the directory: the upper ten bits of the process's QP numbers.
    pub slot: usize,
    /// Random identifier of this run of the process, never 0.
    pub incarnation: u64,
    /// Process id.
    pub pid: u64,
    pub(super) start_time_ticks: u64,
    /// Segment of the process, mapped in this process.
    pub segment: Segment,
    /// Memory of the process, for access without a mapping; `None` if its pid is not valid.
    pub(crate) memory: Option<Arc<ProcessMemory>>,
    /// True if the peer is this process itself.
    pub is_self: bool,
    pub(super) is_known_dead: AtomicBool,
    /// Time at which this process noticed the peer's death, in nanoseconds; 0 while the peer is
    /// alive.
    pub(super) death_noticed_ns: AtomicU64,
    pub(super) wake_fifo: File,
    pub(super) completion_channels: PeerCompletionChannels,
    /// Becomes readable when the process ends. `None` if the system has no pidfds (Linux before 5.3, programs
    /// under valgrind, seccomp filters).
    pub pidfd: Option<OwnedFd>,
}

impl Peer {
    /// Returns the name, which distinguishes the process from every earlier and later process of the fabric.
    pub fn fabric_process_id(&self) -> FabricProcessId {
        FabricProcessId {
            device: 0,
            slot: self.slot,
            incarnation: self.incarnation,
        }
    }

    /// Returns true if the process is known to have ended.
    #[inline]
    pub fn is_dead(&self) -> bool {
        self.is_known_dead.load(Ordering::Acquire)
    }

    /// Returns true if the process has ended or is exiting. The function asks the kernel, because
    /// the engine may not have noticed the death yet. Call it after an access to the process's
    /// memory has failed.
    #[cold]
    pub fn kernel_says_ended(&self) -> bool {
        if self.is_self {
            return false;
        }
        if !self.is_dead() && !liveness::is_alive(self.pid, self.start_time_ticks) {
            self.mark_dead();
        }
        self.is_dead()
    }

    /// Returns true if the process has been dead for so long that reliable queue pairs connected to
    /// it fail.
    ///
    /// On a wire a requester fails after its timeout at the earliest. Two programs that exit
    /// together rely on that delay. Each program may have sent a message that the other no longer
    /// awaits (`ibv_srq_pingpong -q 4`), and exits after its own completions.
    #[cold]
    pub fn is_death_grace_over(&self) -> bool {
        let since = self.death_noticed_ns.load(Ordering::Relaxed);
        self.is_dead() && crate::clock::now_ns().saturating_sub(since) >= DEATH_GRACE_NS
    }

    /// Records that the process has ended (its pidfd became readable).
    pub fn mark_dead(&self) {
        let now = crate::clock::now_ns();
        let _ =
            self.death_noticed_ns
                .compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed);
        self.is_known_dead.store(true, Ordering::Release);
    }

    /// Returns this process's wake FIFO, for its engine to wait on.
    pub fn wake_fifo(&self) -> &File {
        &self.wake_fifo
    }

    /// Empties this process's wake FIFO.
    pub fn drain_wake_fifo(&self) {
        let mut calls = [0; 512];
        while rustix::io::read(&self.wake_fifo, &mut calls).is_ok_and(|n| n == calls.len()) {}
    }

    /// Returns the peer's completion channel `number`; `None` if this process cannot open it.
    pub fn open_completion_channel(&self, number: u32) -> Option<PeerCompletionChannel> {
        self.completion_channels
            .get_or_open(self.incarnation, number)
    }

    /// Wakes the peer's engine.
    #[cold]
    pub fn wake_engine(&self) {
        if self.pidfd.is_none() {
            // Without a pidfd the engine cannot notice the peer's end, so ask the kernel here.
            // Under valgrind, which lacks pidfds, one thread runs at a time, mostly a polling
            // thread, and the engine may not run.
            self.kernel_says_ended();
        }
        // If the FIFO is full, the engine has been woken already. If the FIFO is closed, the engine
        // has ended.
        let _ = rustix::io::write(&self.wake_fifo, &[0]);
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
