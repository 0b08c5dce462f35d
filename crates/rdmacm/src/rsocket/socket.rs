//! A socket for streams: an id, and a stream once it is connected.

use std::ffi::{c_int, c_void};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::RawFd;
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use verbs_abi::*;

use super::options::Remembered;
use super::protocol::{ConnData, Immediate};
use super::stream::{Sizes, Stream};
use super::wait::{self, Blocking, Deadline, Waitable, Waiter, Waiters, for_reading};
use crate::addr::Addr;
use crate::channel::Channel;
use crate::device::DEFAULT_PKEY;
use crate::endpoint::Event;
use crate::errno::{Errno, INVALID, Result};
use crate::ib::IbAddr;
use crate::id::{ChannelHandle, CmId};
use crate::lock::lock;
use crate::{cm_event, connect, resolve};

/// How long `rclose` waits for a peer to take what was sent.
const LINGER: Duration = Duration::from_secs(10);

/// Where a socket is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    New,
    Listening,
    /// Has asked for a connection.
    Connecting,
    /// Has granted one.
    Accepting,
    Connected,
    /// Was refused, or cut off before it was connected.
    Failed,
    Closed,
}

pub(super) struct Inner {
    id: *mut rdma_cm_id,
    channel: Arc<Channel<Event>>,
    phase: Phase,
    /// While connected.
    pub(super) stream: Option<Stream>,
    pub(super) blocking: Blocking,
    pub(super) sizes: Sizes,
    pub(super) reuse_address: c_int,
    pub(super) v6only: c_int,
    pub(super) remembered: Remembered,
    /// What `SO_ERROR` tells.
    pub(super) error: c_int,
    waiters: Waiters,
}

// SAFETY: ids may be used from any thread; a socket's is used by whoever holds the lock.
unsafe impl Send for Inner {}

/// A socket that was just connected, its number, and the peer's address.
type New = (Arc<StreamSocket>, RawFd, Addr);

/// A socket for streams.
pub(crate) struct StreamSocket {
    domain: c_int,
    inner: Mutex<Inner>,
}

/// A channel that does not block.
fn own_channel() -> Result<(*mut rdma_event_channel, Arc<Channel<Event>>)> {
    let handle = ChannelHandle::create()?;
    // SAFETY: just made; its descriptor is open.
    unsafe {
        let flags = libc::fcntl((*handle).fd, libc::F_GETFL);
        libc::fcntl((*handle).fd, libc::F_SETFL, flags | libc::O_NONBLOCK);
        Ok((handle, ChannelHandle::channel(handle)?))
    }
}

impl StreamSocket {
    /// A socket and its number.
    pub(super) fn new(domain: c_int, nonblocking: bool) -> Result<(Arc<Self>, RawFd)> {
        crate::cm::Cm::get()?;
        // SAFETY: a new channel, and an id on it.
        let (id, channel) = unsafe {
            let (handle, channel) = own_channel()?;
            let id = connect::new_id(handle, ptr::null_mut(), RDMA_PS_TCP, IBV_QPT_RC);
            if id.is_err() {
                ChannelHandle::destroy(handle);
            }
            (id?, channel)
        };
        let inner = Inner {
            id,
            channel,
            phase: Phase::New,
            stream: None,
            blocking: Blocking::new(nonblocking),
            sizes: Sizes::default(),
            reuse_address: 0,
            v6only: 0,
            remembered: Remembered::default(),
            error: 0,
            waiters: Waiters::default(),
        };
        Ok(Self::of(domain, inner))
    }

    fn of(domain: c_int, inner: Inner) -> (Arc<Self>, RawFd) {
        let fd = inner.channel.raw_fd();
        let inner = Mutex::new(inner);
        (Arc::new(Self { domain, inner }), fd)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        lock(&self.inner)
    }

