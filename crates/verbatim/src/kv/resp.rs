//! `verbatim kv resp`: compares the Redis-protocol front end with Redis, over Unix sockets.
//!
//! Both servers run on one core and `redis-benchmark` on another. The client alternates between
//! them, so that a temporary disturbance of the machine affects both.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bench::core_pinning::allowed_cores;
use bench::stats::MedianAndSpread;
use serde::Serialize;

use super::comparison_servers::{
    ComparisonServer, ComparisonServerResult, REDIS_DEFAULT_CONNECTIONS, RedisBenchmark,
    RunningComparisonServer,
};
use crate::CommandOutcome;
use crate::args::{self, NicArgs, PortArgs};
use crate::children::ServerAndClientCores;
use crate::output::{self, format_three_digits, format_time_ns, print_line, print_typed_json};
use crate::steps::{CommandSteps, is_interrupted};

/// Arguments of `verbatim kv resp`.
#[derive(clap::Args)]
#[command(allow_negative_numbers = true, after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Commands that a connection has outstanding (may be given several times) [default: 64 and 1; with --rdma 1]
    #[arg(long, value_name = "N", value_parser = args::integer_parser_in_range("a pipeline", 1..=1024usize))]
    pub(super) pipeline: Vec<usize>,
    /// Connections; with --rdma it may be given several times [default: 50; with --rdma 1, 4, 16 and 64]
    #[arg(long, value_name = "N", value_parser = args::integer_parser_in_range("a count of connections", 1..=10_000usize))]
    pub(super) connections: Vec<usize>,
    /// How often everything runs, in turn
    #[arg(long, value_name = "N", default_value = "5", value_parser = args::integer_parser_in_range("a count of rounds", 1..=1000u32))]
    pub(super) rounds: u32,
    /// How long each measurement runs, about
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = args::parse_duration_from_10ms)]
    pub(super) duration: Duration,
    /// Keys
    #[arg(long, value_name = "N", default_value = "100000", value_parser = args::integer_parser_in_range("a count of keys", 1..=1_000_000u64))]
    pub(super) keys: u64,
    /// Bytes of a value
    #[arg(long, value_name = "BYTES", default_value = "32", value_parser = args::integer_parser_in_range("a length of values", 1..=65_535usize))]
    pub(super) value_size: usize,
    /// Print one JSON object per line: round, row
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) rdma: RdmaArgs,
}

/// Arguments of `verbatim kv resp` for RDMA.
#[derive(clap::Args)]
#[command(next_help_heading = "RDMA")]
pub(crate) struct RdmaArgs {
    /// Measure TCP and RDMA side by side, instead of the front and Redis
    #[arg(long)]
    rdma: bool,
    /// Threads of clients, which share the connections (may be given several times) [default: 1, 2 and 4]
    #[arg(long, value_name = "N", requires = "rdma", value_parser = args::integer_parser_in_range("a count of threads", 1..=64usize))]
    pub(super) threads: Vec<usize>,
    /// Bytes of a connection's receive buffer at either end, such as 64K
    #[arg(long, value_name = "BYTES", default_value = "256K", requires = "rdma", value_parser = args::byte_count_parser_up_to(16 << 20))]
    pub(super) rdma_buffer: usize,
    /// Draw the rates of GETs over the connections, by one thread, into this file
    #[arg(long, value_name = "FILE", requires = "rdma")]
    pub(super) svg: Option<PathBuf>,
    #[command(flatten)]
    pub(super) nic: NicArgs,
    #[command(flatten)]
    pub(super) port: PortArgs,
}

const EXAMPLES: &str = "\
Starts `verbatim kv serve --resp` and redis-server, and has redis-benchmark ask both for SETs and GETs in turn. It counts \
answers and looks at no value; when all is over, each key that is there must have a value of the length that was set.

Examples:
  verbatim kv resp
  verbatim kv resp --pipeline 16 --connections 4 --rounds 9 --json

With --rdma it needs no Redis: the same server is asked over TCP and over RDMA in turn, by connections of threads of this \
program. Every answer is compared with the value that was set.
  verbatim kv resp --rdma
  verbatim kv resp --rdma --connections 1 --threads 1 --value-size 1000 --svg rates.svg
  verbatim kv resp --rdma --connections 10000 --threads 1 --rdma-buffer 64K

Exit status 2 when redis-server or redis-benchmark are not installed.";

const BENCHMARK_COMMANDS: [&str; 2] = ["set", "get"];
const COMPARED_SERVERS: [ComparisonServer; 2] =
    [ComparisonServer::OwnRespFrontEnd, ComparisonServer::Redis];

