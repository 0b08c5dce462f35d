//! The lock of the queues.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, compiler_fence, fence};

use shm::barrier;

/// A lock that costs the thread that uses it most two plain stores: for the queues of the data path, which one
/// thread posts to and polls.
///
/// An atomic read-modify-write waits until every earlier store of its core has reached the cache. A message is a
/// store to a line that the peer's core holds, and so is an acknowledgement; a thread that takes a lock behind one
/// stands still for as long as the line takes to come, 100 ns and more between far cores, several times for each
/// message. So the lock *leans* towards a thread that has taken it often in a row: that thread says that it is inside
/// by a store of its own, and looks whether the lock still leans. Whoever else wants the lock ends that, makes every
/// thread pass a barrier, and waits until the favoured one is outside; from then on the lock is an ordinary one, until
/// a thread has taken it twice as often in a row.
///
/// A thread may be interrupted when it has seen that it is favoured and has not said yet that it is inside, and say so
/// long after others have taken the lock. So each favour has a place of its own where that is said, and after
/// [`FAVOURS`] of them the lock leans towards nobody any more.
pub(crate) struct BiasedLock<T> {
    /// The thread that the lock leans towards plus the number of the favour, or [`NOBODY`].
    favoured: AtomicUsize,
    /// How often the favoured thread went in or out, for each favour: odd while it is inside.
    steps: [AtomicU32; FAVOURS],
    /// The steps of the favour when [`BiasedLock::try_lock`] last saw them.
    steps_seen: AtomicU32,
    /// Taken by whoever is not favoured.
    locked: AtomicBool,
    /// Protected by `locked`.
    habit: UnsafeCell<Habit>,
    value: UnsafeCell<T>,
}

/// Who uses a lock.
struct Habit {
    /// Who took it last.
    last: usize,
    /// How often in a row.
    streak: u32,
    /// After how many times in a row the lock leans towards that thread.
    wanted: u32,
    /// How many favours there have been.
    favours: u32,
    /// A visitor (see [`Visit`]) has taken the favour from the last of these, and gives it back.
    visited: bool,
}

impl Habit {
    /// What `favoured` holds while the lock leans: nobody else is `last` meanwhile.
    fn last_favour(&self) -> usize {
        self.last + self.favours as usize - 1
    }
}

const NOBODY: usize = 0;

/// The thread that visits.
static VISITOR: AtomicUsize = AtomicUsize::new(NOBODY);

/// While this lives, the thread that began it gives a lock back to whoever it leaned towards, and leaves no trace in its
/// habits: for one that comes seldom and for no reason of the favoured thread's. It pays a barrier each time.
pub(crate) struct Visit(());

impl Visit {
    /// Begins; one thread of the process visits at a time.
    pub(crate) fn begin() -> Self {
        VISITOR.store(this_thread(), std::sync::atomic::Ordering::Relaxed);
        Self(())
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        VISITOR.store(NOBODY, std::sync::atomic::Ordering::Relaxed);
    }
}

/// Favours in the life of a lock. Numbers of threads are multiples of it.
const FAVOURS: usize = 8;

/// Acquisitions in a row for which a fresh lock leans towards a thread.
const FIRST_STREAK: u32 = 64;

/// The most that are ever asked for: at 10 ns each, a barrier (some microseconds) is lost in them.
const LONGEST_STREAK: u32 = 1 << 20;

// SAFETY: one guard exists at a time (see `lock`), which is what `Sync` needs of a `Send` value.
unsafe impl<T: Send> Sync for BiasedLock<T> {}
// SAFETY: moving the lock moves the value.
unsafe impl<T: Send> Send for BiasedLock<T> {}

/// A number of the calling thread that no other running thread has: not [`NOBODY`], and a multiple of [`FAVOURS`], since
/// it is the address of a structure of pointers.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn this_thread() -> usize {
    let pointer: usize;
    // SAFETY: reads the first word of the thread control block, which by the ABI is its own address (ELF Handling For
    // Thread-Local Storage, 3.4.6).
    unsafe {
        std::arch::asm!("mov {}, fs:0", out(reg) pointer, options(pure, readonly, nostack, preserves_flags));
    }
    pointer
}

/// Elsewhere the lock leans towards nobody.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
fn this_thread() -> usize {
    FAVOURS
}

impl<T> BiasedLock<T> {
    /// A free lock around `value`.
    pub(crate) const fn new(value: T) -> Self {
        Self {
            favoured: AtomicUsize::new(NOBODY),
            steps: [const { AtomicU32::new(0) }; FAVOURS],
            steps_seen: AtomicU32::new(0),
            locked: AtomicBool::new(false),
            habit: UnsafeCell::new(Habit {
                last: NOBODY,
                streak: 0,
                wanted: FIRST_STREAK,
                favours: 0,
                visited: false,
            }),
            value: UnsafeCell::new(value),
        }
    }

