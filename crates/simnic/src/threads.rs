//! Simulated threads: coroutines, each with a core and a clock of its own.
//!
//! A thread runs real code on a stack of its own, and verbs advance its clock. The effect of an event becomes visible
//! one PCIe latency later. So a thread may be ahead of the events by that much, and is suspended only if it is further
//! ahead or waits ([`suspend_while_idle`]). Events run on the stack of the caller of [`run_events`], which stays in the
//! processor's cache, unlike the stacks of many threads.

#![allow(unsafe_code)]

use std::cell::Cell;
use std::time::Duration;

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};

use crate::event::SimulationEvent;
use crate::event_queue::Ps;
use crate::serial_resource::{SerialResource, SharedCacheLine};
use crate::simulation::Simulation;
use crate::thread::{PollingLoop, SimulatedThread, ThreadCoroutine, ThreadState};

/// Bytes of a thread's stack; untouched pages use no memory.
const STACK_BYTES: usize = 256 << 10;

thread_local! {
    /// The simulation, from a box; null if no simulation exists, or while it is borrowed.
    static WORLD: Cell<*mut Simulation> = const { Cell::new(std::ptr::null_mut()) };
    /// True while simulated code runs on this thread.
    static IN_SIMULATION: Cell<bool> = const { Cell::new(false) };
}

/// Installs a simulation; returns false if this thread already has one.
pub(crate) fn install_simulation(world: Box<Simulation>) -> bool {
    let free = WORLD.get().is_null();
    if free {
        WORLD.set(Box::into_raw(world));
    }
    free
}

/// Ends this thread's simulation. Coroutines that have not ended are leaked: unwinding them would pass through C
/// functions.
pub(crate) fn remove_simulation() {
    IN_SIMULATION.with(|inside| inside.set(false));
    let world = WORLD.replace(std::ptr::null_mut());
    if !world.is_null() {
        // SAFETY: the pointer came from a box (`install_simulation`), and no other reference exists, since the
        // simulation is not borrowed.
        let mut world = unsafe { Box::from_raw(world) };
        for thread in &mut world.threads {
            if let Some(stack) = thread.coroutine.take().filter(|stack| stack.started()) {
                std::mem::forget(stack);
            }
        }
    }
}

/// Calls `with` on this thread's simulation, if one exists and is not borrowed.
#[inline(always)]
pub(crate) fn with_simulation<R>(with: impl FnOnce(&mut Simulation) -> R) -> Option<R> {
    /// Returns the borrowed simulation on drop, also after a panic.
    struct BorrowedWorld(*mut Simulation);
    impl Drop for BorrowedWorld {
        #[inline(always)]
        fn drop(&mut self) {
            WORLD.set(self.0);
        }
    }
    let lent = BorrowedWorld(WORLD.replace(std::ptr::null_mut()));
    // SAFETY: NULL, or from a box that lives until `remove_simulation` (`install_simulation`). A borrower takes the
    // pointer out of `WORLD`, so no other reference exists. A coroutine is never suspended while the simulation is
    // borrowed.
    let world = unsafe { lent.0.as_mut() }?;
    Some(with(world))
}

impl Simulation {
    /// Adds a thread that starts at the current time.
    pub(crate) fn spawn(&mut self, machine: u32, name: String, body: impl FnOnce() + 'static) {
        let stack = DefaultStack::new(STACK_BYTES).expect("address space for a thread's stack");
        let thread = u32::try_from(self.threads.len()).expect("fewer threads than 2^32");
        let stack = Coroutine::with_stack(stack, move |yielder: &Yielder<(), ()>, ()| {
            with_simulation(|world| world.threads[thread as usize].yielder = yielder);
            body();
        });
        let clock = self.now;
        self.add_active_core(machine);
        self.last_wait_period_number += 1;
        self.thread_names.push(name);
        self.threads.push(SimulatedThread {
            machine,
            clock,
            state: ThreadState::ResumesAtTime,
            resume_at: clock,
            timer_event_at: Ps::MAX,
            coroutine: Some(Box::new(stack)),
            yielder: std::ptr::null(),
            polls_several_cqs: false,
            waits_in_polling_loop: false,
            polling_loop: PollingLoop::default(),
            first_polled_cq: None,
            further_polled_cqs: Vec::new(),
            wait_period_number: self.last_wait_period_number,
        });
        self.events.push(clock, SimulationEvent::Resume { thread });
    }

