//! The reports of clients and servers, which are sent as JSON.

use serde::{Deserialize, Serialize};
use service::LatencySummary;

use crate::{Design, NumberSet};

/// The end of a client's run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunLimit {
    /// After this many milliseconds.
    DurationMs(u64),
    /// After this many numbers.
    Count(u64),
}

/// Counts of failures; all zero in a good run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailureCounts {
    /// Requests that got no answer in time. Each may have used up a number that no client got.
    pub lost: u64,
    /// Answers that were dropped because they matched no request, or arrived out of order.
    pub discarded: u64,
    /// Number of sessions that were reopened after a failure.
    pub reconnects: u64,
    /// Requests that the server refused because the numbers are used up.
    pub refused: u64,
    /// The reason why the run ended early, if it did.
    #[serde(rename = "ended")]
    pub end_reason: Option<String>,
}

/// The results of one client.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ClientReport {
    /// The design.
    pub design: Design,
    /// Largest number of outstanding requests.
    pub window: usize,
    /// Number of values that the client got.
    #[serde(rename = "requests")]
    pub received_number_count: u64,
    /// Seconds from the first request to the last answer.
    pub seconds: f64,
    /// Numbers per second.
    pub rate: f64,
    /// Latencies from the doorbell of a postlist to its last answer.
    pub latency: LatencySummary,
    /// Doorbells for requests.
    pub doorbells: u64,
    /// Wrong speculations on the upper four bytes (`spec-s0`).
    pub wrong_guesses: u64,
    /// Numbers that were not greater than all numbers the client had when it sent the request; must be 0.
    #[serde(rename = "not_increasing")]
    pub not_increasing_numbers: u64,
    /// Numbers that this client got twice; must be 0.
    pub duplicates: u64,
    /// Counts of failures.
    pub failures: FailureCounts,
    /// The numbers.
    #[serde(rename = "numbers")]
    pub number_set: NumberSet,
}

/// Statistics of a server since its start.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerStats {
    /// Requests that workers answered; with `atomics`, numbers taken from the counter.
    pub requests: u64,
    /// Doorbells for answers; 0 with `atomics`.
    pub doorbells: u64,
    /// Histogram of the lengths of answer postlists: how many had 1, 2, 3 … work requests.
    #[serde(rename = "postlists")]
    pub answer_postlists_by_length: Vec<u64>,
    /// Datagrams from senders that are not registered clients.
    #[serde(rename = "strangers")]
    pub datagrams_from_unknown_senders: u64,
    /// Number of clients that are connected.
    #[serde(rename = "clients")]
    pub connected_clients: u64,
    /// Number of clients that have ever connected.
    pub clients_total: u64,
    /// The first number that this server could give.
    #[serde(rename = "start")]
    pub first_number: u64,
    /// The next number that the server will give.
    #[serde(rename = "next")]
    pub next_number: u64,
}
