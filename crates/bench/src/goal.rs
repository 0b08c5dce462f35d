//! Rows of the benchmark. Each row has a peer (the system measured beside it), the limit of both and a goal.

use serde::{Deserialize, Serialize};

use crate::cache_line_bounce::MAX_NEAR_CORES_BOUNCE_NS;
use crate::micro::verb::Verb;
use crate::peers::bare_exchange_parameters::BareMessageExchange;

mod bare_ring_limit;
mod peer;
mod row_descriptions;

pub use bare_ring_limit::{BareRingLimit, SendStream};
pub use peer::PeerSystem;
pub(crate) use peer::{BULK_PAYLOAD_BYTES, PACKET_PAYLOAD_BYTES};

/// One row of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Row {
    /// Header-only UD SENDs.
    UdSend,
    /// Header-only RC SENDs.
    #[serde(rename = "rc-send-0")]
    RcSend0,
    /// Header-only UC SENDs.
    #[serde(rename = "uc-send-0")]
    UcSend0,
    /// 8-byte UD SENDs.
    #[serde(rename = "ud-send-8")]
    UdSend8,
    /// 8-byte RC SENDs.
    RcSend,
    /// 8-byte UC SENDs.
    UcSend,
    /// Header-only UD SENDs, one WR per post.
    UdSendSingle,
    /// Header-only RC SENDs, one WR per post.
    #[serde(rename = "rc-send-0-single")]
    RcSend0Single,
    /// Header-only UC SENDs, one WR per post.
    #[serde(rename = "uc-send-0-single")]
    UcSend0Single,
    /// 8-byte UD SENDs, one WR per post.
    #[serde(rename = "ud-send-8-single")]
    UdSend8Single,
    /// 8-byte RC SENDs, one WR per post.
    RcSendSingle,
    /// 8-byte UC SENDs, one WR per post.
    UcSendSingle,
    /// Requests and responses of 8 bytes over UD, in batches: the sequencer's design `rpc-batch`.
    Rpc,
    /// One-way latency of an 8-byte RC SEND.
    RcLatency,
    /// 8-byte RDMA WRITEs.
    RcWrite,
    /// 8-byte RDMA WRITEs, one WR per post.
    RcWriteSingle,
    /// 8-byte fetch-and-adds.
    FetchAdd,
    /// 1 MiB RDMA WRITEs into memory that both processes can map.
    WriteMapped,
    /// 1 MiB RDMA WRITEs into private memory.
    WritePrivate,
    /// The sequencer's design `spec-s0`.
    Sequencer,
    /// The sequencer's design `spec-s0`, compared with the sequencer's other designs.
    SequencerLead,
    /// CPU time of an idle process with 1,000 connected queue pairs.
    IdleCpu,
    /// Resident memory of an idle process with 1,000 connected queue pairs.
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
    /// `ib_write_bw -n 5` from start to end, less the time that the program takes to fail without a
    /// device.
    IbWriteStart,
    /// `ucx_perftest -t put_bw -D short -s 8`, unmodified, over `rc_verbs`.
    UctPut,
    /// `ucx_perftest -t ucp_put_bw -s 8`, unmodified, over `rc_verbs`.
    UcpPut,
    /// 8-byte RC SENDs over packets, compared with datagrams of the same size.
    WireSend,
    /// 8-byte RDMA WRITEs over packets, compared with datagrams of the same size.
    WireWrite,
    /// 8-byte RC SENDs over packets, compared with an absolute goal.
    WireSendRate,
    /// 8-byte RDMA WRITEs over packets, compared with an absolute goal.
    WireWriteRate,
    /// 64 KiB RDMA WRITEs over packets, compared with TCP.
    WireTcp,
    /// 64 KiB RDMA WRITEs over packets, compared with datagrams of the same size.
    WireUdp,
    /// One-way latency of an 8-byte RC SEND over packets.
    WireLatency,
    /// 64 KiB RDMA WRITEs over packets of which 1 % are lost, compared with the same row without
    /// loss.
    WireLoss,
    /// CPU time of an idle process with 1,000 queue pairs that are connected over packets.
    WireIdle,
}

