//! An endpoint: one end of a connection, or a listener; the part of an id without C types.
//!
//! The states and their transitions are those of `linux:drivers/infiniband/core/cma.c` and `cm.c`, as far as a program
//! can observe them. The program's threads call the functions of `calls` for the `rdma_*` functions. The connection
//! manager thread calls [`SocketAndTimerHandler`](crate::cm_thread::SocketAndTimerHandler). Events reach the program
//! through the endpoint's channel.
//!
//! The socket of a peer is closed when its process dies or destroys the id. So the end of the stream is handled in
//! every state that has a peer.
//!
//! - `state`: the state, the events, and the transitions that both program and peer cause.
//! - `calls`, `peer`: the functions that the program calls, and the reactions to the peer.

mod calls;
mod message_and_timer_handlers;
mod state;

pub use state::EndpointEvent;
pub(crate) use state::{Endpoint, EndpointPhase, EventDetail};
