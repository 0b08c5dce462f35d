//! Tests between processes: `a` is in this process, `b` in another.

use std::time::Duration;

use rustix::process::{Signal, kill_process};
use verbs_abi::*;

use crate::TestEnv;
use crate::test_env::NicCapability;
use crate::harness::record_case;
use crate::memory::MemKind;
use crate::pair::QpSpec;
use crate::child_processes::{PeerAnswer, PeerCommand, PeerProcess};
use crate::wr::{RemoteAddress, Verb, wr_of_verb_with_default_operands, fetch_add, read, send, write, write_imm};

tests! { "processes";
    rc_every_verb [Processes, Read, Atomics],
    uc_every_verb [Processes, Uc],
    ud_ping_pong [Processes, Ud],
    one_sided_verbs_complete_while_the_responder_sleeps [Processes, Read, Atomics, PassiveResponder],
    a_stopped_responder_serves_one_sided_verbs [Processes, Read, Atomics, PassiveResponder],
    sends_complete_while_the_receiver_sleeps [Processes],
    a_rare_pollers_sends_complete_while_the_receiver_sleeps [Processes],
    an_event_wakes_another_process [Processes],
    bad_keys_and_ranges_are_refused [Processes],
    a_deregistered_region_of_a_peer_is_refused [Processes],
    a_too_small_receive_fails_both_processes [Processes],
    a_send_waits_until_the_peer_posts_a_receive [Processes],
    fetch_add_from_three_processes [Processes, Atomics],
    sends_to_a_killed_peer_end_in_retry_exceeded [Processes],
    a_killed_peer_fails_sends_that_wait_for_a_receive [Processes],
    sends_to_a_peer_that_exited_end_in_retry_exceeded [Processes],
    one_sided_verbs_to_a_killed_peer_fail [Processes, Read, Atomics],
    a_killed_datagram_receiver_loses_messages [Processes, Ud],
    many_processes_at_once [Processes],
}

const MAX_PAYLOAD_BYTES: usize = 1 << 20;

#[track_caller]
fn command_and_expect_done(peer: &mut PeerProcess, order: PeerCommand) {
    assert_eq!(peer.send_command_and_await_answer(&order), PeerAnswer::Done);
}

#[track_caller]
fn expect_received(answer: PeerAnswer, id: u64, byte_len: usize, imm: Option<u32>, opcode: u32) {
    let byte_len = u32::try_from(byte_len).expect("a length");
    let status = IBV_WC_SUCCESS;
    assert_eq!(answer, PeerAnswer::Completion { id, status, opcode, byte_len, imm });
}

const MESSAGE_LENGTHS: [usize; 10] = [0, 1, 8, 64, 65, 500, 1100, 4096, 70_000, MAX_PAYLOAD_BYTES];

fn rc_every_verb(env: &TestEnv) {
    for memory in MemKind::distinct_on_provider(env) {
        check_every_verb(env, &QpSpec::rc().with_memory_kind(memory), &Verb::ALL);
    }
}

fn uc_every_verb(env: &TestEnv) {
    let verbs = [Verb::Send, Verb::SendWithImm, Verb::RdmaWrite, Verb::RdmaWriteWithImm];
    for memory in MemKind::distinct_on_provider(env) {
        check_every_verb(env, &QpSpec::uc().with_memory_kind(memory), &verbs);
    }
}

