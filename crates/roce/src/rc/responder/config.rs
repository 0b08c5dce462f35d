//! Configuration of a responder, fixed when its queue pair enters RTR.

use crate::dcqcn::DcqcnParameters;
use crate::opcode::PacketOperation;
use crate::psn::Psn;

/// The remote operations that the queue pair allows (`qp_access_flags`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllowedOperations {
    /// RDMA WRITE and ATOMIC WRITE (`IBV_ACCESS_REMOTE_WRITE`).
    pub write: bool,
    /// RDMA READ (`IBV_ACCESS_REMOTE_READ`).
    pub read: bool,
    /// Compare-and-swap and fetch-and-add (`IBV_ACCESS_REMOTE_ATOMIC`).
    pub atomic: bool,
    /// FLUSH (`IBV_ACCESS_FLUSH_GLOBAL`, `IBV_ACCESS_FLUSH_PERSISTENT`).
    pub flush: bool,
}

impl AllowedOperations {
    /// Allows every operation.
    pub const ALL: Self = Self {
        write: true,
        read: true,
        atomic: true,
        flush: true,
    };

    /// Returns true if the operation is allowed.
    pub(super) const fn allows(self, operation: PacketOperation) -> bool {
        match operation {
            PacketOperation::Write | PacketOperation::AtomicWrite => self.write,
            PacketOperation::ReadRequest => self.read,
            PacketOperation::CompareSwap | PacketOperation::FetchAdd => self.atomic,
            PacketOperation::Flush => self.flush,
            _ => true,
        }
    }
}

/// The configuration of a responder, fixed when its queue pair enters RTR.
#[derive(Clone, Copy, Debug)]
pub struct ResponderConfig {
    /// Number of the requester's queue pair (`dest_qp_num`).
    pub dest_qpn: u32,
    /// Path MTU, 256 to 4096 bytes.
    pub mtu_bytes: u32,
    /// PSN of the first request (`rq_psn`).
    pub first_psn: Psn,
    /// Largest number of READs, atomics and FLUSHes that the requester may have outstanding. 0 allows none.
    pub max_dest_rd_atomic: u8,
    /// RNR timer code: the time that a requester waits after an RNR NAK.
    pub min_rnr_timer: u8,
    /// Operations that the queue pair allows.
    pub allowed_operations: AllowedOperations,
    /// Partition key.
    pub pkey: u16,
    /// DCQCN parameters that limit the rate of READ responses; `None` if congestion notifications are ignored.
    pub congestion: Option<DcqcnParameters>,
}

impl Default for ResponderConfig {
    fn default() -> Self {
        Self {
            dest_qpn: 0,
            mtu_bytes: 1024,
            first_psn: Psn::new(0),
            max_dest_rd_atomic: 16,
            min_rnr_timer: 12,
            allowed_operations: AllowedOperations::ALL,
            pkey: 0xffff,
            congestion: Some(DcqcnParameters::SIGCOMM_2015),
        }
    }
}
