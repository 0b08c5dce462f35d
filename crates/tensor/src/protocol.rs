//! Requests and answers over a connection.
//!
//! Either side asks. A request is outstanding until its one answer has come: all stripes, other metadata, or a refusal.
//! So the memory of a request whose caller has gone stays until nothing can come any more, and is then free.

use std::collections::{HashMap, VecDeque};
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use verbs::{MemoryRegion, RemoteMemory};

use crate::catalogue::{PublishedHere, TensorCatalogue};
use crate::error::Error;
use crate::incoming::{Admission, IncomingRoom, ReservedRoom};
use crate::memory::{RegisteredPool, Tensor};
use crate::message::{PeerMessage, PeerRefusal, RequestedTensor, TensorName};
use crate::meta::TensorMeta;
use crate::operation::{Outcome, PendingOperation};
use crate::queues::{ConnectedQps, DisconnectReason, QueueEvent};
use crate::requests::{OutstandingRequests, REQUESTS_MAX};
use crate::stripes;
use crate::window::ConnectionWindows;

/// Metadata that are remembered of a peer's tensors.
const MAX_REMEMBERED_METADATA: usize = 4096;

/// The state that all connections of a process share.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) catalogue: Mutex<TensorCatalogue<Tensor, WaitingRequest>>,
    pub(crate) pool: Arc<RegisteredPool>,
    pub(crate) incoming: IncomingRoom<OfferedTensor>,
}

impl Store {
    pub(crate) fn catalogue(&self) -> MutexGuard<'_, TensorCatalogue<Tensor, WaitingRequest>> {
        self.catalogue
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for offered tensors for which there is room now. Hold no lock.
    pub(crate) fn fetch_admitted_offers(&self) {
        while let Some((offer, room)) = self.incoming.next_admitted() {
            if let Some(link) = offer.connection.upgrade() {
                link.fetch(offer, room);
            }
        }
    }
}

/// A connection, for requests that wait.
pub(crate) trait AnsweringConnection: Debug + Send + Sync {
    /// The tensor that the peer has asked for is there.
    fn answer(&self, index: u32, tensor: Tensor, destination: Option<&(TensorMeta, RemoteMemory)>);

    /// There is room for a tensor that the peer has offered.
    fn fetch(&self, offer: OfferedTensor, room: ReservedRoom<OfferedTensor>);
}

/// A tensor that a peer has offered.
#[derive(Debug)]
pub(crate) struct OfferedTensor {
    connection: Weak<dyn AnsweringConnection>,
    peer_offer_index: u32,
    name: TensorName,
    meta: TensorMeta,
}

/// A peer's request for a tensor that is not there yet.
#[derive(Debug)]
pub(crate) struct WaitingRequest {
    connection: Weak<dyn AnsweringConnection>,
    peer_request_index: u32,
    destination: Option<(TensorMeta, RemoteMemory)>,
}

impl WaitingRequest {
    /// The tensor is there.
    pub(crate) fn serve(self, tensor: Tensor) {
        if let Some(link) = self.connection.upgrade() {
            link.answer(self.peer_request_index, tensor, self.destination.as_ref());
        }
    }

    /// Returns true if the request came over this connection.
    pub(crate) fn is_from(&self, link: &Weak<dyn AnsweringConnection>) -> bool {
        self.connection.ptr_eq(link)
    }
}

/// The messages and requests of one connection that are not finished.
#[derive(Debug)]
pub(crate) struct ConnectionProtocolState {
    own_connection: Weak<dyn AnsweringConnection>,
    window: ConnectionWindows,
    unsent: VecDeque<PeerMessage>,
    requests_to_peer: OutstandingRequests<OutstandingRequest>,
    peer_metadata_by_key: HashMap<String, TensorMeta>,
    /// Transfers of which stripes are being sent, by the peer's index.
    outgoing_transfers: HashMap<u32, OutgoingTransfer>,
    /// Transfers for which the send queues have no room.
    transfers_awaiting_send_queue_room: VecDeque<(u32, OutgoingTensor, RemoteMemory)>,
    /// Actions to take for other connections once the lock is free.
    actions_after_unlock: Vec<DeferredAction>,
}

/// A transfer of which stripes are posted.
#[derive(Debug)]
struct OutgoingTransfer {
    tensor: OutgoingTensor,
    /// Number of posted stripes that have not completed.
    uncompleted_stripes: usize,
}

