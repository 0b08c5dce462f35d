//! Tests of completion queues that receive more completions than they hold.
//!
//! IBTA vol. 1, 10.8.1 and 11.6.3: an overrun is an affiliated asynchronous error, `IBV_EVENT_CQ_ERR`. A NIC
//! may round the size of a queue up (`ibv_create_cq(3)`), so each test queries the size. The event may follow
//! the overrun after a delay.

use std::time::{Duration, Instant};

use verbs_abi::*;

use crate::TestEnv;
use crate::objects::{AsyncEvent, Context, Cq, QUIET_PERIOD, QpInitAttr};
use crate::pair::{QpPair, QpSide, QpSpec};
use crate::child_processes::{PeerAnswer, PeerCommand, PeerProcess};
use crate::wr::{SendWr, Verb, send, write};

tests! { "overrun";
    unpolled_sends_overrun_the_send_cq [Events],
    unpolled_receives_overrun_the_recv_cq [Events],
    sends_of_another_process_overrun_the_recv_cq [Events, Processes],
    datagrams_of_a_destroyed_sender_overrun_the_recv_cq [Events, Ud],
    flushed_receives_overrun_the_recv_cq [Events],
    unsolicited_receives_of_a_sleeper_overrun_its_cq [Events, Solicited],
    a_cq_that_was_idle_is_overrun_by_sends [Events],
    a_cq_that_was_idle_is_overrun_by_receives [Events],
    a_cq_that_was_idle_is_overrun_by_another_process [Events, Processes],
    a_cq_that_was_idle_is_overrun_by_flushed_receives [Events],
    a_cq_that_was_idle_is_overrun_by_receives_posted_in_err [Events],
    a_cq_that_was_idle_and_armed_is_overrun [Events, Solicited],
    an_armed_cq_that_was_idle_makes_its_event [Events, Solicited],
    two_queue_pairs_overrun_their_shared_cq [Events],
    a_queue_pair_fails_when_its_cq_overruns [Events],
    the_peer_of_a_failed_qp_gets_retry_exceeded [Events],
    wrs_posted_after_an_overrun_never_complete [Events],
    a_qp_reconnected_on_an_overrun_cq_fails_again [Events],
    an_srq_serves_other_qps_after_an_overrun [Events, Srq],
    destroying_waits_for_the_acknowledgement [Events],
    a_full_cq_is_not_overrun [Events],
    a_polled_cq_is_not_overrun [Events],
    a_cq_resized_in_time_is_not_overrun [Events],
    a_resized_cq_can_be_overrun [Events],
    a_cq_may_ignore_overruns [Events, IgnoreOverrun],
}

/// A time longer than any NIC needs to detect an overrun.
const OVERRUN_DETECTION_TIME: Duration = Duration::from_secs(1);

/// Returns attributes with queues of 64 WRs, and with CQs that hold 4 completions or slightly more.
fn small_cq_spec() -> QpSpec {
    QpSpec::rc().with_queue_depth(64).with_change(|s| s.cqe = 4).with_short_timeout_and_few_retries()
}

/// Returns a range of numbers, one more than the number of completions that `cq` holds.
fn wr_ids_one_more_than_cq_holds(cq: &Cq) -> std::ops::Range<u64> {
    assert!(cq.cqe() < 64, "the queue pairs can fill it");
    0..cq.cqe() as u64 + 1
}

/// Waits for an async event of the type `kind`.
#[track_caller]
pub(super) fn await_async_event_of_type(ctx: &Context, kind: ibv_event_type) -> AsyncEvent {
    loop {
        let event = ctx.await_async_event_but_comm_est();
        if event.kind() == kind {
            return event;
        }
    }
}

#[track_caller]
pub(super) fn await_cq_error_event(ctx: &Context, cq: &Cq) {
    let event = await_async_event_of_type(ctx, IBV_EVENT_CQ_ERR);
    assert!(event.concerns_cq(cq));
}

/// Expects as many completions as the CQ holds, and no more.
#[track_caller]
fn expect_full_cq(cq: &Cq, check: impl Fn(&crate::wr::Wc, u64)) {
    for (wc, i) in cq.wait_for_completions(cq.cqe()).iter().zip(0..) {
        check(wc, i);
    }
    cq.expect_empty();
}

