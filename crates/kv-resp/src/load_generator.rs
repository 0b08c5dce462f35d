//! A load generator for the Redis protocol: GETs or SETs of many keys over connections of any type. Every answer is
//! checked.

use std::io::{self, ErrorKind, Write as _};
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use mio::{Events, Interest, Poll, Token};
use resp_rdma::Connector;

use crate::connection::{Connection, ListenAddress};
use crate::rdma::{RdmaConnection, register_shared_descriptors};

/// Largest time for a server to accept a connection, or to answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Time for which a thread polls for answers before it sleeps.
const POLL_TIME_BEFORE_SLEEP: Duration = Duration::from_micros(100);
/// An idle thread yields after this many rounds. It yields after every round while other threads compete for the core,
/// which shows in the duration of a yield ([`MIN_CONTENDED_YIELD_TIME`]).
const ROUNDS_PER_YIELD: u32 = 16;
const MIN_CONTENDED_YIELD_TIME: Duration = Duration::from_micros(3);
/// Number of outstanding SETs while keys are filled.
const OUTSTANDING_FILL_SETS: u64 = 64;
/// Bytes that are read at once.
const READ_BYTES: usize = 64 << 10;
/// Latencies are recorded with two significant digits, from 1 ns to 100 s.
const MAX_LATENCY_NS: u64 = 100_000_000_000;

impl ListenAddress {
    /// Connects to a server at this address.
    ///
    /// # Errors
    /// The errors of the system, and for RDMA those of `connector`; `ErrorKind::Unsupported` if `connector` is missing.
    pub fn connect(&self, connector: Option<&Connector>) -> io::Result<Box<dyn Connection>> {
        match self {
            Self::Tcp(address) => {
                let stream = std::net::TcpStream::connect(address)?;
                stream.set_nodelay(true)?;
                stream.set_nonblocking(true)?;
                Ok(Box::new(mio::net::TcpStream::from_std(stream)))
            }
            Self::Unix(path) => {
                let stream = std::os::unix::net::UnixStream::connect(path)?;
                stream.set_nonblocking(true)?;
                Ok(Box::new(mio::net::UnixStream::from_std(stream)))
            }
            Self::Rdma(at) => {
                let connector = connector.ok_or(ErrorKind::Unsupported)?;
                Ok(Box::new(RdmaConnection(connector.connect(*at, TIMEOUT)?)))
            }
        }
    }

    /// Returns the same host and port for RDMA.
    ///
    /// # Errors
    /// If the host name has no address, or this is not a host and port.
    pub fn to_rdma_address(&self) -> io::Result<Self> {
        let first = |text: &str| -> io::Result<SocketAddr> {
            text.to_socket_addrs()?
                .next()
                .ok_or(ErrorKind::NotFound.into())
        };
        match self {
            Self::Tcp(text) => Ok(Self::Rdma(first(text)?)),
            Self::Rdma(at) => Ok(Self::Rdma(*at)),
            Self::Unix(_) => Err(ErrorKind::InvalidInput.into()),
        }
    }
}

/// The command of a load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoadCommand {
    /// GET: the value must be the one that was set.
    Get,
    /// SET of a key to its value.
    Set,
}

/// The parameters of a load.
#[derive(Debug, Clone, Copy)]
pub struct LoadParameters {
    /// The command to send.
    pub command: LoadCommand,
    /// Number of keys; keys are numbered from 0.
    pub key_count: u64,
    /// Bytes of a value.
    pub value_bytes: usize,
    /// Outstanding commands per connection, at least 1.
    pub outstanding_commands: usize,
    /// The seed of the order of keys.
    pub seed: u64,
}

/// The result of a load.
#[derive(Debug, Clone)]
pub struct LoadResult {
    /// Number of answers, all of which were right.
    pub answer_count: u64,
    /// Duration of the load.
    pub elapsed: Duration,
    /// Latencies in nanoseconds from a command to its answer.
    pub latency_ns: Histogram<u64>,
}

