//! Runs a case, or tests of a suite of `unittest`, in a folder of this machine.

use std::collections::HashSet;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use regex::Regex;

use super::judge::{Outcome, count_measurement_rows, first_match, unmatched};
use super::limit::LoadScaledTimeLimit;
use super::process::{EndedProgram, Program};
use super::ready::{self, ServerWaitResult};
use super::suite::{self, Case, Target, Unittest, VERBATIM};
use super::unittest::{UnittestReport, listed};
use crate::dropin;
use crate::paths::target_dir;

/// The outcome of a case, and the output of its programs when it did not pass.
#[derive(Debug)]
pub(crate) struct CaseRun {
    pub(crate) case: String,
    pub(crate) outcome: Outcome,
    pub(crate) elapsed: Duration,
    pub(crate) output: String,
}

/// The target, the folder and the port with which programs run.
pub(crate) struct Runner<'a> {
    pub(crate) target: &'a Target,
    pub(crate) folder: &'a Path,
    /// The value of `{port}` in commands.
    pub(crate) port: u16,
}

/// The results of the programs of a case.
struct EndedPrograms {
    /// The side that failed, and the reason, if it is neither the exit status nor the output.
    failed_side_and_reason: Option<(&'static str, String)>,
    server: Option<EndedProgram>,
    client: Option<EndedProgram>,
}

impl Runner<'_> {
    /// Runs the command that prepares a suite.
    ///
    /// # Errors
    /// Returns an error if the command fails, or does not end within the time limit.
    pub(crate) fn setup(&self, command: &str) -> Result<()> {
        let command = self.fill(Side::Server, command);
        let program = Program::start(&["sh", "-c", &command], self.folder)?;
        let in_time = program.wait(&LoadScaledTimeLimit::new(SETUP))?;
        let ended = program.kill_and_collect_output()?;
        if !in_time {
            bail!("{command}: did not end within {} s", SETUP.as_secs());
        }
        if !ended.status.success() {
            bail!(
                "{command}: {}\n{}",
                ended.describe_exit_status(),
                tail(&ended.output)
            );
        }
        Ok(())
    }

    /// Runs a case. If a program cannot be started, the case fails.
    pub(crate) fn case(&self, case: &Case) -> CaseRun {
        let begin = Instant::now();
        let target = self.target;
        if let Some(needed) = case
            .link_layer
            .filter(|needed| *needed != target.link_layer)
        {
            return CaseRun {
                case: case.name.clone(),
                outcome: Outcome::Skipped {
                    reason: format!(
                        "needs link layer {needed:?}; that of {} is {:?}",
                        target.device, target.link_layer
                    ),
                },
                elapsed: begin.elapsed(),
                output: String::new(),
            };
        }
        let mut ran = self.once(case);
        for _ in 1..MAX_TRIES_AFTER_LOST_RACES {
            if !ran.is_race_lost {
                break;
            }
            ran = self.once(case);
        }
        let Judged {
            outcome, output, ..
        } = ran;
        CaseRun {
            case: case.name.clone(),
            outcome,
            elapsed: begin.elapsed(),
            output,
        }
    }

    fn once(&self, case: &Case) -> Judged {
        match self.run_programs(case) {
            Ok(result) => self.judge(case, &result),
            Err(err) => Judged::new(Outcome::failed(format!("{err:#}")), String::new()),
        }
    }

