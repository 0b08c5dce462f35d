//! Addresses of the family `AF_IB`: a GID and a service id, as in `struct sockaddr_ib` of `<infiniband/ib.h>`.
//!
//! The service ids of connection management follow IBTA vol. 1, annex A11: the port number in the lower 16 bits, the
//! port space above. An address has a mask of the service id's valid bits; the other bits are wildcards.

use std::net::Ipv6Addr;

use verbs_abi::{
    AF_IB, RDMA_PS_IB, RDMA_PS_TCP, RDMA_PS_UDP, ib_addr, rdma_port_space, sockaddr_ib,
};

use crate::errno::{Errno, Result};

/// The bits of a service id that are the port space: `RDMA_IB_IP_PS_MASK` of `<rdma/rdma_cma.h>`.
pub(crate) const PORT_SPACE_MASK: u64 = !PORT_MASK;
/// The bits of a service id that are the port: `RDMA_IB_IP_PORT_MASK` of `<rdma/rdma_cma.h>`.
pub(crate) const PORT_MASK: u64 = 0xffff;
/// Position of the port space's lowest bit in a service id.
const PORT_SPACE_SHIFT: u32 = 16;
/// Bytes of a GID's subnet prefix (IBTA vol. 1, 4.1.1).
const SUBNET_PREFIX_BYTES: usize = 8;

/// An address of the family `AF_IB`, with its numbers in host byte order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IbAddr {
    /// P_Key of the partition.
    pub(crate) pkey: u16,
    /// Traffic class and flow label, as in `sin6_flowinfo`.
    pub(crate) flowinfo: u32,
    /// GID of the port, in network byte order; all zeros for any port.
    pub(crate) gid: [u8; 16],
    pub(crate) service_id: u64,
    /// The valid bits of `service_id`; the others are wildcards.
    pub(crate) service_id_mask: u64,
    pub(crate) scope_id: u64,
}

impl IbAddr {
    /// Makes an address without a service id.
    #[must_use]
    pub fn new(gid: [u8; 16], pkey: u16) -> Self {
        Self {
            gid,
            pkey,
            ..Self::default()
        }
    }

    /// Returns the address with the service id of a port, as `rdma_getaddrinfo(3)` does. If `port_space` or `port` is
    /// 0, its bits are wildcards.
    pub(crate) fn with_service(self, port_space: rdma_port_space, port: u16) -> Self {
        let of = |number: u64, mask: u64| if number == 0 { 0 } else { mask };
        Self {
            service_id: (u64::from(port_space) << PORT_SPACE_SHIFT) | u64::from(port),
            service_id_mask: of(u64::from(port_space), PORT_SPACE_MASK)
                | of(u64::from(port), PORT_MASK),
            ..self
        }
    }

    pub(crate) fn from_c(c: &sockaddr_ib) -> Self {
        Self {
            pkey: u16::from_be(c.sib_pkey),
            flowinfo: u32::from_be(c.sib_flowinfo),
            gid: c.sib_addr.ib_u,
            service_id: u64::from_be(c.sib_sid),
            service_id_mask: u64::from_be(c.sib_sid_mask),
            scope_id: c.sib_scope_id,
        }
    }

    pub(crate) fn to_c(self) -> sockaddr_ib {
        sockaddr_ib {
            sib_family: AF_IB as u16,
            sib_pkey: self.pkey.to_be(),
            sib_flowinfo: self.flowinfo.to_be(),
            sib_addr: ib_addr { ib_u: self.gid },
            sib_sid: self.service_id.to_be(),
            sib_sid_mask: self.service_id_mask.to_be(),
            sib_scope_id: self.scope_id,
        }
    }

    /// Returns the port of the address; 0 for any port.
    pub(crate) fn port(&self) -> u16 {
        (self.service_id & self.service_id_mask) as u16
    }

    /// Returns port space and port of the address; `None` if the port space does not fit into 32 bits.
    pub(crate) fn port_space_and_port(&self) -> Option<(rdma_port_space, u16)> {
        let port_space = u32::try_from(self.service_id >> PORT_SPACE_SHIFT).ok()?;
        Some((port_space, self.service_id as u16))
    }

    /// Returns true if the GID is unspecified or the loopback address (`cma_any_addr` of
    /// `linux:drivers/infiniband/core/cma.c`).
    pub(crate) fn is_any(&self) -> bool {
        let gid = Ipv6Addr::from(self.gid);
        gid.is_unspecified() || gid.is_loopback()
    }

    /// Returns the loopback address with the same service id.
    pub(crate) fn to_loopback(self) -> Self {
        Self {
            gid: Ipv6Addr::LOCALHOST.octets(),
            ..self
        }
    }