    /// Returns the clock of the running thread, or the simulation's time outside of threads.
    #[inline(always)]
    pub(crate) fn clock(&self) -> Ps {
        match self.current_thread {
            Some(_) => self.current_thread_clock,
            None => self.now,
        }
    }

    /// Advances the running thread's clock by `time`.
    #[inline(always)]
    pub(crate) fn advance_clock(&mut self, time: Ps) {
        if self.current_thread.is_some() {
            self.current_thread_clock += time;
        }
    }

    /// Makes WRITEs visible to the running thread that are due on its machine.
    #[inline(always)]
    pub(crate) fn apply_due_writes(&mut self) {
        if self.current_thread.is_some() {
            let home = &self.machines[self.current_machine as usize];
            if !home.regions_with_pending_writes.is_empty()
                && home.next_write_visible_at <= self.current_thread_clock
            {
                self.make_writes_visible(self.current_machine, self.current_thread_clock);
            }
        }
    }

    /// Returns the record of a cache line to which cores add; a new line belongs to `thread`.
    #[inline]
    pub(crate) fn find_or_add_shared_line(
        &mut self,
        number: u64,
        thread: u32,
    ) -> &mut SharedCacheLine {
        let lines = &mut self.shared_cache_lines;
        let known = lines.iter().position(|line| line.line_number == number);
        let place = known.unwrap_or_else(|| {
            lines.push(SharedCacheLine {
                line_number: number,
                serial_access: SerialResource::default(),
                owner_thread: thread,
            });
            lines.len() - 1
        });
        // Usually the same line is used again.
        lines.swap(0, place);
        &mut lines[0]
    }

    /// Suspends the running thread until all events before its clock have run; returns false if there are none.
    #[inline]
    fn schedule_resume_after_due_events(&mut self) -> bool {
        let clock = self.clock();
        if self.events.next_at().is_none_or(|next| next >= clock) {
            self.now = self.now.max(clock);
            return false;
        }
        let Some(thread) = self.current_thread else {
            return false;
        };
        let me = &mut self.threads[thread as usize];
        (me.state, me.resume_at, me.clock) = (ThreadState::ResumesAtTime, clock, clock);
        self.events.push(clock, SimulationEvent::Resume { thread });
        true
    }

    /// Makes the running thread wait for the queues and the region that it watches, at most until `deadline`. Returns
    /// false if the wait ends at once: its end is already known if no future event can become visible before it.
    fn try_begin_wait(&mut self, deadline: Ps, memory: Option<u32>) -> bool {
        let clock = self.current_thread_clock;
        let Some(thread) = self.current_thread else {
            return false;
        };
        let Self {
            threads,
            cqs,
            mrs,
            last_wait_period_number: stamps,
            ..
        } = self;
        let me = &mut threads[thread as usize];
        *stamps += 1;
        me.wait_period_number = *stamps;
        self.current_wait_period_number = *stamps;
        let mut next = deadline;
        let mut look = |cq: u32| {
            if let Some(Some(queue)) = cqs.get(cq as usize)
                && let Some(first) = queue.cqes.front()
            {
                next = next.min(first.visible_at.max(clock));
            }
        };
        if let Some(cq) = me.first_polled_cq.take() {
            look(cq);
        }
        if std::mem::take(&mut me.polls_several_cqs) {
            me.further_polled_cqs.iter().for_each(|&cq| look(cq));
            me.further_polled_cqs.clear();
        }
        if let Some(key) = memory
            && let Some(Some(mr)) = mrs.get_mut(key as usize)
        {
            mr.waiting_thread = Some(thread);
            if let Some((at, ..)) = mr.pending_writes.front() {
                next = next.min((*at).max(clock));
            }
        }
        self.try_suspend_until(thread, next)
    }

