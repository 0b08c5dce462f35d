//! Statistics of the connections of all processes, from the pages of both ends.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;

use crate::connection_page::{ConnectionPage, connections_folder_of, state};
use crate::ended_connection_totals;
pub use crate::ended_connection_totals::TotalsOfEndedConnections;
use crate::not_rdma_reason::NotRdmaReason;
use crate::{nic, remove_stale_pages};

/// The state of a connection.
#[derive(serde::Serialize)]
pub struct ConnectionStats {
    /// `one host` if both ends share a page. `two hosts` if each end has its own, as with `VERBATIM_PATH=packets`; such a
    /// connection is listed by each end that this host has.
    #[serde(rename = "ends")]
    pub one_or_two_hosts: &'static str,
    /// Both directions of the connection.
    #[serde(rename = "ways")]
    pub directions: [DirectionStats; 2],
    /// The reason why the connection is not on RDMA, or `-`.
    #[serde(rename = "reason")]
    pub not_rdma_reason: &'static str,
}

/// The state of one direction of a connection: the data from one end to the other.
#[derive(serde::Serialize)]
pub struct DirectionStats {
    /// The address of the sender.
    pub from: String,
    /// The address of the receiver.
    pub to: String,
    /// The process of the sender; 0 if no process of this host has claimed that side.
    #[serde(rename = "sender")]
    pub sender_pid: u64,
    /// The process of the receiver; 0 if no process of this host has claimed that side.
    #[serde(rename = "receiver")]
    pub receiver_pid: u64,
    /// `rdma`; `tcp`; or `back` if the direction was demoted from RDMA to TCP.
    pub path: &'static str,
    /// Bytes sent by RDMA.
    #[serde(rename = "bytes")]
    pub rdma_bytes: u64,
    /// Number of wake bytes sent to a sleeping peer.
    #[serde(rename = "wakes")]
    pub wake_bytes: u64,
}

/// Returns the connections of this user's processes in a fabric, by default the fabric that this process would join.
///
/// # Errors
/// If the folder cannot be read. A missing folder means that there are no connections.
pub fn live_connections(fabric: Option<&str>) -> io::Result<Vec<ConnectionStats>> {
    let entries = match std::fs::read_dir(page_folder(fabric)?) {
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        let Some(name) = name.to_str().and_then(|name| name.strip_prefix("c-")) else {
            continue;
        };
        // The connection may have been closed meanwhile.
        let Ok(page) = ConnectionPage::open(&entry.path(), false) else {
            continue;
        };
        if !remove_stale_pages::is_page_unused(&page) {
            found.extend(connection_of_page(name, &page));
        }
    }
    Ok(found)
}

/// Returns the totals of this user's connections in a fabric that have ended, since the fabric's folder was created.
///
/// Connections whose processes were killed are counted, and their pages are removed.
///
/// # Errors
/// If the totals cannot be read, or another version of Verbatim wrote them.
pub fn totals_of_ended_connections(fabric: Option<&str>) -> io::Result<TotalsOfEndedConnections> {
    let folder = page_folder(fabric)?;
    remove_stale_pages::remove_pages_of_ended_connections(&folder);
    ended_connection_totals::read_totals(&folder)
}

/// Returns the folder of the pages of a fabric, by default of the one that this process would join.
fn page_folder(fabric: Option<&str>) -> io::Result<PathBuf> {
    let folder = nic::connections_folder()?;
    Ok(match fabric {
        Some(name) => folder_of_fabric(folder, name),
        None => folder,
    })
}

/// Returns the folder of the fabric with this name, given the folder of another fabric.
fn folder_of_fabric(folder: PathBuf, name: &str) -> PathBuf {
    let fabric = folder
        .parent()
        .map(|fabric| fabric.to_string_lossy().into_owned())
        .unwrap_or_default();
    let plain = fabric.split('@').next().unwrap_or_default();
    connections_folder_of(Path::new(&format!("{plain}@{name}")))
}

/// Returns the connection of the page with this file name; `None` if the name has no two addresses.
pub(crate) fn connection_of_page(name: &str, page: &ConnectionPage) -> Option<ConnectionStats> {
    let mut parts = name.split('_').skip(1);
    let addresses = [parts.next()?, parts.next()?];
    let is_between_hosts = parts.next().is_some();
    let pids = [0, 1].map(|side| page.side_words(side).pid.load(Relaxed));
    let is_one_missing = if is_between_hosts {
        [0, 1]
            .map(|side| page.side_words(side).setup_stage.load(Relaxed))
            .contains(&0)
    } else {
        pids.contains(&0)
    };
    let way = |side: usize| {
        let dir = page.direction_words(side);
        DirectionStats {
            from: addresses[side].to_owned(),
            to: addresses[1 - side].to_owned(),
            sender_pid: pids[side],
            receiver_pid: pids[1 - side],
            path: match dir.state.load(Relaxed) {
                state::RDMA => "rdma",
                state::DEMOTED => "back",
                _ => "tcp",
            },
            rdma_bytes: dir.rdma_bytes_sent.load(Relaxed),
            wake_bytes: dir.wake_bytes_sent.load(Relaxed),
        }
    };
    let reason = page.not_rdma_reason().load(Relaxed);
    let waits = reason == NotRdmaReason::None as u64 && is_one_missing;
    Some(ConnectionStats {
        one_or_two_hosts: if is_between_hosts {
            "two hosts"
        } else {
            "one host"
        },
        directions: [way(0), way(1)],
        not_rdma_reason: if waits {
            PEER_MISSING_REASON_TEXT
        } else {
            NotRdmaReason::describe(reason)
        },
    })
}

/// The reason of a connection to which one end has not come. It may still come: a peer joins after some calls.
const PEER_MISSING_REASON_TEXT: &str = "no peer under verbatim sockets yet";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_without_a_peer_says_so() {
        let dir = tempfile::tempdir().expect("a folder");
        let page = ConnectionPage::open(&dir.path().join("c-1"), true).expect("a page");
        let reason = || {
            connection_of_page("c_1.2.3.4:5_1.2.3.4:6", &page).map(|shown| shown.not_rdma_reason)
        };
        page.side_words(0).pid.store(1, Relaxed);
        assert_eq!(reason(), Some(PEER_MISSING_REASON_TEXT));
        page.side_words(1).pid.store(2, Relaxed);
        assert_eq!(reason(), Some("-"));
    }

    #[test]
    fn a_peer_on_another_host_has_no_process_here() {
        let dir = tempfile::tempdir().expect("a folder");
        let page = ConnectionPage::open(&dir.path().join("c-1"), true).expect("a page");
        let shown = || connection_of_page("c_1.2.3.4:5_1.2.3.5:6_0", &page).expect("two addresses");
        page.side_words(0).setup_stage.store(1, Relaxed);
        assert_eq!(
            (shown().one_or_two_hosts, shown().not_rdma_reason),
            ("two hosts", PEER_MISSING_REASON_TEXT)
        );
        page.side_words(1).setup_stage.store(1, Relaxed);
        assert_eq!(shown().not_rdma_reason, "-");
    }
}
