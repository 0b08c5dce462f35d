//! Builds the profile of a NIC from measurements. Each measured stream is limited by one number of
//! the profile. The streams run on a real NIC or, to test the calibration, on a simulated one.
//!
//! Some numbers cannot be measured without hardware counters or a second machine: sizes of WQEs and
//! PCIe headers, and the work of programs. They are copied from another profile and marked as
//! assumed. On the software NIC all costs are costs of software, and the resulting profile
//! describes no hardware.

mod fit;
mod machine_facts;
mod probes;
mod write_profile;

use anyhow::{Context, Result, bail};
use nicmodel::Profile;
use nicmodel::profile::{LinkLayer, ProfileError};
use verbs::Provider;

pub use fit::NumberFitOutcome;
pub use machine_facts::MachineFacts;
pub use probes::MeasuredRate;
use probes::{ProbeResults, ProbedStream};

use crate::micro::{MAX_THREADS, MeasurementTask, TaskResult, VerbStream, WorkerPool};
use crate::open_nic::NicChoice;

/// Machine on which probes run.
pub trait CalibrationTarget {
    /// Returns the facts about the machine that need no measurement.
    ///
    /// # Errors
    /// When the device or the system does not report them.
    fn facts(&self) -> Result<MachineFacts>;

    /// Returns true if samples include the cache lines that the NIC read.
    fn counts_cache_line_reads(&self) -> bool;

    /// Returns the duration of one measurement, in ms.
    fn measurement_duration_ms(&self) -> u64;

    /// Measures a stream once.
    ///
    /// # Errors
    /// When the NIC cannot run the stream.
    fn measure_stream(&mut self, stream: &VerbStream) -> Result<MeasuredRate>;
}

/// Result of a calibration.
#[derive(Clone, Debug)]
pub struct CalibrationResult {
    /// Calibrated profile.
    pub profile: Profile,
    /// Text of the profile's file.
    pub profile_toml: String,
}

/// Returns the number of measurements of a calibration.
#[must_use]
pub fn measurement_count(machine: &dyn CalibrationTarget) -> usize {
    ProbedStream::all_with_read_windows_if_lines_counted(machine.counts_cache_line_reads()).len()
}

/// Measures all numbers that a profile needs and returns the profile. Numbers that cannot be
/// measured come from the profile `like`, and so do the remaining ones once `should_end` returns
/// true.
///
/// # Errors
/// When nothing can be measured, or the resulting profile is impossible.
pub fn calibrate(
    machine: &mut dyn CalibrationTarget,
    like: &Profile,
    should_end: impl Fn() -> bool,
) -> Result<CalibrationResult> {
    let facts = machine.facts()?;
    let probes =
        ProbedStream::all_with_read_windows_if_lines_counted(machine.counts_cache_line_reads());
    let mut results = ProbeResults::default();
    for probe in &probes {
        if should_end() {
            break;
        }
        let stream = probe
            .verb_stream_to_run(facts.posting_core_count, machine.measurement_duration_ms())?;
        let sample = machine.measure_stream(&stream);
        if sample.is_err() && should_end() {
            break;
        }
        results.add(*probe, stream, sample);
    }
    if let Some(why) = results.first_failure_if_none_succeeded() {
        bail!("nothing could be measured: {why}");
    }
    let mut findings = fit::fit_all_numbers(&results, like);
    loop {
        let text = write_profile::profile_toml(&facts, &findings, like);
        let problems = match Profile::parse(&text) {
            Ok(profile) => {
                return Ok(CalibrationResult {
                    profile,
                    profile_toml: text,
                });
            }
            Err(ProfileError::Impossible(problems)) => problems,
            Err(error) => return Err(error).context("what was measured makes no profile"),
        };
        // If another resource limits a stream, its rate can give an impossible number. Each such
        // number is replaced by the one of `like`.
        let mut given_up = false;
        for problem in &problems {
            let finding = findings.iter_mut().find(|(key, _)| *key == problem.key);
            if let Some((_, finding @ NumberFitOutcome::Fitted { .. })) = finding {
                let why = format!(
                    "what was measured gives a value that is none: {}",
                    problem.message
                );
                *finding = NumberFitOutcome::NotFitted { reason: why };
                given_up = true;
            }
        }
        if !given_up {
            return Err(ProfileError::Impossible(problems))
                .context("what was measured makes no profile");
        }
    }
}

