//! Third-party programs, as installed, on the software NIC.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::child::KillOnDrop;
use crate::core_pinning::spawn_on_core;
use crate::goal::Row;
use crate::peers::perftest::{self, Report, VerbsLibrary};
use crate::peers::tcp_port::{find_free_port, wait_for_listener};
use crate::peers::ucx;
use crate::setup::{BenchSetup, RowFigure};

/// Measures a row of [`Row::DROP_IN_ROWS`] once.
pub(super) fn measure(bench: &BenchSetup, row: Row) -> Result<RowFigure> {
    let verbatim = bench.worker_command.path.clone();
    let runs = VerbsLibrary::Softnic(verbatim.clone());
    match row {
        Row::IbSendBw => run_perftest(bench, &runs, "ib_send_bw", "-s 8 -l 16", 8, 4_000_000),
        Row::IbSendBwUd => {
            run_perftest(bench, &runs, "ib_send_bw", "-c UD -s 8 -l 16", 8, 4_000_000)
        }
        Row::IbSendLat => run_perftest(bench, &runs, "ib_send_lat", "-s 8", 8, 1_000_000),
        Row::IbWriteLat => run_perftest(bench, &runs, "ib_write_lat", "-s 8", 8, 1_000_000),
        Row::IbWriteBw => run_perftest(bench, &runs, "ib_write_bw", "-s 65536", 64 << 10, 80_000),
        Row::IbWriteStart => measure_first_messages_ms(bench, &runs),
        Row::UctPut => measure_ucx_put(bench, ucx::UcxTest::PutBw, verbatim),
        Row::UcpPut => measure_ucx_put(bench, ucx::UcxTest::UcpPutBw, verbatim),
        _ => bail!("{} is no program of other people's", row.name()),
    }
}

/// Runs a test of puts over `rc_verbs`.
fn measure_ucx_put(bench: &BenchSetup, test: ucx::UcxTest, verbatim: PathBuf) -> Result<RowFigure> {
    let iterations = bench.shrink_count(2_000_000);
    let measured = ucx::run(
        test,
        iterations,
        bench.cores,
        &ucx::UcxTransport::RcVerbs(verbatim),
    )?;
    Ok(lossless_figure(measured.messages_per_s / 1e6, iterations))
}

fn lossless_figure(value: f64, verified_ops: u64) -> RowFigure {
    RowFigure {
        value,
        verified_ops,
        lost_messages: 0,
    }
}

/// Runs a tool of perftest's with the options of the row and `count` messages.
fn run_perftest(
    bench: &BenchSetup,
    runs: &VerbsLibrary,
    tool: &str,
    options: &str,
    payload_bytes: usize,
    count: u64,
) -> Result<RowFigure> {
    // A multiple of whole postlists and whole signaled periods.
    let count = bench.shrink_count(count).next_multiple_of(1600);
    let mut args: Vec<String> = options.split_whitespace().map(str::to_owned).collect();
    args.extend(["-F".to_owned(), "-n".to_owned(), count.to_string()]);
    let report = perftest::run_tool(runs, tool, &args, payload_bytes, bench.cores)?;
    #[allow(clippy::cast_precision_loss)] // far below 2^52
    let value = match report {
        Report::Bandwidth { rate_mops } if payload_bytes >= 1024 => {
            rate_mops * payload_bytes as f64 / 1e3
        }
        report => report.mops_or_ns(),
    };
    Ok(lossless_figure(value, count))
}

/// Time that a client of perftest sleeps, in milliseconds. It sleeps for a second after connecting
/// to the server (`ethernet_client_connect` of its `perftest_communication.c`). It sleeps twice for
/// 100 ms while it counts cycles (`sample_get_cpu_mhz` of `get_clock.c`).
const PERFTEST_CLIENT_SLEEP_MS: f64 = 1200.0;

/// Measures the time in milliseconds that a client of `ib_write_bw` takes to send five messages.
/// The client's own sleeps are subtracted. The time that the program takes to find no device on the
/// installed libibverbs is subtracted too.
fn measure_first_messages_ms(bench: &BenchSetup, runs: &VerbsLibrary) -> Result<RowFigure> {
    const TOOL: &str = "ib_write_bw";
    const ARGS: [&str; 5] = ["-F", "-n", "5", "-s", "8"];
    let port = find_free_port()?;
    let command = |runs: &VerbsLibrary, host: &[&str]| {
        let mut command = runs.command(TOOL);
        command
            .args(["-p", &port.to_string()])
            .args(ARGS)
            .args(host)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command
    };
    let timed = |runs: &VerbsLibrary| -> Result<(f64, bool)> {
        let begin = Instant::now();
        let mut client = KillOnDrop(spawn_on_core(
            bench.cores.requester,
            &mut command(runs, &["127.0.0.1"]),
        )?);
        let status = client.0.wait().context(TOOL)?;
        Ok((begin.elapsed().as_secs_f64() * 1e3, status.success()))
    };
    let (failing_ms, succeeds) = timed(&VerbsLibrary::Installed)?;
    if succeeds {
        bail!(
            "{TOOL} finds a device on the machine's own libibverbs: there is nothing to compare with"
        );
    }
    let mut server = KillOnDrop(spawn_on_core(
        bench.cores.responder,
        &mut command(runs, &[]),
    )?);
    wait_for_listener(port, &mut server, TOOL)?;
    let (running_ms, succeeds) = timed(runs)?;
    if !succeeds {
        bail!("{TOOL} failed on the software NIC");
    }
    Ok(lossless_figure(
        running_ms - PERFTEST_CLIENT_SLEEP_MS - failing_ms,
        5,
    ))
}
