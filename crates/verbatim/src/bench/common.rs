//! Arguments and functions that all benchmarks share: cores, NIC, worker process, output lines.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use bench::core_pinning::CorePair;
use bench::link::WorkerCommand;
use bench::open_nic::NicChoice;
use bench::run_circumstances::RunCircumstances;
use bench::stats::MedianAndSpread;
use nicmodel::Profile;
use serde::Serialize;

use crate::args::{self, NicArgs, PortArgs};
use crate::output::{format_three_digits, print_json};

/// Returns true if a simulated core takes no time for a verb, because the profile has no cost: rates are then limits.
pub(super) fn are_core_costs_unknown(profile: &Profile) -> bool {
    let host = &profile.host;
    [&host.post_wqe_ns, &host.mmio_write_ns, &host.poll_cqe_ns]
        .into_iter()
        .any(Option::is_none)
}

/// Prints a note if the rates of simulations with this profile are limits.
pub(super) fn note_if_core_costs_unknown(profile: &Profile) {
    if are_core_costs_unknown(profile) {
        eprintln!(
            "note: profile {} has no processor costs: its cores take no time for a verb, so rates are at most as printed",
            profile.name
        );
    }
}

/// The cores on which a benchmark runs.
#[derive(clap::Args)]
pub(super) struct CoresArgs {
    /// The two cores, this process's first, the other one's second; further threads take the other cores [default: the
    /// first two that this process may use]
    #[arg(long, value_name = "CORE,CORE", value_parser = parse_core_pair)]
    cores: Option<(usize, usize)>,
}

impl CoresArgs {
    pub(super) fn choose_cores(&self) -> Result<CorePair> {
        match self.cores {
            Some((requester, responder)) => CorePair::from_numbers(requester, responder),
            None => CorePair::first_two(),
        }
    }
}

fn parse_core_pair(text: &str) -> Result<(usize, usize), String> {
    let parsed = text.split_once(',').and_then(|(one, two)| {
        let core = |text: &str| text.trim().parse::<usize>().ok();
        Some((core(one)?, core(two)?))
    });
    parsed.ok_or_else(|| "two cores are two numbers with a comma between, such as 0,1".to_owned())
}

/// Returns the command line of a benchmark's second process.
pub(crate) fn worker_command() -> Result<WorkerCommand> {
    Ok(WorkerCommand {
        path: std::env::current_exe().context("cannot find this program's own file")?,
        args: vec!["bench".to_owned(), "worker".to_owned()],
        envs: Vec::new(),
    })
}

/// Warns on standard error about circumstances that make figures meaningless, such as a debug
/// build.
pub(super) fn warn_of_debug_build_and_load<S>(record: &RunCircumstances<S>) {
    if !record.optimised {
        eprintln!("note: this is a debug build; its figures mean nothing (use --release)");
    }
    if record.load_average_before > 0.5 {
        eprintln!(
            "note: other programs keep this machine busy (load {}); all figures suffer",
            record.load_average_before
        );
    }
}

/// Returns the choice of the NIC that is measured.
pub(super) fn nic_choice(nic: &NicArgs, port: &PortArgs) -> NicChoice {
    NicChoice {
        provider: nic.provider.name().to_owned(),
        device: nic.device.clone(),
        port_num: port.port_num,
        gid_index: port.gid_index,
    }
}

/// The destination of a benchmark's JSON lines: standard output, the run record, both or neither.
pub(super) struct JsonLineWriter {
    prints_to_stdout: bool,
    record_file: Option<RunRecordFile>,
}

impl JsonLineWriter {
    pub(super) fn new(record: Option<&Path>, json: bool) -> Result<Self> {
        let keep = record.map(RunRecordFile::create).transpose()?;
        Ok(Self {
            prints_to_stdout: json,
            record_file: keep,
        })
    }

    pub(super) fn write_line(&mut self, line: &impl Serialize) -> Result<()> {
        if let Some(keep) = &mut self.record_file {
            keep.write_line(line)?;
        }
        if self.prints_to_stdout {
            print_json(line)?;
        }
        Ok(())
    }
}

/// The run record on disk. Each line is written at once, so that an interrupted run keeps its
/// results.
struct RunRecordFile {
    file: File,
    path: PathBuf,
}

impl RunRecordFile {
    fn create(path: &Path) -> Result<RunRecordFile> {
        let path = args::check_output_file_path(path)?;
        let file = File::create(&path)
            .with_context(|| format!("cannot write {}; name another file", path.display()))?;
        Ok(RunRecordFile { file, path })
    }

    fn write_line(&mut self, line: &impl Serialize) -> Result<()> {
        let mut bytes = serde_json::to_vec(line)?;
        bytes.push(b'\n');
        self.file
            .write_all(&bytes)
            .with_context(|| format!("cannot write {}", self.path.display()))
    }
}

pub(super) fn format_median_and_range(spread: Option<MedianAndSpread>, unit: &str) -> String {
    spread.map_or_else(
        || "-".to_owned(),
        |s| {
            let [median, min, max] = [s.median, s.min, s.max].map(format_three_digits);
            format!("{median} ({min}..{max}) {unit}")
        },
    )
}

/// Formats a number of bytes in the largest of the units MiB, KiB and B that divides it.
pub(super) fn format_byte_count(count: usize) -> String {
    match count {
        n if n >= 1 << 20 && n.is_multiple_of(1 << 20) => format!("{} MiB", n >> 20),
        n if n >= 1 << 10 && n.is_multiple_of(1 << 10) => format!("{} KiB", n >> 10),
        n => format!("{n} B"),
    }
}
