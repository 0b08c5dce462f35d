//! Bytes of consumers in messages of communication management.

use std::ops::Deref;

/// Up to `N` bytes that a message carries: private data, or additional information. `N` is below 256.
///
/// Private data has no length on the wire: what is shorter than `N` arrives with zeros behind it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Data<const N: usize> {
    bytes: [u8; N],
    len: u8,
}

impl<const N: usize> Data<N> {
    /// The most bytes that fit.
    pub const CAPACITY: usize = N;

    /// These bytes; `None` if they are more than `N`.
    #[must_use]
    pub fn new(data: &[u8]) -> Option<Self> {
        let mut bytes = [0; N];
        bytes.get_mut(..data.len())?.copy_from_slice(data);
        let len = u8::try_from(data.len()).ok()?;
        Some(Self { bytes, len })
    }

    /// The first `len` bytes of what a message has, or all.
    pub(super) fn received(mut bytes: [u8; N], len: u8) -> Self {
        let len = u8::try_from(N).map_or(len, |capacity| len.min(capacity));
        // What lies behind the length means nothing.
        bytes[usize::from(len)..].fill(0);
        Self { bytes, len }
    }

    /// How many bytes there are, as a field of the message says it.
    pub(super) const fn len_byte(&self) -> u8 {
        self.len
    }

    /// All bytes, with zeros behind those that there are.
    pub(super) const fn padded(&self) -> &[u8; N] {
        &self.bytes
    }
}

impl<const N: usize> Default for Data<N> {
    fn default() -> Self {
        Self {
            bytes: [0; N],
            len: 0,
        }
    }
}

impl<const N: usize> Deref for Data<N> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl<const N: usize> std::fmt::Debug for Data<N> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Data({:02x?})", &**self)
    }
}
