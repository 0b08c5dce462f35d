//! Indices of clients: each is one client's until everybody has forgotten that client.

use std::sync::{Arc, Mutex};

use crate::worker::lock;

/// The indices that clients may still get.
#[derive(Debug)]
pub struct Slots {
    free: Arc<Mutex<Vec<u32>>>,
}

impl Slots {
    /// Indices from 0 on for so many clients.
    pub fn new(clients: usize) -> Self {
        let clients = u32::try_from(clients).unwrap_or(u32::MAX);
        Self {
            free: Arc::new(Mutex::new((0..clients).rev().collect())),
        }
    }

    /// An index for a new client, if there is one.
    pub fn take(&self) -> Option<Slot> {
        let index = lock(&self.free).pop()?;
        let free = Arc::clone(&self.free);
        Some(Slot { index, free })
    }
}

/// A client's index. It is free again when this is dropped.
#[derive(Debug)]
pub struct Slot {
    index: u32,
    free: Arc<Mutex<Vec<u32>>>,
}

impl Slot {
    /// The index.
    pub fn index(&self) -> u32 {
        self.index
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        lock(&self.free).push(self.index);
    }
}
