//! Requests and answers over a connection.
//!
//! Either side asks. A request is outstanding until its one answer has come: all stripes, other metadata, or a refusal. So the
//! memory of a request whose caller has gone stays until nothing can come any more, and is then free.

use std::collections::{HashMap, VecDeque};
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use verbs::{MemoryRegion, RemoteMemory};

use crate::catalogue::Catalogue;
use crate::error::Error;
use crate::memory::{Pool, Tensor};
use crate::message::{Message, Name, Refusal, Wanted};
use crate::meta::Meta;
use crate::operation::{Outcome, Pending};
use crate::queues::{Arrival, Broken, Queues};
use crate::requests::{REQUESTS_MAX, Requests};
use crate::stripes;
use crate::window::Window;

/// Metadata that are remembered of a peer's tensors.
const METADATA_MAX: usize = 4096;

/// The state that all connections of a process share.
#[derive(Debug)]
pub(crate) struct Shelf {
    pub(crate) catalogue: Mutex<Catalogue<Tensor, Waiting>>,
    pub(crate) pool: Arc<Pool>,
}

impl Shelf {
    pub(crate) fn catalogue(&self) -> MutexGuard<'_, Catalogue<Tensor, Waiting>> {
        self.catalogue
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection, for requests that wait.
pub(crate) trait Answers: Debug + Send + Sync {
    /// The tensor that the peer has asked for is there.
    fn answer(&self, index: u32, tensor: Tensor, destination: Option<&(Meta, RemoteMemory)>);
}

/// A peer's request for a tensor that is not there yet.
#[derive(Debug)]
pub(crate) struct Waiting {
    link: Weak<dyn Answers>,
    index: u32,
    destination: Option<(Meta, RemoteMemory)>,
}

impl Waiting {
    /// The tensor is there.
    pub(crate) fn serve(self, tensor: Tensor) {
        if let Some(link) = self.link.upgrade() {
            link.answer(self.index, tensor, self.destination.as_ref());
        }
    }

