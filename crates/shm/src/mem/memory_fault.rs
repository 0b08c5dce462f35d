//! The error of an access to unmapped memory.

/// Error: the bytes are unmapped, or their process has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryFault;
