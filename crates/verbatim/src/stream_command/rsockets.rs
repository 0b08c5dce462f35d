//! The echo server and the clients of the comparison over rsockets. One thread serves all sockets of a side, as a
//! tokio runtime of one thread serves the other transports.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rsocket::net::{Listener, SocketAndAwaitedEvent, Stream, poll};

use super::messages::{MAX_READ_BYTES, PseudoRandomBytes, RunResult, write_number_into};

/// The time for which a thread polls its sockets without any success before it sleeps: that of a stream of the crate
/// `stream`.
const POLL_TIME_BEFORE_SLEEP: Duration = Duration::from_micros(50);

/// Makes the sockets of this process use the embedded software NIC.
fn use_softnic() {
    rdmacm::set_provider_finder(|| {
        Ok(rdmacm::Provider {
            verbs: softnic::symbols(),
            fabric_dir: softnic::fabric_dir()
                .map_err(|_| rustix::io::Errno::INVAL.raw_os_error())?,
            gsi: None,
            answer_timeout: rdmacm::DEFAULT_ANSWER_TIMEOUT,
        })
    });
}

/// Calls `step` until it returns true: again at once if it has made progress, and for [`POLL_TIME_BEFORE_SLEEP`]
/// afterwards. Then `sleep` waits for an event.
///
/// `step` returns `None` at the end.
fn poll_until_done<S>(
    sockets: &mut S,
    mut step: impl FnMut(&mut S) -> Result<Option<bool>>,
    sleep: impl Fn(&S) -> io::Result<usize>,
) -> Result<()> {
    let mut progressed = Instant::now();
    while let Some(progress) = step(sockets)? {
        if progress {
            progressed = Instant::now();
        } else if progressed.elapsed() < POLL_TIME_BEFORE_SLEEP {
            // The peer may need this core.
            std::thread::yield_now();
        } else {
            match sleep(sockets) {
                Err(e) if e.kind() != io::ErrorKind::Interrupted => return Err(e.into()),
                _ => progressed = Instant::now(),
            }
        }
    }
    Ok(())
}

/// Returns the result of a call on a non-blocking socket; `None` if the call would have to wait.
fn none_if_would_block<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(None),
        other => other.map(Some),
    }
}

/// A socket of the echo server, and the received bytes that are not sent back yet.
struct EchoSocket {
    stream: Stream,
    unsent_echo: Vec<u8>,
}

impl EchoSocket {
    /// Sends back what has arrived. Returns whether bytes were moved.
    ///
    /// # Errors
    /// Returns an error at the end of the connection, `UnexpectedEof` if the client has ended its data.
    fn try_echo_available_bytes(&mut self, room: &mut [u8]) -> io::Result<bool> {
        let mut any = false;
        if self.unsent_echo.is_empty() {
            let Some(read) = none_if_would_block(self.stream.read(room))? else {
                return Ok(false);
            };
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            any = true;
            let sent = none_if_would_block(self.stream.write(&room[..read]))?.unwrap_or(0);
            self.unsent_echo.extend_from_slice(&room[sent..read]);
        } else if let Some(sent) = none_if_would_block(self.stream.write(&self.unsent_echo))? {
            self.unsent_echo.drain(..sent);
            any = true;
        }
        Ok(any)
    }

    fn events_to_poll(&self) -> SocketAndAwaitedEvent {
        if self.unsent_echo.is_empty() {
            SocketAndAwaitedEvent::readable(&self.stream)
        } else {
            SocketAndAwaitedEvent::readable_or_writable(&self.stream)
        }
    }
}

/// Starts an echo server on a thread, for the life of the process. Returns its address.
pub(super) fn start_echo_server(address: SocketAddr) -> Result<SocketAddr> {
    use_softnic();
    let listener = Listener::bind(address);
    let listener = listener.with_context(|| format!("cannot listen at {address} by rsockets"))?;
    let address = listener.local_addr()?;
    listener.set_nonblocking(true);
    std::thread::spawn(move || {
        if let Err(e) = echo_all(&listener) {
            eprintln!("the server of rsockets ends: {e:#}");
        }
    });
    Ok(address)
}

