//! One operation, made from command-line flags: its cost, its bounds, and the gains of changes.

use anyhow::{Result, bail};
use clap::ValueEnum;
use nicmodel::bounds::Resource;
use nicmodel::guidelines::MIN_RELATIVE_GAIN;
use nicmodel::profile::Profile;
use nicmodel::uncertainty::{self, LikelyRange};
use nicmodel::{
    Bounds, Footprint, LinkTransactions, Mix, MixOperation, PayloadDestination, PostMethod, Role,
    Transport, Verb, atomic_locks, wqe,
};
use serde::Serialize;

use super::format_bounds::{
    bounds_lines, format_range, format_rate_or_limit, format_signed_percent,
};
use super::knob::SweptKnob;
use crate::args;
use crate::output::{format_three_digits, print_line, print_typed_json, table};

/// The operation on the command line.
#[derive(clap::Args, Clone)]
#[group(id = "Operation", multiple = true)]
#[command(next_help_heading = "Operation")]
pub(super) struct OperationArgs {
    /// send, write, read, cmp-swap, fetch-add or flush [default: send]
    #[arg(long, value_name = "VERB")]
    verb: Option<Verb>,
    /// rc, uc or ud [default: ud for send, rc for the rest]
    #[arg(long, value_name = "TRANSPORT")]
    transport: Option<Transport>,
    /// Payload in bytes, also with K (KiB) or M (MiB) behind; 0 with send is header-only [default: 32; 8 for atomics, 0
    /// for flush]
    #[arg(long, value_name = "BYTES", value_parser = parse_payload_bytes)]
    payload: Option<u32>,
    /// Copy the payload into the WQE (IBV_SEND_INLINE)
    #[arg(long)]
    inline: bool,
    /// With 4 bytes of immediate; a header-only SEND has it anyway
    #[arg(long)]
    imm: bool,
    /// Signal every Nth operation; 0 for none [default: 64]
    #[arg(long, value_name = "N", value_parser = args::integer_parser_in_range("a period of signaling", 0..=1_000_000u32))]
    signal_every: Option<u32>,
    /// Scatter/gather elements of a payload that is not inlined [default: 1]
    #[arg(long, value_name = "N", value_parser = args::integer_parser_in_range("a number of SGEs", 1..=nicmodel::MAX_SGES))]
    sge: Option<u32>,
    /// The responder takes SENDs by inline RECVs, where the NIC has them
    #[arg(long)]
    inline_recv: bool,
    /// Operations in a postlist [default: 1]
    #[arg(long, value_name = "N", value_parser = args::integer_parser_in_range("a length of postlists", 1..=nicmodel::MAX_POSTLIST_LEN))]
    batch: Option<u32>,
    /// How WQEs reach the NIC [default: mmio for postlists of 1, else doorbell]
    #[arg(long, value_enum)]
    method: Option<MethodArg>,
    /// Cores of each side [default: as many as it takes]
    #[arg(long, value_name = "N", value_parser = args::integer_parser_in_range("a number of cores", 1..=4096u32))]
    cores: Option<u32>,
    /// Queue pairs that the operations are posted on [default: as many as it takes]
    #[arg(long, value_name = "N", value_parser = args::integer_parser_in_range("a number of queue pairs", 1..=10_000_000u32))]
    queue_pairs: Option<u32>,
    /// Operations outstanding at a time on all queue pairs: each takes a round trip [default: as many as it takes]
    #[arg(long, value_name = "N", value_parser = args::integer_parser_in_range("a window", 1..=1_000_000_000u32))]
    window: Option<u32>,
    /// Counters that atomics work on [default: enough for every lock]
    #[arg(long, value_name = "N", value_parser = args::integer_parser_in_range("a number of counters", 1..=u64::MAX))]
    counters: Option<u64>,
    /// Bytes from one counter to the next [default: 8]
    #[arg(long, value_name = "BYTES", value_parser = args::integer_parser_in_range("a distance of counters", 8..=1u64 << 40))]
    stride: Option<u64>,
}

/// Parses the bytes of a payload.
fn parse_payload_bytes(text: &str) -> Result<u32, String> {
    let bytes = args::byte_count_parser_up_to(nicmodel::MAX_MESSAGE_BYTES as usize)(text)?;
    u32::try_from(bytes).map_err(|error| error.to_string())
}

#[derive(Clone, Copy, ValueEnum)]
enum MethodArg {
    /// The processor writes WQEs to the NIC
    Mmio,
    /// The NIC fetches WQEs after a doorbell
    Doorbell,
}

