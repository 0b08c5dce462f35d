//! Providers: each NIC is a table of libibverbs entry points and a name.
//!
//! All providers have the same type, so code above this module has one path.

use std::fmt;
use std::sync::OnceLock;

use libibverbs::System;
use tap::Provider as _;
use verbs_abi::{LaterSymbols, Symbols};

/// A NIC implementation behind the libibverbs ABI, chosen at run time.
///
/// ```
/// let provider = verbs::Provider::softnic();
/// let device = &provider.devices()?[0];
/// let context = device.open()?;
/// assert!(context.query_device()?.max_qp > 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy)]
pub struct Provider {
    name: &'static str,
    symbols: &'static Symbols,
}

/// The name of [`Provider::simnic`]. [`Provider::by_name`] does not accept it, since a cluster must
/// exist first.
const SIMNIC: &str = "simnic";

/// The reason why a provider cannot be used.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ProviderError {
    /// The machine's libibverbs cannot be used.
    #[error(transparent)]
    System(#[from] libibverbs::LoadError),
    /// No provider has this name.
    #[error("no provider is called {0:?}: the providers are {names}", names = Provider::NAMES.join(", "))]
    UnknownName(String),
}

impl Provider {
    /// The names that [`by_name`](Self::by_name) accepts.
    pub const NAMES: &[&str] = &["softnic", "system"];

    pub(crate) fn new(name: &'static str, symbols: &'static Symbols) -> Self {
        Self { name, symbols }
    }

    /// Returns the software NIC in this process, the default provider, which is always available.
    ///
    /// If the [tap](tap::is_on) is on, it counts the verbs, as with every provider.
    pub fn softnic() -> Self {
        static TAPPED: OnceLock<Symbols> = OnceLock::new();
        Self {
            name: SoftNic::NAME,
            symbols: tapped_if_on::<SoftNic>(&TAPPED),
        }
    }

    /// Returns the machine's own libibverbs: hardware NICs and the kernel's Soft-RoCE. The library
    /// is loaded on first use and never unloaded.
    ///
    /// # Errors
    /// [`ProviderError::System`] if libibverbs is missing, or lacks verbs that this crate needs.
    pub fn system() -> Result<Self, ProviderError> {
        static TAPPED: OnceLock<Symbols> = OnceLock::new();
        libibverbs::symbols()?;
        Ok(Self {
            name: System::NAME,
            symbols: tapped_if_on::<System>(&TAPPED),
        })
    }

    /// Returns the provider of this thread's simulated cluster (`simnic::Cluster`), with one device
    /// for each machine, in their order.
    pub fn simnic() -> Self {
        static SYMBOLS: OnceLock<Symbols> = OnceLock::new();
        Self {
            name: SIMNIC,
            symbols: SYMBOLS.get_or_init(|| simnic::symbols(softnic::symbols())),
        }
    }

    /// Returns true if the provider's machines are simulated. Other processes cannot access their
    /// memory.
    pub(crate) fn is_simulated(&self) -> bool {
        self.name == SIMNIC
    }

    /// Returns the provider of that name.
    ///
    /// # Errors
    /// [`ProviderError::UnknownName`] for another name, and as [`system`](Self::system).
    pub fn by_name(name: &str) -> Result<Self, ProviderError> {
        match name {
            "softnic" => Ok(Self::softnic()),
            "system" => Self::system(),
            _ => Err(ProviderError::UnknownName(name.to_owned())),
        }
    }

    /// Returns the provider's name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the provider's entry points.
    pub(crate) fn symbols(&self) -> &'static Symbols {
        self.symbols
    }
}

/// The software NIC as a provider of the tap.
struct SoftNic;

impl tap::Provider for SoftNic {
    const NAME: &'static str = "softnic";
    const PROCESS_SHIFT: Option<u32> = Some(softnic::PROCESS_SHIFT);

    fn symbols() -> &'static Symbols {
        softnic::symbols()
    }

    fn later_symbols() -> Option<&'static LaterSymbols> {
        Some(softnic::later_symbols())
    }
}

/// Returns a provider's table, or the tap's table over it.
fn tapped_if_on<P: tap::Provider>(tapped: &'static OnceLock<Symbols>) -> &'static Symbols {
    if tap::is_on() {
        tapped.get_or_init(|| {
            softnic::observe_faults(tap::trace::note);
            tap::symbols::<P>()
        })
    } else {
        P::symbols()
    }
}

impl fmt::Debug for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Provider({})", self.name)
    }
}

impl Default for Provider {
    fn default() -> Self {
        Self::softnic()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_name_is_refused_with_the_known_ones() {
        let e = Provider::by_name("mlx5").expect_err("no such provider");
        assert_eq!(
            e.to_string(),
            "no provider is called \"mlx5\": the providers are softnic, system"
        );
    }
}
