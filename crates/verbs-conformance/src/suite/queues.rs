//! Tests of queue depths, postlists, and the order of completions.

use verbs_abi::*;

use crate::TestEnv;
use crate::test_env::NicCapability;
use crate::harness::record_case;
use crate::pair::QpSpec;
use crate::wr::{Verb, wr_of_verb_with_default_operands, read, recv, send, write};

tests! { "queues";
    a_full_send_queue_refuses_with_bad_wr [] => |env| check_full_send_queue_refuses_next_wr(env, QpSpec::rc()),
    a_full_send_queue_of_uc_refuses_with_bad_wr [Uc] => |env| check_full_send_queue_refuses_next_wr(env, QpSpec::uc()),
    a_full_send_queue_of_ud_refuses_with_bad_wr [Ud] => |env| check_full_send_queue_refuses_next_wr(env, QpSpec::ud()),
    a_postlist_stops_where_the_queue_is_full [],
    unsignaled_wrs_hold_their_slots [],
    polling_makes_room_in_the_send_queue [],
    finished_wrs_hold_their_slots_until_they_are_polled [],
    a_full_receive_queue_refuses_with_bad_wr [],
    a_consumed_receive_makes_room [],
    too_many_sges_are_refused_with_bad_wr [],
    as_many_sges_as_granted_work [],
    a_postlist_fills_the_queue_at_once [],
    completions_come_in_order [],
    receives_are_taken_in_order [],
    queues_wrap_around [],
    a_queue_pair_without_send_queue [],
    a_queue_pair_without_receive_queue [],
    one_cq_for_both_queues [],
    one_cq_for_many_queue_pairs [],
    arriving_messages_do_not_starve_send_completions [],
    sends_complete_when_received_answered_or_not [],
    one_cq_for_hundreds_of_queue_pairs [],
    busy_sends_do_not_starve_receives [],
    a_full_send_queue_waits_for_receives [],
    poll_takes_no_more_than_asked_for [],
    an_overflowing_cq_loses_nothing_silently [],
}

const FULL_QUEUE_ERRNO: i32 = libc::ENOMEM;

/// A send queue slot is occupied until the completion of its WR has been polled, even if the WR finished long
/// ago.
fn check_full_send_queue_refuses_next_wr(env: &TestEnv, spec: QpSpec) {
    let pair = spec.with_change(|s| s.cqe = 4096).create_connected_pair(env);
    let depth = pair.a.granted_cap.max_send_wr;
    assert!(depth < 4096, "a queue pair of 16 WRs got {depth}");
    let buf = pair.a.alloc_buf(8);
    for i in 0..depth {
        pair.a.post(send([buf.whole_sge()]).with_id(i.into()));
    }
    let one_more = pair.a.add_ud_destination_if_missing(send([buf.whole_sge()]).with_id(99));
    let refused = pair.a.qp.try_post_sends(vec![one_more]).expect_err("the send queue is full");
    assert_eq!((refused.errno, refused.bad_wr_index), (FULL_QUEUE_ERRNO, Some(0)));
}

fn a_postlist_stops_where_the_queue_is_full(env: &TestEnv) {
    let pair = QpSpec::rc().with_change(|s| s.cqe = 4096).create_connected_pair(env);
    let depth = pair.a.granted_cap.max_send_wr as usize;
    let source = pair.a.alloc_buf(8);
    let target = pair.b.alloc_buf(8 * (depth + 5));
    source.memory.store(0, 7);
    let wrs = (0..depth + 5)
        .map(|i| write([source.whole_sge()], target.remote_address().plus(i as u64 * 8)).with_id(i as u64))
        .collect();
    let refused = pair.a.qp.try_post_sends(wrs).expect_err("the list is longer than the queue");
    assert_eq!((refused.errno, refused.bad_wr_index), (FULL_QUEUE_ERRNO, Some(depth)));
    for (i, wc) in pair.a.scq.wait_for_completions(depth).iter().enumerate() {
        wc.expect_sent(i as u64, Verb::RdmaWrite);
        assert_eq!(target.memory.load(i * 8), 7);
    }
    target.memory.assert_filled_with(8 * depth, 40, 0);
    pair.a.scq.expect_empty();
    // The second post accepts the other WRs of the list.
    let rest = (depth..depth + 5)
        .map(|i| write([source.whole_sge()], target.remote_address().plus(i as u64 * 8)).with_id(i as u64));
    pair.a.post_sends(rest.collect());
    for (i, wc) in pair.a.scq.wait_for_completions(5).iter().enumerate() {
        wc.expect_sent((depth + i) as u64, Verb::RdmaWrite);
    }
}

