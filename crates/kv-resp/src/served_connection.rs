//! A connection being served, with its session and its unsent replies.

use std::io::{self, ErrorKind};
use std::time::{Duration, Instant};

use mio::event::Event;
use mio::{Interest, Registry, Token};

use crate::call::SharedState;
use crate::command_decoder::MAX_KEPT_BUFFER_BYTES;
use crate::connection::Connection;
use crate::session::Session;

/// Number of unsent bytes from which on a client's commands are no longer executed.
const MAX_UNSENT_BYTES: usize = 1 << 20;
/// Time for which the thread polls before it sleeps: waking the thread costs the client some microseconds, and the
/// thread as many.
pub(crate) const POLL_TIME_BEFORE_SLEEP: Duration = Duration::from_micros(50);
/// Bounds of the polling time of one connection, which adapts to the client's usual pause.
const MIN_POLL_TIME: Duration = Duration::from_micros(10);
const MAX_POLL_TIME: Duration = Duration::from_micros(200);
/// A client that pauses this long is not worth polling for, since the wakeup is cheap in comparison.
const MIN_PAUSE_NOT_WORTH_POLLING: Duration = Duration::from_millis(1);

/// The next action on a connection after its turn.
pub(crate) enum NextAction {
    Wait,
    MoreWork,
    Close,
}

/// The result of polling a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PollResult {
    Ready,
    Idle,
    /// Nothing arrived for long: from now on, its descriptors report events.
    Armed,
}

pub(crate) struct ServedConnection {
    connection: Box<dyn Connection>,
    token: Token,
    session: Session,
    output: Vec<u8>,
    /// Number of bytes of `output` that were sent.
    sent_output_bytes: usize,
    /// True if the connection may have something to read.
    may_be_readable: bool,
    /// True if the peer has closed: the connection is then read to the end, because no further event will arrive.
    hung_up: bool,
    /// True if commands wait until replies were sent.
    commands_wait_for_output: bool,
    /// True if the peer sends nothing more.
    peer_sends_no_more: bool,
    /// True if replies are left that the socket had no room for. Only then are writable events requested, because a
    /// socket becomes writable whenever its client reads.
    is_output_blocked: bool,
    /// True if the connection is polled, and its descriptors report no events.
    is_in_polled_set: bool,
    /// The time of the last arrival, and the time for which the connection is polled without one.
    last_input_at: Instant,
    poll_time: Duration,
}

impl ServedConnection {
    pub(crate) fn new(connection: Box<dyn Connection>, token: Token, session: Session) -> Self {
        let readable = connection.supports_polling();
        Self {
            connection,
            token,
            session,
            output: Vec::new(),
            sent_output_bytes: 0,
            // The descriptors have not reported anything yet.
            may_be_readable: readable,
            hung_up: false,
            commands_wait_for_output: false,
            peer_sends_no_more: false,
            is_output_blocked: false,
            is_in_polled_set: false,
            last_input_at: Instant::now(),
            poll_time: POLL_TIME_BEFORE_SLEEP,
        }
    }

    /// Returns the time of the last arrival.
    pub(crate) fn last_input_time(&self) -> Instant {
        self.last_input_at
    }

    /// Returns true if the connection is polled.
    pub(crate) fn supports_polling(&self) -> bool {
        self.connection.supports_polling()
    }

    /// After a turn: returns true if the connection must be added to the polled ones.
    pub(crate) fn enter_polled_set_if_outside(&mut self) -> bool {
        self.supports_polling() && !std::mem::replace(&mut self.is_in_polled_set, true)
    }

    /// Returns the number of unsent bytes.
    pub(crate) fn unsent_bytes(&self) -> usize {
        self.output.len() - self.sent_output_bytes
    }

    pub(crate) fn keep_alive_interval(&self) -> Option<Duration> {
        self.connection.keep_alive_interval()
    }

    pub(crate) fn send_keep_alive(&mut self) -> io::Result<()> {
        self.connection.send_keep_alive()
    }

    /// Handles an event of a descriptor.
    pub(crate) fn on_event(&mut self, event: &Event) {
        self.may_be_readable |= event.is_readable() || event.is_error();
        self.hung_up |= event.is_read_closed() || event.is_error();
        self.adapt_poll_time();
    }

