//! What a load needs of a client, whether of one server or of several.

use super::error::ClientError;
use super::pipeline::Pipeline;
use super::request::{ClientStats, Completion};
use crate::wire::Op;

/// Who takes requests: a [`Pipeline`] to one server, or a [`Router`](crate::Router) to several.
pub trait Requests {
    /// As [`Pipeline::submit`].
    ///
    /// # Errors
    /// [`ClientError`].
    fn submit(&mut self, tree: u8, op: &Op, token: u64) -> Result<bool, ClientError>;
    /// As [`Pipeline::poll`].
    ///
    /// # Errors
    /// [`ClientError`].
    fn poll(&mut self, each: impl FnMut(Completion<'_>)) -> Result<usize, ClientError>;
    /// Requests under way.
    fn outstanding(&self) -> usize;
    /// Requests that may be.
    fn window(&self) -> usize;
    /// Takes a new time for requests that are submitted after a pause.
    fn refresh(&mut self);
    /// What it had to do besides.
    fn stats(&self) -> ClientStats;
    /// Doorbells that requests took.
    fn doorbells(&self) -> u64;
}

impl Requests for Pipeline {
    #[inline]
    fn submit(&mut self, tree: u8, op: &Op, token: u64) -> Result<bool, ClientError> {
        self.submit(tree, op, token)
    }

    #[inline]
    fn poll(&mut self, each: impl FnMut(Completion<'_>)) -> Result<usize, ClientError> {
        self.poll(each)
    }

    #[inline]
    fn outstanding(&self) -> usize {
        self.outstanding()
    }

    #[inline]
    fn window(&self) -> usize {
        self.config().window
    }

    fn refresh(&mut self) {
        self.refresh();
    }

    fn stats(&self) -> ClientStats {
        self.stats().clone()
    }

    fn doorbells(&self) -> u64 {
        self.doorbells()
    }
}
