//! The limit of outstanding packets.

use super::config::SOCKET_BUFFER_OVERHEAD_BYTES_PER_PACKET;

/// Minimum window after losses, in full packets.
const MIN_WINDOW_FULL_PACKETS: u64 = 32;

/// Minimum number of full packets in a window that ask for an acknowledgement.
const MIN_ACK_REQUESTS_PER_WINDOW: u64 = 4;

/// Largest number of packets in a row that do not ask for an acknowledgement.
const MAX_PACKETS_WITHOUT_ACK_REQUEST: u64 = 32;

/// Growth of the window after each acknowledged window, in full packets.
const WINDOW_GROWTH_FULL_PACKETS: u64 = 4;

/// The window of outstanding packets. Each loss halves it, since a retry sends the whole window again; each
/// acknowledged window increases it.
///
/// The window counts bytes, because it protects the buffer of the receiver's socket, which holds more short packets
/// than long ones.
#[derive(Debug)]
pub(super) struct PacketWindow {
    max_window_packets: u64,
    /// Bytes of the window that a full packet uses.
    full_packet_bytes: u64,
    max_window_bytes: u64,
    current_window_bytes: u64,
    /// Packets acknowledged since the window last grew.
    acked_packets_since_growth: u64,
}

impl PacketWindow {
    pub(super) fn new(max_packets: u32, max_bytes: u32, mtu_bytes: u32) -> Self {
        let max_packets = u64::from(max_packets.max(1));
        let full_bytes = window_bytes_of_packet(mtu_bytes);
        let max_bytes = u64::from(max_bytes)
            .max(full_bytes)
            .min(max_packets * full_bytes);
        Self {
            max_window_packets: max_packets,
            full_packet_bytes: full_bytes,
            max_window_bytes: max_bytes,
            current_window_bytes: max_bytes,
            acked_packets_since_growth: 0,
        }
    }

    /// Returns the number of full packets in the largest window.
    pub(super) fn largest_window_full_packets(&self) -> u32 {
        // The quotient is at most `max_window_packets`.
        u32::try_from(self.max_window_bytes / self.full_packet_bytes).unwrap_or(u32::MAX)
    }

    /// Returns the number of packets with `payload_bytes` of payload that may be outstanding.
    pub(super) fn max_outstanding_packets(&self, payload_bytes: u32) -> u64 {
        (self.current_window_bytes / window_bytes_of_packet(payload_bytes))
            .clamp(1, self.max_window_packets)
    }

    /// Returns n so that every n-th packet asks for an acknowledgement and the window moves before it is full.
    pub(super) fn ack_request_interval(&self) -> u64 {
        (self.current_window_bytes / self.full_packet_bytes / MIN_ACK_REQUESTS_PER_WINDOW)
            .clamp(1, MAX_PACKETS_WITHOUT_ACK_REQUEST)
    }

    /// Records `packets` newly acknowledged packets.
    pub(super) fn on_acknowledged(&mut self, packets: u64) {
        self.acked_packets_since_growth += packets;
        if self.acked_packets_since_growth * self.full_packet_bytes >= self.current_window_bytes {
            self.acked_packets_since_growth = 0;
            self.current_window_bytes = (self.current_window_bytes
                + WINDOW_GROWTH_FULL_PACKETS * self.full_packet_bytes)
                .min(self.max_window_bytes);
        }
    }

    /// Halves the window after a loss.
    pub(super) fn on_loss(&mut self) {
        self.acked_packets_since_growth = 0;
        let least = MIN_WINDOW_FULL_PACKETS * self.full_packet_bytes;
        self.current_window_bytes = (self.current_window_bytes / 2)
            .max(least)
            .min(self.max_window_bytes);
    }
}

/// Returns the bytes of the window that a packet with `payload_bytes` of payload uses.
fn window_bytes_of_packet(payload_bytes: u32) -> u64 {
    u64::from(payload_bytes) + u64::from(SOCKET_BUFFER_OVERHEAD_BYTES_PER_PACKET)
}

#[cfg(test)]
mod tests {
    use super::PacketWindow;

    /// Makes a window of `packets` full packets of 1024 bytes.
    fn of(packets: u32) -> PacketWindow {
        PacketWindow::new(packets, u32::MAX, 1024)
    }

    #[test]
    fn a_loss_halves_the_window_and_acknowledgements_open_it() {
        let mut window = of(128);
        for packets in [64, 32, 32] {
            window.on_loss();
            assert_eq!(window.max_outstanding_packets(1024), packets);
        }
        window.on_acknowledged(31);
        assert_eq!(window.max_outstanding_packets(1024), 32);
        window.on_acknowledged(1);
        assert_eq!(window.max_outstanding_packets(1024), 36);
        window.on_acknowledged(1000);
        for _ in 0..100 {
            window.on_acknowledged(128);
        }
        assert_eq!(window.max_outstanding_packets(1024), 128);
    }

    #[test]
    fn a_small_window_stays_small() {
        let mut window = of(1);
        window.on_loss();
        window.on_acknowledged(100);
        assert_eq!(
            (
                window.max_outstanding_packets(1024),
                window.max_outstanding_packets(0)
            ),
            (1, 1)
        );
        let narrow = PacketWindow::new(100, 1, 4096);
        assert_eq!(
            (
                narrow.largest_window_full_packets(),
                narrow.max_outstanding_packets(4096)
            ),
            (1, 1)
        );
    }

    #[test]
    fn more_short_packets_fit_than_long_ones() {
        let mut window = PacketWindow::new(256, 320 << 10, 4096);
        assert_eq!(window.largest_window_full_packets(), 64);
        assert_eq!(
            (
                window.max_outstanding_packets(4096),
                window.max_outstanding_packets(8)
            ),
            (64, 256)
        );
        window.on_loss();
        assert_eq!(
            (
                window.max_outstanding_packets(4096),
                window.max_outstanding_packets(8)
            ),
            (32, 158)
        );
    }
}
