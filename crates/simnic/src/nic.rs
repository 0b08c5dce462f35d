//! The NIC: WQEs through processing units to the network, and messages from the network to memory.
//!
//! A message causes one event when it leaves the requester and one when the responder's NIC has processed it. READs,
//! atomics and reliable messages cause two more: when the response leaves and when it arrives. Links, processing and
//! PCIe are served in the order of these events.
//!
//! No effect of a NIC is visible to a core or to another NIC before the one-way PCIe latency has passed. So an event
//! may also process what follows on the same queue pair or NIC within half of that time, at the right simulated time.
//!
//! - `requester`: from the queue pair to the network, and the response back.
//! - `responder`: from the network to memory.
//! - `response`: acknowledgements and data back to the requester.
//! - `departure`: how messages leave if the network has faults, or if earlier messages are missing.
//! - `retry`: messages and responses that are lost or do not count, and sent again.
//! - `completion`: completions for the program.

mod completion;
mod departure;
mod requester;
mod responder;
mod response;
mod retry;

use crate::event_queue::Ps;
use crate::simulation::Simulation;

impl Simulation {
    /// Returns the time until which the present event may also process what follows.
    pub(super) fn lookahead_end(&self) -> Ps {
        self.now + self.min_pcie_latency / 2
    }

    /// Returns true if messages between two machines use the network. Those between a host and its DPU do not.
    pub(super) fn passes_network(&self, from: u32, to: u32) -> bool {
        let nic_of = |machine: u32| self.machines[machine as usize].nic_index;
        nic_of(from) != nic_of(to) || from == to
    }

    /// Returns the machine of a queue pair.
    pub(super) fn machine_of_qp(&self, qp: u32) -> Option<u32> {
        let qp = self.qps.get(qp as usize)?.as_ref()?;
        Some(qp.machine)
    }
}
