//! The commands on a device of the machine itself, such as the kernel's Soft-RoCE:
//!
//! ```sh
//! VERBATIM_TEST_DEVICE=rxe0 cargo test -p verbatim --test device -- --ignored
//! ```
//!
//! `VERBATIM_TEST_GID_INDEX` chooses an entry of its GID table. Nothing here depends on speed.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv6Addr;
use std::path::Path;
use std::process::{Command, Stdio};

use common::{ANYWHERE, Server, ask_with, lines_of, run, verbatim};
use serde_json::Value;
use tap::Ledger;

const DESIGNS: [&str; 5] = ["atomics", "rpc", "rpc-batch", "rpc-batch-mq", "spec-s0"];

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|text| !text.is_empty())
}

fn device() -> String {
    variable("VERBATIM_TEST_DEVICE").expect("VERBATIM_TEST_DEVICE names the device, such as rxe0")
}

/// Returns the arguments that choose the device.
fn nic() -> Vec<String> {
    let mut args = vec![
        "--provider".to_owned(),
        "system".to_owned(),
        "--device".to_owned(),
        device(),
    ];
    if let Some(index) = variable("VERBATIM_TEST_GID_INDEX") {
        args.extend(["--gid-index".to_owned(), index]);
    }
    args
}

fn with_nic<'a>(args: &[&'a str], nic: &'a [String]) -> Vec<&'a str> {
    let nic = nic.iter().map(String::as_str);
    args.iter().copied().chain(nic).collect()
}

/// Returns the device as `verbatim devices` shows it.
fn shown() -> Value {
    let lines = lines_of(&["devices", "--json"]);
    let devices = lines.iter().filter(|line| line["type"] == "device");
    let names: BTreeSet<&str> = devices
        .clone()
        .filter_map(|line| line["data"]["name"].as_str())
        .collect();
    assert!(names.contains("softnic0"), "{names:?}");
    let device = device();
    let found = devices
        .map(|line| &line["data"])
        .find(|data| data["name"] == device.as_str());
    let found = found.unwrap_or_else(|| panic!("{device} is not among {names:?}"));
    assert_eq!(found["provider"], "system");
    found.clone()
}

/// Returns the designs that the device supports, according to the JSON of `verbatim devices`.
fn runnable() -> Vec<&'static str> {
    let shown = shown();
    let has = shown["capabilities"]["has"].as_array().expect("a list");
    let has = |names: &[&str]| names.iter().all(|name| has.iter().any(|h| h == name));
    let runs = |design: &&str| match *design {
        "atomics" => has(&["rc", "rdma-read", "atomics"]),
        "spec-s0" => has(&["ud", "immediates", "completion-events"]),
        _ => has(&["uc", "ud", "immediates"]),
    };
    DESIGNS.into_iter().filter(runs).collect()
}

/// The output of `ibv_devinfo -v`: `key: value` of the device, and of each of its ports.
struct DevInfo {
    device: BTreeMap<String, String>,
    ports: Vec<BTreeMap<String, String>>,
}

impl DevInfo {
    fn of(device: &str) -> DevInfo {
        let out = Command::new("ibv_devinfo")
            .args(["-v", "-d", device])
            .stdin(Stdio::null())
            .output()
            .expect("ibv_devinfo is there (Debian: ibverbs-utils)");
        assert!(out.status.success(), "ibv_devinfo: {:?}", out.status);
        let text = String::from_utf8(out.stdout).expect("text");
        let mut info = DevInfo {
            device: BTreeMap::new(),
            ports: Vec::new(),
        };
        for line in text.lines() {
            // Lines such as `GID[  0]:` and `max_qp:`; names of flags have no colon.
            let Some((key, value)) = line.trim().split_once(':') else {
                continue;
            };
            let key = key.replace(' ', "");
            if key == "port" {
                info.ports.push(BTreeMap::new());
            }
            let map = info.ports.last_mut().unwrap_or(&mut info.device);
            map.entry(key).or_insert_with(|| value.trim().to_owned());
        }
        info
    }
}

