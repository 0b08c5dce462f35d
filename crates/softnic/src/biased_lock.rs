//! The biased lock of the queues.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, compiler_fence, fence};

use shm::membarrier;

/// A biased lock, which costs its most frequent user two plain stores. It is for the queues of the data path, which one
/// thread posts to and polls.
///
/// An atomic read-modify-write waits until every earlier store of its core has reached the cache. A message is a store
/// to a line that the peer's core holds, and so is an acknowledgement. A thread that takes an ordinary lock after such
/// a store waits until the line comes. That takes 100 ns and more between far cores, several times for each message.
///
/// The lock is therefore *biased* to a thread that has taken it often in a row. That thread announces by a store of its
/// own that it is inside, and then checks that the bias still holds. Another thread that wants the lock revokes the
/// bias, makes every thread pass a barrier, and waits until the biased thread is outside. From then on the lock is an
/// ordinary one, until a thread has taken it twice as often in a row.
///
/// A thread may be interrupted after it has seen its bias and before it has announced that it is inside. Its store may
/// then come long after others have taken the lock. So each period of bias has a place of its own for the announcement,
/// and the bias is disabled after [`MAX_BIAS_PERIODS`] periods.
pub(crate) struct BiasedLock<T> {
    /// The thread to which the lock is biased plus the number of the bias period, or [`NOBODY`].
    biased_thread: AtomicUsize,
    /// Number of times that the biased thread went in or out, for each bias period: odd while the thread is inside.
    entry_exit_counts: [AtomicU32; MAX_BIAS_PERIODS],
    /// The steps of the bias period when [`BiasedLock::try_lock_unless_in_steady_use`] last saw them.
    entry_exit_count_at_last_try_lock: AtomicU32,
    /// True while a thread without the bias holds the lock.
    locked_without_bias: AtomicBool,
    /// Protected by `locked_without_bias`.
    bias_state: UnsafeCell<BiasState>,
    value: UnsafeCell<T>,
}

/// The use of a lock, which decides on its bias.
struct BiasState {
    /// The thread that took the lock last.
    last_thread: usize,
    /// Number of times in a row that this thread took the lock.
    acquisitions_in_row: u32,
    /// Number of times in a row after which the lock is biased to that thread.
    streak_needed_for_bias: u32,
    /// Number of bias periods so far.
    bias_period_count: u32,
    /// True if a visitor (see [`BiasPreservingVisit`]) has revoked the last bias and restores it.
    is_temporarily_revoked: bool,
}

impl BiasState {
    /// Returns the value of `biased_thread` while the lock is biased: `last_thread` does not change meanwhile.
    fn current_bias_word(&self) -> usize {
        self.last_thread + self.bias_period_count as usize - 1
    }
}

const NOBODY: usize = 0;

/// The visiting thread, or [`NOBODY`].
static BIAS_PRESERVING_THREAD: AtomicUsize = AtomicUsize::new(NOBODY);

/// A visit that leaves the bias of locks as it was. While this value lives, the thread that began it restores the bias
/// of each lock that it takes. It does not count as a user of the lock. It is for a thread that comes seldom, and for
/// reasons that do not concern the biased thread. It costs a barrier each time.
pub(crate) struct BiasPreservingVisit(());

impl BiasPreservingVisit {
    /// Begins a visit; one thread of the process visits at a time.
    pub(crate) fn begin() -> Self {
        BIAS_PRESERVING_THREAD.store(this_thread_number(), std::sync::atomic::Ordering::Relaxed);
        Self(())
    }
}

impl Drop for BiasPreservingVisit {
    fn drop(&mut self) {
        BIAS_PRESERVING_THREAD.store(NOBODY, std::sync::atomic::Ordering::Relaxed);
    }
}

/// Number of bias periods in the life of a lock. Numbers of threads are multiples of it.
const MAX_BIAS_PERIODS: usize = 8;

/// Number of acquisitions in a row after which a new lock is biased to a thread.
const INITIAL_BIAS_STREAK: u32 = 64;

