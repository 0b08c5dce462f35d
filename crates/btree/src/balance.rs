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
    /// Decodes the entries of the answer to [`Operation::ReadServerLoad`](crate::Operation::ReadServerLoad); returns `None` if there
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
    #[serde(rename = "from")]
    pub first_key: T,
    /// The upper bound of the range, exclusive, if any.
    #[serde(rename = "end")]
    pub end_key: Option<T>,
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
    has_observed_capacity: Vec<bool>,
    /// The planned move that was not confirmed yet.
    unconfirmed_move: Option<RangeMove<T>>,
    /// The left server of the pair whose last move failed. The pair is tried last in the next plan.
    left_server_of_failed_move: Option<usize>,
}

/// Below this utilisation a server's capacity cannot be estimated from its load.
const MIN_UTILISATION_TO_ESTIMATE_CAPACITY: f64 = 0.005;

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
            has_observed_capacity: vec![false; servers],
            unconfirmed_move: None,
            left_server_of_failed_move: None,
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

    /// Returns the last planned move until it is [confirmed](Self::confirm_move).
    pub fn unconfirmed_move(&self) -> Option<RangeMove<T>> {
        self.unconfirmed_move
    }

    /// Records the outcome of the last planned move once no server is taking ranges. `kept_from` is the first key of
    /// the range that the giver still owns, or `None` if the taker has the whole range. A range is taken from the left.
    ///
    /// The split is then as the servers have it. One case differs: if a right neighbour has got the left part of a
    /// range, the split stays at the end of the range. Another take of the range gets the rest.
    pub fn confirm_move(&mut self, kept_from: Option<T>) {
        let (Some(planned), Some(kept_from)) = (self.unconfirmed_move.take(), kept_from) else {
            return;
        };
        let left = usize::from(planned.giver.min(planned.taker));
        let split = match planned.taker > planned.giver {
            true => planned.end_key,
            false => Some(kept_from),
        };
        if let (Some(at), Some(split)) = (self.split_keys.get_mut(left), split) {
            *at = split;
        }
        self.left_server_of_failed_move = Some(left);
    }

    /// Takes the loads of all servers, in the order of their numbers, and returns the range to move, if any.
    /// [`split_keys`](Self::split_keys) then returns the splits after the move.
    ///
    /// The last planned move should be [confirmed](Self::confirm_move) before. Otherwise it counts as complete.
    pub fn observe_and_plan_move(&mut self, loads: &[ServerLoad<T>]) -> Option<RangeMove<T>> {
        if loads.len() != self.previous_loads.len() {
            return None;
        }
        let mut is_first = false;
        for (i, load) in loads.iter().enumerate() {
            match self.previous_loads[i].replace(load.clone()) {
                Some(before) if load.server_clock_ns > before.server_clock_ns => {
                    self.has_observed_capacity[i] |=
                        update_observed_load_and_capacity_if_measurable(
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
        self.unconfirmed_move = None;
        let failed_pair = self.left_server_of_failed_move.take();
        // Pairs of neighbours: whether the last move failed, the deviation, the left one, and the share to move.
        let mut pairs: Vec<_> = (0..self.split_keys.len())
            .map(|left| {
                let (shift, least) = self.share_to_move_right_and_smaller_target(left);
                (failed_pair == Some(left), shift.abs() / least, left, shift)
            })
            .filter(|(_, deviation, ..)| *deviation >= self.law.min_share_deviation)
            .collect();
        pairs.sort_by(|a, b| a.0.cmp(&b.0).then(b.1.total_cmp(&a.1)));
        // A pair may have no range to move: a single key may have most of the requests.
        self.unconfirmed_move = pairs
            .into_iter()
            .find_map(|(_, _, left, shift)| self.plan_move(left, shift, loads));
        self.unconfirmed_move
    }

    /// Estimates the capacities of servers that were not observed yet, by their assumed ratio to the observed servers.
    fn estimate_missing_capacities(&mut self) {
        let known = (0..self.observed_loads.len()).filter(|i| self.has_observed_capacity[*i]);
        let scales = known.map(|i| self.observed_loads[i].capacity / self.assumed_capacities[i]);
        let scale = scales.fold(0.0, f64::max);
        for i in 0..self.observed_loads.len() {
            if !self.has_observed_capacity[i] && scale > 0.0 {
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
            first_key: from,
            end_key: end,
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
    let is_measurable = seen.utilisation >= MIN_UTILISATION_TO_ESTIMATE_CAPACITY && requests > 0.0;
    if is_measurable {
        seen.capacity = seen.rate / seen.utilisation;
    }
    is_measurable
}

#[cfg(test)]
mod tests {
    use service::workload::{KeyGenerator, Popularity};

    use super::*;

    /// A model of servers in a closed loop, with given capacities and a key distribution.
    struct World {
        capacities: Vec<f64>,
        /// The owner of each key.
        owners: Vec<usize>,
        chooser: KeyGenerator,
        loads: Vec<ServerLoad>,
    }

    const KEYS: u64 = 100_000;

    fn index(key: u64) -> usize {
        usize::try_from(key).expect("small")
    }

    impl World {
        /// Creates a model in which each server owns as many keys as any other.
        fn new(capacities: &[f64], popularity: Popularity) -> Self {
            let each = index(KEYS) / capacities.len();
            Self {
                capacities: capacities.to_vec(),
                owners: (0..index(KEYS)).map(|key| key / each).collect(),
                chooser: KeyGenerator::new(KEYS, popularity, 3),
                loads: vec![ServerLoad::default(); capacities.len()],
            }
        }

        fn balancer(&self) -> Balancer {
            let splits = (1..self.capacities.len()).map(|server| {
                let first = self.owners.iter().position(|owner| *owner == server);
                first.expect("every server has keys") as u64
            });
            Balancer::new(ControlLawParameters::default(), splits.collect(), &[])
        }

        /// Returns the share of requests for keys of each server.
        fn shares(&mut self) -> Vec<f64> {
            let mut shares = vec![0.0; self.capacities.len()];
            for _ in 0..40_000 {
                shares[self.owners[index(self.chooser.next(0))]] += 1.0 / 40_000.0;
            }
            shares
        }

        /// Advances the model by a tenth of a second and returns the total rate: the most utilised server slows the
        /// clients down.
        fn pass(&mut self) -> f64 {
            let shares = self.shares();
            let limits = self.capacities.iter().zip(&shares);
            let rate = limits
                .map(|(capacity, share)| capacity / share.max(1e-9))
                .fold(f64::INFINITY, f64::min);
            for (i, load) in self.loads.iter_mut().enumerate() {
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "counts"
                )]
                let whole = |x: f64| x as u64;
                load.server_clock_ns += 100_000_000;
                load.total_requests += whole(rate * shares[i] * 0.1);
                load.total_busy_ns += whole(1e8 * rate * shares[i] / self.capacities[i]);
                load.sampled_keys.clear();
            }
            for _ in 0..160 * self.capacities.len() {
                let key = self.chooser.next(0);
                self.loads[self.owners[index(key)]].sampled_keys.push(key);
            }
            rate
        }

        /// Moves a range: the taker gets the keys that the giver owns.
        fn move_range(&mut self, planned: &RangeMove) {
            let [giver, taker] = [planned.giver, planned.taker].map(usize::from);
            let end = planned.end_key.map_or(self.owners.len(), index);
            for owner in &mut self.owners[index(planned.first_key)..end] {
                if *owner == giver {
                    *owner = taker;
                }
            }
        }

        /// Returns the first key of a range that the giver owns.
        fn first_key_kept_by_giver(&self, planned: &RangeMove) -> Option<u64> {
            let end = planned.end_key.unwrap_or(KEYS);
            (planned.first_key..end)
                .find(|key| self.owners[index(*key)] == usize::from(planned.giver))
        }
    }

    /// Returns the number of steps until the rate is above 95 % of the best. The first `ignored` moves do not happen.
    fn steps_to_balance(world: &mut World, ignored: u32) -> u32 {
        let best: f64 = world.capacities.iter().sum();
        let mut balancer = world.balancer();
        let mut planned = 0;
        for step in 0..40 {
            let rate = world.pass();
            if rate > 0.95 * best {
                return step;
            }
            if let Some(last) = balancer.unconfirmed_move() {
                balancer.confirm_move(world.first_key_kept_by_giver(&last));
            }
            if let Some(plan) = balancer.observe_and_plan_move(&world.loads.clone()) {
                assert_eq!(plan.giver.abs_diff(plan.taker), 1);
                assert!(plan.end_key.is_some_and(|end| end > plan.first_key));
                planned += 1;
                if planned > ignored {
                    world.move_range(&plan);
                }
            }
        }
        panic!("no balance: splits {:?} of {KEYS}", balancer.split_keys());
    }

    #[test]
    fn a_slow_server_gets_what_it_can_serve() {
        for capacities in [[3e6, 1e6], [1e6, 3e6], [1e6, 1e6], [9e6, 1e6]] {
            let mut world = World::new(&capacities, Popularity::Uniform);
            let steps = steps_to_balance(&mut world, 0);
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
            let steps = steps_to_balance(&mut World::new(&[3e6, 1e6], hot), 0);
            assert!(steps <= 12, "{steps} steps for a hot range at {first}");
        }
    }

    #[test]
    fn a_move_that_does_not_happen_is_planned_again() {
        for capacities in [[9e6, 1e6], [1e6, 9e6]] {
            for first in [KEYS / 2, KEYS / 2 - 1000] {
                let hot = Popularity::HotRange {
                    share: 0.9,
                    first,
                    keys: 1000,
                };
                for ignored in [1, 3] {
                    let steps = steps_to_balance(&mut World::new(&capacities, hot), ignored);
                    assert!(steps <= 20, "{steps} steps for {capacities:?}");
                }
            }
        }
    }

    #[test]
    fn a_split_is_restored_as_far_as_the_range_has_not_moved() {
        let planned = |giver, taker, from, end| RangeMove {
            giver,
            taker,
            first_key: from,
            end_key: Some(end),
        };
        let split_after = |planned: RangeMove, kept_from| {
            let mut balancer = Balancer::new(ControlLawParameters::default(), vec![50], &[]);
            // The split that the plan has set.
            balancer.split_keys[0] = match planned.taker > planned.giver {
                true => planned.first_key,
                false => planned.end_key.expect("set above"),
            };
            balancer.unconfirmed_move = Some(planned);
            balancer.confirm_move(kept_from);
            assert_eq!(balancer.unconfirmed_move(), None);
            balancer.split_keys[0]
        };
        let to_right = planned(0, 1, 40, 50);
        assert_eq!(
            [None, Some(40), Some(45)].map(|kept| split_after(to_right, kept)),
            [40, 50, 50]
        );
        let to_left = planned(1, 0, 50, 60);
        assert_eq!(
            [None, Some(50), Some(55)].map(|kept| split_after(to_left, kept)),
            [60, 50, 55]
        );
    }

    /// A pair that needs a move most, and has no range to move, does not keep the other pairs from their moves.
    #[test]
    fn a_hot_key_does_not_stop_the_moves_of_other_servers() {
        let mut balancer = Balancer::new(
            ControlLawParameters::default(),
            vec![100, 200, 300],
            &[1.0; 4],
        );
        // One key has all requests of servers 0 and 1.
        let requests = [1, 999, 900, 100];
        let load = |pass: u64| {
            (0u64..).zip(requests).map(move |(server, requests)| {
                let sampled_keys = match server {
                    0 => vec![50; 40],
                    1 => vec![100; 40],
                    _ => (0..40).map(|i| 100 * server + 2 * i).collect(),
                };
                ServerLoad {
                    total_requests: pass * requests * 1000,
                    total_busy_ns: pass * requests * 100_000,
                    server_clock_ns: pass * 100_000_000,
                    unfinished_takes: 0,
                    sampled_keys,
                }
            })
        };
        assert_eq!(
            balancer.observe_and_plan_move(&load(1).collect::<Vec<_>>()),
            None
        );
        let plan = balancer.observe_and_plan_move(&load(2).collect::<Vec<_>>());
        assert!(
            plan.is_some_and(|plan| (plan.giver, plan.taker) == (2, 3)),
            "{plan:?}"
        );
    }

    #[test]
    fn what_is_balanced_stays() {
        let mut world = World::new(&[1e6, 1e6], Popularity::Uniform);
        let mut balancer = world.balancer();
        for _ in 0..20 {
            world.pass();
            assert_eq!(balancer.observe_and_plan_move(&world.loads.clone()), None);
        }
        // No move while a range is being handed over.
        world.loads[1].unfinished_takes = 1;
        world.capacities = vec![5e6, 1e6];
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
