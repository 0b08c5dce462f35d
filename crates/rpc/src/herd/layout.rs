//! The request region: slots, and the word that ends a request.

use verbs::RemoteMemory;

use crate::RpcError;

/// Layout of a request region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct RequestRegionLayout {
    /// Number of slots of a client, a power of two.
    #[serde(rename = "window")]
    pub slots_per_client: u32,
    /// Maximum payload of a request in bytes, a multiple of 8.
    #[serde(rename = "payload")]
    pub max_payload_bytes: u32,
}

impl RequestRegionLayout {
    /// Returns the bytes of a slot.
    pub fn slot_bytes(&self) -> usize {
        self.max_payload_bytes as usize + 8
    }

    /// Returns the bytes of all slots of a client.
    pub fn bytes_per_client(&self) -> usize {
        self.slot_bytes() * self.slots_per_client as usize
    }

    pub(super) fn check(&self) -> Result<(), RpcError> {
        // A power of two divides the 2^32 request numbers, so slots continue in order when numbers
        // wrap.
        if !self.slots_per_client.is_power_of_two()
            || !self.max_payload_bytes.is_multiple_of(8)
            || self.max_payload_bytes > 4096
        {
            return Err(RpcError::Config(format!(
                "a request region needs a power of two as window and a payload of a multiple of 8 up to 4096: {self:?}"
            )));
        }
        Ok(())
    }
}

/// Encoding of a worker in the immediates of its answers.
///
/// With one worker, the immediate is the number of the request. If answers of several workers
/// arrive on one queue pair, the upper [`WorkerTag::WORKER_BITS`] bits hold the worker's index. The other bits
/// hold the lower bits of the number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkerTag {
    shifted_worker_index: u32,
    number_mask: u32,
}

impl WorkerTag {
    /// Bits of a worker's index.
    pub const WORKER_BITS: u32 = 6;

    /// Maximum number of workers that can be distinguished.
    pub const MAX_WORKERS: usize = 1 << Self::WORKER_BITS;

    /// The tag for a single worker: the immediate is the number alone.
    pub const SINGLE_WORKER: Self = Self {
        shifted_worker_index: 0,
        number_mask: u32::MAX,
    };

    /// Returns the tag of the client's worker with index `place`, or `None` from [`WorkerTag::MAX_WORKERS`]
    /// on.
    pub fn of_worker(place: usize) -> Option<Self> {
        let place = u32::try_from(place).ok()?;
        ((place as usize) < Self::MAX_WORKERS).then_some(Self {
            shifted_worker_index: place << (32 - Self::WORKER_BITS),
            number_mask: u32::MAX >> Self::WORKER_BITS,
        })
    }

    /// Returns the immediate of the answer to the request with this number.
    #[inline]
    pub fn answer_imm(self, number: u32) -> u32 {
        self.shifted_worker_index | number & self.number_mask
    }

    /// Returns the worker's index in an immediate.
    #[inline]
    pub fn worker_index(imm: u32) -> usize {
        (imm >> (32 - Self::WORKER_BITS)) as usize
    }
}

/// Returns the part of a server's region that belongs to a client.
pub fn client_region(
    region: &RemoteMemory,
    layout: &RequestRegionLayout,
    client: u32,
) -> Option<RemoteMemory> {
    let bytes = layout.bytes_per_client() as u64;
    let part = region.starting_at(bytes.checked_mul(client.into())?)?;
    (part.len >= bytes).then_some(RemoteMemory { len: bytes, ..part })
}

/// Returns the word that ends a request.
pub(super) fn trailer_word(number: u32, payload: &[u8]) -> u64 {
    u64::from(number) << 32 | (payload.len() as u64 & 0xffff) << 16 | u64::from(checksum(payload))
}

/// Returns a multiplicative hash folded to 16 bits, or 0 for an empty payload.
#[inline]
pub(super) fn checksum(payload: &[u8]) -> u16 {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    if payload.is_empty() {
        return 0;
    }
    let (words, tail) = payload.as_chunks::<8>();
    let mut last = [0; 8];
    last[..tail.len()].copy_from_slice(tail);
    let mut hash = payload.len() as u64;
    for word in words.iter().chain([&last]) {
        // Multiplication by an odd factor keeps different words different; the rotation moves the
        // high bits down for the next word.
        hash = (hash ^ u64::from_le_bytes(*word))
            .wrapping_mul(FACTOR)
            .rotate_left(29);
    }
    (hash.wrapping_mul(FACTOR) >> 48) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_word_changes_with_number_length_and_bytes() {
        assert_eq!(trailer_word(1, &[]), 1 << 32);
        let words = [
            trailer_word(1, &[]),
            trailer_word(2, &[]),
            trailer_word(1, &[0]),
            trailer_word(1, &[0, 0]),
            trailer_word(1, &[1]),
            trailer_word(1, &[0, 1]),
        ];
        for (i, a) in words.iter().enumerate() {
            assert!(words[i + 1..].iter().all(|b| a != b), "{i}");
        }
    }

    #[test]
    fn a_tag_tells_workers_apart_and_keeps_the_lower_bits_of_the_number() {
        assert_eq!(WorkerTag::SINGLE_WORKER.answer_imm(u32::MAX), u32::MAX);
        for place in [0, 1, WorkerTag::MAX_WORKERS - 1] {
            let tag = WorkerTag::of_worker(place).expect("a place");
            for number in [1, 77, u32::MAX >> WorkerTag::WORKER_BITS, u32::MAX] {
                assert_eq!(WorkerTag::worker_index(tag.answer_imm(number)), place);
                assert_eq!(
                    tag.answer_imm(number) << WorkerTag::WORKER_BITS,
                    number << WorkerTag::WORKER_BITS
                );
            }
        }
        assert_eq!(WorkerTag::of_worker(WorkerTag::MAX_WORKERS), None);
    }

    #[test]
    fn clients_have_parts_of_the_region_that_do_not_overlap() {
        let layout = RequestRegionLayout {
            slots_per_client: 4,
            max_payload_bytes: 8,
        };
        let region = RemoteMemory {
            addr: 1 << 20,
            len: 3 * 64,
            rkey: verbs::RKey(7),
        };
        let parts: Vec<_> = (0..3)
            .map(|c| client_region(&region, &layout, c).expect("inside"))
            .collect();
        assert_eq!(
            parts
                .iter()
                .map(|p| (p.addr - region.addr, p.len))
                .collect::<Vec<_>>(),
            [(0, 64), (64, 64), (128, 64)]
        );
        assert_eq!(client_region(&region, &layout, 3), None);
    }
}