/// Largest number of acquisitions in a row that a bias requires. At 10 ns each, they outweigh a barrier (some
/// microseconds).
const MAX_BIAS_STREAK: u32 = 1 << 20;

// SAFETY: one guard exists at a time (see `lock`), which is what `Sync` needs of a `Send` value.
unsafe impl<T: Send> Sync for BiasedLock<T> {}
// SAFETY: moving the lock moves the value.
unsafe impl<T: Send> Send for BiasedLock<T> {}

/// Returns a number of the calling thread that no other running thread has. It is not [`NOBODY`], and is a multiple of
/// [`MAX_BIAS_PERIODS`], since it is the address of a structure of pointers.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn this_thread_number() -> usize {
    let pointer: usize;
    // SAFETY: reads the first word of the thread control block, which by the ABI is its own address (ELF Handling For
    // Thread-Local Storage, 3.4.6).
    unsafe {
        std::arch::asm!("mov {}, fs:0", out(reg) pointer, options(pure, readonly, nostack, preserves_flags));
    }
    pointer
}

/// Returns the same number for every thread: on other architectures the lock is never biased.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
fn this_thread_number() -> usize {
    MAX_BIAS_PERIODS
}

impl<T> BiasedLock<T> {
    /// Returns a free lock around `value`.
    pub(crate) const fn new(value: T) -> Self {
        Self {
            biased_thread: AtomicUsize::new(NOBODY),
            entry_exit_counts: [const { AtomicU32::new(0) }; MAX_BIAS_PERIODS],
            entry_exit_count_at_last_try_lock: AtomicU32::new(0),
            locked_without_bias: AtomicBool::new(false),
            bias_state: UnsafeCell::new(BiasState {
                last_thread: NOBODY,
                acquisitions_in_row: 0,
                streak_needed_for_bias: INITIAL_BIAS_STREAK,
                bias_period_count: 0,
                is_temporarily_revoked: false,
            }),
            value: UnsafeCell::new(value),
        }
    }

