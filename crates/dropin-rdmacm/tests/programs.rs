//! Tests of rdma-core's own programs as Debian ships them, on both drop-in libraries.

#[path = "../../dropin/tests/common/mod.rs"]
mod common;

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use common::{Fabric, Watched, compiled_with_rdmacm};

#[test]
fn threads_are_cancelled_where_they_wait_for_events_and_nowhere_else() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = compiled_with_rdmacm("canceled", folder.path());
    for link_layer in ["roce", "ib"] {
        let fabric = Fabric::new();
        let out = Watched::start(&mut fabric.command(&program, link_layer)).finish();
        assert_eq!(out, "ok\n", "{link_layer}");
    }
}

/// The program requires the version `RDMACM_1.5`, which only a library of rdma-core's newest release has.
#[test]
fn a_c_program_of_the_newest_release_runs() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("newest");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/newest.c");
    common::run(
        Command::new("cc")
            .args(["-std=gnu11", "-Wall", "-Werror", "-o"])
            .arg(&program)
            .arg(source)
            .arg(common::library_folder().join("librdmacm.so.1"))
            .arg(common::library())
            .arg("-lpthread"),
    );
    let needs = common::run(Command::new("readelf").args(["-W", "-V"]).arg(&program));
    let needs = String::from_utf8_lossy(&needs.stdout).into_owned();
    for node in ["RDMACM_1.4", "RDMACM_1.5"] {
        assert!(needs.contains(&format!("Name: {node}")), "{needs}");
    }
    for link_layer in ["roce", "ib"] {
        let fabric = Fabric::new();
        let out = Watched::start(&mut fabric.command(&program, link_layer)).finish();
        assert_eq!(out, "ok\n", "{link_layer}");
    }
}

#[test]
fn what_the_system_is_short_of_is_an_errno() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = compiled_with_rdmacm("limits", folder.path());
    for link_layer in ["roce", "ib"] {
        let fabric = Fabric::new();
        let out = Watched::start(&mut fabric.command(&program, link_layer)).finish();
        assert!(out.starts_with("ok\n"), "{link_layer}: {out}");
    }
}

/// Returns true if a process in the fabric listens: the name of a port then refers to a socket.
fn somebody_listens(fabric: &Fabric) -> bool {
    let Ok(entries) = std::fs::read_dir(fabric.folder().join("rdma_cm")) else {
        return false;
    };
    entries
        .flatten()
        .map(|entry| entry.path())
        .any(|path| path.is_symlink() && path.exists())
}

