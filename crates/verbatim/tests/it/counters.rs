//! Counters and the GID table: in sysfs, as programs see them, and in `verbatim devices -v`.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Output, Stdio};
use std::time::{Duration, Instant};

use crate::common;

const PORT: &str = "/sys/class/infiniband/softnic0/ports/1";

/// Two hosts of a test, with addresses unique to the test and one fabric.
struct Hosts {
    folder: tempfile::TempDir,
    addresses: [String; 2],
}

impl Hosts {
    fn new(test: u8) -> Self {
        let [.., high, low] = std::process::id().to_be_bytes();
        let address = |host: u8| format!("127.{}.{high}.{low}", 200 + 2 * test + host);
        Self {
            folder: tempfile::tempdir_in("/dev/shm").expect("a folder"),
            addresses: [address(0), address(1)],
        }
    }

    fn fabric(&self) -> PathBuf {
        self.folder.path().join("fabric")
    }

    /// Starts `verbatim` with these arguments at a host's address.
    fn start(&self, args: &[&str], host: usize, rest: &[&str]) -> Child {
        common::build_libraries();
        common::verbatim(args)
            .args(["--address", &self.addresses[host]])
            .args(rest)
            .env("VERBATIM_FABRIC_DIR", self.fabric())
            .env_remove("VERBATIM_FABRIC")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts")
    }

    fn run(&self, args: &[&str], host: usize, rest: &[&str]) -> Output {
        let out = self.start(args, host, rest).wait_with_output();
        let out = out.expect("it ends");
        assert!(out.status.success(), "{args:?} {rest:?}: {out:?}");
        out
    }

    /// Runs a shell script that sees the files of the device, and returns its output.
    fn script(&self, host: usize, script: &str) -> String {
        let out = self.run(&["run"], host, &["--", "sh", "-c", script]);
        String::from_utf8_lossy(&out.stdout).into_owned()
    }

    /// Returns the port as `verbatim devices -v` shows it.
    fn port(&self, host: usize) -> serde_json::Value {
        let out = self.run(
            &["devices", "-v", "--json", "--provider", "softnic"],
            host,
            &[],
        );
        common::json_lines(&out)[0]["data"]["ports"][0].clone()
    }

    fn counter(&self, host: usize, name: &str) -> u64 {
        let port = self.port(host);
        port["counters"][name].as_u64().expect("a number")
    }
}

/// A ping-pong of `count` messages; its server is killed if it does not end.
struct PingPong {
    server: Child,
    client: Option<Child>,
}

impl PingPong {
    fn start(hosts: &Hosts, port: &str, count: &str) -> Self {
        Self::start_on(hosts, port, count, &[], &[])
    }

    /// [`start`](Self::start) with further options of `verbatim run` and of the program.
    fn start_on(
        hosts: &Hosts,
        port: &str,
        count: &str,
        options: &[&str],
        of_program: &[&str],
    ) -> Self {
        let args = [&["run", "--no-view", "--path", "packets"], options].concat();
        let program = ["--", "ibv_rc_pingpong", "-g", "1", "-p", port, "-n", count];
        let program = [&program[..], of_program].concat();
        let server = hosts.start(&args, 0, &program);
        let mut ping_pong = Self {
            server,
            client: None,
        };
        // The server listens at its TCP port once it has a queue pair.
        let listens = format!(
            ":{:04X} 00000000:0000 0A",
            port.parse::<u16>().expect("a port")
        );
        let is_listening = || {
            let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(fs::read_to_string);
            let mut lines = tables.iter().flatten().flat_map(|table| table.lines());
            lines.any(|line| {
                line.replace("00000000000000000000000000000000", "00000000")
                    .contains(&listens)
            })
        };
        while !is_listening() {
            assert!(ping_pong.is_running(), "the server has ended");
            std::thread::sleep(Duration::from_millis(10));
        }
        ping_pong.client = Some(hosts.start(&args, 1, &[&program[..], &["127.0.0.1"]].concat()));
        ping_pong
    }

    fn is_running(&mut self) -> bool {
        self.server.try_wait().expect("ours").is_none()
    }