/// A tensor that a peer has asked for.
#[derive(Debug)]
struct OutgoingTensor {
    tensor: Tensor,
    /// The index of the offer that the peer takes up.
    offer: Option<u32>,
}

/// Memory of a caller that a transfer may still use after the request was cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallerMemoryInUse {
    None,
    /// A peer may WRITE into the destination.
    Destination,
    /// Stripes of an offered tensor are being sent.
    Source,
}

/// An action to take without the lock.
#[derive(Debug)]
pub(crate) enum DeferredAction {
    Complete(PendingOperation, Outcome),
    Serve(WaitingRequest, Tensor),
}

/// A request of this side.
#[derive(Debug)]
enum OutstandingRequest {
    Get(OutstandingGet),
    IncomingOffer(IncomingOffer),
    Offer(TensorName, Tensor, PendingOperation),
    /// An offer whose caller has gone. The peer has not answered yet.
    WithdrawnOffer,
    Remove(TensorName, PendingOperation),
}

/// An offered tensor that comes.
#[derive(Debug)]
struct IncomingOffer {
    peer_offer_index: u32,
    name: TensorName,
    destination: Tensor,
    received_stripes: u64,
    _room: ReservedRoom<OfferedTensor>,
}

/// A tensor that was asked for.
#[derive(Debug)]
struct OutstandingGet {
    name: TensorName,
    waits_for_publication: bool,
    destination: Option<Tensor>,
    /// The destination is the caller's: it can be no other.
    is_destination_caller_memory: bool,
    received_stripes: u64,
    /// None once the caller has gone.
    pending: Option<PendingOperation>,
}

/// A caller's request to a peer.
#[derive(Debug)]
pub(crate) enum CallerRequest {
    /// A tensor; into this memory, if there is some.
    Get(TensorName, bool, Option<Tensor>),
    /// That it stores one.
    Put(TensorName, Tensor),
    /// That it removes one.
    Remove(TensorName),
}

impl OutstandingRequest {
    fn into_pending(self) -> Option<PendingOperation> {
        match self {
            Self::Get(get) => get.pending,
            Self::Offer(_, _, pending) | Self::Remove(_, pending) => Some(pending),
            Self::IncomingOffer(..) | Self::WithdrawnOffer => None,
        }
    }
}

