//! `verbatim stream check`: sends bytes to an echo server and compares the echo, through the
//! blocking interface.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Serialize;
use stream::RdmaPolicy;
use stream::blocking::Connector;
use stream::handshake::HandshakeVersion;

use super::messages::PseudoRandomBytes;
use crate::CommandOutcome;
use crate::args::{self, NicArgs, PortArgs};
use crate::output::{print_json, print_line};
use crate::streams::{parse_socket_address, stream_config};

/// The time limit of one read or write.
const IO_TIMEOUT: Duration = Duration::from_secs(30);

/// Arguments of `verbatim stream check`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// The server
    #[arg(value_name = "IP:PORT", value_parser = parse_socket_address)]
    server: SocketAddr,
    /// How many bytes to send
    #[arg(long, value_name = "N", default_value = "1000000", value_parser = args::integer_parser_in_range("a count of bytes", 0..=1u64 << 40))]
    bytes: u64,
    /// How many of them to send before reading them back
    #[arg(long, value_name = "N", default_value = "10000", value_parser = args::integer_parser_in_range("a count of bytes", 1..=100_000usize))]
    message: usize,
    /// Use TCP where the server has no RDMA
    #[arg(long)]
    fall_back: bool,
    /// Speak version 3 of the handshake
    #[arg(long)]
    v3: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    nic: NicArgs,
    #[command(flatten)]
    port: PortArgs,
}

const EXAMPLES: &str = "\
Examples:
  verbatim stream check 127.0.0.1:8002
  verbatim stream check 127.0.0.1:8002 --bytes 100_000_000 --message 64_000";

#[derive(Serialize)]
struct StreamCheckResult {
    transport: &'static str,
    bytes: u64,
    #[serde(rename = "same")]
    echo_matched: bool,
}

/// Runs `verbatim stream check`.
pub(super) fn run(args: &Args) -> Result<CommandOutcome> {
    let policy = if args.fall_back {
        RdmaPolicy::FallBack
    } else {
        RdmaPolicy::RdmaOnly
    };
    let mut config = stream_config(&args.nic, &args.port, policy)?;
    if args.v3 {
        config.client_handshake_version = HandshakeVersion::V3;
    }
    let stream = Connector::new(config)?.connect(args.server);
    let mut stream = stream.with_context(|| format!("cannot connect to {}", args.server))?;
    stream.set_timeout(Some(IO_TIMEOUT))?;
    let transport = if stream.is_rdma() { "RDMA" } else { "TCP" };
    let (mut noise, mut done, mut same) = (PseudoRandomBytes(1), 0, true);
    let (mut sent, mut got) = (vec![0; args.message], vec![0; args.message]);
    while done < args.bytes && same {
        let left = usize::try_from(args.bytes - done).unwrap_or(usize::MAX);
        let now = left.min(args.message);
        noise.fill(&mut sent[..now]);
        stream.write_all(&sent[..now])?;
        stream.read_exact(&mut got[..now])?;
        same = got[..now] == sent[..now];
        done += u64::try_from(now)?;
    }
    stream.close()?;
    let checked = StreamCheckResult {
        transport,
        bytes: done,
        echo_matched: same,
    };
    if args.json {
        print_json(&checked)?;
    } else {
        let what = if same {
            "came back"
        } else {
            "were sent, and others came back"
        };
        print_line(format_args!("{done} bytes {what} by {transport}"))?;
    }
    Ok(if same {
        CommandOutcome::Done
    } else {
        CommandOutcome::NegativeAnswer
    })
}
