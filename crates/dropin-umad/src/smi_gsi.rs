//! The functions that libibumad got in rdma-core 55 and 56. On XDR adapters, one device serves subnet management (SMI)
//! and another the general services (GSI). Here a device serves both.

use std::ffi::{c_char, c_int};

use rdma_netlink::Device;

use crate::abi::{
    NAME_BYTES, c_string_or_none, set_errno_and_negate, store_c_string, umad_open_port,
};
use crate::{devices, lookup};

/// `struct umad_ca_pair`.
#[repr(C)]
pub(crate) struct UmadCaPair {
    smi_name: [c_char; NAME_BYTES],
    smi_preferred_port: u32,
    gsi_name: [c_char; NAME_BYTES],
    gsi_preferred_port: u32,
}

impl UmadCaPair {
    fn of(device: &Device, port: u8) -> Self {
        let mut name = [0; NAME_BYTES];
        store_c_string(&mut name, &device.name);
        Self {
            smi_name: name,
            smi_preferred_port: port.into(),
            gsi_name: name,
            gsi_preferred_port: port.into(),
        }
    }
}

/// `umad_open_smi_port(3)`. Returns the descriptor of the port.
///
/// # Safety
/// `name` is NULL or a string.
pub(crate) unsafe extern "C" fn umad_open_smi_port(name: *const c_char, number: c_int) -> c_int {
    // SAFETY: contract of this function.
    unsafe { umad_open_port(name, number) }
}

/// `umad_get_smi_gsi_pairs(3)`. Returns the number of pairs, one for each device, without a preferred port.
///
/// # Safety
/// `pairs` has room for `max` pairs.
pub(crate) unsafe extern "C" fn umad_get_smi_gsi_pairs(
    pairs: *mut UmadCaPair,
    max: usize,
) -> c_int {
    let mut count = 0;
    for (at, device) in devices::all_devices().iter().take(max).enumerate() {
        // SAFETY: contract of this function.
        unsafe { pairs.add(at).write(UmadCaPair::of(device, 0)) };
        count += 1;
    }
    count
}

/// `umad_get_smi_gsi_pair_by_ca_name(3)`. NULL stands for the first device that has the port. Returns 0, or a negative
/// error number.
///
/// # Safety
/// `name` is NULL or a string; `pair` has room.
pub(crate) unsafe extern "C" fn umad_get_smi_gsi_pair_by_ca_name(
    name: *const c_char,
    number: u8,
    pair: *mut UmadCaPair,
    _enforce_smi: u32,
) -> c_int {
    // SAFETY: contract of this function.
    let name = unsafe { c_string_or_none(name) };
    let Some((device, port)) = lookup::port_of_any_link_layer(name, number) else {
        return set_errno_and_negate(libc::ENODEV);
    };
    // SAFETY: contract of this function.
    unsafe { pair.write(UmadCaPair::of(&device, port)) };
    0
}
