//! Totals of the connections of a fabric that have ended, in a file beside their pages.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::connection_page::ConnectionPage;
use crate::mapped_words::MappedWords;
use crate::not_rdma_reason::NotRdmaReason;

/// The file's name in the folder of the pages.
const TOTALS_FILE_NAME: &str = "totals";
/// Word 0, which says what the other words mean.
const VERSION: u64 = 1;

/// The mapped totals.
pub(crate) struct MappedTotals(MappedWords);

/// The totals of the connections of a fabric that have ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct TotalsOfEndedConnections {
    /// Connections that carried bytes by RDMA.
    #[serde(rename = "carried")]
    pub rdma_connections: u64,
    /// Bytes that they carried by RDMA, in both directions.
    #[serde(rename = "bytes")]
    pub rdma_bytes: u64,
    /// Wake bytes that they sent.
    #[serde(rename = "wakes")]
    pub wake_bytes: u64,
    /// Connections that looked for their peer and stayed on TCP, with the reason of each group.
    #[serde(rename = "on_tcp")]
    pub tcp_connections_by_reason: Vec<(&'static str, u64)>,
}

impl MappedTotals {
    /// Maps the totals of the folder `dir`, and creates them if `make` says so.
    fn open(dir: &Path, make: bool) -> io::Result<Self> {
        let words = MappedWords::open(&dir.join(TOTALS_FILE_NAME), make)?;
        if make {
            let _ = words[0].compare_exchange(0, VERSION, Relaxed, Relaxed);
        }
        if words[0].load(Relaxed) != VERSION {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(Self(words))
    }

    fn rdma_connections(&self) -> &AtomicU64 {
        &self.0[1]
    }

    fn rdma_bytes(&self) -> &AtomicU64 {
        &self.0[2]
    }

    fn wake_bytes(&self) -> &AtomicU64 {
        &self.0[3]
    }

    fn tcp_connections_by_reason(&self, reason: u64) -> &AtomicU64 {
        let last = NotRdmaReason::NUMBERS.end - 1;
        &self.0[8 + usize::try_from(reason.min(last)).unwrap_or_default()]
    }

    fn add_ended_connection(&self, page: &ConnectionPage) {
        let ways = [page.direction_words(0), page.direction_words(1)];
        let sent = ways.iter().map(|way| way.rdma_bytes_sent.load(Relaxed));
        let bytes = sent.fold(0, u64::saturating_add);
        if bytes == 0 {
            self.tcp_connections_by_reason(page.not_rdma_reason().load(Relaxed))
                .fetch_add(1, Relaxed);
            return;
        }
        let wakes = ways.iter().map(|way| way.wake_bytes_sent.load(Relaxed));
        let wakes = wakes.fold(0, u64::saturating_add);
        self.rdma_connections().fetch_add(1, Relaxed);
        self.rdma_bytes().fetch_add(bytes, Relaxed);
        self.wake_bytes().fetch_add(wakes, Relaxed);
    }
}

/// Removes the page of a connection that has ended, and adds it to the totals.
///
/// Several processes may find the same page. Only the one whose removal succeeds adds it.
pub(crate) fn remove_page_and_add_to_totals(page: &ConnectionPage) {
    if std::fs::remove_file(&page.path).is_err() {
        return;
    }
    let dir = page.path.parent();
    if let Some(Ok(totals)) = dir.map(|dir| MappedTotals::open(dir, true)) {
        totals.add_ended_connection(page);
    }
}

/// Reads the totals of the folder `dir`.
///
/// # Errors
/// If the file cannot be read, or another version wrote it. A missing file is a total of nothing.
pub(crate) fn read_totals(dir: &Path) -> io::Result<TotalsOfEndedConnections> {
    let totals = match MappedTotals::open(dir, false) {
        Err(err) if err.kind() == io::ErrorKind::NotFound => {
            return Ok(TotalsOfEndedConnections::default());
        }
        totals => totals?,
    };
    let on_tcp = NotRdmaReason::NUMBERS
        .map(|reason| {
            (
                NotRdmaReason::describe(reason),
                totals.tcp_connections_by_reason(reason).load(Relaxed),
            )
        })
        .filter(|(_, count)| *count > 0);
    Ok(TotalsOfEndedConnections {
        rdma_connections: totals.rdma_connections().load(Relaxed),
        rdma_bytes: totals.rdma_bytes().load(Relaxed),
        wake_bytes: totals.wake_bytes().load(Relaxed),
        tcp_connections_by_reason: on_tcp.collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_added_once_and_by_its_reason() {
        let dir = tempfile::tempdir().expect("a folder");
        assert_eq!(
            read_totals(dir.path()).expect("no file"),
            TotalsOfEndedConnections::default()
        );
        let page = |name: &str| ConnectionPage::open(&dir.path().join(name), true).expect("a page");
        let carried = page("c-1");
        carried
            .direction_words(0)
            .rdma_bytes_sent
            .store(700, Relaxed);
        carried
            .direction_words(1)
            .rdma_bytes_sent
            .store(30, Relaxed);
        carried.direction_words(1).wake_bytes_sent.store(2, Relaxed);
        remove_page_and_add_to_totals(&carried);
        remove_page_and_add_to_totals(&carried);
        let alone = page("c-2");
        alone
            .not_rdma_reason()
            .store(NotRdmaReason::PeerWithoutLibrary as u64, Relaxed);
        remove_page_and_add_to_totals(&alone);
        let unknown = page("c-3");
        unknown.not_rdma_reason().store(u64::MAX, Relaxed);
        remove_page_and_add_to_totals(&unknown);
        let ended = read_totals(dir.path()).expect("a file");
        assert_eq!(
            (ended.rdma_connections, ended.rdma_bytes, ended.wake_bytes),
            (1, 730, 2)
        );
        assert_eq!(ended.tcp_connections_by_reason.len(), 2);
        assert_eq!(
            ended.tcp_connections_by_reason[0],
            (
                NotRdmaReason::describe(NotRdmaReason::PeerWithoutLibrary as u64),
                1
            )
        );
    }

    #[test]
    fn totals_of_another_version_are_refused() {
        let dir = tempfile::tempdir().expect("a folder");
        let words = MappedWords::open(&dir.path().join(TOTALS_FILE_NAME), true).expect("a file");
        words[0].store(VERSION + 1, Relaxed);
        assert!(read_totals(dir.path()).is_err());
    }
}
