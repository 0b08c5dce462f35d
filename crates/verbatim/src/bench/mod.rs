//! `verbatim bench`: the verbs microbenchmarks.

mod calibrate;
mod ends;
mod guidelines;
mod knobs;
mod markdown;
mod peers;
mod probe;
mod providers;
mod simulator;
mod sweep;
mod verb;
mod wqe_cache;

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use bench::goal::Row;
use bench::link::Exe;
use bench::micro::{Direction, Verb};
use bench::nic::NicChoice;
use bench::pin::Cores;
use bench::probe::Question;
use bench::record::Record;
use bench::stats::Spread;
use clap::Subcommand;
use serde::Serialize;

use crate::Outcome;
use crate::args::{self, NicArgs, PortArgs};
use crate::ledger::LedgerArgs;
use crate::output::{figure, print_json};

/// Arguments of `verbatim bench`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
    #[command(flatten)]
    ledger: LedgerArgs,
}

const EXAMPLES: &str = "\
Examples:
  verbatim bench peers                                  beside UCX, Redis and plain copies
  verbatim bench ud-send --payload 60 --queue-pairs 4   one verb with every knob
  verbatim bench rc-read --nic cib                      the same on a simulated Connect-IB
  verbatim bench latency --verb read
  verbatim bench sweep rc-write --svg writes.svg        over payloads, with a picture
  verbatim bench --ledger l.json ud-send; verbatim explain l.json";

#[derive(Subcommand)]
enum What {
    /// Every verb beside its peer: UCX, Redis, and copies between two processes
    ///
    /// Two processes pinned to two cores, interleaved with the peers in one run; medians of the
    /// rounds with their spread, and the ratio to the peer of the same round. The time in which a
    /// cache line bounces between the two cores is printed beside: it decides what the figures
    /// mean. Exit status 1 when a row misses what is wanted at least.
    #[command(after_help = peers::EXAMPLES)]
    Peers(peers::Args),
    /// Unmodified programs on the software NIC beside shared memory
    ///
    /// perftest and UCX as they are installed, by `verbatim run`, between two processes pinned to two
    /// cores, interleaved with UCX over POSIX shared memory and copies by the kernel in one run.
    /// Exit status 1 when a row misses what is wanted at least.
    #[command(after_help = peers::DROP_IN_EXAMPLES)]
    DropIn(peers::Args),
    /// The software NIC beside an RDMA device of this machine, such as the kernel's Soft-RoCE
    ///
    /// The same workloads on both, interleaved in one run: message rate and bandwidth of SEND,
    /// WRITE and READ, latency of SEND and WRITE, from 8 bytes to 1 MiB, and perftest's own figures
    /// on the device where it is installed. Exit status 1 when a goal is missed.
    #[command(after_help = providers::EXAMPLES)]
    Providers(providers::Args),
    /// Message rate and bandwidth of SENDs over UD
    #[command(after_help = verb::EXAMPLES)]
    UdSend(knobs::StreamArgs),
    /// Message rate and bandwidth of RECVs over UD: one NIC gets what others SEND
    #[command(after_help = verb::EXAMPLES)]
    UdRecv(knobs::StreamArgs),
    /// Message rate and bandwidth of SENDs over RC
    #[command(after_help = verb::EXAMPLES)]
    RcSend(knobs::StreamArgs),
    /// Message rate and bandwidth of RDMA WRITEs over RC
    #[command(after_help = verb::EXAMPLES)]
    RcWrite(knobs::StreamArgs),
    /// Message rate and bandwidth of RDMA WRITEs over UC
    #[command(after_help = verb::EXAMPLES)]
    UcWrite(knobs::StreamArgs),
    /// Message rate and bandwidth of RDMA READs
    #[command(after_help = verb::EXAMPLES)]
    RcRead(knobs::StreamArgs),
    /// Rate of fetch-and-adds, on one counter or many
    #[command(after_help = verb::EXAMPLES)]
    Atomics(knobs::StreamArgs),
    /// Latency of a verb: half of a round trip for SENDs and WRITEs, all of it for the others
    #[command(after_help = verb::LATENCY_EXAMPLES)]
    Latency(verb::LatencyArgs),
    /// Windows of READs and WRITEs, and the PCIe reads of WQEs that the NIC's cache has lost
    #[command(after_help = wqe_cache::EXAMPLES)]
    WqeCache(wqe_cache::Args),
    /// Whether the words of an RDMA WRITE are seen from left to right
    #[command(after_help = probe::ORDER_EXAMPLES)]
    WriteOrder(probe::Args),
    /// Whether a WRITE that has completed is seen by the target's processor
    #[command(after_help = probe::VISIBLE_EXAMPLES)]
    WriteVisible(probe::Args),
    /// A verb over a range of one of its knobs, as a table, CSV, JSON and a picture
    #[command(after_help = sweep::EXAMPLES)]
    Sweep(sweep::Args),
    /// A profile of this machine's NIC, from measurements (also --calibrate)
    #[command(long_flag = "calibrate", after_help = calibrate::EXAMPLES)]
    Calibrate(calibrate::Args),
    /// For each design guideline, a program that breaks it and one that keeps it
    ///
    /// What the advice of `verbatim explain` is for each of the two, what it predicts, and how much
    /// sooner the second one is done with the same work on the software NIC.
    #[command(after_help = guidelines::EXAMPLES)]
    Guidelines(guidelines::Args),
    /// How fast clusters of simulated NICs are simulated: the sequencer on Connect-IB
    #[command(after_help = simulator::EXAMPLES)]
    Simulator(simulator::Args),
    /// One of these programs (used by the guidelines)
    #[command(hide = true)]
    GuidelineProgram(guidelines::ProgramArgs),
    /// The other process of a benchmark (used by the commands above)
    #[command(hide = true)]
    Worker(ends::WorkerArgs),
}

