//! The devices of this host and their ports: how many there are, and which GUIDs, LIDs and addresses each of them has.
//!
//! All ports are ports of one switched subnet. A port's names depend on its place alone, not on the number of ports:
//! the processes of a fabric know each other's ports, however many they present themselves.

use std::ffi::OsStr;
use std::net::Ipv4Addr;

use super::device_and_port_counts::{DeviceAndPortCounts, PortPlace};
use super::guid::{guid_of_address_list, guid_of_device_or_port, read_node_guid};
use super::interfaces::{
    ADDRESS_VAR, InterfaceAddress, addresses_in_list, filter_port_addresses, guid_of_interface,
    interface_addresses,
};
use super::link_layer::{LinkLayer, PortError};
use super::port::{OtherPort, Port};
use crate::identity::Identity;

/// A device with its ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Device {
    /// Its place in the list of devices.
    pub(crate) number: u8,
    /// What `ibv_get_device_name(3)` returns.
    pub(crate) name: String,
    pub(crate) node_guid: [u8; 8],
    /// From port 1 on; at least one.
    ports: Vec<Port>,
}

impl Device {
    /// The port with this number.
    ///
    /// # Errors
    /// `EINVAL`: there is none.
    pub(crate) fn port(&self, port_num: impl Into<u32>) -> Result<&Port, i32> {
        let index = usize::try_from(port_num.into())
            .ok()
            .and_then(|number| number.checked_sub(1));
        index
            .and_then(|index| self.ports.get(index))
            .ok_or(libc::EINVAL)
    }

    /// Has another port instead of the first.
    #[cfg(test)]
    pub(crate) fn replace_first_port(&mut self, port: Port) {
        self.ports[0] = port;
    }

    /// All ports, from port 1 on.
    pub(crate) fn ports(&self) -> &[Port] {
        &self.ports
    }

    /// `phys_port_cnt` of `ibv_query_device(3)`.
    pub(crate) fn port_count(&self) -> u8 {
        u8::try_from(self.ports.len()).unwrap_or(u8::MAX)
    }

    /// Returns the link layer, which all ports of a host share.
    pub(crate) fn link_layer(&self) -> LinkLayer {
        self.ports
            .first()
            .map_or(LinkLayer::Ethernet, |port| port.link_layer)
    }
}

/// Settings of a process from which its ports are made.
struct PortSettings {
    link_layer: LinkLayer,
    device_and_port_counts: DeviceAndPortCounts,
    /// GUID of the host.
    host_guid: [u8; 8],
    /// GUID of the first port.
    first_port_guid: [u8; 8],
    /// The addresses that the ports were given; `None`: the first port has those of the host.
    configured_addresses: Option<Vec<InterfaceAddress>>,
    host_addresses: Vec<InterfaceAddress>,
}

/// The devices of this host, from the environment, and the first port of the first of them; `link_layer` is a value of
/// `VERBATIM_LINK_LAYER`.
///
/// # Errors
/// As [`PortError`] says.
pub(crate) fn devices_from_env(
    link_layer: Option<&OsStr>,
    identity: &Identity,
    counts: DeviceAndPortCounts,
) -> Result<(Vec<Device>, Port), PortError> {
    let link_layer = LinkLayer::from_env_value(link_layer)?;
    let guid = read_node_guid().map_err(PortError::CannotReadHostId)?;
    let all = match link_layer {
        LinkLayer::Ethernet => interface_addresses().map_err(PortError::CannotReadAddresses)?,
        LinkLayer::InfiniBand => Vec::new(),
    };
    let list = std::env::var_os(ADDRESS_VAR).filter(|_| link_layer == LinkLayer::Ethernet);
    let mut host = PortSettings {
        link_layer,
        device_and_port_counts: counts,
        host_guid: guid,
        first_port_guid: guid,
        configured_addresses: None,
        host_addresses: all,
    };
    if let Some(list) = list {
        let list = list.to_string_lossy();
        let no_such = || PortError::NoSuchAddress(list.clone().into_owned());
        let addresses = addresses_in_list(&host.host_addresses, &list).ok_or_else(no_such)?;
        let ports = counts.total_port_count();
        if addresses.len() < ports {
            return Err(PortError::TooFewAddresses {
                list: list.clone().into_owned(),
                ports,
            });
        }
        host.configured_addresses = Some(addresses);
        // A port with addresses of its own is a host of its own.
        host.first_port_guid = guid_of_address_list(guid, &list);
    } else if link_layer == LinkLayer::Ethernet {
        host.first_port_guid =
            guid_of_interface(&filter_port_addresses(host.host_addresses.clone())).unwrap_or(guid);
    }
    Ok(host.make_devices(identity))
}

