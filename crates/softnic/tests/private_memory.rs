//! Registered private memory: peers can map its pages, and its program cannot tell.
//!
//! One test, in a process of its own: pages are shared only while other threads sleep.

use std::ffi::c_void;
use std::io::{Read, Write};
use std::time::{Duration, Instant};

use verbs_abi::*;

const PAGE: usize = 4096;
const REMOTE: i32 = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;

/// Pages as `mmap(2)` gives them; never unmapped.
struct Pages {
    at: *mut u8,
    len: usize,
}

impl Pages {
    fn new(count: usize) -> Self {
        let len = count * PAGE;
        // SAFETY: new pages at an address of the kernel's choice.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(at, libc::MAP_FAILED);
        Self { at: at.cast(), len }
    }

    fn set(&self, at: usize, value: u8) {
        assert!(at < self.len);
        // SAFETY: within the pages.
        unsafe { self.at.add(at).write_volatile(value) };
    }

    fn get(&self, at: usize) -> u8 {
        assert!(at < self.len);
        // SAFETY: within the pages.
        unsafe { self.at.add(at).read_volatile() }
    }

    fn fill(&self) {
        for (at, value) in (0..self.len).zip((0..=250).cycle()) {
            self.set(at, value);
        }
    }

    #[track_caller]
    fn is_filled(&self) {
        for (at, value) in (0..self.len).zip((0..=250).cycle()) {
            assert_eq!(self.get(at), value, "byte {at}");
        }
    }

    /// Returns the number of pages that are those of a file that peers can map.
    fn shared(&self) -> usize {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let (start, end) = (self.at.addr(), self.at.addr() + self.len);
        let bytes: usize = maps
            .lines()
            .filter(|line| line.contains("verbatim-pages"))
            .filter_map(|line| line.split_once(' ')?.0.split_once('-'))
            .map(|(from, to)| {
                let from = usize::from_str_radix(from, 16).unwrap().max(start);
                usize::from_str_radix(to, 16)
                    .unwrap()
                    .min(end)
                    .saturating_sub(from)
            })
            .sum();
        bytes / PAGE
    }
}

/// A protection domain of the software NIC; lasts as long as the process.
struct Pd(*mut ibv_pd);

impl Pd {
    fn new() -> Self {
        let symbols = softnic::symbols();
        // SAFETY: as the man pages say; nothing is given back.
        unsafe {
            let list = (symbols.ibv_get_device_list)(std::ptr::null_mut());
            let context = (symbols.ibv_open_device)(*list);
            assert!(!context.is_null());
            let pd = (symbols.ibv_alloc_pd)(context);
            assert!(!pd.is_null());
            Self(pd)
        }
    }

    fn register(&self, at: *mut u8, len: usize) -> *mut ibv_mr {
        // SAFETY: a live domain; the range is checked.
        let mr =
            unsafe { (softnic::symbols().ibv_reg_mr)(self.0, at.cast::<c_void>(), len, REMOTE) };
        assert!(!mr.is_null(), "{}", std::io::Error::last_os_error());
        mr
    }
}

fn deregister(mr: *mut ibv_mr) {
    // SAFETY: a live region, given back once.
    assert_eq!(unsafe { (softnic::symbols().ibv_dereg_mr)(mr) }, 0);
}

/// Runs `child` in a forked process, which must end without a panic.
fn in_a_fork(child: impl FnOnce()) -> impl FnOnce() {
    // SAFETY: the other threads of this process sleep, and hold no locks.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child));
        // SAFETY: ends the child without the parent's handlers.
        unsafe { libc::_exit(i32::from(done.is_err())) };
    }
    move || {
        let mut status = 0;
        // SAFETY: our child.
        assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
        assert_eq!(status, 0, "the child failed");
    }
}

/// Returns true if this process can make threads that write to a page wait.
fn userfaultfd_works() -> bool {
    const USER_MODE_ONLY: i32 = 1;
    // SAFETY: makes a descriptor, and closes it.
    unsafe {
        let fd = libc::syscall(libc::SYS_userfaultfd, USER_MODE_ONLY);
        libc::close(i32::try_from(fd).unwrap());
        fd >= 0
    }
}

/// Waits until pages are shared, which is once the harness's own thread sleeps.
fn wait_for_the_harness(pd: &Pd) {
    let pages = Pages::new(1);
    let start = Instant::now();
    loop {
        let mr = pd.register(pages.at, PAGE);
        let shared = pages.shared();
        deregister(mr);
        if shared == 1 {
            return;
        }
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "the pages stay private"
        );
    }
}

fn pages_are_shared_while_a_region_lies_on_them(pd: &Pd, shared: bool) {
    let count = |pages: usize| if shared { pages } else { 0 };
    let pages = Pages::new(4);
    pages.fill();
    if shared {
        wait_for_the_harness(pd);
    }
    // Part of the second page, the third, and the first bytes of the fourth.
    let first = pd.register(pages.at.wrapping_add(PAGE + 100), 2 * PAGE);
    assert_eq!(pages.shared(), count(3));
    pages.is_filled();
    let second = pd.register(pages.at, 2 * PAGE);
    assert_eq!(pages.shared(), count(4));
    deregister(first);
    assert_eq!(pages.shared(), count(2));
    pages.is_filled();
    deregister(second);
    assert_eq!(pages.shared(), 0);
    pages.is_filled();
}

fn the_stack_stays_as_it_is(pd: &Pd) {
    let mut buffer = [7u8; 3 * PAGE];
    let mr = pd.register(buffer.as_mut_ptr(), buffer.len());
    deregister(mr);
    assert_eq!(buffer, [7; 3 * PAGE]);
}

fn a_child_shares_nothing_with_its_parent(pd: &Pd) {
    let pages = Pages::new(2);
    pages.fill();
    let mr = pd.register(pages.at, 2 * PAGE);
    let (mut from_parent, mut to_child) = std::io::pipe().unwrap();
    let (mut from_child, mut to_parent) = std::io::pipe().unwrap();
    let join = in_a_fork(|| {
        from_parent.read_exact(&mut [0]).unwrap();
        pages.is_filled();
        pages.set(5, 200);
        // The child is a member of the fabric of its own, with the same memory.
        let pd = Pd::new();
        let mr = pd.register(pages.at, 2 * PAGE);
        pages.set(6, 201);
        to_parent.write_all(&[1]).unwrap();
        from_parent.read_exact(&mut [0]).unwrap();
        assert_eq!((pages.get(5), pages.get(6), pages.get(7)), (200, 201, 7));
        deregister(mr);
    });
    pages.set(7, 222);
    to_child.write_all(&[1]).unwrap();
    from_child.read_exact(&mut [0]).unwrap();
    assert_eq!((pages.get(5), pages.get(6), pages.get(7)), (5, 6, 222));
    to_child.write_all(&[1]).unwrap();
    join();
    deregister(mr);
    assert_eq!((pages.get(5), pages.get(6), pages.get(7)), (5, 6, 222));
}

#[test]
fn peers_can_map_it_and_its_program_cannot_tell() {
    let shared = userfaultfd_works();
    let pd = Pd::new();
    pages_are_shared_while_a_region_lies_on_them(&pd, shared);
    the_stack_stays_as_it_is(&pd);
    a_child_shares_nothing_with_its_parent(&pd);
}