/// Returns a function that builds WRITEs from `a` to `b`; the argument is the `wr_id`.
fn build_write_fn(pair: &QpPair) -> impl Fn(u64) -> SendWr + use<> {
    let (source, target) = (pair.a.alloc_buf(8), pair.b.alloc_buf(8));
    move |i| write([source.whole_sge()], target.remote_address()).with_id(i)
}

/// Overruns the send CQ of `a`.
#[track_caller]
fn overrun_send_cq_of_a(pair: &QpPair) {
    let write = build_write_fn(pair);
    for i in wr_ids_one_more_than_cq_holds(&pair.a.scq) {
        pair.a.post(write(i));
    }
    await_cq_error_event(&pair.a.ctx, &pair.a.scq);
}

/// Overruns the receive CQ of `b`, and returns the status of the last SEND. The completion of this SEND's
/// receive did not fit, so the SEND may never be acknowledged.
#[track_caller]
fn overrun_recv_cq_of_b(pair: &QpPair) -> ibv_wc_status {
    let messages = wr_ids_one_more_than_cq_holds(&pair.b.rcq);
    for i in messages.clone() {
        pair.b.post_recv(i, []);
    }
    let mut status = IBV_WC_SUCCESS;
    for i in messages {
        assert_eq!(status, IBV_WC_SUCCESS);
        pair.a.post(send([]).with_id(i));
        status = pair.a.await_send_completion().status();
    }
    await_cq_error_event(&pair.b.ctx, &pair.b.rcq);
    status
}

fn unpolled_sends_overrun_the_send_cq(env: &TestEnv) {
    let pair = small_cq_spec().create_connected_pair(env);
    overrun_send_cq_of_a(&pair);
    expect_full_cq(&pair.a.scq, |wc, i| {
        wc.expect_sent(i, Verb::RdmaWrite);
    });
}

fn unpolled_receives_overrun_the_recv_cq(env: &TestEnv) {
    let pair = small_cq_spec().create_connected_pair(env);
    overrun_recv_cq_of_b(&pair);
    expect_full_cq(&pair.b.rcq, |wc, i| {
        wc.expect_received(i, 0);
    });
}

fn sends_of_another_process_overrun_the_recv_cq(env: &TestEnv) {
    let (mut peer, side, _) = PeerProcess::start_with_new_side(env, &small_cq_spec(), 64);
    let messages = wr_ids_one_more_than_cq_holds(&side.rcq);
    for i in messages.clone() {
        side.post_recv(i, []);
    }
    for _ in messages.skip(1) {
        assert_eq!(peer.send_command_and_await_answer(&PeerCommand::Send(0, 0)), PeerAnswer::Done);
    }
    // The last SEND may never be acknowledged.
    peer.send_command(&PeerCommand::Send(0, 0));
    await_cq_error_event(&side.ctx, &side.rcq);
    expect_full_cq(&side.rcq, |wc, i| {
        wc.expect_received(i, 0);
    });
}

/// The sender does not wait for an acknowledgement, and is destroyed before it could wake the receiver.
fn datagrams_of_a_destroyed_sender_overrun_the_recv_cq(env: &TestEnv) {
    let QpPair { a, b } = QpSpec::ud().with_queue_depth(64).with_change(|s| s.cqe = 4).create_connected_pair(env);
    let messages = wr_ids_one_more_than_cq_holds(&b.rcq);
    let buf = b.alloc_buf(64);
    for i in messages.clone() {
        b.post_recv(i, [buf.whole_sge()]);
    }
    for i in messages {
        a.post(send([]).with_id(i));
        a.await_send_completion().expect_sent(i, Verb::Send);
    }
    drop(a);
    await_cq_error_event(&b.ctx, &b.rcq);
    expect_full_cq(&b.rcq, |wc, i| {
        wc.expect_received(i, 40);
    });
}

