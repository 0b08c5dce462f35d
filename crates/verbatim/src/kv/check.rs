//! `verbatim kv check`: do clients that work at the same time, and are killed and stopped, see one store?

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bench::peers::KillOnDrop;
use kv::history::{History, Plan, Recorder, Verdict, ask};
use kv::load::Random;
use kv::{ClientConfig, Design, Pipeline};
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;

use super::lines::Line;
use super::serve::{ONE_READ_BYTES, RecordArgs};
use crate::Outcome;
use crate::args::{self, NicArgs, PortArgs};
use crate::children::{Lines, part_of, start};
use crate::nic::Nic;
use crate::output::{self, print, print_typed};
use crate::stop::stop_signals;

/// What clients do.
#[derive(clap::Args, Clone, Debug)]
struct AskArgs {
    /// Keys: few, so that clients meet
    #[arg(long, value_name = "N", default_value = "4", value_parser = args::number("a count of keys", 1..=1000u64))]
    keys: u64,
    /// Bytes of a value
    #[arg(long, value_name = "BYTES", default_value = "32", value_parser = args::number("a length of values", 16..=65_535usize))]
    value_size: usize,
    /// Requests that a client has outstanding
    #[arg(long, value_name = "N", default_value = "4", value_parser = args::number("a window", 1..=64usize))]
    window: usize,
    /// What random choices start from
    #[arg(long, value_name = "N", default_value = "1", value_parser = args::word)]
    seed: u64,
}

/// Arguments of `verbatim kv check`.
#[derive(clap::Args)]
#[command(allow_negative_numbers = true, after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Check this design only (may be given several times): herd, reads, atomics [default: all]
    #[arg(long, value_name = "DESIGN")]
    design: Vec<Design>,
    /// Client processes at the same time
    #[arg(long, value_name = "N", default_value = "3", value_parser = args::number("a count of clients", 1..=32usize))]
    clients: usize,
    /// Worker threads of the server
    #[arg(long, value_name = "N", default_value = "2", value_parser = args::number("a count of workers", 1..=64usize))]
    workers: usize,
    /// How long clients work
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = args::duration)]
    duration: Duration,
    /// How long it takes on average until a client is killed, and another one comes; 0s: none is
    #[arg(long, value_name = "TIME", default_value = "250ms", value_parser = args::duration_or_none)]
    kill_every: Duration,
    /// How long it takes on average until the server or a client is stopped, and goes on 1 to 400 ms later; 0s: none is
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = args::duration_or_none)]
    stop_every: Duration,
    /// Leave the histories in this folder, which must not exist
    #[arg(long, value_name = "FOLDER", conflicts_with = "judge")]
    keep: Option<PathBuf>,
    /// Run nothing: judge a history that was left
    #[arg(long, value_name = "FOLDER")]
    judge: Option<PathBuf>,
    /// Print one JSON object per line: checked
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    ask: AskArgs,
    #[command(flatten)]
    records: RecordArgs,
    #[command(flatten)]
    nic: NicArgs,
    #[command(flatten)]
    port: PortArgs,
}

/// What is served: a design, and with [`Design::Reads`] how a GET READs.
#[derive(Clone, Copy)]
struct Variant {
    design: Design,
    read_size: usize,
}

impl Variant {
    /// Those of a design that were asked for.
    fn all_of(design: Design, read_size: Option<usize>) -> Vec<Self> {
        let sizes = match (design, read_size) {
            (_, Some(size)) => vec![size],
            (Design::Reads, None) => vec![0, ONE_READ_BYTES],
            (_, None) => vec![0],
        };
        let of = |read_size| Self { design, read_size };
        sizes.into_iter().map(of).collect()
    }

    fn name(self) -> String {
        match (self.design, self.read_size) {
            (design, 0) => design.name().to_owned(),
            (design, size) => format!("{design}-{size}"),
        }
    }
}

const EXAMPLES: &str = "\
Starts a server and clients, processes all, that GET, PUT, compare-and-set and DELETE the same few keys. Clients are killed \
(SIGKILL) and replaced; server and clients are stopped for a while and go on (SIGSTOP, SIGCONT), for longer than it takes \
clients to lose patience and send again. What each client asked and got is recorded with the times, and judged in the end:
is there, for each key, an order of all operations that gives what everybody saw? Operations of killed clients may have \
happened or not. A server that ends takes its store with it, so none is killed.

Examples:
  verbatim kv check
  verbatim kv check --design herd --duration 60s --clients 6 --keys 2 --seed 7
  verbatim kv check --design reads --read-size 1024
  verbatim kv check --keep /tmp/history
  verbatim kv check --judge /tmp/history/herd

Exit status 1 when a history is not linearizable: a piece of it that shows so is printed, as short as was found, and all of it is kept.";

/// Arguments of a client, which `verbatim kv check` starts.
#[derive(clap::Args)]
pub(crate) struct ClientArgs {
    server: String,
    folder: PathBuf,
    number: u64,
    /// Ignored: there is nothing to print.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    ask: AskArgs,
    #[command(flatten)]
    nic: NicArgs,
    #[command(flatten)]
    port: PortArgs,
}

