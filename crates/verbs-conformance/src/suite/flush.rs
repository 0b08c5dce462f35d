//! Tests of the error state: WRs that were posted before or in ERR are flushed, in order.

use verbs_abi::*;

use crate::TestEnv;
use crate::test_env::NicCapability;
use crate::harness::record_case;
use crate::memory::MemKind;
use crate::objects::{QUIET_PERIOD, QpInitAttr};
use crate::pair::{QpPair, QpSpec};
use crate::wr::{RemoteAddress, Verb, recv, send, write};

tests! { "flush";
    going_to_err_flushes_both_queues_in_order [],
    going_to_err_flushes_ud [Ud],
    sends_posted_in_err_are_flushed [],
    receives_posted_in_err_are_flushed [],
    unsignaled_wrs_are_flushed_with_a_completion [],
    after_a_failure_everything_behind_is_flushed [],
    a_failed_wr_completes_after_earlier_wrs [],
    completed_wrs_are_not_flushed [],
    reset_discards_posted_wrs [],
    reset_and_connect_again [],
    destroying_discards_posted_wrs [],
    a_peer_in_init_ends_in_retry_exceeded [],
    a_peer_that_was_reset_ends_in_retry_exceeded [],
    a_peer_in_err_ends_in_retry_exceeded [],
    a_peer_that_was_destroyed_ends_in_retry_exceeded [],
    an_unknown_peer_qpn_ends_in_retry_exceeded [],
    retry_exceeded_flushes_the_rest [],
    retries_reach_a_peer_that_enters_rtr_later [],
    work_in_flight_fails_when_the_peer_is_destroyed [],
    the_peer_of_a_failed_qp_stays_usable [],
    a_flushed_message_is_not_delivered_later [],
    an_answered_send_is_not_flushed [],
    a_shared_cq_gets_successes_before_flushes [],
    deregistering_the_payload_fails_only_the_sender [],
}

/// Posts SENDs that cannot complete, because the other side has posted no receive.
fn post_sends_without_receives(pair: &QpPair, n: u64) {
    pair.a.post_sends((0..n).map(|i| send([]).with_id(i)).collect());
}

fn going_to_err_flushes_both_queues_in_order(env: &TestEnv) {
    let pair = QpSpec::rc().create_connected_pair(env);
    for i in 0..10 {
        pair.a.post_recv(100 + i, []);
    }
    post_sends_without_receives(&pair, 10);
    pair.a.qp.move_to_state(IBV_QPS_ERR);
    for (i, wc) in pair.a.scq.wait_for_completions(10).iter().enumerate() {
        wc.expect_flushed(i as u64);
        assert_eq!(wc.qpn(), pair.a.qp.qpn());
    }
    for (i, wc) in pair.a.rcq.wait_for_completions(10).iter().enumerate() {
        wc.expect_flushed(100 + i as u64);
        assert_eq!(wc.qpn(), pair.a.qp.qpn());
    }
    pair.a.expect_no_completions();
    assert_eq!(pair.a.qp.query_state(), IBV_QPS_ERR);
    assert_eq!(pair.a.qp.cached_state(), IBV_QPS_ERR);
}

fn going_to_err_flushes_ud(env: &TestEnv) {
    let pair = QpSpec::ud().create_connected_pair(env);
    let buf = pair.a.alloc_buf(64);
    for i in 0..10 {
        pair.a.post_recv(i, [buf.whole_sge()]);
    }
    pair.a.qp.move_to_state(IBV_QPS_ERR);
    for (i, wc) in pair.a.rcq.wait_for_completions(10).iter().enumerate() {
        wc.expect_flushed(i as u64);
    }
    pair.a.post(send([]).with_id(5));
    pair.a.await_send_completion().expect_flushed(5);
    // The peer's QP is in ERR and receives no message.
    pair.b.post(send([]).with_id(6));
    pair.b.await_send_completion().expect_sent(6, Verb::Send);
    pair.a.expect_no_completions();
}

