//! Tests of blocking streams, with both ends in one process.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use stream::blocking::{Connector, Listener, Stream};
use stream::{ALLOWED_BLOCK_BYTES, Config, RdmaPolicy};

fn any() -> SocketAddr {
    "127.0.0.1:0".parse().expect("an address")
}

/// Runs a test with a time limit, so that a hang is a failure.
fn watched(test: impl FnOnce() + Send + 'static) {
    let (tell, done) = std::sync::mpsc::channel();
    let testing = std::thread::spawn(move || {
        test();
        tell.send(())
    });
    match done.recv_timeout(Duration::from_secs(60)) {
        Ok(()) => {}
        Err(std::sync::mpsc::RecvTimeoutError::Timeout) => panic!("the test hangs"),
        Err(_) => {
            let _ = testing.join().map_err(std::panic::resume_unwind);
        }
    }
}

fn pair(config: &Config) -> (Stream, Stream) {
    let listener = Listener::bind(any(), config.clone()).expect("listens");
    let address = listener.local_addr().expect("an address");
    let accepting = std::thread::spawn(move || listener.accept().expect("accepts"));
    let connector = Connector::new(config.clone()).expect("a device");
    let mut client = connector.connect(address).expect("connects");
    let mut server = accepting.join().expect("the server");
    assert!(client.is_rdma() && server.is_rdma());
    for stream in [&mut client, &mut server] {
        let limit = Some(Duration::from_secs(30));
        stream.set_timeout(limit).expect("a timeout");
    }
    (client, server)
}

#[test]
fn every_block_and_queue_size_carries_a_stream_both_ways_at_once() {
    watched(|| {
        for (block_bytes, queue_size) in [
            (ALLOWED_BLOCK_BYTES[0], 16),
            (ALLOWED_BLOCK_BYTES[0], 128),
            (ALLOWED_BLOCK_BYTES[1], 32),
            (ALLOWED_BLOCK_BYTES[2], 16),
        ] {
            let config = Config {
                block_bytes,
                queue_size,
                ..Config::default()
            };
            let (mut client, mut server) = pair(&config);
            let echo = std::thread::spawn(move || {
                while let Some(bytes) = server.receive().expect("receives") {
                    server.send(bytes).expect("sends");
                }
            });
            let sent: Vec<u8> = (0..2_000_000u32)
                .map(|i| (i.wrapping_mul(2_654_435_761) >> 11).to_le_bytes()[0])
                .collect();
            let mut got = vec![0; 100_000];
            for part in sent.chunks(100_000) {
                client.write_all(part).expect("writes");
                client.read_exact(&mut got).expect("reads");
                assert!(got == part);
            }
            client.close().expect("closes");
            echo.join().expect("the server");
        }
    });
}

#[test]
fn reads_and_writes_end_at_their_timeout() {
    watched(|| {
        let (mut client, server) = pair(&Config::default());
        let short = Some(Duration::from_millis(20));
        client.set_timeout(short).expect("a timeout");
        let nothing = client.read(&mut [0; 1]).expect_err("nothing comes");
        assert_eq!(nothing.kind(), ErrorKind::TimedOut);
        // The server does not read: the window becomes full, and the registered memory does not
        // grow.
        let mut written = 0;
        let full = loop {
            match client.write(&[7; 8192]) {
                Ok(now) => written += now,
                Err(e) => break e,
            }
        };
        assert!(written <= 128 * 8192, "{written} bytes");
        assert_eq!(full.kind(), ErrorKind::TimedOut);
        drop(server);
        let closed = loop {
            match client.write_all(&[7; 8192]) {
                Err(e) if e.kind() != ErrorKind::TimedOut => break e,
                _ => {}
            }
        };
        assert_eq!(closed.kind(), ErrorKind::BrokenPipe);
    });
}

