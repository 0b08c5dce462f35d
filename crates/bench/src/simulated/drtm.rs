//! The paper's emulation of DrTM-KV (section 4.3.2, Figure 10) on a simulated cluster. A GET is one
//! READ. A PUT is two atomics, which lock and unlock a record. A complete store does more work for
//! a PUT, see [`kv`](super::kv).

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use kv::load::Random;
use nicmodel::Profile;
use serde::Serialize;
use verbs::{Access, MemoryRegion, MrSlice, Postlist, QueuePair, RemoteMemory, Waiter, WcBuffer};

use super::SimulatedCluster;

/// Bytes that a GET READs, which is one value.
const VALUE_BYTES: usize = 32;
/// Distance of two values, in bytes.
const RECORD_STRIDE_BYTES: usize = 64;
/// Number of records. The paper has 16 M; these are enough that two clients rarely want the same
/// record.
const RECORD_COUNT: usize = 1 << 18;
/// Bytes of a lock. Locks are adjacent in an array, so that their addresses differ in the bits by
/// which NICs choose their internal locks.
const LOCK_BYTES: usize = 8;

/// Parameters of the experiment.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DrtmParameters {
    /// Share of PUTs.
    #[serde(rename = "puts")]
    pub put_share: f64,
    /// Number of clients.
    pub clients: usize,
    /// Number of client machines.
    #[serde(rename = "machines")]
    pub client_machines: usize,
    /// Maximum outstanding operations of a client.
    pub window: usize,
    /// Seed of random numbers.
    pub seed: u64,
    /// Virtual time that is measured. A warm-up of a fifth of it precedes it.
    #[serde(rename = "time")]
    pub measured_time: Duration,
}

impl DrtmParameters {
    /// Setup with as many clients as the peak needs. The measured time grows with the share of
    /// PUTs, to contain enough of them.
    #[must_use]
    pub fn paper_setup(puts: f64) -> Self {
        Self {
            put_share: puts,
            clients: 128,
            client_machines: 8,
            window: 8,
            seed: 1,
            measured_time: Duration::from_micros(500) + Duration::from_millis(4).mul_f64(puts),
        }
    }
}

/// Result of the experiment.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct DrtmResult {
    /// GETs and PUTs in the measured time, in 10^6 per second.
    pub rate_mops: f64,
    /// Lock attempts of the whole run that found the lock taken and were retried.
    #[serde(rename = "refused")]
    pub refused_lock_attempts: u64,
    /// Number of PUTs of the whole run.
    #[serde(rename = "puts")]
    pub put_count: u64,
}

/// Next step of an outstanding operation.
#[derive(Clone, Copy, Debug)]
enum NextStep {
    Get,
    Lock(usize),
    Unlock(usize),
}

/// A client.
struct Client {
    qp: QueuePair<verbs::Rc>,
    postlist: Postlist<verbs::Rc>,
    /// Buffers for the answers, one for each operation.
    answer_memory: MemoryRegion,
    value_and_lock_word_slices: Vec<(MrSlice, MrSlice)>,
    remote_values: RemoteMemory,
    remote_locks: RemoteMemory,
    next_step_by_operation: Vec<NextStep>,
    random: Random,
    put_share: f64,
    /// Value that the client writes into locks that it takes.
    lock_value: u64,
    shared_counters: Rc<AllClientsCounters>,
}

/// Counters of all clients.
#[derive(Debug, Default)]
struct AllClientsCounters {
    finished_operations: Cell<u64>,
    refused_locks: Cell<u64>,
    finished_puts: Cell<u64>,
    is_over: Cell<bool>,
}

fn increment(count: &Cell<u64>) {
    count.set(count.get() + 1);
}

