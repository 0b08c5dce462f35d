//! The functions of the plugin, which NCCL calls.
//!
//! Pointers are checked for NULL. Beyond that the functions rely on NCCL's documentation. A comm, mhandle or request
//! was made by this plugin and is still live. Arrays have the lengths that are passed with them.

use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use collective::{ListenHandle, MAX_RECEIVES_PER_GROUP};

use crate::abi::*;
use crate::comm::{
    self, CallFailure, ListenComm, MemoryHandle, NcclComm, PendingRequest, invalid_argument,
};
use crate::properties::FromDevice;
use crate::{device, log};

/// The number of NCCL contexts: calls of `init` without a `finalize` yet (version 11 and later).
static OPEN_NCCL_CONTEXT_COUNT: AtomicUsize = AtomicUsize::new(0);

/// Runs the body of a plugin function. Panics do not unwind into NCCL, and the reason of a failure
/// is logged.
fn run_plugin_call(name: &str, body: impl FnOnce() -> Result<(), CallFailure>) -> NcclResult {
    let failure = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return SUCCESS,
        Ok(Err(failure)) => failure,
        Err(_) => CallFailure {
            code: INTERNAL_ERROR,
            reason: "it panicked, which is a defect of the plugin".to_owned(),
        },
    };
    log::warn(&format!("{name}: {}", failure.reason));
    failure.code
}

/// Returns a reference to the object behind a pointer argument.
///
/// # Safety
/// `pointer` is NULL, or points to a live `T` that is not modified during `'a`.
unsafe fn object_at<'a, T>(pointer: *const T, what: &str) -> Result<&'a T, CallFailure> {
    // SAFETY: contract of this function.
    unsafe { pointer.as_ref() }.ok_or_else(|| invalid_argument(format!("{what} is NULL")))
}

/// Writes a result.
///
/// # Safety
/// `to` is NULL or valid for a write.
unsafe fn write_result<T>(to: *mut T, value: T, what: &str) -> Result<(), CallFailure> {
    if to.is_null() {
        return Err(invalid_argument(format!("{what} is NULL")));
    }
    // SAFETY: contract of this function.
    unsafe { to.write(value) };
    Ok(())
}

/// Returns an owned reference to a comm.
///
/// # Safety
/// `pointer` is NULL or a live `sendComm` or `recvComm`.
unsafe fn comm_from_pointer(pointer: *mut c_void) -> Result<Arc<NcclComm>, CallFailure> {
    // SAFETY: contract of this function.
    unsafe { object_at(pointer.cast::<Arc<NcclComm>>(), "comm") }.cloned()
}

fn box_into_pointer<T>(value: T) -> *mut c_void {
    Box::into_raw(Box::new(value)).cast()
}

