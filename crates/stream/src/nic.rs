//! The device of streams, and its queue pairs that are ready to be connected.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use verbs::{Access, CompletionChannel, Context, Mtu, ProtectionDomain, Psn, Rc};

use crate::connection::Connection;
use crate::error::SetupError;
use crate::handshake::{HandshakeError, HandshakeVersion, Hello};
use crate::pool::{ALLOWED_BLOCK_BYTES, Pool};
use crate::prepared_connection::{MAX_INLINE_BYTES, PreparedConnection};
use crate::reactor::{Reactor, Reactors, create_nonblocking_channel};

/// Maximum number of scatter/gather elements of a message.
const MAX_SGE: u32 = 16;

/// The errors of a connection that a server closes or resets, or on which it sends nothing.
const CONNECTION_END_ERRORS: [io::ErrorKind; 5] = [
    io::ErrorKind::BrokenPipe,
    io::ErrorKind::ConnectionAborted,
    io::ErrorKind::ConnectionReset,
    io::ErrorKind::TimedOut,
    io::ErrorKind::UnexpectedEof,
];

/// The policy by which a stream chooses between RDMA and TCP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RdmaPolicy {
    /// Use TCP if one of the sides cannot use RDMA, or the server does not answer the hello.
    #[default]
    FallBack,
    /// Use RDMA only; connecting fails without it.
    RdmaOnly,
    /// Use TCP only: clients send no hello, and servers decline RDMA.
    TcpOnly,
}

/// Configuration of streams.
#[derive(Debug, Clone)]
pub struct Config {
    /// Number of bytes of a block, which limits the size of a message to this side: one of
    /// [`ALLOWED_BLOCK_BYTES`], 8,192 by default. A connection has [`queue_size`](Self::queue_size) blocks
    /// posted.
    pub block_bytes: u32,
    /// Number of WRs of the send queue and of the receive queue, 16 to 4,096; 128 by default.
    pub queue_size: u16,
    /// Version of the handshake that clients use; servers accept all versions.
    pub client_handshake_version: HandshakeVersion,
    /// Policy by which streams choose between RDMA and TCP.
    pub rdma_policy: RdmaPolicy,
    /// Maximum duration of the handshake; 5 s by default.
    pub handshake_timeout: Duration,
    /// Time for which a read or write polls before it sleeps on the completion channel; 50 µs by
    /// default. An async stream polls up to 16 times as long while its sleeps are short.
    pub spin_time: Duration,
    /// Provider of the NIC: "softnic", the default, or "system".
    pub provider: String,
    /// Device name; the provider's first device by default.
    pub device: Option<String>,
    /// Port number of the device, counted from 1; 1 by default.
    pub port_num: u8,
    /// Index in the port's GID table; [`Context::default_gid_index`] by default.
    pub gid_index: Option<u8>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            block_bytes: ALLOWED_BLOCK_BYTES[0],
            queue_size: 128,
            client_handshake_version: HandshakeVersion::V2,
            rdma_policy: RdmaPolicy::FallBack,
            handshake_timeout: Duration::from_secs(5),
            spin_time: Duration::from_micros(50),
            provider: "softnic".to_owned(),
            device: None,
            port_num: 1,
            gid_index: None,
        }
    }
}

impl Config {
    fn check(&self) -> Result<(), SetupError> {
        if !ALLOWED_BLOCK_BYTES.contains(&self.block_bytes) {
            return Err(SetupError::InvalidBlockBytes(self.block_bytes));
        }
        if !(16..=4096).contains(&self.queue_size) {
            return Err(SetupError::QueueSizeOutOfRange(self.queue_size));
        }
        Ok(())
    }
}

/// An open device with the pool of its streams.
#[derive(Debug)]
pub(crate) struct Nic {
    context: Context,
    pd: ProtectionDomain,
    pub(crate) pool: Pool,
    port_num: u8,
    gid_index: u8,
    queue_size: u16,
    max_sge: u32,
    reactors: Reactors,
}

/// Configuration and device of this side's streams; `nic` is `None` if streams use only TCP.
#[derive(Debug)]
pub(crate) struct ConfigAndNic {
    pub(crate) config: Config,
    pub(crate) nic: Option<Nic>,
}

impl ConfigAndNic {
    /// Opens the device. A missing device is an error only if RDMA is required.
    pub(crate) fn new(config: Config) -> Result<Self, SetupError> {
        config.check()?;
        let nic = match config.rdma_policy {
            RdmaPolicy::TcpOnly => None,
            RdmaPolicy::RdmaOnly => Some(Nic::open(&config)?),
            RdmaPolicy::FallBack => Nic::open(&config)
                .inspect_err(|why| tracing::warn!(%why, "streams go by TCP"))
                .ok(),
        };
        Ok(Self { config, nic })
    }

