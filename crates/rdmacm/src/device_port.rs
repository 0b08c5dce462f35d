//! The ports of devices that ids are bound to, and the attributes of queue pairs that follow from a connection.

use std::ffi::c_int;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ptr;
use std::sync::Mutex;

use verbs_abi::*;

use crate::addr::{IdAddress, gid_of_ip};
use crate::connection_params::ConnectionParams;
use crate::errno::{Errno, INVALID, Result};
use crate::lock::lock;
use crate::wire::{NegotiatedParams, QpAddress};

/// The default P_Key, which is the same in both byte orders.
pub const DEFAULT_PKEY: u16 = u16::MAX;

/// Default ACK timeout, coded: 4.096 µs × 2^19, as Linux derives it from RoCE's packet lifetime.
pub(crate) const DEFAULT_ACK_TIMEOUT_CODE: u8 = 19;
/// Hop limit of every connection, as Linux uses it for RoCE (`IPV6_DEFAULT_HOPLIMIT`).
pub(crate) const HOP_LIMIT: u8 = 64;

/// A port of an open device. All ports of a device have the same context and protection domain.
pub struct DevicePort {
    /// Functions of libibverbs.
    pub verbs: &'static Symbols,
    /// Device context, which stays open until the process ends.
    pub context: *mut ibv_context,
    /// Protection domain of ids for which the program has given none.
    pub pd: *mut ibv_pd,
    /// It closes them.
    owns_context_and_pd: bool,
    /// Number of the port, from 1 (`ibv_query_port(3)`).
    pub(crate) port_num: u8,
    /// XRC domain of ids for which the program has given none; made when first needed.
    xrcd: Mutex<XrcDomain>,
    pub(crate) link_layer: u8,
    /// MTU of the port.
    pub active_mtu: ibv_mtu,
    lid: u16,
    gids: Vec<[u8; 16]>,
    /// GUID of the node, in host byte order.
    pub(crate) node_guid: u64,
    /// P_Key table, in host byte order.
    pkeys: Vec<u16>,
    pub(crate) max_responder_resources: u8,
    pub(crate) max_initiator_depth: u8,
}

struct XrcDomain(*mut ibv_xrcd);

// SAFETY: handles of libibverbs may be used from any thread, and all operations of this module are thread-safe.
unsafe impl Send for DevicePort {}
// SAFETY: as above; the only field that changes is behind a lock.
unsafe impl Sync for DevicePort {}

impl Drop for DevicePort {
    fn drop(&mut self) {
        if !self.owns_context_and_pd {
            return;
        }
        // SAFETY: made by `of_context`, and closed once.
        unsafe {
            (self.verbs.ibv_dealloc_pd)(self.pd);
            (self.verbs.ibv_close_device)(self.context);
        }
    }
}

impl DevicePort {
    /// Opens all devices: their ports, those of the first device first. At least one.
    ///
    /// # Errors
    /// `ENODEV` where there is no device, and what opening one says.
    pub(crate) fn open_all(verbs: &'static Symbols) -> Result<Vec<Self>> {
        // SAFETY: libibverbs' functions, each called as its man page requires.
        unsafe {
            let mut count = 0;
            let list = (verbs.ibv_get_device_list)(&raw mut count);
            if list.is_null() {
                let failure = last_errno();
                let short = failure.is_resource_shortage();
                return Err(if short { failure } else { Errno(libc::ENODEV) });
            }
            let mut ports = Vec::new();
            let mut opened = Ok(());
            for index in 0..usize::try_from(count).unwrap_or(0) {
                let context = (verbs.ibv_open_device)(*list.add(index));
                opened = match context.is_null() {
                    true => Err(last_errno()),
                    false => Self::add_ports(verbs, context, &mut ports),
                };
                if opened.is_err() {
                    break;
                }
            }
            (verbs.ibv_free_device_list)(list);
            opened?;
            match ports.is_empty() {
                true => Err(Errno(libc::ENODEV)),
                false => Ok(ports),
            }
        }
    }

