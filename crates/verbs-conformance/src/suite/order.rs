//! Tests of the memory contents that a completion guarantees, and of the order in which the effects of
//! verbs become visible.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use verbs_abi::IBV_WC_REM_ACCESS_ERR;

use crate::harness::{record_case, wait_limit};
use crate::memory::MemKind;
use crate::pair::QpSpec;
use crate::wr::{RemoteAddress, Verb, fetch_add, read, send, write};
use crate::{TestEnv, pattern};

tests! { "order";
    a_write_is_visible_when_a_later_send_arrives [],
    a_write_is_visible_when_it_completes [],
    a_write_follows_a_send_into_the_same_memory [],
    a_write_between_sends_keeps_its_place [],
    a_write_between_sends_is_visible_without_a_poll [],
    a_write_between_sends_is_refused_in_its_place [],
    a_read_sees_the_write_before_it [Read],
    a_read_sees_the_send_before_it [Read],
    a_read_sees_the_responders_last_store [Read],
    an_atomic_sees_the_write_before_it [Atomics],
    the_last_byte_of_a_write_arrives_last [WriteOrder],
    memory_of_a_completed_send_may_be_reused [],
    writes_of_one_queue_pair_land_in_order [],
}

/// The requester writes data by RDMA WRITE, and then notifies the receiver, another thread, by a SEND.
fn a_write_is_visible_when_a_later_send_arrives(env: &TestEnv) {
    for memory in MemKind::distinct_on_provider(env) {
        record_case(format!("{memory:?}"));
        let pair = QpSpec::rc().with_memory_kind(memory).create_connected_pair(env);
        const LEN: usize = 1000;
        let source = pair.a.alloc_buf(LEN);
        let target = pair.b.alloc_buf(LEN);
        pair.b.post_recv(0, []);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0..500 {
                    pair.b.await_recv_completion().expect_received(round, 0);
                    target.memory.assert_whole_pattern(round);
                    // The receive also permits the sender to continue.
                    pair.b.post_recv(round + 1, []);
                    pair.b.post(send([]).with_id(round));
                    pair.b.await_send_completion().expect_sent(round, Verb::Send);
                }
            });
            for round in 0..500 {
                source.memory.fill_with_pattern(round);
                pair.a.post_recv(round, []);
                pair.a.post_sends(vec![
                    write([source.whole_sge()], target.remote_address()).unsignaled(),
                    send([]).with_id(round),
                ]);
                pair.a.await_send_completion().expect_sent(round, Verb::Send);
                pair.a.await_recv_completion().expect_received(round, 0);
            }
        });
    }
}

fn a_write_is_visible_when_it_completes(env: &TestEnv) {
    for memory in MemKind::distinct_on_provider(env) {
        let pair = QpSpec::rc().with_memory_kind(memory).create_connected_pair(env);
        let source = pair.a.alloc_buf(8);
        let target = pair.b.alloc_buf(8);
        for i in 1..2000 {
            source.memory.store(0, i);
            pair.a.post(write([source.whole_sge()], target.remote_address()).with_id(i));
            pair.a.await_send_completion().expect_sent(i, Verb::RdmaWrite);
            assert_eq!(target.memory.load(0), i);
        }
    }
}

fn a_write_follows_a_send_into_the_same_memory(env: &TestEnv) {
    for memory in MemKind::distinct_on_provider(env) {
        record_case(format!("{memory:?}"));
        let pair = QpSpec::rc().with_memory_kind(memory).create_connected_pair(env);
        let first = pair.a.alloc_buf(64);
        let second = pair.a.alloc_buf(64);
        let target = pair.b.alloc_buf(64);
        for round in 0..100 {
            first.memory.fill_with_pattern(2 * round);
            second.memory.fill_with_pattern(2 * round + 1);
            pair.b.post_recv(round, [target.whole_sge()]);
            pair.a.post_sends(vec![
                send([first.whole_sge()]).unsignaled(),
                write([second.whole_sge()], target.remote_address()).with_id(round),
            ]);
            pair.a.await_send_completion().expect_sent(round, Verb::RdmaWrite);
            pair.b.await_recv_completion().expect_received(round, 64);
            target.memory.assert_whole_pattern(2 * round + 1);
        }
    }
}

