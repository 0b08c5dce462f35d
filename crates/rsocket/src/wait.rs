//! Waiting for what several descriptors and other threads may bring.
//!
//! A thread that waits for a socket polls the descriptors of its completion and event channel. Another thread may
//! take an event from them that the first one waits for, so it tells those who wait: each has an eventfd.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};

use rdmacm::errno::{Errno, Result};

/// Locks. A panic elsewhere does not make the data unusable: nothing is left half-changed.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How long a thread looks for completions before it sleeps: less than being woken takes.
const SPIN: Duration = Duration::from_micros(20);
/// A thread that asks again and again without waiting lets others run from time to time: the peer may need its core.
const YIELD_EVERY: u32 = 64;

/// A thread that waits, as the others see it.
pub(crate) struct Waiter(OwnedFd);

thread_local! {
    /// Made at the first wait of the thread.
    static OWN: std::cell::RefCell<Option<Arc<Waiter>>> = const { std::cell::RefCell::new(None) };
}

impl Waiter {
    /// The calling thread's.
    pub(crate) fn own() -> Result<Arc<Self>> {
        OWN.with_borrow_mut(|own| {
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

    /// Forgets that it was woken.
    pub(crate) fn reset(&self) {
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// The threads that wait for a socket.
#[derive(Default)]
pub(crate) struct Waiters(Vec<Weak<Waiter>>);

impl Waiters {
    pub(crate) fn add(&mut self, waiter: &Arc<Waiter>) {
        self.0.retain(|w| w.strong_count() > 0);
        let known = self.0.iter().any(|w| w.as_ptr() == Arc::as_ptr(waiter));
        if !known {
            self.0.push(Arc::downgrade(waiter));
        }
    }

    /// Wakes all but the calling thread: they look again.
    pub(crate) fn wake_others(&mut self) {
        if self.0.is_empty() {
            return;
        }
        let own = OWN.with_borrow(|own| own.as_ref().map_or(std::ptr::null(), Arc::as_ptr));
        for waiter in self.0.drain(..).filter_map(|w| w.upgrade()) {
            if Arc::as_ptr(&waiter) != own {
                waiter.wake();
            }
        }
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

    /// From the timeout of `poll(2)`: negative is never.
    pub(crate) fn from_poll(timeout_ms: i32) -> Self {
        u64::try_from(timeout_ms).map_or(Self::NEVER, |ms| Self::after(Duration::from_millis(ms)))
    }

    /// This one, or `duration` from now, whichever comes first.
    pub(crate) fn sooner(self, duration: Duration) -> Self {
        let soon = Instant::now().checked_add(duration);
        Self(match (self.0, soon) {
            (Some(at), Some(soon)) => Some(at.min(soon)),
            (at, soon) => at.or(soon),
        })
    }

    pub(crate) fn has_passed(self) -> bool {
        self.0.is_some_and(|at| at <= Instant::now())
    }

    /// As a timeout of `poll(2)`, rounded up.
    pub(crate) fn timeout_ms(self) -> i32 {
        match self.0 {
            None => -1,
            Some(at) => {
                let left = at.saturating_duration_since(Instant::now());
                i32::try_from(left.as_micros().div_ceil(1000)).unwrap_or(i32::MAX)
            }
        }
    }
}

/// What is behind a socket's lock, as far as threads wait for it.
pub(crate) trait Waitable {
    /// Takes what has come, and tells those who wait.
    fn progress(&mut self);

    /// Which of the events of `poll(2)` there are.
    fn events(&mut self, asked: libc::c_short) -> libc::c_short;

    /// Makes the descriptors tell of what comes from now on; says whether something may have come in the meantime.
    fn arm(&mut self) -> bool;

    /// The descriptors that become readable when something happens.
    fn descriptors(&self) -> Vec<libc::pollfd>;

    /// Those who wait.
    fn waiters(&mut self) -> &mut Waiters;

    /// Whether calls wait.
    fn blocking(&mut self) -> &mut Blocking;
}

/// Whether a socket's calls wait, and how many that do not wait have found nothing.
pub(crate) struct Blocking {
    never: bool,
    empty_calls: u32,
}

impl Blocking {
    pub(crate) fn new(nonblocking: bool) -> Self {
        Self {
            never: nonblocking,
            empty_calls: 0,
        }
    }

    /// Calls do not wait.
    pub(crate) fn never(&self) -> bool {
        self.never
    }
}

/// Waits until `ready` gives something.
///
/// # Errors
/// `EAGAIN` at the deadline, `EINTR` when a signal came.
pub(crate) fn until<S: Waitable, T>(
    socket: &Mutex<S>,
    deadline: Deadline,
    mut ready: impl FnMut(&mut S) -> Option<T>,
) -> Result<T> {
    let mut spin_until = None;
    loop {
        let mut fds = {
            let mut inner = lock(socket);
            inner.progress();
            if let Some(found) = ready(&mut inner) {
                return Ok(found);
            }
            let now = Instant::now();
            if *spin_until.get_or_insert(now + SPIN) > now {
                drop(inner);
                // The peer may need this core.
                std::thread::yield_now();
                continue;
            }
            let waiter = Waiter::own()?;
            waiter.reset();
            inner.waiters().add(&waiter);
            // What came before the queue was armed makes no event.
            if inner.arm()
                && let Some(found) = ready(&mut inner)
            {
                return Ok(found);
            }
            let mut fds = inner.descriptors();
            fds.push(for_reading(waiter.fd()));
            fds
        };
        if poll(&mut fds, deadline)? == 0 && deadline.has_passed() {
            return Err(Errno(libc::EAGAIN));
        }
    }
}

/// As [`until`], for calls that do not wait where the socket or the flags say so.
pub(crate) fn unless_nonblocking<S: Waitable, T>(
    socket: &Mutex<S>,
    flags: i32,
    mut ready: impl FnMut(&mut S) -> Option<T>,
) -> Result<T> {
    {
        let mut inner = lock(socket);
        inner.progress();
        if let Some(found) = ready(&mut inner) {
            return Ok(found);
        }
        let blocking = inner.blocking();
        if blocking.never || flags & libc::MSG_DONTWAIT != 0 {
            blocking.empty_calls = blocking.empty_calls.wrapping_add(1);
            let yields = blocking.empty_calls.is_multiple_of(YIELD_EVERY);
            drop(inner);
            if yields {
                std::thread::yield_now();
            }
            return Err(Errno(libc::EAGAIN));
        }
    }
    until(socket, Deadline::NEVER, ready)
}

/// For `poll`: which of `events` there are; with a waiter, the descriptors that say when there are more go to `fds`.
pub(crate) fn poll_events<S: Waitable>(
    socket: &Mutex<S>,
    events: libc::c_short,
    waiter: Option<&Arc<Waiter>>,
    fds: &mut Vec<libc::pollfd>,
) -> libc::c_short {
    let mut inner = lock(socket);
    inner.progress();
    let found = inner.events(events);
    let Some(waiter) = waiter.filter(|_| found == 0) else {
        return found;
    };
    inner.waiters().add(waiter);
    let found = if inner.arm() { inner.events(events) } else { 0 };
    if found == 0 {
        fds.extend(inner.descriptors());
    }
    found
}

/// A descriptor to be polled for reading.
pub(crate) fn for_reading(fd: RawFd) -> libc::pollfd {
    libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    }
}

/// `poll(2)`.
///
/// # Errors
/// What it says: `EINTR` when a signal came.
pub(crate) fn poll(fds: &mut [libc::pollfd], deadline: Deadline) -> Result<usize> {
    let _hold_off = cancellation::HoldOff::new();
    let count = libc::nfds_t::try_from(fds.len()).unwrap_or(0);
    // SAFETY: as many entries as are said.
    let ready = unsafe { libc::poll(fds.as_mut_ptr(), count, deadline.timeout_ms()) };
    usize::try_from(ready).map_err(|_| Errno::from(std::io::Error::last_os_error()))
}
