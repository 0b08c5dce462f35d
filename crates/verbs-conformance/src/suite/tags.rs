//! Tests of tag matching: `ibv_post_srq_ops`.

use std::time::Duration;

use verbs_abi::*;

use super::overrun::await_cq_error_event;
use crate::TestEnv;
use crate::harness::record_case;
use crate::objects::{Buf, QpInitAttr};
use crate::pair::{QpSide, QpSpec};
use crate::child_processes::{PeerAnswer, PeerCommand, PeerProcess};
use crate::rng::pattern;
use crate::tag_matching::{TMH_OP_EAGER, TMH_OP_FIN, TMH_OP_NO_TAG, TMH_OP_RNDV, TagSrq, tmh_header, signaled_tag_operation_wr, post_srq_ops};
use crate::wr::{RemoteAddress, Verb, Wc, read, send, send_imm};

tests! { "tags";
    a_message_goes_to_the_receive_with_its_tag [Tags],
    a_message_without_matching_tag_is_unexpected [Tags],
    messages_without_a_tag_go_to_untagged_receives [Tags],
    an_unexpected_message_stops_matching_until_sync [Tags],
    messages_of_all_kinds_arrive_in_one_poll [Tags],
    a_deleted_tagged_receive_matches_nothing [Tags],
    the_receiver_reads_a_rendezvous_and_sends_fin [Tags],
    a_rendezvous_with_a_wrong_rkey_fails_the_receiver [Tags],
    a_too_long_tagged_message_fails_both_sides [Tags],
    a_rendezvous_that_is_too_long_is_left_to_the_program [Tags, Read],
    invalid_tag_operations_and_srqs_are_refused [Tags],
    this_process_matches_messages_of_another [Tags, Processes],
    another_process_matches_our_messages [Tags, Processes],
    a_killed_rendezvous_sender_ends_the_receive [Tags, Processes],
    a_killed_rendezvous_receiver_fails_the_sender [Tags, Processes],
    unpolled_tag_operations_overrun_their_cq [Tags, Events],
}

const EXACT_TAG_MASK: u64 = u64::MAX;

/// A sending queue pair, and a receiving queue pair whose SRQ matches tags. The fields are dropped in the order of
/// declaration.
struct TagMatchingPair {
    sender: QpSide,
    receiver: QpSide,
    tag_srq: TagSrq,
}

impl TagMatchingPair {
    fn new(env: &TestEnv) -> Self {
        let spec = QpSpec::rc();
        let mut sender = spec.create_qp_side(env);
        let mut receiver = QpSide::new(&sender.ctx, &spec);
        let tags = TagSrq::new(&receiver.pd, &receiver.rcq, 4).expect("ibv_create_srq_ex");
        let mut init = QpInitAttr::new(IBV_QPT_RC, &receiver.scq, &receiver.rcq);
        init.srq = Some(tags.srq.clone());
        receiver.qp = receiver.pd.create_qp(&mut init);
        receiver.srq = Some(tags.srq.clone());
        let (to, from) = (receiver.address(), sender.address());
        receiver.connect(&from);
        sender.connect(&to);
        Self { sender, receiver, tag_srq: tags }
    }

    /// Adds a receive for one tag.
    fn add_tagged_recv(&self, wr_id: u64, tag: u64, to: &Buf) -> u32 {
        let handle = self.tag_srq.post_tag_add(wr_id, (tag, EXACT_TAG_MASK), &[to.whole_sge()]).expect("ibv_post_srq_ops");
        self.expect_recv_cq_completion(wr_id, IBV_WC_TM_ADD);
        handle
    }

    /// Takes the next completion of the receiver: the completion of a tag operation, or of a part of a message.
    fn expect_recv_cq_completion(&self, wr_id: u64, opcode: ibv_wc_opcode) -> Wc {
        let wc = self.receiver.await_recv_completion();
        wc.expect_success(wr_id, opcode);
        wc
    }

    /// Returns a buffer with a message.
    fn message_buffer(&self, header: &[u8], len: usize, seed: u64) -> Buf {
        let buf = self.sender.alloc_buf(header.len() + len);
        buf.memory.write(0, header);
        buf.memory.fill_pattern_at(header.len(), len, seed);
        buf
    }

    fn post_message(&self, wr_id: u64, message: &Buf) {
        self.sender.post(send([message.whole_sge()]).with_id(wr_id));
    }
}

fn wc_flags(wc: &Wc) -> u32 {
    wc.raw().wc_flags
}

