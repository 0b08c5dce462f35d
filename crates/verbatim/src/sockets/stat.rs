//! The TCP connections of this user's processes, and their state.

use anyhow::{Context, Result};
use sockets::connection_stats::{ConnectionStats, TotalsOfEndedConnections};

use crate::CommandOutcome;
use crate::output;

/// Prints the existing connections, and the totals of the ended connections.
pub(super) fn print_connections(fabric: Option<&str>, json: bool) -> Result<CommandOutcome> {
    let found = sockets::connection_stats::live_connections(fabric)
        .context("cannot read the fabric's folder")?;
    let ended = sockets::connection_stats::totals_of_ended_connections(fabric)
        .context("cannot read the totals of the connections that have ended")?;
    if json {
        for connection in &found {
            output::print_typed_json("connection", connection)?;
        }
        output::print_typed_json("ended", &ended)?;
    } else {
        output::print_line(format!(
            "{}\n\n{}",
            table(found),
            format_ended_totals(&ended)
        ))?;
    }
    Ok(CommandOutcome::Done)
}

/// Makes a table with a line for each direction of a connection.
fn table(found: Vec<ConnectionStats>) -> comfy_table::Table {
    let header = [
        "from",
        "to",
        "processes",
        "ends",
        "path",
        "bytes",
        "wakes",
        "why",
    ];
    let mut table = output::table(header, &[5, 6]);
    for connection in found {
        for way in connection.directions {
            table.add_row([
                way.from,
                way.to,
                format!("{} -> {}", way.sender_pid, way.receiver_pid),
                connection.one_or_two_hosts.to_owned(),
                way.path.to_owned(),
                way.rdma_bytes.to_string(),
                way.wake_bytes.to_string(),
                connection.not_rdma_reason.to_owned(),
            ]);
        }
    }
    table
}

/// Formats the totals of ended connections: a line for RDMA, and a line for each reason to stay on
/// TCP.
fn format_ended_totals(ended: &TotalsOfEndedConnections) -> String {
    let mut text = format!(
        "Ended: {} connections that RDMA carried, with {} bytes and {} wakes",
        ended.rdma_connections, ended.rdma_bytes, ended.wake_bytes
    );
    for (reason, count) in &ended.tcp_connections_by_reason {
        text += &format!("\n       {count} on TCP: {reason}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_its_line() {
        let ended = TotalsOfEndedConnections {
            rdma_connections: 2,
            rdma_bytes: 300,
            wake_bytes: 4,
            tcp_connections_by_reason: vec![("shut down or closed", 5)],
        };
        assert_eq!(
            format_ended_totals(&ended),
            "Ended: 2 connections that RDMA carried, with 300 bytes and 4 wakes\n       5 on TCP: shut down or closed"
        );
    }
}
