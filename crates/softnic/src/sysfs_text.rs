//! Reads a file of sysfs as libibverbs does for its users: as a terminated text in a buffer of a given size.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Reads the file at `path` into `buf`, without the newline at its end and with a zero behind it. Returns the length of
/// the text. Nothing is written for an empty file.
///
/// # Errors
/// The error of opening or reading the file; `ERANGE` if the text and the zero do not fit.
pub fn read_sysfs_text(path: &Path, buf: &mut [u8]) -> io::Result<usize> {
    let mut text = Vec::new();
    let limit = u64::try_from(buf.len()).unwrap_or(u64::MAX);
    File::open(path)?.take(limit).read_to_end(&mut text)?;
    copy_with_terminating_zero(&text, buf).ok_or_else(|| io::Error::from_raw_os_error(libc::ERANGE))
}

/// Copies the text that was read into `buf`, with a zero behind it. `None` if both do not fit.
fn copy_with_terminating_zero(read: &[u8], buf: &mut [u8]) -> Option<usize> {
    if read.is_empty() {
        return Some(0);
    }
    let text = read.strip_suffix(b"\n").unwrap_or(read);
    let (to, end) = buf.get_mut(..=text.len())?.split_at_mut(text.len());
    to.copy_from_slice(text);
    end.fill(0);
    Some(text.len())
}

/// Reads any text into buffers that are large enough and into buffers that are not.
///
/// # Panics
/// If the text does not end within the buffer, or if more than the buffer was written.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz(file: &[u8]) {
    for size in [
        0,
        1,
        file.len().saturating_sub(1),
        file.len(),
        file.len() + 1,
    ] {
        let mut buf = vec![0xa5; size + 1];
        let (within, behind) = buf.split_at_mut(size);
        let read = &file[..size.min(file.len())];
        match copy_with_terminating_zero(read, within) {
            Some(0) if read.is_empty() => assert!(within.iter().all(|&b| b == 0xa5)),
            Some(len) => {
                assert!(read.starts_with(&within[..len]) && within[len] == 0);
                assert!(read.len() == len || &read[len..] == b"\n");
            }
            None => assert!(read.len() == size && !read.ends_with(b"\n")),
        }
        assert_eq!(behind, [0xa5]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_ends_in_the_buffer_or_is_refused() {
        let put = |read: &[u8], size: usize| {
            let mut buf = [0xa5; 8];
            let len = super::copy_with_terminating_zero(read, &mut buf[..size]);
            (len, buf)
        };
        assert_eq!(put(b"1.0\n", 8), (Some(3), *b"1.0\0\xa5\xa5\xa5\xa5"));
        assert_eq!(put(b"1.0\n", 4), (Some(3), *b"1.0\0\xa5\xa5\xa5\xa5"));
        assert_eq!(put(b"1.0", 4), (Some(3), *b"1.0\0\xa5\xa5\xa5\xa5"));
        assert_eq!(put(b"1.0", 3), (None, [0xa5; 8]));
        assert_eq!(put(b"\n", 1), (Some(0), *b"\0\xa5\xa5\xa5\xa5\xa5\xa5\xa5"));
        assert_eq!(put(b"", 8), (Some(0), [0xa5; 8]));
    }

    #[test]
    fn files_are_read_as_far_as_the_buffer_goes() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("fw_ver");
        let mut buf = [0; 4];
        assert!(read_sysfs_text(&file, &mut buf).is_err());
        std::fs::write(&file, "1.0\n").unwrap();
        assert_eq!(read_sysfs_text(&file, &mut buf).unwrap(), 3);
        std::fs::write(&file, "1.00\n").unwrap();
        let refused = read_sysfs_text(&file, &mut buf).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::ERANGE));
    }
}
