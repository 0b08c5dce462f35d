//! What is wrong with a history, and the shortest piece of it that shows so.

use std::fmt;

use crate::register::{Content, State};
use crate::search::{Configuration, Failed, History};
use crate::{Action, Condition, Operation, Outcome};

/// Why a history is not linearizable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// The last operation fits into no order of those of the window, whatever the register held before.
    Order,
    /// A read found a value that nobody set.
    FromNowhere,
    /// A read found a value before it was set.
    FromTheFuture,
    /// A read found a value that was refused.
    WasRefused,
    /// A value was found with two versions.
    TwoVersions,
    /// Two writes set the same value: the history cannot be judged.
    SetTwice,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Order => "no order of these operations gives what they came to",
            Self::FromNowhere => "a value was read that nobody set",
            Self::FromTheFuture => "a value was read before it was set",
            Self::WasRefused => "a value was read whose write had been refused",
            Self::TwoVersions => "a value was read with two versions",
            Self::SetTwice => "a value was set twice, which a history may not have",
        })
    }
}

/// A history that is not linearizable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Why.
    pub reason: Reason,
    /// The operations that show it, in the order of their calls; the last [`MOST_SHOWN`] to return if they are more.
    pub window: Vec<Operation>,
    /// How many more they are.
    pub left_out: usize,
    /// With [`Reason::Order`], the one of them that fits nowhere.
    pub misfit: Option<Operation>,
    /// What the register can have held before that one returned.
    pub before: Vec<String>,
    /// Changes of unknown outcome that were called before, and do not explain it either.
    pub unknown: usize,
}

impl std::error::Error for Violation {}

/// The longest window that is made as small as it can be.
const MOST_TO_SHRINK: usize = 512;
/// The most operations of a [`Violation::window`]: people read it.
pub const MOST_SHOWN: usize = 64;

impl Violation {
    pub(crate) fn of(reason: Reason, operations: &[Operation], at: &[usize]) -> Self {
        let mut window: Vec<Operation> = at.iter().map(|&i| operations[i]).collect();
        window.sort_by_key(|o| std::cmp::Reverse(o.end.map(|end| end.at_ns)));
        let left_out = window.len().saturating_sub(MOST_SHOWN);
        window.truncate(MOST_SHOWN);
        window.sort_by_key(|o| o.call_ns);
        Self {
            reason,
            window,
            left_out,
            misfit: None,
            before: Vec::new(),
            unknown: 0,
        }
    }
}

/// The operations of a window that begins somewhere, and how it can begin.
struct Window {
    operations: Vec<usize>,
    /// Changes that were under way where it begins: they may have happened before.
    optional: Vec<usize>,
    start: State,
    /// When the operation returns that does not fit.
    until_ns: u64,
}

impl Window {
    fn walk(&self, history: &History<'_>) -> Option<Failed> {
        let start = Configuration::new(self.start);
        let (all, optional) = (&self.operations, &self.optional);
        history.walk(all, optional, start, self.until_ns).err()
    }
}

