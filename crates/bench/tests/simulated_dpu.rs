//! Programs on a host and on its DPU, behind one simulated NIC.

use std::time::Duration;

use bench::micro::{MeasurementTask, MicroParameters, PingPong, TaskResult, Verb};
use bench::simulated::micro::run_toward_place;
use bench::simulated::sequencer::{self as simulated, SequencerParameters};
use nicmodel::profile::{CorePlace, Profile, builtin_profile};
use sequencer::Design;

fn bf2() -> &'static Profile {
    builtin_profile("bf2").expect("built in")
}

fn sequence(design: Design, place: CorePlace) -> simulated::SequencerResult {
    let setup = SequencerParameters {
        server_place: Some(place),
        clients: 24,
        measured_time: Duration::from_micros(200),
        ..SequencerParameters::paper_setup(design, 8)
    };
    let outcome = simulated::run(bf2(), &setup).expect("it runs");
    assert!(
        outcome.are_numbers_right,
        "{design} on the {place}: {}",
        outcome.verdict_text
    );
    assert_eq!(
        outcome.message_counts.dropped_at_receiver, 0,
        "{design} on the {place}"
    );
    assert_eq!(outcome.message_counts.sent, outcome.message_counts.received);
    outcome
}

/// As in the study: counters of remote atomics are faster in the DPU's memory, counters of its
/// cores are slower.
#[test]
fn every_design_runs_on_both_places() {
    for design in Design::ALL {
        let [host, dpu] =
            [CorePlace::Host, CorePlace::Dpu].map(|place| sequence(design, place).rate_mops);
        if design == Design::Atomics {
            assert!(
                dpu > 1.4 * host,
                "{design}: {dpu} on the DPU, {host} on the host"
            );
        } else {
            assert!(
                dpu < host / 1.5,
                "{design}: {dpu} on the DPU, {host} on the host"
            );
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_output_on_a_dpu() {
    let json = || {
        let outcome = sequence(Design::Rpc, CorePlace::Dpu);
        serde_json::to_string(&outcome).expect("serializes")
    };
    assert_eq!(json(), json());
}

#[test]
fn a_place_that_is_not_there_is_refused() {
    let setup = |cores| SequencerParameters {
        server_place: Some(CorePlace::Dpu),
        ..SequencerParameters::paper_setup(Design::Rpc, cores)
    };
    let cib = builtin_profile("cib").expect("built in");
    let error = simulated::run(cib, &setup(1))
        .expect_err("no DPU")
        .to_string();
    assert!(
        error.contains("cib has no DPU") && error.contains("bf2"),
        "{error}"
    );
    let error = simulated::run(bf2(), &setup(9))
        .expect_err("8 cores")
        .to_string();
    assert!(
        error.contains("9 cores are more than the 8 of the DPU of bf2"),
        "{error}"
    );
}

fn latency_ns(verb: Verb, payload: usize, inline: bool, place: CorePlace) -> f64 {
    let parameters = MicroParameters {
        payload_bytes: Some(payload),
        inline: inline
            .then_some(true)
            .or((verb == Verb::RcSend).then_some(false)),
        ..MicroParameters::default()
    };
    let ping = PingPong::new(verb, &parameters, 1).expect("parameters that fit");
    match run_toward_place(bf2(), &MeasurementTask::PingPong(ping), place).expect("it runs") {
        TaskResult::Latency(latency) => latency.latency_ns_p50,
        TaskResult::Rate(_) => panic!("a ping-pong has a latency"),
    }
}

/// As in the study: SENDs to the DPU are 0.4 µs faster, and inlining shrinks the difference. READs
/// are 11 to 13 % faster there, including the client's own work.
#[test]
fn the_dpu_is_nearer() {
    let saved = |verb, payload, inline| {
        let at = |place| latency_ns(verb, payload, inline, place);
        (
            at(CorePlace::Host) - at(CorePlace::Dpu),
            at(CorePlace::Host),
        )
    };
    let (fetched, _) = saved(Verb::RcSend, 32, false);
    let (inlined, _) = saved(Verb::RcSend, 32, true);
    assert!((fetched / 400.0 - 1.0).abs() < 0.05, "{fetched}");
    assert!(inlined < 0.7 * fetched, "{inlined} {fetched}");
    let (read, whole) = saved(Verb::RcRead, 2048, false);
    assert!((0.10..0.17).contains(&(read / whole)), "{read} of {whole}");
}
