//! The properties of device and port: `ibv_query_device(3)`, `ibv_query_port(3)`, `ibv_query_gid(3)`.

use std::ffi::{CStr, c_char, c_int, c_uint};

use rustix::time::ClockId;
use verbs_abi::*;

use super::context::{device_of, nic_of};
use super::cq_ex::now_ns;
use super::edge::{In, InConst, InOut, OrMinusOne, Out};
use crate::capabilities::Transport;
use crate::device::{self, Device, LinkLayer, Port};
use crate::faults;

pub(super) fn query_device(
    context: *mut ibv_context,
    attr: Out<'_, ibv_device_attr>,
) -> Result<(), c_int> {
    let (nic, device) = device_of(context)?;
    let attr = attr.get()?;
    attr.write(device::device_attr(
        &nic.identity,
        &nic.capabilities,
        device,
    ));
    Ok(())
}

pub(super) fn query_device_ex(
    context: *mut ibv_context,
    input: InConst<'_, ibv_query_device_ex_input>,
    attr: *mut ibv_device_attr_ex,
    attr_size: usize,
) -> Result<(), c_int> {
    let _hold_off = cancellation::HoldOff::new();
    let (nic, device) = device_of(context)?;
    let asked = input.optional().map_or(0, |i| i.comp_mask);
    // A program built against an older header has a shorter structure, but never one without the part that
    // `ibv_query_device` has.
    if asked != 0 || attr.is_null() || attr_size < size_of::<ibv_device_attr>() {
        return Err(libc::EINVAL);
    }
    let all = device::device_attr_ex(&nic.identity, &nic.capabilities, device);
    copy_truncated(attr, &all, attr_size);
    Ok(())
}

pub(super) fn query_rt_values(
    context: *mut ibv_context,
    values: InOut<'_, ibv_values_ex>,
) -> Result<(), c_int> {
    nic_of(context)?;
    let values = values.get()?;
    // The clock of completion timestamps. "comp_mask: the values that are queried; on return, those that
    // were" (`ibv_query_rt_values_ex(3)`).
    if values.comp_mask & IBV_VALUES_MASK_RAW_CLOCK != 0 {
        let cycles = now_ns(ClockId::Monotonic);
        values.raw_clock.tv_sec = 0;
        values.raw_clock.tv_nsec = i64::try_from(cycles).unwrap_or(i64::MAX);
    }
    values.comp_mask &= IBV_VALUES_MASK_RAW_CLOCK;
    Ok(())
}

pub(super) fn query_port(
    context: *mut ibv_context,
    port_num: u8,
    attr: *mut ibv_port_attr,
) -> Result<(), c_int> {
    /// The length that the symbol may write: the structure as it was before its last field.
    const COMPAT_PORT_ATTR_BYTES: usize = std::mem::offset_of!(ibv_port_attr, port_cap_flags2);
    query_port_ex(context, port_num, attr, COMPAT_PORT_ATTR_BYTES)
}

/// `phys_state` of a port without a link (IBTA vol. 1, 14.2.5.6).
const PHYS_STATE_DISABLED: u8 = 3;

pub(super) fn query_port_ex(
    context: *mut ibv_context,
    port_num: u8,
    attr: *mut ibv_port_attr,
    len: usize,
) -> Result<(), c_int> {
    let _hold_off = cancellation::HoldOff::new();
    let (nic, device) = device_of(context)?;
    let port = device.port(port_num)?;
    if attr.is_null() {
        return Err(libc::EINVAL);
    }
    let mut port = port.attr();
    if nic.capabilities.transport == Transport::Unspecified {
        port.link_layer = IBV_LINK_LAYER_UNSPECIFIED;
    }
    if faults::link_is_down() {
        port.state = IBV_PORT_DOWN;
        port.phys_state = PHYS_STATE_DISABLED;
    }
    // Programs of later releases pass a longer structure, whose `active_speed_ex` is 0 where the driver does not set
    // it.
    copy_truncated(attr, &port, len);
    Ok(())
}

