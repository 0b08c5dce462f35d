//! An endpoint, which sends and receives RoCEv2 packets at some addresses of this host.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;

use roce::icrc::{IcrcFields, IpAddressPair};
use rustix::event::epoll;
use rustix::io::Errno;

use crate::batch::{GsoBurst, PacketBatch};
use crate::config::{Config, LocalAddress};
use crate::counters::{Counters, add_to_counter};
use crate::error::LinkError;
use crate::packet::{ReceivedPacket, SentPacket};
use crate::shared_groups::SharedGroups;
use crate::socket::{BoundSocket, PortSharing};
use crate::sys::epoll::for_each_ready_fd;
use crate::sys::{receive, send};

/// Number of receives from one socket between two polls of all sockets.
const RECEIVES_BEFORE_REPOLL: u8 = 8;

/// Minimum number of messages per system call. If fewer are returned, the socket is empty.
const MIN_MESSAGES_PER_CALL: usize = 2;

/// Largest number of forwarded packets that one receive takes.
const MAX_FORWARDED_PER_RECEIVE: usize = 64;

/// The sockets of one process.
///
/// All functions take a shared reference. A thread needs its own [`PacketBatch`] to send and its own [`ReceiveBuffers`]
/// to receive.
#[derive(Debug)]
pub struct Endpoint {
    sockets: Vec<BoundSocket>,
    /// The errors of the configured addresses at which no socket could be opened.
    socket_open_errors: Vec<LinkError>,
    udp_port: u16,
    epoll: OwnedFd,
    shared_groups: Option<SharedGroups>,
}

/// Receive buffers. They use up to 1 MiB, allocated when used.
pub struct ReceiveBuffers {
    buffers: receive::MessageBuffers,
    /// Number of messages for the next system call: doubled after a full call, small after an empty one.
    max_messages_of_next_call: usize,
    /// True if the last system call returned fewer messages than requested.
    is_last_socket_drained: bool,
    /// True if the last receive has left no packet at any socket.
    are_all_sockets_empty: bool,
    /// Index of the socket from which the last packets came.
    last_received_socket: Option<usize>,
    /// Number of further receives from that socket before all sockets are polled.
    receives_before_repoll: u8,
}

impl Default for ReceiveBuffers {
    fn default() -> ReceiveBuffers {
        ReceiveBuffers {
            buffers: receive::MessageBuffers::new(),
            max_messages_of_next_call: MIN_MESSAGES_PER_CALL,
            is_last_socket_drained: false,
            last_received_socket: None,
            receives_before_repoll: 0,
            are_all_sockets_empty: false,
        }
    }
}

impl ReceiveBuffers {
    /// Returns true if the socket of the last packets was empty then, so that an immediate second receive would find
    /// nothing.
    #[must_use]
    pub fn is_last_socket_drained(&self) -> bool {
        self.is_last_socket_drained
    }

    /// Returns true if the last [`Endpoint::receive`] polled all sockets and left no packet at any of them.
    #[must_use]
    pub fn are_all_sockets_empty(&self) -> bool {
        self.are_all_sockets_empty
    }
}

impl Endpoint {
    /// Opens the endpoint's sockets at all addresses where that is possible.
    ///
    /// # Errors
    /// No address could be opened: the reason of the first one. Otherwise [`Endpoint::socket_open_error_of`] has the
    /// reasons of the addresses that failed.
    pub fn open(config: &Config) -> Result<Endpoint, LinkError> {
        let failed = |e: Errno| LinkError::EpollCreateFailed { source: e.into() };
        let shared = match &config.fabric_membership {
            Some(fabric) => Some(SharedGroups::open(fabric, config.udp_port)?),
            None => None,
        };
        let mut endpoint = Endpoint {
            sockets: Vec::new(),
            socket_open_errors: Vec::new(),
            udp_port: config.udp_port,
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?,
            shared_groups: shared,
        };
        for address in &config.addresses {
            let opened = match &endpoint.shared_groups {
                Some(shared) => shared.bind_and_join(*address, config),
                None => BoundSocket::open(*address, config, PortSharing::Exclusive),
            };
            match opened {
                Ok(socket) => endpoint.sockets.push(socket),
                Err(error) => endpoint.socket_open_errors.push(error),
            }
        }
        if endpoint.sockets.is_empty() {
            let first = endpoint.socket_open_errors.drain(..).next();
            return Err(first.unwrap_or(LinkError::NoAddress));
        }
        endpoint.register_with_epoll().map_err(failed)?;
        Ok(endpoint)
    }