fn check_every_verb(env: &TestEnv, spec: &QpSpec, verbs: &[Verb]) {
    let (mut peer, side, remote) = PeerProcess::start_with_new_side(env, spec, MAX_PAYLOAD_BYTES + 64);
    let local = side.alloc_buf(MAX_PAYLOAD_BYTES);
    let mut seed = 1;
    for &verb in verbs {
        for len in MESSAGE_LENGTHS {
            if verb.is_atomic() && len != 8 {
                continue;
            }
            seed += 1;
            record_case(format!("{verb:?} of {len} bytes, {:?}", spec.memory_kind));
            if verb.is_atomic() {
                command_and_expect_done(&mut peer, PeerCommand::Fill(0, 8, seed));
                let PeerAnswer::Word(before) = peer.send_command_and_await_answer(&PeerCommand::Load(0)) else { panic!("no word") };
                let wr = if verb == Verb::AtomicFetchAndAdd {
                    fetch_add(local.sge(0, 8), remote, 5)
                } else {
                    crate::wr::cmp_swp(local.sge(0, 8), remote, before, before.wrapping_add(5))
                };
                side.post(wr.with_id(seed));
                side.await_send_completion().expect_sent(seed, verb);
                assert_eq!(local.memory.load(0), before);
                assert_eq!(peer.send_command_and_await_answer(&PeerCommand::Load(0)), PeerAnswer::Word(before.wrapping_add(5)));
                continue;
            }
            if verb == Verb::RdmaRead {
                command_and_expect_done(&mut peer, PeerCommand::Fill(0, len, seed));
                side.post(read([local.sge(0, len)], remote).with_id(seed));
                side.await_send_completion().expect_sent(seed, verb);
                local.memory.assert_pattern_at(0, len, seed);
                continue;
            }
            local.memory.fill_pattern_at(0, len, seed);
            if verb.is_send() {
                command_and_expect_done(&mut peer, PeerCommand::Recv { id: seed, offset: 0, len });
            } else if verb.has_imm() {
                command_and_expect_done(&mut peer, PeerCommand::Recv { id: seed, offset: 0, len: 0 });
            }
            side.post(wr_of_verb_with_default_operands(verb, [local.sge(0, len)], remote).with_id(seed));
            side.await_send_completion().expect_sent(seed, verb);
            if let Some(opcode) = verb.recv_wc_opcode() {
                let imm = verb.has_imm().then_some(0x1234_5678);
                expect_received(peer.send_command_and_await_answer(&PeerCommand::Received), seed, len, imm, opcode);
            }
            if spec.qp_type == IBV_QPT_UC && verb == Verb::RdmaWrite {
                // The completion of an unreliable WRITE only means that it was sent; a later SEND shows that
                // it has arrived.
                command_and_expect_done(&mut peer, PeerCommand::Recv { id: 1, offset: 0, len: 0 });
                side.post(send([]).with_id(2));
                side.await_send_completion().expect_sent(2, Verb::Send);
                expect_received(peer.send_command_and_await_answer(&PeerCommand::Received), 1, 0, None, IBV_WC_RECV);
            }
            command_and_expect_done(&mut peer, PeerCommand::Check(0, len, seed));
        }
    }
    // Send a message in the opposite direction.
    side.post_recv(9, [local.whole_sge()]);
    command_and_expect_done(&mut peer, PeerCommand::Fill(0, 70_000, 4));
    command_and_expect_done(&mut peer, PeerCommand::Send(0, 70_000));
    side.await_recv_completion().expect_received(9, 70_000);
    local.memory.assert_pattern_at(0, 70_000, 4);
    peer.exit_and_check();
}

fn ud_ping_pong(env: &TestEnv) {
    for memory in MemKind::distinct_on_provider(env) {
        let (mut peer, side, _) = PeerProcess::start_with_new_side(env, &QpSpec::ud().with_memory_kind(memory), 8192);
        let local = side.alloc_buf(8192);
        for len in [0, 1, 8, 64, 200, 1024] {
            record_case(format!("{len} bytes, {memory:?}"));
            command_and_expect_done(&mut peer, PeerCommand::Recv { id: 3, offset: 0, len: 40 + len });
            local.memory.fill_pattern_at(0, len, 5);
            side.post(crate::wr::send_imm([local.sge(0, len)], 6).with_id(1));
            side.await_send_completion().expect_sent(1, Verb::Send);
            expect_received(peer.send_command_and_await_answer(&PeerCommand::Received), 3, 40 + len, Some(6), IBV_WC_RECV);
            command_and_expect_done(&mut peer, PeerCommand::Check(40, len, 5));
            side.post_recv(4, [local.whole_sge()]);
            command_and_expect_done(&mut peer, PeerCommand::Send(40, len));
            side.await_recv_completion().expect_received(4, 40 + len);
            local.memory.assert_pattern_at(40, len, 5);
        }
        peer.exit_and_check();
    }
}

