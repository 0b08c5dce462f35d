//! Devices, contexts, protection domains, ports and asynchronous events.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_void};
use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::{Arc, OnceLock};

use serde::Serialize;
use verbs_abi as abi;

use crate::error::VerbError;
use crate::provider::{ContextInner, ContextRef, Provider};
use crate::types::{AtomicCap, Gid, GidType, Lid, LinkLayer, Mtu, PKey, PortState, Qpn, c_enum};

/// A device that a provider has.
#[derive(Clone)]
pub struct Device {
    list: Arc<DeviceList>,
    raw: *mut abi::ibv_device,
    name: String,
    guid: u64,
    node_type: NodeType,
    transport_type: TransportType,
}

/// The list that `ibv_get_device_list` made; its devices live as long as it does.
struct DeviceList {
    provider: Provider,
    raw: *mut *mut abi::ibv_device,
}

// SAFETY: the list is only read, and freed by the last owner.
unsafe impl Send for DeviceList {}
// SAFETY: as for Send.
unsafe impl Sync for DeviceList {}
// SAFETY: `raw` points at a device of the list that `list` keeps; devices are read only.
unsafe impl Send for Device {}
// SAFETY: as for Send.
unsafe impl Sync for Device {}

impl Drop for DeviceList {
    fn drop(&mut self) {
        // SAFETY: the list came from ibv_get_device_list of this table and no `Device` is left.
        unsafe { (self.provider.symbols().ibv_free_device_list)(self.raw) };
    }
}

impl Device {
    pub(crate) fn list(provider: Provider) -> Result<Vec<Self>, VerbError> {
        let symbols = provider.symbols();
        let mut num = 0;
        // SAFETY: `num` is writable.
        let raw = unsafe { (symbols.ibv_get_device_list)(&mut num) };
        if raw.is_null() {
            let error = VerbError::last("ibv_get_device_list");
            // The system has no RDMA subsystem loaded: no devices.
            return if error.errno() == libc::ENOSYS {
                Ok(Vec::new())
            } else {
                Err(error)
            };
        }
        let list = Arc::new(DeviceList { provider, raw });
        let num = usize::try_from(num).unwrap_or(0);
        let device = |i| {
            // SAFETY: the list has `num` entries; each stays valid while `list` lives.
            unsafe {
                let raw = *list.raw.add(i);
                let name = CStr::from_ptr((symbols.ibv_get_device_name)(raw))
                    .to_string_lossy()
                    .into_owned();
                let guid = u64::from_be((symbols.ibv_get_device_guid)(raw));
                let node_type = NodeType::from_raw((*raw).node_type.cast_unsigned());
                let transport_type = (*raw).transport_type.cast_unsigned();
                Self {
                    transport_type: TransportType::from_raw(transport_type),
                    list: Arc::clone(&list),
                    raw,
                    name,
                    guid,
                    node_type,
                }
            }
        };
        Ok((0..num).map(device).collect())
    }

    /// Its name, such as `softnic0` or `mlx5_0`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its globally unique identifier, in host order.
    pub fn guid(&self) -> u64 {
        self.guid
    }

    /// What kind of node it is.
    pub fn node_type(&self) -> NodeType {
        self.node_type
    }

    /// What carries its messages: the transport as `ibv_devinfo` calls it.
    pub fn transport_type(&self) -> TransportType {
        self.transport_type
    }

    /// The provider that has it.
    pub fn provider(&self) -> Provider {
        self.list.provider
    }

    /// Opens the device.
    pub fn open(&self) -> Result<Context, VerbError> {
        let provider = self.list.provider;
        let symbols = provider.symbols();
        // SAFETY: the device is on a list that is still held.
        let raw = unsafe { (symbols.ibv_open_device)(self.raw) };
        if raw.is_null() {
            return Err(VerbError::last("ibv_open_device"));
        }
        let inner = ContextInner {
            provider,
            symbols,
            raw,
            name: self.name.clone(),
            capabilities: OnceLock::new(),
        };
        Ok(Context {
            inner: Arc::new(inner),
        })
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device")
            .field("provider", &self.provider().name())
            .field("name", &self.name)
            .field("guid", &format_args!("{:#018x}", self.guid))
            .field("node_type", &self.node_type)
            .finish()
    }
}