/// IBTA vol. 1, 10.7.3.1: the slot of an unsignaled WR is freed when the completion of a later WR has been
/// polled.
fn unsignaled_wrs_hold_their_slots(env: &TestEnv) {
    let pair = QpSpec::rc().create_connected_pair(env);
    let depth = pair.a.granted_cap.max_send_wr;
    let source = pair.a.alloc_buf(8);
    let target = pair.b.alloc_buf(8);
    for i in 0..depth {
        pair.a.post(write([source.whole_sge()], target.remote_address()).with_id(i.into()).unsignaled());
    }
    pair.a.scq.expect_empty();
    let one_more = pair.a.qp.try_post_sends(vec![write([source.whole_sge()], target.remote_address())]);
    let refused = one_more.expect_err("nothing has freed a slot");
    assert_eq!((refused.errno, refused.bad_wr_index), (FULL_QUEUE_ERRNO, Some(0)));
}

/// A NIC may move completions on before the program polls them, such as when the program arms the CQ. That frees no
/// slot.
fn finished_wrs_hold_their_slots_until_they_are_polled(env: &TestEnv) {
    let pair = QpSpec::rc().with_channels().create_connected_pair(env);
    let depth = pair.a.granted_cap.max_send_wr;
    let source = pair.a.alloc_buf(8);
    let target = pair.b.alloc_buf(8);
    let wr = |i: u32| write([source.whole_sge()], target.remote_address()).with_id(i.into());
    pair.a.scq.arm(false);
    for i in 0..depth {
        pair.a.post(wr(i));
    }
    pair.a.scq.arm(false);
    for i in 0..depth {
        let refused = pair.a.qp.try_post_sends(vec![wr(99)]).expect_err("not polled yet");
        assert_eq!((refused.errno, refused.bad_wr_index), (FULL_QUEUE_ERRNO, Some(0)));
        pair.a.await_send_completion().expect_sent(i.into(), Verb::RdmaWrite);
        pair.a.post(wr(depth + i));
        pair.a.scq.arm(false);
    }
}

fn polling_makes_room_in_the_send_queue(env: &TestEnv) {
    let pair = QpSpec::rc().with_change(|s| s.cqe = 4096).create_connected_pair(env);
    let depth = pair.a.granted_cap.max_send_wr;
    let source = pair.a.alloc_buf(8);
    let target = pair.b.alloc_buf(8);
    for i in 0..depth {
        let wr = write([source.whole_sge()], target.remote_address()).with_id(i.into());
        pair.a.post(if i + 1 == depth { wr } else { wr.unsignaled() });
    }
    pair.a.await_send_completion().expect_sent((depth - 1).into(), Verb::RdmaWrite);
    for i in 0..depth {
        pair.a.post(write([source.whole_sge()], target.remote_address()).with_id(i.into()));
    }
    let one_more = pair.a.qp.try_post_sends(vec![write([source.whole_sge()], target.remote_address())]);
    assert_eq!(one_more.expect_err("full again").errno, FULL_QUEUE_ERRNO);
    pair.a.await_send_completion().expect_sent(0, Verb::RdmaWrite);
    pair.a.post(write([source.whole_sge()], target.remote_address()).with_id(depth.into()));
    for (i, wc) in pair.a.scq.wait_for_completions(depth as usize).iter().enumerate() {
        wc.expect_sent(i as u64 + 1, Verb::RdmaWrite);
    }
}

fn a_full_receive_queue_refuses_with_bad_wr(env: &TestEnv) {
    let mut specs = vec![QpSpec::rc()];
    if env.expects_capability(NicCapability::Ud) {
        specs.push(QpSpec::ud());
    }
    for spec in specs {
        record_case(format!("QP type {}", spec.qp_type));
        let pair = spec.create_connected_pair(env);
        let depth = pair.b.granted_cap.max_recv_wr as usize;
        let buf = pair.b.alloc_buf(64);
        let wrs = (0..depth + 3).map(|i| recv(i as u64, [buf.whole_sge()])).collect();
        let refused = pair.b.qp.try_post_recvs(wrs).expect_err("the list is longer than the queue");
        assert_eq!((refused.errno, refused.bad_wr_index), (FULL_QUEUE_ERRNO, Some(depth)));
        let refused = pair.b.qp.try_post_recvs(vec![recv(9, [buf.whole_sge()])]).expect_err("full");
        assert_eq!((refused.errno, refused.bad_wr_index), (FULL_QUEUE_ERRNO, Some(0)));
    }
}

