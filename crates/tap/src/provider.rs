//! The provider of verbs below the tap.

use verbs_abi::{LaterSymbols, Symbols};

/// A provider of verbs: its tables.
pub trait Provider: 'static {
    /// Name of the provider, at most 16 bytes.
    const NAME: &'static str;
    /// Shift of a QP number whose result identifies the process, if each process counts as a machine (on a
    /// software NIC).
    const PROCESS_SHIFT: Option<u32>;

    /// Returns the entry points.
    fn symbols() -> &'static Symbols;

    /// Returns the entry points that libibverbs got after version 1.1, if the provider has them.
    fn later_symbols() -> Option<&'static LaterSymbols>;
}