/// IBTA vol. 1, 10.3.1.7: in ERR work requests may be posted, and are completed with a flush error.
fn sends_posted_in_err_are_flushed(env: &TestEnv) {
    let pair = QpSpec::rc().create_connected_pair(env);
    let target = pair.b.alloc_buf(8);
    let source = pair.a.alloc_buf(8);
    source.memory.store(0, 1);
    pair.a.qp.move_to_state(IBV_QPS_ERR);
    for i in 0..5 {
        pair.a.post(write([source.whole_sge()], target.remote_address()).with_id(i));
    }
    for i in 0..5 {
        pair.a.await_send_completion().expect_flushed(i);
    }
    assert_eq!(target.memory.load(0), 0);
    // Repeat the posts: flushed WRs must not fill the queues.
    for i in 0..200 {
        pair.a.post(write([source.whole_sge()], target.remote_address()).with_id(i));
        pair.a.await_send_completion().expect_flushed(i);
    }
    assert_eq!(target.memory.load(0), 0);
}

fn receives_posted_in_err_are_flushed(env: &TestEnv) {
    let pair = QpSpec::rc().create_connected_pair(env);
    pair.a.qp.move_to_state(IBV_QPS_ERR);
    for i in 0..5 {
        pair.a.post_recv(i, []);
    }
    for i in 0..5 {
        pair.a.await_recv_completion().expect_flushed(i);
    }
    for i in 0..200 {
        pair.a.post_recv(i, []);
        pair.a.await_recv_completion().expect_flushed(i);
    }
}

fn unsignaled_wrs_are_flushed_with_a_completion(env: &TestEnv) {
    let pair = QpSpec::rc().create_connected_pair(env);
    pair.a.post_sends((0..6).map(|i| send([]).with_id(i).unsignaled()).collect());
    pair.a.qp.move_to_state(IBV_QPS_ERR);
    for (i, wc) in pair.a.scq.wait_for_completions(6).iter().enumerate() {
        wc.expect_flushed(i as u64);
    }
}

fn after_a_failure_everything_behind_is_flushed(env: &TestEnv) {
    let pair = QpSpec::rc().create_connected_pair(env);
    let source = pair.a.alloc_buf(8);
    let target = pair.b.alloc_buf(8);
    let nowhere = RemoteAddress {
        rkey: target.mr.rkey() ^ 1,
        ..target.remote_address()
    };
    for i in 0..3 {
        pair.a.post_recv(50 + i, []);
    }
    let mut wrs = vec![
        write([source.whole_sge()], target.remote_address()).with_id(0),
        write([source.whole_sge()], nowhere).with_id(1),
    ];
    wrs.extend((2..10).map(|i| write([source.whole_sge()], target.remote_address()).with_id(i).unsignaled()));
    pair.a.post_sends(wrs);
    pair.a.await_send_completion().expect_sent(0, Verb::RdmaWrite);
    pair.a.await_send_completion().expect_failed(1, &[IBV_WC_REM_ACCESS_ERR]);
    for (i, wc) in pair.a.scq.wait_for_completions(8).iter().enumerate() {
        wc.expect_flushed(2 + i as u64);
    }
    for i in 0..3 {
        pair.a.await_recv_completion().expect_flushed(50 + i);
    }
    pair.a.expect_no_completions();
}

/// A WR fails at once while an earlier WR is outstanding, and further WRs follow. The completions
/// nevertheless come in the order of the WRs (IBTA vol. 1, 10.8.5.1).
fn a_failed_wr_completes_after_earlier_wrs(env: &TestEnv) {
    let pair = QpSpec::rc().create_connected_pair(env);
    let target = pair.b.alloc_buf(8);
    let good = pair.a.alloc_buf(8);
    good.memory.store(0, 1);
    let mut bad = good.whole_sge();
    bad.lkey ^= 0x0f0f;
    pair.a.post(send([]).with_id(0));
    pair.a.post(send([bad]).with_id(1));
    for i in 2..6 {
        pair.a.post(write([good.whole_sge()], target.remote_address()).with_id(i).unsignaled());
    }
    pair.a.scq.expect_empty();
    pair.b.post_recv(9, []);
    pair.b.await_recv_completion().expect_received(9, 0);
    pair.a.await_send_completion().expect_sent(0, Verb::Send);
    pair.a.await_send_completion().expect_failed(1, &env.accepted_failure_statuses(IBV_WC_LOC_PROT_ERR));
    for i in 2..6 {
        pair.a.await_send_completion().expect_flushed(i);
    }
    assert_eq!(target.memory.load(0), 0, "a WRITE was executed behind the failure");
}

