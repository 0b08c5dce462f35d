//! The client library: a [`Pipeline`] of requests, and blocking calls over it.
//!
//! Layers: [`ClientError`] and requests are below; `lane` sends RPCs to one worker; `connect` opens sessions; [`Pipeline`]
//! keeps a window of requests under way, and [`Client`] is the friendly one.

mod blocking;
mod connect;
mod error;
mod lane;
mod pipeline;
mod request;

pub use blocking::Client;
pub use error::ClientError;
pub use pipeline::Pipeline;
pub use request::{Answer, ClientStats, Completion};
