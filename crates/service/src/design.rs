//! Designs of a service: a list of them, and a check of what each needs of a device.

use std::fmt;

use serde::Serialize;
use verbs::{Capabilities, Capability, MissingCapability};

/// Error: a device cannot run a design.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct UnsupportedDesign {
    /// Name of the design.
    pub design: &'static str,
    /// Name of the device.
    pub device: String,
    /// Provider of the device.
    pub provider: &'static str,
    /// Capabilities that the design needs and the device lacks; never empty.
    pub lacks: Vec<MissingCapability>,
    /// Designs that the device can run.
    #[serde(rename = "runnable")]
    pub runnable_designs: Vec<&'static str>,
}

impl fmt::Display for UnsupportedDesign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.lacks.iter().map(|l| l.capability.name()).collect();
        let why: Vec<_> = match &self.lacks[..] {
            [only] => vec![only.why.clone()],
            several => several
                .iter()
                .map(|l| format!("{}: {}", l.capability, l.why))
                .collect(),
        };
        write!(
            f,
            "design {} needs {}, which {} ({}) does not have ({}); designs that run there: {}",
            self.design,
            names.join(" and "),
            self.device,
            self.provider,
            why.join("; "),
            if self.runnable_designs.is_empty() {
                "none".to_owned()
            } else {
                self.runnable_designs.join(", ")
            },
        )
    }
}

impl std::error::Error for UnsupportedDesign {}

/// Fails unless a device can run a design. `all` lists the designs, each with its needed
/// capabilities. [`designs!`](crate::designs) calls this function.
///
/// # Errors
/// Names what the device lacks and why, and the designs that it can run.
pub fn check(
    design: &'static str,
    all: &[(&'static str, Vec<Capability>)],
    device: &Capabilities,
) -> Result<(), UnsupportedDesign> {
    let needs = all.iter().find(|(name, _)| *name == design);
    let lacks = needs.map_or_else(Vec::new, |(_, needs)| device.missing_of(needs));
    if lacks.is_empty() {
        return Ok(());
    }
    let runs = |(name, needs): &(&'static str, Vec<Capability>)| {
        device.missing_of(needs).is_empty().then_some(*name)
    };
    Err(UnsupportedDesign {
        design,
        device: device.device_name.clone(),
        provider: device.provider_name,
        lacks,
        runnable_designs: all.iter().filter_map(runs).collect(),
    })
}

/// Declares the designs of a service as an enum. Each design has a name, a summary of one line, and
/// its needed capabilities.
///
/// ```
/// service::designs! {
///     /// How a counter counts.
///     #[derive(Debug, Clone, Copy, PartialEq, Eq)]
///     pub enum Design {
///         /// By remote atomics.
///         Atomics: "atomics", "RC fetch-and-add", [&[verbs::Capability::Rc, verbs::Capability::Atomics]];
///         /// By RPC.
///         Rpc: "rpc", "HERD RPC", [rpc::herd::NEEDED_CAPABILITIES];
///     }
/// }
/// assert_eq!("rpc".parse(), Ok(Design::Rpc));
/// assert!(Design::ALL.iter().all(|design| !design.needs().is_empty()));
/// ```
#[macro_export]
macro_rules! designs {
    ($(#[$meta:meta])* $vis:vis enum $Design:ident {
        $($(#[$doc:meta])* $Variant:ident: $name:literal, $summary:literal, [$($needs:expr),+ $(,)?];)+
    }) => {
        $(#[$meta])*
        $vis enum $Design {
            $($(#[$doc])* $Variant,)+
        }

        impl $Design {
            /// All designs.
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$Variant),+];

            /// Returns the name on the command line.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$Variant => $name,)+
                }
            }

            /// Returns a description in one line.
            pub fn summary(self) -> &'static str {
                match self {
                    $(Self::$Variant => $summary,)+
                }
            }

            /// Returns the capabilities that the design needs of a device, at the server and at
            /// clients.
            pub fn needs(self) -> Vec<$crate::Capability> {
                match self {
                    $(Self::$Variant => {
                        let all: &[&[$crate::Capability]] = &[$($needs),+];
                        all.concat()
                    })+
                }
            }

            /// Fails unless a device can run the design.
            ///
            /// # Errors
            /// Names what the device lacks and why, and the designs that it can run.
            pub fn check(self, device: &$crate::Capabilities) -> Result<(), $crate::UnsupportedDesign> {
                let all = Self::ALL.map(|design| (design.name(), design.needs()));
                $crate::design::check(self.name(), &all, device)
            }

            /// Returns the designs that a device can run.
            pub fn runnable(device: &$crate::Capabilities) -> Vec<Self> {
                let runs = |design: &Self| design.check(device).is_ok();
                Self::ALL.into_iter().filter(runs).collect()
            }
        }

        impl ::std::fmt::Display for $Design {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.pad(self.name())
            }
        }

        impl ::std::str::FromStr for $Design {
            type Err = String;
            fn from_str(s: &str) -> Result<Self, String> {
                let found = Self::ALL.into_iter().find(|design| design.name() == s);
                found.ok_or_else(|| {
                    let names = Self::ALL.map(Self::name).join(", ");
                    format!("no design is called {s:?}: the designs are {names}")
                })
            }
        }
    };
}
