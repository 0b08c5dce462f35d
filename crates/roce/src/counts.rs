//! Counters of requesters and responders.

/// Counters of one state machine. A counter that the kernel's Soft-RoCE has, too, has the same name (`rxe_counter_name`
/// in `linux:drivers/infiniband/sw/rxe/rxe_hw_counters.c`). Counters of congestion and of refused requests have the
/// names that mlx5 uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StateMachineCounters {
    /// Received requests that were already executed.
    pub duplicate_request: u64,
    /// Received requests with a PSN beyond the expected one: an earlier request is missing.
    pub out_of_seq_request: u64,
    /// Sent RNR NAKs, because a request found no receive work request.
    pub send_rnr_err: u64,
    /// Received requests that were refused with a remote access error.
    pub resp_remote_access_errors: u64,
    /// Received RNR NAKs.
    pub rcvd_rnr_err: u64,
    /// Received PSN sequence error NAKs, which ask for a missing packet.
    pub rcvd_seq_err: u64,
    /// Retransmissions of everything unacknowledged, except those after RNR NAKs.
    pub completer_retry_err: u64,
    /// Requesters that failed because the retry count was exceeded.
    pub retry_exceeded_err: u64,
    /// Requesters that failed because the RNR retry count was exceeded.
    pub retry_rnr_exceeded_err: u64,
    /// SENDs that completed.
    pub rdma_sends: u64,
    /// Received packets that a switch had marked with ECN.
    pub np_ecn_marked_roce_packets: u64,
    /// Sent congestion notification packets (CNPs).
    pub np_cnp_sent: u64,
    /// Received CNPs that reduced the send rate.
    pub rp_cnp_handled: u64,
}

impl StateMachineCounters {
    /// Returns the counters and resets them to 0; `None` if all of them are 0.
    pub fn take_unless_all_zero(&mut self) -> Option<Self> {
        if *self == Self::default() {
            return None;
        }
        Some(std::mem::take(self))
    }
}
