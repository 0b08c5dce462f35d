//! The provider under test.

use verbs_abi::{LaterSymbols, Symbols};

/// The tables of the provider under test.
#[derive(Clone, Copy)]
pub struct ProviderTables {
    /// Entry points of the provider.
    pub symbols: &'static Symbols,
    /// Entry points that later versions of libibverbs added.
    pub later_symbols: &'static LaterSymbols,
}
