//! The function that this crate's fuzz target runs, and the replay of its corpus.

use std::sync::Arc;

use crate::{CommandDecoder, ProtocolError, Session, SharedState};
use kv::store::{Store, StoreConfig};

/// Decodes the commands of a stream that arrives in pieces.
fn decode_commands_in_pieces<'b>(
    pieces: impl Iterator<Item = &'b [u8]>,
) -> (Vec<Vec<Vec<u8>>>, Option<ProtocolError>) {
    let mut decoder = CommandDecoder::default();
    let mut found = Vec::new();
    for piece in pieces {
        decoder.feed(piece);
        loop {
            match decoder.next_command() {
                Ok(Some(args)) => found.push(args.strings_from(0).map(<[u8]>::to_vec).collect()),
                Ok(None) => break,
                Err(error) => return (found, Some(error)),
            }
        }
    }
    (found, None)
}

/// Reads any bytes as a stream in the Redis protocol; the first byte is the length of the pieces. The pieces must not
/// affect the result, and each command must have a reply.
///
/// # Panics
/// If a check fails, or a command panics.
pub fn resp(bytes: &[u8]) {
    let [length, bytes @ ..] = bytes else {
        return;
    };
    let length = usize::from(*length).max(1);
    let (found, error) = decode_commands_in_pieces(bytes.chunks(length));
    let whole = decode_commands_in_pieces(std::iter::once(bytes));
    assert_eq!((&found, &error), (&whole.0, &whole.1));
    let config = StoreConfig::for_items(1, 100, 16, 32);
    let shared = SharedState::new(Arc::new(Store::new(&config).expect("memory")));
    let mut session = Session::new(1);
    let mut out = Vec::new();
    for piece in bytes.chunks(length) {
        session.feed(piece);
        let before = out.len();
        assert!(session.execute_received_unless_output_full(&shared, &mut out, usize::MAX));
        assert!(out[before..].is_empty() || out.ends_with(b"\r\n"));
    }
    assert!(out.is_empty() == (found.is_empty() && error.is_none()) || session.must_close());
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    #[test]
    fn the_corpus_of_resp_is_replayed() {
        corpus::replay("resp", super::resp);
    }

    proptest! {
        #[test]
        fn any_arguments_have_a_reply(
            command in 0..crate::command_names().count(),
            arguments in prop::collection::vec(
                prop_oneof!["[a-z0-9]{0,5}", "-?[0-9]{1,20}", "nx|xx|gt|lt|get|ex|px|exat|pxat|keepttl|docs|info|auth"],
                0..6,
            ),
        ) {
            let name = crate::command_names().nth(command).expect("a command");
            let mut line = format!("\u{7}SET a 1\r\n{name}");
            for argument in arguments {
                line += &format!(" \"{argument}\"");
            }
            super::resp(format!("{line}\r\n").as_bytes());
        }
    }
}
