//! Simulated threads: coroutines, each on a core of its own with a clock of its own.
//!
//! A thread runs real code on a stack of its own. Verbs advance its clock; events up to that clock
//! have happened before it sees what they did. It stops where it waits ([`idle`]) or where it is
//! ahead of events that others caused, and goes on when they have happened.

#![allow(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::time::Duration;

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};

use crate::queue::Ps;
use crate::world::{Event, World};

/// Bytes of a thread's stack; pages that are not touched take no memory.
const STACK_BYTES: usize = 256 << 10;

/// The stack of a thread, and where it goes on.
pub(crate) type Stack = Coroutine<(), (), ()>;

/// A simulated thread.
pub(crate) struct Thread {
    pub(crate) name: String,
    pub(crate) machine: u32,
    pub(crate) clock: Ps,
    state: State,
    /// Distinguishes the resumption that is wanted from older ones.
    token: u32,
    /// Not there while it runs.
    stack: Option<Stack>,
    yielder: *const Yielder<(), ()>,
    /// Completion queues that it polled since it last waited, and the region that it waits for.
    cqs: Vec<u32>,
    memory: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It runs, or goes on at its clock whatever happens.
    Running,
    /// It waits for what it polled, until this time.
    Waiting(Ps),
    Done,
}

impl std::fmt::Debug for Thread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Thread({}, {:?})", self.name, self.state)
    }
}

thread_local! {
    static WORLD: RefCell<Option<Box<World>>> = const { RefCell::new(None) };
    /// Whether simulated code runs on this thread now.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Puts a simulation in place; false if this thread has one.
pub(crate) fn install(world: Box<World>) -> bool {
    WORLD.with(|slot| {
        let mut slot = slot.borrow_mut();
        let free = slot.is_none();
        if free {
            *slot = Some(world);
        }
        free
    })
}

/// Ends this thread's simulation. Threads that have not ended are left as they are: unwinding them
/// would pass through C functions.
pub(crate) fn remove() {
    INSIDE.with(|inside| inside.set(false));
    let world = WORLD.with(|slot| slot.borrow_mut().take());
    if let Some(mut world) = world {
        for thread in &mut world.threads {
            if let Some(stack) = thread.stack.take().filter(Coroutine::started) {
                std::mem::forget(stack);
            }
        }
    }
}

/// Calls `with` on this thread's simulation, if there is one.
#[inline]
pub(crate) fn world<R>(with: impl FnOnce(&mut World) -> R) -> Option<R> {
    WORLD.with(|slot| slot.borrow_mut().as_deref_mut().map(with))
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
        self.threads.push(Thread {
            name,
            machine,
            clock,
            state: State::Running,
            token: 0,
            stack: Some(stack),
            yielder: std::ptr::null(),
            cqs: Vec::new(),
            memory: None,
        });
        self.events.push(clock, Event::Resume { thread, token: 0 });
    }

    /// The running thread.
    pub(crate) fn me(&mut self) -> Option<&mut Thread> {
        let current = self.current?;
        self.threads.get_mut(current as usize)
    }

    /// The clock of who calls: the running thread's, or the simulation's outside of threads.
    pub(crate) fn clock(&self) -> Ps {
        let me = self
            .current
            .and_then(|current| self.threads.get(current as usize));
        me.map_or(self.now, |me| me.clock)
    }

    /// The running thread works for so long.
    pub(crate) fn spend(&mut self, time: Ps) {
        if let Some(me) = self.me() {
            me.clock += time;
        }
    }

    /// What is due on the running thread's machine becomes visible to it.
    pub(crate) fn catch_up(&mut self) {
        let Some(me) = self.me() else { return };
        let (machine, clock) = (me.machine, me.clock);
        self.settle(machine, clock);
    }

    /// The running thread polls a CQ.
    pub(crate) fn watch_cq(&mut self, cq: u32) {
        let Some(current) = self.current else { return };
        let me = &mut self.threads[current as usize];
        if !me.cqs.contains(&cq) {
            me.cqs.push(cq);
        }
        if let Some(Some(queue)) = self.cqs.get_mut(cq as usize) {
            queue.watcher = Some(current);
        }
    }

    /// Something that a thread watches changes at a time.
    pub(crate) fn wake(&mut self, thread: u32, at: Ps) {
        let Some(sleeper) = self.threads.get_mut(thread as usize) else {
            return;
        };
        let State::Waiting(until) = sleeper.state else {
            return;
        };
        let at = at.max(sleeper.clock);
        if at < until {
            sleeper.state = State::Waiting(at);
            sleeper.token += 1;
            let token = sleeper.token;
            self.events.push(at, Event::Resume { thread, token });
        }
    }

    /// Whether an event must happen before the running thread may act at its clock.
    fn is_ahead(&self) -> bool {
        self.events
            .next_at()
            .is_some_and(|next| next < self.clock())
    }

    /// The running thread goes on at its clock, after all events before it.
    fn yield_at_clock(&mut self) -> Option<*const Yielder<(), ()>> {
        let thread = self.current?;
        let me = &mut self.threads[thread as usize];
        me.token += 1;
        let (clock, token) = (me.clock, me.token);
        self.events.push(clock, Event::Resume { thread, token });
        Some(self.threads[thread as usize].yielder)
    }

    /// The running thread waits for what it watches, at most until `deadline`.
    fn wait_until(&mut self, deadline: Ps) -> Option<*const Yielder<(), ()>> {
        let thread = self.current?;
        let mut next = deadline;
        let me = &mut self.threads[thread as usize];
        let cqs = std::mem::take(&mut me.cqs);
        let (clock, memory) = (me.clock, me.memory);
        for &cq in &cqs {
            let queue = self.cqs.get(cq as usize).and_then(Option::as_ref);
            if let Some(first) = queue.and_then(|queue| queue.cqes.front()) {
                next = next.min(first.at.max(clock));
            }
        }
        if let Some(key) = memory
            && let Some(Some(mr)) = self.mrs.get_mut(key as usize)
        {
            mr.watcher = Some(thread);
            if let Some((at, ..)) = mr.writes.front() {
                next = next.min((*at).max(clock));
            }
        }
        let me = &mut self.threads[thread as usize];
        me.cqs = cqs;
        me.cqs.clear();
        me.state = State::Waiting(next);
        me.token += 1;
        let token = me.token;
        self.events.push(next, Event::Resume { thread, token });
        Some(self.threads[thread as usize].yielder)
    }
}

