//! The emulation of DrTM-KV that Figure 10 of the paper shows (section 4.3.2), on a simulated cluster: a GET is one READ,
//! a PUT two atomics, which lock a record and unlock it, and nothing else. A store that works does more for a PUT:
//! [`kv`](super::kv) has one.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use kv::load::Random;
use nicmodel::Profile;
use serde::Serialize;
use verbs::{Access, MemoryRegion, MrSlice, Postlist, QueuePair, RemoteMemory, Waiter, WcBuffer};

use super::Bed;

/// Bytes that a GET READs: a value.
const VALUE_BYTES: usize = 32;
/// Bytes from one value to the next, behind whose beginnings they lie.
const RECORD_BYTES: usize = 64;
/// Records. The paper has 16 M of them; these are as many as it takes that hardly any two clients want the same one.
const RECORDS: usize = 1 << 18;
/// A lock: side by side in an array, so that their addresses differ in the bits by which NICs choose a lock of their own.
const LOCK_BYTES: usize = 8;

/// What runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Setup {
    /// The share of PUTs.
    pub puts: f64,
    /// Clients, and machines that they run on.
    pub clients: usize,
    /// See there.
    pub machines: usize,
    /// Operations that a client has outstanding.
    pub window: usize,
    /// What random numbers start from.
    pub seed: u64,
    /// Virtual time that is measured, after a fifth of it for warming up.
    pub time: Duration,
}

impl Setup {
    /// As many clients as the peak needs; the more PUTs, the longer it takes to see many.
    #[must_use]
    pub fn paper(puts: f64) -> Self {
        Self {
            puts,
            clients: 128,
            machines: 8,
            window: 8,
            seed: 1,
            time: Duration::from_micros(500) + Duration::from_millis(4).mul_f64(puts),
        }
    }
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// GETs and PUTs in the measured time, in 10^6 a second.
    pub rate_mops: f64,
    /// Locks that a client found taken, and asked for again, of the whole run.
    pub refused: u64,
    /// PUTs of the whole run.
    pub puts: u64,
}

/// What an outstanding operation does next.
#[derive(Clone, Copy, Debug)]
enum Step {
    Get,
    Lock(usize),
    Unlock(usize),
}

/// A client's side.
struct Client {
    qp: QueuePair<verbs::Rc>,
    list: Postlist<verbs::Rc>,
    /// A place for each operation's answer.
    memory: MemoryRegion,
    into: Vec<(MrSlice, MrSlice)>,
    values: RemoteMemory,
    locks: RemoteMemory,
    steps: Vec<Step>,
    dice: Random,
    puts: f64,
    /// What it writes into locks.
    name: u64,
    counts: Rc<Counts>,
}

/// What all clients did.
#[derive(Debug, Default)]
struct Counts {
    done: Cell<u64>,
    refused: Cell<u64>,
    puts: Cell<u64>,
    over: Cell<bool>,
}

fn one_more(count: &Cell<u64>) {
    count.set(count.get() + 1);
}

impl Client {
    fn run(mut self) -> Result<()> {
        let mut buffer = WcBuffer::<16>::new();
        let mut waiter = Waiter::new();
        for place in 0..self.steps.len() {
            self.steps[place] = self.choose();
            self.add(place)?;
        }
        let mut outstanding = self.steps.len();
        while outstanding > 0 {
            if !self.list.is_empty() {
                self.qp.post_send(&mut self.list)?;
                self.list.clear();
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
                if self.goes_on(place)? {
                    self.add(place)?;
                } else {
                    outstanding -= 1;
                }
            }
        }
        Ok(())
    }

    /// What comes behind an operation's answer; false if nothing does any more.
    fn goes_on(&mut self, place: usize) -> Result<bool> {
        let old = self.memory.read_u64(place * RECORD_BYTES)?;
        match self.steps[place] {
            Step::Lock(record) if old == 0 => {
                self.steps[place] = Step::Unlock(record);
                return Ok(true);
            }
            Step::Lock(_) => {
                one_more(&self.counts.refused);
                return Ok(true);
            }
            Step::Unlock(record) => {
                if old != self.name {
                    bail!(
                        "record {record} was unlocked by {old} and not by {}",
                        self.name
                    );
                }
                one_more(&self.counts.puts);
            }
            Step::Get => {}
        }
        one_more(&self.counts.done);
        self.steps[place] = self.choose();
        Ok(!self.counts.over.get())
    }

    fn choose(&mut self) -> Step {
        let record = usize::try_from(self.dice.below(RECORDS as u64)).unwrap_or(0);
        if self.dice.unit() < self.puts {
            Step::Lock(record)
        } else {
            Step::Get
        }
    }

