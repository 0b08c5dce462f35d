//! Fuzz entry points for the untrusted input of this crate, and tests that replay their corpora.

use crate::fabric::{name, ring};
use crate::mem;

/// Parses any bytes as system text (`/proc/self/maps`, `/proc/PID/stat`) and as the file that names a
/// process.
///
/// # Panics
/// Panics if a parser panics.
pub fn texts(bytes: &[u8]) {
    name::fuzz(bytes);
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    mem::fuzz(text);
    let _ = liveness::parse_stat(text);
}

/// Reads a ring between two queue pairs into which a peer has written any bytes.
///
/// # Panics
/// Panics if one side of the ring panics, or accepts what no correct peer writes.
pub fn records(bytes: &[u8]) {
    ring::fuzz(bytes);
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_corpus_of_texts_is_replayed() {
        corpus::replay("texts", super::texts);
    }

    #[test]
    fn the_corpus_of_records_is_replayed() {
        corpus::replay("records", super::records);
    }
}
