//! Designs, and the configurations of servers and clients.

use std::path::PathBuf;
use std::time::Duration;

use rpc::herd::RequestsPerClient;
use serde::{Deserialize, Serialize};
use service::config::check_in_range;
use service::{NicConfig, UnsupportedDesign};
use verbs::{Capabilities, Capability};

service::designs! {
    /// The way in which clients get numbers.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum Design {
        /// RC fetch-and-add on the server's counter, without work for the server's processor.
        Atomics: "atomics", "RC fetch-and-add on the server's counter",
            // READs fetch the limit.
            [&[Capability::Rc, Capability::RdmaRead, Capability::Atomics]];
        /// HERD RPC: requests are UC WRITEs, and each response is a UD SEND with its own doorbell.
        Rpc: "rpc", "HERD RPC: UC WRITE in, UD SEND out, a doorbell a response", [rpc::herd::NEEDED_CAPABILITIES];
        /// HERD RPC with batches: one atomic add and one doorbell for up to [`ServerConfig::batch`] requests.
        RpcBatch: "rpc-batch", "HERD RPC, one atomic add and one doorbell a batch", [rpc::herd::NEEDED_CAPABILITIES];
        /// As `RpcBatch`, with batches rotating over [`ServerConfig::ud_qps_per_worker`] UD queue pairs. Answers to
        /// concurrent requests may overtake each other. A request that is sent after an answer arrived still gets a
        /// larger number.
        RpcBatchMq: "rpc-batch-mq", "HERD RPC, batches rotate over several UD queue pairs", [rpc::herd::NEEDED_CAPABILITIES];
        /// Header-only UD SENDs in both directions: the client speculates on the upper four bytes.
        SpecS0: "spec-s0", "header-only UD SENDs both ways, speculating the upper 4 bytes",
            // Idle workers sleep until a datagram arrives.
            [&[Capability::Ud, Capability::Immediates, Capability::CompletionEvents]];
    }
}

impl Design {
    /// Returns the default number of UD queue pairs of a worker. A NIC serves one queue pair with one processing unit
    /// at a time; on the software NIC more queue pairs bring no gain.
    pub fn default_queues_per_worker(self) -> usize {
        match self {
            Self::RpcBatchMq => 3,
            _ => 1,
        }
    }

    /// Returns the first number that the design refuses to give: see [`crate::counter`].
    pub fn end_of_numbers(self) -> u64 {
        match self {
            Self::Atomics => crate::counter::ATOMICS_END_OF_NUMBERS,
            _ => crate::counter::END_OF_NUMBERS,
        }
    }
}

/// The rule by which a client sends its next requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WindowPolicy {
    /// Sends a full postlist as soon as the window has room for one, and a shorter one if no answer has arrived for a
    /// while.
    #[default]
    FullPostlists,
    /// Sends at once as many requests as were answered since the last time. The `rdma_bench` benchmark of header-only
    /// sequencers, by the authors of the design, does this.
    AsAnswered,
    /// Sends a whole window when all earlier requests are answered. The same authors' benchmark of sequencers over RPC
    /// does this.
    StopAndGo,
}

/// Configuration of a server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ServerConfig {
    /// The server's TCP address for clients; port 0 takes a free port.
    pub listen: String,
    /// The NIC.
    pub nic: NicConfig,
    /// The design.
    pub design: Design,
    /// Number of worker threads, 1 to 64; `atomics` has none.
    pub workers: usize,
    /// Largest number of requests in a batch, 1 to 64; the design `rpc` always uses 1.
    pub batch: usize,
    /// Largest number of answers per doorbell in the design `spec-s0`, 1 to `batch`; `None` stands for `batch`. With
    /// fewer, numbers are still taken from the counter for a whole batch at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(rename = "answers")]
    pub max_answers_per_doorbell: Option<usize>,
    /// UD queue pairs of each worker, 1 to 64; [`Design::default_queues_per_worker`] if `None`. HERD's batches rotate
    /// over them. In the design `spec-s0` each has its own clients.
    #[serde(rename = "queues")]
    pub ud_qps_per_worker: Option<usize>,
    /// Number of requests that a worker takes from each client per pass, in the `rpc` designs.
    #[serde(skip_serializing_if = "is_default")]
    #[serde(rename = "scan")]
    pub request_region_scan: RequestsPerClient,
    /// Number of queue pairs over which a batch's answers are divided, by client, in the `rpc` designs: a power of two
    /// that divides `ud_qps_per_worker`. Each has its own doorbell. See
    /// [`rpc::herd::BatchPolicy::answer_qps_per_batch`].
    #[serde(skip_serializing_if = "is_one")]
    #[serde(rename = "split")]
    pub qps_per_answer_batch: usize,
    /// `spec-s0`: true if all requests to a worker arrive at one queue pair, and its answers rotate over `ud_qps_per_worker` queue
    /// pairs. Answers may then overtake each other.
    #[serde(skip_serializing_if = "is_default")]
    #[serde(rename = "rotate")]
    pub rotates_answer_qps: bool,
    /// Largest number of outstanding SENDs per queue pair of a worker, 64 to 32,768. At this limit the worker waits.
    #[serde(skip_serializing_if = "is_default_send_depth")]
    pub send_depth: u32,
    /// Largest number of clients connected at the same time, 1 to 16,384.
    pub max_clients: usize,
    /// The largest window a client may ask for, 1 to 4096.
    pub max_window: usize,
    /// RECVs that each queue pair keeps posted in the design `spec-s0`; they limit the sum of its clients' windows.
    pub recv_depth: u32,
    /// The first number, unless the state file has a higher one.
    pub start: u64,
    /// The state file for safe restarts, which records the numbers that may have been given.
    #[serde(rename = "state")]
    pub state_path: Option<PathBuf>,
    /// Number of values reserved ahead in the state file; a restart skips at most this many.
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
            max_answers_per_doorbell: None,
            ud_qps_per_worker: None,
            request_region_scan: RequestsPerClient::default(),
            qps_per_answer_batch: 1,
            rotates_answer_qps: false,
            send_depth: DEFAULT_SEND_DEPTH,
            max_clients: 64,
            max_window: 1024,
            recv_depth: 1024,
            start: 0,
            state_path: None,
            reserve: 1 << 24,
        }
    }
}

