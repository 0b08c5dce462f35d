//! `cargo xtask rxe`: runs a command in a virtual machine with the kernel's Soft-RoCE.
//!
//! The machine runs Debian's stock kernel under QEMU with software emulation, and an initramfs of
//! busybox and kernel modules. The machine sees the host's files below a writable layer that is
//! discarded at the end. The machine has an RDMA device `rxe0` on an Ethernet device with the
//! address 192.0.2.1 (from the documentation range, RFC 5737).
//!
//! - [`kernel`]: the kernel and its modules, from the distribution's package;
//! - [`initramfs`]: the content of the initramfs;
//! - [`vm`]: the running machine.

mod initramfs;
mod kernel;
mod vm;

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::packages::{self, DebianPackage};
use vm::MachineSize;

use initramfs::Job;

/// Arguments of `cargo xtask rxe`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Processors of the machine
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    cpus: u32,
    /// Memory of the machine in MiB
    #[arg(long, value_name = "MIB", default_value_t = 4096,
          value_parser = clap::value_parser!(u32).range(512..))]
    memory: u32,
    /// End the machine when the command has not ended after so many seconds
    #[arg(long = "limit", value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    time_limit_seconds: Option<u64>,
    /// The command and its arguments, run in the current folder [default: ibv_devinfo]
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "COMMAND"
    )]
    command: Vec<OsString>,
}

const EXAMPLES: &str = "\
Examples:
  cargo xtask rxe
  cargo xtask rxe -- target/release/verbatim sequencer --provider system
  cargo xtask rxe -- sh -c 'ib_send_bw -d rxe0 & sleep 1; ib_send_bw -d rxe0 192.0.2.1'

The command runs as root, in the current folder and with this environment. It may write anywhere:
what it writes is gone when it ends. Its output and its exit status are passed through; its standard
input is empty. Exit status 2 with a message when the machine does not start.";

/// Packages of the host's distribution that the machine needs.
pub(crate) const PACKAGES: &[DebianPackage] = &[
    packages::QEMU,
    packages::BUSYBOX_STATIC,
    packages::CPIO,
    packages::KMOD,
    packages::IPROUTE2,
    packages::IBVERBS_PROVIDERS,
    packages::IBVERBS_UTILS,
];

/// Seconds after which a test program is considered hung.
const TEST_LIMIT: u32 = 1200;

/// Returns the words that precede the command of a test program to run it in the virtual machine.
pub(crate) fn vm_runner_command() -> Result<Vec<String>> {
    let this = std::env::current_exe().context("cannot find this program's own file")?;
    let this = this.to_str().context("this program's path is not UTF-8")?;
    // A step may have rebuilt this program; the new program has the same path.
    let this = this.strip_suffix(" (deleted)").unwrap_or(this);
    let words = [this, "rxe", "--limit", &TEST_LIMIT.to_string(), "--"];
    Ok(words.map(str::to_owned).into())
}

pub(crate) fn run(args: Args) -> Result<ExitCode> {
    packages::install_missing(PACKAGES)?;
    let mut command = args.command;
    if command.is_empty() {
        command.push("ibv_devinfo".into());
    }
    let machine = MachineSize {
        cpus: args.cpus,
        memory_mib: args.memory,
    };
    let job = Job::in_this_environment(command)?;
    let limit = args.time_limit_seconds.map(Duration::from_secs);
    let status = machine.run(
        &kernel::get()?,
        &job,
        limit,
        std::io::stdout(),
        std::io::stderr(),
    )?;
    Ok(ExitCode::from(status))
}

/// Returns the release of the machine's kernel, such as `6.1.0-56-amd64`.
///
/// # Errors
/// Returns an error if the kernel's package is unavailable.
pub(crate) fn kernel_release() -> Result<String> {
    Ok(kernel::get()?.release)
}

/// Runs `command` in a machine of the default size, in the current folder; returns its exit status.
///
/// # Errors
/// Returns the errors of [`MachineSize::run`], and an error if packages are missing or no kernel is
/// available.
pub(crate) fn run_command(
    command: Vec<OsString>,
    stdout: impl Write + Send + 'static,
    stderr: impl Write + Send + 'static,
) -> Result<u8> {
    packages::install_missing(PACKAGES)?;
    let job = Job::in_this_environment(command)?;
    MachineSize::default().run(&kernel::get()?, &job, None, stdout, stderr)
}
