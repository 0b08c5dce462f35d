//! The search: keeps all possible states of the register from event to event.

use std::collections::{BTreeMap, HashMap};

use crate::register::{RegisterContent, RegisterState};
use crate::{Operation, OperationOutcome, RegisterAction, WriteCondition};

/// Counts, by kind, of changes of unknown outcome whose value no read found and that depend on no version.
type CountsByActionKind = [u32; 4];

fn action_kind_index(action: RegisterAction) -> Option<usize> {
    match action {
        RegisterAction::Write { condition, .. } => match condition {
            WriteCondition::Always => Some(0),
            WriteCondition::Absent => Some(1),
            WriteCondition::Present => Some(2),
            WriteCondition::Version(_) => None,
        },
        RegisterAction::Remove { version: None } => Some(3),
        RegisterAction::Remove { .. } | RegisterAction::Read | RegisterAction::Scan => None,
    }
}

const ACTION_OF_KIND: [RegisterAction; 4] = [
    RegisterAction::Write {
        value: 0,
        condition: WriteCondition::Always,
    },
    RegisterAction::Write {
        value: 0,
        condition: WriteCondition::Absent,
    },
    RegisterAction::Write {
        value: 0,
        condition: WriteCondition::Present,
    },
    RegisterAction::Remove { version: None },
];

/// One way in which all events so far can have happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WalkConfiguration {
    pub(crate) state: RegisterState,
    /// Operations that are linearized but have not returned, ascending by number.
    pub(crate) linearized_unreturned: Vec<usize>,
    /// Number of changes of unknown outcome that are linearized, by kind.
    linearized_unknown_changes: CountsByActionKind,
}

impl WalkConfiguration {
    pub(crate) fn new(state: RegisterState) -> Self {
        Self {
            state,
            linearized_unreturned: Vec::new(),
            linearized_unknown_changes: [0; 4],
        }
    }

    fn is_linearized(&self, operation: usize) -> bool {
        self.linearized_unreturned.binary_search(&operation).is_ok()
    }

    fn mark_linearized(&mut self, operation: usize) {
        if let Err(at) = self.linearized_unreturned.binary_search(&operation) {
            self.linearized_unreturned.insert(at, operation);
        }
    }

    /// Returns true if every continuation of `other` is also possible from this configuration.
    fn covers(&self, other: &Self) -> bool {
        let [always, absent, present, removals] = self.linearized_unknown_changes;
        let [other_always, other_absent, other_present, other_removals] =
            other.linearized_unknown_changes;
        // A remaining unconditional write can replace a missing conditional one.
        let lacks = absent.saturating_sub(other_absent) + present.saturating_sub(other_present);
        self.state.covers(&other.state)
            && always + lacks <= other_always
            && removals <= other_removals
    }
}

/// A set of configurations in which none covers another.
#[derive(Debug, Default)]
struct ConfigurationSet(HashMap<Vec<usize>, Vec<WalkConfiguration>>);

impl ConfigurationSet {
    /// Adds a configuration. Returns false if another one covers it.
    fn add(&mut self, new: &WalkConfiguration) -> bool {
        let alike = self.0.entry(new.linearized_unreturned.clone()).or_default();
        if alike.iter().any(|old| old.covers(new)) {
            return false;
        }
        alike.retain(|old| !new.covers(old));
        alike.push(new.clone());
        true
    }

    fn into_vec(self) -> Vec<WalkConfiguration> {
        self.0.into_values().flatten().collect()
    }
}

/// The point of a walk at which no configuration is left.
#[derive(Debug)]
pub(crate) struct WalkFailure {
    /// The operation whose outcome is impossible.
    pub(crate) impossible_operation_index: usize,
    /// The configurations before that operation returned.
    pub(crate) configurations_before: Vec<WalkConfiguration>,
}

/// A history, and the ways in which its values were found.
pub(crate) struct History<'h> {
    pub(crate) operations: &'h [Operation],
    pub(crate) observed_values: &'h ObservedValues,
    /// True if a walk discards states that a later read excludes. Without look-ahead a walk takes longer, and fails
    /// exactly at the return at which nothing fits.
    pub(crate) uses_look_ahead: bool,
}

