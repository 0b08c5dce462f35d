//! Functions of libibverbs that read sysfs.

use std::ffi::{CStr, OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Returns the mount point of sysfs.
pub(crate) extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    c"/sys".as_ptr()
}

/// Maximum number of bytes in a file of sysfs: the largest page size
/// (`linux:Documentation/filesystems/sysfs.rst`).
const MAX_SYSFS_FILE_BYTES: usize = 65_536;

/// Reads a file of sysfs into `buf`, without its final newline and with a terminating zero.
///
/// Returns the number of bytes read. Returns -1 and sets errno on an error, or if the text does not fit.
///
/// # Safety
/// `dir` and `file` are strings, and `buf` has `size` bytes.
pub(crate) unsafe extern "C" fn ibv_read_sysfs_file(
    dir: *const c_char,
    file: *const c_char,
    buf: *mut c_char,
    size: usize,
) -> c_int {
    if dir.is_null() || file.is_null() || buf.is_null() {
        return set_errno_and_return_minus_1(libc::EINVAL);
    }
    // SAFETY: the caller promises strings.
    let (dir, file) = unsafe { (CStr::from_ptr(dir), CStr::from_ptr(file)) };
    let path =
        Path::new(OsStr::from_bytes(dir.to_bytes())).join(OsStr::from_bytes(file.to_bytes()));
    let mut text = vec![0; size.min(MAX_SYSFS_FILE_BYTES)];
    let len = match softnic::read_sysfs_text(&path, &mut text) {
        Ok(len) => len,
        Err(e) => return set_errno_and_return_minus_1(e.raw_os_error().unwrap_or(libc::EIO)),
    };
    // The written bytes include the terminating zero, unless `size` is 0.
    let written = text.get(..=len).map_or(0, <[u8]>::len);
    // SAFETY: `written` is at most `size`.
    unsafe { buf.copy_from_nonoverlapping(text.as_ptr().cast(), written) };
    c_int::try_from(len).unwrap_or(c_int::MAX)
}

fn set_errno_and_return_minus_1(errno: c_int) -> c_int {
    // SAFETY: glibc's errno of this thread.
    unsafe { *libc::__errno_location() = errno };
    -1
}
