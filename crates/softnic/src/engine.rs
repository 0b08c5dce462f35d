//! The engine: a thread that sleeps until a peer calls or dies, and then makes the progress for which no thread of the
//! program polls.
//!
//! Peers call the engine through the process's FIFO: after they have sent to an armed completion queue, or when they
//! wait for this process. The engine watches a pidfd of every peer. Without pidfds, it checks ten times a second
//! whether the peers exist. While a deadline runs (a receiver that is not ready, a peer that does not answer), and
//! shortly after, it checks every millisecond. While a completion queue can be overrun and something happens there, it
//! checks that queue ten times a second. While packets are counted, it publishes the counters once a second. Otherwise
//! it sleeps without limit.
//!
//! In a process with more than 256 completion queues, a check of all of them is followed by a pause. In the pause the
//! engine checks only the queues for which a peer has called it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::biased_lock::BiasPreservingVisit;
use crate::cq::EngineCheckReason;
use crate::nic::Nic;
use crate::registry;
use crate::xrc;
use shm::fabric::Peer;
use shm::membarrier;

/// Interval of the engine's checks while a deadline runs.
const DEADLINE_CHECK_INTERVAL: Duration = Duration::from_millis(1);

/// Interval at which the engine checks for packets of a program that polls, if it has found packets that no poll took.
/// Such a program waits for a WRITE by reading its memory.
const MISSED_PACKET_CHECK_INTERVAL: Duration = Duration::from_micros(50);

/// Time for which the engine waits for more packets after the last: a few times as long as an acknowledgement and the
/// next packets take on one host.
const PACKET_LINGER: Duration = Duration::from_micros(30);

/// Interval at which the engine checks peers without a pidfd. It is also the first interval of the checks of completion
/// queues that can be overrun and are not polled.
const PEER_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Longest interval between checks of a completion queue: each check that finds nothing doubles the interval. A queue
/// that no thread polls is soon checked no more (`cq/overrun_parking.rs`).
const MAX_CQ_CHECK_INTERVAL: Duration = Duration::from_millis(3200);

/// Number of completion queues up to which all of them are checked whenever the engine is called.
const MAX_CQS_WITHOUT_REST: usize = 256;

/// Pause after a check of more queues, for each of them. A check takes some 0.5 us a queue, whose state the caches have
/// lost. Each of 10,000 connections calls the engine several times.
const REST_PER_CHECKED_CQ: Duration = Duration::from_micros(3);

/// Number of ticks in a row without a deadline after which the engine sleeps without limit. Under load, held-back work
/// comes and goes, and calling a sleeping engine is a system call.
const TICKS_UNTIL_SLEEP: u32 = 16;

/// Starts the engine's thread, which waits for its NIC and ends if the sender is dropped instead. Signals are left to
/// the program's own threads.
pub(crate) fn start_engine_thread() -> io::Result<Sender<&'static Nic>> {
    // A process with several threads waits here for a grace period of RCU, up to half a second on a busy host. Later it
    // would be the engine that waits, while peers wait for its answers.
    membarrier::is_private_barrier_available();
    let builder = std::thread::Builder::new()
        .name("verbatim-engine".into())
        .stack_size(256 << 10);
    let (sender, receiver) = channel();
    let started = without_signals(|| {
        builder.spawn(move || {
            if let Ok(nic) = receiver.recv() {
                run_engine(nic);
            }
        })
    });
    started.map(|_| sender)
}

/// Runs `f` with all signals blocked, so that threads started in it leave signals to the program's own threads.
pub(crate) fn without_signals<T>(f: impl FnOnce() -> T) -> T {
    let _blocked = BlockedSignals::block_all();
    f()
}

fn run_engine(nic: &'static Nic) -> ! {
    shm::mem::declare_this_thread_the_engine();
    let mut engine = Engine::new(nic);
    loop {
        let wakeup = engine.sleep();
        let checks = engine.choose_checks(&wakeup);
        forget_ended_peers(nic, &wakeup.ended_peers);
        registry::objects_of_nic(nic).raise_device_fatal_for_imported_contexts();
        if wakeup.program_polls {
            // An engine that is held up while it delivers packets would hold up the polls.
            nic.process_arrived_connection_notices();
        } else {
            process_arrivals_until_idle(nic);
        }
        let waiting = engine.check(checks) | continue_held_back_work(nic);
        for peer in &wakeup.ended_peers {
            for cq in registry::objects_of_nic(nic).all_cqs() {
                cq.write_tokens_owed_by(peer.slot);
            }
        }
        engine.start_or_stop_ticking(waiting, checks);
        nic.free_retired_rings();
    }
}

