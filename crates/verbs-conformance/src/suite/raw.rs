//! Tests of raw packet queue pairs: Ethernet frames, flows, and work queues with receive side scaling.

use std::collections::BTreeMap;

use etherparse::{PacketBuilder, VlanId};
use verbs_abi::*;

use crate::TestEnv;
use crate::harness::record_case;
use crate::objects::{Buf, Context, Cq, QpInitAttr};
use crate::raw_packet::{InstalledFlow, IndTable, RawPacketQp, FlowAttr, Wq, eth_destination_spec, poll_one_and_read_flow_tag, try_create_flow_tag_cq};
use crate::wr::{RefusedPostlist, Verb, Wc, send};

tests! { "raw";
    frames_go_only_to_a_matching_flow [RawPackets],
    every_qp_with_a_matching_flow_gets_a_copy [RawPackets],
    a_frame_goes_only_to_the_best_priority_flow [RawPackets],
    unmatched_frames_go_to_default_flows [RawPackets],
    a_sniffer_flow_gets_all_frames [RawPackets],
    a_qp_with_several_matching_flows_gets_one_copy [RawPackets],
    a_context_does_not_receive_its_own_frames [RawPackets],
    a_destroyed_flow_delivers_no_frames [RawPackets],
    flows_tag_completions [RawPackets],
    checksums_are_filled_in_and_checked [RawPackets],
    short_frames_are_padded_and_impossible_ones_fail [RawPackets],
    a_frame_without_a_receive_is_lost [RawPackets],
    a_payload_is_read_when_it_is_posted [RawPackets],
    a_queue_pair_with_a_flow_cannot_be_destroyed [RawPackets],
    invalid_flows_are_refused [RawPackets],
    only_sends_can_be_posted [RawPackets],
    packets_are_spread_over_work_queues [RawPackets],
    work_queues_follow_their_state_machine [RawPackets],
    work_queues_and_tables_in_use_stay [RawPackets],
    an_invalid_indirection_table_is_refused [RawPackets],
    infiniband_has_no_raw_packets [],
}

/// Returns an address to which no concurrent test on the same fabric sends.
fn test_mac(last: u8) -> [u8; 6] {
    let [_, a, b, c] = std::process::id().to_be_bytes();
    [2, a, b, c, 0, last]
}

/// Returns a UDP datagram over IPv4 to an address, with the process's own addresses in it.
fn udp_frame(to: [u8; 6], source_port: u16, payload: &[u8]) -> Vec<u8> {
    let builder = PacketBuilder::ethernet2(test_mac(99), to)
        .ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64)
        .udp(source_port, 5678);
    let mut frame = Vec::new();
    builder.write(&mut frame, payload).expect("a frame");
    frame
}

fn source_port_spec(kind: u32, source: u16) -> ibv_flow_spec_tcp_udp {
    let mut spec = ibv_flow_spec_tcp_udp::zeroed();
    spec.r#type = kind;
    spec.size = u16::try_from(size_of::<ibv_flow_spec_tcp_udp>()).expect("short");
    spec.val.src_port = source.to_be();
    spec.mask.src_port = u16::MAX;
    spec
}

/// Sends a frame and waits for its completion.
#[track_caller]
fn send_frame_and_wait(raw: &RawPacketQp, frame: &[u8]) {
    let source = raw.pd.alloc_buf(frame.len());
    source.memory.write(0, frame);
    raw.qp.post(send([source.whole_sge()]).with_id(7));
    raw.cq.await_completion().expect_sent(7, Verb::Send);
}

/// Returns a receiver with the given rule and `recvs` posted receives, whose `wr_id` count from 0.
fn create_receiver_with_flow(env: &TestEnv, rule: &FlowAttr, recvs: u64) -> (RawPacketQp, Vec<Buf>) {
    let mut raw = RawPacketQp::new(env);
    let buffers = (0..recvs).map(|id| {
        let buffer = raw.pd.alloc_buf(2048);
        raw.qp.post_recv(id, [buffer.whole_sge()]);
        buffer
    });
    let buffers = buffers.collect();
    raw.add_flow(rule);
    (raw, buffers)
}

