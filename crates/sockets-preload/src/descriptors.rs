//! Functions that make, copy and close descriptors, and those that change the process of a connection.

use std::ffi::{c_char, c_int, c_ulong, c_void};

use libc::{sockaddr, socklen_t, uid_t};
use sockets::{program_calls, real_libc};

use crate::FAILED;

/// The request of `sockatmark(3)` (asm-generic/sockios.h).
const SIOCATMARK: c_ulong = 0x8905;

macro_rules! export {
    ($( $(#[$doc:meta])* fn $name:ident($( $arg:ident: $type:ty ),*) -> c_int $body:block )*) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            /// That of the C library's function of this name.
            // SAFETY: the name is the C library's own, and so are the arguments and the behaviour.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($( $arg: $type ),*) -> c_int {
                // SAFETY: the arguments are the caller's, as the C library's function wants them.
                unsafe { $body }
            }
        )*
    };
}

/// `fdopen(3)`: the C library's streams move bytes without calling `read` or `write` of this library.
///
/// # Safety
/// That of the C library's function of this name.
// SAFETY: the name is the C library's own, and so are the arguments and the behaviour.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdopen(fd: c_int, mode: *const c_char) -> *mut libc::FILE {
    program_calls::demote_for_other_reads(fd);
    // SAFETY: as the caller calls it.
    unsafe { real_libc::fdopen(fd, mode) }
}

/// `fclose(3)`: the C library closes the descriptor without calling `close` of this library. Buffered bytes go first,
/// because the end of the stream may be sent before the descriptor is closed.
///
/// # Safety
/// That of the C library's function of this name.
// SAFETY: the name is the C library's own, and so are the arguments and the behaviour.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fclose(stream: *mut libc::FILE) -> c_int {
    if !stream.is_null() {
        // SAFETY: the caller's stream. The C library's `fclose` reports a failure to write them again.
        let _ = unsafe { libc::fflush(stream) };
        // SAFETY: the caller's stream.
        program_calls::before_close(unsafe { libc::fileno(stream) });
    }
    // SAFETY: as the caller calls it.
    unsafe { real_libc::fclose(stream) }
}

