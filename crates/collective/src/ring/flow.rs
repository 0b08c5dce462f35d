//! Slices that come from the rank before and go to the rank after, as many at a time as there is room for.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use verbs::MemoryRegion;

use super::element::{DataType, Reduction, reduce};
use crate::comm::{Receiver, Sender};
use crate::error::Error;
use crate::pool::Request;
use crate::progress::{Step, drive};

/// Slices that may be under way: NCCL's `NCCL_STEPS`.
pub(super) const DEPTH: usize = 8;

/// A rank's connections to its neighbours, and room for slices that are reduced.
#[derive(Debug)]
pub(super) struct Ends {
    pub(super) sender: Sender,
    pub(super) receiver: Receiver,
    pub(super) scratch: MemoryRegion,
    /// Bytes of a slice, at most.
    pub(super) slice_bytes: usize,
    pub(super) timeout: Duration,
}

/// Where a slice goes.
pub(super) enum Incoming {
    /// Into the buffer, once so many slices have been sent: the bytes there may still be on their way.
    Into(Range<usize>, usize),
    /// It is reduced into the buffer.
    Reduce(Range<usize>),
}

/// The steps of a rank in a collective.
pub(super) struct Flow<'f> {
    /// Slices that are sent are here.
    pub(super) from: &'f MemoryRegion,
    /// Slices that come go here; often the same buffer.
    pub(super) into: &'f MemoryRegion,
    pub(super) data: DataType,
    pub(super) op: Reduction,
    /// How many slices come, and how many go.
    pub(super) recvs: usize,
    pub(super) sends: usize,
    pub(super) incoming: &'f dyn Fn(usize) -> Incoming,
    /// The bytes of a slice to be sent, and how many slices must have come before.
    pub(super) outgoing: &'f dyn Fn(usize) -> (Range<usize>, usize),
}

/// How far it is.
#[derive(Default)]
struct Progress {
    posted: usize,
    came: usize,
    started: usize,
    sent: usize,
    receives: VecDeque<Request>,
    sending: VecDeque<Request>,
}

impl Ends {
    /// Runs it to its end.
    pub(super) fn run(&mut self, flow: &Flow<'_>) -> Result<(), Error> {
        let mut at = Progress::default();
        drive(self.timeout, || {
            if at.came == flow.recvs && at.sent == flow.sends {
                return Ok(Step::Done);
            }
            let before = (at.posted, at.came, at.started, at.sent);
            self.post(flow, &mut at)?;
            self.take(flow, &mut at)?;
            self.send_on(flow, &mut at)?;
            let moved = before != (at.posted, at.came, at.started, at.sent);
            Ok(if moved { Step::Moved } else { Step::Stuck })
        })
    }

    /// Posts receives for slices that there is room for.
    fn post(&mut self, flow: &Flow<'_>, at: &mut Progress) -> Result<(), Error> {
        while at.posted < flow.recvs && at.posted - at.came < DEPTH {
            let request = match (flow.incoming)(at.posted) {
                Incoming::Into(_, sent) if at.sent < sent => return Ok(()),
                Incoming::Into(range, _) => self.receiver.irecv(&[(flow.into, range, 0)])?,
                Incoming::Reduce(range) => {
                    let slot = at.posted % DEPTH * self.slice_bytes;
                    let range = slot..slot + range.len();
                    self.receiver.irecv(&[(&self.scratch, range, 0)])?
                }
            };
            let Some(request) = request else {
                return Ok(());
            };
            at.receives.push_back(request);
            at.posted += 1;
        }
        Ok(())
    }

    /// Takes slices that have come.
    fn take(&mut self, flow: &Flow<'_>, at: &mut Progress) -> Result<(), Error> {
        while let Some(request) = at.receives.front() {
            let Some(sizes) = self.receiver.test(*request)? else {
                return Ok(());
            };
            at.receives.pop_front();
            let (Incoming::Into(range, _) | Incoming::Reduce(range)) = (flow.incoming)(at.came);
            let came = sizes.as_slice().iter().map(|s| *s as usize).sum::<usize>();
            if came != range.len() {
                return Err(Error::Protocol(format!(
                    "a slice has {came} bytes instead of {}: all ranks must pass as many elements",
                    range.len()
                )));
            }
            if let Incoming::Reduce(range) = (flow.incoming)(at.came) {
                let slot = at.came % DEPTH * self.slice_bytes;
                let into = (flow.into, range.start);
                reduce((&self.scratch, slot), into, came, flow.data, flow.op)?;
            }
            at.came += 1;
        }
        Ok(())
    }

    /// Sends slices that are ready, and takes completions of earlier ones.
    fn send_on(&mut self, flow: &Flow<'_>, at: &mut Progress) -> Result<(), Error> {
        while at.started < flow.sends && at.sending.len() < 2 * DEPTH {
            let (range, needs) = (flow.outgoing)(at.started);
            if at.came < needs {
                break;
            }
            let Some(request) = self.sender.isend(flow.from, range, 0)? else {
                break;
            };
            at.sending.push_back(request);
            at.started += 1;
        }
        while let Some(request) = at.sending.front() {
            if self.sender.test(*request)?.is_none() {
                return Ok(());
            }
            at.sending.pop_front();
            at.sent += 1;
        }
        Ok(())
    }
}
