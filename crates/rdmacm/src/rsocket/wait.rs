//! Waiting for what several descriptors and other threads may bring.
//!
//! A thread that waits for a socket polls the descriptors of its completion and event channel. Another thread may
//! take an event from them that the first one waits for, so it tells those who wait: each has an eventfd.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};

use crate::errno::{Errno, Result};

/// A thread that waits, as the others see it.
pub(super) struct Waiter(OwnedFd);

thread_local! {
    /// Made at the first wait of the thread.
    static OWN: std::cell::RefCell<Option<Arc<Waiter>>> = const { std::cell::RefCell::new(None) };
}

impl Waiter {
    /// The calling thread's.
    pub(super) fn own() -> Result<Arc<Self>> {
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

    pub(super) fn wake(&self) {
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Forgets that it was woken.
    pub(super) fn reset(&self) {
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }

    pub(super) fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// The threads that wait for a socket.
#[derive(Default)]
pub(super) struct Waiters(Vec<Weak<Waiter>>);

impl Waiters {
    pub(super) fn add(&mut self, waiter: &Arc<Waiter>) {
        self.0.retain(|w| w.strong_count() > 0);
        let known = self.0.iter().any(|w| w.as_ptr() == Arc::as_ptr(waiter));
        if !known {
            self.0.push(Arc::downgrade(waiter));
        }
    }

    /// Wakes all but the calling thread: they look again.
    pub(super) fn wake_others(&mut self) {
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
pub(super) struct Deadline(Option<Instant>);

impl Deadline {
    pub(super) const NEVER: Self = Self(None);

    pub(super) fn after(duration: Duration) -> Self {
        Self(Instant::now().checked_add(duration))
    }

    /// From the timeout of `poll(2)`: negative is never.
    pub(super) fn from_poll(timeout_ms: i32) -> Self {
        u64::try_from(timeout_ms).map_or(Self::NEVER, |ms| Self::after(Duration::from_millis(ms)))
    }

    pub(super) fn has_passed(self) -> bool {
        self.0.is_some_and(|at| at <= Instant::now())
    }

    /// As a timeout of `poll(2)`, rounded up.
    fn timeout_ms(self) -> i32 {
        match self.0 {
            None => -1,
            Some(at) => {
                let left = at.saturating_duration_since(Instant::now());
                i32::try_from(left.as_micros().div_ceil(1000)).unwrap_or(i32::MAX)
            }
        }
    }
}

/// `poll(2)`.
///
/// # Errors
/// What it says: `EINTR` when a signal came.
pub(super) fn poll(fds: &mut [libc::pollfd], deadline: Deadline) -> Result<usize> {
    let count = libc::nfds_t::try_from(fds.len()).unwrap_or(0);
    // SAFETY: as many entries as are said.
    let ready = unsafe { libc::poll(fds.as_mut_ptr(), count, deadline.timeout_ms()) };
    usize::try_from(ready).map_err(|_| Errno::from(std::io::Error::last_os_error()))
}
