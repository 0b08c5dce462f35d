//! Sockets over RDMA: `<rdma/rsocket.h>`, with the addresses of `<infiniband/ib.h>`.

use std::ffi::c_int;

c_consts! {
    /// The level of the socket options that only rsockets have.
    consts level: c_int {
        SOL_RDMA = 0x10000,
    }

    /// Options of the level [`SOL_RDMA`]: `rsocket(7)`.
    consts rsocket_options: c_int {
        RDMA_SQSIZE = 0,
        RDMA_RQSIZE = 1,
        RDMA_INLINE = 2,
        RDMA_IOMAPSIZE = 3,
        RDMA_ROUTE = 4,
    }

    /// The address family of [`sockaddr_ib`].
    consts address_family: c_int {
        AF_IB = 27,
        PF_IB = 27,
    }
}

c_types! {
    /// The address part of [`sockaddr_ib`]: a GID. In C this is a union of views of the same bytes.
    #[repr(align(8))]
    #[derive(Clone, Copy)]
    struct ib_addr {
        /// The bytes of the GID in network order.
        ib_u: [u8; 16],
    }

    /// A socket address by GID and service id.
    #[derive(Clone, Copy)]
    struct sockaddr_ib {
        sib_family: u16,
        /// P_Key, big-endian.
        sib_pkey: u16,
        /// Flow information, big-endian.
        sib_flowinfo: u32,
        sib_addr: ib_addr,
        /// Service id, big-endian.
        sib_sid: u64,
        /// Mask of the service id, big-endian.
        sib_sid_mask: u64,
        sib_scope_id: u64,
    }
}
