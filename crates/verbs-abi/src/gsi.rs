//! QP1, the general services interface of a port, as connection management uses it: no part of libibverbs, whose
//! programs leave it to the kernel.

use std::ffi::c_int;

/// The way by packets for management datagrams: C functions of whoever has the NIC.
///
/// A GID is 16 bytes in network order. These functions do not receive. Datagrams for QP1 arrive at a socket of the
/// fabric's folder.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Gsi {
    /// Whether queue pairs reach the port of this GID by packets: 1, or 0 where shared memory leads to it. The GID of a
    /// loopback address is replaced by the one that it stands for.
    pub route: unsafe extern "C" fn(dgid: *mut u8) -> c_int,
    /// Opens the way by packets, if it is not open. Returns the process's slot, or a negative errno.
    pub open: extern "C" fn() -> c_int,
    /// Sends a management datagram of 256 bytes from QP1 of the own port `sgid` to QP1 of the port `dgid`. Returns 0, or
    /// an errno.
    pub send: unsafe extern "C" fn(sgid: *const u8, dgid: *const u8, mad: *const u8) -> c_int,
}
