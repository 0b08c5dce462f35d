//! `splice(2)` between a connection and a pipe, by copying.

use std::io;

use libc::{c_int, c_uint, iovec};

use crate::conn::Conn;
use crate::destination::Destination;
use crate::iovec_cursor::IovecCursor;
use crate::not_rdma_reason::NotRdmaReason;
use crate::pipe::{self, OwnPipe};
use crate::real_libc;
use crate::receiving::ReceiveAttempt;

/// Bytes of a pipe that are copied at a time.
const COPY_BYTES: usize = 64 * 1024;

impl Conn {
    /// Moves received bytes into a pipe as `splice(2)` does. `by_kernel` is that call, for a connection on TCP.
    ///
    /// # Errors
    /// The errors of `splice(2)`. No byte is taken for which the pipe has no room.
    pub(crate) fn splice_to_pipe(
        &self,
        fd: c_int,
        pipe: c_int,
        len: usize,
        flags: c_uint,
        by_kernel: impl Fn() -> io::Result<usize>,
    ) -> io::Result<usize> {
        let to = Destination::Pipe { fd: pipe, len };
        let got = loop {
            if let Some(got) = self.recv_by_kernel_if_tcp(fd, 0, &by_kernel) {
                return got;
            }
            // As in the kernel, room comes first.
            pipe::wait_for_room(pipe, may_wait(pipe, flags))?;
            match self.try_recv(fd, to, 0) {
                ReceiveAttempt::Bytes(n) => break Ok(n),
                ReceiveAttempt::EndOfStream => break Ok(0),
                ReceiveAttempt::Failed(errno) => break Err(real_libc::fail(errno)),
                ReceiveAttempt::Tcp => break by_kernel(),
                ReceiveAttempt::NoRoomInPipe => {}
                ReceiveAttempt::Retry => std::thread::yield_now(),
                ReceiveAttempt::WouldBlock => self.wait_for_data(fd, 0)?,
            }
        };
        self.kept_error_instead_of_end(got)
    }

    /// Sends bytes of a pipe as `splice(2)` does. `by_kernel` is that call, for a connection on TCP.
    ///
    /// # Errors
    /// The errors of `splice(2)`. Only bytes that were sent are taken from the pipe.
    pub(crate) fn splice_from_pipe(
        &self,
        fd: c_int,
        pipe: c_int,
        len: usize,
        flags: c_uint,
        by_kernel: impl Fn() -> io::Result<usize>,
    ) -> io::Result<usize> {
        if let Some(sent) = self.send_by_kernel_unless_rdma(fd, &by_kernel) {
            return sent;
        }
        let Ok(mut own_pipe) = OwnPipe::new() else {
            // No descriptor is left to look at the bytes before they are taken.
            self.demote(fd, NotRdmaReason::NoResources);
            return by_kernel();
        };
        let mut bytes = vec![0; len.min(COPY_BYTES)];
        let mut done = 0;
        while done < len {
            let want = (len - done).min(bytes.len());
            let there = match own_pipe.peek(pipe, bytes.get_mut(..want).unwrap_or_default()) {
                Ok(0) => break,
                Ok(there) => there,
                Err(_) if done > 0 => break,
                Err(err) if err.raw_os_error() == Some(libc::EAGAIN) => {
                    pipe::wait_for_bytes(pipe, may_wait(pipe, flags))?;
                    continue;
                }
                Err(err) => return Err(err),
            };
            match self.send_bytes(fd, bytes.get(..there).unwrap_or_default(), flags) {
                Ok(sent) => {
                    pipe::discard(pipe, bytes.get_mut(..sent).unwrap_or_default());
                    done += sent;
                    if sent < there {
                        break;
                    }
                }
                Err(err) if done > 0 => {
                    real_libc::set_errno(err.raw_os_error().unwrap_or(libc::EIO));
                    self.keep_send_error();
                    break;
                }
                Err(err) => return Err(err),
            }
        }
        Ok(done)
    }

    fn send_bytes(&self, fd: c_int, bytes: &[u8], flags: c_uint) -> io::Result<usize> {
        let is_more = flags & libc::SPLICE_F_MORE != 0;
        let parts = [iovec {
            iov_base: bytes.as_ptr().cast_mut().cast(),
            iov_len: bytes.len(),
        }];
        // SAFETY: the bytes are borrowed for longer than the cursor lives, and a send only reads them.
        let from = unsafe { IovecCursor::new(&parts) };
        self.send(fd, from, if is_more { libc::MSG_MORE } else { 0 })
    }
}

/// Returns true if a call may wait for a pipe.
fn may_wait(pipe: c_int, flags: c_uint) -> bool {
    flags & libc::SPLICE_F_NONBLOCK == 0 && !real_libc::is_nonblocking(pipe)
}
