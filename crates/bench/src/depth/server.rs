//! The target: takes requests from a shared receive queue, moves their data, and responds.

use std::collections::{HashMap, VecDeque};

use anyhow::{Context, Result, bail};
use verbs::{
    Access, CompletionQueue, MemoryRegion, Postlist, Qpn, QueuePair, Rc, RecvList, RemoteMemory,
    SharedReceiveQueue, WcBuffer,
};

use super::config::{
    DepthJob, ExchangeConfig, MAX_COMPLETIONS_PER_POLL, REQUEST_BYTES, RESPONSE_BYTES, TransferVerb,
};
use super::payload_marks::{check_marks, write_marks};
use crate::connect::connect_all;
use crate::link::WorkerLink;
use crate::open_nic::{OpenNic, poll_successful_completions, saturating_u32};
use crate::poll_timeout::{DEFAULT_EVENT_TIMEOUT_NS, PollTimeout};

/// Runs the server in the worker process.
///
/// # Errors
/// When a verb fails, data are wrong, or the driver is gone.
pub(crate) fn run_worker_side(link: &mut WorkerLink, order: &DepthJob) -> Result<()> {
    serve_worker_side(link, &OpenNic::open(&order.nic)?, &order.config)
}

/// Serves requests on an open device, and sends the number of answered requests to the driver.
///
/// # Errors
/// As [`run_worker_side`].
pub(crate) fn serve_worker_side(
    link: &mut WorkerLink,
    nic: &OpenNic,
    config: &ExchangeConfig,
) -> Result<()> {
    let requests_answered = Server::new(link, nic, config)?.serve()?;
    link.send(&requests_answered)
}

/// A request whose data transfer has started or is waiting for room.
#[derive(Clone, Copy)]
struct Request {
    qp_index: usize,
    sequence_number: u64,
    /// Slot in the client's memory and in the server's.
    slot: usize,
}

/// A queue pair, with the work requests to be posted to it.
struct ServerQp {
    qp: QueuePair<Rc>,
    response_postlist: Postlist<Rc>,
    /// WRs in its send queue that have not completed.
    outstanding_send_wrs: usize,
}

struct Server<'s> {
    config: &'s ExchangeConfig,
    cq: CompletionQueue,
    qps: Vec<ServerQp>,
    qp_index_by_qpn: HashMap<Qpn, usize>,
    srq: SharedReceiveQueue,
    recv_list: RecvList,
    request_memory: MemoryRegion,
    data_memory: MemoryRegion,
    response_memory: MemoryRegion,
    client_memory: RemoteMemory,
    /// Requests that wait for room in their send queue.
    requests_waiting_for_send_room: VecDeque<Request>,
    /// For each slot, the request whose READ is outstanding.
    outstanding_reads: Vec<Option<Request>>,
    requests_answered: u64,
    has_client_ended: bool,
}

/// Bit of the `wr_id` of a READ; the other bits hold the slot.
const READ_WR_ID_BIT: u64 = 1 << 32;

impl<'s> Server<'s> {
    fn new(link: &mut WorkerLink, nic: &OpenNic, config: &'s ExchangeConfig) -> Result<Self> {
        let slots = config.slot_count();
        // Each request takes two WRs, and the client may receive the response before the server's
        // SEND has completed.
        let sends = 4 * config.depth + 4;
        let cq = nic.create_cq(config.queue_pairs * sends + 2 * slots)?;
        let srq = nic.pd.create_srq(saturating_u32(2 * slots), 1)?;
        let mut qps = Vec::new();
        for _ in 0..config.queue_pairs {
            let qp = nic
                .qp_builder::<Rc>(&cq, &cq)
                .max_send_wr(saturating_u32(sends))
                .srq(&srq);
            qps.push(qp.build()?);
        }
        let data = config.memory.allocate_and_register_zeroed(
            nic,
            slots * config.slot_stride_bytes(),
            Access::ALL,
        )?;
        let requests =
            nic.alloc_registered_memory(2 * slots * REQUEST_BYTES, Access::LOCAL_WRITE, None)?;
        let responses =
            nic.alloc_registered_memory(slots * RESPONSE_BYTES, Access::LOCAL_WRITE, None)?;
        let mut recvs = srq.recv_list(2 * slots);
        for slot in 0..2 * slots {
            let at = slot * REQUEST_BYTES;
            recvs.recv(requests.slice(at..at + REQUEST_BYTES)?, slot as u64);
        }
        srq.post_recv(&mut recvs)?;
        let qps = connect_all(link, qps)?;
        let client = link.recv()?;
        let numbers = qps.iter().enumerate().map(|(n, qp)| (qp.qpn(), n));
        let numbers = numbers.collect();
        let ends = qps.into_iter().map(|qp| ServerQp {
            response_postlist: qp.postlist(sends),
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
            srq,
            recv_list: recvs,
            request_memory: requests,
            data_memory: data,
            response_memory: responses,
            client_memory: client,
            requests_waiting_for_send_room: VecDeque::new(),
            outstanding_reads: vec![None; slots],
            requests_answered: 0,
            has_client_ended: false,
        })
    }