fn completed_wrs_are_not_flushed(env: &TestEnv) {
    let pair = QpSpec::rc().create_connected_pair(env);
    let source = pair.a.alloc_buf(8);
    let target = pair.b.alloc_buf(8);
    pair.a.post_sends((0..5).map(|i| write([source.whole_sge()], target.remote_address()).with_id(i)).collect());
    pair.a.await_send_completion().expect_sent(0, Verb::RdmaWrite);
    // The other WRITEs also complete before the state changes, because the SEND behind them has arrived.
    pair.b.post_recv(1, []);
    pair.a.post(send([]).with_id(5));
    pair.b.await_recv_completion().expect_received(1, 0);
    for i in 1..5 {
        pair.a.await_send_completion().expect_sent(i, Verb::RdmaWrite);
    }
    pair.a.await_send_completion().expect_sent(5, Verb::Send);
    pair.a.qp.move_to_state(IBV_QPS_ERR);
    pair.a.expect_no_completions();
}

/// IBTA vol. 1, 10.3.1.1: in RESET the queues are empty, and their WRs have no completions.
fn reset_discards_posted_wrs(env: &TestEnv) {
    let pair = QpSpec::rc().create_connected_pair(env);
    for i in 0..5 {
        pair.a.post_recv(i, []);
    }
    post_sends_without_receives(&pair, 5);
    pair.a.qp.move_to_state(IBV_QPS_RESET);
    assert_eq!(pair.a.qp.query_state(), IBV_QPS_RESET);
    pair.a.expect_no_completions();
    if env.expects_capability(NicCapability::ImmediateChecks) {
        let refused = pair.a.qp.try_post_sends(vec![send([])]).expect_err("a post in RESET");
        assert_eq!((refused.errno, refused.bad_wr_index), (libc::EINVAL, Some(0)));
        let refused = pair.a.qp.try_post_recvs(vec![recv(0, [])]).expect_err("a receive in RESET");
        assert_eq!((refused.errno, refused.bad_wr_index), (libc::EINVAL, Some(0)));
    }
}

fn reset_and_connect_again(env: &TestEnv) {
    let mut specs = vec![QpSpec::rc()];
    if env.expects_capability(NicCapability::Uc) {
        specs.push(QpSpec::uc());
    }
    if env.expects_capability(NicCapability::Ud) {
        specs.push(QpSpec::ud());
    }
    for spec in specs {
        let mut pair = spec.create_connected_pair(env);
        let buf = pair.b.alloc_buf(100);
        for round in 0..10u64 {
            record_case(format!("QP type {}, round {round}", spec.qp_type));
            pair.check_transfers_both_ways();
            // Leave WRs behind on both sides, and sometimes a QP in ERR.
            pair.b.post_recv(1, [buf.whole_sge()]);
            pair.a.post_recv(1, []);
            if round % 3 == 1 {
                pair.a.qp.move_to_state(IBV_QPS_ERR);
            }
            for side in [&pair.a, &pair.b] {
                side.qp.move_to_state(IBV_QPS_RESET);
                drop(side.scq.poll_for_quiet_period());
                drop(side.rcq.poll_for_quiet_period());
            }
            pair.connect();
        }
        pair.check_transfers_both_ways();
    }
}

