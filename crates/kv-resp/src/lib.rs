//! The Redis protocol (RESP) in front of a [`kv::store::Store`], for clients without RDMA. For example, `redis-cli` and
//! `redis-benchmark` can access the data of RDMA clients.
//!
//! The layers: [`CommandDecoder`] and [`ReplyWriter`] implement the protocol without I/O. [`Session`] executes commands on a
//! store. [`Listener`] and [`Connection`] carry the bytes. [`FrontEnd`] serves many connections in one thread.
//!
//! Each command is executed under the lock of its key's partition, and is atomic as in Redis. A command of several keys
//! (`DEL`, `EXISTS`, `MGET`, `MSET`) is atomic for each key, not for all together. Values have at most 64 KiB. There is
//! no password: every client that can connect can change all keys.

#![forbid(unsafe_code)]

mod admin;
mod answer;
mod call;
mod client;
mod commands;
mod connection;
mod frame;
mod front_end;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod keys;
pub mod load;
mod number;
mod rdma;
mod reply;
mod session;
mod strings;

pub use answer::{Answer, BadAnswer, encode_command};
pub use call::SharedState;
pub use connection::{Connection, ListenAddress, Listener};
pub use frame::{
    CommandDecoder, CommandStrings, MAX_BULK_BYTES, MAX_COMMAND_BYTES, MAX_COMMAND_STRINGS,
    MAX_INLINE_BYTES, ProtocolError,
};
pub use front_end::{FrontEnd, FrontEndStats};
pub use rdma::RdmaListener;
pub use reply::{Protocol, ReplyWriter};
pub use session::Session;

/// Returns the names of all commands.
#[cfg(test)]
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    commands::COMMANDS.iter().map(|c| c.name)
}
