//! Completion events and shared receive queues of simulated NICs.

use std::cell::RefCell;
use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::rc::Rc as Shared;
use std::time::Duration;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use simnic::Cluster;
use verbs::{
    Access, CompletionChannel, CompletionQueue, EventError, MemoryRegion, PreparedQp, Provider,
    QueuePair, Rc, SharedReceiveQueue, WcBuffer,
};

const MESSAGE_BYTES: usize = 16;

/// One machine with a completion channel, and with queue pairs that share a receive queue.
struct Side {
    channel: CompletionChannel,
    cq: CompletionQueue,
    srq: SharedReceiveQueue,
    qps: Vec<QueuePair<Rc>>,
    memory: MemoryRegion,
}

impl Side {
    fn post_recvs(&self, count: usize) {
        let mut list = self.srq.recv_list(count);
        for place in 0..count {
            let at = place * MESSAGE_BYTES;
            let part = self.memory.slice(at..at + MESSAGE_BYTES).expect("in range");
            list.recv(part, place as u64);
        }
        self.srq.post_recv(&mut list).expect("the queue has room");
    }

    /// Sends `number` on a queue pair.
    fn send(&self, qp: usize, number: u64, solicited: bool) {
        let at = self.memory.len() - MESSAGE_BYTES;
        self.memory.write_u64(at, number).expect("in range");
        let message = self.memory.slice(at..).expect("in range");
        let posted = self.qps[qp].post_one(|list| {
            let wr = list.send(message);
            if solicited {
                wr.solicited();
            }
        });
        posted.expect("the send queue has room");
    }

    /// Takes the completions that are there: the numbers of received messages with the index of their queue pair.
    fn received(&self) -> Vec<(usize, u64)> {
        let mut wcs = WcBuffer::<8>::new();
        let polled = self.cq.poll(&mut wcs).expect("no overrun");
        let received = polled.map(|wc| {
            let wc = wc.map_err(|wc| wc.status()).expect("success");
            let qpn = wc.qp_num();
            let qp = self.qps.iter().position(|qp| qp.qpn() == qpn);
            let at = usize::try_from(wc.wr_id()).expect("small") * MESSAGE_BYTES;
            let number = self.memory.read_u64(at).expect("in range");
            (qp.expect("a queue pair of this side"), number)
        });
        received.collect()
    }
}

/// The program of a side.
type Body = Box<dyn FnOnce(&Side)>;

/// Connects `pairs` queue pairs of two machines. Runs `sender` and `receiver` on the two until both have ended.
fn run_two(
    pairs: usize,
    sender: impl FnOnce(&Side) + 'static,
    receiver: impl FnOnce(&Side) + 'static,
) {
    run_threads(pairs, vec![(0, Box::new(sender)), (1, Box::new(receiver))]);
}

/// Does the same for any number of threads, each with its machine: 0 or 1.
fn run_threads(pairs: usize, threads: Vec<(usize, Body)>) {
    let profile = nicmodel::profile::builtin_profile("cib").expect("built in");
    let cluster = Cluster::new(profile, 2, 1).expect("it has all costs");
    let devices = Provider::simnic().devices().expect("two machines");
    let prepared: Vec<_> = devices
        .iter()
        .map(|device| prepare(device, pairs))
        .collect();
    let endpoints: Vec<Vec<_>> = prepared
        .iter()
        .map(|(_, qps)| qps.iter().map(PreparedQp::endpoint).collect())
        .collect();
    let peers = endpoints.iter().rev();
    let sides = prepared
        .into_iter()
        .zip(peers)
        .map(|((mut side, qps), peers)| {
            let connected = qps
                .into_iter()
                .zip(peers)
                .map(|(qp, peer)| qp.connect(peer));
            side.qps = connected.collect::<Result<_, _>>().expect("they connect");
            Shared::new(side)
        });
    let sides: Vec<_> = sides.collect();
    for (machine, body) in threads {
        let side = Shared::clone(&sides[machine]);
        let place = cluster.host_of_machine(machine);
        cluster.spawn(place, format!("thread of machine {machine}"), move || {
            body(&side)
        });
    }
    cluster.run_until_threads_end().expect("both end");
}

fn prepare(device: &verbs::Device, pairs: usize) -> (Side, Vec<PreparedQp<Rc>>) {
    let context = device.open().expect("a machine");
    let pd = context.alloc_pd().expect("a domain");
    let channel = context.create_comp_channel().expect("a descriptor");
    let cq = context
        .create_cq_with_channel(64, &channel)
        .expect("a queue");
    let srq = pd.create_srq(32, 1).expect("a shared receive queue");
    let qps = (0..pairs).map(|_| pd.qp_builder::<Rc>(&cq, &cq).srq(&srq).build());
    let qps = qps.collect::<Result<Vec<_>, _>>().expect("queue pairs");
    let memory = pd.alloc(64 * MESSAGE_BYTES, Access::LOCAL_WRITE);
    let side = Side {
        channel,
        cq,
        srq,
        qps: Vec::new(),
        memory: memory.expect("memory"),
    };
    (side, qps)
}

fn wait(time: Duration) {
    let end = verbs::time::now() + time;
    while verbs::time::now() < end {
        simnic::suspend_while_idle(1_000, None);
    }
}