/// Starts a server, and waits until it listens.
fn server(fabric: &Fabric, link_layer: &str, program: &str, args: &[&str]) -> Watched {
    let mut server = Watched::start(fabric.command(program, link_layer).args(args));
    let deadline = Instant::now() + Duration::from_secs(30);
    while !somebody_listens(fabric) {
        if !server.runs() || Instant::now() > deadline {
            let (_, text) = server.end();
            panic!("{program} {args:?} does not listen:\n{text}");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    server
}

/// Runs a server and a client on both link layers. Both must succeed. Returns their output, client first.
fn both(program: [&str; 2], server_args: &[&str], client_args: &[&str]) -> Vec<[String; 2]> {
    ["roce", "ib"]
        .into_iter()
        .map(|link_layer| on(link_layer, program, server_args, client_args))
        .collect()
}

/// Runs a server and a client on one link layer.
fn on(
    link_layer: &str,
    program: [&str; 2],
    server_args: &[&str],
    client_args: &[&str],
) -> [String; 2] {
    let fabric = Fabric::new();
    let server = server(&fabric, link_layer, program[0], server_args);
    let mut client = fabric.command(program[1], link_layer);
    let client = Watched::start(client.args(client_args)).finish();
    [client, server.finish()]
}

#[test]
fn rping() {
    let args = |role| [role, "-a", "127.0.0.1", "-C", "20", "-V", "-v"];
    for [client, server] in both(["rping"; 2], &args("-s"), &args("-c")) {
        assert!(client.contains("ping data: rdma-ping-19"), "{client}");
        assert!(
            server.contains("server ping data: rdma-ping-19"),
            "{server}"
        );
    }
}

#[test]
fn ucmatose() {
    for connections in ["1", "5"] {
        let server = ["-c", connections];
        let client = ["-s", "127.0.0.1", "-c", connections];
        for [client, _] in both(["ucmatose"; 2], &server, &client) {
            assert!(client.contains("return status 0"), "{client}");
        }
    }
}

#[test]
fn udaddy() {
    for [client, _] in both(["udaddy"; 2], &[], &["-s", "127.0.0.1"]) {
        assert!(client.contains("return status 0"), "{client}");
    }
}

#[test]
fn rdma_client_and_server() {
    for [client, _] in both(["rdma_server", "rdma_client"], &[], &["-s", "127.0.0.1"]) {
        assert!(client.contains("rdma_client: end 0"), "{client}");
    }
}

#[test]
fn cmtime() {
    let fabric = Fabric::new();
    // The server runs until it is killed.
    let _server = server(&fabric, "roce", "cmtime", &["-c", "20"]);
    let mut client = fabric.command("cmtime", "roce");
    let text = Watched::start(client.args(["-s", "127.0.0.1", "-c", "20"])).finish();
    assert!(text.contains("disconnect"), "{text}");
}

#[test]
fn perftest_connects_by_rdma_cm() {
    for (program, args) in [
        ("ib_write_bw", &[][..]),
        ("ib_send_lat", &[]),
        ("ib_read_bw", &[]),
        ("ib_send_bw", &["-c", "UD"]),
    ] {
        let server = [&["-R", "-n", "200", "-F"], args].concat();
        let client = [&server[..], &["127.0.0.1"]].concat();
        for [client, _] in both([program; 2], &server, &client) {
            assert!(client.contains("#bytes"), "{program}: {client}");
        }
    }
}

#[test]
fn rstream() {
    for mode in ["b", "a", "n"] {
        for size in ["1", "5000", "300000"] {
            let server = ["-S", size, "-C", "20", "-I", "3", "-T", "v", "-T", mode];
            let client = [&server[..], &["-s", "127.0.0.1"]].concat();
            for [client, _] in both(["rstream"; 2], &server, &client) {
                assert!(client.contains("custom"), "{mode} {size}: {client}");
            }
        }
    }
}

#[test]
fn riostream() {
    for mode in ["b", "a", "n"] {
        for size in ["64", "300000"] {
            let server = ["-S", size, "-C", "10", "-I", "3", "-T", "v", "-T", mode];
            let client = [&server[..], &["-s", "127.0.0.1"]].concat();
            for [client, _] in both(["riostream"; 2], &server, &client) {
                assert!(client.contains("custom"), "{mode} {size}: {client}");
            }
        }
    }
}

/// The programs use addresses of `AF_IB`. This test uses the loopback address, because the port's GID
/// differs between hosts.
#[test]
fn programs_that_take_gids_reach_each_other_on_infiniband() {
    for (program, args) in [
        ("ucmatose", &["-f", "gid"][..]),
        ("ucmatose", &["-f", "gid", "-P", "ib", "-c", "3"]),
        ("udaddy", &["-f", "gid"]),
        ("rstream", &["-f", "gid", "-C", "10", "-S", "5000"]),
        ("riostream", &["-f", "gid", "-C", "10", "-S", "5000"]),
    ] {
        let client = [args, &["-s", "::1"]].concat();
        let [client, _] = on("ib", [program; 2], args, &client);
        let done = client.contains("return status 0") || client.contains("custom");
        assert!(done, "{program} {args:?}: {client}");
    }
}

/// udpong exchanges datagrams: its server has a UDP port.
#[test]
fn udpong() {
    let free = std::net::UdpSocket::bind(("127.0.0.1", 0)).expect("a port");
    let port = free.local_addr().expect("its number").port();
    drop(free);
    let text = port.to_string();
    for args in [
        &["-S", "64", "-T", "e"][..],
        &["-S", "2000", "-T", "b"],
        &["-S", "1000", "-T", "a"],
        &["-S", "100"],
    ] {
        let args = [&["-b", "127.0.0.1", "-p", &text, "-C", "300"], args].concat();
        for link_layer in ["roce", "ib"] {
            let fabric = Fabric::new();
            // The server runs until it is killed.
            let mut server = Watched::start(fabric.command("udpong", link_layer).args(&args));
            while std::net::UdpSocket::bind(("127.0.0.1", port)).is_ok() {
                assert!(server.runs(), "{args:?}: {}", server.end().1);
                std::thread::sleep(Duration::from_millis(5));
            }
            let mut client = fabric.command("udpong", link_layer);
            let client = Watched::start(client.args(&args).args(["-s", "127.0.0.1"])).finish();
            assert!(client.contains("custom"), "{args:?}: {client}");
        }
    }
}

#[test]
fn rcopy() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    let bytes: Vec<u8> = (0..3_000_000_u32).flat_map(u32::to_le_bytes).collect();
    std::fs::write(path("from"), &bytes).expect("written");
    let fabric = Fabric::new();
    // The server runs until it is killed.
    let _server = server(&fabric, "roce", "rcopy", &[]);
    let to = format!("127.0.0.1:{}", path("to").display());
    let mut client = fabric.command("rcopy", "roce");
    Watched::start(client.arg(path("from")).arg(to)).finish();
    assert_eq!(std::fs::read(path("to")).expect("copied"), bytes);
}

/// A program without RDMA code runs over rsockets by preloading.
#[test]
fn sockets_by_preload() {
    const PRELOAD: &str = "/usr/lib/x86_64-linux-gnu/rsocket/librspreload.so";
    assert!(
        Path::new(PRELOAD).exists(),
        "{PRELOAD} is missing; librdmacm1 brings it"
    );
    let folder = tempfile::tempdir().expect("a folder");
    let program = compiled_with_rdmacm("reverse", folder.path());
    let fabric = Fabric::new();
    let start = |role: &str| {
        let mut command = fabric.command(&program, "roce");
        Watched::start(command.env("LD_PRELOAD", PRELOAD).arg(role))
    };
    let mut server = start("server");
    let deadline = Instant::now() + Duration::from_secs(30);
    while !somebody_listens(&fabric) && server.runs() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(start("client").finish(), "same\n");
    server.finish();
}
