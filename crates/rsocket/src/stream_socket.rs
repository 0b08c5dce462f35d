//! A stream socket and its calls, which wait unless the socket is non-blocking.

use std::ffi::c_int;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use verbs_abi::AF_IB;

use crate::protocol::Immediate;
use crate::stream::Stream;
use crate::stream_socket_state::{SocketPhase, StreamSocketState};
use crate::wait::{self, BlockingMode, Deadline, WaitableState, WaitingThread, lock};
use rdmacm::addr::IdAddress;
use rdmacm::device_port::DEFAULT_PKEY;
use rdmacm::errno::{Errno, INVALID, Result};
use rdmacm::{IbAddr, id_lifecycle, resolve};

/// Time that `rclose` waits until the peer has received all data.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// An accepted socket, its descriptor, and the peer's address.
type AcceptedSocket = (Arc<StreamSocket>, RawFd, IdAddress);

/// A stream socket.
pub(crate) struct StreamSocket {
    domain: c_int,
    state: Mutex<StreamSocketState>,
}

impl StreamSocket {
    /// Makes a socket; returns the socket and its descriptor.
    pub(crate) fn new(domain: c_int, nonblocking: bool) -> Result<(Arc<Self>, RawFd)> {
        Ok(Self::from_state(
            domain,
            StreamSocketState::new(nonblocking)?,
        ))
    }

    fn from_state(domain: c_int, session: StreamSocketState) -> (Arc<Self>, RawFd) {
        let fd = session.cm_event_channel.raw_fd();
        let session = Mutex::new(session);
        (
            Arc::new(Self {
                domain,
                state: session,
            }),
            fd,
        )
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, StreamSocketState> {
        lock(&self.state)
    }

    /// Implements `close(2)`, after delivery of all sent data.
    pub(crate) fn close(&self) {
        {
            let mut session = self.lock();
            session.process_completions_and_events();
            if let Some(stream) = &mut session.stream {
                stream.send_control(Immediate::Disconnect);
                stream.has_shut_down = true;
            }
        }
        // Neither an unresponsive peer nor a signal may keep the close waiting beyond the deadline.
        let deadline = Deadline::after(CLOSE_TIMEOUT);
        while !deadline.has_passed() {
            let sent = |session: &mut StreamSocketState| {
                session
                    .stream
                    .as_ref()
                    .is_none_or(Stream::all_sent_or_has_ended)
            };
            match self.wait(deadline, |session| sent(session).then_some(())) {
                Err(Errno(libc::EINTR)) => {}
                _ => break,
            }
        }
        self.lock().destroy_id_and_qp();
    }

    fn wait<T>(
        &self,
        deadline: Deadline,
        ready: impl FnMut(&mut StreamSocketState) -> Option<T>,
    ) -> Result<T> {
        wait::wait_until(&self.state, deadline, ready)
    }

    fn wait_unless_nonblocking<T>(
        &self,
        flags: c_int,
        ready: impl FnMut(&mut StreamSocketState) -> Option<T>,
    ) -> Result<T> {
        wait::wait_unless_nonblocking(&self.state, flags, ready)
    }

    // Addresses and connections.

    pub(crate) fn bind(&self, addr: IdAddress) -> Result {
        let session = self.lock();
        let id = session.cm_id()?;
        id.set_bind_options(session.reuse_address != 0, session.v6only != 0);
        resolve::bind(id, addr)
    }

    pub(crate) fn listen(&self, backlog: c_int) -> Result {
        let mut session = self.lock();
        if session.phase == SocketPhase::Listening {
            return Ok(());
        }
        let id = session.cm_id()?;
        if id.source().is_none() {
            resolve::bind(id, self.any_address())?;
        }
        id_lifecycle::listen(id, backlog)?;
        session.phase = SocketPhase::Listening;
        Ok(())
    }

    fn any_address(&self) -> IdAddress {
        match self.domain {
            AF_IB => IdAddress::Ib(IbAddr::new([0; 16], DEFAULT_PKEY)),
            libc::AF_INET6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED).into(),
            _ => IpAddr::V4(Ipv4Addr::UNSPECIFIED).into(),
        }
    }

