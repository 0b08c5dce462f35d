//! Opens a client's session, with the queue pairs that the server's design needs.

use std::time::{Duration, Instant};

use rpc::{BufferedUdQpConfig, herd, one_sided};
use service::random::from_system;
use service::sessions::change_number_span;
use service::{ClientSession, ConnectError, Protocol, ServerLocation};
use verbs::{Context, PortAndGidIndex, ProtectionDomain};

use super::design::{ClientDesign, HerdClientDesign};
use super::error::ClientError;
use super::lane::Lane;
use super::remote_index::RemoteIndexClientDesign;
use super::remote_records::RemoteRecordsClientDesign;
use crate::rendezvous::{
    Accepted, Hello, LaneHello, RemoteLayout, RemotelyAccessibleMemory, RendezvousProtocol,
    ServerOffer,
};
use crate::{ClientConfig, Design, wire};

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
pub(super) struct OpenSession {
    pub(super) lanes: Vec<Lane>,
    pub(super) design: Box<dyn ClientDesign>,
    pub(super) server_session: ClientSession,
    pub(super) hash_seed: u64,
    pub(super) server_design: Design,
}

/// The client's queue pairs before the server has answered.
struct PreparedQueuePairs {
    lanes: Vec<herd::PreparedClient>,
    one_sided_queue: Option<one_sided::PreparedOneSidedQueue>,
    hash_seed: u64,
    server_design: Design,
    /// The longest answer that the server sends to any client.
    max_answer_bytes: usize,
}

fn missing_in_answer_error(what: &str) -> ClientError {
    ClientError::permanent_refusal(format!("its answer lacks {what}"))
}

impl SessionOpener {
    pub(super) fn new(
        target: ServerLocation<RendezvousProtocol>,
        context: &Context,
        config: ClientConfig,
    ) -> Result<Self, ClientError> {
        config
            .check_values_in_range()
            .map_err(ConnectError::Config)?;
        Ok(Self {
            port: target
                .port_and_gid(&config.nic, context)
                .map_err(ConnectError::from)?,
            pd: context.alloc_pd()?,
            context: context.clone(),
            server_location: target,
            session_id: from_system(),
            config,
        })
    }

    /// Chooses a new session name, so that the server treats later changes as those of another client.
    pub(super) fn renew_session_id(&mut self) {
        self.session_id = from_system();
    }

    /// Opens a session, and retries until the deadline while a retry can help.
    pub(super) fn open_until(&self, until: Instant) -> Result<OpenSession, ClientError> {
        let target = &self.server_location;
        target.retry_until(until, || self.open(), ClientError::is_permanent)
    }

    fn open(&self) -> Result<OpenSession, ClientError> {
        let patience = self.config.request_timeout().max(Duration::from_secs(1));
        let window = self.config.window;
        let opened = self
            .server_location
            .open_session(window, patience, |offer| self.prepare_hello(offer));
        let (prepared, accepted, connection) = opened?;
        let PreparedQueuePairs {
            lanes,
            one_sided_queue: one_sided,
            hash_seed: seed,
            server_design: served,
            max_answer_bytes: max_answer,
        } = prepared;
        let lanes = self.connect_lanes(lanes, &accepted, max_answer)?;
        let design: Box<dyn ClientDesign> = match one_sided {
            None => Box::new(HerdClientDesign),
            Some(prepared) => {
                let memory = accepted.memory.as_ref();
                let memory = memory.ok_or_else(|| missing_in_answer_error("its memory"))?;
                self.open_one_sided_design(prepared, memory, (seed, lanes.len()))?
            }
        };
        Ok(OpenSession {
            lanes,
            design,
            server_session: connection,
            hash_seed: seed,
            server_design: served,
        })
    }

