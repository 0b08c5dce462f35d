//! Flow steering: which queue pairs get a packet (`ibv_create_flow(3)`), and which work queue of one that spreads packets.

mod headers;
mod rules;
mod spread;

pub use headers::{HEADER_BYTES, Headers, field, layer};
pub use rules::{FlowKind, Pattern, Rule, Trap};
pub use spread::{KEY_BYTES, Spread, hash_field};