    /// Returns a client's queue pair, which `prepare` creates, or `None` if the stream goes by TCP.
    ///
    /// # Errors
    /// Returns the error of `prepare` if RDMA is required.
    pub(crate) fn prepare_client<P>(
        &self,
        prepare: impl FnOnce(&Nic) -> Result<P, SetupError>,
    ) -> Result<Option<P>, SetupError> {
        let Some(nic) = &self.nic else {
            return Ok(None);
        };
        match prepare(nic) {
            Err(why) if self.config.rdma_policy == RdmaPolicy::FallBack => {
                tracing::warn!(%why, "a stream goes by TCP");
                Ok(None)
            }
            prepared => prepared.map(Some),
        }
    }

    /// Returns true if a client must connect again by plain TCP, because the server seems to speak another protocol: it
    /// answers a hello with other bytes, or with none. `answered` is true if it has sent any bytes.
    ///
    /// The client has sent no bytes of the program then, so connecting again repeats none.
    pub(crate) fn must_connect_by_tcp(&self, why: &SetupError, answered: bool) -> bool {
        let is_other_protocol = match why {
            SetupError::Handshake(HandshakeError::WrongMagic(_)) => true,
            SetupError::TimedOut(_) => !answered,
            SetupError::Io(e) => !answered && CONNECTION_END_ERRORS.contains(&e.kind()),
            _ => false,
        };
        is_other_protocol && self.config.rdma_policy == RdmaPolicy::FallBack
    }

    /// Connects a server's queue pair, which `prepare` creates, for a client's hello. Returns the connection and the
    /// server's hello, or `None` if the server must decline.
    pub(crate) fn connect_and_make_answer(
        &self,
        peer: &Hello,
        prepare: impl FnOnce(&Nic) -> Result<PreparedConnection, SetupError>,
    ) -> Option<(Connection, Hello)> {
        let nic = self.nic.as_ref()?;
        let connected = prepare(nic).and_then(|prepared| {
            let own = prepared.hello();
            Ok((prepared.connect(peer)?, own))
        });
        connected
            .inspect_err(|why| tracing::warn!(%why, "a stream goes by TCP"))
            .ok()
    }
}

impl Nic {
    fn open(config: &Config) -> Result<Self, SetupError> {
        let provider = verbs::Provider::by_name(&config.provider)
            .map_err(|e| SetupError::Device(e.to_string()))?;
        let context = provider.device(config.device.as_deref())?.open()?;
        let pd = context.alloc_pd()?;
        let pool = Pool::new(&pd, config.block_bytes);
        let max_sge = context.query_device()?.max_sge.clamp(1, MAX_SGE);
        let gid_index = match config.gid_index {
            Some(index) => index,
            None => context.default_gid_index(config.port_num)?,
        };
        Ok(Self {
            context,
            pd,
            pool,
            port_num: config.port_num,
            gid_index,
            queue_size: config.queue_size,
            max_sge,
            reactors: Reactors::default(),
        })
    }

    /// Returns the reactor of the current runtime.
    pub(crate) fn reactor(&self) -> Result<Arc<Reactor>, SetupError> {
        self.reactors.current_or_create(&self.context)
    }

    /// Creates a queue pair as [`prepare`](Self::prepare_qp) does, with a completion channel of its own.
    pub(crate) fn prepare_qp_with_own_channel(&self) -> Result<PreparedConnection, SetupError> {
        self.prepare_qp(&create_nonblocking_channel(&self.context)?)
    }

    /// Creates a queue pair in INIT with all its receives posted, whose completion queue uses `channel`.
    pub(crate) fn prepare_qp(
        &self,
        channel: &CompletionChannel,
    ) -> Result<PreparedConnection, SetupError> {
        let size = u32::from(self.queue_size);
        // Every WR of both queues may complete before the next poll.
        let cq = self.context.create_cq_with_channel(2 * size, channel)?;
        let qp = self
            .pd
            .qp_builder::<Rc>(&cq, &cq)
            .max_send_wr(size)
            .max_recv_wr(size)
            .max_send_sge(self.max_sge)
            .max_inline_data_if_supported(MAX_INLINE_BYTES)
            .access(Access::LOCAL_WRITE | Access::REMOTE_WRITE)
            .port_num(self.port_num)
            .psn(Psn(0))
            .path_mtu(Mtu::Mtu1024)
            .max_rd_atomic(0)
            .min_rnr_timer(0)
            .rnr_retry(0)
            .gid_index(self.gid_index)
            .build()?;
        let mut posted = VecDeque::with_capacity(self.queue_size.into());
        let mut list = qp.recv_list(self.queue_size.into());
        for _ in 0..self.queue_size {
            let block = self.pool.take_block()?;
            list.recv(block.slice(), 0);
            posted.push_back(block);
        }
        let prepared = PreparedConnection {
            qp,
            cq,
            pool: self.pool.clone(),
            posted_recv_blocks: posted,
            queue_size: self.queue_size,
            max_sge: self.max_sge as usize,
        };
        prepared.qp.post_recv(&mut list)?;
        Ok(prepared)
    }
}
