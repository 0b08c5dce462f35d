//! The state machine of a connection by MADs: IBTA vol. 1, 12.9.
//!
//! The machine is a pure function of messages, the program's calls and the time; it has no clock, socket or message
//! contents. The caller stores the messages that it has posted, sends those that [`CallerAction::Send`] names, and
//! delivers those of [`CallerAction::Deliver`] to the program.
//!
//! MADs may be lost, duplicated and reordered. So a request is repeated until it is answered, a reply is repeated for
//! each repeated request, and each message is delivered once.

use std::time::Duration;

/// A message of connection management, without its contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CmMessageKind {
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
pub(crate) enum CallerAction {
    /// Send the message that was posted; an MRA or DREP is sent without having been posted.
    Send(CmMessageKind),
    /// Deliver a message of the peer, which has arrived for the first time.
    Deliver(CmMessageKind),
    /// Report that a posted message was not answered in time.
    TimedOut(CmMessageKind),
    /// Forget the connection: none of its messages can be in flight.
    ForgetConnection,
}

/// The actions of one step: two at most.
pub(crate) type Actions = Vec<CallerAction>;

/// The timers of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionTimeouts {
    /// Longest time until an answer arrives, round trip included.
    pub(crate) max_response_time: Duration,
    /// Number of repetitions at that interval.
    pub(crate) full_interval_resends: u32,
    /// Time in which late messages of an ended connection may arrive.
    pub(crate) time_wait: Duration,
}

/// Number of early repetitions, sent before the peer's response time has passed, each after twice the time of the one
/// before. Most answers take microseconds, and an unnecessary repetition costs only one MAD.
const EARLY_RESENDS: u32 = 4;

/// The state of a connection: states of IBTA vol. 1, 12.9.6, merged where they treat all messages alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CmState {
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
    RejSent,
    TimeWait,
    SidrReqSent,
    SidrReqReceived,
    /// The SIDR_REQ is answered: answers a repeated one with the same SIDR_REP.
    SidrAnswered,
    Done,
}

/// A sent message that waits for its answer.
#[derive(Clone, Copy, Debug)]
struct UnansweredMessage {
    kind: CmMessageKind,
    resend_count: u32,
    next_resend_at: Duration,
    give_up_at: Duration,
}

/// One end of a connection.
#[derive(Debug)]
pub(crate) struct CmStateMachine {
    timeouts: ConnectionTimeouts,
    state: CmState,
    unanswered_message: Option<UnansweredMessage>,
    /// End of [`CmState::TimeWait`], [`CmState::RejSent`] and [`CmState::SidrAnswered`].
    state_ends_at: Duration,
}

/// Error: the state does not allow the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WrongState;

impl CmStateMachine {
    pub(crate) fn new(times: ConnectionTimeouts) -> Self {
        Self {
            timeouts: times,
            state: CmState::Idle,
            unanswered_message: None,
            state_ends_at: Duration::ZERO,
        }
    }

    pub(crate) fn state(&self) -> CmState {
        self.state
    }

    /// Returns the time at which to call [`act_on_expiry_if_due`](Self::act_on_expiry_if_due).
    pub(crate) fn next_expiry(&self) -> Option<Duration> {
        match self.state {
            CmState::RejSent | CmState::TimeWait | CmState::SidrAnswered => {
                Some(self.state_ends_at)
            }
            _ => self
                .unanswered_message
                .map(|u| u.next_resend_at.min(u.give_up_at)),
        }
    }

    /// Posts a message of the program.
    pub(crate) fn post(
        &mut self,
        now: Duration,
        kind: CmMessageKind,
    ) -> Result<Actions, WrongState> {
        use CmState as S;
        match (kind, self.state) {
            (CmMessageKind::Req, S::Idle) => {
                self.enter_state_and_start_response_timer(now, kind, S::ReqSent)
            }
            (CmMessageKind::SidrReq, S::Idle) => {
                self.enter_state_and_start_response_timer(now, kind, S::SidrReqSent)
            }
            (CmMessageKind::Rep, S::ReqReceived) => {
                self.enter_state_and_start_response_timer(now, kind, S::RepSent)
            }
            (CmMessageKind::Dreq, S::EstablishedActive | S::EstablishedPassive | S::RepSent) => {
                self.enter_state_and_start_response_timer(now, kind, S::DreqSent)
            }
            // After a REP the requester rejects instead of disconnecting, so a DREQ is not allowed here.
            (CmMessageKind::Rtu, S::RepReceived) => self.state = S::EstablishedActive,
            (CmMessageKind::Rej, S::ReqSent | S::ReqReceived | S::RepSent | S::RepReceived) => {
                self.enter_ending_state(now, S::RejSent);
            }
            (CmMessageKind::SidrRep, S::SidrReqReceived) => {
                self.enter_ending_state(now, S::SidrAnswered)
            }
            _ => return Err(WrongState),
        }
        Ok(vec![CallerAction::Send(kind)])
    }

