//! Open devices: their limits, ports and tables.

#![allow(unsafe_code)]

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use verbs_abi as abi;

use crate::attr::{DeviceAttr, PortAttr, TransportType};
use crate::capabilities::Capabilities;
use crate::error::{QueryError, check_returned_errno};
use crate::provider::Provider;
use crate::types::{AtomicCap, Gid, GidType, Lid, LinkLayer, Mtu, PKey, PortState};

/// An open device of a provider. Every object of the API holds a reference, which keeps the device
/// open.
pub(crate) struct ContextInner {
    pub(crate) provider: Provider,
    pub(crate) symbols: &'static abi::Symbols,
    pub(crate) raw: *mut abi::ibv_context,
    pub(crate) name: String,
    /// The capabilities, once determined.
    pub(crate) capabilities: OnceLock<Capabilities>,
}

// SAFETY: libibverbs contexts may be used from any thread at once (the verbs are thread-safe: IBTA
// vol. 1 and `Documentation/libibverbs.md` of rdma-core); softnic guarantees the same.
unsafe impl Send for ContextInner {}
// SAFETY: as for Send.
unsafe impl Sync for ContextInner {}

impl Drop for ContextInner {
    fn drop(&mut self) {
        // SAFETY: `raw` came from ibv_open_device of the same table. Every object made in it holds
        // an Arc of this, so all are gone, and this is the only close.
        unsafe { (self.symbols.ibv_close_device)(self.raw) };
    }
}

pub(crate) type ContextRef = Arc<ContextInner>;

/// An open device. Clones are the same context, which is closed with the last object made in it.
#[derive(Clone)]
pub struct Context {
    pub(crate) inner: ContextRef,
}

impl Context {
    /// Returns the provider.
    pub fn provider(&self) -> Provider {
        self.inner.provider
    }

    /// Returns the name of the device.
    pub fn device_name(&self) -> &str {
        &self.inner.name
    }

    /// Returns the transport that carries the device's messages.
    pub fn transport_type(&self) -> TransportType {
        // SAFETY: a live context points at its live device.
        let raw = unsafe { (*(*self.inner.raw).device).transport_type };
        TransportType::from_raw(raw.cast_unsigned())
    }

