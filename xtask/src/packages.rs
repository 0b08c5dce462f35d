//! System packages that steps of `cargo xtask test` need, and their installation.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// A Debian package, and a check that its content is present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DebianPackage {
    pub(crate) name: &'static str,
    pub(crate) why: &'static str,
    presence_check: PresenceCheck,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PresenceCheck {
    Program(&'static str),
    File(&'static str),
}

pub(crate) const GCC: DebianPackage = DebianPackage {
    name: "gcc",
    why: "the layout tests compile a C program",
    presence_check: PresenceCheck::Program("gcc"),
};
pub(crate) const LIBC_DEV: DebianPackage = DebianPackage {
    name: "libc6-dev",
    why: "the layout tests compile a C program",
    presence_check: PresenceCheck::File("/usr/include/stdio.h"),
};
pub(crate) const LIBIBVERBS_DEV: DebianPackage = DebianPackage {
    name: "libibverbs-dev",
    why: "the layout tests compare with its headers",
    presence_check: PresenceCheck::File("/usr/include/infiniband/verbs.h"),
};
pub(crate) const LIBRDMACM_DEV: DebianPackage = DebianPackage {
    name: "librdmacm-dev",
    why: "the layout tests compare with its headers",
    presence_check: PresenceCheck::File("/usr/include/rdma/rdma_cma.h"),
};
pub(crate) const PERFTEST: DebianPackage = DebianPackage {
    name: "perftest",
    why: "its programs are run on the software NIC",
    presence_check: PresenceCheck::Program("ib_write_bw"),
};
pub(crate) const UCX_UTILS: DebianPackage = DebianPackage {
    name: "ucx-utils",
    why: "ucx_perftest is a peer of the benchmark",
    presence_check: PresenceCheck::Program("ucx_perftest"),
};
pub(crate) const CHROMIUM: DebianPackage = DebianPackage {
    name: "chromium",
    why: "reports are looked at in a browser",
    presence_check: PresenceCheck::Program("chromium"),
};
pub(crate) const REDIS_SERVER: DebianPackage = DebianPackage {
    name: "redis-server",
    why: "redis-server is a peer of the benchmark",
    presence_check: PresenceCheck::Program("redis-server"),
};
pub(crate) const IPERF3: DebianPackage = DebianPackage {
    name: "iperf3",
    why: "it is a peer of the benchmark of packets",
    presence_check: PresenceCheck::Program("iperf3"),
};
pub(crate) const REDIS_TOOLS: DebianPackage = DebianPackage {
    name: "redis-tools",
    why: "redis-benchmark drives that peer, and with redis-cli looks at the key-value store",
    presence_check: PresenceCheck::Program("redis-benchmark"),
};
pub(crate) const OPENSSL: DebianPackage = DebianPackage {
    name: "openssl",
    why: "it makes the certificates of servers that speak TLS",
    presence_check: PresenceCheck::Program("openssl"),
};
pub(crate) const TSHARK: DebianPackage = DebianPackage {
    name: "tshark",
    why: "it reads captures of packets",
    presence_check: PresenceCheck::Program("tshark"),
};

pub(crate) const QEMU: DebianPackage = DebianPackage {
    name: "qemu-system-x86",
    why: "it runs the virtual machine with the kernel's Soft-RoCE",
    presence_check: PresenceCheck::Program("qemu-system-x86_64"),
};
pub(crate) const BUSYBOX_STATIC: DebianPackage = DebianPackage {
    name: "busybox-static",
    why: "the virtual machine starts with it",
    presence_check: PresenceCheck::File("/bin/busybox"),
};
pub(crate) const CPIO: DebianPackage = DebianPackage {
    name: "cpio",
    why: "it packs what the virtual machine starts with",
    presence_check: PresenceCheck::Program("cpio"),
};
pub(crate) const KMOD: DebianPackage = DebianPackage {
    name: "kmod",
    why: "its depmod orders the kernel's modules",
    presence_check: PresenceCheck::Program("depmod"),
};
pub(crate) const IPROUTE2: DebianPackage = DebianPackage {
    name: "iproute2",
    why: "its ip makes the networks of tests, its rdma adds the Soft-RoCE device",
    presence_check: PresenceCheck::Program("rdma"),
};
pub(crate) const IBVERBS_PROVIDERS: DebianPackage = DebianPackage {
    name: "ibverbs-providers",
    why: "libibverbs needs it to use Soft-RoCE",
    presence_check: PresenceCheck::File("/etc/libibverbs.d/rxe.driver"),
};
pub(crate) const IBVERBS_UTILS: DebianPackage = DebianPackage {
    name: "ibverbs-utils",
    why: "its ibv_devinfo says what a device is",
    presence_check: PresenceCheck::Program("ibv_devinfo"),
};
pub(crate) const INFINIBAND_DIAGS: DebianPackage = DebianPackage {
    name: "infiniband-diags",
    why: "a suite of conformance/",
    presence_check: PresenceCheck::Program("sminfo"),
};
pub(crate) const QPERF: DebianPackage = DebianPackage {
    name: "qperf",
    why: "a suite of conformance/",
    presence_check: PresenceCheck::Program("qperf"),
};
pub(crate) const RDMACM_UTILS: DebianPackage = DebianPackage {
    name: "rdmacm-utils",
    why: "its programs run on the drop-in, and are a suite of conformance/",
    presence_check: PresenceCheck::Program("rping"),
};
pub(crate) const PYTHON3_PYVERBS: DebianPackage = DebianPackage {
    name: "python3-pyverbs",
    why: "a suite of conformance/",
    presence_check: PresenceCheck::File("/usr/share/doc/rdma-core/tests/run_tests.py"),
};

pub(crate) const LIBFABRIC_BIN: DebianPackage = DebianPackage {
    name: "libfabric-bin",
    why: "a suite of conformance/",
    presence_check: PresenceCheck::Program("fi_pingpong"),
};
pub(crate) const OPENMPI_BIN: DebianPackage = DebianPackage {
    name: "openmpi-bin",
    why: "a suite of conformance/",
    presence_check: PresenceCheck::Program("mpirun.openmpi"),
};
pub(crate) const LIBOPENMPI_DEV: DebianPackage = DebianPackage {
    name: "libopenmpi-dev",
    why: "programs of conformance/ are compiled with it",
    // Do not check for `mpicc.openmpi`, which exists without this package.
    presence_check: PresenceCheck::File("/usr/share/doc/libopenmpi-dev/copyright"),
};
pub(crate) const MPICH: DebianPackage = DebianPackage {
    name: "mpich",
    why: "a suite of conformance/",
    presence_check: PresenceCheck::Program("mpiexec.mpich"),
};
pub(crate) const LIBMPICH_DEV: DebianPackage = DebianPackage {
    name: "libmpich-dev",
    why: "programs of conformance/ are compiled with it",
    presence_check: PresenceCheck::File("/usr/share/doc/libmpich-dev/copyright"),
};
pub(crate) const CMAKE: DebianPackage = DebianPackage {
    name: "cmake",
    why: "the examples of a crate are built with it",
    presence_check: PresenceCheck::Program("cmake"),
};
pub(crate) const LIBCLANG: DebianPackage = DebianPackage {
    name: "libclang1-14",
    why: "the examples of a crate are built with it",
    presence_check: PresenceCheck::File("/usr/lib/llvm-14/lib/libclang.so.1"),
};
pub(crate) const MEMCACHED: DebianPackage = DebianPackage {
    name: "memcached",
    why: "its connections are carried by `verbatim sockets`",
    presence_check: PresenceCheck::Program("memcached"),
};
pub(crate) const LIBMEMCACHED_TOOLS: DebianPackage = DebianPackage {
    name: "libmemcached-tools",
    why: "its clients ask memcached",
    presence_check: PresenceCheck::Program("memccapable"),
};
pub(crate) const NGINX: DebianPackage = DebianPackage {
    name: "nginx-light",
    why: "its connections are carried by `verbatim sockets`",
    presence_check: PresenceCheck::Program("nginx"),
};
pub(crate) const HAPROXY: DebianPackage = DebianPackage {
    name: "haproxy",
    why: "it splices between connections that `verbatim sockets` carries",
    presence_check: PresenceCheck::Program("haproxy"),
};
pub(crate) const APACHE2_UTILS: DebianPackage = DebianPackage {
    name: "apache2-utils",
    why: "ab asks nginx",
    presence_check: PresenceCheck::Program("ab"),
};
pub(crate) const WRK: DebianPackage = DebianPackage {
    name: "wrk",
    why: "it asks nginx",
    presence_check: PresenceCheck::Program("wrk"),
};
pub(crate) const POSTGRESQL: DebianPackage = DebianPackage {
    name: "postgresql",
    why: "its connections are carried by `verbatim sockets`",
    presence_check: PresenceCheck::Program("pg_ctlcluster"),
};
pub(crate) const PYTHON3_REQUESTS: DebianPackage = DebianPackage {
    name: "python3-requests",
    why: "it asks Python's HTTP server",
    presence_check: PresenceCheck::File("/usr/lib/python3/dist-packages/requests/__init__.py"),
};
pub(crate) const PYTHON3_MINIMAL: DebianPackage = DebianPackage {
    name: "python3-minimal",
    why: "scripts of conformance/ are run by it",
    presence_check: PresenceCheck::Program("python3"),
};
pub(crate) const PYTHON3_NUMPY: DebianPackage = DebianPackage {
    name: "python3-numpy",
    why: "the wheel of NIXL needs it",
    presence_check: PresenceCheck::File("/usr/share/doc/python3-numpy"),
};
pub(crate) const PYTHON3_PIP: DebianPackage = DebianPackage {
    name: "python3-pip",
    why: "wheels of other projects are installed by it",
    presence_check: PresenceCheck::File("/usr/share/doc/python3-pip"),
};
pub(crate) const PYTHON3_VENV: DebianPackage = DebianPackage {
    name: "python3-venv",
    why: "the Python wheel is tested in a virtual environment",
    presence_check: PresenceCheck::File("/usr/share/doc/python3-venv"),
};
pub(crate) const PYTHON3_TORCH: DebianPackage = DebianPackage {
    name: "python3-torch",
    why: "the backend of torch.distributed is tested beside Gloo",
    presence_check: PresenceCheck::File("/usr/share/doc/python3-torch"),
};
pub(crate) const FIO: DebianPackage = DebianPackage {
    name: "fio",
    why: "a suite of conformance/",
    presence_check: PresenceCheck::Program("fio"),
};
pub(crate) const DAPL2_UTILS: DebianPackage = DebianPackage {
    name: "dapl2-utils",
    why: "a suite of conformance/",
    presence_check: PresenceCheck::Program("dtest"),
};
pub(crate) const TGT: DebianPackage = DebianPackage {
    name: "tgt",
    why: "the target of a suite of conformance/",
    presence_check: PresenceCheck::Program("tgtd"),
};
pub(crate) const LIBISCSI_BIN: DebianPackage = DebianPackage {
    name: "libiscsi-bin",
    why: "a suite of conformance/",
    presence_check: PresenceCheck::Program("iscsi-inq"),
};
pub(crate) const VALGRIND: DebianPackage = DebianPackage {
    name: "valgrind",
    why: "a suite of conformance/ runs programs under it",
    presence_check: PresenceCheck::Program("valgrind"),
};
pub(crate) const LIBGLOO_DEV: DebianPackage = DebianPackage {
    name: "libgloo-dev",
    why: "a program of conformance/ is compiled with it",
    presence_check: PresenceCheck::File("/usr/include/gloo/context.h"),
};
pub(crate) const GXX: DebianPackage = DebianPackage {
    name: "g++",
    why: "a program of conformance/ is compiled with it",
    presence_check: PresenceCheck::Program("g++"),
};
pub(crate) const LIBRPMA_DEV: DebianPackage = DebianPackage {
    name: "librpma-dev",
    why: "a program of conformance/ is compiled with it",
    presence_check: PresenceCheck::File("/usr/include/librpma.h"),
};

/// Packages that the data files of `conformance/` may name.
pub(crate) const FOR_CONFORMANCE: &[DebianPackage] = &[
    IPROUTE2,
    IBVERBS_PROVIDERS,
    IBVERBS_UTILS,
    INFINIBAND_DIAGS,
    PERFTEST,
    QPERF,
    RDMACM_UTILS,
    PYTHON3_PYVERBS,
    UCX_UTILS,
    LIBFABRIC_BIN,
    GCC,
    OPENMPI_BIN,
    LIBOPENMPI_DEV,
    MPICH,
    LIBMPICH_DEV,
    CMAKE,
    LIBCLANG,
    QEMU,
    PYTHON3_MINIMAL,
    PYTHON3_NUMPY,
    PYTHON3_PIP,
    PYTHON3_TORCH,
    FIO,
    DAPL2_UTILS,
    TGT,
    LIBISCSI_BIN,
    VALGRIND,
    LIBGLOO_DEV,
    LIBIBVERBS_DEV,
    GXX,
    LIBRPMA_DEV,
    REDIS_SERVER,
    REDIS_TOOLS,
    MEMCACHED,
    LIBMEMCACHED_TOOLS,
    NGINX,
    HAPROXY,
    APACHE2_UTILS,
    WRK,
    POSTGRESQL,
    PYTHON3_REQUESTS,
    IPERF3,
];

/// Returns the package with the name `name`, which a data file contains.
pub(crate) fn by_name(name: &str) -> Option<DebianPackage> {
    FOR_CONFORMANCE
        .iter()
        .find(|package| package.name == name)
        .copied()
}

/// The packages that the tests need.
pub(crate) const FOR_TESTS: &[DebianPackage] = &[
    GCC,
    LIBC_DEV,
    LIBIBVERBS_DEV,
    LIBRDMACM_DEV,
    IBVERBS_UTILS,
    RDMACM_UTILS,
    PERFTEST,
    UCX_UTILS,
    REDIS_SERVER,
    REDIS_TOOLS,
    OPENSSL,
    IPERF3,
    TSHARK,
    CHROMIUM,
    IPROUTE2,
    PYTHON3_VENV,
    PYTHON3_TORCH,
];

/// The packages that the benchmark needs.
pub(crate) const FOR_BENCH: &[DebianPackage] = &[UCX_UTILS, REDIS_SERVER, REDIS_TOOLS, IPERF3];

impl DebianPackage {
    fn is_present(&self) -> bool {
        match self.presence_check {
            PresenceCheck::Program(name) => is_program_in_path(name),
            PresenceCheck::File(path) => Path::new(path).exists(),
        }
    }
}

fn is_program_in_path(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // The folders of root's programs are not in every user's `PATH`.
    let root = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path)
        .chain(root)
        .any(|dir| dir.join(name).is_file())
}

/// Installs those of `packages` that are missing, and returns their names.
///
/// # Errors
/// Returns an error if a package is missing and cannot be installed. The message names the packages
/// and the command to run.
pub(crate) fn install_missing<'a>(
    packages: impl IntoIterator<Item = &'a DebianPackage>,
) -> Result<Vec<&'static str>> {
    let mut missing: Vec<&DebianPackage> = Vec::new();
    for package in packages {
        if !package.is_present() && !missing.contains(&package) {
            missing.push(package);
        }
    }
    if missing.is_empty() {
        return Ok(Vec::new());
    }
    let names: Vec<&'static str> = missing.iter().map(|p| p.name).collect();
    for package in &missing {
        eprintln!("missing: {} ({})", package.name, package.why);
    }
    let by_hand = manual_install_advice(&names);
    if !is_program_in_path("apt-get") {
        bail!("there is no apt-get to install them with; {by_hand}");
    }
    let sudo = root_prefix_words().with_context(|| by_hand.clone())?;
    eprintln!("installing {} with apt-get", names.join(" "));
    apt_get(sudo, &["update", "-q"]).with_context(|| by_hand.clone())?;
    let mut install = vec!["install", "-q", "-y", "--no-install-recommends"];
    install.extend(&names);
    apt_get(sudo, &install).with_context(|| by_hand.clone())?;
    let still: Vec<&str> = missing
        .iter()
        .filter(|p| !p.is_present())
        .map(|p| p.name)
        .collect();
    if !still.is_empty() {
        bail!(
            "apt-get installed {}, and yet what it should bring is not there; {by_hand}",
            still.join(" ")
        );
    }
    Ok(names)
}

