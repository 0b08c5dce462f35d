//! A provider of verbs: what the tap lies over.

use verbs_abi::{LaterSymbols, Symbols};

/// A provider of verbs, by its tables.
pub trait Provider: 'static {
    /// Its name, of at most 16 bytes.
    const NAME: &'static str;
    /// How far a QP number is shifted to tell the process, where processes stand for machines: on a software NIC.
    const PROCESS_SHIFT: Option<u32>;

    /// Its entry points.
    fn symbols() -> &'static Symbols;

    /// Those that libibverbs got after version 1.1, if it has them.
    fn later_symbols() -> Option<&'static LaterSymbols>;
}
