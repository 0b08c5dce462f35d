//! The target: takes requests from a shared receive queue, moves their data, and responds.

use std::collections::{HashMap, VecDeque};

use anyhow::{Context, Result, bail};
use verbs::{
    Access, CompletionQueue, MemoryRegion, Postlist, Qpn, QueuePair, Rc, RecvList, RemoteMemory,
    SharedReceiveQueue, WcBuffer,
};

use super::config::{DepthJob, ExchangeConfig, POLL, REQUEST_BYTES, RESPONSE_BYTES, TransferVerb};
use super::data::{check, stamp};
use crate::connect::connect_all;
use crate::link::WorkerLink;
use crate::nic::{OpenNic, reap, small};
use crate::poll_timeout::{PollTimeout, TIMEOUT_NS};

/// Runs the server in the worker process.
///
/// # Errors
/// When a verb fails, data are wrong, or the driver is gone.
pub(crate) fn work(link: &mut WorkerLink, order: &DepthJob) -> Result<()> {
    let nic = OpenNic::open(&order.nic)?;
    let verified = Server::new(link, &nic, &order.config)?.serve()?;
    link.send(&verified)
}

/// A request whose data transfer has started or is waiting for room.
#[derive(Clone, Copy)]
struct Request {
    queue_pair: usize,
    number: u64,
    /// Slot in the client's memory and in the server's.
    slot: usize,
}

/// A queue pair, with the work requests to be posted to it.
struct ServerQp {
    qp: QueuePair<Rc>,
    list: Postlist<Rc>,
    /// WRs in its send queue that have not completed.
    in_flight: usize,
}

struct Server<'s> {
    config: &'s ExchangeConfig,
    cq: CompletionQueue,
    ends: Vec<ServerQp>,
    numbers: HashMap<Qpn, usize>,
    srq: SharedReceiveQueue,
    recvs: RecvList,
    requests: MemoryRegion,
    data: MemoryRegion,
    responses: MemoryRegion,
    client: RemoteMemory,
    /// Requests that wait for room in their send queue.
    waiting: VecDeque<Request>,
    /// For each slot, the request whose READ is outstanding.
    outstanding_reads: Vec<Option<Request>>,
    verified: u64,
    has_ended: bool,
}

/// Bit of the `wr_id` of a READ; the other bits hold the slot.
const READ: u64 = 1 << 32;

