//! Windows of one-sided WRs on all queue pairs of a thread. WRs that complete are replaced by new
//! ones.

use std::ops::Range;

use anyhow::Result;
use verbs::{Connected, Postlist, QueuePair, WcBuffer};

use super::credit::ReceivedCredits;
use super::parameters::VerbStream;
use super::selective_signaling::SelectiveSignaling;
use super::timer::{OperationMeter, RunTimer, TimedOperations};
use crate::clock::now_ns;
use crate::open_nic::poll_successful_completions;
use crate::poll_timeout::{DEFAULT_EVENT_TIMEOUT_NS, PollTimeout};

/// Consecutive WRs of one queue pair, in consecutive slots of its window.
pub(super) struct SlotRun {
    pub(super) qp_index: usize,
    /// Number of the first WR, among those of its queue pair.
    pub(super) first_wr_number: u64,
    /// Slots of the WRs, among those of all queue pairs.
    pub(super) window_slots: Range<usize>,
}

/// The WRs that are posted, and the check of their results on completion.
pub(super) trait WindowWrSource<T: Connected> {
    /// True if a slot always holds the same WR, so that the WRs of a window are built once.
    const REUSES_WRS: bool = false;

    /// Adds the WRs of a run to a postlist.
    ///
    /// # Errors
    /// When a slot is not in the memory.
    fn add_wrs_to_postlist(&mut self, list: &mut Postlist<T>, run: &SlotRun) -> Result<()>;

    /// Checks the data of completed WRs.
    ///
    /// # Errors
    /// When the data are wrong.
    fn check_results(&mut self, _: &SlotRun) -> Result<()> {
        Ok(())
    }
}

/// A queue pair with its window of WRs.
struct WindowedQp<'q, T: Connected> {
    qp: &'q QueuePair<T>,
    stream: &'q VerbStream,
    postlist: Postlist<T>,
    signaling: SelectiveSignaling,
    /// Index of the queue pair.
    qp_index: usize,
    /// Number of the next WR to post, and its slot of the window.
    next_wr_number: u64,
    next_slot: usize,
    /// Number of completed WRs, and the slot of the next WR to complete.
    completed_wrs: u64,
    next_slot_to_complete: usize,
}

impl<'q, T: Connected> WindowedQp<'q, T> {
    fn new<R: WindowWrSource<T>>(
        number: usize,
        qp: &'q QueuePair<T>,
        stream: &'q VerbStream,
        requests: &mut R,
    ) -> Result<WindowedQp<'q, T>> {
        let (batch, every) = (stream.wrs_per_doorbell, stream.signal_every);
        let mut flow = WindowedQp {
            qp,
            stream,
            postlist: qp.postlist(if R::REUSES_WRS { stream.window } else { batch }),
            signaling: SelectiveSignaling::new(batch, every),
            qp_index: number,
            next_wr_number: 0,
            next_slot: 0,
            completed_wrs: 0,
            next_slot_to_complete: 0,
        };
        if R::REUSES_WRS {
            let window = flow.slot_run(0, 0, stream.window);
            requests.add_wrs_to_postlist(&mut flow.postlist, &window)?;
            SelectiveSignaling::new(stream.window, every).mark_signaled_wrs(&mut flow.postlist);
        }
        Ok(flow)
    }

    #[inline]
    fn slot_run(&self, number: u64, slot: usize, count: usize) -> SlotRun {
        let first = self.qp_index * self.stream.window + slot;
        SlotRun {
            qp_index: self.qp_index,
            first_wr_number: number,
            window_slots: first..first + count,
        }
    }

    /// Posts the next postlist.
    #[inline]
    fn post_next_postlist<R: WindowWrSource<T>>(&mut self, requests: &mut R) -> Result<()> {
        let (slot, end) = (
            self.next_slot,
            self.next_slot + self.stream.wrs_per_doorbell,
        );
        if R::REUSES_WRS {
            self.qp.post_send_range(&mut self.postlist, slot..end)?;
        } else {
            self.postlist.clear();
            let run = self.slot_run(self.next_wr_number, slot, self.stream.wrs_per_doorbell);
            requests.add_wrs_to_postlist(&mut self.postlist, &run)?;
            self.signaling.mark_signaled_wrs(&mut self.postlist);
            self.qp.post_send(&mut self.postlist)?;
        }
        self.next_wr_number += self.stream.wrs_per_doorbell as u64;
        self.next_slot = if end == self.stream.window { 0 } else { end };
        Ok(())
    }

    /// Waits until `until` WRs have completed.
    #[inline]
    fn wait_until_completed<R: WindowWrSource<T>>(
        &mut self,
        until: u64,
        requests: &mut R,
    ) -> Result<()> {
        if self.completed_wrs >= until {
            return Ok(());
        }
        self.poll_until_completed(until, requests)
    }

    fn poll_until_completed<R: WindowWrSource<T>>(
        &mut self,
        until: u64,
        requests: &mut R,
    ) -> Result<()> {
        let mut wcs = WcBuffer::<32>::new();
        let mut timeout = PollTimeout::new(DEFAULT_EVENT_TIMEOUT_NS);
        while self.completed_wrs < until {
            let came = poll_successful_completions(self.qp.send_cq(), &mut wcs, |_| Ok(()))?;
            if came == 0 {
                timeout.fail_if_over_after_empty_poll("completions")?;
                continue;
            }
            timeout.reset();
            self.check_results_of_completed_wrs(came * self.stream.signal_every, requests)?;
        }
        Ok(())
    }

    /// Checks `count` completed WRs, wrapping around at the end of the window.
    fn check_results_of_completed_wrs<R: WindowWrSource<T>>(
        &mut self,
        mut count: usize,
        requests: &mut R,
    ) -> Result<()> {
        while count > 0 {
            let slot = self.next_slot_to_complete;
            let part = count.min(self.stream.window - slot);
            requests.check_results(&self.slot_run(self.completed_wrs, slot, part))?;
            self.completed_wrs += part as u64;
            let end = slot + part;
            self.next_slot_to_complete = if end == self.stream.window { 0 } else { end };
            count -= part;
        }
        Ok(())
    }
}

