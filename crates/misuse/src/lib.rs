//! Sequences of valid and invalid verbs, made from any bytes.
//!
//! [`run`] reads bytes as decisions: which verb, on which of a few objects, with which arguments. Objects are
//! destroyed in any order, and destroyed handles are used if the software NIC can detect that. Lengths and
//! keys are wrong, queues are full, and lists are long. Pointers that the man pages permit a library to
//! follow are valid, because no library can check them. The fuzz target in `fuzz/` and the replay of its
//! corpus in this crate's tests both call [`run`].
//!
//! No verb may crash, hang, or access memory outside the registered regions (an address sanitizer detects
//! that). A destroyed handle must be refused. At the end everything must be destroyable in the right order,
//! which fails if a use count was not decremented.
#![deny(unsafe_code)]

mod input;
mod tables;
#[allow(unsafe_code)]
mod world;

use std::sync::OnceLock;

use input::DecisionBytes;
use world::{Device, World};

pub use tables::ProviderTables;

/// Maximum number of verbs in a sequence.
const MAX_VERBS: usize = 400;

/// Calls the verbs that the bytes select, and destroys the objects that they made.
///
/// # Panics
/// Panics if the provider has no device, if a destroyed handle is accepted, or if an object cannot be
/// destroyed at the end.
pub fn run(tables: ProviderTables, bytes: &[u8]) {
    static DEVICE: OnceLock<Device> = OnceLock::new();
    let device = DEVICE.get_or_init(|| Device::open(tables));
    let mut input = DecisionBytes::new(bytes);
    let mut world = World::new(tables, device);
    for _ in 0..MAX_VERBS {
        if input.is_empty() {
            break;
        }
        world.call_one_verb(&mut input);
    }
    world.destroy_all();
}
