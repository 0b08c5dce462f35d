//! What happens in a simulation.

/// Something that happens at a time.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    /// A thread goes on, if it still waits for this.
    Resume { thread: u32 },
    /// A list of WQEs, or the doorbell for it, has arrived at the NIC.
    Announce { qp: u32 },
    /// The first WQE that a queue pair's unit works on leaves for the network.
    Emit { qp: u32 },
    /// A NIC has handled the next of the messages that arrive there.
    Handle { nic: u32 },
    /// The answer of a READ or atomic, or an acknowledgement, leaves the responder.
    Respond { message: u32 },
    /// It has come back to the requester.
    Return { message: u32 },
}
