//! The kernel's part for the software NIC: `verbatim run` puts this library into `LD_PRELOAD` of programs that ask the kernel
//! for RDMA devices.
//!
//! - [`mod@netlink`]: the RDMA netlink family, for `rdma(8)` of iproute2;
//! - this file: the files of the device, for a process without CAP_SYS_ADMIN that gets no mounts.
//!
//! For the files it has a function under each name by which the C library takes the path of a file that is to be read or looked at.
//! Paths below `/sys/class/infiniband`, `/sys/class/infiniband_verbs` and `/dev/infiniband` go to the same place below the folder
//! that `VERBATIM_VIEW` names; all others go on as they are.
//! Paths relative to a folder that was opened so need nothing.
//!
//! Limits: programs that make system calls themselves, and calls within the C library (`glob`, `ftw`).
#![allow(unsafe_code)]

pub mod netlink;
mod source;

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

/// Names the folder of the files.
const VARIABLE: &CStr = c"VERBATIM_VIEW";

/// The folders that are redirected there.
const FOLDERS: [&[u8]; 3] = [
    b"/sys/class/infiniband",
    b"/sys/class/infiniband_verbs",
    b"/dev/infiniband",
];

/// Room for a path and its end.
type Room = [u8; libc::PATH_MAX as usize];

/// Is it one of the folders, or below one?
fn is_elsewhere(path: &[u8]) -> bool {
    FOLDERS.iter().any(|folder| {
        path.strip_prefix(*folder)
            .is_some_and(|rest| matches!(rest.first(), None | Some(b'/')))
    })
}

/// The path that is meant by `path`: itself, or another one in `room`.
///
/// # Safety
/// `path` is NULL or a string.
unsafe fn meant(path: *const c_char, room: &mut Room) -> *const c_char {
    if path.is_null() {
        return path;
    }
    // SAFETY: contract of this function.
    let asked = unsafe { CStr::from_ptr(path) }.to_bytes();
    if !is_elsewhere(asked) {
        return path;
    }
    // SAFETY: a string as its argument.
    let folder = unsafe { libc::getenv(VARIABLE.as_ptr()) };
    if folder.is_null() {
        return path;
    }
    // SAFETY: the environment consists of strings; a program that changes it meanwhile is as wrong elsewhere.
    let folder = unsafe { CStr::from_ptr(folder) }.to_bytes();
    let end = folder.len() + asked.len();
    // What is longer than a path may be is refused by the system as it is.
    let (Some(first), true) = (room.get_mut(..folder.len()), end < size_of::<Room>()) else {
        return path;
    };
    first.copy_from_slice(folder);
    if let Some(rest) = room.get_mut(folder.len()..end) {
        rest.copy_from_slice(asked);
    }
    if let Some(last) = room.get_mut(end) {
        *last = 0;
    }
    room.as_ptr().cast()
}

/// Finds the next library's function of a name, which is remembered in `known`.
fn next(known: &AtomicPtr<c_void>, name: &CStr) -> Option<*mut c_void> {
    let mut found = known.load(Ordering::Relaxed);
    if found.is_null() {
        // SAFETY: a string as its argument.
        found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
        known.store(found, Ordering::Relaxed);
    }
    (!found.is_null()).then_some(found)
}

/// The error value of a function that the C library does not have.
trait Failure {
    const FAILED: Self;
}

impl Failure for c_int {
    const FAILED: Self = -1;
}

impl Failure for libc::ssize_t {
    const FAILED: Self = -1;
}

impl Failure for *mut c_void {
    const FAILED: Self = std::ptr::null_mut();
}

