//! Messages to an echo server over each kind of connection, each compared with its echo.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use stream::Connector;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::task::JoinSet;

use super::check::Noise;

/// The transport of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Carrier {
    Rdma,
    Tcp,
    Unix,
}

impl Carrier {
    pub(super) const ALL: [Self; 3] = [Self::Rdma, Self::Tcp, Self::Unix];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Rdma => "RDMA",
            Self::Tcp => "TCP",
            Self::Unix => "Unix socket",
        }
    }
}

/// A connection of any transport.
trait Connection: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Connection for T {}

/// The addresses of the server.
pub(super) struct Target<'a> {
    pub(super) address: SocketAddr,
    pub(super) unix: &'a Path,
    pub(super) connector: &'a Connector,
}

/// The result of a run.
#[derive(Debug)]
pub(super) struct Measured {
    pub(super) messages: u64,
    pub(super) seconds: f64,
    /// The round-trip time of each message in ns, sorted.
    pub(super) latencies: Vec<u64>,
}

/// For `duration`, sends messages of `len` bytes on each connection, and awaits each echo.
pub(super) async fn run(
    target: &Target<'_>,
    carrier: Carrier,
    connections: usize,
    len: usize,
    duration: Duration,
) -> Result<Measured> {
    let mut streams = Vec::new();
    for _ in 0..connections {
        let one = connect(target, carrier).await;
        streams.push(one.with_context(|| format!("cannot connect by {}", carrier.name()))?);
    }
    let begun = Instant::now();
    let mut clients = JoinSet::new();
    for (stream, seed) in streams.into_iter().zip(1..) {
        clients.spawn(client(stream, seed, len, begun + duration));
    }
    let mut latencies = Vec::new();
    let mut seconds = 0f64;
    while let Some(client) = clients.join_next().await {
        latencies.extend(client.context("a client ended early")??);
        seconds = seconds.max(begun.elapsed().as_secs_f64());
    }
    latencies.sort_unstable();
    Ok(Measured {
        messages: u64::try_from(latencies.len())?,
        seconds,
        latencies,
    })
}

async fn connect(target: &Target<'_>, carrier: Carrier) -> Result<Box<dyn Connection>> {
    Ok(match carrier {
        Carrier::Rdma => {
            let stream = target.connector.connect(target.address).await?;
            ensure!(stream.is_rdma(), "the server declines RDMA");
            Box::new(stream)
        }
        Carrier::Tcp => {
            let tcp = TcpStream::connect(target.address).await?;
            tcp.set_nodelay(true)?;
            Box::new(tcp)
        }
        Carrier::Unix => Box::new(UnixStream::connect(target.unix).await?),
    })
}

/// Sends messages one after the other. A long message is written and read concurrently, since the
/// buffers may not hold all of it.
async fn client(
    stream: Box<dyn Connection>,
    seed: u64,
    len: usize,
    until: Instant,
) -> Result<Vec<u64>> {
    let (mut reader, mut writer) = tokio::io::split(stream);
    let (mut sent, mut got) = (vec![0; len], vec![0; len]);
    Noise(seed).fill(&mut sent);
    let mut latencies = Vec::new();
    let mut begun = Instant::now();
    while begun < until || latencies.is_empty() {
        // Number the messages, so that no two are equal.
        let count = u64::try_from(latencies.len())?.to_le_bytes();
        let stamp = len.min(count.len());
        sent[..stamp].copy_from_slice(&count[..stamp]);
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
