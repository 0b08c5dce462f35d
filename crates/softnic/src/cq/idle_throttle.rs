//! Idle-poll throttling: the actions of a thread between polls that find nothing for long.
//!
//! The thread pauses. A poll reads the cache lines in which messages arrive, and a program that waits for a WRITE reads
//! its line between polls. Each such read takes the line from the peer, whose next store to it waits until the line is
//! back. A thread that has waited for a tenth of a millisecond or more loses a thousandth of that time by reading a
//! little later. Its peers write several times as much between two reads.
//!
//! The thread also yields if others want its core: the peer that it waits for may be one of them
//! ([`SpinTime`]). A thread that shares a crowded core with its peer moves to another core ([`CoreMigration`]).

use std::cell::Cell;
use std::hint;

use nic_core::core_migration::CoreMigration;
use nic_core::yielding::SpinTime;
use shm::clock::{ticks, ticks_per_us};

use super::migrate_thread::migrate_to_another_core;

/// Number of empty polls of one queue in a row after which [`throttle_idle_poller_and_get_polls_until_next`] is called.
/// A poll takes 15 to 200 ns, so these are 8 to 100 µs.
pub(super) const IDLE_POLLS_UNTIL_THROTTLE: u32 = 512;

/// The same on a crowded core, where polls find nothing until a peer has had the core.
const CROWDED_IDLE_POLLS_UNTIL_THROTTLE: u32 = 8;

/// Least number of polls in the spin before a yield. A program that makes fewer polls in that time yields itself, as MPI
/// libraries do, or computes. A yield of ours would be its second one.
const MIN_POLLS_UNTIL_YIELD: u32 = 16;

/// Number of polls of idle queues that a thread makes without any completion before it pauses. A thread that polls an
/// idle queue besides a busy one does not pause. Programs with one queue for sends and one for receives do that.
const FRUITLESS_POLLS_UNTIL_PAUSE: u32 = 1024;

/// The time between the beginnings of two rounds of polls is the time waited divided by this number, so that messages
/// are not found much later. A thread that does other work in between, or polls many queues, takes longer anyway and
/// does not pause.
const WAIT_TO_INTERVAL_RATIO: u64 = 1024;

/// Longest time in nanoseconds between two rounds: a peer fills its store buffer many times in it.
const MAX_ROUND_INTERVAL_NS: u64 = 1000;

/// A bit of the tick counter that is random after a yield. Counters of some processors advance in larger steps than 1.
const COIN_TICK_BIT: u64 = 128;

/// Number of yields to other threads between two short sleeps. Threads that yield to each other on one core stay there,
/// although other cores are idle: the scheduler does not move a thread that has just run. It places a thread that
/// wakes.
const YIELDS_PER_SLEEP: u32 = 512;

/// A thread's record of its polls. Times are in ticks.
#[derive(Clone, Copy)]
struct PollRecord {
    /// The queue whose poll begins a round.
    round_start_queue: usize,
    /// Start of the first round, and start of the last one.
    first_round_start_ticks: u64,
    last_round_start_ticks: u64,
    /// Time of the first poll that found nothing, or of the end of the last yield.
    empty_since_ticks: u64,
    spin_time: SpinTime,
    /// Number of polls since `empty_since_ticks`.
    polls_in_spin: u32,
    /// Number of yields to others since the last sleep.
    yields_since_sleep: u32,
    core_migration: CoreMigration,
}

/// The action of a thread before it polls again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NextPollAction {
    /// No action.
    PollImmediately,
    /// Pauses for this number of ticks from the given time on.
    PauseForTicks(u64),
    /// Yields the core to other threads.
    Yield,
}

thread_local! {
    /// Number of polls of idle queues since the last completion. At twice [`FRUITLESS_POLLS_UNTIL_PAUSE`] the count
    /// returns to one more than [`FRUITLESS_POLLS_UNTIL_PAUSE`].
    static FRUITLESS_POLL_COUNT: Cell<u32> = const { Cell::new(0) };

    static POLL_RECORD: Cell<PollRecord> = const { Cell::new(PollRecord::new()) };
}

impl PollRecord {
    const fn new() -> Self {
        Self {
            round_start_queue: usize::MAX,
            first_round_start_ticks: 0,
            last_round_start_ticks: 0,
            empty_since_ticks: 0,
            spin_time: SpinTime::new(),
            polls_in_spin: 0,
            yields_since_sleep: 0,
            core_migration: CoreMigration::new(),
        }
    }

