//! The messages and requests of a connection that are not finished, and what goes out.

use std::collections::{HashMap, VecDeque};
use std::sync::Weak;

use verbs::RemoteMemory;

use super::outstanding::OutstandingRequest;
use crate::memory::Tensor;
use crate::message::{PeerMessage, PeerRefusal, RequestedTensor};
use crate::meta::TensorMeta;
use crate::pending_operation::{Outcome, PendingOperation};
use crate::queues::{ConnectedQps, DisconnectReason};
use crate::requests::OutstandingRequests;
use crate::store::{AnsweringConnection, Store, WaitingRequest, remote_memory_of_tensor};
use crate::window::ConnectionWindows;

/// The messages and requests of one connection that are not finished.
#[derive(Debug)]
pub(crate) struct ConnectionProtocolState {
    pub(super) own_connection: Weak<dyn AnsweringConnection>,
    pub(super) window: ConnectionWindows,
    pub(super) unsent_messages: VecDeque<PeerMessage>,
    pub(super) requests_to_peer: OutstandingRequests<OutstandingRequest>,
    pub(super) peer_metadata_by_key: HashMap<String, TensorMeta>,
    /// Transfers of which stripes are being sent, by the peer's index.
    pub(super) outgoing_transfers: HashMap<u32, OutgoingTransfer>,
    /// Transfers for which the send queues have no room.
    pub(super) transfers_awaiting_send_queue_room: VecDeque<(u32, OutgoingTensor, RemoteMemory)>,
    /// Actions to take for other connections once the lock is free.
    pub(super) actions_after_unlock: Vec<DeferredAction>,
}

/// A transfer of which stripes are posted.
#[derive(Debug)]
pub(super) struct OutgoingTransfer {
    pub(super) tensor: OutgoingTensor,
    /// Number of posted stripes that have not completed.
    pub(super) uncompleted_stripes: usize,
}

/// A tensor that a peer has asked for.
#[derive(Debug)]
pub(super) struct OutgoingTensor {
    pub(super) tensor: Tensor,
    /// The index of the offer that the peer takes up.
    pub(super) offer_index: Option<u32>,
}

/// An action to take without the lock.
#[derive(Debug)]
pub(crate) enum DeferredAction {
    CompleteOperation(PendingOperation, Outcome),
    AnswerWaitingRequest(WaitingRequest, Tensor),
}

impl ConnectionProtocolState {
    /// Nothing is under way on this connection.
    pub(crate) fn new(responder: Weak<dyn AnsweringConnection>) -> Self {
        Self {
            own_connection: responder,
            window: ConnectionWindows::default(),
            unsent_messages: VecDeque::new(),
            requests_to_peer: OutstandingRequests::new(),
            peer_metadata_by_key: HashMap::new(),
            outgoing_transfers: HashMap::new(),
            transfers_awaiting_send_queue_room: VecDeque::new(),
            actions_after_unlock: Vec::new(),
        }
    }

    /// Returns true if nothing is expected of the peer.
    pub(crate) fn expects_nothing_of_peer(&self) -> bool {
        self.requests_to_peer.is_empty() && self.outgoing_transfers.is_empty()
    }

    /// The actions to take without the lock.
    pub(crate) fn take_deferred_actions(&mut self) -> Vec<DeferredAction> {
        std::mem::take(&mut self.actions_after_unlock)
    }

    /// The connection has ended: who waits for an answer.
    pub(crate) fn end_and_take_pending_operations(
        &mut self,
        store: &Store,
    ) -> Vec<PendingOperation> {
        let me = self.own_connection.clone();
        store
            .catalogue()
            .remove_waiters_if(|waiting| waiting.is_from(&me));
        store
            .incoming_room
            .remove_offers_if(|offer| offer.connection.ptr_eq(&me));
        self.outgoing_transfers.clear();
        self.transfers_awaiting_send_queue_room.clear();
        let outstanding = self.requests_to_peer.drain();
        outstanding
            .filter_map(OutstandingRequest::into_pending_operation)
            .collect()
    }

    /// Returns true if stripes of an offered tensor are being sent.
    pub(crate) fn is_sending_offer(&self, offer: u32) -> bool {
        let mut transfers = self.outgoing_transfers.values();
        transfers.any(|transfer| transfer.tensor.offer_index == Some(offer))
    }

    /// Sends what the window and the send queues have room for.
    pub(crate) fn send_unsent(
        &mut self,
        queues: &mut ConnectedQps,
    ) -> Result<(), DisconnectReason> {
        while let Some((index, transfer, remote)) =
            self.transfers_awaiting_send_queue_room.pop_front()
        {
            match queues.write_tensor(index, &transfer.tensor, remote)? {
                Some(stripes) => drop(self.outgoing_transfers.insert(
                    index,
                    OutgoingTransfer {
                        tensor: transfer,
                        uncompleted_stripes: stripes,
                    },
                )),
                None => {
                    self.transfers_awaiting_send_queue_room
                        .push_front((index, transfer, remote));
                    break;
                }
            }
        }
        while self.window.has_room() && queues.has_message_room() {
            let Some(message) = self.unsent_messages.pop_front() else {
                break;
            };
            let (buffer, consumed) = self.window.take_send_buffer_and_received_count();
            queues.send_message(buffer, &message.encode(consumed))?;
        }
        if let Some(consumed) = self.window.take_due_acknowledgement() {
            queues.send_acknowledgement(consumed)?;
        }
        Ok(())
    }

    pub(super) fn queue_request(
        &mut self,
        index: u32,
        wanted: RequestedTensor,
        destination: Option<&Tensor>,
    ) {
        let destination = destination.map(|t| (t.meta().clone(), remote_memory_of_tensor(t)));
        self.unsent_messages.push_back(PeerMessage::Request {
            index,
            tensor: wanted,
            destination,
        });
    }

    pub(super) fn queue_refusal(&mut self, index: u32, why: PeerRefusal) {
        self.unsent_messages
            .push_back(PeerMessage::Refused { index, reason: why });
    }

    pub(super) fn defer_completion(&mut self, pending: Option<PendingOperation>, outcome: Outcome) {
        self.actions_after_unlock
            .extend(pending.map(|pending| DeferredAction::CompleteOperation(pending, outcome)));
    }
}
