//! Rates and bottlenecks of the model beside the published ones.

use nicmodel::bounds::Resource;
use nicmodel::mixes::{self, FittedOrPredicted};
use nicmodel::profile::{Profile, builtin_profile, builtin_profiles};
use nicmodel::{
    Bounds, Mix, MixOperation, Operation, Role, Transport, Verb, atomic_locks, published,
};
use proptest::prelude::*;

fn nic(name: &str) -> &'static Profile {
    builtin_profile(name).expect("built in")
}

fn bounds(profile: &Profile, mix: &Mix) -> Bounds {
    Bounds::of(profile, mix).expect("possible")
}

fn rate(profile: &Profile, mix: &Mix) -> f64 {
    bounds(profile, mix).predicted_mops.expect("a rate")
}

fn named(profile: &Profile, name: &str) -> Bounds {
    bounds(
        profile,
        &mixes::mix_by_name(profile, name).expect("a mix").mix,
    )
}

#[track_caller]
fn printed(id: &str) -> f64 {
    published::published_number_by_id(id)
        .expect("a published number")
        .value
}

fn ud_send(payload: u32, postlist: f64) -> MixOperation {
    let send = if payload == 0 {
        Operation::header_only(Transport::Ud)
    } else {
        Operation::new(Verb::Send, Transport::Ud, payload).inlined()
    };
    MixOperation::new(send, Role::Requester).in_postlists(postlist)
}

#[test]
fn published_rates_within_3_percent_where_fitted_and_10_where_predicted() {
    let (mut fitted, mut predicted) = (0, 0);
    for profile in builtin_profiles() {
        for named in mixes::executable_mixes(profile) {
            let Some(published) = named.published_rate else {
                continue;
            };
            let ours = rate(profile, &named.mix);
            let error = ours / published.value - 1.0;
            let limit = match named.basis(profile).expect("published") {
                FittedOrPredicted::Fitted => {
                    fitted += 1;
                    0.03
                }
                FittedOrPredicted::Predicted => {
                    predicted += 1;
                    0.1
                }
            };
            let what = format!(
                "{} on {}: {ours} for {}",
                named.name, profile.name, published.value
            );
            assert!(error.abs() <= limit, "{what}");
        }
    }
    assert!(
        fitted >= 25 && predicted >= 3,
        "{fitted} fitted, {predicted} predicted"
    );
}

#[test]
fn published_bottlenecks() {
    let cases = [
        ("ud-send", Resource::Mmio),
        ("ud-send-batch", Resource::DmaRead),
        ("ud-send-header-only", Resource::NicOutbound),
        ("ud-recv", Resource::NicInbound),
        ("ud-recv-header-only", Resource::NicInbound),
        ("inbound-read", Resource::NicInbound),
        ("inbound-read-128", Resource::LinkOut),
        ("inbound-write", Resource::NicInbound),
        ("outbound-write", Resource::Mmio),
        // The paper says "the NIC's processing power": the units that 14 queue pairs keep busy.
        ("outbound-read", Resource::QueuePairUnits),
        ("atomics-one", Resource::AtomicLocks),
        ("atomics-spread", Resource::NicInbound),
        ("sequencer-rpc-1", Resource::Cpu),
        ("sequencer-rpc-batch-1", Resource::QueuePairUnits),
        ("sequencer-rpc-batch-mq", Resource::DmaRead),
        ("sequencer-spec-s0", Resource::NicInbound),
        ("herd-batch", Resource::DmaRead),
    ];
    for (name, bottleneck) in cases {
        assert_eq!(
            named(nic("cib"), name).bottleneck(),
            Some(bottleneck),
            "{name}"
        );
    }
    // PCIe limits SENDs only on Connect-IB. A single lock limits atomics on ConnectX-3.
    for name in ["cx", "cx3"] {
        let send = named(nic(name), "ud-send-batch").bottleneck();
        assert_eq!(send, Some(Resource::NicOutbound));
    }
    let atomics = named(nic("cx3"), "atomics-spread").bottleneck();
    assert_eq!(atomics, Some(Resource::AtomicLocks));
}

