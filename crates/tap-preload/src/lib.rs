//! The tap in front of the machine's own libibverbs: `verbatim run --provider system` puts this library into
//! `LD_PRELOAD`, so that what unmodified programs do on a real NIC is counted and traced.
//!
//! It has a function under each name that libibverbs exports to programs. These have no version, so the loader finds
//! them first for every version that a program asks for. They call the library's own functions through the tap, which
//! also puts its functions into the operations of each device that is opened. The library and its provider libraries
//! call each other under private names, which this library does not replace.
#![allow(unsafe_code)]

use std::sync::OnceLock;

use libibverbs::{LoadError, System};
use verbs_abi::{LaterSymbols, Symbols, for_each_later_symbol, for_each_symbol};

fn symbols() -> &'static Symbols {
    static TAPPED: OnceLock<Symbols> = OnceLock::new();
    let own = libibverbs::symbols().unwrap_or_else(|error| end(&error));
    if tap::is_on() {
        TAPPED.get_or_init(tap::symbols::<System>)
    } else {
        own
    }
}

fn later_symbols() -> &'static LaterSymbols {
    static TAPPED: OnceLock<Option<LaterSymbols>> = OnceLock::new();
    let own = libibverbs::later_symbols().unwrap_or_else(|error| end(&error));
    let tapped = if tap::is_on() {
        TAPPED.get_or_init(tap::later_symbols::<System>).as_ref()
    } else {
        None
    };
    tapped.unwrap_or(own)
}

/// Ends the process: it calls a library that is not there.
fn end(error: &LoadError) -> ! {
    eprintln!("verbatim: {error}");
    std::process::abort();
}

/// Exports each function of a table under its own name.
macro_rules! export {
    ($table:path: $( $(#[$meta:meta])* fn $name:ident($( $arg:ident: $type:ty ),*) $(-> $ret:ty)?; )*) => {
        $(
            /// libibverbs' function of this name, watched.
            ///
            /// # Safety
            /// That of libibverbs' function of this name.
            // SAFETY: the name is libibverbs' own, and so are the arguments and the behaviour.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($( $arg: $type ),*) $(-> $ret)? {
                // SAFETY: the same function with the same contract, which is the caller's.
                unsafe { ($table().$name)($( $arg ),*) }
            }
        )*
    };
}

macro_rules! export_first {
    ($( $all:tt )*) => { export! { symbols: $( $all )* } };
}

macro_rules! export_later {
    ($( $all:tt )*) => { export! { later_symbols: $( $all )* } };
}

for_each_symbol!(export_first);
for_each_later_symbol!(export_later);
