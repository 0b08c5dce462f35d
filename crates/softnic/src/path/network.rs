//! The state that the queue pairs of a process share on the path by packets: sockets, outgoing packets, and counts.

use std::collections::HashMap;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, compiler_fence};
use std::sync::{
    Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard, TryLockError,
};
use std::time::Duration;

use link::{
    Config, Endpoint, FabricMembership, LinkError, LocalAddress, PacketBatch, PacketFlow,
    ReceiveBuffers, ReceivedPacket,
};
use roce::UDP_PORT;
use roce::dcqcn::DcqcnParameters;
use roce::icrc;
use roce::packet::Packet;
use shm::clock::now_ns;
use shm::fabric::Peer;

use super::capture::{BadCapture, WireCapture};
use super::congestion::{BadCongestionControl, congestion_control_from_env};
use super::counters::{CountedPort, port_with_address_or_first};
use super::gsi::Gsi;
use super::hw_counters::LOCK_PATIENCE;
use super::mode::InvalidPathMode;
use super::packet_checks::PacketChecks;
use super::packet_faults::FaultyWire;
use super::post_bursts::PostBursts;
use super::traffic::{
    Direction, OctetAndPacketCounts, PortTrafficCounters, ethernet_ip_udp_header_octets,
};
use super::{DropReason, PacketCounters, PathMode};
use crate::lock::lock;

/// True if queue pairs of this process send or receive packets: every poll then checks for packets.
///
/// A UD queue pair alone does not set this, although its process has sockets. The engine waits for its first packet, so
/// a program whose peers are all on this host makes no system call in its polls.
static PACKETS_IN_USE: AtomicBool = AtomicBool::new(false);

/// Returns true if queue pairs of this process send or receive packets.
#[inline]
pub(crate) fn are_packets_in_use() -> bool {
    PACKETS_IN_USE.load(Ordering::Relaxed)
}

/// Records that a queue pair of this process sends or receives packets, now or soon.
pub(crate) fn note_packets_in_use() {
    if !are_packets_in_use() {
        PACKETS_IN_USE.store(true, Ordering::Relaxed);
    }
}

/// The properties of an arrived packet beside its transport headers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PacketArrival {
    /// The addresses and IP fields with which the packet has travelled.
    pub(crate) flow: PacketFlow,
    /// True if a switch has marked congestion (RFC 3168).
    pub(crate) is_ecn_marked: bool,
}

impl PacketArrival {
    /// Returns true if the packet comes from the destination of `flow` and goes to its source.
    pub(crate) fn is_from_peer(&self, flow: &PacketFlow) -> bool {
        self.flow.addresses.src() == flow.addresses.dst()
            && self.flow.addresses.dst() == flow.addresses.src()
    }
}

/// Returns the packet that was received, if it is undamaged.
///
/// # Errors
/// The reason why the packet is dropped.
fn parse_checked<'a>(received: &ReceivedPacket<'a>) -> Result<Packet<'a>, DropReason> {
    let (transport, icrc) = icrc::split_off_icrc(received.bytes).ok_or(DropReason::Malformed)?;
    icrc::recover_identification_if_icrc_valid(&received.icrc_fields, transport, icrc)
        .ok_or(DropReason::WrongIcrc)?;
    Packet::parse(transport).map_err(|_| DropReason::Malformed)
}

/// Largest number of packets that wait for the next post: half of what one system call sends at best.
const MAX_HELD_BACK_PACKETS: usize = 32;

/// Smallest number of packets that fill the buffer of a socket. Linux gives it 416 KiB, and counts 8448 bytes for a
/// packet with 4096 of payload.
const MIN_FULL_BUFFER_PACKETS: usize = 32;

/// Longest time for which the end of a process waits until no thread sends or receives.
const MAX_WAIT_FOR_SENDERS_AND_RECEIVERS_NS: u64 = 50_000_000;

/// Longest time for which the end of a process waits until packets have left that a fault plan has made late.
const MAX_WAIT_FOR_LATE_PACKETS_NS: u64 = 1_000_000_000;

