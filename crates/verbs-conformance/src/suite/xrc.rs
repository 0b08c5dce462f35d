//! Tests of XRC: many shared receive queues behind one connection.

use std::os::fd::AsRawFd;
use std::time::Duration;

use rustix::fs::{MemfdFlags, memfd_create};
use verbs_abi::*;

use super::overrun::{await_async_event_of_type, await_cq_error_event};
use crate::TestEnv;
use crate::memory::MemKind;
use crate::objects::{ALL_ACCESS, Context, Cq, Pd, Qp, QpInitAttr, Srq};
use crate::pair::{QpAddress, QpSide, QpSpec};
use crate::wr::{Verb, fetch_add, read, send, send_imm, write, write_imm};
use crate::xrc::{XrcDomain, with_remote_srqn};

tests! { "xrc";
    a_message_goes_to_the_srq_that_it_names [Xrc],
    long_messages_and_immediates_arrive [Xrc],
    an_srq_receive_makes_a_channel_event [Xrc],
    a_message_waits_for_a_receive [Xrc],
    a_receive_may_reach_past_its_region [Xrc],
    remote_access_is_checked_in_the_pd_of_the_named_srq [Xrc],
    an_unknown_srq_number_is_an_invalid_request [Xrc],
    a_domain_is_named_by_its_file [Xrc],
    destroying_objects_in_use_is_refused [Xrc],
    a_receiving_qp_is_opened_by_its_number [Xrc],
    srq_numbers_differ_and_have_24_bits [Xrc],
    an_overrun_srq_cq_fails_the_receiving_qp [Xrc, Events],
}

/// An XRC connection: a sending queue pair, and a receiving queue pair for a domain with two shared
/// receive queues. Each shared receive queue has its own CQ. The fields are dropped in the order of
/// declaration.
struct XrcConnection {
    sender: Qp,
    receiver: Qp,
    srqs_with_number_and_cq: [(Srq, u32, Cq); 2],
    sender_cq: Cq,
    pd: Pd,
    domain: XrcDomain,
    attribute_template: QpSide,
}

impl XrcConnection {
    fn new(env: &TestEnv, rnr_retry: u8) -> Self {
        let ctx = Context::open(env);
        let pd = ctx.alloc_pd();
        let scq = ctx.create_cq(64);
        let domain = XrcDomain::open(&ctx, -1, libc::O_CREAT).expect("ibv_open_xrcd");
        let srq = || {
            let cq = ctx.create_cq(64);
            let (srq, number) = domain.create_srq(&pd, &cq).expect("ibv_create_srq_ex");
            (srq, number, cq)
        };
        let srqs = [srq(), srq()];
        let sender = pd.create_qp(&mut QpInitAttr::new(IBV_QPT_XRC_SEND, &scq, &scq));
        let receiver = domain.create_recv_qp(&pd, &scq).expect("ibv_create_qp_ex");
        // An RC side provides the values of common attributes.
        let side = QpSpec::rc().with_rnr_retry(rnr_retry).create_qp_side(env);
        let xrc = Self { sender, receiver, srqs_with_number_and_cq: srqs, sender_cq: scq, pd, domain, attribute_template: side };
        let address = xrc.attribute_template.address();
        let (to_receiver, to_sender) = (
            QpAddress { qpn: xrc.receiver.qpn(), ..address },
            QpAddress { qpn: xrc.sender.qpn(), ..address },
        );
        for (qp, peer) in [(&xrc.receiver, &to_sender), (&xrc.sender, &to_receiver)] {
            for (attr, mask) in [xrc.attribute_template.reset_to_init_attr_and_mask(), xrc.attribute_template.init_to_rtr_attr_and_mask(peer), xrc.attribute_template.rtr_to_rts_attr_and_mask()] {
                qp.modify(&attr, mask).expect("ibv_modify_qp");
            }
        }
        xrc
    }

    fn srqn(&self, i: usize) -> u32 {
        self.srqs_with_number_and_cq[i].1
    }
}

