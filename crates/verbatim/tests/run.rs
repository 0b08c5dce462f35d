//! `verbatim run`: the program becomes this process, and finds the software NIC.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Once;

/// `verbatim run` with these arguments, with the library built beside the program.
fn run(args: &[&str]) -> Output {
    static BUILD: Once = Once::new();
    let program = Path::new(env!("CARGO_BIN_EXE_verbatim"));
    BUILD.call_once(|| {
        let profile = program.parent().expect("target/PROFILE");
        let target = profile.parent().expect("target");
        let mut cargo = Command::new(env!("CARGO"));
        cargo
            .args(["build", "--quiet", "-p", "dropin", "--target-dir"])
            .arg(target);
        if profile.ends_with("release") {
            cargo.arg("--release");
        }
        assert!(cargo.status().expect("cargo starts").success());
    });
    Command::new(program)
        .arg("run")
        .args(args)
        .env("LD_LIBRARY_PATH", "/nonexistent/before")
        .env_remove("VERBATIM_LINK_LAYER")
        .env_remove("VERBATIM_FABRIC")
        .stdin(Stdio::null())
        .output()
        .expect("the program starts")
}

#[test]
fn the_exit_status_and_the_signal_are_the_programs() {
    use std::os::unix::process::ExitStatusExt;
    assert_eq!(run(&["--", "sh", "-c", "exit 7"]).status.code(), Some(7));
    assert_eq!(
        run(&["sh", "-c", "kill -TERM $$"]).status.signal(),
        Some(15)
    );
}

#[test]
fn the_environment_has_the_library_in_front_and_what_was_asked_for() {
    let out = run(&[
        "--link-layer",
        "ib",
        "--fabric",
        "tests_1",
        "--",
        "sh",
        "-c",
        "echo $LD_LIBRARY_PATH $VERBATIM_LINK_LAYER $VERBATIM_FABRIC; test -e \"${LD_LIBRARY_PATH%%:*}\"/libibverbs.so.1",
    ]);
    assert!(out.status.success(), "the library is there");
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(
        text.ends_with(":/nonexistent/before ib tests_1\n"),
        "{text}"
    );
}

#[test]
fn a_program_of_this_machine_sees_the_device() {
    let out = run(&[
        "--link-layer",
        "ib",
        "--fabric",
        "tests_2",
        "--",
        "ibv_devinfo",
    ]);
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(
        out.status.success(),
        "{}",
        String::from_utf8_lossy(&out.stderr)
    );
    assert!(
        text.contains("softnic0") && text.contains("InfiniBand"),
        "{text}"
    );
}

#[test]
fn what_cannot_be_run_says_so() {
    let out = run(&["--", "/nonexistent/program"]);
    let message = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(2), "{message}");
    assert!(
        message.contains("cannot run /nonexistent/program"),
        "{message}"
    );
    let out = run(&["--fabric", "a/b", "--", "true"]);
    let message = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(2), "{message}");
    assert!(message.contains("letters, digits"), "{message}");
}
