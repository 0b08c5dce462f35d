//! `verbatim kv resp --rdma`: the same server over TCP and over RDMA.
//!
//! The server has its own core, and the clients' threads share the others. TCP and RDMA are
//! measured alternately, so that a temporary disturbance of the machine affects both.

use std::process::Stdio;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use bench::pin::{allowed, pinned};
use bench::stats::Spread;
use chart::{Axis, Chart, Series};
use kv_resp::Address;
use kv_resp::load::{Load, LoadCommand, Loader, Measured};
use resp_rdma::{Config, Connector};
use serde::Serialize;

use super::lines::Line;
use super::resp::Args;
use crate::Outcome;
use crate::children::{Placement, part_of, start};
use crate::nic::Nic;
use crate::output::{self, figure, print, print_typed, time, write_file};
use crate::picture::{place, spread_point};
use crate::side_by_side::{interleaved, rate, spread};

/// A setting that is measured over both transports in turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Point {
    command: LoadCommand,
    threads: usize,
    connections: usize,
    pipeline: usize,
}

impl Point {
    fn test(self) -> &'static str {
        match self.command {
            LoadCommand::Get => "get",
            LoadCommand::Set => "set",
        }
    }
}

/// The result of a transport in a round.
#[derive(Debug, Clone, Copy, Serialize)]
struct Figures {
    per_s: f64,
    ns_p50: f64,
    ns_p99: f64,
    /// The number of answers, all compared with the expected value.
    verified: u64,
}

/// One round of one row.
#[derive(Debug, Serialize)]
struct Round {
    round: u32,
    test: &'static str,
    threads: usize,
    connections: usize,
    pipeline: usize,
    tcp: Figures,
    rdma: Figures,
    #[serde(skip)]
    point: Point,
}

/// A transport in a row: medians of the rounds.
#[derive(Debug, Serialize)]
struct Side {
    per_s: Spread,
    ns_p50: f64,
    ns_p99: f64,
}

/// A row of the table.
#[derive(Debug, Serialize)]
struct Row {
    test: &'static str,
    threads: usize,
    connections: usize,
    pipeline: usize,
    tcp: Side,
    rdma: Side,
    /// RDMA's rate divided by TCP's in the same round.
    ratio: Spread,
    verified: u64,
}

/// The state that all measurements share.
struct Setup<'a> {
    args: &'a Args,
    cores: Vec<usize>,
    connector: Connector,
    /// The server over TCP, then the one over RDMA.
    servers: [Address; 2],
}

/// Runs the command.
pub(super) fn run(args: &Args) -> Result<Outcome> {
    if cfg!(debug_assertions) {
        eprintln!("note: this is a debug build; its figures mean nothing (use --release)");
    }
    let points = points(args);
    ensure!(
        !points.is_empty(),
        "nothing to measure: there are fewer --connections than --threads"
    );
    let cores = allowed()?;
    let most = points.iter().map(|p| p.threads).max().unwrap_or(1);
    let placement = Placement::new(&cores, 1, 1, most.min(cores.len().saturating_sub(1)).max(1));
    if most >= cores.len() {
        eprintln!(
            "note: {most} threads of clients share {} cores",
            cores.len().max(2) - 1
        );
    }
    let nic = Nic::open(&args.rdma.nic, &args.rdma.port)?;
    let mut command = part_of("kv", "serve", &args.rdma.nic, &args.rdma.port)?;
    command
        .args(["--listen", "127.0.0.1:0", "--resp", "127.0.0.1:0", "--rdma"])
        .args(["--store", "--until-eof", "--keys", &args.keys.to_string()])
        .args(["--value-size", &args.value_size.to_string()])
        .stdin(Stdio::piped());
    let (_server, mut said) = start::<Line>(command, &placement.server, "server")?;
    let (tcp, rdma) = said.expect_some(|line| match line {
        Line::Listening { resp, rdma, .. } => Some((resp?, rdma?)),
        _ => None,
    })?;
    let setup = Setup {
        args,
        cores: placement.clients.concat(),
        connector: Connector::new(&nic.context, Config::default())?,
        servers: [
            tcp.parse().map_err(|e: String| anyhow!(e))?,
            Address::Rdma(rdma.parse()?),
        ],
    };
    setup.fill()?;
    let name = |p: Point| format!("{}, {} connections", p.test(), p.connections);
    let rounds = interleaved(args.rounds, &points, args.json, name, |round, point| {
        setup.round(round, point)
    })?;
    let rows = points.iter().map(|&point| row(point, &rounds));
    let rows = rows.collect::<Result<Vec<_>>>()?;
    if args.json {
        for row in &rows {
            print_typed("row", row)?;
        }
    } else {
        show(args, placement.bounce_ns()?, &rows)?;
    }
    if let Some(file) = &args.rdma.svg {
        write_file(file, &picture(args, &rows))?;
    }
    Ok(Outcome::Done)
}

