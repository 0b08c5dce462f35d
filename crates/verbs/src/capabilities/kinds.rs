//! Capabilities of a device, and the ones that it lacks.

use std::fmt;

use serde::Serialize;

/// Something that a system may need and not every device has.
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
    /// 32 bits beside the payload of a SEND or RDMA WRITE.
    Immediates,
    /// Receive queues that several queue pairs share.
    SharedReceiveQueues,
    /// Sleeping until a completion comes, by a completion channel.
    CompletionEvents,
    /// Each failure has the status that is specified for it. Had, unless the driver is known to lack it.
    ErrorStatuses,
    /// An async event when a queue pair goes to ERR for what its peer asked. Had, unless the driver is known
    /// to lack it.
    ErrorEvents,
    /// SQE: a failed SEND or WRITE of UC and UD stops the send queue, and receiving goes on. Had, unless the
    /// driver is known to lack it.
    SendQueueErrors,
    /// SQD: the send queue can be held and resumed. Had, unless the driver is known to lack it.
    SendQueueDrain,
}

impl Capability {
    /// All of them.
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

    /// Name of the capability, as the specification has it.
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

/// A capability that a device does not have, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Lack {
    /// The capability that the device lacks.
    pub capability: Capability,
    /// The question to the device and its answer, in words.
    pub why: String,
}

/// Inline payload of a queue pair with one SGE and a short send queue, in bytes; 0 where there is no such
/// transport. Longer queues and SGE lists may leave less.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct InlineBytes {
    /// On RC.
    pub rc: u32,
    /// On UC.
    pub uc: u32,
    /// On UD.
    pub ud: u32,
}

/// Capabilities of an open device: [`Context::capabilities`](crate::Context::capabilities).
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Capabilities {
    /// The provider.
    pub provider: &'static str,
    /// The device.
    pub device: String,
    /// The kernel's driver (`mlx5_core`, `rdma_rxe`), where sysfs tells it; none for the software NIC.
    pub driver: Option<String>,
    /// Capabilities that the device lacks.
    pub lacks: Vec<Lack>,
    /// Largest inline payload of a work request.
    pub inline_bytes: InlineBytes,
    /// READs and atomics outstanding that a queue pair may have as requester.
    pub max_rd_atomic: u32,
    /// The same as responder.
    pub max_dest_rd_atomic: u32,
}

impl Capabilities {
    /// Whether the device has a capability.
    pub fn has(&self, capability: Capability) -> bool {
        self.why_not(capability).is_none()
    }

    /// Why it does not have that; `None` if it has.
    pub fn why_not(&self, capability: Capability) -> Option<&str> {
        let lack = self.lacks.iter().find(|lack| lack.capability == capability);
        lack.map(|lack| lack.why.as_str())
    }

    /// Those of `needs` that it does not have.
    pub fn lacks_of(&self, needs: &[Capability]) -> Vec<Lack> {
        let needed = |lack: &&Lack| needs.contains(&lack.capability);
        self.lacks.iter().filter(needed).cloned().collect()
    }
}
