//! `verbatim kv resp --rdma`: compares a server over TCP with the same server over RDMA.
//!
//! The server has its own core, and the clients' threads share the others. TCP and RDMA are
//! measured alternately, so that a temporary disturbance of the machine affects both.

use std::process::Stdio;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use bench::core_pinning::{allowed_cores, run_pinned};
use bench::peers::KillOnDrop;
use bench::stats::MedianAndSpread;
use chart::{Axis, Chart, Series};
use kv_resp::ListenAddress;
use kv_resp::load_generator::{LoadCommand, LoadConnections, LoadParameters, LoadResult};
use resp_rdma::{Config, Connector};
use serde::Serialize;

use super::json_lines::ServeOrLoadLine;
use super::resp::Args;
use crate::CommandOutcome;
use crate::children::{ChildLines, ServerAndClientCores, start_on_cores, subcommand_with_nic};
use crate::nic::OpenNic;
use crate::output::{
    self, format_three_digits, format_time_ns, print_line, print_typed_json, write_file,
};
use crate::picture::{axis_coordinate, chart_point_of_spread, svg_with_interrupt_note};
use crate::side_by_side::{format_rate_mops, run_interleaved, spread};

/// A setting that is measured over TCP and over RDMA in turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct LoadSetting {
    command: LoadCommand,
    client_threads: usize,
    connections: usize,
    pipeline_depth: usize,
}

impl LoadSetting {
    fn command_name(self) -> &'static str {
        match self.command {
            LoadCommand::Get => "get",
            LoadCommand::Set => "set",
        }
    }
}

/// The results of one transport in one round.
#[derive(Debug, Clone, Copy, Serialize)]
struct TransportFigures {
    #[serde(rename = "per_s")]
    commands_per_s: f64,
    ns_p50: f64,
    ns_p99: f64,
    /// The number of answers; all of them were compared with the expected value.
    #[serde(rename = "verified")]
    verified_answers: u64,
}

/// The results of one row in one round.
#[derive(Debug, Serialize)]
struct Round {
    round: u32,
    test: &'static str,
    threads: usize,
    connections: usize,
    #[serde(rename = "pipeline")]
    pipeline_depth: usize,
    tcp: TransportFigures,
    rdma: TransportFigures,
    #[serde(skip)]
    #[serde(rename = "point")]
    setting: LoadSetting,
}

/// A transport in a row: medians of the rounds.
#[derive(Debug, Serialize)]
struct TransportMedians {
    #[serde(rename = "per_s")]
    commands_per_s: MedianAndSpread,
    ns_p50: f64,
    ns_p99: f64,
}

/// A row of the table.
#[derive(Debug, Serialize)]
struct Row {
    test: &'static str,
    threads: usize,
    connections: usize,
    #[serde(rename = "pipeline")]
    pipeline_depth: usize,
    tcp: TransportMedians,
    rdma: TransportMedians,
    /// The rate over RDMA divided by the rate over TCP in the same round.
    #[serde(rename = "ratio")]
    rdma_to_tcp_rate_ratio: MedianAndSpread,
    #[serde(rename = "verified")]
    verified_answers: u64,
}

/// The state that all measurements share.
struct MeasurementContext<'a> {
    args: &'a Args,
    cores: Vec<usize>,
    connector: Connector,
    /// The address of the server over TCP, then its address over RDMA.
    tcp_and_rdma_servers: [ListenAddress; 2],
}