/// What came of one design.
#[derive(Debug, Serialize)]
struct Checked {
    design: Option<Design>,
    /// Bytes of the READ of a neighbourhood; 0 where there is none.
    read_size: usize,
    kills: u64,
    stops: u64,
    /// Changes that came to the server again, and were not made again.
    repeated: u64,
    #[serde(flatten)]
    verdict: Verdict,
    /// Where the history is.
    history: Option<PathBuf>,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<Outcome> {
    if let Some(folder) = &args.judge {
        let checked = Checked {
            design: None,
            read_size: 0,
            kills: 0,
            stops: 0,
            repeated: 0,
            verdict: History::read(folder)?.judge(),
            history: Some(folder.clone()),
        };
        return tell(args, &[checked]);
    }
    let nic = Nic::open(&args.nic, &args.port)?;
    let designs = if args.design.is_empty() {
        Design::ALL.to_vec()
    } else {
        args.design.clone()
    };
    let folder = tempfile::tempdir().context("cannot make a folder")?;
    let folder = match &args.keep {
        None => folder.path().to_owned(),
        Some(keep) => {
            std::fs::create_dir(keep)
                .with_context(|| format!("cannot make the folder {}", keep.display()))?;
            keep.clone()
        }
    };
    let mut all = Vec::new();
    for design in designs {
        if let Err(unsupported) = design.check(nic.context.capabilities()?) {
            if args.design.is_empty() {
                eprintln!("note: {unsupported}");
                continue;
            }
            return Err(unsupported.into());
        }
        for variant in Variant::all_of(design, args.records.read_size) {
            let folder = folder.join(variant.name());
            std::fs::create_dir_all(&folder)?;
            all.push(one(args, variant, &folder).with_context(|| variant.name())?);
        }
    }
    if all.is_empty() {
        bail!("no design runs here; `verbatim devices` lists other devices");
    }
    tell(args, &all)
}

fn tell(args: &Args, all: &[Checked]) -> Result<Outcome> {
    for checked in all {
        if args.json {
            print_typed("checked", checked)?;
            continue;
        }
        let Checked {
            kills,
            stops,
            repeated,
            verdict,
            ..
        } = checked;
        let name = checked.design.map_or("history".to_owned(), |design| {
            let read_size = checked.read_size;
            Variant { design, read_size }.name()
        });
        print(format_args!(
            "{}: {}; {} operations on {} keys, {} of unknown outcome; {kills} clients killed, {stops} processes stopped, \
             {repeated} changes sent again",
            name,
            if verdict.is_linearizable() {
                "linearizable"
            } else {
                "NOT LINEARIZABLE"
            },
            verdict.operations,
            verdict.keys,
            verdict.unknown,
        ))?;
        for violation in &verdict.violations {
            print(format_args!("\n{violation}"))?;
        }
        if let Some(folder) = &checked.history {
            print(format_args!("the history is in {}", folder.display()))?;
        }
    }
    let right = all.iter().all(|c| c.verdict.is_linearizable());
    Ok(if right { Outcome::Done } else { Outcome::No })
}

/// Clients of a run: those that work, and how many there have been.
struct Clients<'a> {
    args: &'a Args,
    address: String,
    folder: &'a Path,
    working: Vec<KillOnDrop>,
    next: u64,
}

impl Clients<'_> {
    /// Tells all to stop, and waits until they have.
    fn end(&mut self) -> Result<()> {
        for client in &mut self.working {
            // The end of its input tells it to stop.
            drop(client.0.stdin.take());
        }
        for client in &mut self.working {
            let ended = verbs::poll_until(PATIENCE, || client.0.try_wait().transpose());
            match ended.transpose()? {
                Some(status) if status.success() => {}
                Some(status) => bail!("a client ended badly ({status}); its message is above"),
                None => bail!("a client did not end within {} s", PATIENCE.as_secs()),
            }
        }
        Ok(())
    }

    fn begin(&mut self) -> Result<KillOnDrop> {
        let Args { ask, nic, port, .. } = self.args;
        let mut command = part_of("kv", "check-client", nic, port)?;
        command
            .args([&self.address])
            .arg(self.folder)
            .arg(self.next.to_string())
            .args(["--keys", &ask.keys.to_string()])
            .args(["--value-size", &ask.value_size.to_string()])
            .args(["--window", &ask.window.to_string()])
            .args([
                "--seed",
                &(ask.seed.wrapping_mul(10_000).wrapping_add(self.next)).to_string(),
            ])
            .stdin(Stdio::piped());
        self.next += 1;
        let child = command.spawn().context("cannot start a client")?;
        Ok(KillOnDrop(child))
    }
}

fn signal(process: &KillOnDrop, signal: Signal) {
    if let Some(pid) = i32::try_from(process.0.id()).ok().and_then(Pid::from_raw) {
        // One that has ended is found by whoever waits for it.
        let _ = kill_process(pid, signal);
    }
}

/// A time that on average is this.
fn about(random: &mut Random, average: Duration) -> Duration {
    average.mul_f64(2.0 * random.unit())
}

