//! The verbs of the C ABI, passed to the software NIC. If the tap is on, they are passed through the tap.

use std::ffi::c_int;
use std::sync::OnceLock;

use crate::report_unused_nic;
use cancellation::{HoldOff, take_or_wait};
use verbs_abi::{LaterSymbols, Symbols, for_each_later_symbol, for_each_symbol};

/// The software NIC as the tap's provider.
struct SoftNicProvider;

impl tap::Provider for SoftNicProvider {
    const NAME: &'static str = "softnic";
    const QPN_PROCESS_SHIFT: Option<u32> = Some(softnic::QPN_TO_PROCESS_SLOT_SHIFT);

    fn symbols() -> &'static Symbols {
        softnic::symbols()
    }

    fn later_symbols() -> Option<&'static LaterSymbols> {
        Some(softnic::later_symbols())
    }
}

fn tapped_or_plain_symbols() -> &'static Symbols {
    static TAPPED: OnceLock<Symbols> = OnceLock::new();
    if tap::is_counting_or_tracing() {
        TAPPED.get_or_init(|| {
            softnic::register_fault_observer(tap::trace::append_event_line);
            tap::symbols::<SoftNicProvider>()
        })
    } else {
        softnic::symbols()
    }
}

fn tapped_or_plain_later_symbols() -> &'static LaterSymbols {
    static TAPPED: OnceLock<Option<LaterSymbols>> = OnceLock::new();
    let tapped = if tap::is_counting_or_tracing() {
        TAPPED
            .get_or_init(tap::later_symbols::<SoftNicProvider>)
            .as_ref()
    } else {
        None
    };
    tapped.unwrap_or_else(softnic::later_symbols)
}

/// Defines each function of a table as a call of the software NIC's function of the same name.
macro_rules! forward {
    ($table:path: $( $(#[$meta:meta])* fn $name:ident($( $arg:ident: $type:ty ),*) $(-> $ret:ty)?; )*) => {
        $(
            pub(crate) unsafe extern "C" fn $name($( $arg: $type ),*) $(-> $ret)? {
                let _hold_off = HoldOff::new();
                // SAFETY: the software NIC's function of that name has the contract of the man page, which
                // the caller promises.
                unsafe { ($table().$name)($( $arg ),*) }
            }
        )*
    };
}

macro_rules! forward_first {
    ($( $all:tt )*) => { forward! { tapped_or_plain_symbols: $( $all )* } };
}

macro_rules! forward_later {
    ($( $all:tt )*) => { forward! { tapped_or_plain_later_symbols: $( $all )* } };
}

/// The functions of libibverbs 1.0 and 1.1.
mod first {
    use super::*;
    for_each_symbol!(forward_first);
}

for_each_later_symbol!(forward_later);
pub(crate) use first::*;

/// Lists the devices. If the list cannot be made, prints the reason to standard error, as rdma-core's library
/// does.
///
/// The ABI returns only an errno, and programs print "No IB devices found".
pub(crate) unsafe extern "C" fn ibv_get_device_list(
    num_devices: *mut c_int,
) -> *mut *mut verbs_abi::ibv_device {
    report_unused_nic::record_devices_listed();
    // SAFETY: the caller promises the contract of the man page.
    let list = unsafe { first::ibv_get_device_list(num_devices) };
    if list.is_null()
        && let Some(why) = softnic::last_error()
    {
        // SAFETY: accesses this thread's errno, which printing must not change.
        let errno = unsafe { *libc::__errno_location() };
        eprintln!("libibverbs (verbatim): {why}");
        // SAFETY: as above.
        unsafe { *libc::__errno_location() = errno };
    }
    list
}

/// Opens a device, and records for [`report_unused_nic`] that the process has opened a device.
pub(crate) unsafe extern "C" fn ibv_open_device(
    device: *mut verbs_abi::ibv_device,
) -> *mut verbs_abi::ibv_context {
    // SAFETY: the caller promises the contract of the man page.
    let context = unsafe { first::ibv_open_device(device) };
    if !context.is_null() {
        report_unused_nic::record_device_opened();
    }
    context
}

/// Takes a completion event; the wait is a cancellation point: `ibv_get_cq_event(3)`.
pub(crate) unsafe extern "C-unwind" fn ibv_get_cq_event(
    channel: *mut verbs_abi::ibv_comp_channel,
    cq: *mut *mut verbs_abi::ibv_cq,
    cq_context: *mut *mut libc::c_void,
) -> c_int {
    // SAFETY: the caller promises the contract of the man page, and is C code.
    unsafe { take_or_wait(|| first::ibv_get_cq_event(channel, cq, cq_context)) }
}

/// Takes an asynchronous event; the wait is a cancellation point: `ibv_get_async_event(3)`.
pub(crate) unsafe extern "C-unwind" fn ibv_get_async_event(
    context: *mut verbs_abi::ibv_context,
    event: *mut verbs_abi::ibv_async_event,
) -> c_int {
    // SAFETY: as above.
    unsafe { take_or_wait(|| first::ibv_get_async_event(context, event)) }
}

/// Protects a range of memory from being copied by `fork`.
///
/// The function does nothing: the software NIC does not pin registered memory, so a fork cannot break it.
pub(crate) extern "C" fn ibv_dontfork_range(_base: *mut libc::c_void, _size: usize) -> c_int {
    0
}

/// Permits `fork` to copy a range of memory again. Does nothing, like [`ibv_dontfork_range`].
pub(crate) extern "C" fn ibv_dofork_range(_base: *mut libc::c_void, _size: usize) -> c_int {
    0
}
