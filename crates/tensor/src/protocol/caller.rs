//! Requests of callers of this side: they start, and are cancelled.

use super::outstanding::{CallerMemoryInUse, CallerRequest, OutstandingGet, OutstandingRequest};
use super::state::ConnectionProtocolState;
use crate::error::Error;
use crate::memory::Tensor;
use crate::message::{PeerMessage, PeerRefusal, RequestedTensor};
use crate::pending_operation::PendingOperation;
use crate::requests::REQUESTS_MAX;
use crate::store::{Store, allocate_tensor};

impl ConnectionProtocolState {
    /// A request of the caller.
    pub(crate) fn start_request(
        &mut self,
        store: &Store,
        ask: CallerRequest,
        pending: PendingOperation,
    ) -> Result<u32, Error> {
        let busy = |_| Error::TooManyOutstandingRequests(REQUESTS_MAX);
        match ask {
            CallerRequest::Get(name, wait, given) => {
                let is_caller_memory = given.is_some();
                let destination = match (given, self.peer_metadata_by_key.get(&name.key)) {
                    (None, Some(meta)) => Some(allocate_tensor(store, meta)?),
                    (given, _) => given,
                };
                let get = OutstandingGet {
                    name: name.clone(),
                    waits_for_publication: wait,
                    destination: destination.clone(),
                    is_destination_caller_memory: is_caller_memory,
                    received_stripes: 0,
                    pending_operation: Some(pending),
                };
                let index = self
                    .requests_to_peer
                    .insert(OutstandingRequest::Get(get))
                    .map_err(busy)?;
                self.queue_request(
                    index,
                    RequestedTensor::ByName { name, wait },
                    destination.as_ref(),
                );
                Ok(index)
            }
            CallerRequest::Put(name, tensor) => {
                let meta = tensor.meta().clone();
                let offer = OutstandingRequest::Offer(name.clone(), tensor, pending);
                let index = self.requests_to_peer.insert(offer).map_err(busy)?;
                self.unsent_messages
                    .push_back(PeerMessage::Offer { index, name, meta });
                Ok(index)
            }
            CallerRequest::Remove(name) => {
                let remove = OutstandingRequest::Remove(name.clone(), pending);
                let index = self.requests_to_peer.insert(remove).map_err(busy)?;
                self.unsent_messages
                    .push_back(PeerMessage::Remove { index, name });
                Ok(index)
            }
        }
    }

    /// Records that the caller of a request has gone. Returns the caller's memory that a transfer may still use.
    pub(crate) fn cancel_request(&mut self, index: u32) -> CallerMemoryInUse {
        match self.requests_to_peer.get(index) {
            Some(OutstandingRequest::Get(get)) => {
                get.pending_operation = None;
                let is_caller_memory = get.is_destination_caller_memory;
                self.unsent_messages
                    .push_back(PeerMessage::Cancel { index });
                match is_caller_memory {
                    true => CallerMemoryInUse::Destination,
                    false => CallerMemoryInUse::None,
                }
            }
            Some(offer @ OutstandingRequest::Offer(..)) => {
                *offer = OutstandingRequest::WithdrawnOffer;
                self.refuse_unsent_transfers_of_offer(index);
                match self.is_sending_offer(index) {
                    true => CallerMemoryInUse::Source,
                    false => CallerMemoryInUse::None,
                }
            }
            _ => CallerMemoryInUse::None,
        }
    }

    /// Refuses transfers of a withdrawn offer of which nothing was sent. The peer has then answered the offer.
    fn refuse_unsent_transfers_of_offer(&mut self, offer: u32) {
        let waiting = std::mem::take(&mut self.transfers_awaiting_send_queue_room);
        for (index, transfer, memory) in waiting {
            if transfer.offer_index == Some(offer) {
                self.requests_to_peer.remove(offer);
                self.queue_refusal(index, PeerRefusal::Missing);
            } else {
                self.transfers_awaiting_send_queue_room
                    .push_back((index, transfer, memory));
            }
        }
    }

    /// Returns true if an answer may still come.
    pub(crate) fn is_outstanding(&mut self, index: u32) -> bool {
        self.requests_to_peer.get(index).is_some()
    }

    /// Takes the destination of a request out.
    pub(crate) fn take_destination(&mut self, index: u32) -> Option<Tensor> {
        match self.requests_to_peer.get(index) {
            Some(OutstandingRequest::Get(get)) => get.destination.take(),
            _ => None,
        }
    }
}
