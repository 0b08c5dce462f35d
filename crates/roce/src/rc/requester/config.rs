//! Configuration of a requester, fixed when its queue pair enters RTS.

use crate::dcqcn::DcqcnParameters;
use crate::psn::Psn;

/// Default of [`RequesterConfig::window_packets`].
pub const DEFAULT_WINDOW_PACKETS: u32 = 256;

/// Default of [`RequesterConfig::window_bytes`]: the capacity of a UDP socket buffer (Linux grants 416 KiB to a process
/// without privileges).
pub const DEFAULT_WINDOW_BYTES: u32 = 320 << 10;

/// Bytes that a socket buffer accounts for each packet in addition to its payload. These are kernel structures and the
/// unused rest of the driver's receive buffer.
pub const SOCKET_BUFFER_OVERHEAD_BYTES_PER_PACKET: u32 = 1024;

/// Default of [`RequesterConfig::min_probe_wait_ns`], in nanoseconds.
pub const DEFAULT_MIN_PROBE_WAIT_NS: u64 = 500_000;

/// The configuration of a requester, fixed when its queue pair enters RTS.
#[derive(Clone, Copy, Debug)]
pub struct RequesterConfig {
    /// Number of the responder's queue pair (`dest_qp_num`).
    pub dest_qpn: u32,
    /// Path MTU, 256 to 4096 bytes.
    pub mtu_bytes: u32,
    /// PSN of the first packet (`sq_psn`).
    pub first_psn: Psn,
    /// Time without response after which requests are sent again, in nanoseconds; `None` disables it (`timeout`).
    pub timeout_ns: Option<u64>,
    /// Number of retries without progress after which the queue pair fails.
    pub retry_cnt: u8,
    /// Number of retries after RNR NAKs; 7 is unlimited.
    pub rnr_retry: u8,
    /// Largest number of outstanding READs, atomics and FLUSHes; 0 counts as 1.
    pub max_rd_atomic: u8,
    /// Partition key.
    pub pkey: u16,
    /// Largest number of outstanding packets, including READ responses. A READ of more than half of this number is
    /// split into several requests on the wire. The last of them may exceed the window.
    pub window_packets: u32,
    /// Largest number of outstanding bytes, with [`SOCKET_BUFFER_OVERHEAD_BYTES_PER_PACKET`] for each packet. All
    /// outstanding packets are counted with the length of the next request's packets. So the count is too low if
    /// earlier packets were longer.
    pub window_bytes: u32,
    /// Minimum time without progress before a probe, which sends requests again before the timeout; `None` disables
    /// probes. Probes do not count as retries.
    pub min_probe_wait_ns: Option<u64>,
    /// DCQCN parameters; `None` if congestion notifications are ignored.
    pub congestion: Option<DcqcnParameters>,
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
            window_packets: DEFAULT_WINDOW_PACKETS,
            window_bytes: DEFAULT_WINDOW_BYTES,
            min_probe_wait_ns: Some(DEFAULT_MIN_PROBE_WAIT_NS),
            congestion: Some(DcqcnParameters::SIGCOMM_2015),
        }
    }
}