fn a_consumed_receive_makes_room(env: &TestEnv) {
    let pair = QpSpec::rc().create_connected_pair(env);
    let depth = u64::from(pair.b.granted_cap.max_recv_wr);
    for i in 0..depth {
        pair.b.post_recv(i, []);
    }
    for i in 0..3 * depth {
        pair.a.post(send([]).with_id(i));
        pair.b.await_recv_completion().expect_received(i, 0);
        pair.a.await_send_completion().expect_sent(i, Verb::Send);
        pair.b.post_recv(depth + i, []);
        assert!(pair.b.qp.try_post_recvs(vec![recv(0, [])]).is_err(), "more than the depth");
    }
}

/// `ibv_post_send(3)`: EINVAL, "invalid value provided in wr".
fn too_many_sges_are_refused_with_bad_wr(env: &TestEnv) {
    let pair = QpSpec::rc().create_connected_pair(env);
    let source = pair.a.alloc_buf(64);
    let target = pair.b.alloc_buf(64);
    let sges = |n: u32| (0..n).map(|_| source.sge(0, 1)).collect::<Vec<_>>();
    let too_many = pair.a.granted_cap.max_send_sge + 1;
    let wrs = vec![
        write(sges(1), target.remote_address()).with_id(1),
        write(sges(too_many), target.remote_address()).with_id(2),
        write(sges(1), target.remote_address()).with_id(3),
    ];
    let refused = pair.a.qp.try_post_sends(wrs).expect_err("too many SGEs");
    assert!([libc::EINVAL, libc::ENOMEM].contains(&refused.errno), "{refused:?}");
    assert_eq!(refused.bad_wr_index, Some(1));
    pair.a.await_send_completion().expect_sent(1, Verb::RdmaWrite);
    pair.a.scq.expect_empty();
    let sges = (0..=pair.b.granted_cap.max_recv_sge).map(|_| target.sge(0, 1));
    let refused = pair.b.qp.try_post_recvs(vec![recv(1, []), recv(2, sges)]).expect_err("too many SGEs");
    assert!([libc::EINVAL, libc::ENOMEM].contains(&refused.errno), "{refused:?}");
    assert_eq!(refused.bad_wr_index, Some(1));
    if env.expects_capability(NicCapability::ImmediateChecks) {
        let negative = pair.a.qp.try_post_with_num_sge(write([source.sge(0, 1)], target.remote_address()), -1);
        assert_eq!(negative, Err(libc::EINVAL));
    }
}

fn as_many_sges_as_granted_work(env: &TestEnv) {
    let pair = QpSpec::rc().create_connected_pair(env);
    let n = pair.a.granted_cap.max_send_sge as usize;
    let source = pair.a.alloc_buf(n * 3);
    source.memory.fill_with_pattern(5);
    let target = pair.b.alloc_buf(n * 3);
    pair.a.post(write(source.sges_cut_at(0, n * 3, &vec![2; n - 1]), target.remote_address()));
    pair.a.await_send_completion().expect_sent(0, Verb::RdmaWrite);
    target.memory.assert_whole_pattern(5);
    let n = (pair.b.granted_cap.max_recv_sge as usize).min(3 * n);
    target.memory.write(0, &[0; 1]);
    pair.b.post_recv(1, target.sges_cut_at(0, target.memory.len(), &vec![1; n - 1]));
    pair.a.post(send([source.whole_sge()]).with_id(1));
    pair.b.await_recv_completion().expect_received(1, source.memory.len());
    target.memory.assert_whole_pattern(5);
}

fn a_postlist_fills_the_queue_at_once(env: &TestEnv) {
    for depth in [1, 16, 100, 1000] {
        record_case(format!("depth {depth}"));
        let pair = QpSpec::rc().with_queue_depth(depth).create_connected_pair(env);
        let source = pair.a.alloc_buf(8);
        for round in 0..3 {
            let recvs = (0..u64::from(depth)).map(|i| recv(i, [])).collect();
            pair.b.qp.try_post_recvs(recvs).expect("as many as asked for");
            let sends = (0..u64::from(depth)).map(|i| send([]).with_id(round << 32 | i)).collect();
            pair.a.post_sends(sends);
            for (i, wc) in pair.b.rcq.wait_for_completions(depth as usize).iter().enumerate() {
                wc.expect_received(i as u64, 0);
            }
            for (i, wc) in pair.a.scq.wait_for_completions(depth as usize).iter().enumerate() {
                wc.expect_sent(round << 32 | i as u64, Verb::Send);
            }
        }
        drop(source);
    }
}

