//! Accepting streams from clients: the server's side of the handshake.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::connector::read_handshake_bytes;
use crate::error::SetupError;
use crate::handshake::{ClientRequest, ServerHandshake};
use crate::nic::{Config, ConfigAndNic, RdmaPolicy};
use crate::rdma_stream::RdmaStream;
use crate::stream::Stream;
use crate::tcp_beside_rdma;

/// Number of TCP connections that the kernel completes before they are accepted, at most `net.core.somaxconn`. Beyond it
/// the kernel drops the first packet of a client, which tries again after one second.
pub(crate) const BACKLOG: i32 = 4096;

/// Maximum number of simultaneous handshakes.
const MAX_PENDING_HANDSHAKES: usize = 1024;

/// Accepts connections on a TCP port, by RDMA and by plain TCP.
///
/// The first bytes of a client tell RDMA from plain TCP. Clients must therefore send first, as
/// clients of HTTP, gRPC and Redis do. A client that sends nothing within
/// [`handshake_timeout`](Config::handshake_timeout) is disconnected.
#[derive(Debug)]
pub struct Listener {
    tcp: TcpListener,
    config_and_nic: Arc<ConfigAndNic>,
    /// Handshakes in progress, each in its own task, so that a slow client delays no other client.
    handshakes: JoinSet<Result<Stream, SetupError>>,
}

impl Listener {
    /// Listens at `address` on the software NIC, with the defaults of [`Config`].
    ///
    /// # Errors
    /// Returns an error if the address cannot be used, or the device cannot be opened.
    pub async fn bind(address: SocketAddr) -> io::Result<Self> {
        Self::bind_with_config(address, Config::default()).await
    }

    /// Listens at `address`.
    ///
    /// # Errors
    /// Returns an error if the address cannot be used, a value of the configuration is invalid, or
    /// RDMA is required and the device cannot be opened.
    pub async fn bind_with_config(address: SocketAddr, config: Config) -> io::Result<Self> {
        let setup = ConfigAndNic::new(config)?;
        let tcp = TcpListener::bind(address).await?;
        rustix::net::listen(&tcp, BACKLOG)?;
        Ok(Self {
            tcp,
            config_and_nic: Arc::new(setup),
            handshakes: JoinSet::new(),
        })
    }

    /// Returns the address on which the listener listens.
    ///
    /// # Errors
    /// Returns an error if the system does not report the address.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.tcp.local_addr()
    }

    /// Waits for the next stream whose handshake is complete. A client whose handshake fails is
    /// disconnected, and the log states the reason.
    ///
    /// # Errors
    /// Returns an error if the system accepts no more connections, for example for lack of
    /// descriptors; the listener remains usable.
    pub async fn accept(&mut self) -> io::Result<Stream> {
        std::future::poll_fn(|cx| self.poll_accept(cx)).await
    }

    /// Polls for the next stream whose handshake is complete; the poll form of
    /// [`accept`](Self::accept).
    ///
    /// # Errors
    /// Returns the errors of [`accept`](Self::accept).
    pub fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Stream>> {
        loop {
            if let Poll::Ready(Some(finished)) = self.handshakes.poll_join_next(cx) {
                match finished {
                    Ok(Ok(stream)) => return Poll::Ready(Ok(stream)),
                    Ok(Err(why)) => tracing::info!(%why, "a client is disconnected"),
                    Err(why) => tracing::error!(%why, "a handshake was given up"),
                }
                continue;
            }
            if self.handshakes.len() >= MAX_PENDING_HANDSHAKES {
                return Poll::Pending;
            }
            let (tcp, client) = ready!(self.tcp.poll_accept(cx))?;
            let setup = Arc::clone(&self.config_and_nic);
            self.handshakes.spawn(async move {
                let limit = setup.config.handshake_timeout;
                let finished = tokio::time::timeout(
                    limit,
                    negotiate_rdma_or_tcp_as_server(tcp, &setup, client),
                )
                .await;
                finished.unwrap_or(Err(SetupError::TimedOut(client)))
            });
        }
    }
}

async fn negotiate_rdma_or_tcp_as_server(
    mut tcp: TcpStream,
    setup: &ConfigAndNic,
    client: SocketAddr,
) -> Result<Stream, SetupError> {
    tcp_beside_rdma::set_tcp_options(&tcp)?;
    let mut server = ServerHandshake::new();
    let request = loop {
        let bytes = read_handshake_bytes(&mut tcp, server.max_bytes_to_read()).await?;
        if let Some(request) = server.receive(&bytes)? {
            break request;
        }
    };
    let required = setup.config.rdma_policy == RdmaPolicy::RdmaOnly;
    let hello = match request {
        ClientRequest::OtherProtocol(_) if required => {
            return Err(SetupError::PeerOffersOnlyTcp(client));
        }
        ClientRequest::OtherProtocol(first) => return Ok(Stream::over_tcp(tcp, first)),
        ClientRequest::Rdma(hello) => Some(hello),
        ClientRequest::MustDecline => None,
    };
    // Connect before the answer is sent: the client may send data as soon as it has received the
    // answer.
    let mut reactor = None;
    let connected = hello.and_then(|hello| {
        setup.connect_and_make_answer(&hello, |nic| {
            nic.prepare_qp(reactor.insert(nic.reactor()?).channel())
        })
    });
    let answer = server.encode_answer(connected.as_ref().map(|(_, own)| own));
    tcp.write_all(&answer).await?;
    let wanted = loop {
        let bytes = read_handshake_bytes(&mut tcp, server.max_bytes_to_read()).await?;
        if let Some(wanted) = server.receive_ack(&bytes)? {
            break wanted;
        }
    };
    match connected.zip(reactor) {
        Some(((connection, _), reactor)) if wanted => {
            let rdma = RdmaStream::new(tcp, connection, reactor, setup.config.spin_time);
            Ok(Stream::over_rdma(rdma))
        }
        _ if required => Err(SetupError::PeerOffersOnlyTcp(client)),
        _ => Ok(Stream::over_tcp(tcp, Vec::new())),
    }
}
