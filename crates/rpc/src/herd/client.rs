//! HERD's client side: WRITEs requests, takes answers.

use verbs::{
    Inline, Postlist, PreparedQp, ProtectionDomain, QpEndpoint, QueuePair, RemoteMemory, Uc,
    WcBuffer,
};

use super::layout::{Layout, word};
use crate::outbox::Outbox;
use crate::{MAX_BATCH, Received, RpcError, UdPort, UdPortConfig};

/// A client before it knows the server.
#[derive(Debug)]
pub struct PreparedClient {
    pd: ProtectionDomain,
    uc: PreparedQp<Uc>,
    uc_cq: verbs::CompletionQueue,
    port: UdPort,
}

impl PreparedClient {
    /// A client whose answers carry at most `config.recv_payload` bytes and come at most
    /// `config.recv_depth` at a time.
    ///
    /// # Errors
    /// [`RpcError`] where the provider refuses a queue pair, its queues or its memory.
    pub fn new(
        pd: &ProtectionDomain,
        request_payload: u32,
        config: &UdPortConfig,
    ) -> Result<Self, RpcError> {
        let uc_cq = pd.context().create_cq(config.send_depth.max(16))?;
        let mut uc = pd
            .qp::<Uc>(&uc_cq, &uc_cq)
            .port_num(config.port_num)
            .max_send_wr(config.send_depth)
            .max_recv_wr(1)
            .inline_up_to(request_payload + 8);
        if let Some(index) = config.gid_index {
            uc = uc.gid_index(index);
        }
        let uc = uc.build()?;
        let port = UdPort::new(
            pd,
            &UdPortConfig {
                send_depth: 1,
                ..config.clone()
            },
        )?;
        Ok(Self {
            pd: pd.clone(),
            uc,
            uc_cq,
            port,
        })
    }

    /// The UC queue pair that it WRITEs from.
    pub fn uc_endpoint(&self) -> QpEndpoint {
        self.uc.endpoint()
    }

    /// The UD queue pair that answers go to.
    pub fn ud_endpoint(&self) -> QpEndpoint {
        self.port.endpoint()
    }

    /// Connects to the server's end, with the region that belongs to this client.
    ///
    /// # Errors
    /// [`RpcError`] where the provider refuses the connection, and for a region that is smaller than the layout.
    pub fn connect(
        self,
        server: &QpEndpoint,
        region: RemoteMemory,
        layout: Layout,
    ) -> Result<Client, RpcError> {
        self.connect_to_all(server, &[region], layout)
    }

    /// Connects to the server's end, with this client's regions of several workers. The first is
    /// [selected](Client::select).
    ///
    /// # Errors
    /// [`RpcError`] where the provider refuses the connection, for no region, and for a region that is smaller than
    /// the layout.
    pub fn connect_to_all(
        self,
        server: &QpEndpoint,
        regions: &[RemoteMemory],
        layout: Layout,
    ) -> Result<Client, RpcError> {
        layout.check()?;
        let short = |region: &&RemoteMemory| region.len < layout.client_bytes() as u64;
        if let Some(region) = regions.iter().find(short) {
            return Err(RpcError::Config(format!(
                "a region of {} bytes for {layout:?}",
                region.len
            )));
        }
        let Some(&region) = regions.first() else {
            return Err(RpcError::Config("no region to WRITE to".to_owned()));
        };
        let uc = self.uc.connect(server)?;
        let outbox = Outbox::new(
            &self.pd,
            layout.slot_bytes(),
            uc.max_inline_data(),
            uc.max_send_wr(),
        )?;
        Ok(Client {
            // Nobody has more than a window under way: less memory of many clients is touched.
            list: uc.postlist(MAX_BATCH.min(layout.window as usize)),
            outbox,
            send_depth: uc.max_send_wr() as u64,
            uc,
            uc_cq: self.uc_cq,
            port: self.port,
            region,
            layout,
            next: 0,
            selected: 0,
            workers: regions.iter().map(|&region| (0, region)).collect(),
            posted: 0,
            reaped: 0,
            since_signal: 0,
            buffer: Box::default(),
            message: vec![0; layout.slot_bytes()],
        })
    }
}

