//! A packet that came, and one that went.

use roce::icrc::Frame;

/// Bytes of the shortest packet: a BTH and an ICRC.
const MIN_BYTES: usize = 12 + 4;

/// A packet that came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received<'a> {
    /// Addresses and ports. The identification is what a Linux sender on a socket has written, the place in its burst,
    /// as far as this host put the burst together: a guess for [`roce::icrc::verify`].
    pub frame: Frame,
    /// Traffic class: DSCP and ECN (IPv4: type of service).
    pub traffic_class: u8,
    /// Hop limit (IPv4: time to live) as it came.
    pub hop_limit: Option<u8>,
    /// BTH to ICRC, at least 16 bytes.
    pub bytes: &'a [u8],
}

/// A packet that the kernel has taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent<'a> {
    /// Addresses, ports and identification.
    pub frame: Frame,
    /// Traffic class: DSCP and ECN (IPv4: type of service).
    pub traffic_class: u8,
    /// Hop limit (IPv4: time to live), the host's default included.
    pub hop_limit: u8,
    /// BTH to ICRC.
    pub bytes: &'a [u8],
}

impl<'a> Received<'a> {
    /// `None`: too short.
    pub(crate) fn new(
        frame: Frame,
        traffic_class: u8,
        hop_limit: Option<u8>,
        bytes: &'a [u8],
    ) -> Option<Received<'a>> {
        (bytes.len() >= MIN_BYTES).then_some(Received {
            frame,
            traffic_class,
            hop_limit,
            bytes,
        })
    }

    /// Whether a router marked the packet: congestion experienced.
    #[must_use]
    pub fn congestion_experienced(&self) -> bool {
        self.traffic_class & 3 == 3
    }

    /// The destination QPN.
    #[must_use]
    pub fn dest_qpn(&self) -> u32 {
        match self.bytes {
            [_, _, _, _, _, a, b, c, ..] => u32::from_be_bytes([0, *a, *b, *c]),
            _ => 0,
        }
    }
}
