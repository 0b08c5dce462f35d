//! The receiver's state, without the verbs: which group an immediate belongs to, and when its bytes are all there.

use std::collections::VecDeque;

use crate::error::Error;
use crate::pool::{Pool, Request};
use crate::wire::MAX_PARTS;

/// The bytes that came for each receive of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    sizes: [u32; MAX_PARTS],
    count: usize,
}

impl Sizes {
    /// One size a receive, in their order.
    ///
    /// # Panics
    /// When there are more than [`MAX_PARTS`].
    pub fn new(sizes: &[u32]) -> Self {
        let mut all = [0; MAX_PARTS];
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
struct State {
    room: Sizes,
    came: Option<Sizes>,
}

/// The meaning of an immediate that has arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// Other lanes still carry bytes of the group.
    Partial,
    /// The group of one receive is there.
    Complete,
    /// The group of several receives is there; their sizes are in its completion record.
    Record {
        /// The number of the group, from 0.
        group: u64,
        /// Its receives.
        parts: usize,
    },
}

/// Receives of one connection.
#[derive(Debug)]
pub struct Receiving {
    /// Groups whose immediate each lane has brought: lanes keep the order of groups.
    came: Vec<u64>,
    pool: Pool<State>,
    waiting: VecDeque<Waiting>,
    /// The number of the first group that waits.
    first_waiting: u64,
}

#[derive(Debug)]
struct Waiting {
    request: Request,
    parts: usize,
    lanes_left: usize,
    /// The size, as the first lane told it.
    size: Option<u32>,
}

impl Receiving {
    /// A receiver over so many queue pairs.
    pub fn new(lanes: usize) -> Self {
        Self {
            came: vec![0; lanes],
            pool: Pool::new(),
            waiting: VecDeque::new(),
            first_waiting: 0,
        }
    }

    /// Posts a group of receives with so much room each: its request and its number. Nothing when there is no room for
    /// another request.
    ///
    /// # Errors
    /// [`Error::Parts`].
    pub fn post(&mut self, room: &[u32]) -> Result<Option<(Request, u64)>, Error> {
        let parts = room.len();
        if !(1..=MAX_PARTS).contains(&parts) {
            return Err(Error::Parts(parts));
        }
        let room = Sizes::new(room);
        let Some(request) = self.pool.take(State { room, came: None }) else {
            return Ok(None);
        };
        self.waiting.push_back(Waiting {
            request,
            parts,
            lanes_left: self.came.len(),
            size: None,
        });
        Ok(Some((
            request,
            self.first_waiting + self.waiting.len() as u64 - 1,
        )))
    }

    /// A lane has brought the immediate of its next group.
    ///
    /// # Errors
    /// No group waits for it, lanes contradict each other, or more came than was posted.
    pub fn arrived(&mut self, lane: usize, imm: u32) -> Result<Arrival, Error> {
        let group = self.came[lane];
        let at = usize::try_from(group - self.first_waiting).ok();
        let Some(waiting) = at.and_then(|at| self.waiting.get_mut(at)) else {
            let what = format!("lane {lane} carried group {group}, which was not posted");
            return Err(Error::Protocol(what));
        };
        self.came[lane] += 1;
        waiting.lanes_left -= 1;
        let expected = waiting.size.get_or_insert(imm);
        if *expected != imm {
            let what = format!("lanes say that group {group} has {expected} and {imm} bytes");
            return Err(Error::Protocol(what));
        }
        if waiting.lanes_left > 0 {
            return Ok(Arrival::Partial);
        }
        let parts = waiting.parts;
        if parts > 1 {
            return Ok(Arrival::Record { group, parts });
        }
        self.complete(group, Sizes::new(&[imm]))?;
        Ok(Arrival::Complete)
    }

    /// A group is there, and so much came for each receive.
    ///
    /// # Errors
    /// More came than was posted.
    pub fn complete(&mut self, group: u64, came: Sizes) -> Result<(), Error> {
        let at = usize::try_from(group.wrapping_sub(self.first_waiting)).ok();
        let Some(waiting) = at.and_then(|at| self.waiting.get(at)) else {
            return Err(Error::Protocol(format!("group {group} does not wait")));
        };
        let state = self.pool.get(waiting.request)?;
        let mut pairs = came.as_slice().iter().zip(state.room.as_slice());
        if pairs.any(|(came, room)| came > room) || came.count != state.room.count {
            let (came, room) = (came.as_slice(), state.room.as_slice());
            let what = format!("group {group} has {came:?} bytes where {room:?} were posted");
            return Err(Error::Protocol(what));
        }
        state.came = Some(came);
        while self.waiting.front().is_some_and(|w| w.lanes_left == 0) {
            self.waiting.pop_front();
            self.first_waiting += 1;
        }
        Ok(())
    }

    /// The sizes of a group that is there, which is then forgotten.
    ///
    /// # Errors
    /// [`Error::UnknownRequest`].
    pub fn test(&mut self, request: Request) -> Result<Option<Sizes>, Error> {
        let came = self.pool.get(request)?.came;
        if came.is_some() {
            self.pool.put_back(request);
        }
        Ok(came)
    }

    /// Takes a request that completes by [`done`](Self::done): a flush.
    pub(crate) fn take(&mut self) -> Option<Request> {
        let state = State {
            room: Sizes::new(&[]),
            came: None,
        };
        self.pool.take(state)
    }

    /// Such a request is done.
    pub(crate) fn done(&mut self, request: Request) -> Result<(), Error> {
        self.pool.get(request)?.came = Some(Sizes::new(&[]));
        Ok(())
    }

    /// Whether no group waits for bytes.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty()
    }
}
