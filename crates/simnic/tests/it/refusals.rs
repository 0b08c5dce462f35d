//! Requests that a NIC or its responder refuses.

use std::cell::RefCell;
use std::rc::Rc as Shared;
use std::time::Duration;

use verbs::{Access, CompletionQueue, QueuePair, Transport, Uc, Ud, WcBuffer, WcStatus};

use crate::scene::{Setup, WRITES_AT, run, run_alone, successes, wait};

#[test]
fn after_a_remote_error_all_later_work_requests_are_flushed_in_order() {
    run(
        &Setup::default(),
        |side| {
            let mut wrong = side.remote;
            wrong.rkey = verbs::RKey(wrong.rkey.0 + 100);
            for number in 0..5 {
                let to = if number == 1 { wrong } else { side.remote };
                let message = side.memory.slice(..8).expect("in range");
                let posted = side.qp.post_one(|list| {
                    list.rdma_write(message, to).wr_id(number).signaled();
                });
                posted.expect("the send queue has room");
            }
            let (mut completed, _) = side.completions(5);
            // A queue pair in error flushes at once.
            side.send(5, 8);
            completed.extend(side.completions(1).0);
            let flushed = Some(WcStatus::WrFlushErr);
            let expected = [
                (0, None),
                (1, Some(WcStatus::RemAccessErr)),
                (2, flushed),
                (3, flushed),
                (4, flushed),
                (5, flushed),
            ];
            assert_eq!(completed, expected);
        },
        |_| {},
    );
}

/// The simulation writes the data of a READ to one buffer, and fences nothing. It must not seem to do either.
#[test]
fn posts_that_are_not_simulated_are_refused() {
    run(
        &Setup {
            qp: Some(|qp| qp.max_send_sge(2)),
            ..Setup::default()
        },
        |side| {
            let buffers = [0, 64].map(|at| side.memory.slice(at..at + 8).expect("in range"));
            let scattered = side.qp.post_one(|list| {
                list.rdma_read(buffers, side.remote).signaled();
            });
            let error = scattered.expect_err("two buffers");
            assert_eq!(error.errno(), libc::EINVAL);
            let fenced = side.qp.post_one(|list| {
                list.send(buffers[0]).fence().signaled();
            });
            assert_eq!(fenced.expect_err("a fence").errno(), libc::EOPNOTSUPP);
            // Both leave the queue pair as it was. A WRITE gathers several buffers.
            let posted = side.qp.post_one(|list| {
                list.rdma_write(buffers, side.remote).wr_id(0).signaled();
            });
            posted.expect("the send queue has room");
            assert_eq!(side.completions(1).0, successes(1));
        },
        |_| {},
    );
}

/// A SEND without a RECV is dropped, and its payload and RECV cross no link, however often it comes.
#[test]
fn a_send_that_finds_no_recv_costs_its_receiver_no_transfers() {
    let read_bytes = [0, 100].map(|late_us| {
        let [_, receiver] = run(
            &Setup {
                // 10 µs.
                qp: Some(|qp| qp.min_rnr_timer(1)),
                ..Setup::default()
            },
            |side| {
                wait(Duration::from_micros(5));
                side.send(0, 4096);
                assert_eq!(side.completions(1).0, successes(1));
            },
            move |side| {
                wait(Duration::from_micros(late_us));
                side.post_recvs(1, 4096);
                assert_eq!(side.completions(1).0, successes(1));
            },
        );
        assert_eq!(receiver.rnr_naks > 0, late_us > 0);
        receiver.dma_read_bytes
    });
    assert_eq!(read_bytes[0], read_bytes[1]);
}

/// A request that the responder refuses.
#[derive(Clone, Copy, Debug)]
enum Refused {
    WriteWithoutRights,
    ReadWithoutRights,
    SendThatIsTooLong,
}

