//! The operation mixes of the publications, by name.

use serde::Serialize;

use crate::bounds::{Mix, MixOperation, Resource, Role};
use crate::operation::{Operation, PayloadDestination};
use crate::profile::{Profile, Sourced, builtin_profile};
use crate::published::{self, PublishedNumber};
use crate::verb::{Transport, Verb};

/// Core time of HERD for the work of a request apart from verbs, in ns. The number of Connect-IB applies if the
/// profile lacks it.
#[must_use]
pub fn herd_request_work_ns(profile: &Profile, batched: bool) -> f64 {
    let of = |profile| known_herd_request_work_ns(profile, batched);
    let known = of(profile).or_else(|| builtin_profile("cib").and_then(of));
    known.unwrap_or(0.0)
}

/// Core time of HERD for the work of a request apart from verbs, in ns; `None` if the profile lacks it.
fn known_herd_request_work_ns(profile: &Profile, batched: bool) -> Option<f64> {
    let host = &profile.host;
    let number = match batched {
        true => &host.batched_lookup_ns,
        false => &host.lookup_ns,
    };
    number.as_ref().map(|number| number.value)
}

/// Size of requests that arrive by WRITE: a key and an operation. No bound of these mixes depends on it.
const REQUEST_BY_WRITE_BYTES: u32 = 16;

/// Responses per doorbell of the sequencer (section 4.2) and of HERD (slide 21 of the paper's slides).
const SEQUENCER_POSTLIST_LEN: f64 = 15.9;
const HERD_POSTLIST_LEN: f64 = 14.0;

/// A mix of the publications, with its name and published rate.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NamedMix {
    /// Short name.
    pub name: &'static str,
    /// Description of the mix.
    pub title: &'static str,
    /// The operations and cores of the mix.
    pub mix: Mix,
    /// The rate that was published for this NIC, if one was.
    #[serde(rename = "published")]
    pub published_rate: Option<&'static PublishedNumber>,
}

/// Relation of a number of the model to the published one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FittedOrPredicted {
    /// A number of the profile or of the mix was fitted to the published one.
    Fitted,
    /// No number was fitted to the published one.
    Predicted,
}

impl NamedMix {
    /// Tells whether the profile or the mix was fitted to the published rate; `None` without a published rate.
    pub fn basis(&self, profile: &Profile) -> Option<FittedOrPredicted> {
        let id = self.published_rate?.id;
        // These two ids name the same measurement.
        let same = match id {
            "t5_cib_send0" => "ud_send_batched_ho_peak",
            "t5_cib_send1" => "ud_send_batched_peak",
            "seq_t3_atomics" => "atomics_cib_z1",
            "derived_read_kv_line" => "in_read_le64",
            other => other,
        };
        let numbers = profile.numbers();
        let in_profile = numbers.iter().any(|number| {
            let mut to = number.evidence.fitted_to();
            to.any(|name| name == id || name == same)
        });
        Some(if in_profile {
            FittedOrPredicted::Fitted
        } else {
            FittedOrPredicted::Predicted
        })
    }
}

/// Returns the mixes of the publications that this NIC can execute.
///
/// "As many cores as needed" is all cores of the profile.
pub fn executable_mixes(profile: &Profile) -> Vec<NamedMix> {
    let mut all = verb_benchmark_mixes(profile);
    all.extend(system_mixes(profile));
    all.retain(|named| {
        let loads = &mut named.mix.operations.iter();
        loads.all(|load| {
            let operation = &load.operation;
            let as_wanted = operation.payload_destination == PayloadDestination::Regular
                || operation.arrives_in_cqe(profile);
            as_wanted && operation.check_executable(profile).is_ok()
        })
    });
    all
}

/// Returns the mix of this name.
pub fn mix_by_name(profile: &Profile, name: &str) -> Option<NamedMix> {
    executable_mixes(profile)
        .into_iter()
        .find(|named| named.name == name)
}

/// Returns the published number for this NIC: `ids` are pairs of profile and id.
fn published_number(profile: &Profile, ids: &[(&str, &str)]) -> Option<&'static PublishedNumber> {
    let (_, id) = ids.iter().find(|(nic, _)| *nic == profile.name)?;
    published::published_number_by_id(id)
}

