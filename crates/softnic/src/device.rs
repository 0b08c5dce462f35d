//! The device as programs see it: its identity, its limits, its one port with the GID table, and the
//! 40 bytes in front of a UD payload.
//!
//! Nothing here knows queue pairs or memory. Read `ibv_query_device(3)`, `ibv_query_port(3)`,
//! `ibv_query_gid(3)`, `ibv_create_ah(3)` first; for the headers IBTA vol. 1, 8.3 (GRH) and annex A17
//! (RoCEv2).

use std::ffi::{CStr, OsStr, OsString, c_char, c_int};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::OnceLock;
use std::{fs, io, ptr};

use crate::identity::Identity;
use crate::steering::spread::HASH_FIELDS;
use libc::{EINVAL, ETIMEDOUT};
use shm::shortage::{errno_of, shortage};
use verbs_abi::{
    IBV_ATOMIC_HCA, IBV_DEVICE_ATOMIC_WRITE, IBV_DEVICE_CURR_QP_STATE_MOD, IBV_DEVICE_FLUSH_GLOBAL,
    IBV_DEVICE_MANAGED_FLOW_STEERING, IBV_DEVICE_MEM_WINDOW, IBV_DEVICE_MEM_WINDOW_TYPE_2B,
    IBV_DEVICE_RAW_IP_CSUM, IBV_DEVICE_RC_RNR_NAK_GEN, IBV_DEVICE_SYS_IMAGE_GUID,
    IBV_DEVICE_UD_AV_PORT_ENFORCE, IBV_DEVICE_XRC, IBV_GID_TYPE_IB, IBV_GID_TYPE_ROCE_V2,
    IBV_LINK_LAYER_ETHERNET, IBV_LINK_LAYER_INFINIBAND, IBV_MTU_4096, IBV_ODP_SUPPORT,
    IBV_ODP_SUPPORT_ATOMIC, IBV_ODP_SUPPORT_IMPLICIT, IBV_ODP_SUPPORT_READ, IBV_ODP_SUPPORT_RECV,
    IBV_ODP_SUPPORT_SEND, IBV_ODP_SUPPORT_SRQ_RECV, IBV_ODP_SUPPORT_WRITE, IBV_PORT_ACTIVE,
    IBV_PORT_IP_BASED_GIDS, IBV_PORT_SYS_IMAGE_GUID_SUP, IBV_QPF_GRH_REQUIRED, IBV_QPT_RAW_PACKET,
    IBV_RAW_PACKET_CAP_IP_CSUM, IBV_RX_HASH_FUNC_TOEPLITZ, IBV_TM_CAP_RC, IBV_WC_GRH, ibv_ah_attr,
    ibv_device_attr, ibv_device_attr_ex, ibv_gid, ibv_gid_entry, ibv_port_attr, ibv_rss_caps,
    ibv_tm_caps, ibv_wc,
};

/// Most queue pairs of a context. 16 Ki leave room above the 10,000 that the benchmark connects.
pub(crate) const MAX_QP: u32 = 16_384;
/// Most WRs of one work queue. Bounds what one `ibv_create_qp` can make us allocate.
pub(crate) const MAX_QP_WR: u32 = 16_384;
/// Most scatter/gather elements of a WR; as Soft-RoCE (`RXE_MAX_SGE`).
pub(crate) const MAX_SGE: u32 = 32;
/// Most bytes of one WR's inline payload. Not in [`ibv_device_attr`]: `ibv_create_qp` refuses more.
///
/// A real NIC's inline payload must fit its largest WQE, about 1 KiB on mlx5.
pub(crate) const MAX_INLINE_DATA: u32 = 1024;
/// Most completion queues of a context: one for each queue pair.
pub(crate) const MAX_CQ: u32 = MAX_QP;
/// Most entries of a completion queue: 2^22 - 1, as mlx5 devices report.
pub(crate) const MAX_CQE: u32 = 4_194_303;
/// Most memory regions of a context: two for each queue pair.
pub(crate) const MAX_MR: u32 = 2 * MAX_QP;
/// Most bytes of a memory region: no object of a process is larger than `isize::MAX`.
pub(crate) const MAX_MR_SIZE: u64 = u64::MAX >> 1;
/// Most protection domains of a context.
pub(crate) const MAX_PD: u32 = 65_536;
/// Most outstanding READs and atomics of a queue pair, as responder; as Soft-RoCE
/// (`RXE_MAX_QP_RD_ATOM`).
pub(crate) const MAX_QP_RD_ATOM: u32 = 128;
/// Most outstanding READs and atomics of a queue pair, as requester; as Soft-RoCE
/// (`RXE_MAX_QP_INIT_RD_ATOM`).
pub(crate) const MAX_QP_INIT_RD_ATOM: u32 = 128;
/// Most shared receive queues of a context: one for each queue pair.
pub(crate) const MAX_SRQ: u32 = MAX_QP;
/// Most WRs of a shared receive queue: as of any other receive queue.
pub(crate) const MAX_SRQ_WR: u32 = MAX_QP_WR;
/// Most scatter/gather elements of a WR on a shared receive queue: as on any other.
pub(crate) const MAX_SRQ_SGE: u32 = MAX_SGE;
/// Most work queues of a table that raw packets are spread by: what its place in shared memory has room for.
#[allow(clippy::cast_possible_truncation)] // 128
pub(crate) const MAX_IND_TBL_SIZE: u32 = shm::fabric::layout::MAX_IND_TBL as u32;
/// Bytes of the headers of a rendezvous message.
pub(crate) const MAX_RNDV_HEADER: u32 = 32;
/// Entries of the list of a shared receive queue for tag matching, each of which a message may have to be compared with.
pub(crate) const MAX_TAGS: u32 = 1024;
/// Operations on such a list that have not been polled.
pub(crate) const MAX_TAG_OPS: u32 = 1024;
/// Most address handles of a context.
pub(crate) const MAX_AH: u32 = 65_536;

