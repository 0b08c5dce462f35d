//! The program, its JSON lines, and servers that do not outlive a test.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "every test binary uses some of it"
)]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use serde_json::Value;

pub mod machine;

pub fn verbatim(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_verbatim"));
    command
        .args(args)
        .env_remove("VERBATIM_LINK_LAYER")
        .stdin(Stdio::null());
    command
}

/// What comes of the program with these arguments.
pub fn run(args: &[&str]) -> Output {
    verbatim(args).output().expect("the program starts")
}

/// The lines of JSON that a program printed.
pub fn json_lines(out: &Output) -> Vec<Value> {
    String::from_utf8_lossy(&out.stdout)
        .lines()
        .map(|line| serde_json::from_str(line).expect("one JSON object per line"))
        .collect()
}

/// For tests that keep two cores busy: they run one after the other.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Builds the libraries that `verbatim run` gives to programs, beside the program, unless `VERBATIM_BUILT` says that
/// they lie there.
pub fn build_libraries() {
    static BUILD: Once = Once::new();
    let program = Path::new(env!("CARGO_BIN_EXE_verbatim"));
    BUILD.call_once(|| {
        if std::env::var_os("VERBATIM_BUILT").is_some() {
            return;
        }
        let profile = program.parent().expect("target/PROFILE");
        let mut cargo = Command::new(env!("CARGO"));
        cargo
            .args(["build", "--quiet", "--target-dir"])
            .arg(profile.parent().expect("target"))
            .args(
                ["dropin", "dropin-rdmacm", "tap-preload", "view-preload"]
                    .map(|name| format!("--package={name}")),
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
    let out = run(args);
    let messages = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{args:?}: {messages}");
    json_lines(&out)
}

/// Where servers listen: a free port of this host.
pub const ANYWHERE: &str = "127.0.0.1:0";

/// A server that is killed when the test ends.
pub struct Server {
    pub child: Child,
    lines: BufReader<ChildStdout>,
    pub address: String,
    /// What it said when it began to listen.
    pub said: Value,
}

impl Server {
    /// `verbatim SYSTEM serve` at an address.
    pub fn start(system: &str, listen: &str, args: &[&str]) -> Server {
        let serve = [system, "serve", "--json", "--until-eof", "--listen", listen];
        let mut child = verbatim(&[&serve, args].concat())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the server starts");
        let mut lines = BufReader::new(child.stdout.take().expect("its output"));
        let mut first = read(&mut lines);
        while first["type"] == "loaded" {
            first = read(&mut lines);
        }
        assert_eq!(first["type"], "listening");
        let said = first["data"].take();
        Server {
            child,
            lines,
            address: said["address"].as_str().expect("an address").to_owned(),
            said,
        }
    }

    /// The first number of a sequencer.
    pub fn next(&self) -> u64 {
        self.said["next"].as_u64().expect("a number")
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
    pub fn stop(self) -> Value {
        self.told("stats")
    }

    /// Ends it by the end of its input; what it tells of this type then.
    pub fn told(mut self, kind: &str) -> Value {
        drop(self.child.stdin.take());
        let mut line = read(&mut self.lines);
        while line["type"] != kind {
            line = read(&mut self.lines);
        }
        assert!(self.child.wait().expect("it ends").success());
        line["data"].take()
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
