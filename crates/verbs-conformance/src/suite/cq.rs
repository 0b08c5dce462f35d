//! Tests of completion queues, completion channels and arming.

use std::time::{Duration, Instant};

use verbs_abi::*;

use crate::TestEnv;
use crate::test_env::NicCapability;
use crate::harness::record_case;
use crate::objects::{Context, QUIET_PERIOD};
use crate::pair::{QpPair, QpSpec};
use crate::signals::wait_under_signals;
use crate::wr::{RemoteAddress, Verb, send, write};
use crate::xrc::set_cq_event_moderation;

tests! { "cq";
    capacity_is_at_least_what_was_asked_for [],
    bad_sizes_are_refused [],
    a_vector_that_is_not_there_is_refused [],
    an_empty_queue_polls_nothing [],
    an_armed_queue_makes_one_event [],
    completions_before_arming_make_no_event [],
    an_unarmed_queue_makes_no_event [],
    events_carry_queue_and_context [],
    a_send_completion_makes_an_event [],
    the_descriptor_polls_and_does_not_block [],
    a_blocked_thread_is_woken [],
    a_blocked_thread_is_woken_by_a_failure [],
    a_signal_ends_a_wait_only_without_sa_restart [],
    a_completion_that_another_thread_polls_makes_an_event [],
    arming_again_loses_no_event [],
    solicited_only_waits_for_a_solicited_send [Solicited],
    solicited_write_with_imm_makes_an_event [Solicited],
    solicited_only_fires_on_a_failure [Solicited],
    solicited_on_ud [Solicited, Ud],
    arming_for_any_beats_arming_for_solicited [Solicited],
    several_queues_share_a_channel [],
    events_are_acknowledged_in_bulk [],
    destroying_waits_for_the_acknowledgement [],
    destroying_drops_pending_events [],
    arm_poll_sleep_loop_loses_no_completion [],
    event_driven_ping_pong [],
    a_moderated_queue_holds_its_event_back [Moderation],
    a_moderated_queue_makes_its_event_at_the_count [Moderation],
    a_completion_makes_an_event_though_its_qp_fails [],
}

fn capacity_is_at_least_what_was_asked_for(env: &TestEnv) {
    let ctx = Context::open(env);
    let max = ctx.device_attr().max_cqe;
    for cqe in [1, 2, 3, 100, 1000, max.min(100_000)] {
        record_case(format!("{cqe} entries"));
        assert!(ctx.create_cq(cqe).cqe() >= usize::try_from(cqe).expect("positive"));
    }
}

fn bad_sizes_are_refused(env: &TestEnv) {
    let ctx = Context::open(env);
    let max = ctx.device_attr().max_cqe;
    for cqe in [0, -1, i32::MIN, max.saturating_add(1), i32::MAX] {
        if cqe > 0 && cqe <= max {
            continue;
        }
        record_case(format!("{cqe} entries"));
        let errno = ctx.try_create_cq(cqe, None, 0, 0).err();
        assert!([Some(libc::EINVAL), Some(libc::ENOMEM)].contains(&errno), "{errno:?}");
    }
}

/// A CQ with a completion vector that does not exist is refused. `ibv_create_cq(3)`: "Must be >= zero and <
/// context->num_comp_vectors".
fn a_vector_that_is_not_there_is_refused(env: &TestEnv) {
    let ctx = Context::open(env);
    let channel = ctx.create_channel();
    for vector in [-1, ctx.num_comp_vectors(), i32::MAX] {
        let errno = ctx.try_create_cq(8, Some(&channel), vector, 0).err();
        assert_eq!(errno, Some(libc::EINVAL), "vector {vector}");
    }
    drop(ctx.try_create_cq(8, Some(&channel), ctx.num_comp_vectors() - 1, 0).expect("the last vector"));
}

fn an_empty_queue_polls_nothing(env: &TestEnv) {
    let cq = Context::open(env).create_cq(8);
    for max in [0, 1, 100] {
        assert!(cq.poll(max).is_empty());
    }
}

