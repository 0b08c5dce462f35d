//! The bodies of this crate's fuzz targets, and the replay of their corpora.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::cm::{CmMessage, CmParseError, IpCmHeader};
use crate::icrc::{self, IcrcFields, IpAddressPair};
use crate::packet::Packet;

/// Parses `bytes` as a datagram from a UDP socket: a packet must be equal after emitting and parsing it again, and an
/// error must have a message. If the ICRC is accepted, the identification that was found must produce that ICRC.
///
/// The first bit selects the addresses: IPv4 if it is 0, else IPv6.
///
/// # Panics
/// One of these properties is violated.
pub fn packets(bytes: &[u8]) {
    let [kind, datagram @ ..] = bytes else {
        return;
    };
    let Some((transport, received)) = icrc::split_off_icrc(datagram) else {
        return;
    };
    check_icrc(kind & 1 == 0, transport, received);
    match Packet::parse(transport) {
        Err(error) => assert!(!error.to_string().is_empty()),
        Ok(packet) => {
            let mut again = Vec::new();
            packet.emit(&mut again);
            assert_eq!(again.len(), transport.len());
            assert_eq!(Packet::parse(&again), Ok(packet));
        }
    }
}

fn check_icrc(v4: bool, transport: &[u8], received: u32) {
    let addresses = if v4 {
        IpAddressPair::V4 {
            src: Ipv4Addr::LOCALHOST,
            dst: Ipv4Addr::LOCALHOST,
        }
    } else {
        IpAddressPair::V6 {
            src: Ipv6Addr::LOCALHOST,
            dst: Ipv6Addr::LOCALHOST,
        }
    };
    let frame = IcrcFields {
        addresses,
        src_port: 0xc000,
        dst_port: crate::UDP_PORT,
        identification: 0,
    };
    match icrc::recover_identification_if_icrc_valid(&frame, transport, received) {
        Some(identification) => {
            let explained = frame.for_gso_segment(identification);
            assert_eq!(icrc::icrc(&explained, transport), received);
        }
        None => assert_ne!(icrc::icrc(&frame, transport), received),
    }
}

/// Parses `bytes` as a management datagram: a message must be equal after emitting and parsing it again, and an error
/// must have a message.
///
/// # Panics
/// One of these properties is violated.
pub fn mads(bytes: &[u8]) {
    match CmMessage::parse(bytes) {
        Err(error) => {
            assert!(!error.to_string().is_empty());
            assert_eq!(
                matches!(error, CmParseError::Mad(_)),
                bytes.len() != 256 || bytes[0] != 1
            );
        }
        Ok((transaction, message)) => {
            let again = message.emit(transaction);
            assert_eq!(CmMessage::parse(&again), Ok((transaction, message)));
            let private_data = match &message {
                CmMessage::Req(req) => &*req.private_data,
                CmMessage::SidrReq(req) => &*req.private_data,
                _ => return,
            };
            if let Ok((header, consumer)) = IpCmHeader::parse(private_data) {
                let again = [&header.emit()[..], consumer].concat();
                assert_eq!(IpCmHeader::parse(&again), Ok((header, consumer)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_corpus_of_packets_is_replayed() {
        corpus::replay("packets", super::packets);
    }

    #[test]
    fn the_corpus_of_mads_is_replayed() {
        corpus::replay("mads", super::mads);
    }
}
