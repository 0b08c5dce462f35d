//! The state that all connections of a process share, and what they leave in it for each other.

use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use verbs::{MemoryRegion, RemoteMemory};

use crate::catalogue::TensorCatalogue;
use crate::error::Error;
use crate::incoming_room::{IncomingRoom, ReservedRoom};
use crate::memory::{RegisteredPool, Tensor};
use crate::message::TensorName;
use crate::meta::TensorMeta;

/// The state that all connections of a process share.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) catalogue: Mutex<TensorCatalogue<Tensor, WaitingRequest>>,
    pub(crate) pool: Arc<RegisteredPool>,
    pub(crate) incoming_room: IncomingRoom<OfferedTensor>,
}

impl Store {
    pub(crate) fn catalogue(&self) -> MutexGuard<'_, TensorCatalogue<Tensor, WaitingRequest>> {
        self.catalogue
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for offered tensors for which there is room now. Hold no lock.
    pub(crate) fn fetch_admitted_offers(&self) {
        while let Some((offer, room)) = self.incoming_room.take_next_admitted() {
            if let Some(link) = offer.connection.upgrade() {
                link.fetch_offered_tensor(offer, room);
            }
        }
    }
}

/// A connection, for requests that wait.
pub(crate) trait AnsweringConnection: Debug + Send + Sync {
    /// The tensor that the peer has asked for is there.
    fn answer_with_tensor(
        &self,
        index: u32,
        tensor: Tensor,
        destination: Option<&(TensorMeta, RemoteMemory)>,
    );

    /// There is room for a tensor that the peer has offered.
    fn fetch_offered_tensor(&self, offer: OfferedTensor, room: ReservedRoom<OfferedTensor>);
}

/// A tensor that a peer has offered.
#[derive(Debug)]
pub(crate) struct OfferedTensor {
    pub(crate) connection: Weak<dyn AnsweringConnection>,
    pub(crate) peer_offer_index: u32,
    pub(crate) name: TensorName,
    pub(crate) meta: TensorMeta,
}

/// A peer's request for a tensor that is not there yet.
#[derive(Debug)]
pub(crate) struct WaitingRequest {
    pub(crate) connection: Weak<dyn AnsweringConnection>,
    pub(crate) peer_request_index: u32,
    pub(crate) destination: Option<(TensorMeta, RemoteMemory)>,
}

impl WaitingRequest {
    /// The tensor is there.
    pub(crate) fn answer_with_tensor(self, tensor: Tensor) {
        if let Some(link) = self.connection.upgrade() {
            link.answer_with_tensor(self.peer_request_index, tensor, self.destination.as_ref());
        }
    }

    /// Returns true if the request came over this connection.
    pub(crate) fn is_from(&self, link: &Weak<dyn AnsweringConnection>) -> bool {
        self.connection.ptr_eq(link)
    }
}

/// Memory for a tensor that comes.
pub(crate) fn allocate_tensor(store: &Store, meta: &TensorMeta) -> Result<Tensor, Error> {
    let memory = store.pool.allocate_for_tensor(meta)?;
    Ok(Tensor::in_memory(meta.clone(), memory))
}

/// Returns the memory of a tensor, for a peer that WRITEs the tensor.
pub(crate) fn remote_memory_of_tensor(tensor: &Tensor) -> RemoteMemory {
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
