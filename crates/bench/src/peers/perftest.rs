//! `perftest`: the usual benchmarks of RDMA devices.

use std::io::Read;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use super::tcp_port::{find_free_port, wait_for_listener};
use crate::child::KillOnDrop;
use crate::core_pinning::{CorePair, spawn_on_core};
use crate::micro::parameters::VerbStream;
use crate::micro::task::{MeasurementTask, PingPong};
use crate::micro::verb::Verb;

/// Timeout of a run, longer than any run that makes progress.
const RUN_TIMEOUT: Duration = Duration::from_secs(120);

/// The figure that one run of a tool prints: a rate or a latency.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Report {
    /// Result of a tool whose name ends in `_bw`.
    Bandwidth {
        /// Rate in 10^6 messages per second.
        rate_mops: f64,
    },
    /// Result of a tool whose name ends in `_lat`.
    Latency {
        /// Median latency, in nanoseconds; the tool calls it typical.
        latency_ns_p50: f64,
    },
}

impl Report {
    /// Returns the figure in the unit of the task: 10^6 per second, or nanoseconds.
    #[must_use]
    pub fn mops_or_ns(self) -> f64 {
        match self {
            Report::Bandwidth { rate_mops } => rate_mops,
            Report::Latency { latency_ns_p50 } => latency_ns_p50,
        }
    }
}

/// Returns the tool for a task, or `None` if no tool fits.
#[must_use]
pub fn tool_for_task(task: &MeasurementTask) -> Option<&'static str> {
    Some(match (task, task.verb()) {
        (MeasurementTask::Stream(_), Verb::UdSend | Verb::RcSend | Verb::UcSend) => "ib_send_bw",
        (MeasurementTask::Stream(_), Verb::RcWrite | Verb::UcWrite) => "ib_write_bw",
        (MeasurementTask::Stream(_), Verb::RcRead) => "ib_read_bw",
        (MeasurementTask::Stream(_), Verb::Atomics) => "ib_atomic_bw",
        (MeasurementTask::PingPong(_), Verb::UdSend | Verb::RcSend | Verb::UcSend) => "ib_send_lat",
        (MeasurementTask::PingPong(_), Verb::RcWrite | Verb::UcWrite) => "ib_write_lat",
        (MeasurementTask::PingPong(_), Verb::RcRead) => "ib_read_lat",
        (MeasurementTask::PingPong(_), Verb::Atomics) => "ib_atomic_lat",
    })
    // The tools cannot send header-only messages.
    .filter(|_| task.payload_bytes() > 0)
}

/// Returns true if the tools are installed.
#[must_use]
pub fn is_installed() -> bool {
    std::env::var_os("PATH").is_some_and(|path| {
        std::env::split_paths(&path).any(|folder| folder.join("ib_send_bw").is_file())
    })
}

/// Returns the options of a run: the same parameters as those of this benchmark, as far as the
/// tools have them.
fn args(task: &MeasurementTask, iterations: u64) -> Vec<String> {
    let mut args = vec![
        "-F".to_owned(), // no word about the CPU's frequency
        "-n".to_owned(),
        iterations.to_string(),
    ];
    let mut option = |name: &str, value: usize| args.extend([name.to_owned(), value.to_string()]);
    match *task {
        MeasurementTask::Stream(VerbStream {
            verb,
            payload_bytes,
            wrs_per_doorbell: batch,
            window,
            signal_every,
            inline,
            ..
        }) => {
            option("-t", window);
            option("-l", batch);
            option("-Q", signal_every);
            if verb == Verb::Atomics {
                option("-o", 16);
            } else {
                option("-s", payload_bytes);
            }
            if verb == Verb::RcRead {
                option("-o", 16);
            } else if verb != Verb::Atomics {
                option("-I", if inline { payload_bytes } else { 0 });
            }
        }
        MeasurementTask::PingPong(PingPong {
            verb,
            payload_bytes,
            inline,
            ..
        }) => {
            if verb != Verb::Atomics {
                option("-s", payload_bytes);
            }
            if !matches!(verb, Verb::RcRead | Verb::Atomics) {
                option("-I", if inline { payload_bytes } else { 0 });
            }
        }
    }
    match task.verb() {
        Verb::UdSend => args.extend(["-c".to_owned(), "UD".to_owned()]),
        Verb::UcSend | Verb::UcWrite => args.extend(["-c".to_owned(), "UC".to_owned()]),
        Verb::Atomics => args.extend(["-A".to_owned(), "FETCH_AND_ADD".to_owned()]),
        _ => {}
    }
    args
}

