//! Asserts that `nic-core` and the C interface number operations alike.

use nic_core::transport_opcodes::{wc, wr};
use verbs_abi::*;

macro_rules! assert_equal {
    ($($module:ident::$name:ident = $theirs:ident)*) => {
        const _: () = {
            $(assert!($module::$name == $theirs);)*
        };
    };
}

assert_equal! {
    wr::RDMA_WRITE = IBV_WR_RDMA_WRITE
    wr::RDMA_WRITE_WITH_IMM = IBV_WR_RDMA_WRITE_WITH_IMM
    wr::SEND = IBV_WR_SEND
    wr::SEND_WITH_IMM = IBV_WR_SEND_WITH_IMM
    wr::RDMA_READ = IBV_WR_RDMA_READ
    wr::ATOMIC_CMP_AND_SWP = IBV_WR_ATOMIC_CMP_AND_SWP
    wr::ATOMIC_FETCH_AND_ADD = IBV_WR_ATOMIC_FETCH_AND_ADD
    wr::LOCAL_INV = IBV_WR_LOCAL_INV
    wr::BIND_MW = IBV_WR_BIND_MW
    wr::SEND_WITH_INV = IBV_WR_SEND_WITH_INV
    wr::FLUSH = IBV_WR_FLUSH
    wr::ATOMIC_WRITE = IBV_WR_ATOMIC_WRITE
    wc::SEND = IBV_WC_SEND
    wc::RDMA_WRITE = IBV_WC_RDMA_WRITE
    wc::RDMA_READ = IBV_WC_RDMA_READ
    wc::COMP_SWAP = IBV_WC_COMP_SWAP
    wc::FETCH_ADD = IBV_WC_FETCH_ADD
    wc::BIND_MW = IBV_WC_BIND_MW
    wc::LOCAL_INV = IBV_WC_LOCAL_INV
    wc::FLUSH = IBV_WC_FLUSH
    wc::ATOMIC_WRITE = IBV_WC_ATOMIC_WRITE
}
