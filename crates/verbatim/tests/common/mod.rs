//! The program, its JSON lines, and servers that do not outlive a test.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "every test binary uses some of it"
)]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Once;

use serde_json::Value;

pub fn verbatim(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_verbatim"));
    command
        .args(args)
        .env_remove("VERBATIM_LINK_LAYER")
        .stdin(Stdio::null());
    command
}

/// Builds the libraries that `verbatim run` gives to programs, beside the program.
pub fn build_libraries() {
    static BUILD: Once = Once::new();
    let program = Path::new(env!("CARGO_BIN_EXE_verbatim"));
    BUILD.call_once(|| {
        let profile = program.parent().expect("target/PROFILE");
        let mut cargo = Command::new(env!("CARGO"));
        cargo
            .args(["build", "--quiet", "--target-dir"])
            .arg(profile.parent().expect("target"))
            .args(
                ["dropin", "dropin-rdmacm", "tap-preload"].map(|name| format!("--package={name}")),
            );
        if profile.ends_with("release") {
            cargo.arg("--release");
        }
        assert!(cargo.status().expect("cargo starts").success());
    });
}

/// The JSON lines of a command that must succeed.
#[track_caller]
pub fn lines_of(args: &[&str]) -> Vec<Value> {
    let out = verbatim(args).output().expect("the program starts");
    let messages = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{args:?}: {messages}");
    String::from_utf8(out.stdout)
        .expect("text")
        .lines()
        .map(|line| serde_json::from_str(line).expect("one JSON object per line"))
        .collect()
}

/// A server that is killed when the test ends.
pub struct Server {
    pub child: Child,
    lines: BufReader<ChildStdout>,
    pub address: String,
    pub next: u64,
}

impl Server {
    pub fn start(args: &[&str]) -> Server {
        let serve = ["sequencer", "serve", "--json", "--until-eof"];
        let mut child = verbatim(&[&serve, args].concat())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the server starts");
        let mut lines = BufReader::new(child.stdout.take().expect("its output"));
        let first = read(&mut lines);
        assert_eq!(first["type"], "listening");
        Server {
            child,
            lines,
            address: first["data"]["address"]
                .as_str()
                .expect("an address")
                .to_owned(),
            next: first["data"]["next"].as_u64().expect("a number"),
        }
    }

    /// Waits until a client holds its TCP connection, which it does while it asks.
    pub fn wait_for_client(&self) {
        const ESTABLISHED: &str = "01";
        let port = self.address.rsplit(':').next().expect("a port");
        let local = format!(":{:04X}", port.parse::<u16>().expect("a port"));
        let connected = || {
            let table = std::fs::read_to_string("/proc/net/tcp").expect("the kernel's table");
            table.lines().any(|line| {
                let mut fields = line.split_whitespace().skip(1);
                fields
                    .next()
                    .is_some_and(|address| address.ends_with(&local))
                    && fields.nth(1) == Some(ESTABLISHED)
            })
        };
        while !connected() {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }

    /// Ends it by the end of its input; its statistics.
    pub fn stop(mut self) -> Value {
        drop(self.child.stdin.take());
        let stats = read(&mut self.lines);
        assert_eq!(stats["type"], "stats");
        assert!(self.child.wait().expect("it ends").success());
        stats["data"].clone()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn read(lines: &mut BufReader<ChildStdout>) -> Value {
    let mut line = String::new();
    lines.read_line(&mut line).expect("a line");
    serde_json::from_str(&line).unwrap_or_else(|_| panic!("no JSON: {line:?}"))
}

/// What `count` numbers from the server at `address` look like: the client's report and verdict.
pub fn ask(address: &str, count: &str) -> (Value, Value) {
    ask_with(address, count, &[])
}

/// The same, with more arguments.
pub fn ask_with(address: &str, count: &str, more: &[&str]) -> (Value, Value) {
    let client = ["sequencer", "client", address, "--count", count, "--json"];
    let lines = lines_of(&[&client[..], more].concat());
    assert_eq!(lines[0]["type"], "report");
    assert_eq!(lines[1]["type"], "verdict");
    (lines[0]["data"].clone(), lines[1]["data"].clone())
}
