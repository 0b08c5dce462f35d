//! `verbatim btree get`, `put` and `scan`: single requests for a user.

use anyhow::{Context, Result};
use btree::{AccessDesign, Client, ClientConfig};
use serde::Serialize;

use crate::CommandOutcome;
use crate::args::{self, NicArgs, PortArgs};
use crate::nic::OpenNic;
use crate::output::{print_json, print_line};

/// Arguments that get, put and scan have in common.
#[derive(clap::Args)]
pub(crate) struct ManualRequestArgs {
    /// The server's TCP address, as it printed it
    #[arg(value_name = "HOST:PORT", value_parser = args::check_host_and_port)]
    server: String,
    /// The tree
    #[arg(long, value_name = "N", default_value = "0", value_parser = args::integer_in_range("a tree", 0..=15u8))]
    tree: u8,
    /// How the client reaches the tree: rpc, read, auto
    #[arg(long, value_name = "ACCESS", default_value_t = AccessDesign::Rpc)]
    access: AccessDesign,
    /// Print one JSON object a line
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    nic: NicArgs,
    #[command(flatten)]
    port: PortArgs,
}

/// Arguments of `verbatim btree get`.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  verbatim btree get 127.0.0.1:7473 7
  verbatim btree get 127.0.0.1:7473 7 8 0xff --json")]
pub(crate) struct GetArgs {
    #[command(flatten)]
    hand: ManualRequestArgs,
    /// The keys
    #[arg(value_name = "KEY", required = true, value_parser = args::decimal_or_hex_u64)]
    keys: Vec<u64>,
}

/// Arguments of `verbatim btree put`.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  verbatim btree put 127.0.0.1:7473 7 700
  verbatim btree put 127.0.0.1:7473 7 701 --insert       only if it is not there
  verbatim btree put 127.0.0.1:7473 7                    remove it")]
pub(crate) struct PutArgs {
    #[command(flatten)]
    hand: ManualRequestArgs,
    /// The key
    #[arg(value_parser = args::decimal_or_hex_u64)]
    key: u64,
    /// Its new value; without one the key is removed
    #[arg(value_parser = args::decimal_or_hex_u64)]
    value: Option<u64>,
    /// Only if the key is not there
    #[arg(long, requires = "value")]
    insert: bool,
    /// Only if the key is there
    #[arg(long, requires = "value", conflicts_with = "insert")]
    update: bool,
}

/// Arguments of `verbatim btree scan`.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  verbatim btree scan 127.0.0.1:7473
  verbatim btree scan 127.0.0.1:7473 --from 100 --end 200 --limit 50 --json")]
pub(crate) struct ScanArgs {
    #[command(flatten)]
    hand: ManualRequestArgs,
    /// The first key that may come
    #[arg(long, value_name = "KEY", default_value = "0", value_parser = args::decimal_or_hex_u64)]
    from: u64,
    /// The first key that may not
    #[arg(long, value_name = "KEY", value_parser = args::decimal_or_hex_u64)]
    end: Option<u64>,
    /// Entries at most
    #[arg(long, value_name = "N", default_value = "20", value_parser = args::integer_in_range("a count of entries", 1..=65_535u32))]
    limit: u32,
}

/// A line of `--json`.
#[derive(Serialize)]
#[serde(tag = "type", content = "data", rename_all = "snake_case")]
enum Line {
    /// The value of a key.
    Entry { key: u64, value: Option<u64> },
    /// The result of a change: true if the key existed before.
    Changed { key: u64, was_there: bool },
}

fn connect(args: &ManualRequestArgs) -> Result<Client> {
    let nic = OpenNic::open(&args.nic, &args.port)?;
    let config = ClientConfig {
        server: args.server.clone(),
        nic: nic.config,
        access: args.access,
        deadline_ms: 5_000,
        ..ClientConfig::default()
    };
    Client::connect_on(&nic.context, config).context("is the server running?")
}

fn print_value(json: bool, key: u64, value: Option<u64>) -> Result<()> {
    match value {
        _ if json => print_json(&Line::Entry { key, value }),
        Some(value) => print_line(format_args!("{key} = {value}")),
        None => {
            eprintln!("{key} is not there");
            Ok(())
        }
    }
}

/// Prints values; exit status 1 if a key does not exist.
pub(super) fn get(args: &GetArgs) -> Result<CommandOutcome> {
    let mut client = connect(&args.hand)?;
    let mut all = true;
    for &key in &args.keys {
        let value = client.get(args.hand.tree, key)?;
        all &= value.is_some();
        print_value(args.hand.json, key, value)?;
    }
    Ok(if all {
        CommandOutcome::Done
    } else {
        CommandOutcome::NegativeAnswer
    })
}

/// Prints entries in the order of their keys.
pub(super) fn scan(args: &ScanArgs) -> Result<CommandOutcome> {
    let mut client = connect(&args.hand)?;
    let entries = client.scan(args.hand.tree, args.from, args.end, args.limit)?;
    for (key, value) in entries {
        print_value(args.hand.json, key, Some(value))?;
    }
    Ok(CommandOutcome::Done)
}

/// Sets or removes a value; exit status 1 if the condition does not hold or the key to remove does
/// not exist.
pub(super) fn put(args: &PutArgs) -> Result<CommandOutcome> {
    let mut client = connect(&args.hand)?;
    let (tree, key) = (args.hand.tree, args.key);
    let (was_there, refused) = match args.value {
        None => {
            let found = client.delete(tree, key)?;
            (found, !found)
        }
        Some(value) if args.insert => {
            let found = client.insert_if_absent(tree, key, value)?;
            (found, found)
        }
        Some(value) if args.update => {
            let found = client.update(tree, key, value)?;
            (found, !found)
        }
        Some(value) => (client.put(tree, key, value)?, false),
    };
    if args.hand.json {
        print_json(&Line::Changed { key, was_there })?;
    } else {
        let how = if was_there {
            "was there"
        } else {
            "was not there"
        };
        print_line(format_args!("{key} {how} before"))?;
    }
    Ok(if refused {
        CommandOutcome::NegativeAnswer
    } else {
        CommandOutcome::Done
    })
}
