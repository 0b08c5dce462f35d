//! The echo server and the clients of the comparison over rsockets. One thread serves all sockets of a side, as a
//! tokio runtime of one thread serves the other transports.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rsocket::net::{Listener, Stream, Wanted, poll};

use super::messages::{Measured, PseudoRandomBytes, ROOM, stamp};

/// The time for which a thread polls its sockets without any success before it sleeps: that of a stream of the crate
/// `stream`.
const SPIN: Duration = Duration::from_micros(50);

/// Makes the sockets of this process use the embedded software NIC.
fn use_softnic() {
    rdmacm::set_provider(|| {
        Ok(rdmacm::Provider {
            verbs: softnic::symbols(),
            fabric_dir: softnic::fabric_dir()
                .map_err(|_| rustix::io::Errno::INVAL.raw_os_error())?,
            gsi: None,
            answer_timeout: rdmacm::DEFAULT_ANSWER_TIMEOUT,
        })
    });
}

/// Calls `step` until it returns true: again at once if it has made progress, and for [`SPIN`] afterwards. Then `sleep`
/// waits for an event.
///
/// `step` returns `None` at the end.
fn drive<S>(
    sockets: &mut S,
    mut step: impl FnMut(&mut S) -> Result<Option<bool>>,
    sleep: impl Fn(&S) -> io::Result<usize>,
) -> Result<()> {
    let mut progressed = Instant::now();
    while let Some(progress) = step(sockets)? {
        if progress {
            progressed = Instant::now();
        } else if progressed.elapsed() < SPIN {
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
fn without_waiting<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(None),
        other => other.map(Some),
    }
}

/// A socket of the echo server, and the received bytes that are not sent back yet.
struct Echo {
    stream: Stream,
    owed: Vec<u8>,
}

impl Echo {
    /// Sends back what has arrived. Returns whether bytes were moved.
    ///
    /// # Errors
    /// Returns an error at the end of the connection, `UnexpectedEof` if the client has ended its data.
    fn step(&mut self, room: &mut [u8]) -> io::Result<bool> {
        let mut any = false;
        if self.owed.is_empty() {
            let Some(read) = without_waiting(self.stream.read(room))? else {
                return Ok(false);
            };
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            any = true;
            let sent = without_waiting(self.stream.write(&room[..read]))?.unwrap_or(0);
            self.owed.extend_from_slice(&room[sent..read]);
        } else if let Some(sent) = without_waiting(self.stream.write(&self.owed))? {
            self.owed.drain(..sent);
            any = true;
        }
        Ok(any)
    }

    fn wanted(&self) -> Wanted {
        if self.owed.is_empty() {
            Wanted::readable(&self.stream)
        } else {
            Wanted::readable_or_writable(&self.stream)
        }
    }
}

/// Starts an echo server on a thread, for the life of the process. Returns its address.
pub(super) fn serve(address: SocketAddr) -> Result<SocketAddr> {
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
    let mut room = vec![0; ROOM];
    let step = |echoes: &mut Vec<Echo>| {
        let mut any = false;
        // A client whose connection could not be made gets an error, and the server goes on.
        if let Ok(Some(stream)) = without_waiting(listener.accept()) {
            stream.set_nonblocking(true);
            let owed = Vec::new();
            echoes.push(Echo { stream, owed });
            any = true;
        }
        echoes.retain_mut(|echo| match echo.step(&mut room) {
            Ok(moved) => {
                any |= moved;
                true
            }
            Err(_) => false,
        });
        Ok(Some(any))
    };
    let sleep = |echoes: &Vec<Echo>| {
        let wanted = echoes.iter().map(Echo::wanted);
        poll(wanted.chain([Wanted::connection(listener)]), None)
    };
    drive(&mut Vec::new(), step, sleep)
}

/// A socket with one message under way.
struct Client {
    stream: Stream,
    sent: Vec<u8>,
    got: Vec<u8>,
    sent_bytes: usize,
    got_bytes: usize,
    begun: Instant,
    latencies: Vec<u64>,
    done: bool,
}

impl Client {
    fn connect(server: SocketAddr, seed: u64, len: usize) -> Result<Self> {
        let stream = Stream::connect(server).context("cannot connect by rsockets")?;
        stream.set_nonblocking(true);
        let mut sent = vec![0; len];
        PseudoRandomBytes(seed).fill(&mut sent);
        Ok(Self {
            stream,
            sent,
            got: vec![0; len],
            sent_bytes: 0,
            got_bytes: 0,
            begun: Instant::now(),
            latencies: Vec::new(),
            done: false,
        })
    }

    /// Moves bytes of the current message, and begins the next one after its echo. Returns whether bytes were moved.
    fn step(&mut self, until: Instant) -> Result<bool> {
        let mut any = false;
        if self.sent_bytes == 0 {
            stamp(&mut self.sent, self.latencies.len())?;
        }
        if self.sent_bytes < self.sent.len()
            && let Some(sent) = without_waiting(self.stream.write(&self.sent[self.sent_bytes..]))?
        {
            self.sent_bytes += sent;
            any = true;
        }
        if let Some(got) = without_waiting(self.stream.read(&mut self.got[self.got_bytes..]))? {
            ensure!(got > 0, "the server has closed the connection");
            self.got_bytes += got;
            any = true;
        }
        if self.got_bytes == self.got.len() {
            ensure!(
                self.got == self.sent,
                "other bytes came back than were sent"
            );
            let now = Instant::now();
            let latency = u64::try_from((now - self.begun).as_nanos())?;
            self.latencies.push(latency);
            (self.sent_bytes, self.got_bytes, self.begun) = (0, 0, now);
            self.done = now >= until;
        }
        Ok(any)
    }

    fn wanted(&self) -> Wanted {
        if self.sent_bytes == self.sent.len() {
            Wanted::readable(&self.stream)
        } else {
            Wanted::readable_or_writable(&self.stream)
        }
    }
}

/// Sends messages of `len` bytes on each of `connections` sockets for `duration`, and waits for each echo.
pub(super) fn run(
    server: SocketAddr,
    connections: usize,
    len: usize,
    duration: Duration,
) -> Result<Measured> {
    use_softnic();
    let seeds = (1..).take(connections);
    let clients = seeds.map(|seed| Client::connect(server, seed, len));
    let mut clients = clients.collect::<Result<Vec<_>>>()?;
    let begun = Instant::now();
    let until = begun + duration;
    clients.iter_mut().for_each(|client| client.begun = begun);
    let step = |clients: &mut Vec<Client>| {
        let (mut any, mut all_done) = (false, true);
        for client in clients.iter_mut().filter(|client| !client.done) {
            any |= client.step(until)?;
            all_done &= client.done;
        }
        Ok((!all_done).then_some(any))
    };
    let sleep = |clients: &Vec<Client>| {
        let waiting = clients.iter().filter(|client| !client.done);
        poll(waiting.map(Client::wanted), None)
    };
    drive(&mut clients, step, sleep)?;
    let seconds = begun.elapsed().as_secs_f64();
    let mut latencies = Vec::new();
    for client in clients {
        client.stream.shutdown_write()?;
        latencies.extend(client.latencies);
    }
    latencies.sort_unstable();
    Ok(Measured {
        messages: u64::try_from(latencies.len())?,
        seconds,
        latencies,
    })
}
