//! `verbatim stream`: compares an echo server over RDMA, over TCP, over a Unix socket and over rsockets.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result};
use bench::core_pinning::pin_thread_to_core;
use bench::resource_usage::ResourceUsage;
use bench::stats::{MedianAndSpread, median};
use serde::{Deserialize, Serialize};
use stream::{Connector, RdmaPolicy};
use tokio::runtime::Runtime;

use super::load::{self, Carrier, ServerAddresses};
use super::serve::ListeningLine;
use crate::CommandOutcome;
use crate::args::{self, NicArgs, PortArgs, Provider};
use crate::children::{start_on_cores, subcommand_with_nic};
use crate::output::{self, format_three_digits, format_time_ns, print_line, print_typed_json};
use crate::side_by_side::{assign_cores, format_or_empty, run_interleaved, spread};

/// Arguments of the comparison that runs without a subcommand.
#[derive(clap::Args)]
#[group(skip)]
pub(super) struct ComparisonArgs {
    /// Connections, each with one message under way (may be given several times) [default: 1 and 16]
    #[arg(long, value_name = "N", value_parser = args::integer_parser_in_range("a count of connections", 1..=10_000usize))]
    connections: Vec<usize>,
    /// Bytes of a message (may be given several times) [default: 64 and 100000]
    #[arg(long, value_name = "BYTES", value_parser = args::integer_parser_in_range("a length of messages", 1..=16_777_216usize))]
    message: Vec<usize>,
    /// WRs of each queue of each connection
    #[arg(long, value_name = "N", default_value = "128", value_parser = args::integer_parser_in_range("a count of WRs", 16..=4096u16))]
    queue: u16,
    /// How often everything runs, in turn
    #[arg(long, value_name = "N", default_value = "5", value_parser = args::integer_parser_in_range("a count of rounds", 1..=1000u32))]
    rounds: u32,
    /// How long each measurement runs
    #[arg(long, value_name = "TIME", default_value = "200ms", value_parser = args::parse_duration_from_10ms)]
    duration: Duration,
    /// Print one JSON object per line: round, row
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    nic: NicArgs,
    #[command(flatten)]
    port: PortArgs,
}

/// A setting that is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct StreamSetting {
    message_bytes: usize,
    connections: usize,
    carrier: Carrier,
}

/// The results of one row in one round.
#[derive(Debug, Serialize)]
struct Round {
    round: u32,
    carrier: Carrier,
    message_bytes: usize,
    connections: usize,
    messages_per_s: f64,
    ns_p50: f64,
    ns_p99: f64,
    /// CPU time of both processes per byte in nanoseconds; the bytes of both directions count.
    cpu_ns_per_byte: f64,
    /// The number of messages; each was compared with its echo.
    #[serde(rename = "verified")]
    verified_messages: u64,
}

impl Round {
    fn matches_setting(&self, point: StreamSetting) -> bool {
        let own = (self.message_bytes, self.connections, self.carrier);
        own == (point.message_bytes, point.connections, point.carrier)
    }
}

/// A row of the table: medians of the rounds.
#[derive(Debug, Serialize)]
struct Row {
    #[serde(rename = "kind")]
    nic_kind: &'static str,
    carrier: Carrier,
    message_bytes: usize,
    connections: usize,
    messages_per_s: MedianAndSpread,
    /// The rate divided by the rate over TCP in the same round; `None` if TCP was not measured before an
    /// interrupt.
    #[serde(rename = "ratio")]
    rate_ratio_to_tcp: Option<MedianAndSpread>,
    ns_p50: f64,
    ns_p99: f64,
    cpu_ns_per_byte: f64,
    #[serde(rename = "verified")]
    verified_messages: u64,
}

/// A line that the server prints.
#[derive(Deserialize)]
#[serde(tag = "type", content = "data", rename_all = "snake_case")]
enum ServerOutputLine {
    Listening(ListeningLine),
}

