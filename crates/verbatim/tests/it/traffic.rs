//! The traffic counters of ports under `verbatim run`: messages between processes of one host count at both ports.

use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::common;

/// Returns a `verbatim run` command in a fabric of its own.
fn command(fabric: &str, options: &[&str], program: &[&str]) -> Command {
    common::build_libraries();
    let mut command = Command::new(env!("CARGO_BIN_EXE_verbatim"));
    command
        .args(["run", "--fabric", fabric])
        .args(options)
        .args(program)
        .env_remove("VERBATIM_LINK_LAYER")
        .env_remove("VERBATIM_DEVICE")
        .env_remove("VERBATIM_FABRIC")
        .stdin(Stdio::null());
    command
}

#[track_caller]
fn stdout(out: &Output) -> String {
    assert!(out.status.success(), "{out:?}");
    String::from_utf8_lossy(&out.stdout).into_owned()
}

/// The counters of a port, in the order of [`NAMES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Counts([u64; 8]);

const NAMES: [&str; 8] = [
    "port_xmit_data",
    "port_xmit_packets",
    "unicast_xmit_packets",
    "multicast_xmit_packets",
    "port_rcv_data",
    "port_rcv_packets",
    "unicast_rcv_packets",
    "multicast_rcv_packets",
];

impl Counts {
    #[track_caller]
    fn read(fabric: &str, options: &[&str], device: &str, port: u8) -> Self {
        let folder = format!("/sys/class/infiniband/{device}/ports/{port}/counters");
        // One read(2) a file: its text grows beside a reader, and a second call would add digits of a longer number.
        let script = format!(
            "cd {folder} && for name in {}; do dd if=$name bs=64 count=1 status=none; done",
            NAMES.join(" ")
        );
        let text = stdout(
            &command(fabric, options, &["sh", "-c", &script])
                .output()
                .expect("it starts"),
        );
        let numbers: Vec<u64> = text
            .lines()
            .map(|line| line.parse().unwrap_or_else(|e| panic!("{e}: {text}")))
            .collect();
        Self(numbers.try_into().expect("a line for each"))
    }

    /// Returns the difference from an earlier reading of the files.
    fn since(self, before: Self) -> Self {
        Self(std::array::from_fn(|at| self.0[at] - before.0[at]))
    }

    /// `packets` unicast packets with `octets` octets in all, sent and received at one port.
    fn both_ways(packets: u64, octets: u64) -> Self {
        let direction = [octets / 4, packets, packets, 0];
        Self(std::array::from_fn(|at| direction[at % 4]))
    }
}

