//! Devices that lack capabilities: the software NIC behind tables in which some functions refuse.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "every test binary uses some of it"
)]

use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::OnceLock;

use verbs::Provider;
use verbs::raw::{self, Symbols};
use verbs_abi as abi;

fn softnic() -> &'static Symbols {
    raw::symbols(&Provider::softnic())
}

/// Returns the software NIC, changed by `change`; `made` keeps the table.
fn provider(
    name: &'static str,
    made: &'static OnceLock<Symbols>,
    change: impl FnOnce(&mut Symbols),
) -> Provider {
    let symbols = made.get_or_init(|| {
        let mut symbols = *softnic();
        change(&mut symbols);
        symbols
    });
    // SAFETY: the functions below refuse as the man pages allow, or are the software NIC's own.
    unsafe { raw::provider(name, symbols) }
}

fn refuse<T>(errno: c_int) -> *mut T {
    // SAFETY: the pointer is to this thread's errno.
    unsafe { *libc::__errno_location() = errno };
    null_mut()
}

/// A device without UC, like those of `irdma` and `bnxt_re`.
pub fn without_uc() -> Provider {
    unsafe extern "C" fn create_qp(
        pd: *mut abi::ibv_pd,
        init: *mut abi::ibv_qp_init_attr,
    ) -> *mut abi::ibv_qp {
        // SAFETY: the caller obeys the rules of ibv_create_qp(3).
        unsafe {
            if (*init).qp_type == abi::IBV_QPT_UC {
                return refuse(libc::EOPNOTSUPP);
            }
            (softnic().ibv_create_qp)(pd, init)
        }
    }
    static MADE: OnceLock<Symbols> = OnceLock::new();
    provider("without-uc", &MADE, |s| s.ibv_create_qp = create_qp)
}

/// A device without inline payload, which refuses queue pairs that request some.
pub fn without_inline() -> Provider {
    unsafe extern "C" fn create_qp(
        pd: *mut abi::ibv_pd,
        init: *mut abi::ibv_qp_init_attr,
    ) -> *mut abi::ibv_qp {
        // SAFETY: the caller obeys the rules of ibv_create_qp(3).
        unsafe {
            if (*init).cap.max_inline_data > 0 {
                // After a refusal, the content is unspecified.
                (*init).cap.max_send_wr = u32::MAX;
                return refuse(libc::EINVAL);
            }
            let qp = (softnic().ibv_create_qp)(pd, init);
            (*init).cap.max_inline_data = 0;
            qp
        }
    }
    static MADE: OnceLock<Symbols> = OnceLock::new();
    provider("without-inline", &MADE, |s| s.ibv_create_qp = create_qp)
}

/// A device that grants eight bytes of inline payload instead of refusing more.
pub fn grants_8_inline() -> Provider {
    unsafe extern "C" fn create_qp(
        pd: *mut abi::ibv_pd,
        init: *mut abi::ibv_qp_init_attr,
    ) -> *mut abi::ibv_qp {
        // SAFETY: the caller obeys the rules of ibv_create_qp(3).
        unsafe {
            let qp = (softnic().ibv_create_qp)(pd, init);
            (*init).cap.max_inline_data = (*init).cap.max_inline_data.min(8);
            qp
        }
    }
    static MADE: OnceLock<Symbols> = OnceLock::new();
    provider("grants-8-inline", &MADE, |s| s.ibv_create_qp = create_qp)
}

/// A device without atomics.
pub fn without_atomics() -> Provider {
    unsafe extern "C" fn query_device(
        context: *mut abi::ibv_context,
        attr: *mut abi::ibv_device_attr,
    ) -> c_int {
        // SAFETY: the caller obeys the rules of ibv_query_device(3).
        unsafe {
            let ret = (softnic().ibv_query_device)(context, attr);
            (*attr).atomic_cap = abi::IBV_ATOMIC_NONE;
            ret
        }
    }
    static MADE: OnceLock<Symbols> = OnceLock::new();
    provider("without-atomics", &MADE, |s| {
        s.ibv_query_device = query_device;
    })
}

/// A device that has only UD without events, as EFA once had.
pub fn only_datagrams() -> Provider {
    unsafe extern "C" fn create_qp(
        pd: *mut abi::ibv_pd,
        init: *mut abi::ibv_qp_init_attr,
    ) -> *mut abi::ibv_qp {
        // SAFETY: the caller obeys the rules of ibv_create_qp(3).
        unsafe {
            if (*init).qp_type != abi::IBV_QPT_UD {
                return refuse(libc::EOPNOTSUPP);
            }
            (softnic().ibv_create_qp)(pd, init)
        }
    }
    unsafe extern "C" fn query_device(
        context: *mut abi::ibv_context,
        attr: *mut abi::ibv_device_attr,
    ) -> c_int {
        // SAFETY: the caller obeys the rules of ibv_query_device(3).
        unsafe {
            let ret = (softnic().ibv_query_device)(context, attr);
            ((*attr).max_qp_rd_atom, (*attr).max_srq) = (0, 0);
            ret
        }
    }
    unsafe extern "C" fn create_comp_channel(
        _: *mut abi::ibv_context,
    ) -> *mut abi::ibv_comp_channel {
        refuse(libc::ENOSYS)
    }
    static MADE: OnceLock<Symbols> = OnceLock::new();
    provider("only-datagrams", &MADE, |s| {
        s.ibv_create_qp = create_qp;
        s.ibv_query_device = query_device;
        s.ibv_create_comp_channel = create_comp_channel;
    })
}

/// A device that runs out of memory whenever a queue pair is created.
pub fn out_of_memory() -> Provider {
    unsafe extern "C" fn create_qp(
        _: *mut abi::ibv_pd,
        _: *mut abi::ibv_qp_init_attr,
    ) -> *mut abi::ibv_qp {
        refuse(libc::ENOMEM)
    }
    static MADE: OnceLock<Symbols> = OnceLock::new();
    provider("out-of-memory", &MADE, |s| s.ibv_create_qp = create_qp)
}