    /// Adds the ports of a device that was just opened.
    ///
    /// # Safety
    /// `context` is an open device of `verbs`, and nobody else's.
    unsafe fn add_ports(
        verbs: &'static Symbols,
        context: *mut ibv_context,
        ports: &mut Vec<Self>,
    ) -> Result {
        let mut attr = ibv_device_attr::zeroed();
        // SAFETY: contract of this function; a place for what is asked.
        unsafe {
            let asked = check_returned_errno((verbs.ibv_query_device)(context, &raw mut attr));
            let pd = match asked {
                Ok(()) => (verbs.ibv_alloc_pd)(context),
                Err(_) => ptr::null_mut(),
            };
            if pd.is_null() {
                let failure = asked.err().unwrap_or_else(last_errno);
                (verbs.ibv_close_device)(context);
                return Err(failure);
            }
            for port_num in 1..=attr.phys_port_cnt.max(1) {
                let port = Self::from_port_query(verbs, (context, pd), &attr, port_num);
                if port.is_err() && port_num == 1 {
                    // The first port closes the device, and there is none.
                    (verbs.ibv_dealloc_pd)(pd);
                    (verbs.ibv_close_device)(context);
                }
                ports.push(port?);
            }
        }
        Ok(())
    }

    /// # Safety
    /// `context` is an open device of `verbs`, with the attributes `device`, and `pd` a protection domain of it.
    unsafe fn from_port_query(
        verbs: &'static Symbols,
        (context, pd): (*mut ibv_context, *mut ibv_pd),
        device: &ibv_device_attr,
        port_num: u8,
    ) -> Result<Self> {
        let mut port = ibv_port_attr::zeroed();
        // SAFETY: contract of this function; the pointers lead to places for the results.
        unsafe {
            check_returned_errno((verbs.ibv_query_port)(context, port_num, &raw mut port))?;
            let mut gids = Vec::new();
            for index in 0..port.gid_tbl_len {
                let mut gid = ibv_gid::zeroed();
                let failed = (verbs.ibv_query_gid)(context, port_num, index, &raw mut gid) != 0;
                // Filled entries come first. All bytes of a GID are initialized, whichever union member they were
                // written through.
                if failed || gid.raw == [0; 16] {
                    break;
                }
                gids.push(gid.raw);
            }
            let mut pkeys = Vec::new();
            for index in 0..c_int::from(port.pkey_tbl_len) {
                let mut pkey = 0;
                check_returned_errno((verbs.ibv_query_pkey)(
                    context,
                    port_num,
                    index,
                    &raw mut pkey,
                ))?;
                pkeys.push(u16::from_be(pkey));
            }
            Ok(Self {
                verbs,
                context,
                pd,
                owns_context_and_pd: port_num == 1,
                port_num,
                xrcd: Mutex::new(XrcDomain(ptr::null_mut())),
                link_layer: port.link_layer,
                active_mtu: port.active_mtu,
                lid: port.lid,
                node_guid: u64::from_be(device.node_guid),
                gids,
                pkeys,
                max_responder_resources: u8::try_from(device.max_qp_rd_atom).unwrap_or(u8::MAX),
                max_initiator_depth: u8::try_from(device.max_qp_init_rd_atom).unwrap_or(u8::MAX),
            })
        }
    }

    /// Returns the XRC domain shared by ids for which the program has given none.
    pub(crate) fn xrcd(&self) -> Result<*mut ibv_xrcd> {
        let mut xrcd = lock(&self.xrcd);
        if xrcd.0.is_null() {
            let mut attr = ibv_xrcd_init_attr::zeroed();
            attr.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
            attr.fd = -1;
            attr.oflags = libc::O_CREAT;
            // SAFETY: the device is open, and the attributes have the right type.
            unsafe {
                let extended = verbs_get_ctx(self.context);
                let open = extended.as_ref().and_then(|x| x.open_xrcd);
                let open = open.ok_or(Errno(libc::EOPNOTSUPP))?;
                xrcd.0 = open(self.context, &raw mut attr);
            }
            if xrcd.0.is_null() {
                return Err(last_errno());
            }
        }
        Ok(xrcd.0)
    }

