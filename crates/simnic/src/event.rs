//! The events of a simulation.

/// An event of a simulation; the queue stores its time.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SimulationEvent {
    /// A thread resumes, if it still waits for this event.
    Resume { thread: u32 },
    /// A list of WQEs, or its doorbell, arrives at the NIC.
    PostlistArrived { qp: u32 },
    /// The first WQE of the list on which a queue pair's unit works leaves for the network.
    SendNextWqe { qp: u32 },
    /// A NIC has processed the next message that arrives there.
    MessageProcessed { nic: u32 },
    /// The response to a READ or atomic, or an acknowledgement, leaves the responder.
    SendResponse { message: u32 },
    /// The response or acknowledgement arrives at the requester.
    ResponseArrived { message: u32 },
    /// A reliable requester retransmits messages.
    RetransmissionDue { qp: u32 },
}