/// How long a client may take to end once it is told to: it may have to lose patience with requests first.
const PATIENCE: Duration = Duration::from_secs(60);

fn one(args: &Args, variant: Variant, folder: &Path) -> Result<Checked> {
    let (mut server, mut said) = start_server(args, variant)?;
    let Line::Listening { address, .. } = said.expect()? else {
        bail!("the server did not say where it listens");
    };
    let mut clients = Clients {
        args,
        address,
        folder,
        working: Vec::new(),
        next: 1,
    };
    for _ in 0..args.clients {
        let client = clients.begin()?;
        clients.working.push(client);
    }
    let bar = output::activity(args.json);
    bar.enable_steady_tick(Duration::from_secs(1));
    bar.set_message(format!("{}: asking", variant.name()));
    let (kills, stops) = disturb(args, &mut clients, &server)?;
    bar.set_message(format!("{}: waiting for the last answers", variant.name()));
    clients.end()?;
    drop(server.0.stdin.take());
    let Line::Stats(stats) = said.expect()? else {
        bail!("the server did not say what it did");
    };
    bar.set_message(format!("{}: judging", variant.name()));
    let verdict = History::read(folder)?.judge();
    bar.finish_and_clear();
    let mut history = args.keep.is_some().then(|| folder.to_owned());
    if !verdict.is_linearizable() && history.is_none() {
        history = Some(save(folder)?);
    }
    Ok(Checked {
        design: Some(variant.design),
        read_size: variant.read_size,
        kills,
        stops,
        repeated: stats.repeated,
        verdict,
        history,
    })
}

/// Kills clients, and stops clients and the server for a while, until the time is over: how many of each.
fn disturb(args: &Args, clients: &mut Clients<'_>, server: &KillOnDrop) -> Result<(u64, u64)> {
    let mut random = Random::new(args.ask.seed);
    let (mut kills, mut stops) = (0, 0);
    let end = Instant::now() + args.duration;
    let next = |random: &mut Random, average: Duration| match average {
        Duration::ZERO => end,
        average => end.min(Instant::now() + about(random, average)),
    };
    let mut kill_at = next(&mut random, args.kill_every);
    let mut stop_at = next(&mut random, args.stop_every);
    loop {
        let at = kill_at.min(stop_at);
        std::thread::sleep(at.saturating_duration_since(Instant::now()));
        if at >= end {
            return Ok((kills, stops));
        }
        let chosen = random.below(args.clients as u64 + 1);
        let chosen = usize::try_from(chosen).unwrap_or(0);
        if kill_at <= stop_at {
            let client = chosen % args.clients;
            if let Some(status) = clients.working[client].0.try_wait()? {
                bail!("a client ended early ({status}); its message is above");
            }
            let new = clients.begin()?;
            // Its handle kills it and waits for its end.
            drop(std::mem::replace(&mut clients.working[client], new));
            kills += 1;
            kill_at = next(&mut random, args.kill_every);
        } else {
            let stopped = clients.working.get(chosen).unwrap_or(server);
            signal(stopped, Signal::STOP);
            std::thread::sleep(Duration::from_millis(1 + random.below(400)));
            signal(stopped, Signal::CONT);
            stops += 1;
            stop_at = next(&mut random, args.stop_every);
        }
    }
}

/// Copies a history to where it stays.
fn save(folder: &Path) -> Result<PathBuf> {
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

fn start_server(args: &Args, variant: Variant) -> Result<(KillOnDrop, Lines<Line>)> {
    let mut command = part_of("kv", "serve", &args.nic, &args.port)?;
    command
        .args(["--design", variant.design.name(), "--listen", "127.0.0.1:0"])
        .args(["--until-eof", "--store", "--keys", "10000"])
        .args(["--workers", &args.workers.to_string()])
        .args(["--value-size", &args.ask.value_size.to_string()])
        .args(args.records.flags(variant.read_size))
        .stdin(Stdio::piped());
    start(command, &bench::pin::allowed()?, "server")
}

/// A client: asks until its input ends.
pub(crate) fn client(args: &ClientArgs) -> Result<Outcome> {
    let nic = Nic::open(&args.nic, &args.port)?;
    let stop = stop_signals(true)?;
    let config = ClientConfig {
        server: args.server.clone(),
        nic: nic.config,
        window: args.ask.window,
        batch: args.ask.window,
        value_bytes: args.ask.value_size.min(1064),
        // Soon enough for stopped servers to be asked again.
        answer_ms: 100,
        deadline_ms: 20_000,
    };
    let plan = Plan {
        keys: args.ask.keys,
        value_bytes: args.ask.value_size,
        seed: args.ask.seed,
    };
    let mut recorder =
        Recorder::create(&args.folder, args.number).context("cannot write a history")?;
    let mut pipeline = Pipeline::connect_on(&nic.context, config)?;
    let mut polls = 0u32;
    ask(&mut pipeline, &plan, &mut recorder, || {
        polls = polls.wrapping_add(1);
        polls.is_multiple_of(64) && stop.try_recv().is_ok()
    })?;
    Ok(Outcome::Done)
}
