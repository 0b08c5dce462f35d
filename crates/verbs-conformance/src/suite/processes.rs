//! Tests between processes: `a` is in this process, `b` in another.

use std::time::Duration;

use rustix::process::{Signal, kill_process};
use verbs_abi::*;

use crate::Env;
use crate::env::Cap;
use crate::harness::case;
use crate::memory::MemKind;
use crate::pair::Spec;
use crate::peer::{Answer, Order, Peer};
use crate::wr::{Remote, Verb, any, fetch_add, read, send, write, write_imm};

tests! { "processes";
    rc_every_verb [Processes, Read, Atomics],
    uc_every_verb [Processes, Uc],
    ud_ping_pong [Processes, Ud],
    the_peer_needs_no_help_of_the_responder [Processes, Read, Atomics, PassiveResponder],
    a_stopped_responder_serves_one_sided_verbs [Processes, Read, Atomics, PassiveResponder],
    a_sleeping_receiver_completes_sends [Processes],
    a_sleeping_receiver_completes_sends_of_who_polls_now_and_then [Processes],
    an_event_wakes_another_process [Processes],
    bad_keys_are_refused [Processes],
    freed_memory_is_refused [Processes],
    a_receive_that_is_too_small [Processes],
    not_ready_and_later_ready [Processes],
    fetch_add_from_three_processes [Processes, Atomics],
    a_killed_peer_ends_in_retry_exceeded [Processes],
    a_killed_peer_ends_the_waiting_for_a_receive [Processes],
    a_peer_that_ends_properly_ends_in_retry_exceeded [Processes],
    one_sided_verbs_to_a_killed_peer_fail [Processes, Read, Atomics],
    a_killed_datagram_receiver_loses_messages [Processes, Ud],
    many_processes_at_once [Processes],
}

const LEN: usize = 1 << 20;

#[track_caller]
fn expect(peer: &mut Peer, order: Order) {
    assert_eq!(peer.ask(&order), Answer::Done);
}

#[track_caller]
fn expect_received(answer: Answer, id: u64, byte_len: usize, imm: Option<u32>, opcode: u32) {
    let byte_len = u32::try_from(byte_len).expect("a length");
    let status = IBV_WC_SUCCESS;
    assert_eq!(answer, Answer::Completion { id, status, opcode, byte_len, imm });
}

const SIZES: [usize; 10] = [0, 1, 8, 64, 65, 500, 1100, 4096, 70_000, LEN];

fn rc_every_verb(env: &Env) {
    for memory in MemKind::ALL {
        every_verb(env, &Spec::rc().memory(memory), &Verb::ALL);
    }
}

fn uc_every_verb(env: &Env) {
    let verbs = [Verb::Send, Verb::SendWithImm, Verb::RdmaWrite, Verb::RdmaWriteWithImm];
    for memory in MemKind::ALL {
        every_verb(env, &Spec::uc().memory(memory), &verbs);
    }
}

