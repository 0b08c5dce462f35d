//! A connection: a stream over a queue pair.

use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};

use crate::cm::{CmEventKind, OwnedCmId};
use crate::connected_qp::{ConnectedQp, PeerArrival};
use crate::error::ProtocolError;
use crate::shared_channels::Membership;
use crate::stream::ByteStream;

/// The time that [`Connection::wait_for_arrival`] polls before sleeping; waking takes about as long.
const POLL_TIME_BEFORE_SLEEP: Duration = Duration::from_micros(50);

/// The state of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ConnectionPhase {
    /// Accepted by this end; the peer is not ready yet.
    AcceptedAwaitingPeer,
    Open,
    /// The peer has disconnected. Bytes that arrived before can still be read.
    Disconnected,
    /// The peer violated the protocol, or a WR failed.
    Failed(ErrorKind),
}

/// A connection to a peer: a byte stream. [`Read`] and [`Write`] do not block.
///
/// A program can wait for bytes, and for room to write, in two ways:
///
/// - Call [`poll`](Self::poll) repeatedly. It makes no system call.
/// - Call [`arm_unless_arrived`](Self::arm_unless_arrived), and sleep until one of the two [descriptors](Self::fds) becomes
///   readable (edge-triggered). Then read or write again. If the descriptors are
///   [shared](crate::Connector::with_shared_descriptors), [`Connector::take_ready`](crate::Connector::take_ready) reports
///   the [key](Self::set_key) of the connection.
///
/// A server calls [`send_keep_alive`](Self::send_keep_alive) every [`KEEP_ALIVE_INTERVAL`](Self::KEEP_ALIVE_INTERVAL).
///
/// Dropping a connection ends it at once, as `rdma_disconnect(3)` does.
pub struct Connection {
    // Fields are dropped in this order: the queue pair must be destroyed before the id, and events of the id must not
    // find the connection while the id is destroyed.
    qp: ConnectedQp,
    /// The membership in the shared channels; `None` if the channels are of this connection alone.
    membership: Option<Membership>,
    id: OwnedCmId,
    stream: ByteStream,
    phase: ConnectionPhase,
    failure: Option<String>,
    /// True if an arrival has not been reported by [`poll`](Self::poll) yet.
    has_unreported_arrival: bool,
}

impl Connection {
    /// The interval of the keepalive messages of Valkey's server.
    pub const KEEP_ALIVE_INTERVAL: Duration = Duration::from_millis(3000);

    pub(crate) fn new(
        id: OwnedCmId,
        queue: ConnectedQp,
        membership: Option<Membership>,
        established: bool,
    ) -> Self {
        let stream = ByteStream::new(queue.own_announced_buffer());
        let mut connection = Self {
            qp: queue,
            membership,
            id,
            stream,
            phase: if established {
                ConnectionPhase::Open
            } else {
                ConnectionPhase::AcceptedAwaitingPeer
            },
            failure: None,
            has_unreported_arrival: false,
        };
        // An error is reported at the first read.
        let _ = connection.send_commands();
        connection
    }

