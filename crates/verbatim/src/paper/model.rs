//! Numbers from the model's bounds: rates of mixes, and quantities that are computed from rates.

use nicmodel::bounds::Resource;
use nicmodel::mixes;
use nicmodel::published;
use nicmodel::{Bounds, Mix, MixOperation, Operation, Role, Transport, Verb, atomic_locks};

use super::nics::PublicationNicProfiles;
use super::number::{OurNumber, OurNumberKind, PublishedRelation};

/// Returns our number for the published number `id`; `None` if the model does not have that number.
pub(super) fn our_number_for(nics: &PublicationNicProfiles, id: &str) -> Option<OurNumber> {
    mix_rate(nics, id)
        .or_else(|| gain_or_ratio_number(nics, id))
        .or_else(|| single_core_send_number(nics, id))
        .or_else(|| other_number(nics, id))
}

fn to_our_number(value: f64, kind: OurNumberKind) -> Option<OurNumber> {
    Some(OurNumber::new(value, kind, "model"))
}

/// Returns one id for a measurement that the text, tables and slides of a publication show under several
/// ids.
pub(super) fn canonical_id(id: &str) -> &str {
    match id {
        "seq_rpc_dma_limit" => "ud_send_batched_peak",
        "seq_t3_rpc_opts" => "seq_rpc_batch_mq_6c",
        "seq_atomics_slides" | "seq_atomics_slides_approx" => "seq_t3_atomics",
        "ud_recv_regular" => "t5_cib_recv1",
        "ud_recv_ho" => "t5_cib_recv0",
        "ud_recv_cx3_regular_fn" => "t5_cx3_recv1",
        "t5_cib_send0" => "ud_send_batched_ho_peak",
        "t5_cib_send1" => "ud_send_batched_peak",
        other => other,
    }
}

/// Returns the rate of one of the publications' mixes.
fn mix_rate(nics: &PublicationNicProfiles, id: &str) -> Option<OurNumber> {
    let id = canonical_id(id);
    for profile in nics.all() {
        let mixes = mixes::executable_mixes(profile);
        let found = mixes
            .iter()
            .find(|named| named.published_rate.is_some_and(|p| p.id == id));
        if let Some(named) = found {
            let bounds = Bounds::of(profile, &named.mix).ok()?;
            return to_our_number(bounds.predicted_mops?, named.basis(profile)?.into());
        }
    }
    None
}

/// Returns the model's rate of a mix.
pub(super) fn modelled_mix_mops(
    nics: &PublicationNicProfiles,
    nic: &str,
    mix: &str,
) -> Option<f64> {
    let profile = nics.profile_by_name(nic);
    let named = mixes::mix_by_name(profile, mix)?;
    Bounds::of(profile, &named.mix).ok()?.predicted_mops
}

/// Computes published numbers that are gains, drops or ratios of rates.
fn gain_or_ratio_number(nics: &PublicationNicProfiles, id: &str) -> Option<OurNumber> {
    let cib = |mix| modelled_mix_mops(nics, "cib", mix);
    let gain = |fast, slow| Some(100.0 * (cib(fast)? / cib(slow)? - 1.0));
    let times = |fast, slow| Some(cib(fast)? / cib(slow)?);
    let fitted = |value: Option<f64>| to_our_number(value?, OurNumberKind::Fitted);
    let predicted = |value: Option<f64>| to_our_number(value?, OurNumberKind::Predicted);
    match id {
        "seq_speedup_50x" => fitted(times("sequencer-spec-s0", "sequencer-atomics")),
        "seq_speedup_12_2x" => fitted(times("sequencer-rpc-batch-mq-1", "sequencer-atomics")),
        "seq_intro_16pct" => {
            let (rpc, best) = (cib("sequencer-rpc-batch-mq")?, cib("sequencer-spec-s0")?);
            fitted(Some(100.0 * (1.0 - rpc / best)))
        }
        "seq_rpc_gap_to_limit" => {
            let (rpc, limit) = (cib("sequencer-rpc-batch-mq")?, cib("ud-send-batch")?);
            let gap = 100.0 * (1.0 - rpc / limit);
            fitted(Some(gap)).map(|ours| ours.with_relation(PublishedRelation::AtMost))
        }
        "best_vs_worst_throughput" => fitted(times("ud-send-header-only", "sequencer-atomics")),
        "ud_send_ho_gain" => fitted(gain("ud-send-header-only", "ud-send-batch")),
        "ud_recv_ho_gain" => fitted(gain("ud-recv-header-only", "ud-recv")),
        "ud_send_batch_gain" => fitted(gain("ud-send-batch", "ud-send")),
        "herd_gain_percore" => fitted(gain("herd-batch-1", "herd-1")),
        "herd_gain_peak" => predicted(gain("herd-batch", "herd")),
        "herd_vs_read_kv" => predicted(gain("herd-batch", "read-kv")),
        "drtm_cib_put10" => {
            let kept = times("drtm-put-10", "drtm-get")?;
            predicted(Some(100.0 * (1.0 - kept)))
        }
        "drtm_cx3_put100" => predicted(Some(
            100.0 * modelled_mix_mops(nics, "cx3", "drtm-put")?
                / modelled_mix_mops(nics, "cx3", "drtm-get")?,
        )),
        "contention_order" => {
            let ratio = times("atomics-spread", "atomics-one");
            fitted(ratio).map(|ours| ours.with_relation(PublishedRelation::AtLeast))
        }
        // The DPU has a third of the host's rate: these numbers are the best split, and its gain.
        "dpu_bt_best_share" => predicted(balanced_dpu_share()),
        "dpu_bt_gain_1m" => {
            predicted(balanced_dpu_share().map(|share| 100.0 * (1.0 / (1.0 - share) - 1.0)))
        }
        _ => None,
    }
}