/// Parses the first number of a value of `ibv_devinfo`: `0xfff`, `4096 (5)`, `74a7:5bff:fe8a:b036`.
fn number(text: &str) -> u64 {
    let word = text.split_whitespace().next().unwrap_or("");
    let parsed = if let Some(hex) = word.strip_prefix("0x") {
        u64::from_str_radix(hex, 16)
    } else if word.contains(':') {
        u64::from_str_radix(&word.replace(':', ""), 16)
    } else {
        word.parse()
    };
    parsed.unwrap_or_else(|_| panic!("no number: {text:?}"))
}

/// Returns a JSON number, which may be a string of hexadecimal digits.
fn of_json(value: &Value) -> u64 {
    match value {
        Value::String(text) => number(text),
        value => value
            .as_u64()
            .unwrap_or_else(|| panic!("no number: {value}")),
    }
}

/// Parses the number in parentheses: the code of a name.
fn code(text: &str) -> u64 {
    let inside = text
        .split_once('(')
        .and_then(|(_, rest)| rest.split_once(')'));
    number(inside.unwrap_or_else(|| panic!("no code: {text:?}")).0)
}

#[test]
#[ignore = "needs an RDMA device: VERBATIM_TEST_DEVICE"]
fn devices_agree_with_ibv_devinfo() {
    let (shown, info) = (shown(), DevInfo::of(&device()));
    let device = |key: &str| info.device.get(key).unwrap_or_else(|| panic!("no {key}"));
    for (ours, theirs) in [
        ("guid", "node_guid"),
        ("sys_image_guid", "sys_image_guid"),
        ("vendor_id", "vendor_id"),
        ("vendor_part_id", "vendor_part_id"),
        ("hw_ver", "hw_ver"),
    ] {
        assert_eq!(of_json(&shown[ours]), number(device(theirs)), "{ours}");
    }
    // Soft-RoCE is the only driver that names the network device below it.
    let sysfs = Path::new("/sys/class/infiniband").join(shown["name"].as_str().expect("text"));
    let link = std::fs::read_link(sysfs.join("device/driver"));
    let driver = match link.as_deref().map(Path::file_name) {
        Ok(Some(name)) => name.to_str(),
        _ if sysfs.join("parent").exists() => Some("rdma_rxe"),
        _ => None,
    };
    assert_eq!(shown["driver"].as_str(), driver);
    assert_eq!(shown["firmware"].as_str(), Some(device("fw_ver").as_str()));
    let transport = shown["transport"].as_str().expect("text");
    assert!(device("transport").starts_with(transport), "{transport}");

    let limits = shown["limits"].as_object().expect("limits");
    let mut compared = 0;
    for (key, value) in limits {
        if key == "atomic_cap" {
            let names = ["none", "HCA", "global"];
            let index = usize::try_from(code(device(key))).expect("small");
            assert_eq!(value, names[index], "atomic_cap");
        } else {
            let theirs = device(key.trim_end_matches("_bytes"));
            assert_eq!(of_json(value), number(theirs), "{key}");
        }
        compared += 1;
    }
    assert!(compared >= 20, "{compared} limits");

    let ports = shown["ports"].as_array().expect("ports");
    assert_eq!(ports.len() as u64, number(device("phys_port_cnt")));
    assert_eq!(ports.len(), info.ports.len());
    for (ours, theirs) in ports.iter().zip(&info.ports) {
        ports_agree(ours, theirs);
    }
}