/// The state of the engine between two rounds.
struct Engine {
    nic: &'static Nic,
    /// Number of checks for packets by threads of the program, as of the last sleep.
    program_checks_seen: u64,
    last_tick: Instant,
    /// Number of ticks in a row without a deadline.
    idle_ticks: u32,
    /// Interval of the checks of completion queues that can be overrun.
    overrun_watch_interval: Duration,
    /// Interval of the checks while the program polls for packets, or owes answers to them.
    packet_check_interval: Duration,
    full_check_limit: FullCheckLimit,
}

/// The reasons for which the engine has woken.
struct Wakeup {
    was_called: bool,
    packets_wait: bool,
    /// A deadline ran when the engine went to sleep.
    was_ticking: bool,
    /// The engine has to ask the kernel for the ends of its peers.
    watches_peers: bool,
    /// Threads of the program poll for packets.
    program_polls: bool,
    ended_peers: Vec<Arc<Peer>>,
}

/// The completion queues that a round checks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CqChecks {
    All(EngineCheckReason),
    /// Those that can be overrun.
    OverrunWatch,
    /// Those for which a peer has called the engine.
    Called,
}

impl Engine {
    fn new(nic: &'static Nic) -> Self {
        Self {
            nic,
            program_checks_seen: 0,
            last_tick: Instant::now(),
            idle_ticks: 0,
            overrun_watch_interval: PEER_CHECK_INTERVAL,
            packet_check_interval: DEADLINE_CHECK_INTERVAL,
            full_check_limit: FullCheckLimit::default(),
        }
    }

