//! The C library's socket functions in front of crate `sockets`: `verbatim sockets` puts this library into
//! `LD_PRELOAD`.
//!
//! Each function does what the C library's does; the only difference is how the bytes of a connection go.
#![allow(unsafe_code)]

pub mod descriptors;
pub mod send_and_receive;
pub mod system_calls;
pub mod threads;
pub mod waiting;

use std::ffi::c_int;
use std::io;

use libc::ssize_t;
use sockets::real_libc;

/// The return value of a C function for a result; sets errno on an error.
fn to_return_value(result: io::Result<usize>) -> ssize_t {
    match result {
        Ok(n) => ssize_t::try_from(n).unwrap_or(ssize_t::MAX),
        Err(err) => {
            real_libc::set_errno(err.raw_os_error().unwrap_or(libc::EIO));
            -1
        }
    }
}

extern "C" fn prepare() {
    sockets::fork::before_fork();
}

extern "C" fn child() {
    sockets::fork::after_fork_in_child();
}

extern "C" fn parent() {
    sockets::fork::after_fork_in_parent();
}

extern "C" fn load() {
    // SAFETY: functions that are there as long as the process.
    unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) };
    sockets::program_calls::adopt_inherited_sockets();
}

/// Called by the loader.
// SAFETY: the section holds pointers to functions that are called once, before `main`.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = load;

/// A plain integer of the C library that says no.
const FAILED: c_int = -1;