impl<'s> Server<'s> {
    fn new(link: &mut WorkerLink, nic: &OpenNic, config: &'s ExchangeConfig) -> Result<Self> {
        let slots = config.slots();
        // Each request takes two WRs, and the client may receive the response before the server's
        // SEND has completed.
        let sends = 4 * config.depth + 4;
        let cq = nic.cq(config.queue_pairs * sends + 2 * slots)?;
        let srq = nic.pd.create_srq(small(2 * slots), 1)?;
        let mut qps = Vec::new();
        for _ in 0..config.queue_pairs {
            let qp = nic.qp::<Rc>(&cq, &cq).max_send_wr(small(sends)).srq(&srq);
            qps.push(qp.build()?);
        }
        let data = config
            .memory
            .register(nic, slots * config.stride(), Access::ALL)?;
        let requests = nic.alloc(2 * slots * REQUEST_BYTES, Access::LOCAL_WRITE, None)?;
        let responses = nic.alloc(slots * RESPONSE_BYTES, Access::LOCAL_WRITE, None)?;
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
            list: qp.postlist(sends),
            qp,
            in_flight: 0,
        });
        let ends = ends.collect();
        link.barrier()?;
        Ok(Self {
            config,
            cq,
            ends,
            numbers,
            srq,
            recvs,
            requests,
            data,
            responses,
            client,
            waiting: VecDeque::new(),
            outstanding_reads: vec![None; slots],
            verified: 0,
            has_ended: false,
        })
    }

    /// Serves requests until the client ends the exchange. Returns the number of verified requests.
    fn serve(mut self) -> Result<u64> {
        let mut wcs = WcBuffer::<POLL>::new();
        let mut timeout = PollTimeout::without_pause(TIMEOUT_NS);
        let mut came = Vec::with_capacity(POLL);
        while !self.has_ended || self.ends.iter().any(|end| end.in_flight > 0) {
            came.clear();
            reap(&self.cq, &mut wcs, |wc| {
                came.push((wc.is_recv(), wc.wr_id(), wc.qp_num()));
                Ok(())
            })?;
            if came.is_empty() {
                if !self.has_ended {
                    timeout.check("a request")?;
                }
                continue;
            }
            timeout.reset();
            self.recvs.clear();
            for (is_recv, wr_id, qpn) in came.drain(..) {
                let queue_pair = *self.numbers.get(&qpn).context("not of a queue pair here")?;
                if is_recv {
                    self.take_request(queue_pair, wr_id)?;
                } else {
                    self.completed(queue_pair, wr_id)?;
                }
            }
            if !self.recvs.is_empty() {
                self.srq.post_recv(&mut self.recvs)?;
            }
            self.start_transfers()?;
            for end in &mut self.ends {
                if !end.list.is_empty() {
                    end.in_flight += end.list.len();
                    end.qp.post_send(&mut end.list)?;
                    end.list.clear();
                }
            }
        }
        Ok(self.verified)
    }

    fn take_request(&mut self, queue_pair: usize, recv: u64) -> Result<()> {
        let at = usize::try_from(recv)? * REQUEST_BYTES;
        let number = self.requests.read_u64(at)?;
        let slot = usize::try_from(self.requests.read_u64(at + 8)?)?;
        self.recvs
            .recv(self.requests.slice(at..at + REQUEST_BYTES)?, recv);
        if number == 0 {
            self.has_ended = true;
        } else if slot >= self.outstanding_reads.len() {
            bail!("a request names slot {slot}, which there is not");
        } else {
            self.waiting.push_back(Request {
                queue_pair,
                number,
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
        for _ in 0..self.waiting.len() {
            let Some(request) = self.waiting.pop_front() else {
                break;
            };
            let end = &mut self.ends[request.queue_pair];
            if end.in_flight + end.list.len() + 2 > end.list.capacity() {
                self.waiting.push_back(request);
                continue;
            }
            let at = request.slot * self.config.stride();
            let local = self.data.slice(at..at + payload_bytes)?;
            let remote = self
                .client
                .at(at as u64)
                .context("the client has too little memory")?;
            match verb {
                TransferVerb::Write => {
                    stamp(&self.data, at, payload_bytes, request.number)?;
                    end.list.rdma_write(local, remote);
                    self.respond(request)?;
                }
                TransferVerb::Read => {
                    self.outstanding_reads[request.slot] = Some(request);
                    end.list
                        .rdma_read(local, remote)
                        .signaled()
                        .wr_id(READ | request.slot as u64);
                }
            }
        }
        Ok(())
    }

    /// Adds the response to the postlist of its queue pair.
    fn respond(&mut self, request: Request) -> Result<()> {
        let at = request.slot * RESPONSE_BYTES;
        self.responses.write_u64(at, request.number)?;
        self.responses.write_u64(at + 8, request.slot as u64)?;
        let response = self.responses.slice(at..at + RESPONSE_BYTES)?;
        let list = &mut self.ends[request.queue_pair].list;
        list.send(response).signaled().wr_id(request.slot as u64);
        self.verified += 1;
        Ok(())
    }

    fn completed(&mut self, queue_pair: usize, wr_id: u64) -> Result<()> {
        let end = &mut self.ends[queue_pair];
        if wr_id & READ == 0 {
            end.in_flight -= match self.config.verb {
                // This completion also covers the WRITE before the response, which is not signaled.
                TransferVerb::Write => 2,
                TransferVerb::Read => 1,
            };
            return Ok(());
        }
        end.in_flight -= 1;
        let slot = usize::try_from(wr_id & !READ)?;
        let request = self.outstanding_reads[slot]
            .take()
            .context("a READ completed twice")?;
        let at = slot * self.config.stride();
        check(&self.data, at, self.config.payload_bytes, request.number)?;
        self.respond(request)
    }
}
