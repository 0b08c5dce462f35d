//! For each guideline a program that breaks it and one that keeps it.

use super::*;
use crate::op_profile::{Counted, Memory, QueuePair, SlotCount, Thread, VERSION};
use crate::operation::Operation;
use crate::profile::builtin;
use crate::verb::{Transport, Verb};

/// One thread for each queue pair, each of which posts `count` such operations in postlists of
/// `postlist`, where `run` would have been possible.
struct Program {
    operation: Operation,
    count: u64,
    postlist: u64,
    run: u64,
    queue_pairs: u32,
    threads: u32,
    peers: u32,
}

impl Program {
    fn new(operation: Operation) -> Self {
        Self {
            operation,
            count: 9600,
            postlist: 16,
            run: 16,
            queue_pairs: 84,
            threads: 14,
            peers: 8,
        }
    }

    fn profile(&self) -> OperationProfile {
        let one = |qpn| QueuePair {
            sent: vec![Counted {
                operation: self.operation,
                count: self.count,
            }],
            postlists: self.count / self.postlist,
            runs: self.count / self.run,
            ..QueuePair::new(qpn, self.operation.transport)
        };
        let thread = |id| Thread {
            id,
            posts: 1,
            ..Thread::default()
        };
        let profile = OperationProfile {
            version: VERSION,
            complete: true,
            queue_pairs: (0..self.queue_pairs).map(one).collect(),
            threads: (0..self.threads).map(thread).collect(),
            peers: self.peers,
            ..OperationProfile::default()
        };
        assert_eq!(profile.check(), Ok(()));
        profile
    }
}

fn nic(name: &str) -> &'static Profile {
    builtin(name).expect("built in")
}

fn ud(payload: u32) -> Operation {
    Operation::new(Verb::Send, Transport::Ud, payload).inlined()
}

fn read(payload: u32) -> Operation {
    Operation::new(Verb::RdmaRead, Transport::Rc, payload)
}

fn find(name: &str, observed: &OperationProfile, profile: &Profile) -> Option<Advice> {
    let advice = advise(observed, profile).expect("possible");
    advice.into_iter().find(|advice| advice.guideline == name)
}

/// The program breaks the guideline, what is seen has these words, following it brings about so
/// much, and the program that follows it keeps it.
#[track_caller]
fn breaks(name: &str, observed: &OperationProfile, on: &str, words: &str, gain: Option<f64>) {
    let profile = nic(on);
    let advice = find(name, observed, profile).expect("it breaks the guideline");
    let text = format!("{}; {}", advice.finding.seen, advice.finding.advice);
    assert!(text.contains(words), "{text}");
    match (gain, advice.gain) {
        (Some(expected), Some(gain)) => {
            assert!((gain.relative - expected).abs() < 0.01, "{gain:?}");
        }
        (None, None) => {}
        other => panic!("{other:?}"),
    }
    let guideline = ALL.iter().find(|guideline| guideline.name == name);
    let fixed = guideline.expect("there is one").fixed;
    if let Some(fixed) = fixed(observed, profile) {
        assert_eq!(fixed.check(), Ok(()));
        keeps(name, &fixed, on);
    }
}

#[track_caller]
fn keeps(name: &str, observed: &OperationProfile, on: &str) {
    let found = find(name, observed, nic(on));
    assert!(found.is_none(), "{found:?}");
}

#[test]
fn a_good_program_is_left_alone() {
    for payload in [8, 60] {
        let observed = Program::new(ud(payload)).profile();
        assert_eq!(
            advise(&observed, nic("cib")),
            Ok(Vec::new()),
            "{payload} bytes"
        );
    }
    assert_eq!(
        advise(&OperationProfile::default(), nic("cib")),
        Ok(Vec::new())
    );
}

#[test]
fn doorbell_batching() {
    let single = Program {
        postlist: 1,
        ..Program::new(ud(60))
    };
    // 100.1 for 79.6 M/s; the paper measured +27 %.
    let words = "QP 0x0 posts 1.0 WRs a doorbell; 16.0 were waiting on average";
    breaks(
        "doorbell-batching",
        &single.profile(),
        "cib",
        words,
        Some(0.258),
    );
    breaks(
        "doorbell-batching",
        &single.profile(),
        "cib",
        "1 MMIO write instead of 32",
        Some(0.258),
    );
    let alone = Program { run: 1, ..single };
    keeps("doorbell-batching", &alone.profile(), "cib");
}

#[test]
fn wqe_shrinking() {
    let over = Program {
        postlist: 1,
        run: 1,
        ..Program::new(ud(61))
    };
    let words = "WQEs of 129 bytes for SEND of 61 bytes take 3 cache lines, 1 bytes in the last; make the payload 60 bytes";
    // The MMIO writes of three lines against those of two.
    breaks("wqe-shrinking", &over.profile(), "cib", words, Some(0.488));
    keeps("wqe-shrinking", &Program::new(ud(60)).profile(), "cib");
    keeps("wqe-shrinking", &Program::new(ud(80)).profile(), "cib");
}

