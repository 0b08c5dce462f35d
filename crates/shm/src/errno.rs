//! The errno of an I/O error, and detection of exhausted resources.

use std::io;

/// Returns the errno of an I/O error.
pub fn errno_of(e: &io::Error) -> i32 {
    exhaustion_errno(e)
        .or(e.raw_os_error())
        .unwrap_or(libc::EIO)
}

/// Returns `EMFILE`, `ENFILE` or `ENOMEM` if the error means that descriptors or memory are exhausted,
/// otherwise `None`.
pub fn exhaustion_errno(e: &io::Error) -> Option<i32> {
    match e.raw_os_error() {
        // The standard library reports exhausted memory without an errno.
        None => (e.kind() == io::ErrorKind::OutOfMemory).then_some(libc::ENOMEM),
        errno => errno.filter(|e| matches!(*e, libc::EMFILE | libc::ENFILE | libc::ENOMEM)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exhaustion_is_told_from_an_absent_file() {
        for errno in [libc::EMFILE, libc::ENFILE, libc::ENOMEM] {
            assert_eq!(
                exhaustion_errno(&io::Error::from_raw_os_error(errno)),
                Some(errno)
            );
        }
        let e = io::ErrorKind::OutOfMemory.into();
        assert_eq!(
            (exhaustion_errno(&e), errno_of(&e)),
            (Some(libc::ENOMEM), libc::ENOMEM)
        );
        let e = io::Error::from_raw_os_error(libc::ENOENT);
        assert_eq!((exhaustion_errno(&e), errno_of(&e)), (None, libc::ENOENT));
        assert_eq!(exhaustion_errno(&io::ErrorKind::NotFound.into()), None);
    }
}