/// Returns all settings to measure; a thread has at least one connection.
fn points(args: &Args) -> Vec<Point> {
    let threads = match args.rdma.threads.as_slice() {
        [] => &[1, 2, 4],
        given => given,
    };
    let connections = args.connections_or(&[1, 4, 16, 64]);
    let mut points = Vec::new();
    for pipeline in args.pipelines(&[1]) {
        for &threads in threads {
            for &connections in connections.iter().filter(|&&c| c >= threads) {
                points.extend([LoadCommand::Get, LoadCommand::Set].map(|command| Point {
                    command,
                    threads,
                    connections,
                    pipeline,
                }));
            }
        }
    }
    points
}

impl Setup<'_> {
    fn load(&self, point: Point, seed: u64) -> Load {
        Load {
            command: point.command,
            keys: self.args.keys,
            value_bytes: self.args.value_size,
            pipeline: point.pipeline,
            seed,
        }
    }

    /// Sets every key.
    fn fill(&self) -> Result<()> {
        let point = Point {
            command: LoadCommand::Set,
            threads: 1,
            connections: 1,
            pipeline: 1,
        };
        let [tcp, _] = &self.servers;
        let mut loader = Loader::connect(tcp, None, 1)?;
        let filled = loader.fill(&self.load(point, 0));
        filled.context("cannot set the keys")
    }

    fn round(&self, round: u32, point: Point) -> Result<Round> {
        let [tcp, rdma] = &self.servers;
        let measure = |server: &Address, name| -> Result<Figures> {
            let figures = self.measure(round, point, server);
            figures.with_context(|| format!("over {name}, {point:?}"))
        };
        Ok(Round {
            round,
            test: point.test(),
            threads: point.threads,
            connections: point.connections,
            pipeline: point.pipeline,
            tcp: measure(tcp, "TCP")?,
            rdma: measure(rdma, "RDMA")?,
            point,
        })
    }

    /// Sends requests for the time of a measurement, from all threads at once.
    fn measure(&self, round: u32, point: Point, server: &Address) -> Result<Figures> {
        let ready = Barrier::new(point.threads + 1);
        let stop = AtomicBool::new(false);
        let one = |thread: usize| -> Result<Measured> {
            let core = self.cores.get(thread % self.cores.len().max(1));
            let own = point.connections / point.threads
                + usize::from(thread < point.connections % point.threads);
            let connected = Loader::connect(server, Some(&self.connector), own);
            let seed = (u64::from(round) << 32) | thread as u64;
            // Report an error only after the barrier, so that no thread waits for a failed one.
            ready.wait();
            let mut loader = connected.context("cannot connect")?;
            let core = *core.context("no core to run on")?;
            pinned(core, || Ok(loader.run(&self.load(point, seed), &stop)?))
        };
        let measured = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..point.threads)
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
        let mut all: Option<Measured> = None;
        let mut per_s = 0.0;
        for one in measured {
            let one = one.map_err(|_| anyhow!("a thread of clients panicked"))??;
            #[allow(clippy::cast_precision_loss)] // far below 2^52
            let answers = one.answers as f64;
            per_s += answers / one.elapsed.max(Duration::from_nanos(1)).as_secs_f64();
            match &mut all {
                None => all = Some(one),
                Some(all) => {
                    all.answers += one.answers;
                    all.latency_ns.add(&one.latency_ns)?;
                }
            }
        }
        let all = all.context("nothing was measured")?;
        #[allow(clippy::cast_precision_loss)] // seconds, in nanoseconds
        let at = |quantile| all.latency_ns.value_at_quantile(quantile) as f64;
        Ok(Figures {
            per_s,
            ns_p50: at(0.5),
            ns_p99: at(0.99),
            verified: all.answers,
        })
    }
}

