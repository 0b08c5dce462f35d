//! Pipes as ends of `splice(2)`, without taking a byte that has no place yet.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd};

use libc::{c_int, iovec};

use crate::real_libc::{self, fail, result};

/// The size up to which a write to a pipe with room never waits (`pipe(7)`).
const ATOMIC_WRITE_BYTES: usize = libc::PIPE_BUF;

/// Returns true if the descriptor is an end of a pipe that permits `access`: `O_RDONLY` or `O_WRONLY`.
pub(crate) fn is_pipe_open_for(fd: c_int, access: c_int) -> bool {
    // SAFETY: the commands have no argument.
    let (size, flags) = unsafe {
        (
            real_libc::fcntl(fd, libc::F_GETPIPE_SZ, 0),
            real_libc::fcntl(fd, libc::F_GETFL, 0),
        )
    };
    let mode = flags & libc::O_ACCMODE;
    size >= 0 && flags >= 0 && (mode == access || mode == libc::O_RDWR)
}

/// Waits until a pipe has room.
///
/// # Errors
/// `EAGAIN` if the pipe is full and the caller does not wait; `EPIPE` with the signal if nobody reads from the pipe.
pub(crate) fn wait_for_room(pipe: c_int, may_wait: bool) -> io::Result<()> {
    if wait_for(pipe, libc::POLLOUT, may_wait)? & libc::POLLERR == 0 {
        return Ok(());
    }
    // SAFETY: sends the signal to this thread, as a write to the pipe would.
    unsafe { libc::raise(libc::SIGPIPE) };
    Err(fail(libc::EPIPE))
}

/// Waits until a pipe has bytes, or nobody writes to it.
///
/// # Errors
/// `EAGAIN` if the pipe is empty and the caller does not wait.
pub(crate) fn wait_for_bytes(pipe: c_int, may_wait: bool) -> io::Result<()> {
    wait_for(pipe, libc::POLLIN, may_wait).map(drop)
}

fn wait_for(pipe: c_int, event: i16, may_wait: bool) -> io::Result<i16> {
    loop {
        let timeout_ms = if may_wait { -1 } else { 0 };
        match real_libc::poll_one(pipe, event, timeout_ms) {
            (0, _) => return Err(fail(libc::EAGAIN)),
            (1.., events) => return Ok(events),
            _ => {
                // `splice(2)` goes on after a handler with `SA_RESTART`, `poll(2)` never does (`signal(7)`).
                let errno = real_libc::errno();
                if errno != libc::EINTR || !real_libc::do_handlers_restart_calls() {
                    return Err(fail(errno));
                }
            }
        }
    }
}

/// Writes bytes into a pipe without waiting, also if the descriptor blocks. Returns their number.
///
/// # Errors
/// `EAGAIN` if the pipe is full; the errors of `write(2)`.
///
/// # Safety
/// The parts are readable memory.
pub(crate) unsafe fn try_write(pipe: c_int, parts: &[iovec]) -> io::Result<usize> {
    let len: usize = parts.iter().map(|part| part.iov_len).sum();
    if len > ATOMIC_WRITE_BYTES
        && let Ok(own) = OwnPipe::new()
    {
        // SAFETY: contract of this function.
        return unsafe { own.write_through(pipe, parts) };
    }
    if real_libc::poll_one(pipe, libc::POLLOUT, 0).0 == 0 {
        return Err(fail(libc::EAGAIN));
    }
    let Some(part) = parts.first() else {
        return Ok(0);
    };
    let len = part.iov_len.min(ATOMIC_WRITE_BYTES);
    // SAFETY: contract of this function.
    result(unsafe { real_libc::write(pipe, part.iov_base, len) })
}

/// Discards as many bytes of a pipe as `scratch` has. The pipe has them.
pub(crate) fn discard(pipe: c_int, scratch: &mut [u8]) {
    let mut done = 0;
    while let Some(rest) = scratch.get_mut(done..).filter(|rest| !rest.is_empty()) {
        // SAFETY: `rest` has room for as many.
        let n = unsafe { real_libc::read(pipe, rest.as_mut_ptr().cast(), rest.len()) };
        match usize::try_from(n) {
            Ok(n @ 1..) => done += n,
            Err(_) if real_libc::errno() == libc::EINTR => {}
            _ => return,
        }
    }
}

/// A pipe of this library, which never waits. The kernel moves bytes between it and a program's pipe without waiting.
pub(crate) struct OwnPipe {
    read_end: File,
    write_end: File,
}

impl OwnPipe {
    /// Creates the pipe.
    ///
    /// # Errors
    /// No descriptor is left.
    pub(crate) fn new() -> io::Result<Self> {
        let mut fds = [-1; 2];
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
        // SAFETY: room for two descriptors.
        if unsafe { libc::pipe2(fds.as_mut_ptr(), flags) } < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call above has created the descriptors for this object.
        let [read_end, write_end] = fds.map(|fd| unsafe { File::from_raw_fd(fd) });
        Ok(Self {
            read_end,
            write_end,
        })
    }

    /// Writes bytes into a program's pipe. Those for which it has no room go with this pipe.
    ///
    /// # Safety
    /// The parts are readable memory.
    unsafe fn write_through(self, pipe: c_int, parts: &[iovec]) -> io::Result<usize> {
        let (own_write, own_read) = (self.write_end.as_raw_fd(), self.read_end.as_raw_fd());
        let count = c_int::try_from(parts.len()).unwrap_or(c_int::MAX);
        // SAFETY: contract of this function.
        let there = result(unsafe { real_libc::writev(own_write, parts.as_ptr(), count) })?;
        let (none, flags) = (std::ptr::null_mut(), libc::SPLICE_F_NONBLOCK);
        // SAFETY: the offsets are NULL.
        result(unsafe { real_libc::splice(own_read, none, pipe, none, there, flags) })
    }

    /// Copies the next bytes of a pipe without taking them and without waiting. Returns their number; 0 at the end.
    ///
    /// # Errors
    /// `EAGAIN` if the pipe is empty.
    pub(crate) fn peek(&mut self, pipe: c_int, to: &mut [u8]) -> io::Result<usize> {
        let own = self.write_end.as_raw_fd();
        // SAFETY: the call has no pointers. It copies references to memory of the kernel, and takes nothing.
        let there = result(unsafe { libc::tee(pipe, own, to.len(), libc::SPLICE_F_NONBLOCK) })?;
        self.read_end
            .read_exact(to.get_mut(..there).unwrap_or_default())?;
        Ok(there)
    }
}
