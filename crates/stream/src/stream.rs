//! The byte stream for tokio.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::pool::{Block, Pool};
use crate::rdma_stream::RdmaStream;

/// A byte stream to a peer, over RDMA, or over TCP if a side cannot use RDMA.
///
/// A stream is used like a `TcpStream`. In addition, [`send`](Self::send) and
/// [`receive`](Self::receive) move [`Bytes`] without copying them.
///
/// - *Back-pressure*: if a peer does not read, its blocks stay occupied, and writes of this side wait.
/// - *Close*: `shutdown` waits until the peer's NIC has received all sent bytes. The peer then reads these
///   bytes and the end of file. Later writes fail with `BrokenPipe`. The protocol has no half close: after `shutdown`,
///   no more data can be expected from the peer. A dropped stream continues to deliver sent data for up to 5 s, in a task of the runtime.
///   If the runtime ends, or no runtime is there, the drop blocks instead, for up to 1 s. After that the peer's reads fail
///   with `ConnectionReset`.
/// - *Two halves* (`tokio::io::split`) of a stream may be used by two tasks.
#[derive(Debug)]
pub struct Stream {
    rdma_or_tcp: RdmaOrTcp,
}

enum RdmaOrTcp {
    /// A stream over RDMA; `None` while the stream is being dropped.
    Rdma(Option<Box<RdmaStream>>),
    Tcp(PlainTcp),
}

/// A plain TCP connection, with the bytes that were read from it during the handshake.
struct PlainTcp {
    tcp: TcpStream,
    handshake_leftover: Bytes,
}

impl std::fmt::Debug for RdmaOrTcp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Rdma(Some(rdma)) => write!(f, "{:?}", rdma.connection()),
            Self::Rdma(None) => f.write_str("closed"),
            Self::Tcp(tcp) => write!(f, "{:?}", tcp.tcp),
        }
    }
}

impl Stream {
    pub(crate) fn over_rdma(rdma: RdmaStream) -> Self {
        Self {
            rdma_or_tcp: RdmaOrTcp::Rdma(Some(Box::new(rdma))),
        }
    }

    pub(crate) fn over_tcp(tcp: TcpStream, first: Vec<u8>) -> Self {
        let first = first.into();
        Self {
            rdma_or_tcp: RdmaOrTcp::Tcp(PlainTcp {
                tcp,
                handshake_leftover: first,
            }),
        }
    }

    pub(crate) fn tcp_stream(&self) -> &TcpStream {
        match &self.rdma_or_tcp {
            RdmaOrTcp::Rdma(Some(rdma)) => rdma.tcp(),
            RdmaOrTcp::Rdma(None) => unreachable!("a dropped stream is not used"),
            RdmaOrTcp::Tcp(tcp) => &tcp.tcp,
        }
    }

    /// Returns true if the stream uses RDMA.
    pub fn is_rdma(&self) -> bool {
        matches!(self.rdma_or_tcp, RdmaOrTcp::Rdma(_))
    }