    /// Ends the connection for a program that is not interested in it any more.
    pub(crate) fn close(&mut self, now: Duration) {
        match self.state {
            // A DREQ is repeated until it is answered, even without a program.
            CmState::DreqSent | CmState::RejSent | CmState::TimeWait | CmState::SidrAnswered => {}
            _ => self.enter_ending_state(now, CmState::TimeWait),
        }
    }

    /// Records that the peer is ready, because a message has arrived at the queue pair (`rdma_notify(3)`).
    pub(crate) fn record_peer_ready(&mut self) {
        if self.state == CmState::RepSent {
            self.enter_state_and_stop_response_timer(CmState::EstablishedPassive);
        }
    }

    /// Processes a message of the peer. For MRAs, `service` is the requested time.
    pub(crate) fn receive(
        &mut self,
        now: Duration,
        kind: CmMessageKind,
        service: Duration,
    ) -> Actions {
        match kind {
            CmMessageKind::Req => self.on_req(),
            CmMessageKind::Rep => self.on_rep(),
            CmMessageKind::Rtu if self.state == CmState::RepSent => {
                self.enter_state_and_stop_response_timer(CmState::EstablishedPassive);
                vec![CallerAction::Deliver(kind)]
            }
            CmMessageKind::Rej => self.on_rej(now),
            CmMessageKind::Dreq => self.on_dreq(now),
            CmMessageKind::Drep if self.state == CmState::DreqSent => {
                self.enter_ending_state(now, CmState::TimeWait);
                vec![CallerAction::Deliver(kind)]
            }
            CmMessageKind::MraOfReq if self.state == CmState::ReqSent => self.on_mra(now, service),
            CmMessageKind::MraOfRep if self.state == CmState::RepSent => self.on_mra(now, service),
            CmMessageKind::SidrReq => self.on_sidr_req(),
            CmMessageKind::SidrRep if self.state == CmState::SidrReqSent => {
                self.enter_ending_state(now, CmState::TimeWait);
                vec![CallerAction::Deliver(kind)]
            }
            _ => Vec::new(),
        }
    }

    /// Applies the timers if the time of [`next_expiry`](Self::next_expiry) has come.
    pub(crate) fn act_on_expiry_if_due(&mut self, now: Duration) -> Actions {
        if self.next_expiry().is_none_or(|at| now < at) {
            return Vec::new();
        }
        let Some(mut waiting) = self.unanswered_message.take() else {
            self.state = CmState::Done;
            return vec![CallerAction::ForgetConnection];
        };
        if now < waiting.give_up_at {
            waiting.resend_count += 1;
            waiting.next_resend_at = now + self.resend_delay(waiting.resend_count);
            self.unanswered_message = Some(waiting);
            return vec![CallerAction::Send(waiting.kind)];
        }
        if matches!(waiting.kind, CmMessageKind::Dreq | CmMessageKind::SidrReq) {
            self.enter_ending_state(now, CmState::TimeWait);
        }
        // For a REQ or REP, the caller then sends a REJ to the peer.
        vec![CallerAction::TimedOut(waiting.kind)]
    }

    fn on_req(&mut self) -> Actions {
        match self.state {
            CmState::Idle => {
                self.state = CmState::ReqReceived;
                vec![CallerAction::Deliver(CmMessageKind::Req)]
            }
            CmState::ReqReceived => vec![CallerAction::Send(CmMessageKind::MraOfReq)],
            // The REP was lost, or has not arrived yet.
            CmState::RepSent => vec![CallerAction::Send(CmMessageKind::Rep)],
            CmState::RejSent => vec![CallerAction::Send(CmMessageKind::Rej)],
            _ => Vec::new(),
        }
    }

