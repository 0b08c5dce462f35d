//! Tests that run programs on the software NIC and check their files of counters.
//!
//! The tap reads its environment once in the life of a process. Each program therefore runs as a process of
//! this test binary that executes only one function of [`PROGRAMS`].

use std::path::Path;
use std::process::{Command, ExitStatus};
use std::time::Duration;

use nicmodel::op_profile::{AtomicSlotCount, OperationProfile, QueuePair};
use nicmodel::{Transport, Verb};
use tap::Ledger;
use verbs::{Access, CompletionQueue, Inline, Provider, Rc, Ud, WcBuffer};

/// Variable that names the program to execute.
const PROGRAM: &str = "TAP_TEST_PROGRAM";

type Anything = Result<(), Box<dyn std::error::Error>>;
type Program = (&'static str, fn() -> Anything);

const PROGRAMS: [Program; 11] = [
    ("rc", rc),
    ("ud", ud),
    ("full", full),
    ("fails", fails),
    ("threads", threads),
    ("in_turn", in_turn),
    ("together", together),
    ("repeats", repeats),
    ("polls_elsewhere", polls_elsewhere),
    ("recvs", recvs),
    ("dies", dies),
];

/// Two connected queue pairs of this process.
struct Pair {
    pd: verbs::ProtectionDomain,
    cq: CompletionQueue,
    a: verbs::QueuePair<Rc>,
    b: verbs::QueuePair<Rc>,
}

fn pair(depth: u32) -> Result<Pair, Box<dyn std::error::Error>> {
    let context = Provider::softnic().device(None)?.open()?;
    let (pd, cq) = (context.alloc_pd()?, context.create_cq(1024)?);
    let make = || {
        pd.qp_builder::<Rc>(&cq, &cq)
            .max_send_wr(depth)
            .max_recv_wr(depth)
            .build()
    };
    let (a, b) = (make()?, make()?);
    let (to_a, to_b) = (a.endpoint(), b.endpoint());
    let (a, b) = (a.connect(&to_b)?, b.connect(&to_a)?);
    Ok(Pair { pd, cq, a, b })
}

/// Polls until `count` successful completions were found.
fn poll(cq: &CompletionQueue, count: usize) -> Anything {
    let mut buffer = WcBuffer::<16>::new();
    let mut found = 0;
    let done = verbs::poll_until(Duration::from_secs(30), || {
        let completions = cq.poll(&mut buffer).expect("the CQ is good");
        for completion in completions {
            completion.expect("it succeeds");
            found += 1;
        }
        (found >= count).then_some(())
    });
    done.ok_or_else(|| format!("{found} of {count} completions").into())
}

/// Posts postlists of WRITEs, adjacent READs, atomics on two words, and SENDs of 8 bytes.
fn rc() -> Anything {
    let Pair { pd, cq, a, b } = pair(64)?;
    let region = pd.alloc(
        1 << 16,
        Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC,
    )?;
    let at = |offset| region.remote().starting_at(offset).expect("in the region");
    let mut list = a.postlist(16);
    for _ in 0..10 {
        list.clear();
        for index in 0..16 {
            let wr = list.rdma_write(Inline(&[7; 24]), at(8 * index));
            if index == 15 {
                wr.signaled();
            }
        }
        a.post_send(&mut list)?;
        poll(&cq, 1)?;
    }
    for index in 0..5 {
        a.post_one(|list| {
            let into = region.slice(4096..4128).expect("in it");
            list.rdma_read(into, at(32 * index)).signaled();
        })?;
    }
    poll(&cq, 5)?;
    // Each of these is a run of its own.
    for index in 5..8 {
        a.post_one(|list| {
            let into = region.slice(4096..4128).expect("in it");
            list.rdma_read(into, at(32 * index)).signaled();
        })?;
        poll(&cq, 1)?;
    }
    for index in 0..6 {
        a.post_one(|list| {
            let into = region.slice(8192..8200).expect("in it");
            let word = at(4096 + 8 * (index % 2));
            list.atomic_fetch_and_add(into, word, 1).signaled();
        })?;
        poll(&cq, 1)?;
    }
    let mut recvs = b.recv_list(3);
    for index in 0..3 {
        recvs.recv(region.slice(0..64)?, index);
    }
    b.post_recv(&mut recvs)?;
    for imm in 0..3 {
        a.post_one(|list| {
            list.send_with_imm(Inline(&[1; 8]), imm).signaled();
        })?;
        poll(&cq, 2)?;
    }
    Ok(())
}

/// Sends datagrams to a queue pair of this process.
fn ud() -> Anything {
    let context = Provider::softnic().device(None)?.open()?;
    let (pd, cq) = (context.alloc_pd()?, context.create_cq(64)?);
    let qp = pd.qp_builder::<Ud>(&cq, &cq).max_inline_data(128).build()?;
    let region = pd.alloc(4096, Access::LOCAL_WRITE)?;
    let to = pd.ud_destination(1, &qp.endpoint())?;
    let mut recvs = qp.recv_list(4);
    for index in 0..4 {
        recvs.recv(region.slice(0..140)?, index);
    }
    qp.post_recv(&mut recvs)?;
    let mut list = qp.postlist(4);
    for _ in 0..4 {
        list.send(Inline(&[3; 100]), &to).signaled();
    }
    qp.post_send(&mut list)?;
    poll(&cq, 8)
}

/// Posts to a send queue until the provider refuses a work request.
fn full() -> Anything {
    let Pair { pd, cq, a, b: _b } = pair(8)?;
    let region = pd.alloc(4096, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    let room = a.max_send_wr();
    let mut list = a.postlist(room + 4);
    for _ in 0..room + 4 {
        list.rdma_write(Inline(&[0; 8]), region.remote()).signaled();
    }
    let refused = a.post_send(&mut list);
    assert!(refused.is_err(), "there is no room");
    poll(&cq, room)
}

/// Runs a closed loop of single WRITEs. Some succeed, then one fails for lack of access rights, and all
/// later ones are flushed.
fn fails() -> Anything {
    let Pair { pd, cq, a, b: _b } = pair(8)?;
    let good = pd.alloc(4096, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    let bad = pd.alloc(4096, Access::LOCAL_WRITE)?;
    let mut buffer = WcBuffer::<16>::new();
    for number in 0..20 {
        let region = if number < 10 { &good } else { &bad };
        a.post_one(|list| {
            list.rdma_write(Inline(&[0; 8]), region.remote()).signaled();
        })?;
        let mut failed = None;
        let done = verbs::poll_until(Duration::from_secs(30), || {
            let mut found = cq.poll(&mut buffer).ok()?;
            failed = Some(found.next()?.is_err());
            failed
        });
        assert!(done.is_some(), "nothing completes");
        assert_eq!(failed, Some(number >= 10));
    }
    Ok(())
}

/// Makes two threads post to one queue pair and poll one completion queue, one thread after the other.
fn threads() -> Anything {
    let Pair { pd, cq, a, b: _b } = pair(8)?;
    let region = pd.alloc(4096, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    for _ in 0..2 {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..10 {
                    a.post_one(|list| {
                        list.rdma_write(Inline(&[0; 8]), region.remote()).signaled();
                    })
                    .expect("there is room");
                    poll(&cq, 1).expect("it completes");
                }
            });
        });
    }
    // This thread posts, too, so that at least two threads are distinguished: the second new thread may
    // reuse the memory of the first.
    a.post_one(|list| {
        list.rdma_write(Inline(&[0; 8]), region.remote()).signaled();
    })?;
    poll(&cq, 1)
}

