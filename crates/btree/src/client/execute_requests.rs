//! The interface between load generators and clients of one or of several servers.

use super::error::ClientError;
use super::pipeline::PipelinedClient;
use super::request::{ClientStats, Completion};
use crate::key_or_value::KeyOrValue;
use crate::wire::Operation;

/// A client that executes requests: a [`PipelinedClient`] to one server, or a [`Router`](crate::Router) to several.
pub trait ExecuteRequests<T: KeyOrValue = u64> {
    /// Submits a request, as [`PipelinedClient::submit`].
    ///
    /// # Errors
    /// [`ClientError`].
    fn submit(&mut self, tree: u8, op: &Operation<T>, token: u64) -> Result<bool, ClientError>;
    /// Takes answers, as [`PipelinedClient::poll`].
    ///
    /// # Errors
    /// [`ClientError`].
    fn poll(&mut self, each: impl FnMut(Completion<'_, T>)) -> Result<usize, ClientError>;
    /// Returns the number of outstanding requests.
    fn outstanding(&self) -> usize;
    /// Returns the largest number of outstanding requests.
    fn window(&self) -> usize;
    /// Reads the clock, for requests that are submitted after a pause.
    fn refresh_clock(&mut self);
    /// Returns the client's statistics, such as retries.
    fn stats(&self) -> ClientStats;
    /// Returns the number of doorbells for requests.
    fn doorbells(&self) -> u64;
}

impl<T: KeyOrValue, C: ExecuteRequests<T>> ExecuteRequests<T> for &mut C {
    #[inline]
    fn submit(&mut self, tree: u8, op: &Operation<T>, token: u64) -> Result<bool, ClientError> {
        (**self).submit(tree, op, token)
    }

    #[inline]
    fn poll(&mut self, each: impl FnMut(Completion<'_, T>)) -> Result<usize, ClientError> {
        (**self).poll(each)
    }

    fn outstanding(&self) -> usize {
        (**self).outstanding()
    }

    fn window(&self) -> usize {
        (**self).window()
    }

    fn refresh_clock(&mut self) {
        (**self).refresh_clock();
    }

    fn stats(&self) -> ClientStats {
        (**self).stats()
    }

    fn doorbells(&self) -> u64 {
        (**self).doorbells()
    }
}

impl<T: KeyOrValue> ExecuteRequests<T> for PipelinedClient<T> {
    #[inline]
    fn submit(&mut self, tree: u8, op: &Operation<T>, token: u64) -> Result<bool, ClientError> {
        self.submit(tree, op, token)
    }

    #[inline]
    fn poll(&mut self, each: impl FnMut(Completion<'_, T>)) -> Result<usize, ClientError> {
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

    fn refresh_clock(&mut self) {
        self.refresh_clock();
    }

    fn stats(&self) -> ClientStats {
        self.stats().clone()
    }

    fn doorbells(&self) -> u64 {
        self.doorbells()
    }
}
