//! Creates a mount namespace for the program to run, without root.
//!
//! A process with CAP_SYS_ADMIN unshares only the mount namespace. Other processes need a user namespace for this,
//! and all programs of a user must be in the *same* user namespace. The reason is that one-sided verbs access the
//! private memory of other processes. The kernel forbids this access if the other process's user namespace is neither
//! the same nor a descendant (`ptrace(2)`, "Ptrace access mode checking").
//!
//! The first program therefore creates the user namespace and writes its inode number to a file, the note. Later
//! programs look for a process in this namespace and enter it. The namespace ends with its last process, and the
//! kernel reuses its number. The number alone therefore does not identify the namespace. A process in this user's
//! namespace has the mounts of the view. If mounts were refused, its environment has the number in
//! [`USER_NAMESPACE_INODE_VARIABLE`].

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use rustix::fs::{FlockOperation, Mode, OFlags, flock, fstat, open};
use rustix::io::Errno;
use rustix::mount::{MountPropagationFlags, mount_change};
use rustix::process::{getegid, geteuid};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

/// Environment variable that tells a program in the user namespace the number of this namespace.
pub(super) const USER_NAMESPACE_INODE_VARIABLE: &str = "VERBATIM_NAMESPACE";

/// Source name of the view's mounts: a file system without a device may have any source name.
pub(super) const MOUNT_SOURCE: &str = "verbatim";

/// The outcome of [`enter_own_mount_namespace`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EnterResult {
    /// The process has its own mounts now.
    OwnMounts,
    /// This process was started in the user namespace, and shares the mounts of the program that started it.
    InheritedMounts,
}

/// The lock on the note. While a process holds the lock, no other program of this user enters the namespace. Another
/// program recognizes this process only by the mounts of the view, or by a program with
/// [`USER_NAMESPACE_INODE_VARIABLE`]. The process holds the lock until one of these exists. The program to run does not
/// inherit the lock.
#[derive(Debug)]
pub(super) struct UserNamespaceFileLock {
    #[expect(dead_code, reason = "it is the lock")]
    locked_file: File,
}

/// Moves this process, which must have one thread, to a mount namespace of its own. If that needs a user namespace,
/// the function puts the lock into `door`, even if a later step is refused.
///
/// # Errors
/// Returns an error if the system does not allow the namespace; the message names the refused step.
pub(super) fn enter_own_mount_namespace(
    door: &mut Option<UserNamespaceFileLock>,
) -> Result<EnterResult> {
    match unshare(UnshareFlags::NEWNS) {
        Ok(()) => {}
        Err(Errno::PERM) => {
            if join_or_create_user_namespace(door)? == EnterResult::InheritedMounts {
                return Ok(EnterResult::InheritedMounts);
            }
            unshare(UnshareFlags::NEWNS).context("a mount namespace is refused")?;
        }
        Err(err) => return Err(err).context("a mount namespace is refused"),
    }
    // Mounts that the system adds later are visible here, and mounts of this process are not visible outside.
    let flags = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    mount_change("/", flags).context("mounts cannot be made private")?;
    Ok(EnterResult::OwnMounts)
}

/// Enters this user's namespace, or creates it.
fn join_or_create_user_namespace(door: &mut Option<UserNamespaceFileLock>) -> Result<EnterResult> {
    let mut note = open_namespace_number_file(&namespace_number_file_path())?;
    // Take the lock, because a program that starts at the same time must find the namespace of this one.
    flock(&note, FlockOperation::LockExclusive).context("cannot lock the note")?;
    let mut number = String::new();
    note.read_to_string(&mut number)
        .context("cannot read the note")?;
    if !number.is_empty() {
        if process_is_in_user_namespace(Path::new("/proc/self"), &number) {
            return Ok(EnterResult::InheritedMounts);
        }
        if let Some(namespace) = open_user_namespace_by_inode(&number) {
            let user = Some(LinkNameSpaceType::User);
            move_into_link_name_space(namespace.as_fd(), user)
                .context("this user's namespace does not let it in")?;
            *door = Some(UserNamespaceFileLock { locked_file: note });
            return Ok(EnterResult::OwnMounts);
        }
    }
    let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
    unshare(UnshareFlags::NEWUSER).context("a user namespace is refused")?;
    // user_namespaces(7): groups may be mapped without privilege once setgroups(2) is denied.
    for (file, text) in [
        ("setgroups", "deny".to_owned()),
        ("uid_map", format!("{uid} {uid} 1")),
        ("gid_map", format!("{gid} {gid} 1")),
    ] {
        fs::write(Path::new("/proc/self").join(file), text)
            .with_context(|| format!("/proc/self/{file} is refused"))?;
    }
    let mut remember = || -> io::Result<()> {
        note.set_len(0)?;
        note.rewind()?;
        note.write_all(own_user_namespace_inode()?.as_encoded_bytes())
    };
    remember().context("cannot write the note")?;
    *door = Some(UserNamespaceFileLock { locked_file: note });
    Ok(EnterResult::OwnMounts)
}

/// Returns the inode number of the user namespace in which this process is.
pub(super) fn own_user_namespace_inode() -> io::Result<OsString> {
    fs::read_link("/proc/self/ns/user").map(PathBuf::into_os_string)
}

/// Returns the path of the file with the number of this user's namespace.
fn namespace_number_file_path() -> PathBuf {
    PathBuf::from(format!("/dev/shm/verbatim-{}.userns", geteuid().as_raw()))
}

fn open_namespace_number_file(path: &Path) -> Result<File> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = open(path, flags, Mode::RUSR | Mode::WUSR);
    let note = opened.with_context(|| format!("cannot open {}", path.display()))?;
    let owner = fstat(&note)?.st_uid;
    if owner != geteuid().as_raw() {
        bail!("{} belongs to user {owner}", path.display());
    }
    Ok(note.into())
}

/// Opens the user namespace with the given number of this user, by a process that is in it.
fn open_user_namespace_by_inode(number: &str) -> Option<File> {
    fs::read_dir("/proc")
        .ok()?
        .filter_map(Result::ok)
        .filter(|entry| entry.file_name().as_encoded_bytes()[0].is_ascii_digit())
        .map(|entry| entry.path())
        .filter(|process| process_is_in_user_namespace(process, number))
        // The process may have ended meanwhile.
        .find_map(|process| File::open(process.join("ns/user")).ok())
}

/// Returns true if a process is in this user's namespace with the given number; `process` is its folder in `/proc`.
fn process_is_in_user_namespace(process: &Path, number: &str) -> bool {
    let says = |file: &str, what: &str| {
        let text = fs::read(process.join(file)).unwrap_or_default();
        text.windows(what.len()).any(|part| part == what.as_bytes())
    };
    // The links of other users' processes cannot be read.
    fs::read_link(process.join("ns/user")).is_ok_and(|to| to.as_os_str() == number)
        && (says("mountinfo", &format!(" - tmpfs {MOUNT_SOURCE} "))
            || says(
                "environ",
                &format!("{USER_NAMESPACE_INODE_VARIABLE}={number}\0"),
            ))
}

fn unshare(flags: UnshareFlags) -> rustix::io::Result<()> {
    debug_assert!(!flags.contains(UnshareFlags::FILES));
    #[expect(
        deprecated,
        reason = "only UnshareFlags::FILES makes it unsafe, and unsafe code is forbidden here"
    )]
    rustix::thread::unshare(flags)
}
