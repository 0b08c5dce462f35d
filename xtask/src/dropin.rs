//! `cargo xtask dropin`: builds the command line program and the libraries that it loads into programs, and
//! optionally installs them.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::cargo_command::cargo;
use crate::paths::target_dir;

/// Arguments of `cargo xtask dropin`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Install below this folder: `bin/verbatim`, the libraries in `lib/verbatim`, man pages and completions in `share`
    /// [default: build only]
    #[arg(long, value_name = "DIR")]
    install: Option<PathBuf>,
}

/// The libraries to install: the file name in cargo's build folder, and the name by which programs load it.
const LIBRARIES: [(&str, &str); 7] = [
    ("libverbatim_dropin.so", "libibverbs.so.1"),
    ("libverbatim_dropin_rdmacm.so", "librdmacm.so.1"),
    ("libverbatim_dropin_umad.so", "libibumad.so.3"),
    ("libverbatim_tap.so", "libverbatim_tap.so"),
    ("libverbatim_view.so", "libverbatim_view.so"),
    ("libverbatim_sockets.so", "libverbatim_sockets.so"),
    ("libnccl_net_verbatim.so", "libnccl-net-verbatim.so"),
];

/// Runs `cargo xtask dropin`; returns false if the build fails.
pub(crate) fn run(args: &Args) -> Result<bool> {
    if !build()? {
        return Ok(false);
    }
    let program = match &args.install {
        None => program(),
        Some(root) => {
            let program = copy_built_files(&release_folder(), root)?;
            install_documentation(&program, &root.join("share"))?;
            program
        }
    };
    println!("try: {} run -- ibv_devinfo", program.display());
    Ok(true)
}

/// Builds the command line program and the libraries; returns false if the build fails.
pub(crate) fn build() -> Result<bool> {
    build_with("release")
}

/// Builds with the profile dev or release and installs the files below `root`; returns false if the build
/// fails. A dev build by the tests is reused.
pub(crate) fn install_built(dev: bool, root: &Path) -> Result<bool> {
    let profile = if dev { "dev" } else { "release" };
    let is_built = dev && std::env::var_os("VERBATIM_BUILT").is_some();
    if !is_built && !build_with(profile)? {
        return Ok(false);
    }
    let folder = if dev { "debug" } else { "release" };
    copy_built_files(&target_dir().join(folder), root)?;
    Ok(true)
}

fn build_with(profile: &str) -> Result<bool> {
    let status = cargo()
        .args(["build", "--profile", profile])
        .args(
            [
                "verbatim",
                "dropin",
                "dropin-rdmacm",
                "dropin-umad",
                "tap-preload",
                "view-preload",
                "sockets-preload",
                "nccl-net",
            ]
            .map(|package| format!("--package={package}")),
        )
        .status()
        .context("cannot start cargo")?;
    Ok(status.success())
}

/// Returns the path of the command line program that [`build`] builds.
pub(crate) fn program() -> PathBuf {
    release_folder().join("verbatim")
}

fn release_folder() -> PathBuf {
    target_dir().join("release")
}

/// Copies the built files below `root`; returns the program's path there.
fn copy_built_files(built: &Path, root: &Path) -> Result<PathBuf> {
    let (bin, lib) = (root.join("bin"), root.join("lib/verbatim"));
    for folder in [&bin, &lib] {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    }
    let program = bin.join("verbatim");
    copy(&built.join("verbatim"), &program)?;
    for (file, name) in LIBRARIES {
        copy(&built.join(file), &lib.join(name))?;
    }
    link_tool(&lib.join("bin")).context("cannot make the link lib/verbatim/bin/rdma")?;
    Ok(program)
}

/// The completions of a shell: its name, and the file below `share` in which it looks for them.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "bash-completion/completions/verbatim"),
    ("zsh", "zsh/site-functions/_verbatim"),
    ("fish", "fish/vendor_completions.d/verbatim.fish"),
];

/// Lets the program write its man pages and completions below the folder `share`.
fn install_documentation(program: &Path, share: &Path) -> Result<()> {
    let run = |args: &[&OsStr]| -> Result<Vec<u8>> {
        let out = Command::new(program)
            .args(args)
            .stderr(Stdio::inherit())
            .output()
            .with_context(|| format!("cannot start {}", program.display()))?;
        ensure!(out.status.success(), "{} failed", program.display());
        Ok(out.stdout)
    };
    run(&["man".as_ref(), share.join("man/man1").as_ref()])?;
    for (shell, file) in COMPLETIONS {
        let script = run(&["completions".as_ref(), shell.as_ref()])?;
        let file = share.join(file);
        let folder = file.parent().unwrap_or(share);
        let written = fs::create_dir_all(folder).and_then(|()| fs::write(&file, script));
        written.with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(())
}

/// Makes a link `rdma` to the program, in a folder that `verbatim run` puts first into `PATH`.
fn link_tool(folder: &Path) -> std::io::Result<()> {
    fs::create_dir_all(folder)?;
    let (link, new) = (folder.join("rdma"), folder.join("rdma.new"));
    match fs::remove_file(&new) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    std::os::unix::fs::symlink("../../../bin/verbatim", &new)?;
    fs::rename(new, link)
}

/// Replaces a file atomically, because running programs may use it.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let new = to.with_extension("new");
    fs::copy(from, &new)
        .and_then(|_| fs::rename(&new, to))
        .with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))
}
