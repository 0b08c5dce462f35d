//! Which libibverbs: the software NIC's table, or the machine's own library.

use std::sync::OnceLock;

use anyhow::{Context as _, anyhow};
use serde::{Deserialize, Serialize};
use verbs_abi::{Symbols, for_each_symbol};

/// A provider by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
pub enum ProviderKind {
    /// The software NIC.
    Softnic,
    /// The machine's libibverbs.so.1.
    System,
}

impl ProviderKind {
    /// Its entry points.
    ///
    /// # Errors
    /// The machine has no usable libibverbs.
    pub fn symbols(self) -> anyhow::Result<&'static Symbols> {
        match self {
            Self::Softnic => Ok(softnic::symbols()),
            Self::System => load_system(),
        }
    }
}

macro_rules! load {
    ($( $(#[$meta:meta])* fn $name:ident($( $arg:ident: $type:ty ),*) $(-> $ret:ty)?; )*) => {
        /// Fills the table by `dlsym`, which gives the default (newest) version of each symbol.
        fn fill(library: &'static libloading::Library) -> anyhow::Result<Symbols> {
            Ok(Symbols {
            // SAFETY: verbs-abi declares the symbol of that name with this type and compares its types with
            // the C header; the library is never unloaded (`load_system`).
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

/// Opens the machine's libibverbs.so.1, once and for good.
///
/// # Errors
/// There is none, or it lacks a symbol.
pub fn load_system() -> anyhow::Result<&'static Symbols> {
    static SYSTEM: OnceLock<Result<Symbols, String>> = OnceLock::new();
    let load = || -> anyhow::Result<Symbols> {
        // SAFETY: its initialisers set up its own state only.
        let library = unsafe { libloading::Library::new("libibverbs.so.1") }.context(
            "cannot open libibverbs.so.1 (Debian: apt install libibverbs1 ibverbs-providers)",
        )?;
        // Its providers register fork handlers: it must stay loaded.
        let library: &'static libloading::Library = Box::leak(Box::new(library));
        fill(library)
    };
    SYSTEM
        .get_or_init(|| load().map_err(|e| format!("{e:#}")))
        .as_ref()
        .map_err(|e| anyhow!("{e}"))
}
