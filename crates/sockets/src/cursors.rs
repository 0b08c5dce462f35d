//! Arithmetic on the cursors of a page. Another process writes the cursors, so they may have any values.

use std::sync::atomic::Ordering;

use crate::connection_page::{DirectionWords, state};
use crate::ring::RING_BYTES;

/// Returns how many bytes of the ring can be read. The peer writes the tail, so it may have any value: a tail that a
/// ring cannot hold gives no bytes.
pub(crate) fn readable_ring_bytes(tail: u64, dir: &DirectionWords<'_>) -> usize {
    let there = tail.wrapping_sub(dir.rdma_bytes_taken.load(Ordering::Relaxed));
    usize::try_from(there)
        .ok()
        .filter(|there| *there <= RING_BYTES)
        .unwrap_or(0)
}

/// Returns how many bytes a read would return at once, if the kernel does not know it.
pub(crate) fn readable_bytes_unknown_to_kernel(tail: u64, dir: &DirectionWords<'_>) -> Option<u64> {
    let is_rdma = matches!(
        dir.state.load(Ordering::Acquire),
        state::RDMA | state::DEMOTED
    );
    let first = dir.tcp_bytes_before_rdma.load(Ordering::Acquire);
    let before = first.saturating_sub(dir.tcp_bytes_received.load(Ordering::Relaxed));
    let all = before.saturating_add(readable_ring_bytes(tail, dir) as u64);
    (is_rdma && all > 0).then_some(all)
}

/// Returns how many wake bytes of the peer were not taken yet.
pub(crate) fn untaken_wake_bytes(dir: &DirectionWords<'_>) -> u64 {
    let sent = dir.wake_bytes_sent.load(Ordering::Acquire);
    sent.saturating_sub(dir.wake_bytes_taken.load(Ordering::Relaxed))
}

/// Returns how many plain bytes after a demotion have already come by RDMA and were taken.
pub(crate) fn repeated_plain_bytes(dir: &DirectionWords<'_>) -> u64 {
    let taken = dir.rdma_bytes_taken.load(Ordering::Relaxed);
    let twice = taken.saturating_sub(dir.rdma_bytes_sent.load(Ordering::Acquire));
    twice.saturating_sub(dir.repeated_bytes_dropped.load(Ordering::Relaxed))
}

/// Returns how many bytes fit into the peer's ring. `head` is the peer's word, so it may have any value.
pub(crate) fn peer_ring_room(sent: u64, head: u64) -> u64 {
    (RING_BYTES as u64).saturating_sub(sent - head.min(sent))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_with_any_cursor_gets_at_most_a_ring() {
        let ring = RING_BYTES as u64;
        assert_eq!(peer_ring_room(0, 0), ring);
        assert_eq!(peer_ring_room(ring, 0), 0);
        assert_eq!(peer_ring_room(ring + 10, 30), 20);
        assert_eq!(peer_ring_room(ring + 1, 0), 0, "the peer went back");
        assert_eq!(peer_ring_room(u64::MAX, 0), 0);
        assert_eq!(
            peer_ring_room(5, u64::MAX),
            ring,
            "the peer read what was not sent"
        );
    }
}
