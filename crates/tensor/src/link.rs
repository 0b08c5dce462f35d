//! A connection to a peer: its queue pairs and what is under way, behind a lock.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};

use verbs::RemoteMemory;

use crate::error::Error;
use crate::incoming_room::ReservedRoom;
use crate::memory::Tensor;
use crate::meta::TensorMeta;
use crate::pending_operation::PendingOperation;
use crate::protocol::{CallerMemoryInUse, CallerRequest, ConnectionProtocolState, DeferredAction};
use crate::queues::{ConnectedQps, DisconnectReason};
use crate::requests::REQUESTS_MAX;
use crate::store::{AnsweringConnection, OfferedTensor, Store};

/// A connection to a peer.
pub(crate) struct PeerLink {
    pub(crate) peer_name: String,
    store: Arc<Store>,
    state: Mutex<LinkState>,
    has_ended: AtomicBool,
}

#[derive(Debug)]
struct LinkState {
    /// None once it has ended.
    qps: Option<ConnectedQps>,
    protocol: ConnectionProtocolState,
    end_reason: String,
}

impl PeerLink {
    pub(crate) fn new(peer: String, queues: ConnectedQps, store: &Arc<Store>) -> Arc<Self> {
        Arc::new_cyclic(|me: &Weak<Self>| Self {
            peer_name: peer,
            store: Arc::clone(store),
            state: Mutex::new(LinkState {
                qps: Some(queues),
                protocol: ConnectionProtocolState::new(me.clone()),
                end_reason: String::new(),
            }),
            has_ended: AtomicBool::new(false),
        })
    }

