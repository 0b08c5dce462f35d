//! A stream over RDMA in tokio's runtime: it polls for a while, then sleeps on the completion
//! channel.

use std::io::{self, IoSlice};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::io::{Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio::task::coop;

use crate::connection::Connection;
use crate::error::StreamError;
use crate::reactor::{Reactor, Registration};
use crate::read_limit::ReadLimit;
use crate::spin::Spin;
use crate::tcp_beside_rdma;

/// Maximum time for which a dropped stream continues to deliver sent data.
const DROP_DELIVERY_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum time for which the drop of a stream blocks without a runtime to deliver sent data, as the drop of a blocking
/// stream does.
const DROP_FLUSH_TIMEOUT: Duration = Duration::from_secs(1);
/// First and longest pause between two polls while the drop of a stream blocks.
const FIRST_AND_MAX_FLUSH_POLL_PAUSE: (Duration, Duration) =
    (Duration::from_micros(20), Duration::from_millis(5));

/// The half of a stream, reader or writer, whose task waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Half {
    Reader = 0,
    Writer = 1,
}

/// The tasks that wait for a stream. tokio's reactor keeps one waker per descriptor, but reader and
/// writer may both wait for both descriptors.
#[derive(Default)]
struct HalfWakers([Mutex<Option<Waker>>; 2]);

