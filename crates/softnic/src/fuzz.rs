//! Entry points of the fuzz targets for the input of this crate, and the replay of their corpora.

use crate::Identity;
use crate::sysfs_text;

/// Parses any bytes as files of sysfs and as the device's identity in the environment.
///
/// # Panics
/// If a parser panics, or if an identity changes when it is written and parsed again.
pub fn parse_sysfs_and_identity_texts(bytes: &[u8]) {
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
        corpus::replay("texts", super::parse_sysfs_and_identity_texts);
    }
}