/// The violation that a walk ran into.
pub(crate) fn explain(history: &History<'_>, failed: &Failed) -> Violation {
    let end_of = |i: usize| history.operations[i].end.map(|end| end.at_ns);
    let last = end_of(failed.operation).unwrap_or(u64::MAX);
    // From the last to return on; and all of unknown outcome.
    let called = |i: &usize| history.operations[*i].call_ns <= last;
    let (unknown, mut known): (Vec<usize>, Vec<usize>) = (0..history.operations.len())
        .filter(called)
        .partition(|&i| end_of(i).is_none());
    known.sort_by_key(|&i| std::cmp::Reverse((end_of(i), i == failed.operation)));
    // What returns later matters only if it may have happened before.
    let returned = known
        .iter()
        .position(|&i| end_of(i) <= Some(last))
        .unwrap_or(0);
    let shows = |length: usize| {
        let known = &known[..returned + length];
        window(history, known, &unknown, failed.operation)
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
    // The shortest between the last that does not show it and the first that does.
    let (mut low, mut high) = (length / 2, length);
    while found.is_some() && low + 1 < high {
        let middle = usize::midpoint(low, high);
        match shows(middle) {
            Some(window) => (high, found) = (middle, Some(window)),
            None => low = middle,
        }
    }
    let mut window = found.unwrap_or(Window {
        operations: known.iter().chain(&unknown).copied().collect(),
        optional: Vec::new(),
        start: State::EMPTY,
        until_ns: last,
    });
    let culprit = failed.operation;
    shrink(history, &mut window, culprit);
    let failed = window
        .walk(history)
        .map_or_else(|| failed.before.clone(), |f| f.before);
    let mut before: Vec<String> = failed.iter().map(|c| describe(c.state)).collect();
    before.sort();
    before.dedup();
    let is_known = |i: &&usize| history.operations[**i].end.is_some();
    let mut shown: Vec<usize> = window.operations.iter().filter(is_known).copied().collect();
    let unknown = window.operations.len() - shown.len();
    shown.extend(&window.optional);
    Violation {
        misfit: Some(history.operations[culprit]),
        unknown,
        before,
        ..Violation::of(Reason::Order, history.operations, &shown)
    }
}

/// The window of these operations, if it fails on its own, whatever was before.
fn window(
    history: &History<'_>,
    known: &[usize],
    unknown: &[usize],
    culprit: usize,
) -> Option<Window> {
    let operation = |i: usize| &history.operations[i];
    let ends = known.iter().filter_map(|&i| operation(i).end);
    let begins = ends.map(|end| end.at_ns).min()?;
    // The one that does not fit must not have been able to happen before, and what changes nothing is of no account if
    // it was.
    if operation(culprit).call_ns <= begins {
        return None;
    }
    let (under_way, mut inside): (Vec<usize>, Vec<usize>) =
        known.iter().partition(|&&i| operation(i).call_ns <= begins);
    let changes = |i: &usize| operation(*i).changes();
    inside.extend(unknown);
    let window = Window {
        operations: inside,
        optional: under_way.into_iter().filter(changes).collect(),
        start: State::ANYTHING,
        until_ns: operation(culprit).end?.at_ns,
    };
    window.walk(history).map(|_| window)
}

/// Leaves out operations that change nothing, as long as it fails without them.
fn shrink(history: &History<'_>, window: &mut Window, culprit: usize) {
    if window.operations.len() > MOST_TO_SHRINK {
        return;
    }
    let mut at = 0;
    while at < window.operations.len() {
        let i = window.operations[at];
        let operation = &history.operations[i];
        if i == culprit || operation.changes() {
            at += 1;
            continue;
        }
        window.operations.remove(at);
        if window.walk(history).is_none() {
            window.operations.insert(at, i);
            at += 1;
        }
    }
}

fn describe(state: State) -> String {
    let version = match (state.exact, state.version) {
        (true, version) => format!("version {version}"),
        (false, version) => format!("version {version} or later"),
    };
    match state.content {
        Content::Nothing => "nothing".to_owned(),
        Content::Value(value) => format!("{value:#x}, {version}"),
        Content::Unseen => format!("a value of a change of unknown outcome, {version}"),
        Content::Anything if state.exact => format!("some value, {version}"),
        Content::Anything => "anything".to_owned(),
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read => f.write_str("GET"),
            Self::Write { value, condition } => {
                write!(f, "PUT {value:#x}")?;
                match condition {
                    Condition::Always => Ok(()),
                    Condition::Absent => f.write_str(" if absent"),
                    Condition::Present => f.write_str(" if present"),
                    Condition::Version(version) => write!(f, " if version {version}"),
                }
            }
            Self::Remove { version: None } => f.write_str("DELETE"),
            Self::Remove { version: Some(v) } => write!(f, "DELETE if version {v}"),
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Value { value, version } => write!(f, "{value:#x}, version {version}"),
            Self::Absent => f.write_str("not there"),
            Self::Done { version } => write!(f, "done, version {version}"),
            Self::Refused { version: 0 } => f.write_str("refused, not there"),
            Self::Refused { version } => write!(f, "refused, version {version} is there"),
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}:", self.reason)?;
        let begin = self.window.first().map_or(0, |o| o.call_ns);
        #[expect(clippy::cast_precision_loss, reason = "microseconds for people")]
        let us = |ns: u64| ns.saturating_sub(begin) as f64 / 1e3;
        writeln!(f, "{:>12} {:>12}  client", "called, µs", "returned")?;
        for o in &self.window {
            write!(f, "{:>12.3} ", us(o.call_ns))?;
            match o.end {
                Some(end) => write!(f, "{:>12.3}", us(end.at_ns))?,
                None => write!(f, "{:>12}", "never")?,
            }
            write!(f, "  {:>6}  {}", o.process, o.action)?;
            if let Some(end) = o.end {
                write!(f, " -> {}", end.outcome)?;
            }
            let fits = self.misfit != Some(*o);
            writeln!(f, "{}", if fits { "" } else { "   fits nowhere" })?;
        }
        if self.left_out > 0 {
            writeln!(f, "and {} operations that returned before", self.left_out)?;
        }
        if !self.before.is_empty() {
            writeln!(
                f,
                "before that one returned there can have been: {}",
                self.before.join("; ")
            )?;
        }
        if self.unknown > 0 {
            writeln!(
                f,
                "{} changes of unknown outcome, called before, explain it neither",
                self.unknown
            )?;
        }
        Ok(())
    }
}
