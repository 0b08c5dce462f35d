//! Tests of clients that fall back to plain TCP.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use rustix::net::sockopt::set_socket_linger;
use stream::{Config, Connector, RdmaPolicy, blocking};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// How a server of another protocol treats a hello.
#[derive(Debug, Clone, Copy)]
enum AtHello {
    EndOfFile,
    Reset,
    Silence,
}

/// Starts a server that answers `ping` with `pong`.
fn ping_server(at_hello: AtHello) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("listens");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        let mut kept = Vec::new();
        for tcp in listener.incoming() {
            let mut tcp: TcpStream = tcp.expect("accepts");
            let mut first = [0; 4];
            if tcp.read_exact(&mut first).is_err() {
                continue;
            }
            match (&first, at_hello) {
                (b"ping", _) => tcp.write_all(b"pong").expect("writes"),
                (_, AtHello::EndOfFile) => tcp.shutdown(Shutdown::Write).expect("is open"),
                (_, AtHello::Reset) => {
                    set_socket_linger(&tcp, Some(Duration::ZERO)).expect("is open");
                    continue;
                }
                (_, AtHello::Silence) => {}
            }
            kept.push(tcp);
        }
    });
    address
}

/// Connects by both kinds of stream, and exchanges a message by plain TCP.
fn connect_and_ping(config: &Config, address: SocketAddr) -> std::io::Result<()> {
    let mut got = [0; 4];
    let mut client = blocking::Connector::new(config.clone())?.connect(address)?;
    assert!(!client.is_rdma());
    client.set_timeout(Some(Duration::from_secs(60)))?;
    client.write_all(b"ping")?;
    client.read_exact(&mut got)?;
    assert_eq!(&got, b"pong");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let test = async {
            let mut client = Connector::new(config.clone())?.connect(address).await?;
            assert!(!client.is_rdma());
            client.write_all(b"ping").await?;
            client.read_exact(&mut got).await?;
            assert_eq!(&got, b"pong");
            Ok(())
        };
        let limit = Duration::from_secs(60);
        tokio::time::timeout(limit, test).await.expect("it hangs")
    })
}

#[test]
fn a_server_that_does_not_answer_a_hello_is_reached_by_plain_tcp() {
    let config = Config {
        handshake_timeout: Duration::from_millis(300),
        ..Config::default()
    };
    let required = Config {
        rdma_policy: RdmaPolicy::RdmaOnly,
        ..config.clone()
    };
    for at_hello in [AtHello::EndOfFile, AtHello::Reset, AtHello::Silence] {
        let address = ping_server(at_hello);
        if let Err(why) = connect_and_ping(&config, address) {
            panic!("{at_hello:?}: {why}");
        }
        connect_and_ping(&required, address).expect_err("it has no RDMA");
    }
}

#[test]
fn a_client_whose_nic_fails_uses_plain_tcp() {
    // The device opens, but no queue pair can use this port.
    let config = Config {
        port_num: 9,
        gid_index: Some(0),
        ..Config::default()
    };
    let address = ping_server(AtHello::Silence);
    connect_and_ping(&config, address).expect("by TCP");
    let required = Config {
        rdma_policy: RdmaPolicy::RdmaOnly,
        ..config
    };
    connect_and_ping(&required, address).expect_err("the NIC fails");
}
