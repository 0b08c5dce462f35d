//! `verbatim doctor`: checks the environment for the software NIC, with the remedy for each
//! problem.

mod checks;
mod peer_memory_reads;
mod requirement;

use anyhow::Result;

use crate::CommandOutcome;
use crate::output::{print_line, print_typed_json};
use peer_memory_reads::PatternLocation;
use requirement::{Requirement, RequirementState};

/// Arguments of `verbatim doctor`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Print one JSON object per line: check
    #[arg(long)]
    json: bool,
    /// Be the process whose memory is looked at
    #[arg(long, hide = true)]
    hold: bool,
    /// Look at the memory of the process that prints this
    #[arg(long, hide = true, value_name = "ADDRESS")]
    reach: Option<PatternLocation>,
}

const EXAMPLES: &str = "\
Examples:
  verbatim doctor
  docker run --rm --shm-size 1g IMAGE verbatim doctor      in the container where the programs will run
  verbatim doctor --json

Exit status 1 when something fails; what is limited is no failure.";

/// Runs `verbatim doctor`.
pub(crate) fn run(args: &Args) -> Result<CommandOutcome> {
    if args.hold {
        peer_memory_reads::hold_pattern()?;
        return Ok(CommandOutcome::Done);
    }
    if let Some(address) = args.reach {
        print_typed_json(
            "reached",
            &peer_memory_reads::errors_of_each_read_method(address),
        )?;
        return Ok(CommandOutcome::Done);
    }
    let checks = checks::run_all()?;
    for check in &checks {
        if args.json {
            print_typed_json("check", check)?;
        } else {
            print_line(format_requirement(check))?;
        }
    }
    let fails = checks
        .iter()
        .any(|check| check.state == RequirementState::Fails);
    Ok(if fails {
        CommandOutcome::NegativeAnswer
    } else {
        CommandOutcome::Done
    })
}

fn format_requirement(check: &Requirement) -> String {
    let state = match check.state {
        RequirementState::Ok => "ok",
        RequirementState::Limited => "limited",
        RequirementState::Fails => "fails",
    };
    let mut text = format!("{state:<9}{}: {}", check.what, check.found);
    for (title, line) in [("effect", check.effect), ("change", check.remedy)] {
        if let Some(line) = line {
            text += &format!("\n         {title}: {line}");
        }
    }
    text
}
