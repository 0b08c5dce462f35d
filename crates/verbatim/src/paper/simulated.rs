//! Numbers from simulations, which run the code of the sequencer and of the key-value store on simulated NICs.

use std::cell::RefCell;
use std::fmt;
use std::time::Duration;

use anyhow::{Result, ensure};
use bench::simulated::sequencer::{SequencerParameters, SequencerResult, run};
use bench::simulated::{drtm, kv, read_write_windows};
use nicmodel::profile::builtin_profile;
use nicmodel::{Verb, mixes};
use sequencer::Design;

use super::dpu::{self, DpuStudyResults};
use super::model;
use super::nics::PublicationNicProfiles;
use super::number::{OurNumber, OurNumberKind};

/// One simulation.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum PaperSimulation {
    /// The sequencer with a setup, for rates, for Figure 8, or for a round trip.
    Sequencer(SequencerParameters),
    /// The sequencer with the same setup and the loops of the authors' benchmark.
    SequencerWithOriginalLoops(SequencerParameters),
    /// HERD on this number of cores; `true` with batches.
    Herd(usize, bool),
    /// HERD with the same setup and the loops of the authors' benchmark.
    HerdWithOriginalLoops(usize, bool),
    /// The emulation of DrTM-KV on a NIC, with this share of PUTs in %.
    Drtm(&'static str, u32),
    /// The atomics-based key-value store on a NIC, with this share of PUTs in %.
    AtomicsStore(&'static str, u32),
    /// READs on a NIC with this window.
    ReadWindow(&'static str, usize),
    /// The study of BlueField-2.
    DpuStudy(dpu::DpuStudySimulation),
}

impl fmt::Display for PaperSimulation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const ORIGINAL: &str = "with the original loops";
        match self {
            Self::Sequencer(setup) => write!(f, "{} on {} cores", setup.design, setup.server_cores),
            Self::SequencerWithOriginalLoops(setup) => {
                write!(
                    f,
                    "{} on {} cores {ORIGINAL}",
                    setup.design, setup.server_cores
                )
            }
            Self::Herd(cores, _) => write!(f, "HERD on {cores} cores"),
            Self::HerdWithOriginalLoops(cores, _) => write!(f, "HERD on {cores} cores {ORIGINAL}"),
            Self::Drtm(nic, puts) => write!(f, "DrTM-KV on {nic}, {puts} % PUTs"),
            Self::AtomicsStore(nic, puts) => {
                write!(f, "the atomics-based store on {nic}, {puts} % PUTs")
            }
            Self::ReadWindow(nic, window) => write!(f, "windows of {window} READs on {nic}"),
            Self::DpuStudy(what) => write!(f, "BlueField-2: {what:?}"),
        }
    }
}

