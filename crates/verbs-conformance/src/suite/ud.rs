//! Tests of unreliable datagrams: Q_Keys, the leading GRH, source addresses, and lost messages.

use verbs_abi::*;

use crate::TestEnv;
use crate::test_env::NicCapability;
use crate::harness::record_case;
use crate::memory::ZeroedMemory;
use crate::objects::{Buf, QUIET_PERIOD, is_same_gid_and_lid};
use crate::pair::{QpPair, QKEY, QpSide, QpSpec};
use crate::wr::{Verb, Wc, send, send_imm};

tests! { "ud";
    a_completion_names_its_source [Ud],
    the_grh_is_in_front [Ud],
    the_first_40_bytes_may_be_an_sge_of_their_own [Ud],
    no_grh_on_a_local_subnet [Ud],
    a_global_route_brings_a_grh [Ud],
    a_wrong_qkey_is_dropped [Ud],
    a_qkey_with_the_high_bit_selects_the_senders_own [Ud],
    the_qkey_can_change [Ud],
    a_reply_is_addressed_from_the_completion [Ud],
    the_address_vector_from_a_completion_leads_back [Ud],
    one_sender_many_receivers [Ud],
    many_senders_one_receiver [Ud],
    hundreds_of_destinations [Ud],
    hundreds_of_sources [Ud],
    a_busy_source_starves_nobody [Ud],
    a_receiver_that_does_not_poll_loses_no_datagram [Ud, Events, PatientDatagrams],
    a_full_receiver_delays_its_sender_only_once [Ud, PatientDatagrams],
    a_queue_pair_sends_datagrams_to_itself [Ud],
    datagrams_to_unknown_qpns_are_lost [Ud],
    datagrams_to_a_destroyed_qp_are_lost [Ud],
    receive_memory_may_be_unmapped_before_its_qp [Ud],
    receive_memory_may_be_unmapped_during_sleep [Ud, Events],
    connected_queue_pairs_ignore_datagrams [Ud],
    a_flood_loses_but_never_corrupts_datagrams [Ud],
    payload_of_exactly_the_mtu [Ud],
    a_payload_is_read_when_it_is_posted [Ud],
    rtr_receives [Ud],
    an_ah_may_be_destroyed_after_its_send [Ud],
}

#[track_caller]
fn transfer_empty_datagram(pair: &QpPair, target: &Buf, wr_id: u64) -> Wc {
    pair.b.post_recv(wr_id, [target.whole_sge()]);
    pair.a.post(send([]).with_id(wr_id));
    let wc = pair.b.await_recv_completion();
    wc.expect_received(wr_id, 40);
    pair.a.await_send_completion().expect_sent(wr_id, Verb::Send);
    wc
}

fn a_completion_names_its_source(env: &TestEnv) {
    let pair = QpSpec::ud().create_connected_pair(env);
    let target = pair.b.alloc_buf(64);
    let wc = transfer_empty_datagram(&pair, &target, 1);
    assert_eq!(wc.raw().src_qp, pair.a.qp.qpn());
    assert_eq!(wc.qpn(), pair.b.qp.qpn());
    assert_eq!(wc.raw().pkey_index, 0);
    let port = pair.a.ctx.port_attr();
    if port.link_layer == IBV_LINK_LAYER_INFINIBAND {
        // Packets of RoCE carry neither SL nor LIDs.
        assert_eq!(wc.raw().sl, 0);
        assert_eq!(wc.raw().slid, port.lid);
        assert_eq!(wc.raw().dlid_path_bits, 0);
    }
}

fn is_ethernet(side: &QpSide) -> bool {
    side.ctx.port_attr().link_layer == IBV_LINK_LAYER_ETHERNET
}

