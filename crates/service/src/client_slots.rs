//! Indices of clients: an index belongs to one client until every user of the index has dropped it.

use std::sync::{Arc, Mutex};

use crate::worker::lock;

/// The free indices.
#[derive(Debug)]
pub struct FreeSlots {
    free_indices: Arc<Mutex<Vec<u32>>>,
}

impl FreeSlots {
    /// Creates the indices 0 to `clients` - 1.
    pub fn new(clients: usize) -> Self {
        let clients = u32::try_from(clients).unwrap_or(u32::MAX);
        Self {
            free_indices: Arc::new(Mutex::new((0..clients).rev().collect())),
        }
    }

    /// Returns an index for a new client, or `None` if no index is free.
    pub fn take_free_slot(&self) -> Option<ClientSlot> {
        let index = lock(&self.free_indices).pop()?;
        let free = Arc::clone(&self.free_indices);
        Some(ClientSlot {
            index,
            free_list: free,
        })
    }
}

/// A client's index; dropping it frees the index.
#[derive(Debug)]
pub struct ClientSlot {
    index: u32,
    free_list: Arc<Mutex<Vec<u32>>>,
}

impl ClientSlot {
    /// Returns the index.
    pub fn index(&self) -> u32 {
        self.index
    }
}

impl Drop for ClientSlot {
    fn drop(&mut self) {
        lock(&self.free_list).push(self.index);
    }
}
