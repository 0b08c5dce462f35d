//! Capabilities of a device, and those that it lacks.

use std::fmt;

use serde::Serialize;

/// A capability that a system may need and that some devices lack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Capability {
    /// Reliable connections.
    Rc,
    /// Unreliable connections.
    Uc,
    /// Unreliable datagrams.
    Ud,
    /// RDMA READ.
    RdmaRead,
    /// Fetch-and-add and compare-and-swap on remote words.
    Atomics,
    /// Immediates: 32 bits beside the payload of a SEND or RDMA WRITE.
    Immediates,
    /// Receive queues that several queue pairs share.
    SharedReceiveQueues,
    /// Completion channels, on which a thread can sleep until a completion.
    CompletionEvents,
    /// Each failure has its specified status. Assumed, unless the driver is known to lack it.
    ErrorStatuses,
    /// An async event when a queue pair goes to ERR because of a request of its peer. Assumed,
    /// unless the driver is known to lack it.
    ErrorEvents,
    /// SQE: a failed SEND or WRITE of UC and UD stops the send queue, and receiving continues.
    /// Assumed, unless the driver is known to lack it.
    SendQueueErrors,
    /// SQD: the send queue can be drained and resumed. Assumed, unless the driver is known to lack
    /// it.
    SendQueueDrain,
}

impl Capability {
    /// All capabilities.
    pub const ALL: [Self; 12] = [
        Self::Rc,
        Self::Uc,
        Self::Ud,
        Self::RdmaRead,
        Self::Atomics,
        Self::Immediates,
        Self::SharedReceiveQueues,
        Self::CompletionEvents,
        Self::ErrorStatuses,
        Self::ErrorEvents,
        Self::SendQueueErrors,
        Self::SendQueueDrain,
    ];

    /// Returns the name of the capability, as in the specification.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rc => "RC",
            Self::Uc => "UC",
            Self::Ud => "UD",
            Self::RdmaRead => "RDMA READ",
            Self::Atomics => "atomics",
            Self::Immediates => "immediates",
            Self::SharedReceiveQueues => "shared receive queues",
            Self::CompletionEvents => "completion events",
            Self::ErrorStatuses => "error statuses",
            Self::ErrorEvents => "error events",
            Self::SendQueueErrors => "send queue errors (SQE)",
            Self::SendQueueDrain => "send queue draining (SQD)",
        }
    }
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A capability that a device lacks, and the reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MissingCapability {
    /// The capability that the device lacks.
    pub capability: Capability,
    /// The probe or query and its result, in words.
    pub why: String,
}

/// Inline payload of a queue pair with one SGE and a short send queue, in bytes; 0 if the transport
/// is missing. Longer queues and SGE lists may leave less.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct MaxInlineBytes {
    /// Inline payload of RC.
    pub rc: u32,
    /// Inline payload of UC.
    pub uc: u32,
    /// Inline payload of UD.
    pub ud: u32,
}

/// Capabilities of an open device: [`Context::capabilities`](crate::Context::capabilities).
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Capabilities {
    /// The name of the provider.
    #[serde(rename = "provider")]
    pub provider_name: &'static str,
    /// The name of the device.
    #[serde(rename = "device")]
    pub device_name: String,
    /// The kernel's driver (`mlx5_core`, `rdma_rxe`), if sysfs names it; `None` for the software
    /// NIC.
    pub driver: Option<String>,
    /// Capabilities that the device lacks.
    #[serde(rename = "lacks")]
    pub missing_capabilities: Vec<MissingCapability>,
    /// Largest inline payload of a work request.
    #[serde(rename = "inline_bytes")]
    pub max_inline_bytes: MaxInlineBytes,
    /// READs and atomics that a queue pair can have outstanding as requester.
    pub max_rd_atomic: u32,
    /// READs and atomics that a queue pair can have outstanding as responder.
    pub max_dest_rd_atomic: u32,
}

impl Capabilities {
    /// Returns true if the device has a capability.
    pub fn has(&self, capability: Capability) -> bool {
        self.reason_missing(capability).is_none()
    }

    /// Returns the reason why the device lacks a capability; `None` if the device has it.
    pub fn reason_missing(&self, capability: Capability) -> Option<&str> {
        let lack = self
            .missing_capabilities
            .iter()
            .find(|lack| lack.capability == capability);
        lack.map(|lack| lack.why.as_str())
    }

    /// Returns the capabilities in `needs` that the device lacks.
    pub fn missing_of(&self, needs: &[Capability]) -> Vec<MissingCapability> {
        let needed = |lack: &&MissingCapability| needs.contains(&lack.capability);
        self.missing_capabilities
            .iter()
            .filter(needed)
            .cloned()
            .collect()
    }
}
