//! Says at the end of a process that the software NIC was not used, where it was preloaded to be.
//!
//! Python wheels bring a libibverbs of their own under a name that no search path replaces. `verbatim run --preload` puts
//! this library in front of it. A program that opens its own all the same (by `dlopen` and `dlsym`), or opens no device,
//! would run over TCP and say nothing.

use std::sync::atomic::{AtomicBool, Ordering};

/// Set by `verbatim run` where it preloads this library: `wheels` where nobody asked for that. Then a process that has asked for
/// devices and opened none says nothing, since many libraries of Python look whether there is one.
const VARIABLE: &str = "VERBATIM_PRELOADED";

/// The process has asked for the devices.
static ASKED: AtomicBool = AtomicBool::new(false);
/// The process has opened a device.
static OPENED: AtomicBool = AtomicBool::new(false);

/// The process asks for the devices.
pub(crate) fn asked() {
    ASKED.store(true, Ordering::Relaxed);
}

/// The process has opened a device.
pub(crate) fn opened() {
    OPENED.store(true, Ordering::Relaxed);
}

/// Runs when the library is loaded.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = at_load;

extern "C" fn at_load() {
    if std::env::var_os(VARIABLE).is_some() {
        // SAFETY: a function that lives as long as the program.
        unsafe { libc::atexit(at_exit) };
    }
}

extern "C" fn at_exit() {
    if OPENED.load(Ordering::Relaxed) {
        return;
    }
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let what = if let Some(other) = other_library(&maps) {
        format!("has loaded {other} and opened no device of the software NIC")
    } else if ASKED.load(Ordering::Relaxed)
        && std::env::var_os(VARIABLE).is_none_or(|v| v != "wheels")
    {
        "has asked for RDMA devices and opened none".to_owned()
    } else {
        return;
    };
    let program = std::fs::read_to_string("/proc/self/comm").unwrap_or_default();
    eprintln!(
        "libibverbs (verbatim): process {} ({}) {what}: it did not use RDMA here",
        std::process::id(),
        program.trim_end()
    );
}

/// A libibverbs among the files of `/proc/PID/maps` under a name that is none of this library's: `libibverbs-HASH.so…`, as
/// wheels have it.
fn other_library(maps: &str) -> Option<&str> {
    let files = maps
        .lines()
        .filter_map(|line| line.find('/').map(|at| &line[at..]));
    files.into_iter().find(|file| {
        let name = file.rsplit('/').next().unwrap_or_default();
        name.starts_with("libibverbs-") && name.contains(".so")
    })
}

#[cfg(test)]
mod tests {
    use super::other_library;

    #[test]
    fn a_wheels_library_is_told_from_ours() {
        let ours =
            "7f00-7f01 r-xp 00000000 08:01 7 /opt/a b/libibverbs.so.1\n7f02-7f03 rw-p 0 00:00 0\n";
        assert_eq!(other_library(ours), None);
        let wheel = "/v/nixl.libs/libibverbs-1de1263b.so.1.14.48.0";
        let both = format!("{ours}7f04-7f05 r--p 00000000 08:01 9 {wheel}\n");
        assert_eq!(other_library(&both), Some(wheel));
    }
}
