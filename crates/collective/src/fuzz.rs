//! The fuzz target of this crate, and the replay of its corpus.

use crate::ListenHandle;
use crate::memory_layout::{CTS_ENTRY_BYTES, ClearToSend, MAX_RECEIVES_PER_GROUP, stripe_range};
use crate::send_state::{SendMatch, SendQueue};
use crate::unconnected_ends::Hello;

/// Reads bytes as each kind of data that a peer gives: a handle, a hello, or the entries of a group of receives. The
/// first byte selects the kind.
///
/// # Panics
/// Panics if a value is encoded to other bytes than it was decoded from, or a send gets more bytes than its receive
/// has.
pub fn fuzz_peer_messages(bytes: &[u8]) {
    let Some((&kind, bytes)) = bytes.split_first() else {
        return;
    };
    match kind % 3 {
        0 => check_listen_handle_round_trip(bytes),
        1 => check_hello_round_trip(bytes),
        _ => check_sends_stay_within_cts_buffers(bytes),
    }
}

fn check_listen_handle_round_trip(bytes: &[u8]) {
    let Some(bytes) = bytes.first_chunk::<{ ListenHandle::BYTES }>() else {
        return;
    };
    if let Some(handle) = ListenHandle::from_bytes(bytes) {
        assert_eq!(ListenHandle::from_bytes(&handle.to_bytes()), Some(handle));
    }
}

fn check_hello_round_trip(bytes: &[u8]) {
    let Ok(hello) = serde_json::from_slice::<Hello>(bytes) else {
        return;
    };
    let json = serde_json::to_vec(&hello).expect("it was JSON");
    let again: Hello = serde_json::from_slice(&json).expect("its own JSON");
    assert_eq!(again.lane_count(), hello.lane_count());
    assert!(hello.with_at_most_lanes(2).lane_count() <= 2);
}

/// Sends as much as the entries permit, to each of the receives.
fn check_sends_stay_within_cts_buffers(bytes: &[u8]) {
    let chunks = bytes
        .chunks_exact(CTS_ENTRY_BYTES)
        .take(MAX_RECEIVES_PER_GROUP + 1);
    let entries: Vec<ClearToSend> = chunks
        .filter_map(|chunk| chunk.try_into().ok())
        .map(ClearToSend::decode)
        .collect();
    for (entry, chunk) in entries.iter().zip(bytes.chunks_exact(CTS_ENTRY_BYTES)) {
        assert_eq!(entry.encode(0)[..24], chunk[..24]);
    }
    let mut sending = SendQueue::new(2);
    if sending.add_cts_entries(&entries).is_err() {
        return;
    }
    for entry in &entries {
        // One byte too many is refused.
        if let Some(longer) = entry.buffer_bytes.checked_add(1) {
            let refused = sending.match_send(entry.tag, longer, ());
            if refused.is_ok() {
                // The send has matched another receive of the group, with the same tag and a larger buffer.
                return;
            }
        }
        if let Ok(SendMatch::GroupComplete(_, group)) =
            sending.match_send(entry.tag, entry.buffer_bytes, ())
        {
            for part in group.parts {
                assert!(part.payload_len <= part.posted_receive.buffer_bytes);
                assert_eq!(stripe_range(part.payload_len, 2, 1).end, part.payload_len);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    #[test]
    fn the_corpus_of_messages_is_replayed() {
        corpus::replay("collective_messages", super::fuzz_peer_messages);
    }

    proptest! {
        #[test]
        fn bytes_of_anybody_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            super::fuzz_peer_messages(&bytes);
        }
    }
}
