//! Entry points of the fuzz targets for what this crate reads from outside, and the replay of their corpora.

use crate::Identity;
use crate::sysfs_text;

/// Reads files of sysfs and the device's identity in the environment, of any bytes.
///
/// # Panics
/// If a reader does, or an identity does not come back.
pub fn texts(bytes: &[u8]) {
    sysfs_text::fuzz(bytes);
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    if let Ok(identity) = text.parse::<Identity>() {
        assert_eq!(identity.to_string().parse(), Ok(identity));
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_corpus_of_texts_is_replayed() {
        corpus::replay("texts", super::texts);
    }
}
