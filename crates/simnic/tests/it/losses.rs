//! Networks that lose and delay messages.

use std::cell::RefCell;
use std::rc::Rc as Shared;
use std::time::Duration;

use faults::Plan;
use simnic::Cluster;
use verbs::{Access, Provider, Rc, Ud, WcBuffer};

use crate::scene::{Operation, Setup, Side, open, post, run, successes, wait};

#[test]
fn a_gap_is_reported_at_once_and_a_lost_last_message_by_the_timeout() {
    let times = Shared::new(RefCell::new(Vec::new()));
    for plan in ["drop,count=1", "drop,after=1,count=1"] {
        let list = Shared::clone(&times);
        let setup = Setup {
            plan: Some(plan),
            // 1 ms.
            qp: Some(|qp| qp.timeout(8u8)),
            ..Setup::default()
        };
        run(
            &setup,
            move |side| {
                wait(Duration::from_micros(10));
                (0..2).for_each(|number| side.send(number, 8));
                let (completed, at) = side.completions(2);
                assert_eq!(completed, [(0, None), (1, None)]);
                list.borrow_mut().push(at);
            },
            |side| side.post_recvs(2, 8),
        );
    }
    let [gap, last] = times.borrow()[..] else {
        panic!("two runs")
    };
    assert!(gap < Duration::from_micros(30), "{gap:?}");
    assert!(last > Duration::from_millis(1), "{last:?}");
}

#[test]
fn a_lost_acknowledgement_costs_nothing_if_a_later_one_comes() {
    let times = Shared::new(RefCell::new(Vec::new()));
    for count in [1, 2] {
        let list = Shared::clone(&times);
        let setup = Setup {
            plan: Some("drop,opcode=ACK,count=1"),
            qp: Some(|qp| qp.timeout(8u8)),
            ..Setup::default()
        };
        let [sender, receiver] = run(
            &setup,
            move |side| {
                wait(Duration::from_micros(10));
                (0..count).for_each(|number| side.send(number, 8));
                let (completed, at) = side.completions(usize::try_from(count).expect("small"));
                assert!(completed.iter().all(|(_, status)| status.is_none()));
                list.borrow_mut().push(at);
            },
            |side| side.post_recvs(4, 8),
        );
        assert_eq!(
            receiver.received_messages, count,
            "nothing is received twice"
        );
        assert_eq!(receiver.lost_messages, 1);
        assert_eq!(sender.wasted_sends, u64::from(count == 1));
    }
    let [alone, followed] = times.borrow()[..] else {
        panic!("two runs")
    };
    assert!(alone > Duration::from_millis(1), "{alone:?}");
    assert!(followed < Duration::from_micros(30), "{followed:?}");
}

#[test]
fn a_large_message_goes_on_behind_its_lost_packets() {
    // 256 packets, of which 5 % are lost: no message would ever arrive whole.
    let setup = Setup {
        plan: Some("drop,p=0.05"),
        seed: 3,
        ..Setup::default()
    };
    let [sender, _] = run(
        &setup,
        |side| {
            let bytes = 1 << 20;
            for at in (0..bytes).step_by(8) {
                side.memory.write_u64(at, at as u64).expect("in range");
            }
            let message = side.memory.slice(..bytes).expect("in range");
            let remote = side.remote;
            let posted = side.qp.post_one(|list| {
                list.rdma_write(message, remote).wr_id(1).signaled();
            });
            posted.expect("the send queue has room");
            assert_eq!(side.completions(1).0, [(1, None)]);
            let back = side.memory.slice(bytes..2 * bytes).expect("in range");
            let posted = side.qp.post_one(|list| {
                list.rdma_read(back, remote).wr_id(2).signaled();
            });
            posted.expect("the send queue has room");
            assert_eq!(side.completions(1).0, [(2, None)]);
            for at in (0..bytes).step_by(8) {
                let back = side.memory.read_u64(bytes + at).expect("in range");
                assert_eq!(back, at as u64);
            }
        },
        |_| {},
    );
    assert!(sender.wasted_sends > 10, "{sender:?}");
}

