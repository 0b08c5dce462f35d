//! Tests of communication management messages: round trips, and bytes according to the tables of IBTA vol. 1, chapter
//! 12.

use std::net::IpAddr;

use proptest::prelude::*;

use super::*;
use crate::icrc::IpAddressPair;
use crate::psn::Psn;

/// Offset of the body in a management datagram.
const BODY: usize = 24;

/// Builds a management datagram with this attribute and body.
fn mad(attribute: u8, body: &[u8]) -> Vec<u8> {
    let mut mad = vec![1, CLASS_CM, CLASS_VERSION, METHOD_SEND];
    mad.extend_from_slice(&[
        0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0, attribute, 0, 0, 0, 0, 0, 0,
    ]);
    mad.extend_from_slice(body);
    mad
}

/// Returns the body's bits without a field, by offset; all bytes that are not listed are fields.
fn reserved(attribute: u8) -> Vec<(std::ops::Range<usize>, u8)> {
    match attribute {
        // LIDs to timeouts: the fields of two paths. 36 and 40: EE contexts of reliable datagrams. 50: RDC exists.
        0x10 => vec![
            (4..8, 0xff),
            (24..28, 0xff),
            (36..39, 0xff),
            (40..43, 0xff),
            (50..51, 0x08),
            (90..91, 0x0f),
            (91..92, 0xc0),
            (94..95, 0x07),
            (95..96, 0x07),
            (134..135, 0x0f),
            (135..136, 0xc0),
            (138..139, 0x07),
            (139..140, 0x07),
        ],
        0x11 => vec![(8..9, 0x3f), (9..10, 0x07)],
        0x12 => vec![(8..9, 0x3f)],
        // 16: EE context.
        0x13 => vec![(15..20, 0xff), (23..24, 0xff), (27..28, 0x0f)],
        0x15 => vec![(11..12, 0xff)],
        0x17 => vec![(6..8, 0xff)],
        0x18 => vec![(6..8, 0xff), (11..12, 0xff)],
        _ => Vec::new(),
    }
}

#[test]
fn each_bit_that_is_not_reserved_is_a_field() {
    for attribute in 0x10..=0x18 {
        let mut ones = [0xff; 232];
        match attribute {
            // The additional information has 72 bytes at most; a larger length is cut.
            0x12 => ones[9] = 72 << 1,
            0x18 => ones[5] = 72,
            _ => {}
        }
        let (transaction, message) = CmMessage::parse(&mad(attribute, &ones)).expect("a message");
        assert_eq!(transaction, 0x0102_0304_0506_0708);
        let mut expected = ones;
        for (bytes, bits) in reserved(attribute) {
            for byte in &mut expected[bytes] {
                *byte &= !bits;
            }
        }
        let emitted = message.emit(transaction);
        assert_eq!(emitted[BODY..], expected, "attribute {attribute:#x}");
        assert_eq!(emitted[..BODY], mad(attribute, &[])[..]);
    }
}

proptest! {
    #[test]
    fn what_is_emitted_is_parsed(
        attribute in 0x10u8..=0x18,
        body in proptest::collection::vec(any::<u8>(), 232),
        transaction: u64,
    ) {
        let (_, message) = CmMessage::parse(&mad(attribute, &body)).expect("a message");
        let bytes = message.emit(transaction);
        prop_assert_eq!(message.attribute_id(), u16::from(attribute));
        prop_assert_eq!(CmMessage::parse(&bytes), Ok((transaction, message)));
    }

    #[test]
    fn any_bytes_are_a_message_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        if let Ok((transaction, message)) = CmMessage::parse(&bytes) {
            prop_assert_eq!(CmMessage::parse(&message.emit(transaction)), Ok((transaction, message)));
        }
    }

    #[test]
    fn ip_headers_come_back(bytes in proptest::collection::vec(any::<u8>(), 0..100), known: bool) {
        let mut bytes = bytes;
        if let (true, [version, ip, ..]) = (known, bytes.as_mut_slice()) {
            *version = 0;
            *ip = if *ip < 128 { 0x40 } else { 0x60 };
        }
        match IpCmHeader::parse(&bytes) {
            Ok((header, consumer)) => {
                let mut again = header.emit().to_vec();
                again.extend_from_slice(consumer);
                prop_assert_eq!(IpCmHeader::parse(&again), Ok((header, consumer)));
            }
            Err(IpCmHeaderError::Truncated) => prop_assert!(bytes.len() < IP_CM_HEADER_BYTES),
            Err(_) => prop_assert!(!known),
        }
    }
}

