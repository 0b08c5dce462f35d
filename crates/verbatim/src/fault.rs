//! `--fault PLAN`: runs a command under a fault plan and prints a summary of the faults that
//! struck.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use faults::{FAULT_COUNTS_VAR, FAULT_SEED_VAR, FAULT_VAR, FaultCounts, Plan};
use tempfile::TempDir;

use crate::program::temporary_memory_folder;

/// Arguments of commands whose verbs and packets can be made to fail.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct FaultArgs {
    /// Make things fail: rules such as 'verb=ibv_reg_mr,errno=ENOMEM,count=1; drop,p=0.01', or a TOML file of them (see
    /// docs/test-error-paths.md)
    #[arg(long, value_name = "PLAN")]
    fault: Vec<String>,
    /// Decides which occurrences a rule with a probability strikes [default: a new one each time, which is printed]
    #[arg(long, value_name = "N", requires = "fault")]
    fault_seed: Option<u64>,
}

/// A fault plan in force: the plan, its seed and the folder of its counts.
pub(crate) struct FaultPlanInForce {
    plan: Plan,
    seed: u64,
    counts_folder: TempDir,
}

impl FaultArgs {
    /// Returns true if a fault plan was given.
    pub(crate) fn is_wanted(&self) -> bool {
        !self.fault.is_empty()
    }

    /// Puts the plan into a command's environment.
    pub(crate) fn add_to_environment(
        &self,
        command: &mut Command,
    ) -> Result<Option<FaultPlanInForce>> {
        if self.fault.is_empty() {
            return Ok(None);
        }
        let plans: Result<Vec<_>> = self.fault.iter().map(|given| read_plan(given)).collect();
        let all: Vec<_> = plans?.iter().map(Plan::to_string).collect();
        let plan: Plan = all.join("; ").parse()?;
        let faulty = FaultPlanInForce {
            plan,
            seed: self.fault_seed.map_or_else(new_seed, Ok)?,
            counts_folder: temporary_memory_folder("verbatim-faults-")
                .context("cannot make a folder for what strikes")?,
        };
        command
            .env(FAULT_VAR, faulty.plan.to_string())
            .env(FAULT_SEED_VAR, faulty.seed.to_string())
            .env(FAULT_COUNTS_VAR, faulty.counts_folder.path());
        Ok(Some(faulty))
    }
}

/// Parses a plan in the text of the command line, or in the file that the text names.
fn read_plan(given: &str) -> Result<Plan> {
    let path = Path::new(given);
    let is_file = path
        .extension()
        .is_some_and(|extension| extension == "toml")
        || path.is_file();
    if !is_file {
        return given.parse().context("--fault: this is no plan");
    }
    let text = fs::read_to_string(path)
        .with_context(|| format!("--fault: cannot read {}", path.display()))?;
    let plan = Plan::from_toml(&text);
    plan.with_context(|| format!("--fault: {} is no plan", path.display()))
}

fn new_seed() -> Result<u64> {
    // The seed has 32 bits, short enough to type it from the screen.
    let seed = getrandom::u32().map_err(|error| anyhow::anyhow!("no random seed: {error}"))?;
    Ok(seed.into())
}

impl FaultPlanInForce {
    /// Prints the counts of the faults that struck, on standard error.
    pub(crate) fn print_struck_fault_counts(&self) -> Result<()> {
        let counts =
            faults::read_counts(self.counts_folder.path()).context("cannot read what struck")?;
        eprint!("{}", format_rule_counts(&self.plan, self.seed, &counts));
        Ok(())
    }
}

/// Lists each rule with its counts, and warns about rules that never struck.
fn format_rule_counts(plan: &Plan, seed: u64, counts: &FaultCounts) -> String {
    let mut text = format!("faults (repeat with --fault-seed {seed}):\n");
    let mut warnings = String::new();
    for (index, rule) in plan.rules().iter().enumerate() {
        let of = counts
            .counts_by_rule
            .get(index)
            .copied()
            .unwrap_or_default();
        let number = index + 1;
        text += &format!(
            "  {number}: {rule}: struck {} of {}\n",
            of.struck, of.matched
        );
        if of.struck > 0 {
            continue;
        }
        let why = if counts.process_count == 0 {
            "no process opened the device or simulated a cluster"
        } else if of.matched > 0 {
            "its p, after, every or count left nothing of what it is for"
        } else if rule.is_for_packets() {
            "no packet was like that; queue pairs of one host share memory and send none unless VERBATIM_PATH=packets (those of a simulated cluster always send packets)"
        } else {
            "nothing was like that"
        };
        warnings += &format!("warning: rule {number} never struck: {why}\n");
    }
    for (pid, kinds) in &counts.undestroyed_by_process {
        let kinds: Vec<_> = kinds
            .iter()
            .map(|(kind, n)| format!("{n} {kind}"))
            .collect();
        warnings += &format!(
            "warning: process {pid} ended with objects that it had not destroyed: {}\n",
            kinds.join(", ")
        );
    }
    text + &warnings
}

/// Refuses `--fault` for `--provider system`: only the software NIC injects faults.
pub(crate) fn refuse_faults_for_system_provider(args: &FaultArgs) -> Result<()> {
    if args.is_wanted() {
        bail!("--fault is for the software NIC; leave it out, or --provider system");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use faults::RuleCounts;

    #[test]
    fn a_summary_counts_and_warns() {
        let plan: Plan = "drop,p=0.5; verb=ibv_reg_mr,errno=EIO; verb=ibv_reg_mr,errno=EIO,after=9"
            .parse()
            .unwrap();
        let of = |matched, struck| RuleCounts { matched, struck };
        let counts = FaultCounts {
            process_count: 2,
            counts_by_rule: vec![of(0, 0), of(5, 5), of(5, 0)],
            undestroyed_by_process: vec![(17, [("ibv_cq".to_owned(), 2)].into())],
        };
        let text = format_rule_counts(&plan, 7, &counts);
        assert!(text.contains("--fault-seed 7"), "{text}");
        assert!(
            text.contains("2: verb=ibv_reg_mr,errno=EIO: struck 5 of 5\n"),
            "{text}"
        );
        assert!(text.contains("rule 1 never struck: no packet"), "{text}");
        assert!(text.contains("rule 3 never struck: its p"), "{text}");
        assert!(!text.contains("rule 2 never"), "{text}");
        assert!(
            text.contains("process 17 ended with objects that it had not destroyed: 2 ibv_cq\n"),
            "{text}"
        );
        let nobody = format_rule_counts(&plan, 7, &FaultCounts::default());
        assert!(
            nobody.contains("rule 2 never struck: no process"),
            "{nobody}"
        );
    }

    #[test]
    fn plans_come_from_lines_and_files() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("plan.toml");
        fs::write(&file, "[[rule]]\ndrop = true\n").unwrap();
        let from_file = read_plan(file.to_str().unwrap()).unwrap();
        assert_eq!(from_file, read_plan("drop").unwrap());
        let missing = read_plan("/nonexistent/plan.toml").unwrap_err();
        assert!(missing.to_string().contains("/nonexistent/plan.toml"));
        assert!(read_plan("drp").is_err());
    }
}
