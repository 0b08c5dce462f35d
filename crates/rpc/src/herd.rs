//! HERD RPC: requests are RDMA WRITEs into slots of a region that the server polls, responses are UD SENDs.
//!
//! # The request region
//!
//! Every client has `window` slots; request `k` (from 0 on) goes to slot `k mod window`. At the end of a slot is an
//! aligned 8-byte word, and the payload, padded to 8 bytes, lies before it, so that a short request is a short WRITE:
//!
//! | bits | meaning |
//! |---|---|
//! | 63..32 | `k + 1`, wrapping |
//! | 31..16 | payload length |
//! | 15..0 | a checksum of the payload |
//!
//! The server looks only at the slot of the next request of each client, and takes it when the number is
//! the one it expects. NICs that write a message in address order make the word arrive last. Nothing here
//! relies on it: while payload and checksum differ the request counts as not there yet. A request without
//! payload is that one word, which no NIC tears.

use verbs::{
    Access, Capability, Inline, MemoryRegion, PortGid, Postlist, PreparedQp, ProtectionDomain,
    QpEndpoint, QueuePair, RemoteMemory, Uc, Ud, UdDestination, WcBuffer, time,
};

use crate::{
    Counts, Handler, MAX_BATCH, MAX_LIST, Outbox, Received, Reply, Request, RpcError, UdPort,
    UdPortConfig,
};

/// What it needs of a device.
pub const NEEDS: &[Capability] = &[Capability::Uc, Capability::Ud, Capability::Immediates];

/// How responses leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Doorbells {
    /// Requests of one batch, and so responses of one doorbell: 1 to [`MAX_BATCH`].
    pub batch: usize,
    /// UD queue pairs that batches rotate over: 1 or more.
    pub queues: usize,
}

/// The shape of a request region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Layout {
    /// Slots of a client, a power of two.
    pub window: u32,
    /// The longest payload of a request, a multiple of 8.
    pub payload: u32,
}

impl Layout {
    /// Bytes of a slot.
    pub fn slot_bytes(&self) -> usize {
        self.payload as usize + 8
    }

    /// Bytes of all slots of a client.
    pub fn client_bytes(&self) -> usize {
        self.slot_bytes() * self.window as usize
    }

    fn check(&self) -> Result<(), RpcError> {
        // A power of two divides the 2^32 request numbers: the slots go round without a jump when they wrap.
        if !self.window.is_power_of_two() || !self.payload.is_multiple_of(8) || self.payload > 4096
        {
            return Err(RpcError::Config(format!(
                "a request region needs a power of two as window and a payload of a multiple of 8 up to 4096: {self:?}"
            )));
        }
        Ok(())
    }
}

/// The word that ends a request.
fn word(number: u32, payload: &[u8]) -> u64 {
    u64::from(number) << 32 | (payload.len() as u64 & 0xffff) << 16 | u64::from(checksum(payload))
}

/// A multiplicative hash folded to 16 bits; 0 for nothing.
#[inline]
fn checksum(payload: &[u8]) -> u16 {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    if payload.is_empty() {
        return 0;
    }
    let (words, tail) = payload.as_chunks::<8>();
    let mut last = [0; 8];
    last[..tail.len()].copy_from_slice(tail);
    let mut hash = payload.len() as u64;
    for word in words.iter().chain([&last]) {
        // Different words give different hashes, and the high bits move down for the next.
        hash = (hash ^ u64::from_le_bytes(*word))
            .wrapping_mul(FACTOR)
            .rotate_left(29);
    }
    (hash.wrapping_mul(FACTOR) >> 48) as u16
}

/// A server's worker with its own request region and response queues.
#[derive(Debug)]
pub struct Server {
    region: MemoryRegion,
    layout: Layout,
    clients: Vec<Option<Peer>>,
    /// Clients that are there, with what a look at them takes: a worker of many looks at each again and again. And where
    /// the next round starts.
    active: Vec<Look>,
    turn: usize,
    queues: Vec<(UdPort, Postlist<Ud>)>,
    queue: usize,
    doorbells: Doorbells,
    batch: Vec<(u32, u32, usize)>,
    payloads: Vec<u8>,
    counts: Counts,
}

