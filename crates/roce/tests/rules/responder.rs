//! Tests of the responder's rules.

use roce::counts::StateMachineCounters;
use roce::opcode::{LastPacketField, MessagePosition, PacketOperation};
use roce::rc::responder::{
    AllowedOperations, AtomicOperation, Refusal, Responder, ResponderConfig, ResponderTarget,
};

use crate::text::*;
use MessagePosition::{First, Last, Middle, Only};

/// Memory of 4096 bytes, and a receive queue.
struct Memory {
    bytes: Vec<u8>,
    receives: u32,
    completions: u32,
    writes: u32,
    /// True if another queue pair takes the receive work request after `try_begin_receive` has reported it.
    is_stolen: bool,
}

impl Memory {
    fn check(addr: u64, rkey: u32, len: u32) -> Result<(), Refusal> {
        let fits = addr + u64::from(len) <= 4096;
        (fits && rkey == RKEY)
            .then_some(())
            .ok_or(Refusal::RemoteAccess)
    }
}

impl ResponderTarget for Memory {
    fn try_begin_receive(&mut self) -> bool {
        self.receives > 0
    }

    fn write_to_receive_buffers(&mut self, _offset: u32, bytes: &[u8]) -> Result<(), Refusal> {
        // Each receive work request has a buffer of 1000 bytes.
        (bytes.len() <= 1000)
            .then_some(())
            .ok_or(Refusal::RemoteOperational)
    }

    fn finish_receive(
        &mut self,
        _by_write: Option<u32>,
        tail: LastPacketField,
        _solicited: bool,
    ) -> Result<(), Refusal> {
        if std::mem::take(&mut self.is_stolen) {
            return Err(Refusal::NotReady);
        }
        if matches!(tail, LastPacketField::Invalidate(rkey) if rkey != RKEY) {
            return Err(Refusal::RemoteOperational);
        }
        self.receives -= 1;
        self.completions += 1;
        Ok(())
    }

    fn check_write(&mut self, addr: u64, rkey: u32, len: u32) -> Result<(), Refusal> {
        Self::check(addr, rkey, len)
    }

    fn write_memory(&mut self, addr: u64, _rkey: u32, bytes: &[u8]) -> Result<(), Refusal> {
        let start = usize::try_from(addr).expect("small");
        self.bytes[start..start + bytes.len()].copy_from_slice(bytes);
        self.writes += 1;
        Ok(())
    }

    fn check_read(&mut self, addr: u64, rkey: u32, len: u32) -> Result<(), Refusal> {
        Self::check(addr, rkey, len)
    }

    fn read_memory(&mut self, addr: u64, _rkey: u32, into: &mut [u8]) -> Result<(), Refusal> {
        let start = usize::try_from(addr).expect("small");
        into.copy_from_slice(&self.bytes[start..start + into.len()]);
        Ok(())
    }

    fn execute_atomic(
        &mut self,
        addr: u64,
        _rkey: u32,
        atomic: AtomicOperation,
    ) -> Result<u64, Refusal> {
        let start = usize::try_from(addr).expect("small");
        let place = &mut self.bytes[start..start + 8];
        let original = u64::from_ne_bytes(place.try_into().expect("8 bytes"));
        match atomic {
            AtomicOperation::FetchAdd { add } => {
                place.copy_from_slice(&(original + add).to_ne_bytes())
            }
            AtomicOperation::Write(bytes) => place.copy_from_slice(&bytes),
            AtomicOperation::CompareSwap { .. } => {}
        }
        self.writes += 1;
        Ok(original)
    }

    fn execute_flush(
        &mut self,
        addr: u64,
        rkey: u32,
        len: u32,
        _placement: u8,
        _selectivity: u8,
    ) -> Result<(), Refusal> {
        self.writes += 1;
        Self::check(addr, rkey, len)
    }
}

struct Bench {
    responder: Responder,
    memory: Memory,
}

impl Bench {
    fn new(config: ResponderConfig) -> Self {
        Self {
            responder: Responder::new(ResponderConfig {
                dest_qpn: 20,
                mtu_bytes: MTU,
                first_psn: FIRST,
                min_rnr_timer: 12,
                ..config
            }),
            memory: Memory {
                bytes: vec![0; 4096],
                receives: 2,
                completions: 0,
                writes: 0,
                is_stolen: false,
            },
        }
    }

    fn receive(&mut self, sample: &Sample) {
        self.responder
            .process_received_packet(0, &sample.packet(), false, &mut self.memory);
        self.responder.queue_gap_nak_if_due(0);
    }