    pub(crate) fn connect(&self, addr: IdAddress) -> Result {
        {
            let mut session = self.lock();
            session.process_completions_and_events();
            match session.phase {
                SocketPhase::New => {}
                SocketPhase::Connecting | SocketPhase::Accepting => {
                    return Err(Errno(libc::EALREADY));
                }
                SocketPhase::Connected => return Err(Errno(libc::EISCONN)),
                SocketPhase::FailedToConnect => {
                    return Err(session.take_so_error_or(libc::ECONNREFUSED));
                }
                SocketPhase::Listening | SocketPhase::Closed => return Err(INVALID),
            }
            session.start_connecting(addr)?;
            if session.blocking_mode.is_nonblocking() {
                return Err(Errno(libc::EINPROGRESS));
            }
        }
        self.wait(Deadline::NEVER, StreamSocketState::connect_outcome)?
    }

    /// Returns the next connection: its socket, descriptor and peer's address.
    pub(crate) fn accept(&self) -> Result<AcceptedSocket> {
        loop {
            if self.lock().phase != SocketPhase::Listening {
                return Err(INVALID);
            }
            let new = self.wait_unless_nonblocking(0, StreamSocketState::accept_next_request)?;
            let (session, peer) = new?;
            let (socket, fd) = Self::from_state(self.domain, session);
            if !self.lock().blocking_mode.is_nonblocking() {
                match socket.wait(Deadline::NEVER, StreamSocketState::connect_outcome) {
                    Ok(Ok(())) => {}
                    // The peer has closed the connection in the meantime; accept the next one.
                    Ok(Err(_)) => {
                        socket.close();
                        continue;
                    }
                    Err(e) => {
                        socket.close();
                        return Err(e);
                    }
                }
            }
            return Ok((socket, fd, peer));
        }
    }

    /// Returns the own address, or the peer's if `peer` is true.
    pub(crate) fn own_or_peer_address(&self, peer: bool) -> Result<IdAddress> {
        let session = self.lock();
        let id = session.cm_id()?;
        if peer {
            id.destination().ok_or(Errno(libc::ENOTCONN))
        } else {
            Ok(id.source().unwrap_or(self.any_address()))
        }
    }

    // Data.

    /// Implements `send(2)`: sends as much as fits, or everything if the socket blocks.
    pub(crate) fn send(&self, bytes: &[u8], flags: c_int) -> Result<usize> {
        let mut done = 0;
        loop {
            let rest = bytes.get(done..).unwrap_or_default();
            let sent =
                self.wait_unless_nonblocking(flags, |session| session.try_send(rest).transpose());
            match sent {
                Ok(Ok(n)) => done += n,
                Ok(Err(e)) | Err(e) if done == 0 => return Err(e),
                Ok(Err(_)) | Err(_) => return Ok(done),
            }
            if done == bytes.len() {
                return Ok(done);
            }
        }
    }

    /// Implements `recv(2)`.
    pub(crate) fn recv(&self, bytes: &mut [u8], flags: c_int) -> Result<usize> {
        let peek = flags & libc::MSG_PEEK != 0;
        let all = flags & libc::MSG_WAITALL != 0 && !peek;
        let mut done = 0;
        loop {
            let rest = bytes.get_mut(done..).unwrap_or_default();
            let got = self
                .wait_unless_nonblocking(flags, |session| session.try_recv(rest, peek).transpose());
            match got {
                Ok(Ok(0)) => return Ok(done),
                Ok(Ok(n)) => done += n,
                Ok(Err(e)) | Err(e) if done == 0 => return Err(e),
                Ok(Err(_)) | Err(_) => return Ok(done),
            }
            if !all || done == bytes.len() {
                return Ok(done);
            }
        }
    }

    /// Implements `shutdown(2)`.
    pub(crate) fn shutdown(&self, how: c_int) -> Result {
        {
            let mut session = self.lock();
            session.process_completions_and_events();
            let stream = session.stream.as_mut().ok_or(Errno(libc::ENOTCONN))?;
            match how {
                libc::SHUT_RD => stream.peer_has_shut_down = true,
                libc::SHUT_WR if stream.has_shut_down => return Ok(()),
                libc::SHUT_WR if stream.peer_has_shut_down => {
                    stream.send_control(Immediate::Disconnect);
                    stream.has_shut_down = true;
                }
                libc::SHUT_WR => {
                    stream.send_control(Immediate::Shutdown);
                    stream.has_shut_down = true;
                }
                libc::SHUT_RDWR => {
                    stream.send_control(Immediate::Disconnect);
                    stream.has_shut_down = true;
                    stream.peer_has_shut_down = true;
                }
                _ => return Err(INVALID),
            }
            session.waiters.wake_all_but_this_thread();
        }
        if how != libc::SHUT_RD {
            let sent = |session: &mut StreamSocketState| {
                let all = session
                    .stream
                    .as_ref()
                    .is_none_or(Stream::all_sent_or_has_ended);
                all.then_some(())
            };
            self.wait(Deadline::after(CLOSE_TIMEOUT), sent)
                .or_else(|e| match e {
                    Errno(libc::EAGAIN) => Ok(()),
                    e => Err(e),
                })?;
        }
        Ok(())
    }

