//! The interface of a design at the client.

use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

use rpc::RpcError;

use super::error::ClientError;
use super::request::{Answer, ClientStats, WindowSlot};
use crate::record_cache::RecordCache;
use crate::wire::{Op, Status};

/// The operations that a client executes itself, without the server's processor.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct OneSidedOps {
    pub(super) includes_gets: bool,
    pub(super) includes_changes: bool,
}

impl OneSidedOps {
    /// Returns true if the client executes changes itself; if `is_change` is false, GETs.
    #[inline]
    pub(super) fn includes(self, is_change: bool) -> bool {
        if is_change {
            self.includes_changes
        } else {
            self.includes_gets
        }
    }
}

/// The result of a request that a client executes itself.
pub(super) enum StepOutcome<'a> {
    /// The request is complete.
    Answer(Answer<'a>),
    /// The server must be asked: see [`ClientDesign::encode_server_request`].
    AskServer,
}

/// The meaning of the server's answer to [`ClientDesign::encode_server_request`] for the client's request.
pub(super) enum AnswerEffect {
    /// The client sent the request itself to the server, so the answer completes it.
    AnswerIsFinal,
    /// The request is complete with this answer.
    CompleteWithAnswer(Answer<'static>),
    /// The request continues.
    Continue,
}

/// A design at the client. The default methods execute all requests by RPC.
///
/// A request that the client executes itself [begins](Self::begin_one_sided_request), and continues whenever
/// [`poll`](Self::poll) is called. If it cannot be decided without the server, the client asks the server by RPC.
pub(super) trait ClientDesign: Any + Debug + Send {
    /// Returns the operations that the client executes without the server's processor.
    fn one_sided_ops(&self) -> OneSidedOps {
        OneSidedOps::default()
    }

    /// Returns an error for an operation that the design does not support or that is too long.
    fn check_op_is_supported_and_fits(&self, _op: &Op<'_>) -> Result<(), ClientError> {
        Ok(())
    }

    /// Begins a request in a slot of the window. `hash` is the hash of its key.
    fn begin_one_sided_request(&mut self, _pending: &WindowSlot, _slot: u32, _hash: u64) {}

    /// Posts prepared work requests and processes completions. Calls `done` for each request that is complete or needs
    /// the server. Returns the number of completions.
    fn poll(
        &mut self,
        _all: &mut [WindowSlot],
        _stats: &mut ClientStats,
        _done: &mut dyn FnMut(&mut WindowSlot, u32, StepOutcome<'_>),
    ) -> Result<usize, RpcError> {
        Ok(0)
    }

    /// Encodes the request to the server that continues a request of the caller.
    fn encode_server_request(&self, pending: &WindowSlot, _slot: u32, into: &mut Vec<u8>) {
        into.clone_from(&pending.encoded_request);
    }

    /// Processes the server's answer to an [encoded request](Self::encode_server_request).
    fn handle_server_answer(
        &mut self,
        _pending: &WindowSlot,
        _slot: u32,
        _answer: (Status, u64),
    ) -> AnswerEffect {
        AnswerEffect::AnswerIsFinal
    }

    /// Returns true if the slot's request may have changed an item by now.
    fn request_may_have_changed_item(&self, _slot: u32) -> bool {
        false
    }

    /// Returns the number of doorbells of one-sided work requests.
    fn one_sided_doorbells(&self) -> u64 {
        0
    }

    /// Returns the client's cache of record numbers, if it changes records itself.
    fn record_cache(&self) -> Option<&Arc<RecordCache>> {
        None
    }

    /// Replaces the cache of record numbers by one that other clients share.
    fn use_shared_record_cache(&mut self, _record_cache: Arc<RecordCache>) {}
}

/// The HERD design: every request is an RPC.
#[derive(Debug)]
pub(super) struct HerdClientDesign;

impl ClientDesign for HerdClientDesign {}
