//! The connection manager: `<rdma/rdma_cma.h>`, with the path records of `<infiniband/sa.h>`.

use std::ffi::{c_char, c_int, c_void};

use libc::{sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage, socklen_t};

use crate::context::ibv_context;
use crate::cq::{ibv_comp_channel, ibv_cq};
use crate::gid::{ibv_ah_attr, ibv_gid};
use crate::pd::ibv_pd;
use crate::qp::{ibv_qp, ibv_qp_type};
use crate::srq::ibv_srq;

c_consts! {
    /// Kind of an event: [`rdma_cm_event::event`].
    enum rdma_cm_event_type: u32 {
        RDMA_CM_EVENT_ADDR_RESOLVED = 0,
        RDMA_CM_EVENT_ADDR_ERROR = 1,
        RDMA_CM_EVENT_ROUTE_RESOLVED = 2,
        RDMA_CM_EVENT_ROUTE_ERROR = 3,
        RDMA_CM_EVENT_CONNECT_REQUEST = 4,
        RDMA_CM_EVENT_CONNECT_RESPONSE = 5,
        RDMA_CM_EVENT_CONNECT_ERROR = 6,
        RDMA_CM_EVENT_UNREACHABLE = 7,
        RDMA_CM_EVENT_REJECTED = 8,
        RDMA_CM_EVENT_ESTABLISHED = 9,
        RDMA_CM_EVENT_DISCONNECTED = 10,
        RDMA_CM_EVENT_DEVICE_REMOVAL = 11,
        RDMA_CM_EVENT_MULTICAST_JOIN = 12,
        RDMA_CM_EVENT_MULTICAST_ERROR = 13,
        RDMA_CM_EVENT_ADDR_CHANGE = 14,
        RDMA_CM_EVENT_TIMEWAIT_EXIT = 15,
    }

    /// Port space of an id: [`rdma_cm_id::ps`].
    enum rdma_port_space: u32 {
        RDMA_PS_IPOIB = 0x0002,
        RDMA_PS_TCP = 0x0106,
        RDMA_PS_UDP = 0x0111,
        RDMA_PS_IB = 0x013F,
    }

    /// The Q_Key of datagram QPs and multicast groups of the connection manager.
    consts qkey: u32 {
        RDMA_UDP_QKEY = 0x0123_4567,
    }

    /// Values of [`rdma_conn_param`] that stand for the device's maximum.
    consts resources: u8 {
        RDMA_MAX_RESP_RES = 0xFF,
        RDMA_MAX_INIT_DEPTH = 0xFF,
    }

    /// Bits of [`rdma_addrinfo::ai_flags`].
    consts addrinfo_flags: c_int {
        RAI_PASSIVE = 0x0000_0001,
        RAI_NUMERICHOST = 0x0000_0002,
        RAI_NOROUTE = 0x0000_0004,
        RAI_FAMILY = 0x0000_0008,
    }

    /// Bits of [`rdma_cm_join_mc_attr_ex::comp_mask`].
    enum rdma_cm_join_mc_attr_mask: u32 {
        RDMA_CM_JOIN_MC_ATTR_ADDRESS = 1 << 0,
        RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS = 1 << 1,
        RDMA_CM_JOIN_MC_ATTR_RESERVED = 1 << 2,
    }

    /// Kind of membership: [`rdma_cm_join_mc_attr_ex::join_flags`].
    enum rdma_cm_mc_join_flags: u32 {
        RDMA_MC_JOIN_FLAG_FULLMEMBER = 0,
        RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER = 1,
        RDMA_MC_JOIN_FLAG_RESERVED = 2,
    }

    /// Levels and names of the options of an id: `rdma_set_option(3)`.
    consts options: c_int {
        RDMA_OPTION_ID = 0,
        RDMA_OPTION_IB = 1,
        RDMA_OPTION_ID_TOS = 0,
        RDMA_OPTION_ID_REUSEADDR = 1,
        RDMA_OPTION_ID_AFONLY = 2,
        RDMA_OPTION_ID_ACK_TIMEOUT = 3,
        RDMA_OPTION_IB_PATH = 1,
    }

    /// Bits of [`ibv_path_data::flags`].
    consts path_flags: u32 {
        IBV_PATH_FLAG_GMP = 1 << 0,
        IBV_PATH_FLAG_PRIMARY = 1 << 1,
        IBV_PATH_FLAG_ALTERNATE = 1 << 2,
        IBV_PATH_FLAG_OUTBOUND = 1 << 3,
        IBV_PATH_FLAG_INBOUND = 1 << 4,
        IBV_PATH_FLAG_INBOUND_REVERSE = 1 << 5,
    }
}

