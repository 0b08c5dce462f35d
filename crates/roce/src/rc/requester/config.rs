//! What a requester is told when its queue pair becomes ready to send.

use crate::dcqcn::Parameters;
use crate::psn::Psn;

/// Packets outstanding at most, by default.
pub const WINDOW_PACKETS: u32 = 256;

/// Bytes of packets outstanding at most, by default, with [`PACKET_OVERHEAD_BYTES`] for each: what the buffer of a UDP
/// socket takes (Linux gives 416 KiB to a process without privileges).
pub const WINDOW_BYTES: u32 = 320 << 10;

/// What the buffer of a socket counts for a packet beside its payload: the structures of the kernel, and what is left of
/// the memory that a driver receives into.
pub const PACKET_OVERHEAD_BYTES: u32 = 1024;

/// Least time without progress after which a requester probes, by default.
pub const PROBE_NS: u64 = 500_000;

/// What a requester is told when its queue pair becomes ready to send.
#[derive(Clone, Copy, Debug)]
pub struct RequesterConfig {
    /// Number of the responder's queue pair (`dest_qp_num`).
    pub dest_qpn: u32,
    /// Path MTU, 256 to 4096 bytes.
    pub mtu_bytes: u32,
    /// PSN of the first packet (`sq_psn`).
    pub first_psn: Psn,
    /// How long a response may take until the request is sent again; `None`: for ever (`timeout`).
    pub timeout_ns: Option<u64>,
    /// How often requests are sent again without progress until the queue pair fails.
    pub retry_cnt: u8,
    /// How often a receiver that is not ready is asked again; 7: for ever.
    pub rnr_retry: u8,
    /// READs, atomics and FLUSHes outstanding at most; 0 counts as 1.
    pub max_rd_atomic: u8,
    /// Partition key.
    pub pkey: u16,
    /// Packets outstanding at most, responses to READs included. A READ of more than half as many is several requests on
    /// the wire, of which the last may exceed the window.
    pub window_packets: u32,
    /// Bytes of packets outstanding at most, with [`PACKET_OVERHEAD_BYTES`] for each. Where the packets of a request are
    /// shorter than those in front of it, fewer count than are out.
    pub window_bytes: u32,
    /// Least time without progress until requests are sent again although the timeout has not passed; `None`: only the
    /// timeout counts. These retries do not count.
    pub probe_ns: Option<u64>,
    /// How congestion notifications are obeyed; `None`: not at all.
    pub congestion: Option<Parameters>,
}

impl Default for RequesterConfig {
    fn default() -> Self {
        Self {
            dest_qpn: 0,
            mtu_bytes: 1024,
            first_psn: Psn::new(0),
            timeout_ns: Some(4096 << 14),
            retry_cnt: 7,
            rnr_retry: 7,
            max_rd_atomic: 16,
            pkey: 0xffff,
            window_packets: WINDOW_PACKETS,
            window_bytes: WINDOW_BYTES,
            probe_ns: Some(PROBE_NS),
            congestion: Some(Parameters::SIGCOMM_2015),
        }
    }
}
