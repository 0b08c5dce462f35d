//! The control law of a split that adapts: which range goes from which server to which, so that all are equally loaded.
//!
//! A [`Balancer`] is given what each server is doing, as often as one likes, and says what to move. For two neighbours with
//! request rates `x` and shares of time that they are busy `u`, the rate that each could serve is `x / u`. Both are equally
//! loaded when each has a share of the requests in proportion to that. So the step is model-based, and the next observation
//! corrects it: the rates that a server could serve change with what it has (its caches), and with its load (its batches).
//!
//! - *Hysteresis*: a server whose share of the requests is off by less than [`Law::hysteresis`] of it gives and takes
//!   nothing. The smaller of two neighbours decides, as it is the one that limits both.
//! - *Skew*: the range to move is found in a sample of the keys that clients asked for, so it is as many requests as the step
//!   says, however many keys that is: a hot range moves, and not half of the tree.
//! - *Bounds*: a step moves at most [`Law::most`] of the giver's requests; a server takes at most so many bytes a second
//!   ([`ServerConfig::handover_bytes_per_s`](crate::ServerConfig::handover_bytes_per_s)).

/// What a server is doing: counters since it began, and a sample of the keys that were asked for lately.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PartLoad {
    /// Requests that came.
    pub requests: u64,
    /// Nanoseconds in which it had requests to carry out.
    pub busy_ns: u64,
    /// The time by its clock, in nanoseconds.
    pub now_ns: u64,
    /// Ranges that it is taking from others.
    pub taking: u64,
    /// Keys that were asked for.
    pub sample: Vec<u64>,
}

impl PartLoad {
    /// From the entries of the answer to [`Op::Load`](crate::Op::Load); `None` if they are too few.
    pub fn of(entries: &[(u64, u64)]) -> Option<Self> {
        let (&[(requests, busy_ns), (now_ns, taking)], sample) =
            entries.split_first_chunk::<2>()?;
        Some(Self {
            requests,
            busy_ns,
            now_ns,
            taking,
            sample: sample.iter().flat_map(|(a, b)| [*a, *b]).collect(),
        })
    }
}

/// Numbers of the control law.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Law {
    /// The difference between the share of requests that a server has and the one that it should have, relative to the
    /// latter, below which nothing is moved, 0 to 1. What is lost of the best throughput is less than that.
    pub hysteresis: f64,
    /// The share of the difference that a step moves, 0 to 1: below 1 it approaches what it aims at from one side.
    pub gain: f64,
    /// The share of the giver's requests that a step moves at most, 0 to 1.
    pub most: f64,
    /// Keys of the giver's sample without which nothing is moved.
    pub least_sample: usize,
}

impl Default for Law {
    fn default() -> Self {
        Self {
            hysteresis: 0.03,
            gain: 0.8,
            most: 0.5,
            least_sample: 32,
        }
    }
}

/// A range to move.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct Move {
    /// The server that has it.
    pub giver: u16,
    /// The server that is to have it.
    pub taker: u16,
    /// The first key.
    pub from: u64,
    /// The first key behind it, if there is one.
    pub end: Option<u64>,
}

/// What a server did between two observations.
#[derive(Debug, Clone, Copy, Default, PartialEq, serde::Serialize)]
pub struct Observed {
    /// Requests a second.
    pub rate: f64,
    /// The share of time that it was busy, 0 to 1.
    pub utilisation: f64,
    /// Requests a second that it could serve, as far as is known.
    pub capacity: f64,
}

/// Decides what to move between servers whose ranges are in the order of their numbers.
#[derive(Debug)]
pub struct Balancer {
    law: Law,
    /// Where the ranges begin, but for the first.
    splits: Vec<u64>,
    last: Vec<Option<PartLoad>>,
    seen: Vec<Observed>,
    /// What the servers were thought to serve before anything was seen.
    thought: Vec<f64>,
    /// Whether what a server could serve was seen.
    known: Vec<bool>,
}

/// Below this share of time busy, what a server could serve is not known from what it does.
const LEAST_BUSY: f64 = 0.005;

