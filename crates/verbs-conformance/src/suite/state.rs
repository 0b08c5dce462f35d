//! Tests of the state machine of queue pairs: IBTA vol. 1, 10.3.1 and 11.2.5.2; `ibv_modify_qp(3)`.

use std::ffi::c_int;

use verbs_abi::*;

use crate::TestEnv;
use crate::test_env::NicCapability;
use crate::harness::record_case;
use crate::objects::QUIET_PERIOD;
use crate::pair::{QpAddress, QpPair, QpSide, QpSpec};
use crate::wr::{Verb, recv, send, write};

tests! { "state";
    rc_walks_through_its_states [] => |env| check_walk_through_all_states(env, &QpSpec::rc()),
    uc_walks_through_its_states [Uc] => |env| check_walk_through_all_states(env, &QpSpec::uc()),
    ud_walks_through_its_states [Ud] => |env| check_walk_through_all_states(env, &QpSpec::ud()),
    rc_illegal_transitions_are_refused [] => |env| check_illegal_transitions_are_refused(env, &QpSpec::rc()),
    uc_illegal_transitions_are_refused [Uc] => |env| check_illegal_transitions_are_refused(env, &QpSpec::uc()),
    ud_illegal_transitions_are_refused [Ud] => |env| check_illegal_transitions_are_refused(env, &QpSpec::ud()),
    rc_missing_attributes_are_refused [] => |env| check_missing_attributes_are_refused(env, &QpSpec::rc()),
    uc_missing_attributes_are_refused [Uc] => |env| check_missing_attributes_are_refused(env, &QpSpec::uc()),
    ud_missing_attributes_are_refused [Ud] => |env| check_missing_attributes_are_refused(env, &QpSpec::ud()),
    rc_extra_attributes_are_refused [] => |env| check_extra_attributes_are_refused(env, &QpSpec::rc()),
    uc_extra_attributes_are_refused [Uc] => |env| check_extra_attributes_are_refused(env, &QpSpec::uc()),
    ud_extra_attributes_are_refused [Ud] => |env| check_extra_attributes_are_refused(env, &QpSpec::ud()),
    attributes_beyond_the_standard_ones_are_not_supported [],
    values_out_of_range_are_refused [],
    a_gid_index_without_a_gid_is_refused [],
    an_unresolvable_destination_gid_is_refused [],
    rd_atomic_beyond_the_device_limit_is_refused [],
    a_pkey_index_beyond_the_table_is_refused [],
    a_path_mtu_that_there_is_not_is_refused [],
    an_rnr_timer_beyond_its_field_is_cut [],
    psns_that_differ_fail_the_first_request [],
    a_refused_change_changes_nothing [],
    unknown_states_are_refused [],
    a_wrong_current_state_is_refused [],
    err_is_reached_from_everywhere [],
    query_returns_what_was_set [],
    init_to_init_changes_attributes [],
    receives_posted_in_init_are_used [],
    rtr_receives_and_does_not_send [],
    sends_before_rts_are_refused [ImmediateChecks],
    receives_in_reset_are_refused [ImmediateChecks],
    sqd_holds_sends_back_and_rts_resumes [Sqd],
    sqd_still_receives [Sqd],
    sqd_changes_what_rts_cannot [Sqd],
    no_sqd_without_rts [Sqd],
}

fn modify_state(side: &QpSide, state: ibv_qp_state) -> Result<(), i32> {
    let mut attr = ibv_qp_attr::zeroed();
    attr.qp_state = state;
    side.qp.modify(&attr, IBV_QP_STATE)
}

#[track_caller]
fn expect_state(side: &QpSide, state: ibv_qp_state) {
    assert_eq!(side.qp.query_state(), state, "the state that ibv_query_qp gives");
    assert_eq!(side.qp.cached_state(), state, "qp->state");
}

