//! Opens a client's session and its queue pairs.

use std::time::{Duration, Instant};

use rpc::{BufferedUdQpConfig, herd, one_sided};
use service::sessions::change_number_span;
use service::{ClientSession, ConnectError, Protocol, ServerLocation};
use verbs::{Context, PortAndGidIndex, ProtectionDomain};

use super::error::ClientError;
use super::lane::Lane;
use super::walker::WalkingClient;
use crate::config::{AccessDesign, ClientConfig, check_string_sizes};
use crate::key_or_value::KeyOrValue;
use crate::key_or_value::private::Sizes;
use crate::rendezvous::{Accepted, Hello, LaneHello, RendezvousProtocol, ServerOffer, ServerPlace};
use crate::wire;

/// Opens successive sessions at one server.
#[derive(Debug)]
pub(super) struct SessionOpener {
    pub(super) config: ClientConfig,
    port: PortAndGidIndex,
    context: Context,
    pd: ProtectionDomain,
    server_location: ServerLocation<RendezvousProtocol>,
    /// The name of the session.
    session_id: u64,
}

/// An open session.
pub(super) struct OpenSession<T: KeyOrValue> {
    pub(super) lanes: Vec<Lane>,
    pub(super) walker: Option<WalkingClient<T>>,
    pub(super) connection: ClientSession,
    pub(super) server_incarnation: u64,
    pub(super) server_place: ServerPlace,
    pub(super) tree_count: usize,
    pub(super) key_and_value_limits: T::Sizes,
}

/// The client's queue pairs before the server has answered.
struct PreparedSession<T: KeyOrValue> {
    lanes: Vec<herd::PreparedClient>,
    read_qp: Option<one_sided::PreparedOneSidedQueue>,
    node_bytes: usize,
    recv_depth: u32,
    max_answer_bytes: usize,
    server_incarnation: u64,
    server_place: ServerPlace,
    tree_count: usize,
    sizes: T::Sizes,
}

impl SessionOpener {
    pub(super) fn new(
        target: ServerLocation<RendezvousProtocol>,
        context: &Context,
        config: ClientConfig,
    ) -> Result<Self, ClientError> {
        config.check().map_err(ConnectError::Config)?;
        let device = context.capabilities()?;
        config.access.check(device).map_err(ConnectError::from)?;
        Ok(Self {
            port: target
                .port_and_gid(&config.nic, context)
                .map_err(ConnectError::from)?,
            pd: context.alloc_pd()?,
            context: context.clone(),
            server_location: target,
            session_id: service::random::from_system(),
            config,
        })
    }

    /// Chooses a new session name, so that the server treats later changes as those of another client.
    pub(super) fn renew_session_id(&mut self) {
        self.session_id = service::random::from_system();
    }

    /// Opens a session, and retries until the deadline while a retry can help.
    pub(super) fn open_until<T: KeyOrValue>(
        &self,
        until: Instant,
    ) -> Result<OpenSession<T>, ClientError> {
        let target = &self.server_location;
        target.retry_until(until, || self.open(), ClientError::is_permanent)
    }

    fn open<T: KeyOrValue>(&self) -> Result<OpenSession<T>, ClientError> {
        let patience = self.config.request_timeout().max(Duration::from_secs(1));
        let window = self.config.window;
        let opened = self
            .server_location
            .open_session(window, patience, |offer| self.prepare_hello::<T>(offer));
        let (mut prepared, accepted, connection) = opened?;
        let (server, place, trees, sizes) = (
            prepared.server_incarnation,
            prepared.server_place,
            prepared.tree_count,
            prepared.sizes,
        );
        let walker = match prepared.read_qp.take() {
            None => None,
            Some(reads) => {
                let memory = accepted.remote_nodes;
                let memory = memory
                    .ok_or_else(|| ClientError::permanent_refusal("its answer lacks its memory"))?;
                let cache = (self.config.max_cached_nodes, trees);
                Some(WalkingClient::new(
                    reads,
                    &memory,
                    (prepared.node_bytes, prepared.sizes),
                    cache,
                )?)
            }
        };
        Ok(OpenSession {
            walker,
            lanes: self.connect_lanes(prepared, &accepted)?,
            connection,
            server_incarnation: server,
            server_place: place,
            tree_count: trees,
            key_and_value_limits: sizes,
        })
    }

