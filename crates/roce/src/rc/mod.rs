//! Reliable connections: [`requester`] and [`responder`].
//!
//! Their owner drives both state machines. `receive` takes each packet that has arrived; each call of `transmit`
//! returns one packet to send, until none is left. `expire` must be called at the time that `deadline` returns.

pub mod requester;
pub mod responder;
pub mod rnr_timer;
