//! Memory windows, and the bind work request of `ibv_post_send(3)`.

use std::sync::Arc;

use verbs_abi::{ibv_mw, ibv_mw_type, ibv_send_wr};

use crate::abi_cell::AbiCell;
use crate::live_handles;
use crate::pd::Pd;
use shm::keys::{BindRequest, WindowId};

/// A memory window; the program's handle points to its first field.
#[repr(C)]
pub(crate) struct Mw {
    abi: AbiCell<ibv_mw>,
    pub(crate) pd: Arc<Pd>,
    pub(crate) id: WindowId,
}

live_handles::object!(Mw, ibv_mw);

impl Mw {
    /// Makes a window that has been entered in the key table, with its first key.
    pub(crate) fn new(pd: Arc<Pd>, mw_type: ibv_mw_type, (id, key): (WindowId, u32)) -> Self {
        pd.add_user();
        let mut abi = ibv_mw::zeroed();
        abi.context = pd.context.handle();
        abi.pd = pd.handle();
        abi.rkey = key;
        abi.handle = key;
        abi.r#type = mw_type;
        let abi = AbiCell::new(abi);
        Self { abi, pd, id }
    }

    /// Returns the key that the program sees. `ibv_bind_mw` gives a window of type 1 a new key; `verbs.h` does so for
    /// type 2.
    pub(crate) fn rkey(&self) -> u32 {
        // SAFETY: `abi` lives as long as `self`; an aligned `u32` that only the thread which binds the window writes
        // (`ibv_bind_mw(3)`).
        unsafe { (*self.abi.handle()).rkey }
    }

    /// Sets the key that the program sees.
    pub(crate) fn set_rkey(&self, rkey: u32) {
        // SAFETY: as in `rkey`: the thread that binds the window is here.
        unsafe { (*self.abi.handle()).rkey = rkey };
    }
}

/// Returns the request of a work request that binds a window. `None` if it names no window.
///
/// # Safety
/// The region of the work request, whose opcode is `IBV_WR_BIND_MW`, is NULL or a live handle.
#[cold]
pub(crate) unsafe fn bind_request(wr: &ibv_send_wr) -> Option<BindRequest> {
    // SAFETY: the union's member for this opcode (contract).
    let bind = unsafe { wr.bind_tso.bind_mw };
    let window = live_handles::find_object::<Mw>(bind.mw)?;
    // SAFETY: NULL or the structure of a live region (contract).
    let mr = unsafe { bind.bind_info.mr.as_ref() };
    Some(BindRequest {
        window: window.id,
        new_window_key: bind.rkey,
        mr_key: mr.map_or(0, |mr| mr.lkey),
        addr: bind.bind_info.addr,
        len: bind.bind_info.length,
        access: bind.bind_info.mw_access_flags,
    })
}
