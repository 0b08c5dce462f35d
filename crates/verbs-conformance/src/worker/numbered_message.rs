//! Messages that carry their own number.

use crate::memory::assert_same_bytes;
use crate::rng::pattern;

/// Returns a message that consists of its number and the pattern of that number.
pub(super) fn numbered_message(number: u64, len: usize) -> Vec<u8> {
    let mut bytes = number.to_le_bytes().to_vec();
    bytes.extend(pattern(number, len.saturating_sub(8)));
    bytes
}

#[track_caller]
pub(super) fn verified_message_number(bytes: &[u8]) -> u64 {
    let number = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
    assert_same_bytes(bytes, &numbered_message(number, bytes.len()), 0);
    number
}
