//! How many packets may be outstanding.

/// A loss never makes the window smaller than this.
const LEAST_PACKETS: u64 = 32;

/// Packets in a window that ask for an acknowledgement, at least.
const ACK_REQUESTS: u64 = 4;

/// Packets in a row that do not ask, at most.
const MOST_UNASKED: u64 = 32;

/// Growth for each window of packets that is acknowledged.
const GROWTH_PACKETS: u64 = 4;

/// The window: halved by a loss, since all of it is sent again, and opened step by step.
#[derive(Debug)]
pub(super) struct Window {
    max: u64,
    packets: u64,
    /// Packets acknowledged since it grew.
    acked: u64,
}

impl Window {
    pub(super) fn new(max_packets: u32) -> Self {
        let max = u64::from(max_packets);
        Self {
            max,
            packets: max,
            acked: 0,
        }
    }

    /// Packets that may be outstanding.
    pub(super) fn packets(&self) -> u64 {
        self.packets
    }

    /// One of so many packets asks for an acknowledgement, so that the window moves before it closes.
    pub(super) fn ack_request_packets(&self) -> u64 {
        (self.packets / ACK_REQUESTS).clamp(1, MOST_UNASKED)
    }

    /// So many more packets are acknowledged.
    pub(super) fn acknowledged(&mut self, packets: u64) {
        self.acked += packets;
        if self.acked >= self.packets {
            self.acked = 0;
            self.packets = (self.packets + GROWTH_PACKETS).min(self.max);
        }
    }

    /// A packet was lost.
    pub(super) fn lost(&mut self) {
        self.acked = 0;
        self.packets = (self.packets / 2).max(LEAST_PACKETS).min(self.max);
    }
}

#[cfg(test)]
mod tests {
    use super::Window;

    #[test]
    fn a_loss_halves_the_window_and_acknowledgements_open_it() {
        let mut window = Window::new(128);
        for packets in [64, 32, 32] {
            window.lost();
            assert_eq!(window.packets(), packets);
        }
        window.acknowledged(31);
        assert_eq!(window.packets(), 32);
        window.acknowledged(1);
        assert_eq!(window.packets(), 36);
        window.acknowledged(1000);
        for _ in 0..100 {
            window.acknowledged(128);
        }
        assert_eq!(window.packets(), 128);
    }

    #[test]
    fn a_small_window_stays_small() {
        let mut window = Window::new(1);
        window.lost();
        window.acknowledged(100);
        assert_eq!(window.packets(), 1);
    }
}