fn check_walk_through_all_states(env: &TestEnv, spec: &QpSpec) {
    let mut side = spec.create_qp_side(env);
    let peer = side.address();
    for _ in 0..3 {
        expect_state(&side, IBV_QPS_RESET);
        side.to_init();
        expect_state(&side, IBV_QPS_INIT);
        side.to_rtr(&peer);
        expect_state(&side, IBV_QPS_RTR);
        side.to_rts();
        expect_state(&side, IBV_QPS_RTS);
        if env.expects_capability(NicCapability::Sqd) {
            modify_state(&side, IBV_QPS_SQD).expect("RTS to SQD");
            expect_state(&side, IBV_QPS_SQD);
            side.qp.await_drained();
            modify_state(&side, IBV_QPS_RTS).expect("SQD to RTS");
            expect_state(&side, IBV_QPS_RTS);
        }
        modify_state(&side, IBV_QPS_ERR).expect("RTS to ERR");
        expect_state(&side, IBV_QPS_ERR);
        modify_state(&side, IBV_QPS_RESET).expect("ERR to RESET");
    }
}

/// Moves a QP from RESET to `state`.
#[track_caller]
fn move_from_reset_to(side: &mut QpSide, state: ibv_qp_state) {
    let peer = side.address();
    if state == IBV_QPS_RESET {
        return;
    }
    side.to_init();
    if state == IBV_QPS_INIT {
        return;
    }
    if state == IBV_QPS_ERR {
        modify_state(side, IBV_QPS_ERR).expect("INIT to ERR");
        return;
    }
    side.to_rtr(&peer);
    if state == IBV_QPS_RTR {
        return;
    }
    side.to_rts();
    if state == IBV_QPS_SQD {
        modify_state(side, IBV_QPS_SQD).expect("RTS to SQD");
    }
}

/// Returns attributes and mask that complete the transition to `to`, if that transition is legal.
fn full_transition_attr(side: &QpSide, to: ibv_qp_state, peer: &QpAddress) -> (ibv_qp_attr, c_int) {
    match to {
        IBV_QPS_INIT => side.reset_to_init_attr_and_mask(),
        IBV_QPS_RTR => side.init_to_rtr_attr_and_mask(peer),
        IBV_QPS_RTS => side.rtr_to_rts_attr_and_mask(),
        _ => {
            let mut attr = ibv_qp_attr::zeroed();
            attr.qp_state = to;
            (attr, IBV_QP_STATE)
        }
    }
}

fn tested_qp_states(env: &TestEnv) -> Vec<ibv_qp_state> {
    let mut states =
        vec![IBV_QPS_RESET, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPS_ERR];
    if env.expects_capability(NicCapability::Sqd) {
        states.push(IBV_QPS_SQD);
    }
    states
}

fn check_illegal_transitions_are_refused(env: &TestEnv, spec: &QpSpec) {
    let legal = [
        (IBV_QPS_RESET, IBV_QPS_INIT),
        (IBV_QPS_INIT, IBV_QPS_INIT),
        (IBV_QPS_INIT, IBV_QPS_RTR),
        (IBV_QPS_RTR, IBV_QPS_RTS),
        (IBV_QPS_RTS, IBV_QPS_RTS),
        (IBV_QPS_RTS, IBV_QPS_SQD),
        (IBV_QPS_SQD, IBV_QPS_SQD),
        (IBV_QPS_SQD, IBV_QPS_RTS),
    ];
    for from in tested_qp_states(env) {
        for to in tested_qp_states(env) {
            // Every state has transitions to RESET and ERR (RESET to ERR depends on the device).
            let open = to == IBV_QPS_RESET || to == IBV_QPS_ERR;
            if open || legal.contains(&(from, to)) {
                continue;
            }
            record_case(format!("{from} to {to}"));
            let mut side = spec.create_qp_side(env);
            move_from_reset_to(&mut side, from);
            let peer = side.address();
            let (attr, mask) = full_transition_attr(&side, to, &peer);
            assert_eq!(side.qp.modify(&attr, mask), Err(libc::EINVAL));
            expect_state(&side, from);
        }
    }
}

fn reset_to_rts_transitions() -> [(ibv_qp_state, ibv_qp_state); 3] {
    [(IBV_QPS_RESET, IBV_QPS_INIT), (IBV_QPS_INIT, IBV_QPS_RTR), (IBV_QPS_RTR, IBV_QPS_RTS)]
}

