//! Tests of thread safety and of the atomicity of atomics.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::TryRecvError;

use crate::TestEnv;
use crate::test_env::NicCapability;
use crate::harness::record_case;
use crate::memory::MemKind;
use crate::pair::{QpPair, QpSpec};
use crate::wr::{Verb, cmp_swp, fetch_add, recv, send, write};

tests! { "threads";
    two_threads_post_on_one_queue_pair [],
    two_threads_poll_one_cq [],
    two_threads_post_receives [],
    many_threads_with_queue_pairs_of_their_own [],
    objects_come_and_go_in_every_thread [],
    fetch_add_is_atomic [Atomics],
    cmp_swp_is_atomic [Atomics],
    atomics_of_one_queue_pair_from_two_threads [Atomics],
    registering_while_others_write [],
    destroying_while_the_peer_sends [],
    destroying_beside_a_polling_thread [],
    changing_state_beside_posting_threads [],
    arming_again_beside_a_polling_peer [],
}

fn two_threads_post_on_one_queue_pair(env: &TestEnv) {
    const EACH: u64 = 2000;
    // The CQ has room for all completions, because this test is not about the limits of a full CQ.
    let pair = QpSpec::rc().with_queue_depth(128).with_change(|s| s.cqe = 4096).create_connected_pair(env);
    let source = pair.a.alloc_buf(64);
    let target = pair.b.alloc_buf(64);
    let done = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..2u64 {
            let (pair, source, target) = (&pair, &source, &target);
            scope.spawn(move || {
                for i in 0..EACH {
                    let wr = || write([source.whole_sge()], target.remote_address()).with_id(thread << 32 | i);
                    while pair.a.qp.try_post_sends(vec![wr()]).is_err() {
                        std::thread::yield_now();
                    }
                }
            });
        }
        scope.spawn(|| {
            let mut next = [0u64; 2];
            while next[0] + next[1] < 2 * EACH {
                for wc in pair.a.scq.wait_for_completions(1) {
                    let thread = usize::try_from(wc.id() >> 32).expect("small");
                    // Each thread's WRs complete in the order of its posts.
                    wc.expect_sent((wc.id() >> 32 << 32) | next[thread], Verb::RdmaWrite);
                    next[thread] += 1;
                }
            }
            done.store(next[0] + next[1], Ordering::Relaxed);
        });
    });
    assert_eq!(done.into_inner(), 2 * EACH);
}

fn two_threads_poll_one_cq(env: &TestEnv) {
    const TOTAL: u64 = 4000;
    let pair = QpSpec::rc().with_queue_depth(128).with_change(|s| s.cqe = 4096).create_connected_pair(env);
    let sum = AtomicU64::new(0);
    let count = AtomicU64::new(0);
    let received = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while count.load(Ordering::Relaxed) < TOTAL {
                    for wc in pair.a.scq.poll(4) {
                        wc.expect_sent(wc.id(), Verb::Send);
                        sum.fetch_add(wc.id(), Ordering::Relaxed);
                        count.fetch_add(1, Ordering::Relaxed);
                    }
                    for wc in pair.b.rcq.poll(4) {
                        assert_eq!(wc.status(), 0);
                        received.fetch_add(1, Ordering::Relaxed);
                        pair.b.post_recv(wc.id(), []);
                    }
                    std::thread::yield_now();
                }
            });
        }
        for i in 0..100 {
            pair.b.post_recv(i, []);
        }
        for i in 0..TOTAL {
            while pair.a.qp.try_post_sends(vec![send([]).with_id(i)]).is_err() {
                std::thread::yield_now();
            }
        }
    });
    assert_eq!(count.into_inner(), TOTAL, "completions");
    assert_eq!(sum.into_inner(), TOTAL * (TOTAL - 1) / 2, "sum of the wr_ids");
    let rest = pair.b.rcq.poll_for_quiet_period().len() as u64;
    assert_eq!(received.into_inner() + rest, TOTAL, "receives");
}