/// Checks that the next completion is the receive of this frame.
#[track_caller]
fn expect_frame_received(cq: &Cq, buffers: &[Buf], id: u64, frame: &[u8]) -> Wc {
    let wc = cq.await_completion();
    wc.expect_received(id, frame.len());
    let at = usize::try_from(id).expect("few");
    assert_eq!(buffers[at].memory.read(0, frame.len()), frame);
    wc
}

fn frames_go_only_to_a_matching_flow(env: &TestEnv) {
    let built = |result: Result<(), _>, frame: Vec<u8>| result.map(|()| frame).expect("a frame");
    let ethernet = || PacketBuilder::ethernet2(test_mac(99), test_mac(1));
    let tcp6 = |port| {
        let mut frame = Vec::new();
        let packet = ethernet().ipv6([0xa0; 16], [0xb0; 16], 9);
        built(packet.tcp(port, 2, 3, 4).write(&mut frame, &[1; 60]), frame)
    };
    let tagged = |vlan| {
        let mut frame = Vec::new();
        let vlan = VlanId::try_new(vlan).expect("12 bits");
        let packet = ethernet().single_vlan(vlan).ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64);
        built(packet.udp(1, 2).write(&mut frame, &[1; 60]), frame)
    };
    let mut source_mac = eth_destination_spec(test_mac(1));
    source_mac.val.src_mac = test_mac(99);
    source_mac.mask.src_mac = [0xff; 6];
    let mut vlan = eth_destination_spec(test_mac(1));
    vlan.val.vlan_tag = 0xc0c_u16.to_be();
    vlan.mask.vlan_tag = 0xfff_u16.to_be();
    let mut type6 = eth_destination_spec(test_mac(1));
    type6.val.ether_type = 0x86dd_u16.to_be();
    type6.mask.ether_type = u16::MAX;
    let mut ipv4 = ibv_flow_spec_ipv4::zeroed();
    ipv4.r#type = IBV_FLOW_SPEC_IPV4;
    ipv4.size = u16::try_from(size_of::<ibv_flow_spec_ipv4>()).expect("short");
    ipv4.val.dst_ip = u32::from_ne_bytes([10, 0, 0, 2]);
    ipv4.mask.dst_ip = u32::MAX;
    let mut ipv4_ext = ibv_flow_spec_ipv4_ext::zeroed();
    ipv4_ext.r#type = IBV_FLOW_SPEC_IPV4_EXT;
    ipv4_ext.size = u16::try_from(size_of::<ibv_flow_spec_ipv4_ext>()).expect("short");
    ipv4_ext.val.proto = 17;
    ipv4_ext.mask.proto = 0xff;
    ipv4_ext.val.ttl = 64;
    ipv4_ext.mask.ttl = 0xff;
    let mut ipv6 = ibv_flow_spec_ipv6::zeroed();
    ipv6.r#type = IBV_FLOW_SPEC_IPV6;
    ipv6.size = u16::try_from(size_of::<ibv_flow_spec_ipv6>()).expect("short");
    ipv6.val.src_ip = [0xa0; 16];
    ipv6.mask.src_ip = [0xff; 16];
    ipv6.val.hop_limit = 9;
    ipv6.mask.hop_limit = 0xff;
    let udp4 = udp_frame(test_mac(1), 1234, &[1; 60]);
    let elsewhere = udp_frame(test_mac(2), 1234, &[1; 60]);
    let here = FlowAttr::matching_ethernet_destination(env, test_mac(1));
    let normal = FlowAttr::new(env, IBV_FLOW_ATTR_NORMAL);
    let cases: [(&str, FlowAttr, Vec<u8>, Vec<u8>); 10] = [
        ("destination", here.clone(), udp4.clone(), elsewhere.clone()),
        ("source", normal.clone().with_spec(source_mac), udp4.clone(), elsewhere.clone()),
        ("VLAN", normal.clone().with_spec(vlan), tagged(0xc0c), tagged(0xc0d)),
        ("no VLAN", normal.clone().with_spec(vlan), tagged(0xc0c), udp4.clone()),
        ("type", normal.clone().with_spec(type6), tcp6(1), udp4.clone()),
        ("IPv4", here.clone().with_spec(ipv4), udp4.clone(), tcp6(1)),
        ("IPv4, more", here.clone().with_spec(ipv4_ext), udp4.clone(), tcp6(1)),
        ("IPv6", here.clone().with_spec(ipv6), tcp6(1), udp4.clone()),
        (
            "UDP",
            here.clone().with_spec(source_port_spec(IBV_FLOW_SPEC_UDP, 1234)),
            udp4.clone(),
            udp_frame(test_mac(1), 1235, &[1; 60]),
        ),
        (
            "TCP",
            here.with_spec(source_port_spec(IBV_FLOW_SPEC_TCP, 1)),
            tcp6(1),
            tcp6(2),
        ),
    ];
    let sender = RawPacketQp::new(env);
    for (name, rule, yes, no) in cases {
        record_case(name);
        let (receiver, buffers) = create_receiver_with_flow(env, &rule, 2);
        send_frame_and_wait(&sender, &no);
        send_frame_and_wait(&sender, &yes);
        let wc = expect_frame_received(&receiver.cq, &buffers, 0, &yes);
        assert_eq!(wc.qpn(), receiver.qp.qpn());
        receiver.cq.expect_empty();
    }
}

