//! Requests that a NIC or its responder refuses.

use std::time::Duration;

use verbs::WcStatus;

use crate::scene::{Setup, WRITES_AT, run, successes, wait};

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
