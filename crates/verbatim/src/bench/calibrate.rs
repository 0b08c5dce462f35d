//! `verbatim bench calibrate`: a profile of a NIC from measurements.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use bench::calibrate::{
    CalibrationResult, CalibrationTarget, LocalMachine, MachineFacts, MeasuredRate,
    SimulatedMachine, calibrate,
};
use bench::micro::VerbStream;
use nicmodel::Profile;
use serde::Serialize;

use super::common::CoresArgs;
use super::common::nic_choice;
use super::measurement_sides::TwoHostArgs;
use super::parameters::SimulationArgs;
use crate::CommandOutcome;
use crate::args::{self, NicArgs, PortArgs};
use crate::model::NicProfileChoice;
use crate::output::{self, format_three_digits, print_line, print_typed_json, table};
use crate::steps::{
    CommandSteps, INTERRUPTED_EXIT_STATUS, is_interrupted, steps_if_interrupted_early,
};

pub(super) const EXAMPLES: &str = "\
Examples:
  verbatim bench calibrate --out my-nic.toml
  verbatim bench calibrate --provider system --device mlx5_0 --like cib --out mlx5.toml
  verbatim sequencer --nic-file my-nic.toml
  verbatim bench calibrate --nic cib --like cx3           a simulated NIC, to see that calibration works

Each number says which rates it was fitted to, or that it is assumed and from where. Sizes of WQEs and PCIe headers and \
the work of programs cannot be seen from outside: those are of the profile that --like names. On the software NIC all \
costs are those of software; what comes out describes no hardware.";

/// Arguments of `verbatim bench calibrate`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Write the profile to this file [default: print it]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// The profile from which comes what cannot be measured: cx, cx3, cib, bf2, or a profile's file
    #[arg(long, value_name = "NAME", default_value = "cib")]
    like: String,
    /// How long each of some forty measurements takes [default: 200ms; simulated 1ms of virtual time]
    #[arg(long, value_name = "TIME", value_parser = args::parse_duration_from_10ms)]
    duration: Option<Duration>,
    /// Rounds, of which the median counts
    #[arg(long, value_name = "N", default_value = "3", value_parser = args::integer_parser_in_range("a count of rounds", 1..=1000u32))]
    rounds: u32,
    #[command(flatten)]
    cores: CoresArgs,
    /// Print one JSON object per line: number (each of the profile), profile
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    nic: NicArgs,
    #[command(flatten)]
    port: PortArgs,
    #[command(flatten)]
    pub(super) simulation: SimulationArgs,
    #[command(flatten)]
    ends: TwoHostArgs,
}

/// A number of the measured profile, as `--json` prints it.
#[derive(Serialize)]
struct MeasuredNumber<'a> {
    key: &'a str,
    value: f64,
    source: &'a str,
    evidence: String,
    /// The number's value in the profile of the simulated NIC; `None` if a real NIC was measured.
    #[serde(rename = "simulated")]
    value_of_simulated_nic: Option<f64>,
}

/// The measured profile, as `--json` prints it.
#[derive(Serialize)]
struct MeasuredProfile<'a> {
    name: &'a str,
    toml: &'a str,
}

