//! The server: one thread reads the requests of all connections, executes them in one transaction,
//! and answers.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use heed::{Comparator, DefaultComparator, IntegerComparator};

use super::idle_wait::IdlePeriod;
use super::serve_job::{EntrySizes, KeyOrder, LmdbServeJob};
use super::store::Store;
use super::wire::Request;
use crate::link::WorkerLink;

/// Size of a connection's input buffer, in bytes.
const INPUT_BUFFER_BYTES: usize = 1 << 18;
/// Number of SCAN entries after which answers are sent, so that the client checks them while the
/// server scans further.
const SCANNED_ENTRIES_PER_SEND: u32 = 2048;
/// Rounds between two checks for new connections.
const ROUNDS_PER_ACCEPT: u32 = 256;

/// Runs the server in the worker until the driver stops it or is gone.
///
/// # Errors
/// The store has no room, LMDB fails, or the system cannot create a socket.
pub(crate) fn run_worker_side(link: &mut WorkerLink, order: LmdbServeJob) -> Result<()> {
    match order.key_order {
        KeyOrder::Integers => serve_until_told(link, Store::<IntegerComparator>::new(order)?),
        KeyOrder::Bytes => serve_until_told(link, Store::<DefaultComparator>::new(order)?),
    }
}

fn serve_until_told<C: Comparator + Send + 'static>(
    link: &mut WorkerLink,
    mut store: Store<C>,
) -> Result<()> {
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

fn serve<C: Comparator + 'static>(
    listener: &TcpListener,
    store: &mut Store<C>,
    stop: &AtomicBool,
) -> Result<()> {
    /// Maximum time until the server notices that it should stop.
    const MAX_SLEEP: Duration = Duration::from_millis(20);
    let mut connections: Vec<Connection> = Vec::new();
    let (mut idle, mut rounds) = (IdlePeriod::default(), 0u32);
    while !stop.load(Ordering::Relaxed) {
        rounds = rounds.wrapping_add(1);
        if connections.is_empty() || rounds.is_multiple_of(ROUNDS_PER_ACCEPT) {
            accept_waiting_clients(listener, &mut connections)?;
        }
        // Close the connections of clients that are gone or violate the protocol.
        connections.retain_mut(|connection| connection.receive(store.sizes()).is_ok());
        if connections.iter().all(|c| c.complete_bytes == 0) {
            let sockets = connections.iter().map(|c| c.stream.as_fd());
            let slept =
                idle.spin_or_sleep_and_idle_time(sockets.chain([listener.as_fd()]), MAX_SLEEP)?;
            if !slept.is_zero() {
                accept_waiting_clients(listener, &mut connections)?;
            }
            continue;
        }
        idle.end_idle_period();
        let writes = connections.iter().any(|c| c.has_write_request);
        let turns = connections.iter_mut();
        let turns = turns.map(|c| (&c.input_buffer[..c.complete_bytes], &mut c.answer_bytes));
        store.execute_in_one_txn(turns, writes)?;
        connections.retain_mut(|connection| connection.send().is_ok());
    }
    Ok(())
}

fn accept_waiting_clients(listener: &TcpListener, connections: &mut Vec<Connection>) -> Result<()> {
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
    input_buffer: Box<[u8]>,
    /// Bytes of the input that were received and are not executed yet.
    unexecuted_bytes: usize,
    /// Bytes of complete requests at the start of the input.
    complete_bytes: usize,
    /// True if one of the complete requests changes the store.
    has_write_request: bool,
    answer_bytes: Vec<u8>,
    /// Number of answer bytes that have been sent.
    answer_bytes_sent: usize,
}

impl Connection {
    fn new(stream: TcpStream) -> Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            input_buffer: vec![0; INPUT_BUFFER_BYTES].into(),
            unexecuted_bytes: 0,
            complete_bytes: 0,
            has_write_request: false,
            answer_bytes: Vec::new(),
            answer_bytes_sent: 0,
        })
    }

    /// Receives requests. While a client leaves answers unread, the server does not read from it.
    fn receive(&mut self, sizes: EntrySizes) -> Result<()> {
        if !self.answer_bytes.is_empty() {
            return self.send();
        }
        if self.unexecuted_bytes < self.input_buffer.len() {
            match self
                .stream
                .read(&mut self.input_buffer[self.unexecuted_bytes..])
            {
                Ok(0) => return Err(anyhow!("the client is gone")),
                Ok(bytes) => self.unexecuted_bytes += bytes,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) => return Err(e.into()),
            }
        }
        let mut entries = 0;
        while entries < SCANNED_ENTRIES_PER_SEND
            && let rest = &self.input_buffer[self.complete_bytes..self.unexecuted_bytes]
            && let Some((request, length)) = Request::decode(rest, sizes)?
        {
            entries += request.scan_entries();
            self.has_write_request |= request.is_write();
            self.complete_bytes += length;
        }
        Ok(())
    }

    /// Sends as many bytes of the answers as the socket takes.
    fn send(&mut self) -> Result<()> {
        self.discard_executed_requests();
        while self.answer_bytes_sent < self.answer_bytes.len() {
            match self
                .stream
                .write(&self.answer_bytes[self.answer_bytes_sent..])
            {
                Ok(bytes) => self.answer_bytes_sent += bytes,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(e) => return Err(e.into()),
            }
        }
        self.answer_bytes.clear();
        self.answer_bytes_sent = 0;
        Ok(())
    }

    fn discard_executed_requests(&mut self) {
        let executed = std::mem::take(&mut self.complete_bytes);
        self.input_buffer
            .copy_within(executed..self.unexecuted_bytes, 0);
        self.unexecuted_bytes -= executed;
        self.has_write_request = false;
    }
}
