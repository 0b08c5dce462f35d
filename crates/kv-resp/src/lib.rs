//! The Redis protocol (RESP) in front of a [`kv::store::Store`], for clients without RDMA. For example, `redis-cli` and
//! `redis-benchmark` can access the data of RDMA clients.
//!
//! The layers: [`CommandDecoder`] and [`ReplyWriter`] implement the protocol without I/O. [`Session`] executes commands
//! on a store. [`Listener`] and [`Connection`] carry the bytes, over sockets, TLS or RDMA. [`FrontEnd`] serves many connections in one thread.
//!
//! Each command is executed under the lock of its key's partition, and is atomic as in Redis. A command of several keys
//! (`DEL`, `EXISTS`, `MGET`, `MSET`) is atomic for each key, not for all together. Values have at most 64 KiB. There is
//! no password: every client that can connect can change all keys. [`TlsFiles::client_authorities`] decides who can
//! connect.

#![forbid(unsafe_code)]

mod admin;
mod call;
mod client_protocol;
mod command_decoder;
mod commands;
mod connection;
mod front_end;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod key_commands;
pub mod load_generator;
mod number;
mod rdma;
mod reply;
mod served_connection;
mod session;
mod strings;
mod tls;

pub use call::SharedState;
pub use client_protocol::{Answer, BadAnswer, encode_command};
pub use command_decoder::{
    CommandDecoder, CommandStrings, MAX_BULK_BYTES, MAX_COMMAND_BYTES, MAX_COMMAND_STRINGS,
    MAX_INLINE_BYTES, ProtocolError,
};
pub use connection::{Connection, ListenAddress, Listener};
pub use front_end::{DEFAULT_MAX_CONNECTIONS, FrontEnd, FrontEndStats};
pub use rdma::RdmaListener;
pub use reply::{Protocol, ReplyWriter};
pub use session::Session;
pub use tls::{TlsError, TlsFiles, TlsListener, TlsSettings};

/// Returns the names of all commands.
#[cfg(test)]
pub(crate) fn command_names() -> impl Iterator<Item = &'static str> {
    commands::COMMANDS.iter().map(|c| c.name)
}