fn destroying_discards_posted_wrs(env: &TestEnv) {
    let a = QpSpec::rc().with_short_timeout_and_few_retries().create_qp_side(env);
    let b = QpSpec::rc().with_short_timeout_and_few_retries().create_qp_side(&env.peer_env());
    for round in 0..20u64 {
        let mut pair = QpPair {
            a: a.create_side_on_same_pd_and_cqs(),
            b: b.create_side_on_same_pd_and_cqs(),
        };
        pair.connect();
        for i in 0..5 {
            pair.a.post_recv(round << 8 | i, []);
        }
        post_sends_without_receives(&pair, 5);
        drop(pair.a.qp);
        // Completions of a destroyed QP may stay in the CQ, but none is a success, and none belongs to
        // another QP.
        for wc in a.scq.poll(16).iter().chain(&a.rcq.poll(16)) {
            assert_eq!(wc.status(), IBV_WC_WR_FLUSH_ERR, "{wc:?}");
        }
    }
}

/// Expects that the first send fails with retry exceeded, and that all other sends and all receives are
/// flushed.
fn post_and_expect_retry_exceeded(pair: &QpPair) {
    pair.a.post_recv(77, []);
    let source = pair.a.alloc_buf(8);
    pair.a.post_sends(vec![
        send([source.whole_sge()]).with_id(1).unsignaled(),
        send([source.whole_sge()]).with_id(2),
    ]);
    pair.a.await_send_completion().expect_failed(1, &[IBV_WC_RETRY_EXC_ERR]);
    pair.a.await_send_completion().expect_flushed(2);
    pair.a.await_recv_completion().expect_flushed(77);
    assert_eq!(pair.a.qp.query_state(), IBV_QPS_ERR);
}

fn a_peer_in_init_ends_in_retry_exceeded(env: &TestEnv) {
    // The peer is in INIT, so it does not respond yet.
    let mut pair = QpSpec::rc().with_short_timeout_and_few_retries().create_unconnected_pair(env);
    pair.b.to_init();
    let peer = pair.b.address();
    pair.a.connect(&peer);
    post_and_expect_retry_exceeded(&pair);
}

/// Returns attributes with a timeout of 67 ms and two retries. A peer in an emulated machine takes milliseconds to answer
/// the messages that come before the failure.
fn spec_with_timeout_of_67_ms() -> QpSpec {
    QpSpec::rc().with_change(|s| (s.timeout, s.retry_cnt) = (14, 2))
}

fn a_peer_that_was_reset_ends_in_retry_exceeded(env: &TestEnv) {
    let pair = spec_with_timeout_of_67_ms().create_connected_pair(env);
    pair.check_transfers_both_ways();
    pair.b.qp.move_to_state(IBV_QPS_RESET);
    post_and_expect_retry_exceeded(&pair);
}

fn a_peer_in_err_ends_in_retry_exceeded(env: &TestEnv) {
    let pair = spec_with_timeout_of_67_ms().create_connected_pair(env);
    pair.check_transfers_both_ways();
    pair.b.qp.move_to_state(IBV_QPS_ERR);
    post_and_expect_retry_exceeded(&pair);
}

fn a_peer_that_was_destroyed_ends_in_retry_exceeded(env: &TestEnv) {
    for verb in [Verb::Send, Verb::RdmaWrite, Verb::RdmaRead, Verb::AtomicFetchAndAdd] {
        if verb == Verb::RdmaRead && !env.expects_capability(NicCapability::Read) || verb.is_atomic() && !env.expects_capability(NicCapability::Atomics) {
            continue;
        }
        record_case(format!("{verb:?}"));
        let pair = spec_with_timeout_of_67_ms().create_connected_pair(env);
        pair.check_transfers_both_ways();
        let target = pair.b.alloc_buf(8);
        let local = pair.a.alloc_buf(8);
        assert_eq!(pair.b.qp.try_destroy(), 0);
        pair.a.post(crate::wr::wr_of_verb_with_default_operands(verb, [local.whole_sge()], target.remote_address()).with_id(4));
        pair.a.await_send_completion().expect_failed(4, &[IBV_WC_RETRY_EXC_ERR]);
        assert_eq!(target.memory.load(0), 0);
    }
}

fn an_unknown_peer_qpn_ends_in_retry_exceeded(env: &TestEnv) {
    let mut pair = QpSpec::rc().with_short_timeout_and_few_retries().create_unconnected_pair(env);
    let mut nobody = pair.b.address();
    for qpn in [nobody.qpn ^ 0x3ff, 0x00ff_fffe] {
        record_case(format!("QP {qpn:#x}"));
        nobody.qpn = qpn;
        pair.a.connect(&nobody);
        post_and_expect_retry_exceeded(&pair);
        pair.a.qp.move_to_state(IBV_QPS_RESET);
    }
}

