//! The control law that adapts the split of keys: which range moves from which server to which, so that all are equally
//! loaded.
//!
//! A [`Balancer`] receives the load of each server at any interval and returns the next range to move. For two
//! neighbours with request rates `x` and utilisations `u`, each could serve the rate `x / u`. Both are equally loaded
//! when their shares of the requests are proportional to these rates. The step is computed from this model, and the
//! next observation corrects it. The rate that a server could serve changes with its keys (caches) and with its load
//! (batch sizes).
//!
//! - *Hysteresis*: a server whose share of the requests is off by less than [`ControlLawParameters::min_share_deviation`],
//!   relative to its target, gives and takes nothing. The smaller of two neighbours decides, because it limits both.
//! - *Skew*: the range to move is chosen from a sample of the requested keys. So the range carries as many requests as
//!   the step demands, whatever its number of keys: a hot range moves, not half of the tree.
//! - *Bounds*: a step moves at most [`ControlLawParameters::max_moved_fraction_of_giver`] of the giver's requests. A
//!   server takes at most [`ServerConfig::handover_bytes_per_s`](crate::ServerConfig::handover_bytes_per_s) bytes per
//!   second.

use crate::key_or_value::KeyOrValue;

/// A server's load: counters since its start, and a sample of recently requested keys.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServerLoad<T: KeyOrValue = u64> {
    /// Requests received.
    pub total_requests: u64,
    /// Nanoseconds during which the server had requests to execute.
    pub total_busy_ns: u64,
    /// The time by the server's clock, in nanoseconds.
    pub server_clock_ns: u64,
    /// Number of ranges that the server is taking from others.
    pub unfinished_takes: u64,
    /// A sample of the keys that clients requested.
    pub sampled_keys: Vec<T>,
}

impl<T: KeyOrValue> ServerLoad<T> {
    /// Decodes the entries of the answer to [`Op::ReadServerLoad`](crate::Op::ReadServerLoad); returns `None` if there
    /// are fewer than two.
    pub fn decode(entries: &[(T, T)]) -> Option<Self> {
        let (&[(requests, busy_ns), (now_ns, taking)], sample) =
            entries.split_first_chunk::<2>()?;
        Some(Self {
            total_requests: requests.to_number(),
            total_busy_ns: busy_ns.to_number(),
            server_clock_ns: now_ns.to_number(),
            unfinished_takes: taking.to_number(),
            sampled_keys: sample.iter().flat_map(|(a, b)| [*a, *b]).collect(),
        })
    }
}

/// Parameters of the control law.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ControlLawParameters {
    /// Smallest deviation of a server's share of requests from its target, relative to the target, that triggers a
    /// move; 0 to 1. The loss against the best throughput is smaller than this.
    pub min_share_deviation: f64,
    /// Fraction of the deviation that a step moves, 0 to 1: below 1 the share approaches its target without overshoot.
    pub moved_deviation_fraction: f64,
    /// Largest fraction of the giver's requests that a step moves, 0 to 1.
    pub max_moved_fraction_of_giver: f64,
    /// Smallest number of sampled keys at the giver; with fewer, nothing is moved.
    pub min_sampled_keys_at_giver: usize,
}

impl Default for ControlLawParameters {
    fn default() -> Self {
        Self {
            min_share_deviation: 0.03,
            moved_deviation_fraction: 0.8,
            max_moved_fraction_of_giver: 0.5,
            min_sampled_keys_at_giver: 32,
        }
    }
}

/// A range to move.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct RangeMove<T: KeyOrValue = u64> {
    /// The server that has the range.
    pub giver: u16,
    /// The server that takes the range.
    pub taker: u16,
    /// The first key.
    pub from: T,
    /// The upper bound of the range, exclusive, if any.
    pub end: Option<T>,
}

/// A server's load between two observations.
#[derive(Debug, Clone, Copy, Default, PartialEq, serde::Serialize)]
pub struct ObservedLoad {
    /// Requests per second.
    pub rate: f64,
    /// The fraction of time that the server was busy, 0 to 1.
    pub utilisation: f64,
    /// Estimate of the requests per second that the server could serve.
    pub capacity: f64,
}

