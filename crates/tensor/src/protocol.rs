//! Requests and answers over a connection.
//!
//! Either side asks. A request is outstanding until its one answer has come: all stripes, other metadata, or a refusal. So the
//! memory of a request whose caller has gone stays until nothing can come any more, and is then free.

use std::collections::{HashMap, VecDeque};
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use verbs::{MemoryRegion, RemoteMemory};

use crate::catalogue::TensorCatalogue;
use crate::error::Error;
use crate::memory::{RegisteredPool, Tensor};
use crate::message::{PeerMessage, PeerRefusal, RequestedTensor, TensorName};
use crate::meta::TensorMeta;
use crate::operation::{Outcome, PendingOperation};
use crate::queues::{ConnectedQps, DisconnectReason, QueueEvent};
use crate::requests::{OutstandingRequests, REQUESTS_MAX};
use crate::stripes;
use crate::window::ConnectionWindows;

/// Metadata that are remembered of a peer's tensors.
const METADATA_MAX: usize = 4096;

/// The state that all connections of a process share.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) catalogue: Mutex<TensorCatalogue<Tensor, WaitingRequest>>,
    pub(crate) pool: Arc<RegisteredPool>,
}

impl Store {
    pub(crate) fn catalogue(&self) -> MutexGuard<'_, TensorCatalogue<Tensor, WaitingRequest>> {
        self.catalogue
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection, for requests that wait.
pub(crate) trait Responder: Debug + Send + Sync {
    /// The tensor that the peer has asked for is there.
    fn answer(&self, index: u32, tensor: Tensor, destination: Option<&(TensorMeta, RemoteMemory)>);
}

/// A peer's request for a tensor that is not there yet.
#[derive(Debug)]
pub(crate) struct WaitingRequest {
    link: Weak<dyn Responder>,
    index: u32,
    destination: Option<(TensorMeta, RemoteMemory)>,
}

impl WaitingRequest {
    /// The tensor is there.
    pub(crate) fn serve(self, tensor: Tensor) {
        if let Some(link) = self.link.upgrade() {
            link.answer(self.index, tensor, self.destination.as_ref());
        }
    }

    /// Whether it came over this connection.
    pub(crate) fn is_from(&self, link: &Weak<dyn Responder>) -> bool {
        self.link.ptr_eq(link)
    }
}

/// What is under way.
#[derive(Debug)]
pub(crate) struct Protocol {
    responder: Weak<dyn Responder>,
    window: ConnectionWindows,
    unsent: VecDeque<PeerMessage>,
    outstanding: OutstandingRequests<OutstandingRequest>,
    known_metadata: HashMap<String, TensorMeta>,
    /// Tensors of which stripes are being sent, by the peer's index.
    transfers: HashMap<u32, (Tensor, usize)>,
    /// Transfers for which the send queues have no room.
    backlog: VecDeque<(u32, Tensor, RemoteMemory)>,
    /// For others, once the lock is free.
    effects: Vec<DeferredAction>,
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
    /// An offered tensor comes: the peer's index of the offer, its name, where it goes, stripes that have come.
    IncomingOffer(u32, TensorName, Tensor, u64),
    Offer(TensorName, Tensor, PendingOperation),
    Remove(TensorName, PendingOperation),
}

/// A tensor that was asked for.
#[derive(Debug)]
struct OutstandingGet {
    name: TensorName,
    wait: bool,
    destination: Option<Tensor>,
    /// The destination is the caller's: it can be no other.
    is_caller_memory: bool,
    stripes: u64,
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
            Self::IncomingOffer(..) => None,
        }
    }
}

impl Protocol {
    /// Nothing is under way on this connection.
    pub(crate) fn new(responder: Weak<dyn Responder>) -> Self {
        Self {
            responder,
            window: ConnectionWindows::default(),
            unsent: VecDeque::new(),
            outstanding: OutstandingRequests::new(),
            known_metadata: HashMap::new(),
            transfers: HashMap::new(),
            backlog: VecDeque::new(),
            effects: Vec::new(),
        }
    }

