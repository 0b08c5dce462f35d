//! Ways of copying between processes without a NIC.

use serde::{Deserialize, Serialize};

/// How the bytes get there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// `memcpy` into a mapping that both processes share.
    Memcpy,
    /// `process_vm_writev` into memory of the other process alone.
    ProcessVmWritev,
}

/// What the worker is asked to provide.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Copies {
    pub(super) method: Method,
    pub(super) payload_bytes: usize,
}

/// Bytes that differ from place to place.
pub(crate) fn pattern(size: usize) -> Vec<u8> {
    (0..size)
        .map(|i| (i * 31 + (i >> 8)).to_le_bytes()[0])
        .collect()
}

/// Marks the beginning of a payload with a number.
pub(crate) fn stamp(payload: &mut [u8], number: u64) {
    let number = number.to_le_bytes();
    let size = payload.len().min(number.len());
    payload[..size].copy_from_slice(&number[..size]);
}
