//! Sends messages to an echo server over each kind of connection, and compares each message with
//! its echo.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use stream::Connector;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::task::JoinSet;

use super::messages::{PseudoRandomBytes, RunResult, write_number_into};
use super::rsockets;

/// The transport of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Carrier {
    Rdma,
    Tcp,
    Unix,
    Rsocket,
}

impl Carrier {
    pub(super) const ALL: [Self; 4] = [Self::Rdma, Self::Tcp, Self::Unix, Self::Rsocket];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Rdma => "RDMA",
            Self::Tcp => "TCP",
            Self::Unix => "Unix socket",
            Self::Rsocket => "rsocket",
        }
    }
}

/// A connection over any transport.
trait Connection: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Connection for T {}

/// The addresses of the server.
pub(super) struct ServerAddresses<'a> {
    pub(super) tcp_or_rdma_address: SocketAddr,
    pub(super) unix_socket_path: &'a Path,
    /// Address of the server's rsocket, if it has one.
    pub(super) rsocket_address: Option<SocketAddr>,
    pub(super) connector: &'a Connector,
}

/// Sends messages of `len` bytes on each connection for `duration`, and waits for each echo.
pub(super) async fn run(
    target: &ServerAddresses<'_>,
    carrier: Carrier,
    connections: usize,
    len: usize,
    duration: Duration,
) -> Result<RunResult> {
    if carrier == Carrier::Rsocket {
        let server = target
            .rsocket_address
            .context("the server has no rsocket")?;
        return rsockets::run(server, connections, len, duration);
    }
    let mut streams = Vec::new();
    for _ in 0..connections {
        let one = connect(target, carrier).await;
        streams.push(one.with_context(|| format!("cannot connect by {}", carrier.name()))?);
    }
    let begun = Instant::now();
    let mut clients = JoinSet::new();
    for (stream, seed) in streams.into_iter().zip(1..) {
        clients.spawn(measure_echo_round_trips(
            stream,
            seed,
            len,
            begun + duration,
        ));
    }
    let mut latencies = Vec::new();
    let mut seconds = 0f64;
    while let Some(client) = clients.join_next().await {
        latencies.extend(client.context("a client ended early")??);
        seconds = seconds.max(begun.elapsed().as_secs_f64());
    }
    latencies.sort_unstable();
    Ok(RunResult {
        messages: u64::try_from(latencies.len())?,
        seconds,
        sorted_round_trip_ns: latencies,
    })
}

async fn connect(target: &ServerAddresses<'_>, carrier: Carrier) -> Result<Box<dyn Connection>> {
    Ok(match carrier {
        Carrier::Rdma => {
            let stream = target.connector.connect(target.tcp_or_rdma_address).await?;
            ensure!(stream.is_rdma(), "the server declines RDMA");
            Box::new(stream)
        }
        Carrier::Tcp => {
            let mut tcp = TcpStream::connect(target.tcp_or_rdma_address).await?;
            tcp.set_nodelay(true)?;
            // The server cannot tell a client by TCP from one by RDMA before the first bytes, and limits the clients
            // that have sent none.
            let mut echo = [0; 8];
            tcp.write_all(&echo).await?;
            tcp.read_exact(&mut echo).await?;
            Box::new(tcp)
        }
        Carrier::Unix => Box::new(connect_unix(target.unix_socket_path).await?),
        Carrier::Rsocket => bail!("rsockets have clients of their own"),
    })
}

/// Connects to a Unix socket. While the server's backlog is full, `connect(2)` fails with `EAGAIN` instead of waiting,
/// as it does for TCP.
async fn connect_unix(path: &Path) -> std::io::Result<UnixStream> {
    loop {
        match UnixStream::connect(path).await {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            connected => return connected,
        }
    }
}

/// Sends messages one after the other. A long message is written and its echo is read concurrently,
/// since the buffers may not hold the whole message.
async fn measure_echo_round_trips(
    stream: Box<dyn Connection>,
    seed: u64,
    len: usize,
    until: Instant,
) -> Result<Vec<u64>> {
    let (mut reader, mut writer) = tokio::io::split(stream);
    let (mut sent, mut got) = (vec![0; len], vec![0; len]);
    PseudoRandomBytes(seed).fill(&mut sent);
    let mut latencies = Vec::new();
    let mut begun = Instant::now();
    while begun < until || latencies.is_empty() {
        write_number_into(&mut sent, latencies.len())?;
        if len <= 8192 {
            writer.write_all(&sent).await?;
            reader.read_exact(&mut got).await?;
        } else {
            tokio::try_join!(writer.write_all(&sent), reader.read_exact(&mut got))?;
        }
        ensure!(got == sent, "other bytes came back than were sent");
        let now = Instant::now();
        latencies.push(u64::try_from((now - begun).as_nanos())?);
        begun = now;
    }
    writer.shutdown().await?;
    Ok(latencies)
}