    /// Runs the server and the client of a case, or its only program, until they end.
    fn run_programs(&self, case: &Case) -> Result<EndedPrograms> {
        let limit = Duration::from_secs(case.timeout_s);
        let too_long = format!("did not end within {} s", case.timeout_s);
        let time = LoadScaledTimeLimit::new(limit);
        let Some(server) = &case.server else {
            let program = self.start(Side::Client, &case.command)?;
            let ended = program.wait(&time)?;
            return Ok(EndedPrograms {
                failed_side_and_reason: (!ended).then_some((CLIENT, too_long)),
                server: None,
                client: Some(program.kill_and_collect_output()?),
            });
        };
        let cm = &self.target.cm_listeners;
        let (lists, line) = (
            self.fill(Side::Server, &cm.command),
            self.fill(Side::Server, &cm.line),
        );
        let lists: Vec<&str> = lists.split_whitespace().collect();
        let listener = (&lists[..], &suite::line_regex(&line)?);
        let serving = self.start(Side::Server, &server.command)?;
        let waited = ready::wait(&serving, &server.ready, self.port, listener, &time)?;
        if waited != ServerWaitResult::Ready {
            let failure = match waited {
                ServerWaitResult::TimedOut => format!("not ready within {} s", case.timeout_s),
                ServerWaitResult::Ended | ServerWaitResult::Ready => {
                    "ended before it was ready".to_owned()
                }
            };
            return Ok(EndedPrograms {
                failed_side_and_reason: Some((SERVER, failure)),
                server: Some(serving.kill_and_collect_output()?),
                client: None,
            });
        }
        let client = self.start(Side::Client, &case.command)?;
        let time = LoadScaledTimeLimit::new(limit);
        let client_ended =
            wait_for_client_end_or_grace(&client, &serving, server.runs_until_stopped, &time)?;
        let client = client.kill_and_collect_output()?;
        let mut failure = None;
        if !client_ended {
            failure = Some(if serving.has_ended()? {
                (SERVER, "ended before its client".to_owned())
            } else {
                (CLIENT, too_long.clone())
            });
        }
        let serving = if server.runs_until_stopped {
            let alone = serving.has_ended()?;
            let ended = serving.terminate_and_collect_output()?;
            if alone && !ended.status.success() && failure.is_none() {
                failure = Some((SERVER, ended.describe_exit_status()));
            }
            ended
        } else {
            // A server whose client has failed may wait forever for the client.
            let patience = if failure.is_none() && client.status.success() {
                time
            } else {
                LoadScaledTimeLimit::new(GRACE_AFTER_OTHER_SIDE_FAILED)
            };
            if !serving.wait(&patience)? && failure.is_none() && client.status.success() {
                failure = Some((SERVER, too_long));
            }
            serving.kill_and_collect_output()?
        };
        Ok(EndedPrograms {
            failed_side_and_reason: failure,
            server: Some(serving),
            client: Some(client),
        })
    }

    fn judge(&self, case: &Case, result: &EndedPrograms) -> Judged {
        let sides = [(CLIENT, &result.client), (SERVER, &result.server)];
        let mut output = String::new();
        for (side, ended) in sides {
            if let Some(ended) = ended {
                output += &format!(
                    "{side} ({}):\n{}",
                    ended.describe_exit_status(),
                    tail(&ended.output)
                );
            }
        }
        let Some(failure) = self.failure(case, result) else {
            return Judged::new(Outcome::Passed, output);
        };
        let says = |patterns: &[Regex]| {
            let ended = sides.iter().filter_map(|(_, ended)| ended.as_ref());
            ended
                .filter_map(|ended| first_match(&ended.output, patterns))
                .map(str::to_owned)
                .next()
        };
        if let Some(reason) = says(&case.skip_patterns) {
            return Judged::new(Outcome::Skipped { reason }, output);
        }
        Judged {
            outcome: Outcome::failed(failure),
            output,
            is_race_lost: says(&case.lost_race_patterns)
                .or_else(|| says(&self.target.again))
                .is_some(),
        }
    }

