//! A datagram socket: a UDP socket, which has its name, and a UD queue pair, which carries the payload.
//!
//! The first datagram to an address is sent over UDP, together with the address of the sender's queue pair. The answer
//! contains the address of the receiver's queue pair, and from then on RDMA carries the datagrams. If nothing was
//! received from a peer for 1 s, the sender asks again in the same way, because the peer may have been restarted. A
//! datagram over RDMA begins with its sender's address. (rdma-core does the same with other headers.)
//!
//! The socket has no service thread: datagrams over UDP wait in the kernel until a call receives them.

use std::collections::{HashMap, VecDeque};
use std::ffi::c_int;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::buffered_ud_qp::{BufferedUdQp, ReceivedDatagram};
use crate::protocol::{QpAddressDatagram as Message, SenderAddressHeader};
use crate::queue_and_buffer_sizes::QueueAndBufferSizes;
use crate::wait::lock;
use crate::wait::{
    self, BlockingMode, Deadline, SocketWaiters, WaitableState, WaitingThread, pollfd_for_reading,
};
use rdmacm::QpAddress;
use rdmacm::errno::{Errno, INVALID, Result};

/// Time without a datagram from a peer after which the address of its queue pair is asked for again.
const SILENT_ROUTE_LIFETIME: Duration = Duration::from_secs(1);
/// Largest number of routes.
const MAX_ROUTES: usize = 4096;
/// Largest number of unread datagrams that arrived over UDP; further ones are dropped, as UDP does.
const MAX_UNREAD_UDP_DATAGRAMS: usize = 1024;
/// Largest size of a UDP datagram.
const MAX_UDP_DATAGRAM_BYTES: usize = 65_536;

/// The address of a peer's queue pair, and the time at which the peer was last heard.
struct PeerRoute {
    peer_qp: QpAddress,
    /// Own address, as the peer sees it.
    own_address_at_peer: SocketAddr,
    last_heard: Instant,
}

/// A datagram that has arrived and is not read.
enum UnreadDatagram {
    Rdma(ReceivedDatagram, usize),
    Udp(Vec<u8>),
}

struct DatagramSocketState {
    udp: UdpSocket,
    /// Queue pair; made when first needed, because options must be set before.
    ud_qp: Option<BufferedUdQp>,
    queue_and_buffer_sizes: QueueAndBufferSizes,
    connected_peer: Option<SocketAddr>,
    routes: HashMap<SocketAddr, PeerRoute>,
    unread_datagrams: VecDeque<(SocketAddr, UnreadDatagram)>,
    /// Number of datagrams in `arrived` that came over UDP.
    unread_udp_datagram_count: usize,
    pending_error: Option<Errno>,
    /// Memory into which `recv_from` copies one UDP datagram; not `SO_RCVBUF`.
    udp_recv_scratch_buffer: Box<[u8]>,
    blocking_mode: BlockingMode,
    waiters: SocketWaiters,
}

/// A datagram socket.
pub(crate) struct DatagramSocket(Mutex<DatagramSocketState>);

impl DatagramSocket {
    /// Makes a socket; returns the socket and its descriptor, which is that of the UDP socket.
    pub(crate) fn new(domain: c_int, nonblocking: bool) -> Result<(Arc<Self>, RawFd)> {
        rdmacm::default_device_port()?;
        let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: a new descriptor, which only this socket owns.
        let udp = unsafe {
            let fd = libc::socket(domain, kind, 0);
            if fd < 0 {
                return Err(io::Error::last_os_error().into());
            }
            UdpSocket::from_raw_fd(fd)
        };
        let fd = udp.as_raw_fd();
        let state = DatagramSocketState {
            udp,
            ud_qp: None,
            queue_and_buffer_sizes: QueueAndBufferSizes::default(),
            connected_peer: None,
            routes: HashMap::new(),
            unread_datagrams: VecDeque::new(),
            unread_udp_datagram_count: 0,
            pending_error: None,
            udp_recv_scratch_buffer: vec![0; MAX_UDP_DATAGRAM_BYTES].into(),
            blocking_mode: BlockingMode::new(nonblocking),
            waiters: SocketWaiters::default(),
        };
        Ok((Arc::new(Self(Mutex::new(state))), fd))
    }

