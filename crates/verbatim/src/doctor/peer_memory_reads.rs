//! A test in which one process of this user reads the memory of another. Neither process is the
//! other's parent, since a parent has more rights.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::process::{Child, Command, Stdio};
use std::str::FromStr;

use anyhow::{Context, Result, bail};
use rustix::fs::{MemfdFlags, memfd_create};
use serde::{Deserialize, Serialize};
use softnic::peer_access_check::{self, PeerReadCall};

/// The content of the memory that the test reads.
const TEST_PATTERN: [u8; 16] = *b"verbatim doctor\n";

/// The location of a process's [`TEST_PATTERN`]: an address in private memory, and a file descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PatternLocation {
    pid: u64,
    private_memory_address: u64,
    memfd: u32,
}

impl FromStr for PatternLocation {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parsed = || {
            let mut parts = text.trim().split(':');
            let pid = parts.next()?.parse().ok()?;
            let address = parts.next()?.parse().ok()?;
            let fd = parts.next()?.parse().ok()?;
            Some(Self {
                pid,
                private_memory_address: address,
                memfd: fd,
            })
        };
        parsed().ok_or("not PID:ADDRESS:DESCRIPTOR")
    }
}

/// The error of each way to read memory; `None` if the way works.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct ReadErrors {
    /// `process_vm_readv(2)`.
    #[serde(rename = "by_call")]
    pub(super) by_process_vm_readv: Option<String>,
    /// Reading `/proc/PID/mem`.
    pub(super) by_proc_file: Option<String>,
    /// Opening `/proc/PID/fd/N`, to map it.
    pub(super) by_descriptor: Option<String>,
}

/// Keeps the pattern in memory until standard input ends.
pub(super) fn hold_pattern() -> Result<()> {
    peer_access_check::allow_peer_access();
    let private = Box::new(TEST_PATTERN);
    let mut file = File::from(memfd_create("verbatim-doctor", MemfdFlags::CLOEXEC)?);
    file.write_all(&TEST_PATTERN)?;
    println!(
        "{}:{}:{}",
        std::process::id(),
        private.as_ptr().expose_provenance(),
        file.as_raw_fd()
    );
    std::io::stdin().read_to_end(&mut Vec::new())?;
    // Use the memory here, so that the optimiser keeps it until the end.
    std::hint::black_box(&private);
    Ok(())
}

/// Reads the memory of the process at the given address, in each of the ways.
pub(super) fn errors_of_each_read_method(at: PatternLocation) -> ReadErrors {
    let read =
        |call| match peer_access_check::read_peer_memory(call, at.pid, at.private_memory_address) {
            Ok(TEST_PATTERN) => None,
            Ok(_) => Some("other bytes are there".to_owned()),
            Err(e) => Some(e.to_string()),
        };
    let by_descriptor = File::options()
        .read(true)
        .write(true)
        .open(format!("/proc/{}/fd/{}", at.pid, at.memfd))
        .err()
        .map(|e| e.to_string());
    ReadErrors {
        by_process_vm_readv: read(PeerReadCall::ProcessVm),
        by_proc_file: read(PeerReadCall::ProcFile),
        by_descriptor,
    }
}

/// Starts two processes, and lets one read the memory of the other.
///
/// # Errors
/// Returns an error if a process cannot be started.
pub(super) fn try_peer_reads() -> Result<ReadErrors> {
    let mut holder = PatternProcess(start_doctor_process(&["--hold"], Stdio::piped())?);
    let mut address = String::new();
    let stdout = holder.0.stdout.take().context("no output")?;
    BufReader::new(stdout).read_line(&mut address)?;
    let looking = start_doctor_process(&["--reach", address.trim()], Stdio::null())?;
    let said = looking.wait_with_output()?;
    let ReadErrorsLine { data } = serde_json::from_slice(&said.stdout)
        .with_context(|| format!("the process that looks ended with {}", said.status))?;
    Ok(data)
}

/// The line that the second process prints.
#[derive(Deserialize)]
struct ReadErrorsLine {
    data: ReadErrors,
}

/// The first process; dropping this value ends it.
struct PatternProcess(Child);

impl Drop for PatternProcess {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        // An error cannot be reported from `drop`.
        let _ = self.0.wait();
    }
}

fn start_doctor_process(args: &[&str], stdin: Stdio) -> Result<Child> {
    let program = std::env::current_exe().context("cannot find this program")?;
    let child = Command::new(program)
        .arg("doctor")
        .args(args)
        .stdin(stdin)
        .stdout(Stdio::piped())
        .spawn();
    match child {
        Ok(child) => Ok(child),
        Err(e) => bail!("cannot start a second process: {e}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_three_numbers() {
        let address = PatternLocation {
            pid: 1,
            private_memory_address: 4096,
            memfd: 3,
        };
        assert_eq!("1:4096:3\n".parse(), Ok(address));
        for bad in ["", "1", "1:2", "1:2:x", "-1:2:3"] {
            assert!(bad.parse::<PatternLocation>().is_err(), "{bad}");
        }
    }
}