fn a_message_goes_to_the_receive_with_its_tag(env: &TestEnv) {
    let tags = TagMatchingPair::new(env);
    for (i, len) in [0, 1, 48, 1000, 5000, 100_000].into_iter().enumerate() {
        let i = i as u64;
        let (first, second) = (tags.receiver.alloc_buf(len.max(1)), tags.receiver.alloc_buf(len.max(1)));
        tags.add_tagged_recv(10, 7, &first);
        // This entry matches any tag whose lowest hexadecimal digit is 5.
        tags.tag_srq.post_tag_add(11, (5, 0xf), &[second.whole_sge()]).expect("ibv_post_srq_ops");
        tags.expect_recv_cq_completion(11, IBV_WC_TM_ADD);
        for (tag, wr_id, to) in [(0x1235, 11, &second), (7, 10, &first)] {
            let message = tags.message_buffer(&tmh_header(TMH_OP_EAGER, 99, tag), len, i + tag);
            tags.sender.post(send_imm([message.whole_sge()], 77).with_id(i));
            let wc = tags.expect_recv_cq_completion(wr_id, IBV_WC_TM_RECV);
            assert_eq!(wc.raw().byte_len as usize, len);
            assert_eq!(wc.imm(), Some(77));
            let expected = IBV_WC_TM_MATCH | IBV_WC_TM_DATA_VALID | IBV_WC_WITH_IMM;
            assert_eq!(wc_flags(&wc), expected);
            tags.sender.await_send_completion().expect_sent(i, Verb::SendWithImm);
            to.memory.assert_pattern_at(0, len, i + tag);
        }
    }
}

fn a_message_without_matching_tag_is_unexpected(env: &TestEnv) {
    let tags = TagMatchingPair::new(env);
    let (tagged, plain) = (tags.receiver.alloc_buf(8192), tags.receiver.alloc_buf(8192));
    tags.add_tagged_recv(1, 7, &tagged);
    for (i, operation) in [TMH_OP_EAGER, TMH_OP_RNDV].into_iter().enumerate() {
        let i = i as u64;
        let message = tags.message_buffer(&tmh_header(operation, 0, 8), 6000, i);
        tags.tag_srq.srq.post_recv(20 + i, [plain.whole_sge()]);
        tags.post_message(i, &message);
        let wc = tags.expect_recv_cq_completion(20 + i, IBV_WC_TM_RECV);
        assert_eq!((wc_flags(&wc), wc.raw().byte_len), (0, 6016));
        assert_eq!(plain.memory.read(0, 16), tmh_header(operation, 0, 8));
        plain.memory.assert_pattern_at(16, 6000, i);
        tags.sender.await_send_completion().expect_sent(i, Verb::Send);
    }
}

fn messages_without_a_tag_go_to_untagged_receives(env: &TestEnv) {
    let tags = TagMatchingPair::new(env);
    let (tagged, plain) = (tags.receiver.alloc_buf(64), tags.receiver.alloc_buf(64));
    tags.add_tagged_recv(1, 0, &tagged);
    let messages = [
        tmh_header(TMH_OP_NO_TAG, 0, 0),
        tmh_header(TMH_OP_FIN, 0, 0),
        tmh_header(200, 0, 0),
        // Incomplete headers, also of a rendezvous.
        tmh_header(TMH_OP_EAGER, 0, 0)[..15].to_vec(),
        tmh_header(TMH_OP_RNDV, 0, 0),
    ];
    for (i, bytes) in messages.iter().enumerate() {
        let i = i as u64;
        tags.tag_srq.srq.post_recv(20 + i, [plain.whole_sge()]);
        tags.post_message(i, &tags.message_buffer(bytes, 0, 0));
        let wc = tags.expect_recv_cq_completion(20 + i, IBV_WC_TM_NO_TAG);
        assert_eq!((wc_flags(&wc), wc.raw().byte_len as usize), (0, bytes.len()));
        assert_eq!(plain.memory.read(0, bytes.len()), *bytes);
        tags.sender.await_send_completion().expect_sent(i, Verb::Send);
    }
}