    fn lock(&self) -> MutexGuard<'_, DatagramSocketState> {
        lock(&self.0)
    }

    pub(crate) fn bind(&self, addr: SocketAddr) -> Result {
        let mut state = self.lock();
        // The queue pair must be ready before peers can know the socket's name.
        state.ud_qp_or_create()?;
        let (c, len) = rdmacm::addr::to_sockaddr(addr.into());
        // SAFETY: the pointer leads to an address of `len` bytes.
        let bound = unsafe { libc::bind(state.udp.as_raw_fd(), (&raw const c).cast(), len) };
        if bound == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error().into())
        }
    }

    /// Implements `connect(2)`: sets the peer, which need not exist yet.
    pub(crate) fn connect(&self, addr: SocketAddr) -> Result {
        let mut state = self.lock();
        state.ud_qp_or_create()?;
        state.udp.connect(addr)?;
        state.connected_peer = Some(addr);
        Ok(())
    }

    pub(crate) fn own_or_peer_address(&self, peer: bool) -> Result<SocketAddr> {
        let state = self.lock();
        let name = if peer {
            state.udp.peer_addr()
        } else {
            state.udp.local_addr()
        };
        Ok(name?)
    }

    /// Implements `sendto(2)`; without `to`, sends to the connected peer.
    pub(crate) fn send(&self, bytes: &[u8], flags: c_int, to: Option<SocketAddr>) -> Result<usize> {
        wait::wait_unless_nonblocking(&self.0, flags, |state| {
            state.try_send(bytes, to).transpose()
        })?
    }

    /// Implements `recvfrom(2)`: bytes that do not fit are lost, and are counted with `MSG_TRUNC`.
    pub(crate) fn recv(&self, bytes: &mut [u8], flags: c_int) -> Result<(usize, SocketAddr)> {
        wait::wait_unless_nonblocking(&self.0, flags, |state| {
            state.try_recv(bytes, flags).transpose()
        })?
    }

    /// Implements `shutdown(2)`: only checks that the socket is connected.
    pub(crate) fn check_connected_for_shutdown(&self) -> Result {
        match self.lock().connected_peer {
            Some(_) => Ok(()),
            None => Err(Errno(libc::ENOTCONN)),
        }
    }

    /// Waits until all posted datagrams are sent, and closes the socket.
    pub(crate) fn close(&self) {
        // Datagrams that are still waiting for a receive after this time are dropped.
        let sent = |state: &mut DatagramSocketState| {
            let all = state
                .ud_qp
                .as_ref()
                .is_none_or(BufferedUdQp::have_all_sends_completed);
            all.then_some(())
        };
        let _ = wait::wait_until(&self.0, Deadline::after(SILENT_ROUTE_LIFETIME), sent);
        let mut state = self.lock();
        state.unread_datagrams.clear();
        state.ud_qp = None;
        state.waiters.wake_all_but_this_thread();
    }

    pub(crate) fn set_nonblocking(&self, nonblocking: bool) {
        self.lock().blocking_mode = BlockingMode::new(nonblocking);
    }

    pub(crate) fn is_nonblocking(&self) -> bool {
        self.lock().blocking_mode.is_nonblocking()
    }

    /// Implements `setsockopt(2)` for options whose value is an `int`: the sizes of RDMA queues, and options of UDP
    /// sockets.
    pub(crate) fn set_option(&self, level: c_int, name: c_int, value: c_int) -> Result {
        let mut state = self.lock();
        if level == verbs_abi::SOL_RDMA {
            let new = state.ud_qp.is_none();
            return state
                .queue_and_buffer_sizes
                .set_rdma_option_if_known(name, value)
                .filter(|()| new)
                .ok_or(INVALID);
        }
        if !matches!(level, libc::SOL_SOCKET | libc::IPPROTO_IPV6) {
            return Err(Errno(libc::ENOTSUP));
        }
        let len = size_of::<c_int>() as libc::socklen_t;
        // SAFETY: the pointer leads to a value of `len` bytes.
        let set = unsafe {
            libc::setsockopt(
                state.udp.as_raw_fd(),
                level,
                name,
                (&raw const value).cast(),
                len,
            )
        };
        if set == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error().into())
        }
    }

    /// Implements `getsockopt(2)` for options whose value is an `int`.
    pub(crate) fn option(&self, level: c_int, name: c_int) -> Result<c_int> {
        let state = self.lock();
        if level == verbs_abi::SOL_RDMA {
            return state
                .queue_and_buffer_sizes
                .rdma_option_if_known(name)
                .ok_or(Errno(libc::ENOTSUP));
        }
        if !matches!(level, libc::SOL_SOCKET | libc::IPPROTO_IPV6) {
            return Err(Errno(libc::ENOTSUP));
        }
        let mut value: c_int = 0;
        let mut len = size_of::<c_int>() as libc::socklen_t;
        // SAFETY: the pointer leads to a place of `len` bytes.
        let got = unsafe {
            libc::getsockopt(
                state.udp.as_raw_fd(),
                level,
                name,
                (&raw mut value).cast(),
                &raw mut len,
            )
        };
        if got == 0 {
            Ok(value)
        } else {
            Err(io::Error::last_os_error().into())
        }
    }

    /// As [`crate::stream_socket::StreamSocket::poll_events`].
    pub(crate) fn poll_events(
        &self,
        events: libc::c_short,
        waiter: Option<&Arc<WaitingThread>>,
        fds: &mut Vec<libc::pollfd>,
    ) -> libc::c_short {
        wait::poll_events(&self.0, events, waiter, fds)
    }
}

