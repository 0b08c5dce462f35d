//! How many devices and ports there are, and the places that ports have.

use std::ffi::{OsStr, OsString};
use std::net::Ipv4Addr;

/// The environment variable with the number of devices.
pub const DEVICE_COUNT_VAR: &str = "VERBATIM_DEVICE_COUNT";
/// The environment variable with the number of ports of each device.
pub const PORT_COUNT_VAR: &str = "VERBATIM_PORT_COUNT";
/// Most devices.
pub const MAX_DEVICES: u8 = 8;
/// Most ports of a device.
pub const MAX_PORTS: u8 = 4;

/// How many devices there are, and how many ports each of them has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceAndPortCounts {
    devices: u8,
    ports_per_device: u8,
}

impl Default for DeviceAndPortCounts {
    fn default() -> Self {
        Self {
            devices: 1,
            ports_per_device: 1,
        }
    }
}

/// A number of devices or ports that cannot be had.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{variable} is {value:?}: it is a number from 1 to {max}")]
pub struct BadCount {
    variable: &'static str,
    value: OsString,
    max: u8,
}

impl DeviceAndPortCounts {
    /// So many devices with so many ports each; no more than [`MAX_DEVICES`] and [`MAX_PORTS`], and at least one of
    /// both.
    #[must_use]
    pub fn new(devices: u8, ports: u8) -> Self {
        Self {
            devices: devices.clamp(1, MAX_DEVICES),
            ports_per_device: ports.clamp(1, MAX_PORTS),
        }
    }

    /// Reads the counts from the environment. The default is one device with one port.
    ///
    /// # Errors
    /// Other values than numbers from 1 to [`MAX_DEVICES`] and [`MAX_PORTS`].
    pub fn from_env() -> Result<Self, BadCount> {
        let read = |variable: &'static str, max| {
            parse_count(variable, std::env::var_os(variable).as_deref(), max)
        };
        Ok(Self {
            devices: read(DEVICE_COUNT_VAR, MAX_DEVICES)?,
            ports_per_device: read(PORT_COUNT_VAR, MAX_PORTS)?,
        })
    }

    /// Devices.
    #[must_use]
    pub fn devices(self) -> u8 {
        self.devices
    }

    /// Ports of each device.
    #[must_use]
    pub fn ports_per_device(self) -> u8 {
        self.ports_per_device
    }

    /// Ports of all devices.
    pub(super) fn total_port_count(self) -> usize {
        usize::from(self.devices) * usize::from(self.ports_per_device)
    }

    pub(super) fn has_port(self, place: PortPlace) -> bool {
        place.device < self.devices && place.port_num <= self.ports_per_device
    }
}

fn parse_count(variable: &'static str, value: Option<&OsStr>, max: u8) -> Result<u8, BadCount> {
    let Some(value) = value else { return Ok(1) };
    let number = value.to_str().and_then(|text| text.parse().ok());
    number
        .filter(|number| (1..=max).contains(number))
        .ok_or_else(|| BadCount {
            variable,
            value: value.to_owned(),
            max,
        })
}

/// Where a port is: the number of its device, from 0, and its own number there, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PortPlace {
    pub(crate) device: u8,
    pub(crate) port_num: u8,
}

impl PortPlace {
    /// Port 1 of the first device.
    pub(crate) const FIRST: Self = Self {
        device: 0,
        port_num: 1,
    };

    /// All places that there can be, by device and port.
    pub(super) fn all_possible() -> impl Iterator<Item = Self> {
        (0..MAX_DEVICES)
            .flat_map(|device| (1..=MAX_PORTS).map(move |port_num| Self { device, port_num }))
    }

    /// A number from 1, which is different for all ports of a host: on InfiniBand, the LID. There is no subnet manager
    /// to hand out others; 1 is the first unicast LID (IBTA vol. 1, 4.1.3).
    pub(crate) fn host_wide_number(self) -> u16 {
        u16::from(self.device) * u16::from(MAX_PORTS) + u16::from(self.port_num)
    }

    /// The address of a port that no interface of the host is left for. The whole network 127.0.0.0/8 is the host's
    /// own, so packets come to this address as they do to any other.
    pub(super) fn fallback_loopback_address(self) -> Ipv4Addr {
        Ipv4Addr::new(127, 251, self.device, self.port_num)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_range_are_read_and_others_refused() {
        let read = |value: &str| parse_count(PORT_COUNT_VAR, Some(OsStr::new(value)), MAX_PORTS);
        assert_eq!(parse_count(PORT_COUNT_VAR, None, MAX_PORTS).ok(), Some(1));
        assert_eq!(read("2").ok(), Some(2));
        assert_eq!(read("4").ok(), Some(MAX_PORTS));
        for wrong in ["", "0", "5", "-1", "two", "300"] {
            let err = read(wrong).expect_err(wrong).to_string();
            assert!(
                err.contains(PORT_COUNT_VAR) && err.contains("1 to 4"),
                "{err}"
            );
        }
    }

    #[test]
    fn every_place_has_a_number_of_its_own() {
        let mut numbers: Vec<_> = PortPlace::all_possible()
            .map(PortPlace::host_wide_number)
            .collect();
        assert_eq!(numbers.first(), Some(&1));
        numbers.dedup();
        assert_eq!(
            numbers.len(),
            usize::from(MAX_DEVICES) * usize::from(MAX_PORTS)
        );
    }
}