/// A profile without a processor cost has no rate that the processors are known to allow.
#[test]
fn missing_processor_costs_of_a_system_are_unknown() {
    let unknown_without = |missing: &dyn Fn(&mut Profile), mix: &str| {
        let mut profile = nic("cib").clone();
        missing(&mut profile);
        let named = mixes::mix_by_name(&profile, mix).expect("a mix");
        bounds(&profile, &named.mix).unknown_resources
    };
    let (cpu, line) = (Resource::Cpu, Resource::SharedLine);
    type Case<'a> = (&'a dyn Fn(&mut Profile), &'a str, &'a [Resource]);
    let cases: [Case; 7] = [
        (&|_| {}, "sequencer-rpc", &[]),
        (&|p| p.host.request_ns = None, "sequencer-rpc", &[cpu]),
        (
            &|p| p.host.contended_add_ns = None,
            "sequencer-rpc",
            &[cpu, line],
        ),
        (&|p| p.host.atomic_add_ns = None, "sequencer-rpc-1", &[cpu]),
        (&|p| p.host.atomic_add_ns = None, "sequencer-rpc", &[]),
        (&|p| p.host.lookup_ns = None, "herd", &[cpu]),
        (&|p| p.host.batched_lookup_ns = None, "herd-batch", &[cpu]),
    ];
    for (missing, mix, unknown) in cases {
        assert_eq!(unknown_without(missing, mix), unknown, "{mix}");
    }
}

/// Figure 12: the link limits READs from the printed powers of two on.
#[test]
fn reads_turn_to_the_link_at_the_published_payloads() {
    for (name, id) in [
        ("cx", "in_read_transition_cx"),
        ("cx3", "in_read_transition_cx3"),
        ("cib", "in_read_transition_cib"),
    ] {
        let bound_by_link = |payload: &u32| {
            let read = Operation::new(Verb::RdmaRead, Transport::Rc, *payload);
            let mix = Mix::new(vec![MixOperation::new(read, Role::Responder)]);
            bounds(nic(name), &mix).bottleneck() == Some(Resource::LinkOut)
        };
        let powers = (2..12).map(|power| 1 << power);
        let first = powers.into_iter().find(bound_by_link).expect("some");
        assert_eq!(f64::from(first), printed(id), "{name}");
    }
}

/// Figure 11b: one core, 60 bytes.
#[test]
fn batches_want_several_queue_pairs() {
    let one_core = |postlist, queue_pairs| {
        let load = ud_send(60, postlist).on_queue_pairs(queue_pairs);
        rate(nic("cib"), &Mix::new(vec![load]).on_cores(1))
    };
    let (single, batched) = (one_core(1.0, 1), one_core(16.0, 1));
    assert!(
        batched < single,
        "batches on one queue pair lower the rate: {batched}, {single}"
    );
    let near = |ours: f64, id: &str, limit: f64| {
        assert!((ours / printed(id) - 1.0).abs() <= limit, "{id}: {ours}");
    };
    near(one_core(16.0, 2) / batched, "ud_send_1c_mq2_gain", 0.01);
    near(one_core(16.0, 4) / single, "ud_send_1c_mq4_gain_hi", 0.05);
    near(one_core(1.0, 4) / single, "ud_send_1c_nobatch_mq_gain", 0.0);
}