fn every_verb(env: &Env, spec: &Spec, verbs: &[Verb]) {
    let (mut peer, side, remote) = Peer::connected(env, spec, LEN + 64);
    let local = side.buf(LEN);
    let mut seed = 1;
    for &verb in verbs {
        for len in SIZES {
            if verb.is_atomic() && len != 8 {
                continue;
            }
            seed += 1;
            case(format!("{verb:?} of {len} bytes, {:?}", spec.memory));
            if verb.is_atomic() {
                expect(&mut peer, Order::Fill(0, 8, seed));
                let Answer::Word(before) = peer.ask(&Order::Load(0)) else { panic!("no word") };
                let wr = if verb == Verb::AtomicFetchAndAdd {
                    fetch_add(local.sge(0, 8), remote, 5)
                } else {
                    crate::wr::cmp_swp(local.sge(0, 8), remote, before, before.wrapping_add(5))
                };
                side.post(wr.id(seed));
                side.send_completion().expect_sent(seed, verb);
                assert_eq!(local.memory.load(0), before);
                assert_eq!(peer.ask(&Order::Load(0)), Answer::Word(before.wrapping_add(5)));
                continue;
            }
            if verb == Verb::RdmaRead {
                expect(&mut peer, Order::Fill(0, len, seed));
                side.post(read([local.sge(0, len)], remote).id(seed));
                side.send_completion().expect_sent(seed, verb);
                local.memory.check_at(0, len, seed);
                continue;
            }
            local.memory.fill_at(0, len, seed);
            if verb.is_send() {
                expect(&mut peer, Order::Recv { id: seed, offset: 0, len });
            } else if verb.has_imm() {
                expect(&mut peer, Order::Recv { id: seed, offset: 0, len: 0 });
            }
            side.post(any(verb, [local.sge(0, len)], remote).id(seed));
            side.send_completion().expect_sent(seed, verb);
            if let Some(opcode) = verb.recv_opcode() {
                let imm = verb.has_imm().then_some(0x1234_5678);
                expect_received(peer.ask(&Order::Received), seed, len, imm, opcode);
            }
            if spec.qp_type == IBV_QPT_UC && verb == Verb::RdmaWrite {
                // The completion of an unreliable WRITE only means that it was sent; a later SEND shows that
                // it has arrived.
                expect(&mut peer, Order::Recv { id: 1, offset: 0, len: 0 });
                side.post(send([]).id(2));
                side.send_completion().expect_sent(2, Verb::Send);
                expect_received(peer.ask(&Order::Received), 1, 0, None, IBV_WC_RECV);
            }
            expect(&mut peer, Order::Check(0, len, seed));
        }
    }
    // The opposite direction.
    side.recv(9, [local.all()]);
    expect(&mut peer, Order::Fill(0, 70_000, 4));
    expect(&mut peer, Order::Send(0, 70_000));
    side.recv_completion().expect_received(9, 70_000);
    local.memory.check_at(0, 70_000, 4);
    peer.end();
}

fn ud_ping_pong(env: &Env) {
    for memory in MemKind::ALL {
        let (mut peer, side, _) = Peer::connected(env, &Spec::ud().memory(memory), 8192);
        let local = side.buf(8192);
        for len in [0, 1, 8, 64, 200, 1024] {
            case(format!("{len} bytes, {memory:?}"));
            expect(&mut peer, Order::Recv { id: 3, offset: 0, len: 40 + len });
            local.memory.fill_at(0, len, 5);
            side.post(crate::wr::send_imm([local.sge(0, len)], 6).id(1));
            side.send_completion().expect_sent(1, Verb::Send);
            expect_received(peer.ask(&Order::Received), 3, 40 + len, Some(6), IBV_WC_RECV);
            expect(&mut peer, Order::Check(40, len, 5));
            side.recv(4, [local.all()]);
            expect(&mut peer, Order::Send(40, len));
            side.recv_completion().expect_received(4, 40 + len);
            local.memory.check_at(40, len, 5);
        }
        peer.end();
    }
}

/// The requester executes one-sided verbs; the responder's threads sleep meanwhile.
fn the_peer_needs_no_help_of_the_responder(env: &Env) {
    for memory in MemKind::ALL {
        let (mut peer, side, remote) = Peer::connected(env, &Spec::rc().memory(memory), 4096);
        let local = side.buf(4096);
        let Answer::Word(before) = peer.ask(&Order::CpuTime) else { panic!("no word") };
        let begin = crate::peer::cpu_time_us();
        for i in 0..20_000 {
            let wr = match i % 3 {
                0 => write([local.sge(0, 64)], remote),
                1 => read([local.sge(0, 64)], remote),
                _ => fetch_add(local.sge(0, 8), remote, 1),
            };
            side.post(wr.id(i));
            assert_eq!(side.send_completion().status(), IBV_WC_SUCCESS);
        }
        let Answer::Word(after) = peer.ask(&Order::CpuTime) else { panic!("no word") };
        // The orders themselves cost the peer some time; serving 20,000 operations would cost it about as
        // much as the requester.
        let (own, peers) = (crate::peer::cpu_time_us() - begin, after - before);
        assert!(peers < (own / 10).max(10_000), "{peers} us of the responder's time, {own} us of the requester's");
        peer.end();
    }
}

