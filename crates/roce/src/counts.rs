//! What requesters and responders count.

/// Counts of one state machine. A name that the kernel's Soft-RoCE counts by is used as there
/// (`rxe_counter_name` in `linux:drivers/infiniband/sw/rxe/rxe_hw_counters.c`), names of congestion and of refused requests
/// as in the counters of mlx5.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests that were executed before.
    pub duplicate_request: u64,
    /// Requests in front of which one is missing.
    pub out_of_seq_request: u64,
    /// RNR NAKs for requests that found no receive work request.
    pub send_rnr_err: u64,
    /// Requests that named memory without having the right to it.
    pub resp_remote_access_errors: u64,
    /// RNR NAKs that have come.
    pub rcvd_rnr_err: u64,
    /// NAKs that have come which ask for a missing packet.
    pub rcvd_seq_err: u64,
    /// How often what was not acknowledged was sent again, RNR NAKs apart.
    pub completer_retry_err: u64,
    /// Requesters that have failed because they had sent again too often.
    pub retry_exceeded_err: u64,
    /// Requesters that have failed because the receiver was not ready too often.
    pub retry_rnr_exceeded_err: u64,
    /// SENDs that are done.
    pub rdma_sends: u64,
    /// Packets that a switch had marked.
    pub np_ecn_marked_roce_packets: u64,
    /// Congestion notifications that were sent.
    pub np_cnp_sent: u64,
    /// Congestion notifications that have come and were obeyed.
    pub rp_cnp_handled: u64,
}

impl Counts {
    /// The counts, from which counting begins anew; `None` if there is nothing but zeroes.
    pub fn take(&mut self) -> Option<Self> {
        if *self == Self::default() {
            return None;
        }
        Some(std::mem::take(self))
    }
}
