//! Tests of the requester's rules.

use roce::counts::StateMachineCounters;
use roce::opcode::{LastPacketField, MessagePosition, PacketOperation};
use roce::rc::requester::{
    LocalFault, LocalMemory, Request, RequestFailure, RequestOperation, Requester, RequesterConfig,
};

use crate::text::*;
use MessagePosition::{First, Last, Middle, Only};

/// Memory that records the ranges of results. The payload of one position cannot be read, and the result of one cannot
/// be written.
#[derive(Default)]
struct Memory {
    results: Vec<(u64, u32, usize)>,
    unreadable: u64,
    unwritable: u64,
}

impl LocalMemory for Memory {
    fn read_payload(
        &mut self,
        position: u64,
        _offset: u32,
        into: &mut [u8],
    ) -> Result<(), LocalFault> {
        into.fill(0x5a);
        (position != self.unreadable)
            .then_some(())
            .ok_or(LocalFault)
    }

    fn write_read_or_atomic_result(
        &mut self,
        position: u64,
        offset: u32,
        bytes: &[u8],
    ) -> Result<(), LocalFault> {
        self.results.push((position, offset, bytes.len()));
        (position != self.unwritable)
            .then_some(())
            .ok_or(LocalFault)
    }
}

/// A step of a test.
enum Step {
    Post(RequestOperation),
    PostFenced(RequestOperation),
    Take(Sample),
    /// Advances the time by this many nanoseconds and applies the expired timers.
    Wait(u64),
}

use Step::{Post, PostFenced, Take, Wait};

const TIMEOUT_NS: u64 = 1_000_000;

fn config() -> RequesterConfig {
    RequesterConfig {
        dest_qpn: 20,
        mtu_bytes: MTU,
        first_psn: FIRST,
        timeout_ns: Some(TIMEOUT_NS),
        retry_cnt: 2,
        rnr_retry: 1,
        max_rd_atomic: 2,
        min_probe_wait_ns: None,
        ..RequesterConfig::default()
    }
}

struct Bench {
    requester: Requester,
    memory: Memory,
    now_ns: u64,
}

impl Bench {
    fn new(config: RequesterConfig) -> Self {
        Self {
            requester: Requester::new(config),
            memory: Memory::default(),
            now_ns: 1,
        }
    }

    /// Returns the packets sent after each step.
    fn run(&mut self, steps: Vec<Step>) -> Vec<String> {
        let mut texts = Vec::new();
        for step in steps {
            match step {
                Post(operation) => self.post(operation, false),
                PostFenced(operation) => self.post(operation, true),
                Take(sample) => {
                    self.requester.process_received_packet(
                        self.now_ns,
                        &sample.packet(),
                        &mut self.memory,
                    );
                }
                Wait(wait_ns) => {
                    self.now_ns += wait_ns;
                    self.requester
                        .apply_expired_timers(self.now_ns, self.now_ns);
                }
            }
            let mut bytes = Vec::new();
            while self
                .requester
                .append_next_packet(self.now_ns, &mut self.memory, &mut bytes)
            {
                texts.push(describe(&bytes));
                bytes.clear();
            }
        }
        texts
    }

    fn post(&mut self, operation: RequestOperation, fence: bool) {
        self.requester.post(Request {
            operation,
            solicited: false,
            fence,
        });
    }
}

fn send(len: u32) -> Step {
    let tail = LastPacketField::None;
    Post(RequestOperation::Send { len, tail })
}

fn write(len: u32) -> Step {
    Post(write_of(len))
}

fn write_of(len: u32) -> RequestOperation {
    RequestOperation::Write {
        addr: 64,
        rkey: RKEY,
        len,
        imm: None,
    }
}

fn read(len: u32) -> Step {
    Post(read_of(len))
}

fn read_of(len: u32) -> RequestOperation {
    RequestOperation::Read {
        addr: 1000,
        rkey: RKEY,
        len,
    }
}

fn fetch_add() -> Step {
    Post(RequestOperation::FetchAdd {
        addr: 8,
        rkey: RKEY,
        add: 1,
    })
}

/// A row of a table: the rule, the steps, the sent packets, the number of requests done, and the failure of the oldest
/// one.
type Row<'a> = (
    &'a str,
    Vec<Step>,
    &'a [&'a str],
    u64,
    Option<RequestFailure>,
);

