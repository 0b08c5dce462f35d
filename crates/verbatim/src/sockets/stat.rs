//! The connections of this user's processes.

use anyhow::{Context, Result};

use crate::Outcome;

/// Prints a line a connection.
pub(crate) fn print(fabric: Option<&str>) -> Result<Outcome> {
    let found = sockets::stat::connections(fabric).context("cannot read the fabric's folder")?;
    println!(
        "{:<47} {:>15} {:<6} {:>14} {:>8}  why",
        "from -> to", "pids", "path", "bytes", "wakes"
    );
    for connection in found {
        for way in connection.ways {
            println!(
                "{:<47} {:>15} {:<6} {:>14} {:>8}  {}",
                format!("{} -> {}", way.from, way.to),
                format!("{},{}", way.sender, way.receiver),
                way.path,
                way.bytes,
                way.wakes,
                connection.reason,
            );
        }
    }
    Ok(Outcome::Done)
}
