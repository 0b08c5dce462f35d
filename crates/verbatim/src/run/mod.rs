//! `verbatim run`: an unmodified program on the software NIC, or under the tap on the machine's own.
//!
//! On the software NIC the program finds the drop-in `libibverbs.so.1`, `librdmacm.so.1` and `libibumad.so.3` before
//! the system's libraries. The program also finds the files of an RDMA device in `/sys` and `/dev`. It replaces this
//! process, so its signals, standard streams and exit status are its own. With `--ledger` or `--fault` this process
//! waits for the program instead. On the machine's own NIC the program runs as without this command; the tap is added
//! if verbs are counted or traced.
//!
//! - [`identity`]: the identity that the device reports;
//! - [`library`]: the search for the libraries, and [`mod@preload`]: the programs into which a library is preloaded;
//! - [`view`]: the device's files, in a [`namespace`] of the program's own;
//! - [`view_file_copies`]: the device's files if a namespace is forbidden;
//! - [`rdma_tool`]: `rdma(8)`, which queries the kernel;
//! - [`summary`]: the report on the program's use of RDMA.

mod identity;
mod library;
mod namespace;
mod preload;
mod rdma_tool;
mod summary;
mod view;
mod view_file_copies;

pub(crate) use library::find_sockets_library;
pub(crate) use preload::ld_preload_value;
pub(crate) use rdma_tool::exec_system_rdma_if_called_rdma;

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use softnic::SysfsFile;
use tap::Ledger;

use crate::CommandOutcome;
use crate::args::{self, DeviceCountAndPortCountArgs, LinkLayerArgs, Provider, parse_fabric_name};
use crate::capture::CaptureArgs;
use crate::fault::{self, FaultArgs};
use crate::ledger::{self, LedgerArgs};
use crate::program::{not_found_hint, run_to_end};
use namespace::{EnterResult, UserNamespaceFileLock};
use preload::PRELOAD_VARIABLE;

/// Arguments of `verbatim run`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// On which NIC: the software NIC, or the machine's own through libibverbs, which --ledger and --trace watch
    #[arg(long, value_enum, default_value_t = Provider::Softnic)]
    provider: Provider,
    #[command(flatten)]
    link_layer: LinkLayerArgs,
    #[command(flatten)]
    ports: DeviceCountAndPortCountArgs,
    /// Only programs that were run with this name reach each other [default: all of this user's]
    #[arg(long, value_name = "NAME", value_parser = parse_fabric_name)]
    fabric: Option<String>,
    /// Parameters of DCQCN, by which queue pairs obey congestion notifications, such as
    /// min_rate_bps=1e9,increase_timer_ns=300000; or off [default: those of the paper, SIGCOMM 2015]
    #[arg(long, value_name = "SETTING", value_parser = softnic::check_dcqcn_setting)]
    dcqcn: Option<String>,
    #[command(flatten)]
    capture: CaptureArgs,
    #[command(flatten)]
    fault: FaultArgs,
    #[command(flatten)]
    ledger: LedgerArgs,
    /// Write what the program does with the verbs to FILE, a line a verb, for all of its processes
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// What the device says that it is, since programs choose features by it: a NIC of `verbatim model` (cx, cx3,
    /// cib, bf2), an adapter of `verbatim devices --adapters` (connectx7, efa, e810, …), which also has that adapter's
    /// queue pairs, features and limits, or a file with either [default: the software NIC itself]. Its link layer is
    /// that of the NIC, unless --link-layer or the environment says otherwise
    #[arg(long, value_name = "NIC")]
    nic: Option<String>,
    /// Print why each work request failed that fails on the software NIC: the check, its numbers and the queue pair.
    /// Without it, a process with failures prints their count and the first ones at its end (see docs/why.md)
    #[arg(long)]
    why: bool,
    /// Say at the end whether the program used RDMA: devices, queue pairs, verbs and bytes, a line a process. Implies
    /// --preload
    #[arg(long)]
    summary: bool,
    /// Load the software NIC's libibverbs before all else, for programs that bring one of their own, as Python wheels
    /// do. A process that opens no device of it although it looked for one says so at its end [default: for Python and
    /// scripts of it]
    #[arg(long)]
    preload: bool,
    /// Leave /sys and /dev as they are: no files of an RDMA device there, and no namespace
    #[arg(long)]
    no_view: bool,
    /// The program and its arguments; `--` before it keeps its own flags apart
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "PROGRAM"
    )]
    command: Vec<OsString>,
}

