//! Checks that a work request fails if a key, a range, an access right or a protection domain is wrong: for local
//! buffers, for receives, and for remote memory.

use verbs_abi::*;

use crate::TestEnv;
use crate::test_env::NicCapability;
use crate::harness::record_case;
use crate::memory::{MemKind, ZeroedMemory};
use crate::objects::ALL_ACCESS;
use crate::pair::{QpPair, QpSpec};
use crate::wr::{RemoteAddress, Verb, wr_of_verb_with_default_operands, read, send, write};

tests! { "access";
    local_wrong_lkey [] => |env| check_failure_by_local_sge_flaw(env, AccessFlaw::WrongKey),
    local_lkey_zero [] => |env| check_failure_by_local_sge_flaw(env, AccessFlaw::KeyZero),
    local_beyond_the_region [] => |env| check_failure_by_local_sge_flaw(env, AccessFlaw::BeyondEnd),
    local_before_the_region [] => |env| check_failure_by_local_sge_flaw(env, AccessFlaw::BeforeStart),
    local_range_that_wraps [] => |env| check_failure_by_local_sge_flaw(env, AccessFlaw::Wraps),
    local_deregistered [] => |env| check_failure_by_local_sge_flaw(env, AccessFlaw::Deregistered),
    local_other_protection_domain [] => |env| check_failure_by_local_sge_flaw(env, AccessFlaw::OtherPd),
    local_protection_errors_have_their_status [ErrorStatuses],
    a_wrong_lkey_is_found_before_a_wrong_rkey [ErrorStatuses] => |env| check_status_if_both_keys_wrong(env, &QpSpec::rc()),
    a_wrong_lkey_is_found_before_a_wrong_rkey_on_uc [Uc, ErrorStatuses] => |env| check_status_if_both_keys_wrong(env, &QpSpec::uc()),
    an_atomic_with_an_invalid_result_sge_changes_nothing [Atomics, EarlyChecks],
    local_second_sge_is_checked_too [],
    local_read_target_needs_local_write [Read],
    local_atomic_target_needs_local_write [Atomics],
    local_source_needs_no_right [],
    local_failure_stops_only_the_send_queue_of_uc [Uc, Sqe] => |env| check_error_moves_qp_to_sqe(env, &QpSpec::uc()),
    local_failure_stops_only_the_send_queue_of_ud [Ud, Sqe] => |env| check_error_moves_qp_to_sqe(env, &QpSpec::ud()),
    receive_wrong_lkey [] => |env| check_failure_by_recv_sge_flaw(env, AccessFlaw::WrongKey),
    receive_beyond_the_region [] => |env| check_failure_by_recv_sge_flaw(env, AccessFlaw::BeyondEnd),
    receive_deregistered [] => |env| check_failure_by_recv_sge_flaw(env, AccessFlaw::Deregistered),
    receive_other_protection_domain [] => |env| check_failure_by_recv_sge_flaw(env, AccessFlaw::OtherPd),
    receive_without_local_write [] => |env| check_failure_by_recv_sge_flaw(env, AccessFlaw::RegionLacksRight),
    length_errors_have_their_status [ErrorStatuses],
    a_refused_write_with_imm_is_a_local_access_error_of_its_receive [ErrorStatuses],
    a_too_small_receive_fails_both_sides_on_rc [],
    a_too_small_receive_of_two_sges_fails_both_sides [],
    receive_too_small_on_uc [Uc] => |env| check_too_small_receive_loses_unreliable_message(env, &QpSpec::uc()),
    a_uc_receive_with_a_wrong_key_fails_its_queue_pair [Uc],
    receive_too_small_on_ud [Ud] => |env| check_too_small_receive_loses_unreliable_message(env, &QpSpec::ud()),
    remote_wrong_rkey [] => |env| check_failure_by_remote_range_flaw(env, AccessFlaw::WrongKey),
    remote_rkey_zero [] => |env| check_failure_by_remote_range_flaw(env, AccessFlaw::KeyZero),
    remote_beyond_the_region [] => |env| check_failure_by_remote_range_flaw(env, AccessFlaw::BeyondEnd),
    remote_before_the_region [] => |env| check_failure_by_remote_range_flaw(env, AccessFlaw::BeforeStart),
    remote_range_that_wraps [] => |env| check_failure_by_remote_range_flaw(env, AccessFlaw::Wraps),
    remote_deregistered [] => |env| check_failure_by_remote_range_flaw(env, AccessFlaw::Deregistered),
    remote_other_protection_domain [] => |env| check_failure_by_remote_range_flaw(env, AccessFlaw::OtherPd),
    remote_region_without_the_right [] => |env| check_failure_by_remote_range_flaw(env, AccessFlaw::RegionLacksRight),
    remote_queue_pair_without_the_right [] => |env| check_failure_by_remote_range_flaw(env, AccessFlaw::QpLacksRight),
    remote_zero_bytes_need_no_key [],
    remote_rights_do_not_imply_each_other [Read, Atomics],
    a_refused_write_on_uc_is_dropped [Uc],
    remote_rights_of_a_queue_pair_can_change [Read],
    a_deregistered_remote_region_is_refused [],
    a_write_partly_outside_its_region_changes_nothing [],
}

