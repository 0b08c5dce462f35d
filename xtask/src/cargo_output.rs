//! Counts tests from the output of `cargo test`.
//!
//! cargo announces each test program with a `Running` or `Doc-tests` line. libtest prints `running
//! N tests` and, unless the program dies, `test result: …`. A test that starts itself as a child
//! process prints the child's results, too. Results therefore belong to sections, and a section's
//! result must have exactly the number of tests that the section announced.

use std::collections::HashMap;
use std::ops::AddAssign;

use serde::{Deserialize, Serialize};

/// The numbers of tests that passed, failed and were skipped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TestCounts {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) skipped: u64,
}

impl TestCounts {
    pub(crate) const ONE_PASSED: TestCounts = TestCounts {
        passed: 1,
        failed: 0,
        skipped: 0,
    };
    pub(crate) const ONE_FAILED: TestCounts = TestCounts {
        passed: 0,
        failed: 1,
        skipped: 0,
    };

    pub(crate) const ONE_SKIPPED: TestCounts = TestCounts {
        passed: 0,
        failed: 0,
        skipped: 1,
    };

    /// Returns the number of executed tests.
    pub(crate) fn executed_count(self) -> u64 {
        self.passed + self.failed
    }

    pub(crate) fn total(self) -> u64 {
        self.passed + self.failed + self.skipped
    }
}

impl AddAssign for TestCounts {
    fn add_assign(&mut self, other: TestCounts) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

/// A parser of the output of `cargo test`, fed line by line.
#[derive(Debug, Default)]
pub(crate) struct Parser {
    counts: TestCounts,
    section: Option<TestProgramSection>,
    findings: Findings,
    /// The lines that each test has printed, by test name.
    outputs: HashMap<String, Vec<String>>,
    /// The name of the test whose output is being read.
    test_being_printed: Option<String>,
}

/// Tests that the summary must report, by name.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Findings {
    /// Tests that failed.
    pub(crate) failed: Vec<Failure>,
    /// Tests that passed although they are recorded as failing.
    pub(crate) passed_though_recorded_as_failing: Vec<String>,
    /// Programs that announced tests without reporting their results.
    pub(crate) programs_without_result: Vec<String>,
}

/// A test that failed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Failure {
    pub(crate) name: String,
    /// The first lines of the test's output.
    pub(crate) output: Vec<String>,
}

/// The line that ends a test's output if no other line ends it.
pub(crate) const OUTPUT_ENDS: &str = "----";

/// Returns the line that precedes the output of the test `name`.
pub(crate) fn output_begins(name: &str) -> String {
    format!("---- {name} stdout ----")
}

/// The maximum number of lines that are kept of a failed test's output.
const MAX_KEPT_OUTPUT_LINES: usize = 40;

#[derive(Debug)]
struct TestProgramSection {
    name: String,
    /// True for doctests. The doctests of one crate run as several programs, whose results are
    /// added.
    doctests: bool,
    announced_tests: Option<u64>,
    last_reported_counts: Option<TestCounts>,
    reported_counts_sum: TestCounts,
    announced_tests_sum: u64,
}

impl Parser {
    /// Parses one line of the output, without its line end.
    pub(crate) fn parse_line(&mut self, line: &str) {
        self.keep_test_output(line);
        let text = line.trim_start();
        if line.starts_with(' ') {
            let begun = if let Some(name) = text.strip_prefix("Running ") {
                Some((name, false))
            } else {
                text.strip_prefix("Doc-tests ").map(|name| (name, true))
            };
            if let Some((name, doctests)) = begun {
                self.close_section_and_add_counts();
                self.section = Some(TestProgramSection {
                    name: name.to_owned(),
                    doctests,
                    announced_tests: None,
                    last_reported_counts: None,
                    reported_counts_sum: TestCounts::default(),
                    announced_tests_sum: 0,
                });
                return;
            }
        }
        let Some(section) = &mut self.section else {
            return;
        };
        if let Some(name) = failed(line) {
            self.findings.failed.push(Failure {
                name: name.to_owned(),
                output: Vec::new(),
            });
        } else if let Some(name) = parse_better_test(line) {
            self.findings
                .passed_though_recorded_as_failing
                .push(name.to_owned());
        } else if let Some(n) = announced(line) {
            section.announced_tests.get_or_insert(n);
            section.announced_tests_sum += n;
        } else if let Some(result) = result(line) {
            section.last_reported_counts = Some(result);
            section.reported_counts_sum += result;
        }
    }