/// Copies a structure to a place of another length, which is not NULL. A shorter place gets the start of the structure;
/// a longer place gets zeroes behind it.
#[allow(unsafe_code)]
fn copy_truncated<T: Copy>(place: *mut T, all: &T, len: usize) {
    let n = len.min(size_of::<T>());
    let place = place.cast::<u8>();
    // SAFETY: the verb passes the length of the place along (`ibv_query_device_ex(3)`, `query_port` in verbs.h); `all`
    // has `n` bytes, and `n` is at most `len` (both by `min` above).
    unsafe {
        place.copy_from_nonoverlapping(std::ptr::from_ref(all).cast(), n);
        place.add(n).write_bytes(0, len - n);
    }
}

/// The port, if it is there.
fn find_port(context: *mut ibv_context, port_num: u8) -> Result<&'static Port, c_int> {
    device_of(context)?.1.port(port_num)
}

pub(super) fn query_gid(
    context: *mut ibv_context,
    port_num: u8,
    index: c_int,
    place: Out<'_, ibv_gid>,
) -> OrMinusOne {
    let gid = |port: &Port| port.gid(u32::try_from(index).ok()?);
    OrMinusOne(find_port(context, port_num).and_then(|port| {
        let raw = gid(port).ok_or(libc::EINVAL)?;
        place.get()?.write(ibv_gid { raw });
        Ok(0)
    }))
}

pub(super) fn query_pkey(
    context: *mut ibv_context,
    port_num: u8,
    index: c_int,
    place: Out<'_, u16>,
) -> OrMinusOne {
    let pkey = |port: &Port| port.pkey(u32::try_from(index).ok()?);
    OrMinusOne(find_port(context, port_num).and_then(|port| {
        let pkey = pkey(port).ok_or(libc::EINVAL)?;
        // In network order.
        place.get()?.write(pkey.to_be());
        Ok(0)
    }))
}

pub(super) fn get_pkey_index(context: *mut ibv_context, port_num: u8, pkey: u16) -> OrMinusOne {
    OrMinusOne(find_port(context, port_num).and_then(|port| {
        let mut indexes = 0..c_int::from(device::PKEY_TBL_LEN);
        let found = indexes.find(|&i| port.pkey(i.cast_unsigned()) == Some(u16::from_be(pkey)));
        found.ok_or(libc::EINVAL)
    }))
}

pub(super) fn query_gid_ex(
    context: *mut ibv_context,
    port_num: u32,
    gid_index: u32,
    gid_entry: Out<'_, ibv_gid_entry>,
    flags: u32,
    entry_size: usize,
) -> Result<(), c_int> {
    let (_, device) = device_of(context)?;
    let gid_entry = gid_entry.get()?;
    // "flags: Extra fields to query post_ex. Currently must be 0" (`ibv_query_gid_ex(3)`).
    if flags != 0 || entry_size < size_of::<ibv_gid_entry>() {
        return Err(libc::EINVAL);
    }
    let port = device.port(port_num)?;
    gid_entry.write(port.gid_entry(gid_index).ok_or(libc::EINVAL)?);
    Ok(())
}

pub(super) fn query_gid_table(
    context: *mut ibv_context,
    entries: *mut ibv_gid_entry,
    max_entries: usize,
    flags: u32,
    entry_size: usize,
) -> isize {
    let filled = device_of(context).and_then(|(_, device)| {
        if flags != 0 || entry_size < size_of::<ibv_gid_entry>() {
            return Err(libc::EINVAL);
        }
        fill_gid_table(device, entries, max_entries, entry_size)
    });
    match filled {
        Ok(n) => isize::try_from(n).unwrap_or(isize::MAX),
        Err(errno) => -isize::try_from(errno).unwrap_or(isize::MAX),
    }
}

