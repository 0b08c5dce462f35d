//! The client library: a [`Pipeline`] of requests, and blocking calls over it.
//!
//! Layers: [`ClientError`] and requests are below; `lane` sends RPCs to one worker; `walker` READs nodes, of which `cache` keeps
//! some, and `leaf_change` changes leaves; `choice` says which of the two a request takes; `connect` opens sessions; [`Pipeline`] keeps a window of requests
//! under way, and [`Client`] is the friendly one. [`Router`] is a client of several servers,
//! which a [`Controller`] keeps equally loaded.

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