/// Decides which ranges to move between servers whose ranges are in the order of their numbers.
#[derive(Debug)]
pub struct Balancer<T: KeyOrValue = u64> {
    law: ControlLawParameters,
    /// First keys of all ranges except the first.
    split_keys: Vec<T>,
    previous_loads: Vec<Option<ServerLoad<T>>>,
    observed_loads: Vec<ObservedLoad>,
    /// The capacities assumed before anything was observed.
    assumed_capacities: Vec<f64>,
    /// True for a server whose capacity was observed.
    capacity_observed: Vec<bool>,
}

/// Below this utilisation a server's capacity cannot be estimated from its load.
const MIN_UTILISATION: f64 = 0.005;

impl<T: KeyOrValue> Balancer<T> {
    /// Creates a balancer for servers with these splits. `capacities` are the assumed requests per second of each
    /// server, until measured; only their ratios matter. Missing capacities are 1.
    pub fn new(law: ControlLawParameters, splits: Vec<T>, capacities: &[f64]) -> Self {
        let servers = splits.len() + 1;
        let capacity = |i: usize| capacities.get(i).copied().unwrap_or(1.0).max(1e-9);
        Self {
            law,
            split_keys: splits,
            previous_loads: vec![None; servers],
            observed_loads: vec![ObservedLoad::default(); servers],
            assumed_capacities: (0..servers).map(capacity).collect(),
            capacity_observed: vec![false; servers],
        }
    }

    /// Returns the first keys of all ranges except the first.
    pub fn split_keys(&self) -> &[T] {
        &self.split_keys
    }

    /// Returns the servers' loads between the last two observations.
    pub fn observed_loads(&self) -> &[ObservedLoad] {
        &self.observed_loads
    }

    /// Takes the loads of all servers, in the order of their numbers, and returns the range to move, if any.
    /// [`split_keys`](Self::split_keys) then returns the splits after the move.
    pub fn observe_and_plan_move(&mut self, loads: &[ServerLoad<T>]) -> Option<RangeMove<T>> {
        if loads.len() != self.previous_loads.len() {
            return None;
        }
        let mut is_first = false;
        for (i, load) in loads.iter().enumerate() {
            match self.previous_loads[i].replace(load.clone()) {
                Some(before) if load.server_clock_ns > before.server_clock_ns => {
                    self.capacity_observed[i] |= update_observed_load_and_capacity_if_measurable(
                        &mut self.observed_loads[i],
                        &before,
                        load,
                    );
                }
                _ => is_first = true,
            }
        }
        self.estimate_missing_capacities();
        // Rates mean little while a range is being handed over.
        if is_first || loads.iter().any(|load| load.unfinished_takes > 0) {
            return None;
        }
        let pairs = (0..self.split_keys.len())
            .map(|left| (left, self.share_to_move_right_and_smaller_target(left)));
        let relative = |(_, (shift, least)): &(usize, (f64, f64))| shift.abs() / least;
        let worst = pairs.max_by(|a, b| relative(a).total_cmp(&relative(b)))?;
        if relative(&worst).is_nan() || relative(&worst) < self.law.min_share_deviation {
            return None;
        }
        let (left, (shift, _)) = worst;
        self.plan_move(left, shift, loads)
    }

    /// Estimates the capacities of servers that were not observed yet, by their assumed ratio to the observed servers.
    fn estimate_missing_capacities(&mut self) {
        let known = (0..self.observed_loads.len()).filter(|i| self.capacity_observed[*i]);
        let scales = known.map(|i| self.observed_loads[i].capacity / self.assumed_capacities[i]);
        let scale = scales.fold(0.0, f64::max);
        for i in 0..self.observed_loads.len() {
            if !self.capacity_observed[i] && scale > 0.0 {
                self.observed_loads[i].capacity = self.assumed_capacities[i] * scale;
            }
        }
    }

