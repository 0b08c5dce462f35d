//! Work requests and completions.

use std::fmt;

use verbs_abi::*;

use crate::objects::Ah;

/// An address in remote memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct RemoteAddress {
    /// Virtual address in the responder.
    pub addr: u64,
    /// R_Key of the memory region.
    pub rkey: u32,
}

impl RemoteAddress {
    /// Returns the address that lies `bytes` bytes behind this one.
    #[must_use]
    pub fn plus(self, bytes: u64) -> Self {
        Self {
            addr: self.addr.wrapping_add(bytes),
            ..self
        }
    }
}

/// The verbs of a send queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[allow(missing_docs)]
pub enum Verb {
    Send,
    SendWithImm,
    RdmaWrite,
    RdmaWriteWithImm,
    RdmaRead,
    AtomicCmpAndSwp,
    AtomicFetchAndAdd,
}

impl Verb {
    /// All verbs.
    pub const ALL: [Self; 7] = [
        Self::Send,
        Self::SendWithImm,
        Self::RdmaWrite,
        Self::RdmaWriteWithImm,
        Self::RdmaRead,
        Self::AtomicCmpAndSwp,
        Self::AtomicFetchAndAdd,
    ];

    /// Returns the work request opcode: `IBV_WR_*`.
    #[must_use]
    pub fn wr_opcode(self) -> ibv_wr_opcode {
        match self {
            Self::Send => IBV_WR_SEND,
            Self::SendWithImm => IBV_WR_SEND_WITH_IMM,
            Self::RdmaWrite => IBV_WR_RDMA_WRITE,
            Self::RdmaWriteWithImm => IBV_WR_RDMA_WRITE_WITH_IMM,
            Self::RdmaRead => IBV_WR_RDMA_READ,
            Self::AtomicCmpAndSwp => IBV_WR_ATOMIC_CMP_AND_SWP,
            Self::AtomicFetchAndAdd => IBV_WR_ATOMIC_FETCH_AND_ADD,
        }
    }

    /// Returns the completion opcode at the requester: `IBV_WC_*`.
    #[must_use]
    pub fn send_wc_opcode(self) -> ibv_wc_opcode {
        match self {
            Self::Send | Self::SendWithImm => IBV_WC_SEND,
            Self::RdmaWrite | Self::RdmaWriteWithImm => IBV_WC_RDMA_WRITE,
            Self::RdmaRead => IBV_WC_RDMA_READ,
            Self::AtomicCmpAndSwp => IBV_WC_COMP_SWAP,
            Self::AtomicFetchAndAdd => IBV_WC_FETCH_ADD,
        }
    }

    /// Returns the completion opcode at the responder, `IBV_WC_*`, if the verb consumes a receive WR.
    #[must_use]
    pub fn recv_wc_opcode(self) -> Option<ibv_wc_opcode> {
        match self {
            Self::Send | Self::SendWithImm => Some(IBV_WC_RECV),
            Self::RdmaWriteWithImm => Some(IBV_WC_RECV_RDMA_WITH_IMM),
            _ => None,
        }
    }

    /// Returns true if the verb carries an immediate.
    #[must_use]
    pub fn has_imm(self) -> bool {
        matches!(self, Self::SendWithImm | Self::RdmaWriteWithImm)
    }

    /// Returns true for a SEND, with or without immediate.
    #[must_use]
    pub fn is_send(self) -> bool {
        matches!(self, Self::Send | Self::SendWithImm)
    }

    /// Returns true for an RDMA WRITE, with or without immediate.
    #[must_use]
    pub fn is_write(self) -> bool {
        matches!(self, Self::RdmaWrite | Self::RdmaWriteWithImm)
    }

    /// Returns true for compare-and-swap and fetch-and-add.
    #[must_use]
    pub fn is_atomic(self) -> bool {
        matches!(self, Self::AtomicCmpAndSwp | Self::AtomicFetchAndAdd)
    }
}

/// A send WR with its SGEs; signaled and with `wr_id` 0 by default.
pub struct SendWr {
    pub(crate) raw: ibv_send_wr,
    pub(crate) sges: Vec<ibv_sge>,
    pub(crate) has_ud_destination: bool,
}

impl SendWr {
    /// Returns a WR for the verb, without operands.
    #[must_use]
    pub fn new(verb: Verb, sges: impl IntoIterator<Item = ibv_sge>) -> Self {
        let mut raw = ibv_send_wr::zeroed();
        raw.opcode = verb.wr_opcode();
        raw.send_flags = IBV_SEND_SIGNALED;
        Self {
            raw,
            sges: sges.into_iter().collect(),
            has_ud_destination: false,
        }
    }

    /// Sets `wr_id`.
    #[must_use]
    pub fn with_id(mut self, wr_id: u64) -> Self {
        self.raw.wr_id = wr_id;
        self
    }

    /// Sets the immediate, in host order.
    #[must_use]
    pub fn with_imm(mut self, imm: u32) -> Self {
        self.raw.imm.imm_data = imm.to_be();
        self
    }

    /// Sets a flag: one of `IBV_SEND_*`.
    #[must_use]
    pub fn with_flag(mut self, flag: ibv_send_flags) -> Self {
        self.raw.send_flags |= flag;
        self
    }