/// Runs rounds of WRITEs of one thread with its own queue pair.
fn rounds(pair: &Pair) -> Anything {
    let region = pair
        .pd
        .alloc(4096, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    for _ in 0..1000 {
        pair.a.post_one(|list| {
            list.rdma_write(Inline(&[7; 8]), region.remote()).signaled();
        })?;
        poll(&pair.cq, 1)?;
    }
    Ok(())
}

/// Runs threads with their own queue pairs one after the other.
fn in_turn() -> Anything {
    for _ in 0..3 {
        std::thread::spawn(|| rounds(&pair(16).expect("a pair")).expect("it runs"))
            .join()
            .expect("it ends");
    }
    Ok(())
}

/// Runs threads with their own queue pairs at the same time.
fn together() -> Anything {
    let begin = std::sync::Barrier::new(3);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let pair = pair(16).expect("a pair");
                for _ in 0..3 {
                    begin.wait();
                    rounds(&pair).expect("it runs");
                }
            });
        }
    });
    Ok(())
}

/// Posts equal work requests one at a time, some unsignaled and then all signaled, with polls between them.
fn repeats() -> Anything {
    let Pair { pd, cq, a, b: _b } = pair(8)?;
    let region = pd.alloc(4096, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    let post = |signaled: bool| {
        a.post_one(|list| {
            let wr = list.rdma_write(Inline(&[0; 8]), region.remote());
            if signaled {
                wr.signaled();
            }
        })
    };
    for _ in 0..50 {
        for index in 0..4 {
            post(index == 3)?;
        }
        poll(&cq, 1)?;
    }
    for _ in 0..50 {
        for _ in 0..4 {
            post(true)?;
        }
        poll(&cq, 4)?;
    }
    Ok(())
}

/// Posts equal work requests one at a time, each after the completion of the one before, which another thread polls.
fn polls_elsewhere() -> Anything {
    let Pair { pd, cq, a, b: _b } = pair(128)?;
    let region = pd.alloc(4096, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    let (tell, completions) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for _ in 0..1000 {
                poll(&cq, 1).expect("it completes");
                tell.send(()).expect("the poster waits");
            }
        });
        for _ in 0..1000 {
            a.post_one(|list| {
                list.rdma_write(Inline(&[0; 8]), region.remote()).signaled();
            })?;
            completions.recv()?;
        }
        Ok(())
    })
}

