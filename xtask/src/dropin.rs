//! `cargo xtask dropin`: the command line and the library that it gives to programs, built and laid out.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::workspace;

/// Arguments of `cargo xtask dropin`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Install below this folder: `bin/verbatim` and `lib/verbatim/libibverbs.so.1` [default: build only]
    #[arg(long, value_name = "DIR")]
    install: Option<PathBuf>,
}

/// What cargo calls the library.
const BUILT: &str = "libverbatim_dropin.so";
/// What programs ask the loader for.
const NAMES: &[&str] = &["libibverbs.so.1"];

/// Runs the chore.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let status = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["build", "--release", "-p", "verbatim", "-p", "dropin"])
        .current_dir(workspace())
        .status()
        .context("cannot start cargo")?;
    if !status.success() {
        return Ok(false);
    }
    let target = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| workspace().join("target"), PathBuf::from);
    let built = workspace().join(target).join("release");
    let program = match &args.install {
        None => built.join("verbatim"),
        Some(root) => install(&built, root)?,
    };
    println!("try: {} run -- ibv_devinfo", program.display());
    Ok(true)
}

/// Copies what was built; the program's place.
fn install(built: &Path, root: &Path) -> Result<PathBuf> {
    let (bin, lib) = (root.join("bin"), root.join("lib/verbatim"));
    for folder in [&bin, &lib] {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("cannot make {}", folder.display()))?;
    }
    let program = bin.join("verbatim");
    copy(&built.join("verbatim"), &program)?;
    let Some((first, others)) = NAMES.split_first() else {
        bail!("the library has no name");
    };
    copy(&built.join(BUILT), &lib.join(first))?;
    // One library under several names is loaded once.
    for name in others {
        let link = lib.join(name);
        let _ = std::fs::remove_file(&link);
        std::os::unix::fs::symlink(first, &link)
            .with_context(|| format!("cannot make {}", link.display()))?;
    }
    Ok(program)
}

/// Replaces a file that programs may be using.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let new = to.with_extension("new");
    std::fs::copy(from, &new)
        .and_then(|_| std::fs::rename(&new, to))
        .with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))
}
