//! Tests of shared receive queues.

use verbs_abi::*;

use crate::TestEnv;
use crate::test_env::NicCapability;
use crate::harness::record_case;
use crate::objects::{Context, QUIET_PERIOD};
use crate::pair::{QpPair, QpSide, QpSpec};
use crate::wr::{Verb, recv, send};

tests! { "srq";
    sizes_are_at_least_what_was_asked_for [Srq],
    more_than_the_device_has_is_refused [Srq],
    a_full_queue_refuses_with_bad_wr [Srq],
    too_many_sges_are_refused [Srq],
    queue_pairs_consume_srq_receives_in_order [Srq],
    one_queue_pair_may_consume_all_srq_receives [Srq],
    posting_to_the_queue_pair_is_refused [Srq, ImmediateChecks],
    falling_below_the_limit_raises_one_event [Srq, Events],
    the_limit_can_be_set_again_and_off [Srq, Events],
    a_limit_beyond_the_size_is_refused [Srq],
    creating_tells_the_sizes_that_query_tells [Srq],
    query_gives_sizes_and_limit [Srq],
    ud_queue_pairs_consume_srq_receives [Srq, Ud],
    a_failing_receive_takes_only_its_queue_pair_down [Srq],
    receives_survive_their_queue_pairs [Srq],
    wraps_around [Srq],
    two_threads_post_to_the_srq [Srq],
}

fn sizes_are_at_least_what_was_asked_for(env: &TestEnv) {
    let pd = Context::open(env).alloc_pd();
    for (max_wr, max_sge) in [(1, 1), (3, 2), (100, 3), (1000, 1)] {
        record_case(format!("{max_wr} WRs of {max_sge} SGEs"));
        let (_srq, got) = pd.try_create_srq(max_wr, max_sge).expect("ibv_create_srq");
        assert!(got.max_wr >= max_wr && got.max_sge >= max_sge, "{got:?}");
    }
}

fn more_than_the_device_has_is_refused(env: &TestEnv) {
    let ctx = Context::open(env);
    let (pd, device) = (ctx.alloc_pd(), ctx.device_attr());
    let (wr, sge) = (device.max_srq_wr.cast_unsigned(), device.max_srq_sge.cast_unsigned());
    for (max_wr, max_sge) in [(wr + 1, 1), (1, sge + 1), (u32::MAX, 1), (1, u32::MAX)] {
        record_case(format!("{max_wr} WRs of {max_sge} SGEs"));
        let errno = pd.try_create_srq(max_wr, max_sge).map(|_| ()).err();
        assert!([Some(libc::EINVAL), Some(libc::ENOMEM)].contains(&errno), "{errno:?}");
    }
}

fn a_full_queue_refuses_with_bad_wr(env: &TestEnv) {
    let pd = Context::open(env).alloc_pd();
    let (srq, _) = pd.try_create_srq(10, 1).expect("ibv_create_srq");
    let depth = srq.query().max_wr as usize;
    let wrs = (0..depth + 3).map(|i| recv(i as u64, [])).collect();
    let refused = srq.try_post_recvs(wrs).expect_err("the list is longer than the queue");
    assert_eq!((refused.errno, refused.bad_wr_index), (libc::ENOMEM, Some(depth)));
}

fn too_many_sges_are_refused(env: &TestEnv) {
    let pd = Context::open(env).alloc_pd();
    let (srq, got) = pd.try_create_srq(10, 2).expect("ibv_create_srq");
    let buf = pd.alloc_buf(8);
    let sges = (0..=got.max_sge).map(|_| buf.sge(0, 1));
    let refused = srq.try_post_recvs(vec![recv(1, []), recv(2, sges)]).expect_err("too many SGEs");
    assert!([libc::EINVAL, libc::ENOMEM].contains(&refused.errno), "{refused:?}");
    assert_eq!(refused.bad_wr_index, Some(1));
}

