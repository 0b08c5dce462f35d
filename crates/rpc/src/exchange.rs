//! How clients and servers find each other over TCP: messages are JSON objects, one a line, and an [`Acceptor`] gives
//! every client a thread.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use serde::Serialize;
use serde::de::DeserializeOwned;

/// The longest message, in bytes.
const LINE_MAX: u64 = 64 * 1024;

/// Sends one message.
///
/// # Errors
/// As writing.
pub fn send_line(stream: &mut TcpStream, message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    stream.write_all(&line)
}

/// Receives one message.
///
/// # Errors
/// As reading; a message that is too long, or that `whose` exchange does not have.
pub fn receive_line<T: DeserializeOwned>(stream: &mut TcpStream, whose: &str) -> io::Result<T> {
    let mut line = Vec::new();
    // Both sides take turns, so nothing is read past the line.
    BufReader::new(Read::take(stream, LINE_MAX)).read_until(b'\n', &mut line)?;
    if line.last() != Some(&b'\n') {
        let what = if line.len() as u64 >= LINE_MAX {
            "a message longer than 64 KiB"
        } else {
            "the connection closed"
        };
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, what));
    }
    serde_json::from_slice(&line).map_err(|e| {
        io::Error::new(
            io::ErrorKind::InvalidData,
            format!("not the exchange of a {whose}: {e}"),
        )
    })
}

/// A thread that accepts connections, and a thread for each of them. Dropping it ends them all.
#[derive(Debug)]
pub struct Acceptor {
    shared: Arc<Accepting>,
    address: SocketAddr,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Accepting {
    streams: Mutex<HashMap<u64, TcpStream>>,
    stop: AtomicBool,
    wake: OwnedFd,
}

impl Accepting {
    fn streams(&self) -> MutexGuard<'_, HashMap<u64, TcpStream>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Acceptor {
    /// Calls `serve` for every connection, in a thread of its own, which ends when `serve` returns. When the acceptor
    /// is dropped connections are shut down, so that `serve` finds their end.
    ///
    /// # Errors
    /// When the system gives no descriptor or thread.
    pub fn start(
        listener: TcpListener,
        serve: impl Fn(TcpStream) + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let shared = Arc::new(Accepting {
            streams: Mutex::default(),
            stop: AtomicBool::new(false),
            wake: eventfd(0, EventfdFlags::CLOEXEC)?,
        });
        let accepting = Arc::clone(&shared);
        let serve = Arc::new(serve);
        let thread = std::thread::Builder::new().name("rendezvous".to_owned());
        let thread = thread.spawn(move || accept(&listener, &accepting, &serve))?;
        Ok(Self {
            shared,
            address,
            thread: Some(thread),
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        // An eventfd takes one more.
        let _ = rustix::io::write(&self.shared.wake, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has nothing left to stop.
            let _ = thread.join();
        }
    }
}

fn accept<F>(listener: &TcpListener, shared: &Arc<Accepting>, serve: &Arc<F>)
where
    F: Fn(TcpStream) + Send + Sync + 'static,
{
    let mut threads: Vec<JoinHandle<()>> = Vec::new();
    let stopping = || shared.stop.load(Ordering::Acquire);
    for id in 0.. {
        let mut fds = [
            PollFd::new(listener, PollFlags::IN),
            PollFd::new(&shared.wake, PollFlags::IN),
        ];
        while poll(&mut fds, None).is_err() && !stopping() {}
        if stopping() {
            break;
        }
        let accepted = listener.accept().and_then(|(s, _)| Ok((s.try_clone()?, s)));
        let Ok((kept, stream)) = accepted else {
            // Out of descriptors, perhaps: clients that go give some back.
            std::thread::sleep(Duration::from_millis(10));
            continue;
        };
        threads.retain(|t| !t.is_finished());
        shared.streams().insert(id, kept);
        let (shared, serve) = (Arc::clone(shared), Arc::clone(serve));
        let thread = std::thread::Builder::new().name(format!("client {id}"));
        let thread = thread.spawn(move || {
            serve(stream);
            shared.streams().remove(&id);
        });
        match thread {
            Ok(thread) => threads.push(thread),
            Err(e) => tracing::warn!("no thread for a client: {e}"),
        }
    }
    for stream in shared.streams().values() {
        // It may be closed already.
        let _ = stream.shutdown(Shutdown::Both);
    }
    for thread in threads {
        let _ = thread.join();
    }
}
