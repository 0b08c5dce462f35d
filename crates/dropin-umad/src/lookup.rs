//! The device and the port that a caller means. Results are those of libibumad of rdma-core 56 (Debian 13).

use std::ffi::{CStr, c_int};

use rdma_netlink::Device;

use crate::devices;

/// The reason why there is no such port.
pub(crate) enum PortNotFound {
    /// The caller leaves the port to the library, and there is no device of this name.
    NoDevice,
    /// The device or its port does not exist.
    NoPort,
}

/// Returns the device of a name, if it is valid UTF-8 and exists.
fn find_device_by_c_name(name: &CStr) -> Option<Device> {
    devices::find_device_by_name(name.to_str().ok()?)
}

/// Returns the first active InfiniBand port of a device.
fn first_active_ib_port(device: &Device) -> Option<u8> {
    let mut ports = (1..=u8::MAX).zip(&device.ports);
    let best = ports.find(|(_, port)| port.subnet_attributes.is_some() && port.state == Some(4));
    best.map(|(number, _)| number)
}

/// Returns true if a device has a port of this number.
fn has_port(device: &Device, number: u8) -> bool {
    (1..=device.ports.len()).contains(&usize::from(number))
}

/// Returns the number of the port to which a device's name alone leads: the first active InfiniBand port, or else port
/// 1.
fn default_port(device: &Device) -> Option<u8> {
    let number = first_active_ib_port(device).unwrap_or(1);
    has_port(device, number).then_some(number)
}

/// Returns the device of a name. NULL stands for the first device with an active InfiniBand port, or else the first.
pub(crate) fn find_device_or_default(name: Option<&CStr>) -> Option<Device> {
    if let Some(name) = name {
        return find_device_by_c_name(name);
    }
    let mut all = devices::all_devices();
    let best = all
        .iter()
        .position(|device| first_active_ib_port(device).is_some());
    let at = best.unwrap_or(0);
    (at < all.len()).then(|| all.swap_remove(at))
}

/// Returns the device of a name and the number of its port. 0 stands for the best port. With NULL as the name, so do
/// negative numbers, and the device is the first that has the port as InfiniBand.
pub(crate) fn find_device_and_port(
    name: Option<&CStr>,
    number: c_int,
) -> Result<(Device, u8), PortNotFound> {
    if number == 0 || name.is_none() && number < 0 {
        let device = find_device_or_default(name).ok_or(PortNotFound::NoDevice)?;
        let number = default_port(&device).ok_or(PortNotFound::NoDevice)?;
        return Ok((device, number));
    }
    let number = u8::try_from(number).map_err(|_| PortNotFound::NoPort)?;
    let device = match name {
        Some(name) => find_device_by_c_name(name).filter(|device| has_port(device, number)),
        None => devices::all_devices().into_iter().find(|device| {
            let port = device.ports.get(usize::from(number).wrapping_sub(1));
            port.is_some_and(|port| port.subnet_attributes.is_some())
        }),
    };
    device
        .map(|device| (device, number))
        .ok_or(PortNotFound::NoPort)
}

/// Returns the device of a name that has a port of this number, of either link layer, and the port; 0 stands for the
/// best one. NULL stands for the first such device.
pub(crate) fn port_of_any_link_layer(name: Option<&CStr>, number: u8) -> Option<(Device, u8)> {
    let is_meant =
        |device: &Device| name.is_none_or(|name| name.to_bytes() == device.name.as_bytes());
    devices::all_devices()
        .into_iter()
        .filter(is_meant)
        .find_map(|device| {
            let number = match number {
                0 => default_port(&device)?,
                _ => number,
            };
            has_port(&device, number).then_some((device, number))
        })
}