/// IBTA vol. 1, 10.8.5.1: completions of a send queue come in the order of its WRs, whatever their verbs.
fn completions_come_in_order(env: &TestEnv) {
    let pair = QpSpec::rc().with_queue_depth(64).create_connected_pair(env);
    let local = pair.a.alloc_buf(64 * 8);
    let remote = pair.b.alloc_buf(64 * 8);
    let mut verbs = vec![Verb::Send, Verb::RdmaWrite, Verb::RdmaWriteWithImm, Verb::SendWithImm];
    if env.expects_capability(NicCapability::Read) {
        verbs.push(Verb::RdmaRead);
    }
    if env.expects_capability(NicCapability::Atomics) {
        verbs.extend([Verb::AtomicFetchAndAdd, Verb::AtomicCmpAndSwp]);
    }
    for round in 0..20u64 {
        let wrs: Vec<_> = (0..40)
            .map(|i| {
                let verb = verbs[usize::try_from((i * 5 + round) % verbs.len() as u64).unwrap()];
                if verb.recv_wc_opcode().is_some() {
                    pair.b.post_recv(i, [remote.sge(8 * i, 8)]);
                }
                (verb, wr_of_verb_with_default_operands(verb, [local.sge(8 * i, 8)], remote.remote_address().plus(8 * i)).with_id(round << 8 | i))
            })
            .collect();
        let (verbs, wrs): (Vec<_>, Vec<_>) = wrs.into_iter().unzip();
        pair.a.post_sends(wrs);
        let consuming = verbs.iter().filter(|verb| verb.recv_wc_opcode().is_some()).count();
        drop(pair.b.rcq.wait_for_completions(consuming));
        for (i, wc) in pair.a.scq.wait_for_completions(40).iter().enumerate() {
            wc.expect_sent(round << 8 | i as u64, verbs[i]);
        }
    }
}

fn receives_are_taken_in_order(env: &TestEnv) {
    let mut specs = vec![QpSpec::rc()];
    if env.expects_capability(NicCapability::Ud) {
        specs.push(QpSpec::ud());
    }
    for spec in specs {
        let pair = spec.with_queue_depth(50).create_connected_pair(env);
        let grh = pair.b.grh_len();
        let buf = pair.b.alloc_buf(50 * 64);
        for i in 0..50 {
            pair.b.post_recv(i * 3, [buf.sge(i * 64, 64)]);
        }
        let source = pair.a.alloc_buf(50);
        source.memory.fill_with_pattern(1);
        for i in 0..50u64 {
            pair.a.post(send([source.sge(i, 1)]).unsignaled());
        }
        for (i, wc) in pair.b.rcq.wait_for_completions(50).iter().enumerate() {
            wc.expect_received(i as u64 * 3, grh + 1);
            assert_eq!(buf.memory.read(i * 64 + grh, 1), source.memory.read(i, 1));
        }
    }
}

fn queues_wrap_around(env: &TestEnv) {
    // The depth is not a power of two, and the bursts have no common factor with it.
    let pair = QpSpec::rc().with_queue_depth(7).create_connected_pair(env);
    let source = pair.a.alloc_buf(8);
    let target = pair.b.alloc_buf(8 * 5);
    for round in 0..300u64 {
        let burst = 1 + round % 5;
        for i in 0..burst {
            pair.b.post_recv(round << 4 | i, [target.sge(8 * i, 8)]);
        }
        source.memory.store(0, round);
        pair.a.post_sends((0..burst).map(|i| send([source.whole_sge()]).with_id(round << 4 | i)).collect());
        for (i, wc) in pair.b.rcq.wait_for_completions(usize::try_from(burst).unwrap()).iter().enumerate() {
            wc.expect_received(round << 4 | i as u64, 8);
            assert_eq!(target.memory.load(8 * i), round);
        }
        for (i, wc) in pair.a.scq.wait_for_completions(usize::try_from(burst).unwrap()).iter().enumerate() {
            wc.expect_sent(round << 4 | i as u64, Verb::Send);
        }
    }
}

