//! C programs of the tests, compiled and run under `verbatim run`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use crate::common;

pub(crate) const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// A compiled C program, in a folder that is removed when dropped.
pub(crate) struct Program {
    pub(crate) folder: tempfile::TempDir,
    name: &'static str,
}

/// The result of a run.
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    /// The program's standard output.
    pub(crate) out: String,
    /// The summary on standard error.
    pub(crate) summary: String,
    pub(crate) took: Duration,
}

impl Program {
    pub(crate) fn compiled(source: &Path, name: &'static str) -> Self {
        Self::compiled_with(source, name, &[])
    }

    fn compiled_with(source: &Path, name: &'static str, flags: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let status = Command::new("cc")
            .args(["-std=gnu11", "-Wall", "-Werror"])
            .args(flags)
            .arg("-o")
            .arg(folder.path().join(name))
            .arg(source)
            .arg("-libverbs")
            .status();
        assert!(status.expect("there is a C compiler").success());
        Self { folder, name }
    }

    /// Compiles the program of that name in `tests/programs`.
    pub(crate) fn of_the_tests(name: &'static str) -> Self {
        Self::of_the_tests_with(name, &[])
    }

    /// Compiles a program of `tests/programs` with these flags.
    pub(crate) fn of_the_tests_with(name: &'static str, flags: &[&str]) -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs");
        Self::compiled_with(&folder.join(name).with_extension("c"), name, flags)
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join(self.name)
    }

    /// Runs the program under these flags of `verbatim run`, in its own fabric.
    pub(crate) fn run(&self, flags: &[&str], args: &[&str]) -> Ran {
        let start = common::verbatim(&["run", "--no-view", "--link-layer", "ib"]);
        self.finish(start, flags, args)
    }

    /// Runs the program with the packet path, at an address that no other test uses.
    pub(crate) fn by_packets(&self, plan: &str, args: &[&str]) -> Ran {
        self.by_packets_with(&["--fault", plan, "--fault-seed", "5"], args)
    }

    /// As [`Self::by_packets`], under these flags of `verbatim run`.
    pub(crate) fn by_packets_with(&self, flags: &[&str], args: &[&str]) -> Ran {
        let mut start = common::verbatim(&["run", "--no-view", "--link-layer", "roce"]);
        start
            .env("VERBATIM_PATH", "packets")
            .env("VERBATIM_ADDRESS", unused_address());
        self.finish(start, flags, args)
    }

    pub(crate) fn finish(&self, mut start: Command, flags: &[&str], args: &[&str]) -> Ran {
        common::build_libraries();
        let fabric = tempfile::tempdir_in("/dev/shm").expect("a folder");
        let began = Instant::now();
        let out = start
            .args(flags)
            .arg("--")
            .arg(self.path())
            .args(args)
            .env("VERBATIM_FABRIC_DIR", fabric.path().join("fabric"))
            .env_remove("VERBATIM_FABRIC")
            .output()
            .expect("the program starts");
        Ran {
            code: out.status.code(),
            out: String::from_utf8_lossy(&out.stdout).into_owned(),
            summary: String::from_utf8_lossy(&out.stderr).into_owned(),
            took: began.elapsed(),
        }
    }

    pub(crate) fn under(&self, plan: &str, args: &[&str]) -> Ran {
        self.run(&["--fault", plan, "--fault-seed", "5"], args)
    }
}

impl Ran {
    #[track_caller]
    pub(crate) fn printed(&self, lines: &[&str]) {
        let expected: String = lines.iter().map(|line| format!("{line}\n")).collect();
        assert_eq!(self.out, expected, "{}", self.summary);
    }

    #[track_caller]
    pub(crate) fn says(&self, what: &str) {
        assert!(self.summary.contains(what), "{what}: {}", self.summary);
    }
}

/// Returns an address of the loopback network that no other test uses: the UDP port of an address belongs to one fabric.
pub(crate) fn unused_address() -> String {
    static NEXT_HOST: AtomicU8 = AtomicU8::new(1);
    let [.., high, low] = std::process::id().to_be_bytes();
    let host = NEXT_HOST.fetch_add(1, Ordering::Relaxed);
    format!("127.{}.{low}.{host}", 2 + high % 200)
}
