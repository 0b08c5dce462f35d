//! Circumstances that are recorded with a result.

use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::core_pinning::CorePair;

/// The circumstances of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunCircumstances<S = crate::setup::BenchSettings> {
    /// Seconds since 1970.
    pub started_unix_s: u64,
    /// Commit that the program was built from, with `-dirty` if files were changed.
    pub commit: String,
    /// Compiler version.
    pub rustc: String,
    /// True if the build was optimised.
    pub optimised: bool,
    /// CPU model, as the kernel names it.
    pub cpu_model: String,
    /// Number of online CPUs.
    pub cpus: usize,
    /// Kernel release.
    pub kernel: String,
    /// Load average over the minute before; 0 means an idle machine.
    #[serde(rename = "load_before")]
    pub load_average_before: f64,
    /// Cores of the two processes.
    pub cores: CorePair,
    /// Provider of the verbs, which determines the kind of the figures.
    pub provider: String,
    /// Device name.
    pub device: String,
    /// Parameters of the measurement: rounds, sizes and depths.
    pub settings: S,
    /// Command line.
    pub command: Vec<String>,
}

impl<S> RunCircumstances<S> {
    /// Creates a record and reads the machine's properties from the system.
    #[must_use]
    pub fn new(
        cores: CorePair,
        provider: String,
        device: String,
        settings: S,
    ) -> RunCircumstances<S> {
        RunCircumstances {
            started_unix_s: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |since| since.as_secs()),
            commit: env!("VERBATIM_COMMIT").to_owned(),
            rustc: env!("VERBATIM_RUSTC").to_owned(),
            optimised: !cfg!(debug_assertions),
            cpu_model: read_cpu_properties().model,
            cpus: std::thread::available_parallelism().map_or(0, usize::from),
            kernel: read_file_or_empty("/proc/sys/kernel/osrelease")
                .trim()
                .to_owned(),
            load_average_before: read_file_or_empty("/proc/loadavg")
                .split_whitespace()
                .next()
                .and_then(|load| load.parse().ok())
                .unwrap_or(f64::NAN),
            cores,
            provider,
            device,
            settings,
            command: std::env::args().collect(),
        }
    }
}

/// Properties of the first CPU in `/proc/cpuinfo`.
pub(crate) struct CpuProperties {
    /// Model, as the kernel names it.
    pub(crate) model: String,
    /// Clock in GHz, if the kernel reports it.
    pub(crate) clock_ghz: Option<f64>,
}

pub(crate) fn read_cpu_properties() -> CpuProperties {
    let info = read_file_or_empty("/proc/cpuinfo");
    let of = |key: &str| {
        let mut lines = info.lines();
        let value = lines.find_map(|line| Some(line.strip_prefix(key)?.split_once(':')?.1));
        value.map(|value| value.trim().to_owned())
    };
    CpuProperties {
        model: of("model name").unwrap_or_else(|| "unknown".to_owned()),
        clock_ghz: of("cpu MHz").and_then(|mhz| Some(mhz.parse::<f64>().ok()? / 1e3)),
    }
}

fn read_file_or_empty(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}
