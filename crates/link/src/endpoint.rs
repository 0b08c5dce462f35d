//! An endpoint, which sends and receives RoCEv2 packets at some addresses of this host.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use roce::icrc::{Addresses, Frame};
use rustix::event::epoll;
use rustix::io::Errno;

use crate::batch::{Batch, Burst};
use crate::config::{Config, LocalAddress};
use crate::counters::{Counters, add};
use crate::error::LinkError;
use crate::packet::{Received, Sent};
use crate::shared::Shared;
use crate::socket::{Mode, Socket};
use crate::sys::epoll::for_each_ready;
use crate::sys::{receive, send};

/// Number of receives from one socket between two polls of all sockets.
const TURNS: u8 = 8;

/// Minimum number of messages per system call. If fewer are returned, the socket is empty.
const LEAST_WIDTH: usize = 2;

/// Largest number of forwarded packets that one receive takes.
const MAX_HANDED_OVER: usize = 64;

/// The sockets of one process.
///
/// All functions take a shared reference. A thread needs its own [`Batch`] to send and its own [`Inbox`] to receive.
#[derive(Debug)]
pub struct Endpoint {
    sockets: Vec<Socket>,
    unavailable: Vec<LinkError>,
    port: u16,
    epoll: OwnedFd,
    counters: Arc<Counters>,
    shared: Option<Shared>,
}

/// Receive buffers. They use up to 1 MiB, allocated when used.
pub struct Inbox {
    buffers: receive::Buffers,
    /// Number of messages for the next system call: doubled after a full call, small after an empty one.
    width: usize,
    /// True if the last system call returned fewer messages than requested.
    is_drained: bool,
    /// True if the last receive has left no packet at any socket.
    all_empty: bool,
    /// Index of the socket from which the last packets came.
    last: Option<usize>,
    /// Number of further receives from that socket before all sockets are polled.
    turns: u8,
}

impl Default for Inbox {
    fn default() -> Inbox {
        Inbox {
            buffers: receive::Buffers::new(),
            width: LEAST_WIDTH,
            is_drained: false,
            last: None,
            turns: 0,
            all_empty: false,
        }
    }
}

impl Inbox {
    /// Returns true if the socket of the last packets was empty then, so that an immediate second receive would find
    /// nothing.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.is_drained
    }

    /// Returns true if the last [`Endpoint::receive`] polled all sockets and left no packet at any of them.
    #[must_use]
    pub fn all_empty(&self) -> bool {
        self.all_empty
    }
}

impl Endpoint {
    /// Opens the endpoint's sockets at all addresses where that is possible.
    ///
    /// # Errors
    /// No address could be opened: the reason of the first one. Otherwise [`Endpoint::unavailable`] has the reasons of
    /// the addresses that failed.
    pub fn open(config: &Config) -> Result<Endpoint, LinkError> {
        let failed = |e: Errno| LinkError::Epoll { source: e.into() };
        let shared = match &config.fabric {
            Some(fabric) => Some(Shared::open(fabric, config.port)?),
            None => None,
        };
        let mut endpoint = Endpoint {
            sockets: Vec::new(),
            unavailable: Vec::new(),
            port: config.port,
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?,
            counters: Arc::default(),
            shared,
        };
        for address in &config.addresses {
            let opened = match &endpoint.shared {
                Some(shared) => shared.join(*address, config),
                None => Socket::open(*address, config, Mode::Alone),
            };
            match opened {
                Ok(socket) => endpoint.sockets.push(socket),
                Err(error) => endpoint.unavailable.push(error),
            }
        }
        if endpoint.sockets.is_empty() {
            let first = endpoint.unavailable.drain(..).next();
            return Err(first.unwrap_or(LinkError::NoAddress));
        }
        endpoint.watch().map_err(failed)?;
        Ok(endpoint)
    }

    /// Registers all sockets with the epoll descriptor.
    fn watch(&self) -> Result<(), Errno> {
        let handover = self.shared.iter().map(AsFd::as_fd);
        let fds = self.sockets.iter().map(AsFd::as_fd).chain(handover);
        for (i, fd) in (0..).zip(fds) {
            let data = epoll::EventData::new_u64(i);
            epoll::add(&self.epoll, fd, data, epoll::EventFlags::IN)?;
        }
        Ok(())
    }

    /// Returns the reasons why addresses of the configuration could not be opened.
    #[must_use]
    pub fn unavailable(&self) -> &[LinkError] {
        &self.unavailable
    }

    /// Returns the addresses that were opened.
    pub fn addresses(&self) -> impl Iterator<Item = LocalAddress> {
        self.sockets.iter().map(|socket| socket.address)
    }

    /// Returns the counters of the endpoint.
    #[must_use]
    pub fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// Returns the size of the largest unfragmented IP packet from source to destination of `addresses`, as far as the
    /// host knows.
    ///
    /// # Errors
    /// The error of the system call, e.g. if no route to the destination exists.
    pub fn mtu_towards(&self, addresses: Addresses) -> io::Result<u32> {
        let socket = self.socket_of(addresses.src());
        let socket = socket.ok_or(io::ErrorKind::AddrNotAvailable)?;
        Ok(socket.mtu_towards(addresses.dst())?)
    }

