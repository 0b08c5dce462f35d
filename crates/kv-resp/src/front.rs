//! The front: a thread that serves connections as they become ready.

use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mio::{Events, Interest, Poll, Registry, Token, Waker};
use serde::{Deserialize, Serialize};

use crate::call::Shared;
use crate::connection::{Address, Connection, Listener};
use crate::frame::KEPT_BYTES;
use crate::session::Session;
use kv::store::Store;

/// Connections at the same time: Redis's default of `maxclients`.
const MAX_CONNECTIONS: usize = 10_000;
/// What is read of a connection at once, and answered with one write.
const READ_BYTES: usize = 64 << 10;
/// A client that does not read its replies is not served further when it has left so many.
const MAX_UNSENT_BYTES: usize = 1 << 20;
/// Replies to different connections leave one after the other once there are so many bytes of them, or nothing more to
/// read. A client that is answered first asks first, and alone; answered together, clients ask together, and waiting for
/// them is one system call for all.
const TOGETHER_BYTES: usize = 64 << 10;
/// How long more is looked for before sleeping: waking a thread costs its client some microseconds, and the thread as
/// many.
const PATIENCE: Duration = Duration::from_micros(50);
/// How long accepting waits after the system refused, for lack of descriptors for instance.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

const LISTENER: Token = Token(0);
const WAKER: Token = Token(1);
const FIRST_CLIENT: usize = 2;

/// What a front did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrontStats {
    /// Connections that are there.
    pub connections: u64,
    /// Connections that ever were.
    pub connections_total: u64,
    /// Connections that were refused because there were too many.
    pub connections_refused: u64,
    /// Commands that came.
    pub commands: u64,
    /// Commands that were answered with an error.
    pub errors: u64,
    /// Connections that were ended because of a malformed frame.
    pub protocol_errors: u64,
}

/// A running front. Dropping it ends its connections.
///
/// ```no_run
/// let server = kv::Server::start(kv::ServerConfig::default())?;
/// let address: kv_resp::Address = "127.0.0.1:6379".parse()?;
/// let front = kv_resp::Front::start(server.service().store().clone(), address.listen()?)?;
/// println!("redis-cli finds it at {}", front.address());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Front {
    shared: Arc<Shared>,
    address: Address,
    stop: Arc<AtomicBool>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
}

impl Front {
    /// Serves a store to whoever connects.
    ///
    /// # Errors
    /// When the system refuses a descriptor or the thread.
    pub fn start(store: Arc<Store>, mut listener: Box<dyn Listener>) -> io::Result<Self> {
        let poll = Poll::new()?;
        let registry = poll.registry();
        registry.register(&mut *listener, LISTENER, Interest::READABLE)?;
        let waker = Waker::new(registry, WAKER)?;
        let address = listener.address();
        let shared = Arc::new(Shared::new(store));
        let stop = Arc::new(AtomicBool::new(false));
        let mut serve = Serve {
            poll,
            listener,
            clients: HashMap::new(),
            next: FIRST_CLIENT,
            ready: Vec::new(),
            unsent: Vec::new(),
            unsent_bytes: 0,
            accept_at: None,
            buffer: vec![0; READ_BYTES],
            shared: Arc::clone(&shared),
            stop: Arc::clone(&stop),
        };
        let thread = std::thread::Builder::new().name("resp".to_owned());
        let thread = thread.spawn(move || {
            if let Err(e) = serve.run() {
                tracing::error!("the Redis-protocol front ended: {e}");
            }
        })?;
        Ok(Self {
            shared,
            address,
            stop,
            waker,
            thread: Some(thread),
        })
    }

    /// Where clients find it.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Whether it still serves; it does until it is stopped, unless the system fails it.
    pub fn serves(&self) -> bool {
        self.thread.as_ref().is_some_and(|t| !t.is_finished())
    }

    /// What it did so far.
    pub fn stats(&self) -> FrontStats {
        let shared = &self.shared;
        FrontStats {
            connections: shared.connections.load(Ordering::Relaxed),
            connections_total: shared.connections_total.load(Ordering::Relaxed),
            connections_refused: shared.connections_refused.load(Ordering::Relaxed),
            commands: shared.commands.load(Ordering::Relaxed),
            errors: shared.errors.load(Ordering::Relaxed),
            protocol_errors: shared.protocol_errors.load(Ordering::Relaxed),
        }
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        let woken = self.waker.wake();
        if let (Some(thread), Ok(())) = (self.thread.take(), woken) {
            // A thread that panicked has nothing left to stop.
            let _ = thread.join();
        }
    }
}

/// What the thread owns.
struct Serve {
    poll: Poll,
    listener: Box<dyn Listener>,
    clients: HashMap<usize, Client>,
    /// The number of the next connection; none is used twice.
    next: usize,
    /// Connections that have more to do than their turn allowed.
    ready: Vec<usize>,
    /// Connections that had their turn, and whose replies have not left.
    unsent: Vec<usize>,
    unsent_bytes: usize,
    /// Accepting failed, and is tried again then.
    accept_at: Option<Instant>,
    buffer: Vec<u8>,
    shared: Arc<Shared>,
    stop: Arc<AtomicBool>,
}

