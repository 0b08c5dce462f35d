//! The checks of `verbatim doctor`, each with its consequence for programs and its remedy.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use rustix::process::{PidfdFlags, Resource, getpid, getrlimit, pidfd_open};
use softnic::UdpPortUsers;
use softnic::peer_access_check;

use super::peer_memory_reads::{self, ReadErrors};
use super::requirement::{Requirement, RequirementState};

/// Number of bytes that should be free in /dev/shm. A process takes some MiB, and 100 queue pairs
/// with full queues take tens of MiB.
const RECOMMENDED_SHM_BYTES: u64 = 256 << 20;

/// Number of free bytes in /dev/shm below which hardly any program runs.
const MIN_SHM_BYTES: u64 = 16 << 20;

/// The number of file descriptors that a process should be allowed to open.
const RECOMMENDED_DESCRIPTORS: u64 = 1024;

/// Runs all checks.
///
/// # Errors
/// Returns an error if the fabric's folder has no name, or if this program cannot be started a
/// second time.
pub(super) fn run_all() -> Result<Vec<Requirement>> {
    let reached = peer_memory_reads::try_peer_reads()?;
    Ok(vec![
        check_shared_folder()?,
        check_peer_memory_mapping(&reached),
        check_peer_memory_copying(&reached),
        check_private_memory_mapping(),
        check_peer_death_notice(),
        check_device_files_shown_to_programs()?,
        check_packet_path(),
        check_descriptor_limit(),
        check_processor_count(),
    ])
}

fn check_shared_folder() -> Result<Requirement> {
    const WHAT: &str = "meet other processes in shared memory";
    let folder = softnic::fabric_dir()?;
    let parent = folder.parent().unwrap_or(Path::new("/"));
    let shown = folder.display();
    let stat = match rustix::fs::statvfs(parent) {
        Ok(stat) => stat,
        Err(e) => {
            return Ok(Requirement::not_ok(
                WHAT,
                RequirementState::Fails,
                format!("{shown}: {}: {e}", parent.display()),
                (
                    "the software NIC cannot be opened",
                    "mount a tmpfs at /dev/shm, or name another folder of shared memory in VERBATIM_FABRIC_DIR",
                ),
            ));
        }
    };
    let writable = tempfile::Builder::new()
        .prefix(".verbatim-doctor")
        .tempdir_in(parent);
    if let Err(e) = writable {
        return Ok(Requirement::not_ok(
            WHAT,
            RequirementState::Fails,
            format!("{shown}: {e}"),
            (
                "the software NIC cannot be opened",
                "let this user write there, or name another folder of shared memory in VERBATIM_FABRIC_DIR",
            ),
        ));
    }
    let free = stat.f_bavail * stat.f_frsize;
    let found = format!("{shown}, {} MiB free", free >> 20);
    if free < RECOMMENDED_SHM_BYTES {
        return Ok(Requirement::not_ok(
            WHAT,
            if free < MIN_SHM_BYTES {
                RequirementState::Fails
            } else {
                RequirementState::Limited
            },
            found,
            (
                "ibv_modify_qp and ibv_create_qp end with ENOMEM once the folder is full",
                "make it larger: docker run --shm-size 1g, in Kubernetes an emptyDir with medium: Memory at /dev/shm",
            ),
        ));
    }
    Ok(Requirement::ok(WHAT, found))
}

fn check_peer_memory_mapping(reached: &ReadErrors) -> Requirement {
    const WHAT: &str = "map a peer's shared memory";
    match &reached.by_descriptor {
        None => Requirement::ok(WHAT, "/proc/PID/fd can be opened"),
        Some(e) => Requirement::not_ok(
            WHAT,
            RequirementState::Limited,
            format!("/proc/PID/fd: {e}"),
            (
                "each access takes a system call, 0.7 to 1.5 µs instead of 3 ns",
                "run both programs as the same user, in one PID namespace and one user namespace (docker run --pid)",
            ),
        ),
    }
}

fn check_peer_memory_copying(reached: &ReadErrors) -> Requirement {
    const WHAT: &str = "copy private memory of a peer";
    match (&reached.by_process_vm_readv, &reached.by_proc_file) {
        (None, _) => Requirement::ok(WHAT, "process_vm_readv works"),
        (Some(call), None) => Requirement::not_ok(
            WHAT,
            RequirementState::Limited,
            format!("process_vm_readv: {call}; /proc/PID/mem works"),
            (
                "copies of memory that cannot be mapped take two system calls more",
                "allow process_vm_readv and process_vm_writev in the seccomp profile (docker run --cap-add SYS_PTRACE does it)",
            ),
        ),
        (Some(call), Some(file)) => Requirement::not_ok(
            WHAT,
            RequirementState::Fails,
            format!(
                "process_vm_readv: {call}; /proc/PID/mem: {file}{}",
                ptrace_scope_message_suffix()
            ),
            (
                "work requests on memory that cannot be mapped (over 64 MiB, stacks) end with remote access errors",
                "set kernel.yama.ptrace_scope to 0 or 1, or run with verbatim run --path packets, which needs neither",
            ),
        ),
    }
}

