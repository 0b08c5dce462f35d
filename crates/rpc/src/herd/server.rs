//! HERD's server side: a worker that polls its request region.

use std::sync::Arc;

use verbs::{
    Access, CompletionQueue, MemoryRegion, PortAndGidIndex, Postlist, ProtectionDomain, QpEndpoint,
    QueuePair, RemoteMemory, Uc, Ud, UdDestination, time,
};

use super::layout::{RequestRegionLayout, WorkerTag, checksum, client_region};
use crate::error::MAX_ANSWER_POSTLIST_LEN;
use crate::{
    BufferedUdQp, BufferedUdQpConfig, MAX_BATCH, Request, RequestReplier, RpcError, RpcHandler,
    RpcWorkerCounts,
};

/// Number of requests that a worker's pass takes from each client.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum RequestsPerClient {
    /// All requests that a client has sent, then those of the next client, until the batch is full.
    /// The next pass begins after the client whose requests filled the batch.
    #[default]
    #[serde(rename = "drain")]
    All,
    /// At most one request, so that a batch has no more requests than clients. The next pass begins
    /// after the last inspected client. The benchmark of HERD's authors (`rdma_bench`) works like
    /// this.
    #[serde(rename = "one-each")]
    AtMostOne,
}

/// Parameters of a worker's passes and of its doorbells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchPolicy {
    /// Maximum requests of a batch: 1 to [`MAX_BATCH`].
    pub max_batch: usize,
    /// Number of UD queue pairs, 1 or more and a multiple of `answer_qps_per_batch`. Batches rotate over them, and
    /// each batch uses `answer_qps_per_batch` of them.
    pub answer_qps: usize,
    /// Number of requests that a pass takes from each client.
    pub region_scan: RequestsPerClient,
    /// Number of queue pairs that share the responses of a batch, a power of two. Queue pair `i %
    /// split` sends the responses to client `i`. Each queue pair has its own postlist and doorbell.
    /// With 1, a batch takes one doorbell. A server that answers each client on the client's port
    /// uses one queue pair per port.
    pub answer_qps_per_batch: usize,
}

impl Default for BatchPolicy {
    fn default() -> Self {
        Self {
            max_batch: MAX_BATCH,
            answer_qps: 1,
            region_scan: RequestsPerClient::default(),
            answer_qps_per_batch: 1,
        }
    }
}

impl BatchPolicy {
    fn check(&self) -> Result<(), RpcError> {
        if self.max_batch == 0 || self.max_batch > MAX_BATCH || self.answer_qps == 0 {
            return Err(RpcError::Config(format!(
                "a batch of 1 to {MAX_BATCH} and one queue or more: {self:?}"
            )));
        }
        if !self.answer_qps_per_batch.is_power_of_two()
            || !self.answer_qps.is_multiple_of(self.answer_qps_per_batch)
        {
            return Err(RpcError::Config(format!(
                "responses are divided over a power of two of queue pairs that divides their number: {self:?}"
            )));
        }
        Ok(())
    }
}

/// A server's worker with its own request region and response queues.
#[derive(Debug)]
pub struct Server {
    request_region: MemoryRegion,
    layout: RequestRegionLayout,
    clients: Vec<Option<ClientQp>>,
    /// Registered clients, each with the fields that inspecting its slot needs. The fields are
    /// close together, because a worker with many clients inspects each one very often. `turn` is
    /// the index at which the next pass starts.
    polled_clients: Vec<PolledClient>,
    pass_start_index: usize,
    answer_qps: Vec<(BufferedUdQp, Postlist<Ud>)>,
    /// Index of the first queue pair for the next batch.
    first_answer_qp_of_next_batch: usize,
    batch_policy: BatchPolicy,
    /// Client, immediate of the answer, and payload bytes of each request in the batch.
    batch_clients_imms_lens: Vec<(u32, u32, usize)>,
    batch_payloads: Vec<u8>,
    counts: RpcWorkerCounts,
}