fn a_queue_pair_without_send_queue(env: &TestEnv) {
    let mut pair = QpSpec::rc().create_unconnected_pair(env);
    pair.b = QpSpec::rc().with_change(|s| (s.max_send_wr, s.max_send_sge, s.max_inline_data) = (0, 0, 0)).create_qp_side(&env.peer_env());
    pair.connect();
    let source = pair.a.alloc_buf(8);
    let target = pair.b.alloc_buf(8);
    pair.b.post_recv(1, [target.whole_sge()]);
    pair.a.post(send([source.whole_sge()]).with_id(2));
    pair.b.await_recv_completion().expect_received(1, 8);
    pair.a.await_send_completion().expect_sent(2, Verb::Send);
    if pair.b.granted_cap.max_send_wr == 0 {
        let refused = pair.b.qp.try_post_sends(vec![send([]).with_id(3)]).expect_err("there is no send queue");
        assert!([libc::ENOMEM, libc::EINVAL].contains(&refused.errno));
    }
}

fn a_queue_pair_without_receive_queue(env: &TestEnv) {
    let mut pair = QpSpec::rc().create_unconnected_pair(env);
    pair.a = QpSpec::rc().with_change(|s| (s.max_recv_wr, s.max_recv_sge) = (0, 0)).create_qp_side(env);
    pair.connect();
    let source = pair.a.alloc_buf(8);
    let target = pair.b.alloc_buf(8);
    pair.a.post(write([source.whole_sge()], target.remote_address()).with_id(2));
    pair.a.await_send_completion().expect_sent(2, Verb::RdmaWrite);
    if env.expects_capability(NicCapability::Read) {
        pair.b.post(read([target.whole_sge()], source.remote_address()).with_id(2));
        pair.b.await_send_completion().expect_sent(2, Verb::RdmaRead);
    }
    if pair.a.granted_cap.max_recv_wr == 0 {
        let refused = pair.a.qp.try_post_recvs(vec![recv(3, [])]).expect_err("there is no receive queue");
        assert!([libc::ENOMEM, libc::EINVAL].contains(&refused.errno));
    }
}

fn one_cq_for_both_queues(env: &TestEnv) {
    let mut a = QpSpec::rc().create_qp_side(env);
    let cq = a.ctx.create_cq(64);
    let mut init = crate::objects::QpInitAttr::new(IBV_QPT_RC, &cq, &cq);
    let mut b = a.create_side_on_same_pd_and_cqs();
    a.qp = a.pd.create_qp(&mut init);
    b.qp = b.pd.create_qp(&mut init);
    let (to_a, to_b) = (a.address(), b.address());
    a.connect(&to_b);
    b.connect(&to_a);
    for i in 0..20u64 {
        b.post_recv(1000 + i, []);
        a.post(send([]).with_id(i));
        let mut wcs = cq.wait_for_completions(2);
        wcs.sort_by_key(|wc| wc.id());
        wcs[0].expect_sent(i, Verb::Send);
        assert_eq!(wcs[0].qpn(), a.qp.qpn());
        wcs[1].expect_received(1000 + i, 0);
        assert_eq!(wcs[1].qpn(), b.qp.qpn());
    }
}

/// A program polls one completion at a time. Before each poll an answer to the program's last send has
/// arrived.
///
/// The CQ must also return the completions of the sends, which are older than the answers. Otherwise the send
/// queue would become full.
fn arriving_messages_do_not_starve_send_completions(env: &TestEnv) {
    let spec = |wrs| QpSpec::rc().with_change(|s| (s.max_send_wr, s.max_recv_wr) = (wrs, 128));
    let (mut a, mut b) = (spec(16).create_qp_side(env), spec(128).create_qp_side(&env.peer_env()));
    let cq = a.ctx.create_cq(256);
    let mut init = crate::objects::QpInitAttr::new(IBV_QPT_RC, &cq, &cq);
    init.cap = a.granted_cap;
    a.qp = a.pd.create_qp(&mut init);
    let (to_a, to_b) = (a.address(), b.address());
    a.connect(&to_b);
    b.connect(&to_a);
    let room = a.qp.query().1.cap.max_send_wr;
    let rounds = u64::from(room.min(64)) * 3 / 2;
    let mut taken = Vec::new();
    for i in 0..rounds {
        a.post_recv(1000 + i, []);
        b.post_recv(i, []);
        a.post(send([]).with_id(i));
        b.await_recv_completion().expect_received(i, 0);
        b.post(send([]).with_id(i));
        taken.extend(cq.wait_for_completions(1));
    }
    taken.extend(cq.wait_for_completions(rounds as usize));
    for (first, what) in [(0, "a send"), (1000, "an answer")] {
        let ids = taken.iter().map(|wc| wc.id());
        let ids: Vec<_> = ids.filter(|id| (first..first + rounds).contains(id)).collect();
        assert!(ids.iter().copied().eq(first..first + rounds), "{what}: {ids:?}");
    }
}

