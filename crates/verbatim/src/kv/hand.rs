//! `verbatim kv get` and `verbatim kv put`: one key by hand.

use std::time::Duration;

use anyhow::{Context, Result};
use kv::store::Condition;
use kv::{Client, ClientConfig, ClientError};

use crate::Outcome;
use crate::args::{self, NicArgs, PortArgs};
use crate::nic::Nic;
use crate::output::print;

/// Arguments of `verbatim kv get`.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  verbatim kv get 127.0.0.1:7471 name
  verbatim kv get 127.0.0.1:7471 first second third")]
pub(crate) struct GetArgs {
    /// The server's TCP address, as it printed it
    #[arg(value_name = "HOST:PORT", value_parser = args::host_and_port)]
    server: String,
    /// The keys
    #[arg(value_name = "KEY", required = true)]
    keys: Vec<String>,
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
    #[arg(value_name = "HOST:PORT", value_parser = args::host_and_port)]
    server: String,
    /// The key
    key: String,
    /// Its new value; without one the key is removed
    value: Option<String>,
    /// Only if the key has this version, as `get` printed it; 0 if it must not be there
    #[arg(long, value_name = "N", value_parser = args::word)]
    if_version: Option<u64>,
    /// How long the value stays
    #[arg(long, value_name = "TIME", value_parser = args::duration, requires = "value")]
    ttl: Option<Duration>,
    #[command(flatten)]
    nic: NicArgs,
    #[command(flatten)]
    port: PortArgs,
}

fn connect(server: &str, nic: &NicArgs, port: &PortArgs) -> Result<Client> {
    let nic = Nic::open(nic, port)?;
    let config = ClientConfig {
        server: server.to_owned(),
        nic: nic.config,
        deadline_ms: 5_000,
        ..ClientConfig::default()
    };
    Client::connect_on(&nic.context, config).context("is the server running?")
}

/// Prints values; exit status 1 when a key is not there.
pub(super) fn get(args: &GetArgs) -> Result<Outcome> {
    let mut client = connect(&args.server, &args.nic, &args.port)?;
    let keys: Vec<&[u8]> = args.keys.iter().map(String::as_bytes).collect();
    let mut all = true;
    for (key, value) in args.keys.iter().zip(client.multi_get(&keys)?) {
        match value {
            Some(value) => {
                let text = String::from_utf8_lossy(&value.bytes);
                print(format_args!("{key} = {text} (version {})", value.version))?;
            }
            None => {
                eprintln!("{key} is not there");
                all = false;
            }
        }
    }
    Ok(if all { Outcome::Done } else { Outcome::No })
}

/// Sets or removes a value; exit status 1 when the condition does not hold, or there was nothing to remove.
pub(super) fn put(args: &PutArgs) -> Result<Outcome> {
    let mut client = connect(&args.server, &args.nic, &args.port)?;
    let key = args.key.as_bytes();
    let condition = match args.if_version {
        None => Condition::Always,
        Some(0) => Condition::Absent,
        Some(version) => Condition::Version(version),
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
    match done {
        Ok(0) => {
            eprintln!("{} was not there", args.key);
            Ok(Outcome::No)
        }
        Ok(version) => {
            print(format_args!("version {version}"))?;
            Ok(Outcome::Done)
        }
        Err(e @ ClientError::Condition { .. }) => {
            eprintln!("{e}");
            Ok(Outcome::No)
        }
        Err(e) => Err(e.into()),
    }
}