    /// Waits for the lock.
    #[inline]
    pub(crate) fn lock(&self) -> BiasedGuard<'_, T> {
        let me = this_thread_number();
        match self
            .bias_period_of(me)
            .and_then(|favour| self.try_enter_with_bias(me, favour))
        {
            Some(guard) => guard,
            None => self.lock_without_bias(me),
        }
    }

    /// Takes the lock if it is biased to the calling thread.
    #[inline(always)]
    pub(crate) fn lock_if_biased_to_this_thread(&self) -> Option<BiasedGuard<'_, T>> {
        let me = this_thread_number();
        self.try_enter_with_bias(me, self.bias_period_of(me)?)
    }

    /// Returns the number of the bias period if the lock is biased to `thread`.
    #[inline(always)]
    fn bias_period_of(&self, thread: usize) -> Option<usize> {
        // SYNC POINT G: a thread that finds a bias which a visitor has restored sees what the visitor did inside.
        let favour = self
            .biased_thread
            .load(std::sync::atomic::Ordering::Acquire)
            ^ thread;
        (favour < MAX_BIAS_PERIODS).then_some(favour)
    }

    /// Goes in, if the lock is still biased to this thread.
    #[inline(always)]
    fn try_enter_with_bias(&self, me: usize, favour: usize) -> Option<BiasedGuard<'_, T>> {
        use std::sync::atomic::Ordering::{Relaxed, SeqCst};
        let steps = &self.entry_exit_counts[favour];
        count_entry_or_exit(steps, Relaxed);
        // SYNC POINT B: a thread that revokes the bias passes a barrier on this core too, between its store and its
        // read of `steps`. Either it sees this thread inside, or this thread sees that its bias has ended.
        compiler_fence(SeqCst);
        if self.bias_period_of(me) == Some(favour) {
            return Some(BiasedGuard {
                lock: self,
                own_entry_exit_count: Some(steps),
            });
        }
        count_entry_or_exit(steps, Relaxed);
        None
    }

    #[inline(never)]
    fn lock_without_bias(&self, me: usize) -> BiasedGuard<'_, T> {
        use std::sync::atomic::Ordering::{Acquire, Relaxed};
        let mut spins = 0u32;
        while self
            .locked_without_bias
            .compare_exchange(false, true, Acquire, Relaxed)
            .is_err()
        {
            while self.locked_without_bias.load(Relaxed) {
                spin_or_yield(&mut spins);
            }
        }
        self.update_bias(me);
        BiasedGuard {
            lock: self,
            own_entry_exit_count: None,
        }
    }

    /// Takes the lock if it is free and no thread uses it again and again.
    pub(crate) fn try_lock_unless_in_steady_use(&self) -> Option<BiasedGuard<'_, T>> {
        use std::sync::atomic::Ordering::{Acquire, Relaxed};
        let me = this_thread_number();
        if self.bias_period_of(me).is_some() {
            return Some(self.lock());
        }
        let favoured = self.biased_thread.load(Relaxed);
        if favoured != NOBODY {
            let steps = self.entry_exit_counts[favoured % MAX_BIAS_PERIODS].load(Relaxed);
            if self.entry_exit_count_at_last_try_lock.swap(steps, Relaxed) != steps {
                // The biased thread has been here since the last try, and will come again.
                return None;
            }
        }
        self.locked_without_bias
            .compare_exchange(false, true, Acquire, Relaxed)
            .ok()?;
        self.update_bias(me);
        Some(BiasedGuard {
            lock: self,
            own_entry_exit_count: None,
        })
    }

    /// Releases `locked_without_bias`, and restores a bias that a visitor has revoked.
    fn unlock_without_bias(&self) {
        use std::sync::atomic::Ordering::Release;
        // SAFETY: protected by `locked_without_bias`, which this thread holds.
        let habit = unsafe { &mut *self.bias_state.get() };
        if habit.is_temporarily_revoked {
            habit.is_temporarily_revoked = false;
            // SYNC POINT G
            self.biased_thread.store(habit.current_bias_word(), Release);
        }
        self.locked_without_bias.store(false, Release);
    }

    /// Begins or revokes a bias, with `locked_without_bias` taken. Waits for a biased thread that is inside.
    fn update_bias(&self, me: usize) {
        use std::sync::atomic::Ordering::{Acquire, Relaxed};
        // SAFETY: protected by `locked_without_bias`, which this thread holds.
        let habit = unsafe { &mut *self.bias_state.get() };
        let favoured = self.biased_thread.load(Relaxed);
        if favoured ^ me < MAX_BIAS_PERIODS {
            // The bias was restored while this thread waited here. It holds the lock all the same: no other thread
            // comes in without `locked_without_bias`.
            return;
        }
        let visits = BIAS_PRESERVING_THREAD.load(Relaxed) == me;
        if favoured != NOBODY {
            self.biased_thread.store(NOBODY, Relaxed);
            // SYNC POINT B
            if !membarrier::membarrier_own_threads() {
                // The barrier worked when the bias began. Without it, this thread cannot tell whether the biased thread
                // is about to come in. To continue would let two threads in.
                std::process::abort();
            }
            let mut spins = 0u32;
            let steps = &self.entry_exit_counts[favoured % MAX_BIAS_PERIODS];
            while !steps.load(Relaxed).is_multiple_of(2) {
                spin_or_yield(&mut spins);
            }
            fence(Acquire);
            if visits {
                debug_assert_eq!(favoured, habit.current_bias_word());
                habit.is_temporarily_revoked = true;
                return;
            }
            habit.streak_needed_for_bias = (habit.streak_needed_for_bias * 2).min(MAX_BIAS_STREAK);
            habit.acquisitions_in_row = 0;
        }
        if visits {
            return;
        }
        if habit.last_thread != me {
            (habit.last_thread, habit.acquisitions_in_row) = (me, 0);
            return;
        }
        habit.acquisitions_in_row = habit.acquisitions_in_row.saturating_add(1);
        if habit.acquisitions_in_row >= habit.streak_needed_for_bias
            && (habit.bias_period_count as usize) < MAX_BIAS_PERIODS
            && cfg!(target_arch = "x86_64")
            && membarrier::is_private_barrier_available()
        {
            // The biased thread finds the bias when it takes the lock next; other threads take `locked_without_bias`
            // first and see the bias then.
            habit.bias_period_count += 1;
            self.biased_thread.store(habit.current_bias_word(), Relaxed);
        }
    }
}