impl Client {
    fn run(mut self) -> Result<()> {
        let mut buffer = WcBuffer::<16>::new();
        let mut waiter = Waiter::new();
        for place in 0..self.next_step_by_operation.len() {
            self.next_step_by_operation[place] = self.choose_operation();
            self.add_next_step_wr(place)?;
        }
        let mut outstanding = self.next_step_by_operation.len();
        while outstanding > 0 {
            if !self.postlist.is_empty() {
                self.qp.post_send(&mut self.postlist)?;
                self.postlist.clear();
            }
            let mut came = Vec::new();
            for completion in self.qp.send_cq().poll(&mut buffer)? {
                match completion {
                    Ok(completion) => came.push(usize::try_from(completion.wr_id())?),
                    Err(failed) => bail!("{failed}"),
                }
            }
            if came.is_empty() {
                waiter.idle();
            }
            for place in came {
                if self.advance_unless_over(place)? {
                    self.add_next_step_wr(place)?;
                } else {
                    outstanding -= 1;
                }
            }
        }
        Ok(())
    }

    /// Determines the step after an operation's answer. Returns false if the run is over.
    fn advance_unless_over(&mut self, place: usize) -> Result<bool> {
        let old = self.answer_memory.read_u64(place * RECORD_STRIDE_BYTES)?;
        match self.next_step_by_operation[place] {
            NextStep::Lock(record) if old == 0 => {
                self.next_step_by_operation[place] = NextStep::Unlock(record);
                return Ok(true);
            }
            NextStep::Lock(_) => {
                increment(&self.shared_counters.refused_locks);
                return Ok(true);
            }
            NextStep::Unlock(record) => {
                if old != self.lock_value {
                    bail!(
                        "record {record} was unlocked by {old} and not by {}",
                        self.lock_value
                    );
                }
                increment(&self.shared_counters.finished_puts);
            }
            NextStep::Get => {}
        }
        increment(&self.shared_counters.finished_operations);
        self.next_step_by_operation[place] = self.choose_operation();
        Ok(!self.shared_counters.is_over.get())
    }

    fn choose_operation(&mut self) -> NextStep {
        let record = usize::try_from(self.random.next_below(RECORD_COUNT as u64)).unwrap_or(0);
        if self.random.next_unit_f64() < self.put_share {
            NextStep::Lock(record)
        } else {
            NextStep::Get
        }
    }

    fn add_next_step_wr(&mut self, place: usize) -> Result<()> {
        let (value, word) = self.value_and_lock_word_slices[place];
        let lock = |record: usize| {
            let lock = self.remote_locks.starting_at((record * LOCK_BYTES) as u64);
            lock.context("a lock is outside of its memory")
        };
        let wr = match self.next_step_by_operation[place] {
            NextStep::Get => {
                let at = self.random.next_below(RECORD_COUNT as u64) * RECORD_STRIDE_BYTES as u64;
                let from = self
                    .remote_values
                    .starting_at(at)
                    .context("a value is outside of its memory")?;
                self.postlist.rdma_read(value, from)
            }
            NextStep::Lock(record) => {
                self.postlist
                    .atomic_cmp_and_swp(word, lock(record)?, 0, self.lock_value)
            }
            NextStep::Unlock(record) => {
                self.postlist
                    .atomic_cmp_and_swp(word, lock(record)?, self.lock_value, 0)
            }
        };
        wr.signaled().wr_id(place as u64);
        Ok(())
    }
}

