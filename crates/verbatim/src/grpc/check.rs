//! `verbatim grpc check`: runs the cases of the gRPC interoperability suite.

use std::net::SocketAddr;

use anyhow::{Result, anyhow};
use serde::Serialize;
use stream::RdmaPolicy;

use crate::CommandOutcome;
use crate::args::{NicArgs, PortArgs};
use crate::output::{print_json, print_line};

/// Arguments of `verbatim grpc check`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// The server
    #[arg(value_name = "IP:PORT", value_parser = crate::streams::parse_socket_address)]
    server: SocketAddr,
    /// Use TCP, as clients without RDMA do
    #[arg(long)]
    tcp: bool,
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
  verbatim grpc check 127.0.0.1:50051
  verbatim grpc check 127.0.0.1:50051 --tcp";

#[derive(Serialize)]
struct GrpcCheckResult {
    transport: &'static str,
    #[serde(rename = "passed")]
    passed_cases: Vec<&'static str>,
    failure: Option<String>,
}

/// Runs `verbatim grpc check`.
pub(super) fn run(args: &Args) -> Result<CommandOutcome> {
    let (policy, transport) = if args.tcp {
        (RdmaPolicy::TcpOnly, "TCP")
    } else {
        (RdmaPolicy::RdmaOnly, "RDMA")
    };
    let config = crate::streams::stream_config(&args.nic, &args.port, policy)?;
    let cases = crate::streams::new_tokio_runtime()?.block_on(async {
        let channel = crate::streams::connect_grpc_channel(args.server, config).await?;
        Ok::<_, anyhow::Error>(grpc_interop::cases::run(channel).await)
    })?;
    let checked = match cases {
        Ok(passed) => GrpcCheckResult {
            transport,
            passed_cases: passed,
            failure: None,
        },
        Err(failure) => GrpcCheckResult {
            transport,
            passed_cases: Vec::new(),
            failure: Some(failure.to_string()),
        },
    };
    if args.json {
        print_json(&checked)?;
    } else if let Some(failure) = &checked.failure {
        return Err(anyhow!("over {transport}: {failure}"));
    } else {
        let (count, names) = (checked.passed_cases.len(), checked.passed_cases.join(", "));
        print_line(format_args!("over {transport} {count} cases pass: {names}"))?;
    }
    Ok(if checked.failure.is_none() {
        CommandOutcome::Done
    } else {
        CommandOutcome::NegativeAnswer
    })
}