fn ports_agree(ours: &Value, theirs: &BTreeMap<String, String>) {
    let port = |key: &str| theirs.get(key).unwrap_or_else(|| panic!("no {key}"));
    for (key, theirs) in [
        ("port_num", "port"),
        ("active_mtu_bytes", "active_mtu"),
        ("max_mtu_bytes", "max_mtu"),
        ("max_msg_bytes", "max_msg_sz"),
        ("pkey_tbl_len", "pkey_tbl_len"),
        ("gid_tbl_len", "gid_tbl_len"),
        ("active_width_lanes", "active_width"),
    ] {
        // `1X (1)`
        let text = port(theirs).replace('X', "");
        assert_eq!(of_json(&ours[key]), number(&text), "{key}");
    }
    let gbps = port("active_speed")
        .split(' ')
        .next()
        .map(str::parse::<f64>);
    assert_eq!(
        ours["active_speed_gbps"].as_f64(),
        gbps.map(|g| g.expect("a rate"))
    );
    let state = ours["state"].as_str().expect("text");
    assert!(
        port("state").starts_with(&format!("PORT_{state} ")),
        "{state}"
    );
    assert_eq!(
        ours["link_layer"].as_str(),
        Some(port("link_layer").as_str())
    );
    assert_eq!(ours["lid"].as_u64().unwrap_or(0), number(port("port_lid")));
    assert_eq!(ours["sm_lid"].as_u64().unwrap_or(0), number(port("sm_lid")));

    let gid = |entry: &Value| {
        let text = entry["gid"].as_str().expect("text");
        let gid: Ipv6Addr = text.parse().expect("a GID");
        (
            entry["index"].as_u64().expect("an index"),
            gid,
            entry["type"].as_str().map(str::to_owned),
        )
    };
    let ours: Vec<_> = ours["gids"]
        .as_array()
        .expect("GIDs")
        .iter()
        .map(gid)
        .collect();
    let mut listed: Vec<_> = theirs
        .iter()
        .filter_map(|(key, value)| {
            let index = key.strip_prefix("GID[")?.strip_suffix(']')?;
            let (gid, gid_type) = value.split_once(", ").unwrap_or((value, "IB"));
            Some((
                number(index),
                gid.parse().expect("a GID"),
                Some(gid_type.to_owned()),
            ))
        })
        .collect();
    listed.sort();
    assert!(!ours.is_empty());
    assert_eq!(ours, listed);
}

#[test]
#[ignore = "needs an RDMA device: VERBATIM_TEST_DEVICE"]
fn every_design_that_the_device_can_run_is_verified() {
    let nic = nic();
    let lines = lines_of(&with_nic(
        &[
            "sequencer",
            "--rounds",
            "1",
            "--duration",
            "500ms",
            "--window",
            "32",
            "--clients",
            "2",
            "--json",
        ],
        &nic,
    ));
    let of = |kind: &str| -> Vec<&Value> {
        let lines = lines.iter().filter(|l| l["type"] == kind);
        lines.map(|l| &l["data"]).collect()
    };
    for round in of("round") {
        println!("{round}");
        assert_eq!(round["verdict"]["ok"], true, "{round}");
        assert_eq!(round["verdict"]["clients"], 2);
    }
    let names = |rows: &[&Value]| -> Vec<String> {
        let names = rows.iter().filter_map(|row| row["design"].as_str());
        names.map(str::to_owned).collect()
    };
    let (rows, skipped) = (of("design"), of("skipped"));
    assert_eq!(names(&rows), runnable());
    assert_eq!(rows.len() + skipped.len(), DESIGNS.len());
    for row in rows {
        assert_eq!(row["verified"], true, "{row}");
        assert_eq!(row["kind"], "measured NIC");
        assert!(row["rate_per_s"]["median"].as_f64() > Some(0.0));
    }
    for row in skipped {
        assert!(
            !row["lacks"].as_array().expect("a list").is_empty(),
            "{row}"
        );
    }
}

#[test]
#[ignore = "needs an RDMA device: VERBATIM_TEST_DEVICE"]
fn by_hand_with_threads_and_workers() {
    let nic = nic();
    for design in runnable() {
        let serve = ["--design", design, "--workers", "2"];
        let server = Server::start("sequencer", ANYWHERE, &with_nic(&serve, &nic));
        let more = with_nic(
            &["--threads", "2", "--window", "16", "--postlist", "8"],
            &nic,
        );
        let client = [
            "sequencer",
            "client",
            &server.address,
            "--count",
            "500",
            "--json",
        ];
        let lines = lines_of(&[&client[..], &more].concat());
        let verdict = &lines.last().expect("a verdict")["data"];
        assert_eq!(verdict["numbers"], 1000, "{design}: {verdict}");
        assert_eq!(verdict["duplicates"], 0, "{design}: {verdict}");
        assert_eq!(verdict["not_increasing"], 0, "{design}: {verdict}");
        let stats = server.stop();
        assert!(stats["clients_total"].as_u64() >= Some(2), "{stats}");
        assert!(stats["next"].as_u64() >= Some(1000), "{stats}");
    }
}

