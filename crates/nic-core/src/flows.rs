//! Flow steering: selects the queue pairs that get a packet (`ibv_create_flow(3)`), and the work queue of an RSS queue
//! pair.

mod headers;
mod rules;
mod spread;

pub use headers::{HEADER_BYTES, Headers, field, layer};
pub use rules::{FlowKind, Pattern, Rule, Trap};
pub use spread::{KEY_BYTES, Spread, hash_field};
