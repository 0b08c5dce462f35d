//! Reliable connections: [`requester`] and [`responder`].
//!
//! Both are driven by whoever owns them: packets that have come go in by `receive`, packets to be sent come out of
//! `transmit`, one a call, until it has none. `deadline` is the time at which `expire` wants to be called.

pub mod requester;
pub mod responder;
pub mod rnr;