/// Checks the source and destination addresses in the GRH: 16 bytes of GID each, or for RoCEv2 over IPv4 the
/// IP header in the last 20 bytes (RoCEv2 annex A17.4.5.1).
fn check_grh_addresses(pair: &QpPair, bytes: &[u8]) {
    let (source, dest) = (pair.a.address().gid, pair.b.address().gid);
    let v4 = source[..12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
    if v4 && is_ethernet(&pair.a) && bytes[20] >> 4 == 4 {
        assert_eq!(bytes[32..36], source[12..], "source address");
        assert_eq!(bytes[36..40], dest[12..], "destination address");
    } else {
        assert_eq!(bytes[0] >> 4, 6, "IP version");
        assert_eq!(bytes[8..24], source, "source GID");
        assert_eq!(bytes[24..40], dest, "destination GID");
    }
}

fn the_grh_is_in_front(env: &TestEnv) {
    let pair = QpSpec::ud().create_connected_pair(env);
    let source = pair.a.alloc_buf(100);
    let target = pair.b.alloc_buf(140);
    source.memory.fill_with_pattern(5);
    for len in [0, 1, 100] {
        record_case(format!("{len} bytes"));
        target.memory.write(0, &[0xee; 140]);
        pair.b.post_recv(1, [target.whole_sge()]);
        pair.a.post(send([source.sge(0, len)]).with_id(2));
        let wc = pair.b.await_recv_completion();
        wc.expect_received(1, 40 + len);
        pair.a.await_send_completion().expect_sent(2, Verb::Send);
        target.memory.assert_pattern_at(40, len, 5);
        target.memory.assert_filled_with(40 + len, 100 - len, 0xee);
        if is_ethernet(&pair.b) {
            assert!(wc.raw().wc_flags & IBV_WC_GRH != 0, "RoCE always has a GRH");
        }
        if wc.raw().wc_flags & IBV_WC_GRH != 0 {
            check_grh_addresses(&pair, &target.memory.read(0, 40));
        }
    }
}

fn the_first_40_bytes_may_be_an_sge_of_their_own(env: &TestEnv) {
    let pair = QpSpec::ud().create_connected_pair(env);
    let source = pair.a.alloc_buf(64);
    source.memory.fill_with_pattern(5);
    let headers = pair.b.alloc_buf(40);
    let target = pair.b.alloc_buf(64);
    pair.b.post_recv(1, [headers.whole_sge(), target.sge(0, 10), target.sge(10, 54)]);
    pair.a.post(send([source.whole_sge()]).with_id(2));
    pair.b.await_recv_completion().expect_received(1, 104);
    target.memory.assert_whole_pattern(5);
    // The SGEs may also split the GRH.
    target.memory.write(0, &[0; 64]);
    pair.b.post_recv(3, [headers.sge(0, 7), headers.sge(7, 33), target.whole_sge()]);
    pair.a.post(send([source.whole_sge()]).with_id(2));
    pair.b.await_recv_completion().expect_received(3, 104);
    target.memory.assert_whole_pattern(5);
}

/// Without a global route the message has no GRH: the first 40 bytes are reserved, and their content is
/// undefined.
fn no_grh_on_a_local_subnet(env: &TestEnv) {
    let pair = QpSpec::ud().create_connected_pair(env);
    if is_ethernet(&pair.a) {
        return;
    }
    let target = pair.b.alloc_buf(64);
    let wc = transfer_empty_datagram(&pair, &target, 1);
    assert_eq!(wc.raw().wc_flags & IBV_WC_GRH, 0);
}

fn a_global_route_brings_a_grh(env: &TestEnv) {
    let pair = QpSpec::ud().with_change(|s| s.uses_grh = true).create_connected_pair(env);
    let target = pair.b.alloc_buf(64);
    let wc = transfer_empty_datagram(&pair, &target, 1);
    assert!(wc.raw().wc_flags & IBV_WC_GRH != 0);
    check_grh_addresses(&pair, &target.memory.read(0, 40));
}

/// IBTA vol. 1, 9.6.1.4.1: the packet with the wrong Q_Key is silently dropped and counted.
fn a_wrong_qkey_is_dropped(env: &TestEnv) {
    let pair = QpSpec::ud().create_connected_pair(env);
    let target = pair.b.alloc_buf(64);
    let (ah, qpn, _) = pair.a.ud_destination.clone().expect("a route");
    pair.b.post_recv(1, [target.whole_sge()]);
    for qkey in [0, 1, QKEY ^ 1, QKEY ^ 0x4000_0000, u32::MAX >> 1] {
        pair.a.post(send([]).with_id(2).with_ud_destination(&ah, qpn, qkey));
        pair.a.await_send_completion().expect_sent(2, Verb::Send);
    }
    pair.b.expect_no_completions();
    pair.a.post(send([]).with_id(3));
    pair.b.await_recv_completion().expect_received(1, 40);
}

/// IBTA vol. 1, 10.2.5: "If the high-order bit of the Q_Key is set, the Q_Key in the QP context is used".
fn a_qkey_with_the_high_bit_selects_the_senders_own(env: &TestEnv) {
    let pair = QpSpec::ud().create_connected_pair(env);
    let target = pair.b.alloc_buf(64);
    let (ah, qpn, _) = pair.a.ud_destination.clone().expect("a route");
    for qkey in [1 << 31, u32::MAX] {
        pair.b.post_recv(1, [target.whole_sge()]);
        pair.a.post(send([]).with_id(2).with_ud_destination(&ah, qpn, qkey));
        pair.b.await_recv_completion().expect_received(1, 40);
        pair.a.await_send_completion().expect_sent(2, Verb::Send);
    }
    let mut other = QpPair {
        a: QpSpec::ud().with_change(|s| s.qkey = 7).create_qp_side(env),
        b: pair.b,
    };
    let peer = other.b.address();
    other.a.connect(&peer);
    other.b.post_recv(3, [target.whole_sge()]);
    let (ah, qpn, _) = other.a.ud_destination.clone().expect("a route");
    other.a.post(send([]).with_id(4).with_ud_destination(&ah, qpn, 1 << 31));
    other.a.await_send_completion().expect_sent(4, Verb::Send);
    other.b.expect_no_completions();
    other.a.post(send([]).with_id(5).with_ud_destination(&ah, qpn, QKEY));
    other.b.await_recv_completion().expect_received(3, 40);
}

fn the_qkey_can_change(env: &TestEnv) {
    let pair = QpSpec::ud().create_connected_pair(env);
    let target = pair.b.alloc_buf(64);
    let mut attr = ibv_qp_attr::zeroed();
    attr.qkey = 99;
    pair.b.qp.modify(&attr, IBV_QP_QKEY).expect("RTS to RTS");
    pair.b.post_recv(1, [target.whole_sge()]);
    pair.a.post(send([]).with_id(2));
    pair.a.await_send_completion().expect_sent(2, Verb::Send);
    pair.b.expect_no_completions();
    let (ah, qpn, _) = pair.a.ud_destination.clone().expect("a route");
    pair.a.post(send([]).with_id(3).with_ud_destination(&ah, qpn, 99));
    pair.b.await_recv_completion().expect_received(1, 40);
}

fn read_grh(target: &Buf) -> [u8; 40] {
    target.memory.read(0, 40).try_into().expect("40 bytes")
}

fn a_reply_is_addressed_from_the_completion(env: &TestEnv) {
    for global in [false, true] {
        let pair = QpSpec::ud().with_change(|s| s.uses_grh = global).create_connected_pair(env);
        let target = pair.b.alloc_buf(64);
        let wc = transfer_empty_datagram(&pair, &target, 1);
        let ah = pair.b.pd.try_create_ah_from_wc(&wc, &read_grh(&target)).expect("ibv_create_ah_from_wc");
        let reply = pair.a.alloc_buf(64);
        pair.a.post_recv(2, [reply.whole_sge()]);
        let wr = send_imm([], 77).with_id(3).with_ud_destination(&ah, wc.raw().src_qp, QKEY);
        pair.b.qp.post(wr);
        let wc = pair.a.await_recv_completion();
        wc.expect_received(2, 40);
        assert_eq!(wc.imm(), Some(77));
        assert_eq!(wc.raw().src_qp, pair.b.qp.qpn());
        pair.b.await_send_completion().expect_sent(3, Verb::Send);
    }
}

fn the_address_vector_from_a_completion_leads_back(env: &TestEnv) {
    for global in [false, true] {
        let pair = QpSpec::ud().with_change(|s| s.uses_grh = global).create_connected_pair(env);
        let target = pair.b.alloc_buf(64);
        let wc = transfer_empty_datagram(&pair, &target, 1);
        let attr = pair.b.pd.ah_attr_from_wc(&wc, &read_grh(&target)).expect("ibv_init_ah_from_wc");
        let expected = pair.b.ah_attr_to_peer(&pair.a.address());
        assert!(is_same_gid_and_lid(&attr, &expected), "it leads somewhere else");
        assert_eq!(attr.port_num, env.settings.port);
    }
}

fn one_sender_many_receivers(env: &TestEnv) {
    let sender = QpSpec::ud().create_connected_pair(env);
    let mut receivers: Vec<QpSide> = (0..8).map(|_| QpSpec::ud().create_qp_side(&env.peer_env())).collect();
    let target = receivers.iter_mut().map(|receiver| {
        receiver.connect(&sender.a.address());
        receiver.alloc_buf(64)
    });
    let target: Vec<Buf> = target.collect();
    let ah = sender.a.pd.create_ah(&sender.a.ah_attr_to_peer(&receivers[0].address()));
    for round in 0..20u64 {
        for (receiver, target) in receivers.iter().zip(&target) {
            receiver.post_recv(round, [target.whole_sge()]);
        }
        let wrs = receivers.iter().enumerate().map(|(i, receiver)| {
            let imm = u32::try_from(i).expect("small");
            send_imm([], imm).with_id(i as u64).with_ud_destination(&ah, receiver.qp.qpn(), QKEY)
        });
        sender.a.post_sends(wrs.collect());
        for (i, receiver) in receivers.iter().enumerate() {
            let wc = receiver.await_recv_completion();
            wc.expect_received(round, 40);
            assert_eq!(wc.imm(), u32::try_from(i).ok());
        }
        for (i, wc) in sender.a.scq.wait_for_completions(receivers.len()).iter().enumerate() {
            wc.expect_sent(i as u64, Verb::Send);
        }
    }
}

fn many_senders_one_receiver(env: &TestEnv) {
    let receiver = QpSpec::ud().with_queue_depth(64).create_connected_pair(env).b;
    let senders: Vec<QpSide> = (0..8)
        .map(|_| {
            let mut sender = QpSpec::ud().create_qp_side(env);
            sender.connect(&receiver.address());
            sender
        })
        .collect();
    let target = receiver.alloc_buf(64);
    for _ in 0..20 {
        for i in 0..8 {
            receiver.post_recv(i, [target.whole_sge()]);
        }
        for sender in &senders {
            sender.post(send([]).with_id(1));
        }
        let mut sources: Vec<u32> = receiver.rcq.wait_for_completions(8).iter().map(|wc| wc.raw().src_qp).collect();
        let mut expected: Vec<u32> = senders.iter().map(|sender| sender.qp.qpn()).collect();
        sources.sort_unstable();
        expected.sort_unstable();
        assert_eq!(sources, expected);
        for sender in &senders {
            sender.await_send_completion().expect_sent(1, Verb::Send);
        }
    }
}

/// Sends datagrams to more destinations than any cache of addresses holds, in changing order.
fn hundreds_of_destinations(env: &TestEnv) {
    const RECEIVERS: usize = 200;
    let sender = QpSpec::ud().with_queue_depth(256).create_connected_pair(env).a;
    let first = QpSpec::ud().with_change(|s| s.cqe = 1024).create_qp_side(env);
    let mut receivers: Vec<QpSide> = (0..RECEIVERS).map(|_| first.create_side_on_same_pd_and_cqs()).collect();
    for receiver in &mut receivers {
        receiver.connect(&sender.address());
    }
    let target = first.alloc_buf(64);
    let ah = sender.pd.create_ah(&sender.ah_attr_to_peer(&first.address()));
    let mut rng = crate::Rng::new(3);
    for round in 0..5u64 {
        let mut wrs = Vec::new();
        for receiver in &receivers {
            receiver.post_recv(round, [target.whole_sge()]);
        }
        let offset = usize::try_from(rng.below(RECEIVERS as u64)).expect("small");
        for i in 0..RECEIVERS {
            let i = (i * 77 + offset) % RECEIVERS;
            let imm = u32::try_from(i).expect("small");
            wrs.push(send_imm([], imm).with_id(i as u64).with_ud_destination(&ah, receivers[i].qp.qpn(), QKEY));
        }
        sender.post_sends(wrs);
        let mut heard = [false; RECEIVERS];
        for wc in first.rcq.wait_for_completions(RECEIVERS) {
            wc.expect_received(round, 40);
            let i = wc.imm().expect("an immediate") as usize;
            assert_eq!(wc.qpn(), receivers[i].qp.qpn(), "somebody else's message");
            assert!(!std::mem::replace(&mut heard[i], true), "twice");
        }
        drop(sender.scq.wait_for_completions(RECEIVERS));
    }
}

fn hundreds_of_sources(env: &TestEnv) {
    const SENDERS: usize = 200;
    let receiver = QpSpec::ud().with_queue_depth(512).create_connected_pair(env).b;
    let first = QpSpec::ud().with_change(|s| s.cqe = 1024).create_qp_side(env);
    let mut senders: Vec<QpSide> = (0..SENDERS).map(|_| first.create_side_on_same_pd_and_cqs()).collect();
    for sender in &mut senders {
        sender.connect(&receiver.address());
    }
    let target = receiver.alloc_buf(64);
    for round in 0..3u64 {
        for _ in 0..SENDERS {
            receiver.post_recv(round, [target.whole_sge()]);
        }
        for sender in &senders {
            sender.post(send([]).with_id(round));
        }
        let mut sources: Vec<u32> =
            receiver.rcq.wait_for_completions(SENDERS).iter().map(|wc| wc.raw().src_qp).collect();
        let mut expected: Vec<u32> = senders.iter().map(|sender| sender.qp.qpn()).collect();
        sources.sort_unstable();
        expected.sort_unstable();
        assert_eq!(sources, expected);
        drop(first.scq.wait_for_completions(SENDERS));
    }
}

/// One sender sends continuously, and other senders send one message each. The receiver polls one completion
/// at a time.
fn a_busy_source_starves_nobody(env: &TestEnv) {
    const SENDERS: usize = 60;
    let receiver = QpSpec::ud().with_queue_depth(512).create_connected_pair(env).b;
    let first = QpSpec::ud().with_change(|s| s.cqe = 4096).create_qp_side(env);
    let mut senders: Vec<QpSide> = (0..SENDERS).map(|_| first.create_side_on_same_pd_and_cqs()).collect();
    for sender in &mut senders {
        sender.connect(&receiver.address());
    }
    let target = receiver.alloc_buf(64);
    for _ in 0..100 {
        receiver.post_recv(1, [target.whole_sge()]);
    }
    // Each sender's first message has been received.
    for sender in &senders {
        sender.post(send_imm([], 1).with_id(0));
    }
    for _ in &senders {
        assert_eq!(receiver.await_recv_completion().imm(), Some(1));
        receiver.post_recv(1, [target.whole_sge()]);
    }
    drop(first.scq.wait_for_completions(SENDERS));
    for rare in 1..SENDERS {
        record_case(format!("sender {rare}"));
        let busy = &senders[rare * 7 % SENDERS];
        let rare = &senders[rare];
        if busy.qp.qpn() == rare.qp.qpn() {
            continue;
        }
        for _ in 0..4 {
            busy.post(send_imm([], 2).with_id(0).unsignaled());
        }
        rare.post(send_imm([], 3).with_id(0));
        first.scq.await_completion().expect_sent(0, Verb::Send);
        let mut polls = 0;
        loop {
            busy.post(send_imm([], 2).with_id(0));
            first.scq.await_completion().expect_sent(0, Verb::Send);
            let wc = receiver.await_recv_completion();
            receiver.post_recv(1, [target.whole_sge()]);
            if wc.imm() == Some(3) {
                break;
            }
            polls += 1;
            assert!(polls < 2000, "a sender starves");
        }
        for _ in 0..4 {
            receiver.post_recv(1, [target.whole_sge()]);
        }
        for wc in receiver.rcq.poll_for_quiet_period() {
            assert_eq!(wc.imm(), Some(2));
        }
    }
}

/// The receiver's program does not poll for a while. Meanwhile more datagrams arrive than the number of
/// posted receives, and the NIC's engine handles the program's queues.
fn a_receiver_that_does_not_poll_loses_no_datagram(env: &TestEnv) {
    const RECVS: usize = 4;
    const SENT: usize = 12;
    let pair = QpSpec::ud().with_channels().create_connected_pair(env);
    let target = pair.b.alloc_buf(64);
    for _ in 0..RECVS {
        pair.b.post_recv(1, [target.whole_sge()]);
    }
    pair.b.rcq.arm(false);
    for n in 0..SENT {
        pair.a.post(send_imm([], u32::try_from(n).expect("few")).with_id(0));
    }
    drop(pair.a.scq.wait_for_completions(SENT));
    pair.b.rchannel.as_ref().expect("a channel").await_and_ack_event(&pair.b.rcq);
    pair.b.rcq.arm(false);
    for n in 0..SENT {
        assert_eq!(pair.b.await_recv_completion().imm(), u32::try_from(n).ok());
        pair.b.post_recv(1, [target.whole_sge()]);
    }
}

/// A datagram waits for room at a receiver for a limited time. The datagrams behind it do not wait again, one after the
/// other: a server's answers to its other clients would be late by the sum.
fn a_full_receiver_delays_its_sender_only_once(env: &TestEnv) {
    const COUNT: u32 = 64;
    const LEN: usize = 1000;
    let pair = QpSpec::ud().with_queue_depth(COUNT).create_connected_pair(env);
    let source = pair.a.alloc_buf(LEN);
    // The receiver has no RECVs and does not poll, so its datagrams stay where they are.
    for id in 0..COUNT {
        pair.a.post(send([source.whole_sge()]).with_id(id.into()));
    }
    let (mut completed, mut polls_with_completions) = (0, 0);
    while completed < COUNT as usize {
        let completions = pair.a.scq.poll(COUNT as usize).len();
        completed += completions;
        polls_with_completions += usize::from(completions > 0);
    }
    assert!(polls_with_completions < 16, "{polls_with_completions} polls, each after a wait");
    // The receiver makes room, and gets what is sent from now on.
    pair.b.expect_no_completions();
    let target = pair.b.alloc_buf(40 + LEN);
    source.memory.fill_with_pattern(5);
    pair.b.post_recv(1, [target.whole_sge()]);
    pair.a.post(send([source.whole_sge()]).with_id(1));
    pair.a.await_send_completion().expect_sent(1, Verb::Send);
    pair.b.await_recv_completion().expect_received(1, 40 + LEN);
    target.memory.assert_pattern_at(40, LEN, 5);
}

fn a_queue_pair_sends_datagrams_to_itself(env: &TestEnv) {
    let mut side = QpSpec::ud().create_qp_side(env);
    let address = side.address();
    side.connect(&address);
    let target = side.alloc_buf(64);
    for i in 0..50 {
        side.post_recv(i, [target.whole_sge()]);
        side.post(send([]).with_id(i));
        let wc = side.await_recv_completion();
        wc.expect_received(i, 40);
        assert_eq!(wc.raw().src_qp, side.qp.qpn());
        side.await_send_completion().expect_sent(i, Verb::Send);
    }
}

fn datagrams_to_unknown_qpns_are_lost(env: &TestEnv) {
    let pair = QpSpec::ud().create_connected_pair(env);
    let (ah, qpn, _) = pair.a.ud_destination.clone().expect("a route");
    for stranger in [qpn ^ 0x2aa, 2, 0x00ff_fffe, 0x00ff_ffff] {
        if stranger == pair.a.qp.qpn() {
            continue;
        }
        record_case(format!("QP {stranger:#x}"));
        pair.a.post(send([]).with_id(1).with_ud_destination(&ah, stranger, QKEY));
        pair.a.await_send_completion().expect_sent(1, Verb::Send);
    }
    pair.check_transfers_both_ways();
}

fn datagrams_to_a_destroyed_qp_are_lost(env: &TestEnv) {
    let pair = QpSpec::ud().create_connected_pair(env);
    pair.check_transfers_both_ways();
    assert_eq!(pair.b.qp.try_destroy(), 0);
    for i in 0..200 {
        pair.a.post(send([]).with_id(i));
        pair.a.await_send_completion().expect_sent(i, Verb::Send);
    }
    assert_eq!(pair.a.qp.query_state(), IBV_QPS_RTS);
}

/// Destroying a QP does not access the buffers of datagrams that were not polled. The program may have
/// unmapped these buffers without deregistering them.
fn receive_memory_may_be_unmapped_before_its_qp(env: &TestEnv) {
    let pair = QpSpec::ud().create_connected_pair(env);
    let memory = ZeroedMemory::map_pages(1);
    let mr = pair.b.pd.reg(&memory, IBV_ACCESS_LOCAL_WRITE);
    pair.b.post_recv(1, [ibv_sge { addr: memory.addr(), length: 64, lkey: mr.lkey() }]);
    pair.a.post(send([]).with_id(2));
    pair.a.await_send_completion().expect_sent(2, Verb::Send);
    memory.protect_page(0, false);
    assert_eq!(pair.b.qp.try_destroy(), 0);
    memory.protect_page(0, true);
}

/// A NIC that pins pages receives the datagram; without pinned pages the receive fails. Neither process
/// crashes.
fn receive_memory_may_be_unmapped_during_sleep(env: &TestEnv) {
    let pair = QpSpec::ud().with_channels().create_connected_pair(env);
    let memory = ZeroedMemory::map_pages(1);
    let mr = pair.b.pd.reg(&memory, IBV_ACCESS_LOCAL_WRITE);
    let source = pair.a.alloc_buf(8);
    pair.b.post_recv(1, [ibv_sge { addr: memory.addr(), length: 64, lkey: mr.lkey() }]);
    pair.b.rcq.arm(false);
    memory.protect_page(0, false);
    pair.a.post(send([source.whole_sge()]).with_id(2));
    pair.a.await_send_completion().expect_sent(2, Verb::Send);
    pair.b.rchannel.as_ref().expect("a channel").await_and_ack_event(&pair.b.rcq);
    let status = pair.b.await_recv_completion().raw().status;
    assert!([IBV_WC_SUCCESS, IBV_WC_LOC_PROT_ERR].contains(&status), "{status}");
    memory.protect_page(0, true);
}

fn connected_queue_pairs_ignore_datagrams(env: &TestEnv) {
    let connected = QpSpec::rc().create_connected_pair(env);
    let target = connected.b.alloc_buf(64);
    connected.b.post_recv(1, [target.whole_sge()]);
    let pair = QpSpec::ud().create_connected_pair(env);
    let (ah, ..) = pair.a.ud_destination.clone().expect("a route");
    pair.a.post(send([]).with_id(2).with_ud_destination(&ah, connected.b.qp.qpn(), QKEY));
    pair.a.await_send_completion().expect_sent(2, Verb::Send);
    connected.b.expect_no_completions();
    connected.a.post(send([]).with_id(3));
    connected.b.await_recv_completion().expect_received(1, 0);
}

/// A NIC reads a datagram's payload soon after the post, even if no receive is posted. A program with its
/// own time-out reuses the buffer then, and polls the completion later.
fn a_payload_is_read_when_it_is_posted(env: &TestEnv) {
    const COUNT: usize = 100;
    const LEN: usize = 1000;
    let pair = QpSpec::ud().with_queue_depth(128).create_connected_pair(env);
    let (source, target) = (pair.a.alloc_buf(COUNT * LEN), pair.b.alloc_buf(COUNT * (40 + LEN)));
    for i in 0..COUNT {
        source.memory.fill_pattern_at(i * LEN, LEN, i as u64);
        let at = (i * LEN) as u64;
        let wr = send_imm([source.sge(at, 16), source.sge(at + 16, LEN - 16)], u32::try_from(i).expect("few"));
        pair.a.post(wr.unsignaled());
    }
    std::thread::sleep(QUIET_PERIOD);
    source.memory.write(0, &[0xee; COUNT * LEN]);
    for i in 0..COUNT {
        pair.b.post_recv(i as u64, [target.sge((i * (40 + LEN)) as u64, 40 + LEN)]);
    }
    // Datagrams that found no receive are lost.
    for wc in pair.b.rcq.poll_for_quiet_period() {
        let seed = wc.imm().expect("an immediate").into();
        wc.expect_received(wc.id(), 40 + LEN);
        let at = usize::try_from(wc.id()).expect("small") * (40 + LEN) + 40;
        target.memory.assert_pattern_at(at, LEN, seed);
    }
}

/// The sender sends more messages than the receiver can receive. Some messages are lost, but none is duplicated or torn. On
/// one device none is reordered. Between devices, the queues of two processors of the kernel may reorder them.
fn a_flood_loses_but_never_corrupts_datagrams(env: &TestEnv) {
    const TOTAL: u32 = 5000;
    let may_reorder = env.settings.peer.is_some();
    let pair = QpSpec::ud().with_queue_depth(32).create_connected_pair(env);
    let source = pair.a.alloc_buf(256 * 32);
    let target = pair.b.alloc_buf(32 * 300);
    let slot = |i: u64| target.sge(i * 300, 296);
    for i in 0..32 {
        pair.b.post_recv(i, [slot(i)]);
    }
    std::thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            let mut last = None;
            let mut seen = std::collections::BTreeSet::new();
            loop {
                let wc = pair.b.await_recv_completion();
                let imm = wc.imm().expect("an immediate");
                assert!(may_reorder || last.is_none_or(|last| last < imm), "{imm} after {last:?}");
                last = Some(imm);
                if imm == u32::MAX {
                    return seen.len();
                }
                assert!(seen.insert(imm), "{imm} twice");
                let len = usize::try_from(imm % 256).expect("small");
                wc.expect_received(wc.id(), 40 + len);
                let at = usize::try_from(wc.id()).expect("small") * 300 + 40;
                target.memory.assert_pattern_at(at, len, imm.into());
                pair.b.post_recv(wc.id(), [slot(wc.id())]);
                if imm.is_multiple_of(50) {
                    std::thread::sleep(std::time::Duration::from_micros(100));
                }
            }
        });
        for i in 0..TOTAL {
            let at = u64::from(i % 32) * 256;
            let len = usize::try_from(i % 256).expect("small");
            source.memory.fill_pattern_at(usize::try_from(at).expect("small"), len, i.into());
            pair.a.post(send_imm([source.sge(at, len)], i).with_id(i.into()));
            pair.a.await_send_completion().expect_sent(i.into(), Verb::Send);
        }
        while !receiver.is_finished() {
            std::thread::sleep(std::time::Duration::from_millis(1));
            pair.a.post(send_imm([], u32::MAX).with_id(0));
            pair.a.await_send_completion().expect_sent(0, Verb::Send);
        }
        let got = receiver.join().expect("the receiver ends");
        assert!(got > 0, "all of {TOTAL} messages were lost");
    });
}

