//! Waits until a server is ready for its client.

use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use regex::Regex;
use rustix::io::Errno;

use super::limit::LoadScaledTimeLimit;
use super::process::Program;
use super::suite::Ready;

/// The result of waiting for a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerWaitResult {
    Ready,
    /// The server has ended before it was ready.
    Ended,
    /// The server was not ready within the time limit.
    TimedOut,
}

/// Waits until `server` is ready at `port`. `cm_listener` is the command that lists listeners of
/// `rdma_cm`, and the pattern of the line of a listener at `port`.
///
/// # Errors
/// Returns an error if listeners cannot be listed.
pub(crate) fn wait(
    server: &Program,
    ready: &Ready,
    port: u16,
    cm_listener: (&[&str], &Regex),
    limit: &LoadScaledTimeLimit,
) -> Result<ServerWaitResult> {
    let (command, line) = cm_listener;
    loop {
        // Check for the end first, so that the last output of a server that has ended is included.
        let ended = server.has_ended()?;
        if ended {
            server.wait_for_output();
        }
        let is_ready = match ready {
            Ready::Tcp => has_socket(&tables_of(server, ["tcp", "tcp6"]), port, TCP_LISTEN)?,
            Ready::Udp => has_socket(&tables_of(server, ["udp", "udp6"]), port, UDP_BOUND)?,
            Ready::Cm => line.is_match(&run(command)?),
            Ready::Output(regex) => regex.is_match(&server.output()),
        };
        if is_ready {
            return Ok(ServerWaitResult::Ready);
        }
        if ended {
            return Ok(ServerWaitResult::Ended);
        }
        if limit.is_over() {
            return Ok(ServerWaitResult::TimedOut);
        }
        std::thread::sleep(POLL);
    }
}

const POLL: Duration = Duration::from_millis(5);

/// Returns the paths of socket tables in the network namespace of `server`.
fn tables_of(server: &Program, names: [&str; 2]) -> [String; 2] {
    names.map(|name| format!("/proc/{}/net/{name}", server.pid().as_raw_pid()))
}

/// States of sockets in the tables of proc(5): listening for TCP, and bound for UDP.
const TCP_LISTEN: &str = "0A";
const UDP_BOUND: &str = "07";

fn has_socket(tables: &[impl AsRef<str>], port: u16, state: &str) -> Result<bool> {
    for path in tables {
        let path = path.as_ref();
        match std::fs::read_to_string(path) {
            Ok(table) if has_socket_line(&table, port, state) => return Ok(true),
            Ok(_) => {}
            // A kernel without IPv6 has no second table.
            Err(err) if err.kind() == std::io::ErrorKind::NotFound => {}
            // A process that has ended has no namespace.
            Err(err) if err.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => {}
            Err(err) => return Err(err).with_context(|| format!("cannot read {path}")),
        }
    }
    Ok(false)
}

/// Returns true if a table such as `/proc/net/tcp` has a socket with this local port and state.
fn has_socket_line(table: &str, port: u16, state: &str) -> bool {
    table.lines().skip(1).any(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let local = fields.next().and_then(|address| address.rsplit(':').next());
        fields.nth(1) == Some(state)
            && local.and_then(|digits| u16::from_str_radix(digits, 16).ok()) == Some(port)
    })
}

fn run(words: &[&str]) -> Result<String> {
    let (name, args) = words
        .split_first()
        .context("no command lists the listeners")?;
    let out = Command::new(name)
        .args(args)
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot start {name}"))?;
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_of_proc_are_understood() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt\n\
             \x20  0: 00000000:4853 00000000:0000 0A 00000000:00000000 00:00000000 00000000\n\
             \x20  1: 0100007F:4854 0100007F:4853 01 00000000:00000000 00:00000000 00000000\n";
        assert!(has_socket_line(table, 0x4853, TCP_LISTEN));
        assert!(
            !has_socket_line(table, 0x4854, TCP_LISTEN),
            "it is a connection"
        );
        assert!(
            !has_socket_line(table, 0, TCP_LISTEN),
            "the remote address does not count"
        );
        let v6 = "head\n 0: 00000000000000000000000000000000:4855 0000:0000 0A 0:0\n";
        assert!(has_socket_line(v6, 0x4855, TCP_LISTEN));
    }

    #[test]
    fn a_listening_socket_is_seen_and_a_closed_one_is_not() {
        let socket = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = socket.local_addr().unwrap().port();
        let tables = ["/proc/net/tcp", "/nonexistent"];
        assert!(has_socket(&tables, port, TCP_LISTEN).unwrap());
        drop(socket);
        assert!(!has_socket(&tables, port, TCP_LISTEN).unwrap());

        let socket = std::net::UdpSocket::bind(("127.0.0.1", 0)).unwrap();
        let port = socket.local_addr().unwrap().port();
        assert!(has_socket(&["/proc/net/udp"], port, UDP_BOUND).unwrap());
    }
}
