//! The length of files that are far longer than their content.

use std::io;
use std::os::fd::AsFd;

use rustix::fs::ftruncate;
use rustix::process::{Resource, getrlimit};

/// Makes a file `len` bytes long.
///
/// # Errors
/// `EFBIG` if the process's limit of file sizes is lower; ftruncate(2) would end the process by SIGXFSZ. Also the errors
/// of the call.
pub(crate) fn set_file_len(file: impl AsFd, len: u64) -> io::Result<()> {
    let limit = getrlimit(Resource::Fsize).current;
    if is_len_beyond_limit(len, limit) {
        tracing::warn!(
            "the software NIC needs a sparse file of {} MiB, and this process is limited to files of {} MiB: raise \
             `ulimit -f`",
            len >> 20,
            limit.unwrap_or(0) >> 20
        );
        return Err(io::Error::from_raw_os_error(libc::EFBIG));
    }
    Ok(ftruncate(file, len)?)
}

/// Returns true if a file of `len` bytes is longer than the limit; `None` is no limit.
fn is_len_beyond_limit(len: u64, limit: Option<u64>) -> bool {
    limit.is_some_and(|limit| len > limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_longer_files_are_refused() {
        assert!(!is_len_beyond_limit(u64::MAX, None));
        assert!(!is_len_beyond_limit(4096, Some(4096)));
        assert!(is_len_beyond_limit(4097, Some(4096)));
    }
}
