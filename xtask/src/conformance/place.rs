//! Runs the cases of a target on the target's machine.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::num::NonZeroUsize;
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Sender};
use std::thread;

use anyhow::{Context, Result, bail, ensure};

use super::args::Args;
use super::line::{CaseLine, JsonLine};
use super::pool;
use super::record::{CaseResult, PackageVersions};
use super::suite::{FOLDER, Machine, Suite, TARGET_DIR, Target, VERBATIM, folder};
use crate::cargo_command::cargo;
use crate::dropin;
use crate::packages::{self, DebianPackage};
use crate::paths::target_dir;
use crate::rxe;

/// Runs `suites` on the machine of `target`, `jobs` cases at a time. The function first installs the
/// packages that the suites need. It passes each line of JSON to `report`.
///
/// # Errors
/// Returns an error if packages are missing, the virtual machine does not start, or its process ends
/// early.
pub(crate) fn run_on_target_machine(
    target: &Target,
    suites: &[&Suite],
    args: &Args,
    report: &mut dyn FnMut(JsonLine) -> Result<()>,
) -> Result<()> {
    packages::install_missing(&needed(target, suites)?)?;
    if target
        .command_prefix_words()
        .any(|word| word.contains(VERBATIM))
    {
        ensure!(dropin::build()?, "the drop-in could not be built");
    }
    if let Some(arguments) = &target.build {
        build(arguments)?;
    }
    for command in suites.iter().filter_map(|suite| suite.build.as_ref()) {
        run_in_shell(command)?;
    }
    match target.machine {
        Machine::Host => run_on_this_machine(target, suites, args.jobs, report),
        Machine::Rxe => {
            let mut command = vec![
                std::env::current_exe()?.into_os_string(),
                "conformance".into(),
                "--in-place".into(),
                "--on".into(),
                target.name.clone().into(),
            ];
            for suite in suites {
                command.extend([OsString::from("--only"), suite.name.clone().into()]);
            }
            if let Some(jobs) = args.jobs {
                command.extend([OsString::from("--jobs"), jobs.to_string().into()]);
            }
            if let Some(program) = &args.verbatim {
                command.extend([OsString::from("--verbatim"), program.into()]);
            }
            if let Some(cases) = &args.cases {
                // The option and its value are one word, because an expression may begin with a dash.
                command.push(format!("--cases={}", cases.as_str()).into());
            }
            run_in_rxe_vm(command, report)
        }
    }
}

/// Runs `suites` on the machine of this process, `jobs` cases at a time.
///
/// # Errors
/// Returns the errors of [`pool::run`].
pub(crate) fn run_on_this_machine(
    target: &Target,
    suites: &[&Suite],
    jobs: Option<NonZeroUsize>,
    report: &mut dyn FnMut(JsonLine) -> Result<()>,
) -> Result<()> {
    let kernel = match target.machine {
        Machine::Host => None,
        Machine::Rxe => Some(std::fs::read_to_string("/proc/sys/kernel/osrelease")?),
    };
    let kernel = kernel.map(|release| release.trim().to_owned());
    report(JsonLine::Environment(package_versions(kernel, suites)))?;
    if let Some(network) = &target.network {
        run_in_shell(network)?;
    }
    let jobs = jobs.unwrap_or_else(|| pool::default_jobs(target));
    pool::run(target, suites, jobs, &mut |suite, number, ran| {
        let passed = ran.outcome.reason().is_none();
        report(JsonLine::Case(CaseLine {
            target: target.name.clone(),
            result: CaseResult {
                suite: suite.name.clone(),
                case: ran.case,
                outcome: ran.outcome,
            },
            number,
            elapsed_s: ran.elapsed.as_secs_f64(),
            output: (!passed && !ran.output.is_empty()).then_some(ran.output),
        }))
    })
}

/// Builds the programs of a target.
fn build(arguments: &str) -> Result<()> {
    let status = cargo()
        .arg("build")
        .args(arguments.split_whitespace())
        .status()
        .context("cannot start cargo")?;
    ensure!(status.success(), "cargo build {arguments} failed");
    Ok(())
}

