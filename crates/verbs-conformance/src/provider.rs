//! Providers: the software NIC's table of entry points, or the machine's own library.

use std::sync::OnceLock;

use anyhow::{Context as _, anyhow};
use serde::{Deserialize, Serialize};
use verbs_abi::{Symbols, for_each_symbol};

/// A provider, selected by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
pub enum ProviderKind {
    /// The software NIC.
    Softnic,
    /// The machine's libibverbs.so.1.
    System,
}

impl ProviderKind {
    /// Returns the name of the provider on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Softnic => "softnic",
            Self::System => "system",
        }
    }

    /// Returns the provider's entry points.
    ///
    /// # Errors
    /// Returns an error if the machine has no usable libibverbs.
    pub fn symbols(self) -> anyhow::Result<&'static Symbols> {
        match self {
            Self::Softnic => Ok(softnic::symbols()),
            Self::System => load_system(),
        }
    }
}

macro_rules! load {
    ($( $(#[$meta:meta])* fn $name:ident($( $arg:ident: $type:ty ),*) $(-> $ret:ty)?; )*) => {
        /// Fills the table of entry points by `dlsym`, which returns the default (newest) version of each
        /// symbol.
        fn fill(library: &'static libloading::Library) -> anyhow::Result<Symbols> {
            Ok(Symbols {
            // SAFETY: verbs-abi declares the symbol of that name with this type, and its tests compare its
            // types with the C header. The library is never unloaded (`load_system`).
            $( $name: *unsafe {
                library.get::<unsafe extern "C" fn($( $type ),*) $(-> $ret)?>(
                    concat!(stringify!($name), "\0").as_bytes(),
                )
            }
            .with_context(|| concat!("libibverbs.so.1 has no ", stringify!($name)))?, )*
            })
        }
    };
}

for_each_symbol!(load);

/// Opens the machine's libibverbs.so.1 once, and never closes it.
///
/// # Errors
/// Returns an error if the library is missing or lacks a symbol.
pub fn load_system() -> anyhow::Result<&'static Symbols> {
    static SYSTEM: OnceLock<Result<Symbols, String>> = OnceLock::new();
    let load = || -> anyhow::Result<Symbols> {
        // SAFETY: the library's initialisers set up only its own state.
        let library = unsafe { libloading::Library::new("libibverbs.so.1") }.context(
            "cannot open libibverbs.so.1 (Debian: apt install libibverbs1 ibverbs-providers)",
        )?;
        // The library's providers register fork handlers, so it must stay loaded.
        let library: &'static libloading::Library = Box::leak(Box::new(library));
        fill(library)
    };
    SYSTEM
        .get_or_init(|| load().map_err(|e| format!("{e:#}")))
        .as_ref()
        .map_err(|e| anyhow!("{e}"))
}