    /// The reason why a case failed.
    fn failure(&self, case: &Case, result: &EndedPrograms) -> Option<String> {
        let stays = case
            .server
            .as_ref()
            .is_some_and(|server| server.runs_until_stopped);
        let client = result.client.as_ref();
        let server = result.server.as_ref();
        let unhappy = |side: &str, ended: Option<&EndedProgram>| {
            let ended = ended.filter(|ended| !ended.status.success())?;
            let last = last_line(&ended.output);
            Some(format!("{side}: {}{last}", ended.describe_exit_status()))
        };
        if let Some((side, failure)) = &result.failed_side_and_reason {
            let says = if *side == SERVER { server } else { client };
            let last = says.map_or_else(String::new, |ended| last_line(&ended.output));
            return Some(format!("{side}: {failure}{last}"));
        }
        if let Some(failure) = unhappy(CLIENT, client) {
            return Some(failure);
        }
        if !stays && let Some(failure) = unhappy(SERVER, server) {
            return Some(failure);
        }
        let expected = [
            (CLIENT, client, case.expected_patterns.as_slice()),
            (
                SERVER,
                server,
                case.server
                    .as_ref()
                    .map_or(&[], |s| s.expected_patterns.as_slice()),
            ),
        ];
        for (side, ended, patterns) in expected {
            let printed = ended.map_or("", |ended| &ended.output);
            if let Some(pattern) = unmatched(printed, patterns) {
                let pattern = pattern.as_str().trim_start_matches("(?m)");
                return Some(format!("{side}: nothing it printed matches {pattern}"));
            }
        }
        let printed = client.map_or("", |ended| &ended.output);
        if count_measurement_rows(printed) < case.min_measurement_rows {
            return Some(format!(
                "{CLIENT}: {} rows of measurements, not {}",
                count_measurement_rows(printed),
                case.min_measurement_rows
            ));
        }
        let check = self.fill(Side::Client, case.check_command.as_ref()?);
        let ended = Program::start(&["sh", "-c", &check], self.folder).and_then(|program| {
            program.wait(&LoadScaledTimeLimit::new(CHECK))?;
            program.kill_and_collect_output()
        });
        match ended {
            Ok(ended) if ended.status.success() => None,
            Ok(ended) => Some(format!(
                "{check}: {}{}",
                ended.describe_exit_status(),
                last_line(&ended.output)
            )),
            Err(err) => Some(format!("{check}: {err:#}")),
        }
    }

    /// Returns the names of all tests of a suite of `unittest`.
    ///
    /// # Errors
    /// Returns an error if the suite cannot be started, or lists no tests.
    pub(crate) fn tests(&self, unittest: &Unittest) -> Result<Vec<String>> {
        let quiet = Duration::from_secs(unittest.timeout_s);
        let ended = wait_while_it_prints(self.start(Side::Client, &unittest.list)?, quiet)?.0;
        let names = listed(&ended.output);
        if names.is_empty() {
            bail!("the suite lists no test\n{}", tail(&ended.output));
        }
        Ok(names)
    }

    /// Runs the tests `names` of a suite of `unittest`. If the suite dies or hangs, its current test has failed, and
    /// the suite is started again with the tests that are left. `report` is called with each outcome and its position
    /// in `names`.
    ///
    /// # Errors
    /// Returns an error if the suite cannot be started, or `report` fails.
    pub(crate) fn unittest(
        &self,
        unittest: &Unittest,
        names: &[String],
        report: &mut dyn FnMut(usize, CaseRun) -> Result<()>,
    ) -> Result<()> {
        let quiet = Duration::from_secs(unittest.timeout_s);
        let mut left: HashSet<&str> = names.iter().map(String::as_str).collect();
        while !left.is_empty() {
            let rest = names.iter().map(String::as_str);
            let rest: Vec<&str> = rest.filter(|name| left.contains(name)).collect();
            let command = format!("{} {}", unittest.run, rest.join(" "));
            let begin = Instant::now();
            let (ended, in_time) =
                wait_while_it_prints(self.start(Side::Client, &command)?, quiet)?;
            let how = if in_time {
                ended.describe_exit_status()
            } else {
                format!("silent for {} s", unittest.timeout_s)
            };
            let ran = results_of_run(&UnittestReport::parse(&ended.output), names, &left, &how);
            let each = begin.elapsed() / u32::try_from(ran.len().max(1)).unwrap_or(u32::MAX);
            for (id, outcome) in ran {
                let number = names.iter().position(|name| *name == id);
                // unittest may report a test twice: once for its body and once for its clean-up.
                let Some(number) = number.filter(|_| left.remove(id.as_str())) else {
                    continue;
                };
                let ran = CaseRun {
                    output: match &outcome {
                        Outcome::Failed { .. } => tail(&ended.output),
                        Outcome::Passed | Outcome::Skipped { .. } => String::new(),
                    },
                    case: id.trim_start_matches("tests.").to_owned(),
                    outcome,
                    elapsed: each,
                };
                report(number, ran)?;
            }
        }
        Ok(())
    }