impl HalfWakers {
    fn set_waker(&self, half: Half, waker: &Waker) {
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

impl Wake for HalfWakers {
    fn wake(self: Arc<Self>) {
        self.wake_half(Half::Reader);
        self.wake_half(Half::Writer);
    }
}

/// A stream over RDMA.
pub(crate) struct RdmaStream {
    /// TCP connection of the stream, which carries no bytes; its end of file means that the peer
    /// has closed the stream.
    tcp: TcpStream,
    connection: Connection,
    registration: Registration,
    spin: Spin,
    read_limit: ReadLimit,
    half_wakers: Arc<HalfWakers>,
    /// Waker that wakes the tasks of both halves.
    waker: Waker,
    /// True once a marker is posted behind all data of this side.
    flush_marker_posted: bool,
    /// True once `shutdown` has ended this side's data.
    is_shut_down: bool,
    /// End of the delivery of sent data, once the stream is dropped.
    delivery_deadline: Option<Instant>,
}

impl RdmaStream {
    /// Makes a stream of a connection whose completion queue is on the channel of `reactor`.
    pub(crate) fn new(
        tcp: TcpStream,
        connection: Connection,
        reactor: Arc<Reactor>,
        spin: Duration,
    ) -> Self {
        let waiting = Arc::new(HalfWakers::default());
        let waker = Waker::from(Arc::clone(&waiting));
        Self {
            tcp,
            registration: reactor.register(connection.cq(), waker.clone()),
            connection,
            spin: Spin::new(spin),
            read_limit: ReadLimit::new(),
            waker,
            half_wakers: waiting,
            flush_marker_posted: false,
            is_shut_down: false,
            delivery_deadline: None,
        }
    }

    pub(crate) fn tcp(&self) -> &TcpStream {
        &self.tcp
    }

    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Polls completions. If work requests have completed, wakes the other half, which may wait for
    /// these completions.
    fn progress(&mut self, half: Half) -> bool {
        let any = self.connection.progress();
        if any {
            self.spin.record_progress(Instant::now);
            match half {
                Half::Reader => self.half_wakers.wake_half(Half::Writer),
                Half::Writer => self.half_wakers.wake_half(Half::Reader),
            }
        }
        any
    }

    /// Waits until progress may be possible. After `Ready`, the caller must check again.
    fn poll_wait(&mut self, half: Half, sends: bool, cx: &mut Context<'_>) -> Poll<()> {
        if self.spin.should_poll_again(Instant::now()) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.half_wakers.set_waker(half, cx.waker());
        // Arm first, then poll: a message after arming raises an event, for which the reactor wakes the task, and the
        // poll finds earlier messages.
        self.connection.arm_cq(sends);
        if self.progress(half) || self.connection.failure().is_some() || self.fail_if_tcp_ended() {
            return Poll::Ready(());
        }
        Poll::Pending
    }

    /// Checks that the TCP connection is still open and without data, and registers both halves for
    /// changes. Returns true if the check failed and has closed the stream's connection.
    fn fail_if_tcp_ended(&mut self) -> bool {
        let mut cx = Context::from_waker(&self.waker);
        while let Poll::Ready(ready) = self.tcp.poll_read_ready(&mut cx) {
            let peeked = ready.and_then(|()| {
                // The runtime forgets the readiness of the socket at `WouldBlock`.
                self.tcp.try_io(Interest::READABLE, || {
                    tcp_beside_rdma::reason_of_end_if_ended(&self.tcp)
                        .ok_or(io::ErrorKind::WouldBlock.into())
                })
            });
            let why = match peeked {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => continue,
                Ok(why) => why,
                Err(e) => StreamError::Tcp(e.to_string()),
            };
            self.connection.close(why);
            return true;
        }
        false
    }

    /// Returns the reason why the stream has ended. If a work request failed because the peer has
    /// closed the connection, the function returns that close as the reason.
    fn failure(&mut self) -> Option<StreamError> {
        // Ask the socket and not the runtime, which may not have noticed the close yet.
        self.connection
            .set_cause_of_failed_wr(|| tcp_beside_rdma::reason_of_end_if_ended(&self.tcp));
        self.connection.failure().cloned()
    }

    /// Waits for received bytes. Returns false at the end of the stream. A task that has used up its budget in the
    /// runtime yields first, although bytes may have been received.
    fn poll_for_received_bytes(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        let budget = ready!(coop::poll_proceed(cx));
        let unread = loop {
            if self.connection.has_unread() {
                self.spin.record_progress(Instant::now);
                break Ok(true);
            }
            if self.progress(Half::Reader) {
                continue;
            }
            match self.failure() {
                Some(StreamError::ClosedByPeer) => break Ok(false),
                Some(e) => break Err(e.into()),
                None => ready!(self.poll_wait(Half::Reader, false, cx)),
            }
        };
        budget.made_progress();
        Poll::Ready(unread)
    }

    pub(crate) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if buf.remaining() > 0 && self.read_limit.must_yield(Instant::now) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        if buf.remaining() > 0 && ready!(self.poll_for_received_bytes(cx))? {
            let room = buf.remaining().min(self.read_limit.max_next_read_bytes());
            let mut read = 0;
            self.connection.read(|bytes| {
                let now = bytes.len().min(room - read);
                buf.put_slice(&bytes[..now]);
                read += now;
                now
            });
            self.read_limit.record_read(read, Instant::now());
        }
        Poll::Ready(Ok(()))
    }

    pub(crate) fn poll_read_bytes(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<Option<Bytes>>> {
        if ready!(self.poll_for_received_bytes(cx))? {
            return Poll::Ready(Ok(self.connection.read_bytes()));
        }
        Poll::Ready(Ok(None))
    }

    /// Calls `write` until it has written some bytes. A task that has used up its budget in the runtime yields first.
    fn poll_write_until_some_bytes(
        &mut self,
        cx: &mut Context<'_>,
        mut write: impl FnMut(&mut Connection) -> Result<usize, StreamError>,
    ) -> Poll<io::Result<usize>> {
        if self.is_shut_down {
            let why = "the stream is shut down, so it sends no more bytes";
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::BrokenPipe, why)));
        }
        let budget = ready!(coop::poll_proceed(cx));
        let written = loop {
            match write(&mut self.connection) {
                Ok(0) => {}
                Ok(written) => {
                    self.spin.record_progress(Instant::now);
                    self.read_limit.record_write();
                    // These bytes need a marker of their own, if a shutdown was begun and given up.
                    self.flush_marker_posted = false;
                    // The peer may answer soon, so make the reader poll again for a while.
                    self.half_wakers.wake_half(Half::Reader);
                    break Ok(written);
                }
                Err(e) => break Err(self.failure().unwrap_or(e).into()),
            }
            loop {
                self.progress(Half::Writer);
                if self.connection.should_writer_retry() {
                    break;
                }
                ready!(self.poll_wait(Half::Writer, false, cx));
            }
        };
        budget.made_progress();
        Poll::Ready(written)
    }

    pub(crate) fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if parts.iter().all(|part| part.is_empty()) {
            return Poll::Ready(Ok(0));
        }
        self.poll_write_until_some_bytes(cx, |connection| connection.write(parts))
    }

    pub(crate) fn poll_write_bytes(
        &mut self,
        cx: &mut Context<'_>,
        bytes: &mut Bytes,
    ) -> Poll<io::Result<usize>> {
        if bytes.is_empty() {
            return Poll::Ready(Ok(0));
        }
        self.poll_write_until_some_bytes(cx, |connection| connection.write_bytes(bytes))
    }

    /// Posts the flush marker if possible. Returns true if the peer's NIC has received all sent bytes, or the stream
    /// has failed.
    fn try_flush(&mut self) -> bool {
        self.flush_marker_posted = self.flush_marker_posted || self.connection.post_flush_marker();
        self.flush_marker_posted && self.connection.is_flushed_or_failed()
    }

    /// Waits until the peer's NIC has received all sent bytes, then shuts down the TCP connection's
    /// write side.
    pub(crate) fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.try_flush() {
            if !self.progress(Half::Writer) {
                ready!(self.poll_wait(Half::Writer, true, cx));
            }
        }
        match self.failure() {
            None | Some(StreamError::ClosedByPeer) => {}
            Some(e) => return Poll::Ready(Err(e.into())),
        }
        self.is_shut_down = true;
        match rustix::net::shutdown(&self.tcp, rustix::net::Shutdown::Write) {
            // `NOTCONN`: the peer has closed first.
            Ok(()) | Err(rustix::io::Errno::NOTCONN) => Poll::Ready(Ok(())),
            Err(e) => Poll::Ready(Err(e.into())),
        }
    }

    /// Keeps the queue pair of a dropped stream until its messages in flight have arrived.
    pub(crate) fn linger(mut self: Box<Self>) {
        if self.connection.is_flushed_or_failed() {
            return;
        }
        self.delivery_deadline = Some(Instant::now() + DROP_DELIVERY_TIMEOUT);
        // Without a runtime, and in a runtime that ends, the stream is dropped at once.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                let shutdown = std::future::poll_fn(|cx| self.poll_shutdown(cx));
                // Ignore the result, because a dropped stream cannot report it.
                let _ = tokio::time::timeout(DROP_DELIVERY_TIMEOUT, shutdown).await;
            });
        }
    }

    /// Blocks until the peer's NIC has received all sent bytes, or `timeout` has passed. No runtime drives this
    /// function, so it polls. Other streams use the completion channel, too, so it cannot sleep there.
    fn flush_without_runtime(&mut self, timeout: Duration) {
        let begun = Instant::now();
        let (mut pause, longest) = FIRST_AND_MAX_FLUSH_POLL_PAUSE;
        while !self.try_flush() {
            if self.connection.progress() {
                continue;
            }
            if let Some(why) = tcp_beside_rdma::reason_of_end_if_ended(&self.tcp) {
                self.connection.close(why);
                continue;
            }
            let Some(left) = timeout.checked_sub(begun.elapsed()) else {
                self.registration.record_failed_flush(timeout);
                return;
            };
            std::thread::sleep(pause.min(left));
            pause = longest.min(2 * pause);
        }
    }
}

impl Drop for RdmaStream {
    fn drop(&mut self) {
        if self.connection.may_lack_sent_bytes() {
            // The task of a dropped stream has ended without success at its deadline, and must not block its thread
            // then.
            let until_deadline = self.delivery_deadline.map_or(Duration::ZERO, |deadline| {
                deadline.saturating_duration_since(Instant::now())
            });
            let allowed = self.registration.remaining_flush_time();
            self.flush_without_runtime(DROP_FLUSH_TIMEOUT.min(until_deadline).min(allowed));
            self.failure();
        }
        // End the TCP connection before the queue pair is destroyed: the peer checks this connection when its work
        // requests fail.
        tcp_beside_rdma::shut_down_or_reset(&self.tcp, self.connection.may_lack_sent_bytes());
    }
}
