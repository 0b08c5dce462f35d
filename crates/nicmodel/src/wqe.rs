//! Headers of WQEs, and cache lines of WQEs. [`Operation::wqe_bytes`](crate::Operation::wqe_bytes) computes the size
//! of a WQE.

use crate::profile::Profile;
use crate::verb::{Transport, Verb};

/// Size of a cache line, and of one MMIO write with write combining.
pub const CACHE_LINE_BYTES: u32 = 64;

/// Returns the size of a WQE's header, with the size field of inlined data (Table 1 of the paper).
///
/// - The WQE of a RECV has no header; its size is [`WqeSizes::recv_bytes`](crate::profile::WqeSizes::recv_bytes).
/// - For atomics the result is the size of the WQE without its scatter/gather element.
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

/// Returns the cache lines of `bytes` bytes that begin at a line: `ceil(bytes / 64)`.
pub fn cache_line_count(bytes: u32) -> u32 {
    bytes.div_ceil(CACHE_LINE_BYTES)
}

/// Returns the cache lines that `bytes` bytes from this address touch, as a processor's PCIe counters count a DMA.
/// For example, 4 bytes across a line boundary touch 2.
pub fn cache_lines_touched(address: u64, bytes: u64) -> u64 {
    let line = u64::from(CACHE_LINE_BYTES);
    match bytes.checked_sub(1) {
        None => 0,
        Some(rest) => address.saturating_add(rest) / line - address / line + 1,
    }
}

/// Returns the bytes of the send queue that a WQE of `bytes` bytes takes: whole cache lines.
pub fn send_queue_slot_bytes(bytes: u32) -> u32 {
    cache_line_count(bytes).saturating_mul(CACHE_LINE_BYTES)
}

/// Returns the most payload that fits inline into a WQE of this number of cache lines; `None` if no payload fits.
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
