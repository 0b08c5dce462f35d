//! Waiting for memory that a peer writes, and for descriptors.
//!
//! One-sided verbs leave no completion at the target, so a program must read the memory repeatedly.
//! Every such loop of the project calls [`Waiter::idle`], so that a simulated NIC can let virtual
//! time pass. In a simulation, a wait ends when something may have arrived, and counts as many
//! misses as a core would have had.

use std::cell::Cell;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use nic_core::yielding::SpinTime;

use crate::simulated;
use crate::time::{now, now_ns};

thread_local! {
    /// The calling thread's experience with earlier yields.
    static YIELD_HISTORY: Cell<SpinTime> = const { Cell::new(SpinTime::new()) };
}

/// Spins before the first yield if other threads were often found to need the core.
const SPINS_BEFORE_YIELD_IF_CROWDED: u32 = 8;

/// Yields to other threads between two short sleeps.
const YIELDS_PER_SLEEP: u32 = 512;

/// Paces a polling loop: first spins, then sometimes yields the core, then sleeps for growing
/// times.
///
/// The outcome of the thread's earlier yields determines how often it yields. A yield may have
/// found no other thread, threads that wait and return the core soon, or a thread that computes for
/// a whole time slice.
///
/// ```
/// let mut waiter = verbs::Waiter::new();
/// let mut polls = 0;
/// while polls < 10 {
///     polls += 1; // found nothing
///     waiter.idle();
/// }
/// waiter.reset(); // found something
/// ```
#[derive(Debug, Clone)]
pub struct Waiter {
    misses: u32,
    /// The time of the first wish to yield, or of the last yield; 0 while spinning.
    wants_to_yield_since_ns: u64,
    /// Yields while other threads need the core.
    yields_on_crowded_core: u32,
    /// Spins before a yield: `spins`, or fewer while other threads need the core.
    spins_before_yield: u32,
    max_spins: u32,
    max_yields: u32,
    sleep_max: Duration,
}

impl Waiter {
    /// Makes a waiter that spins 256 times, may yield 2,000 times, then sleeps for 50 µs growing to
    /// 10 ms.
    pub const fn new() -> Self {
        Self {
            misses: 0,
            wants_to_yield_since_ns: 0,
            yields_on_crowded_core: 0,
            spins_before_yield: 256,
            max_spins: 256,
            max_yields: 2_000,
            sleep_max: Duration::from_millis(10),
        }
    }

    /// Makes a waiter that never sleeps, for loops that block on something else after a long wait.
    pub const fn never_sleeping() -> Self {
        Self {
            misses: 0,
            wants_to_yield_since_ns: 0,
            yields_on_crowded_core: 0,
            spins_before_yield: 256,
            max_spins: 256,
            max_yields: u32::MAX - 256,
            sleep_max: Duration::ZERO,
        }
    }

    /// Sets the number of spins before the first yield, and of yields before the first sleep.
    pub const fn with_spins_and_yields(mut self, spins: u32, yields: u32) -> Self {
        self.spins_before_yield = spins;
        self.max_spins = spins;
        self.max_yields = yields;
        self
    }

    /// Sets the longest sleep, which is also the longest delay of a first request after a long
    /// pause.
    pub const fn with_sleep_max(mut self, sleep_max: Duration) -> Self {
        self.sleep_max = sleep_max;
        self
    }

    /// Reports that a poll was successful: the next wait starts with spinning again.
    #[inline]
    pub fn reset(&mut self) {
        self.misses = 0;
        self.wants_to_yield_since_ns = 0;
    }

    /// Returns the number of consecutive polls without success.
    #[inline]
    pub fn misses(&self) -> u32 {
        self.misses
    }

    /// Returns true while waits cost only some cycles. A yield takes milliseconds on a busy
    /// machine. Therefore a loop can read the clock rarely while spinning, but should read it after
    /// each later wait.
    #[inline]
    pub fn is_spinning(&self) -> bool {
        simulated::is_simulated() || self.misses <= self.spins_before_yield
    }

    /// Reports that a poll found nothing, and lets some time pass, more each time.
    #[inline]
    pub fn idle(&mut self) {
        self.misses = self.misses.saturating_add(1);
        if simulated::is_simulated() {
            self.idle_simulated(None);
        } else if self.misses <= self.spins_before_yield {
            std::hint::spin_loop();
        } else {
            self.yield_or_sleep();
        }
    }

    /// Waits as [`idle`](Self::idle) does, for a loop that polls only one completion queue until a
    /// completion or until a time of [`now_ns`]. A simulated NIC polls in the
    /// loop's place meanwhile.
    #[inline]
    pub fn idle_polling_cq_until(&mut self, until_ns: u64) {
        if simulated::is_simulated() {
            self.misses = simulated::suspend_while_polling_cq(self.misses, until_ns);
        } else {
            self.idle();
        }
    }

    /// Waits as [`idle`](Self::idle) does, for a loop that reads the region with this R_Key.
    #[inline]
    pub(crate) fn idle_polling_rkey(&mut self, rkey: u32) {
        if simulated::is_simulated() {
            self.misses = self.misses.saturating_add(1);
            self.idle_simulated(Some(rkey));
        } else {
            self.idle();
        }
    }

    /// Lets virtual time pass.
    #[cold]
    fn idle_simulated(&mut self, memory: Option<u32>) {
        self.misses = simulated::suspend_while_polling_memory(self.misses, memory);
    }

