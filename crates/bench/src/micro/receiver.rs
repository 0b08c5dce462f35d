//! The end that receives SENDs, checks each one and reports its progress.

use std::marker::PhantomData;

use anyhow::Result;
use verbs::{Access, HeaderOnly, MemoryRegion, Postlist, RecvList, WcBuffer, WorkCompletion};

use super::form::{Form, ImmOnly, low};
use super::parameters::Stream;
use super::receiver_result::{LOST_NS, ReceiverResult, chunk};
use super::timer::Meter;
use super::transport::{SendQp, Sends};
use crate::nic::{Nic, reap};
use crate::poll_timeout::{PollTimeout, TIMEOUT_NS};

/// Send WRs for reports.
pub(super) const REPORT_WRS: usize = 64;

/// One report in this many is signaled.
const REPORTS_SIGNALED: usize = 8;

/// Receives on all queue pairs until each has its last message, or until messages stop arriving.
pub(super) fn receive<T: Sends, F: Form>(
    stream: &Stream,
    qps: &[SendQp<T>],
    places: Vec<Places>,
) -> Result<ReceiverResult> {
    let receivers = qps.iter().zip(places);
    let receivers = receivers.map(|(qp, places)| Receiver::<T, F>::new(qp, stream, places));
    let mut receivers: Vec<_> = receivers.collect();
    let mut wcs = WcBuffer::<32>::new();
    let mut meter = Meter::new(stream.duration_ms);
    let mut timeout = PollTimeout::new(if T::LOSES { 4 * LOST_NS } else { TIMEOUT_NS });
    let mut received = 0u64;
    let mut quiet = false;
    while !quiet && receivers.iter().any(|receiver| !receiver.ended) {
        let mut taken = 0;
        for receiver in receivers.iter_mut().filter(|receiver| !receiver.ended) {
            let from = receiver.from;
            let came = reap(from.qp.recv_cq(), &mut wcs, |wc| receiver.take(&wc))?;
            if came > 0 {
                taken += came;
                received += came as u64;
                if receiver.repost_recvs(came, &mut wcs)? {
                    meter.tick(received);
                }
            }
        }
        if taken > 0 {
            timeout.reset();
        } else {
            quiet = timeout.is_over();
        }
    }
    let timed = meter.finish(received, timeout.quiet_since_ns());
    Ok(ReceiverResult {
        received,
        ops: timed.ops,
        elapsed_ns: timed.elapsed_ns,
        wrong: receivers.into_iter().find_map(|receiver| receiver.wrong),
    })
}

/// Buffers for a window of messages, each with a RECV. The RECVs are grouped into lists of a chunk.
pub(super) struct Places {
    memory: MemoryRegion,
    lists: Vec<RecvList>,
}

impl Places {
    /// Posts all RECVs of a queue pair.
    pub(super) fn post<T: Sends>(nic: &Nic, stream: &Stream, qp: &T::Prepared) -> Result<Places> {
        let room = (T::BEFORE + stream.payload_bytes).max(8);
        // Header-only messages share one buffer, because their GRH is not read.
        let stride = if stream.payload_bytes == 0 {
            0
        } else {
            room.next_multiple_of(8)
        };
        let bytes = (stride * stream.window).max(room);
        let memory = nic.alloc(bytes, Access::LOCAL_WRITE, stream.pages)?;
        let chunk = chunk(stream);
        let mut lists = Vec::new();
        for first in (0..stream.window).step_by(chunk) {
            let mut recvs = T::recv_list(qp, chunk);
            for slot in first..first + chunk {
                let at = slot * stride;
                recvs.recv(memory.slice(at..at + room)?, (at + T::BEFORE) as u64);
            }
            T::post_recv(qp, &mut recvs)?;
            lists.push(recvs);
        }
        Ok(Places { memory, lists })
    }
}

pub(super) struct Receiver<'q, T: Sends, F: Form> {
    pub(super) from: &'q SendQp<T>,
    payload_bytes: usize,
    /// Length that a completion reports for a message.
    byte_len: u32,
    chunk: usize,
    places: Places,
    /// Messages whose RECVs are not posted again yet, and the index of the next RECV list to post
    /// again.
    used: usize,
    next: usize,
    report: Postlist<T>,
    reported: usize,
    signals: usize,
    /// Number of the next expected message.
    pub(super) due: u64,
    ended: bool,
    pub(super) wrong: Option<String>,
    form: PhantomData<F>,
}

