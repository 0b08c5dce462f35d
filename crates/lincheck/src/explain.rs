//! Finds the shortest part of a history that shows the violation.

use crate::Operation;
use crate::register::{RegisterContent, RegisterState};
use crate::search::{History, WalkConfiguration, WalkFailure};
use crate::violation::{Reason, Violation};

/// The longest window that is walked without look-ahead, to list the possible values before the misfit.
const MAX_OPERATIONS_TO_DESCRIBE: usize = 24;
/// The longest window from which operations are removed one by one.
const MAX_OPERATIONS_TO_SHRINK: usize = 512;

/// The operations of a window, and the possible states at its beginning.
struct FailingWindow {
    operations: Vec<usize>,
    /// Changes that were outstanding at the beginning of the window: they may have happened before.
    outstanding_changes_at_start: Vec<usize>,
    start_state: RegisterState,
    /// The time at which the misfit returns.
    misfit_return_ns: u64,
}

impl FailingWindow {
    fn find_failure(&self, history: &History<'_>) -> Option<WalkFailure> {
        let start = WalkConfiguration::new(self.start_state);
        let (all, optional) = (&self.operations, &self.outstanding_changes_at_start);
        history
            .walk_events(all, optional, start, self.misfit_return_ns)
            .err()
    }
}

/// Returns the violation at which a walk failed.
pub(crate) fn explain(history: &History<'_>, failed: &WalkFailure) -> Violation {
    let misfit = first_misfit(history, failed.impossible_operation_index);
    let mut window = shortest_failing_window(history, misfit);
    shrink(history, &mut window, misfit);
    let look_ahead = window.operations.len() + window.outstanding_changes_at_start.len()
        > MAX_OPERATIONS_TO_DESCRIBE;
    let failed = window.find_failure(&History {
        uses_look_ahead: look_ahead,
        ..*history
    });
    // A walk with look-ahead may have failed before the misfit.
    let failed = failed.filter(|failed| failed.impossible_operation_index == misfit);
    let failed = failed.map_or_else(Vec::new, |failed| failed.configurations_before);
    let has_version = |o: &Operation| o.end.is_some_and(|end| end.outcome.has_version());
    let versions = history.operations.iter().any(has_version);
    let describe = |c: &WalkConfiguration| describe_state(c.state, versions);
    let mut before: Vec<String> = failed.iter().map(describe).collect();
    before.sort();
    before.dedup();
    let is_known = |i: &&usize| history.must_happen_by_ns(**i).is_some();
    let mut shown: Vec<usize> = window.operations.iter().filter(is_known).copied().collect();
    let unknown = window.operations.len() - shown.len();
    shown.extend(&window.outstanding_changes_at_start);
    Violation {
        misfit: Some(history.operations[misfit]),
        unknown_outcome_count: unknown,
        states_before_misfit: before,
        ..Violation::of(Reason::NoValidOrder, history.operations, &shown)
    }
}

/// Returns the first operation at whose return no configuration is left. This is the operation at which the walk
/// failed, or a later one that the look-ahead foresaw.
fn first_misfit(history: &History<'_>, known: usize) -> usize {
    let end_of = |i: usize| history.operations[i].end.map(|end| end.at_ns);
    let all: Vec<usize> = (0..history.operations.len()).collect();
    let from = end_of(known).unwrap_or(0);
    let mut returns: Vec<(u64, usize)> = all
        .iter()
        .filter_map(|&i| Some((end_of(i)?, i)))
        .filter(|(at_ns, i)| *at_ns > from || *i == known)
        .collect();
    returns.sort_unstable();
    let fails = |place: usize| {
        let start = WalkConfiguration::new(RegisterState::EMPTY);
        history
            .walk_events(&all, &[], start, returns[place].0)
            .is_err()
    };
    // The first failing return is after `low`, and at `high` at the latest; mostly it is near.
    let (mut low, mut high) = (0, returns.len().saturating_sub(1));
    let mut step = 1;
    if returns.is_empty() || fails(0) {
        return known;
    }
    while low + step < high && !fails(low + step) {
        low += step;
        step *= 2;
    }
    high = high.min(low + step);
    while low + 1 < high {
        let middle = usize::midpoint(low, high);
        if fails(middle) {
            high = middle;
        } else {
            low = middle;
        }
    }
    returns[high].1
}

