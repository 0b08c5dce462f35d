//! `verbatim btree get`, `put` and `scan`: single requests for a user.

use anyhow::{Result, anyhow};
use btree::{AccessDesign, ByteString, Client, ClientConfig, KeyOrValue};
use serde::Serialize;

use super::strings::{OfEitherKeys, connect_by_key_type};
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
    #[arg(long, value_name = "N", default_value = "0", value_parser = args::integer_parser_in_range("a tree", 0..=15u8))]
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
  verbatim btree get 127.0.0.1:7473 7 8 0xff --json
  verbatim btree get 127.0.0.1:7473 apple                of a server with --key-size")]
pub(crate) struct GetArgs {
    #[command(flatten)]
    hand: ManualRequestArgs,
    /// The keys: numbers, or texts if the server's keys are byte strings
    #[arg(value_name = "KEY", required = true)]
    keys: Vec<String>,
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
    key: String,
    /// Its new value; without one the key is removed
    value: Option<String>,
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
    /// The first key that may come [default: the least]
    #[arg(long, value_name = "KEY")]
    from: Option<String>,
    /// The first key that may not
    #[arg(long, value_name = "KEY")]
    end: Option<String>,
    /// Entries at most
    #[arg(long, value_name = "N", default_value = "20", value_parser = args::integer_parser_in_range("a count of entries", 1..=65_535u32))]
    limit: u32,
}

/// A line of `--json`.
#[derive(Serialize)]
#[serde(tag = "type", content = "data", rename_all = "snake_case")]
enum JsonLine<T> {
    /// The value of a key.
    Entry { key: T, value: Option<T> },
    /// The result of a change: true if the key existed before.
    Changed { key: T, was_there: bool },
}

/// Keys and values that a user can write on a command line.
trait FromArgument: KeyOrValue {
    fn from_argument(text: &str) -> Result<Self>;
}

impl FromArgument for u64 {
    fn from_argument(text: &str) -> Result<Self> {
        args::parse_decimal_or_hex_u64(text).map_err(|_| {
            anyhow!(
                "{text:?} is not a number from 0 to {}, decimal or hexadecimal with 0x in front: the server's keys and \
                 values are such numbers",
                u64::MAX
            )
        })
    }
}

impl FromArgument for ByteString {
    fn from_argument(text: &str) -> Result<Self> {
        Ok(text.parse()?)
    }
}

type EitherClient = OfEitherKeys<Client<u64>, Client<ByteString>>;

fn connect(args: &ManualRequestArgs) -> Result<EitherClient> {
    let nic = OpenNic::open(&args.nic, &args.port)?;
    let config = ClientConfig {
        server: args.server.clone(),
        nic: nic.config,
        access: args.access,
        deadline_ms: 5_000,
        ..ClientConfig::default()
    };
    connect_by_key_type(
        || Client::connect_on(&nic.context, config.clone()),
        || Client::connect_on(&nic.context, config.clone()),
    )
}

fn print_value<T: KeyOrValue>(json: bool, key: T, value: Option<T>) -> Result<()> {
    match value {
        _ if json => print_json(&JsonLine::Entry { key, value }),
        Some(value) => print_line(format_args!("{key} = {value}")),
        None => {
            eprintln!("{key} is not there");
            Ok(())
        }
    }
}

/// Prints values; exit status 1 if a key does not exist.
pub(super) fn get(args: &GetArgs) -> Result<CommandOutcome> {
    match connect(&args.hand)? {
        OfEitherKeys::Numbers(client) => get_with(client, args),
        OfEitherKeys::Strings(client, _) => get_with(client, args),
    }
}

fn get_with<T: FromArgument>(mut client: Client<T>, args: &GetArgs) -> Result<CommandOutcome> {
    let mut all = true;
    let keys = args.keys.iter().map(|key| T::from_argument(key));
    for key in keys.collect::<Result<Vec<_>>>()? {
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
    match connect(&args.hand)? {
        OfEitherKeys::Numbers(client) => scan_with(client, args),
        OfEitherKeys::Strings(client, _) => scan_with(client, args),
    }
}

fn scan_with<T: FromArgument>(mut client: Client<T>, args: &ScanArgs) -> Result<CommandOutcome> {
    let key = |text: &String| T::from_argument(text);
    let from = args.from.as_ref().map(key).transpose()?;
    let end = args.end.as_ref().map(key).transpose()?;
    let entries = client.scan(args.hand.tree, from.unwrap_or_default(), end, args.limit)?;
    for (key, value) in entries {
        print_value(args.hand.json, key, Some(value))?;
    }
    Ok(CommandOutcome::Done)
}

/// Sets or removes a value; exit status 1 if the condition does not hold or the key to remove does
/// not exist.
pub(super) fn put(args: &PutArgs) -> Result<CommandOutcome> {
    match connect(&args.hand)? {
        OfEitherKeys::Numbers(client) => put_with(client, args),
        OfEitherKeys::Strings(client, _) => put_with(client, args),
    }
}

fn put_with<T: FromArgument>(mut client: Client<T>, args: &PutArgs) -> Result<CommandOutcome> {
    let (tree, key) = (args.hand.tree, T::from_argument(&args.key)?);
    let value = args.value.as_deref().map(T::from_argument).transpose()?;
    let (was_there, refused) = match value {
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
        print_json(&JsonLine::Changed { key, was_there })?;
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
