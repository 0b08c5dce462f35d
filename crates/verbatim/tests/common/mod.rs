//! The program, its JSON lines, and servers that a test cannot leave behind.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "every test binary uses some of it"
)]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
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

/// Runs the program with these arguments.
pub fn run(args: &[&str]) -> Output {
    verbatim(args).output().expect("the program starts")
}

/// Parses the JSON lines that a program printed.
pub fn json_lines(out: &Output) -> Vec<Value> {
    String::from_utf8_lossy(&out.stdout)
        .lines()
        .map(|line| serde_json::from_str(line).expect("one JSON object per line"))
        .collect()
}

/// Serialises tests that keep two cores busy.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Builds the libraries that `verbatim run` loads into programs, beside the program. Skipped if
/// `VERBATIM_BUILT` is set, which says that they are built.
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
                [
                    "dropin",
                    "dropin-rdmacm",
                    "dropin-umad",
                    "tap-preload",
                    "view-preload",
                    "sockets-preload",
                ]
                .map(|name| format!("--package={name}")),
            );
        if profile.ends_with("release") {
            cargo.arg("--release");
        }
        assert!(cargo.status().expect("cargo starts").success());
    });
}

/// Runs a command, which must succeed, and returns its JSON lines.
#[track_caller]
pub fn lines_of(args: &[&str]) -> Vec<Value> {
    let out = run(args);
    let messages = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{args:?}: {messages}");
    json_lines(&out)
}

/// Returns a TCP port that is free now.
pub fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind(ANYWHERE).expect("there are free ports");
    listener.local_addr().expect("it is bound").port()
}

/// The address at which servers listen: a free port of this host.
pub const ANYWHERE: &str = "127.0.0.1:0";

/// Sleeps for a random time below `limit`, so that a process is killed in another state each time.
pub fn sleep_at_most(limit: std::time::Duration) {
    use std::hash::{BuildHasher, RandomState};
    let random = RandomState::new().hash_one(0) % 1000;
    std::thread::sleep(limit * u32::try_from(random).unwrap_or(0) / 1000);
}

/// A server that is killed when the test ends.
pub struct Server {
    pub child: Child,
    lines: BufReader<ChildStdout>,
    pub address: String,
    /// The line that the server printed when it began to listen.
    pub said: Value,
}

impl Server {
    /// Starts `verbatim SYSTEM serve` at an address.
    pub fn start(system: &str, listen: &str, args: &[&str]) -> Server {
        Self::start_with(system, listen, args, |_| {})
    }

    /// Starts a server as [`Self::start`] does, with a prepared command.
    pub fn start_with(
        system: &str,
        listen: &str,
        args: &[&str],
        prepare: impl FnOnce(&mut Command),
    ) -> Server {
        let serve = [system, "serve", "--json", "--until-eof", "--listen", listen];
        let mut command = verbatim(&[&serve, args].concat());
        prepare(&mut command);
        let mut child = command
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

    /// Returns the first number that a sequencer will give.
    pub fn next(&self) -> u64 {
        self.said["next"].as_u64().expect("a number")
    }

    /// Waits until a client has connected by TCP; it keeps the connection while it sends requests.
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

    /// Limits the server to `spare` descriptors more than it has open, or lifts that limit.
    pub fn limit_descriptors(&self, spare: Option<u64>) {
        let pid = Pid::from_child(&self.child);
        let limit = getrlimit(Resource::Nofile);
        let open = std::fs::read_dir(format!("/proc/{}/fd", self.child.id()));
        let open = open.expect("it runs").count() as u64;
        let current = spare.map_or(limit.maximum, |spare| Some(open + spare));
        let limit = Rlimit { current, ..limit };
        prlimit(Some(pid), Resource::Nofile, limit).expect("a process of this user");
    }

    /// Ends the server by closing its standard input; returns its statistics.
    pub fn stop(self) -> Value {
        self.told("stats")
    }

    /// Ends the server by closing its standard input; returns its line of this type.
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

/// Requests `count` numbers from the server at `address`; returns the client's report and verdict.
pub fn ask(address: &str, count: &str) -> (Value, Value) {
    ask_with(address, count, &[])
}

/// Requests numbers as [`ask`] does, with more arguments.
pub fn ask_with(address: &str, count: &str, more: &[&str]) -> (Value, Value) {
    let client = ["sequencer", "client", address, "--count", count, "--json"];
    let lines = lines_of(&[&client[..], more].concat());
    assert_eq!(lines[0]["type"], "report");
    assert_eq!(lines[1]["type"], "verdict");
    (lines[0]["data"].clone(), lines[1]["data"].clone())
}

/// Runs the shell commands of a page of `docs`, block by block, in a folder; returns the number of commands. A command
/// that ends in `&` runs in the background until all are done, and the next command waits for its first line. The ports
/// of Redis and gRPC, 6379 and 50051, are replaced by a free port, and that of Redis over TLS, 6380, by another one.
/// Commands find `verbatim` in their `PATH`.
#[track_caller]
pub fn run_the_guide(page: &str, folder: &Path) -> usize {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let guide = std::fs::read_to_string(path.join(page)).expect("the guide");
    let blocks = guide.split("```sh\n").skip(1);
    let blocks = blocks.map(|block| block.split_once("```").expect("the end of a block").0);
    let commands: Vec<&str> = blocks.flat_map(str::lines).collect();
    let [port, tls_port] = [free_port(), free_port()].map(|port| port.to_string());
    let mut servers = Vec::new();
    for command in &commands {
        let words = command.replace("6379", &port).replace("50051", &port);
        let words = words.replace("6380", &tls_port);
        let (words, in_background) = match words.strip_suffix('&') {
            Some(words) => (words, true),
            None => (words.as_str(), false),
        };
        let words: Vec<&str> = words.split_whitespace().collect();
        let (name, arguments) = words.split_first().expect("a program");
        let mut program = if *name == "verbatim" {
            verbatim(arguments)
        } else {
            let mut program = Command::new(name);
            program.args(arguments);
            program
        };
        program
            .current_dir(folder)
            .env("PATH", path_with_verbatim());
        if in_background {
            let child = program.stdout(Stdio::piped()).spawn();
            let mut server = KillOnDrop(child.expect("it starts"));
            let mut lines = BufReader::new(server.0.stdout.take().expect("its output"));
            let mut line = String::new();
            lines.read_line(&mut line).expect("it prints");
            assert_ne!(line, "", "{command}");
            servers.push((server, lines));
        } else {
            let output = program.output().expect("it runs");
            let err = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{command}: {err}");
        }
    }
    commands.len()
}

/// Returns `PATH` with the folder of the tested `verbatim` in front.
fn path_with_verbatim() -> std::ffi::OsString {
    let folder = Path::new(env!("CARGO_BIN_EXE_verbatim")).parent();
    let mut folders = vec![folder.expect("a folder").to_owned()];
    folders.extend(std::env::split_paths(
        &std::env::var_os("PATH").unwrap_or_default(),
    ));
    std::env::join_paths(folders).expect("folders without colons")
}

/// A process that is killed when dropped.
pub struct KillOnDrop(pub Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
