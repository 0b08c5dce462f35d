//! Checks frames of the kernel's Soft-RoCE (Linux 6.1.192, two `rxe` devices over a cable). The captures contain all of
//! its opcodes over IPv4 and IPv6. They also contain the connections of `rping`, `ucmatose`, `udaddy`, `rstream` and of
//! a refused `rping`.
//!

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, Ipv6Addr};

use roce::cm::CmMessage;
use roce::icrc::{self, IcrcFields, IpAddressPair};
use roce::opcode::{PacketOperation, Transport};
use roce::packet::{Packet, Syndrome};

const VERBS: &[u8] = include_bytes!("golden/verbs.pcap");
const CM: &[u8] = include_bytes!("golden/cm.pcap");

/// MigReq bit of the BTH, which Soft-RoCE sends as 0.
const MIG_REQ: u8 = 0x40;

/// Returns the Ethernet frames of a capture in the classic pcap format, little-endian.
fn frames(pcap: &[u8]) -> Vec<&[u8]> {
    let (header, mut rest) = pcap.split_at(24);
    assert_eq!(header[..4], [0xd4, 0xc3, 0xb2, 0xa1]);
    let mut frames = Vec::new();
    while let Some((record, behind)) = rest.split_at_checked(16) {
        let length = u32::from_le_bytes(*record[8..].first_chunk().expect("4 bytes"));
        let (frame, next) = behind.split_at(usize::try_from(length).expect("it fits"));
        frames.push(frame);
        rest = next;
    }
    frames
}

/// Splits an Ethernet frame: returns the headers in front of the BTH, and the UDP payload.
fn opened(ethernet: &[u8]) -> (IcrcFields, &[u8]) {
    let word = |at: usize| u16::from_be_bytes([ethernet[at], ethernet[at + 1]]);
    let v4 = |at: usize| Ipv4Addr::from_octets(*ethernet[at..].first_chunk().expect("4 bytes"));
    let v6 = |at: usize| Ipv6Addr::from_octets(*ethernet[at..].first_chunk().expect("16 bytes"));
    let (addresses, identification, udp) = if word(12) == 0x0800 {
        let (src, dst) = (v4(26), v4(30));
        (IpAddressPair::V4 { src, dst }, word(18), 34)
    } else {
        let (src, dst) = (v6(22), v6(38));
        (IpAddressPair::V6 { src, dst }, 0, 54)
    };
    let frame = IcrcFields {
        addresses,
        src_port: word(udp),
        dst_port: word(udp + 2),
        identification,
    };
    // Short Ethernet frames may be padded after the datagram.
    let length = usize::from(word(udp + 4));
    (frame, &ethernet[udp + 8..udp + length])
}

/// Returns all packets of both captures, from the BTH through the pad.
fn packets() -> Vec<&'static [u8]> {
    let all = frames(VERBS).into_iter().chain(frames(CM));
    all.map(|frame| icrc::split_off_icrc(opened(frame).1).expect("an ICRC").0)
        .collect()
}

#[test]
fn icrcs_are_those_of_soft_roce() {
    for ethernet in frames(VERBS).into_iter().chain(frames(CM)) {
        let (frame, datagram) = opened(ethernet);
        let (transport, received) = icrc::split_off_icrc(datagram).expect("an ICRC");
        assert_eq!(icrc::icrc(&frame, transport), received, "{frame:?}");
        // A socket does not report the identification.
        let guess = IcrcFields {
            identification: 0,
            ..frame
        };
        assert_eq!(
            icrc::recover_identification_if_icrc_valid(&guess, transport, received),
            Some(frame.identification)
        );
    }
}

#[test]
fn packets_are_emitted_as_soft_roce_does() {
    for transport in packets() {
        let packet = Packet::parse(transport).expect("a packet");
        let mut again = Vec::new();
        packet.emit(&mut again);
        again[1] &= !MIG_REQ;
        assert_eq!(again, transport, "{packet:?}");
    }
}

#[test]
fn each_opcode_of_soft_roce_is_there() {
    let opcodes: BTreeSet<u8> = packets().iter().map(|packet| packet[0]).collect();
    // RC without FLUSH and ATOMIC WRITE, which only later kernels have; UC; UD.
    let expected: BTreeSet<u8> = (0x00..=0x14)
        .chain(0x16..=0x17)
        .chain(0x20..=0x2b)
        .chain(0x64..=0x65)
        .collect();
    assert_eq!(opcodes, expected);
    let syndromes: BTreeSet<u8> = packets()
        .iter()
        .filter_map(|bytes| Packet::parse(bytes).ok()?.extended.aeth)
        .map(|aeth| aeth.syndrome.to_byte())
        .collect();
    let expected = [
        Syndrome::Ack(31),
        Syndrome::RnrNak(12),
        Syndrome::Nak(0),
        Syndrome::Nak(2),
    ];
    assert_eq!(syndromes, expected.map(Syndrome::to_byte).into());
}

#[test]
fn immediates_have_the_bytes_of_the_work_request() {
    let with_imm = packets()
        .into_iter()
        .filter_map(|bytes| Packet::parse(bytes).ok())
        .filter(|packet| packet.bth.transport == Transport::Rc)
        .filter_map(|packet| Some((packet.bth.operation, packet.extended.imm?)));
    let mut count = 0;
    for (operation, imm) in with_imm {
        assert!(matches!(
            operation,
            PacketOperation::Send | PacketOperation::Write
        ));
        // The sending program used the number of its step as immediate data.
        assert!((1..64).contains(&u32::from_be_bytes(imm)), "{imm:?}");
        count += 1;
    }
    assert!(count >= 6, "{count}");
}

#[test]
fn messages_of_connection_management_are_emitted_as_the_kernel_does() {
    let mut kinds = BTreeSet::new();
    for ethernet in frames(CM) {
        let (transport, _) = icrc::split_off_icrc(opened(ethernet).1).expect("an ICRC");
        let packet = Packet::parse(transport).expect("a packet");
        let (transaction, message) = CmMessage::parse(packet.payload).expect("a message");
        assert_eq!(message.emit(transaction), packet.payload, "{message:?}");
        kinds.insert(match message {
            CmMessage::Req(_) => "REQ",
            CmMessage::Mra(_) => "MRA",
            CmMessage::Rej(_) => "REJ",
            CmMessage::Rep(_) => "REP",
            CmMessage::Rtu(_) => "RTU",
            CmMessage::Dreq(_) => "DREQ",
            CmMessage::Drep(_) => "DREP",
            CmMessage::SidrReq(_) => "SIDR_REQ",
            CmMessage::SidrRep(_) => "SIDR_REP",
        });
    }
    let expected = [
        "DREP", "DREQ", "REJ", "REP", "REQ", "RTU", "SIDR_REP", "SIDR_REQ",
    ];
    assert_eq!(kinds, expected.into());
}