/// The results of one row in one round.
#[derive(Debug, Serialize)]
struct Round {
    round: u32,
    test: &'static str,
    #[serde(rename = "pipeline")]
    pipeline_depth: usize,
    /// Commands per second of the front end. The next fields are its median latency, and the same numbers of
    /// Redis.
    #[serde(rename = "front_per_s")]
    front_end_commands_per_s: f64,
    #[serde(rename = "front_ns_p50")]
    front_end_ns_p50: f64,
    #[serde(rename = "redis_per_s")]
    redis_commands_per_s: f64,
    redis_ns_p50: f64,
}

/// A row of the table.
#[derive(Debug, Serialize)]
struct Row {
    test: &'static str,
    #[serde(rename = "pipeline")]
    pipeline_depth: usize,
    #[serde(rename = "front_per_s")]
    front_end_commands_per_s: MedianAndSpread,
    #[serde(rename = "redis_per_s")]
    redis_commands_per_s: MedianAndSpread,
    /// The front end's rate divided by Redis's in the same round.
    #[serde(rename = "ratio")]
    front_end_to_redis_rate_ratio: MedianAndSpread,
    #[serde(rename = "front_ns_p50")]
    front_end_ns_p50: f64,
    redis_ns_p50: f64,
}

impl Args {
    /// Returns true if TCP and RDMA are compared, instead of the front end and Redis.
    pub(super) fn compares_tcp_and_rdma(&self) -> bool {
        self.rdma.rdma
    }

    /// Returns the numbers of outstanding commands that the user has named, or `unless_asked`.
    pub(super) fn pipeline_depths_or(&self, unless_asked: &[usize]) -> Vec<usize> {
        values_or_default(&self.pipeline, unless_asked)
    }

    /// Returns the numbers of connections that the user has named, or `unless_asked`.
    pub(super) fn connections_or(&self, unless_asked: &[usize]) -> Vec<usize> {
        values_or_default(&self.connections, unless_asked)
    }
}

fn values_or_default(asked: &[usize], otherwise: &[usize]) -> Vec<usize> {
    if asked.is_empty() { otherwise } else { asked }.to_vec()
}

/// Runs `verbatim kv resp`.
pub(crate) fn run(args: &Args) -> Result<CommandOutcome> {
    let pipelines = args.pipeline_depths_or(&[64, 1]);
    let &[connections] = args.connections_or(&[REDIS_DEFAULT_CONNECTIONS]).as_slice() else {
        bail!("several counts of connections are measured with --rdma only");
    };
    for peer in COMPARED_SERVERS {
        if let Some(program) = peer.missing_program() {
            bail!("{program} is not installed (Debian: apt-get install redis-server redis-tools)");
        }
    }
    let placement = ServerAndClientCores::new(&allowed_cores()?, 1, 1, 1);
    let core = |cores: &[usize]| cores.first().copied().context("no core to run on");
    let (server_core, client_core) = (core(&placement.server)?, core(&placement.clients[0])?);
    let servers = [
        RunningComparisonServer::start(COMPARED_SERVERS[0], server_core)?,
        RunningComparisonServer::start(COMPARED_SERVERS[1], server_core)?,
    ];
    let steps = CommandSteps::new(u64::from(args.rounds) * (pipelines.len() * 2) as u64)?;
    let mut rounds = Vec::new();
    'rounds: for round in 0..args.rounds {
        for &pipeline in &pipelines {
            for test in BENCHMARK_COMMANDS {
                let ask = |server: &RunningComparisonServer| -> Result<ComparisonServerResult> {
                    let benchmark = RedisBenchmark {
                        socket_path: &server.socket_path(),
                        core: client_core,
                        key_count: args.keys,
                        value_bytes: args.value_size,
                        pipeline_depth: pipeline,
                        connections,
                    };
                    benchmark.run_for(test, args.duration)
                };
                let name = format!("{test}, pipelined by {pipeline}");
                let both = steps
                    .run_unless_interrupted(name, || Ok([ask(&servers[0])?, ask(&servers[1])?]))?;
                let Some([front, redis]) = both else {
                    break 'rounds;
                };
                let done = Round {
                    round,
                    test,
                    pipeline_depth: pipeline,
                    front_end_commands_per_s: front.rate_per_s,
                    front_end_ns_p50: front.latency_ns_p50,
                    redis_commands_per_s: redis.rate_per_s,
                    redis_ns_p50: redis.latency_ns_p50,
                };
                if args.json {
                    print_typed_json("round", &done)?;
                }
                rounds.push(done);
            }
        }
    }
    drop(steps);
    // A SIGINT of the terminal has ended Redis, so that nothing is left to check.
    for (server, peer) in servers
        .iter()
        .zip(COMPARED_SERVERS)
        .filter(|_| !is_interrupted())
    {
        check_key_count_and_value_lengths(&server.socket_path(), args.keys, args.value_size)
            .with_context(|| peer.name())?;
    }
    let mut rows = Vec::new();
    for &pipeline in &pipelines {
        for test in BENCHMARK_COMMANDS {
            let is_of = |r: &Round| (r.test, r.pipeline_depth) == (test, pipeline);
            if rounds.iter().any(is_of) {
                rows.push(summarize_rounds(test, pipeline, &rounds)?);
            }
        }
    }
    if args.json {
        for row in &rows {
            print_typed_json("row", row)?;
        }
    } else {
        print_rows(
            (args, connections),
            placement.measure_cache_line_transfer_ns()?,
            &rows,
        )?;
    }
    Ok(CommandOutcome::Done)
}

