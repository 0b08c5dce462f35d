//! `verbatim doctor`: checks the environment for the software NIC, with the remedy for each
//! problem.

mod check;
mod checks;
mod peers;

use anyhow::Result;

use crate::Outcome;
use crate::output::{print, print_typed};
use check::{Check, State};
use peers::Address;

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
    reach: Option<Address>,
}

const EXAMPLES: &str = "\
Examples:
  verbatim doctor
  docker run --rm --shm-size 1g IMAGE verbatim doctor      in the container where the programs will run
  verbatim doctor --json

Exit status 1 when something fails; what is limited is no failure.";

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<Outcome> {
    if args.hold {
        peers::hold()?;
        return Ok(Outcome::Done);
    }
    if let Some(address) = args.reach {
        print_typed("reached", &peers::look(address))?;
        return Ok(Outcome::Done);
    }
    let checks = checks::all()?;
    for check in &checks {
        if args.json {
            print_typed("check", check)?;
        } else {
            print(text(check))?;
        }
    }
    let fails = checks.iter().any(|check| check.state == State::Fails);
    Ok(if fails { Outcome::No } else { Outcome::Done })
}

fn text(check: &Check) -> String {
    let state = match check.state {
        State::Ok => "ok",
        State::Limited => "limited",
        State::Fails => "fails",
    };
    let mut text = format!("{state:<9}{}: {}", check.what, check.found);
    for (title, line) in [("effect", check.effect), ("change", check.change)] {
        if let Some(line) = line {
            text += &format!("\n         {title}: {line}");
        }
    }
    text
}
