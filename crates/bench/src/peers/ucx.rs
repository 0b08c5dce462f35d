//! `ucx_perftest`: over POSIX shared memory, or over verbs on the software NIC.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use super::perftest::VerbsLibrary;
use super::tcp_port::{find_free_port, wait_for_listener};
use crate::child::KillOnDrop;
use crate::core_pinning::{CorePair, spawn_on_core};

/// A test of `ucx_perftest`, always with 8-byte messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UcxTest {
    /// `am_bw`: rate of UCT active messages.
    AmBw,
    /// `am_lat`: one-way latency of UCT active messages.
    AmLat,
    /// `put_bw -D short`: rate of UCT puts with inline data.
    PutBw,
    /// `ucp_put_bw`: rate of UCP puts.
    UcpPutBw,
    /// `ucp_fadd`: rate of UCP fetch-and-adds, 16 outstanding.
    UcpFadd,
}

impl UcxTest {
    /// Returns the name for `-t`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            UcxTest::AmBw => "am_bw",
            UcxTest::AmLat => "am_lat",
            UcxTest::PutBw => "put_bw",
            UcxTest::UcpPutBw => "ucp_put_bw",
            UcxTest::UcpFadd => "ucp_fadd",
        }
    }

    /// Returns the number of messages for a run of about a third of a second on cores that share a
    /// cache.
    #[must_use]
    pub fn default_iterations(self) -> u64 {
        match self {
            UcxTest::AmBw => 6_000_000,
            UcxTest::AmLat => 2_000_000,
            UcxTest::PutBw | UcxTest::UcpPutBw => 25_000_000,
            UcxTest::UcpFadd => 10_000_000,
        }
    }

    /// Returns true if the test uses UCT, below UCP, with one transport on one device.
    fn is_uct(self) -> bool {
        matches!(self, UcxTest::AmBw | UcxTest::AmLat | UcxTest::PutBw)
    }

    fn args(self, iterations: u64, over: &UcxTransport) -> Vec<String> {
        let iterations = iterations.to_string();
        let mut args = vec!["-t", self.name(), "-s", "8", "-n", &iterations, "-v", "-f"];
        // UCT tests name transport and device by options of the client. UCP tests take the
        // transport from UCX_TLS on both sides.
        if self.is_uct() {
            args.extend(match over {
                UcxTransport::Posix => ["-x", "posix", "-d", "memory"],
                UcxTransport::RcVerbs(_) => ["-x", "rc_verbs", "-d", "softnic0:1"],
            });
        }
        args.extend::<&[&str]>(match self {
            UcxTest::AmBw | UcxTest::AmLat | UcxTest::UcpPutBw => &[],
            UcxTest::PutBw => &["-D", "short"],
            UcxTest::UcpFadd => &["-O", "16"],
        });
        args.into_iter().map(str::to_owned).collect()
    }
}

/// Result of a run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct UcxResult {
    /// Messages that were timed.
    pub iterations: u64,
    /// Messages per second over the whole run.
    #[serde(rename = "rate")]
    pub messages_per_s: f64,
}

impl UcxResult {
    /// Returns the time per message in nanoseconds; for `am_lat`, half of a round trip.
    #[must_use]
    pub fn ns_per_message(self) -> f64 {
        1e9 / self.messages_per_s
    }
}

/// Transport that UCX uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UcxTransport {
    /// POSIX shared memory.
    Posix,
    /// Verbs on the software NIC, by this `verbatim run`. The UCX transports are `rc_verbs` and
    /// `ud_verbs`; UCP cannot connect without the latter.
    RcVerbs(PathBuf),
}

