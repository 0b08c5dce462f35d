//! A completion queue.

use verbs_abi as abi;

use crate::completion_channel::Arming;
use crate::event::SimulationEvent;
use crate::event_queue::{EventQueue, Ps};
use crate::fifo_queue::FifoQueue;
use crate::message::SUCCESS_STATUS;
use crate::prefetch::prefetch;
use crate::thread::{SimulatedThread, wake_if_waiting};

/// A completion, with the time at which it becomes visible.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cqe {
    pub(crate) visible_at: Ps,
    pub(crate) wr_id: u64,
    pub(crate) byte_len: u32,
    pub(crate) imm: u32,
    pub(crate) qpn: u32,
    pub(crate) src_qp: u32,
    pub(crate) slid: u16,
    /// Number of slots of the send queue that the poll of this completion frees; 0 for a RECV.
    pub(crate) freed_send_queue_slots: u16,
    pub(crate) has_imm: bool,
    /// True for the RECV of a solicited message.
    pub(crate) solicited: bool,
    pub(crate) status: u8,
    pub(crate) opcode: u8,
}

/// A completion queue. It has the size of a cache line, since many exist.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Cq {
    pub(crate) capacity: u32,
    pub(crate) is_overrun: bool,
    pub(crate) armed_for: Arming,
    pub(crate) cqes: FifoQueue<Cqe>,
    /// The C structure of this CQ, which the poller of a completion accesses.
    pub(crate) handle: *const abi::ibv_cq,
    /// Thread that polled the queue last; `wait_period_number_at_last_poll`: the stamp of that thread at the time.
    pub(crate) last_polling_thread: Option<u32>,
    pub(crate) wait_period_number_at_last_poll: u64,
}

const _: () = assert!(size_of::<Option<Cq>>() == 64);
const _: () = assert!(size_of::<Cqe>() == 40);

impl Cq {
    /// Records that thread `me` polls queue `number` for the first time since its last wait, or after another thread.
    #[inline(always)]
    pub(crate) fn record_first_poll(&mut self, number: u32, me: u32, thread: &mut SimulatedThread) {
        // A thread that has waited since its last poll of the queue does not watch the queue any more.
        let first = *thread.first_polled_cq.get_or_insert(number);
        if first != number
            && (self.last_polling_thread == Some(me)
                || !thread.further_polled_cqs.contains(&number))
        {
            thread.further_polled_cqs.push(number);
            thread.polls_several_cqs = true;
        }
        (
            self.last_polling_thread,
            self.wait_period_number_at_last_poll,
        ) = (Some(me), thread.wait_period_number);
    }

    /// Adds a completion. If the thread that polled the queue last waits, it resumes when the completion is visible.
    /// Returns true if the completion makes an event.
    #[inline(always)]
    pub(crate) fn push_and_wake(
        &mut self,
        cqe: Cqe,
        threads: &mut [SimulatedThread],
        events: &mut EventQueue<SimulationEvent>,
    ) -> bool {
        if self.cqes.len() >= self.capacity as usize {
            self.is_overrun = true;
            return false;
        }
        prefetch(self.handle);
        self.cqes.insert_by_time(cqe, |cqe| cqe.visible_at);
        if let Some(thread) = self.last_polling_thread {
            wake_if_waiting(threads, events, thread, cqe.visible_at);
        }
        self.armed_for != Arming::Disarmed && self.disarm_if_event(&cqe)
    }

    /// Removes the completions of a queue pair that is reset, as the drivers of NICs do.
    pub(crate) fn remove_completions_of_qp(&mut self, qpn: u32) {
        self.cqes.retain(|cqe| cqe.qpn != qpn);
    }

    /// Arms the queue. A queue that is armed for all completions stays so (IBTA vol. 1, 11.4.2.2). Returns the time of
    /// the event if a completion that the polling thread cannot see yet makes it.
    pub(crate) fn arm(&mut self, armed_for: Arming, clock: Ps) -> Option<Ps> {
        let armed_for = match self.armed_for {
            Arming::AnyCompletion => Arming::AnyCompletion,
            _ => armed_for,
        };
        self.armed_for = armed_for;
        let cqes = self.cqes.as_slice().iter();
        let mut invisible = cqes.filter(|cqe| cqe.visible_at > clock);
        let first = invisible.find(|cqe| makes_event(armed_for, cqe))?;
        let at = first.visible_at;
        self.armed_for = Arming::Disarmed;
        Some(at)
    }

    /// Disarms the queue if the completion makes an event; returns true if it does.
    #[cold]
    fn disarm_if_event(&mut self, cqe: &Cqe) -> bool {
        let event = makes_event(self.armed_for, cqe);
        if event {
            self.armed_for = Arming::Disarmed;
        }
        event
    }
}

/// Returns true if a completion makes the event of a queue that is armed so.
fn makes_event(armed_for: Arming, cqe: &Cqe) -> bool {
    match armed_for {
        Arming::Disarmed => false,
        Arming::AnyCompletion => true,
        Arming::SolicitedOrFailed => cqe.solicited || cqe.status != SUCCESS_STATUS,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A completion of before the reset would free slots of later work requests.
    #[test]
    fn a_reset_removes_the_completions_of_its_queue_pair() {
        let mut cq = Cq {
            capacity: 8,
            is_overrun: false,
            armed_for: Arming::Disarmed,
            cqes: FifoQueue::default(),
            handle: std::ptr::null(),
            last_polling_thread: None,
            wait_period_number_at_last_poll: 0,
        };
        for (wr_id, qpn) in [(0, 1), (1, 2), (2, 1)] {
            cq.cqes.push(Cqe {
                visible_at: wr_id,
                wr_id,
                byte_len: 0,
                imm: 0,
                qpn,
                src_qp: 0,
                slid: 0,
                freed_send_queue_slots: 1,
                has_imm: false,
                solicited: false,
                status: SUCCESS_STATUS,
                opcode: 0,
            });
        }
        cq.remove_completions_of_qp(1);
        let left = cq.cqes.as_slice().iter().map(|cqe| cqe.wr_id);
        assert_eq!(left.collect::<Vec<_>>(), [1]);
    }
}
