//! A connection: a stream over a queue pair.

use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};

use crate::cm::{Id, News};
use crate::error::ProtocolError;
use crate::queue::{Arrival, Queue};
use crate::stream::Stream;

/// How long [`Connection::wait`] polls before it sleeps: waking takes about as long.
const SPIN: Duration = Duration::from_micros(50);

/// How far a connection is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Granted; the peer is not ready.
    Accepting,
    Open,
    /// The peer has gone. Bytes that came before can still be read.
    Ended,
    /// The peer broke the protocol, or a WR failed.
    Failed(ErrorKind),
}

/// A connection to a peer: a byte stream. [`Read`] and [`Write`] do not block.
///
/// There are two ways to wait for bytes, and for room to write:
///
/// - Call [`poll`](Self::poll) again and again. It makes no system call.
/// - Call [`arm`](Self::arm), and sleep until one of the two [descriptors](Self::fds) is readable, or becomes readable anew
///   (edge-triggered). Then read or write again.
///
/// Call [`keep_alive`](Self::keep_alive) every [`KEEP_ALIVE`](Self::KEEP_ALIVE) on the server.
///
/// Dropping a connection ends it at once, as `rdma_disconnect(3)` does.
pub struct Connection {
    // Dropped in this order: the queue pair before the id.
    queue: Queue,
    id: Id,
    stream: Stream,
    phase: Phase,
    failure: Option<String>,
    /// Something has come of which [`poll`](Self::poll) has not told.
    news: bool,
}

impl Connection {
    /// How often Valkey's server says that it is there.
    pub const KEEP_ALIVE: Duration = Duration::from_millis(3000);

    pub(crate) fn new(id: Id, queue: Queue, established: bool) -> Self {
        let stream = Stream::new(queue.own_buffer());
        let mut connection = Self {
            queue,
            id,
            stream,
            phase: if established {
                Phase::Open
            } else {
                Phase::Accepting
            },
            failure: None,
            news: false,
        };
        // An error shows at the first read.
        let _ = connection.send_commands();
        connection
    }

    /// The peer's address.
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.id.destination()
    }

    /// The descriptors that become readable once something comes, after [`arm`](Self::arm): of the completion channel, and of
    /// the channel of connection management.
    pub fn fds(&self) -> [RawFd; 2] {
        [self.queue.fd(), self.id.fd()]
    }

    /// Whether something has come since this was asked last, so that a read or a write may be worth while.
    #[inline]
    pub fn poll(&mut self) -> bool {
        self.take().is_err() | std::mem::take(&mut self.news)
    }

    /// Has the descriptors tell of what comes from now on. False if something has come already: then read or write first.
    pub fn arm(&mut self) -> bool {
        if self.queue.post_receives().is_err() || self.queue.arm().is_err() {
            return false;
        }
        let (before, _) = (self.phase, self.take_events());
        !self.poll() && before == self.phase
    }

    /// Waits until something comes, at most so long: polls for some microseconds, then sleeps. Whether something came.
    ///
    /// # Errors
    /// Those of `poll(2)`.
    pub fn wait(&mut self, timeout: Duration) -> io::Result<bool> {
        let begun = Instant::now();
        while begun.elapsed() < timeout.min(SPIN) {
            if self.poll() {
                return Ok(true);
            }
            std::hint::spin_loop();
        }
        if !self.arm() {
            return Ok(true);
        }
        let left = timeout.saturating_sub(begun.elapsed());
        // Beyond what the system takes, for ever.
        let left = Timespec::try_from(left).ok();
        let (queue, id) = (self.queue.borrowed_fd(), self.id.borrowed_fd());
        let mut fds = [&queue, &id].map(|fd| PollFd::new(fd, PollFlags::IN));
        match rustix::event::poll(&mut fds, left.as_ref()) {
            Ok(ready) => Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(e) => Err(e.into()),
        }
    }

    /// Tells the peer that this end is there.
    ///
    /// # Errors
    /// Those of writing.
    pub fn keep_alive(&mut self) -> io::Result<()> {
        if self.phase == Phase::Open {
            self.stream.keep_alive();
            self.send_commands()?;
        }
        Ok(())
    }

    /// Takes completions; whether there were some.
    #[inline]
    fn take(&mut self) -> io::Result<bool> {
        if matches!(self.phase, Phase::Failed(_)) {
            self.news = true;
            return Ok(true);
        }
        let Self { queue, stream, .. } = self;
        let taken = queue.poll(|arrival| -> io::Result<()> {
            Ok(match arrival {
                Arrival::Data { imm, len } => stream.on_data(imm, len),
                Arrival::Command(bytes) => stream.on_command(&bytes),
                Arrival::Odd(len) => Err(ProtocolError::CommandLength(len)),
            }?)
        });
        match taken {
            Ok(0) => return Ok(false),
            Ok(_) => {}
            Err(e) => return Err(self.fail(e)),
        }
        self.news = true;
        if self.phase == Phase::Accepting {
            // Whoever sends is ready; the event that says so may come later.
            self.phase = Phase::Open;
        }
        self.send_commands()?;
        Ok(true)
    }

    /// Takes events of connection management.
    fn take_events(&mut self) {
        while let Some((news, _)) = self.id.next() {
            match (news, self.phase) {
                (News::Established, Phase::Accepting) => {
                    self.phase = Phase::Open;
                    let _ = self.send_commands();
                }
                (
                    News::Over | News::Refused | News::Unreachable,
                    Phase::Accepting | Phase::Open,
                ) => {
                    // What came before the end is still to be read. WRs that fail belong to the end.
                    let _ = self.take();
                    self.phase = Phase::Ended;
                }
                _ => {}
            }
        }
    }

    /// Sends control messages that are due.
    fn send_commands(&mut self) -> io::Result<()> {
        if self.phase != Phase::Open {
            return Ok(());
        }
        while self.stream.has_command() && self.queue.takes_command() {
            let Some(command) = self.stream.next_command() else {
                break;
            };
            if let Err(e) = self.queue.send(&command.encode()) {
                return Err(self.fail(e.into()));
            }
        }
        Ok(())
    }

    /// The connection is of no use any more: the reason, for the caller.
    fn fail(&mut self, error: io::Error) -> io::Error {
        if self.phase != Phase::Ended {
            self.phase = Phase::Failed(error.kind());
            self.failure = Some(error.to_string());
            self.queue.stop();
        }
        error
    }

    /// The error with which it failed.
    fn failure(&self, kind: ErrorKind) -> io::Error {
        let reason = self.failure.clone().unwrap_or_default();
        io::Error::new(kind, reason)
    }
}

