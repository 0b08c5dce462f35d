//! Results that are kept in the repository, one file per target, and the comparison of a run with them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::judge::Outcome;
use super::suite::{Conformance, Suite};
use crate::cargo_output::TestCounts;

/// The outcomes of the cases on one target: `conformance/results/TARGET.jsonl`, whose first line is the
/// environment. Each further line is a result.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TargetRecord {
    pub(crate) environment: PackageVersions,
    pub(crate) results: Vec<CaseResult>,
}

/// Versions of the packages that provide the programs, by package; the kernel's version is under `linux`.
pub(crate) type PackageVersions = BTreeMap<String, String>;

/// The outcome of one case.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CaseResult {
    pub(crate) suite: String,
    pub(crate) case: String,
    #[serde(flatten)]
    pub(crate) outcome: Outcome,
}

/// Comparison of a case's result with the record.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Comparison {
    /// The case passed, as recorded.
    PassedAsRecorded,
    /// The case did not pass, as recorded, or its outcome is known to vary: the change under test is not the
    /// cause.
    NotPassedAsExpected(String),
    /// The case shows more than is recorded, such as on a machine that has a feature that the recording machine
    /// lacked.
    Better(String),
    /// The case shows less than is recorded, or is not recorded.
    WorseOrUnrecorded(String),
}

impl TargetRecord {
    /// Reads the record of `target`; returns an empty record if the file does not exist.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read or parsed.
    pub(crate) fn load(folder: &Path, target: &str) -> Result<TargetRecord> {
        let path = path(folder, target);
        if !path.exists() {
            return Ok(TargetRecord::default());
        }
        let name = path.display();
        let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {name}"))?;
        let mut lines = text.lines();
        let head = lines.next().unwrap_or_default();
        let environment =
            serde_json::from_str(head).with_context(|| format!("{name}, line 1 is not valid"))?;
        let results = lines
            .enumerate()
            .map(|(n, line)| {
                serde_json::from_str(line)
                    .with_context(|| format!("{name}, line {} is not valid", n + 2))
            })
            .collect::<Result<_>>()?;
        Ok(TargetRecord {
            environment,
            results,
        })
    }

    /// Returns true if the record was made with these versions.
    pub(crate) fn is_of(&self, versions: &PackageVersions) -> bool {
        versions
            .iter()
            .all(|(package, version)| self.environment.get(package) == Some(version))
    }

    /// Writes the record of `target`.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written.
    pub(crate) fn store(&self, folder: &Path, target: &str) -> Result<()> {
        let mut text = serde_json::to_string(&self.environment)?;
        for result in &self.results {
            text += "\n";
            text += &serde_json::to_string(result)?;
        }
        text += "\n";
        write(&path(folder, target), &text)
    }

    /// Replaces the recorded results of `suites` by `new`, in the order of the suites in `conformance`.
    pub(crate) fn update(
        &mut self,
        conformance: &Conformance,
        suites: &[&Suite],
        new: TargetRecord,
    ) {
        let replaced = |name: &str| suites.iter().any(|suite| suite.name == name);
        let mut all = std::mem::take(&mut self.results);
        all.retain(|result| !replaced(&result.suite));
        all.extend(new.results);
        for suite in &conformance.suites {
            let of_suite = all.iter().filter(|result| result.suite == suite.name);
            self.results.extend(of_suite.cloned());
        }
        self.environment.extend(new.environment);
    }

    /// Replaces the result `first` by the result of the same case in `again` if that result is better, and returns it.
    pub(crate) fn replace_by_better<'a>(
        &mut self,
        first: &CaseResult,
        again: &'a [CaseResult],
    ) -> Option<&'a CaseResult> {
        let same_case =
            |result: &CaseResult| (&result.suite, &result.case) == (&first.suite, &first.case);
        let second = again.iter().find(|result| same_case(result))?;
        let place = self.results.iter_mut().find(|result| same_case(result))?;
        (second.outcome.rank() > place.outcome.rank()).then(|| {
            place.clone_from(second);
            second
        })
    }

    /// Returns true if the record has an outcome of the same kind for the case of `now`.
    pub(crate) fn has_same_outcome(&self, now: &CaseResult) -> bool {
        let mut results = self.results.iter();
        results.any(|recorded| {
            (&recorded.suite, &recorded.case) == (&now.suite, &now.case)
                && recorded.outcome.rank() == now.outcome.rank()
        })
    }

    /// Compares the results of `suites` in `new` with this record.
    pub(crate) fn compare(
        &self,
        target: &str,
        suites: &[&Suite],
        new: &[CaseResult],
    ) -> Vec<(CaseResult, Comparison)> {
        let mut compared = Vec::new();
        for suite in suites {
            let before: Vec<&CaseResult> = results_of_suite(&self.results, suite);
            let now: Vec<&CaseResult> = results_of_suite(new, suite);
            for result in &now {
                let recorded = before.iter().find(|before| before.case == result.case);
                let unsteady = suite.unsteady(&result.case, target);
                let comparison = compare(target, recorded.map(|r| &r.outcome), result, unsteady);
                compared.push(((*result).clone(), comparison));
            }
            for lost in &before {
                if !now.iter().any(|result| result.case == lost.case) {
                    let comparison =
                        Comparison::WorseOrUnrecorded("recorded, but has no result".into());
                    compared.push(((*lost).clone(), comparison));
                }
            }
        }
        compared
    }
}