/// A WRITE does not overtake an earlier SEND that waits for a receive, and is visible when a later SEND
/// arrives.
fn a_write_between_sends_keeps_its_place(env: &TestEnv) {
    for memory in MemKind::distinct_on_provider(env) {
        for len in [8usize, 64, 1024, 4096, 20_000] {
            record_case(format!("{len} bytes, {memory:?}"));
            let pair = QpSpec::rc().with_memory_kind(memory).with_rnr_retry(7).create_connected_pair(env);
            let sources = [pair.a.alloc_buf(len), pair.a.alloc_buf(len)];
            let target = pair.b.alloc_buf(len);
            target.memory.fill_with_pattern(1000);
            let before = target.memory.load(0);
            for round in 0..4 {
                sources[0].memory.fill_with_pattern(round);
                sources[1].memory.fill_with_pattern(round + 100);
                pair.a.post_sends(vec![
                    send([]).unsignaled(),
                    write([sources[0].whole_sge()], target.remote_address()).with_id(1),
                    send([]).unsignaled(),
                    write([sources[1].whole_sge()], target.remote_address()).unsignaled(),
                    send([]).with_id(2),
                ]);
                if round == 0 {
                    pair.b.expect_no_completions();
                    assert_eq!(target.memory.load(0), before, "it overtook a SEND");
                }
                for number in 0..3 {
                    pair.b.post_recv(number, []);
                }
                for number in 0..3 {
                    pair.b.await_recv_completion().expect_received(number, 0);
                }
                target.memory.assert_whole_pattern(round + 100);
                pair.a.await_send_completion().expect_sent(1, Verb::RdmaWrite);
                pair.a.await_send_completion().expect_sent(2, Verb::Send);
            }
        }
    }
}

/// A receiver that has received the first SEND may poll only its memory, and the requester need not poll.
fn a_write_between_sends_is_visible_without_a_poll(env: &TestEnv) {
    for memory in MemKind::distinct_on_provider(env) {
        record_case(format!("{memory:?}"));
        let pair = QpSpec::rc().with_memory_kind(memory).create_connected_pair(env);
        let source = pair.a.alloc_buf(8);
        let target = pair.b.alloc_buf(8);
        for round in 1..4 {
            pair.b.post_recv(1, []);
            pair.b.post_recv(2, []);
            source.memory.store(0, round);
            pair.a.post_sends(vec![
                send([]).unsignaled(),
                write([source.whole_sge()], target.remote_address()).unsignaled(),
                send([]).with_id(round),
            ]);
            pair.b.await_recv_completion().expect_received(1, 0);
            let begin = Instant::now();
            while target.memory.load(0) != round {
                assert!(begin.elapsed() < wait_limit(), "the WRITE does not come");
                std::thread::yield_now();
            }
            pair.b.await_recv_completion().expect_received(2, 0);
            pair.a.await_send_completion().expect_sent(round, Verb::Send);
        }
    }
}

fn a_write_between_sends_is_refused_in_its_place(env: &TestEnv) {
    for len in [8usize, 4096] {
        record_case(format!("{len} bytes"));
        let pair = QpSpec::rc().create_connected_pair(env);
        let source = pair.a.alloc_buf(len);
        let nowhere = RemoteAddress {
            addr: 0x1000,
            rkey: 0xbad,
        };
        pair.b.post_recv(1, []);
        pair.b.post_recv(2, []);
        pair.a.post_sends(vec![
            send([]).with_id(1),
            write([source.whole_sge()], nowhere).with_id(2),
            send([]).with_id(3),
        ]);
        pair.b.await_recv_completion().expect_received(1, 0);
        pair.b.await_recv_completion().expect_flushed(2);
        pair.a.await_send_completion().expect_sent(1, Verb::Send);
        pair.a.await_send_completion().expect_failed(2, &[IBV_WC_REM_ACCESS_ERR]);
        pair.a.await_send_completion().expect_flushed(3);
    }
}

