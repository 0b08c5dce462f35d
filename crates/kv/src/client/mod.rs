//! The client library: a [`PipelinedClient`] of requests, and blocking calls and futures over it.
//!
//! `lane` sends RPCs to one partition. Each implementation of `design` executes requests in its way, the one-sided ones
//! over [`rpc::one_sided`]. `connect` opens sessions. [`PipelinedClient`] keeps a window of requests outstanding.

mod blocking;
mod connect;
mod design;
mod error;
mod future;
mod lane;
mod lanes_to_poll;
mod pipeline;
mod remote_index;
mod remote_records;
mod request;
mod request_window;

pub use blocking::{Client, RequestResult, RequestTicket, Value};
pub use error::ClientError;
pub use future::AsyncClient;
pub use pipeline::PipelinedClient;
pub use request::{Answer, ClientStats, Completion};