/// Posts a receive at `b`, and sends a header-only message with flags from `a` to `b`.
///
/// The function does not poll `b`, because a poll makes progress, and a sleeping program makes none.
fn post_recv_and_send(pair: &QpPair, flags: u32) {
    pair.b.post_recv(5, []);
    pair.a.post(send([]).with_id(6).with_flag(flags));
    pair.a.await_send_completion().expect_sent(6, Verb::Send);
}

fn connected_pair_with_channels(env: &TestEnv) -> QpPair {
    QpSpec::rc().with_channels().create_connected_pair(env)
}

fn an_armed_queue_makes_one_event(env: &TestEnv) {
    let pair = connected_pair_with_channels(env);
    let channel = pair.b.rchannel.as_ref().expect("a channel");
    for _ in 0..5 {
        pair.b.rcq.arm(false);
        channel.expect_no_event();
        post_recv_and_send(&pair, 0);
        channel.await_and_ack_event(&pair.b.rcq);
        // One arming causes one event.
        post_recv_and_send(&pair, 0);
        channel.expect_no_event();
        for wc in pair.b.rcq.wait_for_completions(2) {
            wc.expect_received(5, 0);
        }
    }
}

/// An event is for "the next completion" (`ibv_req_notify_cq(3)`), whatever else happens in the NIC.
fn completions_before_arming_make_no_event(env: &TestEnv) {
    let pair = connected_pair_with_channels(env);
    let channel = pair.b.rchannel.as_ref().expect("a channel");
    let other = self::connected_pair_with_channels(env);
    let others_channel = other.b.rchannel.as_ref().expect("a channel");
    for _ in 0..5 {
        post_recv_and_send(&pair, 0);
        std::thread::sleep(QUIET_PERIOD);
        pair.b.rcq.arm(false);
        other.b.rcq.arm(false);
        post_recv_and_send(&other, 0);
        others_channel.await_and_ack_event(&other.b.rcq);
        other.b.await_recv_completion().expect_received(5, 0);
        channel.expect_no_event();
        post_recv_and_send(&pair, 0);
        channel.await_and_ack_event(&pair.b.rcq);
        for wc in pair.b.rcq.wait_for_completions(2) {
            wc.expect_received(5, 0);
        }
    }
}

fn an_unarmed_queue_makes_no_event(env: &TestEnv) {
    let pair = connected_pair_with_channels(env);
    post_recv_and_send(&pair, 0);
    pair.b.await_recv_completion().expect_received(5, 0);
    pair.b.rchannel.as_ref().expect("a channel").expect_no_event();
}

fn events_carry_queue_and_context(env: &TestEnv) {
    let ctx = Context::open(env);
    let channel = ctx.create_channel();
    let mut a = QpSpec::rc().create_qp_side(env);
    a.rcq = ctx.try_create_cq(64, Some(&channel), 0, 0xc0ffee).expect("ibv_create_cq");
    let pd = ctx.alloc_pd();
    let mut init = crate::objects::QpInitAttr::new(IBV_QPT_RC, &a.rcq, &a.rcq);
    a.qp = pd.create_qp(&mut init);
    a.pd = pd;
    let address = a.address();
    a.connect(&address);
    a.rcq.arm(false);
    a.post(send([]).with_id(1));
    a.post_recv(2, []);
    assert!(channel.has_event_within(crate::harness::wait_limit()));
    assert_eq!(channel.take_unacked_event(), Ok((a.rcq.raw(), 0x00c0_ffee)));
    a.rcq.ack(1);
    drop(a.rcq.wait_for_completions(2));
}

fn a_send_completion_makes_an_event(env: &TestEnv) {
    let pair = connected_pair_with_channels(env);
    let channel = pair.a.schannel.as_ref().expect("a channel");
    let source = pair.a.alloc_buf(8);
    let target = pair.b.alloc_buf(8);
    pair.a.scq.arm(false);
    pair.a.post(write([source.whole_sge()], target.remote_address()).unsignaled());
    channel.expect_no_event();
    pair.a.post(write([source.whole_sge()], target.remote_address()).with_id(2));
    channel.await_and_ack_event(&pair.a.scq);
    pair.a.await_send_completion().expect_sent(2, Verb::RdmaWrite);
    // A SEND completes when it has consumed a receive.
    pair.a.scq.arm(false);
    pair.a.post(send([]).with_id(3));
    channel.expect_no_event();
    pair.b.post_recv(1, []);
    channel.await_and_ack_event(&pair.a.scq);
    pair.a.await_send_completion().expect_sent(3, Verb::Send);
}

