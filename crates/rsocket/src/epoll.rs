//! Sets of descriptors to wait for, as in `epoll(7)`; some may be rsockets.
//!
//! The descriptor of a set is an eventfd, so that its number is unique. A change of the set writes to the eventfd,
//! which makes waiting threads check the set again. Events are level-triggered, since rsockets cannot detect edges. So
//! `EPOLLET` reports more events than necessary, which its users must expect anyway.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::os::fd::{IntoRawFd, RawFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};

use crate::poll::rpoll;
use crate::wait::{Deadline, lock, pollfd_for_reading};
use rdmacm::errno::{Errno, INVALID, Result};

/// The events of one descriptor for which a set waits.
#[derive(Clone, Copy)]
struct DescriptorInterest {
    events: u32,
    data: u64,
    /// True after an event was reported if `EPOLLONESHOT` is set.
    is_disabled: bool,
}

/// A set of descriptors.
struct DescriptorSet {
    /// Eventfd. It is closed by [`close_if_descriptor_set`], or by the program's `close_if_descriptor_set(2)`, after
    /// which the number may belong to another descriptor.
    eventfd: RawFd,
    interests: Mutex<BTreeMap<RawFd, DescriptorInterest>>,
}

static DESCRIPTOR_SETS_BY_FD: Mutex<BTreeMap<RawFd, Arc<DescriptorSet>>> =
    Mutex::new(BTreeMap::new());

/// The bits that `epoll_event.events` and `poll(2)` share.
const BITS_SHARED_WITH_POLL: u32 = 0x3fff;
/// Longest time after which a change by another thread is noticed.
const RECHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Makes a set: `epoll_create1(2)`.
pub(crate) fn create(flags: c_int) -> Result<c_int> {
    if flags & !libc::EPOLL_CLOEXEC != 0 {
        return Err(INVALID);
    }
    let mut of_fd = EventfdFlags::NONBLOCK;
    of_fd.set(EventfdFlags::CLOEXEC, flags != 0);
    let fd = eventfd(0, of_fd)?;
    let fd = fd.into_raw_fd();
    let interests = Mutex::new(BTreeMap::new());
    // This replaces a set that the program has closed by `close(2)`.
    lock(&DESCRIPTOR_SETS_BY_FD).insert(
        fd,
        Arc::new(DescriptorSet {
            eventfd: fd,
            interests,
        }),
    );
    Ok(fd)
}

impl DescriptorSet {
    /// Makes waiting threads check the set again.
    fn notify_waiters(&self) {
        let one = 1u64;
        // SAFETY: the pointer leads to eight bytes, as eventfds require.
        unsafe { libc::write(self.eventfd, (&raw const one).cast(), size_of::<u64>()) };
    }

    /// Clears the eventfd after a check of the set.
    fn clear_notification(&self) {
        let mut count = 0u64;
        // SAFETY: room for eight bytes; the descriptor does not block.
        unsafe { libc::read(self.eventfd, (&raw mut count).cast(), size_of::<u64>()) };
    }
}

fn find(number: c_int) -> Result<Arc<DescriptorSet>> {
    lock(&DESCRIPTOR_SETS_BY_FD)
        .get(&number)
        .cloned()
        .ok_or(Errno(libc::EBADF))
}

/// Closes a set; returns false if `number` is not a set.
pub(crate) fn close_if_descriptor_set(number: c_int) -> bool {
    let Some(set) = lock(&DESCRIPTOR_SETS_BY_FD).remove(&number) else {
        return false;
    };
    // SAFETY: the descriptor belongs to the set, which no thread can find any more.
    unsafe { libc::close(set.eventfd) };
    true
}

/// Changes a set: `epoll_ctl(2)`.
pub(crate) fn control(
    number: c_int,
    op: c_int,
    fd: c_int,
    event: Option<libc::epoll_event>,
) -> Result {
    let set = find(number)?;
    if fd == number {
        return Err(INVALID);
    }
    // SAFETY: the call only checks that the descriptor is open, and changes nothing.
    if unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 {
        return Err(Errno(libc::EBADF));
    }
    {
        let mut interests = lock(&set.interests);
        let there = interests.contains_key(&fd);
        match op {
            libc::EPOLL_CTL_ADD if there => return Err(Errno(libc::EEXIST)),
            libc::EPOLL_CTL_MOD | libc::EPOLL_CTL_DEL if !there => return Err(Errno(libc::ENOENT)),
            libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD => {
                let event = event.ok_or(Errno(libc::EFAULT))?;
                let new = DescriptorInterest {
                    events: event.events,
                    data: event.u64,
                    is_disabled: false,
                };
                interests.insert(fd, new);
            }
            libc::EPOLL_CTL_DEL => {
                interests.remove(&fd);
            }
            _ => return Err(INVALID),
        }
    }
    set.notify_waiters();
    Ok(())
}

/// Waits for events of a set: `epoll_wait(2)`. Returns at most `most` events, which is not 0; none at the timeout.
pub(crate) fn wait(
    number: c_int,
    most: usize,
    timeout_ms: c_int,
) -> Result<Vec<libc::epoll_event>> {
    let set = find(number)?;
    let deadline = Deadline::from_poll_timeout_ms(timeout_ms);
    loop {
        let mut fds = vec![pollfd_for_reading(number)];
        fds.extend(
            lock(&set.interests)
                .iter()
                .filter(|(_, i)| !i.is_disabled)
                .map(|(&fd, interest)| libc::pollfd {
                fd,
                #[allow(clippy::cast_possible_truncation)] // 14 bits
                events: (interest.events & BITS_SHARED_WITH_POLL) as libc::c_short,
                revents: 0,
            }),
        );
        rpoll(
            &mut fds,
            deadline
                .or_after_if_sooner(RECHECK_INTERVAL)
                .to_poll_timeout_ms(),
        )?;
        set.clear_notification();
        if fds.first().is_some_and(|f| f.revents & libc::POLLNVAL != 0) {
            return Err(Errno(libc::EBADF));
        }
        let found = take_ready_events(&set, fds.get(1..).unwrap_or_default(), most);
        if !found.is_empty() || deadline.has_passed() {
            return Ok(found);
        }
    }
}

/// Returns the events of polled descriptors for which the set still waits.
fn take_ready_events(
    set: &DescriptorSet,
    polled: &[libc::pollfd],
    most: usize,
) -> Vec<libc::epoll_event> {
    let mut found = Vec::new();
    let mut interests = lock(&set.interests);
    for p in polled.iter().filter(|p| p.revents != 0) {
        if p.revents & libc::POLLNVAL != 0 {
            // Closed descriptors are removed from the set (`epoll(7)`).
            interests.remove(&p.fd);
            continue;
        }
        let Some(interest) = interests.get_mut(&p.fd).filter(|i| !i.is_disabled) else {
            continue;
        };
        if found.len() == most {
            break;
        }
        interest.is_disabled = interest.events & libc::EPOLLONESHOT as u32 != 0;
        found.push(libc::epoll_event {
            events: u32::from(p.revents.cast_unsigned()),
            u64: interest.data,
        });
    }
    found
}
