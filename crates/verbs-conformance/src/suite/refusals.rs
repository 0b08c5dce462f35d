//! Tests of refused requests: unsupported verbs, excessive lengths, invalid values.

use verbs_abi::*;

use crate::TestEnv;
use crate::test_env::NicCapability;
use crate::harness::record_case;
use crate::memory::{ZeroedMemory, PAGE};
use crate::objects::{ALL_ACCESS, Context};
use crate::pair::{QpPair, QpSpec};
use crate::wr::{SendWr, Verb, wr_of_verb_with_default_operands, read, send, write};
use crate::xrc::create_errnos_with_comp_mask_bit;

tests! { "refusals";
    uc_has_no_read [Uc] => |env| check_verb_is_refused(env, &QpSpec::uc(), Verb::RdmaRead),
    uc_has_no_cmp_swp [Uc] => |env| check_verb_is_refused(env, &QpSpec::uc(), Verb::AtomicCmpAndSwp),
    uc_has_no_fetch_add [Uc] => |env| check_verb_is_refused(env, &QpSpec::uc(), Verb::AtomicFetchAndAdd),
    ud_has_no_write [Ud] => |env| check_verb_is_refused(env, &QpSpec::ud(), Verb::RdmaWrite),
    ud_has_no_write_with_imm [Ud] => |env| check_verb_is_refused(env, &QpSpec::ud(), Verb::RdmaWriteWithImm),
    ud_has_no_read [Ud] => |env| check_verb_is_refused(env, &QpSpec::ud(), Verb::RdmaRead),
    ud_has_no_cmp_swp [Ud] => |env| check_verb_is_refused(env, &QpSpec::ud(), Verb::AtomicCmpAndSwp),
    ud_has_no_fetch_add [Ud] => |env| check_verb_is_refused(env, &QpSpec::ud(), Verb::AtomicFetchAndAdd),
    a_verb_that_the_transport_lacks_is_refused_at_once [Ud, ImmediateChecks],
    unknown_opcodes_are_refused [],
    read_and_atomics_cannot_be_inline [Read, Inline],
    ud_message_of_more_than_the_mtu_is_not_sent [Ud],
    a_message_beyond_4_gib_is_refused [ArgumentChecks],
    a_length_in_the_sge_beyond_the_region_is_refused [],
    unknown_comp_mask_bits_are_not_supported [ArgumentChecks],
}

/// Posts a WR that must be refused, behind a valid WR. The post is refused at once with `bad_wr`, or the WR
/// has a failed completion.
#[track_caller]
pub(super) fn post_and_expect_refused(pair: &QpPair, wr: SendWr) {
    let a = &pair.a;
    let grh = pair.b.grh_len();
    let source = a.alloc_buf(8);
    let target = pair.b.alloc_buf(8 + grh);
    pair.b.post_recv(70, [target.whole_sge()]);
    let first = a.add_ud_destination_if_missing(send([source.whole_sge()]).with_id(71));
    match a.qp.try_post_sends(vec![first, wr.with_id(72), a.add_ud_destination_if_missing(send([source.whole_sge()]).with_id(73))]) {
        Err(refused) => {
            assert!([libc::EINVAL, libc::EOPNOTSUPP].contains(&refused.errno), "{refused:?}");
            assert_eq!(refused.bad_wr_index, Some(1), "bad_wr");
            pair.b.await_recv_completion().expect_received(70, 8 + grh);
            a.await_send_completion().expect_sent(71, Verb::Send);
            a.expect_no_completions();
            assert_eq!(a.qp.query_state(), IBV_QPS_RTS);
            pair.check_transfers_both_ways();
        }
        Ok(()) => {
            let env = a.ctx.env();
            assert!(!env.expects_capability(NicCapability::ImmediateChecks), "ibv_post_send took it");
            pair.b.await_recv_completion().expect_received(70, 8 + grh);
            a.await_send_completion().expect_sent(71, Verb::Send);
            a.await_send_completion().expect_failed(72, &[IBV_WC_LOC_QP_OP_ERR, IBV_WC_REM_INV_REQ_ERR]);
        }
    }
}