    /// Returns true if a GID is in the same subnet as this address.
    pub(crate) fn shares_subnet(&self, gid: &[u8; 16]) -> bool {
        self.gid
            .iter()
            .take(SUBNET_PREFIX_BYTES)
            .eq(gid.iter().take(SUBNET_PREFIX_BYTES))
    }

    /// Returns the address to which an id of `port_space` is bound if it asks for this address, before it gets a port.
    /// Its service id has the port space that the masked service id selects (`cma_select_ib_ps` of
    /// `linux:drivers/infiniband/core/cma.c`).
    ///
    /// # Errors
    /// `EPROTONOSUPPORT` if an id of `port_space` cannot have the requested service id.
    pub(crate) fn with_selected_port_space(self, port_space: rdma_port_space) -> Result<Self> {
        let mask = self.service_id_mask & PORT_SPACE_MASK;
        let asked = self.service_id & mask;
        // The service ID of an RDMA_PS_IB id may select any of these port spaces.
        let selected = [RDMA_PS_IB, RDMA_PS_TCP, RDMA_PS_UDP]
            .into_iter()
            .filter(|&ps| port_space == RDMA_PS_IB || port_space == ps)
            .map(|ps| u64::from(ps) << PORT_SPACE_SHIFT)
            .find(|ps| ps & mask == asked)
            .ok_or(Errno(libc::EPROTONOSUPPORT))?;
        Ok(Self {
            service_id: selected | u64::from(self.port()),
            service_id_mask: self.service_id_mask | PORT_SPACE_MASK,
            ..self
        })
    }

    /// Returns the address of an id that has got its port.
    pub(crate) fn with_port(self, port: u16) -> Self {
        Self {
            service_id: (self.service_id & self.service_id_mask & PORT_SPACE_MASK)
                | u64::from(port),
            service_id_mask: u64::MAX,
            ..self
        }
    }

    /// Returns the local address of an id made for a request: the address in the request (`cma_save_ib_info` of
    /// `linux:drivers/infiniband/core/cma.c`).
    pub(crate) fn as_request_destination(self) -> Self {
        Self {
            service_id_mask: u64::MAX,
            scope_id: 0,
            ..self
        }
    }

