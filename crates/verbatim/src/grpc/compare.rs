//! `verbatim grpc`: compares a server over RDMA with the same server over TCP.

use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result};
use bench::core_pinning::pin_thread_to_core;
use bench::resource_usage::ResourceUsage;
use bench::stats::MedianAndSpread;
use serde::{Deserialize, Serialize};
use stream::RdmaPolicy;
use tokio::runtime::Runtime;
use tonic::transport::Channel;

use super::load::{self, CallsResult};
use super::serve::ListeningLine;
use crate::CommandOutcome;
use crate::args::{self, NicArgs, PortArgs};
use crate::children::{start_on_cores, subcommand_with_nic};
use crate::output::{self, format_three_digits, format_time_ns, print_line, print_typed_json};
use crate::side_by_side::{assign_cores, run_interleaved, spread};

/// Arguments of the comparison.
#[derive(clap::Args)]
#[group(skip)]
pub(super) struct Args {
    /// Calls that are outstanding on the connection (may be given several times) [default: 1 and 64]
    #[arg(long, value_name = "N", value_parser = args::integer_parser_in_range("a count of calls", 1..=4096usize))]
    outstanding: Vec<usize>,
    /// Bytes of payload in each request and each response
    #[arg(long, value_name = "BYTES", default_value = "32", value_parser = crate::streams::payload_size_parser())]
    payload: usize,
    /// How often everything runs, in turn
    #[arg(long, value_name = "N", default_value = "5", value_parser = args::integer_parser_in_range("a count of rounds", 1..=1000u32))]
    rounds: u32,
    /// How long each measurement runs
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = args::parse_duration_from_10ms)]
    duration: Duration,
    /// Print one JSON object per line: round, row
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    nic: NicArgs,
    #[command(flatten)]
    port: PortArgs,
}

/// The results of one transport in one round.
#[derive(Debug, Clone, Copy, Serialize)]
struct TransportFigures {
    calls_per_s: f64,
    ns_p50: f64,
    ns_p99: f64,
    /// CPU time of both processes per call, in nanoseconds.
    cpu_ns_per_call: f64,
    /// The number of responses; all of them were checked.
    #[serde(rename = "verified")]
    verified_responses: u64,
}

/// The results of one row in one round.
#[derive(Debug, Serialize)]
struct Round {
    round: u32,
    #[serde(rename = "outstanding")]
    outstanding_calls: usize,
    tcp: TransportFigures,
    rdma: TransportFigures,
}

/// A transport in a row: medians of the rounds.
#[derive(Debug, Serialize)]
struct TransportMedians {
    calls_per_s: MedianAndSpread,
    ns_p50: f64,
    ns_p99: f64,
    cpu_ns_per_call: f64,
}

/// A row of the table.
#[derive(Debug, Serialize)]
struct Row {
    #[serde(rename = "kind")]
    nic_kind: &'static str,
    #[serde(rename = "outstanding")]
    outstanding_calls: usize,
    payload_bytes: usize,
    tcp: TransportMedians,
    rdma: TransportMedians,
    /// The rate over RDMA divided by the rate over TCP in the same round.
    #[serde(rename = "ratio")]
    rdma_to_tcp_rate_ratio: MedianAndSpread,
    #[serde(rename = "verified")]
    verified_responses: u64,
    /// The time in nanoseconds that a cache line takes from one core to the other.
    bounce_ns: Option<f64>,
}

/// A line that the server prints.
#[derive(Deserialize)]
#[serde(tag = "type", content = "data", rename_all = "snake_case")]
enum ServerOutputLine {
    Listening(ListeningLine),
}

struct RunningComparison<'a> {
    args: &'a Args,
    runtime: Runtime,
    /// The channel over TCP, then the channel over RDMA.
    tcp_and_rdma_channels: [Channel; 2],
    server_pid: u32,
}

/// Runs `verbatim grpc` without a subcommand.
pub(super) fn run(args: &Args) -> Result<CommandOutcome> {
    let placement = assign_cores(1, 1, 1, "the client")?;
    let bounce_ns = placement.measure_cache_line_transfer_ns()?;
    let mut command = subcommand_with_nic("grpc", "serve", &args.nic, &args.port)?;
    command
        .args(["--listen", "127.0.0.1:0", "--until-eof"])
        .stdin(Stdio::piped());
    let (server, mut said) =
        start_on_cores::<ServerOutputLine>(command, &placement.server, "server")?;
    let ServerOutputLine::Listening(ListeningLine { address }) = said.next_line_or_error()?;
    if let [core] = placement.clients[0][..] {
        pin_thread_to_core(core)?;
    }
    let runtime = crate::streams::new_tokio_runtime()?;
    let setup = RunningComparison {
        tcp_and_rdma_channels: runtime.block_on(connect_tcp_and_rdma(args, address))?,
        args,
        runtime,
        server_pid: server.0.id(),
    };
    let outstanding = match &args.outstanding[..] {
        [] => &[1, 64],
        given => given,
    };
    let name = |outstanding| format!("{outstanding} outstanding");
    let rounds = run_interleaved(args.rounds, outstanding, args.json, name, |round, o| {
        setup.measure_round(round, o)
    })?;
    let measured = outstanding
        .iter()
        .filter(|outstanding| rounds.iter().any(|r| r.outstanding_calls == **outstanding));
    let rows = measured.map(|&outstanding| row(args, outstanding, bounce_ns, &rounds));
    let rows = rows.collect::<Result<Vec<_>>>()?;
    if args.json {
        rows.iter()
            .try_for_each(|row| print_typed_json("row", row))?;
    } else {
        print_line(table(&rows))?;
    }
    Ok(CommandOutcome::Done)
}