fn the_descriptor_polls_and_does_not_block(env: &TestEnv) {
    let pair = connected_pair_with_channels(env);
    let channel = pair.b.rchannel.as_ref().expect("a channel");
    channel.set_nonblocking(true);
    assert_eq!(channel.take_unacked_event(), Err(libc::EAGAIN));
    assert!(!channel.has_event_within(Duration::ZERO));
    // An event loop that waits for both would find it ready at all times.
    assert!(!channel.is_writable());
    pair.b.rcq.arm(false);
    post_recv_and_send(&pair, 0);
    assert!(channel.has_event_within(crate::harness::wait_limit()), "poll() says nothing");
    assert!(channel.has_event_within(Duration::ZERO), "poll() takes the event away");
    assert_eq!(channel.take_unacked_event().map(|event| event.0), Ok(pair.b.rcq.raw()));
    assert!(!channel.has_event_within(Duration::ZERO), "readable after its event was taken");
    assert_eq!(channel.take_unacked_event(), Err(libc::EAGAIN));
    pair.b.rcq.ack(1);
}

fn a_blocked_thread_is_woken(env: &TestEnv) {
    let pair = connected_pair_with_channels(env);
    for round in 0..10 {
        pair.b.rcq.arm(false);
        std::thread::scope(|scope| {
            let channel = pair.b.rchannel.as_ref().expect("a channel");
            channel.set_nonblocking(false);
            let waiting = scope.spawn(|| channel.take_unacked_event().map(|event| event.0.addr()));
            std::thread::sleep(Duration::from_millis(5 * (round % 2)));
            post_recv_and_send(&pair, 0);
            assert_eq!(waiting.join().expect("woken"), Ok(pair.b.rcq.raw().addr()));
            pair.b.rcq.ack(1);
            pair.b.await_recv_completion().expect_received(5, 0);
        });
    }
}

/// A program that sleeps until its send completes must wake up when the peer's QP no longer exists.
fn a_blocked_thread_is_woken_by_a_failure(env: &TestEnv) {
    let pair = QpSpec::rc().with_channels().with_short_timeout_and_few_retries().create_connected_pair(env);
    let channel = pair.a.schannel.as_ref().expect("a channel");
    channel.set_nonblocking(false);
    pair.a.scq.arm(false);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| channel.take_unacked_event().map(|event| event.0.addr()));
        pair.a.post(send([]).with_id(1));
        std::thread::sleep(Duration::from_millis(5));
        assert_eq!(pair.b.qp.try_destroy(), 0);
        assert_eq!(waiting.join().expect("woken"), Ok(pair.a.scq.raw().addr()));
        pair.a.scq.ack(1);
        pair.a.await_send_completion().expect_failed(1, &[IBV_WC_RETRY_EXC_ERR]);
    });
}

/// `read(2)` of the channel is restarted as `signal(7)` says.
fn a_signal_ends_a_wait_only_without_sa_restart(env: &TestEnv) {
    let pair = connected_pair_with_channels(env);
    let channel = pair.b.rchannel.as_ref().expect("a channel");
    channel.set_nonblocking(false);
    pair.b.rcq.arm(false);
    let take = || channel.take_unacked_event().map(|event| event.0.addr());
    let taken = wait_under_signals(libc::SA_RESTART, take, || post_recv_and_send(&pair, 0));
    assert_eq!(taken, Ok(pair.b.rcq.raw().addr()));
    pair.b.rcq.ack(1);
    pair.b.await_recv_completion().expect_received(5, 0);
    assert_eq!(wait_under_signals(0, take, || {}), Err(libc::EINTR));
}

