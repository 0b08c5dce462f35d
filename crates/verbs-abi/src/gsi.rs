//! QP1, the general services interface (GSI) of a port, for connection management. libibverbs has
//! no such interface: with a real NIC, the kernel sends the management datagrams.

use std::ffi::c_int;

/// The packet path for management datagrams: a table of C functions of the NIC's provider.
///
/// A GID is 16 bytes in network order. The functions of this table do not receive: datagrams for
/// QP1 arrive at a socket in the fabric's folder.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Gsi {
    /// Returns 1 if packets reach the port of the GID `dgid`, or 0 if shared memory reaches it. The
    /// function replaces the GID of a loopback address by the GID for which that address stands.
    pub route: unsafe extern "C" fn(dgid: *mut u8) -> c_int,
    /// Opens the packet path if it is not open yet. Returns the process's slot, or a negative
    /// errno.
    pub open: extern "C" fn() -> c_int,
    /// Sends a management datagram of 256 bytes from QP1 of the own port `sgid` to QP1 of the port
    /// `dgid`. Returns 0 or an errno.
    pub send: unsafe extern "C" fn(sgid: *const u8, dgid: *const u8, mad: *const u8) -> c_int,
}
