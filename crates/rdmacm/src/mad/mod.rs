//! Connections by management datagrams (MADs), for peers on other hosts.
//!
//! - `machine`: the states of one connection, a pure function of messages and time.
//! - `format`: an endpoint's messages as management datagrams.
//! - `connection`: one connection: a machine, its messages and its timer.
//! - `port_probes`: whether any process has the port of a peer's address.
//! - `hub`: all connections of the process; it gives each MAD to its connection, or to a listener.
//!
//! An endpoint uses a connection like its socket: it sends a [`CmMessage`](crate::wire::CmMessage) and gets each
//! message of the peer once. The state machine repeats messages.

mod connection;
mod format;
mod hub;
mod machine;
mod port_probes;

pub(crate) use connection::{Connection, MessageConsumer};
pub(crate) use hub::{Listener, MadConnectionSettings, MadConnections};