    /// Returns the peer's address.
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.id.destination()
    }

    /// Returns the descriptors that become readable at the next arrival after
    /// [`arm_unless_arrived`](Self::arm_unless_arrived): those of the completion channel and of the event channel.
    pub fn fds(&self) -> [RawFd; 2] {
        match &self.membership {
            Some(membership) => membership.fds(),
            None => [self.qp.fd(), self.id.fd()],
        }
    }

    /// Returns true if the descriptors are shared with other connections.
    pub fn shares_descriptors(&self) -> bool {
        self.membership.is_some()
    }

    /// Sets the key by which [`Connector::take_ready`](crate::Connector::take_ready) reports the connection, 0 at first.
    /// Without effect if the descriptors are not shared.
    pub fn set_key(&self, key: usize) {
        if let Some(membership) = &self.membership {
            membership.set_key(key);
        }
    }

    /// Returns true if anything arrived since the last call, so that a read or a write may succeed.
    #[inline]
    pub fn poll(&mut self) -> bool {
        self.process_completions().is_err() | std::mem::take(&mut self.has_unreported_arrival)
    }

    /// Arms the descriptors for the next arrival. Returns false if something has already arrived;
    /// then read or write first.
    pub fn arm_unless_arrived(&mut self) -> bool {
        if self.qp.repost_used_receives().is_err()
            || self.qp.arm_cq(self.membership.is_none()).is_err()
        {
            return false;
        }
        let (before, _) = (self.phase, self.process_cm_events());
        !self.poll() && before == self.phase
    }

    /// Waits for an arrival, at most `timeout`: polls for some microseconds, then sleeps. Returns
    /// true if something arrived.
    ///
    /// # Errors
    /// The errors of `poll(2)`; [`ErrorKind::Unsupported`] if the descriptors are shared.
    pub fn wait_for_arrival(&mut self, timeout: Duration) -> io::Result<bool> {
        if self.shares_descriptors() {
            return Err(ErrorKind::Unsupported.into());
        }
        let begun = Instant::now();
        while begun.elapsed() < timeout.min(POLL_TIME_BEFORE_SLEEP) {
            if self.poll() {
                return Ok(true);
            }
            std::hint::spin_loop();
        }
        if !self.arm_unless_arrived() {
            return Ok(true);
        }
        let left = timeout.saturating_sub(begun.elapsed());
        // A timeout that exceeds the system's range is unlimited.
        let left = Timespec::try_from(left).ok();
        let (queue, id) = (self.qp.borrowed_fd(), self.id.borrowed_fd());
        let mut fds = [&queue, &id].map(|fd| PollFd::new(fd, PollFlags::IN));
        match rustix::event::poll(&mut fds, left.as_ref()) {
            Ok(ready) => Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(e) => Err(e.into()),
        }
    }

    /// Tells the peer that this end is alive.
    ///
    /// # Errors
    /// The errors of writing.
    pub fn send_keep_alive(&mut self) -> io::Result<()> {
        if self.phase == ConnectionPhase::Open {
            self.stream.queue_keep_alive();
            self.send_commands()?;
        }
        Ok(())
    }

    /// Processes completions; returns true if any were found.
    #[inline]
    fn process_completions(&mut self) -> io::Result<bool> {
        if matches!(self.phase, ConnectionPhase::Failed(_)) {
            self.has_unreported_arrival = true;
            return Ok(true);
        }
        let Self {
            qp: queue, stream, ..
        } = self;
        let taken = queue.poll(|arrival| -> io::Result<()> {
            Ok(match arrival {
                PeerArrival::Data { imm, len } => stream.on_data(imm, len),
                PeerArrival::Command(bytes) => stream.on_command(&bytes),
                PeerArrival::CommandOfWrongLength(len) => {
                    Err(ProtocolError::WrongCommandLength(len))
                }
            }?)
        });
        match taken {
            Ok(0) => return Ok(false),
            Ok(_) => {}
            Err(e) => return Err(self.fail(e)),
        }
        self.has_unreported_arrival = true;
        if self.phase == ConnectionPhase::AcceptedAwaitingPeer {
            // A peer that sends is ready, even if its ESTABLISHED event comes later.
            self.phase = ConnectionPhase::Open;
        }
        self.send_commands()?;
        Ok(true)
    }

    /// Processes connection management events.
    fn process_cm_events(&mut self) {
        while let Some(news) = self.next_cm_event() {
            match (news, self.phase) {
                (CmEventKind::Established, ConnectionPhase::AcceptedAwaitingPeer) => {
                    self.phase = ConnectionPhase::Open;
                    let _ = self.send_commands();
                }
                (
                    CmEventKind::Disconnected | CmEventKind::Refused | CmEventKind::Unreachable,
                    ConnectionPhase::AcceptedAwaitingPeer | ConnectionPhase::Open,
                ) => {
                    // Bytes that arrived before the end can still be read. WRs fail because of the
                    // end.
                    let _ = self.process_completions();
                    self.phase = ConnectionPhase::Disconnected;
                }
                _ => {}
            }
        }
    }

    fn next_cm_event(&self) -> Option<CmEventKind> {
        match &self.membership {
            Some(membership) => membership.next_cm_event(),
            None => self.id.next().map(|(kind, _)| kind),
        }
    }

    /// Sends the pending control messages.
    fn send_commands(&mut self) -> io::Result<()> {
        if self.phase != ConnectionPhase::Open {
            return Ok(());
        }
        while self.stream.has_command() && self.qp.has_command_room() {
            let Some(command) = self.stream.take_next_command() else {
                break;
            };
            if let Err(e) = self.qp.send_command(&command.encode()) {
                return Err(self.fail(e.into()));
            }
        }
        Ok(())
    }

    /// Marks the connection as failed; returns the error for the caller.
    fn fail(&mut self, error: io::Error) -> io::Error {
        if self.phase != ConnectionPhase::Disconnected {
            self.phase = ConnectionPhase::Failed(error.kind());
            self.failure = Some(error.to_string());
            self.qp.move_to_error_state();
        }
        error
    }

    /// Returns the error with which the connection failed.
    fn failure(&self, kind: ErrorKind) -> io::Error {
        let reason = self.failure.clone().unwrap_or_default();
        io::Error::new(kind, reason)
    }
}

