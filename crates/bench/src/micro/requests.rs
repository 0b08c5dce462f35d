//! One-sided WRs: RDMA WRITEs, READs and fetch-and-adds.

use anyhow::{Context, Result, bail};
use verbs::{Access, Connected, MemoryRegion, MrSlice, Postlist, QueuePair, Rc, RemoteMemory};

use super::parameters::VerbStream;
use super::payload_form::{PayloadForm, WindowLayout, read_end_stamps};
use super::verb::last_word_offset;
use super::wr_window::{SlotRun, WindowWrSource};
use crate::open_nic::OpenNic;

/// Returns the slots of all queue pairs in `remote`.
fn remote_slots(stream: &VerbStream, remote: RemoteMemory) -> Result<Vec<RemoteMemory>> {
    (0..stream.slots_per_thread())
        .map(|place| {
            let at = (place * stream.slot_stride_bytes()) as u64;
            remote
                .starting_at(at)
                .context("the worker offers too little memory")
        })
        .collect()
}

/// Returns the slots of all queue pairs in `local`.
fn local_slots(stream: &VerbStream, local: &MemoryRegion) -> Result<Vec<MrSlice>> {
    let places = (0..stream.slots_per_thread()).map(|place| {
        let at = place * stream.slot_stride_bytes();
        local.slice(at..at + stream.payload_bytes)
    });
    Ok(places.collect::<Result<_, _>>()?)
}

/// RDMA WRITEs; number `n` carries the stamp `n + 1`.
pub(super) struct StampedWrites<F: PayloadForm> {
    form: F,
    remote_slots: Vec<RemoteMemory>,
}

impl<F: PayloadForm> StampedWrites<F> {
    pub(super) fn new(
        nic: &OpenNic,
        stream: &VerbStream,
        remote: RemoteMemory,
    ) -> Result<StampedWrites<F>> {
        let layout = WindowLayout {
            payload_bytes: stream.payload_bytes,
            slot_count: stream.slots_per_thread(),
            page_size: stream.page_size,
        };
        Ok(StampedWrites {
            form: F::new(nic, &layout)?,
            remote_slots: remote_slots(stream, remote)?,
        })
    }
}

impl<T: Connected, F: PayloadForm> WindowWrSource<T> for StampedWrites<F> {
    #[inline]
    fn add_wrs_to_postlist(&mut self, list: &mut Postlist<T>, run: &SlotRun) -> Result<()> {
        let to = &self.remote_slots[run.window_slots.clone()];
        for ((place, to), number) in run.window_slots.clone().zip(to).zip(run.first_wr_number..) {
            list.rdma_write(self.form.stamped_payload(place, number + 1)?, *to);
        }
        Ok(())
    }
}

/// RDMA READs; each slot of the target holds its own number, counted from 1.
pub(super) struct NumberedReads {
    result_memory: MemoryRegion,
    local_slots: Vec<MrSlice>,
    remote_slots: Vec<RemoteMemory>,
    slot_stride_bytes: usize,
    payload_bytes: usize,
}

impl NumberedReads {
    pub(super) fn new(
        nic: &OpenNic,
        stream: &VerbStream,
        remote: RemoteMemory,
    ) -> Result<NumberedReads> {
        let results = nic.alloc_registered_memory(
            stream.slot_bytes_per_thread(),
            Access::LOCAL_WRITE,
            stream.page_size,
        )?;
        Ok(NumberedReads {
            local_slots: local_slots(stream, &results)?,
            remote_slots: remote_slots(stream, remote)?,
            result_memory: results,
            slot_stride_bytes: stream.slot_stride_bytes(),
            payload_bytes: stream.payload_bytes,
        })
    }
}

impl WindowWrSource<Rc> for NumberedReads {
    #[inline]
    fn add_wrs_to_postlist(&mut self, list: &mut Postlist<Rc>, run: &SlotRun) -> Result<()> {
        for place in run.window_slots.clone() {
            // Clear the results, so that data of an earlier READ are not taken for this one's.
            let at = place * self.slot_stride_bytes;
            self.result_memory.write_u64(at, 0)?;
            self.result_memory
                .write_u64(at + last_word_offset(self.payload_bytes), 0)?;
            list.rdma_read(self.local_slots[place], self.remote_slots[place]);
        }
        Ok(())
    }

    fn check_results(&mut self, run: &SlotRun) -> Result<()> {
        for (place, number) in run.window_slots.clone().zip(run.first_wr_number..) {
            let got = read_end_stamps(
                &self.result_memory,
                place * self.slot_stride_bytes,
                self.payload_bytes,
            )?;
            let want = place as u64 + 1;
            if got != [want; 2] {
                bail!("READ {number} brought {got:?} instead of {want}");
            }
        }
        Ok(())
    }
}

/// Fetch-and-adds of 1 on one counter.
pub(super) struct SingleCounterAdds {
    result_memory: MemoryRegion,
    result_slots: Vec<MrSlice>,
    counter: RemoteMemory,
    /// For each queue pair, the value that the next add must return. With other adders it is a
    /// lower bound.
    next_value_by_qp: Vec<u64>,
    /// True if no other queue pair adds to the counter.
    requires_exact_fetched_value: bool,
}

impl SingleCounterAdds {
    pub(super) fn new(
        nic: &OpenNic,
        stream: &VerbStream,
        counter: RemoteMemory,
    ) -> Result<SingleCounterAdds> {
        let results = nic.alloc_registered_memory(
            stream.slot_bytes_per_thread(),
            Access::LOCAL_WRITE,
            stream.page_size,
        )?;
        Ok(SingleCounterAdds {
            result_slots: local_slots(stream, &results)?,
            result_memory: results,
            counter,
            next_value_by_qp: vec![0; stream.queue_pairs_per_thread],
            requires_exact_fetched_value: stream.has_own_counters(),
        })
    }
}

