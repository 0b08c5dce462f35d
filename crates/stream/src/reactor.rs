//! A completion channel in tokio's reactor.

#![allow(unsafe_code)]

use std::io;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use verbs::CompletionChannel;

/// Registers a channel with tokio's reactor. Its descriptor must be nonblocking.
pub(crate) fn watch(channel: CompletionChannel) -> io::Result<AsyncFd<CompletionChannel>> {
    // SAFETY: the descriptor belongs to the channel, which never changes it and keeps it open as
    // long as a clone of the channel exists. The `AsyncFd` holds a clone until it has left the
    // reactor.
    Ok(unsafe { AsyncFd::register_with_interest(channel, Interest::READABLE) }?)
}