const EXAMPLES: &str = "\
Examples:
  verbatim run -- ibv_devinfo
  verbatim run -- ib_write_bw                     a server, and in another terminal:
  verbatim run -- ib_write_bw 127.0.0.1           its client
  verbatim run --link-layer ib -- ibv_rc_pingpong
  verbatim run --nic cib -- ib_write_bw           on a device that says it is a Connect-IB
  verbatim run --devices 2 --ports 2 -- ibv_devinfo    softnic0 and softnic1, two ports each
  verbatim run --nic efa -- fi_info -p verbs      which path would my program take on EFA?
  verbatim run --trace t.txt -- rping -s          one line a verb in t.txt, with a legend
  verbatim run --ledger l.json -- ib_write_bw 127.0.0.1; verbatim explain l.json --nic cib
  verbatim run --fault 'verb=ibv_reg_mr,errno=ENOMEM,count=1,after=1' -- ib_write_bw    a verb is refused once
  verbatim run --why -- ib_write_bw 127.0.0.1     why a work request failed: the check and its numbers
  verbatim run --summary -- python3 job.py        did this really use RDMA?
  verbatim run --pcap x.pcap -- ibv_rc_pingpong -g 0    its packets; the same for the client, then: tshark -r x.pcap
  verbatim run --provider system --ledger l.json -- ib_write_bw     on the machine's own NIC

The program sees the device in /sys/class/infiniband, /sys/class/infiniband_verbs and /dev/infiniband, \
where UCX and others look for it, by mounts in a namespace of its own; a user who may not mount gets a \
user namespace for it. Where the system forbids that, a note says so, and a preloaded library shows them to \
programs that use the C library. rdma(8) of iproute2 shows the device, too: it is found in front of PATH, and by its \
path with --preload.

Exit status: the program's; 2 when it could not be run.";

/// Environment variable with the folders that the loader searches before the system's libraries.
const LIBRARY_PATH_VARIABLE: &str = "LD_LIBRARY_PATH";
/// Environment variable that makes the preloaded library report that it was not used. With the value `wheels` it
/// reports this only if another libibverbs was loaded.
const REPORT_UNUSED_VARIABLE: &str = "VERBATIM_PRELOADED";
/// Environment variable that names the fabric that the software NIC joins.
const FABRIC_VARIABLE: &str = "VERBATIM_FABRIC";

/// Runs `verbatim run`. Without a ledger and faults the function returns only if the program could not be started.
pub(crate) fn run(args: &Args) -> Result<CommandOutcome> {
    let (program, rest) = match &args.command[..] {
        [program, rest @ ..] if !program.is_empty() => (program, rest),
        _ => bail!("name the program to run, such as: verbatim run -- ibv_devinfo"),
    };
    args::refuse_same_output_file(&[
        ("--trace", args.trace.as_deref()),
        ("--ledger", args.ledger.file()),
        ("--pcap", args.capture.file()),
    ])?;
    let mut command = Command::new(program);
    command.args(rest);
    let door = match args.provider {
        Provider::Softnic => prepare_program_for_softnic(args, &mut command)?,
        Provider::System => {
            preload_tap_for_system_provider(args, &mut command)?;
            None
        }
    };
    let words = ledger::join_command_line(&args.command);
    if let Some(file) = &args.trace {
        command.env(
            tap::trace::TRACE_FILE_ENV_VAR,
            create_trace_file(file, &words)?,
        );
    }
    if args.ledger.is_wanted() || args.summary || args.fault.is_wanted() {
        // Release the lock here; otherwise it would be held for as long as the program runs.
        drop(door);
    }
    let faulty = args.fault.add_to_environment(&mut command)?;
    let summary: Option<fn(&Ledger)> = args
        .summary
        .then_some(|ledger| eprint!("{}", summary::format_report(ledger)));
    let recorded = args
        .ledger
        .run_under_tap_or_return_command(command, &words, summary)?;
    let mut command = match (recorded, faulty) {
        (Ok(outcome), None) => return Ok(outcome),
        (Ok(outcome), Some(faulty)) => {
            faulty.print_struck_fault_counts()?;
            return Ok(outcome);
        }
        (Err(mut command), Some(faulty)) => {
            let outcome = run_to_end(&mut command, &words)?;
            faulty.print_struck_fault_counts()?;
            return Ok(outcome);
        }
        (Err(command), None) => command,
    };
    let err = command.exec();
    let hint = not_found_hint(program, &err);
    Err(err).with_context(|| format!("cannot run {}{hint}", program.display()))
}

