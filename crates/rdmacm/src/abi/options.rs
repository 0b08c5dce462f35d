//! Options of ids.

use std::ffi::{c_int, c_void};

use verbs_abi::*;

use super::returned::with_id;
use crate::errno::{Errno, INVALID, Result};
use crate::id::CmId;

/// Sets an option: `rdma_set_option(3)`.
pub unsafe extern "C" fn rdma_set_option(
    id: *mut rdma_cm_id,
    level: c_int,
    optname: c_int,
    optval: *mut c_void,
    optlen: usize,
) -> c_int {
    // SAFETY: contract of this module.
    unsafe {
        with_id(id, |id| match (level, optname) {
            // No packet leaves the host, so that nobody sees a type of service.
            (RDMA_OPTION_ID, RDMA_OPTION_ID_TOS) => read::<u8>(optval, optlen).map(drop),
            (RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR) => {
                let reuse = read::<c_int>(optval, optlen)? != 0;
                unbound(id)?;
                id.extra().reuse_address = reuse;
                Ok(())
            }
            (RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY) => {
                let afonly = read::<c_int>(optval, optlen)? != 0;
                unbound(id)?;
                id.extra().afonly = afonly;
                Ok(())
            }
            (RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT) => {
                let timeout = read::<u8>(optval, optlen)?;
                // 5 bits: IBTA vol. 1, 12.7.34.
                if timeout > 31 {
                    return Err(INVALID);
                }
                id.extra().ack_timeout = Some(timeout);
                Ok(())
            }
            (RDMA_OPTION_IB, RDMA_OPTION_IB_PATH) => {
                if optval.is_null()
                    || optlen == 0
                    || !optlen.is_multiple_of(size_of::<ibv_path_data>())
                {
                    return Err(INVALID);
                }
                // There is one path, whatever the program found.
                crate::resolve::resolve_route(id)
            }
            _ => Err(Errno(libc::ENOSYS)),
        })
    }
}

/// # Safety
/// `value` is NULL or valid for `len` bytes.
unsafe fn read<T: Copy>(value: *const c_void, len: usize) -> Result<T> {
    if value.is_null() || len != size_of::<T>() {
        return Err(INVALID);
    }
    // SAFETY: contract of this function, and the length is that of a `T`.
    Ok(unsafe { value.cast::<T>().read_unaligned() })
}

/// Options of binding come before it.
fn unbound(id: &CmId) -> Result {
    if id.source().is_some() {
        Err(INVALID)
    } else {
        Ok(())
    }
}

/// Offers extended connection parameters to the peer: `rdma_set_local_ece(3)`.
pub unsafe extern "C" fn rdma_set_local_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    // SAFETY: contract of this module.
    unsafe {
        with_id(id, |id| {
            let ece = ece.as_ref().filter(|e| e.vendor_id != 0);
            let ece = ece.ok_or(INVALID)?;
            id.extra().ece = (ece.vendor_id, ece.options);
            Ok(())
        })
    }
}

/// What the peer offered: `rdma_get_remote_ece(3)`.
pub unsafe extern "C" fn rdma_get_remote_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    // SAFETY: contract of this module.
    unsafe {
        with_id(id, |id| {
            let ece = ece.as_mut().ok_or(INVALID)?;
            // "The function can be used only on ids without a queue pair of their own."
            if !id.qp().is_null() {
                return Err(INVALID);
            }
            let (vendor_id, options) = id.endpoint.ends().remote_ece;
            ece.vendor_id = vendor_id;
            ece.options = options;
            ece.comp_mask = 0;
            Ok(())
        })
    }
}
