//! Sets of descriptors to wait for, as `epoll(7)`: some may be rsockets.
//!
//! The number of a set is an eventfd, so that it is no other descriptor's; it is written to when the set changes, which has
//! those who wait look again. Events are level-triggered: an rsocket has nothing that could tell an edge, so `EPOLLET`
//! reports more often than it would have to, which its users must expect anyway.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::os::fd::{IntoRawFd, RawFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};

use crate::poll::rpoll;
use crate::wait::{Deadline, for_reading, lock};
use rdmacm::errno::{Errno, INVALID, Result};

/// The events of one descriptor that a set waits for.
#[derive(Clone, Copy)]
struct Interest {
    events: u32,
    data: u64,
    /// It was reported, and `EPOLLONESHOT` asked for no more.
    silent: bool,
}

/// A set.
struct Set {
    /// Closed by [`close`], or by the program's `close(2)`: then the number may be another descriptor's.
    fd: RawFd,
    interests: Mutex<BTreeMap<RawFd, Interest>>,
}

static SETS: Mutex<BTreeMap<RawFd, Arc<Set>>> = Mutex::new(BTreeMap::new());

/// The bits of `epoll_event.events` that are those of `poll(2)`, too.
const POLL_BITS: u32 = 0x3fff;
/// A change by another thread is seen at the latest after this.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

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
    // In place of one that the program has closed by `close(2)`.
    lock(&SETS).insert(fd, Arc::new(Set { fd, interests }));
    Ok(fd)
}

impl Set {
    /// Has those who wait look again.
    fn changed(&self) {
        let one = 1u64;
        // SAFETY: eight bytes, as eventfds take.
        unsafe { libc::write(self.fd, (&raw const one).cast(), size_of::<u64>()) };
    }

    /// Those who wait have looked.
    fn seen(&self) {
        let mut count = 0u64;
        // SAFETY: room for eight bytes; the descriptor does not block.
        unsafe { libc::read(self.fd, (&raw mut count).cast(), size_of::<u64>()) };
    }
}

fn find(number: c_int) -> Result<Arc<Set>> {
    lock(&SETS).get(&number).cloned().ok_or(Errno(libc::EBADF))
}

/// Closes a set; false where the number is none.
pub(crate) fn close(number: c_int) -> bool {
    let Some(set) = lock(&SETS).remove(&number) else {
        return false;
    };
    // SAFETY: a descriptor of ours, which nobody finds any more.
    unsafe { libc::close(set.fd) };
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
    // SAFETY: asks whether the descriptor is open, and changes nothing.
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
                let new = Interest {
                    events: event.events,
                    data: event.u64,
                    silent: false,
                };
                interests.insert(fd, new);
            }
            libc::EPOLL_CTL_DEL => {
                interests.remove(&fd);
            }
            _ => return Err(INVALID),
        }
    }
    set.changed();
    Ok(())
}

/// Waits for events of a set: `epoll_wait(2)`. At most `most`, which is not 0; none at the timeout.
pub(crate) fn wait(
    number: c_int,
    most: usize,
    timeout_ms: c_int,
) -> Result<Vec<libc::epoll_event>> {
    let set = find(number)?;
    let deadline = Deadline::from_poll(timeout_ms);
    loop {
        let mut fds = vec![for_reading(number)];
        fds.extend(lock(&set.interests).iter().filter(|(_, i)| !i.silent).map(
            |(&fd, interest)| libc::pollfd {
                fd,
                #[allow(clippy::cast_possible_truncation)] // 14 bits
                events: (interest.events & POLL_BITS) as libc::c_short,
                revents: 0,
            },
        ));
        rpoll(&mut fds, deadline.sooner(LOOK_AGAIN).timeout_ms())?;
        set.seen();
        if fds.first().is_some_and(|f| f.revents & libc::POLLNVAL != 0) {
            return Err(Errno(libc::EBADF));
        }
        let found = take(&set, fds.get(1..).unwrap_or_default(), most);
        if !found.is_empty() || deadline.has_passed() {
            return Ok(found);
        }
    }
}

/// The events of what was polled, as far as it is still waited for.
fn take(set: &Set, polled: &[libc::pollfd], most: usize) -> Vec<libc::epoll_event> {
    let mut found = Vec::new();
    let mut interests = lock(&set.interests);
    for p in polled.iter().filter(|p| p.revents != 0) {
        if p.revents & libc::POLLNVAL != 0 {
            // A closed descriptor is in no set (`epoll(7)`).
            interests.remove(&p.fd);
            continue;
        }
        let Some(interest) = interests.get_mut(&p.fd).filter(|i| !i.silent) else {
            continue;
        };
        if found.len() == most {
            break;
        }
        interest.silent = interest.events & libc::EPOLLONESHOT as u32 != 0;
        found.push(libc::epoll_event {
            events: u32::from(p.revents.cast_unsigned()),
            u64: interest.data,
        });
    }
    found
}
