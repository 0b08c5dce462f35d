//! Redis `INCR`, pipelined by 64, over a Unix socket.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

use crate::child::KillOnDrop;
use crate::core_pinning::{CorePair, spawn_on_core};

/// Requests of a run of about half a second.
pub const REQUESTS_PER_RUN: u64 = 2_000_000;

/// The key that `redis-benchmark -t incr` increments.
const INCREMENTED_KEY: &str = "counter:__rand_int__";

/// A Redis server, without persistence and without a TCP port.
#[derive(Debug)]
pub struct Server {
    // Fields are dropped in this order: the server must end before its folder is removed.
    _child: KillOnDrop,
    folder: TempDir,
    cores: CorePair,
}

impl Server {
    /// Starts a server on the responder's core and waits until it answers.
    ///
    /// # Errors
    /// When `redis-server` is missing or does not come up within ten seconds.
    pub fn start(cores: CorePair) -> Result<Server> {
        let folder = tempfile::tempdir().context("cannot make a folder for Redis")?;
        let child = spawn_on_core(
            cores.responder,
            Command::new("redis-server")
                .args(["--port", "0", "--save", "", "--appendonly", "no"])
                .arg("--unixsocket")
                .arg(folder.path().join("socket"))
                .arg("--dir")
                .arg(folder.path())
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null()),
        )?;
        let mut child = KillOnDrop(child);
        let deadline = Instant::now() + Duration::from_secs(10);
        while UnixStream::connect(folder.path().join("socket")).is_err() {
            if let Some(status) = child.0.try_wait()? {
                bail!("redis-server ended early ({status})");
            }
            if Instant::now() > deadline {
                bail!("redis-server does not answer on its socket");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(Server {
            _child: child,
            folder,
            cores,
        })
    }

    fn socket_path(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    /// Runs `redis-benchmark` on the requester's core and returns the requests per second. The
    /// counter is read before and after, to check that the server executed the requests.
    ///
    /// # Errors
    /// When `redis-benchmark` is missing or fails, or the counter does not account for the run.
    pub fn run_and_requests_per_s(&self, requests: u64) -> Result<f64> {
        let before = self.counter()?;
        let client = spawn_on_core(
            self.cores.requester,
            Command::new("redis-benchmark")
                .arg("-s")
                .arg(self.socket_path())
                .args(["-P", "64", "-t", "incr", "--csv", "-n"])
                .arg(requests.to_string())
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped()),
        )?;
        let out = client.wait_with_output()?;
        if !out.status.success() {
            bail!(
                "redis-benchmark failed ({}): {}",
                out.status,
                String::from_utf8_lossy(&out.stderr).trim()
            );
        }
        let counted = self.counter()? - before;
        if counted < requests {
            bail!("redis counted {counted} increments of {requests}");
        }
        parse_incr_requests_per_s(&String::from_utf8_lossy(&out.stdout)).context("redis-benchmark")
    }

    /// Returns the counter's value, 0 before the first increment.
    fn counter(&self) -> Result<u64> {
        let mut stream =
            UnixStream::connect(self.socket_path()).context("cannot reach redis-server")?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        write!(stream, "GET {INCREMENTED_KEY}\r\n")?;
        let mut lines = BufReader::new(stream).lines();
        let head = lines.next().context("redis-server closed the socket")??;
        match head.as_str() {
            "$-1" => Ok(0),
            head if head.starts_with('$') => {
                let value = lines.next().context("redis-server closed the socket")??;
                value.parse().context("the counter is not a number")
            }
            other => bail!("redis-server answered {other:?}"),
        }
    }
}

/// Parses the output of `redis-benchmark --csv` and returns the requests per second of INCR.
fn parse_incr_requests_per_s(text: &str) -> Result<f64> {
    csv_number(text, "rps", "INCR")
}

/// Parses the output of `redis-benchmark --csv` and returns a column of a test's line, a number
/// above 0.
///
/// # Errors
/// When the output has another form.
pub fn csv_number(text: &str, column: &str, test: &str) -> Result<f64> {
    let mut lines = text.lines().map(split_csv_fields);
    let names = lines
        .by_ref()
        .find(|fields| fields.first().is_some_and(|name| name == "test"))
        .context("printed no line of column names")?;
    let at = names.iter().position(|name| name == column);
    let at = at.with_context(|| format!("printed no column {column}"))?;
    let values = lines
        .find(|fields| fields.first().is_some_and(|name| name == test))
        .with_context(|| format!("printed no line of {test}"))?;
    let value: f64 = values.get(at).context("printed too few columns")?.parse()?;
    if !(value.is_finite() && value > 0.0) {
        bail!("printed {value} as {column}");
    }
    Ok(value)
}

fn split_csv_fields(line: &str) -> Vec<String> {
    let unquoted = |field: &str| field.trim().trim_matches('"').to_owned();
    line.split(',').map(unquoted).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const V7: &str = concat!(
        r#""test","rps","avg_latency_ms","min_latency_ms","p50_latency_ms","p95_latency_ms","#,
        r#""p99_latency_ms","max_latency_ms""#,
        "\n",
        r#""INCR","3696857.50","0.756","0.160","0.743","0.871","1.023","10.623""#,
        "\n"
    );

    #[test]
    fn what_version_7_prints() {
        assert_eq!(parse_incr_requests_per_s(V7).unwrap(), 3_696_857.5);
    }

    #[test]
    fn other_output_is_refused() {
        for text in [
            "",
            "\"test\",\"rps\"\n",
            "\"test\",\"other\"\n\"INCR\",\"5\"\n",
            "\"test\",\"rps\"\n\"INCR\"\n",
            "\"test\",\"rps\"\n\"INCR\",\"0\"\n",
            "\"test\",\"rps\"\n\"SET\",\"5\"\n",
        ] {
            assert!(parse_incr_requests_per_s(text).is_err(), "{text:?}");
        }
    }

    /// Runs the benchmark briefly.
    #[test]
    fn it_runs_tiny_and_counts() {
        let server = Server::start(CorePair::first_two().unwrap()).unwrap();
        assert_eq!(server.counter().unwrap(), 0);
        assert!(server.run_and_requests_per_s(10_000).unwrap() > 0.0);
        assert!(server.counter().unwrap() >= 10_000);
    }
}
