//! The search: all states that the register can be in, from event to event.

use std::collections::{BTreeMap, HashMap};

use crate::register::{Content, State};
use crate::{Action, Condition, Operation, Outcome};

/// Changes of unknown outcome that nobody saw and that depend on no version: how many of each kind.
type Kinds = [u32; 4];

fn kind(action: Action) -> Option<usize> {
    match action {
        Action::Write { condition, .. } => match condition {
            Condition::Always => Some(0),
            Condition::Absent => Some(1),
            Condition::Present => Some(2),
            Condition::Version(_) => None,
        },
        Action::Remove { version: None } => Some(3),
        Action::Remove { .. } | Action::Read | Action::Scan => None,
    }
}

const OF_KIND: [Action; 4] = [
    Action::Write {
        value: 0,
        condition: Condition::Always,
    },
    Action::Write {
        value: 0,
        condition: Condition::Absent,
    },
    Action::Write {
        value: 0,
        condition: Condition::Present,
    },
    Action::Remove { version: None },
];

/// A way in which everything so far can have happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Configuration {
    pub(crate) state: State,
    /// Operations that have happened and not returned, in order of their numbers.
    pub(crate) done: Vec<usize>,
    /// Changes of unknown outcome that have happened.
    taken: Kinds,
}

impl Configuration {
    pub(crate) fn new(state: State) -> Self {
        Self {
            state,
            done: Vec::new(),
            taken: [0; 4],
        }
    }

    fn is_done(&self, operation: usize) -> bool {
        self.done.binary_search(&operation).is_ok()
    }

    fn mark(&mut self, operation: usize) {
        if let Err(at) = self.done.binary_search(&operation) {
            self.done.insert(at, operation);
        }
    }

    /// Whether all that may follow this one's double may follow this one.
    fn covers(&self, other: &Self) -> bool {
        let [always, absent, present, removals] = self.taken;
        let [other_always, other_absent, other_present, other_removals] = other.taken;
        // A write without a condition that is left does for one with a condition that is not.
        let lacks = absent.saturating_sub(other_absent) + present.saturating_sub(other_present);
        self.state.covers(&other.state)
            && always + lacks <= other_always
            && removals <= other_removals
    }
}

/// Configurations none of which covers another.
#[derive(Debug, Default)]
struct Set(HashMap<Vec<usize>, Vec<Configuration>>);

impl Set {
    /// Adds one; false if another covers it.
    fn add(&mut self, new: &Configuration) -> bool {
        let alike = self.0.entry(new.done.clone()).or_default();
        if alike.iter().any(|old| old.covers(new)) {
            return false;
        }
        alike.retain(|old| !new.covers(old));
        alike.push(new.clone());
        true
    }

    fn into_vec(self) -> Vec<Configuration> {
        self.0.into_values().flatten().collect()
    }
}

/// Where nothing fits any more.
#[derive(Debug)]
pub(crate) struct Failed {
    /// The operation that cannot have come to what it came to.
    pub(crate) operation: usize,
    /// How everything before can have happened.
    pub(crate) before: Vec<Configuration>,
}

/// A history, and how each value was found.
pub(crate) struct History<'h> {
    pub(crate) operations: &'h [Operation],
    pub(crate) seen: &'h Seen,
    /// Whether a walk gives up what a read that is called later excludes. If not it takes longer, and fails at the return
    /// at which nothing fits.
    pub(crate) look_ahead: bool,
}

/// How values were found.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// The version that each value was found with.
    pub(crate) versions: HashMap<u64, u64>,
    /// Writes of unknown outcome whose value was found without a version, and when the first read that found it
    /// returned: each has happened by then.
    pub(crate) found: HashMap<usize, u64>,
}

/// The kinds of events of a walk; at the same time they come in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Call,
    /// The operation has happened.
    Return,
    /// A write of unknown outcome has happened: a read that found it has returned.
    Found,
    /// An operation that may have happened cannot happen any more.
    Expire,
}

/// What is under way.
#[derive(Debug, Default)]
struct Pending {
    /// When the last read of the walk that finds a value is called, by the value.
    last_reads: HashMap<u64, u64>,
    /// The time of the event.
    now_ns: u64,
    /// Called and not returned, of known outcome; or of unknown outcome, and it will be found.
    known: Vec<usize>,
    /// Of unknown outcome, by the version that their value was found with.
    seen: BTreeMap<u64, Vec<usize>>,
    /// Of unknown outcome and with a condition, by its version.
    conditional: BTreeMap<u64, Vec<usize>>,
    /// Of unknown outcome, all alike.
    kinds: Kinds,
}

