//! Tests of the flags of a send WR: inline, signaled, fence.

use verbs_abi::*;

use crate::test_env::NicCapability;
use crate::harness::record_case;
use crate::memory::{MemKind, ZeroedMemory};
use crate::pair::{QpPair, QpSide, QpSpec};
use crate::wr::{RemoteAddress, SendWr, Verb, wr_of_verb_with_default_operands, fetch_add, read, send, write};
use crate::{TestEnv, pattern};

tests! { "flags";
    rc_send_inline [Inline] => |env| check_inline_payload_is_copied_at_post(env, &QpSpec::rc(), Verb::Send),
    rc_send_with_imm_inline [Inline] => |env| check_inline_payload_is_copied_at_post(env, &QpSpec::rc(), Verb::SendWithImm),
    rc_rdma_write_inline [Inline] => |env| check_inline_payload_is_copied_at_post(env, &QpSpec::rc(), Verb::RdmaWrite),
    rc_rdma_write_with_imm_inline [Inline] => |env| check_inline_payload_is_copied_at_post(env, &QpSpec::rc(), Verb::RdmaWriteWithImm),
    uc_send_inline [Inline, Uc] => |env| check_inline_payload_is_copied_at_post(env, &QpSpec::uc(), Verb::Send),
    uc_rdma_write_inline [Inline, Uc] => |env| check_inline_payload_is_copied_at_post(env, &QpSpec::uc(), Verb::RdmaWrite),
    ud_send_inline [Inline, Ud] => |env| check_inline_payload_is_copied_at_post(env, &QpSpec::ud(), Verb::Send),
    ud_send_with_imm_inline [Inline, Ud] => |env| check_inline_payload_is_copied_at_post(env, &QpSpec::ud(), Verb::SendWithImm),
    inline_needs_no_memory_region [Inline],
    inline_gathers [Inline],
    inline_beyond_the_limit_is_refused [Inline],
    limits_hold_for_inline_sends_posted_one_by_one [Inline],
    inline_asked_for_is_granted [Inline],
    inline_waits_for_a_receive [Inline],
    unsignaled_makes_no_completion [],
    unsignaled_failures_complete_all_the_same [],
    sq_sig_all_signals_everything [],
    one_in_eight_signaled_for_ever [],
    unsignaled_sends_go_without_polling [],
    fence_waits_for_a_read [Read],
    fence_waits_for_an_atomic [Atomics],
    all_flags_at_once [Inline],
}

fn post_recv_if_needed(pair: &QpPair, verb: Verb, wr_id: u64, target: &crate::objects::Buf) {
    if verb.is_send() {
        pair.b.post_recv(wr_id, [target.whole_sge()]);
    } else if verb.has_imm() {
        pair.b.post_recv(wr_id, []);
    }
}

/// Sends inline payloads of every length up to the limit, from one SGE and from two; overwrites the buffer as soon as the
/// post returns.
fn check_inline_payload_is_copied_at_post(env: &TestEnv, spec: &QpSpec, verb: Verb) {
    for memory in MemKind::distinct_on_provider(env) {
        let pair = spec.clone().with_memory_kind(memory).create_connected_pair(env);
        let max = pair.a.granted_cap.max_inline_data as usize;
        assert!(max >= 64, "asked for 64 bytes inline, got {max}");
        let grh = pair.b.grh_len();
        let source = pair.a.alloc_buf(max);
        let target = pair.b.alloc_buf(grh + max);
        let lengths = (0..=max).filter(|len| *len <= 130 || *len + 3 > max);
        // UCX posts a short header and the program's data.
        let in_one_and_two_sges = lengths.flat_map(|len| [(len, vec![]), (len, vec![len.min(9)])]);
        for (i, (len, cuts)) in in_one_and_two_sges.enumerate() {
            record_case(format!("{verb:?} of {len} bytes inline, cut at {cuts:?}, {memory:?}"));
            let seed = i as u64 + 1;
            target.memory.write(0, &vec![0xee; grh + max]);
            source.memory.fill_pattern_at(0, len, seed);
            post_recv_if_needed(&pair, verb, seed, &target);
            let at = target.remote_address().plus(grh as u64);
            let sges = source.sges_cut_at(0, len, &cuts);
            pair.a.post(wr_of_verb_with_default_operands(verb, sges, at).with_id(seed).inlined());
            source.memory.write(0, &vec![0; max]);
            if let Some(opcode) = verb.recv_wc_opcode() {
                pair.b.await_recv_completion().expect_success(seed, opcode);
            }
            pair.a.await_send_completion().expect_sent(seed, verb);
            target.memory.await_pattern_at(grh, len, seed);
            target.memory.assert_filled_with(grh + len, max - len, 0xee);
        }
    }
}

