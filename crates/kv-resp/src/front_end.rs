//! The front end: a thread that serves connections as they become ready.

use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mio::{Events, Interest, Poll, Token, Waker};
use serde::{Deserialize, Serialize};

use crate::call::SharedState;
use crate::connection::{Connection, ListenAddress, Listener};
use crate::served_connection::{NextAction, POLL_TIME_BEFORE_SLEEP, PollResult, ServedConnection};
use crate::session::Session;
use kv::store::Store;

/// Default of the largest number of connections at the same time: that of Redis's `maxclients`.
pub const DEFAULT_MAX_CONNECTIONS: usize = 10_000;
/// Bytes that are read from a connection at once, and answered with one write.
const READ_BYTES: usize = 64 << 10;
/// Replies to different connections are sent when this many bytes are pending, or nothing is left to read. If each
/// reply were sent at once, clients would send their next requests one by one. Answered together, clients send
/// together, and one system call waits for all of them.
const FLUSH_THRESHOLD_BYTES: usize = 64 << 10;
/// Pause before accepting is retried, after the system refused, for lack of descriptors for instance.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// Largest number of listeners.
const MAX_LISTENERS: usize = 8;
/// Number of polls of all connections between two checks of the descriptors. A check is a system call, which takes as
/// long as polling ten connections.
const POLLS_PER_EVENT_CHECK: u32 = 16;

/// Up to this number, all connections are polled as long as any of them is busy. Some extra polls cost little, while a
/// notification by descriptor costs the client a system call. With more connections, each is polled only while it is
/// busy itself.
const MAX_CONNECTIONS_POLLED_TOGETHER: usize = 128;

/// Tokens below this one belong to the listeners.
const FIRST_SHARED_TOKEN: usize = MAX_LISTENERS;
/// Tokens from `FIRST_SHARED_TOKEN` to this one belong to the descriptors that each listener's connections share.
const WAKER_TOKEN: Token = Token(2 * MAX_LISTENERS);
const FIRST_CLIENT_TOKEN: usize = 2 * MAX_LISTENERS + 1;

/// Statistics of a front end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrontEndStats {
    /// Connections that are open.
    pub connections: u64,
    /// Connections that were ever accepted.
    pub connections_total: u64,
    /// Connections that were refused because there were too many.
    pub connections_refused: u64,
    /// Commands that were received.
    pub commands: u64,
    /// Commands that were answered with an error.
    pub errors: u64,
    /// Connections that were ended because of a malformed frame.
    pub protocol_errors: u64,
}

/// A running front end. Dropping the front end closes its connections.
///
/// ```no_run
/// let server = kv::Server::start(kv::ServerConfig::default())?;
/// let address: kv_resp::ListenAddress = "127.0.0.1:6379".parse()?;
/// let front = kv_resp::FrontEnd::start(server.service().store().clone(), vec![address.listen()?])?;
/// println!("redis-cli finds it at {}", front.addresses()[0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct FrontEnd {
    shared: Arc<SharedState>,
    addresses: Vec<ListenAddress>,
    stop_requested: Arc<AtomicBool>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
}

impl FrontEnd {
    /// Serves a store to all clients that connect to one of the listeners.
    ///
    /// # Errors
    /// If the system refuses a descriptor or the thread, or there are more than 8 listeners.
    pub fn start(store: Arc<Store>, listeners: Vec<Box<dyn Listener>>) -> io::Result<Self> {
        Self::start_with_max_connections(store, listeners, DEFAULT_MAX_CONNECTIONS)
    }

    /// As [`start`](Self::start), with another limit than [`DEFAULT_MAX_CONNECTIONS`]. More clients get an error.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_with_max_connections(
        store: Arc<Store>,
        mut listeners: Vec<Box<dyn Listener>>,
        max_connections: usize,
    ) -> io::Result<Self> {
        if listeners.len() > MAX_LISTENERS {
            return Err(ErrorKind::InvalidInput.into());
        }
        let poll = Poll::new()?;
        let registry = poll.registry();
        for (number, listener) in listeners.iter_mut().enumerate() {
            registry.register(&mut **listener, Token(number), Interest::READABLE)?;
            listener.register_shared_descriptors(registry, Token(FIRST_SHARED_TOKEN + number))?;
        }
        let waker = Waker::new(registry, WAKER_TOKEN)?;
        let addresses = listeners.iter().map(|l| l.address()).collect();
        let shared = Arc::new(SharedState::new(store));
        let stop = Arc::new(AtomicBool::new(false));
        let mut serve = ServeLoop {
            poll,
            listeners,
            clients: HashMap::new(),
            max_connections,
            next_connection_number: FIRST_CLIENT_TOKEN,
            connections_with_turn: Vec::new(),
            polled_connections: Vec::new(),
            polls_since_event_check: 0,
            keep_alive_at: None,
            connections_to_flush: Vec::new(),
            unsent_bytes: 0,
            accept_retry_at: None,
            buffer: vec![0; READ_BYTES],
            shared: Arc::clone(&shared),
            stop_requested: Arc::clone(&stop),
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
            stop_requested: stop,
            waker,
            thread: Some(thread),
        })
    }

    /// Returns the addresses for clients, in the order of the listeners.
    pub fn addresses(&self) -> &[ListenAddress] {
        &self.addresses
    }

    /// Returns true while the thread serves connections: until it is stopped, or a system call fails.
    pub fn is_serving(&self) -> bool {
        self.thread.as_ref().is_some_and(|t| !t.is_finished())
    }

    /// Returns the statistics of the front end so far.
    pub fn stats(&self) -> FrontEndStats {
        let shared = &self.shared;
        FrontEndStats {
            connections: shared.open_connections.load(Ordering::Relaxed),
            connections_total: shared.connections_total.load(Ordering::Relaxed),
            connections_refused: shared.connections_refused.load(Ordering::Relaxed),
            commands: shared.commands_received.load(Ordering::Relaxed),
            errors: shared.error_replies.load(Ordering::Relaxed),
            protocol_errors: shared.protocol_errors.load(Ordering::Relaxed),
        }
    }
}

