//! Runs a C program that calls the plugin as NCCL does (`tests/driver`); its scenarios contain the
//! checks.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// Returns the plugin that cargo built for this test.
fn plugin() -> PathBuf {
    let test = std::env::current_exe().expect("this test has a path");
    let folder = test.parent().and_then(Path::parent).expect("target folder");
    // Cargo puts libraries of the package under test into the folder above its tests, or into
    // `deps`.
    let names = ["libnccl_net_verbatim.so", "deps/libnccl_net_verbatim.so"];
    let found = names.map(|name| folder.join(name));
    let newest = found
        .into_iter()
        .filter_map(|path| Some((path.metadata().ok()?.modified().ok()?, path)))
        .max();
    newest.expect("cargo builds the library for its tests").1
}

/// Compiles the driver once, and returns its path.
fn driver() -> &'static Path {
    static DRIVER: OnceLock<(tempfile::TempDir, PathBuf)> = OnceLock::new();
    let (_, path) = DRIVER.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a folder");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/driver");
        let path = folder.path().join("driver");
        let status = Command::new("cc")
            .args([
                "-std=gnu11",
                "-O1",
                "-Wall",
                "-Wextra",
                "-Werror",
                "-pthread",
                "-o",
            ])
            .args([path.clone(), source.join("api.c"), source.join("main.c")])
            .arg("-ldl")
            .status();
        assert!(status.expect("there is a C compiler").success());
        (folder, path)
    });
    path
}

fn drive(arguments: &str, environment: &[(&str, &str)]) -> Output {
    let fabric = tempfile::tempdir().expect("a folder");
    let out = Command::new(driver())
        .arg(plugin())
        .args(arguments.split_whitespace())
        .env("VERBATIM_FABRIC_DIR", fabric.path().join("fabric"))
        .envs(environment.iter().copied())
        .output();
    out.expect("the driver starts")
}

/// Runs a scenario, which must pass: VERSION SCENARIO RANKS BYTES processes|threads. The driver
/// ends itself after 300 s.
fn passes(arguments: &str, environment: &[(&str, &str)]) -> String {
    let out = drive(arguments, environment);
    let told = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.success(), "{arguments} {environment:?}: {told}");
    assert_eq!(out.stdout, b"ok\n", "{arguments}: {told}");
    told
}

#[test]
fn rings_carry_all_sizes() {
    passes("12 ring 3 67108864 processes", &[]);
    for version in ["8", "12"] {
        passes(&format!("{version} ring 2 1048576 processes"), &[]);
        passes(&format!("{version} ring 5 70000 processes"), &[]);
        passes(&format!("{version} ring 8 70000 threads"), &[]);
    }
}

#[test]
fn one_rank_may_talk_to_itself() {
    passes("12 ring 1 70000 threads", &[]);
}

#[test]
fn trees_sum_up_and_down() {
    for ranks in 2..=8 {
        let version = if ranks % 2 == 0 { 8 } else { 12 };
        passes(&format!("{version} tree {ranks} 100000 processes"), &[]);
    }
    passes("12 tree 8 100000 threads", &[]);
}

#[test]
fn grouped_receives_are_matched_by_tags() {
    passes("8 groups 2 5000 processes", &[]);
    passes("12 groups 2 5000 threads", &[]);
}

#[test]
fn requests_are_refused_when_too_many_are_under_way_and_not_before() {
    passes("8 outstanding 2 3000 threads", &[]);
    passes("12 outstanding 2 3000 processes", &[]);
}

#[test]
fn payload_is_divided_among_queue_pairs() {
    let lanes = [("VERBATIM_COLLECTIVE_LANES", "4")];
    for scenario in ["ring 4 300000", "groups 2 5000", "outstanding 2 3000"] {
        passes(&format!("12 {scenario} processes"), &lanes);
    }
}

#[test]
fn the_plugin_is_unloaded_and_loaded_again() {
    for version in ["8", "12"] {
        passes(&format!("{version} reload 2 5000 threads"), &[]);
        passes(&format!("{version} reload 3 5000 processes"), &[]);
    }
}

#[test]
fn a_peer_that_is_killed_fails_what_is_under_way_and_the_log_says_why() {
    for version in ["8", "12"] {
        let told = passes(&format!("{version} killed 2 50000 processes"), &[]);
        assert!(told.contains("NET/Verbatim : test: "), "{told}");
        assert!(told.contains("the peer closed the connection"), "{told}");
    }
}

#[test]
fn hosts_are_reached_by_packets() {
    let packets = [
        ("VERBATIM_PATH", "packets"),
        ("VERBATIM_ADDRESS", "127.24.3.1"),
    ];
    passes("12 ring 3 70000 processes", &packets);
    passes("12 killed 2 50000 processes", &packets);
}

#[test]
fn a_gibibyte_goes_in_one_message_where_there_is_memory() {
    let meminfo = std::fs::read_to_string("/proc/meminfo").expect("Linux has it");
    let line = meminfo
        .lines()
        .find(|line| line.starts_with("MemAvailable:"));
    let kib = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
    if kib.is_some_and(|kib| kib > 8 << 20) {
        passes("12 ring 1 1073741824 threads", &[]);
        passes("8 ring 2 1073741824 processes", &[]);
    } else {
        eprintln!("skipped: less than 8 GiB of memory are free");
    }
}

#[test]
fn a_wrong_setting_is_refused_with_the_reason() {
    let cases = [
        (
            "VERBATIM_PROVIDER",
            "mlx5",
            "no provider is called \"mlx5\"",
        ),
        ("VERBATIM_COLLECTIVE_LANES", "99", "1 to 16 queue pairs"),
        (
            "VERBATIM_COLLECTIVE_ADDRESS",
            "here",
            "VERBATIM_COLLECTIVE_ADDRESS=here",
        ),
    ];
    for (name, value, reason) in cases {
        let out = drive("12 ring 1 10 threads", &[(name, value)]);
        let told = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(!out.status.success() && told.contains(reason), "{told}");
    }
}