/// A flaw of a key or a range, for which an access must be refused.
#[derive(Clone, Copy, Debug, PartialEq)]
enum AccessFlaw {
    WrongKey,
    KeyZero,
    BeyondEnd,
    BeforeStart,
    Wraps,
    Deregistered,
    OtherPd,
    RegionLacksRight,
    QpLacksRight,
}

const REGION_BYTES: usize = 64;

/// A region of 64 bytes in the middle of 192 bytes, so that its surroundings are mapped but not registered.
struct TargetRegion {
    memory: ZeroedMemory,
    mr: crate::objects::Mr,
    /// Another protection domain, kept alive so that its key exists.
    _other_pd: Option<crate::objects::Pd>,
}

impl TargetRegion {
    fn new(side: &crate::pair::QpSide, flaw: AccessFlaw, access: i32) -> Self {
        let memory = ZeroedMemory::new(side.ctx.env(), side.spec.memory_kind, 3 * REGION_BYTES);
        let access = if flaw == AccessFlaw::RegionLacksRight { 0 } else { access };
        let other = (flaw == AccessFlaw::OtherPd).then(|| side.ctx.alloc_pd());
        let pd = other.as_ref().unwrap_or(&side.pd);
        let middle = memory.as_ptr().wrapping_byte_add(REGION_BYTES);
        let mr = pd.try_reg(middle, REGION_BYTES, access).expect("ibv_reg_mr");
        Self {
            memory,
            mr,
            _other_pd: other,
        }
    }

    /// Returns address and length of an access with the flaw. If the flaw concerns the key, the length is `len`.
    fn flawed_addr_and_len(&self, flaw: AccessFlaw, len: u64) -> (u64, u64) {
        let start = self.memory.addr() + REGION_BYTES as u64;
        match flaw {
            AccessFlaw::BeyondEnd => (start + REGION_BYTES as u64 - len + 8, len),
            AccessFlaw::BeforeStart => (start - 8, len),
            AccessFlaw::Wraps => (u64::MAX - 7, len.max(16)),
            _ => (start, len),
        }
    }

    /// Returns the key for an access with the flaw. If the flaw is a deregistered region, this function deregisters it.
    fn apply_flaw_to_key(&self, flaw: AccessFlaw, key: u32) -> u32 {
        match flaw {
            AccessFlaw::WrongKey => key ^ 0x0101_0101,
            AccessFlaw::KeyZero => 0,
            AccessFlaw::Deregistered => {
                assert_eq!(self.mr.try_destroy(), 0);
                key
            }
            _ => key,
        }
    }

    fn flawed_sge(&self, flaw: AccessFlaw) -> ibv_sge {
        let (addr, length) = self.flawed_addr_and_len(flaw, REGION_BYTES as u64);
        ibv_sge {
            addr,
            length: u32::try_from(length).expect("small"),
            lkey: self.apply_flaw_to_key(flaw, self.mr.lkey()),
        }
    }
}

fn supported_verbs(env: &TestEnv) -> Vec<Verb> {
    let has = |verb: &Verb| {
        (*verb != Verb::RdmaRead || env.expects_capability(NicCapability::Read)) && (!verb.is_atomic() || env.expects_capability(NicCapability::Atomics))
    };
    Verb::ALL.into_iter().filter(has).collect()
}

