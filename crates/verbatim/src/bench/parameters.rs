//! Command-line arguments of the measurements of one verb.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use bench::micro::{
    MAX_ATOMIC_COUNTERS, MAX_COUNTER_SPACING_BYTES, MAX_PAYLOAD_BYTES, MAX_QUEUE_PAIRS_PER_THREAD,
    MAX_THREADS, MAX_WINDOW, MeasuredRole, MicroParameters, RegionPageSize, Verb, VerbStream,
};
use bench::open_nic::NicChoice;
use clap::ValueEnum;
use nicmodel::Profile;

use super::common::{CoresArgs, nic_choice};
use super::measurement_sides::TwoHostArgs;
use crate::args::{self, NicArgs, PortArgs};
use crate::picture::PictureArgs;
use crate::sweeps::profiles;

/// Arguments of every measurement of one verb.
#[derive(clap::Args)]
pub(super) struct CommonArgs {
    /// Bytes of payload, also with K (KiB) or M (MiB) behind; SENDs take 0 for header-only messages
    /// [default: 8]
    #[arg(long, value_name = "BYTES", value_parser = args::byte_count_parser_up_to(MAX_PAYLOAD_BYTES))]
    payload: Option<usize>,
    /// SENDs with an immediate and nothing else, the same as --payload 0
    #[arg(long, conflicts_with_all = ["payload", "inline"])]
    header_only: bool,
    /// Payload inside the work request [default: up to 64 bytes]
    #[arg(long, conflicts_with = "no_inline")]
    inline: bool,
    /// Payload from registered memory, however short
    #[arg(long)]
    no_inline: bool,
    /// How long a round takes [default: 500ms; on a simulated NIC 1ms of virtual time, more with long payloads]
    #[arg(long, value_name = "TIME", value_parser = args::parse_duration_from_10us)]
    duration: Option<Duration>,
    /// Rounds, whose median is printed
    #[arg(long, value_name = "N", default_value = "5", value_parser = args::integer_parser_in_range("a count of rounds", 1..=1000u32))]
    pub(super) rounds: u32,
    #[command(flatten)]
    pub(super) cores: CoresArgs,
    /// Print one JSON object per line: record, sample, result
    #[arg(long)]
    pub(super) json: bool,
    /// Keep the run record with all raw samples in this file, as JSON lines
    #[arg(long, value_name = "FILE")]
    pub(super) record: Option<PathBuf>,
    #[command(flatten)]
    pub(super) picture: PictureArgs,
    #[command(flatten)]
    pub(super) nic: NicArgs,
    #[command(flatten)]
    port: PortArgs,
    #[command(flatten)]
    pub(super) simulation: SimulationArgs,
    #[command(flatten)]
    pub(super) ends: TwoHostArgs,
}

/// Arguments that run a measurement on a simulated NIC.
#[derive(clap::Args)]
#[command(next_help_heading = "Simulation")]
pub(super) struct SimulationArgs {
    /// Run on simulated machines with this NIC, in virtual time: cx, cx3, cib, or a profile's file; sweep compares
    /// several. One round is measured: the others would be the same
    #[arg(long = "nic", id = "simulated_nic", value_name = "NAME", conflicts_with_all = args::REAL_NIC_ARG_GROUPS, conflicts_with_all = ["nic_file", "rounds", "cores", "listen", "connect"])]
    names: Vec<String>,
    /// The same with a NIC of your own, described by a profile (verbatim model --template)
    #[arg(long = "nic-file", id = "nic_file", value_name = "FILE", conflicts_with_all = args::REAL_NIC_ARG_GROUPS, conflicts_with_all = ["rounds", "cores", "listen", "connect"])]
    file: Option<PathBuf>,
}

impl SimulationArgs {
    pub(super) fn is_asked_for(&self) -> bool {
        !self.names.is_empty() || self.file.is_some()
    }

    /// Returns the profile of the simulated NIC, if one was asked for.
    pub(super) fn profile(&self) -> Result<Option<Profile>> {
        let mut all = self.profiles()?;
        if all.len() > 1 {
            bail!("one --nic at a time; `verbatim bench sweep` compares several");
        }
        Ok(all.pop())
    }

    /// Returns the profiles of all simulated NICs that were asked for.
    pub(super) fn profiles(&self) -> Result<Vec<Profile>> {
        if !self.is_asked_for() {
            return Ok(Vec::new());
        }
        profiles(&self.names, self.file.as_ref())
    }
}

impl CommonArgs {
    /// Returns the choice of the NIC that is measured.
    pub(super) fn nic_choice(&self) -> NicChoice {
        nic_choice(&self.nic, &self.port)
    }