    /// Returns the sleep of the next [`idle`](Self::idle); zero while it spins or yields. For a
    /// loop that prefers to block on a file descriptor for that long.
    pub fn next_sleep(&self) -> Duration {
        // Virtual time costs no core.
        if simulated::is_simulated() {
            return Duration::ZERO;
        }
        let patience = self.max_spins.saturating_add(self.max_yields);
        if self.misses < patience {
            return Duration::ZERO;
        }
        let doublings = (self.misses - patience).min(20);
        (Duration::from_micros(50) * (1 << doublings)).min(self.sleep_max)
    }

    /// Counts a wait in which the caller blocked elsewhere.
    pub fn record_external_wait(&mut self) {
        self.misses = self.misses.saturating_add(1);
    }

    /// Yields the core if due; otherwise spins for as long as a yield without other threads takes.
    ///
    /// The Linux scheduler considers threads that poll and yield as always "cache-hot". Two that
    /// wait for each other on one core stay there together although other cores are idle. They run
    /// at 3 instead of 12 million requests a second. A thread that sleeps,
    /// however shortly, is placed on an idle core when it wakes. Therefore a thread that finds its
    /// core shared sleeps sometimes.
    fn yield_if_due_else_spin(&mut self) {
        let now = now_ns();
        let mut yielding = YIELD_HISTORY.get();
        if self.wants_to_yield_since_ns == 0 {
            self.wants_to_yield_since_ns = now;
        }
        if now.saturating_sub(self.wants_to_yield_since_ns) < yielding.spin_ns() {
            (0..16).for_each(|_| std::hint::spin_loop());
            return;
        }
        std::thread::yield_now();
        self.wants_to_yield_since_ns = now_ns();
        yielding.record_yield(self.wants_to_yield_since_ns.saturating_sub(now));
        YIELD_HISTORY.set(yielding);
        if !yielding.is_crowded() {
            self.spins_before_yield = self.max_spins;
            return;
        }
        self.spins_before_yield = self.max_spins.min(SPINS_BEFORE_YIELD_IF_CROWDED);
        self.yields_on_crowded_core = self.yields_on_crowded_core.wrapping_add(1);
        if self.yields_on_crowded_core.is_multiple_of(YIELDS_PER_SLEEP) {
            std::thread::sleep(Duration::from_micros(1));
        }
    }

    #[cold]
    fn yield_or_sleep(&mut self) {
        self.misses -= 1;
        let sleep = self.next_sleep();
        self.misses += 1;
        if sleep.is_zero() {
            self.yield_if_due_else_spin();
        } else {
            std::thread::sleep(sleep);
        }
    }
}

impl Default for Waiter {
    fn default() -> Self {
        Self::new()
    }
}

/// Calls `ready` until it returns a value or `timeout` has passed.
///
/// ```
/// use std::time::Duration;
/// assert_eq!(verbs::poll_until(Duration::from_secs(1), || Some(7)), Some(7));
/// assert_eq!(verbs::poll_until(Duration::from_millis(1), || None::<u8>), None);
/// ```
pub fn poll_until<T>(timeout: Duration, mut ready: impl FnMut() -> Option<T>) -> Option<T> {
    let mut waiter = Waiter::new();
    let mut deadline = None;
    loop {
        if let Some(value) = ready() {
            return Some(value);
        }
        // Read the clock only after spinning without success.
        if waiter.misses() >= waiter.max_spins {
            let now = now();
            let end = *deadline.get_or_insert_with(|| now.checked_add(timeout));
            if end.is_some_and(|end| now >= end) {
                return ready();
            }
        }
        waiter.idle();
    }
}

/// Waits until a descriptor is readable; returns false after the timeout. Simulated threads wait in virtual time, for
/// the events of a completion channel alone.
pub(crate) fn wait_readable(fd: BorrowedFd<'_>, timeout: Duration) -> bool {
    use rustix::event::{PollFd, PollFlags, poll};
    if simulated::is_simulated() {
        return simulated::wait_until_channel_readable(fd.as_raw_fd(), timeout);
    }
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    let timeout = rustix::event::Timespec::try_from(timeout).ok();
    // An interruption by a signal counts as not readable; callers poll again.
    poll(&mut fds, timeout.as_ref()).is_ok_and(|n| n > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleeps_grow_to_the_limit() {
        let mut w = Waiter::new()
            .with_spins_and_yields(2, 2)
            .with_sleep_max(Duration::from_micros(300));
        let mut sleeps = Vec::new();
        for _ in 0..9 {
            sleeps.push(w.next_sleep().as_micros());
            w.record_external_wait();
        }
        assert_eq!(sleeps, [0, 0, 0, 0, 50, 100, 200, 300, 300]);
        w.reset();
        assert_eq!(w.next_sleep(), Duration::ZERO);
    }

    #[test]
    fn spins_so_often_as_it_was_told() {
        let mut w = Waiter::never_sleeping().with_spins_and_yields(2, 100);
        let mut spinning = Vec::new();
        for _ in 0..4 {
            w.idle();
            spinning.push(w.is_spinning());
        }
        assert_eq!(spinning, [true, true, false, false]);
        w.reset();
        assert!(w.is_spinning());
    }

    #[test]
    fn in_a_crowd_it_spins_less_and_the_thread_keeps_that_in_mind() {
        let mut crowded = SpinTime::new();
        (0..20).for_each(|_| crowded.record_yield(5_000));
        YIELD_HISTORY.set(crowded);
        let mut w = Waiter::never_sleeping();
        while w.spins_before_yield == 256 && YIELD_HISTORY.get() == crowded {
            w.idle();
        }
        // The experience of the one yield decides whether spinning is short or as long as before.
        assert_eq!(
            w.spins_before_yield == SPINS_BEFORE_YIELD_IF_CROWDED,
            YIELD_HISTORY.get().is_crowded()
        );
    }
}