    /// Whether it came over this connection.
    pub(crate) fn is_of(&self, link: &Weak<dyn Answers>) -> bool {
        self.link.ptr_eq(link)
    }
}

/// What is under way.
#[derive(Debug)]
pub(crate) struct Talk {
    me: Weak<dyn Answers>,
    window: Window,
    unsent: VecDeque<Message>,
    outstanding: Requests<Outstanding>,
    known: HashMap<String, Meta>,
    /// Tensors of which stripes are being sent, by the peer's index.
    transfers: HashMap<u32, (Tensor, usize)>,
    /// Transfers for which the send queues have no room.
    backlog: VecDeque<(u32, Tensor, RemoteMemory)>,
    /// For others, once the lock is free.
    effects: Vec<Effect>,
}

/// An action to take without the lock.
#[derive(Debug)]
pub(crate) enum Effect {
    Complete(Pending, Outcome),
    Serve(Waiting, Tensor),
}

/// A request of this side.
#[derive(Debug)]
enum Outstanding {
    Get(Get),
    /// An offered tensor comes: the peer's index of the offer, its name, where it goes, stripes that have come.
    Fetch(u32, Name, Tensor, u64),
    Offer(Name, Tensor, Pending),
    Remove(Name, Pending),
}

/// A tensor that was asked for.
#[derive(Debug)]
struct Get {
    name: Name,
    wait: bool,
    destination: Option<Tensor>,
    /// The destination is the caller's: it can be no other.
    is_given: bool,
    stripes: u64,
    /// None once the caller has gone.
    pending: Option<Pending>,
}

/// A caller's request to a peer.
#[derive(Debug)]
pub(crate) enum Ask {
    /// A tensor; into this memory, if there is some.
    Get(Name, bool, Option<Tensor>),
    /// That it stores one.
    Put(Name, Tensor),
    /// That it removes one.
    Remove(Name),
}

impl Outstanding {
    fn into_pending(self) -> Option<Pending> {
        match self {
            Self::Get(get) => get.pending,
            Self::Offer(_, _, pending) | Self::Remove(_, pending) => Some(pending),
            Self::Fetch(..) => None,
        }
    }
}

impl Talk {
    /// Nothing is under way on this connection.
    pub(crate) fn new(me: Weak<dyn Answers>) -> Self {
        Self {
            me,
            window: Window::default(),
            unsent: VecDeque::new(),
            outstanding: Requests::new(),
            known: HashMap::new(),
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
    pub(crate) fn take_effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    /// The connection has ended: who waits for an answer.
    pub(crate) fn end(&mut self, shelf: &Shelf) -> Vec<Pending> {
        let me = self.me.clone();
        shelf.catalogue().forget(|waiting| waiting.is_of(&me));
        self.transfers.clear();
        self.backlog.clear();
        let outstanding = self.outstanding.drain();
        outstanding.filter_map(Outstanding::into_pending).collect()
    }

    /// The caller of a request has gone; whether its destination is the caller's.
    pub(crate) fn cancel(&mut self, index: u32) -> bool {
        let Some(Outstanding::Get(get)) = self.outstanding.get(index) else {
            return false;
        };
        get.pending = None;
        let is_given = get.is_given;
        self.unsent.push_back(Message::Cancel { index });
        is_given
    }

    /// Whether an answer may still come.
    pub(crate) fn is_outstanding(&mut self, index: u32) -> bool {
        self.outstanding.get(index).is_some()
    }

    /// Takes the destination of a request out.
    pub(crate) fn take_destination(&mut self, index: u32) -> Option<Tensor> {
        match self.outstanding.get(index) {
            Some(Outstanding::Get(get)) => get.destination.take(),
            _ => None,
        }
    }

    /// Sends what the window and the send queues have room for.
    pub(crate) fn flush(&mut self, queues: &mut Queues) -> Result<(), Broken> {
        while let Some((index, tensor, remote)) = self.backlog.pop_front() {
            match queues.write(index, &tensor, remote)? {
                Some(stripes) => drop(self.transfers.insert(index, (tensor, stripes))),
                None => {
                    self.backlog.push_front((index, tensor, remote));
                    break;
                }
            }
        }
        while self.window.has_room() && queues.takes_message() {
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
    pub(crate) fn ask(&mut self, shelf: &Shelf, ask: Ask, pending: Pending) -> Result<u32, Error> {
        let busy = |_| Error::Busy(REQUESTS_MAX);
        match ask {
            Ask::Get(name, wait, given) => {
                let is_given = given.is_some();
                let destination = match (given, self.known.get(&name.key)) {
                    (None, Some(meta)) => Some(memory(shelf, meta)?),
                    (given, _) => given,
                };
                let get = Get {
                    name: name.clone(),
                    wait,
                    destination: destination.clone(),
                    is_given,
                    stripes: 0,
                    pending: Some(pending),
                };
                let index = self
                    .outstanding
                    .insert(Outstanding::Get(get))
                    .map_err(busy)?;
                self.request(index, Wanted::Named { name, wait }, destination.as_ref());
                Ok(index)
            }
            Ask::Put(name, tensor) => {
                let meta = tensor.meta().clone();
                let offer = Outstanding::Offer(name.clone(), tensor, pending);
                let index = self.outstanding.insert(offer).map_err(busy)?;
                self.unsent.push_back(Message::Offer { index, name, meta });
                Ok(index)
            }
            Ask::Remove(name) => {
                let remove = Outstanding::Remove(name.clone(), pending);
                let index = self.outstanding.insert(remove).map_err(busy)?;
                self.unsent.push_back(Message::Remove { index, name });
                Ok(index)
            }
        }
    }

    fn request(&mut self, index: u32, wanted: Wanted, destination: Option<&Tensor>) {
        let destination = destination.map(|t| (t.meta().clone(), remote(t)));
        self.unsent.push_back(Message::Request {
            index,
            wanted,
            destination,
        });
    }

    fn refuse(&mut self, index: u32, why: Refusal) {
        self.unsent.push_back(Message::Refused { index, why });
    }

    fn complete(&mut self, pending: Option<Pending>, outcome: Outcome) {
        self.effects
            .extend(pending.map(|pending| Effect::Complete(pending, outcome)));
    }

    /// Something has come.
    pub(crate) fn take(
        &mut self,
        shelf: &Shelf,
        queues: &mut Queues,
        arrival: Arrival<'_>,
    ) -> Result<(), Broken> {
        match arrival {
            Arrival::Acknowledgement(consumed) => self.acknowledge(consumed),
            Arrival::Message(bytes) => {
                let (message, consumed) = Message::decode(bytes).map_err(|e| e.to_string())?;
                self.window.receive();
                self.acknowledge(consumed)?;
                self.hear(shelf, queues, message)
            }
            Arrival::Data(index) => self.stripe(shelf, queues.data_count(), index),
            Arrival::Written(index) => {
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

    fn acknowledge(&mut self, consumed: u32) -> Result<(), Broken> {
        if self.window.acknowledge(consumed) {
            return Ok(());
        }
        Err("the peer acknowledges messages that were not sent".to_owned())
    }

    fn hear(&mut self, shelf: &Shelf, queues: &mut Queues, message: Message) -> Result<(), Broken> {
        match message {
            Message::Request {
                index,
                wanted,
                destination,
            } => self.requested(shelf, queues, index, wanted, destination),
            Message::Metadata { index, meta } => self.other_metadata(shelf, index, meta),
            Message::Refused { index, why } => self.refused(index, why),
            Message::Cancel { index } => {
                let me = self.me.clone();
                let waited = shelf
                    .catalogue()
                    .forget(|w| w.index == index && w.is_of(&me));
                if waited > 0 {
                    self.refuse(index, Refusal::Cancelled);
                }
                Ok(())
            }
            Message::Offer { index, name, meta } => self.offered(shelf, index, name, &meta),
            Message::Remove { index, name } => {
                let removed = shelf.catalogue().remove(&name);
                match removed {
                    Some(_) => self.unsent.push_back(Message::Done { index }),
                    None => self.refuse(index, Refusal::Missing),
                }
                Ok(())
            }
            Message::Done { index } => match self.outstanding.remove(index) {
                Some(Outstanding::Offer(_, _, pending) | Outstanding::Remove(_, pending)) => {
                    self.complete(Some(pending), Ok(None));
                    Ok(())
                }
                _ => Err(unexpected("the end of an offer", index)),
            },
        }
    }

    fn requested(
        &mut self,
        shelf: &Shelf,
        queues: &mut Queues,
        index: u32,
        wanted: Wanted,
        destination: Option<(Meta, RemoteMemory)>,
    ) -> Result<(), Broken> {
        let found = match wanted {
            Wanted::Named { name, wait: false } => shelf.catalogue().find(&name),
            Wanted::Named { name, wait: true } => {
                let waiting = Waiting {
                    link: self.me.clone(),
                    index,
                    destination: destination.clone(),
                };
                let found = shelf.catalogue().find_or_wait(&name, waiting);
                if found.is_none() {
                    return Ok(());
                }
                found
            }
            Wanted::Offered(offer) => match self.outstanding.get(offer) {
                Some(Outstanding::Offer(_, tensor, _)) => Some(tensor.clone()),
                _ => None,
            },
        };
        match found {
            Some(tensor) => self.answer(queues, index, tensor, destination.as_ref()),
            None => {
                self.refuse(index, Refusal::Missing);
                Ok(())
            }
        }
    }

    /// Sends a tensor, or what it is if the receiver takes it to be something else.
    pub(crate) fn answer(
        &mut self,
        queues: &mut Queues,
        index: u32,
        tensor: Tensor,
        destination: Option<&(Meta, RemoteMemory)>,
    ) -> Result<(), Broken> {
        match destination {
            Some((meta, memory)) if meta == tensor.meta() => {
                if memory.len < meta.bytes() {
                    self.refuse(index, Refusal::Memory);
                    return Ok(());
                }
                self.backlog.push_back((index, tensor, *memory));
                self.flush(queues)
            }
            _ => {
                let meta = tensor.meta().clone();
                self.unsent.push_back(Message::Metadata { index, meta });
                Ok(())
            }
        }
    }

    /// The tensor is something else than this side took it to be: asks again, with memory for that.
    fn other_metadata(&mut self, shelf: &Shelf, index: u32, meta: Meta) -> Result<(), Broken> {
        let Some(Outstanding::Get(get)) = self.outstanding.get(index) else {
            return Err(unexpected("metadata", index));
        };
        let name = get.name.clone();
        let given = get.destination.as_ref().filter(|_| get.is_given);
        let outcome = if let Some(given) = given {
            let given = given.meta().clone();
            Err(Error::Other {
                name,
                there: meta,
                given,
            })
        } else if get.pending.is_none() {
            Err(Error::Cancelled(name))
        } else {
            memory(shelf, &meta)
        };
        match outcome {
            Ok(tensor) => {
                get.destination = Some(tensor.clone());
                let wanted = Wanted::Named {
                    name: get.name.clone(),
                    wait: get.wait,
                };
                self.request(index, wanted, Some(&tensor));
            }
            Err(e) => {
                let removed = self.outstanding.remove(index);
                self.complete(removed.and_then(Outstanding::into_pending), Err(e));
            }
        }
        Ok(())
    }

    /// Remembers what a tensor is, for the next request for this key.
    fn remember(&mut self, key: String, meta: &Meta) {
        if self.known.get(&key) == Some(meta) {
            return;
        }
        if self.known.len() >= METADATA_MAX {
            self.known.clear();
        }
        self.known.insert(key, meta.clone());
    }

    fn refused(&mut self, index: u32, why: Refusal) -> Result<(), Broken> {
        let removed = self.outstanding.remove(index);
        let (name, bytes) = match &removed {
            Some(Outstanding::Get(get)) => (get.name.clone(), 0),
            Some(Outstanding::Offer(name, tensor, _)) => (name.clone(), tensor.meta().bytes()),
            Some(Outstanding::Remove(name, _)) => (name.clone(), 0),
            // The offer was withdrawn.
            Some(Outstanding::Fetch(..)) => return Ok(()),
            None => return Err(unexpected("a refusal", index)),
        };
        let error = match why {
            Refusal::Missing => Error::Missing(name),
            Refusal::Cancelled => Error::Cancelled(name),
            Refusal::TooLarge => Error::TooLarge { name, bytes },
            Refusal::Memory => Error::PeerMemory(name),
        };
        self.complete(removed.and_then(Outstanding::into_pending), Err(error));
        Ok(())
    }

    fn offered(
        &mut self,
        shelf: &Shelf,
        index: u32,
        name: Name,
        meta: &Meta,
    ) -> Result<(), Broken> {
        if !shelf.catalogue().takes(meta.bytes()) {
            self.refuse(index, Refusal::TooLarge);
            return Ok(());
        }
        let Ok(tensor) = memory(shelf, meta) else {
            self.refuse(index, Refusal::Memory);
            return Ok(());
        };
        let fetch = Outstanding::Fetch(index, name, tensor.clone(), 0);
        match self.outstanding.insert(fetch) {
            Ok(own) => self.request(own, Wanted::Offered(index), Some(&tensor)),
            Err(_) => self.refuse(index, Refusal::Memory),
        }
        Ok(())
    }

    /// A stripe has come.
    fn stripe(&mut self, shelf: &Shelf, queue_pairs: u64, index: u32) -> Result<(), Broken> {
        let none = || unexpected("data", index);
        let (tensor, stripes) = match self.outstanding.get(index).ok_or_else(none)? {
            Outstanding::Get(get) => (get.destination.as_ref(), &mut get.stripes),
            Outstanding::Fetch(_, _, tensor, stripes) => (Some(&*tensor), stripes),
            Outstanding::Offer(..) | Outstanding::Remove(..) => return Err(none()),
        };
        *stripes += 1;
        let expected = tensor.map(|t| stripes::count(t.meta().bytes(), queue_pairs));
        if expected.is_some_and(|expected| *stripes < expected) {
            return Ok(());
        }
        match self.outstanding.remove(index) {
            Some(Outstanding::Get(get)) => {
                if let Some(tensor) = &get.destination {
                    self.remember(get.name.key, tensor.meta());
                }
                self.complete(get.pending, Ok(get.destination));
            }
            Some(Outstanding::Fetch(offer, name, tensor, _)) => {
                let bytes = tensor.meta().bytes();
                let waiting = shelf.catalogue().store(name, tensor.clone(), bytes);
                let serve = |w| Effect::Serve(w, tensor.clone());
                self.effects.extend(waiting.into_iter().map(serve));
                self.unsent.push_back(Message::Done { index: offer });
            }
            _ => {}
        }
        Ok(())
    }
}

fn unexpected(what: &str, index: u32) -> Broken {
    format!("the peer sent {what} for request {index}, which is not outstanding")
}

/// Memory for a tensor that comes.
fn memory(shelf: &Shelf, meta: &Meta) -> Result<Tensor, Error> {
    let memory = shelf.pool.memory(meta)?;
    Ok(Tensor::in_memory(meta.clone(), memory))
}

/// Where a tensor is, for a peer that WRITEs it.
fn remote(tensor: &Tensor) -> RemoteMemory {
    let nothing = RemoteMemory {
        addr: 0,
        len: 0,
        rkey: verbs::RKey(0),
    };
    let region = tensor.memory.region().map(MemoryRegion::remote);
    region.map_or(nothing, |memory| RemoteMemory {
        len: tensor.meta().bytes(),
        ..memory
    })
}
