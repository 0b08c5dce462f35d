//! What the fuzz targets of this crate run, and the replay of their corpora.

use crate::Identity;
use crate::fabric::{name, process, ring};
use crate::mem;
use crate::sysfs_text;

/// Texts of the system and of the environment, of any bytes: `/proc/self/maps`, `/proc/PID/stat`, the device's identity;
/// and the file that names a process to others.
///
/// # Panics
/// If a reader does, or an identity does not come back.
pub fn texts(bytes: &[u8]) {
    name::fuzz(bytes);
    sysfs_text::fuzz(bytes);
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    mem::fuzz(text);
    process::fuzz(text);
    if let Ok(identity) = text.parse::<Identity>() {
        assert_eq!(identity.to_string().parse(), Ok(identity));
    }
}

/// A ring between two queue pairs in which a peer has written any bytes.
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