fn two_threads_post_receives(env: &TestEnv) {
    const EACH: u64 = 1000;
    let pair = QpSpec::rc().with_queue_depth(64).create_connected_pair(env);
    std::thread::scope(|scope| {
        for thread in 0..2u64 {
            let pair = &pair;
            scope.spawn(move || {
                for i in 0..EACH {
                    while pair.b.qp.try_post_recvs(vec![recv(thread << 32 | i, [])]).is_err() {
                        std::thread::yield_now();
                    }
                }
            });
        }
        scope.spawn(|| {
            let mut next = [0u64; 2];
            for wc in (0..2 * EACH).map(|_| pair.b.await_recv_completion()) {
                let thread = usize::try_from(wc.id() >> 32).expect("small");
                wc.expect_received((wc.id() >> 32 << 32) | next[thread], 0);
                next[thread] += 1;
            }
        });
        for i in 0..2 * EACH {
            pair.a.post(send([]).with_id(i));
            if i % 32 == 31 {
                for (k, wc) in pair.a.scq.wait_for_completions(32).iter().enumerate() {
                    wc.expect_sent(i - 31 + k as u64, Verb::Send);
                }
            }
        }
    });
}

/// Returns connected siblings of `a` and `b`.
fn create_connected_sibling_pair(pair: &QpPair) -> QpPair {
    let mut sibling = QpPair {
        a: pair.a.create_side_on_same_pd_and_cqs(),
        b: pair.b.create_side_on_same_pd_and_cqs(),
    };
    sibling.connect();
    sibling
}

fn many_threads_with_queue_pairs_of_their_own(env: &TestEnv) {
    std::thread::scope(|scope| {
        for thread in 0..6u64 {
            scope.spawn(move || {
                let kind = if thread % 2 == 0 { MemKind::Private } else { MemKind::Shared };
                let pair = QpSpec::rc().with_memory_kind(kind).create_connected_pair(env);
                let source = pair.a.alloc_buf(1000);
                let target = pair.b.alloc_buf(1000);
                for i in 0..200 {
                    source.memory.fill_with_pattern(thread << 32 | i);
                    pair.b.post_recv(i, [target.whole_sge()]);
                    pair.a.post(send([source.whole_sge()]).with_id(i));
                    pair.b.await_recv_completion().expect_received(i, 1000);
                    target.memory.assert_whole_pattern(thread << 32 | i);
                    pair.a.await_send_completion().expect_sent(i, Verb::Send);
                }
            });
        }
    });
}

fn objects_come_and_go_in_every_thread(env: &TestEnv) {
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..15 {
                    let pair = QpSpec::rc().with_channels().create_connected_pair(env);
                    pair.check_transfers_both_ways();
                }
            });
        }
    });
}

/// The sum of the additions of several requesters is exact, and no old value is returned twice.
fn fetch_add_is_atomic(env: &TestEnv) {
    const THREADS: u64 = 4;
    const EACH: u64 = 1500;
    for memory in MemKind::distinct_on_provider(env) {
        record_case(format!("{memory:?}"));
        let first = QpSpec::rc().with_queue_depth(32).with_memory_kind(memory).create_connected_pair(env);
        let counter = first.b.alloc_buf(8);
        let pairs: Vec<QpPair> = (0..THREADS).map(|_| create_requester_with_own_context(env, &first, memory)).collect();
        let mut seen: Vec<u64> = std::thread::scope(|scope| {
            let threads: Vec<_> = pairs
                .iter()
                .map(|pair| {
                    let counter = counter.remote_address();
                    scope.spawn(move || {
                        let results = pair.a.alloc_buf(8 * 8);
                        let mut seen = Vec::new();
                        for _ in 0..EACH / 8 {
                            let wrs = (0..8)
                                .map(|i| fetch_add(results.sge(8 * i, 8), counter, 1).with_id(i))
                                .collect();
                            pair.a.post_sends(wrs);
                            for (i, wc) in pair.a.scq.wait_for_completions(8).iter().enumerate() {
                                wc.expect_sent(i as u64, Verb::AtomicFetchAndAdd);
                                seen.push(results.memory.load(8 * i));
                            }
                        }
                        seen
                    })
                })
                .collect();
            threads.into_iter().flat_map(|thread| thread.join().expect("a thread")).collect()
        });
        let total = THREADS * (EACH / 8) * 8;
        assert_eq!(counter.memory.load(0), total, "the sum");
        seen.sort_unstable();
        assert!(seen.iter().copied().eq(0..total), "an old value twice");
    }
}

/// Returns a requester with its own context, connected to a new QP of `first`'s responder.
fn create_requester_with_own_context(env: &TestEnv, first: &QpPair, memory: MemKind) -> QpPair {
    let mut pair = QpPair {
        a: QpSpec::rc().with_queue_depth(32).with_memory_kind(memory).create_qp_side(env),
        b: first.b.create_side_on_same_pd_and_cqs(),
    };
    pair.connect();
    pair
}