/// Each queue pair is on one port: only two queue pairs fill both ports of a Connect-IB, in either direction.
#[test]
fn a_queue_pair_has_one_port() {
    let cib = nic("cib");
    let port = cib.port.gbps.value / 8.0;
    let write = Operation::new(Verb::RdmaWrite, Transport::Rc, 65536);
    for (role, link) in [
        (Role::Requester, Resource::LinkOut),
        (Role::Responder, Resource::LinkIn),
    ] {
        for (queue_pairs, ports) in [(1, 1.0), (2, 2.0), (5, 2.0)] {
            let load = MixOperation::new(write, role).on_queue_pairs(queue_pairs);
            let got = bounds(cib, &Mix::new(vec![load]));
            let gbytes = got.rate_mops(link).expect("it uses the link") * 65.536;
            assert!(
                gbytes < ports * port && gbytes > 0.98 * ports * port,
                "{role:?}, {queue_pairs}: {gbytes} GB/s of {ports} ports of {port}"
            );
        }
    }
}

/// Section 4.2: more cores than the peak needs make batches smaller. The rate falls although the PCIe link is not the
/// bottleneck.
#[test]
fn small_batches_lower_the_rate() {
    let rates = [16.0, 8.0, 4.0, 3.0, 2.0].map(|postlist| {
        let load = ud_send(8, postlist);
        (
            rate(nic("cib"), &Mix::new(vec![load.clone()])),
            bounds(nic("cib"), &Mix::new(vec![load])),
        )
    });
    for pair in rates.windows(2) {
        assert!(
            pair[0].0 > pair[1].0,
            "{} and then {}",
            pair[0].0,
            pair[1].0
        );
    }
    assert_eq!(rates[0].1.bottleneck(), Some(Resource::DmaRead));
    assert_eq!(rates[3].1.bottleneck(), Some(Resource::NicOutbound));
}

/// Figure 14: from one lock to the NIC's limit; nothing beyond 512 counters can help.
#[test]
fn atomics_over_the_number_of_counters() {
    let cib = nic("cib");
    let with = |counters: u64| {
        let atomic = Operation::new(Verb::AtomicFetchAndAdd, Transport::Rc, 8);
        let slots = atomic_locks::lock_count_of_counters(cib, counters, 8).expect("known");
        rate(
            cib,
            &Mix::new(vec![
                MixOperation::new(atomic, Role::Responder).on_lock_slots(slots),
            ]),
        )
    };
    assert!((with(1) / printed("atomics_cib_z1") - 1.0).abs() < 1e-3);
    assert!((with(10) / (10.0 * printed("atomics_cib_z1")) - 1.0).abs() < 1e-3);
    // 52 / 2.24 = 23.2 locks keep the NIC busy.
    assert!(with(23) < 52.0 && with(24) > 51.99);
    assert!((with(4096) / printed("atomics_cib_zbig") - 1.0).abs() < 1e-3);
}

/// Figure 10: the cost of PUTs to DrTM-KV.
#[test]
fn atomics_hold_up_reads() {
    let rate = |name: &str, mix: &str| named(nic(name), mix).predicted_mops.expect("a rate");
    let kept = rate("cib", "drtm-put-10") / rate("cib", "drtm-get");
    let published = 1.0 - printed("drtm_cib_put10") / 100.0;
    assert!(
        (kept / published - 1.0).abs() < 0.1,
        "{kept} for {published}"
    );
    let left = rate("cx3", "drtm-put") / rate("cx3", "drtm-get");
    assert!(
        (left * 100.0 - printed("drtm_cx3_put100")).abs() < 0.5,
        "{left}"
    );
}

#[test]
fn the_best_choice_is_70_times_the_worst() {
    let rate = |mix: &str| named(nic("cib"), mix).predicted_mops.expect("a rate");
    let ratio = rate("ud-send-header-only") / rate("sequencer-atomics");
    assert!(
        (ratio - printed("best_vs_worst_throughput")).abs() < 1.0,
        "{ratio}"
    );
}