/// Every value is verified, and the histories of clients that were killed and stopped.
#[test]
#[ignore = "needs an RDMA device: VERBATIM_TEST_DEVICE"]
fn every_store_that_the_device_can_run_is_right() {
    let nic = nic();
    let kv = ["kv", "--json", "--no-peers", "--keys", "2000"];
    let kv = [&kv[..], &["--rounds", "1", "--duration", "200ms"]].concat();
    let lines = lines_of(&with_nic(&kv, &nic));
    let rows = lines.iter().filter(|line| line["type"] == "row");
    let rows: Vec<_> = rows.map(|row| &row["data"]).collect();
    assert!(!rows.is_empty(), "no design ran");
    for row in rows {
        assert_eq!(row["verified"], true, "{row}");
        assert_eq!(row["misses"], 0, "{row}");
    }
    let check = ["kv", "check", "--json", "--duration", "1s"];
    for line in lines_of(&with_nic(&check, &nic)) {
        assert_eq!(line["data"]["violations"], Value::Array(Vec::new()));
        assert!(line["data"]["operations"].as_u64() > Some(0), "{line}");
    }
}

#[test]
#[ignore = "needs an RDMA device: VERBATIM_TEST_DEVICE"]
fn a_killed_server_gives_no_number_twice() {
    let nic = nic();
    for design in runnable() {
        let folder = tempfile::tempdir().expect("a folder");
        let state = folder.path().join("state");
        let state = state.to_str().expect("a name in ASCII");
        let mut last = 0;
        for life in 0..2 {
            let serve = ["--design", design, "--state", state];
            let mut server = Server::start("sequencer", ANYWHERE, &with_nic(&serve, &nic));
            assert!(
                server.next() >= last,
                "{design}: {} after {last}",
                server.next()
            );
            let more = with_nic(&["--window", "16"], &nic);
            let (report, verdict) = ask_with(&server.address, "500", &more);
            assert_eq!(verdict["duplicates"], 0, "{design}, life {life}");
            assert_eq!(report["requests"], 500, "{design}, life {life}");
            // The only client received consecutive numbers from `next` on.
            last = server.next() + 500;
            server.child.kill().expect("killed");
        }
    }
}

#[test]
#[ignore = "needs an RDMA device: VERBATIM_TEST_DEVICE"]
fn a_client_outlives_its_server() {
    let nic = nic();
    for design in runnable() {
        let folder = tempfile::tempdir().expect("a folder");
        let state = folder.path().join("state");
        let state = state.to_str().expect("a name in ASCII");
        let serve = ["--design", design, "--state", state];
        let serve = with_nic(&serve, &nic);
        let mut server = Server::start("sequencer", ANYWHERE, &serve);
        let address = server.address.clone();
        let client = [
            "sequencer",
            "client",
            &address,
            "--duration",
            "7s",
            "--window",
            "16",
            "--reconnect",
            "60s",
            "--json",
        ];
        let client = verbatim(&with_nic(&client, &nic))
            .stdout(Stdio::piped())
            .spawn()
            .expect("the client starts");
        server.wait_for_client();
        std::thread::sleep(std::time::Duration::from_secs(1));
        server.child.kill().expect("killed");
        server.child.wait().expect("gone");
        let again = Server::start("sequencer", &address, &serve);
        let out = client.wait_with_output().expect("the client ends");
        assert!(out.status.success(), "{design}: {:?}", out.status);
        let text = String::from_utf8(out.stdout).expect("text");
        let lines: Vec<Value> = text
            .lines()
            .map(|line| serde_json::from_str(line).expect("JSON"))
            .collect();
        let failures = &lines[0]["data"]["failures"];
        assert!(
            failures["reconnects"].as_u64() >= Some(1),
            "{design}: {failures}"
        );
        assert_eq!(lines[1]["data"]["duplicates"], 0, "{design}");
        assert_eq!(lines[1]["data"]["not_increasing"], 0, "{design}");
        again.stop();
    }
}