impl What {
    /// Whether it runs in virtual time.
    fn is_simulated(&self) -> bool {
        match self {
            Self::UdSend(args)
            | Self::UdRecv(args)
            | Self::RcSend(args)
            | Self::RcWrite(args)
            | Self::UcWrite(args)
            | Self::RcRead(args)
            | Self::Atomics(args) => args.common.simulation.is_asked_for(),
            Self::Latency(args) => args.common.simulation.is_asked_for(),
            Self::WqeCache(args) => args.common.simulation.is_asked_for(),
            Self::Sweep(args) => args.stream.common.simulation.is_asked_for(),
            Self::Calibrate(args) => args.simulation.is_asked_for(),
            Self::Simulator(_) => true,
            Self::Peers(_)
            | Self::DropIn(_)
            | Self::Providers(_)
            | Self::WriteOrder(_)
            | Self::WriteVisible(_)
            | Self::Guidelines(_)
            | Self::GuidelineProgram(_)
            | Self::Worker(_) => false,
        }
    }
}

/// Runs the command.
pub(crate) fn run(args: Args) -> Result<Outcome> {
    if let Some(outcome) = args.ledger.record_self(args.what.is_simulated())? {
        return Ok(outcome);
    }
    match args.what {
        What::Peers(args) => peers::run(args, &Row::EMBEDDED),
        What::DropIn(args) => peers::run(args, &Row::DROP_IN),
        What::Providers(args) => providers::run(&args),
        What::UdSend(args) => verb::stream(Verb::UdSend, None, &args),
        What::UdRecv(args) => verb::stream(Verb::UdSend, Some(Direction::Inbound), &args),
        What::RcSend(args) => verb::stream(Verb::RcSend, None, &args),
        What::RcWrite(args) => verb::stream(Verb::RcWrite, None, &args),
        What::UcWrite(args) => verb::stream(Verb::UcWrite, None, &args),
        What::RcRead(args) => verb::stream(Verb::RcRead, None, &args),
        What::Atomics(args) => verb::stream(Verb::Atomics, None, &args),
        What::Latency(args) => verb::latency(&args),
        What::WqeCache(args) => wqe_cache::run(&args),
        What::WriteOrder(args) => probe::run(Question::Order, &args),
        What::WriteVisible(args) => probe::run(Question::Visible, &args),
        What::Sweep(args) => sweep::run(&args),
        What::Calibrate(args) => calibrate::run(&args),
        What::Guidelines(args) => guidelines::run(&args),
        What::Simulator(args) => simulator::run(&args),
        What::GuidelineProgram(args) => guidelines::program(&args),
        What::Worker(args) => args.serve(),
    }
}

