//! What a device says of its extensions.

use std::ffi::c_int;

use rustix::time::ClockId;
use verbs_abi::*;

use super::device::nic_of;
use super::*;
use crate::device;

pub(super) unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    input: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
    attr_size: usize,
) -> c_int {
    let _hold_off = cancellation::HoldOff::new();
    or_errno(nic_of(context).and_then(|nic| {
        // SAFETY: NULL or the program's input.
        let asked = unsafe { input.as_ref() }.map_or(0, |i| i.comp_mask);
        // A program built against an older header has a shorter structure, but never one without the part that
        // `ibv_query_device` has.
        if asked != 0 || attr.is_null() || attr_size < size_of::<ibv_device_attr>() {
            return Err(libc::EINVAL);
        }
        let all = device::device_attr_ex(&nic.identity, nic.port.link_layer);
        let n = attr_size.min(size_of::<ibv_device_attr_ex>());
        // SAFETY: the place has `attr_size` bytes; the attributes are plain data. What a newer header has
        // behind ours is zeroes.
        unsafe {
            let place = attr.cast::<u8>();
            place.copy_from_nonoverlapping((&raw const all).cast(), n);
            place.add(n).write_bytes(0, attr_size - n);
        }
        Ok(())
    }))
}

pub(super) unsafe extern "C" fn query_rt_values(
    context: *mut ibv_context,
    values: *mut ibv_values_ex,
) -> c_int {
    or_errno(nic_of(context).and_then(|_| {
        // SAFETY: NULL or the program's place.
        let values = unsafe { values.as_mut() }.ok_or(libc::EINVAL)?;
        // The clock of completion timestamps. "comp_mask: the values that are queried; on return, those that
        // were" (`ibv_query_rt_values_ex(3)`).
        if values.comp_mask & IBV_VALUES_MASK_RAW_CLOCK != 0 {
            let cycles = cq_ex::now_ns(ClockId::Monotonic);
            values.raw_clock.tv_sec = 0;
            values.raw_clock.tv_nsec = i64::try_from(cycles).unwrap_or(i64::MAX);
        }
        values.comp_mask &= IBV_VALUES_MASK_RAW_CLOCK;
        Ok(())
    }))
}
