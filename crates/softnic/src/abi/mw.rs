//! Memory windows: `ibv_alloc_mw(3)`, `ibv_bind_mw(3)`.

use std::ffi::c_int;
use std::sync::Arc;

use verbs_abi::*;

use super::edge::In;
use super::mr::Mr;
use crate::capabilities::OptionalFeature;
use crate::live_handles;
use crate::mw::Mw;
use crate::pd::Pd;
use crate::qp::Qp;
use crate::send;
use shm::keys::WindowType;

pub(super) fn alloc_mw(pd: *mut ibv_pd, mw_type: ibv_mw_type) -> Result<*mut ibv_mw, c_int> {
    let _hold_off = cancellation::HoldOff::new();
    let pd = Pd::find_usable(pd).ok_or(libc::EINVAL)?;
    let window_type = match mw_type {
        IBV_MW_TYPE_1 => WindowType::One,
        IBV_MW_TYPE_2 => WindowType::Two,
        _ => return Err(libc::EINVAL),
    };
    let nic = pd.context.nic;
    nic.capabilities
        .require_feature(OptionalFeature::MemoryWindows)?;
    let window = nic
        .key_table
        .alloc_window(&nic.fabric, window_type, pd.local_number)?;
    Ok(live_handles::make_handle(Arc::new(Mw::new(
        pd, mw_type, window,
    ))))
}

pub(super) fn dealloc_mw(mw: *mut ibv_mw) -> Result<(), c_int> {
    let _hold_off = cancellation::HoldOff::new();
    let mw = live_handles::take_back_handle::<Mw>(mw).ok_or(libc::EINVAL)?;
    let nic = mw.pd.context.nic;
    nic.key_table.free_window(&nic.fabric, mw.id);
    mw.pd.remove_user();
    Ok(())
}

/// Executes `ibv_bind_mw`, which `verbs.h` calls for windows of type 1 only. Posts a bind work request with the
/// window's next key, which then becomes the key of the window.
#[allow(unsafe_code)]
pub(super) fn bind_mw(
    qp: *mut ibv_qp,
    mw: *mut ibv_mw,
    bind: In<'_, ibv_mw_bind>,
) -> Result<(), c_int> {
    let qp = live_handles::find_object::<Qp>(qp).ok_or(libc::EINVAL)?;
    let window = live_handles::find_object::<Mw>(mw).ok_or(libc::EINVAL)?;
    let bind = bind.get()?;
    let info = bind.bind_info;
    if info.mr.is_null() && (info.addr != 0 || info.length != 0) {
        return Err(libc::EINVAL);
    }
    // Only a window of type 2 may start at address 0 (IBTA vol. 1, 10.6.7.2.4).
    if info.mw_access_flags & IBV_ACCESS_ZERO_BASED.cast_unsigned() != 0 {
        return Err(libc::EINVAL);
    }
    let foreign_mr = if info.mr.is_null() {
        false
    } else {
        let mr = live_handles::find_object::<Mr>(info.mr).ok_or(libc::EINVAL)?;
        !mr.is_in_pd(&window.pd)
    };
    if qp.pd_number != window.pd.local_number || foreign_mr {
        return Err(libc::EPERM);
    }
    let mut wr = ibv_send_wr::zeroed();
    wr.wr_id = bind.wr_id;
    wr.send_flags = bind.send_flags & !IBV_SEND_INLINE;
    wr.opcode = IBV_WR_BIND_MW;
    let key = window.rkey();
    // `ibv_inc_rkey`.
    let rkey = key & !0xff | key.wrapping_add(1) & 0xff;
    wr.bind_tso.bind_mw = ibv_send_wr_bind_tso_bind_mw {
        mw,
        rkey,
        bind_info: info,
    };
    // SAFETY: a list of one work request without SGEs, whose window and region are live (both `find` above).
    let errno = unsafe { send::post_send(&qp, &raw mut wr, std::ptr::null_mut()) };
    if errno != 0 {
        return Err(errno);
    }
    window.set_rkey(rkey);
    Ok(())
}
