//! The sequencer's commands: a server process and a client process, as a user runs them.

use std::io::{BufRead, BufReader};
use std::process::{ChildStdout, Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::child::KillOnDrop;
use crate::core_pinning::spawn_on_core;
use crate::setup::{BenchSetup, RowFigure};

/// Design that is measured.
const MEASURED_DESIGN: &str = "spec-s0";

/// Other designs.
const OTHER_DESIGNS: [&str; 4] = ["atomics", "rpc", "rpc-batch", "rpc-batch-mq"];

/// Maximum outstanding requests of the client.
const WINDOW: &str = "256";

/// Duration of a client, in milliseconds.
const DURATION_MS: u64 = 500;

/// Measures the design with one worker and one client process.
pub(super) fn measure_spec_s0(bench: &BenchSetup) -> Result<RowFigure> {
    measure_design(bench, MEASURED_DESIGN)
}

/// Measures the design that answers requests by SENDs in batches.
pub(super) fn measure_rpc_batch(bench: &BenchSetup) -> Result<RowFigure> {
    measure_design(bench, "rpc-batch")
}

/// Measures every other design in the same way. Returns the fastest result.
pub(crate) fn measure_fastest_other_design(bench: &BenchSetup) -> Result<RowFigure> {
    let mut best: Option<RowFigure> = None;
    for design in OTHER_DESIGNS {
        let measured = measure_design(bench, design)?;
        if best.is_none_or(|best| measured.value > best.value) {
            best = Some(measured);
        }
    }
    best.context("there is no other design")
}

fn measure_design(bench: &BenchSetup, design: &str) -> Result<RowFigure> {
    let part = |name: &str| {
        let mut command = Command::new(&bench.worker_command.path);
        command.args([
            "sequencer",
            name,
            "--json",
            "--provider",
            &bench.nic.provider,
        ]);
        if let Some(device) = &bench.nic.device {
            command.args(["--device", device]);
        }
        command.args(["--port-num", &bench.nic.port_num.to_string()]);
        if let Some(index) = bench.nic.gid_index {
            command.args(["--gid-index", &index.to_string()]);
        }
        command.stdout(Stdio::piped());
        command
    };
    let mut serve = part("serve");
    serve
        .args(["--design", design, "--listen", "127.0.0.1:0", "--until-eof"])
        .stdin(Stdio::piped());
    let mut server = KillOnDrop(spawn_on_core(bench.cores.responder, &mut serve)?);
    let mut said = parse_json_lines(server.0.stdout.take());
    let listening = said
        .next()
        .context("the server ended early; its message is above")??;
    let address = listening["data"]["address"]
        .as_str()
        .context("the server did not say where it listens")?;

    let duration_ms = (DURATION_MS / bench.settings.shrink_divisor.max(1)).max(50);
    let mut client = part("client");
    client
        .arg(address)
        .args([
            "--window",
            WINDOW,
            "--duration",
            &format!("{duration_ms}ms"),
        ])
        .stdin(Stdio::null());
    let mut client = KillOnDrop(spawn_on_core(bench.cores.requester, &mut client)?);
    let (mut report, mut verdict) = (Value::Null, Value::Null);
    for line in parse_json_lines(client.0.stdout.take()) {
        let mut line = line?;
        match line["type"].as_str() {
            Some("report") => report = line["data"].take(),
            Some("verdict") => verdict = line["data"].take(),
            _ => {}
        }
    }
    if verdict["ok"] != true {
        bail!("the checker did not approve of {design}: {verdict}");
    }
    let rate = report["rate"]
        .as_f64()
        .context("the client reported no rate")?;
    let lost_ops = report["failures"]["lost"].as_u64().unwrap_or(0);
    Ok(RowFigure {
        value: rate / 1e6,
        verified_ops: verdict["numbers"].as_u64().unwrap_or(0),
        lost_messages: lost_ops,
    })
}

/// Parses the JSON lines that a child prints.
fn parse_json_lines(out: Option<ChildStdout>) -> impl Iterator<Item = Result<Value>> {
    out.into_iter()
        .flat_map(|out| BufReader::new(out).lines())
        .map(|line| {
            let line = line.context("cannot hear a part of the sequencer")?;
            serde_json::from_str(&line).with_context(|| format!("a sequencer said {line:?}"))
        })
}
