//! Every verb of every transport moves exactly the specified bytes, and completes correctly.

use crate::harness::record_case;
use crate::memory::MemKind;
use crate::objects::Buf;
use crate::pair::{QpPair, QpSide, QpSpec};
use crate::wr::{SendWr, Verb, wr_of_verb_with_default_operands};
use crate::{TestEnv, Rng};
use verbs_abi::{IBV_MTU_256, IBV_QPT_UD, ibv_sge};

tests! { "data";
    rc_send [] => |env| check_verb_moves_data(env, &QpSpec::rc(), Verb::Send),
    rc_send_with_imm [] => |env| check_verb_moves_data(env, &QpSpec::rc(), Verb::SendWithImm),
    rc_rdma_write [] => |env| check_verb_moves_data(env, &QpSpec::rc(), Verb::RdmaWrite),
    rc_rdma_write_with_imm [] => |env| check_verb_moves_data(env, &QpSpec::rc(), Verb::RdmaWriteWithImm),
    rc_rdma_read [Read] => |env| check_verb_moves_data(env, &QpSpec::rc(), Verb::RdmaRead),
    uc_send [Uc] => |env| check_verb_moves_data(env, &QpSpec::uc(), Verb::Send),
    uc_send_with_imm [Uc] => |env| check_verb_moves_data(env, &QpSpec::uc(), Verb::SendWithImm),
    uc_rdma_write [Uc] => |env| check_verb_moves_data(env, &QpSpec::uc(), Verb::RdmaWrite),
    uc_rdma_write_with_imm [Uc] => |env| check_verb_moves_data(env, &QpSpec::uc(), Verb::RdmaWriteWithImm),
    ud_send [Ud] => |env| check_verb_moves_data(env, &QpSpec::ud(), Verb::Send),
    ud_send_with_imm [Ud] => |env| check_verb_moves_data(env, &QpSpec::ud(), Verb::SendWithImm),
    rc_send_with_srq [Srq] => |env| check_verb_moves_data(env, &QpSpec::rc().with_srq(), Verb::Send),
    rc_rdma_write_with_imm_with_srq [Srq] => |env| check_verb_moves_data(env, &QpSpec::rc().with_srq(), Verb::RdmaWriteWithImm),
    uc_send_with_srq [Uc, Srq] => |env| check_verb_moves_data(env, &QpSpec::uc().with_srq(), Verb::SendWithImm),
    ud_send_with_srq [Ud, Srq] => |env| check_verb_moves_data(env, &QpSpec::ud().with_srq(), Verb::SendWithImm),
    rc_send_scatters_and_gathers [] => |env| check_verb_gathers_and_scatters(env, &QpSpec::rc(), Verb::Send),
    rc_send_with_imm_scatters_and_gathers [] => |env| check_verb_gathers_and_scatters(env, &QpSpec::rc(), Verb::SendWithImm),
    rc_rdma_write_gathers [] => |env| check_verb_gathers_and_scatters(env, &QpSpec::rc(), Verb::RdmaWrite),
    rc_rdma_write_with_imm_gathers [] => |env| check_verb_gathers_and_scatters(env, &QpSpec::rc(), Verb::RdmaWriteWithImm),
    rc_rdma_read_scatters [Read] => |env| check_verb_gathers_and_scatters(env, &QpSpec::rc(), Verb::RdmaRead),
    uc_send_scatters_and_gathers [Uc] => |env| check_verb_gathers_and_scatters(env, &QpSpec::uc(), Verb::Send),
    uc_rdma_write_gathers [Uc] => |env| check_verb_gathers_and_scatters(env, &QpSpec::uc(), Verb::RdmaWrite),
    ud_send_scatters_and_gathers [Ud] => |env| check_verb_gathers_and_scatters(env, &QpSpec::ud(), Verb::Send),
    a_receive_may_be_larger_than_the_message [],
    a_receive_may_reach_past_its_region_on_rc [] => |env| recv_sge_may_exceed_region_if_message_fits(env, &QpSpec::rc()),
    a_receive_may_reach_past_its_region_on_uc [Uc] => |env| recv_sge_may_exceed_region_if_message_fits(env, &QpSpec::uc()),
    a_receive_may_reach_past_its_region_on_ud [Ud] => |env| recv_sge_may_exceed_region_if_message_fits(env, &QpSpec::ud()),
    a_shared_receive_may_reach_past_its_region [Srq] => |env| recv_sge_may_exceed_region_if_message_fits(env, &QpSpec::rc().with_srq()),
    header_only_messages [],
    rc_to_itself [],
    uc_to_itself [Uc] => |env| check_qp_connected_to_itself(env, &QpSpec::uc()),
    both_ways_at_once [],
    a_wr_mixes_private_and_shared_sges [],
    a_burst_of_large_messages [],
    random_mix_on_rc [Read, Atomics],
}