fn suspend(yielder: Option<*const Yielder<(), ()>>) {
    let Some(yielder) = yielder.filter(|yielder| !yielder.is_null()) else {
        return;
    };
    INSIDE.with(|inside| inside.set(false));
    // SAFETY: set by the running coroutine itself when it began (`spawn`); a coroutine's yielder
    // lives on its stack until it ends, and it runs now.
    unsafe { (*yielder).suspend(()) };
    INSIDE.with(|inside| inside.set(true));
}

/// Lets everything happen that is before the running thread's clock.
pub(crate) fn synchronize() {
    let yielder = world(|world| world.is_ahead().then(|| world.yield_at_clock()));
    suspend(yielder.flatten().flatten());
}

/// The same, if the thread is further ahead than anything can become visible to it.
pub(crate) fn synchronize_if_far() {
    let far = world(|world| world.clock() > world.now + world.costs.pcie);
    if far == Some(true) {
        synchronize();
    }
}

/// Runs events until a time, or until nothing can happen any more. Panics of threads go on here.
pub(crate) fn run(until: Ps) {
    loop {
        let next = world(|world| {
            loop {
                let at = world.events.next_at().filter(|&at| at <= until)?;
                let (_, event) = world.events.pop()?;
                world.now = at;
                let Event::Resume { thread, token } = event else {
                    world.happen(event);
                    continue;
                };
                let woken = &mut world.threads[thread as usize];
                if woken.token != token || woken.state == State::Done {
                    continue;
                }
                woken.state = State::Running;
                woken.clock = woken.clock.max(at);
                let stack = woken.stack.take();
                world.current = Some(thread);
                world.catch_up();
                return stack.map(|stack| (thread, stack));
            }
        });
        let Some((thread, mut stack)) = next.flatten() else {
            break;
        };
        INSIDE.with(|inside| inside.set(true));
        let result = stack.resume(());
        INSIDE.with(|inside| inside.set(false));
        world(|world| {
            world.current = None;
            let resumed = &mut world.threads[thread as usize];
            match result {
                CoroutineResult::Yield(()) => resumed.stack = Some(stack),
                CoroutineResult::Return(()) => resumed.state = State::Done,
            }
        });
    }
    world(|world| {
        if until != Ps::MAX {
            world.now = world.now.max(until);
        }
    });
}

impl Thread {
    pub(crate) fn is_done(&self) -> bool {
        self.state == State::Done
    }
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
    if !is_simulated() {
        return None;
    }
    world(|world| Duration::from_nanos(world.clock() / 1000))
}

/// The calling simulated thread found nothing to do: it goes on when what it polled since the last
/// call, or the region with this key, may have something, and at the latest after `at_most`.
/// Returns how long that was.
pub fn idle(at_most: Duration, memory: Option<u32>) -> Duration {
    let before = now().unwrap_or_default();
    // What others did before this moment comes first, and may be what it waits for.
    let ahead = world(|world| world.is_ahead()) == Some(true);
    if ahead {
        synchronize();
    }
    let yielder = world(|world| {
        let most = Ps::try_from(at_most.as_nanos()).unwrap_or(Ps::MAX / 2000) * 1000;
        let deadline = world.clock().saturating_add(most.max(1000));
        world.me()?.memory = memory;
        world.wait_until(deadline)
    });
    suspend(yielder.flatten());
    now().unwrap_or_default().saturating_sub(before)
}

/// The calling simulated thread handles so many requests of a server: what a core does for them
/// beside its verbs.
pub fn spend_requests(count: u64) {
    if is_simulated() {
        world(|world| {
            let time = world.costs.request * count;
            world.spend(time);
        });
    }
}

/// The calling simulated thread adds to the word at this address, which other cores may add to.
pub fn spend_shared_add(addr: u64) {
    if !is_simulated() {
        return;
    }
    synchronize();
    world(|world| {
        let Some(thread) = world.current else { return };
        let clock = world.clock();
        let (own, contended) = (world.costs.atomic_add, world.costs.contended_add);
        let (line, owner) = world
            .shared_lines
            .entry(addr / 64)
            .or_insert((crate::world::Fifo::default(), thread));
        let cost = if *owner == thread { own } else { contended };
        *owner = thread;
        let done = line.take(clock, cost);
        world.spend(done - clock);
        world.catch_up();
    });
}