/// Posts receives one at a time, most of the same size as the previous one, and some together.
fn recvs() -> Anything {
    let Pair { pd, a, .. } = pair(64)?;
    let region = pd.alloc(4096, Access::LOCAL_WRITE)?;
    let room = [64, 64, 64, 0, 0, 100, 64, 64];
    for (index, len) in (0..).zip(room) {
        let mut list = a.recv_list(1);
        list.recv(region.slice(0..len)?, index);
        a.post_recv(&mut list)?;
    }
    let mut list = a.recv_list(4);
    for index in 0..4 {
        list.recv(region.slice(0..64)?, index);
    }
    a.post_recv(&mut list)?;
    let mut list = a.recv_list(1);
    list.recv(region.slice(0..64)?, 0);
    Ok(a.post_recv(&mut list)?)
}

/// Aborts while operations are outstanding.
fn dies() -> Anything {
    let Pair { pd, cq, a, b: _b } = pair(8)?;
    let region = pd.alloc(4096, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    for _ in 0..7 {
        a.post_one(|list| {
            list.rdma_write(Inline(&[0; 8]), region.remote()).signaled();
        })?;
        poll(&cq, 1)?;
    }
    for _ in 0..3 {
        a.post_one(|list| {
            list.rdma_write(Inline(&[0; 8]), region.remote());
        })?;
    }
    std::process::abort();
}

/// Executes the program that the environment selects.
#[test]
fn program() {
    let Ok(wanted) = std::env::var(PROGRAM) else {
        return;
    };
    let (_, run) = PROGRAMS
        .into_iter()
        .find(|(name, _)| *name == wanted)
        .expect("there is such a program");
    run().expect("it can be run");
}

/// Runs a program, and returns its exit status and ledger.
fn run(name: &str, folder: &Path) -> (ExitStatus, Ledger) {
    let status = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "program", "--nocapture"])
        .env(PROGRAM, name)
        .env(tap::TAP_DIR_ENV_VAR, folder)
        .status()
        .expect("it starts");
    let ledger = Ledger::collect(folder, name).expect("the folder is there");
    (status, ledger)
}

/// Returns the profile of the only process of a program, which must succeed.
fn profile(name: &str) -> OperationProfile {
    let folder = tempfile::tempdir().expect("a folder");
    let (status, ledger) = run(name, folder.path());
    assert!(status.success(), "{name}");
    assert_eq!(ledger.provider, "softnic");
    assert_eq!(ledger.notes, [""; 0]);
    let [profile] = &ledger.processes[..] else {
        panic!("one process: {ledger:?}");
    };
    assert!(profile.complete && profile.notes.is_empty(), "{profile:?}");
    assert_eq!(profile.check(), Ok(()));
    profile.clone()
}