#[test]
fn inlining() {
    let fetched = Operation {
        inline: false,
        ..ud(16)
    };
    let observed = Program::new(fetched).profile();
    let words = "IBV_SEND_INLINE, with max_inline_data of at least 16";
    // 203.4 bytes a SEND on the link against 157.4.
    breaks("inlining", &observed, "cib", words, Some(0.292));
    keeps("inlining", &Program::new(ud(16)).profile(), "cib");
    // Large payloads are better fetched.
    let large = Operation {
        inline: false,
        ..ud(400)
    };
    let single = Program {
        postlist: 1,
        run: 1,
        ..Program::new(large)
    };
    keeps("inlining", &single.profile(), "cib");
}

#[test]
fn unsignaled() {
    let few_cores = |signaled| Program {
        threads: 1,
        queue_pairs: 8,
        ..Program::new(ud(8).signaled(signaled))
    };
    let words = "100 % of SEND are signaled; leave out IBV_SEND_SIGNALED";
    breaks(
        "unsignaled",
        &few_cores(1.0).profile(),
        "cib",
        words,
        Some(0.844),
    );
    keeps("unsignaled", &few_cores(1.0 / 64.0).profile(), "cib");
    // The result of a READ is needed.
    keeps(
        "unsignaled",
        &Program::new(read(8).signaled(1.0)).profile(),
        "cib",
    );
}

#[test]
fn header_only() {
    let to_one = Program {
        peers: 1,
        ..Program::new(ud(4))
    };
    let observed = to_one.profile();
    let words = "IBV_WR_SEND_WITH_IMM with num_sge = 0";
    // The receiving NIC goes from 82 to 122.
    breaks("header-only", &observed, "cib", words, Some(0.488));
    keeps("header-only", &Program::new(ud(5)).profile(), "cib");
    keeps(
        "header-only",
        &Program::new(ud(4).with_imm()).profile(),
        "cib",
    );
}

#[test]
fn inline_recv() {
    let receiving = |payload| {
        let mut observed = Program::new(Operation::header_only(Transport::Ud)).profile();
        for qp in &mut observed.queue_pairs {
            qp.received = vec![Counted {
                operation: ud(payload),
                count: 9600,
            }];
        }
        observed
    };
    let words = "RECVs take 32 bytes into a buffer, two DMA writes each";
    // 26 for 21.8, where the peers' SENDs allow it.
    breaks("inline-recv", &receiving(32), "cx3", words, Some(0.193));
    keeps("inline-recv", &receiving(65), "cx3");
    keeps("inline-recv", &receiving(32), "cib");
}

#[test]
fn multi_queue() {
    let one = Program {
        queue_pairs: 1,
        threads: 1,
        ..Program::new(ud(8))
    };
    breaks(
        "multi-queue",
        &one.profile(),
        "cib",
        "several UD queue pairs",
        Some(3.0),
    );
    keeps("multi-queue", &Program::new(ud(8)).profile(), "cib");
    let mut one_at_a_time = one.profile();
    one_at_a_time.queue_pairs[0].max_outstanding = 1;
    keeps("multi-queue", &one_at_a_time, "cib");
}

#[test]
fn what_several_queue_pairs_bring_is_no_gain_of_another_guideline() {
    let program = |inline| Program {
        queue_pairs: 1,
        threads: 1,
        ..Program::new(Operation { inline, ..ud(8) })
    };
    let observed = program(false).profile();
    let advice = find("inlining", &observed, nic("cib")).expect("it breaks the guideline");
    assert_eq!(advice.together_with, None, "{advice:?}");
    assert!(
        advice.gain.expect("predicted").relative < 0.01,
        "{advice:?}"
    );
    // Lists are of use with several queue pairs only, and bring more than those alone.
    let single = Program {
        postlist: 1,
        ..program(true)
    };
    let advice = find("doorbell-batching", &single.profile(), nic("cib")).expect("it breaks it");
    assert_eq!(advice.together_with, Some("multi-queue"), "{advice:?}");
}

fn atomics(slots: u32) -> OperationProfile {
    let atomic = Operation::new(Verb::AtomicFetchAndAdd, Transport::Rc, 8);
    let mut observed = Program {
        postlist: 1,
        run: 1,
        peers: 1,
        ..Program::new(atomic)
    }
    .profile();
    for qp in &mut observed.queue_pairs {
        let places = (0..slots).map(|index| SlotCount {
            slot: index * 8,
            count: 9600 / u64::from(slots),
        });
        qp.atomic_slots = places.collect();
    }
    observed
}

