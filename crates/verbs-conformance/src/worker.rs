//! A worker: one process of a pair that uses many verbs at once until one of the two is killed.
//!
//! By random choice a worker sends, writes, reads and adds on an RC queue pair, and sends on a UD queue
//! pair. If the port supports raw packets, a worker also sends Ethernet frames. Each worker checks all
//! bytes that arrive. When its peer is dead, a worker's requests fail; the worker then stops and prints a
//! [`WorkerReport`].

mod frame_exchange;
mod numbered_message;

use std::collections::VecDeque;
use std::io::{BufRead, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use verbs_abi::*;

use crate::memory::{MemKind, assert_same_bytes};
use crate::objects::{Buf, Channel, Context};
use crate::pair::{QpAddress, QpSide, QpSpec};
use crate::progress_notes::wait_limit;
use crate::rng::{Rng, pattern};
use crate::test_env::{NicCapability, TestEnv};
use crate::wr::{
    RemoteAddress, SendWr, Verb, Wc, cmp_swp, fetch_add, read, send, write, write_imm,
};

use frame_exchange::{FrameExchange, Mac};
use numbered_message::{numbered_message, verified_message_number};

/// Parameters with which a worker starts.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WorkerPlan {
    /// Seed of all random choices.
    pub seed: u64,
    /// True if the worker sleeps while it has no work, instead of polling.
    pub event_driven: bool,
    /// Kind of memory of the buffers.
    #[serde(rename = "memory")]
    pub memory_kind: MemKind,
    /// Q_Key of the pair. QP numbers are reused, and a worker sends to its dead peer for a while; the
    /// Q_Key drops such datagrams.
    pub qkey: u32,
}

/// The addresses that the two workers of a pair exchange.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WorkerAddresses {
    rc: QpAddress,
    ud: Option<QpAddress>,
    mac: Option<Mac>,
    #[serde(rename = "area")]
    written_area: RemoteAddress,
    #[serde(rename = "constant")]
    constant_area: RemoteAddress,
    constant_seed: u64,
    #[serde(rename = "counter")]
    atomic_counter: RemoteAddress,
}

/// The results of a worker.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct WorkerReport {
    /// Number of requests that succeeded; the worker has verified all of them.
    #[serde(rename = "completed")]
    pub completed_requests: u64,
    /// Number of messages that arrived; the worker has verified all of them.
    #[serde(rename = "received")]
    pub received_messages: u64,
    /// Number of Ethernet frames that arrived; the worker has verified all of them.
    #[serde(rename = "frames")]
    pub received_frames: u64,
    /// Status of the first failed completion; `None` if the pair was never connected.
    #[serde(rename = "status")]
    pub first_failure_status: Option<u32>,
    /// Milliseconds from the post of the first failed request to its completion.
    #[serde(rename = "waited_ms")]
    pub first_failure_wait_ms: u64,
    /// Verb of the first failed request.
    #[serde(rename = "failed")]
    pub first_failed_verb: Option<Verb>,
    /// Kind of memory of the buffers.
    #[serde(rename = "memory")]
    pub memory_kind: Option<MemKind>,
}

const MAX_OUTSTANDING_REQUESTS: usize = 16;
/// Number of bytes of the slot of one request.
const REQUEST_SLOT_BYTES: usize = 8 << 10;
const RC_RECEIVES: u64 = 16;
const UD_RECEIVES: u64 = 16;
/// Number of bytes of the slot of one datagram with its GRH.
const UD_SLOT_BYTES: usize = 512;

/// An outstanding request.
enum ExpectedResult {
    WithoutResult,
    /// A READ that must return `expected`.
    Read {
        expected: Vec<u8>,
    },
    /// An atomic that must return `expected`.
    Atomic {
        expected: u64,
    },
}

struct Worker {
    rng: Rng,
    plan: WorkerPlan,
    event_channel: Option<Channel>,
    rc: QpSide,
    ud: Option<QpSide>,
    peer_addresses: WorkerAddresses,
    outgoing_buf: Buf,
    rc_recv_buf: Buf,
    ud_recv_buf: Option<Buf>,
    frame_exchange: Option<FrameExchange>,
    outstanding_requests: VecDeque<(u64, usize, Instant, Verb, ExpectedResult)>,
    free_slots: Vec<usize>,
    /// Expected contents of the peer's area, slot by slot.
    expected_peer_area: Vec<Vec<u8>>,
    next_wr_id: u64,
    next_sent_message_number: u64,
    next_expected_message_number: u64,
    next_sent_datagram_number: u64,
    last_received_datagram_number: Option<u64>,
    outstanding_datagram_count: usize,
    expected_peer_counter: u64,
    report: WorkerReport,
}