    /// Whether nothing is expected of the peer.
    pub(crate) fn is_idle(&self) -> bool {
        self.outstanding.is_empty() && self.transfers.is_empty()
    }

    /// The actions to take without the lock.
    pub(crate) fn take_effects(&mut self) -> Vec<DeferredAction> {
        std::mem::take(&mut self.effects)
    }

    /// The connection has ended: who waits for an answer.
    pub(crate) fn end_connection(&mut self, store: &Store) -> Vec<PendingOperation> {
        let me = self.responder.clone();
        store
            .catalogue()
            .remove_waiters(|waiting| waiting.is_from(&me));
        self.transfers.clear();
        self.backlog.clear();
        let outstanding = self.outstanding.drain();
        outstanding
            .filter_map(OutstandingRequest::into_pending)
            .collect()
    }

    /// The caller of a request has gone; whether its destination is the caller's.
    pub(crate) fn cancel(&mut self, index: u32) -> bool {
        let Some(OutstandingRequest::Get(get)) = self.outstanding.get(index) else {
            return false;
        };
        get.pending = None;
        let is_caller_memory = get.is_caller_memory;
        self.unsent.push_back(PeerMessage::Cancel { index });
        is_caller_memory
    }

    /// Whether an answer may still come.
    pub(crate) fn is_outstanding(&mut self, index: u32) -> bool {
        self.outstanding.get(index).is_some()
    }

    /// Takes the destination of a request out.
    pub(crate) fn take_destination(&mut self, index: u32) -> Option<Tensor> {
        match self.outstanding.get(index) {
            Some(OutstandingRequest::Get(get)) => get.destination.take(),
            _ => None,
        }
    }

    /// Sends what the window and the send queues have room for.
    pub(crate) fn flush(&mut self, queues: &mut ConnectedQps) -> Result<(), DisconnectReason> {
        while let Some((index, tensor, remote)) = self.backlog.pop_front() {
            match queues.write(index, &tensor, remote)? {
                Some(stripes) => drop(self.transfers.insert(index, (tensor, stripes))),
                None => {
                    self.backlog.push_front((index, tensor, remote));
                    break;
                }
            }
        }
        while self.window.has_room() && queues.has_message_room() {
            let Some(message) = self.unsent.pop_front() else {
                break;
            };
            let (buffer, consumed) = self.window.send();
            queues.send(buffer, &message.encode(consumed))?;
        }
        if let Some(consumed) = self.window.acknowledgement() {
            queues.acknowledge(consumed)?;
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
        let busy = |_| Error::Busy(REQUESTS_MAX);
        match ask {
            CallerRequest::Get(name, wait, given) => {
                let is_caller_memory = given.is_some();
                let destination = match (given, self.known_metadata.get(&name.key)) {
                    (None, Some(meta)) => Some(allocate(store, meta)?),
                    (given, _) => given,
                };
                let get = OutstandingGet {
                    name: name.clone(),
                    wait,
                    destination: destination.clone(),
                    is_caller_memory,
                    stripes: 0,
                    pending: Some(pending),
                };
                let index = self
                    .outstanding
                    .insert(OutstandingRequest::Get(get))
                    .map_err(busy)?;
                self.request(
                    index,
                    RequestedTensor::ByName { name, wait },
                    destination.as_ref(),
                );
                Ok(index)
            }
            CallerRequest::Put(name, tensor) => {
                let meta = tensor.meta().clone();
                let offer = OutstandingRequest::Offer(name.clone(), tensor, pending);
                let index = self.outstanding.insert(offer).map_err(busy)?;
                self.unsent
                    .push_back(PeerMessage::Offer { index, name, meta });
                Ok(index)
            }
            CallerRequest::Remove(name) => {
                let remove = OutstandingRequest::Remove(name.clone(), pending);
                let index = self.outstanding.insert(remove).map_err(busy)?;
                self.unsent.push_back(PeerMessage::Remove { index, name });
                Ok(index)
            }
        }
    }

    fn request(&mut self, index: u32, wanted: RequestedTensor, destination: Option<&Tensor>) {
        let destination = destination.map(|t| (t.meta().clone(), remote_memory(t)));
        self.unsent.push_back(PeerMessage::Request {
            index,
            tensor: wanted,
            destination,
        });
    }

    fn refuse(&mut self, index: u32, why: PeerRefusal) {
        self.unsent
            .push_back(PeerMessage::Refused { index, reason: why });
    }

    fn complete(&mut self, pending: Option<PendingOperation>, outcome: Outcome) {
        self.effects
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
            QueueEvent::Acknowledgement(consumed) => self.acknowledge(consumed),
            QueueEvent::Message(bytes) => {
                let (message, consumed) = PeerMessage::decode(bytes).map_err(|e| e.to_string())?;
                self.window.receive();
                self.acknowledge(consumed)?;
                self.handle_message(store, queues, message)
            }
            QueueEvent::StripeReceived(index) => {
                self.handle_stripe(store, queues.data_count(), index)
            }
            QueueEvent::StripeSent(index) => {
                if let Some((_, left)) = self.transfers.get_mut(&index) {
                    *left -= 1;
                    if *left == 0 {
                        self.transfers.remove(&index);
                    }
                }
                Ok(())
            }
        }
    }