fn verb_benchmark_mixes(profile: &Profile) -> Vec<NamedMix> {
    let ud = |payload| Operation::new(Verb::Send, Transport::Ud, payload).inlined();
    let rc = |verb, payload| Operation::new(verb, Transport::Rc, payload);
    let header_only = Operation::header_only(Transport::Ud);
    let cores = profile.host.cores.value;
    let sent = |operation| MixOperation::new(operation, Role::Requester);
    let arriving = |operation| MixOperation::new(operation, Role::Responder);
    let named = |name, title, mix, ids: &[(&str, &str)]| NamedMix {
        name,
        title,
        mix,
        published_rate: published_number(profile, ids),
    };
    let from_cores = |load| Mix::new(vec![load]).on_cores(cores);
    let from_peers = |load| Mix::new(vec![load]);
    vec![
        named(
            "ud-send",
            "UD SEND of 60 bytes, one a post",
            from_cores(sent(ud(60))),
            &[("cib", "ud_send_nobatch_peak")],
        ),
        named(
            "ud-send-batch",
            "UD SEND of 60 bytes in postlists of 16",
            from_cores(sent(ud(60)).in_postlists(16.0)),
            &[
                ("cib", "ud_send_batched_peak"),
                ("cx3", "t5_cx3_send1"),
                ("cx", "t5_cx_send1"),
            ],
        ),
        named(
            "ud-send-header-only",
            "header-only UD SEND in postlists of 16",
            from_cores(sent(header_only).in_postlists(16.0)),
            &[
                ("cib", "ud_send_batched_ho_peak"),
                ("cx3", "t5_cx3_send0"),
                ("cx", "t5_cx_send0"),
            ],
        ),
        named(
            "ud-recv",
            "UD RECV of 32 bytes",
            from_peers(arriving(ud(32))),
            &[
                ("cib", "t5_cib_recv1"),
                ("cx3", "t5_cx3_recv1"),
                ("cx", "t5_cx_recv1"),
            ],
        ),
        named(
            "ud-recv-inline",
            "inline UD RECV of 32 bytes",
            from_peers(arriving(
                ud(32).with_recv_destination(PayloadDestination::Inline),
            )),
            &[("cx3", "ud_recv_cx3_inline")],
        ),
        named(
            "ud-recv-header-only",
            "header-only UD RECV",
            from_peers(arriving(header_only)),
            &[
                ("cib", "t5_cib_recv0"),
                ("cx3", "t5_cx3_recv0"),
                ("cx", "t5_cx_recv0"),
            ],
        ),
        named(
            "inbound-read",
            "RC READ of 32 bytes, arriving",
            from_peers(arriving(rc(Verb::RdmaRead, 32))),
            &[("cib", "in_read_le64")],
        ),
        named(
            "inbound-read-128",
            "RC READ of 128 bytes, arriving",
            from_peers(arriving(rc(Verb::RdmaRead, 128))),
            &[("cib", "in_read_128")],
        ),
        named(
            "inbound-write",
            "UC WRITE of 32 bytes, arriving",
            from_peers(arriving(Operation::new(Verb::RdmaWrite, Transport::Uc, 32))),
            &[("cib", "in_write_small")],
        ),
        named(
            "outbound-write",
            "UC WRITE of 32 bytes, one a post",
            from_cores(sent(
                Operation::new(Verb::RdmaWrite, Transport::Uc, 32).inlined(),
            )),
            &[("cib", "out_write_gt28")],
        ),
        named(
            "outbound-read",
            "RC READ of 32 bytes, one a post, a queue pair a core",
            from_cores(sent(rc(Verb::RdmaRead, 32)).on_queue_pairs(cores)),
            &[("cib", "out_read")],
        ),
        named(
            "atomics-one",
            "fetch-and-add on one counter, arriving",
            from_peers(arriving(rc(Verb::AtomicFetchAndAdd, 8)).on_lock_slots(1)),
            &[("cib", "atomics_cib_z1"), ("cx3", "atomics_cx3")],
        ),
        named(
            "atomics-spread",
            "fetch-and-add on many counters, arriving",
            from_peers(arriving(rc(Verb::AtomicFetchAndAdd, 8))),
            &[("cib", "atomics_cib_zbig"), ("cx3", "atomics_cx3")],
        ),
    ]
}