fn cmp_swp_is_atomic(env: &TestEnv) {
    const THREADS: u64 = 3;
    const EACH: u64 = 400;
    for memory in MemKind::distinct_on_provider(env) {
        record_case(format!("{memory:?}"));
        let first = QpSpec::rc().with_memory_kind(memory).create_connected_pair(env);
        let word = first.b.alloc_buf(8);
        let pairs: Vec<QpPair> = (0..THREADS).map(|_| create_requester_with_own_context(env, &first, memory)).collect();
        std::thread::scope(|scope| {
            for pair in &pairs {
                let word = word.remote_address();
                scope.spawn(move || {
                    let result = pair.a.alloc_buf(8);
                    let mut expected = 0u64;
                    let mut done = 0;
                    while done < EACH {
                        pair.a.post(cmp_swp(result.whole_sge(), word, expected, expected + 1));
                        pair.a.await_send_completion().expect_sent(0, Verb::AtomicCmpAndSwp);
                        let old = result.memory.load(0);
                        if old == expected {
                            done += 1;
                            expected += 1;
                        } else {
                            expected = old;
                        }
                    }
                });
            }
        });
        assert_eq!(word.memory.load(0), THREADS * EACH);
    }
}

fn atomics_of_one_queue_pair_from_two_threads(env: &TestEnv) {
    const EACH: u64 = 500;
    let pair = QpSpec::rc().with_queue_depth(64).with_change(|s| s.cqe = 1024).create_connected_pair(env);
    let counter = pair.b.alloc_buf(8);
    let result = pair.a.alloc_buf(16);
    std::thread::scope(|scope| {
        for thread in 0..2u64 {
            let (pair, counter, result) = (&pair, &counter, &result);
            scope.spawn(move || {
                for i in 0..EACH {
                    let wr = || fetch_add(result.sge(8 * thread, 8), counter.remote_address(), 3).with_id(i);
                    while pair.a.qp.try_post_sends(vec![wr()]).is_err() {
                        std::thread::yield_now();
                    }
                }
            });
        }
        for _ in 0..2 * EACH {
            assert_eq!(pair.a.await_send_completion().status(), 0);
        }
    });
    assert_eq!(counter.memory.load(0), 2 * EACH * 3);
}

/// Threads register and deregister other regions while a peer writes to a region.
fn registering_while_others_write(env: &TestEnv) {
    for memory in MemKind::distinct_on_provider(env) {
        record_case(format!("{memory:?}"));
        let pair = QpSpec::rc().with_memory_kind(memory).create_connected_pair(env);
        let source = pair.a.alloc_buf(4096);
        let target = pair.b.alloc_buf(4096);
        source.memory.fill_with_pattern(1);
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let others: Vec<_> = (0..8).map(|_| pair.b.alloc_buf(100)).collect();
                    drop(others);
                }
            });
            for i in 0..1000 {
                pair.a.post(write([source.whole_sge()], target.remote_address()).with_id(i));
                pair.a.await_send_completion().expect_sent(i, Verb::RdmaWrite);
            }
            stop.store(true, Ordering::Relaxed);
        });
        target.memory.assert_whole_pattern(1);
    }
}

/// A QP is destroyed while its peer sends messages: they succeed or fail, and nothing crashes.
fn destroying_while_the_peer_sends(env: &TestEnv) {
    let first = QpSpec::rc().with_short_timeout_and_few_retries().create_connected_pair(env);
    let verbs = if env.expects_capability(NicCapability::Read) { 3 } else { 2 };
    for round in 0..30u64 {
        record_case(format!("round {round}"));
        let pair = create_connected_sibling_pair(&first);
        let source = pair.a.alloc_buf(64);
        let target = pair.b.alloc_buf(64);
        for i in 0..10 {
            pair.b.post_recv(i, [target.whole_sge()]);
        }
        let b = pair.b;
        std::thread::scope(|scope| {
            scope.spawn(move || {
                std::thread::sleep(std::time::Duration::from_micros(round * 10));
                assert_eq!(b.qp.try_destroy(), 0);
            });
            let wrs = (0..10)
                .map(|i| match i % verbs {
                    0 => send([source.whole_sge()]).with_id(i),
                    1 => write([source.whole_sge()], target.remote_address()).with_id(i),
                    _ => crate::wr::read([source.whole_sge()], target.remote_address()).with_id(i),
                })
                .collect();
            pair.a.post_sends(wrs);
            let mut failed = false;
            for (i, wc) in pair.a.scq.wait_for_completions(10).iter().enumerate() {
                assert_eq!(wc.id(), i as u64);
                if failed {
                    wc.expect_flushed(i as u64);
                } else if wc.status() != 0 {
                    wc.expect_failed(i as u64, &[verbs_abi::IBV_WC_RETRY_EXC_ERR]);
                    failed = true;
                }
            }
        });
        drop(first.b.rcq.poll(64));
    }
}