/// A client: WRITEs requests in postlists, takes answers.
///
/// Fields for taking answers come first, then fields for sending. The processor's caches do not hold hundreds of
/// clients.
#[derive(Debug)]
#[repr(C)]
pub struct Client {
    next: u32,
    buffer: Box<WcBuffer<MAX_BATCH>>,
    port: UdPort,
    layout: Layout,
    region: RemoteMemory,
    list: Postlist<Uc>,
    posted: u64,
    reaped: u64,
    since_signal: u64,
    send_depth: u64,
    uc: QueuePair<Uc>,
    outbox: Outbox,
    message: Vec<u8>,
    uc_cq: verbs::CompletionQueue,
    /// Number of the last request and region of each worker; those of the selected one are in `next` and `region`.
    workers: Box<[(u32, RemoteMemory)]>,
    selected: usize,
}

impl Client {
    /// The number that the next request will have: answers carry it as their immediate.
    #[inline]
    pub fn next_number(&self) -> u32 {
        self.next.wrapping_add(1)
    }

    /// Workers that it can WRITE to.
    pub fn workers(&self) -> usize {
        self.workers.len()
    }

    /// Requests go to this worker from now on, with numbers and slots of its own. Requests that are
    /// prepared and not flushed still go to the worker before.
    ///
    /// # Panics
    /// When there is no such worker.
    #[inline]
    pub fn select(&mut self, worker: usize) {
        self.workers[self.selected].0 = self.next;
        (self.next, self.region) = self.workers[worker];
        self.selected = worker;
    }

