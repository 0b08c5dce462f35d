//! What clients and servers report: everything here travels as JSON.

use serde::{Deserialize, Serialize};
use service::Latency;

use crate::{Design, NumberSet};

/// Until when a client runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Until {
    /// For a time in milliseconds.
    DurationMs(u64),
    /// Until it has got so many numbers.
    Count(u64),
}

/// What went wrong, in numbers; all zero in a good run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failures {
    /// Requests that got no answer in time. Each may have used up a number that nobody got.
    pub lost: u64,
    /// Answers that were dropped because they could not be matched to a request, or came out of order.
    pub discarded: u64,
    /// Sessions that had to be opened again.
    pub reconnects: u64,
    /// Requests that the server refused because the numbers are used up.
    pub refused: u64,
    /// Why the run ended early, if it did.
    pub ended: Option<String>,
}

/// What a client did.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ClientReport {
    /// The design.
    pub design: Design,
    /// Requests outstanding at most.
    pub window: usize,
    /// Numbers it got.
    pub requests: u64,
    /// How long it took, in seconds, from the first request to the last answer.
    pub seconds: f64,
    /// Numbers a second.
    pub rate: f64,
    /// Latencies: from the doorbell of a postlist to the last answer of it.
    pub latency: Latency,
    /// Doorbells that the requests took.
    pub doorbells: u64,
    /// Speculations on the upper four bytes that were wrong (`spec-s0`).
    pub wrong_guesses: u64,
    /// Numbers that were not above all numbers that the client had when it asked. 0 or the server is broken.
    pub not_increasing: u64,
    /// Numbers that this client got twice. 0 or the server is broken.
    pub duplicates: u64,
    /// Failures.
    pub failures: Failures,
    /// The numbers.
    pub numbers: NumberSet,
}

/// What a server did so far.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerStats {
    /// Requests that workers answered; with `atomics` the numbers taken from the counter.
    pub requests: u64,
    /// Doorbells that the answers took; with `atomics` 0.
    pub doorbells: u64,
    /// How many postlists of answers had 1, 2, 3 … WRs.
    pub postlists: Vec<u64>,
    /// Datagrams of nobody who is registered.
    pub strangers: u64,
    /// Clients that are connected.
    pub clients: u64,
    /// Clients that have ever connected.
    pub clients_total: u64,
    /// The first number this server could give.
    pub start: u64,
    /// The next number it will give.
    pub next: u64,
}
