//! Tests of the end of tokio streams: delivery after a drop, and errors instead of lost bytes.

use std::future::Future;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::pin::Pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use rustix::net::sockopt::set_socket_linger;
use stream::handshake::{ClientRequest, Hello, ServerHandshake};
use stream::{Config, Connector, RdmaPolicy, Stream, blocking};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::runtime::Runtime;

fn rdma_only() -> Config {
    Config {
        rdma_policy: RdmaPolicy::RdmaOnly,
        ..Config::default()
    }
}

fn any() -> SocketAddr {
    "127.0.0.1:0".parse().expect("an address")
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime")
}

async fn in_time<T>(test: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), test)
        .await
        .expect("the test hangs")
}

/// Returns a stream of `runtime`, and the blocking stream of its peer.
fn pair(runtime: &Runtime) -> (Stream, blocking::Stream) {
    let listener = blocking::Listener::bind(any(), rdma_only()).expect("listens");
    let address = listener.local_addr().expect("an address");
    let accepting = std::thread::spawn(move || listener.accept().expect("accepts"));
    let connector = Connector::new(rdma_only()).expect("a device");
    let client = runtime.block_on(in_time(connector.connect(address)));
    let mut server = accepting.join().expect("the server");
    let limit = Some(Duration::from_secs(60));
    server.set_timeout(limit).expect("a timeout");
    (client.expect("connects"), server)
}

/// Returns a server whose first client gets the answer that `answer` makes of its hello. The thread returns the TCP
/// connection after the handshake.
fn handshake_by_hand(
    answer: impl FnOnce(Hello) -> Hello + Send + 'static,
) -> (SocketAddr, std::thread::JoinHandle<TcpStream>) {
    let listener = TcpListener::bind(any()).expect("listens");
    let address = listener.local_addr().expect("an address");
    let accepting = std::thread::spawn(move || {
        let (tcp, _) = listener.accept().expect("accepts");
        let mut server = ServerHandshake::new();
        let read = |wants: usize| {
            let mut bytes = vec![0; wants];
            let len = (&tcp).read(&mut bytes).expect("reads");
            bytes.truncate(len);
            bytes
        };
        let hello = loop {
            let bytes = read(server.max_bytes_to_read());
            match server.receive(&bytes).expect("a hello") {
                None => {}
                Some(ClientRequest::Rdma(hello)) => break hello,
                Some(_) => panic!("the client wants no RDMA"),
            }
        };
        let answer = server.encode_answer(Some(&answer(hello)));
        (&tcp).write_all(&answer).expect("writes");
        let acknowledged = loop {
            let bytes = read(server.max_bytes_to_read());
            if let Some(acknowledged) = server.receive_ack(&bytes).expect("an acknowledgement") {
                break acknowledged;
            }
        };
        assert!(acknowledged, "the client wants no RDMA");
        tcp
    });
    (address, accepting)
}

/// Closes a TCP connection by a reset.
fn reset(tcp: TcpStream) {
    set_socket_linger(&tcp, Some(Duration::ZERO)).expect("an open socket");
    drop(tcp);
}

fn noise(len: u32) -> Vec<u8> {
    (0..len)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 11).to_le_bytes()[0])
        .collect()
}

#[test]
fn a_stream_that_is_dropped_with_its_runtime_or_without_one_delivers_what_it_sent() {
    let sent = noise(200_000);
    for drop_in_runtime in [false, true] {
        let runtime = runtime();
        let (mut client, mut server) = pair(&runtime);
        let reading = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            let mut got = Vec::new();
            server.read_to_end(&mut got).map(|_| got)
        });
        let all = sent.clone();
        let client = runtime.block_on(in_time(async move {
            client.write_all(&all).await.expect("writes");
            (!drop_in_runtime).then_some(client)
        }));
        drop(client);
        drop(runtime);
        let got = reading.join().expect("the server").expect("reads");
        assert!(got == sent, "{} of {} bytes", got.len(), sent.len());
    }
}

/// Returns the hello of a queue pair that does not exist.
fn unreachable(hello: Hello) -> Hello {
    Hello {
        qpn: 0xff_fff0,
        ..hello
    }
}

/// Asserts that the peer of a handshake by hand reads no clean end of file.
fn assert_is_reset(mut server: TcpStream) {
    let limit = Some(Duration::from_secs(60));
    server.set_read_timeout(limit).expect("a timeout");
    let lost = server.read(&mut [0; 1]).expect_err("is reset");
    assert_eq!(lost.kind(), ErrorKind::ConnectionReset);
}

