//! Tests that kill 200 processes at random moments, and check their peers.
//!
//! Pairs of processes use many verbs of two queue pairs ([`verbs_conformance::worker`]). One process of
//! each pair is killed at a random moment. The requests of the other process must fail with RETRY_EXC_ERR,
//! and all later work requests must be flushed. This process must see no wrong or duplicate data, and must
//! exit without help. After another process has joined, no file of a dead process may remain in the
//! fabric's folder.
//!
//! `VERBATIM_KILLS` sets the number of kills, and `VERBATIM_SEED` the seed, which is printed.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, ExitCode, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use verbs_conformance::harness::{
    self, SuiteVariant, file_names_in_folder, role_command, wait_for_exit_or_timeout,
};
use verbs_conformance::memory::MemKind;
use verbs_conformance::worker::{WorkerPlan, WorkerReport};
use verbs_conformance::{NicCapability, Rng, SuiteTest, TestEnv, TestOutcome};

/// One test runs both parts, because both count the files of the same fabric.
const TESTS: [SuiteTest; 1] = [SuiteTest {
    name: "kills::survivors_hear_of_every_kill",
    needed_capabilities: &[],
    run: kills,
}];

fn kills(env: &TestEnv) -> TestOutcome {
    match random_kills(env) {
        TestOutcome::Passed => all_at_once(env),
        other => other,
    }
}

fn main() -> ExitCode {
    let tests: Vec<&'static SuiteTest> = TESTS.iter().collect();
    let variants: Vec<SuiteVariant> = ["roce", "ib"]
        .into_iter()
        .map(|layer| SuiteVariant {
            hang_timeout: Duration::from_secs(300),
            ..SuiteVariant::softnic(layer)
        })
        .collect();
    harness::main(&tests, &variants)
}

/// Time limit of a pair, even on a loaded machine.
const WATCHDOG: Duration = Duration::from_secs(60);
/// Number of pairs that run at the same time.
const AT_ONCE: usize = 3;
/// Number of kills between two checks of the folder.
const ROUND: usize = 25;

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{variable} is {text:?}, which is no number")),
    )
}

struct Worker {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Worker {
    fn start(env: &TestEnv, plan: &WorkerPlan) -> Self {
        let plan = serde_json::to_string(plan).expect("a plan");
        let mut child = role_command("worker", &plan, &env.settings)
            .expect("a worker's command")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("start a worker");
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().expect("piped"));
        Self {
            child,
            input,
            output,
        }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("a pipe");
        line
    }

    fn write_line(&mut self, line: &str) {
        // The worker may already be dead, because the test has killed it.
        if let Some(input) = &mut self.input {
            let _ = input.write_all(line.as_bytes());
        }
    }

