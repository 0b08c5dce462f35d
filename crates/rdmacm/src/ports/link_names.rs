//! The names in the folder of port numbers: port and address of a link, and its owner.

use std::net::{IpAddr, Ipv6Addr};

use crate::addr::IdAddress;
use crate::process_identity::ProcessIdentity;

/// Suffix of the file that records the close of a listener; it follows the port number.
pub(crate) const CLOSED_FILE_SUFFIX: &str = ".closed";
/// Suffix of a socket's name before the socket listens.
pub(crate) const NOT_LISTENING_SUFFIX: char = '~';

/// The binding of an id, without its port space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IdBinding {
    /// Address; for `AF_IB`, with the port space in its service id.
    pub(crate) addr: IdAddress,
    /// `RDMA_OPTION_ID_AFONLY`: a wildcard does not include other families.
    pub(crate) afonly: bool,
    /// `RDMA_OPTION_ID_REUSEADDR`: the port may be shared with other ids that have set this option.
    pub(crate) reuse_address: bool,
}

/// Returns the process in the socket name `PID-STARTTIME-N`, with or without the suffix [`NOT_LISTENING_SUFFIX`].
pub(crate) fn process_in_socket_name(target: &str) -> Option<ProcessIdentity> {
    let (process, n) = target.rsplit_once('-')?;
    n.strip_suffix(NOT_LISTENING_SUFFIX)
        .unwrap_or(n)
        .parse::<u64>()
        .ok()?;
    process.parse().ok()
}

pub(crate) fn closed_file_name(port: u16) -> String {
    format!("{port}{CLOSED_FILE_SUFFIX}")
}

pub(crate) fn link_name_prefix(port_space: u32, port: u16) -> String {
    format!("{port_space:04x}.{port}.")
}

/// Families of addresses; each has its own wildcard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AddressFamily {
    V4,
    V6,
    Ib,
}

/// The address part of a link's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AddressInLinkName {
    /// A wildcard; `only` is true with `RDMA_OPTION_ID_AFONLY`.
    Any {
        family: AddressFamily,
        only: bool,
    },
    Ip(IpAddr),
    Gid([u8; 16]),
}

pub(crate) const fn wildcard_of_all_families(family: AddressFamily) -> AddressInLinkName {
    AddressInLinkName::Any {
        family,
        only: false,
    }
}

pub(crate) const fn wildcard_of_family_only(family: AddressFamily) -> AddressInLinkName {
    AddressInLinkName::Any { family, only: true }
}

impl AddressInLinkName {
    pub(crate) const WILDCARDS: [Self; 6] = [
        wildcard_of_all_families(AddressFamily::V4),
        wildcard_of_all_families(AddressFamily::V6),
        wildcard_of_all_families(AddressFamily::Ib),
        wildcard_of_family_only(AddressFamily::V4),
        wildcard_of_family_only(AddressFamily::V6),
        wildcard_of_family_only(AddressFamily::Ib),
    ];

    pub(crate) fn from_binding(binding: IdBinding) -> Self {
        let wildcard = |family| Self::Any {
            family,
            only: binding.afonly,
        };
        match binding.addr {
            IdAddress::Ib(addr) if addr.is_any() => wildcard(AddressFamily::Ib),
            IdAddress::Ib(addr) => Self::Gid(addr.gid),
            IdAddress::Ip(addr) => match addr.ip() {
                IpAddr::V4(ip) if ip.is_unspecified() => wildcard(AddressFamily::V4),
                IpAddr::V6(ip) if ip.is_unspecified() => wildcard(AddressFamily::V6),
                ip => Self::Ip(ip.to_canonical()),
            },
        }
    }

    /// Returns the addresses at which a listener for `addr` may be bound, most specific first.
    pub(crate) fn listener_addresses_for(addr: IdAddress) -> Vec<Self> {
        let of = |address, family| {
            vec![
                address,
                wildcard_of_all_families(family),
                wildcard_of_family_only(family),
            ]
        };
        match addr {
            IdAddress::Ib(addr) => of(Self::Gid(addr.gid), AddressFamily::Ib),
            IdAddress::Ip(addr) => match addr.ip().to_canonical() {
                ip @ IpAddr::V4(_) => {
                    let mut found = of(Self::Ip(ip), AddressFamily::V4);
                    // As for sockets, a wildcard of IPv6 includes IPv4, but not vice versa.
                    found.push(wildcard_of_all_families(AddressFamily::V6));
                    found
                }
                ip @ IpAddr::V6(_) => of(Self::Ip(ip), AddressFamily::V6),
            },
        }
    }

    pub(crate) fn link_name(self, port_space: u32, port: u16) -> String {
        format!(
            "{}{}",
            link_name_prefix(port_space, port),
            self.to_file_name_part()
        )
    }

    fn to_file_name_part(self) -> String {
        match self {
            Self::Any { family, only } => {
                let family = match family {
                    AddressFamily::V4 => "any4",
                    AddressFamily::V6 => "any6",
                    AddressFamily::Ib => "anyib",
                };
                format!("{family}{}", if only { "only" } else { "" })
            }
            // Colons and dots are legal in file names.
            Self::Ip(ip) => ip.to_string(),
            Self::Gid(gid) => format!("gid-{}", Ipv6Addr::from(gid)),
        }
    }

    /// Returns the errno with which a bind to this address fails because of a port at the address with the text
    /// `other`.
    pub(crate) fn bind_conflict_errno(self, other: &str) -> Option<i32> {
        let other_any = Self::WILDCARDS
            .into_iter()
            .find(|a| a.to_file_name_part() == other);
        match (self, other_any) {
            (
                Self::Any {
                    family: a,
                    only: true,
                },
                Some(Self::Any {
                    family: b,
                    only: true,
                }),
            ) if a != b => None,
            (Self::Ip(_) | Self::Gid(_), None) => {
                (self.to_file_name_part() == other).then_some(libc::EADDRINUSE)
            }
            _ => Some(libc::EADDRNOTAVAIL),
        }
    }
}