/// Runs the experiment.
///
/// # Errors
/// When the profile lacks what a simulation needs, or a verb fails.
pub fn run(profile: &Profile, setup: &DrtmParameters) -> Result<DrtmResult> {
    let cluster = SimulatedCluster::new(profile, 1 + setup.client_machines, setup.seed)?;
    let server = &cluster.host_contexts[0];
    let pd = server.alloc_pd()?;
    let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    let values = pd.alloc(RECORD_COUNT * RECORD_STRIDE_BYTES, access)?;
    let locks = pd.alloc(RECORD_COUNT * LOCK_BYTES, access)?;
    let cq = server.create_cq(1)?;
    let counts = Rc::new(AllClientsCounters::default());
    let failure: Rc<RefCell<Option<anyhow::Error>>> = Rc::default();
    let mut peers = Vec::new();
    let window = setup.window.max(1);
    for i in 0..setup.clients {
        let machine = 1 + i % setup.client_machines;
        let context = &cluster.host_contexts[machine];
        let own_pd = context.alloc_pd()?;
        let memory = own_pd.alloc(window * RECORD_STRIDE_BYTES, Access::LOCAL_WRITE)?;
        let depth = u32::try_from(window + 1)?;
        let own_cq = context.create_cq(depth)?;
        let qp = own_pd.qp_builder::<verbs::Rc>(&own_cq, &own_cq);
        let qp = qp.max_send_wr(depth).max_recv_wr(1).build()?;
        let peer = pd.qp_builder::<verbs::Rc>(&cq, &cq);
        let peer = peer.max_recv_wr(1).access(access).build()?;
        let (to, from) = (peer.endpoint(), qp.endpoint());
        let qp = qp.connect(&to)?;
        peers.push(peer.connect(&from)?);
        let places = (0..window).map(|place| {
            let at = place * RECORD_STRIDE_BYTES;
            let value = memory.slice(at..at + VALUE_BYTES)?;
            Ok((value, memory.slice(at..at + 8)?))
        });
        let client = Client {
            postlist: qp.postlist(window),
            qp,
            value_and_lock_word_slices: places.collect::<Result<_>>()?,
            answer_memory: memory,
            remote_values: values.remote(),
            remote_locks: locks.remote(),
            next_step_by_operation: vec![NextStep::Get; window],
            random: Random::new(setup.seed.wrapping_mul(1 << 20) + i as u64),
            put_share: setup.put_share,
            lock_value: i as u64 + 1,
            shared_counters: Rc::clone(&counts),
        };
        let failure = Rc::clone(&failure);
        cluster.spawn(machine, format!("client {i}"), move || {
            if let Err(error) = client.run() {
                failure.replace(Some(error));
            }
        });
    }
    cluster.advance_time(setup.measured_time / 5);
    let before = counts.finished_operations.get();
    cluster.advance_time(setup.measured_time);
    let after = counts.finished_operations.get();
    counts.is_over.set(true);
    cluster.run_until_threads_end()?;
    if let Some(error) = failure.take() {
        return Err(error);
    }
    #[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
    let rate_mops = (after - before) as f64 / setup.measured_time.as_secs_f64() * 1e-6;
    Ok(DrtmResult {
        rate_mops,
        refused_lock_attempts: counts.refused_locks.get(),
        put_count: counts.finished_puts.get(),
    })
}

#[cfg(test)]
mod tests {
    use nicmodel::profile::builtin_profile;

    use super::*;

    fn rate(nic: &str, puts: f64) -> DrtmResult {
        let setup = DrtmParameters {
            clients: 64,
            ..DrtmParameters::paper_setup(puts)
        };
        run(builtin_profile(nic).expect("built in"), &setup).expect("it runs")
    }

    /// On a ConnectX-3, a PUT costs as much as two atomics (section 4.3.2); on both NICs the known
    /// rates are the limit.
    #[test]
    fn puts_cost_what_two_atomics_do() {
        let cx3 = rate("cx3", 1.0);
        let atomics =
            nicmodel::published::published_number_by_id("atomics_cx3").expect("published");
        assert!(
            (2.0 * cx3.rate_mops / atomics.value - 1.0).abs() < 0.03,
            "{cx3:?}"
        );
        assert!(
            cx3.put_count > 1000 && cx3.refused_lock_attempts * 10 < cx3.put_count,
            "{cx3:?}"
        );
        let (gets, some) = (rate("cib", 0.0), rate("cib", 0.1));
        assert!(
            gets.put_count == 0 && some.put_count > 1000,
            "{gets:?} {some:?}"
        );
        assert!(some.rate_mops < 0.8 * gets.rate_mops, "{gets:?} {some:?}");
        assert_eq!(rate("cib", 0.1), some);
    }
}
