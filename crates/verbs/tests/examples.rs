//! Runs the examples as their comments say, with one or two processes.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Once;

/// Builds the examples beside the tests, unless `VERBATIM_BUILT` says that they are built.
fn build(profile: &Path) {
    static BUILD: Once = Once::new();
    BUILD.call_once(|| {
        if std::env::var_os("VERBATIM_BUILT").is_some() {
            return;
        }
        let mut cargo = Command::new(env!("CARGO"));
        cargo
            .args([
                "build",
                "--quiet",
                "--examples",
                "--all-features",
                "--package",
                env!("CARGO_PKG_NAME"),
            ])
            .arg("--target-dir")
            .arg(profile.parent().expect("the folder of all builds"));
        if profile.ends_with("release") {
            cargo.arg("--release");
        }
        assert!(cargo.status().expect("cargo starts").success());
    });
}

/// Returns the command of an example.
fn example(name: &str) -> Command {
    let tests = std::env::current_exe().expect("this program's file");
    let built = tests.ancestors().nth(2).expect("the folder of the build");
    build(built);
    let mut command = Command::new(built.join("examples").join(name));
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

#[track_caller]
fn text(out: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (printed, said) = (text(&out.stdout), text(&out.stderr));
    assert!(out.status.success(), "{printed}{said}");
    printed
}

/// Runs a server and its client; returns the output of each, without the line with the server's
/// address.
#[track_caller]
fn pair(name: &str) -> (String, String) {
    let mut server: Child = example(name).spawn().expect("the server starts");
    let mut lines = BufReader::new(server.stdout.take().expect("its output"));
    let mut line = String::new();
    lines.read_line(&mut line).expect("its first line");
    let address = line
        .trim()
        .strip_prefix("listening at ")
        .expect("its address");
    let client = example(name)
        .arg(address)
        .output()
        .expect("the client runs");
    let mut rest = String::new();
    std::io::Read::read_to_string(&mut lines, &mut rest).expect("the rest");
    let out = server.wait_with_output().expect("it ends");
    let _ = text(&out);
    (rest, text(&client))
}

#[test]
fn pingpong() {
    let (server, client) = pair("pingpong");
    for printed in [server, client] {
        assert!(printed.starts_with("10000 messages each way"), "{printed}");
    }
}

#[test]
fn write() {
    let (server, client) = pair("write");
    assert_eq!(server, "the client has written: one-sided\n");
    assert_eq!(client, "the server's memory has: one-sided\n");
}

#[test]
fn events() {
    let (server, _) = pair("events");
    let expected: String = (0..5).map(|number| format!("message {number}\n")).collect();
    assert_eq!(server, expected);
}

#[test]
fn postlist() {
    let out = example("postlist").output().expect("it runs");
    let printed = text(&out);
    assert_eq!(printed.matches("ns a WRITE").count(), 2, "{printed}");
}

#[test]
fn simulate() {
    let out = example("simulate").output().expect("it runs");
    let printed = text(&out);
    assert_eq!(printed.matches("on a Connect-IB").count(), 3, "{printed}");
}