/// Returns the queue pair that sent messages.
fn sender(profile: &OperationProfile) -> &QueuePair {
    profile.posting_queue_pairs().next().expect("one sent")
}

#[test]
fn every_verb_is_counted_with_what_it_costs() {
    let profile = profile("rc");
    assert_eq!(
        profile.peer_count, 1,
        "both queue pairs are of this process"
    );
    let qp = sender(&profile);
    assert_eq!(qp.transport, Transport::Rc);
    let kinds: Vec<_> = qp
        .sent
        .iter()
        .map(|kind| {
            let operation = kind.operation;
            (
                operation.verb,
                operation.payload_bytes,
                operation.inline,
                kind.count,
            )
        })
        .collect();
    assert_eq!(
        kinds,
        [
            (Verb::RdmaWrite, 24, true, 160),
            (Verb::RdmaRead, 32, false, 8),
            (Verb::AtomicFetchAndAdd, 8, false, 6),
            (Verb::Send, 8, true, 3),
        ]
    );
    assert!((qp.sent[0].operation.signaled_fraction - 1.0 / 16.0).abs() < 1e-9);
    assert!((qp.sent[1].operation.signaled_fraction - 1.0).abs() < 1e-9);
    assert_eq!(qp.postlists, 10 + 5 + 3 + 6 + 3);
    // Five READs were posted without a poll between them; a poll followed every other post.
    assert_eq!(qp.unpolled_postlist_runs, 10 + 1 + 3 + 6 + 3);
    assert_eq!(qp.adjacent_reads, 4);
    assert_eq!(qp.max_outstanding, 16);
    let slot = |slot| AtomicSlotCount {
        low_address_bits: slot,
        count: 3,
    };
    assert_eq!(qp.atomics_by_low_address_bits.len(), 2);
    assert_eq!(
        qp.atomics_by_low_address_bits[1].low_address_bits
            - qp.atomics_by_low_address_bits[0].low_address_bits,
        8
    );
    assert_eq!(
        qp.atomics_by_low_address_bits[0],
        slot(qp.atomics_by_low_address_bits[0].low_address_bits)
    );
    let lengths: Vec<_> = qp
        .postlist_lengths
        .iter()
        .map(|l| (l.max_postlist_len, l.count))
        .collect();
    assert_eq!(lengths, [(1, 17), (16, 10)]);
    let receiver = profile
        .queue_pairs
        .iter()
        .find(|qp| !qp.received.is_empty())
        .expect("one received");
    let received = &receiver.received[0];
    assert_eq!((received.operation.payload_bytes, received.count), (8, 3));
    assert!(received.operation.has_imm);
    assert_eq!(
        (
            receiver.posted_recvs.postlists,
            receiver.posted_recvs.count,
            receiver.posted_recvs.buffer_bytes
        ),
        (1, 3, 192)
    );
    assert_eq!(profile.memory.max_registered_bytes, 1 << 16);
    let [thread] = &profile.threads[..] else {
        panic!("one thread: {profile:?}");
    };
    assert_eq!((thread.posts, thread.recv_posts), (27, 1));
    assert_eq!(thread.completions, 10 + 8 + 6 + 6);
    assert!(thread.poll_calls >= 20 && thread.empty_polls < thread.poll_calls);
}

#[test]
fn datagrams_are_counted_without_their_routing_header() {
    let profile = profile("ud");
    let qp = sender(&profile);
    assert_eq!((qp.transport, profile.peer_count), (Transport::Ud, 1));
    assert_eq!(qp.sent[0].operation.payload_bytes, 100);
    assert_eq!(qp.received[0].operation.payload_bytes, 100);
    assert_eq!((qp.sent[0].count, qp.received[0].count), (4, 4));
    assert_eq!(qp.max_outstanding, 4);
}

#[test]
fn what_was_refused_was_not_posted() {
    let profile = profile("full");
    let qp = sender(&profile);
    assert_eq!(qp.posted_operations(), u64::from(qp.max_send_wr));
    assert_eq!((qp.refused_wrs, qp.postlists), (4, 1));
    assert_eq!(qp.max_outstanding, qp.max_send_wr);
}

