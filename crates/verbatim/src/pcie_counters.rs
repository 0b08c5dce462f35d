//! `--pcie-counters`: the cache lines that PCIe devices read and wrote, as Intel processors count
//! them.
//!
//! The counters belong to the whole machine, so perf(1) reads them while the command runs:
//! PCIeRdCur for lines that devices read, ItoM for lines that they wrote.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tap::PcieLines;
use tempfile::NamedTempFile;

/// The folder in which the kernel lists performance monitoring units.
const PMU_FOLDER: &str = "/sys/bus/event_source/devices";
/// The monitoring units of the last-level cache: for Skylake and later processors, and for earlier
/// processors.
const CACHE_PMU_NAME_PREFIXES: [&str; 2] = ["uncore_cha", "uncore_cbox"];
/// perf's names of the two events: for Ice Lake and later, and for Haswell to Skylake.
const EVENTS: [[&str; 2]; 2] = [
    [
        "unc_cha_tor_inserts.io_pcirdcur",
        "unc_cha_tor_inserts.io_itom",
    ],
    ["llc_references.pcie_read", "llc_references.pcie_write"],
];

/// The PCIe counters of this machine.
pub(crate) struct PcieCounters {
    events: [&'static str; 2],
    output: NamedTempFile,
}

impl PcieCounters {
    /// Finds the counters of this machine.
    ///
    /// # Errors
    /// Returns an error if the machine has no such counters, or perf may not read them; the message
    /// says why.
    pub(crate) fn find() -> Result<Self> {
        if !has_cache_units(Path::new(PMU_FOLDER)) {
            bail!(
                "this machine has no Intel uncore counters for PCIe ({PMU_FOLDER} has no {}): leave out --pcie-counters; \
                 verbatim explain says what the NIC is expected to read and write",
                CACHE_PMU_NAME_PREFIXES
                    .map(|unit| format!("{unit}*"))
                    .join(" and no ")
            );
        }
        let mut refusal = String::new();
        for events in EVENTS {
            let output = NamedTempFile::new().context("cannot make a file for perf")?;
            let counters = Self { events, output };
            let tried = counters
                .perf_stat_command(&Command::new("true"))
                .output()
                .context("cannot start perf, which reads the counters: install it (Debian: apt install linux-perf)")?;
            if tried.status.success() && counters.read().is_ok() {
                return Ok(counters);
            }
            refusal = String::from_utf8_lossy(&tried.stderr).trim().to_owned();
        }
        bail!(
            "perf cannot read the uncore counters of this machine (as root, or with kernel.perf_event_paranoid at most \
             0, it may): {refusal}"
        )
    }

    /// Returns the command that runs `command` under perf.
    pub(crate) fn perf_stat_command(&self, command: &Command) -> Command {
        let mut perf = Command::new("perf");
        perf.args(["stat", "-a", "-x,", "-e", &self.events.join(","), "-o"]);
        perf.arg(self.output.path()).arg("--");
        perf.arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => perf.env(name, value),
                None => perf.env_remove(name),
            };
        }
        perf
    }

    /// Counts while `work` runs in this process; returns its result and the counts.
    pub(crate) fn count_during<T>(
        &self,
        work: impl FnOnce() -> Result<T>,
    ) -> Result<(T, PcieLines)> {
        // cat ends when its standard input ends.
        let mut counts = self.perf_stat_command(&Command::new("cat"));
        let counts = counts.stdin(Stdio::piped()).stdout(Stdio::null()).spawn();
        let mut counts = counts.context("cannot start perf, which reads the counters")?;
        // perf needs a moment to start counting.
        std::thread::sleep(Duration::from_millis(100));
        let done = work();
        drop(counts.stdin.take());
        counts.wait().context("cannot wait for perf")?;
        Ok((done?, self.read()?))
    }

    /// Reads the counts from perf's output.
    pub(crate) fn read(&self) -> Result<PcieLines> {
        let text = fs::read_to_string(self.output.path()).context("cannot read what perf wrote")?;
        PcieLines::from_perf(&text, self.events)
            .with_context(|| format!("perf counted nothing: {}", text.trim()))
    }
}

fn has_cache_units(units: &Path) -> bool {
    let Ok(entries) = fs::read_dir(units) else {
        return false;
    };
    entries.flatten().any(|entry| {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        CACHE_PMU_NAME_PREFIXES
            .iter()
            .any(|unit| name.starts_with(unit))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_intels_cache_units_will_do() {
        let folder = tempfile::tempdir().expect("a folder");
        for unit in ["cpu", "uncore_imc_0", "amd_l3"] {
            fs::create_dir(folder.path().join(unit)).expect("made");
        }
        assert!(!has_cache_units(folder.path()));
        fs::create_dir(folder.path().join("uncore_cha_3")).expect("made");
        assert!(has_cache_units(folder.path()));
        assert!(!has_cache_units(&folder.path().join("missing")));
    }
}