    /// Returns the index of the GID table's entry for the local address `own`. An IP address without an entry (in the
    /// loopback network) uses the first entry that is not link-local. Another GID uses the first entry
    /// (`cma_bind_loopback` of `linux:drivers/infiniband/core/cma.c`).
    fn gid_index(&self, own: IdAddress) -> usize {
        let position = |gid: [u8; 16]| self.gids.iter().position(|&g| g == gid);
        let ip = match own {
            IdAddress::Ip(addr) => addr.ip(),
            IdAddress::Ib(addr) => return position(addr.gid).unwrap_or(0),
        };
        let gid = gid_of_ip(ip);
        let link_local = |gid: &[u8; 16]| Ipv6Addr::from(*gid).is_unicast_link_local();
        position(gid)
            .or_else(|| self.gids.iter().position(|g| !link_local(g)))
            .unwrap_or(0)
    }

    /// Returns the GID of the local address `own`.
    pub(crate) fn gid(&self, own: IdAddress) -> [u8; 16] {
        self.gids
            .get(self.gid_index(own))
            .copied()
            .unwrap_or_default()
    }

    /// Whether an own address is one of the port's.
    pub(crate) fn has_address(&self, own: IdAddress) -> bool {
        self.has_gid(&match own {
            IdAddress::Ip(addr) => gid_of_ip(addr.ip()),
            IdAddress::Ib(addr) => addr.gid,
        })
    }

    /// LID of the port; 0 on Ethernet.
    pub(crate) fn lid(&self) -> u16 {
        self.lid
    }

    /// Returns true if the port has this GID.
    pub(crate) fn has_gid(&self, gid: &[u8; 16]) -> bool {
        self.gids.contains(gid)
    }

    /// Returns the GIDs of the port.
    pub(crate) fn gids(&self) -> &[[u8; 16]] {
        &self.gids
    }

    /// Returns true if the link layer is InfiniBand; addresses of `AF_IB` can be bound only to such ports.
    pub(crate) fn is_infiniband(&self) -> bool {
        self.link_layer == IBV_LINK_LAYER_INFINIBAND
    }

    /// Returns the index of the P_Key of the local address `own`: as a full member if the port is one, else as a
    /// limited member (IBTA vol. 1, 10.9.1). IP addresses are in the default partition.
    ///
    /// # Errors
    /// `ENOENT` if the port is not in the partition.
    pub(crate) fn pkey_index(&self, own: IdAddress) -> Result<u16> {
        const FULL_MEMBER: u16 = 0x8000;
        let pkey = match own {
            IdAddress::Ip(_) => DEFAULT_PKEY,
            IdAddress::Ib(addr) => addr.pkey,
        };
        let find = |pkey: u16| self.pkeys.iter().position(|&k| k == pkey);
        find(pkey | FULL_MEMBER)
            .or_else(|| find(pkey & !FULL_MEMBER))
            .and_then(|index| u16::try_from(index).ok())
            .ok_or(Errno(libc::ENOENT))
    }

    /// Returns the address of a queue pair of this device, for the local address `own`.
    #[must_use]
    pub fn qp_address_of(&self, own: IdAddress, qpn: u32, psn: u32) -> QpAddress {
        QpAddress {
            qpn,
            first_psn_from_peer: psn,
            lid: self.lid,
            gid: self.gid(own),
            qkey: RDMA_UDP_QKEY,
        }
    }

    /// Returns the address vector from the local address `from` to `to`.
    #[must_use]
    pub fn address_vector(&self, from: IdAddress, to: &QpAddress) -> ibv_ah_attr {
        let mut av = ibv_ah_attr::zeroed();
        av.port_num = self.port_num;
        av.dlid = to.lid;
        av.grh.dgid = ibv_gid { raw: to.gid };
        av.grh.sgid_index = u8::try_from(self.gid_index(from)).unwrap_or(0);
        av.grh.hop_limit = HOP_LIMIT;
        av.is_global = u8::from(self.link_layer == IBV_LINK_LAYER_ETHERNET);
        av
    }

