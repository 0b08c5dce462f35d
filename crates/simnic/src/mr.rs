//! A memory region, and the WRITEs to it that are not visible yet.

use std::collections::VecDeque;

use crate::event::SimulationEvent;
use crate::event_queue::{EventQueue, Ps};
use crate::machine::HostOrDpuState;
use crate::memory::{Payload, SimulatedRegion};
use crate::thread::{SimulatedThread, wake_if_waiting};

/// A memory region.
#[derive(Debug)]
pub(crate) struct Mr {
    pub(crate) machine: u32,
    pub(crate) region: SimulatedRegion,
    pub(crate) access_flags: i32,
    /// WRITEs with the times at which they become visible, earliest first.
    pub(crate) pending_writes: VecDeque<(Ps, u64, Payload)>,
    /// Thread that waits for WRITEs to the region.
    pub(crate) waiting_thread: Option<u32>,
}

impl Mr {
    /// Returns true if a queue pair of `machine` with these access flags may make an access of the kind `wanted` to
    /// `length` bytes from `addr` on.
    #[inline(always)]
    pub(crate) fn permits(
        &self,
        machine: u32,
        qp_access_flags: i32,
        wanted: i32,
        (addr, length): (u64, usize),
    ) -> bool {
        self.machine == machine
            && qp_access_flags & self.access_flags & wanted != 0
            && self.region.contains(addr, length)
    }

    /// Adds a WRITE that becomes visible at `at`, to this region, which has the key `key`.
    #[inline(always)]
    #[expect(
        clippy::too_many_arguments,
        reason = "parts of the simulation that others hold at the same time"
    )]
    pub(crate) fn add_pending_write(
        &mut self,
        key: u32,
        machine: &mut HostOrDpuState,
        at: Ps,
        addr: u64,
        payload: Payload,
        threads: &mut [SimulatedThread],
        events: &mut EventQueue<SimulationEvent>,
    ) {
        if machine.regions_with_pending_writes.is_empty() {
            machine.next_write_visible_at = at;
        }
        machine.next_write_visible_at = machine.next_write_visible_at.min(at);
        match self.pending_writes.front() {
            None => machine.regions_with_pending_writes.push((at, key)),
            Some((first, ..)) if at < *first => {
                let mut unsettled = machine.regions_with_pending_writes.iter_mut();
                if let Some(region) = unsettled.find(|(_, other)| *other == key) {
                    region.0 = at;
                }
            }
            Some(_) => {}
        }
        insert_by_time(&mut self.pending_writes, (at, addr, payload), |(at, ..)| {
            *at
        });
        if let Some(thread) = self.waiting_thread {
            wake_if_waiting(threads, events, thread, at);
        }
    }
}

/// Inserts an item by time, after items of equal time; usually near the end.
#[inline]
fn insert_by_time<T>(queue: &mut VecDeque<T>, new: T, at: impl Fn(&T) -> Ps) {
    let time = at(&new);
    if queue.back().is_none_or(|last| at(last) <= time) {
        queue.push_back(new);
        return;
    }
    let before = queue.iter().rposition(|other| at(other) <= time);
    queue.insert(before.map_or(0, |before| before + 1), new);
}
