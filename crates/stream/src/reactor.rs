//! A completion channel in tokio's reactor.

#![allow(unsafe_code)]

use std::io;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use verbs::CompletionChannel;

/// Watches a channel for events. Its descriptor must not block.
pub(crate) fn watch(channel: CompletionChannel) -> io::Result<AsyncFd<CompletionChannel>> {
    // SAFETY: the descriptor is the channel's, which never changes it, and is open as long as a clone of the channel is
    // there; the `AsyncFd` holds one until it has left the reactor.
    Ok(unsafe { AsyncFd::register_with_interest(channel, Interest::READABLE) }?)
}
