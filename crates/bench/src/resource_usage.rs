//! CPU time and resident memory of a process, from `/proc`.

use anyhow::{Context, Result};

/// Resources that a process has used up to now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResourceUsage {
    /// CPU time of all its threads, in nanoseconds.
    pub cpu_ns: u64,
    /// Memory in RAM, shared or not.
    pub resident_bytes: u64,
    /// Voluntary context switches of all its threads: the number of times that they went to sleep.
    pub voluntary_switches: u64,
}

impl ResourceUsage {
    /// Reads the usage of process `pid`.
    ///
    /// # Errors
    /// When the process is gone, or the kernel does not report the usage.
    pub fn of_process(pid: u32) -> Result<ResourceUsage> {
        let (mut cpu_ns, mut sleeps) = (0, 0);
        let tasks = format!("/proc/{pid}/task");
        for task in std::fs::read_dir(&tasks).with_context(|| format!("cannot read {tasks}"))? {
            // A thread may end between two reads; its time is then not counted.
            let task = task?.path();
            if let Ok(text) = std::fs::read_to_string(task.join("schedstat")) {
                cpu_ns += parse_cpu_ns(&text).context("schedstat has another form")?;
            }
            if let Ok(text) = std::fs::read_to_string(task.join("status")) {
                sleeps += parse_number_of_line("voluntary_ctxt_switches:", &text)
                    .context("status has no voluntary_ctxt_switches")?;
            }
        }
        let status = format!("/proc/{pid}/status");
        let text =
            std::fs::read_to_string(&status).with_context(|| format!("cannot read {status}"))?;
        Ok(ResourceUsage {
            cpu_ns,
            resident_bytes: parse_resident_bytes(&text)
                .with_context(|| format!("{status}: no VmRSS"))?,
            voluntary_switches: sleeps,
        })
    }
}

/// Parses the first number of `/proc/PID/task/TID/schedstat`: nanoseconds on a CPU.
fn parse_cpu_ns(schedstat: &str) -> Option<u64> {
    schedstat.split_whitespace().next()?.parse().ok()
}

/// Parses the line `VmRSS:    5004 kB` in `/proc/PID/status`, and returns bytes.
fn parse_resident_bytes(status: &str) -> Option<u64> {
    Some(parse_number_of_line("VmRSS:", status)? * 1024)
}

/// Returns the number of the line of `/proc/PID/status` that begins with `name`.
fn parse_number_of_line(name: &str, status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_writes() {
        assert_eq!(parse_cpu_ns("18226411 120044 60\n"), Some(18_226_411));
        assert_eq!(parse_cpu_ns(""), None);
        let status = "Name:\tcat\nVmHWM:\t    9999 kB\nVmRSS:\t    1756 kB\nThreads:\t1\n";
        assert_eq!(parse_resident_bytes(status), Some(1756 * 1024));
        let status = "voluntary_ctxt_switches:\t12\nnonvoluntary_ctxt_switches:\t3\n";
        assert_eq!(
            parse_number_of_line("voluntary_ctxt_switches:", status),
            Some(12)
        );
        assert_eq!(parse_resident_bytes("Name:\tcat\n"), None);
    }

    #[test]
    fn this_process_uses_something_and_no_process_nothing() {
        let before = ResourceUsage::of_process(std::process::id()).unwrap();
        assert!(before.resident_bytes > 0);
        while ResourceUsage::of_process(std::process::id())
            .unwrap()
            .cpu_ns
            == before.cpu_ns
        {
            std::hint::black_box((0..100_000u64).sum::<u64>());
        }
        assert!(ResourceUsage::of_process(u32::MAX).is_err());
    }
}
