//! Checks of recorded histories. Concurrent clients, some of them killed or stopped, record a history, which is then
//! judged for linearizability.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bench::peers::KillOnDrop;
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;
use serde::de::DeserializeOwned;
use service::UnsupportedDesign;
use service::history::{HistoryRecorder, HistoryVerdict, KeyHistories, recorded_operation_count};
use service::random::Random;

use crate::CommandOutcome;
use crate::args;
use crate::children::start_on_cores;
use crate::output::{self, print_line, print_typed_json};
use crate::steps::{InterruptibleLoad, is_interrupted};
use crate::stop::stop_request_channel;

/// Arguments of a check.
#[derive(clap::Args)]
pub(crate) struct CheckArgs {
    /// Client processes at the same time
    #[arg(long, value_name = "N", default_value = "3", value_parser = args::integer_parser_in_range("a count of clients", 1..=32usize))]
    pub(crate) clients: usize,
    /// Worker threads of the server
    #[arg(long, value_name = "N", default_value = "2", value_parser = args::integer_parser_in_range("a count of workers", 1..=64usize))]
    pub(crate) workers: usize,
    /// How long clients work
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = args::parse_duration_from_10ms)]
    duration: Duration,
    /// Go on after that time until clients have recorded so many operations, without more kills and stops, for ten
    /// minutes at most
    #[arg(long, value_name = "N", default_value = "0", value_parser = args::integer_parser_in_range("a count of operations", 0..=1_000_000_000u64))]
    operations: u64,
    /// How long it takes on average until a client is killed, and another one comes; 0s: none is
    #[arg(long, value_name = "TIME", default_value = "250ms", value_parser = args::parse_duration_or_zero)]
    kill_every: Duration,
    /// How long it takes on average until the server or a client is stopped, and goes on 1 to 400 ms later; 0s: none is
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = args::parse_duration_or_zero)]
    stop_every: Duration,
    /// Leave the histories in this folder, which must not exist
    #[arg(long, value_name = "FOLDER", conflicts_with = "judge")]
    keep: Option<PathBuf>,
    /// Run nothing: judge a history that was left
    #[arg(long, value_name = "FOLDER")]
    judge: Option<PathBuf>,
    /// What random choices start from
    #[arg(long, value_name = "N", default_value = "1", value_parser = args::parse_decimal_or_hex_u64)]
    seed: u64,
    /// Print one JSON object per line: checked
    #[arg(long)]
    json: bool,
}

/// Arguments of a client that a check starts.
#[derive(clap::Args)]
pub(crate) struct RecorderArgs {
    pub(crate) server: String,
    folder: PathBuf,
    number: u64,
    #[arg(long, value_parser = args::parse_decimal_or_hex_u64)]
    pub(crate) seed: u64,
    /// Ignored, because a client prints no results.
    #[arg(long)]
    json: bool,
}

impl RecorderArgs {
    /// Creates the file of this client's history.
    pub(crate) fn create_recorder(&self) -> Result<HistoryRecorder> {
        HistoryRecorder::create(&self.folder, self.number).context("cannot write a history")
    }
}

/// Returns a function for a polling loop that returns true once standard input has ended.
pub(crate) fn stdin_end_poller() -> Result<impl FnMut() -> bool> {
    let stop = stop_request_channel(true)?;
    let mut polls = 0u32;
    Ok(move || {
        polls = polls.wrapping_add(1);
        polls.is_multiple_of(64) && stop.try_recv().is_ok()
    })
}

/// A system that is checked, in one variant.
pub(crate) trait CheckedSystem {
    /// A line that the server prints.
    type Line: DeserializeOwned;
    /// The variant as `--json` prints it; the default stands for a stored history.
    type Variant: Serialize + Default;

    fn name(&self) -> String;
    fn variant(&self) -> Self::Variant;
    /// Returns the command of the server, which ends when its standard input ends.
    fn server_command(&self, workers: usize) -> Result<Command>;
    /// Returns the command of a client, without its [`RecorderArgs`].
    fn client_command(&self) -> Result<Command>;
    /// Returns the server's address, if the line contains it.
    fn server_address(line: &Self::Line) -> Option<&str>;
    /// Returns the number of repeated changes that the server did not apply again, if the line
    /// contains it.
    fn repeated_changes_not_reapplied(line: &Self::Line) -> Option<u64>;
}

