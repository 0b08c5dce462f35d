//! A profile of a NIC from measurements: streams that are bound by one number each, on the NIC itself or, to see that it
//! works, on a simulated one.
//!
//! What cannot be seen without hardware counters or a second machine (sizes of WQEs and PCIe headers, the work of programs)
//! is taken over from another profile, as assumed. On the software NIC all costs are those of software, and what comes out
//! describes that and no hardware.

mod about;
mod fit;
mod probes;
mod write;

use anyhow::{Context, Result, bail};
use nicmodel::Profile;
use nicmodel::profile::{LinkLayer, ProfileError};
use verbs::Provider;

pub use about::About;
pub use fit::Finding;
pub use probes::Sample;
use probes::{Probe, Results};

use crate::micro::{MAX_THREADS, Outcome, Runner, Stream, Task};
use crate::nic::NicChoice;

/// Where probes run.
pub trait Machine {
    /// What is known without measuring.
    ///
    /// # Errors
    /// When the device does not say.
    fn about(&self) -> Result<About>;

    /// Whether samples say what the NIC read.
    fn counts_reads(&self) -> bool;

    /// How long a measurement takes, in ms.
    fn duration_ms(&self) -> u64;

    /// Measures once.
    ///
    /// # Errors
    /// When the NIC cannot do that.
    fn measure(&mut self, stream: &Stream) -> Result<Sample>;
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Calibration {
    /// The profile.
    pub profile: Profile,
    /// The same as a file.
    pub text: String,
}

/// Measures all that a profile needs. `like` is the profile from which comes what cannot be measured; `done` is told of
/// each measurement, and how many there are.
///
/// # Errors
/// When nothing can be measured, or the profile that comes out is impossible.
pub fn calibrate(
    machine: &mut dyn Machine,
    like: &Profile,
    mut done: impl FnMut(usize),
) -> Result<Calibration> {
    let about = machine.about()?;
    let probes = Probe::all(machine.counts_reads());
    let mut results = Results::default();
    for probe in &probes {
        let stream = probe.stream(about.cores, machine.duration_ms())?;
        results.add(*probe, stream, machine.measure(&stream));
        done(probes.len());
    }
    if let Some(why) = results.nothing() {
        bail!("nothing could be measured: {why}");
    }
    let mut found = fit::fit(&results, like);
    loop {
        let text = write::profile(&about, &found, like);
        let problems = match Profile::parse(&text) {
            Ok(profile) => return Ok(Calibration { profile, text }),
            Err(ProfileError::Impossible(problems)) => problems,
            Err(error) => return Err(error).context("what was measured makes no profile"),
        };
        // A rate that something else binds can give a number that is none; each is given up once.
        let mut given_up = false;
        for problem in &problems {
            let finding = found.iter_mut().find(|(key, _)| *key == problem.key);
            if let Some((_, finding @ Finding::Fitted { .. })) = finding {
                let why = format!(
                    "what was measured gives a value that is none: {}",
                    problem.message
                );
                *finding = Finding::Hidden { why };
                given_up = true;
            }
        }
        if !given_up {
            return Err(ProfileError::Impossible(problems))
                .context("what was measured makes no profile");
        }
    }
}

/// A simulated NIC, of which all is known: what comes out can be compared.
#[derive(Debug)]
pub struct Simulated<'p>(pub &'p Profile);

impl Machine for Simulated<'_> {
    fn about(&self) -> Result<About> {
        let profile = self.0;
        let port = f64::from(profile.port.mtu_bytes.value);
        let inline = f64::from(profile.wqe.max_inline_bytes.value);
        let cores = profile.host.cores.value;
        let says = |what: &str| format!("{what} of the simulated machine");
        Ok(About {
            name: format!("{}-calibrated", profile.name).chars().take(32).collect(),
            title: format!("Calibrated on a simulated NIC: {}", profile.title),
            about: "Measured in virtual time on the NIC that the profile describes; to see that calibration works.".to_owned(),
            link_layer: profile.link_layer,
            said: vec![
                ("host.cores", f64::from(cores), says("ibv_devices")),
                ("port.mtu_bytes", port, says("ibv_query_port: active_mtu")),
                ("wqe.max_inline_bytes", inline, says("ibv_create_qp: max_inline_data")),
            ],
            cores: usize::try_from(cores)?,
        })
    }

    fn counts_reads(&self) -> bool {
        true
    }

    fn duration_ms(&self) -> u64 {
        1
    }

    fn measure(&mut self, stream: &Stream) -> Result<Sample> {
        let task = Task::Stream(*stream);
        let (outcome, counters) = crate::simulated::micro::run_counted(self.0, &task)?;
        let rate = rate(outcome)?;
        #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
        let lines = counters.read_bytes as f64 / f64::from(nicmodel::wqe::CACHE_LINE_BYTES);
        #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
        let lines_read = Some(lines / rate.verified_ops.max(1) as f64);
        Ok(Sample { rate, lines_read })
    }
}