/// The results of the simulations that have run so far.
#[derive(Debug, Default)]
pub(super) struct SimulationResults {
    nics: PublicationNicProfiles,
    sequencer_runs: Vec<(SequencerParameters, SequencerResult)>,
    /// Spec-S0 under rising load, for Figure 8.
    spec_s0_load_runs: Vec<(SequencerParameters, SequencerResult)>,
    /// Round-trip time of one client with one request outstanding, in µs.
    unloaded_round_trip_us: Option<f64>,
    /// Results of HERD: cores, `true` with batches, outcome.
    herd_runs_by_cores_and_batching: Vec<(usize, bool, kv::KvResult)>,
    /// Results of the sequencer and of HERD with the loops of the authors' benchmark.
    original_loops_sequencer_runs: Vec<(SequencerParameters, SequencerResult)>,
    original_loops_herd_runs_by_cores_and_batching: Vec<(usize, bool, kv::KvResult)>,
    /// The emulation of DrTM-KV, and the atomics-based key-value store: NIC, share of PUTs in %, rate.
    drtm_rates_by_nic_and_put_percent: Vec<(&'static str, u32, f64)>,
    atomics_store_rates_by_nic_and_put_percent: Vec<(&'static str, u32, f64)>,
    /// Results of READs: NIC, window, outcome.
    rdma_read_results_by_nic_and_window:
        Vec<(&'static str, usize, read_write_windows::WindowResult)>,
    /// The study of BlueField-2.
    pub(super) dpu: DpuStudyResults,
    /// Simulations that a number needs and that have not run yet.
    requested_simulations: RefCell<Vec<PaperSimulation>>,
}

impl SimulationResults {
    /// Returns a set of simulations on these NICs; none of the simulations has run.
    pub(super) fn with_profiles(nics: PublicationNicProfiles) -> Self {
        Self {
            nics,
            ..Self::default()
        }
    }

    /// Returns the profiles of the simulated NICs.
    pub(super) fn nics(&self) -> &PublicationNicProfiles {
        &self.nics
    }

    /// Returns all simulations that the numbers need, and with `draw` those of the figures.
    pub(super) fn needed_simulations(draw: bool) -> Vec<PaperSimulation> {
        let mut all: Vec<PaperSimulation> = Self::sequencer_setups(draw)
            .into_iter()
            .map(PaperSimulation::Sequencer)
            .collect();
        let original = Self::original_loops_sequencer_setups();
        all.extend(
            Self::herd_cores_and_batching_to_simulate(draw)
                .into_iter()
                .map(|(cores, batched)| PaperSimulation::Herd(cores, batched)),
        );
        all.extend(
            original
                .into_iter()
                .map(PaperSimulation::SequencerWithOriginalLoops),
        );
        all.extend(
            Self::herd_cores_and_batching_to_simulate(false)
                .into_iter()
                .map(|(cores, batched)| PaperSimulation::HerdWithOriginalLoops(cores, batched)),
        );
        let drtm = Self::drtm_nics_and_put_percents_to_simulate(draw);
        if draw {
            all.extend(
                drtm.iter()
                    .map(|&(nic, puts)| PaperSimulation::AtomicsStore(nic, puts)),
            );
        }
        all.extend(
            drtm.into_iter()
                .map(|(nic, puts)| PaperSimulation::Drtm(nic, puts)),
        );
        all.extend(
            Self::nics_and_read_windows_to_simulate()
                .into_iter()
                .map(|(nic, window)| PaperSimulation::ReadWindow(nic, window)),
        );
        all.extend(
            DpuStudyResults::needed_simulations(draw)
                .into_iter()
                .map(PaperSimulation::DpuStudy),
        );
        all
    }

    /// Runs the simulations that the published number `id` needs, and returns our number.
    ///
    /// # Errors
    /// Returns an error if a simulation cannot run on these profiles, or its result is wrong.
    pub(super) fn simulate_our_number(&mut self, id: &str) -> Result<Option<OurNumber>> {
        loop {
            let missing = self.simulations_missing_for_number(id);
            if missing.is_empty() {
                return Ok(self.our_number_for(id));
            }
            for run in missing {
                self.simulate_and_keep_result(run)?;
            }
        }
    }

    /// Returns the simulations that the number of this id needs and that have not run.
    pub(super) fn simulations_missing_for_number(&self, id: &str) -> Vec<PaperSimulation> {
        self.requested_simulations.take();
        self.our_number_for(id);
        let mut missing = self.requested_simulations.take();
        missing.extend(
            self.dpu
                .take_requested_simulations()
                .into_iter()
                .map(PaperSimulation::DpuStudy),
        );
        missing
    }

    /// Returns the setups that the numbers and Figure 7 need, and with `draw` those of Figure 8.
    fn sequencer_setups(draw: bool) -> Vec<SequencerParameters> {
        let swept = Design::ALL
            .into_iter()
            .filter(|design| *design != Design::Atomics);
        let mut setups = vec![
            SequencerParameters::paper_setup(Design::Atomics, 1),
            round_trip_setup(),
        ];
        for design in swept {
            setups.extend(
                (1..=CIB_HOST_CORES).map(|cores| SequencerParameters::paper_setup(design, cores)),
            );
        }
        if draw {
            setups.extend(rising_load_setups());
        }
        setups
    }

    /// Runs one simulation.
    ///
    /// # Errors
    /// Returns an error if the simulation cannot run on these profiles, or its result is wrong.
    pub(super) fn simulate_and_keep_result(&mut self, run: PaperSimulation) -> Result<()> {
        match run {
            PaperSimulation::Sequencer(setup) => {
                let outcome = simulate_sequencer(&self.nics, &setup)?;
                self.store_sequencer_run(setup, outcome);
            }
            PaperSimulation::SequencerWithOriginalLoops(setup) => {
                let outcome = simulate_sequencer(&self.nics, &setup)?;
                self.original_loops_sequencer_runs.push((setup, outcome));
            }
            PaperSimulation::Herd(cores, batched) => {
                let outcome = simulate_kv_store(
                    &self.nics,
                    "cib",
                    &kv::KvParameters::paper_setup(cores, batched),
                )?;
                self.herd_runs_by_cores_and_batching
                    .push((cores, batched, outcome));
            }
            PaperSimulation::HerdWithOriginalLoops(cores, batched) => {
                let outcome = simulate_kv_store(
                    &self.nics,
                    "cib",
                    &kv::KvParameters::rdma_bench_setup(cores, batched),
                )?;
                self.original_loops_herd_runs_by_cores_and_batching
                    .push((cores, batched, outcome));
            }
            PaperSimulation::Drtm(nic, puts) => {
                let setup = drtm::DrtmParameters::paper_setup(f64::from(puts) / 100.0);
                let outcome = drtm::run(self.nics.profile_by_name(nic), &setup)?;
                self.drtm_rates_by_nic_and_put_percent
                    .push((nic, puts, outcome.rate_mops));
            }
            PaperSimulation::AtomicsStore(nic, puts) => {
                let setup = kv::KvParameters::drtm_setup(f64::from(puts) / 100.0);
                let outcome = simulate_kv_store(&self.nics, nic, &setup)?;
                self.atomics_store_rates_by_nic_and_put_percent.push((
                    nic,
                    puts,
                    outcome.rate_mops,
                ));
            }
            PaperSimulation::ReadWindow(nic, window) => {
                let setup = read_write_windows::WindowParameters {
                    verb: Verb::RdmaRead,
                    window,
                    measured_time: Duration::from_micros(300),
                };
                let outcome = read_write_windows::run(self.nics.profile_by_name(nic), &setup)?;
                self.rdma_read_results_by_nic_and_window
                    .push((nic, window, outcome));
            }
            PaperSimulation::DpuStudy(what) => self
                .dpu
                .simulate_and_keep_result(self.nics.profile_by_name("bf2"), what)?,
        }
        Ok(())
    }

    fn store_sequencer_run(&mut self, setup: SequencerParameters, outcome: SequencerResult) {
        if setup == round_trip_setup() {
            #[allow(clippy::cast_precision_loss)] // far below 2^52
            let ns = outcome.latency_ns_p50 as f64;
            self.unloaded_round_trip_us = Some(ns * 1e-3);
        } else if setup.max_requests_per_doorbell == 1 {
            self.spec_s0_load_runs.push((setup, outcome));
        } else {
            self.sequencer_runs.push((setup, outcome));
        }
    }

    /// Records that the simulation `run` is missing if `found` is `None`.
    fn or_request_simulation<T>(
        &self,
        found: Option<T>,
        run: impl FnOnce() -> PaperSimulation,
    ) -> Option<T> {
        if found.is_none() {
            let mut missing = self.requested_simulations.borrow_mut();
            let run = run();
            if !missing.contains(&run) {
                missing.push(run);
            }
        }
        found
    }

    /// Returns the setups to simulate with the loops of the authors' benchmark.
    fn original_loops_sequencer_setups() -> Vec<SequencerParameters> {
        let over = |design, cores: &'static [usize]| {
            cores
                .iter()
                .map(move |cores| SequencerParameters::rdma_bench_setup(design, *cores))
        };
        let rpc = over(Design::Rpc, &[1, 3, 5, CIB_HOST_CORES]);
        let batch = over(Design::RpcBatch, &[1, 3, 5]);
        let queues = over(Design::RpcBatchMq, &[1, 3, 5, 6]);
        let spec = over(Design::SpecS0, &[SPEC_S0_PEAK_CORES]);
        rpc.chain(batch).chain(queues).chain(spec).collect()
    }

    /// Returns our number for `id` with the loops of the authors' benchmark, if these loops were simulated.
    pub(super) fn original_loops_value(&self, id: &str) -> Option<f64> {
        let run = |design, cores| {
            let mut runs = self.original_loops_sequencer_runs.iter();
            let is_it = |(setup, _): &&(SequencerParameters, SequencerResult)| {
                (setup.design, setup.server_cores) == (design, cores)
            };
            runs.find(is_it).map(|(_, outcome)| outcome)
        };
        let rate = |(design, cores)| Some(run(design, cores)?.rate_mops);
        let herd = |cores, batched| {
            let mut runs = self.original_loops_herd_runs_by_cores_and_batching.iter();
            let found = runs.find(|(n, with, _)| (*n, *with) == (cores, batched));
            found.map(|(_, _, outcome)| outcome)
        };
        let herd_rate = |cores, batched| Some(herd(cores, batched)?.rate_mops);
        match id {
            "seq_rpc_resp_per_doorbell_6c" => {
                Some(run(Design::RpcBatchMq, 6)?.answers_per_doorbell)
            }
            "herd_base_1c" => herd_rate(1, false),
            "herd_batch_1c" => herd_rate(1, true),
            "herd_base_peak" => herd_rate(CIB_HOST_CORES, false),
            "herd_batch_peak" => herd_rate(HERD_PEAK_CORES, true),
            "herd_resp_per_doorbell_a" => Some(herd(HERD_PEAK_CORES, true)?.answers_per_doorbell),
            _ => rate(design_and_cores_of_id(id)?),
        }
    }

    /// Returns the simulations for the numbers of HERD, and with `draw` for Figure 9: cores, and `true` with batches.
    fn herd_cores_and_batching_to_simulate(draw: bool) -> Vec<(usize, bool)> {
        if !draw {
            return vec![
                (1, false),
                (1, true),
                (CIB_HOST_CORES, false),
                (HERD_PEAK_CORES, true),
            ];
        }
        let both = [false, true].into_iter();
        both.flat_map(|batched| (1..=CIB_HOST_CORES).map(move |cores| (cores, batched)))
            .collect()
    }

    /// Returns the rates of HERD over cores.
    pub(super) fn herd_rates_by_cores(&self, batched: bool) -> Vec<(f64, f64)> {
        let of_both = self
            .herd_runs_by_cores_and_batching
            .iter()
            .filter(|(_, with, _)| *with == batched);
        #[allow(clippy::cast_precision_loss)] // few cores
        let point =
            |(cores, _, outcome): &(usize, bool, kv::KvResult)| (*cores as f64, outcome.rate_mops);
        of_both.map(point).collect()
    }

    fn herd_result(&self, cores: usize, batched: bool) -> Option<&kv::KvResult> {
        let mut found = self.herd_runs_by_cores_and_batching.iter();
        let found = found.find(|(n, with, _)| (*n, *with) == (cores, batched));
        let found = self.or_request_simulation(found, || PaperSimulation::Herd(cores, batched));
        found.map(|(_, _, outcome)| outcome)
    }

    /// Returns the NICs whose best windows of READs are published, each with all windows to simulate.
    fn nics_and_read_windows_to_simulate() -> Vec<(&'static str, usize)> {
        let of = |nic| (0..=11).map(move |power| (nic, 1 << power));
        of("cib").chain(of("cx3")).collect()
    }

    /// Returns the results of READs on a NIC over windows.
    pub(super) fn rdma_read_results_by_window(
        &self,
        nic: &str,
    ) -> impl Iterator<Item = (usize, read_write_windows::WindowResult)> {
        let of_nic = self
            .rdma_read_results_by_nic_and_window
            .iter()
            .filter(move |(name, ..)| *name == nic);
        of_nic.map(|&(_, window, outcome)| (window, outcome))
    }

    /// Returns the smallest window with the highest rate of READs.
    fn best_read_window(&self, nic: &'static str) -> Option<usize> {
        for (_, window) in Self::nics_and_read_windows_to_simulate()
            .into_iter()
            .filter(|p| p.0 == nic)
        {
            let found = self
                .rdma_read_results_by_window(nic)
                .find(|(done, _)| *done == window);
            self.or_request_simulation(found, || PaperSimulation::ReadWindow(nic, window));
        }
        let best = self.rdma_read_results_by_window(nic).reduce(|best, next| {
            if next.1.rate_mops > best.1.rate_mops {
                next
            } else {
                best
            }
        });
        best.map(|(window, _)| window)
    }

    /// Returns the simulations for the numbers of Figure 10, and with `draw` for the figure: NIC, and share of PUTs
    /// in %.
    fn drtm_nics_and_put_percents_to_simulate(draw: bool) -> Vec<(&'static str, u32)> {
        if !draw {
            return vec![("cib", 0), ("cib", 10), ("cx3", 0), ("cx3", 100)];
        }
        let shares = [0, 5, 10, 20, 30, 50, 75, 100];
        let of = |nic| shares.map(|puts| (nic, puts));
        [of("cib"), of("cx3")].concat()
    }

    /// Returns the rates of the emulation of DrTM-KV over the share of PUTs in %.
    pub(super) fn drtm_rates_by_put_percent(&self, nic: &str) -> Vec<(f64, f64)> {
        rates_by_put_percent(&self.drtm_rates_by_nic_and_put_percent, nic)
    }

    /// Returns the rates of the atomics-based store over the share of PUTs in %.
    pub(super) fn atomics_store_rates_by_put_percent(&self, nic: &str) -> Vec<(f64, f64)> {
        rates_by_put_percent(&self.atomics_store_rates_by_nic_and_put_percent, nic)
    }

    /// Returns the rate with this share of PUTs in %, as a multiple of the rate of GETs alone.
    fn drtm_ratio_to_gets(&self, nic: &'static str, puts: u32) -> Option<f64> {
        let at = |share| {
            let found = self
                .drtm_rates_by_nic_and_put_percent
                .iter()
                .find(|run| (run.0, run.1) == (nic, share));
            Some(
                self.or_request_simulation(found, || PaperSimulation::Drtm(nic, share))?
                    .2,
            )
        };
        let (with, without) = (at(puts), at(0));
        Some(with? / without?)
    }

    /// Returns points (cores, 10^6 numbers per second) of a design.
    pub(super) fn sequencer_rates_by_cores(&self, design: Design) -> Vec<(f64, f64)> {
        let of_design = self
            .sequencer_runs
            .iter()
            .filter(|(setup, _)| setup.design == design);
        #[allow(clippy::cast_precision_loss)] // few cores
        let point = |(setup, outcome): &(SequencerParameters, SequencerResult)| {
            (setup.server_cores as f64, outcome.rate_mops)
        };
        of_design.map(point).collect()
    }

    /// Returns the median latency in µs and the rate of Spec-S0 under rising load, with at most `answers` answers per
    /// doorbell.
    pub(super) fn spec_s0_latency_and_rate_points(&self, answers: usize) -> Vec<(f64, f64)> {
        let of_answers = |setup: &SequencerParameters| {
            setup
                .max_answers_per_doorbell
                .unwrap_or(setup.max_requests_per_batch)
                == answers
        };
        let of_batch = self
            .spec_s0_load_runs
            .iter()
            .filter(|(setup, _)| of_answers(setup));
        #[allow(clippy::cast_precision_loss)] // far below 2^52
        let point = |(_, o): &(SequencerParameters, SequencerResult)| {
            (o.latency_ns_p50 as f64 * 1e-3, o.rate_mops)
        };
        of_batch.map(point).collect()
    }

    fn sequencer_result(&self, design: Design, cores: usize) -> Option<&SequencerResult> {
        let found = self.sequencer_runs.iter();
        let mut found =
            found.filter(|(setup, _)| setup.design == design && setup.server_cores == cores);
        let run = || PaperSimulation::Sequencer(SequencerParameters::paper_setup(design, cores));
        self.or_request_simulation(found.next(), run)
            .map(|(_, outcome)| outcome)
    }

    /// Returns our number for the published number `id`; `None` if no simulation has that number.
    pub(super) fn our_number_for(&self, id: &str) -> Option<OurNumber> {
        let rate = |design, cores| Some(self.sequencer_result(design, cores)?.rate_mops);
        let herd = |cores, batched| Some(self.herd_result(cores, batched)?.rate_mops);
        let gain = |fast: Option<f64>, slow: Option<f64>| Some(100.0 * (fast? / slow? - 1.0));
        let peak = || herd(HERD_PEAK_CORES, true);
        let alone = || herd(CIB_HOST_CORES, false);
        let (value, kind) = match id {
            "seq_rpc_base_1c" => (rate(Design::Rpc, 1)?, kind_of_our_number(id)),
            "seq_t3_baseline" => (rate(Design::Rpc, 14)?, kind_of_our_number(id)),
            "seq_rpc_batch_1c" => (rate(Design::RpcBatch, 1)?, kind_of_our_number(id)),
            "seq_rpc_batch_mq_1c" => (rate(Design::RpcBatchMq, 1)?, kind_of_our_number(id)),
            "seq_rpc_batch_mq_6c" | "seq_t3_rpc_opts" => (
                rate(Design::RpcBatchMq, 6)?,
                kind_of_our_number("seq_rpc_batch_mq_6c"),
            ),
            "seq_t3_spec_s0" => (
                rate(Design::SpecS0, SPEC_S0_PEAK_CORES)?,
                kind_of_our_number(id),
            ),
            "seq_t3_atomics" => (rate(Design::Atomics, 1)?, kind_of_our_number(id)),
            "seq_rpc_resp_per_doorbell_6c" => {
                let at = self.sequencer_result(Design::RpcBatchMq, 6)?;
                (at.answers_per_doorbell, OurNumberKind::Fitted)
            }
            "seq_rpc_peak_cores" => {
                // The curve is flat at its top, so take the highest core count whose rounded rate is the best.
                for cores in 1..=CIB_HOST_CORES {
                    let _: Option<f64> = rate(Design::RpcBatchMq, cores);
                }
                let rates = self.sequencer_rates_by_cores(Design::RpcBatchMq);
                let printed = |rate: f64| (10.0 * rate).round();
                let best = rates.iter().max_by(|a, b| {
                    printed(a.1)
                        .total_cmp(&printed(b.1))
                        .then(a.0.total_cmp(&b.0))
                })?;
                (best.0, OurNumberKind::Predicted)
            }
            "herd_base_1c" => (herd(1, false)?, kind_of_our_number(id)),
            "herd_batch_1c" => (herd(1, true)?, kind_of_our_number(id)),
            "herd_base_peak" => (alone()?, kind_of_our_number(id)),
            "herd_batch_peak" => (peak()?, kind_of_our_number(id)),
            "herd_gain_percore" => (gain(herd(1, true), herd(1, false))?, OurNumberKind::Fitted),
            "herd_gain_peak" => (gain(peak(), alone())?, OurNumberKind::Predicted),
            // In the paper, too, the rate of `read-kv` is a line of a model, not a measurement: half of the rate of
            // READs.
            "herd_vs_read_kv" => (
                gain(
                    peak(),
                    model::modelled_mix_mops(&self.nics, "cib", "read-kv"),
                )?,
                OurNumberKind::Predicted,
            ),
            "herd_resp_per_doorbell_a" => {
                let at = self.herd_result(HERD_PEAK_CORES, true)?;
                (at.answers_per_doorbell, OurNumberKind::Predicted)
            }
            "out_read_best_window_cib" => (
                usize_to_f64(self.best_read_window("cib")?),
                OurNumberKind::Fitted,
            ),
            "out_read_best_window_cx3" => (
                usize_to_f64(self.best_read_window("cx3")?),
                OurNumberKind::Fitted,
            ),
            "drtm_cib_put10" => {
                let kept = self.drtm_ratio_to_gets("cib", 10)?;
                (100.0 * (1.0 - kept), OurNumberKind::Predicted)
            }
            "drtm_cx3_put100" => {
                let left = self.drtm_ratio_to_gets("cx3", 100)?;
                (100.0 * left, OurNumberKind::Predicted)
            }
            "gen_rtt" => {
                let run = || PaperSimulation::Sequencer(round_trip_setup());
                (
                    self.or_request_simulation(self.unloaded_round_trip_us, run)?,
                    OurNumberKind::Fitted,
                )
            }
            _ if id.starts_with("bench_rpc_") => {
                let (design, cores) = design_and_cores_of_id(id)?;
                (rate(design, cores)?, OurNumberKind::Predicted)
            }
            _ => return self.dpu.our_number_for(id),
        };
        Some(OurNumber::new(value, kind, "simulation"))
    }
}

/// Runs the sequencer on a Connect-IB.
fn simulate_sequencer(
    nics: &PublicationNicProfiles,
    setup: &SequencerParameters,
) -> Result<SequencerResult> {
    let outcome = run(nics.profile_by_name("cib"), setup)?;
    ensure!(
        outcome.are_numbers_right,
        "{}: {}",
        setup.design,
        outcome.verdict_text
    );
    Ok(outcome)
}

/// Runs a key-value store.
fn simulate_kv_store(
    nics: &PublicationNicProfiles,
    nic: &str,
    setup: &kv::KvParameters,
) -> Result<kv::KvResult> {
    let outcome = kv::run(nics.profile_by_name(nic), setup)?;
    ensure!(
        outcome.are_values_right,
        "a value of the simulated store was wrong"
    );
    Ok(outcome)
}

/// Returns the design and the cores of a published rate of the sequencer.
fn design_and_cores_of_id(id: &str) -> Option<(Design, usize)> {
    Some(match id {
        "seq_rpc_base_1c" => (Design::Rpc, 1),
        "bench_rpc_base_3c" => (Design::Rpc, 3),
        "bench_rpc_base_5c" => (Design::Rpc, 5),
        "seq_t3_baseline" => (Design::Rpc, CIB_HOST_CORES),
        "seq_rpc_batch_1c" => (Design::RpcBatch, 1),
        "bench_rpc_batch_3c" => (Design::RpcBatch, 3),
        "bench_rpc_batch_5c" => (Design::RpcBatch, 5),
        "seq_rpc_batch_mq_1c" => (Design::RpcBatchMq, 1),
        "bench_rpc_batch_mq_3c" => (Design::RpcBatchMq, 3),
        "bench_rpc_batch_mq_5c" => (Design::RpcBatchMq, 5),
        "seq_rpc_batch_mq_6c" => (Design::RpcBatchMq, 6),
        "seq_t3_spec_s0" => (Design::SpecS0, SPEC_S0_PEAK_CORES),
        _ => return None,
    })
}

#[allow(clippy::cast_precision_loss)] // far below 2^52
fn usize_to_f64(number: usize) -> f64 {
    number as f64
}

/// Returns the rates of a NIC over the share of PUTs in %.
fn rates_by_put_percent(all: &[(&'static str, u32, f64)], nic: &str) -> Vec<(f64, f64)> {
    let of_nic = all.iter().filter(|(name, _, _)| *name == nic);
    of_nic
        .map(|(_, puts, rate)| (f64::from(*puts), *rate))
        .collect()
}

/// Returns the setup of one client with one header-only request outstanding.
fn round_trip_setup() -> SequencerParameters {
    SequencerParameters {
        clients: 1,
        window: 1,
        max_requests_per_doorbell: 1,
        ..SequencerParameters::paper_setup(Design::SpecS0, 1)
    }
}

/// Returns the setups of Figure 8: first more clients, then more outstanding requests of each. The server has the
/// cores that Spec-S0 needs for its peak. Each load runs with batches and without.
fn rising_load_setups() -> impl Iterator<Item = SequencerParameters> {
    let clients = [1, 4, 12, 35].map(|clients| (clients, 1));
    let windows = [1, 2, 4, 8, 16, 32].map(|window| (70, window));
    let loads = clients.into_iter().chain(windows);
    [Some(1), None].into_iter().flat_map(move |answers| {
        loads
            .clone()
            .map(move |(clients, window)| SequencerParameters {
                clients,
                window,
                max_requests_per_doorbell: 1,
                max_answers_per_doorbell: answers,
                measured_time: Duration::from_micros(300),
                ..SequencerParameters::paper_setup(Design::SpecS0, SPEC_S0_PEAK_CORES)
            })
    })
}

/// Number of cores of a Connect-IB's machine.
const CIB_HOST_CORES: usize = 14;

/// Number of cores with which HERD with batches reaches its peak in the paper.
const HERD_PEAK_CORES: usize = 12;

/// Number of cores with which Spec-S0 reaches its peak.
const SPEC_S0_PEAK_CORES: usize = 10;

/// Returns the kind of our number for a published number: fitted if a number of the profile was fitted to it.
fn kind_of_our_number(id: &str) -> OurNumberKind {
    let basis = builtin_profile("cib").and_then(|cib| {
        let mixes = mixes::executable_mixes(cib);
        let named = mixes
            .iter()
            .find(|mix| mix.published_rate.is_some_and(|p| p.id == id))?;
        named.basis(cib)
    });
    basis.map_or(OurNumberKind::Predicted, OurNumberKind::from)
}