    /// Keeps `line` if it belongs to a test's output. libtest prints the output of each failed test
    /// under the test's name.
    fn keep_test_output(&mut self, line: &str) {
        if let Some(name) = output_of(line) {
            self.test_being_printed = Some(name.to_owned());
        } else if line == OUTPUT_ENDS || line == "failures:" || result(line).is_some() {
            self.test_being_printed = None;
        } else if let Some(name) = &self.test_being_printed
            && !line.is_empty()
        {
            let lines = self.outputs.entry(name.clone()).or_default();
            if lines.len() < MAX_KEPT_OUTPUT_LINES {
                lines.push(line.to_owned());
            }
        }
    }

    fn close_section_and_add_counts(&mut self) {
        let Some(section) = self.section.take() else {
            return;
        };
        let (announced, result) = if section.doctests {
            (section.announced_tests_sum, section.reported_counts_sum)
        } else {
            // A child process of a test prints its result before the parent's.
            (
                section.announced_tests.unwrap_or(0),
                section.last_reported_counts.unwrap_or_default(),
            )
        };
        if result.total() == announced {
            self.counts += result;
        } else {
            self.counts += TestCounts::ONE_FAILED;
            self.findings.programs_without_result.push(section.name);
        }
    }

    /// Returns the counts and the tests to report. A program that did not report its tests counts
    /// as one failure.
    pub(crate) fn finish(mut self) -> (TestCounts, Findings) {
        self.close_section_and_add_counts();
        for failure in &mut self.findings.failed {
            failure.output = self.outputs.remove(&failure.name).unwrap_or_default();
        }
        (self.counts, self.findings)
    }
}

/// Parses `test a::b ... FAILED` → `a::b`.
fn failed(line: &str) -> Option<&str> {
    line.strip_prefix("test ")?.strip_suffix(" ... FAILED")
}

/// Parses `---- a::b stdout ----` → `a::b`.
fn output_of(line: &str) -> Option<&str> {
    line.strip_prefix("---- ")?.strip_suffix(" stdout ----")
}

/// Parses `test a::b ... ok, better: …` → `a::b`, as `cargo xtask conformance --check` prints it.
fn parse_better_test(line: &str) -> Option<&str> {
    let (name, _) = line
        .strip_prefix("test ")?
        .split_once(" ... ok, better: ")?;
    Some(name)
}

/// Parses `running 12 tests` → 12.
fn announced(line: &str) -> Option<u64> {
    let rest = line.strip_prefix("running ")?;
    let (number, noun) = rest.split_once(' ')?;
    matches!(noun.trim_end(), "test" | "tests")
        .then(|| number.parse().ok())
        .flatten()
}

