//! One-sided WRs: RDMA WRITEs, READs and fetch-and-adds.

use anyhow::{Context, Result, bail};
use verbs::{Access, Connected, MemoryRegion, MrSlice, Postlist, QueuePair, Rc, RemoteMemory};

use super::flow::{Requests, Run};
use super::form::{Form, Layout, both_ends};
use super::parameters::Stream;
use super::verb::tail;
use crate::nic::Nic;

/// Returns the slots of all queue pairs in `remote`.
fn remote_places(stream: &Stream, remote: RemoteMemory) -> Result<Vec<RemoteMemory>> {
    (0..stream.places())
        .map(|place| {
            let at = (place * stream.stride()) as u64;
            remote.at(at).context("the worker offers too little memory")
        })
        .collect()
}

/// Returns the slots of all queue pairs in `local`.
fn local_places(stream: &Stream, local: &MemoryRegion) -> Result<Vec<MrSlice>> {
    let places = (0..stream.places()).map(|place| {
        let at = place * stream.stride();
        local.slice(at..at + stream.payload_bytes)
    });
    Ok(places.collect::<Result<_, _>>()?)
}

/// RDMA WRITEs; number `n` carries the stamp `n + 1`.
pub(super) struct Writes<F: Form> {
    form: F,
    to: Vec<RemoteMemory>,
}

impl<F: Form> Writes<F> {
    pub(super) fn new(nic: &Nic, stream: &Stream, remote: RemoteMemory) -> Result<Writes<F>> {
        let layout = Layout {
            payload_bytes: stream.payload_bytes,
            slots: stream.places(),
            pages: stream.pages,
        };
        Ok(Writes {
            form: F::new(nic, &layout)?,
            to: remote_places(stream, remote)?,
        })
    }
}

impl<T: Connected, F: Form> Requests<T> for Writes<F> {
    #[inline]
    fn add(&mut self, list: &mut Postlist<T>, run: &Run) -> Result<()> {
        let to = &self.to[run.places.clone()];
        for ((place, to), number) in run.places.clone().zip(to).zip(run.number..) {
            list.rdma_write(self.form.payload(place, number + 1)?, *to);
        }
        Ok(())
    }
}

/// RDMA READs; each slot of the target holds its own number, counted from 1.
pub(super) struct Reads {
    results: MemoryRegion,
    into: Vec<MrSlice>,
    from: Vec<RemoteMemory>,
    stride: usize,
    payload_bytes: usize,
}

impl Reads {
    pub(super) fn new(nic: &Nic, stream: &Stream, remote: RemoteMemory) -> Result<Reads> {
        let results = nic.alloc(stream.window_bytes(), Access::LOCAL_WRITE, stream.pages)?;
        Ok(Reads {
            into: local_places(stream, &results)?,
            from: remote_places(stream, remote)?,
            results,
            stride: stream.stride(),
            payload_bytes: stream.payload_bytes,
        })
    }
}

impl Requests<Rc> for Reads {
    #[inline]
    fn add(&mut self, list: &mut Postlist<Rc>, run: &Run) -> Result<()> {
        for place in run.places.clone() {
            // Clear the results, so that data of an earlier READ are not taken for this one's.
            let at = place * self.stride;
            self.results.write_u64(at, 0)?;
            self.results.write_u64(at + tail(self.payload_bytes), 0)?;
            list.rdma_read(self.into[place], self.from[place]);
        }
        Ok(())
    }

    fn check(&mut self, run: &Run) -> Result<()> {
        for (place, number) in run.places.clone().zip(run.number..) {
            let got = both_ends(&self.results, place * self.stride, self.payload_bytes)?;
            let want = place as u64 + 1;
            if got != [want; 2] {
                bail!("READ {number} brought {got:?} instead of {want}");
            }
        }
        Ok(())
    }
}

/// Fetch-and-adds of 1 on one counter.
pub(super) struct AddsToOne {
    results: MemoryRegion,
    into: Vec<MrSlice>,
    counter: RemoteMemory,
    /// For each queue pair, the value that the next add must return. With other adders it is a
    /// lower bound.
    next: Vec<u64>,
    exact: bool,
}

impl AddsToOne {
    pub(super) fn new(nic: &Nic, stream: &Stream, counter: RemoteMemory) -> Result<AddsToOne> {
        let results = nic.alloc(stream.window_bytes(), Access::LOCAL_WRITE, stream.pages)?;
        Ok(AddsToOne {
            into: local_places(stream, &results)?,
            results,
            counter,
            next: vec![0; stream.queue_pairs],
            exact: stream.has_own_counters(),
        })
    }
}

