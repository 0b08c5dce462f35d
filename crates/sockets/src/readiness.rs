//! What a connection is ready for, as far as the kernel does not know it.

use std::sync::atomic::Ordering;

use crate::connection_page::{DirectionWords, state};
use crate::cursors::readable_ring_bytes;
use crate::page_side::PageAndSide;
use crate::ring::Ring;

/// The readiness of a connection that is not plain TCP.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Readiness {
    pub(crate) readable: bool,
    pub(crate) writable: bool,
    /// Number of bytes received by RDMA so far; an increase is a new edge.
    pub(crate) arrived_rdma_bytes: u64,
    /// True if only the kernel knows whether data, or room, is available.
    pub(crate) must_ask_kernel_for_readable: bool,
    pub(crate) must_ask_kernel_for_writable: bool,
}

/// The memory that tells whether a connection on this host has data, without a lock of the connection.
///
/// An epoll instance looks at many connections at each wait. The locked instructions of a lock would wait for the line
/// that the peer has written, one connection after the other.
pub(crate) struct ReadableView {
    pub(crate) link: PageAndSide,
    pub(crate) ring: Option<Ring>,
}

impl ReadableView {
    /// Returns the readiness for reading, as the connection itself does.
    pub(crate) fn readiness(&self) -> Readiness {
        self.link.readiness_for_reading(self.ring.as_ref())
    }
}

impl PageAndSide {
    /// Returns the readiness for reading.
    pub(crate) fn readiness_for_reading(&self, ring: Option<&Ring>) -> Readiness {
        let mut is = Readiness::default();
        let dir = self.incoming_words();
        let now = dir.state.load(Ordering::Acquire);
        let before = dir.tcp_bytes_received.load(Ordering::Relaxed)
            < dir.tcp_bytes_before_rdma.load(Ordering::Acquire);
        is.must_ask_kernel_for_readable = before || now != state::RDMA;
        if let Some(ring) = ring {
            is.arrived_rdma_bytes = arrived_rdma_bytes(ring, &dir);
            is.readable = readable_ring_bytes(is.arrived_rdma_bytes, &dir) > 0
                && (!before || now == state::TCP);
        }
        is
    }
}

pub(crate) fn has_data(ring: Option<&Ring>, link: &PageAndSide) -> bool {
    let dir = link.incoming_words();
    ring.is_some_and(|ring| readable_ring_bytes(arrived_rdma_bytes(ring, &dir), &dir) > 0)
}

/// Returns the number of bytes received by RDMA. A demoted direction gets no more, and its ring may already belong to
/// another connection.
pub(crate) fn arrived_rdma_bytes(ring: &Ring, dir: &DirectionWords<'_>) -> u64 {
    if dir.state.load(Ordering::Acquire) == state::DEMOTED {
        dir.rdma_bytes_sent.load(Ordering::Acquire)
    } else {
        ring.tail()
    }
}
