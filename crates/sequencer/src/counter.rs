//! The counter that all workers (or, with `atomics`, the NIC) share, and the limit up to which numbers may be given.
//!
//! # The end of the numbers
//!
//! A number is never given twice, so the counter must never wrap. `u64::MAX` itself is never given: in an answer it
//! means that the numbers are used up.
//!
//! - Where CPUs add ([`Counter::take_numbers`]), the counter never exceeds the limit, which is at most [`END_OF_NUMBERS`].
//! - With `atomics` clients add, and a fetch-and-add cannot refuse. Numbers from [`ATOMICS_END_OF_NUMBERS`] on are
//!   invalid: a client that gets one stops for good. When the counter has reached this value, the server moves all
//!   queue pairs to ERR and accepts no client. Until then, each of at most [`MAX_CLIENTS`] sessions has at most
//!   [`MAX_WINDOW`] outstanding requests. So the counter ends at most `MAX_CLIENTS * MAX_WINDOW` past
//!   [`ATOMICS_END_OF_NUMBERS`], which is `u64::MAX`.
//!
//! # The limit with `atomics`
//!
//! The state file covers all numbers below the limit. A client takes its numbers without the server's CPU, so it can
//! take one past the limit, but it must not *use* that number. A client READs the server's limit word over the same
//! queue pair, and uses only numbers below that limit. For other numbers the client READs the word again until the
//! limit exceeds the number. The server raises the word only after the state file is durable. So every used number is
//! below the first number of a restarted server. Counter and limit live in the same process: a session that ends with
//! the process discards its outstanding numbers unused.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::Thread;

use verbs::{Access, MemoryRegion, ProtectionDomain, RemoteMemory, VerbError};

/// The first number that cannot be given; in an answer this value means that the numbers are used up.
pub const END_OF_NUMBERS: u64 = u64::MAX;
/// Largest number of clients at the same time.
pub const MAX_CLIENTS: usize = 16_384;
/// Largest window of a client.
pub const MAX_WINDOW: usize = 4096;
/// The first number that the design `atomics` cannot give.
pub const ATOMICS_END_OF_NUMBERS: u64 = END_OF_NUMBERS - (MAX_CLIENTS * MAX_WINDOW) as u64;

/// The answer's value if the numbers are used up.
pub(crate) const USED_UP_ANSWER: u64 = u64::MAX;

/// The counter and its limit, each in its own memory region: clients may add to the counter, but only read the limit.
#[derive(Debug)]
pub struct Counter {
    next_number_mr: MemoryRegion,
    limit_mr: MemoryRegion,
    first_number: u64,
    end_of_numbers: u64,
    wake_reserver_below_remaining: u64,
    stopped_waiting_for_limit: AtomicBool,
    /// The thread that raises the limit.
    reserver_thread: OnceLock<Thread>,
}

/// The reason why no number can be given now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NumberRefusal {
    /// The numbers are used up.
    NumbersUsedUp,
    /// The server is stopping.
    ServerStopping,
    /// The limit has been reached, and will be raised.
    LimitReached,
}

impl Counter {
    /// Creates a counter whose first number is `start`. Numbers below `limit` may be given now, and numbers below `end`
    /// ever. When fewer than `wake_reserver_below_remaining` numbers remain below the limit,
    /// [`take_numbers`](Self::take_numbers) wakes the reserver.
    pub fn new(
        pd: &ProtectionDomain,
        start: u64,
        limit: u64,
        end: u64,
        wake_reserver_below_remaining: u64,
    ) -> Result<Self, VerbError> {
        let next = pd.alloc(
            64,
            Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC,
        )?;
        let limit_mr = pd.alloc(64, Access::LOCAL_WRITE | Access::REMOTE_READ)?;
        let counter = Self {
            next_number_mr: next,
            limit_mr,
            first_number: start,
            end_of_numbers: end,
            wake_reserver_below_remaining,
            stopped_waiting_for_limit: AtomicBool::new(false),
            reserver_thread: OnceLock::new(),
        };
        counter
            .atomic_word(&counter.next_number_mr)
            .store(start, Ordering::Relaxed);
        counter
            .atomic_word(&counter.limit_mr)
            .store(limit.min(end), Ordering::Release);
        Ok(counter)
    }

