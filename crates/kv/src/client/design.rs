//! The interface of a design at a client.

use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

use rpc::RpcError;

use super::error::ClientError;
use super::request::{Answer, ClientStats, Pending};
use crate::locations::Locations;
use crate::wire::{Op, Status};

/// What a client carries out by itself, without the server's processor.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ByItself {
    pub(super) gets: bool,
    pub(super) changes: bool,
}

impl ByItself {
    /// Whether this client carries out such an operation.
    #[inline]
    pub(super) fn has(self, is_change: bool) -> bool {
        if is_change { self.changes } else { self.gets }
    }
}

/// What came of a request that a client carries out by itself.
pub(super) enum Done<'a> {
    /// It is over.
    Answer(Answer<'a>),
    /// The server must be asked: [`ClientDesign::question`].
    Ask,
}

/// What the server's answer to a question means.
pub(super) enum Answered {
    /// The question was the request itself.
    Request,
    /// The request is over.
    Over(Answer<'static>),
    /// The request goes on.
    GoesOn,
}

/// How a client carries out requests: all by RPC, unless the design says otherwise.
///
/// A request that the client carries out by itself [begins](Self::begin), and goes on whenever [`poll`](Self::poll) is
/// called. What cannot be decided without the server is asked of it by RPC.
pub(super) trait ClientDesign: Any + Debug + Send {
    /// What it carries out without the server's processor.
    fn by_itself(&self) -> ByItself {
        ByItself::default()
    }

    /// Refuses an operation that the design does not promise, or has no room for.
    fn check(&self, _op: &Op<'_>) -> Result<(), ClientError> {
        Ok(())
    }

    /// Begins a request in a slot of the window; its key has this hash.
    fn begin(&mut self, _pending: &Pending, _slot: u32, _hash: u64) {}

    /// Posts what is prepared and goes on where something has come: calls `done` for each request that is over, or about
    /// which the server must be asked. Returns how many completions came.
    fn poll(
        &mut self,
        _all: &mut [Pending],
        _stats: &mut ClientStats,
        _done: &mut dyn FnMut(&mut Pending, u32, Done<'_>),
    ) -> Result<usize, RpcError> {
        Ok(0)
    }

    /// What to ask the server about a request.
    fn question(&self, pending: &Pending, _slot: u32, into: &mut Vec<u8>) {
        into.clone_from(&pending.bytes);
    }

    /// The server has answered a question.
    fn answered(&mut self, _pending: &Pending, _slot: u32, _said: (Status, u64)) -> Answered {
        Answered::Request
    }

    /// Whether what a slot does may have changed an item by now.
    fn may_have_changed(&self, _slot: u32) -> bool {
        false
    }

    /// Doorbells that it took.
    fn doorbells(&self) -> u64 {
        0
    }

    /// What this client knows about where keys are, where it changes records itself.
    fn locations(&self) -> Option<&Arc<Locations>> {
        None
    }

    /// Uses what others know about where keys are, and tells them.
    fn share_locations(&mut self, _locations: Arc<Locations>) {}
}

/// HERD: every request is an RPC.
#[derive(Debug)]
pub(super) struct Herd;

impl ClientDesign for Herd {}
