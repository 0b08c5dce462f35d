//! One run of one design: a server process, its client processes, and the check of their numbers.

use std::process::{Command, Stdio};

use anyhow::{Result, bail};
use bench::peers::KillOnDrop;
use sequencer::{ClientReport, Design, NumberChecker, NumberVerdict, ServerStats};
use serde::Serialize;

use super::arguments::Args;
use super::json_lines::ServeOrClientLine;
use crate::children::{ChildLines, ServerAndClientCores, start_on_cores, subcommand_with_nic};

/// The results of one design in one round.
#[derive(Debug, Serialize)]
pub(super) struct Round {
    pub(super) round: u32,
    pub(super) design: Design,
    /// The time that a cache line takes from the first client's core to the server's, measured just
    /// before the round. Null if both share a core.
    pub(super) bounce_ns: Option<f64>,
    pub(super) requests: u64,
    pub(super) rate_per_s: f64,
    pub(super) latency_ns_p50: u64,
    pub(super) latency_ns_p99: u64,
    pub(super) client_doorbells: u64,
    pub(super) server_doorbells: u64,
    pub(super) wrong_guesses: u64,
    #[serde(rename = "lost")]
    pub(super) lost_requests: u64,
    pub(super) verdict: NumberVerdict,
}

/// Runs one design once: starts a server and its clients, and checks the clients' numbers.
pub(super) fn run_design_once(
    args: &Args,
    placement: &ServerAndClientCores,
    round: u32,
    design: Design,
) -> Result<Round> {
    let bounce_ns = placement.measure_cache_line_transfer_ns()?;
    let (mut server, mut server_lines) = start_server(args, &placement.server, design)?;
    let ServeOrClientLine::Listening { address, next, .. } = server_lines.next_line_or_error()?
    else {
        bail!("the server did not say where it listens");
    };
    let mut clients = Vec::new();
    for cores in &placement.clients {
        clients.push(start_client(args, cores, &address)?);
    }
    let mut checker = NumberChecker::new(next);
    let mut reports = Vec::new();
    for (number, (_child, lines)) in clients.iter_mut().enumerate() {
        while let Some(line) = lines.next_line()? {
            if let ServeOrClientLine::Report(report) = line {
                checker.add_report(&format!("client {number}"), &report);
                reports.push(*report);
            }
        }
    }
    // The server ends when its standard input ends.
    drop(server.0.stdin.take());
    let ServeOrClientLine::Stats(stats) = server_lines.next_line_or_error()? else {
        bail!("the server did not say what it did");
    };
    let wanted = args.clients() * args.threads;
    if reports.len() != wanted {
        bail!(
            "{} of {wanted} clients reported; messages of the others are above",
            reports.len()
        );
    }
    Ok(summarize_reports(
        round,
        design,
        bounce_ns,
        &reports,
        &stats,
        checker.verdict(Some(stats.next_number)),
    ))
}

fn summarize_reports(
    round: u32,
    design: Design,
    bounce_ns: Option<f64>,
    reports: &[ClientReport],
    stats: &ServerStats,
    verdict: NumberVerdict,
) -> Round {
    let mut medians: Vec<u64> = reports.iter().map(|r| r.latency.p50_ns).collect();
    medians.sort_unstable();
    Round {
        round,
        design,
        bounce_ns,
        requests: reports.iter().map(|r| r.received_number_count).sum(),
        rate_per_s: reports.iter().map(|r| r.rate).sum(),
        latency_ns_p50: medians[medians.len() / 2],
        latency_ns_p99: reports.iter().map(|r| r.latency.p99_ns).max().unwrap_or(0),
        client_doorbells: reports.iter().map(|r| r.doorbells).sum(),
        server_doorbells: stats.doorbells,
        wrong_guesses: reports.iter().map(|r| r.wrong_guesses).sum(),
        lost_requests: reports.iter().map(|r| r.failures.lost).sum(),
        verdict,
    }
}

fn start_server(
    args: &Args,
    cores: &[usize],
    design: Design,
) -> Result<(KillOnDrop, ChildLines<ServeOrClientLine>)> {
    let mut command = sequencer_subcommand_with_nic("serve", args)?;
    command
        .args([
            "--design",
            design.name(),
            "--listen",
            "127.0.0.1:0",
            "--until-eof",
        ])
        .args(["--workers", &args.workers.to_string()])
        .args(["--batch", &args.batch().to_string()])
        .args(args.queues.map(|n| format!("--queues={n}")))
        .args(["--start", &args.start.to_string()])
        .args([
            "--max-clients",
            &(args.clients() * args.threads).to_string(),
        ])
        .stdin(Stdio::piped());
    start_on_cores(command, cores, "server")
}

fn start_client(
    args: &Args,
    cores: &[usize],
    address: &str,
) -> Result<(KillOnDrop, ChildLines<ServeOrClientLine>)> {
    let mut command = sequencer_subcommand_with_nic("client", args)?;
    command
        .arg(address)
        .args(["--threads", &args.threads.to_string()])
        .args(["--window", &args.window().to_string()])
        .args(["--postlist", &args.postlist.to_string()])
        .args(["--duration", &format!("{}ms", args.duration().as_millis())])
        .stdin(Stdio::null());
    start_on_cores(command, cores, "client")
}

fn sequencer_subcommand_with_nic(name: &str, args: &Args) -> Result<Command> {
    subcommand_with_nic("sequencer", name, &args.nic, &args.port)
}