    /// Returns the peer's address of an id made for a request: without a service id, since a requester has none.
    pub(crate) fn as_request_source(self) -> Self {
        Self {
            service_id: 0,
            service_id_mask: 0,
            scope_id: 0,
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use verbs_abi::RDMA_PS_IPOIB;

    fn addr(gid: &str) -> IbAddr {
        IbAddr::new(gid.parse::<Ipv6Addr>().unwrap().octets(), 0xffff)
    }

    /// Checks the bytes of the C structure, in the order of `<infiniband/ib.h>`.
    #[test]
    fn the_c_structure_is_in_network_order_but_for_its_scope() {
        let addr = IbAddr {
            pkey: 0x8001,
            flowinfo: 0x0123_4567,
            service_id: 0x0106_1d2f,
            service_id_mask: 0xffff_ffff_ffff_0000,
            scope_id: 3,
            ..addr("fe80::1:2")
        };
        let c = addr.to_c();
        let mut expected = AF_IB_BYTES.to_vec();
        expected.extend([0x80, 0x01, 0x01, 0x23, 0x45, 0x67]);
        expected.extend(addr.gid);
        expected.extend([0, 0, 0, 0, 0x01, 0x06, 0x1d, 0x2f]);
        expected.extend([0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0]);
        expected.extend(3_u64.to_ne_bytes());
        let mut bytes = c.sib_family.to_ne_bytes().to_vec();
        bytes.extend(c.sib_pkey.to_ne_bytes());
        bytes.extend(c.sib_flowinfo.to_ne_bytes());
        bytes.extend(c.sib_addr.ib_u);
        bytes.extend(c.sib_sid.to_ne_bytes());
        bytes.extend(c.sib_sid_mask.to_ne_bytes());
        bytes.extend(c.sib_scope_id.to_ne_bytes());
        assert_eq!(bytes, expected);
        assert_eq!(IbAddr::from_c(&c), addr);
    }

    const AF_IB_BYTES: [u8; 2] = 27_u16.to_ne_bytes();

    #[test]
    fn a_service_id_is_a_port_space_and_a_port() {
        let at = |ps, port| {
            let a = addr("fe80::1").with_service(ps, port);
            (a.service_id, a.service_id_mask)
        };
        assert_eq!(at(RDMA_PS_TCP, 7471), (0x0106_1d2f, u64::MAX));
        assert_eq!(at(RDMA_PS_UDP, 0), (0x0111_0000, !0xffff));
        assert_eq!(at(0, 7471), (0x1d2f, 0xffff));
        assert_eq!(at(0, 0), (0, 0));
        let service = |id| {
            IbAddr {
                service_id: id,
                ..addr("::")
            }
            .port_space_and_port()
        };
        assert_eq!(service(0x013f_0001), Some((RDMA_PS_IB, 1)));
        assert_eq!(service(0x1_0000_0000_0001), None);
    }

    #[test]
    fn an_id_gets_the_port_space_that_the_mask_lets_it_have() {
        let select = |ps, service_id, mask| {
            let asked = IbAddr {
                service_id,
                service_id_mask: mask,
                ..addr("::")
            };
            asked
                .with_selected_port_space(ps)
                .map(|a| (a.service_id, a.service_id_mask))
                .map_err(|e| e.0)
        };
        let unsupported = Err(libc::EPROTONOSUPPORT);
        // Without a request, the id's own port space is selected.
        assert_eq!(select(RDMA_PS_TCP, 0, 0), Ok((0x0106_0000, !0xffff)));
        assert_eq!(select(RDMA_PS_UDP, 0, 0), Ok((0x0111_0000, !0xffff)));
        assert_eq!(select(RDMA_PS_IB, 0, 0), Ok((0x013f_0000, !0xffff)));
        // Bits outside the mask, including the port, are ignored.
        assert_eq!(
            select(RDMA_PS_TCP, 0x0111_0007, 0),
            Ok((0x0106_0000, !0xffff))
        );
        assert_eq!(
            select(RDMA_PS_TCP, 0x0111_0007, 0xffff),
            Ok((0x0106_0007, u64::MAX))
        );
        // Requests that the id's port space permits.
        assert_eq!(
            select(RDMA_PS_TCP, 0x0106_0007, u64::MAX),
            Ok((0x0106_0007, u64::MAX))
        );
        assert_eq!(
            select(RDMA_PS_IB, 0x0111_0007, u64::MAX),
            Ok((0x0111_0007, u64::MAX))
        );
        assert_eq!(
            select(RDMA_PS_IB, 0x0106_0000, !0xffff),
            Ok((0x0106_0000, !0xffff))
        );
        // Requests that the id's port space does not permit.
        assert_eq!(select(RDMA_PS_TCP, 0x0111_0007, u64::MAX), unsupported);
        assert_eq!(select(RDMA_PS_UDP, 0x013f_0000, !0xffff), unsupported);
        assert_eq!(select(RDMA_PS_IB, 0x0002_0000, !0xffff), unsupported);
        assert_eq!(select(RDMA_PS_IPOIB, 0, 0), unsupported);
        assert_eq!(select(RDMA_PS_IB, 0x7_0106_0000, !0xffff), unsupported);
    }

    #[test]
    fn a_bound_address_names_its_service_in_full() {
        let asked = addr("fe80::1").with_service(RDMA_PS_TCP, 0);
        let bound = asked
            .with_selected_port_space(RDMA_PS_TCP)
            .unwrap()
            .with_port(99);
        assert_eq!(
            (bound.service_id, bound.service_id_mask),
            (0x0106_0063, u64::MAX)
        );
        assert_eq!(
            (bound.port(), bound.port_space_and_port()),
            (99, Some((RDMA_PS_TCP, 99)))
        );
        assert_eq!(bound.gid, asked.gid);
    }

    #[test]
    fn any_gid_is_none_or_loopback_and_subnets_are_told_by_prefix() {
        assert!(addr("::").is_any() && addr("::1").is_any());
        assert!(!addr("fe80::1").is_any());
        assert!(addr("fe80::1").to_loopback().is_any());
        assert!(addr("fe80::1").shares_subnet(&addr("fe80::ffff:2").gid));
        assert!(!addr("fe80::1").shares_subnet(&addr("fec0::1").gid));
    }

    #[test]
    fn a_request_says_which_service_and_that_its_sender_has_none() {
        let asked = IbAddr {
            service_id_mask: 7,
            scope_id: 5,
            ..addr("fe80::1")
        }
        .with_service(RDMA_PS_IB, 4);
        let own = asked.as_request_destination();
        assert_eq!(
            (own.service_id, own.service_id_mask, own.scope_id),
            (0x013f_0004, u64::MAX, 0)
        );
        let peer = asked.as_request_source();
        assert_eq!(
            (peer.service_id, peer.service_id_mask, peer.gid),
            (0, 0, asked.gid)
        );
    }
}