/// Returns the designs that the user has named, or all designs that the device supports. Prints a note on each
/// unsupported design.
pub(crate) fn named_or_supported_designs<D: Copy>(
    asked: &[D],
    all: &[D],
    check: impl Fn(D) -> Result<(), UnsupportedDesign>,
) -> Result<Vec<D>> {
    let mut designs = Vec::new();
    for &design in if asked.is_empty() { all } else { asked } {
        match check(design) {
            Ok(()) => designs.push(design),
            Err(unsupported) if asked.is_empty() => eprintln!("note: {unsupported}"),
            Err(unsupported) => return Err(unsupported.into()),
        }
    }
    if designs.is_empty() {
        bail!("no design runs here; `verbatim devices` lists other devices");
    }
    Ok(designs)
}

/// The result of the check of one subject.
#[derive(Debug, Serialize)]
struct SystemCheckResult<V> {
    #[serde(skip)]
    name: String,
    #[serde(flatten)]
    variant: V,
    kills: u64,
    #[serde(rename = "stops")]
    pauses: u64,
    /// Number of repeated changes that the server did not apply again.
    #[serde(rename = "repeated")]
    repeated_changes_not_reapplied: u64,
    #[serde(flatten)]
    verdict: HistoryVerdict,
    /// The folder of the history, if the history is kept.
    #[serde(rename = "history")]
    history_folder: Option<PathBuf>,
}

impl CheckArgs {
    /// Judges a stored history, if the user has named one.
    pub(crate) fn judge_stored_history<S: CheckedSystem>(&self) -> Result<Option<CommandOutcome>> {
        let Some(folder) = &self.judge else {
            return Ok(None);
        };
        let checked = SystemCheckResult {
            name: "history".to_owned(),
            variant: S::Variant::default(),
            kills: 0,
            pauses: 0,
            repeated_changes_not_reapplied: 0,
            verdict: KeyHistories::read(folder)?.check(),
            history_folder: Some(folder.clone()),
        };
        print_results(self.json, &[checked]).map(Some)
    }

    /// Checks the subjects one after the other. SIGINT ends the load, and what was recorded is judged.
    pub(crate) fn check_subjects<S: CheckedSystem>(
        &self,
        subjects: &[S],
    ) -> Result<CommandOutcome> {
        let temporary = tempfile::tempdir().context("cannot make a folder")?;
        let folder = match &self.keep {
            None => temporary.path(),
            Some(keep) => {
                std::fs::create_dir(keep)
                    .with_context(|| format!("cannot make the folder {}", keep.display()))?;
                keep
            }
        };
        let mut all = Vec::new();
        let load = InterruptibleLoad::start()?;
        for subject in subjects {
            if is_interrupted() {
                break;
            }
            let folder = folder.join(subject.name());
            std::fs::create_dir_all(&folder)?;
            match run_and_check_system(self, subject, &folder) {
                Ok(checked) => all.push(checked),
                // The terminal sends the signal to the server and to the clients, too.
                Err(error) if is_interrupted() => tracing::info!("the check failed: {error:#}"),
                Err(error) => return Err(error.context(subject.name())),
            }
        }
        load.finish();
        print_results(self.json, &all)
    }
}

/// Returns true if at least one operation was answered. A history without answers is linearizable, whatever the store
/// does.
fn has_answers(verdict: &HistoryVerdict) -> bool {
    verdict.operations > verdict.unknown_outcomes
}

fn print_results<V: Serialize>(json: bool, all: &[SystemCheckResult<V>]) -> Result<CommandOutcome> {
    for checked in all {
        if !has_answers(&checked.verdict) {
            eprintln!(
                "error: {}: nothing was checked: no request was answered",
                checked.name
            );
        }
        if json {
            print_typed_json("checked", checked)?;
            continue;
        }
        let SystemCheckResult {
            name,
            kills,
            pauses: stops,
            repeated_changes_not_reapplied: repeated,
            verdict,
            ..
        } = checked;
        print_line(format_args!(
            "{name}: {}; {} operations on {} keys, {} of unknown outcome; {kills} clients killed, {stops} processes stopped, \
             {repeated} changes sent again",
            match (verdict.is_linearizable(), has_answers(verdict)) {
                (false, _) => "NOT LINEARIZABLE",
                (true, false) => "NOTHING CHECKED",
                (true, true) => "linearizable",
            },
            verdict.operations,
            verdict.keys,
            verdict.unknown_outcomes,
        ))?;
        for violation in &verdict.violations {
            print_line(format_args!("\n{violation}"))?;
        }
        if let Some(folder) = &checked.history_folder {
            print_line(format_args!("the history is in {}", folder.display()))?;
        }
    }
    let is_right = |verdict: &HistoryVerdict| verdict.is_linearizable() && has_answers(verdict);
    let right = all.iter().all(|checked| is_right(&checked.verdict));
    Ok(if right {
        CommandOutcome::Done
    } else {
        CommandOutcome::NegativeAnswer
    })
}