/// "Upon the addition of a new CQ entry … a completion event will be added to the completion channel"
/// (`ibv_req_notify_cq(3)`). The event occurs even if another thread polls the completion at once.
fn a_completion_that_another_thread_polls_makes_an_event(env: &TestEnv) {
    let pair = connected_pair_with_channels(env);
    let (source, target) = (pair.a.alloc_buf(8), pair.b.alloc_buf(8));
    for round in 0..30u64 {
        let delay = Duration::from_micros([0, 85, 500][(round % 3) as usize]);
        record_case(format!("polled after {delay:?}"));
        let (posted, begin) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let poller = scope.spawn(|| {
                let begin = begin;
                begin.recv().expect("the other thread posts");
                let start = Instant::now();
                while start.elapsed() < delay {
                    std::hint::spin_loop();
                }
                (pair.a.scq.await_completion(), pair.b.rcq.await_completion())
            });
            pair.b.post_recv(1, [target.whole_sge()]);
            pair.a.scq.arm(false);
            pair.b.rcq.arm(false);
            pair.a.post(send([source.whole_sge()]).with_id(round));
            posted.send(()).expect("the other thread polls");
            let (sends, receives) = (&pair.a.schannel, &pair.b.rchannel);
            sends.as_ref().expect("a channel").await_and_ack_event(&pair.a.scq);
            receives.as_ref().expect("a channel").await_and_ack_event(&pair.b.rcq);
            let (sent, received) = poller.join().expect("both completions");
            sent.expect_sent(round, Verb::Send);
            received.expect_received(1, 8);
        });
    }
}

/// A completion between two armings is reported to the thread that armed first.
fn arming_again_loses_no_event(env: &TestEnv) {
    for round in 0..20 {
        let pair = connected_pair_with_channels(env);
        let (source, target) = (pair.a.alloc_buf(8), pair.b.alloc_buf(8));
        pair.a.scq.arm(false);
        pair.a.post(write([source.whole_sge()], target.remote_address()).with_id(round));
        if round % 2 == 0 {
            pair.a.await_send_completion().expect_sent(round, Verb::RdmaWrite);
        }
        pair.a.scq.arm(false);
        pair.a.schannel.as_ref().expect("a channel").await_and_ack_event(&pair.a.scq);
    }
}

fn solicited_only_waits_for_a_solicited_send(env: &TestEnv) {
    let pair = connected_pair_with_channels(env);
    let channel = pair.b.rchannel.as_ref().expect("a channel");
    for _ in 0..3 {
        pair.b.rcq.arm(true);
        post_recv_and_send(&pair, 0);
        post_recv_and_send(&pair, 0);
        channel.expect_no_event();
        post_recv_and_send(&pair, IBV_SEND_SOLICITED);
        channel.await_and_ack_event(&pair.b.rcq);
        drop(pair.b.rcq.wait_for_completions(3));
        channel.expect_no_event();
    }
}

fn solicited_write_with_imm_makes_an_event(env: &TestEnv) {
    let pair = connected_pair_with_channels(env);
    let channel = pair.b.rchannel.as_ref().expect("a channel");
    let source = pair.a.alloc_buf(8);
    let target = pair.b.alloc_buf(8);
    pair.b.rcq.arm(true);
    for (flag, fires) in [(0, false), (IBV_SEND_SOLICITED, true)] {
        pair.b.post_recv(1, []);
        let wr = crate::wr::write_imm([source.whole_sge()], target.remote_address(), 1);
        pair.a.post(wr.with_id(2).with_flag(flag));
        pair.a.await_send_completion().expect_sent(2, Verb::RdmaWriteWithImm);
        if fires {
            channel.await_and_ack_event(&pair.b.rcq);
        } else {
            channel.expect_no_event();
        }
    }
    drop(pair.b.rcq.wait_for_completions(2));
}

/// `ibv_req_notify_cq(3)`: with `solicited_only`, "or if a CQE with an unsuccessful status is added".
fn solicited_only_fires_on_a_failure(env: &TestEnv) {
    let pair = connected_pair_with_channels(env);
    let channel = pair.a.schannel.as_ref().expect("a channel");
    let source = pair.a.alloc_buf(8);
    let target = pair.b.alloc_buf(8);
    pair.a.scq.arm(true);
    pair.a.post(write([source.whole_sge()], target.remote_address()).with_id(1));
    channel.expect_no_event();
    let nowhere = RemoteAddress {
        addr: 8,
        rkey: 1,
    };
    pair.a.post(write([source.whole_sge()], nowhere).with_id(2));
    channel.await_and_ack_event(&pair.a.scq);
    pair.a.await_send_completion().expect_sent(1, Verb::RdmaWrite);
    pair.a.await_send_completion().expect_failed(2, &[IBV_WC_REM_ACCESS_ERR]);
}

