//! Simulated threads: coroutines, each on a core of its own with a clock of its own.
//!
//! A thread runs real code on a stack of its own. Verbs advance its clock. What an event does becomes
//! visible one way over PCIe later, so a thread may be that far ahead of the events, and stops only where it
//! is further ahead or waits ([`idle`]). Events happen on the stack of who runs the simulation: one that stays in the
//! processor's cache, as those of many threads do not.

#![allow(unsafe_code)]

use std::cell::Cell;
use std::time::Duration;

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};

use crate::event::Event;
use crate::fifo::{Fifo, SharedLine};
use crate::queue::Ps;
use crate::thread::{Polling, Stack, State, Thread};
use crate::world::World;

/// Bytes of a thread's stack; pages that are not touched take no memory.
const STACK_BYTES: usize = 256 << 10;

thread_local! {
    /// The simulation, from a box; null if there is none, and while it is lent.
    static WORLD: Cell<*mut World> = const { Cell::new(std::ptr::null_mut()) };
    /// Whether simulated code runs on this thread now.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Puts a simulation in place; false if this thread has one.
pub(crate) fn install(world: Box<World>) -> bool {
    let free = WORLD.get().is_null();
    if free {
        WORLD.set(Box::into_raw(world));
    }
    free
}

/// Ends this thread's simulation. Threads that have not ended are left as they are: unwinding them
/// would pass through C functions.
pub(crate) fn remove() {
    INSIDE.with(|inside| inside.set(false));
    let world = WORLD.replace(std::ptr::null_mut());
    if !world.is_null() {
        // SAFETY: it came from a box (`install`), and nobody else has it: it is not lent.
        let mut world = unsafe { Box::from_raw(world) };
        for thread in &mut world.threads {
            if let Some(stack) = thread.stack.take().filter(|stack| stack.started()) {
                std::mem::forget(stack);
            }
        }
    }
}

/// Calls `with` on this thread's simulation, if there is one and it is not lent already.
#[inline(always)]
pub(crate) fn world<R>(with: impl FnOnce(&mut World) -> R) -> Option<R> {
    /// Gives back what was lent, after a panic too.
    struct Lent(*mut World);
    impl Drop for Lent {
        #[inline(always)]
        fn drop(&mut self) {
            WORLD.set(self.0);
        }
    }
    let lent = Lent(WORLD.replace(std::ptr::null_mut()));
    // SAFETY: NULL, or from a box that lives until `remove` (`install`). Whoever has it has taken it out of `WORLD`,
    // so there is no other reference; a coroutine is never left while it is lent.
    let world = unsafe { lent.0.as_mut() }?;
    Some(with(world))
}

impl World {
    /// Adds a thread that starts now.
    pub(crate) fn spawn(&mut self, machine: u32, name: String, body: impl FnOnce() + 'static) {
        let stack = DefaultStack::new(STACK_BYTES).expect("address space for a thread's stack");
        let thread = u32::try_from(self.threads.len()).expect("fewer threads than 2^32");
        let stack = Coroutine::with_stack(stack, move |yielder: &Yielder<(), ()>, ()| {
            world(|world| world.threads[thread as usize].yielder = yielder);
            body();
        });
        let clock = self.now;
        self.stamps += 1;
        self.thread_names.push(name);
        self.threads.push(Thread {
            machine,
            clock,
            state: State::Stopped,
            resume_at: clock,
            timer: Ps::MAX,
            stack: Some(Box::new(stack)),
            yielder: std::ptr::null(),
            several_cqs: false,
            polls: false,
            polling: Polling::default(),
            first_cq: None,
            more_cqs: Vec::new(),
            stamp: self.stamps,
        });
        self.events.push(clock, Event::Resume { thread });
    }

    /// The clock of who calls: the running thread's, or the simulation's outside of threads.
    #[inline(always)]
    pub(crate) fn clock(&self) -> Ps {
        match self.current {
            Some(_) => self.clock,
            None => self.now,
        }
    }

    /// The running thread works for so long.
    #[inline(always)]
    pub(crate) fn spend(&mut self, time: Ps) {
        if self.current.is_some() {
            self.clock += time;
        }
    }

    /// What is due on the running thread's machine becomes visible to it.
    #[inline(always)]
    pub(crate) fn catch_up(&mut self) {
        if self.current.is_some() {
            let home = &self.machines[self.home as usize];
            if !home.unsettled.is_empty() && home.settles_at <= self.clock {
                self.settle(self.home, self.clock);
            }
        }
    }

    /// A line that cores add to; a thread's if it is the first to.
    #[inline]
    pub(crate) fn shared_line(&mut self, number: u64, thread: u32) -> &mut SharedLine {
        let lines = &mut self.shared_lines;
        let known = lines.iter().position(|line| line.number == number);
        let place = known.unwrap_or_else(|| {
            lines.push(SharedLine {
                number,
                free: Fifo::default(),
                owner: thread,
            });
            lines.len() - 1
        });
        // Mostly it is added to again.
        lines.swap(0, place);
        &mut lines[0]
    }

    /// The running thread goes on at its clock, after all events before it; false if there are none.
    #[inline]
    fn stop(&mut self) -> bool {
        let clock = self.clock();
        if self.events.next_at().is_none_or(|next| next >= clock) {
            self.now = self.now.max(clock);
            return false;
        }
        let Some(thread) = self.current else {
            return false;
        };
        let me = &mut self.threads[thread as usize];
        (me.state, me.resume_at, me.clock) = (State::Stopped, clock, clock);
        self.events.push(clock, Event::Resume { thread });
        true
    }

    /// The running thread waits for what it watches, at most until `deadline`; false if that is over already: what
    /// comes first is known if it comes before any event to come can become visible.
    fn wait_until(&mut self, deadline: Ps, memory: Option<u32>) -> bool {
        let (known, clock) = (self.now + self.shortest, self.clock);
        let Some(thread) = self.current else {
            return false;
        };
        let Self {
            threads,
            cqs,
            mrs,
            events,
            stamps,
            ..
        } = self;
        let me = &mut threads[thread as usize];
        *stamps += 1;
        me.stamp = *stamps;
        self.stamp = *stamps;
        let mut next = deadline;
        let mut look = |cq: u32| {
            if let Some(Some(queue)) = cqs.get(cq as usize)
                && let Some(first) = queue.cqes.front()
            {
                next = next.min(first.at.max(clock));
            }
        };
        if let Some(cq) = me.first_cq.take() {
            look(cq);
        }
        if std::mem::take(&mut me.several_cqs) {
            me.more_cqs.iter().for_each(|&cq| look(cq));
            me.more_cqs.clear();
        }
        if let Some(key) = memory
            && let Some(Some(mr)) = mrs.get_mut(key as usize)
        {
            mr.watcher = Some(thread);
            if let Some((at, ..)) = mr.writes.front() {
                next = next.min((*at).max(clock));
            }
        }
        if next <= known {
            self.clock = next;
            self.catch_up();
            return false;
        }
        (me.state, me.resume_at, me.clock) = (State::Waiting, next, clock);
        if next < me.timer {
            me.timer = next;
            events.push(next, Event::Resume { thread });
        }
        true
    }

    /// An event says that a thread goes on: whether it does, and did not before.
    fn is_due(&mut self, thread: u32) -> bool {
        let now = self.now;
        let woken = &mut self.threads[thread as usize];
        let timer = woken.timer == now;
        if timer {
            woken.timer = Ps::MAX;
        }
        if !matches!(woken.state, State::Stopped | State::Waiting) {
            return false;
        }
        if woken.resume_at <= now {
            return true;
        }
        if timer && woken.state == State::Waiting {
            woken.timer = woken.resume_at;
            self.events.push(woken.timer, Event::Resume { thread });
        }
        false
    }

    /// Lets events happen until a thread goes on; nothing if none does before the end of the run.
    fn advance(&mut self) -> Option<(u32, Box<Stack>)> {
        self.current = None;
        loop {
            let (at, event) = self.events.pop_until(self.until)?;
            self.now = self.now.max(at);
            let Event::Resume { thread } = event else {
                self.happen(event, at);
                continue;
            };
            if !self.is_due(thread) {
                continue;
            }
            let woken = &self.threads[thread as usize];
            let polls = woken.polls;
            self.clock = woken.clock.max(woken.resume_at);
            (self.home, self.stamp) = (woken.machine, woken.stamp);
            self.current = Some(thread);
            self.catch_up();
            if polls && self.polls_on(thread) {
                self.current = None;
                continue;
            }
            let woken = &mut self.threads[thread as usize];
            woken.state = State::Running;
            return Some((thread, woken.stack.take()?));
        }
    }

    /// Lets the loop of a thread that goes on in [`idle_polling`] go round once more without it: polls what it polls, and
    /// waits again. False if there may be something for it. With hundreds of clients what one needs to find nothing is in
    /// no cache, and most of their waits end so.
    fn polls_on(&mut self, thread: u32) -> bool {
        let Polling {
            cq,
            misses,
            end,
            until_ns,
            ..
        } = self.threads[thread as usize].polling;
        let clock = self.clock;
        if clock != end || clock / 1000 >= until_ns || clock > self.now + self.shortest {
            return false;
        }
        let Some(Some(queue)) = self.cqs.get(cq as usize) else {
            return false;
        };
        if queue.overrun || queue.cqes.front().is_some_and(|first| first.at <= clock) {
            return false;
        }
        self.poll(cq, 0, |_| {});
        self.wait_polling(thread, misses.saturating_add(misses_of_wait(misses)))
    }

    /// The running thread's loop has polled in vain so often: waits as long as it does then. False if that is over already.
    fn wait_polling(&mut self, thread: u32, misses: u32) -> bool {
        let misses = misses.saturating_add(1);
        let from = self.clock;
        let end = from.saturating_add(Ps::from(misses_of_wait(misses)) * SPIN);
        let polling = &mut self.threads[thread as usize].polling;
        (polling.misses, polling.from, polling.end) = (misses, from, end);
        self.wait_until(end, None)
    }

    /// Where the running thread, which has stopped, is left.
    fn leave(&self) -> Option<*const Yielder<(), ()>> {
        let me = self.threads.get(self.current? as usize)?;
        Some(me.yielder).filter(|yielder| !yielder.is_null())
    }
}

/// The running thread is left for another one.
#[inline]
fn switch(yielder: *const Yielder<(), ()>) {
    // SAFETY: set by the running coroutine itself when it began (`spawn`); a coroutine's yielder
    // lives on its stack until it ends, and it runs now.
    unsafe { (*yielder).suspend(()) };
}

/// Lets everything happen that is before the running thread's clock, if it is further ahead than anything can
/// become visible to it.
#[inline(always)]
pub(crate) fn synchronize() {
    let ahead = world(|world| world.clock() > world.now + world.shortest);
    if ahead == Some(true) {
        let_happen();
    }
}

/// Lets everything happen that is before the running thread's clock.
#[inline(never)]
fn let_happen() {
    let yielder = world(|world| if world.stop() { world.leave() } else { None });
    if let Some(yielder) = yielder.flatten() {
        switch(yielder);
    }
}

/// Runs events until a time, or until nothing can happen any more. Panics of threads go on here.
pub(crate) fn run(until: Ps) {
    let mut next = world(|world| {
        world.until = until;
        world.advance()
    });
    INSIDE.set(true);
    while let Some(Some((thread, mut stack))) = next {
        let result = stack.resume(());
        next = world(|world| {
            let left = &mut world.threads[thread as usize];
            match result {
                CoroutineResult::Yield(()) => left.stack = Some(stack),
                CoroutineResult::Return(()) => left.state = State::Done,
            }
            world.advance()
        });
    }
    INSIDE.set(false);
    world(|world| {
        world.current = None;
        if until != Ps::MAX {
            world.now = world.now.max(until);
        }
    });
}

/// Whether the caller is a simulated thread.
#[inline]
#[must_use]
pub fn is_simulated() -> bool {
    INSIDE.with(Cell::get)
}

/// Virtual time of the calling simulated thread; nothing on other threads.
#[must_use]
pub fn now() -> Option<Duration> {
    now_ns().map(Duration::from_nanos)
}

/// The same in nanoseconds.
#[inline]
#[must_use]
pub fn now_ns() -> Option<u64> {
    if !is_simulated() {
        return None;
    }
    world(|world| world.clock() / 1000)
}

/// The calling simulated thread found nothing to do: it goes on when what it polled since the last
/// call, or the region with this key, may have something, and at the latest after `at_most`.
/// Returns how long that was. Both are in nanoseconds: a loop that waits comes here more often than anywhere.
pub fn idle(at_most: u64, memory: Option<u32>) -> u64 {
    if !is_simulated() {
        return 0;
    }
    let Some((before, after, yielder)) = world(|world| {
        let before = world.clock();
        let most = at_most.saturating_mul(1000);
        let waits = world.wait_until(before.saturating_add(most.max(1000)), memory);
        let yielder = if waits { world.leave() } else { None };
        (before, world.clock(), yielder)
    }) else {
        return 0;
    };
    let after = match yielder {
        Some(yielder) => {
            switch(yielder);
            world(|world| world.clock()).unwrap_or(before)
        }
        None => after,
    };
    after.saturating_sub(before) / 1000
}

/// A look at what has not changed, and the loop around it.
const SPIN: Ps = 20_000;

/// How many looks in vain a wait stands for, after so many: up to a multiple of 256, since loops look at their clocks
/// then. Those that have waited long do so less often, since many that wait are much work for a simulation.
fn misses_of_wait(misses: u32) -> u32 {
    /// Misses after which it waits no longer: 655 µs.
    const LONGEST: u32 = 1 << 15;
    misses.clamp(256, LONGEST).next_multiple_of(256) - misses % 256
}

/// So much time as looks in vain, if it is of a wait after so many.
fn looks(misses: u32, time: Ps) -> u32 {
    let most = misses_of_wait(misses);
    u32::try_from(time / 1000 / (SPIN / 1000)).map_or(most, |looks| looks.min(most))
}

/// The calling simulated thread's loop has looked in vain so often, at what it polled since the last call or at the region
/// with this key: it goes on when there may be something, and at the latest after a time that grows. Returns how often it
/// has looked in vain then.
#[must_use]
pub fn idle_looking(misses: u32, memory: Option<u32>) -> u32 {
    let wait = Ps::from(misses_of_wait(misses)) * (SPIN / 1000);
    misses.saturating_add(looks(misses, idle(wait, memory) * 1000))
}

/// The same for a loop that does nothing but poll one completion queue, as it did since the last call, until there is
/// something or it is time for something else: `until_ns`, in virtual time. `misses` is before this one.
#[must_use]
pub fn idle_polling(misses: u32, until_ns: u64) -> u32 {
    let waits = world(|world| {
        let thread = world.current?;
        let me = &mut world.threads[thread as usize];
        if me.several_cqs {
            return None;
        }
        me.polling.cq = me.first_cq?;
        me.polling.until_ns = until_ns;
        me.polls = true;
        let waits = world.wait_polling(thread, misses);
        Some(if waits { world.leave() } else { None })
    });
    let Some(yielder) = waits.flatten() else {
        return idle_looking(misses.saturating_add(1), None);
    };
    if let Some(yielder) = yielder {
        switch(yielder);
    }
    world(|world| {
        let me = &mut world.threads[world.current? as usize];
        me.polls = false;
        let Polling { misses, from, .. } = me.polling;
        let waited = world.clock.saturating_sub(from);
        Some(misses.saturating_add(looks(misses, waited)))
    })
    .flatten()
    .unwrap_or(misses)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use super::*;
    use crate::Cluster;
    use crate::cq::{Cq, Cqe};
    use crate::line::Line;
    use crate::message::SUCCESS;
    use crate::spend::spend;

    /// When the loop of a thread finds each of the completions that come at these times in ns, and how often it has
    /// looked in vain then; at `stop`, which is in ns too, it gives up.
    fn finds(times: &[u64], stop: u64, wait: fn(u32, u64) -> u32) -> Vec<(u64, u32)> {
        let profile = nicmodel::profile::builtin("cib").expect("built in");
        let cluster = Cluster::new(profile, 1, 1).expect("it has all costs");
        world(|world| {
            world.cqs.push(Some(Cq {
                capacity: 16,
                overrun: false,
                cqes: Line::default(),
                handle: std::ptr::null(),
                watcher: None,
                stamp: 0,
            }));
        });
        let found = Rc::new(RefCell::new(Vec::new()));
        let (list, wanted) = (Rc::clone(&found), times.len());
        cluster.spawn(cluster.machine(0), "looks", move || {
            let mut misses = 0;
            while list.borrow().len() < wanted {
                synchronize();
                if world(|world| world.poll(0, 1, |_| {})) == Some(Some(1)) {
                    list.borrow_mut()
                        .push((now_ns().expect("simulated"), misses));
                    misses = 0;
                    continue;
                }
                misses = wait(misses, stop);
                if misses.is_multiple_of(256) && now_ns().expect("simulated") >= stop {
                    list.borrow_mut()
                        .push((now_ns().expect("simulated"), misses));
                    return;
                }
            }
        });
        let times = times.to_vec();
        cluster.spawn(cluster.machine(0), "completes", move || {
            for at in times {
                // A little before it becomes visible.
                spend(Duration::from_nanos(at - 300) - now().expect("simulated"));
                let_happen();
                let cqe = Cqe {
                    at: at * 1000,
                    wr_id: 0,
                    byte_len: 0,
                    imm: 0,
                    qpn: 0,
                    src_qp: 0,
                    slid: 0,
                    with_imm: false,
                    status: SUCCESS,
                    opcode: 0,
                };
                world(|world| world.complete(0, cqe));
            }
        });
        cluster.run().expect("both end");
        drop(cluster);
        found.take()
    }

    /// A loop that polls by itself, and one that is polled for, find the same at the same times.
    #[test]
    fn who_is_polled_for_finds_the_same() {
        let alone = |misses: u32, _| idle_looking(misses + 1, None);
        let polled_for = idle_polling;
        let times = [
            1_000, 6_100, 6_200, 11_400, 40_000, 40_001, 700_000, 705_120, 9_000_000,
        ];
        for stop in [u64::MAX, 8_000_000, 702_000] {
            let found = finds(&times, stop, alone);
            assert_eq!(found, finds(&times, stop, polled_for), "until {stop}");
            assert!(found.len() >= 7, "{found:?}");
        }
    }
}