fn check(config: RequesterConfig, rows: Vec<Row<'_>>) {
    for (rule, steps, due, done, failure) in rows {
        let mut bench = Bench::new(config);
        assert_eq!(bench.run(steps), due, "{rule}");
        assert_eq!(bench.requester.done_request_count(), done, "{rule}");
        assert_eq!(bench.requester.failure(), failure, "{rule}");
    }
}

#[test]
#[rustfmt::skip] // a row is a line
fn messages_are_segmented_and_acknowledged() {
    check(
        config(),
        vec![
            ("an empty message is a packet", vec![send(0)], &["send only 0 0 ask"], 0, None),
            ("the last packet asks", vec![send(513)], &["send first 0 256", "send middle 1 256", "send last 2 1 ask"], 0, None),
            ("the first packet has the RETH", vec![write(512)], &["write first 0 256 @64+512", "write last 1 256 ask"], 0, None),
            ("an ACK completes what is in front of it", vec![send(1), send(1), send(1), Take(ack(1))], &["send only 0 1 ask", "send only 1 1 ask", "send only 2 1 ask"], 2, None),
            ("an ACK in a message completes nothing", vec![send(600), Take(ack(1))], &["send first 0 256", "send middle 1 256", "send last 2 88 ask"], 0, None),
            ("a repeated ACK means nothing", vec![send(1), Take(ack(0)), Take(ack(0)), send(1)], &["send only 0 1 ask", "send only 1 1 ask"], 1, None),
            ("an ACK of what was not sent means nothing", vec![send(1), Take(ack(1)), Take(ack(100))], &["send only 0 1 ask"], 0, None),
            ("a request means nothing", vec![send(1), Take(write_only(0, 1))], &["send only 0 1 ask"], 0, None),
        ],
    );
}

#[test]
#[rustfmt::skip] // a row is a line
fn results_are_taken_in_order() {
    check(
        config(),
        vec![
            ("a READ takes a PSN for each response", vec![read(600), send(1)], &["read 0 @1000+600", "send only 3 1 ask"], 0, None),
            ("a READ is done when all responses have come", vec![read(300), Take(response(First, 0, 256)), Take(response(Last, 1, 44))], &["read 0 @1000+300"], 1, None),
            ("an empty READ has a response", vec![read(0), Take(response(Only, 0, 0))], &["read 0 @1000+0"], 1, None),
            ("a response acknowledges what is in front", vec![send(1), read(8), Take(response(Only, 1, 8))], &["send only 0 1 ask", "read 1 @1000+8"], 2, None),
            ("an atomic", vec![fetch_add(), Take(atomic_response(0, 5))], &["fetchadd 0"], 1, None),
            ("no more than max_rd_atomic are out", vec![read(1), fetch_add(), read(1), send(1), Take(response(Only, 0, 1))], &["read 0 @1000+1", "fetchadd 1", "read 2 @1000+1", "send only 3 1 ask"], 1, None),
            ("a fence waits for READs and atomics", vec![read(1), send(1), PostFenced(write_of(1)), send(1), Take(response(Only, 0, 1))], &["read 0 @1000+1", "send only 1 1 ask", "write only 2 1 @64+1 ask", "send only 3 1 ask"], 1, None),
            ("a response that is too short", vec![read(300), Take(response(First, 0, 255))], &["read 0 @1000+300"], 0, Some(RequestFailure::BadResponse)),
            ("a response that ends too early", vec![read(300), Take(response(Only, 0, 256))], &["read 0 @1000+300"], 0, Some(RequestFailure::BadResponse)),
            ("a READ response to an atomic", vec![fetch_add(), Take(response(Only, 0, 8))], &["fetchadd 0"], 0, Some(RequestFailure::BadResponse)),
            ("an atomic response to a READ", vec![read(8), Take(atomic_response(0, 8))], &["read 0 @1000+8"], 0, Some(RequestFailure::BadResponse)),
            ("a response to a SEND", vec![send(8), Take(response(Only, 0, 8))], &["send only 0 8 ask"], 0, Some(RequestFailure::BadResponse)),
        ],
    );
}

