//! Tests of tokio streams, with both ends in one process.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use stream::{Config, Connector, Listener, RdmaPolicy, Stream};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};

/// Runs a test with a time limit.
fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        tokio::time::timeout(Duration::from_secs(20), test)
            .await
            .expect("the test hangs");
    });
}

fn any() -> SocketAddr {
    "127.0.0.1:0".parse().expect("an address")
}

async fn pair_of(client: Config, server: Config) -> (Stream, Stream) {
    let mut listener = Listener::bind_with_config(any(), server)
        .await
        .expect("listens");
    let address = listener.local_addr().expect("an address");
    let connector = Connector::new(client).expect("a device");
    let (client, server) = tokio::join!(connector.connect(address), listener.accept());
    (client.expect("connects"), server.expect("accepts"))
}

async fn pair() -> (Stream, Stream) {
    let (client, server) = pair_of(Config::default(), Config::default()).await;
    assert!(client.is_rdma() && server.is_rdma());
    (client, server)
}

fn noise(len: usize) -> Vec<u8> {
    let mut x = 0x9e37_79b9_u32;
    (0..len)
        .map(|_| {
            x ^= x << 13;
            x ^= x >> 17;
            x ^= x << 5;
            x.to_le_bytes()[0]
        })
        .collect()
}

async fn echo(mut server: Stream) {
    let mut room = vec![0; 10_000];
    loop {
        let read = server.read(&mut room).await.expect("reads");
        if read == 0 {
            break;
        }
        server.write_all(&room[..read]).await.expect("writes");
    }
}

#[test]
fn an_echo_of_every_length() {
    run(async {
        let (mut client, server) = pair().await;
        let server = tokio::spawn(echo(server));
        for len in [1, 255, 256, 257, 8191, 8192, 8193, 100_000] {
            let sent = noise(len);
            client.write_all(&sent).await.expect("writes");
            let mut got = vec![0; len];
            client.read_exact(&mut got).await.expect("reads");
            assert!(got == sent, "{len} bytes");
        }
        client.shutdown().await.expect("ends");
        server.await.expect("the server");
    });
}

#[test]
fn a_close_right_after_a_long_write_loses_nothing() {
    run(async {
        let sent = noise(3_000_000);
        for by_drop in [false, true] {
            let (mut client, mut server) = pair().await;
            let sent = sent.clone();
            let all = sent.clone();
            let writing = tokio::spawn(async move {
                client.write_all(&all).await.expect("writes");
                if !by_drop {
                    client.shutdown().await.expect("ends");
                }
            });
            let mut got = Vec::new();
            server.read_to_end(&mut got).await.expect("reads");
            assert!(got == sent, "{} of {} bytes", got.len(), sent.len());
            writing.await.expect("the client");
            let refused = server.write_all(b"too late").await.expect_err("closed");
            assert_eq!(refused.kind(), std::io::ErrorKind::BrokenPipe);
        }
    });
}

#[test]
fn bytes_go_and_come_without_a_copy() {
    run(async {
        let (mut client, mut server) = pair().await;
        let mut block = client.take_block().expect("memory").expect("by RDMA");
        let sent = noise(8000);
        block.as_mut_slice()[..8000].copy_from_slice(&sent);
        client.send(block.freeze(8000)).await.expect("sends");
        let got = server.receive().await.expect("receives").expect("bytes");
        assert!(got == sent);
        // A received block is sent back without a copy.
        server.send(got.clone()).await.expect("sends");
        let back = client.receive().await.expect("receives").expect("bytes");
        assert!(back == sent);
        client
            .send(Bytes::from_static(b"elsewhere"))
            .await
            .expect("sends");
        let got = server.receive().await.expect("receives").expect("bytes");
        assert_eq!(got, b"elsewhere"[..]);
        drop(client);
        assert_eq!(server.receive().await.expect("the end"), None);
    });
}

#[test]
fn where_one_side_has_no_rdma_tcp_is_used() {
    run(async {
        let tcp = || Config {
            rdma_policy: RdmaPolicy::TcpOnly,
            ..Config::default()
        };
        for (client, server) in [
            (tcp(), Config::default()),
            (Config::default(), tcp()),
            (tcp(), tcp()),
        ] {
            let mut listener = Listener::bind_with_config(any(), server)
                .await
                .expect("listens");
            let address = listener.local_addr().expect("an address");
            // The listener accepts a plain TCP client after the client's first bytes.
            let server = tokio::spawn(async move {
                let stream = listener.accept().await.expect("accepts");
                assert!(!stream.is_rdma());
                echo(stream).await;
            });
            let connector = Connector::new(client).expect("a device");
            let mut client = connector.connect(address).await.expect("connects");
            assert!(!client.is_rdma());
            client.write_all(b"by TCP").await.expect("writes");
            let mut got = [0; 6];
            client.read_exact(&mut got).await.expect("reads");
            assert_eq!(&got, b"by TCP");
            drop(client);
            server.await.expect("the server");
        }
    });
}

