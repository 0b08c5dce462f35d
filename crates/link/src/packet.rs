//! Received and sent packets.

use roce::icrc::IcrcFields;

/// Bytes of the shortest packet: a BTH and an ICRC.
const MIN_PACKET_BYTES: usize = 12 + 4;

/// A received packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceivedPacket<'a> {
    /// Addresses and ports. The identification is the one that a Linux sender with a socket would have written: the
    /// packet's index in a burst that this host has reassembled. [`roce::icrc::recover_identification_if_icrc_valid`]
    /// uses it as a guess.
    pub icrc_fields: IcrcFields,
    /// Traffic class: DSCP and ECN (IPv4: type of service).
    pub traffic_class: u8,
    /// Hop limit (IPv4: time to live) of the received packet.
    pub hop_limit: Option<u8>,
    /// Bytes from the BTH through the ICRC, at least 16.
    pub bytes: &'a [u8],
}

/// A packet that the kernel has taken for sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SentPacket<'a> {
    /// Addresses, ports and identification.
    pub icrc_fields: IcrcFields,
    /// Traffic class: DSCP and ECN (IPv4: type of service).
    pub traffic_class: u8,
    /// Hop limit (IPv4: time to live), also if it is the host's default.
    pub hop_limit: u8,
    /// Bytes from the BTH through the ICRC.
    pub bytes: &'a [u8],
}

impl<'a> ReceivedPacket<'a> {
    /// Makes a received packet; `None` if it is too short.
    pub(crate) fn new(
        frame: IcrcFields,
        traffic_class: u8,
        hop_limit: Option<u8>,
        bytes: &'a [u8],
    ) -> Option<ReceivedPacket<'a>> {
        (bytes.len() >= MIN_PACKET_BYTES).then_some(ReceivedPacket {
            icrc_fields: frame,
            traffic_class,
            hop_limit,
            bytes,
        })
    }

    /// Returns true if a router marked the packet with "congestion experienced".
    #[must_use]
    pub fn is_congestion_experienced(&self) -> bool {
        self.traffic_class & 3 == 3
    }

    /// Returns the destination QPN.
    #[must_use]
    pub fn dest_qpn(&self) -> u32 {
        match self.bytes {
            [_, _, _, _, _, a, b, c, ..] => u32::from_be_bytes([0, *a, *b, *c]),
            _ => 0,
        }
    }
}
