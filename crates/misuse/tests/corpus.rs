//! Replays the fuzzing corpus, and sequences from a small generator, on the software NIC with an InfiniBand
//! port.

mod common;

#[test]
fn the_corpus_is_replayed() {
    corpus::replay("verbs", |bytes| {
        common::run("ib", std::iter::once(bytes.to_vec()));
    });
}

#[test]
fn sequences_of_a_generator() {
    assert_eq!(
        common::run("ib", common::generated(|verb| verb)),
        common::GENERATED
    );
}
