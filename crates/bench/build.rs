//! Passes the git commit and the compiler version to the crate as environment variables. Benchmark
//! results record both.

use std::path::Path;
use std::process::Command;

fn main() {
    let commit = git(&["describe", "--always", "--dirty", "--abbrev=12"]);
    println!("cargo::rustc-env=VERBATIM_COMMIT={}", or_unknown(commit));
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let compiler = output(Command::new(rustc).arg("--version"));
    println!("cargo::rustc-env=VERBATIM_RUSTC={}", or_unknown(compiler));
    println!("cargo::rerun-if-changed=build.rs");
    // Git appends a line to this log at every commit, so a commit reruns this script.
    if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"])
        && Path::new(&log).exists()
    {
        println!("cargo::rerun-if-changed={log}");
    }
}

fn git(args: &[&str]) -> Option<String> {
    output(Command::new("git").args(args))
}

fn output(command: &mut Command) -> Option<String> {
    let out = command.output().ok()?;
    let text = String::from_utf8(out.stdout).ok()?;
    (out.status.success() && !text.trim().is_empty()).then(|| text.trim().to_owned())
}

fn or_unknown(text: Option<String>) -> String {
    text.unwrap_or_else(|| "unknown".to_owned())
}