c_types! {
    /// A path record, as in `rdma_cm_id.route.path_rec`.
    #[derive(Clone, Copy)]
    struct ibv_sa_path_rec {
        dgid: ibv_gid,
        sgid: ibv_gid,
        /// LID of the destination, big-endian.
        dlid: u16,
        /// LID of the source, big-endian.
        slid: u16,
        raw_traffic: c_int,
        /// Flow label, big-endian.
        flow_label: u32,
        hop_limit: u8,
        traffic_class: u8,
        reversible: c_int,
        numb_path: u8,
        /// P_Key, big-endian.
        pkey: u16,
        sl: u8,
        mtu_selector: u8,
        mtu: u8,
        rate_selector: u8,
        rate: u8,
        packet_life_time_selector: u8,
        packet_life_time: u8,
        preference: u8,
    }

    /// A member of a multicast group: IBTA vol. 1, 15.2.5.17.
    #[derive(Clone, Copy)]
    struct ibv_sa_mcmember_rec {
        mgid: ibv_gid,
        port_gid: ibv_gid,
        qkey: u32,
        mlid: u16,
        mtu_selector: u8,
        mtu: u8,
        traffic_class: u8,
        pkey: u16,
        rate_selector: u8,
        rate: u8,
        packet_life_time_selector: u8,
        packet_life_time: u8,
        sl: u8,
        flow_label: u32,
        hop_limit: u8,
        scope: u8,
        join_state: u8,
        proxy_join: c_int,
    }

    /// A service record: IBTA vol. 1, 15.2.5.14.
    #[derive(Clone, Copy)]
    struct ibv_sa_service_rec {
        id: u64,
        gid: ibv_gid,
        pkey: u16,
        lease: u32,
        key: [u8; 16],
        name: [u8; 64],
        data8: [u8; 16],
        data16: [u16; 8],
        data32: [u32; 4],
        data64: [u64; 2],
    }

    /// A path record in its wire format: IBTA vol. 1, 15.2.5.16.
    #[derive(Clone, Copy)]
    struct ibv_path_record {
        /// Service id, big-endian.
        service_id: u64,
        dgid: ibv_gid,
        sgid: ibv_gid,
        /// LID of the destination, big-endian.
        dlid: u16,
        /// LID of the source, big-endian.
        slid: u16,
        /// Flow label and hop limit, big-endian.
        flowlabel_hoplimit: u32,
        tclass: u8,
        reversible_numpath: u8,
        /// P_Key, big-endian.
        pkey: u16,
        /// QoS class and service level, big-endian.
        qosclass_sl: u16,
        mtu: u8,
        rate: u8,
        packetlifetime: u8,
        preference: u8,
        reserved: [u8; 6],
    }

    /// The value of the option [`RDMA_OPTION_IB_PATH`]: a path record and its flags.
    #[derive(Clone, Copy)]
    struct ibv_path_data {
        flags: u32,
        reserved: u32,
        path: ibv_path_record,
    }

    /// The InfiniBand addresses of an id.
    #[derive(Clone, Copy)]
    struct rdma_ib_addr {
        sgid: ibv_gid,
        dgid: ibv_gid,
        /// P_Key, big-endian.
        pkey: u16,
    }

    /// The source address in [`rdma_addr`].
    #[derive(Clone, Copy)]
    union rdma_addr_src as "struct rdma_addr", anonymous "src_addr" {
        src_addr: sockaddr,
        src_sin: sockaddr_in,
        src_sin6: sockaddr_in6,
        src_storage: sockaddr_storage,
    }

    /// The destination address in [`rdma_addr`].
    #[derive(Clone, Copy)]
    union rdma_addr_dst as "struct rdma_addr", anonymous "dst_addr" {
        dst_addr: sockaddr,
        dst_sin: sockaddr_in,
        dst_sin6: sockaddr_in6,
        dst_storage: sockaddr_storage,
    }

    /// The union `addr` in [`rdma_addr`].
    #[derive(Clone, Copy)]
    union rdma_addr_addr as "typeof(((struct rdma_addr *)0)->addr)" {
        ibaddr: rdma_ib_addr,
    }

    /// The addresses of the two ends of an id.
    #[derive(Clone, Copy)]
    struct rdma_addr {
        src as "src_addr": rdma_addr_src,
        dst as "dst_addr": rdma_addr_dst,
        addr: rdma_addr_addr,
    }

    /// The addresses of the two ends of an id, and the paths between the ends.
    #[derive(Clone, Copy)]
    struct rdma_route {
        addr: rdma_addr,
        path_rec: *mut ibv_sa_path_rec,
        num_paths: c_int,
    }

    /// An event channel, on which events of ids are reported: `rdma_create_event_channel(3)`.
    #[derive(Clone, Copy, Debug)]
    struct rdma_event_channel {
        fd: c_int,
    }

    /// A communication identifier, the counterpart of a TCP socket: `rdma_create_id(3)`.
    struct rdma_cm_id {
        verbs: *mut ibv_context,
        channel: *mut rdma_event_channel,
        context: *mut c_void,
        qp: *mut ibv_qp,
        route: rdma_route,
        ps: rdma_port_space,
        port_num: u8,
        event: *mut rdma_cm_event,
        send_cq_channel: *mut ibv_comp_channel,
        send_cq: *mut ibv_cq,
        recv_cq_channel: *mut ibv_comp_channel,
        recv_cq: *mut ibv_cq,
        srq: *mut ibv_srq,
        pd: *mut ibv_pd,
        qp_type: ibv_qp_type,
    }

    /// Parameters of a connection: `rdma_connect(3)`, `rdma_accept(3)`.
    #[derive(Clone, Copy, Debug)]
    struct rdma_conn_param {
        private_data: *const c_void,
        private_data_len: u8,
        responder_resources: u8,
        initiator_depth: u8,
        flow_control: u8,
        retry_count: u8,
        rnr_retry_count: u8,
        srq: u8,
        qp_num: u32,
    }

    /// Parameters for reaching a datagram service: `rdma_get_cm_event(3)`.
    #[derive(Clone, Copy)]
    struct rdma_ud_param {
        private_data: *const c_void,
        private_data_len: u8,
        ah_attr: ibv_ah_attr,
        qp_num: u32,
        qkey: u32,
    }

    /// The union `param` in [`rdma_cm_event`]: the id's type determines the valid member.
    #[derive(Clone, Copy)]
    union rdma_cm_event_param as "typeof(((struct rdma_cm_event *)0)->param)" {
        conn: rdma_conn_param,
        ud: rdma_ud_param,
    }

    /// An event: `rdma_get_cm_event(3)`.
    #[derive(Clone, Copy)]
    struct rdma_cm_event {
        id: *mut rdma_cm_id,
        listen_id: *mut rdma_cm_id,
        event: rdma_cm_event_type,
        status: c_int,
        param: rdma_cm_event_param,
    }

    /// The result of `rdma_getaddrinfo(3)`.
    #[derive(Clone, Copy, Debug)]
    struct rdma_addrinfo {
        ai_flags: c_int,
        ai_family: c_int,
        ai_qp_type: c_int,
        ai_port_space: c_int,
        ai_src_len: socklen_t,
        ai_dst_len: socklen_t,
        ai_src_addr: *mut sockaddr,
        ai_dst_addr: *mut sockaddr,
        ai_src_canonname: *mut c_char,
        ai_dst_canonname: *mut c_char,
        ai_route_len: usize,
        ai_route: *mut c_void,
        ai_connect_len: usize,
        ai_connect: *mut c_void,
        ai_next: *mut rdma_addrinfo,
    }

    /// Attributes for joining a multicast group: `rdma_join_multicast_ex(3)`.
    #[derive(Clone, Copy, Debug)]
    struct rdma_cm_join_mc_attr_ex {
        comp_mask: u32,
        join_flags: u32,
        addr: *mut sockaddr,
    }
}