/// Exports functions of the C library; the path is the argument behind the semicolon.
macro_rules! export {
    ($( fn $name:ident($( $before:ident: $before_type:ty ),*; path $(, $arg:ident: $type:ty )*) -> $ret:ty; )*) => {
        $(
            /// The C library's function of this name.
            ///
            /// # Safety
            /// That of the C library's function of this name.
            // SAFETY: the name is the C library's own, and so are the arguments and the behaviour. An argument that is
            // there for some flags only is passed on as what lies in its register.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name(
                $( $before: $before_type, )* path: *const c_char $(, $arg: $type )*
            ) -> $ret {
                type Function =
                    unsafe extern "C" fn($( $before_type, )* *const c_char $(, $type )*) -> $ret;
                static NEXT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
                let name = concat!(stringify!($name), "\0");
                let name = CStr::from_bytes_with_nul(name.as_bytes()).unwrap_or_default();
                let Some(function) = next(&NEXT, name) else {
                    // SAFETY: the errno of this thread.
                    unsafe { *libc::__errno_location() = libc::ENOSYS };
                    return Failure::FAILED;
                };
                let mut room: Room = [0; size_of::<Room>()];
                // SAFETY: the C library's function of this name is of this type; the arguments are those that its caller
                // promises to be good, the path among them, or one in `room`, which ends with a zero byte.
                unsafe {
                    let function = std::mem::transmute::<*mut c_void, Function>(function);
                    function($( $before, )* meant(path, &mut room) $(, $arg )*)
                }
            }
        )*
    };
}

export! {
    fn open(; path, flags: c_int, mode: libc::mode_t) -> c_int;
    fn open64(; path, flags: c_int, mode: libc::mode_t) -> c_int;
    fn __open_2(; path, flags: c_int) -> c_int;
    fn __open64_2(; path, flags: c_int) -> c_int;
    fn openat(folder: c_int; path, flags: c_int, mode: libc::mode_t) -> c_int;
    fn openat64(folder: c_int; path, flags: c_int, mode: libc::mode_t) -> c_int;
    fn __openat_2(folder: c_int; path, flags: c_int) -> c_int;
    fn __openat64_2(folder: c_int; path, flags: c_int) -> c_int;
    fn fopen(; path, mode: *const c_char) -> *mut c_void;
    fn fopen64(; path, mode: *const c_char) -> *mut c_void;
    fn opendir(; path) -> *mut c_void;
    fn scandir(; path, list: *mut c_void, filter: *mut c_void, order: *mut c_void) -> c_int;
    fn scandir64(; path, list: *mut c_void, filter: *mut c_void, order: *mut c_void) -> c_int;
    fn stat(; path, to: *mut c_void) -> c_int;
    fn stat64(; path, to: *mut c_void) -> c_int;
    fn lstat(; path, to: *mut c_void) -> c_int;
    fn lstat64(; path, to: *mut c_void) -> c_int;
    fn fstatat(folder: c_int; path, to: *mut c_void, flags: c_int) -> c_int;
    fn fstatat64(folder: c_int; path, to: *mut c_void, flags: c_int) -> c_int;
    // By these names programs ask that were built with glibc before 2.33.
    fn __xstat(version: c_int; path, to: *mut c_void) -> c_int;
    fn __xstat64(version: c_int; path, to: *mut c_void) -> c_int;
    fn __lxstat(version: c_int; path, to: *mut c_void) -> c_int;
    fn __lxstat64(version: c_int; path, to: *mut c_void) -> c_int;
    fn __fxstatat(version: c_int, folder: c_int; path, to: *mut c_void, flags: c_int) -> c_int;
    fn __fxstatat64(version: c_int, folder: c_int; path, to: *mut c_void, flags: c_int) -> c_int;
    fn statx(folder: c_int; path, flags: c_int, mask: c_uint, to: *mut c_void) -> c_int;
    fn access(; path, mode: c_int) -> c_int;
    fn eaccess(; path, mode: c_int) -> c_int;
    fn euidaccess(; path, mode: c_int) -> c_int;
    fn faccessat(folder: c_int; path, mode: c_int, flags: c_int) -> c_int;
    fn readlink(; path, to: *mut c_char, room_for: usize) -> libc::ssize_t;
    fn readlinkat(folder: c_int; path, to: *mut c_char, room_for: usize) -> libc::ssize_t;
    fn __readlink_chk(; path, to: *mut c_char, room_for: usize, size: usize) -> libc::ssize_t;
    fn __readlinkat_chk(folder: c_int; path, to: *mut c_char, room_for: usize, size: usize) -> libc::ssize_t;
    fn realpath(; path, to: *mut c_char) -> *mut c_void;
    fn __realpath_chk(; path, to: *mut c_char, size: usize) -> *mut c_void;
    fn canonicalize_file_name(; path) -> *mut c_void;
}