/// Returns the operations of HERD's RPC: requests by UC WRITE, responses by UD SEND.
fn herd_rpc_operations(response_bytes: u32, postlist: f64, queue_pairs: u32) -> Vec<MixOperation> {
    let request = Operation::new(Verb::RdmaWrite, Transport::Uc, REQUEST_BY_WRITE_BYTES).inlined();
    let response = Operation::new(Verb::Send, Transport::Ud, response_bytes).inlined();
    vec![
        MixOperation::new(request, Role::Responder),
        MixOperation::new(response, Role::Requester)
            .in_postlists(postlist)
            .on_queue_pairs(queue_pairs),
    ]
}

/// Returns the mix of a sequencer with these messages.
fn sequencer_mix(profile: &Profile, loads: Vec<MixOperation>, cores: u32, postlist: f64) -> Mix {
    let host = &profile.with_active_cores(cores).host;
    let add = match cores {
        1 => &host.atomic_add_ns,
        _ => &host.contended_add_ns,
    };
    let known = |number: &Option<Sourced<f64>>| number.as_ref().map_or(0.0, |number| number.value);
    let add_ns = known(add);
    let unknown = [
        (Resource::Cpu, host.request_ns.is_none() || add.is_none()),
        (Resource::SharedLine, cores > 1 && add.is_none()),
    ];
    let unknown = unknown.into_iter().filter(|(_, is_unknown)| *is_unknown);
    Mix {
        operations: loads,
        cores: Some(cores),
        app_ns_per_request: known(&host.request_ns) + add_ns / postlist,
        serialized_app_ns_per_request: if cores == 1 { 0.0 } else { add_ns / postlist },
        max_outstanding: None,
        max_unanswered: None,
        partly_unknown_resources: unknown.map(|(resource, _)| resource).collect(),
    }
}

/// Returns the mix of a sequencer by HERD RPC, with this number of queue pairs for each core.
fn rpc_sequencer_mix(profile: &Profile, cores: u32, postlist: f64, queue_pairs: u32) -> Mix {
    let loads = herd_rpc_operations(8, postlist, queue_pairs * cores);
    sequencer_mix(profile, loads, cores, postlist)
}

/// Returns the mix of a sequencer rate by RPC that is noted in the authors' benchmark, by its id (`bench_rpc_…`).
#[must_use]
pub fn mix_of_rpc_benchmark(profile: &Profile, id: &str) -> Option<Mix> {
    let (design, cores) = id.strip_prefix("bench_rpc_")?.rsplit_once('_')?;
    let cores = cores.strip_suffix('c')?.parse().ok()?;
    match design {
        "base" => Some(rpc_sequencer_mix(profile, cores, 1.0, 2)),
        "batch" => Some(rpc_sequencer_mix(profile, cores, SEQUENCER_POSTLIST_LEN, 2)),
        "batch_mq" => Some(rpc_sequencer_mix(profile, cores, SEQUENCER_POSTLIST_LEN, 6)),
        _ => None,
    }
}

/// Returns the mix of HERD. Work that the profile lacks counts as 0, and the CPU as unknown.
fn herd_mix(profile: &Profile, cores: u32, postlist: f64, batched: bool) -> Mix {
    let app_ns = known_herd_request_work_ns(profile, batched);
    Mix {
        app_ns_per_request: app_ns.unwrap_or(0.0) * profile.slowdown_factor(cores),
        partly_unknown_resources: match app_ns {
            Some(_) => Vec::new(),
            None => vec![Resource::Cpu],
        },
        ..Mix::new(herd_rpc_operations(32, postlist, 2 * cores)).on_cores(cores)
    }
}

