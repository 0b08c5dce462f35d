//! The tap: a layer over any provider of verbs that counts the verbs that a program calls.
//!
//! A process writes a file of counters if the environment variable [`TAP_DIR_ENV_VAR`] names a folder. The file has
//! a few hundred words for each queue pair and completion queue that a thread uses. The file outlives the
//! process, so the counts of a crashed program remain. A [`Ledger`] then holds an operation profile of each
//! process of a command.
//!
//! If the environment variable [`trace::TRACE_FILE_ENV_VAR`] is set, the tap also appends a line about each verb to a
//! file.
//!
//! Without these variables the provider's table is used unchanged: the tap costs nothing.
//!
//! # The layers, bottom up
//!
//! - `layout`: the layout of a file of counters; `session`: the assignment of cells in the file.
//! - `request`: the counted properties of a work request, from a `postlist`, or `built` by `ibv_wr_*`.
//! - `table`, `objects`: the tap's data for a handle, found without a lock; `provider_operations`: the provider's
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

mod built_work_requests;
#[allow(unsafe_code)]
mod control_path;
mod count;
#[allow(unsafe_code)]
mod count_posted_recvs;
#[allow(unsafe_code)]
mod data_path;
#[allow(unsafe_code)]
mod extended_verbs;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod layout;
mod ledger;
#[allow(unsafe_code)]
mod mapped_counter_file;
#[allow(unsafe_code)]
mod message_balance;
#[allow(unsafe_code)]
mod object_table;
#[allow(unsafe_code)]
mod objects;
#[allow(unsafe_code)]
mod peer_machines;
mod perf;
#[allow(unsafe_code)]
mod postlist;
mod provider;
mod provider_operations;
mod read;
mod registered_bytes;
mod send_work_request;
pub mod trace;

pub use ledger::{LEDGER_VERSION, Ledger, LedgerError, PcieLines};
pub use mapped_counter_file::TAP_DIR_ENV_VAR;
pub use provider::Provider;
pub use read::ReadError;
use verbs_abi::{LaterSymbols, Symbols};

/// Returns true if the verbs of this process are counted.
#[must_use]
pub fn is_counting() -> bool {
    mapped_counter_file::is_counting_enabled()
}

/// Returns true if the verbs of this process are counted or traced.
#[must_use]
pub fn is_counting_or_tracing() -> bool {
    is_counting() || trace::is_tracing_on()
}

/// Returns a provider's table of entry points with the tap's functions. Call this function only if
/// [`is_counting_or_tracing`], and once for each provider.
#[must_use]
pub fn symbols<P: Provider>() -> Symbols {
    if trace::is_tracing_on() {
        trace::symbols::<P>()
    } else {
        control_path::symbols::<P>()
    }
}

/// Returns a provider's table of the entry points that came after version 1.1, with the tap's functions.
#[must_use]
pub fn later_symbols<P: Provider>() -> Option<LaterSymbols> {
    if trace::is_tracing_on() {
        trace::later_symbols::<P>()
    } else {
        control_path::later_symbols::<P>()
    }
}