fn every_qp_with_a_matching_flow_gets_a_copy(env: &TestEnv) {
    let sender = RawPacketQp::new(env);
    let group = {
        let mut group = test_mac(1);
        group[0] |= 1;
        group
    };
    for to in [test_mac(1), group] {
        let rule = FlowAttr::matching_ethernet_destination(env, to);
        let receivers = [(); 3].map(|()| create_receiver_with_flow(env, &rule, 1));
        let frame = udp_frame(to, 1, b"for all of you, and a few bytes more");
        send_frame_and_wait(&sender, &frame);
        for (receiver, buffers) in &receivers {
            expect_frame_received(&receiver.cq, buffers, 0, &frame);
        }
    }
}

fn a_frame_goes_only_to_the_best_priority_flow(env: &TestEnv) {
    let sender = RawPacketQp::new(env);
    let rule = FlowAttr::matching_ethernet_destination(env, test_mac(1));
    let (second, in_second) = create_receiver_with_flow(env, &rule.clone().with_priority(2), 3);
    let first = rule.clone().with_spec(source_port_spec(IBV_FLOW_SPEC_UDP, 1)).with_priority(1);
    let (mut best, in_best) = create_receiver_with_flow(env, &first, 3);
    let frames = [1, 2].map(|port| udp_frame(test_mac(1), port, &[port.to_be_bytes()[1]; 40]));
    for frame in &frames {
        send_frame_and_wait(&sender, frame);
    }
    expect_frame_received(&best.cq, &in_best, 0, &frames[0]);
    expect_frame_received(&second.cq, &in_second, 0, &frames[1]);
    // A flow with DONT_TRAP leaves the packets to other flows, too.
    best.flows.clear();
    let mut passing = first.clone();
    passing.attr.flags = IBV_FLOW_ATTR_FLAGS_DONT_TRAP;
    best.add_flow(&passing);
    send_frame_and_wait(&sender, &frames[0]);
    expect_frame_received(&best.cq, &in_best, 1, &frames[0]);
    expect_frame_received(&second.cq, &in_second, 1, &frames[0]);
    // A flow that drops packets keeps them from all flows.
    best.flows.clear();
    let drop = ibv_flow_spec_action_drop {
        r#type: IBV_FLOW_SPEC_ACTION_DROP,
        size: u16::try_from(size_of::<ibv_flow_spec_action_drop>()).expect("short"),
    };
    best.add_flow(&first.with_spec(drop));
    send_frame_and_wait(&sender, &frames[0]);
    best.cq.expect_empty();
    second.cq.expect_empty();
}

/// Receives frames until a frame of this process arrives; concurrent tests send frames, too.
#[track_caller]
fn receive_next_frame_of_process(raw: &RawPacketQp, buffers: &[Buf]) -> Vec<u8> {
    loop {
        let wc = raw.cq.await_completion();
        let buffer = &buffers[usize::try_from(wc.id()).expect("few")];
        let len = usize::try_from(wc.raw().byte_len).expect("short");
        let frame = buffer.memory.read(0, len);
        raw.qp.post_recv(wc.id(), [buffer.whole_sge()]);
        if frame[6..12] == test_mac(99) {
            return frame;
        }
    }
}

