//! The client library: a [`Pipeline`] of requests, and blocking calls over it.
//!
//! [`Client`] has blocking calls over a [`Pipeline`], which keeps a window of requests outstanding. A [`Router`] is a
//! client of several servers, and a [`Controller`] keeps them equally loaded.
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
pub use controller::Controller;
pub(crate) use controller::ask;
pub use error::ClientError;
pub use pipeline::Pipeline;
pub use request::{Answer, ClientStats, Completion};
pub use requests::Requests;
pub use router::Router;