/// The requester executes one-sided verbs while the responder's threads sleep.
fn one_sided_verbs_complete_while_the_responder_sleeps(env: &TestEnv) {
    for memory in MemKind::distinct_on_provider(env) {
        let (mut peer, side, remote) = PeerProcess::start_with_new_side(env, &QpSpec::rc().with_memory_kind(memory), 4096);
        let local = side.alloc_buf(4096);
        let PeerAnswer::Word(before) = peer.send_command_and_await_answer(&PeerCommand::CpuTime) else { panic!("no word") };
        let begin = crate::child_processes::cpu_time_us();
        for i in 0..20_000 {
            let wr = match i % 3 {
                0 => write([local.sge(0, 64)], remote),
                1 => read([local.sge(0, 64)], remote),
                _ => fetch_add(local.sge(0, 8), remote, 1),
            };
            side.post(wr.with_id(i));
            assert_eq!(side.await_send_completion().status(), IBV_WC_SUCCESS);
        }
        let PeerAnswer::Word(after) = peer.send_command_and_await_answer(&PeerCommand::CpuTime) else { panic!("no word") };
        // The orders themselves cost the peer some CPU time. Serving 20,000 operations would cost the peer
        // about as much CPU time as the requester has used.
        let (own, peers) = (crate::child_processes::cpu_time_us() - begin, after - before);
        assert!(peers < (own / 10).max(10_000), "{peers} us of the responder's time, {own} us of the requester's");
        peer.exit_and_check();
    }
}

/// The NIC of a stopped process (SIGSTOP) continues to work.
fn a_stopped_responder_serves_one_sided_verbs(env: &TestEnv) {
    for memory in MemKind::distinct_on_provider(env) {
        record_case(format!("{memory:?}"));
        let (peer, side, remote) = PeerProcess::start_with_new_side(env, &QpSpec::rc().with_memory_kind(memory), 4096);
        let local = side.alloc_buf(4096);
        kill_process(peer.pid(), Signal::STOP).expect("SIGSTOP");
        local.memory.fill_with_pattern(3);
        side.post(write([local.whole_sge()], remote).with_id(1));
        side.await_send_completion().expect_sent(1, Verb::RdmaWrite);
        local.memory.write(0, &[0; 4096]);
        side.post(read([local.whole_sge()], remote).with_id(2));
        side.await_send_completion().expect_sent(2, Verb::RdmaRead);
        local.memory.assert_whole_pattern(3);
        let old = local.memory.load(0);
        side.post(fetch_add(local.sge(8, 8), remote, 1).with_id(3));
        side.await_send_completion().expect_sent(3, Verb::AtomicFetchAndAdd);
        assert_eq!(local.memory.load(8), old);
        kill_process(peer.pid(), Signal::CONT).expect("SIGCONT");
        peer.exit_and_check();
    }
}

/// The receiver has posted its receives and does not poll: the NIC delivers nevertheless.
fn sends_complete_while_the_receiver_sleeps(env: &TestEnv) {
    for (memory, len) in [(MemKind::Private, 8), (MemKind::Private, 100_000), (MemKind::Shared, 100_000)] {
        record_case(format!("{len} bytes, {memory:?}"));
        let (mut peer, side, _) = PeerProcess::start_with_new_side(env, &QpSpec::rc().with_memory_kind(memory), 8 * len);
        let local = side.alloc_buf(len);
        for i in 0..8 {
            command_and_expect_done(&mut peer, PeerCommand::Recv { id: i, offset: i * len as u64, len });
        }
        local.memory.fill_with_pattern(5);
        for i in 0..8 {
            side.post(send([local.whole_sge()]).with_id(i));
            side.await_send_completion().expect_sent(i, Verb::Send);
        }
        for i in 0..8 {
            expect_received(peer.send_command_and_await_answer(&PeerCommand::Received), i, len, None, IBV_WC_RECV);
            command_and_expect_done(&mut peer, PeerCommand::Check(usize::try_from(i).unwrap() * len, len, 5));
        }
        peer.exit_and_check();
    }
}

