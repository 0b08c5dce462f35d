//! The functions that libibverbs got in rdma-core 59 to 65, passed to the software NIC.
//!
//! Functions that register a memory region call `ibv_reg_mr_iova`, so that the region appears in ledgers and
//! traces.

use std::ffi::{c_char, c_int, c_void};

use cancellation::HoldOff;
use softnic::newest;
use verbs_abi::*;

use crate::verbs_to_softnic;

macro_rules! forward {
    ($( fn $name:ident($( $arg:ident: $type:ty ),*) $(-> $ret:ty)?; )*) => {
        $(
            pub(crate) unsafe extern "C" fn $name($( $arg: $type ),*) $(-> $ret)? {
                let _hold_off = HoldOff::new();
                // SAFETY: the software NIC's function of that name has the contract of the man page, which
                // the caller promises.
                unsafe { newest::$name($( $arg ),*) }
            }
        )*
    };
}

forward! {
    fn ibv_alloc_dmah(context: *mut ibv_context, attr: *mut ibv_dmah_init_attr) -> *mut ibv_dmah;
    fn ibv_dealloc_dmah(dmah: *mut ibv_dmah) -> c_int;
    fn ibv_query_port_speed(context: *mut ibv_context, port_num: u32, port_speed: *mut u64) -> c_int;
    fn ibv_alloc_buf(pd: *mut ibv_pd, size: usize, buf: *mut *mut ibv_buf) -> *mut c_void;
    fn ibv_free_buf(buf: *mut ibv_buf);
    fn _ibv_query_comp_cntr_caps(context: *mut ibv_context, caps: *mut ibv_comp_cntr_caps, size: usize) -> c_int;
    fn ibv_create_comp_cntr(context: *mut ibv_context, attr: *mut ibv_comp_cntr_init_attr) -> *mut ibv_comp_cntr;
    fn ibv_destroy_comp_cntr(counter: *mut ibv_comp_cntr) -> c_int;
    fn ibv_qp_attach_comp_cntr(qp: *mut ibv_qp, counter: *mut ibv_comp_cntr, attr: *mut ibv_qp_attach_comp_cntr_attr) -> c_int;
    fn ibv_set_comp_cntr(counter: *mut ibv_comp_cntr, value: u64) -> c_int;
    fn ibv_set_err_comp_cntr(counter: *mut ibv_comp_cntr, value: u64) -> c_int;
    fn ibv_inc_comp_cntr(counter: *mut ibv_comp_cntr, amount: u64) -> c_int;
    fn ibv_inc_err_comp_cntr(counter: *mut ibv_comp_cntr, amount: u64) -> c_int;
    fn ibv_read_comp_cntr(counter: *mut ibv_comp_cntr, value: *mut u64) -> c_int;
    fn ibv_read_err_comp_cntr(counter: *mut ibv_comp_cntr, value: *mut u64) -> c_int;
    fn ibv_wr_opcode_str(opcode: ibv_wr_opcode) -> *const c_char;
}

fn null_with_errno<T>(errno: c_int) -> *mut T {
    // SAFETY: glibc's errno of this thread.
    unsafe { *libc::__errno_location() = errno };
    std::ptr::null_mut()
}

/// Registers memory of a buffer: `ibv_reg_buf_mr(3)`.
pub(crate) unsafe extern "C" fn ibv_reg_buf_mr(
    pd: *mut ibv_pd,
    buf: *mut ibv_buf,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    match newest::check_in_allocated_buf(pd, buf, addr, length) {
        // SAFETY: contract of the man page; the memory belongs to the buffer (checked above).
        Ok(()) => unsafe {
            verbs_to_softnic::ibv_reg_mr_iova(pd, addr, length, addr.addr() as u64, access)
        },
        Err(errno) => null_with_errno(errno),
    }
}

/// Registers a memory region from a list of attributes: `ibv_reg_mr_ex(3)`. A dma-buf is refused with EOPNOTSUPP.
pub(crate) unsafe extern "C" fn ibv_reg_mr_ex(
    pd: *mut ibv_pd,
    attr: *mut ibv_mr_init_attr,
) -> *mut ibv_mr {
    const KNOWN_MASK_BITS: u64 =
        IBV_REG_MR_MASK_IOVA | IBV_REG_MR_MASK_ADDR | IBV_REG_MR_MASK_DMAH | IBV_REG_MR_MASK_BUF;
    // SAFETY: NULL, or the program's attributes (contract of the man page).
    let Some(a) = (unsafe { attr.as_ref() }) else {
        return null_with_errno(libc::EINVAL);
    };
    let set = |bit: u64| a.comp_mask & bit != 0;
    let with_fd = set(IBV_REG_MR_MASK_FD | IBV_REG_MR_MASK_FD_OFFSET);
    if with_fd && set(IBV_REG_MR_MASK_BUF) {
        return null_with_errno(libc::EINVAL);
    }
    if a.comp_mask & !KNOWN_MASK_BITS != 0 {
        return null_with_errno(libc::EOPNOTSUPP);
    }
    if !set(IBV_REG_MR_MASK_ADDR) {
        return null_with_errno(libc::EINVAL);
    }
    if set(IBV_REG_MR_MASK_DMAH)
        && let Err(errno) = newest::check_dmah(a.dmah)
    {
        return null_with_errno(errno);
    }
    if set(IBV_REG_MR_MASK_BUF) {
        // SAFETY: a program that sets the bit was compiled with the member.
        let buf = unsafe { (*attr.cast::<ibv_mr_init_attr_with_buf>()).buf };
        if let Err(errno) = newest::check_in_allocated_buf(pd, buf, a.addr, a.length) {
            return null_with_errno(errno);
        }
    }
    let iova = if set(IBV_REG_MR_MASK_IOVA) {
        a.iova
    } else {
        a.addr.addr() as u64
    };
    // SAFETY: the caller promises the contract of the man page.
    unsafe { verbs_to_softnic::ibv_reg_mr_iova(pd, a.addr, a.length, iova, a.access) }
}
