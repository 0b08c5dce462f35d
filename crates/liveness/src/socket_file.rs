//! Files of Unix sockets, which stay when their process is killed.

use std::io;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// The file of a listening Unix socket, removed on drop.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
}

impl SocketFile {
    /// Listens at `path`. The socket file of a process that was killed is replaced.
    ///
    /// # Errors
    /// The errors of `bind(2)`: `AddrInUse` if a process listens at the path, or the file is no socket.
    pub fn listen(path: &Path) -> io::Result<(UnixListener, Self)> {
        remove_stale_socket_file(path);
        let listener = UnixListener::bind(path)?;
        let path = path.to_owned();
        Ok((listener, Self { path }))
    }

    /// Returns the path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Removes the socket file of a process that was killed. Any other file makes `bind` fail.
fn remove_stale_socket_file(path: &Path) {
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|m| m.file_type().is_socket());
    let refused =
        || UnixStream::connect(path).is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused);
    if is_socket && refused() {
        let _ = std::fs::remove_file(path);
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn only_the_socket_file_of_an_ended_process_is_replaced() {
        let path = std::env::temp_dir().join(format!("socket-file-{}", std::process::id()));
        // The file of a socket that was closed without being removed.
        drop(UnixListener::bind(&path).unwrap());
        // A process that another test is starting has the socket open until it executes its program.
        let deadline = Instant::now() + Duration::from_secs(10);
        let (listener, file) = loop {
            match SocketFile::listen(&path) {
                Err(err) if err.kind() == io::ErrorKind::AddrInUse && Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                result => break result.unwrap(),
            }
        };
        assert_eq!(file.path(), path);
        let in_use = SocketFile::listen(&path).unwrap_err();
        assert_eq!(in_use.kind(), io::ErrorKind::AddrInUse);
        UnixStream::connect(&path).unwrap();
        drop((listener, file));
        assert!(!path.exists());
        std::fs::write(&path, "a file of the user").unwrap();
        SocketFile::listen(&path).unwrap_err();
        assert!(path.exists());
        std::fs::remove_file(&path).unwrap();
    }
}