#[derive(Debug)]
struct ClientQp {
    /// Queue pair through which the client WRITEs; the server keeps it alive and never posts on it.
    _qp: Arc<QueuePair<Uc>>,
    client_destination: UdDestination,
}

/// Fields that inspecting a client's slot needs.
#[derive(Debug, Clone, Copy)]
struct PolledClient {
    client_index: u32,
    /// Number of the client's next request.
    next_request_number: u32,
    /// Number of the client's slots minus one. The number of slots is a power of two, at most the
    /// layout's.
    slot_index_mask: u32,
    tag: WorkerTag,
}

impl Server {
    /// Creates a worker with room for `max_clients` clients.
    ///
    /// # Errors
    /// [`RpcError`] if the provider refuses a queue pair, its queues or its memory.
    pub fn new(
        pd: &ProtectionDomain,
        layout: RequestRegionLayout,
        max_clients: usize,
        doorbells: BatchPolicy,
        config: &BufferedUdQpConfig,
    ) -> Result<Self, RpcError> {
        layout.check()?;
        doorbells.check()?;
        let bytes = layout.bytes_per_client().saturating_mul(max_clients.max(1));
        let region = pd.alloc(bytes, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        let config = BufferedUdQpConfig {
            recv_depth: 0,
            max_recv_payload_bytes: 0,
            channel: None,
            ..config.clone()
        };
        let queues = (0..doorbells.answer_qps).map(|_| {
            let port = BufferedUdQp::new(pd, &config)?;
            let list = port.create_postlist(MAX_ANSWER_POSTLIST_LEN);
            Ok::<_, RpcError>((port, list))
        });
        Ok(Self {
            request_region: region,
            layout,
            clients: (0..max_clients).map(|_| None).collect(),
            polled_clients: Vec::new(),
            pass_start_index: 0,
            answer_qps: queues.collect::<Result<_, _>>()?,
            first_answer_qp_of_next_batch: 0,
            batch_policy: doorbells,
            batch_clients_imms_lens: Vec::with_capacity(MAX_BATCH),
            batch_payloads: vec![0; layout.max_payload_bytes as usize * MAX_BATCH],
            counts: RpcWorkerCounts::new(MAX_BATCH),
        })
    }

    /// Returns the part of the region that the client with this index WRITEs to.
    pub fn region_of_client(&self, client: u32) -> Option<RemoteMemory> {
        client_region(&self.request_region.remote(), &self.layout, client)
    }

    /// Returns the whole region, for [`client_region`].
    pub fn request_region(&self) -> RemoteMemory {
        self.request_region.remote()
    }

    /// Returns the memory that [`poll`](Self::poll) reads, for waiting on changes.
    pub fn polled_memory(&self) -> &MemoryRegion {
        &self.request_region
    }

    /// Returns the counts so far.
    pub fn counts(&self) -> &RpcWorkerCounts {
        &self.counts
    }

    /// Returns true if at least one client is registered.
    pub fn has_clients(&self) -> bool {
        !self.polled_clients.is_empty()
    }

    /// Registers a client under an unused index below `max_clients`. `qp` is the client's connected
    /// UC queue pair, and `window` the number of its slots, a power of two.
    ///
    /// # Errors
    /// [`RpcError`] for an index that is too large, or a window that is not a power of two or
    /// exceeds the layout's.
    pub fn add_client(
        &mut self,
        index: u32,
        qp: QueuePair<Uc>,
        to: UdDestination,
        window: u32,
    ) -> Result<(), RpcError> {
        self.add_client_of_many_workers(index, Arc::new(qp), to, (window, WorkerTag::SINGLE_WORKER))
    }

    /// Registers a client that WRITEs to other workers of this server through the same queue pair.
    /// All answers arrive on one queue pair of the client, so their immediates have this worker's
    /// [`WorkerTag`].
    ///
    /// # Errors
    /// As [`add_client`](Self::add_client).
    pub fn add_client_of_many_workers(
        &mut self,
        index: u32,
        qp: Arc<QueuePair<Uc>>,
        to: UdDestination,
        (window, tag): (u32, WorkerTag),
    ) -> Result<(), RpcError> {
        if !window.is_power_of_two() || window > self.layout.slots_per_client {
            return Err(RpcError::Config(format!(
                "a window of {window} in {:?}",
                self.layout
            )));
        }
        // Clear the slots: old data of an earlier client must not look like a request.
        let start = index as usize * self.layout.bytes_per_client();
        for slot in self
            .request_region
            .atomics_u64(start, self.layout.bytes_per_client() / 8)?
        {
            slot.store(0, std::sync::atomic::Ordering::Relaxed);
        }
        let Some(place) = self.clients.get_mut(index as usize) else {
            return Err(RpcError::Config(format!("no room for client {index}")));
        };
        *place = Some(ClientQp {
            _qp: qp,
            client_destination: to,
        });
        self.polled_clients.push(PolledClient {
            client_index: index,
            next_request_number: 1,
            slot_index_mask: window - 1,
            tag,
        });
        Ok(())
    }

    /// Removes a client. Its queue pair is destroyed, so nothing can be written to its slots any
    /// more.
    pub fn remove_client(&mut self, index: u32) {
        if let Some(place) = self.clients.get_mut(index as usize) {
            *place = None;
        }
        self.polled_clients
            .retain(|look| look.client_index != index);
    }

    /// Handles the requests that have arrived, up to a batch. Returns their number.
    ///
    /// # Errors
    /// [`RpcError`] if a completion has failed or a post is refused.
    #[inline]
    pub fn poll<H: RpcHandler>(&mut self, handler: &mut H) -> Result<usize, RpcError> {
        self.collect_batch()?;
        if self.batch_clients_imms_lens.is_empty() {
            for (port, _) in &mut self.answer_qps {
                port.poll_registered_payload_sends()?;
            }
            return Ok(0);
        }
        let mut state = handler.prepare_batch(self.batch_clients_imms_lens.len());
        let stride = self.layout.max_payload_bytes as usize;
        let payloads = &self.batch_payloads;
        let request = |index: usize, (client, imm, len): (u32, u32, usize)| Request {
            client_index: client as usize,
            index_in_batch: index,
            imm,
            payload: &payloads[index * stride..index * stride + len],
        };
        for round in 0..if self.batch_clients_imms_lens.len() > 1 {
            H::PREFETCH_ROUNDS
        } else {
            0
        } {
            for (i, &one) in self.batch_clients_imms_lens.iter().enumerate() {
                handler.prefetch_request_in_round(&mut state, round, request(i, one));
            }
            handler.finish_prefetch_round(&mut state, self.batch_clients_imms_lens.len());
        }
        let split = self.batch_policy.answer_qps_per_batch;
        let queues = &mut self.answer_qps
            [self.first_answer_qp_of_next_batch..self.first_answer_qp_of_next_batch + split];
        queues.iter_mut().for_each(|(_, list)| list.clear());
        for (i, &one) in self.batch_clients_imms_lens.iter().enumerate() {
            let Some(peer) = &self.clients[one.0 as usize] else {
                continue;
            };
            // `answer_qps_per_batch` is a power of two.
            let (port, list) = &mut queues[one.0 as usize & (split - 1)];
            let reply = RequestReplier {
                ud_qp: port,
                answer_postlist: list,
                client_destination: &peer.client_destination,
                request_imm: one.1,
            };
            handler.handle(&mut state, request(i, one), reply);
        }
        // Drop the handler's batch state, which may hold a lock, before ringing the doorbells.
        drop(state);
        for (port, list) in queues {
            let answers = list.len();
            port.post(list)?;
            if answers > 0 {
                self.counts.record_posted_answers(answers);
            }
        }
        self.first_answer_qp_of_next_batch =
            if self.first_answer_qp_of_next_batch + split == self.answer_qps.len() {
                0
            } else {
                self.first_answer_qp_of_next_batch + split
            };
        Ok(self.batch_clients_imms_lens.len())
    }

    /// Collects requests from all clients in turn until the batch is full or each client was
    /// inspected.
    #[inline]
    fn collect_batch(&mut self) -> Result<(), RpcError> {
        self.batch_clients_imms_lens.clear();
        if self.polled_clients.is_empty() {
            return Ok(());
        }
        let stride = self.layout.max_payload_bytes as usize;
        let words = self.layout.slot_bytes() / 8;
        let client_words = self.layout.bytes_per_client() / 8;
        let all = self
            .request_region
            .atomics_u64(0, self.request_region.len() / 8)?;
        let mut in_vain = 0;
        let turn = if self.pass_start_index < self.polled_clients.len() {
            self.pass_start_index
        } else {
            0
        };
        let (before, from) = self.polled_clients.split_at_mut(turn);
        let mut looked = 0;
        for look in from.iter_mut().chain(before) {
            looked += 1;
            let client = look.client_index;
            let start = client as usize * client_words;
            while self.batch_clients_imms_lens.len() < self.batch_policy.max_batch {
                let number = look.next_request_number;
                let slot = (number.wrapping_sub(1) & look.slot_index_mask) as usize;
                let end = start + slot * words + words - 1;
                // Acquire pairs with the NIC's store of the word after the payload.
                let value = all[end].load(std::sync::atomic::Ordering::Acquire);
                if value >> 32 != u64::from(number) {
                    in_vain += 1;
                    break;
                }
                let len = (value >> 16 & 0xffff) as usize;
                if len > stride {
                    // A client violates the protocol: its requests remain unanswered, and it must
                    // connect again.
                    break;
                }
                let i = self.batch_clients_imms_lens.len();
                if len > 0 {
                    let into = &mut self.batch_payloads[i * stride..i * stride + len];
                    self.request_region
                        .read_at(end * 8 - len.next_multiple_of(8), into)?;
                    if u64::from(checksum(into)) != value & 0xffff {
                        break;
                    }
                }
                self.batch_clients_imms_lens
                    .push((client, look.tag.answer_imm(number), len));
                look.next_request_number = number.wrapping_add(1);
                if self.batch_policy.region_scan == RequestsPerClient::AtMostOne {
                    break;
                }
            }
            if self.batch_clients_imms_lens.len() == self.batch_policy.max_batch {
                break;
            }
        }
        self.pass_start_index = turn + looked;
        if self.pass_start_index > self.polled_clients.len() {
            self.pass_start_index -= self.polled_clients.len();
        }
        time::charge_empty_polls(in_vain);
        Ok(())
    }
}

/// The server's end of a client's connection.
#[derive(Debug)]
pub struct ConnectedClient {
    /// Endpoint to which the client connects.
    pub server_endpoint: QpEndpoint,
    /// UC queue pair through which the client WRITEs; the server only keeps it alive.
    pub qp: QueuePair<Uc>,
    /// Destination of answers.
    pub client_destination: UdDestination,
}

/// Connects the server's end to a client's queue pairs, for [`Server::add_client`].
///
/// # Errors
/// When creating or connecting the queue pair fails.
pub fn connect_client(
    pd: &ProtectionDomain,
    port: PortAndGidIndex,
    cq: &CompletionQueue,
    (uc, ud): (&QpEndpoint, &QpEndpoint),
) -> Result<ConnectedClient, RpcError> {
    let to = pd.ud_destination_from(port, ud)?;
    let qp = pd
        .qp_builder::<Uc>(cq, cq)
        .port_num(port.port_num)
        .gid_index(port.gid_index)
        .max_send_wr(1)
        .max_recv_wr(1)
        .max_inline_data_if_supported(0)
        .access(Access::LOCAL_WRITE | Access::REMOTE_WRITE)
        .build()?;
    Ok(ConnectedClient {
        server_endpoint: qp.endpoint(),
        qp: qp.connect(uc)?,
        client_destination: to,
    })
}

#[cfg(test)]
mod tests;