/// Runs `verbatim kv resp --rdma`.
pub(super) fn run(args: &Args) -> Result<CommandOutcome> {
    if cfg!(debug_assertions) {
        eprintln!("note: this is a debug build; its figures mean nothing (use --release)");
    }
    crate::streams::raise_descriptor_limit()?;
    let points = settings_to_measure(args);
    ensure!(
        !points.is_empty(),
        "nothing to measure: there are fewer --connections than --threads"
    );
    let cores = allowed_cores()?;
    let most = points.iter().map(|p| p.client_threads).max().unwrap_or(1);
    let placement =
        ServerAndClientCores::new(&cores, 1, 1, most.min(cores.len().saturating_sub(1)).max(1));
    if most >= cores.len() {
        eprintln!(
            "note: {most} threads of clients share {} cores",
            cores.len().max(2) - 1
        );
    }
    let nic = OpenNic::open(&args.rdma.nic, &args.rdma.port)?;
    let (_server, tcp_and_rdma_servers) = start_server(args, &points, &placement)?;
    let config = Config {
        receive_buffer_bytes: u32::try_from(args.rdma.rdma_buffer)?,
        ..Config::default()
    };
    let setup = MeasurementContext {
        args,
        cores: placement.clients.concat(),
        connector: Connector::new(&nic.context, config)?,
        tcp_and_rdma_servers,
    };
    setup.set_every_key()?;
    let name = |p: LoadSetting| format!("{}, {} connections", p.command_name(), p.connections);
    let rounds = run_interleaved(args.rounds, &points, args.json, name, |round, point| {
        setup.measure_round(round, point)
    })?;
    let measured = |point: &&LoadSetting| rounds.iter().any(|r| r.setting == **point);
    let measured = points.iter().filter(measured);
    let rows = measured.map(|&point| summarize_rounds(point, &rounds));
    let rows = rows.collect::<Result<Vec<_>>>()?;
    if args.json {
        for row in &rows {
            print_typed_json("row", row)?;
        }
    } else {
        print_rows(args, placement.measure_cache_line_transfer_ns()?, &rows)?;
    }
    if let Some(file) = &args.rdma.svg {
        write_file(file, &svg_of_get_rates(args, &rows))?;
    }
    Ok(CommandOutcome::Done)
}

/// A server process, and the reader of its output.
type RunningServer = (KillOnDrop, ChildLines<ServeOrLoadLine>);

/// Starts the server. Returns its address over TCP, then its address over RDMA.
fn start_server(
    args: &Args,
    points: &[LoadSetting],
    placement: &ServerAndClientCores,
) -> Result<(RunningServer, [ListenAddress; 2])> {
    let most_connections = points.iter().map(|p| p.connections).max().unwrap_or(1);
    let mut command = subcommand_with_nic("kv", "serve", &args.rdma.nic, &args.rdma.port)?;
    command
        .args(["--listen", "127.0.0.1:0", "--resp", "127.0.0.1:0", "--rdma"])
        .args(["--store", "--until-eof", "--keys", &args.keys.to_string()])
        .args(["--value-size", &args.value_size.to_string()])
        .args(["--rdma-buffer", &args.rdma.rdma_buffer.to_string()])
        // Connections of the measurement before may still be open.
        .args(["--max-connections", &(2 * most_connections).to_string()])
        .stdin(Stdio::piped());
    let (server, mut said) =
        start_on_cores::<ServeOrLoadLine>(command, &placement.server, "server")?;
    let (tcp, rdma) = said.read_until_some(|line| match line {
        ServeOrLoadLine::Listening { resp, rdma, .. } => Some((resp?, rdma?)),
        _ => None,
    })?;
    let tcp = tcp.parse().map_err(|e: String| anyhow!(e))?;
    let rdma = ListenAddress::Rdma(rdma.parse()?);
    Ok(((server, said), [tcp, rdma]))
}

/// Returns all settings to measure; each thread has at least one connection.
fn settings_to_measure(args: &Args) -> Vec<LoadSetting> {
    let threads = match args.rdma.threads.as_slice() {
        [] => &[1, 2, 4],
        given => given,
    };
    let connections = args.connections_or(&[1, 4, 16, 64]);
    let mut points = Vec::new();
    for pipeline in args.pipeline_depths_or(&[1]) {
        for &threads in threads {
            for &connections in connections.iter().filter(|&&c| c >= threads) {
                points.extend(
                    [LoadCommand::Get, LoadCommand::Set].map(|command| LoadSetting {
                        command,
                        client_threads: threads,
                        connections,
                        pipeline_depth: pipeline,
                    }),
                );
            }
        }
    }
    points
}

