//! QP1 of the device, by the functions of whoever has the NIC.

use verbs_abi::Gsi;

use crate::device::check;
use crate::errno::{Errno, Result};

/// The GID by which the port of this one is reached, and whether packets lead there.
pub(crate) fn route(gsi: &Gsi, mut dgid: [u8; 16]) -> ([u8; 16], bool) {
    // SAFETY: 16 bytes, as the function reads and writes.
    let is_by_packets = unsafe { (gsi.route)(dgid.as_mut_ptr()) } != 0;
    (dgid, is_by_packets)
}

/// Opens the way by packets; the process's slot.
pub(crate) fn open(gsi: &Gsi) -> Result<u16> {
    let slot = (gsi.open)();
    u16::try_from(slot).map_err(|_| Errno(slot.saturating_neg()))
}

/// Sends a management datagram.
pub(crate) fn send(gsi: &Gsi, from: &[u8; 16], to: &[u8; 16], mad: &[u8; 256]) -> Result {
    // SAFETY: 16, 16 and 256 bytes, as the function reads.
    check(unsafe { (gsi.send)(from.as_ptr(), to.as_ptr(), mad.as_ptr()) })
}