/// A NIC completes work without polls. The sender must not wait for thousands of polls of a program that
/// polls once per millisecond.
fn a_rare_pollers_sends_complete_while_the_receiver_sleeps(env: &TestEnv) {
    const POLLS: usize = 2000;
    let (mut peer, side, _) = PeerProcess::start_with_new_side(env, &QpSpec::rc(), 64);
    let local = side.alloc_buf(8);
    for id in 0..2 {
        command_and_expect_done(&mut peer, PeerCommand::Recv { id, offset: 0, len: 8 });
        side.post(send([local.whole_sge()]).with_id(id));
        let sent = (0..POLLS).find_map(|_| {
            std::thread::sleep(Duration::from_millis(1));
            side.scq.poll(1).pop()
        });
        sent.expect("a completion").expect_sent(id, Verb::Send);
        expect_received(peer.send_command_and_await_answer(&PeerCommand::Received), id, 8, None, IBV_WC_RECV);
    }
    peer.exit_and_check();
}

fn an_event_wakes_another_process(env: &TestEnv) {
    let (mut peer, side, remote) = PeerProcess::start_with_new_side(env, &QpSpec::rc().with_channels(), 4096);
    let local = side.alloc_buf(8);
    for i in 0..20 {
        command_and_expect_done(&mut peer, PeerCommand::Recv { id: i, offset: 0, len: 8 });
        peer.send_command(&PeerCommand::ReceivedByEvent);
        std::thread::sleep(Duration::from_millis(i % 3));
        let (opcode, imm) = if i % 2 == 0 {
            side.post(send([local.whole_sge()]).with_id(i));
            (IBV_WC_RECV, None)
        } else {
            side.post(write_imm([local.whole_sge()], remote, 4).with_id(i));
            (IBV_WC_RECV_RDMA_WITH_IMM, Some(4))
        };
        expect_received(peer.await_answer(), i, 8, imm, opcode);
        assert_eq!(side.await_send_completion().status(), IBV_WC_SUCCESS);
    }
    peer.exit_and_check();
}

fn bad_keys_and_ranges_are_refused(env: &TestEnv) {
    for memory in MemKind::distinct_on_provider(env) {
        for flaw in 0..3 {
            record_case(format!("{memory:?}, flaw {flaw}"));
            let (peer, side, remote) = PeerProcess::start_with_new_side(env, &QpSpec::rc().with_memory_kind(memory), 4096);
            let local = side.alloc_buf(64);
            let bad = match flaw {
                0 => RemoteAddress { rkey: remote.rkey ^ 0x77, ..remote },
                1 => remote.plus(4096 - 63),
                _ => RemoteAddress { addr: remote.addr - 1, ..remote },
            };
            side.post(write([local.whole_sge()], bad).with_id(1));
            side.await_send_completion().expect_failed(1, &[IBV_WC_REM_ACCESS_ERR]);
            peer.exit_and_check();
        }
    }
}

/// A peer uses a region of another process before and after its deregistration.
fn a_deregistered_region_of_a_peer_is_refused(env: &TestEnv) {
    for memory in MemKind::distinct_on_provider(env) {
        record_case(format!("{memory:?}"));
        let spec = QpSpec::rc().with_short_timeout_and_few_retries().with_memory_kind(memory);
        let (mut peer, side, remote) = PeerProcess::start_with_new_side(env, &spec, 1 << 16);
        let local = side.alloc_buf(64);
        side.post(write([local.whole_sge()], remote).with_id(1));
        side.await_send_completion().expect_sent(1, Verb::RdmaWrite);
        // Making a new queue pair destroys the old one and its buffer.
        let PeerAnswer::Made(address, _) = peer.send_command_and_await_answer(&PeerCommand::Make(Box::new(spec.clone()), 1 << 16)) else {
            panic!("nothing made");
        };
        let mut second = spec.create_qp_side(env);
        command_and_expect_done(&mut peer, PeerCommand::Connect(second.address()));
        second.connect(&address);
        let local = second.alloc_buf(64);
        second.post(write([local.whole_sge()], remote).with_id(2));
        second.await_send_completion().expect_failed(2, &[IBV_WC_REM_ACCESS_ERR]);
        peer.exit_and_check();
    }
}