impl WaitableState for DatagramSocketState {
    /// rdma-core waits for datagrams in `epoll_wait(2)`, which is never restarted (`ds_get_cq_event` of `rsocket.c`).
    const WAIT_RESTARTS_AFTER_SIGNAL: bool = false;

    fn process_completions_and_events(&mut self) {
        let mut any = false;
        if let Some(pair) = &mut self.ud_qp {
            let mut received = Vec::new();
            any = pair.poll_completions(|datagram| received.push(datagram));
            for datagram in received {
                self.queue_or_drop_rdma_datagram(datagram);
            }
        }
        any |= self.receive_udp_datagrams_if_any();
        if any {
            self.waiters.wake_all_but_this_thread();
        }
    }

    fn pending_poll_events(&mut self, asked: libc::c_short) -> libc::c_short {
        let mut found = 0;
        if !self.unread_datagrams.is_empty() || self.pending_error.is_some() {
            found |= asked & (libc::POLLIN | libc::POLLRDNORM);
        }
        if self
            .ud_qp
            .as_ref()
            .is_none_or(BufferedUdQp::has_send_queue_room)
        {
            found |= asked & (libc::POLLOUT | libc::POLLWRNORM);
        }
        if self.pending_error.is_some() {
            found |= libc::POLLERR;
        }
        found
    }

    fn arm(&mut self) -> bool {
        if let Some(pair) = &mut self.ud_qp {
            pair.take_events_and_arm();
        }
        self.process_completions_and_events();
        true
    }

    fn wake_up_descriptors(&self) -> Vec<libc::pollfd> {
        let mut fds = vec![pollfd_for_reading(self.udp.as_raw_fd())];
        fds.extend(
            self.ud_qp
                .as_ref()
                .map(|pair| pollfd_for_reading(pair.fd())),
        );
        fds
    }

    fn waiters(&mut self) -> &mut SocketWaiters {
        &mut self.waiters
    }

