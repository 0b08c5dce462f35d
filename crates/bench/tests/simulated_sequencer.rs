//! The sequencer on a simulated cluster is deterministic, loses nothing, and is as fast as
//! published.

use std::time::Duration;

use bench::simulated::sequencer::{SequencerParameters, SequencerResult, run};
use nicmodel::profile::{Profile, builtin_profile};
use nicmodel::published;
use sequencer::Design;

fn simulate(setup: &SequencerParameters) -> SequencerResult {
    let outcome = run(builtin_profile("cib").expect("built in"), setup).expect("it runs");
    assert!(outcome.are_numbers_right, "{}", outcome.verdict_text);
    outcome
}

fn short(design: Design, cores: usize) -> SequencerParameters {
    SequencerParameters {
        clients: 12,
        measured_time: Duration::from_micros(50),
        ..SequencerParameters::paper_setup(design, cores)
    }
}

#[test]
fn the_same_seed_gives_the_same_output() {
    for design in Design::ALL {
        let json = || serde_json::to_string(&simulate(&short(design, 2))).expect("serializes");
        assert_eq!(json(), json(), "{design}");
    }
}

#[test]
fn no_message_is_lost_or_doubled() {
    for design in Design::ALL {
        let outcome = simulate(&short(design, 3));
        let messages = outcome.message_counts;
        assert_eq!(
            (messages.dropped_at_receiver, outcome.lost_requests),
            (0, 0),
            "{design}"
        );
        assert_eq!(messages.sent, messages.received, "{design}");
        if design == Design::Atomics {
            // Clients also READ the limit.
            assert!(messages.sent >= outcome.received_numbers, "{design}");
        } else {
            assert_eq!(messages.sent, 2 * outcome.received_numbers, "{design}");
        }
    }
}

/// Figure 7 and Table 3: fitted rates are within 3 %, others within 10 %.
#[test]
fn the_ladder_of_the_paper() {
    let cases = [
        (Design::Atomics, 1, "seq_t3_atomics", 0.03),
        (Design::Rpc, 1, "seq_rpc_base_1c", 0.03),
        (Design::Rpc, 14, "seq_t3_baseline", 0.1),
        (Design::RpcBatch, 1, "seq_rpc_batch_1c", 0.03),
        (Design::RpcBatchMq, 1, "seq_rpc_batch_mq_1c", 0.03),
        (Design::RpcBatchMq, 6, "seq_rpc_batch_mq_6c", 0.1),
        (Design::SpecS0, 10, "seq_t3_spec_s0", 0.1),
    ];
    for (design, cores, id, limit) in cases {
        let setup = SequencerParameters {
            measured_time: Duration::from_micros(500),
            ..SequencerParameters::paper_setup(design, cores)
        };
        let ours = simulate(&setup).rate_mops;
        let printed = published::published_number_by_id(id)
            .expect("published")
            .value;
        let error = ours / printed - 1.0;
        assert!(error.abs() <= limit, "{id}: {ours} for {printed}");
    }
}

/// Each step of the ladder pays, but one core of Spec-S0, which posts RECVs, is slower.
#[test]
fn steps_of_the_ladder() {
    let rate = |design| simulate(&short(design, 1)).rate_mops;
    let steps = [
        Design::Atomics,
        Design::Rpc,
        Design::RpcBatch,
        Design::RpcBatchMq,
    ];
    let rates = steps.map(rate);
    assert!(rates.is_sorted(), "{rates:?}");
    assert!(rate(Design::SpecS0) < rates[3]);
}

/// Simulates as many machines as clients, each with one outstanding request.
fn many_machines(machines: usize) -> SequencerResult {
    simulate(&SequencerParameters {
        clients: machines,
        client_machines: Some(machines),
        window: 1,
        max_requests_per_doorbell: 1,
        measured_time: Duration::from_micros(200),
        ..SequencerParameters::paper_setup(Design::SpecS0, 10)
    })
}

#[test]
fn every_client_has_a_machine_of_its_own() {
    let outcome = many_machines(400);
    assert!(outcome.received_numbers >= 400, "{outcome:?}");
    assert_eq!(outcome.message_counts.dropped_at_receiver, 0);
}

#[test]
fn ten_thousand_machines() {
    let outcome = many_machines(10_000);
    assert!(outcome.received_numbers >= 10_000, "{outcome:?}");
    assert!((110.0..130.0).contains(&outcome.rate_mops), "{outcome:?}");
}

#[test]
fn what_cannot_be_simulated_says_why() {
    let refused_of = |profile: &Profile, design, cores| {
        let error = run(profile, &short(design, cores)).expect_err("refused");
        error.to_string()
    };
    let refused =
        |nic, design, cores| refused_of(builtin_profile(nic).expect("built in"), design, cores);
    let mut lacking = builtin_profile("cib").expect("built in").clone();
    lacking.processing.send_ns = None;
    let error = refused_of(&lacking, Design::SpecS0, 1);
    let lacks = "profile cib cannot be simulated: it has no processing.send_ns";
    assert!(error.contains(lacks), "{error}");
    let cx3 = refused("cx3", Design::SpecS0, 1);
    assert!(cx3.contains("host.post_wqe_ns"), "{cx3}");
    let many = refused("cib", Design::Rpc, 15);
    assert!(
        many.contains("15 cores are more than the 14 of cib"),
        "{many}"
    );
}