#[derive(Debug)]
struct Peer {
    /// Held so that the client can WRITE; the server never posts on it.
    _qp: QueuePair<Uc>,
    to: UdDestination,
}

/// What a look at a client takes.
#[derive(Debug, Clone, Copy)]
struct Look {
    client: u32,
    /// The number of its next request.
    number: u32,
    /// Slots that it uses, less one: a power of two of them, at most the layout's.
    mask: u32,
}

impl Server {
    /// A worker with room for `max_clients`.
    pub fn new(
        pd: &ProtectionDomain,
        layout: Layout,
        max_clients: usize,
        doorbells: Doorbells,
        config: &UdPortConfig,
    ) -> Result<Self, RpcError> {
        layout.check()?;
        if doorbells.batch == 0 || doorbells.batch > MAX_BATCH || doorbells.queues == 0 {
            return Err(RpcError::Config(format!(
                "a batch of 1 to {MAX_BATCH} and one queue or more: {doorbells:?}"
            )));
        }
        let bytes = layout.client_bytes().saturating_mul(max_clients.max(1));
        let region = pd.alloc(bytes, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        let config = UdPortConfig {
            recv_depth: 0,
            recv_payload: 0,
            channel: None,
            ..config.clone()
        };
        let queues = (0..doorbells.queues).map(|_| {
            let port = UdPort::new(pd, &config)?;
            let list = port.postlist(MAX_LIST);
            Ok::<_, RpcError>((port, list))
        });
        Ok(Self {
            region,
            layout,
            clients: (0..max_clients).map(|_| None).collect(),
            active: Vec::new(),
            turn: 0,
            queues: queues.collect::<Result<_, _>>()?,
            queue: 0,
            doorbells,
            batch: Vec::with_capacity(MAX_BATCH),
            payloads: vec![0; layout.payload as usize * MAX_BATCH],
            counts: Counts::new(MAX_BATCH),
        })
    }

    /// The region of the client with that index: where it WRITEs.
    pub fn region_of(&self, client: u32) -> Option<RemoteMemory> {
        region_of(&self.region.remote(), &self.layout, client)
    }

    /// All of the region, for [`region_of`].
    pub fn region(&self) -> RemoteMemory {
        self.region.remote()
    }

    /// The memory that [`poll`](Self::poll) looks at, for waiting.
    pub fn memory(&self) -> &MemoryRegion {
        &self.region
    }

    /// Counts so far.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Whether there is a client.
    pub fn has_clients(&self) -> bool {
        !self.active.is_empty()
    }

    /// Registers a client under an index below `max_clients` that is free, with its connected UC queue pair
    /// and the slots that it uses of the layout's, a power of two.
    pub fn add_client(
        &mut self,
        index: u32,
        qp: QueuePair<Uc>,
        to: UdDestination,
        window: u32,
    ) -> Result<(), RpcError> {
        if !window.is_power_of_two() || window > self.layout.window {
            return Err(RpcError::Config(format!(
                "a window of {window} in {:?}",
                self.layout
            )));
        }
        // What an earlier client left here must not look like a request.
        let start = index as usize * self.layout.client_bytes();
        for slot in self
            .region
            .atomics_u64(start, self.layout.client_bytes() / 8)?
        {
            slot.store(0, std::sync::atomic::Ordering::Relaxed);
        }
        let Some(place) = self.clients.get_mut(index as usize) else {
            return Err(RpcError::Config(format!("no room for client {index}")));
        };
        *place = Some(Peer { _qp: qp, to });
        self.active.push(Look {
            client: index,
            number: 1,
            mask: window - 1,
        });
        Ok(())
    }

    /// Forgets a client; its queue pair is destroyed, so nothing can be written into its slots any more.
    pub fn remove_client(&mut self, index: u32) {
        if let Some(place) = self.clients.get_mut(index as usize) {
            *place = None;
        }
        self.active.retain(|look| look.client != index);
    }

    /// Handles requests that are there, up to a batch. Returns how many.
    #[inline]
    pub fn poll<H: Handler>(&mut self, handler: &mut H) -> Result<usize, RpcError> {
        self.collect()?;
        if self.batch.is_empty() {
            return Ok(0);
        }
        let mut state = handler.begin(self.batch.len());
        let stride = self.layout.payload as usize;
        let payloads = &self.payloads;
        let request = |index: usize, (client, number, len): (u32, u32, usize)| Request {
            client: client as usize,
            index,
            imm: number,
            payload: &payloads[index * stride..index * stride + len],
        };
        for round in 0..if self.batch.len() > 1 { H::LOOKS } else { 0 } {
            for (i, &one) in self.batch.iter().enumerate() {
                handler.look(&mut state, round, request(i, one));
            }
        }
        let (port, list) = &mut self.queues[self.queue];
        list.clear();
        for (i, &one) in self.batch.iter().enumerate() {
            let Some(peer) = &self.clients[one.0 as usize] else {
                continue;
            };
            let reply = Reply {
                port,
                list,
                to: &peer.to,
                imm: one.1,
            };
            handler.handle(&mut state, request(i, one), reply);
        }
        // What it holds for the batch, a lock for instance, is free before the NIC is told.
        drop(state);
        let answers = list.len();
        port.post(list)?;
        if answers > 0 {
            self.counts.posted(answers);
        }
        self.queue = if self.queue + 1 == self.queues.len() {
            0
        } else {
            self.queue + 1
        };
        Ok(self.batch.len())
    }

    /// Takes requests in turn from all clients until the batch is full or a round finds nothing more.
    #[inline]
    fn collect(&mut self) -> Result<(), RpcError> {
        self.batch.clear();
        if self.active.is_empty() {
            return Ok(());
        }
        let stride = self.layout.payload as usize;
        let words = self.layout.slot_bytes() / 8;
        let client_words = self.layout.client_bytes() / 8;
        let all = self.region.atomics_u64(0, self.region.len() / 8)?;
        let mut in_vain = 0;
        let turn = if self.turn < self.active.len() {
            self.turn
        } else {
            0
        };
        let (before, from) = self.active.split_at_mut(turn);
        let mut looked = 0;
        for look in from.iter_mut().chain(before) {
            looked += 1;
            let client = look.client;
            let start = client as usize * client_words;
            while self.batch.len() < self.doorbells.batch {
                let number = look.number;
                let slot = (number.wrapping_sub(1) & look.mask) as usize;
                let end = start + slot * words + words - 1;
                // Pairs with the NIC's store of the word, after the payload's.
                let value = all[end].load(std::sync::atomic::Ordering::Acquire);
                if value >> 32 != u64::from(number) {
                    in_vain += 1;
                    break;
                }
                let len = (value >> 16 & 0xffff) as usize;
                if len > stride {
                    // Nobody who keeps to the protocol writes this; the client hears nothing and starts over.
                    break;
                }
                let i = self.batch.len();
                if len > 0 {
                    let into = &mut self.payloads[i * stride..i * stride + len];
                    self.region
                        .read_at(end * 8 - len.next_multiple_of(8), into)?;
                    if u64::from(checksum(into)) != value & 0xffff {
                        break;
                    }
                }
                self.batch.push((client, number, len));
                look.number = number.wrapping_add(1);
            }
            if self.batch.len() == self.doorbells.batch {
                break;
            }
        }
        self.turn = turn + looked;
        if self.turn > self.active.len() {
            self.turn -= self.active.len();
        }
        time::look_in_vain(in_vain);
        Ok(())
    }
}

/// The part of a server's region that belongs to a client.
pub fn region_of(region: &RemoteMemory, layout: &Layout, client: u32) -> Option<RemoteMemory> {
    let bytes = layout.client_bytes() as u64;
    let part = region.at(bytes.checked_mul(client.into())?)?;
    (part.len >= bytes).then_some(RemoteMemory { len: bytes, ..part })
}

/// The server's end of a client's UC queue pair; it only has to exist.
pub fn server_qp(
    pd: &ProtectionDomain,
    port: PortGid,
    cq: &verbs::CompletionQueue,
) -> Result<PreparedQp<Uc>, RpcError> {
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    Ok(pd
        .qp::<Uc>(cq, cq)
        .port_num(port.port_num)
        .gid_index(port.gid_index)
        .max_send_wr(1)
        .max_recv_wr(1)
        .inline_up_to(0)
        .access(access)
        .build()?)
}

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
    pub fn connect(
        self,
        server: &QpEndpoint,
        region: RemoteMemory,
        layout: Layout,
    ) -> Result<Client, RpcError> {
        layout.check()?;
        if region.len < layout.client_bytes() as u64 {
            return Err(RpcError::Config(format!(
                "a region of {} bytes for {layout:?}",
                region.len
            )));
        }
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
/// What taking answers needs comes first, then what sending needs: hundreds of them are in no cache of the processor.
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
}

impl Client {
    /// The number that the next request will have: answers carry it as their immediate.
    #[inline]
    pub fn next_number(&self) -> u32 {
        self.next.wrapping_add(1)
    }

