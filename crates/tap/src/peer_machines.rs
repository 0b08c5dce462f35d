//! The machines to which a program sends messages.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Mutex, PoisonError};

use verbs_abi::*;

/// The machine of each address handle.
static MACHINE_BY_AH: Mutex<Option<HashMap<usize, u64>>> = Mutex::new(None);

/// Returns a number that identifies a machine. The number is made from the address, or from the
/// process if each process counts as a machine.
pub(crate) fn machine_id(qpn_process_shift: Option<u32>, to: &ibv_ah_attr, qpn: u32) -> u64 {
    if let Some(shift) = qpn_process_shift {
        return u64::from(qpn >> shift) + 1;
    }
    address_hash(to)
}

/// Returns a number that identifies the destination of an address vector.
pub(crate) fn address_hash(to: &ibv_ah_attr) -> u64 {
    let mut hash = DefaultHasher::new();
    if to.is_global != 0 {
        // SAFETY: any bytes are a GID.
        unsafe { to.grh.dgid.raw }.hash(&mut hash);
    } else {
        to.dlid.hash(&mut hash);
    }
    hash.finish()
}

/// Returns the machine to which a datagram goes.
pub(crate) fn machine_of_datagram(process_shift: Option<u32>, ah: *mut ibv_ah, qpn: u32) -> u64 {
    if let Some(shift) = process_shift {
        return u64::from(qpn >> shift) + 1;
    }
    let machines = MACHINE_BY_AH.lock().unwrap_or_else(PoisonError::into_inner);
    let known = machines.as_ref().and_then(|known| known.get(&ah.addr()));
    known.copied().unwrap_or(1)
}

/// Records the machine of an address handle.
pub(crate) fn record_ah_machine(ah: *mut ibv_ah, machine: u64) {
    let mut machines = MACHINE_BY_AH.lock().unwrap_or_else(PoisonError::into_inner);
    machines.get_or_insert_default().insert(ah.addr(), machine);
}