/// Most attachments of a process's queue pairs to multicast groups: what its table has places for.
const MAX_MCASTS: u32 = 4096;
const _: () = assert!(MAX_MCASTS as usize == shm::fabric::layout::MAX_MCASTS);

/// Most bytes of device memory in one allocation: 256 KiB, about what ConnectX NICs have.
pub(crate) const MAX_DM_SIZE: u64 = 256 << 10;

/// Number of the port: ports of a channel adapter count from 1 (`ibv_query_port(3)`), and there is one.
pub(crate) const PORT_NUM: u8 = 1;
/// Entries of the GID table, most of them empty. An address vector names an entry by an 8-bit
/// `sgid_index`, so no further one could be used.
pub(crate) const GID_TBL_LEN: u32 = 256;
/// Entries of the P_Key table.
pub(crate) const PKEY_TBL_LEN: u16 = 1;
/// The default P_Key with full membership: the one that every
/// port starts with (`IB_DEFAULT_PKEY_FULL` of `linux:include/rdma/ib_mad.h`).
pub(crate) const DEFAULT_PKEY: u16 = 0xffff;
/// Most bytes of a message: 2^31, the largest DMA length of a RETH (IBTA vol. 1, 9.3.3).
pub(crate) const MAX_MSG_SZ: u32 = 1 << 31;

/// LID of an InfiniBand port: the first unicast LID (IBTA vol. 1, 4.1.3). There is no subnet manager
/// to hand out others, and all queue pairs of a host share the port.
const IB_LID: u16 = 1;
/// Prefix of link-local GIDs, fe80::/64: the default of IBTA vol. 1, 4.1.1 and of RFC 4291, 2.5.6.
const LINK_LOCAL_PREFIX: [u8; 8] = [0xfe, 0x80, 0, 0, 0, 0, 0, 0];

/// The environment variable that chooses the link layer.
const LINK_LAYER_VAR: &str = "VERBATIM_LINK_LAYER";

/// The GUID of node and port: an EUI-64 in network order, the same for every process of the host and
/// at every start.
///
/// 62 bits come from a hash of `/etc/machine-id` (`machine-id(5)` asks programs not to show the id
/// itself; 66 of its bits are lost here). The other two say "locally administered" and "individual",
/// since no registered vendor prefix stands behind it (IEEE, "Guidelines for use of EUI"). A host
/// without the file is identified by its boot, then by its name.
pub(crate) fn node_guid() -> [u8; 8] {
    // It is known since the port was set up.
    read_node_guid().unwrap_or_else(|_| guid_from(""))
}

/// The same.
///
/// # Errors
/// Where the host's id cannot be read now, for want of descriptors or memory.
fn read_node_guid() -> io::Result<[u8; 8]> {
    static GUID: OnceLock<[u8; 8]> = OnceLock::new();
    if let Some(guid) = GUID.get() {
        return Ok(*guid);
    }
    let files = [
        "/etc/machine-id",
        "/var/lib/dbus/machine-id",
        "/proc/sys/kernel/random/boot_id",
        "/proc/sys/kernel/hostname",
    ];
    let mut id = String::new();
    for file in files {
        match fs::read_to_string(file) {
            // While a system image is set up, the file is empty or says so: machine-id(5).
            Ok(text) if !matches!(text.trim(), "" | "uninitialized") => {
                id = text;
                break;
            }
            Err(e) if shortage(&e).is_some() => return Err(e),
            _ => {}
        }
    }
    Ok(*GUID.get_or_init(|| guid_from(id.trim())))
}

/// Hashes a host's id into an EUI-64.
fn guid_from(host_id: &str) -> [u8; 8] {
    // FNV-1a, 64 bits (RFC 9923), with its offset basis and prime; std's hashers may change with the
    // compiler, and the GUID must not.
    let mut hash = b"verbatim softnic guid "
        .iter()
        .chain(host_id.as_bytes())
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
    // The finalizer of MurmurHash3: FNV leaves the last bytes out of the high bits.
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    let mut guid = (hash ^ (hash >> 33)).to_be_bytes();
    guid[0] = guid[0] & !0x03 | 0x02;
    guid
}

