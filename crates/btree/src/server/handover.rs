//! What a server knows of ranges that it is giving to others, and of its load.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use service::worker::lock;
use verbs::time;

use crate::tree::{Owner, Refusal, Store};
use crate::wire::{self, Status, Step};

/// How long a taker may take for a range that it had frozen. A range is a few leaves, so this is for one that stopped.
const LEASE: Duration = Duration::from_secs(2);

/// A range that is frozen for a taker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Frozen {
    client: usize,
    tree: usize,
    range: (u64, Option<u64>),
    until_ns: u64,
}

/// A range that a server was asked to take from another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Take {
    /// The number of the server that has it.
    pub(crate) giver: u16,
    /// The tree.
    pub(crate) tree: u8,
    /// The first key.
    pub(crate) from: u64,
    /// The first key that is not taken, if there is an end.
    pub(crate) end: Option<u64>,
}

/// Handovers of a server: shared by its workers.
#[derive(Debug, Default)]
pub(crate) struct Handovers {
    frozen: Mutex<Vec<Frozen>>,
    /// How many there are, to be looked at without the lock.
    count: AtomicUsize,
    /// The greatest version of a handover that this server has given or taken part in.
    version: AtomicU64,
    takes: Mutex<Vec<Take>>,
    /// Ranges that wait to be taken or are being taken.
    taking: AtomicUsize,
    /// Entries that were taken.
    moved: AtomicU64,
}

impl Handovers {
    /// A handover with this version has been made: the next one has a greater one.
    pub(crate) fn saw(&self, version: u64) {
        self.version.fetch_max(version, Ordering::AcqRel);
    }

    /// Carries out a step for a client. The answer's word.
    pub(crate) fn step(
        &self,
        store: &Store,
        (client, tree): (usize, usize),
        step: Step,
        range: (u64, Option<u64>),
    ) -> Result<u64, Refusal> {
        let done = Ok(wire::version_word(Status::Ok, 0));
        let refused = Ok(wire::version_word(Status::Bad, 0));
        let is_it = |f: &Frozen| (f.client, f.tree, f.range) == (client, tree, range);
        match step {
            Step::Freeze => {
                let mut frozen = lock(&self.frozen);
                if frozen
                    .iter()
                    .any(|f| f.tree == tree && overlap(f.range, range))
                {
                    return refused;
                }
                store.freeze(tree, range)?;
                let until_ns = time::now_ns() + u64::try_from(LEASE.as_nanos()).unwrap_or(0);
                frozen.push(Frozen {
                    client,
                    tree,
                    range,
                    until_ns,
                });
                self.count.store(frozen.len(), Ordering::Release);
                done
            }
            Step::Thaw => {
                self.thaw(store, is_it);
                done
            }
            Step::Cede { to } => {
                let mut frozen = lock(&self.frozen);
                // Without the range it was thawed meanwhile, and what the taker has copied is old.
                let Some(at) = frozen.iter().position(is_it) else {
                    return refused;
                };
                let version = self.version.fetch_add(1, Ordering::AcqRel) + 1;
                let owner = Owner { part: to, version };
                store.cede(tree, range, owner)?;
                frozen.swap_remove(at);
                self.count.store(frozen.len(), Ordering::Release);
                Ok(wire::version_word(Status::Ok, version))
            }
            Step::Take { giver } => {
                let (from, end) = range;
                let tree = u8::try_from(tree).unwrap_or(u8::MAX);
                self.taking.fetch_add(1, Ordering::AcqRel);
                lock(&self.takes).push(Take {
                    giver,
                    tree,
                    from,
                    end,
                });
                done
            }
        }
    }

    /// Gives frozen ranges back to this server's clients.
    fn thaw(&self, store: &Store, which: impl Fn(&Frozen) -> bool) {
        let mut frozen = lock(&self.frozen);
        frozen.retain(|f| {
            // A client may have a lock just now: the next look thaws it.
            !which(f) || store.thaw(f.tree, f.range).is_err()
        });
        self.count.store(frozen.len(), Ordering::Release);
    }