c_enum! {
    /// The kind of a node.
    NodeType {
        /// A channel adapter: InfiniBand or RoCE.
        Ca = abi::IBV_NODE_CA, "InfiniBand channel adapter";
        /// A switch.
        Switch = abi::IBV_NODE_SWITCH, "InfiniBand switch";
        /// A router.
        Router = abi::IBV_NODE_ROUTER, "InfiniBand router";
        /// An iWARP NIC.
        Rnic = abi::IBV_NODE_RNIC, "iWARP NIC";
    }
}

c_enum! {
    /// The family of protocols of a device.
    TransportType {
        /// InfiniBand or RoCE.
        Ib = abi::IBV_TRANSPORT_IB, "InfiniBand";
        /// iWARP: RDMA over TCP.
        Iwarp = abi::IBV_TRANSPORT_IWARP, "iWARP";
        /// usNIC.
        Usnic = abi::IBV_TRANSPORT_USNIC, "usNIC";
        /// usNIC over UDP.
        UsnicUdp = abi::IBV_TRANSPORT_USNIC_UDP, "usNIC UDP";
        /// A protocol of the vendor's own, such as EFA.
        Unspecified = abi::IBV_TRANSPORT_UNSPECIFIED, "unspecified";
    }
}

/// An open device. Clones are the same context; it is closed when the last object made in it is gone.
#[derive(Clone)]
pub struct Context {
    pub(crate) inner: ContextRef,
}

/// Limits of a device (`ibv_query_device(3)`).
#[derive(Debug, Clone)]
#[expect(
    missing_docs,
    reason = "the names are those of struct ibv_device_attr, which the man page explains"
)]
pub struct DeviceAttr {
    pub fw_ver: String,
    pub node_guid: u64,
    pub sys_image_guid: u64,
    pub vendor_id: u32,
    pub vendor_part_id: u32,
    pub hw_ver: u32,
    pub max_mr_size: u64,
    pub page_size_cap: u64,
    pub device_cap_flags: u32,
    pub max_qp: u32,
    pub max_qp_wr: u32,
    pub max_sge: u32,
    pub max_sge_rd: u32,
    pub max_cq: u32,
    pub max_cqe: u32,
    pub max_mr: u32,
    pub max_mw: u32,
    pub max_pd: u32,
    pub max_ah: u32,
    pub max_srq: u32,
    pub max_srq_wr: u32,
    pub max_srq_sge: u32,
    pub max_qp_rd_atom: u32,
    pub max_qp_init_rd_atom: u32,
    pub max_res_rd_atom: u32,
    pub atomic_cap: AtomicCap,
    pub max_mcast_grp: u32,
    pub max_mcast_qp_attach: u32,
    pub max_pkeys: u16,
    pub local_ca_ack_delay: u8,
    pub phys_port_cnt: u8,
}

/// The state of a port (`ibv_query_port(3)`).
#[derive(Debug, Clone)]
#[expect(
    missing_docs,
    reason = "the names are those of struct ibv_port_attr, which the man page explains"
)]
pub struct PortAttr {
    pub state: PortState,
    pub max_mtu: Mtu,
    pub active_mtu: Mtu,
    pub gid_tbl_len: u32,
    pub pkey_tbl_len: u16,
    pub max_msg_sz: u32,
    pub lid: Lid,
    pub lmc: u8,
    pub sm_lid: Lid,
    pub link_layer: LinkLayer,
    /// Lanes of the link, coded: [`lanes`](PortAttr::lanes).
    pub active_width: u8,
    /// Speed of a lane, coded: [`lane_gbps`](PortAttr::lane_gbps).
    pub active_speed: u8,
}

