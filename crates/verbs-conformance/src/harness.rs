//! Runs tests, each in its own process, and prints results in the format of libtest.
//!
//! The `main` of a test program calls [`main()`]. Started by cargo, the program is the parent. The parent
//! starts its own program again for each test, several at a time, detects hangs, and counts results. Started
//! by the parent, the program plays a *role*: a test, or a process that a test needs ([`crate::child_processes`],
//! [`crate::worker`] …).

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, ExitCode, ExitStatus};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, set_parent_process_death_signal};

use crate::deviations::{Deviation, DeviationKind, Deviations, PlaceInPair};
use crate::progress_notes::{
    MAX_HANG_LIMITS_PER_TEST, WAIT_LIMIT_ENV_VAR, print_case_and_awaited_event,
    wait_until_test_hangs,
};
use crate::role::{ROLE_ARG_ENV_VAR, ROLE_ENV_VAR, SETTINGS_ENV_VAR};
use crate::test_env::{NicCapability, PeerDevice, Settings, SuiteTest, TestEnv, TestOutcome};
use crate::{child_processes, worker};

pub use crate::progress_notes::{record_awaited_event, record_case, wait_limit};
pub use crate::role::role_command;

/// Exit status of a skipped test.
const SKIPPED_EXIT_STATUS: u8 = 77;
/// Exit status of a test that hung.
const HUNG_EXIT_STATUS: u8 = 124;

/// The suite with one set of settings.
#[derive(Clone, Debug)]
pub struct SuiteVariant {
    /// Prefix of the names of the variant's tests; empty for a variant without a prefix.
    pub test_name_prefix: String,
    /// Settings of the variant's tests.
    pub settings: Settings,
    /// Environment variables for the processes of the variant's tests.
    pub env_vars: Vec<(String, String)>,
    /// True if each test runs as a host with its own address.
    pub gives_test_own_address: bool,
    /// Fabric folder of the software NIC. The folder must be empty or absent after the tests, and is then
    /// removed.
    pub fabric_folder: Option<PathBuf>,
    /// Time without progress after which a test counts as hung.
    pub hang_timeout: Duration,
    /// Known deviations of the NIC, set by [`SuiteVariant::with_deviations`].
    pub deviations: Option<&'static Deviations>,
    /// Maximum number of failed tests that run a second time. An emulated machine on a busy host may be too slow for a test.
    pub max_second_runs: usize,
    /// The queue pairs of each pair that are on the device with the deviations.
    pub place_of_deviating_device: PlaceInPair,
}

/// Time after which a test that is known to fail counts as hung.
const KNOWN_FAILURE_HANG_TIMEOUT: Duration = Duration::from_secs(20);
/// Seconds that a test which is known to fail waits for an event; the event will not occur. See
/// [`wait_limit`].
const KNOWN_FAILURE_EVENT_WAIT_S: &str = "3";

impl SuiteVariant {
    /// Returns the variant for the device of `settings`, without a prefix and without known deviations.
    #[must_use]
    pub fn of_settings(settings: Settings) -> Self {
        Self {
            test_name_prefix: String::new(),
            settings,
            env_vars: Vec::new(),
            fabric_folder: None,
            gives_test_own_address: false,
            hang_timeout: Duration::from_secs(60),
            deviations: None,
            max_second_runs: 0,
            place_of_deviating_device: PlaceInPair::Both,
        }
    }

    /// Returns the variant for the software NIC in a fresh fabric; `link_layer` is `roce` or `ib`.
    #[must_use]
    pub fn softnic(link_layer: &str) -> Self {
        let mut settings = Settings::new(crate::ProviderKind::Softnic);
        settings.required_link_layer = Some(match link_layer {
            "ib" => verbs_abi::IBV_LINK_LAYER_INFINIBAND,
            _ => verbs_abi::IBV_LINK_LAYER_ETHERNET,
        });
        if link_layer == "ib" {
            settings
                .excluded_capabilities
                .insert(NicCapability::RawPackets);
        }
        let mut variant = Self::of_settings(settings).with_fresh_fabric(link_layer);
        link_layer.clone_into(&mut variant.test_name_prefix);
        variant
    }