/// The reason why a load ended early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// A connection failed.
    #[error("a connection failed: {0}")]
    Io(#[from] io::Error),
    /// The server has closed a connection.
    #[error("the server has ended a connection")]
    Disconnected,
    /// An answer is wrong.
    #[error("key {key}: the answer is {answer:?}, and {expected:?} is right")]
    WrongAnswer {
        /// The number of the key.
        key: u64,
        /// The beginning of the received answer.
        answer: String,
        /// The beginning of the expected answer.
        expected: String,
    },
    /// The server did not answer for too long.
    #[error("the server has not answered for {TIMEOUT:?}")]
    NoAnswer,
}

/// The token of the descriptors that connections share.
const SHARED_TOKEN: Token = Token(usize::MAX);

/// A set of connections to one server, driven by one thread.
pub struct LoadConnections {
    poll: Poll,
    /// The maker of connections over RDMA, which share its descriptors.
    connector: Option<Connector>,
    clients: Vec<PipelinedConnection>,
    /// The buffer of one read.
    buffer: Vec<u8>,
}

struct PipelinedConnection {
    connection: Box<dyn Connection>,
    /// Outstanding commands, oldest first: the key, and the time of the request.
    outstanding_commands: std::collections::VecDeque<(u64, Instant)>,
    encoded_requests: Vec<u8>,
    sent_request_bytes: usize,
    unparsed_answer_bytes: Vec<u8>,
    may_be_readable: bool,
}

/// Fills a buffer with the value of a key.
fn fill_with_value_of_key(key: u64, into: &mut [u8]) {
    let mut word = key ^ 0x9e37_79b9_7f4a_7c15;
    for chunk in into.chunks_mut(8) {
        word = word.wrapping_mul(0xd134_2543_de82_ef95).wrapping_add(1);
        let bytes = (word >> 7).to_le_bytes();
        chunk.copy_from_slice(bytes.get(..chunk.len()).unwrap_or_default());
    }
}

impl LoadParameters {
    /// Appends an encoded command to `into`.
    fn encode_command(&self, command: LoadCommand, key: u64, into: &mut Vec<u8>) {
        // Writing to memory cannot fail.
        let _ = match command {
            LoadCommand::Get => write!(into, "*2\r\n$3\r\nGET\r\n$16\r\nkey:{key:012}\r\n"),
            LoadCommand::Set => {
                let bytes = self.value_bytes;
                write!(
                    into,
                    "*3\r\n$3\r\nSET\r\n$16\r\nkey:{key:012}\r\n${bytes}\r\n"
                )
            }
        };
        if command == LoadCommand::Set {
            self.append_value_of_key(key, into);
        }
    }

    /// Returns the right answer in `into`.
    fn write_expected_answer(&self, command: LoadCommand, key: u64, into: &mut Vec<u8>) {
        into.clear();
        match command {
            LoadCommand::Set => into.extend_from_slice(b"+OK\r\n"),
            LoadCommand::Get => {
                let _ = write!(into, "${}\r\n", self.value_bytes);
                self.append_value_of_key(key, into);
            }
        }
    }

    fn append_value_of_key(&self, key: u64, into: &mut Vec<u8>) {
        let begin = into.len();
        into.resize(begin + self.value_bytes, 0);
        fill_with_value_of_key(key, into.get_mut(begin..).unwrap_or_default());
        into.extend_from_slice(b"\r\n");
    }
}

impl LoadConnections {
    /// Opens connections to a server. Connections over RDMA share descriptors.
    ///
    /// # Errors
    /// The errors of [`ListenAddress::connect`], or the system has no descriptor left.
    pub fn connect(
        server: &ListenAddress,
        connector: Option<&Connector>,
        connections: usize,
    ) -> io::Result<Self> {
        let poll = Poll::new()?;
        let connector = match server {
            ListenAddress::Rdma(_) => connector
                .map(Connector::with_shared_descriptors)
                .transpose()?,
            _ => None,
        };
        if let Some(connector) = &connector {
            register_shared_descriptors(connector, poll.registry(), SHARED_TOKEN)?;
        }
        let mut clients = Vec::new();
        for number in 0..connections {
            let mut connection = server.connect(connector.as_ref())?;
            let interests = Interest::READABLE;
            poll.registry()
                .register(&mut *connection, Token(number), interests)?;
            clients.push(PipelinedConnection {
                connection,
                outstanding_commands: std::collections::VecDeque::new(),
                encoded_requests: Vec::new(),
                sent_request_bytes: 0,
                unparsed_answer_bytes: Vec::new(),
                may_be_readable: true,
            });
        }
        Ok(Self {
            poll,
            connector,
            clients,
            buffer: vec![0; READ_BYTES],
        })
    }

