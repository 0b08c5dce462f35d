//! The NIC at work: WQEs through units to the network, messages from the network to memory.
//!
//! A message is an event when it leaves its requester and one when the responder's NIC has handled
//! it; READs, atomics and reliable messages are two more, when the answer leaves and when it is back.
//! Links, processing and PCIe serve one after the other in the order of these events.
//!
//! Nothing that a NIC does is visible to a core or to another NIC before one way over PCIe. What follows an event of
//! the same queue pair or of the same NIC within half of that therefore happens with it, at its own time.
//!
//! - `requester`: from the queue pair to the network, and back with the answer.
//! - `responder`: from the network to memory, and the answer.
//! - `completion`: what a program hears of it.

mod completion;
mod requester;
mod responder;

use crate::queue::Ps;
use crate::world::World;

/// The LID of a machine.
pub(crate) fn lid(machine: u32) -> u16 {
    u16::try_from(machine + 1).unwrap_or(0)
}

impl World {
    /// What happens until then happens with the present event.
    pub(super) fn horizon(&self) -> Ps {
        self.now + self.shortest / 2
    }

    /// The machine of a queue pair.
    pub(super) fn home(&self, qp: u32) -> Option<u32> {
        let qp = self.qps.get(qp as usize)?.as_ref()?;
        Some(qp.machine)
    }
}