/// Plays the role `worker`.
///
/// # Errors
/// Returns an error if the parent sends an invalid message. Failures of verbs, and wrong data, panic.
pub fn play_worker_role(env: &TestEnv, plan: &str) -> anyhow::Result<ExitCode> {
    let plan: WorkerPlan = serde_json::from_str(plan)?;
    let ctx = Context::open(env);
    let mut spec = QpSpec::rc()
        .with_queue_depth(64)
        .with_memory_kind(plan.memory_kind)
        .with_change(|s| {
            // The timeout is 67 ms and passes four times.
            s.timeout = 14;
            s.retry_cnt = 3;
        });
    let channel = plan.event_driven.then(|| ctx.create_channel());
    spec.cqe = 512;
    let mut rc = create_side_on_channel(&ctx, &spec, channel.as_ref());
    let mut ud = env.expects_capability(NicCapability::Ud).then(|| {
        let spec = QpSpec {
            qp_type: IBV_QPT_UD,
            qkey: plan.qkey,
            ..spec.clone()
        };
        create_side_on_channel(&ctx, &spec, channel.as_ref())
    });
    let constant_seed = plan.seed ^ 0xc0;
    let (area, constant, counter) = (
        rc.alloc_buf(MAX_OUTSTANDING_REQUESTS * REQUEST_SLOT_BYTES),
        rc.alloc_buf(1 << 16),
        rc.alloc_buf(8),
    );
    constant.memory.fill_with_pattern(constant_seed);
    let outgoing = rc.alloc_buf(MAX_OUTSTANDING_REQUESTS * REQUEST_SLOT_BYTES);
    let incoming = rc.alloc_buf(usize::try_from(RC_RECEIVES)? * REQUEST_SLOT_BYTES);
    let ud_incoming = ud
        .as_ref()
        .map(|ud| ud.alloc_buf(usize::try_from(UD_RECEIVES).expect("small") * UD_SLOT_BYTES));
    let frames = FrameExchange::new(env, &ctx);
    let hello = WorkerAddresses {
        rc: rc.address(),
        ud: ud.as_ref().map(QpSide::address),
        mac: frames.as_ref().map(FrameExchange::receive_mac),
        written_area: area.remote_address(),
        constant_area: constant.remote_address(),
        constant_seed,
        atomic_counter: counter.remote_address(),
    };
    print_json_line(&hello)?;
    let mut line = String::new();
    if std::io::stdin().lock().read_line(&mut line)? == 0 {
        print_json_line(&WorkerReport::default())?;
        return Ok(ExitCode::SUCCESS);
    }
    let peer: WorkerAddresses = serde_json::from_str(&line).context("the peer's hello")?;
    rc.to_init();
    for i in 0..RC_RECEIVES {
        rc.post_recv(
            i,
            [incoming.sge(i * REQUEST_SLOT_BYTES as u64, REQUEST_SLOT_BYTES)],
        );
    }
    rc.to_rtr(&peer.rc);
    rc.to_rts();
    if let (Some(ud), Some(address), Some(buf)) = (&mut ud, &peer.ud, &ud_incoming) {
        ud.to_init();
        for i in 0..UD_RECEIVES {
            ud.post_recv(i, [buf.sge(i * UD_SLOT_BYTES as u64, UD_SLOT_BYTES)]);
        }
        ud.to_rtr(address);
        ud.to_rts();
    }
    let mut worker = Worker {
        rng: Rng::new(plan.seed),
        plan,
        event_channel: channel,
        rc,
        ud,
        peer_addresses: peer,
        outgoing_buf: outgoing,
        rc_recv_buf: incoming,
        ud_recv_buf: ud_incoming,
        frame_exchange: frames,
        outstanding_requests: VecDeque::new(),
        free_slots: (0..MAX_OUTSTANDING_REQUESTS).collect(),
        expected_peer_area: vec![Vec::new(); MAX_OUTSTANDING_REQUESTS],
        next_wr_id: 0,
        next_sent_message_number: 0,
        next_expected_message_number: 0,
        next_sent_datagram_number: 0,
        last_received_datagram_number: None,
        outstanding_datagram_count: 0,
        expected_peer_counter: 0,
        report: WorkerReport::default(),
    };
    worker.run_until_peer_dies();
    print_json_line(&worker.report)?;
    drop(worker);
    drop((area, constant, counter));
    Ok(ExitCode::SUCCESS)
}