/// Properties and limits of the device: what `ibv_query_device` fills in.
///
/// - `hw_ver` is 0.
/// - `max_ee`, `max_rdd` and the raw datagram queue pairs of IBTA vol. 1 (which raw packets are not) are 0: not supported.
pub(crate) fn device_attr(identity: &Identity, link_layer: LinkLayer) -> ibv_device_attr {
    let mut attr = ibv_device_attr::zeroed();
    for (to, from) in attr.fw_ver.iter_mut().zip(identity.firmware.bytes()) {
        *to = from.cast_signed();
    }
    attr.node_guid = u64::from_ne_bytes(node_guid());
    // One device in the "system": both GUIDs are the same.
    attr.sys_image_guid = attr.node_guid;
    attr.vendor_id = identity.vendor_id;
    attr.vendor_part_id = identity.part_id;
    attr.max_mr_size = MAX_MR_SIZE;
    // One bit per supported page size: every power of two from 4 KiB, as mlx5.
    attr.page_size_cap = !0xfff;
    attr.max_qp = int(MAX_QP);
    attr.max_qp_wr = int(MAX_QP_WR);
    attr.device_cap_flags = IBV_DEVICE_UD_AV_PORT_ENFORCE
        | IBV_DEVICE_CURR_QP_STATE_MOD
        | IBV_DEVICE_SYS_IMAGE_GUID
        | IBV_DEVICE_RC_RNR_NAK_GEN
        | IBV_DEVICE_XRC
        | IBV_DEVICE_MEM_WINDOW
        | IBV_DEVICE_MEM_WINDOW_TYPE_2B;
    if link_layer == LinkLayer::Ethernet {
        attr.device_cap_flags |= IBV_DEVICE_RAW_IP_CSUM | IBV_DEVICE_MANAGED_FLOW_STEERING;
    }
    attr.max_mw = int(MAX_MR);
    attr.max_mcast_grp = int(MAX_MCASTS);
    attr.max_mcast_qp_attach = int(MAX_MCASTS);
    attr.max_total_mcast_qp_attach = int(MAX_MCASTS);
    attr.max_sge = int(MAX_SGE);
    attr.max_sge_rd = int(MAX_SGE);
    attr.max_cq = int(MAX_CQ);
    attr.max_cqe = int(MAX_CQE);
    attr.max_mr = int(MAX_MR);
    attr.max_pd = int(MAX_PD);
    attr.max_qp_rd_atom = int(MAX_QP_RD_ATOM);
    attr.max_qp_init_rd_atom = int(MAX_QP_INIT_RD_ATOM);
    // Every queue pair may use its full share.
    attr.max_res_rd_atom = int(MAX_QP * MAX_QP_RD_ATOM);
    // Atomics on private memory are atomic only among the device's own.
    attr.atomic_cap = IBV_ATOMIC_HCA;
    attr.max_ah = int(MAX_AH);
    attr.max_srq = int(MAX_SRQ);
    attr.max_srq_wr = int(MAX_SRQ_WR);
    attr.max_srq_sge = int(MAX_SRQ_SGE);
    attr.max_pkeys = PKEY_TBL_LEN;
    // Coded, 4.096 µs × 2^15 = 134 ms: as Soft-RoCE (`RXE_LOCAL_CA_ACK_DELAY`), whose responder waits
    // for a scheduler as well.
    attr.local_ca_ack_delay = 15;
    attr.phys_port_cnt = PORT_NUM;
    attr
}

/// The device's clock in kHz: completions are stamped with nanoseconds.
const CORE_CLOCK_KHZ: u64 = 1_000_000;

/// Properties of the extensions: what `ibv_query_device_ex` fills in. What is zero is not supported.
pub(crate) fn device_attr_ex(identity: &Identity, link_layer: LinkLayer) -> ibv_device_attr_ex {
    let mut attr = ibv_device_attr_ex::zeroed();
    attr.orig_attr = device_attr(identity, link_layer);
    // Memory is not pinned: every page may be on demand.
    const TWO_SIDED: u32 = IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_SRQ_RECV;
    const WRITE: u32 = TWO_SIDED | IBV_ODP_SUPPORT_WRITE;
    attr.odp_caps.general_caps = u64::from(IBV_ODP_SUPPORT | IBV_ODP_SUPPORT_IMPLICIT);
    attr.cq_mod_caps.max_cq_count = u16::MAX;
    attr.cq_mod_caps.max_cq_period = u16::MAX;
    attr.odp_caps.per_transport_caps.rc_odp_caps =
        WRITE | IBV_ODP_SUPPORT_READ | IBV_ODP_SUPPORT_ATOMIC;
    attr.odp_caps.per_transport_caps.uc_odp_caps = WRITE;
    attr.odp_caps.per_transport_caps.ud_odp_caps = TWO_SIDED;
    attr.xrc_odp_caps = attr.odp_caps.per_transport_caps.rc_odp_caps;
    attr.completion_timestamp_mask = u64::MAX;
    attr.hca_core_clock = CORE_CLOCK_KHZ;
    attr.device_cap_flags_ex = u64::from(attr.orig_attr.device_cap_flags)
        | IBV_DEVICE_ATOMIC_WRITE
        | IBV_DEVICE_FLUSH_GLOBAL;
    attr.max_dm_size = MAX_DM_SIZE;
    attr.tm_caps = ibv_tm_caps {
        max_rndv_hdr_size: MAX_RNDV_HEADER,
        max_num_tags: MAX_TAGS,
        flags: IBV_TM_CAP_RC,
        max_ops: MAX_TAG_OPS,
        max_sge: MAX_SRQ_SGE,
    };
    if link_layer == LinkLayer::Ethernet {
        attr.raw_packet_caps = IBV_RAW_PACKET_CAP_IP_CSUM;
        attr.max_wq_type_rq = MAX_QP;
        attr.rss_caps = ibv_rss_caps {
            supported_qpts: 1 << IBV_QPT_RAW_PACKET,
            max_rwq_indirection_tables: MAX_QP,
            max_rwq_indirection_table_size: MAX_IND_TBL_SIZE,
            rx_hash_fields_mask: HASH_FIELDS,
            rx_hash_function: IBV_RX_HASH_FUNC_TOEPLITZ,
        };
    }
    attr.phys_port_cnt_ex = PORT_NUM.into();
    attr
}

/// A limit as the C ABI spells it.
fn int(limit: u32) -> c_int {
    c_int::try_from(limit).unwrap_or(c_int::MAX)
}

/// What the port presents itself as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkLayer {
    /// RoCEv2: peers are addressed by GIDs that are IP addresses.
    Ethernet,
    /// InfiniBand: peers are addressed by LIDs.
    InfiniBand,
}

impl LinkLayer {
    /// Reads the value of `VERBATIM_LINK_LAYER`: `roce` or `ethernet` (the default when unset), `ib` or
    /// `infiniband`, in any case (`ibv_devinfo` prints `InfiniBand` and `Ethernet`).
    fn from_value(value: Option<&OsStr>) -> Result<Self, PortError> {
        let Some(value) = value else {
            return Ok(Self::Ethernet);
        };
        let is = |name| value.eq_ignore_ascii_case(name);
        if is("roce") || is("ethernet") {
            Ok(Self::Ethernet)
        } else if is("ib") || is("infiniband") {
            Ok(Self::InfiniBand)
        } else {
            Err(PortError::UnknownLinkLayer {
                value: value.to_owned(),
            })
        }
    }
}