impl PortAttr {
    /// Lanes of the link, if the code is one of `ibv_query_port(3)`'s.
    pub fn lanes(&self) -> Option<u8> {
        Some(match self.active_width {
            1 => 1,
            2 => 4,
            4 => 8,
            8 => 12,
            16 => 2,
            _ => return None,
        })
    }

    /// What a lane signals, in Gbit/s (SDR is 2.5), if the code is one of `ibv_query_port(3)`'s.
    pub fn lane_gbps(&self) -> Option<f32> {
        Some(match self.active_speed {
            1 => 2.5,
            2 => 5.0,
            4 | 8 => 10.0,
            16 => 14.0,
            32 => 25.0,
            64 => 50.0,
            128 => 100.0,
            _ => return None,
        })
    }
}

impl Context {
    /// The provider.
    pub fn provider(&self) -> Provider {
        self.inner.provider
    }

    /// The name of the device.
    pub fn device_name(&self) -> &str {
        &self.inner.name
    }

    /// What carries its messages.
    pub fn transport_type(&self) -> TransportType {
        // SAFETY: a live context names its live device.
        let raw = unsafe { (*(*self.inner.raw).device).transport_type };
        TransportType::from_raw(raw.cast_unsigned())
    }

    /// The limits of the device.
    pub fn query_device(&self) -> Result<DeviceAttr, VerbError> {
        let mut a = abi::ibv_device_attr::zeroed();
        // SAFETY: live context, writable attributes.
        let ret = unsafe { (self.inner.symbols.ibv_query_device)(self.inner.raw, &mut a) };
        VerbError::check("ibv_query_device", ret)?;
        // SAFETY: any bytes are valid for c_char as u8; the array is in bounds.
        let fw =
            unsafe { std::slice::from_raw_parts(a.fw_ver.as_ptr().cast::<u8>(), a.fw_ver.len()) };
        let fw_ver = fw
            .split(|&b| b == 0)
            .next()
            .map(|s| String::from_utf8_lossy(s).into_owned())
            .unwrap_or_default();
        let n = |v: i32| u32::try_from(v).unwrap_or(0);
        Ok(DeviceAttr {
            fw_ver,
            node_guid: u64::from_be(a.node_guid),
            sys_image_guid: u64::from_be(a.sys_image_guid),
            vendor_id: a.vendor_id,
            vendor_part_id: a.vendor_part_id,
            hw_ver: a.hw_ver,
            max_mr_size: a.max_mr_size,
            page_size_cap: a.page_size_cap,
            device_cap_flags: a.device_cap_flags,
            max_qp: n(a.max_qp),
            max_qp_wr: n(a.max_qp_wr),
            max_sge: n(a.max_sge),
            max_sge_rd: n(a.max_sge_rd),
            max_cq: n(a.max_cq),
            max_cqe: n(a.max_cqe),
            max_mr: n(a.max_mr),
            max_mw: n(a.max_mw),
            max_pd: n(a.max_pd),
            max_ah: n(a.max_ah),
            max_srq: n(a.max_srq),
            max_srq_wr: n(a.max_srq_wr),
            max_srq_sge: n(a.max_srq_sge),
            max_qp_rd_atom: n(a.max_qp_rd_atom),
            max_qp_init_rd_atom: n(a.max_qp_init_rd_atom),
            max_res_rd_atom: n(a.max_res_rd_atom),
            atomic_cap: AtomicCap::from_raw(a.atomic_cap),
            max_mcast_grp: n(a.max_mcast_grp),
            max_mcast_qp_attach: n(a.max_mcast_qp_attach),
            max_pkeys: a.max_pkeys,
            local_ca_ack_delay: a.local_ca_ack_delay,
            phys_port_cnt: a.phys_port_cnt,
        })
    }

