//! Designs and configurations.

use std::path::PathBuf;
use std::time::Duration;

use rpc::herd::Scan;
use serde::{Deserialize, Serialize};
use service::config::in_range;
use service::{NicConfig, Unsupported};
use verbs::{Capabilities, Capability};

service::designs! {
    /// How clients get numbers.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum Design {
        /// RC fetch-and-add on the server's counter; the server's CPU does nothing.
        Atomics: "atomics", "RC fetch-and-add on the server's counter",
            // READs fetch the limit.
            [&[Capability::Rc, Capability::RdmaRead, Capability::Atomics]];
        /// HERD RPC: requests are UC WRITEs, each response is a UD SEND with its own doorbell.
        Rpc: "rpc", "HERD RPC: UC WRITE in, UD SEND out, a doorbell a response", [rpc::herd::NEEDS];
        /// HERD RPC with batches: one atomic add and one doorbell for up to [`ServerConfig::batch`] requests.
        RpcBatch: "rpc-batch", "HERD RPC, one atomic add and one doorbell a batch", [rpc::herd::NEEDS];
        /// The same, batches rotating over [`ServerConfig::queues`] UD queue pairs. Answers to requests that are
        /// outstanding together may overtake each other; a request that is sent after an answer came still
        /// gets a larger number.
        RpcBatchMq: "rpc-batch-mq", "HERD RPC, batches rotate over several UD queue pairs", [rpc::herd::NEEDS];
        /// Header-only UD SENDs both ways: the client speculates the upper four bytes.
        SpecS0: "spec-s0", "header-only UD SENDs both ways, speculating the upper 4 bytes",
            // Idle workers sleep until a datagram comes.
            [&[Capability::Ud, Capability::Immediates, Capability::CompletionEvents]];
    }
}

impl Design {
    /// UD queue pairs of a worker, unless told otherwise. On a NIC one queue pair is served by one processing
    /// unit; on the software NIC more of them bring nothing.
    pub fn queues(self) -> usize {
        match self {
            Self::RpcBatchMq => 3,
            _ => 1,
        }
    }

    /// The first number that it refuses to give: see [`crate::counter`].
    pub fn end_of_numbers(self) -> u64 {
        match self {
            Self::Atomics => crate::counter::ATOMICS_END,
            _ => crate::counter::END,
        }
    }
}

/// When a client sends its next requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WindowPolicy {
    /// A full postlist as soon as the window has room for one; a shorter one when no answer has come for a while.
    #[default]
    FullPostlists,
    /// As many as were answered since the last time, at once. The benchmark of header-only sequencers by the design's
    /// authors (`rdma_bench`) does this.
    AsAnswered,
    /// A whole window when everything before it is answered: nothing is sent while the last answers are awaited. The same
    /// authors' benchmark of sequencers over RPC does this.
    StopAndGo,
}

/// How a server runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ServerConfig {
    /// The TCP address where clients find it; port 0 takes a free one.
    pub listen: String,
    /// The NIC.
    pub nic: NicConfig,
    /// The design.
    pub design: Design,
    /// Worker threads, 1 to 64; `atomics` has none.
    pub workers: usize,
    /// Requests of one batch, 1 to 64; 1 in the design `rpc`.
    pub batch: usize,
    /// Answers to a doorbell in the design `spec-s0`, 1 to the batch, which it is if `None`: with fewer, numbers are
    /// still taken from the counter for a whole batch at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answers: Option<usize>,
    /// UD queue pairs of a worker, 1 to 64: HERD's batches rotate over them, and each has clients of its own in
    /// the design `spec-s0`. [`Design::queues`] if `None`.
    pub queues: Option<usize>,
    /// How many requests a pass of a worker takes from each client in the `rpc` designs.
    #[serde(skip_serializing_if = "is_default")]
    pub scan: Scan,
    /// Queue pairs that the answers of a batch are divided over in the `rpc` designs, by the client: a power of two that
    /// divides `queues`. Each has a doorbell of its own. See [`rpc::herd::Doorbells::split`].
    #[serde(skip_serializing_if = "is_one")]
    pub split: usize,
    /// Whether all requests to a worker come to one queue pair, and its answers rotate over its `queues`, in the design
    /// `spec-s0`. Answers may then overtake each other.
    #[serde(skip_serializing_if = "is_default")]
    pub rotate: bool,
    /// SENDs that a queue pair of a worker may have under way, 64 to 32,768. A worker waits while there are as many.
    #[serde(skip_serializing_if = "is_usual_depth")]
    pub send_depth: u32,
    /// Clients at the same time, 1 to 256.
    pub max_clients: usize,
    /// The largest window a client may ask for, 1 to 4096.
    pub max_window: usize,
    /// RECVs that a queue pair keeps posted in the design `spec-s0`: the sum of its clients' windows, at most.
    pub recv_depth: u32,
    /// The first number, if the state file does not say a higher one.
    pub start: u64,
    /// Where the numbers that may have been given are kept, for a safe restart.
    pub state: Option<PathBuf>,
    /// How many numbers are reserved ahead in the state file; at most so many are skipped at a restart.
    pub reserve: u64,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:0".to_owned(),
            nic: NicConfig::default(),
            design: Design::SpecS0,
            workers: 1,
            batch: 64,
            answers: None,
            queues: None,
            scan: Scan::default(),
            split: 1,
            rotate: false,
            send_depth: SEND_DEPTH,
            max_clients: 64,
            max_window: 1024,
            recv_depth: 1024,
            start: 0,
            state: None,
            reserve: 1 << 24,
        }
    }
}