    fn start(&self, side: Side, command: &str) -> Result<Program> {
        let command = self.fill(side, command);
        let wrap = match (side, &self.target.client) {
            (Side::Client, Some(client)) => &client.wrap,
            _ => &self.target.wrap,
        };
        let wrap: Vec<String> = wrap.iter().map(|word| self.fill(side, word)).collect();
        let wrap = wrap.iter().map(String::as_str);
        let words: Vec<&str> = wrap.chain(command.split_whitespace()).collect();
        Program::start(&words, self.folder)
    }

    fn fill(&self, side: Side, text: &str) -> String {
        let target = self.target;
        let (device, gid_index) = match (side, &target.client) {
            (Side::Client, Some(client)) => (&client.device, client.gid_index),
            _ => (&target.device, target.gid_index),
        };
        text.replace("{dev}", device)
            .replace("{gid}", &gid_index.to_string())
            .replace("{server}", &self.target.server)
            .replace("{port}", &self.port.to_string())
            .replace(suite::FOLDER, &suite::folder().to_string_lossy())
            .replace(suite::TARGET_DIR, &target_dir().to_string_lossy())
            .replace("{folder}", &self.folder.to_string_lossy())
            .replace(VERBATIM, &dropin::program().to_string_lossy())
    }
}

/// The side of a case for which a command runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Server,
    /// The client, or the only program of a case.
    Client,
}

/// The outcome of one run of a case.
struct Judged {
    outcome: Outcome,
    /// The output of the case's programs.
    output: String,
    /// True if the case failed because its programs lost a race between themselves.
    is_race_lost: bool,
}

impl Judged {
    fn new(outcome: Outcome, output: String) -> Self {
        Self {
            outcome,
            output,
            is_race_lost: false,
        }
    }
}

/// Maximum number of times that a case is run whose programs lose a race between themselves.
const MAX_TRIES_AFTER_LOST_RACES: u32 = 3;

/// The names of the sides of a case in results. An only program is called client.
const CLIENT: &str = "client";
const SERVER: &str = "server";
/// Time that one side has to end after the other side has failed.
const GRACE_AFTER_OTHER_SIDE_FAILED: Duration = Duration::from_secs(1);
/// Time limit of the command that prepares a suite.
const SETUP: Duration = Duration::from_secs(120);
/// Time limit of a check command.
const CHECK: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(5);

/// Returns the results of the tests in `left` after a run of their suite. `how` describes the end of the run. A test
/// that the run did not report has failed; such tests are in the order of `names`. The result is never empty, so that
/// each run leaves fewer tests.
fn results_of_run(
    said: &UnittestReport,
    names: &[String],
    left: &HashSet<&str>,
    how: &str,
) -> Vec<(String, Outcome)> {
    let mut ran = said.outcomes_of(left);
    let why = match &said.unfinished_test {
        Some(test) if !said.has_printed_summary && left.contains(test.as_str()) => {
            ran.push((
                test.clone(),
                Outcome::failed(format!("the suite ended in it: {how}")),
            ));
            return ran;
        }
        // If the suite was started again, it would end in the same way.
        _ if !said.has_printed_summary => format!("the suite ended before it: {how}"),
        _ => "the suite says nothing of it".to_owned(),
    };
    let done: HashSet<String> = ran.iter().map(|(id, _)| id.clone()).collect();
    let silent = names
        .iter()
        .filter(|name| left.contains(name.as_str()) && !done.contains(*name));
    ran.extend(silent.map(|name| (name.clone(), Outcome::failed(why.clone()))));
    ran
}

