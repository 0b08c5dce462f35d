//! Peers that are measured beside rows.

use serde::{Deserialize, Serialize};

use crate::peers::copy_parameters::CopyMethod;
use crate::peers::datagram_parameters::DatagramExchange;
use crate::peers::ucx;

/// Payload of the rows that measure bandwidth.
pub(crate) const BULK_PAYLOAD_BYTES: usize = 1 << 20;

/// Payload of one packet in the rows that measure bandwidth over packets: the largest path MTU.
pub(crate) const PACKET_PAYLOAD_BYTES: usize = 4096;

/// UDP payload of the packet of an 8-byte SEND: BTH, payload, ICRC (IBTA vol. 1, annex A17).
const EIGHT_BYTE_SEND_UDP_PAYLOAD_BYTES: usize = 12 + 8 + 4;

/// UDP payload of the packet of an 8-byte WRITE, which also has a RETH.
const EIGHT_BYTE_WRITE_UDP_PAYLOAD_BYTES: usize = EIGHT_BYTE_SEND_UDP_PAYLOAD_BYTES + 16;

/// UDP payload of a packet in the middle of a long message.
const MIDDLE_PACKET_UDP_PAYLOAD_BYTES: usize = 12 + PACKET_PAYLOAD_BYTES + 4;

/// Peer that is measured beside a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PeerSystem {
    /// The test `am_bw` of `ucx_perftest`.
    UcxAmBw,
    /// The test `am_lat` of `ucx_perftest`.
    UcxAmLat,
    /// The test `put_bw` of `ucx_perftest`.
    UctPutBw,
    /// The test `ucp_put_bw` of `ucx_perftest`.
    UcpPutBw,
    /// The test `ucp_fadd` of `ucx_perftest`.
    UcxFadd,
    /// `memcpy` into a mapping shared by two processes.
    Memcpy,
    /// `process_vm_writev` into another process.
    ProcessVmWritev,
    /// `process_vm_writev` of 64 KiB per call into another process.
    ProcessVmWritev64Kib,
    /// `redis-benchmark -t incr -P 64`.
    RedisIncr,
    /// The fastest of the sequencer's other designs.
    OtherDesigns,
    /// Datagrams as long as the packet of an 8-byte SEND, 16 per system call.
    UdpOfSends,
    /// Datagrams as long as the packet of an 8-byte WRITE, 16 per system call.
    UdpOfWrites,
    /// Datagrams as long as a packet with 4096 bytes of payload, 15 per system call, the most that
    /// fit one call.
    UdpBulk,
    /// Ping-pong of a datagram as long as the packet of an 8-byte SEND.
    UdpPingPong,
    /// `iperf3` over TCP.
    Iperf3,
    /// The same row without injected faults.
    NoFaults,
}

impl PeerSystem {
    /// Returns the peer's name for a column of names.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            PeerSystem::UcxAmBw => "UCX am_bw",
            PeerSystem::UcxAmLat => "UCX am_lat",
            PeerSystem::UctPutBw => "UCX put_bw",
            PeerSystem::UcpPutBw => "UCX ucp_put_bw",
            PeerSystem::UcxFadd => "UCX ucp_fadd",
            PeerSystem::Memcpy => "memcpy",
            PeerSystem::ProcessVmWritev | PeerSystem::ProcessVmWritev64Kib => "process_vm_writev",
            PeerSystem::RedisIncr => "Redis INCR, P 64",
            PeerSystem::OtherDesigns => "best other design",
            PeerSystem::UdpOfSends | PeerSystem::UdpOfWrites | PeerSystem::UdpBulk => {
                "UDP, GSO and GRO"
            }
            PeerSystem::UdpPingPong => "UDP, polling",
            PeerSystem::Iperf3 => "iperf3 over TCP",
            PeerSystem::NoFaults => "without loss",
        }
    }

    /// Returns the UCX test, if the peer is a UCX test.
    #[must_use]
    pub fn ucx_test(self) -> Option<ucx::UcxTest> {
        match self {
            PeerSystem::UcxAmBw => Some(ucx::UcxTest::AmBw),
            PeerSystem::UcxAmLat => Some(ucx::UcxTest::AmLat),
            PeerSystem::UctPutBw => Some(ucx::UcxTest::PutBw),
            PeerSystem::UcpPutBw => Some(ucx::UcxTest::UcpPutBw),
            PeerSystem::UcxFadd => Some(ucx::UcxTest::UcpFadd),
            _ => None,
        }
    }

    /// Returns the exchange of datagrams and the bytes per datagram, if the peer is such an
    /// exchange.
    #[must_use]
    pub fn datagram_exchange_and_bytes(self) -> Option<(DatagramExchange, usize)> {
        let stream = |segments| DatagramExchange::Stream { segments };
        match self {
            PeerSystem::UdpOfSends => Some((stream(16), EIGHT_BYTE_SEND_UDP_PAYLOAD_BYTES)),
            PeerSystem::UdpOfWrites => Some((stream(16), EIGHT_BYTE_WRITE_UDP_PAYLOAD_BYTES)),
            PeerSystem::UdpBulk => Some((stream(15), MIDDLE_PACKET_UDP_PAYLOAD_BYTES)),
            PeerSystem::UdpPingPong => Some((
                DatagramExchange::PingPong,
                EIGHT_BYTE_SEND_UDP_PAYLOAD_BYTES,
            )),
            _ => None,
        }
    }

    /// Returns the copy method and the bytes per copy, if the peer is a copy.
    #[must_use]
    pub fn copy_method_and_bytes(self) -> Option<(CopyMethod, usize)> {
        match self {
            PeerSystem::Memcpy => Some((CopyMethod::Memcpy, BULK_PAYLOAD_BYTES)),
            PeerSystem::ProcessVmWritev => Some((CopyMethod::ProcessVmWritev, BULK_PAYLOAD_BYTES)),
            PeerSystem::ProcessVmWritev64Kib => Some((CopyMethod::ProcessVmWritev, 64 << 10)),
            _ => None,
        }
    }
}
