//! The pages that show the records to readers: `RESULTS.md`, and the totals in the book.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result};

use super::judge::Outcome;
use super::record::{TargetRecord, counts, results_of_suite, write};
use super::suite::{Conformance, Suite, Target};
use crate::cargo_output::TestCounts;

/// Writes `RESULTS.md` and the totals in `docs/conformance.md` from the records of all targets.
///
/// # Errors
/// Returns an error if a record cannot be read, or a table cannot be written.
pub(crate) fn write_results_page_and_docs_totals(
    folder: &Path,
    conformance: &Conformance,
) -> Result<()> {
    write(
        &folder.join(RESULTS_PAGE),
        &results_page(folder, conformance)?,
    )?;
    let page = folder.join(DOCS_PAGE);
    write(&page, &page_with_new_totals(&page, folder, conformance)?)
}

/// Returns the text of the file `page`, with the totals computed from the records.
fn page_with_new_totals(page: &Path, folder: &Path, conformance: &Conformance) -> Result<String> {
    let name = page.display();
    let text = std::fs::read_to_string(page).with_context(|| format!("cannot read {name}"))?;
    let parts = text.split_once(TOTALS_BEGIN).and_then(|(before, rest)| {
        let (_, after) = rest.split_once(TOTALS_END)?;
        Some((before, after))
    });
    let (before, after) =
        parts.with_context(|| format!("{name} has no {TOTALS_BEGIN} and {TOTALS_END}"))?;
    let totals = totals(folder, conformance)?;
    Ok(format!(
        "{before}{TOTALS_BEGIN}\n{totals}{TOTALS_END}{after}"
    ))
}

/// Returns the numbers of cases of each suite that passed, failed and were skipped. The first table has a column for
/// each target that runs several suites, the second one a row for each suite of the other targets.
fn totals(folder: &Path, conformance: &Conformance) -> Result<String> {
    let mut columns = targets_with_records(folder, conformance)?;
    columns.retain(|(target, _)| target.client.is_none());
    let suites = |target: &Target| {
        conformance
            .suites
            .iter()
            .filter(|s| s.is_for(target))
            .count()
    };
    let (columns, others): (Vec<_>, Vec<_>) = columns
        .into_iter()
        .partition(|(target, _)| suites(target) > 1);
    let mut text = format!(
        "| passed / failed / skipped | built against | {} |\n|---{}|\n",
        names(&columns),
        rule(&columns)
    );
    for suite in &conformance.suites {
        if !columns.iter().any(|(target, _)| suite.is_for(target)) {
            continue;
        }
        text += &format!("| {} | {} |", suite.title, built_against(suite));
        for (target, record) in &columns {
            let counts = counts(results_of_suite(&record.results, suite));
            let cell = if suite.is_for(target) {
                cells(counts)
            } else {
                "–".to_owned()
            };
            text += &format!(" {cell} |");
        }
        text += "\n";
    }
    text += "\n| other targets | | passed / failed / skipped |\n|---|---|---|\n";
    for (target, record) in &others {
        for suite in conformance
            .suites
            .iter()
            .filter(|suite| suite.is_for(target))
        {
            let counts = counts(results_of_suite(&record.results, suite));
            text += &format!(
                "| {} | {} | {} |\n",
                target.name,
                suite.title,
                cells(counts)
            );
        }
    }
    Ok(text)
}

fn targets_with_records<'a>(
    folder: &Path,
    conformance: &'a Conformance,
) -> Result<Vec<(&'a Target, TargetRecord)>> {
    let targets = conformance.targets.iter();
    targets
        .map(|target| Ok((target, TargetRecord::load(folder, &target.name)?)))
        .collect()
}

/// Returns the text of `RESULTS.md`.
fn results_page(folder: &Path, conformance: &Conformance) -> Result<String> {
    let columns = targets_with_records(folder, conformance)?;
    let mut text = String::from(HEAD);
    for (target, record) in &columns {
        let versions: Vec<String> = record
            .environment
            .iter()
            .map(|(package, version)| format!("{package} {version}"))
            .collect();
        writeln!(
            text,
            "- **{}**: {} ({}).",
            target.name,
            target.title,
            versions.join(", ")
        )?;
    }
    text += "\n| suite | built against | target | passed | failed | skipped |\n|---|---|---|---|---|---|\n";
    for suite in &conformance.suites {
        for (target, record) in &columns {
            let results = results_of_suite(&record.results, suite);
            if suite.is_for(target) || !results.is_empty() {
                let row = columns_of_counts(counts(results));
                let (link, release) = (link(suite), built_against(suite));
                writeln!(text, "| {link} | {release} | {} | {row} |", target.name)?;
            }
        }
    }
    for (target, record) in &columns {
        let row = columns_of_counts(counts(&record.results));
        writeln!(text, "| **all** | | {} | {row} |", target.name)?;
    }
    for suite in &conformance.suites {
        let mut columns = columns.clone();
        columns.retain(|(target, record)| {
            suite.is_for(target) || !results_of_suite(&record.results, suite).is_empty()
        });
        let (names, rule) = (names(&columns), rule(&columns));
        writeln!(text, "\n## {}\n\n{}\n", suite.name, suite.title)?;
        let causes = skip_causes_with_counts(suite, &columns);
        if !causes.is_empty() {
            writeln!(text, "| skipped because | {names} |\n{rule}|")?;
            for (why, counts) in causes {
                let counts: Vec<String> = counts.iter().map(usize::to_string).collect();
                writeln!(text, "| {} | {} |", escape(why), counts.join(" | "))?;
            }
            text += "\n";
        }
        writeln!(text, "| case | {names} |\n{rule}|")?;
        let mut cases: Vec<&str> = Vec::new();
        for (_, record) in &columns {
            for result in results_of_suite(&record.results, suite) {
                if !cases.contains(&result.case.as_str()) {
                    cases.push(&result.case);
                }
            }
        }
        for case in cases {
            row(&mut text, &columns, &format!("`{case}`"), &|record| {
                let of_suite = results_of_suite(&record.results, suite);
                match of_suite.iter().find(|result| result.case == case) {
                    None => "not run".to_owned(),
                    Some(result) => match result.outcome.reason() {
                        None => result.outcome.word().to_owned(),
                        Some(why) => format!("**{}**: {}", result.outcome.word(), escape(why)),
                    },
                }
            });
        }
    }
    Ok(text)
}

