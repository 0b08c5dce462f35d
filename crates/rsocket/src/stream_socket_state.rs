//! The state behind the lock of a stream socket: an id, with a stream while it is connected.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::Arc;

use verbs_abi::*;

use crate::ineffective_options::IneffectiveOptions;
use crate::protocol::ConnData;
use crate::queue_and_buffer_sizes::QueueAndBufferSizes;
use crate::stream::Stream;
use crate::wait::{BlockingMode, SocketWaiters, WaitableState, pollfd_for_reading};
use rdmacm::addr::IdAddress;
use rdmacm::errno::{Errno, INVALID, Result};
use rdmacm::id::{ChannelHandle, CmId};
use rdmacm::{EndpointEvent, EventChannel, cm_event, id_lifecycle, resolve};

/// The phase of a socket's life cycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SocketPhase {
    New,
    Listening,
    /// A connection was requested.
    Connecting,
    /// A requested connection was accepted.
    Accepting,
    Connected,
    /// The connection was rejected, or ended before it was established.
    FailedToConnect,
    Closed,
}

/// The state of a stream socket; the caller holds the socket's lock.
pub(crate) struct StreamSocketState {
    pub(crate) cm_id: *mut rdma_cm_id,
    pub(crate) cm_event_channel: Arc<EventChannel<EndpointEvent>>,
    pub(crate) phase: SocketPhase,
    /// Stream, while the socket is connecting or connected.
    pub(crate) stream: Option<Stream>,
    pub(crate) blocking_mode: BlockingMode,
    pub(crate) queue_and_buffer_sizes: QueueAndBufferSizes,
    pub(crate) reuse_address: c_int,
    pub(crate) v6only: c_int,
    pub(crate) ineffective_options: IneffectiveOptions,
    /// Error that `SO_ERROR` returns.
    pub(crate) pending_so_error: c_int,
    pub(crate) waiters: SocketWaiters,
}

// SAFETY: ids may be used from any thread, and only the holder of the lock uses a socket's id.
unsafe impl Send for StreamSocketState {}

/// Makes an event channel whose descriptor does not block.
fn create_cm_event_channel() -> Result<(*mut rdma_event_channel, Arc<EventChannel<EndpointEvent>>)>
{
    let handle = ChannelHandle::create()?;
    // SAFETY: the channel was just made, so its descriptor is open.
    unsafe {
        let flags = libc::fcntl((*handle).fd, libc::F_GETFL);
        libc::fcntl((*handle).fd, libc::F_SETFL, flags | libc::O_NONBLOCK);
        Ok((handle, ChannelHandle::channel(handle)?))
    }
}

impl WaitableState for StreamSocketState {
    /// rdma-core waits for streams in `ibv_get_cq_event` (`rs_get_cq_event` of `rsocket.c`).
    const WAIT_RESTARTS_AFTER_SIGNAL: bool = true;

    fn process_completions_and_events(&mut self) {
        let mut any = false;
        if !self.cm_event_channel.is_empty() && self.phase != SocketPhase::Listening {
            any = self.handle_cm_events_if_any();
        }
        if let Some(stream) = &mut self.stream {
            any |= stream.process_completions_if_any();
        }
        if any {
            self.waiters.wake_all_but_this_thread();
        }
    }

