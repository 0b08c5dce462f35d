//! What a host and its DPU are to each other and to other machines, one READ at a time.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use nicmodel::profile::{Place, Profile, builtin};
use verbs::{Access, QueuePair, RemoteMemory, Waiter, WcBuffer};

use super::Bed;

type End = (usize, Place);

const WORD: u64 = 0x1234_5678_9abc_def0;

fn bf2() -> &'static Profile {
    builtin("bf2").expect("built in")
}

/// Reads a word from the memory of `to` over a queue pair of `from`, connected to one of `through`: how long it took and
/// what was read, or why it failed.
fn read(bed: &Bed, from: End, through: End, to: End) -> Result<(Duration, u64), String> {
    let access = Access::LOCAL_WRITE | Access::REMOTE_READ;
    let at = |(machine, place)| bed.at(machine, place).expect("it is there").0;
    let (here, there) = (
        at(from).alloc_pd().expect("a PD"),
        at(through).alloc_pd().expect("a PD"),
    );
    let owner = at(to).alloc_pd().expect("a PD");
    let memory = owner.alloc(8, access).expect("memory");
    memory.write_u64(0, WORD).expect("a word");
    let (cq, there_cq) = (
        at(from).create_cq(1).expect("a CQ"),
        at(through).create_cq(1).expect("a CQ"),
    );
    let qp = here.qp::<verbs::Rc>(&cq, &cq).max_send_wr(1).build();
    let peer = there.qp::<verbs::Rc>(&there_cq, &there_cq).access(access);
    let (qp, peer) = (qp.expect("a QP"), peer.build().expect("a QP"));
    let (here_end, there_end) = (qp.endpoint(), peer.endpoint());
    let qp = qp.connect(&there_end).expect("it connects");
    let _peer = peer.connect(&here_end).expect("it connects");
    let result = Rc::new(RefCell::new(None));
    let (told, remote) = (Rc::clone(&result), memory.remote());
    let cores = bed.at(from.0, from.1).expect("it is there").1;
    bed.cluster.spawn(cores, "reads", move || {
        *told.borrow_mut() = Some(read_once(qp, remote, &here));
    });
    bed.finish().expect("it ends");
    result.take().expect("it was read")
}

fn read_once(
    qp: QueuePair<verbs::Rc>,
    remote: RemoteMemory,
    pd: &verbs::ProtectionDomain,
) -> Result<(Duration, u64), String> {
    let into = pd.alloc(8, Access::LOCAL_WRITE).expect("memory");
    let begun = verbs::time::now();
    let mut list = qp.postlist(1);
    list.rdma_read(into.slice(0..8).expect("in it"), remote)
        .signaled();
    qp.post_send(&mut list).expect("posted");
    let (mut buffer, mut waiter) = (WcBuffer::<1>::new(), Waiter::never_sleeping());
    loop {
        match qp.send_cq().poll(&mut buffer).expect("polled").next() {
            Some(Ok(_)) => break,
            Some(Err(failed)) => return Err(failed.to_string()),
            None => waiter.idle(),
        }
    }
    let took = verbs::time::now() - begun;
    Ok((took, into.read_u64(0).expect("in it")))
}

#[test]
fn memory_of_a_dpu_is_nearer_than_the_hosts_and_no_network_is_between_them() {
    let bed = Bed::new(bf2(), 2, 1).expect("it can be simulated");
    let (host, dpu) = ((0, Place::Host), (0, Place::Dpu));
    let (far_host, far_dpu) = ((1, Place::Host), (1, Place::Dpu));
    let took = |from, to| {
        let (took, word) = read(&bed, from, to, to).expect("it can be read");
        assert_eq!(word, WORD);
        took
    };
    let (to_host, to_dpu) = (took(host, far_host), took(host, far_dpu));
    assert!(to_dpu < to_host, "{to_dpu:?} {to_host:?}");
    let network = bf2().port.latency_ns.as_ref().expect("known").value;
    let network = Duration::from_secs_f64(2.0 * network * 1e-9);
    let (to_own, back) = (took(host, dpu), took(dpu, host));
    assert!(to_dpu - to_own >= network, "{to_own:?} {to_dpu:?}");
    // An Arm core takes longer for what it does.
    assert!(to_dpu - back >= network / 2, "{back:?} {to_dpu:?}");
}

#[test]
fn memory_belongs_to_the_place_where_it_was_registered() {
    let (host, dpu) = ((1, Place::Host), (1, Place::Dpu));
    for (through, to) in [(host, dpu), (dpu, host)] {
        let bed = Bed::new(bf2(), 2, 1).expect("it can be simulated");
        let refused = read(&bed, (0, Place::Host), through, to).expect_err("another place's");
        assert!(refused.contains("remote access error"), "{refused}");
    }
}

