//! A work request of a send queue, as far as it is counted.

use verbs_abi::{ibv_ah, ibv_wr_opcode};

/// A work request of a send queue, as far as it is counted.
pub(crate) trait Request {
    fn opcode(&self) -> ibv_wr_opcode;
    fn flags(&self) -> u32;
    /// Scatter/gather elements, and the bytes in them.
    fn payload(&self) -> (u32, u32);
    /// Remote address of RDMA and atomics.
    fn remote(&self) -> u64;
    /// Address handle and QP number of a datagram.
    fn destination(&self) -> (*mut ibv_ah, u32);

    /// What is equal in work requests that are counted together.
    #[inline(always)]
    fn pattern(&self) -> Pattern {
        let (num_sge, bytes) = self.payload();
        Pattern::new(self.opcode(), self.flags(), num_sge, bytes)
    }
}

/// Opcode, flags and payload of a work request as it is written, in two words that are soon compared.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pattern {
    /// Scatter/gather elements, and above them the opcode, as they lie in a work request.
    pub(crate) what: u64,
    /// Flags, and above them the bytes.
    pub(crate) how: u64,
}

impl Pattern {
    #[inline(always)]
    pub(crate) const fn new(opcode: ibv_wr_opcode, flags: u32, num_sge: u32, bytes: u32) -> Self {
        Self {
            what: num_sge as u64 | (opcode as u64) << 32,
            how: flags as u64 | (bytes as u64) << 32,
        }
    }
}

/// What no [`Pattern`] of an accepted work request is equal to.
pub(crate) const NOTHING_REPEATS: u64 = u64::MAX;
