//! Properties of a device, in each version of NCCL's structure.

use std::ffi::c_int;
use std::ptr::null;

use crate::abi::*;
use crate::device::Device;

/// The largest payload of a message.
const MAX_MESSAGE_BYTES: usize = 1 << 30;
/// The most receives of a group: `collective::MAX_RECEIVES_PER_GROUP`.
pub(crate) const MAX_GROUPED_RECEIVES: c_int = 8;

/// A version of NCCL's properties.
pub(crate) trait FromDevice {
    /// Returns the properties of the device with this number.
    fn from_device(device: &'static Device, number: c_int) -> Self;
}

/// Implements [`FromDevice`] with the fields of all versions, and the given fields of this version.
macro_rules! from_device {
    ($($name:ident |$number:ident| { $($field:ident: $value:expr,)* })*) => {
        $(impl FromDevice for $name {
            fn from_device(device: &'static Device, $number: c_int) -> Self {
                let _ = $number;
                Self {
                    name: device.name.as_ptr(),
                    pci_path: device.pci_path.as_ref().map_or(null(), |path| path.as_ptr()),
                    guid: device.guid,
                    ptr_support: PTR_HOST,
                    speed: device.speed_mbps,
                    port: device.port_num.into(),
                    // Unknown: NCCL then uses its own estimate.
                    latency: 0.0,
                    max_comms: device.max_comms,
                    max_recvs: MAX_GROUPED_RECEIVES,
                    $($field: $value,)*
                }
            }
        })*
    };
}

// Registrations belong to the device's protection domain, so they are valid for all of its comms:
// `reg_is_global`. A virtual device is one physical port.
from_device! {
    PropertiesV6 |number| {}
    PropertiesV7 |number| { net_device_type: 0, net_device_version: 0, }
    PropertiesV8 |number| { reg_is_global: 1, net_device_type: 0, net_device_version: 0, }
    PropertiesV9 |number| {
        reg_is_global: 1, force_flush: 0, net_device_type: 0, net_device_version: 0,
        v_props: VDeviceV9 { ndevs: 1, devs: [number, 0, 0, 0] },
        max_p2p_bytes: MAX_MESSAGE_BYTES, max_coll_bytes: MAX_MESSAGE_BYTES,
    }
    PropertiesV11 |number| {
        reg_is_global: 1, force_flush: 0, net_device_type: 0, net_device_version: 0,
        v_props: VDeviceV9 { ndevs: 1, devs: [number, 0, 0, 0] },
        max_p2p_bytes: MAX_MESSAGE_BYTES, max_coll_bytes: MAX_MESSAGE_BYTES, max_multi_request_size: 1,
    }
    PropertiesV12 |number| {
        reg_is_global: 1, force_flush: 0, net_device_type: 0, net_device_version: 0,
        v_props: VDeviceV12 { ndevs: 1, devs: [number, 0, 0, 0, 0, 0, 0, 0] },
        max_p2p_bytes: MAX_MESSAGE_BYTES, max_coll_bytes: MAX_MESSAGE_BYTES, max_multi_request_size: 1, rail_id: -1, plane_id: -1,
    }
}