#[test]
fn plain_clients_lose_no_byte() {
    watched(|| {
        let config = Config {
            handshake_timeout: Duration::from_millis(500),
            ..Config::default()
        };
        let limit = config.handshake_timeout;
        let listener = Listener::bind(any(), config).expect("listens");
        let mut plain = TcpStream::connect(listener.local_addr().expect("one")).expect("connects");
        plain.write_all(b"RDX, not a hello").expect("writes");
        let mut server = listener.accept().expect("accepts");
        assert!(!server.is_rdma());
        let mut got = [0; 16];
        server.read_exact(&mut got).expect("reads");
        assert_eq!(&got, b"RDX, not a hello");
        // The handshake's timeout must not apply to the stream.
        let later = std::thread::spawn(move || {
            std::thread::sleep(2 * limit);
            plain.write_all(b"later").expect("writes");
        });
        server.read_exact(&mut got[..5]).expect("reads");
        assert_eq!(&got[..5], b"later");
        later.join().expect("the client");
    });
}

#[test]
fn a_server_of_another_protocol_is_reached_by_plain_tcp() {
    watched(|| {
        let listener = TcpListener::bind(any()).expect("listens");
        let address = listener.local_addr().expect("an address");
        std::thread::spawn(move || {
            for tcp in listener.incoming() {
                let mut tcp = tcp.expect("accepts");
                let mut first = [0; 4];
                tcp.read_exact(&mut first).expect("reads");
                let answer: &[u8] = match &first {
                    b"ping" => b"pong",
                    _ => b"-ERR unknown command\r\n",
                };
                tcp.write_all(answer).expect("writes");
            }
        });
        let connect = |policy| {
            let config = Config {
                rdma_policy: policy,
                ..Config::default()
            };
            let connector = Connector::new(config).expect("a device");
            connector.connect(address)
        };
        let mut client = connect(RdmaPolicy::FallBack).expect("connects");
        assert!(!client.is_rdma());
        client.write_all(b"ping").expect("writes");
        let mut got = [0; 4];
        client.read_exact(&mut got).expect("reads");
        assert_eq!(&got, b"pong");
        let why = connect(RdmaPolicy::RdmaOnly).expect_err("it has no RDMA");
        assert!(why.to_string().contains("-ERR"), "{why}");
    });
}

/// Extends an FNV-1a checksum by the given bytes.
fn add_to_checksum(sum: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(sum, |sum, &byte| {
        (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[test]
fn a_slow_reader_gets_everything_and_bounds_the_memory_of_both_sides() {
    const BYTES: usize = 8 << 20;
    watched(|| {
        let (mut client, mut server) = pair(&Config::default());
        let writing = std::thread::spawn(move || {
            let (mut sum, mut state) = (0, 1u64);
            let mut part = vec![0; 50_000];
            let mut left = BYTES;
            while left > 0 {
                for byte in &mut part {
                    state = state
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1);
                    *byte = state.to_be_bytes()[0];
                }
                let now = part.len().min(left);
                client.write_all(&part[..now]).expect("writes");
                sum = add_to_checksum(sum, &part[..now]);
                left -= now;
            }
            let registered = client.pool().expect("by RDMA").registered_bytes();
            client.close().expect("closes");
            (sum, registered)
        });
        let (mut sum, mut read, mut room) = (0, 0, [0; 10_001]);
        loop {
            let now = server.read(&mut room).expect("reads");
            if now == 0 {
                break;
            }
            read += now;
            sum = add_to_checksum(sum, &room[..now]);
            std::thread::sleep(Duration::from_micros(100));
        }
        let (sent_sum, of_client) = writing.join().expect("the client");
        assert_eq!((read, sum), (BYTES, sent_sum));
        // Receive queue and send queue take 1 MiB each, and memory is registered in units of 2 MiB.
        for registered in [
            of_client,
            server.pool().expect("by RDMA").registered_bytes(),
        ] {
            assert!(registered <= 4 << 20, "{registered} bytes");
        }
    });
}
