//! `iperf3`: the bandwidth of TCP between two addresses of this host.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use super::tcp_port::{find_free_port, wait_for_listener};
use crate::child::KillOnDrop;
use crate::core_pinning::{CorePair, spawn_on_core};

/// Name of the program, and of Debian's package.
const PROGRAM: &str = "iperf3";

/// Addresses of the client and of the server.
const CLIENT_AND_SERVER_ADDRESSES: [&str; 2] = ["127.0.0.1", "127.0.0.2"];

/// The parts of the `--json` report that are used.
#[derive(Debug, Deserialize)]
struct Iperf3Report {
    end: Iperf3End,
}

#[derive(Debug, Deserialize)]
struct Iperf3End {
    sum_received: Iperf3Received,
}

#[derive(Debug, Deserialize)]
struct Iperf3Received {
    bytes: u64,
    bits_per_second: f64,
}

/// Sends `bytes` over one TCP connection from a client to a server, 64 KiB per system call. Returns
/// the bytes that the server received, and its bytes per second.
///
/// # Errors
/// The program is not installed, fails, or prints something other than its result.
pub fn measure_bytes_and_bytes_per_s(bytes: u64, cores: CorePair) -> Result<(u64, f64)> {
    let port = find_free_port()?;
    let command = || {
        let mut command = Command::new(PROGRAM);
        command
            .args(["--port", &port.to_string()])
            .stdin(Stdio::null());
        command
    };
    let server = spawn_on_core(
        cores.responder,
        command()
            .args([
                "--server",
                "--one-off",
                "--bind",
                CLIENT_AND_SERVER_ADDRESSES[1],
            ])
            .stdout(Stdio::null()),
    );
    let mut server = KillOnDrop(server.context("there is no iperf3 (Debian: iperf3)")?);
    wait_for_listener(port, &mut server, PROGRAM)?;
    let client = spawn_on_core(
        cores.requester,
        command()
            .args([
                "--client",
                CLIENT_AND_SERVER_ADDRESSES[1],
                "--bind",
                CLIENT_AND_SERVER_ADDRESSES[0],
                "--json",
            ])
            .args(["--length", "64K", "--bytes", &bytes.to_string()])
            .stdout(Stdio::piped()),
    )?;
    let out = client.wait_with_output()?;
    let text = String::from_utf8_lossy(&out.stdout);
    if !out.status.success() {
        bail!("{PROGRAM} failed ({}): {}", out.status, text.trim());
    }
    parse_bytes_and_bytes_per_s(&text)
}

fn parse_bytes_and_bytes_per_s(text: &str) -> Result<(u64, f64)> {
    let report: Iperf3Report =
        serde_json::from_str(text).with_context(|| format!("{PROGRAM} printed something else"))?;
    let Iperf3Received {
        bytes,
        bits_per_second,
    } = report.end.sum_received;
    if !(bits_per_second.is_finite() && bits_per_second > 0.0) {
        bail!("{PROGRAM} printed a bandwidth of {bits_per_second}");
    }
    Ok((bytes, bits_per_second / 8.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_version_3_12_prints() {
        let text = r#"{"start": {}, "end": {"streams": [], "sum_sent": {"bytes": 9},
            "sum_received": {"start": 0, "end": 1.0, "seconds": 1.0, "bytes": 1349386240,
            "bits_per_second": 8e9, "sender": true}}}"#;
        assert_eq!(
            parse_bytes_and_bytes_per_s(text).unwrap(),
            (1_349_386_240, 1e9)
        );
        let none = text.replace("8e9", "0");
        for other in ["", "{}", r#"{"error": "unable to connect"}"#, &none] {
            assert!(parse_bytes_and_bytes_per_s(other).is_err(), "{other}");
        }
    }
}
