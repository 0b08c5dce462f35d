//! Slices that come from the rank before and go to the rank after, as many at a time as there is room for.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use verbs::MemoryRegion;

use super::call::CollectiveCall;
use super::element::{DataType, Reduction, reduce_regions};
use crate::comm::{Receiver, Sender};
use crate::error::Error;
use crate::progress::{StepResult, run_to_completion};
use crate::request_pool::RequestHandle;

/// Slices that may be under way: NCCL's `NCCL_STEPS`.
pub(super) const MAX_SLICES_IN_FLIGHT: usize = 8;

/// A rank's connections to its neighbours, and room for slices that are reduced.
#[derive(Debug)]
pub(super) struct RingNeighbours {
    pub(super) sender: Sender,
    pub(super) receiver: Receiver,
    pub(super) reduce_scratch: MemoryRegion,
    /// Bytes of a slice, at most.
    pub(super) max_slice_bytes: usize,
    pub(super) timeout: Duration,
}

/// The destination of a slice.
pub(super) enum SliceDestination {
    /// Into the buffer, once so many slices have been sent: the bytes there may still be on their way.
    BufferAfterSends(Range<usize>, usize),
    /// It is reduced into the buffer.
    ReduceIntoBuffer(Range<usize>),
}

/// The steps of a rank in a collective.
pub(super) struct CollectivePlan<'f> {
    /// All ranks must call this.
    pub(super) call: CollectiveCall,
    /// Slices that are sent are here.
    pub(super) source: &'f MemoryRegion,
    /// Slices that come go here; often the same buffer.
    pub(super) destination: &'f MemoryRegion,
    pub(super) data_type: DataType,
    pub(super) op: Reduction,
    /// Numbers of slices that the rank receives and sends.
    pub(super) slices_to_receive: usize,
    pub(super) slices_to_send: usize,
    pub(super) incoming_slice_destination: &'f dyn Fn(usize) -> SliceDestination,
    /// Returns the bytes of a slice to be sent, and the number of slices that must have been received before.
    pub(super) outgoing_range_and_needed_receives: &'f dyn Fn(usize) -> (Range<usize>, usize),
}

/// The progress of a collective.
#[derive(Default)]
struct CollectiveProgress {
    posted_receives: usize,
    received_slices: usize,
    started_sends: usize,
    completed_sends: usize,
    receive_requests: VecDeque<RequestHandle>,
    send_requests: VecDeque<RequestHandle>,
}

impl RingNeighbours {
    /// Runs a collective to its end.
    pub(super) fn run(&mut self, flow: &CollectivePlan<'_>) -> Result<(), Error> {
        let mut at = CollectiveProgress::default();
        run_to_completion(self.timeout, || {
            if at.received_slices == flow.slices_to_receive
                && at.completed_sends == flow.slices_to_send
            {
                return Ok(StepResult::Done);
            }
            let before = (
                at.posted_receives,
                at.received_slices,
                at.started_sends,
                at.completed_sends,
            );
            self.post_receives(flow, &mut at)?;
            self.take_received_slices(flow, &mut at)?;
            self.send_ready_slices(flow, &mut at)?;
            let moved = before
                != (
                    at.posted_receives,
                    at.received_slices,
                    at.started_sends,
                    at.completed_sends,
                );
            Ok(if moved {
                StepResult::Progress
            } else {
                StepResult::Blocked
            })
        })
    }

    /// Posts receives for slices that there is room for.
    fn post_receives(
        &mut self,
        flow: &CollectivePlan<'_>,
        at: &mut CollectiveProgress,
    ) -> Result<(), Error> {
        while at.posted_receives < flow.slices_to_receive
            && at.posted_receives - at.received_slices < MAX_SLICES_IN_FLIGHT
        {
            let tag = flow.call.tag();
            let request = match (flow.incoming_slice_destination)(at.posted_receives) {
                SliceDestination::BufferAfterSends(_, sent) if at.completed_sends < sent => {
                    return Ok(());
                }
                SliceDestination::BufferAfterSends(range, _) => {
                    self.receiver.irecv(&[(flow.destination, range, tag)])?
                }
                SliceDestination::ReduceIntoBuffer(range) => {
                    let slot = at.posted_receives % MAX_SLICES_IN_FLIGHT * self.max_slice_bytes;
                    let range = slot..slot + range.len();
                    self.receiver.irecv(&[(&self.reduce_scratch, range, tag)])?
                }
            };
            let Some(request) = request else {
                return Ok(());
            };
            at.receive_requests.push_back(request);
            at.posted_receives += 1;
        }
        Ok(())
    }

    /// Takes slices that have come.
    fn take_received_slices(
        &mut self,
        flow: &CollectivePlan<'_>,
        at: &mut CollectiveProgress,
    ) -> Result<(), Error> {
        while let Some(request) = at.receive_requests.front() {
            let Some(sizes) = self.receiver.test(*request)? else {
                return Ok(());
            };
            at.receive_requests.pop_front();
            let (SliceDestination::BufferAfterSends(range, _)
            | SliceDestination::ReduceIntoBuffer(range)) =
                (flow.incoming_slice_destination)(at.received_slices);
            let came = sizes.as_slice().iter().map(|s| *s as usize).sum::<usize>();
            if came != range.len() {
                return Err(Error::Protocol(format!(
                    "a slice has {came} bytes instead of {}: all ranks must pass as many elements",
                    range.len()
                )));
            }
            if let SliceDestination::ReduceIntoBuffer(range) =
                (flow.incoming_slice_destination)(at.received_slices)
            {
                let slot = at.received_slices % MAX_SLICES_IN_FLIGHT * self.max_slice_bytes;
                let into = (flow.destination, range.start);
                reduce_regions(
                    (&self.reduce_scratch, slot),
                    into,
                    came,
                    flow.data_type,
                    flow.op,
                )?;
            }
            at.received_slices += 1;
        }
        Ok(())
    }

    /// Sends slices that are ready, and takes completions of earlier ones.
    fn send_ready_slices(
        &mut self,
        flow: &CollectivePlan<'_>,
        at: &mut CollectiveProgress,
    ) -> Result<(), Error> {
        while at.started_sends < flow.slices_to_send
            && at.send_requests.len() < 2 * MAX_SLICES_IN_FLIGHT
        {
            let (range, needs) = (flow.outgoing_range_and_needed_receives)(at.started_sends);
            if at.received_slices < needs {
                break;
            }
            let sent = self.sender.isend(flow.source, range, flow.call.tag())?;
            let Some(request) = sent else {
                flow.call.check_next_receive(&self.sender)?;
                break;
            };
            at.send_requests.push_back(request);
            at.started_sends += 1;
        }
        while let Some(request) = at.send_requests.front() {
            if self.sender.test(*request)?.is_none() {
                return Ok(());
            }
            at.send_requests.pop_front();
            at.completed_sends += 1;
        }
        Ok(())
    }
}
