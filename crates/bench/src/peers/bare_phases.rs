//! The phases of a message through a bare ring on one core.

use std::sync::atomic::AtomicU64;

use anyhow::Result;

use super::bare_ring::{
    HEADER_ONLY, Producer, Receiver, Ring, SIGNAL_EVERY, SendList, WINDOW, WITH_8_BYTES, words_of,
};
use crate::phases::{self, OneCore, PhaseMeasurement, verified_or_fault};

/// Measures messages of 8 bytes or header-only messages, in lists of `list` messages. `list` must
/// divide the window.
///
/// # Errors
/// When a message is wrong.
pub(crate) fn measure(
    has_payload: bool,
    list: usize,
    duration_ms: u64,
) -> Result<PhaseMeasurement> {
    if has_payload {
        of::<WITH_8_BYTES>(list, duration_ms)
    } else {
        of::<HEADER_ONLY>(list, duration_ms)
    }
}

fn of<const WORDS: usize>(list: usize, duration_ms: u64) -> Result<PhaseMeasurement> {
    let words: Vec<_> = (0..words_of(WORDS)).map(|_| AtomicU64::new(0)).collect();
    let ring = Ring::<WORDS>::new(&words)?;
    let mut ends = BareEnds {
        producer: Producer::new(ring),
        receiver: Receiver::new(ring),
        wrs: SendList::new(),
        list,
        sent: 0,
    };
    phases::measure(&mut ends, duration_ms)
}

struct BareEnds<'m, const WORDS: usize> {
    producer: Producer<'m, WORDS>,
    receiver: Receiver<'m, WORDS>,
    wrs: SendList<WORDS>,
    list: usize,
    sent: u64,
}

impl<const WORDS: usize> OneCore for BareEnds<'_, WORDS> {
    fn window(&self) -> u64 {
        WINDOW as u64
    }

    fn post(&mut self) -> Result<()> {
        for _ in 0..WINDOW / self.list {
            self.wrs.fill_wrs(self.sent, self.list, false);
            self.producer.post(&self.wrs, self.list);
            self.sent += self.list as u64;
        }
        Ok(())
    }

    fn receive(&mut self) -> Result<u64> {
        Ok(self.receiver.poll(WINDOW) as u64)
    }

    fn post_recv(&mut self) -> Result<()> {
        self.receiver.repost_recvs();
        Ok(())
    }

    fn poll(&mut self) -> Result<u64> {
        Ok(self.producer.poll()? as u64 * SIGNAL_EVERY)
    }

    fn verified(&self) -> Result<u64> {
        verified_or_fault(self.receiver.fault.as_deref(), self.receiver.next_expected)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_message_has_phases() {
        for (has_payload, list) in [(false, 1), (false, 16), (true, 1), (true, 16)] {
            let measured = measure(has_payload, list, 2).unwrap();
            assert!(measured.ns.sender() > 0.0 && measured.ns.receiver() > 0.0);
            assert!(measured.verified_ops >= 2 * WINDOW as u64);
        }
    }
}
