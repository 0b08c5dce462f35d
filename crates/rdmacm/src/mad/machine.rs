//! The states of one connection that is made by MADs: IBTA vol. 1, 12.9.
//!
//! A pure function of messages, the program's calls and the time: no clock, no socket, no contents. The caller holds the
//! messages that it has posted, sends what [`Action::Send`] names, and tells the program of [`Action::Deliver`].
//!
//! MADs are lost, doubled and overtake each other. So a request is repeated until it is answered, an answer is repeated
//! for each repeated request, and everything is delivered once.

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
    /// "Message receipt acknowledged": the answer takes longer. Of a REQ, or of a REP.
    MraOfReq,
    MraOfRep,
    SidrReq,
    SidrRep,
}

/// What the caller is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Send the message that was posted, or an MRA, a DREP.
    Send(Kind),
    /// The peer has sent this, and for the first time.
    Deliver(Kind),
    /// What was posted has found no answer.
    TimedOut(Kind),
    /// Nothing of this connection can be on its way any more.
    Done,
}

/// The actions of one step: at most two.
pub(crate) type Actions = Vec<Action>;

/// The times of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    /// How long an answer takes at most, with its way and back.
    pub(crate) response: Duration,
    /// How often a request is repeated after that time.
    pub(crate) retries: u32,
    /// How long late messages of an ended connection may come.
    pub(crate) time_wait: Duration,
}

/// The first repetitions come sooner than the peer has to answer, each after twice the time of the one before: most answers
/// take microseconds, and what is repeated in vain costs one MAD.
const EARLY_REPETITIONS: u32 = 4;

/// Where the connection is: the states of IBTA vol. 1, 12.9.6, as far as messages are told apart by them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Idle,
    ReqSent,
    ReqReceived,
    RepReceived,
    RepSent,
    /// The requester's end: it says RTU again to who repeats the REP.
    EstablishedActive,
    EstablishedPassive,
    DreqSent,
    /// Refused by this end: it says so again to who asks again.
    Refused,
    TimeWait,
    SidrReqSent,
    SidrReqReceived,
    /// The look-up is answered, and will be again.
    SidrAnswered,
    Done,
}

/// A message that waits for its answer.
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
    /// When [`State::TimeWait`] and the like end.
    end: Duration,
}

/// The program may not do that now.
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

    /// When [`expire`](Self::expire) is to be called.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        match self.state {
            State::Refused | State::TimeWait | State::SidrAnswered => Some(self.end),
            _ => self.unanswered.map(|u| u.next.min(u.give_up)),
        }
    }

    /// The program sends a message.
    pub(crate) fn post(&mut self, now: Duration, kind: Kind) -> Result<Actions, WrongState> {
        use State as S;
        match (kind, self.state) {
            (Kind::Req, S::Idle) => self.ask(now, kind, S::ReqSent),
            (Kind::SidrReq, S::Idle) => self.ask(now, kind, S::SidrReqSent),
            (Kind::Rep, S::ReqReceived) => self.ask(now, kind, S::RepSent),
            (Kind::Dreq, S::EstablishedActive | S::EstablishedPassive | S::RepSent) => {
                self.ask(now, kind, S::DreqSent)
            }
            // Who was answered and does not take the answer says that; there is nothing to disconnect.
            (Kind::Rtu, S::RepReceived) => self.state = S::EstablishedActive,
            (Kind::Rej, S::ReqSent | S::ReqReceived | S::RepSent | S::RepReceived) => {
                self.linger(now, S::Refused);
            }
            (Kind::SidrRep, S::SidrReqReceived) => self.linger(now, S::SidrAnswered),
            _ => return Err(WrongState),
        }
        Ok(vec![Action::Send(kind)])
    }

    /// The program gives up, and will not be told anything any more.
    pub(crate) fn abandon(&mut self, now: Duration) {
        match self.state {
            // Repeated until it is answered, whoever is told.
            State::DreqSent | State::Refused | State::TimeWait | State::SidrAnswered => {}
            _ => self.linger(now, State::TimeWait),
        }
    }

    /// The program knows that the peer is ready, by a message that came to its queue pair (`rdma_notify(3)`).
    pub(crate) fn notice_established(&mut self) {
        if self.state == State::RepSent {
            self.settle(State::EstablishedPassive);
        }
    }

    /// The peer has sent a message. For MRAs, `service` is the time that it asks for.
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

    /// The time that [`deadline`](Self::deadline) named has come.
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
        // The peer of a REQ or REP is to be told: the caller refuses.
        vec![Action::TimedOut(waiting.kind)]
    }

    fn on_req(&mut self) -> Actions {
        match self.state {
            State::Idle => {
                self.state = State::ReqReceived;
                vec![Action::Deliver(Kind::Req)]
            }
            State::ReqReceived => vec![Action::Send(Kind::MraOfReq)],
            // A REP was lost, or is about to arrive.
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
            // The peer has waited for an RTU in vain, or has restarted.
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

    /// Sends what is to be answered.
    fn ask(&mut self, now: Duration, kind: Kind, state: State) {
        self.state = state;
        self.unanswered = Some(Unanswered {
            kind,
            repetitions: 0,
            next: now + self.pause(0),
            give_up: now + self.times.response * (self.times.retries + 1),
        });
    }

    /// The pause behind a message and so many repetitions of it.
    fn pause(&self, repetitions: u32) -> Duration {
        let halvings = EARLY_REPETITIONS.saturating_sub(repetitions);
        self.times.response / (1 << halvings)
    }

    /// The answer has come.
    fn settle(&mut self, state: State) {
        self.unanswered = None;
        self.state = state;
    }

    /// The connection is over, but for late messages.
    fn linger(&mut self, now: Duration, state: State) {
        self.settle(state);
        self.end = now + self.times.time_wait;
    }

    /// The peer has the request, and its program has not decided. It is asked on, but slowly: its answer may get lost, and
    /// an RTU is only repeated for who asks.
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