#[test]
#[rustfmt::skip] // a row is a line
fn flush_and_atomic_write_end_with_an_empty_response() {
    let (addr, rkey) = (0, RKEY);
    let flush = RequestOperation::Flush {
        addr,
        rkey,
        len: 9,
        placement: 1,
        selectivity: 0,
    };
    let atomic_write = RequestOperation::AtomicWrite { addr, rkey };
    check(
        config(),
        vec![
            ("FLUSH", vec![Post(flush), Take(response(Only, 0, 0))], &["flush 0"], 1, None),
            ("ATOMIC WRITE", vec![Post(atomic_write), Take(response(Only, 0, 0))], &["atomicwrite 0"], 1, None),
            ("no data comes with it", vec![Post(flush), Take(response(Only, 0, 1))], &["flush 0"], 0, Some(RequestFailure::BadResponse)),
        ],
    );
}

#[test]
#[rustfmt::skip] // a row is a line
fn losses_are_repaired() {
    check(
        config(),
        vec![
            ("a NAK acknowledges what is in front, and the rest is sent again", vec![send(1), send(1), send(1), Take(nak(1, 0))], &["send only 0 1 ask", "send only 1 1 ask", "send only 2 1 ask", "send only 1 1 ask", "send only 2 1 ask"], 1, None),
            ("the same NAK again means nothing", vec![send(1), send(1), Take(nak(1, 0)), Take(nak(1, 0))], &["send only 0 1 ask", "send only 1 1 ask", "send only 1 1 ask"], 1, None),
            ("a NAK in a message", vec![send(600), Take(nak(1, 0))], &["send first 0 256", "send middle 1 256", "send last 2 88 ask", "send middle 1 256", "send last 2 88 ask"], 0, None),
            ("an ACK behind a READ says that its response is lost", vec![read(1), send(1), Take(ack(1))], &["read 0 @1000+1", "send only 1 1 ask", "read 0 @1000+1", "send only 1 1 ask"], 0, None),
            ("so does the next response", vec![read(1), read(1), Take(response(Only, 1, 1))], &["read 0 @1000+1", "read 1 @1000+1", "read 0 @1000+1", "read 1 @1000+1"], 0, None),
            ("so does an ACK with the READ's own PSN", vec![read(1), Take(ack(0))], &["read 0 @1000+1", "read 0 @1000+1"], 0, None),
            ("the rest of a READ is asked for at once", vec![read(600), Take(response(First, 0, 256)), Take(response(Last, 2, 88))], &["read 0 @1000+600", "read 1 @1256+344"], 0, None),
            ("Soft-RoCE goes on with MIDDLE", vec![read(600), Take(response(First, 0, 256)), Wait(TIMEOUT_NS), Take(response(Middle, 1, 256)), Take(response(Last, 2, 88))], &["read 0 @1000+600", "read 1 @1256+344"], 1, None),
            ("hardware begins with FIRST", vec![read(600), Take(response(First, 0, 256)), Wait(TIMEOUT_NS), Take(response(First, 1, 256)), Take(response(Last, 2, 88))], &["read 0 @1000+600", "read 1 @1256+344"], 1, None),
            ("hardware ends with ONLY", vec![read(300), Take(response(First, 0, 256)), Wait(TIMEOUT_NS), Take(response(Only, 1, 44))], &["read 0 @1000+300", "read 1 @1256+44"], 1, None),
            ("a late answer makes the retry superfluous", vec![send(1), Wait(TIMEOUT_NS), Take(ack(0)), Wait(10 * TIMEOUT_NS)], &["send only 0 1 ask", "send only 0 1 ask"], 1, None),
        ],
    );
}