/// A local protection error (`ibv_poll_cq(3)`) moves the RC QP to ERR, and flushes the following WRs.
fn check_failure_by_local_sge_flaw(env: &TestEnv, flaw: AccessFlaw) {
    for memory in MemKind::distinct_on_provider(env) {
        for verb in supported_verbs(env) {
            record_case(format!("{verb:?}, {memory:?}"));
            let pair = QpSpec::rc().with_memory_kind(memory).create_connected_pair(env);
            let local = TargetRegion::new(&pair.a, flaw, ALL_ACCESS);
            let remote = pair.b.alloc_buf(256);
            pair.b.post_recv(9, [remote.whole_sge()]);
            let mut sge = local.flawed_sge(flaw);
            if verb.is_atomic() {
                if flaw == AccessFlaw::BeyondEnd {
                    sge.addr = local.memory.addr() + 2 * REGION_BYTES as u64 - 4;
                }
                sge.length = 8;
            }
            let good = pair.a.alloc_buf(8);
            pair.a.post_sends(vec![
                write([good.whole_sge()], remote.remote_address()).with_id(1),
                wr_of_verb_with_default_operands(verb, [sge], remote.remote_address()).with_id(2),
                write([good.whole_sge()], remote.remote_address()).with_id(3),
            ]);
            pair.a.await_send_completion().expect_sent(1, Verb::RdmaWrite);
            pair.a.await_send_completion().expect_failed(2, &env.accepted_failure_statuses(IBV_WC_LOC_PROT_ERR));
            pair.a.await_send_completion().expect_flushed(3);
            assert_eq!(pair.a.qp.query_state(), IBV_QPS_ERR);
            if !verb.is_atomic() || env.expects_capability(NicCapability::EarlyChecks) {
                remote.memory.assert_filled_with(0, 256, 0);
            }
            local.memory.assert_filled_with(0, 3 * REGION_BYTES, 0);
            pair.b.rcq.expect_empty();
            assert_eq!(pair.b.qp.query_state(), IBV_QPS_RTS, "the peer has done nothing wrong");
        }
    }
}

/// `ibv_poll_cq(3)`, IBTA vol. 1, 11.6.2: "Local Protection Error".
fn local_protection_errors_have_their_status(env: &TestEnv) {
    for verb in supported_verbs(env).into_iter().filter(|verb| !verb.is_atomic()) {
        for flaw in [AccessFlaw::WrongKey, AccessFlaw::BeyondEnd, AccessFlaw::OtherPd] {
            record_case(format!("{verb:?}, {flaw:?}"));
            let pair = QpSpec::rc().create_connected_pair(env);
            let local = TargetRegion::new(&pair.a, flaw, ALL_ACCESS);
            let remote = pair.b.alloc_buf(256);
            pair.b.post_recv(9, [remote.whole_sge()]);
            pair.a.post(wr_of_verb_with_default_operands(verb, [local.flawed_sge(flaw)], remote.remote_address()).with_id(1));
            pair.a.await_send_completion().expect_failed(1, &[IBV_WC_LOC_PROT_ERR]);
        }
    }
}

/// The L_Key and the R_Key of a request are both wrong.
///
/// A requester that sends payload checks the L_Key when it builds the request. No responder then sees the R_Key, and no
/// receive is consumed. The requester checks the buffer of a result only when a result arrives, and a READ or atomic
/// with a wrong R_Key has no result. Linux does so in `rxe_req.c` and `rxe_comp.c`. IBTA vol. 1, 9.9.2, lists both
/// errors and no order.
fn check_status_if_both_keys_wrong(env: &TestEnv, spec: &QpSpec) {
    let on_rc = spec.qp_type == IBV_QPT_RC;
    let has = |verb: &Verb| on_rc || verb.is_send() || verb.is_write();
    for verb in supported_verbs(env).into_iter().filter(has) {
        record_case(format!("{verb:?}"));
        let pair = spec.create_connected_pair(env);
        let mut sge = pair.a.alloc_buf(8).whole_sge();
        sge.lkey ^= 0x0f0f;
        let mut remote = pair.b.alloc_buf(8).remote_address();
        remote.rkey ^= 0x0f0f;
        pair.b.post_recv(9, []);
        pair.a.post(wr_of_verb_with_default_operands(verb, [sge], remote).with_id(1));
        if verb.is_send() || verb.is_write() {
            pair.a.await_send_completion().expect_failed(1, &env.accepted_failure_statuses(IBV_WC_LOC_PROT_ERR));
            pair.b.rcq.expect_empty();
            assert_eq!(pair.b.qp.query_state(), IBV_QPS_RTS, "the peer has heard of nothing");
        } else {
            pair.a.await_send_completion().expect_failed(1, &[IBV_WC_REM_ACCESS_ERR]);
        }
    }
}

/// `ibv_poll_cq(3)`, IBTA vol. 1, 11.6.2: the receive has "Local Length Error", the request "Remote Invalid
/// Request Error".
fn length_errors_have_their_status(env: &TestEnv) {
    let pair = QpSpec::rc().create_connected_pair(env);
    let source = pair.a.alloc_buf(64);
    let target = pair.b.alloc_buf(64);
    pair.b.post_recv(1, [target.sge(0, 63)]);
    pair.a.post(send([source.whole_sge()]).with_id(2));
    pair.b.await_recv_completion().expect_failed(1, &[IBV_WC_LOC_LEN_ERR]);
    pair.a.await_send_completion().expect_failed(2, &[IBV_WC_REM_INV_REQ_ERR]);
}