/// Returns message lengths that fit into one message of the side's transport.
pub(super) fn message_lengths(side: &QpSide) -> Vec<usize> {
    let mtu = active_port_mtu_bytes(side);
    if side.grh_len() > 0 {
        vec![0, 1, 8, 63, 64, 65, 200, mtu - 1, mtu]
    } else {
        vec![0, 1, 8, 63, 64, 65, 200, mtu - 1, mtu, mtu + 1, 4096, 4097, 10_000, 65_536, 1 << 20]
    }
}

/// Returns the active MTU of the port, in bytes.
pub(super) fn active_port_mtu_bytes(side: &QpSide) -> usize {
    256 << (side.ctx.port_attr().active_mtu - IBV_MTU_256)
}

fn check_verb_moves_data(env: &TestEnv, spec: &QpSpec, verb: Verb) {
    for memory in MemKind::distinct_on_provider(env) {
        let pair = spec.clone().with_memory_kind(memory).create_connected_pair(env);
        for (i, len) in message_lengths(&pair.a).into_iter().enumerate() {
            record_case(format!("{verb:?} of {len} bytes, {memory:?} memory"));
            transfer_and_check(&pair, verb, len, i as u64 + 1, &[], &[]);
        }
    }
}

fn check_verb_gathers_and_scatters(env: &TestEnv, spec: &QpSpec, verb: Verb) {
    let cuts: [&[usize]; 8] =
        [&[], &[0], &[1], &[7, 0, 9], &[1, 1, 1], &[64], &[0, 0, 0], &[13, 100, 3]];
    for memory in MemKind::distinct_on_provider(env) {
        let pair = spec.clone().with_memory_kind(memory).create_connected_pair(env);
        let mut rng = Rng::new(1);
        for len in [150, 256] {
            for (i, source) in cuts.iter().enumerate() {
                for (j, target) in cuts.iter().enumerate() {
                    // A READ does not gather and a WRITE does not scatter, so one round suffices.
                    let one_sided = !verb.is_send();
                    if one_sided && (if verb == Verb::RdmaRead { i } else { j }) > 0 {
                        continue;
                    }
                    record_case(format!("{verb:?} of {len} bytes, SGEs cut at {source:?} and {target:?}, {memory:?}"));
                    transfer_and_check(&pair, verb, len, rng.next_u64(), source, target);
                }
            }
        }
    }
}

/// Number of bytes on each side of a target that must stay unchanged.
const GUARD_BYTES: usize = 24;

/// Returns a receive buffer with margins, filled with 0xee.
fn guarded_recv_buffer(side: &QpSide, len: usize) -> Buf {
    let buf = side.alloc_buf(len + 2 * GUARD_BYTES);
    buf.memory.write(0, &vec![0xee; len + 2 * GUARD_BYTES]);
    buf
}

#[track_caller]
fn check_payload_and_guards(buf: &Buf, grh: usize, len: usize, seed: u64) {
    buf.memory.assert_filled_with(0, GUARD_BYTES, 0xee);
    buf.memory.await_pattern_at(GUARD_BYTES + grh, len, seed);
    buf.memory.assert_filled_with(GUARD_BYTES + grh + len, GUARD_BYTES, 0xee);
}

