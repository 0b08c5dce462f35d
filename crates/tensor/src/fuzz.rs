//! Functions over untrusted input, called by property tests and by fuzzers.

use crate::message::Message;

/// Decodes a message, and checks that it is encoded to the same bytes.
///
/// # Panics
/// When it is not.
pub fn message(bytes: &[u8]) {
    if let Ok((message, consumed)) = Message::decode(bytes) {
        assert_eq!(message.encode(consumed), bytes);
    }
}
