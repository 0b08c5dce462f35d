//! The front: a thread that serves connections as they become ready.

use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use mio::{Events, Interest, Poll, Token, Waker};
use serde::{Deserialize, Serialize};

use super::command::{Session, Shared};
use super::connection::{Address, Connection, Listener};
use super::frame::KEPT_BYTES;
use crate::store::Store;

/// Connections at the same time: Redis's default of `maxclients`.
const MAX_CONNECTIONS: usize = 10_000;
/// What is read at once, and answered with one write.
const READ_BYTES: usize = 64 << 10;
/// A client that does not read its replies is not served further when it has left so many.
const MAX_UNSENT_BYTES: usize = 1 << 20;
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
/// let address: kv::resp::Address = "127.0.0.1:6379".parse()?;
/// let front = kv::resp::Front::start(server.store().clone(), address.listen()?)?;
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
            accept_again: false,
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
    accept_again: bool,
    buffer: Vec<u8>,
    shared: Arc<Shared>,
    stop: Arc<AtomicBool>,
}

impl Serve {
    fn run(&mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(1024);
        let mut turns = Vec::new();
        while !self.stop.load(Ordering::Acquire) {
            let wait = if !self.ready.is_empty() {
                Some(Duration::ZERO)
            } else if self.accept_again {
                Some(ACCEPT_AGAIN)
            } else {
                None
            };
            match self.poll.poll(&mut events, wait) {
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                other => other?,
            }
            std::mem::swap(&mut turns, &mut self.ready);
            let mut accept = self.accept_again;
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
            // One turn each, though it may be ready for several reasons.
            turns.sort_unstable();
            turns.dedup();
            for number in turns.drain(..) {
                self.turn(number);
            }
        }
        Ok(())
    }

    fn accept(&mut self) {
        self.accept_again = false;
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
                    self.accept_again = true;
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
        let both = Interest::READABLE | Interest::WRITABLE;
        let registry = self.poll.registry();
        if let Err(e) = registry.register(&mut *connection, Token(number), both) {
            tracing::warn!("cannot wait for a connection: {e}");
            return;
        }
        self.next += 1;
        let client = Client {
            connection,
            session: Session::new((number - FIRST_CLIENT) as u64 + 1),
            out: Vec::new(),
            sent: 0,
            readable: false,
            hung_up: false,
            held: false,
        };
        self.clients.insert(number, client);
        self.shared.connections.fetch_add(1, Ordering::Relaxed);
        self.shared
            .connections_total
            .fetch_add(1, Ordering::Relaxed);
    }

    fn turn(&mut self, number: usize) {
        let Some(client) = self.clients.get_mut(&number) else {
            return;
        };
        match client.turn(&mut self.buffer, &self.shared) {
            Ok(Turn::Wait) => {}
            Ok(Turn::Again) => self.ready.push(number),
            // Whatever failed, this connection is over.
            Ok(Turn::Over) | Err(_) => {
                self.clients.remove(&number);
                self.shared.connections.fetch_sub(1, Ordering::Relaxed);
            }
        }
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
}

impl Client {
    /// Reads once, answers, writes once.
    fn turn(&mut self, buffer: &mut [u8], shared: &Shared) -> io::Result<Turn> {
        if !self.flush()? {
            return Ok(Turn::Wait);
        }
        if self.session.ends() {
            return Ok(Turn::Over);
        }
        if !self.held {
            if !self.readable {
                return Ok(Turn::Wait);
            }
            match self.connection.read(buffer) {
                Ok(0) => return Ok(Turn::Over),
                Ok(n) => {
                    self.readable = n == buffer.len() || self.hung_up;
                    self.session.feed(&buffer[..n]);
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    self.readable = false;
                    return Ok(Turn::Wait);
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => return Ok(Turn::Again),
                Err(e) => return Err(e),
            }
        }
        self.held = !self.session.run(shared, &mut self.out, MAX_UNSENT_BYTES);
        if !self.flush()? {
            return Ok(Turn::Wait);
        }
        Ok(if self.session.ends() {
            Turn::Over
        } else if self.held || self.readable {
            Turn::Again
        } else {
            Turn::Wait
        })
    }

    /// Sends what is to be sent; false if not all of it could leave.
    fn flush(&mut self) -> io::Result<bool> {
        while self.sent < self.out.len() {
            match self.connection.write(&self.out[self.sent..]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(n) => self.sent += n,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        self.sent = 0;
        self.out.clear();
        if self.out.capacity() > KEPT_BYTES {
            self.out = Vec::new();
        }
        Ok(true)
    }
}