    /// Decides on the action after a poll of `queue` that found nothing at the time `now`, the `fruitless`th one. There
    /// are `per_us` ticks in a microsecond.
    fn decide_action_after_empty_poll(
        &mut self,
        queue: usize,
        fruitless: &mut u32,
        now: u64,
        per_us: u64,
    ) -> NextPollAction {
        *fruitless += 1;
        if *fruitless == 1 {
            self.empty_since_ticks = now;
            self.polls_in_spin = 0;
            self.core_migration.record_wait();
        }
        self.polls_in_spin += 1;
        let in_vain = now.wrapping_sub(self.empty_since_ticks);
        if self.polls_in_spin >= MIN_POLLS_UNTIL_YIELD
            && in_vain >= self.spin_time.spin_ns() * per_us / 1000
        {
            return NextPollAction::Yield;
        }
        if *fruitless == FRUITLESS_POLLS_UNTIL_PAUSE {
            (
                self.round_start_queue,
                self.first_round_start_ticks,
                self.last_round_start_ticks,
            ) = (queue, now, now);
        } else if *fruitless == 2 * FRUITLESS_POLLS_UNTIL_PAUSE {
            // Start again: the thread may no longer poll the other queue.
            (self.round_start_queue, *fruitless) = (queue, FRUITLESS_POLLS_UNTIL_PAUSE + 1);
        }
        if *fruitless <= FRUITLESS_POLLS_UNTIL_PAUSE || self.round_start_queue != queue {
            return NextPollAction::PollImmediately;
        }
        let waited = self
            .last_round_start_ticks
            .wrapping_sub(self.first_round_start_ticks);
        let rest = (waited / WAIT_TO_INTERVAL_RATIO).min(MAX_ROUND_INTERVAL_NS * per_us / 1000);
        let gone = now.wrapping_sub(self.last_round_start_ticks);
        self.last_round_start_ticks = now;
        match rest.checked_sub(gone) {
            Some(left) if left > 0 => {
                self.last_round_start_ticks = now.wrapping_add(left);
                NextPollAction::PauseForTicks(left)
            }
            _ => NextPollAction::PollImmediately,
        }
    }

    /// Records a yield that began at `before` and ended at `now`. Returns true if it is time for a short sleep.
    fn record_yield(&mut self, before: u64, now: u64, per_us: u64) -> bool {
        let was_alone = !self.spin_time.is_crowded();
        (self.empty_since_ticks, self.polls_in_spin) = (now, 0);
        self.spin_time
            .record_yield(now.wrapping_sub(before) * 1000 / per_us);
        if was_alone || !self.spin_time.is_crowded() {
            self.yields_since_sleep = 0;
            return false;
        }
        self.yields_since_sleep = (self.yields_since_sleep + 1) % YIELDS_PER_SLEEP;
        self.yields_since_sleep == 0
    }

    /// Returns true if the thread should move to another core after a yield. `coin` is random.
    fn should_migrate(&mut self, coin: bool) -> bool {
        let is_crowded = self.spin_time.is_crowded();
        self.core_migration
            .record_yield_and_should_migrate(is_crowded, coin)
    }

    /// Returns the number of empty polls in a row until the next call of
    /// [`throttle_idle_poller_and_get_polls_until_next`].
    fn polls_until_throttle(&self) -> u32 {
        if self.spin_time.is_crowded() {
            CROWDED_IDLE_POLLS_UNTIL_THROTTLE
        } else {
            IDLE_POLLS_UNTIL_THROTTLE
        }
    }
}

/// Records that the calling thread has found a completion.
#[inline]
pub(super) fn reset_fruitless_polls() {
    FRUITLESS_POLL_COUNT.set(0);
}