/// Parses `test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 9 filtered out; …` → counts.
///
/// The text may follow other text on the line, since a child of a test may leave a line unfinished.
fn result(line: &str) -> Option<TestCounts> {
    let (_, rest) = line.split_once("test result: ")?;
    let (_, numbers) = rest.split_once(". ")?;
    let mut counts = TestCounts::default();
    let mut known = 0;
    for part in numbers.split(';') {
        let Some((number, what)) = part.trim().split_once(' ') else {
            continue;
        };
        let Ok(number) = number.parse::<u64>() else {
            continue;
        };
        match what {
            "passed" | "measured" => counts.passed += number,
            "failed" => counts.failed += number,
            "ignored" => counts.skipped += number,
            _ => continue,
        }
        known += 1;
    }
    (known >= 3).then_some(counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> (TestCounts, Vec<String>) {
        let (counts, findings) = parse_all(text);
        (counts, findings.programs_without_result)
    }

    fn parse_all(text: &str) -> (TestCounts, Findings) {
        let mut parser = Parser::default();
        text.lines().for_each(|line| parser.parse_line(line));
        parser.finish()
    }

    fn counts(passed: u64, failed: u64, skipped: u64) -> TestCounts {
        TestCounts {
            passed,
            failed,
            skipped,
        }
    }

    const OK3: &str = "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; \
                       0 filtered out; finished in 0.00s";

    #[test]
    fn one_program() {
        let text = format!(
            "   Compiling a v0.1.0\n     Running unittests src/lib.rs (target/debug/deps/a-1)\n\n\
             running 4 tests\ntest a ... ok\n{OK3}\n"
        );
        assert_eq!(parse(&text), (counts(3, 0, 1), vec![]));
    }

    #[test]
    fn failures_are_counted() {
        let text = "     Running tests/x.rs (target/debug/deps/x-1)\nrunning 2 tests\n\
                    test a::good ... ok\ntest a::bad ... FAILED\n\
                    test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; \
                    0 filtered out; finished in 0.01s\n";
        let (counted, findings) = parse_all(text);
        assert_eq!(counted, counts(1, 1, 0));
        assert_eq!(findings.failed.len(), 1);
        assert_eq!(findings.failed[0].name, "a::bad");
        assert!(findings.programs_without_result.is_empty());
    }

    #[test]
    fn a_failure_keeps_what_its_test_printed() {
        let text = "     Running tests/x.rs (target/debug/deps/x-1)\nrunning 2 tests\n\
                    test a::bad ... FAILED\ntest b ... FAILED\n\nfailures:\n\n\
                    ---- a::bad stdout ----\none\ntwo\n\n---- b stdout ----\nthree\n\n\n\
                    failures:\n    a::bad\n    b\n\n\
                    test result: FAILED. 0 passed; 2 failed; 0 ignored; 0 measured; \
                    0 filtered out; finished in 0.01s\n";
        let (_, findings) = parse_all(text);
        let told: Vec<_> = findings.failed.iter().map(|f| f.output.join(" ")).collect();
        assert_eq!(told, ["one two", "three"]);
    }

    #[test]
    fn a_cases_output_may_come_before_its_verdict() {
        let text = format!(
            "{}\nclient: said no\n{OUTPUT_ENDS}\nelsewhere\n     Running conformance on x\nrunning 1 tests\n\
             test a b ... FAILED\n  not as recorded\n\
             test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out\n",
            output_begins("a b")
        );
        let (_, findings) = parse_all(&text);
        assert_eq!(findings.failed[0].output, ["client: said no"]);
    }

    #[test]
    fn what_is_better_than_known_is_told() {
        let text = format!(
            "     Running tests/x.rs (x)\nrunning 4 tests\ntest a::b c ... ok, better: passed\n{OK3}\n"
        );
        let (counted, findings) = parse_all(&text);
        assert_eq!(counted, counts(3, 0, 1));
        assert_eq!(findings.passed_though_recorded_as_failing, ["a::b c"]);
    }

    #[test]
    fn several_programs_add_up() {
        let one = format!("     Running tests/x.rs (x)\nrunning 4 tests\n{OK3}\n");
        assert_eq!(parse(&one.repeat(3)), (counts(9, 0, 3), vec![]));
    }

    #[test]
    fn a_program_without_a_result_is_a_failure() {
        let text = format!(
            "     Running tests/x.rs (x)\nrunning 4 tests\ntest a ... ok\n\
             error: test failed, to rerun pass `--test x`\n\
             \u{20}    Running tests/y.rs (y)\nrunning 4 tests\n{OK3}\n"
        );
        assert_eq!(
            parse(&text),
            (counts(3, 1, 1), vec!["tests/x.rs (x)".into()])
        );
    }

    #[test]
    fn a_childs_result_is_not_its_parents() {
        let child = "running 1 test\ntest result: ok. 1 passed; 0 failed; 0 ignored; \
                     0 measured; 3 filtered out; finished in 0.00s\n";
        let text = format!("     Running tests/x.rs (x)\nrunning 4 tests\n{child}{child}{OK3}\n");
        assert_eq!(parse(&text), (counts(3, 0, 1), vec![]));
        let died = format!("     Running tests/x.rs (x)\nrunning 4 tests\n{child}");
        assert_eq!(
            parse(&died),
            (counts(0, 1, 0), vec!["tests/x.rs (x)".into()])
        );
    }

    #[test]
    fn doctests_of_one_crate_come_in_several_programs() {
        let text = format!(
            "   Doc-tests verbs\n\nrunning 4 tests\n{OK3}\n\nrunning 1 test\n\
             test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; \
             finished in 0.2s\n"
        );
        assert_eq!(parse(&text), (counts(4, 0, 1), vec![]));
    }

    #[test]
    fn nothing_that_runs_counts_nothing() {
        assert_eq!(
            parse("error: could not compile `a`\n").0.executed_count(),
            0
        );
        assert_eq!(parse("").0, TestCounts::default());
    }

    #[test]
    fn lines_that_only_look_alike() {
        assert_eq!(announced("running 3 tests"), Some(3));
        assert_eq!(announced("running 1 test"), Some(1));
        assert_eq!(announced("running three tests"), None);
        assert_eq!(announced("running 3 threads"), None);
        assert_eq!(result("test result: unknown"), None);
        assert_eq!(result("my test result: ok. 7 passed"), None);
    }
}