impl MeasurementContext<'_> {
    fn load_parameters(&self, point: LoadSetting, seed: u64) -> LoadParameters {
        LoadParameters {
            command: point.command,
            key_count: self.args.keys,
            value_bytes: self.args.value_size,
            outstanding_commands: point.pipeline_depth,
            seed,
        }
    }

    /// Sets every key.
    fn set_every_key(&self) -> Result<()> {
        let point = LoadSetting {
            command: LoadCommand::Set,
            client_threads: 1,
            connections: 1,
            pipeline_depth: 1,
        };
        let [tcp, _] = &self.tcp_and_rdma_servers;
        let mut loader = LoadConnections::connect(tcp, None, 1)?;
        let filled = loader.set_all_keys(&self.load_parameters(point, 0));
        filled.context("cannot set the keys")
    }

    fn measure_round(&self, round: u32, point: LoadSetting) -> Result<Round> {
        let [tcp, rdma] = &self.tcp_and_rdma_servers;
        let measure = |server: &ListenAddress, name| -> Result<TransportFigures> {
            let figures = self.measure_transport(round, point, server);
            figures.with_context(|| format!("over {name}, {point:?}"))
        };
        Ok(Round {
            round,
            test: point.command_name(),
            threads: point.client_threads,
            connections: point.connections,
            pipeline_depth: point.pipeline_depth,
            tcp: measure(tcp, "TCP")?,
            rdma: measure(rdma, "RDMA")?,
            setting: point,
        })
    }

    /// Sends requests for the time of a measurement, from all threads at once.
    fn measure_transport(
        &self,
        round: u32,
        point: LoadSetting,
        server: &ListenAddress,
    ) -> Result<TransportFigures> {
        let ready = Barrier::new(point.client_threads + 1);
        let stop = AtomicBool::new(false);
        let one = |thread: usize| -> Result<LoadResult> {
            let core = self.cores.get(thread % self.cores.len().max(1));
            let own = point.connections / point.client_threads
                + usize::from(thread < point.connections % point.client_threads);
            let connected = LoadConnections::connect(server, Some(&self.connector), own);
            let seed = (u64::from(round) << 32) | thread as u64;
            // Report an error only after the barrier, so that no thread waits for a failed thread.
            ready.wait();
            let mut loader = connected.context("cannot connect")?;
            let core = *core.context("no core to run on")?;
            run_pinned(core, || {
                Ok(loader.run(&self.load_parameters(point, seed), &stop)?)
            })
        };
        let measured = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..point.client_threads)
                .map(|thread| {
                    let one = &one;
                    scope.spawn(move || one(thread))
                })
                .collect();
            ready.wait();
            std::thread::sleep(self.args.duration);
            stop.store(true, Ordering::Relaxed);
            let ended = threads.into_iter().map(|t| t.join());
            ended.collect::<Vec<_>>()
        });
        let mut all: Option<LoadResult> = None;
        let mut per_s = 0.0;
        for one in measured {
            let one = one.map_err(|_| anyhow!("a thread of clients panicked"))??;
            #[allow(clippy::cast_precision_loss)] // far below 2^52
            let answers = one.answer_count as f64;
            per_s += answers / one.elapsed.max(Duration::from_nanos(1)).as_secs_f64();
            match &mut all {
                None => all = Some(one),
                Some(all) => {
                    all.answer_count += one.answer_count;
                    all.latency_ns.add(&one.latency_ns)?;
                }
            }
        }
        let all = all.context("nothing was measured")?;
        #[allow(clippy::cast_precision_loss)] // seconds, in nanoseconds
        let at = |quantile| all.latency_ns.value_at_quantile(quantile) as f64;
        Ok(TransportFigures {
            commands_per_s: per_s,
            ns_p50: at(0.5),
            ns_p99: at(0.99),
            verified_answers: all.answer_count,
        })
    }
}

