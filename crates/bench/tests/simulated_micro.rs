//! The microbenchmarks on simulated machines: both directions and every parameter give the
//! published rates and the model's predictions. Virtual time is deterministic, so figures can be
//! compared.

use bench::micro::{
    MeasuredRole, MeasurementTask, MicroParameters, StreamRate, TaskResult, Verb, VerbStream,
};
use bench::simulated::micro::{run, run_with_nic_counters};
use nicmodel::Profile;
use nicmodel::profile::builtin_profile;
use nicmodel::published;

fn nic(name: &str) -> &'static Profile {
    builtin_profile(name).expect("built in")
}

fn measure(nic: &Profile, stream: VerbStream) -> StreamRate {
    match run(nic, &MeasurementTask::Stream(stream)).expect("it runs") {
        TaskResult::Rate(rate) => rate,
        TaskResult::Latency(_) => panic!("a stream has a rate"),
    }
}

/// Parameters that use all cores of the machine, with enough queue pairs for all units of its NIC.
fn busy(nic: &Profile, direction: MeasuredRole) -> MicroParameters {
    MicroParameters {
        measured_role: direction,
        threads: Some(nic.host.cores.value as usize),
        queue_pairs_per_thread: Some(4),
        ..MicroParameters::default()
    }
}

fn rate(nic: &Profile, verb: Verb, parameters: &MicroParameters) -> f64 {
    // The duration is long compared with the time that all outstanding operations take.
    measure(
        nic,
        VerbStream::new(verb, parameters, 3).expect("parameters that fit"),
    )
    .rate_mops
}

#[track_caller]
fn near(got: f64, want: f64, within: f64) {
    assert!((got / want - 1.0).abs() < within, "{got} instead of {want}");
}

fn printed(id: &str) -> f64 {
    published::published_number_by_id(id)
        .expect("published")
        .value
}

#[test]
fn the_peaks_of_both_directions_are_those_published() {
    let cib = nic("cib");
    let of = |verb, direction, change: fn(MicroParameters) -> MicroParameters| {
        rate(cib, verb, &change(busy(cib, direction)))
    };
    let header_only = |parameters| MicroParameters {
        payload_bytes: Some(0),
        ..parameters
    };
    let on_one_queue_pair = |parameters| MicroParameters {
        wrs_per_doorbell: Some(1),
        queue_pairs_per_thread: Some(1),
        ..parameters
    };
    let (outbound, inbound) = (MeasuredRole::Outbound, MeasuredRole::Inbound);
    near(
        of(Verb::UdSend, outbound, header_only),
        printed("ud_send_batched_ho_peak"),
        0.02,
    );
    near(
        of(Verb::UdSend, inbound, header_only),
        printed("ud_recv_ho"),
        0.02,
    );
    near(
        of(Verb::UdSend, inbound, |parameters| parameters),
        printed("ud_recv_regular"),
        0.02,
    );
    near(
        of(Verb::UcWrite, inbound, |parameters| parameters),
        printed("in_write_small"),
        0.02,
    );
    near(
        of(Verb::RcRead, inbound, |parameters| parameters),
        printed("in_read_le64"),
        0.02,
    );
    near(
        of(Verb::RcRead, outbound, on_one_queue_pair),
        printed("out_read"),
        0.03,
    );
    let two_lines = |parameters| MicroParameters {
        payload_bytes: Some(32),
        wrs_per_doorbell: Some(1),
        ..parameters
    };
    near(
        of(Verb::UcWrite, outbound, two_lines),
        printed("out_write_gt28"),
        0.03,
    );
}

/// Figure 14: one counter is one lock. Counters whose addresses have equal low 12 bits share a
/// lock.
#[test]
fn atomics_depend_on_how_many_locks_their_counters_use() {
    let cib = nic("cib");
    let of = |addresses, spacing_bytes| {
        let parameters = MicroParameters {
            atomic_counters: Some(addresses),
            counter_spacing_bytes: Some(spacing_bytes),
            ..busy(cib, MeasuredRole::Inbound)
        };
        rate(cib, Verb::Atomics, &parameters)
    };
    let one = printed("atomics_cib_z1");
    near(of(1, 8), one, 0.03);
    near(of(512, 4096), one, 0.03);
    near(of(8192, 8), printed("atomics_cib_zbig"), 0.05);
    // Many operations are outstanding, so that no lock is ever idle.
    let few = of(8, 8);
    near(few, 8.0 * one, 0.03);
    assert_eq!(of(8, 8), of(8, 8));
    // 64 counters in records of 512 bytes share 8 locks.
    near(of(64, 512), few, 0.1);
}