/// Sends one message from `a` to `b` (READ: reads `b`'s memory into `a`), and checks all effects.
#[track_caller]
fn transfer_and_check(pair: &QpPair, verb: Verb, len: usize, seed: u64, source_cuts: &[usize], target_cuts: &[usize]) {
    let (a, b) = (&pair.a, &pair.b);
    let margin = GUARD_BYTES as u64;
    let imm = u32::try_from(seed & 0xffff_ffff).expect("masked");
    let wr_id = seed ^ 0xabcd;
    if verb == Verb::RdmaRead {
        let source = b.alloc_buf(len + GUARD_BYTES);
        source.memory.fill_pattern_at(GUARD_BYTES, len, seed);
        let target = guarded_recv_buffer(a, len);
        let sges = target.sges_cut_at(margin, len, target_cuts);
        a.post(wr_of_verb_with_default_operands(verb, sges, source.remote_address().plus(margin)).with_id(wr_id));
        a.await_send_completion().expect_sent(wr_id, verb);
        check_payload_and_guards(&target, 0, len, seed);
        assert!(b.rcq.poll(1).is_empty());
        return;
    }
    let grh = b.grh_len();
    let source = a.alloc_buf(len + GUARD_BYTES);
    source.memory.fill_pattern_at(GUARD_BYTES, len, seed);
    let sges = source.sges_cut_at(margin, len, source_cuts);
    let target = guarded_recv_buffer(b, grh + len);
    if verb.is_send() {
        b.post_recv(wr_id + 1, recv_sges_with_grh(&target, grh, len, target_cuts));
    } else if verb.has_imm() {
        b.post_recv(wr_id + 1, []);
    }
    let wr = wr_of_verb_with_default_operands(verb, sges, target.remote_address().plus(margin)).with_id(wr_id);
    a.post(if verb.has_imm() { wr.with_imm(imm) } else { wr });
    if verb.recv_wc_opcode().is_none() {
        a.await_send_completion().expect_sent(wr_id, verb);
        check_payload_and_guards(&target, grh, len, seed);
        assert!(b.rcq.poll(1).is_empty());
        return;
    }
    let wc = b.await_recv_completion();
    wc.expect_success(wr_id + 1, verb.recv_wc_opcode().expect("checked"));
    assert_eq!(wc.raw().byte_len as usize, grh + len, "byte_len");
    assert_eq!(wc.imm(), verb.has_imm().then_some(imm));
    assert_eq!(wc.qpn(), b.qp.qpn());
    check_payload_and_guards(&target, grh, len, seed);
    let wc = a.await_send_completion();
    wc.expect_sent(wr_id, verb);
    assert_eq!(wc.qpn(), a.qp.qpn());
}

/// Returns the SGEs of a receive; the first SGE also holds the GRH.
fn recv_sges_with_grh(target: &Buf, grh: usize, len: usize, cuts: &[usize]) -> Vec<ibv_sge> {
    let mut cuts = cuts.to_vec();
    if let Some(first) = cuts.first_mut() {
        *first += grh;
    }
    target.sges_cut_at(GUARD_BYTES as u64, grh + len, &cuts)
}

fn a_receive_may_be_larger_than_the_message(env: &TestEnv) {
    let mut specs = vec![QpSpec::rc()];
    if env.expects_capability(crate::NicCapability::Ud) {
        specs.push(QpSpec::ud());
    }
    if env.expects_capability(crate::NicCapability::Uc) {
        specs.push(QpSpec::uc());
    }
    for spec in specs {
        record_case(format!("QP type {}", spec.qp_type));
        let pair = spec.create_connected_pair(env);
        let grh = pair.b.grh_len();
        let target = pair.b.alloc_buf(500);
        target.memory.write(0, &[0xee; 500]);
        pair.b.post_recv(1, target.sges_cut_at(0, 500, &[grh + 10, 30, 100]));
        let source = pair.a.alloc_buf(60);
        source.memory.fill_with_pattern(5);
        pair.a.post(crate::wr::send([source.whole_sge()]).with_id(2));
        pair.b.await_recv_completion().expect_received(1, grh + 60);
        pair.a.await_send_completion().expect_sent(2, Verb::Send);
        target.memory.assert_pattern_at(grh, 60, 5);
        target.memory.assert_filled_with(grh + 60, 440 - grh, 0xee);
    }
}