/// Where a benchmark runs.
#[derive(clap::Args)]
struct CoresArgs {
    /// The two cores, this process's first, the other one's second; further threads take the other cores [default: the
    /// first two that this process may use]
    #[arg(long, value_name = "CORE,CORE", value_parser = two_cores)]
    cores: Option<(usize, usize)>,
}

impl CoresArgs {
    fn settle(&self) -> Result<Cores> {
        match self.cores {
            Some((requester, responder)) => Cores::chosen(requester, responder),
            None => Cores::first_two(),
        }
    }
}

fn two_cores(text: &str) -> Result<(usize, usize), String> {
    let parsed = text.split_once(',').and_then(|(one, two)| {
        let core = |text: &str| text.trim().parse::<usize>().ok();
        Some((core(one)?, core(two)?))
    });
    parsed.ok_or_else(|| "two cores are two numbers with a comma between, such as 0,1".to_owned())
}

/// How to start the other process.
fn worker() -> Result<Exe> {
    Ok(Exe {
        path: std::env::current_exe().context("cannot find this program's own file")?,
        args: vec!["bench".to_owned(), "worker".to_owned()],
    })
}

/// Says on standard error what makes figures meaningless.
fn warn_of_circumstances<S>(record: &Record<S>) {
    if !record.optimised {
        eprintln!("note: this is a debug build; its figures mean nothing (use --release)");
    }
    if record.load_before > 0.5 {
        eprintln!(
            "note: other programs keep this machine busy (load {}); all figures suffer",
            record.load_before
        );
    }
}

/// The NIC that is measured.
fn nic_choice(nic: &NicArgs, port: &PortArgs) -> NicChoice {
    NicChoice {
        provider: nic.provider.name().to_owned(),
        device: nic.device.clone(),
        port_num: port.port_num,
        gid_index: port.gid_index,
    }
}

/// Where the JSON lines of a benchmark go: to standard output, into the run record, to both or to neither.
struct Lines {
    json: bool,
    keep: Option<Keep>,
}

impl Lines {
    fn new(record: Option<&Path>, json: bool) -> Result<Self> {
        let keep = record.map(Keep::create).transpose()?;
        Ok(Self { json, keep })
    }

    fn tell(&mut self, line: &impl Serialize) -> Result<()> {
        if let Some(keep) = &mut self.keep {
            keep.line(line)?;
        }
        if self.json {
            print_json(line)?;
        }
        Ok(())
    }
}

/// The run record on disk, written line by line so that an interrupted run keeps what it had.
struct Keep {
    file: File,
    path: PathBuf,
}

impl Keep {
    fn create(path: &Path) -> Result<Keep> {
        let path = args::writable_file(path)?;
        let file = File::create(&path)
            .with_context(|| format!("cannot write {}; name another file", path.display()))?;
        Ok(Keep { file, path })
    }

    fn line(&mut self, line: &impl Serialize) -> Result<()> {
        let mut bytes = serde_json::to_vec(line)?;
        bytes.push(b'\n');
        self.file
            .write_all(&bytes)
            .with_context(|| format!("cannot write {}", self.path.display()))
    }
}

fn with_range(spread: Option<Spread>, unit: &str) -> String {
    spread.map_or_else(
        || "-".to_owned(),
        |s| {
            let [median, min, max] = [s.median, s.min, s.max].map(figure);
            format!("{median} ({min}..{max}) {unit}")
        },
    )
}

/// A number of bytes in a unit that fits.
fn bytes(count: usize) -> String {
    match count {
        n if n >= 1 << 20 && n.is_multiple_of(1 << 20) => format!("{} MiB", n >> 20),
        n if n >= 1 << 10 && n.is_multiple_of(1 << 10) => format!("{} KiB", n >> 10),
        n => format!("{n} B"),
    }
}
