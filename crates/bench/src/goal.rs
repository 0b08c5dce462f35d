//! What is measured, beside whom, and what is wanted of it.

use serde::{Deserialize, Serialize};

use crate::bounce::NEAR_NS;
use crate::peers::copy::Method;
use crate::peers::datagrams::Exchange;
use crate::peers::ucx;

/// Payload of the rows that measure bandwidth.
pub const BULK_PAYLOAD_BYTES: usize = 1 << 20;

/// Payload of a packet of the rows that measure bandwidth by packets: the largest path MTU.
pub const PACKET_PAYLOAD_BYTES: usize = 4096;

/// UDP payload of the packet of an 8-byte SEND: BTH, payload, ICRC (IBTA vol. 1, annex A17).
const SEND_PACKET_BYTES: usize = 12 + 8 + 4;

/// UDP payload of the packet of an 8-byte WRITE, which has a RETH, too.
const WRITE_PACKET_BYTES: usize = SEND_PACKET_BYTES + 16;

/// UDP payload of a packet in the middle of a long message.
const BULK_PACKET_BYTES: usize = 12 + PACKET_PAYLOAD_BYTES + 4;

/// One row of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Row {
    /// Header-only UD SENDs.
    UdSend,
    /// 8-byte RC SENDs.
    RcSend,
    /// One-way latency of an 8-byte RC SEND.
    RcLatency,
    /// 8-byte RDMA WRITEs.
    RcWrite,
    /// 8-byte RDMA WRITEs, one WR a post.
    RcWriteSingle,
    /// 8-byte fetch-and-adds.
    FetchAdd,
    /// 1 MiB RDMA WRITEs into memory that both processes can map.
    WriteMapped,
    /// 1 MiB RDMA WRITEs into private memory.
    WritePrivate,
    /// The sequencer's design `spec-s0`.
    Sequencer,
    /// The same beside the sequencer's other designs.
    SequencerLead,
    /// CPU time of an idle process with 1,000 connected queue pairs.
    IdleCpu,
    /// Resident memory of the same process.
    IdleMemory,
    /// 10,000 queue pairs created and connected.
    Connect,
    /// `ib_send_bw -s 8 -l 16`, unmodified.
    IbSendBw,
    /// `ib_send_bw -c UD -s 8 -l 16`, unmodified.
    IbSendBwUd,
    /// `ib_send_lat -s 8`, unmodified.
    IbSendLat,
    /// `ib_write_lat -s 8`, unmodified.
    IbWriteLat,
    /// `ib_write_bw -s 65536`, unmodified.
    IbWriteBw,
    /// `ib_write_bw -n 5` from its start to its end, less the time that it takes to fail without a device.
    IbWriteStart,
    /// `ucx_perftest -t put_bw -D short -s 8`, unmodified, over `rc_verbs`.
    UctPut,
    /// `ucx_perftest -t ucp_put_bw -s 8`, unmodified, over `rc_verbs`.
    UcpPut,
    /// 8-byte RC SENDs by packets, beside datagrams of the same size.
    WireSend,
    /// 8-byte RDMA WRITEs by packets, beside datagrams of the same size.
    WireWrite,
    /// 8-byte RC SENDs by packets, beside a limit.
    WireSendRate,
    /// 8-byte RDMA WRITEs by packets, beside a limit.
    WireWriteRate,
    /// 64 KiB RDMA WRITEs by packets, beside TCP.
    WireTcp,
    /// 64 KiB RDMA WRITEs by packets, beside datagrams of the same size.
    WireUdp,
    /// One-way latency of an 8-byte RC SEND by packets.
    WireLatency,
    /// 64 KiB RDMA WRITEs by packets of which 1 % are lost, beside the same without loss.
    WireLoss,
    /// CPU time of an idle process with 1,000 queue pairs that are connected by packets.
    WireIdle,
}