fn solicited_on_ud(env: &TestEnv) {
    let pair = QpSpec::ud().with_channels().create_connected_pair(env);
    let channel = pair.b.rchannel.as_ref().expect("a channel");
    let buf = pair.b.alloc_buf(40);
    pair.b.post_recv(1, [buf.whole_sge()]);
    pair.b.post_recv(2, [buf.whole_sge()]);
    pair.b.rcq.arm(true);
    pair.a.post(send([]).with_id(3));
    channel.expect_no_event();
    pair.a.post(send([]).with_id(4).with_flag(IBV_SEND_SOLICITED));
    channel.await_and_ack_event(&pair.b.rcq);
    drop(pair.b.rcq.wait_for_completions(2));
}

/// IBTA vol. 1, 11.4.2.2: arming for solicited completions does not narrow an earlier arming for any
/// completion. Arming for any completion widens an earlier arming for solicited ones.
fn arming_for_any_beats_arming_for_solicited(env: &TestEnv) {
    for order in [[false, true], [true, false]] {
        record_case(format!("{order:?}"));
        let pair = connected_pair_with_channels(env);
        for solicited_only in order {
            pair.b.rcq.arm(solicited_only);
        }
        post_recv_and_send(&pair, 0);
        pair.b.rchannel.as_ref().expect("a channel").await_and_ack_event(&pair.b.rcq);
    }
}

fn several_queues_share_a_channel(env: &TestEnv) {
    let ctx = Context::open(env);
    let channel = ctx.create_channel();
    let pd = ctx.alloc_pd();
    let mut sides: Vec<_> = (0..4).map(|_| QpSpec::rc().create_qp_side(env)).collect();
    for side in &mut sides {
        let cq = ctx.create_cq_on_channel(64, &channel);
        side.qp = pd.create_qp(&mut crate::objects::QpInitAttr::new(IBV_QPT_RC, &cq, &cq));
        side.scq = cq.clone();
        side.rcq = cq;
        side.pd = pd.clone();
        let address = side.address();
        side.connect(&address);
    }
    for side in &sides {
        side.rcq.arm(false);
    }
    for index in [2usize, 0, 3, 1] {
        let side = &sides[index];
        side.post_recv(1, []);
        side.post(send([]).with_id(2));
        channel.await_and_ack_event(&side.rcq);
        drop(side.rcq.wait_for_completions(2));
    }
    channel.expect_no_event();
}

fn events_are_acknowledged_in_bulk(env: &TestEnv) {
    let pair = connected_pair_with_channels(env);
    let channel = pair.b.rchannel.as_ref().expect("a channel");
    for _ in 0..10 {
        pair.b.rcq.arm(false);
        post_recv_and_send(&pair, 0);
        assert!(channel.has_event_within(crate::harness::wait_limit()));
        assert_eq!(channel.take_unacked_event().map(|event| event.0), Ok(pair.b.rcq.raw()));
        pair.b.await_recv_completion().expect_received(5, 0);
    }
    pair.b.rcq.ack(10);
}

/// `ibv_get_cq_event(3)`: "destroying a CQ waits for all completion events to be acknowledged".
fn destroying_waits_for_the_acknowledgement(env: &TestEnv) {
    let pair = connected_pair_with_channels(env);
    let channel = pair.b.rchannel.clone().expect("a channel");
    pair.b.rcq.arm(false);
    post_recv_and_send(&pair, 0);
    assert!(channel.has_event_within(crate::harness::wait_limit()));
    assert_eq!(channel.take_unacked_event().map(|event| event.0), Ok(pair.b.rcq.raw()));
    let cq = pair.b.rcq.clone();
    assert_eq!(pair.b.qp.try_destroy(), 0);
    std::thread::scope(|scope| {
        let destroying = scope.spawn(|| cq.try_destroy());
        std::thread::sleep(QUIET_PERIOD);
        assert!(!destroying.is_finished(), "destroyed with an event that was not acknowledged");
        cq.ack(1);
        assert_eq!(destroying.join().expect("destroyed"), 0);
    });
}