fn row(point: Point, rounds: &[Round]) -> Result<Row> {
    let own = || rounds.iter().filter(|r| r.point == point);
    let side = |of: fn(&Round) -> &Figures| -> Result<Side> {
        Ok(Side {
            per_s: spread(own().map(|r| of(r).per_s))?,
            ns_p50: spread(own().map(|r| of(r).ns_p50))?.median,
            ns_p99: spread(own().map(|r| of(r).ns_p99))?.median,
        })
    };
    Ok(Row {
        test: point.test(),
        threads: point.threads,
        connections: point.connections,
        pipeline: point.pipeline,
        tcp: side(|r| &r.tcp)?,
        rdma: side(|r| &r.rdma)?,
        ratio: spread(own().map(|r| r.rdma.per_s / r.tcp.per_s))?,
        verified: own().map(|r| r.tcp.verified + r.rdma.verified).sum(),
    })
}

fn show(args: &Args, bounce_ns: Option<f64>, rows: &[Row]) -> Result<()> {
    let bounce = bounce_ns.map_or_else(
        || "both sides share their only core".to_owned(),
        |ns| format!("a cache line takes {} ns between their cores", figure(ns)),
    );
    print(format_args!(
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
        let [ratio, min, max] = [row.ratio.median, row.ratio.min, row.ratio.max].map(figure);
        table.add_row([
            row.test.to_uppercase(),
            row.pipeline.to_string(),
            row.threads.to_string(),
            row.connections.to_string(),
            rate(row.tcp.per_s),
            rate(row.rdma.per_s),
            format!("{ratio} x ({min}..{max})"),
            time(row.tcp.ns_p50),
            time(row.tcp.ns_p99),
            time(row.rdma.ns_p50),
            time(row.rdma.ns_p99),
        ]);
    }
    print(table)?;
    let verified: u64 = rows.iter().map(|row| row.verified).sum();
    print(format_args!("\n{verified} answers, each of them right"))
}

/// Draws rates of GETs over the connections, for the fewest threads and the shortest pipeline.
fn picture(args: &Args, rows: &[Row]) -> String {
    let least = |of: fn(&Row) -> usize| rows.iter().map(of).min();
    let shown = rows.iter().filter(|row| {
        row.test == "get"
            && Some(row.threads) == least(|r| r.threads)
            && Some(row.pipeline) == least(|r| r.pipeline)
    });
    let curve = |name: &str, of: fn(&Row) -> &Side| {
        let points = shown
            .clone()
            .map(|row| spread_point(place(row.connections), of(row).per_s, 1e6));
        Series::new(name, points)
    };
    Chart {
        title: "GETs over RDMA and over TCP loopback".to_owned(),
        caption: format!("software NIC, values of {} bytes", args.value_size),
        x: Axis::log("connections"),
        y: Axis::linear("10⁶ GETs a second"),
        series: vec![curve("RDMA", |row| &row.rdma), curve("TCP", |row| &row.tcp)],
        levels: Vec::new(),
    }
    .svg()
}
