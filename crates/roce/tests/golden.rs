//! Compares headers and ICRCs with frames of an independent implementation, scapy's RoCE layer (scapy 2.6 and later,
//! `scapy.contrib.roce`).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use roce::icrc::{self, IcrcFields, IpAddressPair};
use roce::opcode::{MessagePosition, PacketOperation, Transport};
use roce::packet::{Aeth, Deth, Packet, Reth, Syndrome};

/// Ethernet frames as scapy built them.
mod frames {
    pub(crate) const RC_WRITE_ONLY: &str = "0200000000020200000000010800456b0044000040003d115102c0000201c6336407df9412b70030bd000a70ffff8000001180fffff000007f00112233441234abcd0000000568656c6c6f0000007cb216a1";
    pub(crate) const RC_SEND_IMM: &str = "0200000000020200000000010800456b0040beef40003d119216c0000201c6336407f80612b7002cb4a705c0ffff001234568000000101020304000102030405060708090a0b0c0d0e0f9cfac089";
    pub(crate) const RC_ACK_V6: &str = "02000000000202000000000186dd66b12345001c110920010db8000000000000000000000001fe800000000000000000000000020007d07812b7001cabf71140ffff00000012000000771f0001029c30764f";
    pub(crate) const UD_SEND_V6: &str = "02000000000202000000000186dd66b123450024110920010db8000000000000000000000001fe800000000000000000000000020007e8ea12b70024e0f86450ffff0000000100000003800100000000000161626300793ed4cf";
    pub(crate) const CNP: &str = "0200000000020200000000010800456b003c000740003d115103c0000201c6336407c12312b70028b7d18100ffff4000009900000000000000000000000000000000000000005f876694";
    pub(crate) const UC_WRITE_MIDDLE: &str = "0200000000020200000000010800456b012c010240003d114f18c0000201c6336407c00012b701186dad2740ffff000000200000000900070e151c232a31383f464d545b626970777e858c939aa1a8afb6bdc4cbd2d9e0e7eef5fc030a11181f262d343b424950575e656c737a81888f969da4abb2b9c0c7ced5dce3eaf1f8ff060d141b222930373e454c535a61686f767d848b9299a0a7aeb5bcc3cad1d8dfe6edf4fb020910171e252c333a41484f565d646b727980878e959ca3aab1b8bfc6cdd4dbe2e9f0f7fe050c131a21282f363d444b525960676e757c838a91989fa6adb4bbc2c9d0d7dee5ecf3fa01080f161d242b323940474e555c636a71787f868d949ba2a9b0b7bec5ccd3dae1e8eff6fd040b121920272e353c434a51585f666d747b828990979ea5acb3bac1c8cfd6dde4ebf2f9e55a0419";
    pub(crate) const ALL: [&str; 6] = [
        RC_WRITE_ONLY,
        RC_SEND_IMM,
        RC_ACK_V6,
        UD_SEND_V6,
        CNP,
        UC_WRITE_MIDDLE,
    ];
}

/// Splits an Ethernet frame: returns the headers in front of the BTH, and the UDP payload.
fn opened(hex: &str) -> (IcrcFields, Vec<u8>) {
    let bytes: Vec<u8> = (0..hex.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).expect("two digits"))
        .collect();
    let word = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
    let part = |at: usize| <[u8; 16]>::try_from(&bytes[at..at + 16]).expect("16 bytes");
    let address = |at: usize| Ipv4Addr::from_octets(*bytes[at..].first_chunk().expect("4 bytes"));
    let (addresses, udp) = if word(12) == 0x0800 {
        let (src, dst) = (address(26), address(30));
        (IpAddressPair::V4 { src, dst }, 34)
    } else {
        let (src, dst) = (
            Ipv6Addr::from_octets(part(22)),
            Ipv6Addr::from_octets(part(38)),
        );
        (IpAddressPair::V6 { src, dst }, 54)
    };
    let frame = IcrcFields {
        addresses,
        src_port: word(udp),
        dst_port: word(udp + 2),
        identification: if udp == 34 { word(18) } else { 0 },
    };
    (frame, bytes[udp + 8..].to_vec())
}

#[test]
fn icrcs_are_those_of_scapy() {
    for hex in frames::ALL {
        let (frame, datagram) = opened(hex);
        let (transport, icrc) = icrc::split_off_icrc(&datagram).expect("an ICRC");
        assert_eq!(icrc::icrc(&frame, transport), icrc, "{hex}");
        let mut again = transport.to_vec();
        icrc::append_icrc(&frame, &mut again, 0);
        assert_eq!(again, datagram);
    }
}