/// Destroying a CQ removes its pending events, so that no program receives a destroyed CQ.
fn destroying_drops_pending_events(env: &TestEnv) {
    let ctx = Context::open(env);
    let channel = ctx.create_channel();
    let survivor = ctx.create_cq_on_channel(8, &channel);
    for _ in 0..3 {
        let mut side = QpSpec::rc().create_qp_side(env);
        let (pd, cq) = (ctx.alloc_pd(), ctx.create_cq_on_channel(8, &channel));
        side.qp = pd.create_qp(&mut crate::objects::QpInitAttr::new(IBV_QPT_RC, &cq, &cq));
        side.pd = pd;
        let address = side.address();
        side.connect(&address);
        cq.arm(false);
        side.post_recv(1, []);
        side.post(send([]).with_id(2));
        assert!(channel.has_event_within(crate::harness::wait_limit()));
        assert_eq!(side.qp.try_destroy(), 0);
        assert_eq!(cq.try_destroy(), 0);
        channel.set_nonblocking(true);
        assert_eq!(channel.take_unacked_event(), Err(libc::EAGAIN), "an event of a CQ that is gone");
    }
    drop(survivor);
}

/// The loop of every event-driven program: arm, poll once more, sleep.
fn arm_poll_sleep_loop_loses_no_completion(env: &TestEnv) {
    const TOTAL: u64 = 3000;
    let mut specs = vec![QpSpec::rc()];
    if env.expects_capability(NicCapability::Ud) {
        specs.push(QpSpec::ud());
    }
    for spec in specs {
        record_case(format!("QP type {}", spec.qp_type));
        let pair = spec.with_queue_depth(64).with_channels().create_connected_pair(env);
        let buf = pair.b.alloc_buf(64);
        for i in 0..64 {
            pair.b.post_recv(i, [buf.whole_sge()]);
        }
        let reliable = pair.b.grh_len() == 0;
        std::thread::scope(|scope| {
            let receiver = scope.spawn(|| {
                let channel = pair.b.rchannel.as_ref().expect("a channel");
                let mut got = 0u64;
                let mut events = 0;
                loop {
                    pair.b.rcq.arm(false);
                    let mut any = false;
                    loop {
                        let wcs = pair.b.rcq.poll(16);
                        if wcs.is_empty() {
                            break;
                        }
                        any = true;
                        for wc in wcs {
                            assert_eq!(wc.status(), IBV_WC_SUCCESS);
                            got += 1;
                            if wc.imm() == Some(u32::MAX) {
                                pair.b.rcq.ack(events);
                                return got;
                            }
                            pair.b.post_recv(wc.id(), [buf.whole_sge()]);
                        }
                    }
                    if any {
                        continue;
                    }
                    assert!(channel.has_event_within(crate::harness::wait_limit()), "asleep for ever, {got} received");
                    assert_eq!(channel.take_unacked_event().map(|event| event.0), Ok(pair.b.rcq.raw()));
                    events += 1;
                }
            });
            for i in 0..TOTAL {
                pair.a.post(send([]).with_id(i));
                pair.a.await_send_completion().expect_sent(i, Verb::Send);
                if i % 100 == 0 {
                    std::thread::sleep(Duration::from_micros(300));
                }
            }
            // This is the last message; on UD it is repeated until the receiver gets it.
            while !receiver.is_finished() {
                pair.a.post(crate::wr::send_imm([], u32::MAX).with_id(1));
                let wc = pair.a.await_send_completion();
                if reliable {
                    wc.expect_sent(1, Verb::Send);
                    break;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            let got = receiver.join().expect("the receiver ends");
            assert!(got <= TOTAL + 1 && (!reliable || got == TOTAL + 1), "{got} of {TOTAL} received");
        });
    }
}

fn event_driven_ping_pong(env: &TestEnv) {
    let pair = connected_pair_with_channels(env);
    let wait = |side: &crate::pair::QpSide| {
        side.rcq.arm(false);
        if let Some(wc) = side.rcq.poll(1).first() {
            return *wc;
        }
        side.rchannel.as_ref().expect("a channel").await_and_ack_event(&side.rcq);
        side.await_recv_completion()
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for i in 0..200 {
                pair.b.post_recv(i, []);
                wait(&pair.b).expect_received(i, 0);
                pair.b.post(send([]).with_id(i));
                pair.b.await_send_completion().expect_sent(i, Verb::Send);
            }
        });
        for i in 0..200 {
            pair.a.post_recv(i, []);
            pair.a.post(send([]).with_id(i));
            pair.a.await_send_completion().expect_sent(i, Verb::Send);
            wait(&pair.a).expect_received(i, 0);
        }
    });
}