/// Default period of signaling.
const DEFAULT_SIGNAL_PERIOD: u32 = 64;

impl OperationArgs {
    /// Returns true if any flag of the operation was given.
    pub(super) fn is_given(&self) -> bool {
        let Self {
            verb,
            transport,
            payload,
            inline,
            imm,
            signal_every,
            sge,
            inline_recv,
            batch,
            method,
            cores,
            queue_pairs,
            window,
            counters,
            stride,
        } = self;
        verb.is_some()
            || transport.is_some()
            || payload.is_some()
            || *inline
            || *imm
            || signal_every.is_some()
            || sge.is_some()
            || *inline_recv
            || batch.is_some()
            || method.is_some()
            || cores.is_some()
            || queue_pairs.is_some()
            || window.is_some()
            || counters.is_some()
            || stride.is_some()
    }

    /// Returns the operation with the setting `knob` changed to `value`.
    pub(super) fn with_setting(&self, knob: SweptKnob, value: usize) -> Result<Self> {
        let (mut turned, small) = (self.clone(), u32::try_from(value)?);
        match knob {
            SweptKnob::Payload => turned.payload = Some(small),
            SweptKnob::Batch => turned.batch = Some(small),
            SweptKnob::Cores => turned.cores = Some(small),
            SweptKnob::QueuePairs => turned.queue_pairs = Some(small),
            SweptKnob::SignalEvery => turned.signal_every = Some(small),
            SweptKnob::Counters => turned.counters = Some(value as u64),
        }
        Ok(turned)
    }

    /// Computes the bounds of both sides of this operation.
    pub(super) fn bounds_of_both_sides(&self, profile: &Profile) -> Result<BoundsOfBothSides> {
        let way = CoresAndWindow {
            cores: self.cores,
            window: self.window.map(f64::from),
        };
        BoundsOfBothSides::compute(profile, &self.to_mix_operation(profile)?, way)
    }

    fn to_mix_operation(&self, profile: &Profile) -> Result<MixOperation> {
        let verb = self.verb.unwrap_or(Verb::Send);
        let transport = self.transport.unwrap_or(if verb == Verb::Send {
            Transport::Ud
        } else {
            Transport::Rc
        });
        let payload = self.payload.or(verb.fixed_payload_bytes()).unwrap_or(32);
        let mut operation = nicmodel::Operation::new(verb, transport, payload);
        operation.inline = self.inline;
        operation.has_imm = self.imm || (verb == Verb::Send && payload == 0);
        operation.signaled_fraction = match self.signal_every.unwrap_or(DEFAULT_SIGNAL_PERIOD) {
            0 => 0.0,
            every => 1.0 / f64::from(every),
        };
        operation.num_sge = self.sge.unwrap_or(1);
        if self.inline_recv {
            operation.payload_destination = PayloadDestination::Inline;
        }
        let batch = f64::from(self.batch.unwrap_or(1));
        let mut load = MixOperation::new(operation, Role::Requester).in_postlists(batch);
        match self.method {
            Some(MethodArg::Mmio) => load.post_method = PostMethod::WqeByMmio,
            Some(MethodArg::Doorbell) => load.post_method = PostMethod::Doorbell,
            None => {}
        }
        load.queue_pairs = self.queue_pairs;
        if self.counters.is_some() || self.stride.is_some() {
            if !verb.is_atomic() {
                bail!("--counters and --stride are of atomics; {verb} has no lock");
            }
            let count = self.counters.unwrap_or(u64::MAX);
            let Some(used) =
                atomic_locks::lock_count_of_counters(profile, count, self.stride.unwrap_or(8))
            else {
                bail!(
                    "how addresses choose locks is not known for {}; leave out --counters and \
                     --stride, or add atomics.lock_bits to a profile",
                    profile.name
                );
            };
            load.lock_slots = Some(used);
        }
        Ok(load)
    }
}

/// The bounds of one side, for JSON.
#[derive(Serialize)]
struct SideBounds<'a> {
    role: Role,
    #[serde(flatten)]
    bounds: &'a Bounds,
    /// The range in which the rate probably lies.
    #[serde(flatten)]
    #[serde(rename = "likely")]
    likely_rate: Option<LikelyRange>,
}

/// A change of the operation and its effect on both sides.
#[derive(Serialize)]
struct ChangeEffectOnBothSides {
    change: String,
    requester: ChangeEffect,
    responder: ChangeEffect,
}

