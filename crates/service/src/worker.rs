//! Worker threads: what the rest of a server tells one, and its loop of looking, waiting and sleeping.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, TryRecvError, sync_channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use verbs::Waiter;

/// Locks plain data: what a thread that panicked left is as good as before.
pub fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Where a worker says what became of a command.
pub type Done = SyncSender<Result<(), String>>;

/// What a worker is told, commands `C`, and what is known of it, counts `S`.
#[derive(Debug)]
pub struct Mailbox<C, S> {
    commands: Mutex<Vec<C>>,
    pending: AtomicBool,
    wake: Wake,
    counts: Mutex<S>,
}

/// Wakes a worker that sleeps.
#[derive(Debug)]
pub struct Wake(OwnedFd);

impl AsFd for Wake {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Wake {
    /// Sleeps until it is woken, or for a time.
    pub fn wait(&self, timeout: Option<Duration>) {
        let timeout = timeout.and_then(|t| Timespec::try_from(t).ok());
        let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
        // Interrupted or not, the worker looks again.
        let _ = poll(&mut fds, timeout.as_ref());
        self.drain();
    }

    /// It has been woken: the next sleep is whole again.
    pub fn drain(&self) {
        // Empty is fine.
        let _ = rustix::io::read(&self.0, &mut [0u8; 8]);
    }
}

impl<C, S: Clone + Default> Mailbox<C, S> {
    /// Nothing is told yet.
    ///
    /// # Errors
    /// When the system gives no descriptor.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            commands: Mutex::default(),
            pending: AtomicBool::new(false),
            wake: Wake(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?),
            counts: Mutex::default(),
        })
    }

    /// Tells the worker something, and wakes it if it sleeps.
    pub fn tell(&self, command: C) {
        lock(&self.commands).push(command);
        self.pending.store(true, Ordering::Release);
        // Full means that it is awake already.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Tells the worker something, and waits for what becomes of it.
    ///
    /// # Errors
    /// What the worker says; or that it ends, or says nothing for five seconds.
    pub fn ask(&self, command: impl FnOnce(Done) -> C) -> Result<(), String> {
        let stops = || Err("the server stops".to_owned());
        let (done, said) = sync_channel(1);
        self.tell(command(done));
        let said = verbs::poll_until(Duration::from_secs(5), || match said.try_recv() {
            Ok(outcome) => Some(outcome),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(stops()),
        });
        said.unwrap_or_else(stops)
    }

    /// What the worker has counted. Counts of a busy one are a few thousand requests old.
    pub fn counts(&self) -> S {
        lock(&self.counts).clone()
    }
}

/// What a worker does.
pub trait Work {
    /// Why it cannot go on.
    type Error;
    /// What it is told.
    type Command;
    /// What it counts.
    type Counts: Clone + Default;

    /// Carries out what it is told; false if that is to stop.
    fn obey(&mut self, command: Self::Command) -> bool;

    /// Does what there is to do, and says how much that was.
    ///
    /// # Errors
    /// The worker ends.
    fn poll(&mut self) -> Result<usize, Self::Error>;

    /// What it has counted.
    fn counts(&self) -> Self::Counts;

    /// There is nothing to do: waits for a moment.
    fn idle(&self, waiter: &mut Waiter);

    /// There has been nothing to do for long: sleeps, and wakes when it is woken at the latest.
    ///
    /// # Errors
    /// The worker ends.
    fn sleep(&mut self, wake: &Wake, waiter: &mut Waiter) -> Result<(), Self::Error>;
}

/// Works until told to stop.
///
/// # Errors
/// As [`Work::poll`].
pub fn run<W: Work>(
    work: &mut W,
    mailbox: &Mailbox<W::Command, W::Counts>,
) -> Result<(), W::Error> {
    // Some 100 µs of looking before sleeping, and of yielding to whoever shares the core.
    let mut waiter = Waiter::new().with_patience(512, 1_500);
    let mut polls = 0u32;
    loop {
        if mailbox.pending.load(Ordering::Relaxed) && !obey(work, mailbox) {
            publish(work, mailbox);
            return Ok(());
        }
        let came = work.poll()?;
        polls = polls.wrapping_add(1);
        if came > 0 {
            waiter.reset();
            if polls.is_multiple_of(4096) {
                publish(work, mailbox);
            }
        } else if waiter.next_sleep().is_zero() {
            if waiter.misses() == 256 {
                publish(work, mailbox);
            }
            work.idle(&mut waiter);
        } else {
            work.sleep(&mailbox.wake, &mut waiter)?;
        }
    }
}

#[cold]
fn publish<W: Work>(work: &W, mailbox: &Mailbox<W::Command, W::Counts>) {
    *lock(&mailbox.counts) = work.counts();
}

#[cold]
fn obey<W: Work>(work: &mut W, mailbox: &Mailbox<W::Command, W::Counts>) -> bool {
    // Cleared before the commands are taken: one that comes later sets it again.
    mailbox.pending.swap(false, Ordering::AcqRel);
    let commands = std::mem::take(&mut *lock(&mailbox.commands));
    commands.into_iter().all(|command| work.obey(command))
}
