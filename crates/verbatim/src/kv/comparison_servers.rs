//! The peers with which stores are compared: Redis, memcached, and this project's front end for the
//! Redis protocol.
//!
//! All peers serve GETs of the same keys and values over Unix sockets. `redis-benchmark` is the
//! client of Redis and of the front end, and only counts answers. No client of memcached is
//! packaged by every distribution, so this module implements one. This client sends batches of 64
//! meta gets that suppress the answers for missing keys, and checks each value's length and the
//! number of answers.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bench::core_pinning::{run_pinned, spawn_on_core};
use bench::peers::KillOnDrop;
use tempfile::TempDir;

/// A server that the stores are compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ComparisonServer {
    Redis,
    Memcached,
    /// The front end of this project: `verbatim kv serve --resp`.
    OwnRespFrontEnd,
}

impl ComparisonServer {
    pub(super) const FOREIGN_SERVERS: [ComparisonServer; 2] =
        [ComparisonServer::Redis, ComparisonServer::Memcached];

    pub(super) fn name(self) -> &'static str {
        match self {
            ComparisonServer::Redis => "redis",
            ComparisonServer::Memcached => "memcached",
            ComparisonServer::OwnRespFrontEnd => "front",
        }
    }

    pub(super) fn summary(self) -> &'static str {
        match self {
            ComparisonServer::Redis => "GETs over a Unix socket, by redis-benchmark",
            ComparisonServer::Memcached => "meta gets over a Unix socket, by a client of ours",
            ComparisonServer::OwnRespFrontEnd => {
                "the store's own Redis-protocol front, by redis-benchmark"
            }
        }
    }

    fn programs(self) -> &'static [&'static str] {
        match self {
            ComparisonServer::Redis => &["redis-server", "redis-benchmark"],
            ComparisonServer::Memcached => &["memcached"],
            ComparisonServer::OwnRespFrontEnd => &["redis-benchmark"],
        }
    }

    /// Returns a program of the peer that is not installed, or `None` if all are.
    pub(super) fn missing_program(self) -> Option<&'static str> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let there = |name: &str| std::env::split_paths(&path).any(|dir| dir.join(name).is_file());
        self.programs().iter().copied().find(|name| !there(name))
    }
}

/// The settings of a peer's measurement.
#[derive(Clone, Copy, Debug)]
pub(super) struct MeasurementSettings {
    pub(super) server_core: usize,
    pub(super) client_core: usize,
    pub(super) key_count: u64,
    pub(super) value_bytes: usize,
    /// Number of outstanding requests.
    pub(super) window: usize,
    pub(super) duration: Duration,
}

/// The result of a peer's measurement.
#[derive(Clone, Copy, Debug)]
pub(super) struct ComparisonServerResult {
    pub(super) rate_per_s: f64,
    pub(super) latency_ns_p50: f64,
    pub(super) operations: u64,
}

/// The maximum number of keys with which a peer is filled. The number of keys hardly changes a
/// peer's speed.
const MAX_FILLED_KEYS: u64 = 100_000;

/// Starts a peer, fills it and measures GETs.
pub(super) fn fill_and_measure_gets(
    peer: ComparisonServer,
    setup: &MeasurementSettings,
) -> Result<ComparisonServerResult> {
    let server = RunningComparisonServer::start(peer, setup.server_core)?;
    match peer {
        ComparisonServer::Redis | ComparisonServer::OwnRespFrontEnd => {
            measure_redis(&server, setup)
        }
        ComparisonServer::Memcached => {
            run_pinned(setup.client_core, || measure_memcached(&server, setup))
        }
    }
}

/// A running peer.
pub(super) struct RunningComparisonServer {
    // Dropped in this order: the server ends before its folder is removed.
    _child: KillOnDrop,
    socket_folder: TempDir,
}

impl RunningComparisonServer {
    /// Starts a peer on a core, and waits until it answers.
    pub(super) fn start(peer: ComparisonServer, core: usize) -> Result<RunningComparisonServer> {
        let folder = tempfile::tempdir().context("cannot make a folder for a peer")?;
        let socket = folder.path().join("socket");
        let program = match peer {
            ComparisonServer::OwnRespFrontEnd => {
                std::env::current_exe().context("cannot find this program's own file")?
            }
            other => other.programs()[0].into(),
        };
        let mut command = Command::new(program);
        match peer {
            ComparisonServer::OwnRespFrontEnd => command
                .args(["kv", "serve", "--listen", "127.0.0.1:0", "--resp"])
                .arg(&socket),
            ComparisonServer::Redis => command
                .args([
                    "--port",
                    "0",
                    "--save",
                    "",
                    "--appendonly",
                    "no",
                    "--unixsocket",
                ])
                .arg(&socket)
                .arg("--dir")
                .arg(folder.path()),
            ComparisonServer::Memcached => command
                .args(["-t", "1", "-m", "512", "-u", "root", "-s"])
                .arg(&socket),
        };
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let mut child = KillOnDrop(spawn_on_core(core, &mut command)?);
        let deadline = Instant::now() + Duration::from_secs(10);
        while UnixStream::connect(&socket).is_err() {
            if let Some(status) = child.0.try_wait()? {
                bail!("{} ended early ({status})", peer.name());
            }
            if Instant::now() > deadline {
                bail!("{} does not answer on its socket", peer.name());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(RunningComparisonServer {
            _child: child,
            socket_folder: folder,
        })
    }

    /// Returns the path of the peer's Unix socket.
    pub(super) fn socket_path(&self) -> PathBuf {
        self.socket_folder.path().join("socket")
    }
}

/// Fills the server by `redis-benchmark`, then measures GETs. With a window of one, the client
/// opens one connection.
fn measure_redis(
    server: &RunningComparisonServer,
    setup: &MeasurementSettings,
) -> Result<ComparisonServerResult> {
    let benchmark = RedisBenchmark {
        socket_path: &server.socket_path(),
        core: setup.client_core,
        key_count: setup.key_count.min(MAX_FILLED_KEYS),
        value_bytes: setup.value_bytes,
        pipeline_depth: setup.window,
        connections: if setup.window == 1 {
            1
        } else {
            REDIS_DEFAULT_CONNECTIONS
        },
    };
    benchmark.run("set", 2 * benchmark.key_count)?;
    benchmark.run_for("get", setup.duration)
}

/// The number of connections that `redis-benchmark` opens by default.
pub(super) const REDIS_DEFAULT_CONNECTIONS: usize = 50;

/// The settings of a run of `redis-benchmark`.
#[derive(Clone, Copy, Debug)]
pub(super) struct RedisBenchmark<'s> {
    pub(super) socket_path: &'s Path,
    pub(super) core: usize,
    pub(super) key_count: u64,
    pub(super) value_bytes: usize,
    /// Number of commands that a connection has outstanding.
    pub(super) pipeline_depth: usize,
    pub(super) connections: usize,
}

impl RedisBenchmark<'_> {
    /// Runs a test for about `duration`. A short run first measures the number of commands in that
    /// time.
    pub(super) fn run_for(&self, test: &str, duration: Duration) -> Result<ComparisonServerResult> {
        let first = self.run(test, 20_000)?;
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        // The number of commands in a second or so.
        let operations = (first.rate_per_s * duration.as_secs_f64()).max(1000.0) as u64;
        self.run(test, operations)
    }

