//! The provider of verbs below the tap.

use verbs_abi::{LaterSymbols, Symbols};

/// A provider of verbs: a type whose functions return the provider's tables of entry points.
pub trait Provider: 'static {
    /// Name of the provider, at most 16 bytes.
    const NAME: &'static str;
    /// Number of bits by which a QP number is shifted to get the process, if each process counts as a
    /// machine (on a software NIC).
    const QPN_PROCESS_SHIFT: Option<u32>;

    /// Returns the entry points.
    fn symbols() -> &'static Symbols;

    /// Returns the entry points that libibverbs got after version 1.1, if the provider has them.
    fn later_symbols() -> Option<&'static LaterSymbols>;
}
