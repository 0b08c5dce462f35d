//! The interface from a responder to its memory and its receive work requests.

use crate::opcode::LastPacketField;

/// The reason why a responder refuses a request; each is a NAK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// NAK invalid request.
    InvalidRequest,
    /// NAK remote access error.
    RemoteAccess,
    /// NAK remote operational error.
    RemoteOperational,
    /// RNR NAK for this packet: another queue pair of the shared receive queue took the receive work request that
    /// [`ResponderTarget::try_begin_receive`] reported. The connection continues.
    NotReady,
}

/// The memory and the receive work requests of the responder's queue pair.
///
/// `write_memory` and `read_memory` access ranges that `check_write` and `check_read` have permitted, in parts.
pub trait ResponderTarget {
    /// Returns true if a receive work request is available for a message that begins now. The receive work request
    /// stays reserved until [`finish_receive`](Self::finish_receive).
    ///
    /// An earlier message that began and did not finish is discarded, and the new message uses its receive work
    /// request.
    fn try_begin_receive(&mut self) -> bool;

    /// Writes a part of a SEND to the buffers of the receive work request, from byte `offset` of the message on. After
    /// [`Refusal::NotReady`], the call is repeated with the same offset.
    ///
    /// # Errors
    /// The reason of the refusal, e.g. a message that is longer than the receive work request.
    fn write_to_receive_buffers(&mut self, offset: u32, bytes: &[u8]) -> Result<(), Refusal>;

    /// Completes the receive work request after the last packet of a message. `by_write` is the length of a WRITE with
    /// immediate, or `None` for a SEND.
    ///
    /// # Errors
    /// The reason of the refusal.
    fn finish_receive(
        &mut self,
        by_write: Option<u32>,
        tail: LastPacketField,
        solicited: bool,
    ) -> Result<(), Refusal>;

    /// Checks that a WRITE of `len` bytes is permitted; `len` is not 0.
    ///
    /// # Errors
    /// The reason of the refusal.
    fn check_write(&mut self, addr: u64, rkey: u32, len: u32) -> Result<(), Refusal>;

    /// Writes a part of a WRITE to memory.
    ///
    /// # Errors
    /// The reason of the refusal.
    fn write_memory(&mut self, addr: u64, rkey: u32, bytes: &[u8]) -> Result<(), Refusal>;

    /// Checks that a READ of `len` bytes is permitted; `len` is not 0.
    ///
    /// # Errors
    /// The reason of the refusal.
    fn check_read(&mut self, addr: u64, rkey: u32, len: u32) -> Result<(), Refusal>;

    /// Reads a part of the data of a READ from memory.
    ///
    /// # Errors
    /// The reason of the refusal.
    fn read_memory(&mut self, addr: u64, rkey: u32, into: &mut [u8]) -> Result<(), Refusal>;

    /// Executes an atomic operation; returns the original value in the responder's byte order.
    ///
    /// # Errors
    /// The reason of the refusal.
    fn execute_atomic(
        &mut self,
        addr: u64,
        rkey: u32,
        atomic: AtomicOperation,
    ) -> Result<u64, Refusal>;

    /// Executes a FLUSH.
    ///
    /// # Errors
    /// The reason of the refusal.
    fn execute_flush(
        &mut self,
        addr: u64,
        rkey: u32,
        len: u32,
        placement: u8,
        selectivity: u8,
    ) -> Result<(), Refusal>;
}

/// An atomic operation on 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicOperation {
    /// Stores `swap` if the value equals `compare`.
    CompareSwap {
        /// The value to compare with.
        compare: u64,
        /// The value to store.
        swap: u64,
    },
    /// Adds `add` to the value.
    FetchAdd {
        /// The value to add.
        add: u64,
    },
    /// Stores eight bytes in the byte order of the packet (ATOMIC WRITE).
    Write([u8; 8]),
}