#[test]
fn atomic_locks() {
    let words = "use 1 of the NIC's locks evenly, and wait for them; place the words so that their addresses differ in the low 12 bits (512 places";
    // 52 for 2.24.
    breaks("atomic-locks", &atomics(1), "cib", words, Some(22.214));
    keeps("atomic-locks", &atomics(32), "cib");
    breaks(
        "atomic-locks",
        &atomics(32),
        "cx3",
        "by a single atomic of its own (an RPC)",
        None,
    );
}

#[test]
fn cpu_bypass() {
    let words = "806400 atomics are executed by the peer's NIC, where this binds: NIC atomic locks; send requests to the peer's \
                 processor";
    let advice = find("cpu-bypass", &atomics(1), nic("cib")).expect("an RPC is faster");
    let text = format!("{}; {}", advice.finding.seen, advice.finding.advice);
    assert!(text.contains(words), "{text}");
    // The paper: 50 times and more; here the clients' RECVs bind.
    assert!(
        advice.gain.expect("predicted").relative > 30.0,
        "{advice:?}"
    );
    keeps("cpu-bypass", &Program::new(read(32)).profile(), "cib");
    // The program's own queue pair binds, and the peer's NIC is idle for the most part.
    let one = Program {
        queue_pairs: 1,
        threads: 1,
        postlist: 1,
        ..Program::new(read(8))
    };
    keeps("cpu-bypass", &one.profile(), "cib");
}

#[test]
fn read_size() {
    let neighbours = |adjacent| {
        let mut observed = Program::new(read(16)).profile();
        observed
            .queue_pairs
            .iter_mut()
            .for_each(|qp| qp.adjacent_reads = adjacent);
        observed
    };
    let words = "4800 of 9600 READs of 16 bytes continue the one before; fetch neighbours by one READ: 32 bytes";
    breaks("read-size", &neighbours(4800), "cib", words, Some(0.761));
    keeps("read-size", &neighbours(100), "cib");
}

#[test]
fn read_window() {
    let outstanding = |mean| {
        let mut observed = Program {
            queue_pairs: 8,
            threads: 8,
            ..Program::new(read(8))
        }
        .profile();
        observed
            .queue_pairs
            .iter_mut()
            .for_each(|qp| qp.mean_outstanding = mean);
        observed
    };
    breaks(
        "read-window",
        &outstanding(64.0),
        "cx3",
        "at most 16 READs outstanding",
        None,
    );
    keeps("read-window", &outstanding(16.0), "cx3");
    keeps("read-window", &outstanding(64.0), "cib");
}

#[test]
fn connected_qps() {
    let write = Operation::new(Verb::RdmaWrite, Transport::Uc, 16).inlined();
    let clients = |queue_pairs| Program {
        queue_pairs,
        ..Program::new(write)
    };
    breaks(
        "connected-qps",
        &clients(1000).profile(),
        "cib",
        "1000 connected queue pairs",
        None,
    );
    keeps("connected-qps", &clients(100).profile(), "cib");
    let datagrams = Program {
        queue_pairs: 1000,
        ..Program::new(ud(16))
    };
    keeps("connected-qps", &datagrams.profile(), "cib");
}

#[test]
fn huge_pages() {
    let with = |registered_bytes, huge_page_bytes| OperationProfile {
        memory: Memory {
            registered_bytes,
            huge_page_bytes,
        },
        ..Program::new(ud(8)).profile()
    };
    breaks(
        "huge-pages",
        &with(1 << 30, 0),
        "cib",
        "1024 MiB of registered memory",
        None,
    );
    keeps("huge-pages", &with(1 << 30, 1 << 30), "cib");
    keeps("huge-pages", &with(1 << 20, 0), "cib");
}

#[test]
fn advice_comes_by_gain_and_each_guideline_has_a_name_and_a_place() {
    let mut observed = Program {
        postlist: 1,
        ..Program::new(ud(61).signaled(1.0))
    }
    .profile();
    observed.memory.registered_bytes = 1 << 30;
    let advice = advise(&observed, nic("cib")).expect("possible");
    let gains: Vec<_> = advice
        .iter()
        .map(|a| a.gain.map_or(f64::NEG_INFINITY, |g| g.relative))
        .collect();
    assert!(gains.len() >= 4, "{advice:?}");
    assert!(gains.is_sorted_by(|a, b| a >= b), "{gains:?}");
    let mut names: Vec<_> = ALL.iter().map(|guideline| guideline.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), ALL.len());
    for guideline in ALL {
        assert!(
            guideline.section.starts_with("ATC'16, section"),
            "{}",
            guideline.name
        );
        assert!(guideline.rule.ends_with('.'), "{}", guideline.name);
    }
}