/// Runs `verbatim bench calibrate`.
pub(super) fn run(args: &Args) -> Result<CommandOutcome> {
    let like = profile_by_name(&args.like)?;
    if let Some(file) = &args.out {
        args::check_output_file_path(file)?;
    }
    let simulated = args.simulation.profile()?;
    let calibration = match &simulated {
        Some(profile) => measure_with_progress(&mut SimulatedMachine(profile), &like)?,
        None => {
            args.nic.apply_by_reexec()?;
            let nic = nic_choice(&args.nic, &args.port);
            let duration = args.duration.unwrap_or(Duration::from_millis(200));
            let duration_ms = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
            let cores = args.cores.choose_cores()?;
            let tasks = bench::calibrate::measurement_tasks(duration_ms)?;
            if args.ends.serves_as_other_side() {
                return args.ends.serve_other_side(&tasks, &nic);
            }
            let runner = args.ends.worker_pool(cores, &tasks)?;
            let mut real = LocalMachine::new(nic, runner, duration_ms, args.rounds);
            measure_with_progress(&mut real, &like)?
        }
    };
    let CalibrationResult {
        profile,
        profile_toml: text,
    } = &calibration;
    if let Some(file) = &args.out {
        output::write_file(file, text)?;
    }
    if args.json {
        for_each_number(profile, simulated.as_ref(), |number| {
            print_typed_json("number", &number)
        })?;
        let name = &profile.name;
        print_typed_json("profile", &MeasuredProfile { name, toml: text })?;
    } else if let Some(file) = &args.out {
        print_profile(profile, simulated.as_ref())?;
        print_line(format_args!("written to {}", file.display()))?;
    } else if let Some((done, of)) = steps_if_interrupted_early() {
        // The last line of an interrupted command is no TOML.
        print_line(format_args!(
            "# Interrupted: these are {done} of {of} measurements; the other numbers are assumed, from the profile {}.\n{}",
            like.name,
            text.trim_end()
        ))?;
        return Ok(CommandOutcome::ProgramExitStatus(INTERRUPTED_EXIT_STATUS));
    } else {
        print_line(text.trim_end())?;
    }
    Ok(CommandOutcome::Done)
}

/// A machine whose measurements are steps of the command.
struct MachineWithProgressSteps<'m> {
    machine: &'m mut dyn CalibrationTarget,
    steps: CommandSteps,
}

impl CalibrationTarget for MachineWithProgressSteps<'_> {
    fn facts(&self) -> Result<MachineFacts> {
        self.machine.facts()
    }

    fn counts_cache_line_reads(&self) -> bool {
        self.machine.counts_cache_line_reads()
    }

    fn measurement_duration_ms(&self) -> u64 {
        self.machine.measurement_duration_ms()
    }

    fn measure_stream(&mut self, stream: &VerbStream) -> Result<MeasuredRate> {
        let machine = &mut self.machine;
        let measured = self
            .steps
            .run_unless_interrupted(stream.verb.label(), || machine.measure_stream(stream))?;
        measured.context("interrupted")
    }
}

fn profile_by_name(name: &str) -> Result<Profile> {
    let (nic, nic_file) = (Some(name.to_owned()), None);
    NicProfileChoice { nic, nic_file }.chosen_or_default_profile()
}

fn measure_with_progress(
    machine: &mut dyn CalibrationTarget,
    like: &Profile,
) -> Result<CalibrationResult> {
    let steps = CommandSteps::new(bench::calibrate::measurement_count(machine) as u64)?;
    let mut machine = MachineWithProgressSteps { machine, steps };
    calibrate(&mut machine, like, is_interrupted)
}

fn for_each_number(
    profile: &Profile,
    simulated: Option<&Profile>,
    mut show: impl FnMut(MeasuredNumber<'_>) -> Result<()>,
) -> Result<()> {
    let true_ones = simulated.map(Profile::numbers).unwrap_or_default();
    for number in profile.numbers() {
        let other = true_ones.iter().find(|other| other.key == number.key);
        show(MeasuredNumber {
            key: &number.key,
            value: number.value,
            source: number.source,
            evidence: number.evidence.to_string(),
            value_of_simulated_nic: other.map(|other| other.value),
        })?;
    }
    Ok(())
}

fn print_profile(profile: &Profile, simulated: Option<&Profile>) -> Result<()> {
    let mut rows = match simulated {
        Some(_) => table(["number", "value", "simulated", "source"], &[1, 2]),
        None => table(["number", "value", "source"], &[1]),
    };
    for_each_number(profile, simulated, |number| {
        let mut row = vec![
            number.key.to_owned(),
            format_three_digits(number.value),
            number.source.to_owned(),
        ];
        if simulated.is_some() {
            row.insert(
                2,
                number
                    .value_of_simulated_nic
                    .map_or_else(|| "-".to_owned(), format_three_digits),
            );
        }
        rows.add_row(row);
        Ok(())
    })?;
    print_line(rows)
}
