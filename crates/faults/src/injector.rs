//! The injector, which decides which rules strike an occurrence.

use crate::action::{Action, Incident};
use crate::facts::{CompletionFacts, PacketFacts, QueuePairIds, VerbCallFacts, WorkRequestFacts};
use crate::packets;
use crate::plan::Plan;
use crate::random::{RuleRandom, hash_text, map_draw_to_range};
use crate::rule::{Rule, Trigger};
use crate::select::RuleState;
use crate::verdict::{
    PacketVerdict, RuleCounts, StruckRules, TargetedIncident, VerbVerdict, WorkRequestFault,
    WorkRequestVerdict,
};

/// An injector: decides on faults by a plan and a seed. Times are in nanoseconds since the process
/// opened its device.
#[derive(Clone, Debug)]
pub struct Injector {
    rule_states: Vec<RuleState>,
    /// The time at which the link is up again, `u64::MAX` for never; `None` if the link is up.
    link_down_until_ns: Option<u64>,
}

impl Injector {
    /// Makes an injector that has not seen any packet, verb or work request.
    #[must_use]
    pub fn new(plan: Plan, seed: u64) -> Self {
        let mut states: Vec<RuleState> = Vec::new();
        for rule in plan.into_rules() {
            let text = rule.to_string();
            // Count equal rules before this rule, so that equal rules draw different random
            // numbers.
            let twins = states.iter().filter(|state| state.rule.to_string() == text);
            let twins = twins.count() as u64;
            let draws = RuleRandom::new(seed, hash_text(&text).wrapping_add(twins));
            states.push(RuleState::new(rule, draws));
        }
        Self {
            rule_states: states,
            link_down_until_ns: None,
        }
    }

    /// Returns the rules of the plan, in the order of the plan.
    pub fn rules(&self) -> impl ExactSizeIterator<Item = &Rule> {
        self.rule_states.iter().map(|state| &state.rule)
    }