/// `ibv_post_send(3)`: with IBV_SEND_INLINE the L_Key is ignored.
fn inline_needs_no_memory_region(env: &TestEnv) {
    let pair = QpSpec::rc().create_connected_pair(env);
    let memory = ZeroedMemory::alloc_heap(64);
    memory.fill_with_pattern(3);
    let target = pair.b.alloc_buf(64);
    let sge = ibv_sge {
        addr: memory.addr(),
        length: 64,
        lkey: 0xdead_beef,
    };
    pair.a.post(write([sge], target.remote_address()).inlined());
    drop(memory);
    pair.a.await_send_completion().expect_sent(0, Verb::RdmaWrite);
    target.memory.assert_whole_pattern(3);
}

fn inline_gathers(env: &TestEnv) {
    let pair = QpSpec::rc().create_connected_pair(env);
    let source = pair.a.alloc_buf(64);
    source.memory.fill_with_pattern(8);
    let target = pair.b.alloc_buf(64);
    for cuts in [[1, 2, 3], [0, 0, 0], [8, 8, 8], [31, 0, 1]] {
        record_case(format!("{cuts:?}"));
        target.memory.write(0, &[0; 64]);
        pair.a.post(write(source.sges_cut_at(0, 64, &cuts), target.remote_address()).inlined());
        pair.a.await_send_completion().expect_sent(0, Verb::RdmaWrite);
        target.memory.assert_whole_pattern(8);
        pair.b.post_recv(1, [target.whole_sge()]);
        target.memory.write(0, &[0; 64]);
        pair.a.post(send(source.sges_cut_at(0, 64, &cuts)).inlined());
        pair.b.await_recv_completion().expect_received(1, 64);
        pair.a.await_send_completion().expect_sent(0, Verb::Send);
        target.memory.assert_whole_pattern(8);
    }
}

/// The post returns EINVAL by the provider's check, or ENOMEM (as mlx5 does if the WQE is too small).
fn inline_beyond_the_limit_is_refused(env: &TestEnv) {
    let mut specs = vec![(QpSpec::rc(), Verb::Send), (QpSpec::rc(), Verb::RdmaWrite)];
    if env.expects_capability(NicCapability::Ud) {
        specs.push((QpSpec::ud(), Verb::Send));
    }
    for (spec, verb) in specs {
        for sges in [1, 3] {
            record_case(format!("QP type {}, {verb:?}, {sges} SGEs", spec.qp_type));
            let pair = spec.create_connected_pair(env);
            let max = pair.a.granted_cap.max_inline_data as usize;
            let source = pair.a.alloc_buf(max + 1);
            let target = pair.b.alloc_buf(max + 1);
            let cuts = vec![max / 4; sges - 1];
            let wr = wr_of_verb_with_default_operands(verb, source.sges_cut_at(0, max + 1, &cuts), target.remote_address()).inlined();
            let first = pair.a.add_ud_destination_if_missing(wr_of_verb_with_default_operands(verb, [source.sge(0, 1)], target.remote_address()).with_id(1).unsignaled());
            let refused = pair.a.qp.try_post_sends(vec![first, pair.a.add_ud_destination_if_missing(wr)]);
            let refused = refused.expect_err("more inline data than there is room");
            assert!([libc::EINVAL, libc::ENOMEM].contains(&refused.errno), "{refused:?}");
            assert_eq!(refused.bad_wr_index, Some(1));
        }
    }
}

