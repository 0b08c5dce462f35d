//! State shared by the responders of a process.

use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result, bail};
use verbs::{Access, MemoryRegion, RemoteMemory};

use super::task::MeasurementTask;
use super::verb::Verb;
use crate::open_nic::OpenNic;

/// State shared by the responders of a process: the counters for atomics, which all requesters use.
#[derive(Debug)]
pub(crate) struct SharedAtomicCounters {
    counters: Option<MemoryRegion>,
    spacing_bytes: usize,
    added_total: AtomicU64,
}

impl SharedAtomicCounters {
    /// Creates the shared state of a process that responds to `task`.
    pub(crate) fn new(nic: &OpenNic, task: &MeasurementTask) -> Result<SharedAtomicCounters> {
        let (counters, spacing_bytes) = match task {
            MeasurementTask::Stream(stream) if stream.verb == Verb::Atomics => {
                let bytes = stream.atomic_counters * stream.counter_spacing_bytes;
                let access = Access::LOCAL_WRITE | Access::REMOTE_ATOMIC;
                let memory = nic.alloc_registered_memory(bytes, access, stream.page_size)?;
                (Some(memory), stream.counter_spacing_bytes)
            }
            _ => (None, 8),
        };
        Ok(SharedAtomicCounters {
            counters,
            spacing_bytes,
            added_total: AtomicU64::new(0),
        })
    }

    pub(super) fn remote_counters(&self) -> Result<RemoteMemory> {
        let counters = self.counters.as_ref().context("no counters for atomics")?;
        Ok(counters.remote())
    }

    /// Notes that a requester has added `count`.
    pub(super) fn record_adds(&self, count: u64) {
        self.added_total.fetch_add(count, Ordering::Relaxed);
    }

    /// Returns a description of a wrong sum of the counters, or `None`. Call after all requesters
    /// have ended.
    pub(crate) fn describe_wrong_sum(&self) -> Result<Option<String>> {
        let Some(counters) = &self.counters else {
            return Ok(None);
        };
        let mut sum = 0u64;
        for at in (0..counters.len()).step_by(self.spacing_bytes) {
            sum = sum.wrapping_add(counters.read_u64(at)?);
        }
        let added = self.added_total.load(Ordering::Relaxed);
        Ok((sum != added).then(|| format!("counters of {sum} together, not {added}")))
    }
}

/// Turns a description of wrong data in a target into an error.
pub(crate) fn fail_if_wrong(wrong: Option<String>) -> Result<()> {
    match wrong {
        Some(wrong) => bail!("the target found {wrong}"),
        None => Ok(()),
    }
}
