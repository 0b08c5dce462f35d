//! `verbatim bench`: the verbs microbenchmarks.

mod breakdown;
mod calibrate;
mod common;
mod crowd;
mod depth;
mod events;
mod guidelines;
mod markdown;
mod measurement_sides;
mod parameters;
mod peers;
mod probe;
mod providers;
mod simulator;
mod sweep;
mod verb;
mod verdict;
mod wqe_cache;

use anyhow::Result;
use bench::goal::Row;
use bench::micro::{MeasuredRole, Verb};
use bench::probe::ProbedProperty;
use clap::Subcommand;
pub(crate) use common::worker_command;

use crate::CommandOutcome;
use crate::ledger::LedgerArgs;

/// Arguments of `verbatim bench`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: BenchSubcommand,
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
enum BenchSubcommand {
    /// Every verb compared with its peer (UCX, Redis, copies between two processes) and its limit
    ///
    /// Two processes pinned to two cores, interleaved with the peers in one run; medians of the
    /// rounds with their spread, and the ratio to the peer of the same round. Rows of messages also
    /// have a limit: a bare ring or ping-pong between the same cores, which fills a work request, a
    /// receive entry and a completion for each message and does nothing else. A cache line that
    /// bounces between the cores before and after each measurement tells near from far: medians are
    /// kept apart. Exit status 1 when a row misses what is wanted at least.
    #[command(after_help = peers::EXAMPLES)]
    Peers(peers::Args),
    /// Unmodified programs on the software NIC compared with shared memory
    ///
    /// perftest and UCX as they are installed, by `verbatim run`, between two processes pinned to two
    /// cores, interleaved with UCX over POSIX shared memory and copies by the kernel in one run.
    /// Exit status 1 when a row misses what is wanted at least.
    #[command(after_help = peers::DROP_IN_EXAMPLES)]
    DropIn(peers::Args),
    /// The path by packets compared with UDP and TCP, between two addresses of this host
    ///
    /// RoCEv2 packets between a process at 127.47.91.1 and one at 127.47.91.2, pinned to two cores, interleaved with
    /// bare UDP, which the kernel segments and puts together (GSO, GRO), and with iperf3. Latency is half of a round
    /// trip. Exit status 1 when a row misses what is wanted at least.
    #[command(after_help = peers::WIRE_EXAMPLES)]
    Wire(peers::Args),
    /// Round trips between two processes that sleep: completion channels compared with TCP and Unix sockets
    ///
    /// A client and a server wait for each other in epoll, one request of 64 bytes at a time: over RC with a completion
    /// channel, over TCP loopback, and over a Unix socket; on two cores, and both on one core. Exit status 1 when
    /// verbs are slower than TCP.
    #[command(after_help = events::EXAMPLES)]
    Events(events::Args),
    /// The software NIC compared with an RDMA device of this machine, such as the kernel's Soft-RoCE
    ///
    /// The same workloads on both, interleaved in one run: message rate and bandwidth of SEND,
    /// WRITE and READ, latency of SEND and WRITE, from 8 bytes to 1 MiB, and perftest's own figures
    /// on the device where it is installed. Exit status 1 when a goal is missed.
    #[command(after_help = providers::EXAMPLES)]
    Providers(providers::Args),
    /// Message rate and bandwidth of SENDs over UD
    #[command(after_help = verb::EXAMPLES)]
    UdSend(parameters::StreamArgs),
    /// Message rate and bandwidth of RECVs over UD: one NIC gets what others SEND
    #[command(after_help = verb::EXAMPLES)]
    UdRecv(parameters::StreamArgs),
    /// Message rate and bandwidth of SENDs over RC
    #[command(after_help = verb::EXAMPLES)]
    RcSend(parameters::StreamArgs),
    /// Message rate and bandwidth of SENDs over UC
    #[command(after_help = verb::EXAMPLES)]
    UcSend(parameters::StreamArgs),
    /// Message rate and bandwidth of RDMA WRITEs over RC
    #[command(after_help = verb::EXAMPLES)]
    RcWrite(parameters::StreamArgs),
    /// Message rate and bandwidth of RDMA WRITEs over UC
    #[command(after_help = verb::EXAMPLES)]
    UcWrite(parameters::StreamArgs),
    /// Message rate and bandwidth of RDMA READs
    #[command(after_help = verb::EXAMPLES)]
    RcRead(parameters::StreamArgs),
    /// Rate of fetch-and-adds, on one counter or many
    #[command(after_help = verb::EXAMPLES)]
    Atomics(parameters::StreamArgs),
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
    /// Requests a second of a storage target at several depths
    #[command(after_help = depth::EXAMPLES)]
    Depth(depth::Args),
    /// Many polling processes on two cores, compared with the same work with the cores in turn
    #[command(after_help = crowd::EXAMPLES)]
    Crowd(crowd::Args),
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
    Worker(measurement_sides::WorkerArgs),
}

