//! HERD's client side: WRITEs requests and receives answers.

use verbs::{
    Inline, Postlist, PreparedQp, ProtectionDomain, QpEndpoint, QueuePair, RemoteMemory, Uc,
    WcBuffer,
};

use super::layout::{RequestRegionLayout, trailer_word};
use crate::payload_staging::PayloadStaging;
use crate::{BufferedUdQp, BufferedUdQpConfig, MAX_BATCH, ReceivedDatagram, RpcError};

/// A client that is not connected to a server yet.
#[derive(Debug)]
pub struct PreparedClient {
    pd: ProtectionDomain,
    uc_qp: PreparedQp<Uc>,
    uc_cq: verbs::CompletionQueue,
    ud_qp: BufferedUdQp,
}

impl PreparedClient {
    /// Creates a client. Answers carry at most `config.max_recv_payload_bytes` bytes, and at most
    /// `config.recv_depth` of them may be outstanding.
    ///
    /// # Errors
    /// [`RpcError`] if the provider refuses a queue pair, its queues or its memory.
    pub fn new(
        pd: &ProtectionDomain,
        request_payload: u32,
        config: &BufferedUdQpConfig,
    ) -> Result<Self, RpcError> {
        let uc_cq = pd.context().create_cq(config.send_depth.max(16))?;
        let mut uc = pd
            .qp_builder::<Uc>(&uc_cq, &uc_cq)
            .port_num(config.port_num)
            .max_send_wr(config.send_depth)
            .max_recv_wr(1)
            .max_inline_data_if_supported(request_payload + 8);
        if let Some(index) = config.gid_index {
            uc = uc.gid_index(index);
        }
        let uc = uc.build()?;
        let port = BufferedUdQp::new(
            pd,
            &BufferedUdQpConfig {
                send_depth: 1,
                ..config.clone()
            },
        )?;
        Ok(Self {
            pd: pd.clone(),
            uc_qp: uc,
            uc_cq,
            ud_qp: port,
        })
    }

    /// Returns the endpoint of the UC queue pair that WRITEs requests.
    pub fn uc_endpoint(&self) -> QpEndpoint {
        self.uc_qp.endpoint()
    }

    /// Returns the endpoint of the UD queue pair that receives answers.
    pub fn ud_endpoint(&self) -> QpEndpoint {
        self.ud_qp.endpoint()
    }

    /// Connects to the server's queue pair. `region` is this client's request region at the server.
    ///
    /// # Errors
    /// [`RpcError`] if the provider refuses the connection, or if the region is smaller than the
    /// layout.
    pub fn connect(
        self,
        server: &QpEndpoint,
        region: RemoteMemory,
        layout: RequestRegionLayout,
    ) -> Result<Client, RpcError> {
        self.connect_to_all_workers(server, &[region], layout)
    }

    /// Connects to the server's queue pair. `regions` has the request region of this client at each of the server's
    /// workers. The first worker is [selected](Client::select_worker).
    ///
    /// # Errors
    /// [`RpcError`] if the provider refuses the connection, if `regions` is empty, or if a region
    /// is smaller than the layout.
    pub fn connect_to_all_workers(
        self,
        server: &QpEndpoint,
        regions: &[RemoteMemory],
        layout: RequestRegionLayout,
    ) -> Result<Client, RpcError> {
        layout.check()?;
        let short = |region: &&RemoteMemory| region.len < layout.bytes_per_client() as u64;
        if let Some(region) = regions.iter().find(short) {
            return Err(RpcError::Config(format!(
                "a region of {} bytes for {layout:?}",
                region.len
            )));
        }
        let Some(&region) = regions.first() else {
            return Err(RpcError::Config("no region to WRITE to".to_owned()));
        };
        let uc = self.uc_qp.connect(server)?;
        let outbox = PayloadStaging::new(
            &self.pd,
            layout.slot_bytes(),
            uc.max_inline_data(),
            uc.max_send_wr(),
        )?;
        Ok(Client {
            // A client never has more than a window outstanding. A shorter postlist touches less
            // memory if many clients share a process.
            request_postlist: uc.postlist(MAX_BATCH.min(layout.slots_per_client as usize)),
            payload_staging: outbox,
            send_depth: uc.max_send_wr() as u64,
            uc_qp: uc,
            uc_cq: self.uc_cq,
            ud_qp: self.ud_qp,
            request_region: region,
            layout,
            last_request_number: 0,
            selected_worker: 0,
            last_numbers_and_regions: regions.iter().map(|&region| (0, region)).collect(),
            posted_requests: 0,
            completed_requests: 0,
            unsignaled_requests: 0,
            completion_buffer: Box::default(),
            message_scratch: vec![0; layout.slot_bytes()],
        })
    }
}

