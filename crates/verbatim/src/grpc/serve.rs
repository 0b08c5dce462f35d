//! `verbatim grpc serve`: runs the test service until a signal stops it.

use std::net::SocketAddr;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use stream::tonic::Incoming;
use stream::{Listener, RdmaPolicy};
use tonic::transport::Server;

use crate::CommandOutcome;
use crate::args::{NicArgs, PortArgs};
use crate::output::{print_line, print_typed_json};
use crate::stop::stop_request_channel;

/// Arguments of `verbatim grpc serve`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// Where to listen; port 0 takes a free one
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:50051", value_parser = crate::streams::parse_socket_address)]
    listen: SocketAddr,
    /// Decline RDMA: clients fall back to TCP
    #[arg(long)]
    tcp_only: bool,
    /// Stop at the end of standard input, too
    #[arg(long)]
    until_eof: bool,
    /// Print a JSON object when it listens
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    nic: NicArgs,
    #[command(flatten)]
    port: PortArgs,
}

const EXAMPLES: &str = "\
Whoever can connect can call it: listen at a loopback address, or in a network that you trust.

Examples:
  verbatim grpc serve
  verbatim grpc serve --listen 10.0.0.7:50051";

/// The line that the server prints when it listens.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ListeningLine {
    pub(super) address: SocketAddr,
}

/// Runs `verbatim grpc serve`.
pub(super) fn run(args: &Args) -> Result<CommandOutcome> {
    let policy = if args.tcp_only {
        RdmaPolicy::TcpOnly
    } else {
        RdmaPolicy::FallBack
    };
    let config = crate::streams::stream_config(&args.nic, &args.port, policy)?;
    let stop = stop_request_channel(args.until_eof)?;
    let runtime = crate::streams::new_tokio_runtime()?;
    let (tell, stopped) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        // The server ends at a message, or when the sending side of the channel is dropped.
        let _ = stop.recv();
        let _ = tell.send(());
    });
    runtime.block_on(async {
        let listener = Listener::bind_with_config(args.listen, config).await;
        let listener = listener.with_context(|| format!("cannot listen at {}", args.listen))?;
        let address = listener.local_addr()?;
        if args.json {
            print_typed_json("listening", &ListeningLine { address })?;
        } else {
            print_line(format_args!("gRPC at {address}, by RDMA and by TCP"))?;
        }
        // The server does not wait for its clients, which may never close their connections.
        tokio::select! {
            served = Server::builder()
                .add_service(grpc_interop::server())
                .serve_with_incoming(Incoming::new(listener)) => served?,
            _ = stopped => {}
        }
        Ok(CommandOutcome::Done)
    })
}