#[test]
fn a_server_of_another_protocol_is_reached_by_plain_tcp() {
    run(async {
        let listener = tokio::net::TcpListener::bind(any()).await.expect("listens");
        let address = listener.local_addr().expect("an address");
        tokio::spawn(async move {
            loop {
                let (mut tcp, _) = listener.accept().await.expect("accepts");
                let mut first = [0; 4];
                tcp.read_exact(&mut first).await.expect("reads");
                let answer: &[u8] = match &first {
                    b"ping" => b"pong",
                    _ => b"-ERR unknown command\r\n",
                };
                tcp.write_all(answer).await.expect("writes");
            }
        });
        let mut client = Stream::connect(address).await.expect("connects");
        assert!(!client.is_rdma());
        client.write_all(b"ping").await.expect("writes");
        let mut got = [0; 4];
        client.read_exact(&mut got).await.expect("reads");
        assert_eq!(&got, b"pong");
        let required = Connector::new(Config {
            rdma_policy: RdmaPolicy::RdmaOnly,
            ..Config::default()
        });
        let refused = required.expect("a device").connect(address).await;
        let why = refused.expect_err("it has no RDMA").to_string();
        assert!(why.contains("-ERR"), "{why}");
    });
}

#[test]
fn silent_and_slow_clients_are_disconnected_and_keep_nobody_waiting() {
    run(async {
        let config = Config {
            handshake_timeout: Duration::from_secs(1),
            ..Config::default()
        };
        let mut listener = Listener::bind_with_config(any(), config)
            .await
            .expect("listens");
        let address = listener.local_addr().expect("an address");
        let mut silent = tokio::net::TcpStream::connect(address)
            .await
            .expect("connects");
        let mut slow = tokio::net::TcpStream::connect(address)
            .await
            .expect("connects");
        slow.write_all(b"RDMA\0").await.expect("writes");
        let serving = tokio::spawn(async move {
            loop {
                tokio::spawn(echo(listener.accept().await.expect("accepts")));
            }
        });
        let mut client = Stream::connect(address).await.expect("connects");
        client.write_all(b"here").await.expect("writes");
        let mut got = [0; 4];
        client.read_exact(&mut got).await.expect("reads");
        for refused in [&mut silent, &mut slow] {
            assert!(!matches!(refused.read(&mut [0; 1]).await, Ok(1..)));
        }
        serving.abort();
    });
}

#[test]
fn an_idle_stream_is_not_polled() {
    run(async {
        let (mut client, mut server) = pair().await;
        client.write_all(b"awake").await.expect("writes");
        let mut got = [0; 5];
        server.read_exact(&mut got).await.expect("reads");
        // In the first window, both sides poll for `Config::spin_time`. In the second, they sleep.
        for (window, may_poll) in [("first", None), ("second", Some(4))] {
            let idle = [&mut client, &mut server].map(|stream| async move {
                let (mut polls, mut room) = (0u32, [0; 1]);
                let read = std::future::poll_fn(|cx| {
                    polls += 1;
                    std::pin::pin!(stream.read(&mut room)).poll(cx)
                });
                let waited = tokio::time::timeout(Duration::from_millis(250), read).await;
                assert!(waited.is_err(), "nothing is sent");
                polls
            });
            let [of_client, of_server] = idle;
            let (of_client, of_server) = tokio::join!(of_client, of_server);
            for polls in [of_client, of_server] {
                assert!(
                    may_poll.is_none_or(|most| polls <= most),
                    "{polls} polls in the {window}"
                );
            }
        }
        server.write_all(b"again").await.expect("writes");
        client.read_exact(&mut got).await.expect("reads");
        assert_eq!(&got, b"again");
    });
}