fn print_json_line(what: &impl Serialize) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}", serde_json::to_string(what)?)?;
    out.flush()?;
    Ok(())
}

/// Creates a side; its CQs are on `channel` if a channel is given.
fn create_side_on_channel(ctx: &Context, spec: &QpSpec, channel: Option<&Channel>) -> QpSide {
    let mut side = QpSide::new(ctx, spec);
    if let Some(channel) = channel {
        let (scq, rcq) = (
            ctx.create_cq_on_channel(spec.cqe, channel),
            ctx.create_cq_on_channel(spec.cqe, channel),
        );
        (side.scq, side.rcq) = (scq, rcq);
        side = side.create_side_on_same_pd_and_cqs();
    }
    side
}

impl Worker {
    /// Runs until the peer is dead.
    fn run_until_peer_dies(&mut self) {
        let mut quiet_since = Instant::now();
        while self.report.first_failure_status.is_none() {
            let mut busy = self.try_post_random_requests();
            busy |= self.process_completions_if_any();
            if busy {
                quiet_since = Instant::now();
                continue;
            }
            assert!(
                quiet_since.elapsed() < wait_limit(),
                "nothing happens any more"
            );
            if self.plan.event_driven {
                self.arm_and_sleep();
            } else {
                std::thread::yield_now();
            }
        }
        // The remaining requests must be flushed in order, and no other completion may follow.
        while let Some((id, ..)) = self.outstanding_requests.pop_front() {
            self.rc.await_send_completion().expect_flushed(id);
        }
        // Messages that arrived in time complete first, and then the flushed receives.
        let mut flushed = false;
        for _ in 0..RC_RECEIVES {
            let wc = self.rc.await_recv_completion();
            if wc.status() == IBV_WC_SUCCESS {
                assert!(!flushed, "a message behind flushed receives");
                self.check_received_message(&wc);
            } else {
                wc.expect_flushed(wc.id());
                flushed = true;
            }
        }
        assert_eq!(self.rc.qp.query_state(), IBV_QPS_ERR);
    }

    fn try_post_random_requests(&mut self) -> bool {
        let mut posted = false;
        let mut batch = 1 + self.rng.below(4);
        let mut wrs = Vec::new();
        while batch > 0
            && let Some(slot) = self.free_slots.pop()
        {
            batch -= 1;
            let wr = self.random_request(slot);
            wrs.push(wr);
        }
        if !wrs.is_empty() {
            posted = true;
            self.rc.post_sends(wrs);
        }
        if self.outstanding_datagram_count < 8 && self.rng.one_in(4) && self.ud.is_some() {
            self.post_datagram();
            posted = true;
        }
        if let (Some(frames), Some(mac)) = (&mut self.frame_exchange, self.peer_addresses.mac)
            && self.rng.one_in(4)
        {
            // A frame does not count as posted work of the pair: frames continue even if the pair makes
            // no progress.
            frames.post_next_frame(mac, &mut self.rng);
        }
        if self.rng.one_in(200) {
            // Simulates a slow worker: the peer's messages wait.
            std::thread::sleep(Duration::from_micros(self.rng.below(3000)));
        }
        posted
    }