    /// Queries the limits of the device.
    ///
    /// # Errors
    /// [`QueryError::Refused`] (any errno), for example because the device was removed.
    pub fn query_device(&self) -> Result<DeviceAttr, QueryError> {
        let mut a = abi::ibv_device_attr::zeroed();
        // SAFETY: live context, writable attributes.
        let ret = unsafe { (self.inner.symbols.ibv_query_device)(self.inner.raw, &mut a) };
        check_returned_errno(ret).map_err(|e| QueryError::of("ibv_query_device", e))?;
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

    /// Queries the state of a port; ports count from 1.
    ///
    /// # Errors
    /// - [`QueryError::NoSuchPort`] (`EINVAL`): the device does not have the port.
    /// - [`QueryError::Refused`] (any other errno).
    pub fn query_port(&self, port_num: u8) -> Result<PortAttr, QueryError> {
        let mut a = abi::ibv_port_attr::zeroed();
        // SAFETY: live context, writable attributes of the given size. The extended operation is
        // preferred, as `___ibv_query_port` of the header does.
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
        check_returned_errno(ret).map_err(|e| self.port_error("ibv_query_port", e, port_num))?;
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

    /// Reads an entry of the GID table of a port.
    ///
    /// # Errors
    /// - [`QueryError::NoSuchPort`] (`EINVAL`): the device does not have the port.
    /// - [`QueryError::NoSuchEntry`] (`EINVAL`, `ENOENT` …): the table does not have the index.
    /// - [`QueryError::Refused`] (any other errno).
    pub fn gid(&self, port_num: u8, index: u32) -> Result<Gid, QueryError> {
        let mut gid = abi::ibv_gid::zeroed();
        let number = i32::try_from(index).unwrap_or(i32::MAX);
        // SAFETY: live context, writable gid.
        let ret = unsafe {
            (self.inner.symbols.ibv_query_gid)(self.inner.raw, port_num, number, &mut gid)
        };
        // The function returns -1 with or without errno.
        check_returned_errno(ret).map_err(|e| {
            self.table_entry_error("ibv_query_gid", e, (port_num, index), |p| p.gid_tbl_len)
        })?;
        // SAFETY: all bytes of the union are initialised, and every value is a valid array.
        Ok(Gid(unsafe { gid.raw }))
    }

    /// Reads an entry of the P_Key table of a port.
    ///
    /// # Errors
    /// - [`QueryError::NoSuchPort`] (`EINVAL`): the device does not have the port.
    /// - [`QueryError::NoSuchEntry`] (`EINVAL`, `ENOENT` …): the table does not have the index.
    /// - [`QueryError::Refused`] (any other errno).
    pub fn pkey(&self, port_num: u8, index: u32) -> Result<PKey, QueryError> {
        let mut pkey = 0u16;
        let number = i32::try_from(index).unwrap_or(i32::MAX);
        // SAFETY: live context, writable pkey.
        let ret = unsafe {
            (self.inner.symbols.ibv_query_pkey)(self.inner.raw, port_num, number, &mut pkey)
        };
        check_returned_errno(ret).map_err(|e| {
            self.table_entry_error("ibv_query_pkey", e, (port_num, index), |p| {
                p.pkey_tbl_len.into()
            })
        })?;
        Ok(PKey(u16::from_be(pkey)))
    }

    /// Returns the default GID index of a port.
    ///
    /// On Ethernet, the entries that are set are ranked by these criteria in turn: RoCE v2 before
    /// v1, IPv4 before IPv6, routable before link-local addresses, and the lowest index. So the
    /// default works with routers and ECN as the operator has configured them. UCX uses the same
    /// order. On InfiniBand the index is 0, which every subnet manager fills; peers are addressed
    /// by LID there.
    ///
    /// # Errors
    /// As [`query_port`](Self::query_port).
    pub fn default_gid_index(&self, port_num: u8) -> Result<u8, QueryError> {
        let best = self.best_gid_index(port_num, |_| true)?;
        Ok(best.unwrap_or(0))
    }

    /// Returns the GID index of an IP address on a port; `None` if the port does not have it, and on InfiniBand.
    ///
    /// Of several entries (RoCE v1 and v2) it is the best one by the criteria of
    /// [`default_gid_index`](Self::default_gid_index).
    ///
    /// # Errors
    /// As [`query_port`](Self::query_port).
    pub fn gid_index_of_address(
        &self,
        port_num: u8,
        address: IpAddr,
    ) -> Result<Option<u8>, QueryError> {
        let octets = match address {
            IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
            IpAddr::V6(ip) => ip.octets(),
        };
        self.best_gid_index(port_num, |gid| gid.0 == octets)
    }

    /// Returns the index of the best GID of an Ethernet port among those for which `is_wanted` returns true.
    fn best_gid_index(
        &self,
        port_num: u8,
        is_wanted: impl Fn(Gid) -> bool,
    ) -> Result<Option<u8>, QueryError> {
        let port = self.query_port(port_num)?;
        if port.link_layer != LinkLayer::Ethernet {
            return Ok(None);
        }
        let mut best = (0u8, None);
        // The `sgid_index` of an address vector has eight bits.
        for index in 0..=u8::try_from(port.gid_tbl_len.saturating_sub(1)).unwrap_or(u8::MAX) {
            let Ok(gid) = self.gid(port_num, index.into()) else {
                continue;
            };
            let rank = gid_rank(gid, self.gid_type(port_num, index.into()));
            if rank > best.0 && is_wanted(gid) {
                best = (rank, Some(index));
            }
        }
        Ok(best.1)
    }

    /// Returns the type of an entry of the GID table; `None` if unknown. The software NIC knows the
    /// types of its entries. For system devices, the kernel reports the type in sysfs since Linux
    /// 4.5.
    pub fn gid_type(&self, port_num: u8, index: u32) -> Option<GidType> {
        let ethernet = || {
            let port = self.query_port(port_num);
            port.is_ok_and(|p| p.link_layer == LinkLayer::Ethernet)
        };
        match self.inner.provider.name() {
            "softnic" if ethernet() => Some(GidType::RoceV2),
            "softnic" => Some(GidType::Ib),
            "system" => {
                let text = self.read_sysfs(&format!("ports/{port_num}/gid_attrs/types/{index}"))?;
                match text.trim() {
                    "RoCE v2" => Some(GidType::RoceV2),
                    // The text is the same for both, which have the same header on the wire.
                    "IB/RoCE v1" if ethernet() => Some(GidType::RoceV1),
                    "IB/RoCE v1" => Some(GidType::Ib),
                    _ => None,
                }
            }
            _ => None,
        }
    }

    /// Returns the error of a verb on a port, which names the ports of the device if it does not have this one.
    #[cold]
    fn port_error(&self, verb: &'static str, source: io::Error, port_num: u8) -> QueryError {
        match self.query_device() {
            Ok(device) if !(1..=device.phys_port_cnt).contains(&port_num) => {
                QueryError::NoSuchPort {
                    port_num,
                    ports: device.phys_port_cnt,
                    verb,
                    source,
                }
            }
            _ => QueryError::of(verb, source),
        }
    }

    /// Returns the error of a verb on an entry of a port's table; `entries` reads the length of the table.
    #[cold]
    fn table_entry_error(
        &self,
        verb: &'static str,
        source: io::Error,
        (port_num, index): (u8, u32),
        entries: impl Fn(&PortAttr) -> u32,
    ) -> QueryError {
        match self.query_port(port_num).map(|port| entries(&port)) {
            Ok(entries) if index >= entries => QueryError::NoSuchEntry {
                port_num,
                index,
                entries,
                verb,
                source,
            },
            Ok(_) => QueryError::of(verb, source),
            Err(_) => self.port_error(verb, source, port_num),
        }
    }

    /// Reads a file of the device in sysfs, which contains only system devices.
    pub(crate) fn read_sysfs(&self, file: &str) -> Option<String> {
        std::fs::read_to_string(self.sysfs_path(file)?).ok()
    }

    /// Returns the path of a file of the device in sysfs; `None` for other providers.
    pub(crate) fn sysfs_path(&self, file: &str) -> Option<std::path::PathBuf> {
        let folder = std::path::Path::new("/sys/class/infiniband").join(&self.inner.name);
        (self.inner.provider.name() == "system").then(|| folder.join(file))
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

/// Returns the rank of an entry of the GID table, for the default GID index; 0 if the entry is not
/// set.
fn gid_rank(gid: Gid, gid_type: Option<GidType>) -> u8 {
    if gid.is_zero() {
        return 0;
    }
    1 + u8::from(!gid.is_link_local())
        + 2 * u8::from(gid.is_ipv4_mapped())
        + 4 * u8::from(gid_type == Some(GidType::RoceV2))
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
        // Without a type from the provider, the address decides.
        assert!(gid_rank(gid("::ffff:10.0.0.7"), None) > gid_rank(gid("fe80::1"), None));
    }
}
