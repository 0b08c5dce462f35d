//! Receive side scaling: how queue pairs of other processes spread packets, as their segments describe it.

use std::sync::Mutex;
use std::sync::atomic::Ordering;

use nic_core::flows::{RssConfig, TOEPLITZ_KEY_BYTES, hash_field};
use verbs_abi::*;

use super::table_places::TablePlaces;
use crate::lock::lock;
use shm::fabric::layout::*;
use shm::fabric::{Fabric, Peer};

const _: () = assert!(
    hash_field::ALL
        == IBV_RX_HASH_SRC_IPV4
            | IBV_RX_HASH_DST_IPV4
            | IBV_RX_HASH_SRC_IPV6
            | IBV_RX_HASH_DST_IPV6
            | IBV_RX_HASH_SRC_PORT_TCP
            | IBV_RX_HASH_DST_PORT_TCP
            | IBV_RX_HASH_SRC_PORT_UDP
            | IBV_RX_HASH_DST_PORT_UDP
);
const _: () = assert!(
    hash_field::SRC_IPV4 == IBV_RX_HASH_SRC_IPV4
        && hash_field::DST_IPV4 == IBV_RX_HASH_DST_IPV4
        && hash_field::SRC_IPV6 == IBV_RX_HASH_SRC_IPV6
        && hash_field::DST_IPV6 == IBV_RX_HASH_DST_IPV6
        && hash_field::SRC_PORT_TCP == IBV_RX_HASH_SRC_PORT_TCP
        && hash_field::DST_PORT_TCP == IBV_RX_HASH_DST_PORT_TCP
        && hash_field::SRC_PORT_UDP == IBV_RX_HASH_SRC_PORT_UDP
        && hash_field::DST_PORT_UDP == IBV_RX_HASH_DST_PORT_UDP
);

/// Reads the description at a place of a process. `None` if it is not valid.
pub(super) fn read_rss_config(peer: &Peer, place: usize) -> Option<RssConfig> {
    let shared = peer.segment.find_rss(place)?;
    let size = shared.indirection_table_len.load(Ordering::Acquire) as usize;
    if !size.is_power_of_two() || size > MAX_IND_TBL {
        return None;
    }
    let mut key = [0; TOEPLITZ_KEY_BYTES];
    for (bytes, word) in key.chunks_exact_mut(8).zip(&shared.toeplitz_key) {
        bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
    }
    let table = shared.indirection_table[..size]
        .iter()
        .map(|index| index.load(Ordering::Relaxed) as usize)
        .collect();
    Some(RssConfig {
        hashed_fields: shared.hashed_fields.load(Ordering::Relaxed),
        toeplitz_key: key,
        indirection_table: table,
    })
}

/// The places of this process's table.
#[derive(Default)]
pub(crate) struct OwnRssConfigs(Mutex<TablePlaces>);

impl OwnRssConfigs {
    /// Describes to peers how a queue pair spreads packets. Returns the place.
    ///
    /// # Errors
    /// `ENOMEM` if the table or shared memory is full.
    pub(crate) fn add_rss_config(&self, fabric: &Fabric, spread: &RssConfig) -> Result<usize, i32> {
        let place = lock(&self.0)
            .take_free_place(MAX_RSS_CONFIGS)
            .ok_or(libc::ENOMEM)?;
        write_rss_config(fabric, place, spread)
            .inspect_err(|_| self.remove_rss_config(fabric, place))?;
        Ok(place)
    }

    /// Frees a place to which no flow leads any more.
    pub(crate) fn remove_rss_config(&self, fabric: &Fabric, place: usize) {
        // The place may have no memory.
        if let Some(shared) = fabric.this_process.segment.find_rss(place) {
            shared.indirection_table_len.store(0, Ordering::Release);
        }
        lock(&self.0).give_back(place);
    }
}

fn write_rss_config(fabric: &Fabric, place: usize, spread: &RssConfig) -> Result<(), i32> {
    let at = RSS_AT + place * size_of::<RssShared>();
    fabric
        .back_with_memory(at, size_of::<RssShared>())
        .map_err(|_| libc::ENOMEM)?;
    let shared = fabric.this_process.segment.rss(place).ok_or(libc::ENOMEM)?;
    shared
        .hashed_fields
        .store(spread.hashed_fields, Ordering::Relaxed);
    for (word, bytes) in shared
        .toeplitz_key
        .iter()
        .zip(spread.toeplitz_key.as_chunks::<8>().0)
    {
        word.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
    }
    for (index, &queue) in shared
        .indirection_table
        .iter()
        .zip(&spread.indirection_table)
    {
        let queue = u32::try_from(queue).map_err(|_| libc::EINVAL)?;
        index.store(queue, Ordering::Relaxed);
    }
    let size = u32::try_from(spread.indirection_table.len()).map_err(|_| libc::EINVAL)?;
    shared.indirection_table_len.store(size, Ordering::Release);
    Ok(())
}
