//! The bodies of this crate's fuzz targets, and the replay of their corpora.

use std::ffi::OsStr;
use std::fs;
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::addr::IdAddress;
use crate::ports::{IdBinding, PortFolder, parse_port_range, process_in_socket_name};
use crate::process_identity::ProcessIdentity;
use crate::wire::CmMessage;

/// Decodes `bytes` as a message of connection management and as the name of a process. Each decoded value must encode
/// to the same text or bytes.
///
/// # Panics
/// Decoding panics, or the encoding differs.
pub fn fuzz_messages(bytes: &[u8]) {
    if let Ok(message) = CmMessage::decode(bytes) {
        assert_eq!(message.encode(), bytes);
    }
    if let Ok(text) = std::str::from_utf8(bytes)
        && let Ok(process) = text.parse::<ProcessIdentity>()
    {
        assert_eq!(
            process.to_string().parse::<ProcessIdentity>().ok(),
            Some(process)
        );
    }
}

/// Uses a folder of port numbers in which another process has left arbitrary files, and parses texts of `/proc` with
/// port ranges. Each line of `bytes` is the name of a file, or the name of a link, a tab and the link's target.
///
/// # Panics
/// A file that is not a port is deleted, a port is claimed twice, or its listener is not reached.
pub fn fuzz_port_folder(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes) {
        assert!(parse_port_range(text).is_none_or(|(low, high)| 0 < low && low <= high));
        assert!(process_in_socket_name(text).is_none() || !text.contains('/'));
    }
    let folder = FuzzFabricFolder::new();
    for line in bytes.split(|&b| b == b'\n').take(16) {
        folder.add_port_file(line);
    }
    if let Ok(ports) = PortFolder::open(&folder.0) {
        exercise_port_folder(&ports, &folder);
    }
    assert!(
        folder.unrelated_file().exists(),
        "what is no port was deleted"
    );
}

const PORT_SPACE: u32 = 0x0106;
const PORT: u16 = 7471;

fn exercise_port_folder(ports: &PortFolder, folder: &FuzzFabricFolder) {
    let at = |port| IdAddress::Ip(SocketAddr::from(([10, 0, 0, 1], port)));
    let binding = |port, reuse| IdBinding {
        addr: at(port),
        afonly: false,
        reuse_address: reuse,
    };
    for reuse in [false, true] {
        let Ok(mut claim) = ports.claim(PORT_SPACE, binding(PORT, reuse)) else {
            continue;
        };
        assert!(ports.claim(PORT_SPACE, binding(PORT, false)).is_err());
        assert!(ports.connect(PORT_SPACE, at(PORT)).is_err());
        assert!(!reuse || ports.claim(PORT_SPACE, binding(0, false)).is_ok());
        if let Ok(_listener) = ports.listen(&mut claim) {
            // A process that opens the folder removes stale names.
            drop(PortFolder::open(&folder.0));
            assert!(ports.connect(PORT_SPACE, at(PORT)).is_ok());
        }
        ports.record_listener_closing(&claim);
        ports.release(&claim);
        assert!(ports.connect(PORT_SPACE, at(PORT)).is_err());
        ports.may_listen_soon(PORT_SPACE, at(PORT));
    }
}

/// A temporary fabric folder.
struct FuzzFabricFolder(PathBuf);

impl FuzzFabricFolder {
    fn new() -> Self {
        let path =
            Path::new("/dev/shm").join(format!("verbatim-fuzz-ports-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(path.join("rdma_cm")).expect("shared memory");
        let folder = Self(path);
        fs::write(folder.unrelated_file(), "").expect("shared memory");
        folder
    }

    /// Returns the path of a file that is not a port and must not be deleted.
    fn unrelated_file(&self) -> PathBuf {
        self.0.join("kept")
    }

    fn add_port_file(&self, line: &[u8]) {
        let (name, target) = match line.iter().position(|&b| b == b'\t') {
            Some(tab) => (&line[..tab], &line[tab + 1..]),
            None => (line, &[][..]),
        };
        // Names that lead out of the folder are skipped.
        if name.is_empty() || name.contains(&b'/') || matches!(name, b"." | b"..") {
            return;
        }
        let name = self.0.join("rdma_cm").join(OsStr::from_bytes(name));
        // Errors are ignored: the name may be invalid or exist already.
        let _ = match target {
            b"" => fs::write(name, ""),
            // A link may only lead to a file of this test, so that a failure cannot delete anything else.
            target if target.contains(&b'/') && target != b"../kept" => Ok(()),
            target => symlink(OsStr::from_bytes(target), name),
        };
    }
}

impl Drop for FuzzFabricFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_corpus_of_ports_is_replayed() {
        corpus::replay("ports", super::fuzz_port_folder);
    }

    #[test]
    fn the_corpus_of_messages_is_replayed() {
        corpus::replay("messages", super::fuzz_messages);
    }
}