impl Balancer {
    /// For servers with these splits. `capacities` are requests a second that they are thought to serve, one more than
    /// splits, until more is known: only their ratios count. Without them all are alike.
    pub fn new(law: Law, splits: Vec<u64>, capacities: &[f64]) -> Self {
        let parts = splits.len() + 1;
        let capacity = |i: usize| capacities.get(i).copied().unwrap_or(1.0).max(1e-9);
        Self {
            law,
            splits,
            last: vec![None; parts],
            seen: vec![Observed::default(); parts],
            thought: (0..parts).map(capacity).collect(),
            known: vec![false; parts],
        }
    }

    /// Where the ranges begin, but for the first.
    pub fn splits(&self) -> &[u64] {
        &self.splits
    }

    /// What the servers did between the last two observations.
    pub fn observed(&self) -> &[Observed] {
        &self.seen
    }

    /// Takes what the servers are doing, in the order of their numbers; what to move, if anything. The splits are those
    /// after the move.
    pub fn observe(&mut self, loads: &[PartLoad]) -> Option<Move> {
        if loads.len() != self.last.len() {
            return None;
        }
        let mut is_first = false;
        for (i, load) in loads.iter().enumerate() {
            match self.last[i].replace(load.clone()) {
                Some(before) if load.now_ns > before.now_ns => {
                    self.known[i] |= watch(&mut self.seen[i], &before, load);
                }
                _ => is_first = true,
            }
        }
        self.guess();
        // While a range is on its way rates say little.
        if is_first || loads.iter().any(|load| load.taking > 0) {
            return None;
        }
        let pairs = (0..self.splits.len()).map(|left| (left, self.shift(left)));
        let relative = |(_, (shift, least)): &(usize, (f64, f64))| shift.abs() / least;
        let worst = pairs.max_by(|a, b| relative(a).total_cmp(&relative(b)))?;
        if relative(&worst).is_nan() || relative(&worst) < self.law.hysteresis {
            return None;
        }
        let (left, (shift, _)) = worst;
        self.plan(left, shift, loads)
    }

    /// A server of which too little was seen is thought to be to the others what it was thought to be before.
    fn guess(&mut self) {
        let known = (0..self.seen.len()).filter(|i| self.known[*i]);
        let scales = known.map(|i| self.seen[i].capacity / self.thought[i]);
        let scale = scales.fold(0.0, f64::max);
        for i in 0..self.seen.len() {
            if !self.known[i] && scale > 0.0 {
                self.seen[i].capacity = self.thought[i] * scale;
            }
        }
    }

    /// The share of the requests of two neighbours that should go from the left to the right one, below 0 the other way;
    /// and the share that the smaller of them should have.
    fn shift(&self, left: usize) -> (f64, f64) {
        let (a, b) = (self.seen[left], self.seen[left + 1]);
        let (rate, capacity) = (a.rate + b.rate, a.capacity + b.capacity);
        if rate <= 0.0 || capacity <= 0.0 {
            return (0.0, 1.0);
        }
        let right = b.capacity / capacity;
        (right - b.rate / rate, right.min(1.0 - right).max(1e-3))
    }

