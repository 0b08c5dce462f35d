//! One connection: a machine, what it sends, and its timer.

use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use roce::cm::{Message as Mad, Subject, coded_time_ns};
use verbs_abi::Gsi;

use super::format::{self, Ids};
use super::machine::{Action, Actions, Kind, Machine, State, Times};
use crate::errno::{Errno, INVALID, Result};
use crate::lock::lock;
use crate::service::{Alarm, Service, Watched};
use crate::wire::{Message, reason};

/// Who hears of a connection: an endpoint.
pub(crate) trait Consumer: Send + Sync {
    /// The peer has said this.
    fn on_answer(self: Arc<Self>, message: Message);

    /// The peer does not answer.
    fn on_silence(self: Arc<Self>);
}

/// What all connections of a process share.
pub(super) struct Shared {
    pub(super) gsi: &'static Gsi,
    pub(super) service: &'static Service,
    /// Of the times of machines.
    pub(super) origin: Instant,
    pub(super) ended: Ended,
}

/// Connections that have ended, and are to be forgotten by the hub.
#[derive(Debug, Default)]
pub(super) struct Ended(Mutex<Vec<u32>>);

impl Ended {
    pub(super) fn take(&self) -> Vec<u32> {
        std::mem::take(&mut *lock(&self.0))
    }
}

impl Shared {
    /// Sends a MAD. One that cannot be sent counts as lost.
    pub(super) fn send(&self, from: &[u8; 16], to: &[u8; 16], transaction: u64, mad: &Mad) {
        let bytes = mad.emit(transaction);
        let failed = crate::gsi::send(self.gsi, from, to, &bytes);
        if let Err(Errno(errno)) = failed {
            tracing::debug!("a message of connection management is not sent: errno {errno}");
        }
    }
}

/// The two ports of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ports {
    /// GID of the own port.
    pub(crate) local: [u8; 16],
    /// GID of the peer's port.
    pub(crate) remote: [u8; 16],
}

struct Inner {
    machine: Machine,
    ids: Ids,
    /// What was posted, to be repeated.
    posted: Vec<(Kind, Mad)>,
    transaction: u64,
    /// Counts the alarms: an earlier one is void.
    alarm: u64,
    consumer: Option<Weak<dyn Consumer>>,
}

/// One connection.
pub(crate) struct Connection {
    shared: &'static Shared,
    token: u64,
    pub(super) ports: Ports,
    inner: Mutex<Inner>,
}

impl Connection {
    pub(super) fn new(
        shared: &'static Shared,
        ports: Ports,
        ids: Ids,
        transaction: u64,
        times: Times,
    ) -> Arc<Self> {
        Arc::new(Self {
            shared,
            token: shared.service.new_token(),
            ports,
            inner: Mutex::new(Inner {
                machine: Machine::new(times),
                ids,
                posted: Vec::new(),
                transaction,
                alarm: 0,
                consumer: None,
            }),
        })
    }

    /// Who is to hear of it.
    pub(crate) fn serve(&self, consumer: Weak<dyn Consumer>) {
        lock(&self.inner).consumer = Some(consumer);
    }

    /// The consumer hears of it no more. A farewell that was sent is still repeated until it is answered.
    pub(crate) fn release(self: &Arc<Self>) {
        let mut inner = lock(&self.inner);
        inner.consumer = None;
        inner.machine.abandon(self.now());
        self.set_alarm(&mut inner);
    }

    /// Sends a message to the peer, and repeats it until it is answered.
    ///
    /// # Errors
    /// `EINVAL` where the connection's state or the room in the message does not allow it.
    pub(crate) fn send(self: &Arc<Self>, message: &Message) -> Result {
        if *message == Message::Disconnected {
            // The machine has said so.
            return Ok(());
        }
        let mut inner = lock(&self.inner);
        let actions = inner.post(self.now(), message)?;
        self.act(&mut inner, &actions);
        Ok(())
    }

    /// Whether the peer's queue pair is taken by this connection.
    pub(super) fn is_live(&self) -> bool {
        matches!(
            lock(&self.inner).machine.state(),
            State::ReqReceived | State::RepSent | State::EstablishedPassive
        )
    }

    /// The peer's queue pair asks for another connection, so this one is over, whatever became of its end.
    pub(super) fn end_stale(self: &Arc<Self>) {
        if self.send(&Message::Disconnect).is_err() {
            // The program has not answered yet, or the connection has ended.
            return;
        }
        let consumer = lock(&self.inner).consumer.clone();
        if let Some(consumer) = consumer.as_ref().and_then(Weak::upgrade) {
            consumer.on_answer(Message::Disconnect);
        }
    }

    /// The process ends: says so once, if no other thread is at it.
    pub(super) fn leave(&self) {
        let Ok(mut inner) = self.inner.try_lock() else {
            return;
        };
        let message = match inner.machine.state() {
            State::EstablishedActive | State::EstablishedPassive => Message::Disconnect,
            State::ReqSent | State::ReqReceived | State::RepReceived | State::RepSent => {
                Message::Reject {
                    reason: reason::CONSUMER_DEFINED,
                    private_data: Vec::new(),
                }
            }
            _ => return,
        };
        // Without alarms: nobody will be there to repeat it.
        if let Ok(actions) = inner.post(self.now(), &message) {
            self.do_sends(&inner, &actions);
        }
    }