/// A thread polls the CQs of queue pairs that other threads create and destroy.
fn destroying_beside_a_polling_thread(env: &TestEnv) {
    let first = QpSpec::rc().with_change(|s| s.cqe = 4096).create_connected_pair(env);
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                for wc in first.a.scq.poll(8) {
                    assert_eq!(wc.status(), 0, "{wc:?}");
                }
                for wc in first.b.rcq.poll(8) {
                    assert_eq!(wc.status(), 0, "{wc:?}");
                }
            }
        });
        for _ in 0..300u64 {
            let pair = create_connected_sibling_pair(&first);
            pair.b.post_recv(1, []);
            pair.a.post(send([]).with_id(2));
            pair.a.post(write([], crate::wr::RemoteAddress { addr: 0, rkey: 0 }).with_id(3));
        }
        stop.store(true, Ordering::Relaxed);
    });
}

/// Threads post WRs while another thread changes the QP's state. Each post is accepted or refused, no call
/// crashes, and each accepted WR completes once.
fn changing_state_beside_posting_threads(env: &TestEnv) {
    use verbs_abi::{IBV_QPS_ERR, IBV_QPS_RESET};
    for round in 0..20u64 {
        record_case(format!("round {round}"));
        let pair = QpSpec::rc().with_queue_depth(64).create_connected_pair(env);
        let source = pair.a.alloc_buf(8);
        let target = pair.b.alloc_buf(8);
        let taken = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for i in 0..30 {
                        let wr = write([source.whole_sge()], target.remote_address()).with_id(i);
                        if pair.a.qp.try_post_sends(vec![wr]).is_ok() {
                            taken.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
            scope.spawn(|| {
                std::thread::sleep(std::time::Duration::from_micros(round * 3));
                pair.a.qp.move_to_state(IBV_QPS_ERR);
            });
        });
        let taken = usize::try_from(taken.into_inner()).expect("small");
        let mut failed = false;
        for wc in pair.a.scq.wait_for_completions(taken) {
            failed |= wc.status() != 0;
            if failed {
                wc.expect_flushed(wc.id());
            }
        }
        pair.a.scq.expect_empty();
        pair.a.qp.move_to_state(IBV_QPS_RESET);
    }
}

/// A CQ is armed, and armed again while the completion arrives. The completion has an event, since the CQ was armed
/// before it.
fn arming_again_beside_a_polling_peer(env: &TestEnv) {
    const ROUNDS: u64 = 3000;
    let pair = QpSpec::rc().with_channels().create_connected_pair(env);
    let source = pair.a.alloc_buf(8);
    let target = pair.b.alloc_buf(8);
    let (stop_sender, stop) = std::sync::mpsc::channel::<()>();
    (0..8).for_each(|i| pair.b.post_recv(i, [target.whole_sge()]));
    std::thread::scope(|scope| {
        let b = &pair.b;
        scope.spawn(move || {
            while stop.try_recv() == Err(TryRecvError::Empty) {
                for wc in b.rcq.poll(8) {
                    b.post_recv(wc.id(), [target.whole_sge()]);
                }
            }
        });
        // Dropped at the end, also after a panic.
        let _stop_sender = stop_sender;
        let channel = pair.a.schannel.as_ref().expect("channels");
        for round in 0..ROUNDS {
            record_case(format!("round {round}"));
            pair.a.scq.arm(false);
            pair.a.post(send([source.whole_sge()]).with_id(round));
            (0..round % 100).for_each(|_| std::hint::spin_loop());
            pair.a.scq.arm(false);
            channel.await_and_ack_event(&pair.a.scq);
            pair.a.await_send_completion().expect_sent(round, Verb::Send);
        }
    });
}
