//! Reports at the end of a process that the software NIC was not used, although this library was preloaded.
//!
//! A Python wheel may contain its own libibverbs under a name that no search path replaces. `verbatim run
//! --preload` therefore preloads this library. A program may still open its own library by `dlopen` and
//! `dlsym`, or open no device. Without the report, this program would silently run over TCP.

use std::sync::atomic::{AtomicBool, Ordering};

/// Environment variable that `verbatim run` sets if it preloads this library. The value is `wheels` if the
/// user did not select preloading.
///
/// With `wheels`, a process that has listed devices and opened none reports nothing, because many Python
/// libraries check for devices.
const PRELOADED_ENV_VAR: &str = "VERBATIM_PRELOADED";

/// True once the process has listed the devices.
static DEVICES_LISTED: AtomicBool = AtomicBool::new(false);
/// True once the process has opened a device.
static DEVICE_OPENED: AtomicBool = AtomicBool::new(false);

/// Records that the process lists the devices.
pub(crate) fn record_devices_listed() {
    DEVICES_LISTED.store(true, Ordering::Relaxed);
}

/// Records that the process has opened a device of the software NIC.
pub(crate) fn record_device_opened() {
    DEVICE_OPENED.store(true, Ordering::Relaxed);
}

/// Runs `at_load` when the library is loaded.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = at_load;

extern "C" fn at_load() {
    if std::env::var_os(PRELOADED_ENV_VAR).is_some() {
        // SAFETY: the function lives as long as the program.
        unsafe { libc::atexit(at_exit) };
    }
}

extern "C" fn at_exit() {
    if DEVICE_OPENED.load(Ordering::Relaxed) {
        return;
    }
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let what = if let Some(other) = find_unreplaced_libibverbs(&maps) {
        format!("has loaded {other} and opened no device of the software NIC")
    } else if DEVICES_LISTED.load(Ordering::Relaxed)
        && std::env::var_os(PRELOADED_ENV_VAR).is_none_or(|v| v != "wheels")
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

/// Returns a libibverbs in `/proc/PID/maps` whose name no drop-in replaces, such as `libibverbs-HASH.so…`
/// of a wheel.
fn find_unreplaced_libibverbs(maps: &str) -> Option<&str> {
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
    use super::find_unreplaced_libibverbs;

    #[test]
    fn a_wheels_library_is_told_from_ours() {
        let ours =
            "7f00-7f01 r-xp 00000000 08:01 7 /opt/a b/libibverbs.so.1\n7f02-7f03 rw-p 0 00:00 0\n";
        assert_eq!(find_unreplaced_libibverbs(ours), None);
        let wheel = "/v/nixl.libs/libibverbs-1de1263b.so.1.14.48.0";
        let both = format!("{ours}7f04-7f05 r--p 00000000 08:01 9 {wheel}\n");
        assert_eq!(find_unreplaced_libibverbs(&both), Some(wheel));
    }
}
