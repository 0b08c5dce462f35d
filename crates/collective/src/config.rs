//! How connections are made, and how deep their queues are.

use crate::memory_layout::MAX_REQUESTS;

/// Queue pairs of a connection, at most.
pub(crate) const MAX_LANES: usize = 16;
/// Send WRs of a sender's queue pair: 32 groups of 8, a WRITE each and one for the sizes.
pub(crate) const SENDER_SEND_QUEUE_DEPTH: usize = 32 * 9 + 32;
/// Send WRs of a receiver's queue pair: a WRITE for each group under way, and those whose end was not reported yet.
pub(crate) const RECEIVER_SEND_QUEUE_DEPTH: usize = MAX_REQUESTS + 2 * CTS_SIGNAL_INTERVAL;
/// One clear-to-send WRITE in so many is signaled.
pub(crate) const CTS_SIGNAL_INTERVAL: usize = 32;
/// RECVs are posted so many at a time.
pub(crate) const RECVS_PER_REPOST: usize = 32;
/// RECVs that wait at a lane: never fewer than groups under way.
pub(crate) const LANE_RECV_QUEUE_DEPTH: usize = MAX_REQUESTS + 2 * RECVS_PER_REPOST;
/// How connections are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// Queue pairs of a connection, 1 to 16; 1 by default. The smaller number of both ends holds.
    pub lane_count: usize,
    /// The port, from 1; 1 by default.
    pub port_num: u8,
    /// The entry of the GID table; the device's default if `None`.
    pub gid_index: Option<u8>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            lane_count: 1,
            port_num: 1,
            gid_index: None,
        }
    }
}