/// Returns the DPU's share of a range-partitioned tree at which host and DPU are equally busy.
fn balanced_dpu_share() -> Option<f64> {
    let host = published::published_number_by_id("dpu_bt_rpc_cpu_ratio")?.value;
    Some(1.0 / (1.0 + host))
}

/// Computes the numbers of Figure 11b: one core that SENDs 60 bytes.
fn single_core_send_number(nics: &PublicationNicProfiles, id: &str) -> Option<OurNumber> {
    let profile = nics.profile_by_name("cib");
    let rate = |postlist, queue_pairs| {
        let send = Operation::new(Verb::Send, Transport::Ud, 60).inlined();
        let load = MixOperation::new(send, Role::Requester).in_postlists(postlist);
        let mix = Mix::new(vec![load.on_queue_pairs(queue_pairs)]).on_cores(1);
        Bounds::of(profile, &mix).ok()?.predicted_mops
    };
    match id {
        "ud_send_1c_mq2_gain" => {
            to_our_number(rate(16.0, 2)? / rate(16.0, 1)?, OurNumberKind::Predicted)
        }
        "ud_send_1c_mq4_gain_hi" | "fastest_vs_baseline" => {
            to_our_number(rate(16.0, 4)? / rate(1.0, 1)?, OurNumberKind::Fitted)
        }
        "ud_send_1c_nobatch_mq_gain" => {
            to_our_number(rate(1.0, 4)? / rate(1.0, 1)?, OurNumberKind::Predicted)
        }
        _ => None,
    }
}

fn other_number(nics: &PublicationNicProfiles, id: &str) -> Option<OurNumber> {
    if let Some(nic) = id.strip_prefix("in_read_transition_") {
        return to_our_number(
            min_link_bound_read_bytes(nics, nic)?,
            OurNumberKind::Predicted,
        );
    }
    let cib = nics.profile_by_name("cib");
    match id {
        "seq_atomics_pcie_latency" => to_our_number(
            cib.atomics.lock_hold_ns.as_ref()?.value * 1e-3,
            OurNumberKind::Fitted,
        ),
        "derived_atomics_page_aligned" => {
            let slots = atomic_locks::lock_count_of_counters(cib, 1 << 20, 4096)?;
            let atomic = Operation::new(Verb::AtomicCmpAndSwp, Transport::Rc, 8);
            let load = MixOperation::new(atomic, Role::Responder).on_lock_slots(slots);
            to_our_number(
                Bounds::of(cib, &Mix::new(vec![load]))
                    .ok()?
                    .predicted_mops?,
                OurNumberKind::Fitted,
            )
        }
        _ => None,
    }
}

/// Returns the smallest power of two of bytes at which the link limits READs.
fn min_link_bound_read_bytes(nics: &PublicationNicProfiles, nic: &str) -> Option<f64> {
    let profile = nics.all().iter().find(|profile| profile.name == nic)?;
    let payload = (2..12).map(|power| 1u32 << power).find(|&payload| {
        let read = Operation::new(Verb::RdmaRead, Transport::Rc, payload);
        let mix = Mix::new(vec![MixOperation::new(read, Role::Responder)]);
        let bounds = Bounds::of(profile, &mix);
        bounds.is_ok_and(|bounds| bounds.bottleneck() == Some(Resource::LinkOut))
    });
    payload.map(f64::from)
}
