//! A connection in tokio's runtime: polls for a while, then sleeps on the completion channel.

use std::io::{self, IoSlice};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::io::ReadBuf;
use tokio::io::unix::AsyncFd;
use tokio::net::TcpStream;
use verbs::CompletionChannel;

use crate::connection::Connection;
use crate::error::StreamError;

/// Maximum time for which a dropped stream continues to deliver sent data.
const LINGER: Duration = Duration::from_secs(5);

/// Half of a stream that waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Half {
    Reader = 0,
    Writer = 1,
}

/// The tasks that wait for a stream. A descriptor in tokio's reactor has room for one waker, but
/// both tasks may wait for both descriptors.
#[derive(Default)]
struct Waiting([Mutex<Option<Waker>>; 2]);

impl Waiting {
    fn set(&self, half: Half, waker: &Waker) {
        let mut slot = self.0[half as usize]
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if !slot.as_ref().is_some_and(|w| w.will_wake(waker)) {
            *slot = Some(waker.clone());
        }
    }

    fn wake_half(&self, half: Half) {
        let slot = &self.0[half as usize];
        let waker = slot.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Wake for Waiting {
    fn wake(self: Arc<Self>) {
        self.wake_half(Half::Reader);
        self.wake_half(Half::Writer);
    }
}

/// A stream over RDMA.
pub(crate) struct Rdma {
    /// TCP connection, which is silent; its end of file is the peer's close.
    tcp: TcpStream,
    channel: AsyncFd<CompletionChannel>,
    connection: Connection,
    spin: Duration,
    /// Start of the current period without progress.
    idle_since: Option<Instant>,
    waiting: Arc<Waiting>,
    /// Wakes both halves.
    waker: Waker,
    /// True once the marker that ends this side's data is posted.
    marker_posted: bool,
}

impl Rdma {
    pub(crate) fn new(tcp: TcpStream, connection: Connection, spin: Duration) -> io::Result<Self> {
        let waiting = Arc::new(Waiting::default());
        Ok(Self {
            channel: crate::reactor::watch(connection.channel().clone())?,
            tcp,
            connection,
            spin,
            idle_since: None,
            waker: Waker::from(Arc::clone(&waiting)),
            waiting,
            marker_posted: false,
        })
    }

    pub(crate) fn tcp(&self) -> &TcpStream {
        &self.tcp
    }

    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Polls completions, and wakes the other half if work requests have completed, because they
    /// may concern it too.
    fn progress(&mut self, half: Half) -> bool {
        let any = self.connection.progress();
        if any {
            self.idle_since = None;
            match half {
                Half::Reader => self.waiting.wake_half(Half::Writer),
                Half::Writer => self.waiting.wake_half(Half::Reader),
            }
        }
        any
    }

    /// Waits until progress may be possible. After `Ready`, the caller must check again.
    fn poll_wait(&mut self, half: Half, sends: bool, cx: &mut Context<'_>) -> Poll<()> {
        let now = Instant::now();
        let since = *self.idle_since.get_or_insert(now);
        if now.saturating_duration_since(since) < self.spin {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.waiting.set(half, cx.waker());
        loop {
            // Arm first, then poll: a message after arming raises an event, and the poll finds
            // earlier ones.
            self.connection.arm(sends);
            if self.progress(half) || self.connection.failure().is_some() {
                return Poll::Ready(());
            }
            if self.poll_tcp() {
                return Poll::Ready(());
            }
            let mut cx = Context::from_waker(&self.waker);
            match self.channel.poll_read_ready(&mut cx) {
                Poll::Ready(Ok(mut guard)) => {
                    self.connection.take_events();
                    guard.clear_ready();
                }
                Poll::Ready(Err(e)) => {
                    self.connection.close(StreamError::Verb(e.to_string()));
                    return Poll::Ready(());
                }
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// Checks that the TCP connection is still open and silent, and registers both halves for
    /// changes. Returns true if the connection has ended by this check.
    fn poll_tcp(&mut self) -> bool {
        let mut cx = Context::from_waker(&self.waker);
        while let Poll::Ready(ready) = self.tcp.poll_read_ready(&mut cx) {
            let read = ready.and_then(|()| self.tcp.try_read(&mut [0; 1]));
            let why = match read {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => continue,
                Ok(1..) => StreamError::NotSilent,
                Ok(0) | Err(_) => StreamError::Closed,
            };
            self.connection.close(why);
            return true;
        }
        false
    }

    /// Returns the reason why the stream has ended. If a work request failed because the peer has
    /// closed, the reason is the close.
    fn failure(&self) -> Option<StreamError> {
        let failure = self.connection.failure()?;
        let closed = matches!(failure, StreamError::Failed(_))
            && matches!(self.tcp.try_read(&mut [0; 1]), Ok(0));
        Some(if closed {
            StreamError::Closed
        } else {
            failure.clone()
        })
    }

    /// Waits for received bytes. Returns false at the end of the stream.
    fn poll_unread(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        loop {
            if self.connection.has_unread() {
                self.idle_since = None;
                return Poll::Ready(Ok(true));
            }
            if self.progress(Half::Reader) {
                continue;
            }
            match self.failure() {
                Some(StreamError::Closed) => return Poll::Ready(Ok(false)),
                Some(e) => return Poll::Ready(Err(e.into())),
                None => ready!(self.poll_wait(Half::Reader, false, cx)),
            }
        }
    }

    pub(crate) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if buf.remaining() > 0 && ready!(self.poll_unread(cx))? {
            self.connection.read(|bytes| {
                let now = bytes.len().min(buf.remaining());
                buf.put_slice(&bytes[..now]);
                now
            });
        }
        Poll::Ready(Ok(()))
    }

    pub(crate) fn poll_read_bytes(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<Option<Bytes>>> {
        if ready!(self.poll_unread(cx))? {
            return Poll::Ready(Ok(self.connection.read_bytes()));
        }
        Poll::Ready(Ok(None))
    }

    /// Calls `write` until it has written some bytes.
    fn poll_posting(
        &mut self,
        cx: &mut Context<'_>,
        mut write: impl FnMut(&mut Connection) -> Result<usize, StreamError>,
    ) -> Poll<io::Result<usize>> {
        loop {
            match write(&mut self.connection) {
                Ok(0) => {}
                Ok(written) => {
                    self.idle_since = None;
                    // The peer may answer soon, so the reader polls again for a while.
                    self.waiting.wake_half(Half::Reader);
                    return Poll::Ready(Ok(written));
                }
                Err(e) => return Poll::Ready(Err(self.failure().unwrap_or(e).into())),
            }
            loop {
                self.progress(Half::Writer);
                if self.connection.is_writable() {
                    break;
                }
                ready!(self.poll_wait(Half::Writer, false, cx));
            }
        }
    }

    pub(crate) fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if parts.iter().all(|part| part.is_empty()) {
            return Poll::Ready(Ok(0));
        }
        self.poll_posting(cx, |connection| connection.write(parts))
    }

    pub(crate) fn poll_write_bytes(
        &mut self,
        cx: &mut Context<'_>,
        bytes: &mut Bytes,
    ) -> Poll<io::Result<usize>> {
        if bytes.is_empty() {
            return Poll::Ready(Ok(0));
        }
        self.poll_posting(cx, |connection| connection.write_bytes(bytes))
    }

    /// Waits until the peer's NIC has received everything, then shuts down the TCP connection's
    /// write side.
    pub(crate) fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            self.marker_posted = self.marker_posted || self.connection.post_flush_marker();
            if self.marker_posted && self.connection.is_flushed() {
                break;
            }
            if !self.progress(Half::Writer) {
                ready!(self.poll_wait(Half::Writer, true, cx));
            }
        }
        match self.failure() {
            None | Some(StreamError::Closed) => {}
            Some(e) => return Poll::Ready(Err(e.into())),
        }
        match rustix::net::shutdown(&self.tcp, rustix::net::Shutdown::Write) {
            // `NOTCONN`: the peer has closed first.
            Ok(()) | Err(rustix::io::Errno::NOTCONN) => Poll::Ready(Ok(())),
            Err(e) => Poll::Ready(Err(e.into())),
        }
    }

    /// Keeps the queue pair of a dropped stream until its messages in flight have arrived.
    pub(crate) fn linger(mut self: Box<Self>) {
        if self.connection.is_flushed() {
            return;
        }
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                let shutdown = std::future::poll_fn(|cx| self.poll_shutdown(cx));
                // Ignore the result, which a dropped stream cannot report.
                let _ = tokio::time::timeout(LINGER, shutdown).await;
            });
        }
    }
}

impl Drop for Rdma {
    fn drop(&mut self) {
        // Shut down before the queue pair is destroyed: the peer checks this connection when its
        // work requests fail.
        let _ = rustix::net::shutdown(&self.tcp, rustix::net::Shutdown::Both);
    }
}
