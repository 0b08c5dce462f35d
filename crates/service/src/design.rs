//! Designs of a service: which there are, what each needs of a device, and whether a device can run it.

use std::fmt;

use serde::Serialize;
use verbs::{Capabilities, Capability, Lack};

/// A design that a device cannot run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Unsupported {
    /// The design.
    pub design: &'static str,
    /// The device.
    pub device: String,
    /// Its provider.
    pub provider: &'static str,
    /// What the design needs and the device does not have; never empty.
    pub lacks: Vec<Lack>,
    /// The designs that run there.
    pub runnable: Vec<&'static str>,
}

impl fmt::Display for Unsupported {
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
            if self.runnable.is_empty() {
                "none".to_owned()
            } else {
                self.runnable.join(", ")
            },
        )
    }
}

impl std::error::Error for Unsupported {}

/// Whether a design runs on a device: one of `all`, each with what it needs. [`designs!`](crate::designs) calls this.
///
/// # Errors
/// Says what the device lacks and why, and which designs run there.
pub fn check(
    design: &'static str,
    all: &[(&'static str, Vec<Capability>)],
    device: &Capabilities,
) -> Result<(), Unsupported> {
    let needs = all.iter().find(|(name, _)| *name == design);
    let lacks = needs.map_or_else(Vec::new, |(_, needs)| device.lacks_of(needs));
    if lacks.is_empty() {
        return Ok(());
    }
    let runs = |(name, needs): &(&'static str, Vec<Capability>)| {
        device.lacks_of(needs).is_empty().then_some(*name)
    };
    Err(Unsupported {
        design,
        device: device.device.clone(),
        provider: device.provider,
        lacks,
        runnable: all.iter().filter_map(runs).collect(),
    })
}

/// Declares the designs of a service: an enum with a name, a line of summary and the needed capabilities of each.
///
/// ```
/// service::designs! {
///     /// How a counter counts.
///     #[derive(Debug, Clone, Copy, PartialEq, Eq)]
///     pub enum Design {
///         /// By remote atomics.
///         Atomics: "atomics", "RC fetch-and-add", [&[verbs::Capability::Rc, verbs::Capability::Atomics]];
///         /// By RPC.
///         Rpc: "rpc", "HERD RPC", [rpc::herd::NEEDS];
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

            /// Its name, as on the command line.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$Variant => $name,)+
                }
            }

            /// What it does, in a line.
            pub fn summary(self) -> &'static str {
                match self {
                    $(Self::$Variant => $summary,)+
                }
            }

            /// What it needs of a device, at the server and at clients.
            pub fn needs(self) -> Vec<$crate::Capability> {
                match self {
                    $(Self::$Variant => {
                        let all: &[&[$crate::Capability]] = &[$($needs),+];
                        all.concat()
                    })+
                }
            }

            /// Whether it runs on a device.
            ///
            /// # Errors
            /// Says what the device lacks and why, and which designs run there.
            pub fn check(self, device: &$crate::Capabilities) -> Result<(), $crate::Unsupported> {
                let all = Self::ALL.map(|design| (design.name(), design.needs()));
                $crate::design::check(self.name(), &all, device)
            }

            /// The designs that run on a device.
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
