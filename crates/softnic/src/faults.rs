//! The faults of a plan in the environment. The verbs, the queues and the path ask this module before they act.
//!
//! This module has the plan, the time and the counts, but refers to no object of the verbs:
//! [`incidents`](crate::incidents) acts on objects. Without a plan nothing here runs on the data path. The verbs that
//! ask are separate functions, which a context gets when it is opened (`abi::faulty`).

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::IpAddr;
use std::sync::{LazyLock, Mutex, OnceLock};

use ::faults::{
    BadFaults, CompletionFacts, CountsFile, Injector, PacketFacts, PacketVerdict, QueuePairIds,
    StruckRules, TargetedIncident, VerbCallFacts, WorkRequestFacts, WorkRequestFault,
    plan_from_environment,
};
use shm::clock::now_ns;

use crate::lock::lock;

/// The active fault plan of this process.
struct ActiveFaultPlan {
    started_at_ns: u64,
    delays_completions: bool,
    plan_state: Mutex<FaultPlanState>,
}

struct FaultPlanState {
    injector: Injector,
    counts_file: CountsFile,
    /// Incidents that became due while a queue was locked; they are carried out once it is unlocked.
    deferred_incidents: Vec<TargetedIncident>,
}

static ACTIVE_FAULT_PLAN: LazyLock<Result<Option<ActiveFaultPlan>, BadFaults>> =
    LazyLock::new(ActiveFaultPlan::from_env);

/// The function that is called for each strike.
static FAULT_OBSERVER: OnceLock<fn(&str)> = OnceLock::new();

/// Registers a function that is called for each fault when it strikes. Only the first registration of a process counts.
pub fn register_fault_observer(observer: fn(&str)) {
    let _ = FAULT_OBSERVER.set(observer);
}

impl ActiveFaultPlan {
    fn from_env() -> Result<Option<Self>, BadFaults> {
        let Some((plan, seed)) = plan_from_environment()? else {
            return Ok(None);
        };
        let late =
            |rule: &::faults::Rule| matches!(rule.action(), ::faults::Action::DelayCompletion(..));
        Ok(Some(Self {
            started_at_ns: now_ns(),
            delays_completions: plan.rules().iter().any(late),
            plan_state: Mutex::new(FaultPlanState {
                injector: Injector::new(plan, seed),
                counts_file: CountsFile::default(),
                deferred_incidents: Vec::new(),
            }),
        }))
    }

    fn ns_since_start(&self) -> u64 {
        now_ns().saturating_sub(self.started_at_ns)
    }
}

fn active_fault_plan() -> Option<&'static ActiveFaultPlan> {
    ACTIVE_FAULT_PLAN.as_ref().ok()?.as_ref()
}

/// Returns true if this process has a fault plan.
///
/// # Errors
/// The plan or the seed in the environment is not valid.
pub(crate) fn is_plan_active() -> Result<bool, BadFaults> {
    ACTIVE_FAULT_PLAN
        .as_ref()
        .map(Option::is_some)
        .map_err(Clone::clone)
}

/// Returns true if this process has a fault plan.
pub(crate) fn has_plan() -> bool {
    active_fault_plan().is_some()
}

/// Returns true if the plan may delay completions.
pub(crate) fn may_delay_completions() -> bool {
    active_fault_plan().is_some_and(|faults| faults.delays_completions)
}

impl FaultPlanState {
    /// Counts and reports the rules that struck.
    fn count_and_report_struck_rules(
        &mut self,
        struck: StruckRules,
        occasion: impl FnOnce(&mut String),
    ) {
        if struck.is_empty() {
            return;
        }
        self.counts_file.write_struck_counts(&self.injector, struck);
        let mut what = String::new();
        occasion(&mut what);
        for index in struck.rule_indices() {
            let Some(rule) = self.injector.rules().nth(index) else {
                continue;
            };
            let line = format!("fault {} ({rule}): {what}", index + 1);
            tracing::debug!("{line}");
            if let Some(tell) = FAULT_OBSERVER.get() {
                tell(&line);
            }
        }
    }
}

/// Creation numbers of the queue pairs that this process has made under a plan, by their QPNs.
static CREATION_NUMBERS: Mutex<BTreeMap<u32, u32>> = Mutex::new(BTreeMap::new());

/// Records that a queue pair was made.
pub(crate) fn note_created_queue_pair(queue_pair: QueuePairIds) {
    if has_plan() {
        lock(&CREATION_NUMBERS).insert(queue_pair.qpn, queue_pair.creation_number);
    }
}

/// Returns the queue pair that had the number `qpn` last.
pub(crate) fn latest_queue_pair(qpn: u32) -> QueuePairIds {
    let number = lock(&CREATION_NUMBERS).get(&qpn).copied().unwrap_or(0);
    QueuePairIds {
        creation_number: number,
        qpn,
    }
}