    /// Returns the share of two neighbours' requests that should move from the left to the right one (negative: from
    /// right to left), and the target share of the smaller neighbour.
    fn share_to_move_right_and_smaller_target(&self, left: usize) -> (f64, f64) {
        let (a, b) = (self.observed_loads[left], self.observed_loads[left + 1]);
        let (rate, capacity) = (a.rate + b.rate, a.capacity + b.capacity);
        if rate <= 0.0 || capacity <= 0.0 {
            return (0.0, 1.0);
        }
        let right = b.capacity / capacity;
        (right - b.rate / rate, right.min(1.0 - right).max(1e-3))
    }

    fn plan_move(
        &mut self,
        left: usize,
        shift: f64,
        loads: &[ServerLoad<T>],
    ) -> Option<RangeMove<T>> {
        let (a, b) = (self.observed_loads[left], self.observed_loads[left + 1]);
        let rate = a.rate + b.rate;
        let (giver, taker) = if shift > 0.0 {
            (left, left + 1)
        } else {
            (left + 1, left)
        };
        let share = self.law.moved_deviation_fraction * shift.abs() * rate
            / self.observed_loads[giver].rate.max(1e-9);
        let share = share.min(self.law.max_moved_fraction_of_giver);
        let low = giver
            .checked_sub(1)
            .map_or(T::default(), |i| self.split_keys[i]);
        let high = self.split_keys.get(giver).copied();
        // Discards sampled keys outside the giver's present range.
        let mut sample = loads[giver].sampled_keys.clone();
        sample.retain(|key| *key >= low && high.is_none_or(|high| *key < high));
        if sample.len() < self.law.min_sampled_keys_at_giver {
            return None;
        }
        sample.sort_unstable();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "a share of a small number"
        )]
        let count = (share * sample.len() as f64).round() as usize;
        let split = self.split_keys[left];
        let (from, end) = if taker > giver {
            let at = *sample.get(sample.len().checked_sub(count)?)?;
            (at, Some(split))
        } else {
            (split, Some(*sample.get(count)?))
        };
        if end.is_some_and(|end| end <= from) {
            return None;
        }
        self.split_keys[left] = if taker > giver { from } else { end? };
        Some(RangeMove {
            giver: u16::try_from(giver).ok()?,
            taker: u16::try_from(taker).ok()?,
            from,
            end,
        })
    }
}

/// Updates a server's observed load. Returns true if the load allows an estimate of its capacity.
#[expect(clippy::cast_precision_loss, reason = "rates")]
fn update_observed_load_and_capacity_if_measurable<T: KeyOrValue>(
    seen: &mut ObservedLoad,
    before: &ServerLoad<T>,
    after: &ServerLoad<T>,
) -> bool {
    let ns = (after.server_clock_ns - before.server_clock_ns) as f64;
    let requests = after.total_requests.saturating_sub(before.total_requests) as f64;
    let busy = after.total_busy_ns.saturating_sub(before.total_busy_ns) as f64;
    seen.rate = requests * 1e9 / ns;
    seen.utilisation = (busy / ns).clamp(0.0, 1.0);
    let is_measurable = seen.utilisation >= MIN_UTILISATION && requests > 0.0;
    if is_measurable {
        seen.capacity = seen.rate / seen.utilisation;
    }
    is_measurable
}

#[cfg(test)]
mod tests {
    use service::workload::{KeyGenerator, Popularity};

    use super::*;

    /// A model of two servers in a closed loop, with given capacities and a key distribution.
    struct World {
        capacities: [f64; 2],
        split: u64,
        chooser: KeyGenerator,
        loads: [ServerLoad; 2],
    }

    const KEYS: u64 = 100_000;

    impl World {
        fn new(capacities: [f64; 2], popularity: Popularity) -> Self {
            Self {
                capacities,
                split: KEYS / 2,
                chooser: KeyGenerator::new(KEYS, popularity, 3),
                loads: Default::default(),
            }
        }