impl ServerConfig {
    /// Returns the number of UD queue pairs of each worker.
    pub fn queues_per_worker(&self) -> usize {
        self.ud_qps_per_worker
            .unwrap_or(self.design.default_queues_per_worker())
    }
}

impl service::ServerConfig for ServerConfig {
    fn check(&self) -> Result<(), String> {
        check_in_range("workers", self.workers, 1..=64)?;
        check_in_range("batch", self.batch, 1..=rpc::MAX_BATCH)?;
        if let Some(answers) = self.max_answers_per_doorbell {
            check_in_range("answers", answers, 1..=self.batch)?;
            if self.design != Design::SpecS0 {
                return Err("answers to a doorbell are those of a batch but in spec-s0".to_owned());
            }
        }
        check_in_range("queues", self.queues_per_worker(), 1..=64)?;
        if !self.qps_per_answer_batch.is_power_of_two()
            || !self
                .queues_per_worker()
                .is_multiple_of(self.qps_per_answer_batch)
        {
            return Err(format!(
                "split is {}: it must be a power of two that divides the {} queues",
                self.qps_per_answer_batch,
                self.queues_per_worker()
            ));
        }
        check_in_range(
            "max_clients",
            self.max_clients,
            1..=crate::counter::MAX_CLIENTS,
        )?;
        check_in_range(
            "max_window",
            self.max_window,
            1..=crate::counter::MAX_WINDOW,
        )?;
        check_in_range("send_depth", self.send_depth as usize, 64..=1 << 15)?;
        check_in_range("recv_depth", self.recv_depth as usize, 1..=1 << 20)?;
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

    fn check_device(&self, device: &Capabilities) -> Result<(), UnsupportedDesign> {
        self.design.check(device)
    }

    fn listen_address(&self) -> &str {
        &self.listen
    }

    fn nic(&self) -> &NicConfig {
        &self.nic
    }

    fn max_window(&self) -> usize {
        self.max_window
    }
}

/// Configuration of a client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClientConfig {
    /// The server's TCP address.
    pub server: String,
    /// The NIC.
    pub nic: NicConfig,
    /// The design; the server's if `None`.
    pub design: Option<Design>,
    /// Largest number of outstanding requests, 1 to 4096.
    pub window: usize,
    /// Largest number of requests in a postlist, 1 to 64, and at most the window.
    pub batch: usize,
    /// The rule by which the next requests are sent.
    #[serde(skip_serializing_if = "is_default")]
    #[serde(rename = "policy")]
    pub window_policy: WindowPolicy,
    /// `rpc` designs: true if requests go to all workers in turn over one queue pair, instead of to the worker that the
    /// server assigned. The window then covers all workers together.
    #[serde(skip_serializing_if = "is_default")]
    #[serde(rename = "spread")]
    pub requests_rotate_over_workers: bool,
    /// Milliseconds without any answer after which outstanding requests count as lost.
    #[serde(rename = "deadline_ms")]
    pub answer_timeout_ms: u64,
    /// Milliseconds for which the client retries to reach the server.
    #[serde(rename = "reconnect_ms")]
    pub reconnect_timeout_ms: u64,
    /// Significant digits of latencies, 1 to 5. Each further digit needs about ten times the memory, which matters with
    /// thousands of clients in one process.
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
            window_policy: WindowPolicy::default(),
            requests_rotate_over_workers: false,
            answer_timeout_ms: 1_000,
            reconnect_timeout_ms: 10_000,
            latency_digits: 3,
        }
    }
}

impl ClientConfig {
    pub(crate) fn check(&self) -> Result<(), String> {
        check_in_range("window", self.window, 1..=crate::counter::MAX_WINDOW)?;
        check_in_range("batch", self.batch, 1..=rpc::MAX_BATCH)?;
        check_in_range("latency_digits", self.latency_digits.into(), 1..=5)
    }

    pub(crate) fn answer_timeout(&self) -> Duration {
        Duration::from_millis(self.answer_timeout_ms.max(1))
    }

    pub(crate) fn reconnect_timeout(&self) -> Duration {
        Duration::from_millis(self.reconnect_timeout_ms)
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Default of [`ServerConfig::send_depth`].
const DEFAULT_SEND_DEPTH: u32 = 512;

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_default_send_depth(depth: &u32) -> bool {
    *depth == DEFAULT_SEND_DEPTH
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
            qps_per_answer_batch: 2,
            ..ServerConfig::default()
        };
        assert_eq!(
            bad.check(),
            Err("split is 2: it must be a power of two that divides the 3 queues".to_owned())
        );
    }
}