/// What a row's figures count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// 10^6 operations a second.
    Mops,
    /// 10^9 bytes a second.
    GbytesPerS,
    /// Nanoseconds.
    Ns,
    /// Percent of one core.
    CpuPercent,
    /// 2^20 bytes.
    Mib,
    /// Milliseconds.
    Ms,
    /// Seconds.
    S,
}

impl Unit {
    /// For a column of figures.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Unit::Mops => "M/s",
            Unit::GbytesPerS => "GB/s",
            Unit::Ns => "ns",
            Unit::CpuPercent => "% CPU",
            Unit::Mib => "MiB",
            Unit::Ms => "ms",
            Unit::S => "s",
        }
    }

    /// Whether more of it is better.
    #[must_use]
    pub fn more_is_better(self) -> bool {
        matches!(self, Unit::Mops | Unit::GbytesPerS)
    }
}

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

/// What is wanted of a row.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Goal {
    /// The least that is acceptable.
    pub at_least: f64,
    /// What to aim for.
    pub aim_for: f64,
}

/// Whether two cores share a cache, by their bounce time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Distance {
    /// They do.
    Near,
    /// They do not.
    Far,
}

impl Distance {
    /// From the one-way bounce time of a cache line.
    #[must_use]
    pub fn of_bounce_ns(ns: f64) -> Distance {
        if ns <= NEAR_NS {
            Distance::Near
        } else {
            Distance::Far
        }
    }
}

impl Row {
    /// The software NIC as this project's own programs use it, in the order of the table.
    pub const EMBEDDED: [Row; 13] = [
        Row::UdSend,
        Row::RcSend,
        Row::RcLatency,
        Row::RcWrite,
        Row::RcWriteSingle,
        Row::FetchAdd,
        Row::WriteMapped,
        Row::WritePrivate,
        Row::Sequencer,
        Row::SequencerLead,
        Row::IdleCpu,
        Row::IdleMemory,
        Row::Connect,
    ];

    /// The drop-in libraries as unmodified programs use them, in the order of the table.
    pub const DROP_IN: [Row; 8] = [
        Row::IbSendBw,
        Row::IbSendBwUd,
        Row::IbSendLat,
        Row::IbWriteLat,
        Row::IbWriteBw,
        Row::IbWriteStart,
        Row::UctPut,
        Row::UcpPut,
    ];

    /// The software NIC by packets between two addresses of this host, in the order of the table.
    pub const WIRE: [Row; 9] = [
        Row::WireSend,
        Row::WireWrite,
        Row::WireSendRate,
        Row::WireWriteRate,
        Row::WireTcp,
        Row::WireUdp,
        Row::WireLatency,
        Row::WireLoss,
        Row::WireIdle,
    ];

    /// Every row.
    pub fn all() -> impl Iterator<Item = Row> {
        let rows = Row::EMBEDDED.into_iter().chain(Row::DROP_IN);
        rows.chain(Row::WIRE)
    }