impl Serve {
    fn run(&mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(1024);
        let mut turns = Vec::new();
        let mut busy = Instant::now();
        while !self.stop.load(Ordering::Acquire) {
            let now = Instant::now();
            let looks = !self.ready.is_empty() || now.duration_since(busy) < PATIENCE;
            let wait = if looks {
                Some(Duration::ZERO)
            } else {
                self.accept_at.map(|at| at.saturating_duration_since(now))
            };
            match self.poll.poll(&mut events, wait) {
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                other => other?,
            }
            std::mem::swap(&mut turns, &mut self.ready);
            let mut accept = self.accept_at.is_some_and(|at| at <= now);
            for event in &events {
                match event.token() {
                    LISTENER => accept = true,
                    WAKER => {}
                    Token(number) => {
                        let Some(client) = self.clients.get_mut(&number) else {
                            continue;
                        };
                        client.readable |= event.is_readable() || event.is_error();
                        client.hung_up |= event.is_read_closed() || event.is_error();
                        turns.push(number);
                    }
                }
            }
            if accept {
                self.accept();
            }
            if turns.is_empty() {
                if looks {
                    // Whoever shares the core may be the client.
                    std::thread::yield_now();
                }
                continue;
            }
            // One turn each, though it may be ready for several reasons.
            turns.sort_unstable();
            turns.dedup();
            for number in turns.drain(..) {
                self.turn(number);
            }
            self.send();
            busy = Instant::now();
        }
        Ok(())
    }

    fn accept(&mut self) {
        self.accept_at = None;
        loop {
            match self.listener.accept() {
                Ok(connection) => self.welcome(connection),
                Err(e) if e.kind() == ErrorKind::WouldBlock => return,
                Err(e)
                    if matches!(
                        e.kind(),
                        ErrorKind::Interrupted | ErrorKind::ConnectionAborted
                    ) => {}
                Err(e) => {
                    tracing::warn!("cannot accept a connection: {e}");
                    self.accept_at = Some(Instant::now() + ACCEPT_AGAIN);
                    return;
                }
            }
        }
    }

    fn welcome(&mut self, mut connection: Box<dyn Connection>) {
        if self.clients.len() >= MAX_CONNECTIONS {
            self.shared
                .connections_refused
                .fetch_add(1, Ordering::Relaxed);
            // It is told if it takes that at once.
            let _ = connection.write(b"-ERR max number of clients reached\r\n");
            return;
        }
        let number = self.next;
        let registry = self.poll.registry();
        let token = Token(number);
        if let Err(e) = registry.register(&mut *connection, token, Interest::READABLE) {
            tracing::warn!("cannot wait for a connection: {e}");
            return;
        }
        self.next += 1;
        let client = Client {
            connection,
            token,
            session: Session::new((number - FIRST_CLIENT) as u64 + 1),
            out: Vec::new(),
            sent: 0,
            readable: false,
            hung_up: false,
            held: false,
            ended: false,
            blocked: false,
        };
        self.clients.insert(number, client);
        self.shared.connections.fetch_add(1, Ordering::Relaxed);
        self.shared
            .connections_total
            .fetch_add(1, Ordering::Relaxed);
    }

    /// A turn of a connection; its replies leave with others.
    fn turn(&mut self, number: usize) {
        let Some(client) = self.clients.get_mut(&number) else {
            return;
        };
        let registry = self.poll.registry();
        match client.take(&mut self.buffer, &self.shared, registry) {
            Ok(()) => {
                self.unsent.push(number);
                self.unsent_bytes += client.out.len();
                if self.unsent_bytes >= TOGETHER_BYTES {
                    self.send();
                }
            }
            Err(_) => self.end(number),
        }
    }

    /// Sends replies, and ends the turns that they are of.
    fn send(&mut self) {
        let mut unsent = std::mem::take(&mut self.unsent);
        for number in unsent.drain(..) {
            let Some(client) = self.clients.get_mut(&number) else {
                continue;
            };
            match client.give(self.poll.registry()) {
                Ok(Turn::Wait) => {}
                Ok(Turn::Again) => self.ready.push(number),
                Ok(Turn::Over) | Err(_) => self.end(number),
            }
        }
        (self.unsent, self.unsent_bytes) = (unsent, 0);
    }

    /// A connection is over, for whatever reason.
    fn end(&mut self, number: usize) {
        self.clients.remove(&number);
        self.shared.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What is to be done with a connection after its turn.
enum Turn {
    Wait,
    Again,
    Over,
}

struct Client {
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
}

impl Client {
    /// Reads once, and answers to memory.
    fn take(&mut self, buffer: &mut [u8], shared: &Shared, registry: &Registry) -> io::Result<()> {
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
    fn give(&mut self, registry: &Registry) -> io::Result<Turn> {
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