impl<'q, T: Sends, F: Form> Receiver<'q, T, F> {
    pub(super) fn new(from: &'q SendQp<T>, stream: &Stream, places: Places) -> Receiver<'q, T, F> {
        let byte_len = u32::try_from(T::BEFORE + stream.payload_bytes);
        Receiver {
            from,
            payload_bytes: stream.payload_bytes,
            byte_len: byte_len.unwrap_or(u32::MAX),
            chunk: chunk(stream),
            places,
            used: 0,
            next: 0,
            report: from.qp.postlist(1),
            reported: 0,
            signals: 0,
            due: 0,
            ended: false,
            wrong: None,
            form: PhantomData,
        }
    }

    /// Checks a message. Nearly every message is the expected one, which one comparison confirms.
    #[inline]
    pub(super) fn take(&mut self, wc: &WorkCompletion<'_>) -> Result<()> {
        let stamps = F::received(&self.places.memory, wc, self.payload_bytes)?;
        let is_due = stamps == [F::stamp(self.due, false); 2];
        if is_due & (wc.byte_len() == self.byte_len) {
            self.due += 1;
        } else {
            self.take_other(stamps, wc.byte_len());
        }
        Ok(())
    }

    /// Checks the last message, a message after lost ones, or a wrong message.
    #[cold]
    fn take_other(&mut self, [stamp, behind]: [u64; 2], byte_len: u32) {
        let (due, mut wrong) = (self.due, |what: String| {
            self.wrong.get_or_insert(what);
        });
        if behind != stamp {
            wrong(format!("{behind:#x} at the end of message {stamp:#x}"));
        }
        let number = F::nearest(stamp & !F::LAST, due);
        if number < due || (number > due && !T::LOSES) {
            wrong(format!("number {number} where {due} was due"));
        }
        if byte_len != self.byte_len {
            wrong(format!("a message of {byte_len} bytes"));
        }
        self.due = number + 1;
        self.ended |= stamp & F::LAST != 0;
    }

    /// Counts `came` messages, posts RECVs again in whole chunks, and reports each chunk. Returns
    /// true if a chunk was complete.
    #[inline]
    fn repost_recvs(&mut self, came: usize, wcs: &mut WcBuffer<32>) -> Result<bool> {
        self.used += came;
        let whole = self.used >= self.chunk;
        while self.used >= self.chunk {
            self.used -= self.chunk;
            self.from.qp.post_recv(&mut self.places.lists[self.next])?;
            self.next = (self.next + 1) % self.places.lists.len();
            // Exclude messages whose RECVs are not posted again yet.
            self.report(self.due - self.used as u64, wcs)?;
        }
        Ok(whole)
    }

    /// Posts all RECVs of the window again, without a report.
    pub(super) fn post_window_again(&mut self) -> Result<()> {
        for list in &mut self.places.lists {
            self.from.qp.post_recv(list)?;
        }
        Ok(())
    }

    /// Reports the progress to the sender: RECVs are posted for a window of messages from `credit`
    /// on.
    fn report(&mut self, credit: u64, wcs: &mut WcBuffer<32>) -> Result<()> {
        self.reported += 1;
        let signaled = self.reported.is_multiple_of(REPORTS_SIGNALED);
        self.report.clear();
        let imm = low(ImmOnly::stamp(credit, false));
        let wr = T::add(&mut self.report, HeaderOnly, Some(imm), &self.from.to);
        if signaled {
            wr.signaled();
            self.signals += 1;
        }
        self.from.qp.post_send(&mut self.report)?;
        let mut timeout = PollTimeout::new(TIMEOUT_NS);
        while self.signals >= REPORT_WRS / REPORTS_SIGNALED / 2 {
            let done = reap(self.from.qp.send_cq(), wcs, |_| Ok(()))?;
            self.signals -= done;
            if done == 0 {
                timeout.check("completions of reports")?;
            }
        }
        Ok(())
    }
}
