//! Wrong numbers, paths and names on the command line. Each must end in exit status 2 and a message
//! that says what to do, never in a crash or a hang.

use crate::common::run;

/// Asserts that `args` is refused with a message that contains `advice`.
#[track_caller]
fn refused(args: &[&str], advice: &str) {
    let out = run(args);
    let message = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(2), "{args:?}: {message}");
    assert!(message.starts_with("error: "), "{args:?}: {message}");
    assert!(message.contains(advice), "{args:?}: {message}");
    assert!(!message.contains("panicked"), "{args:?}: {message}");
    assert!(
        out.stdout.is_empty(),
        "{args:?}: results of a refused command"
    );
}

#[test]
fn unknown_commands_and_flags() {
    refused(&["sequence"], "sequencer");
    refused(&["bench", "peer"], "peers");
    refused(&["devices", "--jason"], "--json");
}

#[test]
fn bench_peers() {
    let peers = |args: &[&'static str]| [&["bench", "peers"], args].concat();
    refused(&peers(&["--rounds", "0"]), "from 1 to 1000");
    refused(&peers(&["--rounds", "many"]), "from 1 to 1000");
    refused(&peers(&["--rounds", "-3"]), "from 1 to 1000");
    refused(&peers(&["--only", "ud"]), "choose among ud-send");
    let idle = ["--breakdown", "--only", "idle-cpu"];
    refused(&peers(&idle), "such as rc-send");
    refused(&["bench", "wire", "--breakdown"], "bench peers --breakdown");
    refused(&peers(&["--cores", "0"]), "such as 0,1");
    refused(&peers(&["--cores", "0,x"]), "such as 0,1");
    refused(&peers(&["--cores", "0,0"]), "two different cores");
    refused(&peers(&["--cores", "0,99999"]), "choose two of");
    refused(&peers(&["--record", "/nonexistent/run.jsonl"]), "mkdir -p");
    refused(&peers(&["--record", "/"]), "name a file in it");
    refused(&peers(&["--provider", "mlx5"]), "softnic");
    refused(&peers(&["--device", "a/b"]), "verbatim devices");
    refused(&peers(&["--device", "nosuch0"]), "softnic0");
    refused(&peers(&["--link-layer", "ethernet"]), "roce");
    refused(
        &peers(&["--provider", "system", "--link-layer", "ib"]),
        "leave out one",
    );
    refused(
        &["bench", "wire", "--provider", "system"],
        "leave out --provider system",
    );
}

#[test]
fn flags_that_contradict_each_other() {
    let sequencer = |args: &[&'static str]| [&["sequencer", "--nic", "cib"], args].concat();
    let over = |knob: &'static str| ["--over", knob, "--values", "1,2"];
    for (knob, flag) in [
        ("clients", "--clients"),
        ("window", "--window"),
        ("cores", "--cores"),
        ("queues", "--queues"),
    ] {
        let args = sequencer(&[&over(knob)[..], &[flag, "4"]].concat());
        refused(&args, &format!("{flag} is what is swept"));
    }
    let workers = ["sequencer", "--workers", "2"];
    refused(
        &[&workers[..], &over("cores")].concat(),
        "--workers is what is swept",
    );
    let value_size = ["kv", "--value-size", "64"];
    refused(
        &[&value_size[..], &over("value-size")].concat(),
        "--value-size is what is swept",
    );
    let keys = ["btree", "--keys", "1000"];
    refused(
        &[&keys[..], &over("keys")].concat(),
        "--keys is what is swept",
    );
    let signal_every = ["model", "--signal-every", "4"];
    refused(
        &[&signal_every[..], &over("signal-every")].concat(),
        "--signal-every is what is swept",
    );
    refused(
        &["bench", "rc-write", "--inline", "--no-inline"],
        "cannot be used with '--no-inline'",
    );
    for flags in [["--trace", "--ledger"], ["--ledger", "--pcap"]] {
        refused(
            &["run", flags[0], "same", flags[1], "./same", "--", "true"],
            "give each a file of its own",
        );
    }
    refused(
        &["bench", "sweep", "--svg", "same", "--csv", "same"],
        "give each a file of its own",
    );
}

#[test]
fn bench_sweeps_and_probes() {
    let sweep = |args: &[&'static str]| [&["bench", "sweep"], args].concat();
    refused(&sweep(&["--values", "8,many"]), "such as 64 or 4K");
    refused(&sweep(&["--values", "3"]), "take 8 or more");
    refused(
        &sweep(&["--over", "batch", "--batch", "3"]),
        "what is swept",
    );
    refused(
        &sweep(&["--over", "window", "--values", "9000"]),
        "from 1 to 8192",
    );
    refused(&sweep(&["rc-recv"]), "rc-send");
    refused(&sweep(&["--svg", "/nonexistent/s.svg"]), "/nonexistent");
    refused(
        &["bench", "write-order", "--payload", "8"],
        "multiple of 8 from 16",
    );
    refused(
        &["bench", "write-visible", "--payload", "20"],
        "multiple of 8 from 16",
    );
    refused(&["bench", "write-visible", "--writes", "0"], "from 1 to");
}

#[test]
fn bench_one_verb() {
    let send = |args: &[&'static str]| [&["bench", "rc-send"], args].concat();
    refused(&send(&["--payload", "1G"]), "such as 64 or 4K");
    refused(&send(&["--payload", "-8"]), "such as 64 or 4K");
    refused(&send(&["--payload", "7"]), "header-only");
    refused(&send(&["--batch", "0"]), "from 1 to 8192");
    refused(&send(&["--window", "8193"]), "from 1 to 8192");
    refused(&send(&["--signal-every", "x"]), "from 1 to 8192");
    refused(&send(&["--window", "40", "--batch", "16"]), "no multiple");
    refused(
        &send(&["--window", "16", "--batch", "16", "--signal-every", "16"]),
        "never has room",
    );
    refused(&send(&["--payload", "256M", "--window", "8"]), "lower one");
    refused(&send(&["--payload", "64M", "--inline"]), "inline payload");
    refused(&send(&["--duration", "1h"]), "such as 500ms");
    refused(&send(&["--cores", "0,0"]), "two different cores");
    refused(&send(&["--device", "nosuch0"]), "softnic0");
    refused(&["bench", "rc-write", "--payload", "0"], "8 or more");
    refused(&["bench", "rc-read", "--inline"], "inline");
    refused(&["bench", "atomics", "--payload", "16"], "8 bytes");
    refused(&["bench", "ud-send", "--payload", "5000"], "MTU");
    let latency = |args: &[&'static str]| [&["bench", "latency"], args].concat();
    refused(&latency(&["--verb", "recv"]), "ud-send");
    refused(&latency(&["--verb", "ud-send", "--payload", "8K"]), "MTU");
}

#[test]
fn bench_providers() {
    let providers = |args: &[&'static str]| [&["bench", "providers"], args].concat();
    // No device has this name.
    refused(&providers(&["--device", "nosuch0"]), "cargo xtask rxe --");
    refused(&providers(&["--device", "a/b"]), "verbatim devices");
    refused(&providers(&["--payload", "1T"]), "such as 64 or 4K");
    refused(&providers(&["--json", "--markdown", "-"]), "leave out one");
    refused(&providers(&["--markdown", "/nonexistent/x.md"]), "mkdir -p");
    refused(&providers(&["--rounds", "0"]), "from 1 to 1000");
}

#[test]
fn devices() {
    refused(&["devices", "--provider", "mlx5"], "softnic");
    refused(
        &["devices", "--provider", "system", "--link-layer", "ib"],
        "leave out one",
    );
}

#[test]
fn sequencer() {
    let ladder = |args: &[&'static str]| [&["sequencer"], args].concat();
    refused(&ladder(&["--design", "spec"]), "rpc-batch-mq");
    refused(&ladder(&["--duration", "1h"]), "such as 500ms");
    refused(&ladder(&["--duration", "0"]), "such as 500ms");
    refused(&ladder(&["--rounds", "0"]), "from 1 to 1000");
    refused(&ladder(&["--clients", "65"]), "at most 64");
    refused(&ladder(&["--threads", "0"]), "from 1 to 64");
    refused(&ladder(&["--workers", "1.5"]), "from 1 to 64");
    refused(&ladder(&["--window", "4097"]), "from 1 to 4096");
    refused(&ladder(&["--postlist", "65"]), "from 1 to 64");
    refused(&ladder(&["--batch", "0"]), "from 1 to 64");
    refused(&ladder(&["--queues", "x"]), "from 1 to 64");
    refused(&ladder(&["--window", "8", "--postlist", "9"]), "lower one");
    refused(&ladder(&["--clients", "64", "--threads", "5"]), "lower one");
    refused(&ladder(&["--start", "-1"]), "0x");
    refused(&ladder(&["--start", "18446744073709551615"]), "start lower");
    refused(&ladder(&["--device", "nosuch0"]), "softnic0");
    refused(&ladder(&["--port-num", "0"]), "from 1 to 255");
    refused(&ladder(&["--port-num", "2"]), "its ports are 1 to 1");
    refused(&ladder(&["--gid-index", "256"]), "from 0 to 255");
    refused(&ladder(&["--gid-index", "255"]), "verbatim devices");
}

#[test]
fn sequencer_serve() {
    let serve = |args: &[&'static str]| [&["sequencer", "serve"], args].concat();
    refused(&serve(&["--listen", "7471"]), "HOST:PORT");
    refused(&serve(&["--listen", "127.0.0.1:65536"]), "HOST:PORT");
    refused(&serve(&["--listen", "192.0.2.1:7471"]), "192.0.2.1");
    refused(&serve(&["--state", "/nonexistent/state"]), "mkdir -p");
    refused(&serve(&["--state", "/"]), "name a file in it");
    refused(&serve(&["--max-clients", "257"]), "from 1 to 256");
    refused(&serve(&["--device", "nosuch0"]), "softnic0");
    refused(&serve(&["--gid-index", "255"]), "verbatim devices");
}

#[test]
fn sequencer_client() {
    let client = |args: &[&'static str]| [&["sequencer", "client"], args].concat();
    refused(&client(&[]), "HOST:PORT");
    refused(&client(&["localhost"]), "HOST:PORT");
    refused(
        &client(&["127.0.0.1:1", "--gid-index", "255"]),
        "verbatim devices",
    );
    refused(&client(&["127.0.0.1:1", "--count", "0"]), "from 1 to");
    refused(
        &client(&["127.0.0.1:1", "--count", "5", "--duration", "1s"]),
        "cannot be used with",
    );
    refused(
        &client(&["127.0.0.1:1", "--reconnect", "50ms"]),
        "is the server running?",
    );
}

#[test]
fn a_foreign_state_file_is_left_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("state");
    std::fs::write(&path, "some other file\n").expect("written");
    let name = path.to_str().expect("a name in ASCII");
    refused(
        &[
            "sequencer",
            "serve",
            "--listen",
            "127.0.0.1:0",
            "--state",
            name,
        ],
        name,
    );
    let still = std::fs::read_to_string(&path).expect("still there");
    assert_eq!(still, "some other file\n");
}

#[test]
fn something_that_is_no_sequencer() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("its address").to_string();
    std::thread::spawn(move || {
        use std::io::Write;
        for mut stream in listener.incoming().flatten() {
            let _ = stream.write_all(b"220 mail.example.org ESMTP\r\n");
        }
    });
    refused(
        &["sequencer", "client", &address, "--reconnect", "100ms"],
        "sequencer",
    );
}

#[test]
fn captures() {
    let run = |args: &[&'static str]| [&["run"], args, &["--", "true"]].concat();
    refused(&run(&["--pcap", "/nonexistent/x.pcap"]), "mkdir -p");
    refused(&run(&["--pcap", "/"]), "name a file in it");
    refused(&run(&["--pcap", "/proc/version"]), "not a capture");
    let ib = ["--pcap", "/nonexistent/x.pcap", "--link-layer", "ib"];
    refused(&run(&ib), "--link-layer roce");
    let system = ["--pcap", "/nonexistent/x.pcap", "--provider", "system"];
    refused(&run(&system), "leave it out");
    refused(&[&["sequencer"], &system[..]].concat(), "leave it out");
    let simulated = ["sequencer", "--pcap", "x.pcap", "--nic", "cib"];
    refused(&simulated, "cannot be used with");
}

#[test]
fn packets_of_infiniband() {
    let flags = ["--link-layer", "ib", "--path", "packets"];
    refused(
        &[&["run"], &flags[..], &["--", "true"]].concat(),
        "--link-layer roce",
    );
    refused(
        &[&["bench", "rc-send"], &flags[..]].concat(),
        "--link-layer roce",
    );
    let profile = ["run", "--nic", "cib", "--path", "packets", "--", "true"];
    refused(&profile, "--link-layer roce");
}