/// The NIC checks the bytes that it writes, and not the whole range of the receive: `copy_data` of
/// `linux:drivers/infiniband/sw/rxe/rxe_mr.c`.
fn recv_sge_may_exceed_region_if_message_fits(env: &TestEnv, spec: &QpSpec) {
    let lens: &[usize] = if spec.qp_type == IBV_QPT_UD { &[0, 8, 1000] } else { &[0, 8, 1000, 20_000] };
    for memory in MemKind::distinct_on_provider(env) {
        for &len in lens {
            record_case(format!("{len} bytes, {memory:?}"));
            let pair = spec.clone().with_memory_kind(memory).create_connected_pair(env);
            let grh = pair.b.grh_len();
            let (source, target) = (pair.a.alloc_buf(len.max(1)), pair.b.alloc_buf(64 + grh + len));
            // The receive has one SGE, or two SGEs; the region ends behind the written bytes.
            for (seed, cut) in [(1, None), (2, Some(grh + len / 2)), (3, Some(grh))] {
                source.memory.fill_with_pattern(seed);
                let whole = ibv_sge { length: 1 << 20, ..target.sge(64, 0) };
                let sges = match cut.map(|cut| u32::try_from(cut).expect("small")) {
                    None => vec![whole],
                    Some(cut) => {
                        let rest = ibv_sge { addr: whole.addr + u64::from(cut), ..whole };
                        vec![ibv_sge { length: cut, ..whole }, rest]
                    }
                };
                pair.b.post_recv(seed, sges);
                pair.a.post(crate::wr::send([source.sge(0, len)]).with_id(seed));
                pair.b.await_recv_completion().expect_received(seed, grh + len);
                pair.a.await_send_completion().expect_sent(seed, Verb::Send);
                target.memory.await_pattern_at(64 + grh, len, seed);
            }
        }
    }
}

/// Messages that have no SGE on either side transfer only the immediate.
fn header_only_messages(env: &TestEnv) {
    let mut cases = vec![(QpSpec::rc(), Verb::Send), (QpSpec::rc(), Verb::SendWithImm)];
    if env.expects_capability(crate::NicCapability::Uc) {
        cases.push((QpSpec::uc(), Verb::SendWithImm));
    }
    if env.expects_capability(crate::NicCapability::Ud) {
        cases.push((QpSpec::ud(), Verb::SendWithImm));
    }
    for (spec, verb) in cases {
        record_case(format!("QP type {}, {verb:?}", spec.qp_type));
        let pair = spec.create_connected_pair(env);
        let grh = pair.b.grh_len();
        let target = pair.b.alloc_buf(40);
        for i in 0..50 {
            if grh > 0 {
                pair.b.post_recv(i, [target.whole_sge()]);
            } else {
                pair.b.post_recv(i, []);
            }
            let wr = SendWr::new(verb, []).with_id(i);
            let imm = u32::try_from(i).expect("small") << 24 | 0x5a;
            pair.a.post(if verb.has_imm() { wr.with_imm(imm) } else { wr });
            let wc = pair.b.await_recv_completion();
            wc.expect_received(i, grh);
            assert_eq!(wc.imm(), verb.has_imm().then_some(imm));
            pair.a.await_send_completion().expect_sent(i, verb);
        }
    }
}

fn rc_to_itself(env: &TestEnv) {
    check_qp_connected_to_itself(env, &QpSpec::rc());
}