fn one_cq_for_many_queue_pairs(env: &TestEnv) {
    let a = QpSpec::rc().with_change(|s| s.cqe = 1000).create_qp_side(env);
    let b = QpSpec::rc().with_change(|s| s.cqe = 1000).create_qp_side(&env.peer_env());
    let mut pairs = Vec::new();
    for _ in 0..20 {
        let (mut x, mut y) = (a.create_side_on_same_pd_and_cqs(), b.create_side_on_same_pd_and_cqs());
        let (to_x, to_y) = (x.address(), y.address());
        x.connect(&to_y);
        y.connect(&to_x);
        pairs.push((x, y));
    }
    for round in 0..10u64 {
        for (i, (x, y)) in pairs.iter().enumerate() {
            y.post_recv(round << 8 | i as u64, []);
            x.post(send([]).with_id(round << 8 | i as u64));
        }
        for (cq, receives) in [(&b.rcq, true), (&a.scq, false)] {
            let mut seen = vec![false; pairs.len()];
            for wc in cq.wait_for_completions(pairs.len()) {
                assert_eq!(wc.status(), IBV_WC_SUCCESS);
                assert_eq!(wc.id() >> 8, round);
                let i = usize::try_from(wc.id() & 0xff).unwrap();
                let qp = if receives { &pairs[i].1.qp } else { &pairs[i].0.qp };
                assert_eq!(wc.qpn(), qp.qpn(), "completion of another QP");
                assert!(!std::mem::replace(&mut seen[i], true), "a completion twice");
            }
        }
    }
}

/// A SEND completes when it has been received, whether or not the receiver answers it.
///
/// An answer to an earlier SEND, or on an earlier connection, must not complete a SEND that has not been
/// received.
fn sends_complete_when_received_answered_or_not(env: &TestEnv) {
    // The lengths cover payloads in the ring's record, and payloads sent by reference if the NIC sends them
    // so.
    for len in [0, 8, 4000] {
        record_case(format!("{len} bytes"));
        let mut pair = QpSpec::rc().create_connected_pair(env);
        let (request, answer) = (pair.a.alloc_buf(len + 1), pair.b.alloc_buf(len + 1));
        let (request, answer) = (request.sge(0, len), answer.sge(0, len));
        let (question, reply) = (pair.b.alloc_buf(len + 1), pair.a.alloc_buf(len + 1));
        let (question, reply) = (question.sge(0, len), reply.sge(0, len));
        for turn in 0..200u64 {
            pair.a.post_recv(turn, [reply]);
            pair.b.post_recv(turn, [question]);
            pair.a.post(send([request]).with_id(turn));
            pair.b.await_recv_completion().expect_received(turn, len);
            let taken_only = turn % 20 == 19;
            if taken_only {
                pair.a.await_send_completion().expect_sent(turn, Verb::Send);
            }
            pair.b.post(send([answer]).with_id(turn));
            // When the completion is polled, the answer has been received or is still outstanding.
            let answered_first = turn % 2 == 0;
            if answered_first {
                pair.a.await_recv_completion().expect_received(turn, len);
            }
            if !taken_only {
                pair.a.await_send_completion().expect_sent(turn, Verb::Send);
            }
            if !answered_first {
                pair.a.await_recv_completion().expect_received(turn, len);
            }
            pair.b.await_send_completion().expect_sent(turn, Verb::Send);
        }
        for connection in 0..2 {
            pair.a.post(send([request]).with_id(1000));
            pair.a.scq.expect_empty();
            // The receive below takes an answer to another message.
            pair.a.post_recv(1001, [reply]);
            pair.b.post(send([answer]).with_id(1001));
            pair.a.await_recv_completion().expect_received(1001, len);
            pair.a.scq.expect_empty();
            pair.b.post_recv(1000, [question]);
            pair.b.await_recv_completion().expect_received(1000, len);
            pair.a.await_send_completion().expect_sent(1000, Verb::Send);
            pair.b.await_send_completion().expect_sent(1001, Verb::Send);
            if connection == 0 {
                pair.a.qp.move_to_state(IBV_QPS_RESET);
                pair.b.qp.move_to_state(IBV_QPS_RESET);
                pair.connect();
            }
        }
    }
}