#[test]
fn each_kind_of_foreign_datagram_has_its_reason() {
    let broken = |at: usize, value: u8| {
        let mut bytes = mad(0x14, &[0; 232]);
        bytes[at] = value;
        CmMessage::parse(&bytes).map(|(_, message)| message.attribute_id())
    };
    assert_eq!(broken(0, 1), Ok(0x14));
    assert_eq!(broken(0, 2), Err(MadError::BaseVersion(2).into()));
    assert_eq!(broken(1, 3), Err(CmParseError::Class(3)));
    assert_eq!(broken(2, 1), Err(CmParseError::ClassVersion(1)));
    assert_eq!(broken(3, 0x81), Err(CmParseError::Method(0x81)));
    assert_eq!(broken(17, 0x19), Err(CmParseError::Attribute(0x19)));
    assert_eq!(broken(17, 0x1a), Err(CmParseError::Attribute(0x1a)));
    for length in [0, 23, 24, 255, 257] {
        let bytes = vec![1; length];
        assert_eq!(
            CmMessage::parse(&bytes),
            Err(MadError::Length(length).into())
        );
    }
}

#[test]
fn information_longer_than_its_place_is_cut() {
    let mut body = [7; 232];
    body[9] = 0xff;
    let Ok((_, CmMessage::Rej(rej))) = CmMessage::parse(&mad(0x12, &body)) else {
        panic!("it is a REJ");
    };
    assert_eq!(*rej.additional_info, [7; 72]);
    body[5] = 3;
    let Ok((_, CmMessage::SidrRep(rep))) = CmMessage::parse(&mad(0x18, &body)) else {
        panic!("it is a SIDR_REP");
    };
    assert_eq!(*rep.additional_info, [7; 3]);
}

#[test]
fn private_data_has_the_sizes_of_the_specification() {
    assert!(BoundedData::<92>::new(&[1; 92]).is_some());
    assert!(BoundedData::<92>::new(&[1; 93]).is_none());
    let short = BoundedData::<92>::new(b"hello").expect("it fits");
    assert_eq!(&*short, b"hello");
    assert_eq!(short.zero_padded_bytes()[..7], *b"hello\0\0");
    assert!(BoundedData::<92>::default().is_empty());
}

#[test]
fn service_ids_are_those_of_rdma_cm() {
    assert_eq!(PortSpace::Tcp.service_id(7471), 0x0000_0000_0106_1d2f);
    for space in PortSpace::ALL {
        let id = space.service_id(0xfedc);
        assert_eq!(PortSpace::split_service_id(id), Some((space, 0xfedc)));
        assert_eq!(PortSpace::split_service_id(id | 1 << 32), None);
    }
    assert_eq!(PortSpace::split_service_id(0x0107_0001), None);
}

#[test]
fn coded_times_are_powers_of_two() {
    assert_eq!(coded_time_ns(0), 4_096);
    assert_eq!(coded_time_ns(CM_RESPONSE_TIMEOUT_CODE), 4_294_967_296);
    assert_eq!(coded_time_ns(31), 8_796_093_022_208);
}