#[test]
fn a_loop_that_waits_for_each_operation_is_one_when_some_fail() {
    let profile = profile("fails");
    let qp = sender(&profile);
    assert_eq!((qp.posted_operations(), qp.failed_completions), (20, 10));
    assert_eq!(qp.max_outstanding, 1);
    assert!(profile.waits_after_each_operation());
}

#[test]
fn threads_are_told_apart_and_nothing_is_lost_between_them() {
    let profile = profile("threads");
    let qp = sender(&profile);
    assert_eq!(
        (qp.posted_operations(), qp.unpolled_postlist_runs),
        (21, 21)
    );
    let posting = profile.threads.iter().filter(|thread| thread.posts > 0);
    assert!(posting.count() >= 2);
    let completions: u64 = profile.threads.iter().map(|t| t.completions).sum();
    assert_eq!(completions, 21);
}

#[test]
fn threads_one_after_the_other_are_not_there_together() {
    for (name, at_a_time) in [("in_turn", 1), ("together", 3)] {
        let profile = profile(name);
        assert_eq!(profile.posting_queue_pairs().count(), 3, "{name}");
        let counts = [
            profile.max_concurrent_queue_pairs(),
            profile.effective_queue_pairs(),
            profile.max_concurrent_posters(),
        ];
        assert_eq!(counts, [at_a_time; 3], "{name}: {profile:?}");
    }
}

#[test]
fn completions_that_another_thread_polls_end_repetitions() {
    let profile = profile("polls_elsewhere");
    let qp = sender(&profile);
    assert_eq!((qp.posted_operations(), qp.postlists), (1000, 1000));
    assert_eq!(
        (qp.unpolled_postlist_runs, qp.max_outstanding),
        (1000, 1),
        "{qp:?}"
    );
    assert!((qp.mean_outstanding - 1.0).abs() < 1e-9, "{qp:?}");
}

#[test]
fn repeated_posts_are_counted_as_all_others() {
    let profile = profile("repeats");
    let qp = sender(&profile);
    assert_eq!((qp.posted_operations(), qp.postlists), (400, 400));
    // The second hundred polls may find one completion each, but no post comes between them.
    assert_eq!((qp.unpolled_postlist_runs, qp.max_outstanding), (100, 4));
    assert!((qp.mean_outstanding - 2.5).abs() < 1e-9, "{qp:?}");
    let [kind] = &qp.sent[..] else {
        panic!("one kind: {qp:?}");
    };
    assert_eq!((kind.count, kind.operation.payload_bytes), (400, 8));
    assert!((kind.operation.signaled_fraction - 250.0 / 400.0).abs() < 1e-9);
}

#[test]
fn recvs_that_are_alike_are_counted_as_all_others() {
    let profile = profile("recvs");
    let posted = |qp: &&QueuePair| qp.posted_recvs.count > 0;
    let qp = profile.queue_pairs.iter().find(posted).expect("one posted");
    let recvs = &qp.posted_recvs;
    assert_eq!((recvs.postlists, recvs.count), (10, 13));
    assert_eq!(recvs.buffer_bytes, 10 * 64 + 100);
    assert_eq!(profile.threads[0].recv_posts, 10);
}

#[test]
fn a_program_that_dies_leaves_what_it_did() {
    let folder = tempfile::tempdir().expect("a folder");
    let (status, ledger) = run("dies", folder.path());
    assert!(!status.success());
    let [profile] = &ledger.processes[..] else {
        panic!("one process: {ledger:?}");
    };
    assert!(!profile.complete);
    let qp = sender(profile);
    assert_eq!(
        (
            qp.posted_operations(),
            qp.postlists,
            qp.unpolled_postlist_runs
        ),
        (10, 10, 8)
    );
    assert!((qp.sent[0].operation.signaled_fraction - 0.7).abs() < 1e-9);
    // At each of the first seven posts one operation is outstanding; at the next posts one, two and three
    // are.
    assert_eq!(qp.max_outstanding, 3);
    assert!((qp.mean_outstanding - 1.3).abs() < 1e-9, "{qp:?}");
}

#[test]
fn without_a_folder_the_tap_is_off() {
    assert!(std::env::var_os(tap::TAP_DIR_ENV_VAR).is_some() || !tap::is_counting_or_tracing());
}