/// Pauses or yields if the calling thread, which holds no lock, has found nothing for long. Returns the number of empty
/// polls in a row after which to call again.
#[cold]
pub(super) fn throttle_idle_poller_and_get_polls_until_next(queue: usize) -> u32 {
    let (mut looks, mut fruitless) = (POLL_RECORD.get(), FRUITLESS_POLL_COUNT.get());
    let (now, per_us) = (ticks(), ticks_per_us());
    match looks.decide_action_after_empty_poll(queue, &mut fruitless, now, per_us) {
        NextPollAction::PollImmediately => {}
        NextPollAction::PauseForTicks(time) => {
            while ticks().wrapping_sub(now) < time {
                hint::spin_loop();
            }
        }
        NextPollAction::Yield => {
            std::thread::yield_now();
            let after = ticks();
            if looks.should_migrate(after & COIN_TICK_BIT != 0) {
                migrate_to_another_core(after / COIN_TICK_BIT);
            }
            if looks.record_yield(now, after, per_us) {
                std::thread::sleep(std::time::Duration::from_micros(1));
                looks.empty_since_ticks = ticks();
            }
        }
    }
    FRUITLESS_POLL_COUNT.set(fruitless);
    POLL_RECORD.set(looks);
    looks.polls_until_throttle()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ticks in a microsecond.
    const PER_US: u64 = 3000;

    /// A thread with a clock of its own, whose core is crowded only if the test says so.
    struct Thread {
        looks: PollRecord,
        fruitless: u32,
        now: u64,
    }

    impl Thread {
        fn new() -> Self {
            let mut looks = PollRecord::new();
            // The core has not been crowded for long.
            (0..40).for_each(|_| looks.spin_time.record_yield(300));
            Self {
                looks,
                fruitless: 0,
                now: 0,
            }
        }

        fn look(&mut self, queue: usize) -> NextPollAction {
            self.now += 10;
            let next = self.looks.decide_action_after_empty_poll(
                queue,
                &mut self.fruitless,
                self.now,
                PER_US,
            );
            match next {
                NextPollAction::PollImmediately => {}
                NextPollAction::PauseForTicks(time) => self.now += time,
                NextPollAction::Yield => {
                    let before = self.now;
                    self.now += PER_US / 3;
                    self.looks.record_yield(before, self.now, PER_US);
                }
            }
            next
        }

        /// Returns the number of pauses in `polls` polls of each queue in turn.
        fn rests(&mut self, queues: usize, polls: u32) -> u32 {
            let mut rests = 0;
            for _ in 0..polls {
                for queue in 0..queues {
                    rests +=
                        u32::from(matches!(self.look(queue), NextPollAction::PauseForTicks(_)));
                }
            }
            rests
        }
    }

    #[test]
    fn rests_once_a_round_and_not_where_something_is_found() {
        let mut thread = Thread::new();
        assert_eq!(thread.rests(1, FRUITLESS_POLLS_UNTIL_PAUSE + 1), 0);
        // After a second of waiting: a thousandth of it, but no more than a microsecond.
        thread.looks.first_round_start_ticks = thread.now.wrapping_sub(1_000_000 * PER_US);
        thread.looks.empty_since_ticks = thread.now;
        thread.looks.last_round_start_ticks = thread.now;
        let before = thread.now;
        assert_eq!(thread.rests(1, 100), 100);
        assert_eq!(
            thread.now - before,
            100 * MAX_ROUND_INTERVAL_NS * PER_US / 1000
        );
        thread.fruitless = 0;
        assert_eq!(thread.rests(1, 10), 0);
        // One pause for a round over many queues.
        let mut thread = Thread::new();
        assert_eq!(thread.rests(64, FRUITLESS_POLLS_UNTIL_PAUSE / 64 + 1), 0);
        thread.looks.first_round_start_ticks = thread.now.wrapping_sub(1_000_000 * PER_US);
        thread.looks.empty_since_ticks = thread.now;
        assert_eq!(thread.rests(64, 10), 10);
    }

    #[test]
    fn yields_when_the_spin_is_over_and_more_often_in_a_crowd() {
        let mut thread = Thread::new();
        let spin = thread.looks.spin_time.spin_ns() * PER_US / 1000;
        assert_eq!(thread.look(0), NextPollAction::PollImmediately);
        assert_eq!(
            thread.looks.polls_until_throttle(),
            IDLE_POLLS_UNTIL_THROTTLE
        );
        thread.now += spin;
        for _ in 2..MIN_POLLS_UNTIL_YIELD {
            let next = thread.look(0);
            assert_eq!(next, NextPollAction::PollImmediately, "few polls so far");
        }
        assert_eq!(thread.look(0), NextPollAction::Yield);
        assert_eq!(
            thread.look(0),
            NextPollAction::PollImmediately,
            "and spins anew"
        );
        // A found completion begins a new spin.
        thread.now += spin;
        thread.fruitless = 0;
        assert_eq!(thread.look(0), NextPollAction::PollImmediately);
        // Other threads had the core each time.
        for _ in 0..20 {
            thread.looks.record_yield(0, 5 * PER_US, PER_US);
        }
        assert_eq!(
            thread.looks.polls_until_throttle(),
            CROWDED_IDLE_POLLS_UNTIL_THROTTLE
        );
        thread.fruitless = 0;
        assert_eq!(thread.look(0), NextPollAction::PollImmediately);
        thread.now += thread.looks.spin_time.spin_ns() * PER_US / 1000;
        let yields = (1..MIN_POLLS_UNTIL_YIELD).filter(|_| thread.look(0) == NextPollAction::Yield);
        assert_eq!(yields.count(), 1);
        assert!(thread.looks.spin_time.spin_ns() * PER_US / 1000 < spin / 100);
    }

    #[test]
    fn sleeps_shortly_once_in_many_yields_of_a_crowd() {
        let mut looks = PollRecord::new();
        let sleeps =
            (0..10 * YIELDS_PER_SLEEP).filter(|_| looks.record_yield(0, 5 * PER_US, PER_US));
        assert!([9, 10].contains(&sleeps.count()));
        let mut looks = PollRecord::new();
        assert!(!(0..10 * YIELDS_PER_SLEEP).any(|_| looks.record_yield(0, PER_US / 3, PER_US)));
    }

    #[test]
    fn a_counter_that_jumps_back_ends_a_rest_soon() {
        let mut thread = Thread::new();
        thread.now = 1 << 40;
        thread.rests(1, FRUITLESS_POLLS_UNTIL_PAUSE + 1);
        thread.now = 1 << 30;
        for _ in 0..3 {
            match thread.look(0) {
                NextPollAction::PauseForTicks(time) => {
                    assert!(time <= MAX_ROUND_INTERVAL_NS * PER_US / 1000)
                }
                NextPollAction::PollImmediately | NextPollAction::Yield => {}
            }
        }
    }
}