    fn acknowledge(&mut self, consumed: u32) -> Result<(), DisconnectReason> {
        if self.window.acknowledge(consumed) {
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
                let me = self.responder.clone();
                let waited = store
                    .catalogue()
                    .remove_waiters(|w| w.index == index && w.is_from(&me));
                if waited > 0 {
                    self.refuse(index, PeerRefusal::Cancelled);
                }
                Ok(())
            }
            PeerMessage::Offer { index, name, meta } => {
                self.handle_offered_tensor(store, index, name, &meta)
            }
            PeerMessage::Remove { index, name } => {
                let removed = store.catalogue().remove(&name);
                match removed {
                    Some(_) => self.unsent.push_back(PeerMessage::Done { index }),
                    None => self.refuse(index, PeerRefusal::Missing),
                }
                Ok(())
            }
            PeerMessage::Done { index } => match self.outstanding.remove(index) {
                Some(
                    OutstandingRequest::Offer(_, _, pending)
                    | OutstandingRequest::Remove(_, pending),
                ) => {
                    self.complete(Some(pending), Ok(None));
                    Ok(())
                }
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
                    link: self.responder.clone(),
                    index,
                    destination: destination.clone(),
                };
                let found = store.catalogue().find_or_wait(&name, waiting);
                if found.is_none() {
                    return Ok(());
                }
                found
            }
            RequestedTensor::ByOffer(offer) => match self.outstanding.get(offer) {
                Some(OutstandingRequest::Offer(_, tensor, _)) => Some(tensor.clone()),
                _ => None,
            },
        };
        match found {
            Some(tensor) => self.answer(queues, index, tensor, destination.as_ref()),
            None => {
                self.refuse(index, PeerRefusal::Missing);
                Ok(())
            }
        }
    }

    /// Sends a tensor, or what it is if the receiver takes it to be something else.
    pub(crate) fn answer(
        &mut self,
        queues: &mut ConnectedQps,
        index: u32,
        tensor: Tensor,
        destination: Option<&(TensorMeta, RemoteMemory)>,
    ) -> Result<(), DisconnectReason> {
        match destination {
            Some((meta, memory)) if meta == tensor.meta() => {
                if memory.len < meta.total_bytes() {
                    self.refuse(index, PeerRefusal::Memory);
                    return Ok(());
                }
                self.backlog.push_back((index, tensor, *memory));
                self.flush(queues)
            }
            _ => {
                let meta = tensor.meta().clone();
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
        let Some(OutstandingRequest::Get(get)) = self.outstanding.get(index) else {
            return Err(unexpected_answer("metadata", index));
        };
        let name = get.name.clone();
        let given = get.destination.as_ref().filter(|_| get.is_caller_memory);
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
                    wait: get.wait,
                };
                self.request(index, wanted, Some(&tensor));
            }
            Err(e) => {
                let removed = self.outstanding.remove(index);
                self.complete(removed.and_then(OutstandingRequest::into_pending), Err(e));
            }
        }
        Ok(())
    }

    /// Remembers what a tensor is, for the next request for this key.
    fn remember_metadata(&mut self, key: String, meta: &TensorMeta) {
        if self.known_metadata.get(&key) == Some(meta) {
            return;
        }
        if self.known_metadata.len() >= METADATA_MAX {
            self.known_metadata.clear();
        }
        self.known_metadata.insert(key, meta.clone());
    }

    fn handle_refusal(&mut self, index: u32, why: PeerRefusal) -> Result<(), DisconnectReason> {
        let removed = self.outstanding.remove(index);
        let (name, bytes) = match &removed {
            Some(OutstandingRequest::Get(get)) => (get.name.clone(), 0),
            Some(OutstandingRequest::Offer(name, tensor, _)) => {
                (name.clone(), tensor.meta().total_bytes())
            }
            Some(OutstandingRequest::Remove(name, _)) => (name.clone(), 0),
            // The offer was withdrawn.
            Some(OutstandingRequest::IncomingOffer(..)) => return Ok(()),
            None => return Err(unexpected_answer("a refusal", index)),
        };
        let error = match why {
            PeerRefusal::Missing => Error::NotFound(name),
            PeerRefusal::Cancelled => Error::Cancelled(name),
            PeerRefusal::TooLarge => Error::TooLarge { name, bytes },
            PeerRefusal::Memory => Error::PeerRegistration(name),
        };
        self.complete(
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
        if !store.catalogue().can_store(meta.total_bytes()) {
            self.refuse(index, PeerRefusal::TooLarge);
            return Ok(());
        }
        let Ok(tensor) = allocate(store, meta) else {
            self.refuse(index, PeerRefusal::Memory);
            return Ok(());
        };
        let fetch = OutstandingRequest::IncomingOffer(index, name, tensor.clone(), 0);
        match self.outstanding.insert(fetch) {
            Ok(own) => self.request(own, RequestedTensor::ByOffer(index), Some(&tensor)),
            Err(_) => self.refuse(index, PeerRefusal::Memory),
        }
        Ok(())
    }

    /// A stripe has come.
    fn handle_stripe(
        &mut self,
        store: &Store,
        queue_pairs: u64,
        index: u32,
    ) -> Result<(), DisconnectReason> {
        let none = || unexpected_answer("data", index);
        let (tensor, stripes) = match self.outstanding.get(index).ok_or_else(none)? {
            OutstandingRequest::Get(get) => (get.destination.as_ref(), &mut get.stripes),
            OutstandingRequest::IncomingOffer(_, _, tensor, stripes) => (Some(&*tensor), stripes),
            OutstandingRequest::Offer(..) | OutstandingRequest::Remove(..) => return Err(none()),
        };
        *stripes += 1;
        let expected = tensor.map(|t| stripes::count(t.meta().total_bytes(), queue_pairs));
        if expected.is_some_and(|expected| *stripes < expected) {
            return Ok(());
        }
        match self.outstanding.remove(index) {
            Some(OutstandingRequest::Get(get)) => {
                if let Some(tensor) = &get.destination {
                    self.remember_metadata(get.name.key, tensor.meta());
                }
                self.complete(get.pending, Ok(get.destination));
            }
            Some(OutstandingRequest::IncomingOffer(offer, name, tensor, _)) => {
                let bytes = tensor.meta().total_bytes();
                let waiting = store.catalogue().store(name, tensor.clone(), bytes);
                let serve = |w| DeferredAction::Serve(w, tensor.clone());
                self.effects.extend(waiting.into_iter().map(serve));
                self.unsent.push_back(PeerMessage::Done { index: offer });
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

/// Where a tensor is, for a peer that WRITEs it.
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