fn a_message_goes_to_the_srq_that_it_names(env: &TestEnv) {
    let xrc = XrcConnection::new(env, 7);
    let source = xrc.pd.alloc_buf(64);
    let targets = [xrc.pd.alloc_buf(64), xrc.pd.alloc_buf(64)];
    for (i, target) in targets.iter().enumerate() {
        xrc.srqs_with_number_and_cq[i].0.post_recv(10 + i as u64, [target.whole_sge()]);
    }
    for i in [1, 0] {
        source.memory.fill_with_pattern(i as u64);
        xrc.sender.post(with_remote_srqn(send([source.whole_sge()]).with_id(i as u64), xrc.srqn(i)));
        let wc = xrc.srqs_with_number_and_cq[i].2.await_completion();
        wc.expect_received(10 + i as u64, 64);
        assert_eq!(wc.qpn(), xrc.receiver.qpn());
        xrc.sender_cq.await_completion().expect_sent(i as u64, Verb::Send);
        targets[i].memory.assert_pattern_at(0, 64, i as u64);
    }
    for (_, _, cq) in &xrc.srqs_with_number_and_cq {
        cq.expect_empty();
    }
}

fn long_messages_and_immediates_arrive(env: &TestEnv) {
    let xrc = XrcConnection::new(env, 7);
    for (i, len) in [0, 1, 1000, 5000, 100_000].into_iter().enumerate() {
        let id = i as u64;
        let source = xrc.pd.alloc_buf(len.max(1));
        let target = xrc.pd.alloc_buf(len.max(1));
        source.memory.fill_with_pattern(id);
        xrc.srqs_with_number_and_cq[0].0.post_recv(id, [target.whole_sge()]);
        xrc.sender.post(with_remote_srqn(send_imm([source.sge(0, len)], 77).with_id(id), xrc.srqn(0)));
        let wc = xrc.srqs_with_number_and_cq[0].2.await_completion();
        wc.expect_received(id, len);
        assert_eq!(wc.imm(), Some(77));
        xrc.sender_cq.await_completion().expect_sent(id, Verb::SendWithImm);
        target.memory.assert_pattern_at(0, len, id);
    }
}

fn an_srq_receive_makes_a_channel_event(env: &TestEnv) {
    let ctx = Context::open(env);
    let pd = ctx.alloc_pd();
    let channel = ctx.create_channel();
    let cq = ctx.create_cq_on_channel(16, &channel);
    let scq = ctx.create_cq(16);
    let domain = XrcDomain::open(&ctx, -1, libc::O_CREAT).expect("ibv_open_xrcd");
    let (srq, number) = domain.create_srq(&pd, &cq).expect("ibv_create_srq_ex");
    let side = QpSpec::rc().create_qp_side(env);
    {
        let sender = pd.create_qp(&mut QpInitAttr::new(IBV_QPT_XRC_SEND, &scq, &scq));
        let receiver = domain.create_recv_qp(&pd, &scq).expect("ibv_create_qp_ex");
        let address = side.address();
        for (qp, qpn) in [(&receiver, sender.qpn()), (&sender, receiver.qpn())] {
            let peer = QpAddress { qpn, ..address };
            for (attr, mask) in [side.reset_to_init_attr_and_mask(), side.init_to_rtr_attr_and_mask(&peer), side.rtr_to_rts_attr_and_mask()] {
                qp.modify(&attr, mask).expect("ibv_modify_qp");
            }
        }
        let buf = pd.alloc_buf(8);
        for round in 0..20 {
            srq.post_recv(round, [buf.whole_sge()]);
            cq.arm(false);
            assert!(!channel.has_event_within(Duration::ZERO));
            sender.post(with_remote_srqn(send([buf.whole_sge()]).with_id(round), number));
            channel.await_and_ack_event(&cq);
            cq.ack(1);
            cq.await_completion().expect_received(round, 8);
            scq.await_completion().expect_sent(round, Verb::Send);
        }
    }
    drop(srq);
}

fn a_receive_may_reach_past_its_region(env: &TestEnv) {
    let xrc = XrcConnection::new(env, 7);
    let (source, target) = (xrc.pd.alloc_buf(8), xrc.pd.alloc_buf(72));
    source.memory.fill_with_pattern(1);
    xrc.srqs_with_number_and_cq[0].0.post_recv(5, [ibv_sge { length: 4096, ..target.sge(64, 8) }]);
    xrc.sender.post(with_remote_srqn(send([source.whole_sge()]).with_id(6), xrc.srqn(0)));
    xrc.srqs_with_number_and_cq[0].2.await_completion().expect_received(5, 8);
    target.memory.assert_pattern_at(64, 8, 1);
}