    /// For `--only`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Row::UdSend => "ud-send",
            Row::RcSend => "rc-send",
            Row::RcLatency => "rc-latency",
            Row::RcWrite => "rc-write",
            Row::RcWriteSingle => "rc-write-single",
            Row::FetchAdd => "fetch-add",
            Row::WriteMapped => "write-mapped",
            Row::WritePrivate => "write-private",
            Row::Sequencer => "sequencer",
            Row::SequencerLead => "sequencer-lead",
            Row::IdleCpu => "idle-cpu",
            Row::IdleMemory => "idle-memory",
            Row::Connect => "connect",
            Row::IbSendBw => "ib-send-bw",
            Row::IbSendBwUd => "ib-send-bw-ud",
            Row::IbSendLat => "ib-send-lat",
            Row::IbWriteLat => "ib-write-lat",
            Row::IbWriteBw => "ib-write-bw",
            Row::IbWriteStart => "ib-write-start",
            Row::UctPut => "uct-put",
            Row::UcpPut => "ucp-put",
            Row::WireSend => "wire-send",
            Row::WireWrite => "wire-write",
            Row::WireSendRate => "wire-send-rate",
            Row::WireWriteRate => "wire-write-rate",
            Row::WireTcp => "wire-tcp",
            Row::WireUdp => "wire-udp",
            Row::WireLatency => "wire-latency",
            Row::WireLoss => "wire-loss",
            Row::WireIdle => "wire-idle",
        }
    }

    /// What is measured, in words.
    #[must_use]
    pub fn what(self) -> &'static str {
        match self {
            Row::UdSend => "header-only UD SEND, postlists of 16",
            Row::RcSend => "8-byte RC SEND, inline, 1 in 16 signaled, postlists of 16",
            Row::RcLatency => "one-way latency of an 8-byte RC SEND",
            Row::RcWrite => "8-byte RDMA WRITE, inline, 1 in 16 signaled, postlists of 16",
            Row::RcWriteSingle => "8-byte RDMA WRITE, inline, 1 in 16 signaled, 1 WR a post",
            Row::FetchAdd => "8-byte fetch-and-add, 16 outstanding",
            Row::WriteMapped => "1 MiB RDMA WRITE, mapped memory",
            Row::WritePrivate => "1 MiB RDMA WRITE, private memory",
            Row::Sequencer => "sequencer spec-s0, one worker, one client process",
            Row::SequencerLead => "sequencer spec-s0 beside the best other design",
            Row::IdleCpu => "idle process with 1,000 connected queue pairs: CPU",
            Row::IdleMemory => "idle process with 1,000 connected queue pairs: memory",
            Row::Connect => "10,000 queue pairs created and connected",
            Row::IbSendBw => "ib_send_bw -s 8 -l 16 through the drop-in",
            Row::IbSendBwUd => "ib_send_bw -c UD -s 8 -l 16 through the drop-in",
            Row::IbSendLat => "ib_send_lat -s 8 through the drop-in",
            Row::IbWriteLat => "ib_write_lat -s 8 through the drop-in",
            Row::IbWriteBw => "ib_write_bw -s 65536 through the drop-in",
            Row::IbWriteStart => {
                "ib_write_bw -n 5 through the drop-in, less the time to fail without a device"
            }
            Row::UctPut => "ucx_perftest -t put_bw -D short -s 8 over rc_verbs through the drop-in",
            Row::UcpPut => "ucx_perftest -t ucp_put_bw -s 8 over rc_verbs through the drop-in",
            Row::WireSend => "8-byte RC SEND by packets, postlists of 16, beside 24-byte datagrams",
            Row::WireWrite => {
                "8-byte RDMA WRITE by packets, postlists of 16, beside 40-byte datagrams"
            }
            Row::WireSendRate => "8-byte RC SEND by packets, postlists of 16",
            Row::WireWriteRate => "8-byte RDMA WRITE by packets, postlists of 16",
            Row::WireTcp => "64 KiB RDMA WRITE by packets, beside TCP",
            Row::WireUdp => "64 KiB RDMA WRITE by packets, beside datagrams as long",
            Row::WireLatency => "half of a round trip of an 8-byte RC SEND by packets",
            Row::WireLoss => "64 KiB RDMA WRITE by packets, 1 % lost each way",
            Row::WireIdle => "idle process with 1,000 queue pairs connected by packets: CPU",
        }
    }

    /// The same in few words, for a table.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Row::UdSend => "UD SEND, header-only, lists of 16",
            Row::RcSend => "RC SEND, 8 B inline, lists of 16",
            Row::RcLatency => "RC SEND, 8 B: one-way latency",
            Row::RcWrite => "RDMA WRITE, 8 B inline, lists of 16",
            Row::RcWriteSingle => "RDMA WRITE, 8 B inline, 1 a post",
            Row::FetchAdd => "fetch-and-add, 16 outstanding",
            Row::WriteMapped => "RDMA WRITE, 1 MiB, mapped",
            Row::WritePrivate => "RDMA WRITE, 1 MiB, private",
            Row::Sequencer => "sequencer spec-s0, 1 worker",
            Row::SequencerLead => "the same, beside other designs",
            Row::IdleCpu => "idle, 1,000 QPs: CPU",
            Row::IdleMemory => "idle, 1,000 QPs: memory",
            Row::Connect => "create and connect 10,000 QPs",
            Row::IbSendBw => "ib_send_bw -s 8 -l 16",
            Row::IbSendBwUd => "ib_send_bw -c UD -s 8 -l 16",
            Row::IbSendLat => "ib_send_lat -s 8",
            Row::IbWriteLat => "ib_write_lat -s 8",
            Row::IbWriteBw => "ib_write_bw -s 65536",
            Row::IbWriteStart => "ib_write_bw -n 5: all of it",
            Row::UctPut => "UCT put_bw -s 8 over rc_verbs",
            Row::UcpPut => "ucp_put_bw -s 8 over rc_verbs",
            Row::WireSend => "RC SEND, 8 B, lists of 16",
            Row::WireWrite => "RDMA WRITE, 8 B, lists of 16",
            Row::WireSendRate => "RC SEND, 8 B: absolute",
            Row::WireWriteRate => "RDMA WRITE, 8 B: absolute",
            Row::WireTcp | Row::WireUdp => "RDMA WRITE, 64 KiB",
            Row::WireLatency => "RC SEND, 8 B: half a round trip",
            Row::WireLoss => "RDMA WRITE, 64 KiB, 1 % lost",
            Row::WireIdle => "idle, 1,000 remote QPs: CPU",
        }
    }

    /// What its figures count.
    #[must_use]
    pub fn unit(self) -> Unit {
        match self {
            Row::UdSend
            | Row::RcSend
            | Row::RcWrite
            | Row::RcWriteSingle
            | Row::FetchAdd
            | Row::Sequencer
            | Row::SequencerLead
            | Row::IbSendBw
            | Row::IbSendBwUd
            | Row::UctPut
            | Row::UcpPut
            | Row::WireSend
            | Row::WireWrite
            | Row::WireSendRate
            | Row::WireWriteRate => Unit::Mops,
            Row::RcLatency | Row::IbSendLat | Row::IbWriteLat | Row::WireLatency => Unit::Ns,
            Row::WriteMapped
            | Row::WritePrivate
            | Row::IbWriteBw
            | Row::WireTcp
            | Row::WireUdp
            | Row::WireLoss => Unit::GbytesPerS,
            Row::IbWriteStart => Unit::Ms,
            Row::IdleCpu | Row::WireIdle => Unit::CpuPercent,
            Row::IdleMemory => Unit::Mib,
            Row::Connect => Unit::S,
        }
    }

    /// Who is measured beside it; `None` where a limit is set instead.
    #[must_use]
    pub fn peer(self) -> Option<Peer> {
        match self {
            Row::UdSend | Row::RcSend | Row::IbSendBw | Row::IbSendBwUd => Some(Peer::UcxAmBw),
            Row::RcLatency | Row::IbSendLat | Row::IbWriteLat => Some(Peer::UcxAmLat),
            Row::RcWrite | Row::RcWriteSingle | Row::UcpPut => Some(Peer::UcpPutBw),
            Row::UctPut => Some(Peer::UctPutBw),
            Row::FetchAdd => Some(Peer::UcxFadd),
            Row::WriteMapped => Some(Peer::Memcpy),
            Row::WritePrivate => Some(Peer::ProcessVmWritev),
            Row::Sequencer => Some(Peer::RedisIncr),
            Row::SequencerLead => Some(Peer::OtherDesigns),
            Row::IbWriteBw => Some(Peer::ProcessVmWritev64Kib),
            Row::WireSend => Some(Peer::UdpOfSends),
            Row::WireWrite => Some(Peer::UdpOfWrites),
            Row::WireTcp => Some(Peer::Iperf3),
            Row::WireUdp => Some(Peer::UdpBulk),
            Row::WireLatency => Some(Peer::UdpPingPong),
            Row::WireLoss => Some(Peer::NoFaults),
            Row::IdleCpu
            | Row::IdleMemory
            | Row::Connect
            | Row::IbWriteStart
            | Row::WireSendRate
            | Row::WireWriteRate
            | Row::WireIdle => None,
        }
    }

    /// What is wanted of it: a ratio to the peer, or a limit in the row's own unit.
    #[must_use]
    pub fn goal(self, distance: Distance) -> Goal {
        let (at_least, aim_for) = match (self, distance) {
            (Row::UdSend, Distance::Near) => (3.0, 6.0),
            (Row::UdSend, Distance::Far) => (3.0, 12.0),
            (Row::RcSend, Distance::Near) => (2.0, 5.0),
            (Row::RcSend, Distance::Far) => (4.0, 7.0),
            (Row::RcLatency, _) => (1.0, 0.6),
            (Row::RcWrite | Row::RcWriteSingle | Row::FetchAdd, _) => (0.5, 1.0),
            (Row::WriteMapped | Row::WritePrivate | Row::IbWriteBw, _) => (0.9, 0.9),
            (Row::Sequencer, _) => (5.0, 15.0),
            (Row::SequencerLead, _) => (1.0, 1.0),
            (Row::IdleCpu, _) => (0.0, 0.0),
            (Row::IdleMemory, _) => (64.0, 64.0),
            (Row::Connect, _) => (2.0, 2.0),
            (Row::IbSendBw | Row::IbSendBwUd, Distance::Near) => (1.0, 2.0),
            (Row::IbSendBw | Row::IbSendBwUd, Distance::Far) => (1.0, 4.0),
            (Row::IbSendLat | Row::IbWriteLat, _) => (1.0, 0.7),
            (Row::IbWriteStart, _) => (50.0, 20.0),
            (Row::UctPut | Row::UcpPut, _) => (0.3, 0.6),
            (Row::WireSend | Row::WireWrite | Row::WireTcp | Row::WireLoss, _) => (0.5, 0.8),
            (Row::WireSendRate | Row::WireWriteRate, _) => (2.0, 4.0),
            (Row::WireUdp, _) => (0.8, 0.9),
            (Row::WireLatency, _) => (1.5, 1.2),
            (Row::WireIdle, _) => (0.0, 0.0),
        };
        Goal { at_least, aim_for }
    }

    /// Whether `figure` (a ratio, or a value where there is no peer) reaches `wanted`.
    #[must_use]
    pub fn reaches(self, figure: f64, wanted: f64) -> bool {
        if self.unit().more_is_better() {
            figure >= wanted
        } else {
            figure <= wanted
        }
    }
}