/// Returns the shortest window before the misfit in which the misfit still does not fit.
fn shortest_failing_window(history: &History<'_>, misfit: usize) -> FailingWindow {
    let end_of = |i: usize| history.must_happen_by_ns(i);
    let last = end_of(misfit).unwrap_or(u64::MAX);
    // Known operations are in the order from the last return to the first. All operations of unknown outcome are
    // included.
    let called = |i: &usize| history.operations[*i].call_ns <= last;
    let (unknown, mut known): (Vec<usize>, Vec<usize>) = (0..history.operations.len())
        .filter(called)
        .partition(|&i| end_of(i).is_none());
    known.sort_by_key(|&i| std::cmp::Reverse((end_of(i), i == misfit)));
    // An operation that returns after the misfit matters only if it may have happened before.
    let returned = known
        .iter()
        .position(|&i| end_of(i) <= Some(last))
        .unwrap_or(0);
    let shows = |length: usize| {
        let known = &known[..returned + length];
        window_if_failing(history, known, &unknown, misfit)
    };
    let most = known.len() - returned;
    let (mut length, mut found) = (1, None);
    while length < most {
        if let Some(window) = shows(length) {
            found = Some(window);
            break;
        }
        length *= 2;
    }
    // Finds the shortest length between the last that fits and the first that fails.
    let (mut low, mut high) = (length / 2, length);
    while found.is_some() && low + 1 < high {
        let middle = usize::midpoint(low, high);
        match shows(middle) {
            Some(window) => (high, found) = (middle, Some(window)),
            None => low = middle,
        }
    }
    found.unwrap_or(FailingWindow {
        operations: known.iter().chain(&unknown).copied().collect(),
        outstanding_changes_at_start: Vec::new(),
        start_state: RegisterState::EMPTY,
        misfit_return_ns: last,
    })
}

/// Returns the window of these operations if it fails from any starting state.
fn window_if_failing(
    history: &History<'_>,
    known: &[usize],
    unknown: &[usize],
    misfit: usize,
) -> Option<FailingWindow> {
    let operation = |i: usize| &history.operations[i];
    let begins = known
        .iter()
        .filter_map(|&i| history.must_happen_by_ns(i))
        .min()?;
    // The misfit must begin inside the window. Reads that were outstanding at its beginning are dropped.
    if operation(misfit).call_ns <= begins {
        return None;
    }
    let (under_way, mut inside): (Vec<usize>, Vec<usize>) =
        known.iter().partition(|&&i| operation(i).call_ns <= begins);
    let changes = |i: &usize| operation(*i).may_change_register();
    inside.extend(unknown);
    let window = FailingWindow {
        operations: inside,
        outstanding_changes_at_start: under_way.into_iter().filter(changes).collect(),
        start_state: RegisterState::ANYTHING,
        misfit_return_ns: history.must_happen_by_ns(misfit)?,
    };
    window.find_failure(history).map(|_| window)
}

/// Removes operations that do not change the register, as long as the window still fails.
fn shrink(history: &History<'_>, window: &mut FailingWindow, misfit: usize) {
    if window.operations.len() > MAX_OPERATIONS_TO_SHRINK {
        return;
    }
    let mut at = 0;
    while at < window.operations.len() {
        let i = window.operations[at];
        let operation = &history.operations[i];
        if i == misfit || operation.may_change_register() {
            at += 1;
            continue;
        }
        window.operations.remove(at);
        if window.find_failure(history).is_none() {
            window.operations.insert(at, i);
            at += 1;
        }
    }
}

/// Describes a state in words, with versions if the store reports them.
fn describe_state(state: RegisterState, versions: bool) -> String {
    let version = match (state.version_is_exact, state.version) {
        _ if !versions => String::new(),
        (true, version) => format!(", version {version}"),
        (false, version) => format!(", version {version} or later"),
    };
    match state.content {
        RegisterContent::Nothing => "nothing".to_owned(),
        RegisterContent::Value(value) | RegisterContent::NoLongerRead(value) => {
            format!("{value:#x}{version}")
        }
        RegisterContent::NeverRead => format!("a value of a change of unknown outcome{version}"),
        RegisterContent::Anything if state.version_is_exact => format!("some value{version}"),
        RegisterContent::Anything => "anything".to_owned(),
    }
}
