//! One end of a connection, or a listener: what an id is when no C is looking.
//!
//! The states and their transitions are those of `linux:drivers/infiniband/core/cma.c` and `cm.c` as far as a
//! program can see them. The program's threads call what `rdma_*` functions ask for; the service's thread calls
//! [`Watched`](crate::service::Watched). What happens is told to the program through the
//! endpoint's channel.
//!
//! A peer that dies closes its socket, and so does one that destroys its id: the end of the stream is an event
//! in every state that has a peer.
//!
//! - `state`: the state, the events, and the transitions that both sides make.
//! - `program`, `peer`: the two sides.

mod peer;
mod program;
mod state;

pub use state::Event;
pub(crate) use state::{Detail, Endpoint, Phase};
