//! All connections of the process that use MADs.
//!
//! One process of the host receives the packets of QP1. It passes each MAD to the process whose slot is in it, and each
//! request to any process with connection management. That process looks up the listener and forwards the request to
//! its process.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use roce::cm::{CmMessage as Mad, MAX_CM_RETRIES};
use roce::mad_delivery::{DELIVERED_MAD_BYTES, DeliveredMad, SLOT_SHIFT_IN_COMM_ID};
use rustix::net::{RecvFlags, recv};
use verbs_abi::{Gsi, IBV_QPT_UD};

use super::connection::{
    Connection, ConnectionPortGids as Gids, EndedConnectionIds, MessageConsumer,
    SharedConnectionState,
};
use super::format::{self, CommunicationIds};
use super::machine::ConnectionTimeouts;
use super::port_probes::PortProbes;
use crate::cm_thread::{CmThread, SocketAndTimerHandler, TimerPurpose};
use crate::errno::{Errno, INVALID, Result};
use crate::gsi;
use crate::lock::lock;
use crate::ports::{PortClaim, PortFolder};
use crate::wire::{CmMessage, Request, reason};

/// A listener for requests: an endpoint.
pub(crate) trait Listener: Send + Sync {
    /// Processes a request. The implementer becomes or creates the consumer of `connection`.
    fn on_request(self: Arc<Self>, connection: Arc<Connection>, request: Request);
}

/// Pause before a request looks again for a listener that is expected soon, or is busy.
const LISTENER_RETRY_PAUSE: Duration = Duration::from_millis(5);

/// Largest number of requests that wait for a listener. Further requests are dropped, and their senders repeat them.
const MAX_WAITING_REQUESTS: usize = 256;

/// Interval of the checks for peers that have ended without a message: the process was killed.
const PEER_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Largest number of peer processes that are asked in one check.
const MAX_MAD_PROBES_PER_CHECK: usize = 16;

/// The sender of a request: its port, the GUID of its device (0 for a SIDR request), its communication id or SIDR
/// request id, and true for a SIDR request.
type RequestSource = ([u8; 16], u64, u32, bool);

/// A queue pair of a peer: GID of its port, GUID of its device, its number.
type PeerQp = ([u8; 16], u64, u32);

#[derive(Default)]
struct ConnectionTable {
    connections: HashMap<u32, Arc<Connection>>,
    ids_by_request_source: HashMap<RequestSource, u32>,
    /// Connection of each peer's queue pair.
    ids_by_peer_qp: HashMap<PeerQp, u32>,
    /// Listeners, by the socket name of their claim.
    listeners: HashMap<String, Weak<dyn Listener>>,
    /// Requests that wait for a listener.
    waiting_requests: Vec<DeliveredMad>,
    next_id: u32,
    /// True while an alarm for [`TimerPurpose::CheckMadPeers`] is set.
    checks_peers: bool,
}

/// The configuration of a process's connections by MADs.
pub(crate) struct MadConnectionSettings {
    pub(crate) gsi: &'static Gsi,
    pub(crate) cm_thread: &'static CmThread,
    pub(crate) port_folder: &'static PortFolder,
    /// GUID of the device, in host byte order.
    pub(crate) ca_guid: u64,
    /// Time in which a peer must answer, including all repetitions.
    pub(crate) answer_timeout: Duration,
    pub(crate) time_wait: Duration,
}

/// The connections of the process by MADs.
pub(crate) struct MadConnections {
    shared: &'static SharedConnectionState,
    port_folder: &'static PortFolder,
    ca_guid: u64,
    timeouts: ConnectionTimeouts,
    process_slot: u16,
    mad_socket: OwnedFd,
    token: u64,
    table: Mutex<ConnectionTable>,
    peer_probes: Mutex<PeerProbes>,
}

/// The probes of peers that may have been killed.
#[derive(Default)]
struct PeerProbes {
    ports: PortProbes,
    /// The place among the peers' processes from which the next check asks.
    next_process: usize,
}

