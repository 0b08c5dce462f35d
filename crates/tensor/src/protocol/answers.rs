//! Answers of the peer to requests of this side: metadata, refusals and stripes.

use super::outstanding::{IncomingOffer, OutstandingRequest};
use super::state::{ConnectionProtocolState, DeferredAction};
use crate::catalogue::PublishedHereError;
use crate::error::Error;
use crate::message::{PeerMessage, PeerRefusal, RequestedTensor};
use crate::meta::TensorMeta;
use crate::queues::DisconnectReason;
use crate::store::{Store, allocate_tensor};
use crate::stripes;

/// Metadata that are remembered of a peer's tensors.
const MAX_REMEMBERED_METADATA: usize = 4096;

impl ConnectionProtocolState {
    /// The tensor is something else than this side took it to be: asks again, with memory for that.
    pub(super) fn handle_metadata(
        &mut self,
        store: &Store,
        index: u32,
        meta: TensorMeta,
    ) -> Result<(), DisconnectReason> {
        let Some(OutstandingRequest::Get(get)) = self.requests_to_peer.get(index) else {
            return Err(unexpected_answer_reason("metadata", index));
        };
        let name = get.name.clone();
        let given = get
            .destination
            .as_ref()
            .filter(|_| get.is_destination_caller_memory);
        let outcome = if let Some(given) = given {
            let given = given.meta().clone();
            Err(Error::MetadataMismatch {
                name,
                remote: meta,
                expected: given,
            })
        } else if get.pending_operation.is_none() {
            Err(Error::Cancelled(name))
        } else {
            allocate_tensor(store, &meta)
        };
        match outcome {
            Ok(tensor) => {
                get.destination = Some(tensor.clone());
                let wanted = RequestedTensor::ByName {
                    name: get.name.clone(),
                    wait: get.waits_for_publication,
                };
                self.queue_request(index, wanted, Some(&tensor));
            }
            Err(e) => {
                let removed = self.requests_to_peer.remove(index);
                self.defer_completion(
                    removed.and_then(OutstandingRequest::into_pending_operation),
                    Err(e),
                );
            }
        }
        Ok(())
    }

    /// Remembers what a tensor is, for the next request for this key.
    fn remember_metadata(&mut self, key: String, meta: &TensorMeta) {
        if self.peer_metadata_by_key.get(&key) == Some(meta) {
            return;
        }
        if self.peer_metadata_by_key.len() >= MAX_REMEMBERED_METADATA {
            self.peer_metadata_by_key.clear();
        }
        self.peer_metadata_by_key.insert(key, meta.clone());
    }

    pub(super) fn handle_refusal(
        &mut self,
        index: u32,
        why: PeerRefusal,
    ) -> Result<(), DisconnectReason> {
        let removed = self.requests_to_peer.remove(index);
        let (name, bytes) = match &removed {
            Some(OutstandingRequest::Get(get)) => (get.name.clone(), 0),
            Some(OutstandingRequest::Offer(name, tensor, _)) => {
                (name.clone(), tensor.meta().total_bytes())
            }
            Some(OutstandingRequest::Remove(name, _)) => (name.clone(), 0),
            // The offer was withdrawn, by the peer or by this side.
            Some(OutstandingRequest::IncomingOffer(..) | OutstandingRequest::WithdrawnOffer) => {
                return Ok(());
            }
            None => return Err(unexpected_answer_reason("a refusal", index)),
        };
        let error = match why {
            PeerRefusal::Missing => Error::NotFound(name),
            PeerRefusal::Cancelled => Error::Cancelled(name),
            PeerRefusal::TooLarge => Error::TooLarge { name, bytes },
            PeerRefusal::MemoryUnsuitable => Error::PeerCannotRegisterMemory(name),
            PeerRefusal::PublishedByPeer => Error::PublishedByPeer(name),
        };
        self.defer_completion(
            removed.and_then(OutstandingRequest::into_pending_operation),
            Err(error),
        );
        Ok(())
    }

    /// A stripe has come.
    pub(super) fn handle_received_stripe(
        &mut self,
        store: &Store,
        queue_pairs: u64,
        index: u32,
    ) -> Result<(), DisconnectReason> {
        let none = || unexpected_answer_reason("data", index);
        let (tensor, stripes) = match self.requests_to_peer.get(index).ok_or_else(none)? {
            OutstandingRequest::Get(get) => (get.destination.as_ref(), &mut get.received_stripes),
            OutstandingRequest::IncomingOffer(incoming) => {
                (Some(&incoming.destination), &mut incoming.received_stripes)
            }
            OutstandingRequest::Offer(..)
            | OutstandingRequest::WithdrawnOffer
            | OutstandingRequest::Remove(..) => return Err(none()),
        };
        *stripes += 1;
        let expected = tensor.map(|t| stripes::stripe_count(t.meta().total_bytes(), queue_pairs));
        if expected.is_some_and(|expected| *stripes < expected) {
            return Ok(());
        }
        match self.requests_to_peer.remove(index) {
            Some(OutstandingRequest::Get(get)) => {
                if let Some(tensor) = &get.destination {
                    self.remember_metadata(get.name.key, tensor.meta());
                }
                self.defer_completion(get.pending_operation, Ok(get.destination));
            }
            Some(OutstandingRequest::IncomingOffer(incoming)) => {
                let IncomingOffer {
                    peer_offer_index: offer,
                    name,
                    destination: tensor,
                    ..
                } = incoming;
                let bytes = tensor.meta().total_bytes();
                let stored = store.catalogue().store(name, tensor.clone(), bytes);
                match stored {
                    Ok(waiting) => {
                        let serve = |w| DeferredAction::AnswerWaitingRequest(w, tensor.clone());
                        self.actions_after_unlock
                            .extend(waiting.into_iter().map(serve));
                        self.unsent_messages
                            .push_back(PeerMessage::StoredOrRemoved { index: offer });
                    }
                    // It was published after it was offered.
                    Err(PublishedHereError) => {
                        self.queue_refusal(offer, PeerRefusal::PublishedByPeer)
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }
}

pub(super) fn unexpected_answer_reason(what: &str, index: u32) -> DisconnectReason {
    format!("the peer sent {what} for request {index}, which is not outstanding")
}
