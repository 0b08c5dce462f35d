//! Options of ids.

use std::ffi::c_int;

use c_edge::{In, InOut, c_functions};
use verbs_abi::*;

use super::argument_types::{IdArg, OptionValue};
use crate::errno::{Errno, INVALID, Result};
use crate::id::CmId;
use crate::resolve::resolve_route;

c_functions! {
    /// Sets an option: `rdma_set_option(3)`.
    pub rdma_set_option => set_option,
        (id: IdArg<'_>, level: c_int, optname: c_int, optval: OptionValue, optlen: usize) -> Result;

    /// Offers ECE options (enhanced connection establishment) to the peer: `rdma_set_local_ece(3)`.
    pub rdma_set_local_ece => set_local_ece, (id: IdArg<'_>, ece: In<'_, ibv_ece>) -> Result;

    /// Returns the peer's ECE options: `rdma_get_remote_ece(3)`.
    pub rdma_get_remote_ece => get_remote_ece, (id: IdArg<'_>, ece: InOut<'_, ibv_ece>) -> Result;
}

fn set_option(
    id: IdArg<'_>,
    level: c_int,
    optname: c_int,
    optval: OptionValue,
    optlen: usize,
) -> Result {
    let id = id.get()?;
    match (level, optname) {
        // The type of service is accepted and ignored.
        (RDMA_OPTION_ID, RDMA_OPTION_ID_TOS) => optval.byte(optlen).map(drop),
        (RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR) => {
            let reuse = optval.number(optlen)? != 0;
            check_id_unbound(id)?;
            id.lock_extra_fields().reuse_address = reuse;
            Ok(())
        }
        (RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY) => {
            let afonly = optval.number(optlen)? != 0;
            check_id_unbound(id)?;
            id.lock_extra_fields().afonly = afonly;
            Ok(())
        }
        (RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT) => {
            let timeout = optval.byte(optlen)?;
            // 5 bits: IBTA vol. 1, 12.7.34.
            if timeout > 31 {
                return Err(INVALID);
            }
            id.lock_extra_fields().ack_timeout = Some(timeout);
            Ok(())
        }
        (RDMA_OPTION_IB, RDMA_OPTION_IB_PATH) => {
            let whole = optlen != 0 && optlen.is_multiple_of(size_of::<ibv_path_data>());
            if optval.is_null() || !whole {
                return Err(INVALID);
            }
            // Only one path exists, so the program's paths are ignored.
            resolve_route(id)
        }
        _ => Err(Errno(libc::ENOSYS)),
    }
}

/// Checks that the id is not bound: options of binding must be set before.
fn check_id_unbound(id: &CmId) -> Result {
    if id.source().is_some() {
        Err(INVALID)
    } else {
        Ok(())
    }
}

fn set_local_ece(id: IdArg<'_>, ece: In<'_, ibv_ece>) -> Result {
    let id = id.get()?;
    let ece = ece.get()?;
    if ece.vendor_id == 0 {
        return Err(INVALID);
    }
    id.lock_extra_fields().ece = (ece.vendor_id, ece.options);
    Ok(())
}

fn get_remote_ece(id: IdArg<'_>, ece: InOut<'_, ibv_ece>) -> Result {
    let id = id.get()?;
    let ece = ece.get()?;
    // "The function can be used only on ids without a queue pair of their own."
    if !id.qp().is_null() {
        return Err(INVALID);
    }
    (ece.vendor_id, ece.options) = id.endpoint.connection_params().remote_ece;
    ece.comp_mask = 0;
    Ok(())
}
