//! The effects of a fault plan on the device and the process: asynchronous events, errors of queue pairs, pauses.

#[allow(unsafe_code)]
mod pause;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use ::faults::{Incident, QueuePairIds, TargetedIncident};
use verbs_abi::*;

use crate::at_exit;
use crate::context::Context;
use crate::device::Device;
use crate::engine;
use crate::faults;
use crate::live_handles;
use crate::lock::lock;
use crate::nic::Nic;
use crate::path::Counter;
use crate::registry;

/// The contexts that get the events of the device.
static CONTEXTS: Mutex<Vec<&'static Context>> = Mutex::new(Vec::new());
/// True once the device was removed.
static DEVICE_GONE: AtomicBool = AtomicBool::new(false);
/// True if a rule may have become due sooner, because the link was taken down for a time.
static RULE_DUE_SOONER: (Mutex<bool>, Condvar) = (Mutex::new(false), Condvar::new());

/// Registers an opened context for the events. The time of the plan begins with the first context.
pub(crate) fn register_context(context: &'static Context) {
    if !faults::has_plan() {
        return;
    }
    lock(&CONTEXTS).push(context);
    static TIMEKEEPER_STARTED: AtomicBool = AtomicBool::new(false);
    if TIMEKEEPER_STARTED.swap(true, Ordering::Relaxed) {
        return;
    }
    at_exit::at_exit(save_fault_counts_at_exit);
    faults::save_counts();
    let builder = std::thread::Builder::new().name("verbatim-faults".into());
    let nic = context.nic;
    if let Err(error) = engine::without_signals(|| builder.spawn(move || run_incident_timer(nic))) {
        tracing::error!("faults that have a time do not strike: no thread: {error}");
    }
}

extern "C" fn save_fault_counts_at_exit() {
    faults::save_counts();
    ::faults::write_undestroyed_objects(&live_handles::count_undestroyed_objects());
}

/// Sleeps until an incident is due, and carries it out.
fn run_incident_timer(nic: &'static Nic) {
    loop {
        let (happenings, next) = faults::take_due_incidents();
        carry_out_incidents(nic, happenings);
        let (sooner, called) = &RULE_DUE_SOONER;
        let mut sooner = lock(sooner);
        while !*sooner {
            let Some(wait) = next else {
                sooner = called.wait(sooner).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let wait = Duration::from_nanos(wait);
            sooner = match called.wait_timeout(sooner, wait) {
                Ok((sooner, _)) => sooner,
                Err(poisoned) => poisoned.into_inner().0,
            };
            break;
        }
        *sooner = false;
    }
}

/// Returns true if the device was removed.
pub(crate) fn device_is_gone() -> bool {
    DEVICE_GONE.load(Ordering::Relaxed)
}

/// Carries out incidents. The caller holds no lock of a queue.
pub(crate) fn carry_out_incidents(nic: &'static Nic, happenings: Vec<TargetedIncident>) {
    for (incident, queue_pair) in happenings {
        match incident {
            Incident::RaiseEvent(event) => raise_event_for_queue_pairs(nic, event, queue_pair),
            Incident::PauseProcess(ns) => pause::stop_process_for(Duration::from_nanos(ns)),
            Incident::LinkDown(time) => {
                for port in nic.devices.iter().flat_map(Device::ports) {
                    let place = port.place.host_wide_number().into();
                    nic.packet_path.counters.add(place, Counter::LinkDowned, 1);
                }
                raise_event_in_all_contexts(IBV_EVENT_PORT_ERR);
                if time.is_some() {
                    *lock(&RULE_DUE_SOONER.0) = true;
                    RULE_DUE_SOONER.1.notify_one();
                }
            }
            Incident::LinkUp => raise_event_in_all_contexts(IBV_EVENT_PORT_ACTIVE),
        }
    }
}

/// Carries out the incidents that became due while a queue was locked.
pub(crate) fn carry_out_deferred_incidents(nic: &'static Nic) {
    let owed = faults::take_incidents_deferred_by_queue_lock();
    if !owed.is_empty() {
        carry_out_incidents(nic, owed);
    }
}

fn raise_event_in_all_contexts(event: ibv_event_type) {
    for context in lock(&CONTEXTS).iter() {
        context.raise_event_for_each_port(event);
    }
}

fn raise_event_for_queue_pairs(nic: &'static Nic, event: ibv_event_type, target: QueuePairIds) {
    match event {
        IBV_EVENT_QP_FATAL | IBV_EVENT_QP_REQ_ERR | IBV_EVENT_QP_ACCESS_ERR => {
            for_each_queue_pair(nic, target, |qp| qp.fail_and_raise_if_in_use(event));
        }
        IBV_EVENT_COMM_EST | IBV_EVENT_PATH_MIG | IBV_EVENT_PATH_MIG_ERR => {
            for_each_queue_pair(nic, target, |qp| qp.raise_event(event));
        }
        IBV_EVENT_DEVICE_FATAL => {
            DEVICE_GONE.store(true, Ordering::Relaxed);
            for_each_queue_pair(nic, QueuePairIds::default(), crate::qp::Qp::fail_quietly);
            raise_event_in_all_contexts(event);
        }
        _ => raise_event_in_all_contexts(event),
    }
}

/// Calls `f` for each queue pair that matches `target`; 0 matches any.
fn for_each_queue_pair(nic: &Nic, target: QueuePairIds, f: impl Fn(&crate::qp::Qp)) {
    for qp in registry::objects_of_nic(nic).all_qps() {
        let is = |wanted: u32, own: u32| wanted == 0 || wanted == own;
        if is(target.creation_number, qp.creation_number) && is(target.qpn, qp.qpn) {
            f(&qp);
        }
    }
}
