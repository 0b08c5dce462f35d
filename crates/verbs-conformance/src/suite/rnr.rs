//! Tests of a receiver that is not ready: RC waits or fails, UC and UD lose the message.

use std::time::Duration;

use verbs_abi::*;

use crate::TestEnv;
use crate::test_env::NicCapability;
use crate::harness::record_case;
use crate::memory::MemKind;
use crate::pair::QpSpec;
use crate::wr::{Verb, send, write, write_imm};

tests! { "rnr";
    rnr_retry_0_gives_up_at_once [],
    rnr_retry_0_gives_up_on_write_with_imm [],
    rnr_retry_3_gives_up_after_a_while [],
    rnr_retry_7_waits_for_the_receive [],
    rnr_retry_7_waits_for_write_with_imm [],
    a_write_behind_a_waiting_send_waits_too [],
    an_rnr_error_leaves_the_responder_in_rts [],
    several_messages_wait_in_order [],
    the_other_direction_works_while_a_send_waits [],
    an_empty_srq_causes_rnr [Srq],
    uc_loses_a_message_without_receive [Uc] => |env| check_message_without_recv_is_lost(env, &QpSpec::uc()),
    ud_loses_a_message_without_receive [Ud] => |env| check_message_without_recv_is_lost(env, &QpSpec::ud()),
    going_to_err_flushes_waiting_sends [],
}

fn rnr_retry_0_gives_up_at_once(env: &TestEnv) {
    for memory in MemKind::distinct_on_provider(env) {
        for len in [0, 8, 10_000] {
            record_case(format!("{len} bytes, {memory:?}"));
            let pair = QpSpec::rc().with_memory_kind(memory).with_rnr_retry(0).create_connected_pair(env);
            let source = pair.a.alloc_buf(len + 1);
            pair.a.post_sends(vec![send([source.sge(0, len)]).with_id(1), send([]).with_id(2)]);
            pair.a.await_send_completion().expect_failed(1, &[IBV_WC_RNR_RETRY_EXC_ERR]);
            pair.a.await_send_completion().expect_flushed(2);
            assert_eq!(pair.a.qp.query_state(), IBV_QPS_ERR);
        }
    }
}

fn rnr_retry_0_gives_up_on_write_with_imm(env: &TestEnv) {
    let pair = QpSpec::rc().with_rnr_retry(0).create_connected_pair(env);
    let source = pair.a.alloc_buf(8);
    let target = pair.b.alloc_buf(8);
    pair.a.post(write_imm([source.whole_sge()], target.remote_address(), 1).with_id(1));
    pair.a.await_send_completion().expect_failed(1, &[IBV_WC_RNR_RETRY_EXC_ERR]);
}

fn rnr_retry_3_gives_up_after_a_while(env: &TestEnv) {
    let pair = QpSpec::rc().with_rnr_retry(3).create_connected_pair(env);
    pair.a.post(send([]).with_id(1));
    pair.a.await_send_completion().expect_failed(1, &[IBV_WC_RNR_RETRY_EXC_ERR]);
    pair.b.expect_no_completions();
}

fn rnr_retry_7_waits_for_the_receive(env: &TestEnv) {
    for memory in MemKind::distinct_on_provider(env) {
        for len in [0, 8, 200, 100_000] {
            record_case(format!("{len} bytes, {memory:?}"));
            let pair = QpSpec::rc().with_memory_kind(memory).create_connected_pair(env);
            let source = pair.a.alloc_buf(len + 1);
            let target = pair.b.alloc_buf(len + 1);
            source.memory.fill_with_pattern(3);
            pair.a.post(send([source.sge(0, len)]).with_id(1));
            pair.a.scq.expect_empty();
            pair.b.rcq.expect_empty();
            pair.b.post_recv(2, [target.sge(0, len)]);
            pair.b.await_recv_completion().expect_received(2, len);
            pair.a.await_send_completion().expect_sent(1, Verb::Send);
            target.memory.assert_pattern_at(0, len, 3);
        }
    }
}

fn rnr_retry_7_waits_for_write_with_imm(env: &TestEnv) {
    let pair = QpSpec::rc().create_connected_pair(env);
    let source = pair.a.alloc_buf(100);
    let target = pair.b.alloc_buf(100);
    source.memory.fill_with_pattern(3);
    pair.a.post(write_imm([source.whole_sge()], target.remote_address(), 9).with_id(1));
    pair.a.scq.expect_empty();
    pair.b.post_recv(2, []);
    let wc = pair.b.await_recv_completion();
    wc.expect_success(2, IBV_WC_RECV_RDMA_WITH_IMM);
    assert_eq!((wc.raw().byte_len, wc.imm()), (100, Some(9)));
    pair.a.await_send_completion().expect_sent(1, Verb::RdmaWrite);
    target.memory.assert_whole_pattern(3);
}