#[test]
#[rustfmt::skip] // a row is a line
fn retries_are_limited() {
    let once = "send only 0 1 ask";
    let timeouts = |count| {
        let mut steps = vec![send(1)];
        steps.extend((0..count).map(|_| Wait(TIMEOUT_NS)));
        steps
    };
    let mut progress = vec![send(1), send(1), Wait(TIMEOUT_NS), Wait(TIMEOUT_NS)];
    progress.push(Take(ack(0)));
    progress.extend([Wait(TIMEOUT_NS), Wait(TIMEOUT_NS)]);
    let second = "send only 1 1 ask";
    check(
        config(),
        vec![
            ("not before the timeout", vec![send(1), Wait(TIMEOUT_NS - 1)], &[once], 0, None),
            ("retry_cnt times", timeouts(2), &[once; 3], 0, None),
            ("and no more", timeouts(3), &[once; 3], 0, Some(RequestFailure::RetryExceeded)),
            ("progress gives all retries back", progress, &[once, second, once, second, once, second, second, second], 1, None),
        ],
    );
    let none = RequesterConfig {
        retry_cnt: 0,
        ..config()
    };
    check(
        none,
        vec![
            ("retry_cnt 0: the first timeout fails", timeouts(1), &[once], 0, Some(RequestFailure::RetryExceeded)),
            ("retry_cnt 0: so does a NAK", vec![send(1), Take(nak(0, 0))], &[once], 0, Some(RequestFailure::RetryExceeded)),
        ],
    );
    let seven = RequesterConfig {
        retry_cnt: 7,
        ..config()
    };
    check(
        seven,
        vec![(
            "retry_cnt 7 is a number",
            timeouts(8),
            &[once; 8],
            0,
            Some(RequestFailure::RetryExceeded),
        )],
    );
    let patient = RequesterConfig {
        timeout_ns: None,
        ..config()
    };
    check(
        patient,
        vec![(
            "without timeout it waits for ever",
            timeouts(50),
            &[once],
            0,
            None,
        )],
    );
}

/// The acknowledgement may wait in a socket buffer because no thread has received it yet.
#[test]
fn a_timeout_counts_once_all_that_came_before_was_received() {
    let unforgiving = RequesterConfig {
        retry_cnt: 0,
        ..config()
    };
    let mut bench = Bench::new(unforgiving);
    bench.run(vec![send(1), send(1)]);
    let timeout = bench
        .requester
        .next_call_time_ns()
        .expect("packets are out");
    bench.now_ns = timeout + 100 * TIMEOUT_NS;
    bench
        .requester
        .apply_expired_timers(bench.now_ns, timeout - 1);
    assert_eq!(bench.requester.failure(), None);
    bench.run(vec![Take(ack(0))]);
    assert_eq!(bench.requester.done_request_count(), 1);
    let timeout = bench
        .requester
        .next_call_time_ns()
        .expect("one packet is out");
    assert_eq!(
        timeout,
        bench.now_ns + TIMEOUT_NS,
        "progress begins it anew"
    );
    bench
        .requester
        .apply_expired_timers(timeout - 1, timeout + 1);
    assert_eq!(bench.requester.failure(), None);
    bench.requester.apply_expired_timers(timeout, timeout);
    assert_eq!(
        bench.requester.failure(),
        Some(RequestFailure::RetryExceeded)
    );
}

#[test]
fn probes_come_early_and_do_not_count() {
    let probing = RequesterConfig {
        min_probe_wait_ns: Some(1000),
        ..config()
    };
    let mut bench = Bench::new(probing);
    assert_eq!(bench.run(vec![send(1), Wait(999)]).len(), 1);
    // Probes are 1000, 2000 .. 256,000 ns apart; after them, the timeout comes first.
    let mut sent = 1;
    while bench.now_ns < TIMEOUT_NS {
        let deadline = bench
            .requester
            .next_call_time_ns()
            .expect("a packet is out");
        sent += bench.run(vec![Wait(deadline - bench.now_ns)]).len();
    }
    assert_eq!(sent, 1 + 9 + 1);
    while let Some(deadline) = bench.requester.next_call_time_ns() {
        bench.run(vec![Wait(deadline - bench.now_ns)]);
    }
    assert_eq!(bench.now_ns, 1 + 3 * TIMEOUT_NS, "as without probes");
    assert_eq!(
        bench.requester.failure(),
        Some(RequestFailure::RetryExceeded)
    );
}

/// A peer that lost its core answers late, and then answers everything at once.
#[test]
fn a_probe_is_one_packet_and_its_answer_says_what_is_lost() {
    let probing = RequesterConfig {
        min_probe_wait_ns: Some(1000),
        ..config()
    };
    let sends = || (0..4).map(|_| send(1)).collect::<Vec<_>>();
    let mut late = Bench::new(probing);
    assert_eq!(late.run(sends()).len(), 4);
    let first = "send only 0 1 ask";
    assert_eq!(late.run(vec![Wait(1000), send(1)]), [first]);
    assert_eq!(late.run(vec![Take(ack(3))]), ["send only 4 1 ask"]);
    assert!(late.run(vec![Take(ack(3))]).is_empty());
    assert_eq!(late.requester.done_request_count(), 4);

    let mut lost = Bench::new(probing);
    lost.run(sends());
    assert_eq!(lost.run(vec![Wait(1000)]), [first]);
    let resent = (1..4).map(|index| format!("send only {index} 1 ask"));
    assert_eq!(
        lost.run(vec![Take(ack(0))]),
        resent.collect::<Vec<_>>(),
        "the others were lost, too"
    );
}

