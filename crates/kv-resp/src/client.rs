//! A connection that is served, with its session and what it is still to be sent.

use std::io::{self, ErrorKind};
use std::time::{Duration, Instant};

use mio::event::Event;
use mio::{Interest, Registry, Token};

use crate::call::Shared;
use crate::connection::Connection;
use crate::frame::KEPT_BYTES;
use crate::session::Session;

/// A client that does not read its replies is not served further when it has left so many.
const MAX_UNSENT_BYTES: usize = 1 << 20;
/// How long more is looked for before sleeping: waking a thread costs its client some microseconds, and the thread as
/// many.
pub(crate) const PATIENCE: Duration = Duration::from_micros(50);
/// The same of one polled connection, which learns how soon its client usually asks again: between these.
const LEAST_PATIENCE: Duration = Duration::from_micros(10);
const MOST_PATIENCE: Duration = Duration::from_micros(200);
/// A client that asks as late as this is not waited for: waking costs it little beside.
const LATE: Duration = Duration::from_millis(1);

/// The next action on a connection after its turn.
pub(crate) enum Turn {
    Wait,
    Again,
    Over,
}

/// The result of polling a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Look {
    Ready,
    Nothing,
    /// Nothing, for long: its descriptors tell from now on.
    Sleeps,
}

pub(crate) struct Client {
    connection: Box<dyn Connection>,
    token: Token,
    session: Session,
    out: Vec<u8>,
    /// How much of `out` has left.
    sent: usize,
    /// There may be something to read.
    readable: bool,
    /// Nothing will make it readable again: it is read to the end.
    hung_up: bool,
    /// Commands have come that wait until replies have left.
    held: bool,
    /// Nothing more comes.
    ended: bool,
    /// Replies wait until the client reads. Only then does it matter when it can be written to: a socket becomes
    /// writable whenever its client reads.
    blocked: bool,
    /// It is polled, and its descriptors do not tell.
    awake: bool,
    /// When something came last, and how long it is polled without.
    busy: Instant,
    patience: Duration,
}

impl Client {
    pub(crate) fn new(connection: Box<dyn Connection>, token: Token, session: Session) -> Self {
        let readable = connection.is_polled();
        Self {
            connection,
            token,
            session,
            out: Vec::new(),
            sent: 0,
            // Its descriptors told nothing yet.
            readable,
            hung_up: false,
            held: false,
            ended: false,
            blocked: false,
            awake: false,
            busy: Instant::now(),
            patience: PATIENCE,
        }
    }

    /// When something came last.
    pub(crate) fn busy(&self) -> Instant {
        self.busy
    }

    /// Whether it is polled.
    pub(crate) fn is_polled(&self) -> bool {
        self.connection.is_polled()
    }

    /// After a turn: whether it is to be polled from now on, and was not.
    pub(crate) fn wakes(&mut self) -> bool {
        self.is_polled() && !std::mem::replace(&mut self.awake, true)
    }

    /// Bytes that it is to be sent.
    pub(crate) fn out_bytes(&self) -> usize {
        self.out.len() - self.sent
    }

    pub(crate) fn keep_alive_every(&self) -> Option<Duration> {
        self.connection.keep_alive_every()
    }

    pub(crate) fn keep_alive(&mut self) -> io::Result<()> {
        self.connection.keep_alive()
    }

    /// A descriptor tells.
    pub(crate) fn on_event(&mut self, event: &Event) {
        self.readable |= event.is_readable() || event.is_error();
        self.hung_up |= event.is_read_closed() || event.is_error();
        if self.is_polled() && !self.awake {
            // It slept since `busy`, after its patience.
            let waited = self.busy.elapsed();
            if waited < MOST_PATIENCE.min(3 * self.patience) {
                self.patience = (2 * self.patience).min(MOST_PATIENCE);
            } else if waited > LATE {
                self.patience = (self.patience / 2).max(LEAST_PATIENCE);
            }
            self.busy = Instant::now();
        }
    }

    /// Polls it. It is polled on without anything as long as its patience lasts since `busy`, when something came last for
    /// which it is worth while.
    pub(crate) fn look(&mut self, now: Instant, busy: Instant) -> Look {
        if self.connection.poll() {
            self.readable = true;
            self.busy = now;
            return Look::Ready;
        }
        if now.saturating_duration_since(self.busy.max(busy)) < self.patience {
            return Look::Nothing;
        }
        if self.connection.arm() {
            self.awake = false;
            return Look::Sleeps;
        }
        self.readable = true;
        Look::Ready
    }

    /// Reads once, and answers to memory.
    pub(crate) fn take(
        &mut self,
        buffer: &mut [u8],
        shared: &Shared,
        registry: &Registry,
    ) -> io::Result<()> {
        if !self.flush(registry)? || self.session.ends() {
            return Ok(());
        }
        if !self.held {
            if !self.readable {
                return Ok(());
            }
            match self.connection.read(buffer) {
                Ok(0) => self.ended = true,
                Ok(n) => {
                    self.readable = n == buffer.len() || self.hung_up;
                    self.session.feed(&buffer[..n]);
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => self.readable = false,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        self.held = !self.session.run(shared, &mut self.out, MAX_UNSENT_BYTES);
        Ok(())
    }

    /// Sends what was answered.
    pub(crate) fn give(&mut self, registry: &Registry) -> io::Result<Turn> {
        Ok(if !self.flush(registry)? {
            Turn::Wait
        } else if self.session.ends() || self.ended {
            Turn::Over
        } else if self.held || self.readable {
            Turn::Again
        } else {
            Turn::Wait
        })
    }

    /// Sends what is to be sent; false if not all of it could leave.
    fn flush(&mut self, registry: &Registry) -> io::Result<bool> {
        while self.sent < self.out.len() {
            match self.connection.write(&self.out[self.sent..]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(n) => self.sent += n,
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    self.block(registry, true)?;
                    return Ok(false);
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        self.block(registry, false)?;
        self.sent = 0;
        self.out.clear();
        if self.out.capacity() > KEPT_BYTES {
            self.out = Vec::new();
        }
        Ok(true)
    }

    fn block(&mut self, registry: &Registry, blocked: bool) -> io::Result<()> {
        if blocked == self.blocked {
            return Ok(());
        }
        self.blocked = blocked;
        let interests = if blocked {
            Interest::READABLE | Interest::WRITABLE
        } else {
            Interest::READABLE
        };
        registry.reregister(&mut *self.connection, self.token, interests)
    }
}
