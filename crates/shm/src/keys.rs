//! L_Keys and R_Keys: the table of memory regions in each segment, and how an access keeps a region from
//! being deregistered.
//!
//! A key is 32 random bits. The table is a hash table with a secret of its process, so neither keys nor their
//! slots can be guessed. One table serves both keys, because a region's L_Key and R_Key are the same number.
//! The upper 24 bits of a key choose its slot, and no two keys have the same upper 24 bits. The
//! lower eight bits are the tag of a memory window, which changes with each bind
//! (`ibv_inc_rkey(3)`).
//!
//! A process has one table, in its segment, which every process of the fabric reads:
//!
//! - `entry`: the slots of a table.
//! - `hazards`: pins that keep a region registered during an access.
//! - `windows`: the memory windows of this process; `bind` binds them.
//! - `table`: registration.

mod bind;
mod hazards;
mod key_slots;
mod table;
mod windows;

pub use hazards::RegionPin;
pub use key_slots::{find_slot_of_key, key_of_generation_and_key};
pub use table::{KeyTable, NewRegion, deregister_remote};
pub use windows::{BindRequest, WindowId, WindowType};