fn check_missing_attributes_are_refused(env: &TestEnv, spec: &QpSpec) {
    for (from, to) in reset_to_rts_transitions() {
        let mut side = spec.create_qp_side(env);
        move_from_reset_to(&mut side, from);
        let peer = side.address();
        let (attr, mask) = full_transition_attr(&side, to, &peer);
        for bit in (0..26).map(|bit| 1 << bit).filter(|bit| mask & bit != 0 && *bit != IBV_QP_STATE) {
            record_case(format!("{from} to {to} without {bit:#x}"));
            assert_eq!(side.qp.modify(&attr, mask & !bit), Err(libc::EINVAL));
            expect_state(&side, from);
        }
        side.qp.modify(&attr, mask).expect("with all of them");
        expect_state(&side, to);
    }
}

fn check_extra_attributes_are_refused(env: &TestEnv, spec: &QpSpec) {
    let ud = spec.qp_type == IBV_QPT_UD;
    let rc = spec.qp_type == IBV_QPT_RC;
    for (from, to) in reset_to_rts_transitions() {
        let mut side = spec.create_qp_side(env);
        move_from_reset_to(&mut side, from);
        let peer = side.address();
        let (attr, mask) = full_transition_attr(&side, to, &peer);
        // These attributes are not permitted in this transition by any table.
        let mut extras = vec![IBV_QP_EN_SQD_ASYNC_NOTIFY];
        if to == IBV_QPS_INIT {
            extras.extend([IBV_QP_AV, IBV_QP_PATH_MTU, IBV_QP_DEST_QPN, IBV_QP_TIMEOUT, IBV_QP_SQ_PSN]);
        }
        if to == IBV_QPS_RTR {
            extras.extend([IBV_QP_TIMEOUT, IBV_QP_RETRY_CNT, IBV_QP_SQ_PSN, IBV_QP_MAX_QP_RD_ATOMIC]);
        }
        if to == IBV_QPS_RTS {
            extras.extend([IBV_QP_DEST_QPN, IBV_QP_PATH_MTU, IBV_QP_RQ_PSN, IBV_QP_PORT]);
        }
        if ud {
            extras.extend([IBV_QP_ACCESS_FLAGS, IBV_QP_AV, IBV_QP_MIN_RNR_TIMER]);
        } else {
            extras.push(IBV_QP_QKEY);
        }
        if !rc {
            extras.extend([IBV_QP_MAX_DEST_RD_ATOMIC, IBV_QP_RNR_RETRY]);
        }
        for extra in extras {
            record_case(format!("{from} to {to} with {extra:#x}"));
            assert_eq!(side.qp.modify(&attr, mask | extra), Err(libc::EINVAL));
            expect_state(&side, from);
        }
        side.qp.modify(&attr, mask).expect("without them");
    }
}

/// `IBV_QP_RATE_LIMIT` and bits without a name: `ibv_cmd_modify_qp` of rdma-core answers `EOPNOTSUPP` before the driver
/// checks the state.
fn attributes_beyond_the_standard_ones_are_not_supported(env: &TestEnv) {
    for (from, to) in reset_to_rts_transitions() {
        let mut side = QpSpec::rc().create_qp_side(env);
        move_from_reset_to(&mut side, from);
        let peer = side.address();
        let (mut attr, mask) = full_transition_attr(&side, to, &peer);
        attr.rate_limit = 1000;
        for extra in [IBV_QP_RATE_LIMIT, IBV_QP_DEST_QPN << 1, 1 << 30] {
            record_case(format!("{from} to {to} with {extra:#x}"));
            let refused = side.qp.modify(&attr, mask | extra);
            assert_eq!(refused, Err(libc::EOPNOTSUPP));
            expect_state(&side, from);
        }
        side.qp.modify(&attr, mask).expect("without them");
    }
}