pub(crate) unsafe extern "C" fn init(logger: Logger) -> NcclResult {
    run_plugin_call("init", || {
        log::set_logger(logger);
        let found = device::find_and_count_devices().map_err(|reason| CallFailure {
            code: SYSTEM_ERROR,
            reason,
        })?;
        for number in 0..i32::try_from(found).unwrap_or(i32::MAX) {
            let device = device::device_by_number(number).map_err(invalid_argument)?;
            log::info(&format!(
                "device {number} is {:?}, port {}, receivers listen at {}",
                device.name, device.port_num, device.listen_addr
            ));
        }
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn init_v10(logger: Logger, _: Profiler) -> NcclResult {
    // SAFETY: as for `init`.
    unsafe { init(logger) }
}

pub(crate) unsafe extern "C" fn init_v11(
    ctx: *mut *mut c_void,
    comm_id: u64,
    _: *mut CommConfig,
    logger: Logger,
    _: Profiler,
) -> NcclResult {
    // SAFETY: as for `init`.
    let initialised = unsafe { init(logger) };
    if initialised != SUCCESS {
        return initialised;
    }
    run_plugin_call("init", || {
        // SAFETY: `ctx` is NCCL's place for a result.
        unsafe { write_result(ctx, box_into_pointer(comm_id), "ctx") }?;
        OPEN_NCCL_CONTEXT_COUNT.fetch_add(1, Ordering::Relaxed);
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn finalize(ctx: *mut c_void) -> NcclResult {
    run_plugin_call("finalize", || {
        if ctx.is_null() {
            return Err(invalid_argument("ctx is NULL"));
        }
        // SAFETY: made by `init_v11`, and passed to `finalize` once.
        drop(unsafe { Box::from_raw(ctx.cast::<u64>()) });
        if OPEN_NCCL_CONTEXT_COUNT.fetch_sub(1, Ordering::Relaxed) == 1 {
            comm::abandon_connecting();
            // NCCL may be unloaded next, and its logger with it.
            log::set_logger(None);
        }
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn set_net_attr(_: *mut c_void, _: *mut c_void) -> NcclResult {
    // The attributes are NCCL's expected numbers of peers, which do not affect this plugin.
    SUCCESS
}

pub(crate) unsafe extern "C" fn devices(ndev: *mut c_int) -> NcclResult {
    run_plugin_call("devices", || {
        let found = device::find_and_count_devices().map_err(invalid_argument)?;
        // SAFETY: `ndev` is NCCL's place for a result.
        unsafe { write_result(ndev, c_int::try_from(found).unwrap_or(0), "ndev") }
    })
}

pub(crate) unsafe extern "C" fn get_properties<T: FromDevice>(
    dev: c_int,
    properties: *mut T,
) -> NcclResult {
    run_plugin_call("getProperties", || {
        let device = device::device_by_number(dev).map_err(invalid_argument)?;
        // SAFETY: `properties` is NCCL's place for a result of this version.
        unsafe { write_result(properties, T::from_device(device, dev), "props") }
    })
}

pub(crate) unsafe extern "C" fn listen(
    dev: c_int,
    handle: *mut c_void,
    listen_comm: *mut *mut c_void,
) -> NcclResult {
    run_plugin_call("listen", || {
        let device = device::device_by_number(dev).map_err(invalid_argument)?;
        let (listening, bytes) = ListenComm::new(device)?;
        let mut padded = [0u8; HANDLE_BYTES];
        padded[..bytes.len()].copy_from_slice(&bytes);
        // SAFETY: both are NCCL's places for results; a handle has 128 bytes.
        unsafe {
            write_result(handle.cast(), padded, "handle")?;
            write_result(listen_comm, box_into_pointer(listening), "listenComm")
        }
    })
}

pub(crate) unsafe extern "C" fn listen_v11(
    _: *mut c_void,
    dev: c_int,
    handle: *mut c_void,
    listen_comm: *mut *mut c_void,
) -> NcclResult {
    // SAFETY: as for `listen`.
    unsafe { listen(dev, handle, listen_comm) }
}

pub(crate) unsafe extern "C" fn connect_v6(
    dev: c_int,
    handle: *mut c_void,
    send_comm: *mut *mut c_void,
) -> NcclResult {
    run_plugin_call("connect", || {
        // SAFETY: `send_comm` is NCCL's place for a result.
        unsafe { write_result(send_comm, null_mut(), "sendComm") }?;
        let device = device::device_by_number(dev).map_err(invalid_argument)?;
        // SAFETY: a handle has 128 bytes.
        let bytes = unsafe { object_at(handle.cast::<[u8; ListenHandle::BYTES]>(), "handle") }?;
        if let Some(comm) = comm::begin_or_poll_connect(device, bytes)? {
            // SAFETY: as above.
            unsafe { write_result(send_comm, box_into_pointer(comm), "sendComm") }?;
        }
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn connect(
    dev: c_int,
    handle: *mut c_void,
    send_comm: *mut *mut c_void,
    _: DeviceHandle,
) -> NcclResult {
    // SAFETY: as for `connect_v6`.
    unsafe { connect_v6(dev, handle, send_comm) }
}

pub(crate) unsafe extern "C" fn connect_v10(
    dev: c_int,
    _: *mut CommConfig,
    handle: *mut c_void,
    send_comm: *mut *mut c_void,
    _: DeviceHandle,
) -> NcclResult {
    // SAFETY: as for `connect_v6`.
    unsafe { connect_v6(dev, handle, send_comm) }
}

pub(crate) unsafe extern "C" fn connect_v11(
    _: *mut c_void,
    dev: c_int,
    handle: *mut c_void,
    send_comm: *mut *mut c_void,
    _: DeviceHandle,
) -> NcclResult {
    // SAFETY: as for `connect_v6`.
    unsafe { connect_v6(dev, handle, send_comm) }
}

pub(crate) unsafe extern "C" fn accept_v6(
    listen_comm: *mut c_void,
    recv_comm: *mut *mut c_void,
) -> NcclResult {
    run_plugin_call("accept", || {
        // SAFETY: `recv_comm` is NCCL's place for a result, and `listen_comm` was made by `listen`.
        let listening = unsafe {
            write_result(recv_comm, null_mut(), "recvComm")?;
            object_at(listen_comm.cast::<ListenComm>(), "listenComm")
        }?;
        if let Some(comm) = listening.poll_accept()? {
            // SAFETY: as above.
            unsafe { write_result(recv_comm, box_into_pointer(comm), "recvComm") }?;
        }
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn accept(
    listen_comm: *mut c_void,
    recv_comm: *mut *mut c_void,
    _: DeviceHandle,
) -> NcclResult {
    // SAFETY: as for `accept_v6`.
    unsafe { accept_v6(listen_comm, recv_comm) }
}

pub(crate) unsafe extern "C" fn reg_mr(
    pointer: *mut c_void,
    data: *mut c_void,
    size: usize,
    kind: c_int,
    mhandle: *mut *mut c_void,
) -> NcclResult {
    run_plugin_call("regMr", || {
        if kind != PTR_HOST {
            return Err(invalid_argument(format!(
                "memory of type {kind}: this plugin takes host memory (1) alone, as its properties say"
            )));
        }
        // SAFETY: `pointer` is a comm of this plugin. NCCL does not free the memory before it
        // calls `deregMr`, and no Rust object is in it.
        let registered = unsafe { comm_from_pointer(pointer)?.register(data, size) }?;
        // SAFETY: `mhandle` is NCCL's place for a result.
        unsafe { write_result(mhandle, box_into_pointer(registered), "mhandle") }
    })
}

pub(crate) unsafe extern "C" fn reg_mr_v6(
    pointer: *mut c_void,
    data: *mut c_void,
    size: c_int,
    kind: c_int,
    mhandle: *mut *mut c_void,
) -> NcclResult {
    match usize::try_from(size) {
        // SAFETY: as for `reg_mr`.
        Ok(size) => unsafe { reg_mr(pointer, data, size, kind, mhandle) },
        Err(_) => run_plugin_call("regMr", || Err(invalid_argument(format!("{size} bytes")))),
    }
}

pub(crate) unsafe extern "C" fn dereg_mr(_: *mut c_void, mhandle: *mut c_void) -> NcclResult {
    run_plugin_call("deregMr", || {
        if !mhandle.is_null() {
            // SAFETY: made by `reg_mr`, and passed to `dereg_mr` once.
            drop(unsafe { Box::from_raw(mhandle.cast::<MemoryHandle>()) });
        }
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn isend_v10(
    pointer: *mut c_void,
    data: *mut c_void,
    size: usize,
    tag: c_int,
    mhandle: *mut c_void,
    _: *mut c_void,
    request: *mut *mut c_void,
) -> NcclResult {
    run_plugin_call("isend", || {
        // SAFETY: `request` is NCCL's place for a result; comm and mhandle are of this plugin.
        unsafe {
            write_result(request, null_mut(), "request")?;
            let memory = mhandle.cast::<MemoryHandle>().as_ref();
            if let Some(pending) = comm_from_pointer(pointer)?.isend((data, size), tag, memory)? {
                write_result(request, box_into_pointer(pending), "request")?;
            }
        }
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn isend_v9(
    pointer: *mut c_void,
    data: *mut c_void,
    size: usize,
    tag: c_int,
    mhandle: *mut c_void,
    request: *mut *mut c_void,
) -> NcclResult {
    // SAFETY: as for `isend_v10`.
    unsafe { isend_v10(pointer, data, size, tag, mhandle, null_mut(), request) }
}

pub(crate) unsafe extern "C" fn isend(
    pointer: *mut c_void,
    data: *mut c_void,
    size: c_int,
    tag: c_int,
    mhandle: *mut c_void,
    request: *mut *mut c_void,
) -> NcclResult {
    match usize::try_from(size) {
        // SAFETY: as for `isend_v10`.
        Ok(size) => unsafe { isend_v9(pointer, data, size, tag, mhandle, request) },
        Err(_) => run_plugin_call("isend", || Err(invalid_argument(format!("{size} bytes")))),
    }
}

/// The arrays that describe a group of receives. An element of `sizes` is an `int` up to version 8,
/// then a `size_t`.
struct GroupedReceives<S> {
    receive_count: c_int,
    data: *mut *mut c_void,
    sizes: *mut S,
    tags: *mut c_int,
    mhandles: *mut *mut c_void,
}

/// Posts a group of receives.
///
/// # Safety
/// The arrays have `n` elements; comm and mhandles are of this plugin.
unsafe fn irecv_grouped<S: Copy + TryInto<usize>>(
    pointer: *mut c_void,
    arrays: &GroupedReceives<S>,
    request: *mut *mut c_void,
) -> NcclResult {
    run_plugin_call("irecv", || {
        // SAFETY: `request` is NCCL's place for a result.
        unsafe { write_result(request, null_mut(), "request") }?;
        let n = usize::try_from(arrays.receive_count).unwrap_or(0);
        if !(1..=MAX_RECEIVES_PER_GROUP).contains(&n) {
            let reason = format!(
                "{} receives in a group: there may be 1 to 8",
                arrays.receive_count
            );
            return Err(invalid_argument(reason));
        }
        let any_null = arrays.data.is_null() || arrays.sizes.is_null() || arrays.tags.is_null();
        if any_null || arrays.mhandles.is_null() {
            return Err(invalid_argument("an array is NULL"));
        }
        let mut parts = Vec::with_capacity(n);
        for at in 0..n {
            // SAFETY: the arrays have `n` elements; an mhandle is of this plugin or NULL.
            let part = unsafe {
                let size = (*arrays.sizes.add(at)).try_into();
                let size = size.map_err(|_| invalid_argument("a size is negative"))?;
                let memory = (*arrays.mhandles.add(at)).cast::<MemoryHandle>().as_ref();
                (*arrays.data.add(at), size, *arrays.tags.add(at), memory)
            };
            parts.push(part);
        }
        // SAFETY: a comm of this plugin.
        if let Some(pending) = unsafe { comm_from_pointer(pointer) }?.irecv(&parts)? {
            // SAFETY: as above.
            unsafe { write_result(request, box_into_pointer(pending), "request") }?;
        }
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn irecv_v10(
    pointer: *mut c_void,
    n: c_int,
    data: *mut *mut c_void,
    sizes: *mut usize,
    tags: *mut c_int,
    mhandles: *mut *mut c_void,
    _: *mut *mut c_void,
    request: *mut *mut c_void,
) -> NcclResult {
    let arrays = GroupedReceives {
        receive_count: n,
        data,
        sizes,
        tags,
        mhandles,
    };
    // SAFETY: NCCL's arrays.
    unsafe { irecv_grouped(pointer, &arrays, request) }
}

pub(crate) unsafe extern "C" fn irecv_v9(
    pointer: *mut c_void,
    n: c_int,
    data: *mut *mut c_void,
    sizes: *mut usize,
    tags: *mut c_int,
    mhandles: *mut *mut c_void,
    request: *mut *mut c_void,
) -> NcclResult {
    // SAFETY: as for `irecv_v10`.
    unsafe { irecv_v10(pointer, n, data, sizes, tags, mhandles, null_mut(), request) }
}

pub(crate) unsafe extern "C" fn irecv(
    pointer: *mut c_void,
    n: c_int,
    data: *mut *mut c_void,
    sizes: *mut c_int,
    tags: *mut c_int,
    mhandles: *mut *mut c_void,
    request: *mut *mut c_void,
) -> NcclResult {
    let arrays = GroupedReceives {
        receive_count: n,
        data,
        sizes,
        tags,
        mhandles,
    };
    // SAFETY: NCCL's arrays.
    unsafe { irecv_grouped(pointer, &arrays, request) }
}

pub(crate) unsafe extern "C" fn iflush(
    pointer: *mut c_void,
    n: c_int,
    data: *mut *mut c_void,
    sizes: *mut c_int,
    mhandles: *mut *mut c_void,
    request: *mut *mut c_void,
) -> NcclResult {
    run_plugin_call("iflush", || {
        // SAFETY: `request` is NCCL's place for a result.
        unsafe { write_result(request, null_mut(), "request") }?;
        if data.is_null() || sizes.is_null() || mhandles.is_null() {
            return Err(invalid_argument("an array is NULL"));
        }
        let n = usize::try_from(n).unwrap_or(0).min(MAX_RECEIVES_PER_GROUP);
        // One READ from the last receive with bytes flushes all earlier data, too.
        // SAFETY: the arrays have `n` elements.
        let last = (0..n).rev().find(|at| unsafe { *sizes.add(*at) } > 0);
        let Some(at) = last else { return Ok(()) };
        // SAFETY: the arrays have `n` elements; comm and mhandle are of this plugin.
        let pending = unsafe {
            let memory = object_at((*mhandles.add(at)).cast::<MemoryHandle>(), "mhandle")?;
            comm_from_pointer(pointer)?.try_start_flush(*data.add(at), memory)?
        };
        // NULL would tell NCCL that nothing needs a flush.
        let pending = pending.ok_or_else(|| invalid_argument("too many requests are under way"))?;
        // SAFETY: as above.
        unsafe { write_result(request, box_into_pointer(pending), "request") }
    })
}

pub(crate) unsafe extern "C" fn test(
    request: *mut c_void,
    done: *mut c_int,
    sizes: *mut c_int,
) -> NcclResult {
    run_plugin_call("test", || {
        // SAFETY: `done` is NCCL's place for a result; `request` is of this plugin and was not
        // complete yet.
        let pending = unsafe {
            write_result(done, 0, "done")?;
            object_at(request.cast::<PendingRequest>(), "request")
        }?;
        let mut came = Vec::new();
        if !pending.append_sizes_if_complete(&mut came)? {
            return Ok(());
        }
        if !sizes.is_null() {
            for (at, size) in came.iter().enumerate() {
                // SAFETY: NCCL has room for as many sizes as the group has receives.
                unsafe { sizes.add(at).write(size.cast_signed()) };
            }
        }
        // SAFETY: `request` was made by `box_into_pointer` and is complete now; `done` as above.
        unsafe {
            drop(Box::from_raw(request.cast::<PendingRequest>()));
            write_result(done, 1, "done")
        }
    })
}

pub(crate) unsafe extern "C" fn close_comm(pointer: *mut c_void) -> NcclResult {
    run_plugin_call("close", || {
        if !pointer.is_null() {
            // SAFETY: made by `connect` or `accept`, and closed once.
            drop(unsafe { Box::from_raw(pointer.cast::<Arc<NcclComm>>()) });
        }
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn close_listen(pointer: *mut c_void) -> NcclResult {
    run_plugin_call("closeListen", || {
        if !pointer.is_null() {
            // SAFETY: made by `listen`, and closed once.
            drop(unsafe { Box::from_raw(pointer.cast::<ListenComm>()) });
        }
        Ok(())
    })
}