/// A receive consumed for the immediate of a refused WRITE fails.
///
/// `ibv_poll_cq(3)`, IBTA vol. 1, 11.6.2: "Local Access Error … during the processing of a RDMA Write with
/// Immediate Data".
fn a_refused_write_with_imm_is_a_local_access_error_of_its_receive(env: &TestEnv) {
    let pair = QpSpec::rc().create_connected_pair(env);
    let local = pair.a.alloc_buf(8);
    let nowhere = RemoteAddress {
        addr: 0x1000,
        rkey: 0xbad,
    };
    pair.b.post_recv(1, []);
    pair.a.post(crate::wr::write_imm([local.whole_sge()], nowhere, 7).with_id(2));
    pair.a.await_send_completion().expect_failed(2, &[IBV_WC_REM_ACCESS_ERR]);
    pair.b.await_recv_completion().expect_failed(1, &[IBV_WC_LOC_ACCESS_ERR, IBV_WC_WR_FLUSH_ERR]);
}

/// An atomic with an invalid result buffer must not change the remote word, so the requester must check the
/// buffer before it sends the request.
fn an_atomic_with_an_invalid_result_sge_changes_nothing(env: &TestEnv) {
    let pair = QpSpec::rc().create_connected_pair(env);
    let local = TargetRegion::new(&pair.a, AccessFlaw::BeyondEnd, ALL_ACCESS);
    let word = pair.b.alloc_buf(8);
    let outside = ibv_sge {
        addr: local.memory.addr() + 2 * REGION_BYTES as u64,
        length: 8,
        lkey: local.mr.lkey(),
    };
    pair.a.post(crate::wr::fetch_add(outside, word.remote_address(), 1).with_id(1));
    pair.a.await_send_completion().expect_failed(1, &env.accepted_failure_statuses(IBV_WC_LOC_PROT_ERR));
    assert_eq!(word.memory.load(0), 0, "the remote word");
}

fn local_second_sge_is_checked_too(env: &TestEnv) {
    let pair = QpSpec::rc().create_connected_pair(env);
    let local = pair.a.alloc_buf(64);
    let remote = pair.b.alloc_buf(64);
    let mut bad = local.sge(32, 32);
    bad.lkey ^= 0x0f0f;
    local.memory.fill_with_pattern(1);
    pair.a.post(write([local.sge(0, 32), bad], remote.remote_address()).with_id(1));
    pair.a.await_send_completion().expect_failed(1, &env.accepted_failure_statuses(IBV_WC_LOC_PROT_ERR));
}

fn local_read_target_needs_local_write(env: &TestEnv) {
    for memory in MemKind::distinct_on_provider(env) {
        let pair = QpSpec::rc().with_memory_kind(memory).create_connected_pair(env);
        let local = pair.a.alloc_buf_with_access(64, IBV_ACCESS_REMOTE_READ);
        let remote = pair.b.alloc_buf(64);
        remote.memory.fill_with_pattern(1);
        pair.a.post(read([local.whole_sge()], remote.remote_address()).with_id(1));
        pair.a.await_send_completion().expect_failed(1, &env.accepted_failure_statuses(IBV_WC_LOC_PROT_ERR));
        local.memory.assert_filled_with(0, 64, 0);
    }
}

fn local_atomic_target_needs_local_write(env: &TestEnv) {
    let pair = QpSpec::rc().create_connected_pair(env);
    let local = pair.a.alloc_buf_with_access(8, IBV_ACCESS_REMOTE_READ);
    let remote = pair.b.alloc_buf(8);
    pair.a.post(crate::wr::fetch_add(local.whole_sge(), remote.remote_address(), 1).with_id(1));
    pair.a.await_send_completion().expect_failed(1, &env.accepted_failure_statuses(IBV_WC_LOC_PROT_ERR));
    assert_eq!(local.memory.load(0), 0);
}

fn local_source_needs_no_right(env: &TestEnv) {
    let pair = QpSpec::rc().create_connected_pair(env);
    let local = pair.a.alloc_buf_with_access(64, 0);
    local.memory.fill_with_pattern(1);
    let remote = pair.b.alloc_buf(64);
    pair.a.post(write([local.whole_sge()], remote.remote_address()).with_id(1));
    pair.a.await_send_completion().expect_sent(1, Verb::RdmaWrite);
    remote.memory.assert_whole_pattern(1);
}

