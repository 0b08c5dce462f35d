//! The PCI function behind a device under `verbatim run`, as NCCL, UCX and lspci look for it.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::common;

/// Runs a shell script under `verbatim run`, after the words `before`, and returns its lines.
#[track_caller]
fn lines(before: &[&str], options: &[&str], script: &str) -> Vec<String> {
    common::build_libraries();
    let start = [env!("CARGO_BIN_EXE_verbatim"), "run"];
    let shell = ["sh", "-c", script];
    let words: Vec<&str> = [before, &start, options, &shell].concat();
    let out = Command::new(words[0])
        .args(&words[1..])
        .env_remove("VERBATIM_LINK_LAYER")
        .env_remove("VERBATIM_DEVICE")
        .stdin(Stdio::null())
        .output()
        .expect("the program starts");
    assert!(out.status.success(), "{out:?}");
    let text = String::from_utf8(out.stdout).expect("text");
    text.lines().map(str::to_owned).collect()
}

/// What NCCL reads: the address at the end of the device's path, and the files of the function and of its bus.
const AS_NCCL: &str = "device=$(realpath /sys/class/infiniband/softnic0/device) && address=${device##*/} && echo $address && \
     at=$(realpath /sys/class/pci_bus/${address%:*}/../../$address) && \
     cat $at/class $at/vendor $at/numa_node $at/max_link_width && ls $at/net | wc -l && ls $at/infiniband";

#[test]
fn a_device_has_a_function_by_mounts_and_by_the_preloaded_library() {
    let expected = ["fffe:00:00.0", "0x020000", "0xffff", "-1", "16"];
    // Without the right to create namespaces, the preloaded library shows the same.
    for before in [&[][..], &["unshare", "--user"]] {
        let found = lines(before, &[], AS_NCCL);
        assert_eq!(found[..5], expected, "{before:?}");
        assert_ne!(found[5], "0", "no interface: {found:?}");
        assert_eq!(found[6..], ["softnic0"]);
    }
}

#[test]
fn an_adapter_has_the_numbers_of_its_vendor() {
    let script = "cd /sys/class/infiniband/mlx4_0/device && cat vendor device class && od -An -tx1 -N4 config";
    let found = lines(&[], &["--nic", "cx3", "--link-layer", "ib"], script);
    assert_eq!(found, ["0x15b3", "0x1003", "0x020700", " b3 15 03 10"]);
}

#[test]
fn functions_of_the_machine_stay_and_those_of_two_devices_are_added() {
    let devices = Path::new("/sys/bus/pci/devices");
    if !devices.is_dir() {
        // A machine without PCI.
        return;
    }
    let own = std::fs::read_dir(devices).expect("readable").count();
    let script = "ls /sys/bus/pci/devices | wc -l; for d in /sys/bus/pci/devices/*; do cat $d/vendor >/dev/null || exit 1; done; \
                  for d in softnic0 softnic1; do readlink /sys/class/infiniband/$d/device; done; ls /sys/devices/system/cpu/online";
    let found = lines(&[], &["--devices", "2"], script);
    let expected = [
        &(own + 2).to_string(),
        "../../../devices/pcifffe:00/fffe:00:00.0",
        "../../../devices/pcifffe:01/fffe:01:00.0",
        "/sys/devices/system/cpu/online",
    ];
    assert_eq!(found, expected);
}

#[test]
fn a_view_within_a_view_has_its_own_functions() {
    let inner = "ls -d /sys/devices/pcifffe:*; cat /sys/bus/pci/devices/fffe:01:00.0/class";
    let program = env!("CARGO_BIN_EXE_verbatim");
    let script = format!("{program} run --devices 2 sh -c '{inner}'");
    let found = lines(&[], &[], &script);
    assert_eq!(
        found,
        [
            "/sys/devices/pcifffe:00",
            "/sys/devices/pcifffe:01",
            "0x020000"
        ]
    );
}