fn values_out_of_range_are_refused(env: &TestEnv) {
    let changes: [(ibv_qp_state, &str, AttributeChange); 5] = [
        (IBV_QPS_INIT, "port 0", |a, _, _| a.port_num = 0),
        (IBV_QPS_INIT, "a port that is not there", |a, d, _| a.port_num = d.phys_port_cnt + 1),
        (IBV_QPS_RTR, "an address vector of no port", |a, d, _| a.ah_attr.port_num = d.phys_port_cnt + 1),
        (IBV_QPS_RTS, "timeout 32", |a, _, _| a.timeout = 32),
        (IBV_QPS_RTS, "timeout 255", |a, _, _| a.timeout = 255),
    ];
    expect_changes_refused(env, &changes);
}

/// If the table has more than 255 entries, the largest index that the field can hold is inside the table. The
/// entry with that index is empty.
fn a_gid_index_without_a_gid_is_refused(env: &TestEnv) {
    let mut side = QpSpec::rc().create_qp_side(env);
    move_from_reset_to(&mut side, IBV_QPS_INIT);
    let peer = side.address();
    let (mut attr, mask) = full_transition_attr(&side, IBV_QPS_RTR, &peer);
    attr.ah_attr.is_global = 1;
    attr.ah_attr.grh.sgid_index = u8::try_from(side.ctx.port_attr().gid_tbl_len).unwrap_or(255);
    let refused = side.qp.modify(&attr, mask);
    assert!([Err(libc::EINVAL), Err(libc::ENODATA)].contains(&refused), "{refused:?}");
    expect_state(&side, IBV_QPS_INIT);
}

/// On Ethernet the destination's address is resolved before the queue pair is modified: `ib_resolve_eth_dmac`
/// of `linux:drivers/infiniband/core/verbs.c`.
fn an_unresolvable_destination_gid_is_refused(env: &TestEnv) {
    let own = QpSpec::rc().create_qp_side(env).address().gid;
    let mapped = |gid: &[u8; 16]| gid.starts_with(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff]);
    let mut link_local = [0; 16];
    link_local[..2].copy_from_slice(&[0xfe, 0x80]);
    link_local[8..].copy_from_slice(&[0x02, 0x5a, 0x5a, 0xff, 0xfe, 0x5a, 0x5a, 0x5a]);
    let ipv4 = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 1];
    let mut cases = Vec::new();
    // Resolution of a link-local GID of the same family depends on the kernel's interface. An interface
    // without neighbour discovery (`IFF_NOARP`, such as a dummy) accepts any GID. `softnic` tests the
    // software NIC's answer.
    if mapped(&own) {
        cases.push((link_local, libc::EINVAL));
    } else {
        cases.push((ipv4, libc::EINVAL));
    }
    for (gid, errno) in cases {
        for spec in [QpSpec::rc(), QpSpec::uc()] {
            if spec.qp_type == IBV_QPT_UC && !env.expects_capability(NicCapability::Uc) {
                continue;
            }
            record_case(format!("type {}, {gid:02x?}", spec.qp_type));
            let mut side = spec.create_qp_side(env);
            if side.ctx.port_attr().link_layer != IBV_LINK_LAYER_ETHERNET {
                return;
            }
            move_from_reset_to(&mut side, IBV_QPS_INIT);
            let (attr, mask) = side.init_to_rtr_attr_and_mask(&QpAddress { gid, ..side.address() });
            assert_eq!(side.qp.modify(&attr, mask), Err(errno));
            expect_state(&side, IBV_QPS_INIT);
        }
    }
}

fn rd_atomic_beyond_the_device_limit_is_refused(env: &TestEnv) {
    let changes: [(ibv_qp_state, &str, AttributeChange); 2] = [
        (IBV_QPS_RTR, "more READs than the device serves", |a, d, _| {
            a.max_dest_rd_atomic = u8::try_from(d.max_qp_rd_atom + 1).unwrap_or(255);
        }),
        (IBV_QPS_RTS, "more READs than the device starts", |a, d, _| {
            a.max_rd_atomic = u8::try_from(d.max_qp_init_rd_atom + 1).unwrap_or(255);
        }),
    ];
    expect_changes_refused(env, &changes);
}