    /// Serves requests until the client ends the exchange. Returns the number of answered requests.
    fn serve(mut self) -> Result<u64> {
        let mut wcs = WcBuffer::<MAX_COMPLETIONS_PER_POLL>::new();
        let mut timeout = PollTimeout::without_pause(DEFAULT_EVENT_TIMEOUT_NS);
        let mut came = Vec::with_capacity(MAX_COMPLETIONS_PER_POLL);
        while !self.has_client_ended || self.qps.iter().any(|end| end.outstanding_send_wrs > 0) {
            came.clear();
            poll_successful_completions(&self.cq, &mut wcs, |wc| {
                came.push((wc.is_recv(), wc.wr_id(), wc.qp_num()));
                Ok(())
            })?;
            if came.is_empty() {
                if !self.has_client_ended {
                    timeout.fail_if_over_after_empty_poll("a request")?;
                }
                continue;
            }
            timeout.reset();
            self.recv_list.clear();
            for (is_recv, wr_id, qpn) in came.drain(..) {
                let queue_pair = *self
                    .qp_index_by_qpn
                    .get(&qpn)
                    .context("not of a queue pair here")?;
                if is_recv {
                    self.take_request_or_end(queue_pair, wr_id)?;
                } else {
                    self.handle_completion(queue_pair, wr_id)?;
                }
            }
            if !self.recv_list.is_empty() {
                self.srq.post_recv(&mut self.recv_list)?;
            }
            self.start_transfers()?;
            for end in &mut self.qps {
                if !end.response_postlist.is_empty() {
                    end.outstanding_send_wrs += end.response_postlist.len();
                    end.qp.post_send(&mut end.response_postlist)?;
                    end.response_postlist.clear();
                }
            }
        }
        Ok(self.requests_answered)
    }

    fn take_request_or_end(&mut self, queue_pair: usize, recv: u64) -> Result<()> {
        let at = usize::try_from(recv)? * REQUEST_BYTES;
        let number = self.request_memory.read_u64(at)?;
        let slot = usize::try_from(self.request_memory.read_u64(at + 8)?)?;
        self.recv_list
            .recv(self.request_memory.slice(at..at + REQUEST_BYTES)?, recv);
        if number == 0 {
            self.has_client_ended = true;
        } else if slot >= self.outstanding_reads.len() {
            bail!("a request names slot {slot}, which there is not");
        } else {
            self.requests_waiting_for_send_room.push_back(Request {
                qp_index: queue_pair,
                sequence_number: number,
                slot,
            });
        }
        Ok(())
    }

    /// Starts the transfers of waiting requests whose send queue has room.
    fn start_transfers(&mut self) -> Result<()> {
        let ExchangeConfig {
            verb,
            payload_bytes,
            ..
        } = *self.config;
        for _ in 0..self.requests_waiting_for_send_room.len() {
            let Some(request) = self.requests_waiting_for_send_room.pop_front() else {
                break;
            };
            let end = &mut self.qps[request.qp_index];
            if end.outstanding_send_wrs + end.response_postlist.len() + 2
                > end.response_postlist.capacity()
            {
                self.requests_waiting_for_send_room.push_back(request);
                continue;
            }
            let at = request.slot * self.config.slot_stride_bytes();
            let local = self.data_memory.slice(at..at + payload_bytes)?;
            let remote = self
                .client_memory
                .starting_at(at as u64)
                .context("the client has too little memory")?;
            match verb {
                TransferVerb::Write => {
                    write_marks(
                        &self.data_memory,
                        at,
                        payload_bytes,
                        request.sequence_number,
                    )?;
                    end.response_postlist.rdma_write(local, remote);
                    self.add_response(request)?;
                }
                TransferVerb::Read => {
                    self.outstanding_reads[request.slot] = Some(request);
                    end.response_postlist
                        .rdma_read(local, remote)
                        .signaled()
                        .wr_id(READ_WR_ID_BIT | request.slot as u64);
                }
            }
        }
        Ok(())
    }

    /// Adds the response to the postlist of its queue pair.
    fn add_response(&mut self, request: Request) -> Result<()> {
        let at = request.slot * RESPONSE_BYTES;
        self.response_memory
            .write_u64(at, request.sequence_number)?;
        self.response_memory
            .write_u64(at + 8, request.slot as u64)?;
        let response = self.response_memory.slice(at..at + RESPONSE_BYTES)?;
        let list = &mut self.qps[request.qp_index].response_postlist;
        list.send(response).signaled().wr_id(request.slot as u64);
        self.requests_answered += 1;
        Ok(())
    }

    fn handle_completion(&mut self, queue_pair: usize, wr_id: u64) -> Result<()> {
        let end = &mut self.qps[queue_pair];
        if wr_id & READ_WR_ID_BIT == 0 {
            end.outstanding_send_wrs -= match self.config.verb {
                // This completion also covers the WRITE before the response, which is not signaled.
                TransferVerb::Write => 2,
                TransferVerb::Read => 1,
            };
            return Ok(());
        }
        end.outstanding_send_wrs -= 1;
        let slot = usize::try_from(wr_id & !READ_WR_ID_BIT)?;
        let request = self.outstanding_reads[slot]
            .take()
            .context("a READ completed twice")?;
        let at = slot * self.config.slot_stride_bytes();
        check_marks(
            &self.data_memory,
            at,
            self.config.payload_bytes,
            request.sequence_number,
        )?;
        self.add_response(request)
    }
}