    /// Handles an event of a descriptor that other connections share.
    pub(crate) fn on_shared_event(&mut self) {
        self.may_be_readable = true;
        self.adapt_poll_time();
    }

    /// Adapts the polling time to the pause that ends now.
    fn adapt_poll_time(&mut self) {
        if self.supports_polling() && !self.is_in_polled_set {
            // The connection was no longer polled once its polling time after `last_input_time` had run out.
            let waited = self.last_input_at.elapsed();
            if waited < MAX_POLL_TIME.min(3 * self.poll_time) {
                self.poll_time = (2 * self.poll_time).min(MAX_POLL_TIME);
            } else if waited > MIN_PAUSE_NOT_WORTH_POLLING {
                self.poll_time = (self.poll_time / 2).max(MIN_POLL_TIME);
            }
            self.last_input_at = Instant::now();
        }
    }

    /// Polls the connection. Without arrivals, polling continues for `poll_time` after the later of `last_input_time`
    /// and the connection's own last arrival.
    pub(crate) fn poll(&mut self, now: Instant, busy: Instant) -> PollResult {
        if self.connection.poll() {
            self.may_be_readable = true;
            self.last_input_at = now;
            return PollResult::Ready;
        }
        if now.saturating_duration_since(self.last_input_at.max(busy)) < self.poll_time {
            return PollResult::Idle;
        }
        if self.connection.arm_unless_ready() {
            self.is_in_polled_set = false;
            return PollResult::Armed;
        }
        self.may_be_readable = true;
        PollResult::Ready
    }

    /// Reads once, and writes the replies to memory.
    pub(crate) fn read_and_execute(
        &mut self,
        buffer: &mut [u8],
        shared: &SharedState,
        registry: &Registry,
    ) -> io::Result<()> {
        if !self.send_pending_output(registry)? || self.session.must_close() {
            return Ok(());
        }
        if !self.commands_wait_for_output {
            if !self.may_be_readable {
                return Ok(());
            }
            match self.connection.read(buffer) {
                Ok(0) => self.peer_sends_no_more = true,
                Ok(n) => {
                    self.may_be_readable =
                        n == buffer.len() || self.hung_up || self.connection.has_unreported_end();
                    self.session.feed(&buffer[..n]);
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => self.may_be_readable = false,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        self.commands_wait_for_output = !self.session.execute_received_unless_output_full(
            shared,
            &mut self.output,
            MAX_UNSENT_BYTES,
        );
        Ok(())
    }

    /// Sends the replies.
    pub(crate) fn send_replies(&mut self, registry: &Registry) -> io::Result<NextAction> {
        Ok(if !self.send_pending_output(registry)? {
            NextAction::Wait
        } else if self.session.must_close() || self.peer_sends_no_more {
            NextAction::Close
        } else if self.commands_wait_for_output || self.may_be_readable {
            NextAction::MoreWork
        } else {
            NextAction::Wait
        })
    }

    /// Sends pending bytes. Returns false if not all could be sent.
    fn send_pending_output(&mut self, registry: &Registry) -> io::Result<bool> {
        while self.sent_output_bytes < self.output.len() {
            match self
                .connection
                .write(&self.output[self.sent_output_bytes..])
            {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(n) => self.sent_output_bytes += n,
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    self.set_output_blocked(registry, true)?;
                    return Ok(false);
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        // A handshake has bytes of its own.
        match self.connection.flush() {
            Err(e) if e.kind() == ErrorKind::WouldBlock => {
                self.set_output_blocked(registry, true)?;
                return Ok(false);
            }
            flushed => flushed?,
        }
        self.set_output_blocked(registry, false)?;
        self.sent_output_bytes = 0;
        self.output.clear();
        if self.output.capacity() > MAX_KEPT_BUFFER_BYTES {
            self.output = Vec::new();
        }
        Ok(true)
    }

    fn set_output_blocked(&mut self, registry: &Registry, blocked: bool) -> io::Result<()> {
        if blocked == self.is_output_blocked {
            return Ok(());
        }
        self.is_output_blocked = blocked;
        let interests = if blocked {
            Interest::READABLE | Interest::WRITABLE
        } else {
            Interest::READABLE
        };
        registry.reregister(&mut *self.connection, self.token, interests)
    }
}
