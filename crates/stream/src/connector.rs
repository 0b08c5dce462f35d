//! Connecting streams: the client's side of the handshake.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::error::SetupError;
use crate::handshake::{ClientHandshake, ServerAnswer, encode_ack};
use crate::nic::{Config, ConfigAndNic, RdmaPolicy};
use crate::prepared_connection::PreparedConnection;
use crate::rdma_stream::RdmaStream;
use crate::reactor::Reactor;
use crate::stream::Stream;
use crate::tcp_beside_rdma;

/// Connects tokio streams to servers. Clones of a connector share the device and its pool.
#[derive(Debug, Clone)]
pub struct Connector {
    config_and_nic: Arc<ConfigAndNic>,
}

impl Connector {
    /// Creates a connector with its own device.
    ///
    /// # Errors
    /// Returns an error if a value of the configuration is invalid, or RDMA is required and the
    /// device cannot be opened.
    pub fn new(config: Config) -> Result<Self, SetupError> {
        Ok(Self {
            config_and_nic: Arc::new(ConfigAndNic::new(config)?),
        })
    }

    /// Returns the default connector of the process. The connector uses the software NIC, or TCP if
    /// a server has no RDMA.
    ///
    /// # Errors
    /// Returns an error if the device cannot be opened.
    pub fn process_default() -> io::Result<Self> {
        static SHARED: OnceLock<Connector> = OnceLock::new();
        if let Some(shared) = SHARED.get() {
            return Ok(shared.clone());
        }
        let new = Self::new(Config::default())?;
        Ok(SHARED.get_or_init(|| new).clone())
    }

    /// Connects to a server: TCP first, then the handshake. If the server speaks another protocol,
    /// the connector connects again by plain TCP, unless RDMA is required. Such a server answers
    /// the hello with other bytes, closes the connection, or sends nothing within
    /// [`handshake_timeout`](Config::handshake_timeout).
    ///
    /// # Errors
    /// Returns an error if no server listens at the address, the handshake fails, or RDMA is
    /// required and unavailable.
    pub async fn connect(&self, address: SocketAddr) -> io::Result<Stream> {
        let setup = &*self.config_and_nic;
        let tcp = connect_tcp(address).await?;
        let prepared = setup.prepare_client(|nic| {
            let reactor = nic.reactor()?;
            Ok((nic.prepare_qp(reactor.channel())?, reactor))
        })?;
        let Some((prepared, reactor)) = prepared else {
            return Ok(Stream::over_tcp(tcp, Vec::new()));
        };
        let mut answered = false;
        let handshake =
            negotiate_rdma_or_tcp_as_client(tcp, prepared, reactor, setup, address, &mut answered);
        let finished = tokio::time::timeout(setup.config.handshake_timeout, handshake).await;
        match finished.unwrap_or(Err(SetupError::TimedOut(address))) {
            Err(why) if setup.must_connect_by_tcp(&why, answered) => {
                tracing::debug!(%address, %why, "no hello from the server: plain TCP");
                Ok(Stream::over_tcp(connect_tcp(address).await?, Vec::new()))
            }
            other => Ok(other?),
        }
    }
}

impl Stream {
    /// Connects with the process's default [`Connector`], on the software NIC.
    ///
    /// # Errors
    /// Returns an error if no server listens at the address, or the handshake fails.
    pub async fn connect(address: SocketAddr) -> io::Result<Self> {
        Connector::process_default()?.connect(address).await
    }
}

async fn connect_tcp(address: SocketAddr) -> io::Result<TcpStream> {
    let tcp = TcpStream::connect(address).await?;
    tcp_beside_rdma::set_tcp_options(&tcp)?;
    Ok(tcp)
}

async fn negotiate_rdma_or_tcp_as_client(
    mut tcp: TcpStream,
    prepared: PreparedConnection,
    reactor: Arc<Reactor>,
    setup: &ConfigAndNic,
    address: SocketAddr,
    answered: &mut bool,
) -> Result<Stream, SetupError> {
    let (mut client, hello) =
        ClientHandshake::new(setup.config.client_handshake_version, &prepared.hello());
    tcp.write_all(&hello).await?;
    let answer = loop {
        let bytes = read_handshake_bytes(&mut tcp, client.max_bytes_to_read()).await?;
        *answered = true;
        if let Some(answer) = client.receive(&bytes)? {
            break answer;
        }
    };
    // Connect before the acknowledgement is sent: the server may send data as soon as it has
    // received the acknowledgement.
    let connected = match answer {
        ServerAnswer::Rdma(hello) => prepared
            .connect(&hello)
            .inspect_err(|why| tracing::warn!(%why, %address, "the stream goes by TCP"))
            .ok(),
        ServerAnswer::Tcp => None,
    };
    tcp.write_all(&encode_ack(connected.is_some())).await?;
    match connected {
        Some(connection) => {
            let rdma = RdmaStream::new(tcp, connection, reactor, setup.config.spin_time);
            Ok(Stream::over_rdma(rdma))
        }
        None if setup.config.rdma_policy == RdmaPolicy::RdmaOnly => {
            Err(SetupError::PeerOffersOnlyTcp(address))
        }
        None => Ok(Stream::over_tcp(tcp, Vec::new())),
    }
}

/// Reads the next bytes of a handshake: at least one, at most `wants`.
pub(crate) async fn read_handshake_bytes(tcp: &mut TcpStream, wants: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; wants];
    let read = tcp.read(&mut bytes).await?;
    if read == 0 {
        return Err(io::Error::new(
            io::ErrorKind::UnexpectedEof,
            "the peer has closed the connection in the handshake",
        ));
    }
    bytes.truncate(read);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rustix::net::sockopt::{socket_keepalive, tcp_keepidle};

    use crate::Listener;

    use super::*;

    #[test]
    fn connections_have_keepalive() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            let any = "127.0.0.1:0".parse().expect("an address");
            let mut listener = Listener::bind(any).await.expect("listens");
            let address = listener.local_addr().expect("an address");
            let (client, server) = tokio::join!(Stream::connect(address), listener.accept());
            for stream in [client.expect("connects"), server.expect("accepts")] {
                let tcp = stream.tcp_stream();
                assert!(socket_keepalive(tcp).expect("an option"));
                let idle = tcp_keepidle(tcp).expect("an option");
                assert_eq!(idle, Duration::from_secs(60));
            }
        });
    }
}