/// Returns two pairs whose `b` sides share PD, CQs and SRQ.
fn create_two_pairs_with_shared_srq(env: &TestEnv, spec: &QpSpec) -> (QpPair, QpPair) {
    let first = spec.clone().with_srq().create_connected_pair(env);
    let mut second = QpPair {
        a: spec.create_qp_side(env),
        b: first.b.create_side_on_same_pd_and_cqs(),
    };
    second.connect();
    (first, second)
}

fn queue_pairs_consume_srq_receives_in_order(env: &TestEnv) {
    let (first, second) = create_two_pairs_with_shared_srq(env, &QpSpec::rc());
    let source = first.a.alloc_buf(8);
    let other = second.a.alloc_buf(8);
    let target = first.b.alloc_buf(20 * 8);
    source.memory.fill_with_pattern(1);
    other.memory.fill_with_pattern(2);
    for i in 0..20 {
        first.b.post_recv(i, [target.sge(i * 8, 8)]);
    }
    for i in 0..20 {
        let (pair, buf, seed) =
            if i % 3 == 0 { (&first, &source, 1) } else { (&second, &other, 2) };
        pair.a.post(send([buf.whole_sge()]).with_id(i));
        let wc = first.b.await_recv_completion();
        wc.expect_received(i, 8);
        assert_eq!(wc.qpn(), pair.b.qp.qpn(), "qp_num tells whose message it is");
        pair.a.await_send_completion().expect_sent(i, Verb::Send);
        target.memory.assert_pattern_at(usize::try_from(i).unwrap() * 8, 8, seed);
    }
}

fn one_queue_pair_may_consume_all_srq_receives(env: &TestEnv) {
    let (first, second) = create_two_pairs_with_shared_srq(env, &QpSpec::rc());
    // One of the two queue pairs receives all messages.
    for i in 0..30 {
        first.b.post_recv(i, []);
    }
    for i in 0..30 {
        second.a.post(send([]).with_id(i).unsignaled());
        if i % 8 == 7 {
            second.a.post(send([]).with_id(99));
            first.b.post_recv(0, []);
            let wcs = first.b.rcq.wait_for_completions(9);
            assert!(wcs.iter().all(|wc| wc.status() == 0 && wc.qpn() == second.b.qp.qpn()));
            second.a.await_send_completion().expect_sent(99, Verb::Send);
        }
    }
    drop(first.b.rcq.wait_for_completions(6));
}

/// `ibv_post_recv(3)`: "If the QP qp is associated with a shared receive queue, you must use the function
/// ibv_post_srq_recv(), and not ibv_post_recv()".
fn posting_to_the_queue_pair_is_refused(env: &TestEnv) {
    let pair = QpSpec::rc().with_srq().create_connected_pair(env);
    let refused = pair.b.qp.try_post_recvs(vec![recv(1, [])]).expect_err("a receive on a QP with an SRQ");
    assert!([libc::EINVAL, libc::ENOMEM].contains(&refused.errno), "{refused:?}");
    assert_eq!(refused.bad_wr_index, Some(0));
}

fn send_to_consume_receives(pair: &QpPair, n: u64) {
    for i in 0..n {
        pair.a.post(send([]).with_id(i));
        assert_eq!(pair.b.await_recv_completion().status(), 0);
        pair.a.await_send_completion().expect_sent(i, Verb::Send);
    }
}