    /// Waits for the lock.
    #[inline]
    pub(crate) fn lock(&self) -> BiasedGuard<'_, T> {
        let me = this_thread();
        match self.favour_of(me).and_then(|favour| self.enter(me, favour)) {
            Some(guard) => guard,
            None => self.lock_shared(me),
        }
    }

    /// The lock, if it leans towards the calling thread.
    #[inline(always)]
    pub(crate) fn lock_if_favoured(&self) -> Option<BiasedGuard<'_, T>> {
        let me = this_thread();
        self.enter(me, self.favour_of(me)?)
    }

    /// The number of the favour that a thread has.
    #[inline(always)]
    fn favour_of(&self, thread: usize) -> Option<usize> {
        // SYNC POINT G: whoever finds a favour that a visitor has given back sees what the visitor did inside.
        let favour = self.favoured.load(std::sync::atomic::Ordering::Acquire) ^ thread;
        (favour < FAVOURS).then_some(favour)
    }

    /// Goes in, if this thread still has the favour.
    #[inline(always)]
    fn enter(&self, me: usize, favour: usize) -> Option<BiasedGuard<'_, T>> {
        use std::sync::atomic::Ordering::{Relaxed, SeqCst};
        let steps = &self.steps[favour];
        step(steps, Relaxed);
        // SYNC POINT B: whoever ends the favour passes a barrier on this core too between its store and its look
        // at `steps`. Either it sees this thread inside, or this thread sees that it is not favoured any more.
        compiler_fence(SeqCst);
        if self.favour_of(me) == Some(favour) {
            return Some(BiasedGuard {
                lock: self,
                favoured: Some(steps),
            });
        }
        step(steps, Relaxed);
        None
    }

    #[inline(never)]
    fn lock_shared(&self, me: usize) -> BiasedGuard<'_, T> {
        use std::sync::atomic::Ordering::{Acquire, Relaxed};
        let mut spins = 0u32;
        while self
            .locked
            .compare_exchange(false, true, Acquire, Relaxed)
            .is_err()
        {
            while self.locked.load(Relaxed) {
                pause(&mut spins);
            }
        }
        self.take_over(me);
        BiasedGuard {
            lock: self,
            favoured: None,
        }
    }

    /// Takes the lock if it is free and no thread uses it time and again.
    pub(crate) fn try_lock(&self) -> Option<BiasedGuard<'_, T>> {
        use std::sync::atomic::Ordering::{Acquire, Relaxed};
        let me = this_thread();
        if self.favour_of(me).is_some() {
            return Some(self.lock());
        }
        let favoured = self.favoured.load(Relaxed);
        if favoured != NOBODY {
            let steps = self.steps[favoured % FAVOURS].load(Relaxed);
            if self.steps_seen.swap(steps, Relaxed) != steps {
                // It has been here since the last try, and comes again.
                return None;
            }
        }
        self.locked
            .compare_exchange(false, true, Acquire, Relaxed)
            .ok()?;
        self.take_over(me);
        Some(BiasedGuard {
            lock: self,
            favoured: None,
        })
    }

    /// Frees `locked`.
    fn leave(&self) {
        use std::sync::atomic::Ordering::Release;
        // SAFETY: protected by `locked`, which this thread holds.
        let habit = unsafe { &mut *self.habit.get() };
        if habit.visited {
            habit.visited = false;
            // SYNC POINT G
            self.favoured.store(habit.last_favour(), Release);
        }
        self.locked.store(false, Release);
    }

    /// With `locked` taken: waits for a favoured thread that is inside, and ends or begins a favour.
    fn take_over(&self, me: usize) {
        use std::sync::atomic::Ordering::{Acquire, Relaxed};
        // SAFETY: protected by `locked`, which this thread holds.
        let habit = unsafe { &mut *self.habit.get() };
        let favoured = self.favoured.load(Relaxed);
        if favoured ^ me < FAVOURS {
            // Given back while this thread waited here. It is inside all the same: nobody else comes in without `locked`.
            return;
        }
        let visits = VISITOR.load(Relaxed) == me;
        if favoured != NOBODY {
            self.favoured.store(NOBODY, Relaxed);
            // SYNC POINT B
            if !barrier::own_threads() {
                // It was there when the favour began. Without it the favoured thread cannot be told from one that is
                // about to come in: to go on would let two in.
                std::process::abort();
            }
            let mut spins = 0u32;
            let steps = &self.steps[favoured % FAVOURS];
            while !steps.load(Relaxed).is_multiple_of(2) {
                pause(&mut spins);
            }
            fence(Acquire);
            if visits {
                debug_assert_eq!(favoured, habit.last_favour());
                habit.visited = true;
                return;
            }
            habit.wanted = (habit.wanted * 2).min(LONGEST_STREAK);
            habit.streak = 0;
        }
        if visits {
            return;
        }
        if habit.last != me {
            (habit.last, habit.streak) = (me, 0);
            return;
        }
        habit.streak = habit.streak.saturating_add(1);
        if habit.streak >= habit.wanted
            && (habit.favours as usize) < FAVOURS
            && cfg!(target_arch = "x86_64")
            && barrier::has_own_threads()
        {
            // Its own next visit finds it; everybody else takes `locked` first and sees it then.
            habit.favours += 1;
            self.favoured.store(habit.last_favour(), Relaxed);
        }
    }
}