fn an_unexpected_message_stops_matching_until_sync(env: &TestEnv) {
    let tags = TagMatchingPair::new(env);
    let (tagged, plain) = (tags.receiver.alloc_buf(64), tags.receiver.alloc_buf(64));
    for id in 0..2 {
        tags.tag_srq.srq.post_recv(20 + id, [plain.whole_sge()]);
    }
    let message = tags.message_buffer(&tmh_header(TMH_OP_EAGER, 0, 7), 8, 0);
    tags.post_message(0, &message);
    tags.expect_recv_cq_completion(20, IBV_WC_TM_RECV);
    tags.sender.await_send_completion().expect_sent(0, Verb::Send);
    // The program has not polled the unexpected message yet; otherwise it would not have added this receive.
    tags.tag_srq.post_tag_add(1, (7, EXACT_TAG_MASK), &[tagged.whole_sge()]).expect("ibv_post_srq_ops");
    assert_eq!(wc_flags(&tags.expect_recv_cq_completion(1, IBV_WC_TM_ADD)), IBV_WC_TM_SYNC_REQ);
    tags.post_message(1, &message);
    tags.expect_recv_cq_completion(21, IBV_WC_TM_RECV);
    tags.sender.await_send_completion().expect_sent(1, Verb::Send);
    tags.tag_srq.post_tag_sync(2, 1).expect("ibv_post_srq_ops");
    assert_eq!(wc_flags(&tags.expect_recv_cq_completion(2, IBV_WC_TM_SYNC)), IBV_WC_TM_SYNC_REQ);
    tags.tag_srq.post_tag_sync(3, 2).expect("ibv_post_srq_ops");
    assert_eq!(wc_flags(&tags.expect_recv_cq_completion(3, IBV_WC_TM_SYNC)), 0);
    tags.post_message(2, &message);
    tags.expect_recv_cq_completion(1, IBV_WC_TM_RECV);
    tags.sender.await_send_completion().expect_sent(2, Verb::Send);
}

/// A short message without a tag, one whose payload may stay in the sender's memory, and a rendezvous.
fn messages_of_all_kinds_arrive_in_one_poll(env: &TestEnv) {
    let tags = TagMatchingPair::new(env);
    let [plain, eager, large] = [64, 6000, 6000].map(|len| tags.receiver.alloc_buf(len));
    let payload = tags.sender.alloc_buf(6000);
    payload.memory.fill_with_pattern(3);
    tags.add_tagged_recv(1, 7, &eager);
    tags.add_tagged_recv(2, 8, &large);
    let receives = [tags.sender.alloc_buf(64), tags.sender.alloc_buf(64)];
    tags.sender.post_recv(9, [receives[0].whole_sge()]);
    tags.tag_srq.srq.post_recv(3, [plain.whole_sge()]);
    let messages = [
        tags.message_buffer(&tmh_header(TMH_OP_NO_TAG, 0, 0), 8, 1),
        tags.message_buffer(&tmh_header(TMH_OP_EAGER, 0, 7), 6000, 2),
        rendezvous_message(&tags, 8, &payload, payload.mr.rkey()),
    ];
    let wrs = (0..).zip(&messages).map(|(i, message)| send([message.whole_sge()]).with_id(i));
    tags.sender.post_sends(wrs.collect());
    let wcs = tags.receiver.rcq.wait_for_completions(4);
    let expected =
        [(3, IBV_WC_TM_NO_TAG), (1, IBV_WC_TM_RECV), (2, IBV_WC_TM_RECV), (2, IBV_WC_TM_RECV)];
    for (wc, (wr_id, opcode)) in wcs.iter().zip(expected) {
        wc.expect_success(wr_id, opcode);
    }
    eager.memory.assert_pattern_at(0, 6000, 2);
    large.memory.assert_pattern_at(0, 6000, 3);
}

fn a_deleted_tagged_receive_matches_nothing(env: &TestEnv) {
    let tags = TagMatchingPair::new(env);
    let (tagged, plain) = (tags.receiver.alloc_buf(64), tags.receiver.alloc_buf(64));
    let handle = tags.add_tagged_recv(1, 7, &tagged);
    tags.tag_srq.post_tag_delete(2, handle).expect("ibv_post_srq_ops");
    tags.expect_recv_cq_completion(2, IBV_WC_TM_DEL);
    tags.tag_srq.srq.post_recv(20, [plain.whole_sge()]);
    tags.post_message(0, &tags.message_buffer(&tmh_header(TMH_OP_EAGER, 0, 7), 8, 0));
    tags.expect_recv_cq_completion(20, IBV_WC_TM_RECV);
    tags.sender.await_send_completion().expect_sent(0, Verb::Send);
    // "Operation may fail due to concurrent tag consumption".
    tags.tag_srq.post_tag_delete(3, handle).expect("ibv_post_srq_ops");
    tags.receiver.await_recv_completion().expect_failed(3, &[IBV_WC_TM_ERR]);
}

