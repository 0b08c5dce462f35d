//! Flow steering: selects the queue pairs that get a packet (`ibv_create_flow(3)`), and the work queue of an RSS queue
//! pair.

mod headers;
mod rss;
mod rules;

pub use headers::{FrameHeaders, MATCH_FIELDS_BYTES, field, layer};
pub use rss::{RssConfig, TOEPLITZ_KEY_BYTES, hash_field};
pub use rules::{FlowKind, FlowRule, HeaderMatch, PacketTrapState};
