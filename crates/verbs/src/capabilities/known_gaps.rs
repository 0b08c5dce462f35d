//! Drivers with known deviations from the specification that queries and probes do not show.

use super::capability_types::{Capability, MissingCapability};

/// A capability that a driver is known to lack.
struct KnownGap {
    driver: &'static str,
    capability: Capability,
    /// The driver's behaviour instead.
    behaviour: &'static str,
    /// The test of `verbs-conformance` that shows it.
    conformance_test: &'static str,
    /// The device and kernel on which the deviation was seen.
    seen_on: &'static str,
}

const RXE_DRIVER: &str = "rdma_rxe";
const RXE_SEEN_ON: &str = "Linux 6.1.192, rdma-core 44";

const KNOWN_GAPS: [KnownGap; 4] = [
    KnownGap {
        driver: RXE_DRIVER,
        capability: Capability::ErrorStatuses,
        behaviour: "a wrong L_Key and a RECV that is too small both fail with LOC_QP_OP_ERR",
        conformance_test: "access::local_protection_errors_have_their_status",
        seen_on: RXE_SEEN_ON,
    },
    KnownGap {
        driver: RXE_DRIVER,
        capability: Capability::ErrorEvents,
        behaviour: "the queue pair goes to ERR silently",
        conformance_test: "events::an_access_error_is_an_event_of_the_responder",
        seen_on: RXE_SEEN_ON,
    },
    KnownGap {
        driver: RXE_DRIVER,
        capability: Capability::SendQueueErrors,
        behaviour: "a failed SEND takes the whole queue pair to ERR",
        conformance_test: "access::local_failure_stops_only_the_send_queue_of_ud",
        seen_on: RXE_SEEN_ON,
    },
    KnownGap {
        driver: RXE_DRIVER,
        capability: Capability::SendQueueDrain,
        behaviour: "WRs that are posted in SQD are not begun when the queue pair is back in RTS",
        conformance_test: "state::sqd_holds_sends_back_and_rts_resumes",
        seen_on: RXE_SEEN_ON,
    },
];

/// Returns the capabilities that a driver is known to lack.
pub(super) fn missing_by_driver(driver: Option<&str>) -> Vec<MissingCapability> {
    KNOWN_GAPS
        .iter()
        .filter(move |known| Some(known.driver) == driver)
        .map(|known| MissingCapability {
            capability: known.capability,
            why: format!(
                "{} is known for it: {}; seen on {} by the test {}",
                known.driver, known.behaviour, known.seen_on, known.conformance_test
            ),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_entry_is_shown_by_a_test_of_the_suite() {
        let suite = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../verbs-conformance/src/suite"
        );
        for KnownGap {
            conformance_test: shown_by,
            ..
        } in KNOWN_GAPS
        {
            let (module, test) = shown_by.split_once("::").expect("module::test");
            let file = format!("{suite}/{module}.rs");
            let text = std::fs::read_to_string(&file).expect("the suite has the module");
            assert!(text.contains(test), "{file} has no test {test}");
        }
    }

    #[test]
    fn only_the_driver_that_is_known_lacks_anything() {
        let names: Vec<_> = missing_by_driver(Some(RXE_DRIVER))
            .iter()
            .map(|lack| lack.capability)
            .collect();
        assert_eq!(names, Capability::ALL[8..]);
        assert_eq!(
            missing_by_driver(Some("mlx5_core")).len() + missing_by_driver(None).len(),
            0
        );
    }
}