/// Returns a rendezvous message for `payload`.
fn rendezvous_message(tags: &TagMatchingPair, tag: u64, payload: &Buf, rkey: u32) -> Buf {
    let place = RemoteAddress { rkey, ..payload.remote_address() };
    tags.message_buffer(&rendezvous_header(tag, place, payload.memory.len()), 0, 0)
}

/// Returns the headers of a rendezvous message: for tag matching and for the rendezvous.
fn rendezvous_header(tag: u64, payload: RemoteAddress, len: usize) -> Vec<u8> {
    let mut bytes = tmh_header(TMH_OP_RNDV, 55, tag);
    bytes.extend(payload.addr.to_be_bytes());
    bytes.extend(payload.rkey.to_be_bytes());
    bytes.extend(u32::try_from(len).expect("short").to_be_bytes());
    bytes
}

fn the_receiver_reads_a_rendezvous_and_sends_fin(env: &TestEnv) {
    let tags = TagMatchingPair::new(env);
    let fins = tags.sender.alloc_buf(64);
    for (i, len) in [1, 1000, 5000, 1_000_000].into_iter().enumerate() {
        let i = i as u64;
        let payload = tags.sender.alloc_buf(len);
        payload.memory.fill_with_pattern(i);
        let halves = [tags.receiver.alloc_buf(len / 2 + 1), tags.receiver.alloc_buf(len)];
        let sges = [halves[0].whole_sge(), halves[1].whole_sge()];
        tags.tag_srq.post_tag_add(30 + i, (i, EXACT_TAG_MASK), &sges).expect("ibv_post_srq_ops");
        tags.expect_recv_cq_completion(30 + i, IBV_WC_TM_ADD);
        let behind = tags.receiver.alloc_buf(8);
        tags.add_tagged_recv(40, 77, &behind);
        tags.sender.post_recv(50 + i, [fins.whole_sge()]);
        tags.post_message(i, &rendezvous_message(&tags, i, &payload, payload.mr.rkey()));
        tags.post_message(10 + i, &tags.message_buffer(&tmh_header(TMH_OP_EAGER, 0, 77), 8, i));
        let wc = tags.expect_recv_cq_completion(30 + i, IBV_WC_TM_RECV);
        assert_eq!((wc_flags(&wc), wc.raw().byte_len as usize), (IBV_WC_TM_MATCH, len));
        let wc = tags.expect_recv_cq_completion(30 + i, IBV_WC_TM_RECV);
        assert_eq!((wc_flags(&wc), wc.raw().byte_len as usize), (IBV_WC_TM_DATA_VALID, len));
        let mut found = halves[0].memory.read(0, (len / 2 + 1).min(len));
        found.extend(halves[1].memory.read(0, len - found.len()));
        assert_eq!(found, pattern(i, len));
        tags.expect_recv_cq_completion(40, IBV_WC_TM_RECV);
        tags.sender.await_recv_completion().expect_received(50 + i, 16);
        assert_eq!(fins.memory.read(0, 16), tmh_header(TMH_OP_FIN, 55, i));
        tags.sender.await_send_completion().expect_sent(i, Verb::Send);
        tags.sender.await_send_completion().expect_sent(10 + i, Verb::Send);
    }
}

fn a_rendezvous_with_a_wrong_rkey_fails_the_receiver(env: &TestEnv) {
    let tags = TagMatchingPair::new(env);
    let (payload, to) = (tags.sender.alloc_buf(100), tags.receiver.alloc_buf(100));
    tags.add_tagged_recv(1, 7, &to);
    let wrong = payload.mr.rkey() ^ 0x10;
    tags.post_message(0, &rendezvous_message(&tags, 7, &payload, wrong));
    assert_eq!(wc_flags(&tags.expect_recv_cq_completion(1, IBV_WC_TM_RECV)), IBV_WC_TM_MATCH);
    let statuses = env.accepted_failure_statuses(IBV_WC_REM_ACCESS_ERR);
    tags.receiver.await_recv_completion().expect_failed(1, &statuses);
    assert_eq!(tags.receiver.qp.query_state(), IBV_QPS_ERR);
}

