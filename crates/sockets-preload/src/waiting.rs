//! Functions that wait for descriptors.

use std::ffi::c_int;
use std::time::{Duration, Instant};

use libc::{epoll_event, fd_set, nfds_t, pollfd, sigset_t, timespec, timeval};
use sockets::{SelectSets, program_calls, real_libc};

use crate::FAILED;

/// When a timeout in milliseconds ends; `None`: never.
fn deadline_after_ms(timeout: c_int) -> Option<Instant> {
    let ms = u64::try_from(timeout).ok()?;
    Instant::now().checked_add(Duration::from_millis(ms))
}

/// When a timeout ends; `None`: never.
///
/// # Safety
/// NULL, or a time.
unsafe fn deadline_after_timespec(timeout: *const timespec) -> Option<Instant> {
    // SAFETY: contract of this function.
    let timeout = unsafe { timeout.as_ref() }?;
    let secs = Duration::from_secs(u64::try_from(timeout.tv_sec).unwrap_or(0));
    Instant::now()
        .checked_add(secs + Duration::from_nanos(u64::try_from(timeout.tv_nsec).unwrap_or(0)))
}

/// Milliseconds as a time; `None`: for ever.
fn ms_to_timespec(ms: c_int) -> Option<timespec> {
    let ms = i64::from(ms);
    (ms >= 0).then_some(timespec {
        tv_sec: ms / 1000,
        tv_nsec: ms % 1000 * 1_000_000,
    })
}

fn timespec_ptr(time: Option<&timespec>) -> *const timespec {
    time.map_or(std::ptr::null(), std::ptr::from_ref)
}

/// The array of a program.
///
/// # Safety
/// `first` points at `count` entries.
unsafe fn slice_of_program_array<'a, T>(first: *mut T, count: usize) -> Option<&'a mut [T]> {
    if first.is_null() || count == 0 {
        return None;
    }
    // SAFETY: contract of this function.
    Some(unsafe { std::slice::from_raw_parts_mut(first, count) })
}

/// `epoll_create(2)`
///
/// # Safety
/// That of the C library's function of this name.
// SAFETY: the name is the C library's own, and so are the arguments and the behaviour.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_create(size: c_int) -> c_int {
    // SAFETY: as the caller calls it.
    let fd = unsafe { real_libc::epoll_create(size) };
    program_calls::on_epoll_create(fd);
    fd
}

/// `epoll_create1(2)`
///
/// # Safety
/// That of the C library's function of this name.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_create1(flags: c_int) -> c_int {
    // SAFETY: as the caller calls it.
    let fd = unsafe { real_libc::epoll_create1(flags) };
    program_calls::on_epoll_create(fd);
    fd
}

/// `epoll_ctl(2)`
///
/// # Safety
/// That of the C library's function of this name.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_ctl(
    epoll: c_int,
    op: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    // SAFETY: NULL, or an event.
    let asked = unsafe { event.as_ref() }.copied();
    match program_calls::epoll_control_if_managed(epoll, op, fd, asked) {
        Some(done) => done,
        // SAFETY: as the caller calls it.
        None => unsafe { real_libc::epoll_ctl(epoll, op, fd, event) },
    }
}

/// `epoll_wait(2)`
///
/// # Safety
/// That of the C library's function of this name.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_wait(
    epoll: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout: c_int,
) -> c_int {
    // SAFETY: room for so many events.
    let list = unsafe { slice_of_program_array(events, usize::try_from(max).unwrap_or(0)) };
    let waited = list.and_then(|list| {
        program_calls::epoll_wait_if_managed(
            epoll,
            list,
            deadline_after_ms(timeout),
            |events, ms| {
                let max = c_int::try_from(events.len()).unwrap_or(c_int::MAX);
                // SAFETY: room for so many events.
                unsafe { real_libc::epoll_wait(epoll, events.as_mut_ptr(), max, ms) }
            },
        )
    });
    // SAFETY: as the caller calls it.
    waited.unwrap_or_else(|| unsafe { real_libc::epoll_wait(epoll, events, max, timeout) })
}

/// `epoll_pwait(2)`
///
/// # Safety
/// That of the C library's function of this name.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_pwait(
    epoll: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout: c_int,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: room for so many events.
    let list = unsafe { slice_of_program_array(events, usize::try_from(max).unwrap_or(0)) };
    let waited = list.and_then(|list| {
        program_calls::epoll_wait_if_managed(
            epoll,
            list,
            deadline_after_ms(timeout),
            |events, ms| {
                let max = c_int::try_from(events.len()).unwrap_or(c_int::MAX);
                // SAFETY: room for so many events; the mask is the caller's.
                unsafe { real_libc::epoll_pwait(epoll, events.as_mut_ptr(), max, ms, mask) }
            },
        )
    });
    // SAFETY: as the caller calls it.
    waited.unwrap_or_else(|| unsafe { real_libc::epoll_pwait(epoll, events, max, timeout, mask) })
}