    /// Clears `IBV_SEND_SIGNALED`.
    #[must_use]
    pub fn unsignaled(mut self) -> Self {
        self.raw.send_flags &= !IBV_SEND_SIGNALED;
        self
    }

    /// Sets `IBV_SEND_INLINE`.
    #[must_use]
    pub fn inlined(self) -> Self {
        self.with_flag(IBV_SEND_INLINE)
    }

    /// Sets any opcode, valid or not.
    #[must_use]
    pub fn with_opcode(mut self, opcode: ibv_wr_opcode) -> Self {
        self.raw.opcode = opcode;
        self
    }

    /// Sets the remote address of an RDMA WRITE or READ.
    #[must_use]
    pub fn with_remote(mut self, remote: RemoteAddress) -> Self {
        self.raw.wr.rdma = ibv_send_wr_wr_rdma {
            remote_addr: remote.addr,
            rkey: remote.rkey,
        };
        self
    }

    /// Sets the remote address and the operands of an atomic.
    #[must_use]
    pub fn with_atomic_remote_and_operands(
        mut self,
        remote: RemoteAddress,
        compare_add: u64,
        swap: u64,
    ) -> Self {
        self.raw.wr.atomic = ibv_send_wr_wr_atomic {
            remote_addr: remote.addr,
            compare_add,
            swap,
            rkey: remote.rkey,
        };
        self
    }

    /// Sets the destination of a UD SEND.
    #[must_use]
    pub fn with_ud_destination(mut self, ah: &Ah, remote_qpn: u32, remote_qkey: u32) -> Self {
        self.raw.wr.ud = ibv_send_wr_wr_ud {
            ah: ah.raw(),
            remote_qpn,
            remote_qkey,
        };
        self.has_ud_destination = true;
        self
    }
}

/// Returns a SEND.
pub fn send(sges: impl IntoIterator<Item = ibv_sge>) -> SendWr {
    SendWr::new(Verb::Send, sges)
}

/// Returns a SEND with an immediate.
pub fn send_imm(sges: impl IntoIterator<Item = ibv_sge>, imm: u32) -> SendWr {
    SendWr::new(Verb::SendWithImm, sges).with_imm(imm)
}

/// Returns an RDMA WRITE.
pub fn write(sges: impl IntoIterator<Item = ibv_sge>, remote: RemoteAddress) -> SendWr {
    SendWr::new(Verb::RdmaWrite, sges).with_remote(remote)
}

/// Returns an RDMA WRITE with an immediate.
pub fn write_imm(
    sges: impl IntoIterator<Item = ibv_sge>,
    remote: RemoteAddress,
    imm: u32,
) -> SendWr {
    SendWr::new(Verb::RdmaWriteWithImm, sges)
        .with_remote(remote)
        .with_imm(imm)
}

/// Returns an RDMA READ.
pub fn read(sges: impl IntoIterator<Item = ibv_sge>, remote: RemoteAddress) -> SendWr {
    SendWr::new(Verb::RdmaRead, sges).with_remote(remote)
}

/// Returns a fetch-and-add; the old value goes to `sge`.
pub fn fetch_add(sge: ibv_sge, remote: RemoteAddress, add: u64) -> SendWr {
    SendWr::new(Verb::AtomicFetchAndAdd, [sge]).with_atomic_remote_and_operands(remote, add, 0)
}

/// Returns a compare-and-swap; the old value goes to `sge`.
pub fn cmp_swp(sge: ibv_sge, remote: RemoteAddress, compare: u64, swap: u64) -> SendWr {
    SendWr::new(Verb::AtomicCmpAndSwp, [sge]).with_atomic_remote_and_operands(remote, compare, swap)
}

/// Returns a WR of any verb, with an immediate of 0x1234_5678 and the value 1 for compare and add.
pub fn wr_of_verb_with_default_operands(
    verb: Verb,
    sges: impl IntoIterator<Item = ibv_sge>,
    remote: RemoteAddress,
) -> SendWr {
    let wr = SendWr::new(verb, sges);
    match verb {
        Verb::Send => wr,
        Verb::SendWithImm => wr.with_imm(0x1234_5678),
        Verb::RdmaWrite | Verb::RdmaRead => wr.with_remote(remote),
        Verb::RdmaWriteWithImm => wr.with_remote(remote).with_imm(0x1234_5678),
        Verb::AtomicCmpAndSwp | Verb::AtomicFetchAndAdd => {
            wr.with_atomic_remote_and_operands(remote, 1, 1)
        }
    }
}

/// A receive WR with its SGEs.
pub struct RecvWr {
    pub(crate) raw: ibv_recv_wr,
    pub(crate) sges: Vec<ibv_sge>,
}

/// Returns a receive WR for `sges`.
pub fn recv(wr_id: u64, sges: impl IntoIterator<Item = ibv_sge>) -> RecvWr {
    let mut raw = ibv_recv_wr::zeroed();
    raw.wr_id = wr_id;
    RecvWr {
        raw,
        sges: sges.into_iter().collect(),
    }
}