    fn plan(&mut self, left: usize, shift: f64, loads: &[PartLoad]) -> Option<Move> {
        let (a, b) = (self.seen[left], self.seen[left + 1]);
        let rate = a.rate + b.rate;
        let (giver, taker) = if shift > 0.0 {
            (left, left + 1)
        } else {
            (left + 1, left)
        };
        let share = self.law.gain * shift.abs() * rate / self.seen[giver].rate.max(1e-9);
        let share = share.min(self.law.most);
        let low = giver.checked_sub(1).map_or(0, |i| self.splits[i]);
        let high = self.splits.get(giver).copied();
        // What was asked for while the range was another one does not count.
        let mut sample = loads[giver].sample.clone();
        sample.retain(|key| *key >= low && high.is_none_or(|high| *key < high));
        if sample.len() < self.law.least_sample {
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
        let split = self.splits[left];
        let (from, end) = if taker > giver {
            let at = *sample.get(sample.len().checked_sub(count)?)?;
            (at, Some(split))
        } else {
            (split, Some(*sample.get(count)?))
        };
        if end.is_some_and(|end| end <= from) {
            return None;
        }
        self.splits[left] = if taker > giver { from } else { end? };
        Some(Move {
            giver: u16::try_from(giver).ok()?,
            taker: u16::try_from(taker).ok()?,
            from,
            end,
        })
    }
}

/// What a server did between two observations; whether that says what it could serve.
#[expect(clippy::cast_precision_loss, reason = "rates")]
fn watch(seen: &mut Observed, before: &PartLoad, after: &PartLoad) -> bool {
    let ns = (after.now_ns - before.now_ns) as f64;
    let requests = after.requests.saturating_sub(before.requests) as f64;
    let busy = after.busy_ns.saturating_sub(before.busy_ns) as f64;
    seen.rate = requests * 1e9 / ns;
    seen.utilisation = (busy / ns).clamp(0.0, 1.0);
    let says = seen.utilisation >= LEAST_BUSY && requests > 0.0;
    if says {
        seen.capacity = seen.rate / seen.utilisation;
    }
    says
}

#[cfg(test)]
mod tests {
    use service::workload::{Chooser, Popularity};

    use super::*;

    /// Two servers in a closed loop: each could serve so much, and keys are asked for by a law.
    struct World {
        capacities: [f64; 2],
        split: u64,
        chooser: Chooser,
        loads: [PartLoad; 2],
    }

    const KEYS: u64 = 100_000;

    impl World {
        fn new(capacities: [f64; 2], popularity: Popularity) -> Self {
            Self {
                capacities,
                split: KEYS / 2,
                chooser: Chooser::new(KEYS, popularity, 3),
                loads: Default::default(),
            }
        }

        /// The share of requests for keys of the second server.
        fn share(&mut self) -> f64 {
            let asked = (0..40_000)
                .filter(|_| self.chooser.next(0) >= self.split)
                .count();
            f64::from(u32::try_from(asked).expect("small")) / 40_000.0
        }

        /// The whole rate: the fuller server slows the clients down.
        fn rate(&self, share: f64) -> f64 {
            let [a, b] = self.capacities;
            (a / (1.0 - share).max(1e-9)).min(b / share.max(1e-9))
        }

        /// A tenth of a second passes.
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
                load.now_ns += 100_000_000;
                load.requests += whole(rates[i] * 0.1);
                load.busy_ns += whole(1e8 * rates[i] / self.capacities[i]);
                load.sample.clear();
            }
            for _ in 0..320 {
                let key = self.chooser.next(0);
                let side = usize::from(key >= self.split);
                self.loads[side].sample.push(key);
            }
            rate
        }
    }

    /// Steps until both are equally loaded, to 3 % of the best.
    fn steps_to_balance(world: &mut World) -> u32 {
        let best: f64 = world.capacities.iter().sum();
        let mut balancer = Balancer::new(Law::default(), vec![world.split], &[1.0, 1.0]);
        for step in 0..40 {
            let rate = world.pass();
            if rate > 0.95 * best {
                return step;
            }
            if let Some(plan) = balancer.observe(&world.loads.clone()) {
                assert_eq!(plan.giver.abs_diff(plan.taker), 1);
                assert!(plan.end.is_some_and(|end| end > plan.from));
                world.split = balancer.splits()[0];
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
        let mut balancer = Balancer::new(Law::default(), vec![world.split], &[1.0, 1.0]);
        for _ in 0..20 {
            world.pass();
            assert_eq!(balancer.observe(&world.loads.clone()), None);
        }
        // Nobody asks, or a range is on its way.
        world.loads[1].taking = 1;
        world.capacities = [5e6, 1e6];
        world.pass();
        assert_eq!(balancer.observe(&world.loads.clone()), None);
    }

    #[test]
    fn a_report_is_read_or_refused() {
        let load = PartLoad::of(&[(1, 2), (3, 4), (5, 6)]).expect("whole");
        assert_eq!(
            (load.requests, load.busy_ns, load.now_ns, load.taking),
            (1, 2, 3, 4)
        );
        assert_eq!(load.sample, [5, 6]);
        assert_eq!(PartLoad::of(&[(1, 2)]), None);
    }
}