fn flushed_receives_overrun_the_recv_cq(env: &TestEnv) {
    let pair = small_cq_spec().create_connected_pair(env);
    for i in wr_ids_one_more_than_cq_holds(&pair.b.rcq) {
        pair.b.post_recv(i, []);
    }
    pair.b.qp.move_to_state(IBV_QPS_ERR);
    await_cq_error_event(&pair.b.ctx, &pair.b.rcq);
    expect_full_cq(&pair.b.rcq, |wc, i| {
        wc.expect_flushed(i);
    });
}

/// The program sleeps until a solicited message arrives.
fn unsolicited_receives_of_a_sleeper_overrun_its_cq(env: &TestEnv) {
    let pair = small_cq_spec().with_channels().create_connected_pair(env);
    pair.b.rcq.arm(true);
    overrun_recv_cq_of_b(&pair);
    pair.b.rchannel.as_ref().expect("a channel").expect_no_event();
    expect_full_cq(&pair.b.rcq, |wc, i| {
        wc.expect_received(i, 0);
    });
}

/// Sleeps until a NIC that looks for overruns periodically may have stopped to look.
fn let_nic_become_idle() {
    std::thread::sleep(Duration::from_millis(700));
}

fn a_cq_that_was_idle_is_overrun_by_sends(env: &TestEnv) {
    let pair = small_cq_spec().create_connected_pair(env);
    let_nic_become_idle();
    overrun_send_cq_of_a(&pair);
}

fn a_cq_that_was_idle_is_overrun_by_receives(env: &TestEnv) {
    let pair = small_cq_spec().create_connected_pair(env);
    let_nic_become_idle();
    overrun_recv_cq_of_b(&pair);
}

fn a_cq_that_was_idle_is_overrun_by_another_process(env: &TestEnv) {
    let (mut peer, side, _) = PeerProcess::start_with_new_side(env, &small_cq_spec(), 64);
    let messages = wr_ids_one_more_than_cq_holds(&side.rcq);
    for i in messages.clone() {
        side.post_recv(i, []);
    }
    let_nic_become_idle();
    for _ in messages {
        // The last SEND may never be acknowledged.
        peer.send_command(&PeerCommand::Send(0, 0));
    }
    await_cq_error_event(&side.ctx, &side.rcq);
}

fn a_cq_that_was_idle_is_overrun_by_flushed_receives(env: &TestEnv) {
    let pair = small_cq_spec().create_connected_pair(env);
    for i in wr_ids_one_more_than_cq_holds(&pair.b.rcq) {
        pair.b.post_recv(i, []);
    }
    let_nic_become_idle();
    pair.b.qp.move_to_state(IBV_QPS_ERR);
    await_cq_error_event(&pair.b.ctx, &pair.b.rcq);
}

fn a_cq_that_was_idle_is_overrun_by_receives_posted_in_err(env: &TestEnv) {
    let pair = small_cq_spec().create_connected_pair(env);
    pair.b.qp.move_to_state(IBV_QPS_ERR);
    let_nic_become_idle();
    for i in wr_ids_one_more_than_cq_holds(&pair.b.rcq) {
        pair.b.post_recv(i, []);
    }
    await_cq_error_event(&pair.b.ctx, &pair.b.rcq);
}

/// The program waits for a solicited message that does not come.
fn a_cq_that_was_idle_and_armed_is_overrun(env: &TestEnv) {
    let pair = small_cq_spec().with_channels().create_connected_pair(env);
    pair.b.rcq.arm(true);
    let_nic_become_idle();
    overrun_recv_cq_of_b(&pair);
    pair.b.rchannel.as_ref().expect("a channel").expect_no_event();
}

fn an_armed_cq_that_was_idle_makes_its_event(env: &TestEnv) {
    let pair = small_cq_spec().with_channels().create_connected_pair(env);
    let channel = pair.b.rchannel.as_ref().expect("a channel");
    for (solicited_only, flag) in [(false, 0), (true, IBV_SEND_SOLICITED)] {
        for i in 0..2 {
            pair.b.post_recv(i, []);
        }
        pair.b.rcq.arm(solicited_only);
        let_nic_become_idle();
        let first_flags = if solicited_only { [0, flag] } else { [flag, flag] };
        for flag in first_flags {
            pair.a.post(send([]).with_id(7).with_flag(flag));
            pair.a.await_send_completion().expect_sent(7, Verb::Send);
        }
        channel.await_and_ack_event(&pair.b.rcq);
        drop(pair.b.rcq.wait_for_completions(2));
        channel.expect_no_event();
    }
}