    fn sent(&mut self) -> Vec<String> {
        let mut texts = Vec::new();
        let mut bytes = Vec::new();
        while self
            .responder
            .append_next_packet(0, &mut self.memory, &mut bytes)
        {
            texts.push(describe(&bytes));
            bytes.clear();
        }
        texts
    }

    /// Returns the packets sent after each received packet.
    fn answers(&mut self, samples: &[Sample]) -> Vec<String> {
        let mut texts = Vec::new();
        for sample in samples {
            self.receive(sample);
            texts.extend(self.sent());
        }
        texts
    }
}

/// A row of a table: the rule, the received packets, the sent packets, and true if the queue pair fails.
type Row<'a> = (&'a str, Vec<Sample>, &'a [&'a str], bool);

fn check(config: ResponderConfig, rows: Vec<Row<'_>>) {
    for (rule, samples, due, fails) in rows {
        let mut bench = Bench::new(config);
        assert_eq!(bench.answers(&samples), due, "{rule}");
        assert_eq!(bench.responder.has_failed(), fails, "{rule}");
    }
}

fn both() -> ResponderConfig {
    ResponderConfig {
        max_dest_rd_atomic: 2,
        ..ResponderConfig::default()
    }
}

#[test]
#[rustfmt::skip] // a row is a line
fn requests_are_answered_in_order() {
    check(
        both(),
        vec![
            ("an ACK is sent only if it is asked for", vec![write_only(0, 8)], &[], false),
            ("an ACK has the PSN of the packet that asks", vec![write_only(0, 8), write_only(1, 8).ack()], &["ack 1"], false),
            ("an ACK may come in a message", vec![send(First, 0, 256).ack(), send(Last, 1, 1).ack()], &["ack 0", "ack 1"], false),
            ("PSNs wrap", (0..4).map(|index| write_only(index, 8).ack()).collect(), &["ack 0", "ack 1", "ack 2", "ack 3"], false),
            ("a READ is answered without being asked", vec![read(0, 0, 100)], &["response only 0 100"], false),
            ("a READ takes a PSN for each response", vec![read(0, 0, 600), write_only(3, 1).ack()], &["response first 0 256", "response middle 1 256 bare", "response last 2 88", "ack 3"], false),
            ("an empty READ has one response; its key is not looked at", vec![read(0, 9999, 0).rkey(1)], &["response only 0 0"], false),
            ("an empty WRITE's key is not looked at", vec![write_only(0, 0).rkey(1).ack()], &["ack 0"], false),
            ("an empty SEND completes a receive", vec![send(Only, 0, 0).ack()], &["ack 0"], false),
            ("an atomic gives the original value", vec![fetch_add(0, 8, 5), fetch_add(1, 8, 1)], &["original 0 0", "original 1 5"], false),
            ("FLUSH and ATOMIC WRITE are answered by an empty READ response", vec![flush(0), atomic_write(1, 8)], &["response only 0 0", "response only 1 0"], false),
            ("a packet that asks nothing is ignored", vec![ack(0), response(Only, 0, 4)], &[], false),
        ],
    );
}

#[test]
#[rustfmt::skip] // a row is a line
fn missing_packets_are_asked_for() {
    check(
        both(),
        vec![
            ("one NAK for a gap", vec![write_only(1, 1), write_only(2, 1), write_only(3, 1)], &["nak0 0"], false),
            ("a new gap has a new NAK", vec![write_only(1, 1), write_only(0, 1), write_only(2, 1)], &["nak0 0", "ack 0", "nak0 1"], false),
            ("a retry that has lost the packet again has a NAK", vec![write_only(1, 1), write_only(2, 1), write_only(1, 1), write_only(2, 1)], &["nak0 0", "nak0 0"], false),
            ("what is ahead is not executed", vec![write_only(1, 1).ack(), write_only(0, 1).ack(), write_only(1, 1).ack()], &["nak0 0", "ack 0", "ack 1"], false),
            ("a PSN from before the connection is dropped", vec![write_only(u32::MAX, 1).ack()], &[], false),
        ],
    );
}

