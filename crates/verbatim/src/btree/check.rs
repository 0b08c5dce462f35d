//! `verbatim btree check`: checks that concurrent clients see one tree while they are killed and
//! stopped.

use std::process::Command;

use anyhow::{Result, bail};
use btree::history::{
    FILLERS_PER_HOT_KEY, RecordingParameters, run_recording_client, stable_key_count,
};
use btree::load::NumberedClient;
use btree::{AccessDesign, ClientConfig, PipelinedClient};
use serde::Serialize;

use super::json_lines::ServeOrLoadLine;
use super::strings::{OfEitherKeys, StringArgs, connect_by_key_type, strings_for_key_numbers};
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
    /// Hot keys: few, so that clients meet. Each has 16 keys around it that come and go, so that leaves split and merge
    #[arg(long, value_name = "N", default_value = "4", value_parser = args::integer_parser_in_range("a count of keys", 1..=1000u64))]
    keys: u64,
    /// Requests that a client has outstanding. The more there are on one key, the longer judging takes
    #[arg(long, value_name = "N", default_value = "4", value_parser = args::integer_parser_in_range("a window", 1..=64usize))]
    window: usize,
}

/// Arguments of `verbatim btree check`.
#[derive(clap::Args)]
#[command(allow_negative_numbers = true, after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Check this access design only (may be given several times): rpc, read, auto [default: all]
    #[arg(long, value_name = "ACCESS")]
    access: Vec<AccessDesign>,
    #[command(flatten)]
    strings: StringArgs,
    /// Bytes of a node: 256, 512, 1024, 2048 or 4096. Small ones split and merge more often [default: 256, or what byte
    /// strings need]
    #[arg(long, value_name = "BYTES", value_parser = args::byte_count_parser_up_to(btree::MAX_NODE_BYTES))]
    node_size: Option<usize>,
    #[command(flatten)]
    check: CheckArgs,
    #[command(flatten)]
    ask: RequestArgs,
    #[command(flatten)]
    nic: NicArgs,
    #[command(flatten)]
    port: PortArgs,
}

const EXAMPLES: &str = "\
Starts a server and clients, processes all, that look up, put, insert, update, delete and scan the same few keys. Clients are \
killed (SIGKILL) and replaced; server and clients are stopped for a while and go on (SIGSTOP, SIGCONT), for longer than it \
takes clients to lose patience and send again. What each client asked and got is recorded with the times, and judged in the \
end: is there, for each key, an order of all operations that gives what everybody saw? A scan is one look at each key of its \
range: a key that was there all the time is in it, and one that was deleted before is not. Scans must also be in order, and \
have all keys between that nobody changes. Operations of killed clients may have happened or not. A server that ends takes \
its tree with it, so none is killed.

Examples:
  verbatim btree check
  verbatim btree check --access read --duration 60s --clients 6 --keys 2 --seed 7
  verbatim btree check --key-size 24 --value-size 100
  verbatim btree check --keep /tmp/history
  verbatim btree check --judge /tmp/history/read

Exit status 1 when a history is not linearizable or a scan was wrong: a piece of it that shows so is printed, as short as was \
found, and all of it is kept. The same exit status when no request was answered.";

/// The maximum number of requests in flight for each hot key. Values have no versions, so the time of the check grows
/// exponentially with this number.
const MAX_REQUESTS_IN_FLIGHT_PER_HOT_KEY: u64 = 16;

/// The access design that is checked, as `--json` prints it.
#[derive(Clone, Copy, Default, Serialize)]
pub(crate) struct CheckedAccess {
    access: Option<AccessDesign>,
}

/// The access design under test, and the arguments of `verbatim btree check`.
struct TreeUnderTest<'a> {
    args: &'a Args,
    access: AccessDesign,
}