/// The effect of a change on one side.
#[derive(Serialize)]
struct ChangeEffect {
    predicted_mops: f64,
    /// Relative gain: the rate over the rate without the change, minus 1.
    gain: f64,
    /// Largest relative gain that is within the noise of the model.
    #[serde(rename = "noise")]
    max_gain_within_noise: f64,
    bottleneck: Option<Resource>,
}

impl ChangeEffect {
    /// Formats the gain, with a mark if it is within the noise of the model.
    fn format_gain(&self) -> String {
        let gain = format_signed_percent(self.gain, 0);
        let size = self.gain.ln_1p().abs();
        if size >= MIN_RELATIVE_GAIN && size <= self.max_gain_within_noise.ln_1p() {
            format!("{gain} noise")
        } else {
            gain
        }
    }
}

/// An operation and its cost.
#[derive(Serialize)]
struct OperationCost<'a> {
    nic: &'a str,
    operation: &'a nicmodel::Operation,
    #[serde(rename = "postlist")]
    postlist_length: f64,
    #[serde(rename = "per_operation")]
    footprint_per_operation: &'a Footprint,
}

pub(super) fn print_operation(profile: &Profile, wanted: &OperationArgs, json: bool) -> Result<()> {
    let load = wanted.to_mix_operation(profile)?;
    let one = Footprint::of_one(
        profile,
        &load.operation,
        load.post_method,
        load.mean_postlist_len,
    )?;
    let way = CoresAndWindow {
        cores: wanted.cores,
        window: wanted.window.map(f64::from),
    };
    let sides = BoundsOfBothSides::compute(profile, &load, way)?;
    let ideas = effects_of_changes(profile, &load, way, &sides);
    if json {
        print_typed_json(
            "footprint",
            &OperationCost {
                nic: &profile.name,
                operation: &load.operation,
                postlist_length: load.mean_postlist_len,
                footprint_per_operation: &one,
            },
        )?;
        for (role, bounds) in sides.by_role() {
            let likely = uncertainty::likely_range_of_mix(bounds);
            print_typed_json(
                "bounds",
                &SideBounds {
                    role,
                    bounds,
                    likely_rate: likely,
                },
            )?;
        }
        return ideas
            .iter()
            .try_for_each(|idea| print_typed_json("what-if", idea));
    }
    print_line(&profile.title)?;
    print_line(describe_mix_operation(&load, &one))?;
    print_line(cost_table(&one))?;
    for (role, bounds) in sides.by_role() {
        let side = match role {
            Role::Requester => "the requester",
            Role::Responder => "the responder",
        };
        print_line("")?;
        let mut lines = bounds_lines(bounds);
        if let Some(first) = lines.first_mut() {
            *first = format!("{side}: {first}");
        }
        lines.iter().try_for_each(print_line)?;
    }
    if !ideas.is_empty() {
        let header = [
            "what if",
            "requester, M/s",
            "gain",
            "responder, M/s",
            "gain",
        ];
        let mut rows = table(header, &[1, 2, 3, 4]);
        for ChangeEffectOnBothSides {
            change,
            requester,
            responder,
        } in &ideas
        {
            rows.add_row([
                change.clone(),
                format_three_digits(requester.predicted_mops),
                requester.format_gain(),
                format_three_digits(responder.predicted_mops),
                responder.format_gain(),
            ]);
        }
        print_line(format_args!("\n{rows}"))?;
    }
    Ok(())
}

/// Prints the rates of an operation on several NICs, side by side.
pub(super) fn print_rates_side_by_side(profiles: &[Profile], wanted: &OperationArgs) -> Result<()> {
    let header = [
        "NIC",
        "side",
        "allows, M/s",
        "likely",
        "bottleneck",
        "PCIe B to NIC",
        "PCIe B to host",
        "unknown",
    ];
    let mut rows = table(header, &[2, 3, 5, 6]);
    let mut impossible = Vec::new();
    for profile in profiles {
        let load = wanted.to_mix_operation(profile)?;
        let one = match Footprint::of_one(
            profile,
            &load.operation,
            load.post_method,
            load.mean_postlist_len,
        ) {
            Ok(one) => one,
            Err(error) => {
                impossible.push(format!("{}: {error}", profile.name));
                continue;
            }
        };
        let way = CoresAndWindow {
            cores: wanted.cores,
            window: wanted.window.map(f64::from),
        };
        let sides = BoundsOfBothSides::compute(profile, &load, way)?;
        for (role, bounds) in sides.by_role() {
            let (name, side) = match role {
                Role::Requester => ("requester", &one.requester),
                Role::Responder => ("responder", &one.responder),
            };
            let unknown: Vec<_> = bounds
                .unknown_resources
                .iter()
                .map(ToString::to_string)
                .collect();
            rows.add_row([
                profile.name.clone(),
                name.to_owned(),
                format_rate_or_limit(bounds.predicted_mops, &bounds.unknown_resources),
                uncertainty::likely_range_of_mix(bounds)
                    .map_or_else(|| "-".to_owned(), |range| format_range(&range)),
                bounds
                    .bottleneck()
                    .map_or_else(|| "-".to_owned(), |binds| binds.to_string()),
                format_three_digits(side.bytes_to_device()),
                format_three_digits(side.bytes_to_host()),
                unknown.join(", "),
            ]);
        }
    }
    print_line(rows)?;
    for line in impossible {
        print_line(format_args!("not possible on {line}"))?;
    }
    Ok(())
}