/// Unit of a row's figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// 10^6 operations per second.
    Mops,
    /// 10^9 bytes per second.
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
    /// Returns the unit's name for a column of figures.
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

    /// Returns true if more of the unit is better.
    #[must_use]
    pub fn more_is_better(self) -> bool {
        matches!(self, Unit::Mops | Unit::GbytesPerS)
    }
}

/// Goal of a row: a ratio, or a figure in the row's unit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RowGoal {
    /// Worst figure that is acceptable.
    #[serde(rename = "at_least")]
    pub worst_acceptable: f64,
    /// Figure to aim for.
    pub aim_for: f64,
}

/// Distance of two cores, judged by their bounce time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CoreDistance {
    /// The cores share a cache.
    Near,
    /// The cores share no cache.
    Far,
}

impl CoreDistance {
    /// Returns the distance for a one-way bounce time of a cache line.
    #[must_use]
    pub fn of_bounce_ns(ns: f64) -> CoreDistance {
        if ns <= MAX_NEAR_CORES_BOUNCE_NS {
            CoreDistance::Near
        } else {
            CoreDistance::Far
        }
    }
}

impl Row {
    /// Rows of the software NIC as this project's programs use it, in the order of the table.
    pub const OWN_PROGRAM_ROWS: [Row; 24] = [
        Row::UdSend,
        Row::RcSend0,
        Row::UcSend0,
        Row::UdSend8,
        Row::RcSend,
        Row::UcSend,
        Row::UdSendSingle,
        Row::RcSend0Single,
        Row::UcSend0Single,
        Row::UdSend8Single,
        Row::RcSendSingle,
        Row::UcSendSingle,
        Row::RcLatency,
        Row::Rpc,
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

    /// Rows of the drop-in libraries as unmodified programs use them, in the order of the table.
    pub const DROP_IN_ROWS: [Row; 8] = [
        Row::IbSendBw,
        Row::IbSendBwUd,
        Row::IbSendLat,
        Row::IbWriteLat,
        Row::IbWriteBw,
        Row::IbWriteStart,
        Row::UctPut,
        Row::UcpPut,
    ];

    /// Rows of the software NIC over packets between two addresses of this host, in the order of
    /// the table.
    pub const WIRE_ROWS: [Row; 9] = [
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

    /// Returns every row.
    pub fn all() -> impl Iterator<Item = Row> {
        let rows = Row::OWN_PROGRAM_ROWS.into_iter().chain(Row::DROP_IN_ROWS);
        rows.chain(Row::WIRE_ROWS)
    }

    /// Returns the row's name for `--only`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Row::UdSend => "ud-send",
            Row::RcSend0 => "rc-send-0",
            Row::UcSend0 => "uc-send-0",
            Row::UdSend8 => "ud-send-8",
            Row::RcSend => "rc-send",
            Row::UcSend => "uc-send",
            Row::UdSendSingle => "ud-send-single",
            Row::RcSend0Single => "rc-send-0-single",
            Row::UcSend0Single => "uc-send-0-single",
            Row::UdSend8Single => "ud-send-8-single",
            Row::RcSendSingle => "rc-send-single",
            Row::UcSendSingle => "uc-send-single",
            Row::Rpc => "rpc",
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

    /// Returns the row's SENDs, if the row SENDs as fast as possible.
    #[must_use]
    pub fn as_send_stream(self) -> Option<SendStream> {
        let (verb, payload_bytes, list) = match self {
            Row::UdSend => (Verb::UdSend, 0, 16),
            Row::RcSend0 => (Verb::RcSend, 0, 16),
            Row::UcSend0 => (Verb::UcSend, 0, 16),
            Row::UdSend8 => (Verb::UdSend, 8, 16),
            Row::RcSend => (Verb::RcSend, 8, 16),
            Row::UcSend => (Verb::UcSend, 8, 16),
            Row::UdSendSingle => (Verb::UdSend, 0, 1),
            Row::RcSend0Single => (Verb::RcSend, 0, 1),
            Row::UcSend0Single => (Verb::UcSend, 0, 1),
            Row::UdSend8Single => (Verb::UdSend, 8, 1),
            Row::RcSendSingle => (Verb::RcSend, 8, 1),
            Row::UcSendSingle => (Verb::UcSend, 8, 1),
            _ => return None,
        };
        Some(SendStream {
            verb,
            payload_bytes,
            wrs_per_postlist: list,
        })
    }

    /// Returns the bare-ring limit on these cores, if the row exchanges only messages.
    #[must_use]
    pub fn bare_ring_limit(self) -> Option<BareRingLimit> {
        let bare = |exchange, messages_per_list| BareRingLimit {
            exchange,
            has_payload: true,
            messages_per_list,
        };
        match self {
            Row::RcLatency => Some(bare(BareMessageExchange::PingPong, 1)),
            Row::Rpc => Some(bare(BareMessageExchange::Rpc, 16)),
            row => row.as_send_stream().map(SendStream::bare_ring_limit),
        }
    }

    /// Returns the goal for the row's share of its limit.
    #[must_use]
    pub fn limit_share_goal(self) -> Option<RowGoal> {
        let limit = self.bare_ring_limit()?;
        let (at_least, aim_for) = match (limit.exchange, limit.messages_per_list) {
            (BareMessageExchange::PingPong, _) => (1.3, 1.1),
            (BareMessageExchange::Rpc, _) => (0.4, 0.4),
            (BareMessageExchange::Stream, 1) => (0.4, 0.6),
            (BareMessageExchange::Stream, _) => (0.5, 0.75),
        };
        Some(RowGoal {
            worst_acceptable: at_least,
            aim_for,
        })
    }

    /// Returns the unit of the row's figures.
    #[must_use]
    pub fn unit(self) -> Unit {
        if self.as_send_stream().is_some() {
            return Unit::Mops;
        }
        match self {
            Row::Rpc
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
            // Rows of SENDs were handled above.
            _ => Unit::S,
        }
    }

    /// Returns the peer that is measured beside the row, or `None` if an absolute goal is set
    /// instead.
    #[must_use]
    pub fn peer(self) -> Option<PeerSystem> {
        if self.as_send_stream().is_some() {
            return Some(PeerSystem::UcxAmBw);
        }
        match self {
            Row::IbSendBw | Row::IbSendBwUd => Some(PeerSystem::UcxAmBw),
            Row::RcLatency | Row::IbSendLat | Row::IbWriteLat => Some(PeerSystem::UcxAmLat),
            Row::RcWrite | Row::RcWriteSingle | Row::UcpPut => Some(PeerSystem::UcpPutBw),
            Row::UctPut => Some(PeerSystem::UctPutBw),
            Row::FetchAdd => Some(PeerSystem::UcxFadd),
            Row::WriteMapped => Some(PeerSystem::Memcpy),
            Row::WritePrivate => Some(PeerSystem::ProcessVmWritev),
            Row::Sequencer => Some(PeerSystem::RedisIncr),
            Row::SequencerLead => Some(PeerSystem::OtherDesigns),
            Row::IbWriteBw => Some(PeerSystem::ProcessVmWritev64Kib),
            Row::WireSend => Some(PeerSystem::UdpOfSends),
            Row::WireWrite => Some(PeerSystem::UdpOfWrites),
            Row::WireTcp => Some(PeerSystem::Iperf3),
            Row::WireUdp => Some(PeerSystem::UdpBulk),
            Row::WireLatency => Some(PeerSystem::UdpPingPong),
            Row::WireLoss => Some(PeerSystem::NoFaults),
            _ => None,
        }
    }

    /// Returns the goal of the row: a ratio to the peer, or a figure in the row's own unit. `None`
    /// if only the share of the limit counts.
    #[must_use]
    pub fn goal(self, distance: CoreDistance) -> Option<RowGoal> {
        if let Some(sends) = self.as_send_stream() {
            return Some(goal_of_send_row(sends, distance));
        }
        let (at_least, aim_for) = match (self, distance) {
            (Row::Rpc, _) => return None,
            (Row::RcLatency, _) => (1.0, 0.6),
            (Row::RcWrite | Row::RcWriteSingle | Row::FetchAdd, _) => (0.5, 1.0),
            (Row::WriteMapped | Row::WritePrivate | Row::IbWriteBw, _) => (0.9, 0.9),
            (Row::Sequencer, _) => (5.0, 15.0),
            (Row::SequencerLead, _) => (1.0, 1.0),
            (Row::IdleCpu, _) => (0.0, 0.0),
            (Row::IdleMemory, _) => (64.0, 64.0),
            (Row::IbSendBw | Row::IbSendBwUd, CoreDistance::Near) => (1.0, 2.0),
            (Row::IbSendBw | Row::IbSendBwUd, CoreDistance::Far) => (1.0, 4.0),
            (Row::IbSendLat | Row::IbWriteLat, _) => (1.0, 0.7),
            (Row::IbWriteStart, _) => (50.0, 20.0),
            (Row::UctPut | Row::UcpPut, _) => (0.3, 0.6),
            (Row::WireSend | Row::WireWrite | Row::WireTcp | Row::WireLoss, _) => (0.5, 0.8),
            (Row::WireSendRate | Row::WireWriteRate, _) => (2.0, 4.0),
            (Row::WireUdp, _) => (0.8, 0.9),
            (Row::WireLatency, _) => (1.5, 1.2),
            (Row::WireIdle, _) => (0.0, 0.0),
            // Rows of SENDs were handled above.
            _ => (2.0, 2.0),
        };
        Some(RowGoal {
            worst_acceptable: at_least,
            aim_for,
        })
    }

    /// Returns true if `figure` (a ratio, or a value if the row has no peer) reaches `wanted`.
    #[must_use]
    pub fn reaches_goal(self, figure: f64, wanted: f64) -> bool {
        if self.unit().more_is_better() {
            figure >= wanted
        } else {
            figure <= wanted
        }
    }
}

/// Returns the goal of a row of SENDs compared with UCX's active messages, which are posted one by
/// one.
fn goal_of_send_row(sends: SendStream, distance: CoreDistance) -> RowGoal {
    let (at_least, aim_for) = match (sends.wrs_per_postlist, sends.verb, distance) {
        (1, _, _) => (1.0, 2.0),
        (_, Verb::UdSend, CoreDistance::Near) => (3.0, 6.0),
        (_, Verb::UdSend, CoreDistance::Far) => (3.0, 12.0),
        (_, _, CoreDistance::Near) => (2.0, 5.0),
        (_, _, CoreDistance::Far) => (4.0, 7.0),
    };
    RowGoal {
        worst_acceptable: at_least,
        aim_for,
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
            for distance in [CoreDistance::Near, CoreDistance::Far] {
                let goals = [row.goal(distance), row.limit_share_goal()];
                for goal in goals.into_iter().flatten() {
                    assert!(
                        row.reaches_goal(goal.aim_for, goal.worst_acceptable),
                        "{}",
                        row.name()
                    );
                }
            }
        }
    }

    #[test]
    fn rows_with_messages_alone_have_a_limit() {
        assert_eq!(
            Row::all()
                .filter(|row| row.as_send_stream().is_some())
                .count(),
            12
        );
        for row in Row::all() {
            let moves_messages =
                row.as_send_stream().is_some() || matches!(row, Row::RcLatency | Row::Rpc);
            assert_eq!(
                row.bare_ring_limit().is_some(),
                moves_messages,
                "{}",
                row.name()
            );
        }
        let limit = Row::UdSend8Single.bare_ring_limit().unwrap();
        assert!(limit.has_payload && limit.messages_per_list == 1);
        assert_eq!(Row::UcSend0.label(), "UC SEND, header-only, lists of 16");
    }

    #[test]
    fn less_latency_is_better_and_less_rate_is_worse() {
        assert!(Row::RcLatency.reaches_goal(0.5, 0.6));
        assert!(!Row::RcLatency.reaches_goal(1.1, 1.0));
        assert!(!Row::UdSend.reaches_goal(2.9, 3.0));
        assert!(Row::WireLatency.reaches_goal(1.4, 1.5));
        assert_eq!(CoreDistance::of_bounce_ns(30.0), CoreDistance::Near);
        assert_eq!(CoreDistance::of_bounce_ns(170.0), CoreDistance::Far);
    }
}