    /// `close(2)`: what was sent is delivered first.
    pub(super) fn close(&self) {
        {
            let mut inner = self.lock();
            inner.progress();
            if let Some(stream) = &mut inner.stream {
                stream.say(Immediate::Disconnect);
                stream.shut = true;
            }
        }
        // A peer that takes nothing any more must not keep this end for ever; neither must a signal.
        let deadline = Deadline::after(LINGER);
        while !deadline.has_passed() {
            let sent = |inner: &mut Inner| inner.stream.as_ref().is_none_or(Stream::all_sent);
            match self.wait(deadline, |inner| sent(inner).then_some(())) {
                Err(Errno(libc::EINTR)) => {}
                _ => break,
            }
        }
        self.lock().dispose();
    }

    fn wait<T>(&self, deadline: Deadline, ready: impl FnMut(&mut Inner) -> Option<T>) -> Result<T> {
        wait::until(&self.inner, deadline, ready)
    }

    fn wait_unless_told_not_to<T>(
        &self,
        flags: c_int,
        ready: impl FnMut(&mut Inner) -> Option<T>,
    ) -> Result<T> {
        wait::unless_told_not_to(&self.inner, flags, ready)
    }

    // Names and connections.

    pub(super) fn bind(&self, addr: Addr) -> Result {
        let inner = self.lock();
        let id = inner.cm_id()?;
        {
            let mut extra = id.extra();
            extra.reuse_address = inner.reuse_address != 0;
            extra.afonly = inner.v6only != 0;
        }
        resolve::bind(id, addr)
    }

    pub(crate) fn listen(&self, backlog: c_int) -> Result {
        let mut inner = self.lock();
        if inner.phase == Phase::Listening {
            return Ok(());
        }
        let id = inner.cm_id()?;
        if id.source().is_none() {
            resolve::bind(id, self.any_address())?;
        }
        connect::listen(id, backlog)?;
        inner.phase = Phase::Listening;
        Ok(())
    }