    /// Registers all sockets with the epoll descriptor.
    fn register_with_epoll(&self) -> Result<(), Errno> {
        let handover = self.shared_groups.iter().map(AsFd::as_fd);
        let fds = self.sockets.iter().map(AsFd::as_fd).chain(handover);
        for (i, fd) in (0..).zip(fds) {
            let data = epoll::EventData::new_u64(i);
            epoll::add(&self.epoll, fd, data, epoll::EventFlags::IN)?;
        }
        Ok(())
    }

    /// Returns the reason why an address of the configuration could not be opened.
    #[must_use]
    pub fn socket_open_error_of(&self, address: IpAddr) -> Option<&LinkError> {
        let mut errors = self.socket_open_errors.iter();
        errors.find(|error| error.address() == Some(address))
    }

    /// Returns the addresses that were opened.
    pub fn opened_addresses(&self) -> impl Iterator<Item = LocalAddress> {
        self.sockets.iter().map(|socket| socket.address)
    }

    /// Returns the counters of each address that was opened.
    pub fn counters_by_address(&self) -> impl Iterator<Item = (IpAddr, &Counters)> {
        self.sockets.iter().map(|s| (s.address.ip, &s.counters))
    }

    /// Returns the size of the largest unfragmented IP packet from source to destination of `addresses`, as far as the
    /// host knows.
    ///
    /// # Errors
    /// The error of the system call, e.g. if no route to the destination exists.
    pub fn mtu_towards(&self, addresses: IpAddressPair) -> io::Result<u32> {
        let socket = self.socket_of_source(addresses.src());
        let socket = socket.ok_or(io::ErrorKind::AddrNotAvailable)?;
        Ok(socket.mtu_towards(addresses.dst())?)
    }

    /// Returns for each address the number of packets that the kernel dropped because the buffer was full, since the
    /// endpoint was opened.
    pub fn kernel_drops_by_address(&self) -> impl Iterator<Item = (IpAddr, u64)> {
        let drops = |socket: &BoundSocket| {
            crate::sys::options::kernel_dropped_datagram_count(socket.as_fd()).unwrap_or(0)
        };
        let of = move |socket: &BoundSocket| (socket.address.ip, u64::from(drops(socket)));
        self.sockets.iter().map(of)
    }

    /// Makes an empty batch for this endpoint.
    #[must_use]
    pub fn new_batch(&self) -> PacketBatch {
        PacketBatch::new(self.udp_port)
    }

    /// Sends the packets of `batch`; returns the number that the kernel took.
    ///
    /// Packets that the kernel refuses are counted and dropped, as if lost in the network. If the kernel's buffer is
    /// full, the remaining packets stay in the batch.
    pub fn send(&self, batch: &mut PacketBatch) -> usize {
        self.send_with_optional_observer(batch, None)
    }

