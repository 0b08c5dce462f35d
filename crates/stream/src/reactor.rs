//! The completion channel of all streams of a runtime, and the task that wakes the streams.
//!
//! A stream has a completion queue of its own, so no stream can overrun the queue of another, and a stream that polls
//! shares nothing. Only sleeping streams use the channel: one descriptor, and one task, for all of them.

#![allow(unsafe_code)]

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Waker;
use std::time::Duration;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::{Handle, Id};
use tokio::task::AbortHandle;
use verbs::{CompletionChannel, CompletionQueue, Context};

use crate::error::SetupError;

/// Maximum total time for which dropped streams of a runtime block in flushes without success. Otherwise a runtime with
/// many streams to a stopped peer would take a second for each of them to end.
const MAX_FAILED_FLUSH_TIME: Duration = Duration::from_secs(5);

/// Creates a completion channel whose descriptor does not block.
pub(crate) fn create_nonblocking_channel(
    context: &Context,
) -> Result<CompletionChannel, SetupError> {
    let channel = context.create_comp_channel()?;
    channel.set_nonblocking(true)?;
    Ok(channel)
}

/// The reactors of a device context, one for each runtime that uses the context.
#[derive(Debug, Default)]
pub(crate) struct Reactors(Mutex<Vec<(Id, Weak<Reactor>)>>);

impl Reactors {
    /// Returns the reactor of the current runtime, and creates it for the runtime's first stream.
    ///
    /// # Errors
    /// Returns an error if the process has no descriptors left.
    ///
    /// # Panics
    /// Panics outside a runtime.
    pub(crate) fn current_or_create(&self, context: &Context) -> Result<Arc<Reactor>, SetupError> {
        let id = Handle::current().id();
        let mut all = lock(&self.0);
        let known = all.iter().find(|(of, _)| *of == id);
        if let Some(reactor) = known.and_then(|(_, reactor)| reactor.upgrade()) {
            return Ok(reactor);
        }
        let new = Arc::new(Reactor::new(create_nonblocking_channel(context)?)?);
        all.retain(|(_, reactor)| reactor.strong_count() > 0);
        all.push((id, Arc::downgrade(&new)));
        Ok(new)
    }
}

/// The completion channel of a runtime's streams. A task waits for its events and wakes the streams of the completion
/// queues. The task ends with the last stream.
#[derive(Debug)]
pub(crate) struct Reactor {
    channel: CompletionChannel,
    wakers: Arc<WakersByCq>,
    task: AbortHandle,
    /// Time that dropped streams of the runtime have spent in flushes without success.
    failed_flush_time: Mutex<Duration>,
}

/// The wakers of streams, by the id of their completion queue.
#[derive(Debug, Default)]
struct WakersByCq(Mutex<HashMap<u64, Waker>>);

impl Reactor {
    fn new(channel: CompletionChannel) -> io::Result<Self> {
        let sleepers = Arc::new(WakersByCq::default());
        let events = register_with_tokio(channel.clone())?;
        let task =
            tokio::spawn(wake_streams_of_events(events, Arc::clone(&sleepers))).abort_handle();
        Ok(Self {
            channel,
            wakers: sleepers,
            task,
            failed_flush_time: Mutex::new(Duration::ZERO),
        })
    }

    /// Returns the channel for the completion queue of a stream.
    pub(crate) fn channel(&self) -> &CompletionChannel {
        &self.channel
    }

    /// Wakes `waker` at each event of a completion queue on the channel, until the registration is dropped.
    pub(crate) fn register(self: Arc<Self>, cq: &CompletionQueue, waker: Waker) -> Registration {
        lock(&self.wakers.0).insert(cq.id(), waker);
        Registration {
            reactor: self,
            cq_id: cq.id(),
        }
    }
}

impl Drop for Reactor {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The registration of a stream.
#[derive(Debug)]
pub(crate) struct Registration {
    reactor: Arc<Reactor>,
    cq_id: u64,
}

impl Registration {
    /// Returns the time that streams of the runtime may still spend in flushes without success.
    pub(crate) fn remaining_flush_time(&self) -> Duration {
        MAX_FAILED_FLUSH_TIME.saturating_sub(*lock(&self.reactor.failed_flush_time))
    }

    /// Records a flush that took `time` and did not succeed.
    pub(crate) fn record_failed_flush(&self, time: Duration) {
        *lock(&self.reactor.failed_flush_time) += time;
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // The waker is dropped without the lock, because it may be the last reference to a task.
        let removed = lock(&self.reactor.wakers.0).remove(&self.cq_id);
        drop(removed);
    }
}

/// Wakes the streams of all events, until the task is aborted or the runtime ends.
async fn wake_streams_of_events(events: AsyncFd<CompletionChannel>, sleepers: Arc<WakersByCq>) {
    let mut woken: Vec<Waker> = Vec::new();
    while let Ok(mut ready) = events.readable().await {
        {
            let sleepers = lock(&sleepers.0);
            // An event of a stream that was dropped has no waker.
            while let Ok(cq) = events.get_ref().wait_for_cq_event() {
                woken.extend(sleepers.get(&cq).cloned());
            }
        }
        ready.clear_ready();
        woken.drain(..).for_each(Waker::wake);
    }
}

/// Registers a completion channel with tokio's reactor. The channel's descriptor must be
/// nonblocking.
fn register_with_tokio(channel: CompletionChannel) -> io::Result<AsyncFd<CompletionChannel>> {
    // SAFETY: the descriptor belongs to the channel, which never changes it and keeps it open as
    // long as a clone of the channel exists. The `AsyncFd` holds a clone until it has left the
    // reactor.
    Ok(unsafe { AsyncFd::register_with_interest(channel, Interest::READABLE) }?)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
