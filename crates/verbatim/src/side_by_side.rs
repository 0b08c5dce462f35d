//! Functions that the comparison commands and the servers of all systems share.

use std::fmt::Display;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bench::core_pinning::allowed_cores;
use bench::simulated::UnknownCostsError;
use bench::stats::MedianAndSpread;
use serde::Serialize;
use service::{ConnectError, Server, ServerError, Service};

use crate::CommandOutcome;
use crate::children::ServerAndClientCores;
use crate::output::{self, format_three_digits, print_typed_json};
use crate::steps::CommandSteps;

/// Assigns cores to a server and its clients. Prints a note if the figures will be of little use.
pub(crate) fn assign_cores(
    workers: usize,
    clients: usize,
    threads: usize,
    who: &str,
) -> Result<ServerAndClientCores> {
    if cfg!(debug_assertions) {
        eprintln!("note: this is a debug build; its figures mean nothing (use --release)");
    }
    let cores = allowed_cores()?;
    let placement = ServerAndClientCores::new(&cores, workers, clients, threads);
    if placement.shares_cores() {
        eprintln!(
            "note: {} workers and {who} share {} cores: figures depend on who runs when",
            workers + clients * threads,
            cores.len()
        );
    }
    Ok(placement)
}

/// Refuses more than 64 client processes.
pub(crate) fn refuse_many_clients(clients: usize) -> Result<()> {
    if clients > 64 {
        bail!("--clients {clients} are too many processes; at most 64");
    }
    Ok(())
}

/// Refuses postlists that are longer than the window.
pub(crate) fn refuse_postlist_above_window(postlist: usize, window: usize) -> Result<()> {
    if postlist > window {
        bail!(
            "--postlist {postlist} is more than --window {window}: a client cannot post more than it may have \
             outstanding; lower one or raise the other"
        );
    }
    Ok(())
}

/// Runs all contenders once in each round, so that a temporary disturbance of the machine affects
/// all contenders alike. SIGINT ends the run early.
pub(crate) fn run_interleaved<T: Copy, R: Serialize>(
    rounds: u32,
    contenders: &[T],
    json: bool,
    name: impl Fn(T) -> String,
    mut one: impl FnMut(u32, T) -> Result<R>,
) -> Result<Vec<R>> {
    let steps = CommandSteps::new(u64::from(rounds) * contenders.len() as u64)?;
    let mut all = Vec::new();
    for round in 0..rounds {
        for &contender in contenders {
            let Some(done) =
                steps.run_unless_interrupted(name(contender), || one(round, contender))?
            else {
                return Ok(all);
            };
            if json {
                print_typed_json("round", &done)?;
            }
            all.push(done);
        }
    }
    Ok(all)
}

/// Runs setups on simulated NICs, one after the other, with a progress bar. A setup cannot run if
/// the profile lacks a cost, or the NIC lacks a verb. Such a setup is named on standard error with
/// the missing item.
///
/// # Errors
/// Returns the first error for another reason. If no setup ran, returns the error of the first setup
/// that cannot run.
pub(crate) fn run_simulations<S, R>(
    setups: Vec<S>,
    name: impl Fn(&S) -> String,
    mut one: impl FnMut(S, &[R]) -> Result<R>,
) -> Result<Vec<R>> {
    let steps = CommandSteps::new(setups.len() as u64)?;
    let (mut rows, mut not_possible) = (Vec::new(), Vec::new());
    for setup in setups {
        let name = name(&setup);
        let ran = steps.run_unless_interrupted(name.clone(), || match one(setup, &rows) {
            Err(error) if means_setup_not_possible(&error) => Ok(Err(error)),
            other => other.map(Ok),
        })?;
        match ran {
            Some(Ok(row)) => rows.push(row),
            Some(Err(error)) => not_possible.push((name, error)),
            None => break,
        }
    }
    drop(steps);
    if rows.is_empty() && !not_possible.is_empty() {
        let (_, error) = not_possible.remove(0);
        let why = error.root_cause().to_string();
        not_possible.retain(|(_, other)| other.root_cause().to_string() != why);
        print_setups_not_run(&not_possible);
        return Err(error);
    }
    print_setups_not_run(&not_possible);
    Ok(rows)
}