fn a_message_waits_for_a_receive(env: &TestEnv) {
    let xrc = XrcConnection::new(env, 7);
    let (source, target) = (xrc.pd.alloc_buf(8), xrc.pd.alloc_buf(8));
    xrc.sender.post(with_remote_srqn(send([source.whole_sge()]).with_id(1), xrc.srqn(1)));
    xrc.srqs_with_number_and_cq[1].2.expect_empty();
    xrc.sender_cq.expect_empty();
    xrc.srqs_with_number_and_cq[1].0.post_recv(2, [target.whole_sge()]);
    xrc.srqs_with_number_and_cq[1].2.await_completion().expect_received(2, 8);
    xrc.sender_cq.await_completion().expect_sent(1, Verb::Send);
    let short = XrcConnection::new(env, 1);
    short.sender.post(with_remote_srqn(send([]).with_id(3), short.srqn(0)));
    short.sender_cq.await_completion().expect_failed(3, &[IBV_WC_RNR_RETRY_EXC_ERR]);
}

fn remote_access_is_checked_in_the_pd_of_the_named_srq(env: &TestEnv) {
    let xrc = XrcConnection::new(env, 7);
    let local = xrc.pd.alloc_buf(8);
    let remote = xrc.pd.alloc_buf(64);
    remote.memory.store(0, 40);
    local.memory.store(0, 5);
    let srqn = xrc.srqn(0);
    let post = |wr, id, verb| {
        xrc.sender.post(with_remote_srqn(wr, srqn));
        xrc.sender_cq.await_completion().expect_sent(id, verb);
    };
    post(read([local.whole_sge()], remote.remote_address()).with_id(1), 1, Verb::RdmaRead);
    assert_eq!(local.memory.load(0), 40);
    post(write([local.whole_sge()], remote.remote_address().plus(8)).with_id(2), 2, Verb::RdmaWrite);
    assert_eq!(remote.memory.load(8), 40);
    post(fetch_add(local.whole_sge(), remote.remote_address(), 2).with_id(3), 3, Verb::AtomicFetchAndAdd);
    assert_eq!(remote.memory.load(0), 42);
    xrc.srqs_with_number_and_cq[0].0.post_recv(9, []);
    post(
        write_imm([local.whole_sge()], remote.remote_address().plus(16), 6).with_id(4),
        4,
        Verb::RdmaWriteWithImm,
    );
    xrc.srqs_with_number_and_cq[0].2.await_completion().expect_success(9, IBV_WC_RECV_RDMA_WITH_IMM);
    assert_eq!(remote.memory.load(16), 40);
    // This memory is in another protection domain than the shared receive queue.
    let other = xrc.attribute_template.ctx.alloc_pd().alloc_buf_of_kind(MemKind::Private, 8, ALL_ACCESS);
    xrc.sender.post(with_remote_srqn(write([local.whole_sge()], other.remote_address()).with_id(5), srqn));
    xrc.sender_cq.await_completion().expect_failed(5, &[IBV_WC_REM_ACCESS_ERR]);
    assert_eq!(other.memory.load(0), 0);
}

fn an_unknown_srq_number_is_an_invalid_request(env: &TestEnv) {
    let xrc = XrcConnection::new(env, 7);
    let buf = xrc.pd.alloc_buf(8);
    xrc.srqs_with_number_and_cq[0].0.post_recv(1, [buf.whole_sge()]);
    let wrong = (0..u32::MAX).find(|n| *n != xrc.srqn(0) && *n != xrc.srqn(1));
    xrc.sender.post(with_remote_srqn(send([buf.whole_sge()]).with_id(2), wrong.expect("a number")));
    // Only the engine, or the calls below, make progress for the receiver.
    xrc.sender_cq.await_completion().expect_failed(2, &[IBV_WC_REM_INV_REQ_ERR]);
    xrc.receiver.await_state(IBV_QPS_ERR);
    xrc.srqs_with_number_and_cq[0].2.expect_empty();
}