struct MeasurementContext<'a> {
    args: &'a ComparisonArgs,
    runtime: Runtime,
    connector: Connector,
    server_pid: u32,
    server_addresses: ListeningLine,
    unix_socket_path: PathBuf,
}

/// Runs `verbatim stream` without a subcommand.
pub(super) fn run(args: &ComparisonArgs) -> Result<CommandOutcome> {
    crate::streams::raise_descriptor_limit()?;
    let placement = assign_cores(1, 1, 1, "the client")?;
    let bounce_ns = placement.measure_cache_line_transfer_ns()?;
    let folder = tempfile::tempdir().context("cannot make a folder for the Unix socket")?;
    let unix = folder.path().join("socket");
    let mut command = subcommand_with_nic("stream", "serve", &args.nic, &args.port)?;
    command
        .args(["--listen", "127.0.0.1:0", "--until-eof", "--unix"])
        .arg(&unix)
        .args(["--queue", &args.queue.to_string()])
        .stdin(Stdio::piped());
    if args.nic.provider == Provider::Softnic {
        command.args(["--rsocket", "127.0.0.1:0"]);
    }
    let (server, mut said) =
        start_on_cores::<ServerOutputLine>(command, &placement.server, "server")?;
    let ServerOutputLine::Listening(listening) = said.next_line_or_error()?;
    if let [core] = placement.clients[0][..] {
        pin_thread_to_core(core)?;
    }
    let mut config = crate::streams::stream_config(&args.nic, &args.port, RdmaPolicy::RdmaOnly)?;
    config.queue_size = args.queue;
    let setup = MeasurementContext {
        args,
        runtime: crate::streams::new_tokio_runtime()?,
        connector: Connector::new(config)?,
        server_pid: server.0.id(),
        server_addresses: listening,
        unix_socket_path: unix,
    };
    let points = settings_to_measure(args, setup.server_addresses.rsocket.is_some());
    let name = |p: StreamSetting| format!("{} bytes by {}", p.message_bytes, p.carrier.name());
    let rounds = run_interleaved(args.rounds, &points, args.json, name, |round, point| {
        setup.measure_round(round, point)
    })?;
    let measured = |point: &&StreamSetting| rounds.iter().any(|r| r.matches_setting(**point));
    let measured = points.iter().filter(measured);
    let rows = measured.map(|&point| row(args, point, &rounds));
    let rows = rows.collect::<Result<Vec<_>>>()?;
    if args.json {
        rows.iter()
            .try_for_each(|row| print_typed_json("row", row))?;
    } else {
        print_line(table(&rows, bounce_ns))?;
    }
    Ok(CommandOutcome::Done)
}

/// Maximum number of connections for which rsockets are measured: an rsocket needs several descriptors, and `poll` of
/// all sockets of a side takes longer with each.
const MAX_RSOCKETS: usize = 1000;

fn settings_to_measure(args: &ComparisonArgs, with_rsockets: bool) -> Vec<StreamSetting> {
    let given = |asked: &[usize], otherwise: [usize; 2]| {
        if asked.is_empty() {
            otherwise.to_vec()
        } else {
            asked.to_vec()
        }
    };
    let mut points = Vec::new();
    for &message in &given(&args.message, [64, 100_000]) {
        for &connections in &given(&args.connections, [1, 16]) {
            let carriers = Carrier::ALL.into_iter();
            let with_rsockets = with_rsockets && connections <= MAX_RSOCKETS;
            let carriers = carriers.filter(|c| with_rsockets || *c != Carrier::Rsocket);
            points.extend(carriers.map(|carrier| StreamSetting {
                message_bytes: message,
                connections,
                carrier,
            }));
        }
    }
    points
}