fn unmatched_frames_go_to_default_flows(env: &TestEnv) {
    let sender = RawPacketQp::new(env);
    let (rest, in_rest) = create_receiver_with_flow(env, &FlowAttr::new(env, IBV_FLOW_ATTR_ALL_DEFAULT), 16);
    let (groups, in_groups) = create_receiver_with_flow(env, &FlowAttr::new(env, IBV_FLOW_ATTR_MC_DEFAULT), 16);
    let (other, in_other) = create_receiver_with_flow(env, &FlowAttr::matching_ethernet_destination(env, test_mac(1)), 1);
    let steered = udp_frame(test_mac(1), 1, &[1; 60]);
    let unicast = udp_frame(test_mac(2), 2, &[2; 60]);
    let mut multicast = udp_frame(test_mac(2), 3, &[3; 60]);
    multicast[0] |= 1;
    for frame in [&steered, &unicast, &multicast] {
        send_frame_and_wait(&sender, frame);
    }
    expect_frame_received(&other.cq, &in_other, 0, &steered);
    assert_eq!(receive_next_frame_of_process(&rest, &in_rest), unicast);
    assert_eq!(receive_next_frame_of_process(&rest, &in_rest), multicast);
    assert_eq!(receive_next_frame_of_process(&groups, &in_groups), multicast);
}

fn a_sniffer_flow_gets_all_frames(env: &TestEnv) {
    let sender = RawPacketQp::new(env);
    let (sniffer, in_sniffer) = create_receiver_with_flow(env, &FlowAttr::new(env, IBV_FLOW_ATTR_SNIFFER), 16);
    let (other, in_other) = create_receiver_with_flow(env, &FlowAttr::matching_ethernet_destination(env, test_mac(1)), 1);
    let steered = udp_frame(test_mac(1), 1, &[1; 60]);
    let unwanted = udp_frame(test_mac(2), 2, &[2; 60]);
    send_frame_and_wait(&sender, &steered);
    send_frame_and_wait(&sender, &unwanted);
    expect_frame_received(&other.cq, &in_other, 0, &steered);
    assert_eq!(receive_next_frame_of_process(&sniffer, &in_sniffer), steered);
    assert_eq!(receive_next_frame_of_process(&sniffer, &in_sniffer), unwanted);
}

fn a_qp_with_several_matching_flows_gets_one_copy(env: &TestEnv) {
    let sender = RawPacketQp::new(env);
    let passing = {
        let mut rule = FlowAttr::matching_ethernet_destination(env, test_mac(1));
        rule.attr.flags = IBV_FLOW_ATTR_FLAGS_DONT_TRAP;
        rule
    };
    let (mut receiver, buffers) = create_receiver_with_flow(env, &passing, 2);
    receiver.add_flow(&FlowAttr::matching_ethernet_destination(env, test_mac(1)).with_priority(1));
    let frame = udp_frame(test_mac(1), 1, &[1; 60]);
    send_frame_and_wait(&sender, &frame);
    expect_frame_received(&receiver.cq, &buffers, 0, &frame);
    receiver.cq.expect_empty();
}

fn a_context_does_not_receive_its_own_frames(env: &TestEnv) {
    let (receiver, buffers) = create_receiver_with_flow(env, &FlowAttr::matching_ethernet_destination(env, test_mac(1)), 2);
    let frame = udp_frame(test_mac(1), 1, &[1; 60]);
    let same = RawPacketQp::create_in_rts_on_context(&receiver.ctx);
    send_frame_and_wait(&same, &frame);
    receiver.cq.expect_empty();
    send_frame_and_wait(&RawPacketQp::new(env), &frame);
    expect_frame_received(&receiver.cq, &buffers, 0, &frame);
}

fn a_destroyed_flow_delivers_no_frames(env: &TestEnv) {
    let sender = RawPacketQp::new(env);
    let (mut receiver, buffers) = create_receiver_with_flow(env, &FlowAttr::matching_ethernet_destination(env, test_mac(1)), 2);
    let frame = udp_frame(test_mac(1), 1, &[1; 60]);
    receiver.flows.clear();
    send_frame_and_wait(&sender, &frame);
    receiver.cq.expect_empty();
    // A new flow may follow.
    receiver.add_flow(&FlowAttr::matching_ethernet_destination(env, test_mac(1)));
    send_frame_and_wait(&sender, &frame);
    expect_frame_received(&receiver.cq, &buffers, 0, &frame);
}