    /// Returns the number of packets that the kernel dropped because a buffer was full, since the endpoint was opened.
    #[must_use]
    pub fn overruns(&self) -> u64 {
        let drops = |socket: &Socket| crate::sys::options::drops(socket.as_fd());
        let drops = self.sockets.iter().filter_map(|s| drops(s).ok());
        drops.map(u64::from).sum()
    }

    /// Makes an empty batch for this endpoint.
    #[must_use]
    pub fn batch(&self) -> Batch {
        Batch::new(self.port)
    }

    /// Sends the packets of `batch`; returns the number that the kernel took.
    ///
    /// Packets that the kernel refuses are counted and dropped, as if lost in the network. If the kernel's buffer is
    /// full, the remaining packets stay in the batch.
    pub fn send(&self, batch: &mut Batch) -> usize {
        self.send_all(batch, None)
    }

    /// Sends the packets of `batch` as [`send`](Self::send), and passes each packet that the kernel has taken to
    /// `observe`, in order.
    ///
    /// Probes, which processes of one address exchange about the order of their sockets, are not observed.
    pub fn send_observed(&self, batch: &mut Batch, mut observe: impl FnMut(&Sent<'_>)) -> usize {
        self.send_all(batch, Some(&mut observe))
    }

    fn send_all(
        &self,
        batch: &mut Batch,
        mut observer: Option<&mut dyn FnMut(&Sent<'_>)>,
    ) -> usize {
        let mut sent = 0;
        while let Some(first) = batch.waiting().first() {
            let source = first.flow.addresses.src();
            let Some(socket) = self.socket_of(source) else {
                add(&self.counters.send_err, usize::from(first.packets));
                batch.done(1);
                continue;
            };
            if first.packets > 1 && socket.unsegmented.load(Ordering::Relaxed) {
                batch.split_first();
                continue;
            }
            match send_some(socket, batch) {
                Ok(bursts) => {
                    let bursts = &batch.waiting()[..bursts];
                    sent += bursts.iter().map(|b| usize::from(b.packets)).sum::<usize>();
                    if let Some(observe) = &mut observer {
                        bursts
                            .iter()
                            .for_each(|burst| show(socket, batch, burst, observe));
                    }
                    let bursts = bursts.len();
                    batch.done(bursts);
                }
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(error) => self.refused(socket, batch, error),
            }
        }
        add(&self.counters.sent_pkts, sent);
        sent
    }

    /// Handles the first burst, which the kernel has refused.
    fn refused(&self, socket: &Socket, batch: &mut Batch, error: Errno) {
        let Some(packets) = batch.waiting().first().map(|b| usize::from(b.packets)) else {
            return;
        };
        // EIO: the device computes no checksums, so the kernel does not segment (`udp_send_skb`).
        if error == Errno::IO && packets > 1 {
            socket.unsegmented.store(true, Ordering::Relaxed);
            add(&self.counters.unsegmented_bursts, 1);
            batch.split_first();
            return;
        }
        add(&self.counters.send_err, packets);
        batch.done(1);
    }

    fn socket_of(&self, source: IpAddr) -> Option<&Socket> {
        self.sockets.iter().find(|s| s.address.ip == source)
    }

    /// Receives packets without waiting and passes them to `take`; returns their number.
    ///
    /// A call polls only the socket of the last packets for some turns, then all ready sockets, by one system call each.
    /// So further packets may be waiting, even if the result is 0. In that case the descriptor is readable, and
    /// [`Inbox::is_drained`] is false.
    ///
    /// Packets for other processes of the fabric are forwarded instead. Packets for QPN 1 are always passed to `take`.
    pub fn receive(&self, inbox: &mut Inbox, mut take: impl FnMut(Received<'_>)) -> usize {
        inbox.all_empty = false;
        if let Some(turns) = inbox.turns.checked_sub(1)
            && let Some(socket) = inbox.last.and_then(|last| self.sockets.get(last))
        {
            inbox.turns = turns;
            return self.receive_from(socket, inbox, &mut take);
        }
        inbox.is_drained = false;
        self.receive_from_any(inbox, &mut take)
    }

    fn receive_from_any(&self, inbox: &mut Inbox, take: &mut impl FnMut(Received<'_>)) -> usize {
        let (mut count, mut ready) = (0, 0);
        for_each_ready(self.epoll.as_fd(), |registered| {
            ready += 1;
            let i = usize::try_from(registered).unwrap_or(usize::MAX);
            if let Some(socket) = self.sockets.get(i) {
                count += self.receive_from(socket, inbox, take);
                inbox.last = Some(i);
            } else if let Some(shared) = &self.shared {
                let handed = shared.receive(inbox.buffers.scratch(), MAX_HANDED_OVER, take);
                add(&self.counters.forward_rcvd_pkts, handed);
                add(&self.counters.rcvd_pkts, handed);
                count += handed;
            }
        });
        // The next packets almost always come to the same socket, where one system call finds them.
        inbox.turns = TURNS;
        inbox.is_drained &= ready <= 1;
        inbox.all_empty = ready == 0 || inbox.is_drained;
        count
    }

    fn receive_from(
        &self,
        socket: &Socket,
        inbox: &mut Inbox,
        take: &mut impl FnMut(Received<'_>),
    ) -> usize {
        // An error belongs to an earlier packet (an ICMP message), and says nothing about waiting packets.
        let messages = inbox.buffers.receive(socket.as_fd(), inbox.width);
        let messages = messages.unwrap_or(0);
        inbox.is_drained = messages < inbox.width;
        inbox.width = match messages {
            0 => LEAST_WIDTH,
            all if all == inbox.width => (all * 2).min(receive::MAX_MESSAGES),
            _ => inbox.width,
        };
        let mut count = 0;
        for i in 0..messages {
            if let Some(message) = inbox.buffers.message(i) {
                count += self.split(socket, &message, take);
            }
        }
        add(&self.counters.rcvd_pkts, count);
        count
    }

    /// Passes the packets of a message to `take`.
    fn split(
        &self,
        socket: &Socket,
        message: &receive::Message<'_>,
        take: &mut impl FnMut(Received<'_>),
    ) -> usize {
        let Some(addresses) = Addresses::new(message.source, socket.address.ip) else {
            return 0;
        };
        let frame = Frame {
            addresses,
            src_port: message.source_port,
            dst_port: self.port,
            identification: 0,
        };
        if message.bytes.is_empty() {
            add(&self.counters.rcvd_short_pkts, 1);
        }
        let mut count = 0;
        for (place, bytes) in (0..).zip(message.bytes.chunks(message.segment.max(1))) {
            let frame = frame.segment(place);
            let (class, limit) = (message.traffic_class, message.hop_limit);
            let Some(packet) = Received::new(frame, class, limit, bytes) else {
                add(&self.counters.rcvd_short_pkts, 1);
                continue;
            };
            if let Some(shared) = &self.shared
                && !shared.is_own(&packet)
            {
                let doubts = shared.redirect(socket, &packet, &self.counters);
                if doubts {
                    shared.look(&self.sockets, true);
                }
                continue;
            }
            take(packet);
            count += 1;
        }
        count
    }

    /// Forwards a packet to the process with `slot`: a packet for QPN 1 that concerns a queue pair of that process.
    ///
    /// # Errors
    /// No process has the slot, or its queue is full. The packet is counted.
    pub fn forward(&self, slot: u16, packet: &Received<'_>) -> io::Result<()> {
        match &self.shared {
            Some(shared) => shared.forward(slot, packet, &self.counters),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// Removes dead processes of the fabric from the groups, so that packets reach the right processes directly.
    /// Misdirected packets cause the same, but later.
    pub fn refresh(&self) {
        if let Some(shared) = &self.shared {
            shared.look(&self.sockets, false);
        }
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        if let Some(shared) = &self.shared {
            shared.leave(std::mem::take(&mut self.sockets));
        }
    }
}

impl AsFd for Endpoint {
    /// Returns a descriptor for `poll(2)` that is readable while packets wait.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

/// Passes the packets of a burst that was sent from `socket` to `observe`.
fn show(socket: &Socket, batch: &Batch, burst: &Burst, observe: &mut dyn FnMut(&Sent<'_>)) {
    let hop_limit = match burst.flow.hop_limit {
        0 => socket.default_hop_limit(),
        limit => limit,
    };
    for (frame, bytes) in batch.packets(burst) {
        observe(&Sent {
            frame,
            traffic_class: burst.flow.traffic_class,
            hop_limit,
            bytes,
        });
    }
}

/// Sends the first bursts of `batch` whose source is `socket`; returns the number of sent bursts.
fn send_some(socket: &Socket, batch: &Batch) -> Result<usize, Errno> {
    let source = socket.address.ip;
    let segmented = !socket.unsegmented.load(Ordering::Relaxed);
    let sendable = |b: &&Burst| b.flow.addresses.src() == source && (segmented || b.packets == 1);
    let bursts = batch.waiting().iter().take_while(sendable);
    let mut messages: Vec<send::Message<'_>> = Vec::with_capacity(send::MAX_MESSAGES);
    for burst in bursts.take(send::MAX_MESSAGES) {
        messages.push(send::Message {
            to: socket.address_of(burst.flow.addresses.dst()),
            bytes: batch.bytes(burst),
            segment: (burst.packets > 1).then_some(burst.segment as u16),
            traffic_class: burst.flow.traffic_class,
            hop_limit: burst.flow.hop_limit,
        });
    }
    send::send(socket.as_fd(), &messages).map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))
}
