//! The initiator: keeps requests in flight and checks the responses.

use std::collections::HashMap;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use verbs::{
    Access, CompletionQueue, MemoryRegion, Postlist, Qpn, QueuePair, Rc, RecvList, WcBuffer,
};

use super::config::{
    DepthJob, ExchangeConfig, MAX_COMPLETIONS_PER_POLL, REQUEST_BYTES, RESPONSE_BYTES, TransferVerb,
};
use super::payload_marks::{check_marks, write_marks};
use crate::clock::now_ns;
use crate::connect::connect_all;
use crate::core_pinning::run_pinned;
use crate::job::Job;
use crate::link::WorkerLink;
use crate::open_nic::{NicChoice, OpenNic, poll_successful_completions, saturating_u32};
use crate::poll_timeout::{DEFAULT_EVENT_TIMEOUT_NS, PollTimeout};

/// Result of an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExchangeRate {
    /// Requests per second that were answered in the measured time.
    pub requests_per_s: f64,
    /// Number of requests that were answered in the whole run.
    pub requests_answered: u64,
}

/// Exchanges requests from `core` with a worker at the other end of `link`.
///
/// # Errors
/// When a verb fails, data are wrong, or no response arrives for 10 s.
pub fn run(
    core: usize,
    link: &mut WorkerLink,
    nic: &NicChoice,
    config: &ExchangeConfig,
) -> Result<ExchangeRate> {
    run_pinned(core, || {
        exchange_as_client(link, nic, &OpenNic::open(nic)?, config)
    })
}

/// Exchanges requests with a worker, which is told the device by `choice`.
///
/// # Errors
/// As [`run`].
pub(crate) fn exchange_as_client(
    link: &mut WorkerLink,
    choice: &NicChoice,
    nic: &OpenNic,
    config: &ExchangeConfig,
) -> Result<ExchangeRate> {
    link.send(&Job::Depth(DepthJob {
        nic: choice.clone(),
        config: *config,
    }))?;
    let mut client = Client::new(link, nic, config)?;
    let requests_per_s = client.measure_requests_per_s()?;
    let requests_answered: u64 = link.recv()?;
    if requests_answered != client.requests_answered {
        bail!(
            "the server moved the data of {requests_answered} requests, and {} were answered",
            client.requests_answered
        );
    }
    Ok(ExchangeRate {
        requests_per_s,
        requests_answered,
    })
}

/// A queue pair, with the work requests to be posted to it.
struct ClientQp {
    qp: QueuePair<Rc>,
    request_postlist: Postlist<Rc>,
    response_recv_list: RecvList,
    outstanding_send_wrs: usize,
}

struct Client<'s> {
    config: &'s ExchangeConfig,
    cq: CompletionQueue,
    qps: Vec<ClientQp>,
    qp_index_by_qpn: HashMap<Qpn, usize>,
    request_memory: MemoryRegion,
    data_memory: MemoryRegion,
    response_memory: MemoryRegion,
    /// For each slot, the number of its outstanding request, or 0.
    request_number_by_slot: Vec<u64>,
    requests_sent: u64,
    requests_answered: u64,
}

/// Bit of the `wr_id` of a request's SEND; `wr_id`s of RECVs lack this bit.
const SEND_WR_ID_BIT: u64 = 1 << 32;

