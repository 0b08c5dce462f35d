//! What a responder has: memory that requests name, and receive work requests.

use crate::opcode::Tail;

/// Why a request is refused; each is a NAK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// NAK invalid request.
    InvalidRequest,
    /// NAK remote access error.
    RemoteAccess,
    /// NAK remote operational error.
    RemoteOperational,
    /// RNR NAK of this packet: the receive work request that [`Target::begin_receive`] saw was taken by another queue pair
    /// of the shared receive queue. The connection goes on.
    NotReady,
}

/// What the responder's queue pair has: memory that requests name, and receive work requests.
///
/// Ranges that `check_write` and `check_read` have permitted are written and read in parts.
pub trait Target {
    /// Whether a message that begins now finds a receive work request. It stays reserved until
    /// [`finish_receive`](Self::finish_receive).
    ///
    /// What came of a message that began before and did not finish is forgotten: it keeps its receive work request, and
    /// gives it to this one.
    fn begin_receive(&mut self) -> bool;

    /// Places a part of a SEND in the receive work request, from byte `offset` of the message on. After
    /// [`Refusal::NotReady`] the part comes again with the same offset.
    ///
    /// # Errors
    /// The refusal, e.g. because the message is longer than the receive work request.
    fn receive(&mut self, offset: u32, bytes: &[u8]) -> Result<(), Refusal>;

    /// A SEND (`by_write` is `None`), or a WRITE with immediate of so many bytes, has come whole: the receive work request
    /// completes.
    ///
    /// # Errors
    /// The refusal.
    fn finish_receive(
        &mut self,
        by_write: Option<u32>,
        tail: Tail,
        solicited: bool,
    ) -> Result<(), Refusal>;

    /// Whether a WRITE of `len` bytes is permitted; `len` is not 0.
    ///
    /// # Errors
    /// The refusal.
    fn check_write(&mut self, addr: u64, rkey: u32, len: u32) -> Result<(), Refusal>;

    /// Writes a part of a WRITE.
    ///
    /// # Errors
    /// The refusal.
    fn write(&mut self, addr: u64, rkey: u32, bytes: &[u8]) -> Result<(), Refusal>;

    /// Whether a READ of `len` bytes is permitted; `len` is not 0.
    ///
    /// # Errors
    /// The refusal.
    fn check_read(&mut self, addr: u64, rkey: u32, len: u32) -> Result<(), Refusal>;

    /// Reads a part of a READ.
    ///
    /// # Errors
    /// The refusal.
    fn read(&mut self, addr: u64, rkey: u32, into: &mut [u8]) -> Result<(), Refusal>;

    /// Executes an atomic; the original value, in the responder's byte order.
    ///
    /// # Errors
    /// The refusal.
    fn atomic(&mut self, addr: u64, rkey: u32, atomic: Atomic) -> Result<u64, Refusal>;

    /// Executes a FLUSH.
    ///
    /// # Errors
    /// The refusal.
    fn flush(
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
pub enum Atomic {
    /// Stores `swap` if the value equals `compare`.
    CompareSwap {
        /// The value to compare with.
        compare: u64,
        /// The value to store.
        swap: u64,
    },
    /// Adds `add`.
    FetchAdd {
        /// The value to add.
        add: u64,
    },
    /// Stores eight bytes as they lie in the packet (ATOMIC WRITE).
    Write([u8; 8]),
}