    /// Sends the packets of `batch` as [`send`](Self::send), and passes each packet that the kernel has taken to
    /// `observe`, in order.
    ///
    /// Probes, which processes of one address exchange about the order of their sockets, are not observed.
    pub fn send_observed(
        &self,
        batch: &mut PacketBatch,
        mut observe: impl FnMut(&SentPacket<'_>),
    ) -> usize {
        self.send_with_optional_observer(batch, Some(&mut observe))
    }

    fn send_with_optional_observer(
        &self,
        batch: &mut PacketBatch,
        mut observer: Option<&mut dyn FnMut(&SentPacket<'_>)>,
    ) -> usize {
        let mut sent = 0;
        while let Some(first) = batch.unsent_bursts().first() {
            let source = first.flow.addresses.src();
            let Some(socket) = self.socket_of_source(source) else {
                if let Some(counters) = self.counters_of_address_or_first(source) {
                    add_to_counter(&counters.send_err, usize::from(first.packet_count));
                }
                batch.remove_first_unsent_bursts(1);
                continue;
            };
            if first.packet_count > 1 && socket.is_segmentation_refused.load(Ordering::Relaxed) {
                batch.split_first_unsent_into_packets();
                continue;
            }
            match send_first_bursts(socket, batch) {
                Ok(bursts) => {
                    let bursts = &batch.unsent_bursts()[..bursts];
                    let packets = bursts
                        .iter()
                        .map(|b| usize::from(b.packet_count))
                        .sum::<usize>();
                    let bytes = bursts.iter().map(GsoBurst::byte_count).sum::<usize>();
                    add_to_counter(&socket.counters.sent_pkts, packets);
                    add_to_counter(&socket.counters.sent_bytes, bytes);
                    sent += packets;
                    if let Some(observe) = &mut observer {
                        bursts
                            .iter()
                            .for_each(|burst| observe_burst(socket, batch, burst, observe));
                    }
                    let bursts = bursts.len();
                    batch.remove_first_unsent_bursts(bursts);
                }
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(error) => Self::split_or_drop_refused_burst(socket, batch, error),
            }
        }
        sent
    }

    /// Handles the first burst, which the kernel has refused.
    fn split_or_drop_refused_burst(socket: &BoundSocket, batch: &mut PacketBatch, error: Errno) {
        let Some(packets) = batch
            .unsent_bursts()
            .first()
            .map(|b| usize::from(b.packet_count))
        else {
            return;
        };
        // EIO: the device computes no checksums, so the kernel does not segment (`udp_send_skb`).
        if error == Errno::IO && packets > 1 {
            socket
                .is_segmentation_refused
                .store(true, Ordering::Relaxed);
            add_to_counter(&socket.counters.unsegmented_bursts, 1);
            batch.split_first_unsent_into_packets();
            return;
        }
        add_to_counter(&socket.counters.send_err, packets);
        batch.remove_first_unsent_bursts(1);
    }

    fn socket_of_source(&self, source: IpAddr) -> Option<&BoundSocket> {
        self.sockets.iter().find(|s| s.address.ip == source)
    }

    /// Returns the counters of an address; those of the first address if no socket has this one.
    fn counters_of_address_or_first(&self, ip: IpAddr) -> Option<&Counters> {
        let socket = self.socket_of_source(ip).or(self.sockets.first())?;
        Some(&socket.counters)
    }

    /// Receives packets without waiting and passes them to `take`; returns their number.
    ///
    /// A call polls only the socket of the last packets for some turns, then all ready sockets, by one system call
    /// each. So further packets may be waiting, even if the result is 0. In that case the descriptor is readable, and
    /// [`ReceiveBuffers::is_last_socket_drained`] is false.
    ///
    /// Packets for other processes of the fabric are forwarded instead. Packets for QPN 1 are always passed to `take`.
    pub fn receive(
        &self,
        inbox: &mut ReceiveBuffers,
        mut take: impl FnMut(ReceivedPacket<'_>),
    ) -> usize {
        inbox.are_all_sockets_empty = false;
        if let Some(turns) = inbox.receives_before_repoll.checked_sub(1)
            && let Some(socket) = inbox
                .last_received_socket
                .and_then(|last| self.sockets.get(last))
        {
            inbox.receives_before_repoll = turns;
            return self.receive_from_socket(socket, inbox, &mut take);
        }
        inbox.is_last_socket_drained = false;
        self.receive_from_any_socket(inbox, &mut take)
    }

    fn receive_from_any_socket(
        &self,
        inbox: &mut ReceiveBuffers,
        take: &mut impl FnMut(ReceivedPacket<'_>),
    ) -> usize {
        let (mut count, mut ready) = (0, 0);
        for_each_ready_fd(self.epoll.as_fd(), |registered| {
            ready += 1;
            let i = usize::try_from(registered).unwrap_or(usize::MAX);
            if let Some(socket) = self.sockets.get(i) {
                count += self.receive_from_socket(socket, inbox, take);
                inbox.last_received_socket = Some(i);
            } else if let Some(shared) = &self.shared_groups {
                let mut counted = |packet: ReceivedPacket<'_>| {
                    if let Some(counters) =
                        self.counters_of_address_or_first(packet.icrc_fields.addresses.dst())
                    {
                        add_to_counter(&counters.forward_rcvd_pkts, 1);
                        add_to_counter(&counters.rcvd_pkts, 1);
                        add_to_counter(&counters.rcvd_bytes, packet.bytes.len());
                    }
                    take(packet);
                };
                let buffer = inbox.buffers.scratch_discarding_messages();
                count += shared.receive_forwarded(buffer, MAX_FORWARDED_PER_RECEIVE, &mut counted);
            }
        });
        // The next packets almost always come to the same socket, where one system call finds them.
        inbox.receives_before_repoll = RECEIVES_BEFORE_REPOLL;
        inbox.is_last_socket_drained &= ready <= 1;
        inbox.are_all_sockets_empty = ready == 0 || inbox.is_last_socket_drained;
        count
    }

    fn receive_from_socket(
        &self,
        socket: &BoundSocket,
        inbox: &mut ReceiveBuffers,
        take: &mut impl FnMut(ReceivedPacket<'_>),
    ) -> usize {
        // An error belongs to an earlier packet (an ICMP message), and says nothing about waiting packets.
        let messages = inbox
            .buffers
            .receive(socket.as_fd(), inbox.max_messages_of_next_call);
        let messages = messages.unwrap_or(0);
        inbox.is_last_socket_drained = messages < inbox.max_messages_of_next_call;
        inbox.max_messages_of_next_call = match messages {
            0 => MIN_MESSAGES_PER_CALL,
            all if all == inbox.max_messages_of_next_call => {
                (all * 2).min(receive::MAX_MESSAGES_PER_CALL)
            }
            _ => inbox.max_messages_of_next_call,
        };
        let mut count = 0;
        for i in 0..messages {
            if let Some(message) = inbox.buffers.message(i) {
                count += self.split_into_packets(socket, &message, take);
            }
        }
        add_to_counter(&socket.counters.rcvd_pkts, count);
        count
    }

    /// Passes the packets of a message to `take`. An empty datagram has none: it asks whether the port is open.
    fn split_into_packets(
        &self,
        socket: &BoundSocket,
        message: &receive::ReceivedMessage<'_>,
        take: &mut impl FnMut(ReceivedPacket<'_>),
    ) -> usize {
        let Some(addresses) = IpAddressPair::new(message.source, socket.address.ip) else {
            return 0;
        };
        let frame = IcrcFields {
            addresses,
            src_port: message.source_port,
            dst_port: self.udp_port,
            identification: 0,
        };
        let (mut count, mut total) = (0, 0);
        for (place, bytes) in (0..).zip(message.bytes.chunks(message.segment_bytes.max(1))) {
            let frame = frame.for_gso_segment(place);
            let (class, limit) = (message.traffic_class, message.hop_limit);
            let Some(packet) = ReceivedPacket::new(frame, class, limit, bytes) else {
                add_to_counter(&socket.counters.rcvd_short_pkts, 1);
                continue;
            };
            if let Some(shared) = &self.shared_groups
                && !shared.is_for_this_process(&packet)
            {
                if shared.handle_misdirected_packet(socket, &packet) {
                    shared.remove_dead_members_and_probe(&self.sockets, true);
                }
                continue;
            }
            take(packet);
            count += 1;
            total += bytes.len();
        }
        add_to_counter(&socket.counters.rcvd_bytes, total);
        count
    }

    /// Forwards a packet to the process with `slot`: a packet for QPN 1 that concerns a queue pair of that process.
    ///
    /// # Errors
    /// No process has the slot, or its queue is full. The packet is counted.
    pub fn forward_to_process(&self, slot: u16, packet: &ReceivedPacket<'_>) -> io::Result<()> {
        let counters = self.counters_of_address_or_first(packet.icrc_fields.addresses.dst());
        match self.shared_groups.as_ref().zip(counters) {
            Some((shared, counters)) => shared.forward_to_process(slot, packet, counters),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// Removes dead processes of the fabric from the groups, so that packets reach the right processes directly.
    /// Misdirected packets cause the same, but later.
    pub fn remove_dead_members(&self) {
        if let Some(shared) = &self.shared_groups {
            shared.remove_dead_members_and_probe(&self.sockets, false);
        }
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        if let Some(shared) = &self.shared_groups {
            shared.leave_and_close(std::mem::take(&mut self.sockets));
        }
    }
}

impl AsFd for Endpoint {
    /// Returns a descriptor for `poll(2)` that is readable while packets wait.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

/// Calls `observe` with each packet of a burst that `socket` has sent.
fn observe_burst(
    socket: &BoundSocket,
    batch: &PacketBatch,
    burst: &GsoBurst,
    observe: &mut dyn FnMut(&SentPacket<'_>),
) {
    let hop_limit = match burst.flow.hop_limit {
        0 => socket.default_hop_limit(),
        limit => limit,
    };
    for (frame, bytes) in batch.packets_of_burst(burst) {
        observe(&SentPacket {
            icrc_fields: frame,
            traffic_class: burst.flow.traffic_class,
            hop_limit,
            bytes,
        });
    }
}

/// Sends the first bursts of `batch` whose source is `socket`; returns the number of sent bursts.
fn send_first_bursts(socket: &BoundSocket, batch: &PacketBatch) -> Result<usize, Errno> {
    let source = socket.address.ip;
    let segmented = !socket.is_segmentation_refused.load(Ordering::Relaxed);
    let sendable =
        |b: &&GsoBurst| b.flow.addresses.src() == source && (segmented || b.packet_count == 1);
    let bursts = batch.unsent_bursts().iter().take_while(sendable);
    let mut messages: Vec<send::BurstMessage<'_>> = Vec::with_capacity(send::MAX_MESSAGES_PER_CALL);
    for burst in bursts.take(send::MAX_MESSAGES_PER_CALL) {
        messages.push(send::BurstMessage {
            destination: socket.socket_address_on_same_link(burst.flow.addresses.dst()),
            bytes: batch.bytes_of_burst(burst),
            segment_bytes: (burst.packet_count > 1).then_some(burst.segment_bytes as u16),
            traffic_class: burst.flow.traffic_class,
            hop_limit: burst.flow.hop_limit,
        });
    }
    send::send_bursts(socket.as_fd(), &messages)
        .map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))
}
