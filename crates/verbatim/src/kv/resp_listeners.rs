//! The listeners of `verbatim kv serve` for clients of the Redis protocol.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use clap::ArgGroup;
use kv::store::Store;
use kv_resp::{
    DEFAULT_MAX_CONNECTIONS, FrontEnd, ListenAddress, Listener, RdmaListener, TlsFiles,
    TlsListener, TlsSettings,
};
use resp_rdma::Connector;

use crate::args;
use crate::nic::OpenNic;

/// Arguments for clients of the Redis protocol.
#[derive(clap::Args)]
#[command(next_help_heading = "Redis protocol")]
#[command(group(ArgGroup::new("resp_address").args(["resp", "resp_tls"]).multiple(true)))]
pub(super) struct RespArgs {
    /// Speak the Redis protocol as well, for redis-cli, at HOST:PORT or the path of a Unix socket
    #[arg(long, value_name = "ADDR")]
    resp: Option<ListenAddress>,
    /// Speak it over RDMA as well, as Valkey does, on the port number of --resp HOST:PORT
    #[arg(long, requires = "resp")]
    rdma: bool,
    /// Bytes of a connection's receive buffer, such as 1M
    #[arg(long, value_name = "BYTES", default_value = "256K", requires = "rdma", value_parser = args::byte_count_parser_up_to(16 << 20))]
    rdma_buffer: usize,
    /// Speak it over TLS at this address, beside --resp or in its place
    #[arg(long, value_name = "ADDR", requires_all = ["tls_cert_file", "tls_key_file"])]
    resp_tls: Option<ListenAddress>,
    /// The server's certificate, followed by those of intermediate authorities (PEM)
    #[arg(long, value_name = "FILE", requires = "resp_tls")]
    tls_cert_file: Option<PathBuf>,
    /// The private key of that certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "resp_tls")]
    tls_key_file: Option<PathBuf>,
    /// Over TLS, serve only clients whose certificates these authorities signed (PEM)
    #[arg(long, value_name = "FILE", requires = "resp_tls")]
    tls_ca_cert_file: Option<PathBuf>,
    /// Clients of the Redis protocol at the same time
    #[arg(long, value_name = "N", default_value_t = DEFAULT_MAX_CONNECTIONS, requires = "resp_address", value_parser = args::integer_parser_in_range("a count of connections", 1..=1_000_000usize))]
    max_connections: usize,
}

/// The addresses at which a server speaks the Redis protocol.
#[derive(Debug, Default)]
pub(super) struct RespAddresses {
    /// TCP or a Unix socket.
    pub(super) plain: Option<ListenAddress>,
    pub(super) rdma: Option<ListenAddress>,
    pub(super) tls: Option<ListenAddress>,
}

impl RespArgs {
    /// Returns true if the server is to speak the Redis protocol.
    pub(super) fn are_given(&self) -> bool {
        self.resp.is_some() || self.resp_tls.is_some()
    }

    /// Serves a store at the addresses.
    pub(super) fn start(
        &self,
        store: Arc<Store>,
        nic: &OpenNic,
    ) -> Result<(FrontEnd, RespAddresses)> {
        let mut listeners = Vec::new();
        let mut addresses = RespAddresses::default();
        let mut add = |listener: Box<dyn Listener>| {
            let address = listener.address();
            listeners.push(listener);
            Some(address)
        };
        if let Some(address) = &self.resp {
            let cannot = || format!("cannot speak the Redis protocol on {address}");
            addresses.plain = add(address.listen().with_context(cannot)?);
        }
        if let (true, Some(plain)) = (self.rdma, &addresses.plain) {
            addresses.rdma = add(self.listen_for_rdma(plain, nic)?);
        }
        if let Some(address) = &self.resp_tls {
            let settings = self.load_tls_settings()?;
            let cannot = || format!("cannot speak the Redis protocol over TLS on {address}");
            addresses.tls = add(TlsListener::listen(address, settings).with_context(cannot)?);
        }
        let most = self.max_connections;
        let front = FrontEnd::start_with_max_connections(store, listeners, most);
        let front = front.context("cannot serve clients of the Redis protocol")?;
        Ok((front, addresses))
    }

    /// Listens for RDMA at the port number of a TCP listener.
    fn listen_for_rdma(&self, plain: &ListenAddress, nic: &OpenNic) -> Result<Box<dyn Listener>> {
        let ListenAddress::Tcp(address) = plain else {
            bail!("--rdma needs --resp HOST:PORT: a path has no port number to listen at");
        };
        let at = address
            .parse()
            .with_context(|| format!("{address} is no address of IP"))?;
        let config = resp_rdma::Config {
            receive_buffer_bytes: u32::try_from(self.rdma_buffer)?,
            ..resp_rdma::Config::default()
        };
        let connector = Connector::new(&nic.context, config)?;
        let rdma = RdmaListener::listen(&connector, at);
        rdma.with_context(|| format!("cannot listen for RDMA at {at}"))
    }

    fn load_tls_settings(&self) -> Result<TlsSettings> {
        let files = TlsFiles {
            certificates: self.tls_cert_file.clone().unwrap_or_default(),
            private_key: self.tls_key_file.clone().unwrap_or_default(),
            client_authorities: self.tls_ca_cert_file.clone(),
        };
        Ok(TlsSettings::load(&files)?)
    }
}