fn compare(
    target: &str,
    recorded: Option<&Outcome>,
    now: &CaseResult,
    unsteady: Option<&str>,
) -> Comparison {
    let said = |outcome: &Outcome| match outcome.reason() {
        None => outcome.word().to_owned(),
        Some(reason) => format!("{} ({reason})", outcome.word()),
    };
    match (recorded, &now.outcome) {
        (_, Outcome::Failed { .. } | Outcome::Skipped { .. }) if let Some(why) = unsteady => {
            Comparison::NotPassedAsExpected(format!("{target}: unsteady: {why}"))
        }
        (Some(_), Outcome::Passed) if unsteady.is_some() => Comparison::PassedAsRecorded,
        (None, outcome) => {
            Comparison::WorseOrUnrecorded(format!("{}, not recorded", said(outcome)))
        }
        (Some(recorded), outcome) if recorded.rank() != outcome.rank() => {
            let both = format!("{}, recorded as {}", said(outcome), said(recorded));
            if outcome.rank() > recorded.rank() {
                Comparison::Better(both)
            } else {
                Comparison::WorseOrUnrecorded(both)
            }
        }
        (Some(_), Outcome::Passed) => Comparison::PassedAsRecorded,
        (Some(_), Outcome::Failed { reason }) => {
            Comparison::NotPassedAsExpected(format!("{target}: known failure: {reason}"))
        }
        (Some(_), Outcome::Skipped { reason }) => {
            Comparison::NotPassedAsExpected(format!("{target}: {reason}"))
        }
    }
}

/// Returns the numbers of `results` that passed, failed and were skipped.
pub(crate) fn counts<'a>(results: impl IntoIterator<Item = &'a CaseResult>) -> TestCounts {
    let mut counts = TestCounts::default();
    for result in results {
        counts += match result.outcome {
            Outcome::Passed => TestCounts::ONE_PASSED,
            Outcome::Failed { .. } => TestCounts::ONE_FAILED,
            Outcome::Skipped { .. } => TestCounts::ONE_SKIPPED,
        };
    }
    counts
}

/// Returns the results that belong to a suite.
pub(super) fn results_of_suite<'a>(
    results: &'a [CaseResult],
    suite: &Suite,
) -> Vec<&'a CaseResult> {
    let of_suite = results.iter().filter(|result| result.suite == suite.name);
    of_suite.collect()
}

fn path(folder: &Path, target: &str) -> PathBuf {
    folder.join("results").join(format!("{target}.jsonl"))
}

