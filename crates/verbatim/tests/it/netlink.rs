//! `rdma(8)` of iproute2 under `verbatim run`: its netlink requests to the kernel are answered by a
//! preloaded library.

use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

use crate::common;

/// Returns a `verbatim run` command with these arguments in its own fabric, after the words
/// `before`.
fn command(before: &[&str], fabric: &str, args: &[&str]) -> Command {
    common::build_libraries();
    let program = env!("CARGO_BIN_EXE_verbatim");
    let start = [program, "run", "--fabric", fabric];
    let words: Vec<&str> = before.iter().chain(&start).chain(args).copied().collect();
    let mut command = Command::new(words[0]);
    command
        .args(&words[1..])
        .env_remove("VERBATIM_LINK_LAYER")
        .env_remove("VERBATIM_DEVICE")
        .env_remove("VERBATIM_FABRIC")
        .stdin(Stdio::null());
    command
}

fn run(fabric: &str, args: &[&str]) -> Output {
    command(&[], fabric, args)
        .output()
        .expect("the program starts")
}

#[track_caller]
fn stdout(out: &Output) -> String {
    assert!(out.status.success(), "{out:?}");
    String::from_utf8_lossy(&out.stdout).into_owned()
}

/// Parses the JSON output of a command of `rdma`, which must succeed.
#[track_caller]
fn parsed(out: &Output) -> Value {
    let text = stdout(out);
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

/// Returns the device as `rdma dev show -j` shows it.
fn device(fabric: &str, nic: &[&str]) -> Value {
    let args = [nic, &["rdma", "dev", "show", "-j"]].concat();
    let devices = parsed(&run(fabric, &args));
    assert_eq!(devices.as_array().map(Vec::len), Some(1), "{devices}");
    devices[0].clone()
}

#[test]
fn links_and_devices_are_those_of_sysfs() {
    let script = "cd /sys/class/infiniband/softnic0; cat node_guid; ls device/net; cat device/net/*/ifindex; \
                  rdma link show -j";
    let text = stdout(&run("tests_rdma_1", &["sh", "-c", script]));
    let lines: Vec<&str> = text.lines().collect();
    let [guid, name, index, links] = lines[..] else {
        panic!("{text}");
    };
    let links: Value = serde_json::from_str(links).expect("JSON");
    let index: u32 = index.parse().expect("a number");
    let expected = json!([{
        "ifindex": 0, "ifname": "softnic0", "port": 1, "state": "ACTIVE", "physical_state": "LINK_UP",
        "netdev": name, "netdev_index": index,
    }]);
    assert_eq!(links, expected);
    let device = device("tests_rdma_1", &[]);
    let expected = json!({
        "ifindex": 0, "ifname": "softnic0", "node_type": "ca", "fw": "1.0", "node_guid": guid, "sys_image_guid": guid,
    });
    for (field, value) in expected.as_object().expect("a map") {
        assert_eq!(&device[field], value, "{field} of {device}");
    }
    // Some releases of iproute2 have no JSON output for this command.
    let system = stdout(&run("tests_rdma_1", &["rdma", "system", "show"]));
    assert!(system.starts_with("netns shared"), "{system}");
}

#[test]
fn an_infiniband_port_has_a_lid_and_no_interface() {
    let nic = ["--nic", "cx3", "--link-layer", "ib"];
    let args = [&nic[..], &["rdma", "link", "show", "mlx4_0/1", "-j", "-d"]].concat();
    let links = parsed(&run("tests_rdma_2", &args));
    let link = &links[0];
    for (field, value) in [
        ("ifname", json!("mlx4_0")),
        ("lid", json!(1)),
        ("subnet_prefix", json!("fe80:0000:0000:0000")),
        ("state", json!("ACTIVE")),
        ("netdev", Value::Null),
    ] {
        assert_eq!(link[field], value, "{field} of {links}");
    }
    assert_eq!(device("tests_rdma_2", &nic)["fw"], "2.42.5000");
}

#[test]
fn every_way_to_the_program_has_answers() {
    let rdma = stdout(
        &Command::new("sh")
            .args(["-c", "command -v rdma"])
            .output()
            .expect("sh"),
    );
    let rdma = rdma.trim();
    let by_python = "import subprocess; print(subprocess.check_output(['rdma', 'dev'], text=True))";
    for args in [
        &["rdma", "dev"][..],
        &[rdma, "dev"],
        &["--preload", "sh", "-c", &format!("{rdma} dev")],
        &["python3", "-c", by_python],
    ] {
        let text = stdout(&run("tests_rdma_3", args));
        assert!(text.contains("softnic0: node_type ca"), "{args:?}: {text}");
    }
    // Without the right to create namespaces, one library provides both files and answers.
    let args = ["rdma", "dev"];
    let out = command(&["unshare", "--user"], "tests_rdma_3", &args).output();
    let text = stdout(&out.expect("it starts"));
    assert!(text.contains("softnic0: node_type ca"), "{text}");
    // Without the view, `rdma` shows the machine's own devices.
    let out = run("tests_rdma_3", &["--no-view", "rdma", "dev"]);
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(!text.contains("softnic0"), "{text}");
}

#[test]
fn what_cannot_be_done_is_refused() {
    let out = run(
        "tests_rdma_4",
        &["rdma", "dev", "set", "softnic0", "name", "other"],
    );
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(
        !out.status.success() && said.contains("not supported"),
        "{said}"
    );
    let out = run("tests_rdma_4", &["rdma", "dev", "show", "mlx5_0"]);
    assert!(!out.status.success(), "{out:?}");
}

/// A program that runs until its standard input ends; killed when dropped.
struct Waiting(std::process::Child);

impl Drop for Waiting {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn resources_are_counted_over_the_processes_of_the_fabric() {
    let fabric = format!("tests_rdma_{}", std::process::id());
    let summary = || {
        let found = parsed(&run(&fabric, &["rdma", "resource", "show", "-j"]));
        ["pd", "cq", "qp", "mr"].map(|kind| found[0][kind].as_u64().expect("a number"))
    };
    assert_eq!(summary(), [0; 4]);
    // A server that waits for its client has created its queue pair.
    let server = command(
        &[],
        &fabric,
        &["ibv_rc_pingpong", "-p", "18671", "-g", "0", "-s", "5000"],
    )
    .stdout(Stdio::null())
    .spawn();
    let mut server = Waiting(server.expect("it starts"));
    while summary() != [1; 4] {
        assert!(
            server.0.try_wait().expect("ours").is_none(),
            "nobody has ended it"
        );
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let regions = parsed(&run(&fabric, &["rdma", "resource", "show", "mr", "-j"]));
    let region = &regions.as_array().expect("a list")[0];
    let text = region.to_string();
    for part in [
        "5000",
        &server.0.id().to_string(),
        "ibv_rc_pingpong",
        "softnic0",
    ] {
        assert!(text.contains(part), "{part}: {regions}");
    }
    let list = |kind: &[&str]| {
        let args = [&["rdma", "resource", "show"], kind, &["-j"]].concat();
        let found = parsed(&run(&fabric, &args));
        let [entry] = &found.as_array().expect("a list")[..] else {
            panic!("{kind:?}: {found}");
        };
        entry.clone()
    };
    let pair = list(&["qp"]);
    let expected = [
        ("ifname", json!("softnic0")),
        ("port", json!(1)),
        ("type", json!("RC")),
        ("state", json!("INIT")),
        ("rqpn", json!(0)),
        ("sq-psn", json!(0)),
        ("pid", json!(server.0.id())),
        ("comm", json!("ibv_rc_pingpong")),
    ];
    for (field, value) in expected {
        assert_eq!(pair[field], value, "{field}: {pair}");
    }
    let number = pair["lqpn"].to_string();
    assert_eq!(list(&["qp", "link", "softnic0/1", "lqpn", &number]), pair);
    let queue = list(&["cq"]);
    // Both queues of the queue pair complete here. `-r` is 500 receives, and one entry more is for the send.
    assert_eq!((&queue["cqe"], &queue["users"]), (&json!(501), &json!(2)));
    let domain = list(&["pd"]);
    // The queue pair and the region.
    assert_eq!(domain["users"], 2, "{domain}");
    assert_eq!(domain["pdn"], pair["pdn"]);
    drop(server);
    assert_eq!(summary(), [0; 4]);
}

#[test]
fn resources_of_two_devices_are_kept_apart() {
    let fabric = format!("tests_rdma_2_{}", std::process::id());
    let args = [
        "--devices",
        "2",
        "ibv_rc_pingpong",
        "-d",
        "softnic1",
        "-p",
        "18672",
        "-g",
        "0",
    ];
    let server = command(&[], &fabric, &args).stdout(Stdio::null()).spawn();
    let mut server = Waiting(server.expect("it starts"));
    loop {
        let args = ["--devices", "2", "rdma", "resource", "show", "-j"];
        let found = parsed(&run(&fabric, &args));
        let of = |device: usize| ["pd", "cq", "qp", "mr"].map(|kind| found[device][kind].as_u64());
        assert_eq!(of(0), [Some(0); 4], "{found}");
        if of(1) == [Some(1); 4] {
            break;
        }
        assert!(
            server.0.try_wait().expect("ours").is_none(),
            "nobody has ended it"
        );
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

#[test]
fn counters_are_those_of_sysfs() {
    let script = "rdma statistic show link softnic0/1 -j; ls /sys/class/infiniband/softnic0/ports/1/hw_counters";
    let text = stdout(&run("tests_rdma_5", &["sh", "-c", script]));
    let (counters, names) = text.split_once('\n').expect("two lines");
    let counters: Value = serde_json::from_str(counters).expect("JSON");
    let names: Vec<&str> = names.lines().filter(|name| *name != "lifespan").collect();
    assert!(names.len() > 20, "{text}");
    for name in names {
        assert_eq!(counters[0][name], 0, "{name}: {counters}");
    }
}
