//! Who is measured beside a row.

use serde::{Deserialize, Serialize};

use crate::peers::copy::Method;
use crate::peers::datagrams::Exchange;
use crate::peers::ucx;

/// Payload of the rows that measure bandwidth.
pub(crate) const BULK_PAYLOAD_BYTES: usize = 1 << 20;

/// Payload of a packet of the rows that measure bandwidth by packets: the largest path MTU.
pub(crate) const PACKET_PAYLOAD_BYTES: usize = 4096;

/// UDP payload of the packet of an 8-byte SEND: BTH, payload, ICRC (IBTA vol. 1, annex A17).
const SEND_PACKET_BYTES: usize = 12 + 8 + 4;

/// UDP payload of the packet of an 8-byte WRITE, which has a RETH, too.
const WRITE_PACKET_BYTES: usize = SEND_PACKET_BYTES + 16;

/// UDP payload of a packet in the middle of a long message.
const BULK_PACKET_BYTES: usize = 12 + PACKET_PAYLOAD_BYTES + 4;

/// Who is measured beside a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Peer {
    /// A test of `ucx_perftest`.
    UcxAmBw,
    /// A test of `ucx_perftest`.
    UcxAmLat,
    /// A test of `ucx_perftest`.
    UctPutBw,
    /// A test of `ucx_perftest`.
    UcpPutBw,
    /// A test of `ucx_perftest`.
    UcxFadd,
    /// `memcpy` into a mapping shared by two processes.
    Memcpy,
    /// `process_vm_writev` into another process.
    ProcessVmWritev,
    /// The same with 64 KiB a call.
    ProcessVmWritev64Kib,
    /// `redis-benchmark -t incr -P 64`.
    RedisIncr,
    /// The fastest of the sequencer's other designs.
    OtherDesigns,
    /// Datagrams as long as the packet of an 8-byte SEND, 16 a system call.
    UdpOfSends,
    /// Datagrams as long as the packet of an 8-byte WRITE, 16 a system call.
    UdpOfWrites,
    /// Datagrams as long as a packet with 4096 bytes of payload, 15 a system call: as many as one can take.
    UdpBulk,
    /// A datagram as long as the packet of an 8-byte SEND, to and fro.
    UdpPingPong,
    /// `iperf3` over TCP.
    Iperf3,
    /// The same row without faults.
    NoFaults,
}

impl Peer {
    /// For a column of names.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Peer::UcxAmBw => "UCX am_bw",
            Peer::UcxAmLat => "UCX am_lat",
            Peer::UctPutBw => "UCX put_bw",
            Peer::UcpPutBw => "UCX ucp_put_bw",
            Peer::UcxFadd => "UCX ucp_fadd",
            Peer::Memcpy => "memcpy",
            Peer::ProcessVmWritev | Peer::ProcessVmWritev64Kib => "process_vm_writev",
            Peer::RedisIncr => "Redis INCR, P 64",
            Peer::OtherDesigns => "best other design",
            Peer::UdpOfSends | Peer::UdpOfWrites | Peer::UdpBulk => "UDP, GSO and GRO",
            Peer::UdpPingPong => "UDP, polling",
            Peer::Iperf3 => "iperf3 over TCP",
            Peer::NoFaults => "without loss",
        }
    }

    /// The UCX test, if it is one.
    #[must_use]
    pub fn ucx(self) -> Option<ucx::Test> {
        match self {
            Peer::UcxAmBw => Some(ucx::Test::AmBw),
            Peer::UcxAmLat => Some(ucx::Test::AmLat),
            Peer::UctPutBw => Some(ucx::Test::PutBw),
            Peer::UcpPutBw => Some(ucx::Test::UcpPutBw),
            Peer::UcxFadd => Some(ucx::Test::UcpFadd),
            _ => None,
        }
    }

    /// The exchange of datagrams and the bytes of each, if it is one.
    #[must_use]
    pub fn datagrams(self) -> Option<(Exchange, usize)> {
        let stream = |segments| Exchange::Stream { segments };
        match self {
            Peer::UdpOfSends => Some((stream(16), SEND_PACKET_BYTES)),
            Peer::UdpOfWrites => Some((stream(16), WRITE_PACKET_BYTES)),
            Peer::UdpBulk => Some((stream(15), BULK_PACKET_BYTES)),
            Peer::UdpPingPong => Some((Exchange::PingPong, SEND_PACKET_BYTES)),
            _ => None,
        }
    }

    /// The way of copying and the bytes of a copy, if it is one.
    #[must_use]
    pub fn copy(self) -> Option<(Method, usize)> {
        match self {
            Peer::Memcpy => Some((Method::Memcpy, BULK_PAYLOAD_BYTES)),
            Peer::ProcessVmWritev => Some((Method::ProcessVmWritev, BULK_PAYLOAD_BYTES)),
            Peer::ProcessVmWritev64Kib => Some((Method::ProcessVmWritev, 64 << 10)),
            _ => None,
        }
    }
}
