//! Copies between two processes without any NIC: `memcpy` into a shared mapping, and
//! `process_vm_writev` into private memory.
//!
//! Unsafe code: one process writes the memory of another process.

#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

pub use super::copy_parameters::CopyMethod;
use super::copy_parameters::{CopyParameters, byte_pattern, write_number};
use super::mapping::{PeerWritableMapping, create_shared_memory, open_shared_memory};
use crate::job::Job;
use crate::link::WorkerLink;

/// Location of the worker's buffer.
#[derive(Debug, Serialize, Deserialize)]
struct WorkerBufferLocation {
    pid: i32,
    addr: usize,
    /// Descriptor of the memfd, for [`CopyMethod::Memcpy`].
    fd: Option<i32>,
}

/// Copies `payload_bytes` into the worker `copies` times. Returns bytes per second. The worker
/// checks the bytes of the last copy.
///
/// # Errors
/// When memory cannot be mapped or written, or the worker finds other bytes.
pub fn run_driver_side_for_bytes_per_s(
    link: &mut WorkerLink,
    method: CopyMethod,
    payload_bytes: usize,
    copies: u64,
) -> Result<f64> {
    link.send(&Job::HostCopy(CopyParameters {
        method,
        payload_bytes,
    }))?;
    let buffer: WorkerBufferLocation = link.recv()?;
    let mut source = byte_pattern(payload_bytes);
    let rate = match method {
        CopyMethod::Memcpy => {
            let fd = buffer.fd.context("the worker shares no memory")?;
            let target =
                PeerWritableMapping::new(&open_shared_memory(buffer.pid, fd)?, payload_bytes)?;
            copy_bytes_per_s(copies, &mut source, |source| {
                target.write(source);
                Ok(())
            })?
        }
        CopyMethod::ProcessVmWritev => copy_bytes_per_s(copies, &mut source, |source| {
            process_vm_writev(buffer.pid, buffer.addr, source)
        })?,
    };
    link.send(&copies)?;
    let verified: bool = link.recv()?;
    if !verified {
        bail!("the worker found other bytes than were sent");
    }
    Ok(rate)
}

/// Runs the worker: offers a buffer, and checks it when the driver is done.
///
/// # Errors
/// When memory cannot be allocated or the driver is gone.
pub fn run_worker_side(link: &mut WorkerLink, request: CopyParameters) -> Result<()> {
    let pid = i32::try_from(std::process::id())?;
    let size = request.payload_bytes;
    let (buffer, target) = match request.method {
        CopyMethod::Memcpy => {
            let fd = create_shared_memory(size)?;
            let mapping = PeerWritableMapping::new(&fd, size)?;
            let buffer = WorkerBufferLocation {
                pid,
                addr: mapping.addr(),
                fd: Some(fd.as_raw_fd()),
            };
            (
                buffer,
                WorkerBuffer {
                    mapping,
                    _fd: Some(fd),
                },
            )
        }
        CopyMethod::ProcessVmWritev => {
            let mapping = PeerWritableMapping::map_private(size)?;
            let buffer = WorkerBufferLocation {
                pid,
                addr: mapping.addr(),
                fd: None,
            };
            (buffer, WorkerBuffer { mapping, _fd: None })
        }
    };
    // Touch the pages before the timed run.
    target.mapping.write(&vec![0xa5; size]);
    link.send(&buffer)?;
    let copies: u64 = link.recv()?;
    let mut expected = byte_pattern(size);
    write_number(&mut expected, copies);
    link.send(&(target.mapping.read() == expected))
}

struct WorkerBuffer {
    mapping: PeerWritableMapping,
    _fd: Option<OwnedFd>,
}

/// Runs `copy` `copies` times, each time with another stamp. Returns bytes per second.
fn copy_bytes_per_s(
    copies: u64,
    source: &mut [u8],
    mut copy: impl FnMut(&[u8]) -> Result<()>,
) -> Result<f64> {
    copy(source)?;
    let begin = Instant::now();
    for i in 1..=copies {
        write_number(source, i);
        copy(source)?;
    }
    let seconds = begin.elapsed().as_secs_f64();
    #[allow(clippy::cast_precision_loss)] // far below 2^52 bytes
    Ok(copies as f64 * source.len() as f64 / seconds)
}

/// Writes `source` to `addr` of process `pid`.
fn process_vm_writev(pid: i32, addr: usize, source: &[u8]) -> Result<()> {
    let mut done = 0;
    while done < source.len() {
        let rest = &source[done..];
        let local = libc::iovec {
            iov_base: rest.as_ptr().cast_mut().cast(),
            iov_len: rest.len(),
        };
        let remote = libc::iovec {
            iov_base: std::ptr::with_exposed_provenance_mut(addr + done),
            iov_len: rest.len(),
        };
        // SAFETY: `local` describes `rest`, which outlives the call and is only read. `remote` is
        // an address of the other process, which the kernel checks. If that process is this one
        // (worker as a thread), the call writes the worker's mapping. The worker then waits for a
        // message and holds no reference into its mapping.
        let written = unsafe { libc::process_vm_writev(pid, &local, 1, &remote, 1, 0) };
        match usize::try_from(written) {
            Ok(0) => bail!("process_vm_writev wrote nothing"),
            Ok(written) => done += written,
            Err(_) => {
                return Err(std::io::Error::last_os_error()).context(
                    "process_vm_writev is refused: allow it between a parent and its child \
                     (kernel.yama.ptrace_scope at most 1, no seccomp filter)",
                );
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs one job.
    fn serve(link: &mut WorkerLink) -> Result<()> {
        match link.recv()? {
            Job::HostCopy(copies) => run_worker_side(link, copies),
            job => bail!("{job:?} is no copy"),
        }
    }

    #[test]
    fn both_methods_run_tiny_and_are_verified() {
        for method in [CopyMethod::Memcpy, CopyMethod::ProcessVmWritev] {
            for size in [8, 4096, 100_000] {
                let (mut left, mut right) = WorkerLink::pair().unwrap();
                let worker = std::thread::spawn(move || serve(&mut right));
                assert!(
                    run_driver_side_for_bytes_per_s(&mut left, method, size, 10).unwrap() > 0.0
                );
                drop(left);
                worker.join().unwrap().unwrap();
            }
        }
    }

    #[test]
    fn wrong_bytes_are_noticed() {
        let (mut left, mut right) = WorkerLink::pair().unwrap();
        let worker = std::thread::spawn(move || serve(&mut right));
        left.send(&Job::HostCopy(CopyParameters {
            method: CopyMethod::Memcpy,
            payload_bytes: 64,
        }))
        .unwrap();
        let _: WorkerBufferLocation = left.recv().unwrap();
        left.send(&3u64).unwrap();
        assert!(!left.recv::<bool>().unwrap());
        drop(left);
        worker.join().unwrap().unwrap();
    }
}