fn a_pkey_index_beyond_the_table_is_refused(env: &TestEnv) {
    expect_changes_refused(env, &[(IBV_QPS_INIT, "a P_Key index beyond the table", |a, _, p| a.pkey_index = p.pkey_tbl_len)]);
}

fn a_path_mtu_that_there_is_not_is_refused(env: &TestEnv) {
    expect_changes_refused(
        env,
        &[
            (IBV_QPS_RTR, "path MTU 0", |a, _, _| a.path_mtu = 0),
            (IBV_QPS_RTR, "path MTU 6", |a, _, _| a.path_mtu = 6),
        ],
    );
}

/// The field has 5 bits (IBTA vol. 1, 9.7.5.2.8), and no driver checks the others: Soft-RoCE and mlx5 take the lower bits.
/// DLSlime passes 32.
fn an_rnr_timer_beyond_its_field_is_cut(env: &TestEnv) {
    let spec = QpSpec::rc().with_change(|s| s.min_rnr_timer = 32 + 1);
    let pair = spec.create_connected_pair(env);
    pair.a.post(send([]).with_id(1));
    std::thread::sleep(std::time::Duration::from_millis(10));
    pair.b.post_recv(2, []);
    pair.b.await_recv_completion().expect_received(2, 0);
    pair.a.await_send_completion().expect_sent(1, Verb::Send);
}

/// Programs that exchange their PSNs wrongly work nowhere else. `b` expects PSNs of the past, so nothing that `a` sends is
/// a duplicate.
fn psns_that_differ_fail_the_first_request(env: &TestEnv) {
    for verb in [Verb::Send, Verb::RdmaWrite] {
        let spec = QpSpec::rc().with_change(|s| (s.timeout, s.retry_cnt) = (14, 1));
        let mut pair = spec.create_unconnected_pair(env);
        let (mut a, b) = (pair.a.address(), pair.b.address());
        a.psn = a.psn.wrapping_sub(100) & 0xff_ffff;
        pair.a.connect(&b);
        pair.b.connect(&a);
        let (source, target) = (pair.a.alloc_buf(8), pair.b.alloc_buf(8));
        source.memory.fill_with_pattern(1);
        pair.b.post_recv(2, [target.whole_sge()]);
        let wr = match verb {
            Verb::Send => send([source.whole_sge()]),
            _ => write([source.whole_sge()], target.remote_address()),
        };
        pair.a.post(wr.with_id(1));
        pair.a.await_send_completion().expect_failed(1, &[IBV_WC_RETRY_EXC_ERR]);
        target.memory.assert_filled_with(0, 8, 0);
    }
}

type AttributeChange = fn(&mut ibv_qp_attr, &ibv_device_attr, &ibv_port_attr);

/// Checks that each change makes the transition to a state fail, and that the QP stays as it was.
fn expect_changes_refused(env: &TestEnv, changes: &[(ibv_qp_state, &str, AttributeChange)]) {
    for &(to, what, change) in changes {
        record_case(what);
        let mut side = QpSpec::rc().create_qp_side(env);
        let from = reset_to_rts_transitions().into_iter().find(|step| step.1 == to).expect("a step").0;
        move_from_reset_to(&mut side, from);
        let (device, port) = (side.ctx.device_attr(), side.ctx.port_attr());
        let peer = side.address();
        let (mut attr, mask) = full_transition_attr(&side, to, &peer);
        change(&mut attr, &device, &port);
        assert_eq!(side.qp.modify(&attr, mask), Err(libc::EINVAL));
        expect_state(&side, from);
    }
}