    /// The client of this index is gone: what was frozen for it stays here.
    pub(crate) fn client_is_gone(&self, store: &Store, client: usize) {
        self.thaw(store, |f| f.client == client);
    }

    /// A change found its leaf frozen: thaws what was frozen for too long.
    pub(crate) fn expire(&self, store: &Store) {
        if self.count.load(Ordering::Acquire) > 0 {
            let now = time::now_ns();
            self.thaw(store, |f| f.until_ns < now);
        }
    }

    /// The next range that this server was asked to take.
    pub(crate) fn next_take(&self) -> Option<Take> {
        let mut takes = lock(&self.takes);
        (!takes.is_empty()).then(|| takes.remove(0))
    }

    /// A range was taken, or given up.
    pub(crate) fn took(&self) {
        self.taking.fetch_sub(1, Ordering::AcqRel);
    }

    /// So many entries were taken.
    pub(crate) fn moved(&self, entries: u64) {
        self.moved.fetch_add(entries, Ordering::Relaxed);
    }

    /// Entries that were taken so far.
    pub(crate) fn all_moved(&self) -> u64 {
        self.moved.load(Ordering::Relaxed)
    }

    /// Ranges that wait to be taken or are being taken.
    pub(crate) fn taking(&self) -> usize {
        self.taking.load(Ordering::Acquire)
    }
}

fn overlap(a: (u64, Option<u64>), b: (u64, Option<u64>)) -> bool {
    let below = |key: u64, end: Option<u64>| end.is_none_or(|end| key < end);
    below(a.0, b.1) && below(b.0, a.1)
}

/// Keys of a sample that a worker keeps.
const SAMPLE: usize = 160;
/// Of so many requests the key of one is kept.
const EVERY: u32 = 61;

/// What a worker knows of its load.
#[derive(Debug)]
pub(crate) struct LoadMeter {
    requests: u64,
    busy_ns: u64,
    /// When it began with the requests at hand.
    began_ns: u64,
    skipped: u32,
    sample: Vec<u64>,
    next: usize,
}

impl LoadMeter {
    pub(crate) fn new() -> Self {
        Self {
            requests: 0,
            busy_ns: 0,
            began_ns: 0,
            skipped: 0,
            sample: Vec::with_capacity(SAMPLE),
            next: 0,
        }
    }

    /// A batch is about to be carried out.
    #[inline]
    pub(crate) fn begin(&mut self) {
        self.began_ns = time::now_ns();
    }

    /// A look found so many requests, and they are carried out. What it took to find them does not count: looks in vain
    /// between requests would make a server that is not full seem slower than it is.
    #[inline]
    pub(crate) fn looked(&mut self, requests: usize) {
        if requests > 0 {
            self.requests += requests as u64;
            self.busy_ns += time::now_ns().saturating_sub(self.began_ns);
        }
    }

    /// A request for this key came.
    #[inline]
    pub(crate) fn asked(&mut self, key: u64) {
        self.skipped += 1;
        if self.skipped == EVERY {
            self.skipped = 0;
            if self.sample.len() < SAMPLE {
                self.sample.push(key);
            } else {
                self.sample[self.next % SAMPLE] = key;
            }
            self.next += 1;
        }
    }

    /// What is told of it: two pairs of numbers (requests and nanoseconds busy; the time and ranges that are being taken),
    /// and then two sampled keys in each.
    pub(crate) fn report(&self, taking: usize, into: &mut Vec<(u64, u64)>) {
        into.push((self.requests, self.busy_ns));
        into.push((time::now_ns(), taking as u64));
        into.extend(self.sample.chunks_exact(2).map(|pair| (pair[0], pair[1])));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_overlap_if_they_share_a_key() {
        assert!(overlap((0, None), (5, Some(6))) && overlap((5, Some(6)), (0, None)));
        assert!(!overlap((0, Some(5)), (5, Some(6))) && !overlap((6, None), (5, Some(6))));
    }
}