    fn wait(mut self) {
        for child in self.client.iter_mut().chain([&mut self.server]) {
            assert!(child.wait().expect("it ends").success());
        }
    }
}

impl Drop for PingPong {
    fn drop(&mut self) {
        for child in self.client.iter_mut().chain([&mut self.server]) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[test]
fn counters_outlive_processes_and_sysfs_has_them() {
    let hosts = Hosts::new(0);
    let zero = format!("cd {PORT}/hw_counters; cat sent_pkts rdma_sends rx_wrong_source lifespan");
    assert_eq!(hosts.script(0, &zero), "0\n0\n0\n1000\n");
    for _ in 0..2 {
        PingPong::start(&hosts, "18631", "100").wait();
    }
    for host in 0..2 {
        let port = hosts.port(host);
        let counters = &port["counters"];
        assert_eq!(counters["rdma_sends"], 200, "{counters}");
        assert_eq!(counters["rdma_recvs"], 200, "{counters}");
        assert!(counters["sent_pkts"].as_u64() >= Some(400), "{counters}");
        assert_eq!(counters["rx_icrc_encapsulated"], 0, "{counters}");
        // Each file contains the same number as the JSON.
        let script = format!("cd {PORT}/hw_counters; for f in *; do echo $f $(cat $f); done");
        let files = hosts.script(host, &script);
        let lines: Vec<_> = files
            .lines()
            .filter(|l| !l.starts_with("lifespan"))
            .collect();
        let expected: Vec<_> = counters
            .as_object()
            .expect("a map")
            .iter()
            .map(|(name, value)| format!("{name} {value}"))
            .collect();
        assert_eq!(lines, expected);
    }
}

#[test]
fn each_port_counts_its_own_packets() {
    let [one, other] = [Hosts::new(5), Hosts::new(6)];
    // Two addresses for the two ports of each host.
    let both = |host: usize| format!("{},{}", one.addresses[host], other.addresses[host]);
    let hosts = Hosts {
        addresses: [both(0), both(1)],
        ..one
    };
    let options = ["run", "--ports", "2"];
    let script = "cd /sys/class/infiniband/softnic0/ports; \
                  for port in 1 2; do cat $port/hw_counters/rdma_sends $port/hw_counters/rdma_recvs \
                  $port/hw_counters/sent_pkts $port/hw_counters/rcvd_pkts; done";
    let counts = |host: usize| {
        let out = hosts.run(&options, host, &["--", "sh", "-c", script]);
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        let numbers = text.lines().map(|line| line.parse().expect("a number"));
        numbers.collect::<Vec<u64>>()
    };
    assert_eq!(counts(0), [0; 8]);
    let options = ["--ports", "2"];
    PingPong::start_on(&hosts, "18633", "100", &options, &["-i", "2"]).wait();
    for host in 0..2 {
        let counts = counts(host);
        assert_eq!(counts[..4], [0; 4], "{counts:?}");
        assert_eq!(counts[4..6], [100; 2], "{counts:?}");
        assert!(counts[6] >= 200 && counts[7] >= 200, "{counts:?}");
        // `verbatim devices` shows the same.
        let args = ["devices", "-v", "--json", "--provider", "softnic"];
        let out = hosts.run(&args, host, &options);
        let ports = &common::json_lines(&out)[0]["data"]["ports"];
        let sends = [0, 1].map(|port: usize| ports[port]["counters"]["rdma_sends"].as_u64());
        assert_eq!(sends, [Some(0), Some(100)], "{ports}");
    }
}

/// Every packet is marked. A sender that is allowed 8 Mbit/s after its first notification needs 0.4 s for 400 KB.
#[test]
fn dcqcn_has_the_parameters_that_the_user_sets() {
    let slow = "line_rate_bps=16e6,min_rate_bps=1e6,increase_timer_ns=1e9,increase_bytes=1e12";
    for (test, port, setting) in [(7, "18634", slow), (8, "18635", "off")] {
        let hosts = Hosts::new(test);
        let options = ["--fault", "ecn", "--dcqcn", setting];
        let begin = Instant::now();
        PingPong::start_on(&hosts, port, "100", &options, &["-s", "4096"]).wait();
        assert!(hosts.counter(0, "np_cnp_sent") > 0, "{setting}");
        let handled = hosts.counter(1, "rp_cnp_handled");
        assert_eq!(handled > 0, setting == slow, "{setting}: {handled}");
        let is_slow = begin.elapsed() > Duration::from_millis(300);
        assert!(is_slow || setting != slow, "{:?}", begin.elapsed());
    }
    let wrong = common::run(&["run", "--dcqcn", "min_rate=1e9", "--", "true"]);
    let error = String::from_utf8_lossy(&wrong.stderr).into_owned();
    assert!(
        !wrong.status.success() && error.contains("min_rate_bps"),
        "{error}"
    );
}

#[test]
fn counters_of_processes_that_run_are_published() {
    let hosts = Hosts::new(1);
    let mut ping_pong = PingPong::start(&hosts, "18632", "100000000");
    let mut before = 0;
    for _ in 0..2 {
        // The counters grow while the processes run.
        loop {
            assert!(ping_pong.is_running(), "nobody has ended it");
            let now = hosts.counter(0, "sent_pkts");
            if now > before {
                before = now;
                break;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    let state = &hosts.port(0)["packets"]["addresses"][0];
    assert_eq!(state["state"], "shared", "{state}");
    assert_eq!(state["processes"], 1, "{state}");
}

#[test]
fn the_gid_table_names_types_and_interfaces() {
    let hosts = Hosts::new(2);
    let entry = format!("cd {PORT}; cat gids/1 gid_attrs/types/1 gid_attrs/ndevs/1");
    let [a, b, c, d] = hosts.addresses[0]
        .parse::<std::net::Ipv4Addr>()
        .expect("an address")
        .octets();
    let gid = format!("0000:0000:0000:0000:0000:ffff:{a:02x}{b:02x}:{c:02x}{d:02x}");
    assert_eq!(hosts.script(0, &entry), format!("{gid}\nRoCE v2\nlo\n"));
    let port = hosts.port(0);
    assert_eq!(port["gids"][1]["interface"], "lo", "{port}");
    // The MTU of 127.0.0.0/8 allows jumbo packets.
    let address = &port["packets"]["addresses"][0];
    assert_eq!(address["ip"], hosts.addresses[0], "{address}");
    assert_eq!(address["state"], "free", "{address}");
    assert_eq!(address["path_mtu_bytes"], 4096, "{address}");
    assert!(
        address["receive_buffer_bytes"].as_u64() > Some(0),
        "{address}"
    );
    // IPv6, if the host has it.
    let has_ipv6 = fs::read_to_string("/proc/net/if_inet6").unwrap_or_default();
    if has_ipv6.contains("00000000000000000000000000000001") {
        let hosts = Hosts {
            addresses: ["::1".to_owned(), String::new()],
            ..hosts
        };
        let gid = "0000:0000:0000:0000:0000:0000:0000:0001";
        assert_eq!(hosts.script(0, &entry), format!("{gid}\nRoCE v2\nlo\n"));
    }
}

#[test]
fn a_port_that_somebody_else_has_is_named_with_what_to_do() {
    let hosts = Hosts::new(3);
    let address = &hosts.addresses[0];
    let held = std::net::UdpSocket::bind((address.as_str(), 4791)).expect("nobody has it");
    let out = hosts.run(&["devices", "-v", "--provider", "softnic"], 0, &[]);
    let text = String::from_utf8_lossy(&out.stdout);
    let said = format!("{address} (lo): unavailable: UDP port 4791 of {address} is in use");
    assert!(
        text.contains(&said) && text.contains("end the other one"),
        "{text}"
    );
    let state = &hosts.port(0)["packets"]["addresses"][0];
    assert_eq!(state["state"], "unavailable", "{state}");
    drop(held);
    assert_eq!(hosts.port(0)["packets"]["addresses"][0]["state"], "free");
}

#[test]
fn an_infiniband_port_sends_no_packets() {
    let hosts = Hosts::new(4);
    let args = [
        "devices",
        "-v",
        "--provider",
        "softnic",
        "--link-layer",
        "ib",
    ];
    let out = hosts.run(&args, 0, &[]);
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(text.contains("this port has no address for them"), "{text}");
    assert!(text.contains("counters: all 0"), "{text}");
}