/// `ibv_modify_qp(3)`: "If any of the modify attributes or the modify mask are invalid, none of the attributes
/// will be modified (including the QP state)."
fn a_refused_change_changes_nothing(env: &TestEnv) {
    let pair = QpSpec::rc().create_connected_pair(env);
    let before = pair.b.qp.query().0;
    let mut attr = ibv_qp_attr::zeroed();
    attr.qp_access_flags = IBV_ACCESS_LOCAL_WRITE.cast_unsigned();
    attr.min_rnr_timer = 31;
    attr.dest_qp_num = 1;
    let mask = IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER | IBV_QP_DEST_QPN;
    assert_eq!(pair.b.qp.modify(&attr, mask), Err(libc::EINVAL));
    let after = pair.b.qp.query().0;
    assert_eq!(after.qp_access_flags, before.qp_access_flags);
    assert_eq!(after.min_rnr_timer, before.min_rnr_timer);
    assert_eq!(after.dest_qp_num, before.dest_qp_num);
    let source = pair.a.alloc_buf(8);
    let target = pair.b.alloc_buf(8);
    pair.a.post(write([source.whole_sge()], target.remote_address()).with_id(1));
    pair.a.await_send_completion().expect_sent(1, Verb::RdmaWrite);
}

fn unknown_states_are_refused(env: &TestEnv) {
    let pair = QpSpec::rc().create_connected_pair(env);
    for state in [7, 8, 255, u32::MAX] {
        record_case(format!("state {state}"));
        assert_eq!(modify_state(&pair.a, state), Err(libc::EINVAL));
        expect_state(&pair.a, IBV_QPS_RTS);
    }
    pair.check_transfers_both_ways();
}

fn a_wrong_current_state_is_refused(env: &TestEnv) {
    let pair = QpSpec::rc().create_connected_pair(env);
    let mut attr = ibv_qp_attr::zeroed();
    attr.qp_state = IBV_QPS_RTS;
    attr.cur_qp_state = IBV_QPS_RTS;
    pair.a.qp.modify(&attr, IBV_QP_STATE | IBV_QP_CUR_STATE).expect("the right one");
    attr.cur_qp_state = IBV_QPS_SQD;
    let refused = pair.a.qp.modify(&attr, IBV_QP_STATE | IBV_QP_CUR_STATE);
    assert_eq!(refused, Err(libc::EINVAL));
    pair.check_transfers_both_ways();
}

fn err_is_reached_from_everywhere(env: &TestEnv) {
    for from in tested_qp_states(env).into_iter().filter(|state| *state != IBV_QPS_RESET) {
        record_case(format!("from {from}"));
        let mut side = QpSpec::rc().create_qp_side(env);
        move_from_reset_to(&mut side, from);
        modify_state(&side, IBV_QPS_ERR).expect("to ERR");
        expect_state(&side, IBV_QPS_ERR);
        modify_state(&side, IBV_QPS_RESET).expect("to RESET");
        expect_state(&side, IBV_QPS_RESET);
    }
}

fn query_returns_what_was_set(env: &TestEnv) {
    let spec = QpSpec::rc().with_change(|s| {
        s.timeout = 13;
        s.retry_cnt = 5;
        s.rnr_retry = 4;
        s.min_rnr_timer = 12;
        s.qp_access_flags = (IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE).cast_unsigned();
    });
    let mut pair: QpPair = spec.create_unconnected_pair(env);
    pair.connect();
    let (attr, init) = pair.a.qp.query();
    assert_eq!(attr.qp_state, IBV_QPS_RTS);
    // `ibv_query_qp(3)`: "irrelevant for ibv_query_qp"; a device may leave the field unchanged.
    assert!([IBV_QPS_RESET, IBV_QPS_RTS].contains(&attr.cur_qp_state));
    assert_eq!(attr.path_mtu, pair.a.ctx.port_attr().active_mtu);
    assert_eq!(attr.dest_qp_num, pair.b.qp.qpn());
    assert_eq!(attr.rq_psn, pair.b.address().psn);
    assert_eq!((attr.timeout, attr.retry_cnt, attr.rnr_retry), (13, 5, 4));
    assert_eq!(attr.min_rnr_timer, 12);
    assert_eq!((attr.max_rd_atomic, attr.max_dest_rd_atomic), (1, 1));
    let remote = (IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE).cast_unsigned();
    assert_eq!(attr.qp_access_flags & ALL_REMOTE_ACCESS, remote);
    assert_eq!(attr.port_num, env.settings.port);
    assert_eq!(attr.pkey_index, 0);
    assert_eq!(attr.ah_attr.dlid, pair.b.address().lid);
    assert_eq!(init.qp_type, IBV_QPT_RC);
    assert_eq!(init.sq_sig_all, 0);
    assert_eq!(init.send_cq, pair.a.scq.raw());
    assert_eq!(init.recv_cq, pair.a.rcq.raw());
    assert!(init.cap.max_send_wr >= 16 && init.cap.max_recv_wr >= 16);
    assert!(init.cap.max_send_sge >= 4 && init.cap.max_recv_sge >= 4);
    if env.expects_capability(NicCapability::Ud) {
        let side = QpSpec::ud().with_change(|s| s.qkey = 0x7654_3210).create_connected_pair(env).a;
        assert_eq!(side.qp.query().0.qkey, 0x7654_3210);
    }
}