    /// Checks the server's offer and prepares the client's queue pairs and its [`Hello`].
    fn prepare_hello(
        &self,
        offer: &ServerOffer,
    ) -> Result<(PreparedQueuePairs, Hello), ClientError> {
        if !(1..=64).contains(&offer.partitions) {
            let reason = format!("it has {} partitions", offer.partitions);
            return Err(ClientError::permanent_refusal(reason));
        }
        let device = self.context.capabilities()?;
        let checked = offer.design.check(device);
        checked.map_err(ConnectError::from)?;
        let window = self.config.window;
        let port = self.ud_port_config_for_answers(offer.max_answer_bytes);
        let payload = offer.request_region_layout.max_payload_bytes;
        let lanes = (0..offer.partitions)
            .map(|_| herd::PreparedClient::new(&self.pd, payload, &port))
            .collect::<Result<Vec<_>, _>>()?;
        let requests = match offer.design {
            Design::Herd => None,
            Design::Reads => Some(1),
            // A change posts two WRITEs and an atomic.
            Design::Atomics => Some(3),
        };
        let batch = self.config.batch;
        let one_sided = requests
            .map(|n| one_sided::PreparedOneSidedQueue::new(&self.pd, self.port, window, batch, n))
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
            memory_access_qp: one_sided
                .as_ref()
                .map(one_sided::PreparedOneSidedQueue::endpoint),
        };
        let prepared = PreparedQueuePairs {
            lanes,
            one_sided_queue: one_sided,
            hash_seed: offer.hash_seed,
            server_design: offer.design,
            max_answer_bytes: offer.max_answer_bytes,
        };
        Ok((prepared, hello))
    }

    /// Returns the UD configuration for receiving answers of at most `max_answer` bytes.
    fn ud_port_config_for_answers(&self, max_answer: usize) -> BufferedUdQpConfig {
        // At least 40 bytes leave room for a chunk's header and some bytes of its value.
        let answer =
            (wire::ANSWER_HEADER_BYTES + self.config.max_single_message_value_bytes).max(40);
        // All chunks of a long value may arrive besides the other answers.
        let depth = self.config.window.max(64) + rpc::MAX_BATCH;
        let depth = u32::try_from(depth).unwrap_or(u32::MAX);
        BufferedUdQpConfig {
            port_num: self.port.port_num,
            gid_index: Some(self.port.gid_index),
            send_depth: (2 * depth).max(256),
            recv_depth: depth,
            max_recv_payload_bytes: answer.min(max_answer),
            ..BufferedUdQpConfig::default()
        }
    }

    fn connect_lanes(
        &self,
        lanes: Vec<herd::PreparedClient>,
        accepted: &Accepted,
        max_answer: usize,
    ) -> Result<Vec<Lane>, ClientError> {
        if accepted.lanes.len() != lanes.len() {
            return Err(missing_in_answer_error("partitions"));
        }
        let span = change_number_span(self.config.window);
        let port = self.ud_port_config_for_answers(max_answer);
        let chunk = port
            .max_recv_payload_bytes
            .saturating_sub(wire::ANSWER_CHUNK_HEADER_BYTES);
        let answers = (port.recv_depth as usize, chunk);
        let lanes = lanes.into_iter().zip(&accepted.lanes);
        let lanes = lanes.map(|(client, lane)| {
            let client = client.connect(
                &lane.server_uc_qp,
                lane.request_slots,
                lane.request_region_layout,
            )?;
            Ok::<_, ClientError>(Lane::new(client, (self.config.batch, span), answers))
        });
        lanes.collect()
    }

    /// Creates the design's access to the server's memory.
    fn open_one_sided_design(
        &self,
        prepared: one_sided::PreparedOneSidedQueue,
        access: &RemotelyAccessibleMemory,
        (seed, partitions): (u64, usize),
    ) -> Result<Box<dyn ClientDesign>, ClientError> {
        let peer = &access.server_rc_qp;
        let (design, there): (Box<dyn ClientDesign>, _) = match &access.memory_layout {
            RemoteLayout::Logs {
                partitions,
                item_bytes,
            } => {
                let memory = (&partitions[..], *item_bytes);
                let value_bytes = self.config.max_single_message_value_bytes;
                let index =
                    RemoteIndexClientDesign::new(prepared, peer, memory, value_bytes, seed)?;
                (Box::new(index), partitions.len())
            }
            RemoteLayout::Records {
                partitions,
                shape,
                writes,
            } => {
                let memory = (&partitions[..], *shape, *writes);
                let deadline = self.config.request_timeout();
                let records =
                    RemoteRecordsClientDesign::new(prepared, peer, memory, seed, deadline)?;
                (Box::new(records), partitions.len())
            }
        };
        if there != partitions {
            return Err(missing_in_answer_error("memory of partitions"));
        }
        Ok(design)
    }
}