fn a_too_long_tagged_message_fails_both_sides(env: &TestEnv) {
    let tags = TagMatchingPair::new(env);
    let to = tags.receiver.alloc_buf(99);
    tags.add_tagged_recv(1, 7, &to);
    tags.post_message(0, &tags.message_buffer(&tmh_header(TMH_OP_EAGER, 0, 7), 100, 0));
    let statuses = env.accepted_failure_statuses(IBV_WC_LOC_LEN_ERR);
    tags.receiver.await_recv_completion().expect_failed(1, &statuses);
    let statuses = env.accepted_failure_statuses(IBV_WC_REM_INV_REQ_ERR);
    tags.sender.await_send_completion().expect_failed(0, &statuses);
}

/// "When a posted tagged buffer is insufficient to hold the data of a rendezvous request, the HW completes the buffer
/// with an IBV_WC_TM_RNDV_INCOMPLETE status. In this case, the TMH and RVH headers are scattered into the tagged buffer
/// (tag-matching has still been completed!), and message handling is resumed by SW" (`Documentation/tag_matching.md` of
/// rdma-core).
fn a_rendezvous_that_is_too_long_is_left_to_the_program(env: &TestEnv) {
    let tags = TagMatchingPair::new(env);
    let (to, payload) = (tags.receiver.alloc_buf(99), tags.sender.alloc_buf(100));
    let place = rendezvous_header(7, payload.remote_address(), 100);
    tags.add_tagged_recv(1, 7, &to);
    tags.add_tagged_recv(2, 7, &to);
    tags.post_message(0, &tags.message_buffer(&place, 0, 0));
    tags.receiver.await_recv_completion().expect_failed(1, &[IBV_WC_TM_RNDV_INCOMPLETE]);
    assert_eq!(to.memory.read(0, 32), place);
    tags.sender.await_send_completion().expect_sent(0, Verb::Send);
    // The program reads the payload and finishes the rendezvous; the queue pairs are not affected.
    let all = tags.receiver.alloc_buf(100);
    payload.memory.fill_with_pattern(3);
    tags.receiver.post(read([all.whole_sge()], payload.remote_address()).with_id(4));
    tags.receiver.await_send_completion().expect_sent(4, Verb::RdmaRead);
    all.memory.assert_pattern_at(0, 100, 3);
    tags.post_message(1, &tags.message_buffer(&tmh_header(TMH_OP_EAGER, 0, 7), 50, 4));
    tags.expect_recv_cq_completion(2, IBV_WC_TM_RECV);
    tags.sender.await_send_completion().expect_sent(1, Verb::Send);
    // The tagged buffer must have room for the headers.
    let small = tags.receiver.alloc_buf(31);
    tags.add_tagged_recv(3, 7, &small);
    tags.post_message(2, &tags.message_buffer(&place, 0, 0));
    tags.receiver.await_recv_completion().expect_failed(3, &env.accepted_failure_statuses(IBV_WC_LOC_LEN_ERR));
    tags.sender.await_send_completion().expect_failed(2, &env.accepted_failure_statuses(IBV_WC_REM_INV_REQ_ERR));
}

fn invalid_tag_operations_and_srqs_are_refused(env: &TestEnv) {
    let tags = TagMatchingPair::new(env);
    let (pd, ctx) = (&tags.receiver.pd, &tags.receiver.ctx);
    let to = tags.receiver.alloc_buf(8);
    for tag in 0..4 {
        tags.add_tagged_recv(1, tag, &to);
    }
    assert_eq!(tags.tag_srq.post_tag_add(1, (4, EXACT_TAG_MASK), &[to.whole_sge()]), Err(libc::ENOMEM));
    assert_eq!(tags.tag_srq.post_tag_add(1, (4, EXACT_TAG_MASK), &[to.whole_sge(); 3]), Err(libc::EINVAL));
    assert_eq!(tags.tag_srq.post_tag_operation(signaled_tag_operation_wr(9, 1)), Err(libc::EINVAL));
    let plain = pd.create_srq();
    let mut sync = signaled_tag_operation_wr(IBV_WR_TAG_SYNC, 1);
    assert_eq!(post_srq_ops(ctx, &plain, &mut sync), Err(libc::EINVAL));
    assert_eq!(TagSrq::new(pd, &tags.receiver.rcq, 0).err(), Some(libc::EINVAL));
    assert_eq!(TagSrq::new(pd, &tags.receiver.rcq, 1 << 30).err(), Some(libc::EINVAL));
    // The receives of a tag-matching SRQ complete in the SRQ's own CQ, and the SRQ is only for reliable
    // connections.
    for (qp_type, cq) in [(IBV_QPT_RC, &tags.receiver.scq), (IBV_QPT_UC, &tags.receiver.rcq)] {
        let mut init = QpInitAttr::new(qp_type, cq, cq);
        init.srq = Some(tags.tag_srq.srq.clone());
        assert_eq!(pd.try_create_qp(&mut init).err(), Some(libc::EINVAL), "type {qp_type}");
    }
    tags.receiver.rcq.expect_empty();
}

