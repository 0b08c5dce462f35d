//! Headers of WQEs, and what WQEs take in cache lines; their sizes are [`Operation::wqe_bytes`](crate::Operation::wqe_bytes).

use crate::profile::Profile;
use crate::verb::{Transport, Verb};

/// A cache line, which is also what write combining sends in one MMIO write.
pub const CACHE_LINE_BYTES: u32 = 64;

/// Header of a WQE with the size field of inlined data (Table 1 of the paper).
///
/// - RECVs have [`Wqe::recv_bytes`](crate::profile::Wqe::recv_bytes), which is no header.
/// - For atomics it is the WQE without its scatter/gather element.
pub fn header_bytes(profile: &Profile, verb: Verb, transport: Transport) -> u32 {
    let wqe = &profile.wqe;
    if verb.is_atomic() {
        return wqe.atomic_header_bytes.value;
    }
    match transport {
        Transport::Rc => wqe.rc_header_bytes.value,
        Transport::Uc => wqe.uc_header_bytes.value,
        Transport::Ud => wqe.ud_header_bytes.value,
    }
}

/// Cache lines of so many bytes that begin at a line: `ceil(bytes / 64)`.
pub fn lines(bytes: u32) -> u32 {
    bytes.div_ceil(CACHE_LINE_BYTES)
}

/// Cache lines that `bytes` bytes from this address on touch; what PCIe counters of a processor
/// count for a DMA (4 bytes across a boundary are 2).
pub fn lines_touched(address: u64, bytes: u64) -> u64 {
    let line = u64::from(CACHE_LINE_BYTES);
    match bytes.checked_sub(1) {
        None => 0,
        Some(rest) => address.saturating_add(rest) / line - address / line + 1,
    }
}

/// What a WQE of so many bytes takes in the send queue: whole cache lines.
pub fn slot_bytes(bytes: u32) -> u32 {
    lines(bytes).saturating_mul(CACHE_LINE_BYTES)
}

/// Most payload that still fits inline into a WQE of so many cache lines, if any does.
pub fn max_inline_payload(
    profile: &Profile,
    verb: Verb,
    transport: Transport,
    lines: u32,
) -> Option<u32> {
    let room = lines
        .saturating_mul(CACHE_LINE_BYTES)
        .checked_sub(header_bytes(profile, verb, transport))?;
    (room > 0).then(|| room.min(profile.wqe.max_inline_bytes.value))
}
