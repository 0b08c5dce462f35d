//! Distances between a host, its DPU and other machines, measured by one READ at a time.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use nicmodel::profile::{CorePlace, Profile, builtin_profile};
use verbs::{Access, QueuePair, RemoteMemory, Waiter, WcBuffer};

use super::SimulatedCluster;

type MachineAndPlace = (usize, CorePlace);

const WORD_TO_READ: u64 = 0x1234_5678_9abc_def0;

fn bluefield2_profile() -> &'static Profile {
    builtin_profile("bf2").expect("built in")
}

/// READs a word from the memory of `to` over a queue pair of `from` that is connected to a queue
/// pair of `through`. Returns the time and the word, or the reason of a failure.
fn read_word_through(
    cluster: &SimulatedCluster,
    from: MachineAndPlace,
    through: MachineAndPlace,
    to: MachineAndPlace,
) -> Result<(Duration, u64), String> {
    let access = Access::LOCAL_WRITE | Access::REMOTE_READ;
    let at = |(machine, place)| {
        cluster
            .context_and_machine(machine, place)
            .expect("it is there")
            .0
    };
    let (here, there) = (
        at(from).alloc_pd().expect("a PD"),
        at(through).alloc_pd().expect("a PD"),
    );
    let owner = at(to).alloc_pd().expect("a PD");
    let memory = owner.alloc(8, access).expect("memory");
    memory.write_u64(0, WORD_TO_READ).expect("a word");
    let (cq, there_cq) = (
        at(from).create_cq(1).expect("a CQ"),
        at(through).create_cq(1).expect("a CQ"),
    );
    let qp = here
        .qp_builder::<verbs::Rc>(&cq, &cq)
        .max_send_wr(1)
        .build();
    let peer = there
        .qp_builder::<verbs::Rc>(&there_cq, &there_cq)
        .access(access);
    let (qp, peer) = (qp.expect("a QP"), peer.build().expect("a QP"));
    let (here_end, there_end) = (qp.endpoint(), peer.endpoint());
    let qp = qp.connect(&there_end).expect("it connects");
    let _peer = peer.connect(&here_end).expect("it connects");
    let result = Rc::new(RefCell::new(None));
    let (told, remote) = (Rc::clone(&result), memory.remote());
    let cores = cluster
        .context_and_machine(from.0, from.1)
        .expect("it is there")
        .1;
    cluster.simulation.spawn(cores, "reads", move || {
        *told.borrow_mut() = Some(read_once(qp, remote, &here));
    });
    cluster.run_until_threads_end().expect("it ends");
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
    let cluster = SimulatedCluster::new(bluefield2_profile(), 2, 1).expect("it can be simulated");
    let (host, dpu) = ((0, CorePlace::Host), (0, CorePlace::Dpu));
    let (far_host, far_dpu) = ((1, CorePlace::Host), (1, CorePlace::Dpu));
    let took = |from, to| {
        let (took, word) = read_word_through(&cluster, from, to, to).expect("it can be read");
        assert_eq!(word, WORD_TO_READ);
        took
    };
    let (to_host, to_dpu) = (took(host, far_host), took(host, far_dpu));
    assert!(to_dpu < to_host, "{to_dpu:?} {to_host:?}");
    let network = bluefield2_profile()
        .port
        .latency_ns
        .as_ref()
        .expect("known")
        .value;
    let network = Duration::from_secs_f64(2.0 * network * 1e-9);
    let (to_own, back) = (took(host, dpu), took(dpu, host));
    assert!(to_dpu - to_own >= network, "{to_own:?} {to_dpu:?}");
    // The Arm core takes longer for its own work.
    assert!(to_dpu - back >= network / 2, "{back:?} {to_dpu:?}");
}

#[test]
fn memory_belongs_to_the_place_where_it_was_registered() {
    let (host, dpu) = ((1, CorePlace::Host), (1, CorePlace::Dpu));
    for (through, to) in [(host, dpu), (dpu, host)] {
        let cluster =
            SimulatedCluster::new(bluefield2_profile(), 2, 1).expect("it can be simulated");
        let refused = read_word_through(&cluster, (0, CorePlace::Host), through, to)
            .expect_err("another place's");
        assert!(refused.contains("remote access error"), "{refused}");
    }
}

#[test]
fn a_nic_without_a_dpu_has_no_dpu_place() {
    let cib = builtin_profile("cib").expect("built in");
    let cluster = SimulatedCluster::new(cib, 2, 1).expect("it can be simulated");
    assert!(
        cluster
            .simulation
            .host_or_dpu_of_machine(1, CorePlace::Dpu)
            .is_none()
    );
    let error = cluster
        .context_and_machine(1, CorePlace::Dpu)
        .expect_err("no DPU")
        .to_string();
    assert!(error.contains("has no DPU"), "{error}");
    assert_eq!(cluster.host_contexts.len(), 2);
}

#[test]
fn devices_are_named_by_machine_and_place() {
    let cluster = SimulatedCluster::new(bluefield2_profile(), 2, 1).expect("it can be simulated");
    let names = |contexts: &[verbs::Context]| {
        let names = contexts
            .iter()
            .map(|context| context.device_name().to_owned());
        names.collect::<Vec<_>>()
    };
    assert_eq!(names(&cluster.host_contexts), ["sim0", "sim1"]);
    assert_eq!(names(&cluster.dpu_contexts), ["sim0_dpu", "sim1_dpu"]);
    let cores = |place| {
        cluster.simulation.core_count(
            cluster
                .simulation
                .host_or_dpu_of_machine(0, place)
                .expect("there"),
        )
    };
    let dpu = bluefield2_profile()
        .dpu
        .as_ref()
        .expect("it has one")
        .cores
        .value;
    assert_eq!(
        cores(CorePlace::Host),
        bluefield2_profile().host.cores.value
    );
    assert_eq!(cores(CorePlace::Dpu), dpu);
}