/// The completions of each queue pair alone would fit into the common CQ.
fn two_queue_pairs_overrun_their_shared_cq(env: &TestEnv) {
    let (mut a, mut b) = (small_cq_spec().create_qp_side(env), small_cq_spec().create_qp_side(env));
    let (mut c, mut d) = (a.create_side_on_same_pd_and_cqs(), b.create_side_on_same_pd_and_cqs());
    for (x, y) in [(&mut a, &mut b), (&mut c, &mut d)] {
        let (of_x, of_y) = (x.address(), y.address());
        x.connect(&of_y);
        y.connect(&of_x);
    }
    let (source, target) = (a.alloc_buf(8), b.alloc_buf(8));
    for i in wr_ids_one_more_than_cq_holds(&a.scq) {
        let side = if i % 2 == 0 { &a } else { &c };
        side.post(write([source.whole_sge()], target.remote_address()).with_id(i));
    }
    await_cq_error_event(&a.ctx, &a.scq);
    assert_eq!(a.scq.wait_for_completions(a.scq.cqe()).len(), a.scq.cqe());
    a.scq.expect_empty();
    let mut failed = Vec::new();
    for _ in 0..2 {
        let event = await_async_event_of_type(&a.ctx, IBV_EVENT_QP_FATAL);
        failed.push([&a.qp, &c.qp].map(|qp| event.concerns_qp(qp)));
    }
    failed.sort_unstable();
    assert_eq!(failed, [[false, true], [true, false]]);
}

/// "Error occurred on a QP and it transitioned to error state" (`ibv_get_async_event(3)`).
fn a_queue_pair_fails_when_its_cq_overruns(env: &TestEnv) {
    let pair = small_cq_spec().create_connected_pair(env);
    pair.a.post_recv(9, []);
    overrun_send_cq_of_a(&pair);
    assert!(await_async_event_of_type(&pair.a.ctx, IBV_EVENT_QP_FATAL).concerns_qp(&pair.a.qp));
    assert_eq!(pair.a.qp.query_state(), IBV_QPS_ERR);
    // The QP's other CQ still works.
    pair.a.await_recv_completion().expect_flushed(9);
    assert!(pair.a.ctx.get_async_event_within(QUIET_PERIOD).is_none(), "one event each");
}

fn the_peer_of_a_failed_qp_gets_retry_exceeded(env: &TestEnv) {
    let pair = small_cq_spec().create_connected_pair(env);
    let last = overrun_recv_cq_of_b(&pair);
    pair.b.qp.await_state(IBV_QPS_ERR);
    if last == IBV_WC_SUCCESS {
        pair.a.post(send([]).with_id(7));
        pair.a.await_send_completion().expect_failed(7, &[IBV_WC_RETRY_EXC_ERR]);
    } else {
        assert_eq!(last, IBV_WC_RETRY_EXC_ERR);
    }
}

fn wrs_posted_after_an_overrun_never_complete(env: &TestEnv) {
    let pair = small_cq_spec().create_connected_pair(env);
    overrun_send_cq_of_a(&pair);
    drop(await_async_event_of_type(&pair.a.ctx, IBV_EVENT_QP_FATAL));
    let write = build_write_fn(&pair);
    pair.a.scq.arm(false);
    for i in 50..54 {
        pair.a.post(write(i));
    }
    expect_full_cq(&pair.a.scq, |wc, i| {
        wc.expect_sent(i, Verb::RdmaWrite);
    });
    pair.a.scq.arm(true);
    assert!(pair.a.ctx.get_async_event_within(QUIET_PERIOD).is_none());
}