fn a_domain_is_named_by_its_file(env: &TestEnv) {
    let ctx = Context::open(env);
    let file = memfd_create("xrcd", MemfdFlags::CLOEXEC).expect("a file");
    let fd = file.as_raw_fd();
    let open = |oflags| XrcDomain::open(&ctx, fd, oflags);
    assert_eq!(open(0).err(), Some(libc::EAGAIN));
    let first = open(libc::O_CREAT | libc::O_EXCL).expect("a new domain");
    assert_eq!(open(libc::O_CREAT | libc::O_EXCL).err(), Some(libc::EINVAL));
    let again = open(0).expect("the same domain");
    let (pd, cq) = (ctx.alloc_pd(), ctx.create_cq(8));
    let qp = first.create_recv_qp(&pd, &cq).expect("ibv_create_qp_ex");
    drop(again.open_recv_qp_by_number(qp.qpn(), &pd, &cq).expect("ibv_open_qp"));
    drop(qp);
    let other = XrcDomain::open(&ctx, -1, libc::O_CREAT).expect("a domain without a file");
    let qp = other.create_recv_qp(&pd, &cq).expect("ibv_create_qp_ex");
    assert_eq!(first.open_recv_qp_by_number(qp.qpn(), &pd, &cq).err(), Some(libc::EINVAL));
    drop(qp);
    drop(first);
    drop(again);
    assert_eq!(open(0).err(), Some(libc::EAGAIN));
    assert_eq!(XrcDomain::open(&ctx, i32::MAX, libc::O_CREAT).err(), Some(libc::EBADF));
}

fn destroying_objects_in_use_is_refused(env: &TestEnv) {
    let xrc = XrcConnection::new(env, 7);
    assert_eq!(xrc.domain.try_close(), libc::EBUSY);
    assert_eq!(xrc.srqs_with_number_and_cq[0].2.try_destroy(), libc::EBUSY);
    assert_eq!(xrc.pd.try_destroy(), libc::EBUSY);
}

fn a_receiving_qp_is_opened_by_its_number(env: &TestEnv) {
    let xrc = XrcConnection::new(env, 7);
    let opened = xrc
        .domain
        .open_recv_qp_by_number(xrc.receiver.qpn(), &xrc.pd, &xrc.sender_cq)
        .expect("ibv_open_qp");
    assert_eq!(opened.qpn(), xrc.receiver.qpn());
    assert_eq!(opened.query_state(), IBV_QPS_RTS);
    drop(opened);
    // The queue pair exists as long as a handle to it is open.
    let buf = xrc.pd.alloc_buf(8);
    xrc.srqs_with_number_and_cq[0].0.post_recv(1, [buf.whole_sge()]);
    xrc.sender.post(with_remote_srqn(send([buf.whole_sge()]).with_id(2), xrc.srqn(0)));
    xrc.srqs_with_number_and_cq[0].2.await_completion().expect_received(1, 8);
    let unknown = xrc.domain.open_recv_qp_by_number(xrc.sender.qpn(), &xrc.pd, &xrc.sender_cq);
    assert_eq!(unknown.err(), Some(libc::EINVAL));
}

fn srq_numbers_differ_and_have_24_bits(env: &TestEnv) {
    let xrc = XrcConnection::new(env, 7);
    assert_ne!(xrc.srqn(0), xrc.srqn(1));
    assert!(xrc.srqn(0) >> 24 == 0 && xrc.srqn(1) >> 24 == 0, "an XRCETH has 24 bits");
}

/// The receiving queue pair has no CQ: it fails at the first message whose completion does not fit.
fn an_overrun_srq_cq_fails_the_receiving_qp(env: &TestEnv) {
    let xrc = XrcConnection::new(env, 7);
    let (srq, srqn, cq) = &xrc.srqs_with_number_and_cq[0];
    assert_eq!(cq.try_resize(4), 0);
    for i in 0..6 {
        srq.post_recv(i, []);
    }
    for i in 0..5 {
        xrc.sender.post(with_remote_srqn(send([]).with_id(i), *srqn));
        xrc.sender_cq.await_completion().expect_sent(i, Verb::Send);
    }
    let ctx = xrc.pd.ctx();
    await_cq_error_event(ctx, cq);
    xrc.sender.post(with_remote_srqn(send([]).with_id(5), *srqn));
    xrc.sender_cq.await_completion().expect_failed(5, &[IBV_WC_REM_OP_ERR]);
    assert!(await_async_event_of_type(ctx, IBV_EVENT_QP_FATAL).concerns_qp(&xrc.receiver));
    for (wc, i) in cq.wait_for_completions(4).iter().zip(0..) {
        wc.expect_received(i, 0);
    }
    cq.expect_empty();
}