    pub(super) fn parameters(&self) -> MicroParameters {
        let inline = match (self.inline, self.no_inline) {
            (true, _) => Some(true),
            (_, true) => Some(false),
            _ => None,
        };
        MicroParameters {
            payload_bytes: if self.header_only {
                Some(0)
            } else {
                self.payload
            },
            inline,
            ..MicroParameters::default()
        }
    }

    /// Returns the stream of a verb with these parameters, with the duration of a round.
    ///
    /// # Errors
    /// Returns an error if the parameters contradict each other, or if the duration is too short for a measurement.
    pub(super) fn verb_stream(
        &self,
        verb: Verb,
        parameters: &MicroParameters,
    ) -> Result<VerbStream> {
        let mut stream = VerbStream::new(verb, parameters, 1)?;
        stream.duration_ms = self.round_duration_ms(default_virtual_duration_ms(&stream))?;
        Ok(stream)
    }

    /// Returns the duration of a round in milliseconds; on a simulated NIC `virtual_ms` by default.
    ///
    /// # Errors
    /// Returns an error if the duration is too short for a measurement.
    pub(super) fn round_duration_ms(&self, virtual_ms: u64) -> Result<u64> {
        let simulated = self.simulation.is_asked_for();
        let usual = if simulated { virtual_ms } else { 500 };
        if !simulated {
            args::refuse_too_short_for_real_time(self.duration)?;
        }
        match self.duration {
            Some(short) if short < Duration::from_millis(1) => {
                bail!("--duration {short:?} is too short for a round; give 1ms or more")
            }
            Some(duration) => Ok(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)),
            None => Ok(usual),
        }
    }
}

/// Returns the number of READs that a NIC can have outstanding without evicting their WQEs from its cache.
fn max_reads_without_wqe_eviction(profile: &Profile) -> Option<usize> {
    let window = profile.cache.read_window.as_ref()?.value;
    let threads = profile.cache.read_window_threads.as_ref()?.value;
    usize::try_from(u64::from(window) * u64::from(threads)).ok()
}

/// The virtual time of a round of short messages, in milliseconds.
pub(super) const MIN_VIRTUAL_DURATION_MS: u64 = 1;

/// Returns the virtual time in milliseconds in which the windows of all queue pairs pass 32 times at 10 GB/s. A window
/// of fewer bytes than the default window is computed as the default window. In a shorter run, messages in flight at
/// the start and the end would distort the rate.
fn default_virtual_duration_ms(stream: &VerbStream) -> u64 {
    let queue_pairs = stream.threads as u64 * stream.queue_pairs_per_thread as u64;
    let usual_bytes = (256 * stream.payload_bytes).min((8 << 20).max(2 * stream.payload_bytes));
    let window_bytes = (stream.window * stream.payload_bytes).max(usual_bytes) as u64;
    (32 * queue_pairs * window_bytes / 10_000_000).max(MIN_VIRTUAL_DURATION_MS)
}

