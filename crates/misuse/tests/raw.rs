//! Replays and generates sequences with raw packets, on an Ethernet port.

mod common;

/// Verb number of `misuse` for raw packets.
const RAW_PACKETS: u8 = 238;

#[test]
fn the_corpus_is_replayed() {
    corpus::replay("raw", |bytes| {
        common::run("roce", std::iter::once(bytes.to_vec()));
    });
}

#[test]
fn sequences_of_a_generator() {
    // Half of all verbs use raw packets.
    let more = |byte| if byte >= 128 { RAW_PACKETS } else { byte };
    assert_eq!(
        common::run("roce", common::generated(more)),
        common::GENERATED
    );
}