    /// Sets all keys of a load through the first connection.
    ///
    /// # Errors
    /// The same as for [`run`](Self::run).
    pub fn set_all_keys(&mut self, load: &LoadParameters) -> Result<(), LoadError> {
        let load = LoadParameters {
            command: LoadCommand::Set,
            ..*load
        };
        let mut next = 0;
        self.send_commands_and_check_answers(&load, 1, |asked| {
            let more = next < load.key_count && asked < OUTSTANDING_FILL_SETS;
            next += u64::from(more);
            more.then(|| next - 1)
        })?;
        Ok(())
    }

    /// Sends commands until `stop` is true, at least one, then takes the outstanding answers. The keys of each command
    /// are random.
    ///
    /// # Errors
    /// At the first wrong answer, or if a connection fails.
    pub fn run(
        &mut self,
        load: &LoadParameters,
        stop: &AtomicBool,
    ) -> Result<LoadResult, LoadError> {
        let (keys, depth) = (
            load.key_count.max(1),
            load.outstanding_commands.max(1) as u64,
        );
        let mut random = load.seed | 1;
        let mut has_begun = false;
        self.send_commands_and_check_answers(load, usize::MAX, |asked| {
            if asked >= depth || (has_begun && stop.load(Ordering::Relaxed)) {
                return None;
            }
            has_begun = true;
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            Some((random >> 33) % keys)
        })
    }

    /// Sends commands on the first `connections` connections, for the keys that `next` returns. `next` gets the number
    /// of outstanding commands of the connection. Ends when nothing is outstanding.
    fn send_commands_and_check_answers(
        &mut self,
        load: &LoadParameters,
        connections: usize,
        mut next: impl FnMut(u64) -> Option<u64>,
    ) -> Result<LoadResult, LoadError> {
        let mut events = Events::with_capacity(1024);
        let mut expected = Vec::new();
        let begun = Instant::now();
        let (mut busy, mut misses, mut is_contended) = (begun, 0u32, false);
        let highest = Histogram::new_with_bounds(1, MAX_LATENCY_NS, 2);
        let mut measured = LoadResult {
            answer_count: 0,
            elapsed: Duration::ZERO,
            latency_ns: highest.map_err(|e| LoadError::Io(io::Error::other(e.to_string())))?,
        };
        loop {
            let before = measured.answer_count;
            let mut outstanding = false;
            for client in self.clients.iter_mut().take(connections) {
                client.may_be_readable |= client.connection.poll();
                if client.may_be_readable {
                    client.read_and_check_answers(
                        load,
                        (&mut self.buffer, &mut expected),
                        &mut measured,
                    )?;
                }
                client.send_commands(load, &mut next)?;
                outstanding |= !client.outstanding_commands.is_empty();
            }
            if !outstanding {
                measured.elapsed = begun.elapsed();
                return Ok(measured);
            }
            let now = Instant::now();
            if measured.answer_count != before {
                (busy, misses) = (now, 0);
            } else {
                misses += 1;
                if is_contended || misses.is_multiple_of(ROUNDS_PER_YIELD) {
                    std::thread::yield_now();
                    is_contended = now.elapsed() > MIN_CONTENDED_YIELD_TIME;
                }
            }
            let waited = now.saturating_duration_since(busy);
            if waited > TIMEOUT {
                return Err(LoadError::NoAnswer);
            }
            self.process_descriptor_events(waited > POLL_TIME_BEFORE_SLEEP, &mut events)?;
        }
    }