async fn connect_tcp_and_rdma(args: &Args, address: SocketAddr) -> Result<[Channel; 2]> {
    let config = |policy| crate::streams::stream_config(&args.nic, &args.port, policy);
    Ok([
        crate::streams::connect_grpc_channel(address, config(RdmaPolicy::TcpOnly)?).await?,
        crate::streams::connect_grpc_channel(address, config(RdmaPolicy::RdmaOnly)?).await?,
    ])
}

impl RunningComparison<'_> {
    fn measure_round(&self, round: u32, outstanding: usize) -> Result<Round> {
        // Alternate the order, since the first transport may influence the second.
        let (tcp, rdma);
        if round.is_multiple_of(2) {
            tcp = self.measure_transport(0, outstanding)?;
            rdma = self.measure_transport(1, outstanding)?;
        } else {
            rdma = self.measure_transport(1, outstanding)?;
            tcp = self.measure_transport(0, outstanding)?;
        }
        Ok(Round {
            round,
            outstanding_calls: outstanding,
            tcp,
            rdma,
        })
    }

    fn measure_transport(&self, side: usize, outstanding: usize) -> Result<TransportFigures> {
        let cpu = || -> Result<u64> {
            let own = ResourceUsage::of_process(std::process::id())?.cpu_ns;
            Ok(own + ResourceUsage::of_process(self.server_pid)?.cpu_ns)
        };
        let before = cpu()?;
        let args = self.args;
        let calls = load::run(
            &self.tcp_and_rdma_channels[side],
            outstanding,
            args.payload,
            args.duration,
        );
        let CallsResult {
            calls_per_s,
            latency_ns_p50: ns_p50,
            latency_ns_p99: ns_p99,
            verified_responses: verified,
        } = self.runtime.block_on(calls)?;
        let used = cpu()?.saturating_sub(before);
        #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
        let cpu_ns_per_call = used as f64 / verified as f64;
        Ok(TransportFigures {
            calls_per_s,
            ns_p50,
            ns_p99,
            cpu_ns_per_call,
            verified_responses: verified,
        })
    }
}

fn row(args: &Args, outstanding: usize, bounce_ns: Option<f64>, rounds: &[Round]) -> Result<Row> {
    let of: Vec<&Round> = rounds
        .iter()
        .filter(|r| r.outstanding_calls == outstanding)
        .collect();
    let side = |pick: fn(&Round) -> TransportFigures| -> Result<TransportMedians> {
        let median = |value: fn(TransportFigures) -> f64| {
            let all: Vec<f64> = of.iter().map(|r| value(pick(r))).collect();
            bench::stats::median(&all).context("nothing was measured")
        };
        Ok(TransportMedians {
            calls_per_s: spread(of.iter().map(|r| pick(r).calls_per_s))?,
            ns_p50: median(|f| f.ns_p50)?,
            ns_p99: median(|f| f.ns_p99)?,
            cpu_ns_per_call: median(|f| f.cpu_ns_per_call)?,
        })
    };
    Ok(Row {
        nic_kind: args.nic.provider.nic_description(),
        outstanding_calls: outstanding,
        payload_bytes: args.payload,
        tcp: side(|r| r.tcp)?,
        rdma: side(|r| r.rdma)?,
        rdma_to_tcp_rate_ratio: spread(of.iter().map(|r| r.rdma.calls_per_s / r.tcp.calls_per_s))?,
        verified_responses: of
            .iter()
            .map(|r| r.tcp.verified_responses + r.rdma.verified_responses)
            .sum(),
        bounce_ns,
    })
}

fn table(rows: &[Row]) -> String {
    let mut table = output::table(
        [
            "outstanding",
            "TCP calls/s",
            "RDMA calls/s",
            "ratio",
            "TCP p50, p99",
            "RDMA p50, p99",
            "TCP CPU/call",
            "RDMA CPU/call",
        ],
        &[0, 1, 2, 3, 4, 5, 6, 7],
    );
    for row in rows {
        let ratio = row.rdma_to_tcp_rate_ratio;
        let latency = |side: &TransportMedians| {
            format!(
                "{}, {}",
                format_time_ns(side.ns_p50),
                format_time_ns(side.ns_p99)
            )
        };
        table.add_row([
            row.outstanding_calls.to_string(),
            format_three_digits(row.tcp.calls_per_s.median),
            format_three_digits(row.rdma.calls_per_s.median),
            format!(
                "{} x ({}..{})",
                format_three_digits(ratio.median),
                format_three_digits(ratio.min),
                format_three_digits(ratio.max)
            ),
            latency(&row.tcp),
            latency(&row.rdma),
            format_time_ns(row.tcp.cpu_ns_per_call),
            format_time_ns(row.rdma.cpu_ns_per_call),
        ]);
    }
    let bounce = rows.first().and_then(|row| row.bounce_ns);
    let cores = match bounce {
        Some(ns) => format!("cores {} apart", format_time_ns(ns)),
        None => "one core".to_owned(),
    };
    let verified: u64 = rows.iter().map(|row| row.verified_responses).sum();
    format!("{table}\n{verified} responses, each checked; {cores}")
}
