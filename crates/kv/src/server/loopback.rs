//! Atomics of the server's own NIC on the server's own memory.
//!
//! What a processor does atomically need not be atomic with what a NIC does (`IBV_ATOMIC_HCA` in `ibv_query_device(3)`), so
//! where the server competes with its clients for a lock it goes through the NIC as they do: by a queue pair that is connected to
//! itself.

use rpc::RpcError;
use verbs::{
    Access, CompletionQueue, MemoryRegion, PortGid, ProtectionDomain, QueuePair, Rc, RemoteMemory,
    Waiter, WcBuffer,
};

#[derive(Debug)]
pub(crate) struct Loopback {
    qp: QueuePair<Rc>,
    cq: CompletionQueue,
    /// What was there before.
    result: MemoryRegion,
}

impl Loopback {
    pub(crate) fn new(pd: &ProtectionDomain, port: PortGid) -> Result<Self, RpcError> {
        let cq = pd.context().create_cq(2)?;
        let qp = pd
            .qp::<Rc>(&cq, &cq)
            .port_num(port.port_num)
            .gid_index(port.gid_index)
            .max_send_wr(2)
            .max_recv_wr(1)
            .inline_up_to(0)
            .build()?;
        let own = qp.endpoint();
        Ok(Self {
            qp: qp.connect(&own)?,
            cq,
            result: pd.alloc(8, Access::LOCAL_WRITE)?,
        })
    }

    /// Puts `swap` into the word at the start of `at` if it is `compare`; whether it was.
    pub(crate) fn compare_and_swap(
        &mut self,
        at: RemoteMemory,
        compare: u64,
        swap: u64,
    ) -> Result<bool, RpcError> {
        let into = self.result.slice(0..8)?;
        self.qp.post_one(|list| {
            list.atomic_cmp_and_swp(into, at, compare, swap).signaled();
        })?;
        let mut buffer = WcBuffer::<1>::new();
        let mut waiter = Waiter::never_sleeping();
        loop {
            if let Some(wc) = self.cq.poll(&mut buffer)?.next() {
                wc.map_err(|e| RpcError::Completion(e.status()))?;
                return Ok(self.result.read_u64(0)? == compare);
            }
            waiter.idle();
        }
    }
}