impl Requests<Rc> for AddsToOne {
    const SAME: bool = true;

    fn add(&mut self, list: &mut Postlist<Rc>, run: &Run) -> Result<()> {
        for into in &self.into[run.places.clone()] {
            list.atomic_fetch_and_add(*into, self.counter, 1);
        }
        Ok(())
    }

    fn check(&mut self, run: &Run) -> Result<()> {
        let mut next = self.next[run.queue_pair];
        for (place, number) in run.places.clone().zip(run.number..) {
            let got = self.results.read_u64(8 * place)?;
            if got != next && (self.exact || got < next) {
                return Err(wrong_sum(number, 0, got, next, self.exact));
            }
            next = got + 1;
        }
        self.next[run.queue_pair] = next;
        Ok(())
    }
}

/// Fetch-and-adds of 1 on counters that are chosen at random.
pub(super) struct AddsToMany {
    results: MemoryRegion,
    into: Vec<MrSlice>,
    counters: Vec<RemoteMemory>,
    choice: Choice,
    /// Counters of the outstanding adds, by slot.
    chosen: Vec<usize>,
    /// For each queue pair and counter, the value that the next add must return. With other adders
    /// it is a lower bound.
    next: Vec<u64>,
    exact: bool,
}

impl AddsToMany {
    pub(super) fn new(
        nic: &Nic,
        qps: &[QueuePair<Rc>],
        stream: &Stream,
        remote: RemoteMemory,
    ) -> Result<AddsToMany> {
        let results = nic.alloc(stream.window_bytes(), Access::LOCAL_WRITE, stream.pages)?;
        let counter = |number: usize| remote.at((number * stream.spacing_bytes) as u64);
        let counters: Option<Vec<_>> = (0..stream.addresses).map(counter).collect();
        Ok(AddsToMany {
            into: local_places(stream, &results)?,
            results,
            counters: counters.context("the worker offers too few counters")?,
            choice: Choice::new(u64::from(qps[0].qpn().0), stream.addresses),
            chosen: vec![0; stream.places()],
            next: vec![0; stream.addresses * qps.len()],
            exact: stream.has_own_counters(),
        })
    }
}

impl Requests<Rc> for AddsToMany {
    #[inline]
    fn add(&mut self, list: &mut Postlist<Rc>, run: &Run) -> Result<()> {
        for place in run.places.clone() {
            let counter = self.choice.next();
            self.chosen[place] = counter;
            list.atomic_fetch_and_add(self.into[place], self.counters[counter], 1);
        }
        Ok(())
    }

    fn check(&mut self, run: &Run) -> Result<()> {
        for (place, number) in run.places.clone().zip(run.number..) {
            let got = self.results.read_u64(8 * place)?;
            let counter = self.chosen[place];
            let next = &mut self.next[run.queue_pair * self.counters.len() + counter];
            if got != *next && (self.exact || got < *next) {
                return Err(wrong_sum(number, counter, got, *next, self.exact));
            }
            *next = got + 1;
        }
        Ok(())
    }
}

#[cold]
fn wrong_sum(number: u64, counter: usize, got: u64, next: u64, exact: bool) -> anyhow::Error {
    anyhow::anyhow!(
        "fetch-and-add {number} on counter {counter} returned {got} and not {}{next}",
        if exact { "" } else { "at least " }
    )
}

/// Generator of uniform numbers below a limit: a 64-bit xorshift (Marsaglia, Journal of Statistical
/// Software 8(14), 2003).
struct Choice {
    state: u64,
    below: u64,
}

impl Choice {
    fn new(seed: u64, below: usize) -> Choice {
        Choice {
            // A xorshift's state must not be 0.
            state: (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            below: below as u64,
        }
    }

    #[inline]
    fn next(&mut self) -> usize {
        if self.below == 1 {
            return 0;
        }
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        let scaled = (u128::from(self.state) * u128::from(self.below)) >> 64;
        usize::try_from(scaled).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_chosen_evenly() {
        let mut choice = Choice::new(7, 10);
        let mut times = [0; 10];
        for _ in 0..10_000 {
            times[choice.next()] += 1;
        }
        assert!(
            times.iter().all(|times| (850..1150).contains(times)),
            "{times:?}"
        );
        assert_eq!(Choice::new(0, 1).next(), 0);
    }
}