fn payload_of_exactly_the_mtu(env: &TestEnv) {
    let pair = QpSpec::ud().create_connected_pair(env);
    let mtu = super::data::active_port_mtu_bytes(&pair.a);
    let source = pair.a.alloc_buf(mtu);
    let target = pair.b.alloc_buf(mtu + 40);
    for seed in 0..40 {
        source.memory.fill_with_pattern(seed);
        pair.b.post_recv(1, [target.whole_sge()]);
        pair.a.post(send([source.whole_sge()]).with_id(2));
        pair.b.await_recv_completion().expect_received(1, mtu + 40);
        pair.a.await_send_completion().expect_sent(2, Verb::Send);
        target.memory.assert_pattern_at(40, mtu, seed);
    }
}

fn rtr_receives(env: &TestEnv) {
    let mut pair = QpSpec::ud().create_unconnected_pair(env);
    let (to_a, to_b) = (pair.a.address(), pair.b.address());
    pair.a.connect(&to_b);
    pair.b.to_init();
    let target = pair.b.alloc_buf(64);
    pair.b.post_recv(1, [target.whole_sge()]);
    pair.a.post(send([]).with_id(1));
    pair.a.await_send_completion().expect_sent(1, Verb::Send);
    pair.b.rcq.expect_empty();
    pair.b.to_rtr(&to_a);
    pair.a.post(send([]).with_id(2));
    pair.b.await_recv_completion().expect_received(1, 40);
    pair.a.await_send_completion().expect_sent(2, Verb::Send);
}

/// A program may destroy an address handle when the send that uses it has completed.
fn an_ah_may_be_destroyed_after_its_send(env: &TestEnv) {
    let pair = QpSpec::ud().create_connected_pair(env);
    let target = pair.b.alloc_buf(64);
    let attr = pair.a.ah_attr_to_peer(&pair.b.address());
    let inline = if env.expects_capability(NicCapability::Inline) { IBV_SEND_INLINE } else { 0 };
    for i in 0..50 {
        let ah = pair.a.pd.create_ah(&attr);
        pair.b.post_recv(i, [target.whole_sge()]);
        let wr = send([]).with_id(i).with_flag(inline).with_ud_destination(&ah, pair.b.qp.qpn(), QKEY);
        pair.a.post(wr);
        pair.a.await_send_completion().expect_sent(i, Verb::Send);
        drop(ah);
        pair.b.await_recv_completion().expect_received(i, 40);
    }
}
