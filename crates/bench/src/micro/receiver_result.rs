//! Results that the receiver of SENDs reports to their sender.

use serde::{Deserialize, Serialize};

use super::parameters::{VerbStream, gcd};
use crate::poll_timeout::DEFAULT_EVENT_TIMEOUT_NS;

/// Time after which a missing datagram counts as lost, in ns.
pub(super) const LOSS_TIMEOUT_NS: u64 = DEFAULT_EVENT_TIMEOUT_NS / 20;

/// Result of the receiver at the end of a stream.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ReceiverResult {
    #[serde(rename = "received")]
    pub(super) received_messages: u64,
    #[serde(rename = "ops")]
    pub(super) measured_ops: u64,
    pub(super) elapsed_ns: u64,
    #[serde(rename = "wrong")]
    pub(super) wrong_data: Option<String>,
}

/// Returns the number of messages that the receiver takes between two reports.
pub(super) fn messages_per_report(stream: &VerbStream) -> usize {
    gcd(stream.window, (stream.window / 4).max(1))
}

/// Returns the maximum number of reports that are on their way to the sender.
pub(super) fn max_outstanding_reports(stream: &VerbStream) -> usize {
    2 * stream.window / messages_per_report(stream)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::micro::parameters::MicroParameters;
    use crate::micro::verb::Verb;

    #[test]
    fn reports_come_in_whole_chunks() {
        for window in 1..=300 {
            let parameters = MicroParameters {
                wrs_per_doorbell: Some(1),
                signal_every: Some(1),
                window: Some(window),
                ..MicroParameters::default()
            };
            let stream = VerbStream::new(Verb::RcSend, &parameters, 1).unwrap();
            let chunk = messages_per_report(&stream);
            assert!(window.is_multiple_of(chunk) && chunk <= (window / 4).max(1));
            assert!(max_outstanding_reports(&stream) >= 2);
        }
    }
}