/// Prepares a program to find the software NIC. The returned lock must be held until the program has started.
fn prepare_program_for_softnic(
    args: &Args,
    command: &mut Command,
) -> Result<Option<UserNamespaceFileLock>> {
    let nic = args.nic.as_deref().map(identity::of_nic).transpose()?;
    let fabric = args
        .fabric
        .as_deref()
        .map(|name| (FABRIC_VARIABLE, name.into()));
    let ports = args
        .ports
        .env_variables_with_default_ports(nic.as_ref().and_then(|nic| nic.port_count));
    let port = nic.as_ref().map(|nic| nic.link_layer);
    args.link_layer
        .apply_peer_path_and_addresses_by_reexec(port, fabric.into_iter().chain(ports))?;
    let folder = library::find_dropin_folder()?;
    let link_layer = args.link_layer.link_layer_variable_or_default(port);
    command
        .env(LIBRARY_PATH_VARIABLE, extended_library_path(&folder)?)
        .envs(
            args.link_layer
                .create_capture_file_and_variable(&args.capture, port)?,
        )
        .envs(link_layer);
    let asked = args.preload || args.summary;
    if asked || preload::runs_python(command.get_program()) {
        command
            .env(
                PRELOAD_VARIABLE,
                ld_preload_value(&folder.join("libibverbs.so.1"))?,
            )
            .env(REPORT_UNUSED_VARIABLE, if asked { "1" } else { "wheels" });
    }
    if args.why {
        command.env(softnic::WHY_VAR, "each");
    } else if std::env::var_os(softnic::WHY_VAR).is_none() {
        command.env(softnic::WHY_VAR, "summary");
    }
    if let Some(nic) = &nic {
        command.env(softnic::DEVICE_VAR, nic.identity.to_string());
    }
    if let Some(dcqcn) = &args.dcqcn {
        command.env(softnic::DCQCN_VAR, dcqcn);
    }
    let capabilities = nic.as_ref().and_then(|nic| nic.capabilities);
    if let Some(capabilities) = capabilities {
        command.env(softnic::CAPABILITIES_VAR, capabilities.to_string());
    }
    let link_layer = link_layer.map(|(_, value)| value);
    if args.no_view {
        return Ok(None);
    }
    // If the NIC has no files, the program's own attempt to use the device will report the reason.
    let identity = nic.as_ref().map(|nic| &nic.identity);
    let link_layer = link_layer.map(OsStr::new);
    let Ok(files) = softnic::sysfs_files(link_layer, identity, capabilities.as_ref(), None) else {
        return Ok(None);
    };
    if let Some(path) = rdma_tool::path_with_own_rdma_first(&folder) {
        command.env("PATH", path);
    }
    if args.preload || rdma_tool::is_rdma_tool(command.get_program()) {
        prepend_preload(&library::find_view_library()?, command)?;
    }
    let mut door = None;
    if let Err(forbidden) = mount_device_files(&files, &mut door) {
        let instead = show_files_by_preload(&files, command);
        let instead = match &instead {
            Ok(()) => {
                "a preloaded library shows them to programs that use the C library".to_owned()
            }
            Err(err) => format!("programs that look there, as UCX does, find none ({err:#})"),
        };
        eprintln!(
            "note: no private view of /sys and /dev with the files of the device ({forbidden:#}): {instead}; \
             --no-view goes without"
        );
    }
    if door.is_some() {
        let own = namespace::own_user_namespace_inode()
            .context("cannot tell which user namespace this is")?;
        command.env(namespace::USER_NAMESPACE_INODE_VARIABLE, own);
    }
    Ok(door)
}

