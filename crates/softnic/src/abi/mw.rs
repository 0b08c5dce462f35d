//! Memory windows: `ibv_alloc_mw(3)`, `ibv_bind_mw(3)`, and the bind work request of `ibv_post_send(3)`.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::sync::Arc;

use verbs_abi::*;

use super::domain::{Pd, leave, share_pd};
use super::*;
use crate::qp::Qp;
use crate::send;
use shm::keys::{BindRequest, WindowId, WindowType};

/// A memory window; the program's handle points to its first field.
#[repr(C)]
struct Mw {
    abi: UnsafeCell<ibv_mw>,
    pd: Arc<Pd>,
    id: WindowId,
}

pub(super) unsafe extern "C" fn alloc_mw(pd: *mut ibv_pd, mw_type: ibv_mw_type) -> *mut ibv_mw {
    let _hold_off = cancellation::HoldOff::new();
    // SAFETY: a handle of ours.
    let Some(pd) = (unsafe { share_pd(pd) }) else {
        return or_null(Err(libc::EINVAL));
    };
    let window_type = match mw_type {
        IBV_MW_TYPE_1 => WindowType::One,
        IBV_MW_TYPE_2 => WindowType::Two,
        _ => return or_null(Err(libc::EINVAL)),
    };
    let nic = pd.context.nic;
    let made = nic.keys.alloc_window(&nic.fabric, window_type, pd.number);
    or_null(made.map(|(id, key)| {
        pd.enter();
        let mut abi = ibv_mw::zeroed();
        // SAFETY: the context field of our own object.
        abi.context = unsafe { (*pd.abi.get()).context };
        abi.pd = pd.abi.get();
        abi.rkey = key;
        abi.handle = key;
        abi.r#type = mw_type;
        let abi = UnsafeCell::new(abi);
        live::hand_out_box(Box::new(Mw { abi, pd, id }))
    }))
}

pub(super) unsafe extern "C" fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    let _hold_off = cancellation::HoldOff::new();
    let Some(mw) = live::take_back_box::<Mw, _>(mw) else {
        return libc::EINVAL;
    };
    let nic = mw.pd.context.nic;
    nic.keys.free_window(&nic.fabric, mw.id);
    // SAFETY: the window entered the domain, and ends here.
    unsafe { leave(mw.pd.abi.get()) };
    0
}

/// `ibv_bind_mw`, of which `verbs.h` lets only windows of type 1 come here: a bind work request under the next key
/// of the window, which the window then has.
pub(super) unsafe extern "C" fn bind_mw(
    qp: *mut ibv_qp,
    mw: *mut ibv_mw,
    bind: *mut ibv_mw_bind,
) -> c_int {
    // SAFETY: handles of ours; the program's request.
    unsafe {
        let (Some(q), Some(window), Some(bind)) =
            (borrow::<Qp, _>(qp), borrow::<Mw, _>(mw), bind.as_ref())
        else {
            return libc::EINVAL;
        };
        let info = bind.bind_info;
        if info.mr.is_null() && (info.addr != 0 || info.length != 0) {
            return libc::EINVAL;
        }
        // Only a window of type 2 may start at address 0 (IBTA vol. 1, 10.6.7.2.4).
        if info.mw_access_flags & IBV_ACCESS_ZERO_BASED.cast_unsigned() != 0 {
            return libc::EINVAL;
        }
        let foreign_mr = info.mr.as_ref().is_some_and(|mr| mr.pd != (*mw).pd);
        if q.pd != window.pd.number || foreign_mr {
            return libc::EPERM;
        }
        let mut wr = ibv_send_wr::zeroed();
        wr.wr_id = bind.wr_id;
        wr.send_flags = bind.send_flags & !IBV_SEND_INLINE;
        wr.opcode = IBV_WR_BIND_MW;
        let key = (*mw).rkey;
        // `ibv_inc_rkey`.
        let rkey = key & !0xff | key.wrapping_add(1) & 0xff;
        wr.bind_tso.bind_mw = ibv_send_wr_bind_tso_bind_mw {
            mw,
            rkey,
            bind_info: info,
        };
        let errno = send::post_send(q, &raw mut wr, std::ptr::null_mut());
        if errno == 0 {
            (*mw).rkey = rkey;
        }
        errno
    }
}

/// What a bind work request asks for; `None` where it names no window.
///
/// # Safety
/// The window and the region of the work request are NULL or live handles of ours.
#[cold]
pub(crate) unsafe fn bind_request(wr: &ibv_send_wr) -> Option<BindRequest> {
    // SAFETY: the union's member for this opcode; contract of this function.
    unsafe {
        let bind = wr.bind_tso.bind_mw;
        let window = borrow::<Mw, _>(bind.mw)?;
        Some(BindRequest {
            window: window.id,
            key: bind.rkey,
            mr_key: bind.bind_info.mr.as_ref().map_or(0, |mr| mr.lkey),
            addr: bind.bind_info.addr,
            len: bind.bind_info.length,
            access: bind.bind_info.mw_access_flags,
        })
    }
}
