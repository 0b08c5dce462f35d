//! `syscall(2)`, by which some programs make the calls of which the C library has functions: libuv closes descriptors so.

use std::ffi::{c_int, c_long, c_void};
use std::ptr::with_exposed_provenance_mut;

use sockets::{program_calls, real_libc};

use crate::{FAILED, descriptors, send_and_receive, waiting};

/// The lower half of an argument's register, which is all that the kernel reads of an `int`.
#[expect(clippy::cast_possible_truncation)]
fn int(argument: c_long) -> c_int {
    argument as c_int
}

fn unsigned(argument: c_long) -> u32 {
    int(argument).cast_unsigned()
}

fn size(argument: c_long) -> usize {
    argument.cast_unsigned().try_into().unwrap_or(usize::MAX)
}

fn pointer<T>(argument: c_long) -> *mut T {
    with_exposed_provenance_mut(size(argument))
}

/// `syscall(2)`: a system call of which this library has the function goes there. There is no `io_uring`, which would move
/// bytes past this library. The arguments are there as far as the system call has some; the others are what lies in their
/// registers.
///
/// # Safety
/// That of the C library's function of this name.
// SAFETY: the name is the C library's own, and so are the arguments and the behaviour.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syscall(
    number: c_long,
    a: c_long,
    b: c_long,
    c: c_long,
    d: c_long,
    e: c_long,
    f: c_long,
) -> c_long {
    // SAFETY: the arguments are the caller's, as the system call wants them. The function of this name takes the same.
    unsafe {
        match number {
            libc::SYS_io_uring_setup => {
                real_libc::set_errno(libc::ENOSYS);
                FAILED.into()
            }
            libc::SYS_close => descriptors::close(int(a)).into(),
            libc::SYS_close_range => {
                descriptors::close_range(unsigned(a), unsigned(b), int(c)).into()
            }
            libc::SYS_dup => descriptors::dup(int(a)).into(),
            libc::SYS_dup3 => descriptors::dup3(int(a), int(b), int(c)).into(),
            libc::SYS_fcntl => descriptors::fcntl(int(a), int(b), c.cast_unsigned()).into(),
            libc::SYS_socket => descriptors::socket(int(a), int(b), int(c)).into(),
            libc::SYS_accept4 => {
                descriptors::accept4(int(a), pointer(b), pointer(c), int(d)).into()
            }
            libc::SYS_accept => descriptors::accept(int(a), pointer(b), pointer(c)).into(),
            libc::SYS_connect => descriptors::connect(int(a), pointer(b), unsigned(c)).into(),
            libc::SYS_shutdown => descriptors::shutdown(int(a), int(b)).into(),
            libc::SYS_getsockopt => {
                descriptors::getsockopt(int(a), int(b), int(c), pointer(d), pointer(e)).into()
            }
            libc::SYS_ioctl => {
                descriptors::ioctl(int(a), b.cast_unsigned(), c.cast_unsigned()).into()
            }
            libc::SYS_epoll_create1 => waiting::epoll_create1(int(a)).into(),
            libc::SYS_epoll_ctl => waiting::epoll_ctl(int(a), int(b), int(c), pointer(d)).into(),
            libc::SYS_epoll_pwait => {
                waiting::epoll_pwait(int(a), pointer(b), int(c), int(d), pointer(e)).into()
            }
            #[cfg(target_arch = "x86_64")]
            libc::SYS_dup2 => descriptors::dup2(int(a), int(b)).into(),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_epoll_create => waiting::epoll_create(int(a)).into(),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_epoll_wait => waiting::epoll_wait(int(a), pointer(b), int(c), int(d)).into(),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_poll => waiting::poll(pointer(a), b.cast_unsigned(), int(c)).into(),
            // These change the user of this thread alone, where the C library's functions change that of all threads.
            libc::SYS_setuid | libc::SYS_setreuid | libc::SYS_setresuid => {
                let effective = if number == libc::SYS_setuid { a } else { b };
                program_calls::before_user_change(unsigned(effective));
                real_libc::syscall(number, a, b, c, d, e, f)
            }
            _ => move_bytes_by_number(number, a, b, c, d, e, f),
        }
    }
}

/// The system calls that move bytes, and those of which this library has no function.
///
/// # Safety
/// That of `syscall(2)`.
unsafe fn move_bytes_by_number(
    number: c_long,
    a: c_long,
    b: c_long,
    c: c_long,
    d: c_long,
    e: c_long,
    f: c_long,
) -> c_long {
    use send_and_receive as data;
    let (fd, buffer): (c_int, *mut c_void) = (int(a), pointer(b));
    // SAFETY: contract of this function.
    let moved = unsafe {
        match number {
            libc::SYS_read => data::read(fd, buffer, size(c)),
            libc::SYS_write => data::write(fd, buffer, size(c)),
            libc::SYS_readv => data::readv(fd, pointer(b), int(c)),
            libc::SYS_writev => data::writev(fd, pointer(b), int(c)),
            libc::SYS_recvfrom => {
                data::recvfrom(fd, buffer, size(c), int(d), pointer(e), pointer(f))
            }
            libc::SYS_sendto => data::sendto(fd, buffer, size(c), int(d), pointer(e), unsigned(f)),
            libc::SYS_recvmsg => data::recvmsg(fd, pointer(b), int(c)),
            libc::SYS_sendmsg => data::sendmsg(fd, pointer(b), int(c)),
            libc::SYS_sendfile => data::sendfile(fd, int(b), pointer(c), size(d)),
            libc::SYS_splice => {
                data::splice(fd, pointer(b), int(c), pointer(d), size(e), unsigned(f))
            }
            _ => return real_libc::syscall(number, a, b, c, d, e, f),
        }
    };
    c_long::try_from(moved).unwrap_or(c_long::MAX)
}
