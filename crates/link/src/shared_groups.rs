//! Cooperation of an endpoint with the other processes of its fabric.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::QPN_TO_PROCESS_SLOT_SHIFT;
use crate::config::{Config, FabricMembership, LocalAddress};
use crate::counters::{Counters, add_to_counter};
use crate::error::LinkError;
use crate::forwarding_socket::ForwardingSocket;
use crate::packet::ReceivedPacket;
use crate::socket::BoundSocket;
use crate::socket_groups::{SocketGroupState, SocketGroups};
use crate::steering::FIRST_PROBE_QPN;
use crate::sys::send;

/// Number of misdirected packets after which the order of the processes is checked again. A few are normal: the kernel
/// may coalesce packets of one sender for two processes (GRO), and delivers all of them to the first one's process.
const MISDIRECTED_PACKETS_PER_ORDER_CHECK: u64 = 1024;

/// The groups of this process, and its socket for forwarded packets.
#[derive(Debug)]
pub(crate) struct SharedGroups {
    groups: SocketGroups,
    forwarding_socket: ForwardingSocket,
    misdirected_packet_count: AtomicU64,
}

impl SharedGroups {
    pub(crate) fn open(fabric: &FabricMembership, port: u16) -> Result<SharedGroups, LinkError> {
        if fabric.slot == 0 || fabric.slot >= 1 << (24 - QPN_TO_PROCESS_SLOT_SHIFT) {
            return Err(LinkError::InvalidSlot { slot: fabric.slot });
        }
        Ok(SharedGroups {
            groups: SocketGroups::new(fabric, port)?,
            forwarding_socket: ForwardingSocket::open(fabric)?,
            misdirected_packet_count: AtomicU64::new(0),
        })
    }

    /// Opens the socket of an address and adds it to the group.
    pub(crate) fn bind_and_join(
        &self,
        address: LocalAddress,
        config: &Config,
    ) -> Result<BoundSocket, LinkError> {
        let (socket, outcome) = self.groups.bind_and_join(address, config)?;
        if outcome.is_order_uncertain {
            send_probes(&socket, outcome);
        }
        Ok(socket)
    }

    /// Removes dead members from the groups. If `doubtful`, or if several died, each member gets a probe.
    ///
    /// Errors of files and of kernel memory are ignored: misdirected packets are then still forwarded.
    pub(crate) fn remove_dead_members_and_probe(&self, sockets: &[BoundSocket], doubtful: bool) {
        for socket in sockets {
            let outcome = match self.groups.remove_dead_members(socket) {
                Ok(None) if doubtful => self
                    .groups
                    .group_state_with_uncertain_order(socket)
                    .map(Some),
                other => other,
            };
            if let Ok(Some(outcome)) = outcome
                && (outcome.is_order_uncertain || doubtful)
            {
                send_probes(socket, outcome);
            }
        }
    }

    /// Returns true if a packet is for this process: for its slot, or for QPN 1.
    pub(crate) fn is_for_this_process(&self, packet: &ReceivedPacket<'_>) -> bool {
        let qpn = packet.dest_qpn();
        let slot = qpn >> QPN_TO_PROCESS_SLOT_SHIFT;
        slot == u32::from(self.groups.slot) || (slot == 0 && qpn < FIRST_PROBE_QPN)
    }

    /// Handles a packet that is not for this process: a probe, or a packet to forward. Returns true if so many were
    /// misdirected that the order of the processes is doubtful.
    pub(crate) fn handle_misdirected_packet(
        &self,
        socket: &BoundSocket,
        packet: &ReceivedPacket<'_>,
    ) -> bool {
        let slot = (packet.dest_qpn() >> QPN_TO_PROCESS_SLOT_SHIFT) as u16;
        if slot == 0 {
            self.correct_own_position_by_probe(socket, packet);
            return false;
        }
        let gone = matches!(self.forward_to_process(slot, packet, &socket.counters), Err(e) if is_slot_unused(&e));
        let astray = self
            .misdirected_packet_count
            .fetch_add(1, Ordering::Relaxed)
            + 1;
        astray.is_multiple_of(MISDIRECTED_PACKETS_PER_ORDER_CHECK)
            || (!gone && astray.is_power_of_two())
    }