impl<'s> Client<'s> {
    fn new(link: &mut WorkerLink, nic: &OpenNic, config: &'s ExchangeConfig) -> Result<Self> {
        let (slots, depth) = (config.slot_count(), config.depth);
        // A response may arrive before the SEND of its request has completed, so the send queue
        // holds more than `depth` requests.
        let sends = 4 * depth + 1;
        let cq = nic.create_cq(config.queue_pairs * (sends + 2 * depth))?;
        let mut qps = Vec::new();
        for _ in 0..config.queue_pairs {
            let qp = nic
                .qp_builder::<Rc>(&cq, &cq)
                .max_send_wr(saturating_u32(sends));
            qps.push(qp.max_recv_wr(saturating_u32(2 * depth)).build()?);
        }
        let data = config.memory.allocate_and_register_zeroed(
            nic,
            slots * config.slot_stride_bytes(),
            Access::ALL,
        )?;
        // One slot more, for the request that ends the exchange.
        let requests =
            nic.alloc_registered_memory((slots + 1) * REQUEST_BYTES, Access::LOCAL_WRITE, None)?;
        let responses =
            nic.alloc_registered_memory(2 * slots * RESPONSE_BYTES, Access::LOCAL_WRITE, None)?;
        for slot in 0..slots {
            requests.write_u64(slot * REQUEST_BYTES + 8, slot as u64)?;
        }
        for (number, qp) in qps.iter().enumerate() {
            let mut recvs = qp.recv_list(2 * depth);
            for place in 2 * depth * number..2 * depth * (number + 1) {
                let at = place * RESPONSE_BYTES;
                recvs.recv(responses.slice(at..at + RESPONSE_BYTES)?, place as u64);
            }
            qp.post_recv(&mut recvs)?;
        }
        let qps = connect_all(link, qps)?;
        link.send(&data.remote())?;
        let numbers = qps.iter().enumerate().map(|(n, qp)| (qp.qpn(), n));
        let numbers = numbers.collect();
        let ends = qps.into_iter().map(|qp| ClientQp {
            request_postlist: qp.postlist(sends),
            response_recv_list: qp.recv_list(2 * depth),
            qp,
            outstanding_send_wrs: 0,
        });
        let ends = ends.collect();
        link.barrier()?;
        Ok(Self {
            config,
            cq,
            qps: ends,
            qp_index_by_qpn: numbers,
            request_memory: requests,
            data_memory: data,
            response_memory: responses,
            request_number_by_slot: vec![0; slots],
            requests_sent: 0,
            requests_answered: 0,
        })
    }

    /// Exchanges requests for the configured time, then ends the exchange. Returns the requests per
    /// second.
    fn measure_requests_per_s(&mut self) -> Result<f64> {
        let span = self.config.duration_ms * 1_000_000;
        let begin = now_ns() + span / 10;
        let mut measured = None;
        let mut wcs = WcBuffer::<MAX_COMPLETIONS_PER_POLL>::new();
        let mut timeout = PollTimeout::without_pause(DEFAULT_EVENT_TIMEOUT_NS);
        let mut free: Vec<_> = (0..self.request_number_by_slot.len()).collect();
        let (mut looked, mut first) = (0, None);
        loop {
            if measured.is_none() {
                self.add_requests_to_postlists(&mut free)?;
            }
            self.post_recvs_and_sends()?;
            if self.requests_answered == self.requests_sent {
                break;
            }
            self.poll(&mut wcs, &mut timeout, &mut free)?;
            if self.requests_answered - looked >= 64 {
                looked = self.requests_answered;
                let now = now_ns();
                if now >= begin {
                    let (since, before) = *first.get_or_insert((now, self.requests_answered));
                    if now - since >= span && measured.is_none() {
                        #[allow(clippy::cast_precision_loss)] // far below 2^52
                        let rate =
                            (self.requests_answered - before) as f64 * 1e9 / (now - since) as f64;
                        measured = Some(rate);
                    }
                }
            }
        }
        self.announce_end(&mut wcs)?;
        measured.context("no requests were answered in the measured time")
    }

    /// Adds a request for each free slot to the postlists, as far as the send queues have room.
    fn add_requests_to_postlists(&mut self, free: &mut Vec<usize>) -> Result<()> {
        let mut waiting = 0;
        for turn in 0..free.len() {
            let slot = free[turn];
            let end = &self.qps[slot / self.config.depth];
            if end.outstanding_send_wrs + end.request_postlist.len()
                < end.request_postlist.capacity()
            {
                self.add_request_to_postlist(slot)?;
            } else {
                free[waiting] = slot;
                waiting += 1;
            }
        }
        free.truncate(waiting);
        Ok(())
    }

