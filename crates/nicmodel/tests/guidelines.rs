//! Property tests of the guidelines: a document is refused or judged, and following the advice raises the predicted
//! rate.

use nicmodel::guidelines::{ALL_GUIDELINES, advise};
use nicmodel::op_profile::{
    AtomicSlotCount, CountedOperations, OperationProfile, QueuePair, RegisteredMemory, Thread,
    VERSION,
};
use nicmodel::profile::builtin_profiles;
use nicmodel::{Operation, PayloadDestination, Transport, Verb};
use proptest::prelude::*;

fn count() -> impl Strategy<Value = u64> {
    prop_oneof![0u64..100, 0u64..1_000_000, Just(u64::MAX)]
}

prop_compose! {
    fn counted()(
        verb in prop::sample::select(Verb::ALL.to_vec()),
        transport in prop::sample::select(Transport::ALL.to_vec()),
        payload in 0u32..600,
        inline: bool,
        imm: bool,
        signaled in 0.0..=1.0,
        inline_recv: bool,
        count in count(),
    ) -> CountedOperations {
        let payload = verb.fixed_payload_bytes().unwrap_or(payload);
        let mut operation = Operation::new(verb, transport, payload).with_signaled_fraction(signaled);
        operation.inline = inline;
        operation.has_imm = imm;
        if inline_recv {
            operation.payload_destination = PayloadDestination::Inline;
        }
        CountedOperations { operation, count }
    }
}

prop_compose! {
    fn queue_pair()(
        qpn in 0u32..1 << 24,
        transport in prop::sample::select(Transport::ALL.to_vec()),
        sent in prop::collection::vec(counted(), 0..4),
        received in prop::collection::vec(counted(), 0..3),
        lists in (count(), count(), count()),
        mean_outstanding in 0.0..5000.0,
        slots in prop::collection::vec((0u32..4096, count()), 0..4),
    ) -> QueuePair {
        QueuePair {
            sent,
            received,
            postlists: lists.0,
            unpolled_postlist_runs: lists.1,
            adjacent_reads: lists.2,
            mean_outstanding,
            atomics_by_low_address_bits: slots.iter().map(|&(slot, count)| AtomicSlotCount { low_address_bits: slot, count }).collect(),
            ..QueuePair::new(qpn, transport)
        }
    }
}

prop_compose! {
    fn document()(
        queue_pairs in prop::collection::vec(queue_pair(), 0..6),
        threads in 0u32..20,
        peers in 0u32..20,
        memory in (count(), count()),
    ) -> OperationProfile {
        let thread = |id| Thread { id, posts: 1, ..Thread::default() };
        OperationProfile {
            version: VERSION,
            complete: true,
            queue_pairs,
            threads: (0..threads).map(thread).collect(),
            peer_count: peers,
            memory: RegisteredMemory { max_registered_bytes: memory.0, huge_page_bytes: memory.1 },
            ..OperationProfile::default()
        }
    }
}

proptest! {
    #[test]
    fn no_document_makes_it_panic(document in document(), which in 0usize..4) {
        let profile = &builtin_profiles()[which];
        let text = serde_json::to_string(&document).expect("JSON");
        let back: OperationProfile = serde_json::from_str(&text).expect("the same");
        // `check` may refuse a document that contradicts itself; the model must still not panic.
        let _refused = back.check();
        if let Ok(advice) = advise(&document, profile) {
            for one in advice {
                let gain = one.gain.map_or(0.0, |gain| gain.relative_gain);
                prop_assert!(gain > -1.0 && !gain.is_nan(), "{one:?}");
            }
        }
        for guideline in ALL_GUIDELINES {
            let _changed = (guideline.program_after_change)(&document, profile);
        }
    }
}
