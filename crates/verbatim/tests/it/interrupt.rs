//! Commands that SIGINT ends early: the results so far, their mark, the exit status.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::Value;

use crate::common::{ANYWHERE, Server, alone, verbatim};

/// The time after which a command counts as hung.
const PATIENCE: Duration = Duration::from_secs(300);

/// A command in a process group of its own, as a shell starts it.
struct Running {
    child: Child,
    messages: mpsc::Receiver<String>,
    results: mpsc::Receiver<String>,
}

impl Running {
    fn start(args: &[&str]) -> Running {
        // A shell ignores SIGINT in a command that it starts with `&`, and a command leaves an ignored signal ignored.
        let verbatim = verbatim(args);
        let mut command = Command::new("env");
        command
            .arg("--default-signal=INT")
            .arg(verbatim.get_program());
        for (name, value) in verbatim.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        let mut child = command
            .args(verbatim.get_args())
            .env("VERBATIM_LOG", "verbatim=info")
            .stdin(Stdio::null())
            .process_group(0)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let stderr = BufReader::new(child.stderr.take().expect("piped"));
        let (tell, messages) = mpsc::channel();
        std::thread::spawn(move || {
            let lines = stderr.lines().map_while(Result::ok);
            // An error means that the test has ended.
            lines.map(|line| tell.send(line)).all(|sent| sent.is_ok())
        });
        let mut stdout = child.stdout.take().expect("piped");
        let (tell, results) = mpsc::channel();
        std::thread::spawn(move || {
            let mut text = String::new();
            stdout.read_to_string(&mut text).expect("text");
            tell.send(text)
        });
        Running {
            child,
            messages,
            results,
        }
    }

    /// Waits for the message that a step begins.
    fn wait_for_step(&self, step: u64) {
        self.wait_for_message(&format!("step {step} of "));
    }

    fn wait_for_message(&self, wanted: &str) {
        let mut seen = Vec::new();
        while let Ok(message) = self.messages.recv_timeout(PATIENCE) {
            if message.contains(wanted) {
                return;
            }
            seen.push(message);
        }
        panic!("no {wanted:?}: {seen:#?}");
    }

    /// Sends SIGINT to the command and its children, as a terminal does.
    fn interrupt(&self) {
        kill_process_group(Pid::from_child(&self.child), Signal::INT)
            .expect("it is not waited for");
    }

