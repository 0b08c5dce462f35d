//! Fuzz entry points for the untrusted input of this crate, and tests that replay their corpora.

use crate::fabric::{process_id, ring};
use crate::mem;

/// Parses any bytes as system text (`/proc/self/maps`, `/proc/PID/stat`) and as the file that names a
/// process.
///
/// # Panics
/// Panics if a parser panics.
pub fn parse_proc_files_and_name_file(bytes: &[u8]) {
    process_id::fuzz(bytes);
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    mem::fuzz(text);
    let _ = liveness::start_time_from_stat(text);
}

/// Reads a ring between two queue pairs into which a peer has written any bytes.
///
/// # Panics
/// Panics if one side of the ring panics, or accepts what no correct peer writes.
pub fn read_ring_records(bytes: &[u8]) {
    ring::fuzz(bytes);
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_corpus_of_texts_is_replayed() {
        corpus::replay("texts", super::parse_proc_files_and_name_file);
    }

    #[test]
    fn the_corpus_of_records_is_replayed() {
        corpus::replay("records", super::read_ring_records);
    }
}