/// The CQ stays in error until it is destroyed.
fn a_qp_reconnected_on_an_overrun_cq_fails_again(env: &TestEnv) {
    let mut pair = small_cq_spec().create_connected_pair(env);
    overrun_recv_cq_of_b(&pair);
    drop(await_async_event_of_type(&pair.b.ctx, IBV_EVENT_QP_FATAL));
    for side in [&pair.a, &pair.b] {
        side.qp.move_to_state(IBV_QPS_RESET);
    }
    assert!(pair.b.rcq.poll(64).is_empty(), "completions of before the reset");
    let (of_a, of_b) = (pair.a.address(), pair.b.address());
    pair.a.connect(&of_b);
    pair.b.to_init();
    pair.b.post_recv(1, []);
    let (attr, mask) = pair.b.init_to_rtr_attr_and_mask(&of_a);
    pair.b.qp.modify(&attr, mask).expect("INIT to RTR");
    pair.a.post(send([]).with_id(7));
    assert!(await_async_event_of_type(&pair.b.ctx, IBV_EVENT_QP_FATAL).concerns_qp(&pair.b.qp));
    pair.a.await_send_completion().expect_failed(7, &[IBV_WC_RETRY_EXC_ERR]);
    // A QP that is created later also fails.
    let sibling = pair.b.create_side_on_same_pd_and_cqs();
    assert_eq!(sibling.qp.query_state(), IBV_QPS_RESET);
    sibling.to_init();
    sibling.qp.modify(&attr, mask).expect("INIT to RTR");
    assert_eq!(pair.b.qp.query_state(), IBV_QPS_ERR);
    pair.b.rcq.expect_empty();
}

/// Only the QP that completes in the overrun queue fails.
fn an_srq_serves_other_qps_after_an_overrun(env: &TestEnv) {
    let pair = small_cq_spec().with_srq().create_connected_pair(env);
    overrun_recv_cq_of_b(&pair);
    let b = &pair.b;
    let (scq, rcq) = (b.ctx.create_cq(64), b.ctx.create_cq(64));
    let mut init = QpInitAttr::new(IBV_QPT_RC, &scq, &rcq);
    init.srq = b.srq.clone();
    let qp = b.pd.create_qp(&mut init);
    let mut other = QpSide {
        spec: b.spec.clone(),
        qp,
        granted_cap: init.cap,
        srq: b.srq.clone(),
        tag_srq: None,
        scq,
        rcq,
        schannel: None,
        rchannel: None,
        pd: b.pd.clone(),
        ctx: b.ctx.clone(),
        ud_destination: None,
    };
    let mut sender = QpSpec::rc().create_qp_side(env);
    let (from, to) = (sender.address(), other.address());
    sender.connect(&to);
    other.connect(&from);
    other.post_recv(77, []);
    sender.post(send([]).with_id(1));
    sender.await_send_completion().expect_sent(1, Verb::Send);
    other.await_recv_completion().expect_received(77, 0);
}

/// `ibv_get_async_event(3)`: "destroying an object (CQ, SRQ or QP) will wait for all affiliated events for
/// the object to be acknowledged".
fn destroying_waits_for_the_acknowledgement(env: &TestEnv) {
    let pair = small_cq_spec().create_connected_pair(env);
    let write = build_write_fn(&pair);
    for i in wr_ids_one_more_than_cq_holds(&pair.a.scq) {
        pair.a.post(write(i));
    }
    let event = await_async_event_of_type(&pair.a.ctx, IBV_EVENT_CQ_ERR);
    let QpPair { a, b } = pair;
    drop(write);
    let QpSide { qp, scq, .. } = a;
    drop(qp);
    std::thread::scope(|scope| {
        let destroying = scope.spawn(|| scq.try_destroy());
        std::thread::sleep(QUIET_PERIOD);
        assert!(!destroying.is_finished(), "destroyed with an event that was not acknowledged");
        event.ack();
        assert_eq!(destroying.join().expect("destroyed"), 0);
    });
    drop(b);
}

fn a_full_cq_is_not_overrun(env: &TestEnv) {
    let pair = small_cq_spec().create_connected_pair(env);
    let write = build_write_fn(&pair);
    for i in wr_ids_one_more_than_cq_holds(&pair.a.scq).skip(1) {
        pair.a.post(write(i));
    }
    assert!(pair.a.ctx.get_async_event_within(OVERRUN_DETECTION_TIME).is_none());
    for (wc, i) in pair.a.scq.wait_for_completions(pair.a.scq.cqe()).iter().zip(1..) {
        wc.expect_sent(i, Verb::RdmaWrite);
    }
    pair.check_transfers_both_ways();
}