    /// Returns the status and the results; calls `meanwhile` from time to time.
    fn end(mut self, meanwhile: impl Fn(&Running)) -> (ExitStatus, String) {
        let deadline = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("a child") {
                break status;
            }
            assert!(Instant::now() < deadline, "the command does not end");
            std::thread::sleep(Duration::from_millis(10));
            meanwhile(&self);
        };
        let results = self.results.recv_timeout(PATIENCE);
        (status, results.expect("standard output is closed"))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail if the command has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Interrupts a command in its second step and returns its results.
#[track_caller]
fn interrupted(args: &[&str]) -> String {
    let running = Running::start(args);
    running.wait_for_step(2);
    running.interrupt();
    let (status, results) = running.end(|_| {});
    assert_eq!(status.code(), Some(130), "{args:?}: {results}");
    results
}

/// Interrupts a command in its second step. Returns its lines of JSON but the last, which tells of
/// the interrupt.
#[track_caller]
fn interrupted_lines(args: &[&str]) -> Vec<Value> {
    let results = interrupted(args);
    let lines = results.lines().map(serde_json::from_str);
    let mut lines: Vec<Value> = lines.collect::<Result<_, _>>().expect("lines of JSON");
    let last = lines.pop().expect("a line");
    assert_eq!(last["type"], "interrupted", "{last}");
    assert_eq!(last["data"]["interrupted"], true, "{last}");
    let [done, of] = ["done", "of"].map(|count| last["data"][count].as_u64());
    assert!(done >= Some(1) && done < of, "{last}");
    lines
}

/// Returns the number of lines of a type.
fn count(lines: &[Value], of: &str) -> usize {
    lines.iter().filter(|line| line["type"] == of).count()
}

#[test]
fn the_published_numbers_without_a_simulation_are_shown() {
    let folder = tempfile::tempdir().expect("a folder");
    let figures = folder.path().to_str().expect("text");
    let text = interrupted(&["paper", "--figures", figures]);
    let last = text.lines().last().expect("lines");
    assert!(last.starts_with("Interrupted: these are "), "{text}");
    assert!(text.contains("arithmetic"), "{text}");
    // Eight cores of the last design are far behind the second simulation.
    assert!(!text.contains("seq_t3_spec_s0"), "{text}");
    let figure = std::fs::read_to_string(folder.path().join("figure-7.svg")).expect("drawn");
    assert!(figure.contains("interrupted: "), "{figure}");
    let lines = interrupted_lines(&["paper", "--json"]);
    assert!(lines.iter().any(|line| line["kind"] == "arithmetic"));
    assert!(lines.iter().all(|line| line["id"] != "seq_t3_spec_s0"));
}

#[test]
fn a_sweep_leaves_its_files() {
    let folder = tempfile::tempdir().expect("a folder");
    let [csv, svg] = ["s.csv", "s.svg"].map(|name| folder.path().join(name));
    let [csv_file, svg_file] = [&csv, &svg].map(|file| file.to_str().expect("text"));
    let files = ["--csv", csv_file, "--svg", svg_file];
    let sweep = ["bench", "sweep", "rc-read", "--nic", "cib", "--values"];
    let values = (1..1000).map(|n| (8 * n).to_string()).collect::<Vec<_>>();
    let values = values.join(",");
    let text = interrupted(&[&sweep[..], &[&values], &files].concat());
    assert!(text.contains("\nInterrupted: these are "), "{text}");
    let points = std::fs::read_to_string(&csv).expect("written");
    assert!((2..1000).contains(&points.lines().count()), "{points}");
    let picture = std::fs::read_to_string(&svg).expect("drawn");
    assert!(picture.contains("interrupted: "), "{picture}");
}

#[test]
fn a_check_judges_what_was_recorded() {
    let folder = tempfile::tempdir().expect("a folder");
    let history = folder.path().join("history");
    let keep = history.to_str().expect("text");
    let check = ["kv", "check", "--design", "herd", "--duration", "200s"];
    let running = Running::start(&[&check[..], &["--keep", keep, "--json"]].concat());
    let recorded_bytes = || -> u64 {
        let Ok(files) = std::fs::read_dir(history.join("herd")) else {
            return 0;
        };
        let sizes = files.filter_map(|file| Some(file.ok()?.metadata().ok()?.len()));
        sizes.sum()
    };
    let deadline = Instant::now() + PATIENCE;
    while recorded_bytes() < 100_000 {
        assert!(Instant::now() < deadline, "no history");
        std::thread::sleep(Duration::from_millis(10));
    }
    running.interrupt();
    let (status, text) = running.end(|_| {});
    assert_eq!(status.code(), Some(130), "{text}");
    assert!(text.contains("\"type\":\"checked\""), "{text}");
    assert!(text.contains("\"type\":\"interrupted\""), "{text}");
}

/// The children of these commands are not in the process group that SIGINT reaches, so that the
/// current step completes.
#[test]
fn comparisons_show_the_rows_that_were_measured() {
    let _alone = alone();
    let long = ["--rounds", "1000", "--duration", "20ms", "--json"];
    for (command, row) in [
        (&["sequencer", "--design", "rpc"][..], "design"),
        (
            &["kv", "--design", "herd", "--no-peers", "--keys", "1000"],
            "row",
        ),
        (&["stream"], "row"),
        (&["grpc", "--outstanding", "1", "--outstanding", "2"], "row"),
        (&["kv", "resp", "--rdma", "--keys", "1000"], "row"),
    ] {
        let lines = interrupted_lines(&[command, &long].concat());
        assert!(count(&lines, "round") >= 1, "{command:?}: {lines:?}");
        assert!(count(&lines, row) >= 1, "{command:?}: {lines:?}");
    }
}

#[test]
fn benchmarks_show_what_was_measured() {
    let _alone = alone();
    for (args, kind) in [
        (
            &["bench", "depth", "--rounds", "1000", "--duration", "20ms"][..],
            "depth",
        ),
        (
            &["bench", "events", "--rounds", "1000", "--duration", "20ms"],
            "sample",
        ),
        (
            &[
                "bench",
                "crowd",
                "--only",
                "ping-pong",
                "--rounds",
                "1000",
                "--messages",
                "100",
            ],
            "crowd",
        ),
        (
            &[
                "bench",
                "peers",
                "--only",
                "write-mapped",
                "--smoke",
                "--rounds",
                "1000",
            ],
            "row",
        ),
        (&["bench", "write-order", "--writes", "100000"], "probe"),
        (&["bench", "wqe-cache", "--nic", "cib"], "window"),
        (&["bench", "calibrate", "--nic", "cib"], "number"),
        (&["bench", "simulator", "--rounds", "1000"], "simulator"),
        (
            &[
                "bench",
                "guidelines",
                "--only",
                "doorbell-batching",
                "--only",
                "inlining",
                "--only",
                "unsignaled",
                "--rounds",
                "1",
            ],
            "guideline",
        ),
    ] {
        let lines = interrupted_lines(&[args, &["--json"]].concat());
        assert!(count(&lines, kind) >= 1, "{args:?}: {lines:?}");
    }
}

/// Returns the status and the report of a load that is interrupted so long after its begin.
fn interrupted_load(args: &[&str], after: Duration) -> (Option<i32>, Value) {
    let running = Running::start(args);
    running.wait_for_message("the load begins");
    std::thread::sleep(after);
    running.interrupt();
    let (status, results) = running.end(|_| {});
    let lines: Vec<Value> = results
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    let last = lines.last().expect("a line");
    assert_eq!(last["type"], "interrupted", "{results}");
    assert_eq!(count(&lines, "report"), 1, "{results}");
    (status.code(), lines[0]["data"].clone())
}

#[test]
fn loads_show_what_was_measured() {
    let _alone = alone();
    let kv = Server::start("kv", ANYWHERE, &["--keys", "1000"]);
    let btree = Server::start("btree", ANYWHERE, &["--load", "1000"]);
    let sequencer = Server::start("sequencer", ANYWHERE, &[]);
    for (command, server, answered) in [
        (
            &["kv", "load", "--fill", "--keys", "1000"][..],
            &kv,
            "operations",
        ),
        (&["btree", "load", "--keys", "1000"], &btree, "operations"),
        (&["sequencer", "client"], &sequencer, "requests"),
    ] {
        let long = ["--duration", "60min", "--json", server.address.as_str()];
        let args = [command, &long].concat();
        // A busy machine needs some time until the first answer.
        let mut after = Duration::from_millis(50);
        let status = loop {
            let (status, report) = interrupted_load(&args, after);
            if report[answered].as_u64() > Some(0) {
                break status;
            }
            assert!(after < PATIENCE, "{report}");
            after *= 2;
        };
        assert_eq!(status, Some(130), "{command:?}");
    }
}

/// Returns the children of a process.
fn children_of(pid: Pid) -> Vec<Pid> {
    let id = pid.as_raw_nonzero();
    let tasks = std::fs::read_dir(format!("/proc/{id}/task"));
    let tasks = tasks.expect("it runs").flatten();
    let children =
        tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    let children: Vec<String> = children.collect();
    let ids = children.iter().flat_map(|line| line.split_whitespace());
    ids.filter_map(|id| Pid::from_raw(id.parse().ok()?))
        .collect()
}

/// A worker that is stopped stands for one that takes long.
#[test]
fn a_measurement_that_takes_long_is_given_up() {
    let _alone = alone();
    let running = Running::start(&["bench", "peers", "--only", "rc-latency", "--json"]);
    running.wait_for_step(1);
    let pid = Pid::from_child(&running.child);
    let deadline = Instant::now() + PATIENCE;
    let workers = loop {
        let workers = children_of(pid);
        if !workers.is_empty() {
            break workers;
        }
        assert!(Instant::now() < deadline, "no worker starts");
        std::thread::sleep(Duration::from_millis(1));
    };
    for worker in workers {
        // An error means that the worker has just ended.
        let _ = kill_process(worker, Signal::STOP);
    }
    running.interrupt();
    let (status, results) = running.end(|_| {});
    assert_eq!(status.code(), Some(130), "{results}");
    let last = results.lines().last().expect("a line");
    let last: Value = serde_json::from_str(last).expect("JSON");
    assert_eq!(last["type"], "interrupted", "{results}");
}

/// Other than a terminal, a process may interrupt the command without its program.
#[test]
fn an_interrupt_of_the_command_alone_ends_its_program() {
    let folder = tempfile::tempdir().expect("a folder");
    let ledger = folder.path().join("ledger.json");
    let file = ledger.to_str().expect("text");
    let running = Running::start(&["run", "--ledger", file, "--", "sleep", "600"]);
    let pid = Pid::from_child(&running.child);
    let id = pid.as_raw_nonzero();
    let children = format!("/proc/{id}/task/{id}/children");
    let deadline = Instant::now() + PATIENCE;
    while std::fs::read_to_string(&children).is_ok_and(|children| children.is_empty()) {
        assert!(Instant::now() < deadline, "the program does not start");
        std::thread::sleep(Duration::from_millis(10));
    }
    kill_process(pid, Signal::INT).expect("it is not waited for");
    let (status, results) = running.end(|_| {});
    assert_eq!(status.code(), Some(130), "{results}");
    assert!(ledger.exists(), "{results}");
}

#[test]
fn a_second_interrupt_ends_the_command_at_once() {
    let _alone = alone();
    let running = Running::start(&["bench", "rc-write", "--duration", "60min", "--json"]);
    running.wait_for_step(1);
    let (status, results) = running.end(Running::interrupt);
    assert_eq!(status.code(), Some(130), "{results}");
    assert!(!results.contains("interrupted"), "{results}");
}
