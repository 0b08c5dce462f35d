//! Tests of rdma-core's own programs between two hosts, and on one host that uses packets.
//!
//! A test host is an address of the loopback network with its own fabric, so only packets connect two
//! hosts.

#[path = "../../dropin/tests/common/mod.rs"]
mod common;

use std::process::Command;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use common::{Fabric, Watched};

/// A simulated host.
struct Host {
    fabric: Fabric,
    address: String,
    path: &'static str,
}

impl Host {
    /// Returns a host with an unused address.
    fn new(path: &'static str) -> Self {
        static HOSTS: AtomicU8 = AtomicU8::new(2);
        let pid = std::process::id();
        let address = format!(
            "127.{}.{}.{}",
            100 + (pid >> 8) % 100,
            pid % 256,
            HOSTS.fetch_add(1, Ordering::Relaxed)
        );
        Self {
            fabric: Fabric::new(),
            address,
            path,
        }
    }

    fn command(&self, program: &str, args: &[&str]) -> Command {
        let mut command = self.fabric.command(program, "roce");
        command
            .env("VERBATIM_ADDRESS", &self.address)
            .env("VERBATIM_PATH", self.path)
            .args(args);
        command
    }

    /// Starts a server, and waits until it listens.
    fn server(&self, program: &str, args: &[&str]) -> Watched {
        let mut server = Watched::start(&mut self.command(program, args));
        let deadline = Instant::now() + Duration::from_secs(30);
        while !self.listens() {
            if !server.runs() || Instant::now() > deadline {
                let (_, text) = server.end();
                panic!("{program} {args:?} does not listen:\n{text}");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        server
    }

    /// Returns true if a process has a listener and the socket for datagrams of QP1. The process opens this
    /// socket after the listener.
    fn listens(&self) -> bool {
        let Ok(entries) = std::fs::read_dir(self.fabric.folder().join("rdma_cm")) else {
            return false;
        };
        entries
            .flatten()
            .any(|entry| entry.file_name().to_string_lossy().starts_with("mads-"))
    }
}

/// Runs a server and a client, which gets the server's address as last argument. Both must succeed. Returns
/// their output, client first.
fn run(server_host: &Host, client_host: &Host, program: &str, args: [&[&str]; 2]) -> [String; 2] {
    let server = server_host.server(program, args[0]);
    let args = [args[1], &[&server_host.address]].concat();
    let client = Watched::start(&mut client_host.command(program, &args)).finish();
    [client, server.finish()]
}

/// Runs server and client between two hosts, and then on one host that uses packets.
fn everywhere(program: &str, args: [&[&str]; 2], check: impl Fn(&str)) {
    let [client, _] = run(&Host::new("auto"), &Host::new("auto"), program, args);
    check(&client);
    let host = Host::new("packets");
    let [client, _] = run(&host, &host, program, args);
    check(&client);
}

/// Connects the program `idle` between two hosts. Returns the server and the client.
fn connected_idle(program: &str, server_host: &Host, client_host: &Host) -> [Watched; 2] {
    let mut server = server_host.server(program, &["server"]);
    let args = ["client", &server_host.address];
    let mut client = Watched::start(&mut client_host.command(program, &args));
    client.wait_for_line("established");
    server.wait_for_line("established");
    [server, client]
}

/// On a host with a kernel's NIC, the kernel sends a DREQ for a process that is killed.
#[test]
fn the_peer_of_a_killed_process_is_told() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = common::compiled_with_rdmacm("idle", folder.path());
    let program = program.to_str().expect("text");

    let (one, other) = (Host::new("auto"), Host::new("auto"));
    let [server, client] = connected_idle(program, &one, &other);
    server.signal("KILL");
    assert_eq!(client.finish(), "disconnected\n");

    // A process that is stopped still exists.
    let [mut server, client] = connected_idle(program, &one, &other);
    client.signal("STOP");
    std::thread::sleep(Duration::from_millis(3500));
    assert!(server.runs(), "{:?}", server.end());
    client.signal("KILL");
    assert_eq!(server.finish(), "disconnected\n");

    // Another process of the killed one's host has the port of its address, and answers for it.
    let _listening = other.server(program, &["server"]);
    let [server, client] = connected_idle(program, &one, &other);
    client.signal("KILL");
    assert_eq!(server.finish(), "disconnected\n");

    let host = Host::new("packets");
    let [server, client] = connected_idle(program, &host, &host);
    server.signal("KILL");
    assert_eq!(client.finish(), "disconnected\n");
}

#[test]
fn rping() {
    let server = ["-s", "-C", "20", "-V", "-v"];
    let client = ["-c", "-C", "20", "-V", "-v", "-a"];
    everywhere("rping", [&server, &client], |client| {
        assert!(client.contains("ping data: rdma-ping-19"), "{client}");
    });
}

#[test]
fn ucmatose() {
    everywhere("ucmatose", [&["-c", "5"], &["-c", "5", "-s"]], |client| {
        assert!(client.contains("return status 0"), "{client}");
    });
}

#[test]
fn udaddy() {
    everywhere("udaddy", [&[], &["-s"]], |client| {
        assert!(client.contains("return status 0"), "{client}");
    });
}

#[test]
fn perftest() {
    for (program, args) in [
        ("ib_write_bw", &["-R", "-n", "200", "-F"][..]),
        ("ib_send_bw", &["-R", "-n", "200", "-F", "-c", "UD"]),
    ] {
        everywhere(program, [args, args], |client| {
            assert!(client.contains("#bytes"), "{program}: {client}");
        });
    }
}

#[test]
fn rstream() {
    let server = ["-S", "300000", "-C", "20", "-I", "3", "-T", "v", "-T", "b"];
    let client = [&server[..], &["-s"]].concat();
    everywhere("rstream", [&server, &client], |client| {
        assert!(client.contains("custom"), "{client}");
    });
}

#[test]
fn where_nobody_listens_the_host_says_so() {
    let (host, other) = (Host::new("auto"), Host::new("auto"));
    let _server = host.server("rping", &["-s", "-p", "7001"]);
    let args = ["-c", "-C", "1", "-p", "7002", "-a", &host.address];
    let (good, text) = Watched::start(&mut other.command("rping", &args)).end();
    assert!(!good, "{text}");
    assert!(text.contains("RDMA_CM_EVENT_REJECTED, error 8"), "{text}");
}