/// Arguments of a command that measures a rate.
#[derive(clap::Args)]
#[command(allow_negative_numbers = true)]
pub(super) struct StreamArgs {
    /// Which end is measured [default: outbound; of ud-recv inbound]
    #[arg(long, value_enum)]
    direction: Option<DirectionArg>,
    /// Work requests that one doorbell announces [default: 16, or less in a small window]
    #[arg(long, value_name = "N", value_parser = args::integer_parser_in_range("a batch", 1..=MAX_WINDOW))]
    batch: Option<usize>,
    /// Work requests outstanding at most on each queue pair [default: 256, or less with long payloads, and of READs
    /// what a simulated NIC keeps]
    #[arg(long, value_name = "N", value_parser = args::integer_parser_in_range("a window", 1..=MAX_WINDOW))]
    window: Option<usize>,
    /// Post a window when the one before is done, and not its work requests as room comes
    #[arg(long)]
    burst: bool,
    /// One work request in so many is signaled [default: 16, or less in a small window]
    #[arg(long, value_name = "N", value_parser = args::integer_parser_in_range("a signaled period", 1..=MAX_WINDOW))]
    signal_every: Option<usize>,
    /// Queue pairs of each thread, to which its postlists go in turn [default: 1]
    #[arg(long, value_name = "N", value_parser = args::integer_parser_in_range("a number of queue pairs", 1..=MAX_QUEUE_PAIRS_PER_THREAD))]
    queue_pairs: Option<usize>,
    /// Threads of the measured side, each with one of the other side [default: 1; inbound as many as there are cores
    /// for, and 1 between two hosts]
    #[arg(long, value_name = "N", value_parser = args::integer_parser_in_range("a number of threads", 1..=MAX_THREADS))]
    threads: Option<usize>,
    /// Processes (simulated: machines) of the other side, among which its threads are [default: one for each]
    #[arg(long, value_name = "N", value_parser = args::integer_parser_in_range("a number of processes", 1..=MAX_THREADS))]
    processes: Option<usize>,
    /// Counters of atomics, chosen at random for each [default: 1]
    #[arg(long, value_name = "N", value_parser = args::integer_parser_in_range("a number of addresses", 1..=MAX_ATOMIC_COUNTERS))]
    addresses: Option<usize>,
    /// Bytes from one counter to the next, also with K (KiB) behind; a multiple of 8 [default: 8]
    #[arg(long, value_name = "BYTES", value_parser = args::byte_count_parser_up_to(MAX_COUNTER_SPACING_BYTES))]
    spacing: Option<usize>,
    /// Pages of all registered memory [default: huge where the system gives them unasked]
    #[arg(long, value_enum)]
    pages: Option<PagesArg>,
    #[command(flatten)]
    pub(super) common: CommonArgs,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum DirectionArg {
    /// The measured NIC is the requester
    Outbound,
    /// It is the responder of requesters elsewhere
    Inbound,
}

#[derive(Clone, Copy, ValueEnum)]
enum PagesArg {
    /// Of 4 KiB
    Small,
    /// Of 2 MiB, which an administrator has reserved (sysctl vm.nr_hugepages)
    Huge,
}

impl StreamArgs {
    /// Returns the parameters of the measurement; the default number of threads depends on the machine. `verb_role` is
    /// set for verbs that have only one role, such as RECVs.
    pub(super) fn parameters(
        &self,
        verb: Verb,
        verb_role: Option<MeasuredRole>,
        simulated: Option<&Profile>,
    ) -> Result<MicroParameters> {
        let asked = self.direction.map(|asked| match asked {
            DirectionArg::Outbound => MeasuredRole::Outbound,
            DirectionArg::Inbound => MeasuredRole::Inbound,
        });
        if verb_role == Some(MeasuredRole::Inbound) && asked == Some(MeasuredRole::Outbound) {
            bail!("RECVs are what arrives: leave out --direction, or take ud-send");
        }
        let measured_role = asked.or(verb_role).unwrap_or_default();
        let mut threads = self.threads.or(self.processes);
        if measured_role == MeasuredRole::Inbound && threads.is_none() {
            threads = Some(self.default_requester_count(verb, simulated)?);
        }
        Ok(MicroParameters {
            measured_role,
            wrs_per_doorbell: self.batch,
            window: self.window,
            waits_between_windows: self.burst,
            signal_every: self.signal_every,
            queue_pairs_per_thread: self.queue_pairs,
            threads,
            other_side_processes: self.processes,
            atomic_counters: self.addresses,
            counter_spacing_bytes: self.spacing,
            page_size: self.pages.map(|pages| match pages {
                PagesArg::Small => RegionPageSize::Small,
                PagesArg::Huge => RegionPageSize::Huge,
            }),
            max_reads_in_wqe_cache: simulated.and_then(max_reads_without_wqe_eviction),
            ..self.common.parameters()
        })
    }

    /// Returns true if the arguments set the number of threads or processes.
    pub(super) fn sets_thread_or_process_count(&self) -> bool {
        self.threads.or(self.processes).is_some()
    }

    /// Returns the default number of requesters for one responder: one requester per core. With SENDs, each requester
    /// takes a second core, to receive.
    fn default_requester_count(&self, verb: Verb, simulated: Option<&Profile>) -> Result<usize> {
        if let Some(profile) = simulated {
            return Ok(usize::try_from(profile.host.cores.value)?.min(MAX_THREADS));
        }
        if self.common.ends.starts_sides_separately() {
            return Ok(1);
        }
        let cores = bench::core_pinning::allowed_cores()?.len();
        let busy = if verb.is_send() { 2 } else { 1 };
        Ok((cores / busy).clamp(1, MAX_THREADS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_virtual_round_is_long_enough_for_all_queue_pairs() {
        let duration_ms = |parameters: MicroParameters| {
            let stream = VerbStream::new(Verb::RcWrite, &parameters, 1);
            default_virtual_duration_ms(&stream.expect("parameters that fit"))
        };
        assert_eq!(duration_ms(MicroParameters::default()), 1);
        let many = MicroParameters {
            payload_bytes: Some(1024),
            threads: Some(14),
            queue_pairs_per_thread: Some(4),
            ..MicroParameters::default()
        };
        // 14 x 4 windows of 256 KiB, 32 times, at 10 GB/s.
        assert_eq!(duration_ms(many), 46);
        let long = MicroParameters {
            payload_bytes: Some(1 << 20),
            window: Some(2),
            ..MicroParameters::default()
        };
        assert_eq!(duration_ms(long), 26);
    }
}