#[test]
#[rustfmt::skip] // a row is a line
fn repeated_requests_are_answered_again_and_not_executed() {
    check(
        both(),
        vec![
            ("a SEND, even if it does not ask", vec![send(Only, 0, 1), send(Only, 0, 1)], &["ack 0"], false),
            ("as far as everything came", vec![write_only(0, 1), write_only(1, 1), write_only(0, 1)], &["ack 1"], false),
            ("but not over a READ", vec![write_only(0, 1), read(1, 0, 1), write_only(2, 1), write_only(0, 1)], &["response only 1 1", "ack 0"], false),
            ("a READ is read again", vec![read(0, 0, 300), read(0, 0, 300)], &["response first 0 256", "response last 1 44", "response first 0 256", "response last 1 44"], false),
            ("the rest of a READ begins with MIDDLE or LAST", vec![read(0, 0, 600), read(1, 256, 344)], &["response first 0 256", "response middle 1 256 bare", "response last 2 88", "response middle 1 256 bare", "response last 2 88"], false),
            ("a READ of something else is dropped", vec![read(0, 0, 8), read(0, 8, 8), read(0, 0, 9), read(0, 0, 8).rkey(9)], &["response only 0 8"], false),
            ("an atomic gives the same value", vec![fetch_add(0, 8, 5), fetch_add(1, 8, 5), fetch_add(0, 8, 5)], &["original 0 0", "original 1 5", "original 0 0"], false),
            ("only the newest are kept", vec![fetch_add(0, 8, 5), fetch_add(1, 8, 5), fetch_add(2, 8, 5), fetch_add(0, 8, 5), fetch_add(1, 8, 5)], &["original 0 0", "original 1 5", "original 2 10", "original 1 5"], false),
            ("FLUSH and ATOMIC WRITE", vec![flush(0), atomic_write(1, 8), flush(0), atomic_write(1, 8)], &["response only 0 0", "response only 1 0", "response only 0 0", "response only 1 0"], false),
            ("a READ where an atomic was is dropped", vec![fetch_add(0, 8, 5), read(0, 0, 8)], &["original 0 0"], false),
        ],
    );
}

#[test]
fn repeated_requests_do_not_change_memory() {
    let mut bench = Bench::new(both());
    let requests = [
        fetch_add(0, 8, 5),
        atomic_write(1, 16),
        write_only(2, 8),
        send(Only, 3, 8),
    ];
    bench.answers(&requests);
    let (bytes, writes) = (bench.memory.bytes.clone(), bench.memory.writes);
    bench.answers(&requests);
    assert_eq!((&bench.memory.bytes, bench.memory.writes), (&bytes, writes));
    assert_eq!(bench.memory.completions, 1);
}

#[test]
#[rustfmt::skip] // a row is a line
fn wrong_requests_are_refused() {
    let access = AllowedOperations {
        write: false,
        read: false,
        atomic: false,
        flush: false,
    };
    check(
        ResponderConfig { allowed_operations: access, ..both() },
        vec![
            ("no WRITE", vec![write_only(0, 1)], &["nak1 0"], true),
            ("no READ", vec![read(0, 0, 1)], &["nak1 0"], true),
            ("no atomics", vec![fetch_add(0, 8, 1)], &["nak1 0"], true),
            ("no ATOMIC WRITE", vec![atomic_write(0, 8)], &["nak1 0"], true),
            ("no FLUSH", vec![flush(0)], &["nak1 0"], true),
            ("SENDs need no access", vec![send(Only, 0, 1).ack()], &["ack 0"], false),
        ],
    );
    let mut invalidate = send(Only, 0, 1);
    invalidate.extended.ieth_rkey = Some(99);
    let huge = (1 << 31) + 1;
    check(
        both(),
        vec![
            ("a WRITE with a wrong key", vec![write_only(0, 1).rkey(1)], &["nak2 0"], true),
            ("a WRITE out of its region", vec![write_only(0, 1).reth(4096, 1)], &["nak2 0"], true),
            ("a READ with a wrong key", vec![read(0, 0, 1).rkey(1)], &["nak2 0"], true),
            ("a receive that is too short", vec![send(First, 0, 256), invalidate_last(1)], &["nak3 1"], true),
            ("a key that cannot be invalidated", vec![invalidate], &["nak3 0"], true),
            ("a FIRST that is short", vec![send(First, 0, 255)], &["nak1 0"], true),
            ("a MIDDLE that is short", vec![send(First, 0, 256), send(Middle, 1, 1)], &["nak1 1"], true),
            ("a LAST that is empty", vec![send(First, 0, 256), send(Last, 1, 0)], &["nak1 1"], true),
            ("an ONLY longer than the MTU", vec![send(Only, 0, 257)], &["nak1 0"], true),
            ("a WRITE shorter than its RETH", vec![write_only(0, 8).reth(0, 9)], &["nak1 0"], true),
            ("a WRITE longer than its RETH", vec![write(First, 0, 256).reth(0, 300), write(Last, 1, 45)], &["nak1 1"], true),
            ("a WRITE that goes on behind its RETH", vec![write(First, 0, 256).reth(0, 256)], &["nak1 0"], true),
            ("a READ longer than 2^31", vec![read(0, 0, huge)], &["nak1 0"], true),
            ("a WRITE longer than 2^31", vec![write(First, 0, 256).reth(0, huge)], &["nak1 0"], true),
            ("an atomic that is not aligned", vec![fetch_add(0, 4, 1)], &["nak1 0"], true),
            ("an ATOMIC WRITE that is not aligned", vec![atomic_write(0, 4)], &["nak1 0"], true),
            ("an ATOMIC WRITE of 4 bytes", vec![atomic_write(0, 8).payload(4)], &["nak1 0"], true),
            ("a MIDDLE without a FIRST", vec![send(Middle, 0, 256)], &["nak1 0"], true),
            ("a LAST without a FIRST", vec![write(Last, 0, 1)], &["nak1 0"], true),
            ("a FIRST in a message", vec![send(First, 0, 256), send(First, 1, 256)], &["nak1 1"], true),
            ("a WRITE in a SEND", vec![send(First, 0, 256), write(Last, 1, 1)], &["nak1 1"], true),
            ("a READ in a SEND", vec![send(First, 0, 256), read(1, 0, 1)], &["nak1 1"], true),
            ("nothing behind an error", vec![read(0, 0, 1).rkey(1), write_only(0, 1).ack(), write_only(1, 1).ack(), read(0, 0, 1)], &["nak2 0"], true),
        ],
    );
    let none = ResponderConfig {
        max_dest_rd_atomic: 0,
        ..both()
    };
    check(
        none,
        vec![
            ("a READ without resources", vec![read(0, 0, 1)], &["nak1 0"], true),
            ("an atomic without resources", vec![fetch_add(0, 8, 1)], &["nak1 0"], true),
        ],
    );
}

