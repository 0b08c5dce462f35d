//! Atomics of a server's own NIC on the server's own memory.

use verbs::{
    Access, CompletionQueue, MemoryRegion, PortAndGidIndex, ProtectionDomain, QueuePair, Rc,
    RemoteMemory, Waiter, WcBuffer,
};

use crate::RpcError;

/// A queue pair that is connected to itself, through which a server locks words of its own memory
/// as its clients do.
///
/// A processor's atomics are not necessarily atomic with a NIC's (`IBV_ATOMIC_HCA` in
/// `ibv_query_device(3)`). A server that competes with its clients for a lock must therefore use
/// the NIC.
#[derive(Debug)]
pub struct LoopbackQp {
    qp: QueuePair<Rc>,
    cq: CompletionQueue,
    /// Previous value of the word.
    previous_value_buffer: MemoryRegion,
}

impl LoopbackQp {
    /// Creates and connects the queue pair.
    ///
    /// # Errors
    /// When a verb fails.
    pub fn new(pd: &ProtectionDomain, port: PortAndGidIndex) -> Result<Self, RpcError> {
        let cq = pd.context().create_cq(2)?;
        let qp = pd
            .qp_builder::<Rc>(&cq, &cq)
            .port_num(port.port_num)
            .gid_index(port.gid_index)
            .max_send_wr(2)
            .max_recv_wr(1)
            .max_inline_data_if_supported(0)
            .build()?;
        let own = qp.endpoint();
        Ok(Self {
            qp: qp.connect(&own)?,
            cq,
            previous_value_buffer: pd.alloc(8, Access::LOCAL_WRITE)?,
        })
    }

    /// Sets the word at the start of `at` to `swap` if it equals `compare`, and waits for the
    /// completion. Returns true if the word was set.
    ///
    /// # Errors
    /// When a verb or the work request fails.
    pub fn compare_and_swap(
        &mut self,
        at: RemoteMemory,
        compare: u64,
        swap: u64,
    ) -> Result<bool, RpcError> {
        let into = self.previous_value_buffer.slice(0..8)?;
        self.qp.post_one(|list| {
            list.atomic_cmp_and_swp(into, at, compare, swap).signaled();
        })?;
        let mut buffer = WcBuffer::<1>::new();
        let mut waiter = Waiter::never_sleeping();
        loop {
            if let Some(wc) = self.cq.poll(&mut buffer)?.next() {
                wc.map_err(|e| RpcError::Completion(e.status()))?;
                return Ok(self.previous_value_buffer.read_u64(0)? == compare);
            }
            waiter.idle();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_swapped_if_it_is_what_was_expected() {
        let device = verbs::Provider::softnic().device(None);
        let context = device.expect("a device").open().expect("opens");
        let pd = context.alloc_pd().expect("a domain");
        let port = PortAndGidIndex {
            port_num: 1,
            gid_index: 0,
        };
        let memory = pd.alloc(16, Access::LOCAL_WRITE | Access::REMOTE_ATOMIC);
        let memory = memory.expect("memory");
        let word = memory.remote().starting_at(8).expect("inside");
        let mut loopback = LoopbackQp::new(&pd, port).expect("connects");
        assert!(loopback.compare_and_swap(word, 0, 7).expect("swapped"));
        assert!(!loopback.compare_and_swap(word, 0, 8).expect("compared"));
        let words = [0, 8].map(|at| memory.read_u64(at).expect("inside"));
        assert_eq!(words, [0, 7]);
    }
}