/// The devices of a host with these addresses, of which `chosen` were given to its ports.
#[cfg(test)]
pub(super) fn devices_of_host(
    link_layer: LinkLayer,
    counts: DeviceAndPortCounts,
    all: Vec<InterfaceAddress>,
    chosen: Option<Vec<InterfaceAddress>>,
) -> Vec<Device> {
    let guid = [0x02, 1, 2, 3, 4, 5, 6, 7];
    let host = PortSettings {
        link_layer,
        device_and_port_counts: counts,
        host_guid: guid,
        first_port_guid: guid,
        configured_addresses: chosen,
        host_addresses: all,
    };
    host.make_devices(&Identity::default()).0
}

impl PortSettings {
    fn make_devices(&self, identity: &Identity) -> (Vec<Device>, Port) {
        // Ports that this process does not have may be another's of this host. One with addresses of its own is another
        // host.
        let places = PortPlace::all_possible().filter(|place| {
            self.configured_addresses.is_none() || self.device_and_port_counts.has_port(*place)
        });
        let ports: Vec<Port> = places
            .enumerate()
            .map(|(n, place)| self.make_port(place, n))
            .collect();
        let with_others = |port: &Port| {
            let others = ports.iter().filter(|other| other.place != port.place);
            port.with_other_ports(others.map(|other| {
                OtherPort::new(other, self.device_and_port_counts.has_port(other.place))
            }))
        };
        let device = |number: u8| Device {
            number,
            name: identity.name_of_device(number),
            node_guid: match number {
                0 => self.host_guid,
                _ => guid_of_device_or_port(self.host_guid, &format!("device {number}")),
            },
            ports: ports
                .iter()
                .filter(|port| {
                    port.place.device == number && self.device_and_port_counts.has_port(port.place)
                })
                .map(with_others)
                .collect(),
        };
        let first = with_others(&self.make_port(PortPlace::FIRST, 0));
        (
            (0..self.device_and_port_counts.devices())
                .map(device)
                .collect(),
            first,
        )
    }

    /// The port at the `n`-th place.
    fn make_port(&self, place: PortPlace, n: usize) -> Port {
        let addresses = match &self.configured_addresses {
            // Dealt in turn.
            Some(addresses) => {
                let ports = self.device_and_port_counts.total_port_count();
                addresses.iter().skip(n).step_by(ports).cloned().collect()
            }
            None if place == PortPlace::FIRST => filter_port_addresses(self.host_addresses.clone()),
            None => self
                .fallback_loopback_interface_address(place)
                .into_iter()
                .collect(),
        };
        let guid = match place {
            PortPlace::FIRST => self.first_port_guid,
            PortPlace { device, port_num } => guid_of_device_or_port(
                self.first_port_guid,
                &format!("device {device} port {port_num}"),
            ),
        };
        Port::new(self.link_layer, place, guid, addresses)
    }

    fn fallback_loopback_interface_address(&self, place: PortPlace) -> Option<InterfaceAddress> {
        let interface = self
            .host_addresses
            .iter()
            .find(|a| a.ip == Ipv4Addr::LOCALHOST)?;
        Some(InterfaceAddress {
            ip: place.fallback_loopback_address().into(),
            ..interface.clone()
        })
    }
}
