//! The connections of this user's processes.

use anyhow::{Context, Result};

use crate::Outcome;
use crate::output;

/// Prints a line for each direction of a connection.
pub(super) fn print(fabric: Option<&str>) -> Result<Outcome> {
    let found = sockets::stat::connections(fabric).context("cannot read the fabric's folder")?;
    let header = ["from", "to", "processes", "path", "bytes", "wakes", "why"];
    let mut table = output::table(header, &[4, 5]);
    for connection in found {
        for way in connection.ways {
            table.add_row([
                way.from,
                way.to,
                format!("{} -> {}", way.sender, way.receiver),
                way.path.to_owned(),
                way.bytes.to_string(),
                way.wakes.to_string(),
                connection.reason.to_owned(),
            ]);
        }
    }
    output::print(format!("{table}\n"))?;
    Ok(Outcome::Done)
}
