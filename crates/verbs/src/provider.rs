//! Providers: each NIC is a table of libibverbs entry points and a name.
//!
//! All providers have the same type, so code above this module has one path.

use std::fmt;

use verbs_abi::Symbols;

#[cfg(any(feature = "softnic", feature = "system", feature = "simnic"))]
mod tables;

/// A NIC implementation behind the libibverbs ABI, chosen at run time.
///
/// The features of this package determine which providers a program has. [`raw::provider`](crate::raw::provider) makes
/// one from a table of entry points, with every set of features.
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
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProviderError {
    /// The machine's libibverbs cannot be used.
    #[error("{reason}")]
    System {
        /// The reason, and the package to install.
        reason: String,
    },
    /// No provider has this name.
    #[error("no provider is called {0:?}: the providers are {names}", names = Provider::NAMES.join(", "))]
    UnknownName(String),
    /// This program was built without the provider.
    #[error(
        "this program was built without the provider {name}: enable the feature `{name}` of the package verbatim-verbs"
    )]
    NotBuilt {
        /// The name of the provider, and of the feature.
        name: &'static str,
    },
}

impl Provider {
    /// The names that [`by_name`](Self::by_name) accepts: the providers among the enabled features.
    pub const NAMES: &[&str] = &[
        #[cfg(feature = "softnic")]
        "softnic",
        #[cfg(feature = "system")]
        "system",
    ];

    pub(crate) fn new(name: &'static str, symbols: &'static Symbols) -> Self {
        Self { name, symbols }
    }

    /// Returns the software NIC in this process, the default provider, which is always available.
    ///
    /// - Feature: `softnic`, a default feature.
    /// - Counts: with the feature `tap`, the tap counts the verbs if the process was started for that.
    #[cfg(feature = "softnic")]
    pub fn softnic() -> Self {
        Self::new("softnic", tables::softnic())
    }

    /// Returns the machine's own libibverbs: hardware NICs and the kernel's Soft-RoCE. The library
    /// is loaded on first use and never unloaded.
    ///
    /// - Feature: `system`.
    /// - Counts: with the feature `tap`, the tap counts the verbs if the process was started for that.
    ///
    /// # Errors
    /// [`ProviderError::System`] if libibverbs is missing, or lacks verbs that this crate needs.
    #[cfg(feature = "system")]
    pub fn system() -> Result<Self, ProviderError> {
        let symbols = tables::system().map_err(|e| ProviderError::System {
            reason: e.to_string(),
        })?;
        Ok(Self::new("system", symbols))
    }

    /// Returns the provider of this thread's simulated cluster (`simnic::Cluster`), with one device
    /// for each machine, in their order.
    ///
    /// - Feature: `simnic`.
    #[cfg(feature = "simnic")]
    pub fn simnic() -> Self {
        Self::new(SIMNIC, tables::simnic())
    }

    /// Returns true if the provider's machines are simulated. Other processes cannot access their
    /// memory.
    pub(crate) fn is_simulated(&self) -> bool {
        self.name == SIMNIC
    }

    /// Returns the provider of that name.
    ///
    /// # Errors
    /// - [`ProviderError::UnknownName`] for a name that no provider has.
    /// - [`ProviderError::NotBuilt`] for a provider whose feature is not enabled.
    /// - [`ProviderError::System`] for `system`, if libibverbs cannot be used.
    pub fn by_name(name: &str) -> Result<Self, ProviderError> {
        match name {
            #[cfg(feature = "softnic")]
            "softnic" => Ok(Self::softnic()),
            #[cfg(not(feature = "softnic"))]
            "softnic" => Err(ProviderError::NotBuilt { name: "softnic" }),
            #[cfg(feature = "system")]
            "system" => Self::system(),
            #[cfg(not(feature = "system"))]
            "system" => Err(ProviderError::NotBuilt { name: "system" }),
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

impl fmt::Debug for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Provider({})", self.name)
    }
}

#[cfg(feature = "softnic")]
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
        let known = Provider::NAMES.join(", ");
        assert_eq!(
            e.to_string(),
            format!("no provider is called \"mlx5\": the providers are {known}")
        );
    }

    #[test]
    fn a_provider_that_is_not_built_names_its_feature() {
        for name in ["softnic", "system"] {
            let found = Provider::by_name(name);
            if Provider::NAMES.contains(&name) {
                // The machine may lack libibverbs; the provider itself is there.
                assert!(!matches!(found, Err(ProviderError::NotBuilt { .. })));
            } else {
                let text = found.expect_err("not built").to_string();
                assert!(
                    text.contains(&format!("enable the feature `{name}`")),
                    "{text}"
                );
            }
        }
    }
}