/// The ways in which values were found.
#[derive(Debug, Default)]
pub(crate) struct ObservedValues {
    /// The version with which each value was found.
    pub(crate) version_by_value: HashMap<u64, u64>,
    /// Writes of unknown outcome whose value was found without a version, with the first return of such a read: the
    /// write has happened by then.
    pub(crate) first_return_ns_by_unversioned_write: HashMap<usize, u64>,
}

/// The kinds of events of a walk, in the order in which simultaneous events are processed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum EventKind {
    Call,
    /// An operation returned, so it has happened.
    Return,
    /// A read that found the value of a write of unknown outcome returned, so the write has happened.
    FoundByRead,
    /// An optional operation can no longer happen.
    Expire,
}

/// The outstanding operations of a walk.
#[derive(Debug, Default)]
struct OutstandingOperations {
    /// For each value, the call time of the last read that finds it.
    last_read_call_ns_by_value: HashMap<u64, u64>,
    /// The time of the event at which the walk is.
    event_time_ns: u64,
    /// Outstanding operations of known outcome, and writes of unknown outcome whose value will be found without a
    /// version.
    operations_with_known_end: Vec<usize>,
    /// Operations of unknown outcome, by the version with which their value was found.
    unknown_by_found_version: BTreeMap<u64, Vec<usize>>,
    /// Operations of unknown outcome that require a version, by that version.
    unknown_by_required_version: BTreeMap<u64, Vec<usize>>,
    /// Numbers of other operations of unknown outcome, by kind.
    unknown_counts_by_kind: CountsByActionKind,
}

impl OutstandingOperations {
    /// Returns true if all reads that find a value have been called.
    fn all_reads_called(&self, value: u64) -> bool {
        let last = self.last_read_call_ns_by_value.get(&value);
        last.is_none_or(|last_ns| *last_ns <= self.event_time_ns)
    }
}