/// Appends a row to a table.
fn row(
    text: &mut String,
    columns: &[(&Target, TargetRecord)],
    first: &str,
    cell: &dyn Fn(&TargetRecord) -> String,
) {
    *text += &format!("| {first} |");
    for (_, record) in columns {
        *text += &format!(" {} |", cell(record));
    }
    *text += "\n";
}

/// Returns the names of the columns.
fn names(columns: &[(&Target, TargetRecord)]) -> String {
    let names: Vec<&str> = columns.iter().map(|(t, _)| t.name.as_str()).collect();
    names.join(" | ")
}

/// Returns the line between the heading of a table and its rows.
fn rule(columns: &[(&Target, TargetRecord)]) -> String {
    "|---".repeat(columns.len() + 1)
}

/// Returns the causes of skipped cases of `suite`, each with the number of skipped cases on each target.
fn skip_causes_with_counts<'a>(
    suite: &'a Suite,
    columns: &[(&Target, TargetRecord)],
) -> Vec<(&'a str, Vec<usize>)> {
    const OTHER: &str = "see the reason of each";
    let known = suite.causes.iter().map(|cause| cause.why.as_str());
    let mut rows: Vec<(&str, Vec<usize>)> = known
        .chain([OTHER])
        .map(|why| (why, vec![0; columns.len()]))
        .collect();
    for (column, (_, record)) in columns.iter().enumerate() {
        for result in results_of_suite(&record.results, suite) {
            if let Outcome::Skipped { reason } = &result.outcome {
                let row = cause(suite, reason).unwrap_or(suite.causes.len());
                rows[row].1[column] += 1;
            }
        }
    }
    rows.retain(|(_, counts)| counts.iter().any(|&n| n > 0));
    rows
}

/// Returns the index of the cause in `suite` that matches the reason of a skip.
fn cause(suite: &Suite, reason: &str) -> Option<usize> {
    let mut causes = suite.causes.iter();
    causes.position(|cause| cause.skipped.is_match(reason))
}

const RESULTS_PAGE: &str = "RESULTS.md";
/// Path of the book's page with the totals, relative to the folder of the suites.
const DOCS_PAGE: &str = "../docs/conformance.md";
/// Lines that enclose the totals in that page.
const TOTALS_BEGIN: &str = "<!-- written by cargo xtask conformance --write -->";
const TOTALS_END: &str = "<!-- end of what it writes -->";

const HEAD: &str = "\
# Programs and suites of other projects on each target

Written by `cargo xtask conformance --write` from `results/`; [README.md](README.md) says what it means.

";

fn link(suite: &Suite) -> String {
    format!("[{0}](#{0})", suite.name)
}

/// Returns the release of rdma-core against which the programs of a suite were built, for a cell.
fn built_against(suite: &Suite) -> &str {
    suite.built_against.as_deref().unwrap_or("–")
}

/// Returns the counts for one cell, which no line break divides.
fn cells(counts: TestCounts) -> String {
    format!(
        "{}\u{a0}/\u{a0}{}\u{a0}/\u{a0}{}",
        counts.passed, counts.failed, counts.skipped
    )
}

/// Returns the counts for three cells.
fn columns_of_counts(counts: TestCounts) -> String {
    format!("{} | {} | {}", counts.passed, counts.failed, counts.skipped)
}

