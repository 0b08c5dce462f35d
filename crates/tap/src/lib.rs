//! The tap: a layer over any provider of verbs that counts the verbs that a program calls.
//!
//! A process writes a file of counters if the environment variable [`TAP_DIR_VARIABLE`] names a folder. The file has
//! a few hundred words for each queue pair and completion queue that a thread uses. The file outlives the
//! process, so the counts of a crashed program remain. A [`Ledger`] then holds an operation profile of each
//! process of a command.
//!
//! If the environment variable [`trace::TRACE_FILE_VARIABLE`] is set, the tap also appends a line about each verb to a
//! file.
//!
//! Without these variables the provider's table is used unchanged: the tap costs nothing.
//!
//! # The layers, bottom up
//!
//! - `layout`: the layout of a file of counters; `session`: the assignment of cells in the file.
//! - `request`: the counted properties of a work request, from a `postlist`, or `built` by `ibv_wr_*`.
//! - `table`, `objects`: the tap's data for a handle, found without a lock; `own_operations`: the provider's
//!   operations of extended objects.
//! - `machines`: the machines to which address handles lead.
//! - `count`: adds the work requests and completions of a call to a cell. Plain additions suffice, because a
//!   cell has one writer.
//! - `data_path`, `recvs`, `extended`, `control`: the functions of the verbs, each of which calls the
//!   provider's own function first.
//! - [`trace`]: trace lines, for these functions and for functions that are not counted.
//! - `read`, `perf`, `ledger`: reading of files, which are untrusted.
#![deny(unsafe_code)]
// `u64` and `usize` are the same size wherever this compiles.
#![allow(clippy::cast_possible_truncation)]

#[cfg(not(all(target_pointer_width = "64", target_endian = "little")))]
compile_error!("the file of counters has 64-bit little-endian words");

mod built;
#[allow(unsafe_code)]
mod control;
mod count;
#[allow(unsafe_code)]
mod data_path;
#[allow(unsafe_code)]
mod extended;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod layout;
mod ledger;
#[allow(unsafe_code)]
mod machines;
mod memory;
#[allow(unsafe_code)]
mod objects;
mod own_operations;
mod perf;
#[allow(unsafe_code)]
mod postlist;
mod provider;
mod read;
#[allow(unsafe_code)]
mod recvs;
mod request;
#[allow(unsafe_code)]
mod session;
#[allow(unsafe_code)]
mod table;
pub mod trace;

pub use ledger::{LEDGER_VERSION, Ledger, LedgerError, PcieLines};
pub use provider::Provider;
pub use read::ReadError;
pub use session::TAP_DIR_VARIABLE;
use verbs_abi::{LaterSymbols, Symbols};

/// Returns true if the verbs of this process are counted.
#[must_use]
pub fn is_counting() -> bool {
    session::is_counting_enabled()
}

/// Returns true if the verbs of this process are counted or traced.
#[must_use]
pub fn is_counting_or_tracing() -> bool {
    is_counting() || trace::is_on()
}

/// Returns a provider's table of entry points with the tap's functions. Call this function only if
/// [`is_counting_or_tracing`], and once for each provider.
#[must_use]
pub fn symbols<P: Provider>() -> Symbols {
    if trace::is_on() {
        trace::symbols::<P>()
    } else {
        control::symbols::<P>()
    }
}

/// Returns a provider's table of the entry points that came after version 1.1, with the tap's functions.
#[must_use]
pub fn later_symbols<P: Provider>() -> Option<LaterSymbols> {
    if trace::is_on() {
        trace::later_symbols::<P>()
    } else {
        control::later_symbols::<P>()
    }
}