/// IBTA vol. 1, 10.3.1.5: on UC and UD a completion error of the send queue leads to SQE. The QP still
/// receives, and returns by SQE to RTS.
fn check_error_moves_qp_to_sqe(env: &TestEnv, spec: &QpSpec) {
    let pair = spec.create_connected_pair(env);
    let buf = pair.a.alloc_buf(64 + 40);
    let mut bad = buf.sge(0, 8);
    bad.lkey ^= 0x0f0f;
    pair.a.post_recv(7, [buf.whole_sge()]);
    pair.a.post_sends(vec![send([bad]).with_id(1), send([buf.sge(0, 8)]).with_id(2)]);
    pair.a.await_send_completion().expect_failed(1, &env.accepted_failure_statuses(IBV_WC_LOC_PROT_ERR));
    pair.a.await_send_completion().expect_flushed(2);
    assert_eq!(pair.a.qp.query_state(), IBV_QPS_SQE);
    let source = pair.b.alloc_buf(8);
    pair.b.post(send([source.whole_sge()]).with_id(3));
    pair.b.await_send_completion().expect_sent(3, Verb::Send);
    pair.a.await_recv_completion().expect_received(7, 8 + pair.a.grh_len());
    // WRs posted in SQE are flushed, too.
    pair.a.post(send([buf.sge(0, 8)]).with_id(4));
    pair.a.await_send_completion().expect_flushed(4);
    pair.a.qp.move_to_state(IBV_QPS_RTS);
    pair.check_transfers_both_ways();
}

/// The receive fails with LOC_PROT_ERR, and the requester gets NAK-Remote Operational Error (IBTA vol. 1,
/// 9.9.3.1: a local QP error at the responder).
fn check_failure_by_recv_sge_flaw(env: &TestEnv, flaw: AccessFlaw) {
    for memory in MemKind::distinct_on_provider(env) {
        record_case(format!("{memory:?}"));
        let pair = QpSpec::rc().with_memory_kind(memory).create_connected_pair(env);
        let target = TargetRegion::new(&pair.b, flaw, IBV_ACCESS_LOCAL_WRITE);
        let source = pair.a.alloc_buf(REGION_BYTES);
        source.memory.fill_with_pattern(3);
        pair.b.post_recv(1, [target.flawed_sge(flaw)]);
        pair.b.post_recv(2, []);
        pair.a.post_sends(vec![send([source.whole_sge()]).with_id(3), send([]).with_id(4)]);
        pair.b.await_recv_completion().expect_failed(1, &env.accepted_failure_statuses(IBV_WC_LOC_PROT_ERR));
        pair.b.await_recv_completion().expect_flushed(2);
        pair.a.await_send_completion().expect_failed(3, &[IBV_WC_REM_OP_ERR]);
        pair.a.await_send_completion().expect_flushed(4);
        assert_eq!(pair.a.qp.query_state(), IBV_QPS_ERR);
        assert_eq!(pair.b.qp.query_state(), IBV_QPS_ERR);
        target.memory.assert_filled_with(0, REGION_BYTES, 0);
        target.memory.assert_filled_with(2 * REGION_BYTES, REGION_BYTES, 0);
    }
}

fn a_too_small_receive_fails_both_sides_on_rc(env: &TestEnv) {
    for memory in MemKind::distinct_on_provider(env) {
        for (room, len) in [(0, 1), (63, 64), (100, 5000), (4096, 1 << 20)] {
            record_case(format!("{len} bytes into {room}, {memory:?}"));
            let pair = QpSpec::rc().with_memory_kind(memory).create_connected_pair(env);
            let source = pair.a.alloc_buf(len);
            let target = pair.b.alloc_buf(room + 8);
            pair.b.post_recv(1, [target.sge(0, room)]);
            pair.b.post_recv(2, []);
            pair.a.post_sends(vec![send([source.whole_sge()]).with_id(3), send([]).with_id(4)]);
            pair.b.await_recv_completion().expect_failed(1, &env.accepted_failure_statuses(IBV_WC_LOC_LEN_ERR));
            pair.b.await_recv_completion().expect_flushed(2);
            pair.a.await_send_completion().expect_failed(3, &env.accepted_failure_statuses(IBV_WC_REM_INV_REQ_ERR));
            pair.a.await_send_completion().expect_flushed(4);
            assert_eq!(pair.b.qp.query_state(), IBV_QPS_ERR);
            assert_eq!(pair.a.qp.query_state(), IBV_QPS_ERR);
            target.memory.assert_filled_with(room, 8, 0);
        }
    }
}

fn a_too_small_receive_of_two_sges_fails_both_sides(env: &TestEnv) {
    let pair = QpSpec::rc().create_connected_pair(env);
    let source = pair.a.alloc_buf(64);
    let target = pair.b.alloc_buf(64);
    pair.b.post_recv(1, [target.sge(0, 31), target.sge(31, 32)]);
    pair.a.post(send([source.whole_sge()]).with_id(2));
    pair.b.await_recv_completion().expect_failed(1, &env.accepted_failure_statuses(IBV_WC_LOC_LEN_ERR));
    pair.a.await_send_completion().expect_failed(2, &env.accepted_failure_statuses(IBV_WC_REM_INV_REQ_ERR));
}