fn flows_tag_completions(env: &TestEnv) {
    let tag = |tag_id| ibv_flow_spec_action_tag {
        r#type: IBV_FLOW_SPEC_ACTION_TAG,
        size: u16::try_from(size_of::<ibv_flow_spec_action_tag>()).expect("short"),
        tag_id,
    };
    let sender = RawPacketQp::new(env);
    let mut receiver = RawPacketQp::new(env);
    receiver.cq = try_create_flow_tag_cq(&receiver.ctx, 16).expect("ibv_create_cq_ex");
    let mut init = QpInitAttr::new(IBV_QPT_RAW_PACKET, &receiver.cq, &receiver.cq);
    receiver.qp = receiver.pd.create_qp(&mut init);
    receiver.to_rts();
    let buffer = receiver.pd.alloc_buf(2048);
    for id in 0..2 {
        receiver.qp.post_recv(id, [buffer.whole_sge()]);
    }
    for (last, tag_id) in [(1, 0xabc), (2, 0xdef)] {
        receiver.add_flow(&FlowAttr::matching_ethernet_destination(env, test_mac(last)).with_spec(tag(tag_id)));
        send_frame_and_wait(&sender, &udp_frame(test_mac(last), 1, &[1; 60]));
        assert_eq!(poll_one_and_read_flow_tag(&receiver.cq), Some(tag_id));
    }
    assert_eq!(poll_one_and_read_flow_tag(&receiver.cq), None);
}

fn checksums_are_filled_in_and_checked(env: &TestEnv) {
    let sender = RawPacketQp::new(env);
    let (receiver, buffers) = create_receiver_with_flow(env, &FlowAttr::matching_ethernet_destination(env, test_mac(1)), 4);
    let right = udp_frame(test_mac(1), 1, &[1; 60]);
    let wc = {
        send_frame_and_wait(&sender, &right);
        expect_frame_received(&receiver.cq, &buffers, 0, &right)
    };
    assert_ne!(wc.raw().wc_flags & IBV_WC_IP_CSUM_OK, 0);
    // Corrupts the checksum of the IPv4 header, and then that of the UDP header.
    for (id, at) in [(1, 14 + 10), (2, 14 + 20 + 6)] {
        let mut wrong = right.clone();
        wrong[at] ^= 0x55;
        send_frame_and_wait(&sender, &wrong);
        let wc = expect_frame_received(&receiver.cq, &buffers, id, &wrong);
        assert_eq!(wc.raw().wc_flags & IBV_WC_IP_CSUM_OK, 0, "byte {at}");
    }
    let mut without = right.clone();
    without[14 + 10..14 + 12].fill(0);
    without[14 + 20 + 6..14 + 20 + 8].fill(0);
    let source = sender.pd.alloc_buf(without.len());
    source.memory.write(0, &without);
    sender.qp.post(send([source.whole_sge()]).with_flag(IBV_SEND_IP_CSUM));
    let wc = expect_frame_received(&receiver.cq, &buffers, 3, &right);
    assert_ne!(wc.raw().wc_flags & IBV_WC_IP_CSUM_OK, 0);
    assert_eq!(source.memory.read(0, without.len()), without, "the program's own bytes");
}

fn short_frames_are_padded_and_impossible_ones_fail(env: &TestEnv) {
    let (receiver, buffers) = create_receiver_with_flow(env, &FlowAttr::matching_ethernet_destination(env, test_mac(1)), 1);
    let sender = RawPacketQp::new(env);
    let frame = &udp_frame(test_mac(1), 1, &[])[..20];
    send_frame_and_wait(&sender, frame);
    // IEEE 802.3, 3.2.8: 64 bytes including the frame check sequence, which is not delivered.
    let mut padded = frame.to_vec();
    padded.resize(60, 0);
    expect_frame_received(&receiver.cq, &buffers, 0, &padded);
    for len in [0, 13, 100_000] {
        record_case(format!("{len} bytes"));
        let sender = RawPacketQp::new(env);
        let source = sender.pd.alloc_buf(len.max(1));
        sender.qp.post(send([source.sge(0, len)]).with_id(1));
        sender.cq.await_completion().expect_failed(1, &[IBV_WC_LOC_LEN_ERR]);
        sender.qp.await_state(IBV_QPS_SQE);
    }
}