/// A QP connected to itself receives its own sends.
fn check_qp_connected_to_itself(env: &TestEnv, spec: &QpSpec) {
    let mut side = spec.create_qp_side(env);
    let address = side.address();
    side.connect(&address);
    let source = side.alloc_buf(300);
    let target = side.alloc_buf(300);
    for seed in 0..40 {
        source.memory.fill_with_pattern(seed);
        side.post_recv(seed, [target.whole_sge()]);
        side.post(crate::wr::send([source.whole_sge()]).with_id(seed));
        side.await_recv_completion().expect_received(seed, 300);
        side.await_send_completion().expect_sent(seed, Verb::Send);
        target.memory.assert_whole_pattern(seed);
        source.memory.fill_with_pattern(seed + 1000);
        side.post(crate::wr::write([source.whole_sge()], target.remote_address()).with_id(seed));
        side.await_send_completion().expect_sent(seed, Verb::RdmaWrite);
        if spec.qp_type == verbs_abi::IBV_QPT_RC {
            target.memory.assert_whole_pattern(seed + 1000);
        }
    }
}

fn both_ways_at_once(env: &TestEnv) {
    let pair = QpSpec::rc().create_connected_pair(env);
    let sides = [&pair.a, &pair.b];
    let buffers: Vec<(Buf, Buf)> = sides.iter().map(|side| (side.alloc_buf(5000), side.alloc_buf(5000))).collect();
    for round in 0..20 {
        for (i, side) in sides.iter().enumerate() {
            side.post_recv(round, [buffers[i].1.whole_sge()]);
            buffers[i].0.memory.fill_with_pattern(round * 2 + i as u64);
        }
        for (i, side) in sides.iter().enumerate() {
            side.post(crate::wr::send([buffers[i].0.whole_sge()]).with_id(round));
        }
        for (i, side) in sides.iter().enumerate() {
            side.await_recv_completion().expect_received(round, 5000);
            buffers[i].1.memory.assert_whole_pattern(round * 2 + (1 - i as u64));
        }
        for side in sides {
            side.await_send_completion().expect_sent(round, Verb::Send);
        }
    }
}

/// A WR has SGEs of private memory and of shareable memory.
fn a_wr_mixes_private_and_shared_sges(env: &TestEnv) {
    let pair = QpSpec::rc().create_connected_pair(env);
    let of = |side: &QpSide, kind| side.pd.alloc_buf_of_kind(kind, 1000, crate::objects::ALL_ACCESS);
    let sources = MemKind::ALL.map(|kind| of(&pair.a, kind));
    let targets = MemKind::ALL.map(|kind| of(&pair.b, kind));
    sources[0].memory.fill_with_pattern(1);
    sources[1].memory.fill_with_pattern(2);
    pair.b.post_recv(1, [targets[1].whole_sge(), targets[0].whole_sge()]);
    pair.a.post(crate::wr::send([sources[0].whole_sge(), sources[1].whole_sge()]).with_id(2));
    pair.b.await_recv_completion().expect_received(1, 2000);
    pair.a.await_send_completion().expect_sent(2, Verb::Send);
    targets[1].memory.assert_whole_pattern(1);
    targets[0].memory.assert_whole_pattern(2);
}

fn a_burst_of_large_messages(env: &TestEnv) {
    for memory in MemKind::distinct_on_provider(env) {
        record_case(format!("{memory:?}"));
        let pair = QpSpec::rc().with_memory_kind(memory).create_connected_pair(env);
        const LEN: usize = 200_000;
        let source = pair.a.alloc_buf(8 * LEN);
        let target = pair.b.alloc_buf(8 * LEN);
        source.memory.fill_with_pattern(77);
        for i in 0..8 {
            pair.b.post_recv(i, [target.sge(i * LEN as u64, LEN)]);
        }
        pair.a.post_sends(
            (0..8).map(|i| crate::wr::send([source.sge(i * LEN as u64, LEN)]).with_id(i)).collect(),
        );
        for i in 0..8 {
            pair.b.await_recv_completion().expect_received(i, LEN);
        }
        for i in 0..8 {
            pair.a.await_send_completion().expect_sent(i, Verb::Send);
        }
        target.memory.assert_whole_pattern(77);
    }
}

