//! The provider whose verbs are called.

use verbs_abi::{LaterSymbols, Symbols};

/// A provider whose verbs are called.
#[derive(Clone, Copy)]
pub struct Tables {
    /// Its entry points.
    pub symbols: &'static Symbols,
    /// Those that came later.
    pub later: &'static LaterSymbols,
}
