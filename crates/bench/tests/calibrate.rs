//! Calibrating a simulated NIC gives back the numbers that it was simulated with.

use bench::calibrate::{SimulatedMachine, calibrate};
use nicmodel::Profile;
use nicmodel::profile::builtin_profile;

fn nic(name: &str) -> &'static Profile {
    builtin_profile(name).expect("built in")
}

fn value(profile: &Profile, key: &str) -> f64 {
    let numbers = profile.numbers();
    let number = numbers.iter().find(|number| number.key == key);
    number.unwrap_or_else(|| panic!("no {key}")).value
}

/// Asserts that numbers are fitted and within tolerances of the true profile; assumed numbers may
/// come from another NIC.
#[track_caller]
fn compare(got: &Profile, truth: &Profile, tolerances: &[(&str, f64)]) {
    let mut wrong = Vec::new();
    for (key, within) in tolerances {
        let (got_value, true_value) = (value(got, key), value(truth, key));
        let numbers = got.numbers();
        let source = numbers
            .iter()
            .find(|number| number.key == *key)
            .expect("there")
            .source;
        if (got_value - true_value).abs() > within * true_value || source != "fitted" {
            wrong.push(format!(
                "{key}: {got_value} ({source}) instead of {true_value}"
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn connect_ib_is_found_again_from_its_rates() {
    let cib = nic("cib");
    // Calibrate with another NIC's profile: Connect-IB's own profile would hide wrong assumptions.
    let calibration =
        calibrate(&mut SimulatedMachine(cib), nic("cx3"), || false).expect("it can be measured");
    let got = &calibration.profile;
    compare(
        got,
        cib,
        &[
            ("host.mmio_write_ns", 0.02),
            ("host.post_wqe_ns", 0.15),
            ("host.poll_cqe_ns", 0.05),
            ("host.post_recv_ns", 0.15),
            ("pcie.latency_ns", 0.1),
            ("processing.send_ns", 0.03),
            ("processing.units", 0.0),
            ("processing.wqe_fetch_wait_ns", 0.05),
            ("processing.read_ns", 0.03),
            ("processing.inbound_ns", 0.03),
            ("processing.inbound_dma_ns", 0.1),
            ("processing.atomic_ns", 0.03),
            ("atomics.lock_bits", 0.0),
            ("atomics.lock_hold_ns", 0.03),
            ("port.latency_ns", 0.1),
            ("cache.read_window", 0.0),
            ("cache.read_window_threads", 0.0),
        ],
    );
    // Only these products can be measured, not their factors.
    let near = |got: f64, truth: f64, within: f64| {
        assert!(
            (got / truth - 1.0).abs() < within,
            "{got} instead of {truth}"
        )
    };
    let ports = |profile| value(profile, "port.count") * value(profile, "port.gbps");
    near(ports(got), ports(cib), 0.03);
    let lanes = |profile| value(profile, "pcie.lanes") * value(profile, "pcie.lane_mbps");
    near(lanes(got), lanes(cib), 0.03);
    assert!((value(got, "port.read_response_gap_bytes") - 21.0).abs() < 10.0);
    assert!((value(got, "pcie.mmio_overhead_bytes") - 4.46).abs() < 4.0);
    // A number that cannot be measured names its origin.
    let numbers = got.numbers();
    let header = numbers
        .iter()
        .find(|number| number.key == "wqe.ud_header_bytes")
        .expect("there");
    assert_eq!(header.source, "assumed");
    assert!(
        header
            .evidence
            .to_string()
            .contains("as in the profile cx3")
    );
    // The text parses to the same profile.
    assert_eq!(
        &Profile::parse(&calibration.profile_toml).expect("it parses"),
        got
    );
}

#[test]
fn a_nic_with_one_lock_and_no_units_is_found_again() {
    let cx3 = nic("cx3");
    let calibration =
        calibrate(&mut SimulatedMachine(cx3), nic("cib"), || false).expect("it can be measured");
    let got = &calibration.profile;
    assert_eq!(value(got, "atomics.lock_bits"), 0.0);
    compare(
        got,
        cx3,
        &[
            ("processing.inbound_ns", 0.03),
            ("processing.inbound_dma_ns", 0.1),
            ("atomics.lock_hold_ns", 0.03),
        ],
    );
    assert!(got.processing.units.is_none());
}