impl MadConnections {
    /// Opens QP1 and starts to receive MADs.
    ///
    /// # Errors
    /// The error of opening QP1 or of making the socket.
    pub(crate) fn start(settings: &MadConnectionSettings) -> Result<Arc<Self>> {
        let slot = gsi::open_qp1(settings.gsi)?;
        let socket = settings.port_folder.make_mad_socket(slot)?;
        let cm_thread = settings.cm_thread;
        let hub = Arc::new(Self {
            shared: Box::leak(Box::new(SharedConnectionState {
                gsi: settings.gsi,
                cm_thread,
                time_origin: Instant::now(),
                ended_ids: EndedConnectionIds::default(),
            })),
            port_folder: settings.port_folder,
            ca_guid: settings.ca_guid,
            timeouts: ConnectionTimeouts {
                max_response_time: settings.answer_timeout / (u32::from(MAX_CM_RETRIES) + 1),
                full_interval_resends: u32::from(MAX_CM_RETRIES),
                time_wait: settings.time_wait,
            },
            process_slot: slot,
            mad_socket: socket,
            token: cm_thread.new_token(),
            table: Mutex::new(ConnectionTable {
                // Messages for an earlier process in this slot may still arrive, so the first id is random.
                next_id: getrandom::u32().unwrap_or(0),
                ..ConnectionTable::default()
            }),
            peer_probes: Mutex::default(),
        });
        cm_thread.watch(&hub.mad_socket, &hub)?;
        Ok(hub)
    }

    /// Registers `listener` for requests to the address of `claim`.
    pub(crate) fn listen(&self, claim: &PortClaim, listener: Weak<dyn Listener>) {
        let name = claim.listener_socket_name().to_owned();
        lock(&self.table).listeners.insert(name, listener);
    }

    /// Removes the registration by [`listen`](Self::listen).
    pub(crate) fn stop_listening(&self, claim: &PortClaim) {
        lock(&self.table)
            .listeners
            .remove(claim.listener_socket_name());
    }

    /// Requests a connection to the port with the GID `peer`.
    ///
    /// # Errors
    /// `EINVAL` if no request can be made between these addresses.
    pub(crate) fn connect(
        self: &Arc<Self>,
        request: Request,
        peer: [u8; 16],
        consumer: Weak<dyn MessageConsumer>,
    ) -> Result<Arc<Connection>> {
        let gids = Gids {
            local: request.qp.gid,
            remote: peer,
        };
        let ids = CommunicationIds {
            service_id: format::service_id_of_request(&request).ok_or(INVALID)?,
            peer_gid: peer,
            is_datagram: request.qp_type == IBV_QPT_UD,
            ..CommunicationIds::default()
        };
        let transaction = getrandom::u64().unwrap_or(0);
        let (id, connection) = self.add_connection(gids, ids, transaction);
        connection.set_consumer(consumer);
        let sent = connection.send(&CmMessage::Request(request));
        if sent.is_err() {
            lock(&self.table).connections.remove(&id);
        }
        sent.map(|()| connection)
    }

    /// Tells all peers that the process ends.
    pub(crate) fn notify_exit(&self) {
        if let Ok(table) = self.table.try_lock() {
            table.connections.values().for_each(|c| c.notify_exit());
        }
    }

    /// Adds a connection; returns its communication id and the connection.
    fn add_connection(
        self: &Arc<Self>,
        gids: Gids,
        ids: CommunicationIds,
        transaction: u64,
    ) -> (u32, Arc<Connection>) {
        let mut table = lock(&self.table);
        table.remove_ended(&self.shared.ended_ids.take_all());
        let local = loop {
            table.next_id = table.next_id.wrapping_add(1);
            let id = (u32::from(self.process_slot) << SLOT_SHIFT_IN_COMM_ID)
                | (table.next_id % (1 << SLOT_SHIFT_IN_COMM_ID));
            // The id 0 means none.
            if id != 0 && !table.connections.contains_key(&id) {
                break id;
            }
        };
        let ids = CommunicationIds {
            local,
            ca_guid: self.ca_guid,
            ..ids
        };
        let connection = Connection::new(self.shared, gids, ids, transaction, self.timeouts);
        table.connections.insert(local, Arc::clone(&connection));
        if !std::mem::replace(&mut table.checks_peers, true) {
            self.set_peer_check_alarm();
        }
        (local, connection)
    }

    fn on_delivery(self: &Arc<Self>, delivery: DeliveredMad) {
        let Ok((transaction, mad)) = Mad::parse(&delivery.mad) else {
            return;
        };
        if matches!(mad, Mad::Req(_) | Mad::SidrReq(_)) {
            return self.on_request(delivery, transaction, &mad);
        }
        let connection = {
            let table = lock(&self.table);
            let id = match format::abandoned_request(&mad) {
                Some((ca_guid, sender)) => table
                    .ids_by_request_source
                    .get(&(delivery.source_gid, ca_guid, sender, false))
                    .copied(),
                None => Some(format::receiver_comm_id(&mad)),
            };
            id.and_then(|id| table.connections.get(&id).cloned())
        };
        match connection {
            // MADs from another port than the peer's are ignored.
            Some(connection) if connection.port_gids.remote == delivery.source_gid => {
                connection.on_mad_is_new_request(&mad);
            }
            Some(_) => {}
            None => {
                let answer = format::make_reply_to_unknown_dreq(&mad)
                    .or_else(|| format::make_rejection_of_unknown_connection(&mad));
                if let Some(answer) = answer {
                    self.send_answer_to(&delivery, transaction, &answer);
                }
            }
        }
    }