/// A server, killed when dropped.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a program as server, and as client with `localhost`. Returns the client's output.
#[track_caller]
fn run_pair(fabric: &str, options: &[&str], program: &[&str]) -> String {
    let deadline = Instant::now() + Duration::from_secs(60);
    let server = command(fabric, options, program)
        .stdout(Stdio::null())
        .spawn();
    let mut server = Server(server.expect("it starts"));
    let client = [program, &["localhost"]].concat();
    let out = loop {
        let out = command(fabric, options, &client)
            .output()
            .expect("it starts");
        let ended = server.0.try_wait().expect("a child").is_some();
        if out.status.success() || ended || Instant::now() > deadline {
            break out;
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    let text = stdout(&out);
    while server.0.try_wait().expect("a child").is_none() {
        assert!(Instant::now() < deadline, "the server does not end");
        std::thread::sleep(Duration::from_millis(20));
    }
    text
}

/// A fabric that no earlier run of the tests has counted in.
fn new_fabric(name: &str) -> String {
    format!("tests_traffic_{name}_{}", std::process::id())
}

/// Octets of a packet without its payload: LRH or Ethernet, IPv6 and UDP; BTH and ICRC.
const INFINIBAND: u64 = 8 + 12 + 4;
const ROCE: u64 = 14 + 40 + 8 + 12 + 4;

#[test]
fn messages_between_processes_count_in_packets_of_the_mtu() {
    let fabric = new_fabric("mtu");
    let port = common::free_port().to_string();
    for (options, gid, packet) in [
        (&["--link-layer", "ib"][..], &[][..], INFINIBAND),
        (&[], &["-g", "0"], ROCE),
    ] {
        for (mtu, packets) in [("1024", 1), ("256", 4)] {
            let before = Counts::read(&fabric, options, "softnic0", 1);
            let program = [
                "ibv_rc_pingpong",
                "-s",
                "1000",
                "-n",
                "700",
                "-m",
                mtu,
                "-p",
                &port,
            ];
            run_pair(&fabric, options, &[&program, gid].concat());
            let counted = Counts::read(&fabric, options, "softnic0", 1).since(before);
            // Each of the two sends 700 messages.
            let octets = 1400 * (packets * packet + 1000);
            let expected = Counts::both_ways(1400 * packets, octets);
            assert_eq!(counted, expected, "{options:?}, MTU {mtu}");
        }
    }
}

#[test]
fn datagrams_count() {
    let fabric = new_fabric("ud");
    let port = common::free_port().to_string();
    let options = ["--link-layer", "ib"];
    let before = Counts::read(&fabric, &options, "softnic0", 1);
    let program = ["ibv_ud_pingpong", "-s", "501", "-n", "600", "-p", &port];
    run_pair(&fabric, &options, &program);
    let counted = Counts::read(&fabric, &options, "softnic0", 1).since(before);
    // With a DETH, and the payload padded to words.
    let octets = 1200 * (INFINIBAND + 8 + 504);
    assert_eq!(counted, Counts::both_ways(1200, octets));
}

#[test]
fn perftest_reports_a_difference() {
    let fabric = new_fabric("perftest");
    let port = common::free_port().to_string();
    let program = [
        "ib_write_bw",
        "-F",
        "-p",
        &port,
        "-s",
        "65536",
        "-n",
        "1000",
        "-W",
        "counters/port_xmit_data",
    ];
    let text = run_pair(&fabric, &[], &program);
    let (_, after) = text
        .split_once("port_xmit_data")
        .unwrap_or_else(|| panic!("no counter in {text}"));
    let number: String = after
        .chars()
        .skip_while(|c| !c.is_ascii_digit())
        .take_while(char::is_ascii_digit)
        .collect();
    let words: u64 = number.parse().unwrap_or_else(|e| panic!("{e}: {text}"));
    // The last work requests before the report may not be there yet.
    assert!(words > 900 * 65536 / 4, "{text}");
    assert!(words < 1100 * 65536 * 2 / 4, "{text}");
}

#[test]
fn ports_are_kept_apart_and_a_killed_process_spoils_nothing() {
    let fabric = new_fabric("ports");
    let options = ["--devices", "2", "--ports", "2", "--link-layer", "ib"];
    let port = common::free_port().to_string();
    let program = [
        "ibv_rc_pingpong",
        "-d",
        "softnic1",
        "-i",
        "2",
        "-s",
        "1000",
        "-m",
        "1024",
        "-p",
        &port,
    ];
    // A pair that would take for ever is killed in the middle.
    let endless = [&program[..], &["-n", "1000000000"]].concat();
    let mut server = Server(
        command(&fabric, &options, &endless)
            .stdout(Stdio::null())
            .spawn()
            .expect("it starts"),
    );
    let client = [&endless[..], &["localhost"]].concat();
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut client_runs = command(&fabric, &options, &client);
    let mut child = Server(
        client_runs
            .stdout(Stdio::null())
            .spawn()
            .expect("it starts"),
    );
    let counted = loop {
        let counted = Counts::read(&fabric, &options, "softnic1", 2);
        if counted.0[1] != 0 && counted.0[5] != 0 {
            break counted;
        }
        assert!(Instant::now() < deadline, "nothing was counted");
        if child.0.try_wait().expect("a child").is_some() {
            // The server did not listen yet.
            child = Server(client_runs.spawn().expect("it starts"));
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    for process in [&mut child, &mut server] {
        process.0.kill().expect("ours");
        process.0.wait().expect("a child");
    }
    let before = Counts::read(&fabric, &options, "softnic1", 2);
    for (now, then) in before.0.iter().zip(counted.0) {
        assert!(*now >= then, "{before:?} after {counted:?}");
    }
    run_pair(&fabric, &options, &[&program[..], &["-n", "600"]].concat());
    let counted = Counts::read(&fabric, &options, "softnic1", 2).since(before);
    let octets = 1200 * (INFINIBAND + 1000);
    assert_eq!(counted, Counts::both_ways(1200, octets));
    for (device, port) in [("softnic0", 1), ("softnic0", 2), ("softnic1", 1)] {
        let idle = Counts::read(&fabric, &options, device, port);
        assert_eq!(idle, Counts([0; 8]), "{device} {port}");
    }
}
