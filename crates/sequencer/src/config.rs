//! Designs and configurations.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use rpc::NicConfig;
use serde::{Deserialize, Serialize};
use verbs::{Capabilities, Capability, Lack};

/// How clients get numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Design {
    /// RC fetch-and-add on the server's counter; the server's CPU does nothing.
    Atomics,
    /// HERD RPC: requests are UC WRITEs, each response is a UD SEND with its own doorbell.
    Rpc,
    /// HERD RPC with batches: one atomic add and one doorbell for up to [`ServerConfig::batch`] requests.
    RpcBatch,
    /// The same, batches rotating over [`ServerConfig::queues`] UD queue pairs. Answers to requests that are
    /// outstanding together may overtake each other; a request that is sent after an answer came still
    /// gets a larger number.
    RpcBatchMq,
    /// Header-only UD SENDs both ways: the client speculates the upper four bytes.
    SpecS0,
}

impl Design {
    /// All designs, in the order of the paper.
    pub const ALL: [Self; 5] = [
        Self::Atomics,
        Self::Rpc,
        Self::RpcBatch,
        Self::RpcBatchMq,
        Self::SpecS0,
    ];

    /// Its name, as on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Atomics => "atomics",
            Self::Rpc => "rpc",
            Self::RpcBatch => "rpc-batch",
            Self::RpcBatchMq => "rpc-batch-mq",
            Self::SpecS0 => "spec-s0",
        }
    }

    /// What it does, in a line.
    pub fn summary(self) -> &'static str {
        match self {
            Self::Atomics => "RC fetch-and-add on the server's counter",
            Self::Rpc => "HERD RPC: UC WRITE in, UD SEND out, a doorbell a response",
            Self::RpcBatch => "HERD RPC, one atomic add and one doorbell a batch",
            Self::RpcBatchMq => "HERD RPC, batches rotate over several UD queue pairs",
            Self::SpecS0 => "header-only UD SENDs both ways, speculating the upper 4 bytes",
        }
    }

    /// What it needs of a device, at the server and at clients.
    pub fn needs(self) -> &'static [Capability] {
        match self {
            // READs fetch the limit.
            Self::Atomics => &[Capability::Rc, Capability::RdmaRead, Capability::Atomics],
            Self::Rpc | Self::RpcBatch | Self::RpcBatchMq => rpc::herd::NEEDS,
            // Idle workers sleep until a datagram comes.
            Self::SpecS0 => &[
                Capability::Ud,
                Capability::Immediates,
                Capability::CompletionEvents,
            ],
        }
    }

    /// Whether it runs on a device.
    ///
    /// # Errors
    /// Says what the device lacks and why, and which designs run there.
    pub fn check(self, device: &Capabilities) -> Result<(), Unsupported> {
        let lacks = device.lacks_of(self.needs());
        if lacks.is_empty() {
            return Ok(());
        }
        Err(Unsupported {
            design: self,
            device: device.device.clone(),
            provider: device.provider,
            lacks,
            runnable: Self::runnable(device),
        })
    }

    /// The designs that run on a device.
    pub fn runnable(device: &Capabilities) -> Vec<Self> {
        let runs = |design: &Self| device.lacks_of(design.needs()).is_empty();
        Self::ALL.into_iter().filter(runs).collect()
    }

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

impl fmt::Display for Design {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Design {
    type Err = String;
    fn from_str(s: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|d| d.name() == s)
            .ok_or_else(|| {
                let names: Vec<_> = Self::ALL.iter().map(|d| d.name()).collect();
                format!(
                    "no design is called {s:?}: the designs are {}",
                    names.join(", ")
                )
            })
    }
}

/// A design that a device cannot run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Unsupported {
    /// The design.
    pub design: Design,
    /// The device.
    pub device: String,
    /// Its provider.
    pub provider: &'static str,
    /// What the design needs and the device does not have; never empty.
    pub lacks: Vec<Lack>,
    /// The designs that run there.
    pub runnable: Vec<Design>,
}

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.lacks.iter().map(|l| l.capability.name()).collect();
        let why: Vec<_> = match &self.lacks[..] {
            [only] => vec![only.why.clone()],
            several => several
                .iter()
                .map(|l| format!("{}: {}", l.capability, l.why))
                .collect(),
        };
        let runnable: Vec<_> = self.runnable.iter().map(|d| d.name()).collect();
        write!(
            f,
            "design {} needs {}, which {} ({}) does not have ({}); designs that run there: {}",
            self.design,
            names.join(" and "),
            self.device,
            self.provider,
            why.join("; "),
            if runnable.is_empty() {
                "none".to_owned()
            } else {
                runnable.join(", ")
            },
        )
    }
}

impl std::error::Error for Unsupported {}

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

    pub(crate) fn check(&self) -> Result<(), String> {
        let range = |name: &str, value: usize, max: usize| {
            if (1..=max).contains(&value) {
                Ok(())
            } else {
                Err(format!("{name} is {value}: it must be 1 to {max}"))
            }
        };
        range("workers", self.workers, 64)?;
        range("batch", self.batch, rpc::MAX_BATCH)?;
        if let Some(answers) = self.answers {
            range("answers", answers, self.batch)?;
            if self.design != Design::SpecS0 {
                return Err("answers to a doorbell are those of a batch but in spec-s0".to_owned());
            }
        }
        range("queues", self.queues(), 64)?;
        range("max_clients", self.max_clients, crate::counter::MAX_CLIENTS)?;
        range("max_window", self.max_window, crate::counter::MAX_WINDOW)?;
        range("recv_depth", self.recv_depth as usize, 1 << 20)?;
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
            deadline_ms: 1_000,
            reconnect_ms: 10_000,
            latency_digits: 3,
        }
    }
}

impl ClientConfig {
    pub(crate) fn check(&self) -> Result<(), String> {
        if !(1..=crate::counter::MAX_WINDOW).contains(&self.window) {
            return Err(format!(
                "window is {}: it must be 1 to {}",
                self.window,
                crate::counter::MAX_WINDOW
            ));
        }
        if !(1..=rpc::MAX_BATCH).contains(&self.batch) {
            return Err(format!(
                "batch is {}: it must be 1 to {}",
                self.batch,
                rpc::MAX_BATCH
            ));
        }
        if !(1..=5).contains(&self.latency_digits) {
            return Err(format!(
                "latency_digits is {}: it must be 1 to 5",
                self.latency_digits
            ));
        }
        Ok(())
    }

    pub(crate) fn deadline(&self) -> Duration {
        Duration::from_millis(self.deadline_ms.max(1))
    }

    pub(crate) fn reconnect(&self) -> Duration {
        Duration::from_millis(self.reconnect_ms)
    }
}

#[cfg(test)]
mod tests {
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
    }
}
