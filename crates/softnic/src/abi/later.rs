//! What libibverbs got after version 1.1: the GID table with types, and what this NIC answers with a plain no.

use std::ffi::{c_int, c_uint};

use verbs_abi::*;

use super::device::nic_of;
use super::*;
use crate::device::{self, LinkLayer};

pub(super) unsafe extern "C" fn ibv_get_pkey_index(
    context: *mut ibv_context,
    port_num: u8,
    pkey: u16,
) -> c_int {
    let found = nic_of(context).ok().and_then(|nic| {
        if port_num != device::PORT_NUM {
            return None;
        }
        let len = c_int::from(device::PKEY_TBL_LEN);
        (0..len).find(|&i| nic.port.pkey(i.cast_unsigned()) == Some(u16::from_be(pkey)))
    });
    found.unwrap_or_else(|| {
        set_errno(libc::EINVAL);
        -1
    })
}

pub(super) unsafe extern "C" fn _ibv_query_gid_ex(
    context: *mut ibv_context,
    port_num: u32,
    gid_index: u32,
    entry: *mut ibv_gid_entry,
    flags: u32,
    entry_size: usize,
) -> c_int {
    or_errno(nic_of(context).and_then(|nic| {
        // "flags: Extra fields to query post_ex. Currently must be 0" (`ibv_query_gid_ex(3)`).
        if flags != 0 || entry.is_null() || entry_size < size_of::<ibv_gid_entry>() {
            return Err(libc::EINVAL);
        }
        if port_num != u32::from(device::PORT_NUM) || gid_index >= device::GID_TBL_LEN {
            return Err(libc::EINVAL);
        }
        let found = nic.port.gid_entry(gid_index).ok_or(libc::ENODATA)?;
        // SAFETY: a place of `entry_size` bytes, which is enough.
        unsafe { *entry = found };
        Ok(())
    }))
}

pub(super) unsafe extern "C" fn _ibv_query_gid_table(
    context: *mut ibv_context,
    entries: *mut ibv_gid_entry,
    max_entries: usize,
    flags: u32,
    entry_size: usize,
) -> isize {
    let filled = nic_of(context).and_then(|nic| {
        if flags != 0 || entry_size < size_of::<ibv_gid_entry>() {
            return Err(libc::EINVAL);
        }
        let table = (0..device::GID_TBL_LEN).map_while(|i| nic.port.gid_entry(i));
        let mut n = 0;
        for entry in table {
            // "-EINVAL: the number of entries is too small" (`ibv_query_gid_table(3)` has it among the
            // errors of the kernel's command, `rdma_query_gid_table`).
            if n == max_entries || entries.is_null() {
                return Err(libc::EINVAL);
            }
            // SAFETY: `entries` has `max_entries` places of `entry_size` bytes each.
            unsafe { entries.byte_add(n * entry_size).write_unaligned(entry) };
            n += 1;
        }
        Ok(n)
    });
    match filled {
        Ok(n) => isize::try_from(n).unwrap_or(isize::MAX),
        Err(errno) => -isize::try_from(errno).unwrap_or(isize::MAX),
    }
}

pub(super) unsafe extern "C" fn ibv_query_gid_type(
    context: *mut ibv_context,
    port_num: u8,
    index: c_uint,
    gid_type: *mut u32,
) -> c_int {
    /// `enum ibv_gid_type_sysfs` of rdma-core's `libibverbs/driver.h`.
    const SYSFS_IB_ROCE_V1: u32 = 0;
    const SYSFS_ROCE_V2: u32 = 1;
    let found = nic_of(context).ok().filter(|_| {
        port_num == device::PORT_NUM && index < device::GID_TBL_LEN && !gid_type.is_null()
    });
    let Some(nic) = found else {
        set_errno(libc::EINVAL);
        return -1;
    };
    // An empty entry has no type; the C library then says IB, as the kernel's table does.
    let roce = nic.port.link_layer == LinkLayer::Ethernet && nic.port.gid_entry(index).is_some();
    // SAFETY: checked for NULL; a place for the type.
    unsafe {
        *gid_type = if roce {
            SYSFS_ROCE_V2
        } else {
            SYSFS_IB_ROCE_V1
        }
    };
    0
}

pub(super) unsafe extern "C" fn ibv_get_device_index(_device: *mut ibv_device) -> c_int {
    // "Available for the kernel with support of IB device query over netlink interface. For the unsupported
    // kernels, the relevant -1 will be returned" (verbs.h). The kernel does not know this device.
    -1
}

pub(super) unsafe extern "C" fn ibv_is_fork_initialized() -> ibv_fork_status {
    // Registered memory is not pinned, so there is nothing that a fork could break.
    IBV_FORK_UNNEEDED
}

pub(super) unsafe extern "C" fn ibv_query_qp_data_in_order(
    _qp: *mut ibv_qp,
    _op: ibv_wr_opcode,
    _flags: u32,
) -> c_int {
    // Long payloads are copied in whatever order `memcpy` likes.
    0
}

pub(super) unsafe extern "C" fn ibv_query_ece(_qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    if ece.is_null() {
        return libc::EINVAL;
    }
    // As libibverbs does for every provider without such options: none, and EOPNOTSUPP, by which callers know not
    // to offer them to a peer (`rdma_set_local_ece` refuses options of no vendor).
    // SAFETY: checked for NULL; a place for the options.
    unsafe { *ece = ibv_ece::zeroed() };
    libc::EOPNOTSUPP
}

pub(super) unsafe extern "C" fn ibv_set_ece(_qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    // SAFETY: NULL or the program's options.
    match unsafe { ece.as_ref() } {
        None => libc::EINVAL,
        // No options are what this device has.
        Some(ece) if ece.options == 0 => 0,
        Some(_) => libc::EOPNOTSUPP,
    }
}

pub(super) unsafe extern "C" fn ibv_reg_dmabuf_mr(
    _pd: *mut ibv_pd,
    _offset: u64,
    _length: usize,
    _iova: u64,
    _fd: c_int,
    _access: c_int,
) -> *mut ibv_mr {
    or_null(Err(libc::EOPNOTSUPP))
}
