//! Flow steering: selects the queue pairs that get a packet (`ibv_create_flow(3)`), and the work queue of an RSS queue
//! pair.

mod headers;
mod rules;
mod spread;

pub use headers::{FrameHeaders, MATCH_FIELDS_BYTES, field, layer};
pub use rules::{FlowKind, FlowRule, HeaderMatch, PacketTrapState};
pub use spread::{KEY_BYTES, RssConfig, hash_field};