    /// Returns the counts of the rules, in the order of the plan.
    pub fn rule_counts(&self) -> impl ExactSizeIterator<Item = RuleCounts> + '_ {
        self.rule_states.iter().map(|state| RuleCounts {
            matched: state.matched_count,
            struck: state.struck_count,
        })
    }

    /// Returns the fate of a packet that is sent or received.
    pub fn decide_packet(&mut self, now_ns: u64, facts: &PacketFacts) -> PacketVerdict {
        let mut fate = PacketVerdict::default();
        for (index, state) in self.rule_states.iter_mut().enumerate() {
            packets::apply_rule(state, index, now_ns, facts, &mut fate);
        }
        fate.drop |= self.is_link_down(now_ns);
        fate
    }

    /// Returns the verdict on a call of a verb.
    pub fn decide_verb_call(&mut self, now_ns: u64, facts: &VerbCallFacts) -> VerbVerdict {
        let mut verdict = VerbVerdict::default();
        let stream = hash_text(facts.verb_name) ^ u64::from(facts.queue_pair.creation_number);
        for (index, state) in self.rule_states.iter_mut().enumerate() {
            let rule = &state.rule;
            let is_for = rule.trigger.is_call_of(facts.verb_name)
                && rule.filter.includes_time(now_ns)
                && rule.filter.includes_queue_pair(facts.queue_pair);
            if !is_for || state.try_strike(stream).is_none() {
                continue;
            }
            verdict.struck_rules.add_rule(index);
            match state.rule.action {
                Action::Errno(errno) => verdict.errno = verdict.errno.or(Some(errno)),
                Action::Incident(incident) => {
                    let target = incident_queue_pair(&state.rule, facts.queue_pair);
                    verdict.incidents.push((incident, target));
                }
                _ => {}
            }
        }
        self.record_link_down_incidents(now_ns, &verdict.incidents);
        verdict
    }

    /// Returns the verdict on a work request that the program posts.
    pub fn decide_work_request(
        &mut self,
        now_ns: u64,
        facts: &WorkRequestFacts,
    ) -> WorkRequestVerdict {
        let mut verdict = WorkRequestVerdict::default();
        for (index, state) in self.rule_states.iter_mut().enumerate() {
            let rule = &state.rule;
            let is_for = rule.trigger == Trigger::WorkRequest
                && rule.filter.includes_time(now_ns)
                && rule.filter.includes_operation(facts.operation)
                && rule.filter.includes_queue_pair(facts.queue_pair)
                && rule.filter.includes_peer(facts.peer);
            if !is_for
                || state
                    .try_strike(facts.queue_pair.creation_number.into())
                    .is_none()
            {
                continue;
            }
            verdict.struck_rules.add_rule(index);
            let fault = match state.rule.action {
                Action::CompleteWithStatus(status) => Some(WorkRequestFault::Status(status)),
                Action::ReceiverNotReady(time) => Some(WorkRequestFault::ReceiverNotReady(time)),
                Action::Incident(incident) => {
                    let target = incident_queue_pair(&state.rule, facts.queue_pair);
                    verdict.incidents.push((incident, target));
                    None
                }
                _ => None,
            };
            verdict.fault = verdict.fault.or(fault);
        }
        self.record_link_down_incidents(now_ns, &verdict.incidents);
        verdict
    }

    /// Returns the delay of a completion in nanoseconds, and the rules that struck the completion.
    pub fn decide_completion_delay_ns(
        &mut self,
        now_ns: u64,
        facts: &CompletionFacts,
    ) -> (u64, StruckRules) {
        let mut delay = 0u64;
        let mut struck = StruckRules::default();
        for (index, state) in self.rule_states.iter_mut().enumerate() {
            let Action::DelayCompletion(low, high) = state.rule.action else {
                continue;
            };
            let filter = &state.rule.filter;
            let is_for = filter.includes_time(now_ns)
                && filter.operation.is_none_or(|name| name == facts.operation)
                && filter.includes_queue_pair(facts.queue_pair);
            if is_for
                && let Some(strike) = state.try_strike(facts.queue_pair.creation_number.into())
            {
                struck.add_rule(index);
                delay =
                    delay.saturating_add(map_draw_to_range(state.draw_detail(strike), low, high));
            }
        }
        (delay, struck)
    }

    /// Returns the time in nanoseconds at which [`take_due_incidents`](Self::take_due_incidents) next has an incident.
    #[must_use]
    pub fn next_incident_due_ns(&self) -> Option<u64> {
        let timers = self
            .rule_states
            .iter()
            .filter(|state| is_pending_timed_rule(state));
        let first = timers.map(|state| state.rule.filter.from_ns).min();
        let up = self.link_down_until_ns.filter(|until| *until != u64::MAX);
        first.into_iter().chain(up).min()
    }

    /// Returns the incidents that are due at `now_ns`, each once, and the rules that struck.
    pub fn take_due_incidents(&mut self, now_ns: u64) -> (Vec<TargetedIncident>, StruckRules) {
        let mut happenings = Vec::new();
        let mut struck = StruckRules::default();
        for (index, state) in self.rule_states.iter_mut().enumerate() {
            if !is_pending_timed_rule(state) || state.rule.filter.from_ns > now_ns {
                continue;
            }
            if state.try_strike(0).is_some()
                && let Action::Incident(incident) = state.rule.action
            {
                struck.add_rule(index);
                happenings.push((incident, state.rule.queue_pair_of_filter()));
            }
        }
        self.record_link_down_incidents(now_ns, &happenings);
        if self.link_down_until_ns.is_some_and(|until| until <= now_ns) {
            self.link_down_until_ns = None;
            happenings.push((Incident::LinkUp, QueuePairIds::default()));
        }
        (happenings, struck)
    }

    /// Returns true if the link is down at `now_ns`.
    #[must_use]
    pub fn is_link_down(&self, now_ns: u64) -> bool {
        self.link_down_until_ns.is_some_and(|until| now_ns < until)
    }

    fn record_link_down_incidents(&mut self, now_ns: u64, happenings: &[TargetedIncident]) {
        for (incident, _) in happenings {
            if let Incident::LinkDown(time) = incident {
                let until = time.map_or(u64::MAX, |time| now_ns.saturating_add(time));
                self.link_down_until_ns = self.link_down_until_ns.max(Some(until));
            }
        }
    }
}

/// Returns true for a rule of a time (`at=`) that has not struck yet.
fn is_pending_timed_rule(state: &RuleState) -> bool {
    state.rule.trigger == Trigger::Time && state.matched_count == 0
}

/// Returns the queue pair of an incident: the queue pair of the occurrence, or else that of the
/// rule's filter.
fn incident_queue_pair(rule: &Rule, occurred: QueuePairIds) -> QueuePairIds {
    match occurred.creation_number {
        0 => rule.queue_pair_of_filter(),
        _ => occurred,
    }
}
