//! Tests of untrusted input over TCP, and of invalid configurations.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};

use sequencer::{Client, ClientConfig, Design, Server, ServerConfig};

use crate::common::{client_of, eventually};

#[test]
fn garbage_at_the_rendezvous_is_refused_and_forgotten() {
    let server = Server::start(ServerConfig::default()).expect("starts");
    let address = server.address().to_string();
    let long = vec![b'x'; 70_000];
    for garbage in [
        &b""[..],
        b"\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"{}\n",
        b"[1,2]\n",
        b"\xff\xfe\n",
        &long,
    ] {
        let mut stream = TcpStream::connect(&address).expect("connects");
        // The server may close the connection before everything is written.
        let _ = stream.write_all(garbage);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = String::new();
        // A reset after the answer counts as an end.
        let _ = stream.read_to_string(&mut answer);
        assert!(answer.contains("verbatim-sequencer"), "{answer:?}");
        assert!(!answer.contains("accepted"), "{answer:?}");
    }
    let lines = [
        r#"{"version":9,"design":"spec-s0","window":1}"#,
        r#"{"version":1,"design":"rpc","window":1}"#,
        r#"{"version":1,"design":"spec-s0","window":0}"#,
        r#"{"version":1,"design":"spec-s0","window":99999999}"#,
        r#"{"version":1,"design":"spec-s0","window":8}"#,
        r#"{"version":1,"design":"spec-s0","window":8,"ud":{"qpn":4294967295,"psn":0,"lid":0,"gid":"::","mtu":1024,"qkey":null}}"#,
    ];
    for line in lines {
        let mut stream = TcpStream::connect(&address).expect("connects");
        writeln!(stream, "{line}").expect("writes");
        let mut reader = BufReader::new(stream);
        let mut answer = String::new();
        reader.read_line(&mut answer).expect("the server's offer");
        answer.clear();
        reader.read_line(&mut answer).expect("the refusal");
        assert!(answer.starts_with(r#"{"refused":{"#), "{line}: {answer}");
    }
    eventually("all are gone", || server.stats().connected_clients == 0);
    assert_eq!(
        Client::connect(client_of(&address))
            .expect("connects")
            .take_numbers(10)
            .expect("still serves")
            .len(),
        10
    );
}

#[test]
fn a_client_says_what_is_wrong() {
    let server = Server::start(ServerConfig {
        max_window: 16,
        ..ServerConfig::default()
    })
    .expect("starts");
    let address = server.address().to_string();
    let error = |config: ClientConfig| Client::connect(config).expect_err("refused").to_string();
    let good = || ClientConfig {
        reconnect_timeout_ms: 50,
        ..client_of(&address)
    };
    assert!(
        error(ClientConfig {
            window: 17,
            ..good()
        })
        .contains("largest window is 16")
    );
    assert!(
        error(ClientConfig {
            window: 0,
            ..good()
        })
        .contains("window is 0")
    );
    assert!(
        error(ClientConfig {
            latency_digits: 6,
            ..good()
        })
        .contains("latency_digits is 6: it must be 1 to 5")
    );
    assert!(
        error(ClientConfig {
            window: 8,
            design: Some(Design::Rpc),
            ..good()
        })
        .contains("serves design spec-s0")
    );
    assert!(
        error(ClientConfig {
            server: "127.0.0.1:1".into(),
            ..good()
        })
        .contains("cannot reach")
    );
    assert!(
        error(ClientConfig {
            server: "no colon".into(),
            ..good()
        })
        .contains("cannot reach")
    );
    let mut nic = good();
    nic.nic.provider = "mlx5".into();
    assert!(error(nic).contains("softnic, system"));
    let mut nic = good();
    nic.nic.device = Some("nope0".into());
    assert!(error(nic).contains("no such device"));
}

#[test]
fn something_else_at_the_address_is_recognised() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
    let address = listener.local_addr().expect("bound").to_string();
    let other = std::thread::spawn(move || {
        for stream in listener.incoming().take(1) {
            let _ = stream
                .expect("comes")
                .write_all(b"220 mail.example.org ESMTP\r\n");
        }
    });
    let config = ClientConfig {
        reconnect_timeout_ms: 0,
        ..client_of(&address)
    };
    let e = Client::connect(config).expect_err("no sequencer");
    assert!(
        e.to_string().contains("not the exchange of a sequencer"),
        "{e}"
    );
    other.join().expect("ends");
}

#[test]
fn servers_that_cannot_work_do_not_start() {
    let error = |config: ServerConfig| Server::start(config).expect_err("refused").to_string();
    assert!(
        error(ServerConfig {
            batch: 65,
            ..ServerConfig::default()
        })
        .contains("batch is 65")
    );
    assert!(
        error(ServerConfig {
            listen: "nowhere".into(),
            ..ServerConfig::default()
        })
        .contains("cannot listen on nowhere")
    );
    let start = u64::MAX;
    assert!(
        error(ServerConfig {
            design: Design::Atomics,
            start,
            ..ServerConfig::default()
        })
        .contains("start is")
    );
}