    /// Returns the port's IPv4 loopback address, if the port has one.
    pub(crate) fn loopback_address(&self) -> Option<IpAddr> {
        let mut mapped = self
            .gids
            .iter()
            .filter_map(|gid| Ipv6Addr::from(*gid).to_ipv4_mapped());
        mapped.find(Ipv4Addr::is_loopback).map(IpAddr::from)
    }

    /// The path record from one of the own addresses to a port with the GID `dgid` and the LID `dlid`.
    pub(crate) fn path_record(
        &self,
        from: IdAddress,
        dgid: [u8; 16],
        dlid: u16,
    ) -> ibv_sa_path_rec {
        let mut path = ibv_sa_path_rec::zeroed();
        path.sgid = ibv_gid {
            raw: self.gid(from),
        };
        path.dgid = ibv_gid { raw: dgid };
        path.slid = self.lid.to_be();
        path.dlid = dlid.to_be();
        path.hop_limit = HOP_LIMIT;
        path.reversible = 1;
        path.numb_path = 1;
        path.pkey = DEFAULT_PKEY;
        if let IdAddress::Ib(from) = from {
            path.pkey = from.pkey.to_be();
            // The traffic class is above the 20 bits of the flow label: `cma_query_ib_route` of
            // `linux:drivers/infiniband/core/cma.c`.
            path.traffic_class = (from.flowinfo >> 20) as u8;
        }
        // Selector 2 means "exactly".
        path.mtu_selector = 2;
        path.mtu = u8::try_from(self.active_mtu).unwrap_or(0);
        path.rate_selector = 2;
        path.rate = u8::try_from(IBV_RATE_100_GBPS).unwrap_or(0);
        path.packet_life_time_selector = 2;
        path.packet_life_time = DEFAULT_ACK_TIMEOUT_CODE - 1;
        path
    }

    /// Returns the attributes and their mask for moving a queue pair to `state`: `rdma_init_qp_attr(3)`.
    ///
    /// # Errors
    /// `EINVAL` for a state other than INIT, RTR and RTS, `ENOENT` if the port is not in the partition of `from`.
    pub(crate) fn qp_attr(
        &self,
        state: ibv_qp_state,
        qp_type: ibv_qp_type,
        from: IdAddress,
        ends: &ConnectionParams,
        ack_timeout: Option<u8>,
    ) -> Result<(ibv_qp_attr, c_int)> {
        if qp_type == IBV_QPT_UD {
            return self.datagram_qp_attr(state, from);
        }
        match state {
            IBV_QPS_INIT => self.qp_attr_for_init(from, &ends.params),
            IBV_QPS_RTR => Ok(self.qp_attr_for_rtr(qp_type, from, ends)),
            IBV_QPS_RTS => Ok(qp_attr_for_rts(qp_type, ends, ack_timeout)),
            _ => Err(INVALID),
        }
    }

    /// Returns the attributes and their mask for moving a UD queue pair to `state`.
    ///
    /// # Errors
    /// As for connected queue pairs.
    pub fn datagram_qp_attr(
        &self,
        state: ibv_qp_state,
        from: IdAddress,
    ) -> Result<(ibv_qp_attr, c_int)> {
        let mut attr = ibv_qp_attr::zeroed();
        attr.qp_state = state;
        let mask = match state {
            IBV_QPS_INIT => {
                attr.pkey_index = self.pkey_index(from)?;
                attr.port_num = self.port_num;
                attr.qkey = RDMA_UDP_QKEY;
                IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY
            }
            IBV_QPS_RTR => 0,
            IBV_QPS_RTS => IBV_QP_SQ_PSN,
            _ => return Err(INVALID),
        };
        Ok((attr, mask | IBV_QP_STATE))
    }