        /// Returns the share of requests for keys of the second server.
        fn share(&mut self) -> f64 {
            let asked = (0..40_000)
                .filter(|_| self.chooser.next(0) >= self.split)
                .count();
            f64::from(u32::try_from(asked).expect("small")) / 40_000.0
        }

        /// Returns the total rate: the more utilised server slows the clients down.
        fn rate(&self, share: f64) -> f64 {
            let [a, b] = self.capacities;
            (a / (1.0 - share).max(1e-9)).min(b / share.max(1e-9))
        }

        /// Advances the model by a tenth of a second and returns the total rate.
        fn pass(&mut self) -> f64 {
            let share = self.share();
            let rate = self.rate(share);
            let rates = [rate * (1.0 - share), rate * share];
            for (i, load) in self.loads.iter_mut().enumerate() {
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "counts"
                )]
                let whole = |x: f64| x as u64;
                load.server_clock_ns += 100_000_000;
                load.total_requests += whole(rates[i] * 0.1);
                load.total_busy_ns += whole(1e8 * rates[i] / self.capacities[i]);
                load.sampled_keys.clear();
            }
            for _ in 0..320 {
                let key = self.chooser.next(0);
                let side = usize::from(key >= self.split);
                self.loads[side].sampled_keys.push(key);
            }
            rate
        }
    }

    /// Returns the number of steps until the rate is above 95 % of the best.
    fn steps_to_balance(world: &mut World) -> u32 {
        let best: f64 = world.capacities.iter().sum();
        let mut balancer = Balancer::new(
            ControlLawParameters::default(),
            vec![world.split],
            &[1.0, 1.0],
        );
        for step in 0..40 {
            let rate = world.pass();
            if rate > 0.95 * best {
                return step;
            }
            if let Some(plan) = balancer.observe_and_plan_move(&world.loads.clone()) {
                assert_eq!(plan.giver.abs_diff(plan.taker), 1);
                assert!(plan.end.is_some_and(|end| end > plan.from));
                world.split = balancer.split_keys()[0];
            }
        }
        panic!("no balance: split {} of {KEYS}", world.split);
    }

    #[test]
    fn a_slow_server_gets_what_it_can_serve() {
        for capacities in [[3e6, 1e6], [1e6, 3e6], [1e6, 1e6], [9e6, 1e6]] {
            let mut world = World::new(capacities, Popularity::Uniform);
            let steps = steps_to_balance(&mut world);
            assert!(steps <= 6, "{steps} steps for {capacities:?}");
        }
    }

    #[test]
    fn a_hot_range_moves_and_not_half_of_the_tree() {
        for first in [0, KEYS / 2, KEYS - 2000] {
            let hot = Popularity::HotRange {
                share: 0.9,
                first,
                keys: 1000,
            };
            let steps = steps_to_balance(&mut World::new([3e6, 1e6], hot));
            assert!(steps <= 12, "{steps} steps for a hot range at {first}");
        }
    }

    #[test]
    fn what_is_balanced_stays() {
        let mut world = World::new([1e6, 1e6], Popularity::Uniform);
        let mut balancer = Balancer::new(
            ControlLawParameters::default(),
            vec![world.split],
            &[1.0, 1.0],
        );
        for _ in 0..20 {
            world.pass();
            assert_eq!(balancer.observe_and_plan_move(&world.loads.clone()), None);
        }
        // No move while a range is being handed over.
        world.loads[1].unfinished_takes = 1;
        world.capacities = [5e6, 1e6];
        world.pass();
        assert_eq!(balancer.observe_and_plan_move(&world.loads.clone()), None);
    }

    #[test]
    fn a_report_is_read_or_refused() {
        let load = ServerLoad::decode(&[(1, 2), (3, 4), (5, 6)]).expect("whole");
        assert_eq!(
            (
                load.total_requests,
                load.total_busy_ns,
                load.server_clock_ns,
                load.unfinished_takes
            ),
            (1, 2, 3, 4)
        );
        assert_eq!(load.sampled_keys, [5, 6]);
        assert_eq!(ServerLoad::decode(&[(1, 2)]), None);
    }
}
