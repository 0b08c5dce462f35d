//! A mount namespace of the program's own, without root.
//!
//! Whoever may unshares the mount namespace only. Others need a user namespace for that, and all programs of a
//! user must be in the *same* one: the kernel lets no process of one user namespace look into the memory of a
//! process of another that is not below it (`ptrace(2)`, "Ptrace access mode checking"), and that is how
//! one-sided verbs reach private memory. So the first program makes the user namespace and notes its number,
//! and those that come later look for a process that lives in it and enter. It ends with its last process, and
//! the kernel gives its number away again, so that the number alone does not say whose a namespace is: a process in
//! ours has the mounts of the view, or where they were refused, was told of it by [`VARIABLE`].

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

/// Says to a program in the user namespace which one that is.
pub(super) const VARIABLE: &str = "VERBATIM_NAMESPACE";

/// What mounts of ours say that they are of: a file system without a device may name anything.
pub(super) const MOUNT_SOURCE: &str = "verbatim";

/// How it came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entered {
    /// The mounts of this process are its own now.
    New,
    /// It was started by a program that is in the user namespace already, and shares that one's mounts.
    Inherited,
}

/// While there is one, no other program of this user enters: it would not know this one for what it is before the
/// mounts of the view or the program with [`VARIABLE`] are there. The program does not inherit it.
#[derive(Debug)]
pub(super) struct Door {
    #[expect(dead_code, reason = "it is the lock")]
    note: File,
}

/// Gives this process, which must have one thread, a mount namespace of its own, and puts a lock into `door` if it
/// enters a user namespace for that, also if the rest is refused.
///
/// # Errors
/// When the system does not allow it; the message says what was refused.
pub(super) fn enter(door: &mut Option<Door>) -> Result<Entered> {
    match unshare(UnshareFlags::NEWNS) {
        Ok(()) => {}
        Err(Errno::PERM) => {
            if enter_users(door)? == Entered::Inherited {
                return Ok(Entered::Inherited);
            }
            unshare(UnshareFlags::NEWNS).context("a mount namespace is refused")?;
        }
        Err(err) => return Err(err).context("a mount namespace is refused"),
    }
    // What the system mounts later is still seen here, and not the other way round.
    let flags = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    mount_change("/", flags).context("mounts cannot be made private")?;
    Ok(Entered::New)
}

/// Enters this user's namespace, or makes it.
fn enter_users(door: &mut Option<Door>) -> Result<Entered> {
    let mut note = note(&note_path())?;
    // Who comes at the same time must find this program.
    flock(&note, FlockOperation::LockExclusive).context("cannot lock the note")?;
    let mut number = String::new();
    note.read_to_string(&mut number)
        .context("cannot read the note")?;
    if !number.is_empty() {
        if lives_in(Path::new("/proc/self"), &number) {
            return Ok(Entered::Inherited);
        }
        if let Some(namespace) = find(&number) {
            let user = Some(LinkNameSpaceType::User);
            move_into_link_name_space(namespace.as_fd(), user)
                .context("this user's namespace does not let it in")?;
            *door = Some(Door { note });
            return Ok(Entered::New);
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
        note.write_all(own()?.as_encoded_bytes())
    };
    remember().context("cannot write the note")?;
    *door = Some(Door { note });
    Ok(Entered::New)
}

/// The number of the user namespace that this process is in.
pub(super) fn own() -> io::Result<OsString> {
    fs::read_link("/proc/self/ns/user").map(PathBuf::into_os_string)
}

/// The file with the number of this user's namespace.
fn note_path() -> PathBuf {
    PathBuf::from(format!("/dev/shm/verbatim-{}.userns", geteuid().as_raw()))
}

fn note(path: &Path) -> Result<File> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = open(path, flags, Mode::RUSR | Mode::WUSR);
    let note = opened.with_context(|| format!("cannot open {}", path.display()))?;
    let owner = fstat(&note)?.st_uid;
    if owner != geteuid().as_raw() {
        bail!("{} belongs to user {owner}", path.display());
    }
    Ok(note.into())
}

/// This user's namespace, which had that number, by way of a process that lives in it.
fn find(number: &str) -> Option<File> {
    fs::read_dir("/proc")
        .ok()?
        .filter_map(Result::ok)
        .filter(|entry| entry.file_name().as_encoded_bytes()[0].is_ascii_digit())
        .map(|entry| entry.path())
        .filter(|process| lives_in(process, number))
        // The process may have gone meanwhile.
        .find_map(|process| File::open(process.join("ns/user")).ok())
}

/// Is a process, a folder of `/proc`, in this user's namespace, which had that number?
fn lives_in(process: &Path, number: &str) -> bool {
    let says = |file: &str, what: &str| {
        let text = fs::read(process.join(file)).unwrap_or_default();
        text.windows(what.len()).any(|part| part == what.as_bytes())
    };
    // Other users' links cannot be read.
    fs::read_link(process.join("ns/user")).is_ok_and(|to| to.as_os_str() == number)
        && (says("mountinfo", &format!(" - tmpfs {MOUNT_SOURCE} "))
            || says("environ", &format!("{VARIABLE}={number}\0")))
}

fn unshare(flags: UnshareFlags) -> rustix::io::Result<()> {
    debug_assert!(!flags.contains(UnshareFlags::FILES));
    #[expect(
        deprecated,
        reason = "only UnshareFlags::FILES makes it unsafe, and unsafe code is forbidden here"
    )]
    rustix::thread::unshare(flags)
}