    /// Processes events of the descriptors, and sleeps for one if `sleep` is true.
    fn process_descriptor_events(&mut self, sleep: bool, events: &mut Events) -> io::Result<()> {
        let polled = self.clients.iter().any(|c| c.connection.supports_polling());
        if polled && !sleep {
            // Polled connections report no events before they are armed.
            return Ok(());
        }
        let mut wait = Duration::ZERO;
        if sleep {
            // Some connections may have become ready meanwhile.
            let mut armed = true;
            for client in &mut self.clients {
                let arms = client.connection.arm_unless_ready();
                client.may_be_readable |= !arms;
                armed &= arms;
            }
            if armed {
                wait = Duration::from_millis(100);
            }
        }
        match self.poll.poll(events, Some(wait)) {
            Err(e) if e.kind() == ErrorKind::Interrupted => return Ok(()),
            other => other?,
        }
        let clients = &mut self.clients;
        let mut mark_readable = |number: usize| {
            if let Some(client) = clients.get_mut(number) {
                client.may_be_readable = true;
            }
        };
        for event in &*events {
            match (event.token(), &self.connector) {
                (SHARED_TOKEN, Some(connector)) => connector.take_ready(&mut mark_readable),
                (Token(number), _) => mark_readable(number),
            }
        }
        Ok(())
    }
}

impl PipelinedConnection {
    /// Sends commands for the keys that `next` returns.
    fn send_commands(
        &mut self,
        load: &LoadParameters,
        next: &mut impl FnMut(u64) -> Option<u64>,
    ) -> Result<(), LoadError> {
        if self.sent_request_bytes == self.encoded_requests.len() {
            self.encoded_requests.clear();
            self.sent_request_bytes = 0;
            while let Some(key) = next(self.outstanding_commands.len() as u64) {
                load.encode_command(load.command, key, &mut self.encoded_requests);
                self.outstanding_commands.push_back((key, Instant::now()));
            }
        }
        while let Some(rest) = self
            .encoded_requests
            .get(self.sent_request_bytes..)
            .filter(|r| !r.is_empty())
        {
            match self.connection.write(rest) {
                Ok(0) => return Err(LoadError::Disconnected),
                Ok(n) => self.sent_request_bytes += n,
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    /// Reads and checks answers.
    fn read_and_check_answers(
        &mut self,
        load: &LoadParameters,
        (buffer, expected): (&mut [u8], &mut Vec<u8>),
        measured: &mut LoadResult,
    ) -> Result<(), LoadError> {
        match self.connection.read(buffer) {
            Ok(0) => return Err(LoadError::Disconnected),
            Ok(n) => {
                self.may_be_readable = n == buffer.len();
                let received = buffer.get(..n).unwrap_or_default();
                self.unparsed_answer_bytes.extend_from_slice(received);
            }
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) if e.kind() == ErrorKind::WouldBlock => self.may_be_readable = false,
            Err(e) => return Err(e.into()),
        }
        let mut done = 0;
        while let Some(&(key, at)) = self.outstanding_commands.front() {
            load.write_expected_answer(load.command, key, expected);
            let rest = self.unparsed_answer_bytes.get(done..).unwrap_or_default();
            let there = rest.len().min(expected.len());
            if rest.get(..there) != expected.get(..there) {
                let shown = |bytes: &[u8]| {
                    let most = bytes.len().min(64);
                    bytes
                        .get(..most)
                        .unwrap_or_default()
                        .escape_ascii()
                        .to_string()
                };
                return Err(LoadError::WrongAnswer {
                    key,
                    answer: shown(rest),
                    expected: shown(expected),
                });
            }
            if there < expected.len() {
                break;
            }
            done += expected.len();
            self.outstanding_commands.pop_front();
            measured.answer_count += 1;
            let ns = u64::try_from(at.elapsed().as_nanos()).unwrap_or(u64::MAX);
            measured.latency_ns.saturating_record(ns);
        }
        self.unparsed_answer_bytes.drain(..done);
        Ok(())
    }
}