fn check_verb_is_refused(env: &TestEnv, spec: &QpSpec, verb: Verb) {
    let pair = spec.create_connected_pair(env);
    let local = pair.a.alloc_buf(8);
    let remote = pair.b.alloc_buf(8);
    remote.memory.store(0, 42);
    post_and_expect_refused(&pair, wr_of_verb_with_default_operands(verb, [local.whole_sge()], remote.remote_address()));
    assert_eq!(remote.memory.load(0), 42);
    assert_eq!(local.memory.load(0), 0);
}

/// `ibv_post_send(3)` "stops processing WRs from this list at the first failure (that can be detected
/// immediately while requests are being posted)".
fn a_verb_that_the_transport_lacks_is_refused_at_once(env: &TestEnv) {
    let pair = QpSpec::ud().create_connected_pair(env);
    let (local, remote) = (pair.a.alloc_buf(8), pair.b.alloc_buf(8));
    for verb in [Verb::RdmaWrite, Verb::RdmaRead, Verb::AtomicFetchAndAdd] {
        record_case(format!("{verb:?}"));
        let wr = wr_of_verb_with_default_operands(verb, [local.whole_sge()], remote.remote_address());
        let refused = pair.a.qp.try_post_sends(vec![wr]).expect_err("UD has no such verb");
        assert_eq!(refused.bad_wr_index, Some(0));
    }
    pair.check_transfers_both_ways();
}

fn unknown_opcodes_are_refused(env: &TestEnv) {
    let mut specs = vec![QpSpec::rc()];
    if env.expects_capability(NicCapability::Ud) {
        specs.push(QpSpec::ud());
    }
    for spec in specs {
        for opcode in [16, 99, 255, 0x8000_0000, u32::MAX] {
            record_case(format!("opcode {opcode:#x}, QP type {}", spec.qp_type));
            let pair = spec.create_connected_pair(env);
            let buf = pair.a.alloc_buf(8);
            post_and_expect_refused(&pair, pair.a.add_ud_destination_if_missing(send([buf.whole_sge()]).with_opcode(opcode)));
        }
    }
}

/// `ibv_post_send(3)`: IBV_SEND_INLINE is "valid only for Send and RDMA Write". A provider may ignore the
/// flag.
fn read_and_atomics_cannot_be_inline(env: &TestEnv) {
    let verbs = [Verb::RdmaRead, Verb::AtomicFetchAndAdd];
    for verb in verbs {
        if verb.is_atomic() && !env.expects_capability(NicCapability::Atomics) {
            continue;
        }
        record_case(format!("{verb:?}"));
        let pair = QpSpec::rc().create_connected_pair(env);
        let local = pair.a.alloc_buf(8);
        let remote = pair.b.alloc_buf(8);
        remote.memory.store(0, 42);
        let wr = wr_of_verb_with_default_operands(verb, [local.whole_sge()], remote.remote_address()).with_id(1).inlined();
        match pair.a.qp.try_post_sends(vec![wr]) {
            Err(refused) => assert_eq!((refused.errno, refused.bad_wr_index), (libc::EINVAL, Some(0))),
            Ok(()) => {
                let wc = pair.a.await_send_completion();
                if wc.status() == IBV_WC_SUCCESS {
                    assert_eq!(local.memory.load(0), 42);
                } else {
                    wc.expect_failed(1, &[IBV_WC_LOC_QP_OP_ERR, IBV_WC_LOC_PROT_ERR]);
                }
            }
        }
    }
}

/// IBTA vol. 1, C10-93.1.1, about a UD message longer than the MTU: the device "shall not emit any packets
/// for this message. Further, the CI shall not generate an error due to this condition". Providers that
/// report an error use EINVAL or LOC_LEN_ERR.
fn ud_message_of_more_than_the_mtu_is_not_sent(env: &TestEnv) {
    let pair = QpSpec::ud().create_connected_pair(env);
    let mtu = super::data::active_port_mtu_bytes(&pair.a);
    for len in [mtu + 1, 2 * mtu, 1 << 20] {
        record_case(format!("{len} bytes"));
        let pair = QpSpec::ud().create_connected_pair(env);
        let source = pair.a.alloc_buf(len);
        let target = pair.b.alloc_buf(len + 40);
        pair.b.post_recv(1, [target.whole_sge()]);
        match pair.a.qp.try_post_sends(vec![pair.a.add_ud_destination_if_missing(send([source.whole_sge()]).with_id(2))]) {
            Err(refused) => {
                assert!([libc::EINVAL, libc::EMSGSIZE].contains(&refused.errno), "{refused:?}");
                assert_eq!(refused.bad_wr_index, Some(0));
            }
            Ok(()) => {
                let wc = pair.a.await_send_completion();
                if wc.status() != IBV_WC_SUCCESS {
                    wc.expect_failed(2, &[IBV_WC_LOC_LEN_ERR]);
                }
            }
        }
        pair.b.rcq.expect_empty();
        target.memory.assert_filled_with(0, 200, 0);
    }
}

