//! `verbatim bench guidelines`: for each design guideline, a program that breaks the guideline and one
//! that keeps it.
//!
//! Each program runs on the software NIC in its own processes. It runs once under the tap, for the
//! advice, and in interleaved rounds without the tap, for its speed. The model also predicts the gain,
//! and a simulated NIC measures it.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use bench::guidelines::{self, GuidelinePrograms};
use bench::stats::MedianAndSpread;
use nicmodel::guidelines::Advice;
use nicmodel::{Profile, profile};
use serde::Serialize;
use tap::Ledger;

use crate::CommandOutcome;
use crate::model::format_signed_percent;
use crate::output::{print_line, print_typed_json, table};
use crate::steps::CommandSteps;

/// Arguments of `verbatim bench guidelines`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only this guideline; may be given several times [default: all]
    #[arg(long, value_name = "NAME", value_parser = parse_guideline_name)]
    only: Vec<&'static GuidelinePrograms>,
    /// Timed runs of each program
    #[arg(long, value_name = "N", default_value = "5", value_parser = crate::args::integer_parser_in_range("rounds", 1..=1000u32))]
    rounds: u32,
    /// How long a run is: times that a program does its work, or for each 100 of them a millisecond of it
    #[arg(long, value_name = "N", default_value = "20000", value_parser = crate::args::integer_parser_in_range("repetitions", 1..=10_000_000u64))]
    repetitions: u64,
    /// Print one JSON object for each guideline: {"type": "guideline", "data": …}
    #[arg(long)]
    json: bool,
}

pub(super) const EXAMPLES: &str = "\
Examples:
  verbatim bench guidelines
  verbatim bench guidelines --only doorbell-batching --only inlining --rounds 9
  verbatim bench guidelines --json

Exit status 1 when a guideline's advice is missing for the program that breaks it, or is given to the one that \
keeps it.";

/// Arguments of a guideline's program, which the command runs as a process.
#[derive(clap::Args)]
pub(crate) struct ProgramArgs {
    #[arg(value_parser = parse_guideline_name)]
    guideline: &'static GuidelinePrograms,
    #[arg(long)]
    keeps: bool,
    #[arg(long)]
    repetitions: u64,
}

fn parse_guideline_name(name: &str) -> Result<&'static GuidelinePrograms, String> {
    guidelines::programs_of_guideline(name).ok_or_else(|| {
        let names: Vec<_> = guidelines::ALL_GUIDELINE_PROGRAMS
            .iter()
            .map(|programs| programs.guideline)
            .collect();
        format!("there is no such guideline; they are {}", names.join(", "))
    })
}

/// The result of a guideline's two programs.
#[derive(Serialize)]
struct GuidelineResult {
    guideline: &'static str,
    section: &'static str,
    nic: &'static str,
    #[serde(rename = "breaks")]
    breaking_program: &'static str,
    #[serde(rename = "keeps")]
    keeping_program: &'static str,
    /// The advice to the program that breaks the guideline.
    advice: Option<Advice>,
    /// True if the program that keeps the guideline also gets the advice; that would be an error.
    advised_though_kept: bool,
    /// The gain that the model predicts for the NIC: the rate of the keeping program over that of the
    /// other, minus 1.
    predicted_gain: Option<f64>,
    /// The gain measured on the simulated NIC.
    simulated_gain: Option<f64>,
    /// The reason why the programs were not simulated.
    #[serde(rename = "not_simulated")]
    reason_not_simulated: Option<&'static str>,
    /// The gain measured on the software NIC: median, minimum and maximum of the rounds.
    measured_gain: MedianAndSpread,
    /// True if the software NIC gains in no round although the NIC does: the software NIC has other
    /// bottlenecks.
    #[serde(rename = "software_nic_differs")]
    lacks_gain_on_software_nic: bool,
}

/// The smallest gain that counts as a gain; a smaller one can be noise of a busy machine.
const MIN_SIGNIFICANT_GAIN: f64 = 0.05;

pub(crate) fn run(args: &Args) -> Result<CommandOutcome> {
    let chosen: Vec<_> = if args.only.is_empty() {
        guidelines::ALL_GUIDELINE_PROGRAMS.iter().collect()
    } else {
        args.only.clone()
    };
    let steps = CommandSteps::new(chosen.len() as u64)?;
    let mut all_right = true;
    let mut rows = table(
        [
            "guideline",
            "NIC",
            "advice when broken",
            "when kept",
            "predicted",
            "simulated NIC",
            "software NIC",
        ],
        &[4, 5, 6],
    );
    let mut not_simulated = Vec::new();
    let mut differs = false;
    for programs in chosen {
        let tried = steps.run_unless_interrupted(programs.guideline, || {
            measure_and_predict_gain(programs, args)
        })?;
        let Some(tried) = tried else {
            break;
        };
        all_right &= tried.advice.is_some() && !tried.advised_though_kept;
        if args.json {
            print_typed_json("guideline", &tried)?;
        }
        let yes = |yes: bool| if yes { "yes" } else { "no" }.to_owned();
        rows.add_row([
            tried.guideline.to_owned(),
            tried.nic.to_owned(),
            yes(tried.advice.is_some()),
            yes(tried.advised_though_kept),
            tried
                .predicted_gain
                .map_or("no rate".to_owned(), |gain| format_signed_percent(gain, 0)),
            tried
                .simulated_gain
                .map_or("-".to_owned(), |gain| format_signed_percent(gain, 0)),
            format!(
                "{} ({} to {}){}",
                format_signed_percent(tried.measured_gain.median, 0),
                format_signed_percent(tried.measured_gain.min, 0),
                format_signed_percent(tried.measured_gain.max, 0),
                if tried.lacks_gain_on_software_nic {
                    " *"
                } else {
                    "  "
                }
            ),
        ]);
        differs |= tried.lacks_gain_on_software_nic;
        if let Some(why) = tried.reason_not_simulated {
            not_simulated.push(format!("{}: a simulated NIC {why}", tried.guideline));
        }
    }
    drop(steps);
    if !args.json {
        print_line(rows)?;
        print_line(
            "\npredicted: the model's gain on that NIC for the program that breaks the guideline, on as many cores as the \
             simulated\nmachine has for it. The NICs: how much more work a second the other program does; on the software \
             NIC one core posts.",
        )?;
        if differs {
            print_line(
                "* no gain on the software NIC: it has no PCIe, no units and no locks that the guideline spares, and what \
                 binds there is\n  a processor that copies.",
            )?;
        }
        for line in not_simulated {
            print_line(format_args!("- {line}"))?;
        }
    }
    Ok(if all_right {
        CommandOutcome::Done
    } else {
        CommandOutcome::NegativeAnswer
    })
}

