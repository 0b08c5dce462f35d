//! The keys and values of the client, which stand for numbers.

use btree::load::NumberStrings;

use super::order::{EntrySizes, KeyOrder};

/// The keys and values that stand for numbers.
#[derive(Clone, Copy, Debug)]
pub enum LmdbEntries {
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

impl LmdbEntries {
    pub(super) fn sizes(self) -> EntrySizes {
        match self {
            Self::Numbers { .. } => EntrySizes::NUMBERS,
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
pub(super) struct EntryBytes {
    entries: LmdbEntries,
    sizes: EntrySizes,
    key: Vec<u8>,
    value: Vec<u8>,
}

impl EntryBytes {
    pub(super) fn new(entries: LmdbEntries) -> Self {
        let sizes = entries.sizes();
        Self {
            entries,
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
    pub(super) fn key(&mut self, number: u64) -> &[u8] {
        match self.entries {
            LmdbEntries::Numbers { .. } => self.key.copy_from_slice(&number.to_ne_bytes()),
            LmdbEntries::Strings { strings, .. } => strings.key(number).copy_to(&mut self.key),
        }
        &self.key
    }

    /// Returns the key of a number and its value.
    #[inline]
    pub(super) fn entry(&mut self, number: u64) -> (&[u8], &[u8]) {
        self.key(number);
        match self.entries {
            LmdbEntries::Numbers { value_of_key } => {
                let value = value_of_key(number).to_ne_bytes();
                self.value.copy_from_slice(&value);
            }
            LmdbEntries::Strings {
                strings,
                value_of_key,
            } => strings.value(value_of_key(number)).copy_to(&mut self.value),
        }
        (&self.key, &self.value)
    }
}
