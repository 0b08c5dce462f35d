//! The client library: a [`PipelinedClient`] of requests, and blocking calls over it.
//!
//! [`Client`] has blocking calls over a [`PipelinedClient`], which keeps a window of requests outstanding. A [`Router`]
//! is a client of several servers, and a [`LoadBalancer`] keeps them equally loaded.
//!
//! Below the pipeline, `lane` sends RPCs to one worker. `walker` READs nodes, `cache` keeps inner nodes, and
//! `leaf_change` changes leaves. `choice` selects RPC or READs for each request. `connect` opens sessions.

mod access_chooser;
mod blocking;
mod cache;
mod connect;
mod error;
mod execute_requests;
mod lane;
mod leaf_change;
mod load_balancer;
mod pipeline;
mod request;
mod router;
mod walker;

pub use blocking::Client;
pub use error::ClientError;
pub use execute_requests::ExecuteRequests;
pub use load_balancer::LoadBalancer;
pub(crate) use load_balancer::send_request_and_wait;
pub use pipeline::PipelinedClient;
pub use request::{Answer, ClientStats, Completion};
pub use router::Router;
