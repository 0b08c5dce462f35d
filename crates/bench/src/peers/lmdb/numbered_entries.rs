//! The keys and values of the client, which stand for numbers.

use btree::load::NumberStrings;

use super::serve_job::{EntrySizes, KeyOrder};

/// The keys and values that stand for numbers.
#[derive(Clone, Copy, Debug)]
pub enum LmdbEntryKind {
    /// A key is the number.
    Numbers {
        /// Function from a key to its value.
        value_of_key: fn(u64) -> u64,
    },
    /// Keys and values are byte strings.
    Strings {
        /// The strings of numbers.
        strings: NumberStrings,
        /// Function from the number of a key to the number of its value.
        value_of_key: fn(u64) -> u64,
    },
}

impl LmdbEntryKind {
    pub(super) fn entry_sizes(self) -> EntrySizes {
        match self {
            Self::Numbers { .. } => EntrySizes::OF_INTEGERS,
            Self::Strings { strings, .. } => EntrySizes {
                key_bytes: strings.sizes().key_bytes,
                value_bytes: strings.sizes().value_bytes,
            },
        }
    }

    pub(super) fn key_order(self) -> KeyOrder {
        match self {
            Self::Numbers { .. } => KeyOrder::Integers,
            Self::Strings { .. } => KeyOrder::Bytes,
        }
    }
}

/// The bytes of one entry at a time.
pub(super) struct EntryGenerator {
    entry_kind: LmdbEntryKind,
    sizes: EntrySizes,
    key: Vec<u8>,
    value: Vec<u8>,
}

impl EntryGenerator {
    pub(super) fn new(entries: LmdbEntryKind) -> Self {
        let sizes = entries.entry_sizes();
        Self {
            entry_kind: entries,
            sizes,
            key: vec![0; sizes.key_bytes],
            value: vec![0; sizes.value_bytes],
        }
    }

    #[inline]
    pub(super) fn sizes(&self) -> EntrySizes {
        self.sizes
    }

    /// Returns the key of a number.
    #[inline]
    pub(super) fn key_of_number(&mut self, number: u64) -> &[u8] {
        match self.entry_kind {
            LmdbEntryKind::Numbers { .. } => self.key.copy_from_slice(&number.to_ne_bytes()),
            LmdbEntryKind::Strings { strings, .. } => strings.key(number).copy_to(&mut self.key),
        }
        &self.key
    }

    /// Returns the key of a number and its value.
    #[inline]
    pub(super) fn key_and_value_of_number(&mut self, number: u64) -> (&[u8], &[u8]) {
        self.key_of_number(number);
        match self.entry_kind {
            LmdbEntryKind::Numbers { value_of_key } => {
                let value = value_of_key(number).to_ne_bytes();
                self.value.copy_from_slice(&value);
            }
            LmdbEntryKind::Strings {
                strings,
                value_of_key,
            } => strings.value(value_of_key(number)).copy_to(&mut self.value),
        }
        (&self.key, &self.value)
    }
}
