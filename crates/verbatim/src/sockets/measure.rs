//! Compares unmodified programs over TCP loopback and over RDMA.

use std::io::Write as _;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bench::peers::KillOnDrop;

use crate::CommandOutcome;
use crate::output;
use crate::steps::CommandSteps;

/// The time that a server has to begin listening, and a client to end.
const START_AND_END_TIMEOUT: Duration = Duration::from_secs(60);

/// A pair of programs, and the figure to read from the client's output.
struct ProgramPair {
    description: &'static str,
    server_command_line: &'static str,
    client_command_line: &'static str,
    /// Extracts the figure from the client's output.
    parse_figure: fn(&str) -> Option<f64>,
    unit: &'static str,
}

const MEASURED_PROGRAM_PAIRS: [ProgramPair; 6] = [
    ProgramPair {
        description: "redis-benchmark -P 1, 50 connections, GET",
        server_command_line: "redis-server --port PORT --save --appendonly no",
        client_command_line: "redis-benchmark -p PORT -P 1 -c 50 -n 100000 -t get --csv",
        parse_figure: |text| {
            number_in_field(text.lines().find(|l| l.starts_with("\"GET\""))?, ',', 1)
        },
        unit: "1/s",
    },
    ProgramPair {
        description: "the same, SET",
        server_command_line: "redis-server --port PORT --save --appendonly no",
        client_command_line: "redis-benchmark -p PORT -P 1 -c 50 -n 100000 -t set --csv",
        parse_figure: |text| {
            number_in_field(text.lines().find(|l| l.starts_with("\"SET\""))?, ',', 1)
        },
        unit: "1/s",
    },
    ProgramPair {
        description: "request and response of 1 byte (qperf tcp_lat, one way)",
        server_command_line: "qperf -lp PORT",
        client_command_line: "qperf -lp PORT -t 1 -m 1 127.0.0.1 tcp_lat",
        parse_figure: |text| {
            parse_qperf_microseconds(text.lines().find(|l| l.contains("latency"))?)
        },
        unit: "µs",
    },
    ProgramPair {
        description: "one stream (iperf3)",
        server_command_line: "iperf3 -s -1 -p PORT",
        client_command_line: "iperf3 -c 127.0.0.1 -p PORT -t 2 -f g",
        parse_figure: |text| {
            number_before(text.lines().find(|l| l.contains("receiver"))?, "Gbits/sec")
        },
        unit: "Gbit/s",
    },
    ProgramPair {
        description: "nginx, 1 KB, keep-alive, 16 connections (ab)",
        server_command_line: "nginx -c FOLDER/nginx.conf",
        client_command_line: "ab -q -k -c 16 -n 40000 http://127.0.0.1:PORT/index.html",
        parse_figure: |text| {
            number_after(
                text.lines()
                    .find(|l| l.starts_with("Requests per second"))?,
                ":",
            )
        },
        unit: "1/s",
    },
    ProgramPair {
        description: "redis-benchmark -P 16, 50 connections, GET",
        server_command_line: "redis-server --port PORT --save --appendonly no",
        client_command_line: "redis-benchmark -p PORT -P 16 -c 50 -n 400000 -t get --csv",
        parse_figure: |text| {
            number_in_field(text.lines().find(|l| l.starts_with("\"GET\""))?, ',', 1)
        },
        unit: "1/s",
    },
];

fn number_in_field(line: &str, separator: char, at: usize) -> Option<f64> {
    line.split(separator)
        .nth(at)?
        .trim_matches('"')
        .parse()
        .ok()
}

fn number_after(line: &str, word: &str) -> Option<f64> {
    line.split_once(word)?
        .1
        .split_whitespace()
        .next()?
        .parse()
        .ok()
}

/// Parses a line of qperf such as `latency = 586 ns`; returns the time in microseconds.
fn parse_qperf_microseconds(line: &str) -> Option<f64> {
    let unit = line.split_whitespace().last()?;
    let factor = match unit {
        "ns" => 1e-3,
        "us" => 1.0,
        "ms" => 1e3,
        "sec" => 1e6,
        _ => return None,
    };
    Some(number_after(line, "=")? * factor)
}

fn number_before(line: &str, word: &str) -> Option<f64> {
    line.split_once(word)?
        .0
        .split_whitespace()
        .last()?
        .parse()
        .ok()
}

/// Measures the installed programs and prints the table.
pub(super) fn run(rounds: u32) -> Result<CommandOutcome> {
    let mut table = output::table(["what", "unit", "TCP", "RDMA", "ratio"], &[2, 3, 4]);
    let all = u64::from(rounds) * 2;
    let steps = CommandSteps::new(all * MEASURED_PROGRAM_PAIRS.len() as u64)?;
    for row in &MEASURED_PROGRAM_PAIRS {
        let missing = [row.server_command_line, row.client_command_line]
            .into_iter()
            .find(|words| !is_in_search_path(words));
        if let Some(words) = missing {
            eprintln!(
                "note: left out: {}; it needs {}",
                row.description,
                first_word(words)
            );
            (0..all).for_each(|_| steps.complete_step());
            continue;
        }
        let mut found = [Vec::new(), Vec::new()];
        'rounds: for _ in 0..rounds {
            for (carried, figures) in [false, true].into_iter().zip(&mut found) {
                let name = format!(
                    "{}, {}",
                    row.description,
                    if carried { "RDMA" } else { "TCP" }
                );
                let figure = steps.run_unless_interrupted(name, || measure_pair_once(row, carried));
                let Some(figure) = figure.with_context(|| row.description)? else {
                    break 'rounds;
                };
                figures.push(figure);
            }
        }
        if found.iter().any(Vec::is_empty) {
            break;
        }
        let [tcp, rdma] = found.map(median);
        table.add_row([
            row.description.to_owned(),
            row.unit.to_owned(),
            output::format_three_digits(tcp),
            output::format_three_digits(rdma),
            format!("{:.2} x", rdma / tcp),
        ]);
    }
    drop(steps);
    output::print_line(format!("{table}\n"))?;
    Ok(CommandOutcome::Done)
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}

