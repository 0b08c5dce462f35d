//! Completion counters: `ibv_create_comp_cntr(3)`.
//!
//! A counter counts a completion when it is made, which is when the program or the engine looks for completions. Work
//! requests that succeed unsignaled make no completion and are not counted.

use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock, Weak};

use verbs_abi::*;

use crate::abi_cell::AbiCell;
use crate::live_handles;

/// Largest number of counters in a process.
pub(crate) const MAX_COUNTERS: u32 = 65_536;
/// Operations that a counter can count.
pub(crate) const SUPPORTED_OPS: u32 = IBV_QP_ATTACH_COMP_CNTR_OP_SEND
    | IBV_QP_ATTACH_COMP_CNTR_OP_RECV
    | IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_READ
    | IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_WRITE;

static EXISTING_COUNTER_COUNT: AtomicU32 = AtomicU32::new(0);

/// A completion counter; the program's handle points to its first field.
#[repr(C)]
pub(crate) struct CompCntr {
    abi: AbiCell<ibv_comp_cntr>,
    /// Number of work requests that succeeded.
    pub(crate) succeeded_wr_count: AtomicU64,
    /// Number of work requests that failed.
    pub(crate) failed_wr_count: AtomicU64,
    /// Number of calls that attached the counter to a queue pair.
    pub(crate) attach_count: AtomicUsize,
}

live_handles::object!(CompCntr, ibv_comp_cntr);

impl CompCntr {
    /// Makes a counter. `None` if there are [`MAX_COUNTERS`] already.
    pub(crate) fn new(context: *mut ibv_context) -> Option<Self> {
        let less = |n: u32| (n < MAX_COUNTERS).then_some(n + 1);
        let number =
            EXISTING_COUNTER_COUNT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        let handle = number.ok()?;
        Some(Self {
            abi: AbiCell::new(ibv_comp_cntr {
                context,
                handle,
                comp_count_max_value: u64::MAX,
                err_count_max_value: u64::MAX,
            }),
            succeeded_wr_count: AtomicU64::new(0),
            failed_wr_count: AtomicU64::new(0),
            attach_count: AtomicUsize::new(0),
        })
    }
}

impl Drop for CompCntr {
    fn drop(&mut self) {
        EXISTING_COUNTER_COUNT.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The view that counters have of a queue pair.
pub(crate) trait CountedQp: Send + Sync {
    /// Looks for completions of both queues, for a program that does not poll.
    fn poll_both_queues(&self);
}

/// The counters of a queue pair's completions.
struct AttachedCounters {
    qp: Weak<dyn CountedQp>,
    counters: Vec<(u32, Arc<CompCntr>)>,
}

/// The attached counters, by number of the queue pair.
static ATTACHED_COUNTERS_BY_QPN: RwLock<Option<HashMap<u32, AttachedCounters>>> = RwLock::new(None);
/// True once a counter has been attached.
static ANY_COUNTER_ATTACHED: AtomicBool = AtomicBool::new(false);

/// Returns true if completions have to be counted. The function is a single load, since the data path calls it.
#[inline(always)]
pub(crate) fn is_counting() -> bool {
    ANY_COUNTER_ATTACHED.load(Ordering::Relaxed)
}

/// Attaches a counter.
///
/// # Errors
/// `EBUSY` where another counter has one of the operations.
pub(crate) fn attach_counter(
    qpn: u32,
    qp: Weak<dyn CountedQp>,
    counter: &Arc<CompCntr>,
    op_mask: u32,
) -> Result<(), c_int> {
    let mut all = ATTACHED_COUNTERS_BY_QPN
        .write()
        .unwrap_or_else(PoisonError::into_inner);
    let of_qp = all
        .get_or_insert_default()
        .entry(qpn)
        .or_insert_with(|| AttachedCounters {
            qp,
            counters: Vec::new(),
        });
    if of_qp.counters.iter().any(|(ops, _)| ops & op_mask != 0) {
        return Err(libc::EBUSY);
    }
    counter.attach_count.fetch_add(1, Ordering::Relaxed);
    of_qp.counters.push((op_mask, Arc::clone(counter)));
    ANY_COUNTER_ATTACHED.store(true, Ordering::Relaxed);
    Ok(())
}

/// Detaches all counters of a queue pair that is destroyed.
pub(crate) fn detach_all_counters_of_qp(qpn: u32) {
    if !is_counting() {
        return;
    }
    let gone = {
        let mut all = ATTACHED_COUNTERS_BY_QPN
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        all.as_mut().and_then(|all| all.remove(&qpn))
    };
    for (_, counter) in gone.into_iter().flat_map(|gone| gone.counters) {
        counter.attach_count.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Returns the operation of a completion; 0 for one that no counter counts.
fn attach_op_of_opcode(opcode: ibv_wc_opcode) -> u32 {
    match opcode {
        IBV_WC_SEND => IBV_QP_ATTACH_COMP_CNTR_OP_SEND,
        IBV_WC_RDMA_WRITE => IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_WRITE,
        IBV_WC_RDMA_READ => IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_READ,
        _ if opcode & IBV_WC_RECV != 0 => IBV_QP_ATTACH_COMP_CNTR_OP_RECV,
        _ => 0,
    }
}

/// Counts completions that were made just now.
#[cold]
pub(crate) fn count_new_completions(completions: &[ibv_wc]) {
    let all = ATTACHED_COUNTERS_BY_QPN
        .read()
        .unwrap_or_else(PoisonError::into_inner);
    let Some(all) = &*all else { return };
    for wc in completions {
        let Some(of_qp) = all.get(&wc.qp_num) else {
            continue;
        };
        let op = attach_op_of_opcode(wc.opcode);
        for (_, counter) in of_qp.counters.iter().filter(|(ops, _)| ops & op != 0) {
            let count = if wc.status == IBV_WC_SUCCESS {
                &counter.succeeded_wr_count
            } else {
                &counter.failed_wr_count
            };
            count.fetch_add(1, Ordering::Release);
        }
    }
}

/// Looks for completions of the queue pairs that a counter is attached to, for a program that does not poll.
pub(crate) fn poll_counted_qps(counter: &Arc<CompCntr>) {
    let queue_pairs: Vec<Arc<dyn CountedQp>> = {
        let all = ATTACHED_COUNTERS_BY_QPN
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        let all = all.iter().flat_map(HashMap::values);
        let its = all.filter(|of_qp| of_qp.counters.iter().any(|(_, c)| Arc::ptr_eq(c, counter)));
        its.filter_map(|of_qp| of_qp.qp.upgrade()).collect()
    };
    for qp in queue_pairs {
        qp.poll_both_queues();
    }
}