/// Runs a shell command that prepares the machine, such as one that creates the network of a target.
fn run_in_shell(command: &str) -> Result<()> {
    let command = command
        .replace(FOLDER, &folder().to_string_lossy())
        .replace(TARGET_DIR, &target_dir().to_string_lossy());
    let out = Command::new("sh")
        .args(["-c", &command])
        .stdin(Stdio::null())
        .output()
        .context("cannot start sh")?;
    ensure!(
        out.status.success(),
        "{command}: {}: {}",
        out.status,
        String::from_utf8_lossy(&out.stderr).trim()
    );
    Ok(())
}

fn needed(target: &Target, suites: &[&Suite]) -> Result<Vec<DebianPackage>> {
    let of_suites = suites.iter().flat_map(|suite| &suite.packages);
    let mut needed = Vec::new();
    for name in target.packages.iter().chain(of_suites) {
        let package = packages::by_name(name)
            .with_context(|| format!("xtask/src/packages.rs does not know {name}"))?;
        if !needed.contains(&package) {
            needed.push(package);
        }
    }
    Ok(needed)
}

/// Returns the versions of [`package_versions`] for a target before its machine starts.
///
/// # Errors
/// Returns an error if packages are missing and cannot be installed.
pub(crate) fn installed_versions(target: &Target, suites: &[&Suite]) -> Result<PackageVersions> {
    packages::install_missing(&needed(target, suites)?)?;
    let kernel = match target.machine {
        Machine::Host => None,
        Machine::Rxe => Some(rxe::kernel_release()?),
    };
    Ok(package_versions(kernel, suites))
}

/// Returns the versions of the packages that provide the programs, and of the kernel if the kernel
/// provides the device.
fn package_versions(kernel: Option<String>, suites: &[&Suite]) -> PackageVersions {
    let mut versions = BTreeMap::new();
    versions.extend(kernel.map(|release| ("linux".to_owned(), release)));
    for package in suites.iter().flat_map(|suite| &suite.packages) {
        let out = Command::new("dpkg-query")
            .args(["--show", "--showformat", "${Version}", package])
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .output();
        // Without dpkg the programs were not installed from packages, and their versions are unknown.
        if let Ok(out) = out
            && out.status.success()
        {
            let version = String::from_utf8_lossy(&out.stdout).trim().to_owned();
            versions.insert(package.clone(), version);
        }
    }
    versions
}

/// Runs `command` in the virtual machine. The command prints [`JsonLine`]s.
fn run_in_rxe_vm(
    command: Vec<OsString>,
    report: &mut dyn FnMut(JsonLine) -> Result<()>,
) -> Result<()> {
    let (sender, lines) = mpsc::channel();
    let machine =
        thread::spawn(move || rxe::run_command(command, LineSender::new(sender), io::stderr()));
    for line in lines {
        match serde_json::from_str(&line) {
            Ok(line) => report(line)?,
            Err(_) => eprintln!("{line}"),
        }
    }
    match machine.join() {
        Ok(Ok(0)) => Ok(()),
        Ok(Ok(status)) => bail!("what runs in the virtual machine ended with status {status}"),
        Ok(Err(err)) => Err(err),
        Err(_) => bail!("running the virtual machine failed"),
    }
}

/// A writer that sends each written line to a channel.
struct LineSender {
    begun: Vec<u8>,
    sender: Sender<String>,
}

impl LineSender {
    fn new(sender: Sender<String>) -> LineSender {
        LineSender {
            begun: Vec::new(),
            sender,
        }
    }

    fn send(&mut self) {
        let line = String::from_utf8_lossy(&self.begun).into_owned();
        self.begun.clear();
        // The receiver may have stopped after an error; the virtual machine nevertheless runs until its
        // process ends.
        let _ = self.sender.send(line);
    }
}

impl io::Write for LineSender {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for &byte in bytes {
            if byte == b'\n' {
                self.send();
            } else {
                self.begun.push(byte);
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for LineSender {
    fn drop(&mut self) {
        if !self.begun.is_empty() {
            self.send();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn lines_are_put_together() {
        let (sender, lines) = mpsc::channel();
        let mut writer = LineSender::new(sender);
        writer.write_all(b"on").unwrap();
        writer.write_all(b"e\ntwo\n\nthr").unwrap();
        drop(writer);
        let lines: Vec<String> = lines.iter().collect();
        assert_eq!(lines, ["one", "two", "", "thr"]);
    }
}