    /// Sleeps until a peer calls or ends, packets arrive, or a check is due.
    fn sleep(&mut self) -> Wakeup {
        let nic = self.nic;
        let peers = nic.fabric.opened_peers();
        // Threads of the program take the packets themselves while they poll for them.
        let checks = nic.packet_path.program_check_count();
        let program_polls = std::mem::replace(&mut self.program_checks_seen, checks) != checks;
        let packets = nic.packet_path.readiness_fd().filter(|_| !program_polls);
        let mut fds = vec![PollFd::new(nic.this_process().wake_fifo(), PollFlags::IN)];
        let watched = peers.iter().filter_map(|peer| peer.pidfd.as_ref());
        fds.extend(watched.map(|pidfd| PollFd::new(pidfd, PollFlags::IN)));
        fds.extend(packets.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        let was_ticking = nic.is_engine_ticking.load(Ordering::Relaxed);
        let watches_peers = peers.iter().any(|peer| peer.pidfd.is_none());
        let timeout = self.time_until_check(program_polls, was_ticking, watches_peers);
        match poll(&mut fds, timeout.map(to_timespec).as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => {
                tracing::error!("the engine cannot wait: {e}");
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        let was_called = fds.first().is_some_and(|f| !f.revents().is_empty());
        let packets_wait = packets.is_some() && fds.last().is_some_and(|f| !f.revents().is_empty());
        let mut signs = fds.iter().skip(1).map(|f| !f.revents().is_empty());
        let has_ended = |peer: &&Arc<Peer>| match peer.pidfd {
            Some(_) => signs.next() == Some(true),
            None => peer.kernel_says_ended(),
        };
        let ended_peers = peers.iter().filter(has_ended).cloned().collect();
        self.packet_check_interval = if packets_wait {
            MISSED_PACKET_CHECK_INTERVAL
        } else {
            DEADLINE_CHECK_INTERVAL.min(self.packet_check_interval * 2)
        };
        if was_called {
            nic.this_process().drain_wake_fifo();
        }
        Wakeup {
            was_called,
            packets_wait,
            was_ticking,
            watches_peers,
            program_polls,
            ended_peers,
        }
    }

    /// Returns the time after which the engine wakes by itself; `None` if never.
    fn time_until_check(
        &self,
        program_polls: bool,
        is_ticking: bool,
        watches_peers: bool,
    ) -> Option<Duration> {
        let nic = self.nic;
        let of_cqs = if program_polls || registry::objects_of_nic(nic).has_owed_answers() {
            // A program that polls no more may have left acknowledgements.
            Some(self.packet_check_interval)
        } else if is_ticking {
            Some(DEADLINE_CHECK_INTERVAL)
        } else if watches_peers {
            Some(PEER_CHECK_INTERVAL)
        } else {
            let checks_cqs = nic.overrun_checked_cq_count.load(Ordering::Relaxed) != 0;
            checks_cqs.then_some(self.overrun_watch_interval)
        };
        of_cqs
            .into_iter()
            .chain(nic.packet_path.publish_counters_if_due())
            .chain(self.full_check_limit.time_until_owed_check())
            .min()
    }

    fn choose_checks(&mut self, wakeup: &Wakeup) -> CqChecks {
        let any_ended = !wakeup.ended_peers.is_empty();
        let has_reason = wakeup.was_called
            || wakeup.packets_wait
            || wakeup.was_ticking
            || wakeup.watches_peers
            || any_ended;
        if !has_reason && !self.full_check_limit.is_check_owed {
            self.overrun_watch_interval =
                MAX_CQ_CHECK_INTERVAL.min(self.overrun_watch_interval * 2);
            return CqChecks::OverrunWatch;
        }
        self.overrun_watch_interval = PEER_CHECK_INTERVAL;
        if !any_ended && !self.full_check_limit.begin_check_or_owe() {
            return CqChecks::Called;
        }
        if self.last_tick.elapsed() < DEADLINE_CHECK_INTERVAL {
            return CqChecks::All(EngineCheckReason::Called);
        }
        self.last_tick = Instant::now();
        CqChecks::All(EngineCheckReason::Tick)
    }

    /// Checks completion queues. Returns true if a deadline runs.
    fn check(&mut self, checks: CqChecks) -> bool {
        match checks {
            CqChecks::All(reason) => {
                let (count, waiting) = check_cqs(self.nic, reason);
                self.full_check_limit.end_check(count);
                waiting
            }
            CqChecks::OverrunWatch => check_cqs(self.nic, EngineCheckReason::OverrunWatch).1,
            CqChecks::Called => check_called_cqs(self.nic),
        }
    }

    /// Lets the engine wake every millisecond while a deadline runs, and for some ticks after that.
    fn start_or_stop_ticking(&mut self, waiting: bool, checks: CqChecks) {
        let is_engine_ticking = &self.nic.is_engine_ticking;
        if waiting {
            self.idle_ticks = 0;
            is_engine_ticking.store(true, Ordering::Relaxed);
            return;
        }
        if checks == CqChecks::Called || !is_engine_ticking.load(Ordering::Relaxed) {
            return;
        }
        self.idle_ticks += 1;
        if self.idle_ticks < TICKS_UNTIL_SLEEP {
            return;
        }
        is_engine_ticking.store(false, Ordering::Relaxed);
        // SYNC POINT T: a thread may have held back a WR and not called because of the ticks. It did so before
        // this point, so the WR is found now. A thread that does so later calls the engine.
        membarrier::membarrier_all_processes();
        let still_waiting = self.check(CqChecks::All(EngineCheckReason::Called))
            | continue_held_back_work(self.nic);
        is_engine_ticking.store(still_waiting, Ordering::Relaxed);
        self.idle_ticks = 0;
    }
}

/// Releases what the NIC keeps for processes that have ended.
fn forget_ended_peers(nic: &'static Nic, ended: &[Arc<Peer>]) {
    if !ended.is_empty() {
        nic.packet_path.forget_ended_processes();
    }
    for peer in ended {
        tracing::debug!("process {} of the fabric has ended", peer.pid);
        peer.mark_dead();
        nic.fabric.forget_ended_peer(peer);
        nic.peer_mappings
            .drop_unused(|incarnation| incarnation == peer.incarnation);
    }
}

/// Processes arrivals, and continues while packets keep coming that no thread of the program polls for. Sleeping and
/// being called again takes longer than a packet's journey.
fn process_arrivals_until_idle(nic: &'static Nic) {
    let polls = nic.packet_path.program_check_count();
    if !nic.process_arrivals_for_engine() {
        return;
    }
    let begin = Instant::now();
    let mut last = begin;
    while last.elapsed() < PACKET_LINGER
        && begin.elapsed() < DEADLINE_CHECK_INTERVAL
        && nic.packet_path.program_check_count() == polls
    {
        if nic.process_arrivals_for_engine() {
            last = Instant::now();
        }
    }
}

fn to_timespec(time: Duration) -> Timespec {
    Timespec {
        tv_sec: time.as_secs().cast_signed(),
        tv_nsec: time.subsec_nanos().into(),
    }
}

/// Checks every completion queue, or only those that can be overrun. Returns the number of queues, and true if a deadline
/// runs.
fn check_cqs(nic: &'static Nic, look: EngineCheckReason) -> (usize, bool) {
    // The engine may not be needed now. The visit lets the program's locks keep their bias.
    let _visit = (look == EngineCheckReason::OverrunWatch).then(BiasPreservingVisit::begin);
    let mut waiting = false;
    let cqs = registry::objects_of_nic(nic).all_cqs();
    for cq in &cqs {
        if look != EngineCheckReason::OverrunWatch || cq.is_checked_for_overrun() {
            waiting |= cq.make_engine_progress(look);
        }
    }
    (cqs.len(), waiting)
}

/// Checks the completion queues for which peers have called the engine. Returns true if a deadline runs.
fn check_called_cqs(nic: &'static Nic) -> bool {
    let called = registry::objects_of_nic(nic).cqs_with_engine_calls(nic);
    let checked = called.iter();
    checked.fold(false, |waiting, cq| {
        waiting | cq.make_engine_progress(EngineCheckReason::Called)
    })
}

/// Continues the work that belongs to no completion queue. Returns true if some still waits.
fn continue_held_back_work(nic: &'static Nic) -> bool {
    let mut waiting = xrc::is_xrc_in_use() && xrc::deliver_in_all_domains_for_engine(nic);
    waiting |= registry::objects_of_nic(nic).process_postponed_notices(nic);
    waiting |= nic.packet_path.send_held_back();
    waiting |= nic.packet_path.has_late_packets();
    let fabric = || crate::nic::fabric_dir().ok();
    waiting |= nic.packet_path.gsi.retry_waiting(fabric);
    waiting
}

/// Limits the share of time that checks of very many completion queues take.
#[derive(Debug, Default)]
struct FullCheckLimit {
    rest_until: Option<Instant>,
    is_check_owed: bool,
}

impl FullCheckLimit {
    /// Returns true if all queues may be checked now. If it is too early, a later check is owed.
    fn begin_check_or_owe(&mut self) -> bool {
        self.is_check_owed = self.rest_until.is_some_and(|until| Instant::now() < until);
        !self.is_check_owed
    }

    /// Begins the pause after a check of `cqs` queues.
    fn end_check(&mut self, cqs: usize) {
        let rest = REST_PER_CHECKED_CQ * u32::try_from(cqs).unwrap_or(u32::MAX);
        self.rest_until = (cqs > MAX_CQS_WITHOUT_REST).then(|| Instant::now() + rest);
        self.is_check_owed = false;
    }

    /// Returns the time until the check that is owed; `None` if none is.
    fn time_until_owed_check(&self) -> Option<Duration> {
        let until = self.rest_until.filter(|_| self.is_check_owed)?;
        Some(until.saturating_duration_since(Instant::now()))
    }
}

/// Blocks all signals sent by others in this thread, and in threads that it starts, until dropped. A fault that a
/// thread causes itself is not blocked: the process would end, whereas [`mem`](shm::mem) recovers from it.
struct BlockedSignals(libc::sigset_t);

#[allow(unsafe_code)]
impl BlockedSignals {
    fn block_all() -> Self {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_of_few_queues_is_never_delayed() {
        let mut limit = FullCheckLimit::default();
        assert!(limit.begin_check_or_owe());
        limit.end_check(MAX_CQS_WITHOUT_REST);
        assert!(limit.begin_check_or_owe());
        assert_eq!(limit.time_until_owed_check(), None);
    }

    #[test]
    fn a_check_that_comes_too_early_is_owed_until_it_is_made() {
        let mut limit = FullCheckLimit::default();
        limit.end_check(100_000_000);
        assert_eq!(limit.time_until_owed_check(), None);
        assert!(!limit.begin_check_or_owe());
        let left = limit.time_until_owed_check();
        assert!(
            left.is_some_and(|left| left > Duration::from_secs(50)),
            "{left:?}"
        );
        limit.end_check(0);
        assert_eq!(limit.time_until_owed_check(), None);
        assert!(limit.begin_check_or_owe());
    }
}