impl Drop for FrontEnd {
    fn drop(&mut self) {
        self.stop_requested.store(true, Ordering::Release);
        let woken = self.waker.wake();
        if let (Some(thread), Ok(())) = (self.thread.take(), woken) {
            // A thread that panicked needs no further stop.
            let _ = thread.join();
        }
    }
}

/// The state of the front end's thread.
struct ServeLoop {
    poll: Poll,
    listeners: Vec<Box<dyn Listener>>,
    clients: HashMap<usize, ServedConnection>,
    max_connections: usize,
    /// The number of the next connection; numbers are not reused.
    next_connection_number: usize,
    /// Connections that get the next turn without a report of their descriptors: new ones, polled ones, and those with
    /// work left.
    connections_with_turn: Vec<usize>,
    /// Connections that are found ready by polling, while their descriptors report nothing.
    polled_connections: Vec<usize>,
    /// Number of polls since the descriptors were checked.
    polls_since_event_check: u32,
    /// The time of the next keep-alive messages.
    keep_alive_at: Option<Instant>,
    /// Connections whose turn is over, but whose replies were not sent yet.
    connections_to_flush: Vec<usize>,
    unsent_bytes: usize,
    /// The time at which accepting is retried after a failure.
    accept_retry_at: Option<Instant>,
    buffer: Vec<u8>,
    shared: Arc<SharedState>,
    stop_requested: Arc<AtomicBool>,
}

impl ServeLoop {
    fn run(&mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(1024);
        let mut turns = Vec::new();
        let mut busy = Instant::now();
        while !self.stop_requested.load(Ordering::Acquire) {
            let now = Instant::now();
            self.poll_connections(now, busy);
            let is_polling = !self.polled_connections.is_empty();
            let keep_polling = is_polling
                || !self.connections_with_turn.is_empty()
                || now - busy < POLL_TIME_BEFORE_SLEEP;
            let mut accept = self.accept_retry_at.is_some_and(|at| at <= now);
            std::mem::swap(&mut turns, &mut self.connections_with_turn);
            self.polls_since_event_check += 1;
            if !is_polling || self.polls_since_event_check >= POLLS_PER_EVENT_CHECK {
                self.polls_since_event_check = 0;
                let wait = if keep_polling {
                    Some(Duration::ZERO)
                } else {
                    self.next_timer()
                        .map(|at| at.saturating_duration_since(now))
                };
                match self.poll.poll(&mut events, wait) {
                    Err(e) if e.kind() == ErrorKind::Interrupted => {}
                    other => other?,
                }
                accept |= self.collect_ready_and_may_accept(&events, &mut turns);
                if turns.is_empty() && keep_polling {
                    // The client may run on the same core.
                    std::thread::yield_now();
                }
            }
            if accept {
                self.accept_waiting_connections();
            }
            self.send_due_keep_alives(now);
            if turns.is_empty() {
                continue;
            }
            // Each connection gets one turn, even if it is ready for several reasons.
            turns.sort_unstable();
            turns.dedup();
            for number in turns.drain(..) {
                self.serve_turn(number);
            }
            self.send_replies();
            busy = Instant::now();
        }
        Ok(())
    }

    /// Returns the time of the next timer event.
    fn next_timer(&self) -> Option<Instant> {
        [self.accept_retry_at, self.keep_alive_at]
            .into_iter()
            .flatten()
            .min()
    }