    /// Makes the running thread wait until `next`, or until something that it watches changes. Returns false if the
    /// wait ends at once, because no future event can become visible before `next`.
    fn try_suspend_until(&mut self, thread: u32, next: Ps) -> bool {
        let clock = self.current_thread_clock;
        if next <= self.now + self.min_pcie_latency {
            self.current_thread_clock = next;
            self.apply_due_writes();
            return false;
        }
        let me = &mut self.threads[thread as usize];
        (me.state, me.resume_at, me.clock) = (ThreadState::ResumesAtTimeOrChange, next, clock);
        if next < me.timer_event_at {
            me.timer_event_at = next;
            self.events.push(next, SimulationEvent::Resume { thread });
        }
        true
    }

    /// Makes the running thread wait for the events of a completion channel, at most until `deadline`.
    fn begin_wait_for_event(&mut self, channel: u32, deadline: Ps) -> EventWait {
        let (clock, next) = (
            self.clock(),
            self.completion_channels.next_event_at(channel),
        );
        if next <= clock {
            return EventWait::EventIsThere;
        }
        let Some(thread) = self.current_thread else {
            return EventWait::TimedOut;
        };
        if deadline <= clock {
            return EventWait::TimedOut;
        }
        self.completion_channels.add_waiting_thread(channel, thread);
        if !self.try_suspend_until(thread, next.min(deadline)) {
            return EventWait::CheckAgain;
        }
        self.current_yielder()
            .map_or(EventWait::TimedOut, EventWait::Suspend)
    }

    /// Returns true if a thread must resume for its event now, and has not resumed before.
    fn take_due_wake_up(&mut self, thread: u32) -> bool {
        let now = self.now;
        let woken = &mut self.threads[thread as usize];
        let timer = woken.timer_event_at == now;
        if timer {
            woken.timer_event_at = Ps::MAX;
        }
        if !matches!(
            woken.state,
            ThreadState::ResumesAtTime | ThreadState::ResumesAtTimeOrChange
        ) {
            return false;
        }
        if woken.resume_at <= now {
            return true;
        }
        if timer && woken.state == ThreadState::ResumesAtTimeOrChange {
            woken.timer_event_at = woken.resume_at;
            self.events
                .push(woken.timer_event_at, SimulationEvent::Resume { thread });
        }
        false
    }

    /// Runs events until a thread resumes; `None` if none does before the end of the run.
    fn run_until_thread_resumes(&mut self) -> Option<(u32, Box<ThreadCoroutine>)> {
        self.current_thread = None;
        loop {
            let (at, event) = self.events.pop_until(self.run_end)?;
            self.now = self.now.max(at);
            let SimulationEvent::Resume { thread } = event else {
                self.run_event(event, at);
                continue;
            };
            if !self.take_due_wake_up(thread) {
                continue;
            }
            let woken = &self.threads[thread as usize];
            let polls = woken.waits_in_polling_loop;
            self.current_thread_clock = woken.clock.max(woken.resume_at);
            (self.current_machine, self.current_wait_period_number) =
                (woken.machine, woken.wait_period_number);
            self.current_thread = Some(thread);
            self.apply_due_writes();
            if polls && self.poll_for_thread(thread) {
                self.current_thread = None;
                continue;
            }
            let woken = &mut self.threads[thread as usize];
            woken.state = ThreadState::Running;
            return Some((thread, woken.coroutine.take()?));
        }
    }

    /// Polls on behalf of a thread that resumes in [`suspend_while_polling_cq`], and lets it wait again. Returns false
    /// if the thread must run. With hundreds of clients, the state of a thread is in no cache, and most waits end
    /// without a completion.
    fn poll_for_thread(&mut self, thread: u32) -> bool {
        let PollingLoop {
            cq,
            empty_polls_before_wait: misses,
            wait_end: end,
            deadline_ns: until_ns,
            ..
        } = self.threads[thread as usize].polling_loop;
        let clock = self.current_thread_clock;
        if clock != end || clock / 1000 >= until_ns || clock > self.now + self.min_pcie_latency {
            return false;
        }
        let Some(Some(queue)) = self.cqs.get(cq as usize) else {
            return false;
        };
        if queue.is_overrun
            || queue
                .cqes
                .front()
                .is_some_and(|first| first.visible_at <= clock)
        {
            return false;
        }
        self.poll_cq(cq, 0, |_| {});
        self.try_begin_polling_wait(thread, misses.saturating_add(empty_polls_of_wait(misses)))
    }

