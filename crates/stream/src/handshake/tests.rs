//! Tests of hellos byte by byte, and of both sides together. The expected bytes were written by
//! hand from the protocol, not printed by this code.

use proptest::prelude::*;

use super::*;

const GID: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 7];

const HELLO: Hello = Hello {
    block_bytes: 8192,
    sq_size: 128,
    rq_size: 256,
    lid: 5,
    gid: GID,
    qpn: 0x0001_2345,
};

/// A hello of version 2, as on the wire.
const V2: [u8; 40] = [
    b'R', b'D', b'M', b'A', // magic
    0, 40, // msg_len
    0, 2, // hello_ver
    0, 1, // impl_ver
    0, 0, 0x20, 0, // block_size
    0, 128, // sq_size
    1, 0, // rq_size
    0, 5, // lid
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 7, // gid
    0, 1, 0x23, 0x45, // qpn
];

/// A hello of version 3, as on the wire.
const V3: [u8; 45] = [
    b'R', b'D', b'M', b'3', // magic
    0, 0, 0, 37, // size
    0x08, 0x80, 0x40, // 1: block_size
    0x10, 0x80, 0x01, // 2: sq_size
    0x18, 0x80, 0x02, // 3: rq_size
    0x20, 0x05, // 4: lid
    0x2a, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 7, // 5: gid
    0x30, 0xc5, 0xc6, 0x04, // 6: qp_num
    0x3a, 2, 0x08, 0x01, // 7: ece { vendor_id: 1 }, which this side skips
];

/// Passes the bytes to a server one by one, and returns its request.
fn request(bytes: &[u8]) -> Result<Option<ClientRequest>, HandshakeError> {
    let mut server = ServerHandshake::new();
    let mut last = None;
    for byte in bytes {
        assert!(last.is_none(), "the request was complete before its end");
        last = server.receive(&[*byte])?;
    }
    Ok(last)
}

#[test]
fn hellos_are_the_bytes_that_the_protocol_has() {
    assert_eq!(HELLO.encode(HandshakeVersion::V2), V2);
    let own = HELLO.encode(HandshakeVersion::V3);
    assert_eq!(own[8..], V3[8..41], "all but the optional field");
    assert_eq!(own[..8], *b"RDM3\0\0\0\x21");
    assert_eq!(request(&V2), Ok(Some(ClientRequest::Rdma(HELLO))));
    assert_eq!(request(&V3), Ok(Some(ClientRequest::Rdma(HELLO))));
}

#[test]
fn a_longer_hello_of_version_2_is_read_to_its_end() {
    let mut bytes = V2.to_vec();
    bytes[5] = 44;
    bytes.extend_from_slice(b"more");
    assert_eq!(request(&bytes), Ok(Some(ClientRequest::Rdma(HELLO))));
}

#[test]
fn wrong_hellos_are_refused_and_other_versions_declined() {
    let with = |at: usize, bytes: &[u8]| {
        let mut hello = V2;
        hello[at..at + bytes.len()].copy_from_slice(bytes);
        hello
    };
    assert_eq!(
        request(&with(6, &[0, 3])),
        Ok(Some(ClientRequest::MustDecline))
    );
    assert_eq!(
        request(&with(8, &[0, 2])),
        Ok(Some(ClientRequest::MustDecline))
    );
    let field = |name: &str, outcome: Result<Option<ClientRequest>, HandshakeError>| match outcome {
        Err(HandshakeError::FieldOutOfRange { field, .. }) => assert_eq!(field, name),
        other => panic!("{name}: {other:?}"),
    };
    field("block_size", request(&with(10, &[0, 0, 3, 255])));
    field("sq_size", request(&with(14, &[0, 15])));
    field("rq_size", request(&with(16, &[0, 15])));
    field("qp_num", request(&with(36, &[1, 0, 0, 0])));
    let short = ServerHandshake::new().receive(&with(4, &[0, 39])[..6]);
    assert!(matches!(
        short,
        Err(HandshakeError::LengthOutOfRange { len: 39, .. })
    ));
    let long = ServerHandshake::new().receive(&with(4, &[0x10, 1])[..6]);
    assert!(matches!(
        long,
        Err(HandshakeError::LengthOutOfRange { len: 4097, .. })
    ));
}