/// Returns a number of iterations near `wanted` that the tools accept.
fn accepted_iterations_near(task: &MeasurementTask, wanted: u64) -> u64 {
    match task {
        MeasurementTask::Stream(stream) => {
            // A multiple of the window is also a multiple of postlists and signaled periods.
            let window = stream.window as u64;
            wanted
                .clamp(2 * window.max(4), 1_000_000)
                .next_multiple_of(window)
        }
        MeasurementTask::PingPong(_) => wanted.clamp(20, 1_000_000),
    }
}

/// Runs the tool for `task` once between two pinned processes on `device`, at this port and GID
/// index, with about `wanted` iterations.
///
/// # Errors
/// When no tool fits the task. When the tool fails, takes more than two minutes, or prints
/// something other than its result.
pub fn run(
    task: &MeasurementTask,
    wanted: u64,
    device: &str,
    (port_num, gid_index): (u8, u8),
    cores: CorePair,
) -> Result<Report> {
    let tool = tool_for_task(task).context("perftest has no such test")?;
    let mut all = args(task, accepted_iterations_near(task, wanted));
    all.extend(
        [
            ("-d", device.to_owned()),
            ("-i", port_num.to_string()),
            ("-x", gid_index.to_string()),
        ]
        .into_iter()
        .flat_map(|(name, value)| [name.to_owned(), value]),
    );
    run_tool(
        &VerbsLibrary::Installed,
        tool,
        &all,
        task.payload_bytes(),
        cores,
    )
}

/// Verbs library that a program runs on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VerbsLibrary {
    /// The installed libibverbs.
    Installed,
    /// The software NIC, by this `verbatim run`.
    Softnic(PathBuf),
}

impl VerbsLibrary {
    /// Returns a command that runs `program`.
    #[must_use]
    pub fn command(&self, program: &str) -> Command {
        match self {
            VerbsLibrary::Installed => Command::new(program),
            VerbsLibrary::Softnic(verbatim) => {
                let mut command = Command::new(verbatim);
                command.args(["run", "--", program]);
                command
            }
        }
    }
}

/// Runs `tool` with `args` once between two pinned processes.
///
/// # Errors
/// When the tool fails, takes more than two minutes, or prints something other than a result for
/// `payload_bytes`.
pub fn run_tool(
    runs: &VerbsLibrary,
    tool: &str,
    args: &[String],
    payload_bytes: usize,
    cores: CorePair,
) -> Result<Report> {
    let port = find_free_port()?;
    let command = || {
        let mut command = runs.command(tool);
        command
            .args(["-p", &port.to_string()])
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    };
    let mut server = KillOnDrop(spawn_on_core(
        cores.responder,
        command().stdout(Stdio::null()).stderr(Stdio::null()),
    )?);
    wait_for_listener(port, &mut server, tool)?;
    let client = KillOnDrop(spawn_on_core(cores.requester, command().arg("127.0.0.1"))?);
    let text = wait_for_client_output(client, tool)?;
    parse(&text, payload_bytes).with_context(|| format!("{tool} {}", args.join(" ")))
}