fn echo_all(listener: &Listener) -> Result<()> {
    let mut room = vec![0; MAX_READ_BYTES];
    let step = |echoes: &mut Vec<EchoSocket>| {
        let mut any = false;
        // A client whose connection could not be made gets an error, and the server goes on.
        if let Ok(Some(stream)) = none_if_would_block(listener.accept()) {
            stream.set_nonblocking(true);
            let owed = Vec::new();
            echoes.push(EchoSocket {
                stream,
                unsent_echo: owed,
            });
            any = true;
        }
        echoes.retain_mut(|echo| match echo.try_echo_available_bytes(&mut room) {
            Ok(moved) => {
                any |= moved;
                true
            }
            Err(_) => false,
        });
        Ok(Some(any))
    };
    let sleep = |echoes: &Vec<EchoSocket>| {
        let wanted = echoes.iter().map(EchoSocket::events_to_poll);
        poll(
            wanted.chain([SocketAndAwaitedEvent::incoming_connection(listener)]),
            None,
        )
    };
    poll_until_done(&mut Vec::new(), step, sleep)
}

/// A socket with one message under way.
struct Client {
    stream: Stream,
    message_being_sent: Vec<u8>,
    received_echo: Vec<u8>,
    sent_bytes: usize,
    received_bytes: usize,
    message_started_at: Instant,
    round_trips_ns: Vec<u64>,
    is_finished: bool,
}

impl Client {
    fn connect(server: SocketAddr, seed: u64, len: usize) -> Result<Self> {
        let stream = Stream::connect(server).context("cannot connect by rsockets")?;
        stream.set_nonblocking(true);
        let mut sent = vec![0; len];
        PseudoRandomBytes(seed).fill(&mut sent);
        Ok(Self {
            stream,
            message_being_sent: sent,
            received_echo: vec![0; len],
            sent_bytes: 0,
            received_bytes: 0,
            message_started_at: Instant::now(),
            round_trips_ns: Vec::new(),
            is_finished: false,
        })
    }

    /// Moves bytes of the current message, and begins the next one after its echo. Returns whether bytes were moved.
    fn try_exchange_available_bytes(&mut self, until: Instant) -> Result<bool> {
        let mut any = false;
        if self.sent_bytes == 0 {
            write_number_into(&mut self.message_being_sent, self.round_trips_ns.len())?;
        }
        if self.sent_bytes < self.message_being_sent.len()
            && let Some(sent) = none_if_would_block(
                self.stream
                    .write(&self.message_being_sent[self.sent_bytes..]),
            )?
        {
            self.sent_bytes += sent;
            any = true;
        }
        if let Some(got) = none_if_would_block(
            self.stream
                .read(&mut self.received_echo[self.received_bytes..]),
        )? {
            ensure!(got > 0, "the server has closed the connection");
            self.received_bytes += got;
            any = true;
        }
        if self.received_bytes == self.received_echo.len() {
            ensure!(
                self.received_echo == self.message_being_sent,
                "other bytes came back than were sent"
            );
            let now = Instant::now();
            let latency = u64::try_from((now - self.message_started_at).as_nanos())?;
            self.round_trips_ns.push(latency);
            (
                self.sent_bytes,
                self.received_bytes,
                self.message_started_at,
            ) = (0, 0, now);
            self.is_finished = now >= until;
        }
        Ok(any)
    }

    fn events_to_poll(&self) -> SocketAndAwaitedEvent {
        if self.sent_bytes == self.message_being_sent.len() {
            SocketAndAwaitedEvent::readable(&self.stream)
        } else {
            SocketAndAwaitedEvent::readable_or_writable(&self.stream)
        }
    }
}

/// Sends messages of `len` bytes on each of `connections` sockets for `duration`, and waits for each echo.
pub(super) fn run(
    server: SocketAddr,
    connections: usize,
    len: usize,
    duration: Duration,
) -> Result<RunResult> {
    use_softnic();
    let seeds = (1..).take(connections);
    let clients = seeds.map(|seed| Client::connect(server, seed, len));
    let mut clients = clients.collect::<Result<Vec<_>>>()?;
    let begun = Instant::now();
    let until = begun + duration;
    clients
        .iter_mut()
        .for_each(|client| client.message_started_at = begun);
    let step = |clients: &mut Vec<Client>| {
        let (mut any, mut all_done) = (false, true);
        for client in clients.iter_mut().filter(|client| !client.is_finished) {
            any |= client.try_exchange_available_bytes(until)?;
            all_done &= client.is_finished;
        }
        Ok((!all_done).then_some(any))
    };
    let sleep = |clients: &Vec<Client>| {
        let waiting = clients.iter().filter(|client| !client.is_finished);
        poll(waiting.map(Client::events_to_poll), None)
    };
    poll_until_done(&mut clients, step, sleep)?;
    let seconds = begun.elapsed().as_secs_f64();
    let mut latencies = Vec::new();
    for client in clients {
        client.stream.shutdown_write()?;
        latencies.extend(client.round_trips_ns);
    }
    latencies.sort_unstable();
    Ok(RunResult {
        messages: u64::try_from(latencies.len())?,
        seconds,
        sorted_round_trip_ns: latencies,
    })
}