    /// Checks the server's offer and prepares the client's queue pairs and its [`Hello`].
    fn prepare_hello<T: KeyOrValue>(
        &self,
        offer: &ServerOffer,
    ) -> Result<(PreparedSession<T>, Hello), ClientError> {
        let sizes = T::Sizes::from_strings(offer.string_limits)
            .ok_or(ClientError::OtherKeyType(offer.string_limits))?;
        check_string_sizes::<T>(offer.node_bytes, sizes).map_err(ClientError::permanent_refusal)?;
        if !(1..=64).contains(&offer.workers) || offer.trees == 0 {
            let reason = format!("it has {} workers", offer.workers);
            return Err(ClientError::permanent_refusal(reason));
        }
        if self.config.access != AccessDesign::Rpc && !offer.allows_reads {
            return Err(ClientError::permanent_refusal(format!(
                "its device lets nobody READ, which --access {} needs",
                self.config.access
            )));
        }
        AccessDesign::Rpc
            .check(self.context.capabilities()?)
            .map_err(ConnectError::from)?;
        let port = self
            .ud_port_config_for_answers(offer.max_answer_bytes.min(wire::max_answer_bytes::<T>()));
        let payload = offer.request_region_layout.max_payload_bytes;
        let lanes = (0..offer.workers)
            .map(|_| herd::PreparedClient::new(&self.pd, payload, &port))
            .collect::<Result<Vec<_>, _>>()?;
        let (window, batch) = (self.config.window, self.config.batch);
        // A change posts two WRITEs and an atomic.
        let work_requests = if offer.allows_writes { 3 } else { 1 };
        let reads = (self.config.access != AccessDesign::Rpc)
            .then(|| {
                one_sided::PreparedOneSidedQueue::new(
                    &self.pd,
                    self.port,
                    window,
                    batch,
                    work_requests,
                )
            })
            .transpose()?;
        let ends = lanes.iter().map(|c| LaneHello {
            uc: c.uc_endpoint(),
            ud: c.ud_endpoint(),
        });
        let hello = Hello {
            version: RendezvousProtocol::VERSION,
            session_id: self.session_id,
            window,
            max_answer_bytes: port.max_recv_payload_bytes,
            lanes: ends.collect(),
            memory_access_qp: reads
                .as_ref()
                .map(one_sided::PreparedOneSidedQueue::endpoint),
        };
        let prepared = PreparedSession {
            lanes,
            read_qp: reads,
            node_bytes: offer.node_bytes,
            recv_depth: port.recv_depth,
            max_answer_bytes: port.max_recv_payload_bytes,
            server_incarnation: offer.incarnation,
            server_place: offer.place,
            tree_count: offer.trees,
            sizes,
        };
        Ok((prepared, hello))
    }

    /// Returns the UD configuration for receiving answers.
    fn ud_port_config_for_answers(&self, max_answer: usize) -> BufferedUdQpConfig {
        // Long SCANs have several outstanding messages.
        let depth = self.config.window.max(64) + rpc::MAX_BATCH;
        let depth = u32::try_from(depth).unwrap_or(u32::MAX);
        BufferedUdQpConfig {
            port_num: self.port.port_num,
            gid_index: Some(self.port.gid_index),
            send_depth: (2 * depth).max(256),
            recv_depth: depth,
            max_recv_payload_bytes: max_answer,
            ..BufferedUdQpConfig::default()
        }
    }

    fn connect_lanes<T: KeyOrValue>(
        &self,
        prepared: PreparedSession<T>,
        accepted: &Accepted,
    ) -> Result<Vec<Lane>, ClientError> {
        if accepted.lanes.len() != prepared.lanes.len() {
            return Err(ClientError::permanent_refusal("its answer lacks workers"));
        }
        let span = change_number_span(self.config.window);
        let of = (prepared.recv_depth, prepared.max_answer_bytes);
        let sizes = prepared.sizes;
        let lanes = prepared.lanes.into_iter().zip(&accepted.lanes);
        let lanes = lanes.map(|(client, lane)| {
            let client = client.connect(
                &lane.server_uc_qp,
                lane.request_slots,
                lane.request_region_layout,
            )?;
            Ok::<_, ClientError>(Lane::new(client, self.config.batch, span, of, sizes))
        });
        lanes.collect()
    }
}