    fn pending_poll_events(&mut self, asked: libc::c_short) -> libc::c_short {
        let (can_read, can_write, state) = match (self.phase, &self.stream) {
            (SocketPhase::Listening, _) => (!self.cm_event_channel.is_empty(), false, 0),
            (SocketPhase::Connecting | SocketPhase::Accepting, _) => (false, false, 0),
            (SocketPhase::Connected, Some(stream)) => {
                let state = match stream.final_errno {
                    // Programs take a hang-up for the end of the data, so data that arrived before must be read first.
                    _ if stream.has_data() => 0,
                    None => 0,
                    Some(0) => libc::POLLHUP,
                    Some(_) => libc::POLLHUP | libc::POLLERR,
                };
                (stream.can_read(), stream.can_write(), state)
            }
            (SocketPhase::FailedToConnect, _) => (true, true, libc::POLLHUP | libc::POLLERR),
            // As for TCP sockets that were never connected.
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
        stream.cq.take_and_ack_channel_events();
        stream.cq.arm();
        let any = stream.process_completions_if_any();
        if any {
            self.waiters.wake_all_but_this_thread();
        }
        any
    }

    fn wake_up_descriptors(&self) -> Vec<libc::pollfd> {
        let mut fds = vec![pollfd_for_reading(self.cm_event_channel.raw_fd())];
        fds.extend(self.stream.as_ref().map(|s| pollfd_for_reading(s.cq.fd())));
        fds
    }

    fn waiters(&mut self) -> &mut SocketWaiters {
        &mut self.waiters
    }

    fn blocking_mode(&mut self) -> &mut BlockingMode {
        &mut self.blocking_mode
    }
}

impl StreamSocketState {
    /// Makes an unconnected session with its own id and event channel.
    pub(crate) fn new(nonblocking: bool) -> Result<Self> {
        rdmacm::default_device_port()?;
        // SAFETY: the channel is new, and so is the id on it.
        let (id, channel) = unsafe {
            let (handle, channel) = create_cm_event_channel()?;
            let id = id_lifecycle::new_id(handle, ptr::null_mut(), RDMA_PS_TCP, IBV_QPT_RC);
            if id.is_err() {
                ChannelHandle::destroy(handle);
            }
            (id?, channel)
        };
        Ok(Self {
            cm_id: id,
            cm_event_channel: channel,
            phase: SocketPhase::New,
            stream: None,
            blocking_mode: BlockingMode::new(nonblocking),
            queue_and_buffer_sizes: QueueAndBufferSizes::default(),
            reuse_address: 0,
            v6only: 0,
            ineffective_options: IneffectiveOptions::default(),
            pending_so_error: 0,
            waiters: SocketWaiters::default(),
        })
    }

    pub(crate) fn cm_id(&self) -> Result<&'static CmId> {
        if self.phase == SocketPhase::Closed {
            return Err(Errno(libc::EBADF));
        }
        // SAFETY: the id lives until the socket is closed, and the lock is held as long as the result is used.
        unsafe { CmId::borrow(self.cm_id) }
    }

    fn handle_cm_events_if_any(&mut self) -> bool {
        let mut any = false;
        while let Ok(news) = CmNotification::next(&self.cm_event_channel) {
            any = true;
            self.handle_cm_event(&news);
        }
        any
    }

    fn handle_cm_event(&mut self, news: &CmNotification) {
        match (news.event, self.phase) {
            (RDMA_CM_EVENT_ESTABLISHED, SocketPhase::Connecting) => {
                let set = news
                    .peer_conn_data
                    .as_ref()
                    .ok_or(Errno(libc::EPROTO))
                    .and_then(|peer| {
                        self.stream
                            .as_mut()
                            .ok_or(INVALID)?
                            .set_peer_conn_data(peer)
                    });
                match set {
                    Ok(()) => self.phase = SocketPhase::Connected,
                    Err(Errno(errno)) => self.fail(errno),
                }
            }
            (RDMA_CM_EVENT_ESTABLISHED, SocketPhase::Accepting) => {
                self.phase = SocketPhase::Connected
            }
            (RDMA_CM_EVENT_DISCONNECTED, SocketPhase::Connected) => {
                if let Some(stream) = &mut self.stream {
                    // Data that arrived before the disconnect can still be read.
                    stream.process_completions_if_any();
                    stream.final_errno.get_or_insert(0);
                }
            }
            (RDMA_CM_EVENT_UNREACHABLE, SocketPhase::Connecting) => self.fail(libc::ETIMEDOUT),
            (
                RDMA_CM_EVENT_REJECTED
                | RDMA_CM_EVENT_CONNECT_ERROR
                | RDMA_CM_EVENT_UNREACHABLE
                | RDMA_CM_EVENT_DISCONNECTED,
                SocketPhase::Connecting | SocketPhase::Accepting,
            ) => self.fail(libc::ECONNREFUSED),
            _ => {}
        }
    }

    fn fail(&mut self, errno: c_int) {
        self.phase = SocketPhase::FailedToConnect;
        self.pending_so_error = errno;
    }

    pub(crate) fn take_so_error_or(&mut self, otherwise: c_int) -> Errno {
        match std::mem::take(&mut self.pending_so_error) {
            0 => Errno(otherwise),
            errno => Errno(errno),
        }
    }

