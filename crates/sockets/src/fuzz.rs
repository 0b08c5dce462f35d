//! The fuzz targets of this crate, and the replay of their corpora.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use verbs::{QpEndpoint, RemoteMemory};

use crate::connection_page::{ConnectionPage, page_file_name, stage};
use crate::cursors::{
    peer_ring_room, readable_bytes_unknown_to_kernel, readable_ring_bytes, repeated_plain_bytes,
    untaken_wake_bytes,
};
use crate::page_side::PageAndSide;
use crate::remote_peer::TcpRecord;
use crate::ring::RING_BYTES;
use crate::{connection_stats, ended_connection_totals, peer_lookup, remove_stale_pages};

/// Name of a page's file, with the addresses of both sides.
const PAGE_FILE_NAME: &str = "c-1_127.0.0.1:1_127.0.0.1:2";

/// A file of the fuzzer, which is removed on drop.
struct FuzzFile(PathBuf);

impl Drop for FuzzFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Returns a new folder.
fn create_folder(name: &str) -> FuzzFile {
    static COUNT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    let own = format!(
        "verbatim-{name}-{}-{}",
        std::process::id(),
        COUNT.fetch_add(1, Relaxed)
    );
    let folder = FuzzFile(std::env::temp_dir().join(own));
    std::fs::create_dir(&folder.0).expect("a new folder");
    folder
}

/// Takes a datagram of these bytes for a connection between hosts, and reads a stream of records with these bytes.
///
/// # Panics
/// Panics if the datagram brings a side into a stage without what belongs to it, or a record is longer than the stream.
pub fn check_bytes_of_another_host(bytes: &[u8]) {
    let folder = create_folder("lookup");
    let (own, peer) = (address(1), address(2));
    let name = page_file_name(own, peer, true).expect("a network namespace");
    let page = ConnectionPage::open(&folder.0.join(name), true).expect("a new page");
    page.side_words(0)
        .pid
        .store(std::process::id().into(), Relaxed);
    page.side_words(0)
        .setup_stage
        .store(stage::PAGE_FOUND, Relaxed);
    let reached = peer_lookup::store_state_of_any_datagram(&folder.0, bytes, own, peer);
    let text = page.side_words(1).message_for_peer();
    match reached {
        0 | stage::PAGE_FOUND | stage::TCP_OR_CLOSED => {}
        stage::ENDPOINT_READY | stage::READY => assert!(!text.is_empty(), "no endpoint"),
        other => panic!("stage {other}"),
    }
    let _ = serde_json::from_slice::<(QpEndpoint, RemoteMemory)>(&text);
    if !bytes.is_empty()
        && let TcpRecord::Wakes(count) = TcpRecord::parse_first(bytes)
    {
        assert!((1..=bytes.len()).contains(&count));
    }
}

fn address(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

/// Reads a page with these bytes, and zeroes behind them, in each way in which a peer and `verbatim sockets --stat`
/// read it. A file that is too long is no page.
///
/// # Panics
/// Panics if a reader takes a cursor for more bytes than a ring holds, or the file cannot be written.
pub fn check_page_of_any_bytes(bytes: &[u8]) {
    let folder = create_folder("page");
    let file = folder.0.join(PAGE_FILE_NAME);
    let mut content = bytes.to_vec();
    content.resize(content.len().max(4096), 0);
    std::fs::write(&file, &content).expect("a new file");
    match ConnectionPage::open(&file, false) {
        Ok(page) => read_page_in_all_ways(page, &folder.0),
        Err(e) => assert!(content.len() > 4096, "a page is refused: {e}"),
    }
}

fn read_page_in_all_ways(page: ConnectionPage, folder: &Path) {
    let _ = remove_stale_pages::is_page_unused(&page);
    let shown = connection_stats::connection_of_page(PAGE_FILE_NAME, &page)
        .expect("a name with two addresses");
    assert!(["rdma", "tcp", "back"].contains(&shown.directions[0].path));
    let page = Arc::new(page);
    for side in [0, 1] {
        let text = page.side_words(side).message_for_peer();
        let _ = serde_json::from_slice::<(QpEndpoint, RemoteMemory)>(&text);
        let dir = page.direction_words(side);
        let sent = dir.rdma_bytes_sent.load(Relaxed);
        let full = RING_BYTES as u64;
        assert!(peer_ring_room(sent, dir.rdma_bytes_taken.load(Relaxed)) <= full);
        // The tail is a word of the peer, too.
        for tail in [
            sent,
            page.direction_words(1 - side).rdma_bytes_sent.load(Relaxed),
        ] {
            assert!(readable_ring_bytes(tail, &dir) <= RING_BYTES);
            let _ = readable_bytes_unknown_to_kernel(tail, &dir);
        }
        let _ = (untaken_wake_bytes(&dir), repeated_plain_bytes(&dir));
        let link = PageAndSide {
            page: Arc::clone(&page),
            own_side: side,
            remote_peer: None,
        };
        let _ = link.peer_is_gone();
    }
    ended_connection_totals::remove_page_and_add_to_totals(&page);
    let ended = ended_connection_totals::read_totals(folder).expect("totals of one connection");
    let on_tcp: u64 = ended
        .tcp_connections_by_reason
        .iter()
        .map(|(_, count)| count)
        .sum();
    assert_eq!(ended.rdma_connections + on_tcp, 1);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    #[test]
    fn the_corpus_of_pages_is_replayed() {
        corpus::replay("sockets_page", super::check_page_of_any_bytes);
    }

    #[test]
    fn the_corpus_of_another_host_is_replayed() {
        corpus::replay("sockets_peer", super::check_bytes_of_another_host);
    }

    proptest! {
        #[test]
        fn bytes_of_anybody_are_taken(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            super::check_bytes_of_another_host(&bytes);
        }

        #[test]
        fn words_of_anybody_are_read(words in prop::collection::vec((0usize..512, prop_oneof![0..10u64, any::<u64>()]), 0..40)) {
            let mut bytes = vec![0; 4096];
            for (at, word) in words {
                bytes[at * 8..][..8].copy_from_slice(&word.to_ne_bytes());
            }
            super::check_page_of_any_bytes(&bytes);
        }
    }
}
