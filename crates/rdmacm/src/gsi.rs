//! QP1 of the device, by the functions of the provider.

use verbs_abi::Gsi;

use crate::device_port::check_returned_errno;
use crate::errno::{Errno, Result};

/// Returns the GID by which the port `dgid` is reached, and true if it is reached by packets.
pub(crate) fn gid_and_reached_by_packets(gsi: &Gsi, mut dgid: [u8; 16]) -> ([u8; 16], bool) {
    // SAFETY: 16 bytes, as the function reads and writes.
    let is_by_packets = unsafe { (gsi.route)(dgid.as_mut_ptr()) } != 0;
    (dgid, is_by_packets)
}

/// Opens QP1 for messages to other hosts; returns the process's slot.
pub(crate) fn open_qp1(gsi: &Gsi) -> Result<u16> {
    let slot = (gsi.open)();
    u16::try_from(slot).map_err(|_| Errno(slot.saturating_neg()))
}

/// Sends a management datagram.
pub(crate) fn send_mad(gsi: &Gsi, from: &[u8; 16], to: &[u8; 16], mad: &[u8; 256]) -> Result {
    // SAFETY: the pointers lead to 16, 16 and 256 bytes, as the function reads.
    check_returned_errno(unsafe { (gsi.send)(from.as_ptr(), to.as_ptr(), mad.as_ptr()) })
}
