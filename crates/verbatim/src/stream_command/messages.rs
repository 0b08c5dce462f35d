//! The content of messages, and the results of a run of them.

use anyhow::Result;

/// The maximum number of bytes of one read.
pub(super) const MAX_READ_BYTES: usize = 64 << 10;

/// A generator of pseudo-random bytes (xorshift), with which misplaced data is noticed.
pub(super) struct PseudoRandomBytes(pub(super) u64);

impl PseudoRandomBytes {
    pub(super) fn fill(&mut self, into: &mut [u8]) {
        for chunk in into.chunks_mut(8) {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            chunk.copy_from_slice(&self.0.to_le_bytes()[..chunk.len()]);
        }
    }
}

/// Writes a number into a message, so that no two messages are equal.
pub(super) fn write_number_into(message: &mut [u8], number: usize) -> Result<()> {
    let number = u64::try_from(number)?.to_le_bytes();
    let len = message.len().min(number.len());
    message[..len].copy_from_slice(&number[..len]);
    Ok(())
}

/// The results of a run of messages.
#[derive(Debug)]
pub(super) struct RunResult {
    pub(super) messages: u64,
    pub(super) seconds: f64,
    /// The round-trip time of each message in ns, sorted.
    pub(super) sorted_round_trip_ns: Vec<u64>,
}