/// `epoll_pwait2(2)`
///
/// # Safety
/// That of the C library's function of this name.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_pwait2(
    epoll: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: room for so many events; NULL, or a time.
    let (list, deadline) = unsafe {
        (
            slice_of_program_array(events, usize::try_from(max).unwrap_or(0)),
            deadline_after_timespec(timeout),
        )
    };
    let waited = list.and_then(|list| {
        program_calls::epoll_wait_if_managed(epoll, list, deadline, |events, ms| {
            let max = c_int::try_from(events.len()).unwrap_or(c_int::MAX);
            // SAFETY: room for so many events; the mask is the caller's.
            unsafe { real_libc::epoll_pwait(epoll, events.as_mut_ptr(), max, ms, mask) }
        })
    });
    // SAFETY: as the caller calls it.
    waited.unwrap_or_else(|| unsafe { real_libc::epoll_pwait2(epoll, events, max, timeout, mask) })
}

/// `poll(2)`
///
/// # Safety
/// That of the C library's function of this name.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    // SAFETY: so many entries.
    match unsafe { slice_of_program_array(fds, usize::try_from(count).unwrap_or(0)) } {
        Some(list) => program_calls::poll_wait(list, deadline_after_ms(timeout), |list, ms| {
            // SAFETY: so many entries.
            unsafe { real_libc::poll(list.as_mut_ptr(), count, ms) }
        }),
        // SAFETY: as the caller calls it.
        None => unsafe { real_libc::poll(fds, count, timeout) },
    }
}

/// `poll(2)`, with the size of the array
///
/// # Safety
/// That of the C library's function of this name.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __poll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: c_int,
    _size: usize,
) -> c_int {
    // SAFETY: as the caller calls it.
    unsafe { poll(fds, count, timeout) }
}

/// `ppoll(2)`
///
/// # Safety
/// That of the C library's function of this name.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ppoll(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: so many entries; NULL, or a time.
    let (list, deadline) = unsafe {
        (
            slice_of_program_array(fds, usize::try_from(count).unwrap_or(0)),
            deadline_after_timespec(timeout),
        )
    };
    match list {
        Some(list) => program_calls::poll_wait(list, deadline, |list, ms| {
            let time = ms_to_timespec(ms);
            // SAFETY: so many entries; the mask is the caller's.
            unsafe { real_libc::ppoll(list.as_mut_ptr(), count, timespec_ptr(time.as_ref()), mask) }
        }),
        // SAFETY: as the caller calls it.
        None => unsafe { real_libc::ppoll(fds, count, timeout, mask) },
    }
}

/// `ppoll(2)`, with the size of the array
///
/// # Safety
/// That of the C library's function of this name.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __ppoll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
    _size: usize,
) -> c_int {
    // SAFETY: as the caller calls it.
    unsafe { ppoll(fds, count, timeout, mask) }
}

/// `select(2)`
///
/// # Safety
/// That of the C library's function of this name.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn select(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    // SAFETY: NULL, or a time.
    let asked = unsafe { timeout.as_ref() }.map(|t| timespec {
        tv_sec: t.tv_sec,
        tv_nsec: t.tv_usec * 1000,
    });
    // SAFETY: NULL, or sets; NULL, or a time.
    let waited = unsafe {
        select_until_unless_left_to_kernel(
            count,
            [read, write, except],
            timespec_ptr(asked.as_ref()),
            std::ptr::null(),
        )
    };
    // SAFETY: as the caller calls it.
    waited.unwrap_or_else(|| unsafe { real_libc::select(count, read, write, except, timeout) })
}

/// `pselect(2)`
///
/// # Safety
/// That of the C library's function of this name.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pselect(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: NULL, or sets; NULL, or a time; NULL, or a mask.
    let waited =
        unsafe { select_until_unless_left_to_kernel(count, [read, write, except], timeout, mask) };
    // SAFETY: as the caller calls it.
    waited
        .unwrap_or_else(|| unsafe { real_libc::pselect(count, read, write, except, timeout, mask) })
}

/// # Safety
/// The arguments of `pselect(2)`.
unsafe fn select_until_unless_left_to_kernel(
    count: c_int,
    [read, write, except]: [*mut fd_set; 3],
    timeout: *const timespec,
    mask: *const sigset_t,
) -> Option<c_int> {
    // SAFETY: contract of this function.
    let (sets, deadline) = unsafe {
        (
            [read.as_mut(), write.as_mut(), except.as_mut()],
            deadline_after_timespec(timeout),
        )
    };
    let mut sets = SelectSets { sets, nfds: count };
    program_calls::select_wait_if_managed(&mut sets, deadline, |list, ms| {
        let Ok(count) = nfds_t::try_from(list.len()) else {
            return FAILED;
        };
        let time = ms_to_timespec(ms);
        // SAFETY: so many entries; the mask is the caller's.
        unsafe { real_libc::ppoll(list.as_mut_ptr(), count, timespec_ptr(time.as_ref()), mask) }
    })
}
