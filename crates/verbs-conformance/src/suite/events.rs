//! Tests of async events.

use std::time::Duration;

use verbs_abi::*;

use crate::TestEnv;
use crate::test_env::NicCapability;
use crate::objects::{QUIET_PERIOD, Qp};
use crate::pair::{QpPair, QpSpec};
use crate::wr::{RemoteAddress, Verb, read, send, write};

tests! { "events";
    an_access_error_is_an_event_of_the_responder [Events, ErrorEvents],
    an_invalid_request_is_an_event_of_the_responder [Events, ErrorEvents, Read],
    a_failed_request_is_no_event_of_the_requester [Events],
    a_blocked_thread_wakes_up [Events],
    destroying_waits_for_the_acknowledgement [Events],
    a_context_gets_only_its_own_events [Events],
    the_last_wqe_of_an_srq_is_an_event [Events, Srq],
    draining_is_an_event [Events, Sqd],
    draining_ends_when_the_last_request_is_acknowledged [Events, Sqd],
    unread_events_do_not_block_closing [],
}

/// Causes an async event of `b`'s queue pair, and returns the event type. The event is an access error, or
/// the end of draining if the NIC has no error events.
fn raise_event_of_b(pair: &QpPair) -> ibv_event_type {
    let env = pair.a.ctx.env();
    if env.expects_capability(NicCapability::ErrorEvents) || !env.expects_capability(NicCapability::Sqd) {
        let local = pair.a.alloc_buf(8);
        let nowhere = RemoteAddress {
            addr: 0x1000,
            rkey: 0xbad,
        };
        pair.a.post(write([local.whole_sge()], nowhere).with_id(1));
        pair.a.await_send_completion().expect_failed(1, &[IBV_WC_REM_ACCESS_ERR]);
        return IBV_EVENT_QP_ACCESS_ERR;
    }
    move_b_to_sqd(pair);
    IBV_EVENT_SQ_DRAINED
}

/// Moves `b` to SQD, with a request for the event that reports the end of draining.
fn move_b_to_sqd(pair: &QpPair) {
    move_to_sqd(&pair.b.qp);
}

fn move_to_sqd(qp: &Qp) {
    let mut attr = ibv_qp_attr::zeroed();
    attr.qp_state = IBV_QPS_SQD;
    attr.en_sqd_async_notify = 1;
    qp.modify(&attr, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY).expect("RTS to SQD");
}

fn an_access_error_is_an_event_of_the_responder(env: &TestEnv) {
    let pair = QpSpec::rc().create_connected_pair(env);
    let local = pair.a.alloc_buf(8);
    let nowhere = RemoteAddress {
        addr: 0x1000,
        rkey: 0xbad,
    };
    pair.a.post(write([local.whole_sge()], nowhere).with_id(1));
    pair.a.await_send_completion().expect_failed(1, &[IBV_WC_REM_ACCESS_ERR]);
    let event = pair.b.ctx.await_async_event_but_comm_est();
    assert_eq!(event.kind(), IBV_EVENT_QP_ACCESS_ERR);
    assert!(event.concerns_qp(&pair.b.qp));
    event.ack();
    assert!(pair.b.ctx.get_async_event_within(QUIET_PERIOD).is_none(), "one event is enough");
}

/// The requester sends a READ to a QP that accepts no READs (`max_dest_rd_atomic` 0).
fn an_invalid_request_is_an_event_of_the_responder(env: &TestEnv) {
    let pair = QpSpec::rc().with_change(|s| s.max_dest_rd_atomic = 0).create_connected_pair(env);
    let local = pair.a.alloc_buf(8);
    let remote = pair.b.alloc_buf(8);
    pair.a.post(read([local.whole_sge()], remote.remote_address()).with_id(1));
    pair.a.await_send_completion().expect_failed(1, &[IBV_WC_REM_INV_REQ_ERR]);
    let event = pair.b.ctx.await_async_event_but_comm_est();
    assert!([IBV_EVENT_QP_REQ_ERR, IBV_EVENT_QP_ACCESS_ERR].contains(&event.kind()));
    assert!(event.concerns_qp(&pair.b.qp));
}

/// IBTA vol. 1, 11.6.3: the completion reports the failure, so no async event follows.
fn a_failed_request_is_no_event_of_the_requester(env: &TestEnv) {
    let pair = QpSpec::rc().with_rnr_retry(0).create_connected_pair(env);
    pair.a.post(send([]).with_id(1));
    pair.a.await_send_completion().expect_failed(1, &[IBV_WC_RNR_RETRY_EXC_ERR]);
    assert!(pair.a.ctx.get_async_event_within(QUIET_PERIOD).is_none());
    assert!(pair.b.ctx.get_async_event_within(Duration::ZERO).is_none());
}