    fn blocking_mode(&mut self) -> &mut BlockingMode {
        &mut self.blocking_mode
    }
}

impl DatagramSocketState {
    fn ud_qp_or_create(&mut self) -> Result<&mut BufferedUdQp> {
        if self.ud_qp.is_none() {
            self.ud_qp = Some(BufferedUdQp::new(
                rdmacm::default_device_port()?,
                self.queue_and_buffer_sizes,
            )?);
        }
        self.ud_qp.as_mut().ok_or(INVALID)
    }

    /// Returns the own address as `to` sees it.
    fn own_address_seen_by(&self, to: SocketAddr) -> Result<SocketAddr> {
        let own = self.udp.local_addr()?;
        if !own.ip().is_unspecified() {
            return Ok(own);
        }
        let any: IpAddr = match to.ip() {
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        // The kernel selects the source address; nothing is sent.
        let asked = UdpSocket::bind((any, 0)).and_then(|probe| {
            probe.connect(to)?;
            probe.local_addr()
        });
        let ip = asked?.ip();
        Ok(SocketAddr::new(ip, own.port()))
    }

    fn try_send(&mut self, bytes: &[u8], to: Option<SocketAddr>) -> Result<Option<usize>> {
        if let Some(error) = self.pending_error.take() {
            return Err(error);
        }
        let to = to
            .or(self.connected_peer)
            .ok_or(Errno(libc::EDESTADDRREQ))?;
        let route = self.routes.get(&to);
        let route = route
            .filter(|route| route.last_heard.elapsed() < SILENT_ROUTE_LIFETIME)
            .map(|route| (route.peer_qp, route.own_address_at_peer));
        let mtu = self.ud_qp_or_create()?.mtu();
        if SenderAddressHeader::MAX_ENCODED_BYTES + bytes.len() > mtu {
            return Err(Errno(libc::EMSGSIZE));
        }
        let Some((route, own)) = route else {
            return self.try_send_udp_with_qp_address(to, bytes, false);
        };
        if !self.ud_qp_or_create()?.has_send_queue_room() {
            return Ok(None);
        }
        let label = SenderAddressHeader(own).encode();
        self.ud_qp_or_create()?
            .send(own.ip(), &route, [&label, bytes])?;
        Ok(Some(bytes.len()))
    }

    /// Sends a datagram over UDP, with the address of the own queue pair; an answer has no payload.
    fn try_send_udp_with_qp_address(
        &mut self,
        to: SocketAddr,
        payload: &[u8],
        is_answer: bool,
    ) -> Result<Option<usize>> {
        // An unbound socket would get its port only by its first datagram, but its name must be known before.
        if self.udp.local_addr().is_ok_and(|own| own.port() == 0) {
            let any = match to {
                SocketAddr::V4(_) => SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0),
                SocketAddr::V6(_) => SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 0),
            };
            let (c, len) = rdmacm::addr::to_sockaddr(any.into());
            // SAFETY: the pointer leads to an address of `len` bytes.
            if unsafe { libc::bind(self.udp.as_raw_fd(), (&raw const c).cast(), len) } != 0 {
                return Err(io::Error::last_os_error().into());
            }
        }
        let from = self.own_address_seen_by(to)?.ip();
        let message = Message {
            sender_qp_address: self.ud_qp_or_create()?.qp_address(from),
            is_answer,
            payload,
        };
        let bytes = message.encode();
        let sent = if self.connected_peer == Some(to) {
            self.udp.send(&bytes)
        } else {
            self.udp.send_to(&bytes, to)
        };
        match sent {
            Ok(_) => Ok(Some(payload.len())),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// Receives all datagrams that have arrived over UDP; returns true if there was one.
    fn receive_udp_datagrams_if_any(&mut self) -> bool {
        let mut any = false;
        loop {
            let (len, from) = match self.udp.recv_from(&mut self.udp_recv_scratch_buffer) {
                Ok(received) => received,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return any,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                // For example ECONNREFUSED: no socket has the peer's port.
                Err(e) => {
                    self.pending_error = Some(e.into());
                    self.routes.clear();
                    return true;
                }
            };
            let message = self
                .udp_recv_scratch_buffer
                .get(..len)
                .and_then(Message::decode);
            let Some(Message {
                sender_qp_address: sender,
                is_answer,
                payload,
            }) = message
            else {
                continue;
            };
            any = true;
            if !is_answer && self.unread_udp_datagram_count < MAX_UNREAD_UDP_DATAGRAMS {
                self.unread_udp_datagram_count += 1;
                let arrived = UnreadDatagram::Udp(payload.to_vec());
                self.unread_datagrams.push_back((from, arrived));
            }
            if self.remember_peer_qp(from, sender).is_err() || is_answer {
                continue;
            }
            // If the answer is lost, the sender's next datagram asks again.
            let _ = self.try_send_udp_with_qp_address(from, &[], true);
        }
    }

    fn remember_peer_qp(&mut self, from: SocketAddr, to: QpAddress) -> Result {
        if self.routes.len() >= MAX_ROUTES {
            self.routes.clear();
        }
        let own = self.own_address_seen_by(from)?;
        let heard = Instant::now();
        self.routes.insert(
            from,
            PeerRoute {
                peer_qp: to,
                own_address_at_peer: own,
                last_heard: heard,
            },
        );
        Ok(())
    }

    /// Processes a datagram that has arrived over RDMA.
    fn queue_or_drop_rdma_datagram(&mut self, datagram: ReceivedDatagram) {
        let Some(pair) = &mut self.ud_qp else { return };
        let mut head = [0; SenderAddressHeader::MAX_ENCODED_BYTES];
        let len = datagram.len().min(head.len());
        pair.copy_from_datagram(&datagram, 0, &mut head[..len]);
        match SenderAddressHeader::decode(&head[..len]) {
            Some((SenderAddressHeader(from), at))
                if self.connected_peer.is_none_or(|peer| peer == from) =>
            {
                if let Some(route) = self.routes.get_mut(&from) {
                    route.last_heard = Instant::now();
                }
                self.unread_datagrams
                    .push_back((from, UnreadDatagram::Rdma(datagram, at)));
            }
            _ => pair.repost_recv_buffer(&datagram),
        }
    }

    fn try_recv(&mut self, bytes: &mut [u8], flags: c_int) -> Result<Option<(usize, SocketAddr)>> {
        if let Some(error) = self.pending_error.take() {
            return Err(error);
        }
        // From the first receive on, peers can learn the queue pair's address.
        self.ud_qp_or_create()?;
        let (Some((from, arrived)), Some(pair)) = (self.unread_datagrams.front(), &mut self.ud_qp)
        else {
            return Ok(None);
        };
        let from = *from;
        let (len, copied) = match arrived {
            UnreadDatagram::Rdma(datagram, at) => {
                let len = datagram.len() - at;
                let copied = len.min(bytes.len());
                let to = bytes.get_mut(..copied).unwrap_or_default();
                pair.copy_from_datagram(datagram, *at, to);
                (len, copied)
            }
            UnreadDatagram::Udp(payload) => {
                let copied = payload.len().min(bytes.len());
                if let (Some(to), Some(payload)) = (bytes.get_mut(..copied), payload.get(..copied))
                {
                    to.copy_from_slice(payload);
                }
                (payload.len(), copied)
            }
        };
        if flags & libc::MSG_PEEK == 0 {
            match self.unread_datagrams.pop_front() {
                Some((_, UnreadDatagram::Rdma(datagram, _))) => pair.repost_recv_buffer(&datagram),
                Some((_, UnreadDatagram::Udp(_))) => self.unread_udp_datagram_count -= 1,
                None => {}
            }
        }
        let said = if flags & libc::MSG_TRUNC != 0 {
            len
        } else {
            copied
        };
        Ok(Some((said, from)))
    }
}
