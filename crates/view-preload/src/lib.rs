//! The kernel's interfaces to the software NIC. `verbatim run` puts this library into `LD_PRELOAD`
//! of programs that query the kernel for RDMA devices.
//!
//! - [`mod@netlink`]: the RDMA netlink family, for `rdma(8)` of iproute2;
//! - this file: the device's files, for a process without CAP_SYS_ADMIN, which cannot mount a
//!   folder over them.
//!
//! The library exports each function of the C library that takes the path of a file to read or
//! examine. Paths below `/sys/class/infiniband`, `/sys/class/infiniband_verbs` and
//! `/dev/infiniband` are redirected below the folder in `VERBATIM_VIEW`. So are the paths of the PCI
//! functions behind the devices. Other paths are unchanged.
//! Paths relative to a redirected folder need no change.
//!
//! Limits: the library does not redirect system calls that a program makes itself. It does not
//! redirect calls within the C library (`glob`, `ftw`) either.
//! Folders of other devices do not list the devices of the NIC.
#![allow(unsafe_code)]

pub mod netlink;
mod software_nic_answers;

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

/// The environment variable that names the folder with the device's files.
const VIEW_FOLDER_ENV_VAR: &CStr = c"VERBATIM_VIEW";

/// The folders whose paths are redirected.
const REDIRECTED_FOLDERS: [&[u8]; 3] = [
    b"/sys/class/infiniband",
    b"/sys/class/infiniband_verbs",
    b"/dev/infiniband",
];

/// The first bytes of redirected paths of PCI functions and buses: the NIC's devices are in this PCI
/// domain (`sysfs_pci` of `softnic`).
const REDIRECTED_PCI_PREFIXES: [&[u8]; 3] = [
    b"/sys/devices/pcifffe:",
    b"/sys/bus/pci/devices/fffe:",
    b"/sys/class/pci_bus/fffe:",
];

/// A buffer with room for a path and its terminating zero.
type PathBuffer = [u8; libc::PATH_MAX as usize];

/// Returns true if `path` is redirected.
fn is_redirected(path: &[u8]) -> bool {
    if REDIRECTED_PCI_PREFIXES
        .iter()
        .any(|start| path.starts_with(start))
    {
        return true;
    }
    REDIRECTED_FOLDERS.iter().any(|folder| {
        path.strip_prefix(*folder)
            .is_some_and(|rest| matches!(rest.first(), None | Some(b'/')))
    })
}

/// Returns the path to use for `path`: `path` itself, or the redirected path in `room`.
///
/// # Safety
/// `path` is NULL or a string.
unsafe fn redirect(path: *const c_char, room: &mut PathBuffer) -> *const c_char {
    if path.is_null() {
        return path;
    }
    // SAFETY: contract of this function.
    let asked = unsafe { CStr::from_ptr(path) }.to_bytes();
    if !is_redirected(asked) {
        return path;
    }
    // SAFETY: the argument is a string.
    let folder = unsafe { libc::getenv(VIEW_FOLDER_ENV_VAR.as_ptr()) };
    if folder.is_null() {
        return path;
    }
    // SAFETY: the environment consists of strings. A program that changes the environment
    // concurrently is wrong anyway.
    let folder = unsafe { CStr::from_ptr(folder) }.to_bytes();
    let end = folder.len() + asked.len();
    // A path that is too long is passed on unchanged, and the system refuses it.
    let (Some(first), true) = (room.get_mut(..folder.len()), end < size_of::<PathBuffer>()) else {
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

/// Returns the address of the next library's function `name`, and caches the address in `known`.
fn next(known: &AtomicPtr<c_void>, name: &CStr) -> Option<*mut c_void> {
    let mut found = known.load(Ordering::Relaxed);
    if found.is_null() {
        // SAFETY: the argument is a string.
        found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
        known.store(found, Ordering::Relaxed);
    }
    (!found.is_null()).then_some(found)
}

/// The error value of a function that is missing in the C library.
trait MissingFunctionError {
    const ERROR_VALUE: Self;
}

impl MissingFunctionError for c_int {
    const ERROR_VALUE: Self = -1;
}

impl MissingFunctionError for libc::ssize_t {
    const ERROR_VALUE: Self = -1;
}

impl MissingFunctionError for *mut c_void {
    const ERROR_VALUE: Self = std::ptr::null_mut();
}

/// Exports functions of the C library; the path is the argument after the semicolon.
macro_rules! export {
    ($( fn $name:ident($( $before:ident: $before_type:ty ),*; path $(, $arg:ident: $type:ty )*) -> $ret:ty; )*) => {
        $(
            /// The C library's function of this name, with redirected paths.
            ///
            /// # Safety
            /// The contract of the C library's function of this name applies.
            // SAFETY: the name, the arguments and the behaviour are those of the C library. An
            // argument that only some flags need is passed on as found in its register.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name(
                $( $before: $before_type, )* path: *const c_char $(, $arg: $type )*
            ) -> $ret {
                type Function =
                    unsafe extern "C" fn($( $before_type, )* *const c_char $(, $type )*) -> $ret;
                static RESOLVED: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
                let name = concat!(stringify!($name), "\0");
                let name = CStr::from_bytes_with_nul(name.as_bytes()).unwrap_or_default();
                let Some(function) = next(&RESOLVED, name) else {
                    // SAFETY: the pointer is to this thread's errno.
                    unsafe { *libc::__errno_location() = libc::ENOSYS };
                    return MissingFunctionError::ERROR_VALUE;
                };
                let mut room: PathBuffer = [0; size_of::<PathBuffer>()];
                // SAFETY: the C library's function of this name has this type. The caller
                // guarantees the arguments, including the path. A redirected path in `room` ends
                // with a zero byte.
                unsafe {
                    let function = std::mem::transmute::<*mut c_void, Function>(function);
                    function($( $before, )* redirect(path, &mut room) $(, $arg )*)
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
    // Programs built with glibc before 2.33 call these functions instead of `stat` and its
    // variants.
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
