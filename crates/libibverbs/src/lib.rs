//! The machine's own libibverbs, opened at run time, for real NICs and the kernel's Soft-RoCE. A build needs no RDMA
//! library.

#![allow(unsafe_code)]

use std::sync::OnceLock;

use libloading::Library;
use verbs_abi::{LaterSymbols, Symbols, for_each_later_symbol, for_each_symbol};

/// The reason why the machine's libibverbs cannot be used.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The library cannot be opened.
    #[error(
        "cannot open libibverbs.so.1 ({0}): install it (Debian and Ubuntu: `apt install libibverbs1 \
         ibverbs-providers`; Fedora: `dnf install libibverbs`), or use the provider `softnic`, which needs nothing"
    )]
    NoLibrary(String),
    /// The library lacks an entry point.
    #[error(
        "libibverbs.so.1 has no symbol {symbol} ({source_text}): it is older than rdma-core 17; update it"
    )]
    NoSymbol {
        /// The missing symbol.
        symbol: &'static str,
        /// The message of the loader.
        source_text: String,
    },
}

/// The machine's libibverbs as a provider for the tap. Use it only after [`loaded_symbols`] has returned a table.
#[cfg(feature = "tap")]
pub struct System;

#[cfg(feature = "tap")]
impl tap::Provider for System {
    const NAME: &'static str = "system";
    const QPN_PROCESS_SHIFT: Option<u32> = None;

    fn symbols() -> &'static Symbols {
        loaded_symbols().expect("it was loaded before it was tapped")
    }

    fn later_symbols() -> Option<&'static LaterSymbols> {
        loaded_later_symbols().ok()
    }
}

/// Returns the entry points of libibverbs 1.0 and 1.1, which are loaded once.
///
/// # Errors
/// Returns an error if the library is missing or lacks an entry point.
pub fn loaded_symbols() -> Result<&'static Symbols, LoadError> {
    static SYMBOLS: OnceLock<Result<Symbols, LoadError>> = OnceLock::new();
    let loaded = SYMBOLS.get_or_init(|| load_symbols(load_library_once()?));
    loaded.as_ref().map_err(Clone::clone)
}

/// Returns the entry points that came after libibverbs 1.1. If the library lacks an entry point, a call of it ends the
/// program, as the loader would.
///
/// # Errors
/// Returns an error if the library is missing.
pub fn loaded_later_symbols() -> Result<&'static LaterSymbols, LoadError> {
    static SYMBOLS: OnceLock<Result<LaterSymbols, LoadError>> = OnceLock::new();
    let loaded = SYMBOLS.get_or_init(|| Ok(load_later_symbols(load_library_once()?)));
    loaded.as_ref().map_err(Clone::clone)
}

fn load_library_once() -> Result<&'static Library, LoadError> {
    static LIBRARY: OnceLock<Result<Library, LoadError>> = OnceLock::new();
    let opened = LIBRARY.get_or_init(|| {
        // SAFETY: libibverbs' initialisers only set up its own state. Its providers register fork handlers and threads,
        // so it must never be unloaded, and in a static it is not.
        unsafe { Library::new("libibverbs.so.1") }.map_err(|e| LoadError::NoLibrary(e.to_string()))
    });
    opened.as_ref().map_err(Clone::clone)
}

macro_rules! define_loader {
    ($( $(#[$meta:meta])* fn $name:ident($( $arg:ident: $type:ty ),*) $(-> $ret:ty)?; )*) => {
        /// Fills the table by `dlsym`, which gives the default (newest) version of each symbol.
        fn load_symbols(library: &'static Library) -> Result<Symbols, LoadError> {
            Ok(Symbols {
                // SAFETY: the type is the one that verbs-abi declares for the symbol of that name and checks
                // against the C header; the library is never unloaded.
                $( $name: *unsafe {
                    library.get::<unsafe extern "C" fn($( $type ),*) $(-> $ret)?>(concat!(stringify!($name), "\0"))
                }
                .map_err(|e| LoadError::NoSymbol { symbol: stringify!($name), source_text: e.to_string() })?, )*
            })
        }
    };
}
for_each_symbol!(define_loader);

macro_rules! define_later_loader {
    ($( $(#[$meta:meta])* fn $name:ident($( $arg:ident: $type:ty ),*) $(-> $ret:ty)?; )*) => {
        fn load_later_symbols(library: &'static Library) -> LaterSymbols {
            LaterSymbols {
                // SAFETY: as in `load_symbols`.
                $( $name: unsafe {
                    library.get::<unsafe extern "C" fn($( $type ),*) $(-> $ret)?>(concat!(stringify!($name), "\0"))
                }
                .map_or(missing::$name, |found| *found), )*
            }
        }

        /// Functions that take the place of functions that the library lacks; a call ends the program.
        mod missing {
            $(
                pub(super) unsafe extern "C" fn $name($( _: $type ),*) $(-> $ret)? {
                    super::end_process_for_missing_symbol(stringify!($name))
                }
            )*
        }
    };
}
for_each_later_symbol!(define_later_loader);

/// Ends a program that calls a function that its libibverbs lacks, as the loader would.
fn end_process_for_missing_symbol(symbol: &str) -> ! {
    eprintln!("verbatim: libibverbs.so.1 has no symbol {symbol}: it is too old for this program");
    std::process::abort();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_names_the_package() {
        let text = LoadError::NoLibrary("not found".into()).to_string();
        assert!(text.contains("apt install libibverbs1"), "{text}");
    }
}