#[test]
#[rustfmt::skip] // a row is a line
fn an_invalid_request_is_described_by_its_packet_and_the_check() {
    let no_write = AllowedOperations { write: false, ..both().allowed_operations };
    let allowed = both().allowed_operations;
    for (access, samples, text) in [
        (allowed, vec![write(Last, 0, 1)], "Write Last with PSN {} and 1 bytes: no message has begun"),
        (allowed, vec![write(First, 0, 256).reth(0, 300), write(First, 1, 256)], "Write First with PSN {} and 256 bytes: it does not continue a message of which 256 bytes have arrived"),
        (allowed, vec![write(First, 0, 256).reth(0, 300), write(Middle, 1, 256)], "Write Middle with PSN {} and 256 bytes: its length is wrong behind 256 bytes of the message, which has 300; the path MTU is 256"),
        (allowed, vec![send(First, 0, 255)], "Send First with PSN {} and 255 bytes: its length is wrong behind 0 bytes of the message; the path MTU is 256"),
        (allowed, vec![fetch_add(0, 0x1004, 1)], "FetchAdd Only with PSN {} and 0 bytes: the remote address 0x1004 of an atomic is not a multiple of 8"),
        (no_write, vec![write_only(0, 1)], "Write Only with PSN {} and 1 bytes: qp_access_flags of the queue pair lack the access"),
    ] {
        let mut bench = Bench::new(ResponderConfig { allowed_operations: access, ..both() });
        bench.answers(&samples);
        let described = bench.responder.refused_invalid_request().expect("an invalid request");
        let psn = samples.last().expect("a packet").bth.psn;
        assert_eq!(described.psn, psn);
        let psn = format!("{:#x}", psn.get());
        assert_eq!(described.to_string(), text.replace("{}", &psn));
    }
    // No access to memory is another NAK.
    let mut bench = Bench::new(both());
    bench.answers(&[write_only(0, 1).rkey(1)]);
    assert!(bench.responder.has_failed() && bench.responder.refused_invalid_request().is_none());
}

/// Makes the last packet of a SEND that invalidates an unknown key.
fn invalidate_last(index: u32) -> Sample {
    let mut sample = send(Last, index, 1);
    sample.extended.ieth_rkey = Some(99);
    sample
}

