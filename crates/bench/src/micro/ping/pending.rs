//! Outstanding WRs of a ping-pong.

use anyhow::Result;
use verbs::{CompletionQueue, WcBuffer};

use super::timed::LAST_MARK;
use crate::micro::form::{PayloadForm, WindowLayout};
use crate::micro::task::PingPong;
use crate::nic::reap;
use crate::poll_timeout::{PollTimeout, TIMEOUT_NS};

/// Send queue depth of either side.
pub(super) const SEND_WRS: usize = 32;

/// One WR in this many is signaled, unless the NIC reads the payload from memory. Those WRs are all
/// signaled, because the NIC may read their buffer until they complete.
const SIGNALED: u32 = 16;

/// Number of payload buffers in memory, which are used in turn.
const SLOTS: usize = 2;

/// Returns the layout of a ping-pong's payloads.
pub(super) fn layout(ping: &PingPong) -> WindowLayout {
    WindowLayout {
        payload_bytes: ping.payload_bytes,
        slots: SLOTS,
        pages: None,
    }
}

/// Counter of a queue pair's WRs.
pub(super) struct Pending {
    posted: u32,
    /// Signaled WRs that have not completed.
    outstanding: usize,
    wcs: WcBuffer<4>,
}

impl Pending {
    pub(super) fn new() -> Pending {
        Pending {
            posted: 0,
            outstanding: 0,
            wcs: WcBuffer::new(),
        }
    }

    /// Waits for room for the WR with this number. Returns its payload slot, and true if the WR is
    /// to be signaled.
    #[inline]
    pub(super) fn next<F: PayloadForm>(
        &mut self,
        cq: &CompletionQueue,
        number: u32,
    ) -> Result<(usize, bool)> {
        // With payloads in memory, the WR before the last has completed, so its slot is free.
        let left = if F::IN_MEMORY {
            SLOTS - 1
        } else {
            SEND_WRS / SIGNALED as usize - 1
        };
        self.wait(cq, left)?;
        self.posted = self.posted.wrapping_add(1);
        let signaled =
            F::IN_MEMORY | self.posted.is_multiple_of(SIGNALED) | (number & LAST_MARK != 0);
        self.outstanding += usize::from(signaled);
        Ok((self.posted as usize % SLOTS, signaled))
    }

    /// Waits until at most `left` signaled WRs are outstanding.
    #[inline]
    pub(super) fn wait(&mut self, cq: &CompletionQueue, left: usize) -> Result<()> {
        if self.outstanding <= left {
            return Ok(());
        }
        let mut timeout = PollTimeout::without_pause(TIMEOUT_NS);
        while self.outstanding > left {
            let done = reap(cq, &mut self.wcs, |_| Ok(()))?;
            self.outstanding = self.outstanding.saturating_sub(done);
            if done == 0 {
                timeout.check("completions")?;
            }
        }
        Ok(())
    }
}