/// Prepares a program to find the files of the device by a preloaded library.
fn show_files_by_preload(files: &[SysfsFile], command: &mut Command) -> Result<()> {
    prepend_preload(&library::find_view_library()?, command)?;
    command.env(
        view_file_copies::VIEW_FOLDER_VARIABLE,
        view_file_copies::find_or_create_folder(files)?,
    );
    Ok(())
}

/// Adds a library before all other libraries that the program preloads.
fn prepend_preload(library: &Path, command: &mut Command) -> Result<()> {
    let mut libraries = ld_preload_value(library)?;
    let own = command
        .get_envs()
        .find(|(name, _)| *name == PRELOAD_VARIABLE);
    if let Some((_, Some(own))) = own {
        // The program's variable ends with the list of this process too, so that list appears twice. This is harmless:
        // the loader loads each library once.
        libraries.push(OsStr::new(":"));
        libraries.push(own);
    }
    command.env(PRELOAD_VARIABLE, libraries);
    Ok(())
}

/// Prepares a program whose verbs are counted or traced: preloads the tap before the machine's own libibverbs.
fn preload_tap_for_system_provider(args: &Args, command: &mut Command) -> Result<()> {
    args.link_layer.apply_by_reexec(Some(Provider::System))?;
    for (given, flag) in [
        (args.fabric.is_some(), "--fabric"),
        (args.nic.is_some(), "--nic"),
        (!args.ports.are_default(), "--devices and --ports"),
        (args.no_view, "--no-view"),
        (args.preload, "--preload"),
    ] {
        if given {
            bail!("{flag} is for the software NIC; leave it out, or --provider system");
        }
    }
    fault::refuse_faults_for_system_provider(&args.fault)?;
    args::refuse_capture_for_system_provider(&args.capture)?;
    if args.ledger.is_wanted() || args.summary || args.trace.is_some() {
        command.env(
            PRELOAD_VARIABLE,
            ld_preload_value(&library::find_tap_library()?)?,
        );
    }
    Ok(())
}

/// Creates the file of a trace and returns its absolute path, since the program may change its working directory.
fn create_trace_file(file: &Path, words: &str) -> Result<PathBuf> {
    let cannot = || format!("cannot write the trace {}", file.display());
    tap::trace::create_trace_file(file, words).with_context(cannot)?;
    file.canonicalize().with_context(cannot)
}

/// Shows the files of the device to the program by mounts.
fn mount_device_files(files: &[SysfsFile], door: &mut Option<UserNamespaceFileLock>) -> Result<()> {
    match namespace::enter_own_mount_namespace(door)? {
        EnterResult::OwnMounts => view::create_mounts(files),
        EnterResult::InheritedMounts => Ok(()),
    }
}

/// Returns the search path of the loader with `folder` in front.
fn extended_library_path(folder: &Path) -> Result<OsString> {
    // ld.so(8): items are separated by colons or semicolons, and $ORIGIN and similar tokens are expanded.
    let unspeakable = |b: &u8| b":;$".contains(b);
    if folder
        .as_os_str()
        .as_encoded_bytes()
        .iter()
        .any(unspeakable)
    {
        bail!(
            "{} has a colon, a semicolon or a dollar sign in it, which {LIBRARY_PATH_VARIABLE} cannot say; \
             move it elsewhere",
            folder.display()
        );
    }
    let mut path = folder.as_os_str().to_owned();
    let before = std::env::var_os(LIBRARY_PATH_VARIABLE);
    if let Some(before) = before.as_deref().filter(|p| !p.is_empty()) {
        path.push(OsStr::new(":"));
        path.push(before);
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_comes_first_and_must_be_speakable() {
        let path = extended_library_path(Path::new("/opt/verbatim")).expect("a plain folder");
        assert!(path.to_string_lossy().starts_with("/opt/verbatim"));
        for wrong in ["/a:b", "/a;b", "/$ORIGIN"] {
            assert!(extended_library_path(Path::new(wrong)).is_err(), "{wrong}");
        }
    }

    #[test]
    fn names_of_fabrics() {
        assert_eq!(parse_fabric_name("job_17"), Ok("job_17".to_owned()));
        for wrong in ["", "a/b", "..", "a b", &"x".repeat(65)] {
            assert!(parse_fabric_name(wrong).is_err(), "{wrong:?}");
        }
    }
}
