//! The fuzz target of this crate, and the replay of its corpus.

use std::net::{IpAddr, Ipv4Addr};

use crate::{
    CompletionFacts, Direction, Injector, PacketFacts, PeerIds, Plan, QueuePairIds, VerbCallFacts,
    WorkRequestFacts,
};

/// Parses any bytes as a plan. A valid plan must print as a line that parses to the same plan. An
/// injector then runs the plan.
///
/// # Panics
/// Panics if the printed plan differs, or a rule strikes more often than it matched or its count
/// allows.
pub fn parse_and_run_fault_plan(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    for plan in [text.parse::<Plan>(), Plan::from_toml(text)] {
        match plan {
            Err(error) => assert!(!error.to_string().is_empty()),
            Ok(plan) => {
                assert_eq!(plan.to_string().parse(), Ok(plan.clone()));
                run_plan(plan);
            }
        }
    }
}

fn run_plan(plan: Plan) {
    let mut injector = Injector::new(plan, 1);
    for step in 0..40u32 {
        let now_ns = u64::from(step) * 250_000_000;
        let queue_pair = QueuePairIds {
            creation_number: step % 3,
            qpn: 17,
        };
        let facts = PacketFacts {
            direction: [Direction::Send, Direction::Receive][step as usize % 2],
            source: IpAddr::V4(Ipv4Addr::new(127, 0, 0, 1)),
            destination: IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2)),
            queue_pair,
            peer_qpn: Some(18),
            operation: "SEND",
            len_bytes: 64 * (step % 4),
        };
        let fate = injector.decide_packet(now_ns, &facts);
        assert!(fate.corrupt_bit.is_none_or(|bit| bit < facts.len_bytes * 8));
        let verb = VerbCallFacts {
            verb_name: "ibv_reg_mr_iova2",
            queue_pair,
        };
        injector.decide_verb_call(now_ns, &verb);
        let work = WorkRequestFacts {
            operation: "RECV",
            queue_pair,
            peer: PeerIds::default(),
        };
        injector.decide_work_request(now_ns, &work);
        let completion = CompletionFacts {
            operation: "RECV",
            queue_pair,
        };
        injector.decide_completion_delay_ns(now_ns, &completion);
        injector.take_due_incidents(now_ns);
        assert!(
            injector
                .next_incident_due_ns()
                .is_none_or(|due| due > now_ns)
        );
    }
    assert!(
        injector
            .rule_counts()
            .all(|counts| counts.struck <= counts.matched)
    );
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_corpus_of_fault_plans_is_replayed() {
        corpus::replay("fault_plan", super::parse_and_run_fault_plan);
    }
}
