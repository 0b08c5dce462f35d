//! `--svg`, `--csv` and sweeps.

use serde_json::Value;

use crate::common::{alone, lines_of, run, run_the_guide, verbatim};

/// Returns the fields of a CSV file without quotes, the header first.
fn fields(file: &std::path::Path) -> Vec<Vec<String>> {
    let text = std::fs::read_to_string(file).expect("the file was written");
    text.lines()
        .map(|line| line.split(',').map(str::to_owned).collect())
        .collect()
}

#[test]
fn several_nics_and_designs_are_series_of_one_picture() {
    let folder = tempfile::tempdir().expect("a folder");
    let (svg, csv) = (folder.path().join("s.svg"), folder.path().join("s.csv"));
    let mut command = verbatim(&["sequencer", "--nic", "cib", "--nic", "bf2", "--json"]);
    command.args([
        "--design",
        "rpc",
        "--design",
        "rpc-batch",
        "--duration",
        "100us",
    ]);
    command.args(["--over", "cores", "--values", "1,4"]);
    command.arg("--svg").arg(&svg).arg("--csv").arg(&csv);
    let out = command.output().expect("the program starts");
    assert!(out.status.success(), "{out:?}");
    let picture = std::fs::read_to_string(&svg).expect("the picture was written");
    for series in ["rpc, cib", "rpc-batch, cib", "rpc, bf2", "rpc-batch, bf2"] {
        assert!(picture.contains(&format!(">{series}</text>")), "{series}");
    }
    assert!(picture.contains("<title>A networked sequencer over cores of the server</title>"));
    assert!(picture.contains("prefers-color-scheme:dark"));
    let text = std::fs::read_to_string(&csv).expect("the data was written");
    assert!(text.starts_with("series,kind,x,y,min,max\n"), "{text}");
    let points = text.lines().filter(|line| line.contains(",point,"));
    assert_eq!(points.count(), 8, "{text}");
}

#[test]
fn cores_are_a_list_and_other_settings_are_turned() {
    let of = |args: &[&str]| -> Vec<Value> {
        let lines = lines_of(&[args, &["--json", "--duration", "100us"]].concat());
        lines.into_iter().map(|line| line["data"].clone()).collect()
    };
    let cores = of(&[
        "kv",
        "--nic",
        "cib",
        "--design",
        "reads",
        "--read-size",
        "1K",
        "--cores",
        "1,2",
    ]);
    let numbers: Vec<_> = cores.iter().map(|row| row["cores"].as_u64()).collect();
    assert_eq!(numbers, [Some(1), Some(2)]);
    let keys = of(&[
        "btree", "--nic", "bf2", "--place", "dpu", "--access", "rpc", "--cores", "2", "--over",
        "keys", "--values", "1K,1M",
    ]);
    let numbers: Vec<_> = keys.iter().map(|row| row["keys"].as_u64()).collect();
    assert_eq!(numbers, [1024, 1024, 1 << 20, 1 << 20].map(Some));
    let wrong = run(&["kv", "--nic", "cib", "--over", "threads", "--values", "2"]);
    assert_eq!(wrong.status.code(), Some(2));
    let told = String::from_utf8_lossy(&wrong.stderr).into_owned();
    assert!(told.contains("--over threads"), "{told}");
}

#[test]
fn real_runs_are_swept_and_whiskers_are_their_rounds() {
    let _alone = alone();
    let folder = tempfile::tempdir().expect("a folder");
    let csv = folder.path().join("s.csv");
    let file = csv.to_str().expect("text");
    let mut args = vec![
        "sequencer",
        "--design",
        "rpc",
        "--rounds",
        "2",
        "--duration",
        "20ms",
    ];
    args.extend([
        "--over", "window", "--values", "32,16", "--json", "--csv", file,
    ]);
    let lines = lines_of(&args);
    let of = |kind: &str| -> Vec<Option<u64>> {
        let lines = lines.iter().filter(|line| line["type"] == kind);
        lines.map(|line| line["data"]["setting"].as_u64()).collect()
    };
    assert_eq!(of("round"), [16, 32, 16, 32].map(Some));
    assert_eq!(of("design"), [16, 32].map(Some));
    let rows = fields(&csv);
    assert_eq!(rows.len(), 3);
    for row in &rows[1..] {
        let [median, min, max] = [3, 4, 5].map(|at| row[at].parse::<f64>().expect("a number"));
        assert!(min <= median && median <= max && min > 0.0, "{row:?}");
    }
}

#[test]
fn verbs_the_model_and_collectives_are_drawn() {
    let folder = tempfile::tempdir().expect("a folder");
    let csv = folder.path().join("x.csv");
    let file = csv.to_str().expect("text");
    for (args, points) in [
        (&["bench", "rc-write", "--nic", "cib"][..], 1),
        (&["bench", "latency", "--nic", "cib"], 3),
        (
            &[
                "model", "--verb", "write", "--over", "batch", "--values", "1,4",
            ],
            4,
        ),
        (
            &["collective", "--nic", "cib", "-b", "64K", "-e", "256K"],
            4,
        ),
    ] {
        let out = run(&[args, &["--csv", file]].concat());
        assert!(out.status.success(), "{args:?}: {out:?}");
        assert_eq!(fields(&csv).len(), points + 1, "{args:?}");
    }
    let sweep = ["bench", "sweep", "rc-read", "--nic", "cib", "--nic", "cx3"];
    let out = run(&[&sweep[..], &["--values", "8,64", "--csv", file]].concat());
    assert!(out.status.success(), "{out:?}");
    let nics: Vec<_> = fields(&csv).iter().map(|row| row[9].clone()).collect();
    assert_eq!(nics, ["nic", "cib", "cib", "cx3", "cx3"]);
}

#[test]
fn a_file_that_cannot_be_written_is_refused_before_the_measurement() {
    for args in [
        &["sequencer"][..],
        &["kv"],
        &["btree"],
        &["sequencer", "--nic", "cib"],
        &["kv", "--nic", "cib"],
        &["btree", "--nic", "bf2"],
        &["bench", "rc-write"],
        &["bench", "sweep", "--nic", "cib"],
        &["model", "--verb", "write"],
        &["collective"],
    ] {
        let out = run(&[args, &["--csv", "/proc/no-such-folder/x.csv"]].concat());
        let told = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(2), "{args:?}: {told}");
        assert!(
            told.contains("--csv") && told.contains("/proc/no-such-folder"),
            "{told}"
        );
        assert!(out.stdout.is_empty(), "{args:?}");
    }
}

#[test]
fn the_commands_of_the_guide_run() {
    let _alone = alone();
    let folder = tempfile::tempdir().expect("a folder");
    assert!(run_the_guide("pictures.md", folder.path()) >= 5);
    for file in [
        "designs.svg",
        "designs.csv",
        "nics.svg",
        "windows.svg",
        "model.csv",
    ] {
        assert!(folder.path().join(file).exists(), "{file}");
    }
}
