//! The environment of a test run, and the outcome of a test.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use verbs_abi::{
    IBV_WC_LOC_ACCESS_ERR, IBV_WC_LOC_LEN_ERR, IBV_WC_LOC_PROT_ERR, IBV_WC_LOC_QP_OP_ERR,
    IBV_WC_REM_ACCESS_ERR, IBV_WC_REM_INV_REQ_ERR, IBV_WC_REM_OP_ERR, Symbols, ibv_wc_status,
};

use crate::provider::ProviderKind;

/// Settings of a test run, which child processes receive as JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Settings {
    /// The libibverbs to test.
    pub provider: ProviderKind,
    /// Name of the device; `None` selects the provider's first device.
    pub device: Option<String>,
    /// Port of the device.
    pub port: u8,
    /// Index in the port's GID table of the GID that tests use.
    pub gid_index: u8,
    /// Link layer that the port must have; `None` accepts any link layer.
    #[serde(rename = "link_layer")]
    pub required_link_layer: Option<u8>,
    /// Capabilities whose tests are skipped.
    #[serde(rename = "without")]
    pub excluded_capabilities: BTreeSet<NicCapability>,
    /// Capabilities that the NIC is known to lack, according to its [`crate::Deviations`].
    ///
    /// A test that needs such a capability runs nevertheless, and must fail as the list says. Other tests
    /// do not rely on these capabilities.
    #[serde(rename = "lacks")]
    pub lacked_capabilities: BTreeSet<NicCapability>,
    /// The device of the second queue pair of each pair; `None` if both are on one device.
    pub peer: Option<PeerDevice>,
}

/// The device at the other end of a network, which has the second queue pair of each pair ([`crate::pair::QpPair::b`]).
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PeerDevice {
    /// The libibverbs of the device.
    pub provider: ProviderKind,
    /// Name of the device; `None` selects the provider's first device.
    pub device: Option<String>,
    /// Index in the GID table of port 1 of the GID that tests use.
    pub gid_index: u8,
}

impl Settings {
    /// Returns settings for the first device of `provider`, with all capabilities.
    #[must_use]
    pub fn new(provider: ProviderKind) -> Self {
        Self {
            provider,
            device: None,
            port: 1,
            gid_index: 0,
            required_link_layer: None,
            excluded_capabilities: BTreeSet::new(),
            lacked_capabilities: BTreeSet::new(),
            peer: None,
        }
    }

    /// Returns the settings of the second queue pair of each pair, if that is on another device.
    #[must_use]
    pub fn of_peer(&self) -> Option<Self> {
        let peer = self.peer.as_ref()?;
        Some(Self {
            provider: peer.provider,
            device: peer.device.clone(),
            port: 1,
            gid_index: peer.gid_index,
            peer: None,
            ..self.clone()
        })
    }
}

/// The environment of a test: a provider and a device of it.
#[derive(Clone, Debug)]
pub struct TestEnv {
    /// The provider's entry points.
    pub symbols: &'static Symbols,
    /// Settings of the run.
    pub settings: Settings,
}

impl TestEnv {
    /// Loads the provider.
    ///
    /// # Errors
    /// Returns an error with the reason if the provider cannot be loaded.
    pub fn new(settings: Settings) -> anyhow::Result<Self> {
        Ok(Self {
            symbols: settings.provider.symbols()?,
            settings,
        })
    }

    /// Returns the environment of the second queue pair of a pair.
    ///
    /// # Panics
    /// Panics if the provider of the peer cannot be loaded.
    #[must_use]
    #[track_caller]
    pub fn peer_env(&self) -> Self {
        let Some(settings) = self.settings.of_peer() else {
            return self.clone();
        };
        Self::new(settings).expect("the provider of the peer")
    }

    /// Returns true if the NIC is expected to have `cap`.
    #[must_use]
    pub fn expects_capability(&self, cap: NicCapability) -> bool {
        !self.settings.excluded_capabilities.contains(&cap)
            && !self.settings.lacked_capabilities.contains(&cap)
    }

    /// Returns the statuses that are accepted where `status` is specified. A second status is accepted if
    /// the NIC lacks [`NicCapability::ErrorStatuses`].
    #[must_use]
    pub fn accepted_failure_statuses(&self, status: ibv_wc_status) -> Vec<ibv_wc_status> {
        let mut statuses = vec![status];
        if !self.expects_capability(NicCapability::ErrorStatuses) {
            match status {
                IBV_WC_LOC_PROT_ERR | IBV_WC_LOC_LEN_ERR => statuses.push(IBV_WC_LOC_QP_OP_ERR),
                IBV_WC_REM_INV_REQ_ERR => statuses.push(IBV_WC_REM_OP_ERR),
                IBV_WC_LOC_ACCESS_ERR => statuses.push(IBV_WC_REM_ACCESS_ERR),
                _ => {}
            }
        }
        statuses
    }
}

/// Outcome of a test; a failed test panics instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TestOutcome {
    /// The NIC behaved as specified.
    Passed,
    /// The test was not run; the text is the reason.
    Skipped(String),
}