/// Builds a REQ as `rdma_connect` sends it.
fn req() -> Req {
    let header = IpCmHeader {
        addresses: IpAddressPair::new(IpAddr::from([192, 0, 2, 1]), IpAddr::from([192, 0, 2, 2]))
            .expect("of one family"),
        src_port: 0xabcd,
    };
    let mut private_data = header.emit().to_vec();
    private_data.extend_from_slice(b"hi");
    let mapped = |last| {
        let mut gid = [0; 16];
        gid[10..].copy_from_slice(&[0xff, 0xff, 192, 0, 2, last]);
        gid
    };
    Req {
        local_comm_id: 0x1122_3344,
        service_id: PortSpace::Tcp.service_id(7471),
        local_ca_guid: 0x0102_0304_0506_0708,
        local_qkey: 0,
        local_qpn: 0x00ab_cdef,
        responder_resources: 16,
        initiator_depth: 8,
        remote_cm_response_timeout: CM_RESPONSE_TIMEOUT_CODE,
        transport_service: TransportService::Rc,
        flow_control: true,
        starting_psn_from_peer: Psn::new(0x0012_3456),
        local_cm_response_timeout: CM_RESPONSE_TIMEOUT_CODE,
        retry_count: 7,
        pkey: 0xffff,
        path_mtu: 3,
        rnr_retry_count: 6,
        max_cm_retries: MAX_CM_RETRIES,
        has_srq: true,
        primary: ConnectionPath {
            local_lid: 0xffff,
            remote_lid: 0xffff,
            local_gid: mapped(1),
            remote_gid: mapped(2),
            flow_label: 0x000a_bcde,
            packet_rate: 2,
            traffic_class: 0x68,
            hop_limit: 64,
            service_level: 5,
            subnet_local: false,
            local_ack_timeout: 19,
        },
        alternate: None,
        private_data: BoundedData::new(&private_data).expect("it fits"),
    }
}

/// Checks the bytes at the offsets of Linux's `include/rdma/ibta_vol1_c12.h`.
#[test]
fn a_req_has_the_bytes_of_the_specification() {
    let mut expected = [0; 256];
    let mut put = |at: usize, bytes: &[u8]| expected[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &[1, 7, 2, 3]);
    put(8, &[0, 0, 0, 0, 0, 0, 0, 9, 0, 0x10]);
    put(BODY, &[0x11, 0x22, 0x33, 0x44]);
    put(BODY + 8, &[0, 0, 0, 0, 1, 6, 0x1d, 0x2f]);
    put(BODY + 16, &[1, 2, 3, 4, 5, 6, 7, 8]);
    put(BODY + 32, &[0xab, 0xcd, 0xef, 16]);
    put(BODY + 39, &[8]);
    put(BODY + 43, &[20 << 3 | 1]);
    put(BODY + 44, &[0x12, 0x34, 0x56, 20 << 3 | 7]);
    put(BODY + 48, &[0xff, 0xff, 3 << 4 | 6, 15 << 4 | 1 << 3]);
    put(BODY + 52, &[0xff; 4]);
    put(BODY + 56 + 10, &[0xff, 0xff, 192, 0, 2, 1]);
    put(BODY + 72 + 10, &[0xff, 0xff, 192, 0, 2, 2]);
    put(BODY + 88, &[0xab, 0xcd, 0xe0, 2, 0x68, 64, 5 << 4, 19 << 3]);
    put(BODY + 140, &[0, 0x40, 0xab, 0xcd]);
    put(BODY + 140 + 16, &[192, 0, 2, 1]);
    put(BODY + 140 + 32, &[192, 0, 2, 2, b'h', b'i']);
    assert_eq!(CmMessage::Req(req()).emit(9), expected);
    let Ok((9, CmMessage::Req(parsed))) = CmMessage::parse(&expected) else {
        panic!("it is a REQ");
    };
    assert_eq!(parsed.primary, req().primary);
    let (header, consumer) = IpCmHeader::parse(&parsed.private_data).expect("a header");
    assert_eq!((header.src_port, consumer.len()), (0xabcd, 92 - 36));
    assert_eq!(&consumer[..3], b"hi\0");
}