#[test]
fn queue_pairs_take_recvs_of_a_shared_queue_in_the_order_of_their_messages() {
    run_two(
        3,
        |sender| {
            wait(Duration::from_micros(5));
            for number in 0..9 {
                sender.send(number % 3, number as u64, false);
                // Messages of different queue pairs have no order.
                wait(Duration::from_micros(5));
            }
        },
        |receiver| {
            receiver.post_recvs(9);
            let mut received = Vec::new();
            while received.len() < 9 {
                received.extend(receiver.received());
                simnic::suspend_while_idle(1_000, None);
            }
            let expected: Vec<_> = (0..9).map(|number| (number % 3, number as u64)).collect();
            assert_eq!(received, expected);
        },
    );
}

#[test]
fn an_armed_queue_makes_one_event_and_the_channel_names_the_queue() {
    run_two(
        1,
        |sender| {
            wait(Duration::from_micros(50));
            (0..3).for_each(|number| sender.send(0, number, false));
        },
        |receiver| {
            receiver.post_recvs(3);
            receiver.cq.req_notify(false).expect("armed");
            let event = receiver.channel.wait_for_cq_event().expect("an event");
            assert_eq!(event, receiver.cq.id());
            let now = verbs::time::now();
            assert!(simnic::now().expect("simulated") > Duration::from_micros(50));
            wait(Duration::from_micros(20));
            assert_eq!(receiver.received(), [(0, 0), (0, 1), (0, 2)]);
            let again = Duration::from_micros(100);
            let none = receiver.channel.wait_for_cq_event_timeout(again);
            assert_eq!(
                none.expect("no error"),
                None,
                "the queue was not armed again"
            );
            assert!(verbs::time::now().duration_since(now) >= again);
        },
    );
}

#[test]
fn a_queue_armed_for_solicited_messages_sleeps_through_others() {
    let times = Shared::new(RefCell::new(Vec::new()));
    let list = Shared::clone(&times);
    run_two(
        1,
        |sender| {
            wait(Duration::from_micros(10));
            sender.send(0, 1, false);
            wait(Duration::from_micros(90));
            sender.send(0, 2, true);
        },
        move |receiver| {
            receiver.post_recvs(2);
            receiver.cq.req_notify(true).expect("armed");
            receiver.channel.wait_for_cq_event().expect("an event");
            list.borrow_mut().extend(simnic::now());
            assert_eq!(receiver.received(), [(0, 1), (0, 2)]);
        },
    );
    let woken_at = times.borrow()[0];
    assert!(woken_at > Duration::from_micros(100), "{woken_at:?}");
}

/// IBTA vol. 1, 11.4.2.2: a request for solicited completions does not replace one for the next completion.
#[test]
fn arming_for_solicited_messages_keeps_an_armed_queue_armed_for_all() {
    run_two(
        1,
        |sender| {
            wait(Duration::from_micros(50));
            sender.send(0, 1, false);
        },
        |receiver| {
            receiver.post_recvs(1);
            receiver.cq.req_notify(false).expect("armed");
            receiver.cq.req_notify(true).expect("armed");
            let limit = Duration::from_micros(200);
            let event = receiver.channel.wait_for_cq_event_timeout(limit);
            assert_eq!(event.expect("no error"), Some(receiver.cq.id()));
        },
    );
}

#[test]
fn threads_that_wait_for_one_channel_take_an_event_each() {
    let waits = |receiver: &Side| {
        receiver.channel.wait_for_cq_event().expect("an event");
    };
    let arms_twice = |receiver: &Side| {
        receiver.post_recvs(2);
        for _ in 0..2 {
            receiver.cq.req_notify(false).expect("armed");
            wait(Duration::from_micros(100));
        }
    };
    let sends_twice = |sender: &Side| {
        for number in 0..2 {
            wait(Duration::from_micros(50));
            sender.send(0, number, false);
            wait(Duration::from_micros(50));
        }
    };
    run_threads(
        1,
        vec![
            (0, Box::new(sends_twice)),
            (1, Box::new(arms_twice)),
            (1, Box::new(waits)),
            (1, Box::new(waits)),
        ],
    );
}

#[test]
fn a_descriptor_that_does_not_block_reports_that_nothing_is_there() {
    run_two(
        1,
        |_| {},
        |receiver| {
            let fd = receiver.channel.as_fd();
            let flags = fcntl_getfl(fd).expect("open");
            fcntl_setfl(fd, flags | OFlags::NONBLOCK).expect("open");
            receiver.cq.req_notify(false).expect("armed");
            let error = receiver.channel.wait_for_cq_event().expect_err("no event");
            assert!(matches!(error, EventError::WouldBlock { .. }), "{error:?}");
            let error = std::io::Error::from(error);
            assert_eq!(error.kind(), ErrorKind::WouldBlock);
        },
    );
}

#[test]
fn a_queue_pair_with_a_shared_queue_takes_no_recvs_of_its_own() {
    run_two(
        1,
        |_| {},
        |side| {
            let mut list = side.qps[0].recv_list(1);
            list.recv(side.memory.slice(..MESSAGE_BYTES).expect("in range"), 0);
            assert!(side.qps[0].post_recv(&mut list).is_err());
            let mut list = side.srq.recv_list(33);
            for _ in 0..33 {
                list.recv(side.memory.slice(..MESSAGE_BYTES).expect("in range"), 0);
            }
            let error = side.srq.post_recv(&mut list).expect_err("33 RECVs of 32");
            assert_eq!(error.bad_wr, 32);
        },
    );
}
