//! Requests and offers of the peer.

use verbs::RemoteMemory;

use super::outstanding::{IncomingOffer, OutstandingRequest};
use super::state::{ConnectionProtocolState, OutgoingTensor};
use crate::incoming_room::{Admission, ReservedRoom};
use crate::memory::Tensor;
use crate::message::{PeerMessage, PeerRefusal, RequestedTensor, TensorName};
use crate::meta::TensorMeta;
use crate::queues::{ConnectedQps, DisconnectReason};
use crate::store::{OfferedTensor, Store, WaitingRequest, allocate_tensor};

impl ConnectionProtocolState {
    pub(super) fn handle_request(
        &mut self,
        store: &Store,
        queues: &mut ConnectedQps,
        index: u32,
        wanted: RequestedTensor,
        destination: Option<(TensorMeta, RemoteMemory)>,
    ) -> Result<(), DisconnectReason> {
        let found = match wanted {
            RequestedTensor::ByName { name, wait: false } => {
                store.catalogue().find_and_mark_used(&name)
            }
            RequestedTensor::ByName { name, wait: true } => {
                let waiting = WaitingRequest {
                    connection: self.own_connection.clone(),
                    peer_request_index: index,
                    destination: destination.clone(),
                };
                let found = store.catalogue().find_or_register_waiter(&name, waiting);
                if found.is_none() {
                    return Ok(());
                }
                found
            }
            RequestedTensor::ByOffer(offer) => {
                return self.handle_request_by_offer(queues, (index, offer), destination.as_ref());
            }
        };
        match found {
            Some(tensor) => {
                self.send_tensor_or_metadata(queues, index, tensor, destination.as_ref())
            }
            None => {
                self.queue_refusal(index, PeerRefusal::Missing);
                Ok(())
            }
        }
    }

    /// The peer takes up an offer, which the caller may have withdrawn.
    fn handle_request_by_offer(
        &mut self,
        queues: &mut ConnectedQps,
        (index, offer): (u32, u32),
        destination: Option<&(TensorMeta, RemoteMemory)>,
    ) -> Result<(), DisconnectReason> {
        match self.requests_to_peer.get(offer) {
            Some(OutstandingRequest::Offer(_, tensor, _)) => {
                let transfer = OutgoingTensor {
                    tensor: tensor.clone(),
                    offer_index: Some(offer),
                };
                self.transfer_or_send_metadata(queues, index, transfer, destination)
            }
            withdrawn => {
                if matches!(withdrawn, Some(OutstandingRequest::WithdrawnOffer))
                    && !self.is_sending_offer(offer)
                {
                    self.requests_to_peer.remove(offer);
                }
                self.queue_refusal(index, PeerRefusal::Missing);
                Ok(())
            }
        }
    }

    /// Sends a tensor, or what it is if the receiver takes it to be something else.
    pub(crate) fn send_tensor_or_metadata(
        &mut self,
        queues: &mut ConnectedQps,
        index: u32,
        tensor: Tensor,
        destination: Option<&(TensorMeta, RemoteMemory)>,
    ) -> Result<(), DisconnectReason> {
        let transfer = OutgoingTensor {
            tensor,
            offer_index: None,
        };
        self.transfer_or_send_metadata(queues, index, transfer, destination)
    }

    fn transfer_or_send_metadata(
        &mut self,
        queues: &mut ConnectedQps,
        index: u32,
        transfer: OutgoingTensor,
        destination: Option<&(TensorMeta, RemoteMemory)>,
    ) -> Result<(), DisconnectReason> {
        match destination {
            Some((meta, memory)) if meta == transfer.tensor.meta() => {
                if memory.len < meta.total_bytes() {
                    self.queue_refusal(index, PeerRefusal::MemoryUnsuitable);
                    return Ok(());
                }
                self.transfers_awaiting_send_queue_room
                    .push_back((index, transfer, *memory));
                self.send_unsent(queues)
            }
            _ => {
                let meta = transfer.tensor.meta().clone();
                self.unsent_messages
                    .push_back(PeerMessage::Metadata { index, meta });
                Ok(())
            }
        }
    }

    pub(super) fn handle_offered_tensor(
        &mut self,
        store: &Store,
        index: u32,
        name: TensorName,
        meta: &TensorMeta,
    ) -> Result<(), DisconnectReason> {
        if !store.catalogue().fits_total_capacity(meta.total_bytes()) {
            self.queue_refusal(index, PeerRefusal::TooLarge);
            return Ok(());
        }
        if store.catalogue().is_published(&name) {
            self.queue_refusal(index, PeerRefusal::PublishedByPeer);
            return Ok(());
        }
        let offer = OfferedTensor {
            connection: self.own_connection.clone(),
            peer_offer_index: index,
            name,
            meta: meta.clone(),
        };
        let me = self.own_connection.clone();
        let admission = store
            .incoming_room
            .admit_or_queue(offer, meta.total_bytes(), |o| o.connection.ptr_eq(&me));
        match admission {
            Admission::Admitted(offer, room) => self.fetch_offered_tensor(store, offer, room),
            Admission::Waits => {}
            Admission::TooManyOffers => self.queue_refusal(index, PeerRefusal::MemoryUnsuitable),
        }
        Ok(())
    }

    /// Asks for an offered tensor, for which there is room.
    pub(crate) fn fetch_offered_tensor(
        &mut self,
        store: &Store,
        offer: OfferedTensor,
        room: ReservedRoom<OfferedTensor>,
    ) {
        let index = offer.peer_offer_index;
        let Ok(tensor) = allocate_tensor(store, &offer.meta) else {
            self.queue_refusal(index, PeerRefusal::MemoryUnsuitable);
            return;
        };
        let fetch = OutstandingRequest::IncomingOffer(IncomingOffer {
            peer_offer_index: index,
            name: offer.name,
            destination: tensor.clone(),
            received_stripes: 0,
            _room: room,
        });
        match self.requests_to_peer.insert(fetch) {
            Ok(own) => self.queue_request(own, RequestedTensor::ByOffer(index), Some(&tensor)),
            Err(_) => self.queue_refusal(index, PeerRefusal::MemoryUnsuitable),
        }
    }
}