/// Counts that the biased thread goes in or out; no other thread writes there.
#[inline(always)]
fn count_entry_or_exit(steps: &AtomicU32, order: std::sync::atomic::Ordering) {
    let now = steps.load(std::sync::atomic::Ordering::Relaxed);
    steps.store(now.wrapping_add(1), order);
}

#[inline]
fn spin_or_yield(spins: &mut u32) {
    *spins += 1;
    if *spins < 64 {
        std::hint::spin_loop();
    } else {
        std::thread::yield_now();
    }
}

/// The right to use the value of a [`BiasedLock`]; dropping it frees the lock.
pub(crate) struct BiasedGuard<'a, T> {
    lock: &'a BiasedLock<T>,
    /// The steps of the biased thread; `None` for any other thread.
    own_entry_exit_count: Option<&'a AtomicU32>,
}

impl<T> Deref for BiasedGuard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this guard is the only one, so no `&mut` to the value exists.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for BiasedGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this guard is the only one, and is itself borrowed mutably.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for BiasedGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        use std::sync::atomic::Ordering::Release;
        match self.own_entry_exit_count {
            Some(steps) => count_entry_or_exit(steps, Release),
            None => self.lock.unlock_without_bias(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::SeqCst;

    use super::*;

    /// Two counters that only differ while a thread is inside.
    #[derive(Default)]
    struct Pair(u64, u64);

    fn visit(mut pair: impl DerefMut<Target = Pair>) {
        pair.0 += 1;
        std::hint::black_box(&mut pair);
        assert_eq!(pair.0, pair.1 + 1, "two threads are inside");
        pair.1 += 1;
    }

    #[test]
    fn a_lock_leans_towards_its_only_user_and_stands_up_for_another() {
        let lock = BiasedLock::new(Pair::default());
        for _ in 0..2 * INITIAL_BIAS_STREAK {
            visit(lock.lock());
        }
        let leans = cfg!(target_arch = "x86_64") && membarrier::is_private_barrier_available();
        assert_eq!(lock.lock().own_entry_exit_count.is_some(), leans);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                assert!(lock.lock().own_entry_exit_count.is_none());
                visit(lock.lock());
            });
        });
        assert!(
            lock.lock().own_entry_exit_count.is_none(),
            "the favour has ended"
        );
        for _ in 0..4 * INITIAL_BIAS_STREAK {
            visit(lock.lock());
        }
        assert_eq!(
            lock.lock().own_entry_exit_count.is_some(),
            leans,
            "and begins again"
        );
    }

    #[test]
    fn a_try_leaves_a_busy_thread_alone_and_takes_over_from_an_idle_one() {
        let lock = BiasedLock::new(Pair::default());
        for _ in 0..2 * INITIAL_BIAS_STREAK {
            visit(lock.lock());
        }
        let leans = lock.lock().own_entry_exit_count.is_some();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                assert_eq!(
                    lock.try_lock_unless_in_steady_use().is_none(),
                    leans,
                    "it has just been used"
                );
                visit(
                    lock.try_lock_unless_in_steady_use()
                        .expect("nobody was here since the last try"),
                );
            });
        });
        let guard = lock.lock();
        std::thread::scope(|scope| {
            scope.spawn(|| assert!(lock.try_lock_unless_in_steady_use().is_none()));
        });
        drop(guard);
    }

    #[test]
    fn a_visitor_gives_back_what_it_found() {
        let lock = BiasedLock::new(Pair::default());
        for _ in 0..2 * INITIAL_BIAS_STREAK {
            visit(lock.lock());
        }
        let leans = lock.lock().own_entry_exit_count.is_some();
        let visited = || {
            let _visit = BiasPreservingVisit::begin();
            visit(lock.lock());
        };
        for _ in 0..2 * MAX_BIAS_PERIODS {
            std::thread::scope(|scope| scope.spawn(visited).join().expect("no panic"));
            assert_eq!(lock.lock().own_entry_exit_count.is_some(), leans);
        }
        // Visits while the biased thread is on its way in and out.
        let over = &AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _visit = BiasPreservingVisit::begin();
                for _ in 0..2000 {
                    visit(lock.lock());
                }
                over.store(true, SeqCst);
            });
            while !over.load(SeqCst) {
                visit(lock.lock());
            }
        });
        // A thread that does not visit revokes the bias as usual.
        std::thread::scope(|scope| scope.spawn(|| visit(lock.lock())).join().expect("no panic"));
        assert!(lock.lock().own_entry_exit_count.is_none());
    }

    #[test]
    fn who_was_interrupted_on_its_way_in_harms_no_later_favour() {
        let lock = BiasedLock::new(Pair::default());
        for _ in 0..2 * INITIAL_BIAS_STREAK {
            visit(lock.lock());
        }
        let me = this_thread_number();
        let Some(favour) = lock.bias_period_of(me) else {
            assert!(
                cfg!(not(target_arch = "x86_64")) || !membarrier::is_private_barrier_available()
            );
            return;
        };
        // This thread has seen that the lock is biased to it, and stops here.
        let [inside, third, leave] = [const { AtomicBool::new(false) }; 3];
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..4 * INITIAL_BIAS_STREAK {
                    visit(lock.lock());
                }
                let guard = lock.lock();
                assert!(guard.own_entry_exit_count.is_some());
                inside.store(true, SeqCst);
                while !leave.load(SeqCst) {
                    std::thread::yield_now();
                }
                assert!(!third.load(SeqCst), "two threads are inside");
                drop(guard);
            });
            while !inside.load(SeqCst) {
                std::thread::yield_now();
            }
            assert!(lock.try_enter_with_bias(me, favour).is_none());
            scope.spawn(|| {
                let _guard = lock.lock();
                third.store(true, SeqCst);
            });
            std::thread::sleep(std::time::Duration::from_millis(50));
            leave.store(true, SeqCst);
        });
    }

    #[test]
    fn after_its_last_favour_it_is_an_ordinary_lock() {
        let lock = BiasedLock::new(Pair::default());
        let leans = cfg!(target_arch = "x86_64") && membarrier::is_private_barrier_available();
        let (lock, over) = (&lock, &AtomicBool::new(false));
        std::thread::scope(|scope| {
            for turn in 0..=MAX_BIAS_PERIODS {
                let (sender, favoured) = std::sync::mpsc::channel();
                scope.spawn(move || {
                    for _ in 0..(2 * INITIAL_BIAS_STREAK) << turn {
                        visit(lock.lock());
                    }
                    sender
                        .send(lock.lock().own_entry_exit_count.is_some())
                        .expect("it listens");
                    // The number of a thread that has ended may be reused.
                    while !over.load(SeqCst) {
                        std::thread::yield_now();
                    }
                });
                let favoured = favoured.recv().expect("no panic");
                assert_eq!(favoured, leans && turn < MAX_BIAS_PERIODS, "turn {turn}");
            }
            over.store(true, SeqCst);
        });
    }

    #[test]
    fn one_thread_at_a_time() {
        const ROUNDS: u64 = 400;
        let lock = BiasedLock::new(Pair::default());
        let visits: u64 = std::thread::scope(|scope| {
            // Bursts that are long enough for a bias, of threads that interrupt each other.
            let threads: Vec<_> = [1u64, 100, 300, 1000]
                .into_iter()
                .map(|burst| {
                    let lock = &lock;
                    scope.spawn(move || {
                        let mut visits = 0;
                        for _ in 0..ROUNDS {
                            for _ in 0..burst {
                                visit(lock.lock());
                                visits += 1;
                            }
                            if let Some(guard) = lock.try_lock_unless_in_steady_use() {
                                visit(guard);
                                visits += 1;
                            }
                            std::thread::yield_now();
                        }
                        visits
                    })
                })
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().expect("no panic"))
                .sum()
        });
        let pair = lock.lock();
        assert_eq!((pair.0, pair.1), (visits, visits));
    }
}
