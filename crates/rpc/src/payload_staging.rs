//! Payload of small messages: sent inline if the queue pair supports it, otherwise from registered
//! memory.

use verbs::{Access, MemoryRegion, MrSlice, ProtectionDomain};

use crate::error::{MAX_ANSWER_POSTLIST_LEN, RpcError};

/// The payload of one queue pair's messages.
///
/// Messages are numbered from 0 on, in the order of posting. A message that does not fit inline
/// uses the slot of its number in a ring. The slot's bytes must not change until the message is
/// complete. The ring has [`MAX_ANSWER_POSTLIST_LEN`] slots more than the send queue, so that a list can be built
/// while the queue is full. This suffices: a message being built is at most `MAX_ANSWER_LIST - 1` above
/// the number of posted messages. Of the posted messages, all but the last `send_depth` are
/// complete.
#[derive(Debug)]
pub(crate) struct PayloadStaging {
    max_inline_bytes: usize,
    staging_ring: Option<Box<StagingRing>>,
}

#[derive(Debug)]
struct StagingRing {
    mr: MemoryRegion,
    slot_bytes: usize,
    slot_count: u64,
}

impl PayloadStaging {
    /// Creates the payload memory for messages of at most `payload` bytes. The send queue has
    /// `send_depth` entries and takes `inline` bytes inline. Registers memory only if it is needed.
    pub(crate) fn new(
        pd: &ProtectionDomain,
        payload: usize,
        inline: usize,
        send_depth: usize,
    ) -> Result<Self, RpcError> {
        let ring = if payload <= inline {
            None
        } else {
            // Slots share no word: one slot may be read by the NIC while its neighbour is written.
            let stride = payload.next_multiple_of(8);
            let slots = send_depth + MAX_ANSWER_POSTLIST_LEN;
            let mr = pd.alloc(slots * stride, Access::LOCAL_READ)?;
            Some(Box::new(StagingRing {
                mr,
                slot_bytes: stride,
                slot_count: slots as u64,
            }))
        };
        Ok(Self {
            max_inline_bytes: inline,
            staging_ring: ring,
        })
    }

    /// Stores the payload of message `number`. Returns `None` if the message is sent inline,
    /// otherwise the slot with its payload.
    ///
    /// # Panics
    /// When the payload is longer than the maximum given at creation.
    #[inline]
    pub(crate) fn stage_unless_inline(&self, number: u64, payload: &[u8]) -> Option<MrSlice> {
        (payload.len() > self.max_inline_bytes).then(|| self.copy_to_ring_slot(number, payload))
    }

    fn copy_to_ring_slot(&self, number: u64, payload: &[u8]) -> MrSlice {
        let fits = self
            .staging_ring
            .as_deref()
            .filter(|r| payload.len() <= r.slot_bytes);
        let Some(ring) = fits else {
            panic!(
                "{} bytes of payload in an outbox made for less",
                payload.len()
            );
        };
        #[expect(clippy::cast_possible_truncation, reason = "below the number of slots")]
        let start = (number % ring.slot_count) as usize * ring.slot_bytes;
        let inside = "the ring has so many slots";
        ring.mr.write_at(start, payload).expect(inside);
        ring.mr.slice(start..start + payload.len()).expect(inside)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    fn pd() -> ProtectionDomain {
        let device = verbs::Provider::softnic().device(None);
        let context = device.expect("a device").open().expect("opens");
        context.alloc_pd().expect("a PD")
    }

    #[test]
    fn no_slot_is_written_while_the_nic_may_read_it() {
        const DEPTH: u64 = 10;
        let outbox = PayloadStaging::new(&pd(), 12, 0, 10).expect("memory");
        // The last message in each slot.
        let mut last = HashMap::new();
        let mut posted = 0u64;
        for list in [64, 1, 7, 128, 64, 3, 128] {
            // The worst case: the whole send queue is outstanding while a list is built.
            let under_way = posted.saturating_sub(DEPTH)..posted;
            for number in posted..posted + list {
                let slot = outbox
                    .stage_unless_inline(number, b"twelve bytes")
                    .expect("not inline");
                assert_eq!((slot.len(), slot.addr() % 8), (12, 0));
                if let Some(before) = last.insert(slot.addr(), number) {
                    assert!(!under_way.contains(&before), "{number} over {before}");
                    assert!(before < posted, "{number} over {before} of the same list");
                }
            }
            posted += list;
        }
        assert_eq!(last.len(), 10 + MAX_ANSWER_POSTLIST_LEN);
    }

    #[test]
    fn memory_is_registered_only_for_what_does_not_fit_inline() {
        let inline = PayloadStaging::new(&pd(), 16, 16, 10).expect("made");
        assert!(inline.staging_ring.is_none() && inline.stage_unless_inline(0, &[1; 16]).is_none());
        let some = PayloadStaging::new(&pd(), 16, 8, 10).expect("made");
        assert!(some.stage_unless_inline(0, &[1; 8]).is_none());
        let slot = some
            .stage_unless_inline(3, &[7; 9])
            .expect("nine bytes are more than eight");
        let ring = some.staging_ring.as_ref().expect("memory");
        let mut there = [0; 9];
        let offset = usize::try_from(slot.addr() - ring.mr.addr()).expect("inside");
        ring.mr.read_at(offset, &mut there).expect("inside");
        assert_eq!(there, [7; 9]);
    }

    #[test]
    #[should_panic(expected = "made for less")]
    fn more_than_was_announced_is_a_mistake_of_the_caller() {
        let outbox = PayloadStaging::new(&pd(), 8, 0, 1).expect("made");
        outbox.stage_unless_inline(0, &[0; 9]);
    }
}
