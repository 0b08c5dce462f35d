//! The server: one thread reads what has arrived on all connections, carries it out in one transaction and answers.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};

use super::order::Serve;
use super::socket::Idle;
use super::store::Store;
use super::wire::Request;
use crate::link::Link;

/// Bytes that are received at a time.
const INPUT_BYTES: usize = 1 << 18;
/// Entries of SCANs after which the answers leave: the client checks them while further ones are scanned.
const MOST_ENTRIES: u32 = 2048;
/// Rounds after which new connections are looked for.
const ACCEPT_EVERY: u32 = 256;

/// The worker's part: serves until the driver says that it is over, or is gone.
///
/// # Errors
/// There is no room for the store, LMDB fails, or the system gives no socket.
pub(crate) fn work(link: &mut Link, order: Serve) -> Result<()> {
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
    /// How soon it sees that it should stop.
    const SLEEP: Duration = Duration::from_millis(20);
    let mut connections: Vec<Connection> = Vec::new();
    let (mut idle, mut rounds) = (Idle::default(), 0u32);
    while !stop.load(Ordering::Relaxed) {
        rounds = rounds.wrapping_add(1);
        if connections.is_empty() || rounds.is_multiple_of(ACCEPT_EVERY) {
            accept(listener, &mut connections)?;
        }
        // A client that is gone or speaks another protocol loses its connection.
        connections.retain_mut(|connection| connection.receive().is_ok());
        if connections.iter().all(|c| c.requests.is_empty()) {
            let sockets = connections.iter().map(|c| c.stream.as_fd());
            let slept = idle.wait(sockets.chain([listener.as_fd()]), SLEEP)?;
            if !slept.is_zero() {
                accept(listener, &mut connections)?;
            }
            continue;
        }
        idle.end();
        let writes = |c: &Connection| c.requests.iter().any(Request::writes);
        let writes = connections.iter().any(writes);
        let turns = connections.iter_mut();
        store.carry_out(turns.map(|c| (&c.requests[..], &mut c.answers)), writes)?;
        connections.retain_mut(|connection| connection.send().is_ok());
    }
    Ok(())
}

fn accept(listener: &TcpListener, connections: &mut Vec<Connection>) -> Result<()> {
    loop {
        match listener.accept() {
            Ok((stream, _)) => connections.push(Connection::new(stream)?),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            // It was gone before it was accepted.
            Err(e) if e.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(e) => return Err(e).context("cannot accept a client"),
        }
    }
}

struct Connection {
    stream: TcpStream,
    input: Box<[u8]>,
    /// Bytes of the input that have come and are no whole request yet.
    filled: usize,
    /// What was decoded of them.
    requests: Vec<Request>,
    answers: Vec<u8>,
    /// Bytes of the answers that have been sent.
    sent: usize,
}

impl Connection {
    fn new(stream: TcpStream) -> Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            input: vec![0; INPUT_BYTES].into(),
            filled: 0,
            requests: Vec::new(),
            answers: Vec::new(),
            sent: 0,
        })
    }

    /// Decodes what has come. A client that does not read its answers is not read either.
    fn receive(&mut self) -> Result<()> {
        if !self.answers.is_empty() {
            return self.send();
        }
        if self.filled < self.input.len() {
            match self.stream.read(&mut self.input[self.filled..]) {
                Ok(0) => return Err(anyhow!("the client is gone")),
                Ok(bytes) => self.filled += bytes,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) => return Err(e.into()),
            }
        }
        let (mut at, mut entries) = (0, 0);
        while entries < MOST_ENTRIES
            && let Some((request, length)) = Request::decode(&self.input[at..self.filled])?
        {
            entries += request.entries();
            self.requests.push(request);
            at += length;
        }
        self.input.copy_within(at..self.filled, 0);
        self.filled -= at;
        Ok(())
    }

    /// Sends what the socket takes of the answers.
    fn send(&mut self) -> Result<()> {
        self.requests.clear();
        while self.sent < self.answers.len() {
            match self.stream.write(&self.answers[self.sent..]) {
                Ok(bytes) => self.sent += bytes,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(e) => return Err(e.into()),
            }
        }
        self.answers.clear();
        self.sent = 0;
        Ok(())
    }
}
