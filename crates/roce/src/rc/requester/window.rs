//! How many packets may be outstanding.

use super::config::PACKET_OVERHEAD_BYTES;

/// A loss never makes the window smaller than so many full packets.
const LEAST_PACKETS: u64 = 32;

/// Full packets in a window that ask for an acknowledgement, at least.
const ACK_REQUESTS: u64 = 4;

/// Packets in a row that do not ask, at most.
const MOST_UNASKED: u64 = 32;

/// Growth for each window of packets that is acknowledged, in full packets.
const GROWTH_PACKETS: u64 = 4;

/// The window: halved by a loss, since all of it is sent again, and opened step by step.
///
/// It is a window of bytes, since what it protects is the buffer of the receiver's socket: more short packets fit than
/// long ones.
#[derive(Debug)]
pub(super) struct Window {
    max_packets: u64,
    /// Bytes that a full packet takes of it.
    full_bytes: u64,
    max_bytes: u64,
    bytes: u64,
    /// Packets acknowledged since it grew.
    acked: u64,
}

impl Window {
    pub(super) fn new(max_packets: u32, max_bytes: u32, mtu_bytes: u32) -> Self {
        let max_packets = u64::from(max_packets.max(1));
        let full_bytes = bytes_of(mtu_bytes);
        let max_bytes = u64::from(max_bytes)
            .max(full_bytes)
            .min(max_packets * full_bytes);
        Self {
            max_packets,
            full_bytes,
            max_bytes,
            bytes: max_bytes,
            acked: 0,
        }
    }

    /// Full packets that may be outstanding at best.
    pub(super) fn full_packets(&self) -> u32 {
        // At most `max_packets`.
        u32::try_from(self.max_bytes / self.full_bytes).unwrap_or(u32::MAX)
    }

    /// Packets with so many bytes of payload that may be outstanding.
    pub(super) fn packets(&self, payload_bytes: u32) -> u64 {
        (self.bytes / bytes_of(payload_bytes)).clamp(1, self.max_packets)
    }

    /// One of so many packets asks for an acknowledgement, so that the window moves before it closes.
    pub(super) fn ack_request_packets(&self) -> u64 {
        (self.bytes / self.full_bytes / ACK_REQUESTS).clamp(1, MOST_UNASKED)
    }

    /// So many more packets are acknowledged.
    pub(super) fn acknowledged(&mut self, packets: u64) {
        self.acked += packets;
        if self.acked * self.full_bytes >= self.bytes {
            self.acked = 0;
            self.bytes = (self.bytes + GROWTH_PACKETS * self.full_bytes).min(self.max_bytes);
        }
    }

    /// A packet was lost.
    pub(super) fn lost(&mut self) {
        self.acked = 0;
        let least = LEAST_PACKETS * self.full_bytes;
        self.bytes = (self.bytes / 2).max(least).min(self.max_bytes);
    }
}

/// What a packet with so many bytes of payload takes of the window.
fn bytes_of(payload_bytes: u32) -> u64 {
    u64::from(payload_bytes) + u64::from(PACKET_OVERHEAD_BYTES)
}

#[cfg(test)]
mod tests {
    use super::Window;

    /// A window of so many full packets of 1024 bytes.
    fn of(packets: u32) -> Window {
        Window::new(packets, u32::MAX, 1024)
    }

    #[test]
    fn a_loss_halves_the_window_and_acknowledgements_open_it() {
        let mut window = of(128);
        for packets in [64, 32, 32] {
            window.lost();
            assert_eq!(window.packets(1024), packets);
        }
        window.acknowledged(31);
        assert_eq!(window.packets(1024), 32);
        window.acknowledged(1);
        assert_eq!(window.packets(1024), 36);
        window.acknowledged(1000);
        for _ in 0..100 {
            window.acknowledged(128);
        }
        assert_eq!(window.packets(1024), 128);
    }

    #[test]
    fn a_small_window_stays_small() {
        let mut window = of(1);
        window.lost();
        window.acknowledged(100);
        assert_eq!((window.packets(1024), window.packets(0)), (1, 1));
        let narrow = Window::new(100, 1, 4096);
        assert_eq!((narrow.full_packets(), narrow.packets(4096)), (1, 1));
    }

    #[test]
    fn more_short_packets_fit_than_long_ones() {
        let mut window = Window::new(256, 320 << 10, 4096);
        assert_eq!(window.full_packets(), 64);
        assert_eq!((window.packets(4096), window.packets(8)), (64, 256));
        window.lost();
        assert_eq!((window.packets(4096), window.packets(8)), (32, 158));
    }
}
