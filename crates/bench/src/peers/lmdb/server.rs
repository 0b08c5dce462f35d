//! The server: one thread reads the requests of all connections, executes them in one transaction,
//! and answers.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};

use super::order::LmdbServeJob;
use super::socket::IdlePeriod;
use super::store::Store;
use super::wire::Request;
use crate::link::WorkerLink;

/// Size of a connection's input buffer, in bytes.
const INPUT_BYTES: usize = 1 << 18;
/// Number of SCAN entries after which answers are sent, so that the client checks them while the
/// server scans further.
const ENTRIES_PER_FLUSH: u32 = 2048;
/// Rounds between two checks for new connections.
const ROUNDS_PER_ACCEPT: u32 = 256;

/// Runs the server in the worker until the driver stops it or is gone.
///
/// # Errors
/// The store has no room, LMDB fails, or the system cannot create a socket.
pub(crate) fn run_worker_side(link: &mut WorkerLink, order: LmdbServeJob) -> Result<()> {
    let mut store = Store::new(order.keys)?;
    let listener = TcpListener::bind(("127.0.0.1", 0)).context("cannot listen for clients")?;
    listener.set_nonblocking(true)?;
    link.send(&listener.local_addr()?)?;
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let server = scope.spawn(|| serve(&listener, &mut store, &stop));
        let told = link.recv_or_end::<bool>();
        stop.store(true, Ordering::Relaxed);
        let served = server.join();
        told?;
        served.map_err(|_| anyhow!("the thread that serves LMDB has panicked"))?
    })
}

fn serve(listener: &TcpListener, store: &mut Store, stop: &AtomicBool) -> Result<()> {
    /// Maximum time until the server notices that it should stop.
    const MAX_SLEEP: Duration = Duration::from_millis(20);
    let mut connections: Vec<Connection> = Vec::new();
    let (mut idle, mut rounds) = (IdlePeriod::default(), 0u32);
    while !stop.load(Ordering::Relaxed) {
        rounds = rounds.wrapping_add(1);
        if connections.is_empty() || rounds.is_multiple_of(ROUNDS_PER_ACCEPT) {
            accept(listener, &mut connections)?;
        }
        // Close the connections of clients that are gone or violate the protocol.
        connections.retain_mut(|connection| connection.receive().is_ok());
        if connections.iter().all(|c| c.requests.is_empty()) {
            let sockets = connections.iter().map(|c| c.stream.as_fd());
            let slept =
                idle.spin_or_sleep_and_idle_time(sockets.chain([listener.as_fd()]), MAX_SLEEP)?;
            if !slept.is_zero() {
                accept(listener, &mut connections)?;
            }
            continue;
        }
        idle.end_idle_period();
        let writes = |c: &Connection| c.requests.iter().any(Request::is_write);
        let writes = connections.iter().any(writes);
        let turns = connections.iter_mut();
        store.execute(turns.map(|c| (&c.requests[..], &mut c.answers)), writes)?;
        connections.retain_mut(|connection| connection.send().is_ok());
    }
    Ok(())
}

fn accept(listener: &TcpListener, connections: &mut Vec<Connection>) -> Result<()> {
    loop {
        match listener.accept() {
            Ok((stream, _)) => connections.push(Connection::new(stream)?),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            // The client closed the connection before it was accepted.
            Err(e) if e.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(e) => return Err(e).context("cannot accept a client"),
        }
    }
}

struct Connection {
    stream: TcpStream,
    input: Box<[u8]>,
    /// Bytes of the input that were received and are not decoded yet.
    undecoded_input_bytes: usize,
    /// Decoded requests.
    requests: Vec<Request>,
    answers: Vec<u8>,
    /// Number of answer bytes that have been sent.
    answer_bytes_sent: usize,
}

impl Connection {
    fn new(stream: TcpStream) -> Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            input: vec![0; INPUT_BYTES].into(),
            undecoded_input_bytes: 0,
            requests: Vec::new(),
            answers: Vec::new(),
            answer_bytes_sent: 0,
        })
    }

    /// Receives and decodes requests. While a client leaves answers unread, the server does not
    /// read from it.
    fn receive(&mut self) -> Result<()> {
        if !self.answers.is_empty() {
            return self.send();
        }
        if self.undecoded_input_bytes < self.input.len() {
            match self
                .stream
                .read(&mut self.input[self.undecoded_input_bytes..])
            {
                Ok(0) => return Err(anyhow!("the client is gone")),
                Ok(bytes) => self.undecoded_input_bytes += bytes,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) => return Err(e.into()),
            }
        }
        let (mut at, mut entries) = (0, 0);
        while entries < ENTRIES_PER_FLUSH
            && let Some((request, length)) =
                Request::decode(&self.input[at..self.undecoded_input_bytes])?
        {
            entries += request.scan_entries();
            self.requests.push(request);
            at += length;
        }
        self.input.copy_within(at..self.undecoded_input_bytes, 0);
        self.undecoded_input_bytes -= at;
        Ok(())
    }

    /// Sends as many bytes of the answers as the socket takes.
    fn send(&mut self) -> Result<()> {
        self.requests.clear();
        while self.answer_bytes_sent < self.answers.len() {
            match self.stream.write(&self.answers[self.answer_bytes_sent..]) {
                Ok(bytes) => self.answer_bytes_sent += bytes,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(e) => return Err(e.into()),
            }
        }
        self.answers.clear();
        self.answer_bytes_sent = 0;
        Ok(())
    }
}