    /// Returns the outcome of connecting; `None` while it is pending.
    pub(crate) fn connect_outcome(&mut self) -> Option<Result> {
        match self.phase {
            SocketPhase::Connecting | SocketPhase::Accepting => None,
            SocketPhase::Connected => Some(Ok(())),
            _ => Some(Err(self.take_so_error_or(libc::ECONNREFUSED))),
        }
    }

    pub(crate) fn start_connecting(&mut self, addr: IdAddress) -> Result {
        let id = self.cm_id()?;
        resolve::resolve_addr(id, None, addr)?;
        let resolved = CmNotification::next(&self.cm_event_channel)?;
        if resolved.event != RDMA_CM_EVENT_ADDR_RESOLVED {
            return Err(Errno(resolved.status.abs()));
        }
        resolve::resolve_route(id)?;
        CmNotification::next(&self.cm_event_channel)?;
        // SAFETY: the id is bound to a device and has no other user. The parameters point to `data`, which is live.
        unsafe {
            let stream = Stream::new(id, self.queue_and_buffer_sizes)?;
            let data = stream.own_conn_data().encode();
            self.stream = Some(stream);
            let param = conn_param(&data);
            id_lifecycle::connect(id, &raw const param)?;
        }
        self.phase = SocketPhase::Connecting;
        Ok(())
    }

    /// For a listener, returns the next request as a connecting session, with the peer's address.
    pub(crate) fn accept_next_request(&mut self) -> Option<Result<(Self, IdAddress)>> {
        loop {
            let news = match CmNotification::next(&self.cm_event_channel) {
                Ok(news) => news,
                Err(Errno(libc::EAGAIN)) => return None,
                Err(e) => return Some(Err(e)),
            };
            if news.event != RDMA_CM_EVENT_CONNECT_REQUEST {
                continue;
            }
            // SAFETY: the id of a request, which has no other user.
            match unsafe { self.accept_request(news.id, news.peer_conn_data) } {
                Ok(new) => return Some(Ok(new)),
                // The program may retry when another thread has freed resources.
                Err(e) if e.is_resource_shortage() => return Some(Err(e)),
                // The next request may be valid.
                Err(Errno(errno)) => {
                    tracing::debug!("a connection is refused: errno {errno}");
                }
            }
        }
    }

    /// Makes a session of a request. If that fails, the request is rejected.
    ///
    /// # Safety
    /// `handle` is a requested id without another user.
    unsafe fn accept_request(
        &mut self,
        handle: *mut rdma_cm_id,
        peer: Option<ConnData>,
    ) -> Result<(Self, IdAddress)> {
        // SAFETY: contract of this function.
        unsafe {
            let id = CmId::borrow(handle)?;
            let (stream, channel_handle, channel) = match self.make_stream_and_channel(id, peer) {
                Ok(prepared) => prepared,
                Err(e) => {
                    id_lifecycle::destroy_with_queues(handle);
                    return Err(e);
                }
            };
            id.migrate(channel_handle)?;
            let data = stream.own_conn_data().encode();
            let mut new = Self {
                cm_id: handle,
                cm_event_channel: channel,
                phase: SocketPhase::Accepting,
                stream: Some(stream),
                blocking_mode: BlockingMode::new(false),
                queue_and_buffer_sizes: self.queue_and_buffer_sizes,
                reuse_address: self.reuse_address,
                v6only: self.v6only,
                ineffective_options: self.ineffective_options,
                pending_so_error: 0,
                waiters: SocketWaiters::default(),
            };
            let param = conn_param(&data);
            let accepted = id
                .destination()
                .ok_or(INVALID)
                .and_then(|peer| id_lifecycle::accept(id, &raw const param).map(|()| peer));
            match accepted {
                Ok(peer) => Ok((new, peer)),
                // The peer has closed the connection.
                Err(e) => {
                    new.destroy_id_and_qp();
                    Err(e)
                }
            }
        }
    }

    /// Makes the stream and the event channel for a requested id.
    ///
    /// # Safety
    /// `id` has no other user. If this function fails, `id` has no queue pair.
    unsafe fn make_stream_and_channel(
        &self,
        id: &CmId,
        peer: Option<ConnData>,
    ) -> Result<(
        Stream,
        *mut rdma_event_channel,
        Arc<EventChannel<EndpointEvent>>,
    )> {
        let peer = peer.ok_or(Errno(libc::EPROTO))?;
        // SAFETY: contract of this function.
        let mut stream = unsafe { Stream::new(id, self.queue_and_buffer_sizes) }?;
        match stream
            .set_peer_conn_data(&peer)
            .and_then(|()| create_cm_event_channel())
        {
            Ok((handle, channel)) => Ok((stream, handle, channel)),
            Err(e) => {
                id.destroy_qp();
                Err(e)
            }
        }
    }

