//! Tests the guarantees of an injector.

use std::net::IpAddr;

use faults::{
    CompletionFacts, DelayQueue, Direction, Incident, Injector, PacketFacts, PacketVerdict,
    PeerIds, Plan, QueuePairIds, VerbCallFacts, WorkRequestFacts, WorkRequestFault,
};
use proptest::prelude::*;

fn injector(line: &str, seed: u64) -> Injector {
    Injector::new(line.parse::<Plan>().expect(line), seed)
}

fn address(last: u8) -> IpAddr {
    IpAddr::from([127, 0, 0, last])
}

fn packet(number: u32) -> PacketFacts {
    PacketFacts {
        direction: Direction::Send,
        source: address(1),
        destination: address(2),
        queue_pair: QueuePairIds {
            creation_number: number,
            qpn: 0x8000 + number,
        },
        peer_qpn: Some(5),
        operation: "SEND",
        len_bytes: 1000,
    }
}

fn work(number: u32, operation: &'static str) -> WorkRequestFacts {
    WorkRequestFacts {
        operation,
        queue_pair: QueuePairIds {
            creation_number: number,
            qpn: 0,
        },
        peer: PeerIds::default(),
    }
}

#[test]
fn after_every_and_count_choose_occurrences() {
    let mut it = injector("verb=ibv_create_qp,errno=EAGAIN,after=2,every=3,count=2", 0);
    let calls: Vec<_> = (0..12)
        .map(|_| {
            it.decide_verb_call(0, &VerbCallFacts::new("ibv_create_qp"))
                .errno
                .is_some()
        })
        .collect();
    let struck: Vec<_> = (0..12).filter(|&n| calls[n]).collect();
    assert_eq!(struck, [2, 5]);
    let counts = it.rule_counts().next().unwrap();
    assert_eq!((counts.matched, counts.struck), (12, 2));
    assert_eq!(
        it.decide_verb_call(0, &VerbCallFacts::new("ibv_create_cq"))
            .errno,
        None
    );
}

#[test]
fn filters_are_obeyed() {
    let mut it = injector("status=REM_OP_ERR,opcode=SEND,qp=2,from=1s,until=2s", 0);
    let second = 1_000_000_000;
    let fault = |it: &mut Injector, now, number, operation| {
        it.decide_work_request(now, &work(number, operation)).fault
    };
    assert_eq!(
        fault(&mut it, second, 2, "SEND"),
        Some(WorkRequestFault::Status(11))
    );
    for (now, number, operation) in [
        (second - 1, 2, "SEND"),
        (2 * second, 2, "SEND"),
        (second, 1, "SEND"),
        (second, 2, "RECV"),
    ] {
        assert_eq!(fault(&mut it, now, number, operation), None);
    }
    let mut any = injector("rnr=1ms", 0);
    assert_eq!(
        fault(&mut any, 0, 1, "RECV"),
        None,
        "a RECV is not meant unless it is named"
    );
    let mut late = injector("late=3ms,opcode=RECV", 0);
    let facts = |operation| CompletionFacts {
        operation,
        queue_pair: QueuePairIds::default(),
    };
    assert_eq!(
        late.decide_completion_delay_ns(0, &facts("RECV")).0,
        3_000_000
    );
    assert_eq!(late.decide_completion_delay_ns(0, &facts("SEND")).0, 0);
}

#[test]
fn packets_have_directions_peers_and_partitions() {
    let mut it = injector("drop,peer=127.0.0.2; partition=127.0.0.2/127.0.0.3", 0);
    assert!(it.decide_packet(0, &packet(1)).drop);
    let arriving = PacketFacts {
        direction: Direction::Receive,
        source: address(2),
        destination: address(1),
        ..packet(1)
    };
    assert!(
        !it.decide_packet(0, &arriving).drop,
        "a rule is for what is sent, unless it says otherwise"
    );
    for (one, other) in [(2, 3), (3, 2)] {
        for direction in [Direction::Send, Direction::Receive] {
            let facts = PacketFacts {
                direction,
                source: address(one),
                destination: address(other),
                ..packet(1)
            };
            assert!(it.decide_packet(0, &facts).drop);
        }
    }
}

#[test]
fn a_limited_rate_spaces_packets_and_loses_what_waits_too_long() {
    // 1000 bytes at 8 Mbit/s take 1 ms.
    let mut it = injector("rate=8Mbit", 0);
    let fates: Vec<PacketVerdict> = (0..150).map(|_| it.decide_packet(0, &packet(1))).collect();
    for (n, fate) in (0u64..).zip(&fates) {
        let expected = (n <= 100).then_some(n * 1_000_000);
        assert_eq!(
            (!fate.drop).then_some(fate.delay_ns),
            expected,
            "packet {n}"
        );
    }
    assert_eq!(it.decide_packet(101_000_000, &packet(1)).delay_ns, 0);
}

