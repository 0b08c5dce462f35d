//! Two connected queue pairs on a simulated network, and what the tests do with them.

use std::cell::RefCell;
use std::rc::Rc as Shared;
use std::time::Duration;

use faults::Plan;
use simnic::{Cluster, NicCounters};
use verbs::{
    Access, CompletionQueue, Context, MemoryRegion, ProtectionDomain, Provider, Psn, QpBuilder,
    QueuePair, Rc, RemoteMemory, WcBuffer, WcStatus,
};

/// Bytes of each side's memory.
const MEMORY_BYTES: usize = 4 << 20;

/// One end of a connection.
pub(crate) struct Side {
    pub(crate) qp: QueuePair<Rc>,
    pub(crate) cq: CompletionQueue,
    pub(crate) memory: MemoryRegion,
    /// Memory of the other side.
    pub(crate) remote: RemoteMemory,
}

impl Side {
    pub(crate) fn post_recvs(&self, count: usize, bytes: usize) {
        let mut list = self.qp.recv_list(count);
        for place in 0..count {
            let part = self.memory.slice(place * bytes..(place + 1) * bytes);
            list.recv(part.expect("in range"), place as u64);
        }
        self.qp.post_recv(&mut list).expect("the queue has room");
    }

    /// SENDs the first `bytes` of the memory, signaled.
    pub(crate) fn send(&self, wr_id: u64, bytes: usize) {
        let message = self.memory.slice(..bytes).expect("in range");
        let posted = self.qp.post_one(|list| {
            list.send(message).wr_id(wr_id).signaled();
        });
        posted.expect("the send queue has room");
    }

    /// Waits for `count` completions; returns their identifiers with the status of failures, and the time of the last.
    pub(crate) fn completions(&self, count: usize) -> (Vec<(u64, Option<WcStatus>)>, Duration) {
        let mut wcs = WcBuffer::<8>::new();
        let mut all = Vec::new();
        while all.len() < count {
            let polled = self.cq.poll(&mut wcs).expect("no overrun");
            all.extend(polled.map(|wc| match wc {
                Ok(wc) => (wc.wr_id(), None),
                Err(wc) => (wc.wr_id(), Some(wc.status())),
            }));
            simnic::suspend_while_idle(500, None);
            let now = simnic::now().expect("simulated");
            assert!(now < Duration::from_secs(2), "only {all:?} of {count}");
        }
        (all, simnic::now().expect("simulated"))
    }
}

/// The completions of `count` work requests that are numbered from 0 and succeed in order.
pub(crate) fn successes(count: u64) -> Vec<(u64, Option<WcStatus>)> {
    (0..count).map(|number| (number, None)).collect()
}

/// The configuration of a test's cluster.
#[derive(Default)]
pub(crate) struct Setup {
    pub(crate) plan: Option<&'static str>,
    pub(crate) seed: u64,
    /// The receiver expects an earlier PSN than the sender's.
    pub(crate) wrong_psn: bool,
    /// Attributes of both queue pairs.
    pub(crate) qp: Option<fn(QpBuilder<Rc>) -> QpBuilder<Rc>>,
}

/// Runs two connected threads until both have ended; returns the counters of the sender's NIC and the receiver's.
pub(crate) fn run(
    setup: &Setup,
    sender: impl FnOnce(&Side) + 'static,
    receiver: impl FnOnce(&Side) + 'static,
) -> [NicCounters; 2] {
    let kept = Shared::new(RefCell::new(None));
    let keep = Shared::clone(&kept);
    // Both queue pairs stay until both threads have ended.
    run_owned(setup, sender, move |side| {
        receiver(&side);
        *keep.borrow_mut() = Some(side);
    })
}

/// Runs a sender whose peer destroys its queue pair 1 µs after the start, while it responds.
pub(crate) fn run_and_drop_receiver(setup: &Setup, sender: impl FnOnce(&Side) + 'static) {
    run_owned(setup, sender, |side| {
        wait(Duration::from_nanos(1_000));
        drop(side);
    });
}