    /// Returns the stream for sending; `None` while the connection is pending.
    pub(crate) fn stream_unless_connecting(&mut self) -> Result<Option<&mut Stream>> {
        match (self.phase, &mut self.stream) {
            (SocketPhase::Connecting | SocketPhase::Accepting, _) => Ok(None),
            (SocketPhase::Connected, Some(stream)) => {
                match stream.final_errno {
                    Some(0) => return Err(Errno(libc::EPIPE)),
                    Some(errno) => return Err(Errno(errno)),
                    None if stream.has_shut_down => return Err(Errno(libc::EPIPE)),
                    None => {}
                }
                Ok(Some(stream))
            }
            _ => Err(Errno(libc::ENOTCONN)),
        }
    }

    pub(crate) fn try_send(&mut self, bytes: &[u8]) -> Result<Option<usize>> {
        let Some(stream) = self.stream_unless_connecting()? else {
            return Ok(None);
        };
        let sent = stream.send(bytes)?;
        Ok((sent > 0 || bytes.is_empty()).then_some(sent))
    }

    pub(crate) fn try_recv(&mut self, bytes: &mut [u8], peek: bool) -> Result<Option<usize>> {
        match (self.phase, &mut self.stream) {
            (SocketPhase::Connecting | SocketPhase::Accepting, _) => Ok(None),
            (SocketPhase::Connected, Some(stream)) => {
                let got = stream.recv(bytes, peek);
                if got > 0 || bytes.is_empty() {
                    return Ok(Some(got));
                }
                match stream.final_errno {
                    None if !stream.peer_has_shut_down => Ok(None),
                    Some(errno) if errno != 0 => Err(Errno(errno)),
                    _ => Ok(Some(0)),
                }
            }
            _ => Err(Errno(libc::ENOTCONN)),
        }
    }

    /// Destroys the id, its queue pair and its event channel.
    pub(crate) fn destroy_id_and_qp(&mut self) {
        if self.phase == SocketPhase::Closed {
            return;
        }
        if let Ok(id) = self.cm_id() {
            id.disconnect();
            id.destroy_qp();
        }
        self.stream = None;
        self.phase = SocketPhase::Closed;
        // SAFETY: the id and its channel belong to this socket.
        unsafe {
            let channel = (*self.cm_id).channel;
            let _ = id_lifecycle::destroy_id(self.cm_id);
            ChannelHandle::destroy(channel);
        }
        self.waiters.wake_all_but_this_thread();
    }
}

/// The contents of an event.
struct CmNotification {
    event: rdma_cm_event_type,
    status: c_int,
    id: *mut rdma_cm_id,
    /// Connection data that the peer has sent with the event.
    peer_conn_data: Option<ConnData>,
}

impl CmNotification {
    /// Returns the next event, and acknowledges it.
    fn next(channel: &EventChannel<EndpointEvent>) -> Result<Self> {
        let event = cm_event::take_next_event(channel)?;
        // SAFETY: the event is live until it is acknowledged here. Events of streams have the parameters of a
        // connection, or zeros, and the private data has the given length.
        unsafe {
            let rdma_cm_event {
                event: kind,
                status,
                id,
                param,
                ..
            } = &*event;
            let (data, len) = (param.conn.private_data, param.conn.private_data_len);
            let peer = if data.is_null() {
                None
            } else {
                ConnData::decode(std::slice::from_raw_parts(data.cast(), len.into()))
            };
            let news = Self {
                event: *kind,
                status: *status,
                id: *id,
                peer_conn_data: peer,
            };
            cm_event::acknowledge_event(event);
            Ok(news)
        }
    }
}

/// Returns the parameters of a stream's connection, which point to `data`.
fn conn_param(data: &[u8; ConnData::SIZE]) -> rdma_conn_param {
    let mut param = rdma_conn_param::zeroed();
    param.private_data = data.as_ptr().cast::<c_void>();
    param.private_data_len = ConnData::SIZE as u8;
    param.flow_control = 1;
    param.retry_count = 7;
    param.rnr_retry_count = 7;
    param
}