/// The running clients of a check, and the number that the next client gets.
struct ClientsOfCheck<'a, S> {
    subject: &'a S,
    seed: u64,
    server_address: String,
    history_folder: &'a Path,
    running_processes: Vec<KillOnDrop>,
    next_client_number: u64,
}

impl<S: CheckedSystem> ClientsOfCheck<'_, S> {
    /// Tells all clients to stop, and waits until they have ended.
    fn stop_clients(&mut self) -> Result<()> {
        for client in &mut self.running_processes {
            // A client stops when its standard input ends.
            drop(client.0.stdin.take());
        }
        for client in &mut self.running_processes {
            let ended = verbs::poll_until(CLIENT_EXIT_TIMEOUT, || client.0.try_wait().transpose());
            match ended.transpose()? {
                Some(status) if status.success() => {}
                Some(status) => bail!("a client ended badly ({status}); its message is above"),
                None => bail!(
                    "a client did not end within {} s",
                    CLIENT_EXIT_TIMEOUT.as_secs()
                ),
            }
        }
        Ok(())
    }

    /// Waits until the clients have recorded this number of operations, for [`OPERATIONS_TIMEOUT`] at most.
    fn wait_for_operations(&mut self, wanted: u64) -> Result<()> {
        let deadline = Instant::now() + OPERATIONS_TIMEOUT;
        while recorded_operation_count(self.history_folder)? < wanted
            && Instant::now() < deadline
            && !is_interrupted()
        {
            self.running_processes
                .iter_mut()
                .try_for_each(check_still_runs)?;
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    fn start_client(&mut self) -> Result<KillOnDrop> {
        let seed = self
            .seed
            .wrapping_mul(10_000)
            .wrapping_add(self.next_client_number);
        let mut command = self.subject.client_command()?;
        command
            .arg(&self.server_address)
            .arg(self.history_folder)
            .arg(self.next_client_number.to_string())
            .args(["--seed", &seed.to_string()])
            .stdin(Stdio::piped())
            // SIGINT of a terminal is for this process, which then judges what the clients have recorded.
            .process_group(0);
        self.next_client_number += 1;
        let child = command.spawn().context("cannot start a client")?;
        Ok(KillOnDrop(child))
    }
}

/// Returns an error if the client has ended.
fn check_still_runs(client: &mut KillOnDrop) -> Result<()> {
    match client.0.try_wait()? {
        None => Ok(()),
        Some(status) => bail!("a client ended early ({status}); its message is above"),
    }
}

fn send_signal(process: &KillOnDrop, signal: Signal) {
    if let Some(pid) = i32::try_from(process.0.id()).ok().and_then(Pid::from_raw) {
        // An error means that the process has ended; a later wait reports that.
        let _ = kill_process(pid, signal);
    }
}

/// Returns a random time from 0 to twice the average.
fn uniform_time_up_to_twice_mean(random: &mut Random, average: Duration) -> Duration {
    average.mul_f64(2.0 * random.next_unit_f64())
}

/// The time that clients have for the wanted number of operations.
const OPERATIONS_TIMEOUT: Duration = Duration::from_secs(600);

/// The time that a client may take to end, because its pending requests may first have to reach their deadline.
const CLIENT_EXIT_TIMEOUT: Duration = Duration::from_secs(60);

fn run_and_check_system<S: CheckedSystem>(
    args: &CheckArgs,
    subject: &S,
    folder: &Path,
) -> Result<SystemCheckResult<S::Variant>> {
    let mut command = subject.server_command(args.workers)?;
    command
        .args(["--listen", "127.0.0.1:0", "--until-eof"])
        .stdin(Stdio::piped());
    let (mut server, mut said) =
        start_on_cores::<S::Line>(command, &bench::core_pinning::allowed_cores()?, "server")?;
    let mut clients = ClientsOfCheck {
        subject,
        seed: args.seed,
        server_address: said.read_until_some(|line| S::server_address(&line).map(str::to_owned))?,
        history_folder: folder,
        running_processes: Vec::new(),
        next_client_number: 1,
    };
    for _ in 0..args.clients {
        let client = clients.start_client()?;
        clients.running_processes.push(client);
    }
    let name = subject.name();
    let bar = output::activity_display(args.json);
    bar.enable_steady_tick(Duration::from_secs(1));
    bar.set_message(format!("{name}: asking"));
    let (kills, stops) = inject_and_count_kills_and_pauses(args, &mut clients, &server)?;
    clients.wait_for_operations(args.operations)?;
    bar.set_message(format!("{name}: waiting for the last answers"));
    clients.stop_clients()?;
    drop(server.0.stdin.take());
    let repeated = said.read_until_some(|line| S::repeated_changes_not_reapplied(&line))?;
    bar.set_message(format!("{name}: judging"));
    let verdict = KeyHistories::read(folder)?.check();
    bar.finish_and_clear();
    let mut history = args.keep.is_some().then(|| folder.to_owned());
    if !verdict.is_linearizable() && history.is_none() {
        history = Some(copy_to_kept_folder(folder)?);
    }
    Ok(SystemCheckResult {
        name,
        variant: subject.variant(),
        kills,
        pauses: stops,
        repeated_changes_not_reapplied: repeated,
        verdict,
        history_folder: history,
    })
}

/// Kills clients, and stops clients and the server for a while, until the time is over. Returns the numbers of kills
/// and stops.
fn inject_and_count_kills_and_pauses<S: CheckedSystem>(
    args: &CheckArgs,
    clients: &mut ClientsOfCheck<'_, S>,
    server: &KillOnDrop,
) -> Result<(u64, u64)> {
    let mut random = Random::new(args.seed);
    let (mut kills, mut stops) = (0, 0);
    let end = Instant::now() + args.duration;
    let next = |random: &mut Random, average: Duration| match average {
        Duration::ZERO => end,
        average => end.min(Instant::now() + uniform_time_up_to_twice_mean(random, average)),
    };
    let mut kill_at = next(&mut random, args.kill_every);
    let mut stop_at = next(&mut random, args.stop_every);
    loop {
        let at = kill_at.min(stop_at);
        sleep_until_or_interrupted(at);
        if at >= end || is_interrupted() {
            return Ok((kills, stops));
        }
        let chosen = random.next_below(args.clients as u64 + 1);
        let chosen = usize::try_from(chosen).unwrap_or(0);
        if kill_at <= stop_at {
            let client = chosen % args.clients;
            check_still_runs(&mut clients.running_processes[client])?;
            let new = clients.start_client()?;
            // Dropping the handle kills the client and waits for its end.
            drop(std::mem::replace(
                &mut clients.running_processes[client],
                new,
            ));
            kills += 1;
            kill_at = next(&mut random, args.kill_every);
        } else {
            let stopped = clients.running_processes.get(chosen).unwrap_or(server);
            send_signal(stopped, Signal::STOP);
            std::thread::sleep(Duration::from_millis(1 + random.next_below(400)));
            send_signal(stopped, Signal::CONT);
            stops += 1;
            stop_at = next(&mut random, args.stop_every);
        }
    }
}

/// Sleeps until a time, or until SIGINT.
fn sleep_until_or_interrupted(until: Instant) {
    const SIGNAL_CHECK_INTERVAL: Duration = Duration::from_millis(50);
    while !is_interrupted() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        std::thread::sleep(left.min(SIGNAL_CHECK_INTERVAL));
    }
}

/// Copies a history to a folder that is kept.
fn copy_to_kept_folder(folder: &Path) -> Result<PathBuf> {
    let to = tempfile::Builder::new()
        .prefix("verbatim-history-")
        .tempdir()
        .context("cannot keep the history")?
        .keep();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        std::fs::copy(entry.path(), to.join(entry.file_name()))?;
    }
    Ok(to)
}