/// The NIC of a stopped process (SIGSTOP) continues to work.
fn a_stopped_responder_serves_one_sided_verbs(env: &Env) {
    for memory in MemKind::ALL {
        case(format!("{memory:?}"));
        let (peer, side, remote) = Peer::connected(env, &Spec::rc().memory(memory), 4096);
        let local = side.buf(4096);
        kill_process(peer.pid(), Signal::STOP).expect("SIGSTOP");
        local.memory.fill(3);
        side.post(write([local.all()], remote).id(1));
        side.send_completion().expect_sent(1, Verb::RdmaWrite);
        local.memory.write(0, &[0; 4096]);
        side.post(read([local.all()], remote).id(2));
        side.send_completion().expect_sent(2, Verb::RdmaRead);
        local.memory.check(3);
        let old = local.memory.load(0);
        side.post(fetch_add(local.sge(8, 8), remote, 1).id(3));
        side.send_completion().expect_sent(3, Verb::AtomicFetchAndAdd);
        assert_eq!(local.memory.load(8), old);
        kill_process(peer.pid(), Signal::CONT).expect("SIGCONT");
        peer.end();
    }
}

/// The receiver has posted its receives and does not poll: the NIC delivers nevertheless.
fn a_sleeping_receiver_completes_sends(env: &Env) {
    for (memory, len) in [(MemKind::Private, 8), (MemKind::Private, 100_000), (MemKind::Shared, 100_000)] {
        case(format!("{len} bytes, {memory:?}"));
        let (mut peer, side, _) = Peer::connected(env, &Spec::rc().memory(memory), 8 * len);
        let local = side.buf(len);
        for i in 0..8 {
            expect(&mut peer, Order::Recv { id: i, offset: i * len as u64, len });
        }
        local.memory.fill(5);
        for i in 0..8 {
            side.post(send([local.all()]).id(i));
            side.send_completion().expect_sent(i, Verb::Send);
        }
        for i in 0..8 {
            expect_received(peer.ask(&Order::Received), i, len, None, IBV_WC_RECV);
            expect(&mut peer, Order::Check(usize::try_from(i).unwrap() * len, len, 5));
        }
        peer.end();
    }
}

/// A NIC completes work without polls: a program that polls once per millisecond must not wait for thousands
/// of polls.
fn a_sleeping_receiver_completes_sends_of_who_polls_now_and_then(env: &Env) {
    const POLLS: usize = 2000;
    let (mut peer, side, _) = Peer::connected(env, &Spec::rc(), 64);
    let local = side.buf(8);
    for id in 0..2 {
        expect(&mut peer, Order::Recv { id, offset: 0, len: 8 });
        side.post(send([local.all()]).id(id));
        let sent = (0..POLLS).find_map(|_| {
            std::thread::sleep(Duration::from_millis(1));
            side.scq.poll(1).pop()
        });
        sent.expect("a completion").expect_sent(id, Verb::Send);
        expect_received(peer.ask(&Order::Received), id, 8, None, IBV_WC_RECV);
    }
    peer.end();
}

fn an_event_wakes_another_process(env: &Env) {
    let (mut peer, side, remote) = Peer::connected(env, &Spec::rc().with_channels(), 4096);
    let local = side.buf(8);
    for i in 0..20 {
        expect(&mut peer, Order::Recv { id: i, offset: 0, len: 8 });
        peer.order(&Order::ReceivedByEvent);
        std::thread::sleep(Duration::from_millis(i % 3));
        let (opcode, imm) = if i % 2 == 0 {
            side.post(send([local.all()]).id(i));
            (IBV_WC_RECV, None)
        } else {
            side.post(write_imm([local.all()], remote, 4).id(i));
            (IBV_WC_RECV_RDMA_WITH_IMM, Some(4))
        };
        expect_received(peer.answer(), i, 8, imm, opcode);
        assert_eq!(side.send_completion().status(), IBV_WC_SUCCESS);
    }
    peer.end();
}

