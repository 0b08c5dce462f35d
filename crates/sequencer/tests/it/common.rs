//! Servers and clients as processes: the test binary executes itself in another role.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use sequencer::{Client, ClientConfig, ClientReport, RunLimit, Server, ServerConfig, ServerStats};

const ROLE: &str = "SEQUENCER_TEST_ROLE";
const CONFIG: &str = "SEQUENCER_TEST_CONFIG";
const UNTIL: &str = "SEQUENCER_TEST_UNTIL";
const MARK: &str = "@@";

/// Runs the role of a child process; returns at once in the parent.
pub(crate) fn child_main() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let config = std::env::var(CONFIG).expect("the parent sets it");
    match role.as_str() {
        "server" => {
            let config: ServerConfig = serde_json::from_str(&config).expect("the parent's");
            let server = Server::start(config).expect("the server starts");
            say(&server.address().to_string());
            // The server runs until the parent closes the pipe or dies.
            let mut line = String::new();
            std::io::stdin().read_line(&mut line).expect("reads");
            say(&serde_json::to_string(&server.stop()).expect("serializes"));
        }
        "client" => {
            let config: ClientConfig = serde_json::from_str(&config).expect("the parent's");
            let until: RunLimit =
                serde_json::from_str(&std::env::var(UNTIL).expect("set")).expect("the parent's");
            let mut client = Client::connect(config).expect("the client connects");
            say("connected");
            let report = client.run(until);
            say(&serde_json::to_string(&report).expect("serializes"));
        }
        other => panic!("no role {other}"),
    }
}

fn say(text: &str) {
    // The test harness also prints to stdout.
    let mut out = std::io::stdout().lock();
    writeln!(out, "\n{MARK}{text}")
        .and_then(|()| out.flush())
        .expect("the parent listens");
}

pub(crate) struct Process {
    child: Child,
    stdin: Option<ChildStdin>,
    out: BufReader<ChildStdout>,
}

impl Process {
    fn spawn(role: &str, config: &impl serde::Serialize, until: Option<RunLimit>) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("this binary"));
        command
            .args(["--exact", "child_main", "--nocapture"])
            .env(ROLE, role)
            .env(CONFIG, serde_json::to_string(config).expect("serializes"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        if let Some(until) = until {
            command.env(UNTIL, serde_json::to_string(&until).expect("serializes"));
        }
        let mut child = command.spawn().expect("starts");
        let out = BufReader::new(child.stdout.take().expect("piped"));
        Self {
            stdin: child.stdin.take(),
            out,
            child,
        }
    }

    pub(crate) fn client(config: &ClientConfig, until: RunLimit) -> Self {
        let mut process = Self::spawn("client", config, Some(until));
        assert_eq!(process.hear().as_deref(), Some("connected"));
        process
    }

    /// Starts a server; returns it with its address.
    pub(crate) fn server(config: &ServerConfig) -> (Self, String) {
        let mut process = Self::spawn("server", config, None);
        let address = process.hear().expect("its address");
        (process, address)
    }

    /// Returns the next message of the process, or `None` if the process ends first.
    fn hear(&mut self) -> Option<String> {
        let mut line = String::new();
        while self.out.read_line(&mut line).expect("a pipe") > 0 {
            if let Some(text) = line.trim_end().strip_prefix(MARK) {
                return Some(text.to_owned());
            }
            line.clear();
        }
        None
    }

    pub(crate) fn report(mut self) -> ClientReport {
        let text = self.hear().expect("a report");
        self.child.wait().expect("ends");
        serde_json::from_str(&text).expect("a report")
    }

    pub(crate) fn stop(mut self) -> ServerStats {
        drop(self.stdin.take());
        let text = self.hear().expect("its stats");
        self.child.wait().expect("ends");
        serde_json::from_str(&text).expect("stats")
    }

    /// Stops the process for a while, as a debugger or swapping would.
    pub(crate) fn freeze(&self, time: Duration) {
        use rustix::process::{Pid, Signal, kill_process};
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::STOP).expect("it lives");
        std::thread::sleep(time);
        kill_process(pid, Signal::CONT).expect("it lives");
    }

    /// Returns the process's CPU time in clock ticks.
    pub(crate) fn cpu_ticks(&self) -> u64 {
        let stat =
            std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).expect("it lives");
        let fields: Vec<&str> = stat
            .rsplit_once(") ")
            .expect("a name")
            .1
            .split(' ')
            .collect();
        fields[11..13]
            .iter()
            .map(|f| f.parse::<u64>().expect("a number"))
            .sum()
    }

    /// Kills the process with SIGKILL.
    pub(crate) fn kill(mut self) {
        self.child.kill().expect("it lives");
        self.child.wait().expect("ends");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until `ready`, and panics after half a minute.
pub(crate) fn eventually(what: &str, mut ready: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(30);
    while !ready() {
        assert!(Instant::now() < end, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub(crate) fn client_of(address: &str) -> ClientConfig {
    ClientConfig {
        server: address.to_owned(),
        answer_timeout_ms: 5_000,
        ..ClientConfig::default()
    }
}
