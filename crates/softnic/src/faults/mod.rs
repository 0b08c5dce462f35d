//! Faults that a plan in the environment asks for: what the verbs, the queues and the path ask before they act.
//!
//! This module knows the plan, the time and the counts, but no object of the verbs: [`incidents`](crate::incidents) does
//! what happens to objects. Without a plan nothing here runs on the data path: the verbs that ask are other functions,
//! which a context gets when it is opened (`abi::faulty`).

mod counts;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::IpAddr;
use std::sync::{LazyLock, Mutex, OnceLock};

use ::faults::{
    CompletionFacts, Fate, Happening, Injector, PacketFacts, Plan, QueuePair, Struck, VerbFacts,
    WorkFacts, WorkFault,
};
use shm::clock::now_ns;

use crate::lock::lock;
use counts::CountsFile;
pub(crate) use counts::write_left;
pub use counts::{FAULT_COUNTS_VAR, FaultCounts, read_counts};

/// Holds the plan, as a line.
pub const FAULT_VAR: &str = "VERBATIM_FAULT";
/// Holds the seed, a number; 0 by default.
pub const FAULT_SEED_VAR: &str = "VERBATIM_FAULT_SEED";

/// The plan of this process at work.
struct Faults {
    begun_ns: u64,
    delays_completions: bool,
    inner: Mutex<Inner>,
}

struct Inner {
    injector: Injector,
    counts: CountsFile,
    /// What struck while a queue was locked, and is done when it is not.
    owed: Vec<Happening>,
}

/// Why the environment asks for faults that cannot be.
#[derive(Clone, Debug, thiserror::Error)]
pub enum BadFaults {
    /// The plan is none.
    #[error("{FAULT_VAR}: {0}")]
    Plan(#[from] ::faults::PlanError),
    /// The seed is none.
    #[error("{FAULT_SEED_VAR}={0:?} is not a number from 0 to 2^64 - 1")]
    Seed(String),
}

static FAULTS: LazyLock<Result<Option<Faults>, BadFaults>> = LazyLock::new(Faults::from_env);

/// Who is told of each strike.
static OBSERVER: OnceLock<fn(&str)> = OnceLock::new();

/// Has `observer` told of each fault where it strikes: once a process, the first stays.
pub fn observe_faults(observer: fn(&str)) {
    let _ = OBSERVER.set(observer);
}

impl Faults {
    fn from_env() -> Result<Option<Self>, BadFaults> {
        let text = |name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
        let Some(plan) = text(FAULT_VAR).filter(|plan| !plan.is_empty()) else {
            return Ok(None);
        };
        let plan: Plan = plan.parse()?;
        let seed = text(FAULT_SEED_VAR).map_or(Ok(0), |seed| {
            seed.parse().map_err(|_| BadFaults::Seed(seed.clone()))
        })?;
        let late = |rule: &::faults::Rule| matches!(rule.action(), ::faults::Action::Late(..));
        Ok(Some(Self {
            begun_ns: now_ns(),
            delays_completions: plan.rules().iter().any(late),
            inner: Mutex::new(Inner {
                injector: Injector::new(plan, seed),
                counts: CountsFile::default(),
                owed: Vec::new(),
            }),
        }))
    }

    fn now(&self) -> u64 {
        now_ns().saturating_sub(self.begun_ns)
    }
}

fn faults() -> Option<&'static Faults> {
    FAULTS.as_ref().ok()?.as_ref()
}

/// Whether this process has a plan of faults.
///
/// # Errors
/// The environment's plan or seed is none.
pub(crate) fn check() -> Result<bool, BadFaults> {
    FAULTS.as_ref().map(Option::is_some).map_err(Clone::clone)
}

/// Whether this process has a plan of faults.
pub(crate) fn are_on() -> bool {
    faults().is_some()
}

/// Whether the plan may delay completions.
pub(crate) fn delay_completions() -> bool {
    faults().is_some_and(|faults| faults.delays_completions)
}

impl Inner {
    /// Counts and tells what struck.
    fn note(&mut self, struck: Struck, occasion: impl FnOnce(&mut String)) {
        if struck.is_empty() {
            return;
        }
        self.counts.write(&self.injector, struck);
        let mut what = String::new();
        occasion(&mut what);
        for index in struck.rules() {
            let Some(rule) = self.injector.rules().nth(index) else {
                continue;
            };
            let line = format!("fault {} ({rule}): {what}", index + 1);
            tracing::debug!("{line}");
            if let Some(tell) = OBSERVER.get() {
                tell(&line);
            }
        }
    }
}