    fn on_rep(&mut self) -> Actions {
        match self.state {
            CmState::ReqSent => {
                self.enter_state_and_stop_response_timer(CmState::RepReceived);
                vec![CallerAction::Deliver(CmMessageKind::Rep)]
            }
            CmState::RepReceived => vec![CallerAction::Send(CmMessageKind::MraOfRep)],
            CmState::EstablishedActive => vec![CallerAction::Send(CmMessageKind::Rtu)],
            CmState::RejSent => vec![CallerAction::Send(CmMessageKind::Rej)],
            _ => Vec::new(),
        }
    }

    fn on_rej(&mut self, now: Duration) -> Actions {
        match self.state {
            CmState::ReqSent
            | CmState::ReqReceived
            | CmState::RepSent
            | CmState::RepReceived
            // The peer has not received an RTU in time, or has restarted.
            | CmState::EstablishedActive
            | CmState::EstablishedPassive => {
                self.enter_ending_state(now, CmState::TimeWait);
                vec![CallerAction::Deliver(CmMessageKind::Rej)]
            }
            CmState::DreqSent => {
                self.enter_ending_state(now, CmState::TimeWait);
                vec![CallerAction::Deliver(CmMessageKind::Drep)]
            }
            _ => Vec::new(),
        }
    }

    fn on_dreq(&mut self, now: Duration) -> Actions {
        match self.state {
            CmState::RepSent
            | CmState::RepReceived
            | CmState::EstablishedActive
            | CmState::EstablishedPassive
            | CmState::DreqSent => {
                self.enter_ending_state(now, CmState::TimeWait);
                vec![
                    CallerAction::Send(CmMessageKind::Drep),
                    CallerAction::Deliver(CmMessageKind::Dreq),
                ]
            }
            CmState::TimeWait => vec![CallerAction::Send(CmMessageKind::Drep)],
            _ => Vec::new(),
        }
    }

    fn on_sidr_req(&mut self) -> Actions {
        match self.state {
            CmState::Idle => {
                self.state = CmState::SidrReqReceived;
                vec![CallerAction::Deliver(CmMessageKind::SidrReq)]
            }
            CmState::SidrAnswered => vec![CallerAction::Send(CmMessageKind::SidrRep)],
            _ => Vec::new(),
        }
    }

    /// Records a message that needs an answer.
    fn enter_state_and_start_response_timer(
        &mut self,
        now: Duration,
        kind: CmMessageKind,
        state: CmState,
    ) {
        self.state = state;
        self.unanswered_message = Some(UnansweredMessage {
            kind,
            resend_count: 0,
            next_resend_at: now + self.resend_delay(0),
            give_up_at: now
                + self.timeouts.max_response_time * (self.timeouts.full_interval_resends + 1),
        });
    }

    /// Returns the pause after a message and `repetitions` repetitions of it.
    fn resend_delay(&self, repetitions: u32) -> Duration {
        let halvings = EARLY_RESENDS.saturating_sub(repetitions);
        self.timeouts.max_response_time / (1 << halvings)
    }

    /// Records that the answer has arrived.
    fn enter_state_and_stop_response_timer(&mut self, state: CmState) {
        self.unanswered_message = None;
        self.state = state;
    }

    /// Ends the connection, except for the answers to late messages.
    fn enter_ending_state(&mut self, now: Duration, state: CmState) {
        self.enter_state_and_stop_response_timer(state);
        self.state_ends_at = now + self.timeouts.time_wait;
    }

    /// Reacts to an MRA: the peer has received the request, but its program has not decided. The request is still
    /// repeated, at longer intervals: the peer's answer may get lost, and an RTU is repeated only on request.
    fn on_mra(&mut self, now: Duration, service: Duration) -> Actions {
        let times = self.timeouts;
        if let Some(waiting) = &mut self.unanswered_message {
            waiting.next_resend_at = now + times.max_response_time;
            waiting.give_up_at =
                now + service + times.max_response_time * (times.full_interval_resends + 1);
            waiting.resend_count = EARLY_RESENDS;
        }
        Vec::new()
    }
}

#[cfg(test)]
mod tests;
