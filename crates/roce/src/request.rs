//! What a requester is asked for, and its memory.

use crate::opcode::Tail;

/// A work request as the wire sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// What is asked for.
    pub operation: RequestOperation,
    /// The responder's completion event is solicited.
    pub solicited: bool,
    /// It waits until all READs and atomics before it are done (`IBV_SEND_FENCE`).
    pub fence: bool,
}

/// The operation of a request, with its operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestOperation {
    /// SEND of `len` bytes.
    Send {
        /// Bytes.
        len: u32,
        /// Immediate data or a key to invalidate.
        tail: Tail,
    },
    /// RDMA WRITE of `len` bytes.
    Write {
        /// Address in the responder's region.
        addr: u64,
        /// R_Key.
        rkey: u32,
        /// Bytes.
        len: u32,
        /// Immediate data.
        imm: Option<[u8; 4]>,
    },
    /// RDMA READ of `len` bytes.
    Read {
        /// Address in the responder's region.
        addr: u64,
        /// R_Key.
        rkey: u32,
        /// Bytes.
        len: u32,
    },
    /// Compare-and-swap of 8 bytes.
    CompareSwap {
        /// Address in the responder's region.
        addr: u64,
        /// R_Key.
        rkey: u32,
        /// The value to compare with.
        compare: u64,
        /// The value to store if it is equal.
        swap: u64,
    },
    /// Fetch-and-add of 8 bytes.
    FetchAdd {
        /// Address in the responder's region.
        addr: u64,
        /// R_Key.
        rkey: u32,
        /// The value to add.
        add: u64,
    },
    /// ATOMIC WRITE of 8 bytes, which are the payload of the work request.
    AtomicWrite {
        /// Address in the responder's region.
        addr: u64,
        /// R_Key.
        rkey: u32,
    },
    /// FLUSH of a range.
    Flush {
        /// Address in the responder's region.
        addr: u64,
        /// R_Key.
        rkey: u32,
        /// Bytes.
        len: u32,
        /// Placement type, as in [`Feth`](crate::packet::Feth).
        placement: u8,
        /// Selectivity level, as in [`Feth`](crate::packet::Feth).
        selectivity: u8,
    },
}

/// The requester's own memory, by work request: payload to be sent and places for results.
///
/// A work request is named by its position: the number that posting it gave.
pub trait LocalMemory {
    /// Reads payload of the work request at `position` from byte `offset` on, as much as `into` holds.
    ///
    /// # Errors
    /// The memory cannot be read: the work request fails.
    fn read(&mut self, position: u64, offset: u32, into: &mut [u8]) -> Result<(), LocalFault>;

    /// Places a part of the result of the READ or atomic at `position`.
    ///
    /// # Errors
    /// The memory cannot be written: the work request fails.
    fn write(&mut self, position: u64, offset: u32, bytes: &[u8]) -> Result<(), LocalFault>;
}

/// The requester's own memory cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalFault;

/// Why a work request, and with it the queue pair, has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// `IBV_WC_LOC_PROT_ERR`: the requester's own memory cannot be used.
    LocalProtection,
    /// `IBV_WC_BAD_RESP_ERR`: an unexpected response.
    BadResponse,
    /// `IBV_WC_RETRY_EXC_ERR`: no answer after all retries.
    RetryExceeded,
    /// `IBV_WC_RNR_RETRY_EXC_ERR`: no receive work request at the responder after all retries.
    RnrRetryExceeded,
    /// `IBV_WC_REM_INV_REQ_ERR`.
    RemoteInvalidRequest,
    /// `IBV_WC_REM_ACCESS_ERR`.
    RemoteAccess,
    /// `IBV_WC_REM_OP_ERR`.
    RemoteOperational,
}
