//! The kernel of the virtual machine: the distribution's package, downloaded and unpacked, but not
//! installed.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::paths::target_dir;

/// The Debian package that depends on the newest kernel package.
const META_PACKAGE: &str = "linux-image-amd64";

/// Kernel modules that the machine loads, in this order, each after its dependencies.
///
/// `rdma_rxe` uses the crypto algorithm `crc32` without a dependency on `crc32_generic`, so
/// `crc32_generic` comes first.
const MODULES: &[&str] = &[
    "virtio_pci",
    "virtio_console",
    "9pnet_virtio",
    "9p",
    "overlay",
    "crc32_generic",
    "ib_uverbs",
    "rdma_ucm",
    "rdma_rxe",
    "dummy",
    "veth",
    "af_packet",
    "sch_netem",
];

/// A kernel that is ready to boot.
#[derive(Debug)]
pub(crate) struct Kernel {
    /// The kernel release, such as `6.1.0-56-amd64`.
    pub(crate) release: String,
    /// The path of the kernel image.
    pub(crate) image: PathBuf,
    /// The paths of the kernel modules, in the order of loading.
    pub(crate) modules: Vec<PathBuf>,
}

/// Returns the kernel below the build folder, and downloads it first if necessary.
///
/// # Errors
/// Returns an error if the package is unavailable or incomplete; the message says what to do.
pub(crate) fn get() -> Result<Kernel> {
    let folder = target_dir().join("rxe");
    let kernel = folder.join("kernel");
    if !kernel.is_dir() {
        download(&folder).with_context(|| {
            format!(
                "the virtual machine needs Debian's kernel (package {META_PACKAGE}); where apt-get \
                 has no such package, unpack one with `dpkg-deb -x PACKAGE {}`",
                kernel.display()
            )
        })?;
    }
    unpacked(&kernel).with_context(|| {
        format!(
            "{} is no unpacked kernel; remove that folder and run this again",
            kernel.display()
        )
    })
}

/// Downloads and unpacks the package to `folder/kernel`, atomically.
fn download(folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder)?;
    let mut list = newest_kernel_package(META_PACKAGE);
    if list.is_err() {
        // A new installation of Debian has no package lists yet.
        crate::packages::update_lists()?;
        list = newest_kernel_package(META_PACKAGE);
    }
    let package = list?;
    eprintln!("downloading {package} (the kernel of the virtual machine; it is not installed)");
    let scratch = folder.join(format!("scratch-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&scratch);
    std::fs::create_dir_all(&scratch)?;
    let done = download_and_unpack(&package, &scratch).and_then(|()| {
        match std::fs::rename(scratch.join("kernel"), folder.join("kernel")) {
            // Another process has downloaded the kernel first.
            Err(_) if folder.join("kernel").is_dir() => Ok(()),
            renamed => Ok(renamed?),
        }
    });
    let _ = std::fs::remove_dir_all(&scratch);
    done
}

fn download_and_unpack(package: &str, scratch: &Path) -> Result<()> {
    let download = ["download", "-q", package];
    if run(Command::new("apt-get").args(download).current_dir(scratch)).is_err() {
        // The package lists name a version that the archive has replaced.
        crate::packages::update_lists()?;
        let package = newest_kernel_package(META_PACKAGE)?;
        let download = ["download", "-q", &package];
        run(Command::new("apt-get").args(download).current_dir(scratch))?;
    }
    let file = std::fs::read_dir(scratch)?
        .filter_map(Result::ok)
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|e| e == "deb"))
        .context("apt-get download left no package")?;
    let kernel = scratch.join("kernel");
    run(Command::new("dpkg-deb").arg("-x").arg(file).arg(&kernel))
}

/// Returns the name of the kernel package on which the meta package depends.
fn newest_kernel_package(package: &str) -> Result<String> {
    let out = Command::new("apt-cache")
        .args(["depends", package])
        .stderr(Stdio::null())
        .output()
        .context("cannot run apt-cache")?;
    String::from_utf8_lossy(&out.stdout)
        .lines()
        .find_map(|line| line.trim().strip_prefix("Depends: linux-image-"))
        .map(|rest| format!("linux-image-{}", rest.trim()))
        .with_context(|| format!("apt-cache knows no package {package}"))
}