    /// Makes the running thread wait after `misses` unsuccessful polls. Returns false if the wait ends at once.
    fn try_begin_polling_wait(&mut self, thread: u32, misses: u32) -> bool {
        let misses = misses.saturating_add(1);
        let from = self.current_thread_clock;
        let end = from.saturating_add(Ps::from(empty_polls_of_wait(misses)) * EMPTY_POLL_TIME);
        let polling = &mut self.threads[thread as usize].polling_loop;
        (
            polling.empty_polls_before_wait,
            polling.wait_start,
            polling.wait_end,
        ) = (misses, from, end);
        self.try_begin_wait(end, None)
    }

    /// Returns the yielder of the running thread, with which it can be suspended.
    fn current_yielder(&self) -> Option<*const Yielder<(), ()>> {
        let me = self.threads.get(self.current_thread? as usize)?;
        Some(me.yielder).filter(|yielder| !yielder.is_null())
    }
}

/// Suspends the running thread.
#[inline]
fn suspend_thread(yielder: *const Yielder<(), ()>) {
    // SAFETY: the running coroutine set the pointer when it began (`spawn`). A coroutine's yielder lives on its stack
    // until it ends, and the coroutine is running.
    unsafe { (*yielder).suspend(()) };
}

/// Runs all events before the running thread's clock, if the clock is so far ahead that they may be visible to it.
#[inline(always)]
pub(crate) fn run_due_events_if_far_ahead() {
    let ahead = with_simulation(|world| world.clock() > world.now + world.min_pcie_latency);
    if ahead == Some(true) {
        run_due_events();
    }
}

/// Runs all events before the running thread's clock.
#[inline(never)]
fn run_due_events() {
    let yielder = with_simulation(|world| {
        if world.schedule_resume_after_due_events() {
            world.current_yielder()
        } else {
            None
        }
    });
    if let Some(yielder) = yielder.flatten() {
        suspend_thread(yielder);
    }
}

/// Runs events until a time, or until no event is left. Panics of simulated threads propagate to the caller.
pub(crate) fn run_events(until: Ps) {
    let mut next = with_simulation(|world| {
        world.run_end = until;
        world.run_until_thread_resumes()
    });
    IN_SIMULATION.set(true);
    while let Some(Some((thread, mut stack))) = next {
        let result = stack.resume(());
        next = with_simulation(|world| {
            let left = &mut world.threads[thread as usize];
            match result {
                CoroutineResult::Yield(()) => left.coroutine = Some(stack),
                CoroutineResult::Return(()) => left.state = ThreadState::Done,
            }
            world.run_until_thread_resumes()
        });
    }
    IN_SIMULATION.set(false);
    with_simulation(|world| {
        world.current_thread = None;
        if until != Ps::MAX {
            world.now = world.now.max(until);
        }
    });
}

/// Returns true if the caller is a simulated thread.
#[inline]
#[must_use]
pub fn is_simulated() -> bool {
    IN_SIMULATION.with(Cell::get)
}

/// Returns the virtual time of the calling simulated thread; `None` on other threads.
#[must_use]
pub fn now() -> Option<Duration> {
    now_ns().map(Duration::from_nanos)
}

/// Returns the virtual time of the calling simulated thread in nanoseconds; `None` on other threads.
#[inline]
#[must_use]
pub fn now_ns() -> Option<u64> {
    if !is_simulated() {
        return None;
    }
    with_simulation(|world| world.clock() / 1000)
}

/// Suspends the calling simulated thread, which has found nothing to do, for `at_most` at most. It resumes earlier if
/// the region with the key `memory` may have changed, or a completion queue polled since the last call. Returns the
/// waiting time. Both times are in nanoseconds, since loops call this function more often than any other.
pub fn suspend_while_idle(at_most: u64, memory: Option<u32>) -> u64 {
    if !is_simulated() {
        return 0;
    }
    let Some((before, after, yielder)) = with_simulation(|world| {
        let before = world.clock();
        let most = at_most.saturating_mul(1000);
        let waits = world.try_begin_wait(before.saturating_add(most.max(1000)), memory);
        let yielder = if waits { world.current_yielder() } else { None };
        (before, world.clock(), yielder)
    }) else {
        return 0;
    };
    let after = match yielder {
        Some(yielder) => {
            suspend_thread(yielder);
            with_simulation(|world| world.clock()).unwrap_or(before)
        }
        None => after,
    };
    after.saturating_sub(before) / 1000
}