/// Does the same as [`run`] with a receiver that owns its side.
pub(crate) fn run_owned(
    setup: &Setup,
    sender: impl FnOnce(&Side) + 'static,
    receiver: impl FnOnce(Side) + 'static,
) -> [NicCounters; 2] {
    let profile = nicmodel::profile::builtin_profile("cib").expect("built in");
    let cluster = Cluster::new(profile, 2, 1).expect("it has all costs");
    if let Some(plan) = setup.plan {
        let plan: Plan = plan.parse().expect("a plan");
        cluster
            .inject_faults(&plan, setup.seed)
            .expect("a network can do this");
    }
    let devices = Provider::simnic().devices().expect("two machines");
    let prepared = devices.iter().map(|device| {
        let pd = open(device).alloc_pd().expect("a domain");
        let cq = pd.context().create_cq(256).expect("a queue");
        let builder = pd.qp_builder::<Rc>(&cq, &cq);
        let builder = match setup.qp {
            Some(set) => set(builder),
            None => builder,
        };
        let memory = pd.alloc(MEMORY_BYTES, Access::ALL).expect("memory");
        (builder.build().expect("a queue pair"), cq, memory)
    });
    let Ok([a, b]) = <[_; 2]>::try_from(prepared.collect::<Vec<_>>()) else {
        panic!("two machines")
    };
    let (mut to_a, to_b) = (a.0.endpoint(), b.0.endpoint());
    if setup.wrong_psn {
        to_a.psn = Psn(to_a.psn.0.wrapping_sub(1) & 0xff_ffff);
    }
    let (mem_a, mem_b) = (a.2.remote(), b.2.remote());
    let side = |(qp, cq, memory): (verbs::PreparedQp<Rc>, _, _), peer, remote| Side {
        qp: qp.connect(peer).expect("it connects"),
        cq,
        memory,
        remote,
    };
    let (a, b) = (side(a, &to_b, mem_b), side(b, &to_a, mem_a));
    let (home, there) = (cluster.host_of_machine(0), cluster.host_of_machine(1));
    let a = Shared::new(a);
    let sender_side = Shared::clone(&a);
    cluster.spawn(home, "sender", move || sender(&sender_side));
    cluster.spawn(there, "receiver", move || receiver(b));
    cluster.run_until_threads_end().expect("both end");
    drop(a);
    [home, there].map(|machine| cluster.nic_counters(machine))
}

/// Runs one thread on a cluster of one machine, with a domain and a completion queue.
pub(crate) fn run_alone(body: impl FnOnce(&ProtectionDomain, &CompletionQueue) + 'static) {
    let profile = nicmodel::profile::builtin_profile("cib").expect("built in");
    let cluster = Cluster::new(profile, 1, 1).expect("it has all costs");
    let devices = Provider::simnic().devices().expect("a machine");
    let pd = open(&devices[0]).alloc_pd().expect("a domain");
    let cq = pd.context().create_cq(256).expect("a queue");
    cluster.spawn(cluster.host_of_machine(0), "thread", move || body(&pd, &cq));
    cluster.run_until_threads_end().expect("it ends");
}

pub(crate) fn open(device: &verbs::Device) -> Context {
    device.open().expect("a machine")
}

pub(crate) fn wait(time: Duration) {
    let end = simnic::now().expect("simulated") + time;
    while simnic::now().expect("simulated") < end {
        simnic::suspend_while_idle(1_000, None);
    }
}

/// A work request of the property test.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Operation {
    Send(usize),
    Write(usize),
    Read(usize),
    FetchAndAdd,
}

/// Offset of the counter, of the constants for READs, and of the places for WRITEs in the receiver's memory.
pub(crate) const COUNTER_AT: usize = 2 << 20;
pub(crate) const CONSTANTS_AT: usize = COUNTER_AT + 4096;
pub(crate) const WRITES_AT: usize = CONSTANTS_AT + (64 << 10);
/// Largest payload of an operation.
pub(crate) const SLOT_BYTES: usize = 20_000;

pub(crate) fn post(side: &Side, number: usize, operation: Operation) {
    let slot = |bytes: usize| {
        let at = number * SLOT_BYTES;
        side.memory.slice(at..at + bytes).expect("in range")
    };
    let at = |offset: usize| {
        let remote = side.remote.starting_at(offset as u64);
        remote.expect("in range")
    };
    let posted = side.qp.post_one(|list| {
        let wr = match operation {
            Operation::Send(bytes) => list.send(slot(bytes)),
            Operation::Write(bytes) => {
                list.rdma_write(slot(bytes), at(WRITES_AT + number * SLOT_BYTES))
            }
            Operation::Read(bytes) => list.rdma_read(slot(bytes), at(CONSTANTS_AT)),
            Operation::FetchAndAdd => list.atomic_fetch_and_add(slot(8), at(COUNTER_AT), 1),
        };
        wr.wr_id(number as u64).signaled();
    });
    posted.expect("the send queue has room");
}
