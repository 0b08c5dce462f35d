//! Ends before they are connected, and what they tell each other.

use serde::{Deserialize, Serialize};
use verbs::{
    Access, CompletionQueue, HeaderOnly, MemoryRegion, PreparedQp, ProtectionDomain, QpEndpoint,
    QueuePair, Rc, RecvList, RemoteMemory,
};

use crate::comm::{Lane, Receiver, Sender};
use crate::config::{
    Config, LANE_RECV_QUEUE_DEPTH, MAX_LANES, RECEIVER_SEND_QUEUE_DEPTH, RECVS_PER_REPOST,
    SENDER_SEND_QUEUE_DEPTH,
};
use crate::error::Error;
use crate::memory_layout::{COMPLETION_RECORD_BYTES, FIFO_SLOT_BYTES, FIFO_SLOTS};
use crate::peer_watch::{PeerLiveness, PeerMonitor};

/// The version with which a `Hello` of this protocol begins.
const VERSION: u32 = 1;

/// The data that an end needs of its peer. Exchange it by any means.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Hello {
    version: u32,
    /// The token that the listener gave to permitted peers.
    pub(crate) token: u64,
    #[serde(rename = "lanes")]
    lane_endpoints: Vec<QpEndpoint>,
    /// A sender's FIFO, or a receiver's completion records.
    #[serde(rename = "memory")]
    peer_writable_memory: RemoteMemory,
}

impl Hello {
    fn new(token: u64, qps: &[PreparedQp<Rc>], memory: &MemoryRegion) -> Self {
        Self {
            version: VERSION,
            token,
            lane_endpoints: qps.iter().map(PreparedQp::endpoint).collect(),
            peer_writable_memory: memory.remote(),
        }
    }

    /// Returns the number of queue pairs of the peer.
    pub fn lane_count(&self) -> usize {
        self.lane_endpoints.len()
    }

    /// Returns this hello with at most `lanes` queue pairs.
    pub(crate) fn with_at_most_lanes(&self, lanes: usize) -> Self {
        let mut hello = self.clone();
        hello.lane_endpoints.truncate(lanes);
        hello
    }

    /// Checks the version, the number of queue pairs and the size of the memory.
    fn check(&self, lanes: usize, memory_bytes: usize) -> Result<(), Error> {
        let no = |what: String| Err(Error::Protocol(what));
        if self.version != VERSION {
            return no(format!(
                "it speaks version {} of this protocol, this end version {VERSION}",
                self.version
            ));
        }
        if self.lane_endpoints.is_empty() || self.lane_endpoints.len() > lanes {
            return no(format!(
                "it has {} queue pairs where 1 to {lanes} are wanted",
                self.lane_endpoints.len()
            ));
        }
        if self.peer_writable_memory.len != memory_bytes as u64 {
            return no(format!(
                "its control memory has {} bytes instead of {memory_bytes}",
                self.peer_writable_memory.len
            ));
        }
        Ok(())
    }
}

/// The objects that a sender and a receiver both have before they are connected.
#[derive(Debug)]
struct UnconnectedEnd {
    cq: CompletionQueue,
    qps: Vec<PreparedQp<Rc>>,
    peer_writable_memory: MemoryRegion,
}

impl UnconnectedEnd {
    fn new(
        pd: &ProtectionDomain,
        config: &Config,
        lanes: usize,
        depths: (usize, usize),
        memory_bytes: usize,
    ) -> Result<Self, Error> {
        let (send, recv) = depths;
        #[expect(clippy::cast_possible_truncation, reason = "thousands at most")]
        let (entries, send, recv) = (
            (lanes * (send + recv) + 64) as u32,
            send as u32,
            recv as u32,
        );
        let cq = pd.context().create_cq(entries)?;
        let qps = (0..lanes)
            .map(|_| {
                let mut qp = pd.qp_builder::<Rc>(&cq, &cq).port_num(config.port_num);
                if let Some(index) = config.gid_index {
                    qp = qp.gid_index(index);
                }
                qp.max_send_wr(send).max_recv_wr(recv).build()
            })
            .collect::<Result<Vec<_>, _>>()?;
        let memory = pd.alloc(memory_bytes, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        Ok(Self {
            cq,
            qps,
            peer_writable_memory: memory,
        })
    }

    /// Connects as many queue pairs as the peer has; those that it has not are destroyed.
    fn connect(
        qps: Vec<PreparedQp<Rc>>,
        peer: &Hello,
        postlist: usize,
    ) -> Result<Vec<Lane>, Error> {
        let pairs = qps.into_iter().zip(&peer.lane_endpoints);
        let lane = |(qp, peer): (PreparedQp<Rc>, &QpEndpoint)| {
            let qp: QueuePair<Rc> = qp.connect(peer)?;
            Ok(Lane {
                send_postlist: qp.postlist(postlist),
                free_send_wrs: qp.max_send_wr(),
                qp,
            })
        };
        pairs.map(lane).collect()
    }
}

/// A sender that is not connected yet.
#[derive(Debug)]
pub struct PreparedSender {
    end: UnconnectedEnd,
    pd: ProtectionDomain,
}

impl PreparedSender {
    /// Creates the sender's queue pairs and its FIFO.
    ///
    /// # Errors
    /// A verb failed.
    pub fn new(pd: &ProtectionDomain, config: &Config) -> Result<Self, Error> {
        let lanes = config.lane_count.clamp(1, MAX_LANES);
        let bytes = FIFO_SLOTS * FIFO_SLOT_BYTES;
        Ok(Self {
            end: UnconnectedEnd::new(pd, config, lanes, (SENDER_SEND_QUEUE_DEPTH, 1), bytes)?,
            pd: pd.clone(),
        })
    }

