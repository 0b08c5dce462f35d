//! Functions that several commands share which use the crate `stream`.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use stream::{Config, RdmaPolicy};

use crate::args::{self, NicArgs, PortArgs};

/// Returns the configuration of streams on a NIC.
pub(crate) fn stream_config(nic: &NicArgs, port: &PortArgs, policy: RdmaPolicy) -> Result<Config> {
    nic.apply_by_reexec()?;
    Ok(Config {
        rdma_policy: policy,
        provider: nic.provider.name().to_owned(),
        device: nic.device.clone(),
        port_num: port.port_num,
        gid_index: port.gid_index,
        ..Config::default()
    })
}

/// Raises the soft limit of open descriptors to the hard limit. Each connection needs a descriptor, and shells often
/// allow 1,024.
pub(crate) fn raise_descriptor_limit() -> Result<()> {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    setrlimit(Resource::Nofile, raised).context("cannot raise the limit of open descriptors")
}

/// Returns a tokio runtime of one thread.
pub(crate) fn new_tokio_runtime() -> Result<tokio::runtime::Runtime> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.context("cannot start tokio")
}

/// Connects a gRPC channel to a server.
pub(crate) async fn connect_grpc_channel(
    address: SocketAddr,
    config: Config,
) -> Result<tonic::transport::Channel> {
    let connect = stream::tonic::TonicConnector::new(stream::Connector::new(config)?);
    let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{address}"))?;
    let endpoint = endpoint.connect_timeout(Duration::from_secs(10));
    let channel = endpoint.connect_with_connector(connect).await;
    channel.with_context(|| format!("cannot connect to {address}"))
}

/// Parses a socket address on the command line.
pub(crate) fn parse_socket_address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        format!("{text:?} is no address: write IP:PORT, such as 127.0.0.1:50051 or [::1]:50051")
    })
}

/// Returns a parser of payload sizes.
pub(crate) fn payload_size_parser()
-> impl Fn(&str) -> Result<usize, String> + Clone + Send + Sync + 'static {
    args::byte_count_parser_up_to(1 << 20)
}