/// Writes the entries of the GID tables of all ports into `max_entries` places of `entry_size` bytes each. Returns their
/// number.
#[allow(unsafe_code)]
fn fill_gid_table(
    device: &'static Device,
    entries: *mut ibv_gid_entry,
    max_entries: usize,
    entry_size: usize,
) -> Result<usize, c_int> {
    let of_port = |port: &'static Port| (0..port.gid_tbl_len()).filter_map(|i| port.gid_entry(i));
    let table = device.ports().iter().flat_map(of_port);
    let mut n = 0;
    for entry in table {
        // "-EINVAL: the number of entries is too small" (`ibv_query_gid_table(3)` has it among the
        // errors of the kernel's command, `rdma_query_gid_table`).
        if n == max_entries || entries.is_null() {
            return Err(libc::EINVAL);
        }
        // SAFETY: not NULL and `n` is below `max_entries` (above), of which each has `entry_size` bytes
        // (`ibv_query_gid_table(3)`), enough for an entry (`query_gid_table`).
        unsafe { entries.byte_add(n * entry_size).write_unaligned(entry) };
        n += 1;
    }
    Ok(n)
}

pub(super) fn query_gid_type(
    context: *mut ibv_context,
    port_num: u8,
    index: c_uint,
    gid_type: Out<'_, u32>,
) -> OrMinusOne {
    /// `enum ibv_gid_type_sysfs` of rdma-core's `libibverbs/driver.h`.
    const SYSFS_IB_ROCE_V1: u32 = 0;
    const SYSFS_ROCE_V2: u32 = 1;
    OrMinusOne(find_port(context, port_num).and_then(|port| {
        let place = gid_type.get()?;
        if index >= port.gid_tbl_len() {
            return Err(libc::EINVAL);
        }
        place.write(match port.link_layer {
            LinkLayer::Ethernet => SYSFS_ROCE_V2,
            LinkLayer::InfiniBand => SYSFS_IB_ROCE_V1,
        });
        Ok(0)
    }))
}

pub(super) fn fork_init() -> c_int {
    // Registered memory is not pinned, so a fork breaks nothing.
    0
}

pub(super) fn is_fork_initialized() -> ibv_fork_status {
    // As above.
    IBV_FORK_UNNEEDED
}

pub(super) fn get_device_index(_device: *mut ibv_device) -> c_int {
    // "Available for the kernel with support of IB device query over netlink interface. For the unsupported
    // kernels, the relevant -1 will be returned" (verbs.h). The kernel does not know this device.
    -1
}

pub(super) fn query_qp_data_in_order(_qp: *mut ibv_qp, _op: ibv_wr_opcode, _flags: u32) -> c_int {
    // Long payloads are copied by `memcpy`, whose order is not specified.
    0
}

pub(super) fn query_ece(_qp: *mut ibv_qp, ece: Out<'_, ibv_ece>) -> Result<(), c_int> {
    // As in libibverbs for every provider without such options: no options, and EOPNOTSUPP. Callers then do not offer
    // options to a peer (`rdma_set_local_ece` refuses options of no vendor).
    ece.get()?.write(ibv_ece::zeroed());
    Err(libc::EOPNOTSUPP)
}

pub(super) fn set_ece(_qp: *mut ibv_qp, ece: In<'_, ibv_ece>) -> Result<(), c_int> {
    // This device has no options.
    if ece.get()?.options == 0 {
        Ok(())
    } else {
        Err(libc::EOPNOTSUPP)
    }
}

fn c_str_pointer(s: &'static CStr) -> *const c_char {
    s.as_ptr()
}

pub(super) fn wc_status_str(status: ibv_wc_status) -> *const c_char {
    c_str_pointer(strings::wc_status_str(status))
}

pub(super) fn event_type_str(event: ibv_event_type) -> *const c_char {
    c_str_pointer(strings::event_type_str(event))
}

pub(super) fn node_type_str(node_type: ibv_node_type) -> *const c_char {
    c_str_pointer(strings::node_type_str(node_type))
}

pub(super) fn port_state_str(state: ibv_port_state) -> *const c_char {
    c_str_pointer(strings::port_state_str(state))
}