/// The next step of a thread that waits for the event of a completion channel.
enum EventWait {
    EventIsThere,
    TimedOut,
    /// Check again: time has passed.
    CheckAgain,
    Suspend(*const Yielder<(), ()>),
}

/// Waits until a completion channel has an event, at most until `deadline`. Returns false if it has none then, and at
/// once outside of simulated threads.
pub(crate) fn wait_for_event(channel: u32, deadline: Ps) -> bool {
    loop {
        run_due_events();
        let wait = with_simulation(|world| world.begin_wait_for_event(channel, deadline));
        match wait {
            Some(EventWait::EventIsThere) => return true,
            Some(EventWait::CheckAgain) => {}
            Some(EventWait::Suspend(yielder)) => suspend_thread(yielder),
            Some(EventWait::TimedOut) | None => return false,
        }
    }
}

/// Waits in virtual time until the completion channel with this descriptor has an event, for `at_most` at most. Returns
/// true if it has one. This is the `poll(2)` of simulated threads: a descriptor of the kernel knows no virtual time.
#[must_use]
pub fn wait_until_channel_readable(fd: i32, at_most: Duration) -> bool {
    let channel = with_simulation(|world| {
        let at_most =
            Ps::try_from(at_most.as_nanos()).map_or(Ps::MAX, |ns| ns.saturating_mul(1000));
        let channel = world.completion_channels.index_of_descriptor(fd)?;
        Some((channel, world.clock().saturating_add(at_most)))
    });
    channel
        .flatten()
        .is_some_and(|(channel, deadline)| wait_for_event(channel, deadline))
}

/// Duration of an unsuccessful poll with the loop around it.
const EMPTY_POLL_TIME: Ps = 20_000;

/// Returns the number of unsuccessful polls for which a wait stands, after `misses` of them. The sum is a multiple of
/// 256, when loops check their clocks. Waits grow with `misses`, because many short waits would make a simulation slow.
fn empty_polls_of_wait(misses: u32) -> u32 {
    /// Number of misses after which waits grow no longer: 655 µs.
    const MAX_EMPTY_POLLS: u32 = 1 << 15;
    misses.clamp(256, MAX_EMPTY_POLLS).next_multiple_of(256) - misses % 256
}

/// Returns the number of unsuccessful polls in `time`, for a wait after `misses` of them.
fn empty_polls_in(misses: u32, time: Ps) -> u32 {
    let most = empty_polls_of_wait(misses);
    u32::try_from(time / 1000 / (EMPTY_POLL_TIME / 1000)).map_or(most, |looks| looks.min(most))
}

/// Suspends the calling simulated thread after `misses` unsuccessful polls, for a time that grows with `misses`. It
/// resumes earlier if the region with the key `memory` may have changed, or a completion queue polled since the last
/// call. Returns the new number of unsuccessful polls.
#[must_use]
pub fn suspend_while_polling_memory(misses: u32, memory: Option<u32>) -> u32 {
    let wait = Ps::from(empty_polls_of_wait(misses)) * (EMPTY_POLL_TIME / 1000);
    misses.saturating_add(empty_polls_in(
        misses,
        suspend_while_idle(wait, memory) * 1000,
    ))
}

/// As [`suspend_while_polling_memory`], for a loop that only polls one completion queue, as it has done since the last
/// call. The loop resumes when the queue may have a completion, or at `until_ns` in virtual time. `misses` does not
/// include the latest poll.
#[must_use]
pub fn suspend_while_polling_cq(misses: u32, until_ns: u64) -> u32 {
    let waits = with_simulation(|world| {
        let thread = world.current_thread?;
        let me = &mut world.threads[thread as usize];
        if me.polls_several_cqs {
            return None;
        }
        me.polling_loop.cq = me.first_polled_cq?;
        me.polling_loop.deadline_ns = until_ns;
        me.waits_in_polling_loop = true;
        let waits = world.try_begin_polling_wait(thread, misses);
        Some(if waits { world.current_yielder() } else { None })
    });
    let Some(yielder) = waits.flatten() else {
        return suspend_while_polling_memory(misses.saturating_add(1), None);
    };
    if let Some(yielder) = yielder {
        suspend_thread(yielder);
    }
    with_simulation(|world| {
        let me = &mut world.threads[world.current_thread? as usize];
        me.waits_in_polling_loop = false;
        let PollingLoop {
            empty_polls_before_wait: misses,
            wait_start: from,
            ..
        } = me.polling_loop;
        let waited = world.current_thread_clock.saturating_sub(from);
        Some(misses.saturating_add(empty_polls_in(misses, waited)))
    })
    .flatten()
    .unwrap_or(misses)
}