    /// Waits for the worker's exit, and returns its report.
    fn report(mut self) -> WorkerReport {
        drop(self.input.take());
        let status = wait_for_exit_or_timeout(&mut self.child, WATCHDOG).expect("wait");
        let Some(status) = status else {
            panic!("a survivor hangs: process {}", self.child.id());
        };
        let mut text = String::new();
        self.output.read_to_string(&mut text).expect("a pipe");
        assert!(status.success(), "a survivor failed: {status}");
        let last = text.lines().last().unwrap_or_default();
        serde_json::from_str(last).unwrap_or_else(|_| panic!("no report but {text:?}"))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs one pair and kills one of its processes. Returns the survivor's report, and whether the pair was
/// connected before the kill.
fn one_kill(env: &TestEnv, seed: u64) -> (WorkerReport, bool) {
    let mut rng = Rng::new(seed);
    let qkey = u32::try_from(rng.below(1 << 31)).expect("31 bits");
    let mut plan = |seed| WorkerPlan {
        seed,
        event_driven: rng.one_in(2),
        memory_kind: if rng.one_in(2) {
            MemKind::Private
        } else {
            MemKind::Shared
        },
        qkey,
    };
    let plans = [plan(seed ^ 1), plan(seed ^ 2)];
    let mut workers = plans.map(|plan| Worker::start(env, &plan));
    let victim = usize::try_from(rng.below(2)).expect("0 or 1");
    // Some processes die before they are connected.
    let early = rng.one_in(12);
    if early {
        std::thread::sleep(Duration::from_micros(rng.below(15_000)));
        workers[victim].child.kill().expect("kill");
    }
    let hellos = [workers[0].line(), workers[1].line()];
    if !hellos[victim].is_empty() {
        workers[1 - victim].write_line(&hellos[victim]);
    }
    let other = hellos[1 - victim].clone();
    workers[victim].write_line(&other);
    if !early {
        // Most processes are killed while they work, some just after the start.
        let longest = if rng.one_in(4) { 2_000 } else { 60_000 };
        std::thread::sleep(Duration::from_micros(rng.below(longest)));
        workers[victim].child.kill().expect("kill");
    }
    let connected = !hellos[victim].is_empty();
    let [first, second] = workers;
    let (mut dead, survivor) = if victim == 0 {
        (first, second)
    } else {
        (second, first)
    };
    let ended = dead.child.wait().expect("the victim is dead");
    let report = survivor.report();
    assert_eq!(
        ended.signal(),
        Some(9),
        "the victim ended before its time ({report:?}): {:?}",
        dead.line()
    );
    (report, connected)
}

/// Returns the file names in the fabric's folder while exactly one process is in the fabric.
fn names_with_one_process(env: &TestEnv, folder: Option<&Path>) -> Vec<String> {
    let mut command = role_command("open", "", &env.settings).expect("a command");
    if let Some(folder) = folder {
        command.env("VERBATIM_FABRIC_DIR", folder);
    }
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("start a process");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("piped"))
        .read_line(&mut line)
        .expect("a pipe");
    assert!(
        line.contains("\"open\":0"),
        "it could not open the device: {line}"
    );
    let folder = folder.map_or_else(fabric, Path::to_path_buf);
    let names = file_names_in_folder(&folder);
    drop(child.stdin.take());
    assert!(child.wait().expect("it ends").success());
    names
}

fn fabric() -> PathBuf {
    std::env::var_os("VERBATIM_FABRIC_DIR")
        .expect("the harness sets it")
        .into()
}

/// Replaces the hexadecimal part of each file name, which differs between processes.
fn kinds(names: &[String]) -> Vec<String> {
    let kind = |name: &String| match name.split_once('.') {
        Some((stem, rest)) if stem.len() == 16 => format!("*.{rest}"),
        _ => name.clone(),
    };
    // The counters of packets and of ports remain after the processes that counted.
    let names = names
        .iter()
        .filter(|name| *name != "counters" && *name != "traffic");
    let mut kinds: Vec<String> = names.map(kind).collect();
    kinds.sort();
    kinds
}

fn expect_nothing_left(env: &TestEnv, fresh: &[String]) {
    let names = names_with_one_process(env, None);
    assert_eq!(
        kinds(&names),
        fresh,
        "files of dead processes are left: {names:?}"
    );
}

fn fresh_names(env: &TestEnv) -> Vec<String> {
    let folder = harness::unused_fabric_path("fresh");
    let names = names_with_one_process(env, Some(&folder));
    let _ = std::fs::remove_dir_all(&folder);
    kinds(&names)
}

fn random_kills(env: &TestEnv) -> TestOutcome {
    let seed = number("VERBATIM_SEED").unwrap_or_else(|| {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        now.as_secs() << 20 | u64::from(now.subsec_micros())
    });
    // Both link layers together make 200 kills.
    let kills =
        usize::try_from(number("VERBATIM_KILLS").unwrap_or(200) / 2).expect("a sane number");
    println!("VERBATIM_SEED={seed} VERBATIM_KILLS={}", 2 * kills);
    let fresh = fresh_names(env);
    let next = AtomicUsize::new(0);
    let total = Mutex::new((WorkerReport::default(), 0usize));
    let begin = Instant::now();
    while next.load(Ordering::Relaxed) < kills {
        let until = (next.load(Ordering::Relaxed) + ROUND).min(kills);
        std::thread::scope(|scope| {
            for _ in 0..AT_ONCE {
                scope.spawn(|| {
                    while let Ok(i) = next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |i| {
                        (i < until).then_some(i + 1)
                    }) {
                        let seed = seed.wrapping_add(i as u64 * 1000);
                        let (report, connected) = one_kill(env, seed);
                        check(&report, connected, i, seed);
                        let mut total = total.lock().expect("no panic holds it");
                        total.0.completed_requests += report.completed_requests;
                        total.0.received_messages += report.received_messages;
                        total.0.received_frames += report.received_frames;
                        total.0.first_failure_wait_ms = total
                            .0
                            .first_failure_wait_ms
                            .max(report.first_failure_wait_ms);
                        total.1 += usize::from(report.first_failure_status.is_some());
                    }
                });
            }
        });
        expect_nothing_left(env, &fresh);
    }
    let (sum, in_the_middle) = total.into_inner().expect("no panic holds it");
    println!(
        "{kills} kills, {in_the_middle} of them in the middle of {} requests, {} messages and {} frames, all verified; \
         the longest wait for the failure was {} ms; {:.1} s",
        sum.completed_requests,
        sum.received_messages,
        sum.received_frames,
        sum.first_failure_wait_ms,
        begin.elapsed().as_secs_f64()
    );
    assert!(in_the_middle * 2 > kills, "most kills hit nobody");
    assert!(
        sum.completed_requests > 0 && sum.received_messages > 0,
        "nothing was done"
    );
    assert_eq!(
        sum.received_frames > 0,
        env.expects_capability(NicCapability::RawPackets),
        "frames"
    );
    TestOutcome::Passed
}

#[track_caller]
fn check(report: &WorkerReport, connected: bool, kill: usize, seed: u64) {
    match report.first_failure_status {
        Some(status) => assert_eq!(
            status,
            verbs_abi::IBV_WC_RETRY_EXC_ERR,
            "kill {kill} (seed {seed}): {report:?}"
        ),
        None => assert!(
            !connected,
            "kill {kill} (seed {seed}): the survivor saw nothing: {report:?}"
        ),
    }
}

/// Kills many processes at once, including survivors of other pairs. The last process removes all files.
fn all_at_once(env: &TestEnv) -> TestOutcome {
    let fresh = fresh_names(env);
    for round in 0..3u64 {
        let mut workers = Vec::new();
        for pair in 0..4u64 {
            let plan = |seed| WorkerPlan {
                seed,
                event_driven: pair % 2 == 0,
                memory_kind: if pair < 2 {
                    MemKind::Private
                } else {
                    MemKind::Shared
                },
                qkey: u32::try_from(round << 8 | pair).expect("small"),
            };
            let mut two = [round << 8 | pair << 1, round << 8 | pair << 1 | 1]
                .map(|seed| Worker::start(env, &plan(seed)));
            let hellos = [two[0].line(), two[1].line()];
            two[0].write_line(&hellos[1]);
            two[1].write_line(&hellos[0]);
            workers.extend(two);
        }
        std::thread::sleep(Duration::from_millis(30));
        for worker in &mut workers {
            worker.child.kill().expect("kill");
        }
        drop(workers);
        expect_nothing_left(env, &fresh);
    }
    TestOutcome::Passed
}
