//! Chooses between RPC and READs for each request.
//!
//! As in Cell (Mitchell et al., USENIX ATC 2016), each client decides by measured latency: an RPC queues behind those
//! of all clients, so its latency shows the server's load. A request takes the way with the lower moving average. One
//! in [`EXPLORATION_INTERVAL`] requests takes the other way, so that both averages stay up to date.

use std::time::Duration;

use service::random::Random;

use crate::config::AccessDesign;
use crate::key_or_value::KeyOrValue;
use crate::wire::Operation;

/// One in so many requests takes the way that seems slower.
const EXPLORATION_INTERVAL: u64 = 64;
/// The weight of a new latency in the moving average.
const NEW_LATENCY_WEIGHT: f64 = 1.0 / 16.0;

/// The measured latencies of both ways.
#[derive(Debug)]
pub(super) struct AccessChooser {
    configured_access: AccessDesign,
    random: Random,
    /// Average latencies in nanoseconds, for lookups and for SCANs: by RPC, and by READs. `None` before the first
    /// measurement.
    mean_latencies_ns: [[Option<f64>; 2]; 2],
}

fn op_kind_index<T: KeyOrValue>(op: &Operation<T>) -> usize {
    usize::from(matches!(op, Operation::Scan { .. }))
}

impl AccessChooser {
    pub(super) fn new(access: AccessDesign, seed: u64) -> Self {
        Self {
            configured_access: access,
            random: Random::new(seed),
            mean_latencies_ns: [[None; 2]; 2],
        }
    }

    /// Returns true if a request goes by READs. Changes do so only with [`AccessDesign::Read`], and only if `changes` is
    /// true.
    #[inline]
    pub(super) fn chooses_reads<T: KeyOrValue>(
        &mut self,
        op: &Operation<T>,
        changes: bool,
    ) -> bool {
        match op {
            Operation::Get { .. } | Operation::Scan { .. } => {}
            Operation::Put { .. } | Operation::Delete { .. } => {
                return changes && self.configured_access == AccessDesign::Read;
            }
            Operation::Handover { .. } | Operation::ReadServerLoad => return false,
        }
        match self.configured_access {
            AccessDesign::Rpc => false,
            AccessDesign::Read => true,
            AccessDesign::Auto => {
                let [rpc, read] = self.mean_latencies_ns[op_kind_index(op)];
                let read_is_better = match (rpc, read) {
                    (Some(rpc), Some(read)) => read < rpc,
                    // A way that was not measured yet is tried.
                    (rpc, _) => rpc.is_some(),
                };
                read_is_better != (self.random.next_below(EXPLORATION_INTERVAL) == 0)
            }
        }
    }

    /// Adds the latency of a request to its average.
    #[inline]
    pub(super) fn record_latency<T: KeyOrValue>(
        &mut self,
        op: &Operation<T>,
        by_reads: bool,
        latency: Duration,
    ) {
        if self.configured_access != AccessDesign::Auto
            || !matches!(op, Operation::Get { .. } | Operation::Scan { .. })
        {
            return;
        }
        let average = &mut self.mean_latencies_ns[op_kind_index(op)][usize::from(by_reads)];
        #[expect(clippy::cast_precision_loss, reason = "a latency")]
        let new = latency.as_nanos() as f64;
        *average = Some(average.map_or(new, |old| old + NEW_LATENCY_WEIGHT * (new - old)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share_of_reads(choice: &mut AccessChooser) -> f64 {
        let get = Operation::Get { key: 1 };
        let reads = (0..6400)
            .filter(|_| choice.chooses_reads(&get, false))
            .count();
        f64::from(u32::try_from(reads).expect("small")) / 6400.0
    }

    #[test]
    fn the_faster_way_is_taken_and_the_other_one_tried_now_and_then() {
        let get = Operation::Get { key: 1 };
        let mut choice = AccessChooser::new(AccessDesign::Auto, 1);
        for _ in 0..100 {
            choice.record_latency(&get, false, Duration::from_micros(3));
            choice.record_latency(&get, true, Duration::from_micros(5));
        }
        let share = share_of_reads(&mut choice);
        assert!(share > 0.0 && share < 0.05, "{share}");
        for _ in 0..100 {
            choice.record_latency(&get, false, Duration::from_micros(50));
        }
        let share = share_of_reads(&mut choice);
        assert!(share < 1.0 && share > 0.95, "{share}");
    }

    #[test]
    fn who_wants_one_way_gets_it() {
        assert!(share_of_reads(&mut AccessChooser::new(AccessDesign::Rpc, 1)) == 0.0);
        assert!(share_of_reads(&mut AccessChooser::new(AccessDesign::Read, 1)) == 1.0);
        let delete = Operation::Delete { key: 1 };
        assert!(!AccessChooser::new(AccessDesign::Read, 1).chooses_reads(&delete, false));
        assert!(AccessChooser::new(AccessDesign::Read, 1).chooses_reads(&delete, true));
        assert!(!AccessChooser::new(AccessDesign::Auto, 1).chooses_reads(&delete, true));
    }
}