fn run(command: &mut Command) -> Result<()> {
    let shown = format!("{command:?}");
    let out = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot run {shown}"))?;
    if !out.status.success() {
        let words = String::from_utf8_lossy(&out.stderr);
        bail!("{shown} failed ({}): {}", out.status, words.trim());
    }
    Ok(())
}

/// Returns the kernel in an unpacked package.
fn unpacked(folder: &Path) -> Result<Kernel> {
    let boot = folder.join("boot");
    let release = std::fs::read_dir(&boot)
        .with_context(|| format!("cannot read {}", boot.display()))?
        .filter_map(Result::ok)
        .find_map(|entry| {
            let name = entry.file_name();
            Some(name.to_str()?.strip_prefix("vmlinuz-")?.to_owned())
        })
        .with_context(|| format!("{} has no vmlinuz", boot.display()))?;
    let modules = folder.join("lib/modules").join(&release);
    let dep = modules.join("modules.dep");
    if !dep.is_file() {
        run(Command::new("depmod").arg("-b").arg(folder).arg(&release))?;
    }
    let dep =
        std::fs::read_to_string(&dep).with_context(|| format!("cannot read {}", dep.display()))?;
    let builtin = std::fs::read_to_string(modules.join("modules.builtin")).unwrap_or_default();
    Ok(Kernel {
        image: boot.join(format!("vmlinuz-{release}")),
        modules: load_order(&dep, &builtin, MODULES)?
            .into_iter()
            .map(|path| modules.join(path))
            .collect(),
        release,
    })
}

/// Returns the files to load for the modules `wanted`, dependencies first, from the text of
/// `modules.dep`.
///
/// # Errors
/// Returns an error if a module is neither available nor, by `modules.builtin`, part of the kernel
/// image.
fn load_order<'a>(dep: &'a str, builtin: &str, wanted: &[&str]) -> Result<Vec<&'a str>> {
    let lines = dep.lines().filter_map(|line| line.split_once(':'));
    let depends: HashMap<&str, Vec<&str>> = lines
        .map(|(path, needs)| (path, needs.split_whitespace().collect()))
        .collect();
    let by_name: HashMap<String, &str> = depends.keys().map(|path| (name(path), *path)).collect();
    let builtin: HashSet<String> = builtin.lines().map(name).collect();
    let mut order = Vec::new();
    for module in wanted {
        match by_name.get(*module) {
            // modules.dep lists all dependencies of a module, direct ones first.
            Some(path) => {
                for path in depends[path].iter().rev().chain([path]) {
                    if !order.contains(path) {
                        order.push(path);
                    }
                }
            }
            None if builtin.contains(*module) => {}
            None => bail!("this kernel has no module {module}"),
        }
    }
    Ok(order)
}

/// Returns the name of the module in the file at `path`.
fn name(path: &str) -> String {
    let file = path.rsplit('/').next().unwrap_or(path);
    let stem = file.split(".ko").next().unwrap_or(file);
    stem.replace('-', "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEP: &str = "\
kernel/drivers/virtio/virtio_pci.ko: kernel/drivers/virtio/virtio.ko kernel/drivers/virtio/virtio_ring.ko
kernel/drivers/virtio/virtio.ko: kernel/drivers/virtio/virtio_ring.ko
kernel/drivers/virtio/virtio_ring.ko:
kernel/net/9p/9pnet-virtio.ko.xz: kernel/drivers/virtio/virtio.ko kernel/drivers/virtio/virtio_ring.ko
";

    #[test]
    fn what_a_module_needs_comes_before_it_and_once() {
        let order = load_order(DEP, "", &["virtio_pci", "9pnet_virtio"]).expect("all there");
        let names: Vec<String> = order.into_iter().map(name).collect();
        assert_eq!(
            names,
            ["virtio_ring", "virtio", "virtio_pci", "9pnet_virtio"]
        );
    }

    #[test]
    fn what_is_built_in_is_not_loaded_and_what_is_nowhere_is_named() {
        let builtin = "kernel/crypto/crc32_generic.ko\n";
        let order = load_order(DEP, builtin, &["crc32_generic"]).expect("built in");
        assert!(order.is_empty());
        let err = load_order(DEP, builtin, &["rdma_rxe"]).expect_err("nowhere");
        assert_eq!(err.to_string(), "this kernel has no module rdma_rxe");
    }
}
