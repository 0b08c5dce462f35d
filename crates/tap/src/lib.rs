//! The tap: a layer over any provider of verbs that counts what a program does with them.
//!
//! A process in whose environment [`VARIABLE`] names a folder writes a file of counters there: a few hundred words
//! for each queue pair and completion queue that a thread of it uses, in memory that outlives the process, so that
//! a program that crashes has left what it did. Afterwards a [`Ledger`] holds an operation profile of each process of a
//! command.
//!
//! With [`trace::VARIABLE`] it also appends a line about each verb to a file.
//!
//! Without the variables a provider's table is handed out as it is: the tap costs nothing.
//!
//! # The layers, bottom up
//!
//! - `layout`: the file; `session`: who gets a cell of it.
//! - `request`: a work request, as far as it is counted; of a `postlist`, or `built` by `ibv_wr_*`.
//! - `table`, `objects`: what a handle of the verbs stands for here, found without a lock; `own_operations`: the
//!   provider's, where an object has some of its own.
//! - `machines`: where an address handle leads.
//! - `count`: what a call adds, as plain additions: a cell has one writer.
//! - `data_path`, `recvs`, `extended`, `control`: the functions of the verbs, each calling the provider's own first.
//! - [`trace`]: the lines, for these functions and for those that nothing is counted of.
//! - `read`, `perf`, `ledger`: the way back. They trust no file.
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
pub use session::VARIABLE;
use verbs_abi::{LaterSymbols, Symbols};

/// Whether this process is to be counted.
#[must_use]
pub fn is_counting() -> bool {
    session::is_wanted()
}

/// Whether this process is to be counted or traced.
#[must_use]
pub fn is_on() -> bool {
    is_counting() || trace::is_on()
}

/// A provider's entry points, counting. To be asked for when [`is_on`], once for each provider.
#[must_use]
pub fn symbols<P: Provider>() -> Symbols {
    if trace::is_on() {
        trace::symbols::<P>()
    } else {
        control::symbols::<P>()
    }
}

/// The same for the entry points that came after version 1.1.
#[must_use]
pub fn later_symbols<P: Provider>() -> Option<LaterSymbols> {
    if trace::is_on() {
        trace::later_symbols::<P>()
    } else {
        control::later_symbols::<P>()
    }
}