    /// Gives the software NIC of the variant a fresh fabric.
    fn with_fresh_fabric(mut self, link_layer: &str) -> Self {
        let fabric = unused_fabric_path(link_layer);
        self.env_vars.extend([
            ("VERBATIM_LINK_LAYER".into(), link_layer.into()),
            ("VERBATIM_FABRIC_DIR".into(), fabric.display().to_string()),
        ]);
        self.fabric_folder = Some(fabric);
        self
    }

    /// Returns the variant for the machine's libibverbs, with the known deviations of the device.
    #[must_use]
    pub fn system(settings: Settings) -> Self {
        let deviations = Deviations::find_for_settings(&settings);
        Self::of_settings(settings).with_deviations(deviations)
    }

    /// Adds the known deviations of a device to the variant.
    ///
    /// A listed test that fails as listed is skipped, and the reason describes the behaviour of the device. A
    /// listed test that passes is a failure, because the list is wrong; not so if the peer is another device.
    #[must_use]
    pub fn with_deviations(mut self, deviations: Option<&'static Deviations>) -> Self {
        self.settings.lacked_capabilities = deviations
            .iter()
            .flat_map(|deviations| deviations.lacked_capabilities)
            .copied()
            .collect();
        self.deviations = deviations;
        self
    }

    /// Puts the second queue pair of each pair on another device.
    ///
    /// The variant gets the known deviations of that device, if it has none. Tests for what the packets of the software
    /// NIC do not support are skipped.
    #[must_use]
    pub fn with_peer(mut self, peer: PeerDevice) -> Self {
        let (own, of_other) = (self.settings.provider.name(), peer.provider.name());
        self.test_name_prefix = format!("{own}-to-{of_other}");
        if self.fabric_folder.is_none() && peer.provider == crate::ProviderKind::Softnic {
            self = self.with_fresh_fabric("roce");
        }
        self.settings.peer = Some(peer);
        self.place_of_deviating_device = PlaceInPair::First;
        if self.deviations.is_none() {
            let of_peer = self.settings.of_peer();
            let deviations = of_peer.as_ref().and_then(Deviations::find_for_settings);
            self = self.with_deviations(deviations);
            self.place_of_deviating_device = PlaceInPair::Second;
        }
        self.settings.excluded_capabilities.extend(NOT_BY_PACKETS);
        self
    }
}

/// Features that packets do not support, and checks that a remote responder cannot make before the requester.
pub const NOT_BY_PACKETS: [NicCapability; 6] = [
    NicCapability::RawPackets,
    NicCapability::Xrc,
    NicCapability::Tags,
    NicCapability::EarlyChecks,
    NicCapability::PatientDatagrams,
    NicCapability::PassiveResponder,
];

/// Returns the path of a fabric folder that no other process uses.
#[must_use]
pub fn unused_fabric_path(label: &str) -> PathBuf {
    static NEXT_FABRIC: AtomicUsize = AtomicUsize::new(0);
    let n = NEXT_FABRIC.fetch_add(1, Ordering::Relaxed);
    let pid = std::process::id();
    PathBuf::from(format!("/dev/shm/verbatim-conformance-{label}-{pid}-{n}"))
}

/// Waits for a child for at most `limit`; returns `None` if the child is still running.
///
/// # Errors
/// Returns the errors of the wait call.
pub fn wait_for_exit_or_timeout(
    child: &mut Child,
    limit: Duration,
) -> std::io::Result<Option<ExitStatus>> {
    let deadline = Instant::now() + limit;
    let pidfd = Pid::from_raw(child.id().cast_signed())
        .map(|pid| pidfd_open(pid, PidfdFlags::empty()))
        .transpose()?;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        let Some(left) = deadline.checked_duration_since(Instant::now()) else {
            return Ok(None);
        };
        let timeout = rustix::time::Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        };
        if let Some(pidfd) = &pidfd {
            let _ = poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&timeout));
        }
    }
}

