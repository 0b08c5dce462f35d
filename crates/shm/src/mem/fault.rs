//! The error of an access to memory that is not there.

/// The bytes could not be reached: unmapped, or their process has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault;