fn describe_mix_operation(load: &MixOperation, one: &Footprint) -> String {
    let operation = &load.operation;
    let inline = if operation.inlines_payload() {
        " inlined"
    } else {
        ""
    };
    let imm = if operation.has_imm {
        " with immediate"
    } else {
        ""
    };
    let method = match load.post_method {
        PostMethod::WqeByMmio => "written to the NIC by MMIO",
        PostMethod::Doorbell => "fetched after a doorbell",
    };
    format!(
        "{} {}{imm}, {} bytes{inline}, in postlists of {}: WQEs of {} bytes ({} cache line{}), {method}\n",
        operation.transport,
        operation.verb,
        operation.payload_bytes,
        load.mean_postlist_len,
        one.wqe_bytes,
        one.wqe_cache_lines,
        if one.wqe_cache_lines == 1 { "" } else { "s" },
    )
}

/// Builds the table of one operation's cost on both sides.
fn cost_table(one: &Footprint) -> comfy_table::Table {
    let mut rows = table(["an operation costs", "requester", "responder"], &[1, 2]);
    type LinkQuantity = fn(&LinkTransactions) -> f64;
    let lines: [(&str, LinkQuantity); 9] = [
        ("MMIO writes", LinkTransactions::mmio_writes),
        ("  of them doorbells", LinkTransactions::doorbells),
        ("DMA reads", LinkTransactions::dma_reads_without_recv_wqes),
        ("DMA reads of RECVs", LinkTransactions::recv_wqe_reads),
        ("DMA writes", LinkTransactions::dma_writes),
        ("cache lines read", LinkTransactions::cache_lines_read),
        ("cache lines written", LinkTransactions::cache_lines_written),
        ("PCIe bytes to the NIC", LinkTransactions::bytes_to_device),
        ("PCIe bytes to the host", LinkTransactions::bytes_to_host),
    ];
    for (what, of) in lines {
        let (requester, responder) = (of(&one.requester), of(&one.responder));
        if requester > 0.0 || responder > 0.0 {
            rows.add_row([
                what.to_owned(),
                format_three_digits(requester),
                format_three_digits(responder),
            ]);
        }
    }
    let network = &one.network_packets;
    rows.add_row([
        "network bytes sent".to_owned(),
        format_three_digits(network.to_responder.bytes_without_gaps),
        format_three_digits(network.to_requester.bytes_without_gaps),
    ]);
    if one.atomic_locks > 0.0 {
        rows.add_row([
            "NIC locks".to_owned(),
            format_three_digits(0.0),
            format_three_digits(one.atomic_locks),
        ]);
    }
    rows
}

/// The bounds of both sides, if one machine only posts the operation and another only receives it.
pub(super) struct BoundsOfBothSides {
    requester: Bounds,
    responder: Bounds,
}

/// The number of cores of each side, and the window of the requester.
#[derive(Clone, Copy)]
struct CoresAndWindow {
    cores: Option<u32>,
    /// Number of operations that the requester has outstanding.
    window: Option<f64>,
}

impl BoundsOfBothSides {
    fn compute(
        profile: &Profile,
        load: &MixOperation,
        CoresAndWindow { cores, window }: CoresAndWindow,
    ) -> Result<Self> {
        let bounds = |role| {
            let load = MixOperation {
                role,
                ..load.clone()
            };
            let mix = Mix {
                cores,
                max_outstanding: window.filter(|_| role == Role::Requester),
                ..Mix::new(vec![load])
            };
            Bounds::of(profile, &mix)
        };
        Ok(Self {
            requester: bounds(Role::Requester)?,
            responder: bounds(Role::Responder)?,
        })
    }

