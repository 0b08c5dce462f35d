//! The functions that libibumad got in rdma-core 54 and 56. On XDR adapters, one device serves subnet management (SMI) and
//! another the general services (GSI). Here a device serves both.

use std::ffi::{c_char, c_int};

use rdma_netlink::Device;

use crate::abi::{
    NAME_BYTES, first_active_ib_port, set_errno_and_negate, store, string, umad_open_port,
};
use crate::devices;

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
        store(&mut name, &device.name);
        Self {
            smi_name: name,
            smi_preferred_port: port.into(),
            gsi_name: name,
            gsi_preferred_port: port.into(),
        }
    }
}

/// Returns the number of an InfiniBand port; 0 stands for the first active one.
fn ib_port_or_first_active(device: &Device, number: u8) -> Option<u8> {
    let Some(at) = usize::from(number).checked_sub(1) else {
        return first_active_ib_port(device);
    };
    device.ports.get(at)?.subnet.as_ref().map(|_| number)
}

/// `umad_open_smi_port(3)`. Returns the descriptor of the port.
///
/// # Safety
/// `name` is NULL or a string.
pub(crate) unsafe extern "C" fn umad_open_smi_port(name: *const c_char, number: c_int) -> c_int {
    // SAFETY: contract of this function.
    unsafe { umad_open_port(name, number) }
}

/// `umad_get_smi_gsi_pairs(3)`. Returns the number of pairs, one for each device with an active InfiniBand port.
///
/// # Safety
/// `pairs` has room for `max` pairs.
pub(crate) unsafe extern "C" fn umad_get_smi_gsi_pairs(
    pairs: *mut UmadCaPair,
    max: usize,
) -> c_int {
    let all = devices::all();
    let found = all
        .iter()
        .filter_map(|device| Some(UmadCaPair::of(device, first_active_ib_port(device)?)));
    let mut count = 0;
    for (at, pair) in found.take(max).enumerate() {
        // SAFETY: contract of this function.
        unsafe { pairs.add(at).write(pair) };
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
    let name = unsafe { string(name) };
    let all = devices::all();
    let mut named = all
        .iter()
        .filter(|device| name.is_none_or(|name| device.name == name));
    let found = named.find_map(|device| {
        Some(UmadCaPair::of(
            device,
            ib_port_or_first_active(device, number)?,
        ))
    });
    let Some(found) = found else {
        return set_errno_and_negate(libc::ENODEV);
    };
    // SAFETY: contract of this function.
    unsafe { pair.write(found) };
    0
}