/// One CQ serves more queue pairs than a NIC checks in one poll; busy queue pairs do not starve the others.
fn one_cq_for_hundreds_of_queue_pairs(env: &TestEnv) {
    const PAIRS: usize = 200;
    let spec = QpSpec::rc().with_change(|s| s.cqe = 4096);
    let (a, b) = (spec.create_qp_side(env), spec.create_qp_side(&env.peer_env()));
    let pairs: Vec<_> = (0..PAIRS)
        .map(|_| {
            let (mut x, mut y) = (a.create_side_on_same_pd_and_cqs(), b.create_side_on_same_pd_and_cqs());
            let (to_x, to_y) = (x.address(), y.address());
            x.connect(&to_y);
            y.connect(&to_x);
            (x, y)
        })
        .collect();
    for (_, y) in &pairs {
        for i in 0..8 {
            y.post_recv(i, []);
        }
    }
    for (x, _) in &pairs {
        x.post_sends((0..8).map(|i| send([]).with_id(i)).collect());
    }
    let mut next = std::collections::HashMap::new();
    for wc in b.rcq.wait_for_completions(8 * PAIRS) {
        let next: &mut u64 = next.entry(wc.qpn()).or_default();
        wc.expect_received(*next, 0);
        *next += 1;
    }
    assert_eq!(next.len(), PAIRS);
    let mut next = std::collections::HashMap::new();
    for wc in a.scq.wait_for_completions(8 * PAIRS) {
        let next: &mut u64 = next.entry(wc.qpn()).or_default();
        wc.expect_sent(*next, Verb::Send);
        *next += 1;
    }
    // The busy queue pair sends continuously, and the rare queue pair sends one message.
    for round in 0..20 {
        let (busy, rare) = (&pairs[round * 3 % PAIRS], &pairs[(round * 7 + 100) % PAIRS]);
        rare.1.post_recv(99, []);
        rare.0.post(send([]).with_id(99));
        let mut heard = false;
        let deadline = std::time::Instant::now() + crate::harness::wait_limit();
        // The busy queue is never full, even if acknowledgements are slow.
        let mut in_flight = 0;
        while !heard {
            if in_flight < 4 {
                busy.1.post_recv(1, []);
                busy.0.post(send([]).with_id(1));
                in_flight += 1;
            }
            for wc in b.rcq.poll(1) {
                heard |= wc.id() == 99;
            }
            in_flight -= a.scq.poll(1).iter().filter(|wc| wc.id() == 1).count();
            assert!(std::time::Instant::now() < deadline, "a queue pair starves");
            if busy.0.qp.qpn() == rare.0.qp.qpn() {
                break;
            }
        }
        drop(b.rcq.poll_for_quiet_period());
        drop(a.scq.poll_for_quiet_period());
    }
}

/// One CQ serves both queues. A send completes at once before each poll, and each poll takes one completion.
/// The CQ nevertheless reports an arriving message, and reports a send's completion while messages arrive.
fn busy_sends_do_not_starve_receives(env: &TestEnv) {
    let mut a = QpSpec::rc().create_qp_side(env);
    let cq = a.ctx.create_cq(256);
    a.qp = a.pd.create_qp(&mut crate::objects::QpInitAttr::new(IBV_QPT_RC, &cq, &cq));
    (a.scq, a.rcq) = (cq.clone(), cq.clone());
    let mut pair = crate::pair::QpPair {
        a,
        b: QpSpec::rc().with_queue_depth(64).create_qp_side(&env.peer_env()),
    };
    pair.connect();
    let (source, target) = (pair.a.alloc_buf(8), pair.b.alloc_buf(8));
    pair.a.post(write([source.whole_sge()], target.remote_address()).with_id(1));
    pair.a.post_recv(2, []);
    pair.b.post(send([]).with_id(3));
    let mut polls = 0;
    loop {
        pair.a.post(write([source.whole_sge()], target.remote_address()).with_id(1));
        let wc = cq.await_completion();
        if wc.id() == 2 {
            wc.expect_received(2, 0);
            break;
        }
        wc.expect_sent(1, Verb::RdmaWrite);
        polls += 1;
        assert!(polls < 2000, "receives starve");
    }
    drop(cq.poll_for_quiet_period());
    pair.b.await_send_completion().expect_sent(3, Verb::Send);
    for _ in 0..2 {
        pair.a.post_recv(2, []);
        pair.b.post(send([]).with_id(3));
    }
    pair.a.post(write([source.whole_sge()], target.remote_address()).with_id(1));
    let mut polls = 0;
    loop {
        pair.a.post_recv(2, []);
        pair.b.post(send([]).with_id(3));
        drop(pair.b.scq.poll(16));
        let wc = cq.await_completion();
        if wc.id() == 1 {
            wc.expect_sent(1, Verb::RdmaWrite);
            break;
        }
        wc.expect_received(2, 0);
        polls += 1;
        assert!(polls < 2000, "sends starve");
    }
}