/// The favoured thread goes in or out: it alone writes there.
#[inline(always)]
fn step(steps: &AtomicU32, order: std::sync::atomic::Ordering) {
    let now = steps.load(std::sync::atomic::Ordering::Relaxed);
    steps.store(now.wrapping_add(1), order);
}

#[inline]
fn pause(spins: &mut u32) {
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
    /// The favoured thread's steps; `None` for any other thread.
    favoured: Option<&'a AtomicU32>,
}

impl<T> Deref for BiasedGuard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this guard is the only one, so nobody has a `&mut` to the value.
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
        match self.favoured {
            Some(steps) => step(steps, Release),
            None => self.lock.leave(),
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
        for _ in 0..2 * FIRST_STREAK {
            visit(lock.lock());
        }
        let leans = cfg!(target_arch = "x86_64") && barrier::has_own_threads();
        assert_eq!(lock.lock().favoured.is_some(), leans);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                assert!(lock.lock().favoured.is_none());
                visit(lock.lock());
            });
        });
        assert!(lock.lock().favoured.is_none(), "the favour has ended");
        for _ in 0..4 * FIRST_STREAK {
            visit(lock.lock());
        }
        assert_eq!(lock.lock().favoured.is_some(), leans, "and begins again");
    }

    #[test]
    fn a_try_leaves_a_busy_thread_alone_and_takes_over_from_an_idle_one() {
        let lock = BiasedLock::new(Pair::default());
        for _ in 0..2 * FIRST_STREAK {
            visit(lock.lock());
        }
        let leans = lock.lock().favoured.is_some();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                assert_eq!(lock.try_lock().is_none(), leans, "it has just been used");
                visit(lock.try_lock().expect("nobody was here since the last try"));
            });
        });
        let guard = lock.lock();
        std::thread::scope(|scope| {
            scope.spawn(|| assert!(lock.try_lock().is_none()));
        });
        drop(guard);
    }

    #[test]
    fn a_visitor_gives_back_what_it_found() {
        let lock = BiasedLock::new(Pair::default());
        for _ in 0..2 * FIRST_STREAK {
            visit(lock.lock());
        }
        let leans = lock.lock().favoured.is_some();
        let visited = || {
            let _visit = Visit::begin();
            visit(lock.lock());
        };
        for _ in 0..2 * FAVOURS {
            std::thread::scope(|scope| scope.spawn(visited).join().expect("no panic"));
            assert_eq!(lock.lock().favoured.is_some(), leans);
        }
        // While the favoured thread is on its way in and out.
        let over = &AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _visit = Visit::begin();
                for _ in 0..2000 {
                    visit(lock.lock());
                }
                over.store(true, SeqCst);
            });
            while !over.load(SeqCst) {
                visit(lock.lock());
            }
        });
        // Somebody who does not visit ends the favour as ever.
        std::thread::scope(|scope| scope.spawn(|| visit(lock.lock())).join().expect("no panic"));
        assert!(lock.lock().favoured.is_none());
    }

    #[test]
    fn who_was_interrupted_on_its_way_in_harms_no_later_favour() {
        let lock = BiasedLock::new(Pair::default());
        for _ in 0..2 * FIRST_STREAK {
            visit(lock.lock());
        }
        let me = this_thread();
        let Some(favour) = lock.favour_of(me) else {
            assert!(cfg!(not(target_arch = "x86_64")) || !barrier::has_own_threads());
            return;
        };
        // This thread has seen that it is favoured, and stands still here.
        let [inside, third, leave] = [const { AtomicBool::new(false) }; 3];
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..4 * FIRST_STREAK {
                    visit(lock.lock());
                }
                let guard = lock.lock();
                assert!(guard.favoured.is_some());
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
            assert!(lock.enter(me, favour).is_none());
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
        let leans = cfg!(target_arch = "x86_64") && barrier::has_own_threads();
        let (lock, over) = (&lock, &AtomicBool::new(false));
        std::thread::scope(|scope| {
            for turn in 0..=FAVOURS {
                let (sender, favoured) = std::sync::mpsc::channel();
                scope.spawn(move || {
                    for _ in 0..(2 * FIRST_STREAK) << turn {
                        visit(lock.lock());
                    }
                    sender
                        .send(lock.lock().favoured.is_some())
                        .expect("it listens");
                    // The number of a thread that has ended may be given to the next one.
                    while !over.load(SeqCst) {
                        std::thread::yield_now();
                    }
                });
                let favoured = favoured.recv().expect("no panic");
                assert_eq!(favoured, leans && turn < FAVOURS, "turn {turn}");
            }
            over.store(true, SeqCst);
        });
    }

    #[test]
    fn one_thread_at_a_time() {
        const ROUNDS: u64 = 400;
        let lock = BiasedLock::new(Pair::default());
        let visits: u64 = std::thread::scope(|scope| {
            // Bursts that are long enough for a favour, of threads that come in between.
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
                            if let Some(guard) = lock.try_lock() {
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
