//! Requests and answers over a connection.
//!
//! Either side asks. A request is outstanding until its one answer has come: all stripes, other metadata, or a refusal.
//! So the memory of a request whose caller has gone stays until nothing can come any more, and is then free.
//!
//! - `state`: what is not finished, and what goes out; `outstanding`: the requests of this side among it.
//! - `caller`: requests of callers; `answers`: the peer's answers to them.
//! - `requests`: the peer's requests and offers.
//!
//! This file takes what comes, and passes it to these.

mod answers;
mod caller;
mod outstanding;
mod requests;
mod state;
#[cfg(test)]
mod tests;

use crate::catalogue::PublishedHereError;
use crate::message::{PeerMessage, PeerRefusal};
use crate::queues::{ConnectedQps, DisconnectReason, QueueEvent};
use crate::store::Store;
use answers::unexpected_answer_reason;
use outstanding::OutstandingRequest;
pub(crate) use outstanding::{CallerMemoryInUse, CallerRequest};
pub(crate) use state::{ConnectionProtocolState, DeferredAction};

impl ConnectionProtocolState {
    /// Something has come.
    pub(crate) fn handle_event(
        &mut self,
        store: &Store,
        queues: &mut ConnectedQps,
        arrival: QueueEvent<'_>,
    ) -> Result<(), DisconnectReason> {
        match arrival {
            QueueEvent::Acknowledgement(consumed) => self.handle_acknowledgement(consumed),
            QueueEvent::Message(bytes) => {
                let (message, consumed) = PeerMessage::decode(bytes).map_err(|e| e.to_string())?;
                self.window.count_received_message();
                self.handle_acknowledgement(consumed)?;
                self.handle_message(store, queues, message)
            }
            QueueEvent::StripeReceived(index) => {
                self.handle_received_stripe(store, queues.data_queue_pair_count(), index)
            }
            QueueEvent::StripeSent(index) => {
                if let Some(transfer) = self.outgoing_transfers.get_mut(&index) {
                    transfer.uncompleted_stripes -= 1;
                    if transfer.uncompleted_stripes == 0 {
                        self.outgoing_transfers.remove(&index);
                    }
                }
                Ok(())
            }
        }
    }

    fn handle_acknowledgement(&mut self, consumed: u32) -> Result<(), DisconnectReason> {
        if self.window.apply_acknowledgement_if_possible(consumed) {
            return Ok(());
        }
        Err("the peer acknowledges messages that were not sent".to_owned())
    }

    fn handle_message(
        &mut self,
        store: &Store,
        queues: &mut ConnectedQps,
        message: PeerMessage,
    ) -> Result<(), DisconnectReason> {
        match message {
            PeerMessage::Request {
                index,
                tensor: wanted,
                destination,
            } => self.handle_request(store, queues, index, wanted, destination),
            PeerMessage::Metadata { index, meta } => self.handle_metadata(store, index, meta),
            PeerMessage::Refused { index, reason: why } => self.handle_refusal(index, why),
            PeerMessage::Cancel { index } => {
                let me = self.own_connection.clone();
                let waited = store
                    .catalogue()
                    .remove_waiters_if(|w| w.peer_request_index == index && w.is_from(&me));
                if waited > 0 {
                    self.queue_refusal(index, PeerRefusal::Cancelled);
                }
                Ok(())
            }
            PeerMessage::Offer { index, name, meta } => {
                self.handle_offered_tensor(store, index, name, &meta)
            }
            PeerMessage::Remove { index, name } => {
                let removed = store.catalogue().remove_stored(&name);
                match removed {
                    Ok(Some(_)) => self
                        .unsent_messages
                        .push_back(PeerMessage::StoredOrRemoved { index }),
                    Ok(None) => self.queue_refusal(index, PeerRefusal::Missing),
                    Err(PublishedHereError) => {
                        self.queue_refusal(index, PeerRefusal::PublishedByPeer)
                    }
                }
                Ok(())
            }
            PeerMessage::StoredOrRemoved { index } => match self.requests_to_peer.remove(index) {
                Some(
                    OutstandingRequest::Offer(_, _, pending)
                    | OutstandingRequest::Remove(_, pending),
                ) => {
                    self.defer_completion(Some(pending), Ok(None));
                    Ok(())
                }
                // All stripes were sent before the caller had gone.
                Some(OutstandingRequest::WithdrawnOffer) => Ok(()),
                _ => Err(unexpected_answer_reason("the end of an offer", index)),
            },
        }
    }
}
