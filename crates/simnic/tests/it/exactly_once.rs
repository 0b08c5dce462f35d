//! Each work request has its effect once and in order.

use std::time::Duration;

use proptest::prelude::*;

use crate::scene::{
    CONSTANTS_AT, Operation, SLOT_BYTES, Setup, WRITES_AT, post, run, successes, wait,
};

#[test]
fn reads_and_atomics_return_the_data_of_an_earlier_write_of_their_queue_pair() {
    const BYTES: usize = 64 << 10;
    for atomic in [false, true] {
        run(
            &Setup::default(),
            move |side| {
                let last = BYTES - 8;
                side.memory.write_u64(last, 4711).expect("in range");
                let message = side.memory.slice(..BYTES).expect("in range");
                let back = side.memory.slice(BYTES..BYTES + 8).expect("in range");
                let from = side.remote.starting_at(last as u64).expect("in range");
                let mut list = side.qp.postlist(2);
                list.rdma_write(message, side.remote).wr_id(0).signaled();
                if atomic {
                    list.atomic_fetch_and_add(back, from, 1)
                } else {
                    list.rdma_read(back, from)
                }
                .wr_id(1)
                .signaled();
                side.qp.post_send(&mut list).expect("the queue has room");
                assert_eq!(side.completions(2).0, successes(2));
                assert_eq!(side.memory.read_u64(BYTES).expect("in range"), 4711);
            },
            |_| {},
        );
    }
}

fn operation() -> impl Strategy<Value = Operation> {
    let bytes = prop_oneof![Just(8usize), 1_000usize..20_000];
    prop_oneof![
        bytes.clone().prop_map(Operation::Send),
        bytes.clone().prop_map(Operation::Write),
        bytes.prop_map(Operation::Read),
        Just(Operation::FetchAndAdd),
    ]
}

/// Runs the operations over a network with the plan's faults, and checks that each is executed once and in order. The
/// receiver posts its RECVs late.
fn check_exactly_once(operations: Vec<Operation>, plan: &'static str, seed: u64, recvs_at_us: u64) {
    let setup = Setup {
        plan: Some(plan),
        seed,
        qp: Some(|qp| qp.timeout(4u8).min_rnr_timer(1)),
        ..Setup::default()
    };
    let posted = operations.clone();
    run(
        &setup,
        move |side| {
            for (number, &operation) in posted.iter().enumerate() {
                let at = number * SLOT_BYTES;
                side.memory.write_u64(at, number as u64).expect("in range");
                post(side, number, operation);
            }
            let (completed, _) = side.completions(posted.len());
            assert_eq!(completed, successes(posted.len() as u64));
            let mut added = 0;
            for (number, &operation) in posted.iter().enumerate() {
                let got = side.memory.read_u64(number * SLOT_BYTES).expect("in range");
                match operation {
                    Operation::Read(_) => assert_eq!(got, 4711),
                    Operation::FetchAndAdd => {
                        assert_eq!(got, added, "an atomic is executed once");
                        added += 1;
                    }
                    _ => {}
                }
            }
        },
        move |side| {
            side.memory.write_u64(CONSTANTS_AT, 4711).expect("in range");
            let sends = operations.iter().enumerate();
            let sends: Vec<_> = sends
                .filter(|(_, operation)| matches!(operation, Operation::Send(_)))
                .collect();
            wait(Duration::from_micros(recvs_at_us));
            if !sends.is_empty() {
                side.post_recvs(sends.len(), SLOT_BYTES);
            }
            let (received, _) = side.completions(sends.len());
            for (place, (number, _)) in sends.iter().enumerate() {
                assert_eq!(received[place], (place as u64, None));
                let got = side.memory.read_u64(place * SLOT_BYTES).expect("in range");
                assert_eq!(got, *number as u64);
            }
            // A message that is executed twice would take a second RECV.
            wait(Duration::from_millis(5));
            for (number, operation) in operations.iter().enumerate() {
                if matches!(operation, Operation::Write(_)) {
                    let at = WRITES_AT + number * SLOT_BYTES;
                    assert_eq!(side.memory.read_u64(at).expect("in range"), number as u64);
                }
            }
        },
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Each work request completes once and in order, and its effect happens once, whatever the network loses.
    #[test]
    fn all_is_executed_once_and_in_order(
        operations in prop::collection::vec(operation(), 1..40),
        seed in any::<u64>(),
        recvs_at_us in 0u64..100,
        plan in prop::sample::select(vec![
            "drop,p=0.06",
            "drop,p=0.02; delay=1us..30us,p=0.1",
            "drop,opcode=ACK,p=0.2; drop,opcode=READ_RESPONSE,p=0.1",
            "corrupt,p=0.03",
        ]),
    ) {
        check_exactly_once(operations, plan, seed, recvs_at_us);
    }
}