/// Plays the role that the environment variables request; returns `None` if they request none.
#[must_use]
pub fn play_role_if_requested(tests: &[&'static SuiteTest]) -> Option<ExitCode> {
    let role = std::env::var(ROLE_ENV_VAR).ok()?;
    // A test may kill the parent, and no child of the parent may survive it.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .without_time()
        .with_ansi(false)
        .init();
    let arg = std::env::var(ROLE_ARG_ENV_VAR).unwrap_or_default();
    Some(match play_role(&role, &arg, tests) {
        Ok(code) => code,
        Err(err) => {
            eprintln!("{role}: {err:#}");
            ExitCode::from(101)
        }
    })
}

fn play_role(role: &str, arg: &str, tests: &[&'static SuiteTest]) -> anyhow::Result<ExitCode> {
    let settings = std::env::var(SETTINGS_ENV_VAR).context("no settings")?;
    let settings: Settings = serde_json::from_str(&settings)?;
    if role == "open" {
        return child_processes::open_device_and_report(&settings);
    }
    let env = TestEnv::new(settings)?;
    match role {
        "test" => {
            let (name, limit) = arg.split_once(' ').context("name and limit")?;
            let test = tests
                .iter()
                .find(|test| test.name == name)
                .context("no such test")?;
            Ok(run_test(test, &env, Duration::from_millis(limit.parse()?)))
        }
        "peer" => child_processes::execute_commands_from_stdin(&env),
        "worker" => worker::play_worker_role(&env, arg),
        "idle" => child_processes::play_idle_role(&env, arg),
        _ => anyhow::bail!("no such role"),
    }
}

/// Runs one test in this process.
fn run_test(test: &SuiteTest, env: &TestEnv, limit: Duration) -> ExitCode {
    let print_panic = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        print_panic(info);
        print_case_and_awaited_event();
    }));
    std::thread::spawn(move || {
        wait_until_test_hangs(limit);
        eprintln!("it hangs");
        print_case_and_awaited_event();
        std::process::exit(HUNG_EXIT_STATUS.into());
    });
    match std::panic::catch_unwind(|| (test.run)(env)) {
        Ok(TestOutcome::Passed) => ExitCode::SUCCESS,
        Ok(TestOutcome::Skipped(why)) => {
            println!("{why}");
            ExitCode::from(SKIPPED_EXIT_STATUS)
        }
        Err(_) => ExitCode::from(101),
    }
}

/// Verdict on one test.
enum TestVerdict {
    Passed,
    Ignored(String),
    Failed(String),
}

/// The tests to run, as selected by libtest's flags.
#[derive(Debug, Default)]
struct LibtestFlags {
    filters: Vec<String>,
    skips: Vec<String>,
    exact_names: bool,
    list: bool,
    only_ignored: bool,
    show_output: bool,
    threads: Option<usize>,
}

impl LibtestFlags {
    fn parse(args: impl Iterator<Item = String>) -> anyhow::Result<Self> {
        let mut flags = Self::default();
        let mut args = args;
        while let Some(arg) = args.next() {
            let (name, inline) = match arg.split_once('=') {
                Some((name, value)) if name.starts_with("--") => (name, Some(value.to_owned())),
                _ => (arg.as_str(), None),
            };
            let mut value = |name: &str| {
                inline
                    .clone()
                    .or_else(|| args.next())
                    .with_context(|| format!("{name} needs a value"))
            };
            match name {
                "--exact" => flags.exact_names = true,
                "--list" => flags.list = true,
                "--ignored" => flags.only_ignored = true,
                "--nocapture" | "--no-capture" => flags.show_output = true,
                "--skip" => flags.skips.push(value(name)?),
                "--test-threads" => flags.threads = Some(value(name)?.parse()?),
                "--format" | "--color" | "-Z" | "--logfile" | "--shuffle-seed" => {
                    value(name)?;
                }
                "--include-ignored" | "--quiet" | "-q" | "--show-output" | "--bench" | "--test"
                | "--report-time" | "--shuffle" => {}
                _ if name.starts_with('-') => anyhow::bail!("unknown flag {name}"),
                _ => flags.filters.push(arg),
            }
        }
        Ok(flags)
    }

