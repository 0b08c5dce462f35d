//! Jobs that copy between processes without a NIC.

use serde::{Deserialize, Serialize};

/// Method of copying.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CopyMethod {
    /// `memcpy` into a mapping that both processes share.
    Memcpy,
    /// `process_vm_writev` into private memory of the other process.
    ProcessVmWritev,
}

/// Parameters of the copies, sent to the worker.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct CopyParameters {
    pub(super) method: CopyMethod,
    pub(super) payload_bytes: usize,
}

/// Returns a pattern of bytes that differ from offset to offset.
pub(crate) fn byte_pattern(size: usize) -> Vec<u8> {
    (0..size)
        .map(|i| (i * 31 + (i >> 8)).to_le_bytes()[0])
        .collect()
}

/// Writes a number to the beginning of a payload.
pub(crate) fn write_number(payload: &mut [u8], number: u64) {
    let number = number.to_le_bytes();
    let size = payload.len().min(number.len());
    payload[..size].copy_from_slice(&number[..size]);
}
