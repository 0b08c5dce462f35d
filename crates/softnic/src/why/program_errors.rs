//! Reports of errors of a program that fail no work request and refuse no verb.

use super::report_detail::{prints_each_failure, write_to_stderr};

/// Reports that a completion queue with room for `depth` completions is overrun, so that its queue pairs fail.
#[cold]
pub(crate) fn report_cq_overrun(depth: usize) {
    if prints_each_failure() {
        write_to_stderr(&format!(
            "verbatim: a completion queue is overrun (IBV_EVENT_CQ_ERR), and its queue pairs fail: it has cqe {depth}, \
             more work requests have completed, and the program has not polled them\n"
        ));
    }
}

/// Reports a datagram that queue pair `qpn` drops for the Q_Key that it carries.
#[cold]
pub(crate) fn report_datagram_with_wrong_qkey(qpn: u32, src_qpn: u32, carried: u32, own: u32) {
    if prints_each_failure() {
        write_to_stderr(&format!(
            "verbatim: queue pair {qpn:#x} dropped a datagram of queue pair {src_qpn:#x}: its Q_Key is {carried:#x}, and \
             qkey of the receiver is {own:#x}\n"
        ));
    }
}

/// Reports that the destruction of an object waits for `count` events that the program has not acknowledged.
#[cold]
pub(crate) fn report_wait_for_acknowledgement(verb: &str, count: u64, acknowledging_verb: &str) {
    if prints_each_failure() {
        let events = if count == 1 { "event" } else { "events" };
        write_to_stderr(&format!(
            "verbatim: {verb} waits: the program got {count} {events} of the object and has not called \
             {acknowledging_verb}\n"
        ));
    }
}
