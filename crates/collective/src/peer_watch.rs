//! Notices that a peer is gone, which one-sided verbs do not tell.

use std::io::{ErrorKind, Read};
use std::net::TcpStream;

/// Something that tells whether the peer is still there.
pub trait PeerLiveness: Send {
    /// Returns true if the peer has closed its end or its process has ended. Does not wait.
    fn is_gone(&mut self) -> bool;
}

/// The rendezvous' connection, kept open: the kernel closes it when the process ends.
impl PeerLiveness for TcpStream {
    fn is_gone(&mut self) -> bool {
        match self.read(&mut [0; 16]) {
            Ok(0) => true,
            Ok(_) => false,
            Err(e) => !matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
        }
    }
}

/// Calls in vain between two looks at the clock.
const EMPTY_CALLS_PER_CLOCK_READ: u32 = 64;
/// Time between two looks at the peer.
const CHECK_INTERVAL_NS: u64 = 1_000_000;

/// A watch that is asked now and then.
pub(crate) struct PeerMonitor {
    watch: Option<Box<dyn PeerLiveness>>,
    empty_calls_since_clock_read: u32,
    next_check_ns: u64,
    is_gone: bool,
}

impl PeerMonitor {
    pub(crate) fn new(watch: Option<Box<dyn PeerLiveness>>) -> Self {
        Self {
            watch,
            empty_calls_since_clock_read: 0,
            next_check_ns: 0,
            is_gone: false,
        }
    }

    /// A call found nothing: whether that is because the peer is gone.
    pub(crate) fn is_gone_after_empty_call(&mut self) -> bool {
        let Some(watch) = &mut self.watch else {
            return false;
        };
        self.empty_calls_since_clock_read += 1;
        if !self.is_gone && self.empty_calls_since_clock_read >= EMPTY_CALLS_PER_CLOCK_READ {
            self.empty_calls_since_clock_read = 0;
            let now = verbs::time::now_ns();
            if now >= self.next_check_ns {
                self.next_check_ns = now + CHECK_INTERVAL_NS;
                self.is_gone = watch.is_gone();
            }
        }
        self.is_gone
    }
}

impl std::fmt::Debug for PeerMonitor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watched")
            .field("gone", &self.is_gone)
            .finish_non_exhaustive()
    }
}
