//! Address handles and destinations of datagrams.

#![allow(unsafe_code)]

use std::fmt;
use std::sync::Arc;

use verbs_abi as abi;

use crate::address_vector::AddressVector;
use crate::attr::PortAndGidIndex;
use crate::endpoint::QpEndpoint;
use crate::error::{AddressError, invalid_input, last_error};
use crate::pd::{PdInner, ProtectionDomain};
use crate::types::{QKey, Qpn};

/// An address handle: the address vector of a peer's port, for datagrams. Clones are the same
/// handle.
#[derive(Clone)]
pub struct AddressHandle {
    pub(crate) inner: Arc<AhInner>,
}

pub(crate) struct AhInner {
    pub(crate) pd: Arc<PdInner>,
    pub(crate) raw: *mut abi::ibv_ah,
}

// SAFETY: verbs on address handles are thread-safe, see `ContextInner`.
unsafe impl Send for AhInner {}
// SAFETY: as for Send.
unsafe impl Sync for AhInner {}

impl Drop for AhInner {
    fn drop(&mut self) {
        // SAFETY: made by ibv_create_ah of this table; lists that point at it hold an Arc of this.
        unsafe { (self.pd.context.symbols.ibv_destroy_ah)(self.raw) };
    }
}

/// Destination of a datagram: a port, a queue pair there, and its Q_Key.
#[derive(Clone, Debug)]
pub struct UdDestination {
    /// The address handle of the port.
    pub ah: AddressHandle,
    /// The number of the queue pair.
    pub qpn: Qpn,
    /// The Q_Key of the queue pair.
    pub qkey: QKey,
}

impl ProtectionDomain {
    /// Returns the destination of datagrams for the UD queue pair `peer`, through port `port_num`
    /// of this device.
    ///
    /// # Errors
    /// - [`AddressError::NoQKey`]: the peer is not a UD queue pair.
    /// - [`AddressError::Unreachable`] (`EHOSTUNREACH`, `ENETUNREACH`, `ETIMEDOUT`): the port cannot reach the peer.
    /// - [`AddressError::Refused`] (any other errno), for example for a port that the device does not have.
    pub fn ud_destination(
        &self,
        port_num: u8,
        peer: &QpEndpoint,
    ) -> Result<UdDestination, AddressError> {
        let gid_index = self.context().default_gid_index(port_num)?;
        let port = PortAndGidIndex {
            port_num,
            gid_index,
        };
        self.ud_destination_from(port, peer)
    }

    /// Returns the destination of datagrams as [`ud_destination`](Self::ud_destination) does, from
    /// a GID index that the caller chose.
    ///
    /// # Errors
    /// As [`ud_destination`](Self::ud_destination).
    pub fn ud_destination_from(
        &self,
        port: PortAndGidIndex,
        peer: &QpEndpoint,
    ) -> Result<UdDestination, AddressError> {
        let PortAndGidIndex {
            port_num,
            gid_index,
        } = port;
        let Some(qkey) = peer.qkey else {
            return Err(AddressError::NoQKey {
                verb: "ibv_create_ah",
                source: invalid_input("the peer's endpoint has no Q_Key: it is no UD queue pair"),
            });
        };
        let route = AddressVector {
            port_num,
            sgid_index: gid_index,
            link_layer: self.context().query_port(port_num)?.link_layer,
            lid: peer.lid,
            gid: peer.gid,
            sl: 0,
        };
        Ok(UdDestination {
            ah: self.create_ah(route)?,
            qpn: peer.qpn,
            qkey,
        })
    }

    fn create_ah(&self, route: AddressVector) -> Result<AddressHandle, AddressError> {
        let mut attr = route.to_raw();
        // SAFETY: live PD, valid attributes.
        let raw = unsafe { (self.inner.context.symbols.ibv_create_ah)(self.inner.raw, &mut attr) };
        if raw.is_null() {
            return Err(AddressError::of("ibv_create_ah", last_error()));
        }
        Ok(AddressHandle {
            inner: Arc::new(AhInner {
                pd: Arc::clone(&self.inner),
                raw,
            }),
        })
    }
}

impl fmt::Debug for AddressHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AddressHandle")
    }
}
