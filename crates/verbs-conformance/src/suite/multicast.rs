//! Tests of multicast groups of UD queue pairs.

use std::net::{Ipv4Addr, Ipv6Addr};

use verbs_abi::*;

use crate::TestEnv;
use crate::harness::record_case;
use crate::objects::Ah;
use crate::pair::{QKEY, QpSide, QpSpec};
use crate::wr::{Verb, send};

tests! { "multicast";
    every_member_gets_a_datagram_once [Ud, Multicast],
    members_of_other_groups_get_nothing [Ud, Multicast],
    a_detached_member_gets_nothing [Ud, Multicast],
    datagrams_of_a_destroyed_sender_wait_for_a_member [Ud, Multicast],
    a_datagram_with_a_wrong_q_key_is_dropped [Ud, Multicast],
    a_member_cannot_be_destroyed [Ud, Multicast],
    invalid_attachments_are_refused [Ud, Multicast],
}

const MULTICAST_QPN: u32 = 0xff_ffff;

/// Returns a multicast group to which no concurrent test on the same fabric sends.
fn test_group_gid(last: u8) -> [u8; 16] {
    let mut gid = Ipv6Addr::new(0xff12, 0x401b, 0xffff, 0, 0, 0, 0, 0).octets();
    gid[11..15].copy_from_slice(&std::process::id().to_be_bytes());
    gid[15] = last;
    gid
}

/// Returns an address handle for a multicast group.
fn multicast_ah(side: &QpSide, gid: [u8; 16]) -> Ah {
    let mut attr = ibv_ah_attr::zeroed();
    attr.port_num = side.ctx.env().settings.port;
    attr.dlid = 0xc000;
    attr.is_global = 1;
    attr.grh.dgid = ibv_gid { raw: gid };
    attr.grh.sgid_index = side.ctx.env().settings.gid_index;
    attr.grh.hop_limit = 1;
    side.pd.create_ah(&attr)
}

fn create_ready_ud_qp(env: &TestEnv) -> QpSide {
    let mut side = QpSpec::ud().create_qp_side(env);
    let address = side.address();
    side.connect(&address);
    side
}

#[track_caller]
fn send_to_group(side: &QpSide, gid: [u8; 16], qkey: u32, seed: u64) {
    let source = side.alloc_buf(100);
    source.memory.fill_with_pattern(seed);
    let ah = multicast_ah(side, gid);
    side.post(send([source.whole_sge()]).with_id(seed).with_ud_destination(&ah, MULTICAST_QPN, qkey));
    side.await_send_completion().expect_sent(seed, Verb::Send);
}

fn every_member_gets_a_datagram_once(env: &TestEnv) {
    let [_, a, b, c] = std::process::id().to_be_bytes();
    let mapped = Ipv4Addr::new(239, a, b, c).to_ipv6_mapped().octets();
    for gid in [test_group_gid(1), mapped] {
        record_case(format!("{}", Ipv6Addr::from(gid)));
        let sender = create_ready_ud_qp(env);
        let members = [create_ready_ud_qp(env), create_ready_ud_qp(env), create_ready_ud_qp(env)];
        for member in &members {
            assert_eq!(member.qp.attach_mcast(gid), 0);
            // A second attachment changes nothing.
            assert_eq!(member.qp.attach_mcast(gid), 0);
        }
        let targets = members.each_ref().map(|m| m.alloc_buf(140));
        for (member, target) in members.iter().zip(&targets) {
            member.post_recv(1, [target.whole_sge()]);
            member.post_recv(2, [target.whole_sge()]);
        }
        send_to_group(&sender, gid, QKEY, 5);
        for (member, target) in members.iter().zip(&targets) {
            let wc = member.await_recv_completion();
            wc.expect_received(1, 140);
            assert_eq!(wc.raw().src_qp, sender.qp.qpn());
            assert_ne!(wc.raw().wc_flags & IBV_WC_GRH, 0);
            target.memory.assert_pattern_at(40, 100, 5);
            member.expect_no_completions();
        }
        // A member also receives its own datagrams.
        send_to_group(&members[0], gid, QKEY, 6);
        for member in &members {
            member.await_recv_completion().expect_received(2, 140);
        }
        for member in &members {
            assert_eq!(member.qp.detach_mcast(gid), 0);
        }
    }
}

