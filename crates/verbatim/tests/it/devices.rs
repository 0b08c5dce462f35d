//! `verbatim devices` shows the software NIC, as text and as JSON, with either link layer.

use std::process::Stdio;

use crate::common::{lines_of, run, verbatim};

fn devices(args: &[&str]) -> String {
    let out = run(&[&["devices"], args].concat());
    assert!(
        out.status.success(),
        "{args:?}: {}",
        String::from_utf8_lossy(&out.stderr)
    );
    String::from_utf8(out.stdout).expect("text")
}

fn softnic_json(args: &[&str]) -> serde_json::Value {
    let softnic = ["devices", "--provider", "softnic", "--json"];
    let lines = lines_of(&[&softnic, args].concat());
    assert_eq!(lines.last().expect("a line")["type"], "provider");
    assert_eq!(lines[0]["type"], "device");
    lines[0]["data"].clone()
}

#[test]
fn the_software_nic_is_always_there() {
    let text = devices(&[]);
    assert!(text.contains("softnic0 (softnic)"), "{text}");
    assert!(text.contains("port 1: ACTIVE, Ethernet"), "{text}");
    assert!(text.contains("GID 0:"), "{text}");
}

#[test]
fn json_has_limits_ports_and_gids() {
    let device = softnic_json(&[]);
    assert_eq!(device["provider"], "softnic");
    assert!(device["limits"]["max_qp"].as_u64() >= Some(10_000));
    let port = &device["ports"][0];
    assert_eq!(port["link_layer"], "Ethernet");
    assert!(port["lid"].is_null());
    assert!(!port["gids"].as_array().expect("a list").is_empty());
}

#[test]
fn json_says_what_the_device_can_do_and_which_gid_is_the_default() {
    let device = softnic_json(&[]);
    let capabilities = &device["capabilities"];
    assert_eq!(capabilities["lacks"], serde_json::json!([]));
    let has = capabilities["has"].as_array().expect("a list");
    for name in ["rc", "uc", "ud", "rdma-read", "atomics"] {
        assert!(has.iter().any(|h| h == name), "{name}: {has:?}");
    }
    assert!(capabilities["inline_bytes"]["ud"].as_u64() >= Some(64));
    let port = &device["ports"][0];
    let gids = port["gids"].as_array().expect("a list");
    let is_default = |gid: &&serde_json::Value| gid["index"] == port["default_gid_index"];
    assert!(gids.iter().any(|gid| is_default(&gid)), "{port}");
    assert!(gids.iter().all(|gid| gid["type"] == "RoCE v2"), "{gids:?}");
    let text = devices(&["--provider", "softnic"]);
    assert!(text.contains("can: RC (inline up to "), "{text}");
    assert_eq!(text.matches(", default").count(), 1, "{text}");
    assert!(!text.contains("cannot:"), "{text}");
}

#[test]
fn the_link_layer_can_be_chosen() {
    let port = &softnic_json(&["--link-layer", "ib"])["ports"][0];
    assert_eq!(port["link_layer"], "InfiniBand");
    assert!(port["lid"].as_u64() > Some(0));
    let port = &softnic_json(&["--link-layer", "roce"])["ports"][0];
    assert_eq!(port["link_layer"], "Ethernet");
}

#[test]
fn a_reader_that_leaves_early_is_no_error() {
    let mut child = verbatim(&["devices", "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    drop(child.stdout.take());
    let out = child.wait_with_output().expect("it ends");
    assert!(out.status.success(), "{:?}", out.status);
    assert!(!String::from_utf8_lossy(&out.stderr).contains("error"));
}