#[test]
fn packets_are_those_of_scapy() {
    for hex in frames::ALL {
        let (_, datagram) = opened(hex);
        let (transport, _) = icrc::split_off_icrc(&datagram).expect("an ICRC");
        let packet = Packet::parse(transport).expect(hex);
        let mut again = Vec::new();
        packet.emit(&mut again);
        assert_eq!(again, transport, "{hex}");
    }
}

#[test]
fn fields_are_those_that_scapy_was_given() {
    let (_, write) = opened(frames::RC_WRITE_ONLY);
    let write = Packet::parse(&write[..write.len() - 4]).expect("a WRITE");
    assert_eq!(
        (write.bth.transport, write.bth.operation, write.bth.position),
        (Transport::Rc, PacketOperation::Write, MessagePosition::Only)
    );
    assert!(write.bth.ack_request && write.bth.fecn && !write.bth.becn && !write.bth.solicited);
    assert_eq!(
        (write.bth.dest_qpn, write.bth.psn.get()),
        (0x11, 0x00ff_fff0)
    );
    let reth = Reth {
        addr: 0x7f00_1122_3344,
        rkey: 0x1234_abcd,
        len: 5,
    };
    assert_eq!(
        (write.extended.reth, write.payload),
        (Some(reth), &b"hello"[..])
    );

    let (_, send) = opened(frames::RC_SEND_IMM);
    let send = Packet::parse(&send[..send.len() - 4]).expect("a SEND");
    assert_eq!(send.extended.imm, Some([1, 2, 3, 4]));
    assert_eq!((send.payload.len(), send.bth.solicited), (16, true));

    let (_, ack) = opened(frames::RC_ACK_V6);
    let ack = Packet::parse(&ack[..ack.len() - 4]).expect("an ACK");
    let aeth = Aeth {
        syndrome: Syndrome::Ack(31),
        msn: 0x102,
    };
    assert_eq!(ack.extended.aeth, Some(aeth));

    let (_, datagram) = opened(frames::UD_SEND_V6);
    let datagram = Packet::parse(&datagram[..datagram.len() - 4]).expect("a datagram");
    let deth = Deth {
        qkey: 0x8001_0000,
        src_qpn: 1,
    };
    assert_eq!(
        (datagram.extended.deth, datagram.payload),
        (Some(deth), &b"abc"[..])
    );

    let (_, cnp) = opened(frames::CNP);
    let cnp = Packet::parse(&cnp[..cnp.len() - 4]).expect("a CNP");
    assert_eq!(
        (cnp.bth.operation, cnp.bth.becn, cnp.bth.dest_qpn),
        (PacketOperation::Cnp, true, 0x99)
    );
}

#[test]
fn the_identification_is_found_from_the_icrc() {
    for hex in frames::ALL {
        let (frame, datagram) = opened(hex);
        let (transport, icrc) = icrc::split_off_icrc(&datagram).expect("an ICRC");
        for unknown in [0, 1, 0xffff, 0x1234] {
            let guess = IcrcFields {
                identification: unknown,
                ..frame
            };
            let found = icrc::recover_identification_if_icrc_valid(&guess, transport, icrc);
            match frame.addresses {
                IpAddressPair::V4 { .. } => assert_eq!(found, Some(frame.identification), "{hex}"),
                IpAddressPair::V6 { .. } => assert_eq!(found, Some(unknown), "{hex}"),
            }
        }
    }
}

#[test]
fn segments_count_their_identification_up() {
    let addresses = IpAddressPair::new(
        IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2)),
        "::ffff:127.0.0.3".parse().expect("an address"),
    );
    let frame = IcrcFields {
        addresses: addresses.expect("of one family"),
        src_port: 0xc000,
        dst_port: roce::UDP_PORT,
        identification: 0xfffe,
    };
    let transport = [7; 32];
    let unknown = IcrcFields {
        identification: 0,
        ..frame
    };
    for (k, identification) in [(0, 0xfffe), (1, 0xffff), (2, 0), (3, 1)] {
        let icrc = icrc::icrc(&frame.for_gso_segment(k), &transport);
        assert_eq!(
            icrc::recover_identification_if_icrc_valid(&unknown, &transport, icrc),
            Some(identification)
        );
    }
}
