//! Reading sysfs, which libibverbs offers to its users.

use std::ffi::{CStr, OsStr, c_char, c_int};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Where sysfs is mounted.
pub(crate) extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    c"/sys".as_ptr()
}

/// Reads a file of sysfs into `buf`, without the newline at its end. Bytes read, or -1 with errno.
///
/// # Safety
/// `dir` and `file` are strings, `buf` has `size` bytes.
pub(crate) unsafe extern "C" fn ibv_read_sysfs_file(
    dir: *const c_char,
    file: *const c_char,
    buf: *mut c_char,
    size: usize,
) -> c_int {
    if dir.is_null() || file.is_null() || buf.is_null() {
        return fail(libc::EINVAL);
    }
    // SAFETY: strings of the caller.
    let (dir, file) = unsafe { (CStr::from_ptr(dir), CStr::from_ptr(file)) };
    let path =
        Path::new(OsStr::from_bytes(dir.to_bytes())).join(OsStr::from_bytes(file.to_bytes()));
    let mut text = Vec::new();
    let read = File::open(path).and_then(|f| {
        let limit = u64::try_from(size).unwrap_or(u64::MAX);
        f.take(limit).read_to_end(&mut text)
    });
    if let Err(e) = read {
        return fail(e.raw_os_error().unwrap_or(libc::EIO));
    }
    let mut len = text.len();
    if text.last() == Some(&b'\n') {
        len -= 1;
        if let Some(newline) = text.last_mut() {
            *newline = 0;
        }
    }
    // SAFETY: at most `size` bytes were read.
    unsafe { buf.copy_from_nonoverlapping(text.as_ptr().cast(), text.len()) };
    if len < size {
        // SAFETY: the byte behind the text lies in the buffer.
        unsafe { *buf.add(len) = 0 };
    }
    c_int::try_from(len).unwrap_or(c_int::MAX)
}

fn fail(errno: c_int) -> c_int {
    // SAFETY: glibc's errno of this thread.
    unsafe { *libc::__errno_location() = errno };
    -1
}
