//! The counter that all workers (or, with `atomics`, the NIC) share, and the limit up to which it may go.
//!
//! # The end of the numbers
//!
//! A number is never given twice, so the counter must never wrap. `u64::MAX` itself is never given: on the
//! wire it says "used up".
//!
//! - Where CPUs add ([`Counter::take`]), the counter never passes the limit, which is at most [`END`].
//! - With `atomics` clients add, and a fetch-and-add cannot refuse. Numbers from [`ATOMICS_END`] on are not
//!   valid: a client that gets one stops for good, and the server, once the counter has come so far, takes
//!   all queue pairs to ERR and accepts nobody. Until then each of at most [`MAX_CLIENTS`] sessions can
//!   have at most its window, [`MAX_WINDOW`], under way, so the counter ends at most
//!   `MAX_CLIENTS * MAX_WINDOW` past [`ATOMICS_END`]: at `u64::MAX`, not beyond.
//!
//! # The limit with `atomics`
//!
//! The limit says up to which number the state file covers what is given. A client takes its numbers
//! without asking the server's CPU, so it cannot be kept from taking one past the limit; it is kept from
//! *using* it. It uses a number only if it is below a limit that it has READ from the server's limit word
//! over the same queue pair, and otherwise READs the word again until the limit has passed the number. The
//! word is published only after the state file is durable, so every number in use is below what a
//! restarted server starts from. Both words live in the same process: a session that ends with it takes
//! the numbers under way with it, unused.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::Thread;

use verbs::{Access, MemoryRegion, ProtectionDomain, RemoteMemory, VerbError};

/// Numbers below this can be given; `u64::MAX` means "used up" on the wire.
pub const END: u64 = u64::MAX;
/// Clients at the same time, at most.
pub const MAX_CLIENTS: usize = 16_384;
/// The window of a client, at most.
pub const MAX_WINDOW: usize = 4096;
/// Numbers below this can be given by the design `atomics`.
pub const ATOMICS_END: u64 = END - (MAX_CLIENTS * MAX_WINDOW) as u64;

/// What an answer says instead of a number.
pub(crate) const USED_UP: u64 = u64::MAX;

/// The counter and its limit, each in a region of its own: clients may add to one and only read the other.
#[derive(Debug)]
pub struct Counter {
    next: MemoryRegion,
    limit: MemoryRegion,
    start: u64,
    end: u64,
    low_water: u64,
    stopped: AtomicBool,
    /// Whoever raises the limit.
    reserver: OnceLock<Thread>,
}

/// Why there is no number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The numbers are used up.
    UsedUp,
    /// The server stops.
    Stopped,
    /// The limit has been reached; it will be raised.
    NotYet,
}

impl Counter {
    /// A counter that gives `start` first and may go up to `limit` for now and `end` for ever. Below
    /// `low_water` numbers before the limit, whoever takes some wakes the reserver.
    pub fn new(
        pd: &ProtectionDomain,
        start: u64,
        limit: u64,
        end: u64,
        low_water: u64,
    ) -> Result<Self, VerbError> {
        let next = pd.alloc(
            64,
            Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC,
        )?;
        let limit_mr = pd.alloc(64, Access::LOCAL_WRITE | Access::REMOTE_READ)?;
        let counter = Self {
            next,
            limit: limit_mr,
            start,
            end,
            low_water,
            stopped: AtomicBool::new(false),
            reserver: OnceLock::new(),
        };
        counter.word(&counter.next).store(start, Ordering::Relaxed);
        counter
            .word(&counter.limit)
            .store(limit.min(end), Ordering::Release);
        Ok(counter)
    }

    /// Takes up to `count` numbers: the first, and how many. One atomic operation.
    #[inline]
    pub fn take(&self, count: u64) -> Result<(u64, u64), Refusal> {
        let (next, limit) = (self.word(&self.next), self.word(&self.limit));
        verbs::time::add_to_shared(next);
        let mut first = next.load(Ordering::Relaxed);
        loop {
            // Pairs with `raise`: who sees the limit sees it durable.
            let limit = limit.load(Ordering::Acquire);
            let Some(room) = limit.checked_sub(first).filter(|&r| r > 0) else {
                return Err(self.refuse(limit));
            };
            let n = count.min(room);
            // A plain add could pass the limit, or wrap.
            match next.compare_exchange_weak(first, first + n, Ordering::Relaxed, Ordering::Relaxed)
            {
                Ok(_) => {
                    if room - n < self.low_water && limit < self.end {
                        self.wake_reserver();
                    }
                    return Ok((first, n));
                }
                Err(now) => first = now,
            }
        }
    }

    #[cold]
    fn refuse(&self, limit: u64) -> Refusal {
        if limit >= self.end {
            return Refusal::UsedUp;
        }
        if self.stopped.load(Ordering::Relaxed) {
            return Refusal::Stopped;
        }
        self.wake_reserver();
        Refusal::NotYet
    }

    #[cold]
    pub(crate) fn wake_reserver(&self) {
        if let Some(thread) = self.reserver.get() {
            thread.unpark();
        }
    }

    /// The calling thread raises the limit from now on: it is unparked when that is needed.
    pub(crate) fn reserve_from_this_thread(&self) {
        // There is one reserver; a second call changes nothing.
        let _ = self.reserver.set(std::thread::current());
    }

    /// Raises the limit. What it allows must be durable already.
    pub(crate) fn raise(&self, limit: u64) {
        // Pairs with `take`, and with the READs of clients.
        self.word(&self.limit)
            .fetch_max(limit.min(self.end), Ordering::Release);
    }

    /// From now on there is no waiting for a higher limit.
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
        self.wake_reserver();
    }

    /// The first number.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// The next number.
    pub fn next(&self) -> u64 {
        self.word(&self.next).load(Ordering::Relaxed)
    }

    /// Numbers below this may be given now.
    pub fn limit(&self) -> u64 {
        self.word(&self.limit).load(Ordering::Acquire)
    }

    /// Numbers below this may be given ever.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// Where clients add.
    pub fn remote_next(&self) -> RemoteMemory {
        RemoteMemory {
            len: 8,
            ..self.next.remote()
        }
    }

    /// Where clients READ the limit.
    pub fn remote_limit(&self) -> RemoteMemory {
        RemoteMemory {
            len: 8,
            ..self.limit.remote()
        }
    }

    #[inline]
    fn word<'m>(&self, mr: &'m MemoryRegion) -> &'m AtomicU64 {
        mr.atomic_u64(0)
            .expect("a region of 64 bytes, page-aligned")
    }
}
