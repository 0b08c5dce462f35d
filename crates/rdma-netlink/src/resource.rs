//! The kinds of objects that `rdma resource show` lists (`fill_res_qp_entry` and its like of
//! `linux:drivers/infiniband/core/nldev.c`).

use crate::message_builder::MessageBuilder;
use crate::numbers::{attribute as attr, command};
use crate::{
    CompletionQueue, MemoryRegion, OpenContext, ProcessObjects, ProtectionDomain, QueuePair,
    SharedReceiveQueue,
};

/// Bytes of an attribute with a number of at most 32 bits, and with one of 64 bits.
const U32_ATTRIBUTE_BYTES: usize = 8;
const U64_ATTRIBUTE_BYTES: usize = 12;
/// Bytes of the header of an entry.
const ENTRY_HEADER_BYTES: usize = 4;
/// `IBV_QPT_RC` and `IBV_QPT_UC`: queue pairs of other types have no peer in the kernel's answer.
const CONNECTED_QP_TYPES: [u8; 2] = [2, 3];

/// A kind of object.
pub(crate) trait ResourceKind: Sized {
    /// The command that asks for objects of this kind.
    const COMMAND: u16;
    /// The attribute with all objects of a message.
    const TABLE_ATTRIBUTE: u16;
    /// The attribute with one object.
    const ENTRY_ATTRIBUTE: u16;
    /// The attribute by which a request names one object. `None`: requests cannot name one.
    const LOOKUP_ATTRIBUTE: Option<u16>;
    /// Bytes of an entry at most.
    const MAX_ENTRY_BYTES: usize;

    /// The objects of a process.
    fn objects_of_process(process: &ProcessObjects) -> &[Self];
    /// The number by which a request names the object.
    fn lookup_number(&self) -> u32;
    /// Whether the object is on a port; objects that belong to no port are on all of them.
    fn is_on_port(&self, _port: Option<u32>) -> bool {
        true
    }
    /// Adds the attributes of the object and of its process.
    fn put_attributes(&self, message: &mut MessageBuilder, pid: u32);
}

impl ResourceKind for QueuePair {
    const COMMAND: u16 = command::RES_QP_GET;
    const TABLE_ATTRIBUTE: u16 = attr::RES_QP;
    const ENTRY_ATTRIBUTE: u16 = attr::RES_QP_ENTRY;
    const LOOKUP_ATTRIBUTE: Option<u16> = Some(attr::RES_LQPN);
    const MAX_ENTRY_BYTES: usize = ENTRY_HEADER_BYTES + 9 * U32_ATTRIBUTE_BYTES;

    fn objects_of_process(process: &ProcessObjects) -> &[Self] {
        &process.queue_pairs
    }

    fn lookup_number(&self) -> u32 {
        self.qpn
    }

    fn is_on_port(&self, port: Option<u32>) -> bool {
        port.is_none() || self.port_num == port
    }

    fn put_attributes(&self, message: &mut MessageBuilder, pid: u32) {
        if let Some(port) = self.port_num {
            message.put_u32(attr::PORT_INDEX, port);
        }
        message.put_u32(attr::RES_LQPN, self.qpn);
        if CONNECTED_QP_TYPES.contains(&self.qp_type) {
            message.put_u32(attr::RES_RQPN, self.dest_qpn);
            message.put_u32(attr::RES_RQ_PSN, self.rq_psn);
        }
        message.put_u32(attr::RES_SQ_PSN, self.sq_psn);
        message.put_u8(attr::RES_TYPE, self.qp_type);
        message.put_u8(attr::RES_STATE, self.state);
        message.put_u32(attr::RES_PDN, self.pd_number);
        message.put_u32(attr::RES_PID, pid);
    }
}

impl ResourceKind for CompletionQueue {
    const COMMAND: u16 = command::RES_CQ_GET;
    const TABLE_ATTRIBUTE: u16 = attr::RES_CQ;
    const ENTRY_ATTRIBUTE: u16 = attr::RES_CQ_ENTRY;
    const LOOKUP_ATTRIBUTE: Option<u16> = Some(attr::RES_CQN);
    const MAX_ENTRY_BYTES: usize =
        ENTRY_HEADER_BYTES + 3 * U32_ATTRIBUTE_BYTES + U64_ATTRIBUTE_BYTES;

    fn objects_of_process(process: &ProcessObjects) -> &[Self] {
        &process.completion_queues
    }

    fn lookup_number(&self) -> u32 {
        self.cqn
    }

    fn put_attributes(&self, message: &mut MessageBuilder, pid: u32) {
        message.put_u32(attr::RES_CQE, self.cqe);
        message.put_u64(attr::RES_USECNT, self.use_count.into());
        message.put_u32(attr::RES_CQN, self.cqn);
        message.put_u32(attr::RES_PID, pid);
    }
}