impl MeasurementContext<'_> {
    fn measure_round(&self, round: u32, point: StreamSetting) -> Result<Round> {
        let cpu = || -> Result<u64> {
            let own = ResourceUsage::of_process(std::process::id())?.cpu_ns;
            Ok(own + ResourceUsage::of_process(self.server_pid)?.cpu_ns)
        };
        let target = ServerAddresses {
            tcp_or_rdma_address: self.server_addresses.address,
            unix_socket_path: &self.unix_socket_path,
            rsocket_address: self.server_addresses.rsocket,
            connector: &self.connector,
        };
        let before = cpu()?;
        let run = load::run(
            &target,
            point.carrier,
            point.connections,
            point.message_bytes,
            self.args.duration,
        );
        let measured = self.runtime.block_on(run)?;
        let used = cpu()?.saturating_sub(before);
        let latency = |share: usize| {
            let all = &measured.sorted_round_trip_ns;
            let index = (all.len() * share / 100).min(all.len().saturating_sub(1));
            all.get(index).copied().unwrap_or(0)
        };
        #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
        Ok(Round {
            round,
            carrier: point.carrier,
            message_bytes: point.message_bytes,
            connections: point.connections,
            messages_per_s: measured.messages as f64 / measured.seconds,
            ns_p50: latency(50) as f64,
            ns_p99: latency(99) as f64,
            cpu_ns_per_byte: used as f64
                / (2.0 * measured.messages as f64 * point.message_bytes as f64),
            verified_messages: measured.messages,
        })
    }
}

fn row(args: &ComparisonArgs, point: StreamSetting, rounds: &[Round]) -> Result<Row> {
    let by = |carrier: Carrier| {
        rounds
            .iter()
            .filter(move |r| r.matches_setting(StreamSetting { carrier, ..point }))
    };
    let of: Vec<&Round> = by(point.carrier).collect();
    let middle = |value: fn(&Round) -> f64| {
        let all: Vec<f64> = of.iter().map(|r| value(r)).collect();
        median(&all).context("nothing was measured")
    };
    let pairs = of.iter().zip(by(Carrier::Tcp));
    let ratios = pairs.map(|(r, tcp)| r.messages_per_s / tcp.messages_per_s);
    Ok(Row {
        nic_kind: args.nic.provider.nic_description(),
        carrier: point.carrier,
        message_bytes: point.message_bytes,
        connections: point.connections,
        messages_per_s: spread(of.iter().map(|r| r.messages_per_s))?,
        rate_ratio_to_tcp: MedianAndSpread::of(&ratios.collect::<Vec<_>>()),
        ns_p50: middle(|r| r.ns_p50)?,
        ns_p99: middle(|r| r.ns_p99)?,
        cpu_ns_per_byte: middle(|r| r.cpu_ns_per_byte)?,
        verified_messages: of.iter().map(|r| r.verified_messages).sum(),
    })
}

fn table(rows: &[Row], bounce_ns: Option<f64>) -> String {
    let mut table = output::table(
        [
            "bytes",
            "connections",
            "by",
            "messages/s",
            "beside TCP",
            "p50, p99",
            "MB/s each way",
            "CPU/byte",
        ],
        &[0, 1, 3, 4, 5, 6, 7],
    );
    for row in rows {
        let rate = row.messages_per_s.median;
        #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
        let mb_per_s = rate * row.message_bytes as f64 / 1e6;
        table.add_row([
            row.message_bytes.to_string(),
            row.connections.to_string(),
            row.carrier.name().to_owned(),
            format_three_digits(rate),
            format_or_empty(row.rate_ratio_to_tcp, |ratio| {
                let [median, min, max] =
                    [ratio.median, ratio.min, ratio.max].map(format_three_digits);
                format!("{median} x ({min}..{max})")
            }),
            format!(
                "{}, {}",
                format_time_ns(row.ns_p50),
                format_time_ns(row.ns_p99)
            ),
            format_three_digits(mb_per_s),
            format_time_ns(row.cpu_ns_per_byte),
        ]);
    }
    let cores = match bounce_ns {
        Some(ns) => format!("cores {} apart", format_time_ns(ns)),
        None => "one core".to_owned(),
    };
    let verified: u64 = rows.iter().map(|row| row.verified_messages).sum();
    format!("{table}\n{verified} messages, each compared; {cores}")
}
