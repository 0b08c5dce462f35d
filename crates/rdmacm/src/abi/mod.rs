//! librdmacm's entry points, as C functions under their own names.
//!
//! Each is made of a safe function, whose arguments are the types of `edge` and of `c_edge`. Where the man page says
//! nothing else, they return 0, or -1 with errno. Nothing here unwinds: the functions called return errors.
//!
//! # Safety
//! As for the C functions: handles are NULL or live, pointers to arguments are NULL or valid for what the man
//! page says, strings end. Calls that change the same id are ordered by the program.
#![allow(
    clippy::missing_safety_doc,
    reason = "the module says it for all of them, and the man page for each"
)]

mod addresses;
mod addrinfo;
mod edge;
mod endpoints;
mod events;
mod ids;
mod multicast;
mod options;
mod qps;

pub use addresses::*;
pub use addrinfo::*;
pub use endpoints::*;
pub use events::*;
pub use ids::*;
pub use multicast::*;
pub use options::*;
pub use qps::*;