    fn send_answer_to(&self, delivery: &DeliveredMad, transaction: u64, mad: &Mad) {
        let DeliveredMad {
            source_gid: source,
            destination_gid: destination,
            ..
        } = delivery;
        self.shared.send_mad(destination, source, transaction, mad);
    }

    fn on_request(self: &Arc<Self>, delivery: DeliveredMad, transaction: u64, mad: &Mad) {
        let is_datagram = matches!(mad, Mad::SidrReq(_));
        let asker = (
            delivery.source_gid,
            format::requester_ca_guid(mad),
            format::sender_comm_id(mad),
            is_datagram,
        );
        let known = {
            let mut table = lock(&self.table);
            table.remove_ended(&self.shared.ended_ids.take_all());
            let id = table.ids_by_request_source.get(&asker).copied();
            id.and_then(|id| table.connections.get(&id).cloned())
        };
        if let Some(connection) = known {
            connection.on_mad_is_new_request(mad);
            return;
        }
        let refuse = |why| {
            if let Some(refusal) = format::make_rejection_without_connection(mad, why) {
                self.send_answer_to(&delivery, transaction, &refusal);
            }
        };
        let request = match format::parse_request(mad, delivery.source_gid) {
            Ok(request) => request,
            Err(why) => return refuse(why),
        };
        let Some(name) = self
            .port_folder
            .listener_socket_name_at(request.port_space, request.dst)
        else {
            if self
                .port_folder
                .may_listen_soon(request.port_space, request.dst)
            {
                return self.queue_for_retry(delivery);
            }
            return refuse(reason::INVALID_SERVICE_ID);
        };
        let listener = {
            let table = lock(&self.table);
            table.listeners.get(&name).and_then(Weak::upgrade)
        };
        let Some(listener) = listener else {
            // Another process listens. If this process listens, its listener is about to be registered, or does not
            // accept requests by packets.
            match self.port_folder.deliver_to(&name, &delivery.emit()) {
                Ok(()) => {}
                // The process has not read its earlier datagrams.
                Err(Errno(libc::EAGAIN)) => self.queue_for_retry(delivery),
                // The sender repeats the request.
                Err(Errno(errno)) => tracing::debug!("a request for {name} is lost: errno {errno}"),
            }
            return;
        };
        let qp = requesting_qp(mad, delivery.source_gid);
        if let Some(stale) = qp.and_then(|qp| self.connection_of_peer_qp(&qp)) {
            refuse(roce::cm::reason::STALE_CONNECTION);
            return stale.end_stale();
        }
        let connection = self.add_passive_connection(&delivery, transaction, &request, asker, qp);
        if connection.on_mad_is_new_request(mad) {
            listener.on_request(connection, request);
        }
    }

    /// Adds a connection for the request of `asker` and its queue pair `qp`.
    fn add_passive_connection(
        self: &Arc<Self>,
        delivery: &DeliveredMad,
        transaction: u64,
        request: &Request,
        asker: RequestSource,
        qp: Option<PeerQp>,
    ) -> Arc<Connection> {
        let gids = Gids {
            local: delivery.destination_gid,
            remote: delivery.source_gid,
        };
        let ids = CommunicationIds {
            service_id: format::service_id_of_request(request).unwrap_or(0),
            is_datagram: request.qp_type == IBV_QPT_UD,
            ..CommunicationIds::default()
        };
        let (id, connection) = self.add_connection(gids, ids, transaction);
        let mut table = lock(&self.table);
        table.ids_by_request_source.insert(asker, id);
        table.ids_by_peer_qp.extend(qp.map(|qp| (qp, id)));
        connection
    }

    /// Returns the connection of a peer's queue pair, if it has not ended.
    fn connection_of_peer_qp(&self, qp: &PeerQp) -> Option<Arc<Connection>> {
        let connection = {
            let table = lock(&self.table);
            table
                .connections
                .get(table.ids_by_peer_qp.get(qp)?)
                .cloned()
        };
        connection.filter(|c| c.occupies_peer_qp())
    }