/// Unreliable transports have no NAK: the message is lost. The receive fails with LOC_LEN_ERR, or remains for
/// the next message.
fn check_too_small_receive_loses_unreliable_message(env: &TestEnv, spec: &QpSpec) {
    let pair = spec.create_connected_pair(env);
    let grh = pair.b.grh_len();
    let source = pair.a.alloc_buf(64);
    let target = pair.b.alloc_buf(grh + 64);
    source.memory.fill_with_pattern(9);
    pair.b.post_recv(1, [target.sge(0, grh + 63)]);
    pair.a.post(send([source.whole_sge()]).with_id(2));
    pair.a.await_send_completion().expect_sent(2, Verb::Send);
    let wcs = pair.b.rcq.poll_for_quiet_period();
    assert_eq!(target.memory.read(grh + 63, 1), [0]);
    if let Some(wc) = wcs.first() {
        wc.expect_failed(1, &env.accepted_failure_statuses(IBV_WC_LOC_LEN_ERR));
        return;
    }
    pair.a.post(send([source.sge(0, 63)]).with_id(3));
    pair.a.await_send_completion().expect_sent(3, Verb::Send);
    pair.b.await_recv_completion().expect_received(1, grh + 63);
    target.memory.assert_pattern_at(grh, 63, 9);
}

/// A receive whose memory cannot be written ends the queue pair, so that no later receive waits for ever.
fn a_uc_receive_with_a_wrong_key_fails_its_queue_pair(env: &TestEnv) {
    let pair = QpSpec::uc().create_connected_pair(env);
    let source = pair.a.alloc_buf(64);
    let target = pair.b.alloc_buf(64);
    pair.b.post_recv(1, [ibv_sge { lkey: !target.whole_sge().lkey, ..target.whole_sge() }]);
    pair.b.post_recv(2, [target.whole_sge()]);
    pair.a.post(send([source.whole_sge()]).with_id(3));
    pair.b.await_recv_completion().expect_failed(1, &env.accepted_failure_statuses(IBV_WC_LOC_PROT_ERR));
    pair.b.await_recv_completion().expect_flushed(2);
    assert_eq!(pair.b.qp.query_state(), IBV_QPS_ERR);
}

/// Returns the verbs that access remote memory, each with the access right that it needs.
fn one_sided_verbs_and_needed_access(env: &TestEnv) -> Vec<(Verb, i32)> {
    supported_verbs(env)
        .into_iter()
        .filter(|verb| !verb.is_send())
        .map(|verb| {
            let right = match verb {
                Verb::RdmaRead => IBV_ACCESS_REMOTE_READ,
                _ if verb.is_atomic() => IBV_ACCESS_REMOTE_ATOMIC,
                _ => IBV_ACCESS_REMOTE_WRITE,
            };
            (verb, right)
        })
        .collect()
}

/// IBTA vol. 1, 9.9.3.1: the requester gets NAK-Remote Access Error. The responder's QP goes to ERR and
/// raises an access violation event. Both sides flush the remaining WRs.
fn check_failure_by_remote_range_flaw(env: &TestEnv, flaw: AccessFlaw) {
    for memory in MemKind::distinct_on_provider(env) {
        for (verb, right) in one_sided_verbs_and_needed_access(env) {
            record_case(format!("{verb:?}, {memory:?}"));
            let qp_access = if flaw == AccessFlaw::QpLacksRight { ALL_ACCESS & !right } else { ALL_ACCESS };
            let pair = QpSpec::rc().with_memory_kind(memory).with_access(qp_access).create_connected_pair(env);
            let access = if flaw == AccessFlaw::RegionLacksRight { 0 } else { ALL_ACCESS };
            let target = TargetRegion::new(&pair.b, flaw, access);
            let len = if verb.is_atomic() { 8 } else { REGION_BYTES as u64 };
            let (addr, len) = match target.flawed_addr_and_len(flaw, len) {
                // The flawed range of an atomic lies directly behind the region, because an atomic across the end would
                // be misaligned.
                (_, _) if verb.is_atomic() && flaw == AccessFlaw::BeyondEnd => {
                    (target.memory.addr() + 2 * REGION_BYTES as u64, 8)
                }
                (addr, _) if verb.is_atomic() => (addr, 8),
                other => other,
            };
            let remote = RemoteAddress {
                addr,
                rkey: target.apply_flaw_to_key(flaw, target.mr.rkey()),
            };
            let local = pair.a.alloc_buf(usize::try_from(len).expect("small"));
            local.memory.fill_with_pattern(1);
            let before = local.memory.read(0, local.memory.len());
            pair.b.post_recv(8, []);
            pair.a.post_recv(9, []);
            pair.a.post_sends(vec![
                wr_of_verb_with_default_operands(verb, [local.whole_sge()], remote).with_id(1),
                wr_of_verb_with_default_operands(verb, [local.whole_sge()], remote).with_id(2),
                send([]).with_id(3),
            ]);
            if flaw == AccessFlaw::QpLacksRight {
                pair.a.await_send_completion().expect_failed(1, &accepted_statuses_if_qp_lacks_right(env));
            } else {
                pair.a.await_send_completion().expect_failed(1, &[IBV_WC_REM_ACCESS_ERR]);
            }
            pair.a.await_send_completion().expect_flushed(2);
            pair.a.await_send_completion().expect_flushed(3);
            pair.a.await_recv_completion().expect_flushed(9);
            assert_eq!(pair.a.qp.query_state(), IBV_QPS_ERR);
            assert_eq!(local.memory.read(0, local.memory.len()), before, "the requester's memory");
            target.memory.assert_filled_with(0, 3 * REGION_BYTES, 0);
            let wc = pair.b.await_recv_completion();
            if verb == Verb::RdmaWriteWithImm && wc.status() != IBV_WC_WR_FLUSH_ERR {
                // The NIC may already have consumed the receive for the immediate.
                wc.expect_failed(8, &env.accepted_failure_statuses(IBV_WC_LOC_ACCESS_ERR));
            } else {
                wc.expect_flushed(8);
            }
            pair.b.qp.await_state(IBV_QPS_ERR);
            if env.expects_capability(NicCapability::Events) && env.expects_capability(NicCapability::ErrorEvents) {
                let event = pair.b.ctx.await_async_event_but_comm_est();
                assert!(event.concerns_qp(&pair.b.qp));
                let kinds = [IBV_EVENT_QP_ACCESS_ERR, IBV_EVENT_QP_REQ_ERR, IBV_EVENT_QP_FATAL];
                assert!(kinds.contains(&event.kind()), "event {}", event.kind());
            }
        }
    }
}