/// Why the port cannot be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum PortError {
    /// `VERBATIM_LINK_LAYER` has a value that means nothing.
    #[error(
        "{LINK_LAYER_VAR} is {value:?}: set it to `roce` or `ethernet` (the default), \
         or to `ib` or `infiniband`"
    )]
    UnknownLinkLayer {
        /// What it is set to.
        value: OsString,
    },
    /// The host's addresses cannot be read, and a RoCEv2 port's GIDs are made of them.
    #[error(
        "cannot list the addresses of the network interfaces: {0}; \
         {LINK_LAYER_VAR}=ib gives a port that needs none"
    )]
    Addresses(#[source] io::Error),
    /// The host's id cannot be read, of which the port's GUID is made.
    #[error("cannot read the host's id: {0}")]
    HostId(#[source] io::Error),
}

impl PortError {
    /// The errno for C callers: `EINVAL` for a bad value, else that of the system call.
    pub(crate) fn errno(&self) -> i32 {
        match self {
            Self::UnknownLinkLayer { .. } => EINVAL,
            Self::Addresses(error) | Self::HostId(error) => errno_of(error),
        }
    }
}

/// The device's one port.
///
/// A snapshot: an address that the host gets later is not in `gids`. GID 0 does not depend on addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Port {
    /// What it presents itself as.
    pub(crate) link_layer: LinkLayer,
    /// The filled entries of the GID table, from index 0: 1..=[`GID_TBL_LEN`] of them, in network order.
    pub(crate) gids: Vec<[u8; 16]>,
    /// The kernel's number of the interface that each of them belongs to; 0 for none.
    pub(crate) gid_interfaces: Vec<u32>,
    /// The LID on InfiniBand; 0, which is no port's LID, on Ethernet.
    pub(crate) lid: u16,
}

impl Port {
    /// The port of this host, with the link layer that `VERBATIM_LINK_LAYER` asks for.
    ///
    /// # Errors
    /// - [`PortError::UnknownLinkLayer`]: the variable has another value than `roce`, `ethernet`, `ib`,
    ///   `infiniband`.
    /// - [`PortError::Addresses`]: Ethernet, and the host's addresses cannot be read.
    /// - [`PortError::HostId`]: the host's id cannot be read now.
    pub(crate) fn from_env() -> Result<Self, PortError> {
        Self::of_value(std::env::var_os(LINK_LAYER_VAR).as_deref())
    }

    /// The port of this host, with the link layer of that value of `VERBATIM_LINK_LAYER`.
    ///
    /// # Errors
    /// As [`Port::from_env`].
    pub(crate) fn with_link_layer(value: &OsStr) -> Result<Self, PortError> {
        Self::of_value(Some(value))
    }

    fn of_value(value: Option<&OsStr>) -> Result<Self, PortError> {
        let link_layer = LinkLayer::from_value(value)?;
        let guid = read_node_guid().map_err(PortError::HostId)?;
        let addresses = match link_layer {
            LinkLayer::Ethernet => interface_addresses().map_err(PortError::Addresses)?,
            LinkLayer::InfiniBand => Vec::new(),
        };
        Ok(Self::new(link_layer, guid, addresses))
    }

    /// A port with this GUID on a host with these addresses.
    ///
    /// GID 0 is link-local, made of the GUID. On Ethernet there follow the IPv4 addresses (mapped into
    /// IPv6) and global IPv6 addresses, by interface, IPv4 first; 127.0.0.1 only if there is no other.
    fn new(link_layer: LinkLayer, guid: [u8; 8], mut addresses: Vec<InterfaceAddress>) -> Self {
        let mut gids = vec![link_local_gid(guid)];
        let mut gid_interfaces = vec![0];
        if link_layer == LinkLayer::Ethernet {
            addresses = usable(addresses);
            // A RoCE port belongs to an interface; GID 0 does to the first one.
            gid_interfaces[0] = addresses.first().map_or(0, InterfaceAddress::interface);
            for address in addresses {
                let gid = gid_of_ip(address.ip);
                if !gids.contains(&gid) && gids.len() < GID_TBL_LEN as usize {
                    gids.push(gid);
                    gid_interfaces.push(address.interface());
                }
            }
        }
        let lid = match link_layer {
            LinkLayer::Ethernet => 0,
            LinkLayer::InfiniBand => IB_LID,
        };
        Self {
            link_layer,
            gids,
            gid_interfaces,
            lid,
        }
    }

    /// Properties of the port: what `ibv_query_port` fills in.
    ///
    /// Width and speed are those of EDR 4X, 100 Gbit/s: there is no link to measure, and programs derive
    /// buffer sizes and protocol thresholds from them.
    pub(crate) fn attr(&self) -> ibv_port_attr {
        let mut attr = ibv_port_attr::zeroed();
        attr.state = IBV_PORT_ACTIVE;
        attr.max_mtu = IBV_MTU_4096;
        attr.active_mtu = IBV_MTU_4096;
        attr.gid_tbl_len = int(GID_TBL_LEN);
        attr.max_msg_sz = MAX_MSG_SZ;
        attr.pkey_tbl_len = PKEY_TBL_LEN;
        attr.lid = self.lid;
        // We are our own subnet manager; 0 on Ethernet, which has none.
        attr.sm_lid = self.lid;
        // VL0 only (IBTA vol. 1, 14.2.5.6, VLCap).
        attr.max_vl_num = 1;
        // Codes of IBTA vol. 1, 14.2.5.6, as `ibv_devinfo` prints them: 4X, 25 Gbit/s a lane, LinkUp.
        attr.active_width = 2;
        attr.active_speed = 32;
        attr.phys_state = 5;
        match self.link_layer {
            LinkLayer::Ethernet => {
                attr.link_layer = IBV_LINK_LAYER_ETHERNET;
                attr.port_cap_flags = IBV_PORT_IP_BASED_GIDS;
                // Every RoCE address vector needs a global route: ibv_query_port(3).
                attr.flags = IBV_QPF_GRH_REQUIRED;
            }
            LinkLayer::InfiniBand => {
                attr.link_layer = IBV_LINK_LAYER_INFINIBAND;
                attr.port_cap_flags = IBV_PORT_SYS_IMAGE_GUID_SUP;
                // Coded, 4.096 µs × 2^18 = 1.1 s: the default of OpenSM (`subnet_timeout`).
                attr.subnet_timeout = 18;
            }
        }
        attr
    }