impl WindowWrSource<Rc> for SingleCounterAdds {
    const REUSES_WRS: bool = true;

    fn add_wrs_to_postlist(&mut self, list: &mut Postlist<Rc>, run: &SlotRun) -> Result<()> {
        for into in &self.result_slots[run.window_slots.clone()] {
            list.atomic_fetch_and_add(*into, self.counter, 1);
        }
        Ok(())
    }

    fn check_results(&mut self, run: &SlotRun) -> Result<()> {
        let mut next = self.next_value_by_qp[run.qp_index];
        for (place, number) in run.window_slots.clone().zip(run.first_wr_number..) {
            let got = self.result_memory.read_u64(8 * place)?;
            if got != next && (self.requires_exact_fetched_value || got < next) {
                return Err(wrong_fetched_value_error(
                    number,
                    0,
                    got,
                    next,
                    self.requires_exact_fetched_value,
                ));
            }
            next = got + 1;
        }
        self.next_value_by_qp[run.qp_index] = next;
        Ok(())
    }
}

/// Fetch-and-adds of 1 on counters that are chosen at random.
pub(super) struct RandomCounterAdds {
    result_memory: MemoryRegion,
    result_slots: Vec<MrSlice>,
    counters: Vec<RemoteMemory>,
    random: UniformRandom,
    /// Counters of the outstanding adds, by slot.
    counter_index_by_slot: Vec<usize>,
    /// For each queue pair and counter, the value that the next add must return. If others add to the
    /// counter, too, the next add must return at least this value.
    next_value_by_qp_counter: Vec<u64>,
    /// True if no other queue pair adds to the counters.
    requires_exact_fetched_value: bool,
}

impl RandomCounterAdds {
    pub(super) fn new(
        nic: &OpenNic,
        qps: &[QueuePair<Rc>],
        stream: &VerbStream,
        remote: RemoteMemory,
    ) -> Result<RandomCounterAdds> {
        let results = nic.alloc_registered_memory(
            stream.slot_bytes_per_thread(),
            Access::LOCAL_WRITE,
            stream.page_size,
        )?;
        let counter =
            |number: usize| remote.starting_at((number * stream.counter_spacing_bytes) as u64);
        let counters: Option<Vec<_>> = (0..stream.atomic_counters).map(counter).collect();
        Ok(RandomCounterAdds {
            result_slots: local_slots(stream, &results)?,
            result_memory: results,
            counters: counters.context("the worker offers too few counters")?,
            random: UniformRandom::new(u64::from(qps[0].qpn().0), stream.atomic_counters),
            counter_index_by_slot: vec![0; stream.slots_per_thread()],
            next_value_by_qp_counter: vec![0; stream.atomic_counters * qps.len()],
            requires_exact_fetched_value: stream.has_own_counters(),
        })
    }
}

impl WindowWrSource<Rc> for RandomCounterAdds {
    #[inline]
    fn add_wrs_to_postlist(&mut self, list: &mut Postlist<Rc>, run: &SlotRun) -> Result<()> {
        for place in run.window_slots.clone() {
            let counter = self.random.next();
            self.counter_index_by_slot[place] = counter;
            list.atomic_fetch_and_add(self.result_slots[place], self.counters[counter], 1);
        }
        Ok(())
    }

    fn check_results(&mut self, run: &SlotRun) -> Result<()> {
        for (place, number) in run.window_slots.clone().zip(run.first_wr_number..) {
            let got = self.result_memory.read_u64(8 * place)?;
            let counter = self.counter_index_by_slot[place];
            let next =
                &mut self.next_value_by_qp_counter[run.qp_index * self.counters.len() + counter];
            if got != *next && (self.requires_exact_fetched_value || got < *next) {
                return Err(wrong_fetched_value_error(
                    number,
                    counter,
                    got,
                    *next,
                    self.requires_exact_fetched_value,
                ));
            }
            *next = got + 1;
        }
        Ok(())
    }
}

#[cold]
fn wrong_fetched_value_error(
    number: u64,
    counter: usize,
    got: u64,
    next: u64,
    exact: bool,
) -> anyhow::Error {
    anyhow::anyhow!(
        "fetch-and-add {number} on counter {counter} returned {got} and not {}{next}",
        if exact { "" } else { "at least " }
    )
}

/// Generator of uniform numbers below a limit: a 64-bit xorshift (Marsaglia, Journal of Statistical
/// Software 8(14), 2003).
struct UniformRandom {
    state: u64,
    limit: u64,
}

impl UniformRandom {
    fn new(seed: u64, below: usize) -> UniformRandom {
        UniformRandom {
            // A xorshift's state must not be 0.
            state: (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            limit: below as u64,
        }
    }

    #[inline]
    fn next(&mut self) -> usize {
        if self.limit == 1 {
            return 0;
        }
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        let scaled = (u128::from(self.state) * u128::from(self.limit)) >> 64;
        usize::try_from(scaled).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_chosen_evenly() {
        let mut choice = UniformRandom::new(7, 10);
        let mut times = [0; 10];
        for _ in 0..10_000 {
            times[choice.next()] += 1;
        }
        assert!(
            times.iter().all(|times| (850..1150).contains(times)),
            "{times:?}"
        );
        assert_eq!(UniformRandom::new(0, 1).next(), 0);
    }
}