impl std::str::FromStr for Row {
    type Err = String;

    fn from_str(name: &str) -> Result<Row, String> {
        Row::all().find(|row| row.name() == name).ok_or_else(|| {
            let names: Vec<_> = Row::all().map(Row::name).collect();
            format!("no such row; choose among {}", names.join(", "))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_parse_back_and_are_those_of_json() {
        for row in Row::all() {
            assert_eq!(row.name().parse(), Ok(row));
            assert_eq!(
                serde_json::to_string(&row).unwrap(),
                format!("\"{}\"", row.name())
            );
        }
        assert!("send".parse::<Row>().unwrap_err().contains("ud-send"));
    }

    #[test]
    fn a_goal_is_harder_than_the_least() {
        for row in Row::all() {
            for distance in [Distance::Near, Distance::Far] {
                let goal = row.goal(distance);
                assert!(row.reaches(goal.aim_for, goal.at_least), "{}", row.name());
            }
        }
    }

    #[test]
    fn less_latency_is_better_and_less_rate_is_worse() {
        assert!(Row::RcLatency.reaches(0.5, 0.6));
        assert!(!Row::RcLatency.reaches(1.1, 1.0));
        assert!(!Row::UdSend.reaches(2.9, 3.0));
        assert!(Row::WireLatency.reaches(1.4, 1.5));
        assert_eq!(Distance::of_bounce_ns(30.0), Distance::Near);
        assert_eq!(Distance::of_bounce_ns(170.0), Distance::Far);
    }
}