    fn add(&mut self, place: usize) -> Result<()> {
        let (value, word) = self.into[place];
        let lock = |record: usize| {
            let lock = self.locks.at((record * LOCK_BYTES) as u64);
            lock.context("a lock is outside of its memory")
        };
        let wr = match self.steps[place] {
            Step::Get => {
                let at = self.dice.below(RECORDS as u64) * RECORD_BYTES as u64;
                let from = self
                    .values
                    .at(at)
                    .context("a value is outside of its memory")?;
                self.list.rdma_read(value, from)
            }
            Step::Lock(record) => self
                .list
                .atomic_cmp_and_swp(word, lock(record)?, 0, self.name),
            Step::Unlock(record) => self
                .list
                .atomic_cmp_and_swp(word, lock(record)?, self.name, 0),
        };
        wr.signaled().wr_id(place as u64);
        Ok(())
    }
}

/// Runs it.
///
/// # Errors
/// When the profile lacks what a simulation needs, or a verb fails.
pub fn run(profile: &Profile, setup: &Setup) -> Result<Outcome> {
    let bed = Bed::new(profile, 1 + setup.machines, setup.seed)?;
    let server = &bed.contexts[0];
    let pd = server.alloc_pd()?;
    let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    let values = pd.alloc(RECORDS * RECORD_BYTES, access)?;
    let locks = pd.alloc(RECORDS * LOCK_BYTES, access)?;
    let cq = server.create_cq(1)?;
    let counts = Rc::new(Counts::default());
    let failure: Rc<RefCell<Option<anyhow::Error>>> = Rc::default();
    let mut peers = Vec::new();
    let window = setup.window.max(1);
    for i in 0..setup.clients {
        let machine = 1 + i % setup.machines;
        let context = &bed.contexts[machine];
        let own_pd = context.alloc_pd()?;
        let memory = own_pd.alloc(window * RECORD_BYTES, Access::LOCAL_WRITE)?;
        let depth = u32::try_from(window + 1)?;
        let own_cq = context.create_cq(depth)?;
        let qp = own_pd.qp::<verbs::Rc>(&own_cq, &own_cq);
        let qp = qp.max_send_wr(depth).max_recv_wr(1).build()?;
        let peer = pd.qp::<verbs::Rc>(&cq, &cq);
        let peer = peer.max_recv_wr(1).access(access).build()?;
        let (to, from) = (peer.endpoint(), qp.endpoint());
        let qp = qp.connect(&to)?;
        peers.push(peer.connect(&from)?);
        let places = (0..window).map(|place| {
            let at = place * RECORD_BYTES;
            let value = memory.slice(at..at + VALUE_BYTES)?;
            Ok((value, memory.slice(at..at + 8)?))
        });
        let client = Client {
            list: qp.postlist(window),
            qp,
            into: places.collect::<Result<_>>()?,
            memory,
            values: values.remote(),
            locks: locks.remote(),
            steps: vec![Step::Get; window],
            dice: Random::new(setup.seed.wrapping_mul(1 << 20) + i as u64),
            puts: setup.puts,
            name: i as u64 + 1,
            counts: Rc::clone(&counts),
        };
        let failure = Rc::clone(&failure);
        bed.spawn(machine, format!("client {i}"), move || {
            if let Err(error) = client.run() {
                failure.replace(Some(error));
            }
        });
    }
    bed.pass(setup.time / 5);
    let before = counts.done.get();
    bed.pass(setup.time);
    let after = counts.done.get();
    counts.over.set(true);
    bed.finish()?;
    if let Some(error) = failure.take() {
        return Err(error);
    }
    #[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
    let rate_mops = (after - before) as f64 / setup.time.as_secs_f64() * 1e-6;
    Ok(Outcome {
        rate_mops,
        refused: counts.refused.get(),
        puts: counts.puts.get(),
    })
}

#[cfg(test)]
mod tests {
    use nicmodel::profile::builtin;

    use super::*;

    fn rate(nic: &str, puts: f64) -> Outcome {
        let setup = Setup {
            clients: 64,
            ..Setup::paper(puts)
        };
        run(builtin(nic).expect("built in"), &setup).expect("it runs")
    }

    /// On a ConnectX-3 atomics hold up READs, and two of them are a PUT (section 4.3.2); what is known of both NICs binds.
    #[test]
    fn puts_cost_what_two_atomics_do() {
        let cx3 = rate("cx3", 1.0);
        let atomics = nicmodel::published::get("atomics_cx3").expect("published");
        assert!(
            (2.0 * cx3.rate_mops / atomics.value - 1.0).abs() < 0.03,
            "{cx3:?}"
        );
        assert!(cx3.puts > 1000 && cx3.refused * 10 < cx3.puts, "{cx3:?}");
        let (gets, some) = (rate("cib", 0.0), rate("cib", 0.1));
        assert!(gets.puts == 0 && some.puts > 1000, "{gets:?} {some:?}");
        assert!(some.rate_mops < 0.8 * gets.rate_mops, "{gets:?} {some:?}");
        assert_eq!(rate("cib", 0.1), some);
    }
}