    /// The shape of its slots.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// WRITEs `count` (at most [`MAX_BATCH`]) requests, each with the payload that `fill` gives it, with one
    /// doorbell. The caller keeps less than a window of requests unanswered, counted from the oldest.
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
    #[inline]
    pub fn poll(&mut self, each: impl FnMut(Received<'_>)) -> Result<usize, RpcError> {
        self.port.poll(MAX_BATCH, &mut self.buffer, each)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_word_changes_with_number_length_and_bytes() {
        assert_eq!(word(1, &[]), 1 << 32);
        let words = [
            word(1, &[]),
            word(2, &[]),
            word(1, &[0]),
            word(1, &[0, 0]),
            word(1, &[1]),
            word(1, &[0, 1]),
        ];
        for (i, a) in words.iter().enumerate() {
            assert!(words[i + 1..].iter().all(|b| a != b), "{i}");
        }
    }

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
            queues: 1,
        };
        let server =
            Server::new(&pd, layout, 1, doorbells, &UdPortConfig::default()).expect("made");
        let client = PreparedClient::new(&pd, 0, &config).expect("made");
        let cq = context.create_cq(1).expect("a CQ");
        let qp = server_qp(&pd, port, &cq).expect("made");
        let endpoint = qp.endpoint();
        let _qp = qp.connect(&client.uc_endpoint()).expect("connected");
        let slots = server.region_of(0).expect("the first");
        let mut client = client.connect(&endpoint, slots, layout).expect("connected");
        let depth = usize::try_from(client.send_depth).expect("small");
        assert!(depth < MAX_BATCH, "{depth}");
        client.send(depth, |_| &[]).expect("it fits");
        let e = client.send(depth + 1, |_| &[]).expect_err("it never fits");
        assert!(e.to_string().contains("in a send queue of"), "{e}");
    }

    #[test]
    fn clients_have_parts_of_the_region_that_do_not_overlap() {
        let layout = Layout {
            window: 4,
            payload: 8,
        };
        let region = RemoteMemory {
            addr: 1 << 20,
            len: 3 * 64,
            rkey: verbs::RKey(7),
        };
        let parts: Vec<_> = (0..3)
            .map(|c| region_of(&region, &layout, c).expect("inside"))
            .collect();
        assert_eq!(
            parts
                .iter()
                .map(|p| (p.addr - region.addr, p.len))
                .collect::<Vec<_>>(),
            [(0, 64), (64, 64), (128, 64)]
        );
        assert_eq!(region_of(&region, &layout, 3), None);
    }
}