    /// The GID at `index` in network order: all zeroes for an empty entry, `None` past the table's end.
    pub(crate) fn gid(&self, index: u32) -> Option<[u8; 16]> {
        (index < GID_TBL_LEN).then(|| self.filled_gid(index).unwrap_or_default())
    }

    /// The entry of the GID table at `index`, as `ibv_query_gid_ex` gives it; `None` if it is empty.
    ///
    /// The types are those of `ibv_query_gid_ex(3)`: RoCEv2 on Ethernet, IB on InfiniBand.
    pub(crate) fn gid_entry(&self, index: u32) -> Option<ibv_gid_entry> {
        let at = usize::try_from(index).ok()?;
        Some(ibv_gid_entry {
            gid: ibv_gid {
                raw: *self.gids.get(at)?,
            },
            gid_index: index,
            port_num: PORT_NUM.into(),
            gid_type: match self.link_layer {
                LinkLayer::Ethernet => IBV_GID_TYPE_ROCE_V2,
                LinkLayer::InfiniBand => IBV_GID_TYPE_IB,
            },
            ndev_ifindex: self.gid_interfaces.get(at).copied().unwrap_or(0),
        })
    }

    /// The `sl` of the completion at the receiver of a datagram.
    ///
    /// A RoCE packet has no service level. "The CQE includes […] a flag that indicates if the received frame is an
    /// IPv4, IPv6 or RoCE packet" (annex A17, 4.5.1); `ibv_wc` has no field for that, and mlx5 devices say it here:
    /// 8 for RoCEv2, 1 for IPv6, 2 for IPv4. UCX looks for the destination's address accordingly.
    pub(crate) fn completion_sl(&self, ah: &ibv_ah_attr, grh: Option<&[u8; 40]>) -> u8 {
        match (self.link_layer, grh.and_then(header_version)) {
            (LinkLayer::InfiniBand, _) => ah.sl,
            (LinkLayer::Ethernet, Some(Version::V4)) => 8 | 2,
            (LinkLayer::Ethernet, _) => 8 | 1,
        }
    }

    /// The P_Key at `index`, in host order; `None` past the table's end.
    pub(crate) fn pkey(&self, index: u32) -> Option<u16> {
        (index < u32::from(PKEY_TBL_LEN)).then_some(DEFAULT_PKEY)
    }

    /// Whether an address vector is one that this port can send with.
    ///
    /// # Errors
    /// `EINVAL`: `port_num` is not 1; `sgid_index` of a global route is past the table's end or names an
    /// empty entry; no global route on Ethernet (annex A17: every RoCEv2 packet has an IP header).
    ///
    /// Source: `rdma_check_ah_attr` in `linux:drivers/infiniband/core/verbs.c`.
    pub(crate) fn check_ah(&self, ah: &ibv_ah_attr) -> Result<(), i32> {
        let routed = match (ah.is_global != 0, self.link_layer) {
            (true, _) => self.filled_gid(ah.grh.sgid_index.into()).is_some(),
            (false, LinkLayer::InfiniBand) => true,
            (false, LinkLayer::Ethernet) => false,
        };
        if ah.port_num == PORT_NUM && routed {
            Ok(())
        } else {
            Err(EINVAL)
        }
    }

    /// Whether the destination of an address vector that passes [`check_ah`](Self::check_ah) can have an address on the
    /// link: `ibv_modify_qp` resolves it. On InfiniBand a subnet manager's routes decide, and nothing is asked here.
    ///
    /// # Errors
    /// - `EINVAL`: source and destination are of different address families.
    /// - `ETIMEDOUT`: a link-local GID that this host does not have, and so no neighbour either. Soft-RoCE says so after
    ///   a second of neighbour discovery.
    ///
    /// Source: `ib_resolve_eth_dmac` in `linux:drivers/infiniband/core/verbs.c`, `addr_resolve` in
    /// `linux:drivers/infiniband/core/addr.c`.
    pub(crate) fn resolve(&self, ah: &ibv_ah_attr) -> Result<(), i32> {
        let source = self.filled_gid(ah.grh.sgid_index.into());
        let (LinkLayer::Ethernet, Some(source)) = (self.link_layer, source) else {
            return Ok(());
        };
        let gid = raw(&ah.grh.dgid);
        let (ipv4, ipv6) = (mapped_ipv4(gid), Ipv6Addr::from(gid));
        if ipv6.is_multicast() || ipv4.is_some_and(|ip| Ipv4Addr::from(ip).is_multicast()) {
            return Ok(());
        }
        if ipv4.is_some() != mapped_ipv4(source).is_some() {
            return Err(EINVAL);
        }
        if gid[..8] == LINK_LOCAL_PREFIX && !self.gids.contains(&gid) {
            return Err(ETIMEDOUT);
        }
        Ok(())
    }