const MAX_RENDEZVOUS_PAYLOAD_BYTES: usize = 1 << 20;

fn command_and_expect_done(peer: &mut PeerProcess, order: PeerCommand) {
    assert_eq!(peer.send_command_and_await_answer(&order), PeerAnswer::Done);
}

/// Starts another process, and connects it with a new side of this process. `here` and `there` are the numbers of tags
/// of the SRQs in this process and in the other process.
fn connect_tag_peer(env: &TestEnv, here: u32, there: u32) -> (PeerProcess, QpSide, RemoteAddress) {
    let spec = |tags| QpSpec::rc().with_short_timeout_and_few_retries().with_tags(tags);
    let mut peer = PeerProcess::start(env);
    let make = PeerCommand::Make(Box::new(spec(there)), MAX_RENDEZVOUS_PAYLOAD_BYTES + 4096);
    let PeerAnswer::Made(address, remote) = peer.send_command_and_await_answer(&make) else { panic!("nothing was made") };
    let mut side = spec(here).create_qp_side(env);
    command_and_expect_done(&mut peer, PeerCommand::Connect(side.address()));
    side.connect(&address);
    (peer, side, remote)
}

/// Checks that the next completion of a side's receives is a tagged message.
fn await_and_check_tagged_recv(side: &QpSide, wr_id: u64, expected: u32, len: usize) {
    let wc = side.await_recv_completion();
    wc.expect_success(wr_id, IBV_WC_TM_RECV);
    assert_eq!((wc_flags(&wc), wc.raw().byte_len as usize), (expected, len));
}

/// Offsets of messages and of replies in the peer's buffer; the payload is at the start of the buffer.
const RENDEZVOUS_HEADER_OFFSET: usize = MAX_RENDEZVOUS_PAYLOAD_BYTES;
const REPLY_OFFSET: usize = MAX_RENDEZVOUS_PAYLOAD_BYTES + 64;

fn this_process_matches_messages_of_another(env: &TestEnv) {
    let (mut peer, side, remote) = connect_tag_peer(env, 4, 0);
    let tags = side.tag_srq.clone().expect("it has a list");
    let (to, plain) = (side.alloc_buf(MAX_RENDEZVOUS_PAYLOAD_BYTES), side.alloc_buf(4096));
    let add = |id, tag| {
        tags.post_tag_add(id, (tag, EXACT_TAG_MASK), &[to.whole_sge()]).expect("ibv_post_srq_ops");
        side.await_recv_completion().expect_success(id, IBV_WC_TM_ADD);
    };
    for (seed, len) in [0, 1, 100, 5000, MAX_RENDEZVOUS_PAYLOAD_BYTES - 16].into_iter().enumerate() {
        record_case(format!("an eager message of {len} bytes"));
        let seed = seed as u64;
        add(seed, 7);
        command_and_expect_done(&mut peer, PeerCommand::Write(0, tmh_header(TMH_OP_EAGER, 1, 7)));
        command_and_expect_done(&mut peer, PeerCommand::Fill(16, len, seed));
        command_and_expect_done(&mut peer, PeerCommand::Send(0, 16 + len));
        await_and_check_tagged_recv(&side, seed, IBV_WC_TM_MATCH | IBV_WC_TM_DATA_VALID, len);
        to.memory.assert_pattern_at(0, len, seed);
    }
    for (seed, len) in [1, 5000, MAX_RENDEZVOUS_PAYLOAD_BYTES].into_iter().enumerate() {
        record_case(format!("a rendezvous of {len} bytes"));
        let seed = 10 + seed as u64;
        add(seed, 8);
        command_and_expect_done(&mut peer, PeerCommand::Fill(0, len, seed));
        command_and_expect_done(&mut peer, PeerCommand::Recv { id: 1, offset: REPLY_OFFSET as u64, len: 64 });
        command_and_expect_done(&mut peer, PeerCommand::Write(RENDEZVOUS_HEADER_OFFSET, rendezvous_header(8, remote, len)));
        command_and_expect_done(&mut peer, PeerCommand::Send(RENDEZVOUS_HEADER_OFFSET, 32));
        await_and_check_tagged_recv(&side, seed, IBV_WC_TM_MATCH, len);
        await_and_check_tagged_recv(&side, seed, IBV_WC_TM_DATA_VALID, len);
        to.memory.assert_pattern_at(0, len, seed);
        let PeerAnswer::Completion { status, .. } = peer.send_command_and_await_answer(&PeerCommand::Received) else {
            panic!("no completion")
        };
        assert_eq!(status, IBV_WC_SUCCESS);
        let fin = peer.send_command_and_await_answer(&PeerCommand::Read(REPLY_OFFSET, 16));
        assert_eq!(fin, PeerAnswer::Bytes(tmh_header(TMH_OP_FIN, 55, 8)));
    }
    record_case("one that nothing matches");
    side.srq.as_ref().expect("the same").post_recv(20, [plain.whole_sge()]);
    command_and_expect_done(&mut peer, PeerCommand::Write(0, tmh_header(TMH_OP_EAGER, 1, 9)));
    command_and_expect_done(&mut peer, PeerCommand::Send(0, 16));
    await_and_check_tagged_recv(&side, 20, 0, 16);
    tags.post_tag_sync(21, 1).expect("ibv_post_srq_ops");
    side.await_recv_completion().expect_success(21, IBV_WC_TM_SYNC);
    peer.exit_and_check();
}