/// The message has four SGEs of 1 GiB. Its length exceeds 32 bits, and every port's `max_msg_sz`.
fn a_message_beyond_4_gib_is_refused(env: &TestEnv) {
    let memory = ZeroedMemory::map_pages((1 << 30) / PAGE);
    for verb in [Verb::RdmaWrite, Verb::Send, Verb::RdmaRead] {
        for inline in [false, true] {
            record_case(format!("{verb:?}, inline {inline}"));
            let pair = QpSpec::rc().create_connected_pair(env);
            let mr = pair.a.pd.reg(&memory, ALL_ACCESS);
            let sge = ibv_sge {
                addr: memory.addr(),
                length: 1 << 30,
                lkey: mr.lkey(),
            };
            let target = pair.b.alloc_buf(64);
            pair.b.post_recv(1, [target.whole_sge()]);
            let wr = wr_of_verb_with_default_operands(verb, [sge; 4], target.remote_address()).with_id(2);
            match pair.a.qp.try_post_sends(vec![if inline { wr.inlined() } else { wr }]) {
                Err(refused) => {
                    assert!([libc::EINVAL, libc::ENOMEM].contains(&refused.errno), "{refused:?}");
                }
                Ok(()) => {
                    pair.a.await_send_completion().expect_failed(2, &[IBV_WC_LOC_LEN_ERR, IBV_WC_LOC_QP_OP_ERR]);
                }
            }
            target.memory.assert_filled_with(0, 64, 0);
        }
    }
}

fn a_length_in_the_sge_beyond_the_region_is_refused(env: &TestEnv) {
    for verb in [Verb::RdmaWrite, Verb::Send, Verb::RdmaRead] {
        if verb == Verb::RdmaRead && !env.expects_capability(NicCapability::Read) {
            continue;
        }
        record_case(format!("{verb:?}"));
        let pair = QpSpec::rc().create_connected_pair(env);
        let local = pair.a.alloc_buf(64);
        let remote = pair.b.alloc_buf(4096);
        pair.b.post_recv(1, [remote.whole_sge()]);
        let sge = ibv_sge {
            length: 1 << 31,
            ..local.whole_sge()
        };
        let wr = match verb {
            Verb::RdmaRead => read([sge], remote.remote_address()),
            Verb::Send => send([sge]),
            _ => write([sge], remote.remote_address()),
        };
        match pair.a.qp.try_post_sends(vec![wr.with_id(2)]) {
            Err(refused) => assert_eq!(refused.errno, libc::EINVAL),
            Ok(()) => {
                // The remote range is invalid, too: either side may report its error first.
                let mut statuses = env.accepted_failure_statuses(IBV_WC_LOC_PROT_ERR);
                statuses.extend([IBV_WC_LOC_LEN_ERR, IBV_WC_REM_ACCESS_ERR]);
                pair.a.await_send_completion().expect_failed(2, &statuses);
            }
        }
        remote.memory.assert_filled_with(0, 4096, 0);
    }
}

/// An unknown bit of `comp_mask` stands for a field of a later version. rdma-core's tests skip features that
/// are refused with EOPNOTSUPP.
fn unknown_comp_mask_bits_are_not_supported(env: &TestEnv) {
    const UNKNOWN: u32 = 1 << 30;
    let ctx = Context::open(env);
    let (pd, cq) = (ctx.alloc_pd(), ctx.create_cq(8));
    for (verb, errno) in create_errnos_with_comp_mask_bit(&ctx, &pd, &cq, UNKNOWN) {
        assert_eq!(errno, libc::EOPNOTSUPP, "{verb}");
    }
}
