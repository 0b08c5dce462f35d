//! The sender's state, without the verbs: which send goes to which receive, and when it is done.

use std::collections::VecDeque;

use crate::error::Error;
use crate::memory_layout::{ClearToSend, MAX_RECEIVES_PER_GROUP};
use crate::request_pool::{RequestHandle, RequestPool};

/// A send that has found its receive.
#[derive(Debug, Clone, Copy)]
pub struct MatchedSend<P> {
    /// The memory of its bytes.
    pub payload: P,
    /// Number of its bytes.
    pub payload_len: u32,
    /// The receive to which its bytes go.
    pub posted_receive: ClearToSend,
    request: RequestHandle,
}

/// A group whose sends are all there: to be written.
#[derive(Debug)]
pub struct MatchedGroup<P> {
    /// Its number, from 0.
    pub number: u64,
    /// Its sends, in the order of the receives.
    pub parts: Vec<MatchedSend<P>>,
}

/// The state of a send.
#[derive(Debug)]
pub enum SendMatch<P> {
    /// No receive of the group has the tag, or there is no room for another request: try again.
    TryAgain,
    /// The send waits for the others of its group.
    GroupIncomplete(RequestHandle),
    /// It was the last of its group.
    GroupComplete(RequestHandle, MatchedGroup<P>),
}

#[derive(Debug)]
struct SendingState {
    payload_len: u32,
    is_delivered: bool,
}

/// Sends of one connection. `P` says where a payload is.
#[derive(Debug)]
pub struct SendQueue<P> {
    lane_count: usize,
    /// The group that sends are matched with next.
    next_group_number: u64,
    cts_entries: Vec<ClearToSend>,
    matched_sends_of_group: Vec<Option<MatchedSend<P>>>,
    pool: RequestPool<SendingState>,
    /// Groups that were written and are not acknowledged on all lanes.
    in_flight_groups: VecDeque<InFlightGroup>,
    /// The number of the first of them.
    first_in_flight_group_number: u64,
}

#[derive(Debug)]
struct InFlightGroup {
    requests: Vec<RequestHandle>,
    lanes_left: usize,
}

impl<P: Copy> SendQueue<P> {
    /// A sender over so many queue pairs.
    pub fn new(lanes: usize) -> Self {
        Self {
            lane_count: lanes,
            next_group_number: 0,
            cts_entries: Vec::with_capacity(MAX_RECEIVES_PER_GROUP),
            matched_sends_of_group: Vec::with_capacity(MAX_RECEIVES_PER_GROUP),
            pool: RequestPool::new(),
            in_flight_groups: VecDeque::new(),
            first_in_flight_group_number: 0,
        }
    }

    /// The group whose entries are needed, unless they are there.
    pub fn awaited_cts_group(&self) -> Option<u64> {
        self.cts_entries
            .is_empty()
            .then_some(self.next_group_number)
    }

    /// Returns the tag of the next receive, if the receiver has posted it alone and not in a group.
    pub fn next_receive_tag(&self) -> Option<u32> {
        match self.cts_entries[..] {
            [receive] => Some(receive.tag),
            _ => None,
        }
    }

    /// The entries of the group that was wanted have come, in the order of the receives.
    ///
    /// # Errors
    /// They contradict each other.
    pub fn add_cts_entries(&mut self, entries: &[ClearToSend]) -> Result<(), Error> {
        let count = entries.len();
        if !(1..=MAX_RECEIVES_PER_GROUP).contains(&count)
            || entries
                .iter()
                .any(|e| e.receives_in_group as usize != count)
        {
            return Err(Error::Protocol(format!(
                "group {} has {count} entries that speak of {:?}",
                self.next_group_number,
                entries
                    .iter()
                    .map(|e| e.receives_in_group)
                    .collect::<Vec<_>>()
            )));
        }
        self.cts_entries.extend_from_slice(entries);
        self.matched_sends_of_group.resize_with(count, || None);
        Ok(())
    }

    /// Matches a send with the first receive of the group that has its tag and was not matched yet.
    ///
    /// # Errors
    /// [`Error::MessageTooLong`].
    pub fn match_send(&mut self, tag: u32, len: u32, payload: P) -> Result<SendMatch<P>, Error> {
        let mut open = self.cts_entries.iter().zip(&self.matched_sends_of_group);
        let Some(at) = open.position(|(to, claimed)| claimed.is_none() && to.tag == tag) else {
            return Ok(SendMatch::TryAgain);
        };
        let to = self.cts_entries[at];
        if len > to.buffer_bytes {
            let room = to.buffer_bytes;
            return Err(Error::MessageTooLong { len, room, tag });
        }
        let Some(request) = self.pool.allocate(SendingState {
            payload_len: len,
            is_delivered: false,
        }) else {
            return Ok(SendMatch::TryAgain);
        };
        self.matched_sends_of_group[at] = Some(MatchedSend {
            payload,
            payload_len: len,
            posted_receive: to,
            request,
        });
        if self.matched_sends_of_group.iter().any(Option::is_none) {
            return Ok(SendMatch::GroupIncomplete(request));
        }
        let parts: Vec<MatchedSend<P>> = self.matched_sends_of_group.drain(..).flatten().collect();
        self.cts_entries.clear();
        self.in_flight_groups.push_back(InFlightGroup {
            requests: parts.iter().map(|p| p.request).collect(),
            lanes_left: self.lane_count,
        });
        let number = self.next_group_number;
        self.next_group_number += 1;
        Ok(SendMatch::GroupComplete(
            request,
            MatchedGroup { number, parts },
        ))
    }

    /// Records that a lane has brought its part of a group to the receiver.
    ///
    /// # Errors
    /// No such group is under way.
    pub fn complete_group_on_lane(&mut self, group: u64) -> Result<(), Error> {
        let at = group.checked_sub(self.first_in_flight_group_number);
        let at = at.and_then(|at| usize::try_from(at).ok());
        let flying = at.and_then(|at| self.in_flight_groups.get_mut(at));
        let Some(flying) = flying.filter(|f| f.lanes_left > 0) else {
            return Err(Error::Protocol(format!("group {group} is not under way")));
        };
        flying.lanes_left -= 1;
        if flying.lanes_left == 0 {
            for request in &flying.requests {
                self.pool.get(*request)?.is_delivered = true;
            }
        }
        while self
            .in_flight_groups
            .front()
            .is_some_and(|f| f.lanes_left == 0)
        {
            self.in_flight_groups.pop_front();
            self.first_in_flight_group_number += 1;
        }
        Ok(())
    }

    /// The bytes of a send that is done, which is then forgotten.
    ///
    /// # Errors
    /// [`Error::UnknownRequest`].
    pub fn take_if_delivered(&mut self, request: RequestHandle) -> Result<Option<u32>, Error> {
        let SendingState {
            payload_len: len,
            is_delivered: done,
        } = *self.pool.get(request)?;
        if done {
            self.pool.free(request);
        }
        Ok(done.then_some(len))
    }

    /// Returns true if no send is in progress and all sends were tested to their end.
    pub fn is_idle(&self) -> bool {
        self.pool.is_idle()
    }

    /// Returns true if a request is free.
    pub fn has_request_room(&self) -> bool {
        self.pool.free_slot_count() > 0
    }
}