#[test]
fn a_task_whose_reads_and_writes_are_always_ready_yields() {
    const CALLS: usize = 1000;
    run(async {
        // The window has room for all writes.
        let config = Config {
            queue_size: 1024,
            ..Config::default()
        };
        let pair = || pair_of(config.clone(), config.clone());
        let (mut client, _server) = pair().await;
        let writes = ready_calls_in_one_turn(CALLS, |cx| {
            Pin::new(&mut client).poll_write(cx, b"x").map_ok(drop)
        });
        let writes = writes.await;
        let full_pair = async || {
            let (mut client, server) = pair().await;
            for _ in 0..CALLS {
                client.write_all(b"x").await.expect("writes");
            }
            client.shutdown().await.expect("everything arrives");
            server
        };
        let mut server = full_pair().await;
        let reads = ready_calls_in_one_turn(CALLS, |cx| {
            let mut room = [0; 1];
            let mut buf = ReadBuf::new(&mut room);
            Pin::new(&mut server).poll_read(cx, &mut buf)
        });
        let reads = reads.await;
        let mut server = full_pair().await;
        let receives = ready_calls_in_one_turn(CALLS, |cx| server.poll_receive(cx).map_ok(drop));
        let receives = receives.await;
        let ready = [writes, reads, receives];
        assert!(
            ready.iter().all(|calls| *calls < CALLS / 2),
            "{ready:?} calls"
        );
    });
}

/// Calls `poll` up to `calls` times in one poll of the task. Returns the number of calls before the first `Pending`.
async fn ready_calls_in_one_turn(
    calls: usize,
    mut poll: impl FnMut(&mut Context<'_>) -> Poll<std::io::Result<()>>,
) -> usize {
    // A task begins each of its polls with its whole budget.
    tokio::task::yield_now().await;
    std::future::poll_fn(|cx| {
        let ready = (0..calls).take_while(|_| match poll(cx) {
            Poll::Ready(done) => done.map(|()| true).expect("the stream is open"),
            Poll::Pending => false,
        });
        Poll::Ready(ready.count())
    })
    .await
}

/// Returns the number of descriptors that this process has open.
fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd")
        .expect("the own descriptors")
        .count()
}

#[test]
fn streams_of_a_runtime_that_sleep_share_one_channel() {
    run(async {
        const STREAMS: usize = 200;
        let config = Config {
            queue_size: 16,
            // Every wait sleeps, so that each message needs an event.
            spin_time: Duration::ZERO,
            rdma_policy: RdmaPolicy::RdmaOnly,
            ..Config::default()
        };
        let listener = Listener::bind_with_config(any(), config.clone()).await;
        let mut listener = listener.expect("listens");
        let address = listener.local_addr().expect("an address");
        let connector = Connector::new(config).expect("a device");
        let before = descriptors();
        let mut clients = Vec::new();
        for _ in 0..STREAMS {
            let (client, server) = tokio::join!(connector.connect(address), listener.accept());
            tokio::spawn(echo(server.expect("accepts")));
            clients.push(client.expect("connects"));
        }
        // Each stream has a socket at each end. The rest belongs to other tests of this process.
        let more = descriptors() - before;
        assert!(more < 3 * STREAMS, "{more} descriptors");
        let echoes = clients.into_iter().enumerate().map(|(at, mut client)| {
            tokio::spawn(async move {
                for round in 0..5 {
                    let sent = [at, round].map(usize::to_le_bytes).concat();
                    client.write_all(&sent).await.expect("writes");
                    let mut got = vec![0; sent.len()];
                    client.read_exact(&mut got).await.expect("reads");
                    assert_eq!(got, sent);
                }
                client.shutdown().await.expect("closes");
            })
        });
        for echo in echoes.collect::<Vec<_>>() {
            echo.await.expect("its own bytes come back");
        }
    });
}

#[test]
fn a_connector_outlives_the_runtime_of_its_first_streams() {
    let connector = Connector::new(Config::default()).expect("a device");
    for _ in 0..2 {
        run(async {
            let mut listener = Listener::bind(any()).await.expect("listens");
            let address = listener.local_addr().expect("an address");
            let (client, server) = tokio::join!(connector.connect(address), listener.accept());
            let (mut client, server) = (client.expect("connects"), server.expect("accepts"));
            tokio::spawn(echo(server));
            // Longer than any poll, so that the second message wakes a stream that sleeps.
            for text in [b"first", b"later"] {
                client.write_all(text).await.expect("writes");
                let mut got = [0; 5];
                client.read_exact(&mut got).await.expect("reads");
                assert_eq!(&got, text);
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
    }
}