/// Prints the setups that did not run to standard error. Consecutive setups with the same reason
/// share one line.
fn print_setups_not_run(setups: &[(String, anyhow::Error)]) {
    let words: Vec<_> = setups
        .iter()
        .map(|(name, error)| (name.as_str(), error.root_cause().to_string()))
        .collect();
    for same in words.chunk_by(|(_, a), (_, b)| a == b) {
        if let [(first, why), ..] = same {
            let more = match same.len() {
                1 => String::new(),
                several => format!(" and {} more", several - 1),
            };
            eprintln!("note: not run: {first}{more}: {why}");
        }
    }
}

/// Returns true if the error concerns only this design, so that other designs may still run.
fn means_setup_not_possible(error: &anyhow::Error) -> bool {
    error.is::<UnknownCostsError>()
        || matches!(error.downcast_ref(), Some(ServerError::Unsupported(_)))
        || matches!(error.downcast_ref(), Some(ConnectError::Unsupported(_)))
}

/// Returns the spread of the figures; returns an error if `figures` is empty.
pub(crate) fn spread(figures: impl IntoIterator<Item = f64>) -> Result<MedianAndSpread> {
    let all: Vec<f64> = figures.into_iter().collect();
    MedianAndSpread::of(&all).context("nothing was measured")
}

/// Returns the outcome of a comparison.
pub(crate) fn outcome_of_comparison(verified: bool) -> CommandOutcome {
    if verified {
        CommandOutcome::Done
    } else {
        CommandOutcome::NegativeAnswer
    }
}

/// Formats a rate for a table: median, minimum and maximum, in 10^6 a second.
pub(crate) fn format_rate_mops(rate: MedianAndSpread) -> String {
    let [median, min, max] =
        [rate.median, rate.min, rate.max].map(|r| format_three_digits(r / 1e6));
    format!("{median} M ({min}..{max})")
}

/// Formats the result of a verification for a table.
pub(crate) fn yes_or_no(verified: bool) -> &'static str {
    if verified { "yes" } else { "NO" }
}

/// Formats a value for a table; an absent value is an empty cell.
pub(crate) fn format_or_empty<T, D: Display>(value: Option<T>, shown: impl Fn(T) -> D) -> String {
    value.map_or_else(String::new, |value| shown(value).to_string())
}

/// Formats a relative error for a table.
pub(crate) fn format_relative_error(error: Option<f64>) -> String {
    format_or_empty(error, |e| format!("{:+.1} %", 100.0 * e))
}

/// Waits until the server must stop, or has failed. Every second, the function calls `check`, whose
/// error ends the wait, and shows `message`. `done` returns the server's number of requests, from
/// which the function computes the rate in 10^6 a second.
pub(crate) fn show_rate_until_stop<S: Service>(
    (server, stop): (&Server<S>, &Receiver<()>),
    json: bool,
    check: impl Fn() -> Result<()>,
    done: impl Fn(&S::Stats) -> u64,
    message: impl Fn(&S::Stats, &str) -> String,
) -> Result<()> {
    let bar = output::activity_display(json);
    let (mut before, mut since) = (done(&server.stats()), Instant::now());
    while stop.recv_timeout(Duration::from_secs(1)) == Err(RecvTimeoutError::Timeout) {
        if let Some(failure) = server.failure() {
            bar.finish_and_clear();
            bail!("a worker ended: {failure}");
        }
        check()?;
        if bar.is_hidden() {
            continue;
        }
        let stats = server.stats();
        let now = done(&stats);
        #[allow(clippy::cast_precision_loss)] // far below 2^52 in a second
        let rate = now.saturating_sub(before) as f64 / since.elapsed().as_secs_f64();
        bar.set_message(message(&stats, &format_three_digits(rate / 1e6)));
        (before, since) = (now, Instant::now());
    }
    bar.finish_and_clear();
    Ok(())
}

/// Returns the outcome of a serving command.
pub(crate) fn serving_outcome(failure: Option<String>) -> Result<CommandOutcome> {
    match failure {
        Some(failure) => bail!("a worker ended: {failure}"),
        None => Ok(CommandOutcome::Done),
    }
}
