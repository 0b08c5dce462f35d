//! Tests of every verb with every parameter, briefly on the software NIC.

use anyhow::Result;

use super::*;
use crate::link::WorkerLink;
use crate::open_nic::NicChoice;

/// Runs `task` briefly on the software NIC, with threads as workers. Returns the outcome, and the
/// results of the workers.
fn run(task: &MeasurementTask) -> (Result<TaskResult>, Vec<Result<()>>) {
    let nic = NicChoice::first_device_of("softnic");
    let (mut links, workers): (Vec<_>, Vec<_>) = (0..task.other_side_processes())
        .map(|_| {
            let (left, mut right) = WorkerLink::pair().unwrap();
            let worker = std::thread::spawn(move || crate::worker::run_jobs(&mut right, None));
            (left, worker)
        })
        .unzip();
    let outcome = lanes::measure_with_workers(&mut links, &nic, task, &[], &[]);
    drop(links);
    let worked = workers.into_iter().map(|worker| worker.join().unwrap());
    (outcome, worked.collect())
}

fn tiny(task: MeasurementTask) -> TaskResult {
    match run(&task) {
        (Ok(outcome), worked) if worked.iter().all(Result::is_ok) => outcome,
        (outcome, worked) => panic!("{task:?}: {outcome:?}, workers: {worked:?}"),
    }
}

fn stream(verb: Verb, parameters: MicroParameters) -> StreamRate {
    let stream = VerbStream::new(verb, &parameters, 5).unwrap();
    let TaskResult::Rate(rate) = tiny(MeasurementTask::Stream(stream)) else {
        panic!("a stream has a rate");
    };
    assert!(
        rate.verified_ops + rate.lost_datagrams >= stream.min_messages_per_qp(),
        "{rate:?}"
    );
    assert!(rate.rate_mops > 0.0, "{rate:?}");
    rate
}

fn of(payload_bytes: usize) -> MicroParameters {
    MicroParameters {
        payload_bytes: Some(payload_bytes),
        ..MicroParameters::default()
    }
}

#[test]
fn every_verb_streams_every_form_of_payload() {
    for verb in Verb::ALL {
        let payloads: &[usize] = match verb {
            Verb::Atomics => &[8],
            Verb::UdSend => &[0, 4, 8, 13, 64, 4096],
            Verb::RcSend | Verb::UcSend => &[0, 4, 8, 13, 64, 4096, 1 << 20],
            _ => &[8, 13, 64, 4096, 1 << 20],
        };
        for payload in payloads {
            stream(verb, of(*payload));
        }
    }
}

#[test]
fn parameters_that_do_not_fit_each_other_well() {
    for verb in Verb::ALL {
        for (batch, window, signal_every) in [(1, 1, 1), (1, 7, 7), (3, 18, 9), (5, 10, 2)] {
            stream(
                verb,
                MicroParameters {
                    wrs_per_doorbell: Some(batch),
                    window: Some(window),
                    signal_every: Some(signal_every),
                    inline: Some(false),
                    ..MicroParameters::default()
                },
            );
        }
    }
}

#[test]
fn every_verb_plays_ping_pong() {
    for verb in Verb::ALL {
        for payload in [8, 100, 4096] {
            if verb == Verb::Atomics && payload != 8 {
                continue;
            }
            let ping = PingPong::new(verb, &of(payload), 5).unwrap();
            let TaskResult::Latency(latency) = tiny(MeasurementTask::PingPong(ping)) else {
                panic!("a ping-pong has a latency");
            };
            assert!(latency.verified_ops > 0, "{latency:?}");
            assert!(
                latency.latency_ns_p50 <= latency.latency_ns_p99,
                "{latency:?}"
            );
            assert!(
                latency.latency_ns_p99 <= latency.latency_ns_max,
                "{latency:?}"
            );
        }
    }
    let header_only = PingPong::new(Verb::UdSend, &of(0), 5).unwrap();
    tiny(MeasurementTask::PingPong(header_only));
}

#[test]
fn a_datagram_longer_than_the_mtu_is_refused() {
    for direction in [MeasuredRole::Outbound, MeasuredRole::Inbound] {
        let parameters = MicroParameters {
            measured_role: direction,
            ..of(4097)
        };
        let long = VerbStream::new(Verb::UdSend, &parameters, 5).unwrap();
        let (refused, worked) = run(&MeasurementTask::Stream(long));
        let refused = refused.unwrap_err();
        assert!(refused.to_string().contains("MTU"), "{refused}");
        assert!(worked[0].is_err());
    }
}

#[test]
fn either_end_can_be_measured_with_many_threads() {
    for verb in Verb::ALL {
        for direction in [MeasuredRole::Outbound, MeasuredRole::Inbound] {
            for (threads, processes, queue_pairs) in [(1, 1, 3), (2, 1, 2), (3, 2, 1)] {
                let rate = stream(
                    verb,
                    MicroParameters {
                        measured_role: direction,
                        window: Some(16),
                        threads: Some(threads),
                        other_side_processes: Some(processes),
                        queue_pairs_per_thread: Some(queue_pairs),
                        ..MicroParameters::default()
                    },
                );
                // Each queue pair sends at least two windows.
                let least = (2 * 16 * threads * queue_pairs) as u64;
                assert!(
                    rate.verified_ops + rate.lost_datagrams >= least,
                    "{verb:?}: {rate:?}"
                );
            }
        }
    }
}

#[test]
fn atomics_on_many_counters_are_checked() {
    for (threads, addresses, spacing_bytes) in [(1, 5, 8), (1, 100, 64), (2, 7, 4096)] {
        stream(
            Verb::Atomics,
            MicroParameters {
                measured_role: MeasuredRole::Inbound,
                threads: Some(threads),
                atomic_counters: Some(addresses),
                counter_spacing_bytes: Some(spacing_bytes),
                ..MicroParameters::default()
            },
        );
    }
}

#[test]
fn bursts_end_and_are_checked() {
    for verb in Verb::ALL {
        for (window, batch, signal_every) in [(1, 1, 1), (8, 1, 8), (8, 8, 8), (12, 3, 4)] {
            stream(
                verb,
                MicroParameters {
                    window: Some(window),
                    wrs_per_doorbell: Some(batch),
                    signal_every: Some(signal_every),
                    waits_between_windows: true,
                    ..MicroParameters::default()
                },
            );
        }
    }
}

#[test]
fn names_are_those_of_json() {
    for verb in Verb::ALL {
        let json = serde_json::to_string(&verb).unwrap();
        assert_eq!(json, format!("\"{}\"", verb.name()));
    }
}
