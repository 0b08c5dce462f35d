//! Completion queues that a thread polls in turn.

#![allow(unsafe_code)]

use std::ops::Range;

use crate::cq::CompletionQueue;
use crate::simulated;

/// The completion queues that a thread polls in turn, such as those of a client's sessions.
///
/// On a simulated NIC most polls of such a thread find nothing. They take virtual time, and through this type they take
/// little time of the host. Other NICs must be asked, so there the type does nothing.
#[derive(Debug, Default)]
pub struct PolledQueues {
    /// The handle of each queue; empty unless all NICs are simulated.
    simulated_cq_handles: Box<[u32]>,
}

impl PolledQueues {
    /// Takes the queues in the order in which the thread polls them. The value must not be used after a queue has been
    /// destroyed: its handle may then be that of another queue.
    pub fn new<'q>(queues: impl IntoIterator<Item = &'q CompletionQueue>) -> Self {
        // SAFETY: a queue in use has not been destroyed.
        let handle = |queue: &CompletionQueue| unsafe { (*queue.raw()).handle };
        let handles = queues
            .into_iter()
            .map(|queue| queue.is_simulated().then(|| handle(queue)));
        Self {
            simulated_cq_handles: handles.collect::<Option<_>>().unwrap_or_default(),
        }
    }

    /// Polls the queues with these indices in turn while the polls find nothing, and returns the number of these polls.
    /// The caller polls the next queue itself: it may have a completion, or the NIC must be asked.
    #[inline]
    #[must_use]
    pub fn poll_while_empty(&self, queues: Range<usize>) -> usize {
        match self.simulated_cq_handles.get(queues) {
            Some(handles) if !handles.is_empty() => simulated::poll_cqs_while_empty(handles),
            _ => 0,
        }
    }
}
