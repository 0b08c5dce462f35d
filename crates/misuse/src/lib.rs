//! Sequences of verbs, good and bad, made of any bytes.
//!
//! [`run`] reads bytes as decisions: which verb, on which of a few objects, with which arguments. Objects are
//! destroyed in any order, handles are used after they were destroyed where the software NIC can tell, lengths and keys
//! are wrong, queues are full, lists are long. Pointers that the man pages let a library follow are good, since no
//! library can check them. The fuzz target of `fuzz/` and the replay of its corpus in this crate's tests both call it.
//!
//! What must hold: no verb crashes, hangs, or reads and writes outside of the memory that was registered (an address
//! sanitizer sees that); a destroyed handle is refused; and at the end everything can be destroyed in the right order,
//! which it cannot where a use was counted and not given back.
#![deny(unsafe_code)]

mod input;
mod tables;
#[allow(unsafe_code)]
mod world;

use std::sync::OnceLock;

use input::Input;
use world::{Device, World};

pub use tables::Tables;

/// Most verbs of one sequence.
const MAX_VERBS: usize = 400;

/// Calls the verbs that the bytes say, and destroys what they made.
///
/// # Panics
/// If the provider has no device, if a destroyed handle is taken for a live one, and if something cannot be destroyed in
/// the end.
pub fn run(tables: Tables, bytes: &[u8]) {
    static DEVICE: OnceLock<Device> = OnceLock::new();
    let device = DEVICE.get_or_init(|| Device::open(tables));
    let mut input = Input::new(bytes);
    let mut world = World::new(tables, device);
    for _ in 0..MAX_VERBS {
        if input.is_empty() {
            break;
        }
        world.step(&mut input);
    }
    world.end();
}
