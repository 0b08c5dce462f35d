//! TCP ports for the programs of a measurement.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::child::KillOnDrop;

/// Returns a port without a listener. Another program may take the port before the server does;
/// then the server fails, and the failure is reported.
pub(crate) fn find_free_port() -> Result<u16> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).context("cannot find a free TCP port")?;
    Ok(listener.local_addr()?.port())
}

/// Waits until a program listens on `port`. It does not connect, because the server serves its
/// first connection.
pub(crate) fn wait_for_listener(port: u16, server: &mut KillOnDrop, name: &str) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
            if let Ok(text) = std::fs::read_to_string(table)
                && has_listener(&text, port)
            {
                return Ok(());
            }
        }
        if let Some(status) = server.0.try_wait()? {
            bail!("the server side of {name} ended early ({status})");
        }
        if Instant::now() > deadline {
            bail!("the server side of {name} does not listen on port {port}");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns true if a `/proc/net/tcp` table has a listening socket (state 0A) on `port`.
fn has_listener(table: &str, port: u16) -> bool {
    table.lines().skip(1).any(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let local = fields.next().and_then(|local| local.rsplit_once(':'));
        let state = fields.nth(1);
        local.is_some_and(|(_, p)| u16::from_str_radix(p, 16) == Ok(port)) && state == Some("0A")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listening_port_is_seen() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
        assert!(has_listener(&table, port));
        assert!(!has_listener("", port));
        let established = "  sl  local_address rem_address   st\n   \
                           0: 0100007F:4A43 0100007F:1111 01 00000000:00000000\n";
        assert!(!has_listener(established, 0x4A43));
    }
}
