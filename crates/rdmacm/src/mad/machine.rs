//! The state machine of a connection by MADs: IBTA vol. 1, 12.9.
//!
//! The machine is a pure function of messages, the program's calls and the time; it has no clock, socket or message
//! contents. The caller stores the messages that it has posted, sends those that [`Action::Send`] names, and delivers
//! those of [`Action::Deliver`] to the program.
//!
//! MADs may be lost, duplicated and reordered. So a request is repeated until it is answered, a reply is repeated for
//! each repeated request, and each message is delivered once.

use std::time::Duration;

/// A message of connection management, without its contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Req,
    Rep,
    Rtu,
    Rej,
    Dreq,
    Drep,
    /// Message receipt acknowledgement: the answer will take longer. One for a REQ, one for a REP.
    MraOfReq,
    MraOfRep,
    SidrReq,
    SidrRep,
}

/// An action for the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Send the message that was posted; an MRA or DREP is sent without having been posted.
    Send(Kind),
    /// Deliver a message of the peer, which has arrived for the first time.
    Deliver(Kind),
    /// Report that a posted message was not answered in time.
    TimedOut(Kind),
    /// Forget the connection: none of its messages can be in flight.
    Done,
}

/// The actions of one step: two at most.
pub(crate) type Actions = Vec<Action>;

/// The timers of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    /// Longest time until an answer arrives, round trip included.
    pub(crate) response: Duration,
    /// Number of repetitions at that interval.
    pub(crate) retries: u32,
    /// Time in which late messages of an ended connection may arrive.
    pub(crate) time_wait: Duration,
}

/// Number of early repetitions, sent before the peer's response time has passed, each after twice the time of the one
/// before. Most answers take microseconds, and an unnecessary repetition costs only one MAD.
const EARLY_REPETITIONS: u32 = 4;

/// The state of a connection: states of IBTA vol. 1, 12.9.6, merged where they treat all messages alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Idle,
    ReqSent,
    ReqReceived,
    RepReceived,
    RepSent,
    /// Established, at the requester: answers a repeated REP with an RTU.
    EstablishedActive,
    EstablishedPassive,
    DreqSent,
    /// Rejected by this end: answers a repeated message with a REJ.
    Refused,
    TimeWait,
    SidrReqSent,
    SidrReqReceived,
    /// The SIDR_REQ is answered: answers a repeated one with the same SIDR_REP.
    SidrAnswered,
    Done,
}

/// A sent message that waits for its answer.
#[derive(Clone, Copy, Debug)]
struct Unanswered {
    kind: Kind,
    repetitions: u32,
    next: Duration,
    give_up: Duration,
}

/// One end of a connection.
#[derive(Debug)]
pub(crate) struct Machine {
    times: Times,
    state: State,
    unanswered: Option<Unanswered>,
    /// End of [`State::TimeWait`], [`State::Refused`] and [`State::SidrAnswered`].
    end: Duration,
}

/// Error: the state does not allow the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WrongState;

impl Machine {
    pub(crate) fn new(times: Times) -> Self {
        Self {
            times,
            state: State::Idle,
            unanswered: None,
            end: Duration::ZERO,
        }
    }

    pub(crate) fn state(&self) -> State {
        self.state
    }

    /// Returns the time at which to call [`expire`](Self::expire).
    pub(crate) fn deadline(&self) -> Option<Duration> {
        match self.state {
            State::Refused | State::TimeWait | State::SidrAnswered => Some(self.end),
            _ => self.unanswered.map(|u| u.next.min(u.give_up)),
        }
    }

    /// Posts a message of the program.
    pub(crate) fn post(&mut self, now: Duration, kind: Kind) -> Result<Actions, WrongState> {
        use State as S;
        match (kind, self.state) {
            (Kind::Req, S::Idle) => self.ask(now, kind, S::ReqSent),
            (Kind::SidrReq, S::Idle) => self.ask(now, kind, S::SidrReqSent),
            (Kind::Rep, S::ReqReceived) => self.ask(now, kind, S::RepSent),
            (Kind::Dreq, S::EstablishedActive | S::EstablishedPassive | S::RepSent) => {
                self.ask(now, kind, S::DreqSent)
            }
            // After a REP the requester rejects instead of disconnecting, so a DREQ is not allowed here.
            (Kind::Rtu, S::RepReceived) => self.state = S::EstablishedActive,
            (Kind::Rej, S::ReqSent | S::ReqReceived | S::RepSent | S::RepReceived) => {
                self.linger(now, S::Refused);
            }
            (Kind::SidrRep, S::SidrReqReceived) => self.linger(now, S::SidrAnswered),
            _ => return Err(WrongState),
        }
        Ok(vec![Action::Send(kind)])
    }

    /// Ends the connection for a program that is not interested in it any more.
    pub(crate) fn abandon(&mut self, now: Duration) {
        match self.state {
            // A DREQ is repeated until it is answered, even without a program.
            State::DreqSent | State::Refused | State::TimeWait | State::SidrAnswered => {}
            _ => self.linger(now, State::TimeWait),
        }
    }

    /// Records that the peer is ready, because a message has arrived at the queue pair (`rdma_notify(3)`).
    pub(crate) fn notice_established(&mut self) {
        if self.state == State::RepSent {
            self.settle(State::EstablishedPassive);
        }
    }