/// Updates apt's lists of packages.
///
/// # Errors
/// Returns an error if this user lacks the permission, or the archive cannot be reached.
pub(crate) fn update_lists() -> Result<()> {
    apt_get(root_prefix_words()?, &["update", "-q"])
}

/// Returns the words that precede a command that needs root.
fn root_prefix_words() -> Result<&'static [&'static str]> {
    if is_root()? {
        Ok(&[])
    } else if is_program_in_path("sudo") && succeeds(Command::new("sudo").args(["-n", "true"])) {
        Ok(&["sudo", "-n"])
    } else {
        bail!("apt-get needs root and sudo asks for a password")
    }
}

fn manual_install_advice(names: &[&str]) -> String {
    format!(
        "install these Debian packages (or what your system calls them), then run this again: \
         sudo apt-get install {}",
        names.join(" ")
    )
}

fn apt_get(sudo: &[&str], args: &[&str]) -> Result<()> {
    let mut words: Vec<&str> = sudo.to_vec();
    // A package's daemon must not start by itself: RUNLEVEL=1 tells Debian's invoke-rc.d so.
    words.extend([
        "env",
        "DEBIAN_FRONTEND=noninteractive",
        "RUNLEVEL=1",
        "apt-get",
    ]);
    words.extend(args);
    let status = Command::new(words[0])
        .args(&words[1..])
        .stdin(Stdio::null())
        // Standard output is reserved for results.
        .stdout(std::io::stderr())
        .status()
        .with_context(|| format!("cannot start {}", words.join(" ")))?;
    if !status.success() {
        bail!("{} failed ({status})", words.join(" "));
    }
    Ok(())
}

fn succeeds(command: &mut Command) -> bool {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

fn is_root() -> Result<bool> {
    let out = Command::new("id")
        .arg("-u")
        .output()
        .context("cannot run id -u")?;
    Ok(out.stdout.trim_ascii() == b"0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_is_seen_and_what_is_not_is_missed() {
        let there = DebianPackage {
            name: "coreutils",
            why: "",
            presence_check: PresenceCheck::Program("ls"),
        };
        let not = DebianPackage {
            name: "none",
            why: "",
            presence_check: PresenceCheck::File("/nonexistent/file"),
        };
        assert!(there.is_present());
        assert!(!not.is_present());
        assert!(!is_program_in_path("no-such-program-anywhere"));
    }

    #[test]
    fn the_advice_names_every_package() {
        let advice = manual_install_advice(&["gcc", "ucx-utils"]);
        assert!(
            advice.ends_with("sudo apt-get install gcc ucx-utils"),
            "{advice}"
        );
    }
}