fn summarize_rounds(point: LoadSetting, rounds: &[Round]) -> Result<Row> {
    let own = || rounds.iter().filter(|r| r.setting == point);
    let side = |of: fn(&Round) -> &TransportFigures| -> Result<TransportMedians> {
        Ok(TransportMedians {
            commands_per_s: spread(own().map(|r| of(r).commands_per_s))?,
            ns_p50: spread(own().map(|r| of(r).ns_p50))?.median,
            ns_p99: spread(own().map(|r| of(r).ns_p99))?.median,
        })
    };
    Ok(Row {
        test: point.command_name(),
        threads: point.client_threads,
        connections: point.connections,
        pipeline_depth: point.pipeline_depth,
        tcp: side(|r| &r.tcp)?,
        rdma: side(|r| &r.rdma)?,
        rdma_to_tcp_rate_ratio: spread(
            own().map(|r| r.rdma.commands_per_s / r.tcp.commands_per_s),
        )?,
        verified_answers: own()
            .map(|r| r.tcp.verified_answers + r.rdma.verified_answers)
            .sum(),
    })
}

fn print_rows(args: &Args, bounce_ns: Option<f64>, rows: &[Row]) -> Result<()> {
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
        "one server over TCP loopback and over RDMA (software NIC): {} keys, values of {} bytes\nmedian of {} rounds of {} \
         ms, interleaved; {bounce}\n",
        args.keys,
        args.value_size,
        args.rounds,
        args.duration.as_millis(),
    ))?;
    let header = [
        "test", "pipeline", "threads", "conns", "TCP/s", "RDMA/s", "ratio", "TCP p50", "p99",
        "RDMA p50", "p99",
    ];
    let mut table = output::table(header, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
    for row in rows {
        let [ratio, min, max] = [
            row.rdma_to_tcp_rate_ratio.median,
            row.rdma_to_tcp_rate_ratio.min,
            row.rdma_to_tcp_rate_ratio.max,
        ]
        .map(format_three_digits);
        table.add_row([
            row.test.to_uppercase(),
            row.pipeline_depth.to_string(),
            row.threads.to_string(),
            row.connections.to_string(),
            format_rate_mops(row.tcp.commands_per_s),
            format_rate_mops(row.rdma.commands_per_s),
            format!("{ratio} x ({min}..{max})"),
            format_time_ns(row.tcp.ns_p50),
            format_time_ns(row.tcp.ns_p99),
            format_time_ns(row.rdma.ns_p50),
            format_time_ns(row.rdma.ns_p99),
        ]);
    }
    print_line(table)?;
    let verified: u64 = rows.iter().map(|row| row.verified_answers).sum();
    print_line(format_args!("\n{verified} answers, each of them right"))
}

/// Draws rates of GETs over the number of connections, for the fewest threads and the shortest
/// pipeline.
fn svg_of_get_rates(args: &Args, rows: &[Row]) -> String {
    let least = |of: fn(&Row) -> usize| rows.iter().map(of).min();
    let shown = rows.iter().filter(|row| {
        row.test == "get"
            && Some(row.threads) == least(|r| r.threads)
            && Some(row.pipeline_depth) == least(|r| r.pipeline_depth)
    });
    let curve = |name: &str, of: fn(&Row) -> &TransportMedians| {
        let points = shown.clone().map(|row| {
            chart_point_of_spread(
                axis_coordinate(row.connections),
                of(row).commands_per_s,
                1e6,
            )
        });
        Series::new(name, points)
    };
    svg_with_interrupt_note(&Chart {
        title: "GETs over RDMA and over TCP loopback".to_owned(),
        caption: format!("software NIC, values of {} bytes", args.value_size),
        x: Axis::log("connections"),
        y: Axis::linear("10⁶ GETs a second"),
        series: vec![curve("RDMA", |row| &row.rdma), curve("TCP", |row| &row.tcp)],
        constant_levels: Vec::new(),
    })
}