impl ConnectionProtocolState {
    /// Nothing is under way on this connection.
    pub(crate) fn new(responder: Weak<dyn AnsweringConnection>) -> Self {
        Self {
            own_connection: responder,
            window: ConnectionWindows::default(),
            unsent: VecDeque::new(),
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
    pub(crate) fn end_and_take_pending(&mut self, store: &Store) -> Vec<PendingOperation> {
        let me = self.own_connection.clone();
        store
            .catalogue()
            .remove_waiters_if(|waiting| waiting.is_from(&me));
        store
            .incoming
            .remove_offers_if(|offer| offer.connection.ptr_eq(&me));
        self.outgoing_transfers.clear();
        self.transfers_awaiting_send_queue_room.clear();
        let outstanding = self.requests_to_peer.drain();
        outstanding
            .filter_map(OutstandingRequest::into_pending)
            .collect()
    }

    /// Records that the caller of a request has gone. Returns the caller's memory that a transfer may still use.
    pub(crate) fn cancel(&mut self, index: u32) -> CallerMemoryInUse {
        match self.requests_to_peer.get(index) {
            Some(OutstandingRequest::Get(get)) => {
                get.pending = None;
                let is_caller_memory = get.is_destination_caller_memory;
                self.unsent.push_back(PeerMessage::Cancel { index });
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
            if transfer.offer == Some(offer) {
                self.requests_to_peer.remove(offer);
                self.queue_refusal(index, PeerRefusal::Missing);
            } else {
                self.transfers_awaiting_send_queue_room
                    .push_back((index, transfer, memory));
            }
        }
    }

    /// Returns true if stripes of an offered tensor are being sent.
    pub(crate) fn is_sending_offer(&self, offer: u32) -> bool {
        let mut transfers = self.outgoing_transfers.values();
        transfers.any(|transfer| transfer.tensor.offer == Some(offer))
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

    /// Sends what the window and the send queues have room for.
    pub(crate) fn flush(&mut self, queues: &mut ConnectedQps) -> Result<(), DisconnectReason> {
        while let Some((index, transfer, remote)) =
            self.transfers_awaiting_send_queue_room.pop_front()
        {
            match queues.write(index, &transfer.tensor, remote)? {
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
            let Some(message) = self.unsent.pop_front() else {
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
                    (None, Some(meta)) => Some(allocate(store, meta)?),
                    (given, _) => given,
                };
                let get = OutstandingGet {
                    name: name.clone(),
                    waits_for_publication: wait,
                    destination: destination.clone(),
                    is_destination_caller_memory: is_caller_memory,
                    received_stripes: 0,
                    pending: Some(pending),
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
                self.unsent
                    .push_back(PeerMessage::Offer { index, name, meta });
                Ok(index)
            }
            CallerRequest::Remove(name) => {
                let remove = OutstandingRequest::Remove(name.clone(), pending);
                let index = self.requests_to_peer.insert(remove).map_err(busy)?;
                self.unsent.push_back(PeerMessage::Remove { index, name });
                Ok(index)
            }
        }
    }

    fn queue_request(&mut self, index: u32, wanted: RequestedTensor, destination: Option<&Tensor>) {
        let destination = destination.map(|t| (t.meta().clone(), remote_memory(t)));
        self.unsent.push_back(PeerMessage::Request {
            index,
            tensor: wanted,
            destination,
        });
    }

    fn queue_refusal(&mut self, index: u32, why: PeerRefusal) {
        self.unsent
            .push_back(PeerMessage::Refused { index, reason: why });
    }

    fn defer_completion(&mut self, pending: Option<PendingOperation>, outcome: Outcome) {
        self.actions_after_unlock
            .extend(pending.map(|pending| DeferredAction::Complete(pending, outcome)));
    }

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
                        .unsent
                        .push_back(PeerMessage::StoredOrRemoved { index }),
                    Ok(None) => self.queue_refusal(index, PeerRefusal::Missing),
                    Err(PublishedHere) => self.queue_refusal(index, PeerRefusal::Published),
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
                _ => Err(unexpected_answer("the end of an offer", index)),
            },
        }
    }

    fn handle_request(
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
                    offer: Some(offer),
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
            offer: None,
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
                self.flush(queues)
            }
            _ => {
                let meta = transfer.tensor.meta().clone();
                self.unsent.push_back(PeerMessage::Metadata { index, meta });
                Ok(())
            }
        }
    }