/// Polls completion queues, given by their handles, one after the other while these polls find nothing. Returns the
/// number of these polls. The caller then polls the next queue itself, because that queue may have a completion or the
/// simulation must run events first. Outside of simulated threads the function polls nothing.
#[must_use]
pub fn poll_cqs_while_empty(cqs: &[u32]) -> usize {
    if !is_simulated() {
        return 0;
    }
    let in_vain = |world: &mut Simulation| {
        let poll_time = world.current_core_and_memory_costs().poll_time();
        let polls = cqs
            .iter()
            .take_while(|&&cq| world.poll_finds_nothing(cq, poll_time));
        polls.count()
    };
    with_simulation(in_vain).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use super::*;
    use crate::Cluster;
    use crate::completion_channel::Arming;
    use crate::cq::{Cq, Cqe};
    use crate::fifo_queue::FifoQueue;
    use crate::message::SUCCESS_STATUS;
    use crate::spend_core_time::spend_core_time;

    /// Returns when the loop of a thread finds each of the completions that arrive at `times` in ns, with its number of
    /// unsuccessful polls. The loop ends at `stop`, which is in ns, too.
    fn detection_times(times: &[u64], stop: u64, wait: fn(u32, u64) -> u32) -> Vec<(u64, u32)> {
        let profile = nicmodel::profile::builtin_profile("cib").expect("built in");
        let cluster = Cluster::new(profile, 1, 1).expect("it has all costs");
        with_simulation(|world| {
            world.cqs.push(Some(Cq {
                capacity: 16,
                is_overrun: false,
                armed_for: Arming::Disarmed,
                cqes: FifoQueue::default(),
                handle: std::ptr::null(),
                last_polling_thread: None,
                wait_period_number_at_last_poll: 0,
            }));
        });
        let found = Rc::new(RefCell::new(Vec::new()));
        let (list, wanted) = (Rc::clone(&found), times.len());
        cluster.spawn(cluster.host_of_machine(0), "looks", move || {
            let mut misses = 0;
            while list.borrow().len() < wanted {
                run_due_events_if_far_ahead();
                if with_simulation(|world| world.poll_cq(0, 1, |_| {})) == Some(Some(1)) {
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
        cluster.spawn(cluster.host_of_machine(0), "completes", move || {
            for at in times {
                // Runs slightly before the completion becomes visible.
                spend_core_time(Duration::from_nanos(at - 300) - now().expect("simulated"));
                run_due_events();
                let cqe = Cqe {
                    visible_at: at * 1000,
                    wr_id: 0,
                    byte_len: 0,
                    imm: 0,
                    qpn: 0,
                    src_qp: 0,
                    slid: 0,
                    freed_send_queue_slots: 0,
                    has_imm: false,
                    solicited: false,
                    status: SUCCESS_STATUS,
                    opcode: 0,
                };
                with_simulation(|world| world.add_completion(0, cqe));
            }
        });
        cluster.run_until_threads_end().expect("both end");
        drop(cluster);
        found.take()
    }

    /// A loop that polls itself and one that is polled for find the same completions at the same times.
    #[test]
    fn who_is_polled_for_finds_the_same() {
        let alone = |misses: u32, _| suspend_while_polling_memory(misses + 1, None);
        let polled_for = suspend_while_polling_cq;
        let times = [
            1_000, 6_100, 6_200, 11_400, 40_000, 40_001, 700_000, 705_120, 9_000_000,
        ];
        for stop in [u64::MAX, 8_000_000, 702_000] {
            let found = detection_times(&times, stop, alone);
            assert_eq!(
                found,
                detection_times(&times, stop, polled_for),
                "until {stop}"
            );
            assert!(found.len() >= 7, "{found:?}");
        }
    }
}
