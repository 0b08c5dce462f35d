//! The injector, which decides which rules strike an occurrence.

use crate::action::{Action, Incident};
use crate::facts::{CompletionFacts, PacketFacts, QueuePair, VerbFacts, WorkFacts};
use crate::packets;
use crate::plan::Plan;
use crate::random::{Draws, between, of_text};
use crate::rule::{Occasion, Rule};
use crate::select::State;
use crate::verdict::{Counts, Fate, Happening, Struck, VerbVerdict, WorkFault, WorkVerdict};

/// An injector of faults by plan and seed. Times are nanoseconds since the process opened its
/// device.
#[derive(Clone, Debug)]
pub struct Injector {
    states: Vec<State>,
    /// The time until which the link is down.
    link_down_until: Option<u64>,
}

impl Injector {
    /// Makes an injector without past occurrences.
    #[must_use]
    pub fn new(plan: Plan, seed: u64) -> Self {
        let mut states: Vec<State> = Vec::new();
        for rule in plan.into_rules() {
            let text = rule.to_string();
            // Give equal rules different random streams.
            let twins = states.iter().filter(|state| state.rule.to_string() == text);
            let twins = twins.count() as u64;
            let draws = Draws::new(seed, of_text(&text).wrapping_add(twins));
            states.push(State::new(rule, draws));
        }
        Self {
            states,
            link_down_until: None,
        }
    }

    /// Returns the rules, in the order of the plan.
    pub fn rules(&self) -> impl ExactSizeIterator<Item = &Rule> {
        self.states.iter().map(|state| &state.rule)
    }

    /// Returns the counts of each rule, in the order of the plan.
    pub fn counts(&self) -> impl ExactSizeIterator<Item = Counts> + '_ {
        self.states.iter().map(|state| Counts {
            matched: state.matched,
            struck: state.struck,
        })
    }

    /// Decides about a packet that is sent or received.
    pub fn packet(&mut self, now_ns: u64, facts: &PacketFacts) -> Fate {
        let mut fate = Fate::default();
        for (index, state) in self.states.iter_mut().enumerate() {
            packets::apply(state, index, now_ns, facts, &mut fate);
        }
        fate.drop |= self.is_link_down(now_ns);
        fate
    }

    /// Decides about a call of a verb.
    pub fn verb(&mut self, now_ns: u64, facts: &VerbFacts) -> VerbVerdict {
        let mut verdict = VerbVerdict::default();
        let stream = of_text(facts.name) ^ u64::from(facts.queue_pair.number);
        for (index, state) in self.states.iter_mut().enumerate() {
            let rule = &state.rule;
            let is_for = rule.occasion.is_call_of(facts.name)
                && rule.filter.includes_time(now_ns)
                && rule.filter.includes_queue_pair(facts.queue_pair);
            if !is_for || state.strikes(stream).is_none() {
                continue;
            }
            verdict.struck.add(index);
            match state.rule.action {
                Action::Errno(errno) => verdict.errno = verdict.errno.or(Some(errno)),
                Action::Incident(incident) => {
                    let target = target(&state.rule, facts.queue_pair);
                    verdict.incidents.push((incident, target));
                }
                _ => {}
            }
        }
        self.note_links(now_ns, &verdict.incidents);
        verdict
    }

    /// Decides about a work request at its post.
    pub fn work_request(&mut self, now_ns: u64, facts: &WorkFacts) -> WorkVerdict {
        let mut verdict = WorkVerdict::default();
        for (index, state) in self.states.iter_mut().enumerate() {
            let rule = &state.rule;
            let is_for = rule.occasion == Occasion::Work
                && rule.filter.includes_time(now_ns)
                && rule.filter.includes_operation(facts.operation)
                && rule.filter.includes_queue_pair(facts.queue_pair)
                && rule.filter.includes_peer(facts.peer);
            if !is_for || state.strikes(facts.queue_pair.number.into()).is_none() {
                continue;
            }
            verdict.struck.add(index);
            let fault = match state.rule.action {
                Action::Status(status) => Some(WorkFault::Status(status)),
                Action::ReceiverNotReady(time) => Some(WorkFault::ReceiverNotReady(time)),
                Action::Incident(incident) => {
                    let target = target(&state.rule, facts.queue_pair);
                    verdict.incidents.push((incident, target));
                    None
                }
                _ => None,
            };
            verdict.fault = verdict.fault.or(fault);
        }
        self.note_links(now_ns, &verdict.incidents);
        verdict
    }

    /// Returns the delay of a completion in nanoseconds, and the rules that struck.
    pub fn completion(&mut self, now_ns: u64, facts: &CompletionFacts) -> (u64, Struck) {
        let mut delay = 0u64;
        let mut struck = Struck::default();
        for (index, state) in self.states.iter_mut().enumerate() {
            let Action::Late(low, high) = state.rule.action else {
                continue;
            };
            let filter = &state.rule.filter;
            let is_for = filter.includes_time(now_ns)
                && filter.operation.is_none_or(|name| name == facts.operation)
                && filter.includes_queue_pair(facts.queue_pair);
            if is_for && let Some(strike) = state.strikes(facts.queue_pair.number.into()) {
                struck.add(index);
                delay = delay.saturating_add(between(state.draw(strike), low, high));
            }
        }
        (delay, struck)
    }

    /// Returns the time of the next incident for [`due`](Self::due).
    #[must_use]
    pub fn next_due(&self) -> Option<u64> {
        let timers = self.states.iter().filter(|state| is_waiting(state));
        let first = timers.map(|state| state.rule.filter.from_ns).min();
        let up = self.link_down_until.filter(|until| *until != u64::MAX);
        first.into_iter().chain(up).min()
    }

    /// Returns the incidents that are due now, each once, and the rules that struck.
    pub fn due(&mut self, now_ns: u64) -> (Vec<Happening>, Struck) {
        let mut happenings = Vec::new();
        let mut struck = Struck::default();
        for (index, state) in self.states.iter_mut().enumerate() {
            if !is_waiting(state) || state.rule.filter.from_ns > now_ns {
                continue;
            }
            if state.strikes(0).is_some()
                && let Action::Incident(incident) = state.rule.action
            {
                struck.add(index);
                happenings.push((incident, state.rule.queue_pair()));
            }
        }
        self.note_links(now_ns, &happenings);
        if self.link_down_until.is_some_and(|until| until <= now_ns) {
            self.link_down_until = None;
            happenings.push((Incident::LinkUp, QueuePair::default()));
        }
        (happenings, struck)
    }

    /// Returns true if the link is down.
    #[must_use]
    pub fn is_link_down(&self, now_ns: u64) -> bool {
        self.link_down_until.is_some_and(|until| now_ns < until)
    }

    fn note_links(&mut self, now_ns: u64, happenings: &[Happening]) {
        for (incident, _) in happenings {
            if let Incident::LinkDown(time) = incident {
                let until = time.map_or(u64::MAX, |time| now_ns.saturating_add(time));
                self.link_down_until = self.link_down_until.max(Some(until));
            }
        }
    }
}

/// Returns true for a rule with a time, before it has struck.
fn is_waiting(state: &State) -> bool {
    state.rule.occasion == Occasion::Time && state.matched == 0
}

/// Returns the queue pair of an incident: that of the occurrence, or else that of the rule's
/// filter.
fn target(rule: &Rule, occurred: QueuePair) -> QueuePair {
    match occurred.number {
        0 => rule.queue_pair(),
        _ => occurred,
    }
}