/// A provider may have a separate fast path for messages that a program posts one by one.
fn limits_hold_for_inline_sends_posted_one_by_one(env: &TestEnv) {
    let mut specs = vec![QpSpec::rc()];
    if env.expects_capability(NicCapability::Ud) {
        specs.push(QpSpec::ud());
    }
    for spec in specs {
        record_case(format!("QP type {}", spec.qp_type));
        let pair = spec.with_change(|s| s.max_send_sge = 1).create_connected_pair(env);
        let cap = pair.a.granted_cap;
        let max = cap.max_inline_data as usize;
        let source = pair.a.alloc_buf(max + 1);
        let target = pair.b.alloc_buf(pair.b.grh_len() + max);
        let inline = |sges| pair.a.add_ud_destination_if_missing(send(sges).with_id(1).inlined());
        for _ in 0..100 {
            pair.b.post_recv(1, [target.whole_sge()]);
            pair.a.qp.post(inline(vec![source.sge(0, max)]));
            pair.b.await_recv_completion().expect_received(1, pair.b.grh_len() + max);
            pair.a.await_send_completion().expect_sent(1, Verb::Send);
        }
        let too_many_sges = vec![source.sge(0, 1); cap.max_send_sge as usize + 1];
        let too_long = source.sges_cut_at(0, max + 1, &vec![1; (cap.max_send_sge as usize - 1).min(1)]);
        for sges in [too_many_sges, too_long] {
            let refused = pair.a.qp.try_post_sends(vec![inline(sges)]).expect_err("beyond a limit");
            assert!([libc::EINVAL, libc::ENOMEM].contains(&refused.errno), "{refused:?}");
        }
        if env.expects_capability(NicCapability::ImmediateChecks) {
            let negative = pair.a.qp.try_post_with_num_sge(inline(vec![source.sge(0, 1)]), -1);
            assert_eq!(negative, Err(libc::EINVAL));
        }
    }
}

fn inline_asked_for_is_granted(env: &TestEnv) {
    for wanted in [0, 1, 8, 60, 64, 100] {
        let side = QpSpec::rc().with_change(|s| s.max_inline_data = wanted).create_qp_side(env);
        assert!(side.granted_cap.max_inline_data >= wanted, "{} for {wanted}", side.granted_cap.max_inline_data);
    }
}

/// The NIC keeps the copy of the inline payload as long as the WR is outstanding.
fn inline_waits_for_a_receive(env: &TestEnv) {
    let pair = QpSpec::rc().create_connected_pair(env);
    let source = pair.a.alloc_buf(64);
    let target = pair.b.alloc_buf(10 * 64);
    for i in 0..10 {
        source.memory.fill_with_pattern(i);
        pair.a.post(send([source.whole_sge()]).with_id(i).inlined());
    }
    source.memory.write(0, &[0; 64]);
    for i in 0..10 {
        pair.b.post_recv(i, [target.sge(i * 64, 64)]);
    }
    for i in 0..10 {
        pair.b.await_recv_completion().expect_received(i, 64);
        pair.a.await_send_completion().expect_sent(i, Verb::Send);
        target.memory.assert_pattern_at(usize::try_from(i).unwrap() * 64, 64, i);
    }
}