#[test]
fn a_lost_response_of_a_read_costs_no_timeout_if_others_follow() {
    for plan in [
        "drop,opcode=READ_RESPONSE,count=1",
        "drop,opcode=READ_RESPONSE,after=1,count=1",
    ] {
        let setup = Setup {
            plan: Some(plan),
            // No timeout.
            qp: Some(|qp| qp.timeout(0u8)),
            ..Setup::default()
        };
        run(
            &setup,
            |side| {
                let operations = [
                    Operation::Read(8),
                    Operation::Read(8),
                    Operation::Write(8),
                    Operation::Read(8),
                    Operation::Write(8),
                ];
                for (number, operation) in operations.into_iter().enumerate() {
                    post(side, number, operation);
                }
                let (completed, at) = side.completions(5);
                assert_eq!(completed, successes(5));
                assert!(at < Duration::from_micros(30), "{at:?}");
            },
            |_| {},
        );
    }
}

#[test]
fn responses_that_are_lost_together_cost_no_timeout() {
    for plan in [
        "drop,opcode=READ_RESPONSE,after=3,count=1; drop,opcode=READ_RESPONSE,after=20,count=1",
        "drop,opcode=READ_RESPONSE,every=9,count=4",
        "drop,opcode=READ_RESPONSE,after=3,count=2; drop,opcode=RDMA_READ,after=6,count=1",
    ] {
        let setup = Setup {
            plan: Some(plan),
            // No timeout.
            qp: Some(|qp| qp.timeout(0u8)),
            ..Setup::default()
        };
        run(
            &setup,
            |side| {
                (0..48).for_each(|number| post(side, number, Operation::Read(8)));
                // The last response is not lost, so that it shows all gaps.
                let (completed, at) = side.completions(48);
                assert_eq!(completed, successes(48));
                assert!(at < Duration::from_micros(60), "{at:?}");
            },
            |_| {},
        );
    }
}

/// Messages between a host and its DPU use no port, so that they have no time on the wire.
#[test]
fn a_large_message_behind_a_gap_between_dpu_and_host_arrives() {
    const BYTES: usize = 1 << 20;
    let profile = nicmodel::profile::builtin_profile("bf2").expect("built in");
    let cluster = Cluster::new(profile, 1, 1).expect("it has all costs");
    let devices = Provider::simnic().devices().expect("a host and a DPU");
    let [(host, host_cq, host_memory), (dpu, cq, memory)] = [0, 1].map(|index| {
        let pd = open(&devices[index]).alloc_pd().expect("a domain");
        let cq = pd.context().create_cq(16).expect("a queue");
        let qp = pd.qp_builder::<Rc>(&cq, &cq).timeout(4u8).build();
        let memory = pd.alloc(BYTES, Access::ALL).expect("memory");
        (qp.expect("a queue pair"), cq, memory)
    });
    let (to_host, to_dpu) = (host.endpoint(), dpu.endpoint());
    let side = Side {
        qp: dpu.connect(&to_host).expect("it connects"),
        cq,
        memory,
        remote: host_memory.remote(),
    };
    let place = cluster.host_or_dpu_of_machine(0, nicmodel::profile::CorePlace::Dpu);
    cluster.spawn(place.expect("it has a DPU"), "sender", move || {
        let write = |number: u64, bytes: usize| {
            let message = side.memory.slice(..bytes).expect("in range");
            let posted = side.qp.post_one(|list| {
                list.rdma_write(message, side.remote)
                    .wr_id(number)
                    .signaled();
            });
            posted.expect("the send queue has room");
        };
        // The host is not ready yet.
        write(0, 8);
        simnic::suspend_while_idle(500, None);
        let host = host.connect(&to_dpu).expect("it connects");
        write(1, BYTES);
        assert_eq!(side.completions(2).0, successes(2));
        drop((host, host_cq, host_memory));
    });
    cluster.run_until_threads_end().expect("it ends");
}

#[test]
fn a_delayed_message_delays_no_other_queue_pair() {
    // The second queue pair is the receiver's: its acknowledgement is late, and nothing else.
    let setup = Setup {
        plan: Some("delay=1ms,opcode=SEND,count=1"),
        ..Setup::default()
    };
    run(
        &setup,
        |side| {
            side.send(0, 8);
            let (completed, at) = side.completions(1);
            assert_eq!(completed, [(0, None)]);
            assert!(at > Duration::from_millis(1), "{at:?}");
        },
        |side| {
            side.post_recvs(1, 8);
            wait(Duration::from_micros(100));
            let message = side.memory.slice(..8).expect("in range");
            let remote = side.remote;
            let posted = side.qp.post_one(|list| {
                list.rdma_write(message, remote).wr_id(7).signaled();
            });
            posted.expect("the send queue has room");
            let (completed, at) = side.completions(1);
            assert_eq!(completed, [(7, None)]);
            assert!(at < Duration::from_micros(110), "{at:?}");
        },
    );
}

