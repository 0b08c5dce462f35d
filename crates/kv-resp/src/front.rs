//! The front: a thread that serves connections as they become ready.

use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mio::{Events, Interest, Poll, Token, Waker};
use serde::{Deserialize, Serialize};

use crate::call::Shared;
use crate::client::{Client, Look, PATIENCE, Turn};
use crate::connection::{Address, Connection, Listener};
use crate::session::Session;
use kv::store::Store;

/// Connections at the same time: Redis's default of `maxclients`.
const MAX_CONNECTIONS: usize = 10_000;
/// Bytes that are read of a connection at once, and answered with one write.
const READ_BYTES: usize = 64 << 10;
/// Replies to different connections leave one after the other once there are so many bytes of them, or nothing more to
/// read. A client that is answered first asks first, and alone; answered together, clients ask together, and waiting for
/// them is one system call for all.
const TOGETHER_BYTES: usize = 64 << 10;
/// How long accepting waits after the system refused, for lack of descriptors for instance.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// Listeners at most.
const MAX_LISTENERS: usize = 8;
/// Between looks at descriptors, connections are polled so often. A look is a system call, which takes as long as polling
/// ten connections.
const POLLS_PER_LOOK: u32 = 16;

/// Up to this number, all connections are polled as long as any of them is busy. A few more polls cost little, and a
/// notification by descriptor costs the client a system call. Of more connections, each is polled only while it is busy
/// itself.
const MOST_POLLED_TOGETHER: usize = 128;

/// Tokens: those of the listeners first.
const WAKER: Token = Token(MAX_LISTENERS);
const FIRST_CLIENT: usize = MAX_LISTENERS + 1;

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
/// let front = kv_resp::Front::start(server.service().store().clone(), vec![address.listen()?])?;
/// println!("redis-cli finds it at {}", front.addresses()[0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Front {
    shared: Arc<Shared>,
    addresses: Vec<Address>,
    stop: Arc<AtomicBool>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
}