/// Numbers of the queue pairs that this process has made under a plan, by their QPNs.
static NUMBERS: Mutex<BTreeMap<u32, u32>> = Mutex::new(BTreeMap::new());

/// A queue pair was made.
pub(crate) fn note_queue_pair(queue_pair: QueuePair) {
    if are_on() {
        lock(&NUMBERS).insert(queue_pair.qpn, queue_pair.number);
    }
}

/// The queue pair that has had the number `qpn` last.
pub(crate) fn queue_pair(qpn: u32) -> QueuePair {
    let number = lock(&NUMBERS).get(&qpn).copied().unwrap_or(0);
    QueuePair { number, qpn }
}

/// Whether a verb is refused, and what happens before it is executed.
pub(crate) fn verb(facts: &VerbFacts) -> (Option<i32>, Vec<Happening>) {
    let Some(faults) = faults() else {
        return (None, Vec::new());
    };
    let inner = &mut *lock(&faults.inner);
    let verdict = inner.injector.verb(faults.now(), facts);
    inner.note(verdict.struck, |what| {
        what.push_str(facts.name);
        tell_queue_pair(what, facts.queue_pair);
    });
    (verdict.errno, verdict.incidents)
}

/// What is wrong with a work request; what happens beside it is [owed](take_owed).
pub(crate) fn work_request(facts: &WorkFacts, wr_id: u64) -> Option<WorkFault> {
    let faults = faults()?;
    let inner = &mut *lock(&faults.inner);
    let verdict = inner.injector.work_request(faults.now(), facts);
    inner.note(verdict.struck, |what| {
        let _ = write!(what, "{} wr_id={wr_id}", facts.operation);
        tell_queue_pair(what, facts.queue_pair);
    });
    inner.owed.extend(verdict.incidents);
    verdict.fault
}

/// By how many nanoseconds a completion is late.
pub(crate) fn completion(facts: &CompletionFacts, wr_id: u64) -> u64 {
    let Some(faults) = faults() else { return 0 };
    let inner = &mut *lock(&faults.inner);
    let (delay_ns, struck) = inner.injector.completion(faults.now(), facts);
    inner.note(struck, |what| {
        let _ = write!(
            what,
            "completion of {} wr_id={wr_id}, {delay_ns} ns late",
            facts.operation
        );
        tell_queue_pair(what, facts.queue_pair);
    });
    delay_ns
}

/// What becomes of a packet.
pub(crate) fn packet(facts: &PacketFacts) -> Fate {
    let Some(faults) = faults() else {
        return Fate::default();
    };
    let inner = &mut *lock(&faults.inner);
    let fate = inner.injector.packet(faults.now(), facts);
    inner.note(fate.struck, |what| {
        let _ = write!(
            what,
            "packet {} of {} bytes, {} -> {}",
            facts.operation, facts.bytes, facts.source, facts.destination
        );
        tell_queue_pair(what, facts.queue_pair);
    });
    fate
}

fn tell_queue_pair(what: &mut String, queue_pair: QueuePair) {
    if queue_pair.qpn != 0 {
        let QueuePair { number, qpn } = queue_pair;
        let _ = write!(what, ", queue pair {number} (QPN {qpn:#x})");
    }
}

/// What struck while a queue was locked, each once.
pub(crate) fn take_owed() -> Vec<Happening> {
    faults().map_or_else(Vec::new, |faults| {
        std::mem::take(&mut lock(&faults.inner).owed)
    })
}

/// What happens now because its time has come, and in how many nanoseconds something does next.
pub(crate) fn due() -> (Vec<Happening>, Option<u64>) {
    let Some(faults) = faults() else {
        return (Vec::new(), None);
    };
    let inner = &mut *lock(&faults.inner);
    let now = faults.now();
    let (happenings, struck) = inner.injector.due(now);
    inner.note(struck, |what| what.push_str("its time has come"));
    let next = inner.injector.next_due();
    (happenings, next.map(|next| next.saturating_sub(now)))
}

/// Whether the cable is out.
pub(crate) fn link_is_down() -> bool {
    faults().is_some_and(|faults| lock(&faults.inner).injector.is_link_down(faults.now()))
}

/// Writes what each rule has seen and done so far, for the summary of a run.
pub(crate) fn save_counts() {
    if let Some(faults) = faults() {
        let inner = &mut *lock(&faults.inner);
        inner.counts.write_all(&inner.injector);
    }
}

/// The IP address that a GID stands for: an IPv4-mapped one is IPv4.
pub(crate) fn address_of_gid(gid: [u8; 16]) -> IpAddr {
    IpAddr::V6(gid.into()).to_canonical()
}