impl BenchSubcommand {
    /// Returns true if the benchmark runs in virtual time.
    fn is_simulated(&self) -> bool {
        match self {
            Self::UdSend(args)
            | Self::UdRecv(args)
            | Self::RcSend(args)
            | Self::UcSend(args)
            | Self::RcWrite(args)
            | Self::UcWrite(args)
            | Self::RcRead(args)
            | Self::Atomics(args) => args.common.simulation.is_asked_for(),
            Self::Latency(args) => args.common.simulation.is_asked_for(),
            Self::WqeCache(args) => args.common.simulation.is_asked_for(),
            Self::Sweep(args) => args.stream.common.simulation.is_asked_for(),
            Self::Calibrate(args) => args.simulation.is_asked_for(),
            Self::Depth(args) => args.is_simulated(),
            Self::Simulator(_) => true,
            Self::Peers(_)
            | Self::DropIn(_)
            | Self::Wire(_)
            | Self::Events(_)
            | Self::Providers(_)
            | Self::Crowd(_)
            | Self::WriteOrder(_)
            | Self::WriteVisible(_)
            | Self::Guidelines(_)
            | Self::GuidelineProgram(_)
            | Self::Worker(_) => false,
        }
    }
}

pub(crate) fn run(args: Args) -> Result<CommandOutcome> {
    if let Some(outcome) = args
        .ledger
        .rerun_under_tap_if_wanted(args.what.is_simulated())?
    {
        return Ok(outcome);
    }
    match args.what {
        BenchSubcommand::Peers(args) => peers::run(args, &Row::OWN_PROGRAM_ROWS),
        BenchSubcommand::DropIn(args) => peers::run(args, &Row::DROP_IN_ROWS),
        BenchSubcommand::Wire(args) => peers::run_wire(args),
        BenchSubcommand::Events(args) => events::run(&args),
        BenchSubcommand::Providers(args) => providers::run(&args),
        BenchSubcommand::UdSend(args) => verb::run_rate(Verb::UdSend, None, &args),
        BenchSubcommand::UdRecv(args) => {
            verb::run_rate(Verb::UdSend, Some(MeasuredRole::Inbound), &args)
        }
        BenchSubcommand::RcSend(args) => verb::run_rate(Verb::RcSend, None, &args),
        BenchSubcommand::UcSend(args) => verb::run_rate(Verb::UcSend, None, &args),
        BenchSubcommand::RcWrite(args) => verb::run_rate(Verb::RcWrite, None, &args),
        BenchSubcommand::UcWrite(args) => verb::run_rate(Verb::UcWrite, None, &args),
        BenchSubcommand::RcRead(args) => verb::run_rate(Verb::RcRead, None, &args),
        BenchSubcommand::Atomics(args) => verb::run_rate(Verb::Atomics, None, &args),
        BenchSubcommand::Latency(args) => verb::run_latency(&args),
        BenchSubcommand::WqeCache(args) => wqe_cache::run(&args),
        BenchSubcommand::Depth(args) => depth::run(&args),
        BenchSubcommand::Crowd(args) => crowd::run(&args),
        BenchSubcommand::WriteOrder(args) => probe::run(ProbedProperty::Order, &args),
        BenchSubcommand::WriteVisible(args) => probe::run(ProbedProperty::Visible, &args),
        BenchSubcommand::Sweep(args) => sweep::run(&args),
        BenchSubcommand::Calibrate(args) => calibrate::run(&args),
        BenchSubcommand::Guidelines(args) => guidelines::run(&args),
        BenchSubcommand::Simulator(args) => simulator::run(&args),
        BenchSubcommand::GuidelineProgram(args) => guidelines::run_program(&args),
        BenchSubcommand::Worker(args) => args.serve_jobs_on_stdio(),
    }
}