    /// Processes a message of the peer. For MRAs, `service` is the requested time.
    pub(crate) fn receive(&mut self, now: Duration, kind: Kind, service: Duration) -> Actions {
        match kind {
            Kind::Req => self.on_req(),
            Kind::Rep => self.on_rep(),
            Kind::Rtu if self.state == State::RepSent => {
                self.settle(State::EstablishedPassive);
                vec![Action::Deliver(kind)]
            }
            Kind::Rej => self.on_rej(now),
            Kind::Dreq => self.on_dreq(now),
            Kind::Drep if self.state == State::DreqSent => {
                self.linger(now, State::TimeWait);
                vec![Action::Deliver(kind)]
            }
            Kind::MraOfReq if self.state == State::ReqSent => self.wait_longer(now, service),
            Kind::MraOfRep if self.state == State::RepSent => self.wait_longer(now, service),
            Kind::SidrReq => self.on_sidr_req(),
            Kind::SidrRep if self.state == State::SidrReqSent => {
                self.linger(now, State::TimeWait);
                vec![Action::Deliver(kind)]
            }
            _ => Vec::new(),
        }
    }

    /// Applies the timers if the time of [`deadline`](Self::deadline) has come.
    pub(crate) fn expire(&mut self, now: Duration) -> Actions {
        if self.deadline().is_none_or(|at| now < at) {
            return Vec::new();
        }
        let Some(mut waiting) = self.unanswered.take() else {
            self.state = State::Done;
            return vec![Action::Done];
        };
        if now < waiting.give_up {
            waiting.repetitions += 1;
            waiting.next = now + self.pause(waiting.repetitions);
            self.unanswered = Some(waiting);
            return vec![Action::Send(waiting.kind)];
        }
        if matches!(waiting.kind, Kind::Dreq | Kind::SidrReq) {
            self.linger(now, State::TimeWait);
        }
        // For a REQ or REP, the caller then sends a REJ to the peer.
        vec![Action::TimedOut(waiting.kind)]
    }

    fn on_req(&mut self) -> Actions {
        match self.state {
            State::Idle => {
                self.state = State::ReqReceived;
                vec![Action::Deliver(Kind::Req)]
            }
            State::ReqReceived => vec![Action::Send(Kind::MraOfReq)],
            // The REP was lost, or has not arrived yet.
            State::RepSent => vec![Action::Send(Kind::Rep)],
            State::Refused => vec![Action::Send(Kind::Rej)],
            _ => Vec::new(),
        }
    }

    fn on_rep(&mut self) -> Actions {
        match self.state {
            State::ReqSent => {
                self.settle(State::RepReceived);
                vec![Action::Deliver(Kind::Rep)]
            }
            State::RepReceived => vec![Action::Send(Kind::MraOfRep)],
            State::EstablishedActive => vec![Action::Send(Kind::Rtu)],
            State::Refused => vec![Action::Send(Kind::Rej)],
            _ => Vec::new(),
        }
    }

    fn on_rej(&mut self, now: Duration) -> Actions {
        match self.state {
            State::ReqSent
            | State::ReqReceived
            | State::RepSent
            | State::RepReceived
            // The peer has not received an RTU in time, or has restarted.
            | State::EstablishedActive
            | State::EstablishedPassive => {
                self.linger(now, State::TimeWait);
                vec![Action::Deliver(Kind::Rej)]
            }
            State::DreqSent => {
                self.linger(now, State::TimeWait);
                vec![Action::Deliver(Kind::Drep)]
            }
            _ => Vec::new(),
        }
    }

    fn on_dreq(&mut self, now: Duration) -> Actions {
        match self.state {
            State::RepSent
            | State::RepReceived
            | State::EstablishedActive
            | State::EstablishedPassive
            | State::DreqSent => {
                self.linger(now, State::TimeWait);
                vec![Action::Send(Kind::Drep), Action::Deliver(Kind::Dreq)]
            }
            State::TimeWait => vec![Action::Send(Kind::Drep)],
            _ => Vec::new(),
        }
    }

    fn on_sidr_req(&mut self) -> Actions {
        match self.state {
            State::Idle => {
                self.state = State::SidrReqReceived;
                vec![Action::Deliver(Kind::SidrReq)]
            }
            State::SidrAnswered => vec![Action::Send(Kind::SidrRep)],
            _ => Vec::new(),
        }
    }

    /// Records a message that needs an answer.
    fn ask(&mut self, now: Duration, kind: Kind, state: State) {
        self.state = state;
        self.unanswered = Some(Unanswered {
            kind,
            repetitions: 0,
            next: now + self.pause(0),
            give_up: now + self.times.response * (self.times.retries + 1),
        });
    }

    /// Returns the pause after a message and `repetitions` repetitions of it.
    fn pause(&self, repetitions: u32) -> Duration {
        let halvings = EARLY_REPETITIONS.saturating_sub(repetitions);
        self.times.response / (1 << halvings)
    }

    /// Records that the answer has arrived.
    fn settle(&mut self, state: State) {
        self.unanswered = None;
        self.state = state;
    }

    /// Ends the connection, except for the answers to late messages.
    fn linger(&mut self, now: Duration, state: State) {
        self.settle(state);
        self.end = now + self.times.time_wait;
    }

    /// Reacts to an MRA: the peer has received the request, but its program has not decided. The request is still
    /// repeated, at longer intervals: the peer's answer may get lost, and an RTU is repeated only on request.
    fn wait_longer(&mut self, now: Duration, service: Duration) -> Actions {
        let times = self.times;
        if let Some(waiting) = &mut self.unanswered {
            waiting.next = now + times.response;
            waiting.give_up = now + service + times.response * (times.retries + 1);
            waiting.repetitions = EARLY_REPETITIONS;
        }
        Vec::new()
    }
}

#[cfg(test)]
mod tests;