/// `ibv_modify_cq(3)`: an event occurs after `cq_count` completions, or after `cq_period` microseconds.
fn a_moderated_queue_holds_its_event_back(env: &TestEnv) {
    let pair = QpSpec::rc().with_channels().create_connected_pair(env);
    set_cq_event_moderation(&pair.b.ctx, &pair.b.rcq, 4, u16::MAX).expect("ibv_modify_cq");
    let channel = pair.b.rchannel.as_ref().expect("a channel");
    let buf = pair.b.alloc_buf(8);
    pair.b.post_recv(1, [buf.whole_sge()]);
    pair.b.rcq.arm(false);
    let start = Instant::now();
    pair.a.post(send([]).with_id(2));
    channel.await_and_ack_event(&pair.b.rcq);
    let period = Duration::from_micros(u16::MAX.into());
    assert!(start.elapsed() >= period, "after {:?}", start.elapsed());
    pair.b.await_recv_completion().expect_received(1, 0);
    // Without moderation the next completion is reported at once.
    set_cq_event_moderation(&pair.b.ctx, &pair.b.rcq, 0, 0).expect("ibv_modify_cq");
    pair.b.post_recv(3, [buf.whole_sge()]);
    pair.b.rcq.arm(false);
    pair.a.post(send([]).with_id(4));
    channel.await_and_ack_event(&pair.b.rcq);
}

fn a_moderated_queue_makes_its_event_at_the_count(env: &TestEnv) {
    let pair = QpSpec::rc().with_channels().create_connected_pair(env);
    set_cq_event_moderation(&pair.b.ctx, &pair.b.rcq, 4, u16::MAX).expect("ibv_modify_cq");
    let channel = pair.b.rchannel.as_ref().expect("a channel");
    let buf = pair.b.alloc_buf(8);
    for round in 0..5 {
        pair.b.rcq.arm(false);
        for i in 0..4 {
            pair.b.post_recv(10 * round + i, [buf.whole_sge()]);
        }
        pair.a.post_sends((0..4).map(|i| send([]).with_id(i)).collect());
        channel.await_and_ack_event(&pair.b.rcq);
        for i in 0..4 {
            pair.b.await_recv_completion().expect_received(10 * round + i, 0);
            pair.a.await_send_completion().expect_sent(i, Verb::Send);
        }
    }
}

/// A completion that occurred after arming is reported, even if the NIC finds it only because the QP fails.
fn a_completion_makes_an_event_though_its_qp_fails(env: &TestEnv) {
    for round in 0..50 {
        let pair = QpSpec::rc().with_channels().create_connected_pair(env);
        let (to, from) = (pair.b.alloc_buf(8), pair.a.alloc_buf(8));
        pair.b.post_recv(1, [to.whole_sge()]);
        let channel = pair.a.schannel.as_ref().expect("channels");
        pair.a.post(send([from.whole_sge()]).with_id(round));
        pair.a.scq.arm(false);
        if !pair.a.scq.poll(1).is_empty() {
            continue;
        }
        pair.b.await_recv_completion().expect_received(1, 8);
        let mut attr = ibv_qp_attr::zeroed();
        attr.qp_state = IBV_QPS_ERR;
        pair.a.qp.modify(&attr, IBV_QP_STATE).expect("to ERR");
        channel.await_and_ack_event(&pair.a.scq);
        let wc = pair.a.scq.await_completion();
        let ways = [IBV_WC_SUCCESS, IBV_WC_WR_FLUSH_ERR];
        assert!(wc.id() == round && ways.contains(&wc.status()), "{wc:?}");
    }
}