fn bad_keys_are_refused(env: &Env) {
    for memory in MemKind::ALL {
        for flaw in 0..3 {
            case(format!("{memory:?}, flaw {flaw}"));
            let (peer, side, remote) = Peer::connected(env, &Spec::rc().memory(memory), 4096);
            let local = side.buf(64);
            let bad = match flaw {
                0 => Remote { rkey: remote.rkey ^ 0x77, ..remote },
                1 => remote.plus(4096 - 63),
                _ => Remote { addr: remote.addr - 1, ..remote },
            };
            side.post(write([local.all()], bad).id(1));
            side.send_completion().expect_failed(1, &[IBV_WC_REM_ACCESS_ERR]);
            peer.end();
        }
    }
}

/// A region of another process that is used before and after its deregistration.
fn freed_memory_is_refused(env: &Env) {
    for memory in MemKind::ALL {
        case(format!("{memory:?}"));
        let spec = Spec::rc().short_timeouts().memory(memory);
        let (mut peer, side, remote) = Peer::connected(env, &spec, 1 << 16);
        let local = side.buf(64);
        side.post(write([local.all()], remote).id(1));
        side.send_completion().expect_sent(1, Verb::RdmaWrite);
        // Making a new queue pair destroys the old one and its buffer.
        let Answer::Made(address, _) = peer.ask(&Order::Make(Box::new(spec.clone()), 1 << 16)) else {
            panic!("nothing made");
        };
        let mut second = spec.side(env);
        expect(&mut peer, Order::Connect(second.address()));
        second.connect(&address);
        let local = second.buf(64);
        second.post(write([local.all()], remote).id(2));
        second.send_completion().expect_failed(2, &[IBV_WC_REM_ACCESS_ERR]);
        peer.end();
    }
}

fn a_receive_that_is_too_small(env: &Env) {
    let (mut peer, side, _) = Peer::connected(env, &Spec::rc(), 4096);
    let local = side.buf(100);
    expect(&mut peer, Order::Recv { id: 7, offset: 0, len: 99 });
    side.post(send([local.all()]).id(1));
    side.send_completion().expect_failed(1, &env.failure(IBV_WC_REM_INV_REQ_ERR));
    let Answer::Completion { id, status, .. } = peer.ask(&Order::Received) else { panic!("no completion") };
    assert_eq!(id, 7);
    assert!(env.failure(IBV_WC_LOC_LEN_ERR).contains(&status), "status {status}");
    peer.end();
}

fn not_ready_and_later_ready(env: &Env) {
    let (mut peer, side, _) = Peer::connected(env, &Spec::rc(), 4096);
    let local = side.buf(100);
    local.memory.fill(8);
    side.post(send([local.all()]).id(1));
    side.scq.expect_empty();
    expect(&mut peer, Order::Recv { id: 7, offset: 0, len: 100 });
    expect_received(peer.ask(&Order::Received), 7, 100, None, IBV_WC_RECV);
    side.send_completion().expect_sent(1, Verb::Send);
    expect(&mut peer, Order::Check(0, 100, 8));
    peer.end();
}

/// Two other processes, and this process through a queue pair connected to itself, add to one word.
fn fetch_add_from_three_processes(env: &Env) {
    const EACH: u64 = 2000;
    for memory in MemKind::ALL {
        case(format!("{memory:?}"));
        let spec = Spec::rc().depth(32).memory(memory);
        let mut own = spec.side(env);
        let word = own.buf(8);
        let mut sides = [own.sibling(), own.sibling()];
        let mut peers: Vec<Peer> =
            sides.iter_mut().map(|side| Peer::connected_to(env, side, 64).0).collect();
        let address = own.address();
        own.connect(&address);
        for peer in &mut peers {
            peer.order(&Order::FetchAdd(word.remote(), EACH));
        }
        let result = own.buf(8);
        let mut last = None;
        for i in 0..EACH {
            own.post(fetch_add(result.all(), word.remote(), 1).id(i));
            own.send_completion().expect_sent(i, Verb::AtomicFetchAndAdd);
            let old = result.memory.load(0);
            assert!(last < Some(old), "{old} after {last:?}");
            last = Some(old);
        }
        for peer in &mut peers {
            assert_eq!(peer.answer(), Answer::Done);
        }
        assert_eq!(word.memory.load(0), 3 * EACH);
        for peer in peers {
            peer.end();
        }
    }
}