#[test]
#[ignore = "needs an RDMA device: VERBATIM_TEST_DEVICE"]
fn numbers_come_from_every_gid_of_the_port_that_is_set() {
    let (shown, device) = (shown(), device());
    let port = &shown["ports"][0];
    let gids = port["gids"].as_array().expect("GIDs");
    assert!(!gids.is_empty());
    let designs = runnable();
    for (place, entry) in gids.iter().enumerate() {
        // The designs differ in their verbs, and the entries in addresses: each design meets one entry.
        let designs = if place == 0 {
            &designs[..]
        } else {
            &designs[..1]
        };
        let index = entry["index"].to_string();
        let nic = [
            "--provider",
            "system",
            "--device",
            &device,
            "--gid-index",
            &index,
        ];
        for design in designs {
            let serve = [&["--design", design][..], &nic].concat();
            let server = Server::start("sequencer", ANYWHERE, &serve);
            let (report, verdict) = ask_with(
                &server.address,
                "200",
                &[&nic[..], &["--window", "16"]].concat(),
            );
            assert_eq!(report["requests"], 200, "{design} from {entry}");
            assert_eq!(verdict["duplicates"], 0);
            server.stop();
        }
    }
    let taken: BTreeSet<u64> = gids.iter().filter_map(|g| g["index"].as_u64()).collect();
    let free = (0..256)
        .find(|i| !taken.contains(i))
        .expect("one that is empty");
    let free = free.to_string();
    let nic = [
        "--provider",
        "system",
        "--device",
        &device,
        "--gid-index",
        &free,
    ];
    let out = run(&[&["sequencer"], &nic[..]].concat());
    let message = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(2), "{message}");
    assert!(message.contains("is empty"), "{message}");
    assert!(out.stdout.is_empty());
}

/// Runs a command that must succeed, and returns its ledger.
fn ledger_of(before: &[&str], after: &[&str]) -> Ledger {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("l.json");
    let file = file.to_str().expect("text");
    let out = run(&[before, &["--ledger", file], after].concat());
    let messages = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{messages}");
    let text = std::fs::read_to_string(file).expect("it was written");
    let ledger = Ledger::parse(&text).expect("a ledger");
    assert_eq!(ledger.provider, "system");
    ledger
}

#[test]
#[ignore = "needs an RDMA device: VERBATIM_TEST_DEVICE"]
fn unmodified_programs_are_counted_and_traced_on_the_device() {
    let index = variable("VERBATIM_TEST_GID_INDEX").unwrap_or_else(|| "0".to_owned());
    let program = format!("ibv_rc_pingpong -d {} -g {index} -n 200", device());
    let script =
        format!("{program} & sleep 0.5; until {program} 127.0.0.1; do sleep 0.2; done; wait");
    let folder = tempfile::tempdir().expect("a folder");
    let trace = folder.path().join("t.txt");
    let trace = trace.to_str().expect("text");
    let ledger = ledger_of(
        &["run", "--provider", "system", "--trace", trace],
        &["--", "sh", "-c", &script],
    );
    let worked: Vec<_> = ledger
        .processes
        .iter()
        .filter(|process| process.posted_operations() > 0)
        .collect();
    assert_eq!(worked.len(), 2, "{ledger:?}");
    for process in worked {
        assert_eq!((process.posted_operations(), process.peer_count), (200, 1));
        let qp = process.posting_queue_pairs().next().expect("it sent");
        assert_eq!(qp.sent[0].operation.payload_bytes, 4096);
        assert_eq!(qp.received[0].count, 200);
    }
    let lines = std::fs::read_to_string(trace).expect("a trace");
    for what in ["ibv_open_device(", "post_send qp1 1/1", " SUCCESS RECV"] {
        assert!(lines.contains(what), "{what}: {lines}");
    }
}

#[test]
#[ignore = "needs an RDMA device: VERBATIM_TEST_DEVICE"]
fn our_own_programs_are_counted_on_the_device() {
    let nic = nic();
    let sequencer = ["sequencer", "--rounds", "1", "--duration", "100ms"];
    for design in runnable() {
        let design_args = ["--design", design];
        let ledger = ledger_of(
            &with_nic(&[&sequencer[..], &design_args].concat(), &nic),
            &[],
        );
        let worked = ledger
            .processes
            .iter()
            .filter(|p| p.posted_operations() > 0);
        assert!(worked.count() >= 1, "{design}: {ledger:?}");
        for process in &ledger.processes {
            assert_eq!(process.check(), Ok(()), "{design}");
        }
    }
}