#[test]
fn connectx3_has_one_lock_for_all() {
    let cx3 = nic("cx3");
    for addresses in [1, 4096] {
        let parameters = MicroParameters {
            atomic_counters: Some(addresses),
            ..busy(cx3, MeasuredRole::Inbound)
        };
        near(
            rate(cx3, Verb::Atomics, &parameters),
            printed("atomics_cx3"),
            0.03,
        );
    }
}

/// Section 5.2.1 of the paper: one core that rotates its postlists over several queue pairs keeps several units busy.
#[test]
fn more_queue_pairs_of_one_core_are_faster_until_the_core_is_busy() {
    let cib = nic("cib");
    let of = |queue_pairs| {
        let parameters = MicroParameters {
            queue_pairs_per_thread: Some(queue_pairs),
            ..MicroParameters::default()
        };
        // WRITEs need no receiving core.
        let stream = VerbStream::new(Verb::UcWrite, &parameters, 1).expect("parameters that fit");
        let model = stream.rate_bounds(cib).expect("it can").predicted_mops;
        let got = measure(cib, stream).rate_mops;
        near(got, model.expect("a bound"), 0.06);
        got
    };
    let rates = [1, 2, 4, 16].map(of);
    assert!(
        rates[1] > 1.8 * rates[0] && rates[2] > 1.8 * rates[1],
        "{rates:?}"
    );
    assert!(rates[3] < 3.0 * rates[2], "{rates:?}");
}

/// The NIC reads what the model expects of each work request; the WQE cache misses nothing.
#[test]
fn counted_reads_are_those_expected_and_the_misses() {
    let cib = nic("cib");
    for (verb, direction, payload, batch) in [
        (Verb::UcWrite, MeasuredRole::Outbound, 8, 16),
        (Verb::UcWrite, MeasuredRole::Outbound, 8, 1),
        (Verb::RcWrite, MeasuredRole::Outbound, 1000, 1),
        (Verb::RcRead, MeasuredRole::Inbound, 100, 4),
        (Verb::Atomics, MeasuredRole::Inbound, 8, 4),
    ] {
        let parameters = MicroParameters {
            measured_role: direction,
            payload_bytes: Some(payload),
            wrs_per_doorbell: Some(batch),
            ..MicroParameters::default()
        };
        let stream = VerbStream::new(verb, &parameters, 1).expect("parameters that fit");
        let expected = stream.footprint(cib).expect("it can");
        let expected = match direction {
            MeasuredRole::Outbound => expected.requester.cache_lines_read(),
            MeasuredRole::Inbound => expected.responder.cache_lines_read(),
        };
        let (outcome, counters) =
            run_with_nic_counters(cib, &MeasurementTask::Stream(stream)).expect("it runs");
        let TaskResult::Rate(rate) = outcome else {
            panic!("a stream has a rate");
        };
        #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
        let counted = counters.dma_read_bytes as f64 / 64.0 / rate.verified_ops as f64;
        assert_eq!(counters.wqe_cache_misses, 0, "{stream:?}");
        assert!(
            (counted - expected).abs() < 1e-9,
            "{stream:?}: {counted}, {expected}"
        );
    }
}

#[test]
fn what_a_simulated_nic_cannot_show_is_refused() {
    let parameters = MicroParameters {
        page_size: Some(bench::micro::RegionPageSize::Huge),
        ..MicroParameters::default()
    };
    let stream = VerbStream::new(Verb::RcRead, &parameters, 1).expect("parameters that fit");
    let refused = run(nic("cib"), &MeasurementTask::Stream(stream)).expect_err("refused");
    assert!(
        refused.to_string().contains("translates no addresses"),
        "{refused}"
    );
}
