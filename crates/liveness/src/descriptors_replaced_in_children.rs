//! Descriptors that end with their process, although a forked child inherits them.
//!
//! A connection lasts as long as its socket is open, and a socket takes part in its group's packets as long. A child
//! that inherited the socket would keep both after its parent has died. So the child replaces every such descriptor
//! with `/dev/null`. The descriptor number stays in use, because the objects that own it still exist.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

/// The descriptors to replace in children, and their replacement.
struct ForkedDescriptors {
    fds_replaced_in_child: Vec<RawFd>,
    dev_null: Option<OwnedFd>,
}

static FORKED_DESCRIPTORS: Mutex<ForkedDescriptors> = Mutex::new(ForkedDescriptors {
    fds_replaced_in_child: Vec::new(),
    dev_null: None,
});

thread_local! {
    /// The lock of `FORKED_DESCRIPTORS`, held across a fork in the forking thread and in its copy.
    static FORK_GUARD: RefCell<Option<MutexGuard<'static, ForkedDescriptors>>> = const { RefCell::new(None) };
}

fn lock_fds() -> MutexGuard<'static, ForkedDescriptors> {
    FORKED_DESCRIPTORS
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
}

/// Replaces the descriptor with `/dev/null` in children that are forked from now on. The caller calls
/// [`stop_replacing_in_children`] before it closes the descriptor.
///
/// # Errors
/// The error of opening `/dev/null`.
pub fn replace_by_dev_null_in_children(fd: impl AsFd) -> io::Result<()> {
    static HANDLERS: Once = Once::new();
    HANDLERS.call_once(|| {
        // SAFETY: the functions live as long as this library. The C library forgets them when the library is unloaded.
        unsafe {
            libc::pthread_atfork(
                Some(before_fork),
                Some(after_fork_in_parent),
                Some(after_fork_in_child),
            )
        };
    });
    let mut fds = lock_fds();
    if fds.dev_null.is_none() {
        fds.dev_null = Some(std::fs::File::open("/dev/null")?.into());
    }
    fds.fds_replaced_in_child.push(fd.as_fd().as_raw_fd());
    Ok(())
}

/// Undoes [`replace_by_dev_null_in_children`] for a descriptor that is about to be closed.
pub fn stop_replacing_in_children(fd: impl AsFd) {
    let fd = fd.as_fd().as_raw_fd();
    lock_fds().fds_replaced_in_child.retain(|&open| open != fd);
}

extern "C" fn before_fork() {
    FORK_GUARD.set(Some(lock_fds()));
}

extern "C" fn after_fork_in_parent() {
    drop(FORK_GUARD.take());
}

extern "C" fn after_fork_in_child() {
    let mut held = FORK_GUARD.take();
    if let Some(fds) = held.as_deref_mut() {
        for fd in std::mem::take(&mut fds.fds_replaced_in_child) {
            if let Some(null) = &fds.dev_null {
                // SAFETY: the call uses only descriptor numbers; the objects that own `fd` keep owning it.
                unsafe { libc::dup3(null.as_raw_fd(), fd, libc::O_CLOEXEC) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixDatagram;

    use super::*;

    #[test]
    fn a_child_does_not_keep_the_socket_of_its_parent() {
        let (kept, ended) = UnixDatagram::pair().unwrap();
        replace_by_dev_null_in_children(&ended).unwrap();
        let (mut end_read, end_write) = io::pipe().unwrap();
        let (mut begun_read, mut begun_write) = io::pipe().unwrap();
        // SAFETY: the child only uses pipes and exits.
        let child = unsafe { libc::fork() };
        if child == 0 {
            drop(end_write);
            let _ = begun_write.write(&[0]);
            let _ = end_read.read(&mut [0]);
            // SAFETY: no destructor of the parent's objects runs.
            unsafe { libc::_exit(0) };
        }
        begun_read.read_exact(&mut [0]).unwrap();
        stop_replacing_in_children(&ended);
        assert!(kept.send(b"open").is_ok());
        drop(ended);
        assert!(kept.send(b"closed").is_err(), "the child has it");
        drop(end_write);
        // SAFETY: a child of this process.
        unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
    }
}