    /// Runs a test with `operations` commands.
    pub(super) fn run(&self, test: &str, operations: u64) -> Result<ComparisonServerResult> {
        let mut command = Command::new("redis-benchmark");
        command
            .arg("-s")
            .arg(self.socket_path)
            .args(["-t", test, "--csv", "-d", &self.value_bytes.to_string()])
            .args(["-r", &self.key_count.to_string()])
            .args(["-n", &operations.to_string()])
            .args(["-P", &self.pipeline_depth.to_string()])
            .args(["-c", &self.connections.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let output = spawn_on_core(self.core, &mut command)?.wait_with_output()?;
        if !output.status.success() {
            let why = String::from_utf8_lossy(&output.stderr);
            bail!("redis-benchmark failed ({}): {}", output.status, why.trim());
        }
        let text = String::from_utf8_lossy(&output.stdout);
        let column = |name| bench::peers::redis::csv_number(&text, name, &test.to_uppercase());
        let rate_per_s = column("rps")?;
        let latency_ms = column("p50_latency_ms")?;
        Ok(ComparisonServerResult {
            rate_per_s,
            // redis-benchmark rounds to a thousandth of a millisecond. With one command
            // outstanding, the rate is more exact.
            latency_ns_p50: if self.pipeline_depth * self.connections == 1 {
                1e9 / rate_per_s
            } else {
                latency_ms * 1e6
            },
            operations,
        })
    }
}

fn measure_memcached(
    server: &RunningComparisonServer,
    setup: &MeasurementSettings,
) -> Result<ComparisonServerResult> {
    let keys = setup.key_count.min(MAX_FILLED_KEYS);
    let stream = UnixStream::connect(server.socket_path()).context("cannot reach memcached")?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    let mut out = stream.try_clone()?;
    let mut answers = BufReader::with_capacity(1 << 16, stream);
    let mut line = String::new();
    let mut request = Vec::new();
    let value = vec![b'v'; setup.value_bytes];
    // A key has 16 bytes.
    let key = |n: u64| format!("key:{n:012}");
    for from in (0..keys).step_by(64) {
        request.clear();
        for n in from..keys.min(from + 64) {
            write!(request, "ms {} {} q\r\n", key(n), value.len())?;
            request.extend_from_slice(&value);
            request.extend_from_slice(b"\r\n");
        }
        request.extend_from_slice(b"mn\r\n");
        out.write_all(&request)?;
        line.clear();
        answers.read_line(&mut line)?;
        if line != "MN\r\n" {
            bail!("memcached said {line:?} to a set");
        }
    }
    let mut random = kv::load::Random::new(1);
    let mut body = vec![0; setup.value_bytes + 2];
    let mut latencies = Vec::new();
    let (begun, mut operations) = (Instant::now(), 0u64);
    let mut before = begun;
    while before.duration_since(begun) < setup.duration {
        request.clear();
        for _ in 0..setup.window {
            write!(request, "mg {} v\r\n", key(random.next_below(keys)))?;
        }
        out.write_all(&request)?;
        for _ in 0..setup.window {
            line.clear();
            answers.read_line(&mut line)?;
            let length = line
                .trim_end()
                .strip_prefix("VA ")
                .and_then(|n| n.parse().ok());
            if length != Some(setup.value_bytes) {
                bail!("memcached said {line:?} to a get");
            }
            answers.read_exact(&mut body)?;
            if body[..setup.value_bytes] != value {
                bail!("memcached gave another value than was set");
            }
            operations += 1;
        }
        let now = Instant::now();
        latencies.push(now.duration_since(before).as_secs_f64() * 1e9);
        before = now;
    }
    #[allow(clippy::cast_precision_loss)] // far below 2^52
    let rate_per_s = operations as f64 / begun.elapsed().as_secs_f64();
    Ok(ComparisonServerResult {
        rate_per_s,
        latency_ns_p50: bench::stats::median(&latencies).unwrap_or(0.0),
        operations,
    })
}