/// Executes random verbs, lengths, SGEs, signaling and postlists, and compares `b`'s memory with a model.
/// The model executes the WRs in order.
fn random_mix_on_rc(env: &TestEnv) {
    const LEN: usize = 4096;
    for (seed, memory) in [(11, MemKind::Private), (12, MemKind::Shared)] {
        record_case(format!("seed {seed}, {memory:?}"));
        let mut rng = Rng::new(seed);
        let pair = QpSpec::rc().with_queue_depth(64).with_memory_kind(memory).create_connected_pair(env);
        let (a, b) = (&pair.a, &pair.b);
        let target = b.alloc_buf(LEN);
        let source = a.alloc_buf(64 * 256);
        let results = a.alloc_buf(64 * 256);
        let mut model = vec![0u8; LEN];
        for round in 0..150u64 {
            let count = 1 + rng.below(16);
            let mut wrs = Vec::new();
            let mut expected: Vec<(u64, Vec<u8>)> = Vec::new();
            let mut receives = Vec::new();
            source.memory.fill_with_pattern(round);
            for i in 0..count {
                let slot = i * 256;
                let len = usize::try_from(rng.below(257)).expect("small");
                let at = usize::try_from(rng.below((LEN - len) as u64 + 1)).expect("small");
                let remote = target.remote_address().plus(at as u64);
                let payload = source.memory.read(usize::try_from(slot).expect("small"), len);
                let wr = match rng.below(6) {
                    0 => {
                        model[at..at + len].copy_from_slice(&payload);
                        crate::wr::write([source.sge(slot, len)], remote)
                    }
                    1 => {
                        model[at..at + len].copy_from_slice(&payload);
                        b.post_recv(receives.len() as u64, []);
                        receives.push((len, Some(7)));
                        crate::wr::write_imm(source.sges_cut_at(slot, len, &[len / 3]), remote, 7)
                    }
                    2 => {
                        model[at..at + len].copy_from_slice(&payload);
                        b.post_recv(receives.len() as u64, [target.sge(at as u64, len)]);
                        receives.push((len, None));
                        crate::wr::send([source.sge(slot, len)])
                    }
                    3 => {
                        expected.push((slot, model[at..at + len].to_vec()));
                        crate::wr::read([results.sge(slot, len)], remote)
                    }
                    kind => {
                        let at = at & !7 & (LEN - 8);
                        let remote = target.remote_address().plus(at as u64);
                        let word: [u8; 8] = model[at..at + 8].try_into().expect("eight");
                        expected.push((slot, word.to_vec()));
                        let old = u64::from_ne_bytes(word);
                        let sge = results.sge(slot, 8);
                        let (new, wr) = if kind == 4 {
                            let add = rng.next_u64();
                            (old.wrapping_add(add), crate::wr::fetch_add(sge, remote, add))
                        } else {
                            let compare = if rng.one_in(2) { old } else { !old };
                            let swap = rng.next_u64();
                            let new = if compare == old { swap } else { old };
                            (new, crate::wr::cmp_swp(sge, remote, compare, swap))
                        };
                        model[at..at + 8].copy_from_slice(&new.to_ne_bytes());
                        wr
                    }
                };
                let wr = wr.with_id(round << 8 | i);
                let last = i + 1 == count;
                wrs.push(if last || rng.one_in(2) { wr } else { wr.unsignaled() });
            }
            a.post_sends(wrs);
            for (i, (len, imm)) in receives.iter().enumerate() {
                let wc = b.await_recv_completion();
                assert_eq!(wc.status(), 0, "{wc:?}");
                assert_eq!((wc.id(), wc.raw().byte_len as usize, wc.imm()), (i as u64, *len, *imm));
            }
            let mut last = None;
            while last != Some(round << 8 | (count - 1)) {
                let wc = a.await_send_completion();
                assert_eq!(wc.status(), 0, "{wc:?}");
                assert!(last.is_none_or(|last| last < wc.id()), "out of order");
                last = Some(wc.id());
            }
            crate::memory::assert_same_bytes(&target.memory.read(0, LEN), &model, 0);
            for (slot, bytes) in expected {
                let at = usize::try_from(slot).expect("small");
                crate::memory::assert_same_bytes(&results.memory.read(at, bytes.len()), &bytes, at);
            }
        }
    }
}