/// The acknowledgement of a retransmitted packet does not measure a round trip. A late response to a probe does not
/// shorten the wait for the next one.
#[test]
fn probes_learn_how_long_a_round_trip_is() {
    const ROUND_TRIP_NS: u64 = 5000;
    let probing = RequesterConfig {
        min_probe_wait_ns: Some(1000),
        ..config()
    };
    let mut bench = Bench::new(probing);
    let mut sent = 0;
    for index in 0..20 {
        let answered_ns = bench.now_ns + ROUND_TRIP_NS;
        sent += bench.run(vec![send(1)]).len();
        while let Some(deadline) = bench.requester.next_call_time_ns()
            && deadline < answered_ns
        {
            sent += bench.run(vec![Wait(deadline - bench.now_ns)]).len();
        }
        let rest_ns = answered_ns - bench.now_ns;
        sent += bench.run(vec![Wait(rest_ns), Take(ack(index))]).len();
    }
    assert_eq!(bench.requester.done_request_count(), 20);
    // Probes are sent 1000 and 3000 ns after the first message and 4000 ns after the second. The next wait, 8000 ns, is
    // longer than the round trip.
    assert_eq!(sent, 20 + 3);
}

/// A slow Soft-RoCE with several queue pairs answers all READs in the order in which it was asked. A repeated READ is
/// answered after those.
#[test]
fn gaps_in_responses_do_not_count_as_retries() {
    let mut bench = Bench::new(config());
    bench.run(vec![send(1), Wait(10), Take(ack(0))]);
    let read = "read 1 @1000+257";
    assert_eq!(bench.run(vec![self::read(MTU + 1)]), [read]);
    // The second response arrives again and again, but never the first.
    let mut asked = 1;
    while bench.now_ns < TIMEOUT_NS / 2 {
        let late = bench.run(vec![Take(response(Last, 2, 1)), Wait(100)]);
        asked += late.iter().filter(|packet| *packet == read).count();
    }
    assert!((4..20).contains(&asked), "each time twice as late: {asked}");
    assert_eq!(bench.requester.failure(), None);
    bench.run(vec![
        Take(response(First, 1, MTU)),
        Take(response(Last, 2, 1)),
    ]);
    assert_eq!(bench.requester.done_request_count(), 2);
}

#[test]
#[rustfmt::skip] // a row is a line
fn a_receiver_that_is_not_ready_is_asked_again() {
    let wait_ns = 640_000;
    let once = "send only 0 1 ask";
    check(
        config(),
        vec![
            ("after the time of its code", vec![send(1), Take(rnr(0, 12)), Wait(wait_ns - 1)], &[once], 0, None),
            ("and then at once", vec![send(1), Take(rnr(0, 12)), Wait(wait_ns)], &[once; 2], 0, None),
            ("the same RNR NAK again means nothing", vec![send(1), Take(rnr(0, 12)), Take(rnr(0, 12)), Wait(wait_ns), Take(ack(0))], &[once; 2], 1, None),
            ("rnr_retry times", vec![send(1), Take(rnr(0, 12)), Wait(wait_ns), Take(rnr(0, 12))], &[once; 2], 0, Some(RequestFailure::RnrRetryExceeded)),
            ("it acknowledges what is in front", vec![send(1), send(1), Take(rnr(1, 12))], &[once, "send only 1 1 ask"], 1, None),
            ("a new request waits, too", vec![send(1), Take(rnr(0, 12)), send(1), Wait(wait_ns)], &[once, once, "send only 1 1 ask"], 0, None),
        ],
    );
    let mut bench = Bench::new(RequesterConfig {
        rnr_retry: 7,
        ..config()
    });
    bench.run(vec![send(1)]);
    for _ in 0..100 {
        bench.run(vec![Take(rnr(0, 12)), Wait(wait_ns)]);
    }
    assert_eq!(bench.requester.failure(), None, "rnr_retry 7 is for ever");
}

