//! What is measured: which transport, and where the processes run.

use serde::{Deserialize, Serialize};

/// How requests and answers travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    /// SENDs over RC; each side sleeps on the completion channel of its receive CQ.
    Verbs,
    /// A TCP connection over loopback, with `TCP_NODELAY`.
    Tcp,
    /// A stream socket of the Unix domain.
    Unix,
}

impl Transport {
    /// All of them.
    pub const ALL: [Transport; 3] = [Transport::Verbs, Transport::Tcp, Transport::Unix];

    /// In words.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Transport::Verbs => "verbs",
            Transport::Tcp => "TCP loopback",
            Transport::Unix => "Unix socket",
        }
    }
}

/// Where the two processes run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Placement {
    /// Each on a core of its own.
    TwoCores,
    /// Both on the requester's core: a wake-up is a switch to the other process.
    OneCore,
}

impl Placement {
    /// Both of them.
    pub const ALL: [Placement; 2] = [Placement::TwoCores, Placement::OneCore];

    /// In words.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Placement::TwoCores => "two cores",
            Placement::OneCore => "one core",
        }
    }
}