    /// The state of a port; ports count from 1.
    pub fn query_port(&self, port_num: u8) -> Result<PortAttr, VerbError> {
        let mut a = abi::ibv_port_attr::zeroed();
        // SAFETY: live context, writable attributes of the size that is passed; the extended operation is
        // preferred as `___ibv_query_port` of the header does.
        let ret = unsafe {
            let extended = abi::verbs_get_ctx(self.inner.raw);
            match if extended.is_null() {
                None
            } else {
                (*extended).query_port
            } {
                Some(query) => query(self.inner.raw, port_num, &mut a, size_of_val(&a)),
                None => (self.inner.symbols.ibv_query_port)(self.inner.raw, port_num, &mut a),
            }
        };
        VerbError::check("ibv_query_port", ret)?;
        Ok(PortAttr {
            state: PortState::from_raw(a.state),
            max_mtu: Mtu::from_raw(a.max_mtu),
            active_mtu: Mtu::from_raw(a.active_mtu),
            gid_tbl_len: u32::try_from(a.gid_tbl_len).unwrap_or(0),
            pkey_tbl_len: a.pkey_tbl_len,
            max_msg_sz: a.max_msg_sz,
            lid: Lid(a.lid),
            lmc: a.lmc,
            sm_lid: Lid(a.sm_lid),
            active_width: a.active_width,
            active_speed: a.active_speed,
            link_layer: LinkLayer::from_raw(a.link_layer.into()),
        })
    }

    /// An entry of the GID table of a port.
    pub fn gid(&self, port_num: u8, index: u32) -> Result<Gid, VerbError> {
        let mut gid = abi::ibv_gid::zeroed();
        let index =
            i32::try_from(index).map_err(|_| VerbError::new("ibv_query_gid", libc::EINVAL))?;
        // SAFETY: live context, writable gid.
        let ret = unsafe {
            (self.inner.symbols.ibv_query_gid)(self.inner.raw, port_num, index, &mut gid)
        };
        // The function returns -1 with or without errno.
        VerbError::check("ibv_query_gid", ret)?;
        // SAFETY: all bytes of the union are initialised, each value is a valid array.
        Ok(Gid(unsafe { gid.raw }))
    }

    /// An entry of the P_Key table of a port.
    pub fn pkey(&self, port_num: u8, index: u32) -> Result<PKey, VerbError> {
        let mut pkey = 0u16;
        let index =
            i32::try_from(index).map_err(|_| VerbError::new("ibv_query_pkey", libc::EINVAL))?;
        // SAFETY: live context, writable pkey.
        let ret = unsafe {
            (self.inner.symbols.ibv_query_pkey)(self.inner.raw, port_num, index, &mut pkey)
        };
        VerbError::check("ibv_query_pkey", ret)?;
        Ok(PKey(u16::from_be(pkey)))
    }

    /// The GID index to use on a port when nobody chose one.
    ///
    /// On Ethernet, of the entries that are set: RoCE v2 before v1, then IPv4 before IPv6, then an address
    /// that routers forward before a link-local one, then the lowest; so a network whose switches know
    /// ECN and routes is used as its operator set it up (UCX chooses by the same order). On
    /// InfiniBand 0, which every subnet manager fills; LIDs do the addressing there.
    pub fn default_gid_index(&self, port_num: u8) -> Result<u8, VerbError> {
        let port = self.query_port(port_num)?;
        if port.link_layer != LinkLayer::Ethernet {
            return Ok(0);
        }
        let mut best = (0u8, 0u8);
        // `sgid_index` of an address vector has eight bits.
        for index in 0..=u8::try_from(port.gid_tbl_len.saturating_sub(1)).unwrap_or(u8::MAX) {
            let Ok(gid) = self.gid(port_num, index.into()) else {
                continue;
            };
            let rank = gid_rank(gid, self.gid_type(port_num, index.into()));
            if rank > best.0 {
                best = (rank, index);
            }
        }
        Ok(best.1)
    }