#[test]
#[rustfmt::skip] // a row is a line
fn refusals_fail_their_request() {
    let sent: &[&str] = &["send only 0 1 ask", "send only 1 1 ask"];
    let refused = |code| {
        vec![
            send(1),
            send(1),
            Take(nak(1, code)),
            Take(ack(1)),
            send(1),
            Wait(TIMEOUT_NS),
        ]
    };
    check(
        config(),
        vec![
            ("invalid request", refused(1), sent, 1, Some(RequestFailure::RemoteInvalidRequest)),
            ("remote access", refused(2), sent, 1, Some(RequestFailure::RemoteAccess)),
            ("remote operational", refused(3), sent, 1, Some(RequestFailure::RemoteOperational)),
            ("any other code", refused(9), sent, 1, Some(RequestFailure::RemoteOperational)),
            ("a refusal behind a lost response starts a retry", vec![read(1), send(1), Take(nak(1, 2))], &["read 0 @1000+1", "send only 1 1 ask", "read 0 @1000+1", "send only 1 1 ask"], 0, None),
        ],
    );
}

#[test]
fn own_memory_that_cannot_be_used_fails_its_request() {
    let mut bench = Bench::new(config());
    bench.memory.unreadable = 2;
    let sent = bench.run(vec![send(1), send(1), send(1)]);
    assert_eq!(sent, ["send only 0 1 ask"], "nothing behind it goes out");
    assert_eq!(
        bench.requester.failure(),
        None,
        "what is in front ends first"
    );
    bench.run(vec![Take(ack(0))]);
    assert_eq!(bench.requester.done_request_count(), 1);
    assert_eq!(
        bench.requester.failure(),
        Some(RequestFailure::LocalProtection)
    );

    let mut bench = Bench::new(config());
    bench.memory.unwritable = 1;
    bench.run(vec![read(1), Take(response(Only, 0, 1))]);
    assert_eq!(
        bench.requester.failure(),
        Some(RequestFailure::LocalProtection)
    );
}

#[test]
#[rustfmt::skip] // a row is a line
fn the_window_limits_what_is_out() {
    let narrow = RequesterConfig {
        window_packets: 4,
        ..config()
    };
    check(
        narrow,
        vec![
            ("each quarter of it asks", vec![send(6 * 256), Take(ack(1))], &["send first 0 256 ask", "send middle 1 256 ask", "send middle 2 256 ask", "send middle 3 256 ask", "send middle 4 256 ask", "send last 5 256 ask"], 0, None),
            ("a longer READ is several requests, and what follows waits", vec![read(5 * 256), send(1), Take(response(First, 0, 256)), Take(response(Last, 1, 256))], &["read 0 @1000+512", "read 2 @1512+512", "read 4 @2024+256", "send only 5 1 ask"], 0, None),
            ("of which the rest is asked for after a loss", vec![read(4 * 256), Take(response(First, 0, 256)), Take(response(First, 2, 256)), Take(response(Last, 1, 256))], &["read 0 @1000+512", "read 2 @1512+512", "read 1 @1256+256", "read 2 @1512+512"], 0, None),
            ("each ends with LAST", vec![read(4 * 256), Take(response(First, 0, 256)), Take(response(Middle, 1, 256))], &["read 0 @1000+512", "read 2 @1512+512"], 0, Some(RequestFailure::BadResponse)),
            ("a fence holds the first of them only", vec![read(1), PostFenced(read_of(3 * 256)), Take(response(Only, 0, 1))], &["read 0 @1000+1", "read 1 @1000+512", "read 3 @1512+256"], 1, None),
        ],
    );
    let mut bench = Bench::new(config());
    let sent = bench.run(vec![send(256 * 300)]);
    assert_eq!(sent.len(), 256);
    assert_eq!(sent.iter().filter(|text| text.ends_with("ask")).count(), 8);
}

#[test]
fn results_name_their_request_and_place() {
    let mut bench = Bench::new(config());
    bench.run(vec![
        send(1),
        read(300),
        fetch_add(),
        Take(response(First, 1, 256)),
        Take(response(Last, 2, 44)),
        Take(atomic_response(3, 1)),
    ]);
    assert_eq!(bench.memory.results, [(2, 0, 256), (2, 256, 44), (3, 0, 8)]);
}

