//! Several devices and ports: `verbatim run --devices N --ports N`.

use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common;

/// `verbatim run` with these options and this program, in a fabric of its own.
fn command(fabric: &str, args: &[&str]) -> Command {
    common::build_libraries();
    let mut command = common::verbatim(&["run", "--fabric", fabric]);
    command
        .args(args)
        .env_remove("VERBATIM_DEVICE_COUNT")
        .env_remove("VERBATIM_PORT_COUNT");
    command
}

#[track_caller]
fn stdout(out: &Output) -> String {
    assert!(out.status.success(), "{out:?}");
    String::from_utf8_lossy(&out.stdout).into_owned()
}

#[track_caller]
fn run(fabric: &str, args: &[&str]) -> String {
    stdout(&command(fabric, args).output().expect("it starts"))
}

/// A server of which the client may come before it listens; killed if the test fails before.
struct Server(Child);

impl Server {
    fn start(fabric: &str, args: &[&str]) -> Self {
        let mut command = command(fabric, args);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Self(command.spawn().expect("it starts"))
    }

    /// Runs a client until the server takes it; then the server must end well, too.
    #[track_caller]
    fn serve(mut self, fabric: &str, client: &[&str]) -> String {
        let deadline = Instant::now() + Duration::from_secs(60);
        let out = loop {
            let out = command(fabric, client).output().expect("it starts");
            let ended = self.0.try_wait().expect("a child").is_some();
            if out.status.success() || ended || Instant::now() > deadline {
                break out;
            }
            std::thread::sleep(Duration::from_millis(50));
        };
        let text = stdout(&out);
        while self.0.try_wait().expect("a child").is_none() {
            assert!(Instant::now() < deadline, "the server does not end");
            std::thread::sleep(Duration::from_millis(20));
        }
        let status = self.0.wait().expect("a child");
        assert!(status.success(), "the server: {status}");
        text
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

const TWO: [&str; 4] = ["--devices", "2", "--ports", "2"];

#[test]
fn programs_see_all_devices_and_ports() {
    let fabric = "tests_ports_1";
    let script = "ibv_devices; ibv_devinfo; ls /sys/class/infiniband /dev/infiniband; \
                  cat /sys/class/infiniband/softnic1/ports/2/gids/1; rdma link show -j";
    for link_layer in ["roce", "ib"] {
        let args = [
            &["--link-layer", link_layer],
            &TWO[..],
            &["sh", "-c", script],
        ]
        .concat();
        if link_layer == "ib" {
            let lids = run(fabric, &[&args[..6], &["ibv_devinfo"]].concat());
            for lid in ["1", "2", "5", "6"] {
                let line = format!("port_lid:\t\t{lid}\n");
                assert_eq!(lids.matches(&line).count(), 1, "{lid} in {lids}");
            }
            continue;
        }
        let text = run(fabric, &args);
        for name in ["softnic0", "softnic1", "uverbs0", "uverbs1"] {
            assert!(text.contains(name), "{name} in {text}");
        }
        assert_eq!(text.matches("hca_id:").count(), 2, "{text}");
        assert_eq!(text.matches("phys_port_cnt:\t\t\t2").count(), 2, "{text}");
        assert_eq!(text.matches("PORT_ACTIVE (4)").count(), 4, "{text}");
        assert!(
            text.contains("0000:0000:0000:0000:0000:ffff:7ffb:0102"),
            "{text}"
        );
        let links: Value = serde_json::from_str(text.lines().last().unwrap_or("")).expect("JSON");
        let links = links.as_array().expect("links").iter();
        let links: Vec<_> = links
            .map(|l| format!("{}/{}", l["ifname"], l["port"]))
            .collect();
        let expected = ["softnic0", "softnic1"]
            .iter()
            .flat_map(|name| (1..=2).map(move |port| format!("\"{name}\"/{port}")));
        assert_eq!(links, expected.collect::<Vec<_>>());
    }
    // One of each is what there is without being asked for, and for a Connect-IB two ports.
    let alone = run(fabric, &["ibv_devinfo"]);
    assert_eq!(alone.matches("\tport:\t").count(), 1, "{alone}");
    let connect_ib = run(fabric, &["--nic", "cib", "ibv_devinfo"]);
    assert_eq!(connect_ib.matches("\tport:\t").count(), 2, "{connect_ib}");
    let one = run(fabric, &["--nic", "cib", "--ports", "1", "ibv_devinfo"]);
    assert_eq!(one.matches("\tport:\t").count(), 1, "{one}");
}

#[test]
fn queue_pairs_of_different_devices_and_ports_reach_each_other() {
    let fabric = "tests_ports_2";
    // The second: the client's process has one port, and knows the server's all the same.
    for (link_layer, own, port) in [
        ("roce", &TWO[..], "1"),
        ("roce", &[], "1"),
        ("ib", &TWO, "2"),
    ] {
        let number = common::free_port().to_string();
        let gid: &[&str] = if link_layer == "ib" {
            &[]
        } else {
            &["-g", "1"]
        };
        let common = [&["ibv_rc_pingpong", "-n", "50", "-p", &number], gid].concat();
        let layer = ["--link-layer", link_layer];
        let at = ["-d", "softnic1", "-i", "2"];
        let server = [&layer, &TWO[..], &common, &at].concat();
        let server = Server::start(fabric, &server);
        let at = ["-d", "softnic0", "-i", port, "127.0.0.1"];
        let client = [&layer, own, &common, &at].concat();
        let text = server.serve(fabric, &client);
        assert!(text.contains("50 iters"), "{text}");
        let lids: Vec<_> = text.matches("LID 0x0006").collect();
        assert_eq!(lids.len(), usize::from(link_layer == "ib"), "{text}");
    }
}

#[test]
fn perftest_and_the_connection_manager_use_every_port() {
    let fabric = "tests_ports_3";
    let number = common::free_port().to_string();
    let bandwidth = ["ib_write_bw", "-n", "200", "-p", &number];
    let server = [&TWO[..], &bandwidth, &["-d", "softnic1", "-i", "2"]].concat();
    let client = ["-d", "softnic0", "-i", "2", "127.0.0.1"];
    let client = [&TWO[..], &bandwidth, &client].concat();
    let text = Server::start(fabric, &server).serve(fabric, &client);
    assert!(text.contains("softnic0"), "{text}");

    let number = common::free_port().to_string();
    let server = ["rping", "-s", "-C", "5", "-a", "127.251.1.2", "-p", &number];
    let client = [
        "rping",
        "-c",
        "-C",
        "5",
        "-a",
        "127.251.1.2",
        "-I",
        "127.251.0.2",
        "-p",
        &number,
    ];
    let server = [&TWO[..], &server].concat();
    let client = [&TWO[..], &client].concat();
    Server::start(fabric, &server).serve(fabric, &client);
}

#[test]
fn ports_have_the_addresses_that_they_are_given() {
    let fabric = "tests_ports_4";
    let of = |list: &str| {
        let script = "cat /sys/class/infiniband/softnic0/ports/*/gids/1";
        let args = ["--address", list, "--ports", "2", "sh", "-c", script];
        command(fabric, &args).output().expect("it starts")
    };
    let text = stdout(&of("127.0.77.1,127.0.77.2"));
    let ends: Vec<_> = text.lines().filter_map(|line| line.get(30..)).collect();
    assert_eq!(ends, ["7f00:4d01", "7f00:4d02"], "{text}");

    let args = ["--address", "127.0.77.1", "--ports", "2", "ibv_devinfo"];
    let out = command(fabric, &args).output().expect("it starts");
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(!out.status.success(), "{out:?}");
    assert!(said.contains("the 2 ports need an address each"), "{said}");
    let out = command(fabric, &["--devices", "9", "true"]).output();
    let out = out.expect("it starts");
    assert_eq!(out.status.code(), Some(2), "{out:?}");
    let mut wrong = command(fabric, &["ibv_devinfo"]);
    let out = wrong
        .env("VERBATIM_PORT_COUNT", "0")
        .output()
        .expect("it starts");
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(said.contains("VERBATIM_PORT_COUNT is \"0\""), "{said}");
}

#[test]
fn the_devices_command_shows_them() {
    let found = common::lines_of(&[
        "devices",
        "--provider",
        "softnic",
        "--devices",
        "2",
        "--ports",
        "2",
        "-v",
        "--json",
    ]);
    let devices: Vec<_> = found
        .iter()
        .filter(|line| line["type"] == "device")
        .collect();
    let names: Vec<_> = devices
        .iter()
        .map(|device| device["data"]["name"].as_str())
        .collect();
    assert_eq!(names, [Some("softnic0"), Some("softnic1")]);
    let ports = devices[1]["data"]["ports"].as_array().expect("ports");
    let address = &ports[1]["packets"]["addresses"][0]["ip"];
    assert_eq!((ports.len(), address.as_str()), (2, Some("127.251.1.2")));
}