fn first_word(words: &str) -> &str {
    words.split(' ').next().unwrap_or_default()
}

fn is_in_search_path(words: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into()])
        .any(|dir| dir.join(first_word(words)).exists())
}

/// Runs a server and a client once, and returns the figure.
fn measure_pair_once(row: &ProgramPair, carried: bool) -> Result<f64> {
    let folder = tempfile::tempdir()?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let port = listener.local_addr()?.port();
    drop(listener);
    write_nginx_files(folder.path(), port)?;
    let mut server = KillOnDrop(start_program(
        row.server_command_line,
        port,
        folder.path(),
        carried,
    )?);
    let end = Instant::now() + START_AND_END_TIMEOUT;
    // Do not probe a server that accepts only one connection.
    if row.server_command_line.contains(" -1 ") {
        std::thread::sleep(Duration::from_millis(500));
    } else {
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            if Instant::now() > end || server.0.try_wait()?.is_some() {
                bail!("{} does not listen", first_word(row.server_command_line));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    let client = start_program(row.client_command_line, port, folder.path(), carried)?;
    let out = client.wait_with_output()?;
    let text = String::from_utf8_lossy(&out.stdout);
    if row.server_command_line.starts_with("nginx") {
        // The master of nginx ends its workers at SIGTERM, but cannot do so at SIGKILL.
        rustix::process::kill_process(
            rustix::process::Pid::from_child(&server.0),
            rustix::process::Signal::TERM,
        )?;
        server.0.wait()?;
    }
    (row.parse_figure)(&text).with_context(|| {
        format!(
            "{} printed no figure: {text}",
            first_word(row.client_command_line)
        )
    })
}

fn start_program(words: &str, port: u16, folder: &Path, carried: bool) -> Result<Child> {
    let words = words.replace("PORT", &port.to_string());
    let words = words.replace("FOLDER", &folder.display().to_string());
    // `--save` takes an empty argument, which disables snapshots.
    let words = words.split(' ').flat_map(|word| {
        if word == "--save" {
            vec![word, ""]
        } else {
            vec![word]
        }
    });
    let words: Vec<&str> = words.collect();
    let mut command = if carried {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["sockets", "--"]).args(&words);
        command
    } else {
        let mut command = Command::new(words.first().copied().unwrap_or_default());
        command.args(&words[1..]);
        command
    };
    let path = std::env::var("PATH").unwrap_or_default();
    command
        .env("PATH", format!("{path}:/usr/sbin"))
        .current_dir(folder);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    command
        .spawn()
        .with_context(|| format!("cannot start {}", words.join(" ")))
}

/// Writes nginx's configuration and the file that it serves.
fn write_nginx_files(folder: &Path, port: u16) -> Result<()> {
    let at = folder.display();
    let user = if rustix::process::geteuid().is_root() {
        "user root;"
    } else {
        ""
    };
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|name| format!("{name}_temp_path {at}/{name};"))
        .concat();
    let mut file = std::fs::File::create(folder.join("nginx.conf"))?;
    write!(
        file,
        "{user} worker_processes 1; daemon off; pid {at}/pid; error_log {at}/errors;\n\
         events {{ worker_connections 256; }}\n\
         http {{ access_log off; keepalive_requests 1000000; {temporary}\n\
         server {{ listen 127.0.0.1:{port}; root {at}; }} }}\n"
    )?;
    std::fs::write(folder.join("index.html"), "0123456789abcde\n".repeat(64))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_read_from_what_the_programs_print() {
        let redis = "\"test\",\"rps\"\n\"GET\",\"29291.15\",\"1.167\"\n";
        assert_eq!(
            (MEASURED_PROGRAM_PAIRS[0].parse_figure)(redis),
            Some(29_291.15)
        );
        assert_eq!(
            (MEASURED_PROGRAM_PAIRS[2].parse_figure)("tcp_lat:\n    latency  =  12.3 us\n"),
            Some(12.3)
        );
        assert_eq!(
            (MEASURED_PROGRAM_PAIRS[2].parse_figure)("tcp_lat:\n    latency  =  586 ns\n"),
            Some(0.586)
        );
        let iperf =
            "[  5]   0.00-2.00   sec  4.1 GBytes  17.5 Gbits/sec                  receiver\n";
        assert_eq!((MEASURED_PROGRAM_PAIRS[3].parse_figure)(iperf), Some(17.5));
        let ab = "Requests per second:    12809.12 [#/sec] (mean)\n";
        assert_eq!(
            (MEASURED_PROGRAM_PAIRS[4].parse_figure)(ab),
            Some(12_809.12)
        );
        assert_eq!(
            (MEASURED_PROGRAM_PAIRS[4].parse_figure)("apr_socket_recv: Connection refused"),
            None
        );
    }
}