    /// What kind of address an entry of the GID table is, where that is known: the software NIC says it of
    /// itself, and the kernel of the system's devices (in sysfs, from Linux 4.5 on).
    pub fn gid_type(&self, port_num: u8, index: u32) -> Option<GidType> {
        let ethernet = || {
            let port = self.query_port(port_num);
            port.is_ok_and(|p| p.link_layer == LinkLayer::Ethernet)
        };
        match self.inner.provider.name() {
            "softnic" if ethernet() => Some(GidType::RoceV2),
            "softnic" => Some(GidType::Ib),
            "system" => {
                let text = self.sysfs(&format!("ports/{port_num}/gid_attrs/types/{index}"))?;
                match text.trim() {
                    "RoCE v2" => Some(GidType::RoceV2),
                    // One text for both, as both have the same header on the wire.
                    "IB/RoCE v1" if ethernet() => Some(GidType::RoceV1),
                    "IB/RoCE v1" => Some(GidType::Ib),
                    _ => None,
                }
            }
            _ => None,
        }
    }

    /// A file of the device in sysfs; only the system's devices are there.
    pub(crate) fn sysfs(&self, file: &str) -> Option<String> {
        std::fs::read_to_string(self.sysfs_path(file)?).ok()
    }

    /// Where that file is.
    pub(crate) fn sysfs_path(&self, file: &str) -> Option<std::path::PathBuf> {
        let folder = std::path::Path::new("/sys/class/infiniband").join(&self.inner.name);
        (self.inner.provider.name() == "system").then(|| folder.join(file))
    }

    /// Allocates a protection domain.
    pub fn alloc_pd(&self) -> Result<ProtectionDomain, VerbError> {
        // SAFETY: live context.
        let raw = unsafe { (self.inner.symbols.ibv_alloc_pd)(self.inner.raw) };
        if raw.is_null() {
            return Err(VerbError::last("ibv_alloc_pd"));
        }
        Ok(ProtectionDomain {
            inner: Arc::new(PdInner {
                context: Arc::clone(&self.inner),
                raw,
            }),
        })
    }

    /// The file descriptor that becomes readable when there is an async event.
    pub fn async_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the provider keeps the descriptor open as long as the context.
        unsafe { BorrowedFd::borrow_raw((*self.inner.raw).async_fd) }
    }

    /// Waits for the next async event and acknowledges it.
    pub fn next_async_event(&self) -> Result<AsyncEvent, VerbError> {
        let mut event = abi::ibv_async_event {
            element: abi::ibv_async_event_element { port_num: 0 },
            event_type: 0,
        };
        // SAFETY: live context, writable event.
        let ret = unsafe { (self.inner.symbols.ibv_get_async_event)(self.inner.raw, &mut event) };
        if ret != 0 {
            return Err(VerbError::last("ibv_get_async_event"));
        }
        // SAFETY: the member follows from the type as ibv_get_async_event(3) lists it. An object that an
        // event names cannot be destroyed before the event is acknowledged, which happens below.
        let typed = unsafe { AsyncEvent::from_raw(&event) };
        // SAFETY: got just now, acknowledged once.
        unsafe { (self.inner.symbols.ibv_ack_async_event)(&mut event) };
        Ok(typed)
    }

    /// Waits for an async event at most as long as `timeout`.
    pub fn async_event_timeout(
        &self,
        timeout: std::time::Duration,
    ) -> Result<Option<AsyncEvent>, VerbError> {
        if wait_readable(self.async_fd(), timeout) {
            self.next_async_event().map(Some)
        } else {
            Ok(None)
        }
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Context({} of {})",
            self.inner.name,
            self.inner.provider.name()
        )
    }
}

/// Waits until a descriptor can be read; false after the timeout.
pub(crate) fn wait_readable(fd: BorrowedFd<'_>, timeout: std::time::Duration) -> bool {
    use rustix::event::{PollFd, PollFlags, poll};
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    let timeout = rustix::event::Timespec::try_from(timeout).ok();
    // An interruption by a signal counts as nothing readable: callers poll again.
    poll(&mut fds, timeout.as_ref()).is_ok_and(|n| n > 0)
}