    /// Returns a random request from this slot of the outgoing buffer.
    fn random_request(&mut self, slot: usize) -> SendWr {
        let id = self.next_wr_id;
        self.next_wr_id += 1;
        let offset = (slot * REQUEST_SLOT_BYTES) as u64;
        let lens = [8, 16, 60, 200, 1000, REQUEST_SLOT_BYTES];
        let len = lens[usize::try_from(self.rng.below(lens.len() as u64)).expect("small")];
        let at = slot * REQUEST_SLOT_BYTES;
        let area = self.peer_addresses.written_area.plus(offset);
        let (verb, wr, flight) = match self.rng.below(8) {
            0 | 1 => {
                let number = self.next_sent_message_number;
                self.next_sent_message_number += 1;
                self.outgoing_buf
                    .memory
                    .write(at, &numbered_message(number, len));
                (
                    Verb::Send,
                    send([self.outgoing_buf.sge(offset, len)]),
                    ExpectedResult::WithoutResult,
                )
            }
            2 => {
                let number = self.next_sent_message_number;
                self.next_sent_message_number += 1;
                let bytes = numbered_message(number, len);
                self.outgoing_buf.memory.write(at, &bytes);
                self.record_expected_write_to_peer(slot, bytes);
                let imm = u32::try_from(number & 0xffff_ffff).expect("masked");
                let wr = write_imm([self.outgoing_buf.sge(offset, len)], area, imm);
                (Verb::RdmaWriteWithImm, wr, ExpectedResult::WithoutResult)
            }
            3 => {
                let bytes = pattern(id, len);
                self.outgoing_buf.memory.write(at, &bytes);
                self.record_expected_write_to_peer(slot, bytes);
                (
                    Verb::RdmaWrite,
                    write([self.outgoing_buf.sge(offset, len)], area),
                    ExpectedResult::WithoutResult,
                )
            }
            4 => {
                // Expect the bytes that this side has written to this slot before.
                let expected = self.expected_peer_area[slot].clone();
                let len = expected.len();
                let wr = read([self.outgoing_buf.sge(offset, len)], area);
                (Verb::RdmaRead, wr, ExpectedResult::Read { expected })
            }
            5 => {
                let from = usize::try_from(self.rng.below((1 << 16) - REQUEST_SLOT_BYTES as u64))
                    .expect("small");
                let all = pattern(self.peer_addresses.constant_seed, from + len);
                let wr = read(
                    [self.outgoing_buf.sge(offset, len)],
                    self.peer_addresses.constant_area.plus(from as u64),
                );
                (
                    Verb::RdmaRead,
                    wr,
                    ExpectedResult::Read {
                        expected: all[from..].to_vec(),
                    },
                )
            }
            6 => {
                let expected = self.expected_peer_counter;
                self.expected_peer_counter += 1;
                let sge = self.outgoing_buf.sge(offset, 8);
                let wr = fetch_add(sge, self.peer_addresses.atomic_counter, 1);
                (
                    Verb::AtomicFetchAndAdd,
                    wr,
                    ExpectedResult::Atomic { expected },
                )
            }
            _ => {
                let expected = self.expected_peer_counter;
                self.expected_peer_counter += 1;
                let sge = self.outgoing_buf.sge(offset, 8);
                let wr = cmp_swp(
                    sge,
                    self.peer_addresses.atomic_counter,
                    expected,
                    expected + 1,
                );
                (
                    Verb::AtomicCmpAndSwp,
                    wr,
                    ExpectedResult::Atomic { expected },
                )
            }
        };
        self.outstanding_requests
            .push_back((id, slot, Instant::now(), verb, flight));
        wr.with_id(id)
    }

    fn record_expected_write_to_peer(&mut self, slot: usize, bytes: Vec<u8>) {
        let model = &mut self.expected_peer_area[slot];
        if model.len() < bytes.len() {
            *model = bytes;
        } else {
            model[..bytes.len()].copy_from_slice(&bytes);
        }
    }

    fn post_datagram(&mut self) {
        let ud = self.ud.as_ref().expect("asked for");
        let number = self.next_sent_datagram_number;
        self.next_sent_datagram_number += 1;
        let imm = u32::try_from(number & 0xffff_ffff).expect("masked");
        let wr = SendWr::new(Verb::SendWithImm, [])
            .with_imm(imm)
            .with_id(number);
        ud.post(wr);
        self.outstanding_datagram_count += 1;
    }