fn a_too_small_receive_fails_both_processes(env: &TestEnv) {
    let (mut peer, side, _) = PeerProcess::start_with_new_side(env, &QpSpec::rc(), 4096);
    let local = side.alloc_buf(100);
    command_and_expect_done(&mut peer, PeerCommand::Recv { id: 7, offset: 0, len: 99 });
    side.post(send([local.whole_sge()]).with_id(1));
    side.await_send_completion().expect_failed(1, &env.accepted_failure_statuses(IBV_WC_REM_INV_REQ_ERR));
    let PeerAnswer::Completion { id, status, .. } = peer.send_command_and_await_answer(&PeerCommand::Received) else { panic!("no completion") };
    assert_eq!(id, 7);
    assert!(env.accepted_failure_statuses(IBV_WC_LOC_LEN_ERR).contains(&status), "status {status}");
    peer.exit_and_check();
}

fn a_send_waits_until_the_peer_posts_a_receive(env: &TestEnv) {
    let (mut peer, side, _) = PeerProcess::start_with_new_side(env, &QpSpec::rc(), 4096);
    let local = side.alloc_buf(100);
    local.memory.fill_with_pattern(8);
    side.post(send([local.whole_sge()]).with_id(1));
    side.scq.expect_empty();
    command_and_expect_done(&mut peer, PeerCommand::Recv { id: 7, offset: 0, len: 100 });
    expect_received(peer.send_command_and_await_answer(&PeerCommand::Received), 7, 100, None, IBV_WC_RECV);
    side.await_send_completion().expect_sent(1, Verb::Send);
    command_and_expect_done(&mut peer, PeerCommand::Check(0, 100, 8));
    peer.exit_and_check();
}

/// Two other processes, and this process through a queue pair connected to itself, add to one word.
fn fetch_add_from_three_processes(env: &TestEnv) {
    const EACH: u64 = 2000;
    for memory in MemKind::distinct_on_provider(env) {
        record_case(format!("{memory:?}"));
        let spec = QpSpec::rc().with_queue_depth(32).with_memory_kind(memory);
        let mut own = spec.create_qp_side(env);
        let word = own.alloc_buf(8);
        let mut sides = [own.create_side_on_same_pd_and_cqs(), own.create_side_on_same_pd_and_cqs()];
        let mut peers: Vec<PeerProcess> =
            sides.iter_mut().map(|side| PeerProcess::start_connected_to(env, side, 64).0).collect();
        let address = own.address();
        own.connect(&address);
        for peer in &mut peers {
            peer.send_command(&PeerCommand::FetchAdd(word.remote_address(), EACH));
        }
        let result = own.alloc_buf(8);
        let mut last = None;
        for i in 0..EACH {
            own.post(fetch_add(result.whole_sge(), word.remote_address(), 1).with_id(i));
            own.await_send_completion().expect_sent(i, Verb::AtomicFetchAndAdd);
            let old = result.memory.load(0);
            assert!(last < Some(old), "{old} after {last:?}");
            last = Some(old);
        }
        for peer in &mut peers {
            assert_eq!(peer.await_answer(), PeerAnswer::Done);
        }
        assert_eq!(word.memory.load(0), 3 * EACH);
        for peer in peers {
            peer.exit_and_check();
        }
    }
}

fn sends_to_a_killed_peer_end_in_retry_exceeded(env: &TestEnv) {
    for memory in MemKind::distinct_on_provider(env) {
        let spec = QpSpec::rc().with_short_timeout_and_few_retries().with_memory_kind(memory);
        let (mut peer, side, _) = PeerProcess::start_with_new_side(env, &spec, 4096);
        let local = side.alloc_buf(64);
        command_and_expect_done(&mut peer, PeerCommand::Recv { id: 7, offset: 0, len: 64 });
        side.post(send([local.whole_sge()]).with_id(1));
        side.await_send_completion().expect_sent(1, Verb::Send);
        side.post_recv(9, [local.whole_sge()]);
        peer.kill();
        side.post_sends(vec![send([local.whole_sge()]).with_id(2), send([local.whole_sge()]).with_id(3).unsignaled()]);
        side.await_send_completion().expect_failed(2, &[IBV_WC_RETRY_EXC_ERR]);
        side.await_send_completion().expect_flushed(3);
        side.await_recv_completion().expect_flushed(9);
    }
}