/// A simulated NIC, whose numbers are known: the calibrated profile can be compared with the
/// original.
#[derive(Debug)]
pub struct SimulatedMachine<'p>(pub &'p Profile);

impl CalibrationTarget for SimulatedMachine<'_> {
    fn facts(&self) -> Result<MachineFacts> {
        let profile = self.0;
        let port = f64::from(profile.port.mtu_bytes.value);
        let inline = f64::from(profile.wqe.max_inline_bytes.value);
        let cores = profile.host.cores.value;
        let says = |what: &str| format!("{what} of the simulated machine");
        Ok(MachineFacts {
            profile_name: format!("{}-calibrated", profile.name).chars().take(32).collect(),
            profile_title: format!("Calibrated on a simulated NIC: {}", profile.title),
            remarks: "Measured in virtual time on the NIC that the profile describes; to see that calibration works.".to_owned(),
            link_layer: profile.link_layer,
            published_numbers: vec![
                ("host.cores", f64::from(cores), says("ibv_devices")),
                ("port.mtu_bytes", port, says("ibv_query_port: active_mtu")),
                ("wqe.max_inline_bytes", inline, says("ibv_create_qp: max_inline_data")),
            ],
            posting_core_count: usize::try_from(cores)?,
        })
    }

    fn counts_cache_line_reads(&self) -> bool {
        true
    }

    fn measurement_duration_ms(&self) -> u64 {
        1
    }

    fn measure_stream(&mut self, stream: &VerbStream) -> Result<MeasuredRate> {
        let task = MeasurementTask::Stream(*stream);
        let (outcome, counters) = crate::simulated::micro::run_with_nic_counters(self.0, &task)?;
        let rate = expect_stream_rate(outcome)?;
        #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
        let lines = counters.dma_read_bytes as f64 / f64::from(nicmodel::wqe::CACHE_LINE_BYTES);
        #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
        let lines_read = Some(lines / rate.verified_ops.max(1) as f64);
        Ok(MeasuredRate {
            stream_rate: rate,
            cache_lines_read_per_wr: lines_read,
        })
    }
}

/// A NIC of this machine, real or software.
#[derive(Debug)]
pub struct LocalMachine {
    nic: NicChoice,
    worker_pool: WorkerPool,
    measurement_duration_ms: u64,
    rounds_per_stream: u32,
}

impl LocalMachine {
    /// Creates a machine that `runner` measures. Each stream runs for `duration_ms` in each of
    /// `rounds` rounds, and the median counts.
    #[must_use]
    pub fn new(nic: NicChoice, runner: WorkerPool, duration_ms: u64, rounds: u32) -> LocalMachine {
        LocalMachine {
            nic,
            worker_pool: runner,
            measurement_duration_ms: duration_ms,
            rounds_per_stream: rounds,
        }
    }
}

/// Returns the tasks that are measured on a NIC of this machine, in their order.
///
/// # Errors
/// When the system does not report the number of cores.
pub fn measurement_tasks(duration_ms: u64) -> Result<Vec<MeasurementTask>> {
    let cores = posting_core_count()?;
    let task = |probe: ProbedStream| {
        Ok(MeasurementTask::Stream(
            probe.verb_stream_to_run(cores, duration_ms)?,
        ))
    };
    ProbedStream::all_with_read_windows_if_lines_counted(false)
        .into_iter()
        .map(task)
        .collect()
}

