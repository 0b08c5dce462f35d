//! Lines of JSON about cases: the output of `--json`, and the output of the process in the virtual
//! machine.

use serde::{Deserialize, Serialize};

use super::record::{CaseResult, PackageVersions};
use crate::cargo_output::TestCounts;

/// One line of `--json`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "type", content = "data", rename_all = "snake_case")]
pub(crate) enum JsonLine {
    /// Versions of the packages that provide the programs, and of the kernel.
    Environment(PackageVersions),
    /// The outcome of a case.
    Case(CaseLine),
    /// The numbers of all cases by outcome.
    Total(TestCounts),
}

/// The outcome of one case, and its duration.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct CaseLine {
    pub(crate) target: String,
    #[serde(flatten)]
    pub(crate) result: CaseResult,
    /// Position of the case in its suite, from 0. Cases that run at the same time are reported in the
    /// order of their ends.
    pub(crate) number: usize,
    pub(crate) elapsed_s: f64,
    /// Last lines of the output of the case's programs, if the case did not pass.
    pub(crate) output: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::super::judge::Outcome;
    use super::*;

    #[test]
    fn lines_survive_the_way_out_of_the_machine() {
        let line = JsonLine::Case(CaseLine {
            target: "t".to_owned(),
            result: CaseResult {
                suite: "s".to_owned(),
                case: "c".to_owned(),
                outcome: Outcome::failed("why"),
            },
            number: 3,
            elapsed_s: 1.5,
            output: Some("a\nb".to_owned()),
        });
        let text = serde_json::to_string(&line).unwrap();
        assert!(!text.contains('\n'));
        let JsonLine::Case(case) = serde_json::from_str(&text).unwrap() else {
            panic!("{text}");
        };
        assert_eq!(case.result.outcome, Outcome::failed("why"));
        assert_eq!(case.output.as_deref(), Some("a\nb"));
    }
}
