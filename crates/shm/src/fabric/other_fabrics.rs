//! The other fabrics of this host: two programs that cannot reach each other are often in different fabrics.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::folder::{FABRIC_FOLDER_PREFIX, INITIAL_PID_NAMESPACE, PARENT_OF_FABRIC_FOLDERS};

/// A fabric other than this process's own, parsed from its folder's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherFabric {
    /// The fabric's folder.
    pub path: PathBuf,
    /// The user who owns the fabric.
    pub uid: u32,
    /// Inode of the PID namespace of the fabric's processes.
    pub pid_namespace: u64,
    /// Name of the fabric, as given by `--fabric`; `None` for the user's default fabric.
    pub name: Option<String>,
}

/// Returns the fabrics in this process's `/dev/shm` except the one in `own`, the one that changed last first.
///
/// Fabrics in another mount of `/dev/shm`, or in a folder named by `VERBATIM_FABRIC_DIR`, are not found.
#[must_use]
pub fn list_other_fabrics(own: &Path) -> Vec<OtherFabric> {
    let Ok(entries) = fs::read_dir(PARENT_OF_FABRIC_FOLDERS) else {
        return Vec::new();
    };
    let mut found: Vec<_> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path != own && path.is_dir())
        .filter_map(|path| parse_folder_name(&path))
        .collect();
    // A process that joins or leaves changes its fabric's folder.
    found.sort_by_cached_key(|of| {
        let changed = of.path.metadata().and_then(|of| of.modified()).ok();
        (std::cmp::Reverse(changed), of.path.clone())
    });
    found
}

/// Parses a folder's name, the reverse of [`default_dir`](super::folder::default_dir).
fn parse_folder_name(path: &Path) -> Option<OtherFabric> {
    let name = std::str::from_utf8(path.file_name()?.as_bytes()).ok()?;
    let rest = name.strip_prefix(FABRIC_FOLDER_PREFIX)?;
    let (process, name) = match rest.split_once('@') {
        Some((process, name)) => (process, Some(name.to_owned())),
        None => (rest, None),
    };
    let (uid, namespace) = match process.split_once('-') {
        Some((uid, namespace)) => (uid, u64::from_str_radix(namespace, 16).ok()?),
        None => (process, INITIAL_PID_NAMESPACE),
    };
    Some(OtherFabric {
        path: path.to_owned(),
        uid: uid.parse().ok()?,
        pid_namespace: namespace,
        name,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_folders_say_whose_fabric_it_is() {
        let parsed = |name: &str| {
            parse_folder_name(&Path::new(PARENT_OF_FABRIC_FOLDERS).join(name))
                .map(|o| (o.uid, o.pid_namespace, o.name))
        };
        let initial = INITIAL_PID_NAMESPACE;
        assert_eq!(parsed("verbatim-0"), Some((0, initial, None)));
        assert_eq!(
            parsed("verbatim-1000@ci_1"),
            Some((1000, initial, Some("ci_1".to_owned())))
        );
        assert_eq!(
            parsed("verbatim-7-f0000123@b"),
            Some((7, 0xf000_0123, Some("b".to_owned())))
        );
        for other in ["verbatim-", "verbatim-x", "verbatim-1-zz", "other-1", ""] {
            assert_eq!(parsed(other), None, "{other:?}");
        }
    }
}
