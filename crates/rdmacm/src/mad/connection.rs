//! A connection by MADs: its state machine, its posted messages, and its timer.

use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use roce::cm::{CmMessage as Mad, ReferredMessage, coded_time_ns};
use roce::mad_delivery::SLOT_SHIFT_IN_COMM_ID;
use verbs_abi::Gsi;

use super::format::{self, CommunicationIds};
use super::machine::{
    Actions, CallerAction, CmMessageKind, CmState, CmStateMachine, ConnectionTimeouts,
};
use crate::cm_thread::{CmThread, SocketAndTimerHandler, TimerPurpose};
use crate::errno::{Errno, INVALID, Result};
use crate::lock::lock;
use crate::wire::{CmMessage, reason};

/// The receiver of a connection's messages: an endpoint.
pub(crate) trait MessageConsumer: Send + Sync {
    /// Processes a message of the peer.
    fn on_peer_message(self: Arc<Self>, message: CmMessage);

    /// Reacts to a peer that has not answered in time.
    fn on_timeout(self: Arc<Self>);
}

/// The state that all connections of a process share.
pub(super) struct SharedConnectionState {
    pub(super) gsi: &'static Gsi,
    pub(super) cm_thread: &'static CmThread,
    /// Origin of the state machines' times.
    pub(super) time_origin: Instant,
    pub(super) ended_ids: EndedConnectionIds,
}

/// Ids of connections that have ended, which the hub must remove.
#[derive(Debug, Default)]
pub(super) struct EndedConnectionIds(Mutex<Vec<u32>>);

impl EndedConnectionIds {
    pub(super) fn take_all(&self) -> Vec<u32> {
        std::mem::take(&mut *lock(&self.0))
    }
}

impl SharedConnectionState {
    /// Sends a MAD. If that fails, the MAD counts as lost.
    pub(super) fn send_mad(&self, from: &[u8; 16], to: &[u8; 16], transaction: u64, mad: &Mad) {
        let bytes = mad.emit(transaction);
        let failed = crate::gsi::send_mad(self.gsi, from, to, &bytes);
        if let Err(Errno(errno)) = failed {
            tracing::debug!("a message of connection management is not sent: errno {errno}");
        }
    }
}

/// The ports of the two ends of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ConnectionPortGids {
    /// GID of the local port.
    pub(crate) local: [u8; 16],
    /// GID of the peer's port.
    pub(crate) remote: [u8; 16],
}

struct ConnectionInner {
    machine: CmStateMachine,
    ids: CommunicationIds,
    /// Posted messages, kept for repetition.
    resendable_messages: Vec<(CmMessageKind, Mad)>,
    transaction: u64,
    /// Number of the current alarm; earlier alarms are void.
    alarm_generation: u64,
    consumer: Option<Weak<dyn MessageConsumer>>,
}

/// A connection by MADs.
pub(crate) struct Connection {
    shared: &'static SharedConnectionState,
    token: u64,
    pub(super) port_gids: ConnectionPortGids,
    inner: Mutex<ConnectionInner>,
}

impl Connection {
    pub(super) fn new(
        shared: &'static SharedConnectionState,
        ports: ConnectionPortGids,
        ids: CommunicationIds,
        transaction: u64,
        times: ConnectionTimeouts,
    ) -> Arc<Self> {
        Arc::new(Self {
            shared,
            token: shared.cm_thread.new_token(),
            port_gids: ports,
            inner: Mutex::new(ConnectionInner {
                machine: CmStateMachine::new(times),
                ids,
                resendable_messages: Vec::new(),
                transaction,
                alarm_generation: 0,
                consumer: None,
            }),
        })
    }

    /// Sets the consumer of the connection.
    pub(crate) fn set_consumer(&self, consumer: Weak<dyn MessageConsumer>) {
        lock(&self.inner).consumer = Some(consumer);
    }

    /// Removes the consumer. A DREQ that was sent is still repeated until it is answered.
    pub(crate) fn remove_consumer(self: &Arc<Self>) {
        let mut inner = lock(&self.inner);
        inner.consumer = None;
        inner.machine.close(self.time_since_origin());
        self.set_alarm(&mut inner);
    }

    /// Sends a message to the peer; a request is repeated until it is answered.
    ///
    /// # Errors
    /// `EINVAL` if the state of the connection does not allow the message, or if its private data does not fit.
    pub(crate) fn send(self: &Arc<Self>, message: &CmMessage) -> Result {
        if *message == CmMessage::DisconnectReply {
            // The state machine has already sent a DREP.
            return Ok(());
        }
        let mut inner = lock(&self.inner);
        let actions = inner.post(self.time_since_origin(), message)?;
        self.perform_actions(&mut inner, &actions);
        Ok(())
    }