    /// Whether the destination of an address vector is this very port.
    ///
    /// The destination GID of a global route decides, also on InfiniBand: ports of different hosts may
    /// have the same LID here, and a port drops what is routed to a GID that it does not have
    /// (IBTA vol. 1, 9.6.1.2). Without one, the destination LID does.
    pub(crate) fn reaches(&self, ah: &ibv_ah_attr) -> bool {
        if ah.is_global != 0 {
            self.gids.contains(&raw(&ah.grh.dgid))
        } else {
            self.link_layer == LinkLayer::InfiniBand && ah.dlid == self.lid
        }
    }

    /// The 40 bytes that a UD receive has in front of the payload when this port sends with `ah`; the
    /// length is 0 until [`set_grh_length`]. `None` without a global route, or if `sgid_index` names
    /// no GID: then the receiver's 40 bytes are undefined and its completion has no `IBV_WC_GRH`.
    ///
    /// - InfiniBand: a GRH (IBTA vol. 1, 8.3).
    /// - RoCEv2 between IPv4-mapped GIDs: an IPv4 header in the last 20 bytes (annex A17), the first
    ///   20 undefined. We write zeroes there, so that no reader finds the version 6 in them.
    /// - RoCEv2 otherwise: an IPv6 header (annex A17), which differs from a GRH in the next header.
    pub(crate) fn grh(&self, ah: &ibv_ah_attr) -> Option<[u8; 40]> {
        if ah.is_global == 0 {
            return None;
        }
        let sgid = self.filled_gid(ah.grh.sgid_index.into())?;
        let dgid = raw(&ah.grh.dgid);
        let mut grh = [0; 40];
        if self.link_layer == LinkLayer::Ethernet
            && let (Some(source), Some(destination)) = (mapped_ipv4(sgid), mapped_ipv4(dgid))
        {
            let ip = &mut grh[IPV4_AT..];
            ip[0] = IPV4_VERSION_IHL;
            ip[1] = ah.grh.traffic_class;
            // Don't fragment: annex A17. The identification stays 0 (RFC 6864, 4.1).
            ip[6] = 0x40;
            ip[8] = ip_hop_limit(ah.grh.hop_limit);
            ip[9] = NEXT_HEADER_UDP;
            ip[12..16].copy_from_slice(&source);
            ip[16..20].copy_from_slice(&destination);
            set_grh_length(&mut grh, 0);
            return Some(grh);
        }
        let word =
            6 << 28 | u32::from(ah.grh.traffic_class) << 20 | (ah.grh.flow_label & FLOW_LABEL_MASK);
        grh[0..4].copy_from_slice(&word.to_be_bytes());
        (grh[6], grh[7]) = match self.link_layer {
            LinkLayer::Ethernet => (NEXT_HEADER_UDP, ip_hop_limit(ah.grh.hop_limit)),
            LinkLayer::InfiniBand => (NEXT_HEADER_IBA, ah.grh.hop_limit),
        };
        grh[8..24].copy_from_slice(&sgid);
        grh[24..40].copy_from_slice(&dgid);
        set_grh_length(&mut grh, 0);
        Some(grh)
    }

    /// The GID at `index`, if there is one.
    fn filled_gid(&self, index: u32) -> Option<[u8; 16]> {
        self.gids.get(usize::try_from(index).ok()?).copied()
    }

    /// Index of one of our GIDs in the table.
    fn index_of(&self, gid: [u8; 16]) -> Option<u8> {
        self.gids
            .iter()
            .position(|&ours| ours == gid)?
            .try_into()
            .ok()
    }
}

/// Where the IPv4 header starts in the 40 bytes: annex A17, and `ibv_init_ah_from_wc` reads it there.
const IPV4_AT: usize = 20;
/// Version 4, five 32-bit words: RFC 791, 3.1, without options (annex A17).
const IPV4_VERSION_IHL: u8 = 0x45;
/// Bytes of an IPv4 header without options.
const IPV4_BYTES: u16 = 20;
/// Bytes of a UDP header: RFC 768.
const UDP_BYTES: u16 = 8;
/// UDP in an IP header: IANA's protocol numbers.
const NEXT_HEADER_UDP: u8 = 17;
/// The IBA transport in a GRH: IBTA vol. 1, 8.3 (NxtHdr).
const NEXT_HEADER_IBA: u8 = 0x1b;
/// The 20 bits of a flow label: IBTA vol. 1, 8.3; RFC 8200, 3.
const FLOW_LABEL_MASK: u32 = 0xf_ffff;

/// Time to live on the wire: IP sends nothing with 0, and the kernel replaces what a program gave by
/// the route's value, 64 by default (`ib_resolve_unicast_gid_dmac`; `net.ipv4.ip_default_ttl`).
fn ip_hop_limit(hop_limit: u8) -> u8 {
    if hop_limit == 0 { 64 } else { hop_limit }
}

/// Bytes of a UD packet from BTH to ICRC, as lengths count it, for a message of `payload_bytes` (a UD
/// message is one packet, so at most the MTU).
///
/// BTH 12, DETH 8, ImmDt 4 if there is an immediate, the payload padded to 4, ICRC 4: IBTA vol. 1,
/// 5.2 and 9.2. What does not fit 16 bits is 65535; no MTU lets it happen.
pub(crate) fn ud_packet_bytes(payload_bytes: u16, imm: bool) -> u16 {
    let headers = 12 + 8 + if imm { 4 } else { 0 };
    let bytes = headers + u32::from(payload_bytes).next_multiple_of(4) + 4;
    u16::try_from(bytes).unwrap_or(u16::MAX)
}