fn retry_exceeded_flushes_the_rest(env: &TestEnv) {
    let pair = QpSpec::rc().with_short_timeout_and_few_retries().create_connected_pair(env);
    assert_eq!(pair.b.qp.try_destroy(), 0);
    pair.a.post_sends((0..10).map(|i| send([]).with_id(i)).collect());
    let wcs = pair.a.scq.wait_for_completions(10);
    wcs[0].expect_failed(0, &[IBV_WC_RETRY_EXC_ERR]);
    for (i, wc) in wcs.iter().enumerate().skip(1) {
        wc.expect_flushed(i as u64);
    }
}

/// IBTA vol. 1, 9.7.6.1.3: the requester repeats requests until the peer responds.
fn retries_reach_a_peer_that_enters_rtr_later(env: &TestEnv) {
    let mut pair = QpSpec::rc().create_unconnected_pair(env);
    let (to_a, to_b) = (pair.a.address(), pair.b.address());
    pair.b.to_init();
    pair.a.connect(&to_b);
    let source = pair.a.alloc_buf(8);
    let target = pair.b.alloc_buf(8);
    source.memory.fill_with_pattern(1);
    pair.b.post_recv(1, [target.whole_sge()]);
    pair.a.post(send([source.whole_sge()]).with_id(2));
    std::thread::sleep(std::time::Duration::from_millis(30));
    assert!(pair.a.scq.poll(1).is_empty(), "completed before the peer listens");
    pair.b.to_rtr(&to_a);
    pair.b.await_recv_completion().expect_received(1, 8);
    pair.a.await_send_completion().expect_sent(2, Verb::Send);
    target.memory.assert_whole_pattern(1);
}

fn work_in_flight_fails_when_the_peer_is_destroyed(env: &TestEnv) {
    let pair = QpSpec::rc().with_short_timeout_and_few_retries().create_connected_pair(env);
    post_sends_without_receives(&pair, 5);
    std::thread::sleep(std::time::Duration::from_millis(5));
    assert_eq!(pair.b.qp.try_destroy(), 0);
    let wcs = pair.a.scq.wait_for_completions(5);
    wcs[0].expect_failed(0, &[IBV_WC_RETRY_EXC_ERR]);
    for (i, wc) in wcs.iter().enumerate().skip(1) {
        wc.expect_flushed(i as u64);
    }
}

/// A failure of one side does not affect the other: the peer's receives stay posted.
fn the_peer_of_a_failed_qp_stays_usable(env: &TestEnv) {
    let pair = QpSpec::rc().create_connected_pair(env);
    pair.b.post_recv(1, []);
    pair.a.qp.move_to_state(IBV_QPS_ERR);
    pair.b.expect_no_completions();
    assert_eq!(pair.b.qp.query_state(), IBV_QPS_RTS);
}

/// The program owns the buffer of a flushed WR again. Later changes of the buffer must not reach the peer as
/// the flushed message, although a NIC may leave large messages in the sender's memory.
fn a_flushed_message_is_not_delivered_later(env: &TestEnv) {
    for memory in MemKind::distinct_on_provider(env) {
        for len in [100, 20_000, 200_000] {
            for end in [IBV_QPS_ERR, IBV_QPS_RESET] {
                record_case(format!("{len} bytes, state {end}, {memory:?}"));
                let pair = QpSpec::rc().with_memory_kind(memory).create_connected_pair(env);
                let source = pair.a.alloc_buf(len);
                let target = pair.b.alloc_buf(len);
                source.memory.fill_with_pattern(1);
                pair.a.post(send([source.whole_sge()]).with_id(1));
                // The receiver's NIC already knows of the message.
                assert!(pair.b.rcq.poll(1).is_empty());
                pair.a.qp.move_to_state(end);
                if end == IBV_QPS_ERR {
                    pair.a.await_send_completion().expect_flushed(1);
                }
                source.memory.fill_with_pattern(2);
                pair.b.post_recv(2, [target.whole_sge()]);
                if end == IBV_QPS_ERR {
                    // A NIC that has sent the message in packets may consider sending it again.
                    std::thread::sleep(QUIET_PERIOD);
                    pair.a.post(send([]).with_id(3));
                    pair.a.await_send_completion().expect_flushed(3);
                }
                for wc in pair.b.rcq.poll_for_quiet_period() {
                    if wc.status() == IBV_WC_SUCCESS {
                        wc.expect_received(2, len);
                        target.memory.assert_whole_pattern(1);
                    }
                }
            }
        }
    }
}