    /// Returns true if the connection still occupies the peer's queue pair.
    pub(super) fn occupies_peer_qp(&self) -> bool {
        matches!(
            lock(&self.inner).machine.state(),
            CmState::ReqReceived | CmState::RepSent | CmState::EstablishedPassive
        )
    }

    /// Returns the slot of the process that has the peer's end, from the peer's communication id; `None` if the connection
    /// is not established. Only a software NIC has a slot there: for another peer the number means nothing.
    pub(super) fn established_peer_slot(&self) -> Option<u32> {
        let inner = lock(&self.inner);
        inner
            .established_message()
            .map(|_| inner.ids.remote >> SLOT_SHIFT_IN_COMM_ID)
    }

    /// Repeats the message that established the connection. A peer that knows the connection ignores it, or repeats its
    /// answer. A host whose process has ended answers by a REJ.
    pub(super) fn probe_peer(&self) {
        let inner = lock(&self.inner);
        if let Some(kind) = inner.established_message() {
            self.send_mads_of_actions(&inner, &vec![CallerAction::Send(kind)]);
        }
    }

    /// Ends the connection because the peer has lost it: its process has ended, or its queue pair requests another one.
    pub(super) fn end_stale(self: &Arc<Self>) {
        if self.send(&CmMessage::Disconnect).is_err() {
            // The program has not answered yet, or the connection has ended.
            return;
        }
        let consumer = lock(&self.inner).consumer.clone();
        if let Some(consumer) = consumer.as_ref().and_then(Weak::upgrade) {
            consumer.on_peer_message(CmMessage::Disconnect);
        }
    }

    /// Tells the peer that the process ends: once, and only if no other thread holds the lock.
    pub(super) fn notify_exit(&self) {
        let Ok(mut inner) = self.inner.try_lock() else {
            return;
        };
        let message = match inner.machine.state() {
            CmState::EstablishedActive | CmState::EstablishedPassive => CmMessage::Disconnect,
            CmState::ReqSent => CmMessage::Reject {
                reason: reason::TIMEOUT,
                private_data: Vec::new(),
            },
            CmState::ReqReceived | CmState::RepReceived | CmState::RepSent => CmMessage::Reject {
                reason: reason::CONSUMER_DEFINED,
                private_data: Vec::new(),
            },
            _ => return,
        };
        // No alarm is set: the process cannot repeat the message.
        if let Ok(actions) = inner.post(self.time_since_origin(), &message) {
            self.send_mads_of_actions(&inner, &actions);
        }
    }

    /// Records that the peer is ready, because a message has arrived at the queue pair.
    pub(crate) fn record_peer_ready(self: &Arc<Self>) {
        let mut inner = lock(&self.inner);
        inner.machine.record_peer_ready();
        self.set_alarm(&mut inner);
    }

    /// Processes a MAD for this connection; returns true for the first MAD of a request.
    pub(super) fn on_mad_is_new_request(self: &Arc<Self>, mad: &Mad) -> bool {
        let Some(kind) = format::message_kind_of_mad(mad) else {
            return false;
        };
        let (actions, consumer) = {
            let mut inner = lock(&self.inner);
            if !inner.store_peer_ids_if_matching(mad) {
                return false;
            }
            let service = match mad {
                Mad::Mra(mra) => Duration::from_nanos(coded_time_ns(mra.service_timeout)),
                _ => Duration::ZERO,
            };
            let actions = inner
                .machine
                .receive(self.time_since_origin(), kind, service);
            self.perform_actions(&mut inner, &actions);
            (actions, inner.consumer.clone())
        };
        for action in actions {
            let message = match action {
                CallerAction::Deliver(CmMessageKind::Req | CmMessageKind::SidrReq) => return true,
                // A REJ for a connection that is over counts as the answer to a DREQ.
                CallerAction::Deliver(CmMessageKind::Drep) => Some(CmMessage::DisconnectReply),
                CallerAction::Deliver(_) => format::parse_message(mad, self.port_gids.remote),
                _ => None,
            };
            let consumer = consumer.as_ref().and_then(Weak::upgrade);
            if let (Some(message), Some(consumer)) = (message, consumer) {
                consumer.on_peer_message(message);
            }
        }
        false
    }

    fn time_since_origin(&self) -> Duration {
        self.shared.time_origin.elapsed()
    }

    /// Sends the messages that `actions` name, and updates the alarm.
    fn perform_actions(self: &Arc<Self>, inner: &mut ConnectionInner, actions: &Actions) {
        self.send_mads_of_actions(inner, actions);
        if actions.contains(&CallerAction::ForgetConnection) {
            lock(&self.shared.ended_ids.0).push(inner.ids.local);
        }
        self.set_alarm(inner);
    }

