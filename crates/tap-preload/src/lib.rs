//! The tap in front of the machine's own libibverbs, as a library for `LD_PRELOAD`. `verbatim run --provider system`
//! preloads this library, so that the verbs of unmodified programs on a real NIC are counted and traced.
//!
//! The library has a function under each name that libibverbs exports to programs. These functions have no symbol
//! version, so the loader finds them first for every version that a program needs. Each function calls libibverbs'
//! function of the same name through the tap. The tap also puts its functions into the operations of each opened
//! device. libibverbs and its provider libraries call each other under private names, which this library does not
//! replace.
#![allow(unsafe_code)]

use std::sync::OnceLock;

use libibverbs::{LoadError, System};
use verbs_abi::{LaterSymbols, Symbols, for_each_later_symbol, for_each_symbol};

fn symbols() -> &'static Symbols {
    static TAPPED: OnceLock<Symbols> = OnceLock::new();
    let own = libibverbs::loaded_symbols().unwrap_or_else(|error| end_process(&error));
    if tap::is_counting_or_tracing() {
        TAPPED.get_or_init(tap::symbols::<System>)
    } else {
        own
    }
}

fn later_symbols() -> &'static LaterSymbols {
    static TAPPED: OnceLock<Option<LaterSymbols>> = OnceLock::new();
    let own = libibverbs::loaded_later_symbols().unwrap_or_else(|error| end_process(&error));
    let tapped = if tap::is_counting_or_tracing() {
        TAPPED.get_or_init(tap::later_symbols::<System>).as_ref()
    } else {
        None
    };
    tapped.unwrap_or(own)
}

/// Ends the process, which has called a function of libibverbs although the machine's libibverbs cannot be used.
fn end_process(error: &LoadError) -> ! {
    eprintln!("verbatim: {error}");
    std::process::abort();
}

/// Exports each function of a table under its own name.
macro_rules! export {
    ($table:path: $( $(#[$meta:meta])* fn $name:ident($( $arg:ident: $type:ty ),*) $(-> $ret:ty)?; )*) => {
        $(
            /// Calls libibverbs' function of this name; the call is counted and traced.
            ///
            /// # Safety
            /// The contract of libibverbs' function of this name applies.
            // SAFETY: the name is libibverbs' own, and so are the arguments and the behaviour.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($( $arg: $type ),*) $(-> $ret)? {
                // SAFETY: this function has the same contract as libibverbs' function, and its caller upholds the
                // contract.
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
