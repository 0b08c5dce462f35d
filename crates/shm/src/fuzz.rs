//! Entry points of the fuzz targets for what this crate reads from outside, and the replay of their corpora.

use crate::fabric::{name, ring};
use crate::mem;

/// Reads texts of the system (`/proc/self/maps`, `/proc/PID/stat`) and the file that names a process, of any bytes.
///
/// # Panics
/// If a reader does.
pub fn texts(bytes: &[u8]) {
    name::fuzz(bytes);
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    mem::fuzz(text);
    let _ = liveness::parse_stat(text);
}

/// Reads a ring between two queue pairs in which a peer has written any bytes.
///
/// # Panics
/// If a side of the ring does, or follows what no correct peer writes.
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
