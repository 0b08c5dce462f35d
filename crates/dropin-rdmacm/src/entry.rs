//! The functions that are exported, and the labels that export them.

use rdmacm::abi::*;

include!(concat!(env!("OUT_DIR"), "/exports.rs"));

/// Runs when the library is loaded: says where the verbs are to come from, and looks for nothing yet.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = at_load;

extern "C" fn at_load() {
    rdmacm::provide(crate::verbs::find);
}
