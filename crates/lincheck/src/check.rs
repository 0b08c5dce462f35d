//! The check: finds contradictions, runs the search, and explains a failure.

use std::collections::HashMap;

use crate::explain::explain;
use crate::register::RegisterState;
use crate::search::{History, ObservedValues, WalkConfiguration};
use crate::violation::{Reason, Violation};
use crate::{CheckStats, Operation, OperationOutcome, RegisterAction};

/// Checks the history of one register, which is empty at first.
///
/// - Order of the operations: any.
/// - Cost: about proportional to the number of operations, times the number of concurrent operations.
///
/// # Errors
/// The [`Violation`], if the history is not linearizable.
pub fn check(operations: &[Operation]) -> Result<CheckStats, Box<Violation>> {
    let observed = match observed_values(operations) {
        Ok(observed) => observed,
        Err((reason, at)) => return Err(Box::new(Violation::of(reason, operations, &at))),
    };
    let history = History {
        operations,
        observed_values: &observed,
        uses_look_ahead: true,
    };
    let all: Vec<usize> = (0..operations.len()).collect();
    let start = WalkConfiguration::new(RegisterState::EMPTY);
    let unknown = operations.iter().filter(|o| o.end.is_none()).count();
    match history.walk_events(&all, &[], start, u64::MAX) {
        Ok(states_max) => Ok(CheckStats {
            operations: operations.len() as u64,
            unknown_outcomes: unknown as u64,
            max_possible_states: states_max,
        }),
        Err(failed) => Err(Box::new(explain(&history, &failed))),
    }
}

/// Collects how values were found. Returns as an error a contradiction and its operations.
fn observed_values(operations: &[Operation]) -> Result<ObservedValues, (Reason, Vec<usize>)> {
    let mut writes = HashMap::new();
    for (i, operation) in operations.iter().enumerate() {
        if let RegisterAction::Write { value, .. } = operation.action
            && let Some(other) = writes.insert(value, i)
        {
            return Err((Reason::DuplicateValue, vec![other, i]));
        }
    }
    let mut versions: HashMap<u64, (u64, usize)> = HashMap::new();
    let mut found: HashMap<usize, u64> = HashMap::new();
    for (i, operation) in operations.iter().enumerate() {
        let Some(end) = operation.end else {
            continue;
        };
        let (value, version) = match end.outcome {
            OperationOutcome::FoundVersioned { value, version } => (value, Some(version)),
            OperationOutcome::FoundUnversioned { value } => (value, None),
            _ => continue,
        };
        let Some(&write) = writes.get(&value) else {
            return Err((Reason::ReadNeverWritten, vec![i]));
        };
        let set = &operations[write];
        if set.call_ns > end.at_ns {
            return Err((Reason::ReadBeforeWrite, vec![i, write]));
        }
        if set.end.is_some() && !set.may_change_register() {
            return Err((Reason::ReadRefusedWrite, vec![write, i]));
        }
        let Some(version) = version else {
            if set.end.is_none() {
                let first_ns = found.entry(write).or_insert(end.at_ns);
                *first_ns = end.at_ns.min(*first_ns);
            }
            continue;
        };
        let (first, other) = *versions.entry(value).or_insert((version, i));
        if first != version {
            return Err((Reason::TwoVersions, vec![write, other, i]));
        }
    }
    // For a value with a known version, the version says more.
    let has_version = |i: usize| match operations[i].action {
        RegisterAction::Write { value, .. } => versions.contains_key(&value),
        _ => false,
    };
    found.retain(|&i, _| !has_version(i));
    Ok(ObservedValues {
        version_by_value: versions.into_iter().map(|(k, (v, _))| (k, v)).collect(),
        first_return_ns_by_unversioned_write: found,
    })
}
