//! The client library: a [`Pipeline`] of requests, and blocking calls and futures over it.
//!
//! Layers: [`ClientError`] and requests are below; `lane` sends RPCs to one partition; each implementation of `design`
//! carries out requests its way, one-sided ones over [`rpc::one_sided`]; `connect` opens sessions, and [`Pipeline`] keeps a
//! window of requests under way.

mod blocking;
mod connect;
mod design;
mod error;
mod future;
mod lane;
mod pipeline;
mod remote_index;
mod remote_records;
mod request;

pub use blocking::{Client, Outcome, Ticket, Value};
pub use error::ClientError;
pub use future::AsyncClient;
pub use pipeline::Pipeline;
pub use request::{Answer, ClientStats, Completion};
