//! `verbatim grpc`: tonic over the stream of the crate `stream`, beside tonic over TCP.

mod check;
mod compare;
mod load;
mod serve;

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Subcommand;
use stream::{Config, Policy};

use crate::Outcome;
use crate::args::{self, NicArgs, PortArgs};

/// Arguments of `verbatim grpc`.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true, after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    compare: compare::Args,
}

const EXAMPLES: &str = "\
Starts a server of tonic on a core of its own, and has a client on another core call it over RDMA and over TCP in turn, on one \
connection each. Every response is checked.

Examples:
  verbatim grpc
  verbatim grpc --outstanding 16 --payload 8000 --rounds 9 --json";

#[derive(Subcommand)]
enum Command {
    /// The test service of gRPC's interoperability suite, by RDMA and by TCP on one port, until a signal
    Serve(serve::Args),
    /// The cases of the interoperability suite against a server
    Check(check::Args),
}

/// Runs the command.
pub(crate) fn run(args: Args) -> Result<Outcome> {
    match args.command {
        None => compare::run(&args.compare),
        Some(Command::Serve(args)) => serve::run(&args),
        Some(Command::Check(args)) => check::run(&args),
    }
}

/// How streams are made on a NIC.
pub(crate) fn config(nic: &NicArgs, port: &PortArgs, policy: Policy) -> Result<Config> {
    nic.settle()?;
    Ok(Config {
        policy,
        provider: nic.provider.name().to_owned(),
        device: nic.device.clone(),
        port_num: port.port_num,
        gid_index: port.gid_index,
        ..Config::default()
    })
}

/// A runtime of one thread, as each side of a measurement has it.
pub(crate) fn runtime() -> Result<tokio::runtime::Runtime> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.context("cannot start tokio")
}

/// A channel to a server, and whether it goes by RDMA.
async fn connect(address: SocketAddr, config: Config) -> Result<tonic::transport::Channel> {
    let connect = stream::tonic::Connect::new(stream::Connector::new(config)?);
    let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{address}"))?;
    let endpoint = endpoint.connect_timeout(Duration::from_secs(10));
    let channel = endpoint.connect_with_connector(connect).await;
    channel.with_context(|| format!("cannot connect to {address}"))
}

/// A socket address on the command line.
pub(crate) fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        format!("{text:?} is no address: write IP:PORT, such as 127.0.0.1:50051 or [::1]:50051")
    })
}

/// The number parser of a payload.
fn payload() -> impl Fn(&str) -> Result<usize, String> + Clone + Send + Sync + 'static {
    args::number("a payload in bytes", 0..=1_048_576usize)
}
