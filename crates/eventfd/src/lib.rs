//! Event descriptors that programs see, and may close.
//!
//! `ibv_comp_channel`, `ibv_context` and `rdma_event_channel` have an eventfd in a field, for `poll(2)`. A program that
//! closes it, and gets the same number for a file of its own, would find the 8 bytes of the next event in that file. With
//! a kernel behind the descriptor the event is lost, and nothing else happens.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::{Resource, getrlimit};

/// An eventfd whose number is the program's.
///
/// Events are written to a duplicate of it, which the program does not know. Both are one open file, with the same flags.
#[derive(Debug)]
pub struct EventFd {
    seen: OwnedFd,
    own: Option<OwnedFd>,
}

/// One descriptor in so many that the process may have is for duplicates: those whose number is higher are done without.
/// A program that needs nearly all that it may have gets as many channels as it would without them.
const SHARE: u64 = 4;

impl EventFd {
    /// A new one, which is closed on `execve(2)`.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE` or `ENOMEM` where there are no more descriptors.
    pub fn new(flags: EventfdFlags) -> io::Result<Self> {
        let seen = eventfd(0, flags | EventfdFlags::CLOEXEC)?;
        let most = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX) / SHARE;
        let cheap = |fd: &OwnedFd| u64::try_from(fd.as_raw_fd()).is_ok_and(|fd| fd < most);
        let own = fcntl_dupfd_cloexec(&seen, 0).ok().filter(cheap);
        Ok(Self { seen, own })
    }

    /// Its number for the program.
    #[must_use]
    pub fn number(&self) -> RawFd {
        self.seen.as_raw_fd()
    }

    /// Adds to its count: who waits for it is woken. The count is never near its limit.
    pub fn signal(&self) {
        let _ = rustix::io::write(self, &1u64.to_ne_bytes());
    }

    /// Takes its count, or 1 of it if it is a semaphore; does not wait. False where it is 0.
    ///
    /// Nobody else takes of it meanwhile.
    #[must_use]
    pub fn take(&self) -> bool {
        let readable = poll(
            &mut [PollFd::new(self, PollFlags::IN)],
            Some(&Timespec::default()),
        );
        readable.is_ok_and(|n| n > 0) && rustix::io::read(self, &mut [0u8; 8]).is_ok()
    }
}

/// The duplicate, where there is one.
impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.own.as_ref().unwrap_or(&self.seen).as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

    #[test]
    fn what_the_program_sees_is_what_is_signalled() {
        let fd = EventFd::new(EventfdFlags::SEMAPHORE).unwrap();
        let own = fd.own.as_ref().expect("tests have descriptors");
        assert_ne!(own.as_raw_fd(), fd.number());
        fcntl_setfl(&fd.seen, OFlags::NONBLOCK).unwrap();
        assert!(fcntl_getfl(&fd).unwrap().contains(OFlags::NONBLOCK));
        assert!(!fd.take());
        fd.signal();
        fd.signal();
        let mut count = [0; 8];
        rustix::io::read(&fd.seen, &mut count).unwrap();
        assert_eq!(u64::from_ne_bytes(count), 1);
        assert!(fd.take() && !fd.take());
    }
}
