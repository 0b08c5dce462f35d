//! The two ends over reliable queue pairs.

mod lane;
mod receiver;
mod sender;

pub(crate) use lane::Lane;
pub use receiver::Receiver;
pub use sender::Sender;