/// How good an entry of the GID table is for systems that nobody told which to use; 0 if it is not set.
fn gid_rank(gid: Gid, gid_type: Option<GidType>) -> u8 {
    if gid.is_zero() {
        return 0;
    }
    1 + u8::from(!gid.is_link_local())
        + 2 * u8::from(gid.is_ipv4_mapped())
        + 4 * u8::from(gid_type == Some(GidType::RoceV2))
}

/// What happened to an object or port outside of any completion (`ibv_get_async_event(3)`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum AsyncEvent {
    /// A CQ overran or broke; holds the CQ's [id](crate::CompletionQueue::id).
    CqErr(u64),
    /// Something happened to a queue pair.
    Qp(QpEvent, Qpn),
    /// A shared receive queue fell below its limit; holds its [id](crate::SharedReceiveQueue::id).
    SrqLimitReached(u64),
    /// A shared receive queue broke; holds its [id](crate::SharedReceiveQueue::id).
    SrqErr(u64),
    /// Something happened to a port.
    Port(PortEvent, u8),
    /// The device broke.
    DeviceFatal,
    /// An event this version does not know.
    Other(u32),
}

c_enum! {
    /// What happened to a queue pair.
    QpEvent {
        /// A fatal error.
        Fatal = abi::IBV_EVENT_QP_FATAL, "local work queue catastrophic error";
        /// An invalid request came.
        ReqErr = abi::IBV_EVENT_QP_REQ_ERR, "invalid request local work queue error";
        /// A request came that the QP's access flags forbid.
        AccessErr = abi::IBV_EVENT_QP_ACCESS_ERR, "local access violation work queue error";
        /// The first message came while in RTR.
        CommEst = abi::IBV_EVENT_COMM_EST, "communication established";
        /// The send queue is drained (SQD).
        SqDrained = abi::IBV_EVENT_SQ_DRAINED, "send queue drained";
        /// The last WQE of the SRQ was taken by a QP in error.
        LastWqeReached = abi::IBV_EVENT_QP_LAST_WQE_REACHED, "last WQE reached";
        /// The path has migrated.
        PathMig = abi::IBV_EVENT_PATH_MIG, "path migration";
        /// The path could not migrate.
        PathMigErr = abi::IBV_EVENT_PATH_MIG_ERR, "path migration request error";
    }
}

c_enum! {
    /// What happened to a port.
    PortEvent {
        /// It is active.
        Active = abi::IBV_EVENT_PORT_ACTIVE, "port active";
        /// It is down.
        Err = abi::IBV_EVENT_PORT_ERR, "port error";
        /// Its LID changed.
        LidChange = abi::IBV_EVENT_LID_CHANGE, "LID change";
        /// Its P_Key table changed.
        PkeyChange = abi::IBV_EVENT_PKEY_CHANGE, "P_Key change";
        /// Its subnet manager changed.
        SmChange = abi::IBV_EVENT_SM_CHANGE, "SM change";
        /// Clients must register again with the subnet administrator.
        ClientReregister = abi::IBV_EVENT_CLIENT_REREGISTER, "client reregistration";
        /// Its GID table changed.
        GidChange = abi::IBV_EVENT_GID_CHANGE, "GID table change";
    }
}

impl AsyncEvent {
    /// # Safety
    /// `event` is one that ibv_get_async_event returned and that is not yet acknowledged.
    unsafe fn from_raw(event: &abi::ibv_async_event) -> Self {
        // SAFETY: see the function's contract; which member counts is decided by the type.
        unsafe {
            match event.event_type {
                abi::IBV_EVENT_CQ_ERR => Self::CqErr(id_of((*event.element.cq).cq_context)),
                abi::IBV_EVENT_SRQ_LIMIT_REACHED => {
                    Self::SrqLimitReached(id_of((*event.element.srq).srq_context))
                }
                abi::IBV_EVENT_SRQ_ERR => Self::SrqErr(id_of((*event.element.srq).srq_context)),
                abi::IBV_EVENT_DEVICE_FATAL => Self::DeviceFatal,
                t => match (QpEvent::from_raw(t), PortEvent::from_raw(t)) {
                    (QpEvent::Other(_), PortEvent::Other(_)) => Self::Other(t),
                    (QpEvent::Other(_), port) => {
                        Self::Port(port, u8::try_from(event.element.port_num).unwrap_or(0))
                    }
                    (qp, _) => Self::Qp(qp, Qpn((*event.element.qp).qp_num)),
                },
            }
        }
    }
}