    /// Returns the peer's address.
    ///
    /// # Errors
    /// Returns an error if the connection has ended.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.tcp_stream().peer_addr()
    }

    /// Returns this side's address.
    ///
    /// # Errors
    /// Returns an error if the system does not report the address.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.tcp_stream().local_addr()
    }

    /// Returns the pool whose blocks are sent without a copy, or `None` if the stream uses TCP.
    pub fn pool(&self) -> Option<&Pool> {
        match &self.rdma_or_tcp {
            RdmaOrTcp::Rdma(Some(rdma)) => Some(rdma.connection().pool()),
            _ => None,
        }
    }

    /// Returns a block of the pool to fill, freeze and send, or `None` if the stream uses TCP.
    ///
    /// # Errors
    /// Returns an error if memory cannot be registered.
    pub fn take_block(&self) -> io::Result<Option<Block>> {
        Ok(self.pool().map(Pool::take_block).transpose()?)
    }

    /// Sends all of `bytes`, without a copy if they are in [blocks](Self::take_block) of the pool,
    /// including received blocks.
    ///
    /// # Errors
    /// Returns an error if the connection has ended.
    pub async fn send(&mut self, mut bytes: Bytes) -> io::Result<()> {
        while !bytes.is_empty() {
            std::future::poll_fn(|cx| self.poll_send(cx, &mut bytes)).await?;
        }
        Ok(())
    }

    /// Sends as many bytes as the window permits, and removes them from the front of `bytes`. Returns the
    /// number of sent bytes.
    ///
    /// # Errors
    /// Returns an error if the connection has ended.
    pub fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        bytes: &mut Bytes,
    ) -> Poll<io::Result<usize>> {
        match &mut self.rdma_or_tcp {
            RdmaOrTcp::Rdma(Some(rdma)) => rdma.poll_write_bytes(cx, bytes),
            RdmaOrTcp::Rdma(None) => Poll::Ready(Ok(0)),
            RdmaOrTcp::Tcp(tcp) => Pin::new(&mut tcp.tcp)
                .poll_write(cx, bytes)
                .map_ok(|written| {
                    bytes.advance(written);
                    written
                }),
        }
    }

    /// Returns the next bytes in the pieces in which they arrived. Pieces of 512 bytes or more are not
    /// copied, and hold a block of the pool until they are dropped. Returns `None` at the end of the stream.
    ///
    /// # Errors
    /// Returns an error if the connection has failed.
    pub async fn receive(&mut self) -> io::Result<Option<Bytes>> {
        std::future::poll_fn(|cx| self.poll_receive(cx)).await
    }

    /// Polls for the next bytes; the poll form of [`receive`](Self::receive).
    ///
    /// # Errors
    /// Returns an error if the connection has failed.
    pub fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<Bytes>>> {
        match &mut self.rdma_or_tcp {
            RdmaOrTcp::Rdma(Some(rdma)) => rdma.poll_read_bytes(cx),
            RdmaOrTcp::Rdma(None) => Poll::Ready(Ok(None)),
            RdmaOrTcp::Tcp(tcp) => {
                let mut room = vec![0; 16 << 10];
                let mut buf = ReadBuf::new(&mut room);
                let read = tcp.poll_read(cx, &mut buf);
                let len = buf.filled().len();
                read.map_ok(|()| {
                    room.truncate(len);
                    (len > 0).then(|| Bytes::from(room))
                })
            }
        }
    }
}

impl PlainTcp {
    fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.handshake_leftover.is_empty() {
            return Pin::new(&mut self.tcp).poll_read(cx, buf);
        }
        let now = self.handshake_leftover.len().min(buf.remaining());
        buf.put_slice(&self.handshake_leftover.split_to(now));
        Poll::Ready(Ok(()))
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut self.rdma_or_tcp {
            RdmaOrTcp::Rdma(Some(rdma)) => rdma.poll_read(cx, buf),
            RdmaOrTcp::Rdma(None) => Poll::Ready(Ok(())),
            RdmaOrTcp::Tcp(tcp) => tcp.poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.rdma_or_tcp {
            RdmaOrTcp::Rdma(Some(rdma)) => rdma.poll_write(cx, parts),
            RdmaOrTcp::Rdma(None) => Poll::Ready(Ok(0)),
            RdmaOrTcp::Tcp(tcp) => Pin::new(&mut tcp.tcp).poll_write_vectored(cx, parts),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Nothing is left to flush: written bytes are already posted, or in the socket.
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.rdma_or_tcp {
            RdmaOrTcp::Rdma(Some(rdma)) => rdma.poll_shutdown(cx),
            RdmaOrTcp::Rdma(None) => Poll::Ready(Ok(())),
            RdmaOrTcp::Tcp(tcp) => Pin::new(&mut tcp.tcp).poll_shutdown(cx),
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if let RdmaOrTcp::Rdma(rdma) = &mut self.rdma_or_tcp
            && let Some(rdma) = rdma.take()
        {
            rdma.linger();
        }
    }
}