/// A message that the receiver has received and answered completes successfully. This holds even if the
/// sender polls only after its QP went to ERR, because the acknowledgement preceded the answer.
fn an_answered_send_is_not_flushed(env: &TestEnv) {
    for len in [0, 100, 20_000] {
        record_case(format!("{len} bytes"));
        let pair = QpSpec::rc().create_connected_pair(env);
        let source = pair.a.alloc_buf(len.max(1));
        let target = pair.b.alloc_buf(len.max(1));
        let sges = |all| if len == 0 { vec![] } else { vec![all] };
        pair.b.post_recv(2, sges(target.whole_sge()));
        pair.a.post_recv(3, []);
        pair.a.post(send(sges(source.whole_sge())).with_id(1));
        pair.b.await_recv_completion().expect_received(2, len);
        pair.b.post(send([]).with_id(4));
        pair.a.await_recv_completion().expect_received(3, 0);
        pair.a.qp.move_to_state(IBV_QPS_ERR);
        pair.a.await_send_completion().expect_sent(1, Verb::Send);
        pair.a.expect_no_completions();
    }
}

/// Both queues complete in one CQ, in the order of events.
fn a_shared_cq_gets_successes_before_flushes(env: &TestEnv) {
    let mut side = QpSpec::rc().create_qp_side(env);
    let mut init = QpInitAttr::new(IBV_QPT_RC, &side.rcq, &side.rcq);
    side.qp = side.pd.create_qp(&mut init);
    let itself = side.address();
    side.connect(&itself);
    side.post_recv(1, []);
    side.post_recv(2, []);
    side.post(send([]).with_id(3));
    let mut got = side.rcq.wait_for_completions(1);
    got[0].expect_received(1, 0);
    std::thread::sleep(QUIET_PERIOD);
    side.qp.move_to_state(IBV_QPS_ERR);
    got = side.rcq.wait_for_completions(2);
    got[0].expect_sent(3, Verb::Send);
    got[1].expect_flushed(2);
}

/// The requester's device reads the payload when it sends the message. If the region was deregistered
/// meanwhile, the requester has a local error, and the responder is not affected.
fn deregistering_the_payload_fails_only_the_sender(env: &TestEnv) {
    for memory in MemKind::distinct_on_provider(env) {
        for len in [100, 20_000, 200_000] {
            record_case(format!("{len} bytes, {memory:?}"));
            let pair = QpSpec::rc().with_memory_kind(memory).create_connected_pair(env);
            let source = pair.a.alloc_buf(len);
            let target = pair.b.alloc_buf(len);
            source.memory.fill_with_pattern(1);
            pair.a.post(send([source.whole_sge()]).with_id(1));
            pair.a.scq.expect_empty();
            assert_eq!(source.mr.try_destroy(), 0);
            pair.b.post_recv(2, [target.whole_sge()]);
            let wc = pair.a.await_send_completion();
            if wc.status() == IBV_WC_SUCCESS {
                // The device had read the payload already.
                wc.expect_sent(1, Verb::Send);
                pair.b.await_recv_completion().expect_received(2, len);
                target.memory.assert_whole_pattern(1);
            } else {
                wc.expect_failed(1, &env.accepted_failure_statuses(IBV_WC_LOC_PROT_ERR));
                pair.b.expect_no_completions();
                assert_eq!(pair.b.qp.query_state(), IBV_QPS_RTS);
            }
        }
    }
}