/// Numbers that name CQs and SRQs to their users: never reused, unlike addresses.
pub(crate) fn next_id() -> u64 {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// The context pointer that carries an id through the provider.
pub(crate) fn id_context(id: u64) -> *mut c_void {
    std::ptr::without_provenance_mut(usize::try_from(id).unwrap_or(usize::MAX))
}

pub(crate) fn id_of(context: *mut c_void) -> u64 {
    context.addr() as u64
}

/// A protection domain: what may be used together. Clones are the same domain.
#[derive(Clone)]
pub struct ProtectionDomain {
    pub(crate) inner: Arc<PdInner>,
}

pub(crate) struct PdInner {
    pub(crate) context: ContextRef,
    pub(crate) raw: *mut abi::ibv_pd,
}

// SAFETY: verbs on a PD are thread-safe, see `ContextInner`.
unsafe impl Send for PdInner {}
// SAFETY: as for Send.
unsafe impl Sync for PdInner {}

impl Drop for PdInner {
    fn drop(&mut self) {
        // SAFETY: made by ibv_alloc_pd of this table; everything in it holds an Arc of this and is gone.
        unsafe { (self.context.symbols.ibv_dealloc_pd)(self.raw) };
    }
}

impl ProtectionDomain {
    /// The context it belongs to.
    pub fn context(&self) -> Context {
        Context {
            inner: Arc::clone(&self.inner.context),
        }
    }
}

impl fmt::Debug for ProtectionDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ProtectionDomain({})", self.inner.context.name)
    }
}

impl AsFd for Context {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.async_fd()
    }
}

impl AsRawFd for Context {
    fn as_raw_fd(&self) -> RawFd {
        self.async_fd().as_raw_fd()
    }
}

/// A port and an entry of its GID table: through what a queue pair or address handle reaches its peers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct PortGid {
    /// The port, from 1.
    pub port_num: u8,
    /// The entry of the port's GID table.
    pub gid_index: u8,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(text: &str) -> Gid {
        Gid(text
            .parse::<std::net::Ipv6Addr>()
            .expect("an address")
            .octets())
    }

    #[test]
    fn a_routable_address_of_roce_v2_is_the_best_gid() {
        let (v1, v2) = (Some(GidType::RoceV1), Some(GidType::RoceV2));
        let worst_first = [
            ("::", v2),
            ("fe80::1", v1),
            ("2001:db8::1", v1),
            ("::ffff:10.0.0.7", v1),
            ("fe80::1", v2),
            ("2001:db8::1", v2),
            ("::ffff:10.0.0.7", v2),
        ];
        let ranks = worst_first.map(|(text, gid_type)| gid_rank(gid(text), gid_type));
        assert!(ranks.is_sorted_by(|a, b| a < b), "{ranks:?}");
        assert_eq!(ranks[0], 0);
        // A provider that does not say the type: the address decides.
        assert!(gid_rank(gid("::ffff:10.0.0.7"), None) > gid_rank(gid("fe80::1"), None));
    }

    #[test]
    fn links_have_lanes_and_a_speed() {
        let context = Provider::softnic()
            .device(None)
            .and_then(|d| d.open())
            .expect("opens");
        let mut port = context.query_port(1).expect("port 1");
        (port.active_width, port.active_speed) = (2, 64);
        assert_eq!((port.lanes(), port.lane_gbps()), (Some(4), Some(50.0)));
        (port.active_width, port.active_speed) = (3, 3);
        assert_eq!((port.lanes(), port.lane_gbps()), (None, None));
    }
}