/// The state of the thread that receives packets from the network and delivers them.
#[derive(Default)]
pub(crate) struct ReceiveState {
    receive_buffers: ReceiveBuffers,
    packet_checks: PacketChecks,
    /// Number of packets that have arrived since the sockets were last asked for their drops, and the number of drops
    /// then.
    packets_arrived_since_drop_check: usize,
    drop_count_at_last_check: u64,
}

impl ReceiveState {
    /// Returns true if another check, at once, would find nothing
    /// ([`ReceiveBuffers::is_last_socket_drained`](link::ReceiveBuffers::is_last_socket_drained)).
    pub(crate) fn is_drained(&self) -> bool {
        self.receive_buffers.is_last_socket_drained()
    }
}

/// The process and the files for the publication of counters.
pub(crate) struct CounterPublication {
    /// This process, whose engine publishes.
    pub(crate) this_process: Arc<Peer>,
    /// Its ports, with the files to which it publishes.
    pub(crate) ports: Vec<CountedPort>,
    /// The traffic counters of its ports, by address.
    pub(crate) traffic_counters_by_address: Vec<(IpAddr, Arc<PortTrafficCounters>)>,
    /// The amounts that the traffic counters have, by address: sent, received.
    pub(crate) published_traffic: Mutex<HashMap<IpAddr, [OctetAndPacketCounts; 2]>>,
}

impl CounterPublication {
    /// Adds what the endpoint has sent and received to the traffic counters.
    fn count_traffic(&self, endpoint: &Endpoint) {
        let mut published = lock(&self.published_traffic);
        for (ip, counters) in endpoint.counters_by_address() {
            let Some((_, port)) = self
                .traffic_counters_by_address
                .iter()
                .find(|(own, _)| *own == ip)
            else {
                continue;
            };
            let headers = ethernet_ip_udp_header_octets(ip.is_ipv4());
            let amount = |packets: &AtomicU64, bytes: &AtomicU64| {
                let packets = packets.load(Ordering::Relaxed);
                OctetAndPacketCounts {
                    octets: bytes.load(Ordering::Relaxed) + packets * headers,
                    packets,
                    multicast_packets: 0,
                }
            };
            let sent = amount(&counters.sent_pkts, &counters.sent_bytes);
            let received = amount(&counters.rcvd_pkts, &counters.rcvd_bytes);
            let before = published.entry(ip).or_default();
            let [sent_before, received_before] = std::mem::replace(before, [sent, received]);
            port.add(Direction::Transmitted, sent.since(sent_before));
            port.add(Direction::Received, received.since(received_before));
        }
    }
}

/// The path by packets of one process.
pub(crate) struct PacketPath {
    mode: PathMode,
    /// The sockets; taken out when the process ends.
    ///
    /// A thread reads them for as long as it delivers packets, and may wait meanwhile for the lock of a queue pair. The
    /// thread that has that lock may send, and then reads, too. So no thread may *wait* for writing once they are open:
    /// an `RwLock` lets no reader in that comes after a waiting writer.
    endpoint: RwLock<Option<Endpoint>>,
    /// Held by the thread that opens the sockets.
    opening_lock: Mutex<()>,
    /// A descriptor that is readable while packets wait.
    readiness_fd: OnceLock<OwnedFd>,
    outgoing_packets: Mutex<PacketBatch>,
    /// Held by the thread that delivers, until it has sent the answers, so that packets keep their order.
    receive_state: Mutex<ReceiveState>,
    /// The value of [`delivered_until_ns`](Self::delivered_until_ns).
    delivered_until_ns: AtomicU64,
    /// True while the engine checks for packets.
    engine_checks_packets: AtomicBool,
    /// Number of checks for packets by threads of the program.
    program_check_count: AtomicU64,
    /// Number of packets that have arrived.
    arrived_packet_count: AtomicU64,
    post_bursts: PostBursts,
    /// True if packets wait for the next post or poll
    /// ([`send_or_hold_back_after_post`](Self::send_or_hold_back_after_post)).
    has_held_back_packets: AtomicBool,
    pub(crate) counters: PacketCounters,
    counter_publication: OnceLock<CounterPublication>,
    /// The effects of a fault plan on packets.
    faulty_wire: Option<FaultyWire>,
    /// The parameters of DCQCN; `None` if it is turned off.
    congestion: Option<DcqcnParameters>,
    /// The capture into which packets are written.
    capture: Option<WireCapture>,
    /// The delivery of datagrams for QP1.
    pub(crate) gsi: Gsi,
}

