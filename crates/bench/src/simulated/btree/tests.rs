//! Short versions of the experiments of the BlueField-2 study.

use super::*;
use nicmodel::profile::builtin_profile;

fn bf2() -> &'static Profile {
    builtin_profile("bf2").expect("built in")
}

fn short(setup: BtreeParameters) -> BtreeParameters {
    BtreeParameters {
        clients: setup.clients.min(16),
        measured_time: setup.measured_time / 5,
        ..setup
    }
}

fn ran(setup: &BtreeParameters) -> BtreeResult {
    let outcome = run(bf2(), setup).expect("it runs");
    assert!(
        outcome.are_values_right && outcome.checked_answers > 50,
        "{outcome:?}"
    );
    outcome
}

/// Local look-ups of the study on all cores of the DPU. The published value for 256 M keys, 2 M/s,
/// seems to be swapped with the 2.5 M/s by RPC: an RPC does the same work and more.
#[test]
fn local_lookups_on_a_dpu_are_as_fast_as_published() {
    let local = |place, keys| {
        run_local_lookups_mops(bf2(), &BtreeParameters::bluefield2_study(place, keys))
            .expect("it runs")
    };
    for (keys, id) in [
        (1_000_000, "dpu_bt_local_small"),
        (256_000_000, "dpu_bt_rpc_256m"),
    ] {
        let printed = nicmodel::published::published_number_by_id(id)
            .expect("published")
            .value;
        let ours = local(CorePlace::Dpu, keys);
        let error = ours / printed - 1.0;
        assert!(error.abs() < 0.03, "{id}: {ours} for {printed}");
    }
    // Smaller trees fit caches better, and the host's are larger.
    assert!(local(CorePlace::Dpu, 250_000) > 1.2 * local(CorePlace::Dpu, 1_000_000));
    assert!(local(CorePlace::Host, 1_000_000) > 3.0 * local(CorePlace::Dpu, 1_000_000));
}

#[test]
fn clients_that_read_need_a_read_for_each_level() {
    for (node_bytes, levels) in [(512, 6), (2048, 5)] {
        for place in [CorePlace::Host, CorePlace::Dpu] {
            let outcome = ran(
                &BtreeParameters::bluefield2_study_one_sided(place, node_bytes)
                    .with_one_outstanding_request(),
            );
            assert_eq!(outcome.tree_levels, levels);
            // Clients also READ the word with the root's address from time to time.
            let reads = outcome.reads_per_lookup;
            #[expect(clippy::cast_precision_loss, reason = "a small number")]
            let most = levels as f64 + 1.0 / 20.0;
            assert!(reads >= most.floor() && reads < most, "{outcome:?}");
        }
    }
}

#[test]
fn walks_of_a_batch_overlap_and_smaller_trees_are_faster() {
    let rate = |batch, keys| {
        let setup = BtreeParameters {
            max_answers_per_doorbell: batch,
            ..short(BtreeParameters::bluefield2_study(CorePlace::Dpu, keys))
        };
        ran(&setup).rate_mops
    };
    let (alone, batched) = (rate(1, 256_000_000), rate(16, 256_000_000));
    assert!(batched > 1.2 * alone, "{batched} {alone}");
    let small = rate(1, 1_000_000);
    assert!(small > 2.0 * alone, "{small} {alone}");
}

#[test]
fn the_same_seed_gives_the_same_output_on_both_places() {
    for place in [CorePlace::Host, CorePlace::Dpu] {
        for setup in [
            BtreeParameters::bluefield2_study(place, 1_000_000),
            BtreeParameters::bluefield2_study_one_sided(place, 512),
        ] {
            let json = || serde_json::to_string(&ran(&short(setup.clone()))).expect("JSON");
            assert_eq!(json(), json(), "{setup:?}");
        }
    }
}

/// As in the study: a quarter of a small tree on the DPU beside the host is faster than the host
/// alone, half of it is not.
#[test]
fn a_part_of_the_keys_on_the_dpu_pays_up_to_a_point() {
    let rate = |share| {
        let setup = BtreeParameters {
            dpu_key_share: Some(share),
            clients: 32,
            ..short(BtreeParameters::bluefield2_study(
                CorePlace::Host,
                1_000_000,
            ))
        };
        ran(&setup).rate_mops
    };
    let [host, quarter, half, dpu] = [0.0, 0.25, 0.5, 1.0].map(rate);
    assert!(quarter > 1.25 * host, "{quarter} {host}");
    assert!(half < quarter && half > dpu, "{half} {quarter} {dpu}");
    assert!(dpu < host / 2.0, "{dpu} {host}");
}

#[test]
fn a_place_that_is_not_there_is_refused() {
    let cib = builtin_profile("cib").expect("built in");
    let setup = BtreeParameters::bluefield2_study(CorePlace::Dpu, 1_000_000);
    for error in [
        run(cib, &setup).err(),
        run_local_lookups_mops(cib, &setup).err(),
    ] {
        let error = error.expect("no DPU").to_string();
        assert!(error.contains("cib has no DPU"), "{error}");
    }
}

/// Byte strings are more cache lines of the server and more bytes of the network, by RPCs and by READs.
#[test]
fn byte_strings_cost_more_than_numbers() {
    let strings = |setup: &BtreeParameters| BtreeParameters {
        string_sizes: Some(StringSizes {
            key_bytes: 24,
            value_bytes: 100,
        }),
        ..setup.clone()
    };
    let rpc = BtreeParameters::bluefield2_study(CorePlace::Host, 1_000_000);
    let read = BtreeParameters::bluefield2_study_one_sided(CorePlace::Host, 2048);
    for numbers in [short(rpc), short(read)] {
        let strings = strings(&numbers);
        let (rate, less) = (ran(&numbers).rate_mops, ran(&strings).rate_mops);
        assert!(less < 0.95 * rate && less > 0.1 * rate, "{less} {rate}");
        let local = |setup| run_local_lookups_mops(bf2(), setup).expect("it runs");
        assert!(local(&strings) < local(&numbers));
    }
    let too_short = BtreeParameters {
        string_sizes: Some(StringSizes {
            key_bytes: 4,
            value_bytes: 8,
        }),
        ..BtreeParameters::bluefield2_study(CorePlace::Host, 1000)
    };
    assert!(run(bf2(), &too_short).is_err());
}