/// Returns the errno with which a verb is refused, if any, and the incidents before its execution.
pub(crate) fn decide_verb_fault_and_incidents(
    facts: &VerbCallFacts,
) -> (Option<i32>, Vec<TargetedIncident>) {
    let Some(faults) = active_fault_plan() else {
        return (None, Vec::new());
    };
    let inner = &mut *lock(&faults.plan_state);
    let verdict = inner
        .injector
        .decide_verb_call(faults.ns_since_start(), facts);
    inner.count_and_report_struck_rules(verdict.struck_rules, |what| {
        what.push_str(facts.verb_name);
        append_queue_pair_description(what, facts.queue_pair);
    });
    (verdict.errno, verdict.incidents)
}

/// Returns the fault of a work request. Incidents beside it are [deferred](take_incidents_deferred_by_queue_lock).
pub(crate) fn decide_work_request_fault(
    facts: &WorkRequestFacts,
    wr_id: u64,
) -> Option<WorkRequestFault> {
    let faults = active_fault_plan()?;
    let inner = &mut *lock(&faults.plan_state);
    let verdict = inner
        .injector
        .decide_work_request(faults.ns_since_start(), facts);
    inner.count_and_report_struck_rules(verdict.struck_rules, |what| {
        let _ = write!(what, "{} wr_id={wr_id}", facts.operation);
        append_queue_pair_description(what, facts.queue_pair);
    });
    inner.deferred_incidents.extend(verdict.incidents);
    verdict.fault
}

/// Returns the delay of a completion in nanoseconds.
pub(crate) fn decide_completion_delay_ns(facts: &CompletionFacts, wr_id: u64) -> u64 {
    let Some(faults) = active_fault_plan() else {
        return 0;
    };
    let inner = &mut *lock(&faults.plan_state);
    let (delay_ns, struck) = inner
        .injector
        .decide_completion_delay_ns(faults.ns_since_start(), facts);
    inner.count_and_report_struck_rules(struck, |what| {
        let _ = write!(
            what,
            "completion of {} wr_id={wr_id}, {delay_ns} ns late",
            facts.operation
        );
        append_queue_pair_description(what, facts.queue_pair);
    });
    delay_ns
}

/// Returns the fate of a packet.
pub(crate) fn decide_packet_verdict(facts: &PacketFacts) -> PacketVerdict {
    let Some(faults) = active_fault_plan() else {
        return PacketVerdict::default();
    };
    let inner = &mut *lock(&faults.plan_state);
    let fate = inner.injector.decide_packet(faults.ns_since_start(), facts);
    inner.count_and_report_struck_rules(fate.struck_rules, |what| {
        let _ = write!(
            what,
            "packet {} of {} bytes, {} -> {}",
            facts.operation, facts.len_bytes, facts.source, facts.destination
        );
        append_queue_pair_description(what, facts.queue_pair);
    });
    fate
}

fn append_queue_pair_description(what: &mut String, queue_pair: QueuePairIds) {
    if queue_pair.qpn != 0 {
        let QueuePairIds {
            creation_number: number,
            qpn,
        } = queue_pair;
        let _ = write!(what, ", queue pair {number} (QPN {qpn:#x})");
    }
}

/// Takes the incidents of the fault plan that became due while a queue was locked, each once.
pub(crate) fn take_incidents_deferred_by_queue_lock() -> Vec<TargetedIncident> {
    active_fault_plan().map_or_else(Vec::new, |faults| {
        std::mem::take(&mut lock(&faults.plan_state).deferred_incidents)
    })
}

/// Returns the incidents that are due now, and the time in nanoseconds until the next one is due.
pub(crate) fn take_due_incidents() -> (Vec<TargetedIncident>, Option<u64>) {
    let Some(faults) = active_fault_plan() else {
        return (Vec::new(), None);
    };
    let inner = &mut *lock(&faults.plan_state);
    let now = faults.ns_since_start();
    let (happenings, struck) = inner.injector.take_due_incidents(now);
    inner.count_and_report_struck_rules(struck, |what| what.push_str("its time has come"));
    let next = inner.injector.next_incident_due_ns();
    (happenings, next.map(|next| next.saturating_sub(now)))
}

/// Returns true while the plan keeps the link down.
pub(crate) fn link_is_down() -> bool {
    active_fault_plan().is_some_and(|faults| {
        lock(&faults.plan_state)
            .injector
            .is_link_down(faults.ns_since_start())
    })
}

/// Writes the counts of each rule so far, for the summary of a run.
pub(crate) fn save_counts() {
    if let Some(faults) = active_fault_plan() {
        let inner = &mut *lock(&faults.plan_state);
        inner
            .counts_file
            .write_all_counts(inner.injector.rule_counts());
    }
}

/// Returns the IP address of a GID; an IPv4-mapped one becomes IPv4.
pub(crate) fn address_of_gid(gid: [u8; 16]) -> IpAddr {
    IpAddr::V6(gid.into()).to_canonical()
}
