//! Windows of one-sided WRs on all queue pairs of a thread. WRs that complete are replaced by new
//! ones.

use std::ops::Range;

use anyhow::Result;
use verbs::{Connected, Postlist, QueuePair, WcBuffer};

use super::credit::Credits;
use super::parameters::Stream;
use super::signals::Signals;
use super::timer::{Meter, RunTimer, Timed};
use crate::clock::now_ns;
use crate::nic::reap;
use crate::poll_timeout::{PollTimeout, TIMEOUT_NS};

/// Consecutive WRs of one queue pair, in consecutive slots of its window.
pub(super) struct Run {
    pub(super) queue_pair: usize,
    /// Number of the first WR, among those of its queue pair.
    pub(super) number: u64,
    /// Slots of the WRs, among those of all queue pairs.
    pub(super) places: Range<usize>,
}

/// The WRs that are posted, and the check of their results on completion.
pub(super) trait Requests<T: Connected> {
    /// True if a slot always holds the same WR, so that the WRs of a window are built once.
    const SAME: bool = false;

    /// Adds the WRs of a run to a postlist.
    ///
    /// # Errors
    /// When a slot is not in the memory.
    fn add(&mut self, list: &mut Postlist<T>, run: &Run) -> Result<()>;

    /// Checks the data of completed WRs.
    ///
    /// # Errors
    /// When the data are wrong.
    fn check(&mut self, _: &Run) -> Result<()> {
        Ok(())
    }
}

/// A queue pair with its window of WRs.
struct Flow<'q, T: Connected> {
    qp: &'q QueuePair<T>,
    stream: &'q Stream,
    list: Postlist<T>,
    signals: Signals,
    /// Index of the queue pair.
    number: usize,
    /// Number of the next WR to post, and its slot of the window.
    next: u64,
    slot: usize,
    /// Number of completed WRs, and the slot of the next WR to complete.
    completed: u64,
    completed_slot: usize,
}

impl<'q, T: Connected> Flow<'q, T> {
    fn new<R: Requests<T>>(
        number: usize,
        qp: &'q QueuePair<T>,
        stream: &'q Stream,
        requests: &mut R,
    ) -> Result<Flow<'q, T>> {
        let (batch, every) = (stream.batch, stream.signal_every);
        let mut flow = Flow {
            qp,
            stream,
            list: qp.postlist(if R::SAME { stream.window } else { batch }),
            signals: Signals::new(batch, every),
            number,
            next: 0,
            slot: 0,
            completed: 0,
            completed_slot: 0,
        };
        if R::SAME {
            let window = flow.run(0, 0, stream.window);
            requests.add(&mut flow.list, &window)?;
            Signals::new(stream.window, every).mark(&mut flow.list);
        }
        Ok(flow)
    }

    #[inline]
    fn run(&self, number: u64, slot: usize, count: usize) -> Run {
        let first = self.number * self.stream.window + slot;
        Run {
            queue_pair: self.number,
            number,
            places: first..first + count,
        }
    }

    /// Posts the next postlist.
    #[inline]
    fn post<R: Requests<T>>(&mut self, requests: &mut R) -> Result<()> {
        let (slot, end) = (self.slot, self.slot + self.stream.batch);
        if R::SAME {
            self.qp.post_send_range(&mut self.list, slot..end)?;
        } else {
            self.list.clear();
            let run = self.run(self.next, slot, self.stream.batch);
            requests.add(&mut self.list, &run)?;
            self.signals.mark(&mut self.list);
            self.qp.post_send(&mut self.list)?;
        }
        self.next += self.stream.batch as u64;
        self.slot = if end == self.stream.window { 0 } else { end };
        Ok(())
    }

    /// Waits until `until` WRs have completed.
    #[inline]
    fn wait<R: Requests<T>>(&mut self, until: u64, requests: &mut R) -> Result<()> {
        if self.completed >= until {
            return Ok(());
        }
        self.wait_longer(until, requests)
    }

    fn wait_longer<R: Requests<T>>(&mut self, until: u64, requests: &mut R) -> Result<()> {
        let mut wcs = WcBuffer::<32>::new();
        let mut timeout = PollTimeout::new(TIMEOUT_NS);
        while self.completed < until {
            let came = reap(self.qp.send_cq(), &mut wcs, |_| Ok(()))?;
            if came == 0 {
                timeout.check("completions")?;
                continue;
            }
            timeout.reset();
            self.complete(came * self.stream.signal_every, requests)?;
        }
        Ok(())
    }

    /// Checks `count` completed WRs, wrapping around at the end of the window.
    fn complete<R: Requests<T>>(&mut self, mut count: usize, requests: &mut R) -> Result<()> {
        while count > 0 {
            let slot = self.completed_slot;
            let part = count.min(self.stream.window - slot);
            requests.check(&self.run(self.completed, slot, part))?;
            self.completed += part as u64;
            let end = slot + part;
            self.completed_slot = if end == self.stream.window { 0 } else { end };
            count -= part;
        }
        Ok(())
    }
}

/// Posts for the duration of the stream. Returns the measurement, and the number of WRs posted on
/// each queue pair.
pub(super) fn run<T: Connected, R: Requests<T>>(
    qps: &[QueuePair<T>],
    stream: &Stream,
    credits: Option<&Credits>,
    mut requests: R,
) -> Result<(Timed, u64)> {
    let flows = qps.iter().enumerate();
    let flows = flows.map(|(number, qp)| Flow::new(number, qp, stream, &mut requests));
    let mut flows: Vec<Flow<'_, T>> = flows.collect::<Result<_>>()?;
    let mut meter = Meter::new(stream.duration_ms);
    let mut timer = RunTimer::new(stream.duration_ms);
    let (lists, turn) = (stream.lists_of_turn(), stream.turn());
    let mut posted = 0u64;
    let mut last = false;
    while !last {
        last = timer.is_over()
            && stream.can_end_after(posted)
            && credits.is_none_or(|credits| credits.can_end_at(posted + turn));
        let room = stream.done_before_next(posted);
        for flow in &mut flows {
            if let Some(credits) = credits {
                credits.wait(flow.number, room)?;
            }
            flow.wait(room, &mut requests)?;
            if stream.burst && room == posted {
                meter.tick(posted * qps.len() as u64);
            }
            for _ in 0..lists {
                flow.post(&mut requests)?;
            }
        }
        posted += turn;
        // Once windows are full, the rate of posting equals the rate of completion. Posting is the
        // smoother measure, because completions of a whole window are found at once.
        if !stream.burst && posted >= stream.window as u64 {
            meter.tick(posted * qps.len() as u64);
        }
    }
    let ended_ns = now_ns();
    for flow in &mut flows {
        flow.wait(posted, &mut requests)?;
        if let Some(credits) = credits {
            credits.wait(flow.number, posted)?;
        }
    }
    let ended_ns = if stream.burst { now_ns() } else { ended_ns };
    Ok((meter.finish(posted * qps.len() as u64, ended_ns), posted))
}