/// Runs `test` once between two pinned processes.
///
/// # Errors
/// When `ucx_perftest` is missing, fails, or prints something other than its result.
pub fn run(
    test: UcxTest,
    iterations: u64,
    cores: CorePair,
    over: &UcxTransport,
) -> Result<UcxResult> {
    let port = find_free_port()?;
    let mut server = KillOnDrop(spawn_on_core(
        cores.responder,
        perftest_command(over, port)
            .stdout(Stdio::null())
            .stderr(Stdio::null()),
    )?);
    wait_for_listener(port, &mut server, "ucx_perftest")?;
    let client = spawn_on_core(
        cores.requester,
        perftest_command(over, port)
            .arg("127.0.0.1")
            .args(test.args(iterations, over))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped()),
    )?;
    let out = client.wait_with_output()?;
    let text = String::from_utf8_lossy(&out.stdout);
    if !out.status.success() {
        bail!(
            "ucx_perftest -t {} failed ({}): {}",
            test.name(),
            out.status,
            String::from_utf8_lossy(&out.stderr).trim()
        );
    }
    let measured = parse(&text).with_context(|| format!("ucx_perftest -t {}", test.name()))?;
    if measured.iterations != iterations {
        bail!(
            "ucx_perftest -t {} ran {} of {iterations} iterations",
            test.name(),
            measured.iterations
        );
    }
    Ok(measured)
}

fn perftest_command(over: &UcxTransport, port: u16) -> Command {
    let (runs, transport) = match over {
        UcxTransport::Posix => (VerbsLibrary::Installed, "posix"),
        UcxTransport::RcVerbs(verbatim) => {
            (VerbsLibrary::Softnic(verbatim.clone()), "rc_verbs,ud_verbs")
        }
    };
    let mut command = runs.command("ucx_perftest");
    command
        .args(["-p", &port.to_string()])
        .env("UCX_TLS", transport)
        .env("UCX_WARN_UNUSED_ENV_VARS", "n")
        .stdin(Stdio::null());
    command
}

/// Parses the output of `ucx_perftest -v -f`: a line of column names, then lines of numbers.
fn parse(text: &str) -> Result<UcxResult> {
    let mut lines = text.lines().map(str::trim);
    let names: Vec<&str> = lines
        .by_ref()
        .find(|line| line.starts_with("iterations,"))
        .context("printed no line of column names")?
        .split(',')
        .collect();
    let values: Vec<&str> = lines
        .rfind(|line| line.starts_with(|c: char| c.is_ascii_digit()))
        .context("printed no numbers")?
        .split(',')
        .collect();
    if names.len() != values.len() {
        bail!("printed {} names for {} numbers", names.len(), values.len());
    }
    let value = |name: &str| {
        let at = names.iter().position(|n| *n == name);
        at.map(|at| values[at])
            .with_context(|| format!("printed no column {name}"))
    };
    let iterations = value("iterations")?.parse()?;
    let messages_per_s: f64 = value("overall_mr")?.parse()?;
    if !(messages_per_s.is_finite() && messages_per_s > 0.0) {
        bail!("printed a rate of {messages_per_s}");
    }
    Ok(UcxResult {
        iterations,
        messages_per_s,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const AM_LAT: &str = "\
iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr
500000,0.086,0.086,0.086,88.41,88.41,11588684,11588684
";

    #[test]
    fn what_version_1_13_prints() {
        let measured = parse(AM_LAT).unwrap();
        assert_eq!(measured.iterations, 500_000);
        assert!((measured.ns_per_message() - 86.29).abs() < 0.01);
    }

    #[test]
    fn the_last_stage_counts() {
        let text = format!("{AM_LAT}1000000,0.1,0.1,0.1,1.0,1.0,5,10000000\n");
        let measured = parse(&text).unwrap();
        assert_eq!(
            (measured.iterations, measured.messages_per_s),
            (1_000_000, 1e7)
        );
    }

    #[test]
    fn other_output_is_refused() {
        for text in [
            "",
            "500000,0.086,0.086\n",
            "iterations,overall_mr\n",
            "iterations,overall_mr\n5,6,7\n",
            "iterations,overall_mr\n5,nan\n",
            "iterations,overall_mr\n5,0\n",
            "iterations,other\n5,6\n",
        ] {
            assert!(parse(text).is_err(), "{text:?}");
        }
    }

    /// Runs every test of the peer briefly.
    #[test]
    fn every_test_runs_tiny() {
        let cores = CorePair::first_two().unwrap();
        let tests = [
            UcxTest::AmBw,
            UcxTest::AmLat,
            UcxTest::PutBw,
            UcxTest::UcpPutBw,
            UcxTest::UcpFadd,
        ];
        for test in tests {
            let measured = run(test, 20_000, cores, &UcxTransport::Posix).unwrap();
            assert!(measured.messages_per_s > 0.0, "{test:?}");
        }
    }
}