impl Front {
    /// Serves a store to whoever connects to one of the listeners.
    ///
    /// # Errors
    /// When the system refuses a descriptor or the thread, or there are more than 8 listeners.
    pub fn start(store: Arc<Store>, mut listeners: Vec<Box<dyn Listener>>) -> io::Result<Self> {
        if listeners.len() > MAX_LISTENERS {
            return Err(ErrorKind::InvalidInput.into());
        }
        let poll = Poll::new()?;
        let registry = poll.registry();
        for (number, listener) in listeners.iter_mut().enumerate() {
            registry.register(&mut **listener, Token(number), Interest::READABLE)?;
        }
        let waker = Waker::new(registry, WAKER)?;
        let addresses = listeners.iter().map(|l| l.address()).collect();
        let shared = Arc::new(Shared::new(store));
        let stop = Arc::new(AtomicBool::new(false));
        let mut serve = Serve {
            poll,
            listeners,
            clients: HashMap::new(),
            next: FIRST_CLIENT,
            ready: Vec::new(),
            awake: Vec::new(),
            polls: 0,
            keep_alive_at: None,
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
            addresses,
            stop,
            waker,
            thread: Some(thread),
        })
    }

    /// Where clients find it, in the order of the listeners.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// Whether it still serves; it does until it is stopped, unless the system fails it.
    pub fn serves(&self) -> bool {
        self.thread.as_ref().is_some_and(|t| !t.is_finished())
    }

    /// Statistics of the front end so far.
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
    listeners: Vec<Box<dyn Listener>>,
    clients: HashMap<usize, Client>,
    /// The number of the next connection; none is used twice.
    next: usize,
    /// Connections that have more to do than their turn allowed.
    ready: Vec<usize>,
    /// Polled connections whose descriptors do not tell: what comes is found by polling them.
    awake: Vec<usize>,
    /// How often they were polled since descriptors were looked at.
    polls: u32,
    /// When peers are told next that this end is there.
    keep_alive_at: Option<Instant>,
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
            self.poll_awake(now, busy);
            let is_polling = !self.awake.is_empty();
            let looks = is_polling || !self.ready.is_empty() || now - busy < PATIENCE;
            let mut accept = self.accept_at.is_some_and(|at| at <= now);
            std::mem::swap(&mut turns, &mut self.ready);
            self.polls += 1;
            if !is_polling || self.polls >= POLLS_PER_LOOK {
                self.polls = 0;
                let wait = if looks {
                    Some(Duration::ZERO)
                } else {
                    self.next_timer()
                        .map(|at| at.saturating_duration_since(now))
                };
                match self.poll.poll(&mut events, wait) {
                    Err(e) if e.kind() == ErrorKind::Interrupted => {}
                    other => other?,
                }
                accept |= self.take_events(&events, &mut turns);
                if turns.is_empty() && looks {
                    // Whoever shares the core may be the client.
                    std::thread::yield_now();
                }
            }
            if accept {
                self.accept();
            }
            self.keep_alive(now);
            if turns.is_empty() {
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

    /// When something is due that no descriptor tells of.
    fn next_timer(&self) -> Option<Instant> {
        [self.accept_at, self.keep_alive_at]
            .into_iter()
            .flatten()
            .min()
    }

    /// Notes which connections are ready. Whether there are some to be accepted.
    fn take_events(&mut self, events: &Events, turns: &mut Vec<usize>) -> bool {
        let mut accept = false;
        for event in events {
            match event.token() {
                WAKER => {}
                Token(0..MAX_LISTENERS) => accept = true,
                Token(number) => {
                    let Some(client) = self.clients.get_mut(&number) else {
                        continue;
                    };
                    client.on_event(event);
                    turns.push(number);
                }
            }
        }
        accept
    }

    /// Polls connections, and has those tell that were polled long enough in vain.
    fn poll_awake(&mut self, now: Instant, busy: Instant) {
        let together = self.awake.len() <= MOST_POLLED_TOGETHER;
        let mut awake = std::mem::take(&mut self.awake);
        awake.retain(|number| {
            let Some(client) = self.clients.get_mut(number) else {
                return false;
            };
            let since = if together { busy } else { client.busy() };
            match client.look(now, since) {
                Look::Ready => self.ready.push(*number),
                Look::Nothing => {}
                Look::Sleeps => return false,
            }
            true
        });
        self.awake = awake;
    }

    /// Tells peers that this end is there, when it is time.
    fn keep_alive(&mut self, now: Instant) {
        if self.keep_alive_at.is_none_or(|at| at > now) {
            return;
        }
        let mut failed = Vec::new();
        let mut every: Option<Duration> = None;
        for (&number, client) in &mut self.clients {
            let Some(one) = client.keep_alive_every() else {
                continue;
            };
            every = Some(every.map_or(one, |every| every.min(one)));
            if client.keep_alive().is_err() {
                failed.push(number);
            }
        }
        self.keep_alive_at = every.map(|every| now + every);
        for number in failed {
            self.end(number);
        }
    }

    fn accept(&mut self) {
        self.accept_at = None;
        for listener in 0..self.listeners.len() {
            loop {
                let accepted = self.listeners.get_mut(listener).map(|l| l.accept());
                match accepted {
                    Some(Ok(connection)) => self.welcome(connection),
                    Some(Err(e)) if e.kind() == ErrorKind::WouldBlock => break,
                    Some(Err(e))
                        if matches!(
                            e.kind(),
                            ErrorKind::Interrupted | ErrorKind::ConnectionAborted
                        ) => {}
                    Some(Err(e)) => {
                        tracing::warn!("cannot accept a connection: {e}");
                        self.accept_at = Some(Instant::now() + ACCEPT_AGAIN);
                        break;
                    }
                    None => break,
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
        if let Some(every) = connection.keep_alive_every() {
            let first = Instant::now() + every;
            self.keep_alive_at.get_or_insert(first);
        }
        let id = (number - FIRST_CLIENT) as u64 + 1;
        let client = Client::new(connection, token, Session::new(id));
        // Its descriptors tell nothing before it is armed, and something may have come already.
        self.ready.push(number);
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
        if client
            .take(&mut self.buffer, &self.shared, registry)
            .is_err()
        {
            return self.end(number);
        }
        self.unsent.push(number);
        self.unsent_bytes += client.out_bytes();
        if client.wakes() {
            self.awake.push(number);
        }
        // A polled client costs no system call: it is answered at once.
        if client.is_polled() || self.unsent_bytes >= TOGETHER_BYTES {
            self.send();
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
