//! `verbatim kv get` and `verbatim kv put`: single requests for a user.

use std::time::Duration;

use anyhow::{Context, Result};
use kv::store::SetCondition;
use kv::{Client, ClientConfig, ClientError, Value};
use serde::Serialize;

use crate::CommandOutcome;
use crate::args::{self, NicArgs, PortArgs};
use crate::nic::OpenNic;
use crate::output::{print_json, print_line};

/// A line of `--json`.
#[derive(Serialize)]
#[serde(tag = "type", content = "data", rename_all = "snake_case")]
enum JsonLine<'a> {
    /// `get`: the value of a key.
    Value {
        key: &'a str,
        /// The key's version, which counts its changes; 0 if the key does not exist.
        version: u64,
        /// The value, if the key exists and its value is text.
        value: Option<String>,
        /// The value in hexadecimal digits, if it is not text.
        #[serde(skip_serializing_if = "Option::is_none")]
        value_hex: Option<String>,
    },
    /// `put`: the result of the change.
    Put {
        key: &'a str,
        /// The key's new version, or the removed version; 0 if nothing changed.
        version: u64,
        /// The reason why nothing changed.
        #[serde(skip_serializing_if = "Option::is_none")]
        refused: Option<String>,
    },
}

/// Arguments of `verbatim kv get`.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  verbatim kv get 127.0.0.1:7471 name
  verbatim kv get 127.0.0.1:7471 first second third --json")]
pub(crate) struct GetArgs {
    /// The server's TCP address, as it printed it
    #[arg(value_name = "HOST:PORT", value_parser = args::check_host_and_port)]
    server: String,
    /// The keys
    #[arg(value_name = "KEY", required = true)]
    keys: Vec<String>,
    /// Print one JSON object for each key, on a line
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    nic: NicArgs,
    #[command(flatten)]
    port: PortArgs,
}

/// Arguments of `verbatim kv put`.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  verbatim kv put 127.0.0.1:7471 name Ada
  verbatim kv put 127.0.0.1:7471 name Grace --if-version 1 --ttl 30s
  verbatim kv put 127.0.0.1:7471 name              remove it")]
pub(crate) struct PutArgs {
    /// The server's TCP address, as it printed it
    #[arg(value_name = "HOST:PORT", value_parser = args::check_host_and_port)]
    server: String,
    /// The key
    key: String,
    /// Its new value; without one the key is removed
    value: Option<String>,
    /// Only if the key has this version, as `get` printed it; 0 if it must not be there
    #[arg(long, value_name = "N", value_parser = args::parse_decimal_or_hex_u64)]
    if_version: Option<u64>,
    /// How long the value stays
    #[arg(long, value_name = "TIME", value_parser = args::parse_duration_from_10ms, requires = "value")]
    ttl: Option<Duration>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    nic: NicArgs,
    #[command(flatten)]
    port: PortArgs,
}

fn connect(server: &str, nic: &NicArgs, port: &PortArgs) -> Result<Client> {
    let nic = OpenNic::open(nic, port)?;
    let config = ClientConfig {
        server: server.to_owned(),
        nic: nic.config,
        deadline_ms: 5_000,
        ..ClientConfig::default()
    };
    Client::connect_on(&nic.context, config).context("is the server running?")
}

/// Prints values; exit status 1 if a key does not exist.
pub(super) fn get(args: &GetArgs) -> Result<CommandOutcome> {
    let mut client = connect(&args.server, &args.nic, &args.port)?;
    let keys: Vec<&[u8]> = args.keys.iter().map(String::as_bytes).collect();
    let mut all = true;
    for (key, value) in args.keys.iter().zip(client.multi_get(&keys)?) {
        all &= value.is_some();
        if args.json {
            print_json(&value_line(key, value))?;
            continue;
        }
        match value {
            Some(value) => {
                let text = String::from_utf8_lossy(&value.bytes);
                print_line(format_args!("{key} = {text} (version {})", value.version))?;
            }
            None => eprintln!("{key} is not there"),
        }
    }
    Ok(if all {
        CommandOutcome::Done
    } else {
        CommandOutcome::NegativeAnswer
    })
}

fn value_line(key: &str, value: Option<Value>) -> JsonLine<'_> {
    let version = value.as_ref().map_or(0, |value| value.version);
    let text = value.map(|value| String::from_utf8(value.bytes));
    let (value, other) = match text {
        Some(Ok(text)) => (Some(text), None),
        Some(Err(other)) => (None, Some(hex(other.as_bytes()))),
        None => (None, None),
    };
    JsonLine::Value {
        key,
        version,
        value,
        value_hex: other,
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Sets or removes a value; exit status 1 if the condition does not hold or the key to remove does
/// not exist.
pub(super) fn put(args: &PutArgs) -> Result<CommandOutcome> {
    let mut client = connect(&args.server, &args.nic, &args.port)?;
    let key = args.key.as_bytes();
    let condition = match args.if_version {
        None => SetCondition::Always,
        Some(0) => SetCondition::Absent,
        Some(version) => SetCondition::Version(version),
    };
    let done = match &args.value {
        Some(value) => {
            let ttl = args
                .ttl
                .map_or(0, |ttl| u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX));
            client.put_if(key, value.as_bytes(), condition, ttl)
        }
        None => client.delete_if(key, args.if_version),
    };
    let (version, refused) = match done {
        Ok(0) => (0, Some(format!("{} was not there", args.key))),
        Ok(version) => (version, None),
        Err(e @ ClientError::ConditionNotMet { .. }) => (0, Some(e.to_string())),
        Err(e) => return Err(e.into()),
    };
    let outcome = if refused.is_some() {
        CommandOutcome::NegativeAnswer
    } else {
        CommandOutcome::Done
    };
    if args.json {
        print_json(&JsonLine::Put {
            key: &args.key,
            version,
            refused,
        })?;
    } else if let Some(why) = refused {
        eprintln!("{why}");
    } else {
        print_line(format_args!("version {version}"))?;
    }
    Ok(outcome)
}