const ALL_REMOTE_ACCESS: u32 =
    (IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC).cast_unsigned();

fn init_to_init_changes_attributes(env: &TestEnv) {
    let side = QpSpec::rc().create_qp_side(env);
    side.to_init();
    let mut attr = ibv_qp_attr::zeroed();
    attr.qp_state = IBV_QPS_INIT;
    attr.qp_access_flags = IBV_ACCESS_REMOTE_READ.cast_unsigned();
    side.qp.modify(&attr, IBV_QP_STATE | IBV_QP_ACCESS_FLAGS).expect("INIT to INIT");
    assert_eq!(side.qp.query().0.qp_access_flags & ALL_REMOTE_ACCESS, IBV_ACCESS_REMOTE_READ.cast_unsigned());
    expect_state(&side, IBV_QPS_INIT);
}

fn receives_posted_in_init_are_used(env: &TestEnv) {
    let mut pair = QpSpec::rc().create_unconnected_pair(env);
    let (to_a, to_b) = (pair.a.address(), pair.b.address());
    pair.b.to_init();
    for i in 0..3 {
        pair.b.post_recv(i, []);
    }
    pair.b.rcq.expect_empty();
    pair.b.to_rtr(&to_a);
    pair.a.connect(&to_b);
    for i in 0..3 {
        pair.a.post(send([]).with_id(i));
        pair.b.await_recv_completion().expect_received(i, 0);
        pair.a.await_send_completion().expect_sent(i, Verb::Send);
    }
}

fn rtr_receives_and_does_not_send(env: &TestEnv) {
    let mut pair = QpSpec::rc().create_unconnected_pair(env);
    let (to_a, to_b) = (pair.a.address(), pair.b.address());
    pair.b.to_init();
    pair.b.to_rtr(&to_a);
    pair.a.connect(&to_b);
    let source = pair.a.alloc_buf(8);
    let target = pair.b.alloc_buf(8);
    source.memory.fill_with_pattern(3);
    pair.a.post(write([source.whole_sge()], target.remote_address()).with_id(1));
    pair.a.await_send_completion().expect_sent(1, Verb::RdmaWrite);
    target.memory.assert_whole_pattern(3);
    pair.b.post_recv(2, []);
    pair.a.post(send([]).with_id(3));
    pair.b.await_recv_completion().expect_received(2, 0);
    pair.a.await_send_completion().expect_sent(3, Verb::Send);
    if env.expects_capability(NicCapability::ImmediateChecks) {
        let refused = pair.b.qp.try_post_sends(vec![send([])]).expect_err("a send in RTR");
        assert_eq!((refused.errno, refused.bad_wr_index), (libc::EINVAL, Some(0)));
    }
    pair.b.to_rts();
    pair.check_transfers_both_ways();
}

/// A send in RESET, INIT or RTR is an immediate error: `ibv_post_send(3)` and IBTA vol. 1, 10.8.2.
fn sends_before_rts_are_refused(env: &TestEnv) {
    for spec in [QpSpec::rc(), QpSpec::uc(), QpSpec::ud()] {
        let lacking = (spec.qp_type == IBV_QPT_UC && !env.expects_capability(NicCapability::Uc))
            || (spec.qp_type == IBV_QPT_UD && !env.expects_capability(NicCapability::Ud));
        if lacking {
            continue;
        }
        for state in [IBV_QPS_RESET, IBV_QPS_INIT, IBV_QPS_RTR] {
            record_case(format!("QP type {} in {state}", spec.qp_type));
            let mut side = spec.create_qp_side(env);
            move_from_reset_to(&mut side, state);
            let wr = side.add_ud_destination_if_missing(send([]).with_id(1));
            let refused = side.qp.try_post_sends(vec![wr]).expect_err("a send before RTS");
            assert_eq!((refused.errno, refused.bad_wr_index), (libc::EINVAL, Some(0)));
            side.expect_no_completions();
        }
    }
}

