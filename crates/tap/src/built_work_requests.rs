//! The work requests that programs build with `ibv_wr_*`.

use verbs_abi::*;

use crate::send_work_request::SendWorkRequest;

/// A work request that a thread is building.
#[derive(Clone, Copy)]
pub(crate) struct BuiltWr {
    pub(crate) wr_id: u64,
    pub(crate) opcode: ibv_wr_opcode,
    pub(crate) flags: u32,
    pub(crate) num_sge: u32,
    pub(crate) payload_bytes: u32,
    pub(crate) remote_address: Option<RemoteAddress>,
    pub(crate) ah: *mut ibv_ah,
    pub(crate) dest_qpn: u32,
    pub(crate) flush_parameters: Option<FlushParameters>,
}

/// The remote memory address of a work request.
#[derive(Clone, Copy)]
pub(crate) struct RemoteAddress {
    pub(crate) addr: u64,
    pub(crate) rkey: u32,
}

/// The parameters of a FLUSH besides its remote memory address, as `ibv_wr_flush(3)` names them.
#[derive(Clone, Copy)]
pub(crate) struct FlushParameters {
    pub(crate) len: usize,
    pub(crate) placement: u8,
    pub(crate) selectivity: u8,
}

impl BuiltWr {
    /// Returns a work request without a remote memory address.
    pub(crate) const fn without_remote_address(opcode: ibv_wr_opcode) -> Self {
        Self {
            wr_id: 0,
            opcode,
            flags: 0,
            num_sge: 0,
            payload_bytes: 0,
            remote_address: None,
            ah: std::ptr::null_mut(),
            dest_qpn: 0,
            flush_parameters: None,
        }
    }

    /// Returns a work request with a remote memory address.
    pub(crate) const fn with_remote_address(opcode: ibv_wr_opcode, addr: u64, rkey: u32) -> Self {
        Self {
            remote_address: Some(RemoteAddress { addr, rkey }),
            ..Self::without_remote_address(opcode)
        }
    }
}

impl SendWorkRequest for BuiltWr {
    fn opcode(&self) -> ibv_wr_opcode {
        self.opcode
    }

    fn flags(&self) -> u32 {
        self.flags
    }

    fn num_sge_and_bytes(&self) -> (u32, u32) {
        (self.num_sge, self.payload_bytes)
    }

    fn remote_addr(&self) -> u64 {
        self.remote_address.map_or(0, |to| to.addr)
    }

    fn ud_destination(&self) -> (*mut ibv_ah, u32) {
        (self.ah, self.dest_qpn)
    }
}
