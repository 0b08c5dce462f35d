//! Numbers of the study of BlueField-2: the remote B-tree on a simulated host, on its DPU, and on both.

use std::cell::RefCell;

use anyhow::{Result, ensure};
use bench::simulated::btree::{BtreeParameters, BtreeResult, run, run_local_lookups_mops};
use nicmodel::profile::{CorePlace, Profile};

use super::number::{OurNumber, OurNumberKind, PublishedRelation};

/// One simulation of the B-tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BtreeSimulation {
    /// Look-ups on all cores of the DPU without a network.
    LocalLookups { keys: u64 },
    /// Look-ups by RPC from many clients; the DPU has `share` 16ths of the keys.
    RpcLookups { keys: u64, share: u32 },
    /// Look-ups by READs from clients whose cores never wait.
    ReadLookups { share: u32 },
    /// The latency of a look-up by RPC if no other look-up is outstanding.
    UnloadedRpcLatency(CorePlace),
    /// The latency of a look-up by READs of nodes of this number of bytes.
    UnloadedReadLatency(CorePlace, usize),
}

/// Numbers of keys in the study's small tree and in its largest tree.
pub(super) const SMALL_TREE_KEYS: u64 = 1_000_000;
pub(super) const LARGE_TREE_KEYS: u64 = 256_000_000;

/// Denominator of shares.
const SHARE_DENOMINATOR: u32 = 16;

/// Sizes in bytes of the nodes whose READs the study counts.
const NODE_SIZES_BYTES: [usize; 2] = [512, 2048];

/// Returns the shares of the keys on the DPU to simulate, in finer steps near the best share.
fn dpu_shares_in_sixteenths() -> impl Iterator<Item = u32> {
    (0..=SHARE_DENOMINATOR).filter(|share| *share <= SHARE_DENOMINATOR / 2 || share % 4 == 0)
}

/// The results of the simulations that have run.
#[derive(Debug, Default)]
pub(super) struct DpuBtreeResults {
    /// Results of simulations: rates in 10^6 a second, and latencies in ns.
    rates_or_latencies_and_reads_per_lookup: Vec<(BtreeSimulation, f64, f64)>,
    /// Simulations that a number needs and that have not run yet.
    requested_simulations: RefCell<Vec<BtreeSimulation>>,
}

impl DpuBtreeResults {
    /// Returns all simulations that the numbers need, and with `draw` those of the figures.
    pub(super) fn needed_simulations(draw: bool) -> Vec<BtreeSimulation> {
        let mut runs: Vec<BtreeSimulation> = [SMALL_TREE_KEYS, LARGE_TREE_KEYS]
            .map(|keys| BtreeSimulation::LocalLookups { keys })
            .to_vec();
        runs.extend(
            dpu_shares_in_sixteenths().map(|share| BtreeSimulation::RpcLookups {
                keys: SMALL_TREE_KEYS,
                share,
            }),
        );
        let large: Vec<u32> = match draw {
            true => dpu_shares_in_sixteenths().collect(),
            false => vec![SHARE_DENOMINATOR],
        };
        runs.extend(large.into_iter().map(|share| BtreeSimulation::RpcLookups {
            keys: LARGE_TREE_KEYS,
            share,
        }));
        let reads: &[u32] = if draw {
            &[0, 4, 8, 12, SHARE_DENOMINATOR]
        } else {
            &[0]
        };
        runs.extend(
            reads
                .iter()
                .map(|&share| BtreeSimulation::ReadLookups { share }),
        );
        for place in [CorePlace::Host, CorePlace::Dpu] {
            runs.push(BtreeSimulation::UnloadedRpcLatency(place));
            runs.extend(
                NODE_SIZES_BYTES.map(|bytes| BtreeSimulation::UnloadedReadLatency(place, bytes)),
            );
        }
        runs
    }