fn another_process_matches_our_messages(env: &TestEnv) {
    let (mut peer, side, _) = connect_tag_peer(env, 0, 4);
    let (message, payload, back) = (side.alloc_buf(5016), side.alloc_buf(MAX_RENDEZVOUS_PAYLOAD_BYTES), side.alloc_buf(64));
    let add = |peer: &mut PeerProcess, id, tag| {
        command_and_expect_done(peer, PeerCommand::AddTag { id, tag, offset: 0, len: MAX_RENDEZVOUS_PAYLOAD_BYTES });
    };
    let finished = |peer: &mut PeerProcess, id, len| {
        let PeerAnswer::Completion { id: found, status, opcode, byte_len, .. } =
            peer.send_command_and_await_answer(&PeerCommand::Received)
        else {
            panic!("no completion")
        };
        let expected = (id, IBV_WC_SUCCESS, IBV_WC_TM_RECV, len);
        assert_eq!((found, status, opcode, byte_len as usize), expected);
    };
    add(&mut peer, 1, 7);
    add(&mut peer, 2, 8);
    payload.memory.fill_with_pattern(5);
    message.memory.write(0, &rendezvous_header(8, payload.remote_address(), MAX_RENDEZVOUS_PAYLOAD_BYTES));
    side.post_recv(9, [back.whole_sge()]);
    side.post(send([message.sge(0, 32)]).with_id(3));
    side.await_send_completion().expect_sent(3, Verb::Send);
    finished(&mut peer, 2, MAX_RENDEZVOUS_PAYLOAD_BYTES);
    finished(&mut peer, 2, MAX_RENDEZVOUS_PAYLOAD_BYTES);
    command_and_expect_done(&mut peer, PeerCommand::Check(0, MAX_RENDEZVOUS_PAYLOAD_BYTES, 5));
    side.await_recv_completion().expect_received(9, 16);
    assert_eq!(back.memory.read(0, 16), tmh_header(TMH_OP_FIN, 55, 8));
    message.memory.write(0, &tmh_header(TMH_OP_EAGER, 0, 7));
    message.memory.fill_pattern_at(16, 5000, 6);
    side.post(send([message.whole_sge()]).with_id(4));
    side.await_send_completion().expect_sent(4, Verb::Send);
    finished(&mut peer, 1, 5000);
    command_and_expect_done(&mut peer, PeerCommand::Check(0, 5000, 6));
    peer.exit_and_check();
}

/// Microseconds from the message to the death of a process. The death occurs before matching, while the payload is
/// read, or after that.
const KILL_DELAYS_US: [u64; 6] = [0, 50, 200, 500, 1000, 5000];