/// A responder on RC does not validate the R_Key of a READ or WRITE of zero bytes, with or without immediate data (IBTA
/// vol. 1, C9-88).
fn remote_zero_bytes_need_no_key(env: &TestEnv) {
    let pair = QpSpec::rc().create_connected_pair(env);
    let nowhere = RemoteAddress {
        addr: 0xdead_0000,
        rkey: 0x1234,
    };
    pair.a.post(write([], nowhere).with_id(1));
    pair.a.await_send_completion().expect_sent(1, Verb::RdmaWrite);
    if env.expects_capability(NicCapability::Read) {
        pair.a.post(read([], nowhere).with_id(2));
        pair.a.await_send_completion().expect_sent(2, Verb::RdmaRead);
    }
    pair.b.post_recv(3, []);
    pair.a.post(crate::wr::write_imm([], nowhere, 77).with_id(4));
    let wc = pair.b.await_recv_completion();
    wc.expect_success(3, IBV_WC_RECV_RDMA_WITH_IMM);
    assert_eq!((wc.raw().byte_len, wc.imm()), (0, Some(77)));
    pair.a.await_send_completion().expect_sent(4, Verb::RdmaWriteWithImm);
}

fn remote_rights_do_not_imply_each_other(env: &TestEnv) {
    let rights = [IBV_ACCESS_REMOTE_WRITE, IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_ATOMIC];
    for granted in rights {
        for (verb, needed) in one_sided_verbs_and_needed_access(env) {
            record_case(format!("{verb:?} with {granted:#x}"));
            let pair = QpSpec::rc().create_connected_pair(env);
            let target = pair.b.alloc_buf_with_access(8, granted | IBV_ACCESS_LOCAL_WRITE);
            let local = pair.a.alloc_buf(8);
            pair.b.post_recv(1, []);
            pair.a.post(wr_of_verb_with_default_operands(verb, [local.whole_sge()], target.remote_address()).with_id(2));
            let wc = pair.a.await_send_completion();
            if needed == granted {
                wc.expect_sent(2, verb);
            } else {
                wc.expect_failed(2, &[IBV_WC_REM_ACCESS_ERR]);
            }
        }
    }
}