/// Returns the output of a client. Fails if the client fails or exceeds the timeout.
fn wait_for_client_output(mut client: KillOnDrop, tool: &str) -> Result<String> {
    let deadline = Instant::now() + RUN_TIMEOUT;
    // The output is far smaller than a pipe's buffer, so the client does not block on it.
    let status = loop {
        if let Some(status) = client.0.try_wait()? {
            break status;
        }
        if Instant::now() > deadline {
            bail!("{tool} did not end within {} s", RUN_TIMEOUT.as_secs());
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let (mut out, mut err) = (String::new(), String::new());
    if let Some(mut pipe) = client.0.stdout.take() {
        pipe.read_to_string(&mut out)?;
    }
    if let Some(mut pipe) = client.0.stderr.take() {
        pipe.read_to_string(&mut err)?;
    }
    if !status.success() {
        let said = if err.trim().is_empty() { &out } else { &err };
        bail!("{tool} failed ({status}): {}", said.trim());
    }
    Ok(out)
}

/// Parses a tool's table: a line of column names that starts with `#bytes`, then a line of figures.
///
/// A column's name may contain blanks. Each name except the first two ends in its unit in brackets.
fn parse(text: &str, payload_bytes: usize) -> Result<Report> {
    let mut lines = text.lines().map(str::trim);
    let header = lines
        .by_ref()
        .find(|line| line.starts_with("#bytes"))
        .context("printed no line of column names")?;
    let figures: Vec<f64> = lines
        .find(|line| line.starts_with(|c: char| c.is_ascii_digit()))
        .context("printed no figures")?
        .split_whitespace()
        .map_while(|word| word.parse().ok())
        .collect();
    let names = columns(header);
    let figure = |wanted: &[&str]| -> Result<f64> {
        let at = names
            .iter()
            .position(|name| wanted.contains(&name.as_str()))
            .with_context(|| format!("printed no column {:?}", wanted[0]))?;
        let figure = *figures
            .get(at)
            .with_context(|| format!("printed no figure for {:?}", wanted[0]))?;
        if !(figure.is_finite() && figure > 0.0) {
            bail!("printed {figure} for {:?}", wanted[0]);
        }
        Ok(figure)
    };
    #[allow(clippy::cast_precision_loss)] // far below 2^52
    let bytes = payload_bytes as f64;
    if figure(&["#bytes"])? != bytes {
        bail!("measured another payload than {payload_bytes} bytes");
    }
    if names.iter().any(|name| name == "MsgRate[Mpps]") {
        // The tool rounds the rate to six decimals and the bandwidth to two. Its MB are MiB.
        let rate_mops = if payload_bytes >= 1024 {
            figure(&["BW average[MB/sec]", "BW average[MiB/sec]"])? * 1.048_576 / bytes
        } else {
            figure(&["MsgRate[Mpps]"])?
        };
        return Ok(Report::Bandwidth { rate_mops });
    }
    Ok(Report::Latency {
        latency_ns_p50: figure(&["t_typical[usec]"])? * 1e3,
    })
}

/// Splits a header line into column names.
fn columns(header: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut name: Vec<&str> = Vec::new();
    for word in header.split_whitespace() {
        name.push(word);
        if word.starts_with('#') || word.ends_with(']') {
            names.push(name.join(" "));
            name.clear();
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::micro::parameters::MicroParameters;

    /// Output of perftest 6.06 on Soft-RoCE.
    const SEND_BW: &str = "\
---------------------------------------------------------------------------------------
Device not recognized to implement inline feature. Disabling it
---------------------------------------------------------------------------------------
                    Send Post List BW Test
 Dual-port       : OFF\t\tDevice         : rxe0
 Number of qps   : 1\t\tTransport type : IB
 TX depth        : 256
 Post List       : 16
 Mtu             : 4096[B]
 Max inline data : 0[B]
---------------------------------------------------------------------------------------
 local address: LID 0000 QPN 0x0012 PSN 0x24830b
 GID: 00:00:00:00:00:00:00:00:00:00:255:255:192:168:77:01
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
 8          8000             0.62               0.55   \t\t   0.071563
---------------------------------------------------------------------------------------
";
    const READ_BW: &str = "\
 #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
 1048576    16               106.74             105.70 \t\t   0.000106
";
    const SEND_LAT: &str = "\
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec] 
 8       1000          8.44           174.92       8.73     \t       9.19        \t4.38   \t\t25.28   \t\t174.92 
---------------------------------------------------------------------------------------
";

    #[test]
    fn what_version_6_06_prints() {
        let rate = parse(SEND_BW, 8).unwrap();
        assert_eq!(
            rate,
            Report::Bandwidth {
                rate_mops: 0.071_563
            }
        );
        // For long messages, the bandwidth has more digits: 105.70 MiB/s with 1 MiB.
        let rate = parse(READ_BW, 1 << 20).unwrap().mops_or_ns();
        assert!((rate - 105.70e-6).abs() < 1e-12, "{rate}");
        let latency = parse(SEND_LAT, 8).unwrap();
        assert_eq!(
            latency,
            Report::Latency {
                latency_ns_p50: 8730.0
            }
        );
    }

    #[test]
    fn further_columns_do_no_harm() {
        let text = "#bytes #iterations BW peak[MiB/sec] BW average[MiB/sec] MsgRate[Mpps] CPU_Util[%]\n\
                    4096 1000 2.0 1.0 0.000256 12.5\n";
        let rate = parse(text, 4096).unwrap().mops_or_ns();
        assert!((rate - 256e-6).abs() < 1e-12, "{rate}");
    }

    #[test]
    fn other_output_is_refused() {
        for text in [
            "",
            "8 1000 1 2 3\n",
            "#bytes #iterations MsgRate[Mpps]\n",
            "#bytes #iterations MsgRate[Mpps]\n8 1000\n",
            "#bytes #iterations MsgRate[Mpps]\n8 1000 nan\n",
            "#bytes #iterations MsgRate[Mpps]\n8 1000 0.000000\n",
            "#bytes #iterations MsgRate[Mpps]\n16 1000 0.5\n",
            "#bytes #iterations t_avg[usec]\n8 1000 0.5\n",
        ] {
            assert!(parse(text, 8).is_err(), "{text:?}");
        }
    }

    #[test]
    fn the_same_parameters() {
        let parameters = |payload_bytes| MicroParameters {
            payload_bytes: Some(payload_bytes),
            ..MicroParameters::default()
        };
        let stream = |verb, payload| {
            MeasurementTask::Stream(VerbStream::new(verb, &parameters(payload), 1).unwrap())
        };
        let send = stream(Verb::UdSend, 64);
        assert_eq!(tool_for_task(&send), Some("ib_send_bw"));
        assert_eq!(
            args(&send, accepted_iterations_near(&send, 1000)).join(" "),
            "-F -n 1024 -t 256 -l 16 -Q 16 -s 64 -I 64 -c UD"
        );
        let read = stream(Verb::RcRead, 1 << 20);
        assert_eq!(
            args(&read, accepted_iterations_near(&read, 1)).join(" "),
            "-F -n 16 -t 8 -l 4 -Q 4 -s 1048576 -o 16"
        );
        let ping = PingPong::new(Verb::RcWrite, &parameters(4096), 1).unwrap();
        let ping = MeasurementTask::PingPong(ping);
        assert_eq!(tool_for_task(&ping), Some("ib_write_lat"));
        assert_eq!(
            args(&ping, accepted_iterations_near(&ping, 1)).join(" "),
            "-F -n 20 -s 4096 -I 0"
        );
        assert_eq!(tool_for_task(&stream(Verb::RcSend, 0)), None);
    }

    #[test]
    fn a_tool_that_hangs_or_fails_is_an_error() {
        let child = |script: &str| {
            let mut command = Command::new("sh");
            command
                .args(["-c", script])
                .stdout(Stdio::piped())
                .stderr(Stdio::piped());
            KillOnDrop(command.spawn().unwrap())
        };
        assert_eq!(
            wait_for_client_output(child("echo 5"), "sh").unwrap(),
            "5\n"
        );
        let failed = wait_for_client_output(child("echo no device >&2; exit 3"), "sh").unwrap_err();
        assert!(failed.to_string().contains("no device"), "{failed}");
    }
}
