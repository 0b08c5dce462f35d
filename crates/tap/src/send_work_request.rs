//! The counted properties of a send queue's work request.

use verbs_abi::{ibv_ah, ibv_wr_opcode};

/// A work request of a send queue, with its counted properties.
pub(crate) trait SendWorkRequest {
    fn opcode(&self) -> ibv_wr_opcode;
    fn flags(&self) -> u32;
    /// Returns the number of scatter/gather elements, and the sum of their lengths in bytes.
    fn num_sge_and_bytes(&self) -> (u32, u32);
    /// Returns the remote address of RDMA and atomics.
    fn remote_addr(&self) -> u64;
    /// Returns the address handle and the QP number to which a datagram is sent.
    fn ud_destination(&self) -> (*mut ibv_ah, u32);

    /// Returns the pattern of the work request; work requests with equal patterns are counted
    /// together.
    #[inline(always)]
    fn pattern(&self) -> RequestPattern {
        let (num_sge, bytes) = self.num_sge_and_bytes();
        RequestPattern::new(self.opcode(), self.flags(), num_sge, bytes)
    }
}

/// Opcode, flags and payload of a work request, packed in two words for a fast comparison.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct RequestPattern {
    /// Number of scatter/gather elements in the low half, and opcode in the high half.
    pub(crate) opcode_and_sges: u64,
    /// Flags in the low half, and payload bytes in the high half.
    pub(crate) flags_and_bytes: u64,
}

impl RequestPattern {
    #[inline(always)]
    pub(crate) const fn new(opcode: ibv_wr_opcode, flags: u32, num_sge: u32, bytes: u32) -> Self {
        Self {
            opcode_and_sges: num_sge as u64 | (opcode as u64) << 32,
            flags_and_bytes: flags as u64 | (bytes as u64) << 32,
        }
    }
}

/// Value of a pattern's word that differs from the words of every accepted work request.
pub(crate) const NO_REPEATABLE_PATTERN: u64 = u64::MAX;