    /// The shape of its slots.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// WRITEs `count` (at most [`MAX_BATCH`]) requests, each with the payload that `fill` gives it, with one
    /// doorbell. The caller keeps less than a window of requests unanswered, counted from the oldest.
    ///
    /// # Errors
    /// [`RpcError`] where a completion failed or the post is refused.
    #[inline]
    pub fn send<'p>(
        &mut self,
        count: usize,
        mut fill: impl FnMut(usize) -> &'p [u8],
    ) -> Result<(), RpcError> {
        for i in 0..count.min(MAX_BATCH) {
            self.push(fill(i))?;
        }
        self.flush()
    }

    /// Prepares a request; [`flush`](Self::flush) WRITEs it, with those before it. Returns its number. The caller
    /// flushes after [`MAX_BATCH`] at the latest, and keeps less than a window unanswered as with
    /// [`send`](Self::send).
    ///
    /// # Panics
    /// At more than [`MAX_BATCH`] requests, or a window, without a flush.
    ///
    /// # Errors
    /// [`RpcError`] where a completion failed or the post is refused.
    #[inline]
    pub fn push(&mut self, payload: &[u8]) -> Result<u32, RpcError> {
        if payload.len() > self.layout.payload as usize {
            return Err(RpcError::Config(format!(
                "a request of {} bytes for {:?}",
                payload.len(),
                self.layout
            )));
        }
        let number = self.next.wrapping_add(1);
        // A power of two.
        let slot = (self.next & (self.layout.window - 1)) as usize;
        let word = word(number, payload).to_le_bytes();
        let padded = payload.len().next_multiple_of(8);
        let message = if padded == 0 {
            &word[..]
        } else {
            let message = &mut self.message[..padded + 8];
            message[padded - 8..padded].fill(0);
            message[..payload.len()].copy_from_slice(payload);
            message[padded..].copy_from_slice(&word);
            message
        };
        let end = (slot + 1) * self.layout.slot_bytes();
        let remote = RemoteMemory {
            addr: self.region.addr + (end - message.len()) as u64,
            len: message.len() as u64,
            rkey: self.region.rkey,
        };
        match self
            .outbox
            .place(self.posted + self.list.len() as u64, message)
        {
            None => self.list.rdma_write(Inline(message), remote),
            Some(slot) => self.list.rdma_write(slot, remote),
        };
        self.next = number;
        Ok(number)
    }

    /// Posts what was prepared, with one doorbell.
    ///
    /// # Errors
    /// [`RpcError`] where a completion failed or the post is refused.
    #[inline]
    pub fn flush(&mut self) -> Result<(), RpcError> {
        let posted = self.post();
        self.list.clear();
        posted
    }

    #[inline]
    fn post(&mut self) -> Result<(), RpcError> {
        let wrs = self.list.len() as u64;
        if wrs == 0 {
            return Ok(());
        }
        if self.since_signal + wrs >= self.send_depth / 4 {
            let last = self.list.len() - 1;
            self.list.set_signaled(last, true);
            self.list.set_wr_id(last, self.posted + wrs);
            self.since_signal = 0;
        } else {
            self.since_signal += wrs;
        }
        if self.posted + wrs - self.reaped > self.send_depth {
            self.reap(wrs)?;
        }
        self.posted += wrs;
        Ok(self.uc.post_send(&mut self.list)?)
    }

    /// Takes send completions until `wrs` more requests fit.
    #[cold]
    fn reap(&mut self, wrs: u64) -> Result<(), RpcError> {
        crate::port::fits(wrs, self.send_depth)?;
        let mut buffer = WcBuffer::<16>::new();
        let mut waiter = verbs::Waiter::never_sleeping();
        while self.posted + wrs - self.reaped > self.send_depth {
            for wc in self.uc_cq.poll(&mut buffer)? {
                self.reaped = wc.map_err(|e| RpcError::Completion(e.status()))?.wr_id();
            }
            waiter.idle();
        }
        Ok(())
    }

    /// Takes up to [`MAX_BATCH`] answers; their immediate is the number of the request. Returns how many came.
    ///
    /// # Errors
    /// [`RpcError`] where a completion failed or a RECV is refused.
    #[inline]
    pub fn poll(&mut self, each: impl FnMut(Received<'_>)) -> Result<usize, RpcError> {
        self.port.poll(MAX_BATCH, &mut self.buffer, each)
    }
}

#[cfg(test)]
mod tests {
    use verbs::PortGid;

    use super::*;
    use crate::herd::{Doorbells, Server, connect_client};

    #[test]
    fn a_postlist_that_no_send_queue_holds_is_refused() {
        let device = verbs::Provider::softnic().device(None);
        let context = device.and_then(|d| d.open()).expect("opens");
        let pd = context.alloc_pd().expect("a PD");
        let port = PortGid {
            port_num: 1,
            gid_index: context.default_gid_index(1).expect("one"),
        };
        let config = UdPortConfig {
            send_depth: 16,
            ..UdPortConfig::default()
        };
        let layout = Layout {
            window: 64,
            payload: 0,
        };
        let doorbells = Doorbells {
            batch: 1,
            ..Doorbells::default()
        };
        let server =
            Server::new(&pd, layout, 1, doorbells, &UdPortConfig::default()).expect("made");
        let client = PreparedClient::new(&pd, 0, &config).expect("made");
        let cq = context.create_cq(1).expect("a CQ");
        let ends = (&client.uc_endpoint(), &client.ud_endpoint());
        let connected = connect_client(&pd, port, &cq, ends).expect("connected");
        let slots = server.region_of(0).expect("the first");
        let mut client = client
            .connect(&connected.endpoint, slots, layout)
            .expect("connected");
        let depth = usize::try_from(client.send_depth).expect("small");
        assert!(depth < MAX_BATCH, "{depth}");
        client.send(depth, |_| &[]).expect("it fits");
        let e = client.send(depth + 1, |_| &[]).expect_err("it never fits");
        assert!(e.to_string().contains("in a send queue of"), "{e}");
    }
}