    /// The tensor is something else than this side took it to be: asks again, with memory for that.
    fn handle_metadata(
        &mut self,
        store: &Store,
        index: u32,
        meta: TensorMeta,
    ) -> Result<(), DisconnectReason> {
        let Some(OutstandingRequest::Get(get)) = self.requests_to_peer.get(index) else {
            return Err(unexpected_answer("metadata", index));
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
        } else if get.pending.is_none() {
            Err(Error::Cancelled(name))
        } else {
            allocate(store, &meta)
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
                self.defer_completion(removed.and_then(OutstandingRequest::into_pending), Err(e));
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

    fn handle_refusal(&mut self, index: u32, why: PeerRefusal) -> Result<(), DisconnectReason> {
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
            None => return Err(unexpected_answer("a refusal", index)),
        };
        let error = match why {
            PeerRefusal::Missing => Error::NotFound(name),
            PeerRefusal::Cancelled => Error::Cancelled(name),
            PeerRefusal::TooLarge => Error::TooLarge { name, bytes },
            PeerRefusal::MemoryUnsuitable => Error::PeerCannotRegisterMemory(name),
            PeerRefusal::Published => Error::PublishedByPeer(name),
        };
        self.defer_completion(
            removed.and_then(OutstandingRequest::into_pending),
            Err(error),
        );
        Ok(())
    }

    fn handle_offered_tensor(
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
            self.queue_refusal(index, PeerRefusal::Published);
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
            .incoming
            .admit_or_queue(offer, meta.total_bytes(), |o| o.connection.ptr_eq(&me));
        match admission {
            Admission::Admitted(offer, room) => self.fetch_offered_tensor(store, offer, room),
            Admission::Waits => {}
            Admission::TooMany => self.queue_refusal(index, PeerRefusal::MemoryUnsuitable),
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
        let Ok(tensor) = allocate(store, &offer.meta) else {
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

    /// A stripe has come.
    fn handle_received_stripe(
        &mut self,
        store: &Store,
        queue_pairs: u64,
        index: u32,
    ) -> Result<(), DisconnectReason> {
        let none = || unexpected_answer("data", index);
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
        let expected = tensor.map(|t| stripes::count(t.meta().total_bytes(), queue_pairs));
        if expected.is_some_and(|expected| *stripes < expected) {
            return Ok(());
        }
        match self.requests_to_peer.remove(index) {
            Some(OutstandingRequest::Get(get)) => {
                if let Some(tensor) = &get.destination {
                    self.remember_metadata(get.name.key, tensor.meta());
                }
                self.defer_completion(get.pending, Ok(get.destination));
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
                        let serve = |w| DeferredAction::Serve(w, tensor.clone());
                        self.actions_after_unlock
                            .extend(waiting.into_iter().map(serve));
                        self.unsent
                            .push_back(PeerMessage::StoredOrRemoved { index: offer });
                    }
                    // It was published after it was offered.
                    Err(PublishedHere) => self.queue_refusal(offer, PeerRefusal::Published),
                }
            }
            _ => {}
        }
        Ok(())
    }
}

fn unexpected_answer(what: &str, index: u32) -> DisconnectReason {
    format!("the peer sent {what} for request {index}, which is not outstanding")
}

/// Memory for a tensor that comes.
fn allocate(store: &Store, meta: &TensorMeta) -> Result<Tensor, Error> {
    let memory = store.pool.allocate(meta)?;
    Ok(Tensor::in_memory(meta.clone(), memory))
}

/// Returns the memory of a tensor, for a peer that WRITEs the tensor.
fn remote_memory(tensor: &Tensor) -> RemoteMemory {
    let nothing = RemoteMemory {
        addr: 0,
        len: 0,
        rkey: verbs::RKey(0),
    };
    let region = tensor.memory.region().map(MemoryRegion::remote);
    region.map_or(nothing, |memory| RemoteMemory {
        len: tensor.meta().total_bytes(),
        ..memory
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::PeerLink;
    use crate::message::MESSAGE_BYTES;
    use crate::meta::DType;
    use crate::queues::{NicResources, PreparedQueues};

    /// Two ends of a connection. Only the first has a protocol: the tests say what the other sends.
    struct Connection {
        store: Store,
        queues: [ConnectedQps; 2],
        protocol: ConnectionProtocolState,
    }

    impl Connection {
        fn new() -> Self {
            let device = verbs::Provider::softnic().device(None);
            let context = device.expect("a device").open().expect("opens");
            let pd = context.alloc_pd().expect("a PD");
            let resources = NicResources {
                port: service::NicConfig::default()
                    .port_and_gid(&context)
                    .expect("a port"),
                channel: context.create_comp_channel().expect("a channel"),
                context,
                pd: pd.clone(),
            };
            let prepared = [0, 1].map(|_| PreparedQueues::new(&resources, 2).expect("queues"));
            let endpoints = [1, 0].map(|i: usize| prepared[i].endpoints());
            let mut connected = prepared
                .into_iter()
                .zip(endpoints)
                .map(|(queues, peer)| queues.connect(&peer).expect("connects"));
            Self {
                store: Store {
                    catalogue: Mutex::new(TensorCatalogue::new(150)),
                    pool: RegisteredPool::new(pd, 1 << 20),
                    incoming: IncomingRoom::new(150),
                },
                queues: [(); 2].map(|()| connected.next().expect("two ends")),
                protocol: ConnectionProtocolState::new(Weak::<PeerLink>::new()),
            }
        }

        fn tensor(&self) -> Tensor {
            let meta = TensorMeta::new(DType::U8, vec![100]).expect("small");
            allocate(&self.store, &meta).expect("memory")
        }

        /// Begins to store a tensor at the peer and returns the index of the offer.
        fn put(&mut self) -> u32 {
            let name = TensorName::new("t", 0).expect("a good key");
            let ask = CallerRequest::Put(name, self.tensor());
            let pending = PendingOperation::default();
            let index = self.protocol.start_request(&self.store, ask, pending);
            self.protocol.flush(&mut self.queues[0]).expect("sent");
            index.expect("few requests")
        }

        /// The peer has sent this message.
        fn receive(&mut self, message: &PeerMessage) -> Result<(), DisconnectReason> {
            let bytes = message.encode(0);
            let event = QueueEvent::Message(&bytes);
            self.protocol
                .handle_event(&self.store, &mut self.queues[0], event)?;
            self.protocol.flush(&mut self.queues[0])
        }

        /// The peer takes up an offer.
        fn receive_request(&mut self, offer: u32, destination: &Tensor) {
            let message = PeerMessage::Request {
                index: 5,
                tensor: RequestedTensor::ByOffer(offer),
                destination: Some((destination.meta().clone(), remote_memory(destination))),
            };
            self.receive(&message).expect("a good request");
        }

        /// Takes completions until `done`.
        fn poll_until(&mut self, done: impl Fn(&Self) -> bool) {
            while !done(self) {
                let (protocol, store) = (&mut self.protocol, &self.store);
                let polled = self.queues[0].poll(|q, event| protocol.handle_event(store, q, event));
                polled.expect("connected");
            }
        }

        /// Returns the messages that the peer gets, up to a refusal.
        fn messages_up_to_refusal(&mut self) -> Vec<PeerMessage> {
            let mut messages = Vec::new();
            while !matches!(messages.last(), Some(PeerMessage::Refused { .. })) {
                let polled = self.queues[1].poll(|_, event| {
                    if let QueueEvent::Message(bytes) = event {
                        assert!(bytes.len() <= MESSAGE_BYTES);
                        messages.push(PeerMessage::decode(bytes).expect("a message").0);
                    }
                    Ok(())
                });
                polled.expect("connected");
            }
            messages
        }
    }

    #[test]
    fn a_withdrawn_offer_that_the_peer_takes_up_is_missing() {
        let mut connection = Connection::new();
        let destination = connection.tensor();
        let offer = connection.put();
        assert_eq!(connection.protocol.cancel(offer), CallerMemoryInUse::None);
        assert!(connection.protocol.is_outstanding(offer));
        connection.receive_request(offer, &destination);
        assert!(connection.protocol.expects_nothing_of_peer());
        let refusal = PeerMessage::Refused {
            index: 5,
            reason: PeerRefusal::Missing,
        };
        assert_eq!(connection.messages_up_to_refusal().pop(), Some(refusal));
        assert_eq!(destination.to_vec(), [0; 100]);
        // Nothing more can come for the offer.
        let stored = PeerMessage::StoredOrRemoved { index: offer };
        assert!(connection.receive(&stored).is_err());
    }

    #[test]
    fn offers_beyond_the_capacity_are_not_asked_for_before_others_have_come() {
        let mut connection = Connection::new();
        let meta = connection.tensor().meta().clone();
        for index in 1..=3 {
            let offer = PeerMessage::Offer {
                index,
                name: TensorName::new("t", u64::from(index)).expect("a good key"),
                meta: meta.clone(),
            };
            connection.receive(&offer).expect("an offer");
        }
        assert_eq!(connection.protocol.requests_to_peer.len(), 1);
        // The peer has withdrawn the first offer: there is room for the second.
        let refusal = PeerMessage::Refused {
            index: 0,
            reason: PeerRefusal::Missing,
        };
        connection.receive(&refusal).expect("an answer");
        let (next, _room) = connection.store.incoming.next_admitted().expect("room");
        assert_eq!(next.peer_offer_index, 2);
        assert!(connection.store.incoming.next_admitted().is_none());
    }

    #[test]
    fn a_withdrawn_offer_that_the_peer_refuses_is_forgotten() {
        let mut connection = Connection::new();
        let offer = connection.put();
        connection.protocol.cancel(offer);
        let refusal = PeerMessage::Refused {
            index: offer,
            reason: PeerRefusal::TooLarge,
        };
        connection.receive(&refusal).expect("an answer");
        assert!(connection.protocol.expects_nothing_of_peer());
    }

    #[test]
    fn an_offer_whose_stripes_are_being_sent_uses_its_memory_until_they_are_sent() {
        let mut connection = Connection::new();
        let destination = connection.tensor();
        let offer = connection.put();
        connection.receive_request(offer, &destination);
        assert_eq!(connection.protocol.cancel(offer), CallerMemoryInUse::Source);
        assert!(connection.protocol.is_sending_offer(offer));
        connection.poll_until(|c| !c.protocol.is_sending_offer(offer));
        let stored = PeerMessage::StoredOrRemoved { index: offer };
        connection.receive(&stored).expect("an answer");
        assert!(connection.protocol.expects_nothing_of_peer());
    }
}
