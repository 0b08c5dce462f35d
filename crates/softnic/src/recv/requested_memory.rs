//! The memory of this process that a peer's request names, with the rights of the queue pair that the request is for.

use nic_core::rights::{Access, OwningPdOrQp, PermittedRange};
use roce::responder_target::AtomicOperation;
use shm::mem::{AtomicOp, MemoryFault};
use verbs_abi::IBV_FLUSH_GLOBAL;

use crate::qp::Qp;
use crate::region_cache::RegionCache;
use crate::send::{TargetQp, authorize_remote_region, required_pd_number};
use crate::why;

/// A range of memory that a request may access; its region stays registered.
pub(crate) struct RequestedMemory<'a> {
    qp: &'a Qp,
    region: &'a shm::mem::AccessibleRegion,
    permitted_range: PermittedRange,
    _pin: shm::keys::RegionPin,
}

impl<'a> RequestedMemory<'a> {
    /// Returns the range of this process's memory that a request to `qp` names.
    ///
    /// # Errors
    /// The request has no right to the range.
    pub(crate) fn locate_own_memory(
        qp: &'a Qp,
        regions: &'a mut RegionCache,
        range: (u64, u32),
        len: u64,
        access: Access,
    ) -> Result<Self, MemoryFault> {
        let found =
            authorize_remote_region(qp.nic, &own_target_qp(qp), regions, range, len, access);
        let (region, at, pin) = found.map_err(|_| {
            why::report_refused_request(qp.qpn, "refused a request of its peer");
            MemoryFault
        })?;
        Ok(Self {
            qp,
            region,
            permitted_range: at,
            _pin: pin,
        })
    }

    /// Writes `bytes`, which are as long as the range.
    ///
    /// # Errors
    /// The memory is not mapped, or the lengths differ.
    pub(crate) fn write(self, bytes: &[u8]) -> Result<(), MemoryFault> {
        if self.permitted_range.len() != bytes.len() as u64 {
            return Err(MemoryFault);
        }
        // SAFETY: `bytes` is as long as `permitted_range`, which is of this region; the region is pinned.
        unsafe { self.region.write(self.permitted_range, bytes.as_ptr()) }
    }

    /// Reads into `into`, which is as long as the range.
    ///
    /// # Errors
    /// The memory is not mapped, or the lengths differ.
    pub(crate) fn read(self, into: &mut [u8]) -> Result<(), MemoryFault> {
        if self.permitted_range.len() != into.len() as u64 {
            return Err(MemoryFault);
        }
        // SAFETY: `into` is as long as `permitted_range`, which is of this region; the region is pinned.
        unsafe { self.region.read(self.permitted_range, into.as_mut_ptr()) }
    }

    /// Executes an atomic on the 8 bytes of the range. Returns the original value.
    ///
    /// # Errors
    /// The memory is not mapped.
    pub(crate) fn execute_atomic(self, atomic: AtomicOperation) -> Result<u64, MemoryFault> {
        let op = match atomic {
            AtomicOperation::CompareSwap { compare, swap } => AtomicOp::CompareSwap {
                expect: compare,
                swap,
            },
            AtomicOperation::FetchAdd { add } => AtomicOp::FetchAdd(add),
            AtomicOperation::Write(bytes) => AtomicOp::Store(u64::from_ne_bytes(bytes)),
        };
        self.region
            .apply_atomic(self.qp.nic.this_process(), self.permitted_range, op)
    }

    /// Executes a FLUSH. Earlier writes are visible already, so only the checks remain.
    ///
    /// # Errors
    /// The request has no right to the range.
    pub(crate) fn execute_flush(
        qp: &Qp,
        regions: &mut RegionCache,
        (addr, rkey, len): (u64, u32, u64),
        placement: u8,
        selectivity: u8,
    ) -> Result<(), MemoryFault> {
        // Memory of a process does not survive the process, so no region allows persistence.
        if placement != IBV_FLUSH_GLOBAL {
            return Err(MemoryFault);
        }
        let (addr, len) = if selectivity == 0 {
            (addr, len)
        } else {
            let to = own_target_qp(qp);
            let domain =
                || required_pd_number(&to, qp.shared_state()).unwrap_or(OwningPdOrQp::NO_DOMAIN);
            let found = regions.get_pinned(qp.nic, qp.nic.this_process(), rkey, domain);
            let (region, _pin) = found.map_err(|_| MemoryFault)?;
            (region.rights.start, region.rights.len)
        };
        RequestedMemory::locate_own_memory(qp, regions, (addr, rkey), len, Access::FlushGlobal)
            .map(|_| ())
    }
}

/// Describes a queue pair of this process as the target of requests.
fn own_target_qp(qp: &Qp) -> TargetQp<'_> {
    TargetQp {
        peer: qp.nic.this_process(),
        qp_index: qp.index,
        srqn: 0,
    }
}
