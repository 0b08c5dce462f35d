//! Send queues: the fetch of their WQEs, and their slots.

use std::time::Duration;

use verbs::{Inline, Ud, WcBuffer};

use crate::scene::{Setup, Side, run, run_alone, successes, wait};

/// The fetch of a list of WQEs depends on the sizes of all of them, and not on which comes first.
#[test]
fn the_fetch_of_a_list_costs_the_same_in_each_order() {
    let fetched_bytes = [false, true].map(|long_first| {
        let [sender, _] = run(
            &Setup {
                qp: Some(|qp| qp.max_inline_data(400)),
                ..Setup::default()
            },
            move |side| {
                let later = [long_first, !long_first];
                let mut list = side.qp.postlist(2);
                for (number, long) in later.into_iter().enumerate() {
                    let payload: &[u8] = if long { &[7; 400] } else { &[] };
                    list.rdma_write(Inline(payload), side.remote)
                        .wr_id(number as u64)
                        .signaled();
                }
                side.qp.post_send(&mut list).expect("the queue has room");
                assert_eq!(side.completions(2).0, successes(2));
            },
            |_| {},
        );
        sender.dma_read_bytes
    });
    assert_eq!(fetched_bytes[0], fetched_bytes[1]);
    assert!(fetched_bytes[0] >= 448, "{fetched_bytes:?}");
}

/// Slots of the send queue in the tests of slots.
const SLOTS: usize = 4;

/// Runs a sender with a send queue of [`SLOTS`] slots.
fn run_with_few_slots(sender: impl FnOnce(&Side) + 'static) {
    let setup = Setup {
        qp: Some(|qp| qp.max_send_wr(4)),
        ..Setup::default()
    };
    run(&setup, sender, |_| {});
}

/// Posts a WRITE; fails with the errno.
fn post_write(side: &Side, wr_id: u64, signaled: bool) -> Result<(), i32> {
    let message = side.memory.slice(..8).expect("in range");
    let posted = side.qp.post_one(|list| {
        let wr = list.rdma_write(message, side.remote).wr_id(wr_id);
        if signaled {
            wr.signaled();
        }
    });
    posted.map_err(|e| e.errno())
}

/// IBTA vol. 1, 10.7.3.1: a program frees the slots of unsignaled WRs by a poll of a later completion.
#[test]
fn unsignaled_wrs_hold_their_slots() {
    run_with_few_slots(|side| {
        for number in 0..SLOTS as u64 {
            assert_eq!(post_write(side, number, false), Ok(()));
        }
        wait(Duration::from_micros(100));
        let mut wcs = WcBuffer::<8>::new();
        assert!(side.cq.poll(&mut wcs).expect("no overrun").is_empty());
        assert_eq!(post_write(side, 9, true), Err(libc::ENOMEM));
    });
}

#[test]
fn completed_wrs_hold_their_slots_until_they_are_polled() {
    run_with_few_slots(|side| {
        for number in 0..SLOTS as u64 {
            assert_eq!(post_write(side, number, true), Ok(()));
        }
        wait(Duration::from_micros(100));
        assert_eq!(post_write(side, 9, true), Err(libc::ENOMEM));
        let mut wcs = WcBuffer::<1>::new();
        for number in SLOTS as u64..12 {
            assert_eq!(side.cq.poll(&mut wcs).expect("no overrun").len(), 1);
            assert_eq!(post_write(side, number, true), Ok(()));
            assert_eq!(post_write(side, 99, true), Err(libc::ENOMEM));
            wait(Duration::from_micros(100));
        }
    });
}

#[test]
fn a_completion_frees_the_slots_of_the_unsignaled_wrs_before_it() {
    run_with_few_slots(|side| {
        for round in 0..3 {
            for number in 0..SLOTS {
                let last = number + 1 == SLOTS;
                assert_eq!(post_write(side, round, last), Ok(()));
            }
            assert_eq!(post_write(side, 9, true), Err(libc::ENOMEM));
            assert_eq!(side.completions(1).0, [(round, None)]);
        }
    });
}

/// A failed WR has a completion also if it is unsignaled.
#[test]
fn a_failed_wr_frees_its_slot_when_it_is_polled() {
    run_with_few_slots(|side| {
        let mut wrong = side.remote;
        wrong.rkey = verbs::RKey(wrong.rkey.0 + 100);
        let message = side.memory.slice(..8).expect("in range");
        assert_eq!(post_write(side, 0, false), Ok(()));
        let posted = side.qp.post_one(|list| {
            list.rdma_write(message, wrong).wr_id(1);
        });
        posted.expect("the send queue has room");
        for number in 2..SLOTS as u64 {
            assert_eq!(post_write(side, number, false), Ok(()));
        }
        wait(Duration::from_micros(100));
        assert_eq!(post_write(side, 9, true), Err(libc::ENOMEM));
        // The failure and two flushed WRs.
        assert_eq!(side.completions(3).0.len(), 3);
        for number in 0..SLOTS as u64 {
            assert_eq!(post_write(side, number, false), Ok(()));
        }
    });
}

/// A list of datagrams takes the short loop of unsignaled messages.
#[test]
fn unsignaled_datagrams_hold_their_slots() {
    const DATAGRAM_SLOTS: usize = 16;
    run_alone(|pd, cq| {
        let slots = u32::try_from(DATAGRAM_SLOTS).expect("small");
        let [from, to] = [0, 1].map(|_| {
            let qp = pd.qp_builder::<Ud>(cq, cq).max_send_wr(slots).build();
            qp.expect("a queue pair")
        });
        let destination = pd.ud_destination(1, &to.endpoint()).expect("a machine");
        let post = |count: usize, signaled: bool| {
            let mut list = from.postlist(count);
            for number in 0..count {
                // Equal ones without payload share a message.
                let bytes: &[u8] = if number < 4 { &[] } else { &[1; 8] };
                let wr = list.send(Inline(bytes), &destination);
                if signaled && number + 1 == count {
                    wr.signaled();
                }
            }
            from.post_send(&mut list).map_err(|e| e.errno())
        };
        assert_eq!(post(DATAGRAM_SLOTS, false), Ok(()));
        wait(Duration::from_micros(100));
        assert_eq!(post(1, true), Err(libc::ENOMEM));
    });
}
