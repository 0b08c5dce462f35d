//! Job of an LMDB server.

use serde::{Deserialize, Serialize};

/// Parameters of the store that the worker serves.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct LmdbServeJob {
    /// Maximum number of keys.
    #[serde(rename = "keys")]
    pub(super) max_keys: u64,
    pub(super) sizes: EntrySizes,
    pub(super) key_order: KeyOrder,
}

/// The order of a store's keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum KeyOrder {
    /// Keys are integers of the machine, of 8 bytes.
    Integers,
    /// Keys are byte strings.
    Bytes,
}

/// Lengths of all keys and of all values of a store, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct EntrySizes {
    pub(super) key_bytes: usize,
    pub(super) value_bytes: usize,
}

impl EntrySizes {
    /// The lengths of integers.
    pub(super) const OF_INTEGERS: Self = Self {
        key_bytes: 8,
        value_bytes: 8,
    };

    /// Returns the bytes of a key and its value.
    #[inline]
    pub(super) fn entry_bytes(self) -> usize {
        self.key_bytes + self.value_bytes
    }
}