    /// Queues a request to look for its listener again soon. Some programs listen anew for each connection, and the
    /// socket of a listener's process holds few requests.
    fn queue_for_retry(self: &Arc<Self>, delivery: DeliveredMad) {
        let mut table = lock(&self.table);
        if table.waiting_requests.len() < MAX_WAITING_REQUESTS
            && !table.waiting_requests.contains(&delivery)
        {
            // One alarm is for all waiting requests. Otherwise each alarm would set one for each of them.
            if table.waiting_requests.is_empty() {
                self.shared.cm_thread.set_alarm(
                    LISTENER_RETRY_PAUSE,
                    self,
                    TimerPurpose::RetryQueuedMadRequests,
                );
            }
            table.waiting_requests.push(delivery);
        }
    }
}

impl MadConnections {
    fn set_peer_check_alarm(self: &Arc<Self>) {
        let alarm = TimerPurpose::CheckMadPeers;
        self.shared
            .cm_thread
            .set_alarm(PEER_CHECK_INTERVAL, self, alarm);
    }

    /// Looks for peers whose process was killed, and ends their connections, as the kernel of such a host does by a DREQ.
    /// Only an answer of the peer's host ends a connection: the process may be stopped, or the network cut.
    fn check_peers(self: &Arc<Self>) {
        let connections = {
            let mut table = lock(&self.table);
            table.remove_ended(&self.shared.ended_ids.take_all());
            table.checks_peers = !table.connections.is_empty();
            table.connections.clone()
        };
        let mut probes = lock(&self.peer_probes);
        if connections.is_empty() {
            *probes = PeerProbes::default();
            return;
        }
        let lost = probes.probe_and_take_lost(&connections);
        drop(probes);
        for connection in lost {
            connection.end_stale();
        }
        self.set_peer_check_alarm();
    }
}

impl PeerProbes {
    /// Asks the hosts of established connections whether the peers' processes exist. Returns the connections to hosts
    /// where no process has the port. Other hosts answer by REJs for the processes that have ended.
    fn probe_and_take_lost(
        &mut self,
        connections: &HashMap<u32, Arc<Connection>>,
    ) -> Vec<Arc<Connection>> {
        let mut one_per_process = BTreeMap::new();
        let mut by_address: HashMap<Gids, HashSet<u32>> = HashMap::new();
        for (id, connection) in connections {
            if let Some(slot) = connection.established_peer_slot() {
                let gids = connection.port_gids;
                by_address.entry(gids).or_default().insert(*id);
                one_per_process.insert((gids.remote, slot), connection);
            }
        }
        self.ports.retain(|gids| by_address.contains_key(gids));
        let mut lost = Vec::new();
        for (gids, established) in by_address {
            let ids = self.ports.probe_and_take_lost(gids, established);
            lost.extend(ids.iter().filter_map(|id| connections.get(id).cloned()));
        }
        let count = one_per_process.len();
        let first = self.next_process % count.max(1);
        let asked = one_per_process.values().cycle().skip(first);
        for connection in asked.take(count.min(MAX_MAD_PROBES_PER_CHECK)) {
            connection.probe_peer();
        }
        self.next_process = first + MAX_MAD_PROBES_PER_CHECK;
        lost
    }
}

/// Returns the queue pair that sends the REQ, if the REQ names one.
fn requesting_qp(mad: &Mad, source: [u8; 16]) -> Option<PeerQp> {
    match mad {
        Mad::Req(req) if req.local_qpn != 0 => Some((source, req.local_ca_guid, req.local_qpn)),
        _ => None,
    }
}

impl ConnectionTable {
    fn remove_ended(&mut self, ended: &[u32]) {
        if ended.is_empty() {
            return;
        }
        for id in ended {
            self.connections.remove(id);
        }
        let connections = &self.connections;
        self.ids_by_request_source
            .retain(|_, id| connections.contains_key(id));
        self.ids_by_peer_qp
            .retain(|_, id| connections.contains_key(id));
    }
}

impl SocketAndTimerHandler for MadConnections {
    fn token(&self) -> u64 {
        self.token
    }

    fn on_readable(self: Arc<Self>) {
        let mut bytes = [0; DELIVERED_MAD_BYTES + 1];
        loop {
            match recv(&self.mad_socket, &mut bytes, RecvFlags::DONTWAIT) {
                Ok((n, _)) => {
                    let delivery = bytes.get(..n).and_then(DeliveredMad::parse);
                    if let Some(delivery) = delivery {
                        self.on_delivery(delivery);
                    }
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => return,
            }
        }
    }

    fn on_alarm(self: Arc<Self>, alarm: TimerPurpose) {
        match alarm {
            TimerPurpose::CheckMadPeers => return self.check_peers(),
            TimerPurpose::RetryQueuedMadRequests => {}
            _ => return,
        }
        let waiting = std::mem::take(&mut lock(&self.table).waiting_requests);
        for delivery in waiting {
            self.on_delivery(delivery);
        }
    }
}

#[cfg(test)]
mod tests;