    /// Forwards a packet to the process with `slot`.
    pub(crate) fn forward_to_process(
        &self,
        slot: u16,
        packet: &ReceivedPacket<'_>,
        counters: &Counters,
    ) -> io::Result<()> {
        let result = self.forwarding_socket.forward_to_process(slot, packet);
        let counter = match &result {
            Ok(()) => &counters.forwarded_pkts,
            Err(e) if is_slot_unused(e) => &counters.unknown_slot_pkts,
            Err(_) => &counters.forward_overrun_pkts,
        };
        add_to_counter(counter, 1);
        result
    }

    /// Passes forwarded packets to `take`, at most `limit`; returns their number. They are not forwarded again,
    /// whatever their slot.
    pub(crate) fn receive_forwarded(
        &self,
        buffer: &mut [u8],
        limit: usize,
        take: &mut impl FnMut(ReceivedPacket<'_>),
    ) -> usize {
        let mut count = 0;
        while count < limit
            && let Some(packet) = self.forwarding_socket.try_receive(buffer)
        {
            take(packet);
            count += 1;
        }
        count
    }

    /// Handles a packet with the QPN of a probe. Only one from this port of this address comes from this user; others
    /// are ignored.
    fn correct_own_position_by_probe(&self, socket: &BoundSocket, packet: &ReceivedPacket<'_>) {
        let (addresses, ports) = (packet.icrc_fields.addresses, packet.icrc_fields);
        let own = addresses.src() == addresses.dst() && ports.src_port == ports.dst_port;
        let generation = packet.bytes.get(8..16).and_then(|b| b.try_into().ok());
        let place = (packet.dest_qpn() & (FIRST_PROBE_QPN - 1)) as usize;
        if own
            && let Some(generation) = generation
            && let Ok(true) = self.groups.correct_own_position_in_file(
                socket,
                u64::from_be_bytes(generation),
                place,
            )
        {
            add_to_counter(&socket.counters.order_corrections, 1);
        }
    }

    /// Leaves the groups and closes the sockets.
    pub(crate) fn leave_and_close(&self, sockets: Vec<BoundSocket>) {
        if self.groups.was_joined_by_this_process() {
            self.forwarding_socket.remove_socket_file();
            // After an error, the next process that joins finds the files unchanged, and its probes correct them.
            let _ = self.groups.leave_and_close(sockets);
        }
    }
}

impl AsFd for SharedGroups {
    /// Returns the socket for forwarded packets.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.forwarding_socket.as_fd()
    }
}

/// Returns true if the error means that no process has the slot.
fn is_slot_unused(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
    )
}

/// Sends a probe to each index of the group.
fn send_probes(socket: &BoundSocket, outcome: SocketGroupState) {
    let packet = |place: u32| {
        let mut packet = [0; 16];
        packet[4..8].copy_from_slice(&(FIRST_PROBE_QPN | place).to_be_bytes());
        packet[8..].copy_from_slice(&outcome.generation.to_be_bytes());
        packet
    };
    let packets: Vec<[u8; 16]> = (0..outcome.member_count as u32).map(packet).collect();
    for packets in packets.chunks(send::MAX_MESSAGES_PER_CALL) {
        let message = |packet| send::BurstMessage {
            destination: socket.socket_address_on_same_link(socket.address.ip),
            bytes: packet,
            segment_bytes: None,
            traffic_class: 0,
            hop_limit: 0,
        };
        let messages: Vec<_> = packets.iter().map(|p| message(&p[..])).collect();
        // A lost probe leaves the index of its receiver in doubt until the next probe.
        let _ = send::send_bursts(socket.as_fd(), &messages);
    }
}
