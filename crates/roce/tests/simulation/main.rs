//! Tests of the state machines over a faulty network: each message is executed exactly once, in order and byte for
//! byte.

mod world;

use world::{Plan, Report, World};

/// Runs one simulation for each seed, with this probability of each fault.
fn run(seeds: std::ops::Range<u64>, messages: u64, fault: f64) -> Report {
    let mut sum = Report::default();
    let planned = messages * (seeds.end - seeds.start);
    for seed in seeds {
        let plan = Plan {
            seed,
            messages,
            fault,
        };
        eprintln!("{plan}");
        let report = World::new(plan)
            .run()
            .unwrap_or_else(|violation| panic!("{violation}"));
        sum.messages += report.messages;
        sum.failed += report.failed;
        sum.dropped += report.dropped;
        sum.unreliable_completed += report.unreliable_completed;
        sum.unreliable_posted += report.unreliable_posted;
    }
    // Queue pairs that are sabotaged leave some messages undone.
    assert!(sum.messages >= planned * 3 / 4, "{sum:?}");
    sum
}

#[test]
fn without_faults_everything_comes() {
    let sum = run(0..40, 1000, 0.0);
    assert_eq!(sum.dropped, 0);
    assert!(sum.unreliable_completed > 0);
}

#[test]
fn one_packet_in_a_thousand() {
    let sum = run(1000..1200, 1000, 0.001);
    assert!(sum.failed > 0 && sum.dropped > 0);
}

#[test]
fn one_packet_in_a_hundred() {
    let sum = run(2000..2200, 1000, 0.01);
    assert!(sum.failed > 0 && sum.dropped > 0);
}

#[test]
fn one_packet_in_twenty() {
    let sum = run(3000..3040, 500, 0.05);
    assert!(sum.unreliable_completed < sum.unreliable_posted);
}

/// Enough messages of the unreliable connection that the delays of the network are shorter than their transmission.
#[test]
fn more_unreliable_messages_than_the_network_can_delay() {
    let sum = run(4000..4004, 10_000, 0.01);
    assert!(sum.unreliable_posted > 1024, "{sum:?}");
}
