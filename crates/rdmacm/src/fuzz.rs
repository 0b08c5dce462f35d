//! What the fuzz target of this crate runs, and the replay of its corpus.

use crate::process::{Process, parse_stat};
use crate::rsocket;
use crate::wire::Message;

/// A message of connection management, of an rsocket in its private data, or the name of a process, of any bytes: what is
/// read comes back from what is written.
///
/// # Panics
/// If a reader does, or something does not come back.
pub fn messages(bytes: &[u8]) {
    if let Ok(message) = Message::decode(bytes) {
        assert_eq!(message.encode(), bytes);
    }
    rsocket::fuzz(bytes);
    if let Ok(text) = std::str::from_utf8(bytes) {
        if let Ok(process) = text.parse::<Process>() {
            assert_eq!(process.to_string().parse::<Process>().ok(), Some(process));
        }
        let _ = parse_stat(text);
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_corpus_of_messages_is_replayed() {
        corpus::replay("messages", super::messages);
    }
}