impl Read for Connection {
    /// Reads the bytes that have arrived; returns 0 when the peer has disconnected and everything
    /// was read.
    ///
    /// # Errors
    /// [`ErrorKind::WouldBlock`] if nothing has arrived; [`ErrorKind::InvalidData`] if the peer
    /// violated the protocol ([`ProtocolError`]); [`ErrorKind::ConnectionReset`] if a WR failed.
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.stream.unread_offset_and_len().1 == 0 && self.phase != ConnectionPhase::Disconnected
        {
            self.process_completions()?;
        }
        let (offset, there) = self.stream.unread_offset_and_len();
        if there > 0 && !into.is_empty() {
            let len = u32::try_from(into.len()).unwrap_or(u32::MAX).min(there);
            let part = into.get_mut(..usize::try_from(len).unwrap_or(0));
            self.qp
                .copy_from_receive_buffer(offset, part.unwrap_or_default());
            self.stream.consume(len);
            self.send_commands()?;
            return Ok(usize::try_from(len).unwrap_or(0));
        }
        self.process_cm_events();
        match self.phase {
            ConnectionPhase::Failed(kind) => Err(self.failure(kind)),
            // More bytes may have arrived before the disconnect event.
            _ if self.stream.unread_offset_and_len().1 > 0 && !into.is_empty() => self.read(into),
            ConnectionPhase::Disconnected => Ok(0),
            ConnectionPhase::AcceptedAwaitingPeer | ConnectionPhase::Open => {
                Err(ErrorKind::WouldBlock.into())
            }
        }
    }
}

impl Write for Connection {
    /// Sends as many bytes as the peer's buffer has room for now.
    ///
    /// # Errors
    /// [`ErrorKind::WouldBlock`] if the buffer has no room; [`ErrorKind::BrokenPipe`] if the peer
    /// has disconnected; otherwise the errors of reading.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut done = 0;
        while let Some(rest) = bytes.get(done..).filter(|rest| !rest.is_empty()) {
            let mut room = self.qp.max_bytes_of_next_write(rest.len());
            if room == 0 || self.stream.free_peer_buffer_bytes() == 0 {
                self.process_completions()?;
                room = self.qp.max_bytes_of_next_write(rest.len());
            }
            match self.phase {
                ConnectionPhase::Failed(kind) => return Err(self.failure(kind)),
                ConnectionPhase::Disconnected => return Err(ErrorKind::BrokenPipe.into()),
                ConnectionPhase::AcceptedAwaitingPeer | ConnectionPhase::Open => {}
            }
            // A shorter piece may be inline, or fit the staging memory, although the whole does
            // not.
            let most = room.min(self.stream.free_peer_buffer_bytes());
            let Some(piece) = self.stream.reserve_write(most) else {
                break;
            };
            let part = usize::try_from(piece.len).unwrap_or(0);
            let part = rest.get(..part).unwrap_or_default();
            if let Err(e) = self.qp.write(part, piece) {
                return Err(self.fail(e.into()));
            }
            done += part.len();
        }
        if done > 0 || bytes.is_empty() {
            return Ok(done);
        }
        self.process_cm_events();
        match self.phase {
            ConnectionPhase::Disconnected => Err(ErrorKind::BrokenPipe.into()),
            _ => Err(ErrorKind::WouldBlock.into()),
        }
    }

    /// Does nothing, since no bytes are held back.
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
