//! QP1, as C functions for connection management.

use std::ffi::c_int;

use link::PacketFlow;
use roce::mad::MAD_BYTES;
use verbs_abi::Gsi;

use crate::process_nic;

/// Returns the functions by which connection management reaches the ports of other hosts.
#[must_use]
pub fn gsi_functions() -> &'static Gsi {
    static GSI: Gsi = Gsi {
        route: resolve_route,
        open: open_gsi_socket,
        send: send_mad,
    };
    &GSI
}

unsafe extern "C" fn resolve_route(dgid: *mut u8) -> c_int {
    let Ok(nic) = process_nic::process_nic() else {
        return 0;
    };
    let dgid = dgid.cast::<[u8; 16]>();
    // SAFETY: 16 bytes, as `Gsi` says.
    let asked = unsafe { dgid.read() };
    let gid = nic.first_port.replace_loopback_gid(asked);
    // SAFETY: as above.
    unsafe { dgid.write(gid) };
    c_int::from(nic.uses_packets(nic.first_port.is_gid_of_host(gid), true))
}

extern "C" fn open_gsi_socket() -> c_int {
    let Ok(nic) = process_nic::process_nic() else {
        return -libc::ENODEV;
    };
    match nic.open_network() {
        Ok(()) => c_int::try_from(nic.this_process().slot).unwrap_or(-libc::EINVAL),
        Err(errno) => -errno,
    }
}

unsafe extern "C" fn send_mad(sgid: *const u8, dgid: *const u8, mad: *const u8) -> c_int {
    let Ok(nic) = process_nic::process_nic() else {
        return libc::ENODEV;
    };
    // SAFETY: 16, 16 and 256 bytes, as `Gsi` says.
    let (sgid, dgid, mad) = unsafe {
        (
            sgid.cast::<[u8; 16]>().read(),
            dgid.cast::<[u8; 16]>().read(),
            mad.cast::<[u8; MAD_BYTES]>().read(),
        )
    };
    let Some(addresses) = nic.first_port.frame_addresses(sgid, dgid) else {
        return libc::EADDRNOTAVAIL;
    };
    let flow = PacketFlow {
        addresses,
        traffic_class: 0,
        hop_limit: HOP_LIMIT,
    };
    nic.packet_path.send_mad(&flow, &mad);
    0
}

/// The hop limit that Linux gives to every connection over RoCE (`IPV6_DEFAULT_HOPLIMIT`).
const HOP_LIMIT: u8 = 64;
