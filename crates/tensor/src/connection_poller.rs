//! Progress: callers that wait take what has come, else a thread does.
//!
//! A caller that waits polls its connection itself for a while, so that short answers cost no wake-up. Then it sleeps,
//! and the thread of the process wakes it. That thread polls while something comes, and sleeps on the completion
//! channel when nothing does. While callers poll and nobody else waits, it stays away.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use verbs::{CompletionChannel, Waiter};

use crate::link::PeerLink;

/// How long a caller polls before it sleeps, and the thread after its last completion. Waking a thread takes about as
/// long.
pub(crate) const SPIN_TIME: Duration = Duration::from_micros(200);
/// How often the process checks whether peers from which it expects something are still connected.
const PEER_PROBE_INTERVAL: Duration = Duration::from_millis(100);

/// The connections of a process, and the threads that poll them.
#[derive(Debug)]
pub(crate) struct ConnectionPoller {
    links: Mutex<Arc<Vec<Arc<PeerLink>>>>,
    channel: CompletionChannel,
    /// True if peers may send requests at any time.
    may_get_peer_requests: AtomicBool,
    /// Number of callers that poll.
    polling_caller_count: AtomicUsize,
    /// Number of sleeping callers, plus operations for which no thread waits. While it is above 0, the thread must
    /// poll.
    callers_relying_on_thread: AtomicUsize,
    must_stop: AtomicBool,
    is_thread_parked: Mutex<bool>,
    wake_condvar: Condvar,
}

/// The polling thread. Dropping this value ends the thread.
#[derive(Debug)]
pub(crate) struct PollingThread {
    poller: Arc<ConnectionPoller>,
    thread: Option<JoinHandle<()>>,
}

impl ConnectionPoller {
    pub(crate) fn new(channel: CompletionChannel) -> Arc<Self> {
        Arc::new(Self {
            links: Mutex::default(),
            channel,
            may_get_peer_requests: AtomicBool::new(false),
            polling_caller_count: AtomicUsize::new(0),
            callers_relying_on_thread: AtomicUsize::new(0),
            must_stop: AtomicBool::new(false),
            is_thread_parked: Mutex::new(false),
            wake_condvar: Condvar::new(),
        })
    }

    /// Peers may ask from now on.
    pub(crate) fn set_may_get_peer_requests(&self) {
        self.may_get_peer_requests.store(true, Ordering::SeqCst);
        self.wake_thread();
    }

    pub(crate) fn add_link(&self, link: Arc<PeerLink>) {
        self.update_links(|links| links.push(link));
    }

    pub(crate) fn remove_link(&self, link: &Arc<PeerLink>) {
        self.update_links(|links| links.retain(|l| !Arc::ptr_eq(l, link)));
    }

    fn update_links(&self, change: impl FnOnce(&mut Vec<Arc<PeerLink>>)) {
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        let mut new = (**links).clone();
        change(&mut new);
        *links = Arc::new(new);
    }