#[test]
#[rustfmt::skip] // a row is a line
fn a_requester_waits_while_no_receive_is_posted() {
    check(
        both(),
        vec![
            ("a SEND has an RNR NAK, what is behind it nothing", vec![send(Only, 0, 1), send(Only, 1, 1), send(Only, 2, 1), write_only(3, 1).ack()], &["rnr12 2"], false),
            ("each retry has one", vec![send(Only, 0, 1), send(Only, 1, 1), send(Only, 2, 1), send(Only, 2, 1)], &["rnr12 2", "rnr12 2"], false),
            ("a WRITE with immediate, when it ends", vec![send(Only, 0, 1), send(Only, 1, 1), write(First, 2, 256).reth(0, 257), write(Last, 3, 1).imm()], &["rnr12 3"], false),
            ("a WRITE goes on", vec![send(Only, 0, 1), send(Only, 1, 1), write_only(2, 1).ack()], &["ack 2"], false),
        ],
    );
}

#[test]
fn a_receive_that_was_taken_by_another_queue_pair_is_not_ready() {
    let mut bench = Bench::new(both());
    bench.memory.is_stolen = true;
    let message = [send(First, 0, 256), send(Last, 1, 1).ack()];
    assert_eq!(bench.answers(&message), ["rnr12 1"]);
    assert_eq!(bench.answers(&message[1..]), ["ack 1"]);
    assert_eq!(bench.memory.completions, 1);
}

#[test]
fn a_missing_packet_is_asked_for_when_all_that_came_before_have_been_taken() {
    let mut bench = Bench::new(both());
    let take = |bench: &mut Bench, now_ns, sample: Sample| {
        let memory = &mut bench.memory;
        bench
            .responder
            .process_received_packet(now_ns, &sample.packet(), false, memory);
    };
    take(&mut bench, 10, write_only(1, 1));
    take(&mut bench, 20, write_only(2, 1));
    bench.responder.queue_gap_nak_if_due(9);
    assert!(bench.sent().is_empty() && bench.responder.has_pending_gap_nak());
    bench.responder.queue_gap_nak_if_due(10);
    assert_eq!(bench.sent(), ["nak0 0"]);
    assert!(!bench.responder.has_pending_gap_nak());
    // The packet was only overtaken, so no NAK is sent for it.
    take(&mut bench, 30, write_only(0, 1).ack());
    take(&mut bench, 30, write_only(2, 1));
    take(&mut bench, 30, write_only(1, 1).ack());
    bench.responder.queue_gap_nak_if_due(40);
    assert_eq!(bench.sent(), ["ack 1"]);
}

/// If the end of a burst is dropped, no later packet shows the gap.
#[test]
fn what_the_host_dropped_is_asked_for() {
    let mut bench = Bench::new(both());
    bench.receive(&write_only(0, 1));
    bench.responder.queue_nak_after_host_drops();
    assert_eq!(bench.sent(), ["ack 0", "nak0 1"]);
    // The retransmitted packet is dropped as well.
    bench.responder.queue_nak_after_host_drops();
    assert_eq!(bench.sent(), ["nak0 1"]);
    assert_eq!(bench.answers(&[write_only(1, 1).ack()]), ["ack 1"]);
}

#[test]
fn acknowledgements_that_wait_become_one() {
    let mut bench = Bench::new(both());
    for sample in [
        write_only(0, 1).ack(),
        write_only(1, 1).ack(),
        read(2, 0, 1),
        write_only(3, 1).ack(),
        write_only(4, 1).ack(),
        write_only(6, 1).ack(),
    ] {
        bench.receive(&sample);
    }
    // The response to the READ acknowledges the packets in front of it; the NAK is preceded by a separate ACK.
    assert_eq!(bench.sent(), ["response only 2 1", "ack 4", "nak0 5"]);
}

#[test]
fn a_repeated_read_that_waits_is_not_answered_twice() {
    let mut bench = Bench::new(both());
    for sample in [read(0, 0, 300), read(0, 0, 300), write_only(2, 1).ack()] {
        bench.receive(&sample);
    }
    let due = ["response first 0 256", "response last 1 44", "ack 2"];
    assert_eq!(bench.sent(), due);
}

#[test]
fn a_repeated_atomic_is_answered_in_front_of_a_read_that_waits() {
    let mut bench = Bench::new(both());
    assert_eq!(bench.answers(&[fetch_add(0, 8, 5)]), ["original 0 0"]);
    for sample in [read(1, 0, 300), fetch_add(0, 8, 5), read(1, 0, 300)] {
        bench.receive(&sample);
    }
    let due = ["original 0 0", "response first 1 256", "response last 2 44"];
    assert_eq!(bench.sent(), due);
}