/// IBTA vol. 1, 9.5: an RC responder executes requests in order, so a WRITE behind a waiting SEND waits, too.
fn a_write_behind_a_waiting_send_waits_too(env: &TestEnv) {
    for memory in MemKind::distinct_on_provider(env) {
        record_case(format!("{memory:?}"));
        let pair = QpSpec::rc().with_memory_kind(memory).create_connected_pair(env);
        let source = pair.a.alloc_buf(8);
        let target = pair.b.alloc_buf(8);
        source.memory.store(0, 7);
        pair.a.post(send([]).with_id(1));
        pair.a.post(write([source.whole_sge()], target.remote_address()).with_id(2));
        pair.a.scq.expect_empty();
        assert_eq!(target.memory.load(0), 0, "the WRITE overtook the SEND");
        pair.b.post_recv(3, []);
        pair.b.await_recv_completion().expect_received(3, 0);
        pair.a.await_send_completion().expect_sent(1, Verb::Send);
        pair.a.await_send_completion().expect_sent(2, Verb::RdmaWrite);
        assert_eq!(target.memory.load(0), 7);
    }
}

/// The requester's RNR error does not affect the responder: the responder's QP stays in RTS, and the message
/// is not delivered later.
fn an_rnr_error_leaves_the_responder_in_rts(env: &TestEnv) {
    let pair = QpSpec::rc().with_rnr_retry(0).create_connected_pair(env);
    let source = pair.a.alloc_buf(64);
    source.memory.fill_with_pattern(1);
    pair.a.post(send([source.whole_sge()]).with_id(1));
    pair.a.await_send_completion().expect_failed(1, &[IBV_WC_RNR_RETRY_EXC_ERR]);
    assert_eq!(pair.b.qp.query_state(), IBV_QPS_RTS);
    let target = pair.b.alloc_buf(64);
    pair.b.post_recv(2, [target.whole_sge()]);
    pair.b.expect_no_completions();
    target.memory.assert_filled_with(0, 64, 0);
}

fn several_messages_wait_in_order(env: &TestEnv) {
    let pair = QpSpec::rc().create_connected_pair(env);
    let source = pair.a.alloc_buf(16 * 8);
    let target = pair.b.alloc_buf(16 * 8);
    source.memory.fill_with_pattern(4);
    pair.a.post_sends((0..16).map(|i| send([source.sge(i * 8, 8)]).with_id(i)).collect());
    for i in 0..16 {
        if i % 5 == 0 {
            std::thread::sleep(Duration::from_millis(2));
        }
        pair.b.post_recv(i, [target.sge(i * 8, 8)]);
        pair.b.await_recv_completion().expect_received(i, 8);
    }
    for i in 0..16 {
        pair.a.await_send_completion().expect_sent(i, Verb::Send);
    }
    target.memory.assert_whole_pattern(4);
}

fn the_other_direction_works_while_a_send_waits(env: &TestEnv) {
    let pair = QpSpec::rc().create_connected_pair(env);
    pair.a.post(send([]).with_id(1));
    for i in 0..50 {
        pair.a.post_recv(i, []);
        pair.b.post(send([]).with_id(i));
        pair.a.await_recv_completion().expect_received(i, 0);
        pair.b.await_send_completion().expect_sent(i, Verb::Send);
    }
    pair.b.post_recv(2, []);
    pair.b.await_recv_completion().expect_received(2, 0);
    pair.a.await_send_completion().expect_sent(1, Verb::Send);
}

fn an_empty_srq_causes_rnr(env: &TestEnv) {
    let pair = QpSpec::rc().with_srq().with_rnr_retry(0).create_connected_pair(env);
    pair.a.post(send([]).with_id(1));
    pair.a.await_send_completion().expect_failed(1, &[IBV_WC_RNR_RETRY_EXC_ERR]);
    let pair = QpSpec::rc().with_srq().create_connected_pair(env);
    pair.a.post(send([]).with_id(1));
    pair.a.scq.expect_empty();
    pair.b.post_recv(2, []);
    pair.b.await_recv_completion().expect_received(2, 0);
    pair.a.await_send_completion().expect_sent(1, Verb::Send);
}

fn check_message_without_recv_is_lost(env: &TestEnv, spec: &QpSpec) {
    let pair = spec.create_connected_pair(env);
    let buf = pair.b.alloc_buf(64);
    for i in 0..5 {
        pair.a.post(send([]).with_id(i));
        pair.a.await_send_completion().expect_sent(i, Verb::Send);
    }
    pair.b.expect_no_completions();
    pair.b.post_recv(1, [buf.whole_sge()]);
    pair.b.expect_no_completions();
    pair.a.post(send([]).with_id(9));
    pair.b.await_recv_completion().expect_received(1, pair.b.grh_len());
    pair.a.await_send_completion().expect_sent(9, Verb::Send);
    if env.expects_capability(NicCapability::Uc) && pair.b.grh_len() == 0 {
        let source = pair.a.alloc_buf(8);
        pair.a.post(write_imm([source.whole_sge()], buf.remote_address(), 1).with_id(10));
        pair.a.await_send_completion().expect_sent(10, Verb::RdmaWrite);
        pair.b.expect_no_completions();
    }
}

fn going_to_err_flushes_waiting_sends(env: &TestEnv) {
    let pair = QpSpec::rc().create_connected_pair(env);
    pair.a.post_sends((0..3).map(|i| send([]).with_id(i)).collect());
    std::thread::sleep(Duration::from_millis(3));
    pair.a.qp.move_to_state(IBV_QPS_ERR);
    for i in 0..3 {
        pair.a.await_send_completion().expect_flushed(i);
    }
    pair.a.expect_no_completions();
    // A flush error does not tell whether the message was delivered. The receiver itself is not affected.
    assert_eq!(pair.b.qp.query_state(), IBV_QPS_RTS);
}