/// IBTA vol. 1, 9.9.3: after the NAK the responder is in error and executes nothing more.
#[test]
fn a_responder_executes_nothing_after_a_request_that_it_refused() {
    for refused in [
        Refused::WriteWithoutRights,
        Refused::ReadWithoutRights,
        Refused::SendThatIsTooLong,
    ] {
        let too_long = matches!(refused, Refused::SendThatIsTooLong);
        run(
            &Setup::default(),
            move |side| {
                wait(Duration::from_micros(10));
                let mut wrong = side.remote;
                wrong.rkey = verbs::RKey(wrong.rkey.0 + 100);
                side.memory.write_u64(0, 4711).expect("in range");
                let (short, long) = (side.memory.slice(..8), side.memory.slice(..64));
                let (short, long) = (short.expect("in range"), long.expect("in range"));
                let mut list = side.qp.postlist(3);
                let first = match refused {
                    Refused::WriteWithoutRights => list.rdma_write(short, wrong),
                    Refused::ReadWithoutRights => list.rdma_read(short, wrong),
                    Refused::SendThatIsTooLong => list.send(long),
                };
                first.wr_id(0).signaled();
                let later = side.remote.starting_at(WRITES_AT as u64);
                list.rdma_write(short, later.expect("in range"))
                    .wr_id(1)
                    .signaled();
                list.send(short).wr_id(2).signaled();
                side.qp.post_send(&mut list).expect("the queue has room");
                let status = if too_long {
                    WcStatus::RemInvReqErr
                } else {
                    WcStatus::RemAccessErr
                };
                let flushed = Some(WcStatus::WrFlushErr);
                let expected = [(0, Some(status)), (1, flushed), (2, flushed)];
                assert_eq!(side.completions(3).0, expected, "{refused:?}");
            },
            move |side| {
                side.post_recvs(3, 8);
                let flushed = Some(WcStatus::WrFlushErr);
                let first = if too_long {
                    Some(WcStatus::LocLenErr)
                } else {
                    flushed
                };
                let expected = [(0, first), (1, flushed), (2, flushed)];
                assert_eq!(side.completions(3).0, expected, "{refused:?}");
                wait(Duration::from_micros(10));
                let written = side.memory.read_u64(WRITES_AT).expect("in range");
                assert_eq!(written, 0, "{refused:?}");
                // The queue pair is in error also for its own requests.
                side.send(7, 8);
                assert_eq!(side.completions(1).0, [(7, flushed)]);
            },
        );
    }
}

/// The payload goes to memory while its packets arrive, so that only the last one's transfer is missing at the end.
const LAST_PACKET_TO_MEMORY: Duration = Duration::from_nanos(250);

#[test]
fn a_message_that_is_longer_than_its_recv_is_not_transferred() {
    const BYTES: usize = 1 << 20;
    let [fits, too_long] = [BYTES, BYTES - 1].map(|recv_bytes| {
        let received_at = Shared::new(RefCell::new(Duration::ZERO));
        let at = Shared::clone(&received_at);
        let fits = recv_bytes == BYTES;
        run(
            &Setup::default(),
            move |side| {
                wait(Duration::from_micros(10));
                side.send(0, BYTES);
                let status = (!fits).then_some(WcStatus::RemInvReqErr);
                assert_eq!(side.completions(1).0, [(0, status)]);
            },
            move |side| {
                side.post_recvs(1, recv_bytes);
                let (received, time) = side.completions(1);
                let status = (!fits).then_some(WcStatus::LocLenErr);
                assert_eq!(received, [(0, status)]);
                *at.borrow_mut() = time;
            },
        );
        received_at.take()
    });
    assert!(
        too_long + LAST_PACKET_TO_MEMORY < fits,
        "{too_long:?}, {fits:?}"
    );
}

/// Returns the status and identifier of the next completion, and its time.
fn completion(cq: &CompletionQueue) -> ((u64, Option<WcStatus>), Duration) {
    let mut wcs = WcBuffer::<1>::new();
    loop {
        let wc = cq.poll(&mut wcs).expect("no overrun").next();
        let now = simnic::now().expect("simulated");
        match wc {
            Some(Ok(wc)) => return ((wc.wr_id(), None), now),
            Some(Err(wc)) => return ((wc.wr_id(), Some(wc.status())), now),
            None => simnic::suspend_while_idle(100, None),
        };
        assert!(now < Duration::from_secs(1), "nothing completes");
    }
}