fn a_frame_without_a_receive_is_lost(env: &TestEnv) {
    let sender = RawPacketQp::new(env);
    let (receiver, buffers) = create_receiver_with_flow(env, &FlowAttr::matching_ethernet_destination(env, test_mac(1)), 1);
    let frames = [1, 2, 3].map(|port| udp_frame(test_mac(1), port, &[port.to_be_bytes()[1]; 60]));
    send_frame_and_wait(&sender, &frames[0]);
    send_frame_and_wait(&sender, &frames[1]);
    expect_frame_received(&receiver.cq, &buffers, 0, &frames[0]);
    receiver.cq.expect_empty();
    receiver.qp.post_recv(0, [buffers[0].whole_sge()]);
    send_frame_and_wait(&sender, &frames[2]);
    expect_frame_received(&receiver.cq, &buffers, 0, &frames[2]);
}

/// The NIC reads a frame's payload when the frame is posted, as with UD datagrams.
fn a_payload_is_read_when_it_is_posted(env: &TestEnv) {
    const COUNT: u16 = 12;
    let sender = RawPacketQp::new(env);
    let (receiver, _) = create_receiver_with_flow(env, &FlowAttr::matching_ethernet_destination(env, test_mac(1)), 0);
    let frames: Vec<_> = (0..COUNT).map(|port| udp_frame(test_mac(1), port, &[1; 8000])).collect();
    let source = sender.pd.alloc_buf(frames.len() * 9000);
    for (frame, i) in frames.iter().zip(0..) {
        source.memory.write(i * 9000, frame);
        sender.qp.post(send([source.sge(i as u64 * 9000, frame.len())]));
    }
    std::thread::sleep(crate::objects::QUIET_PERIOD);
    for i in 0..frames.len() {
        source.memory.write(i * 9000 + 100, &[0xee; 7000]);
    }
    let target = receiver.pd.alloc_buf(frames.len() * 9000);
    for id in 0..u64::from(COUNT) {
        receiver.qp.post_recv(id, [target.sge(id * 9000, 9000)]);
    }
    for wc in receiver.cq.poll_for_quiet_period() {
        wc.expect_received(wc.id(), frames[0].len());
        let at = usize::try_from(wc.id()).expect("few") * 9000;
        let found = target.memory.read(at, frames[0].len());
        assert!(frames.contains(&found), "{:02x?}", &found[..64]);
    }
}

fn a_queue_pair_with_a_flow_cannot_be_destroyed(env: &TestEnv) {
    let (receiver, _) = create_receiver_with_flow(env, &FlowAttr::matching_ethernet_destination(env, test_mac(1)), 0);
    assert_eq!(receiver.qp.try_destroy(), libc::EBUSY);
}