/// A CQ that the program polls is not overrun by any number of outstanding completions, because the program
/// may be slow or preempted. Only the software NIC guarantees this.
fn a_polled_cq_is_not_overrun(env: &TestEnv) {
    let pair = small_cq_spec().create_connected_pair(env);
    let write = build_write_fn(&pair);
    let (mut posted, mut polled) = (0..u64::MAX, 0..u64::MAX);
    let end = Instant::now() + OVERRUN_DETECTION_TIME;
    let hold = pair.a.scq.cqe() as u64 * 2;
    while Instant::now() < end {
        while posted.start - polled.start < hold {
            pair.a.post(write(posted.next().expect("numbers")));
        }
        for wc in pair.a.scq.poll(1) {
            wc.expect_sent(polled.next().expect("numbers"), Verb::RdmaWrite);
        }
    }
    for wc in pair.a.scq.wait_for_completions(usize::try_from(posted.start - polled.start).expect("few")) {
        wc.expect_sent(polled.next().expect("numbers"), Verb::RdmaWrite);
    }
    assert!(pair.a.ctx.get_async_event_within(QUIET_PERIOD).is_none());
}

/// Completions that exceed the CQ's size fit if the program resizes the CQ in time.
fn a_cq_resized_in_time_is_not_overrun(env: &TestEnv) {
    let pair = small_cq_spec().create_connected_pair(env);
    let write = build_write_fn(&pair);
    let all = wr_ids_one_more_than_cq_holds(&pair.a.scq);
    for i in all.clone() {
        pair.a.post(write(i));
    }
    assert_eq!(pair.a.scq.try_resize(63), 0);
    assert!(pair.a.ctx.get_async_event_within(OVERRUN_DETECTION_TIME).is_none());
    for (wc, i) in pair.a.scq.wait_for_completions(all.count()).iter().zip(0..) {
        wc.expect_sent(i, Verb::RdmaWrite);
    }
    pair.check_transfers_both_ways();
}

fn a_resized_cq_can_be_overrun(env: &TestEnv) {
    let pair = QpSpec::rc().with_queue_depth(64).with_short_timeout_and_few_retries().create_connected_pair(env);
    let smaller = pair.a.scq.try_resize(4);
    if smaller != 0 || pair.a.scq.cqe() >= 64 {
        // "ibv_resize_cq() may not do anything" (`ibv_resize_cq(3)`).
        return;
    }
    overrun_send_cq_of_a(&pair);
    expect_full_cq(&pair.a.scq, |wc, i| {
        wc.expect_sent(i, Verb::RdmaWrite);
    });
}

/// `IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN`: "This CQ will not pass to error state if overrun"
/// (`ibv_create_cq_ex(3)`).
///
/// The man page does not say which completions are lost; the software NIC loses none.
fn a_cq_may_ignore_overruns(env: &TestEnv) {
    let b = QpSpec::rc().create_qp_side(env);
    let mut a = small_cq_spec().create_qp_side(env);
    let mut attr = ibv_cq_init_attr_ex::zeroed();
    attr.cqe = 4;
    attr.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS;
    attr.flags = IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN;
    a.scq = Cq::try_create_extended(&a.ctx, &mut attr).expect("ibv_create_cq_ex");
    let mut init = QpInitAttr::new(IBV_QPT_RC, &a.scq, &a.rcq);
    init.cap = a.granted_cap;
    a.qp = a.pd.create_qp(&mut init);
    let mut pair = QpPair { a, b };
    pair.connect();
    let write = build_write_fn(&pair);
    for i in wr_ids_one_more_than_cq_holds(&pair.a.scq) {
        pair.a.post(write(i));
    }
    assert!(pair.a.ctx.get_async_event_within(OVERRUN_DETECTION_TIME).is_none());
    for (wc, i) in pair.a.scq.wait_for_completions(pair.a.scq.cqe()).iter().zip(0..) {
        wc.expect_sent(i, Verb::RdmaWrite);
    }
    assert_eq!(pair.a.qp.query_state(), IBV_QPS_RTS);
}
