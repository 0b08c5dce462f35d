//! Retries for receivers that are not ready, silent peers and queue pairs that are gone.

use std::time::Duration;

use verbs::WcStatus;

use crate::scene::{Operation, Setup, post, run, run_and_drop_receiver, wait};

#[test]
fn sends_wait_for_recvs_and_keep_their_order() {
    let setup = Setup {
        // 80 µs.
        qp: Some(|qp| qp.min_rnr_timer(6)),
        ..Setup::default()
    };
    let [sender, receiver] = run(
        &setup,
        |side| {
            for number in 0..3 {
                side.memory.write_u64(0, 7 + number).expect("in range");
                side.send(number, 8);
            }
            let (completed, at) = side.completions(3);
            assert_eq!(completed, [(0, None), (1, None), (2, None)]);
            // Two waits of 80 µs end after 100 µs.
            assert!(at > Duration::from_micros(160), "{at:?}");
            assert!(at < Duration::from_micros(180), "{at:?}");
        },
        |side| {
            wait(Duration::from_micros(100));
            side.post_recvs(3, 8);
            let (received, _) = side.completions(3);
            assert_eq!(received, [(0, None), (1, None), (2, None)]);
            let numbers = [0, 8, 16].map(|at| side.memory.read_u64(at).expect("in range"));
            assert_eq!(numbers, [7, 8, 9]);
        },
    );
    assert_eq!(receiver.rnr_naks, 2);
    assert_eq!(receiver.received_messages, 3);
    assert_eq!(receiver.dropped_messages, 0);
    // The first two times, no message counts.
    assert_eq!(sender.wasted_sends, 6);
}

#[test]
fn rnr_retries_end_with_their_number() {
    let setup = Setup {
        // 10 µs.
        qp: Some(|qp| qp.rnr_retry(2).min_rnr_timer(1)),
        ..Setup::default()
    };
    let [_, receiver] = run(
        &setup,
        |side| {
            (0..3).for_each(|number| side.send(number, 8));
            let (completed, at) = side.completions(3);
            let flushed = Some(WcStatus::WrFlushErr);
            let expected = [
                (0, Some(WcStatus::RnrRetryExcErr)),
                (1, flushed),
                (2, flushed),
            ];
            assert_eq!(completed, expected);
            assert!(at > Duration::from_micros(20), "{at:?}");
            assert!(at < Duration::from_micros(40), "{at:?}");
        },
        |_| {},
    );
    assert_eq!(receiver.rnr_naks, 3);
}

#[test]
fn a_silent_peer_costs_a_timeout_for_each_try() {
    let setup = Setup {
        plan: Some("drop,opcode=SEND"),
        // 65.5 µs.
        qp: Some(|qp| qp.timeout(4u8).retry_cnt(3)),
        ..Setup::default()
    };
    let [sender, receiver] = run(
        &setup,
        |side| {
            (0..2).for_each(|number| side.send(number, 8));
            let (completed, at) = side.completions(2);
            let expected = [
                (0, Some(WcStatus::RetryExcErr)),
                (1, Some(WcStatus::WrFlushErr)),
            ];
            assert_eq!(completed, expected);
            assert!(at > Duration::from_micros(4 * 65), "{at:?}");
            assert!(at < Duration::from_micros(4 * 65 + 20), "{at:?}");
        },
        |_| {},
    );
    // Two messages are sent four times.
    assert_eq!(sender.wasted_sends, 8);
    assert_eq!(receiver.received_messages, 0);
}

#[test]
fn an_rnr_nak_shows_that_an_earlier_response_is_lost() {
    let setup = Setup {
        plan: Some("drop,opcode=READ_RESPONSE,count=1"),
        // No timeout; 10 µs.
        qp: Some(|qp| qp.timeout(0u8).min_rnr_timer(1)),
        ..Setup::default()
    };
    run(
        &setup,
        |side| {
            post(side, 0, Operation::Read(8));
            post(side, 1, Operation::Send(8));
            assert_eq!(side.completions(2).0, [(0, None), (1, None)]);
        },
        |side| {
            wait(Duration::from_micros(30));
            side.post_recvs(1, 8);
        },
    );
}

#[test]
fn a_nak_acknowledges_earlier_messages_before_a_retry_counts() {
    let setup = Setup {
        plan: Some("drop,opcode=ACK,count=1; drop,opcode=SEND,after=1,count=1"),
        qp: Some(|qp| qp.retry_cnt(0)),
        ..Setup::default()
    };
    run(
        &setup,
        |side| {
            (0..3).for_each(|number| side.send(number, 8));
            let expected = [
                (0, None),
                (1, Some(WcStatus::RetryExcErr)),
                (2, Some(WcStatus::WrFlushErr)),
            ];
            assert_eq!(side.completions(3).0, expected);
        },
        |side| side.post_recvs(3, 8),
    );
}

#[test]
fn a_peer_that_expects_another_psn_fails_the_queue_pair() {
    let setup = Setup {
        wrong_psn: true,
        ..Setup::default()
    };
    run(
        &setup,
        |side| {
            side.send(0, 8);
            assert_eq!(side.completions(1).0, [(0, Some(WcStatus::RetryExcErr))]);
        },
        |side| side.post_recvs(1, 8),
    );
}

#[test]
fn a_peer_that_is_destroyed_while_it_answers_fails_the_queue_pair() {
    let setup = Setup {
        qp: Some(|qp| qp.timeout(4u8).retry_cnt(2)),
        ..Setup::default()
    };
    run_and_drop_receiver(&setup, |side| {
        for number in 0..3 {
            post(side, number, Operation::Read(8));
        }
        let (completed, _) = side.completions(3);
        let expected = [
            (0, Some(WcStatus::RetryExcErr)),
            (1, Some(WcStatus::WrFlushErr)),
            (2, Some(WcStatus::WrFlushErr)),
        ];
        assert_eq!(completed, expected);
    });
}