fn invalid_flows_are_refused(env: &TestEnv) {
    let raw = RawPacketQp::new(env);
    let normal = FlowAttr::matching_ethernet_destination(env, test_mac(1));
    let with = |change: fn(&mut FlowAttr)| {
        let mut rule = normal.clone();
        change(&mut rule);
        rule
    };
    let default = |change: fn(&mut FlowAttr)| {
        let mut rule = FlowAttr::new(env, IBV_FLOW_ATTR_ALL_DEFAULT);
        change(&mut rule);
        rule
    };
    let mut short = eth_destination_spec(test_mac(1));
    short.size -= 4;
    let mut empty = eth_destination_spec(test_mac(1));
    empty.size = 0;
    let mut unknown = eth_destination_spec(test_mac(1));
    unknown.r#type = 0x33;
    let cases = [
        ("a port", with(|rule| rule.attr.port = 2), libc::EINVAL),
        ("a kind", with(|rule| rule.attr.r#type = 4), libc::EINVAL),
        ("a mask", with(|rule| rule.attr.comp_mask = 1), libc::EINVAL),
        (
            "egress",
            with(|rule| rule.attr.flags = IBV_FLOW_ATTR_FLAGS_EGRESS),
            libc::EOPNOTSUPP,
        ),
        (
            "a default that does not trap",
            default(|rule| rule.attr.flags = IBV_FLOW_ATTR_FLAGS_DONT_TRAP),
            libc::EINVAL,
        ),
        (
            "a default with a specification",
            FlowAttr::new(env, IBV_FLOW_ATTR_ALL_DEFAULT).with_spec(eth_destination_spec(test_mac(1))),
            libc::EINVAL,
        ),
        ("a layer twice", normal.clone().with_spec(eth_destination_spec(test_mac(2))), libc::EINVAL),
        ("a short specification", FlowAttr::new(env, 0).with_spec(short), libc::EINVAL),
        ("an empty specification", FlowAttr::new(env, 0).with_spec(empty), libc::EINVAL),
        ("an unknown one", normal.clone().with_spec(unknown), libc::EOPNOTSUPP),
    ];
    for (name, rule, errno) in cases {
        let made = InstalledFlow::new(&raw.ctx, &raw.qp, &rule).map(drop);
        assert_eq!(made, Err(errno), "{name}");
    }
    let rc = raw.pd.create_qp(&mut QpInitAttr::new(IBV_QPT_RC, &raw.cq, &raw.cq));
    let made = InstalledFlow::new(&raw.ctx, &rc, &normal).map(drop);
    assert_eq!(made, Err(libc::EINVAL), "a flow for RC");
}

fn only_sends_can_be_posted(env: &TestEnv) {
    let raw = RawPacketQp::new(env);
    let source = raw.pd.alloc_buf(64);
    for opcode in [
        IBV_WR_SEND_WITH_IMM,
        IBV_WR_RDMA_WRITE,
        IBV_WR_RDMA_READ,
        IBV_WR_ATOMIC_FETCH_AND_ADD,
        IBV_WR_BIND_MW,
        IBV_WR_TSO,
    ] {
        let posted = raw.qp.try_post_sends(vec![send([source.whole_sge()]).with_opcode(opcode)]);
        let errno = libc::EINVAL;
        assert_eq!(posted, Err(RefusedPostlist { errno, bad_wr_index: Some(0) }), "{opcode}");
    }
}

/// Returns work queues in the ready state, each with `recvs` posted receives, and their common buffer.
fn create_ready_work_queues(raw: &RawPacketQp, count: usize, recvs: u64) -> (Vec<Wq>, Buf) {
    let buffer = raw.pd.alloc_buf(2048);
    let wqs = (0..count).map(|_| {
        let wq = Wq::new(&raw.pd, &raw.ctx.create_cq(64)).expect("ibv_create_wq");
        assert_eq!(wq.move_to_state(IBV_WQS_RDY), 0);
        assert_eq!(wq.cached_state(), IBV_WQS_RDY);
        for id in 0..recvs {
            wq.post_recv(id, &buffer).expect("ibv_post_wq_recv");
        }
        wq
    });
    (wqs.collect(), buffer)
}

const UDP_PORT_HASH_FIELDS: u64 = IBV_RX_HASH_SRC_PORT_UDP | IBV_RX_HASH_DST_PORT_UDP;

fn packets_are_spread_over_work_queues(env: &TestEnv) {
    let sender = RawPacketQp::new(env);
    let raw = RawPacketQp::new(env);
    let (wqs, _buffer) = create_ready_work_queues(&raw, 4, 16);
    let table = IndTable::new(&raw.pd, &wqs, 3).expect("ibv_create_rwq_ind_table");
    // With the key of "Verifying the RSS Hash Calculation", the hash distributes ports as it
    // distributes addresses.
    let mut key = [
        0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f,
        0xb0, 0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30,
        0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
    ];
    let qp = table.try_create_rss_qp(&mut key, UDP_PORT_HASH_FIELDS, &raw.cq).expect("ibv_create_qp_ex");
    let flow = InstalledFlow::new(&raw.ctx, &qp, &FlowAttr::matching_ethernet_destination(env, test_mac(1))).expect("ibv_create_flow");
    let mut of_port = BTreeMap::new();
    for _ in 0..2 {
        for port in 1..=16 {
            send_frame_and_wait(&sender, &udp_frame(test_mac(1), port, &[1; 60]));
            let mut found = wqs.iter().filter(|wq| {
                let wcs = wq.cq.poll(1);
                wcs.iter().for_each(|wc| assert_eq!(wc.qpn(), wq.number()));
                !wcs.is_empty()
            });
            let number = found.next().expect("a completion").number();
            assert!(found.next().is_none(), "one frame in two queues");
            // Packets with the same port go to the same queue.
            assert_eq!(*of_port.entry(port).or_insert(number), number);
        }
    }
    for wq in &wqs {
        assert!(of_port.values().any(|&n| n == wq.number()), "nothing in a queue");
    }
    // A packet without the hashed fields has a hash of 0.
    let mut frame = udp_frame(test_mac(1), 1, &[1; 60]);
    frame[14 + 9] = 200;
    send_frame_and_wait(&sender, &frame);
    drop(flow);
    let queue = wqs.iter().find(|wq| !wq.cq.poll(1).is_empty());
    assert_eq!(queue.map(Wq::number), Some(wqs[0].number()));
}

fn work_queues_follow_their_state_machine(env: &TestEnv) {
    let raw = RawPacketQp::new(env);
    let wq = Wq::new(&raw.pd, &raw.cq).expect("ibv_create_wq");
    let buffer = raw.pd.alloc_buf(64);
    assert_eq!(wq.cached_state(), IBV_WQS_RESET);
    let refused = RefusedPostlist {
        errno: libc::EINVAL,
        bad_wr_index: Some(0),
    };
    assert_eq!(wq.post_recv(1, &buffer), Err(refused));
    assert_eq!(wq.move_to_state(IBV_WQS_RDY), 0);
    assert_eq!(wq.post_recv(1, &buffer), Ok(()));
    assert_eq!(wq.move_to_state(IBV_WQS_ERR), 0);
    let wc = raw.cq.await_completion();
    wc.expect_flushed(1);
    assert_eq!(wc.qpn(), wq.number());
    assert_eq!(wq.move_to_state(IBV_WQS_RDY), libc::EINVAL);
    assert_eq!(wq.move_to_state(IBV_WQS_RESET), 0);
    assert_eq!(wq.move_to_state(IBV_WQS_RDY), 0);
    assert_eq!(wq.move_to_state(7), libc::EINVAL);
}

fn work_queues_and_tables_in_use_stay(env: &TestEnv) {
    let raw = RawPacketQp::new(env);
    let (mut wqs, _buffer) = create_ready_work_queues(&raw, 2, 0);
    let mut table = IndTable::new(&raw.pd, &wqs, 1).expect("ibv_create_rwq_ind_table");
    assert_eq!(wqs[0].try_destroy(), libc::EBUSY);
    assert_eq!(wqs[0].cq.try_destroy(), libc::EBUSY);
    let qp = table.try_create_rss_qp(&mut [1; 40], UDP_PORT_HASH_FIELDS, &raw.cq).expect("ibv_create_qp_ex");
    assert_eq!(table.try_destroy(), libc::EBUSY);
    assert_eq!(qp.try_destroy(), 0);
    assert_eq!(table.try_destroy(), 0);
    assert_eq!(wqs[0].try_destroy(), 0);
}

fn an_invalid_indirection_table_is_refused(env: &TestEnv) {
    let raw = RawPacketQp::new(env);
    let (wqs, _buffer) = create_ready_work_queues(&raw, 1, 0);
    for log_size in [8, 31, 32, u32::MAX] {
        let made = IndTable::new(&raw.pd, &wqs, log_size).map(drop);
        assert_eq!(made, Err(libc::EINVAL), "{log_size}");
    }
    let table = IndTable::new(&raw.pd, &wqs, 0).expect("ibv_create_rwq_ind_table");
    let short = table.try_create_rss_qp(&mut [1; 39], UDP_PORT_HASH_FIELDS, &raw.cq).map(drop);
    assert_eq!(short, Err(libc::EINVAL), "a short key");
    let fields = UDP_PORT_HASH_FIELDS | IBV_RX_HASH_IPSEC_SPI;
    let unknown = table.try_create_rss_qp(&mut [1; 40], fields, &raw.cq).map(drop);
    assert_eq!(unknown, Err(libc::EOPNOTSUPP), "fields that are not there");
}

/// InfiniBand ports have neither raw packet queue pairs nor work queues.
fn infiniband_has_no_raw_packets(env: &TestEnv) {
    let ctx = Context::open(env);
    if ctx.port_attr().link_layer != IBV_LINK_LAYER_INFINIBAND {
        return;
    }
    let (pd, cq) = (ctx.alloc_pd(), ctx.create_cq(16));
    let made = pd.try_create_qp(&mut QpInitAttr::new(IBV_QPT_RAW_PACKET, &cq, &cq));
    assert_eq!(made.map(drop), Err(libc::EOPNOTSUPP));
    assert_eq!(Wq::new(&pd, &cq).map(drop), Err(libc::EOPNOTSUPP));
}