#[test]
fn incidents_have_a_time_or_an_occasion() {
    let mut it = injector(
        "event=PORT_ERR,from=2ms; link-down=3ms,from=1ms; pause=1s,opcode=SEND,after=1",
        0,
    );
    assert_eq!(it.next_incident_due_ns(), Some(1_000_000));
    assert!(it.take_due_incidents(999_999).0.is_empty());
    assert_eq!(
        it.take_due_incidents(1_000_000).0[0].0,
        Incident::LinkDown(Some(3_000_000))
    );
    assert!(it.decide_packet(1_500_000, &packet(1)).drop && it.is_link_down(3_999_999));
    assert_eq!(
        it.take_due_incidents(2_500_000).0[0].0,
        Incident::RaiseEvent(10)
    );
    assert_eq!(it.next_incident_due_ns(), Some(4_000_000));
    assert_eq!(it.take_due_incidents(4_000_000).0[0].0, Incident::LinkUp);
    assert_eq!(it.next_incident_due_ns(), None);
    assert!(!it.decide_packet(4_000_000, &packet(1)).drop);
    assert!(
        it.decide_work_request(0, &work(1, "SEND"))
            .incidents
            .is_empty()
    );
    let verdict = it.decide_work_request(0, &work(1, "SEND"));
    assert_eq!(
        verdict.incidents[0].0,
        Incident::PauseProcess(1_000_000_000)
    );
    assert_eq!(verdict.struck_rules.rule_indices().collect::<Vec<_>>(), [2]);
}

proptest! {
    /// The draws of a rule do not depend on other rules. The draws of a queue pair do not depend on
    /// other queue pairs.
    #[test]
    fn draws_depend_on_rule_and_stream_alone(seed: u64, others in proptest::collection::vec(1u32..5, 0..60)) {
        let rule = "drop,p=0.3";
        let mut alone = injector(rule, seed);
        let expected: Vec<bool> = (0..30).map(|_| alone.decide_packet(0, &packet(9)).drop).collect();
        let mut among = injector("duplicate,p=0.5; corrupt,p=0.1; drop,p=0.3", seed);
        let mut others = others.into_iter();
        for expected in expected {
            if let Some(number) = others.next() {
                among.decide_packet(0, &packet(number));
            }
            prop_assert_eq!(among.decide_packet(0, &packet(9)).drop, expected);
        }
    }

    /// Delays keep the order of a queue pair's packets.
    #[test]
    fn delayed_packets_stay_in_order(seed: u64, steps in proptest::collection::vec(0u64..2_000_000, 1..80)) {
        let mut it = injector("delay=1us..5ms,p=0.5", seed);
        let (mut now, mut last) = (0, 0);
        for step in steps {
            now += step;
            let arrival = now + it.decide_packet(now, &packet(1)).delay_ns;
            prop_assert!(arrival >= last);
            last = arrival;
        }
    }

    /// Delayed items leave in the order of their due times, and in insertion order for equal due
    /// times.
    #[test]
    fn a_line_is_a_stable_sort(dues in proptest::collection::vec(0u64..20, 0..60)) {
        let mut line = DelayQueue::default();
        for (number, due) in dues.iter().enumerate() {
            line.push(*due, number);
        }
        let mut expected: Vec<usize> = (0..dues.len()).collect();
        expected.sort_by_key(|&number| dues[number]);
        let mut came = Vec::new();
        for now in 0..20 {
            while let Some(number) = line.pop_due(now) {
                prop_assert_eq!(dues[number], now);
                came.push(number);
            }
        }
        prop_assert!(line.is_empty());
        prop_assert_eq!(came, expected);
    }

    /// Different seeds give different faults; equal seeds give equal faults.
    #[test]
    fn the_seed_decides(seed: u64) {
        let run = |seed| {
            let mut it = injector("drop,p=0.5; corrupt,p=0.5; reorder=1us..1ms,p=0.5", seed);
            (0..200).map(|n| it.decide_packet(n, &packet(1))).collect::<Vec<_>>()
        };
        prop_assert_eq!(run(seed), run(seed));
        prop_assert_ne!(run(seed), run(seed ^ 1));
    }

    /// Any text is either a valid plan or is refused with a message; the fuzz target checks this.
    #[test]
    fn any_words_are_a_plan_or_refused(words in proptest::collection::vec("(drop|delay=1ms|p=0\\.5|p|verb=ibv_reg_mr|errno=EIO|;|,|count=[0-9]{1,30}|qp=[0-9a-fx]{1,9}|from=[0-9.]{1,9}(s|ms))", 0..12)) {
        match words.join(",").parse::<Plan>() {
            Ok(plan) => prop_assert_eq!(plan.to_string().parse::<Plan>(), Ok(plan)),
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
    }
}
