//! Acceptor of TCP connections.

use std::collections::HashMap;
use std::io;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use crate::worker::lock;

/// A thread that accepts connections, and a thread for each connection. Dropping the acceptor ends
/// all of them.
#[derive(Debug)]
pub(crate) struct Acceptor {
    shared: Arc<SharedState>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct SharedState {
    /// Duplicate handles of the connections, used to shut them down.
    shutdown_handles: Mutex<HashMap<u64, TcpStream>>,
    stop_requested: AtomicBool,
    wake_eventfd: OwnedFd,
}

/// A connection that is being served. Dropping it removes the duplicate handle, even if serving
/// panics or never begins.
struct StreamHandleGuard {
    shared: Arc<SharedState>,
    id: u64,
}

impl Drop for StreamHandleGuard {
    fn drop(&mut self) {
        lock(&self.shared.shutdown_handles).remove(&self.id);
    }
}

impl Acceptor {
    /// Calls `serve` for every connection, in a separate thread that ends when `serve` returns.
    /// Dropping the acceptor shuts the connections down, so that `serve` sees their end.
    ///
    /// # Errors
    /// When the system cannot create a descriptor or a thread.
    pub(crate) fn start(
        listener: TcpListener,
        serve: impl Fn(TcpStream) + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let shared = Arc::new(SharedState {
            shutdown_handles: Mutex::default(),
            stop_requested: AtomicBool::new(false),
            wake_eventfd: eventfd(0, EventfdFlags::CLOEXEC)?,
        });
        let accepting = Arc::clone(&shared);
        let serve = Arc::new(serve);
        let thread = std::thread::Builder::new().name("rendezvous".to_owned());
        let thread = thread
            .spawn(move || accept_connections_until_stopped(&listener, &accepting, &serve))?;
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        self.shared.stop_requested.store(true, Ordering::Release);
        // This write cannot fail: the counter of the eventfd has room.
        let _ = rustix::io::write(&self.shared.wake_eventfd, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            // A panicked thread needs no stop.
            let _ = thread.join();
        }
    }
}

fn accept_connections_until_stopped<F>(
    listener: &TcpListener,
    shared: &Arc<SharedState>,
    serve: &Arc<F>,
) where
    F: Fn(TcpStream) + Send + Sync + 'static,
{
    let mut threads: Vec<JoinHandle<()>> = Vec::new();
    let stopping = || shared.stop_requested.load(Ordering::Acquire);
    for id in 0.. {
        let mut fds = [
            PollFd::new(listener, PollFlags::IN),
            PollFd::new(&shared.wake_eventfd, PollFlags::IN),
        ];
        while poll(&mut fds, None).is_err() && !stopping() {}
        if stopping() {
            break;
        }
        let accepted = listener.accept().and_then(|(s, _)| Ok((s.try_clone()?, s)));
        let Ok((kept, stream)) = accepted else {
            // The process may be out of descriptors: wait until clients leave and free some.
            std::thread::sleep(Duration::from_millis(10));
            continue;
        };
        threads.retain(|t| !t.is_finished());
        lock(&shared.shutdown_handles).insert(id, kept);
        let served = StreamHandleGuard {
            shared: Arc::clone(shared),
            id,
        };
        let serve = Arc::clone(serve);
        let thread = std::thread::Builder::new().name(format!("client {id}"));
        let thread = thread.spawn(move || {
            let _served = served;
            serve(stream);
        });
        match thread {
            Ok(thread) => threads.push(thread),
            Err(e) => tracing::warn!("no thread for a client: {e}"),
        }
    }
    for stream in lock(&shared.shutdown_handles).values() {
        // The connection may be closed already.
        let _ = stream.shutdown(Shutdown::Both);
    }
    for thread in threads {
        let _ = thread.join();
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn a_client_whose_server_fails_is_let_go() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound");
        let _acceptor = Acceptor::start(listener, |_| panic!("on purpose")).expect("starts");
        let mut client = TcpStream::connect(address).expect("it listens");
        let timeout = Duration::from_secs(20);
        client.set_read_timeout(Some(timeout)).expect("a time");
        assert_eq!(client.read(&mut [0]).expect("not late"), 0);
    }
}
