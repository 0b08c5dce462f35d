//! Blocking streams, both ends in one process.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use stream::blocking::{Connector, Listener, Stream};
use stream::{BLOCK_BYTES, Config};

fn any() -> SocketAddr {
    "127.0.0.1:0".parse().expect("an address")
}

/// Ends a test that hangs.
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
            (BLOCK_BYTES[0], 16),
            (BLOCK_BYTES[0], 128),
            (BLOCK_BYTES[1], 32),
            (BLOCK_BYTES[2], 16),
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
        // Nobody reads: the window fills, and memory stays what it was.
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
        let listener = Listener::bind(any(), Config::default()).expect("listens");
        let mut plain = TcpStream::connect(listener.local_addr().expect("one")).expect("connects");
        plain.write_all(b"RDX, not a hello").expect("writes");
        let mut server = listener.accept().expect("accepts");
        assert!(!server.is_rdma());
        let mut got = [0; 16];
        server.read_exact(&mut got).expect("reads");
        assert_eq!(&got, b"RDX, not a hello");
    });
}