/// `ibv_modify_srq(3)`: the event comes "when the number of outstanding WRs falls below the limit", once.
fn falling_below_the_limit_raises_one_event(env: &TestEnv) {
    let pair = QpSpec::rc().with_srq().create_connected_pair(env);
    let srq = pair.b.srq.as_ref().expect("an SRQ");
    for i in 0..10 {
        srq.post_recv(i, []);
    }
    srq.modify(None, Some(5)).expect("ibv_modify_srq");
    send_to_consume_receives(&pair, 5);
    assert!(pair.b.ctx.get_async_event_within(QUIET_PERIOD).is_none(), "5 are left, which is not below 5");
    send_to_consume_receives(&pair, 1);
    let event = pair.b.ctx.await_async_event_but_comm_est();
    assert_eq!(event.kind(), IBV_EVENT_SRQ_LIMIT_REACHED);
    assert!(event.concerns_srq(srq));
    drop(event);
    send_to_consume_receives(&pair, 3);
    assert!(pair.b.ctx.get_async_event_within(QUIET_PERIOD).is_none(), "the event disarms the limit");
    assert_eq!(srq.query().srq_limit, 0);
}

fn the_limit_can_be_set_again_and_off(env: &TestEnv) {
    let pair = QpSpec::rc().with_srq().create_connected_pair(env);
    let srq = pair.b.srq.as_ref().expect("an SRQ");
    for i in 0..20 {
        srq.post_recv(i, []);
    }
    for limit in [18, 15] {
        srq.modify(None, Some(limit)).expect("ibv_modify_srq");
        send_to_consume_receives(&pair, 3);
        assert_eq!(pair.b.ctx.await_async_event_but_comm_est().kind(), IBV_EVENT_SRQ_LIMIT_REACHED);
    }
    srq.modify(None, Some(10)).expect("ibv_modify_srq");
    srq.modify(None, Some(0)).expect("off");
    send_to_consume_receives(&pair, 10);
    assert!(pair.b.ctx.get_async_event_within(QUIET_PERIOD).is_none());
}

fn a_limit_beyond_the_size_is_refused(env: &TestEnv) {
    let pd = Context::open(env).alloc_pd();
    let (srq, _) = pd.try_create_srq(10, 1).expect("ibv_create_srq");
    let got = srq.query();
    assert_eq!(srq.modify(None, Some(got.max_wr + 1)), Err(libc::EINVAL));
    assert_eq!(srq.modify(None, Some(u32::MAX)), Err(libc::EINVAL));
    srq.modify(None, Some(got.max_wr - 1)).expect("below the size");
}

/// `ibv_create_srq(3)` "will update the srq_init_attr struct with the original values of the SRQ that was
/// created".
fn creating_tells_the_sizes_that_query_tells(env: &TestEnv) {
    let pd = Context::open(env).alloc_pd();
    let (srq, got) = pd.try_create_srq(10, 3).expect("ibv_create_srq");
    let queried = srq.query();
    assert_eq!((queried.max_wr, queried.max_sge), (got.max_wr, got.max_sge));
}

fn query_gives_sizes_and_limit(env: &TestEnv) {
    let pd = Context::open(env).alloc_pd();
    let (srq, got) = pd.try_create_srq(10, 3).expect("ibv_create_srq");
    let queried = srq.query();
    assert_eq!(queried.srq_limit, 0);
    assert!(queried.max_wr >= got.max_wr && queried.max_sge >= 3);
    // With fewer WRs than the limit in the queue, the event would occur at once and disarm the limit.
    for i in 0..5 {
        srq.post_recv(i, []);
    }
    srq.modify(None, Some(4)).expect("ibv_modify_srq");
    assert_eq!(srq.query().srq_limit, 4);
}

fn ud_queue_pairs_consume_srq_receives(env: &TestEnv) {
    let (first, second) = create_two_pairs_with_shared_srq(env, &QpSpec::ud());
    let target = first.b.alloc_buf(100);
    for i in 0..20 {
        first.b.post_recv(i, [target.whole_sge()]);
        let pair = if i % 2 == 0 { &first } else { &second };
        pair.a.post(send([]).with_id(i));
        let wc = first.b.await_recv_completion();
        wc.expect_received(i, 40);
        assert_eq!((wc.qpn(), wc.raw().src_qp), (pair.b.qp.qpn(), pair.a.qp.qpn()));
        pair.a.await_send_completion().expect_sent(i, Verb::Send);
    }
}

