//! The client library: a [`PipelinedClient`] of requests, and blocking calls over it.
//!
//! [`Client`] has blocking calls over a [`PipelinedClient`], which keeps a window of requests outstanding. A [`Router`] is a
//! client of several servers, and a [`LoadBalancer`] keeps them equally loaded.
//!
//! Below the pipeline, `lane` sends RPCs to one worker. `walker` READs nodes, `cache` keeps inner nodes, and
//! `leaf_change` changes leaves. `choice` selects RPC or READs for each request. `connect` opens sessions.

mod blocking;
mod cache;
mod choice;
mod connect;
mod controller;
mod error;
mod lane;
mod leaf_change;
mod pipeline;
mod request;
mod requests;
mod router;
mod walker;

pub use blocking::Client;
pub use controller::LoadBalancer;
pub(crate) use controller::call;
pub use error::ClientError;
pub use pipeline::PipelinedClient;
pub use request::{Answer, ClientStats, Completion};
pub use requests::ExecuteRequests;
pub use router::Router;