    /// The connections.
    pub(crate) fn links(&self) -> Arc<Vec<Arc<PeerLink>>> {
        Arc::clone(&self.links.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Polls a connection until `done`, or for [`SPIN_TIME`], or until `deadline`; whether it is done.
    pub(crate) fn spin_until_done(
        &self,
        link: &PeerLink,
        deadline: Option<Instant>,
        done: impl Fn() -> bool,
    ) -> bool {
        self.polling_caller_count.fetch_add(1, Ordering::SeqCst);
        let begun = Instant::now();
        let end = deadline.map_or(begun + SPIN_TIME, |d| d.min(begun + SPIN_TIME));
        let mut waiter = Waiter::never_sleeping();
        let mut is_done = done();
        let mut turns = 0u32;
        while !is_done {
            if link.poll() {
                waiter.reset();
            } else {
                waiter.idle();
            }
            is_done = done();
            turns = turns.wrapping_add(1);
            // The clock costs about as much as a poll.
            if turns.is_multiple_of(16) && Instant::now() >= end {
                break;
            }
        }
        let others = self.polling_caller_count.fetch_sub(1, Ordering::SeqCst) - 1;
        if others == 0 && self.has_waiters_or_server() {
            self.wake_thread();
        }
        is_done
    }

    /// Somebody waits whom the thread has to wake, until this is dropped.
    pub(crate) fn register_caller_relying_on_thread(self: &Arc<Self>) -> ReliesOnThreadGuard {
        self.callers_relying_on_thread
            .fetch_add(1, Ordering::SeqCst);
        self.wake_thread();
        ReliesOnThreadGuard(Arc::clone(self))
    }

    /// Returns true if callers rely on the thread, or peers may send requests.
    fn has_waiters_or_server(&self) -> bool {
        self.callers_relying_on_thread.load(Ordering::SeqCst) > 0
            || self.may_get_peer_requests.load(Ordering::SeqCst)
    }

    /// Returns true if the thread has to poll now.
    fn must_poll_now(&self) -> bool {
        self.callers_relying_on_thread.load(Ordering::SeqCst) > 0
            || self.may_get_peer_requests.load(Ordering::SeqCst)
                && self.polling_caller_count.load(Ordering::SeqCst) == 0
    }

    /// Wakes the thread if it is parked.
    fn wake_thread(&self) {
        let parked = self
            .is_thread_parked
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if *parked {
            self.wake_condvar.notify_all();
        }
    }

    fn park(&self) {
        let mut parked = self
            .is_thread_parked
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *parked = true;
        if !self.must_poll_now() && !self.must_stop.load(Ordering::SeqCst) {
            // A poller that crashes does not say that it leaves.
            let woken = self
                .wake_condvar
                .wait_timeout(parked, Duration::from_secs(1));
            parked = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        *parked = false;
    }

    fn run(&self) {
        let mut last = Instant::now();
        let mut probed = Instant::now();
        let mut waiter = Waiter::never_sleeping();
        while !self.must_stop.load(Ordering::SeqCst) {
            if !self.must_poll_now() {
                self.park();
                continue;
            }
            let links = self.links();
            if links.iter().fold(false, |some, link| link.poll() | some) {
                last = Instant::now();
                waiter.reset();
                continue;
            }
            if probed.elapsed() >= PEER_PROBE_INTERVAL {
                probed = Instant::now();
                links.iter().for_each(|link| link.probe_peer_if_expecting());
                self.update_links(|links| links.retain(|link| !link.has_ended()));
            }
            if last.elapsed() < SPIN_TIME {
                waiter.idle();
                continue;
            }
            links.iter().for_each(|link| link.arm_cq());
            if links.iter().fold(false, |some, link| link.poll() | some) {
                last = Instant::now();
                continue;
            }
            // An error of the channel shows at the next verb.
            let _ = self.channel.wait_for_cq_event_timeout(PEER_PROBE_INTERVAL);
            last = Instant::now();
        }
    }

    /// Starts the thread.
    pub(crate) fn start(self: &Arc<Self>) -> std::io::Result<PollingThread> {
        let engine = Arc::clone(self);
        let thread = std::thread::Builder::new().name("tensor engine".to_owned());
        Ok(PollingThread {
            poller: Arc::clone(self),
            thread: Some(thread.spawn(move || engine.run())?),
        })
    }
}

/// Somebody who waits for the thread.
#[derive(Debug)]
pub(crate) struct ReliesOnThreadGuard(Arc<ConnectionPoller>);

impl Drop for ReliesOnThreadGuard {
    fn drop(&mut self) {
        self.0
            .callers_relying_on_thread
            .fetch_sub(1, Ordering::SeqCst);
    }
}

impl Drop for PollingThread {
    fn drop(&mut self) {
        self.poller.must_stop.store(true, Ordering::SeqCst);
        self.poller.wake_thread();
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != std::thread::current().id()
        {
            // A thread that panicked has nothing left to stop.
            let _ = thread.join();
        }
        for link in self.poller.links().iter() {
            link.end_connection("it was closed on this side");
        }
        self.poller.update_links(Vec::clear);
    }
}
