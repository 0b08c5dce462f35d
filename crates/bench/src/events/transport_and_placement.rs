//! Transports and placements that are measured.

use serde::{Deserialize, Serialize};

/// Transport of the requests and answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    /// SENDs over RC; each side sleeps on the completion channel of its receive CQ.
    Verbs,
    /// A TCP connection over loopback, with `TCP_NODELAY`.
    Tcp,
    /// A Unix domain stream socket.
    Unix,
}

impl Transport {
    /// All transports.
    pub const ALL: [Transport; 3] = [Transport::Verbs, Transport::Tcp, Transport::Unix];

    /// Returns the name for printed tables.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Transport::Verbs => "verbs",
            Transport::Tcp => "TCP loopback",
            Transport::Unix => "Unix socket",
        }
    }
}

/// Cores on which the two processes run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CorePlacement {
    /// Each process on a core of its own.
    TwoCores,
    /// Both processes on the requester's core: each wake-up is a switch to the other process.
    OneCore,
}

impl CorePlacement {
    /// Both placements.
    pub const ALL: [CorePlacement; 2] = [CorePlacement::TwoCores, CorePlacement::OneCore];

    /// Returns the name for printed tables.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            CorePlacement::TwoCores => "two cores",
            CorePlacement::OneCore => "one core",
        }
    }
}