fn a_killed_rendezvous_sender_ends_the_receive(env: &TestEnv) {
    for us in KILL_DELAYS_US {
        record_case(format!("killed {us} µs after it was told to send"));
        let (mut peer, side, remote) = connect_tag_peer(env, 4, 0);
        let (tags, to) = (side.tag_srq.clone().expect("it has a list"), side.alloc_buf(MAX_RENDEZVOUS_PAYLOAD_BYTES));
        tags.post_tag_add(1, (7, EXACT_TAG_MASK), &[to.whole_sge()]).expect("ibv_post_srq_ops");
        side.await_recv_completion().expect_success(1, IBV_WC_TM_ADD);
        command_and_expect_done(&mut peer, PeerCommand::Fill(0, MAX_RENDEZVOUS_PAYLOAD_BYTES, 3));
        command_and_expect_done(&mut peer, PeerCommand::Recv { id: 1, offset: REPLY_OFFSET as u64, len: 64 });
        command_and_expect_done(&mut peer, PeerCommand::Write(RENDEZVOUS_HEADER_OFFSET, rendezvous_header(7, remote, MAX_RENDEZVOUS_PAYLOAD_BYTES)));
        peer.send_command(&PeerCommand::Send(RENDEZVOUS_HEADER_OFFSET, 32));
        std::thread::sleep(Duration::from_micros(us));
        peer.kill();
        // Either the message has not arrived, or the matched message completes, with or without its payload.
        let ended = match side.rcq.poll(1).first() {
            None => {
                side.rcq.expect_empty();
                continue;
            }
            Some(wc) => {
                wc.expect_success(1, IBV_WC_TM_RECV);
                assert_eq!(wc_flags(wc), IBV_WC_TM_MATCH);
                side.await_recv_completion()
            }
        };
        if ended.status() == IBV_WC_SUCCESS {
            ended.expect_success(1, IBV_WC_TM_RECV);
            to.memory.assert_pattern_at(0, MAX_RENDEZVOUS_PAYLOAD_BYTES, 3);
        } else {
            ended.expect_failed(1, &env.accepted_failure_statuses(IBV_WC_RETRY_EXC_ERR));
        }
        // The tag list remains usable for the next connection.
        tags.post_tag_sync(2, 0).expect("ibv_post_srq_ops");
        side.await_recv_completion().expect_success(2, IBV_WC_TM_SYNC);
    }
}

fn a_killed_rendezvous_receiver_fails_the_sender(env: &TestEnv) {
    for us in KILL_DELAYS_US {
        record_case(format!("killed {us} µs after the message"));
        let (mut peer, side, _) = connect_tag_peer(env, 0, 4);
        let (message, payload, back) = (side.alloc_buf(64), side.alloc_buf(MAX_RENDEZVOUS_PAYLOAD_BYTES), side.alloc_buf(64));
        command_and_expect_done(&mut peer, PeerCommand::AddTag { id: 1, tag: 7, offset: 0, len: MAX_RENDEZVOUS_PAYLOAD_BYTES });
        message.memory.write(0, &rendezvous_header(7, payload.remote_address(), MAX_RENDEZVOUS_PAYLOAD_BYTES));
        side.post_recv(9, [back.whole_sge()]);
        side.post(send([message.sge(0, 32)]).with_id(3));
        // The peer matches the message when it polls.
        peer.send_command(&PeerCommand::Received);
        std::thread::sleep(Duration::from_micros(us));
        peer.kill();
        let wc = side.await_send_completion();
        if wc.status() == IBV_WC_SUCCESS {
            wc.expect_sent(3, Verb::Send);
            side.post(send([message.sge(0, 32)]).with_id(4));
            side.await_send_completion().expect_failed(4, &env.accepted_failure_statuses(IBV_WC_RETRY_EXC_ERR));
        } else {
            wc.expect_failed(3, &env.accepted_failure_statuses(IBV_WC_RETRY_EXC_ERR));
        }
        let wc = side.await_recv_completion();
        if wc.status() == IBV_WC_SUCCESS {
            wc.expect_received(9, 16);
        } else {
            wc.expect_flushed(9);
        }
    }
}

fn unpolled_tag_operations_overrun_their_cq(env: &TestEnv) {
    let tags = TagMatchingPair::new(env);
    let cq = &tags.receiver.rcq;
    assert_eq!(cq.try_resize(3), 0);
    let buf = tags.receiver.alloc_buf(64);
    for i in 0..4 {
        tags.tag_srq.post_tag_add(i, (i, EXACT_TAG_MASK), &[buf.whole_sge()]).expect("ibv_post_srq_ops");
    }
    await_cq_error_event(&tags.receiver.ctx, cq);
    for (wc, i) in cq.wait_for_completions(3).iter().zip(0..) {
        wc.expect_success(i, IBV_WC_TM_ADD);
    }
    cq.expect_empty();
}
