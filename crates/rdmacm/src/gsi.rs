//! QP1 of the device, by the functions of whoever has the NIC.

use verbs_abi::Gsi;

use crate::device::check;
use crate::errno::{Errno, Result};

/// Whether queue pairs reach the port of this GID by packets.
pub(crate) fn is_by_packets(gsi: &Gsi, dgid: &[u8; 16]) -> bool {
    // SAFETY: 16 bytes, as the function reads.
    unsafe { (gsi.is_by_packets)(dgid.as_ptr()) != 0 }
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