impl Pending {
    /// Whether all reads that find a value have been called.
    fn is_past(&self, value: u64) -> bool {
        let last = self.last_reads.get(&value);
        last.is_none_or(|last_ns| *last_ns <= self.now_ns)
    }
}

impl History<'_> {
    /// The version with which the value of a change was found.
    fn seen(&self, action: Action) -> Option<u64> {
        match action {
            Action::Write { value, .. } => self.seen.versions.get(&value).copied(),
            _ => None,
        }
    }

    /// When an operation has happened at the latest, if it must have.
    pub(crate) fn end_ns(&self, i: usize) -> Option<u64> {
        match self.operations[i].end {
            Some(end) => Some(end.at_ns),
            None => self.seen.found.get(&i).copied(),
        }
    }

    /// The state after an operation that happens.
    fn after(&self, i: usize, state: State) -> Option<State> {
        let Operation { action, end, .. } = self.operations[i];
        match end {
            Some(end) => state.after(action, end.outcome),
            None => state.after_found(action),
        }
    }

    /// Walks through the events of these operations up to some time; the most configurations that there were. Of some
    /// changes it does not matter whether they happen; if they do, they come to what they came to.
    pub(crate) fn walk(
        &self,
        operations: &[usize],
        optional: &[usize],
        start: Configuration,
        until_ns: u64,
    ) -> Result<u64, Failed> {
        let mut events = Vec::with_capacity(2 * operations.len());
        let mut pending = Pending::default();
        for &i in operations {
            let operation = &self.operations[i];
            // At the same time calls come first: that excludes less.
            events.push((operation.call_ns, Event::Call, i));
            let event = operation.end.map_or(Event::Found, |_| Event::Return);
            let end = self.end_ns(i).filter(|at_ns| *at_ns <= until_ns);
            events.extend(end.map(|at_ns| (at_ns, event, i)));
            let outcome = operation.end.filter(|_| end.is_some()).map(|e| e.outcome);
            if let Some(Outcome::Value { value, .. } | Outcome::Found { value }) = outcome {
                let last = pending.last_reads.entry(value).or_default();
                *last = operation.call_ns.max(*last);
            }
        }
        for &i in optional {
            if self.may_happen(&mut pending, i) {
                events.extend(self.end_ns(i).map(|at_ns| (at_ns, Event::Expire, i)));
            }
        }
        events.sort_unstable();
        let mut configurations = vec![start];
        let mut most = 1;
        for (at_ns, event, i) in events {
            pending.now_ns = at_ns;
            if event == Event::Call {
                self.call(&mut pending, i);
                continue;
            }
            if event == Event::Expire || configurations.iter().all(|c| c.is_done(i)) {
                // Most returns: they are alike in this, so none covers another afterwards either.
                configurations
                    .iter_mut()
                    .for_each(|c| c.done.retain(|&other| other != i));
                pending.known.retain(|&other| other != i);
                continue;
            }
            let next = self.advance(&pending, &configurations, i);
            pending.known.retain(|&other| other != i);
            if next.is_empty() {
                return Err(Failed {
                    operation: i,
                    before: configurations,
                });
            }
            configurations = next;
            most = most.max(configurations.len() as u64);
            forget(&mut pending, &configurations);
        }
        Ok(most)
    }

    /// Notes a change that may have happened before the walk; whether that cannot be told from its version alone.
    fn may_happen(&self, pending: &mut Pending, i: usize) -> bool {
        let Operation { action, end, .. } = self.operations[i];
        let Some(Outcome::Done { version }) = end.map(|end| end.outcome) else {
            pending.known.push(i);
            return true;
        };
        let of = match action {
            Action::Remove { .. } => &mut pending.conditional,
            _ => &mut pending.seen,
        };
        of.entry(version).or_default().push(i);
        false
    }

    fn call(&self, pending: &mut Pending, i: usize) {
        let action = self.operations[i].action;
        if self.end_ns(i).is_some() {
            pending.known.push(i);
            return;
        }
        if let Some(version) = self.seen(action) {
            pending.seen.entry(version).or_default().push(i);
        } else if let Some(kind) = kind(action) {
            pending.kinds[kind] += 1;
        } else if let Action::Write {
            condition: Condition::Version(version),
            ..
        }
        | Action::Remove {
            version: Some(version),
        } = action
        {
            pending.conditional.entry(version).or_default().push(i);
        }
    }

    /// All ways to go on in which this operation has happened.
    fn advance(
        &self,
        pending: &Pending,
        configurations: &[Configuration],
        returns: usize,
    ) -> Vec<Configuration> {
        let (mut visited, mut after) = (Set::default(), Set::default());
        let mut open = Vec::new();
        let visit = |mut new: Configuration, open: &mut Vec<_>, visited: &mut Set| {
            if self.settle(pending, &mut new) && visited.add(&new) {
                open.push(new);
            }
        };
        for configuration in configurations {
            visit(configuration.clone(), &mut open, &mut visited);
        }
        while let Some(mut configuration) = open.pop() {
            if configuration.is_done(returns) {
                configuration.done.retain(|&i| i != returns);
                after.add(&configuration);
                continue;
            }
            for new in self.steps(pending, &configuration) {
                visit(new, &mut open, &mut visited);
            }
        }
        after.into_vec()
    }

    /// Carries out what fits and changes nothing; false if something can never happen any more.
    fn settle(&self, pending: &Pending, configuration: &mut Configuration) -> bool {
        for &i in &pending.known {
            let operation = &self.operations[i];
            let Some(end) = operation.end else {
                continue;
            };
            if configuration.is_done(i) {
                continue;
            }
            let state = configuration.state;
            if state.after(operation.action, end.outcome) == Some(state) {
                configuration.mark(i);
            } else if state.is_past(operation.action, end.outcome) {
                return false;
            }
        }
        let state = &mut configuration.state;
        // One whose version is known is given up by its version.
        if let Content::Value(value) = state.content
            && !state.exact
            && pending.is_past(value)
        {
            state.content = Content::Past(value);
        }
        if configuration.state.content.is_past() {
            for &i in &pending.known {
                if !configuration.is_done(i) && self.is_hidden(pending, i) {
                    configuration.mark(i);
                }
            }
        }
        true
    }

    /// Whether an operation is a write over something, with a value that no read of the walk finds.
    fn is_hidden(&self, pending: &Pending, i: usize) -> bool {
        let operation = &self.operations[i];
        let Action::Write { value, .. } = operation.action else {
            return false;
        };
        let outcome = operation.end.map(|end| end.outcome);
        outcome == Some(Outcome::Changed { found: true })
            && operation.changes()
            && !pending.last_reads.contains_key(&value)
    }

    /// What may happen next.
    fn steps(&self, pending: &Pending, from: &Configuration) -> Vec<Configuration> {
        let mut steps = Vec::new();
        let mut step = |state: Option<State>, change: &dyn Fn(&mut Configuration)| {
            if let Some(state) = state {
                let mut next = Configuration {
                    state,
                    ..from.clone()
                };
                change(&mut next);
                steps.push(next);
            }
        };
        let state = from.state;
        if self.look_ahead && matches!(state.content, Content::Value(_)) && !state.exact {
            // It is settled: a read that is called later finds this value, so nothing may change it before.
            return steps;
        }
        for &i in pending.known.iter().filter(|i| !from.is_done(**i)) {
            step(self.after(i, state), &|c| c.mark(i));
        }
        // Neither of these can happen twice: the version is behind it then.
        for (&version, all) in pending.seen.range(state.version..) {
            for &i in all {
                let action = self.operations[i].action;
                step(state.after_unknown(action, Some(version)), &|_| {});
            }
        }
        for (&version, all) in pending.conditional.range(state.version..) {
            for &i in all {
                let action = match self.operations[i].action {
                    Action::Remove { .. } => Action::Remove {
                        version: Some(version),
                    },
                    write => write,
                };
                step(state.after_unknown(action, None), &|_| {});
            }
        }
        for (kind, action) in OF_KIND.into_iter().enumerate() {
            if from.taken[kind] < pending.kinds[kind] {
                step(state.after_unknown(action, None), &|c| c.taken[kind] += 1);
            }
        }
        steps
    }
}

/// Forgets changes of unknown outcome that cannot happen any more.
fn forget(pending: &mut Pending, configurations: &[Configuration]) {
    let lowest = configurations.iter().map(|c| c.state.version).min();
    let lowest = lowest.unwrap_or(0);
    for of in [&mut pending.seen, &mut pending.conditional] {
        while let Some(first) = of.first_entry()
            && *first.key() < lowest
        {
            first.remove();
        }
    }
}