#[test]
fn notifications_slow_the_requester_down() {
    let mut bench = Bench::new(config());
    bench.run(vec![Take(Sample::new(PacketOperation::Cnp, Only, 0))]);
    assert_eq!(bench.run(vec![write(600)]).len(), 1);
    let deadline = bench
        .requester
        .next_call_time_ns()
        .expect("the second waits");
    // The packet has 256 bytes of payload and 28 bytes of headers, sent at 20 Gb/s.
    assert_eq!(deadline, bench.now_ns + 113);
    assert!(bench.run(vec![Wait(112)]).is_empty());
    assert_eq!(bench.run(vec![Wait(1)]).len(), 1);
}

#[test]
fn attributes_change_later() {
    let mut bench = Bench::new(config());
    bench.requester.set_timeout_ns(Some(10));
    bench.requester.set_retry_cnt(0);
    bench.requester.set_rnr_retry(0);
    bench.requester.set_max_rd_atomic(1);
    assert_eq!(bench.run(vec![read(1), read(1)]).len(), 1);
    bench.run(vec![Wait(10)]);
    assert_eq!(
        bench.requester.failure(),
        Some(RequestFailure::RetryExceeded)
    );
    let mut bench = Bench::new(config());
    bench.requester.set_rnr_retry(0);
    bench.run(vec![send(1), Take(rnr(0, 1))]);
    assert_eq!(
        bench.requester.failure(),
        Some(RequestFailure::RnrRetryExceeded)
    );
}

/// A row of a table: the configuration, the steps, and the expected counters.
type CountRow = (RequesterConfig, Vec<Step>, StateMachineCounters);

#[test]
#[rustfmt::skip] // a row is a line
fn losses_refusals_and_notifications_are_counted() {
    let none = StateMachineCounters::default();
    let cnp = || Take(Sample::new(PacketOperation::Cnp, Only, 0));
    let hasty = RequesterConfig { retry_cnt: 0, rnr_retry: 0, ..config() };
    let probing = RequesterConfig { min_probe_wait_ns: Some(1000), ..config() };
    let rows: Vec<CountRow> = vec![
        (config(), vec![send(1), write(1), Take(ack(1))], StateMachineCounters { rdma_sends: 1, ..none }),
        (config(), vec![send(1), Take(nak(0, 0)), Take(ack(0))], StateMachineCounters { rcvd_seq_err: 1, completer_retry_err: 1, rdma_sends: 1, ..none }),
        (config(), vec![write(1), Wait(TIMEOUT_NS)], StateMachineCounters { completer_retry_err: 1, ..none }),
        (probing, vec![write(1), Wait(1000)], StateMachineCounters { completer_retry_err: 1, ..none }),
        (hasty, vec![write(1), Wait(TIMEOUT_NS)], StateMachineCounters { retry_exceeded_err: 1, ..none }),
        (config(), vec![send(1), Take(rnr(0, 12))], StateMachineCounters { rcvd_rnr_err: 1, ..none }),
        (hasty, vec![send(1), Take(rnr(0, 12))], StateMachineCounters { rcvd_rnr_err: 1, retry_rnr_exceeded_err: 1, ..none }),
        (config(), vec![cnp(), cnp()], StateMachineCounters { rp_cnp_handled: 2, ..none }),
        // No request is outstanding that these packets could answer.
        (config(), vec![Take(ack(0)), Take(nak(0, 0)), Take(rnr(0, 12))], none),
    ];
    for (index, (config, steps, due)) in rows.into_iter().enumerate() {
        let mut bench = Bench::new(config);
        bench.run(steps);
        assert_eq!(bench.requester.counts, due, "row {index}");
    }
}

#[test]
fn a_nak_for_a_psn_before_the_first_tells_what_the_responder_expects() {
    let asked_for = |steps| {
        let mut bench = Bench::new(config());
        bench.run(steps);
        bench.requester.never_sent_psn_asked_for()
    };
    let early = || Take(nak((1 << 24) - 5, 0));
    assert_eq!(asked_for(vec![send(1), early()]), Some(FIRST.minus(5)));
    assert_eq!(asked_for(vec![send(1), Take(nak(0, 0))]), None);
    // A NAK of an earlier connection.
    assert_eq!(asked_for(vec![send(1), early(), Take(ack(0))]), None);
}