    fn qp_attr_for_init(
        &self,
        from: IdAddress,
        params: &NegotiatedParams,
    ) -> Result<(ibv_qp_attr, c_int)> {
        let mut attr = ibv_qp_attr::zeroed();
        attr.qp_state = IBV_QPS_INIT;
        attr.pkey_index = self.pkey_index(from)?;
        attr.port_num = self.port_num;
        attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE.cast_unsigned();
        if params.responder_resources > 0 {
            attr.qp_access_flags |=
                (IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC).cast_unsigned();
        }
        let mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
        Ok((attr, mask))
    }

    fn qp_attr_for_rtr(
        &self,
        qp_type: ibv_qp_type,
        from: IdAddress,
        ends: &ConnectionParams,
    ) -> (ibv_qp_attr, c_int) {
        let mut attr = ibv_qp_attr::zeroed();
        attr.qp_state = IBV_QPS_RTR;
        attr.ah_attr = self.address_vector(from, &ends.remote_qp);
        attr.path_mtu = match ends.path_mtu_code {
            0 => self.active_mtu,
            mtu => mtu.into(),
        };
        attr.dest_qp_num = ends.remote_qp.qpn;
        attr.rq_psn = ends.local_qp.first_psn_from_peer;
        let mut mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
        if is_reliable_responder(qp_type) {
            attr.max_dest_rd_atomic = ends.params.responder_resources;
            attr.min_rnr_timer = 0;
            mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
        }
        (attr, mask)
    }

    /// Calls `ibv_modify_qp`.
    ///
    /// # Errors
    /// The error of `ibv_modify_qp`.
    ///
    /// # Safety
    /// `qp` is a live queue pair of this device's provider.
    pub unsafe fn modify_qp(&self, qp: *mut ibv_qp, attr: &mut ibv_qp_attr, mask: c_int) -> Result {
        // SAFETY: contract of this function.
        check_returned_errno(unsafe { (self.verbs.ibv_modify_qp)(qp, attr, mask) })
    }
}

/// Returns true if a queue pair of this type executes READs and atomics of its peer.
fn is_reliable_responder(qp_type: ibv_qp_type) -> bool {
    matches!(qp_type, IBV_QPT_RC | IBV_QPT_XRC_RECV)
}

/// Returns true if a queue pair of this type can send READs and atomics.
fn is_reliable_requester(qp_type: ibv_qp_type) -> bool {
    matches!(qp_type, IBV_QPT_RC | IBV_QPT_XRC_SEND)
}

fn qp_attr_for_rts(
    qp_type: ibv_qp_type,
    ends: &ConnectionParams,
    ack_timeout: Option<u8>,
) -> (ibv_qp_attr, c_int) {
    let mut attr = ibv_qp_attr::zeroed();
    attr.qp_state = IBV_QPS_RTS;
    attr.sq_psn = ends.remote_qp.first_psn_from_peer;
    let mut mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
    if is_reliable_requester(qp_type) || is_reliable_responder(qp_type) {
        attr.timeout = ack_timeout.unwrap_or(DEFAULT_ACK_TIMEOUT_CODE);
        mask |= IBV_QP_TIMEOUT;
    }
    if is_reliable_requester(qp_type) {
        attr.retry_cnt = ends.params.retry_count.min(7);
        attr.rnr_retry = ends.params.rnr_retry_count.min(7);
        attr.max_rd_atomic = ends.params.initiator_depth;
        mask |= IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
    }
    (attr, mask)
}

/// Converts the return value of a libibverbs function that returns an errno.
///
/// # Errors
/// The errno.
pub fn check_returned_errno(returned: c_int) -> Result {
    match returned {
        0 => Ok(()),
        errno if errno > 0 => Err(Errno(errno)),
        _ => Err(last_errno()),
    }
}

/// Returns the errno after a libibverbs function has returned NULL.
#[must_use]
pub fn last_errno() -> Errno {
    std::io::Error::last_os_error().into()
}
