//! Migration of a polling thread that shares its core with the peer that it waits for.
//!
//! Two threads on one core exchange one message for each two context switches. On two cores they exchange many
//! messages while both have a core. The scheduler does not separate the two, because threads that yield are always
//! runnable and all cores are equally loaded. The number of waits that end between two yields tells both cases apart.

/// A polling thread's waits and yields on a crowded core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoreMigration {
    ended_waits: u32,
    yields: u32,
    yields_per_check: u32,
}

/// Yields before the first check, 0.2 to 0.5 ms of a crowd. The number doubles with each check until the thread is on
/// another core than its peer.
const FIRST_YIELDS_PER_CHECK: u32 = 32;

/// Largest number of yields between two checks. Crowds in which no migration helps pay for one migration in this time.
const MAX_YIELDS_PER_CHECK: u32 = 65_536;

/// A thread that shares its core with its peer ends about one wait between two yields: at most this number of waits in
/// four yields.
const MAX_WAITS_IN_FOUR_YIELDS_ON_PEERS_CORE: u64 = 5;

/// A thread that ends this number of waits for each yield is on another core than its peer. Numbers in between are those
/// of threads with many peers, which no migration helps.
const MIN_WAITS_PER_YIELD_ON_OTHER_CORE: u64 = 8;

impl CoreMigration {
    /// Makes the state of a thread that has not yielded.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            ended_waits: 0,
            yields: 0,
            yields_per_check: FIRST_YIELDS_PER_CHECK,
        }
    }

    /// Records that the thread has found something, and waits anew.
    pub fn record_wait(&mut self) {
        self.ended_waits = self.ended_waits.saturating_add(1);
    }

    /// Records a yield. Returns true if the thread should move to another core. `coin` is random: if both threads of a
    /// pair moved, they would meet again.
    pub fn record_yield_and_should_migrate(&mut self, is_crowded: bool, coin: bool) -> bool {
        if !is_crowded {
            (self.ended_waits, self.yields) = (0, 0);
            return false;
        }
        self.yields += 1;
        if self.yields < self.yields_per_check {
            return false;
        }
        let (waits, yields) = (u64::from(self.ended_waits), u64::from(self.yields));
        let few_waits = 4 * waits <= MAX_WAITS_IN_FOUR_YIELDS_ON_PEERS_CORE * yields;
        (self.ended_waits, self.yields) = (0, 0);
        self.yields_per_check = if waits >= MIN_WAITS_PER_YIELD_ON_OTHER_CORE * yields {
            FIRST_YIELDS_PER_CHECK
        } else {
            (2 * self.yields_per_check).min(MAX_YIELDS_PER_CHECK)
        };
        few_waits && coin
    }
}

impl Default for CoreMigration {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Records `yields` yields of a crowd with `waits` waits before each. Returns the number of migrations.
    fn migrations(state: &mut CoreMigration, yields: u32, waits: u32) -> usize {
        let moves = (0..yields).filter(|_| {
            (0..waits).for_each(|_| state.record_wait());
            state.record_yield_and_should_migrate(true, true)
        });
        moves.count()
    }

    #[test]
    fn a_thread_with_a_message_for_each_yield_migrates_ever_more_rarely() {
        let mut state = CoreMigration::new();
        assert_eq!(migrations(&mut state, FIRST_YIELDS_PER_CHECK - 1, 1), 0);
        assert_eq!(migrations(&mut state, 1, 1), 1);
        assert_eq!(migrations(&mut state, 2 * FIRST_YIELDS_PER_CHECK - 1, 1), 0);
        assert_eq!(migrations(&mut state, 1, 1), 1);
        migrations(&mut state, 10 * MAX_YIELDS_PER_CHECK, 1);
        assert_eq!(migrations(&mut state, 10 * MAX_YIELDS_PER_CHECK, 1), 10);
    }

    #[test]
    fn a_thread_with_many_messages_for_each_yield_stays() {
        let mut state = CoreMigration::new();
        migrations(&mut state, 10 * MAX_YIELDS_PER_CHECK, 1);
        assert_eq!(migrations(&mut state, 10 * MAX_YIELDS_PER_CHECK, 20), 0);
        // The thread soon migrates again if it gets few messages.
        assert!(migrations(&mut state, 2 * FIRST_YIELDS_PER_CHECK, 0) > 0);
    }

    #[test]
    fn a_thread_with_some_messages_for_each_yield_stays_and_is_checked_ever_more_rarely() {
        let mut state = CoreMigration::new();
        assert_eq!(migrations(&mut state, 2 * MAX_YIELDS_PER_CHECK, 3), 0);
        assert_eq!(migrations(&mut state, MAX_YIELDS_PER_CHECK / 2, 0), 0);
    }

    #[test]
    fn the_coin_and_a_free_core_keep_a_thread_where_it_is() {
        let mut state = CoreMigration::new();
        let tails = |_: &u32| state.record_yield_and_should_migrate(true, false);
        assert_eq!((0..FIRST_YIELDS_PER_CHECK).filter(tails).count(), 0);
        let alone = |_: &u32| state.record_yield_and_should_migrate(false, true);
        assert_eq!((0..MAX_YIELDS_PER_CHECK).filter(alone).count(), 0);
    }
}
