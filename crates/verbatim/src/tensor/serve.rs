//! `verbatim tensor serve`: runs one store of tensors until a signal stops it.

use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Serialize;
use tensor::{Config, Peer, StoreStatistics};

use crate::CommandOutcome;
use crate::args::{self, NicArgs, PortArgs};
use crate::nic::OpenNic;
use crate::output::{self, print_json, print_line};
use crate::stop::stop_request_channel;

/// Arguments of `verbatim tensor serve`.
#[derive(clap::Args)]
#[command(allow_negative_numbers = true, after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Where others find it, over TCP; port 0 takes a free one
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7473", value_parser = args::check_host_and_port)]
    listen: String,
    /// Bytes of all tensors, such as 512M: beyond that, those that were used longest ago go. Tensors that are on
    /// their way to the store take memory beside this
    #[arg(long, value_name = "BYTES", default_value = "1024M", value_parser = args::byte_count_parser_in_range(1..=1 << 42))]
    capacity: usize,
    /// End when standard input ends, besides SIGINT and SIGTERM
    #[arg(long)]
    until_eof: bool,
    /// Print one JSON object per line: listening, stats
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    nic: NicArgs,
    #[command(flatten)]
    port: PortArgs,
}

const EXAMPLES: &str = "\
Whoever can connect can put, get and remove everything: listen at a loopback address, or in a network that you trust.

Examples:
  verbatim tensor serve
  verbatim tensor serve --listen 127.0.0.1:0 --capacity 4096M --json";

/// A line that `--json` prints.
#[derive(Serialize)]
#[serde(tag = "type", content = "data", rename_all = "snake_case")]
enum JsonLine {
    /// The store accepts connections.
    Listening { address: String },
    /// The content of the store at its end.
    Stats {
        tensors: u64,
        stored_bytes: u64,
        evicted: u64,
    },
}

/// Runs `verbatim tensor serve`.
pub(crate) fn run(args: &Args) -> Result<CommandOutcome> {
    let nic = OpenNic::open(&args.nic, &args.port)?;
    let stop = stop_request_channel(args.until_eof)?;
    let config = Config {
        nic: nic.config,
        listen_address: Some(args.listen.clone()),
        peer_store_capacity_bytes: args.capacity as u64,
        ..Config::default()
    };
    let store = Peer::new(config).context("cannot start the store")?;
    let address = store.address().map(|a| a.to_string()).unwrap_or_default();
    if args.json {
        print_json(&JsonLine::Listening { address })?;
    } else {
        print_line(format_args!(
            "a store of tensors on {address}; in Python: verbatim.tensor.Peer().connect(\"{address}\")"
        ))?;
    }
    let bar = output::activity_display(args.json);
    while stop.recv_timeout(Duration::from_secs(1)) == Err(RecvTimeoutError::Timeout) {
        let held = store.store_statistics();
        bar.set_message(format!(
            "{} tensors, {} MB",
            held.published_and_stored_tensors,
            held.stored_bytes / 1_000_000
        ));
    }
    bar.finish_and_clear();
    print_store_statistics(args.json, store.store_statistics())?;
    Ok(CommandOutcome::Done)
}

/// Prints the content of the store.
fn print_store_statistics(json: bool, held: StoreStatistics) -> Result<()> {
    let StoreStatistics {
        published_and_stored_tensors: tensors,
        stored_bytes,
        evicted_tensors: evicted,
    } = held;
    if json {
        return print_json(&JsonLine::Stats {
            tensors,
            stored_bytes,
            evicted,
        });
    }
    print_line(format_args!(
        "{tensors} tensors of {stored_bytes} bytes; {evicted} had to go for others"
    ))
}
