//! Byte fields for the consumer in messages of communication management.

use std::ops::Deref;

/// A field of up to `N` bytes: private data, or additional information. `N` is below 256.
///
/// Private data has no length on the wire: the receiver gets `N` bytes, padded with zeros.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct BoundedData<const N: usize> {
    bytes: [u8; N],
    len: u8,
}

impl<const N: usize> BoundedData<N> {
    /// Largest number of bytes.
    pub const CAPACITY: usize = N;

    /// Copies the bytes into a field; `None` if there are more than `N`.
    #[must_use]
    pub fn new(data: &[u8]) -> Option<Self> {
        let mut bytes = [0; N];
        bytes.get_mut(..data.len())?.copy_from_slice(data);
        let len = u8::try_from(data.len()).ok()?;
        Some(Self { bytes, len })
    }

    /// Makes a field of the first `len` bytes received, or of all bytes if `len` is larger than `N`.
    pub(super) fn from_received_bytes(mut bytes: [u8; N], len: u8) -> Self {
        let len = u8::try_from(N).map_or(len, |capacity| len.min(capacity));
        // The bytes after the length have no meaning.
        bytes[usize::from(len)..].fill(0);
        Self { bytes, len }
    }

    /// Returns the number of bytes, as encoded in the message.
    pub(super) const fn len_byte(&self) -> u8 {
        self.len
    }

    /// Returns all `N` bytes, padded with zeros.
    pub(super) const fn zero_padded_bytes(&self) -> &[u8; N] {
        &self.bytes
    }
}

impl<const N: usize> Default for BoundedData<N> {
    fn default() -> Self {
        Self {
            bytes: [0; N],
            len: 0,
        }
    }
}

impl<const N: usize> Deref for BoundedData<N> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl<const N: usize> std::fmt::Debug for BoundedData<N> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Data({:02x?})", &**self)
    }
}
