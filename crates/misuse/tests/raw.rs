//! The same with raw packets, on a port that has Ethernet.

mod common;

/// The verb of `misuse` that stands for all of raw packets.
const RAW_PACKETS: u8 = 238;

#[test]
fn the_corpus_is_replayed() {
    corpus::replay("raw", |bytes| {
        common::run("roce", std::iter::once(bytes.to_vec()));
    });
}

#[test]
fn sequences_of_a_generator() {
    // Half of all verbs are of raw packets.
    let more = |byte| if byte >= 128 { RAW_PACKETS } else { byte };
    assert_eq!(
        common::run("roce", common::generated(more)),
        common::GENERATED
    );
}