#[test]
fn a_dropped_stream_that_cannot_deliver_resets_the_tcp_connection() {
    for drop_in_runtime in [false, true] {
        let (address, server) = handshake_by_hand(unreachable);
        let runtime = runtime();
        let client = runtime.block_on(in_time(async {
            let connector = Connector::new(rdma_only()).expect("a device");
            let mut client = connector.connect(address).await.expect("connects");
            client.write_all(b"for nobody").await.expect("is posted");
            (!drop_in_runtime).then_some(client)
        }));
        drop(client);
        drop(runtime);
        assert_is_reset(server.join().expect("the server"));
    }
    let (address, server) = handshake_by_hand(unreachable);
    let connector = blocking::Connector::new(rdma_only()).expect("a device");
    let mut client = connector.connect(address).expect("connects");
    client.write_all(b"for nobody").expect("is posted");
    drop(client);
    assert_is_reset(server.join().expect("the server"));
}

#[test]
fn a_close_that_the_runtime_has_not_noticed_is_an_end_of_file() {
    let runtime = runtime();
    let (mut client, server) = pair(&runtime);
    runtime.block_on(in_time(async {
        // The runtime knows that the socket has nothing to read. The server closes while the thread of the runtime looks
        // at no socket.
        let mut room = [0; 1];
        let idle = tokio::time::timeout(Duration::from_millis(50), client.read(&mut room));
        idle.await.expect_err("nothing is sent");
        drop(server);
        client.write_all(b"too late").await.expect("is posted");
        let begun = Instant::now();
        let read = std::future::poll_fn(|cx| {
            while begun.elapsed() < Duration::from_secs(30) {
                let mut buf = ReadBuf::new(&mut room);
                if let Poll::Ready(read) = Pin::new(&mut client).poll_read(cx, &mut buf) {
                    return Poll::Ready(Some(read.map(|()| buf.filled().len())));
                }
            }
            Poll::Ready(None)
        });
        let read = read.await.expect("the stream ends");
        assert_eq!(read.expect("an end of file"), 0);
        let refused = client.write_all(b"too late").await.expect_err("closed");
        assert_eq!(refused.kind(), ErrorKind::BrokenPipe);
    }));
}

#[test]
fn a_reset_of_the_tcp_connection_is_an_error() {
    let (address, server) = handshake_by_hand(|hello| hello);
    let runtime = runtime();
    runtime.block_on(in_time(async {
        let connector = Connector::new(rdma_only()).expect("a device");
        let mut client = connector.connect(address).await.expect("connects");
        reset(server.join().expect("the server"));
        for _ in 0..2 {
            let lost = client.read(&mut [0; 1]).await.expect_err("is reset");
            assert_eq!(lost.kind(), ErrorKind::ConnectionReset);
        }
    }));

    let (address, server) = handshake_by_hand(|hello| hello);
    let connector = blocking::Connector::new(rdma_only()).expect("a device");
    let mut client = connector.connect(address).expect("connects");
    let limit = Some(Duration::from_secs(60));
    client.set_timeout(limit).expect("a timeout");
    reset(server.join().expect("the server"));
    for _ in 0..2 {
        let lost = client.read(&mut [0; 1]).expect_err("is reset");
        assert_eq!(lost.kind(), ErrorKind::ConnectionReset);
    }
}

#[test]
fn bytes_after_a_shutdown_are_refused() {
    let runtime = runtime();
    let (mut client, mut server) = pair(&runtime);
    runtime.block_on(in_time(async {
        client.write_all(b"all").await.expect("writes");
        client.shutdown().await.expect("shuts down");
        let refused = client.write_all(b"more").await.expect_err("is shut down");
        assert_eq!(refused.kind(), ErrorKind::BrokenPipe);
        let refused = client.send("more".into()).await.expect_err("is shut down");
        assert_eq!(refused.kind(), ErrorKind::BrokenPipe);
        client.shutdown().await.expect("is shut down already");
    }));
    let mut got = Vec::new();
    server.read_to_end(&mut got).expect("reads");
    assert_eq!(got, b"all");
}

#[test]
fn a_shutdown_that_was_given_up_can_be_repeated_after_more_bytes() {
    // The first poll of a shutdown is ready if the peer's NIC is very fast.
    for _ in 0..20 {
        let runtime = runtime();
        let (mut client, mut server) = pair(&runtime);
        let given_up = runtime.block_on(in_time(async {
            client.write_all(b"first").await.expect("writes");
            let shutdown =
                std::future::poll_fn(|cx| Poll::Ready(Pin::new(&mut client).poll_shutdown(cx)));
            let given_up = shutdown.await.is_pending();
            if given_up {
                client.write_all(b"later").await.expect("writes");
                client.shutdown().await.expect("shuts down");
            }
            given_up
        }));
        if given_up {
            let mut got = Vec::new();
            server.read_to_end(&mut got).expect("reads");
            assert_eq!(got, b"firstlater");
            return;
        }
    }
    panic!("no shutdown waits for the peer");
}