#[test]
fn lost_datagrams_are_counted_and_not_sent_again() {
    const COUNT: usize = 100;
    let profile = nicmodel::profile::builtin_profile("cib").expect("built in");
    let cluster = Cluster::new(profile, 2, 1).expect("it has all costs");
    let plan: Plan = "drop,p=0.2".parse().expect("a plan");
    cluster
        .inject_faults(&plan, 5)
        .expect("a network can do this");
    let devices = Provider::simnic().devices().expect("two machines");
    let qps = devices.iter().map(|device| {
        let pd = open(device).alloc_pd().expect("a domain");
        let cq = pd.context().create_cq(256).expect("a queue");
        let qp = pd.qp_builder::<Ud>(&cq, &cq).build().expect("a queue pair");
        let endpoint = qp.endpoint();
        (qp, endpoint, cq, pd)
    });
    let Ok([a, b]) = <[_; 2]>::try_from(qps.collect::<Vec<_>>()) else {
        panic!("two machines")
    };
    let memory = b.3.alloc(COUNT * 48, Access::LOCAL_WRITE).expect("memory");
    let mut list = b.0.recv_list(COUNT);
    for place in 0..COUNT {
        let part = memory.slice(place * 48..(place + 1) * 48);
        list.recv(part.expect("in range"), place as u64);
    }
    b.0.post_recv(&mut list).expect("the queue has room");
    let (home, there) = (cluster.host_of_machine(0), cluster.host_of_machine(1));
    cluster.spawn(home, "sender", move || {
        let to = a.3.ud_destination(1, &b.1).expect("a machine");
        for number in 0..COUNT {
            let last = number + 1 == COUNT;
            let posted = a.0.post_one(|list| {
                let wr = list.send(verbs::Inline(&number.to_ne_bytes()), &to);
                if last {
                    wr.signaled();
                }
            });
            posted.expect("the send queue has room");
        }
        let mut wcs = WcBuffer::<1>::new();
        while a.2.poll(&mut wcs).expect("no overrun").is_empty() {
            simnic::suspend_while_idle(500, None);
        }
    });
    cluster.run_until_threads_end().expect("it ends");
    let (sender, receiver) = (cluster.nic_counters(home), cluster.nic_counters(there));
    assert!((5..40).contains(&sender.lost_messages), "{sender:?}");
    assert_eq!(sender.wasted_sends, 0);
    assert_eq!(
        sender.lost_messages + receiver.received_messages,
        COUNT as u64
    );
    let [rule] = cluster.fault_counts()[..] else {
        panic!("one rule")
    };
    assert_eq!((rule.matched, rule.struck), (100, sender.lost_messages));
}

/// A port of a Connect-IB carries 6.8 GB/s. With 1 % of packets lost, a queue pair without retries in order, or one
/// that sends its whole window again, has less than a third of that.
#[test]
fn a_loss_costs_about_a_round_trip_and_not_a_window() {
    const BYTES: usize = 4096;
    const WINDOW: usize = 64;
    for operation in [Operation::Write(BYTES), Operation::Read(BYTES)] {
        let setup = Setup {
            plan: Some("drop,p=0.01"),
            seed: 1,
            ..Setup::default()
        };
        let completed = Shared::new(RefCell::new(0));
        let count = Shared::clone(&completed);
        let end = Duration::from_millis(5);
        run(
            &setup,
            move |side| {
                let mut posted = 0;
                while simnic::now().expect("simulated") < end {
                    while posted - *count.borrow() < WINDOW {
                        post(side, posted % WINDOW, operation);
                        posted += 1;
                    }
                    let (more, _) = side.completions(1);
                    assert!(more.iter().all(|(_, status)| status.is_none()), "{more:?}");
                    *count.borrow_mut() += more.len();
                }
            },
            |_| {},
        );
        let bytes_per_us = *completed.borrow() * BYTES / 5_000;
        assert!(bytes_per_us > 5_000, "{operation:?}: {bytes_per_us} MB/s");
    }
}
