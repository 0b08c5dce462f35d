//! The output of Python's `unittest` with `-v`, from Python 3.11 on.

use std::collections::{HashMap, HashSet};

use super::judge::Outcome;

/// The results that a run of a unittest suite has reported.
#[derive(Debug, Default)]
pub(crate) struct UnittestReport {
    /// Outcomes in the order in which they were printed. If the preparation of a class fails, the
    /// class counts as a test `setUpClass (module.Class)`.
    outcomes: Vec<(String, Outcome)>,
    /// The test that has begun last and has no outcome yet.
    pub(crate) unfinished_test: Option<String>,
    /// True if the run has printed its summary.
    pub(crate) has_printed_summary: bool,
}

impl UnittestReport {
    /// Parses `output`.
    pub(crate) fn parse(output: &str) -> UnittestReport {
        let mut report = UnittestReport::default();
        let mut errors = HashMap::new();
        let mut lines = output.lines().peekable();
        while let Some(line) = lines.next() {
            if let Some(id) = error_heading(line) {
                let mut reason = String::new();
                // The traceback stands between two rules; its last line contains the reason.
                lines.next_if(|line| is_rule(line));
                while let Some(line) = lines.next_if(|line| !is_rule(line)) {
                    if !line.trim().is_empty() {
                        line.trim().clone_into(&mut reason);
                    }
                }
                errors.insert(id, reason);
                continue;
            }
            if line.starts_with("Ran ") && line.contains(" in ") {
                report.has_printed_summary = true;
            }
            if let Some(id) = parse_test_line(line) {
                report.unfinished_test = Some(id);
            }
            // Output of the test itself may stand between its name and its outcome.
            if report.unfinished_test.is_some()
                && let Some(outcome) = outcome(line)
                && let Some(id) = report.unfinished_test.take()
            {
                report.outcomes.push((id, outcome));
            }
        }
        for (id, outcome) in &mut report.outcomes {
            if let (Outcome::Failed { reason }, Some(why)) = (outcome, errors.remove(id)) {
                *reason = why;
            }
        }
        report
    }

    /// Returns the outcomes of those of `tests` that have an outcome.
    pub(crate) fn outcomes_of(&self, tests: &HashSet<&str>) -> Vec<(String, Outcome)> {
        let mut all: Vec<(String, Outcome)> = Vec::new();
        for (id, outcome) in &self.outcomes {
            if let Some(class) = id.strip_prefix("setUpClass ") {
                let mut members: Vec<&str> = tests.iter().copied().collect();
                members.retain(|test| test.rsplit_once('.').is_some_and(|(c, _)| c == class));
                members.sort_unstable();
                all.extend(members.into_iter().map(|m| (m.to_owned(), outcome.clone())));
            } else if tests.contains(id.as_str()) {
                all.push((id.clone(), outcome.clone()));
            }
        }
        all
    }
}

/// Returns the tests that the suite lists: dotted names, one per line.
pub(crate) fn listed(output: &str) -> Vec<String> {
    let is_name = |line: &&str| {
        line.split('.').count() >= 3
            && line.split('.').all(|part| {
                !part.is_empty() && part.chars().all(|c| c.is_alphanumeric() || c == '_')
            })
    };
    output
        .lines()
        .map(str::trim)
        .filter(is_name)
        .map(str::to_owned)
        .collect()
}

/// Parses `test_a (tests.test_x.Y.test_a) …` → `tests.test_x.Y.test_a`.
fn parse_test_line(line: &str) -> Option<String> {
    let (name, rest) = line.split_once(" (")?;
    let (path, _) = rest.split_once(')')?;
    if !path.contains('.') {
        return None;
    }
    if name == "setUpClass" {
        return Some(format!("{name} {path}"));
    }
    path.rsplit('.')
        .next()
        .is_some_and(|last| last == name)
        .then(|| path.to_owned())
}

fn error_heading(line: &str) -> Option<String> {
    let rest = line
        .strip_prefix("ERROR: ")
        .or_else(|| line.strip_prefix("FAIL: "))?;
    parse_test_line(rest)
}

fn is_rule(line: &str) -> bool {
    line.len() >= 70 && (line.bytes().all(|b| b == b'-') || line.bytes().all(|b| b == b'='))
}