fn measure_and_predict_gain(
    programs: &'static GuidelinePrograms,
    args: &Args,
) -> Result<GuidelineResult> {
    let model = nicmodel::guidelines::ALL_GUIDELINES;
    let guideline = model.iter().find(|known| known.name == programs.guideline);
    let guideline = guideline.context("the guideline is known")?;
    let nic = profile::builtin_profile(programs.nic_profile_name).context("the NIC is known")?;
    let advice = run_program_and_get_advice(programs, nic, false, args.repetitions)?;
    let kept = self::run_program_and_get_advice(programs, nic, true, args.repetitions)?;
    let mut gains = Vec::new();
    for _ in 0..args.rounds {
        let broken = measure_rate(programs, false, args.repetitions)?;
        let kept = measure_rate(programs, true, args.repetitions)?;
        gains.push(kept / broken - 1.0);
    }
    let simulated = programs.simulate_work_per_s(false, nic)?;
    let (simulated_gain, not_simulated) = match simulated {
        Ok(broken) => match programs.simulate_work_per_s(true, nic)? {
            Ok(kept) => (Some(kept / broken - 1.0), None),
            Err(why) => (None, Some(why)),
        },
        Err(why) => (None, Some(why)),
    };
    let measured_gain = MedianAndSpread::of(&gains).context("there was no round")?;
    let gain = advice.as_ref().and_then(|advice| advice.gain);
    let predicted_gain = gain.map(|gain| gain.relative_gain);
    Ok(GuidelineResult {
        guideline: guideline.name,
        section: guideline.section,
        nic: programs.nic_profile_name,
        breaking_program: programs.breaking_description,
        keeping_program: programs.keeping_description,
        predicted_gain,
        simulated_gain,
        reason_not_simulated: not_simulated,
        advice,
        advised_though_kept: kept.is_some(),
        lacks_gain_on_software_nic: predicted_gain.is_some_and(|gain| gain > MIN_SIGNIFICANT_GAIN)
            && measured_gain.max < MIN_SIGNIFICANT_GAIN,
        measured_gain,
    })
}

/// Returns the guideline's advice to one of its programs.
fn run_program_and_get_advice(
    programs: &GuidelinePrograms,
    nic: &Profile,
    keeps: bool,
    repetitions: u64,
) -> Result<Option<Advice>> {
    let folder = tempfile::tempdir().context("cannot make a folder for the counters")?;
    let mut command = program_command(programs, keeps, repetitions.min(500))?;
    command.env(tap::TAP_DIR_ENV_VAR, folder.path());
    run_and_read_stdout(command)?;
    let ledger = Ledger::collect(folder.path(), programs.guideline)?;
    let observed = programs
        .profile_scaled_to_guideline_nic(keeps, &ledger.processes)
        .context("the program left no counters")?;
    let all = nicmodel::guidelines::advise(&observed.restricted_to_executable(nic).0, nic)?;
    Ok(all
        .into_iter()
        .find(|advice| advice.guideline == programs.guideline))
}

/// Returns the program's units of work per second on the software NIC.
fn measure_rate(programs: &GuidelinePrograms, keeps: bool, repetitions: u64) -> Result<f64> {
    let mut command = program_command(programs, keeps, repetitions)?;
    command.env_remove(tap::TAP_DIR_ENV_VAR);
    let text = run_and_read_stdout(command)?;
    text.trim()
        .parse()
        .with_context(|| format!("no rate in {text:?}"))
}

fn program_command(programs: &GuidelinePrograms, keeps: bool, repetitions: u64) -> Result<Command> {
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    let mut command = Command::new(program);
    command.args([
        "bench",
        "guideline-program",
        programs.guideline,
        "--repetitions",
    ]);
    command.arg(repetitions.to_string());
    if keeps {
        command.arg("--keeps");
    }
    command.stdin(Stdio::null());
    Ok(command)
}

fn run_and_read_stdout(mut command: Command) -> Result<String> {
    let out = command.output().context("cannot start this program")?;
    if !out.status.success() {
        bail!("{}", String::from_utf8_lossy(&out.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

/// Runs one of the programs and prints its units of work per second.
pub(crate) fn run_program(args: &ProgramArgs) -> Result<CommandOutcome> {
    let rate = args.guideline.measure_work_per_s_on_softnic(
        args.keeps,
        args.repetitions,
        super::common::worker_command()?,
    )?;
    print_line(rate)?;
    Ok(CommandOutcome::Done)
}