fn a_killed_peer_fails_sends_that_wait_for_a_receive(env: &TestEnv) {
    let (peer, side, _) = PeerProcess::start_with_new_side(env, &QpSpec::rc().with_short_timeout_and_few_retries(), 4096);
    let local = side.alloc_buf(100_000);
    side.post_sends((0..4).map(|i| send([local.whole_sge()]).with_id(i)).collect());
    side.scq.expect_empty();
    peer.kill();
    side.await_send_completion().expect_failed(0, &[IBV_WC_RETRY_EXC_ERR]);
    for i in 1..4 {
        side.await_send_completion().expect_flushed(i);
    }
}

fn sends_to_a_peer_that_exited_end_in_retry_exceeded(env: &TestEnv) {
    let (peer, side, _) = PeerProcess::start_with_new_side(env, &QpSpec::rc().with_short_timeout_and_few_retries(), 4096);
    peer.exit_and_check();
    side.post(send([]).with_id(2));
    side.await_send_completion().expect_failed(2, &[IBV_WC_RETRY_EXC_ERR]);
}

fn one_sided_verbs_to_a_killed_peer_fail(env: &TestEnv) {
    for memory in MemKind::distinct_on_provider(env) {
        for verb in [Verb::RdmaWrite, Verb::RdmaRead, Verb::AtomicFetchAndAdd, Verb::RdmaWriteWithImm] {
            record_case(format!("{verb:?}, {memory:?}"));
            let spec = QpSpec::rc().with_short_timeout_and_few_retries().with_memory_kind(memory);
            let (peer, side, remote) = PeerProcess::start_with_new_side(env, &spec, 4096);
            let local = side.alloc_buf(8);
            side.post(write([local.whole_sge()], remote).with_id(1));
            side.await_send_completion().expect_sent(1, Verb::RdmaWrite);
            peer.kill();
            // This process learns of the death after a short delay.
            let deadline = std::time::Instant::now() + crate::harness::wait_limit();
            loop {
                side.post(wr_of_verb_with_default_operands(verb, [local.whole_sge()], remote).with_id(2));
                let wc = side.await_send_completion();
                if wc.status() != IBV_WC_SUCCESS {
                    wc.expect_failed(2, &[IBV_WC_RETRY_EXC_ERR]);
                    break;
                }
                assert!(std::time::Instant::now() < deadline, "the dead still serve");
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

fn a_killed_datagram_receiver_loses_messages(env: &TestEnv) {
    let (peer, side, _) = PeerProcess::start_with_new_side(env, &QpSpec::ud(), 4096);
    let local = side.alloc_buf(500);
    side.post(send([local.whole_sge()]).with_id(1));
    side.await_send_completion().expect_sent(1, Verb::Send);
    peer.kill();
    for i in 0..1000 {
        side.post(send([local.whole_sge()]).with_id(i));
        side.await_send_completion().expect_sent(i, Verb::Send);
    }
}

fn many_processes_at_once(env: &TestEnv) {
    let mut peers: Vec<_> =
        (0..8).map(|_| PeerProcess::start_with_new_side(env, &QpSpec::rc().with_memory_kind(MemKind::Shared), 4096)).collect();
    for round in 0..5u64 {
        for (i, (peer, side, remote)) in peers.iter_mut().enumerate() {
            let local = side.alloc_buf(4096);
            local.memory.fill_with_pattern(round << 8 | i as u64);
            side.post(write([local.whole_sge()], *remote).with_id(round));
            side.await_send_completion().expect_sent(round, Verb::RdmaWrite);
            command_and_expect_done(peer, PeerCommand::Check(0, 4096, round << 8 | i as u64));
        }
    }
    for (peer, ..) in peers {
        peer.exit_and_check();
    }
    assert!(env.expects_capability(NicCapability::Processes));
}
