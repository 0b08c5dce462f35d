//! Functions that the comparison commands and the servers of all systems share.

use std::fmt::Display;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bench::pin::allowed;
use bench::simulated::UnknownCosts;
use bench::stats::Spread;
use serde::Serialize;
use service::{ConnectError, Server, ServerError, Service};

use crate::Outcome;
use crate::children::Placement;
use crate::output::{self, figure, print_typed};
use crate::progress::progress;
use crate::stop;

/// Assigns cores to a server and its clients. Prints a note if the figures will mean little.
pub(crate) fn place(
    workers: usize,
    clients: usize,
    threads: usize,
    who: &str,
) -> Result<Placement> {
    if cfg!(debug_assertions) {
        eprintln!("note: this is a debug build; its figures mean nothing (use --release)");
    }
    let cores = allowed()?;
    let placement = Placement::new(&cores, workers, clients, threads);
    if placement.is_shared() {
        eprintln!(
            "note: {} workers and {who} share {} cores: figures depend on who runs when",
            workers + clients * threads,
            cores.len()
        );
    }
    Ok(placement)
}

/// Refuses more than 64 client processes.
pub(crate) fn check_clients(clients: usize) -> Result<()> {
    if clients > 64 {
        bail!("--clients {clients} are too many processes; at most 64");
    }
    Ok(())
}

/// Refuses postlists that are longer than the window.
pub(crate) fn check_postlist(postlist: usize, window: usize) -> Result<()> {
    if postlist > window {
        bail!(
            "--postlist {postlist} is more than --window {window}: a client cannot post more than it may have \
             outstanding; lower one or raise the other"
        );
    }
    Ok(())
}

/// Runs all contenders once in each round, so that a temporary disturbance of the machine affects
/// all alike. SIGINT ends the run early.
pub(crate) fn interleaved<T: Copy, R: Serialize>(
    rounds: u32,
    contenders: &[T],
    json: bool,
    name: impl Fn(T) -> String,
    mut one: impl FnMut(u32, T) -> Result<R>,
) -> Result<Vec<R>> {
    let steps = u64::from(rounds) * contenders.len() as u64;
    stop::end_early_on_interrupt(steps)?;
    let bar = progress(steps);
    let mut all = Vec::new();
    for round in 0..rounds {
        for &contender in contenders {
            bar.set_message(name(contender));
            let done = one(round, contender);
            // The terminal sends SIGINT to the other processes, too, so the step fails.
            if stop::is_interrupted() && done.is_err() {
                return Ok(all);
            }
            let done = done?;
            if json {
                print_typed("round", &done)?;
            }
            all.push(done);
            bar.inc(1);
            stop::step_done();
            if stop::is_interrupted() {
                return Ok(all);
            }
        }
    }
    bar.finish_and_clear();
    Ok(all)
}

/// Runs setups on simulated NICs, one after the other, with a progress bar. Some setups cannot run:
/// the profile lacks a cost, or the NIC lacks a verb. Such setups are named on stderr with the
/// missing item.
///
/// # Errors
/// Any other error of a setup, or the first "cannot run" error if no setup ran.
pub(crate) fn simulated<S, R>(
    setups: Vec<S>,
    name: impl Fn(&S) -> String,
    mut one: impl FnMut(S, &[R]) -> Result<R>,
) -> Result<Vec<R>> {
    stop::end_early_on_interrupt(setups.len() as u64)?;
    let bar = progress(setups.len() as u64);
    let (mut rows, mut not_possible) = (Vec::new(), Vec::new());
    for setup in setups {
        let name = name(&setup);
        bar.set_message(name.clone());
        match one(setup, &rows) {
            Ok(row) => rows.push(row),
            Err(error) if is_not_possible(&error) => not_possible.push((name, error)),
            Err(error) => return Err(error),
        }
        bar.inc(1);
        stop::step_done();
        if stop::is_interrupted() {
            break;
        }
    }
    bar.finish_and_clear();
    if rows.is_empty() && !not_possible.is_empty() {
        let (_, error) = not_possible.remove(0);
        let why = error.root_cause().to_string();
        not_possible.retain(|(_, other)| other.root_cause().to_string() != why);
        tell_not_run(&not_possible);
        return Err(error);
    }
    tell_not_run(&not_possible);
    Ok(rows)
}

/// Names the setups that did not run on stderr, with one line for consecutive setups with the same
/// reason.
fn tell_not_run(setups: &[(String, anyhow::Error)]) {
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
fn is_not_possible(error: &anyhow::Error) -> bool {
    error.is::<UnknownCosts>()
        || matches!(error.downcast_ref(), Some(ServerError::Unsupported(_)))
        || matches!(error.downcast_ref(), Some(ConnectError::Unsupported(_)))
}

/// Returns the spread of the figures; fails without any figure.
pub(crate) fn spread(figures: impl IntoIterator<Item = f64>) -> Result<Spread> {
    let all: Vec<f64> = figures.into_iter().collect();
    Spread::of(&all).context("nothing was measured")
}

/// Returns the outcome of a comparison.
pub(crate) fn outcome(verified: bool) -> Outcome {
    if verified { Outcome::Done } else { Outcome::No }
}

/// Formats a rate for a table: median, minimum and maximum, in 10^6 a second.
pub(crate) fn rate(rate: Spread) -> String {
    let [median, min, max] = [rate.median, rate.min, rate.max].map(|r| figure(r / 1e6));
    format!("{median} M ({min}..{max})")
}

/// Formats the result of a verification for a table.
pub(crate) fn yes_or_no(verified: bool) -> &'static str {
    if verified { "yes" } else { "NO" }
}

/// Formats a value for a table; an absent value is an empty cell.
pub(crate) fn or_nothing<T, D: Display>(value: Option<T>, shown: impl Fn(T) -> D) -> String {
    value.map_or_else(String::new, |value| shown(value).to_string())
}

/// Formats a relative error for a table.
pub(crate) fn relative_error(error: Option<f64>) -> String {
    or_nothing(error, |e| format!("{:+.1} %", 100.0 * e))
}

/// Waits until the server should stop, or has failed. Every second, calls `check`, whose error ends
/// the wait, and shows `message`. `done` is the server's count of requests, from which the rate in
/// 10^6 a second is computed.
pub(crate) fn wait<S: Service>(
    (server, stop): (&Server<S>, &Receiver<()>),
    json: bool,
    check: impl Fn() -> Result<()>,
    done: impl Fn(&S::Stats) -> u64,
    message: impl Fn(&S::Stats, &str) -> String,
) -> Result<()> {
    let bar = output::activity(json);
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
        bar.set_message(message(&stats, &figure(rate / 1e6)));
        (before, since) = (now, Instant::now());
    }
    bar.finish_and_clear();
    Ok(())
}

/// Returns the outcome of a serving command.
pub(crate) fn served(failure: Option<String>) -> Result<Outcome> {
    match failure {
        Some(failure) => bail!("a worker ended: {failure}"),
        None => Ok(Outcome::Done),
    }
}
