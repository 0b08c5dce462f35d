//! The B-tree on simulated clusters.

use serde_json::Value;

use crate::common::{lines_of, run};

fn simulated(args: &[&str]) -> Vec<Value> {
    let all = ["btree", "--nic", "bf2", "--duration", "50us", "--json"];
    let lines = lines_of(&[&all[..], args].concat());
    for line in &lines {
        assert_eq!(line["type"], "simulated", "{line}");
        assert_eq!(line["data"]["verified"], true, "{line}");
    }
    lines
}

#[test]
fn a_simulated_tree_is_on_the_host_and_on_the_dpu() {
    let lines = simulated(&["--access", "rpc", "--keys", "256_000_000"]);
    let of = |place: &str| -> Vec<f64> {
        let rows = lines.iter().filter(|line| line["data"]["place"] == place);
        rows.filter_map(|line| line["data"]["rate_mops"].as_f64())
            .collect()
    };
    let (host, dpu) = (of("host"), of("dpu"));
    assert_eq!((host.len(), dpu.len()), (2, 2), "with batches and without");
    for (host, dpu) in host.iter().zip(&dpu) {
        assert!(*host > 2.0 * dpu && *dpu > 0.5, "{host} {dpu}");
    }
    // Simulated cost of memory accesses takes no real memory.
    assert!(lines.iter().all(|line| line["data"]["levels"] == 5));
}

#[test]
fn the_same_seed_simulates_the_same() {
    let args = ["--place", "dpu", "--access", "read", "--node-size", "512"];
    let lines = simulated(&args);
    assert_eq!(lines, simulated(&args));
    let reads = |line: &Value| line["data"]["reads_per_lookup"].as_f64().expect("a number");
    // One READ per level; with a cache, only the READ of the leaf.
    assert!(reads(&lines[0]) >= 4.0, "{lines:?}");
    assert!(reads(&lines[1]) < 0.7 * reads(&lines[0]), "{lines:?}");
}

#[test]
fn a_place_that_is_not_there_is_refused() {
    for (args, why) in [
        (&["--nic", "cib", "--place", "dpu"][..], "cib has no DPU"),
        (&["--place", "dpu"], "add --nic"),
        (&["--nic", "bf2", "--place", "nic"], "host and dpu"),
        (&["--nic", "bf2", "--cores", "9"], "lower --cores"),
        (&["--nic", "bf2", "--rounds", "1"], "cannot be used with"),
    ] {
        let out = run(&[&["btree"][..], args].concat());
        let message = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(2), "{message}");
        assert!(message.contains(why), "{message}");
    }
}