    /// Returns true if the connection has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Acquire)
    }

    fn state(&self) -> MutexGuard<'_, LinkState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what has come; whether something has. Nothing if another thread does so.
    pub(crate) fn poll(&self) -> bool {
        let state = match self.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(e)) => e.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        let some = self.run_or_end_connection(state, |talk, queues| {
            let count =
                queues.poll(|queues, arrival| talk.handle_event(&self.store, queues, arrival))?;
            if count > 0 {
                talk.send_unsent(queues)?;
            }
            Ok(count > 0)
        });
        // Tensors that have come leave room for others.
        self.store.fetch_admitted_offers();
        some.unwrap_or(false)
    }

    /// Does something with the queue pairs, if they are there.
    fn run_with_qps_then_send_unsent(
        &self,
        work: impl FnOnce(
            &mut ConnectionProtocolState,
            &mut ConnectedQps,
        ) -> Result<(), DisconnectReason>,
    ) {
        self.run_or_end_connection(self.state(), |talk, queues| {
            work(talk, queues)?;
            talk.send_unsent(queues)
        });
    }

    /// Does something, ends the connection if that fails, and then does without the lock what has come of it.
    fn run_or_end_connection<R>(
        &self,
        mut state: MutexGuard<'_, LinkState>,
        work: impl FnOnce(
            &mut ConnectionProtocolState,
            &mut ConnectedQps,
        ) -> Result<R, DisconnectReason>,
    ) -> Option<R> {
        let LinkState {
            qps: queues,
            protocol: talk,
            ..
        } = &mut *state;
        let result = work(talk, queues.as_mut()?);
        let effects = talk.take_deferred_actions();
        let result = match result {
            Ok(result) => {
                drop(state);
                Some(result)
            }
            Err(reason) => {
                drop(state);
                self.end_connection(&reason);
                None
            }
        };
        for effect in effects {
            match effect {
                DeferredAction::CompleteOperation(pending, outcome) => pending.complete(outcome),
                DeferredAction::AnswerWaitingRequest(waiting, tensor) => {
                    waiting.answer_with_tensor(tensor)
                }
            }
        }
        result
    }

    /// Has the channel tell of what comes.
    pub(crate) fn arm_cq(&self) {
        self.run_with_qps_then_send_unsent(|_, queues| queues.arm_cqs());
    }

    /// Finds out whether the peer is there, if something is expected of it.
    pub(crate) fn probe_peer_if_expecting(&self) {
        self.run_with_qps_then_send_unsent(|talk, queues| {
            if talk.expects_nothing_of_peer() {
                return Ok(());
            }
            queues.probe_peer()
        });
    }

    /// Ends the connection. The queue pairs are destroyed first, so that the peer cannot write to memory afterwards.
    pub(crate) fn end_connection(&self, reason: &str) {
        let mut state = self.state();
        let Some(queues) = state.qps.take() else {
            return;
        };
        self.has_ended.store(true, Ordering::Release);
        drop(queues);
        reason.clone_into(&mut state.end_reason);
        let error = self.disconnected_error(reason);
        let waiting = state.protocol.end_and_take_pending_operations(&self.store);
        drop(state);
        for pending in waiting {
            pending.complete(Err(error.clone()));
        }
    }

    fn disconnected_error(&self, reason: &str) -> Error {
        Error::Disconnected {
            peer: self.peer_name.clone(),
            reason: reason.to_owned(),
        }
    }

    /// Asks the peer.
    pub(crate) fn start_request(
        &self,
        ask: CallerRequest,
    ) -> Result<(u32, PendingOperation), Error> {
        let pending = PendingOperation::default();
        let mut index = Err(Error::TooManyOutstandingRequests(REQUESTS_MAX));
        let state = self.state();
        if state.qps.is_none() {
            return Err(self.disconnected_error(&state.end_reason));
        }
        self.run_or_end_connection(state, |talk, queues| {
            index = talk.start_request(&self.store, ask, pending.clone());
            talk.send_unsent(queues)
        });
        Ok((index?, pending))
    }

    /// Records that the caller of a request has gone. Returns the caller's memory that a transfer may still use.
    ///
    /// For a destination [`is_outstanding`](Self::is_outstanding) says how long, and
    /// [`revoke_destination`](Self::revoke_destination) ends that. For a source it is
    /// [`is_sending_offer`](Self::is_sending_offer), and the end of the connection.
    pub(crate) fn cancel_request(&self, index: u32) -> CallerMemoryInUse {
        let mut in_use = CallerMemoryInUse::None;
        self.run_with_qps_then_send_unsent(|talk, _| {
            in_use = talk.cancel_request(index);
            Ok(())
        });
        in_use
    }

    /// Returns true if stripes of an offered tensor are being sent.
    pub(crate) fn is_sending_offer(&self, index: u32) -> bool {
        self.state().protocol.is_sending_offer(index)
    }

    /// Returns true if something may still come for a request.
    pub(crate) fn is_outstanding(&self, index: u32) -> bool {
        self.state().protocol.is_outstanding(index)
    }

    /// Takes the destination of a request away, so that nothing comes into it: a peer that still WRITEs there fails,
    /// and with it the connection.
    pub(crate) fn revoke_destination(&self, index: u32) {
        let destination = self.state().protocol.take_destination(index);
        // The region is deregistered when this was the last use of it.
        if let Some(tensor) = destination {
            tensor.memory.prevent_reuse();
        }
    }
}

impl AnsweringConnection for PeerLink {
    fn answer_with_tensor(
        &self,
        index: u32,
        tensor: Tensor,
        destination: Option<&(TensorMeta, RemoteMemory)>,
    ) {
        self.run_with_qps_then_send_unsent(|talk, queues| {
            talk.send_tensor_or_metadata(queues, index, tensor, destination)
        });
    }

    fn fetch_offered_tensor(&self, offer: OfferedTensor, room: ReservedRoom<OfferedTensor>) {
        self.run_with_qps_then_send_unsent(|talk, _| {
            talk.fetch_offered_tensor(&self.store, offer, room);
            Ok(())
        });
    }
}

impl fmt::Debug for PeerLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link")
            .field("peer", &self.peer_name)
            .field("has_ended", &self.has_ended())
            .finish_non_exhaustive()
    }
}
