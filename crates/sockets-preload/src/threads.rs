//! `pthread_create(3)`, so that the threads of the software NIC are known as the library's.

use std::ffi::{c_int, c_void};

use libc::{pthread_attr_t, pthread_t};
use sockets::{own_calls, real_libc};

type Start = extern "C" fn(*mut c_void) -> *mut c_void;

/// The function of a thread of the library, and its argument.
struct LibraryThread {
    start: Start,
    argument: *mut c_void,
}

extern "C" fn run_library_thread(thread: *mut c_void) -> *mut c_void {
    own_calls::declare_this_thread_the_librarys();
    // SAFETY: the pointer of `pthread_create`, which this thread owns.
    let thread = unsafe { Box::from_raw(thread.cast::<LibraryThread>()) };
    let (start, argument) = (thread.start, thread.argument);
    drop(thread);
    start(argument)
}

/// `pthread_create(3)`
///
/// # Safety
/// That of the C library's function of this name.
// SAFETY: the name is the C library's own, and so are the arguments and the behaviour.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_create(
    thread: *mut pthread_t,
    attributes: *const pthread_attr_t,
    start: Start,
    argument: *mut c_void,
) -> c_int {
    if !own_calls::must_keep_table() {
        // SAFETY: as the caller calls it.
        return unsafe { real_libc::pthread_create(thread, attributes, start, argument) };
    }
    let own: *mut LibraryThread = Box::into_raw(Box::new(LibraryThread { start, argument }));
    // SAFETY: as the caller calls it, but for the function, which calls the caller's.
    let result =
        unsafe { real_libc::pthread_create(thread, attributes, run_library_thread, own.cast()) };
    if result != 0 {
        // SAFETY: no thread has started that would own it.
        drop(unsafe { Box::from_raw(own) });
    }
    result
}
