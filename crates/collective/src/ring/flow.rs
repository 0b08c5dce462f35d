//! Slices that come from the rank before and go to the rank after, as many at a time as there is room for.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use verbs::MemoryRegion;

use super::element::{DataType, Reduction, reduce};
use crate::comm::{Receiver, Sender};
use crate::error::Error;
use crate::progress::{StepResult, run_to_completion};
use crate::request_pool::Request;

/// Slices that may be under way: NCCL's `NCCL_STEPS`.
pub(super) const DEPTH: usize = 8;

/// A rank's connections to its neighbours, and room for slices that are reduced.
#[derive(Debug)]
pub(super) struct RingNeighbours {
    pub(super) sender: Sender,
    pub(super) receiver: Receiver,
    pub(super) scratch: MemoryRegion,
    /// Bytes of a slice, at most.
    pub(super) slice_bytes: usize,
    pub(super) timeout: Duration,
}

/// Where a slice goes.
pub(super) enum SliceDestination {
    /// Into the buffer, once so many slices have been sent: the bytes there may still be on their way.
    Buffer(Range<usize>, usize),
    /// It is reduced into the buffer.
    Reduce(Range<usize>),
}

/// The steps of a rank in a collective.
pub(super) struct StepPlan<'f> {
    /// Slices that are sent are here.
    pub(super) from: &'f MemoryRegion,
    /// Slices that come go here; often the same buffer.
    pub(super) into: &'f MemoryRegion,
    pub(super) data: DataType,
    pub(super) op: Reduction,
    /// How many slices come, and how many go.
    pub(super) recvs: usize,
    pub(super) sends: usize,
    pub(super) incoming: &'f dyn Fn(usize) -> SliceDestination,
    /// The bytes of a slice to be sent, and how many slices must have come before.
    pub(super) outgoing: &'f dyn Fn(usize) -> (Range<usize>, usize),
}

/// How far it is.
#[derive(Default)]
struct StageProgress {
    posted: usize,
    received: usize,
    started: usize,
    sent: usize,
    receives: VecDeque<Request>,
    sending: VecDeque<Request>,
}

impl RingNeighbours {
    /// Runs it to its end.
    pub(super) fn run(&mut self, flow: &StepPlan<'_>) -> Result<(), Error> {
        let mut at = StageProgress::default();
        run_to_completion(self.timeout, || {
            if at.received == flow.recvs && at.sent == flow.sends {
                return Ok(StepResult::Done);
            }
            let before = (at.posted, at.received, at.started, at.sent);
            self.post(flow, &mut at)?;
            self.take_received(flow, &mut at)?;
            self.send_ready(flow, &mut at)?;
            let moved = before != (at.posted, at.received, at.started, at.sent);
            Ok(if moved {
                StepResult::Progress
            } else {
                StepResult::Blocked
            })
        })
    }

    /// Posts receives for slices that there is room for.
    fn post(&mut self, flow: &StepPlan<'_>, at: &mut StageProgress) -> Result<(), Error> {
        while at.posted < flow.recvs && at.posted - at.received < DEPTH {
            let request = match (flow.incoming)(at.posted) {
                SliceDestination::Buffer(_, sent) if at.sent < sent => return Ok(()),
                SliceDestination::Buffer(range, _) => {
                    self.receiver.irecv(&[(flow.into, range, 0)])?
                }
                SliceDestination::Reduce(range) => {
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
    fn take_received(&mut self, flow: &StepPlan<'_>, at: &mut StageProgress) -> Result<(), Error> {
        while let Some(request) = at.receives.front() {
            let Some(sizes) = self.receiver.test(*request)? else {
                return Ok(());
            };
            at.receives.pop_front();
            let (SliceDestination::Buffer(range, _) | SliceDestination::Reduce(range)) =
                (flow.incoming)(at.received);
            let came = sizes.as_slice().iter().map(|s| *s as usize).sum::<usize>();
            if came != range.len() {
                return Err(Error::Protocol(format!(
                    "a slice has {came} bytes instead of {}: all ranks must pass as many elements",
                    range.len()
                )));
            }
            if let SliceDestination::Reduce(range) = (flow.incoming)(at.received) {
                let slot = at.received % DEPTH * self.slice_bytes;
                let into = (flow.into, range.start);
                reduce((&self.scratch, slot), into, came, flow.data, flow.op)?;
            }
            at.received += 1;
        }
        Ok(())
    }

    /// Sends slices that are ready, and takes completions of earlier ones.
    fn send_ready(&mut self, flow: &StepPlan<'_>, at: &mut StageProgress) -> Result<(), Error> {
        while at.started < flow.sends && at.sending.len() < 2 * DEPTH {
            let (range, needs) = (flow.outgoing)(at.started);
            if at.received < needs {
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