/// A client: WRITEs requests in postlists and receives answers.
///
/// Fields for receiving answers come first, then fields for sending, because caches do not hold the
/// state of hundreds of clients.
#[derive(Debug)]
#[repr(C)]
pub struct Client {
    last_request_number: u32,
    completion_buffer: Box<WcBuffer<MAX_BATCH>>,
    ud_qp: BufferedUdQp,
    layout: RequestRegionLayout,
    request_region: RemoteMemory,
    request_postlist: Postlist<Uc>,
    posted_requests: u64,
    completed_requests: u64,
    unsignaled_requests: u64,
    send_depth: u64,
    uc_qp: QueuePair<Uc>,
    payload_staging: PayloadStaging,
    message_scratch: Vec<u8>,
    uc_cq: verbs::CompletionQueue,
    /// Number of the last request and region of each worker. For the selected worker, `last_request_number` and
    /// `region` hold the current values.
    last_numbers_and_regions: Box<[(u32, RemoteMemory)]>,
    selected_worker: usize,
}

impl Client {
    /// Returns the number of the next request, which its answer carries as immediate.
    #[inline]
    pub fn next_request_number(&self) -> u32 {
        self.last_request_number.wrapping_add(1)
    }

    /// Returns the number of workers that the client can WRITE to.
    pub fn worker_count(&self) -> usize {
        self.last_numbers_and_regions.len()
    }

    /// Selects the worker that receives the following requests, with its own numbers and slots.
    /// Requests that are prepared and not flushed still go to the previous worker.
    ///
    /// # Panics
    /// When the worker does not exist.
    #[inline]
    pub fn select_worker(&mut self, worker: usize) {
        self.last_numbers_and_regions[self.selected_worker].0 = self.last_request_number;
        (self.last_request_number, self.request_region) = self.last_numbers_and_regions[worker];
        self.selected_worker = worker;
    }

    /// Returns the layout of the request slots.
    pub fn layout(&self) -> RequestRegionLayout {
        self.layout
    }