/// A NIC of this machine.
#[derive(Debug)]
pub struct Real {
    nic: NicChoice,
    runner: Runner,
    duration_ms: u64,
    rounds: u32,
}

impl Real {
    /// One that is measured by `runner`, so long each time, in so many rounds of which the median counts.
    #[must_use]
    pub fn new(nic: NicChoice, runner: Runner, duration_ms: u64, rounds: u32) -> Real {
        Real {
            nic,
            runner,
            duration_ms,
            rounds,
        }
    }
}

/// What is measured on a NIC of this machine, in its order.
///
/// # Errors
/// When the system does not say how many cores there are.
pub fn tasks(duration_ms: u64) -> Result<Vec<Task>> {
    let cores = posting_cores()?;
    let task = |probe: Probe| Ok(Task::Stream(probe.stream(cores, duration_ms)?));
    Probe::all(false).into_iter().map(task).collect()
}

/// Half of the cores for each side, as far as there are two.
fn posting_cores() -> Result<usize> {
    Ok((crate::pin::allowed()?.len() / 2).clamp(1, MAX_THREADS))
}

impl Machine for Real {
    fn about(&self) -> Result<About> {
        let provider = Provider::by_name(&self.nic.provider)?;
        let context = provider.device(self.nic.device.as_deref())?.open()?;
        let port = context.query_port(self.nic.port_num)?;
        let capabilities = context.capabilities()?;
        let inline = capabilities.inline_bytes;
        let inline = [inline.rc, inline.uc, inline.ud]
            .into_iter()
            .filter(|bytes| *bytes > 0)
            .min();
        let cores = crate::pin::allowed()?.len();
        let cpu = crate::record::cpu();
        let device = context.device_name().to_owned();
        let software = self.nic.provider == "softnic";
        #[expect(clippy::cast_precision_loss, reason = "a small number")]
        let mut said = vec![
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
            // As far as WQEs of the profile that the rest is taken from have room.
            (
                "wqe.max_inline_bytes",
                f64::from(inline.unwrap_or(0).min(900)),
                "ibv_create_qp: max_inline_data, at most 900".to_owned(),
            ),
        ];
        said.extend(
            cpu.clock_ghz
                .map(|clock| ("host.clock_ghz", clock, "/proc/cpuinfo: cpu MHz".to_owned())),
        );
        Ok(About {
            name: name(&device),
            title: format!("{device} of {}, {}", self.nic.provider, cpu.model),
            about: if software {
                "Measured on the software NIC: what stands for the NIC here is code that the requester's processor runs."
            } else {
                "Measured between processes of one machine, both ends of which share the NIC and its PCIe link, unless the other side was on another host."
            }
            .to_owned(),
            link_layer: match port.link_layer {
                verbs::LinkLayer::InfiniBand => LinkLayer::Infiniband,
                _ => LinkLayer::Roce,
            },
            said,
            cores: posting_cores()?,
        })
    }

    fn counts_reads(&self) -> bool {
        false
    }

    fn duration_ms(&self) -> u64 {
        self.duration_ms
    }

    fn measure(&mut self, stream: &Stream) -> Result<Sample> {
        let mut rates = Vec::new();
        for _ in 0..self.rounds.max(1) {
            rates.push(rate(
                self.runner.measure(&self.nic, &Task::Stream(*stream))?,
            )?);
        }
        rates.sort_by(|one, other| one.rate_mops.total_cmp(&other.rate_mops));
        Ok(Sample {
            rate: rates[rates.len() / 2],
            lines_read: None,
        })
    }
}

/// A profile's name from a device's.
fn name(device: &str) -> String {
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

fn rate(outcome: Outcome) -> Result<crate::micro::Rate> {
    match outcome {
        Outcome::Rate(rate) => Ok(rate),
        Outcome::Latency(_) => anyhow::bail!("a stream gives a rate"),
    }
}