/// The reason why the configuration of the network is not valid.
#[derive(Debug, thiserror::Error)]
pub enum BadNetwork {
    /// `VERBATIM_PATH` has an unknown value.
    #[error(transparent)]
    InvalidPathMode(#[from] InvalidPathMode),
    /// `VERBATIM_PCAP` names a file that cannot be written.
    #[error(transparent)]
    Capture(#[from] BadCapture),
    /// `VERBATIM_DCQCN` has an unknown name or a value that is not possible.
    #[error(transparent)]
    Congestion(#[from] BadCongestionControl),
}

impl PacketPath {
    /// Makes the network that the environment asks for.
    ///
    /// # Errors
    /// `VERBATIM_PATH` or `VERBATIM_DCQCN` has an unknown value, or `VERBATIM_PCAP` names a file that cannot be written.
    pub(crate) fn from_env() -> Result<Self, BadNetwork> {
        let capture = WireCapture::from_env()?;
        Ok(Self {
            mode: PathMode::from_env(capture.is_some())?,
            congestion: congestion_control_from_env()?,
            capture,
            endpoint: RwLock::default(),
            opening_lock: Mutex::default(),
            readiness_fd: OnceLock::new(),
            outgoing_packets: Mutex::new(PacketBatch::new(UDP_PORT)),
            receive_state: Mutex::default(),
            engine_checks_packets: AtomicBool::new(false),
            delivered_until_ns: AtomicU64::new(0),
            program_check_count: AtomicU64::new(0),
            arrived_packet_count: AtomicU64::new(0),
            post_bursts: PostBursts::default(),
            has_held_back_packets: AtomicBool::new(false),
            counters: PacketCounters::default(),
            counter_publication: OnceLock::new(),
            faulty_wire: FaultyWire::new(),
            gsi: Gsi::default(),
        })
    }

    /// Returns the mode that selects the path of queue pairs.
    pub(crate) fn mode(&self) -> PathMode {
        self.mode
    }

    /// Returns the parameters of DCQCN; `None` if queue pairs ignore congestion notifications.
    pub(crate) fn congestion(&self) -> Option<DcqcnParameters> {
        self.congestion
    }

    /// Returns true if packets can be sent.
    pub(crate) fn is_open(&self) -> bool {
        self.readiness_fd.get().is_some()
    }

    /// Opens the sockets for packets, if they are not open.
    ///
    /// # Errors
    /// The sockets cannot be opened.
    pub(crate) fn open(
        &self,
        addresses: Vec<LocalAddress>,
        fabric: FabricMembership,
        audience: Option<CounterPublication>,
    ) -> Result<(), LinkError> {
        let _opening = lock(&self.opening_lock);
        if self.is_open() {
            return Ok(());
        }
        let opened = Endpoint::open(&Config {
            fabric_membership: Some(fabric),
            ..Config::new(addresses)
        })?;
        let failed = |source| LinkError::EpollCreateFailed { source };
        let ready = opened.as_fd().try_clone_to_owned().map_err(failed)?;
        *self
            .endpoint
            .write()
            .unwrap_or_else(PoisonError::into_inner) = Some(opened);
        if let Some(audience) = audience {
            let _ = self.counter_publication.set(audience);
        }
        // No other thread sets it, since this one holds `opening_lock`.
        let _ = self.readiness_fd.set(ready);
        Ok(())
    }

    /// Returns the reason why packets of `flow` cannot be sent, and its errno: the socket of its source could not be
    /// opened.
    pub(crate) fn source_socket_error(&self, flow: &PacketFlow) -> Option<(String, i32)> {
        let endpoint = self.lock_endpoint();
        let error = endpoint
            .as_ref()?
            .socket_open_error_of(flow.addresses.src())?;
        Some((error.to_string(), error.errno()))
    }

    /// Returns the largest path MTU, in bytes, of packets of `flow`.
    pub(crate) fn largest_path_mtu_bytes(&self, flow: &PacketFlow) -> u32 {
        let endpoint = self.lock_endpoint();
        let ip_bytes = endpoint.as_ref().map(|e| e.mtu_towards(flow.addresses));
        ip_bytes.map_or(4096, |bytes| bytes.map_or(4096, roce::path_mtu_within))
    }

    /// Returns a descriptor that is readable while packets wait.
    pub(crate) fn readiness_fd(&self) -> Option<BorrowedFd<'_>> {
        self.readiness_fd.get().map(AsFd::as_fd)
    }

    /// Returns the number of checks for packets by threads of the program.
    pub(crate) fn program_check_count(&self) -> u64 {
        self.program_check_count.load(Ordering::Relaxed)
    }

    /// Records that a thread of the program checks for packets.
    pub(crate) fn note_program_check(&self) {
        let polls = self.program_check_count.load(Ordering::Relaxed);
        self.program_check_count
            .store(polls.wrapping_add(1), Ordering::Relaxed);
    }

    /// Takes the packets that `make` makes for the queue pair `qpn`, one a call, until `make` returns false.
    /// [`send_enqueued`](Self::send_enqueued) sends them.
    pub(crate) fn enqueue_packets(
        &self,
        qpn: u32,
        flow: &PacketFlow,
        mut make: impl FnMut(&mut Vec<u8>) -> bool,
    ) {
        let mut batch = self.lock_outgoing_packets();
        let Some(faulty) = &self.faulty_wire else {
            while batch.push_with(flow, &mut make) {}
            return;
        };
        let mut packet = Vec::new();
        loop {
            let more = make(&mut packet);
            if !packet.is_empty() {
                faulty.enqueue_with_faults(&mut batch, qpn, flow, &packet);
                packet.clear();
            }
            if !more {
                return;
            }
        }
    }

    /// Takes one packet that `make` makes; [`send_enqueued`](Self::send_enqueued) sends it.
    pub(crate) fn enqueue_packet(
        &self,
        qpn: u32,
        flow: &PacketFlow,
        make: impl FnOnce(&mut Vec<u8>),
    ) {
        let mut batch = self.lock_outgoing_packets();
        let Some(faulty) = &self.faulty_wire else {
            return batch.push_with(flow, make);
        };
        let mut packet = Vec::new();
        make(&mut packet);
        faulty.enqueue_with_faults(&mut batch, qpn, flow, &packet);
    }

    /// Sends the packets that have been taken.
    pub(crate) fn send_enqueued(&self) {
        if let Some(endpoint) = &*self.lock_endpoint() {
            self.send_enqueued_to_endpoint(endpoint);
        }
    }

    /// Sends the packets of a post, or lets them wait for the next post or poll. The engine sends waiting packets if
    /// the program does neither. `engine_ticks` tells that the engine checks soon.
    pub(crate) fn send_or_hold_back_after_post(&self, engine_ticks: &AtomicBool) {
        let polls = self.program_check_count();
        let received = self.arrived_packet_count.load(Ordering::Relaxed);
        let may_wait = self
            .post_bursts
            .note_post_and_predict_burst(polls, received)
            && self.faulty_wire.is_none()
            && self.lock_outgoing_packets().unsent_packet_count() < MAX_HELD_BACK_PACKETS;
        if may_wait {
            self.has_held_back_packets.store(true, Ordering::Relaxed);
            // SYNC POINT T, as for a WR that is held back: `engine_ticks` is read after the packets wait.
            compiler_fence(Ordering::SeqCst);
            if engine_ticks.load(Ordering::Relaxed) {
                return;
            }
        }
        self.send_enqueued();
    }

    /// Sends the packets that posts have held back. Returns true if there were any.
    #[inline]
    pub(crate) fn send_held_back(&self) -> bool {
        let are_held_back = self.has_held_back_packets.load(Ordering::Relaxed);
        if are_held_back {
            self.send_enqueued();
        }
        are_held_back
    }

    /// Sends waiting packets, and those of the next posts at once: the program has armed a CQ, and may sleep soon.
    pub(crate) fn send_before_sleep(&self) {
        self.post_bursts.forget_expectation();
        self.send_held_back();
    }

    fn send_enqueued_to_endpoint(&self, endpoint: &Endpoint) {
        let mut batch = self.lock_outgoing_packets();
        self.has_held_back_packets.store(false, Ordering::Relaxed);
        if let Some(faulty) = &self.faulty_wire {
            faulty.release_late_outgoing(&mut batch);
        }
        match &self.capture {
            None => drop(endpoint.send(&mut batch)),
            Some(capture) => capture.send_and_capture(endpoint, &mut batch),
        }
        if self.counters.claim_engine_call()
            && let Some(audience) = self.counter_publication.get()
        {
            audience.this_process.wake_engine();
        }
    }

    /// Publishes the counts if it is time. Returns the time until the next publication, if counts are new.
    pub(crate) fn publish_counters_if_due(&self) -> Option<Duration> {
        let endpoint = self.lock_endpoint();
        let endpoint = endpoint.as_ref()?;
        let ports = &self.counter_publication.get()?.ports;
        let wait = self.counters.time_until_publication(endpoint, ports)?;
        if wait.is_zero() {
            self.publish_counters(endpoint, Duration::ZERO);
            return self.counters.time_until_publication(endpoint, ports);
        }
        Some(wait)
    }

    /// Publishes the counts. Waits up to `patience` for another process that publishes.
    fn publish_counters(&self, endpoint: &Endpoint, patience: Duration) {
        let Some(audience) = self.counter_publication.get() else {
            return;
        };
        audience.count_traffic(endpoint);
        if let Err(error) = self.counters.publish(endpoint, &audience.ports, patience) {
            tracing::debug!("counters are not published: {error}");
        }
    }

    /// Gives arrived packets to the capture and then to `take`. Returns their number.
    fn receive_and_capture(
        &self,
        endpoint: &Endpoint,
        inbox: &mut ReceiveBuffers,
        mut take: impl FnMut(&ReceivedPacket<'_>),
    ) -> usize {
        match &self.capture {
            None => endpoint.receive(inbox, |received| take(&received)),
            Some(capture) => endpoint.receive(inbox, |received| {
                capture.capture_received(endpoint, &received);
                take(&received);
            }),
        }
    }

    fn lock_endpoint(&self) -> RwLockReadGuard<'_, Option<Endpoint>> {
        self.endpoint.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if a fault plan holds packets back: the engine then checks again.
    pub(crate) fn has_late_packets(&self) -> bool {
        self.faulty_wire
            .as_ref()
            .is_some_and(|faulty| !faulty.has_no_late_packets())
    }

    fn lock_outgoing_packets(&self) -> MutexGuard<'_, PacketBatch> {
        lock(&self.outgoing_packets)
    }

    /// Records whether the engine is checking for packets.
    pub(crate) fn set_engine_checking(&self, looks: bool) {
        self.engine_checks_packets.store(looks, Ordering::Relaxed);
    }

    /// Returns the state of the thread that delivers. If another thread delivers, returns `None`, or waits if `wait` is
    /// set. A poll also waits for the engine, which may have the answer to a request whose timer has run out.
    pub(crate) fn try_begin_delivery(&self, wait: bool) -> Option<MutexGuard<'_, ReceiveState>> {
        match self.receive_state.try_lock() {
            Err(TryLockError::WouldBlock)
                if !wait && !self.engine_checks_packets.load(Ordering::Relaxed) =>
            {
                None
            }
            Ok(delivery) => Some(delivery),
            Err(_) => Some(lock(&self.receive_state)),
        }
    }

    /// Returns the time before which all packets that arrived have been delivered to their queue pairs.
    pub(crate) fn delivered_until_ns(&self) -> u64 {
        self.delivered_until_ns.load(Ordering::Relaxed)
    }

    /// Returns [`delivered_until_ns`](Self::delivered_until_ns) for packets of the socket that gave the last ones. If
    /// that socket is drained, it holds none that arrived before `now_ns`.
    pub(crate) fn delivered_until_ns_for_last_socket(
        &self,
        delivery: &ReceiveState,
        now_ns: u64,
    ) -> u64 {
        if delivery.is_drained() {
            now_ns
        } else {
            self.delivered_until_ns()
        }
    }

    /// Calls `deliver` with each undamaged packet that has arrived by `now_ns`. Returns the number of arrived packets.
    pub(crate) fn receive_and_deliver(
        &self,
        delivery: &mut ReceiveState,
        now_ns: u64,
        deliver: impl FnMut(&PacketArrival, &Packet<'_>) -> Result<(), DropReason>,
    ) -> usize {
        let packets = self.receive_packets(&mut delivery.receive_buffers, deliver);
        if packets > 0 {
            let before = self.arrived_packet_count.load(Ordering::Relaxed);
            self.arrived_packet_count
                .store(before.wrapping_add(packets as u64), Ordering::Relaxed);
        }
        let all_empty = delivery.receive_buffers.are_all_sockets_empty();
        if let Some(heard_ns) = delivery
            .packet_checks
            .record_receive_and_get_drained_until_ns(now_ns, packets, all_empty)
        {
            self.delivered_until_ns.store(heard_ns, Ordering::Relaxed);
        }
        packets
    }

    /// Returns true if a socket has dropped packets since the last such answer, because its buffer was full. `received`
    /// more packets have arrived.
    ///
    /// The sockets are asked when they are empty, and enough packets have arrived that one may have been full.
    pub(crate) fn has_new_socket_drops(
        &self,
        delivery: &mut ReceiveState,
        received: usize,
    ) -> bool {
        delivery.packets_arrived_since_drop_check += received;
        if delivery.packets_arrived_since_drop_check < MIN_FULL_BUFFER_PACKETS
            || !delivery.is_drained()
        {
            return false;
        }
        delivery.packets_arrived_since_drop_check = 0;
        let endpoint = self.lock_endpoint();
        let overruns = endpoint.iter().flat_map(Endpoint::kernel_drops_by_address);
        let overruns = overruns.map(|(_, count)| count).sum();
        std::mem::replace(&mut delivery.drop_count_at_last_check, overruns) < overruns
    }

    fn receive_packets(
        &self,
        inbox: &mut ReceiveBuffers,
        mut deliver: impl FnMut(&PacketArrival, &Packet<'_>) -> Result<(), DropReason>,
    ) -> usize {
        let endpoint = self.lock_endpoint();
        let Some(endpoint) = &*endpoint else {
            return 0;
        };
        let mut take = |received: &ReceivedPacket<'_>| {
            let arrival = PacketArrival {
                flow: PacketFlow {
                    addresses: received.icrc_fields.addresses,
                    traffic_class: received.traffic_class,
                    hop_limit: received.hop_limit.unwrap_or(0),
                },
                is_ecn_marked: received.is_congestion_experienced(),
            };
            let result = parse_checked(received).and_then(|packet| deliver(&arrival, &packet));
            if let Err(why) = result {
                self.count_drop(received.icrc_fields.addresses.dst(), why);
            }
        };
        let Some(faulty) = &self.faulty_wire else {
            return self.receive_and_capture(endpoint, inbox, take);
        };
        self.send_enqueued_to_endpoint(endpoint);
        let came = self.receive_and_capture(endpoint, inbox, |received| {
            faulty.receive_with_faults(received, &mut take)
        });
        came + faulty.release_late_incoming(&mut take)
    }

    /// Counts a packet that arrived at the address `at` and is dropped.
    #[cold]
    fn count_drop(&self, at: IpAddr, why: DropReason) {
        let ports = self.counter_publication.get().map_or(&[][..], |a| &a.ports);
        let place = port_with_address_or_first(ports, at).map_or(0, |port| port.host_wide_number);
        self.counters.count_drop(place, why);
    }

    /// Closes the sockets at the end of the process, and leaves the addresses to other processes.
    pub(crate) fn close_sockets(&self) {
        if let Some(faulty) = &self.faulty_wire {
            // A late packet has left its adapter. Without the last acknowledgement, the peer would fail.
            let until_ns = now_ns().saturating_add(MAX_WAIT_FOR_LATE_PACKETS_NS);
            while faulty.wait_for_late_outgoing(until_ns) {
                self.send_enqueued();
            }
        }
        for (name, packets) in self.counters.nonzero_drop_counts() {
            tracing::info!("{packets} packets were dropped ({name})");
        }
        let until_ns = now_ns().saturating_add(MAX_WAIT_FOR_SENDERS_AND_RECEIVERS_NS);
        while now_ns() < until_ns {
            let mut endpoint = match self.endpoint.try_write() {
                Ok(endpoint) => endpoint,
                Err(TryLockError::Poisoned(endpoint)) => endpoint.into_inner(),
                Err(TryLockError::WouldBlock) => {
                    std::thread::sleep(Duration::from_millis(1));
                    continue;
                }
            };
            if let Some(endpoint) = endpoint.take() {
                self.send_and_publish_last(&endpoint);
            }
            return;
        }
        // Other threads go on until the process has ended. Then the kernel closes the sockets.
        if let Some(endpoint) = &*self.lock_endpoint() {
            self.send_and_publish_last(endpoint);
        }
    }

    fn send_and_publish_last(&self, endpoint: &Endpoint) {
        self.send_enqueued_to_endpoint(endpoint);
        self.publish_counters(endpoint, LOCK_PATIENCE);
    }

    /// Updates the sockets after a process of the fabric has ended: its packets go to no process from now on.
    pub(crate) fn forget_ended_processes(&self) {
        if let Some(endpoint) = &*self.lock_endpoint() {
            endpoint.remove_dead_members();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::sync::mpsc;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    /// Opens the sockets at an address of the loopback network, which no other test has.
    fn open(path: &PacketPath, folder: &tempfile::TempDir, last_byte: u8) {
        let address = IpAddr::from(Ipv4Addr::new(127, 83, 4, last_byte));
        let fabric = FabricMembership {
            folder: folder.path().to_owned(),
            slot: 1,
        };
        path.open(vec![address.into()], fabric, None)
            .expect("the sockets open");
    }

    /// A thread that connects its first queue pair may find that another thread has just opened the sockets.
    #[test]
    fn opening_open_sockets_waits_for_no_thread_that_delivers() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = PacketPath::from_env().expect("a path");
        open(&path, &folder, 8);
        let (tell, told) = mpsc::channel();
        std::thread::scope(|scope| {
            let delivering = path.lock_endpoint();
            scope.spawn(|| {
                open(&path, &folder, 8);
                let _ = tell.send(());
            });
            let opened = told.recv_timeout(PATIENCE);
            drop(delivering);
            opened.expect("it does not wait");
        });
    }

    /// The thread that delivers waits for the lock of a thread that sends, which must be able to send.
    #[test]
    fn the_end_of_a_process_keeps_no_thread_from_sending() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = PacketPath::from_env().expect("a path");
        open(&path, &folder, 9);
        std::thread::scope(|scope| {
            let delivering = path.lock_endpoint();
            let closing = scope.spawn(|| path.close_sockets());
            while !closing.is_finished() {
                let can_send = path.endpoint.try_read().is_ok();
                assert!(can_send, "a sender waits for the thread that delivers");
                std::thread::yield_now();
            }
            drop(delivering);
        });
    }
}