/// UC has no NAK: the request is dropped, and the connection remains usable (IBTA vol. 1, 9.9.3.3, class D).
fn a_refused_write_on_uc_is_dropped(env: &TestEnv) {
    for memory in MemKind::distinct_on_provider(env) {
        let pair = QpSpec::uc().with_memory_kind(memory).create_connected_pair(env);
        let source = pair.a.alloc_buf(64);
        source.memory.fill_with_pattern(1);
        let target = pair.b.alloc_buf(64);
        let unwritable = pair.b.alloc_buf_with_access(64, IBV_ACCESS_LOCAL_WRITE);
        let wrong_key = RemoteAddress {
            rkey: target.mr.rkey() ^ 0x10,
            ..target.remote_address()
        };
        for remote in [wrong_key, target.remote_address().plus(8), unwritable.remote_address()] {
            pair.a.post(write([source.whole_sge()], remote).with_id(1));
            pair.a.await_send_completion().expect_sent(1, Verb::RdmaWrite);
        }
        target.memory.assert_filled_with(0, 64, 0);
        unwritable.memory.assert_filled_with(0, 64, 0);
        pair.b.rcq.expect_empty();
        assert_eq!(pair.b.qp.query_state(), IBV_QPS_RTS);
        pair.check_transfers_both_ways();
        // Later messages on the connection arrive after the WRITEs, so the WRITEs are lost and not merely
        // delayed.
        target.memory.assert_filled_with(0, 64, 0);
        unwritable.memory.assert_filled_with(0, 64, 0);
    }
}

/// Returns the statuses that a request may have if the QP lacks the access right.
///
/// The statuses are a remote access error and a remote invalid request error. The latter is the status for an operation
/// that the receive queue does not support (IBTA vol. 1, 11.6.2).
fn accepted_statuses_if_qp_lacks_right(env: &TestEnv) -> Vec<ibv_wc_status> {
    let mut statuses = vec![IBV_WC_REM_ACCESS_ERR];
    if !env.expects_capability(NicCapability::ErrorStatuses) {
        statuses.push(IBV_WC_REM_INV_REQ_ERR);
    }
    statuses
}

fn set_qp_access_flags(pair: &QpPair, access: i32) {
    let mut attr = ibv_qp_attr::zeroed();
    attr.qp_access_flags = access.cast_unsigned();
    pair.b.qp.modify(&attr, IBV_QP_ACCESS_FLAGS).expect("RTS to RTS");
}

fn remote_rights_of_a_queue_pair_can_change(env: &TestEnv) {
    let pair = QpSpec::rc().with_access(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE).create_connected_pair(env);
    let target = pair.b.alloc_buf(8);
    let local = pair.a.alloc_buf(8);
    pair.a.post(write([local.whole_sge()], target.remote_address()).with_id(1));
    pair.a.await_send_completion().expect_sent(1, Verb::RdmaWrite);
    set_qp_access_flags(&pair, IBV_ACCESS_REMOTE_READ);
    pair.a.post(read([local.whole_sge()], target.remote_address()).with_id(2));
    pair.a.await_send_completion().expect_sent(2, Verb::RdmaRead);
    pair.a.post(write([local.whole_sge()], target.remote_address()).with_id(3));
    pair.a.await_send_completion().expect_failed(3, &accepted_statuses_if_qp_lacks_right(env));
}

/// A peer uses a key before and after the deregistration of its region.
fn a_deregistered_remote_region_is_refused(env: &TestEnv) {
    for memory in MemKind::distinct_on_provider(env) {
        record_case(format!("{memory:?}"));
        let pair = QpSpec::rc().with_memory_kind(memory).create_connected_pair(env);
        let local = pair.a.alloc_buf(4096);
        local.memory.fill_with_pattern(1);
        let target = pair.b.alloc_buf(4096);
        for i in 0..10 {
            pair.a.post(write([local.whole_sge()], target.remote_address()).with_id(i));
            pair.a.await_send_completion().expect_sent(i, Verb::RdmaWrite);
        }
        target.memory.assert_whole_pattern(1);
        let remote = target.remote_address();
        assert_eq!(target.mr.try_destroy(), 0);
        local.memory.fill_with_pattern(2);
        pair.a.post(write([local.whole_sge()], remote).with_id(99));
        pair.a.await_send_completion().expect_failed(99, &[IBV_WC_REM_ACCESS_ERR]);
        target.memory.assert_whole_pattern(1);
    }
}

/// A WRITE to a range that is partly outside the region changes no byte inside it.
fn a_write_partly_outside_its_region_changes_nothing(env: &TestEnv) {
    for memory in MemKind::distinct_on_provider(env) {
        let pair = QpSpec::rc().with_memory_kind(memory).create_connected_pair(env);
        let local = pair.a.alloc_buf(200);
        local.memory.fill_with_pattern(1);
        let memory = ZeroedMemory::new(env, memory, 400);
        let mr = pair.b.pd.try_reg(memory.as_ptr(), 100, ALL_ACCESS).expect("ibv_reg_mr");
        let remote = RemoteAddress {
            addr: memory.addr(),
            rkey: mr.rkey(),
        };
        pair.a.post(write([local.whole_sge()], remote).with_id(1));
        pair.a.await_send_completion().expect_failed(1, &[IBV_WC_REM_ACCESS_ERR]);
        memory.assert_filled_with(0, 400, 0);
    }
}
