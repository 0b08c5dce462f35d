//! The fuzz target of this crate, and the replay of its corpus.

use crate::handshake::{
    ClientHandshake, ClientRequest, HandshakeVersion, Hello, ServerAnswer, ServerHandshake,
};

/// Runs one side of the handshake against arbitrary bytes, in pieces. The first byte selects the
/// side and the length of the pieces.
///
/// # Panics
/// Panics if a side requests too many bytes, or loses bytes of another protocol. Panics if a side
/// accepts a hello to which no queue pair can be connected.
pub fn fuzz_handshake(bytes: &[u8]) {
    let Some((&how, bytes)) = bytes.split_first() else {
        return;
    };
    let cut = usize::from(how >> 2) + 1;
    match how & 3 {
        0 => run_client(HandshakeVersion::V2, bytes, cut),
        1 => run_client(HandshakeVersion::V3, bytes, cut),
        _ => run_server(bytes, cut),
    }
}

fn run_client(version: HandshakeVersion, mut bytes: &[u8], cut: usize) {
    let own = Hello {
        block_bytes: 8192,
        sq_size: 128,
        rq_size: 128,
        lid: 0,
        gid: [1; 16],
        qpn: 1,
    };
    let (mut client, _) = ClientHandshake::new(version, &own);
    while !bytes.is_empty() {
        let wants = client.max_bytes_to_read();
        assert!((1..=8192).contains(&wants), "wants {wants} bytes");
        let (now, later) = bytes.split_at(wants.min(cut).min(bytes.len()));
        bytes = later;
        match client.receive(now) {
            Ok(None) => {}
            Ok(Some(ServerAnswer::Rdma(hello))) => return check_hello_is_sound(&hello),
            Ok(Some(ServerAnswer::Tcp)) | Err(_) => return,
        }
    }
}

fn run_server(all: &[u8], cut: usize) {
    let mut server = ServerHandshake::new();
    let mut bytes = all;
    while !bytes.is_empty() {
        let wants = server.max_bytes_to_read();
        assert!((1..=8192).contains(&wants), "wants {wants} bytes");
        let (now, later) = bytes.split_at(wants.min(cut).min(bytes.len()));
        bytes = later;
        let own = match server.receive(now) {
            Ok(None) => continue,
            Ok(Some(ClientRequest::OtherProtocol(first))) => {
                assert!(all.starts_with(&first) && first.len() + bytes.len() == all.len());
                return;
            }
            Ok(Some(ClientRequest::Rdma(hello))) => {
                check_hello_is_sound(&hello);
                Some(hello)
            }
            Ok(Some(ClientRequest::MustDecline)) => None,
            Err(_) => return,
        };
        let _ = server.encode_answer(own.as_ref());
        let ack = server.receive_ack(&bytes[..bytes.len().min(4)]);
        assert!(
            own.is_some() || ack != Ok(Some(true)),
            "RDMA that was declined"
        );
        return;
    }
}

/// Checks that a decoded hello is valid and survives encoding in both versions.
fn check_hello_is_sound(hello: &Hello) {
    assert!(hello.block_bytes >= 1024 && hello.sq_size >= 16 && hello.rq_size >= 16);
    assert!((1..1 << 24).contains(&hello.qpn));
    for version in [HandshakeVersion::V2, HandshakeVersion::V3] {
        let outcome = ServerHandshake::new().receive(&hello.encode(version));
        assert_eq!(outcome, Ok(Some(ClientRequest::Rdma(*hello))));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    #[test]
    fn the_corpus_of_handshakes_is_replayed() {
        corpus::replay("brpc_handshake", super::fuzz_handshake);
    }

    proptest! {
        #[test]
        fn whatever_follows_a_magic_is_refused_or_understood(
            how in any::<u8>(),
            v3 in any::<bool>(),
            rest in prop::collection::vec(any::<u8>(), 0..80),
        ) {
            let magic: &[u8] = if v3 { b"RDM3\0\0\0" } else { b"RDMA\0\x28\0\x02\0\x01" };
            super::fuzz_handshake(&[&[how], magic, &rest].concat());
        }
    }
}