fn a_failing_receive_takes_only_its_queue_pair_down(env: &TestEnv) {
    let (first, second) = create_two_pairs_with_shared_srq(env, &QpSpec::rc());
    let source = first.a.alloc_buf(100);
    let target = first.b.alloc_buf(100);
    first.b.post_recv(1, [target.sge(0, 10)]);
    first.b.post_recv(2, [target.whole_sge()]);
    first.a.post(send([source.whole_sge()]).with_id(3));
    let wc = first.b.await_recv_completion();
    wc.expect_failed(1, &env.accepted_failure_statuses(IBV_WC_LOC_LEN_ERR));
    assert_eq!(wc.qpn(), first.b.qp.qpn());
    first.a.await_send_completion().expect_failed(3, &env.accepted_failure_statuses(IBV_WC_REM_INV_REQ_ERR));
    assert_eq!(first.b.qp.query_state(), IBV_QPS_ERR);
    // The other WRs of the SRQ remain for the other queue pair.
    first.b.rcq.expect_empty();
    let other = second.a.alloc_buf(100);
    second.a.post(send([other.whole_sge()]).with_id(4));
    first.b.await_recv_completion().expect_received(2, 100);
    second.a.await_send_completion().expect_sent(4, Verb::Send);
}

fn receives_survive_their_queue_pairs(env: &TestEnv) {
    let (first, second) = create_two_pairs_with_shared_srq(env, &QpSpec::rc());
    for i in 0..5 {
        first.b.post_recv(i, []);
    }
    first.b.qp.move_to_state(IBV_QPS_ERR);
    assert_eq!(first.b.qp.try_destroy(), 0);
    first.b.rcq.expect_empty();
    for i in 0..5 {
        second.a.post(send([]).with_id(i));
        second.b.await_recv_completion().expect_received(i, 0);
        second.a.await_send_completion().expect_sent(i, Verb::Send);
    }
}

fn wraps_around(env: &TestEnv) {
    let side = QpSpec::rc().create_qp_side(env);
    let (srq, got) = side.pd.try_create_srq(5, 2).expect("ibv_create_srq");
    let spec = QpSpec::rc();
    let mut pair = spec.create_unconnected_pair(env);
    let mut init = crate::objects::QpInitAttr::new(IBV_QPT_RC, &side.scq, &side.rcq);
    init.srq = Some(srq.clone());
    pair.b = QpSide {
        qp: side.pd.create_qp(&mut init),
        srq: Some(srq.clone()),
        ..side
    };
    pair.connect();
    let depth = u64::from(got.max_wr);
    for round in 0..100u64 {
        let n = 1 + round % depth;
        for i in 0..n {
            srq.post_recv(round << 8 | i, []);
        }
        for i in 0..n {
            pair.a.post(send([]).with_id(i));
            pair.b.await_recv_completion().expect_received(round << 8 | i, 0);
            pair.a.await_send_completion().expect_sent(i, Verb::Send);
        }
    }
}

fn two_threads_post_to_the_srq(env: &TestEnv) {
    const EACH: u64 = 500;
    let (first, second) = create_two_pairs_with_shared_srq(env, &QpSpec::rc());
    let srq = first.b.srq.clone().expect("an SRQ");
    let has = env.expects_capability(NicCapability::Srq);
    assert!(has);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for i in 0..EACH {
                    while srq.try_post_recvs(vec![recv(i, [])]).is_err() {
                        std::thread::yield_now();
                    }
                }
            });
        }
        scope.spawn(|| {
            for _ in 0..2 * EACH {
                assert_eq!(first.b.await_recv_completion().status(), 0);
            }
        });
        for pair in [&first, &second] {
            scope.spawn(|| {
                for i in 0..EACH {
                    pair.a.post(send([]).with_id(i));
                    pair.a.await_send_completion().expect_sent(i, Verb::Send);
                }
            });
        }
    });
}