    fn send_mads_of_actions(&self, inner: &ConnectionInner, actions: &Actions) {
        for action in actions {
            if let CallerAction::Send(kind) = action
                && let Some(mad) = inner.posted_or_new_mad(*kind)
            {
                let ConnectionPortGids { local, remote } = &self.port_gids;
                self.shared.send_mad(local, remote, inner.transaction, &mad);
            }
        }
    }

    fn set_alarm(self: &Arc<Self>, inner: &mut ConnectionInner) {
        inner.alarm_generation += 1;
        if let Some(deadline) = inner.machine.next_expiry() {
            let delay = deadline.saturating_sub(self.time_since_origin());
            let alarm = TimerPurpose::MadConnectionAlarm(inner.alarm_generation);
            self.shared.cm_thread.set_alarm(delay, self, alarm);
        }
    }
}

impl ConnectionInner {
    /// Returns the message by which this end has established the connection; `None` if it is not established.
    fn established_message(&self) -> Option<CmMessageKind> {
        match self.machine.state() {
            CmState::EstablishedActive => Some(CmMessageKind::Rtu),
            CmState::EstablishedPassive => Some(CmMessageKind::Rep),
            _ => None,
        }
    }

    /// Posts a message of the program.
    fn post(&mut self, now: Duration, message: &CmMessage) -> Result<Actions> {
        let rejected = match self.machine.state() {
            CmState::RepReceived => ReferredMessage::Rep,
            CmState::ReqSent => ReferredMessage::LapOrUnspecified,
            _ => ReferredMessage::Req,
        };
        let mad = format::encode_non_request(message, &self.ids, rejected).ok_or(INVALID)?;
        let kind = format::message_kind_of_mad(&mad).ok_or(INVALID)?;
        let actions = self.machine.post(now, kind).map_err(|_| INVALID)?;
        self.resendable_messages.retain(|(k, _)| *k != kind);
        self.resendable_messages.push((kind, mad));
        Ok(actions)
    }

    /// Stores the sender's ids from a MAD; returns false if the MAD belongs to another connection.
    fn store_peer_ids_if_matching(&mut self, mad: &Mad) -> bool {
        let sender = format::sender_comm_id(mad);
        match mad {
            Mad::Rep(rep) if self.ids.remote == 0 => {
                self.ids.remote = rep.local_comm_id;
                self.ids.remote_qpn = rep.local_qpn;
            }
            Mad::Req(req) if self.ids.remote == 0 => {
                self.ids.remote = req.local_comm_id;
                self.ids.remote_qpn = req.local_qpn;
            }
            Mad::SidrReq(req) if self.ids.remote == 0 => self.ids.remote = req.request_id,
            _ => {}
        }
        // A REJ may have no sender id, and the sender of an MRA is unknown before its REP.
        sender == 0 || self.ids.remote == 0 || sender == self.ids.remote
    }

    /// Returns the MAD of a kind: as it was posted or, for MRA and DREP, a new one.
    fn posted_or_new_mad(&self, kind: CmMessageKind) -> Option<Mad> {
        match kind {
            CmMessageKind::MraOfReq => Some(format::make_mra(&self.ids, ReferredMessage::Req)),
            CmMessageKind::MraOfRep => Some(format::make_mra(&self.ids, ReferredMessage::Rep)),
            CmMessageKind::Drep => format::encode_non_request(
                &CmMessage::DisconnectReply,
                &self.ids,
                ReferredMessage::LapOrUnspecified,
            ),
            _ => {
                let mut posted = self.resendable_messages.iter();
                posted.find(|(k, _)| *k == kind).map(|(_, mad)| *mad)
            }
        }
    }
}

impl SocketAndTimerHandler for Connection {
    fn token(&self) -> u64 {
        self.token
    }

    fn on_readable(self: Arc<Self>) {}

    fn on_alarm(self: Arc<Self>, alarm: TimerPurpose) {
        let (actions, consumer) = {
            let mut inner = lock(&self.inner);
            if alarm != TimerPurpose::MadConnectionAlarm(inner.alarm_generation) {
                return;
            }
            let actions = inner.machine.act_on_expiry_if_due(self.time_since_origin());
            self.perform_actions(&mut inner, &actions);
            (actions, inner.consumer.as_ref().and_then(Weak::upgrade))
        };
        if !actions
            .iter()
            .any(|a| matches!(a, CallerAction::TimedOut(_)))
        {
            return;
        }
        match consumer {
            Some(consumer) => consumer.on_timeout(),
            None => {
                // Without a consumer, a timed-out connection ends with the REJ to its peer.
                let _ = self.send(&CmMessage::Reject {
                    reason: reason::TIMEOUT,
                    private_data: Vec::new(),
                });
            }
        }
    }
}