    /// Collects the connections that are ready. Returns true if connections may wait to be accepted.
    fn collect_ready_and_may_accept(&mut self, events: &Events, turns: &mut Vec<usize>) -> bool {
        let mut accept = false;
        for event in events {
            match event.token() {
                WAKER_TOKEN => {}
                Token(0..MAX_LISTENERS) => accept = true,
                Token(shared @ FIRST_SHARED_TOKEN..FIRST_CLIENT_TOKEN) => {
                    if let Some(listener) = self.listeners.get_mut(shared - FIRST_SHARED_TOKEN) {
                        listener.take_ready(&mut |Token(number)| {
                            if let Some(client) = self.clients.get_mut(&number) {
                                client.on_shared_event();
                                turns.push(number);
                            }
                        });
                    }
                }
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

    /// Polls connections. A connection without arrivals for its polling time is handed back to its descriptors.
    fn poll_connections(&mut self, now: Instant, busy: Instant) {
        let together = self.polled_connections.len() <= MAX_CONNECTIONS_POLLED_TOGETHER;
        let mut polled = std::mem::take(&mut self.polled_connections);
        polled.retain(|number| {
            let Some(client) = self.clients.get_mut(number) else {
                return false;
            };
            let since = if together {
                busy
            } else {
                client.last_input_time()
            };
            match client.poll(now, since) {
                PollResult::Ready => self.connections_with_turn.push(*number),
                PollResult::Idle => {}
                PollResult::Armed => return false,
            }
            true
        });
        self.polled_connections = polled;
    }

    /// Sends keep-alive messages when they are due.
    fn send_due_keep_alives(&mut self, now: Instant) {
        if self.keep_alive_at.is_none_or(|at| at > now) {
            return;
        }
        let mut failed = Vec::new();
        let mut every: Option<Duration> = None;
        for (&number, client) in &mut self.clients {
            let Some(one) = client.keep_alive_interval() else {
                continue;
            };
            every = Some(every.map_or(one, |every| every.min(one)));
            if client.send_keep_alive().is_err() {
                failed.push(number);
            }
        }
        self.keep_alive_at = every.map(|every| now + every);
        for number in failed {
            self.remove_connection(number);
        }
    }

    fn accept_waiting_connections(&mut self) {
        self.accept_retry_at = None;
        for listener in 0..self.listeners.len() {
            loop {
                let accepted = self.listeners.get_mut(listener).map(|l| l.accept());
                match accepted {
                    Some(Ok(connection)) => self.add_connection(connection),
                    Some(Err(e)) if e.kind() == ErrorKind::WouldBlock => break,
                    Some(Err(e))
                        if matches!(
                            e.kind(),
                            ErrorKind::Interrupted | ErrorKind::ConnectionAborted
                        ) => {}
                    Some(Err(e)) => {
                        tracing::warn!("cannot accept a connection: {e}");
                        self.accept_retry_at = Some(Instant::now() + ACCEPT_RETRY_DELAY);
                        break;
                    }
                    None => break,
                }
            }
        }
    }

    fn add_connection(&mut self, mut connection: Box<dyn Connection>) {
        if self.clients.len() >= self.max_connections {
            self.shared
                .connections_refused
                .fetch_add(1, Ordering::Relaxed);
            // The client gets the message only if it can be written at once.
            let _ = connection.write(b"-ERR max number of clients reached\r\n");
            return;
        }
        let number = self.next_connection_number;
        let registry = self.poll.registry();
        let token = Token(number);
        if let Err(e) = registry.register(&mut *connection, token, Interest::READABLE) {
            tracing::warn!("cannot wait for a connection: {e}");
            return;
        }
        self.next_connection_number += 1;
        if let Some(every) = connection.keep_alive_interval() {
            let first = Instant::now() + every;
            self.keep_alive_at.get_or_insert(first);
        }
        let id = (number - FIRST_CLIENT_TOKEN) as u64 + 1;
        let client = ServedConnection::new(connection, token, Session::new(id));
        // The descriptors report nothing before they are armed, and data may have arrived already.
        self.connections_with_turn.push(number);
        self.clients.insert(number, client);
        self.shared.open_connections.fetch_add(1, Ordering::Relaxed);
        self.shared
            .connections_total
            .fetch_add(1, Ordering::Relaxed);
    }

    /// Gives a connection a turn; its replies are sent together with others.
    fn serve_turn(&mut self, number: usize) {
        let Some(client) = self.clients.get_mut(&number) else {
            return;
        };
        let registry = self.poll.registry();
        if client
            .read_and_execute(&mut self.buffer, &self.shared, registry)
            .is_err()
        {
            return self.remove_connection(number);
        }
        self.connections_to_flush.push(number);
        self.unsent_bytes += client.unsent_bytes();
        if client.enter_polled_set_if_outside() {
            self.polled_connections.push(number);
        }
        // Sending to a polled client costs no system call, so the reply is sent at once.
        if client.supports_polling() || self.unsent_bytes >= FLUSH_THRESHOLD_BYTES {
            self.send_replies();
        }
    }

    /// Sends the replies and finishes the turns of their connections.
    fn send_replies(&mut self) {
        let mut unsent = std::mem::take(&mut self.connections_to_flush);
        for number in unsent.drain(..) {
            let Some(client) = self.clients.get_mut(&number) else {
                continue;
            };
            match client.send_replies(self.poll.registry()) {
                Ok(NextAction::Wait) => {}
                Ok(NextAction::MoreWork) => self.connections_with_turn.push(number),
                Ok(NextAction::Close) | Err(_) => self.remove_connection(number),
            }
        }
        (self.connections_to_flush, self.unsent_bytes) = (unsent, 0);
    }

    /// Removes a connection that has ended.
    fn remove_connection(&mut self, number: usize) {
        self.clients.remove(&number);
        self.shared.open_connections.fetch_sub(1, Ordering::Relaxed);
    }
}
