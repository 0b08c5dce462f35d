//! Notices that a peer is gone, which one-sided verbs do not tell.

use std::io::{ErrorKind, Read};
use std::net::TcpStream;

/// Something that tells whether the peer is still there.
pub trait Watch: Send {
    /// Whether the peer has closed its end, or its process has ended. Returns at once.
    fn is_gone(&mut self) -> bool;
}

/// The rendezvous' connection, kept open: the kernel closes it when the process ends.
impl Watch for TcpStream {
    fn is_gone(&mut self) -> bool {
        match self.read(&mut [0; 16]) {
            Ok(0) => true,
            Ok(_) => false,
            Err(e) => !matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
        }
    }
}

/// Calls in vain between two looks at the clock.
const MISSES: u32 = 64;
/// Time between two looks at the peer.
const INTERVAL_NS: u64 = 1_000_000;

/// A watch that is asked now and then.
pub(crate) struct Watched {
    watch: Option<Box<dyn Watch>>,
    misses: u32,
    next_ns: u64,
    gone: bool,
}

impl Watched {
    pub(crate) fn new(watch: Option<Box<dyn Watch>>) -> Self {
        Self {
            watch,
            misses: 0,
            next_ns: 0,
            gone: false,
        }
    }

    /// A call found nothing: whether that is because the peer is gone.
    pub(crate) fn missed(&mut self) -> bool {
        let Some(watch) = &mut self.watch else {
            return false;
        };
        self.misses += 1;
        if !self.gone && self.misses >= MISSES {
            self.misses = 0;
            let now = verbs::time::now_ns();
            if now >= self.next_ns {
                self.next_ns = now + INTERVAL_NS;
                self.gone = watch.is_gone();
            }
        }
        self.gone
    }
}

impl std::fmt::Debug for Watched {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watched")
            .field("gone", &self.gone)
            .finish_non_exhaustive()
    }
}