fn summarize_rounds(test: &'static str, pipeline: usize, rounds: &[Round]) -> Result<Row> {
    let own = |figure: fn(&Round) -> f64| -> Result<MedianAndSpread> {
        let rounds = rounds
            .iter()
            .filter(|r| r.test == test && r.pipeline_depth == pipeline);
        MedianAndSpread::of(&rounds.map(figure).collect::<Vec<_>>()).context("nothing was measured")
    };
    Ok(Row {
        test,
        pipeline_depth: pipeline,
        front_end_commands_per_s: own(|r| r.front_end_commands_per_s)?,
        redis_commands_per_s: own(|r| r.redis_commands_per_s)?,
        front_end_to_redis_rate_ratio: own(|r| {
            r.front_end_commands_per_s / r.redis_commands_per_s
        })?,
        front_end_ns_p50: own(|r| r.front_end_ns_p50)?.median,
        redis_ns_p50: own(|r| r.redis_ns_p50)?.median,
    })
}

/// Checks that every existing key has a value of the right length, and that the number of keys is the number that
/// the server reports.
fn check_key_count_and_value_lengths(socket: &Path, keys: u64, value_size: usize) -> Result<()> {
    let mut stream = UnixStream::connect(socket).context("cannot reach it")?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    let mut answers = BufReader::new(stream.try_clone()?);
    let mut number = || -> Result<u64> {
        let mut line = String::new();
        answers.read_line(&mut line)?;
        let n = line.trim_end().strip_prefix(':').map(str::parse);
        match n {
            Some(Ok(n)) => Ok(n),
            _ => bail!("it said {line:?}"),
        }
    };
    stream.write_all(b"DBSIZE\r\n")?;
    let said = number()?;
    let mut found = 0;
    for from in (0..keys).step_by(1000) {
        let group = from..keys.min(from + 1000);
        let asked: String = group
            .clone()
            .map(|n| format!("STRLEN key:{n:012}\r\n"))
            .collect();
        stream.write_all(asked.as_bytes())?;
        for n in group {
            let length = number()?;
            ensure!(
                length == 0 || length == value_size as u64,
                "key {n} has a value of {length} bytes, {value_size} were set"
            );
            found += u64::from(length != 0);
        }
    }
    ensure!(
        found == said && found > 0,
        "it says {said} keys, and has {found}"
    );
    Ok(())
}

fn print_rows(
    (args, connections): (&Args, usize),
    bounce_ns: Option<f64>,
    rows: &[Row],
) -> Result<()> {
    let bounce = bounce_ns.map_or_else(
        || "both sides share their only core".to_owned(),
        |ns| {
            format!(
                "a cache line takes {} ns between their cores",
                format_three_digits(ns)
            )
        },
    );
    print_line(format_args!(
        "redis-benchmark over Unix sockets: {} connections, {} keys, values of {} bytes\nmedian of {} rounds of about {} \
         ms, interleaved; {bounce}\n",
        connections,
        args.keys,
        args.value_size,
        args.rounds,
        args.duration.as_millis(),
    ))?;
    let header = [
        "test", "pipeline", "front", "redis", "to redis", "median", "of redis",
    ];
    let mut table = output::table(header, &[1, 2, 3, 4, 5, 6]);
    for row in rows {
        let rate = |s: &MedianAndSpread| {
            let [median, min, max] = [s.median, s.min, s.max].map(|r| format_three_digits(r / 1e6));
            format!("{median} M/s ({min}..{max})")
        };
        let [ratio, min, max] = [
            row.front_end_to_redis_rate_ratio.median,
            row.front_end_to_redis_rate_ratio.min,
            row.front_end_to_redis_rate_ratio.max,
        ]
        .map(format_three_digits);
        table.add_row([
            row.test.to_uppercase(),
            row.pipeline_depth.to_string(),
            rate(&row.front_end_commands_per_s),
            rate(&row.redis_commands_per_s),
            format!("{ratio} x ({min}..{max})"),
            format_time_ns(row.front_end_ns_p50),
            format_time_ns(row.redis_ns_p50),
        ]);
    }
    print_line(table)
}