/// Writes a file, and makes its folder.
///
/// # Errors
/// Returns an error if the file cannot be written.
pub(super) fn write(path: &Path, text: &str) -> Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("cannot make {}", folder.display()))?;
    }
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    #[test]
    fn a_second_run_replaces_a_result_only_if_it_is_better() {
        let result = |case: &str, outcome| CaseResult {
            suite: "s".to_owned(),
            case: case.to_owned(),
            outcome,
        };
        let failed = |case| result(case, Outcome::failed("no message in a second"));
        let mut record = TargetRecord {
            environment: PackageVersions::new(),
            results: vec![failed("one"), failed("two"), failed("three")],
        };
        let again = [
            result("one", Outcome::Passed),
            result("two", Outcome::failed("again")),
        ];
        for case in ["one", "two", "three"] {
            let better = record.replace_by_better(&failed(case), &again);
            assert_eq!(better.is_some(), case == "one", "{case}");
        }
        let expected = [
            result("one", Outcome::Passed),
            failed("two"),
            failed("three"),
        ];
        assert_eq!(record.results, expected);
    }

    pub(in super::super) fn conformance(folder: &Path) -> Conformance {
        let target = |name: &str| {
            format!(
                "[{name}]\ntitle = \"the {name}\"\nmachine = \"host\"\npackages = []\n\
                 device = \"d\"\ngid_index = 0\nlink_layer = \"Ethernet\"\nserver = \"::1\"\ncm_listeners = {{ command = \"true\", line = \".\" }}\n"
            )
        };
        let targets = format!("{}{}", target("a"), target("b"));
        std::fs::write(folder.join("targets.toml"), targets).unwrap();
        let suite = "title = \"All of it\"\nbuilt_against = \"rdma-core 44\"\norder = 1\npackages = []\ntimeout_s = 1\n\
             [[case]]\nname = \"one\"\nalone = \"true\"\n\
             [[case]]\nname = \"two\"\nalone = \"true\"\n\
             [[unsteady]]\ncase = \"two\"\non = [\"b\"]\nwhy = \"a race\"\n\
             [[cause]]\nskipped = \"^not\"\nwhy = \"of the weather\"\n";
        std::fs::write(folder.join("s.toml"), suite).unwrap();
        Conformance::load(folder).unwrap()
    }

    pub(in super::super) fn result(case: &str, outcome: Outcome) -> CaseResult {
        CaseResult {
            suite: "s".to_owned(),
            case: case.to_owned(),
            outcome,
        }
    }

    pub(in super::super) fn skipped(reason: &str) -> Outcome {
        Outcome::Skipped {
            reason: reason.to_owned(),
        }
    }

    pub(in super::super) fn record(results: &[CaseResult]) -> TargetRecord {
        TargetRecord {
            environment: PackageVersions::from([("linux".to_owned(), "6.1".to_owned())]),
            results: results.to_vec(),
        }
    }

    #[test]
    fn a_record_survives_its_file() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(
            TargetRecord::load(folder.path(), "a").unwrap(),
            TargetRecord::default()
        );
        let before = record(&[
            result("one", Outcome::Passed),
            result("two", Outcome::failed("a \"b\"\nc")),
            result("three", skipped("why")),
        ]);
        before.store(folder.path(), "a").unwrap();
        assert_eq!(TargetRecord::load(folder.path(), "a").unwrap(), before);
        std::fs::write(path(folder.path(), "a"), "{}\n{\"suite\": 1}\n").unwrap();
        let err = TargetRecord::load(folder.path(), "a").unwrap_err();
        assert!(format!("{err:#}").contains("line 2"), "{err:#}");
    }

    #[test]
    fn the_record_is_a_floor() {
        let folder = tempfile::tempdir().unwrap();
        let conformance = conformance(folder.path());
        let suites = conformance.select(&[]).unwrap();
        let compare = |before: &[CaseResult], now: CaseResult, target: &str| {
            let compared = record(before).compare(target, &suites, &[now]);
            assert_eq!(compared.len(), 1, "{compared:?}");
            compared.into_iter().next().unwrap().1
        };
        let fails = || Outcome::failed("e");
        let known = [result("one", fails())];
        assert_eq!(
            compare(&known, result("one", fails()), "a"),
            Comparison::NotPassedAsExpected("a: known failure: e".to_owned())
        );
        assert_eq!(
            compare(&known, result("one", Outcome::Passed), "a"),
            Comparison::Better("passed, recorded as failed (e)".to_owned())
        );
        assert_eq!(
            compare(&known, result("one", skipped("w")), "a"),
            Comparison::Better("skipped (w), recorded as failed (e)".to_owned())
        );
        let not_here = [result("one", skipped("w"))];
        assert_eq!(
            compare(&not_here, result("one", Outcome::Passed), "a"),
            Comparison::Better("passed, recorded as skipped (w)".to_owned())
        );
        assert_eq!(
            compare(&not_here, result("one", fails()), "a"),
            Comparison::WorseOrUnrecorded("failed (e), recorded as skipped (w)".to_owned())
        );
        let passed = [result("one", Outcome::Passed)];
        assert_eq!(
            compare(&passed, result("one", Outcome::Passed), "a"),
            Comparison::PassedAsRecorded
        );
        assert_eq!(
            compare(&passed, result("one", skipped("w")), "a"),
            Comparison::WorseOrUnrecorded("skipped (w), recorded as passed".to_owned())
        );
        assert_eq!(
            compare(
                &[result("one", skipped("v"))],
                result("one", skipped("w")),
                "a"
            ),
            Comparison::NotPassedAsExpected("a: w".to_owned())
        );
        assert_eq!(
            compare(&[], result("one", Outcome::Passed), "a"),
            Comparison::WorseOrUnrecorded("passed, not recorded".to_owned())
        );
        // The case is unsteady on the target b only.
        let passed = [result("two", Outcome::Passed)];
        assert_eq!(
            compare(&passed, result("two", fails()), "b"),
            Comparison::NotPassedAsExpected("b: unsteady: a race".to_owned())
        );
        assert!(matches!(
            compare(&passed, result("two", fails()), "a"),
            Comparison::WorseOrUnrecorded(_)
        ));
    }

    #[test]
    fn a_case_is_recorded_by_its_suite_and_name_and_kind_of_outcome() {
        let record = record(&[
            result("a", Outcome::failed("x")),
            result("b", Outcome::Passed),
        ]);
        assert!(record.has_same_outcome(&result("a", Outcome::failed("for another reason"))));
        assert!(!record.has_same_outcome(&result("b", Outcome::failed("x"))));
        assert!(!record.has_same_outcome(&result("c", Outcome::failed("x"))));
        let elsewhere = CaseResult {
            suite: "t".to_owned(),
            ..result("a", Outcome::failed("x"))
        };
        assert!(!record.has_same_outcome(&elsewhere));
    }

    #[test]
    fn a_lost_result_is_different() {
        let folder = tempfile::tempdir().unwrap();
        let conformance = conformance(folder.path());
        let suites = conformance.select(&[]).unwrap();
        let before = record(&[result("one", Outcome::Passed)]);
        let compared = before.compare("a", &suites, &[]);
        assert_eq!(
            compared[0].1,
            Comparison::WorseOrUnrecorded("recorded, but has no result".to_owned())
        );
    }
}