impl ResourceKind for ProtectionDomain {
    const COMMAND: u16 = command::RES_PD_GET;
    const TABLE_ATTRIBUTE: u16 = attr::RES_PD;
    const ENTRY_ATTRIBUTE: u16 = attr::RES_PD_ENTRY;
    /// Two processes may use the same number.
    const LOOKUP_ATTRIBUTE: Option<u16> = None;
    const MAX_ENTRY_BYTES: usize =
        ENTRY_HEADER_BYTES + 2 * U32_ATTRIBUTE_BYTES + U64_ATTRIBUTE_BYTES;

    fn objects_of_process(process: &ProcessObjects) -> &[Self] {
        &process.protection_domains
    }

    fn lookup_number(&self) -> u32 {
        self.number
    }

    fn put_attributes(&self, message: &mut MessageBuilder, pid: u32) {
        message.put_u64(attr::RES_USECNT, self.use_count.into());
        message.put_u32(attr::RES_PDN, self.number);
        message.put_u32(attr::RES_PID, pid);
    }
}

impl ResourceKind for MemoryRegion {
    const COMMAND: u16 = command::RES_MR_GET;
    const TABLE_ATTRIBUTE: u16 = attr::RES_MR;
    const ENTRY_ATTRIBUTE: u16 = attr::RES_MR_ENTRY;
    /// Clients name a region by its restrack number, which regions here do not have.
    const LOOKUP_ATTRIBUTE: Option<u16> = None;
    const MAX_ENTRY_BYTES: usize =
        ENTRY_HEADER_BYTES + 4 * U32_ATTRIBUTE_BYTES + 2 * U64_ATTRIBUTE_BYTES;

    fn objects_of_process(process: &ProcessObjects) -> &[Self] {
        &process.memory_regions
    }

    fn lookup_number(&self) -> u32 {
        self.lkey_and_rkey
    }

    /// One number serves as both keys.
    fn put_attributes(&self, message: &mut MessageBuilder, pid: u32) {
        message.put_u32(attr::RES_RKEY, self.lkey_and_rkey);
        message.put_u32(attr::RES_LKEY, self.lkey_and_rkey);
        message.put_u64(attr::RES_IOVA, self.iova);
        message.put_u64(attr::RES_MRLEN, self.len_bytes);
        message.put_u32(attr::RES_PDN, self.pd_number);
        message.put_u32(attr::RES_PID, pid);
    }
}

impl ResourceKind for OpenContext {
    const COMMAND: u16 = command::RES_CTX_GET;
    const TABLE_ATTRIBUTE: u16 = attr::RES_CTX;
    const ENTRY_ATTRIBUTE: u16 = attr::RES_CTX_ENTRY;
    const LOOKUP_ATTRIBUTE: Option<u16> = Some(attr::RES_CTXN);
    const MAX_ENTRY_BYTES: usize = ENTRY_HEADER_BYTES + 2 * U32_ATTRIBUTE_BYTES;

    fn objects_of_process(process: &ProcessObjects) -> &[Self] {
        &process.contexts
    }

    fn lookup_number(&self) -> u32 {
        self.number
    }

    fn put_attributes(&self, message: &mut MessageBuilder, pid: u32) {
        message.put_u32(attr::RES_CTXN, self.number);
        message.put_u32(attr::RES_PID, pid);
    }
}

/// Queue pairs that an entry of a shared receive queue has at most; a message has room for them.
const MAX_LISTED_QPS: usize = 64;

impl ResourceKind for SharedReceiveQueue {
    const COMMAND: u16 = command::RES_SRQ_GET;
    const TABLE_ATTRIBUTE: u16 = attr::RES_SRQ;
    const ENTRY_ATTRIBUTE: u16 = attr::RES_SRQ_ENTRY;
    const LOOKUP_ATTRIBUTE: Option<u16> = Some(attr::RES_SRQN);
    const MAX_ENTRY_BYTES: usize = 2 * ENTRY_HEADER_BYTES
        + 5 * U32_ATTRIBUTE_BYTES
        + MAX_LISTED_QPS * (ENTRY_HEADER_BYTES + U32_ATTRIBUTE_BYTES);

    fn objects_of_process(process: &ProcessObjects) -> &[Self] {
        &process.shared_receive_queues
    }

    fn lookup_number(&self) -> u32 {
        self.srqn
    }

    fn put_attributes(&self, message: &mut MessageBuilder, pid: u32) {
        message.put_u32(attr::RES_SRQN, self.srqn);
        message.put_u8(attr::RES_TYPE, self.srq_type);
        message.put_u32(attr::RES_PDN, self.pd_number);
        if let Some(cqn) = self.cqn {
            message.put_u32(attr::RES_CQN, cqn);
        }
        let table = message.begin_nested(attr::RES_QP);
        // The kernel makes one entry of numbers without a gap. `rdma` of iproute2 has 15 characters for such a range, which
        // are too few for two numbers of this device.
        for qpn in self.qpns.iter().take(MAX_LISTED_QPS) {
            let entry = message.begin_nested(attr::RES_QP_ENTRY);
            message.put_u32(attr::RES_LQPN, *qpn);
            message.end_nested(entry);
        }
        message.end_nested(table);
        message.put_u32(attr::RES_PID, pid);
    }
}
