//! Functions over untrusted input, called by property tests and by fuzzers.

use crate::message::PeerMessage;

/// Decodes a message, and checks that it is encoded to the same bytes.
///
/// # Panics
/// When it is not.
pub fn check_message_round_trip(bytes: &[u8]) {
    if let Ok((message, consumed)) = PeerMessage::decode(bytes) {
        assert_eq!(message.encode(consumed), bytes);
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_corpus_of_messages_is_replayed() {
        corpus::replay("tensor_messages", super::check_message_round_trip);
    }
}
