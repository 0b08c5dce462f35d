//! Outstanding WRs of a ping-pong.

use anyhow::Result;
use verbs::{CompletionQueue, WcBuffer};

use super::timed::LAST_MARK;
use crate::micro::payload_form::{PayloadForm, WindowLayout};
use crate::micro::task::PingPong;
use crate::open_nic::poll_successful_completions;
use crate::poll_timeout::{DEFAULT_EVENT_TIMEOUT_NS, PollTimeout};

/// Send queue depth of either side.
pub(super) const SEND_QUEUE_DEPTH: usize = 32;

/// One WR in this many is signaled, unless the NIC reads the payload from memory. Those WRs are all
/// signaled, because the NIC may read their buffer until they complete.
const SIGNAL_EVERY: u32 = 16;

/// Number of payload buffers in memory, which are used in turn.
const PAYLOAD_SLOTS: usize = 2;

/// Returns the layout of a ping-pong's payloads.
pub(super) fn payload_layout(ping: &PingPong) -> WindowLayout {
    WindowLayout {
        payload_bytes: ping.payload_bytes,
        slot_count: PAYLOAD_SLOTS,
        page_size: None,
    }
}

/// Counts the posted WRs of a queue pair, and its signaled WRs that have not completed.
pub(super) struct OutstandingWrs {
    posted_wrs: u32,
    /// Signaled WRs that have not completed.
    outstanding_signaled_wrs: usize,
    wcs: WcBuffer<4>,
}

impl OutstandingWrs {
    pub(super) fn new() -> OutstandingWrs {
        OutstandingWrs {
            posted_wrs: 0,
            outstanding_signaled_wrs: 0,
            wcs: WcBuffer::new(),
        }
    }

    /// Waits for room for the WR with this number. Returns its payload slot, and true if the WR is
    /// to be signaled.
    #[inline]
    pub(super) fn wait_for_slot_and_signal_flag<F: PayloadForm>(
        &mut self,
        cq: &CompletionQueue,
        number: u32,
    ) -> Result<(usize, bool)> {
        // With payloads in memory, the WR before the last has completed, so its slot is free.
        let left = if F::NIC_READS_PAYLOAD {
            PAYLOAD_SLOTS - 1
        } else {
            SEND_QUEUE_DEPTH / SIGNAL_EVERY as usize - 1
        };
        self.wait_until_outstanding_at_most(cq, left)?;
        self.posted_wrs = self.posted_wrs.wrapping_add(1);
        let signaled = F::NIC_READS_PAYLOAD
            | self.posted_wrs.is_multiple_of(SIGNAL_EVERY)
            | (number & LAST_MARK != 0);
        self.outstanding_signaled_wrs += usize::from(signaled);
        Ok((self.posted_wrs as usize % PAYLOAD_SLOTS, signaled))
    }

    /// Waits until at most `left` signaled WRs are outstanding.
    #[inline]
    pub(super) fn wait_until_outstanding_at_most(
        &mut self,
        cq: &CompletionQueue,
        left: usize,
    ) -> Result<()> {
        if self.outstanding_signaled_wrs <= left {
            return Ok(());
        }
        let mut timeout = PollTimeout::without_pause(DEFAULT_EVENT_TIMEOUT_NS);
        while self.outstanding_signaled_wrs > left {
            let done = poll_successful_completions(cq, &mut self.wcs, |_| Ok(()))?;
            self.outstanding_signaled_wrs = self.outstanding_signaled_wrs.saturating_sub(done);
            if done == 0 {
                timeout.fail_if_over_after_empty_poll("completions")?;
            }
        }
        Ok(())
    }
}
