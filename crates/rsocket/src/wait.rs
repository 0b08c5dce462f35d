//! Waiting for several descriptors and for other threads.
//!
//! A thread that waits for a socket polls the descriptors of its completion and event channels. Another thread may take
//! the event for which the first one waits. So it wakes the waiting threads, each by an eventfd.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};

use rdmacm::errno::{Errno, Result};

/// Locks a mutex and ignores poisoning: no code leaves data half-changed when it panics.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Time that a thread polls for completions before it sleeps: less than a wake-up takes.
const POLL_TIME_BEFORE_SLEEP: Duration = Duration::from_micros(20);
/// Number of unsuccessful non-blocking calls after which the caller yields, since the peer may need its core.
const FRUITLESS_CALLS_PER_YIELD: u32 = 64;

/// A waiting thread, which other threads wake by its eventfd.
pub(crate) struct WaitingThread(OwnedFd);

thread_local! {
    /// The thread's waiter, made at its first wait.
    static THREAD_WAITER: std::cell::RefCell<Option<Arc<WaitingThread>>> = const { std::cell::RefCell::new(None) };
}

impl WaitingThread {
    /// Returns the waiter of the calling thread.
    pub(crate) fn of_this_thread() -> Result<Arc<Self>> {
        THREAD_WAITER.with_borrow_mut(|own| {
            if let Some(own) = own {
                return Ok(Arc::clone(own));
            }
            let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
            let new = Arc::new(Self(fd));
            *own = Some(Arc::clone(&new));
            Ok(new)
        })
    }