impl History<'_> {
    /// Returns the version with which the value of a change was found.
    fn observed_version(&self, action: RegisterAction) -> Option<u64> {
        match action {
            RegisterAction::Write { value, .. } => {
                self.observed_values.version_by_value.get(&value).copied()
            }
            _ => None,
        }
    }

    /// Returns the time by which an operation must have happened, if any.
    pub(crate) fn must_happen_by_ns(&self, i: usize) -> Option<u64> {
        match self.operations[i].end {
            Some(end) => Some(end.at_ns),
            None => self
                .observed_values
                .first_return_ns_by_unversioned_write
                .get(&i)
                .copied(),
        }
    }

    /// Returns the state after an operation has happened, if that is possible.
    fn state_after(&self, i: usize, state: RegisterState) -> Option<RegisterState> {
        let Operation { action, end, .. } = self.operations[i];
        match end {
            Some(end) => state.after_operation(action, end.outcome),
            None => state.after_write_found_later(action),
        }
    }

    /// Processes the events of `operations` up to `until_ns` in time order, and returns the largest number of
    /// configurations. Changes in `optional` may happen or not; one that happens has its recorded outcome.
    pub(crate) fn walk_events(
        &self,
        operations: &[usize],
        optional: &[usize],
        start: WalkConfiguration,
        until_ns: u64,
    ) -> Result<u64, WalkFailure> {
        let mut events = Vec::with_capacity(2 * operations.len());
        let mut pending = OutstandingOperations::default();
        for &i in operations {
            let operation = &self.operations[i];
            // Simultaneous calls come first, which excludes fewer orders.
            events.push((operation.call_ns, EventKind::Call, i));
            let event = operation
                .end
                .map_or(EventKind::FoundByRead, |_| EventKind::Return);
            let end = self.must_happen_by_ns(i).filter(|at_ns| *at_ns <= until_ns);
            events.extend(end.map(|at_ns| (at_ns, event, i)));
            let outcome = operation.end.filter(|_| end.is_some()).map(|e| e.outcome);
            if let Some(
                OperationOutcome::FoundVersioned { value, .. }
                | OperationOutcome::FoundUnversioned { value },
            ) = outcome
            {
                let last = pending.last_read_call_ns_by_value.entry(value).or_default();
                *last = operation.call_ns.max(*last);
            }
        }
        for &i in optional {
            if self.add_optional_and_needs_expiry(&mut pending, i) {
                events.extend(
                    self.must_happen_by_ns(i)
                        .map(|at_ns| (at_ns, EventKind::Expire, i)),
                );
            }
        }
        events.sort_unstable();
        let mut configurations = vec![start];
        let mut most = 1;
        for (at_ns, event, i) in events {
            pending.event_time_ns = at_ns;
            if event == EventKind::Call {
                self.add_call(&mut pending, i);
                continue;
            }
            if event == EventKind::Expire || configurations.iter().all(|c| c.is_linearized(i)) {
                // Fast path for most returns: all configurations have this operation, so removing it makes none cover
                // another.
                configurations
                    .iter_mut()
                    .for_each(|c| c.linearized_unreturned.retain(|&other| other != i));
                pending
                    .operations_with_known_end
                    .retain(|&other| other != i);
                continue;
            }
            let next = self.configurations_after_return(&pending, &configurations, i);
            pending
                .operations_with_known_end
                .retain(|&other| other != i);
            if next.is_empty() {
                return Err(WalkFailure {
                    impossible_operation_index: i,
                    configurations_before: configurations,
                });
            }
            configurations = next;
            most = most.max(configurations.len() as u64);
            remove_impossible_changes(&mut pending, &configurations);
        }
        Ok(most)
    }

    /// Registers an optional change. Returns true if it needs an expiry event; a change with a version expires by that
    /// version.
    fn add_optional_and_needs_expiry(&self, pending: &mut OutstandingOperations, i: usize) -> bool {
        let Operation { action, end, .. } = self.operations[i];
        let Some(OperationOutcome::Done { version }) = end.map(|end| end.outcome) else {
            pending.operations_with_known_end.push(i);
            return true;
        };
        let of = match action {
            RegisterAction::Remove { .. } => &mut pending.unknown_by_required_version,
            _ => &mut pending.unknown_by_found_version,
        };
        of.entry(version).or_default().push(i);
        false
    }

    fn add_call(&self, pending: &mut OutstandingOperations, i: usize) {
        let action = self.operations[i].action;
        if self.must_happen_by_ns(i).is_some() {
            pending.operations_with_known_end.push(i);
            return;
        }
        if let Some(version) = self.observed_version(action) {
            pending
                .unknown_by_found_version
                .entry(version)
                .or_default()
                .push(i);
        } else if let Some(kind) = action_kind_index(action) {
            pending.unknown_counts_by_kind[kind] += 1;
        } else if let RegisterAction::Write {
            condition: WriteCondition::Version(version),
            ..
        }
        | RegisterAction::Remove {
            version: Some(version),
        } = action
        {
            pending
                .unknown_by_required_version
                .entry(version)
                .or_default()
                .push(i);
        }
    }

    /// Returns all configurations in which this operation has happened.
    fn configurations_after_return(
        &self,
        pending: &OutstandingOperations,
        configurations: &[WalkConfiguration],
        returns: usize,
    ) -> Vec<WalkConfiguration> {
        let (mut visited, mut after) = (ConfigurationSet::default(), ConfigurationSet::default());
        let mut open = Vec::new();
        let visit =
            |mut new: WalkConfiguration, open: &mut Vec<_>, visited: &mut ConfigurationSet| {
                if self.execute_no_ops_if_all_possible(pending, &mut new) && visited.add(&new) {
                    open.push(new);
                }
            };
        for configuration in configurations {
            visit(configuration.clone(), &mut open, &mut visited);
        }
        while let Some(mut configuration) = open.pop() {
            if configuration.is_linearized(returns) {
                configuration
                    .linearized_unreturned
                    .retain(|&i| i != returns);
                after.add(&configuration);
                continue;
            }
            for new in self.successors(pending, &configuration) {
                visit(new, &mut open, &mut visited);
            }
        }
        after.into_vec()
    }

    /// Executes outstanding operations that fit and change nothing. Returns false if an outstanding operation can no
    /// longer happen.
    fn execute_no_ops_if_all_possible(
        &self,
        pending: &OutstandingOperations,
        configuration: &mut WalkConfiguration,
    ) -> bool {
        for &i in &pending.operations_with_known_end {
            let operation = &self.operations[i];
            let Some(end) = operation.end else {
                continue;
            };
            if configuration.is_linearized(i) {
                continue;
            }
            let state = configuration.state;
            if state.after_operation(operation.action, end.outcome) == Some(state) {
                configuration.mark_linearized(i);
            } else if state.makes_impossible(operation.action, end.outcome) {
                return false;
            }
        }
        let state = &mut configuration.state;
        // A value with an exact version is discarded by its version instead.
        if let RegisterContent::Value(value) = state.content
            && !state.version_is_exact
            && pending.all_reads_called(value)
        {
            state.content = RegisterContent::NoLongerRead(value);
        }
        if configuration.state.content.is_never_read_again() {
            for &i in &pending.operations_with_known_end {
                if !configuration.is_linearized(i) && self.is_unread_overwrite(pending, i) {
                    configuration.mark_linearized(i);
                }
            }
        }
        true
    }

    /// Returns true if an operation is a write over an existing value, with a value that no read of the walk finds.
    fn is_unread_overwrite(&self, pending: &OutstandingOperations, i: usize) -> bool {
        let operation = &self.operations[i];
        let RegisterAction::Write { value, .. } = operation.action else {
            return false;
        };
        let outcome = operation.end.map(|end| end.outcome);
        outcome == Some(OperationOutcome::UnversionedChangeAnswer { found: true })
            && operation.may_change_register()
            && !pending.last_read_call_ns_by_value.contains_key(&value)
    }

    /// Returns all configurations that one more operation can produce.
    fn successors(
        &self,
        pending: &OutstandingOperations,
        from: &WalkConfiguration,
    ) -> Vec<WalkConfiguration> {
        let mut steps = Vec::new();
        let mut step = |state: Option<RegisterState>, change: &dyn Fn(&mut WalkConfiguration)| {
            if let Some(state) = state {
                let mut next = WalkConfiguration {
                    state,
                    ..from.clone()
                };
                change(&mut next);
                steps.push(next);
            }
        };
        let state = from.state;
        if self.uses_look_ahead
            && matches!(state.content, RegisterContent::Value(_))
            && !state.version_is_exact
        {
            // A read that is called later finds this value, so nothing may change the register before.
            return steps;
        }
        for &i in pending
            .operations_with_known_end
            .iter()
            .filter(|i| !from.is_linearized(**i))
        {
            step(self.state_after(i, state), &|c| c.mark_linearized(i));
        }
        // None of these can happen twice: afterwards the state's version is past theirs.
        for (&version, all) in pending.unknown_by_found_version.range(state.version..) {
            for &i in all {
                let action = self.operations[i].action;
                step(state.after_unknown_outcome(action, Some(version)), &|_| {});
            }
        }
        for (&version, all) in pending.unknown_by_required_version.range(state.version..) {
            for &i in all {
                let action = match self.operations[i].action {
                    RegisterAction::Remove { .. } => RegisterAction::Remove {
                        version: Some(version),
                    },
                    write => write,
                };
                step(state.after_unknown_outcome(action, None), &|_| {});
            }
        }
        for (kind, action) in ACTION_OF_KIND.into_iter().enumerate() {
            if from.linearized_unknown_changes[kind] < pending.unknown_counts_by_kind[kind] {
                step(state.after_unknown_outcome(action, None), &|c| {
                    c.linearized_unknown_changes[kind] += 1
                });
            }
        }
        steps
    }
}

/// Removes changes of unknown outcome that can no longer happen.
fn remove_impossible_changes(
    pending: &mut OutstandingOperations,
    configurations: &[WalkConfiguration],
) {
    let lowest = configurations.iter().map(|c| c.state.version).min();
    let lowest = lowest.unwrap_or(0);
    for of in [
        &mut pending.unknown_by_found_version,
        &mut pending.unknown_by_required_version,
    ] {
        while let Some(first) = of.first_entry()
            && *first.key() < lowest
        {
            first.remove();
        }
    }
}