/// Returns Yama's `ptrace_scope` as a message suffix, or an empty string without Yama.
fn ptrace_scope_message_suffix() -> String {
    fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").map_or_else(
        |_| String::new(),
        |scope| format!("; kernel.yama.ptrace_scope is {}", scope.trim()),
    )
}

fn check_private_memory_mapping() -> Requirement {
    const WHAT: &str = "map private memory of programs";
    match peer_access_check::check_userfaultfd() {
        Ok(()) => Requirement::ok(WHAT, "userfaultfd works"),
        Err(e) => Requirement::not_ok(
            WHAT,
            RequirementState::Limited,
            format!("userfaultfd: {e}"),
            (
                "memory of malloc and mmap is copied by system calls, 0.7 to 1.5 µs a message instead of 3 ns",
                "use Linux 5.19 or newer, and allow userfaultfd in the seccomp profile (docker run --cap-add SYS_PTRACE does it)",
            ),
        ),
    }
}

fn check_peer_death_notice() -> Requirement {
    const WHAT: &str = "notice that a peer has died";
    match pidfd_open(getpid(), PidfdFlags::empty()) {
        Ok(_) => Requirement::ok(WHAT, "pidfd_open works"),
        Err(e) => Requirement::not_ok(
            WHAT,
            RequirementState::Limited,
            format!("pidfd_open: {e}"),
            (
                "the engine looks for dead peers ten times a second instead of being woken",
                "allow pidfd_open in the seccomp profile",
            ),
        ),
    }
}

fn check_device_files_shown_to_programs() -> Result<Requirement> {
    const WHAT: &str = "show programs the device's files";
    let program = std::env::current_exe().context("cannot find this program")?;
    let out = Command::new(program)
        .args(["run", "--", "true"])
        .output()
        .context("cannot start verbatim run")?;
    let notes = String::from_utf8_lossy(&out.stderr);
    Ok(match notes.lines().next() {
        None if out.status.success() => {
            Requirement::ok(WHAT, "/sys and /dev are mounts of the program's own")
        }
        first => Requirement::not_ok(
            WHAT,
            if out.status.success() {
                RequirementState::Limited
            } else {
                RequirementState::Fails
            },
            first.unwrap_or("verbatim run fails").to_owned(),
            (
                "a preloaded library shows them; statically linked programs and programs with the set-user-ID bit see none",
                "allow user namespaces: kernel.unprivileged_userns_clone=1, kernel.apparmor_restrict_unprivileged_userns=0, \
                 or docker run --cap-add SYS_ADMIN",
            ),
        ),
    })
}

fn check_packet_path() -> Requirement {
    const WHAT: &str = "reach other hosts by packets";
    let effect = (
        "queue pairs reach those of this host only",
        "give the environment a network interface with an address whose UDP port 4791 is free",
    );
    let report = match softnic::packet_report(0, 1) {
        Ok(report) => report,
        Err(e) => return Requirement::not_ok(WHAT, RequirementState::Fails, e.to_string(), effect),
    };
    let mut usable = Vec::new();
    let mut refused = Vec::new();
    for address in &report.addresses {
        match &address.udp_port_users {
            UdpPortUsers::Unavailable(why) => refused.push(format!("{}: {why}", address.ip)),
            UdpPortUsers::Free | UdpPortUsers::Shared(_) => usable.push(address.ip.to_string()),
        }
    }
    if usable.is_empty() {
        let found = if refused.is_empty() {
            "the port has no address".to_owned()
        } else {
            refused.join("; ")
        };
        return Requirement::not_ok(WHAT, RequirementState::Limited, found, effect);
    }
    let found = format!("UDP port 4791 of {}", usable.join(", "));
    if refused.is_empty() {
        return Requirement::ok(WHAT, found);
    }
    let found = format!("{found}; not of {}", refused.join("; "));
    let effect = (
        "queue pairs with the GIDs of those addresses are refused",
        "free UDP port 4791 of them, or choose GIDs of the other addresses",
    );
    Requirement::not_ok(WHAT, RequirementState::Limited, found, effect)
}

fn check_descriptor_limit() -> Requirement {
    const WHAT: &str = "have many descriptors";
    match getrlimit(Resource::Nofile).current {
        Some(limit) if limit < RECOMMENDED_DESCRIPTORS => Requirement::not_ok(
            WHAT,
            RequirementState::Limited,
            format!("{limit} are allowed"),
            (
                "a process needs three for each peer, and one for each completion channel",
                "raise the limit: ulimit -n 65536",
            ),
        ),
        Some(limit) => Requirement::ok(WHAT, format!("{limit} are allowed")),
        None => Requirement::ok(WHAT, "no limit"),
    }
}

fn check_processor_count() -> Requirement {
    const WHAT: &str = "poll on processors of their own";
    let count = std::thread::available_parallelism().map_or(1, usize::from);
    if count == 1 {
        return Requirement::not_ok(
            WHAT,
            RequirementState::Limited,
            "1 processor",
            (
                "two programs that poll take turns: a round trip takes tens of microseconds instead of one",
                "give the environment two processors (docker run --cpus 2), or wait for completion events",
            ),
        );
    }
    Requirement::ok(WHAT, format!("{count} processors"))
}
