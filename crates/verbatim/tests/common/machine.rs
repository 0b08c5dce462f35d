//! Scripts in new namespaces: hosts with networks between them, without root where user namespaces
//! are allowed.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use super::build_libraries;

/// The bash functions that precede each script.
const PRELUDE: &str = include_str!("../programs/machine.sh");
/// The time limit of a script in seconds; a script that reaches it hangs.
const WATCHDOG_S: &str = "300";

/// A machine with its own loopback network, shared-memory files and processes.
pub struct Machine {
    folder: tempfile::TempDir,
}

impl Machine {
    pub fn new() -> Self {
        use std::os::unix::fs::PermissionsExt;
        build_libraries();
        let folder = tempfile::tempdir().expect("a folder");
        // Other users must be able to read the folder.
        std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755))
            .expect("it is ours");
        Self { folder }
    }

    /// Returns the path of a file in the folder in which scripts start.
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Runs a bash script after `machine.sh`. All its processes end with it.
    pub fn run(&self, script: &str) -> Output {
        let path = self.file("script");
        std::fs::write(&path, format!("{PRELUDE}{script}")).expect("written");
        let program = Path::new(env!("CARGO_BIN_EXE_verbatim"));
        let mut command = Command::new("timeout");
        command.args(["--signal=KILL", WATCHDOG_S, "unshare"]);
        command.args(users());
        command
            .args(["--mount", "--net", "--ipc", "--pid", "--fork"])
            .args(["--kill-child", "--mount-proc", "bash"])
            .arg(&path)
            .env("BUILT", program.parent().expect("a folder"))
            .env("WORK", self.folder.path())
            .stdin(Stdio::null());
        let set = std::env::vars_os().map(|(name, _)| name);
        for name in set.filter(|name| name.to_string_lossy().starts_with("VERBATIM_")) {
            command.env_remove(name);
        }
        command.output().expect("coreutils has timeout")
    }

    /// Runs a script as [`Self::run`] does; the script must succeed. Returns its standard output.
    #[track_caller]
    pub fn succeed(&self, script: &str) -> String {
        let out = self.run(script);
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        assert!(out.status.success(), "{}{}", self.files(), told(&out));
        text
    }

    /// Returns the content of the script's files that are named `out.*`.
    pub fn files(&self) -> String {
        let entries = std::fs::read_dir(self.folder.path()).expect("a folder");
        let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
        paths.retain(|path| path.file_stem().is_some_and(|stem| stem == "out"));
        paths.sort();
        let text = |path: &PathBuf| {
            let text = std::fs::read(path).unwrap_or_default();
            format!(
                "--- {}\n{}\n",
                path.display(),
                String::from_utf8_lossy(&text)
            )
        };
        paths.iter().map(text).collect()
    }
}

/// Returns the status and the output of a script.
fn told(out: &Output) -> String {
    let text = [&out.stdout[..], &out.stderr].concat();
    format!("--- {}\n{}", out.status, String::from_utf8_lossy(&text))
}

/// Returns unshare(1)'s arguments for a user namespace: none for root, who can create all
/// namespaces.
#[track_caller]
fn users() -> &'static [&'static str] {
    const OWN: &[&str] = &["--user", "--map-root-user"];
    let works = |users: &[&str]| {
        let probe = ["--mount", "--net", "--pid", "--fork", "true"];
        let mut command = Command::new("unshare");
        let out = command.args(users).args(probe).output();
        out.expect("util-linux has unshare").status.success()
    };
    match (works(&[]), works(OWN)) {
        (true, _) => &[],
        (false, true) => OWN,
        (false, false) => panic!(
            "this user may make no network namespace, by root's rights or in a user namespace (`unshare --user \
             --map-root-user --net true` fails): run the tests as root, or allow user namespaces (sysctl \
             user.max_user_namespaces, kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns)"
        ),
    }
}
