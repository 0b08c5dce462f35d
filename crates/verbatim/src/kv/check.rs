//! `verbatim kv check`: checks that concurrent clients see one store while they are killed and
//! stopped.

use std::process::Command;

use anyhow::Result;
use kv::history::{RecordingParameters, run_recording_client};
use kv::{ClientConfig, Design, PipelinedClient};
use serde::Serialize;

use super::json_lines::ServeOrLoadLine;
use super::serve::{DEFAULT_SINGLE_READ_GET_BYTES, RecordArgs};
use crate::CommandOutcome;
use crate::args::{self, NicArgs, PortArgs};
use crate::children::subcommand_with_nic;
use crate::history_check::{
    CheckArgs, CheckedSystem, RecorderArgs, named_or_supported_designs, stdin_end_poller,
};
use crate::nic::OpenNic;

/// The requests that clients send.
#[derive(clap::Args, Clone, Debug)]
struct RequestArgs {
    /// Keys: few, so that clients meet
    #[arg(long, value_name = "N", default_value = "4", value_parser = args::integer_parser_in_range("a count of keys", 1..=1000u64))]
    keys: u64,
    /// Bytes of a value
    #[arg(long, value_name = "BYTES", default_value = "32", value_parser = args::integer_parser_in_range("a length of values", 16..=65_535usize))]
    value_size: usize,
    /// Requests that a client has outstanding
    #[arg(long, value_name = "N", default_value = "4", value_parser = args::integer_parser_in_range("a window", 1..=64usize))]
    window: usize,
}

/// Arguments of `verbatim kv check`.
#[derive(clap::Args)]
#[command(allow_negative_numbers = true, after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Check this design only (may be given several times): herd, reads, atomics [default: all]
    #[arg(long, value_name = "DESIGN")]
    design: Vec<Design>,
    #[command(flatten)]
    check: CheckArgs,
    #[command(flatten)]
    ask: RequestArgs,
    #[command(flatten)]
    records: RecordArgs,
    #[command(flatten)]
    nic: NicArgs,
    #[command(flatten)]
    port: PortArgs,
}

/// The design under test and, for [`Design::Reads`], the size of a GET's READ; as `--json` prints
/// it.
#[derive(Clone, Copy, Default, Serialize)]
pub(crate) struct DesignAndReadSize {
    design: Option<Design>,
    /// Number of bytes of the READ of a neighbourhood; 0 if a GET makes no such READ.
    read_size: usize,
}

impl DesignAndReadSize {
    /// Returns the variants of a design that are to be checked.
    fn variants_of(design: Design, read_size: Option<usize>) -> Vec<Self> {
        let sizes = match (design, read_size) {
            (_, Some(size)) => vec![size],
            (Design::Reads, None) => vec![0, DEFAULT_SINGLE_READ_GET_BYTES],
            (_, None) => vec![0],
        };
        let of = |read_size| Self {
            design: Some(design),
            read_size,
        };
        sizes.into_iter().map(of).collect()
    }
}

/// A variant under test, with the command's arguments.
struct DesignUnderTest<'a> {
    args: &'a Args,
    design: Design,
    variant: DesignAndReadSize,
}