fn a_blocked_thread_wakes_up(env: &TestEnv) {
    let pair = QpSpec::rc().create_connected_pair(env);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| pair.b.ctx.await_async_event_but_comm_est().kind());
        std::thread::sleep(Duration::from_millis(10));
        // The requester need not poll; the event occurs nevertheless.
        let kind = raise_event_of_b(&pair);
        assert_eq!(waiting.join().expect("an event"), kind);
    });
}

/// `ibv_get_async_event(3)`: destroying an object waits until its events are acknowledged.
fn destroying_waits_for_the_acknowledgement(env: &TestEnv) {
    let pair = QpSpec::rc().create_connected_pair(env);
    let kind = raise_event_of_b(&pair);
    let event = pair.b.ctx.await_async_event_but_comm_est();
    assert_eq!(event.kind(), kind);
    std::thread::scope(|scope| {
        let destroying = scope.spawn(|| pair.b.qp.try_destroy());
        std::thread::sleep(QUIET_PERIOD);
        assert!(!destroying.is_finished(), "destroyed with an event that was not acknowledged");
        event.ack();
        assert_eq!(destroying.join().expect("destroyed"), 0);
    });
}

fn a_context_gets_only_its_own_events(env: &TestEnv) {
    let pair = QpSpec::rc().create_connected_pair(env);
    let bystander = QpSpec::rc().create_qp_side(env);
    raise_event_of_b(&pair);
    drop(pair.b.ctx.await_async_event_but_comm_est());
    assert!(bystander.ctx.get_async_event_within(QUIET_PERIOD).is_none());
    assert!(pair.a.ctx.get_async_event_within(Duration::ZERO).is_none());
}

/// `ibv_modify_qp(3)` and IBTA vol. 1, 10.2.9.5: a QP with an SRQ that goes to ERR takes no more WQEs from
/// the SRQ. It raises an event after the last WQE that it has taken.
fn the_last_wqe_of_an_srq_is_an_event(env: &TestEnv) {
    let pair = QpSpec::rc().with_srq().create_connected_pair(env);
    pair.b.post_recv(1, []);
    pair.b.qp.move_to_state(IBV_QPS_ERR);
    let event = pair.b.ctx.await_async_event_but_comm_est();
    assert_eq!(event.kind(), IBV_EVENT_QP_LAST_WQE_REACHED);
    assert!(event.concerns_qp(&pair.b.qp));
    drop(event);
    // The QP does not flush WRs of the SRQ.
    pair.b.rcq.expect_empty();
}

fn draining_is_an_event(env: &TestEnv) {
    let pair = QpSpec::rc().create_connected_pair(env);
    move_b_to_sqd(&pair);
    let event = pair.b.ctx.await_async_event_but_comm_est();
    assert_eq!(event.kind(), IBV_EVENT_SQ_DRAINED);
    assert!(event.concerns_qp(&pair.b.qp));
}

/// The program need not poll for the event.
fn draining_ends_when_the_last_request_is_acknowledged(env: &TestEnv) {
    let pair = QpSpec::rc().create_connected_pair(env);
    pair.a.post(send([]).with_id(1));
    move_to_sqd(&pair.a.qp);
    assert!(pair.a.ctx.get_async_event_within(QUIET_PERIOD).is_none());
    pair.b.post_recv(2, []);
    pair.b.await_recv_completion().expect_received(2, 0);
    let event = pair.a.ctx.await_async_event_but_comm_est();
    assert_eq!(event.kind(), IBV_EVENT_SQ_DRAINED);
    assert!(event.concerns_qp(&pair.a.qp));
    drop(event);
    pair.a.await_send_completion().expect_sent(1, Verb::Send);
}

/// A program that never reads its async events works, and closes without waiting.
fn unread_events_do_not_block_closing(env: &TestEnv) {
    let a = QpSpec::rc().create_qp_side(env);
    let b = QpSpec::rc().create_qp_side(&env.peer_env());
    for _ in 0..50 {
        let (mut x, mut y) = (a.create_side_on_same_pd_and_cqs(), b.create_side_on_same_pd_and_cqs());
        let (to_x, to_y) = (x.address(), y.address());
        x.connect(&to_y);
        y.connect(&to_x);
        let local = x.alloc_buf(8);
        let nowhere = RemoteAddress {
            addr: 0x1000,
            rkey: 0xbad,
        };
        x.post(write([local.whole_sge()], nowhere).with_id(1));
        x.await_send_completion().expect_failed(1, &[IBV_WC_REM_ACCESS_ERR]);
    }
}