    /// Adds a request for a slot to the postlist of its queue pair.
    fn add_request_to_postlist(&mut self, slot: usize) -> Result<()> {
        self.requests_sent += 1;
        self.request_number_by_slot[slot] = self.requests_sent;
        if self.config.verb == TransferVerb::Read {
            let at = slot * self.config.slot_stride_bytes();
            write_marks(
                &self.data_memory,
                at,
                self.config.payload_bytes,
                self.requests_sent,
            )?;
        }
        let at = slot * REQUEST_BYTES;
        self.request_memory.write_u64(at, self.requests_sent)?;
        let request = self.request_memory.slice(at..at + REQUEST_BYTES)?;
        let end = &mut self.qps[slot / self.config.depth];
        end.request_postlist
            .send(request)
            .signaled()
            .wr_id(SEND_WR_ID_BIT);
        Ok(())
    }

    fn post_recvs_and_sends(&mut self) -> Result<()> {
        for end in &mut self.qps {
            if !end.response_recv_list.is_empty() {
                end.qp.post_recv(&mut end.response_recv_list)?;
                end.response_recv_list.clear();
            }
            if !end.request_postlist.is_empty() {
                end.outstanding_send_wrs += end.request_postlist.len();
                end.qp.post_send(&mut end.request_postlist)?;
                end.request_postlist.clear();
            }
        }
        Ok(())
    }

    /// Takes completions. Slots whose requests were answered are added to `free`.
    fn poll(
        &mut self,
        wcs: &mut WcBuffer<MAX_COMPLETIONS_PER_POLL>,
        timeout: &mut PollTimeout,
        free: &mut Vec<usize>,
    ) -> Result<()> {
        let Self {
            config,
            cq,
            qps: ends,
            qp_index_by_qpn: numbers,
            data_memory: data,
            response_memory: responses,
            request_number_by_slot: waits_for,
            requests_answered: answered,
            ..
        } = self;
        let came = poll_successful_completions(cq, wcs, |wc| {
            let number = *numbers
                .get(&wc.qp_num())
                .context("not of a queue pair here")?;
            let end = &mut ends[number];
            if wc.wr_id() & SEND_WR_ID_BIT != 0 {
                end.outstanding_send_wrs -= 1;
                return Ok(());
            }
            let at = usize::try_from(wc.wr_id())? * RESPONSE_BYTES;
            let number = responses.read_u64(at)?;
            let slot = usize::try_from(responses.read_u64(at + 8)?)?;
            if number == 0 || waits_for.get(slot) != Some(&number) {
                bail!("a response to request {number} in slot {slot}, which waits for none");
            }
            if config.verb == TransferVerb::Write {
                check_marks(
                    data,
                    slot * config.slot_stride_bytes(),
                    config.payload_bytes,
                    number,
                )?;
            }
            waits_for[slot] = 0;
            *answered += 1;
            free.push(slot);
            end.response_recv_list
                .recv(responses.slice(at..at + RESPONSE_BYTES)?, wc.wr_id());
            Ok(())
        })?;
        if came == 0 {
            return timeout.fail_if_over_after_empty_poll("a response");
        }
        timeout.reset();
        Ok(())
    }

    /// Tells the server that no more requests follow.
    fn announce_end(&mut self, wcs: &mut WcBuffer<MAX_COMPLETIONS_PER_POLL>) -> Result<()> {
        let at = self.config.slot_count() * REQUEST_BYTES;
        let request = self.request_memory.slice(at..at + REQUEST_BYTES)?;
        self.qps[0]
            .request_postlist
            .send(request)
            .signaled()
            .wr_id(SEND_WR_ID_BIT);
        self.post_recvs_and_sends()?;
        let mut timeout = PollTimeout::without_pause(DEFAULT_EVENT_TIMEOUT_NS);
        while self.qps.iter().any(|end| end.outstanding_send_wrs > 0) {
            self.poll(wcs, &mut timeout, &mut Vec::new())?;
        }
        Ok(())
    }
}