/// The gains that the paper prints, from our rates alone. Gains compound the errors of two rates.
#[test]
fn published_gains() {
    let rate = |mix: &str| named(nic("cib"), mix).predicted_mops.expect("a rate");
    let gains = [
        (
            "ud_send_ho_gain",
            "ud-send-header-only",
            "ud-send-batch",
            3.0,
        ),
        ("ud_recv_ho_gain", "ud-recv-header-only", "ud-recv", 1.0),
        ("ud_send_batch_gain", "ud-send-batch", "ud-send", 7.0),
        ("herd_gain_peak", "herd-batch", "herd", 5.0),
        // HERD's work is fitted to its simulation, in which batches are a little longer than here.
        ("herd_gain_percore", "herd-batch-1", "herd-1", 2.0),
        ("herd_vs_read_kv", "herd-batch", "read-kv", 4.0),
    ];
    for (id, fast, slow, points) in gains {
        let ours = 100.0 * (rate(fast) / rate(slow) - 1.0);
        assert!(
            (ours - printed(id)).abs() <= points,
            "{id}: {ours} for {}",
            printed(id)
        );
    }
    let atomics = rate("sequencer-atomics");
    let speedup = rate("sequencer-rpc-batch-mq-1") / atomics;
    assert!(
        (speedup / printed("seq_speedup_12_2x") - 1.0).abs() < 0.01,
        "{speedup}"
    );
    let best = rate("sequencer-spec-s0") / atomics;
    assert!(
        (best / printed("seq_speedup_50x") - 1.0).abs() < 0.1,
        "{best}"
    );
    // Atomics without contention are at least an order of magnitude faster.
    assert!(rate("atomics-spread") / rate("atomics-one") > printed("contention_order"));
}

/// Records at the same offset of pages share one lock.
#[test]
fn page_aligned_records_serialize() {
    let cib = nic("cib");
    let atomic = Operation::new(Verb::AtomicCmpAndSwp, Transport::Rc, 8);
    let slots = atomic_locks::lock_count_of_counters(cib, 1 << 20, 4096).expect("known");
    let mix = Mix::new(vec![
        MixOperation::new(atomic, Role::Responder).on_lock_slots(slots),
    ]);
    let ours = rate(cib, &mix);
    assert!(
        (ours / printed("derived_atomics_page_aligned") - 1.0).abs() < 1e-3,
        "{ours}"
    );
}

#[test]
fn what_is_unknown_is_named() {
    let mut bare = nic("cib").clone();
    (bare.host.post_wqe_ns, bare.processing.send_ns) = (None, None);
    let send = named(&bare, "ud-send");
    assert_eq!(
        send.unknown_resources,
        [Resource::Cpu, Resource::NicOutbound]
    );
    let reads = named(nic("cx3"), "outbound-read");
    assert_eq!(
        reads.unknown_resources,
        [Resource::Cpu, Resource::QueuePairUnits]
    );
    for mix in mixes::executable_mixes(nic("cib")) {
        let bounds = bounds(nic("cib"), &mix.mix);
        assert!(
            bounds.unknown_resources.is_empty(),
            "{}: {:?}",
            mix.name,
            bounds.unknown_resources
        );
    }
}

#[test]
fn wrong_mixes_are_refused() {
    let load = ud_send(8, 1.0);
    let wrong = [
        Mix::new(vec![load.clone().with_operations_per_request(-1.0)]),
        Mix::new(vec![load.clone().with_operations_per_request(f64::NAN)]),
        Mix::new(vec![load.clone().on_queue_pairs(0)]),
        Mix::new(vec![ud_send(8, 0.5)]),
        Mix::new(vec![ud_send(8, f64::INFINITY)]),
        Mix::new(vec![load.clone()]).on_cores(0),
        Mix {
            serialized_app_ns_per_request: 2.0,
            app_ns_per_request: 1.0,
            ..Mix::new(vec![load])
        },
    ];
    for mix in wrong {
        assert!(Bounds::of(nic("cib"), &mix).is_err(), "{mix:?}");
    }
    let nothing = bounds(nic("cib"), &Mix::new(Vec::new()));
    assert_eq!((nothing.predicted_mops, nothing.bottleneck()), (None, None));
}