fn a_read_sees_the_write_before_it(env: &TestEnv) {
    for memory in MemKind::distinct_on_provider(env) {
        let pair = QpSpec::rc().with_memory_kind(memory).create_connected_pair(env);
        let source = pair.a.alloc_buf(3000);
        let back = pair.a.alloc_buf(3000);
        let target = pair.b.alloc_buf(3000);
        for round in 0..100 {
            source.memory.fill_with_pattern(round);
            pair.a.post_sends(vec![
                write([source.whole_sge()], target.remote_address()).unsignaled(),
                read([back.whole_sge()], target.remote_address()).with_id(round),
            ]);
            pair.a.await_send_completion().expect_sent(round, Verb::RdmaRead);
            back.memory.assert_whole_pattern(round);
        }
    }
}

/// IBTA vol. 1, 9.5: a responder executes requests in the order in which they were sent.
fn a_read_sees_the_send_before_it(env: &TestEnv) {
    for memory in MemKind::distinct_on_provider(env) {
        record_case(format!("{memory:?}"));
        let pair = QpSpec::rc().with_memory_kind(memory).create_connected_pair(env);
        let source = pair.a.alloc_buf(64);
        let back = pair.a.alloc_buf(64);
        let target = pair.b.alloc_buf(64);
        for round in 0..100 {
            source.memory.fill_with_pattern(round);
            pair.b.post_recv(round, [target.whole_sge()]);
            pair.a.post_sends(vec![
                send([source.whole_sge()]).unsignaled(),
                read([back.whole_sge()], target.remote_address()).with_id(round),
            ]);
            pair.a.await_send_completion().expect_sent(round, Verb::RdmaRead);
            back.memory.assert_whole_pattern(round);
            pair.b.await_recv_completion().expect_received(round, 64);
        }
    }
}

fn a_read_sees_the_responders_last_store(env: &TestEnv) {
    for memory in MemKind::distinct_on_provider(env) {
        let pair = QpSpec::rc().with_memory_kind(memory).create_connected_pair(env);
        let back = pair.a.alloc_buf(8);
        let target = pair.b.alloc_buf(8);
        for i in 0..2000 {
            target.memory.store(0, i);
            pair.a.post(read([back.whole_sge()], target.remote_address()).with_id(i));
            pair.a.await_send_completion().expect_sent(i, Verb::RdmaRead);
            assert_eq!(back.memory.load(0), i);
        }
    }
}

fn an_atomic_sees_the_write_before_it(env: &TestEnv) {
    for memory in MemKind::distinct_on_provider(env) {
        let pair = QpSpec::rc().with_memory_kind(memory).create_connected_pair(env);
        let source = pair.a.alloc_buf(8);
        let old = pair.a.alloc_buf(8);
        let target = pair.b.alloc_buf(8);
        for i in 0..100 {
            source.memory.store(0, i * 1000);
            pair.a.post_sends(vec![
                write([source.whole_sge()], target.remote_address()).unsignaled(),
                fetch_add(old.whole_sge(), target.remote_address(), 5).with_id(i),
            ]);
            pair.a.await_send_completion().expect_sent(i, Verb::AtomicFetchAndAdd);
            assert_eq!(old.memory.load(0), i * 1000);
            assert_eq!(target.memory.load(0), i * 1000 + 5);
        }
    }
}