/// Sends as many messages as a queue pair can hold before the receiver posts a receive.
fn a_full_send_queue_waits_for_receives(env: &TestEnv) {
    let device = QpSpec::rc().create_qp_side(env).ctx.device_attr();
    let depth = device.max_qp_wr.min(4000).cast_unsigned();
    for len in [8usize, 500, 1024, 3000] {
        record_case(format!("{depth} messages of {len} bytes"));
        let pair = QpSpec::rc().with_queue_depth(depth).create_connected_pair(env);
        let source = pair.a.alloc_buf(64 * len);
        source.memory.fill_with_pattern(6);
        for i in 0..u64::from(depth) {
            pair.a.post(send([source.sge(i % 64 * len as u64, len)]).with_id(i));
        }
        assert!(pair.a.scq.poll(1).is_empty());
        let target = pair.b.alloc_buf(8 * len);
        let expected = source.memory.read(0, 64 * len);
        let mut next = 0;
        while next < u64::from(depth) {
            // A NIC may need a moment each time it finds a receive after it has found none.
            let batch = if next < 16 { 1 } else { 8.min(u64::from(depth) - next) };
            for i in 0..batch {
                pair.b.post_recv(next + i, [target.sge(i * len as u64, len)]);
            }
            for i in 0..batch {
                pair.b.await_recv_completion().expect_received(next + i, len);
                let at = usize::try_from((next + i) % 64).unwrap() * len;
                let got = target.memory.read(usize::try_from(i).unwrap() * len, len);
                crate::memory::assert_same_bytes(&got, &expected[at..at + len], at);
            }
            next += batch;
        }
        for (i, wc) in pair.a.scq.wait_for_completions(depth as usize).iter().enumerate() {
            wc.expect_sent(i as u64, Verb::Send);
        }
    }
}

fn poll_takes_no_more_than_asked_for(env: &TestEnv) {
    let pair = QpSpec::rc().create_connected_pair(env);
    let source = pair.a.alloc_buf(8);
    let target = pair.b.alloc_buf(8);
    pair.a.post_sends((0..10).map(|i| write([source.whole_sge()], target.remote_address()).with_id(i)).collect());
    let mut next = 0;
    assert_eq!(pair.a.scq.poll_result_code(0), 0);
    while next < 10 {
        for max in [1, 3] {
            for wc in pair.a.scq.poll(max) {
                wc.expect_sent(next, Verb::RdmaWrite);
                next += 1;
            }
        }
    }
    assert!(pair.a.scq.poll(16).is_empty());
}

/// If a CQ is too small, either all completions arrive, or the device raises IBV_EVENT_CQ_ERR.
fn an_overflowing_cq_loses_nothing_silently(env: &TestEnv) {
    let side = QpSpec::rc().with_change(|s| s.cqe = 1).with_queue_depth(64).with_change(|s| s.cqe = 1);
    let pair = side.create_connected_pair(env);
    let capacity = pair.a.scq.cqe();
    let depth = pair.a.granted_cap.max_send_wr as usize;
    if capacity >= depth {
        return;
    }
    let source = pair.a.alloc_buf(8);
    let target = pair.b.alloc_buf(8);
    for i in 0..depth as u64 {
        if pair.a.qp.try_post_sends(vec![write([source.whole_sge()], target.remote_address()).with_id(i)]).is_err() {
            break;
        }
    }
    let wcs = pair.a.scq.poll_for_quiet_period();
    if wcs.len() < depth {
        let event = pair.a.ctx.await_async_event_but_comm_est();
        assert!([IBV_EVENT_CQ_ERR, IBV_EVENT_QP_FATAL].contains(&event.kind()));
    } else {
        for (i, wc) in wcs.iter().enumerate() {
            wc.expect_sent(i as u64, Verb::RdmaWrite);
        }
    }
}