/// Returns the number of posting cores: half of the allowed cores, at least 1.
fn posting_core_count() -> Result<usize> {
    Ok((crate::core_pinning::allowed_cores()?.len() / 2).clamp(1, MAX_THREADS))
}

impl CalibrationTarget for LocalMachine {
    fn facts(&self) -> Result<MachineFacts> {
        let provider = Provider::by_name(&self.nic.provider)?;
        let context = provider.device(self.nic.device.as_deref())?.open()?;
        let port = context.query_port(self.nic.port_num)?;
        let capabilities = context.capabilities()?;
        let inline = capabilities.max_inline_bytes;
        let inline = [inline.rc, inline.uc, inline.ud]
            .into_iter()
            .filter(|bytes| *bytes > 0)
            .min();
        let cores = crate::core_pinning::allowed_cores()?.len();
        let cpu = crate::run_circumstances::read_cpu_properties();
        let device = context.device_name().to_owned();
        let software = self.nic.provider == "softnic";
        #[expect(clippy::cast_precision_loss, reason = "a small number")]
        let mut published = vec![
            (
                "host.cores",
                cores as f64,
                "sched_getaffinity(2)".to_owned(),
            ),
            (
                "port.mtu_bytes",
                f64::from(port.active_mtu.bytes()),
                "ibv_query_port: active_mtu".to_owned(),
            ),
            // At most 900 bytes: the WQEs of the profile `like` have no more room.
            (
                "wqe.max_inline_bytes",
                f64::from(inline.unwrap_or(0).min(900)),
                "ibv_create_qp: max_inline_data, at most 900".to_owned(),
            ),
        ];
        published.extend(
            cpu.clock_ghz
                .map(|clock| ("host.clock_ghz", clock, "/proc/cpuinfo: cpu MHz".to_owned())),
        );
        Ok(MachineFacts {
            profile_name: profile_name_from_device_name(&device),
            profile_title: format!("{device} of {}, {}", self.nic.provider, cpu.model),
            remarks: if software {
                "Measured on the software NIC: what stands for the NIC here is code that the requester's processor runs."
            } else {
                "Measured between processes of one machine, both ends of which share the NIC and its PCIe link, unless the other side was on another host."
            }
            .to_owned(),
            link_layer: match port.link_layer {
                verbs::LinkLayer::InfiniBand => LinkLayer::Infiniband,
                _ => LinkLayer::Roce,
            },
            published_numbers: published,
            posting_core_count: posting_core_count()?,
        })
    }

    fn counts_cache_line_reads(&self) -> bool {
        false
    }

    fn measurement_duration_ms(&self) -> u64 {
        self.measurement_duration_ms
    }

    fn measure_stream(&mut self, stream: &VerbStream) -> Result<MeasuredRate> {
        let mut rates = Vec::new();
        for _ in 0..self.rounds_per_stream.max(1) {
            rates.push(expect_stream_rate(
                self.worker_pool
                    .measure(&self.nic, &MeasurementTask::Stream(*stream))?,
            )?);
        }
        rates.sort_by(|one, other| one.rate_mops.total_cmp(&other.rate_mops));
        Ok(MeasuredRate {
            stream_rate: rates[rates.len() / 2],
            cache_lines_read_per_wr: None,
        })
    }
}

/// Makes a profile's name from a device's name.
fn profile_name_from_device_name(device: &str) -> String {
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_".contains(c);
    let name: String = device
        .to_lowercase()
        .chars()
        .filter(|c| fits(*c))
        .take(32)
        .collect();
    if name.is_empty() {
        "nic".to_owned()
    } else {
        name
    }
}

fn expect_stream_rate(outcome: TaskResult) -> Result<crate::micro::StreamRate> {
    match outcome {
        TaskResult::Rate(rate) => Ok(rate),
        TaskResult::Latency(_) => anyhow::bail!("a stream gives a rate"),
    }
}