/// Within a cache line, devices write in ascending order.
///
/// No specification requires that, but programs rely on it. In Kalia et al., "Using RDMA efficiently for
/// key-value services", a server polls the last byte of a request region.
fn the_last_byte_of_a_write_arrives_last(env: &TestEnv) {
    for memory in MemKind::distinct_on_provider(env) {
        for len in [9usize, 16, 33, 48, 63, 64] {
            record_case(format!("{len} bytes, {memory:?}"));
            let pair = QpSpec::rc().with_memory_kind(memory).create_connected_pair(env);
            let source = pair.a.alloc_buf(64);
            let target = pair.b.alloc_buf(64);
            let stop = AtomicBool::new(false);
            const ROUNDS: u64 = 3000;
            // A slow machine executes fewer rounds than this number; the requester decides the end.
            const ENOUGH: u64 = 200;
            let end = AtomicU64::new(ROUNDS);
            let payload = |round: u64| {
                let mut bytes = pattern(round, len);
                bytes[len - 1] = u8::try_from(round % 200).expect("small") + 1;
                bytes
            };
            std::thread::scope(|scope| {
                let checker = scope.spawn(|| {
                    for round in 0..ROUNDS {
                        let begin = std::time::Instant::now();
                        let expected = payload(round);
                        while target.memory.read(len - 1, 1)[0] != expected[len - 1] {
                            std::hint::spin_loop();
                            if round >= end.load(Ordering::Relaxed) {
                                return Ok(());
                            }
                            if begin.elapsed() > wait_limit() || stop.load(Ordering::Relaxed) {
                                return Err(format!("round {round} never arrives"));
                            }
                        }
                        let found = target.memory.read(0, len);
                        if found != expected {
                            return Err(format!("round {round}: {found:02x?} instead of {expected:02x?}"));
                        }
                        // Permit the requester to continue.
                        pair.b.post(send([]).unsignaled().with_id(round));
                        if round % 8 == 7 {
                            pair.b.post(send([]).with_id(round));
                            pair.b.await_send_completion().expect_sent(round, Verb::Send);
                        }
                    }
                    Ok(())
                });
                for i in 0..8 {
                    pair.a.post_recv(i, []);
                }
                let begin = std::time::Instant::now();
                for round in 0..ROUNDS {
                    if round >= ENOUGH && begin.elapsed() > Duration::from_secs(1) {
                        end.store(round, Ordering::Relaxed);
                        break;
                    }
                    source.memory.write(0, &payload(round));
                    pair.a.post(write([source.sge(0, len)], target.remote_address()).with_id(round));
                    pair.a.await_send_completion().expect_sent(round, Verb::RdmaWrite);
                    let permissions = if round % 8 == 7 { 2 } else { 1 };
                    for _ in 0..permissions {
                        loop {
                            if checker.is_finished() && round + 1 < ROUNDS {
                                stop.store(true, Ordering::Relaxed);
                                break;
                            }
                            if !pair.a.rcq.poll(1).is_empty() {
                                pair.a.post_recv(0, []);
                                break;
                            }
                            std::thread::yield_now();
                        }
                    }
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                }
                if let Err(why) = checker.join().expect("the checker ends") {
                    panic!("{why}");
                }
            });
        }
    }
}

fn memory_of_a_completed_send_may_be_reused(env: &TestEnv) {
    for (memory, len) in [(MemKind::Private, 100), (MemKind::Private, 50_000), (MemKind::Shared, 50_000)] {
        record_case(format!("{len} bytes, {memory:?}"));
        let pair = QpSpec::rc().with_memory_kind(memory).create_connected_pair(env);
        let source = pair.a.alloc_buf(len);
        let target = pair.b.alloc_buf(len);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0..50 {
                    pair.b.post_recv(round, [target.whole_sge()]);
                    pair.b.await_recv_completion().expect_received(round, len);
                    target.memory.assert_whole_pattern(round);
                }
            });
            for round in 0..50 {
                source.memory.fill_with_pattern(round);
                pair.a.post(send([source.whole_sge()]).with_id(round));
                pair.a.await_send_completion().expect_sent(round, Verb::Send);
                source.memory.write(0, &vec![0; len]);
            }
        });
    }
}

fn writes_of_one_queue_pair_land_in_order(env: &TestEnv) {
    for memory in MemKind::distinct_on_provider(env) {
        let pair = QpSpec::rc().with_queue_depth(64).with_memory_kind(memory).create_connected_pair(env);
        let source = pair.a.alloc_buf(64 * 8);
        let target = pair.b.alloc_buf(8);
        for i in 0..64u64 {
            source.memory.store(usize::try_from(i).unwrap() * 8, i);
        }
        for _ in 0..50 {
            let wrs = (0..64)
                .map(|i| {
                    let wr = write([source.sge(i * 8, 8)], target.remote_address()).with_id(i);
                    if i == 63 { wr } else { wr.unsignaled() }
                })
                .collect();
            pair.a.post_sends(wrs);
            pair.a.await_send_completion().expect_sent(63, Verb::RdmaWrite);
            assert_eq!(target.memory.load(0), 63);
        }
    }
}