fn outcome(line: &str) -> Option<Outcome> {
    // The outcome stands behind ` ... `, or at the start of a line if the test has printed output.
    let word = line.rsplit_once(" ... ").map_or(line, |(_, word)| word);
    match word {
        "ok" | "expected failure" => return Some(Outcome::Passed),
        "ERROR" | "FAIL" => return Some(Outcome::failed(word)),
        "unexpected success" => return Some(Outcome::failed(word)),
        _ => {}
    }
    let at = line.rfind("... skipped ").map(|at| at + "... ".len());
    let quoted = line[at.unwrap_or(0)..].strip_prefix("skipped ")?;
    let quote = quoted.chars().next().filter(|c| matches!(c, '\'' | '"'))?;
    let reason = quoted.strip_prefix(quote)?.strip_suffix(quote)?;
    Some(Outcome::Skipped {
        reason: reason.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "\
test_create_ah (tests.test_addr.AHTest.test_create_ah)
Test ibv_create_ah. ... ok
test_cas (tests.test_atomic.AtomicTest.test_cas) ... ok
test_xrc (tests.test_atomic.AtomicTest.test_xrc) ... skipped 'Create XRCD is not supported'
test_tm (tests.test_tm.TMTest.test_tm)
Test tags, ... skipped \"Device rxe0 doesn't have net interface\"
test_noisy (tests.test_tm.TMTest.test_noisy) ... a warning (of no.use) is printed
ok
test_qp_ex_rc_atomic_write (tests.test_qpex.QpExTestCase.test_qp_ex_rc_atomic_write) ... ERROR
setUpClass (tests.test_mlx5.Vfio) ... skipped 'no vfio'
test_wrong (tests.test_qpex.QpExTestCase.test_wrong) ... FAIL

======================================================================
ERROR: test_qp_ex_rc_atomic_write (tests.test_qpex.QpExTestCase.test_qp_ex_rc_atomic_write)
----------------------------------------------------------------------
Traceback (most recent call last):
  File \"/x/tests/test_qpex.py\", line 242, in test_qp_ex_rc_atomic_write
    u.rdma_traffic(client, server, self.iters, self.gid_index, self.ib_port,
pyverbs.pyverbs_error.PyverbsRDMAError: Completion status is local QP operation error

======================================================================
FAIL: test_wrong (tests.test_qpex.QpExTestCase.test_wrong)
----------------------------------------------------------------------
AssertionError: 1 != 2

----------------------------------------------------------------------
Ran 8 tests in 12.107s

FAILED (failures=1, errors=1, skipped=3)
";

    fn skipped(reason: &str) -> Outcome {
        Outcome::Skipped {
            reason: reason.to_owned(),
        }
    }

    #[test]
    fn every_form_of_outcome_is_understood() {
        let report = UnittestReport::parse(OUTPUT);
        assert!(report.has_printed_summary);
        assert_eq!(report.unfinished_test, None);
        let tests = HashSet::from([
            "tests.test_addr.AHTest.test_create_ah",
            "tests.test_atomic.AtomicTest.test_xrc",
            "tests.test_tm.TMTest.test_tm",
            "tests.test_tm.TMTest.test_noisy",
            "tests.test_qpex.QpExTestCase.test_qp_ex_rc_atomic_write",
            "tests.test_mlx5.Vfio.test_b",
            "tests.test_mlx5.Vfio.test_a",
            "tests.test_mlx5.VfioMore.test_a",
            "tests.test_qpex.QpExTestCase.test_wrong",
        ]);
        let expected = [
            ("tests.test_addr.AHTest.test_create_ah", Outcome::Passed),
            (
                "tests.test_atomic.AtomicTest.test_xrc",
                skipped("Create XRCD is not supported"),
            ),
            (
                "tests.test_tm.TMTest.test_tm",
                skipped("Device rxe0 doesn't have net interface"),
            ),
            ("tests.test_tm.TMTest.test_noisy", Outcome::Passed),
            (
                "tests.test_qpex.QpExTestCase.test_qp_ex_rc_atomic_write",
                Outcome::failed(
                    "pyverbs.pyverbs_error.PyverbsRDMAError: \
                     Completion status is local QP operation error",
                ),
            ),
            ("tests.test_mlx5.Vfio.test_a", skipped("no vfio")),
            ("tests.test_mlx5.Vfio.test_b", skipped("no vfio")),
            (
                "tests.test_qpex.QpExTestCase.test_wrong",
                Outcome::failed("AssertionError: 1 != 2"),
            ),
        ];
        let expected: Vec<_> = expected.map(|(id, o)| (id.to_owned(), o)).into();
        assert_eq!(report.outcomes_of(&tests), expected);
    }

    #[test]
    fn a_run_that_dies_names_the_test() {
        let cut = OUTPUT.find("ERROR").unwrap();
        let report = UnittestReport::parse(&OUTPUT[..cut]);
        assert!(!report.has_printed_summary);
        assert_eq!(
            report.unfinished_test.as_deref(),
            Some("tests.test_qpex.QpExTestCase.test_qp_ex_rc_atomic_write")
        );
        assert_eq!(report.outcomes.len(), 5);
    }

    #[test]
    fn only_names_of_tests_are_listed() {
        let output = "tests.test_addr.AHTest.test_create_ah\n\n------\nRan 0 tests in 0.000s\n\
             a sentence. With dots. In it\ntests.x\nOK\n";
        assert_eq!(listed(output), ["tests.test_addr.AHTest.test_create_ah"]);
    }
}