fn unsignaled_makes_no_completion(env: &TestEnv) {
    let mut specs = vec![QpSpec::rc()];
    if env.expects_capability(NicCapability::Uc) {
        specs.push(QpSpec::uc());
    }
    if env.expects_capability(NicCapability::Ud) {
        specs.push(QpSpec::ud());
    }
    for spec in specs {
        record_case(format!("QP type {}", spec.qp_type));
        let pair = spec.create_connected_pair(env);
        let buf = pair.a.alloc_buf(8);
        let target = pair.b.alloc_buf(64);
        for i in 0..8 {
            pair.b.post_recv(i, [target.whole_sge()]);
            pair.a.post(send([buf.whole_sge()]).with_id(i).unsignaled());
            pair.b.await_recv_completion().expect_received(i, 8 + pair.b.grh_len());
        }
        pair.a.scq.expect_empty();
        pair.b.post_recv(8, [target.whole_sge()]);
        pair.a.post(send([buf.whole_sge()]).with_id(8));
        pair.a.await_send_completion().expect_sent(8, Verb::Send);
        pair.a.scq.expect_empty();
    }
}

/// IBTA vol. 1, 10.7.3.1: a failed WR has a completion, signaled or not.
fn unsignaled_failures_complete_all_the_same(env: &TestEnv) {
    let pair = QpSpec::rc().create_connected_pair(env);
    let buf = pair.a.alloc_buf(8);
    let nowhere = RemoteAddress {
        addr: 8,
        rkey: 0xbad,
    };
    pair.a.post(write([buf.whole_sge()], nowhere).with_id(1).unsignaled());
    pair.a.await_send_completion().expect_failed(1, &[IBV_WC_REM_ACCESS_ERR]);
    pair.a.post(write([buf.whole_sge()], nowhere).with_id(2).unsignaled());
    pair.a.await_send_completion().expect_flushed(2);
}

fn sq_sig_all_signals_everything(env: &TestEnv) {
    let pair = QpSpec::rc().with_change(|s| s.sig_all = true).create_connected_pair(env);
    let buf = pair.a.alloc_buf(8);
    let target = pair.b.alloc_buf(8);
    for i in 0..20 {
        pair.a.post(write([buf.whole_sge()], target.remote_address()).with_id(i).unsignaled());
        pair.a.await_send_completion().expect_sent(i, Verb::RdmaWrite);
        pair.b.post_recv(i, []);
        pair.a.post(SendWr::new(Verb::Send, []).with_id(i).unsignaled());
        pair.a.await_send_completion().expect_sent(i, Verb::Send);
        pair.b.await_recv_completion().expect_received(i, 0);
    }
    pair.a.scq.expect_empty();
}

/// A completion frees the slots of all earlier WRs, so the send queue never becomes full.
fn one_in_eight_signaled_for_ever(env: &TestEnv) {
    let mut specs = vec![(QpSpec::rc(), Verb::RdmaWrite), (QpSpec::rc(), Verb::Send)];
    if env.expects_capability(NicCapability::Ud) {
        specs.push((QpSpec::ud(), Verb::Send));
    }
    if env.expects_capability(NicCapability::Uc) {
        specs.push((QpSpec::uc(), Verb::RdmaWrite));
    }
    for (spec, verb) in specs {
        record_case(format!("QP type {}, {verb:?}", spec.qp_type));
        let pair = spec.create_connected_pair(env);
        let buf = pair.a.alloc_buf(8);
        let target = pair.b.alloc_buf(64);
        for round in 0..100u64 {
            if verb.is_send() {
                for i in 0..8 {
                    pair.b.post_recv(i, [target.whole_sge()]);
                }
            }
            let wrs = (0..8).map(|i| {
                let wr = wr_of_verb_with_default_operands(verb, [buf.whole_sge()], target.remote_address()).with_id(round * 8 + i);
                if i == 7 { wr } else { wr.unsignaled() }
            });
            pair.a.post_sends(wrs.collect());
            if verb.is_send() {
                for (i, wc) in pair.b.rcq.wait_for_completions(8).iter().enumerate() {
                    wc.expect_received(i as u64, 8 + pair.b.grh_len());
                }
            }
            pair.a.await_send_completion().expect_sent(round * 8 + 7, verb);
        }
        pair.a.scq.expect_empty();
    }
}