/// Links send WRs to a postlist, and returns its head.
pub(crate) fn link_send(wrs: &mut [SendWr]) -> *mut ibv_send_wr {
    let mut next = std::ptr::null_mut();
    for wr in wrs.iter_mut().rev() {
        wr.raw.sg_list = if wr.sges.is_empty() {
            std::ptr::null_mut()
        } else {
            wr.sges.as_mut_ptr()
        };
        wr.raw.num_sge = i32::try_from(wr.sges.len()).expect("few SGEs");
        wr.raw.next = next;
        next = &raw mut wr.raw;
    }
    next
}

/// Links receive WRs to a postlist, and returns its head.
pub(crate) fn link_recv(wrs: &mut [RecvWr]) -> *mut ibv_recv_wr {
    let mut next = std::ptr::null_mut();
    for wr in wrs.iter_mut().rev() {
        wr.raw.sg_list = if wr.sges.is_empty() {
            std::ptr::null_mut()
        } else {
            wr.sges.as_mut_ptr()
        };
        wr.raw.num_sge = i32::try_from(wr.sges.len()).expect("few SGEs");
        wr.raw.next = next;
        next = &raw mut wr.raw;
    }
    next
}

/// Error: a postlist was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefusedPostlist {
    /// The errno that the call returned.
    pub errno: i32,
    /// Index of the WR to which `bad_wr` points; `None` if it points outside the list.
    pub bad_wr_index: Option<usize>,
}

/// A work completion.
#[derive(Clone, Copy)]
pub struct Wc(pub(crate) ibv_wc);

impl Wc {
    /// Returns `wr_id`.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.0.wr_id
    }

    /// Returns `IBV_WC_SUCCESS` or the reason of the failure.
    #[must_use]
    pub fn status(&self) -> ibv_wc_status {
        self.0.status
    }

    /// Returns the QP number of the queue pair.
    #[must_use]
    pub fn qpn(&self) -> u32 {
        self.0.qp_num
    }

    /// Returns the whole completion.
    #[must_use]
    pub fn raw(&self) -> &ibv_wc {
        &self.0
    }

    /// Returns the immediate, in host order.
    #[must_use]
    pub fn imm(&self) -> Option<u32> {
        // SAFETY: both members are plain 32-bit numbers.
        (self.0.wc_flags & IBV_WC_WITH_IMM != 0)
            .then(|| u32::from_be(unsafe { self.0.imm.imm_data }))
    }

    /// Returns the R_Key that the peer has invalidated.
    #[must_use]
    pub fn invalidated_rkey(&self) -> Option<u32> {
        // SAFETY: both members are plain 32-bit numbers.
        let rkey = unsafe { self.0.imm.invalidated_rkey };
        (self.0.wc_flags & IBV_WC_WITH_INV != 0).then_some(rkey)
    }

    /// Panics unless the status is success, with this `wr_id` and opcode.
    #[track_caller]
    pub fn expect_success(&self, wr_id: u64, opcode: ibv_wc_opcode) -> &Self {
        assert_eq!(self.0.status, IBV_WC_SUCCESS, "of {self:?}");
        assert_eq!(self.0.wr_id, wr_id, "wr_id of {self:?}");
        assert_eq!(self.0.opcode, opcode, "opcode of {self:?}");
        self
    }

    /// Panics unless the completion is a success of this verb at the requester.
    #[track_caller]
    pub fn expect_sent(&self, wr_id: u64, verb: Verb) -> &Self {
        self.expect_success(wr_id, verb.send_wc_opcode())
    }

    /// Panics unless the completion is a received SEND of `byte_len` bytes.
    #[track_caller]
    pub fn expect_received(&self, wr_id: u64, byte_len: usize) -> &Self {
        self.expect_success(wr_id, IBV_WC_RECV);
        assert_eq!(self.0.byte_len as usize, byte_len, "byte_len of {self:?}");
        self
    }

    /// Panics unless the status is one of `statuses`, with this `wr_id`.
    #[track_caller]
    pub fn expect_failed(&self, wr_id: u64, statuses: &[ibv_wc_status]) -> &Self {
        assert!(
            statuses.contains(&self.0.status),
            "{self:?}, expected one of {statuses:?}"
        );
        assert_eq!(self.0.wr_id, wr_id, "wr_id of {self:?}");
        self
    }

    /// Panics unless the completion was flushed, with this `wr_id`.
    #[track_caller]
    pub fn expect_flushed(&self, wr_id: u64) -> &Self {
        self.expect_failed(wr_id, &[IBV_WC_WR_FLUSH_ERR])
    }
}

impl fmt::Debug for Wc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let wc = &self.0;
        write!(
            f,
            "wc(wr_id {:#x}, status {}, qp_num {:#x}",
            wc.wr_id, wc.status, wc.qp_num
        )?;
        if wc.status == IBV_WC_SUCCESS {
            write!(
                f,
                ", opcode {}, byte_len {}, flags {:#x}",
                wc.opcode, wc.byte_len, wc.wc_flags
            )?;
        } else {
            write!(f, ", vendor_err {:#x}", wc.vendor_err)?;
        }
        f.write_str(")")
    }
}