    /// WRITEs `count` (at most [`MAX_BATCH`]) requests with one doorbell. `fill` returns the
    /// payload of each. The caller must keep less than a window of requests unanswered, counted
    /// from the oldest.
    ///
    /// # Errors
    /// [`RpcError`] if a completion has failed or the post is refused.
    #[inline]
    pub fn send<'p>(
        &mut self,
        count: usize,
        mut fill: impl FnMut(usize) -> &'p [u8],
    ) -> Result<(), RpcError> {
        for i in 0..count.min(MAX_BATCH) {
            self.prepare_request(fill(i))?;
        }
        self.post_prepared_requests()
    }

    /// Prepares a request and returns its number; [`post_prepared_requests`](Self::post_prepared_requests) WRITEs all
    /// prepared requests. The caller must flush after at most [`MAX_BATCH`] requests, and keep less than a window
    /// unanswered as with [`send`](Self::send).
    ///
    /// # Panics
    /// At more than [`MAX_BATCH`] requests, or a window, without a flush.
    ///
    /// # Errors
    /// [`RpcError`] if a completion has failed or the post is refused.
    #[inline]
    pub fn prepare_request(&mut self, payload: &[u8]) -> Result<u32, RpcError> {
        if payload.len() > self.layout.max_payload_bytes as usize {
            return Err(RpcError::Config(format!(
                "a request of {} bytes for {:?}",
                payload.len(),
                self.layout
            )));
        }
        let number = self.last_request_number.wrapping_add(1);
        // The window is a power of two.
        let slot = (self.last_request_number & (self.layout.slots_per_client - 1)) as usize;
        let word = trailer_word(number, payload).to_le_bytes();
        let padded = payload.len().next_multiple_of(8);
        let message = if padded == 0 {
            &word[..]
        } else {
            let message = &mut self.message_scratch[..padded + 8];
            message[padded - 8..padded].fill(0);
            message[..payload.len()].copy_from_slice(payload);
            message[padded..].copy_from_slice(&word);
            message
        };
        let end = (slot + 1) * self.layout.slot_bytes();
        let remote = RemoteMemory {
            addr: self.request_region.addr + (end - message.len()) as u64,
            len: message.len() as u64,
            rkey: self.request_region.rkey,
        };
        match self.payload_staging.stage_unless_inline(
            self.posted_requests + self.request_postlist.len() as u64,
            message,
        ) {
            None => self.request_postlist.rdma_write(Inline(message), remote),
            Some(slot) => self.request_postlist.rdma_write(slot, remote),
        };
        self.last_request_number = number;
        Ok(number)
    }

    /// Posts the prepared requests with one doorbell.
    ///
    /// # Errors
    /// [`RpcError`] if a completion has failed or the post is refused.
    #[inline]
    pub fn post_prepared_requests(&mut self) -> Result<(), RpcError> {
        let posted = self.post_request_postlist();
        self.request_postlist.clear();
        posted
    }

    #[inline]
    fn post_request_postlist(&mut self) -> Result<(), RpcError> {
        let wrs = self.request_postlist.len() as u64;
        if wrs == 0 {
            return Ok(());
        }
        if self.unsignaled_requests + wrs >= self.send_depth / 4 {
            let last = self.request_postlist.len() - 1;
            self.request_postlist.set_signaled(last, true);
            self.request_postlist
                .set_wr_id(last, self.posted_requests + wrs);
            self.unsignaled_requests = 0;
        } else {
            self.unsignaled_requests += wrs;
        }
        if self.posted_requests + wrs - self.completed_requests > self.send_depth {
            self.wait_for_send_room(wrs)?;
        }
        self.posted_requests += wrs;
        Ok(self.uc_qp.post_send(&mut self.request_postlist)?)
    }

    /// Polls send completions until the send queue has room for `wrs` more requests.
    #[cold]
    fn wait_for_send_room(&mut self, wrs: u64) -> Result<(), RpcError> {
        crate::buffered_ud_qp::check_postlist_fits_send_queue(wrs, self.send_depth)?;
        let mut buffer = WcBuffer::<16>::new();
        let mut waiter = verbs::Waiter::never_sleeping();
        while self.posted_requests + wrs - self.completed_requests > self.send_depth {
            for wc in self.uc_cq.poll(&mut buffer)? {
                self.completed_requests = wc.map_err(|e| RpcError::Completion(e.status()))?.wr_id();
            }
            waiter.idle();
        }
        Ok(())
    }

    /// Returns the CQ of answers.
    pub fn recv_cq(&self) -> &verbs::CompletionQueue {
        self.ud_qp.recv_cq()
    }

    /// Receives up to [`MAX_BATCH`] answers, whose immediate is the number of the request. Returns
    /// the number of answers.
    ///
    /// # Errors
    /// [`RpcError`] if a completion has failed or a RECV is refused.
    #[inline]
    pub fn poll(&mut self, each: impl FnMut(ReceivedDatagram<'_>)) -> Result<usize, RpcError> {
        self.ud_qp
            .poll_received(MAX_BATCH, &mut self.completion_buffer, each)
    }
}

#[cfg(test)]
mod tests {
    use verbs::PortAndGidIndex;

    use super::*;
    use crate::herd::{BatchPolicy, Server, connect_client};

    #[test]
    fn a_postlist_that_no_send_queue_holds_is_refused() {
        let device = verbs::Provider::softnic().device(None);
        let context = device.expect("a device").open().expect("opens");
        let pd = context.alloc_pd().expect("a PD");
        let port = PortAndGidIndex {
            port_num: 1,
            gid_index: context.default_gid_index(1).expect("one"),
        };
        let config = BufferedUdQpConfig {
            send_depth: 16,
            ..BufferedUdQpConfig::default()
        };
        let layout = RequestRegionLayout {
            slots_per_client: 64,
            max_payload_bytes: 0,
        };
        let doorbells = BatchPolicy {
            max_batch: 1,
            ..BatchPolicy::default()
        };
        let server =
            Server::new(&pd, layout, 1, doorbells, &BufferedUdQpConfig::default()).expect("made");
        let client = PreparedClient::new(&pd, 0, &config).expect("made");
        let cq = context.create_cq(1).expect("a CQ");
        let ends = (&client.uc_endpoint(), &client.ud_endpoint());
        let connected = connect_client(&pd, port, &cq, ends).expect("connected");
        let slots = server.region_of_client(0).expect("the first");
        let mut client = client
            .connect(&connected.server_endpoint, slots, layout)
            .expect("connected");
        let depth = usize::try_from(client.send_depth).expect("small");
        assert!(depth < MAX_BATCH, "{depth}");
        client.send(depth, |_| &[]).expect("it fits");
        let e = client.send(depth + 1, |_| &[]).expect_err("it never fits");
        assert!(e.to_string().contains("in a send queue of"), "{e}");
    }
}