#[test]
fn a_nic_without_a_dpu_has_no_such_place() {
    let cib = builtin("cib").expect("built in");
    let bed = Bed::new(cib, 2, 1).expect("it can be simulated");
    assert!(bed.cluster.at(1, Place::Dpu).is_none());
    let error = bed.at(1, Place::Dpu).expect_err("no DPU").to_string();
    assert!(error.contains("has no DPU"), "{error}");
    assert_eq!(bed.contexts.len(), 2);
}

#[test]
fn devices_are_named_by_machine_and_place() {
    let bed = Bed::new(bf2(), 2, 1).expect("it can be simulated");
    let names = |contexts: &[verbs::Context]| {
        let names = contexts
            .iter()
            .map(|context| context.device_name().to_owned());
        names.collect::<Vec<_>>()
    };
    assert_eq!(names(&bed.contexts), ["sim0", "sim1"]);
    assert_eq!(names(&bed.dpus), ["sim0_dpu", "sim1_dpu"]);
    let cores = |place| bed.cluster.cores(bed.cluster.at(0, place).expect("there"));
    let dpu = bf2().dpu.as_ref().expect("it has one").cores.value;
    assert_eq!(cores(Place::Host), bf2().host.cores.value);
    assert_eq!(cores(Place::Dpu), dpu);
}

/// Bytes of a cache line.
const LINE: u64 = 64;

/// The look-ups that the memory of `bf2`'s DPU was fitted with: nodes of 2 KiB, a header and entries of 16 bytes, 70 % full.
/// A binary search touches the header, and then one of 1, 2, 4, 8 and 16 lines.
mod walk {
    pub(super) const ENTRIES: u64 = (2048 - 64) / 16 * 7 / 10;
    pub(super) const STEPS: [u64; 6] = [1, 1, 2, 4, 8, 16];
    /// What a host's core compares in a node, fitted together with `dpu.memory_ns`.
    pub(super) const NODE_NS: f64 = 31.6;
}

/// Working sets of the steps of a look-up among so many keys, and the levels of the tree: a step competes with all that are
/// touched as often or more often.
fn working_sets(keys: u64) -> (Vec<u64>, u32) {
    let (mut lines, mut nodes, mut levels) = (Vec::new(), keys, 0);
    while nodes > 1 {
        nodes = nodes.div_ceil(walk::ENTRIES);
        lines.extend(walk::STEPS.map(|choices| nodes * choices));
        levels += 1;
    }
    lines.sort_unstable();
    let sets = lines.iter().scan(0, |sum, lines| {
        *sum += lines * LINE;
        Some(*sum)
    });
    (sets.collect(), levels)
}

/// The time of a look-up by a core of a place, without network, in ns.
fn lookup_ns(place: Place, keys: u64) -> f64 {
    const TIMES: u32 = 100;
    let bed = Bed::new(bf2(), 1, 1).expect("it can be simulated");
    let (sets, levels) = working_sets(keys);
    let took = Rc::new(RefCell::new(Duration::ZERO));
    let told = Rc::clone(&took);
    let cores = bed.at(0, place).expect("it is there").1;
    bed.cluster.spawn(cores, "walks", move || {
        let begun = verbs::time::now();
        for _ in 0..TIMES {
            sets.iter()
                .for_each(|&set| verbs::time::touch_lines(set, 1, 1));
            let work = walk::NODE_NS * f64::from(levels);
            verbs::time::work(Duration::from_secs_f64(work * 1e-9));
        }
        *told.borrow_mut() = verbs::time::now() - begun;
    });
    bed.finish().expect("it ends");
    took.take().as_secs_f64() * 1e9 / f64::from(TIMES)
}

/// Local look-ups of the study on all cores of the DPU. What is printed for 256 M keys, 2 M/s, seems to be swapped with
/// the 2.5 M/s by RPC, which does the same and more.
#[test]
fn local_lookups_on_a_dpu_are_as_fast_as_published() {
    let dpu = bf2().dpu.as_ref().expect("it has one");
    let mops = |keys| f64::from(dpu.cores.value) * 1e3 / lookup_ns(Place::Dpu, keys);
    for (keys, id) in [
        (1_000_000, "dpu_bt_local_small"),
        (256_000_000, "dpu_bt_rpc_256m"),
    ] {
        let printed = nicmodel::published::get(id).expect("published").value;
        let ours = mops(keys);
        assert!(
            (ours / printed - 1.0).abs() < 0.03,
            "{id}: {ours} for {printed}"
        );
    }
    // Smaller trees fit caches better, and the host's are larger.
    assert!(mops(250_000) > 1.2 * mops(1_000_000));
    assert!(lookup_ns(Place::Host, 1_000_000) < lookup_ns(Place::Dpu, 1_000_000) / 3.0);
}