fn system_mixes(profile: &Profile) -> Vec<NamedMix> {
    let sequencer = |loads, cores, postlist| sequencer_mix(profile, loads, cores, postlist);
    let rpc =
        |cores, postlist, queue_pairs| rpc_sequencer_mix(profile, cores, postlist, queue_pairs);
    let herd = |cores, postlist, batched| herd_mix(profile, cores, postlist, batched);
    let spec_s0 = |cores: u32| {
        let header_only = Operation::header_only(Transport::Ud);
        let loads = vec![
            MixOperation::new(header_only, Role::Responder),
            MixOperation::new(header_only, Role::Requester)
                .in_postlists(SEQUENCER_POSTLIST_LEN)
                .on_queue_pairs(6 * cores),
        ];
        sequencer(loads, cores, SEQUENCER_POSTLIST_LEN)
    };
    let read = Operation::new(Verb::RdmaRead, Transport::Rc, 32);
    let atomic = Operation::new(Verb::AtomicCmpAndSwp, Transport::Rc, 8);
    // A GET is one READ, a PUT two atomics (lock, update, unlock).
    let drtm = |put: f64| {
        let gets = MixOperation::new(read, Role::Responder).with_operations_per_request(1.0 - put);
        let puts =
            MixOperation::new(atomic, Role::Responder).with_operations_per_request(2.0 * put);
        Mix::new(vec![gets, puts])
    };
    let on_cib = |id| published_number(profile, &[("cib", id)]);
    let all = profile.host.cores.value;
    let named = |name, title, mix, published| NamedMix {
        name,
        title,
        mix,
        published_rate: published,
    };
    vec![
        named(
            "sequencer-rpc-1",
            "sequencer by HERD RPC, one core",
            rpc(1, 1.0, 2),
            on_cib("seq_rpc_base_1c"),
        ),
        named(
            "sequencer-rpc",
            "sequencer by HERD RPC, all cores",
            rpc(all, 1.0, 2),
            on_cib("seq_t3_baseline"),
        ),
        named(
            "sequencer-rpc-batch-1",
            "with doorbell batching, 2 queue pairs, one core",
            rpc(1, SEQUENCER_POSTLIST_LEN, 2),
            on_cib("seq_rpc_batch_1c"),
        ),
        named(
            "sequencer-rpc-batch-mq-1",
            "with 6 queue pairs, one core",
            rpc(1, SEQUENCER_POSTLIST_LEN, 6),
            on_cib("seq_rpc_batch_mq_1c"),
        ),
        named(
            "sequencer-rpc-batch-mq",
            "with 6 queue pairs a core, 6 cores",
            rpc(6, SEQUENCER_POSTLIST_LEN, 6),
            on_cib("seq_rpc_batch_mq_6c"),
        ),
        named(
            "sequencer-spec-s0",
            "sequencer Spec-S0, all cores",
            spec_s0(all),
            on_cib("seq_t3_spec_s0"),
        ),
        named(
            "sequencer-atomics",
            "sequencer by fetch-and-add",
            Mix::new(vec![
                MixOperation::new(
                    Operation::new(Verb::AtomicFetchAndAdd, Transport::Rc, 8),
                    Role::Responder,
                )
                .on_lock_slots(1),
            ]),
            on_cib("seq_t3_atomics"),
        ),
        named(
            "herd-1",
            "HERD key-value store, one core",
            herd(1, 1.0, false),
            on_cib("herd_base_1c"),
        ),
        named(
            "herd",
            "HERD key-value store, all cores",
            herd(all, 1.0, false),
            on_cib("herd_base_peak"),
        ),
        named(
            "herd-batch-1",
            "HERD with batches, one core",
            herd(1, HERD_POSTLIST_LEN, true),
            on_cib("herd_batch_1c"),
        ),
        named(
            "herd-batch",
            "HERD with batches, 12 cores",
            herd(12, HERD_POSTLIST_LEN, true),
            on_cib("herd_batch_peak"),
        ),
        named(
            "read-kv",
            "key-value store by two READs a GET",
            Mix::new(vec![
                MixOperation::new(read, Role::Responder).with_operations_per_request(2.0),
            ]),
            on_cib("derived_read_kv_line"),
        ),
        named(
            "drtm-get",
            "DrTM-KV, GETs alone",
            drtm(0.0),
            on_cib("in_read_le64"),
        ),
        named("drtm-put-10", "DrTM-KV, 10 % PUTs", drtm(0.1), None),
        named("drtm-put", "DrTM-KV, PUTs alone", drtm(1.0), None),
    ]
}