/// Enters the length of the packet: `bytes` from BTH to ICRC, see [`ud_packet_bytes`].
///
/// A GRH's PayLen is exactly that (IBTA vol. 1, 8.3). An IPv6 payload length adds the UDP header, an IPv4
/// total length also its own 20 bytes; the IPv4 checksum follows.
pub(crate) fn set_grh_length(grh: &mut [u8; 40], bytes: u16) {
    match header_version(grh) {
        Some(Version::V6) => {
            let udp = if grh[6] == NEXT_HEADER_UDP {
                UDP_BYTES
            } else {
                0
            };
            grh[4..6].copy_from_slice(&bytes.saturating_add(udp).to_be_bytes());
        }
        Some(Version::V4) => {
            let ip = &mut grh[IPV4_AT..];
            ip[2..4].copy_from_slice(&bytes.saturating_add(IPV4_BYTES + UDP_BYTES).to_be_bytes());
            ip[10..12].fill(0);
            let checksum = !ones_complement_sum(ip);
            ip[10..12].copy_from_slice(&checksum.to_be_bytes());
        }
        None => {}
    }
}

/// Which header the 40 bytes hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    /// IPv4, in the last 20 bytes.
    V4,
    /// IPv6 or a GRH, which has the same layout (IBTA vol. 1, 8.3).
    V6,
}

/// Which header the 40 bytes hold; `None` if neither.
///
/// Follows `get_grh_header_version` of rdma-core's `libibverbs/verbs.c`: the bytes in front of an IPv4
/// header are undefined and may happen to look like version 6, so an IPv4 header with a right checksum
/// is believed. There the version nibble is not looked at in that case; here it must be 4, which no
/// IPv4 header fails and fewer IPv6 addresses pass.
fn header_version(grh: &[u8; 40]) -> Option<Version> {
    let ip = &grh[IPV4_AT..];
    if grh[0] >> 4 != 6 {
        return (ip[0] >> 4 == 4).then_some(Version::V4);
    }
    // The sum over a header with a right checksum in it is all ones: RFC 1071, 1.
    if ip[0] == IPV4_VERSION_IHL && ones_complement_sum(ip) == 0xffff {
        Some(Version::V4)
    } else {
        Some(Version::V6)
    }
}

/// The one's complement sum of big-endian 16-bit words: RFC 1071, 1.
fn ones_complement_sum(bytes: &[u8]) -> u16 {
    bytes.as_chunks::<2>().0.iter().fold(0, |sum: u16, &word| {
        let (sum, carry) = sum.overflowing_add(u16::from_be_bytes(word));
        sum + u16::from(carry)
    })
}

/// The address vector for an answer to a UD receive: what `ibv_init_ah_from_wc` fills in.
///
/// `dlid`, `sl` and `src_path_bits` come from the completion; with `IBV_WC_GRH` also a global route from
/// the 40 bytes in front of the payload: back to its source, from the GID that it was sent to.
///
/// # Errors
/// - `EINVAL`: `port_num` is not 1; the header's destination is a multicast address, or none of our GIDs.
/// - `EPROTONOSUPPORT`: the 40 bytes are neither an IPv4 header, an IPv6 header with UDP, nor a GRH.
///
/// Source: `ibv_create_ah_from_wc(3)`, and `ibv_init_ah_from_wc` in rdma-core's `libibverbs/verbs.c`.
pub(crate) fn init_ah_from_wc(
    port: &Port,
    port_num: u8,
    wc: &ibv_wc,
    grh: &[u8; 40],
) -> Result<ibv_ah_attr, i32> {
    if port_num != PORT_NUM {
        return Err(EINVAL);
    }
    let mut ah = ibv_ah_attr::zeroed();
    ah.dlid = wc.slid;
    ah.sl = wc.sl;
    ah.src_path_bits = wc.dlid_path_bits;
    ah.port_num = port_num;
    if wc.wc_flags & IBV_WC_GRH == 0 {
        return Ok(ah);
    }

    let word = u32::from_be_bytes([grh[0], grh[1], grh[2], grh[3]]);
    ah.is_global = 1;
    ah.grh.flow_label = word & FLOW_LABEL_MASK;
    let (source, destination, link_layer) = match header_version(grh) {
        Some(Version::V4) => {
            let ip = &grh[IPV4_AT..];
            let source = Ipv4Addr::new(ip[12], ip[13], ip[14], ip[15]);
            let destination = Ipv4Addr::new(ip[16], ip[17], ip[18], ip[19]);
            if destination.is_multicast() {
                return Err(EINVAL);
            }
            ah.grh.traffic_class = ip[1];
            ah.grh.hop_limit = ip[8];
            (
                gid_of_ip(source.into()),
                gid_of_ip(destination.into()),
                LinkLayer::Ethernet,
            )
        }
        Some(Version::V6) => {
            // Bits 20 to 27 of the first word.
            ah.grh.traffic_class = grh[0] << 4 | grh[1] >> 4;
            ah.grh.hop_limit = grh[7];
            let (mut source, mut destination) = ([0; 16], [0; 16]);
            source.copy_from_slice(&grh[8..24]);
            destination.copy_from_slice(&grh[24..40]);
            // Multicast GIDs start with 0xff: IBTA vol. 1, 4.1.1.
            if destination[0] == 0xff {
                return Err(EINVAL);
            }
            match grh[6] {
                NEXT_HEADER_UDP => (source, destination, LinkLayer::Ethernet),
                NEXT_HEADER_IBA => (source, destination, LinkLayer::InfiniBand),
                _ => return Err(libc::EPROTONOSUPPORT),
            }
        }
        None => return Err(libc::EPROTONOSUPPORT),
    };
    // The GID's type has to match the header's, too; all GIDs of a port have the same.
    if link_layer != port.link_layer {
        return Err(EINVAL);
    }
    ah.grh.dgid = ibv_gid { raw: source };
    ah.grh.sgid_index = port.index_of(destination).ok_or(EINVAL)?;
    Ok(ah)
}