impl Read for Connection {
    /// Reads what has come; 0 when the peer has gone and everything was read.
    ///
    /// # Errors
    /// [`ErrorKind::WouldBlock`] when nothing has come; [`ErrorKind::InvalidData`] when the peer broke the protocol
    /// ([`ProtocolError`]); [`ErrorKind::ConnectionReset`] when a WR failed.
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.stream.readable().1 == 0 && self.phase != Phase::Ended {
            self.take()?;
        }
        let (offset, there) = self.stream.readable();
        if there > 0 && !into.is_empty() {
            let len = u32::try_from(into.len()).unwrap_or(u32::MAX).min(there);
            let part = into.get_mut(..usize::try_from(len).unwrap_or(0));
            self.queue.read(offset, part.unwrap_or_default());
            self.stream.consume(len);
            self.send_commands()?;
            return Ok(usize::try_from(len).unwrap_or(0));
        }
        self.take_events();
        match self.phase {
            Phase::Failed(kind) => Err(self.failure(kind)),
            // An event may have come after the last bytes.
            _ if self.stream.readable().1 > 0 && !into.is_empty() => self.read(into),
            Phase::Ended => Ok(0),
            Phase::Accepting | Phase::Open => Err(ErrorKind::WouldBlock.into()),
        }
    }
}

impl Write for Connection {
    /// Sends as much as the peer's buffer has room for now.
    ///
    /// # Errors
    /// [`ErrorKind::WouldBlock`] when it has none; [`ErrorKind::BrokenPipe`] when the peer has gone; else as reading.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut done = 0;
        while let Some(rest) = bytes.get(done..).filter(|rest| !rest.is_empty()) {
            let mut room = self.queue.room(rest.len());
            if room == 0 || self.stream.writable() == 0 {
                self.take()?;
                room = self.queue.room(rest.len());
            }
            match self.phase {
                Phase::Failed(kind) => return Err(self.failure(kind)),
                Phase::Ended => return Err(ErrorKind::BrokenPipe.into()),
                Phase::Accepting | Phase::Open => {}
            }
            // A part that the peer has room for may fit where the whole does not.
            let most = room.min(self.stream.writable());
            let Some(piece) = self.stream.write(most) else {
                break;
            };
            let part = usize::try_from(piece.len).unwrap_or(0);
            let part = rest.get(..part).unwrap_or_default();
            if let Err(e) = self.queue.write(part, piece) {
                return Err(self.fail(e.into()));
            }
            done += part.len();
        }
        if done > 0 || bytes.is_empty() {
            return Ok(done);
        }
        self.take_events();
        match self.phase {
            Phase::Ended => Err(ErrorKind::BrokenPipe.into()),
            _ => Err(ErrorKind::WouldBlock.into()),
        }
    }

    /// Nothing is held back.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.id.disconnect();
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("peer", &self.peer_addr())
            .field("phase", &self.phase)
            .field("stream", &self.stream)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