/// Waits until `client` has ended, and returns true then. Once the server has ended, the function waits
/// only for [`GRACE_AFTER_OTHER_SIDE_FAILED`] if the server should have stayed, else for
/// [`CLIENT_GRACE_AFTER_SERVER_END`].
fn wait_for_client_end_or_grace(
    client: &Program,
    server: &Program,
    stays: bool,
    limit: &LoadScaledTimeLimit,
) -> Result<bool> {
    let mut grace: Option<LoadScaledTimeLimit> = None;
    loop {
        if client.has_ended()? {
            return Ok(true);
        }
        if limit.is_over() || grace.is_some_and(|grace| grace.is_over()) {
            return Ok(false);
        }
        if grace.is_none() && server.has_ended()? {
            grace = Some(LoadScaledTimeLimit::new(if stays {
                GRACE_AFTER_OTHER_SIDE_FAILED
            } else {
                CLIENT_GRACE_AFTER_SERVER_END
            }));
        }
        std::thread::sleep(POLL);
    }
}

/// Time for which a client may run after its server has ended; the client prints the results.
const CLIENT_GRACE_AFTER_SERVER_END: Duration = Duration::from_secs(20);

/// Waits while `program` prints output; returns false if it printed no output for the time `silence`.
fn wait_while_it_prints(program: Program, silence: Duration) -> Result<(EndedProgram, bool)> {
    let mut seen = program.output_len();
    let mut since = LoadScaledTimeLimit::new(silence);
    while !program.has_ended()? {
        let now = program.output_len();
        if now != seen {
            seen = now;
            since = LoadScaledTimeLimit::new(silence);
        } else if since.is_over() {
            return Ok((program.kill_and_collect_output()?, false));
        }
        std::thread::sleep(POLL);
    }
    Ok((program.kill_and_collect_output()?, true))
}

/// Returns the last lines of `output`.
fn tail(output: &str) -> String {
    const LINES: usize = 40; // the backtrace of a crash
    let lines: Vec<&str> = output.lines().filter(|l| !l.trim().is_empty()).collect();
    let last = &lines[lines.len().saturating_sub(LINES)..];
    last.iter().map(|line| format!("  {line}\n")).collect()
}