    // Buffers that the peer maps.

    /// Implements `riomap`: lets the peer write to memory of this process.
    ///
    /// # Safety
    /// The memory stays valid until it is unmapped or the socket is closed.
    pub(crate) unsafe fn iomap(
        &self,
        addr: *mut u8,
        len: usize,
        prot: c_int,
        offset: Option<u64>,
    ) -> Result<u64> {
        if len == 0 || addr.is_null() || prot & !(libc::PROT_WRITE | libc::PROT_NONE) != 0 {
            return Err(INVALID);
        }
        let writable = prot & libc::PROT_WRITE != 0;
        // SAFETY: contract of this function.
        self.wait(Deadline::NEVER, |session| unsafe {
            let mapped = match session.stream_unless_connecting() {
                Ok(Some(stream)) => stream.iomap(addr, len, writable, offset),
                Ok(None) => return None,
                Err(e) => Err(e),
            };
            match mapped {
                Err(Errno(libc::EAGAIN)) => None,
                other => Some(other),
            }
        })?
    }

    /// Implements `riounmap`.
    pub(crate) fn iounmap(&self, addr: *mut u8) -> Result {
        let mut session = self.lock();
        let stream = session.stream.as_mut().ok_or(Errno(libc::ENOTCONN))?;
        stream.iounmap(addr)
    }

    /// Implements `riowrite`: writes to memory that the peer has mapped.
    pub(crate) fn write_to_peer_mapping(
        &self,
        bytes: &[u8],
        offset: u64,
        flags: c_int,
    ) -> Result<usize> {
        let mut done = 0;
        while done < bytes.len() {
            let rest = bytes.get(done..).unwrap_or_default();
            let at = offset + done as u64;
            let written = self.wait_unless_nonblocking(flags, |session| {
                let written = match session.stream_unless_connecting() {
                    Ok(Some(stream)) => stream.write_to_peer_mapping(rest, at),
                    Ok(None) => return None,
                    Err(e) => Err(e),
                };
                match written {
                    Ok(0) => None,
                    other => Some(other),
                }
            });
            match written {
                Ok(Ok(n)) => done += n,
                Ok(Err(e)) | Err(e) if done == 0 => return Err(e),
                Ok(Err(_)) | Err(_) => break,
            }
        }
        Ok(done)
    }

    // Polling.

    /// Returns the pending events among `events`. With a waiter and no pending event, adds the descriptors that
    /// announce one to `fds`.
    pub(crate) fn poll_events(
        &self,
        events: libc::c_short,
        waiter: Option<&Arc<WaitingThread>>,
        fds: &mut Vec<libc::pollfd>,
    ) -> libc::c_short {
        wait::poll_events(&self.state, events, waiter, fds)
    }

    // Options.

    pub(crate) fn set_nonblocking(&self, nonblocking: bool) {
        self.lock().blocking_mode = BlockingMode::new(nonblocking);
    }

    pub(crate) fn is_nonblocking(&self) -> bool {
        self.lock().blocking_mode.is_nonblocking()
    }

    /// Implements `setsockopt(2)` for options whose value is an `int`.
    pub(crate) fn set_option(&self, level: c_int, name: c_int, value: c_int) -> Result {
        self.lock().set_option(level, name, value)
    }

    /// Implements `getsockopt(2)` for options whose value is an `int`.
    pub(crate) fn option(&self, level: c_int, name: c_int) -> Result<c_int> {
        self.lock().option(level, name)
    }

    /// Stores `SO_LINGER`, which has no effect: `rclose` always delivers all sent data.
    pub(crate) fn store_ineffective_linger(&self, on: c_int, seconds: c_int) {
        self.lock().ineffective_options.linger_on_and_seconds = (on, seconds);
    }

    /// Returns the stored `SO_LINGER`.
    pub(crate) fn stored_linger_on_and_seconds(&self) -> (c_int, c_int) {
        self.lock().ineffective_options.linger_on_and_seconds
    }
}