/// Posts for the duration of the stream. Returns the measurement, and the number of WRs posted on
/// each queue pair.
pub(super) fn run_and_count_wrs_per_qp<T: Connected, R: WindowWrSource<T>>(
    qps: &[QueuePair<T>],
    stream: &VerbStream,
    credits: Option<&ReceivedCredits>,
    mut requests: R,
) -> Result<(TimedOperations, u64)> {
    let flows = qps.iter().enumerate();
    let flows = flows.map(|(number, qp)| WindowedQp::new(number, qp, stream, &mut requests));
    let mut flows: Vec<WindowedQp<'_, T>> = flows.collect::<Result<_>>()?;
    let mut meter = OperationMeter::new(stream.duration_ms);
    let mut timer = RunTimer::new(stream.duration_ms);
    let (lists, turn) = (stream.postlists_per_turn(), stream.wrs_per_turn());
    let mut posted = 0u64;
    let mut last = false;
    while !last {
        last = timer.is_over()
            && stream.can_next_turn_be_last(posted)
            && credits.is_none_or(|credits| credits.can_end_at(posted + turn));
        let room = stream.completions_needed_before_turn(posted);
        for flow in &mut flows {
            if let Some(credits) = credits {
                credits.wait_for_arrivals(flow.qp_index, room)?;
            }
            flow.wait_until_completed(room, &mut requests)?;
            if stream.waits_between_windows && room == posted {
                meter.note_total_done_operations(posted * qps.len() as u64);
            }
            for _ in 0..lists {
                flow.post_next_postlist(&mut requests)?;
            }
        }
        posted += turn;
        // Once windows are full, the rate of posting equals the rate of completion. Posting is the
        // smoother measure, because completions of a whole window are found at once.
        if !stream.waits_between_windows && posted >= stream.window as u64 {
            meter.note_total_done_operations(posted * qps.len() as u64);
        }
    }
    let ended_ns = now_ns();
    for flow in &mut flows {
        flow.wait_until_completed(posted, &mut requests)?;
        if let Some(credits) = credits {
            credits.wait_for_arrivals(flow.qp_index, posted)?;
        }
    }
    let ended_ns = if stream.waits_between_windows {
        now_ns()
    } else {
        ended_ns
    };
    Ok((
        meter.operations_since_warm_up(posted * qps.len() as u64, ended_ns),
        posted,
    ))
}
