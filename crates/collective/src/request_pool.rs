//! A fixed number of requests.

use crate::error::Error;
use crate::memory_layout::MAX_REQUESTS;

/// A send, receive or flush that was started. It is good until its test has said that it is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RequestHandle {
    index: u16,
    /// Which use of that place: a request that was tested to its end names nothing any more.
    generation: u32,
}

/// Places for [`MAX_REQUESTS`] requests.
#[derive(Debug)]
pub(crate) struct RequestPool<T> {
    slots: Vec<(u32, Option<T>)>,
    free_indices: Vec<u16>,
}

impl<T> RequestPool<T> {
    pub(crate) fn new() -> Self {
        let count = u16::try_from(MAX_REQUESTS).unwrap_or(u16::MAX);
        Self {
            slots: (0..count).map(|_| (0, None)).collect(),
            free_indices: (0..count).rev().collect(),
        }
    }

    /// Returns the number of free requests.
    pub(crate) fn free_slot_count(&self) -> usize {
        self.free_indices.len()
    }

    /// Returns true if all requests are free.
    pub(crate) fn is_idle(&self) -> bool {
        self.free_indices.len() == self.slots.len()
    }

    /// Allocates a request; `None` if no request is free.
    pub(crate) fn allocate(&mut self, value: T) -> Option<RequestHandle> {
        let index = self.free_indices.pop()?;
        let place = &mut self.slots[usize::from(index)];
        place.0 = place.0.wrapping_add(1);
        place.1 = Some(value);
        Some(RequestHandle {
            index,
            generation: place.0,
        })
    }

    /// The request.
    ///
    /// # Errors
    /// [`Error::UnknownRequest`] for one that was done with.
    pub(crate) fn get(&mut self, request: RequestHandle) -> Result<&mut T, Error> {
        match self.slots.get_mut(usize::from(request.index)) {
            Some((generation, Some(value))) if *generation == request.generation => Ok(value),
            _ => Err(Error::UnknownRequest),
        }
    }

    /// Gives the place of a request back.
    pub(crate) fn free(&mut self, request: RequestHandle) {
        let place = &mut self.slots[usize::from(request.index)];
        if place.0 == request.generation && place.1.take().is_some() {
            self.free_indices.push(request.index);
        }
    }
}
