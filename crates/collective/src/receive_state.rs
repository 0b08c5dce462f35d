//! The receiver's state, without the verbs: which group an immediate belongs to, and when its bytes are all there.

use std::collections::VecDeque;

use crate::error::Error;
use crate::memory_layout::MAX_RECEIVES_PER_GROUP;
use crate::request_pool::{RequestHandle, RequestPool};

/// The bytes that came for each receive of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupPartSizes {
    sizes: [u32; MAX_RECEIVES_PER_GROUP],
    count: usize,
}

impl GroupPartSizes {
    /// One size a receive, in their order.
    ///
    /// # Panics
    /// When there are more than [`MAX_RECEIVES_PER_GROUP`].
    pub fn new(sizes: &[u32]) -> Self {
        let mut all = [0; MAX_RECEIVES_PER_GROUP];
        all[..sizes.len()].copy_from_slice(sizes);
        Self {
            sizes: all,
            count: sizes.len(),
        }
    }

    /// One size a receive, in their order.
    pub fn as_slice(&self) -> &[u32] {
        &self.sizes[..self.count]
    }
}

#[derive(Debug)]
struct ReceivingState {
    buffer_sizes: GroupPartSizes,
    received_sizes: Option<GroupPartSizes>,
}

/// The meaning of an immediate that has arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImmediateResult {
    /// Other lanes still carry bytes of the group.
    Partial,
    /// The group of one receive is there.
    Complete,
    /// The group of several receives is there; their sizes are in its completion record.
    SizesInCompletionRecord {
        /// The number of the group, from 0.
        group: u64,
        /// Its receives.
        parts: usize,
    },
}

/// Receives of one connection.
#[derive(Debug)]
pub struct ReceiveQueue {
    /// Groups whose immediate each lane has brought: lanes keep the order of groups.
    received_groups_per_lane: Vec<u64>,
    pool: RequestPool<ReceivingState>,
    posted_groups: VecDeque<PostedGroup>,
    /// The number of the first group that waits.
    first_posted_group_number: u64,
}

#[derive(Debug)]
struct PostedGroup {
    request: RequestHandle,
    part_count: usize,
    lanes_left: usize,
    /// The size, as the first lane told it.
    size_from_first_lane: Option<u32>,
}

impl ReceiveQueue {
    /// Creates the state of a receiver with `lanes` queue pairs.
    pub fn new(lanes: usize) -> Self {
        Self {
            received_groups_per_lane: vec![0; lanes],
            pool: RequestPool::new(),
            posted_groups: VecDeque::new(),
            first_posted_group_number: 0,
        }
    }

    /// Posts a group of receives with these buffer sizes. Returns its request and its number, or `None` if no request
    /// is free.
    ///
    /// # Errors
    /// [`Error::InvalidReceiveCount`].
    pub fn post_receive_group(
        &mut self,
        room: &[u32],
    ) -> Result<Option<(RequestHandle, u64)>, Error> {
        let parts = room.len();
        if !(1..=MAX_RECEIVES_PER_GROUP).contains(&parts) {
            return Err(Error::InvalidReceiveCount(parts));
        }
        let room = GroupPartSizes::new(room);
        let Some(request) = self.pool.allocate(ReceivingState {
            buffer_sizes: room,
            received_sizes: None,
        }) else {
            return Ok(None);
        };
        self.posted_groups.push_back(PostedGroup {
            request,
            part_count: parts,
            lanes_left: self.received_groups_per_lane.len(),
            size_from_first_lane: None,
        });
        Ok(Some((
            request,
            self.first_posted_group_number + self.posted_groups.len() as u64 - 1,
        )))
    }

    /// A lane has brought the immediate of its next group.
    ///
    /// # Errors
    /// No group waits for it, lanes contradict each other, or more came than was posted.
    pub fn handle_immediate(&mut self, lane: usize, imm: u32) -> Result<ImmediateResult, Error> {
        let group = self.received_groups_per_lane[lane];
        let at = usize::try_from(group - self.first_posted_group_number).ok();
        let Some(waiting) = at.and_then(|at| self.posted_groups.get_mut(at)) else {
            let what = format!("lane {lane} carried group {group}, which was not posted");
            return Err(Error::Protocol(what));
        };
        self.received_groups_per_lane[lane] += 1;
        waiting.lanes_left -= 1;
        let expected = waiting.size_from_first_lane.get_or_insert(imm);
        if *expected != imm {
            let what = format!("lanes say that group {group} has {expected} and {imm} bytes");
            return Err(Error::Protocol(what));
        }
        if waiting.lanes_left > 0 {
            return Ok(ImmediateResult::Partial);
        }
        let parts = waiting.part_count;
        if parts > 1 {
            return Ok(ImmediateResult::SizesInCompletionRecord { group, parts });
        }
        self.complete_group(group, GroupPartSizes::new(&[imm]))?;
        Ok(ImmediateResult::Complete)
    }

    /// A group is there, and so much came for each receive.
    ///
    /// # Errors
    /// More came than was posted.
    pub fn complete_group(&mut self, group: u64, came: GroupPartSizes) -> Result<(), Error> {
        let at = usize::try_from(group.wrapping_sub(self.first_posted_group_number)).ok();
        let Some(waiting) = at.and_then(|at| self.posted_groups.get(at)) else {
            return Err(Error::Protocol(format!("group {group} does not wait")));
        };
        let state = self.pool.get(waiting.request)?;
        let mut pairs = came.as_slice().iter().zip(state.buffer_sizes.as_slice());
        if pairs.any(|(came, room)| came > room) || came.count != state.buffer_sizes.count {
            let (came, room) = (came.as_slice(), state.buffer_sizes.as_slice());
            let what = format!("group {group} has {came:?} bytes where {room:?} were posted");
            return Err(Error::Protocol(what));
        }
        state.received_sizes = Some(came);
        while self
            .posted_groups
            .front()
            .is_some_and(|w| w.lanes_left == 0)
        {
            self.posted_groups.pop_front();
            self.first_posted_group_number += 1;
        }
        Ok(())
    }

    /// Returns the sizes that came for each receive of a group, and frees the request; `None` while a receive is
    /// incomplete.
    ///
    /// # Errors
    /// [`Error::UnknownRequest`].
    pub fn take_if_complete(
        &mut self,
        request: RequestHandle,
    ) -> Result<Option<GroupPartSizes>, Error> {
        let came = self.pool.get(request)?.received_sizes;
        if came.is_some() {
            self.pool.free(request);
        }
        Ok(came)
    }

    /// Allocates a request for a flush; `None` if no request is free. [`complete_flush`](Self::complete_flush)
    /// completes it.
    pub(crate) fn allocate_flush_request_if_free(&mut self) -> Option<RequestHandle> {
        let state = ReceivingState {
            buffer_sizes: GroupPartSizes::new(&[]),
            received_sizes: None,
        };
        self.pool.allocate(state)
    }

    /// Completes a flush request.
    pub(crate) fn complete_flush(&mut self, request: RequestHandle) -> Result<(), Error> {
        self.pool.get(request)?.received_sizes = Some(GroupPartSizes::new(&[]));
        Ok(())
    }

    /// Returns true if no group waits for bytes.
    pub fn is_idle(&self) -> bool {
        self.posted_groups.is_empty()
    }
}