    fn any_address(&self) -> Addr {
        match self.domain {
            AF_IB => Addr::Ib(IbAddr::new([0; 16], DEFAULT_PKEY)),
            libc::AF_INET6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED).into(),
            _ => IpAddr::V4(Ipv4Addr::UNSPECIFIED).into(),
        }
    }

    pub(super) fn connect(&self, addr: Addr) -> Result {
        {
            let mut inner = self.lock();
            inner.progress();
            match inner.phase {
                Phase::New => {}
                Phase::Connecting | Phase::Accepting => return Err(Errno(libc::EALREADY)),
                Phase::Connected => return Err(Errno(libc::EISCONN)),
                Phase::Failed => return Err(inner.take_error(libc::ECONNREFUSED)),
                Phase::Listening | Phase::Closed => return Err(INVALID),
            }
            inner.start_connecting(addr)?;
            if inner.blocking.never() {
                return Err(Errno(libc::EINPROGRESS));
            }
        }
        self.wait(Deadline::NEVER, Inner::outcome)?
    }

    /// The next connection, its socket and the peer's address.
    pub(super) fn accept(&self) -> Result<New> {
        loop {
            if self.lock().phase != Phase::Listening {
                return Err(INVALID);
            }
            let new = self.wait_unless_told_not_to(0, |inner| inner.take_request(self.domain))?;
            let (socket, fd, peer) = new?;
            if !self.lock().blocking.never() {
                match socket.wait(Deadline::NEVER, Inner::outcome) {
                    Ok(Ok(())) => {}
                    // The peer has gone in the meantime: the next one.
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

    /// The own address, or the peer's.
    pub(super) fn name(&self, peer: bool) -> Result<Addr> {
        let inner = self.lock();
        let id = inner.cm_id()?;
        if peer {
            id.destination().ok_or(Errno(libc::ENOTCONN))
        } else {
            Ok(id.source().unwrap_or(self.any_address()))
        }
    }

    // Data.

    /// `send(2)`: as much as there is room for, all of it where the socket blocks.
    pub(super) fn send(&self, bytes: &[u8], flags: c_int) -> Result<usize> {
        let mut done = 0;
        loop {
            let rest = bytes.get(done..).unwrap_or_default();
            let sent = self.wait_unless_told_not_to(flags, |inner| inner.send(rest).transpose());
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

    /// `recv(2)`.
    pub(super) fn recv(&self, bytes: &mut [u8], flags: c_int) -> Result<usize> {
        let peek = flags & libc::MSG_PEEK != 0;
        let all = flags & libc::MSG_WAITALL != 0 && !peek;
        let mut done = 0;
        loop {
            let rest = bytes.get_mut(done..).unwrap_or_default();
            let got =
                self.wait_unless_told_not_to(flags, |inner| inner.recv(rest, peek).transpose());
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

    /// `shutdown(2)`.
    pub(super) fn shutdown(&self, how: c_int) -> Result {
        {
            let mut inner = self.lock();
            inner.progress();
            let stream = inner.stream.as_mut().ok_or(Errno(libc::ENOTCONN))?;
            match how {
                libc::SHUT_RD => stream.ended = true,
                libc::SHUT_WR if stream.shut => return Ok(()),
                libc::SHUT_WR if stream.ended => {
                    stream.say(Immediate::Disconnect);
                    stream.shut = true;
                }
                libc::SHUT_WR => {
                    stream.say(Immediate::Shutdown);
                    stream.shut = true;
                }
                libc::SHUT_RDWR => {
                    stream.say(Immediate::Disconnect);
                    stream.shut = true;
                    stream.ended = true;
                }
                _ => return Err(INVALID),
            }
            inner.waiters.wake_others();
        }
        if how != libc::SHUT_RD {
            let sent = |inner: &mut Inner| {
                let all = inner.stream.as_ref().is_none_or(Stream::all_sent);
                all.then_some(())
            };
            self.wait(Deadline::after(LINGER), sent)
                .or_else(|e| match e {
                    Errno(libc::EAGAIN) => Ok(()),
                    e => Err(e),
                })?;
        }
        Ok(())
    }

    // Buffers for the peer.

    /// `riomap`: lets the peer write into memory of this process.
    ///
    /// # Safety
    /// The memory stays until it is unmapped or the socket is closed.
    pub(crate) unsafe fn map(
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
        self.wait(Deadline::NEVER, |inner| unsafe {
            let mapped = match inner.stream_for_data() {
                Ok(Some(stream)) => stream.map(addr, len, writable, offset),
                Ok(None) => return None,
                Err(e) => Err(e),
            };
            match mapped {
                Err(Errno(libc::EAGAIN)) => None,
                other => Some(other),
            }
        })?
    }

    /// `riounmap`.
    pub(crate) fn unmap(&self, addr: *mut u8) -> Result {
        let mut inner = self.lock();
        let stream = inner.stream.as_mut().ok_or(Errno(libc::ENOTCONN))?;
        stream.unmap(addr)
    }

    /// `riowrite`: writes into memory that the peer has mapped.
    pub(crate) fn write_mapped(&self, bytes: &[u8], offset: u64, flags: c_int) -> Result<usize> {
        let mut done = 0;
        while done < bytes.len() {
            let rest = bytes.get(done..).unwrap_or_default();
            let at = offset + done as u64;
            let written = self.wait_unless_told_not_to(flags, |inner| {
                let written = match inner.stream_for_data() {
                    Ok(Some(stream)) => stream.write_mapped(rest, at),
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

    // For `poll`.

    /// Which of `events` there are; with a waiter, the descriptors that say when there are more go to `fds`.
    pub(super) fn poll_events(
        &self,
        events: libc::c_short,
        waiter: Option<&Arc<Waiter>>,
        fds: &mut Vec<libc::pollfd>,
    ) -> libc::c_short {
        wait::poll_events(&self.inner, events, waiter, fds)
    }
}

impl Waitable for Inner {
    fn progress(&mut self) {
        let mut any = false;
        if !self.channel.is_empty() && self.phase != Phase::Listening {
            any = self.take_cm_events();
        }
        if let Some(stream) = &mut self.stream {
            any |= stream.progress();
        }
        if any {
            self.waiters.wake_others();
        }
    }

    fn events(&mut self, asked: libc::c_short) -> libc::c_short {
        let (can_read, can_write, state) = match (self.phase, &self.stream) {
            (Phase::Listening, _) => (!self.channel.is_empty(), false, 0),
            (Phase::Connecting | Phase::Accepting, _) => (false, false, 0),
            (Phase::Connected, Some(stream)) => {
                let state = match stream.over {
                    // Programs take a hang-up for the end: what came before it comes first.
                    _ if stream.has_data() => 0,
                    None => 0,
                    Some(0) => libc::POLLHUP,
                    Some(_) => libc::POLLHUP | libc::POLLERR,
                };
                (stream.can_read(), stream.can_write(), state)
            }
            (Phase::Failed, _) => (true, true, libc::POLLHUP | libc::POLLERR),
            // As TCP's sockets that were never connected.
            _ => (false, true, libc::POLLHUP),
        };
        let mut found = state;
        if can_read {
            found |= asked & (libc::POLLIN | libc::POLLRDNORM);
        }
        if can_write {
            found |= asked & (libc::POLLOUT | libc::POLLWRNORM);
        }
        found
    }

    fn arm(&mut self) -> bool {
        let Some(stream) = &mut self.stream else {
            return false;
        };
        stream.take_events();
        stream.arm();
        stream.progress()
    }

    fn descriptors(&self) -> Vec<libc::pollfd> {
        let mut fds = vec![for_reading(self.channel.raw_fd())];
        fds.extend(self.stream.as_ref().map(|s| for_reading(s.fd())));
        fds
    }

    fn waiters(&mut self) -> &mut Waiters {
        &mut self.waiters
    }

    fn blocking(&mut self) -> &mut Blocking {
        &mut self.blocking
    }
}

impl Inner {
    fn cm_id(&self) -> Result<&'static CmId> {
        if self.phase == Phase::Closed {
            return Err(Errno(libc::EBADF));
        }
        // SAFETY: the id lives until the socket is closed, and the lock is held as long as the result is used.
        unsafe { CmId::borrow(self.id) }
    }

    fn take_cm_events(&mut self) -> bool {
        let mut any = false;
        // SAFETY: the channel is the id's own, which is live.
        while let Ok(event) = unsafe { cm_event::next_event(&self.channel) } {
            any = true;
            // SAFETY: an event that is live until it is acknowledged.
            unsafe {
                self.on_event(&*event);
                cm_event::acknowledge(event);
            }
        }
        any
    }

    /// # Safety
    /// `event` is live.
    unsafe fn on_event(&mut self, event: &rdma_cm_event) {
        match (event.event, self.phase) {
            (RDMA_CM_EVENT_ESTABLISHED, Phase::Connecting) => {
                // SAFETY: the parameters of a connection.
                let peer = unsafe { conn_data(event) };
                let set = peer
                    .ok_or(Errno(libc::EPROTO))
                    .and_then(|peer| self.stream.as_mut().ok_or(INVALID)?.set_peer(&peer));
                match set {
                    Ok(()) => self.phase = Phase::Connected,
                    Err(Errno(errno)) => self.fail(errno),
                }
            }
            (RDMA_CM_EVENT_ESTABLISHED, Phase::Accepting) => self.phase = Phase::Connected,
            (RDMA_CM_EVENT_DISCONNECTED, Phase::Connected) => {
                if let Some(stream) = &mut self.stream {
                    // What came before the end is still to be read.
                    stream.progress();
                    stream.over.get_or_insert(0);
                }
            }
            (RDMA_CM_EVENT_UNREACHABLE, Phase::Connecting) => self.fail(libc::ETIMEDOUT),
            (
                RDMA_CM_EVENT_REJECTED
                | RDMA_CM_EVENT_CONNECT_ERROR
                | RDMA_CM_EVENT_UNREACHABLE
                | RDMA_CM_EVENT_DISCONNECTED,
                Phase::Connecting | Phase::Accepting,
            ) => self.fail(libc::ECONNREFUSED),
            _ => {}
        }
    }

    fn fail(&mut self, errno: c_int) {
        self.phase = Phase::Failed;
        self.error = errno;
    }

    fn take_error(&mut self, otherwise: c_int) -> Errno {
        match std::mem::take(&mut self.error) {
            0 => Errno(otherwise),
            errno => Errno(errno),
        }
    }

    /// What came of connecting, once something has.
    fn outcome(&mut self) -> Option<Result> {
        match self.phase {
            Phase::Connecting | Phase::Accepting => None,
            Phase::Connected => Some(Ok(())),
            _ => Some(Err(self.take_error(libc::ECONNREFUSED))),
        }
    }

    fn start_connecting(&mut self, addr: Addr) -> Result {
        let id = self.cm_id()?;
        resolve::resolve_addr(id, None, addr)?;
        // SAFETY: the channel is the id's own; the event is live until it is acknowledged.
        let resolved = unsafe {
            let event = cm_event::next_event(&self.channel)?;
            let resolved = ((*event).event, (*event).status);
            cm_event::acknowledge(event);
            resolved
        };
        if resolved.0 != RDMA_CM_EVENT_ADDR_RESOLVED {
            return Err(Errno(resolved.1.abs()));
        }
        resolve::resolve_route(id)?;
        // SAFETY: as above.
        unsafe {
            cm_event::acknowledge(cm_event::next_event(&self.channel)?);
            let stream = Stream::new(id, self.sizes)?;
            let data = stream.conn_data().encode();
            self.stream = Some(stream);
            let param = conn_param(&data);
            connect::connect(id, &raw const param)?;
        }
        self.phase = Phase::Connecting;
        Ok(())
    }

    /// For a listener: the next request, as a socket that is being connected, and the peer's address.
    fn take_request(&mut self, domain: c_int) -> Option<Result<New>> {
        loop {
            // SAFETY: the channel is the id's own; the event is live until it is acknowledged.
            unsafe {
                let event = match cm_event::next_event(&self.channel) {
                    Ok(event) => event,
                    Err(Errno(libc::EAGAIN)) => return None,
                    Err(e) => return Some(Err(e)),
                };
                let is_request = (*event).event == RDMA_CM_EVENT_CONNECT_REQUEST;
                let (id, peer) = ((*event).id, conn_data(&*event));
                cm_event::acknowledge(event);
                if !is_request {
                    continue;
                }
                match self.serve(id, peer, domain) {
                    Ok(new) => return Some(Ok(new)),
                    // Another thread or a later call may have what it takes.
                    Err(e) if e.is_shortage() => return Some(Err(e)),
                    // The next one may be better.
                    Err(Errno(errno)) => {
                        tracing::debug!("a connection is refused: errno {errno}");
                    }
                }
            }
        }
    }

    /// Makes a socket of a request. Where that fails, the request is refused.
    ///
    /// # Safety
    /// `handle` is a requested id that nobody else uses.
    unsafe fn serve(
        &mut self,
        handle: *mut rdma_cm_id,
        peer: Option<ConnData>,
        domain: c_int,
    ) -> Result<New> {
        // SAFETY: contract of this function.
        unsafe {
            let id = CmId::borrow(handle)?;
            let (stream, channel_handle, channel) = match self.prepare(id, peer) {
                Ok(prepared) => prepared,
                Err(e) => {
                    connect::destroy_with_queues(handle);
                    return Err(e);
                }
            };
            id.endpoint.migrate(&channel);
            (*id.abi()).channel = channel_handle;
            let data = stream.conn_data().encode();
            let mut new = Self {
                id: handle,
                channel,
                phase: Phase::Accepting,
                stream: Some(stream),
                blocking: Blocking::new(false),
                sizes: self.sizes,
                reuse_address: self.reuse_address,
                v6only: self.v6only,
                remembered: self.remembered,
                error: 0,
                waiters: Waiters::default(),
            };
            let param = conn_param(&data);
            let accepted = id
                .destination()
                .ok_or(INVALID)
                .and_then(|peer| connect::accept(id, &raw const param).map(|()| peer));
            match accepted {
                Ok(peer) => {
                    let (socket, fd) = StreamSocket::of(domain, new);
                    Ok((socket, fd, peer))
                }
                // The peer has gone.
                Err(e) => {
                    new.dispose();
                    Err(e)
                }
            }
        }
    }

    /// What a requested id needs to become a socket.
    ///
    /// # Safety
    /// Nobody else uses `id`. Where this fails, it has no queue pair.
    unsafe fn prepare(
        &self,
        id: &CmId,
        peer: Option<ConnData>,
    ) -> Result<(Stream, *mut rdma_event_channel, Arc<Channel<Event>>)> {
        let peer = peer.ok_or(Errno(libc::EPROTO))?;
        // SAFETY: contract of this function.
        let mut stream = unsafe { Stream::new(id, self.sizes) }?;
        match stream.set_peer(&peer).and_then(|()| own_channel()) {
            Ok((handle, channel)) => Ok((stream, handle, channel)),
            Err(e) => {
                id.destroy_qp();
                Err(e)
            }
        }
    }

    /// The stream, for sending. `None`: not yet.
    fn stream_for_data(&mut self) -> Result<Option<&mut Stream>> {
        match (self.phase, &mut self.stream) {
            (Phase::Connecting | Phase::Accepting, _) => Ok(None),
            (Phase::Connected, Some(stream)) => {
                match stream.over {
                    Some(0) => return Err(Errno(libc::EPIPE)),
                    Some(errno) => return Err(Errno(errno)),
                    None if stream.shut => return Err(Errno(libc::EPIPE)),
                    None => {}
                }
                Ok(Some(stream))
            }
            _ => Err(Errno(libc::ENOTCONN)),
        }
    }

    fn send(&mut self, bytes: &[u8]) -> Result<Option<usize>> {
        let Some(stream) = self.stream_for_data()? else {
            return Ok(None);
        };
        let sent = stream.send(bytes)?;
        Ok((sent > 0 || bytes.is_empty()).then_some(sent))
    }

    fn recv(&mut self, bytes: &mut [u8], peek: bool) -> Result<Option<usize>> {
        match (self.phase, &mut self.stream) {
            (Phase::Connecting | Phase::Accepting, _) => Ok(None),
            (Phase::Connected, Some(stream)) => {
                let got = stream.recv(bytes, peek);
                if got > 0 || bytes.is_empty() {
                    return Ok(Some(got));
                }
                match stream.over {
                    None if !stream.ended => Ok(None),
                    Some(errno) if errno != 0 => Err(Errno(errno)),
                    _ => Ok(Some(0)),
                }
            }
            _ => Err(Errno(libc::ENOTCONN)),
        }
    }

    /// Destroys what there is of the socket.
    fn dispose(&mut self) {
        if self.phase == Phase::Closed {
            return;
        }
        if let Ok(id) = self.cm_id() {
            id.endpoint.disconnect();
            id.destroy_qp();
        }
        self.stream = None;
        self.phase = Phase::Closed;
        // SAFETY: the id and its channel are the socket's own.
        unsafe {
            let channel = (*self.id).channel;
            let _ = connect::destroy(self.id);
            ChannelHandle::destroy(channel);
        }
        self.waiters.wake_others();
    }
}

/// What the peer has told with an event.
///
/// # Safety
/// `event` is live and has parameters of a connection.
unsafe fn conn_data(event: &rdma_cm_event) -> Option<ConnData> {
    // SAFETY: contract of this function; `private_data` is valid for its length.
    unsafe {
        let conn = event.param.conn;
        if conn.private_data.is_null() {
            return None;
        }
        let len = usize::from(conn.private_data_len);
        ConnData::decode(std::slice::from_raw_parts(conn.private_data.cast(), len))
    }
}

/// The parameters of a stream's connection; they point to `data`.
fn conn_param(data: &[u8; ConnData::SIZE]) -> rdma_conn_param {
    let mut param = rdma_conn_param::zeroed();
    param.private_data = data.as_ptr().cast::<c_void>();
    param.private_data_len = ConnData::SIZE as u8;
    param.flow_control = 1;
    param.retry_count = 7;
    param.rnr_retry_count = 7;
    param
}
