//! The phases of a message through a bare ring on one core.

use std::sync::atomic::AtomicU64;

use anyhow::Result;

use super::bare_ring::{
    EIGHT_BYTE_RECORD_WORDS, HEADER_ONLY_RECORD_WORDS, Producer, Receiver, Ring, SIGNAL_EVERY,
    SendList, WINDOW, ring_words,
};
use crate::one_core_phases::{self, OneCoreConnection, PhaseMeasurement, verified_or_fault};

/// Measures messages of 8 bytes or header-only messages, in lists of `list` messages. `list` must
/// divide the window.
///
/// # Errors
/// When a message is wrong.
pub(crate) fn measure_one_core_phases(
    has_payload: bool,
    list: usize,
    duration_ms: u64,
) -> Result<PhaseMeasurement> {
    if has_payload {
        measure_records::<EIGHT_BYTE_RECORD_WORDS>(list, duration_ms)
    } else {
        measure_records::<HEADER_ONLY_RECORD_WORDS>(list, duration_ms)
    }
}

fn measure_records<const WORDS: usize>(list: usize, duration_ms: u64) -> Result<PhaseMeasurement> {
    let words: Vec<_> = (0..ring_words(WORDS)).map(|_| AtomicU64::new(0)).collect();
    let ring = Ring::<WORDS>::new(&words)?;
    let mut ends = BareRingEnds {
        producer: Producer::new(ring),
        receiver: Receiver::new(ring),
        wrs: SendList::new(),
        messages_per_list: list,
        messages_sent: 0,
    };
    one_core_phases::measure_phases(&mut ends, duration_ms)
}

struct BareRingEnds<'m, const WORDS: usize> {
    producer: Producer<'m, WORDS>,
    receiver: Receiver<'m, WORDS>,
    wrs: SendList<WORDS>,
    messages_per_list: usize,
    messages_sent: u64,
}

impl<const WORDS: usize> OneCoreConnection for BareRingEnds<'_, WORDS> {
    fn window_messages(&self) -> u64 {
        WINDOW as u64
    }

    fn post_window(&mut self) -> Result<()> {
        for _ in 0..WINDOW / self.messages_per_list {
            self.wrs
                .fill_wrs(self.messages_sent, self.messages_per_list, false);
            self.producer.post(&self.wrs, self.messages_per_list);
            self.messages_sent += self.messages_per_list as u64;
        }
        Ok(())
    }

    fn poll_messages(&mut self) -> Result<u64> {
        Ok(self.receiver.poll_and_check(WINDOW) as u64)
    }

    fn repost_window_recvs(&mut self) -> Result<()> {
        self.receiver.repost_recvs_if_chunk_is_full();
        Ok(())
    }

    fn poll_send_completions(&mut self) -> Result<u64> {
        Ok(self.producer.poll_completions()? as u64 * SIGNAL_EVERY)
    }

    fn verified_messages(&self) -> Result<u64> {
        verified_or_fault(
            self.receiver.first_wrong_message.as_deref(),
            self.receiver.next_expected_message,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_message_has_phases() {
        for (has_payload, list) in [(false, 1), (false, 16), (true, 1), (true, 16)] {
            let measured = measure_one_core_phases(has_payload, list, 2).unwrap();
            assert!(
                measured.ns_per_message.sender_sum() > 0.0
                    && measured.ns_per_message.receiver_sum() > 0.0
            );
            assert!(measured.verified_ops >= 2 * WINDOW as u64);
        }
    }
}
