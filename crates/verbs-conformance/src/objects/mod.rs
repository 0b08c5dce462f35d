//! Verbs objects that destroy themselves in the right order, and panic if destruction fails.
//!
//! Each object is a counted handle: a clone is the same object, and an object keeps the objects alive from
//! which it was made. Constructors have two forms: `try_x` returns the errno of a refusal, and `x` panics
//! with the errno.
//!
//! The wrappers are safe to call, although libibverbs is not: every pointer that a wrapper passes comes from
//! a live object. The *contents* of work requests are chosen by the test, because tests check that a NIC
//! refuses invalid contents.
// Tests pass invalid pointers and handles to the verbs on purpose; these wrappers pass them on as C would.
#![allow(clippy::not_unsafe_ptr_arg_deref)]

mod cq;
mod device;
mod mr;
mod pd;
mod qp;

pub use device::{AsyncEvent, DeviceList, device_names, status_event_node_and_port_texts};
pub use mr::Buf;
pub use pd::is_same_gid_and_lid;
pub use qp::QpInitAttr;

use std::ffi::c_int;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use verbs_abi::*;

use crate::test_env::TestEnv;

/// Local write access, and all kinds of remote access.
pub const ALL_ACCESS: c_int = IBV_ACCESS_LOCAL_WRITE
    | IBV_ACCESS_REMOTE_WRITE
    | IBV_ACCESS_REMOTE_READ
    | IBV_ACCESS_REMOTE_ATOMIC;

/// Returns the `errno` of the call that has just returned NULL.
fn last_errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

fn set_errno(value: c_int) {
    // SAFETY: the location is valid for this thread's life.
    unsafe { *libc::__errno_location() = value };
}

/// Declares a counted handle of a raw object. An entry point of the provider destroys the object.
macro_rules! object {
    ($(#[$doc:meta])* $name:ident, $inner:ident: $raw:ty, $destroy:ident, keeps ($($keep:ident: $keep_ty:ty),*)) => {
        $(#[$doc])*
        #[derive(Clone)]
        pub struct $name(Arc<$inner>);

        struct $inner {
            raw: NonNull<$raw>,
            symbols: &'static Symbols,
            gone: AtomicBool,
            $( $keep: $keep_ty, )*
        }

        // SAFETY: libibverbs objects may be used from any thread at once (`Documentation/libibverbs.md` of
        // rdma-core: "libibverbs is thread safe").
        unsafe impl Send for $inner {}
        // SAFETY: as for Send.
        unsafe impl Sync for $inner {}

        impl $name {
            #[allow(clippy::redundant_field_names)]
            fn wrap(symbols: &'static Symbols, raw: *mut $raw, $($keep: $keep_ty),*) -> Result<Self, i32> {
                let raw = NonNull::new(raw).ok_or_else(last_errno)?;
                Ok(Self(Arc::new($inner { raw, symbols, gone: AtomicBool::new(false), $($keep),* })))
            }

            /// Returns the raw object.
            #[must_use]
            pub fn raw(&self) -> *mut $raw {
                self.0.raw.as_ptr()
            }

            /// Calls the destroy function although the object may be in use, and returns the call's result.
            /// After a 0 the object no longer exists, and this handle must not be used any more.
            #[must_use]
            pub fn try_destroy(&self) -> i32 {
                assert!(!self.0.gone.load(Ordering::Relaxed), "destroyed before");
                // SAFETY: the object is live (`gone` is false, just asserted).
                let errno = unsafe { (self.0.symbols.$destroy)(self.raw()) };
                self.0.gone.store(errno == 0, Ordering::Relaxed);
                errno
            }
        }

        impl Drop for $inner {
            fn drop(&mut self) {
                if *self.gone.get_mut() {
                    return;
                }
                // SAFETY: the object is live, and this is its last handle.
                let errno = unsafe { (self.symbols.$destroy)(self.raw.as_ptr()) };
                if errno != 0 && !std::thread::panicking() {
                    panic!(concat!(stringify!($destroy), " returned {}"), errno);
                }
            }
        }
    };
}

object! {
    /// An open device.
    Context, ContextInner: ibv_context, ibv_close_device, keeps (env: TestEnv)
}
object! {
    /// A protection domain.
    Pd, PdInner: ibv_pd, ibv_dealloc_pd, keeps (ctx: Context)
}
object! {
    /// A memory region. It does not own its memory; [`Buf`] does.
    Mr, MrInner: ibv_mr, ibv_dereg_mr, keeps (_pd: Pd)
}
object! {
    /// A completion channel.
    Channel, ChannelInner: ibv_comp_channel, ibv_destroy_comp_channel, keeps (_ctx: Context)
}
object! {
    /// A completion queue.
    Cq, CqInner: ibv_cq, ibv_destroy_cq, keeps (_ctx: Context, _channel: Option<Channel>)
}
object! {
    /// A shared receive queue.
    Srq, SrqInner: ibv_srq, ibv_destroy_srq, keeps (_pd: Pd)
}
object! {
    /// A queue pair.
    Qp, QpInner: ibv_qp, ibv_destroy_qp, keeps (_pd: Pd, _cqs: [Cq; 2], _srq: Option<Srq>)
}
object! {
    /// An address handle.
    Ah, AhInner: ibv_ah, ibv_destroy_ah, keeps (_pd: Pd)
}

/// Unwraps the result of the call `what`, and panics with the name and the errno on an error.
#[track_caller]
fn expect_ok<T>(what: &str, result: Result<T, i32>) -> T {
    result.unwrap_or_else(|errno| {
        panic!(
            "{what} failed: {}",
            std::io::Error::from_raw_os_error(errno)
        );
    })
}

/// Time for which a test waits to see that an event does *not* occur.
pub const QUIET_PERIOD: Duration = Duration::from_millis(20);

/// Returns true if `fd` is readable within `wait`.
#[must_use]
pub fn becomes_readable_within(fd: c_int, wait: Duration) -> bool {
    has_poll_event_within(fd, PollFlags::IN, wait)
}

/// Returns true if poll(2) reports one of `events` for `fd` within `wait`.
#[must_use]
pub fn has_poll_event_within(fd: c_int, events: PollFlags, wait: Duration) -> bool {
    // SAFETY: the descriptor belongs to a live object of the library.
    let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) };
    let timeout = rustix::time::Timespec {
        tv_sec: i64::try_from(wait.as_secs()).expect("a sane wait"),
        tv_nsec: wait.subsec_nanos().into(),
    };
    let mut fds = [PollFd::new(&fd, events)];
    matches!(poll(&mut fds, Some(&timeout)), Ok(n) if n > 0)
}

/// Sets or clears `O_NONBLOCK` on a descriptor of the library.
pub fn set_nonblocking(fd: c_int, on: bool) {
    // SAFETY: the descriptor belongs to a live object of the library.
    let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) };
    let mut flags = fcntl_getfl(fd).expect("F_GETFL of the library's descriptor");
    flags.set(OFlags::NONBLOCK, on);
    fcntl_setfl(fd, flags).expect("F_SETFL of the library's descriptor");
}
