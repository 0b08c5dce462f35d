//! L_Keys and R_Keys: the table of memory regions in each segment, and how a region is kept from being
//! deregistered while it is accessed.
//!
//! A key is 32 random bits; the table is a hash table with a secret of its process, so neither keys nor
//! their places can be guessed. One table serves both keys, as one number serves as both.
//!
//! The upper 24 bits of a key choose its place, and no two keys have them in common: the lower eight are the
//! tag of a memory window, which changes with each of its bindings (`ibv_inc_rkey(3)`).
//!
//! A process has one table, in its segment, which every process of the fabric reads:
//!
//! - `entry`: the places of a table.
//! - `hazards`: how a region stays registered while it is accessed.
//! - `windows`: which memory windows this process has; `bind` binds them.
//! - `table`: registration.

mod bind;
mod entry;
mod hazards;
mod table;
mod windows;

pub use entry::{find, key_of};
pub use hazards::Pin;
pub use table::{Keys, NewRegion, deregister_of};
pub use windows::{BindRequest, WindowId, WindowType};
