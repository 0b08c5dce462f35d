//! The verbs of each transport, and the opcodes of their completions.

use crate::qp_state::QpType;

/// Operations of send work requests: `enum ibv_wr_opcode`.
#[allow(missing_docs)] // `ibv_post_send(3)`, `ibv_wr_post(3)`
pub mod wr {
    pub const RDMA_WRITE: u32 = 0;
    pub const RDMA_WRITE_WITH_IMM: u32 = 1;
    pub const SEND: u32 = 2;
    pub const SEND_WITH_IMM: u32 = 3;
    pub const RDMA_READ: u32 = 4;
    pub const ATOMIC_CMP_AND_SWP: u32 = 5;
    pub const ATOMIC_FETCH_AND_ADD: u32 = 6;
    pub const LOCAL_INV: u32 = 7;
    pub const BIND_MW: u32 = 8;
    pub const SEND_WITH_INV: u32 = 9;
    pub const FLUSH: u32 = 14;
    pub const ATOMIC_WRITE: u32 = 15;
}

/// Operations of completions: `enum ibv_wc_opcode`.
#[allow(missing_docs)] // `ibv_poll_cq(3)`
pub mod wc {
    pub const SEND: u32 = 0;
    pub const RDMA_WRITE: u32 = 1;
    pub const RDMA_READ: u32 = 2;
    pub const COMP_SWAP: u32 = 3;
    pub const FETCH_ADD: u32 = 4;
    pub const BIND_MW: u32 = 5;
    pub const LOCAL_INV: u32 = 6;
    pub const FLUSH: u32 = 8;
    pub const ATOMIC_WRITE: u32 = 9;
}

/// Returns true if `opcode` (of [`wr`]) is a verb of this transport service. Table 1 of the paper; IBTA vol. 1, table
/// 44.
#[inline]
#[must_use]
pub const fn is_opcode_allowed(service: QpType, opcode: u32) -> bool {
    match opcode {
        wr::SEND => true,
        wr::SEND_WITH_IMM => !matches!(service, QpType::RawPacket),
        wr::RDMA_WRITE | wr::RDMA_WRITE_WITH_IMM | wr::BIND_MW | wr::LOCAL_INV => {
            service.is_connected()
        }
        wr::RDMA_READ
        | wr::ATOMIC_CMP_AND_SWP
        | wr::ATOMIC_FETCH_AND_ADD
        | wr::ATOMIC_WRITE
        | wr::FLUSH
        | wr::SEND_WITH_INV => matches!(service, QpType::Rc),
        _ => false,
    }
}

/// Returns true if work requests of this operation send a payload; the payload may then be inline.
#[inline]
#[must_use]
pub const fn carries_payload(opcode: u32) -> bool {
    matches!(
        opcode,
        wr::SEND | wr::SEND_WITH_IMM | wr::SEND_WITH_INV | wr::RDMA_WRITE | wr::RDMA_WRITE_WITH_IMM
    )
}

/// Returns the operation (of [`wc`]) in the completion of a work request.
#[inline]
#[must_use]
pub const fn completion_opcode(opcode: u32) -> u32 {
    match opcode {
        wr::RDMA_WRITE | wr::RDMA_WRITE_WITH_IMM => wc::RDMA_WRITE,
        wr::RDMA_READ => wc::RDMA_READ,
        wr::ATOMIC_CMP_AND_SWP => wc::COMP_SWAP,
        wr::ATOMIC_FETCH_AND_ADD => wc::FETCH_ADD,
        wr::BIND_MW => wc::BIND_MW,
        wr::LOCAL_INV => wc::LOCAL_INV,
        wr::ATOMIC_WRITE => wc::ATOMIC_WRITE,
        wr::FLUSH => wc::FLUSH,
        _ => wc::SEND,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_transport_has_the_verbs_of_the_table() {
        // Columns: RC, UC, UD, raw packets.
        let table = [
            (wr::SEND, [true, true, true, true]),
            (wr::SEND_WITH_IMM, [true, true, true, false]),
            (wr::SEND_WITH_INV, [true, false, false, false]),
            (wr::RDMA_WRITE, [true, true, false, false]),
            (wr::RDMA_WRITE_WITH_IMM, [true, true, false, false]),
            (wr::RDMA_READ, [true, false, false, false]),
            (wr::ATOMIC_CMP_AND_SWP, [true, false, false, false]),
            (wr::ATOMIC_FETCH_AND_ADD, [true, false, false, false]),
            (wr::ATOMIC_WRITE, [true, false, false, false]),
            (wr::FLUSH, [true, false, false, false]),
            (wr::BIND_MW, [true, true, false, false]),
            (wr::LOCAL_INV, [true, true, false, false]),
            // Opcode 10 is segmentation offload; the other opcode is unknown.
            (10, [false; 4]),
            (u32::MAX, [false; 4]),
        ];
        let services = [QpType::Rc, QpType::Uc, QpType::Ud, QpType::RawPacket];
        for (opcode, expected) in table {
            let got = services.map(|service| is_opcode_allowed(service, opcode));
            assert_eq!(got, expected, "opcode {opcode}");
        }
    }

    #[test]
    fn completions_of_different_verbs_differ() {
        let mut seen = [
            wr::SEND,
            wr::RDMA_WRITE,
            wr::RDMA_READ,
            wr::ATOMIC_CMP_AND_SWP,
            wr::ATOMIC_FETCH_AND_ADD,
            wr::BIND_MW,
            wr::LOCAL_INV,
            wr::FLUSH,
            wr::ATOMIC_WRITE,
        ]
        .map(completion_opcode)
        .to_vec();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 9);
        for (same, opcode) in [
            (wr::SEND_WITH_IMM, wc::SEND),
            (wr::SEND_WITH_INV, wc::SEND),
            (wr::RDMA_WRITE_WITH_IMM, wc::RDMA_WRITE),
        ] {
            assert_eq!(completion_opcode(same), opcode);
        }
    }
}
