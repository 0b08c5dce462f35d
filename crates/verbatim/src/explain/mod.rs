//! `verbatim explain`: the cost of a program's verbs on a NIC, the guidelines that the program breaks, and the gain
//! of following them.

mod compare;
mod contents;
mod guidelines_page;
mod html;
mod process_groups;
mod report;
mod spread;
mod text;
mod verdict;

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use tap::Ledger;

use crate::CommandOutcome;
use crate::model::NicsArgs;
use crate::output::{print_line, print_typed_json};

use report::Report;

/// Arguments of `verbatim explain`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// What `--ledger FILE` of run, sequencer or bench has written; two are compared as before and after a change
    #[arg(value_name = "LEDGER", required_unless_present = "guideline")]
    ledger: Vec<PathBuf>,
    /// Print what the book says of a design guideline: its cost, what to write, its price
    #[arg(long, value_name = "NAME", conflicts_with_all = ["ledger", "merge", "json", "html"])]
    guideline: Option<String>,
    /// Take the processes of all ledgers as those of one program, such as the ranks of a parallel one
    #[arg(long)]
    merge: bool,
    #[command(flatten)]
    nic: NicsArgs,
    /// Print one JSON object: {"type": "explanation", "data": …}
    #[arg(long)]
    json: bool,
    /// Write the explanation with pictures to FILE, which needs nothing beside it
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  verbatim run --ledger l.json -- ib_write_bw 127.0.0.1
  verbatim explain l.json --nic cib
  verbatim explain l.json --nic cx3 --html report.html
  verbatim sequencer --ledger l.json --design rpc; verbatim explain l.json --json
  verbatim explain l.json --nic cib --nic cx3    one program on two NICs, side by side
  verbatim explain before.json after.json        what a change did
  verbatim explain --merge rank*.json            the ranks of a parallel program as one
  verbatim explain --guideline multi-queue       one guideline: what it saves, what to write
  verbatim bench guidelines      a program for and against each guideline, predicted and measured

The model assumes that each process of the ledger runs on a machine of its own. Rates are predictions, not measurements: \
the 10^6 operations a second that the NIC's resources allow. The changes are listed in the order in which to make them, \
each with its gain over the changes before it. Processes that do the same are explained as one, with their spread.";

/// Maximum size in bytes of a ledger that is read; this program writes no longer ledgers.
const MAX_LEDGER_BYTES: u64 = 1 << 30;

/// Runs `verbatim explain`.
pub(crate) fn run(args: &Args) -> Result<CommandOutcome> {
    if let Some(name) = &args.guideline {
        let Some(section) = guidelines_page::section_markdown(name) else {
            let names = guidelines_page::guideline_names().join(", ");
            bail!("there is no guideline {name:?}; choose among {names}");
        };
        print_line(format_args!("{name}\n\n{section}"))?;
        return Ok(CommandOutcome::Done);
    }
    let profiles = args.nic.chosen_or_default_profiles()?;
    let mut ledgers = Vec::new();
    for file in &args.ledger {
        ledgers.push((file.display().to_string(), read_ledger(file)?));
    }
    if args.merge {
        ledgers = merge_ledgers(ledgers).into_iter().collect();
    }
    let several_nics = profiles.len() > 1;
    let mut reports = Vec::new();
    for (file, ledger) in &ledgers {
        for profile in &profiles {
            let report = Report::new(ledger, profile)
                .with_context(|| format!("cannot explain it on {}", profile.name))?;
            let name = match (several_nics, ledgers.len()) {
                (true, 1) => profile.name.clone(),
                (true, _) => format!("{file}, {}", profile.name),
                (false, _) => file.clone(),
            };
            reports.push((name, process_groups::group_processes(report)));
        }
    }
    match &reports[..] {
        [(_, report)] => print_or_write_report(report, args),
        several => compare(several, args),
    }
}

/// Merges all ledgers into one.
fn merge_ledgers(ledgers: Vec<(String, Ledger)>) -> Option<(String, Ledger)> {
    let mut ledgers = ledgers.into_iter();
    let (name, mut all) = ledgers.next()?;
    for (_, ledger) in ledgers {
        all.processes.extend(ledger.processes);
        all.notes.extend(ledger.notes);
        // The PCIe counts come from different machines, or count one machine twice.
        all.pcie = None;
    }
    Some((name, all))
}

/// Prints several reports side by side.
fn compare(reports: &[(String, Report)], args: &Args) -> Result<CommandOutcome> {
    if args.html.is_some() {
        bail!(
            "--html has one ledger on one NIC on a page: give one ledger, or --merge, and one --nic"
        );
    }
    if args.json {
        for (_, report) in reports {
            print_typed_json("explanation", report)?;
        }
    } else {
        compare::print_side_by_side(reports)?;
    }
    Ok(CommandOutcome::Done)
}

fn print_or_write_report(report: &Report, args: &Args) -> Result<CommandOutcome> {
    if let Some(file) = &args.html {
        std::fs::write(file, html::page(report))
            .with_context(|| format!("cannot write {}", file.display()))?;
        eprintln!("wrote {}: open it in a browser", file.display());
    }
    if args.json {
        print_typed_json("explanation", report)?;
    } else if args.html.is_none() {
        text::print_report(report)?;
    }
    Ok(CommandOutcome::Done)
}

fn read_ledger(path: &Path) -> Result<Ledger> {
    let cannot = || format!("cannot read {}", path.display());
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(MAX_LEDGER_BYTES + 1).read_to_end(&mut bytes))
        .with_context(cannot)?;
    if bytes.len() as u64 > MAX_LEDGER_BYTES {
        bail!("{} is longer than 1 GiB: no ledger is", path.display());
    }
    let text =
        String::from_utf8(bytes).with_context(|| format!("{} is no ledger", path.display()))?;
    Ledger::parse(&text).with_context(|| format!("cannot explain {}", path.display()))
}