    /// Runs one simulation and stores its result.
    pub(super) fn simulate_and_keep_result(
        &mut self,
        bf2: &Profile,
        what: BtreeSimulation,
    ) -> Result<()> {
        let host = BtreeParameters::bluefield2_study(CorePlace::Host, SMALL_TREE_KEYS);
        let shared = |setup: BtreeParameters, share: u32| BtreeParameters {
            dpu_key_share: Some(f64::from(share) / f64::from(SHARE_DENOMINATOR)),
            ..setup
        };
        let checked = |setup: BtreeParameters| -> Result<BtreeResult> {
            let outcome = run(bf2, &setup)?;
            ensure!(
                outcome.are_values_right,
                "{what:?}: a value was wrong or missing"
            );
            Ok(outcome)
        };
        #[allow(clippy::cast_precision_loss)] // times far below 2^52 ns
        let alone = |outcome: &BtreeResult| outcome.latency_ns_p50 as f64;
        let (result, reads) = match what {
            BtreeSimulation::LocalLookups { keys } => (
                run_local_lookups_mops(
                    bf2,
                    &BtreeParameters::bluefield2_study(CorePlace::Dpu, keys),
                )?,
                0.0,
            ),
            BtreeSimulation::RpcLookups { keys, share } => {
                let outcome = checked(shared(
                    BtreeParameters {
                        cost_tree_key_count: keys,
                        ..host
                    },
                    share,
                ))?;
                (outcome.rate_mops, 0.0)
            }
            BtreeSimulation::ReadLookups { share } => {
                let outcome = checked(shared(
                    BtreeParameters::bluefield2_study_one_sided(CorePlace::Host, 2048),
                    share,
                ))?;
                (outcome.rate_mops, outcome.reads_per_lookup)
            }
            BtreeSimulation::UnloadedRpcLatency(place) => {
                let outcome = checked(
                    BtreeParameters::bluefield2_study(place, SMALL_TREE_KEYS)
                        .with_one_outstanding_request(),
                )?;
                (alone(&outcome), 0.0)
            }
            BtreeSimulation::UnloadedReadLatency(place, bytes) => {
                let outcome = checked(
                    BtreeParameters::bluefield2_study_one_sided(place, bytes)
                        .with_one_outstanding_request(),
                )?;
                (alone(&outcome), outcome.reads_per_lookup)
            }
        };
        self.rates_or_latencies_and_reads_per_lookup
            .push((what, result, reads));
        Ok(())
    }

    fn result_or_request_simulation(&self, what: BtreeSimulation) -> Option<(f64, f64)> {
        let mut found = self
            .rates_or_latencies_and_reads_per_lookup
            .iter()
            .filter(|(run, ..)| *run == what);
        let found = found.next();
        if found.is_none() {
            self.requested_simulations.borrow_mut().push(what);
        }
        found.map(|&(_, result, reads)| (result, reads))
    }

    /// Removes and returns the simulations that numbers have needed and that have not run.
    pub(super) fn take_requested_simulations(&self) -> Vec<BtreeSimulation> {
        self.requested_simulations.take()
    }

    /// Returns the result of a simulation that has run.
    fn rate_if_run(&self, what: BtreeSimulation) -> Option<f64> {
        let mut found = self
            .rates_or_latencies_and_reads_per_lookup
            .iter()
            .filter(|(run, ..)| *run == what);
        found.next().map(|(_, result, _)| *result)
    }

    /// Returns the rates by RPC over the share of keys on the DPU.
    pub(super) fn rpc_rates_by_dpu_share(&self, keys: u64) -> Vec<(f64, f64)> {
        let rate = |share| {
            let rate = self.rate_if_run(BtreeSimulation::RpcLookups { keys, share })?;
            Some((f64::from(share) / f64::from(SHARE_DENOMINATOR), rate))
        };
        (0..=SHARE_DENOMINATOR).filter_map(rate).collect()
    }

    /// Returns the rates by READs over the share of keys on the DPU.
    pub(super) fn rdma_read_rates_by_dpu_share(&self) -> Vec<(f64, f64)> {
        let rate = |share| {
            let rate = self.rate_if_run(BtreeSimulation::ReadLookups { share })?;
            Some((f64::from(share) / f64::from(SHARE_DENOMINATOR), rate))
        };
        (0..=SHARE_DENOMINATOR).filter_map(rate).collect()
    }