impl ServerConfig {
    /// UD queue pairs of a worker.
    pub fn queues(&self) -> usize {
        self.queues.unwrap_or(self.design.queues())
    }
}

impl service::ServerConfig for ServerConfig {
    fn check(&self) -> Result<(), String> {
        in_range("workers", self.workers, 1..=64)?;
        in_range("batch", self.batch, 1..=rpc::MAX_BATCH)?;
        if let Some(answers) = self.answers {
            in_range("answers", answers, 1..=self.batch)?;
            if self.design != Design::SpecS0 {
                return Err("answers to a doorbell are those of a batch but in spec-s0".to_owned());
            }
        }
        in_range("queues", self.queues(), 1..=64)?;
        if !self.split.is_power_of_two() || !self.queues().is_multiple_of(self.split) {
            return Err(format!(
                "split is {}: it must be a power of two that divides the {} queues",
                self.split,
                self.queues()
            ));
        }
        in_range(
            "max_clients",
            self.max_clients,
            1..=crate::counter::MAX_CLIENTS,
        )?;
        in_range(
            "max_window",
            self.max_window,
            1..=crate::counter::MAX_WINDOW,
        )?;
        in_range("send_depth", self.send_depth as usize, 64..=1 << 15)?;
        in_range("recv_depth", self.recv_depth as usize, 1..=1 << 20)?;
        if self.reserve < 1024 {
            return Err(format!(
                "reserve is {}: it must be 1024 or more",
                self.reserve
            ));
        }
        let end = self.design.end_of_numbers();
        if self.start > end {
            return Err(format!(
                "start is {}: design {} gives numbers below {end}",
                self.start, self.design
            ));
        }
        Ok(())
    }

    fn check_device(&self, device: &Capabilities) -> Result<(), Unsupported> {
        self.design.check(device)
    }

    fn listen(&self) -> &str {
        &self.listen
    }

    fn nic(&self) -> &NicConfig {
        &self.nic
    }

    fn max_window(&self) -> usize {
        self.max_window
    }
}

/// How a client runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClientConfig {
    /// The server's TCP address.
    pub server: String,
    /// The NIC.
    pub nic: NicConfig,
    /// The design; the server's if `None`.
    pub design: Option<Design>,
    /// Requests outstanding, 1 to 4096.
    pub window: usize,
    /// Requests of one postlist, 1 to 64, and at most the window.
    pub batch: usize,
    /// When the next requests are sent.
    #[serde(skip_serializing_if = "is_default")]
    pub policy: WindowPolicy,
    /// Whether requests go to all workers in turn, over one queue pair, instead of to the worker that the server chose. In
    /// the `rpc` designs only; the window is that of all workers together.
    #[serde(skip_serializing_if = "is_default")]
    pub spread: bool,
    /// How long a request may go without any answer coming before it counts as lost, in milliseconds.
    pub deadline_ms: u64,
    /// How long to try to reach a server that is gone, in milliseconds.
    pub reconnect_ms: u64,
    /// Significant digits of latencies, 1 to 5. Each takes some ten times the memory of the one before, which thousands
    /// of clients in one process feel.
    pub latency_digits: u8,
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self {
            server: String::new(),
            nic: NicConfig::default(),
            design: None,
            window: 64,
            batch: 16,
            policy: WindowPolicy::default(),
            spread: false,
            deadline_ms: 1_000,
            reconnect_ms: 10_000,
            latency_digits: 3,
        }
    }
}

impl ClientConfig {
    pub(crate) fn check(&self) -> Result<(), String> {
        in_range("window", self.window, 1..=crate::counter::MAX_WINDOW)?;
        in_range("batch", self.batch, 1..=rpc::MAX_BATCH)?;
        in_range("latency_digits", self.latency_digits.into(), 1..=5)
    }

    pub(crate) fn deadline(&self) -> Duration {
        Duration::from_millis(self.deadline_ms.max(1))
    }

    pub(crate) fn reconnect(&self) -> Duration {
        Duration::from_millis(self.reconnect_ms)
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// SENDs that a queue pair may have under way, unless told otherwise.
const SEND_DEPTH: u32 = 512;

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_usual_depth(depth: &u32) -> bool {
    *depth == SEND_DEPTH
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_one(value: &usize) -> bool {
    *value == 1
}

#[cfg(test)]
mod tests {
    use service::ServerConfig as _;

    use super::*;

    #[test]
    fn designs_parse_by_the_name_they_print() {
        for d in Design::ALL {
            assert_eq!(d.to_string().parse(), Ok(d));
            assert_eq!(
                serde_json::to_string(&d).expect("a string"),
                format!("\"{d}\"")
            );
        }
        assert!(
            "spec"
                .parse::<Design>()
                .expect_err("unknown")
                .contains("rpc-batch-mq")
        );
    }

    #[test]
    fn limits_are_named() {
        let bad = ServerConfig {
            workers: 0,
            ..ServerConfig::default()
        };
        assert_eq!(
            bad.check(),
            Err("workers is 0: it must be 1 to 64".to_owned())
        );
        let bad = ServerConfig {
            start: u64::MAX,
            design: Design::Atomics,
            ..ServerConfig::default()
        };
        assert!(bad.check().is_err());
        let bad = ServerConfig {
            design: Design::RpcBatchMq,
            split: 2,
            ..ServerConfig::default()
        };
        assert_eq!(
            bad.check(),
            Err("split is 2: it must be a power of two that divides the 3 queues".to_owned())
        );
    }
}