/// Posts two RECVs of `recv_bytes`, sends a message, and checks that the RECVs fail. `bytes`: those of the message with
/// its GRH.
fn check_unreliable_recv_too_short<T: Transport>(
    to: &QueuePair<T>,
    memory: &verbs::MemoryRegion,
    (bytes, recv_bytes): (usize, usize),
    (send_cq, recv_cq): (&CompletionQueue, &CompletionQueue),
    send: impl FnOnce(),
) -> Duration {
    let mut list = to.recv_list(2);
    for wr_id in 0..2 {
        list.recv(memory.slice(..recv_bytes).expect("in range"), wr_id);
    }
    to.post_recv(&mut list).expect("the queue has room");
    send();
    // No requester learns of it.
    assert_eq!(completion(send_cq).0, (7, None));
    let (received, at) = completion(recv_cq);
    if recv_bytes >= bytes {
        assert_eq!(received, (0, None));
    } else {
        assert_eq!(received, (0, Some(WcStatus::LocLenErr)));
        // The queue pair is in error.
        assert_eq!(completion(recv_cq).0, (1, Some(WcStatus::WrFlushErr)));
    }
    at
}

#[test]
fn a_message_of_uc_that_is_longer_than_its_recv_fails_its_receiver() {
    const BYTES: usize = 1 << 20;
    let times = Shared::new(RefCell::new(Vec::new()));
    for recv_bytes in [BYTES, BYTES - 1] {
        let times = Shared::clone(&times);
        run_alone(move |pd, send_cq| {
            let recv_cq = pd.context().create_cq(16).expect("a queue");
            let [from, to] = [0, 1].map(|_| pd.qp_builder::<Uc>(send_cq, &recv_cq).build());
            let (from, to) = (from.expect("a queue pair"), to.expect("a queue pair"));
            let (to_from, to_to) = (from.endpoint(), to.endpoint());
            let from = from.connect(&to_to).expect("it connects");
            let to = to.connect(&to_from).expect("it connects");
            let memory = pd.alloc(BYTES, Access::ALL).expect("memory");
            let message = memory.slice(..BYTES).expect("in range");
            let sizes = (BYTES, recv_bytes);
            let at =
                check_unreliable_recv_too_short(&to, &memory, sizes, (send_cq, &recv_cq), || {
                    let posted = from.post_one(|list| {
                        list.send(message).wr_id(7).signaled();
                    });
                    posted.expect("the send queue has room");
                });
            times.borrow_mut().push(at);
        });
    }
    let [fits, too_long] = times.borrow()[..] else {
        panic!("two runs")
    };
    assert!(
        too_long + LAST_PACKET_TO_MEMORY < fits,
        "{too_long:?}, {fits:?}"
    );
}

/// The RECV of a datagram has room for its GRH, too.
#[test]
fn a_datagram_that_is_longer_than_its_recv_fails_its_receiver() {
    const BYTES: usize = 2048;
    let times = Shared::new(RefCell::new(Vec::new()));
    for recv_bytes in [40 + BYTES, 39 + BYTES] {
        let times = Shared::clone(&times);
        run_alone(move |pd, send_cq| {
            let recv_cq = pd.context().create_cq(16).expect("a queue");
            let [from, to] = [0, 1].map(|_| {
                let qp = pd.qp_builder::<Ud>(send_cq, &recv_cq).build();
                qp.expect("a queue pair")
            });
            let memory = pd.alloc(2 * BYTES, Access::ALL).expect("memory");
            let message = memory.slice(..BYTES).expect("in range");
            let sizes = (40 + BYTES, recv_bytes);
            let destination = pd.ud_destination(1, &to.endpoint()).expect("a machine");
            let at =
                check_unreliable_recv_too_short(&to, &memory, sizes, (send_cq, &recv_cq), || {
                    let posted = from.post_one(|list| {
                        list.send(message, &destination).wr_id(7).signaled();
                    });
                    posted.expect("the send queue has room");
                });
            times.borrow_mut().push(at);
        });
    }
    let [fits, too_long] = times.borrow()[..] else {
        panic!("two runs")
    };
    assert!(
        too_long + Duration::from_nanos(100) < fits,
        "{too_long:?}, {fits:?}"
    );
}