    /// The peer is ready, as its messages to the queue pair say.
    pub(crate) fn notice_established(self: &Arc<Self>) {
        let mut inner = lock(&self.inner);
        inner.machine.notice_established();
        self.set_alarm(&mut inner);
    }

    /// A MAD has come for this connection; whether it is the first of a request.
    pub(super) fn on_mad(self: &Arc<Self>, mad: &Mad) -> bool {
        let Some(kind) = format::kind_of(mad) else {
            return false;
        };
        let (actions, consumer) = {
            let mut inner = lock(&self.inner);
            if !inner.learn(mad) {
                return false;
            }
            let service = match mad {
                Mad::Mra(mra) => Duration::from_nanos(coded_time_ns(mra.service_timeout)),
                _ => Duration::ZERO,
            };
            let actions = inner.machine.receive(self.now(), kind, service);
            self.act(&mut inner, &actions);
            (actions, inner.consumer.clone())
        };
        for action in actions {
            let message = match action {
                Action::Deliver(Kind::Req | Kind::SidrReq) => return true,
                // A refusal of what was over is as good as an answer.
                Action::Deliver(Kind::Drep) => Some(Message::Disconnected),
                Action::Deliver(_) => format::told(mad, self.ports.remote),
                _ => None,
            };
            let consumer = consumer.as_ref().and_then(Weak::upgrade);
            if let (Some(message), Some(consumer)) = (message, consumer) {
                consumer.on_answer(message);
            }
        }
        false
    }

    fn now(&self) -> Duration {
        self.shared.origin.elapsed()
    }

    /// Sends what is to be sent.
    fn act(self: &Arc<Self>, inner: &mut Inner, actions: &Actions) {
        self.do_sends(inner, actions);
        if actions.contains(&Action::Done) {
            lock(&self.shared.ended.0).push(inner.ids.local);
        }
        self.set_alarm(inner);
    }

    fn do_sends(&self, inner: &Inner, actions: &Actions) {
        for action in actions {
            if let Action::Send(kind) = action
                && let Some(mad) = inner.mad(*kind)
            {
                let Ports { local, remote } = &self.ports;
                self.shared.send(local, remote, inner.transaction, &mad);
            }
        }
    }

    fn set_alarm(self: &Arc<Self>, inner: &mut Inner) {
        inner.alarm += 1;
        if let Some(deadline) = inner.machine.deadline() {
            let delay = deadline.saturating_sub(self.now());
            let alarm = Alarm::Mad(inner.alarm);
            self.shared.service.after(delay, self, alarm);
        }
    }
}

impl Inner {
    /// The program says something.
    fn post(&mut self, now: Duration, message: &Message) -> Result<Actions> {
        let rejected = match self.machine.state() {
            State::RepReceived => Subject::Rep,
            State::ReqSent => Subject::Other,
            _ => Subject::Req,
        };
        let mad = format::answer(message, &self.ids, rejected).ok_or(INVALID)?;
        let kind = format::kind_of(&mad).ok_or(INVALID)?;
        let actions = self.machine.post(now, kind).map_err(|_| INVALID)?;
        self.posted.retain(|(k, _)| *k != kind);
        self.posted.push((kind, mad));
        Ok(actions)
    }

    /// Takes in what a message says of its sender; whether it is of this connection.
    fn learn(&mut self, mad: &Mad) -> bool {
        let sender = format::sender(mad);
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
        // Who refuses may have no id, and who asks for patience is not known before its REP.
        sender == 0 || self.ids.remote == 0 || sender == self.ids.remote
    }

    /// The message of a kind, as it was posted, or as it always is.
    fn mad(&self, kind: Kind) -> Option<Mad> {
        match kind {
            Kind::MraOfReq => Some(format::mra(&self.ids, Subject::Req)),
            Kind::MraOfRep => Some(format::mra(&self.ids, Subject::Rep)),
            Kind::Drep => format::answer(&Message::Disconnected, &self.ids, Subject::Other),
            _ => {
                let mut posted = self.posted.iter();
                posted.find(|(k, _)| *k == kind).map(|(_, mad)| *mad)
            }
        }
    }
}

impl Watched for Connection {
    fn token(&self) -> u64 {
        self.token
    }

    fn on_readable(self: Arc<Self>) {}

    fn on_alarm(self: Arc<Self>, alarm: Alarm) {
        let (actions, consumer) = {
            let mut inner = lock(&self.inner);
            if alarm != Alarm::Mad(inner.alarm) {
                return;
            }
            let actions = inner.machine.expire(self.now());
            self.act(&mut inner, &actions);
            (actions, inner.consumer.as_ref().and_then(Weak::upgrade))
        };
        if !actions.iter().any(|a| matches!(a, Action::TimedOut(_))) {
            return;
        }
        match consumer {
            Some(consumer) => consumer.on_silence(),
            None => {
                // What has timed out without a consumer is over as soon as the peer is told.
                let _ = self.send(&Message::Reject {
                    reason: reason::TIMEOUT,
                    private_data: Vec::new(),
                });
            }
        }
    }
}