/// Escapes characters that a cell of a Markdown table may not hold.
fn escape(text: &str) -> String {
    let mut safe = String::new();
    for c in text.chars() {
        match c {
            '|' | '<' | '>' | '*' | '_' | '`' | '[' | ']' | '\\' => safe.extend(['\\', c]),
            c if c.is_control() => safe.push(' '),
            c => safe.push(c),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::super::record::CaseResult;
    use super::super::record::tests::{conformance, record, result, skipped};
    use super::super::suite::Kind;
    use super::*;

    /// Returns the cases that are recorded but no longer exist, and the cases that exist but are not recorded.
    fn stale(conformance: &Conformance, target: &Target, record: &TargetRecord) -> Vec<String> {
        let mut stale = Vec::new();
        for suite in conformance.suites.iter().filter(|s| s.is_for(target)) {
            // A suite of the kind `unittest` lists its cases only when it runs.
            let Kind::Programs(cases) = &suite.kind else {
                continue;
            };
            let recorded = results_of_suite(&record.results, suite);
            for case in cases.iter().filter(|case| case.is_for(target)) {
                if !recorded.iter().any(|result| result.case == case.name) {
                    stale.push(format!("{}: {} is not recorded", suite.name, case.name));
                }
            }
            for result in recorded {
                if !cases.iter().any(|case| case.name == result.case) {
                    stale.push(format!("{}: there is no {}", suite.name, result.case));
                }
            }
        }
        stale
    }

    #[test]
    fn the_page_has_each_target() {
        let folder = tempfile::tempdir().unwrap();
        let conformance = conformance(folder.path());
        let mut a = TargetRecord::default();
        let suites = conformance.select(&[]).unwrap();
        let new = record(&[
            result("one", Outcome::Passed),
            result("two", skipped("not | here")),
        ]);
        a.update(&conformance, &suites, new);
        a.store(folder.path(), "a").unwrap();
        let table = results_page(folder.path(), &conformance).unwrap();
        for line in [
            "- **a**: the a (linux 6.1).",
            "| [s](#s) | rdma-core 44 | a | 1 | 0 | 1 |",
            "| [s](#s) | rdma-core 44 | b | 0 | 0 | 0 |",
            "| **all** | | a | 1 | 0 | 1 |",
            "| of the weather | 1 | 0 |",
            "| `one` | passed | not run |",
            "| `two` | **skipped**: not \\| here | not run |",
        ] {
            assert!(table.lines().any(|l| l == line), "{line}\n{table}");
        }
        assert_eq!(
            stale(&conformance, &conformance.targets[0], &a),
            Vec::<String>::new()
        );
        assert_eq!(
            stale(
                &conformance,
                &conformance.targets[0],
                &TargetRecord::default()
            )
            .len(),
            2
        );
    }

    #[test]
    fn every_skip_is_counted_by_its_cause() {
        let folder = tempfile::tempdir().unwrap();
        let conformance = conformance(folder.path());
        let a = record(&[
            result("one", skipped("not here")),
            result("two", skipped("else")),
        ]);
        let columns = [
            (&conformance.targets[0], a),
            (&conformance.targets[1], TargetRecord::default()),
        ];
        assert_eq!(
            skip_causes_with_counts(&conformance.suites[0], &columns),
            [
                ("of the weather", vec![1, 0]),
                ("see the reason of each", vec![1, 0])
            ]
        );
    }

    /// The record of the targets that run without a virtual machine: no case fails, and every skip has a cause.
    #[test]
    fn the_record_of_the_drop_in_has_no_failure_and_no_unexplained_skip() {
        let folder = crate::paths::workspace().join("conformance");
        let conformance = Conformance::load(&folder).unwrap();
        let mut wrong = Vec::new();
        for target in conformance.targets(&[]).unwrap() {
            let record = TargetRecord::load(&folder, &target.name).unwrap();
            for suite in &conformance.suites {
                for CaseResult { case, outcome, .. } in results_of_suite(&record.results, suite) {
                    let right = match outcome {
                        Outcome::Passed => true,
                        Outcome::Failed { .. } => suite.unsteady(case, &target.name).is_some(),
                        Outcome::Skipped { reason } => cause(suite, reason).is_some(),
                    };
                    if !right {
                        wrong.push(format!("{}: {}: {case}", target.name, suite.name));
                    }
                }
            }
        }
        assert_eq!(wrong, Vec::<String>::new());
    }

    #[test]
    fn the_repositorys_table_is_current() {
        let folder = crate::paths::workspace().join("conformance");
        let conformance = Conformance::load(&folder).unwrap();
        let written = std::fs::read_to_string(folder.join(RESULTS_PAGE)).unwrap();
        assert!(
            written == results_page(&folder, &conformance).unwrap(),
            "conformance/RESULTS.md is not what conformance/results says: \
             cargo xtask conformance --write"
        );
        let page = folder.join(DOCS_PAGE);
        let written = std::fs::read_to_string(&page).unwrap();
        assert!(
            written == page_with_new_totals(&page, &folder, &conformance).unwrap(),
            "the totals in docs/conformance.md are not what conformance/results says: \
             cargo xtask conformance --write"
        );
        for target in &conformance.targets {
            let record = TargetRecord::load(&folder, &target.name).unwrap();
            assert_eq!(
                stale(&conformance, target, &record),
                Vec::<String>::new(),
                "{}",
                target.name
            );
        }
    }
}