fn receives_in_reset_are_refused(env: &TestEnv) {
    let side = QpSpec::rc().create_qp_side(env);
    let refused = side.qp.try_post_recvs(vec![recv(1, [])]).expect_err("a receive in RESET");
    assert_eq!((refused.errno, refused.bad_wr_index), (libc::EINVAL, Some(0)));
    side.to_init();
    side.post_recv(1, []);
}

/// IBTA vol. 1, 10.3.1.6: in SQD, WRs may be posted but are not executed.
fn sqd_holds_sends_back_and_rts_resumes(env: &TestEnv) {
    let mut specs = vec![QpSpec::rc()];
    if env.expects_capability(NicCapability::Ud) {
        specs.push(QpSpec::ud());
    }
    for spec in specs {
        record_case(format!("QP type {}", spec.qp_type));
        let pair = spec.create_connected_pair(env);
        let buf = pair.b.alloc_buf(64);
        for i in 0..3 {
            pair.b.post_recv(i, [buf.whole_sge()]);
        }
        modify_state(&pair.a, IBV_QPS_SQD).expect("RTS to SQD");
        for i in 0..3 {
            pair.a.post(send([]).with_id(i));
        }
        std::thread::sleep(QUIET_PERIOD);
        pair.a.expect_no_completions();
        pair.b.expect_no_completions();
        pair.a.qp.await_drained();
        modify_state(&pair.a, IBV_QPS_RTS).expect("SQD to RTS");
        for i in 0..3 {
            pair.b.await_recv_completion().expect_received(i, pair.b.grh_len());
            pair.a.await_send_completion().expect_sent(i, Verb::Send);
        }
    }
}

fn sqd_still_receives(env: &TestEnv) {
    let pair = QpSpec::rc().create_connected_pair(env);
    modify_state(&pair.b, IBV_QPS_SQD).expect("RTS to SQD");
    let source = pair.a.alloc_buf(8);
    let target = pair.b.alloc_buf(8);
    pair.b.post_recv(1, []);
    pair.a.post_sends(vec![write([source.whole_sge()], target.remote_address()).with_id(1), send([]).with_id(2)]);
    pair.a.await_send_completion().expect_sent(1, Verb::RdmaWrite);
    pair.b.await_recv_completion().expect_received(1, 0);
    pair.a.await_send_completion().expect_sent(2, Verb::Send);
}

fn sqd_changes_what_rts_cannot(env: &TestEnv) {
    let pair = QpSpec::rc().create_connected_pair(env);
    let mut attr = ibv_qp_attr::zeroed();
    attr.timeout = 14;
    attr.retry_cnt = 3;
    let mask = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT;
    assert_eq!(pair.a.qp.modify(&attr, mask), Err(libc::EINVAL), "in RTS");
    modify_state(&pair.a, IBV_QPS_SQD).expect("RTS to SQD");
    pair.a.qp.await_drained();
    pair.a.qp.modify(&attr, mask).expect("SQD to SQD");
    modify_state(&pair.a, IBV_QPS_RTS).expect("SQD to RTS");
    let now = pair.a.qp.query().0;
    assert_eq!((now.timeout, now.retry_cnt), (14, 3));
    pair.check_transfers_both_ways();
}

fn no_sqd_without_rts(env: &TestEnv) {
    for from in [IBV_QPS_RESET, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_ERR] {
        let mut side = QpSpec::rc().create_qp_side(env);
        move_from_reset_to(&mut side, from);
        assert_eq!(modify_state(&side, IBV_QPS_SQD), Err(libc::EINVAL), "from {from}");
    }
}