impl CheckedSystem for TreeUnderTest<'_> {
    type Line = ServeOrLoadLine;
    type Variant = CheckedAccess;

    fn name(&self) -> String {
        self.access.name().to_owned()
    }

    fn variant(&self) -> CheckedAccess {
        CheckedAccess {
            access: Some(self.access),
        }
    }

    fn server_command(&self, workers: usize) -> Result<Command> {
        let Args {
            ask,
            nic,
            port,
            strings,
            ..
        } = self.args;
        let node_size = match strings.sizes() {
            None => self.args.node_size.unwrap_or(btree::MIN_NODE_BYTES),
            Some(_) => strings.node_bytes(self.args.node_size),
        };
        let load = stable_key_count(ask.keys);
        let room = 10_000 + load + 2 * ask.keys * FILLERS_PER_HOT_KEY;
        let mut command = subcommand_with_nic("btree", "serve", nic, port)?;
        command
            .args(["--load", &load.to_string(), "--keys", &room.to_string()])
            .args(["--node-size", &node_size.to_string()])
            .args(self.args.strings.to_arguments())
            .args(["--workers", &workers.to_string()]);
        Ok(command)
    }

    fn client_command(&self) -> Result<Command> {
        let Args { ask, nic, port, .. } = self.args;
        let mut command = subcommand_with_nic("btree", "check-client", nic, port)?;
        command
            .args(["--access", self.access.name()])
            .args(["--keys", &ask.keys.to_string()])
            .args(["--window", &ask.window.to_string()]);
        Ok(command)
    }

    fn server_address(line: &ServeOrLoadLine) -> Option<&str> {
        match line {
            ServeOrLoadLine::Listening { address } => Some(address),
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

/// Arguments of a client, which `verbatim btree check` starts.
#[derive(clap::Args)]
pub(crate) struct ClientArgs {
    #[command(flatten)]
    recorder: RecorderArgs,
    #[arg(long)]
    access: AccessDesign,
    #[command(flatten)]
    ask: RequestArgs,
    #[command(flatten)]
    nic: NicArgs,
    #[command(flatten)]
    port: PortArgs,
}

/// Runs `verbatim btree check`.
pub(crate) fn run(args: &Args) -> Result<CommandOutcome> {
    if let Some(outcome) = args.check.judge_stored_history::<TreeUnderTest<'_>>()? {
        return Ok(outcome);
    }
    let (clients, window, keys) = (args.check.clients, args.ask.window, args.ask.keys);
    let under_way = clients as u64 * window as u64;
    if under_way > MAX_REQUESTS_IN_FLIGHT_PER_HOT_KEY * keys {
        bail!(
            "{clients} clients with {window} requests each on {keys} hot keys cannot be judged in reasonable time: give them \
             {} keys or more with --keys",
            under_way.div_ceil(MAX_REQUESTS_IN_FLIGHT_PER_HOT_KEY)
        );
    }
    let nic = OpenNic::open(&args.nic, &args.port)?;
    let device = nic.context.capabilities()?;
    let accesses = named_or_supported_designs(&args.access, &AccessDesign::ALL, |access| {
        access.check(device)
    })?;
    let trees: Vec<_> = accesses
        .into_iter()
        .map(|access| TreeUnderTest { args, access })
        .collect();
    args.check.check_subjects(&trees)
}

/// Runs a client, which sends requests until its standard input ends.
pub(crate) fn run_check_client(args: &ClientArgs) -> Result<CommandOutcome> {
    let nic = OpenNic::open(&args.nic, &args.port)?;
    let config = ClientConfig {
        server: args.recorder.server.clone(),
        nic: nic.config,
        access: args.access,
        window: args.ask.window,
        batch: args.ask.window,
        // A short timeout, so that the client soon asks a stopped server again.
        answer_ms: 100,
        deadline_ms: 20_000,
        ..ClientConfig::default()
    };
    let plan = RecordingParameters {
        tree: 0,
        hot_keys: args.ask.keys,
        seed: args.recorder.seed,
    };
    let stop = stdin_end_poller()?;
    let mut recorder = args.recorder.create_recorder()?;
    let client = connect_by_key_type(
        || PipelinedClient::connect_on(&nic.context, config.clone()),
        || PipelinedClient::connect_on(&nic.context, config.clone()),
    )?;
    let (before, after) = match client {
        OfEitherKeys::Numbers(mut client) => {
            let server = client.server_incarnation();
            run_recording_client(&mut client, &plan, &mut recorder, stop)?;
            (server, client.server_incarnation())
        }
        OfEitherKeys::Strings(client, sizes) => {
            let server = client.server_incarnation();
            let mut client = NumberedClient::new(client, strings_for_key_numbers(sizes)?);
            run_recording_client(&mut client, &plan, &mut recorder, stop)?;
            (server, client.client().server_incarnation())
        }
    };
    if before != after {
        bail!("another server has come to its address, and knows nothing of this history");
    }
    Ok(CommandOutcome::Done)
}