    /// The data of this end that the receiver needs.
    pub fn hello(&self, token: u64) -> Hello {
        Hello::new(token, &self.end.qps, &self.end.peer_writable_memory)
    }

    /// Connects to the receiver that answered [`hello`](Self::hello) with `peer`. `watch` tells whether the receiver is
    /// gone.
    ///
    /// # Errors
    /// The peer is not one of this protocol, or a verb failed.
    pub fn connect(
        self,
        peer: &Hello,
        watch: Option<Box<dyn PeerLiveness>>,
    ) -> Result<Sender, Error> {
        let Self { end, pd } = self;
        peer.check(end.qps.len(), FIFO_SLOTS * COMPLETION_RECORD_BYTES)?;
        let lanes = UnconnectedEnd::connect(
            end.qps,
            peer,
            crate::memory_layout::MAX_RECEIVES_PER_GROUP + 1,
        )?;
        let sizes = pd.alloc(FIFO_SLOTS * COMPLETION_RECORD_BYTES, Access::LOCAL_WRITE)?;
        let watched = PeerMonitor::new(watch);
        Ok(Sender::new(
            lanes,
            end.cq,
            (end.peer_writable_memory, sizes),
            peer.peer_writable_memory,
            watched,
        ))
    }
}

/// A receiver that is not connected yet.
#[derive(Debug)]
pub struct PreparedReceiver {
    end: UnconnectedEnd,
    pd: ProtectionDomain,
    recvs: RecvList,
    config: Config,
}

impl PreparedReceiver {
    /// Makes its queue pairs for a sender that has `lanes` of them, its completion records, and posts RECVs.
    ///
    /// # Errors
    /// A verb failed.
    pub fn new(pd: &ProtectionDomain, config: &Config, lanes: usize) -> Result<Self, Error> {
        let lanes = lanes.min(config.lane_count).clamp(1, MAX_LANES);
        let bytes = FIFO_SLOTS * COMPLETION_RECORD_BYTES;
        let end = UnconnectedEnd::new(
            pd,
            config,
            lanes,
            (RECEIVER_SEND_QUEUE_DEPTH, LANE_RECV_QUEUE_DEPTH),
            bytes,
        )?;
        let mut recvs = end.qps[0].recv_list(RECVS_PER_REPOST);
        for _ in 0..RECVS_PER_REPOST {
            recvs.recv(HeaderOnly, 0);
        }
        for qp in &end.qps {
            for _ in 0..LANE_RECV_QUEUE_DEPTH / RECVS_PER_REPOST {
                qp.post_recv(&mut recvs)?;
            }
        }
        Ok(Self {
            end,
            pd: pd.clone(),
            recvs,
            config: *config,
        })
    }

    /// The data of this end that the sender needs.
    pub fn hello(&self, token: u64) -> Hello {
        Hello::new(token, &self.end.qps, &self.end.peer_writable_memory)
    }

    /// Queue pairs of this end.
    pub fn lane_count(&self) -> usize {
        self.end.qps.len()
    }

    /// Connects to the sender whose hello is `peer`. Once the sender is connected, too, receives may be posted.
    ///
    /// # Errors
    /// The peer is not one of this protocol, or a verb failed.
    pub fn connect(
        self,
        peer: &Hello,
        watch: Option<Box<dyn PeerLiveness>>,
    ) -> Result<Receiver, Error> {
        let Self {
            end,
            pd,
            recvs,
            config,
        } = self;
        peer.check(MAX_LANES, FIFO_SLOTS * FIFO_SLOT_BYTES)?;
        let lanes = UnconnectedEnd::connect(end.qps, peer, 1)?;
        let staging = pd.alloc(FIFO_SLOTS * FIFO_SLOT_BYTES, Access::LOCAL_WRITE)?;
        Ok(Receiver::new(
            lanes,
            end.cq,
            (end.peer_writable_memory, staging),
            peer.peer_writable_memory,
            recvs,
            (pd, config),
            PeerMonitor::new(watch),
        ))
    }
}

/// A sender and a receiver in one process, connected: for tests, and for ranks that share a process.
///
/// # Errors
/// A verb failed.
pub fn connected_pair(
    from: &ProtectionDomain,
    to: &ProtectionDomain,
    config: &Config,
) -> Result<(Sender, Receiver), Error> {
    let sender = PreparedSender::new(from, config)?;
    let to_receiver = sender.hello(0);
    let receiver = PreparedReceiver::new(to, config, to_receiver.lane_count())?;
    let to_sender = receiver.hello(0);
    let to_receiver = to_receiver.with_at_most_lanes(receiver.lane_count());
    let receiver = receiver.connect(&to_receiver, None)?;
    Ok((sender.connect(&to_sender, None)?, receiver))
}