#[test]
fn wrong_messages_of_version_3_are_refused() {
    let with = |message: &[u8]| {
        let mut bytes = b"RDM3\0\0".to_vec();
        bytes.extend_from_slice(&u16::try_from(message.len()).expect("short").to_be_bytes());
        bytes.extend_from_slice(message);
        request(&bytes)
    };
    assert_eq!(with(&V3[8..41]), Ok(Some(ClientRequest::Rdma(HELLO))));
    assert_eq!(
        with(&V3[8..37]),
        Err(HandshakeError::MissingField("qp_num")),
        "without the last field"
    );
    assert!(matches!(
        with(&V3[8..36]),
        Err(HandshakeError::UndecodableMessage(_))
    ));
    let mut sizes = V3[8..41].to_vec();
    sizes.splice(3..6, [0x10, 0x80, 0x80, 0x04]); // sq_size = 65536
    assert!(matches!(
        with(&sizes),
        Err(HandshakeError::FieldOutOfRange {
            field: "sq_size",
            value: 65536,
            ..
        })
    ));
    let empty = ServerHandshake::new().receive(b"RDM3\0\0\0\0");
    assert!(matches!(
        empty,
        Err(HandshakeError::LengthOutOfRange { len: 0, .. })
    ));
    let long = ServerHandshake::new().receive(b"RDM3\0\0\x20\x01");
    assert!(matches!(
        long,
        Err(HandshakeError::LengthOutOfRange { len: 8193, .. })
    ));
}

#[test]
fn clients_of_other_protocols_lose_no_byte() {
    let mut server = ServerHandshake::new();
    assert_eq!(server.receive(b"R"), Ok(None));
    assert_eq!(
        server.receive(b"PC"),
        Ok(Some(ClientRequest::OtherProtocol(b"RPC".to_vec())))
    );
    let http = ServerHandshake::new().receive(b"PRI * HTTP/2.0\r\n");
    assert_eq!(
        http,
        Ok(Some(ClientRequest::OtherProtocol(
            b"PRI * HTTP/2.0\r\n".to_vec()
        )))
    );
}

#[test]
fn declining_and_acknowledging() {
    for version in [HandshakeVersion::V2, HandshakeVersion::V3] {
        let (mut client, hello) = ClientHandshake::new(version, &HELLO);
        let mut server = ServerHandshake::new();
        assert_eq!(server.receive(&hello), Ok(Some(ClientRequest::Rdma(HELLO))));
        assert_eq!(server.max_bytes_to_read(), 0);
        let answer = server.encode_answer(None);
        assert_eq!(client.receive(&answer), Ok(Some(ServerAnswer::Tcp)));
        assert_eq!(server.receive_ack(&encode_ack(false)[..3]), Ok(None));
        assert_eq!(server.max_bytes_to_read(), 1);
        assert_eq!(server.receive_ack(&encode_ack(false)[3..]), Ok(Some(false)));
    }
    let mut server = ServerHandshake::new();
    let _ = server.receive(&V2);
    assert_eq!(server.encode_answer(None), {
        let mut declined = [0; 40];
        declined[..6].copy_from_slice(b"RDMA\0\x28");
        declined
    });
    assert_eq!(
        server.receive_ack(&encode_ack(true)),
        Err(HandshakeError::AckAfterDecline)
    );
}

#[test]
fn a_server_of_another_protocol_is_named() {
    let (mut client, _) = ClientHandshake::new(HandshakeVersion::V2, &HELLO);
    let outcome = client.receive(b"HTTP").expect_err("no hello");
    assert!(outcome.to_string().contains("\"HTTP\""), "{outcome}");
}

proptest! {
    /// Both sides decode any hello, regardless of the pieces in which it arrives.
    #[test]
    fn any_hello_arrives_in_any_pieces(
        sizes in (1024u32.., 16u16.., 16u16.., any::<u16>(), any::<[u8; 16]>(), 1u32..1 << 24),
        v3 in any::<bool>(),
        cut in 1usize..9,
    ) {
        let (block_bytes, sq_size, rq_size, lid, gid, qpn) = sizes;
        let hello = Hello { block_bytes, sq_size, rq_size, lid, gid, qpn };
        let version = if v3 { HandshakeVersion::V3 } else { HandshakeVersion::V2 };
        let (mut client, bytes) = ClientHandshake::new(version, &hello);
        let mut server = ServerHandshake::new();
        let mut outcome = None;
        for part in bytes.chunks(cut) {
            outcome = server.receive(part).expect("a good hello");
        }
        prop_assert_eq!(outcome, Some(ClientRequest::Rdma(hello)));
        let mut outcome = None;
        for part in server.encode_answer(Some(&hello)).chunks(cut) {
            outcome = client.receive(part).expect("a good hello");
        }
        prop_assert_eq!(outcome, Some(ServerAnswer::Rdma(hello)));
        prop_assert_eq!(server.receive_ack(&encode_ack(true)), Ok(Some(true)));
    }
}