    pub(crate) fn wake(&self) {
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Clears earlier wake-ups.
    pub(crate) fn clear_wake_ups(&self) {
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }

    pub(crate) fn eventfd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// The threads that wait for a socket.
#[derive(Default)]
pub(crate) struct SocketWaiters(Vec<Weak<WaitingThread>>);

impl SocketWaiters {
    pub(crate) fn add(&mut self, waiter: &Arc<WaitingThread>) {
        self.0.retain(|w| w.strong_count() > 0);
        let known = self.0.iter().any(|w| w.as_ptr() == Arc::as_ptr(waiter));
        if !known {
            self.0.push(Arc::downgrade(waiter));
        }
    }

    /// Wakes all waiting threads except the calling one, so that they check the socket again. The calling thread stays
    /// in the list, since it may be about to sleep.
    pub(crate) fn wake_all_but_this_thread(&mut self) {
        if self.0.is_empty() {
            return;
        }
        let own =
            THREAD_WAITER.with_borrow(|own| own.as_ref().map_or(std::ptr::null(), Arc::as_ptr));
        self.0.retain(|waiter| {
            let is_own = waiter.as_ptr() == own;
            if !is_own && let Some(waiter) = waiter.upgrade() {
                waiter.wake();
            }
            is_own
        });
    }
}

/// A point in time, or never.
#[derive(Clone, Copy)]
pub(crate) struct Deadline(Option<Instant>);

impl Deadline {
    pub(crate) const NEVER: Self = Self(None);

    pub(crate) fn after(duration: Duration) -> Self {
        Self(Instant::now().checked_add(duration))
    }

    /// Converts a timeout of `poll(2)`; negative means never.
    pub(crate) fn from_poll_timeout_ms(timeout_ms: i32) -> Self {
        u64::try_from(timeout_ms).map_or(Self::NEVER, |ms| Self::after(Duration::from_millis(ms)))
    }

    /// Returns this deadline, or `duration` from now if that is earlier.
    pub(crate) fn or_after_if_sooner(self, duration: Duration) -> Self {
        let soon = Instant::now().checked_add(duration);
        Self(match (self.0, soon) {
            (Some(at), Some(soon)) => Some(at.min(soon)),
            (at, soon) => at.or(soon),
        })
    }

    pub(crate) fn has_passed(self) -> bool {
        self.0.is_some_and(|at| at <= Instant::now())
    }

    /// Converts the deadline to a timeout of `poll(2)`, rounded up.
    pub(crate) fn to_poll_timeout_ms(self) -> i32 {
        match self.0 {
            None => -1,
            Some(at) => {
                let left = at.saturating_duration_since(Instant::now());
                i32::try_from(left.as_micros().div_ceil(1000)).unwrap_or(i32::MAX)
            }
        }
    }
}

/// The state behind a socket's lock, for the functions that wait for it.
pub(crate) trait WaitableState {
    /// True if a wait is restarted after a signal whose handler has `SA_RESTART`.
    const WAIT_RESTARTS_AFTER_SIGNAL: bool;

    /// Processes completions and events, and wakes waiting threads.
    fn process_completions_and_events(&mut self);

    /// Returns the pending events of `poll(2)` among `asked`.
    fn pending_poll_events(&mut self, asked: libc::c_short) -> libc::c_short;

    /// Arms the descriptors for future events; returns true if an event may have occurred in the meantime.
    fn arm(&mut self) -> bool;

    /// Returns the descriptors that become readable when an event occurs.
    fn wake_up_descriptors(&self) -> Vec<libc::pollfd>;

    /// Returns the list of waiting threads.
    fn waiters(&mut self) -> &mut SocketWaiters;

    /// Returns the blocking mode of the socket.
    fn blocking_mode(&mut self) -> &mut BlockingMode;
}

/// The blocking mode of a socket, and the number of non-blocking calls that found nothing.
pub(crate) struct BlockingMode {
    is_nonblocking: bool,
    fruitless_calls: u32,
}

impl BlockingMode {
    pub(crate) fn new(nonblocking: bool) -> Self {
        Self {
            is_nonblocking: nonblocking,
            fruitless_calls: 0,
        }
    }

    /// Returns true if calls on the socket do not block.
    pub(crate) fn is_nonblocking(&self) -> bool {
        self.is_nonblocking
    }
}

/// Waits until `ready` returns a value, and returns that value.
///
/// # Errors
/// `EAGAIN` at the deadline, `EINTR` if a signal interrupted the wait and the wait is not restarted.
pub(crate) fn wait_until<S: WaitableState, T>(
    socket: &Mutex<S>,
    deadline: Deadline,
    mut ready: impl FnMut(&mut S) -> Option<T>,
) -> Result<T> {
    let mut poll_until = None;
    loop {
        let mut fds = {
            let mut inner = lock(socket);
            inner.process_completions_and_events();
            if let Some(found) = ready(&mut inner) {
                return Ok(found);
            }
            let now = Instant::now();
            if *poll_until.get_or_insert(now + POLL_TIME_BEFORE_SLEEP) > now {
                drop(inner);
                // The peer may need this core.
                std::thread::yield_now();
                continue;
            }
            let waiter = WaitingThread::of_this_thread()?;
            waiter.clear_wake_ups();
            inner.waiters().add(&waiter);
            // Completions from before the arming cause no event.
            if inner.arm()
                && let Some(found) = ready(&mut inner)
            {
                return Ok(found);
            }
            let mut fds = inner.wake_up_descriptors();
            fds.push(pollfd_for_reading(waiter.eventfd()));
            fds
        };
        match poll_until_deadline(&mut fds, deadline) {
            Err(Errno(libc::EINTR))
                if S::WAIT_RESTARTS_AFTER_SIGNAL && cancellation::should_restart_wait() => {}
            polled => {
                if polled? == 0 && deadline.has_passed() {
                    return Err(Errno(libc::EAGAIN));
                }
            }
        }
    }
}

/// Waits as [`wait_until`], unless the socket or `flags` are non-blocking.
pub(crate) fn wait_unless_nonblocking<S: WaitableState, T>(
    socket: &Mutex<S>,
    flags: i32,
    mut ready: impl FnMut(&mut S) -> Option<T>,
) -> Result<T> {
    {
        let mut inner = lock(socket);
        inner.process_completions_and_events();
        if let Some(found) = ready(&mut inner) {
            return Ok(found);
        }
        let blocking = inner.blocking_mode();
        if blocking.is_nonblocking || flags & libc::MSG_DONTWAIT != 0 {
            blocking.fruitless_calls = blocking.fruitless_calls.wrapping_add(1);
            let yields = blocking
                .fruitless_calls
                .is_multiple_of(FRUITLESS_CALLS_PER_YIELD);
            drop(inner);
            if yields {
                std::thread::yield_now();
            }
            return Err(Errno(libc::EAGAIN));
        }
    }
    wait_until(socket, Deadline::NEVER, ready)
}

/// Returns the pending events among `events`. With a waiter and no pending event, adds the descriptors that announce
/// one to `fds`.
pub(crate) fn poll_events<S: WaitableState>(
    socket: &Mutex<S>,
    events: libc::c_short,
    waiter: Option<&Arc<WaitingThread>>,
    fds: &mut Vec<libc::pollfd>,
) -> libc::c_short {
    let mut inner = lock(socket);
    inner.process_completions_and_events();
    let found = inner.pending_poll_events(events);
    let Some(waiter) = waiter.filter(|_| found == 0) else {
        return found;
    };
    inner.waiters().add(waiter);
    let found = if inner.arm() {
        inner.pending_poll_events(events)
    } else {
        0
    };
    if found == 0 {
        fds.extend(inner.wake_up_descriptors());
    }
    found
}

/// Returns an entry for `poll(2)` that waits until `fd` is readable.
pub(crate) fn pollfd_for_reading(fd: RawFd) -> libc::pollfd {
    libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    }
}

/// Calls `poll(2)`.
///
/// # Errors
/// The error of `poll(2)`, e.g. `EINTR` if a signal interrupted it.
pub(crate) fn poll_until_deadline(fds: &mut [libc::pollfd], deadline: Deadline) -> Result<usize> {
    let _hold_off = cancellation::HoldOff::new();
    let count = libc::nfds_t::try_from(fds.len()).unwrap_or(0);
    // SAFETY: `fds` has `count` entries.
    let ready = unsafe { libc::poll(fds.as_mut_ptr(), count, deadline.to_poll_timeout_ms()) };
    usize::try_from(ready).map_err(|_| Errno::from(std::io::Error::last_os_error()))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
    use std::sync::mpsc::channel;

    use super::*;

    fn is_woken(waiter: &WaitingThread) -> bool {
        let mut fds = [pollfd_for_reading(waiter.eventfd())];
        poll_until_deadline(&mut fds, Deadline::from_poll_timeout_ms(0)).expect("poll(2)") == 1
    }

    #[test]
    fn a_thread_that_wakes_others_stays_registered() {
        let mut waiters = SocketWaiters::default();
        let own = WaitingThread::of_this_thread().expect("an eventfd");
        let other = std::thread::spawn(|| WaitingThread::of_this_thread().expect("an eventfd"))
            .join()
            .expect("no panic");
        waiters.add(&own);
        waiters.add(&other);
        waiters.wake_all_but_this_thread();
        assert!(is_woken(&other) && !is_woken(&own));
        assert!(std::ptr::eq(waiters.0[0].as_ptr(), Arc::as_ptr(&own)));
        assert_eq!(waiters.0.len(), 1);
    }

    static HANDLED: AtomicU32 = AtomicU32::new(0);

    extern "C" fn count(_: libc::c_int) {
        HANDLED.fetch_add(1, Ordering::Relaxed);
    }

    /// A socket without descriptors.
    struct Socket<const IS_RESTARTABLE: bool>(SocketWaiters, BlockingMode);

    impl<const IS_RESTARTABLE: bool> WaitableState for Socket<IS_RESTARTABLE> {
        const WAIT_RESTARTS_AFTER_SIGNAL: bool = IS_RESTARTABLE;

        fn process_completions_and_events(&mut self) {}

        fn pending_poll_events(&mut self, _: libc::c_short) -> libc::c_short {
            0
        }

        fn arm(&mut self) -> bool {
            false
        }

        fn wake_up_descriptors(&self) -> Vec<libc::pollfd> {
            Vec::new()
        }

        fn waiters(&mut self) -> &mut SocketWaiters {
            &mut self.0
        }

        fn blocking_mode(&mut self) -> &mut BlockingMode {
            &mut self.1
        }
    }

    /// Waits for a socket in a thread that gets signals until the wait returns. It is ready after ten signals.
    fn wait_under_signals<const IS_RESTARTABLE: bool>() -> Result<()> {
        let waiters = SocketWaiters::default();
        let socket = Mutex::new(Socket::<IS_RESTARTABLE>(waiters, BlockingMode::new(false)));
        let (started, thread_id) = channel();
        let (end, may_end) = channel();
        let returned = &AtomicBool::new(false);
        HANDLED.store(0, Ordering::Relaxed);
        let is_ready = || HANDLED.load(Ordering::Relaxed) >= 10;
        std::thread::scope(|scope| {
            let socket = &socket;
            let waiting = scope.spawn(move || {
                // SAFETY: no arguments.
                started
                    .send(unsafe { libc::pthread_self() })
                    .expect("the test waits");
                let found = wait_until(socket, Deadline::NEVER, |_| is_ready().then_some(()));
                returned.store(true, Ordering::Relaxed);
                // Signals are sent only to a thread that lives.
                may_end.recv().expect("the test ends it");
                found
            });
            let waiter = thread_id.recv().expect("it starts");
            while !returned.load(Ordering::Relaxed) {
                if is_ready() {
                    lock(socket).0.wake_all_but_this_thread();
                }
                // SAFETY: the thread lives until `end` is used.
                unsafe { libc::pthread_kill(waiter, libc::SIGUSR1) };
                std::thread::sleep(Duration::from_millis(5));
            }
            end.send(()).expect("it lives");
            waiting.join().expect("no panic")
        })
    }

    #[test]
    fn waits_are_restarted_as_those_of_rdma_core() {
        let set_flags = |flags| {
            // SAFETY: zeros are valid, and the handler is async-signal-safe.
            unsafe {
                let mut action: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = count as *const () as usize;
                action.sa_flags = flags;
                libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut())
            };
        };
        set_flags(libc::SA_RESTART);
        assert_eq!(wait_under_signals::<true>(), Ok(()));
        assert_eq!(wait_under_signals::<false>(), Err(Errno(libc::EINTR)));
        set_flags(0);
        assert_eq!(wait_under_signals::<true>(), Err(Errno(libc::EINTR)));
    }
}