fn a_killed_peer_ends_in_retry_exceeded(env: &Env) {
    for memory in MemKind::ALL {
        let spec = Spec::rc().short_timeouts().memory(memory);
        let (mut peer, side, _) = Peer::connected(env, &spec, 4096);
        let local = side.buf(64);
        expect(&mut peer, Order::Recv { id: 7, offset: 0, len: 64 });
        side.post(send([local.all()]).id(1));
        side.send_completion().expect_sent(1, Verb::Send);
        side.recv(9, [local.all()]);
        peer.kill();
        side.post_list(vec![send([local.all()]).id(2), send([local.all()]).id(3).unsignaled()]);
        side.send_completion().expect_failed(2, &[IBV_WC_RETRY_EXC_ERR]);
        side.send_completion().expect_flushed(3);
        side.recv_completion().expect_flushed(9);
    }
}

fn a_killed_peer_ends_the_waiting_for_a_receive(env: &Env) {
    let (peer, side, _) = Peer::connected(env, &Spec::rc().short_timeouts(), 4096);
    let local = side.buf(100_000);
    side.post_list((0..4).map(|i| send([local.all()]).id(i)).collect());
    side.scq.expect_empty();
    peer.kill();
    side.send_completion().expect_failed(0, &[IBV_WC_RETRY_EXC_ERR]);
    for i in 1..4 {
        side.send_completion().expect_flushed(i);
    }
}

fn a_peer_that_ends_properly_ends_in_retry_exceeded(env: &Env) {
    let (peer, side, _) = Peer::connected(env, &Spec::rc().short_timeouts(), 4096);
    peer.end();
    side.post(send([]).id(2));
    side.send_completion().expect_failed(2, &[IBV_WC_RETRY_EXC_ERR]);
}

fn one_sided_verbs_to_a_killed_peer_fail(env: &Env) {
    for memory in MemKind::ALL {
        for verb in [Verb::RdmaWrite, Verb::RdmaRead, Verb::AtomicFetchAndAdd, Verb::RdmaWriteWithImm] {
            case(format!("{verb:?}, {memory:?}"));
            let spec = Spec::rc().short_timeouts().memory(memory);
            let (peer, side, remote) = Peer::connected(env, &spec, 4096);
            let local = side.buf(8);
            side.post(write([local.all()], remote).id(1));
            side.send_completion().expect_sent(1, Verb::RdmaWrite);
            peer.kill();
            // The death takes a moment to propagate.
            let deadline = std::time::Instant::now() + crate::harness::wait_limit();
            loop {
                side.post(any(verb, [local.all()], remote).id(2));
                let wc = side.send_completion();
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

fn a_killed_datagram_receiver_loses_messages(env: &Env) {
    let (peer, side, _) = Peer::connected(env, &Spec::ud(), 4096);
    let local = side.buf(500);
    side.post(send([local.all()]).id(1));
    side.send_completion().expect_sent(1, Verb::Send);
    peer.kill();
    for i in 0..1000 {
        side.post(send([local.all()]).id(i));
        side.send_completion().expect_sent(i, Verb::Send);
    }
}

fn many_processes_at_once(env: &Env) {
    let mut peers: Vec<_> =
        (0..8).map(|_| Peer::connected(env, &Spec::rc().memory(MemKind::Shared), 4096)).collect();
    for round in 0..5u64 {
        for (i, (peer, side, remote)) in peers.iter_mut().enumerate() {
            let local = side.buf(4096);
            local.memory.fill(round << 8 | i as u64);
            side.post(write([local.all()], *remote).id(round));
            side.send_completion().expect_sent(round, Verb::RdmaWrite);
            expect(peer, Order::Check(0, 4096, round << 8 | i as u64));
        }
    }
    for (peer, ..) in peers {
        peer.end();
    }
    assert!(env.has(Cap::Processes));
}
