//! The errno of what the system refuses.

use std::io;

/// The errno of an I/O error.
pub fn errno_of(e: &io::Error) -> i32 {
    shortage(e).or(e.raw_os_error()).unwrap_or(libc::EIO)
}

/// The errno of an error that says that there are no more descriptors or no more memory: `EMFILE`, `ENFILE` or `ENOMEM`.
/// `None` for one that says something else.
pub fn shortage(e: &io::Error) -> Option<i32> {
    match e.raw_os_error() {
        // The standard library says so without an errno.
        None => (e.kind() == io::ErrorKind::OutOfMemory).then_some(libc::ENOMEM),
        errno => errno.filter(|e| matches!(*e, libc::EMFILE | libc::ENFILE | libc::ENOMEM)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortage_is_told_from_what_is_not_there() {
        for errno in [libc::EMFILE, libc::ENFILE, libc::ENOMEM] {
            assert_eq!(shortage(&io::Error::from_raw_os_error(errno)), Some(errno));
        }
        let e = io::ErrorKind::OutOfMemory.into();
        assert_eq!(
            (shortage(&e), errno_of(&e)),
            (Some(libc::ENOMEM), libc::ENOMEM)
        );
        let e = io::Error::from_raw_os_error(libc::ENOENT);
        assert_eq!((shortage(&e), errno_of(&e)), (None, libc::ENOENT));
        assert_eq!(shortage(&io::ErrorKind::NotFound.into()), None);
    }
}
