//! Completion events between processes: no event is lost, and none occurs without a completion.
//!
//! The senders are child processes of this program. They send bursts with random pauses, so that
//! messages arrive while the receiver arms, polls, falls asleep or wakes.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_setfl};
use verbs::{
    Access, CompletionChannel, CompletionQueue, Context, Inline, MemoryRegion, Provider,
    QpEndpoint, QueuePair, Rc, RecvList, WcBuffer, WcStatus, poll_until,
};

/// Environment variable that makes a process a sender, and names its kind.
const ROLE_VARIABLE: &str = "VERBATIM_TEST_SENDER";

/// The receiver's capacity for messages of each sender.
const ROOM: usize = 32;

/// The number of messages of each sender.
const MESSAGES: u64 = 20_000;

/// Longer than any working step takes.
const PATIENCE: Duration = Duration::from_secs(120);

/// A watchdog that ends the test if the count has not changed for [`PATIENCE`].
struct Watchdog {
    over: Arc<AtomicBool>,
}

impl Watchdog {
    fn of(counted: Arc<AtomicU64>) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let watched = Arc::clone(&over);
        std::thread::spawn(move || {
            let (mut seen, mut since) = (u64::MAX, Instant::now());
            while !watched.load(Ordering::Relaxed) {
                let now = counted.load(Ordering::Relaxed);
                if now != seen {
                    (seen, since) = (now, Instant::now());
                }
                if since.elapsed() > PATIENCE {
                    eprintln!("an event was lost: nothing came behind message {now}");
                    std::process::abort();
                }
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        Self { over }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

fn open() -> Context {
    let device = Provider::softnic().device(None).expect("a device");
    device.open().expect("it opens")
}

/// A pseudo-random number generator.
struct Chance(u64);

impl Chance {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// A process that sends to a receiver in this process.
struct Sender {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Sender {
    fn start(kind: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "sender", "--nocapture", "--test-threads", "1"])
            .env(ROLE_VARIABLE, kind)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let input = child.stdin.take().expect("piped");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        Self {
            child,
            input,
            output,
        }
    }

    /// Returns the sender's endpoint, found among the output of the test harness.
    fn endpoint(&mut self) -> QpEndpoint {
        for line in self.output.by_ref().lines() {
            if let Some(endpoint) = line.expect("text").strip_prefix("endpoint ") {
                return serde_json::from_str(endpoint).expect("an endpoint");
            }
        }
        panic!("the sender has ended");
    }

    fn tell(&mut self, endpoint: &QpEndpoint) {
        let line = serde_json::to_string(endpoint).expect("JSON");
        writeln!(self.input, "{line}").expect("it listens");
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs the sender in a child process; does nothing in the test process itself.
#[test]
fn sender() {
    let Ok(kind) = std::env::var(ROLE_VARIABLE) else {
        return;
    };
    let context = open();
    let pd = context.alloc_pd().expect("a PD");
    let cq = context.create_cq(256).expect("a CQ");
    let qp = pd.qp_builder::<Rc>(&cq, &cq).build().expect("a QP");
    let memory = pd.alloc(8 * ROOM, Access::LOCAL_WRITE).expect("memory");
    let mut credits = qp.recv_list(ROOM);
    for _ in 0..ROOM {
        credits.recv(memory.slice(..8).expect("in range"), 0);
    }
    qp.post_recv(&mut credits).expect("posted");
    // Print on a separate line, after the harness's output.
    let endpoint = serde_json::to_string(&qp.endpoint()).expect("JSON");
    println!("\nendpoint {endpoint}");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).expect("a line");
    let qp = qp
        .connect(&serde_json::from_str(&line).expect("an endpoint"))
        .expect("connected");
    if kind == "idle" {
        // Neither polls nor arms a CQ; ends with the test.
        std::io::stdin().read_line(&mut line).expect("the end");
        return;
    }
    let mut chance = Chance(0x9e37_79b9_7f4a_7c15 ^ u64::from(std::process::id()));
    let (mut sent, mut answered, mut sends) = (0, 0, 0);
    let mut credit = qp.recv_list(1);
    credit.recv(memory.slice(..8).expect("in range"), 0);
    while answered < MESSAGES {
        let room = ROOM as u64 - (sent - answered);
        let burst = chance.below(4).min(room).min(MESSAGES - sent);
        for _ in 0..burst {
            let payload = u64::to_le_bytes(sent);
            let sent_now = qp.post_one(|list| {
                let wr = list.send(Inline(&payload));
                if sent % 8 == 7 {
                    wr.signaled();
                }
            });
            sent_now.expect("posted");
            sends += usize::from(sent % 8 == 7);
            sent += 1;
        }
        if kind == "killed" && sent > MESSAGES / 2 {
            // Abort at an arbitrary point.
            std::process::abort();
        }
        match chance.below(8) {
            0 => std::thread::sleep(Duration::from_micros(chance.below(200))),
            1 => std::thread::yield_now(),
            pause => (0..pause * chance.below(100)).for_each(|_| std::hint::spin_loop()),
        }
        let mut wcs = WcBuffer::<16>::new();
        for wc in cq.poll(&mut wcs).expect("polled") {
            if wc.expect("nothing fails").is_recv() {
                answered += 1;
                qp.post_recv(&mut credit).expect("posted");
            } else {
                sends -= 1;
            }
        }
    }
    let all_sent = || {
        sends -= cq.poll(&mut WcBuffer::<16>::new()).expect("polled").count();
        (sends == 0).then_some(())
    };
    poll_until(PATIENCE, all_sent).expect("all SENDs complete");
}

/// The receiving end of a connection.
struct Receiver {
    cq: CompletionQueue,
    qp: QueuePair<Rc>,
    memory: MemoryRegion,
    recvs: Vec<RecvList>,
    next: u64,
}

impl Receiver {
    fn new(context: &Context, channel: &CompletionChannel, sender: &mut Sender) -> Self {
        let cq = context.create_cq_with_channel(256, channel).expect("a CQ");
        let sends = context.create_cq(256).expect("a CQ");
        let pd = context.alloc_pd().expect("a PD");
        let qp = pd.qp_builder::<Rc>(&sends, &cq).build().expect("a QP");
        let memory = pd.alloc(8 * ROOM, Access::LOCAL_WRITE).expect("memory");
        let recvs = (0..ROOM).map(|place| {
            let mut recv = qp.recv_list(1);
            let slice = memory.slice(8 * place..8 * place + 8).expect("in range");
            recv.recv(slice, place as u64);
            qp.post_recv(&mut recv).expect("posted");
            recv
        });
        let recvs = recvs.collect();
        let peer = sender.endpoint();
        let own = qp.endpoint();
        let qp = qp.connect(&peer).expect("connected");
        sender.tell(&own);
        Self {
            cq,
            qp,
            memory,
            recvs,
            next: 0,
        }
    }

    /// Polls all messages and answers them; returns their number.
    fn take(&mut self) -> u64 {
        let mut wcs = WcBuffer::<8>::new();
        let mut taken = 0;
        for wc in self.cq.poll(&mut wcs).expect("polled") {
            let Ok(wc) = wc else { continue };
            let place = usize::try_from(wc.wr_id()).expect("a place");
            let number = self.memory.read_u64(8 * place).expect("in range");
            assert_eq!(u64::from_le(number), self.next, "messages come in order");
            self.next += 1;
            taken += 1;
            self.qp.post_recv(&mut self.recvs[place]).expect("posted");
            let answered = self.qp.post_one(|list| {
                let wr = list.send(Inline(&[0; 8]));
                if self.next.is_multiple_of(16) {
                    wr.signaled();
                }
            });
            answered.expect("posted");
        }
        let mut sent = WcBuffer::<8>::new();
        let _ = self.qp.send_cq().poll(&mut sent).expect("polled").count();
        taken
    }

    /// Polls all messages, arms the queue and polls again, as every program that sleeps does.
    fn settle(&mut self) -> u64 {
        let mut taken = 0;
        self.cq.req_notify(false).expect("armed");
        loop {
            match self.take() {
                0 => return taken,
                more => taken += more,
            }
        }
    }
}

/// Returns true if an event arrives in time.
fn is_readable(channel: &CompletionChannel, patience: Duration) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(channel.as_fd(), PollFlags::IN)];
    let patience = Timespec {
        tv_sec: patience.as_secs().cast_signed(),
        tv_nsec: patience.subsec_nanos().into(),
    };
    poll(&mut fds, Some(&patience)).expect("polled") > 0
}

/// One thread, two queues on one channel, and a non-blocking descriptor: while it is readable, an
/// event is pending.
#[test]
fn a_readable_channel_has_an_event_and_none_is_lost() {
    let context = open();
    let channel = context.create_comp_channel().expect("a channel");
    fcntl_setfl(channel.as_fd(), OFlags::NONBLOCK).expect("set");
    let mut senders = [Sender::start("lives"), Sender::start("lives")];
    let mut receivers: Vec<_> = senders
        .iter_mut()
        .map(|sender| Receiver::new(&context, &channel, sender))
        .collect();
    let counted = Arc::new(AtomicU64::new(0));
    let _watchdog = Watchdog::of(Arc::clone(&counted));
    let mut left = 2 * MESSAGES;
    for receiver in &mut receivers {
        left -= receiver.settle();
    }
    while left > 0 {
        assert!(
            is_readable(&channel, PATIENCE),
            "{left} messages never came"
        );
        let id = channel
            .wait_for_cq_event()
            .expect("readable, so there is an event");
        let receiver = receivers.iter_mut().find(|r| r.cq.id() == id);
        let taken = receiver.expect("one of the two").settle();
        left -= taken;
        counted.fetch_add(taken, Ordering::Relaxed);
    }
}

/// Three threads block in `ibv_get_cq_event` for events of one queue.
#[test]
fn threads_that_wait_for_one_channel_lose_no_event() {
    let context = open();
    let channel = context.create_comp_channel().expect("a channel");
    let mut sender = Sender::start("lives");
    let receiver = Receiver::new(&context, &channel, &mut sender);
    let receiver = Mutex::new(receiver);
    let counted = Arc::new(AtomicU64::new(0));
    let _watchdog = Watchdog::of(Arc::clone(&counted));
    let state = Arc::new((channel, receiver));
    let first = state.1.lock().expect("free").settle();
    counted.fetch_add(first, Ordering::Relaxed);
    for _ in 0..3 {
        let (state, counted) = (Arc::clone(&state), Arc::clone(&counted));
        // Threads that are no longer needed wait until the program ends.
        std::thread::spawn(move || {
            while state.0.wait_for_cq_event().is_ok() {
                let taken = state.1.lock().expect("free").settle();
                counted.fetch_add(taken, Ordering::Relaxed);
            }
        });
    }
    while counted.load(Ordering::Relaxed) < MESSAGES {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A sender dies at an arbitrary instruction. The others continue: their events arrive, and the
/// event of the sender's death.
#[test]
fn the_death_of_a_sender_takes_no_event_along() {
    for _ in 0..10 {
        let context = open();
        let channel = context.create_comp_channel().expect("a channel");
        let mut senders = [Sender::start("killed"), Sender::start("lives")];
        let mut receivers: Vec<_> = senders
            .iter_mut()
            .map(|sender| Receiver::new(&context, &channel, sender))
            .collect();
        let counted = Arc::new(AtomicU64::new(0));
        let _watchdog = Watchdog::of(Arc::clone(&counted));
        for receiver in &mut receivers {
            receiver.settle();
        }
        while receivers[1].next < MESSAGES {
            let id = channel.wait_for_cq_event().expect("an event");
            let receiver = receivers.iter_mut().find(|r| r.cq.id() == id);
            let taken = receiver.expect("one of the two").settle();
            counted.fetch_add(taken, Ordering::Relaxed);
        }
        assert!(receivers[0].next > 0 && receivers[0].next < MESSAGES);
    }
}

/// The receiver's engine takes each message before the next is posted, as on a busy machine. That it takes messages is
/// no sign that the receiver's program polls, so the message that fails wakes the engine, too.
#[test]
fn a_send_that_fails_wakes_its_sender_after_the_receivers_engine_took_others() {
    let context = open();
    let channel = context.create_comp_channel().expect("a channel");
    let cq = context.create_cq_with_channel(64, &channel).expect("a CQ");
    let pd = context.alloc_pd().expect("a PD");
    let qp = pd.qp_builder::<Rc>(&cq, &cq).build().expect("a QP");
    let mut peer = Sender::start("idle");
    let endpoint = peer.endpoint();
    peer.tell(&qp.endpoint());
    let qp = qp.connect(&endpoint).expect("connected");
    for _ in 0..3 {
        cq.req_notify(true).expect("armed");
        let posted = qp.post_one(|list| {
            list.send(Inline(&[0; 8])).signaled();
        });
        posted.expect("posted");
        let mut wcs = WcBuffer::<1>::new();
        let taken = || {
            let mut polled = cq.poll(&mut wcs).expect("polled");
            polled.next().map(|wc| wc.is_ok())
        };
        assert_eq!(poll_until(PATIENCE, taken), Some(true));
    }
    cq.req_notify(true).expect("armed");
    let posted = qp.post_one(|list| {
        list.send(Inline(&[0; 9]));
    });
    posted.expect("posted");
    assert!(is_readable(&channel, PATIENCE), "no event of the failure");
    assert_eq!(channel.wait_for_cq_event().expect("an event"), cq.id());
    let mut wcs = WcBuffer::<8>::new();
    let mut polled = cq.poll(&mut wcs).expect("polled");
    assert!(polled.next().expect("a completion").is_err());
}

/// A sender arms its CQ for solicited completions, and so waits only for failures. The receiver neither polls nor
/// waits, and gets messages that fit its RECVs and then one that does not.
#[test]
fn a_send_that_fails_wakes_a_sender_that_waits_for_solicited_completions() {
    for good in [0, 1, 5] {
        let context = open();
        let channel = context.create_comp_channel().expect("a channel");
        let cq = context.create_cq_with_channel(64, &channel).expect("a CQ");
        let pd = context.alloc_pd().expect("a PD");
        let qp = pd.qp_builder::<Rc>(&cq, &cq).build().expect("a QP");
        let mut peer = Sender::start("idle");
        let endpoint = peer.endpoint();
        peer.tell(&qp.endpoint());
        let qp = qp.connect(&endpoint).expect("connected");
        let mut wcs = WcBuffer::<8>::new();
        let mut statuses = Vec::new();
        let mut poll_failures = |statuses: &mut Vec<WcStatus>| {
            let polled = cq.poll(&mut wcs).expect("polled");
            statuses.extend(polled.map(|wc| wc.expect_err("the failure").status()));
        };
        for number in 0..=good {
            let bytes = [0; 9];
            let bytes = &bytes[..if number < good { 8 } else { 9 }];
            cq.req_notify(true).expect("armed");
            let posted = qp.post_one(|list| {
                list.send(Inline(bytes));
            });
            posted.expect("posted");
            // If the receiver was fast, this poll takes the failure. Its event comes nevertheless.
            poll_failures(&mut statuses);
            assert!(statuses.is_empty() || number == good, "unsignaled");
        }
        assert!(is_readable(&channel, PATIENCE), "no event of the failure");
        assert_eq!(channel.wait_for_cq_event().expect("an event"), cq.id());
        poll_failures(&mut statuses);
        assert_eq!(statuses.len(), 1, "{statuses:?}");
    }
}