fn members_of_other_groups_get_nothing(env: &TestEnv) {
    let (sender, member) = (create_ready_ud_qp(env), create_ready_ud_qp(env));
    assert_eq!(member.qp.attach_mcast(test_group_gid(1)), 0);
    let target = member.alloc_buf(140);
    member.post_recv(1, [target.whole_sge()]);
    send_to_group(&sender, test_group_gid(2), QKEY, 5);
    member.expect_no_completions();
    assert_eq!(member.qp.detach_mcast(test_group_gid(1)), 0);
}

fn a_detached_member_gets_nothing(env: &TestEnv) {
    let (sender, member) = (create_ready_ud_qp(env), create_ready_ud_qp(env));
    assert_eq!(member.qp.attach_mcast(test_group_gid(1)), 0);
    let target = member.alloc_buf(140);
    member.post_recv(1, [target.whole_sge()]);
    assert_eq!(member.qp.detach_mcast(test_group_gid(1)), 0);
    send_to_group(&sender, test_group_gid(1), QKEY, 5);
    member.expect_no_completions();
    assert_eq!(member.qp.detach_mcast(test_group_gid(1)), libc::EINVAL);
}

/// Sends a postlist of more datagrams than the fabric can hold at a time, and then destroys the sending QP.
fn datagrams_of_a_destroyed_sender_wait_for_a_member(env: &TestEnv) {
    const COUNT: u32 = 64;
    const LEN: usize = 1000;
    let [sender, member] = [(); 2].map(|()| {
        let mut side = QpSpec::ud().with_queue_depth(COUNT).create_qp_side(env);
        let address = side.address();
        side.connect(&address);
        side
    });
    assert_eq!(member.qp.attach_mcast(test_group_gid(1)), 0);
    let target = member.alloc_buf(40 + LEN);
    for id in 0..COUNT {
        member.post_recv(id.into(), [target.whole_sge()]);
    }
    let source = sender.alloc_buf(LEN);
    source.memory.fill_with_pattern(5);
    let ah = multicast_ah(&sender, test_group_gid(1));
    for id in 0..COUNT {
        let wr = send([source.whole_sge()]).with_id(id.into()).unsignaled();
        sender.post(wr.with_ud_destination(&ah, MULTICAST_QPN, QKEY));
    }
    drop(sender);
    for id in 0..COUNT {
        member.await_recv_completion().expect_received(id.into(), 40 + LEN);
    }
    target.memory.assert_pattern_at(40, LEN, 5);
    assert_eq!(member.qp.detach_mcast(test_group_gid(1)), 0);
}

fn a_datagram_with_a_wrong_q_key_is_dropped(env: &TestEnv) {
    let (sender, member) = (create_ready_ud_qp(env), create_ready_ud_qp(env));
    assert_eq!(member.qp.attach_mcast(test_group_gid(1)), 0);
    let target = member.alloc_buf(140);
    member.post_recv(1, [target.whole_sge()]);
    send_to_group(&sender, test_group_gid(1), QKEY ^ 1, 5);
    member.expect_no_completions();
    send_to_group(&sender, test_group_gid(1), QKEY, 6);
    member.await_recv_completion().expect_received(1, 140);
    assert_eq!(member.qp.detach_mcast(test_group_gid(1)), 0);
}

/// `ibv_destroy_qp(3)`: destroying a QP "fails if the QP is attached to a multicast group".
fn a_member_cannot_be_destroyed(env: &TestEnv) {
    let member = create_ready_ud_qp(env);
    assert_eq!(member.qp.attach_mcast(test_group_gid(1)), 0);
    assert_eq!(member.qp.try_destroy(), libc::EBUSY);
    assert_eq!(member.qp.detach_mcast(test_group_gid(1)), 0);
}

fn invalid_attachments_are_refused(env: &TestEnv) {
    let rc = QpSpec::rc().create_qp_side(env);
    assert_eq!(rc.qp.attach_mcast(test_group_gid(1)), libc::EINVAL);
    let ud = create_ready_ud_qp(env);
    let unicast = ud.address().gid;
    assert_eq!(ud.qp.attach_mcast(unicast), libc::EINVAL);
}
