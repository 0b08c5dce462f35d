//! Work requests of a requester, and the interface to its memory.

use crate::opcode::LastPacketField;

/// A work request as the requester sends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The operation and its operands.
    pub operation: RequestOperation,
    /// Solicited event: the responder generates a completion event.
    pub solicited: bool,
    /// The request waits until all earlier READs and atomics are done (`IBV_SEND_FENCE`).
    pub fence: bool,
}

/// The operation of a request, with its operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestOperation {
    /// SEND of `len` bytes.
    Send {
        /// Length in bytes.
        len: u32,
        /// Immediate data or a key to invalidate.
        tail: LastPacketField,
    },
    /// RDMA WRITE of `len` bytes.
    Write {
        /// Address in the responder's memory region.
        addr: u64,
        /// R_Key.
        rkey: u32,
        /// Length in bytes.
        len: u32,
        /// Immediate data.
        imm: Option<[u8; 4]>,
    },
    /// RDMA READ of `len` bytes.
    Read {
        /// Address in the responder's memory region.
        addr: u64,
        /// R_Key.
        rkey: u32,
        /// Length in bytes.
        len: u32,
    },
    /// Compare-and-swap of 8 bytes.
    CompareSwap {
        /// Address in the responder's memory region.
        addr: u64,
        /// R_Key.
        rkey: u32,
        /// The value to compare with.
        compare: u64,
        /// The value to store if the comparison succeeds.
        swap: u64,
    },
    /// Fetch-and-add of 8 bytes.
    FetchAdd {
        /// Address in the responder's memory region.
        addr: u64,
        /// R_Key.
        rkey: u32,
        /// The value to add.
        add: u64,
    },
    /// ATOMIC WRITE of the 8 bytes of payload of the work request.
    AtomicWrite {
        /// Address in the responder's memory region.
        addr: u64,
        /// R_Key.
        rkey: u32,
    },
    /// FLUSH of a range.
    Flush {
        /// Address in the responder's memory region.
        addr: u64,
        /// R_Key.
        rkey: u32,
        /// Length in bytes.
        len: u32,
        /// Placement type, as in [`Feth`](crate::packet::Feth).
        placement: u8,
        /// Selectivity level, as in [`Feth`](crate::packet::Feth).
        selectivity: u8,
    },
}

/// The requester's memory, by work request: payload to send, and buffers for results.
///
/// The position of a work request is the number that `post` returned for it.
pub trait LocalMemory {
    /// Reads payload of the work request at `position`, from byte `offset` on, until `into` is full.
    ///
    /// # Errors
    /// The memory cannot be read, and the work request fails.
    fn read_payload(
        &mut self,
        position: u64,
        offset: u32,
        into: &mut [u8],
    ) -> Result<(), LocalFault>;

    /// Writes a part of the result of the READ or atomic at `position`, from byte `offset` on.
    ///
    /// # Errors
    /// The memory cannot be written, and the work request fails.
    fn write_read_or_atomic_result(
        &mut self,
        position: u64,
        offset: u32,
        bytes: &[u8],
    ) -> Result<(), LocalFault>;
}

/// Error: the requester's memory cannot be accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalFault;

/// The reason why a work request, and with it the queue pair, has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestFailure {
    /// `IBV_WC_LOC_PROT_ERR`: the requester's memory cannot be accessed.
    LocalProtection,
    /// `IBV_WC_BAD_RESP_ERR`: an unexpected response.
    BadResponse,
    /// `IBV_WC_RETRY_EXC_ERR`: no response after all retries.
    RetryExceeded,
    /// `IBV_WC_RNR_RETRY_EXC_ERR`: no receive work request at the responder after all retries.
    RnrRetryExceeded,
    /// `IBV_WC_REM_INV_REQ_ERR`: the responder found the request invalid.
    RemoteInvalidRequest,
    /// `IBV_WC_REM_ACCESS_ERR`: the responder refused access to its memory.
    RemoteAccess,
    /// `IBV_WC_REM_OP_ERR`: the responder could not complete the request.
    RemoteOperational,
}