/// Returns `: ` and the last line of `output` that has words; returns an empty text if no line has words.
fn last_line(output: &str) -> String {
    let says = |line: &&str| line.chars().any(char::is_alphanumeric);
    match output.lines().rev().find(says) {
        Some(line) => format!(": {}", line.trim()),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::suite::{Conformance, Kind, Suite};
    use super::*;

    fn target() -> Target {
        let text = "title = \"here\"\nmachine = \"host\"\npackages = []\ndevice = \"dev0\"\n\
             gid_index = 1\nlink_layer = \"Ethernet\"\nserver = \"127.0.0.1\"\n\
             cm_listeners = { command = \"cat cm\", line = \"at {port} \" }";
        toml::from_str(text).unwrap()
    }

    /// Parses a suite from its text.
    fn suite(text: &str) -> Suite {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("targets.toml"), "").unwrap();
        let head = "title = \"t\"\norder = 1\npackages = []\n";
        std::fs::write(folder.path().join("s.toml"), format!("{head}{text}")).unwrap();
        Conformance::load(folder.path()).unwrap().suites.remove(0)
    }

    /// Makes a program that fails a number of times, and prints that it lost a race.
    fn loses(times: u32) -> (tempfile::TempDir, String) {
        let folder = tempfile::tempdir().unwrap();
        let (script, runs) = (folder.path().join("loses.sh"), folder.path().join("runs"));
        let text = format!(
            "echo >>{0}\necho race lost\ntest $(wc -l <{0}) -gt {times}\n",
            runs.display()
        );
        std::fs::write(&script, text).unwrap();
        let case = format!("alone = \"sh {}\"", script.display());
        (folder, case)
    }

    #[test]
    fn a_case_that_lost_a_race_of_its_own_is_run_three_times_at_most() {
        let mut patient = target();
        patient.again = vec![suite::line_regex("^race lost").unwrap()];
        for (target, times, passes) in [
            (&target(), 1, false),
            (&patient, 2, true),
            (&patient, 3, false),
        ] {
            let (_folder, case) = loses(times);
            let outcome = outcome_on(target, &case);
            assert_eq!(outcome == Outcome::Passed, passes, "{times}: {outcome:?}");
        }
    }

    fn outcome(case: &str) -> Outcome {
        outcome_on(&target(), case)
    }

    fn outcome_on(target: &Target, case: &str) -> Outcome {
        let suite = suite(&format!(
            "timeout_s = 60\nready = {{ output = \"ready\" }}\nskip = [\"not supported\"]\n\
             [[case]]\nname = \"c\"\n{case}"
        ));
        let Kind::Programs(cases) = &suite.kind else {
            panic!("{suite:?}");
        };
        let folder = tempfile::tempdir().unwrap();
        let runner = Runner {
            target,
            folder: folder.path(),
            port: 23_456,
        };
        runner.case(&cases[0]).outcome
    }

    #[test]
    fn placeholders_are_filled() {
        let case = "alone = \"echo {dev} {gid} {server} {port}\"\n\
             expect = ['^dev0 1 127\\.0\\.0\\.1 23456$']";
        assert_eq!(outcome(case), Outcome::Passed);
    }

    #[test]
    fn each_side_has_its_own_device_and_words_before_commands() {
        let mut target = target();
        let client = "device = \"dev1\"\ngid_index = 7\nwrap = [\"echo\", \"wrapped\"]";
        target.client = Some(toml::from_str(client).unwrap());
        let case = "server = \"echo {dev} {gid} ready\"\nclient = \"{dev} {gid} {server}\"\n\
             expect_server = [\"^dev0 1 ready$\"]\nexpect = ['^wrapped dev1 7 127\\.0\\.0\\.1$']";
        assert_eq!(outcome_on(&target, case), Outcome::Passed);
    }

    #[test]
    fn what_needs_another_link_layer_is_not_run() {
        let case = "alone = \"false\"\nlink_layer = ";
        assert_eq!(
            outcome(&format!("{case}\"InfiniBand\"")),
            Outcome::Skipped {
                reason: "needs link layer InfiniBand; that of dev0 is Ethernet".to_owned()
            }
        );
        assert!(matches!(
            outcome(&format!("{case}\"Ethernet\"")),
            Outcome::Failed { .. }
        ));
    }

    #[test]
    fn the_client_starts_when_the_server_is_ready() {
        // The server creates a file, then prints that it is ready; the client needs the file.
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("server");
        std::fs::write(
            &script,
            "sleep 0.3; touch made; echo ready; sleep 0.1; echo bye",
        )
        .unwrap();
        let case = format!(
            "server = \"sh {}\"\nclient = \"ls made\"\nexpect_server = [\"^bye$\"]",
            script.display()
        );
        assert_eq!(outcome(&case), Outcome::Passed);
    }

    #[test]
    fn failures_say_which_side_and_why() {
        let failed = |case: &str| match outcome(case) {
            Outcome::Failed { reason } => reason,
            other => panic!("{case}: {other:?}"),
        };
        assert_eq!(
            failed("alone = \"ls /nonexistent\""),
            "client: exit status 2: ls: cannot access '/nonexistent': No such file or directory"
        );
        assert!(failed("alone = \"no-such-program\"").contains("cannot start no-such-program"));
        assert_eq!(
            failed("server = \"false\"\nclient = \"true\""),
            "server: ended before it was ready"
        );
        assert_eq!(
            failed("alone = \"echo a\"\nexpect = [\"^b$\"]"),
            "client: nothing it printed matches ^b$"
        );
        assert_eq!(
            failed("alone = \"echo a\"\nrows = 1"),
            "client: 0 rows of measurements, not 1"
        );
        assert_eq!(
            failed("alone = \"true\"\ncheck = \"exit 4\""),
            "exit 4: exit status 4"
        );
        assert_eq!(
            failed("alone = \"sleep 1000\"\ntimeout_s = 1"),
            "client: did not end within 1 s"
        );
        assert_eq!(
            failed(
                "server = \"sh -c echo${IFS}ready;sleep${IFS}0.5\"\nclient = \"sleep 1000\"\n\
                 timeout_s = 1"
            ),
            "server: ended before its client: ready"
        );
    }

    #[test]
    fn a_server_that_stays_may_be_interrupted_but_not_die() {
        let stays = "server_stays = true\nclient = \"sleep 0.2\"\nready = { output = \".\" }\n";
        let server = "server = \"tail -f /proc/version\"\n";
        assert_eq!(outcome(&format!("{stays}{server}")), Outcome::Passed);
        let server = "server = \"ls /proc/version /nonexistent\"\n";
        match outcome(&format!("{stays}{server}")) {
            Outcome::Failed { reason } => {
                assert!(reason.starts_with("server: exit status 2: "), "{reason}");
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_failed_client_does_not_wait_for_its_server() {
        let case = "server = \"tail -f /proc/version /proc/self/comm\"\nclient = \"false\"\n\
             ready = { output = \"version\" }";
        let begin = Instant::now();
        assert_eq!(outcome(case), Outcome::failed("client: exit status 1"));
        assert!(begin.elapsed() < Duration::from_secs(50));
    }

    #[test]
    fn what_the_device_cannot_do_is_skipped_only_if_it_failed() {
        let not = "/nonexistent/not supported";
        let case = format!("alone = \"ls {}\"", not.replace(' ', "-"));
        assert!(matches!(outcome(&case), Outcome::Failed { .. }));
        let skipped = outcome("alone = \"sh {server}\"\ncheck = \"\"");
        assert!(matches!(skipped, Outcome::Failed { .. }));
        assert_eq!(
            outcome("alone = \"echo this is not supported\"\ncheck = \"false\""),
            Outcome::Skipped {
                reason: "this is not supported".to_owned()
            }
        );
        assert_eq!(
            outcome("alone = \"echo this is not supported\""),
            Outcome::Passed
        );
    }

    #[test]
    fn a_suite_that_dies_in_a_test_goes_on_behind_it() {
        // The script simulates a suite of three tests whose second test kills the suite.
        let script = "case \"$*\" in \
            list) echo tests.m.C.a; echo tests.m.C.b; echo tests.m.C.c;; \
            \"run tests.m.C.a tests.m.C.b tests.m.C.c\") \
               echo \"a (tests.m.C.a) ... skipped 'why'\"; printf \"b (tests.m.C.b) ... \"; \
               kill -SEGV $$;; \
            \"run tests.m.C.c\") echo \"c (tests.m.C.c) ... ok\"; echo \"Ran 1 test in 1s\";; \
            *) exit 9;; esac";
        let suite = suite("[unittest]\nlist = \"sh s list\"\nrun = \"sh s run\"\ntimeout_s = 60");
        let Kind::Unittest(unittest) = &suite.kind else {
            panic!("{suite:?}");
        };
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("s"), script).unwrap();
        let runner = Runner {
            target: &target(),
            folder: folder.path(),
            port: 23_456,
        };
        let names = runner.tests(unittest).unwrap();
        assert_eq!(names, ["tests.m.C.a", "tests.m.C.b", "tests.m.C.c"]);
        let mut said = Vec::new();
        let mut report = |number, ran: CaseRun| {
            said.push((number, ran.case, ran.outcome));
            Ok(())
        };
        runner.unittest(unittest, &names, &mut report).unwrap();
        let skipped = Outcome::Skipped {
            reason: "why".to_owned(),
        };
        let died = Outcome::failed("the suite ended in it: killed by SIGSEGV");
        assert_eq!(
            said,
            [
                (0, "m.C.a".to_owned(), skipped),
                (1, "m.C.b".to_owned(), died),
                (2, "m.C.c".to_owned(), Outcome::Passed)
            ]
        );
    }
}