    fn selects(&self, name: &str) -> bool {
        let matches = |filter: &String| {
            if self.exact_names {
                name == filter
            } else {
                name.contains(filter.as_str())
            }
        };
        (self.filters.is_empty() || self.filters.iter().any(matches))
            && !self.skips.iter().any(matches)
            && !self.only_ignored
    }
}

/// Runs `tests` under every variant, or plays a role; the `main` of a test program.
#[must_use]
pub fn main(tests: &[&'static SuiteTest], variants: &[SuiteVariant]) -> ExitCode {
    if let Some(code) = play_role_if_requested(tests) {
        return code;
    }
    match LibtestFlags::parse(std::env::args().skip(1)) {
        Ok(flags) => run_selected_tests(tests, variants, &flags),
        Err(err) => {
            eprintln!("error: {err:#}");
            ExitCode::from(2)
        }
    }
}

/// Runs the tests whose names contain one of `filters` and none of `skips`; the exit code is success if no test failed.
#[must_use]
pub fn run_filtered(
    tests: &[&'static SuiteTest],
    variants: &[SuiteVariant],
    (filters, skips): (Vec<String>, Vec<String>),
    threads: Option<usize>,
) -> ExitCode {
    let flags = LibtestFlags {
        filters,
        skips,
        threads,
        ..LibtestFlags::default()
    };
    run_selected_tests(tests, variants, &flags)
}

/// Name of the check that no file remains in a variant's fabric.
const FABRIC_CHECK_NAME: &str = "harness::nothing_is_left_in_the_fabric";

fn run_selected_tests(
    tests: &[&'static SuiteTest],
    variants: &[SuiteVariant],
    flags: &LibtestFlags,
) -> ExitCode {
    let name = |variant: &SuiteVariant, name: &str| {
        if variant.test_name_prefix.is_empty() {
            name.to_owned()
        } else {
            format!("{}::{name}", variant.test_name_prefix)
        }
    };
    let mut jobs: Vec<Job<'_>> = Vec::new();
    let mut filtered = 0;
    let mut checks: Vec<(String, &SuiteVariant)> = Vec::new();
    for variant in variants {
        for test in tests {
            let name = name(variant, test.name);
            if flags.selects(&name) {
                jobs.push((name, variant, test));
            } else {
                filtered += 1;
            }
        }
        if variant.fabric_folder.is_some() {
            let name = name(variant, FABRIC_CHECK_NAME);
            if flags.selects(&name) || jobs.iter().any(|(_, v, _)| std::ptr::eq(*v, variant)) {
                checks.push((name, variant));
            } else {
                filtered += 1;
            }
        }
    }
    if flags.list {
        for name in jobs
            .iter()
            .map(|job| &job.0)
            .chain(checks.iter().map(|check| &check.0))
        {
            println!("{name}: test");
        }
        return ExitCode::SUCCESS;
    }
    let total = jobs.len() + checks.len();
    println!(
        "\nrunning {total} test{}",
        if total == 1 { "" } else { "s" }
    );
    let begin = Instant::now();

    let mut tally = run_jobs(&jobs, flags);
    for (name, variant) in &checks {
        tally.add(name, check_fabric_left_empty(variant));
    }
    tally.print_summary(filtered, begin.elapsed())
}

/// A test to run under a variant, with its full name.
type Job<'a> = (String, &'a SuiteVariant, &'a SuiteTest);

/// Runs tests, several at a time, and failed ones a second time where the variant allows it.
fn run_jobs(jobs: &[Job<'_>], flags: &LibtestFlags) -> VerdictCounts {
    let next = AtomicUsize::new(0);
    let second_runs = AtomicUsize::new(0);
    let tally = Mutex::new(VerdictCounts::default());
    let threads = flags
        .threads
        .unwrap_or_else(|| std::thread::available_parallelism().map_or(2, std::num::NonZero::get));
    std::thread::scope(|scope| {
        for _ in 0..threads.clamp(1, jobs.len().max(1)) {
            scope.spawn(|| {
                while let Some((name, variant, test)) =
                    jobs.get(next.fetch_add(1, Ordering::Relaxed))
                {
                    let mut verdict = run_in_child(variant, test, flags.show_output);
                    if let TestVerdict::Failed(why) = &verdict
                        && second_runs.fetch_add(1, Ordering::Relaxed) < variant.max_second_runs
                    {
                        println!("{name} failed, and runs a second time:\n{}", why.trim_end());
                        verdict = run_in_child(variant, test, flags.show_output);
                    }
                    tally
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .add(name, verdict);
                }
            });
        }
    });
    tally.into_inner().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Default)]
struct VerdictCounts {
    passed: usize,
    ignored: usize,
    failed_names_and_messages: Vec<(String, String)>,
}

impl VerdictCounts {
    fn add(&mut self, name: &str, verdict: TestVerdict) {
        match verdict {
            TestVerdict::Passed => {
                self.passed += 1;
                println!("test {name} ... ok");
            }
            TestVerdict::Ignored(why) => {
                self.ignored += 1;
                println!("test {name} ... ignored, {why}");
            }
            TestVerdict::Failed(why) => {
                println!("test {name} ... FAILED");
                self.failed_names_and_messages.push((name.to_owned(), why));
            }
        }
        let _ = std::io::stdout().flush();
    }

    fn print_summary(mut self, filtered: usize, elapsed: Duration) -> ExitCode {
        self.failed_names_and_messages.sort();
        if !self.failed_names_and_messages.is_empty() {
            println!("\nfailures:\n");
            for (name, why) in &self.failed_names_and_messages {
                println!("---- {name} stdout ----\n{}\n", why.trim_end());
            }
            println!("\nfailures:");
            for (name, _) in &self.failed_names_and_messages {
                println!("    {name}");
            }
        }
        let failed = self.failed_names_and_messages.len();
        println!(
            "\ntest result: {}. {} passed; {failed} failed; {} ignored; 0 measured; {filtered} filtered \
             out; finished in {:.2}s\n",
            if failed == 0 { "ok" } else { "FAILED" },
            self.passed,
            self.ignored,
            elapsed.as_secs_f64(),
        );
        if failed == 0 {
            ExitCode::SUCCESS
        } else {
            ExitCode::from(101)
        }
    }
}

fn run_in_child(variant: &SuiteVariant, test: &SuiteTest, show: bool) -> TestVerdict {
    let lacking: Vec<String> = test
        .needed_capabilities
        .iter()
        .filter(|cap| variant.settings.excluded_capabilities.contains(cap))
        .map(ToString::to_string)
        .collect();
    if !lacking.is_empty() {
        return TestVerdict::Ignored(format!("excluded by --without {}", lacking.join(",")));
    }
    let known = variant.deviations.map(|deviations| {
        let of_test = deviations.find_by_test_name(test.name, variant.place_of_deviating_device);
        (deviations, of_test)
    });
    let known = known.filter(|(_, of_test)| !of_test.is_empty());
    if let Some((deviations, of_test)) = &known
        && let Some(crash) = of_test
            .iter()
            .find(|deviation| deviation.kind == DeviationKind::KernelCrash)
    {
        return TestVerdict::Ignored(format!("not run: {}", deviations.report_line(crash)));
    }
    let verdict = try_run_in_child(variant, test, known.is_some(), show)
        .unwrap_or_else(|err| TestVerdict::Failed(format!("the harness failed: {err:#}")));
    match known {
        Some(_)
            if variant.place_of_deviating_device != PlaceInPair::Both
                && matches!(verdict, TestVerdict::Passed) =>
        {
            verdict
        }
        Some((deviations, of_test)) => verdict_given_deviations(deviations, &of_test, verdict),
        None => verdict,
    }
}

/// Converts the verdict on a test that is on the device's list of deviations.
fn verdict_given_deviations(
    deviations: &Deviations,
    of_test: &[&Deviation],
    verdict: TestVerdict,
) -> TestVerdict {
    let lines = || {
        let lines = of_test.iter();
        let lines: Vec<_> = lines.map(|listed| deviations.report_line(listed)).collect();
        lines.join("; ")
    };
    match verdict {
        TestVerdict::Failed(text) => {
            let mut listed = of_test.iter();
            match listed.find(|listed| text.contains(listed.failure_message_part)) {
                Some(shown) => TestVerdict::Ignored(deviations.report_line(shown)),
                None => TestVerdict::Failed(format!(
                    "{text}\nis a known deviation ({}), but fails otherwise than with {:?}",
                    lines(),
                    of_test
                        .iter()
                        .map(|listed| listed.failure_message_part)
                        .collect::<Vec<_>>()
                )),
            }
        }
        TestVerdict::Passed if of_test.iter().all(|listed| !listed.flaky) => {
            TestVerdict::Failed(format!(
                "passes, and is listed as a deviation ({}) that was observed on {}: take it off the list",
                lines(),
                deviations.kernel_and_library
            ))
        }
        other => other,
    }
}

/// Returns an address of this host that no other test has. Tests must have different addresses, because
/// programs on one host reach each other by the addresses of sockets.
fn unique_host_address() -> String {
    static NEXT_HOST: AtomicU32 = AtomicU32::new(0);
    let [.., high, low] = std::process::id().to_be_bytes();
    let next = NEXT_HOST.fetch_add(1, Ordering::Relaxed);
    format!("127.{}.{high}.{low}", 1 + next % 250)
}

fn try_run_in_child(
    variant: &SuiteVariant,
    test: &SuiteTest,
    known: bool,
    show: bool,
) -> anyhow::Result<TestVerdict> {
    let limit = if known {
        variant.hang_timeout.min(KNOWN_FAILURE_HANG_TIMEOUT)
    } else {
        variant.hang_timeout
    };
    let arg = format!("{} {}", test.name, limit.as_millis());
    let mut command = role_command("test", &arg, &variant.settings)?;
    command.envs(variant.env_vars.iter().cloned());
    if variant.gives_test_own_address {
        command.env("VERBATIM_ADDRESS", unique_host_address());
    }
    if known {
        command.env(WAIT_LIMIT_ENV_VAR, KNOWN_FAILURE_EVENT_WAIT_S);
    }
    // The output goes to a file, because a pipe would stay open as long as any grandchild lives.
    let mut output = create_unlinked_file().context("a file for the test's output")?;
    if !show {
        command
            .stdout(output.try_clone()?)
            .stderr(output.try_clone()?);
    }
    let mut child = command.spawn().context("start the test")?;
    // A hung test ends its own process. This limit is for a process that cannot end itself.
    let limit = limit * MAX_HANG_LIMITS_PER_TEST + Duration::from_secs(15);
    let status = wait_for_exit_or_timeout(&mut child, limit)?;
    if status.is_none() {
        child.kill()?;
        child.wait()?;
    }
    let mut text = Vec::new();
    output.rewind()?;
    output.read_to_end(&mut text)?;
    let text = String::from_utf8_lossy(&text).into_owned();
    let Some(status) = status else {
        return Ok(TestVerdict::Failed(format!("{text}\nhung, and was killed")));
    };
    Ok(match (status.code(), status.signal()) {
        (Some(0), _) => TestVerdict::Passed,
        (Some(code), _) if code == i32::from(SKIPPED_EXIT_STATUS) => {
            TestVerdict::Ignored(text.trim().to_owned())
        }
        (Some(101 | 124), _) => TestVerdict::Failed(text),
        (Some(code), _) => TestVerdict::Failed(format!("{text}\nexit status {code}")),
        (None, Some(signal)) => TestVerdict::Failed(format!("{text}\ndied of signal {signal}")),
        (None, None) => TestVerdict::Failed(text),
    })
}

/// Creates a file and removes its name.
fn create_unlinked_file() -> std::io::Result<File> {
    static NEXT_FILE: AtomicUsize = AtomicUsize::new(0);
    let n = NEXT_FILE.fetch_add(1, Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("verbs-conformance-{}-{n}", std::process::id()));
    let file = File::options()
        .read(true)
        .append(true)
        .create_new(true)
        .open(&path)?;
    std::fs::remove_file(&path)?;
    Ok(file)
}

/// Lets another process join and leave the fabric, and checks that no file remains in its folder.
fn check_fabric_left_empty(variant: &SuiteVariant) -> TestVerdict {
    let Some(fabric) = &variant.fabric_folder else {
        return TestVerdict::Passed;
    };
    let result: anyhow::Result<()> = (|| {
        let mut command = role_command("open", "", &variant.settings)?;
        let output = command.envs(variant.env_vars.iter().cloned()).output()?;
        anyhow::ensure!(
            output.status.success(),
            "the last process failed: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        let mut left = file_names_in_folder(fabric);
        // The counters of packets and of ports may remain after all processes have left.
        left.retain(|name| name != "counters" && name != "traffic");
        anyhow::ensure!(left.is_empty(), "left in {}: {left:?}", fabric.display());
        Ok(())
    })();
    let _ = std::fs::remove_dir_all(fabric);
    match result {
        Ok(()) => TestVerdict::Passed,
        Err(err) => TestVerdict::Failed(format!("{err:#}")),
    }
}

/// Returns the file names in a folder; returns no names if the folder does not exist.
#[must_use]
pub fn file_names_in_folder(folder: &std::path::Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return Vec::new();
    };
    let mut names: Vec<String> = entries
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_known_deviation_is_skipped_only_when_it_fails_as_listed() {
        let deviations = Deviations::find_by_device_name("rxe").expect("known");
        let listed = deviations.iter_on_one_device().next().expect("not empty");
        let judge = |deviation: &Deviation, verdict| {
            verdict_given_deviations(deviations, &[deviation], verdict)
        };
        let as_listed = TestVerdict::Failed(format!(
            "panicked: {}, and more",
            listed.failure_message_part
        ));
        assert!(matches!(
            judge(listed, as_listed),
            TestVerdict::Ignored(why) if why == deviations.report_line(listed)
        ));
        let otherwise = TestVerdict::Failed("died of signal 7".into());
        assert!(
            matches!(judge(listed, otherwise), TestVerdict::Failed(why) if why.contains("otherwise"))
        );
        let firm = Deviation {
            flaky: false,
            ..*listed
        };
        assert!(matches!(
            judge(&firm, TestVerdict::Passed),
            TestVerdict::Failed(_)
        ));
        let flaky = Deviation {
            flaky: true,
            ..*listed
        };
        assert!(matches!(
            judge(&flaky, TestVerdict::Passed),
            TestVerdict::Passed
        ));
    }

    fn flags(args: &[&str]) -> anyhow::Result<LibtestFlags> {
        LibtestFlags::parse(args.iter().map(|arg| (*arg).to_owned()))
    }

    #[test]
    fn filters_choose_tests_as_libtest_does() {
        let some = flags(&["rc", "--skip", "slow", "--test-threads=1"]).unwrap();
        assert!(some.selects("data::rc_send") && !some.selects("data::uc_send"));
        assert!(!some.selects("data::rc_slow"));
        assert_eq!(some.threads, Some(1));
        let exact = flags(&["--exact", "rc"]).unwrap();
        assert!(exact.selects("rc") && !exact.selects("rc2"));
        assert!(!flags(&["--ignored"]).unwrap().selects("rc"));
        assert!(flags(&["--no-such"]).is_err());
        assert!(flags(&["--skip"]).is_err());
    }
}