impl CheckedSystem for DesignUnderTest<'_> {
    type Line = ServeOrLoadLine;
    type Variant = DesignAndReadSize;

    fn name(&self) -> String {
        match (self.design, self.variant.read_size) {
            (design, 0) => design.name().to_owned(),
            (design, size) => format!("{design}-{size}"),
        }
    }

    fn variant(&self) -> DesignAndReadSize {
        self.variant
    }

    fn server_command(&self, workers: usize) -> Result<Command> {
        let Args { ask, nic, port, .. } = self.args;
        let mut command = subcommand_with_nic("kv", "serve", nic, port)?;
        command
            .args(["--design", self.design.name(), "--store"])
            .args(["--keys", "10000", "--workers", &workers.to_string()])
            .args(["--value-size", &ask.value_size.to_string()])
            .args(
                self.args
                    .records
                    .to_command_line_flags(self.variant.read_size),
            );
        Ok(command)
    }

    fn client_command(&self) -> Result<Command> {
        let Args { ask, nic, port, .. } = self.args;
        let mut command = subcommand_with_nic("kv", "check-client", nic, port)?;
        command
            .args(["--keys", &ask.keys.to_string()])
            .args(["--value-size", &ask.value_size.to_string()])
            .args(["--window", &ask.window.to_string()]);
        Ok(command)
    }

    fn server_address(line: &ServeOrLoadLine) -> Option<&str> {
        match line {
            ServeOrLoadLine::Listening { address, .. } => Some(address),
            _ => None,
        }
    }

    fn repeated_changes_not_reapplied(line: &ServeOrLoadLine) -> Option<u64> {
        match line {
            ServeOrLoadLine::Stats(stats) => Some(stats.repeated_changes),
            _ => None,
        }
    }
}

const EXAMPLES: &str = "\
Starts a server and clients, processes all, that GET, PUT, compare-and-set and DELETE the same few keys. Clients are killed \
(SIGKILL) and replaced; server and clients are stopped for a while and go on (SIGSTOP, SIGCONT), for longer than it takes \
clients to lose patience and send again. What each client asked and got is recorded with the times, and judged in the end:
is there, for each key, an order of all operations that gives what everybody saw? Operations of killed clients may have \
happened or not. A server that ends takes its store with it, so none is killed.

Examples:
  verbatim kv check
  verbatim kv check --design herd --duration 60s --clients 6 --keys 2 --seed 7
  verbatim kv check --design reads --read-size 1024
  verbatim kv check --keep /tmp/history
  verbatim kv check --judge /tmp/history/herd

Exit status 1 when a history is not linearizable: a piece of it that shows so is printed, as short as was found, and all of it is kept. \
The same exit status when no request was answered.";

/// Arguments of a client, which `verbatim kv check` starts.
#[derive(clap::Args)]
pub(crate) struct ClientArgs {
    #[command(flatten)]
    recorder: RecorderArgs,
    #[command(flatten)]
    ask: RequestArgs,
    #[command(flatten)]
    nic: NicArgs,
    #[command(flatten)]
    port: PortArgs,
}

/// Runs `verbatim kv check`.
pub(crate) fn run(args: &Args) -> Result<CommandOutcome> {
    if let Some(outcome) = args.check.judge_stored_history::<DesignUnderTest<'_>>()? {
        return Ok(outcome);
    }
    let nic = OpenNic::open(&args.nic, &args.port)?;
    let device = nic.context.capabilities()?;
    let designs =
        named_or_supported_designs(&args.design, &Design::ALL, |design| design.check(device))?;
    let mut stores = Vec::new();
    for design in designs {
        let variants = DesignAndReadSize::variants_of(design, args.records.read_size);
        stores.extend(variants.into_iter().map(|variant| DesignUnderTest {
            args,
            design,
            variant,
        }));
    }
    args.check.check_subjects(&stores)
}

/// Runs a client, which sends requests until its standard input ends.
pub(crate) fn run_check_client(args: &ClientArgs) -> Result<CommandOutcome> {
    let nic = OpenNic::open(&args.nic, &args.port)?;
    let config = ClientConfig {
        server: args.recorder.server.clone(),
        nic: nic.config,
        window: args.ask.window,
        batch: args.ask.window,
        max_single_message_value_bytes: args.ask.value_size.min(1064),
        // A short timeout, so that the client soon asks a stopped server again.
        answer_ms: 100,
        deadline_ms: 20_000,
    };
    let plan = RecordingParameters {
        keys: args.ask.keys,
        value_bytes: args.ask.value_size,
        seed: args.recorder.seed,
    };
    let stop = stdin_end_poller()?;
    let mut recorder = args.recorder.create_recorder()?;
    let mut pipeline = PipelinedClient::connect_on(&nic.context, config)?;
    run_recording_client(&mut pipeline, &plan, &mut recorder, stop)?;
    Ok(CommandOutcome::Done)
}