/// A program that sends without completions does not poll its send CQ. All its messages are sent
/// nevertheless, even if they exceed the NIC's buffers.
fn unsignaled_sends_go_without_polling(env: &TestEnv) {
    for (len, n) in [(0, 500u64), (64, 500), (1000, 500), (5000, 200), (50_000, 60)] {
        record_case(format!("{n} messages of {len} bytes"));
        let pair = QpSpec::rc().with_queue_depth(512).create_connected_pair(env);
        let source = pair.a.alloc_buf(len + 8);
        let target = pair.b.alloc_buf(len + 8);
        source.memory.fill_with_pattern(len as u64);
        let inline = if len == 64 && env.expects_capability(NicCapability::Inline) { IBV_SEND_INLINE } else { 0 };
        for i in 0..n {
            pair.a.post(send([source.sge(0, len)]).with_id(i).unsignaled().with_flag(inline));
        }
        for i in 0..n {
            pair.b.post_recv(i, [target.sge(0, len)]);
            pair.b.await_recv_completion().expect_received(i, len);
        }
        target.memory.assert_pattern_at(0, len, len as u64);
    }
}

/// IBTA vol. 1, 10.8.3.3: a fenced WR starts after all earlier READs and atomics have completed. It may
/// therefore send the results of these READs and atomics.
fn fence_waits_for_a_read(env: &TestEnv) {
    for memory in MemKind::distinct_on_provider(env) {
        let pair = QpSpec::rc().with_memory_kind(memory).create_connected_pair(env);
        for (seed, len) in [(1, 8), (2, 4096), (3, 1 << 20), (4, 64)] {
            record_case(format!("{len} bytes, {memory:?}"));
            let remote = pair.b.alloc_buf(len);
            let target = pair.b.alloc_buf(len);
            let between = pair.a.alloc_buf(len);
            remote.memory.fill_with_pattern(seed);
            pair.b.post_recv(1, [target.whole_sge()]);
            pair.a.post_sends(vec![
                read([between.whole_sge()], remote.remote_address()).with_id(1).unsignaled(),
                send([between.whole_sge()]).with_id(2).with_flag(IBV_SEND_FENCE),
            ]);
            pair.b.await_recv_completion().expect_received(1, len);
            pair.a.await_send_completion().expect_sent(2, Verb::Send);
            target.memory.assert_whole_pattern(seed);
        }
    }
}

fn fence_waits_for_an_atomic(env: &TestEnv) {
    let pair = QpSpec::rc().create_connected_pair(env);
    let word = pair.b.alloc_buf(8);
    let copy = pair.b.alloc_buf(8);
    let result = pair.a.alloc_buf(8);
    for old in 0..50 {
        pair.a.post_sends(vec![
            fetch_add(result.whole_sge(), word.remote_address(), 1).unsignaled(),
            write([result.whole_sge()], copy.remote_address()).with_id(old).with_flag(IBV_SEND_FENCE),
        ]);
        pair.a.await_send_completion().expect_sent(old, Verb::RdmaWrite);
        assert_eq!(copy.memory.load(0), old);
    }
}

fn all_flags_at_once(env: &TestEnv) {
    let flags = IBV_SEND_FENCE | IBV_SEND_SOLICITED | IBV_SEND_INLINE | IBV_SEND_SIGNALED;
    let go = |side: &QpSide, peer: &QpSide| {
        let source = side.alloc_buf(16);
        let target = peer.alloc_buf(16);
        source.memory.write(0, &pattern(6, 16));
        peer.post_recv(1, [target.whole_sge()]);
        side.post(send([source.whole_sge()]).with_id(2).with_flag(flags));
        peer.await_recv_completion().expect_received(1, 16);
        side.await_send_completion().expect_sent(2, Verb::Send);
        target.memory.assert_whole_pattern(6);
    };
    let pair = QpSpec::rc().create_connected_pair(env);
    go(&pair.a, &pair.b);
    go(&pair.b, &pair.a);
}