    /// Returns our number for the published number `id`; `None` if the B-tree does not have that
    /// number.
    pub(super) fn our_number_for(&self, id: &str) -> Option<OurNumber> {
        let result = |what| {
            self.result_or_request_simulation(what)
                .map(|(result, _)| result)
        };
        let rpc = |keys, share| result(BtreeSimulation::RpcLookups { keys, share });
        let reads = |bytes| {
            Some(
                self.result_or_request_simulation(BtreeSimulation::UnloadedReadLatency(
                    CorePlace::Host,
                    bytes,
                ))?
                .1,
            )
        };
        let more = || {
            let host = result(BtreeSimulation::UnloadedRpcLatency(CorePlace::Host))?;
            Some(
                100.0 * (result(BtreeSimulation::UnloadedRpcLatency(CorePlace::Dpu))? / host - 1.0),
            )
        };
        let less = |bytes| {
            let host = result(BtreeSimulation::UnloadedReadLatency(CorePlace::Host, bytes))?;
            Some(
                100.0
                    * (1.0
                        - result(BtreeSimulation::UnloadedReadLatency(CorePlace::Dpu, bytes))?
                            / host),
            )
        };
        let of = |value, kind| OurNumber::new(value, kind, "simulation");
        let (fitted, predicted) = (
            |v| of(v, OurNumberKind::Fitted),
            |v| of(v, OurNumberKind::Predicted),
        );
        Some(match id {
            "dpu_bt_local_small" => fitted(result(BtreeSimulation::LocalLookups {
                keys: SMALL_TREE_KEYS,
            })?),
            "dpu_bt_local_256m" => fitted(result(BtreeSimulation::LocalLookups {
                keys: LARGE_TREE_KEYS,
            })?),
            "dpu_bt_rpc_small" => fitted(rpc(SMALL_TREE_KEYS, SHARE_DENOMINATOR)?),
            "dpu_bt_rpc_256m" => predicted(rpc(LARGE_TREE_KEYS, SHARE_DENOMINATOR)?),
            "dpu_bt_rpc_cpu_ratio" => {
                predicted(rpc(SMALL_TREE_KEYS, 0)? / rpc(SMALL_TREE_KEYS, SHARE_DENOMINATOR)?)
            }
            "dpu_bt_gain_1m" => {
                let gain = rpc(SMALL_TREE_KEYS, SHARE_DENOMINATOR / 4)? / rpc(SMALL_TREE_KEYS, 0)?;
                predicted(100.0 * (gain - 1.0))
            }
            "dpu_bt_best_share" => {
                for share in dpu_shares_in_sixteenths() {
                    let _: Option<f64> = rpc(SMALL_TREE_KEYS, share);
                }
                let rates = self.rpc_rates_by_dpu_share(SMALL_TREE_KEYS);
                let best = rates.iter().max_by(|a, b| a.1.total_cmp(&b.1))?;
                predicted(best.0)
            }
            // The publication gives a range, whose ends are these two numbers.
            "dpu_bt_rpc_lat_lo" => predicted(more()?).with_relation(PublishedRelation::AtLeast),
            "dpu_bt_rpc_lat_hi" => predicted(more()?).with_relation(PublishedRelation::AtMost),
            "dpu_os_best" => fitted(result(BtreeSimulation::ReadLookups { share: 0 })?),
            "dpu_os_depth_512" => fitted(reads(512)?),
            "dpu_os_depth_2048" => fitted(reads(2048)?),
            "dpu_os_lat_lo" => predicted(less(2048)?),
            "dpu_os_lat_hi" => predicted(less(512)?),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nicmodel::published;

    /// The results are placeholders: the test checks only that each number finds its runs.
    #[test]
    fn every_number_of_the_tree_has_its_runs() {
        for draw in [false, true] {
            let runs = DpuBtreeResults::needed_simulations(draw).into_iter();
            let done = DpuBtreeResults {
                rates_or_latencies_and_reads_per_lookup: runs.map(|run| (run, 1.0, 1.0)).collect(),
                ..DpuBtreeResults::default()
            };
            let of_tree = |id: &str| id.starts_with("dpu_bt") || id.starts_with("dpu_os");
            let ids = published::all_published_numbers()
                .iter()
                .map(|number| number.id);
            let missing: Vec<_> = ids
                .filter(|id| of_tree(id) && done.our_number_for(id).is_none())
                .collect();
            assert_eq!(missing, [""; 0]);
            assert_eq!(
                DpuBtreeResults::default().our_number_for("dpu_bt_rpc_small"),
                None
            );
        }
    }
}