    pub(super) fn by_role(&self) -> [(Role, &Bounds); 2] {
        [
            (Role::Requester, &self.requester),
            (Role::Responder, &self.responder),
        ]
    }
}

/// Returns possible changes of an operation, and the rates of both sides after each.
fn effects_of_changes(
    profile: &Profile,
    load: &MixOperation,
    way: CoresAndWindow,
    now: &BoundsOfBothSides,
) -> Vec<ChangeEffectOnBothSides> {
    let mut changes: Vec<(String, MixOperation)> = Vec::new();
    let mut change = |words: String, edit: &dyn Fn(&mut MixOperation)| {
        let mut changed = load.clone();
        edit(&mut changed);
        changes.push((words, changed));
    };
    let operation = &load.operation;
    if load.mean_postlist_len < 16.0 {
        change("postlists of 16".to_owned(), &|load| {
            *load = load.clone().in_postlists(16.0);
        });
        if let Some(queue_pairs) = load.queue_pairs {
            let more = queue_pairs.saturating_mul(4);
            change(format!("postlists of 16 on {more} queue pairs"), &|load| {
                *load = load.clone().in_postlists(16.0).on_queue_pairs(more);
            });
        }
    }
    if load.mean_postlist_len > 1.0 {
        change("one operation a post".to_owned(), &|load| {
            *load = load.clone().in_postlists(1.0);
        });
    }
    if let Some(queue_pairs) = load.queue_pairs {
        let more = queue_pairs.saturating_mul(2);
        change(format!("{more} queue pairs"), &|load| {
            load.queue_pairs = Some(more)
        });
    }
    if operation.verb.carries_payload_in_request() && operation.payload_bytes > 0 {
        if !operation.inline {
            change("payload inlined".to_owned(), &|load| {
                load.operation.inline = true
            });
        }
        if operation.verb == Verb::Send && operation.payload_bytes <= 4 {
            change(
                "header-only, the data in the immediate".to_owned(),
                &|load| {
                    load.operation.payload_bytes = 0;
                    load.operation.has_imm = true;
                },
            );
        }
        if operation.inlines_payload() {
            let lines = wqe::cache_line_count(operation.wqe_bytes(profile));
            let (verb, transport) = (operation.verb, operation.transport);
            let less = wqe::max_inline_payload(profile, verb, transport, lines.saturating_sub(1));
            if let Some(less) = less {
                let words = format!("payload of {less} bytes, a cache line less in the WQE");
                change(words, &|load| load.operation.payload_bytes = less);
            }
        }
    }
    if operation.signaled_fraction > 1.0 / f64::from(DEFAULT_SIGNAL_PERIOD) {
        change(
            format!("one in {DEFAULT_SIGNAL_PERIOD} signaled"),
            &|load| {
                load.operation.signaled_fraction = 1.0 / f64::from(DEFAULT_SIGNAL_PERIOD);
            },
        );
    }
    if operation.payload_destination == PayloadDestination::Regular {
        change("inline RECVs".to_owned(), &|load| {
            load.operation.payload_destination = PayloadDestination::Inline;
        });
    }
    if load.lock_slots.is_some() {
        change("counters spread over all locks".to_owned(), &|load| {
            load.lock_slots = None
        });
    }
    let outcome = |(change, load): (String, MixOperation)| {
        let arrives_in_cqe = load.operation.arrives_in_cqe(profile);
        if load.operation.payload_destination == PayloadDestination::Inline && !arrives_in_cqe {
            return None;
        }
        let then = BoundsOfBothSides::compute(profile, &load, way).ok()?;
        Some(ChangeEffectOnBothSides {
            change,
            requester: effect_of_change(&now.requester, &then.requester)?,
            responder: effect_of_change(&now.responder, &then.responder)?,
        })
    };
    let mut ideas: Vec<_> = changes.into_iter().filter_map(outcome).collect();
    let best = |idea: &ChangeEffectOnBothSides| idea.requester.gain.max(idea.responder.gain);
    ideas.sort_by(|a, b| best(b).total_cmp(&best(a)));
    ideas
}

fn effect_of_change(now: &Bounds, then: &Bounds) -> Option<ChangeEffect> {
    let (before, after) = (now.predicted_mops?, then.predicted_mops?);
    Some(ChangeEffect {
        predicted_mops: after,
        gain: after / before - 1.0,
        max_gain_within_noise: uncertainty::noise_of_gain(now.bottleneck()?, then.bottleneck()?),
        bottleneck: then.bottleneck(),
    })
}
