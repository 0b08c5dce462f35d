//! A file of sysfs that `verbatim run` shows to a program.

use std::path::PathBuf;

/// One file of sysfs, or a link.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SysfsFile {
    /// The path below `/sys`.
    pub path: String,
    /// The content at the path.
    pub content: SysfsContent,
}

/// The content at a path of sysfs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum SysfsContent {
    /// A file with this text, with the newline at its end.
    Text(String),
    /// A file with these bytes.
    Bytes(Vec<u8>),
    /// A link to this folder elsewhere, whose files change.
    ExternalFolderLink(PathBuf),
    /// A relative link to another folder of sysfs.
    Link(String),
}
