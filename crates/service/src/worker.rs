//! Worker threads: their mailbox, and their loop of polling, waiting and sleeping.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, TryRecvError, sync_channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use verbs::Waiter;

/// Locks a mutex around plain data, which stay valid if a thread panics; poisoning is ignored.
pub fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Maximum time that a worker takes for a command.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(5);

/// Channel on which a worker reports the result of a command.
pub type ResultSender = SyncSender<Result<(), String>>;

/// Mailbox of a worker: commands `C` to the worker, and counts `S` from it.
#[derive(Debug)]
pub struct Mailbox<C, S> {
    commands: Mutex<Vec<C>>,
    has_commands: AtomicBool,
    wake_eventfd: WakeEventfd,
    published_counts: Mutex<S>,
}

/// Eventfd that wakes a sleeping worker.
#[derive(Debug)]
pub struct WakeEventfd(OwnedFd);

impl AsFd for WakeEventfd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl WakeEventfd {
    /// Sleeps until the worker is woken, or until the timeout.
    pub fn wait(&self, timeout: Option<Duration>) {
        let timeout = timeout.and_then(|t| Timespec::try_from(t).ok());
        let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
        // The worker polls again in either case, so an interruption does not matter.
        let _ = poll(&mut fds, timeout.as_ref());
        self.drain();
    }

    /// Consumes a wake-up, so that the next sleep is not cut short.
    pub fn drain(&self) {
        // The read fails if no wake-up is pending, which is fine.
        let _ = rustix::io::read(&self.0, &mut [0u8; 8]);
    }
}

impl<C, S: Clone + Default> Mailbox<C, S> {
    /// Creates an empty mailbox.
    ///
    /// # Errors
    /// When the system cannot create a descriptor.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            commands: Mutex::default(),
            has_commands: AtomicBool::new(false),
            wake_eventfd: WakeEventfd(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?),
            published_counts: Mutex::default(),
        })
    }

    /// Sends a command to the worker, and wakes the worker if it sleeps.
    pub fn send(&self, command: C) {
        lock(&self.commands).push(command);
        self.has_commands.store(true, Ordering::Release);
        // The write fails only if the counter is full, and then the worker is awake.
        let _ = rustix::io::write(&self.wake_eventfd, &1u64.to_ne_bytes());
    }

    /// Sends a command to the worker and waits for its result.
    ///
    /// # Errors
    /// The worker's error, or the message that the worker has ended or has not answered for five
    /// seconds.
    pub fn send_and_wait(&self, command: impl FnOnce(ResultSender) -> C) -> Result<(), String> {
        let (done, answer) = sync_channel(1);
        self.send(command(done));
        let answer = verbs::poll_until(COMMAND_TIMEOUT, || match answer.try_recv() {
            Ok(outcome) => Some(outcome),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(Err("the server stops".to_owned())),
        });
        answer.unwrap_or_else(|| {
            Err(format!(
                "a worker of the server has not answered for {} s; it is held up, try again later",
                COMMAND_TIMEOUT.as_secs()
            ))
        })
    }

    /// Returns the worker's counts. Counts of a busy worker may lag by a few thousand requests.
    pub fn worker_counts(&self) -> S {
        lock(&self.published_counts).clone()
    }
}

/// The work of a worker.
pub trait WorkerLoop {
    /// Error that ends the worker.
    type Error;
    /// Command to the worker.
    type Command;
    /// Counts of the worker.
    type Counts: Clone + Default;

    /// Executes a command. Returns false if the worker must stop.
    fn execute_and_continue(&mut self, command: Self::Command) -> bool;

    /// Processes what is pending, and returns the amount of work done.
    ///
    /// # Errors
    /// An error ends the worker.
    fn poll(&mut self) -> Result<usize, Self::Error>;

    /// Returns the worker's counts.
    fn counts(&self) -> Self::Counts;

    /// Waits briefly after a poll without work.
    fn wait_briefly(&self, waiter: &mut Waiter);

    /// Sleeps after a long time without work, at the latest until `wake` is signaled.
    ///
    /// # Errors
    /// An error ends the worker.
    fn sleep(&mut self, wake: &WakeEventfd, waiter: &mut Waiter) -> Result<(), Self::Error>;
}

/// Runs the worker's loop until a command stops it.
///
/// # Errors
/// As [`WorkerLoop::poll`].
pub fn run<W: WorkerLoop>(
    work: &mut W,
    mailbox: &Mailbox<W::Command, W::Counts>,
) -> Result<(), W::Error> {
    // About 100 µs of polling, and of yielding to other threads on the core, before sleeping.
    let mut waiter = Waiter::new().with_spins_and_yields(512, 1_500);
    let mut polls = 0u32;
    loop {
        if mailbox.has_commands.load(Ordering::Relaxed)
            && !execute_commands_and_continue(work, mailbox)
        {
            publish_counts(work, mailbox);
            return Ok(());
        }
        let came = work.poll()?;
        polls = polls.wrapping_add(1);
        if came > 0 {
            waiter.reset();
            if polls.is_multiple_of(4096) {
                publish_counts(work, mailbox);
            }
        } else if waiter.next_sleep().is_zero() {
            if waiter.misses() == 256 {
                publish_counts(work, mailbox);
            }
            work.wait_briefly(&mut waiter);
        } else {
            work.sleep(&mailbox.wake_eventfd, &mut waiter)?;
        }
    }
}

#[cold]
fn publish_counts<W: WorkerLoop>(work: &W, mailbox: &Mailbox<W::Command, W::Counts>) {
    *lock(&mailbox.published_counts) = work.counts();
}

#[cold]
fn execute_commands_and_continue<W: WorkerLoop>(
    work: &mut W,
    mailbox: &Mailbox<W::Command, W::Counts>,
) -> bool {
    // Clear the flag before taking the commands: a later command sets it again.
    mailbox.has_commands.swap(false, Ordering::AcqRel);
    let commands = std::mem::take(&mut *lock(&mailbox.commands));
    commands
        .into_iter()
        .all(|command| work.execute_and_continue(command))
}
