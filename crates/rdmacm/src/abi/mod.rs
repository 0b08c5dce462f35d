//! The entry points of librdmacm, as C functions with their original names.
//!
//! Each entry point calls a safe function, whose arguments have the types of `edge` and `c_edge`. Unless the man page
//! says otherwise, the functions return 0, or -1 with errno. No function unwinds: the functions that they call return
//! errors.
//!
//! # Safety
//! As for the C functions: handles are NULL or live, pointers are NULL or valid as the man page requires, and strings
//! end with NUL. The program serializes calls that change the same id.
#![allow(
    clippy::missing_safety_doc,
    reason = "the module says it for all of them, and the man page for each"
)]

mod addresses;
mod addrinfo;
mod argument_types;
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