prop_compose! {
    fn any_load()(
        verb in prop::sample::select(Verb::ALL.to_vec()),
        transport in prop::sample::select(Transport::ALL.to_vec()),
        payload in 0u32..2000,
        inline: bool,
        imm: bool,
        signaled in 0.0..=1.0,
        num_sge in 1u32..8,
        responder: bool,
        postlist in 1.0..64.0,
    ) -> MixOperation {
        let payload_bytes = verb.fixed_payload_bytes().unwrap_or(payload);
        let operation = Operation {
            inline,
            has_imm: imm,
            num_sge,
            ..Operation::new(verb, transport, payload_bytes).with_signaled_fraction(signaled)
        };
        let role = if responder { Role::Responder } else { Role::Requester };
        MixOperation::new(operation, role).in_postlists(postlist)
    }
}

/// Returns a load that Connect-IB can execute: properties that it lacks are removed.
fn possible_load() -> impl Strategy<Value = MixOperation> {
    any_load().prop_map(|mut load| {
        let operation = &mut load.operation;
        if !operation.transport.carries(operation.verb) {
            operation.transport = Transport::Rc;
        }
        operation.has_imm &= operation.verb.carries_payload_in_request();
        operation.inline &= operation.verb.carries_payload_in_request();
        if operation.inline {
            operation.payload_bytes %= 400;
        }
        load
    })
}

proptest! {
    /// Every operation is refused or has a rate.
    #[test]
    fn every_load_has_a_rate_or_a_reason(load in any_load(), which in 0usize..4, cores in 1u32..64) {
        let profile = &builtin_profiles()[which];
        let possible = load.operation.check_executable(profile).is_ok();
        let result = Bounds::of(profile, &Mix::new(vec![load]).on_cores(cores));
        prop_assert_eq!(result.is_ok(), possible);
        if let Ok(bounds) = result {
            let rate = bounds.predicted_mops.expect("it uses the link");
            prop_assert!(rate > 0.0 && rate.is_finite());
            prop_assert!(bounds.bounds.iter().all(|bound| bound.rate_mops >= rate));
        }
    }

    /// Checks that rates do not rise with payload, and do not fall with cores, lanes or queue pairs.
    #[test]
    fn more_is_never_less(load in possible_load(), cores in 1u32..32, more in 1u32..32) {
        let cib = nic("cib");
        let of = |load: &MixOperation, cores| rate(cib, &Mix::new(vec![load.clone()]).on_cores(cores));
        let base = of(&load, cores);
        let rounding = 1.0 + 1e-6;
        prop_assert!(of(&load, cores + more) * rounding >= base);
        let few = of(&load.clone().on_queue_pairs(cores), cores);
        prop_assert!(of(&load.clone().on_queue_pairs(cores + more), cores) * rounding >= few);
        let mut longer = load.clone();
        longer.operation.payload_bytes += more;
        if longer.operation.check_executable(cib).is_ok() && load.operation.payload_bytes > 0 {
            prop_assert!(of(&longer, cores) <= base * rounding);
        }
        let mut wider = cib.clone();
        wider.pcie.lanes.value = 32;
        let wide = Bounds::of(&wider, &Mix::new(vec![load.clone()]).on_cores(cores));
        prop_assert!(wide.expect("possible").predicted_mops.expect("a rate") * rounding >= base);
    }

    /// Requests of several operations are as slow as their sum, and no faster than any of them.
    #[test]
    fn a_mix_is_no_faster_than_its_parts(a in possible_load(), b in possible_load()) {
        let cib = nic("cib");
        let of = |loads| rate(cib, &Mix::new(loads));
        let both = of(vec![a.clone(), b.clone()]);
        let (a, b) = (of(vec![a]), of(vec![b]));
        let rounding = 1.0 + 1e-9;
        prop_assert!(both <= a.min(b) * rounding);
        prop_assert!(both * rounding >= 1.0 / (1.0 / a + 1.0 / b));
    }
}