    fn process_completions_if_any(&mut self) -> bool {
        let mut busy = false;
        for wc in self.rc.rcq.poll(8) {
            busy = true;
            if wc.status() == IBV_WC_SUCCESS {
                self.check_received_message(&wc);
                let id = wc.id();
                self.rc.post_recv(
                    id,
                    [self
                        .rc_recv_buf
                        .sge(id * REQUEST_SLOT_BYTES as u64, REQUEST_SLOT_BYTES)],
                );
            } else {
                // The completion of the failed request reports the failure; this completion only follows
                // it.
                wc.expect_flushed(wc.id());
                let id = wc.id();
                self.rc.post_recv(
                    id,
                    [self
                        .rc_recv_buf
                        .sge(id * REQUEST_SLOT_BYTES as u64, REQUEST_SLOT_BYTES)],
                );
            }
        }
        for wc in self.rc.scq.poll(8) {
            busy = true;
            let (id, slot, posted, verb, flight) = self
                .outstanding_requests
                .pop_front()
                .expect("a completion of nothing");
            assert_eq!(wc.id(), id, "completions out of order: {wc:?}");
            if wc.status() != IBV_WC_SUCCESS {
                if self.report.first_failure_status.is_none() {
                    self.report.first_failure_status = Some(wc.status());
                    let waited = posted.elapsed().as_millis();
                    self.report.first_failure_wait_ms = u64::try_from(waited).unwrap_or(u64::MAX);
                    self.report.first_failed_verb = Some(verb);
                    self.report.memory_kind = Some(self.plan.memory_kind);
                } else {
                    wc.expect_flushed(id);
                }
                continue;
            }
            assert!(
                self.report.first_failure_status.is_none(),
                "a success after a failure"
            );
            match flight {
                ExpectedResult::WithoutResult => {}
                ExpectedResult::Read { expected } => {
                    assert_same_bytes(
                        &self
                            .outgoing_buf
                            .memory
                            .read(slot * REQUEST_SLOT_BYTES, expected.len()),
                        &expected,
                        0,
                    );
                }
                ExpectedResult::Atomic { expected } => {
                    assert_eq!(
                        self.outgoing_buf.memory.load(slot * REQUEST_SLOT_BYTES),
                        expected,
                        "old value"
                    );
                }
            }
            self.free_slots.push(slot);
            self.report.completed_requests += 1;
        }
        if let Some(ud) = &self.ud {
            for wc in ud.scq.poll(8) {
                busy = true;
                assert_eq!(
                    (wc.status(), wc.raw().opcode),
                    (IBV_WC_SUCCESS, IBV_WC_SEND),
                    "{wc:?}"
                );
                self.outstanding_datagram_count -= 1;
            }
            for wc in ud.rcq.poll(8) {
                busy = true;
                wc.expect_received(wc.id(), 40);
                let number = wc.imm().expect("an immediate").into();
                assert!(
                    self.last_received_datagram_number < Some(number),
                    "{number} after {:?}",
                    self.last_received_datagram_number
                );
                self.last_received_datagram_number = Some(number);
                let buf = self.ud_recv_buf.as_ref().expect("there is a UD side");
                ud.post_recv(
                    wc.id(),
                    [buf.sge(wc.id() * UD_SLOT_BYTES as u64, UD_SLOT_BYTES)],
                );
                self.report.received_messages += 1;
            }
        }
        if let Some(frames) = &mut self.frame_exchange {
            self.report.received_frames += frames.poll_received_frames();
        }
        busy
    }

    /// Checks that a message on the RC queue pair is the next message, and that its bytes are complete.
    fn check_received_message(&mut self, wc: &Wc) {
        let expected = self.next_expected_message_number;
        self.next_expected_message_number += 1;
        self.report.received_messages += 1;
        if wc.raw().opcode == IBV_WC_RECV_RDMA_WITH_IMM {
            assert_eq!(
                wc.imm().map(u64::from),
                Some(expected & 0xffff_ffff),
                "number of a WRITE"
            );
            return;
        }
        let at = usize::try_from(wc.id()).expect("small") * REQUEST_SLOT_BYTES;
        let bytes = self.rc_recv_buf.memory.read(at, wc.raw().byte_len as usize);
        assert_eq!(
            verified_message_number(&bytes),
            expected,
            "number of a message"
        );
    }

    /// Arms all CQs, polls once more, and sleeps until an event occurs.
    fn arm_and_sleep(&mut self) {
        let channel = self
            .event_channel
            .clone()
            .expect("an event-driven worker has a channel");
        let mut cqs = vec![self.rc.scq.clone(), self.rc.rcq.clone()];
        if let Some(ud) = &self.ud {
            cqs.extend([ud.scq.clone(), ud.rcq.clone()]);
        }
        for cq in &cqs {
            cq.arm(false);
        }
        if self.process_completions_if_any() || self.report.first_failure_status.is_some() {
            return;
        }
        assert!(channel.has_event_within(wait_limit()), "asleep for ever");
        channel.set_nonblocking(true);
        while let Ok((raw, _)) = channel.take_unacked_event() {
            let cq = cqs
                .iter()
                .find(|cq| cq.raw() == raw)
                .expect("an event of an unknown CQ");
            cq.ack(1);
        }
    }
}