export! {
    /// `socket(2)`
    fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
        let fd = real_libc::socket(domain, kind, protocol);
        program_calls::on_socket(fd, domain, kind);
        fd
    }
    /// `accept(2)`
    fn accept(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
        let new = real_libc::accept(fd, addr, len);
        program_calls::on_accept(fd, new);
        new
    }
    /// `accept4(2)`
    fn accept4(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int {
        let new = real_libc::accept4(fd, addr, len, flags);
        program_calls::on_accept(fd, new);
        new
    }
    /// `connect(2)`
    fn connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
        program_calls::before_connect(fd);
        real_libc::connect(fd, addr, len)
    }
    /// `shutdown(2)`
    fn shutdown(fd: c_int, how: c_int) -> c_int {
        program_calls::before_shutdown(fd);
        real_libc::shutdown(fd, how)
    }
    /// `close(2)`
    fn close(fd: c_int) -> c_int {
        program_calls::before_close(fd);
        real_libc::close(fd)
    }
    /// `close(2)`
    fn __close(fd: c_int) -> c_int {
        program_calls::before_close(fd);
        real_libc::close(fd)
    }
    /// `close_range(2)`
    fn close_range(first: u32, last: u32, flags: c_int) -> c_int {
        if flags & c_int::try_from(libc::CLOSE_RANGE_CLOEXEC).unwrap_or(0) == 0 {
            program_calls::before_close_range(first, last);
        }
        real_libc::close_range(first, last, flags)
    }
    /// `dup(2)`
    fn dup(fd: c_int) -> c_int {
        let new = real_libc::dup(fd);
        program_calls::on_dup(fd, new);
        new
    }
    /// `dup2(2)`
    fn dup2(fd: c_int, to: c_int) -> c_int {
        if fd != to {
            program_calls::before_close(to);
        }
        let new = real_libc::dup2(fd, to);
        program_calls::on_dup(fd, new);
        new
    }
    /// `dup3(2)`
    fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int {
        if fd != to {
            program_calls::before_close(to);
        }
        let new = real_libc::dup3(fd, to, flags);
        program_calls::on_dup(fd, new);
        new
    }
    /// `fcntl(2)`: the argument is there for some commands only, and then in this register.
    fn fcntl(fd: c_int, command: c_int, arg: c_ulong) -> c_int {
        let result = real_libc::fcntl(fd, command, arg);
        if matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) {
            program_calls::on_dup(fd, result);
        }
        result
    }
    /// `fcntl(2)`
    fn fcntl64(fd: c_int, command: c_int, arg: c_ulong) -> c_int {
        let result = real_libc::fcntl64(fd, command, arg);
        if matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) {
            program_calls::on_dup(fd, result);
        }
        result
    }
    /// `getsockopt(2)`: `SO_ERROR` is also the error that this library keeps for the program.
    fn getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t) -> c_int {
        let result = real_libc::getsockopt(fd, level, name, value, len);
        let is_error = (result, level, name) == (0, libc::SOL_SOCKET, libc::SO_ERROR);
        if is_error && usize::try_from(*len).unwrap_or(0) >= size_of::<c_int>() && let Some(errno) = program_calls::take_kept_errno(fd) {
            value.cast::<c_int>().write_unaligned(errno);
        }
        result
    }
    /// `sockatmark(3)`
    fn sockatmark(fd: c_int) -> c_int {
        let mut is_at_mark: c_int = 0;
        match ioctl(fd, SIOCATMARK, (&raw mut is_at_mark).expose_provenance() as c_ulong) {
            0 => is_at_mark,
            _ => FAILED,
        }
    }
    /// `ioctl(2)`: the argument as above.
    fn ioctl(fd: c_int, request: c_ulong, arg: c_ulong) -> c_int {
        let value = match request {
            libc::FIONREAD => program_calls::unread_bytes_unknown_to_kernel(fd),
            SIOCATMARK if program_calls::has_bytes_before_mark_unknown_to_kernel(fd) => Some(0),
            _ => None,
        };
        if let Some(value) = value {
            let to: *mut c_int = std::ptr::with_exposed_provenance_mut(usize::try_from(arg).unwrap_or(0));
            if to.is_null() {
                real_libc::set_errno(libc::EFAULT);
                return FAILED;
            }
            *to = c_int::try_from(value).unwrap_or(c_int::MAX);
            return 0;
        }
        real_libc::ioctl(fd, request, arg)
    }
    /// `setuid(2)`
    fn setuid(uid: uid_t) -> c_int {
        program_calls::before_user_change(uid);
        real_libc::setuid(uid)
    }
    /// `seteuid(2)`
    fn seteuid(effective: uid_t) -> c_int {
        program_calls::before_user_change(effective);
        real_libc::seteuid(effective)
    }
    /// `setreuid(2)`
    fn setreuid(real: uid_t, effective: uid_t) -> c_int {
        program_calls::before_user_change(effective);
        real_libc::setreuid(real, effective)
    }
    /// `setresuid(2)`
    fn setresuid(real: uid_t, effective: uid_t, saved: uid_t) -> c_int {
        program_calls::before_user_change(effective);
        real_libc::setresuid(real, effective, saved)
    }
    /// `execve(2)`
    fn execve(path: *const c_char, argv: *const *const c_char, env: *const *const c_char) -> c_int {
        program_calls::before_exec();
        real_libc::execve(path, argv, env)
    }
    /// `execv(3)`
    fn execv(path: *const c_char, argv: *const *const c_char) -> c_int {
        program_calls::before_exec();
        real_libc::execv(path, argv)
    }
    /// `execvp(3)`
    fn execvp(file: *const c_char, argv: *const *const c_char) -> c_int {
        program_calls::before_exec();
        real_libc::execvp(file, argv)
    }
    /// `execvpe(3)`
    fn execvpe(file: *const c_char, argv: *const *const c_char, env: *const *const c_char) -> c_int {
        program_calls::before_exec();
        real_libc::execvpe(file, argv, env)
    }
}