    /// Takes up to `count` numbers with one atomic operation. Returns the first number and how many were taken.
    #[inline]
    pub fn take_numbers(&self, count: u64) -> Result<(u64, u64), NumberRefusal> {
        let (next, limit) = (
            self.atomic_word(&self.next_number_mr),
            self.atomic_word(&self.limit_mr),
        );
        verbs::time::charge_shared_add(next);
        let mut first = next.load(Ordering::Relaxed);
        loop {
            // Pairs with `raise`: a thread that sees a limit sees it after the state file became durable.
            let limit = limit.load(Ordering::Acquire);
            let Some(room) = limit.checked_sub(first).filter(|&r| r > 0) else {
                return Err(self.refusal_reason(limit));
            };
            let n = count.min(room);
            // A plain add could exceed the limit, or wrap.
            match next.compare_exchange_weak(first, first + n, Ordering::Relaxed, Ordering::Relaxed)
            {
                Ok(_) => {
                    if room - n < self.wake_reserver_below_remaining && limit < self.end_of_numbers
                    {
                        self.wake_reserver();
                    }
                    return Ok((first, n));
                }
                Err(now) => first = now,
            }
        }
    }

    #[cold]
    fn refusal_reason(&self, limit: u64) -> NumberRefusal {
        if limit >= self.end_of_numbers {
            return NumberRefusal::NumbersUsedUp;
        }
        if self.stopped_waiting_for_limit.load(Ordering::Relaxed) {
            return NumberRefusal::ServerStopping;
        }
        self.wake_reserver();
        NumberRefusal::LimitReached
    }

    #[cold]
    pub(crate) fn wake_reserver(&self) {
        if let Some(thread) = self.reserver_thread.get() {
            thread.unpark();
        }
    }

    /// Makes the calling thread the reserver: it is unparked whenever the limit must be raised.
    pub(crate) fn set_reserver_thread(&self) {
        // Only the first call has an effect.
        let _ = self.reserver_thread.set(std::thread::current());
    }

    /// Raises the limit. The state file must already cover the new limit.
    pub(crate) fn raise_limit(&self, limit: u64) {
        // Pairs with `take`, and with the READs of clients.
        self.atomic_word(&self.limit_mr)
            .fetch_max(limit.min(self.end_of_numbers), Ordering::Release);
    }

    /// Stops waiting for a higher limit.
    pub(crate) fn stop_waiting_for_limit(&self) {
        self.stopped_waiting_for_limit
            .store(true, Ordering::Relaxed);
        self.wake_reserver();
    }

    /// Returns the first number.
    pub fn first_number(&self) -> u64 {
        self.first_number
    }

    /// Returns the next number.
    pub fn next_number(&self) -> u64 {
        self.atomic_word(&self.next_number_mr)
            .load(Ordering::Relaxed)
    }

    /// Returns the limit: numbers below it may be given now.
    pub fn number_limit(&self) -> u64 {
        self.atomic_word(&self.limit_mr).load(Ordering::Acquire)
    }

    /// Returns the end: numbers below it may be given ever.
    pub fn end_of_numbers(&self) -> u64 {
        self.end_of_numbers
    }

    /// Returns the counter's memory, to which clients add.
    pub fn remote_memory_of_next_number(&self) -> RemoteMemory {
        RemoteMemory {
            len: 8,
            ..self.next_number_mr.remote()
        }
    }

    /// Returns the limit's memory, which clients READ.
    pub fn remote_memory_of_limit(&self) -> RemoteMemory {
        RemoteMemory {
            len: 8,
            ..self.limit_mr.remote()
        }
    }

    #[inline]
    fn atomic_word<'m>(&self, mr: &'m MemoryRegion) -> &'m AtomicU64 {
        mr.atomic_u64(0)
            .expect("a region of 64 bytes, page-aligned")
    }
}