/// The link-local GID of a GUID: IBTA vol. 1, 4.1.1.
fn link_local_gid(guid: [u8; 8]) -> [u8; 16] {
    let mut gid = [0; 16];
    gid[..8].copy_from_slice(&LINK_LOCAL_PREFIX);
    gid[8..].copy_from_slice(&guid);
    gid
}

/// The GID of an address: an IPv6 address as it is, an IPv4 address as ::ffff:a.b.c.d (annex A17;
/// RFC 4291, 2.5.5.2).
fn gid_of_ip(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

/// The IPv4 address in a GID, if it is one.
fn mapped_ipv4(gid: [u8; 16]) -> Option<[u8; 4]> {
    Ipv6Addr::from(gid).to_ipv4_mapped().map(|ip| ip.octets())
}

/// The bytes of a GID.
#[allow(unsafe_code)]
fn raw(gid: &ibv_gid) -> [u8; 16] {
    // SAFETY: both members of the union are 16 bytes of plain integers without padding, so `raw` is
    // readable whichever was written; the reference promises that one was.
    unsafe { gid.raw }
}

/// An address of a network interface that is up. Orders by interface, then IPv4 before IPv6.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct InterfaceAddress {
    /// The kernel's number of the interface; `u32::MAX` if it cannot be read.
    if_index: u32,
    /// Its name.
    if_name: String,
    /// The address.
    ip: IpAddr,
}

impl InterfaceAddress {
    /// The kernel's number of the interface; 0 if it cannot be read.
    fn interface(&self) -> u32 {
        if self.if_index == u32::MAX {
            0
        } else {
            self.if_index
        }
    }
}

/// Whether an address names this host to others: neither loopback nor unspecified, not multicast, and
/// for IPv6 neither link-local (GID 0 is that) nor a mapped IPv4 address.
fn is_global(ip: &IpAddr) -> bool {
    let special = ip.is_loopback() || ip.is_unspecified() || ip.is_multicast();
    !special
        && match ip {
            IpAddr::V4(_) => true,
            IpAddr::V6(ip) => !ip.is_unicast_link_local() && ip.to_ipv4_mapped().is_none(),
        }
}

/// Those of `addresses` by which others know this host, by interface and IPv4 first; 127.0.0.1 if there is no other.
fn usable(mut addresses: Vec<InterfaceAddress>) -> Vec<InterfaceAddress> {
    // By kernel index, so that the host's first interface stays in front of bridges made later.
    addresses.sort();
    let known = addresses.iter().any(|a| is_global(&a.ip));
    addresses.retain(|a| {
        if known {
            is_global(&a.ip)
        } else {
            a.ip == Ipv4Addr::LOCALHOST
        }
    });
    addresses
}

/// Name and number of the network interface that stands beside the port: the first one whose addresses the
/// connection manager takes for the port's. On InfiniBand the kernel would have IP over InfiniBand there.
pub(crate) fn network_interface() -> Option<(String, u32)> {
    let first = usable(interface_addresses().ok()?).into_iter().next()?;
    let number = first.interface();
    Some((first.if_name, number))
}

/// The addresses of all network interfaces that are up, in the kernel's order.
///
/// By `getifaddrs(3)`: /proc/net/fib_trie does not say which interface an address belongs to, and is
/// missing in some containers.
#[allow(unsafe_code)]
fn interface_addresses() -> io::Result<Vec<InterfaceAddress>> {
    let mut list: *mut libc::ifaddrs = ptr::null_mut();
    // SAFETY: `list` is a place for one pointer.
    if unsafe { libc::getifaddrs(&raw mut list) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut addresses = Vec::new();
    let mut next = list;
    while !next.is_null() {
        // SAFETY: getifaddrs succeeded, so `next` is an entry of its list, which nobody changes and
        // which is freed only below this loop; the reference does not leave the loop.
        let entry = unsafe { &*next };
        next = entry.ifa_next;
        // IFF_UP is bit 0; an interface without an address has NULL: getifaddrs(3).
        if entry.ifa_flags & libc::IFF_UP.cast_unsigned() == 0 || entry.ifa_addr.is_null() {
            continue;
        }
        // SAFETY: not null (above), so it points to a `sockaddr` of the list; every kind starts with its
        // family, and a `sockaddr_in` or `sockaddr_in6` stands where the family says so. Read
        // unaligned, because only a `sockaddr`'s alignment is promised.
        let ip = unsafe {
            match c_int::from((*entry.ifa_addr).sa_family) {
                libc::AF_INET => {
                    let address = entry.ifa_addr.cast::<libc::sockaddr_in>().read_unaligned();
                    IpAddr::from(address.sin_addr.s_addr.to_ne_bytes())
                }
                libc::AF_INET6 => {
                    let address = entry.ifa_addr.cast::<libc::sockaddr_in6>().read_unaligned();
                    IpAddr::from(address.sin6_addr.s6_addr)
                }
                _ => continue,
            }
        };
        // SAFETY: the name of an entry is a string that lives as long as the list.
        let if_name = unsafe { CStr::from_ptr(entry.ifa_name.cast::<c_char>()) };
        let if_name = if_name.to_string_lossy().into_owned();
        addresses.push(InterfaceAddress {
            if_index: interface_index(&if_name),
            if_name,
            ip,
        });
    }
    // SAFETY: `list` came from getifaddrs and is freed once; everything kept of it was copied.
    unsafe { libc::freeifaddrs(list) };
    Ok(addresses)
}

/// The kernel's number of an interface; `u32::MAX` if there is no saying.
fn interface_index(name: &str) -> u32 {
    // A label (`eth0:1`) belongs to the interface before the colon: ip-address(8).
    let device = name.split(':').next().unwrap_or(name);
    fs::read_to_string(format!("/sys/class/net/{device}/ifindex"))
        .ok()
        .and_then(|index| index.trim().parse().ok())
        .unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