#[test]
fn replies_that_wait_are_limited() {
    let mut bench = Bench::new(both());
    for index in 0..10_000 {
        bench.receive(&read(index, 0, 1));
    }
    assert!(bench.sent().len() < 100);
}

#[test]
fn a_read_response_reads_what_is_there_when_it_is_sent() {
    let mut bench = Bench::new(both());
    bench.receive(&read(0, 0, 8));
    bench.memory.bytes[0] = 77;
    let mut bytes = Vec::new();
    assert!(
        bench
            .responder
            .append_next_packet(0, &mut bench.memory, &mut bytes)
    );
    let packet = roce::packet::Packet::parse(&bytes).expect("a packet");
    assert_eq!(packet.payload[0], 77);
}

#[test]
fn message_sequence_numbers_count_messages() {
    let mut bench = Bench::new(both());
    let mut msns = Vec::new();
    for sample in [
        write_only(0, 1).ack(),
        send(First, 1, 256).ack(),
        send(Last, 2, 1).ack(),
        read(3, 0, 1),
        fetch_add(4, 8, 1),
    ] {
        bench.receive(&sample);
        let mut bytes = Vec::new();
        while bench
            .responder
            .append_next_packet(0, &mut bench.memory, &mut bytes)
        {
            let packet = roce::packet::Packet::parse(&bytes).expect("a packet");
            msns.extend(packet.extended.aeth.map(|aeth| aeth.msn));
            bytes.clear();
        }
    }
    assert_eq!(msns, [1, 1, 2, 3, 4]);
}

#[test]
fn marked_packets_are_answered_by_one_notification_in_an_interval() {
    let mut bench = Bench::new(both());
    let mut texts = Vec::new();
    for (index, now_ns) in [(0, 0), (1, 1000), (2, 49_999), (3, 50_000)] {
        let sample = write_only(index, 1);
        bench
            .responder
            .process_received_packet(now_ns, &sample.packet(), true, &mut bench.memory);
        texts.push(bench.sent().concat());
    }
    assert_eq!(texts, ["cnp to 20", "", "", "cnp to 20"]);
}

#[test]
fn notifications_slow_read_responses_down() {
    let mut bench = Bench::new(both());
    bench.receive(&Sample::new(PacketOperation::Cnp, Only, 0));
    bench.receive(&read(0, 0, 600));
    assert_eq!(bench.sent(), ["response first 0 256"]);
    let at = bench
        .responder
        .next_send_time_ns()
        .expect("the second waits");
    let mut bytes = Vec::new();
    assert!(
        !bench
            .responder
            .append_next_packet(at - 1, &mut bench.memory, &mut bytes)
    );
    assert!(
        bench
            .responder
            .append_next_packet(at, &mut bench.memory, &mut bytes)
    );
}

#[test]
fn what_is_not_executed_is_counted_by_its_reason() {
    let mut bench = Bench::new(both());
    let sent = bench.answers(&[
        send(Only, 0, 1),
        send(Only, 0, 1),
        write_only(u32::MAX, 1),
        send(Only, 2, 1),
        send(Only, 3, 1),
        send(Only, 1, 1),
        // No receive work request is left.
        send(Only, 2, 1),
        send(Only, 3, 1),
        write_only(2, 1).rkey(1),
        // After the refusal nothing is executed.
        write_only(3, 1),
    ]);
    assert_eq!(sent, ["ack 0", "nak0 1", "rnr12 2", "nak2 2"]);
    let due = StateMachineCounters {
        duplicate_request: 2,
        // This includes the packet after the RNR NAK.
        out_of_seq_request: 3,
        send_rnr_err: 1,
        resp_remote_access_errors: 1,
        ..StateMachineCounters::default()
    };
    assert_eq!(bench.responder.counts.take_unless_all_zero(), Some(due));
    assert_eq!(bench.responder.counts.take_unless_all_zero(), None);
}

#[test]
fn marks_and_the_notifications_for_them_are_counted() {
    let mut bench = Bench::new(both());
    for index in 0..3 {
        let sample = write_only(index, 1);
        bench
            .responder
            .process_received_packet(0, &sample.packet(), true, &mut bench.memory);
    }
    assert_eq!(bench.sent(), ["cnp to 20"]);
    let due = StateMachineCounters {
        np_ecn_marked_roce_packets: 3,
        np_cnp_sent: 1,
        ..StateMachineCounters::default()
    };
    assert_eq!(bench.responder.counts, due);
}