impl From<()> for TestOutcome {
    fn from((): ()) -> Self {
        Self::Passed
    }
}

/// One test of the suite.
#[derive(Clone, Copy, Debug)]
pub struct SuiteTest {
    /// Name of the test: `module::what_must_hold`.
    pub name: &'static str,
    /// Capabilities that the test needs; the test is skipped if the run excludes one of them.
    pub needed_capabilities: &'static [NicCapability],
    /// Function that runs the test; a failure panics.
    pub run: fn(&TestEnv) -> TestOutcome,
}

/// Declares capabilities: the enum, their names on the command line, and their descriptions.
macro_rules! caps {
    ($( $(#[doc = $doc:literal])+ $cap:ident = $name:literal, )*) => {
        /// A capability that not every NIC has; a run excludes a capability by name (`--without NAME`).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
        #[non_exhaustive]
        pub enum NicCapability {
            $( $(#[doc = $doc])+ $cap, )*
        }

        impl NicCapability {
            /// Each capability with its name and its description.
            pub const ALL: &'static [(Self, &'static str, &'static str)] =
                &[$( (Self::$cap, $name, concat!($($doc),+)) ),*];
        }
    };
}

caps! {
    /// Unreliable connections.
    Uc = "uc",
    /// Unreliable datagrams.
    Ud = "ud",
    /// RDMA READ.
    Read = "read",
    /// Compare-and-swap and fetch-and-add.
    Atomics = "atomics",
    /// Inline payloads.
    Inline = "inline",
    /// Shared receive queues.
    Srq = "srq",
    /// Solicited-only arming of completion queues.
    Solicited = "solicited",
    /// Async events.
    Events = "events",
    /// Async events of the errors of a responder's QP.
    ErrorEvents = "error-events",
    /// Each failure has the status that is specified for it (LOC_PROT_ERR, LOC_LEN_ERR …).
    ErrorStatuses = "error-statuses",
    /// The buffer of an atomic's result is checked before the request leaves.
    EarlyChecks = "early-checks",
    /// One-sided verbs need no thread of the responder.
    PassiveResponder = "passive-responder",
    /// Datagrams wait while the program of their receiver is held up and has no receive WRs left.
    PatientDatagrams = "patient-datagrams",
    /// SQD: the send queue can be drained.
    Sqd = "sqd",
    /// SQE: a failed send of UC and UD stops only the send queue.
    Sqe = "sqe",
    /// `ibv_post_send` itself refuses what the QP's state or transport does not allow.
    ImmediateChecks = "immediate-checks",
    /// Creating objects checks arguments that libibverbs leaves to the caller.
    ArgumentChecks = "argument-checks",
    /// L_Keys and R_Keys that cannot be guessed.
    RandomKeys = "random-keys",
    /// The last byte of an RDMA WRITE of up to 64 bytes arrives last.
    WriteOrder = "write-order",
    /// Completion queues that do not go into error when they are overrun.
    IgnoreOverrun = "ignore-overrun",
    /// `ibv_modify_cq`.
    Moderation = "moderation",
    /// Memory regions of the whole address space, on demand.
    ImplicitOdp = "implicit-odp",
    /// Memory regions without memory.
    NullMr = "null-mr",
    /// Multicast groups.
    Multicast = "multicast",
    /// Raw packet queue pairs.
    RawPackets = "raw-packets",
    /// XRC domains.
    Xrc = "xrc",
    /// Tag matching.
    Tags = "tags",
    /// Memory windows of both types.
    Windows = "windows",
    /// Several processes use the device.
    Processes = "processes",
}

impl fmt::Display for NicCapability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::ALL.iter().find(|(cap, ..)| cap == self);
        f.pad(name.map_or("", |(_, name, _)| name))
    }
}

/// Error: no [`NicCapability`] has this name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownCapabilityName(String);

impl fmt::Display for UnknownCapabilityName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = NicCapability::ALL
            .iter()
            .map(|(_, name, _)| *name)
            .collect();
        write!(
            f,
            "no capability is called {:?}: there are {}",
            self.0,
            names.join(", ")
        )
    }
}

impl std::error::Error for UnknownCapabilityName {}

impl FromStr for NicCapability {
    type Err = UnknownCapabilityName;

    fn from_str(text: &str) -> Result<Self, UnknownCapabilityName> {
        Self::ALL
            .iter()
            .find(|(_, name, _)| *name == text)
            .map(|(cap, ..)| *cap)
            .ok_or_else(|| UnknownCapabilityName(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_capability_has_a_name_that_leads_back() {
        for (cap, name, _) in NicCapability::ALL {
            assert_eq!(name.parse::<NicCapability>().as_ref(), Ok(cap));
            assert_eq!(cap.to_string(), *name);
        }
        let unknown = "rd".parse::<NicCapability>().unwrap_err().to_string();
        assert!(
            unknown.contains("\"rd\"") && unknown.contains("uc, ud"),
            "{unknown}"
        );
    }
}
